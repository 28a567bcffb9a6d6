"""Delays in server steps: the staleness of each update is drawn, without a clock (one reading of ACE's beta)."""

import numpy as np

from jafl.base.described import described
from jafl.base.errors import require, whole_number
from jafl.records import EventSchedule
from jafl.schedule.checks import check_clients, check_delay_and_seed, steps_within
from jafl.schedule.cohorts import limited_cohorts
from jafl.schedule.columns import discarded_trips, inflight_trips
from jafl.schedule.counting import earlier_occurrences
from jafl.schedule.delays import Delay
from jafl.schedule.draws import SELECTION, generator
from jafl.schedule.durations import draw_durations
from jafl.schedule.limits import Limits, check_limits, make_limits


@described
def drawn_staleness(
    *,
    num_clients: int,
    buffer_size: int = 1,
    delay: Delay,
    server_steps: int | None = None,
    client_trips: int | None = None,
    initial_round: bool = False,
    most_trips: int | None = None,
    smallest_gap: int = 0,
    seed: int = 0,
) -> EventSchedule:
    """Computes a schedule in which the staleness of each update is drawn from ``delay``.

    Each server step applies trips of ``buffer_size`` different clients, drawn uniformly. A trip's staleness, in
    server steps, is its draw, rounded down, but no more than the steps since the client's last update was applied: a
    client is never in two trips at once. Under a clock the mean staleness is (concurrency - 1) / K whatever the
    delays; here the law decides, and all clients take part equally often. Simulated time counts server steps: step t
    happens at t + 1, version v is downloaded at v.

    Args:
      num_clients: N, all clients.
      buffer_size: K, the trips that each server step applies, from 1 to N.
      delay: the law of staleness, a fresh draw per (client, trip), see ``jafl.delays``.
      server_steps: stop after so many server steps, or
      client_trips: after as many whole steps as so many trips allow. Exactly one of the two.
      initial_round: step 0 applies a trip of every client from version 0 (ACE's start).
      most_trips: at most so many trips of each client; 1 is one pass over the clients. Default: any number.
      smallest_gap: the numbers of the steps that apply two trips of one client differ by at least so much. Default:
        0, no limit; any two steps differ by 1.
      seed: keys staleness and the choice of clients.

    Returns:
      The schedule, without trips that are discarded or under way at the end.

    Raises:
      SettingError: for a number outside its range, or a draw that is negative or not finite; where the limits leave
        too few clients for a step.

    Examples:
      >>> schedule = jafl.drawn_staleness(num_clients=1, delay=jafl.delays.constant(3), server_steps=5)
      >>> schedule.staleness  # no more than the steps since the client's last update
      array([0, 0, 0, 0, 0], dtype=int32)
    """
    whole_number("buffer_size", buffer_size, 1)
    check_limits(most_trips, smallest_gap)
    check_clients(num_clients, "buffer_size", buffer_size)
    check_delay_and_seed(delay, seed)
    delay.check_clients(num_clients)
    first = num_clients if initial_round else buffer_size
    if client_trips is not None:
        allowed = f"at least {first}, the trips of the first server step"
        require(client_trips >= first, "client_trips", client_trips, allowed)
        client_trips += buffer_size - first
    steps = steps_within(server_steps, client_trips, trips_per_step=buffer_size, setting="buffer_size")
    limits = make_limits(num_clients, most_trips, smallest_gap)
    chosen = _clients(num_clients, buffer_size, steps, seed, limits, initial_round)
    first_clients = np.arange(num_clients) if initial_round else chosen[0]
    client = np.concatenate([first_clients, chosen[1:].reshape(-1)]).astype(np.int32)
    step = np.repeat(np.arange(steps, dtype=np.int32), [first] + [buffer_size] * (steps - 1))
    trip = earlier_occurrences(client)
    staleness = np.floor(draw_durations(delay, seed, client, trip))
    version = step - np.minimum(staleness, step - _first_version(client, step)).astype(np.int32)
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


def _clients(
    num_clients: int, buffer_size: int, steps: int, seed: int, limits: Limits | None, initial_round: bool
) -> np.ndarray:
    """[T, K]: the clients whose trips each step applies, in client order; whatever for an initial round."""
    if limits:
        cohorts = limited_cohorts(
            buffer_size, steps, seed, limits, setting="buffer_size", everybody_first=initial_round
        )
        return np.concatenate([np.zeros((int(initial_round), buffer_size), np.int32), cohorts])
    random = generator(seed, SELECTION)
    if buffer_size == 1:
        return random.integers(0, num_clients, (steps, 1))
    draws = (random.choice(num_clients, buffer_size, replace=False, shuffle=False) for _ in range(steps))
    return np.sort(np.stack(list(draws)), axis=1)


def _first_version(client: np.ndarray, step: np.ndarray) -> np.ndarray:
    """[J]: the version made by the step that applied the client's trip before, 0 for its first trip."""
    order = np.argsort(client, kind="stable")
    same_client = client[order][1:] == client[order][:-1]
    version = np.zeros(len(client), np.int64)
    version[order[1:]] = np.where(same_client, step[order][:-1] + 1, 0)
    return version
