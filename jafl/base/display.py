"""How objects show themselves: one line of text, and in a notebook a table with a small picture.

The pictures are SVG inside the page. They are made here, of a few lines and rectangles, so that a table appears at
once and without matplotlib. They take the page's text color, so that they can be read on dark pages, too.
"""

import html
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

BLUE = "#0072B2"  # of Okabe and Ito's colors, like the first line of jafl's pictures
# Colors of the parts of stacked bars, from the bottom up: Okabe's and Ito's, and three more. More parts have none.
STACKED = (
    *("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7"),
    *("#56B4E9", "#F0E442", "#999999", "#882255", "#44AA99"),
)
WIDTH, HEIGHT = 300, 150
LEFT, RIGHT, TOP, BOTTOM = 8, WIDTH - 8, 22, HEIGHT - 34  # the edges of the area that is drawn in
MOST_POINTS, MOST_BARS = 200, 40


def printable(text: str) -> str:
    """``text`` with an escape in the place of each character that cannot be seen: controls, changes of direction.

    A name may hold such characters, and a terminal or a browser would obey them.

    Examples:
      >>> print(printable("red\\x1b[31m"))
      red\\x1b[31m
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def one_line(name: str, *facts: str) -> str:
    """``<name: fact, fact>``, with line breaks taken out."""
    return " ".join(f"<{name}: {', '.join(facts)}>".split())


def count(number: int, thing: str) -> str:
    """``1,200 trips`` or ``1 trip``."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def number(value: Any) -> str:
    """A number with four digits, or all those before its point: 12,345 or 0.1235."""
    if isinstance(value, (float, np.floating)):
        size = abs(float(value))
        return f"{value:,.0f}" if 1000 <= size < 1e9 else f"{value:.4g}"
    return (
        f"{value:,}" if isinstance(value, (int, np.integer)) and not isinstance(value, bool) else str(value)
    )


def shortened(text: str, length: int = 60) -> str:
    """The text in one line, cut where it is longer."""
    text = " ".join(text.split())
    return text if len(text) <= length else f"{text[: length - 4]} ..."


def card(title: str, facts: Mapping[str, Any], picture: str = "") -> str:
    """HTML: a table of ``facts``, numbers and texts to be escaped, below ``title``; beside it ``picture``, an SVG."""
    cell = "text-align:left;padding:1px 8px 1px 0"
    rows = "".join(
        f'<tr><td style="{cell}">{html.escape(name)}</td>'
        f'<td style="{cell}">{html.escape(shortened(number(value)))}</td></tr>'
        for name, value in facts.items()
    )
    heading = f'<tr><th colspan="2" style="{cell}">{html.escape(title)}</th></tr>'
    table = f'<table style="margin:0"><thead>{heading}</thead><tbody>{rows}</tbody></table>'
    beside = f"<div>{picture}</div>" if picture else ""
    outer = "display:flex;flex-wrap:wrap;gap:24px;align-items:center"
    return f'<div style="{outer}">{table}{beside}</div>'


def line_chart(across: Sequence[float], values: Sequence[float], horizontal: str, vertical: str) -> str:
    """SVG: a line through the points (``across``, ``values``), both [n], that are finite; "" if there are none."""
    points = np.array([across, values], np.float64).T
    points = points[np.isfinite(points).all(axis=1)]
    if not len(points):
        return ""
    low, high = points.min(axis=0), points.max(axis=0)
    size = np.where(high > low, high - low, 1.0)
    shown = points[np.unique(np.linspace(0, len(points) - 1, MOST_POINTS).round().astype(int))]
    x, y = ((shown - low) / size).T
    places = " ".join(
        f"{LEFT + (RIGHT - LEFT) * right:.1f},{BOTTOM - (BOTTOM - TOP) * up:.1f}"
        for right, up in zip(x, y, strict=True)
    )
    line = f'<polyline points="{places}" fill="none" stroke="{BLUE}" stroke-width="1.8"/>'
    dot = places.rpartition(" ")[2].split(",")
    end = f'<circle cx="{dot[0]}" cy="{dot[1]}" r="2.6" fill="{BLUE}"/>'
    ends = (number(float(low[0])), number(float(high[0])))
    spread = f"{vertical}, from {number(float(low[1]))} to {number(float(high[1]))}"
    return _framed(line + end, spread, horizontal, ends)


def histogram(values: np.ndarray, horizontal: str, vertical: str) -> str:
    """SVG: how often each value of an array of whole numbers occurs, in at most 40 bars of equal width."""
    low, high = int(values.min()), int(values.max())
    width = -(-(high - low + 1) // MOST_BARS)
    counts = np.bincount((np.asarray(values, np.int64) - low) // width)
    return bars([counts], horizontal, f"{vertical} (tallest bar: {number(int(counts.max()))})", (low, high))


def bars(parts: Sequence[np.ndarray], horizontal: str, title: str, ends: tuple[Any, Any]) -> str:
    """SVG: bars side by side, each of parts on top of each other; of each part the heights, [bars] of at least 0.

    There are as many parts as colors at most. ``ends`` stand below the first bar and below the last one.
    """
    heights = np.asarray(parts, np.float64)
    tops = np.cumsum(heights, axis=0)
    scale = (BOTTOM - TOP) / max(float(tops.max()), np.finfo(float).tiny)
    width = (RIGHT - LEFT) / heights.shape[1]
    paths = []
    for place, (top, height) in enumerate(zip(tops, heights, strict=True)):
        rectangles = "".join(
            f"M{LEFT + bar * width:.1f} {BOTTOM - top[bar] * scale:.1f}h{0.85 * width:.1f}"
            f"v{height[bar] * scale:.1f}h-{0.85 * width:.1f}z"
            for bar in np.flatnonzero(height)
        )
        paths.append(f'<path d="{rectangles}" fill="{STACKED[place]}"/>')
    return _framed("".join(paths), title, horizontal, (number(ends[0]), number(ends[1])))


def flow(steps: Sequence[str], below: Mapping[int, str] | None = None) -> str:
    """SVG: boxes with arrows from each to the next one; ``below``: {place: text} of boxes below, arrows both ways."""
    gap, height, below = 22, 26, below or {}
    widths = [16 + 6.6 * len(step) for step in steps]
    lefts = np.cumsum([0.0, *(width + gap for width in widths[:-1])]) + 2
    shapes = []
    for place, (step, left, width) in enumerate(zip(steps, lefts, widths, strict=True)):
        shapes.append(_box(step, left, 4, width, height))
        if place:
            shapes.append(_arrow(left - gap + 2, 4 + height / 2, left - 3, 4 + height / 2))
        if text := below.get(place):
            middle, wide = left + width / 2, 16 + 6.6 * len(text)
            shapes.append(_box(text, middle - wide / 2, 54, wide, height))
            shapes += [_arrow(middle - 6, 32, middle - 6, 51), _arrow(middle + 6, 52, middle + 6, 33)]
    return _svg("".join(shapes), lefts[-1] + widths[-1] + 4, 84 if any(below.values()) else height + 8)


def _box(text: str, left: float, top: float, width: float, height: float) -> str:
    """A rectangle with a text in its middle."""
    return (
        f'<rect x="{left:.1f}" y="{top}" width="{width:.1f}" height="{height}" rx="4" fill="none" stroke="{BLUE}"/>'
        + _text(text, left + width / 2, top + height / 2 + 4, "middle")
    )


def _arrow(x1: float, y1: float, x2: float, y2: float) -> str:
    """A line with a head at its end; it runs to the right, down or up."""
    head = "l-5 -3v6z" if y1 == y2 else ("l-3 -5h6z" if y2 > y1 else "l-3 5h6z")
    return (
        f'<path d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}" stroke="currentColor" fill="none"/>'
        f'<path d="M{x2:.1f} {y2:.1f}{head}" fill="currentColor"/>'
    )


def _framed(drawing: str, title: str, horizontal: str, ends: tuple[str, str]) -> str:
    """A drawing with a title above it, and below it a line, what is at its ends, and what it is."""
    axis = f'<path d="M{LEFT} {BOTTOM}H{RIGHT}" stroke="currentColor" stroke-width="0.8"/>'
    texts = [
        _text(title, LEFT, TOP - 9, "start"),
        _text(ends[0], LEFT, BOTTOM + 14, "start"),
        _text(ends[1], RIGHT, BOTTOM + 14, "end"),
        _text(horizontal, (LEFT + RIGHT) / 2, BOTTOM + 28, "middle"),
    ]
    return _svg(drawing + axis + "".join(texts), WIDTH, HEIGHT)


def _text(text: str, x: float, y: float, anchor: str) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="currentColor">{html.escape(text)}</text>'
    )


def _svg(content: str, width: float, height: float) -> str:
    style = "font:11px sans-serif;max-width:100%"
    size = f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} style="{style}">{content}</svg>'
