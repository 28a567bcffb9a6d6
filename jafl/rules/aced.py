"""ACED: ACE over the clients heard of lately (Chang et al. 2025, the ACE paper, algorithm a.1)."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from jafl.base.errors import choose, whole_number
from jafl.records import Columns, EventSchedule, Recall, Requirements, Rule
from jafl.rules import accumulate, cached
from jafl.specifications import specification


@specification
def aced(active_steps: int = 50, age: str = "start", memory_precision: str = "full") -> Rule:
    """ACED: the server steps along the mean of the newest gradients of the active clients A(t).

    w <- w - eta (1/|A(t)|) times the sum of these gradients over A(t): at step t the arriving gradient is stored,
    then A(t) = {i : t - start_i <= active_steps} with start_j of the arriving client still the old one, then start_j
    becomes t + 1 (ACE paper, algorithm a.1). All start at 1, after the initial round. A rule on gradients, see
    ``asgd`` and ``ace``.

    A step takes as many trips as the schedule has (algorithm a.1 has one): all their gradients are stored; then A(t)
    is taken once, with the old start_j of every client that has arrived; then start_j becomes t + 1 for each, even
    if, with a buffer, the client began its next trip before the step. Ages count server steps, not trips.

    Who enters and leaves is known from the schedule, so the sum over A(t) is updated by the rows that change: one per
    arrival on average; every 16 N steps (N clients) it is computed again, so that it does not drift.

    Reports ``active_clients``, the size of A(t), per step; ``weight`` per trip: the sum of 1 / |A(t)| over the steps
    for which its gradient stays in the cache and its client in A(t).

    Args:
      active_steps: tau_algo, in server steps, at least 1.
      age: "start" as in algorithm a.1: how long ago the client started its trip. (A(t) is then never empty: the
        clients of step t - 1 have start t.) "cached", as in the notation of A.2: start_i is the version that client
        i's cached gradient was computed from, the arriving ones' included; a step with an empty A(t) is skipped.
      memory_precision: of the cached gradients: "full", "bfloat16" or "int8" (ACED-8bit, appendix F.3.3).

    Returns:
      The rule, as a specification, for ``jafl.simulate``.

    Raises:
      SettingError: for ``active_steps`` below 1 or an unknown age, when the rule is built; for an unknown precision,
        when the run starts.
    """
    whole_number("active_steps", active_steps, 1)
    choose("age", age, {"start": None, "cached": None})

    def fold(buffer, arrival):
        total, _ = buffer
        new = accumulate.scaled(arrival.columns["active_after"], arrival.stored)
        previous = accumulate.scaled(arrival.columns["active_before"], arrival.previous)
        total = cached.replaced(total, new, previous)
        return (total, arrival.columns["active_clients"]), {"weight": arrival.columns["weight"]}

    def finish(buffer, params):
        total, active = buffer
        direction = accumulate.scaled(-1 / jnp.maximum(active, 1), total)
        return direction, total, {"active_clients": active}, active > 0 if age == "cached" else True

    def fold_recalled(buffer, weight, row):
        total, active = buffer
        return cached.add_recalled(total, weight, row), active

    return Rule(
        init=lambda params, num_clients: accumulate.zeros(params),
        begin=lambda total, params: (total, accumulate.number(0)),
        fold=fold,
        finish=finish,
        columns=lambda schedule: _columns(schedule, _memberships(schedule, active_steps, age)),
        memory=cached.last_updates(
            memory_precision,
            lambda schedule: _recall(_memberships(schedule, active_steps, age)),
            fold_recalled,
        ),
        requirements=Requirements(initial_round=True, linear=True),
    )


class _Memberships(NamedTuple):
    """Who is in A(t), and when. T server steps, of which step 0 is the initial round, and J trips.

    Attributes:
      changes: [T] lists of (client, 1 for entering or -1 for leaving): made before the step's arrivals.
      members: {step: clients}: all of A(t) at the steps at which the sum is computed again, before the arrivals.
      before: [J] 1 if the arriving client is in A(t) before its gradient is replaced, else 0.
      after: [J] 1 if it is afterwards, else 0.
      size: [T] clients in A(t), after the arrivals.
    """

    changes: list[list[tuple[int, float]]]
    members: dict[int, list[int]]
    before: np.ndarray
    after: np.ndarray
    size: np.ndarray


def _memberships(schedule: EventSchedule, active_steps: int, age: str) -> _Memberships:
    """Follows A(t) through the server steps of a schedule; the arguments are those of ``aced``."""
    clients, steps = schedule.num_clients, schedule.num_steps
    arriving, versions = schedule.client.tolist(), schedule.download_version.tolist()
    first_trip = schedule.step_offsets.tolist()
    active = _ActiveClients(clients, steps, active_steps, first_start=1 if age == "start" else 0)
    changes: list[list[tuple[int, float]]] = [[] for _ in range(steps)]
    before, after = np.ones(schedule.num_trips), np.ones(schedule.num_trips)
    size = np.full(steps, clients)
    members: dict[int, list[int]] = {}
    refreshes = set(cached.refreshes(schedule).tolist())
    for step in range(1, steps):
        if age == "start":  # the last step's clients have begun new trips
            for client in arriving[first_trip[step - 1] : first_trip[step]]:
                changes[step] += active.let_in(client)
        changes[step] += active.let_out(step)
        if step in refreshes:
            members[step] = [number for number in range(clients) if active.inside[number]]
        for trip in range(first_trip[step], first_trip[step + 1]):
            client = arriving[trip]
            before[trip] = active.inside[client]
            if age == "start":
                active.restart(client, step + 1)
            else:
                active.restart(client, versions[trip])
                active.put(client, active.is_young(client, step))
            after[trip] = active.inside[client]
        size[step] = active.number
    return _Memberships(changes, members, before, after, size)


class _ActiveClients:
    """The set A(t) as the server steps go by.

    Attributes:
      inside: [N] bools: whether each client is in it.
      number: of clients in it.
    """

    def __init__(self, clients: int, steps: int, active_steps: int, first_start: int):
        self.inside, self.number = [True] * clients, clients
        self._active_steps = min(active_steps, steps)  # beyond that nobody gets too old
        self._start = [first_start] * clients
        # By step: the clients that leave at it unless they have started again.
        self._leaving: list[list[int]] = [[] for _ in range(steps + self._active_steps + 3)]
        self._leaving[first_start + self._active_steps + 1] = list(range(clients))

    def is_young(self, client: int, step: int) -> bool:
        """Whether the client's start is recent enough for A(step)."""
        return step - self._start[client] <= self._active_steps

    def put(self, client: int, inside: bool) -> None:
        """Puts a client in or takes it out."""
        self.number += int(inside) - int(self.inside[client])
        self.inside[client] = inside

    def restart(self, client: int, start: int) -> None:
        """Gives a client another start; whether it is in A(t) does not change yet."""
        self._start[client] = start
        self._leaving[start + self._active_steps + 1].append(client)

    def let_in(self, client: int) -> list[tuple[int, float]]:
        """Lets a client in; returns the change, none if it is in already."""
        if self.inside[client]:
            return []
        self.put(client, True)
        return [(client, 1.0)]

    def let_out(self, step: int) -> list[tuple[int, float]]:
        """Lets out who has become too old by this step; returns the changes."""
        changes = []
        for client in self._leaving[step]:
            if self.inside[client] and not self.is_young(client, step):
                self.put(client, False)
                changes.append((client, -1.0))
        return changes


def _recall(memberships: _Memberships) -> Recall:
    """The stored gradients that enter and leave the sum before each step; at a refresh, all that are then in it."""
    shown: list[list[tuple[int, float, float]]] = []  # (client, factor, 1 where the sum starts again)
    for step, changes in enumerate(memberships.changes):
        if step in memberships.members:
            members = memberships.members[step]
            rows = [(member, 1.0, float(member == members[0])) for member in members]
            shown.append(rows or [(0, 0.0, 1.0)])
        else:
            shown.append([(client, factor, 0.0) for client, factor in changes])
    first_row = np.concatenate([[0], np.cumsum([len(rows) for rows in shown])]).astype(np.int32)
    flat = np.array([row for rows in shown for row in rows], np.float64).reshape(-1, 3)
    return Recall(first_row, flat[:, 0].astype(np.int32), flat[:, 1:])


def _columns(schedule: EventSchedule, memberships: _Memberships) -> Columns:
    """The columns of ``fold``, [J] float64 each: the size of A(t) is handed to each trip of its step."""
    return {
        "active_before": memberships.before,
        "active_after": memberships.after,
        "active_clients": memberships.size[schedule.step].astype(np.float64),
        "weight": _weights(schedule, memberships),
    }


def _weights(schedule: EventSchedule, memberships: _Memberships) -> np.ndarray:
    """[J]: what each trip's gradient weighs in all steps together."""
    size, first_trip = memberships.size, schedule.step_offsets
    per_step = np.where(size > 0, 1.0 / np.maximum(size, 1), 0.0)
    before_step = np.concatenate([[0.0], np.cumsum(per_step)])  # sums over the earlier steps
    until = cached.replaced_at(schedule)
    own = before_step[until] - before_step[schedule.step]
    weights = np.where(memberships.after > 0, own, 0.0)
    newest = np.empty(schedule.num_clients, np.int64)  # trip of each client
    for step in range(schedule.num_steps):
        for client, factor in memberships.changes[step]:
            trip = newest[client]
            weights[trip] += factor * (before_step[until[trip]] - before_step[step])
        trips = np.arange(first_trip[step], first_trip[step + 1])
        newest[schedule.client[trips]] = trips  # of several of a client the last
    return weights
