"""The pictures of a sweep: curves with error bands for each condition, and heat maps over all conditions."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jafl import plots
from jafl.config import grid
from jafl.sweeps.seed_means import ArmRuns, by_condition, rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_sweep(root: pathlib.Path, arm_runs: Sequence[ArmRuns], target_accuracy: float) -> None:
    """Saves ``accuracy.png`` in the folder of each condition, and ``heat_map*.png`` in the sweep's directory."""
    for condition, arms in by_condition(arm_runs):
        figure = curves(arms, target_accuracy)
        if figure:
            plots.save(figure, root / grid.folder(condition) / "accuracy.png")
    for name, figure in heat_maps(rows(arm_runs)).items():
        plots.save(figure, root / f"{name}.png")


def curves(arm_runs: Sequence[ArmRuns], target_accuracy: float | None) -> "Figure | None":
    """Accuracy over steps, trips and time, with bands of standard errors over seeds; None if nothing was measured.

    arm_runs: the arms of one condition.
    """
    evaluations = {
        arm.label: [
            run.evaluations
            for run in arm.runs
            if any(evaluation.get("test_accuracy") is not None for evaluation in run.evaluations)
        ]
        for arm in arm_runs
    }
    evaluations = {label: seeds for label, seeds in evaluations.items() if seeds}
    return plots.accuracy_panels(evaluations, target=target_accuracy) if evaluations else None


def heat_maps(table: Sequence[Mapping[str, Any]]) -> "dict[str, Figure]":
    """{name: figure} of the final test accuracy over the first two settings of the conditions; none without settings.

    With one setting a map has one row. With more than two there is a figure for each choice of the others.
    """
    names = list(dict.fromkeys(name for row in table for name in row["condition"]))
    if not names:
        return {}
    across, down = names[0], names[1] if len(names) > 1 else ""
    by_others: dict[str, list[Mapping[str, Any]]] = {}
    for row in table:
        others = grid.folder({name: row["condition"].get(name) for name in names[2:]})
        by_others.setdefault(others, []).append(row)

    def place(row: Mapping[str, Any]) -> tuple[str, str]:
        condition = row["condition"]
        return grid.written(condition.get(down)) if down else "", grid.written(condition.get(across))

    vertical, horizontal = (list(dict.fromkeys(values)) for values in zip(*map(place, table), strict=True))
    figures: dict[str, Figure] = {}
    for others, rows_of_map in by_others.items():
        maps: dict[str, np.ndarray] = {}
        for row in rows_of_map:
            values = maps.setdefault(row["label"], np.full((len(vertical), len(horizontal)), np.nan))
            accuracy, (y, x) = row["final_test_accuracy"], place(row)
            values[vertical.index(y), horizontal.index(x)] = np.nan if accuracy is None else accuracy
        figures[f"heat_map,{others}" if others else "heat_map"] = plots.heat_maps(
            maps, (down, vertical), (across, horizontal), quantity="final test accuracy"
        )
    return figures
