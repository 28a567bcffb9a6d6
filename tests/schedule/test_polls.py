"""Polls: the same trips as in the reference's loop, local steps by hand, and factors that make FAVAS unbiased."""

import guarantees
import numpy as np
import pytest
import reference as ref
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refuses
from replays import NOTHING, assert_equal
from schedule_cases import POSITIVE, by_client

import jafl
from jafl import delays, rules

NETWORK = delays.with_network(delays.per_step(delays.exponential(0.3)), 100.0, 150.0, upload_bytes=10.0)


@settings(max_examples=80)
@given(st.data())
def test_the_same_trips_as_in_the_references_loop(data):
    clients = data.draw(st.integers(1, 8))
    law = data.draw(POSITIVE.map(delays.per_step) | st.just(NETWORK))
    seed, interval = data.draw(st.integers(0, 99)), data.draw(st.sampled_from([0.7, 1.0, 6.0]))
    download = data.draw(st.sampled_from(["after_step", "before_step"]))
    polled, most = data.draw(st.integers(1, clients)), data.draw(st.integers(1, 9))
    steps, made = data.draw(st.integers(6, 12)), {}

    def seconds(client, trip):
        parts = law.parts(seed, np.array([client]), np.array([trip]))
        return tuple(float(np.broadcast_to(part, 1)[0]) for part in parts[:2])

    def replay(select):
        return ref.simulate_polled(
            **NOTHING,
            num_clients=clients,
            polled=polled,
            interval=interval,
            most_steps=most,
            seconds=seconds,
            select=select,
            steps_made=made,
            before_step=download == "before_step",
            stop_after_steps=steps,
        )

    arguments = {
        "num_clients": clients,
        "cohort_size": polled,
        "interval": interval,
        "delay": law,
        "seed": seed,
    }
    try:
        schedule = jafl.polled(most_local_steps=most, server_steps=steps, download=download, **arguments)
    except jafl.SettingError as error:
        assert "Nobody makes a local step before its poll" in str(error)
        return
    expected = replay(lambda poll: schedule.client[schedule.step == poll].tolist())
    assert_equal(schedule, expected)
    guarantees.check_shapes(schedule)
    guarantees.check_order(schedule)
    guarantees.check_concurrency(schedule)
    guarantees.check_one_trip_at_a_time(schedule)
    guarantees.check_trip_numbers(schedule)


def test_local_steps_by_hand():
    """Polls at 2, 4, 6: clients of 0.5, 2 and 3 seconds a step; a step that ends with the poll is made."""
    common = {"num_clients": 3, "interval": 2.0, "most_local_steps": 3, "server_steps": 3}
    law = by_client(0.5, 2.0, 3.0)
    schedule = jafl.polled(cohort_size=3, delay=delays.per_step(law), **common)
    assert schedule.local_steps.reshape(3, 3).tolist() == [[3, 1, 0]] * 3
    # A download of 1 second: 1 is left.
    network = delays.with_network(delays.per_step(law), 10.0, 10.0, upload_bytes=0.0)
    schedule = jafl.polled(cohort_size=3, delay=network, **common)
    assert schedule.local_steps.reshape(3, 3).tolist() == [[2, 0, 0]] * 3
    # Whole trips: 3 local steps take 2.1, 6 and 9 seconds.
    schedule = jafl.polled(cohort_size=3, delay=by_client(2.1, 6.0, 9.0), **common)
    assert schedule.local_steps.reshape(3, 3).tolist() == [[2, 1, 0]] * 3


def test_a_quotient_that_is_whole_but_for_rounding_is_whole():
    """0.3 / 0.1 is below 3 in binary numbers."""
    schedule = jafl.polled(
        num_clients=1,
        cohort_size=1,
        interval=0.3,
        delay=delays.per_step(delays.constant(0.1)),
        server_steps=20,
    )
    assert set(schedule.local_steps.tolist()) == {3}


@pytest.mark.parametrize("form", ["expected", "made"])
def test_every_client_counts_by_its_polls_whatever_its_speed(form):
    """With gradients that do not change, the sum of D / alpha over a client's trips is that of one step each."""
    law = delays.per_step(delays.groups([(5, delays.exponential(0.2)), (5, delays.exponential(3.0))]))
    schedule = jafl.polled(
        num_clients=10, cohort_size=3, interval=0.5, most_local_steps=6, delay=law, server_steps=300, seed=2
    )
    assert {0, 1, 2, 6} <= set(schedule.local_steps.tolist())
    factor = rules.favas(form).build().columns(schedule)["factor"]
    total = np.bincount(schedule.client, factor * schedule.local_steps, 10)
    np.testing.assert_allclose(total, np.bincount(schedule.client), rtol=1e-12)


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"interval": 0.0}, "interval is 0.0, but must be a finite number above 0"),
        ({"interval": np.inf}, "interval is inf"),
        ({"interval": 0.5}, "Nobody makes a local step before its poll: raise interval"),
        ({"cohort_size": 7}, "cohort_size is 7, but must be between 1 and the number of clients, 6"),
        ({"most_local_steps": 0}, "most_local_steps is 0, but must be a whole number of at least 1"),
        ({"delay": delays.constant(0.0)}, "the delay of client 0, trip 0 is 0.0, but must be above 0"),
        ({"download": "before"}, "download is 'before', but must be one of after_step, before_step"),
        ({"server_steps": None}, "Give exactly one of them"),
    ],
)
def test_what_makes_no_polls_is_refused(changes, parts):
    arguments = {"num_clients": 6, "cohort_size": 6, "interval": 2.0, "server_steps": 3}
    arguments["delay"] = delays.per_step(delays.constant(1.0))
    with refuses(parts):
        jafl.polled(**arguments | changes)
