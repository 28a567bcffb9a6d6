"""The pictures of a sweep: curves with error bands for each condition, and heat maps over all conditions."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jafl import plots
from jafl.config import grid
from jafl.sweeps.seed_means import Group, by_condition, rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_sweep(root: pathlib.Path, found: Sequence[Group], target_accuracy: float) -> None:
    """``accuracy.png`` for each condition, in its folder, and ``heat_map*.png`` in the sweep's."""
    for condition, several in by_condition(found):
        figure = curves(several, target_accuracy)
        if figure:
            plots.save(figure, root / grid.folder(condition) / "accuracy.png")
    for name, figure in heat_maps(rows(found)).items():
        plots.save(figure, root / f"{name}.png")


def curves(several: Sequence[Group], target_accuracy: float | None) -> "Figure | None":
    """Accuracy over steps, trips and time of one condition's groups, with bands of standard errors over seeds."""
    runs = {
        group.label: [
            run.evaluations
            for run in group.runs
            if any(one.get("test_accuracy") is not None for one in run.evaluations)
        ]
        for group in several
    }
    runs = {name: seeds for name, seeds in runs.items() if seeds}
    return plots.accuracy_panels(runs, target=target_accuracy) if runs else None


def heat_maps(table: Sequence[Mapping[str, Any]]) -> "dict[str, Figure]":
    """{name: figure} of the final test accuracy over the first two settings of the conditions; none without settings.

    With one setting a map has one row; with more than two there is a figure for each choice of the others.
    """
    names = list(dict.fromkeys(name for row in table for name in row["condition"]))
    if not names:
        return {}
    down = names[1] if len(names) > 1 else ""
    parts: dict[str, list[Mapping[str, Any]]] = {}
    for row in table:
        others = grid.folder({name: row["condition"].get(name) for name in names[2:]})
        parts.setdefault(others, []).append(row)

    def place(row: Mapping[str, Any]) -> tuple[str, str]:
        condition = row["condition"]
        return (
            grid.written(condition.get(down)) if down else "",
            grid.written(condition.get(names[0])),
        )

    vertical, horizontal = (list(dict.fromkeys(values)) for values in zip(*map(place, table), strict=True))
    figures: dict[str, Figure] = {}
    for others, part in parts.items():
        grids: dict[str, np.ndarray] = {}
        for row in part:
            cells = grids.setdefault(row["label"], np.full((len(vertical), len(horizontal)), np.nan))
            accuracy, (y, x) = row["final_test_accuracy"], place(row)
            cells[vertical.index(y), horizontal.index(x)] = np.nan if accuracy is None else accuracy
        name = f"heat_map,{others}" if others else "heat_map"
        figures[name] = plots.heat_maps(
            grids, (down, vertical), (names[0], horizontal), quantity="final test accuracy"
        )
    return figures
