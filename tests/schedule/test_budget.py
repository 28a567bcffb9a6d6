"""A budget of client trips buys as many whole server steps as it can pay for, trips thrown away included."""

import guarantees
import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from replays import Endless, recorded
from schedule_cases import (
    Case,
    drawn_cases,
    due_cases,
    open_cases,
    open_cases_with_replacement,
    open_option_cases,
    option_cases,
    synchronous_cases,
)

from jafl.base.errors import SettingError
from jafl.schedule import (
    Dropout,
    asynchronous,
    availability,
    delays,
    drawn_staleness,
    open_arrivals,
    synchronous,
)


def made(case, **changes):
    """The schedule of a case with changes, or the SettingError; another case where there is no end to it."""
    try:
        return recorded(Case(case.protocol, {**case.arguments, **changes}))[0]
    except Endless:
        reject()


CASES = {
    "options": option_cases(),
    "open arrivals": open_cases() | open_option_cases() | open_cases_with_replacement(),
    "rounds and drawn staleness": synchronous_cases() | drawn_cases() | due_cases(),
}


@pytest.mark.full
@pytest.mark.parametrize("kind", CASES)
def test_a_budget_is_kept_and_used(kind):
    @settings(max_examples=80)
    @given(CASES[kind], st.integers(15, 90))
    def check(case, client_trips):
        bought = made(case, server_steps=None, client_trips=client_trips)
        if isinstance(bought, SettingError):
            reject()
        guarantees.check_shapes(bought)
        cost = bought.trips_started_by(bought.num_steps)
        assert cost == len(bought.client) + len(bought.discarded_client) <= client_trips
        more = made(case, server_steps=bought.num_steps + 1)
        if not isinstance(more, SettingError):  # or nobody is left to make one more
            assert more.trips_started_by(more.num_steps) > client_trips
        same = made(case, server_steps=bought.num_steps)
        for name in ("client", "trip", "step", "arrival_time", "discarded_end_time", "inflight_start_time"):
            np.testing.assert_array_equal(getattr(bought, name), getattr(same, name), err_msg=name)

    check()


FOUR_EQUAL = {"num_clients": 4, "concurrency": 4, "delay": delays.constant(1.0)}


def test_trips_that_wait_at_the_end_of_the_budget_are_not_in_the_schedule():
    """Five arrive at 1 and five at 2, three make a step: of ten trips nine are applied, and one waits."""
    arguments = {"num_clients": 5, "concurrency": 5, "buffer_size": 3, "delay": delays.constant(1.0)}
    schedule = asynchronous(**arguments, client_trips=10, failure_rate=1e-9)  # so rare that none fails
    guarantees.check_shapes(schedule)
    plain = asynchronous(**arguments, client_trips=10)
    assert schedule.client.tolist() == plain.client.tolist()
    assert (schedule.num_trips, schedule.num_steps) == (9, 3)


def test_trips_thrown_away_after_the_last_step_of_the_budget_are_not_in_the_schedule():
    """Of four that arrive at each instant the first is a step, for which the others come too late: 1 + 3 + 1."""
    schedule = asynchronous(**FOUR_EQUAL, client_trips=5, staleness_limit=0)
    guarantees.check_shapes(schedule)
    assert schedule.trips_started_by(schedule.num_steps) == 5
    assert schedule.num_trips + len(schedule.discarded_client) == 5


@pytest.mark.parametrize(
    ("clients", "changes", "trips", "budgets"),
    [
        (4, {"most_trips": 2, "buffer_size": 2}, 8, {7: 3, 8: 4}),
        # One trip at a time: the last two wait for a third one.
        (4, {"concurrency": 1, "most_trips": 2, "buffer_size": 3}, 8, {6: 2, 7: 2, 8: 2}),
        (3, {"dropout": Dropout(1.0, time=1.5)}, 6, {2: 2, 6: 3}),  # of the six trips three are thrown away
    ],
    ids=str,
)
def test_a_budget_of_all_trips_that_clients_can_make_is_used_and_a_larger_one_refused(
    clients, changes, trips, budgets
):
    arguments = {"num_clients": clients, "concurrency": clients, "delay": delays.constant(1.0), **changes}
    arguments |= {"failure_rate": 1e-9}  # so rare that none fails; without it each step costs the same
    for client_trips, steps in budgets.items():
        assert asynchronous(**arguments, client_trips=client_trips).num_steps == steps
    with pytest.raises(SettingError, match="The schedule starves"):
        asynchronous(**arguments, client_trips=trips + 1)


@pytest.mark.parametrize(
    "world", [{"most_trips": 1, "failure_rate": 1e-9}, {"dropout": Dropout(1.0, trips=1)}], ids=str
)
@pytest.mark.parametrize(
    ("protocol", "options", "steps"),
    [
        (asynchronous, {"concurrency": 4, "step_when": "harmonic_mean", "buffer_size": 4}, 1),
        # The first step waits for a trip of each client, who then make no more.
        (asynchronous, {"concurrency": 4, "step_when": "each_client_once_a_round"}, 1),
        (asynchronous, {"concurrency": 2, "step_every": 1.0}, 2),
        (open_arrivals, {"start_rate": 1.0}, 4),
    ],
    # Not the text of the function: it has an address in it, so that the workers of a test run would have other names.
    ids=["harmonic mean", "each client once", "by the clock", "open arrivals"],
)
def test_a_budget_of_all_trips_is_used_whatever_makes_the_steps(protocol, options, steps, world):
    """Each of four clients makes one trip."""
    arguments = {"num_clients": 4, "delay": delays.constant(1.0), **options, **world}
    schedule = protocol(**arguments, client_trips=4)
    assert (schedule.num_steps, schedule.num_trips) == (steps, 4)
    with pytest.raises(SettingError, match="The schedule starves"):
        protocol(**arguments, client_trips=5)


def test_a_budget_of_trips_that_lead_to_no_step_any_more_is_used():
    """Clients are there for two of four units of time, in which their first trips end, and no others."""
    arguments = {"num_clients": 4, "concurrency": 4, "buffer_size": 2}
    delay = delays.from_function(lambda client, trip: 3.0 if trip else 1.0)
    presence = availability.windows(range(5), [0.0] * 4, [2.0] * 4, period=4.0, loses_trips=True)
    schedule = asynchronous(**arguments, delay=delay, availability=presence, client_trips=10)
    assert (schedule.num_steps, schedule.num_trips) == (2, 4)
    with pytest.raises(SettingError, match="no step follows"):
        asynchronous(**arguments, delay=delay, availability=presence, server_steps=3)


@pytest.mark.parametrize(
    "changes", [{"most_trips": 1, "deadline": 9.0}, {"dropout": Dropout(1.0, trips=1)}], ids=str
)
def test_a_budget_of_all_trips_buys_rounds_and_a_larger_one_is_refused(changes):
    """Of five clients three train in the first round, and the two that are left in the second one."""
    arguments = {"num_clients": 5, "cohort_size": 3, "delay": delays.constant(1.0), **changes}
    for client_trips, steps in {3: 1, 4: 1, 5: 2}.items():
        assert synchronous(**arguments, client_trips=client_trips).num_steps == steps
    with pytest.raises(SettingError, match="The schedule starves"):
        synchronous(**arguments, client_trips=6)


@pytest.mark.parametrize(
    ("clients", "participation", "client_trips"),
    [(30, 0.1, 300), (23, 0.1, 230), (10, 0.01, 10), (10, [0.1] * 10, 100), (4, 1.0, 403)],
    ids=str,
)
def test_a_budget_buys_rounds_by_the_mean_number_of_clients_that_take_part(
    clients, participation, client_trips
):
    """A hundred of them each, be the mean whole, a fraction, or below one."""
    schedule = synchronous(
        num_clients=clients,
        participation=participation,
        delay=delays.constant(1.0),
        client_trips=client_trips,
    )
    assert schedule.num_steps == 100


def test_a_budget_of_rounds_in_which_hardly_anybody_takes_part_is_refused():
    with pytest.raises(SettingError, match="sum of participation is 1e-12, but must be such that 10 trips"):
        synchronous(num_clients=1, participation=1e-12, delay=delays.constant(1.0), client_trips=10)


def test_a_flush_is_bought_if_its_trip_is():
    """Of four trips at 1 three make a step, and the fourth a short one at 1.5: four trips buy both."""
    arguments = {**FOUR_EQUAL, "buffer_size": 3, "flush_after": 0.5}
    assert asynchronous(**arguments, server_steps=2).trips_started_by(2) == 4
    schedule = asynchronous(**arguments, client_trips=4)
    guarantees.check_shapes(schedule)
    assert schedule.step_time.tolist() == [1.0, 1.5]


def test_what_is_thrown_away_is_paid_for():
    arguments = {"num_clients": 20, "concurrency": 10, "buffer_size": 5, "delay": delays.exponential(1.0)}
    whole = asynchronous(**arguments, client_trips=400)
    assert (whole.num_steps, whole.trips_started_by(whole.num_steps)) == (80, 400)
    for options in (
        {"failure_rate": 0.3},
        {"dropout": Dropout(0.5, server_step=2)},
        {"cancel_at_step": True},
        {"cancel_at_step": True, "restart": "after_step"},
        {"staleness_limit": 1},
    ):
        schedule = asynchronous(**arguments, **options, client_trips=400)
        thrown_away = len(schedule.discarded_client)
        assert thrown_away > 0
        assert 380 < schedule.num_trips + thrown_away <= 400
        assert schedule.num_steps == schedule.num_trips // 5 < 80
    k_sync = asynchronous(
        **arguments, cancel_at_step=True, restart="after_step", client_trips=400
    )  # ten a step, five of them used
    assert (k_sync.num_steps, len(k_sync.discarded_client)) == (40, 200)


@pytest.mark.parametrize("client_trips", [19, 20, 21])
def test_a_budget_below_the_first_step_is_refused(client_trips):
    """K-sync of 20 places throws 15 trips away at each step of 5."""

    def schedule():
        return asynchronous(
            num_clients=20,
            concurrency=20,
            buffer_size=5,
            delay=delays.exponential(1.0),
            restart="after_step",
            cancel_at_step=True,
            client_trips=client_trips,
        )

    if client_trips < 20:
        with pytest.raises(
            SettingError, match="client_trips is 19, but must be at least 20, for the first step"
        ):
            schedule()
    else:
        assert schedule().num_steps == 1


def test_a_budget_counts_the_initial_round():
    law = delays.constant(1.0)
    for trips, steps in ((9, 1), (11, 1), (12, 2), (15, 3)):
        drawn = drawn_staleness(
            num_clients=9, buffer_size=3, delay=law, client_trips=trips, initial_round=True
        )
        clock = asynchronous(
            num_clients=9, concurrency=9, buffer_size=3, delay=law, client_trips=trips, initial_round=True
        )
        assert drawn.num_steps == clock.num_steps == steps
    failing = asynchronous(
        num_clients=9,
        concurrency=9,
        buffer_size=3,
        delay=delays.exponential(1.0),
        client_trips=60,
        initial_round=True,
        failure_rate=0.3,
    )
    cost = failing.trips_started_by(failing.num_steps)
    assert np.diff(failing.step_offsets).tolist() == [9] + [3] * (failing.num_steps - 1)
    assert 50 < cost <= 60


def test_open_arrivals_buy_what_arrives_not_what_starts():
    schedule = open_arrivals(
        num_clients=50, start_rate=30.0, buffer_size=4, delay=delays.constant(1.0), client_trips=103
    )
    assert (schedule.num_steps, schedule.num_trips) == (25, 100)
    assert len(schedule.inflight_client) > 10
