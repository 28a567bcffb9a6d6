"""What schedules of every protocol and option promise, and how much is under way.

What an option promises of the trips is proved on the reference simulator (tests/reference/test_reference.py), whose
schedules these are, event by event (test_against_reference.py).
"""

import guarantees
import numpy as np
import pytest
from hypothesis import given, settings
from replays import made
from schedule_cases import (
    CLIENTS,
    SERVER,
    asynchronous_cases,
    drawn_cases,
    due_cases,
    harmonic_cases,
    limited,
    open_cases,
    open_cases_with_replacement,
    open_option_cases,
    option_cases,
    round_cases,
    synchronous_cases,
    timed_cases,
)
from tiers import in_tiers

from jafl.schedule import delays, open_arrivals

PROTOCOLS = {
    "options": option_cases(),
    "open arrivals": open_cases() | open_option_cases(),
    "open arrivals with replacement": open_cases_with_replacement(),
    "drawn staleness": drawn_cases(),
    "all that are due": due_cases(),
    "harmonic mean": harmonic_cases(),
    "rounds of single steps": round_cases(),
    "by the clock": timed_cases(),
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
    # They are rounded up.
    "all that are due": {"durations"},
}


@pytest.mark.full
@pytest.mark.few_in_full(5)
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
