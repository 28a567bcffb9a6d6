"""The pages that a benchmark and a comparison leave behind: one HTML file with its pictures, and its text."""

import pathlib
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from experiments.tools.benchmarks.clients import comparing, files, pictures, tables
from jafl.base.extras import MissingLibraryError
from jafl.base.paths import write_whole
from jafl.sweeps.markdown import escaped, table
from jafl.sweeps.report import inlined, template

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TEMPLATES = pathlib.Path(__file__).parent
UNDRAWN = 3  # the exit status
Show = Callable[[str], None]


def write_page(folder: pathlib.Path, content: Mapping[str, Any], show: Show) -> int:
    """Writes ``benchmark.html`` and ``benchmark.md``.

    Returns:
      0, or 3 if a library for pictures or pages is missing: then the text alone is written.
    """
    rows = content["rows"]
    text_of_settings = ", ".join(f"{name}={value}" for name, value in content["settings"].items())
    shown = {
        "title": "Batch benchmark: thousands of clients",
        "lead": tables.machine_line(content),
        "differences": [
            f"Settings: {text_of_settings or 'all at their defaults'}.",
            f"Begun {content['began']}.",
        ],
        "table": tables.table(rows),
        "text_columns": 2,
        "firsts": [n for n in range(1, len(rows)) if rows[n]["model"] != rows[n - 1]["model"]],
        "notes": tables.notes(content),
        "commands": list(dict.fromkeys(shlex.join(map(str, one)) for one in content.get("commands", []))),
    }
    figures = {
        "Speed and memory over the number of clients. Bars: the slowest and the fastest piece": (
            lambda: pictures.over_clients(rows)
        ),
        "The way to the first step": lambda: pictures.first_steps(rows),
    }
    return _write(folder, (files.PAGE, files.TEXT), shown, figures, show)


def write_comparison(folder: pathlib.Path, content: Mapping[str, Any], show: Show) -> int:
    """Writes ``benchmark_comparison.html`` and ``benchmark_comparison.md``; returns what ``write_page`` does."""
    shown = {
        "title": "Two benchmarks side by side",
        "lead": f"a: {content['names'][0]}; b: {content['names'][1]}",
        "differences": content["differences"],
        "table": content["table"],
        "text_columns": 1,
        "firsts": [],
        "notes": content["notes"],
        "commands": [f"python run.py compare {' '.join(content['names'])}"],
    }
    figures = {"The second machine over the first": lambda: pictures.ratios(content)}
    return _write(folder, (comparing.PAGE, comparing.TEXT), shown, figures, show)


def _write(
    folder: pathlib.Path,
    names: Sequence[str],
    shown: Mapping[str, Any],
    functions: Mapping[str, Callable[[], "Figure | None"]],
    show: Show,
) -> int:
    """Writes the text, which needs no library, and then the page."""
    text = "\n\n".join(
        [
            f"# {escaped(shown['title'])}",
            escaped(shown["lead"]),
            "\n".join(f"- {escaped(line)}" for line in shown["differences"]),
            table(shown["table"], shown["text_columns"]),
            *map(escaped, shown["notes"]),
            "\n".join(f"    {command}" for command in shown["commands"]),
        ]
    )
    write_whole(folder / names[1], lambda path: path.write_text(text + "\n", encoding="utf-8"))
    try:
        figures = {caption: draw() for caption, draw in functions.items()}
        inside = [(caption, inlined(figure)) for caption, figure in figures.items() if figure]
        from jafl import __version__

        html = template("benchmark.html", TEMPLATES).render(
            {**shown, "pictures": inside, "version": __version__}
        )
    except MissingLibraryError as error:
        show(f"Warning: {names[0]} is not written. {error}")
        return UNDRAWN
    write_whole(folder / names[0], lambda path: path.write_text(html, encoding="utf-8"))
    return 0
