"""CA2FL: cached updates calibrate the buffer's mean (Wang et al., ICLR 2024; ACE paper, algorithm a.3)."""

import jax
import numpy as np

from jafl.base.errors import choose
from jafl.records import Columns, EventSchedule, Requirements, Rule
from jafl.rules import accumulate, cached
from jafl.specifications import specification


@specification
def ca2fl(changes: str = "arrival", memory_precision: str = "full") -> Rule:
    """CA2FL: the server steps along the mean of the cached updates, corrected by the buffer's new ones.

    The direction is h + (1/|S|) sum_{i in S} (update_i - h_i), with S the distinct clients in the buffer, h_i the
    last update of client i (0 before its first) and h the mean of all h_i before this step (Wang et al., ICLR 2024;
    ACE paper, algorithm a.3).

    Reports ``distinct_clients``, |S|, per step; ``weight`` per trip: the sum of the factors with which its update
    enters the directions of its own step and of later ones.

    Args:
      changes: when h_i becomes the new update. "arrival": at once (lines 6 and 7 of algorithm a.3 read as a program),
        so that a client that arrives twice in one buffer counts once, with its last update. "step": with the server
        step (their indices t and t + 1), so that both count, each against the same h_i. |S| counts the client once
        either way.
      memory_precision: of the cached updates: "full", "bfloat16" or "int8". Rounded, both sides of the difference
        update_i - h_i are as the memory stores them, the new update too, so that h stays the mean of what is stored.
        (The paper has no rounding.)

    Returns:
      The rule, as a specification, for ``jafl.simulate``.

    Raises:
      SettingError: for unknown ``changes``, when the rule is built; for an unknown precision, when the run starts.
    """
    choose("changes", changes, {"arrival": None, "step": None})

    def init(params, num_clients):
        return accumulate.zeros(params), accumulate.number(num_clients)

    def begin(state, params):
        cached_sum, clients = state
        mean = accumulate.scaled(1 / clients, cached_sum)
        return state, mean, accumulate.zeros(params), accumulate.number(0)

    def fold(buffer, arrival):
        (cached_sum, clients), mean, change, distinct = buffer
        cached_sum = cached.replaced(cached_sum, arrival.stored, arrival.previous)
        against = arrival.columns["against"]
        change = jax.tree.map(
            lambda c, s, p: c + (s - against.astype(p.dtype) * p), change, arrival.stored, arrival.previous
        )
        distinct = distinct + arrival.columns["first_in_step"]
        return ((cached_sum, clients), mean, change, distinct), {"weight": arrival.columns["weight"]}

    def finish(buffer, params):
        state, mean, change, distinct = buffer
        direction = jax.tree.map(lambda h, c: -h - c / distinct.astype(c.dtype), mean, change)
        return direction, state, {"distinct_clients": distinct}, True

    def fold_recalled(buffer, weight, row):
        (cached_sum, clients), *rest = buffer
        return (cached.add_recalled(cached_sum, weight, row), clients), *rest

    return Rule(
        init=init,
        begin=begin,
        fold=fold,
        finish=finish,
        columns=lambda schedule: _columns(schedule, changes),
        memory=cached.last_updates(memory_precision, cached.recall_all, fold_recalled),
        requirements=Requirements(linear=True),
    )


def _columns(schedule: EventSchedule, changes: str) -> Columns:
    """Three columns, [J] float64 each.

    ``first_in_step`` is 1 for the first trip of its client in its server step, else 0. ``against`` is how often h_i
    is subtracted at this trip: once; or, with ``changes`` "step", at the client's first trip in the server step for
    all of its trips in the step, and at the others not at all. ``weight`` is explained in ``ca2fl``.
    """
    pairs = schedule.step.astype(np.int64) * schedule.num_clients + schedule.client
    _, first_place, group, count = np.unique(
        pairs, return_index=True, return_inverse=True, return_counts=True
    )
    first = np.zeros(schedule.num_trips)
    first[first_place] = 1.0
    distinct = np.bincount(schedule.step, first, minlength=schedule.num_steps)
    against = np.ones(schedule.num_trips) if changes == "arrival" else first * count[group]
    # An update enters with its own step, then in the mean of later steps, and is subtracted where it is replaced.
    until = cached.replaced_at(schedule)
    own = 1.0 / distinct[schedule.step]
    later = np.maximum(until - schedule.step - (until == schedule.num_steps), 0) / schedule.num_clients
    weight = own + later - _subtracted(schedule, until, own, count[group], changes)
    return {"first_in_step": first, "against": against, "weight": weight}


def _subtracted(
    schedule: EventSchedule, until: np.ndarray, own: np.ndarray, count: np.ndarray, changes: str
) -> np.ndarray:
    """[J]: the weight with which a trip's update is subtracted by the trips that replace it."""
    order = np.argsort(schedule.client, kind="stable")
    subtracted = np.zeros(schedule.num_trips)
    weight = own[order] if changes == "arrival" else (own * count)[order]
    same_client = schedule.client[order][1:] == schedule.client[order][:-1]
    subtracted[order[:-1]] = np.where(same_client, weight[1:], 0.0)
    if changes == "step":  # an update is not subtracted by another one of its own step
        subtracted[until == schedule.step] = 0.0
    return subtracted
