"""FedCompass: its scheduler against an event loop written from the paper and its release, and its runs."""

import math

import guarantees
import jax
import numpy as np
import pytest
import reference as ref
import reference_rules as papers
from against_reference import make_federation, relative_difference
from schedule_cases import by_client

import jafl
from jafl import delays, rules
from jafl.schedule.local_steps import DelayOfSteps

CLIENTS = 9
SCHEDULES = {
    "speeds that stay": delays.per_step(delays.once_per_client(delays.log_normal(1.0, 0.8))),
    "speeds that change": delays.per_step(delays.exponential(1.0)),
    "a slow network, two groups": delays.groups(
        [
            (4, delays.per_step(delays.uniform(1.0, 1.2))),
            (
                5,
                delays.with_network(
                    delays.per_step(delays.pareto(3.0)), 100.0, 3.0, 1.0, draw_each_trip=True
                ),
            ),
        ]
    ),
}
NUMBERS = {"most_local_steps": 12, "least_local_steps": 3}


def events(duration_of, num_clients, steps, most, least, momentum, factor):
    """FedCompass, one event after the other: [(client, trip, version, steps, download, arrival, server step)].

    duration_of: (client, trip, local steps) -> the time that it takes.
    """
    speed, group_of, groups, general, log = {}, {}, {}, [], []
    under_way, made, state = [], dict.fromkeys(range(num_clients), 0), {"version": 0, "names": 0}

    def start(client, now, count):
        end = now + duration_of(client, made[client], count)
        under_way.append((end, client, made[client], state["version"], count, now))
        made[client] += 1

    def aggregate(trips):
        for end, client, trip, version, count, begun in sorted(trips):
            log.append((client, trip, version, count, begun, end, state["version"]))
        state["version"] += 1

    def assign(client, now):
        own, best, chosen = speed[client], None, -1
        for name, group in groups.items():
            if group["open"]:
                count = math.floor((group["expected"] - now) / own)
                if least <= count <= most and count >= chosen:
                    best, chosen = name, count
        if best is None:
            chosen = -1
            for group in groups.values():
                if group["open"] and now < group["latest"]:
                    fastest = min(speed[member] for member in group["members"])
                    count = math.floor((group["latest"] + fastest * most - now) / own)
                    if count <= most:
                        chosen = max(chosen, count)
            chosen = most if chosen < 0 else max(chosen, least)
            best, state["names"] = state["names"], state["names"] + 1
            times = {"expected": now + chosen * own, "latest": now + chosen * own * factor}
            groups[best] = {**times, "members": set(), "waiting": [], "open": True}
        groups[best]["members"].add(client)
        group_of[client] = best
        start(client, now, chosen)

    def close(group, now):
        nonlocal general
        arrived = [trip[1] for trip in group["waiting"]]
        aggregate(general + group["waiting"])
        general, group["waiting"], group["open"] = [], [], False
        for client in sorted(arrived, key=lambda one: speed[one]):
            assign(client, now)

    for client in range(num_clients):
        start(client, 0.0, most)
    while state["version"] < steps:
        ends = [group["latest"] for group in groups.values() if group["open"] and group["waiting"]]
        now = min([min(under_way)[0], *ends])
        while state["version"] < steps and min(under_way)[0] == now:
            trip = min(under_way)
            under_way.remove(trip)
            _, client, number, _, count, begun = trip
            seen = (now - begun) / count
            speed[client] = (1 - momentum) * speed[client] + momentum * seen if number else seen
            group = groups.get(group_of.get(client))
            if group is None:
                aggregate([trip])
                assign(client, now)
            elif group["open"] and now <= group["latest"]:
                group["waiting"].append(trip)
                if len(group["waiting"]) == len(group["members"]):
                    close(group, now)
            else:
                general.append(trip)
                group["members"].discard(client)  # the others need not wait for it
                assign(client, now)
        for group in [*groups.values()]:
            due = group["open"] and group["waiting"] and group["latest"] <= now
            if due and state["version"] < steps:
                close(group, now)
    return log


def duration_of(law, seed):
    def duration(client, trip, steps):
        parts = law.parts(seed, np.array([client]), np.array([trip]))
        before, each, after = (float(np.broadcast_to(part, 1)[0]) for part in parts)
        return before + steps * each + after

    return duration


@pytest.mark.few_by_default(2)
@pytest.mark.parametrize("momentum, factor", [(0.9, 1.5), (0.5, 1.0), (1.0, 4.0)])
@pytest.mark.parametrize("law", SCHEDULES)
def test_the_schedule_equals_an_event_loop(law, momentum, factor):
    for seed in range(4):
        schedule = jafl.compass(
            num_clients=CLIENTS,
            delay=SCHEDULES[law],
            server_steps=120,
            speed_momentum=momentum,
            latest_factor=factor,
            seed=seed,
            **NUMBERS,
        )
        log = events(duration_of(SCHEDULES[law], seed), CLIENTS, 120, 12, 3, momentum, factor)
        names = ("client", "trip", "download_version", "local_steps", "download_time", "arrival_time", "step")
        for name, expected in zip(names, zip(*log, strict=True), strict=True):
            np.testing.assert_array_equal(getattr(schedule, name), expected, err_msg=name)
        guarantees.check_shapes(schedule)
        guarantees.check_one_trip_at_a_time(schedule)
        guarantees.check_trip_numbers(schedule)
        assert np.all(np.diff(schedule.step_time) >= 0)
        assert np.all(schedule.arrival_time <= schedule.step_time[schedule.step])
        assert schedule.local_steps.min() >= 3 and schedule.local_steps.max() == 12
        assert np.ptp(np.diff(schedule.step_offsets)) > 1


def test_by_hand():
    """Three clients of 1, 2 and 4 seconds a step, from 2 to 8 steps.

    0 arrives at 8: alone, a group with 8 steps, expected at 16, at the latest at 20 (lambda 1.5). 1 arrives at 16:
    nothing is left of the time until then; but 0 has arrived, too, first, and its group of one made a step.
    """
    seconds = delays.per_step(delays.from_function(lambda client, trip: 2.0**client))
    schedule = jafl.compass(
        num_clients=3, delay=seconds, server_steps=7, most_local_steps=8, least_local_steps=2
    )
    rows = zip(
        schedule.client, schedule.download_time, schedule.arrival_time, schedule.local_steps, strict=True
    )
    # At 16 client 0 is assigned first, to 24. Client 1 joins with (24 - 16) / 2 = 4 steps, and both make a step at
    # 24: 0 gets 8 steps to 32, 1 joins with 4. At 32 client 2 comes last of the three: (40 - 32) / 4 = 2 steps to 40,
    # where all arrive together.
    assert list(rows) == [
        (0, 0, 8, 8),
        (0, 8, 16, 8),
        (1, 0, 16, 8),
        (0, 16, 24, 8),
        (1, 16, 24, 4),
        (0, 24, 32, 8),
        (1, 24, 32, 4),
        (2, 0, 32, 8),
        (0, 32, 40, 8),
        (1, 32, 40, 4),
        (2, 32, 40, 2),
    ]
    assert schedule.step.tolist() == [0, 1, 2, 3, 3, 4, 4, 5, 6, 6, 6]


def test_with_speeds_that_stay_nobody_is_late():
    """Members of a group arrive in (T_e - a step, T_e]: all of them make one step, so no group is left half."""
    law = SCHEDULES["speeds that stay"]
    for seed in range(5):
        schedule = jafl.compass(num_clients=CLIENTS, delay=law, server_steps=200, seed=seed, **NUMBERS)
        seconds = law.law.durations(seed, schedule.client, schedule.trip)
        later = np.flatnonzero(schedule.trip > 0)
        # Each step's trips arrive within one of their own steps of its time.
        waits = (schedule.step_time[schedule.step] - schedule.arrival_time)[later]
        assert np.all(waits < seconds[later] + 1e-9)


@pytest.mark.parametrize("factor", [1.0, 1.5, 4.0])
def test_with_exact_speeds_every_group_arrives_whole_within_a_step_of_its_expected_time(factor):
    """In (T_e - v_i, T_e], so nobody is late, whatever lambda is. The numbers are such that no sum is rounded."""
    seconds = np.array([3.0, 5.0, 7.0, 8.0, 11.0, 13.0, 17.0, 24.0, 31.0])
    schedule = jafl.compass(
        num_clients=CLIENTS,
        delay=delays.per_step(by_client(*seconds)),
        server_steps=300,
        speed_momentum=0.5,
        latest_factor=factor,
        **NUMBERS,
    )
    # A step at a group's latest time would be after all arrivals, and a late trip would wait for another group's.
    last = np.maximum.reduceat(schedule.arrival_time, schedule.step_offsets[:-1])
    np.testing.assert_array_equal(schedule.step_time, last)
    waits = schedule.step_time[schedule.step] - schedule.arrival_time
    assert np.all(waits < seconds[schedule.client])
    assert waits.max() > 10 and np.diff(schedule.step_offsets).max() >= 4


def test_one_client_makes_all_its_steps_in_blocks():
    schedule = jafl.compass(
        num_clients=1, delay=delays.per_step(delays.exponential(1.0)), server_steps=9, **NUMBERS
    )
    assert set(schedule.local_steps) == {12} and np.all(schedule.staleness == 0)


def test_a_budget_of_trips_buys_whole_steps():
    law = SCHEDULES["speeds that change"]
    whole = jafl.compass(num_clients=CLIENTS, delay=law, server_steps=60, **NUMBERS)
    ends = whole.step_offsets
    for budget in (1, 17, 40):
        bought = jafl.compass(num_clients=CLIENTS, delay=law, client_trips=budget, **NUMBERS)
        assert ends[bought.num_steps] <= budget < ends[bought.num_steps + 1]
        np.testing.assert_array_equal(bought.arrival_time, whole.arrival_time[: bought.num_trips])
    under_way = len(bought.inflight_client)
    assert under_way >= CLIENTS and set(bought.inflight_client) == set(range(CLIENTS))


def replay(schedule, federation, params, rate, rule):
    """The last version, and all losses: each trip trains from its version, each step applies its trips."""
    versions, losses = [ref.float64_copy(params)], []
    rule.begin(versions[0], schedule.num_clients)
    for step in range(schedule.num_steps):
        trips = []
        for j in np.flatnonzero(schedule.step == step):
            client, version = int(schedule.client[j]), int(schedule.download_version[j])
            x, y = federation.client(client)
            batches = [np.arange(len(y))] * int(schedule.local_steps[j])
            update, loss, used = ref.local_update(versions[version], x, y, batches, rate)
            trip = ref.Trip(client, int(schedule.trip[j]), version, 0.0, 0.0)
            trip.update, trip.step, trip.staleness = update, step, step - version
            losses.append(loss)
            trips.append(trip)
        direction = rule.pseudo_gradient(versions[-1], trips)
        versions.append(ref.subtract(versions[-1], ref.scale(0.9, direction)))
    return versions[-1], np.array(losses)


@pytest.mark.few_in_full(1)
@pytest.mark.full
@pytest.mark.parametrize("law", SCHEDULES)
def test_runs_equal_the_reference_in_every_plan(law):
    import optax

    with jax.enable_x64(True):
        federation = make_federation(CLIENTS, np.float64)
        schedule = jafl.compass(num_clients=CLIENTS, delay=SCHEDULES[law], server_steps=60, **NUMBERS)
        model = jafl.models.softmax(3)
        params = model.init(jax.random.key(1), federation.x)
        work = jafl.client_work(model, learning_rate=0.05, local_steps="scheduled", batch_size=0)
        expected, losses = replay(schedule, federation, params, 0.05, papers.FedCompass())
        assert ref.norm(ref.subtract(expected, ref.float64_copy(params))) > 0.1
        for plan in (
            jafl.trip_by_trip(schedule),
            jafl.in_waves(schedule, 5),
            jafl.in_waves(schedule, 4, form="matrix"),
        ):
            history = jafl.simulate(
                schedule,
                federation,
                work,
                rules.fedcompass(),
                params,
                jax.random.key(0),
                server_optimizer=jafl.specify(optax.sgd, learning_rate=0.9),
                evaluate_at=[],
                plan=plan,
            )
            assert relative_difference(history.params, expected) < 1e-12
            np.testing.assert_allclose(history.trip_reports["loss"], losses, rtol=1e-9)


def test_arrival_is_download_plus_the_duration_of_so_many_steps():
    for law in SCHEDULES.values():
        schedule = jafl.compass(num_clients=CLIENTS, delay=law, server_steps=60, seed=3, **NUMBERS)
        own = DelayOfSteps(law, 1).law.parts(3, schedule.client, schedule.trip).of_steps(schedule.local_steps)
        np.testing.assert_array_equal(schedule.arrival_time, schedule.download_time + own)
