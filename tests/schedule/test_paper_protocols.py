"""Protocols of single papers: the same trips as a loop written from the paper makes, and the papers' closed forms."""

import dataclasses
import math
from fractions import Fraction

import guarantees
import numpy as np
import paper_loops
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schedule_cases import POSITIVE, WholeNumbers, by_client, laws

from jafl import rules
from jafl.schedule import asynchronous, delays


def steps_of(schedule):
    """[(time, [(client, trip, downloaded version)])] of each server step."""
    trips = list(
        zip(schedule.client.tolist(), schedule.trip.tolist(), schedule.download_version.tolist(), strict=True)
    )
    ends = schedule.step_offsets.tolist()
    return [(time, trips[ends[t] : ends[t + 1]]) for t, time in enumerate(schedule.step_time.tolist())]


def of_law(law, seed):
    """(client, trip) -> duration."""
    return lambda client, trip: float(law.durations(seed, np.array([client]), np.array([trip]))[0])


def all_train(num_clients, law, seed, steps, **options):
    return asynchronous(
        num_clients=num_clients,
        concurrency=num_clients,
        delay=law,
        server_steps=steps,
        seed=seed,
        **options,
    )


def ringmaster(clients, law, seed, size, steps, stops):
    too_stale = "cancel" if stops else "drop"
    return (
        all_train(clients, law, seed, steps, staleness_limit=size - 1, too_stale=too_stale),
        paper_loops.ringmaster(clients, of_law(law, seed), size, steps, stops=stops),
    )


def rennala(clients, law, seed, size, steps, stops, harmonic=False):
    """Stopping and ignoring are two schedules."""
    options = {"cancel_at_step": True} if stops else {"staleness_limit": 0}
    if harmonic:
        options["step_when"] = "harmonic_mean"
    loop = paper_loops.rennala_or_malenia
    return (
        all_train(clients, law, seed, steps, buffer_size=size, **options),
        loop(clients, of_law(law, seed), size, steps, stops=stops, harmonic=harmonic),
    )


def malenia(clients, law, seed, size, steps, stops):
    return rennala(clients, law, seed, size, steps, stops, harmonic=True)


def fedfix(clients, law, seed, size, steps, stops):
    """With a step every ``size`` halves of a unit of time; nobody is stopped."""
    return (
        all_train(clients, law, seed, steps, step_every=size / 2, restart="after_step"),
        paper_loops.fedfix(clients, of_law(law, seed), size / 2, steps),
    )


def ringleader(clients, law, seed, size, steps, stops):
    """Rounds of single steps; nobody is stopped, and no step has a size."""
    return (
        all_train(clients, law, seed, steps, step_when="each_client_once_a_round"),
        paper_loops.ringleader(clients, of_law(law, seed), steps),
    )


@pytest.mark.few_by_default(2)
@pytest.mark.parametrize("protocol", [ringmaster, rennala, malenia, fedfix, ringleader])
@settings(max_examples=60)
@given(st.data())
def test_the_same_trips_as_in_the_papers_loop(protocol, data):
    clients = data.draw(st.integers(1, 7))
    law = data.draw(laws(clients, POSITIVE | st.just(WholeNumbers(1, 2))))
    seed, size, stops = data.draw(st.integers(0, 99)), data.draw(st.integers(1, 12)), data.draw(st.booleans())
    steps = data.draw(st.integers(8 if protocol is fedfix else 1, 12))
    if protocol is fedfix and max(of_law(law, seed)(client, 0) for client in range(clients)) > 4 * size:
        size = 200  # long trips: nobody might arrive within these steps, which is refused
    schedule, loop = protocol(clients, law, seed, size, steps, stops)
    assert steps_of(schedule) == loop
    guarantees.check_durations(schedule, law, seed)


# Ringmaster ASGD.

SPEEDS = delays.log_normal(1.0, 1.0)
FIXED = delays.once_per_client(SPEEDS)


def test_without_a_threshold_ringmaster_is_asynchronous_sgd():
    plain = all_train(8, SPEEDS, 3, 200)
    for too_stale in ("drop", "cancel"):
        assert steps_of(all_train(8, SPEEDS, 3, 200, staleness_limit=200, too_stale=too_stale)) == steps_of(
            plain
        )


def test_a_threshold_of_one_stops_everybody_at_each_step():
    stopped = all_train(8, SPEEDS, 3, 200, staleness_limit=0, too_stale="cancel")
    assert steps_of(stopped) == steps_of(all_train(8, SPEEDS, 3, 200, cancel_at_step=True))


@pytest.mark.parametrize("too_stale", ["drop", "cancel"])
def test_a_threshold_of_one_is_the_fastest_clients_own_training(too_stale):
    """At fixed speeds, R = 1: its trips follow one another, each from the model of the one before."""
    schedule = all_train(8, FIXED, 3, 200, staleness_limit=0, too_stale=too_stale)
    fastest = int(np.argmin([of_law(FIXED, 3)(client, 0) for client in range(8)]))
    alone = by_client(of_law(FIXED, 3)(fastest, 0))
    trips = [(time, [(fastest, *trip[1:])]) for time, [trip] in steps_of(all_train(1, alone, 0, 200))]
    assert steps_of(schedule) == trips


def test_a_small_threshold_without_stops_never_uses_slow_clients():
    """R = 3 and 8 clients of fixed speeds: those that are too slow arrive too late for ever, or nearly so."""
    used = {
        too_stale: np.bincount(
            all_train(8, FIXED, 1, 600, staleness_limit=2, too_stale=too_stale).client[300:]
        )
        for too_stale in ("drop", "cancel")
    }
    assert sum(used["drop"] > 0) <= 3
    assert sum(used["cancel"] > 0) <= 3


@pytest.mark.parametrize("threshold", [1, 2, 4, 9])
def test_nothing_under_way_is_staler_than_the_threshold(threshold):
    schedule = all_train(10, SPEEDS, 5, 300, staleness_limit=threshold - 1, too_stale="cancel")
    assert schedule.staleness.max() < threshold
    assert np.all(schedule.num_steps - schedule.inflight_version < threshold)
    # Each stopped trip had been under way for R steps when it was stopped, at that very step.
    begun = np.searchsorted(schedule.step_time, schedule.discarded_start_time, side="right")
    begun[schedule.discarded_start_time == 0] = 0
    assert np.all(schedule.discarded_step + 1 - begun == threshold)
    assert np.array_equal(schedule.discarded_end_time, schedule.step_time[schedule.discarded_step])


@pytest.mark.parametrize("threshold", [1, 3, 10, 40])
@pytest.mark.parametrize("too_stale", ["drop", "cancel"])
def test_ringmasters_bound_on_the_time_of_its_steps(threshold, too_stale):
    """Any R steps take t(R) = 2 min_m (mean of 1 / tau of the m fastest)^-1 (1 + R / m) at most."""
    clients = 20
    schedule = all_train(clients, FIXED, 2, 400, staleness_limit=threshold - 1, too_stale=too_stale)
    times = np.sort([of_law(FIXED, 2)(client, 0) for client in range(clients)])
    rates = np.cumsum(1 / times) / np.arange(1, clients + 1)
    bound = 2 * min((1 + threshold / m) / rates[m - 1] for m in range(1, clients + 1))
    moments = np.concatenate([[0.0], schedule.step_time])
    assert np.max(moments[threshold:] - moments[:-threshold]) <= bound


# PORT.


def parts_of(law, seed):
    """(client, trip) -> the seconds before the first local step, of each, and after the last."""
    return lambda client, trip: [
        float(np.broadcast_to(part, 1)[0]) for part in law.parts(seed, np.array([client]), np.array([trip]))
    ]


@settings(max_examples=60)
@given(st.data())
def test_the_same_interrupts_as_in_a_loop_from_the_paper(data):
    """Also what interrupts guarantee: of staleness, of local steps and of the time that they take."""
    clients, most, seed = (data.draw(st.integers(*span)) for span in [(1, 7), (1, 9), (0, 99)])
    law = delays.per_step(data.draw(laws(clients, POSITIVE | st.just(WholeNumbers(1, 2)))))
    law = delays.with_network(
        law, 1.0, *data.draw(st.sampled_from([(), (1.0,), (0.25, 2.0), (math.inf, 1.0)]))
    )
    bound, size, steps = (data.draw(st.integers(1, last)) for last in (4, 9, 12))
    options = {"buffer_size": size, "local_steps": most}
    schedule = all_train(clients, law, seed, steps, staleness_limit=bound, too_stale="interrupt", **options)
    loop, work = paper_loops.port(clients, parts_of(law, seed), most, bound, size, steps)
    assert steps_of(schedule) == loop
    columns = schedule.client, schedule.trip, schedule.local_steps, schedule.arrival_time
    assert all(
        work[c, k] == (count, end) for c, k, count, end in zip(*map(np.ndarray.tolist, columns), strict=True)
    )

    assert schedule.staleness.max() <= bound and len(schedule.discarded_client) == 0
    assert schedule.local_steps.min() >= 1 and schedule.local_steps.max() <= most
    takes = law.parts(seed, schedule.client, schedule.trip).of_steps(schedule.local_steps)
    np.testing.assert_array_equal(schedule.arrival_time, schedule.download_time + takes)
    for check in (guarantees.check_shapes, guarantees.check_order, guarantees.check_versions):
        check(schedule)


@pytest.mark.parametrize("work", [delays.uniform(0.0, 9.0), 9], ids=["drawn", "by speed"])
def test_a_large_bound_interrupts_nobody(work):
    law, how = delays.per_step(SPEEDS), {"buffer_size": 3, "local_steps": work, "too_stale": "interrupt"}
    how["dynamic_local_updates"] = work == 9
    plain = all_train(8, law, 3, 100, **how | {"too_stale": "drop"})
    bounded = all_train(8, law, 3, 100, staleness_limit=100, **how)
    for column in dataclasses.fields(plain):
        np.testing.assert_array_equal(getattr(bounded, column.name), getattr(plain, column.name))
    interrupted = all_train(8, law, 3, 100, staleness_limit=2, **how)
    assert plain.staleness.max() > interrupted.staleness.max() == 2
    takes = law.parts(3, interrupted.client, interrupted.trip).of_steps(interrupted.local_steps)
    np.testing.assert_array_equal(interrupted.arrival_time, interrupted.download_time + takes)


def test_interrupts_by_hand():
    """Limit 1, 4 local steps of 0.25 or 2, and 0.5 to download and to upload.

    Client 0 arrives at 2. This urges client 1 in its first step, until 2.5: it arrives at 3. That urges client 0, who
    has just begun its third step, until 3.25: it arrives at 3.75, in the first step of client 1's next trip, until
    5.5. The server waits for client 1 until 6; client 0, whose last trip began at 3.75, makes all its steps by then.
    """
    law = delays.with_network(delays.per_step(by_client(0.25, 2.0)), 1.0, 2.0, 2.0)
    schedule = all_train(2, law, 0, 4, local_steps=4, staleness_limit=1, too_stale="interrupt")
    assert schedule.client.tolist() == [0, 1, 0, 0, 1]
    assert schedule.local_steps.tolist() == [4, 1, 3, 4, 1]
    assert schedule.arrival_time.tolist() == [2.0, 3.0, 3.75, 5.75, 6.0]
    assert schedule.step_time.tolist() == [2.0, 3.0, 3.75, 6.0]


# Rennala SGD and Malenia SGD.

TIMES = (1.0, 1.7, 2.9, 4.9, 8.2, 13.3)


def at_fixed_speeds(enough, seconds=200.0):
    """min {t : enough(gradients of each client by t)}, t among the moments at which a client is done."""
    moments = sorted({k * time for time in TIMES for k in range(1, int(seconds / time))})
    return next(t for t in moments if enough([math.floor(t / time + 1e-9) for time in TIMES]))


@pytest.mark.parametrize("size", [1, 3, 8, 20])
def test_rennalas_time_per_step_at_fixed_speeds(size):
    """With stops it is exactly min {t : sum_i floor(t / tau_i) >= S}."""
    options = {"buffer_size": size, "cancel_at_step": True}
    schedule = all_train(len(TIMES), by_client(*TIMES), 0, 9, **options)
    expected = at_fixed_speeds(lambda counts: sum(counts) >= size)
    np.testing.assert_allclose(np.diff(schedule.step_time, prepend=0.0), expected, rtol=1e-12)


@pytest.mark.parametrize("size", [2, 6, 9, 20])
def test_malenias_time_per_step_at_fixed_speeds(size):
    options = {"buffer_size": size, "step_when": "harmonic_mean", "cancel_at_step": True}
    clients = len(TIMES)
    schedule = all_train(clients, by_client(*TIMES), 0, 9, **options)

    def enough(counts):
        return min(counts) > 0 and clients / sum(Fraction(1, b) for b in counts) >= Fraction(size, clients)

    np.testing.assert_allclose(np.diff(schedule.step_time, prepend=0.0), at_fixed_speeds(enough), rtol=1e-12)


def test_stopping_and_ignoring_are_two_schedules():
    """The two of the six clients that are fastest: steps 2.0 apart with stops; 2 and 3 in turn without."""
    fast = by_client(1.0, 1.7, 3.0, 5.0, 8.0, 13.3)
    stopped, ignored = (
        all_train(6, fast, 0, 6, buffer_size=3, **options)
        for options in ({"cancel_at_step": True}, {"staleness_limit": 0})
    )
    np.testing.assert_allclose(np.diff(stopped.step_time), 2.0, rtol=1e-12)
    assert not np.allclose(np.diff(ignored.step_time), 2.0)


@pytest.mark.parametrize("size", [1, 4, 8, 12])
def test_equal_clients_make_malenia_a_minibatch_of_whole_rounds(size):
    """S / N gradients of each of N clients, one at least (a strict inequality would ask for one more)."""
    options = {"buffer_size": size, "step_when": "harmonic_mean"}
    schedule = all_train(4, delays.constant(1.0), 0, 5, **options)
    assert np.all(np.diff(schedule.step_offsets) == 4 * math.ceil(size / 4))


@pytest.mark.parametrize("stops", [True, False])
@pytest.mark.parametrize("size", [4, 8, 12])
def test_equal_clients_make_rennala_and_malenia_the_same_minibatches(size, stops):
    """Of S gradients, S / N of each client, all at the newest model, and each with the weight 1 / S."""
    made, _ = rennala(4, delays.constant(1.0), 0, size, 5, stops)
    assert steps_of(made) == steps_of(malenia(4, delays.constant(1.0), 0, size, 5, stops)[0])
    assert np.all(np.diff(made.step_offsets) == size) and np.all(made.staleness == 0)
    np.testing.assert_array_equal(made.step_time, size / 4 * np.arange(1, 6))
    weight = rules.malenia().build().columns(made)["weight"]
    np.testing.assert_allclose(weight, 1 / size, rtol=1e-15)


def test_up_to_one_trip_a_client_malenia_waits_for_the_last_client_alone():
    """S <= N: the harmonic mean of numbers from 1 on is 1 at least."""
    schedules = [
        all_train(5, SPEEDS, 1, 40, buffer_size=size, step_when="harmonic_mean", cancel_at_step=True)
        for size in (1, 5)
    ]
    assert steps_of(schedules[0]) == steps_of(schedules[1])
    for trips in np.split(schedules[0].client, schedules[0].step_offsets[1:-1]):
        assert set(trips.tolist()) == set(range(5))
        assert np.sum(trips == trips[-1]) == 1


# Ringleader ASGD.


@pytest.mark.parametrize("clients", [1, 3, 5, 10])
@pytest.mark.parametrize("law", [SPEEDS, FIXED, delays.constant(1.0)], ids=["drawn", "fixed", "equal"])
def test_each_client_makes_one_step_a_round(clients, law):
    schedule = all_train(clients, law, 4, 12 * clients, step_when="each_client_once_a_round")
    by_round = schedule.client[schedule.step_offsets[1:] - 1].reshape(12, clients)  # whose trip made the step
    assert np.array_equal(np.sort(by_round), np.tile(np.arange(clients), (12, 1)))
    # The first step of a round waits for whoever has not arrived since its own step in the round before.
    for number in range(12):
        first = schedule.step_offsets[number * clients + 1]
        assert set(schedule.client[:first].tolist()) == set(range(clients))


@pytest.mark.full
@pytest.mark.few_in_full(1)
@pytest.mark.parametrize(("clients", "attained"), [(3, 4), (5, 8), (10, 18)])
def test_no_gradient_in_use_is_older_than_two_rounds(clients, attained):
    """2 N - 2 steps at most from its download to the last step that uses it; some come near enough to reach that."""
    oldest = 0
    for seed in range(60):
        law = delays.once_per_client(delays.log_normal(1.0, 2.0)) if seed % 2 else SPEEDS
        schedule = all_train(clients, law, seed, 8 * clients, step_when="each_client_once_a_round")
        # A trip that does not make a step itself serves from the next round on, or from this one's first step on, to
        # the end of that round.
        step, own = schedule.step, np.zeros(schedule.num_trips, bool)
        own[schedule.step_offsets[1:] - 1] = True
        gathered = own | (step % clients == 0)
        last = (step // clients + np.where(gathered, 1, 2)) * clients - 1
        last = np.minimum(last, schedule.num_steps - 1)
        oldest = max(oldest, int((last - schedule.download_version).max()))
    assert oldest == attained == 2 * clients - 2


def test_at_fixed_speeds_a_round_takes_two_of_the_slowest_trips_at_most():
    schedule = all_train(7, FIXED, 3, 70, step_when="each_client_once_a_round")
    slowest = max(of_law(FIXED, 3)(client, 0) for client in range(7))
    ends = schedule.step_time[6::7]
    assert np.diff(ends, prepend=0.0).max() <= 2 * slowest * (1 + 1e-12)


def test_equal_clients_of_ringleader_step_in_turn():
    schedule = all_train(4, delays.constant(1.0), 0, 16, step_when="each_client_once_a_round")
    steps = schedule.client[schedule.step_offsets[1:] - 1].tolist()
    assert steps == [
        *(3, 0, 1, 2),
        *(2, 3, 0, 1),
        *(1, 2, 3, 0),
        *(0, 1, 2, 3),
    ]  # all in turn, from another one on


# FedFix.


def test_steps_that_wait_for_the_slowest_are_rounds():
    """dt at least the longest trip: every step has one trip of each client, from the version before."""
    schedule = all_train(6, delays.uniform(0.2, 1.0), 0, 30, step_every=1.0, restart="after_step")
    assert np.all(np.diff(schedule.step_offsets) == 6)
    assert np.all(schedule.staleness == 0)
    np.testing.assert_array_equal(schedule.step_time, np.arange(1, 31))


@pytest.mark.full
def test_frequent_steps_are_asynchronous_training():
    """dt to 0: the trips of the steps that are not empty, one each, are those of asynchronous SGD."""
    every = 2.0**-17
    clock = all_train(3, delays.exponential(1.0), 0, 250_000, step_every=every)
    plain = all_train(3, delays.exponential(1.0), 0, 6)
    filled = np.flatnonzero(np.diff(clock.step_offsets))
    assert len(filled) >= 3
    both = min(len(filled), 6)
    assert clock.client[:both].tolist() == plain.client[:both].tolist()
    assert clock.trip[:both].tolist() == plain.trip[:both].tolist()
    np.testing.assert_allclose(clock.step_time[filled[:both]], plain.step_time[:both], atol=every)


def test_a_trip_of_fedfix_counts_the_steps_that_it_took():
    """Started at a step, it is applied ceil(tau / dt) steps later: its staleness plus 1."""
    schedule = all_train(9, SPEEDS, 4, 60, step_every=0.7, restart="after_step")
    took = schedule.arrival_time - schedule.download_time
    assert np.array_equal(schedule.staleness + 1, np.ceil(took / 0.7 - 1e-12).astype(int))


def test_every_client_of_fedfix_has_weighed_one_nth_for_each_step_until_its_last_start():
    """Exactly, at any speeds: sum_i d_i = (steps so far) / N, whenever the client starts anew."""
    schedule = all_train(9, SPEEDS, 4, 60, step_every=0.7, restart="after_step")
    weight = rules.fedfix().build().columns(schedule)["weight"]
    total = np.bincount(schedule.client, weight, 9)
    begun = dict(zip(schedule.inflight_client.tolist(), schedule.inflight_version.tolist(), strict=True))
    np.testing.assert_allclose(total, [begun[client] / 9 for client in range(9)], rtol=1e-13)
    assert len(set(np.bincount(schedule.client).tolist())) > 3
