"""What clients and server are doing during the event loop, and the single events that change it."""

import dataclasses
import heapq
import math
import operator
from array import array
from collections import Counter, deque
from collections.abc import Set
from typing import Any

import numpy as np

from jafl.schedule.columns import Trip, TripColumns
from jafl.schedule.draws import FAILURE, keyed_uniform
from jafl.schedule.dropout import Dropout
from jafl.schedule.durations import Durations, Table
from jafl.schedule.limits import make_limits
from jafl.schedule.local_steps import DynamicLocalSteps, LocalStepsByTrip
from jafl.schedule.picker import Picker, WeightedPicker
from jafl.schedule.protocol import WAITS, Protocol, World
from jafl.schedule.starvation import CANCELLED, FAILED, LEFT, OUTDATED, TOO_STALE, UNNOTICED, WENT_AWAY
from jafl.schedule.step_predicates import HarmonicMean, RoundsOfSingleSteps

# So many trips, and some for each client, may end without a step, before a run is refused.
MOST_TRIPS, MOST_TRIPS_OF_A_LONG_WAIT = 10_000, 1_000_000
# So many questions, and some for each client, may find nobody there to start.
MOST_QUESTIONS = 300_000
RELEASED_BY_STEP = ("not_twice_in_a_buffer", "after_step")
CLIENT = operator.itemgetter(1)  # of a trip


class EventState:
    """Who trains, who may start, and what the server has received. Written for speed."""

    def __init__(self, world: World, protocol: Protocol, trips: int):
        if world.availability:
            available = world.availability.prepare(world.num_clients, world.seed)
            world = dataclasses.replace(world, availability=available)
        self.world, self.protocol = world, protocol
        clients = world.num_clients
        self.interrupts = protocol.too_stale == "interrupt"
        self.local_steps: LocalStepsByTrip | None = None
        drawn: tuple[Any, ...] = world.delay, world.seed, clients, trips + protocol.concurrency
        if protocol.dynamic_local_steps:
            self.local_steps = DynamicLocalSteps(*drawn, least=protocol.dynamic_local_steps)
        elif self.interrupts:
            self.local_steps = LocalStepsByTrip(*drawn)
        self.trip_durations: Any = self.local_steps or Durations(*drawn)
        self.fails = None
        if world.failure_rate:
            self.fails = Table(self._draw_failures, clients, trips + protocol.concurrency)
        self.leavers = world.dropout.leavers(clients, world.seed) if world.dropout else frozenset()
        self.leave_at, self.leave_at_version, self.leave_after_trips = _moments(world.dropout)
        self.flush_after = _or_never(protocol.flush_after)
        self.staleness_limit = _or_never(protocol.staleness_limit)
        self.server_waits = protocol.too_stale in WAITS
        self.stops_stale = protocol.too_stale == "cancel"
        self.start_times = protocol.start_times() if protocol.start_times else None
        self.next_start = next(self.start_times) if self.start_times else math.inf
        self.starts_in_vain = 0.0  # about so many found nobody idle

        # Clients: each is idle, held, asleep, kept back by the limits, or under way, until it leaves for ever.
        shares = protocol.selection_shares
        self.picker = (
            Picker(clients, world.seed) if shares is None else WeightedPicker(clients, world.seed, shares)
        )
        self.held: list[int] = []  # arrived, and not free to start again yet
        self.asleep: list[tuple[float, int]] = []  # a heap of (when available again, client)
        self.gone: set[int] = set()  # left for ever
        self.limits = make_limits(clients, protocol.most_trips, protocol.smallest_gap)
        # An array, not a list: its numbers lie side by side, which counts where there are many clients.
        self.trips_made = array("i", bytes(4 * clients))

        # Trips.
        self.in_flight: list[Trip] = []  # a heap: the next to end comes first
        self.losses: dict[int, str] = {}  # {client: why its trip under way will bring nothing}
        self.arrived = TripColumns()
        self.discarded: list[tuple[int, int, int, float, float]] = []  # the rows of ``discarded_trips``
        # (when the server will notice, client) of losses that it does not know of yet: until then it takes the
        # client for busy, and the place is not free.
        self.unnoticed: deque[tuple[float, int]] = deque()
        self.thrown_away: Counter[str] = Counter()  # since the last step, by the reason
        # Kept only where the server waits for trips that would become too stale, interrupts or stops them.
        self.follows_oldest = protocol.too_stale != "drop"
        self.started: deque[Trip] = deque()
        self.under_way: set[int] = set()  # clients

        # The server.
        self.now, self.version, self.in_buffer = 0.0, 0, 0
        self.step_time, self.step_sizes = array("d"), array("i")
        self.needed: float = clients if protocol.initial_round else protocol.buffer_size
        self.predicate: HarmonicMean | RoundsOfSingleSteps | None = None
        if protocol.step_when == "harmonic_mean":
            self.predicate = HarmonicMean(clients, protocol.buffer_size)
        elif protocol.step_when == "each_client_once_a_round":
            self.predicate = RoundsOfSingleSteps(clients)
        if self.predicate:
            self.needed = self.predicate.fewest
        self.restart = "after_round" if protocol.initial_round else protocol.restart
        self.free_places = protocol.concurrency
        self.step_every = protocol.step_every
        self.empty_steps = 0  # one after the other, the last ones
        self.flush_at = _or_never(self.step_every)
        if self.step_every:
            self.needed = math.inf
        self.stepped = False  # at this instant
        self.ended: list[int] = []  # clients whose trip has ended at this instant
        self.ended_since_step = 0
        # A step that needs every client, or the clock, waits for many trips of fast ones.
        most = MOST_TRIPS_OF_A_LONG_WAIT if self.predicate or self.step_every else MOST_TRIPS
        self.patience = most + 100 * (clients + protocol.buffer_size)
        self.questions = 0  # one after the other, to clients that might start and were not there
        self.patience_with_questions = MOST_QUESTIONS + 100 * clients
        # Set by ``run``; plain: nothing can happen but that trips arrive and are replaced.
        self.last_version = self.most_trips = math.inf
        self.plain = False

    # Single events: a trip starts, a trip ends, the server steps, trips are thrown away, clients leave.

    def _new_trip(self, client: int, now: float, version: int) -> Trip:
        trips_made, table = self.trips_made, self.trip_durations
        number = trips_made[client]
        trips_made[client] = number + 1
        block = table.block
        end = now + (table.first[client * block + number] if number < block else table(client, number))
        if self.plain:
            return end, client, number, version, now
        if self.world.availability or self.fails:
            end = self._end_or_loss(client, number, now, end)
        trip = (end, client, number, version, now)
        if self.follows_oldest:
            self.started.append(trip)
            self.under_way.add(client)
        return trip

    def _end_or_loss(self, client: int, number: int, now: float, end: float) -> float:
        """When a trip that starts now ends or is lost; notes whether it is lost."""
        availability = self.world.availability
        until = availability.present_until(client, now) if availability else math.inf
        if until < end:
            self.losses[client] = WENT_AWAY
        elif self.fails is not None and self.fails(client, number) > 0:
            self.losses[client] = FAILED
        else:
            self.losses.pop(client, None)
        return min(until, end)

    def _brings_update(self, trip: Trip) -> bool:
        """Notes the end of a trip; False if the trip is thrown away, because it has failed or is too stale."""
        _, client, _, version, _ = trip
        self.ended_since_step += 1
        if self.leave_after_trips < math.inf:
            self.ended.append(client)
        if self.follows_oldest:
            self.under_way.discard(client)
        loss = self.losses.get(client)
        if self.local_steps and not loss:  # one that is too stale tells the client's speed, too
            self.local_steps.end(client)
        too_stale = self.version - version > self.staleness_limit and not self.server_waits
        if loss or too_stale:
            self._discard(trip, self.version, loss or TOO_STALE)
            return False
        if not (self.in_buffer or self.step_every or self._in_initial_round()):
            self.flush_at = self.now + self.flush_after
        return True

    def _step(self) -> None:
        self.step_time.append(self.now)
        self.step_sizes.append(self.in_buffer)
        self.empty_steps = 0 if self.in_buffer else self.empty_steps + 1
        self.version += 1
        self.in_buffer, self.flush_at, self.ended_since_step, self.stepped = 0, math.inf, 0, True
        if self.step_every:
            self.flush_at = (self.version + 1) * self.step_every
        if self.predicate:
            self.predicate.step()
        self.thrown_away.clear()
        self.arrived.store_block()
        if self.limits:
            self.picker.idle += self.limits.rested(self.version)
        if self.restart in RELEASED_BY_STEP:
            self._release_held()
        if self.protocol.cancel_at_step:
            self._cancel_trips(self.version, CANCELLED)
            self._notice_losses(math.inf)
        elif self.stops_stale and self._oldest_under_way() < self.version - self.staleness_limit:
            self._cancel_trips(self.version - self.staleness_limit, OUTDATED)
        elif self.interrupts and self._oldest_under_way() <= self.version - self.staleness_limit:
            self.in_flight[:] = map(self._interrupted, self.in_flight)
            heapq.heapify(self.in_flight)
        if self.protocol.initial_round and self.version == 1:
            self.needed, self.restart = self.protocol.buffer_size, self.protocol.restart
            self._release_held()

    def _step_is_blocked(self) -> bool:
        """Whether the server must wait with a full buffer.

        Either a step now would make a trip under way too stale, or ``step_when`` asks for more than a full one.
        """
        if self.predicate:
            return not self.predicate.is_reached()
        return self.server_waits and self.version + 1 - self._oldest_under_way() > self.staleness_limit

    def _oldest_under_way(self) -> float:
        """The oldest version from which a trip under way trains; infinity if there is no trip."""
        while self.started:
            _, client, number, version, _ = self.started[0]
            if client in self.under_way and self.trips_made[client] == number + 1:
                return version
            self.started.popleft()
        return math.inf

    def _in_initial_round(self) -> bool:
        """Whether the server waits for every client's first update."""
        return self.protocol.initial_round and not self.version

    def _discard(self, trip: Trip, step: int, reason: str) -> None:
        """Notes that a trip is thrown away now, during the server step ``step``; its client is idle."""
        _, client, number, _, start = trip
        self.discarded.append((client, number, step, start, self.now))
        self.thrown_away[reason] += 1
        if self.protocol.trip_time_out and reason in UNNOTICED:
            self.unnoticed.append((self.now + self.protocol.trip_time_out, client))
        elif reason != LEFT:
            self.picker.idle.append(client)

    def _notice_losses(self, until: float) -> None:
        """The server notices losses whose time is over by ``until``; their clients are idle."""
        while self.unnoticed and self.unnoticed[0][0] <= until:
            _, client = self.unnoticed.popleft()
            if client not in self.gone:
                self.picker.idle.append(client)

    def _cancel_trips(self, oldest: float, reason: str) -> None:
        """Throws away trips under way from versions before ``oldest``, by the step that the server has just taken."""
        for trip in sorted((trip for trip in self.in_flight if trip[3] < oldest), key=CLIENT):
            self._discard(trip, self.version - 1, reason)
            self.under_way.discard(trip[1])
            if self.leave_after_trips < math.inf:
                self.ended.append(trip[1])
        self.in_flight[:] = [trip for trip in self.in_flight if trip[3] >= oldest]
        heapq.heapify(self.in_flight)

    def _interrupted(self, trip: Trip) -> Trip:
        """The trip; where another step would make it too stale, with the end of its current local step as its end."""
        _, client, number, version, start = trip
        if self.local_steps is None or version > self.version - self.staleness_limit:
            return trip
        end = start + self.local_steps.interrupt(client, number, start, self.now)
        return self._end_or_loss(client, number, start, end), client, number, version, start

    def _release_held(self) -> None:
        """Clients that were held back may start again, as far as the limits allow."""
        self.picker.idle += self.limits.may_start(self.held, self.version) if self.limits else self.held
        self.held.clear()

    def _leave(self, leavers: Set[int]) -> None:
        """``leavers`` leave for ever; their trips under way are thrown away, unless the run is over."""
        if not leavers:
            return
        self.gone |= leavers
        if self.limits:
            self.limits.leave(leavers)
        self.asleep[:] = [entry for entry in self.asleep if entry[1] not in leavers]
        heapq.heapify(self.asleep)
        for clients in (self.held, self.picker.idle):
            clients[:] = [client for client in clients if client not in leavers]
        if self.version == self.last_version:
            return
        for trip in sorted((trip for trip in self.in_flight if trip[1] in leavers), key=CLIENT):
            self._discard(trip, self.version, LEFT)
            self.under_way.discard(trip[1])
        self.in_flight[:] = [trip for trip in self.in_flight if trip[1] not in leavers]
        heapq.heapify(self.in_flight)

    def _draw_failures(self, client: np.ndarray, trip: np.ndarray) -> np.ndarray:
        """[n] float64: 1 for the trips (client [n], trip [n]) that fail, 0 for the others."""
        draws = keyed_uniform(self.world.seed, FAILURE, client, trip)
        return (draws < self.world.failure_rate).astype(np.float64)


def _or_never(moment: float | None) -> float:
    return math.inf if moment is None else moment


def _moments(dropout: Dropout | None) -> tuple[float, float, float]:
    """When a dropout strikes: at a time, after a server step, or after so many of a client's own trips."""
    if dropout is None:
        return math.inf, math.inf, math.inf
    time, step, trips = (
        math.inf if moment is None else moment
        for moment in (dropout.time, dropout.server_step, dropout.trips)
    )
    return time, step, trips
