"""Reports: a directory of runs as one self-contained HTML page, and its table as Markdown."""

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
from jafl.sweeps.seed_means import ArmRuns

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# {name: caption} of the pictures that a run draws of its schedule.
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
    """Writes ``report.html`` and ``report.md`` into a directory of runs, in the place of earlier ones.

    Args:
      path: a run directory, a comparison, a sweep, or any directory with such directories in it.
      baseline: the algorithm, or arm, that trips to the target are compared with. Default: the baseline of the
        sweep in ``path``, else none.

    Returns:
      The paths of both files.

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
    content = _content(path, runs, seed_means.by_arm(runs, labels), baseline)
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
    path: pathlib.Path, runs: Sequence[PastRun], arm_runs: Sequence[ArmRuns], baseline: str | None
) -> dict[str, Any]:
    """Everything that the page shows."""
    from jafl import __version__

    rows = seed_means.rows(arm_runs, baseline)
    swept = list(dict.fromkeys(name for arm in arm_runs for name in arm.condition))
    targets = sorted({run.config["target_accuracy"] for run in runs})
    return {
        "version": __version__,
        "title": f"Runs in {path.resolve().name}",
        "lead": _lead(runs, arm_runs, swept),
        **_settings(arm_runs, swept),
        "table": seed_means.text_table(rows, baseline),
        "text_columns": len(swept) + 1,
        "firsts": _firsts(rows),
        "table_note": f"Trips, steps and simulated time are those to test accuracy {' or '.join(map(str, targets))}, "
        "the target. Means over seeds ± one standard error; seconds are wall-clock, summed over seeds.",
        "notes": _notes(runs, arm_runs, rows, baseline),
        "maps": _maps(rows) if (path / "sweep.json").is_file() else [],
        "curves": _curves(arm_runs, targets[0] if len(targets) == 1 else None),
        **_schedules(path, runs, arm_runs),
        "commands": _commands(path, runs),
        "repeat_one": shlex.join(
            ["python", "run.py", f"--config={runs[0].path / 'config.json'}", "--output_dir=again"]
        ),
        "made_with": _made_with(runs),
        "runs": [
            ["run", "status", "server steps", "client trips", "final test accuracy"],
            *(_run_cells(path, run) for run in runs),
        ],
    }


def _maps(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """(caption, picture) of the heat maps."""
    return [(name, _inlined(figure)) for name, figure in heat_maps(rows).items()]


def _curves(arm_runs: Sequence[ArmRuns], target_accuracy: float | None) -> list[tuple[str, str]]:
    """(caption, picture) of each condition's accuracy curves."""
    return [
        (_caption(condition), _inlined(figure))
        for condition, arms in seed_means.by_condition(arm_runs)
        if (figure := curves(arms, target_accuracy))
    ]


def _schedules(path: pathlib.Path, runs: Sequence[PastRun], arm_runs: Sequence[ArmRuns]) -> dict[str, Any]:
    """The schedule of each arm's first run under the first condition, and whether any are left out."""
    _, arms = seed_means.by_condition(arm_runs)[0]
    shown = [arm.runs[0] for arm in arms]
    return {
        "schedules": [{"name": _name(path, run), "pictures": _schedule_pictures(run)} for run in shown],
        "schedules_left_out": len(shown) < len(runs),
    }


def _lead(runs: Sequence[PastRun], arm_runs: Sequence[ArmRuns], swept: Sequence[str]) -> str:
    """What was run, in a sentence or two."""
    labels = list(dict.fromkeys(arm.label for arm in arm_runs))
    seeds = {run.config["seed"] for run in runs}
    number = len(seed_means.by_condition(arm_runs))
    under = f", under {number} conditions ({', '.join(swept)})" if swept else ""
    data = ", ".join(sorted({str(run.config["dataset"]) for run in runs}))
    models = ", ".join(sorted({str(run.config["model"]) for run in runs}))
    return (
        f"{_plural(len(runs), 'run')} of {', '.join(labels)} with {_plural(len(seeds), 'seed')}{under}. "
        f"Data: {data}. Model: {models}."
    )


def _settings(arm_runs: Sequence[ArmRuns], swept: Sequence[str]) -> dict[str, Any]:
    """The settings that are not swept: common ones, a table of those in which arms differ, and the defaults."""
    runs = [run for arm in arm_runs for run in arm.runs]
    names = [name for name in runs[0].settings if name not in (*seed_means.NOT_COMPARED, *swept)]
    values = {name: {repr(run.config.get(name)) for run in runs} for name in names}
    common: list[tuple[str, str]] = []
    defaults: list[tuple[str, str]] = []
    for name in names:
        if len(values[name]) == 1:
            value = runs[0].config[name]
            (defaults if value == DEFAULTS.get(name) else common).append((name, grid.written(value)))
    differing = _arms_table(runs, [name for name in names if len(values[name]) > 1])
    return {"common": common, "differing": differing, "defaults": defaults}


def _arms_table(runs: Sequence[PastRun], names: Sequence[str]) -> list[list[str]]:
    """A table of the settings ``names`` of each arm; empty if there is nothing to tell."""
    by_label: dict[str, PastRun] = {}
    for run in runs:
        by_label.setdefault(run.label, run)
    labelled = any(label != run.config["algorithm"] for label, run in by_label.items())
    names = ["algorithm", *names] if labelled else names
    if not names:
        return []
    return [["arm" if labelled else "algorithm", *names]] + [
        [
            label,
            *("-" if run.config.get(name) is None else grid.written(run.config[name]) for name in names),
        ]
        for label, run in by_label.items()
    ]


def _notes(
    runs: Sequence[PastRun],
    arm_runs: Sequence[ArmRuns],
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
    repeated = sum(arm.repeated for arm in arm_runs)
    if repeated:
        notes.append(
            f"{_plural(repeated, 'run')} left out of means and curves: another run has the same settings and seed."
        )
    return notes


def _commands(path: pathlib.Path, runs: Sequence[PastRun]) -> list[str]:
    """The commands that were typed: that of the sweep or comparison, else those of all runs, each once."""
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
    """A sentence that names versions and devices."""
    versions = {
        f"jafl {run.config['versions']['jafl']}, JAX {run.config['versions']['jax']}, Python "
        f"{run.config['versions']['python']}, on {run.config['device']}"
        for run in runs
    }
    return (
        "Made with "
        + "; ".join(sorted(versions))
        + ". The same seed gives the same bits on the same kind of device."
    )


def _run_cells(path: pathlib.Path, run: PastRun) -> list[str]:
    """The row of one run in the table of all runs."""
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
    """(caption, picture) of a run's schedule: those in its directory, else three drawn from its schedule."""
    in_directory = [
        (caption, _data_url((run.path / f"{name}.png").read_bytes()))
        for name, caption in SCHEDULE_PICTURES.items()
        if (run.path / f"{name}.png").is_file()
    ]
    if in_directory:
        return in_directory
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
    paragraphs = [
        f"# {content['title']}",
        content["lead"],
        "\n".join(rows),
        content["table_note"],
        *content["notes"],
    ]
    commands = "\n".join(f"    {command}" for command in content["commands"])
    return "\n\n".join([*paragraphs, "To repeat it:", commands, content["made_with"]]) + "\n"


def _firsts(rows: Sequence[Mapping[str, Any]]) -> list[int]:
    """The numbers of the rows at which another condition begins."""
    return [n for n in range(1, len(rows)) if rows[n]["condition"] != rows[n - 1]["condition"]]


def _caption(condition: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} = {grid.written(value)}" for name, value in condition.items())


def _name(path: pathlib.Path, run: PastRun) -> str:
    """A run's path relative to the report's; its own name if the report is in the run directory."""
    return run.name if run.path == path else str(run.path.relative_to(path))


def _plural(number: int, thing: str) -> str:
    return f"{number:,} {thing}" + ("" if number == 1 else "s")


def _inlined(figure: "Figure") -> str:
    return _data_url(plots.png(figure))


def _data_url(png: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(png).decode()
