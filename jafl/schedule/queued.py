"""Queues of tasks: the server hands tasks to clients that may be busy (Generalized AsyncSGD)."""

import heapq
import os
from collections import deque
from collections.abc import Sequence

import numpy as np

from jafl.base.described import described
from jafl.base.errors import whole_number
from jafl.records import EventSchedule
from jafl.schedule.arguments import as_delay, client_shares
from jafl.schedule.checks import check_delay_and_seed, steps_within
from jafl.schedule.columns import TripColumns, discarded_trips, inflight_trips
from jafl.schedule.delay import Delay
from jafl.schedule.draws import SELECTION, generator
from jafl.schedule.durations import Durations, on_a_clock_that_moves

DRAWN_TOGETHER = 4096


@described
def queued(
    *,
    num_clients: int,
    tasks: int,
    routing: Sequence[float] | np.ndarray | None = None,
    buffer_size: int = 1,
    delay: Delay | str | os.PathLike[str],
    server_steps: int | None = None,
    client_trips: int | None = None,
    seed: int = 0,
) -> EventSchedule:
    """Computes the event schedule of Generalized AsyncSGD: tasks wait in a queue at each client.

    There are always ``tasks`` tasks under way, at first with version 0. When a client has finished a task, the server
    takes its update into the buffer, steps if the buffer is full, and hands a new task, with its newest model, to a
    client drawn by ``routing``, whether that client is busy or not (Leconte et al., AISTATS 2024). Each client works
    at its tasks one after the other, first in, first out. So a fast client may be idle while a slow one has a long
    queue. A task keeps the model with which it was handed out, while it waits: its ``download_time`` is the moment of
    handing out. If several tasks end at one instant, the server first takes all of them, in client order, and
    then hands out as many new ones.

    With exponential durations this is a closed Jackson network, whose throughput and mean staleness have closed forms
    (``tests/schedule/test_queues.py``). With any durations client i makes a share p_i of all trips in the long run,
    and sum_i p_i E[staleness_i] = tasks - 1 if each step applies one trip.

    Args:
      num_clients: N, all clients.
      tasks: C, the tasks that are under way at any time, at least 1; may exceed the number of clients.
      routing: [N] numbers above 0 in proportion to p_i, the probability with which a task goes to client i. Default:
        equal ones (the paper's AsyncSGD).
      buffer_size: the trips that each server step applies, 1 in the paper.
      delay: the law of the time that a client works at a task, see ``jafl.delays``; or a file of recorded ones.
      server_steps: stop after so many server steps, or
      client_trips: after as many whole steps as so many trips allow. Exactly one of the two.
      seed: determines the durations, and which client gets which task.

    Returns:
      The schedule. At its end ``tasks`` trips are under way, including those that wait in queues.

    Raises:
      SettingError: for a number outside its range; for a delay with durations that are negative, not finite, or
        always 0 for some client.

    Examples:
      >>> schedule = jafl.queued(num_clients=1, tasks=3, delay=jafl.delays.constant(1.0), server_steps=5)
      >>> schedule.staleness  # a task waits for the two ahead of it
      array([0, 1, 2, 2, 2], dtype=int32)
    """
    law = as_delay(delay)
    whole_number("num_clients", num_clients, 1)
    whole_number("tasks", tasks, 1)
    whole_number("buffer_size", buffer_size, 1)
    check_delay_and_seed(law, seed)
    law.check_clients(num_clients)
    shares = client_shares("routing", routing, num_clients)
    steps = steps_within(server_steps, client_trips, trips_per_step=buffer_size, setting="buffer_size")
    schedule = _Queues(num_clients, tasks, shares, law, seed, steps * buffer_size).run(buffer_size)
    return on_a_clock_that_moves(schedule, law, seed)


class _Queues:
    """The tasks at each client; ``run`` makes the schedule."""

    def __init__(self, num_clients: int, tasks: int, shares: np.ndarray, delay: Delay, seed: int, trips: int):
        self.num_clients, self.tasks, self.trips = num_clients, tasks, trips
        self.up_to = np.cumsum(shares)
        self.up_to[-1] = 1.0  # whatever rounding says
        self.random = generator(seed, SELECTION)
        self.durations = Durations(delay, seed, num_clients, trips + tasks)
        self.drawn: deque[int] = deque()
        self.handed_out = [0] * num_clients
        # For each client (number of the trip, its version, when it was handed out), the one at work first.
        self.queues: list[deque[tuple[int, int, float]]] = [deque() for _ in range(num_clients)]
        self.at_work: list[tuple[float, int]] = []  # a heap of (when it ends, client)

    def run(self, buffer_size: int) -> EventSchedule:
        """The schedule, with so many trips a step."""
        arrived, step_time, version = TripColumns(), [], 0
        for _ in range(self.tasks):
            self._hand_out(0.0, 0)
        while len(arrived) < self.trips:
            now, finished = self.at_work[0][0], 0
            while self.at_work[0][0] == now and len(arrived) < self.trips:
                _, client = heapq.heappop(self.at_work)
                number, of_version, since = self.queues[client].popleft()
                arrived.recent.append((now, client, number, of_version, since))
                finished += 1
                if len(arrived) % buffer_size == 0:
                    step_time.append(now)
                    version += 1
                if self.queues[client]:
                    self._begin(client, now)
                elif not self.at_work:
                    break
            arrived.store_block()
            for _ in range(finished):
                self._hand_out(now, version)
        waiting = [
            (client, *task) for client, queue in enumerate(self.queues) for task in queue
        ]  # in client order, each client's in the order of its queue
        return EventSchedule(
            **arrived.first(self.trips),
            step=np.repeat(np.arange(len(step_time), dtype=np.int32), buffer_size),
            step_time=np.array(step_time, np.float64),
            **inflight_trips(*zip(*waiting, strict=True)),
            **discarded_trips(),
            num_clients=self.num_clients,
            concurrency=self.tasks,
        )

    def _hand_out(self, now: float, version: int) -> None:
        """A new task goes to a client that is drawn, and waits there if another one is at work."""
        if not self.drawn:
            draws = self.random.random(DRAWN_TOGETHER)
            self.drawn.extend(np.searchsorted(self.up_to, draws, side="right").tolist())
        client = self.drawn.popleft()
        self.queues[client].append((self.handed_out[client], version, now))
        self.handed_out[client] += 1
        if len(self.queues[client]) == 1:
            self._begin(client, now)

    def _begin(self, client: int, now: float) -> None:
        """The client begins to work at the first task of its queue."""
        number = self.queues[client][0][0]
        heapq.heappush(self.at_work, (now + self.durations(client, number), client))
