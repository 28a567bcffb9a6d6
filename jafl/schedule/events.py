"""The event loop of asynchronous training: from one instant at which something happens to the next.

At an instant, in this order: trips end, in client order, and the server steps whenever it can; clients leave; a
buffer that has waited too long is applied; free places are taken, in client order, from the newest version.
"""

import dataclasses
import heapq
import itertools
import math
from array import array
from collections import deque
from collections.abc import Callable, Collection, Iterator
from typing import NoReturn

import numpy as np

from jafl.errors import SettingError, require
from jafl.records import EventSchedule
from jafl.schedule.availability import Availability
from jafl.schedule.counting import with_measured_concurrency
from jafl.schedule.delays import Delay
from jafl.schedule.draws import FAILURE, SELECTION, generator, keyed_uniform
from jafl.schedule.dropout import Dropout
from jafl.schedule.durations import Durations, Table

RESTARTS = ("at_once", "not_twice_in_a_buffer", "after_step", "after_round")
RELEASED_BY_STEP = RESTARTS[1:3]


@dataclasses.dataclass(frozen=True)
class World:
    """What happens to clients, whatever the protocol: all of it keyed by seed, client and trip."""

    num_clients: int
    delay: Delay
    dropout: Dropout | None
    failure_rate: float
    availability: Availability | None
    seed: int


@dataclasses.dataclass(frozen=True)
class Protocol:
    """Who starts when, and when the server steps: the arguments of ``jafl.asynchronous`` of the same names."""

    concurrency: int
    buffer_size: int
    restart: str
    initial_round: bool = False
    cancel_at_step: bool = False
    staleness_limit: int | None = None
    too_stale: str = "drop"
    flush_after: float | None = None
    start_times: Callable[[], Iterator[float]] | None = None


def events_within(world: World, protocol: Protocol, client_trips: int) -> EventSchedule:
    """The schedule of as many server steps as so many trips pay for, those thrown away included.

    Steps differ in cost, so it is made twice: once to see how many they are.
    """
    schedule = Events(world, protocol, client_trips).run(math.inf, client_trips)
    cost = [schedule.trips_started_by(step) for step in range(1, schedule.num_steps + 1)]
    if not cost:  # refused as starving, or too dear
        cost = [Events(world, protocol, client_trips).run(1).trips_started_by(1)]
    require(cost[0] <= client_trips, "client_trips", client_trips, f"at least {cost[0]}, for the first step")
    within = int(np.searchsorted(cost, client_trips, side="right"))
    return Events(world, protocol, client_trips).run(within)


class Events:
    """Who is under way, who may start, and who waits; ``run`` makes the schedule."""

    def __init__(self, world: World, protocol: Protocol, trips: int):
        if world.availability:
            available = world.availability.prepare(world.num_clients, world.seed)
            world = dataclasses.replace(world, availability=available)
        self.world, self.protocol = world, protocol
        clients = world.num_clients
        self.duration_of = Durations(world.delay, world.seed, clients, trips + protocol.concurrency)
        self.fails = None
        if world.failure_rate:
            self.fails = Table(self._draw_failures, clients, trips + protocol.concurrency)
        self.picker = Picker(clients, world.seed)
        self.leavers = world.dropout.leavers(clients, world.seed) if world.dropout else frozenset()
        # Arrays, not lists: their numbers lie side by side, which counts where there are many clients.
        self.trips_made = array("i", bytes(4 * clients))
        self.version_of = array("i", bytes(4 * clients))  # of the trip under way; valid while it lasts
        self.start_of = array("d", bytes(8 * clients))
        self.lost = [False] * clients  # the trip under way will fail
        self.in_flight: list[tuple[float, int]] = []  # a heap of (end time, client): ties in client order
        self.held: list[int] = []  # arrived, and not free to start again yet
        self.asleep: list[tuple[float, int]] = []  # a heap of (when available again, client)
        self.waits = protocol.too_stale == "wait"
        # Kept where the server waits for stale trips: all that were started, as (version, client, trip).
        self.started: deque[tuple[int, int, int]] = deque()
        self.under_way: set[int] = set()
        self.discarded: list[tuple[int, int, int, float, float]] = []

    def run(self, steps: float, client_trips: float = math.inf) -> EventSchedule:
        """Until so many steps are taken, or so many trips applied or thrown away. Written for speed."""
        protocol = self.protocol
        out: tuple[array, ...] = (array("i"), array("i"), array("i"), array("d"), array("d"))
        add_client, add_trip, add_version, add_start, add_end = (column.append for column in out)
        step_time, sizes = array("d"), array("i")
        in_flight, idle, held = self.in_flight, self.picker.idle, self.held
        trips_made, version_of, start_of = self.trips_made, self.version_of, self.start_of
        concurrency, duration_of = protocol.concurrency, self.duration_of
        draw, swap = self.picker.draw, self.picker.swap
        first, block = duration_of.first, duration_of.block
        special = self._special() or client_trips < math.inf
        replaced = not (special or self.waits or protocol.cancel_at_step)
        leave_at, leave_before_step, quota = self._moments()
        patience = 10_000 + 100 * (self.world.num_clients + protocol.buffer_size)
        flush_after = math.inf if protocol.flush_after is None else protocol.flush_after
        starts = protocol.start_times() if protocol.start_times else iter(())
        next_start = next(starts, math.inf)
        restart = "after_round" if protocol.initial_round else protocol.restart
        back = idle if restart == "at_once" else held
        needed = self.world.num_clients if protocol.initial_round else protocol.buffer_size
        in_buffer = version = since_step = 0
        flush_at = wake_at = math.inf
        ended: list[int] = []  # whose trip ends at this instant, kept for those who leave after so many trips
        now = 0.0
        places = 0 if protocol.start_times is not None else protocol.concurrency

        def step() -> None:
            nonlocal version, in_buffer, flush_at, needed, restart, back, since_step
            step_time.append(now)
            sizes.append(in_buffer)
            version += 1
            in_buffer, flush_at, since_step = 0, math.inf, 0
            if restart in RELEASED_BY_STEP:
                idle.extend(held)
                held.clear()
            if protocol.cancel_at_step:
                ended.extend(self._cancel(now, version - 1))
            if version == 1 and protocol.initial_round:
                needed, restart = protocol.buffer_size, protocol.restart
                idle.extend(held)
                held.clear()
                back = idle if restart == "at_once" else held

        def leave() -> None:
            nonlocal leave_at, leave_before_step
            if now >= leave_at or version >= leave_before_step:
                self._leave(self.leavers, now, version)
                leave_at = leave_before_step = math.inf
            done = {client for client in ended if trips_made[client] >= quota and client in self.leavers}
            if done:
                self._leave(done, now, version)

        if places:
            self._start(places, now, version)
            places -= len(in_flight)
            wake_at = self._wakes() if places else math.inf
        while version < steps:
            last, now = now, in_flight[0][0] if in_flight else math.inf
            if special:
                now = min(now, leave_at, flush_at, wake_at, next_start)
            if now == math.inf:
                if len(out[0]) + len(self.discarded) >= client_trips:
                    break
                self._starve(last, version, steps)
            if replaced and back is idle and not places:
                # One trip ends and another one takes its place: what follows this block does, in half the time.
                while len(in_flight) > 2 and version < steps:
                    now, client = in_flight[0]
                    if in_flight[1][0] == now or in_flight[2][0] == now:
                        break
                    add_client(client)
                    add_trip(trips_made[client] - 1)
                    add_version(version_of[client])
                    add_start(start_of[client])
                    add_end(now)
                    in_buffer += 1
                    if in_buffer >= needed:
                        step()
                    client = swap(client)
                    trip = trips_made[client]
                    trips_made[client] = trip + 1
                    version_of[client], start_of[client] = version, now
                    duration = first[client * block + trip] if trip < block else duration_of(client, trip)
                    heapq.heapreplace(in_flight, (now + duration, client))
                if version >= steps:
                    break
                now = in_flight[0][0]
            before = version
            while in_flight and in_flight[0][0] == now and version < steps:
                _, client = heapq.heappop(in_flight)
                if special:
                    self.under_way.discard(client)
                    ended.append(client)
                    since_step += 1
                    if self._throws_away(client, now, version):
                        if in_buffer >= needed and not self._blocked(version):
                            step()
                        continue
                    if in_buffer == 0:
                        flush_at = now + flush_after
                add_client(client)
                add_trip(trips_made[client] - 1)
                add_version(version_of[client])
                add_start(start_of[client])
                add_end(now)
                in_buffer += 1
                back.append(client)
                if in_buffer >= needed and not (special and self._blocked(version)):
                    step()
            if special:
                while version < steps:
                    in_time = version
                    leave()
                    waited = in_buffer >= needed and not self._blocked(version)
                    if waited or (in_buffer and now >= flush_at):
                        step()
                    if version == in_time:
                        break  # else those leave whom this step lets go
                ended.clear()
                if since_step > patience and version < steps:
                    self._starve(now, version, steps, f"no step follows from the last {since_step:,} trips")
                if version > before and len(out[0]) + len(self.discarded) > client_trips:
                    steps = version

            if restart == "after_step":
                if version > before:
                    places = concurrency - len(in_flight) - in_buffer
            elif protocol.start_times is None:
                over = restart == "after_round" and not in_flight and not idle and not self.asleep
                if over and (version or not protocol.initial_round):
                    idle.extend(held)
                    held.clear()
                places = concurrency - len(in_flight)
            else:
                places = 0
                while next_start <= now:
                    places, next_start = places + 1, next(starts, math.inf)
                nobody = not in_flight and not idle and self._wakes() == flush_at == math.inf
                if nobody and version < steps:
                    self._starve(now, version, steps)
            if special or self.waits:
                places -= self._start(places, now, version)
                wake_at = self._wakes() if places and not protocol.start_times else math.inf
                continue
            if not places:
                continue
            for client in draw(places):  # what ``_start`` does, where nothing else can happen
                trip = trips_made[client]
                trips_made[client] = trip + 1
                version_of[client], start_of[client] = version, now
                duration = first[client * block + trip] if trip < block else duration_of(client, trip)
                heapq.heappush(in_flight, (now + duration, client))
            places = 0
        return self._schedule(out, step_time, sizes)

    def _start(self, count: int, now: float, version: int) -> int:
        """Starts up to ``count`` idle and available clients, in client order; returns how many."""
        available = self.world.availability is not None
        clients = self._available(count, now) if available else self.picker.draw(count)
        for client in clients:
            trip = self.trips_made[client]
            end = now + self.duration_of(client, trip)
            if available or self.fails:
                end = self._outcome(client, trip, now, end)
            self.version_of[client] = version
            self.start_of[client] = now
            self.trips_made[client] = trip + 1
            heapq.heappush(self.in_flight, (end, client))
            if self.waits:
                self.started.append((version, client, trip))
                self.under_way.add(client)
        return len(clients)

    def _outcome(self, client: int, trip: int, now: float, end: float) -> float:
        """When a trip that starts now ends; notes whether it is lost."""
        availability = self.world.availability
        until = availability.present_until(client, now) if availability else math.inf
        self.lost[client] = until < end or (self.fails is not None and self.fails(client, trip) > 0)
        return min(until, end)

    def _available(self, count: int, now: float) -> list[int]:
        """Up to ``count`` clients drawn among those idle and available; whoever is not goes to sleep until it is."""
        availability, idle = self.world.availability, self.picker.idle
        assert availability is not None
        while self.asleep and self.asleep[0][0] <= now:
            idle.append(heapq.heappop(self.asleep)[1])
        picked: list[int] = []
        while len(picked) < count and idle:
            (client,) = self.picker.draw(1)
            wakes = availability.next_available(client, now)
            if wakes > now:
                heapq.heappush(self.asleep, (wakes, client))
            else:
                picked.append(client)
        return sorted(picked)

    def _wakes(self) -> float:
        return self.asleep[0][0] if self.asleep else math.inf

    def _special(self) -> bool:
        """Whether anything can happen but that trips arrive and are replaced."""
        world, protocol = self.world, self.protocol
        clients = (world.dropout, world.failure_rate or None, world.availability)
        server = (protocol.start_times, protocol.flush_after, protocol.staleness_limit)
        return any(each is not None for each in (*clients, *server))

    def _throws_away(self, client: int, now: float, version: int) -> bool:
        """Whether a trip that ends now has failed, or is too stale; if so it is noted, and the client idle."""
        limit = math.inf if self.protocol.staleness_limit is None else self.protocol.staleness_limit
        too_stale = self.protocol.too_stale == "drop" and version - self.version_of[client] > limit
        if not (self.lost[client] or too_stale):
            return False
        self._discard(client, now, version)
        self.picker.idle.append(client)
        return True

    def _blocked(self, version: int) -> bool:
        """Whether some trip under way would be too stale if the server stepped now."""
        started = self.started
        while started:
            oldest, client, trip = started[0]
            if client in self.under_way and self.trips_made[client] == trip + 1:
                return version + 1 - oldest > (self.protocol.staleness_limit or 0)
            started.popleft()
        return False

    def _discard(self, client: int, now: float, step: int) -> None:
        self.discarded.append((client, self.trips_made[client] - 1, step, self.start_of[client], now))

    def _cancel(self, now: float, step: int) -> list[int]:
        """Throws away every trip under way; returns whose they were."""
        clients = sorted(client for _, client in self.in_flight)
        for client in clients:
            self._discard(client, now, step)
        self.in_flight.clear()
        self.picker.idle.extend(clients)
        return clients

    def _moments(self) -> tuple[float, float, float]:
        """When the dropout strikes: at a time, after a server step, after so many of a client's own trips."""
        dropout = self.world.dropout
        moments = (dropout.time, dropout.server_step, dropout.trips) if dropout else (None,) * 3
        time, step, trips = (math.inf if moment is None else moment for moment in moments)
        return time, step, trips

    def _leave(self, leavers: Collection[int], now: float, version: int) -> None:
        """``leavers`` leave; the trips that they are at are thrown away."""
        for client in sorted(client for _, client in self.in_flight if client in leavers):
            self._discard(client, now, version)
            self.under_way.discard(client)
        for heap in (self.in_flight, self.asleep):
            heap[:] = [entry for entry in heap if entry[1] not in leavers]
            heapq.heapify(heap)
        for clients in (self.held, self.picker.idle):
            clients[:] = [client for client in clients if client not in leavers]

    def _starve(self, now: float, version: int, steps: float, reason: str = "") -> NoReturn:
        if not reason:
            reason = f"nobody is training and nobody can start, for {self._why_nobody(version)}"
        wanted = f" of {steps:,.0f}" if steps < math.inf else ""
        raise SettingError(
            f"The schedule starves at time {now:g}, after {version}{wanted} server steps: {reason}. Lower "
            "buffer_size or the number of steps, let more clients be there, or lose fewer trips."
        )

    def _why_nobody(self, version: int) -> str:
        world, protocol = self.world, self.protocol
        if self.leavers and protocol.initial_round and not version:
            return "a client has left (dropout) that the initial_round waits for"
        if self.leavers:
            return f"{len(self.leavers)} of {world.num_clients} clients leave (dropout)"
        if world.availability:
            return "none of the idle clients is available ever again"
        return f"all wait for a buffer of {protocol.buffer_size} trips, and none is left to fill it"

    def _draw_failures(self, client: np.ndarray, trip: np.ndarray) -> np.ndarray:
        draws = keyed_uniform(self.world.seed, FAILURE, client, trip)
        return (draws < self.world.failure_rate).astype(np.float64)

    def _schedule(self, out: tuple[array, ...], step_time: array, sizes: array) -> EventSchedule:
        applied = sum(sizes)  # a run that looks for its last step may have gone beyond it
        client, trip, version, start, end = (
            np.frombuffer(column, column.typecode)[:applied] for column in out
        )
        clients = np.array(sorted(client for _, client in self.in_flight), np.int32)
        lost = [np.array(column) for column in zip(*self.discarded, strict=True)] or [np.empty(0)] * 5
        schedule = EventSchedule(
            client=client,
            trip=trip,
            download_version=version,
            step=np.repeat(np.arange(len(sizes), dtype=np.int32), sizes),
            download_time=start,
            arrival_time=end,
            step_time=np.frombuffer(step_time, np.float64),
            inflight_client=clients,
            inflight_trip=np.array(self.trips_made, np.int32)[clients] - 1,
            inflight_version=np.array(self.version_of, np.int32)[clients],
            inflight_start_time=np.array(self.start_of)[clients],
            discarded_client=lost[0].astype(np.int32),
            discarded_trip=lost[1].astype(np.int32),
            discarded_step=lost[2].astype(np.int32),
            discarded_start_time=lost[3].astype(np.float64),
            discarded_end_time=lost[4].astype(np.float64),
            num_clients=self.world.num_clients,
            concurrency=self.protocol.concurrency,
        )
        return with_measured_concurrency(schedule) if self.protocol.start_times else schedule


class Picker:
    """The idle clients, and uniform draws among them, each in constant time."""

    def __init__(self, num_clients: int, seed: int):
        self.idle = list(range(num_clients))
        random = generator(seed, SELECTION)
        blocks = iter(lambda: random.random(4096).tolist(), None)
        self._uniform: Callable[[], float] = itertools.chain.from_iterable(blocks).__next__

    def draw(self, count: int) -> list[int]:
        """Removes ``count`` clients, or all there are, from the idle ones; uniform; in client order."""
        idle, picked = self.idle, []
        for _ in range(min(count, len(idle))):
            place = int(self._uniform() * len(idle))
            picked.append(idle[place])
            idle[place] = idle[-1]
            idle.pop()
        return sorted(picked) if count > 1 else picked

    def swap(self, client: int) -> int:
        """Takes ``client`` back and draws one: what ``idle.append(client)`` and ``draw(1)`` do, but quicker."""
        idle = self.idle
        place = int(self._uniform() * (len(idle) + 1))
        if place == len(idle):
            return client
        picked = idle[place]
        idle[place] = client
        return picked
