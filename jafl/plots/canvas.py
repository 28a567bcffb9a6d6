"""Functions that all pictures share: the empty figure, its file, colors, numbers on axes, and the legend."""

import functools
import io
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jafl.base.errors import require
from jafl.base.extras import importing
from jafl.base.paths import given_path
from jafl.records import EventSchedule, check_schedule

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

# Okabe and Ito's colors, which color-blind readers can distinguish.
COLORS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#000000")
TIME = "simulated time (units of the delay law)"
MOST_BARS = 40  # clients, or values of staleness, that are drawn as bars
_LINES, _LINE = 5, 0.21  # of a legend that a figure has room for, and the height of one more, in inches


def save(figure: "Figure", path: str | os.PathLike) -> None:
    """Writes a figure as a PNG. The same picture gives the same bytes: no date or version is stored.

    Args:
      figure: a figure that a function of ``jafl.plots`` has returned.
      path: of the file; one that is there is replaced. ``figure.savefig(path)`` writes other formats, such as PDF.

    Raises:
      SettingError: if ``figure`` is none, there is no folder for the file, or its name is of another format.
    """
    file = given_path(path, "that of a file, 'accuracy.png' for example")
    fits = file.parent.is_dir() and not file.is_dir()
    require(fits, "path", str(path), "that of a file in a folder that is there")
    other = file.suffix.lower()[1:] in set(_canvas(figure).get_supported_filetypes()) - {"png"}
    require(not other, "path", str(path), "a name for a PNG", "figure.savefig(path) writes other formats.")
    _write(figure, file)


def _canvas(figure: Any) -> Any:
    """The canvas of a figure; SettingError for what is none."""
    require(hasattr(figure, "canvas"), "figure", figure, "a figure, as a function of jafl.plots returns it")
    return figure.canvas


def _write(figure: Any, file: Any) -> None:
    """Draws the figure once; ``Figure.savefig`` would lay it out twice, which takes most of the time."""
    _canvas(figure).print_png(file, metadata={"Software": None})


def new_figure(
    rows: int, columns: int, width: float, height: float, **options: Any
) -> tuple["Figure", np.ndarray]:
    """An empty figure of ``width`` by ``height`` inches, and its axes [rows, columns]."""
    with importing():
        from cycler import cycler
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

    figure: Any = Figure(figsize=(width, height), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    figure._repr_png_ = functools.partial(png, figure)  # the name that notebooks look for
    figure.draw = functools.partial(_draw, figure)
    axes = figure.subplots(rows, columns, squeeze=False, **options)
    for panel in axes.flat:  # lines differ in color, and dashed ones by the same colors once more
        panel.set_prop_cycle(cycler(linestyle=["-", "--"]) * cycler(color=COLORS))
    return figure, axes


def _draw(figure: Any, renderer: Any) -> None:
    """Draws a figure; a text with dollars that is no formula, such as $$, as it stands, where Matplotlib raises."""
    with importing():
        from matplotlib.cbook import is_math_text
        from matplotlib.mathtext import MathTextParser
        from matplotlib.text import Text

    for text in figure.findobj(Text):
        for line in text.get_text().split("\n"):
            try:
                _ = is_math_text(line) and MathTextParser("agg").parse(line)
            except ValueError:
                text.set_parse_math(False)
    type(figure).draw(figure, renderer)


def legend_label(label: Any) -> str:
    """The label, a text or a number, as a legend shows it: Matplotlib leaves out what begins with an underscore."""
    return f" {label}" if str(label).startswith("_") else str(label)


def png(figure: "Figure") -> bytes:
    """Draws a figure as a PNG.

    Args:
      figure: a figure that a function of ``jafl.plots`` has returned.

    Returns:
      The content of the file.
    """
    buffer = io.BytesIO()
    _write(figure, buffer)
    return buffer.getvalue()


def thousands(value: float, position: float | None = None) -> str:
    """A number with separated thousands: 12,500."""
    return f"{value:,.10g}"


def per_cent(value: float, position: float | None = None) -> str:
    """A share as a percentage: 0.025 is 2.5 %."""
    return f"{100 * value:.4g} %"


def rounded(value: float, decimals: int = 1) -> str:
    """A number with ``decimals``, without them from 100 on, and thousands separated: 12,500 or 3.2."""
    return f"{value:,.{0 if value >= 100 else decimals}f}"


def is_constant(values: np.ndarray) -> bool:
    """Whether numbers are the same but for rounding, so that a picture of them would show nothing.

    Args:
      values: numbers of any shape.

    Returns:
      True if none differs from another by more than a millionth of the largest, or there are none.

    Examples:
      >>> is_constant(np.array([0.1, 0.1])), is_constant(np.array([0.1, 0.2]))
      (True, False)
    """
    values = np.asarray(values, np.float64)
    return not values.size or bool(np.ptp(values) <= 1e-6 * np.abs(values).max())


def require_trips(setting: str, schedule: EventSchedule) -> None:
    """Raises SettingError for what is no schedule, and for a schedule without applied trips."""
    check_schedule(schedule, setting)
    require(schedule.num_trips, setting, "without applied trips", "a schedule with trips")


def require_schedules(schedules: Mapping[str, EventSchedule]) -> None:
    """Raises SettingError if there is no schedule, or one without applied trips."""
    fits = isinstance(schedules, Mapping) and schedules
    require(fits, "schedules", schedules, "{label: schedule}", "One alone is {'': schedule}.")
    for label, schedule in schedules.items():
        require_trips(f"schedules[{label!r}]", schedule)


def with_rows(
    schedules: Mapping[str, EventSchedule], same: Mapping[str, str]
) -> tuple[list[tuple[str, EventSchedule, str]], str]:
    """(label, schedule, color) of those that get a row of a picture, and a note, maybe "", on the others.

    Without a row are those in ``same``, {label: a few words}, which would be constant, unless no other is left.
    """
    colors = {label: COLORS[index % len(COLORS)] for index, label in enumerate(schedules)}
    chosen = [label for label in schedules if label not in same] or list(schedules)
    rest: dict[str, list[str]] = {}
    for label, words in same.items():
        if label not in chosen:
            rest.setdefault(words, []).append(label)
    notes = [f"{', '.join(labels)} ({words})" for words, labels in rest.items()]
    note = f"\nNot drawn: {'; '.join(notes)}" if notes else ""
    return [(label, schedules[label], colors[label]) for label in chosen], note


def whole_numbers(axis: "Axis") -> None:
    """Separates thousands, and puts no ticks between whole numbers unless the range is tiny."""
    with importing():
        from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10], integer=True))
    axis.set_major_formatter(thousands)


def tidy(axes: "Axes", horizontal: str, vertical: str, write: Any = None) -> None:
    """Sets labels, whole numbers below, a faint grid and no box; ``write`` formats the numbers on the left."""
    axes.set(xlabel=horizontal, ylabel=vertical)
    whole_numbers(axes.xaxis)
    if write:
        axes.yaxis.set_major_formatter(write)
    axes.grid(alpha=0.3, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def powers_of_ten(axis: "Axis", low: float, high: float, write: Any) -> None:
    """Sets the ticks of a logarithmic axis from ``low`` to ``high``: one or two for each power of ten."""
    with importing():
        from matplotlib.ticker import LogLocator

    axis.set_major_locator(LogLocator(subs=(1, 3) if high < 1000 * low else (1,)))
    axis.set_major_formatter(write)
    axis.minorticks_off()


def name_log_scale(axis: "Axis", above: str = "") -> None:
    """Adds to an axis's name that it is logarithmic; ``above``: from this value on, where it is linear below."""
    name, scale = axis.get_label_text(), f"log scale above {above}" if above else "log scale"
    axis.set_label_text(f"{name[:-1]}; {scale})" if name.endswith(")") else f"{name} ({scale})")


def name_clients(axis: "Axis", clients: Sequence[int] | np.ndarray, room: float) -> None:
    """Sets ticks at 0, 1, 2, ... named after ``clients``; small print if a client has ``room`` for < 0.25 inches."""
    axis.set_ticks(range(len(clients)), [str(client) for client in clients])
    axis.set_tick_params(labelsize="medium" if room >= 0.25 else "small")


def legend_above(figure: "Figure", handles: Sequence[Any]) -> None:
    """A legend of labelled artists above the axes, with as many columns as fit the figure's width.

    The figure grows by the lines that would leave too little of it to the axes.
    """
    if not handles:  # as of one curve without a name
        return
    labels = [handle.get_label() for handle in handles]
    for columns in range(len(labels), 0, -1):
        parts = np.array_split(labels, columns)
        if sum(8 + max(map(len, part)) for part in parts) <= 12 * figure.get_figwidth():
            break
    more = max(0, len(parts[0]) - _LINES)
    figure.set_figheight(figure.get_figheight() + more * _LINE)
    figure.legend(handles=handles, loc="outside upper center", ncols=columns, frameon=False)
