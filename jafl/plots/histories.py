"""Histories in place of the evaluations in them, which the pictures of metrics are drawn from."""

from collections.abc import Mapping, Sequence
from typing import Any

from jafl.base.errors import require
from jafl.records import History

ALONE = "run"  # the label of runs that are given without one


def runs_by_label(runs: Any) -> Any:
    """``{label: [evaluations of each seed]}`` of histories, alone, in lists or by label; anything else as it is.

    SettingError for a label whose runs are no list.
    """
    if isinstance(runs, Mapping):
        return {label: _label_runs(label_runs, f"runs[{label!r}]") for label, label_runs in runs.items()}
    is_run = _is_list(runs) and len(runs) > 0 and all(isinstance(row, Mapping) for row in runs)
    if isinstance(runs, History) or is_run:
        return {ALONE: [as_evaluations(runs)]}
    if _is_list(runs) and len(runs) > 0 and all(isinstance(run, History) for run in runs):
        return {ALONE: _label_runs(runs, "runs")}
    return runs


def as_evaluations(run: Any) -> Any:
    """The evaluations of a history; anything else as it is."""
    return run.evaluations if isinstance(run, History) else run


def _label_runs(runs: Any, setting: str) -> list[Any]:
    """The evaluations of a label's runs; a history stands for a list of one."""
    if isinstance(runs, History):
        return [runs.evaluations]
    require(_is_list(runs), setting, runs, "a history, or a list of runs")
    return [as_evaluations(run) for run in runs]


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)
