"""The protocols of single papers, each as a loop of its own from what its paper says; nothing of jafl is read.

Each takes ``duration(client, trip)`` and returns its server steps: [(time, [(client, trip, downloaded version)])].
All N clients train all the time. At one instant clients are handled in their order, and then start.
"""

import math
from collections.abc import Callable
from fractions import Fraction

Steps = list[tuple[float, list[tuple[int, int, int]]]]


class Clients:
    """Until when each client trains, and from which version."""

    def __init__(self, num_clients: int, duration: Callable[[int, int], float]):
        self.duration, self.trips = duration, [0] * num_clients
        self.end, self.version = [math.inf] * num_clients, [0] * num_clients
        self.begin = [0.0] * num_clients
        for client in range(num_clients):
            self.start(client, 0.0, 0)

    def start(self, client: int, now: float, version: int) -> None:
        self.end[client] = now + self.duration(client, self.trips[client])
        self.begin[client], self.version[client] = now, version
        self.trips[client] += 1

    def arrivals(self) -> tuple[float, list[int]]:
        now = min(self.end)
        return now, [client for client, end in enumerate(self.end) if end == now]

    def bring(self, client: int) -> tuple[int, int, int]:
        self.end[client] = math.inf
        return client, self.trips[client] - 1, self.version[client]


def ringmaster(num_clients: int, duration, threshold: int, steps: int, *, stops: bool) -> Steps:
    """Maranjyan, Tyurin and Richtárik 2025: algorithm 5 with ``stops``, else algorithm 4, both with R = threshold."""
    clients, made = Clients(num_clients, duration), []
    while True:
        now, arrived = clients.arrivals()
        idle = []
        for client in arrived:
            if math.isinf(clients.end[client]):  # it was stopped by a step of this instant
                continue
            trip = clients.bring(client)
            idle.append(client)
            if len(made) - trip[2] < threshold:  # delta < R
                made.append((now, [trip]))
                if len(made) == steps:
                    return made
                for other in range(num_clients if stops else 0):
                    if clients.end[other] < math.inf and len(made) - clients.version[other] >= threshold:
                        clients.end[other] = math.inf
                        idle.append(other)
        for client in sorted(idle):
            clients.start(client, now, len(made))


def rennala_or_malenia(
    num_clients: int, duration, wanted: int, steps: int, *, stops: bool, harmonic: bool
) -> Steps:
    """Tyurin and Richtárik 2023: all compute gradients at the newest model until they are enough, then it steps.

    Enough are ``wanted`` (S) in Rennala SGD; with ``harmonic``, Malenia SGD, (1/N sum_i 1/B_i)^-1 >= S / N. Gradients
    at older models are stopped with the step, or ignored when they arrive.
    """
    clients, made, batch = Clients(num_clients, duration), [], []

    def enough() -> bool:
        counts = [sum(client == i for client, _, _ in batch) for i in range(num_clients)]
        if not harmonic:
            return len(batch) >= wanted
        return min(counts) > 0 and 1 / (sum(Fraction(1, b) for b in counts) / num_clients) >= Fraction(
            wanted, num_clients
        )

    while True:
        now, arrived = clients.arrivals()
        idle = []
        for client in arrived:
            if math.isinf(clients.end[client]):
                continue
            trip = clients.bring(client)
            idle.append(client)
            batch += [trip] * (trip[2] == len(made))
            if enough():
                made.append((now, batch))
                batch = []
                if len(made) == steps:
                    return made
                if stops:
                    idle, clients.end = list(range(num_clients)), [math.inf] * num_clients
        for client in sorted(idle):
            clients.start(client, now, len(made))


def fedfix(num_clients: int, duration, every: float, steps: int) -> Steps:
    """Fraboni et al. 2023: a step at each multiple of ``every``, with those that are done; these start again then."""
    clients, made, done = Clients(num_clients, duration), [], []
    while len(made) < steps:
        now = (len(made) + 1) * every
        done += [
            (clients.end[client], clients.bring(client))
            for client in range(num_clients)
            if clients.end[client] <= now
        ]
        made.append((now, [trip for _, trip in sorted(done)]))
        for client in sorted(trip[0] for _, trip in done):
            clients.start(client, now, len(made))
        done = []
    return made


def ringleader(num_clients: int, duration, steps: int) -> Steps:
    """Maranjyan and Richtárik 2026: rounds of one step by each client.

    In phase 1 the server gathers until the table has all clients; in phase 2 each client makes one step. The trips of
    a step are all that have come since the one before.
    """
    clients, made, since = Clients(num_clients, duration), [], []
    current, following, may_step, phase = set(), set(), set(range(num_clients)), 1
    while True:
        now, arrived = clients.arrivals()
        for client in arrived:
            since.append(clients.bring(client))
            if phase == 1:
                current.add(client)
                if len(current) < num_clients:
                    continue
                phase = 2
            elif client not in may_step:
                following.add(client)
                continue
            made.append((now, since))
            since = []
            if len(made) == steps:
                return made
            may_step.remove(client)
            if not may_step:
                current, following, may_step, phase = following, set(), set(range(num_clients)), 1
        for client in arrived:
            clients.start(client, now, len(made))


def port(
    num_clients: int, seconds, local_steps: int, bound: int, buffer_size: int, steps: int
) -> tuple[Steps, dict[tuple[int, int], tuple[int, float]]]:
    """Su and Li 2022: who is ``bound`` versions late is urged to end the local step at hand, and the server waits.

    ``seconds(client, trip)`` are those before the first local step, of each step and after the last. The second thing
    returned is {(client, trip): (its local steps, its arrival)}.
    """
    work, made, buffer = {}, [], []

    def duration(client: int, trip: int) -> float:
        before, each, after = seconds(client, trip)
        return before + local_steps * each + after

    def is_late(client: int) -> bool:
        return clients.end[client] < math.inf and len(made) - clients.version[client] >= bound

    clients = Clients(num_clients, duration)
    asked = [local_steps] * num_clients
    while True:
        (now, arrived), idle = clients.arrivals(), []
        for client in arrived:
            buffer.append(clients.bring(client))
            work[buffer[-1][:2]] = asked[client], now
            idle.append(client)
            if len(buffer) < buffer_size or any(map(is_late, range(num_clients))):
                continue
            made.append((now, buffer))
            buffer = []
            if len(made) == steps:
                return made, work
            for late in filter(is_late, range(num_clients)):
                before, each, after = seconds(late, clients.trips[late] - 1)
                done = 1
                while done < local_steps and clients.begin[late] + (before + done * each) <= now:
                    done += 1
                asked[late] = done
                clients.end[late] = clients.begin[late] + (before + done * each + after)
        for client in sorted(idle):
            asked[client] = local_steps
            clients.start(client, now, len(made))
