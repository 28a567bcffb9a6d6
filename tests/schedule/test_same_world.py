"""What happens to clients does not depend on what the server does with them, nor on the other clients."""

import guarantees
import numpy as np
import pytest

from jafl.schedule import Dropout, asynchronous, availability, delays, open_arrivals, synchronous

CLIENTS, SEED = 12, 7
LAW = delays.log_normal(1.0, 1.0)
COMMON = {"num_clients": CLIENTS, "delay": LAW, "server_steps": 60, "seed": SEED}
BUFFERED = {**COMMON, "concurrency": 9, "buffer_size": 4}
# Not with what loses trips for long: its places open with a step only, and without them there may never be one.
AFTER_STEP = "after_step"
PLAIN = {
    "buffered": lambda **more: asynchronous(**BUFFERED, **more),
    "one trip a step": lambda **more: asynchronous(**{**BUFFERED, "buffer_size": 1}, **more),
    "everyone": lambda **more: asynchronous(**{**BUFFERED, "concurrency": CLIENTS}, **more),
    AFTER_STEP: lambda **more: asynchronous(**BUFFERED, restart="after_step", **more),
    "after_round": lambda **more: asynchronous(**BUFFERED, restart="after_round", **more),
    "K-batch-sync": lambda **more: asynchronous(**BUFFERED, cancel_at_step=True, **more),
    "drop": lambda **more: asynchronous(**BUFFERED, staleness_limit=1, **more),
    "cancel": lambda **more: asynchronous(**BUFFERED, staleness_limit=1, too_stale="cancel", **more),
    "by the clock": lambda **more: asynchronous(**{**BUFFERED, "buffer_size": None}, step_every=0.5, **more),
    "wait": lambda **more: asynchronous(**BUFFERED, staleness_limit=1, too_stale="wait", **more),
    "flush": lambda **more: asynchronous(**BUFFERED, flush_after=0.3, **more),
    "open arrivals": lambda **more: open_arrivals(**COMMON, start_rate=6.0, buffer_size=4, **more),
}


def ended(schedule):
    """{(client, trip): duration} of the trips that came to their own end, to 9 digits.

    Not of those thrown away at the time of a step, which may have been cancelled.
    """
    at_step = np.isin(schedule.discarded_end_time, schedule.step_time)
    columns = (
        np.concatenate([schedule.client, schedule.discarded_client[~at_step]]),
        np.concatenate([schedule.trip, schedule.discarded_trip[~at_step]]),
        np.concatenate([schedule.download_time, schedule.discarded_start_time[~at_step]]),
        np.concatenate([schedule.arrival_time, schedule.discarded_end_time[~at_step]]),
    )
    return {(c, k): float(f"{end - start:.9g}") for c, k, start, end in zip(*columns, strict=True)}


@pytest.mark.parametrize("other", [name for name in PLAIN if name != "buffered"])
def test_the_same_trip_takes_the_same_time(other):
    one, two = ended(PLAIN["buffered"]()), ended(PLAIN[other]())
    both = one.keys() & two.keys()
    assert len(both) > 40
    assert {key: one[key] for key in both} == {key: two[key] for key in both}


def test_the_same_trip_takes_the_same_time_in_rounds():
    one = ended(PLAIN["buffered"]())
    two = ended(synchronous(**COMMON, cohort_size=5, over_selection=0.2))
    both = one.keys() & two.keys()
    assert len(both) > 40
    assert {key: one[key] for key in both} == {key: two[key] for key in both}


def failed(schedule):
    """{(client, trip): whether it failed} of the trips that came to their own end."""
    at_step = np.isin(schedule.discarded_end_time, schedule.step_time)
    brought = {(c, k): False for c, k in zip(schedule.client, schedule.trip, strict=True)}
    lost = zip(schedule.discarded_client[~at_step], schedule.discarded_trip[~at_step], strict=True)
    return brought | {key: True for key in lost}


@pytest.mark.parametrize("other", [name for name in PLAIN if name not in ("buffered", "drop")])
def test_the_same_trip_fails(other):
    """All but with a limit to staleness, which throws other trips away."""
    one, two = failed(PLAIN["buffered"](failure_rate=0.3)), failed(PLAIN[other](failure_rate=0.3))
    both = one.keys() & two.keys()
    assert {one[key] for key in both} == {True, False}
    assert {key: one[key] for key in both} == {key: two[key] for key in both}


@pytest.mark.parametrize("name", [name for name in PLAIN if name != AFTER_STEP])
@pytest.mark.parametrize(
    "law",
    [availability.diurnal(3.0, 0.6, 1.0, True), availability.on_and_off(2.0, 1.0)],
    ids=["diurnal", "on_and_off"],
)
def test_the_same_clients_are_there(name, law):
    """All start within, and are lost at the ends of, windows that the seed alone decides."""
    schedule = PLAIN[name](availability=law)
    ready = law.prepare(CLIENTS, SEED)
    clients, _, starts, ends = guarantees.all_trips(schedule)
    assert len(starts) > 60
    for client, start, end in zip(clients.tolist(), starts.tolist(), ends.tolist(), strict=True):
        assert ready.next_available(client, start) == start
        assert end == np.inf or end <= ready.window_end(client, start)


@pytest.mark.parametrize("name", PLAIN)
def test_the_same_clients_leave(name):
    dropout = Dropout(0.25, time=5.0)
    schedule = PLAIN[name](dropout=dropout)
    clients, _, starts, _ = guarantees.all_trips(schedule)
    assert starts.max() > 6.0
    still = set(clients[starts > 5.0].tolist())
    assert not still & dropout.leavers(CLIENTS, SEED)
    assert len(dropout.leavers(CLIENTS, SEED)) == 3


# One client more.


def test_a_new_client_changes_no_other_clients_durations_failures_or_presence():
    law = availability.on_and_off(2.0, 1.0)

    def schedule(clients):
        return asynchronous(
            num_clients=clients,
            concurrency=clients,
            buffer_size=3,
            delay=delays.slow_fraction(LAW, delays.constant(9.0), 0.3),
            server_steps=100,
            failure_rate=0.2,
            availability=law,
            seed=SEED,
        )

    fewer, more = schedule(CLIENTS), schedule(CLIENTS + 1)
    assert (more.client == CLIENTS).any()
    one, two = ended(fewer), ended(more)
    both = one.keys() & two.keys()
    lost = failed(fewer)
    assert len(both) > 100 and {lost[key] for key in both} == {True, False}
    assert {key: one[key] for key in both} == {key: two[key] for key in both}
    assert {key: lost[key] for key in both} == {key: failed(more)[key] for key in both}
    short, long = law.prepare(CLIENTS, SEED), law.prepare(CLIENTS + 1, SEED)
    days = [availability.diurnal(3.0, 0.4).prepare(clients, SEED) for clients in (CLIENTS, CLIENTS + 1)]
    for client in range(CLIENTS):
        for time in np.linspace(0.0, 40.0, 37):
            assert short.next_available(client, time) == long.next_available(client, time)
            assert days[0].next_available(client, time) == days[1].next_available(client, time)


@pytest.mark.parametrize("fraction", [0.1, 0.3, 0.5, 0.9])
def test_a_new_client_changes_who_leaves_by_one_at_most(fraction):
    """The clients who leave are those of the lowest draws, which stay; only how many of them, and one more draw."""
    dropout = Dropout(fraction, time=1.0)
    for clients in range(4, 60):
        before, after = dropout.leavers(clients, SEED), dropout.leavers(clients + 1, SEED)
        assert len(before) == round(fraction * clients)
        assert len(before ^ (after - {clients})) <= 1


def test_another_seed_is_another_world():
    one, two = (
        asynchronous(**{**BUFFERED, "seed": seed, "concurrency": CLIENTS}, failure_rate=0.3)
        for seed in (1, 2)
    )
    times = [ended(schedule) for schedule in (one, two)]
    both = times[0].keys() & times[1].keys()
    assert not any(times[0][key] == times[1][key] for key in both)
    assert any(failed(one)[key] != failed(two)[key] for key in both)
    assert Dropout(0.5, time=1.0).leavers(40, 1) != Dropout(0.5, time=1.0).leavers(40, 2)
    law = availability.diurnal(24.0, 0.5)
    first, second = law.prepare(9, 1), law.prepare(9, 2)
    assert any(first.next_available(c, 50.0) != second.next_available(c, 50.0) for c in range(9))


def test_the_same_settings_give_the_same_schedule():
    law = availability.on_and_off(2.0, 1.0)
    happens = {"failure_rate": 0.1, "availability": law, "dropout": Dropout(0.2, trips=5)}
    for name, make in PLAIN.items():
        one, two = (make(**({} if name == AFTER_STEP else happens)) for _ in range(2))
        for column in ("client", "arrival_time", "step", "inflight_client", "discarded_end_time"):
            np.testing.assert_array_equal(getattr(one, column), getattr(two, column), err_msg=name)
