"""Synchronous rounds on the same clock as asynchronous training, with over-selection."""

import functools
import math
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from jafl.base.described import described
from jafl.base.errors import choose, is_whole_number, real_number, require, whole_number
from jafl.base.given_arrays import as_array
from jafl.records import EventSchedule
from jafl.schedule.arguments import as_availability, as_delay, check_dropout, check_failure_rate
from jafl.schedule.availability import Availability
from jafl.schedule.checks import check_clients, check_delay_and_seed, steps_within
from jafl.schedule.cohorts import fixed_cohorts, limited_cohorts, poisson_cohorts
from jafl.schedule.columns import discarded_trips, inflight_trips
from jafl.schedule.counting import earlier_occurrences
from jafl.schedule.delay import IS_A_DURATION, Delay, is_duration
from jafl.schedule.dropout import Dropout
from jafl.schedule.durations import Table, draw_durations, on_a_clock_that_moves
from jafl.schedule.limits import check_limits, make_limits
from jafl.schedule.local_steps import DelayOfSteps, check_local_steps, with_local_steps
from jafl.schedule.protocol import World
from jafl.schedule.synchronous_rounds import Rounds, RoundsProtocol

COHORTS = ("fixed", "poisson")


@described
def synchronous(
    *,
    num_clients: int,
    cohort_size: int | None = None,
    over_selection: float = 0.0,
    delay: Delay | str | os.PathLike[str],
    server_steps: int | None = None,
    client_trips: int | None = None,
    deadline: float | None = None,
    min_reports: int | None = None,
    participation: float | Sequence[float] | np.ndarray | None = None,
    dropout: Dropout | None = None,
    failure_rate: float = 0.0,
    availability: Availability | str | os.PathLike[str] | None = None,
    most_trips: int | None = None,
    smallest_gap: int = 0,
    cohorts: str = "fixed",
    local_steps: int | Sequence[int] | np.ndarray | Delay | None = None,
    seed: int = 0,
) -> EventSchedule:
    """Computes the event schedule of synchronous rounds: FedAvg, and FedBuff's over-selection (appendix C.4).

    Each round starts ``ceil(cohort_size * (1 + over_selection))`` clients, drawn uniformly without replacement,
    from the newest version. The server steps when the first ``cohort_size`` of them have arrived (ties in client
    order) and cancels the other trips, which count as cost; the next round starts at that instant.

    **Clients that do not report.** Clients that are away or have left are not selected: a round starts as many as are
    there, from the first moment on at which ``min_reports`` of them are. A client does not report if its trip fails,
    or if it goes away or leaves before its trip ends. A round is over when ``cohort_size`` clients have reported, or
    all that it has started if these are fewer; else at its ``deadline``; without one when its last trip ends. With
    fewer than ``min_reports`` reports it is *void*: they are thrown away, and the server makes a step without trips.
    ``EventSchedule.void_steps`` lists these. A rule must be able to take them, as it must empty rounds (below).

    **Participation.** With ``participation`` each client that is there takes part in each round with its own
    probability, independently of all else, and the round is over when all who can have reported (the world of MIFA,
    Gu et al. 2021). Nobody may take part; such an empty round takes no time.

    With ``cohorts="poisson"`` the sizes of the cohorts vary, as the privacy of DP-SGD with amplification by sampling
    needs it (Abadi et al. 2016). A step may then have no trips at all. It takes no time, and it is a server step like
    any other, for the law of the cohorts would not be Poisson's if empty ones were left out or drawn again. A rule
    must be able to take it: ``jafl.rules.fedavg(divide_by=cohort_size)``, which divides by the expected size of a
    cohort, where a mean would depend on who else is there. For the same reason ``client_trips`` sets the number of
    rounds by that size, whatever sizes are drawn.

    Args:
      num_clients: N, all clients.
      cohort_size: reports that a round waits for, the trips that a server step applies at most; their mean with
        Poisson cohorts. Left out with ``participation``.
      over_selection: share of extra clients that each round starts, at least 0; 0.3 in FedBuff.
      delay: the law of trip durations, see ``jafl.delays``, or a file of recorded ones; a duration of 0 is allowed.
      server_steps: stop after so many rounds, or
      client_trips: after as many whole rounds as so many started trips allow. Exactly one of the two.
      deadline: a round ends so much simulated time after its start at the latest, with those that have reported by
        then, at that very instant included. Above 0. Default: never.
      min_reports: a round with fewer reports is void; and a round begins when so many clients are there. From 1 to
        ``cohort_size``. Default: 1; but where limits alone keep clients from a round, all that it starts.
      participation: probabilities from 0 to 1, one for all clients or [N]; without ``cohort_size`` and
        over-selection. ``client_trips`` then sets the number of rounds by the expected number of clients in one.
      dropout: clients that leave for ever, see ``jafl.Dropout``; after ``server_step`` or ``trips`` they leave
        between two rounds.
      failure_rate: share of trips, drawn by (client, trip), that take their time and bring no report.
      availability: when clients are there, see ``jafl.availability``, or a file of windows. Default: always.
      most_trips: the server applies at most so many trips of each client; 1 is one pass over the clients. Cancelled
        trips do not count. Default: any number.
      smallest_gap: the numbers of the rounds that apply two trips of one client differ by at least so much. Default:
        0, no limit; any two rounds differ by 1.
      cohorts: "fixed": as above. "poisson": each round starts every client with probability
        cohort_size / num_clients, independently of all else, and applies all their trips; without over-selection,
        limits, and all that keeps clients from reporting.
      local_steps: how many local steps each trip makes, for ``client_work(local_steps="scheduled")``; with
        ``jafl.delays.per_step`` the durations follow from it. One number for all trips; one for each client, [N]; or
        a law of ``jafl.delays``, from which each trip gets a draw, rounded down. Default: the client work decides.
      seed: keys durations, cohorts, participation, failures, presence and who leaves.

    Returns:
      The schedule, with the most clients that a round starts as ``concurrency``; the trips that bring no report, are
      cancelled, or are those of a void round are its discarded ones, and none is under way at the end.

    Raises:
      SettingError: for a number outside its range, or durations that are negative or not finite; where the limits
        leave too few clients for a round; where no round has enough reports, for a deadline before the shortest trip
        for example; for Poisson cohorts with what would make their law another one, or without a single trip.

    Examples:
      >>> delay = jafl.delays.constant(2.0)
      >>> jafl.synchronous(num_clients=10, cohort_size=3, delay=delay, server_steps=4).step_time
      array([2., 4., 6., 8.])
    """
    law, presence = as_delay(delay), as_availability(availability)
    check_delay_and_seed(law, seed)
    check_dropout(dropout)
    check_failure_rate(failure_rate)
    check_limits(most_trips, smallest_gap)
    choose("cohorts", cohorts, dict.fromkeys(COHORTS))
    whole_number("num_clients", num_clients, 1)
    chances = _chances(participation, num_clients)
    if chances is None:
        started, name = _started(num_clients, cohort_size, over_selection)
    else:
        beside = {"cohort_size": cohort_size, "over_selection": over_selection, "cohorts": cohorts}
        for other, value in beside.items():  # which would decide by themselves who takes part
            require(value in (None, 0.0, "fixed"), other, value, "left out where participation is given")
        started, name = num_clients, "the sum of participation"
    law.check_clients(num_clients)
    check_local_steps(local_steps, num_clients)
    if local_steps is not None:
        law = DelayOfSteps(law, local_steps)
    _check_end_of_rounds(deadline, min_reports, num_clients if cohort_size is None else cohort_size)
    in_a_round = started if chances is None else float(chances.sum())
    rounds = steps_within(server_steps, client_trips, trips_per_step=in_a_round, setting=name)

    others = {
        "dropout": dropout,
        "failure_rate": failure_rate,
        "availability": presence,
        "deadline": deadline,
        "min_reports": min_reports,
    }
    in_a_loop = participation is not None or any(map(bool, others.values()))
    if cohorts == "poisson":
        _refuse_beside_poisson(**others)
    elif in_a_loop:
        world = World(num_clients, law, dropout, failure_rate, presence, seed)
        protocol = RoundsProtocol(
            cohort_size=cohort_size,
            started=started,
            participation=chances,
            deadline=math.inf if deadline is None else deadline,
            min_reports=min_reports or 1,
            most_trips=most_trips,
            smallest_gap=smallest_gap,
        )
        until = (None, client_trips) if chances is None and client_trips is not None else (rounds,)
        schedule = on_a_clock_that_moves(Rounds(world, protocol).run(*until), law, seed, deadline=deadline)
        return with_local_steps(schedule, law, seed)
    assert cohort_size is not None
    if cohorts == "poisson":
        _refuse_beside_poisson(
            over_selection=over_selection, most_trips=most_trips, smallest_gap=smallest_gap
        )
        client, trip_round = poisson_cohorts(num_clients, cohort_size, rounds, seed)
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
        client, trip_round = chosen.reshape(-1), np.repeat(np.arange(rounds, dtype=np.int32), started)
    schedule = _schedule(
        client, trip_round, rounds, cohort_size if cohorts == "fixed" else num_clients, law, seed, num_clients
    )
    return with_local_steps(on_a_clock_that_moves(schedule, law, seed), law, seed)


def _chances(
    participation: float | Sequence[float] | np.ndarray | None, num_clients: int
) -> np.ndarray | None:
    """[N] float64: with which probability each client takes part in a round; None where cohorts are drawn."""
    if participation is None:
        return None
    chances = as_array("participation", participation)
    fits = chances.dtype.kind in "iuf" and chances.shape in ((), (num_clients,))
    require(fits, "participation", participation, f"a number, or one for each of the {num_clients} clients")
    chances = np.broadcast_to(chances.astype(np.float64), num_clients)
    wrong = np.flatnonzero(~((chances >= 0) & (chances <= 1)))
    if wrong.size:
        name = "participation" if np.ndim(participation) == 0 else f"participation of client {wrong[0]}"
        require(False, name, float(chances[wrong[0]]), "a probability, from 0 to 1")
    require(chances.any(), "participation", participation, "above 0 for some client")
    return chances


def _started(num_clients: int, cohort_size: int | None, over_selection: float) -> tuple[int, str]:
    """(the clients that a round starts, what messages call this number)."""
    allowed = "at least 0 and finite"
    real_number("over_selection", over_selection, lambda share: 0 <= share < math.inf, allowed)
    require(
        is_whole_number(cohort_size) and cohort_size >= 1,
        "cohort_size",
        cohort_size,
        f"between 1 and the number of clients, {num_clients}",
        "Or give participation." if cohort_size is None else "",
    )
    assert cohort_size is not None
    most = num_clients / cohort_size
    allowed = f"at most {most - 1:g}, for no more than all {num_clients} clients can start"
    require(over_selection < max(most, 1), "over_selection", over_selection, allowed)
    started = math.ceil(round(cohort_size * (1 + over_selection), 9))  # 100 * 1.1 is 110, not 111
    name = "cohort_size" if over_selection == 0 else "cohort_size * (1 + over_selection)"
    check_clients(num_clients, name, started)
    return started, name


def _check_end_of_rounds(deadline: float | None, min_reports: int | None, most: int) -> None:
    """Refuses a deadline that is no time, and a least number of reports that no round can have."""
    if deadline is not None:
        real_number("deadline", deadline, is_duration, f"{IS_A_DURATION}, or None")
    if min_reports is not None:
        whole_number("min_reports", min_reports, 1)
        require(min_reports <= most, "min_reports", min_reports, f"at most {most}, which a round can have")


def _refuse_beside_poisson(**others: Any) -> None:
    """Refuses options with which cohorts would not be Poisson's, or would not report as a whole."""
    for name, value in others.items():
        allowed = "left out where cohorts is 'poisson'"
        remedy = "Cohorts would depend on each other, or on durations: amplification could not be claimed."
        if name not in ("over_selection", "most_trips", "smallest_gap"):
            remedy = (
                "Amplification is for rounds in which all report. Without it: participation, not cohorts."
            )
        require(not value, name, value, allowed, remedy)


class _FirstArrivals:
    """The clients whose updates the server applies in a round: the first ``cohort_size`` that arrive.

    Rounds are asked for in order: durations depend on how many trips a client has made.
    """

    def __init__(self, delay: Delay, seed: int, num_clients: int, trips: int, cohort_size: int):
        self.trip_durations = Table(functools.partial(draw_durations, delay, seed), num_clients, trips)
        self.trips_made = [0] * num_clients
        self.cohort_size, self.now = cohort_size, 0.0

    def __call__(self, clients: Sequence[int]) -> list[int]:
        arrivals = []
        for client in clients:
            arrivals.append((self.now + self.trip_durations(client, self.trips_made[client]), client))
            self.trips_made[client] += 1
        first = sorted(arrivals)[: self.cohort_size]
        self.now = first[-1][0]
        return [client for _, client in first]


def _schedule(
    client: np.ndarray,
    trip_round: np.ndarray,
    rounds: int,
    wanted: int,
    delay: Delay,
    seed: int,
    num_clients: int,
) -> EventSchedule:
    """The schedule of rounds that ``client`` [S] starts in, each in ``trip_round`` [S].

    Rounds stand in their order, and the clients of a round in client order. The first ``wanted`` of a round to arrive
    are applied.
    """
    trip = earlier_occurrences(client)
    durations = draw_durations(delay, seed, client, trip)
    sizes = np.bincount(trip_round, minlength=rounds)
    first = np.cumsum(sizes) - sizes
    # Rounding keeps order, so the last arrival that counts is the round's start plus its duration's rank.
    last = np.minimum(first + np.minimum(wanted, sizes) - 1, len(client) - 1)
    longest = np.where(sizes > 0, durations[np.lexsort((durations, trip_round))][last], 0.0)
    step_time = np.cumsum(longest)
    round_start = np.concatenate([[0.0], step_time[:-1]])
    arrival = round_start[trip_round] + durations
    order = np.lexsort((arrival, trip_round))  # stable: ties stay in client order
    in_time = np.arange(len(client)) - first[trip_round] < wanted  # of a round's trips by arrival
    applied, cancelled = order[in_time], order[~in_time]
    step, late = trip_round[applied], trip_round[cancelled]
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
