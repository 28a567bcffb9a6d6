"""The pictures of a sweep: curves with error bands for each condition, and heat maps over all conditions."""

import dataclasses
import functools
import pathlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jafl import plots
from jafl.config import grid
from jafl.config.world import in_world
from jafl.runs.recording.pictures import Figures, draw, learning_curves
from jafl.sweeps.conditions import caption
from jafl.sweeps.seed_means import ArmRuns, rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure


# The columns of the table that a heat map shows: the means, their standard errors, and of how many seeds.
OF_MAPS = ("final_test_accuracy", "standard_error", "seeds")


def draw_sweep(root: pathlib.Path, arm_runs: Sequence[ArmRuns], target_accuracy: float) -> list[str]:
    """Draws ``accuracy.png`` in the folder of each condition, and ``heat_map*.png`` in the sweep's directory.

    Conditions by which the sweep has no folders, such as a rate that was searched for, have none.

    Returns a sentence for each picture that could not be drawn.
    """
    figures: Figures = {}
    for folder, arms in _by_folder(root, arm_runs):
        if measured_runs(arms):
            figures[str(folder / "accuracy")] = functools.partial(curves, arms, target_accuracy)
    for name, figure in heat_maps(rows(arm_runs)).items():
        figures[name] = lambda figure=figure: figure  # type: ignore[misc]
    return draw(root, figures, "all")


def _by_folder(root: pathlib.Path, arm_runs: Sequence[ArmRuns]) -> list[tuple[pathlib.Path, list[ArmRuns]]]:
    """(a condition's folder in ``root``, its arms); where these live in different worlds, their labels say which.

    Left out are runs whose condition says more of them than their folder for another reason, such as a rate that was
    searched for.
    """
    folders: dict[pathlib.Path, list[ArmRuns]] = {}
    for arm in arm_runs:
        folders.setdefault(arm.runs[0].path.parent.relative_to(root), []).append(arm)
    grids = []
    for folder, arms in folders.items():
        named = grid.condition(folder.name) or {}
        more = [{n: v for n, v in arm.condition.items() if n not in named} for arm in arms]
        if all(in_world(name) for each in more for name in each):
            labels = [
                ", ".join(filter(None, [arm.label, caption(own)]))
                for arm, own in zip(arms, more, strict=True)
            ]
            grids.append(
                (
                    folder,
                    [dataclasses.replace(arm, label=label) for arm, label in zip(arms, labels, strict=True)],
                )
            )
    return grids


def measured_runs(arm_runs: Sequence[ArmRuns]) -> dict[str, list[list[dict[str, Any]]]]:
    """{label: the evaluations of each run that has a test accuracy to draw} of the arms that have any.

    Of arms none of which has an accuracy, as of regression, those with a test loss.
    """
    found: dict[str, list[list[dict[str, Any]]]] = {}
    for column in ("test_accuracy", "test_loss"):
        for arm in arm_runs if not found else ():
            runs = [
                run.evaluations
                for run in arm.runs
                if any(evaluation.get(column) is not None for evaluation in run.evaluations)
            ]
            found |= {arm.label: runs} if runs else {}
    return found


def curves(arm_runs: Sequence[ArmRuns], target_accuracy: float | None) -> "Figure":
    """Accuracy over steps, trips and time, with bands of standard errors over seeds; of arms with ``measured_runs``.

    arm_runs: the arms of one condition.
    """
    return learning_curves(measured_runs(arm_runs), target_accuracy)


def heat_maps(table: Sequence[Mapping[str, Any]]) -> "dict[str, Figure]":
    """{name: figure} of the final test accuracy over the first two settings of the conditions; none without either.

    With one setting a map has one row. With more than two there is a figure for each choice of the others.
    """
    names = list(dict.fromkeys(name for row in table for name in row["condition"]))
    if not names or all(row["final_test_accuracy"] is None for row in table):
        return {}
    across, down = names[0], names[1] if len(names) > 1 else ""
    by_others: dict[str, list[Mapping[str, Any]]] = {}
    for row in table:
        others = grid.folder({name: row["condition"].get(name) for name in names[2:]})
        by_others.setdefault(others, []).append(row)

    def place(row: Mapping[str, Any]) -> tuple[str, str]:
        condition = row["condition"]
        return grid.shown(condition.get(down)) if down else "", grid.shown(condition.get(across))

    vertical, horizontal = (list(dict.fromkeys(values)) for values in zip(*map(place, table), strict=True))
    figures: dict[str, Figure] = {}
    for others, rows_of_map in by_others.items():
        maps: dict[str, dict[str, np.ndarray]] = {name: {} for name in OF_MAPS}
        for row in rows_of_map:
            y, x = place(row)
            for name, label_grids in maps.items():
                label_grid = label_grids.setdefault(
                    row["label"], np.full((len(vertical), len(horizontal)), np.nan)
                )
                label_grid[vertical.index(y), horizontal.index(x)] = (
                    np.nan if row[name] is None else row[name]
                )
        values, errors, seeds = (maps[name] for name in OF_MAPS)
        figures[f"heat_map,{others}" if others else "heat_map"] = plots.heat_maps(
            values,
            (down, vertical),
            (across, horizontal),
            errors=errors,
            seeds=seeds,
            quantity="final test accuracy",
        )
    return figures
