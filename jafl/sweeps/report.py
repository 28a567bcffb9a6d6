"""Reports: any directory of runs as one self-contained HTML page, and its table as Markdown."""

import base64
import os
import pathlib
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jafl import plots
from jafl.config import grid
from jafl.config.settings import DEFAULTS
from jafl.errors import SettingError, unknown_name
from jafl.runs.directory import write_whole
from jafl.runs.reader import PastRun, find_runs, read_json, read_schedule
from jafl.sweeps import seed_means
from jafl.sweeps.figures import curves, heat_maps

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# What a run draws of its schedule, with captions.
SCHEDULE_PICTURES = {
    "timeline": "The first trips: who trains when",
    "staleness": "Staleness of the updates",
    "staleness_over_time": "Staleness over time, by the clients' speed",
    "in_flight": "Clients in flight",
    "label_split": "Who holds which labels",
    "labels_seen": "Labels seen by the server",
    "participation": "Participation of the clients",
    "influence": "Influence of the clients",
    "participating_examples": "Examples of those who take part",
    "weights": "Weights that trips were given",
}


def write_report(
    path: str | os.PathLike[str], *, baseline: str | None = None
) -> tuple[pathlib.Path, pathlib.Path]:
    """Writes ``report.html`` and ``report.md`` into a directory of runs, over earlier ones; returns both paths.

    Args:
      path: a run directory, a comparison, a sweep, or any directory with such directories in it.
      baseline: the algorithm, or arm, that trips to the target are compared with; if None, for a sweep its own.

    Raises:
      SettingError: if there is no run, a file is not what it should be, or a run is of another format version.
    """
    path = pathlib.Path(path)
    runs = find_runs(path)
    labels = seed_means.labels_in(path, runs)
    if baseline is None and (path / "sweep.json").is_file() and (path / "summary.json").is_file():
        baseline = read_json(path / "summary.json").get("baseline")
    if baseline is not None and baseline not in labels:
        raise unknown_name("baseline", baseline, labels)
    content = _content(path, runs, seed_means.groups(runs, labels), baseline)
    page, text = path / "report.html", path / "report.md"
    html = _template().render(content)
    write_whole(page, lambda file: file.write_text(html, encoding="utf-8"))
    write_whole(text, lambda file: file.write_text(_markdown(content), encoding="utf-8"))
    return page, text


def _template() -> Any:
    import jinja2

    loader = jinja2.FileSystemLoader(pathlib.Path(__file__).parent / "templates")
    environment = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined)
    return environment.get_template("report.html")


def _content(
    path: pathlib.Path, runs: Sequence[PastRun], found: Sequence[seed_means.Group], baseline: str | None
) -> dict[str, Any]:
    """Everything that the page says."""
    from jafl import __version__

    rows = seed_means.rows(found, baseline)
    varied = list(dict.fromkeys(name for group in found for name in group.condition))
    common, differing, defaults = _settings(found, varied)
    targets = sorted({run.config["target_accuracy"] for run in runs})
    table = seed_means.cells(rows, baseline)
    of_first = next(iter(seed_means.by_condition(found)))[1]
    shown = [group.runs[0] for group in of_first]
    per_condition = seed_means.by_condition(found)
    maps = heat_maps(rows) if (path / "sweep.json").is_file() else {}
    return {
        "version": __version__,
        "title": f"Runs in {path.resolve().name}",
        "lead": _lead(runs, found, varied),
        "common": common,
        "differing": differing,
        "defaults": defaults,
        "table": table,
        "text_columns": len(varied) + 1,
        "firsts": _firsts(rows),
        "table_note": f"Trips, steps and simulated time are those to test accuracy {' or '.join(map(str, targets))}, "
        "the target. Means over seeds ± one standard error; seconds are wall-clock, summed over seeds.",
        "notes": _notes(runs, found, rows, baseline),
        "maps": [(name, _inlined(figure)) for name, figure in maps.items()],
        "curves": [
            (_told(condition), _inlined(figure))
            for condition, several in per_condition
            if (figure := curves(several, targets[0] if len(targets) == 1 else None))
        ],
        "schedules": [{"name": _name(path, run), "pictures": _schedule_pictures(run)} for run in shown],
        "schedules_left_out": len(shown) < len(runs),
        "commands": _commands(path, runs),
        "repeat_one": shlex.join(
            ["python", "run.py", f"--config={runs[0].path / 'config.json'}", "--output_dir=again"]
        ),
        "made_with": _made_with(runs),
        "runs": [
            ["run", "status", "server steps", "client trips", "final test accuracy"],
            *(_line(path, run) for run in runs),
        ],
    }


def _lead(runs: Sequence[PastRun], found: Sequence[seed_means.Group], varied: Sequence[str]) -> str:
    """The page in a sentence."""
    labels = list(dict.fromkeys(group.label for group in found))
    seeds = {run.config["seed"] for run in runs}
    number = len(seed_means.by_condition(found))
    under = f", under {number} conditions ({', '.join(varied)})" if varied else ""
    data = ", ".join(sorted({str(run.config["dataset"]) for run in runs}))
    models = ", ".join(sorted({str(run.config["model"]) for run in runs}))
    return (
        f"{_plural(len(runs), 'run')} of {', '.join(labels)} with {_plural(len(seeds), 'seed')}{under}. "
        f"Data: {data}. Model: {models}."
    )


def _settings(
    found: Sequence[seed_means.Group], varied: Sequence[str]
) -> tuple[list[tuple[str, str]], list[list[str]], list[tuple[str, str]]]:
    """What all runs share and is not the default; a table of what differs between arms; the defaults."""
    runs = [run for group in found for run in group.runs]
    names = [name for name in runs[0].settings if name not in (*seed_means.NOT_COMPARED, *varied)]
    values = {name: {repr(run.config.get(name)) for run in runs} for name in names}
    same = [name for name in names if len(values[name]) == 1]
    common: list[tuple[str, str]] = []
    defaults: list[tuple[str, str]] = []
    for name in same:
        value = runs[0].config[name]
        (defaults if value == DEFAULTS.get(name) else common).append((name, grid.written(value)))
    others = [name for name in names if name not in same]
    by_label: dict[str, PastRun] = {}
    for run in runs:
        by_label.setdefault(run.label, run)
    arms = any(label != run.config["algorithm"] for label, run in by_label.items())
    others = ["algorithm", *others] if arms else others
    differing = [["arm" if arms else "algorithm", *others]] + [
        [
            label,
            *("-" if run.config.get(name) is None else grid.written(run.config[name]) for name in others),
        ]
        for label, run in by_label.items()
    ]
    return common, differing if others else [], defaults


def _notes(
    runs: Sequence[PastRun],
    found: Sequence[seed_means.Group],
    rows: Sequence[Mapping[str, Any]],
    baseline: str | None,
) -> list[str]:
    """What a reader of the table must know."""
    notes = []
    if baseline and any(row["speed_up"] is not None for row in rows):
        notes.append(
            f"Speed-up: how many times fewer client trips than {baseline} to the target; a bound where one of the "
            "two never reached it."
        )
    for status, meaning in (
        ("interrupted", "stopped and can go on (--resume)"),
        ("diverged", "diverged to NaN or infinity"),
        ("unfinished", "under way, or killed; --resume goes on"),
    ):
        number = sum(run.status == status for run in runs)
        if number:
            notes.append(f"{_plural(number, 'run')}: {meaning}.")
    repeated = sum(group.repeated for group in found)
    if repeated:
        notes.append(
            f"{_plural(repeated, 'run')} left out of means and curves: another run has the same settings and seed."
        )
    return notes


def _commands(path: pathlib.Path, runs: Sequence[PastRun]) -> list[str]:
    """What was typed: of the sweep or comparison, else of every run, each once."""
    contents: list[Mapping[str, Any]] = [
        read_json(path / name) for name in ("sweep.json", "comparison.json") if (path / name).is_file()
    ]
    typed = [
        shlex.join(content["command"])
        for content in contents or [run.config for run in runs]
        if content["command"]
    ]
    return list(dict.fromkeys(typed)) or ["(started from Python)"]


def _made_with(runs: Sequence[PastRun]) -> str:
    """Versions and devices."""
    told = {
        f"jafl {run.config['versions']['jafl']}, JAX {run.config['versions']['jax']}, Python "
        f"{run.config['versions']['python']}, on {run.config['device']}"
        for run in runs
    }
    return (
        "Made with "
        + "; ".join(sorted(told))
        + ". The same seed gives the same bits on the same kind of device."
    )


def _line(path: pathlib.Path, run: PastRun) -> list[str]:
    """One run, in the list of all."""
    last = run.evaluations[-1] if run.evaluations else {}
    accuracy = last.get("test_accuracy")
    return [
        _name(path, run),
        run.status,
        f"{last.get('server_step', 0):,}",
        f"{last.get('client_trips', 0):,}",
        "-" if accuracy is None else f"{accuracy:.4f}",
    ]


def _schedule_pictures(run: PastRun) -> list[tuple[str, str]]:
    """(caption, picture) of a run's schedule: those in its directory, or else some drawn from its schedule."""
    there = [
        (caption, _data_url((run.path / f"{name}.png").read_bytes()))
        for name, caption in SCHEDULE_PICTURES.items()
        if (run.path / f"{name}.png").is_file()
    ]
    if there:
        return there
    try:
        schedule = read_schedule(run.path)
    except SettingError:
        return []
    name = run.label
    drawn = {
        "timeline": plots.timeline(schedule),
        "staleness": plots.staleness({name: schedule}),
        "in_flight": plots.in_flight({name: schedule}),
    }
    return [(SCHEDULE_PICTURES[key], _inlined(figure)) for key, figure in drawn.items()]


def _markdown(content: Mapping[str, Any]) -> str:
    """The table, and how to repeat it."""
    head, *lines = content["table"]
    text = content["text_columns"]
    rule = ["---" if number < text else "---:" for number in range(len(head))]
    rows = [
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in [head, rule, *lines]
    ]
    parts = [
        f"# {content['title']}",
        content["lead"],
        "\n".join(rows),
        content["table_note"],
        *content["notes"],
    ]
    commands = "\n".join(f"    {command}" for command in content["commands"])
    return "\n\n".join([*parts, "To repeat it:", commands, content["made_with"]]) + "\n"


def _firsts(rows: Sequence[Mapping[str, Any]]) -> list[int]:
    """Where another condition begins."""
    return [n for n in range(1, len(rows)) if rows[n]["condition"] != rows[n - 1]["condition"]]


def _told(condition: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} = {grid.written(value)}" for name, value in condition.items())


def _name(path: pathlib.Path, run: PastRun) -> str:
    """Where a run is, seen from the report; its own name for the directory itself."""
    return run.name if run.path == path else str(run.path.relative_to(path))


def _plural(number: int, thing: str) -> str:
    return f"{number:,} {thing}" + ("" if number == 1 else "s")


def _inlined(figure: "Figure") -> str:
    return _data_url(plots.png(figure))


def _data_url(png: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(png).decode()
