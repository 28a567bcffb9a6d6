"""Delays drawn in server steps: how stale an update is, is drawn; no clock runs (one reading of ACE's beta)."""

import numpy as np

from jafl.errors import require, whole_number
from jafl.records import EventSchedule
from jafl.schedule.checks import check_clients, check_delay_and_seed, steps_within
from jafl.schedule.columns import discarded_trips, inflight_trips
from jafl.schedule.counting import earlier_occurrences
from jafl.schedule.delays import Delay
from jafl.schedule.draws import SELECTION, generator
from jafl.schedule.durations import draw_durations


def drawn_staleness(
    *,
    num_clients: int,
    buffer_size: int = 1,
    delay: Delay,
    server_steps: int | None = None,
    client_trips: int | None = None,
    initial_round: bool = False,
    seed: int = 0,
) -> EventSchedule:
    """Computes a schedule in which each update's staleness is drawn from ``delay``, in server steps, rounded down.

    Each server step applies trips of ``buffer_size`` different clients, drawn uniformly. A trip's staleness is its
    draw, but no more than the steps since the client's last update was applied: a client is never in two trips at
    once. Under a clock the mean staleness is (concurrency - 1) / K whatever the delays; here the law decides, and all
    clients take part equally often. Simulated time counts server steps: step t happens at t + 1, version v is
    downloaded at v. Nothing is under way at the end.

    Args:
      num_clients, buffer_size: N and K, with 1 <= K <= N.
      delay: the law of staleness, a fresh draw per (client, trip).
      server_steps: stop after so many server steps, or
      client_trips: after as many whole steps as so many trips allow. Exactly one of the two.
      initial_round: step 0 applies a trip of every client from version 0 (ACE's start).
      seed: keys staleness and the choice of clients.

    Raises:
      SettingError: for a number outside its range, or a draw that is negative or not finite.
    """
    whole_number("buffer_size", buffer_size, 1)
    check_clients(num_clients, "buffer_size", buffer_size)
    check_delay_and_seed(delay, seed)
    delay.check_clients(num_clients)
    first = num_clients if initial_round else buffer_size
    if client_trips is not None:
        allowed = f"at least {first}, the trips of the first server step"
        require(client_trips >= first, "client_trips", client_trips, allowed)
        client_trips += buffer_size - first
    steps = steps_within(server_steps, client_trips, trips_per_step=buffer_size, setting="buffer_size")
    sizes = np.full(steps, buffer_size)
    sizes[0] = first
    random = generator(seed, SELECTION)
    if buffer_size == 1:
        chosen = random.integers(0, num_clients, (steps, 1))
    else:
        picks = (random.choice(num_clients, buffer_size, replace=False, shuffle=False) for _ in range(steps))
        chosen = np.sort(np.stack(list(picks)), axis=1)
    everyone = np.arange(num_clients)
    start = everyone if initial_round else chosen[0]
    client = np.concatenate([start, chosen[1:].reshape(-1)]).astype(np.int32)
    step = np.repeat(np.arange(steps, dtype=np.int32), sizes)
    trip = earlier_occurrences(client)
    drawn = np.floor(draw_durations(delay, seed, client, trip))
    order = np.argsort(client, kind="stable")
    last_step = np.full(len(client), -1)  # that applied the client's trip before
    same = client[order][1:] == client[order][:-1]
    last_step[order[1:]] = np.where(same, step[order][:-1], -1)
    staleness = np.minimum(drawn, step - (last_step + 1)).astype(np.int32)
    version = step - staleness
    return EventSchedule(
        client=client,
        trip=trip,
        download_version=version,
        step=step,
        download_time=version.astype(np.float64),
        arrival_time=step + 1.0,
        step_time=np.arange(1.0, steps + 1),
        **inflight_trips(),
        **discarded_trips(),
        num_clients=num_clients,
        concurrency=num_clients,
    )
