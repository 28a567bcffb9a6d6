"""ACED: ACE over the clients heard of lately (ACE paper, algorithm a.1)."""

import jax
import jax.numpy as jnp
import numpy as np

from jafl.deferred import specification
from jafl.records import EventSchedule, Recall, Rule, require
from jafl.rules import accumulate, compensated


@specification
def aced(active_steps: int = 50, memory_precision: str = "full") -> Rule:
    """w <- w - eta u with u the mean of the newest gradients of the active clients A(t).

    At step t the arriving gradient is stored, then A(t) = {i : t - start_i <= active_steps} with start_j of the
    arriving client still the old one, then start_j becomes t + 1. All start at 1, after the initial round. Where
    A(t) is empty the step is skipped. Who enters and leaves is known from the schedule, so the sum over A(t) is
    updated by the rows that change: one an arrival, amortised. A rule on gradients, see ``asgd`` and ``ace``.

    Args:
      active_steps: tau_algo, in server steps, at least 1.
      memory_precision: of the cached gradients: "full", "bfloat16" or "int8" (ACED-8bit).

    Reports ``active_clients``, the size of A(t).
    """
    require(active_steps >= 1, "active_steps", active_steps, "at least 1 server step")

    def fold(buffer, arrival):
        total, _ = buffer
        counts = arrival.columns["counts"]
        new, previous = accumulate.scaled(counts, arrival.stored), accumulate.scaled(counts, arrival.previous)
        return (compensated.replace(total, new, previous), arrival.columns["active_clients"]), {}

    def finish(buffer, params):
        total, active = buffer
        direction = accumulate.scaled(-1 / jnp.maximum(active, 1), compensated.value(total))
        return direction, total, {"active_clients": active}, active > 0

    return Rule(
        init=lambda params, num_clients: compensated.nothing(params),
        begin=lambda total, params: (total, accumulate.number(0)),
        fold=fold,
        finish=finish,
        columns=lambda schedule: _active(schedule, active_steps)[0],
        remembers=lambda arrival: arrival.update,
        memory_precision=memory_precision,
        recalls=lambda schedule: _active(schedule, active_steps)[1],
        fold_recalled=_add_row,
        buffer_size=1,
        initial_round=True,
    )


def _add_row(buffer, sign, row):
    total, active = buffer
    return compensated.add(total, jax.tree.map(lambda r: sign.astype(r.dtype) * r, row)), active


def _active(schedule: EventSchedule, active_steps: int) -> tuple[dict[str, np.ndarray], Recall]:
    """Columns ``active_clients`` and ``counts`` (the arriving client is active) [J]; rows that enter and leave."""
    initial = int(schedule.step_offsets[1])
    steps, clients = schedule.num_steps, schedule.num_clients
    start, inside = np.ones(clients, np.int64), np.ones(clients, bool)
    counts, size = np.ones(schedule.num_trips), np.full(schedule.num_trips, float(clients))
    first_row, rows, signs, active = np.zeros(steps + 1, np.int32), [], [], clients
    for step in range(1, steps):
        arriving = schedule.client[initial + step - 1]
        before = schedule.client[initial + step - 2] if step > 1 else -1
        if before >= 0 and not inside[before]:  # joins one step after its arrival
            inside[before], active = True, active + 1
            rows.append(before)
            signs.append(1.0)
        if step == active_steps + 2:
            leaving = np.flatnonzero(inside & (start == 1)).tolist()
        else:
            late = step - active_steps - 2  # its arrival set the start that is now too old
            candidate = schedule.client[initial + late - 1] if late >= 1 else -1
            leaving = [candidate] if late >= 1 and start[candidate] == late + 1 and inside[candidate] else []
        for client in leaving:
            inside[client], active = False, active - 1
            rows.append(client)
            signs.append(-1.0)
        trip = initial + step - 1
        counts[trip], size[trip] = inside[arriving], active
        start[arriving] = step + 1
        first_row[step + 1] = len(rows)
    recall = Recall(first_row, np.array(rows, np.int32), np.array(signs))
    return {"active_clients": size, "counts": counts}, recall
