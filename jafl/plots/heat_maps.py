"""Heat maps: a number for every pair of values of two settings, one map per algorithm (ACE, figure a.2)."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jafl.base.errors import require
from jafl.base.extras import importing
from jafl.plots.canvas import new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_ACROSS = 3  # maps side by side
LEAST_ERRORS = 10  # typical standard errors that the colors cover at least
LEAST_SHARE = 0.1  # of the largest value, that they cover where no error is known


def heat_maps(
    values: Mapping[str, Any],
    rows: tuple[str, Sequence[Any]],
    columns: tuple[str, Sequence[Any]],
    *,
    errors: Mapping[str, Any] | None = None,
    seeds: Mapping[str, Any] | None = None,
    quantity: str = "test accuracy",
    write: str = "{:.3f}",
) -> "Figure":
    """One map per label, all with the same colors.

    A field is framed where its label is best beyond doubt: where the 95 % interval of its difference from each other
    label (Welch's t) lies above 0. Without standard errors nothing is framed. The colors cover at least ten typical
    standard errors, or where none are known a tenth of the largest value, so that noise looks like noise.

    Args:
      values: {label: [R, C]}, of which NaN is left white.
      rows: the name of a setting, and its R values.
      columns: the name of another setting, and its C values.
      errors: {label: [R, C]}, the standard errors of ``values``, written below them; NaN where unknown.
      seeds: {label: [R, C]}, how many seeds each value is the mean of. Default: as many as a normal law needs.
      quantity: the meaning of the numbers, for the title.
      write: format of the number in each field.

    Returns:
      The figure.

    Raises:
      SettingError: if there is no label, or shapes do not fit.
    """
    require(values, "values", values, "at least one label")
    shape = (len(rows[1]), len(columns[1]))
    grids = _grids("values", values, values, shape)
    spreads = _grids("errors", errors or {}, values, shape)
    counts = _grids("seeds", seeds or {}, values, shape, default=np.inf)
    low, high = _range_of_colors(np.stack(list(grids.values())), np.stack(list(spreads.values())))
    leads = _leads(grids, spreads, counts)
    figure, axes = _empty_maps(len(grids), shape)
    for panel, (label, grid) in zip(axes.flat, grids.items(), strict=False):
        image = panel.imshow(grid, cmap="cividis", vmin=low, vmax=high, aspect="auto")
        panel.set_title(label, fontsize="medium", fontweight="bold")
        panel.set_xticks(range(shape[1]), [f"{value}" for value in columns[1]])
        panel.set_yticks(range(shape[0]), [f"{value}" for value in rows[1]])
        panel.tick_params(length=0, labelbottom=True)
        panel.spines[:].set_visible(False)
        _write_numbers(panel, grid, spreads[label], leads[label], write, middle=(low + high) / 2)
    for first in axes[:, 0]:
        first.set_ylabel(rows[0])
    figure.supxlabel(columns[0], fontsize="medium")
    bar = figure.colorbar(image, ax=figure.axes, fraction=0.05, pad=0.02)
    figure.suptitle(f"{quantity}{_about_errors(grids, spreads, leads)}", fontsize="medium")
    bar.outline.set_visible(False)
    return figure


def _grids(
    name: str,
    values: Mapping[str, Any],
    labels: Iterable[str],
    shape: tuple[int, int],
    default: float = np.nan,
) -> dict[str, np.ndarray]:
    """{label: [R, C] float64} of what is given, ``default`` elsewhere; SettingError for another shape."""
    grids = {label: np.asarray(values.get(label, np.full(shape, default)), np.float64) for label in labels}
    for label, grid in grids.items():
        require(grid.shape == shape and grid.size, f"{name}[{label!r}]", grid.shape, f"of shape {shape}")
    return grids


def _range_of_colors(values: np.ndarray, errors: np.ndarray) -> tuple[float, float]:
    """The values of the darkest and the lightest color: those of the data, wider where that would stretch noise."""
    finite, known = values[np.isfinite(values)], errors[np.isfinite(errors)]
    if not finite.size:
        return 0.0, 1.0
    typical = np.sqrt(np.mean(known**2)) if known.size else 0.0
    least = LEAST_ERRORS * typical if known.size else LEAST_SHARE * np.abs(finite).max()
    low, high = finite.min(), finite.max()
    missing = max(0.0, least - (high - low)) / 2
    return float(low - missing), float(high + missing) if high + missing > low - missing else float(low + 1)


def _leads(
    values: Mapping[str, np.ndarray], errors: Mapping[str, np.ndarray], seeds: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """{label: [R, C] bool}: where a label is better than every other that has a value there, beyond doubt."""
    leads = {}
    for label, own in values.items():
        others = [other for other in values if other != label]
        compared = [np.isfinite(values[other]) for other in others]
        ahead = [
            ~there
            | (own - values[other] > _half_interval(errors[label], errors[other], seeds[label], seeds[other]))
            for other, there in zip(others, compared, strict=True)
        ]
        leads[label] = (
            np.isfinite(own) & np.any(compared or [False], axis=0) & np.all(ahead or [False], axis=0)
        )
    return leads


def _half_interval(error: np.ndarray, other: np.ndarray, seeds: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Half of the 95 % interval of a difference of two means, by Welch's t; NaN where an error is unknown."""
    from scipy.special import stdtrit

    squares, freedom = np.stack([error**2, other**2]), np.stack([seeds, others]) - 1
    total = squares.sum(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        degrees = total**2 / np.sum(squares**2 / freedom, axis=0)
    degrees = np.where(np.isfinite(degrees), np.clip(degrees, 1, 1e9), 1e9)
    return stdtrit(degrees, 0.975) * np.sqrt(total)


def _about_errors(
    grids: Mapping[str, Any], errors: Mapping[str, np.ndarray], leads: Mapping[str, np.ndarray]
) -> str:
    """What the title says of standard errors and frames."""
    known = any(np.isfinite(error).any() for error in errors.values())
    spread = " ± one standard error" if known else ""
    if len(grids) == 1:
        return spread
    if not known:
        return "; none is framed as the best: one seed shows no error"
    if not any(lead.any() for lead in leads.values()):
        return f"{spread}; nowhere is one better than all others at 95 %"
    return f"{spread}; framed: better than each other label at 95 %"


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


def _write_numbers(
    panel: "Axes", grid: np.ndarray, errors: np.ndarray, leads: np.ndarray, write: str, middle: float
) -> None:
    """Writes the finite numbers of ``grid`` [R, C] into its fields, and frames those that lead; white on dark."""
    for (row, column), value in np.ndenumerate(grid):
        if not np.isfinite(value):
            continue
        error = errors[row, column]
        panel.text(
            column,
            row,
            write.format(value) + (f"\n± {write.format(error)}" if np.isfinite(error) else ""),
            ha="center",
            va="center",
            color="white" if value < middle else "black",
            fontweight="bold" if leads[row, column] else "normal",
        )
        if leads[row, column]:
            panel.add_patch(_frame(row, column))


def _frame(row: int, column: int) -> Any:
    """A frame around a field."""
    with importing():
        from matplotlib.patches import Rectangle

    return Rectangle((column - 0.47, row - 0.44), 0.94, 0.88, fill=False, edgecolor="#D55E00", linewidth=1.6)
