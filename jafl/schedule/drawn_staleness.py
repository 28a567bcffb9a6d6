"""Delays in server steps, without a clock: the readings of ACE's beta that count server iterations."""

import functools
import heapq
import math

import numpy as np

from jafl.base.described import described
from jafl.base.errors import choose, require, whole_number
from jafl.records import EventSchedule
from jafl.schedule.checks import check_clients, check_delay_and_seed, steps_within
from jafl.schedule.cohorts import limited_cohorts
from jafl.schedule.columns import Trip, TripColumns, discarded_trips, inflight_trips
from jafl.schedule.counting import earlier_occurrences, version_after_earlier_trip
from jafl.schedule.delay import Delay
from jafl.schedule.draws import SELECTION, generator
from jafl.schedule.durations import Table, draw_durations, on_a_clock_that_moves
from jafl.schedule.limits import Limits, check_limits, make_limits


@described
def drawn_staleness(
    *,
    num_clients: int,
    buffer_size: int | None = None,
    reports: str | None = None,
    delay: Delay,
    server_steps: int | None = None,
    client_trips: int | None = None,
    initial_round: bool = False,
    most_trips: int | None = None,
    smallest_gap: int = 0,
    seed: int = 0,
) -> EventSchedule:
    """Computes a schedule in which delays are drawn from ``delay`` in server steps.

    Each server step applies trips of ``buffer_size`` different clients, drawn uniformly. A trip's staleness, in
    server steps, is its draw, rounded down, but no more than the steps since the client's last update was applied: a
    client is never in two trips at once. Under a clock the mean staleness is (concurrency - 1) / K whatever the
    delays; here the law decides, and all clients take part equally often. Simulated time counts server steps: step t
    happens at t + 1, version v is downloaded at v.

    With ``reports="due"`` no clients are drawn. All train all the time. A trip's delay is its draw, rounded up to
    whole units of simulated time, at least 1. All trips that end with a unit make one server step together, in client
    order, and their clients start again at once from the version that this step makes. So a trip of delay 1 belongs
    to the very next step, with staleness 0, and of N clients with exponential delays of mean beta about
    N / (beta + 1/2) report to a step (rounding adds the half). This is a reading of ACE's beta: the paper counts
    delays in server iterations (Chang et al., section 3.1), so several may end in one; its algorithm 1, to the
    letter, has one report an iteration. A unit in which nobody reports makes no step, for algorithm 1 waits for a
    gradient. So ``server_steps`` counts steps with reports, and a trip's staleness is its delay less 1 and less the
    units without a step meanwhile.

    Args:
      num_clients: N, all clients.
      buffer_size: K, the trips that each server step applies, from 1 to N. Default: 1.
      reports: "due": each step applies all reports whose delay ends, in the place of ``buffer_size``.
      delay: the law of staleness, or of delays, a fresh draw per (client, trip), see ``jafl.delays``.
      server_steps: stop after so many server steps, or
      client_trips: after as many whole steps as so many trips allow. Exactly one of the two.
      initial_round: step 0, at time 1, applies a trip of every client from version 0 (ACE's start).
      most_trips: at most so many trips of each client; 1 is one pass over the clients. Default: any number.
      smallest_gap: the numbers of the steps that apply two trips of one client differ by at least so much. Default:
        0, no limit; any two steps differ by 1.
      seed: keys staleness and the choice of clients.

    Returns:
      The schedule, without trips that are discarded; with ``reports="due"`` a trip of every client is under way at
      the end, else none.

    Raises:
      SettingError: for a number outside its range, or a draw that is negative or not finite; where the limits leave
        too few clients for a step; for a buffer size or limits beside ``reports``.

    Examples:
      >>> schedule = jafl.drawn_staleness(num_clients=1, delay=jafl.delays.constant(3), server_steps=5)
      >>> schedule.staleness  # no more than the steps since the client's last update
      array([0, 0, 0, 0, 0], dtype=int32)
      >>> delay = jafl.delays.groups(((2, jafl.delays.constant(1)), (1, jafl.delays.constant(2.5))))
      >>> schedule = jafl.drawn_staleness(num_clients=3, reports="due", delay=delay, server_steps=4)
      >>> schedule.client, schedule.step  # client 2 takes 3 units of time
      (array([0, 1, 0, 1, 0, 1, 2, 0, 1], dtype=int32), array([0, 0, 1, 1, 2, 2, 2, 3, 3], dtype=int32))
    """
    check_delay_and_seed(delay, seed)
    if reports is not None:
        choose("reports", reports, {"due": None})
        beside = {"buffer_size": buffer_size, "most_trips": most_trips, "smallest_gap": smallest_gap or None}
        for name, value in beside.items():
            remedy = "Each client reports whenever its delay ends."
            require(value is None, name, value, f"left out where reports is {reports!r}", remedy)
        whole_number("num_clients", num_clients, 1)
        delay.check_clients(num_clients)
        due = _all_that_are_due(num_clients, delay, server_steps, client_trips, initial_round, seed)
        return on_a_clock_that_moves(due, delay, seed)
    buffer_size = 1 if buffer_size is None else buffer_size
    whole_number("buffer_size", buffer_size, 1)
    check_limits(most_trips, smallest_gap)
    check_clients(num_clients, "buffer_size", buffer_size)
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
    version = step - np.minimum(staleness, step - version_after_earlier_trip(client, step)).astype(np.int32)
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


def _all_that_are_due(
    num_clients: int,
    delay: Delay,
    server_steps: int | None,
    client_trips: int | None,
    initial_round: bool,
    seed: int,
) -> EventSchedule:
    """The schedule whose steps apply all reports of a unit of time, followed from report to report."""
    steps = steps_within(server_steps, client_trips, trips_per_step=1, setting="client_trips")
    most = math.inf if client_trips is None else client_trips
    everybody = np.arange(num_clients)
    typical = np.mean(np.maximum(np.ceil(draw_durations(delay, seed, everybody, 0 * everybody)), 1.0))
    expected = int(min(most, num_clients * (1 + steps / typical)))  # trips, to draw about as many delays
    durations = Table(functools.partial(draw_durations, delay, seed), num_clients, expected)

    def begin(client: int, trip: int, version: int, time: float) -> Trip:
        return time + max(1.0, float(math.ceil(durations(client, trip)))), client, trip, version, time

    if initial_round:
        under_way: list[Trip] = [(1.0, client, 0, 0, 0.0) for client in range(num_clients)]
    else:
        under_way = [begin(client, 0, 0, 0.0) for client in range(num_clients)]
    heapq.heapify(under_way)
    arrived = TripColumns()
    sizes: list[int] = []
    times: list[float] = []
    while len(sizes) < steps:
        time, together = under_way[0][0], []
        while under_way and under_way[0][0] == time:
            together.append(heapq.heappop(under_way))
        if len(arrived) + len(together) > most:
            allowed = f"at least {len(together)}, the trips of the first server step"
            require(sizes, "client_trips", client_trips, allowed)
            under_way += together
            break
        sizes.append(len(together))
        times.append(time)
        arrived.recent += together
        arrived.store_block()
        for _, client, trip, _, _ in together:
            heapq.heappush(under_way, begin(client, trip + 1, len(sizes), time))
    _, *at_the_end = zip(*sorted(under_way, key=lambda trip: trip[1]), strict=True)
    return EventSchedule(
        **arrived.first(len(arrived)),
        step=np.repeat(np.arange(len(sizes), dtype=np.int32), sizes),
        step_time=np.array(times, np.float64),
        **inflight_trips(*at_the_end),
        **discarded_trips(),
        num_clients=num_clients,
        concurrency=num_clients,
    )
