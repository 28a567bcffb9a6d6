"""Waves for a rule that takes all trips of a server step at once: none is due in the midst of a step."""

import dataclasses

import numpy as np

from jafl.engine.devices import Placement
from jafl.records import ExecutionPlan, Rule


def takes_whole_steps(plan: ExecutionPlan, rule: Rule, placement: Placement) -> bool:
    """Whether the engine hands the rule all trips of a step at once."""
    if plan.width == 1 or plan.form != "loop" or not placement.rows.takes_whole_steps:
        return False
    # Additive rules are folded side by side instead; with memory, each fold needs the one before it.
    able = rule.whole_step is not None and rule.buffer_size and not rule.remembers and not rule.additive
    # One compiled program reads as many rows at every step: a flushed or larger buffer needs another.
    if not able or not np.all(np.diff(plan.first_trip) == rule.buffer_size):
        return False
    # The loop looks for a single wave before each step.
    return bool(np.all(np.diff(_step_before(plan)) > 0))


def due_at_steps(plan: ExecutionPlan) -> ExecutionPlan:
    """The plan with every wave before the first trip of the step in which it is due.

    All versions that a wave reads exist by then. Its trips may not take the rows of trips of that step, so there are
    more rows, by a step's trips at most. A plan with two waves in one step cannot be changed so.
    """
    step_before = _step_before(plan)
    wave_before = plan.first_trip[step_before].astype(np.int32)
    size = np.bincount(plan.wave, minlength=len(wave_before))
    members = np.split(np.lexsort((plan.place, plan.wave)), np.cumsum(size)[:-1])
    row = np.zeros_like(plan.row)
    free: list[int] = []
    rows = folded = 0
    for first, trips in zip(wave_before.tolist(), members, strict=True):
        # Rows of earlier steps alone: this step's own trips still wait when its wave trains.
        free.extend(row[folded:first].tolist())
        folded = first
        missing = max(0, len(trips) - len(free))
        free.extend(range(rows, rows + missing))
        rows += missing
        row[trips] = [free.pop() for _ in trips]
    return dataclasses.replace(plan, wave_before=wave_before, row=row, num_rows=rows)


def _step_before(plan: ExecutionPlan) -> np.ndarray:
    """[V]: the server step in which each wave is due."""
    return np.searchsorted(plan.first_trip, plan.wave_before, side="right") - 1
