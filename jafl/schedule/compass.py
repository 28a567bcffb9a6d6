"""FedCompass: local steps such that clients of unequal speeds arrive in groups (Li et al., ICLR 2024)."""

import dataclasses
import heapq
import math
import os
from typing import NamedTuple

import numpy as np

from jafl.base.described import described
from jafl.base.errors import real_number, require, whole_number
from jafl.records import EventSchedule
from jafl.schedule.arguments import as_delay
from jafl.schedule.checks import check_delay_and_seed, steps_within
from jafl.schedule.columns import discarded_trips, inflight_trips
from jafl.schedule.delay import LONGEST, Delay
from jafl.schedule.durations import Durations, PartsTable, on_a_clock_that_moves
from jafl.schedule.local_steps import DelayOfSteps


@described
def compass(
    *,
    num_clients: int,
    delay: Delay | str | os.PathLike[str],
    server_steps: int | None = None,
    client_trips: int | None = None,
    most_local_steps: int = 100,
    least_local_steps: int = 20,
    speed_momentum: float = 0.9,
    latest_factor: float = 1.5,
    seed: int = 0,
) -> EventSchedule:
    """Computes the event schedule of FedCompass: clients get numbers of local steps with which they arrive in groups.

    This is the scheduler of Li et al., "FedCompass: Efficient Cross-Silo Federated Learning on Heterogeneous Client
    Devices Using a Computing Power-Aware Scheduler", ICLR 2024, algorithms 1 to 3, as in their release (APPFL). All
    clients start at time 0 with ``most_local_steps``. The server estimates each client's time per local step from its
    trips: v = time / steps of the first; then v <- (1 - speed_momentum) v + speed_momentum * time / steps.

    - A client that arrives for the first time makes a server step alone. Then it is *assigned*.
    - A client in a group waits. When the whole group has arrived, or at the group's latest time T_max, one server
      step applies the updates that wait, and all late updates with them. These clients are assigned, the fastest
      first. Nobody can join the group any more. An arrival at exactly T_max is in time.
    - A client that arrives after T_max is late: its update waits for the next step of any group. The client is
      assigned at once.
    - *Assign*: a client could arrive at a group's expected time T_e by making floor((T_e - now) / v) steps. Among the
      groups where this number is in the allowed range, it joins the one with the most steps; of several, the newest.
      If there is none, it makes a new group. For every group before its T_max,
      floor((T_max + most_local_steps * v_fastest - now) / v) steps would meet the next arrival of the group's fastest
      client. The new group gets the largest of these numbers that is at most ``most_local_steps``, raised to
      ``least_local_steps`` if it is smaller; if there is no such number, ``most_local_steps``. Its T_e is
      now + steps * v, its T_max is now + latest_factor * steps * v.

    A client that is assigned downloads the newest model at that moment, even if others arrive at the same instant.
    Arrivals at one instant are handled in client order. In the release a late update is lost if the same step has
    another update of the same client, because both have one place in memory. Here both count (a reading).

    Use it with ``jafl.rules.fedcompass``, which has the paper's staleness weight and division by the number of
    clients, and with ``client_work(local_steps="scheduled")``.

    Args:
      num_clients: N, all clients; each of them always trains or waits.
      delay: the law of trip durations, best one with ``jafl.delays.per_step``. The server sees only the durations of
        trips that have arrived.
      server_steps: stop after so many server steps, or
      client_trips: after as many whole steps as so many client trips allow. Exactly one of the two.
      most_local_steps: Q_max of a trip, at least 1.
      least_local_steps: Q_min of a trip, from 1 to ``most_local_steps``.
      speed_momentum: the weight of the last trip in the estimate of a client's speed, above 0 and at most 1.
      latest_factor: lambda: a group waits for at most so many times its expected duration, at least 1; 1.5 in the
        release. At 1 the rounding of an estimated speed suffices to make a client late.
      seed: determines the durations.

    Returns:
      The schedule, with ``local_steps``. Server steps apply unequal numbers of trips. Trips are in order of arrival
      within a step, but not from step to step, since groups overlap. Trips that wait at the end count as under way.

    Raises:
      SettingError: for a number outside its range; for durations that are negative, not finite or 0.

    Examples:
      >>> delay = jafl.delays.per_step(jafl.delays.from_function(lambda client, trip: 1.0 + client))
      >>> schedule = jafl.compass(
      ...     num_clients=2, delay=delay, server_steps=4, most_local_steps=8, least_local_steps=2
      ... )
      >>> schedule.local_steps.tolist(), schedule.step.tolist()
      ([8, 8, 8, 8, 4], [0, 1, 2, 3, 3])
    """
    law = as_delay(delay)
    whole_number("num_clients", num_clients, 1)
    check_delay_and_seed(law, seed)
    law.check_clients(num_clients)
    whole_number("most_local_steps", most_local_steps, 1)
    whole_number("least_local_steps", least_local_steps, 1)
    allowed = f"at most most_local_steps, {most_local_steps}"
    require(least_local_steps <= most_local_steps, "least_local_steps", least_local_steps, allowed)
    real_number("speed_momentum", speed_momentum, lambda value: 0 < value <= 1, "above 0 and at most 1")
    allowed = f"a finite number, at least 1, at most {LONGEST:g}"
    real_number("latest_factor", latest_factor, lambda value: 1 <= value <= LONGEST, allowed)
    # A step applies one trip at least, so that no more steps can be made.
    steps = steps_within(server_steps, client_trips, trips_per_step=1, setting="a step of one trip")
    Durations(DelayOfSteps(law, least_local_steps), seed, num_clients, 1)  # refuses one that is always 0
    parts = PartsTable(law, seed, num_clients, steps)

    def schedule(steps: int, most_trips: float = math.inf) -> EventSchedule:
        server = _Server(
            num_clients, most_local_steps, least_local_steps, speed_momentum, latest_factor, parts
        )
        return server.run(steps, most_trips)

    if client_trips is None:
        return on_a_clock_that_moves(schedule(steps), law, seed)
    # Twice: how many trips a step takes is known when it is made.
    ends = schedule(steps, client_trips).step_offsets[1:]
    made = schedule(int(np.searchsorted(ends, client_trips, side="right")))
    return on_a_clock_that_moves(made, law, seed)


@dataclasses.dataclass
class _Group:
    """Clients that are to arrive together: ``expected`` and ``latest`` are times, ``clients`` are under way."""

    expected: float
    latest: float
    clients: set[int]
    arrived: list["_Trip"] = dataclasses.field(default_factory=list)


class _Trip(NamedTuple):
    """A trip under way, or one that waits; they sort by time of arrival, then by client."""

    arrival: float
    client: int
    number: int
    version: int
    download: float
    local_steps: int


class _Server:
    """The server of FedCompass; see ``compass``."""

    def __init__(
        self,
        num_clients: int,
        most: int,
        least: int,
        momentum: float,
        latest_factor: float,
        parts: PartsTable,
    ):
        self._most, self._least, self._momentum, self._latest_factor = most, least, momentum, latest_factor
        self._num_clients, self._parts = num_clients, parts
        self._step_time: list[float] = []
        self._applied: list[_Trip] = []
        self._sizes: list[int] = []
        self._seconds = [0.0] * num_clients  # a local step's, estimated
        self._group_of: list[_Group | None] = [None] * num_clients
        self._groups: list[_Group] = []  # in the order in which they were made, until all have arrived
        self._late: list[_Trip] = []
        self._trips_made = [0] * num_clients
        self._under_way: list[_Trip] = []  # a heap

    def run(self, steps: int, most_trips: float) -> EventSchedule:
        """The schedule of ``steps`` server steps, or until more than ``most_trips`` trips are applied."""
        for client in range(self._num_clients):
            self._start(client, 0.0, self._most)
        while len(self._step_time) < steps and len(self._applied) <= most_trips:
            now = min(self._under_way[0].arrival, min((g.latest for g in self._waiting()), default=math.inf))
            while len(self._step_time) < steps and self._under_way and self._under_way[0].arrival == now:
                self._arrive(heapq.heappop(self._under_way), now)
            for group in self._waiting():
                if group.latest <= now and len(self._step_time) < steps:
                    self._step_of(group, now)
        return self._schedule()

    def _waiting(self) -> list[_Group]:
        """The groups of which some have arrived, and no step has been made."""
        return [group for group in self._groups if group.arrived]

    def _arrive(self, trip: _Trip, now: float) -> None:
        client, group = trip.client, self._group_of[trip.client]
        seconds = (now - trip.download) / trip.local_steps
        if not seconds > 0:
            duration = float(self._parts(client, trip.number).of_steps(trip.local_steps))
            allowed = "above 0" if now < 1 else f"above 0, and enough to change a clock that shows {now:.6g}"
            name = f"the delay of client {client}, trip {trip.number}"
            require(False, name, duration, allowed, "A client's speed must be a number.")
        if trip.number:
            seconds = (1 - self._momentum) * self._seconds[client] + self._momentum * seconds
        self._seconds[client] = seconds
        if group is None:
            self._step([trip], now)
            self._assign(client, now)
            return
        group.clients.remove(client)
        if now <= group.latest:
            group.arrived.append(trip)
            if not group.clients:
                self._step_of(group, now)
            return
        if not group.clients:
            self._groups.remove(group)
        self._late.append(trip)
        self._assign(client, now)

    def _step_of(self, group: _Group, now: float) -> None:
        """A server step of those of a group who have arrived, and of all late updates; they are assigned anew."""
        arrived = [trip.client for trip in group.arrived]
        self._step(self._late + group.arrived, now)
        self._late = []
        # Nobody can join it or count on it any more; who is still under way will be late.
        group.expected = group.latest = -math.inf
        group.arrived = []
        if not group.clients:
            self._groups.remove(group)
        for client in sorted(arrived, key=self._seconds.__getitem__):  # stable: in the order of arrival
            self._assign(client, now)

    def _step(self, trips: list[_Trip], now: float) -> None:
        self._applied += sorted(trips)
        self._sizes.append(len(trips))
        self._step_time.append(now)

    def _assign(self, client: int, now: float) -> None:
        """Puts a client into a group, and starts its next trip."""
        seconds, joined, steps = self._seconds[client], None, -1
        for group in self._groups:
            fit = _floor((group.expected - now) / seconds)
            if max(self._least, steps) <= fit <= self._most:
                joined, steps = group, fit
        if joined is None:
            steps = self._steps_of_new_group(seconds, now)
            takes = steps * seconds
            joined = _Group(now + takes, now + takes * self._latest_factor, set())
            self._groups.append(joined)
        joined.clients.add(client)
        self._group_of[client] = joined
        self._start(client, now, steps)

    def _steps_of_new_group(self, seconds: float, now: float) -> int:
        """The steps with which a client would meet the next arrival of the fastest of some group."""
        steps = -1
        for group in self._groups:
            if now < group.latest:
                members = [*group.clients, *(trip.client for trip in group.arrived)]
                fastest = min(self._seconds[member] for member in members)
                fit = _floor((group.latest + fastest * self._most - now) / seconds)
                if fit <= self._most:
                    steps = max(steps, fit)
        return self._most if steps < 0 else max(steps, self._least)

    def _start(self, client: int, now: float, steps: int) -> None:
        number = self._trips_made[client]
        self._trips_made[client] += 1
        arrival = float(now + self._parts(client, number).of_steps(steps))
        trip = _Trip(arrival, client, number, len(self._step_time), now, steps)
        heapq.heappush(self._under_way, trip)

    def _schedule(self) -> EventSchedule:
        waiting = [*self._late, *(trip for group in self._groups for trip in group.arrived)]
        rest = sorted([*self._under_way, *waiting], key=lambda trip: (trip.client, trip.number))
        arrival, client, number, version, download, local_steps = map(
            np.array, zip(*self._applied, strict=True)
        )
        return EventSchedule(
            client=client.astype(np.int32),
            trip=number.astype(np.int32),
            download_version=version.astype(np.int32),
            step=np.repeat(np.arange(len(self._sizes), dtype=np.int32), self._sizes),
            download_time=download.astype(np.float64),
            arrival_time=arrival.astype(np.float64),
            step_time=np.array(self._step_time, np.float64),
            **inflight_trips(*zip(*(trip[1:5] for trip in rest), strict=True)),
            **discarded_trips(),
            num_clients=self._num_clients,
            concurrency=self._num_clients,
            local_steps=local_steps.astype(np.int32),
        )


def _floor(number: float) -> int:
    """The floor; of minus infinity, for a group that is over, a number that no trip has."""
    return math.floor(number) if number > -math.inf else -(2**31)
