"""ACE's start: every client trains at version 0 in step 0, then all go on together."""

import guarantees
import numpy as np
import pytest

import jafl
from jafl.schedule import delays


@pytest.mark.parametrize("buffer_size", [1, 3])
@pytest.mark.parametrize(
    "delay", [delays.exponential(2.0), delays.constant(1.0)], ids=["exponential", "equal"]
)
def test_initial_round(buffer_size, delay):
    schedule = jafl.asynchronous(
        num_clients=7,
        concurrency=7,
        buffer_size=buffer_size,
        delay=delay,
        server_steps=40,
        initial_round=True,
    )
    guarantees.check_all(schedule, buffer_size=buffer_size, delay=delay, seed=0)
    first = schedule.step == 0
    assert sorted(schedule.client[first]) == list(range(7)) and not schedule.download_version[first].any()
    assert schedule.step_time[0] == schedule.arrival_time[first].max()
    again = (schedule.trip == 1) & ~first
    assert np.all(schedule.download_version[again] == 1)
    assert np.all(schedule.download_time[again] == schedule.step_time[0])


def test_the_number_of_trips_counts_the_initial_round():
    schedule = jafl.asynchronous(
        num_clients=7, concurrency=7, delay=delays.exponential(1.0), client_trips=30, initial_round=True
    )
    assert (schedule.num_trips, schedule.num_steps) == (30, 24)


def test_everyone_must_take_part():
    common = {"num_clients": 7, "delay": delays.exponential(1.0), "initial_round": True}
    with pytest.raises(jafl.SettingError, match="concurrency is 5, but must be the number of clients, 7"):
        jafl.asynchronous(concurrency=5, server_steps=3, **common)
    with pytest.raises(
        jafl.SettingError, match="client_trips is 6, but must be at least the number of clients, 7"
    ):
        jafl.asynchronous(concurrency=7, client_trips=6, **common)
