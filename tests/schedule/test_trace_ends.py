"""Traces that are not cycled, in asynchronous training: only a trip that happens is refused at the end."""

import numpy as np
import pytest

from jafl.schedule import asynchronous, delays
from jafl.schedule.delay import NoSuchTrip
from jafl.schedule.traces import duration_trace

WRAPPED = {
    "alone": lambda law: law,
    "throttled": lambda law: delays.throttled(law, 0.5, [1]),
    "with_network": lambda law: delays.with_network(law, 1.0, 2.0, 3.0),
}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("wrapped", WRAPPED.values(), ids=WRAPPED)
def test_a_trace_that_just_suffices(tmp_path, seed, wrapped):
    """A trace of exactly the trips that a schedule starts gives that schedule; one trip less is refused."""
    law, path = delays.exponential(1.0), tmp_path / "trace.npz"
    settings = {"num_clients": 7, "concurrency": 7, "buffer_size": 3, "server_steps": 100, "seed": seed}
    schedule = asynchronous(delay=wrapped(law), **settings)
    started = np.bincount(np.concatenate([schedule.client, schedule.inflight_client]), minlength=7)
    client = np.repeat(np.arange(7), started)
    durations = law.durations(seed, client, np.concatenate([np.arange(count) for count in started]))
    np.savez(path, client=client, duration=durations)
    again = asynchronous(delay=wrapped(duration_trace(path, cycled=False)), **settings)
    np.testing.assert_array_equal(again.client, schedule.client)
    np.testing.assert_array_equal(again.arrival_time, schedule.arrival_time)
    np.savez(path, client=client[1:], duration=np.delete(durations, started[0] - 1))
    left = started[0] - 1
    with pytest.raises(NoSuchTrip, match=f"has {left} trips of client 0, but trip {left} is asked for"):
        asynchronous(delay=wrapped(duration_trace(path, cycled=False)), **settings)
