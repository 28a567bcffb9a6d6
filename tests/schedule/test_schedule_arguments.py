"""What users hand to the functions for schedules: files in place of laws, laws of their own, and natural mistakes."""

import dataclasses
import math

import numpy as np
import pytest
from refusals import refuses

import jafl
from jafl import availability, delays

DELAY = delays.exponential(1.0)


def schedule(**changes):
    settings = {"num_clients": 6, "concurrency": 4, "buffer_size": 2, "delay": DELAY, "server_steps": 8}
    return jafl.asynchronous(**{**settings, **changes})


def assert_same(one, other):
    for field in dataclasses.fields(one):
        np.testing.assert_array_equal(getattr(one, field.name), getattr(other, field.name))


@pytest.fixture
def windows(tmp_path):
    rows = [f"{client},{start},{start + 1.5}" for client in range(6) for start in range(client % 2, 400, 2)]
    file = tmp_path / "windows.csv"
    file.write_text("\n".join(["client,start,end", *rows]))
    return file


@pytest.fixture
def durations(tmp_path):
    rows = [f"{client},{1 + client / 7}" for client in range(6)]
    file = tmp_path / "durations.csv"
    file.write_text("\n".join(["client,duration", *rows]))
    return file


def test_a_file_of_windows_is_an_availability(windows):
    law = jafl.read_availability(windows)
    expected = schedule(availability=law)
    for given in (str(windows), windows):
        assert_same(schedule(availability=given), expected)
    assert np.any(expected.download_time != schedule().download_time)
    open_world = {"num_clients": 6, "start_rate": 2.0, "delay": DELAY, "server_steps": 8}
    from_file = jafl.open_arrivals(**open_world, availability=str(windows))
    assert_same(from_file, jafl.open_arrivals(**open_world, availability=law))


def test_a_file_of_durations_is_a_delay(durations):
    law = jafl.duration_trace(durations)
    assert_same(schedule(delay=str(durations)), schedule(delay=law))
    assert_same(schedule(delay=durations), schedule(delay=law))
    rounds = {"num_clients": 6, "cohort_size": 3, "server_steps": 4}
    assert_same(jafl.synchronous(**rounds, delay=durations), jafl.synchronous(**rounds, delay=law))


def law_returning(result):
    class Own(jafl.Delay):
        def quantile(self, uniform, client):
            return result(uniform)

    return Own()


@pytest.mark.parametrize(
    "result, said",
    [
        (lambda uniform: 1.0, "shape of the durations of the delay Own is (), but must be ("),
        (lambda uniform: uniform[:3], "shape of the durations of the delay Own is (3,)"),
        (lambda uniform: np.ones((len(uniform), 1)), "shape of the durations of the delay Own is ("),
        (lambda uniform: ["1"] * len(uniform), "durations of the delay Own.dtype is '<U1'"),
        (lambda uniform: None, "durations of the delay Own.dtype is 'object'"),
    ],
)
def test_a_law_must_return_one_number_for_each_trip(result, said):
    own = law_returning(result)
    nested = (delays.slow_fraction(DELAY, own, 1.0), delays.groups([(5, DELAY), (1, own)]))
    for law in (own, *nested, delays.once_per_client(own)):
        with refuses(said, "Return an array"):
            schedule(delay=law)
    with refuses(said):
        jafl.synchronous(num_clients=6, cohort_size=3, delay=own, server_steps=2)


def test_integers_are_durations_too():
    ones = law_returning(lambda uniform: np.ones(len(uniform), int))
    assert schedule(delay=ones).step_time.tolist() == schedule(delay=delays.constant(1.0)).step_time.tolist()


class Present(jafl.Availability):
    """A law of presence of a user's own."""

    loses_trips = True

    def __init__(self, next_available=lambda time: time, window_end=lambda time: math.inf, ready=True):
        self.next, self.end, self.ready = next_available, window_end, ready

    def prepare(self, num_clients, seed):
        return self if self.ready else None

    def next_available(self, client, time):
        return self.next(time)

    def window_end(self, client, time):
        return self.end(time)


def test_a_law_of_presence_of_ones_own_is_followed():
    def late(time):
        return max(time, 3.0)

    function = availability.from_functions(lambda client, time: late(time), lambda client, time: math.inf)
    assert_same(schedule(availability=Present(late)), schedule(availability=function))


@pytest.mark.parametrize(
    "law, said",
    [
        (Present(lambda time: time - 1), "Present.next_available for client "),
        (Present(lambda time: time - 1 if time > 2 else time), "Present.next_available for client "),
        (Present(lambda time: math.nan), "at time 0 is nan, but must be a number of at least 0"),
        (Present(lambda time: None), "at time 0 is None, but must be a number of at least 0"),
        (Present(window_end=lambda time: time - 1), "Present.window_end for client "),
        (Present(ready=False), "the result of Present.prepare is None"),
        (availability.from_functions(lambda client, time: time - 1), "next_time of the availability"),
        (
            availability.from_functions(lambda client, time: None),
            "is None, but must be a number, or infinity",
        ),
    ],
)
def test_a_law_of_presence_that_goes_back_in_time_is_refused(law, said):
    with refuses(said):
        schedule(availability=law)


@pytest.mark.parametrize("kind, missing", [(jafl.Delay, "quantile"), (jafl.Availability, "prepare")])
def test_a_law_without_its_methods_says_which_it_needs(kind, missing):
    class Own(kind):
        pass

    name = "delay" if kind is jafl.Delay else "availability"
    with pytest.raises(NotImplementedError, match=f"Own has no {missing}"):
        schedule(**{name: Own()})


def test_the_edges_of_what_is_allowed():
    """What is refused beyond them stands in tests/adversary/rows_schedules.py."""
    buffered = {"num_clients": 10, "concurrency": 4, "buffer_size": 3, "delay": DELAY}
    everyone = jafl.asynchronous(**(buffered | {"concurrency": 10, "buffer_size": 25, "server_steps": 5}))
    assert (everyone.num_clients, everyone.concurrency, everyone.num_trips) == (10, 10, 125)
    exactly = jafl.asynchronous(**buffered, client_trips=3)
    assert (exactly.num_clients, exactly.concurrency, exactly.num_steps) == (10, 4, 1)
    cohorts = {"num_clients": 10, "cohort_size": 4, "delay": DELAY}
    rounds = jafl.synchronous(**cohorts, over_selection=1.5, server_steps=5)
    assert (rounds.num_clients, rounds.concurrency, rounds.num_trips) == (10, 10, 20)
    exactly = jafl.synchronous(**cohorts, over_selection=0.5, client_trips=6)
    assert (exactly.concurrency, exactly.num_steps) == (6, 1)


@pytest.mark.parametrize(
    "cohort_size, over_selection, started",
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
    schedule = jafl.synchronous(
        num_clients=1500, cohort_size=cohort_size, over_selection=over_selection, delay=DELAY, server_steps=2
    )
    assert schedule.concurrency == started
    assert len(schedule.client) == 2 * cohort_size
    assert len(schedule.discarded_client) == 2 * (started - cohort_size)
