"""Synchronous rounds on the same clock as asynchronous training, with over-selection."""

import functools
import math
import numbers
import os
from collections.abc import Sequence

import numpy as np

from jafl.errors import choose, real_number, require, whole_number
from jafl.records import EventSchedule
from jafl.schedule.arguments import as_delay
from jafl.schedule.checks import check_clients, check_delay_and_seed, steps_within
from jafl.schedule.cohorts import fixed_cohorts, limited_cohorts, poisson_cohorts
from jafl.schedule.columns import discarded_trips, inflight_trips
from jafl.schedule.counting import earlier_occurrences
from jafl.schedule.delays import Delay
from jafl.schedule.durations import Table, draw_durations
from jafl.schedule.limits import check_limits, make_limits

COHORTS = ("fixed", "poisson")


def synchronous(
    *,
    num_clients: int,
    cohort_size: int,
    over_selection: float = 0.0,
    delay: Delay | str | os.PathLike[str],
    server_steps: int | None = None,
    client_trips: int | None = None,
    most_trips: int | None = None,
    smallest_gap: int = 0,
    cohorts: str = "fixed",
    seed: int = 0,
) -> EventSchedule:
    """Computes the event schedule of synchronous rounds: FedAvg, and FedBuff's over-selection (appendix C.4).

    Each round starts ``ceil(cohort_size * (1 + over_selection))`` clients, drawn uniformly without replacement,
    from the newest version. The server steps when the first ``cohort_size`` of them have arrived (ties in client
    order) and cancels the other trips, which count as cost; the next round starts at that instant.

    With ``cohorts="poisson"`` the sizes of the cohorts vary, as the privacy of DP-SGD with amplification by sampling
    needs it (Abadi et al. 2016). A step may then have no trips at all. It takes no time, and it is a server step like
    any other, for the law of the cohorts would not be Poisson's if empty ones were left out or drawn again. A rule
    must be able to take it: ``jafl.rules.fedavg(divide_by=cohort_size)``, which divides by the expected size of a
    cohort, where a mean would depend on who else is there. For the same reason ``client_trips`` sets the number of
    rounds by that size, whatever sizes are drawn.

    Args:
      num_clients: N, all clients.
      cohort_size: trips that each server step applies; their mean with Poisson cohorts.
      over_selection: share of extra clients that each round starts, at least 0; 0.3 in FedBuff.
      delay: the law of trip durations, see ``jafl.delays``, or a file of recorded ones; a duration of 0 is allowed.
      server_steps: stop after so many rounds, or
      client_trips: after as many whole rounds as so many started trips allow. Exactly one of the two.
      most_trips: the server applies at most so many trips of each client; 1 is one pass over the clients. Cancelled
        trips do not count. Default: any number.
      smallest_gap: the numbers of the rounds that apply two trips of one client differ by at least so much. Default:
        0, no limit; any two rounds differ by 1.
      cohorts: "fixed": as above. "poisson": each round starts every client with probability
        cohort_size / num_clients, independently of all else, and applies all their trips; without over-selection and
        limits.
      seed: keys durations and cohorts.

    Returns:
      The schedule, with the started clients of a round as ``concurrency``; the cancelled trips are its discarded
      ones, and none is under way at the end.

    Raises:
      SettingError: for a number outside its range, or durations that are negative or not finite; where the limits
        leave too few clients for a round; for Poisson cohorts with what would make their law another one, or without
        a single trip.

    Example:
      >>> delay = jafl.delays.constant(2.0)
      >>> jafl.synchronous(num_clients=10, cohort_size=3, delay=delay, server_steps=4).step_time
      array([2., 4., 6., 8.])
    """
    law = as_delay(delay)
    allowed = "at least 0 and finite"
    real_number("over_selection", over_selection, lambda share: 0 <= share < math.inf, allowed)
    require(
        isinstance(cohort_size, numbers.Integral) and cohort_size >= 1,
        "cohort_size",
        cohort_size,
        f"between 1 and the number of clients, {num_clients}",
    )
    check_delay_and_seed(law, seed)
    most = whole_number("num_clients", num_clients, 1) / cohort_size
    allowed = f"at most {most - 1:g}, for no more than all {num_clients} clients can start"
    require(over_selection < max(most, 1), "over_selection", over_selection, allowed)
    started = math.ceil(round(cohort_size * (1 + over_selection), 9))  # 100 * 1.1 is 110, not 111
    name = "cohort_size" if over_selection == 0 else "cohort_size * (1 + over_selection)"
    check_clients(num_clients, name, started)
    law.check_clients(num_clients)
    check_limits(most_trips, smallest_gap)
    choose("cohorts", cohorts, dict.fromkeys(COHORTS))
    rounds = steps_within(server_steps, client_trips, trips_per_step=started, setting=name)

    if cohorts == "poisson":
        _refuse_beside_poisson(
            over_selection=over_selection, most_trips=most_trips, smallest_gap=smallest_gap
        )
        client, round_of = poisson_cohorts(num_clients, cohort_size, rounds, seed)
        allowed = f"larger: in {rounds:,} round{'s' * (rounds > 1)} no client took part"
        require(len(client) > 0, "cohort_size", cohort_size, allowed, "Or choose another seed.")
    else:
        limits = make_limits(num_clients, most_trips, smallest_gap)
        if limits is None:
            chosen = fixed_cohorts(num_clients, started, rounds, seed)
        else:
            first = None
            if started > cohort_size:
                first = _FirstArrivals(law, seed, num_clients, rounds * started, cohort_size)
            chosen = limited_cohorts(started, rounds, seed, limits, setting=name, applied=first)
        client, round_of = chosen.reshape(-1), np.repeat(np.arange(rounds, dtype=np.int32), started)
    return _schedule(
        client, round_of, rounds, cohort_size if cohorts == "fixed" else num_clients, law, seed, num_clients
    )


def _refuse_beside_poisson(**others: float | None) -> None:
    """Refuses options with which cohorts would not be Poisson's."""
    for name, value in others.items():
        allowed = "left out where cohorts is 'poisson'"
        remedy = "Cohorts would depend on each other, or on durations: amplification could not be claimed."
        require(not value, name, value, allowed, remedy)


class _FirstArrivals:
    """Which clients of a round the server applies: the first so many that arrive. Rounds are told in their order."""

    def __init__(self, delay: Delay, seed: int, num_clients: int, trips: int, cohort_size: int):
        self.duration_of = Table(functools.partial(draw_durations, delay, seed), num_clients, trips)
        self.trips_made = [0] * num_clients
        self.cohort_size, self.now = cohort_size, 0.0

    def __call__(self, clients: Sequence[int]) -> list[int]:
        arrivals = []
        for client in clients:
            arrivals.append((self.now + self.duration_of(client, self.trips_made[client]), client))
            self.trips_made[client] += 1
        first = sorted(arrivals)[: self.cohort_size]
        self.now = first[-1][0]
        return [client for _, client in first]


def _schedule(
    client: np.ndarray,
    round_of: np.ndarray,
    rounds: int,
    wanted: int,
    delay: Delay,
    seed: int,
    num_clients: int,
) -> EventSchedule:
    """The schedule of rounds that ``client`` [S] starts in, each in ``round_of`` [S].

    Rounds stand in their order, and the clients of a round in client order. The first ``wanted`` of a round to arrive
    are applied.
    """
    trip = earlier_occurrences(client)
    durations = draw_durations(delay, seed, client, trip)
    sizes = np.bincount(round_of, minlength=rounds)
    first = np.cumsum(sizes) - sizes
    # Rounding keeps order, so the last arrival that counts is the round's start plus its duration's rank.
    last = np.minimum(first + np.minimum(wanted, sizes) - 1, len(client) - 1)
    longest = np.where(sizes > 0, durations[np.lexsort((durations, round_of))][last], 0.0)
    step_time = np.cumsum(longest)
    round_start = np.concatenate([[0.0], step_time[:-1]])
    arrival = round_start[round_of] + durations
    order = np.lexsort((arrival, round_of))  # stable: ties stay in client order
    in_time = np.arange(len(client)) - first[round_of] < wanted  # of a round's trips by arrival
    applied, cancelled = order[in_time], order[~in_time]
    step, late = round_of[applied], round_of[cancelled]
    return EventSchedule(
        client=client[applied],
        trip=trip[applied],
        download_version=step,
        step=step,
        download_time=round_start[step],
        arrival_time=arrival[applied],
        step_time=step_time,
        **inflight_trips(),
        **discarded_trips(client[cancelled], trip[cancelled], late, round_start[late], step_time[late]),
        num_clients=num_clients,
        concurrency=int(sizes.max()),
    )
