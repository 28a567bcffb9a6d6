"""Asynchronous buffered training: a fixed number of clients always train, K arrivals make a server step."""

import heapq
import numbers
from typing import Any

import numpy as np

from jafl.records import EventSchedule, require, whole_number
from jafl.schedule.delays import Delay
from jafl.schedule.draws import SELECTION, generator


def asynchronous(
    *,
    num_clients: int,
    concurrency: int,
    buffer_size: int = 1,
    delay: Delay,
    server_steps: int | None = None,
    client_trips: int | None = None,
    initial_round: bool = False,
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
      client_trips: after as many whole steps as so many client trips allow. Exactly one of the two.
      initial_round: every client trains at version 0 first, in server step 0, which happens when the last of them
        arrives; then all start again together, from version 1 (ACE's start, algorithm 1). Needs M = N.
      seed: keys durations and replacements.

    Raises:
      SettingError: for a number outside its range, or a delay with durations that are negative, not finite,
        or always 0 for some client (time would stand still).
    """
    check_clients(num_clients, "concurrency", concurrency)
    check_delay_and_seed(delay, seed)
    whole_number("buffer_size", buffer_size, 1)
    delay.check_clients(num_clients)
    first_step = buffer_size
    if initial_round:
        first_step = num_clients
        require(
            concurrency == num_clients,
            "concurrency",
            concurrency,
            f"the number of clients, {num_clients}, for an initial round",
            "All of them train in it.",
        )
        if client_trips is not None:
            require(
                client_trips >= num_clients,
                "client_trips",
                client_trips,
                f"at least the number of clients, {num_clients}, for an initial round",
            )
            client_trips += buffer_size - num_clients
    steps = steps_within(server_steps, client_trips, trips_per_step=buffer_size, setting="buffer_size")
    sizes = np.full(steps, buffer_size)
    sizes[0] = first_step
    trips = int(sizes.sum())

    duration_of = _Durations(delay, seed, num_clients, trips + concurrency)
    pick = _Picker(num_clients, seed)
    trips_made = [0] * num_clients
    version_of = [0] * num_clients  # of the trip under way; valid while the client is in flight
    start_of = [0.0] * num_clients
    in_flight: list[tuple[float, int]] = []  # a heap of (arrival time, client): ties in client order

    client_of = np.empty(trips, np.int32)
    trip_of = np.empty(trips, np.int32)
    download_version = np.empty(trips, np.int32)
    download_time = np.empty(trips)
    arrival_time = np.empty(trips)
    step_time = np.empty(steps)
    columns = (client_of, trip_of, download_version, download_time, arrival_time)
    out: list[Any] = [_view(column) for column in columns]
    out_client, out_trip, out_version, out_start, out_end = out

    def start(client: int, now: float, version: int) -> None:
        version_of[client] = version
        start_of[client] = now
        heapq.heappush(in_flight, (now + duration_of(client, trips_made[client]), client))
        trips_made[client] += 1

    for client in pick.replacements(concurrency):
        start(client, 0.0, 0)
    applied, version, fills_at = 0, 0, first_step
    arrived = 0
    while version < steps:
        now = in_flight[0][0]
        while version < steps and in_flight and in_flight[0][0] == now:
            _, client = heapq.heappop(in_flight)
            out_client[applied] = client
            out_trip[applied] = trips_made[client] - 1
            out_version[applied] = version_of[client]
            out_start[applied] = start_of[client]
            out_end[applied] = now
            applied += 1
            arrived += 1
            pick.idle.append(client)
            if applied == fills_at:
                step_time[version] = now
                version += 1
                fills_at += buffer_size
        if initial_round and version == 0:
            continue  # whoever has finished waits for the last one
        for client in pick.replacements(arrived):
            start(client, now, version)
        arrived = 0

    under_way = np.array(sorted(client for _, client in in_flight), np.int32)
    nothing = np.empty(0)
    return EventSchedule(
        client=client_of,
        trip=trip_of,
        download_version=download_version,
        step=np.repeat(np.arange(steps, dtype=np.int32), sizes),
        download_time=download_time,
        arrival_time=arrival_time,
        step_time=step_time,
        inflight_client=under_way,
        inflight_trip=np.array(trips_made, np.int32)[under_way] - 1,
        inflight_version=np.array(version_of, np.int32)[under_way],
        inflight_start_time=np.array(start_of)[under_way],
        discarded_client=nothing.astype(np.int32),
        discarded_trip=nothing.astype(np.int32),
        discarded_step=nothing.astype(np.int32),
        discarded_start_time=nothing,
        discarded_end_time=nothing,
        num_clients=num_clients,
        concurrency=concurrency,
    )


class _Picker:
    """The idle clients, and uniform draws among them, each in constant time."""

    def __init__(self, num_clients: int, seed: int):
        self.idle = list(range(num_clients))
        self._random = generator(seed, SELECTION)
        self._uniform: Any = ()
        self._used = 0

    def replacements(self, count: int) -> list[int]:
        """Removes ``count`` clients from the idle ones, uniformly, and returns them in client order."""
        picked = [self._one() for _ in range(count)]
        return sorted(picked) if count > 1 else picked

    def _one(self) -> int:
        if self._used == len(self._uniform):
            self._uniform = _view(self._random.random(4096))
            self._used = 0
        place = int(self._uniform[self._used] * len(self.idle))
        self._used += 1
        client = self.idle[place]
        self.idle[place] = self.idle[-1]
        self.idle.pop()
        return client


class _Durations:
    """Durations by (client, trip), drawn in blocks: one for all clients, then doubling ones per client."""

    def __init__(self, delay: Delay, seed: int, num_clients: int, trips: int):
        self._delay, self._seed = delay, seed
        self._block = 4 + 3 * trips // (2 * num_clients)
        table = np.empty((num_clients, self._block))
        rows = max(1, 2**20 // self._block)  # so that the temporary arrays stay small
        for first in range(0, num_clients, rows):
            clients = np.arange(first, min(first + rows, num_clients))
            table[clients] = self._draw(np.repeat(clients, self._block), self._block).reshape(-1, self._block)
        zeros = np.flatnonzero(~table.any(axis=1)).tolist()
        still = next((client for client in zeros if not self._draw(np.full(1024, client), 1024).any()), None)
        require(
            still is None,
            "delay",
            delay,
            f"above 0 for every client in asynchronous training (client {still} always takes 0)",
            "Time would stand still: give a positive duration, or use synchronous rounds.",
        )
        self._first = _view(table.reshape(-1))
        self._later: dict[int, tuple[int, Any]] = {}

    def __call__(self, client: int, trip: int) -> float:
        if trip < self._block:
            return self._first[client * self._block + trip]
        begin, values = self._later.get(client, (0, ()))
        if trip >= begin + len(values):
            begin, length = trip, min(max(2 * len(values), 64), 65536)
            values = _view(self._draw(np.full(length, client), length, begin))
            self._later[client] = (begin, values)
        return values[trip - begin]

    def _draw(self, clients: np.ndarray, per_client: int, first_trip: int = 0) -> np.ndarray:
        trips = first_trip + np.arange(len(clients)) % per_client
        return draw_durations(self._delay, self._seed, clients, trips)


def _view(array: np.ndarray) -> Any:
    """``array`` for reading and writing single entries, three times quicker than through NumPy's indexing."""
    return memoryview(array)  # type: ignore[arg-type]


def draw_durations(delay: Delay, seed: int, client: np.ndarray, trip: np.ndarray) -> np.ndarray:
    """[n] durations; raises SettingError naming the client and trip of one that is negative or not finite."""
    durations = np.asarray(delay.durations(seed, client, trip), np.float64)
    wrong = np.flatnonzero(~(np.isfinite(durations) & (durations >= 0)))
    if wrong.size:
        j = wrong[0]
        value = float(durations[j])
        require(False, f"the delay of client {client[j]}, trip {trip[j]}", value, "finite and at least 0")
    return durations


def check_clients(num_clients: int, setting: str, training: int) -> None:
    """Raises SettingError unless there are clients, and enough of them for ``training`` at one moment."""
    whole_number("num_clients", num_clients, 1)
    require(
        isinstance(training, numbers.Integral) and 1 <= training <= num_clients,
        setting,
        training,
        f"between 1 and the number of clients, {num_clients}",
        f"Lower {setting} or raise num_clients.",
    )


def check_delay_and_seed(delay: Delay, seed: int) -> None:
    """Raises SettingError unless ``delay`` is a law and ``seed`` a whole number."""
    require(
        isinstance(delay, Delay),
        "delay",
        delay,
        "a law of jafl.delays, jafl.delays.exponential(1.0) for example",
    )
    require(isinstance(seed, numbers.Integral), "seed", seed, "a whole number")


def steps_within(
    server_steps: int | None, client_trips: int | None, *, trips_per_step: int, setting: str
) -> int:
    """Server steps to run: as asked for, or as many whole ones as ``client_trips`` allow."""
    require(
        (server_steps is None) != (client_trips is None),
        "server_steps and client_trips",
        (server_steps, client_trips),
        "one number and one None",
        "Say when the run stops: after so many server steps, or after so many client trips.",
    )
    if server_steps is not None:
        return whole_number("server_steps", server_steps, 1)
    client_trips = whole_number("client_trips", client_trips, 1)
    require(
        client_trips >= trips_per_step,
        setting,
        trips_per_step,
        f"at most client_trips ({client_trips}), or it never fills",
        f"Lower {setting} or raise client_trips.",
    )
    return client_trips // trips_per_step
