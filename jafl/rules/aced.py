"""ACED: ACE over the clients heard of lately (ACE paper, algorithm a.1)."""

import jax.numpy as jnp
import numpy as np

from jafl.errors import choose, whole_number
from jafl.records import ClientMemoryRequest, EventSchedule, Recall, Requirements, Rule
from jafl.rules import accumulate, cached
from jafl.specifications import specification


@specification
def aced(active_steps: int = 50, age: str = "start", memory_precision: str = "full") -> Rule:
    """w <- w - eta u with u the mean of the newest gradients of the active clients A(t).

    At step t the arriving gradient is stored, then A(t) = {i : t - start_i <= active_steps} with start_j of the
    arriving client still the old one, then start_j becomes t + 1. All start at 1, after the initial round. Who
    enters and leaves is known from the schedule, so the sum over A(t) is updated by the rows that change: one an
    arrival, amortised; every 16 N steps it is formed anew, so that it does not drift. A rule on gradients, see
    ``asgd`` and ``ace``.

    Args:
      active_steps: tau_algo, in server steps, at least 1.
      age: "start" as in algorithm a.1: how long ago the client started its trip. (A(t) is then never empty: the
        client of step t - 1 has start t.) "cached", as in the notation of A.2: start_i is the version that client
        i's cached gradient was computed from, the arriving one's included; a step with an empty A(t) is skipped.
      memory_precision: of the cached gradients: "full", "bfloat16" or "int8" (ACED-8bit).

    Reports ``active_clients``, the size of A(t), per step; ``weight`` per trip: the sum of 1 / |A(t)| over the steps
    for which its gradient stays in the cache and its client in A(t).
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

    return Rule(
        init=lambda params, num_clients: accumulate.zeros(params),
        begin=lambda total, params: (total, accumulate.number(0)),
        fold=fold,
        finish=finish,
        columns=lambda schedule: _active(schedule, active_steps, age)[0],
        memory=ClientMemoryRequest(
            remembers=lambda arrival: arrival.update,
            precision=memory_precision,
            recalls=lambda schedule: _active(schedule, active_steps, age)[1],
            fold_recalled=_add_row,
        ),
        requirements=Requirements(buffer_size=1, initial_round=True, linear=True),
    )


def _add_row(buffer, weight, row):
    total, active = buffer
    return cached.add_recalled(total, weight, row), active


def _active(schedule: EventSchedule, active_steps: int, age: str) -> tuple[dict[str, np.ndarray], Recall]:
    """The columns of ``fold`` [J], and the stored values that the rule sees before each step.

    These are the rows that enter and leave the sum or, at a refresh, all those that are then in it.
    """
    clients, steps = schedule.num_clients, schedule.num_steps
    active_steps = min(active_steps, steps)  # beyond that nobody gets too old
    arriving, versions = schedule.client[clients:].tolist(), schedule.download_version[clients:].tolist()
    since = [1 if age == "start" else 0] * clients
    inside, active = [True] * clients, clients
    too_old: list[list[int]] = [[] for _ in range(steps + active_steps + 3)]  # by step: who may have to leave
    too_old[since[0] + active_steps + 1] = list(range(clients))
    before, after, size = np.ones(steps), np.ones(steps), np.full(steps, clients)
    changes: list[list[tuple[int, float]]] = [[] for _ in range(steps)]  # (client, 1 in or -1 out)
    shown: list[list[tuple[int, float, float]]] = [
        [] for _ in range(steps)
    ]  # (client, factor, the sum begins anew)
    refreshes = set(cached.refreshes(schedule).tolist())
    entered = -1  # who arrived in the last step, to be let in where the age is that of its new trip
    for step in range(1, steps):
        client = arriving[step - 1]
        if entered >= 0 and not inside[entered]:
            inside[entered], active = True, active + 1
            changes[step].append((entered, 1.0))
        for late in too_old[step]:
            if inside[late] and step - since[late] > active_steps:
                inside[late], active = False, active - 1
                changes[step].append((late, -1.0))
        if step in refreshes:
            members = [client for client in range(clients) if inside[client]]
            shown[step] = [(member, 1.0, float(member == members[0])) for member in members]
            shown[step] = shown[step] or [(0, 0.0, 1.0)]
        else:
            shown[step] = [(other, factor, 0.0) for other, factor in changes[step]]
        before[step] = inside[client]
        if age == "start":
            after[step] = inside[client]
            since[client], entered = step + 1, client
        else:
            since[client] = versions[step - 1]
            after[step] = step - since[client] <= active_steps
            active += int(after[step] - before[step])
            inside[client] = bool(after[step])
        too_old[since[client] + active_steps + 1].append(client)
        size[step] = active
    first_row = np.concatenate([[0], np.cumsum([len(rows) for rows in shown])]).astype(np.int32)
    flat = np.array([row for rows in shown for row in rows], np.float64).reshape(-1, 3)
    recall = Recall(first_row, flat[:, 0].astype(np.int32), flat[:, 1:])
    of_trip = schedule.step  # a row per step, handed to each of its trips
    columns = {"active_before": before[of_trip], "active_after": after[of_trip]}
    columns["active_clients"] = size[of_trip].astype(np.float64)
    columns["weight"] = _weights(schedule, changes, after, size)
    return columns, recall


def _weights(
    schedule: EventSchedule, changes: list[list[tuple[int, float]]], after: np.ndarray, size: np.ndarray
) -> np.ndarray:
    """[J]: what each trip's gradient weighs in all steps together."""
    given = np.concatenate(
        [[0.0], np.cumsum(np.where(size > 0, 1.0 / np.maximum(size, 1), 0.0))]
    )  # before a step
    weights = np.where(
        after[schedule.step] > 0, given[cached.replaced_at(schedule)] - given[schedule.step], 0.0
    )
    newest = np.empty(schedule.num_clients, np.int64)  # trip of each client
    newest[schedule.client[: schedule.num_clients]] = np.arange(schedule.num_clients)
    until = cached.replaced_at(schedule)
    for step in range(1, schedule.num_steps):
        for client, factor in changes[step]:
            trip = newest[client]
            weights[trip] += factor * (given[until[trip]] - given[step])
        newest[schedule.client[schedule.num_clients + step - 1]] = schedule.num_clients + step - 1
    return weights
