"""What schedules of every protocol and option promise, and what only some of them do."""

import numpy as np
import pytest
from hypothesis import given, reject, settings
from replays import made
from schedule_cases import (
    CLIENTS,
    SERVER,
    asynchronous_cases,
    drawn_cases,
    limited,
    open_cases,
    open_cases_with_replacement,
    open_option_cases,
    option_cases,
    synchronous_cases,
    with_options,
)
from tiers import in_tiers

from jafl.schedule import asynchronous, delays, guarantees, open_arrivals

PROTOCOLS = {
    "options": option_cases(),
    "open arrivals": open_cases() | open_option_cases(),
    "open arrivals with replacement": open_cases_with_replacement(),
    "drawn staleness": drawn_cases(),
    "limits": limited(asynchronous_cases(), *CLIENTS, *SERVER)
    | limited(open_cases())
    | limited(synchronous_cases()),
}
OF_EVERY_PROTOCOL = ("shapes", "order", "concurrency", "one_trip_at_a_time", "trip_numbers", "versions")
NOT_OF = {
    # A client may be in several trips at once, of which some may arrive together.
    "open arrivals with replacement": {"one_trip_at_a_time", "order"},
    # No clock runs.
    "drawn staleness": {"durations"},
}


@pytest.mark.parametrize("protocol", in_tiers(PROTOCOLS.keys(), PROTOCOLS.keys() - {"limits"}))
def test_promises(protocol):
    @settings(max_examples=100)
    @given(PROTOCOLS[protocol])
    def check(case):
        schedule, exempt = made(case), NOT_OF.get(protocol, set())
        for name in (*OF_EVERY_PROTOCOL, "durations"):
            arguments = (case.delay, case.seed) if name == "durations" else ()
            if name not in exempt:
                getattr(guarantees, f"check_{name}")(schedule, *arguments)
        limits = case.arguments.get("most_trips"), case.arguments.get("smallest_gap", 0)
        guarantees.check_participation(schedule, *limits)

    check()


def full_buffers():
    """Cases whose every step applies ``buffer_size`` trips: nothing flushes, and nothing waits."""
    of_clients = option_cases("dropout", "failure_rate", "availability", "restart", "drop", "cancel_at_step")
    return of_clients | open_option_cases() | open_cases_with_replacement() | drawn_cases()


@settings(max_examples=100)
@given(full_buffers())
def test_every_step_applies_the_stated_number_of_trips(case):
    schedule = made(case)
    assert np.diff(schedule.step_offsets).tolist() == [case.buffer_size] * schedule.num_steps


@settings(max_examples=40)
@given(option_cases("flush_after", "dropout", "restart"))
def test_a_flush_makes_steps_smaller_never_larger(case):
    schedule = made(case)
    sizes = np.diff(schedule.step_offsets)
    assert sizes.min() >= 1 and sizes.max() <= case.buffer_size
    flush = case.arguments.get("flush_after", np.inf)
    waited = schedule.step_time - schedule.arrival_time[schedule.step_offsets[:-1]]
    assert np.all((sizes == case.buffer_size) | (waited >= flush * (1 - 1e-12)))
    assert np.all(waited <= flush * (1 + 1e-12))


@settings(max_examples=40)
@given(option_cases("wait"))
def test_waiting_makes_steps_larger_and_nothing_too_stale(case):
    schedule = made(case)
    assert np.diff(schedule.step_offsets).min() >= case.buffer_size
    assert schedule.staleness.max() <= case.arguments["staleness_limit"]
    assert len(schedule.discarded_client) == 0


@settings(max_examples=40)
@given(option_cases("drop"))
def test_dropping_leaves_nothing_too_stale(case):
    schedule, limit = made(case), case.arguments["staleness_limit"]
    assert schedule.staleness.max() <= limit
    durations = case.delay.durations(case.seed, schedule.discarded_client, schedule.discarded_trip)
    np.testing.assert_array_equal(schedule.discarded_end_time, schedule.discarded_start_time + durations)
    version = np.searchsorted(schedule.step_time, schedule.discarded_start_time, side="left")
    assert np.all(schedule.discarded_step - version > limit)  # at least: more with steps of that very instant


@settings(max_examples=40)
@given(option_cases("cancel_at_step", "restart"))
def test_nobody_is_under_way_from_one_step_to_the_next(case):
    if "cancel_at_step" not in case.arguments:
        reject()
    schedule = made(case)
    assert not schedule.staleness.any()
    assert np.all(schedule.discarded_end_time == schedule.step_time[schedule.discarded_step])
    assert np.all(schedule.inflight_version == schedule.num_steps)


@settings(max_examples=40)
@given(option_cases("restart", "failure_rate"))
def test_no_client_is_twice_in_a_buffer(case):
    schedule, restart = made(case), case.arguments.get("restart", "at_once")
    if restart in ("not_twice_in_a_buffer", "after_step"):
        pairs = schedule.step.astype(np.int64) * schedule.num_clients + schedule.client
        assert len(np.unique(pairs)) == schedule.num_trips
    if restart == "after_round":  # in each round of as many trips as there are clients, each client once
        rounds = np.arange(schedule.num_trips) // schedule.num_clients
        pairs = rounds * schedule.num_clients + schedule.client
        assert len(np.unique(pairs)) == schedule.num_trips


@settings(max_examples=40)
@given(option_cases("availability", "restart", "cancel_at_step") | open_option_cases())
def test_clients_start_only_while_they_are_there(case):
    if "availability" not in case.arguments:
        reject()
    schedule = made(case)
    law = case.arguments["availability"].prepare(schedule.num_clients, case.seed)
    clients, _, starts, _ = guarantees.all_trips(schedule)
    for client, start in zip(clients.tolist(), starts.tolist(), strict=True):
        assert law.next_available(client, start) == start
    applied = zip(schedule.client, schedule.download_time, schedule.arrival_time, strict=True)
    assert all(law.present_until(int(client), start) >= end for client, start, end in applied)


@settings(max_examples=40)
@given(option_cases("dropout", "restart", "cancel_at_step") | open_option_cases())
def test_who_has_left_starts_no_trip(case):
    dropout = case.arguments.get("dropout")
    if dropout is None:
        reject()
    schedule = made(case)
    leavers = sorted(dropout.leavers(schedule.num_clients, case.seed))
    clients, trips, starts, ends = guarantees.all_trips(schedule)
    if dropout.trips:
        if "cancel_at_step" in case.arguments:
            reject()  # test_trips_that_a_step_cancels_count_as_ones_own_trips
        final = starts == schedule.step_time[-1]  # the run ends before they leave
        assert np.all(trips[np.isin(clients, leavers) & ~final] < dropout.trips)
        return
    if dropout.time is not None:
        moment = dropout.time
    else:
        moment = (
            schedule.step_time[dropout.server_step - 1]
            if dropout.server_step < schedule.num_steps
            else np.inf
        )
    if moment < schedule.step_time[-1]:
        after = np.isin(clients, leavers) & (starts > moment)
        assert not np.any(after)
        assert not np.any(np.isin(clients, leavers) & np.isfinite(ends) & (ends > moment))
        assert not np.any(np.isin(schedule.inflight_client, leavers))


@settings(max_examples=100)
@given(
    with_options(asynchronous_cases(zeros=False).filter(lambda case: "WholeNumbers" not in str(case.delay)))
    | open_option_cases()
)
def test_every_step_ages_every_trip_under_way(case):
    """Versions against times: trips have grown stale by as many steps as the clock has seen pass over them."""
    schedule = made(case)
    steps, last = schedule.step_time, np.full(len(schedule.inflight_client), schedule.num_steps)
    _, _, starts, ends = guarantees.all_trips(schedule)
    if len(np.unique(schedule.arrival_time)) < schedule.num_trips or len(np.unique(steps)) < len(steps):
        reject()
    until = np.concatenate([schedule.step, schedule.discarded_step, last])  # the version at the trip's end
    versions = [
        schedule.download_version,
        np.searchsorted(steps, schedule.discarded_start_time, side="right"),
    ]
    aged = np.sum(until - np.concatenate([*versions, schedule.inflight_version]))
    numbers = np.arange(len(steps))[:, None]
    after = (ends > steps[:, None]) | ((ends == steps[:, None]) & (until > numbers))  # thrown away just after
    assert aged == np.sum((starts < steps[:, None]) & after)


# --------------------------------------------------------------------------------------------------
# How much is under way.
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("law", [delays.exponential(1.0), delays.log_normal(1.0, 2.0)], ids=str)
@pytest.mark.parametrize(
    ("clients", "places", "buffer_size"), [(30, 30, 10), (30, 12, 5), (9, 9, 9), (7, 3, 1)]
)
def test_k_asynchronous_conservation(law, clients, places, buffer_size):
    """K of P start again together: each step passes over the other P - K, so staleness sums to J (P - K) exactly."""
    schedule = asynchronous(
        num_clients=clients,
        concurrency=places,
        buffer_size=buffer_size,
        delay=law,
        server_steps=70,
        restart="after_step",
    )
    carried = schedule.staleness.sum() + (schedule.num_steps - schedule.inflight_version).sum()
    assert carried == 70 * (places - buffer_size)
    assert len(schedule.inflight_client) == places
    late = np.setdiff1d(np.unique(schedule.download_time), schedule.step_time)
    assert late.tolist() == [0.0]


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
