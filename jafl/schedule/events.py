"""The event loop of asynchronous training: from one instant at which something happens to the next.

At an instant, in this order: trips end, in client order, and the server steps whenever it can; clients leave; a
buffer that has waited too long is applied; free places are taken, in client order, from the newest version. The last
step ends the run: after it no trip is thrown away, but free places are taken, by those who have not left by then.
"""

import heapq
import math
from collections.abc import Callable

import numpy as np

from jafl.base.errors import require
from jafl.records import EventSchedule
from jafl.schedule.columns import TripColumns, discarded_trips, inflight_trips
from jafl.schedule.counting import with_measured_concurrency
from jafl.schedule.event_state import CLIENT, EventState
from jafl.schedule.protocol import Protocol, World
from jafl.schedule.starvation import Standstill

MOST_EMPTY_STEPS = 1_000_000  # one after the other, before a run by the clock is refused
MOST_STARTS = 10**8  # of open arrivals that find nobody idle: seconds


def events_within(world: World, protocol: Protocol, client_trips: int) -> EventSchedule:
    """The schedule of as many whole server steps as ``client_trips`` trips allow, those thrown away included.

    Steps differ in the trips that they take, so the schedule is made twice: first to count the steps.
    """
    schedule = Events(world, protocol, client_trips).run(math.inf, client_trips)
    cost = [schedule.trips_started_by(step) for step in range(1, schedule.num_steps + 1)]
    if not cost:  # refused as starving, or as too few trips
        cost = [Events(world, protocol, client_trips).run(1).trips_started_by(1)]
    require(cost[0] <= client_trips, "client_trips", client_trips, f"at least {cost[0]}, for the first step")
    within = int(np.searchsorted(cost, client_trips, side="right"))
    return Events(world, protocol, client_trips).run(within)


class Events(EventState):
    """The event loop; ``run`` makes the schedule. Written for speed."""

    def run(self, steps: float, client_trips: float = math.inf) -> EventSchedule:
        """The schedule of ``steps`` server steps, or until ``client_trips`` trips are applied or thrown away."""
        self.last_version, self.most_trips = steps, client_trips
        self.plain = client_trips == math.inf and not self._has_special_events()
        phases = self._phases()
        if self.leave_at <= self.now:  # at time 0: nobody starts who has left by then
            self._leave(self.leavers)
            self.leave_at = math.inf
        self._take_places()
        while self.version < self.last_version and self._advance():
            for phase in phases:
                phase()
        return self._schedule()

    def _phases(self) -> list[Callable[[], None]]:
        """The phases of one instant, in their order, without those in which nothing can happen."""
        phases = [self._end_trips, self._free_places, self._take_places]
        if self.plain:
            return [*phases, self._replace_one_by_one, self._fill_buffer]
        phases.insert(1, self._check_progress)
        if self.world.dropout or self.flush_after < math.inf or self.step_every or self.server_waits:
            phases.insert(1, self._leave_and_flush)
        return phases

    def _advance(self) -> bool:
        """Goes to the next instant at which something happens; False if there is none and enough trips were made."""
        moment = self.in_flight[0][0] if self.in_flight else math.inf
        if not self.plain:
            if self.predicate or self.step_every:
                self._check_hope()
                if self.version == self.last_version:
                    return False
            if self.start_times and not self.picker.idle:
                self._leave_out_starts(min(moment, self.leave_at, self.flush_at, self._next_waking()))
            wakes = self._next_waking() if self.free_places else math.inf
            noticed = self.unnoticed[0][0] if self.unnoticed else math.inf
            moment = min(moment, self.leave_at, self.flush_at, wakes, noticed, self.next_start)
        if moment == math.inf:
            self._stop(Standstill(self))
            return False
        self.now, self.stepped = moment, False
        return True

    def _stop(self, standstill: Standstill) -> None:
        """Ends a run in which no step follows any more; refuses one that has not made the trips asked for."""
        if len(self.arrived) + len(self.discarded) < self.most_trips:
            raise standstill.refusal()
        self.last_version = self.version

    # The phases of one instant, in their order.

    def _end_trips(self) -> None:
        """Ends the trips of this instant, in client order; the server steps whenever it can."""
        now, in_flight, plain, pop = self.now, self.in_flight, self.plain, heapq.heappop
        add_arrived, released, limits = self.arrived.recent.append, self._released(), self.limits
        predicate = self.predicate
        while in_flight and in_flight[0][0] == now and self.version < self.last_version:
            trip = pop(in_flight)
            if plain or self._brings_update(trip):
                add_arrived(trip)
                released.append(trip[1])
                if limits:
                    limits.take(trip[1], self.version)
                if predicate:
                    predicate.take(trip[1])
                self.in_buffer += 1
            if self.in_buffer >= self.needed and not self._step_is_blocked():
                self._step()
                released = self._released()

    def _released(self) -> list[int]:
        """The clients that those whose trips end now are added to."""
        return self.picker.idle if self.restart == "at_once" and not self.limits else self.held

    def _leave_and_flush(self) -> None:
        """Clients leave, and a buffer that has waited too long is applied; again after every such step."""
        version = -1
        while version < self.version:
            version = self.version
            if self.now >= self.leave_at or version >= self.leave_at_version:
                self._leave(self.leavers)
                self.leave_at = self.leave_at_version = math.inf
            if self.ended:
                ended = self.leavers.intersection(self.ended)
                self._leave({client for client in ended if self.trips_made[client] >= self.leave_after_trips})
            full = self.in_buffer >= self.needed and not self._step_is_blocked()
            if version < self.last_version and (full or self._is_overdue()):
                self._step()
        self.ended.clear()

    def _is_overdue(self) -> bool:
        """Whether a buffer has waited long enough, or it is time for a step, with or without trips."""
        return self.now >= self.flush_at and bool(self.in_buffer or self.step_every)

    def _check_progress(self) -> None:
        """Refuses a run in which no step follows any more; ends one that has made the trips that were asked for."""
        if len(self.arrived) + len(self.discarded) > self.most_trips:
            self.last_version = self.version  # whatever step follows takes more trips than were asked for
        if self.ended_since_step > self.patience and self.version < self.last_version:
            allowed = f"smaller: {self.ended_since_step:,} trips ended before server step {self.version:,}"
            require(not self.step_every, "step_every", self.step_every, allowed)
            everybody = range(self.world.num_clients)
            raise Standstill(
                self, busy=True, unheard=self.predicate.waits_for(everybody) if self.predicate else ()
            ).refusal()
        if self.questions > self.patience_with_questions:
            raise Standstill(self, questions=self.questions).refusal()
        if self.empty_steps >= MOST_EMPTY_STEPS:
            allowed = f"larger: no trip arrived in {self.empty_steps:,} server steps, one after the other"
            require(False, "step_every", self.step_every, allowed)

    def _free_places(self) -> None:
        if self.limits and self.restart == "at_once":
            self._release_held()
        if self.start_times:
            self._count_starts()
            return
        self._notice_losses(self.now)
        taken = len(self.in_flight) + len(self.unnoticed)
        if self.restart == "after_step":
            if self.stepped or self.protocol.replace_lost != "after_step":
                self.free_places = self.protocol.concurrency - taken - self.in_buffer
            return
        if self._in_initial_round():
            taken += self.in_buffer
        elif self.restart == "after_round" and not self._round_goes_on():
            self._release_held()
        self.free_places = self.protocol.concurrency - taken

    def _round_goes_on(self) -> bool:
        """Whether there are clients that have not contributed to this round, and will be able to."""
        rest = self.limits is not None and self.limits.resting > 0
        return bool(self.in_flight or self.picker.idle or self.asleep or rest)

    def _take_places(self) -> None:
        """Starts as many clients as there are free places and clients who may start, in client order."""
        if self.world.availability:
            clients = self._draw_available()
        elif self.free_places:
            clients = self.picker.draw(self.free_places)
        else:
            return
        for client in clients:
            heapq.heappush(self.in_flight, self._new_trip(client, self.now, self.version))
        self.free_places = 0 if self.start_times else self.free_places - len(clients)

    # Many instants at once, in less time, where nothing can happen but that trips arrive and are replaced.

    def _replace_one_by_one(self) -> None:
        """Ends trips and replaces their clients until two trips end together, or for a block of trips."""
        if self.restart != "at_once" or self.protocol.cancel_at_step or len(self.in_flight) < 3:
            return
        if self.limits:
            self._replace_within_limits()
            return
        in_flight, swap, new_trip = self.in_flight, self.picker.swap, self._new_trip
        add_arrived = self.arrived.recent.append
        add_time, add_size = self.step_time.append, self.step_sizes.append
        version, in_buffer, needed = self.version, self.in_buffer, int(self.needed)
        for _ in range(min(TripColumns.BLOCK, self._trips_to_come())):
            trip = in_flight[0]
            now = trip[0]
            if in_flight[1][0] == now or in_flight[2][0] == now:
                break
            add_arrived(trip)
            in_buffer += 1
            if in_buffer == needed:
                add_time(now)
                add_size(needed)
                version += 1
                in_buffer = 0
            heapq.heapreplace(in_flight, new_trip(swap(trip[1]), now, version))
        self.version, self.in_buffer = version, in_buffer
        self.arrived.store()

    def _replace_within_limits(self) -> None:
        """The same with limits, while somebody is idle at each arrival."""
        limits, idle, draw_one, in_flight = (
            self.limits,
            self.picker.idle,
            self.picker.draw_one,
            self.in_flight,
        )
        assert limits
        for _ in range(self._trips_to_come()):
            trip = in_flight[0]
            now, client = trip[0], trip[1]
            if not idle or in_flight[1][0] == now or in_flight[2][0] == now:
                break
            self.arrived.recent.append(trip)
            limits.take(client, self.version)
            self.in_buffer += 1
            if self.in_buffer == self.needed:
                self.now = now
                self._step()
            idle += limits.may_start((client,), self.version)
            heapq.heapreplace(in_flight, self._new_trip(draw_one(), now, self.version))

    def _trips_to_come(self) -> int:
        return int(self.last_version - self.version) * int(self.needed) - self.in_buffer

    def _fill_buffer(self) -> None:
        """Ends trips while no client may start, up to the last one before the server steps."""
        if self.restart != "after_step" or self.version == self.last_version:
            return
        in_flight, add_arrived, pop = self.in_flight, self.arrived.recent.append, heapq.heappop
        for _ in range(min(int(self.needed) - self.in_buffer - 1, len(in_flight))):
            trip = pop(in_flight)
            add_arrived(trip)
            self.held.append(trip[1])
            if self.limits:
                self.limits.take(trip[1], self.version)
            self.in_buffer += 1
            self.now = trip[0]

    def _draw_available(self) -> list[int]:
        """Draws available clients for the free places; idle ones that are not available sleep until they are."""
        availability, idle, asleep = self.world.availability, self.picker.idle, self.asleep
        assert availability is not None
        while asleep and asleep[0][0] <= self.now:
            idle.append(heapq.heappop(asleep)[1])
        picked: list[int] = []
        while len(picked) < self.free_places and idle:
            (client,) = self.picker.draw(1)
            wakes = availability.next_available(client, self.now)
            if wakes > self.now:
                self.questions += 1
                heapq.heappush(asleep, (wakes, client))
            else:
                self.questions = 0
                picked.append(client)
        return sorted(picked)

    def _leave_out_starts(self, before: float) -> None:
        """Open arrivals: passes over the starts ``before`` a moment, until which nobody will be idle."""
        assert self.start_times and self.protocol.start_rate
        if before == math.inf or before <= self.next_start:
            return
        rate = self.protocol.start_rate
        self.starts_in_vain += (before - self.next_start) * rate
        most = MOST_STARTS / self.starts_in_vain * rate
        allowed = f"at most about {most:.1g}: {self.starts_in_vain:.0e} starts by time {before:.3g} find nobody idle"
        require(self.starts_in_vain <= MOST_STARTS, "start_rate", rate, allowed)
        self.next_start = next(start for start in self.start_times if start >= before)

    def _count_starts(self) -> None:
        """Open arrivals: as many places as starts that are due; stops a run in which nobody can ever start."""
        assert self.start_times
        while self.next_start <= self.now:
            self.free_places, self.next_start = self.free_places + 1, next(self.start_times)
        nobody = not (self.in_flight or self.picker.idle) and self._next_waking() == self.flush_at == math.inf
        if nobody and self.version < self.last_version:
            self._stop(Standstill(self))

    def _next_waking(self) -> float:
        return self.asleep[0][0] if self.asleep else math.inf

    def _has_special_events(self) -> bool:
        """Whether anything can happen but that trips arrive and are replaced."""
        world, protocol = self.world, self.protocol
        clients = (world.dropout, world.failure_rate or None, world.availability)
        server = (protocol.start_times, protocol.flush_after, protocol.staleness_limit)
        steps = (protocol.step_every, self.predicate, self.local_steps)
        return any(each is not None for each in (*clients, *server, *steps))

    def _check_hope(self) -> None:
        """Stops a run whose steps wait for a client that never comes, or would be empty from now on."""
        if self.predicate and (self.gone or self.asleep or self.limits):
            lost = self.gone.union(client for wakes, client in self.asleep if wakes == math.inf)
            if self.limits:
                most = self.limits.most_trips
                lost.update(client for client, taken in enumerate(self.limits.taken) if taken >= most)
            unheard = self.predicate.waits_for(lost)
            if unheard:
                self._stop(Standstill(self, unheard=unheard))
        # Where the server has just stepped, who could start has done so.
        if self.step_every and self.stepped and not (self.in_flight or self.in_buffer or self.unnoticed):
            rest = self.limits is not None and self.limits.resting > 0
            if not rest and self._next_waking() == math.inf:
                self._stop(Standstill(self))

    def _schedule(self) -> EventSchedule:
        under_way = sorted(self.in_flight, key=CLIENT)
        columns = zip(
            *((client, number, version, start) for _, client, number, version, start in under_way),
            strict=True,
        )
        applied = self.arrived.first(sum(self.step_sizes))
        if self.local_steps:
            applied["local_steps"] = self.local_steps.of(applied["client"], applied["trip"])
        schedule = EventSchedule(
            # A run that looks for its last step may have gone beyond it.
            **applied,
            step=np.repeat(np.arange(len(self.step_sizes), dtype=np.int32), self.step_sizes),
            step_time=np.frombuffer(self.step_time, np.float64),
            **inflight_trips(*columns),
            **discarded_trips(*zip(*self.discarded, strict=True)),
            num_clients=self.world.num_clients,
            concurrency=self.protocol.concurrency,
        )
        return with_measured_concurrency(schedule) if self.protocol.start_times else schedule
