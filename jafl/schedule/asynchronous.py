"""Asynchronous buffered training: a number of clients always train, K arrivals make a server step."""

import heapq
import math
from typing import Any

import numpy as np

from jafl.records import EventSchedule, SettingError, choose, require, whole_number
from jafl.schedule.checks import check_clients, check_delay_and_seed, steps_within
from jafl.schedule.delays import Delay
from jafl.schedule.draws import SELECTION, generator
from jafl.schedule.dropout import Dropout
from jafl.schedule.durations import Durations, fast_view

RESTARTS = ("at_once", "not_twice_in_a_buffer", "after_step", "after_round")
RELEASED_BY_STEP = RESTARTS[1:3]


def asynchronous(
    *,
    num_clients: int,
    concurrency: int,
    buffer_size: int = 1,
    delay: Delay,
    server_steps: int | None = None,
    client_trips: int | None = None,
    initial_round: bool = False,
    restart: str = "at_once",
    dropout: Dropout | None = None,
    seed: int = 0,
) -> EventSchedule:
    """Computes the event schedule of buffered asynchronous training (FedBuff, algorithm 1).

    ``concurrency`` clients start at time 0 from version 0. A finished client is replaced at the instant of its
    arrival by one drawn uniformly among the idle clients (itself included; with concurrency = num_clients it is
    always the same client). If the arrival fills the buffer, the server steps first. At one instant all arrivals
    are handled first, in client order, stepping whenever the buffer fills; then all replacements start, from the
    newest version. The run ends with its last step; ``concurrency`` trips are then under way: replacements, and
    those that arrive at that very instant but after the last step.

    Args:
      num_clients, concurrency, buffer_size: N, M and K, with 1 <= M <= N and K >= 1.
      delay: the law of trip durations, see ``jafl.schedule.delays``.
      server_steps: stop after so many server steps, or
      client_trips: after as many whole steps as so many client trips allow, those thrown away included. Exactly one
        of the two.
      initial_round: every client trains at version 0 first, in server step 0, which happens when the last of them
        arrives; then all start again together, from version 1 (ACE's start, algorithm 1). Needs M = N.
      restart: when a finished client's place is taken.
        "at_once": as above.
        "not_twice_in_a_buffer": at once, but not by a client whose update waits in the buffer (the assumption in
        FedBuff's and FedStaleWeight's proofs); a place for which nobody is left stays free until the step.
        "after_step": by nobody until the server has stepped; then as many start together as trips were applied
        (K-asynchronous training: WKAFL).
        "after_round": by a client that has not trained in this round; who has waits until all clients have (the
        gated rounds of GSGM, WKAFL section 6.1.2). Steps do not end with rounds unless K divides N.
      dropout: clients that leave for ever, see ``jafl.schedule.dropout``; what they are at is thrown away.
      seed: keys durations, replacements and who leaves.

    Raises:
      SettingError: for a number outside its range; for a delay with durations that are negative, not finite,
        or always 0 for some client (time would stand still); where nobody is left to train before the last step.
    """
    check_clients(num_clients, "concurrency", concurrency)
    check_delay_and_seed(delay, seed)
    whole_number("buffer_size", buffer_size, 1)
    delay.check_clients(num_clients)
    choose("restart", restart, dict.fromkeys(RESTARTS))
    if initial_round:
        _check_initial_round(num_clients, concurrency, client_trips)
    first_step = num_clients if initial_round else buffer_size
    allowed = client_trips if client_trips is None else client_trips - first_step + buffer_size
    steps = steps_within(server_steps, allowed, trips_per_step=buffer_size, setting="buffer_size")

    def events(steps: int) -> EventSchedule:
        sizes = np.full(steps, buffer_size)
        sizes[0] = first_step
        clients = _Clients(num_clients, concurrency, delay, dropout, seed, trips=int(sizes.sum()))
        return clients.run(sizes, restart, initial_round)

    schedule = events(steps)
    if client_trips is None or schedule.trips_started_by(steps) <= client_trips:
        return schedule
    # Trips thrown away count too: as many steps as leave room for them.
    cost = [schedule.trips_started_by(step) for step in range(1, steps + 1)]
    require(cost[0] <= client_trips, "client_trips", client_trips, f"at least {cost[0]}, for the first step")
    return events(int(np.searchsorted(cost, client_trips, side="right")))


def _check_initial_round(num_clients: int, concurrency: int, client_trips: int | None) -> None:
    require(
        concurrency == num_clients,
        "concurrency",
        concurrency,
        f"the number of clients, {num_clients}, for an initial round",
        "All of them train in it.",
    )
    require(
        client_trips is None or client_trips >= num_clients,
        "client_trips",
        client_trips,
        f"at least the number of clients, {num_clients}, for an initial round",
    )


class _Clients:
    """Who is under way, who may start, and who waits; ``run`` goes from one instant to the next."""

    def __init__(
        self, num_clients: int, concurrency: int, delay: Delay, dropout: Dropout | None, seed: int, trips: int
    ):
        self.num_clients, self.concurrency = num_clients, concurrency
        self.duration_of = Durations(delay, seed, num_clients, trips + concurrency)
        self.picker = _Picker(num_clients, seed)
        self.dropout, self.leavers = dropout, dropout.leavers(num_clients, seed) if dropout else []
        self.trips_made = [0] * num_clients
        self.version_of = [0] * num_clients  # of the trip under way; valid while the client is in flight
        self.start_of = [0.0] * num_clients
        self.in_flight: list[tuple[float, int]] = []  # a heap of (arrival time, client): ties in client order
        self.held: list[int] = []  # arrived, and not free to start again yet
        self.discarded: list[tuple[int, int, int, float, float]] = []

    def run(self, sizes: np.ndarray, restart: str, initial_round: bool) -> EventSchedule:
        """The schedule of server steps that apply ``sizes`` [T] trips. The inner loop is written for speed."""
        steps, trips = len(sizes), int(sizes.sum())
        out = [np.empty(trips, kind) for kind in (np.int32, np.int32, np.int32, np.float64, np.float64)]
        out_client, out_trip, out_version, out_start, out_end = map(fast_view, out)
        step_time = np.empty(steps)
        fills_at = np.cumsum(sizes).tolist()
        in_flight, idle, held = self.in_flight, self.picker.idle, self.held
        trips_made, version_of, start_of = self.trips_made, self.version_of, self.start_of
        leave_at, leave_before_step, quota = self._moments(steps)
        protocol = "after_step" if initial_round else restart
        applied = version = 0
        now = 0.0
        self._start(self.concurrency, now, version)
        while version < steps:
            if not in_flight and leave_at == math.inf:
                self._starve(now, version, steps)
            now = min(in_flight[0][0], leave_at) if in_flight else leave_at
            before = version
            back = idle if protocol == "at_once" else held
            while version < steps and in_flight and in_flight[0][0] == now:
                _, client = heapq.heappop(in_flight)
                out_client[applied] = client
                out_trip[applied] = trips_made[client] - 1
                out_version[applied] = version_of[client]
                out_start[applied] = start_of[client]
                out_end[applied] = now
                applied += 1
                if trips_made[client] < quota or client not in self.leavers:
                    back.append(client)
                if applied == fills_at[version]:
                    step_time[version] = now
                    version += 1
                    if protocol in RELEASED_BY_STEP:
                        self._release()
            if (now >= leave_at or version >= leave_before_step) and version < steps:
                self._leave(now, version)
                leave_at = leave_before_step = math.inf
            free = self.concurrency - len(in_flight)
            if protocol == "after_step":
                in_buffer = applied - (fills_at[version - 1] if version else 0)
                free = free - in_buffer if version > before else 0
            elif protocol == "after_round" and not in_flight and not idle:
                self._release()
            if free:
                self._start(min(free, len(idle)), now, version)
            if version:
                protocol = restart  # the initial round is over

        under_way = np.array(sorted(client for _, client in in_flight), np.int32)
        lost = [np.array(column) for column in zip(*self.discarded, strict=True)] or [np.empty(0)] * 5
        return EventSchedule(
            client=out[0],
            trip=out[1],
            download_version=out[2],
            step=np.repeat(np.arange(steps, dtype=np.int32), sizes),
            download_time=out[3],
            arrival_time=out[4],
            step_time=step_time,
            inflight_client=under_way,
            inflight_trip=np.array(trips_made, np.int32)[under_way] - 1,
            inflight_version=np.array(version_of, np.int32)[under_way],
            inflight_start_time=np.array(start_of)[under_way],
            discarded_client=lost[0].astype(np.int32),
            discarded_trip=lost[1].astype(np.int32),
            discarded_step=lost[2].astype(np.int32),
            discarded_start_time=lost[3].astype(np.float64),
            discarded_end_time=lost[4].astype(np.float64),
            num_clients=self.num_clients,
            concurrency=self.concurrency,
        )

    def _start(self, count: int, now: float, version: int) -> None:
        """Starts ``count`` idle clients from ``version``, in client order."""
        for client in self.picker.draw(count):
            self.version_of[client] = version
            self.start_of[client] = now
            trip = self.trips_made[client]
            heapq.heappush(self.in_flight, (now + self.duration_of(client, trip), client))
            self.trips_made[client] = trip + 1

    def _release(self) -> None:
        self.picker.idle.extend(self.held)
        self.held.clear()

    def _moments(self, steps: int) -> tuple[float, float, float]:
        """When the dropout strikes: at a time, before a server step, after so many of a client's trips."""
        if self.dropout is None:
            return math.inf, math.inf, math.inf
        moments = (self.dropout.time, self.dropout.server_step, self.dropout.trips)
        time, step, trips = (math.inf if moment is None else moment for moment in moments)
        return time, step, trips

    def _leave(self, now: float, version: int) -> None:
        """The leavers leave; the trips that they are at are thrown away."""
        leavers = self.leavers
        for _, client in sorted(self.in_flight):
            if client in leavers:
                trip, start = self.trips_made[client] - 1, self.start_of[client]
                self.discarded.append((client, trip, version, start, now))
        self.in_flight[:] = [trip for trip in self.in_flight if trip[1] not in leavers]
        heapq.heapify(self.in_flight)
        for clients in (self.held, self.picker.idle):
            clients[:] = [client for client in clients if client not in leavers]

    def _starve(self, now: float, version: int, steps: int) -> None:
        raise SettingError(
            f"The schedule starves at time {now:g}, after {version} of {steps} server steps: nobody is training and "
            f"nobody can start. {len(self.leavers)} of {self.num_clients} clients have left (dropout). Let fewer "
            "leave, or later, or lower buffer_size or the number of steps."
        )


class _Picker:
    """The idle clients, and uniform draws among them, each in constant time."""

    def __init__(self, num_clients: int, seed: int):
        self.idle = list(range(num_clients))
        self._random = generator(seed, SELECTION)
        self._uniform: Any = ()
        self._used = 0

    def draw(self, count: int) -> list[int]:
        """Removes ``count`` clients from the idle ones, uniformly, and returns them in client order."""
        picked = [self._one() for _ in range(count)]
        return sorted(picked) if count > 1 else picked

    def _one(self) -> int:
        if self._used == len(self._uniform):
            self._uniform = fast_view(self._random.random(4096))
            self._used = 0
        place = int(self._uniform[self._used] * len(self.idle))
        self._used += 1
        client = self.idle[place]
        self.idle[place] = self.idle[-1]
        self.idle.pop()
        return client
