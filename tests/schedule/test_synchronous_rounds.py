"""Synchronous rounds in a world, against the reference: presence, failures, leaving, deadlines, participation."""

import dataclasses
import re

import guarantees
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from replays import assert_equal, clients_of_rounds, replayed_rounds
from schedule_cases import ALWAYS_ZERO, POSITIVE, SOMETIMES_ZERO, Case, by_client, dropouts, laws, presences

from jafl.base.errors import SettingError
from jafl.schedule import availability, delays, synchronous
from jafl.schedule.draws import PARTICIPATION, keyed_uniform

OPTIONS = ("availability", "failure_rate", "dropout", "deadline", "min_reports", "participation", "limits")


@st.composite
def cases(draw, *options):
    """Up to 12 clients; with these options, or with any of them."""
    clients = draw(st.integers(1, 12))
    options = options or draw(st.sets(st.sampled_from(OPTIONS), min_size=1))
    arguments = {
        "num_clients": clients,
        "delay": draw(laws(clients, POSITIVE | SOMETIMES_ZERO | ALWAYS_ZERO)),
        "server_steps": draw(st.integers(1, 20)),
        "seed": draw(st.integers(-3, 1000)),
    }
    if "participation" in options:
        chance = st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0])
        arguments["participation"] = draw(chance | st.lists(chance, min_size=clients, max_size=clients))
        most = clients
    else:
        arguments["cohort_size"] = most = draw(st.integers(1, clients))
        arguments["over_selection"] = draw(st.sampled_from([0.0, 0.4, 1.0])) * (clients / most - 1)
    if "min_reports" in options:
        arguments["min_reports"] = draw(st.integers(1, most))
    if "deadline" in options:
        arguments["deadline"] = draw(st.sampled_from([0.1, 0.5, 1.0, 2.0, 10.0]))
    if "failure_rate" in options:
        arguments["failure_rate"] = draw(st.sampled_from([0.1, 0.5, 0.9]))
    if "dropout" in options:
        arguments["dropout"] = draw(dropouts(clients))
    if "availability" in options:
        arguments["availability"] = draw(presences(clients))
    if "limits" in options:
        arguments["most_trips"] = draw(st.none() | st.integers(1, 5))
        arguments["smallest_gap"] = draw(st.integers(0, 4))
    return Case(synchronous, arguments)


def check_participation(case, rounds):
    """Those take part whose draw says so, if nothing else keeps them from it."""
    chances = np.broadcast_to(case.arguments["participation"], case.arguments["num_clients"])
    everybody = np.arange(len(chances))
    for number, clients in enumerate(rounds):
        draws = keyed_uniform(case.seed, PARTICIPATION, everybody, np.full(len(chances), number))
        wanted = np.flatnonzero(draws < chances).tolist()
        assert set(clients) <= set(wanted)
        if not {"availability", "dropout", "most_trips"} & set(case.arguments):
            assert sorted(clients) == wanted


def compare(case):
    """Equal to the last bit; what starves here starves there, in the same round."""
    try:
        schedule = case.schedule()
    except SettingError as error:
        check_refusal(case, error)
        return None
    rounds = clients_of_rounds(schedule)
    assert_equal(schedule, replayed_rounds(case, schedule.num_steps, rounds))
    if "participation" in case.arguments:
        check_participation(case, rounds)
    check_guarantees(case, schedule)
    return schedule


def check_refusal(case, error):
    """It is one of those that are expected; where nobody can begin the first round the reference starves, too."""
    starved = re.match(r"The schedule starves in server step (\d+)", str(error))
    if starved is None:
        assert re.match(
            r"(deadline|min_reports|participation) is ", str(error)
        ) or "to take part, but only" in str(error)
        return
    if starved[1] == "0" and "availability" not in case.arguments:
        with pytest.raises(ValueError, match="starved at time"):
            replayed_rounds(case, 1, [[]])


def check_guarantees(case, schedule):
    arguments = case.arguments
    guarantees.check_rounds(
        schedule,
        delay=case.delay,
        seed=case.seed,
        cohort_size=arguments.get("cohort_size"),
        min_reports=arguments.get("min_reports", 1),
        deadline=arguments.get("deadline", np.inf),
        most_trips=arguments.get("most_trips"),
        smallest_gap=arguments.get("smallest_gap", 0),
    )


@pytest.mark.parametrize("option", OPTIONS)
def test_each_option_alone(option):
    @settings(max_examples=12)
    @given(cases(option))
    def check(case):
        compare(case)

    check()


@pytest.mark.full
@settings(max_examples=25)
@given(cases())
def test_options_together(case):
    compare(case)


@pytest.mark.gate
@settings(max_examples=2000)
@given(cases())
def test_two_thousand_settings(case):
    compare(case)


@settings(max_examples=20)
@given(cases("limits"), st.sampled_from([0.0, 0.3, 1.0]))
def test_a_world_in_which_everybody_reports_has_the_same_rounds(case, over_selection):
    """A deadline that nothing reaches goes through the loop, and changes no draw."""
    arguments = {k: v for k, v in case.arguments.items() if k not in ("most_trips", "smallest_gap")}
    plain, in_a_loop = synchronous(**arguments), synchronous(**arguments, deadline=1e9)
    for field in dataclasses.fields(plain):
        np.testing.assert_array_equal(
            getattr(plain, field.name), getattr(in_a_loop, field.name), err_msg=field.name
        )


SPEEDS = by_client(1.0, 2.0, 3.0, 4.0)


def test_a_deadline_by_hand():
    """Clients of speeds 1 to 4: by the deadline of 3 three have reported, that very instant included."""
    schedule = synchronous(num_clients=4, cohort_size=4, delay=SPEEDS, server_steps=2, deadline=3.0)
    assert schedule.step_time.tolist() == [3, 6] and schedule.client.tolist() == [0, 1, 2] * 2
    assert schedule.discarded_client.tolist() == [3, 3] and schedule.discarded_end_time.tolist() == [3, 6]
    assert not schedule.empty_steps.size
    void = synchronous(
        num_clients=4,
        cohort_size=4,
        delay=by_client(1, 2, 3, 3.5),
        server_steps=2,
        deadline=3.5,
        min_reports=4,
    )
    assert void.step_time.tolist() == [3.5, 7] and not void.void_steps.size


def test_a_void_round_by_hand():
    """Client 2 is away from 5 on, so rounds with three reports are possible until then only."""
    presence = availability.windows([0, 1, 2, 3], [0, 0, 0], [100, 100, 5], loses_trips=True)
    world = {"num_clients": 3, "cohort_size": 3, "delay": delays.constant(4.0), "availability": presence}
    schedule = synchronous(**world, server_steps=2, min_reports=2)
    # The second round: client 2 goes away at 5, the other two report at 8.
    assert schedule.client.tolist() == [0, 1, 2, 0, 1] and schedule.step_time.tolist() == [4, 8]
    assert schedule.discarded_end_time.tolist() == [5]
    schedule = synchronous(**world, server_steps=2, min_reports=3)
    assert schedule.void_steps.tolist() == [1] and schedule.step_time.tolist() == [4, 8]
    assert schedule.discarded_client.tolist() == [2, 0, 1] and schedule.discarded_end_time.tolist() == [
        5,
        8,
        8,
    ]
    assert "1 void step" in repr(schedule) and "1, 1 of them void" in schedule._repr_html_()
    with pytest.raises(
        SettingError, match="starves in server step 2 of 3, at time 8: a round begins with at least 3"
    ):
        synchronous(**world, server_steps=3, min_reports=3)


def test_min_reports_says_how_few_clients_begin_a_round_where_limits_are_all_that_keeps_others_from_it():
    arguments = {"num_clients": 5, "cohort_size": 3, "delay": delays.constant(1.0), "most_trips": 1}
    schedule = synchronous(**arguments, server_steps=2, min_reports=2)
    assert np.diff(schedule.step_offsets).tolist() == [3, 2] and len(set(schedule.client)) == 5
    with pytest.raises(SettingError, match="a round begins with at least 3 clients"):
        synchronous(**arguments, server_steps=2, min_reports=3)
    with pytest.raises(SettingError, match="3 clients are to take part, but only 2 of 5 may"):
        synchronous(**arguments, server_steps=2)


def test_a_lost_report_is_waited_for_until_the_deadline():
    """Client 2 goes away at 2: the server cannot know, so the round lasts until its deadline, or its last trip."""
    presence = availability.windows([0, 1, 2, 3], [0, 0, 0], [100, 100, 2], loses_trips=True)
    world = {"num_clients": 3, "cohort_size": 3, "delay": by_client(1, 3, 9), "availability": presence}
    for deadline, end in ((None, 3.0), (4.0, 4.0), (2.5, 2.5)):
        schedule = synchronous(**world, server_steps=1, deadline=deadline)
        assert schedule.step_time.tolist() == [end]
        assert 2 in schedule.discarded_client and schedule.discarded_end_time.max() == (
            2.5 if deadline == 2.5 else 2
        )


def test_rounds_wait_for_clients_that_are_away():
    presence = availability.diurnal(
        day_length=10.0, share=0.2, spread=0.0
    )  # there from 0 to 2, from 10 to 12, ...
    schedule = synchronous(
        num_clients=4, cohort_size=2, delay=delays.constant(1.5), server_steps=3, availability=presence
    )
    assert schedule.download_time.tolist() == [0, 0, 1.5, 1.5, 10, 10]
    assert schedule.step_time.tolist() == [1.5, 3, 11.5]


def test_each_client_takes_part_with_its_own_probability():
    chances = np.linspace(0, 1, 11)
    schedule = synchronous(
        num_clients=11, participation=chances, delay=delays.constant(1.0), server_steps=4000
    )
    rates = np.bincount(schedule.client, minlength=11) / 4000
    assert np.all(np.abs(rates - chances) <= 4.5 * np.sqrt(chances * (1 - chances) / 4000))
    together = np.array(
        [
            np.isin([3, 7], schedule.client[a:b])
            for a, b in zip(schedule.step_offsets, schedule.step_offsets[1:], strict=False)
        ]
    )
    both = together.all(axis=1).mean()
    assert abs(both - chances[3] * chances[7]) <= 4.5 * np.sqrt(0.21 * 0.79 / 4000)  # independent
    alone = synchronous(
        num_clients=11, participation=0.02, delay=delays.constant(1.0), server_steps=50, seed=1
    )
    assert alone.empty_steps.size > 20 and not alone.void_steps.size


def test_a_budget_of_trips_is_never_exceeded():
    world = {"num_clients": 30, "cohort_size": 5, "over_selection": 0.4, "delay": delays.exponential(1.0)}
    schedule = synchronous(**world, client_trips=100, failure_rate=0.3, deadline=2.0)
    started = schedule.num_trips + len(schedule.discarded_client)
    assert 100 - 7 < started <= 100
    more = synchronous(**world, server_steps=schedule.num_steps, failure_rate=0.3, deadline=2.0)
    np.testing.assert_array_equal(schedule.arrival_time, more.arrival_time)
