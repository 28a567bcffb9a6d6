"""Open arrivals: clients start at a given rate, whether others have finished or not (FedBuff's experiments)."""

import itertools
import math
import os
from collections.abc import Callable, Iterator

import numpy as np

from jafl.base.described import described
from jafl.base.errors import choose, real_number, require, whole_number
from jafl.records import EventSchedule
from jafl.schedule import delays
from jafl.schedule.arguments import as_availability, as_delay, check_dropout, check_failure_rate
from jafl.schedule.availability import Availability
from jafl.schedule.checks import check_clients, check_delay_and_seed, steps_within
from jafl.schedule.columns import discarded_trips, inflight_trips
from jafl.schedule.counting import earlier_occurrences, with_measured_concurrency
from jafl.schedule.delay import LONGEST, Delay
from jafl.schedule.draws import SELECTION, STARTS, generator
from jafl.schedule.dropout import Dropout
from jafl.schedule.durations import draw_durations, on_a_clock_that_moves
from jafl.schedule.events import MOST_STARTS, Events, events_within
from jafl.schedule.limits import check_limits
from jafl.schedule.protocol import Protocol, World


@described
def open_arrivals(
    *,
    num_clients: int,
    start_rate: float | None = None,
    concurrency: float | None = None,
    starts: str = "poisson",
    exclude_busy: bool = True,
    buffer_size: int = 1,
    delay: Delay | str | os.PathLike[str],
    server_steps: int | None = None,
    client_trips: int | None = None,
    restart: str = "at_once",
    dropout: Dropout | None = None,
    failure_rate: float = 0.0,
    availability: Availability | str | os.PathLike[str] | None = None,
    most_trips: int | None = None,
    smallest_gap: int = 0,
    seed: int = 0,
) -> EventSchedule:
    """Computes the event schedule of buffered training whose clients start at a given rate.

    At each start one client, drawn uniformly, downloads the newest version; arrivals of the same instant come first.
    So the number of clients under way is not fixed: its mean is ``start_rate`` times the mean duration, if enough
    clients are idle. The rest is as in ``jafl.asynchronous``.

    Args:
      num_clients: N, all clients.
      start_rate: starts per unit of simulated time, above 0; or
      concurrency: clients under way on average: as many starts as that over the mean of ``delay``, which must tell
        one. Of a law made of others, the mean of the first counts. Exactly one of the two.
      starts: "poisson" (exponential gaps) or "constant" (equal gaps, the first start after one of them).
      exclude_busy: a client under way is not drawn; a start for which nobody is idle is left out. False, as in
        FedBuff's authors' simulator: clients are drawn with replacement, so one may be in several trips at once;
        then without dropout, failures, availability and limits.
      buffer_size: K, the trips that each server step applies.
      delay: the law of trip durations, see ``jafl.delays``; or a file of recorded ones, see ``jafl.duration_trace``.
      server_steps: stop after so many server steps, or
      client_trips: after as many whole steps as so many client trips allow, those thrown away included. Exactly one
        of the two.
      restart: "at_once" or "not_twice_in_a_buffer", see ``jafl.asynchronous``.
      dropout: clients that leave for ever, see ``jafl.Dropout``.
      failure_rate: share of trips, drawn by (client, trip), that take their time and bring nothing.
      availability: when clients are there to start a trip, see ``jafl.availability``; or a file of windows.
      most_trips, smallest_gap: trips of each client that are applied, at most, and server steps between two of them,
        at least; see ``jafl.asynchronous``. A start for which nobody is left is left out.
      seed: keys starts, durations, the choice of clients, failures, presence and who leaves.

    Returns:
      The schedule. Its ``concurrency`` is the most clients that were ever under way.

    Raises:
      SettingError: as ``jafl.asynchronous`` does.

    Examples:
      >>> delay = jafl.delays.constant(2.5)
      >>> jafl.open_arrivals(
      ...     num_clients=10, start_rate=1.0, starts="constant", delay=delay, server_steps=3
      ... ).step_time
      array([3.5, 4.5, 5.5])
    """
    law, presence = as_delay(delay), as_availability(availability)
    check_clients(num_clients, "num_clients", num_clients)
    check_delay_and_seed(law, seed)
    check_dropout(dropout)
    check_failure_rate(failure_rate)
    check_limits(most_trips, smallest_gap)
    law.check_clients(num_clients)
    whole_number("buffer_size", buffer_size, 1)
    if start_rate is None:
        start_rate = _start_rate(concurrency, law)
    else:
        require(concurrency is None, "concurrency", concurrency, "left out where start_rate is given")
    allowed = f"a finite number above 0, from {1 / LONGEST:g} to {LONGEST:g}"
    real_number("start_rate", start_rate, lambda rate: 1 / LONGEST <= rate <= LONGEST, allowed)
    choose("starts", starts, {"poisson": None, "constant": None})
    choose("restart", restart, {"at_once": None, "not_twice_in_a_buffer": None})
    steps = steps_within(server_steps, client_trips, trips_per_step=buffer_size, setting="buffer_size")
    under_way = _check_rate(start_rate, num_clients, law, steps * buffer_size, exclude_busy, seed)
    gaps = _gaps(start_rate, starts, seed)
    if not exclude_busy:
        options = {"dropout": dropout, "failure_rate": failure_rate, "availability": presence}
        options |= {"most_trips": most_trips, "smallest_gap": smallest_gap}
        for name, value in options.items():
            require(not value, name, value, "left out where exclude_busy is False")
        require(restart == "at_once", "restart", restart, "'at_once' where exclude_busy is False")
        schedule = _with_replacement(num_clients, gaps, buffer_size, law, steps, seed, start_rate, under_way)
        return on_a_clock_that_moves(schedule, law, seed)
    world = World(num_clients, law, dropout, failure_rate, presence, seed)
    protocol = Protocol(
        0,
        buffer_size,
        restart,
        most_trips=most_trips,
        smallest_gap=smallest_gap,
        start_rate=start_rate,
        start_times=lambda: itertools.accumulate(itertools.chain.from_iterable(gaps())),
    )
    if client_trips is None or not (dropout or failure_rate or presence):
        schedule = Events(world, protocol, steps * buffer_size).run(steps)
    else:
        schedule = events_within(world, protocol, client_trips)
    return on_a_clock_that_moves(schedule, law, seed)


def _start_rate(concurrency: float | None, law: Delay) -> float:
    """Starts per unit of time, such that so many clients are under way on average."""
    allowed = "a finite number above 0, or start_rate given in its place"
    real_number("concurrency", concurrency, lambda number: 0 < number < math.inf, allowed)
    inner: Delay = law
    # Throttled clients and networks come on top of the mean.
    while isinstance(
        inner, (delays.once_per_client, delays.slow_fraction, delays.throttled, delays.with_network)
    ):
        inner = inner.inside()[0]
    mean: float | None = getattr(inner, "mean", None)
    remedy = "It says how many trips start in a unit of simulated time."
    require(mean, "start_rate", None, f"given where delay is {law!r}, which tells no mean", remedy)
    assert mean is not None and concurrency is not None
    return concurrency / mean


def _check_rate(
    rate: float, num_clients: int, delay: Delay, trips: int, exclude_busy: bool, seed: int
) -> float:
    """How many would be under way; refuses a rate at which too many are, or too many starts find nobody idle."""
    clients = np.arange(min(num_clients, 1000))
    mean = float(np.mean(draw_durations(delay, seed, clients, np.zeros_like(clients))))
    under_way = rate * mean  # as many as there would be if nobody were busy
    starts = under_way / num_clients * trips if exclude_busy else under_way
    if starts > MOST_STARTS and under_way > num_clients:
        most = MOST_STARTS / starts * rate
        remedy = "A lower rate keeps all clients busy, too." if exclude_busy else ""
        allowed = f"at most about {most:.1g}, for trips last about {mean:.3g} and {starts:.0e} starts would be drawn"
        require(False, "start_rate", rate, allowed, remedy)
    return under_way


def _gaps(rate: float, starts: str, seed: int) -> Callable[[], Iterator[list[float]]]:
    """A function that returns a new endless iterator over lists of gaps between starts."""

    def lists() -> Iterator[list[float]]:
        random = generator(seed, STARTS)
        while True:
            draws = random.exponential(1 / rate, 4096) if starts == "poisson" else np.full(4096, 1 / rate)
            yield draws.tolist()

    return lists


def _with_replacement(
    num_clients: int,
    gaps: Callable[[], Iterator[list[float]]],
    buffer_size: int,
    delay: Delay,
    steps: int,
    seed: int,
    start_rate: float,
    on_average: float,
) -> EventSchedule:
    """The schedule in one piece, without the event loop: no start depends on who is under way."""
    trips = steps * buffer_size
    # Some multiple of what is needed on average, lest a law whose later trips are longer go on for ever.
    most = 8 * (trips + on_average) + 10**6
    client, trip, start, end = _starts_with_replacement(
        num_clients, gaps, delay, seed, trips, most, start_rate
    )
    # A trip that takes no time ends after those that end at its start.
    order = np.lexsort((trip, client, end == start, end))[:trips]
    step = np.repeat(np.arange(steps, dtype=np.int32), buffer_size)
    step_time = end[order][buffer_size - 1 :: buffer_size]
    # A start sees the steps of its own instant, but the last one ends the run.
    version = np.minimum(np.searchsorted(step_time, start, side="right"), steps).astype(np.int32)
    version[order] = np.minimum(version[order], step)
    not_applied = np.ones(len(start), bool)
    not_applied[order] = False
    under_way = np.flatnonzero(not_applied & (start <= step_time[-1]))
    under_way = under_way[np.lexsort((trip[under_way], client[under_way]))]
    schedule = EventSchedule(
        client=client[order],
        trip=trip[order],
        download_version=version[order],
        step=step,
        download_time=start[order],
        arrival_time=end[order],
        step_time=step_time,
        **inflight_trips(client[under_way], trip[under_way], version[under_way], start[under_way]),
        **discarded_trips(),
        num_clients=num_clients,
        concurrency=num_clients,
    )
    return with_measured_concurrency(schedule)


def _starts_with_replacement(
    num_clients: int,
    gaps: Callable[[], Iterator[list[float]]],
    delay: Delay,
    seed: int,
    trips: int,
    most: float,
    start_rate: float,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(client, trip, start time, end time), [S] each: so many starts that ``trips`` trips end before the last one.

    Raises SettingError where ``most`` starts are too few.
    """
    random = generator(seed, SELECTION)
    all_gaps = itertools.chain.from_iterable(gaps())
    start, client = np.empty(0), np.empty(0, np.int32)
    needed, last = trips + 4096, 0.0
    while True:
        more = np.array(list(itertools.islice(all_gaps, needed)))
        start = np.concatenate([start, np.cumsum(np.concatenate([[last], more]))[1:]])
        last = float(start[-1])
        client = np.concatenate([client, random.integers(0, num_clients, len(more), dtype=np.int32)])
        trip = earlier_occurrences(client)
        end = start + draw_durations(delay, seed, client, trip)
        ended = int(np.sum(end < last))
        if ended >= trips:
            return client, trip, start, end
        needed = len(start)
        allowed = f"lower: of {needed:,} trips {ended:,} have ended, and {trips:,} are to be applied"
        require(needed < most, "start_rate", start_rate, allowed)
