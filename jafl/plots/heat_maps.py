"""Heat maps: a number for every pair of values of two settings, one map per algorithm (ACE, figure a.2)."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jafl.errors import require
from jafl.plots.canvas import new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_ACROSS = 3  # maps side by side


def heat_maps(
    values: Mapping[str, Any],
    rows: tuple[str, Sequence[Any]],
    columns: tuple[str, Sequence[Any]],
    *,
    quantity: str = "test accuracy",
    write: str = "{:.3f}",
) -> "Figure":
    """One map per label, all with the same colors; the best label of each pair of values is framed.

    Args:
      values: {label: [R, C]}, of which NaN is left white.
      rows, columns: the name of a setting, and its R or C values.
      quantity: what is shown, for the title.
      write: how each number is written into its field.

    Raises SettingError if there is no label, or shapes do not fit.
    """
    require(values, "values", values, "at least one label")
    shape = (len(rows[1]), len(columns[1]))
    grids = {label: np.asarray(grid, np.float64) for label, grid in values.items()}
    for label, grid in grids.items():
        require(grid.shape == shape and grid.size, f"values[{label!r}]", grid.shape, f"of shape {shape}")
    finite = np.concatenate([grid[np.isfinite(grid)] for grid in grids.values()])
    low, high = (finite.min(), finite.max()) if finite.size else (0.0, 1.0)
    best = np.max(np.nan_to_num(np.stack(list(grids.values())), nan=-np.inf), axis=0)
    across = min(MOST_ACROSS, len(grids))
    down = -(-len(grids) // across)
    width = max(2.6, 0.85 * shape[1] + 0.9)
    height = max(1.6, 0.55 * shape[0] + 0.9)
    figure, axes = new_figure(
        down, across, across * width + 1.0, down * height + 0.6, sharex=True, sharey=True
    )
    for unused in axes.flat[len(grids) :]:
        unused.remove()
    for number, (label, grid) in enumerate(grids.items()):
        axis: Any = axes.flat[number]
        image = axis.imshow(grid, cmap="cividis", vmin=low, vmax=high, aspect="auto")
        axis.set_title(label, fontsize="medium", fontweight="bold")
        axis.set_xticks(range(shape[1]), [f"{value}" for value in columns[1]])
        axis.set_yticks(range(shape[0]), [f"{value}" for value in rows[1]])
        axis.tick_params(length=0, labelbottom=True)
        axis.spines[:].set_visible(False)
        for (row, column), value in np.ndenumerate(grid):
            if not np.isfinite(value):
                continue
            dark = value < (low + high) / 2
            leads = len(grids) > 1 and value == best[row, column]
            axis.text(
                column,
                row,
                write.format(value),
                ha="center",
                va="center",
                color="white" if dark else "black",
                fontweight="bold" if leads else "normal",
            )
            if leads:
                axis.add_patch(_frame(row, column))
    for first in axes[:, 0]:
        first.set_ylabel(rows[0])
    figure.supxlabel(columns[0], fontsize="medium")
    bar = figure.colorbar(image, ax=figure.axes, fraction=0.05, pad=0.02)
    framed = "; the best of each field is framed" if len(grids) > 1 else ""
    figure.suptitle(f"{quantity}{framed}", fontsize="medium")
    bar.outline.set_visible(False)
    return figure


def _frame(row: int, column: int) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((column - 0.47, row - 0.44), 0.94, 0.88, fill=False, edgecolor="#D55E00", linewidth=1.6)
