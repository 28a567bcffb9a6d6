"""Synchronous rounds on the same clock as asynchronous training, with over-selection."""

import math
import numbers

import numpy as np

from jafl.errors import require
from jafl.records import EventSchedule
from jafl.schedule.checks import check_clients, check_delay_and_seed, steps_within
from jafl.schedule.columns import discarded_trips, inflight_trips
from jafl.schedule.counting import earlier_occurrences
from jafl.schedule.delays import Delay
from jafl.schedule.draws import SELECTION, generator
from jafl.schedule.durations import draw_durations


def synchronous(
    *,
    num_clients: int,
    cohort_size: int,
    over_selection: float = 0.0,
    delay: Delay,
    server_steps: int | None = None,
    client_trips: int | None = None,
    seed: int = 0,
) -> EventSchedule:
    """Computes the event schedule of synchronous rounds: FedAvg, and FedBuff's over-selection (appendix C.4).

    Each round starts ``ceil(cohort_size * (1 + over_selection))`` clients, drawn uniformly without replacement,
    from the newest version. The server steps when the first ``cohort_size`` of them have arrived (ties in client
    order) and cancels the other trips, which count as cost; the next round starts at that instant.

    Args:
      num_clients: N, all clients.
      cohort_size: trips that each server step applies.
      over_selection: share of extra clients that each round starts, at least 0; 0.3 in FedBuff.
      delay: the law of trip durations, see ``jafl.delays``; a duration of 0 is allowed.
      server_steps: stop after so many rounds, or
      client_trips: after as many whole rounds as so many started trips allow. Exactly one of the two.
      seed: keys durations and cohorts.

    Returns:
      The schedule, with the started clients of a round as ``concurrency``; the cancelled trips are its discarded
      ones, and none is under way at the end.

    Raises:
      SettingError: for a number outside its range, or durations that are negative or not finite.

    Example:
      >>> delay = jafl.delays.constant(2.0)
      >>> jafl.synchronous(num_clients=10, cohort_size=3, delay=delay, server_steps=4).step_time
      array([2., 4., 6., 8.])
    """
    require(
        math.isfinite(over_selection) and over_selection >= 0, "over_selection", over_selection, "at least 0"
    )
    require(
        isinstance(cohort_size, numbers.Integral) and cohort_size >= 1,
        "cohort_size",
        cohort_size,
        f"between 1 and the number of clients, {num_clients}",
    )
    check_delay_and_seed(delay, seed)
    started = math.ceil(round(cohort_size * (1 + over_selection), 9))  # 100 * 1.1 is 110, not 111
    name = "cohort_size" if over_selection == 0 else "cohort_size * (1 + over_selection)"
    check_clients(num_clients, name, started)
    delay.check_clients(num_clients)
    rounds = steps_within(server_steps, client_trips, trips_per_step=started, setting=name)

    cohorts = _cohorts(num_clients, started, rounds, seed)
    trips = earlier_occurrences(cohorts.reshape(-1))
    durations = draw_durations(delay, seed, cohorts.reshape(-1), trips).reshape(rounds, started)
    return _schedule(cohorts, trips.reshape(cohorts.shape), durations, cohort_size, num_clients)


def _cohorts(num_clients: int, started: int, rounds: int, seed: int) -> np.ndarray:
    """[T, started] int32: the clients of each round, in client order."""
    random = generator(seed, SELECTION)
    cohorts = np.empty((rounds, started), np.int32)
    for number in range(rounds):
        cohorts[number] = random.choice(num_clients, started, replace=False, shuffle=False)
    cohorts.sort(axis=1)
    return cohorts


def _schedule(
    cohorts: np.ndarray, trips: np.ndarray, durations: np.ndarray, cohort_size: int, num_clients: int
) -> EventSchedule:
    """The schedule of rounds whose clients, trip numbers and durations are given, [T, started] each."""
    rounds, started = cohorts.shape
    # Rounding keeps order, so the last arrival that counts is the round's start plus its duration's rank.
    step_time = np.cumsum(np.partition(durations, cohort_size - 1, axis=1)[:, cohort_size - 1])
    round_start = np.concatenate([[0.0], step_time[:-1]])
    arrivals = round_start[:, None] + durations
    order = np.argsort(arrivals, axis=1, kind="stable")  # stable: ties stay in client order
    columns = (cohorts, trips, arrivals)
    by_arrival = [np.take_along_axis(column, order, axis=1) for column in columns]
    applied = [column[:, :cohort_size].reshape(-1) for column in by_arrival]
    cancelled = [column[:, cohort_size:].reshape(-1) for column in by_arrival]
    step = np.repeat(np.arange(rounds, dtype=np.int32), cohort_size)
    return EventSchedule(
        client=applied[0],
        trip=applied[1],
        download_version=step,
        step=step,
        download_time=round_start[step],
        arrival_time=applied[2],
        step_time=step_time,
        **inflight_trips(),
        **discarded_trips(
            cancelled[0],
            cancelled[1],
            np.repeat(np.arange(rounds), started - cohort_size),
            np.repeat(round_start, started - cohort_size),
            np.repeat(step_time, started - cohort_size),
        ),
        num_clients=num_clients,
        concurrency=started,
    )
