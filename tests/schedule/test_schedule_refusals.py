"""Settings that no schedule can have: each is refused by name, with its value and what is allowed."""

import pytest
from refusals import refuses

from jafl.schedule import asynchronous, delays, synchronous

NAN, INF = float("nan"), float("inf")
ONE = delays.constant(1.0)
BUFFERED = {"num_clients": 10, "concurrency": 4, "buffer_size": 3, "delay": ONE, "server_steps": 5}
ROUNDS = {"num_clients": 10, "cohort_size": 4, "over_selection": 0.5, "delay": ONE, "server_steps": 5}
BETWEEN = "must be between 1 and the number of clients, 10"
STOPS = "must be given one without the other"

BAD_BUFFERED = {
    "concurrency above N": ({"concurrency": 11}, "concurrency is 11", BETWEEN, "Lower concurrency"),
    "a truth value for a number": ({"concurrency": True}, "concurrency is True", BETWEEN),
    "a truth value for a seed": ({"seed": True}, "seed is True", "a whole number"),
    "nobody in flight": ({"concurrency": 0}, "concurrency is 0", BETWEEN),
    "concurrency below 0": ({"concurrency": -1}, "concurrency is -1", BETWEEN),
    "no clients": ({"num_clients": 0}, "num_clients is 0", "at least 1"),
    "empty buffer": ({"buffer_size": 0}, "buffer_size is 0", "at least 1"),
    "buffer below 0": ({"buffer_size": -2}, "buffer_size is -2", "at least 1"),
    "no steps": ({"server_steps": 0}, "server_steps is 0", "at least 1"),
    "steps below 0": ({"server_steps": -5}, "server_steps is -5", "at least 1"),
    "no end": ({"server_steps": None}, "server_steps and client_trips is (None, None)", STOPS),
    "two ends": ({"client_trips": 90}, "server_steps and client_trips is (5, 90)", STOPS),
    "two ends, one 0": ({"client_trips": 0}, "server_steps and client_trips is (5, 0)", STOPS),
    "never fills": (
        {"server_steps": None, "client_trips": 2},
        "buffer_size is 3",
        "must be at most client_trips (2), or it never fills",
        "Lower buffer_size or raise client_trips",
    ),
    "no trips": ({"server_steps": None, "client_trips": 0}, "client_trips is 0", "at least 1"),
    "no such way to replace": (
        {"restart": "after_step", "replace_lost": "later"},
        "replace_lost is 'later'",
        "one of",
    ),
    "lost places of another restart": (
        {"replace_lost": "after_step"},
        "replace_lost is 'after_step', but must be 'at_once' where restart is 'at_once'",
    ),
    "no time-out": (
        {"restart": "after_step", "replace_lost": "after_time_out"},
        "trip_time_out is None, but must be a finite number above 0 where replace_lost is 'after_time_out'",
    ),
    "a time-out of 0": (
        {"restart": "after_step", "replace_lost": "after_time_out", "trip_time_out": 0.0},
        "trip_time_out is 0.0, but must be a finite number above 0",
    ),
    "weights of others": (
        {"selection_weights": [1, 2]},
        "selection_weights is [1, 2]",
        "for each of the 10 clients",
    ),
    "a weight of 0": (
        {"selection_weights": [1] * 9 + [0]},
        "selection_weights of client 9 is 0.0",
        "above 0",
    ),
    "weights of nobody idle": (
        {"selection_weights": [1] * 10, "concurrency": 10},
        "must be left out where all clients train",
        "lower concurrency",
    ),
    "no such predicate": (
        {"step_when": "harmonic"},
        "step_when is 'harmonic'",
        "Did you mean 'harmonic_mean'?",
    ),
    "a mean over some clients": (
        {"step_when": "harmonic_mean"},
        "concurrency is 4, but must be the number of clients, 10, where step_when is 'harmonic_mean'",
    ),
    "a mean and a flush": (
        {"step_when": "harmonic_mean", "concurrency": 10, "flush_after": 1.0},
        "flush_after is 1.0, but must be left out where step_when is given",
    ),
    "a mean and rounds": (
        {"step_when": "harmonic_mean", "concurrency": 10, "restart": "after_round"},
        "restart is 'after_round', but must be left out where step_when is given",
    ),
    "two predicates": (
        {"step_when": "harmonic_mean", "concurrency": 10, "buffer_size": None, "step_every": 1.0},
        "step_when is 'harmonic_mean', but must be left out where step_every is given",
    ),
    "rounds and a buffer": (
        {"step_when": "each_client_once_a_round", "concurrency": 10},
        "buffer_size is 3, but must be left out where step_when is 'each_client_once_a_round'",
    ),
    "rounds that throw away": (
        {
            "step_when": "each_client_once_a_round",
            "concurrency": 10,
            "buffer_size": None,
            "staleness_limit": 0,
        },
        "staleness_limit is 0, but must be left out where step_when is given",
    ),
    "a clock and a buffer": (
        {"step_every": 1.0},
        "buffer_size is 3, but must be left out where step_every is given",
        "The server steps when it is time",
    ),
    "a clock that stands": ({"step_every": 0.0, "buffer_size": None}, "step_every is 0.0", "above 0"),
    "no moment": ({"step_every": NAN, "buffer_size": None}, "step_every is nan", "above 0"),
    "never": ({"step_every": INF, "buffer_size": None}, "step_every is inf", "above 0"),
    "steps before every trip": (
        {"step_every": 0.1, "buffer_size": None},
        "step_every is 0.1, but must be larger: in all 5 server steps no trip arrived",
    ),
    "a clock that hardly moves": (
        {"step_every": 1e-9, "buffer_size": None, "server_steps": None, "client_trips": 50},
        "step_every is 1e-09, but must be larger: no trip arrived in 1,000,000 server steps, one after the other",
    ),
    "a clock that waits": (
        {"step_every": 1.0, "buffer_size": None, "staleness_limit": 1, "too_stale": "wait"},
        "too_stale is 'wait', but must be left out where step_every is given",
    ),
    "a clock and an initial round": (
        {"step_every": 1.0, "buffer_size": None, "concurrency": 10, "initial_round": True},
        "initial_round is True, but must be left out where step_every is given",
    ),
    "stops without a limit": (
        {"too_stale": "cancel"},
        "staleness_limit is None, but must be given where too_stale is 'cancel'",
    ),
    "interrupts without a limit": (
        {"too_stale": "interrupt", "local_steps": 3, "delay": delays.per_step(ONE)},
        "staleness_limit is None, but must be given where too_stale is 'interrupt'",
    ),
    "interrupts of all": (
        {"too_stale": "interrupt", "staleness_limit": 0},
        "staleness_limit is 0, but must be at least 1 where too_stale is 'interrupt'",
    ),
    "interrupts of nothing": (
        {"too_stale": "interrupt", "staleness_limit": 1},
        "local_steps is None, but must be given where too_stale is 'interrupt'",
    ),
    "interrupts that do not shorten trips": (
        {"too_stale": "interrupt", "staleness_limit": 1, "local_steps": 3},
        "delay is constant(duration=1.0), but must be a law with jafl.delays.per_step where too_stale is 'interrupt'",
    ),
    "interrupts and a time to flush": (
        {
            **{"too_stale": "interrupt", "staleness_limit": 1, "local_steps": 3},
            **{"delay": delays.per_step(ONE), "flush_after": 1.0},
        },
        "flush_after is 1.0, but must be left out where too_stale is 'interrupt'",
    ),
    "stops of all": (
        {"too_stale": "cancel", "staleness_limit": 1, "cancel_at_step": True},
        "cancel_at_step is True, but must be left out where too_stale is 'cancel'",
    ),
    "a time-out without use": (
        {"restart": "after_step", "trip_time_out": 1.0},
        "trip_time_out is 1.0, but must be left out where replace_lost is 'at_once'",
    ),
}
BAD_ROUNDS = {
    "cohort above N": (
        {"cohort_size": 11, "over_selection": 0.0}, "cohort_size is 11", BETWEEN, "Lower cohort_size"),
    "nobody": ({"cohort_size": 0}, "cohort_size is 0", BETWEEN),
    "cohort below 0": ({"cohort_size": -4}, "cohort_size is -4", BETWEEN),
    "no clients": ({"num_clients": 0}, "num_clients is 0", "at least 1"),
    "over-selection below 0": ({"over_selection": -0.1}, "over_selection is -0.1", "must be at least 0"),
    "over-selection NaN": ({"over_selection": NAN}, "over_selection is nan", "must be at least 0"),
    "over-selection infinite": ({"over_selection": INF}, "over_selection is inf", "must be at least 0"),
    "starts more than N": ({"over_selection": 1.6}, "cohort_size * (1 + over_selection) is 11", BETWEEN),
    "starts far more than N": (
        {"cohort_size": 10}, "cohort_size * (1 + over_selection) is 15", BETWEEN, "Lower cohort_size"),
    "no steps": ({"server_steps": 0}, "server_steps is 0", "at least 1"),
    "no end": ({"server_steps": None}, "server_steps and client_trips is (None, None)", STOPS),
    "two ends": ({"client_trips": 90}, "server_steps and client_trips is (5, 90)", STOPS),
    "never fills": (
        {"server_steps": None, "client_trips": 5}, "cohort_size * (1 + over_selection) is 6",
        "must be at most client_trips (5), or it never fills"),
    "never fills, no over-selection": (
        {"server_steps": None, "client_trips": 3, "over_selection": 0.0}, "cohort_size is 4",
        "must be at most client_trips (3)"),
}  # fmt: skip


@pytest.mark.few_in_full(5)
@pytest.mark.full
@pytest.mark.parametrize("bad", BAD_BUFFERED.values(), ids=BAD_BUFFERED)
def test_asynchronous_refuses(bad):
    changes, *parts = bad
    with refuses(*parts):
        asynchronous(**(BUFFERED | changes))


@pytest.mark.parametrize("bad", BAD_ROUNDS.values(), ids=BAD_ROUNDS)
def test_synchronous_refuses(bad):
    changes, *parts = bad
    with refuses(*parts):
        synchronous(**(ROUNDS | changes))


def test_the_edges_of_what_is_allowed():
    everyone = asynchronous(**(BUFFERED | {"concurrency": 10, "buffer_size": 25}))
    assert (everyone.num_clients, everyone.concurrency, everyone.num_trips) == (10, 10, 125)
    exactly = asynchronous(**(BUFFERED | {"server_steps": None, "client_trips": 3}))
    assert (exactly.num_clients, exactly.concurrency, exactly.num_steps) == (10, 4, 1)
    rounds = synchronous(**(ROUNDS | {"over_selection": 1.5}))
    assert (rounds.num_clients, rounds.concurrency, rounds.num_trips) == (10, 10, 20)
    exactly = synchronous(**(ROUNDS | {"server_steps": None, "client_trips": 6}))
    assert (exactly.concurrency, exactly.num_steps) == (6, 1)


@pytest.mark.parametrize(
    ("cohort_size", "over_selection", "started"),
    [
        (100, 0.1, 110),
        (10, 0.11, 12),
        (10, 0.3, 13),
        (1000, 0.3, 1300),
        (3, 0.5, 5),
        (3, 1 / 3, 4),
        (7, 0.0, 7),
    ],
)
def test_over_selection_rounds_up_but_not_rounding_errors(cohort_size, over_selection, started):
    schedule = synchronous(
        num_clients=1500,
        cohort_size=cohort_size,
        over_selection=over_selection,
        delay=delays.exponential(1.0),
        server_steps=2,
    )
    assert schedule.concurrency == started
    assert len(schedule.client) == 2 * cohort_size
    assert len(schedule.discarded_client) == 2 * (started - cohort_size)
