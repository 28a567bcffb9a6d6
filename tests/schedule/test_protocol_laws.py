"""Closed forms that hold, or do not hold, for the schedules of other protocols than plain buffered training."""

import dataclasses
import math

import guarantees
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from replays import made
from schedule_cases import Case, asynchronous_cases, open_cases, with_options

from jafl import diagnostics, rules
from jafl.schedule import (
    Dropout,
    asynchronous,
    availability,
    delays,
    drawn_staleness,
    open_arrivals,
    synchronous,
)

# WKAFL, appendix D: the ages of the gradients under way.


def mean_ages(schedule):
    """[T]: at each step, the mean age of what the clients are at, those just arrived included; fresh is 1."""
    version = np.concatenate([schedule.download_version, schedule.inflight_version])
    applied = np.concatenate([schedule.step, np.full(len(schedule.inflight_version), schedule.num_steps)])
    steps = np.arange(schedule.num_steps)[:, None]
    alive = (version <= steps) & (applied >= steps)
    assert np.all(alive.sum(axis=1) == schedule.concurrency)
    return np.sum((steps - version + 1) * alive, axis=1) / schedule.concurrency


def k_asynchronous(clients, buffer_size, law, steps=120):
    return asynchronous(
        num_clients=clients,
        concurrency=clients,
        buffer_size=buffer_size,
        delay=law,
        server_steps=steps,
        restart="after_step",
    )


def bound(clients, buffer_size, rounded):
    """K / 2P (1 + r) r, with r = P / K rounded down, or up as the paper has it."""
    r = rounded(clients / buffer_size)
    return buffer_size / (2 * clients) * (1 + r) * r


def one_after_the_other(clients, group):
    """Equal durations of 1, but first trips such that groups arrive one after the other, for ever."""
    groups = math.ceil(clients / group)
    return delays.from_function(lambda client, trip: 1.0 + (client // group / groups if trip == 0 else 0.0))


@pytest.mark.parametrize(("clients", "buffer_size"), [(95, 10), (100, 10), (30, 7), (12, 12), (9, 1)])
@pytest.mark.parametrize(
    "law", [delays.exponential(1.0), delays.log_normal(1.0, 2.0), delays.uniform(1.0, 1.1)], ids=str
)
def test_wkafl_appendix_d_holds_rounded_down(clients, buffer_size, law):
    """At most K gradients are of each age, so from step P / K on their mean is at least that of full ages."""
    ages = mean_ages(k_asynchronous(clients, buffer_size, law))[clients // buffer_size :]
    assert np.all(ages >= bound(clients, buffer_size, math.floor) - 1e-12)


@pytest.mark.parametrize(("clients", "buffer_size"), [(16, 4), (64, 8), (8, 1), (8, 8)])
def test_wkafl_appendix_d_is_reached_by_equal_delays(clients, buffer_size):
    """Where K divides P; powers of two, so that sums of times are exact and groups never meet."""
    ages = mean_ages(k_asynchronous(clients, buffer_size, one_after_the_other(clients, buffer_size)))
    expected = bound(clients, buffer_size, math.floor)
    assert expected == bound(clients, buffer_size, math.ceil) == (clients / buffer_size + 1) / 2
    np.testing.assert_allclose(ages[clients // buffer_size :], expected, rtol=1e-12)


def test_wkafl_appendix_d_fails_rounded_up():
    """95 clients, 10 a step, first come first served: nine ages are full and five gradients are of a tenth."""
    law = delays.from_function(lambda client, trip: 128.0 + (client if trip == 0 else 0.0))
    ages = mean_ages(k_asynchronous(95, 10, law))[10:]
    fewest = (10 * sum(range(1, 10)) + 5 * 10) / 95
    assert ages.min() == pytest.approx(fewest, rel=1e-12)
    assert bound(95, 10, math.floor) == pytest.approx(90 / 19)
    assert bound(95, 10, math.ceil) == pytest.approx(110 / 19)
    assert bound(95, 10, math.floor) < ages.min() < bound(95, 10, math.ceil)


# ACE: delays that count server iterations.


@pytest.mark.parametrize(("clients", "mean"), [(100, 5.0), (100, 30.0), (10, 5.0)])
def test_the_reports_of_a_unit_of_time_are_binomial(clients, mean):
    """An exponential delay, rounded up, is geometric: each client reports with one chance, whatever was before."""
    schedule = drawn_staleness(
        num_clients=clients, reports="due", delay=delays.exponential(mean), server_steps=4000
    )
    chance = 1 - math.exp(-1 / mean)
    units = int(schedule.step_time[-1])
    sizes = np.zeros(units)
    sizes[schedule.step_time.astype(int) - 1] = np.diff(schedule.step_offsets)
    assert sizes.mean() == pytest.approx(clients * chance, rel=4 / math.sqrt(units * clients * chance))
    assert sizes.var() == pytest.approx(clients * chance * (1 - chance), rel=6 * math.sqrt(2 / units))
    assert np.mean(sizes == 0) == pytest.approx((1 - chance) ** clients, abs=0.02)
    assert clients * chance == pytest.approx(clients / (mean + 0.5), rel=0.01)


# The unit of time.

PLAIN = {"num_clients": 50, "concurrency": 20, "buffer_size": 3, "server_steps": 500, "seed": 4}
OPTIONS = {"num_clients": 40, "concurrency": 25, "buffer_size": 5, "server_steps": 120, "seed": 6}
OPEN = {"num_clients": 40, "buffer_size": 5, "server_steps": 120, "failure_rate": 0.2}
ROUNDS = {"num_clients": 50, "cohort_size": 20, "over_selection": 0.3, "server_steps": 50, "seed": 4}
IN_OTHER_UNITS = {
    "after_step": lambda unit: {"restart": "after_step"},
    "after_round": lambda unit: {"restart": "after_round"},
    "not_twice_in_a_buffer": lambda unit: {"restart": "not_twice_in_a_buffer"},
    "cancel_at_step": lambda unit: {"cancel_at_step": True},
    "K-sync": lambda unit: {"cancel_at_step": True, "restart": "after_step"},
    "drop": lambda unit: {"staleness_limit": 3},
    "cancel": lambda unit: {"staleness_limit": 3, "too_stale": "cancel"},
    "harmonic mean": lambda unit: {"concurrency": 40, "step_when": "harmonic_mean"},
    "by the clock": lambda unit: {"buffer_size": None, "step_every": 0.1 * unit},
    "wait": lambda unit: {"staleness_limit": 3, "too_stale": "wait"},
    "flush": lambda unit: {"flush_after": 0.05 * unit},
    "failures": lambda unit: {"failure_rate": 0.2},
    "leaving at a step": lambda unit: {"dropout": Dropout(0.3, server_step=9)},
    "leaving after own trips": lambda unit: {"dropout": Dropout(0.3, trips=4)},
    "leaving at a time": lambda unit: {"dropout": Dropout(0.3, time=3.0 * unit)},
    "days": lambda unit: {"availability": availability.diurnal(2.0 * unit, 0.5, 1.0, True)},
    "on and off": lambda unit: {"availability": availability.on_and_off(unit, unit)},
}


# {name: (protocol, its arguments in a unit of time, what the unit is multiplied by)}. The beginnings of days are sums
# that other units round elsewhere: a power of two rounds them alike.
UNITS = {
    name: (
        asynchronous,
        lambda unit, options=options: {**OPTIONS, **options(unit)},
        8.0 if name == "days" else 6.0,
    )
    for name, options in IN_OTHER_UNITS.items()
} | {
    f"{name}, {factor:.2g} times": (protocol, lambda unit, given=given: given, factor)
    for name, protocol, given in (("buffered", asynchronous, PLAIN), ("rounds", synchronous, ROUNDS))
    for factor in (6.0, 1 / 1024)
}
UNITS["open arrivals"] = (open_arrivals, lambda unit: {**OPEN, "start_rate": 15 / unit}, 6.0)


@pytest.mark.parametrize(("protocol", "arguments", "factor"), UNITS.values(), ids=UNITS)
def test_the_unit_of_time_cancels(protocol, arguments, factor):
    """Exp(5) and Exp(30), all else in the same unit: the same clients, versions and steps, other times."""
    short, long = (
        protocol(**arguments(unit), delay=delays.exponential(unit)) for unit in (5.0, 5.0 * factor)
    )
    assert_same_but_for_times(short, long, factor)


def assert_same_but_for_times(short, long, factor):
    assert short.step_time[-1] > 0
    for field in dataclasses.fields(short):
        expected, found = getattr(short, field.name), getattr(long, field.name)
        if field.name.endswith("time"):
            rounding = 0 if factor == 1 / 1024 else 1e-12
            np.testing.assert_allclose(found, factor * expected, rtol=rounding, err_msg=field.name)
        else:
            np.testing.assert_array_equal(found, expected, err_msg=field.name)


# FedBuff, appendix A.

ARRIVE_ALIKE = ("dropout", "failure_rate", "availability", "restart")


@pytest.mark.full
@settings(max_examples=180)
@given(
    asynchronous_cases()
    | with_options(asynchronous_cases(), ARRIVE_ALIKE, ("after_round",)).filter(
        lambda case: getattr(case.arguments.get("dropout"), "server_step", None) is None
    )
    | open_cases(),
    st.integers(2, 12),
)
def test_staleness_in_a_buffer_against_one_trip_per_step(case, buffer_size):
    """On the same arrivals tau_K <= ceil(tau_1 / K) for every update, where no start waits for a step."""
    single, buffered = (
        made(Case(case.protocol, {**case.arguments, "buffer_size": size, "server_steps": steps}))
        for size, steps in ((1, 5 * buffer_size), (buffer_size, 5))
    )
    for name in ("client", "trip", "download_time", "arrival_time"):
        np.testing.assert_array_equal(getattr(buffered, name), getattr(single, name))
    assert np.all(buffered.staleness <= np.ceil(single.staleness / buffer_size))


# K-sync and K-batch-sync.


@pytest.mark.parametrize("restart", ["after_step", "at_once"])
def test_k_sync_and_k_batch_sync_lengths(restart):
    """P exponential clients: K-sync takes H(P) - H(P - K) a step, K-batch-sync K / P (Dutta et al.)."""
    clients, size = 20, 8
    schedule = asynchronous(
        num_clients=clients,
        concurrency=clients,
        buffer_size=size,
        delay=delays.exponential(1.0),
        server_steps=4000,
        restart=restart,
        cancel_at_step=True,
    )
    k_sync = sum(1 / left for left in range(clients - size + 1, clients + 1))
    expected = k_sync if restart == "after_step" else size / clients
    lengths = np.diff(schedule.step_time, prepend=0.0)
    assert abs(lengths.mean() - expected) < 4 * lengths.std() / math.sqrt(len(lengths))
    repeated = len(np.unique(schedule.step.astype(np.int64) * clients + schedule.client)) < schedule.num_trips
    assert repeated == (restart == "at_once")


# FedStaleWeight.


def share_of_influence(throttled_to, weighted):
    """The share of client 0, which works at a part of its speed; weights as the rule gives them, or all alike."""
    law = delays.groups(((9, delays.uniform(0.5, 1.5)), (1, delays.uniform(2.0, 6.0))))
    schedule = asynchronous(
        num_clients=10,
        concurrency=10,
        buffer_size=5,
        delay=delays.throttled(law, throttled_to, [0]),
        client_trips=40_000,
    )
    weights = rules.fedstaleweight().build().columns(schedule)["weight"] if weighted else None
    return diagnostics.influence(schedule, weights)[0]


def test_throttling_does_not_pay():
    """FedStaleWeight, section 4.2.1: even of 10 clients, who slows down loses influence, but less than plainly."""
    shares = {part: share_of_influence(part, True) for part in (1.0, 0.8, 0.5, 0.25, 0.1)}
    assert list(shares.values()) == sorted(shares.values(), reverse=True)
    assert shares[0.5] < 0.98 * shares[1.0]
    plain = [share_of_influence(part, False) for part in (1.0, 0.25)]
    assert plain[1] / plain[0] == pytest.approx(0.25, rel=0.35)
    assert shares[0.25] / shares[1.0] > 1.5 * plain[1] / plain[0]


# How much is under way.


@pytest.mark.parametrize("exclude_busy", [True, False])
@pytest.mark.parametrize("starts", ["poisson", "constant"])
def test_open_arrivals_keep_rate_times_duration_under_way(exclude_busy, starts):
    """Little's law, 3 % over 20,000 trips; excluding the busy, where clients enough are idle."""
    schedule = open_arrivals(
        num_clients=2000,
        start_rate=8.0,
        starts=starts,
        exclude_busy=exclude_busy,
        buffer_size=10,
        delay=delays.half_normal(2.5),
        client_trips=20_000,
    )
    end = schedule.step_time[-1]
    _, _, begun, ended = guarantees.all_trips(schedule)
    mean = np.sum(np.minimum(ended, end) - begun) / end
    expected = 8.0 * 2.5 * np.sqrt(2 / np.pi)
    assert mean == pytest.approx(expected, rel=0.03)
    assert schedule.staleness.mean() == pytest.approx(expected / 10, rel=0.05)
    gaps = np.diff(np.sort(begun))
    assert gaps.mean() == pytest.approx(1 / 8, rel=0.03)
    assert gaps.std() == pytest.approx(1 / 8 if starts == "poisson" else 0.0, rel=0.05, abs=1e-9)
