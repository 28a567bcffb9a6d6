"""Heat maps: a number for every pair of values of two settings, one map per algorithm (ACE, figure a.2)."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jafl.errors import require
from jafl.plots.canvas import new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
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
      rows: the name of a setting, and its R values.
      columns: the name of another setting, and its C values.
      quantity: the meaning of the numbers, for the title.
      write: format of the number in each field.

    Returns:
      The figure.

    Raises:
      SettingError: if there is no label, or shapes do not fit.
    """
    require(values, "values", values, "at least one label")
    shape = (len(rows[1]), len(columns[1]))
    grids = {label: np.asarray(grid, np.float64) for label, grid in values.items()}
    for label, grid in grids.items():
        require(grid.shape == shape and grid.size, f"values[{label!r}]", grid.shape, f"of shape {shape}")
    finite = np.concatenate([grid[np.isfinite(grid)] for grid in grids.values()])
    low, high = (finite.min(), finite.max()) if finite.size else (0.0, 1.0)
    best = np.max(np.nan_to_num(np.stack(list(grids.values())), nan=-np.inf), axis=0)
    figure, axes = _empty_maps(len(grids), shape)
    for panel, (label, grid) in zip(axes.flat, grids.items(), strict=False):
        image = panel.imshow(grid, cmap="cividis", vmin=low, vmax=high, aspect="auto")
        panel.set_title(label, fontsize="medium", fontweight="bold")
        panel.set_xticks(range(shape[1]), [f"{value}" for value in columns[1]])
        panel.set_yticks(range(shape[0]), [f"{value}" for value in rows[1]])
        panel.tick_params(length=0, labelbottom=True)
        panel.spines[:].set_visible(False)
        leads = (grid == best) & (len(grids) > 1)
        _write_numbers(panel, grid, leads, write, middle=(low + high) / 2)
    for first in axes[:, 0]:
        first.set_ylabel(rows[0])
    figure.supxlabel(columns[0], fontsize="medium")
    bar = figure.colorbar(image, ax=figure.axes, fraction=0.05, pad=0.02)
    framed = "; the best of each field is framed" if len(grids) > 1 else ""
    figure.suptitle(f"{quantity}{framed}", fontsize="medium")
    bar.outline.set_visible(False)
    return figure


def _empty_maps(count: int, shape: tuple[int, int]) -> tuple["Figure", np.ndarray]:
    """A figure with axes for ``count`` maps of ``shape`` (rows, columns), and its axes; unused ones are removed."""
    across = min(MOST_ACROSS, count)
    down = -(-count // across)
    width = max(2.6, 0.85 * shape[1] + 0.9)
    height = max(1.6, 0.55 * shape[0] + 0.9)
    figure, axes = new_figure(
        down, across, across * width + 1.0, down * height + 0.6, sharex=True, sharey=True
    )
    for unused in axes.flat[count:]:
        unused.remove()
    return figure, axes


def _write_numbers(panel: "Axes", grid: np.ndarray, leads: np.ndarray, write: str, middle: float) -> None:
    """Writes the finite numbers of ``grid`` [R, C] into its fields, and frames those that lead; white on dark."""
    for (row, column), value in np.ndenumerate(grid):
        if not np.isfinite(value):
            continue
        panel.text(
            column,
            row,
            write.format(value),
            ha="center",
            va="center",
            color="white" if value < middle else "black",
            fontweight="bold" if leads[row, column] else "normal",
        )
        if leads[row, column]:
            panel.add_patch(_frame(row, column))


def _frame(row: int, column: int) -> Any:
    """A frame around a field."""
    from matplotlib.patches import Rectangle

    return Rectangle((column - 0.47, row - 0.44), 0.94, 0.88, fill=False, edgecolor="#D55E00", linewidth=1.6)
