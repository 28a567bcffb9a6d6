"""Reports: a directory of runs as one self-contained HTML page, and its table as Markdown."""

import base64
import dataclasses
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jafl import plots
from jafl.base.display import printable
from jafl.base.errors import SettingError, unknown_name
from jafl.base.extras import importing
from jafl.base.paths import in_home, write_whole
from jafl.config import calls, grid
from jafl.config.settings import DEFAULTS, default_of
from jafl.config.world import in_world
from jafl.runs.directory import tables
from jafl.runs.directory.damage import Damaged, refuse_no_run, survey
from jafl.runs.directory.reader import PastRun, read_json
from jafl.runs.recording.pictures import figures_from_files
from jafl.sweeps import privacy, seed_means
from jafl.sweeps.conditions import IN_PARTS, USUAL, caption, in_columns, usual_values
from jafl.sweeps.figures import curves, heat_maps, measured_runs
from jafl.sweeps.markdown import markdown
from jafl.sweeps.repeat import command_of_one, commands
from jafl.sweeps.seed_means import ArmRuns

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RUNS_HEAD = ["run", "status", "server steps", "client trips"]
PNG_BEGINS, PNG_ENDS = b"\x89PNG\r\n\x1a\n", b"IEND\xaeB`\x82"
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

    A run that is damaged is listed as such, with the reason, and left out of everything else.

    Raises:
      SettingError: if there is no run that can be read, or ``baseline`` is none of the labels.
    """
    path = in_home(path)
    runs, damaged = survey(path)
    if not runs:
        raise refuse_no_run(path, damaged)
    lists, unread = _lists(path)
    labels = seed_means.labels_in(lists, runs)
    baseline = baseline or lists.get("summary.json", {}).get("baseline")
    if baseline is not None and baseline not in labels:
        raise unknown_name("baseline", baseline, labels)
    arm_runs = seed_means.by_arm(runs, labels)
    content = _content(path, lists, runs, arm_runs, baseline)
    content["notes"] += [f"Not read: {reason}." for reason in unread]
    content |= {
        "runs": _all_runs(path, runs, damaged),
        "damaged": [(_relative(path, one.path), one.reason) for one in damaged],
    }
    page, text = path / "report.html", path / "report.md"
    html = template("report.html").render(content)
    write_whole(page, lambda file: file.write_text(html, encoding="utf-8"))
    write_whole(text, lambda file: file.write_text(markdown(content), encoding="utf-8"))
    return page, text


def _lists(path: pathlib.Path) -> tuple[dict[str, Any], list[str]]:
    """{name: content} of the files on the whole directory, and what is wrong with those that cannot be read."""
    names = ["sweep.json", "comparison.json"]
    if (path / "sweep.json").is_file():
        names.append("summary.json")
    lists, unread = {}, []
    for name in names:
        if (path / name).is_file():
            try:
                lists[name] = read_json(path / name)
            except SettingError as error:
                unread.append(str(error).removesuffix("."))
    return lists, unread


def template(name: str, *folders: pathlib.Path) -> Any:
    """A page's template, of those of this package and of other ``folders``; what is shown stands escaped."""
    with importing():
        import jinja2

    loader = jinja2.FileSystemLoader([*folders, pathlib.Path(__file__).parent / "templates"])
    environment = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, finalize=_printable_text
    )
    return environment.get_template(name)


def _printable_text(value: Any) -> Any:
    """A text without characters that cannot be seen; what is marked as HTML, and what is no text, as it is."""
    plain = isinstance(value, str) and not hasattr(value, "__html__")
    return "\n".join(map(printable, value.split("\n"))) if plain else value


def _content(
    path: pathlib.Path,
    lists: Mapping[str, Any],
    runs: Sequence[PastRun],
    arm_runs: Sequence[ArmRuns],
    baseline: str | None,
) -> dict[str, Any]:
    """What the page shows of the runs that can be read."""
    from jafl import __version__

    counted = [run for arm in arm_runs for run in arm.runs]
    there = {run.path for run in counted}
    rows = seed_means.rows(arm_runs, baseline)
    swept = in_columns([arm.condition for arm in arm_runs])
    targets = seed_means.target_accuracies(arm_runs)
    return {
        "version": __version__,
        "title": f"Runs in {path.resolve().name}",
        "lead": _lead(runs, arm_runs, swept),
        **_settings([*counted, *(run for run in runs if run.path not in there)], swept or []),
        "settings_are_usual": swept is None,
        "table": seed_means.text_table(rows, baseline) if rows else [],
        "text_columns": 2 if swept is None else len(swept) + 1,
        # Where another condition begins.
        "firsts": [n for n in range(1, len(rows)) if rows[n]["condition"] != rows[n - 1]["condition"]],
        "table_note": _table_note(rows, targets),
        "notes": _notes(runs, arm_runs, rows, baseline),
        **privacy.privacy_section({_name(path, run): run for run in runs}),
        "maps": _maps(rows) if "sweep.json" in lists and rows and swept is not None else [],
        "curves": _curves(arm_runs, targets[0] if len(targets) == 1 else None),
        **_schedules(path, arm_runs),
        "commands": commands(path, lists, runs),
        "repeat_one": command_of_one(runs[0]),
        "made_with": _made_with(runs),
    }


def _table_note(rows: Sequence[Mapping[str, Any]], targets: Sequence[float]) -> str:
    """What stands below the table."""
    target = f"test accuracy {' or '.join(map(str, targets))}, the target"
    costs = f"Trips, steps and simulated time are those to {target}. "
    means = "Means over seeds ± one standard error; seconds are wall-clock, summed over seeds."
    return costs * tables.has_target(tables.result_heading(rows)) + means


def _maps(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """(caption, picture) of the heat maps."""
    return [(name, inlined(figure)) for name, figure in heat_maps(rows).items()]


def _curves(arm_runs: Sequence[ArmRuns], target_accuracy: float | None) -> list[tuple[str, str]]:
    """(caption, picture) of each condition's accuracy curves."""
    by_condition = seed_means.by_condition(arm_runs)
    return [
        (
            caption(condition) or (USUAL.capitalize() if len(by_condition) > 1 else ""),
            inlined(curves(arms, target_accuracy)),
        )
        for condition, arms in by_condition
        if measured_runs(arms)
    ]


def _schedules(path: pathlib.Path, arm_runs: Sequence[ArmRuns]) -> dict[str, Any]:
    """The schedule of each label's first run, and whether any are left out."""
    shown: dict[str, PastRun] = {}
    for arm in arm_runs:
        shown.setdefault(arm.label, arm.runs[0])
    return {
        "schedules": [
            {"name": _name(path, run), "pictures": _schedule_pictures(run)} for run in shown.values()
        ],
        "schedules_left_out": len(shown) < sum(len(arm.runs) for arm in arm_runs),
    }


def _lead(runs: Sequence[PastRun], arm_runs: Sequence[ArmRuns], swept: Sequence[str] | None) -> str:
    """What was run, in a sentence or two."""
    labels = list(dict.fromkeys(arm.label for arm in arm_runs))
    seeds = {run.config["seed"] for run in runs}
    number = len(seed_means.by_condition(arm_runs))
    under = "" if swept == [] else f", under {_plural(number, 'condition')}"
    under += f" ({', '.join(swept)})" if swept else ""
    data = ", ".join(sorted({calls.bare_name(str(run.config["dataset"])) for run in runs}))
    models = ", ".join(sorted({calls.bare_name(str(run.config["model"])) for run in runs}))
    return (
        f"{_plural(len(runs), 'run')} of {', '.join(labels)} with {_plural(len(seeds), 'seed')}{under}. "
        f"Data: {data}. Model: {models}."
    )


def _settings(runs: Sequence[PastRun], swept: Sequence[str]) -> dict[str, Any]:
    """The settings that are not swept: common ones, a table of those in which arms differ, and the defaults."""
    there = set().union(*(run.config for run in runs))
    own = [name for name in DEFAULTS if name in there and name not in ("seed", *swept)]
    # Where an argument of a call is swept, the rest of the call is told.
    parts = {*IN_PARTS, "model", *(calls.setting_of(name) for name in swept if name not in calls.CALLS)}
    runs = [dataclasses.replace(run, config=calls.flattened(run.config, parts)) for run in runs]
    names = [n for name in own for n in (_parts(runs, name, swept) if name in parts else [name])]
    common: list[tuple[str, str]] = []
    defaults: list[tuple[str, str]] = []
    differing: list[str] = []
    for name in names:
        having = [run for run in runs if not _lacks(run, name)]
        first, is_one = having[0].config.get(name), len(_written_values(having, name)) == 1
        if is_one and first == default_of(name):
            defaults.append((name, grid.written(first)))
        elif is_one and len(having) == len(runs):
            common.append((name, grid.written(first)))
        else:
            differing.append(name)
    return {"common": common, "differing": _arms_table(runs, differing), "defaults": defaults}


def _lacks(run: PastRun, name: str) -> bool:
    """Whether a setting is an argument that the call of a run has not."""
    return name not in run.config and name not in DEFAULTS and calls.setting_of(name) in run.config


def _parts(runs: Sequence[PastRun], name: str, swept: Sequence[str]) -> list[str]:
    """The names of a call and of its arguments that are not swept."""
    there = dict.fromkeys(key for run in runs for key in run.config if calls.setting_of(key) == name)
    return [key for key in there if key not in ("algorithm", *swept)]


def _written_values(runs: Sequence[PastRun], name: str, first: Any = None) -> list[str]:
    """The values that runs have of a setting, each once; "not recorded" of a run whose file leaves it out.

    first: comes first, if it is one of them.
    """

    def value(run: PastRun) -> str:
        is_known = name in run.config or _lacks(run, name)
        return grid.written(run.config.get(name)) if is_known else "not recorded"

    values = [value(run) for run in runs]
    return sorted(dict.fromkeys(values), key=lambda value: value != grid.written(first))


def _arms_table(runs: Sequence[PastRun], names: Sequence[str]) -> list[list[str]]:
    """A table of the settings ``names`` of each arm; empty if there is nothing to tell."""
    by_label: dict[str, list[PastRun]] = {}
    for run in runs:
        by_label.setdefault(run.label, []).append(run)
    labelled = any(run.label != run.algorithm for run in runs)
    names = ["algorithm", *names] if labelled else names
    if not names:
        return []
    usual = usual_values(runs, names)
    lines = [
        [label, *(" or ".join(_written_values(group, name, usual[label, name])) for name in names)]
        for label, group in by_label.items()
    ]
    lines = [["-" if cell == "none" else cell for cell in line] for line in lines]
    return [["arm" if labelled else "algorithm", *names], *lines]


def _notes(
    runs: Sequence[PastRun],
    arm_runs: Sequence[ArmRuns],
    rows: Sequence[Mapping[str, Any]],
    baseline: str | None,
) -> list[str]:
    """What a reader of the table must know."""
    notes = []
    if in_columns([arm.condition for arm in arm_runs]) is None:
        notes.append(
            "Settings: a row names those of its own that are unusual; report.html lists the usual ones, where runs "
            "differ."
        )
    differing = dict.fromkeys(name for arm in arm_runs for name in arm.condition if in_world(name))
    if differing and len({grid.folder(arm.condition) for arm in arm_runs}) > 1:
        notes.append(
            f"Runs live in different worlds: each row says which, by {', '.join(differing)}. Runs of one world are "
            "compared with each other, and in no ratio with those of another."
        )
    if baseline and any(row["speed_up"] is not None for row in rows):
        notes.append(
            f"Speed-up: how many times fewer client trips than {baseline} to the target; a bound where one of the "
            "two never reached it."
        )
    for status, meaning in (
        ("interrupted", "stopped and can go on (run.py resume)"),
        ("diverged", "diverged to NaN or infinity"),
        ("unfinished", "under way, or killed; run.py resume goes on"),
        ("dry run", "a dry run, which has a schedule and trained nothing (run.py plan)"),
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


def _made_with(runs: Sequence[PastRun]) -> str:
    """A sentence that names versions and devices."""
    builds = set()
    for run in runs:
        versions, device = run.config.get("versions"), run.config.get("device", "unknown")
        numbers = versions if isinstance(versions, Mapping) else {}
        jafl, jax, python = (numbers.get(name, "unknown") for name in ("jafl", "jax", "python"))
        options = run.config.get("jax_options")
        named = options if isinstance(options, Mapping) else {}
        those = "".join(f" with {name}={value}" for name, value in named.items())
        builds.add(f"jafl {jafl}, JAX {jax}{those}, Python {python}, on {device}")
    return (
        "Made with "
        + "; ".join(sorted(builds))
        + ". The same seed gives the same bits on the same kind of device"
        + (", but for private runs, which draw their noise." if privacy.draw_noise(runs) else ".")
    )


def _all_runs(path: pathlib.Path, runs: Sequence[PastRun], damaged: Sequence[Damaged]) -> list[list[str]]:
    """The table of all runs, the heading first, in the order of their paths."""
    last = [run.evaluations[-1] for run in runs if run.evaluations]
    columns = ("test_accuracy", "test_loss")
    column = next((name for name in columns if any(name in each for each in last)), columns[0])
    rows = {run.path: _run_cells(path, run, column) for run in runs}
    rows |= {one.path: [_relative(path, one.path), "damaged", "-", "-", "-"] for one in damaged}
    head = [*RUNS_HEAD, f"final {column.replace('_', ' ')}"]
    return [head, *(rows[folder] for folder in sorted(rows))]


def _run_cells(path: pathlib.Path, run: PastRun, column: str) -> list[str]:
    """The row of one run in the table of all runs; ``column``: of its evaluations, the one that is shown."""
    last = run.evaluations[-1] if run.evaluations else {}
    return [
        _name(path, run),
        run.status,
        f"{last.get('server_step', 0):,}",
        f"{last.get('client_trips', 0):,}",
        tables.with_error(last.get(column), None, tables.DIGITS[column]),
    ]


def _schedule_pictures(run: PastRun) -> list[tuple[str, str]]:
    """(caption, picture) of a run's schedule: those in its directory, and what else can be drawn from its files."""
    folders = [run.path, *([run.path.parent] if (run.path.parent / "comparison.json").is_file() else [])]
    there = {name: _png(run.path / f"{name}.png") for name in SCHEDULE_PICTURES}
    there["label_split"] = next(filter(None, (_png(folder / "label_split.png") for folder in folders)), b"")
    try:
        figures = figures_from_files(run.path, run.label)
    except SettingError:
        figures = {}
    pictures = []
    for name, title in SCHEDULE_PICTURES.items():
        if there[name]:
            pictures.append((title, _data_url(there[name])))
        elif name in figures:
            pictures.append((title, inlined(figures[name]())))
    return pictures


def _png(file: pathlib.Path) -> bytes:
    """The picture in a file; nothing where there is none, or a part of one."""
    content = file.read_bytes() if file.is_file() else b""
    return content if content.startswith(PNG_BEGINS) and content.endswith(PNG_ENDS) else b""


def _name(path: pathlib.Path, run: PastRun) -> str:
    """A run's path relative to the report's; its own name if the report is in the run directory."""
    return run.name if run.path == path else _relative(path, run.path)


def _relative(path: pathlib.Path, folder: pathlib.Path) -> str:
    """A folder's path relative to the report's; its own name if it is the report's."""
    return folder.resolve().name if folder == path else str(folder.relative_to(path))


def _plural(number: int, thing: str) -> str:
    return f"{number:,} {thing}" + ("" if number == 1 else "s")


def inlined(figure: "Figure") -> str:
    """A figure as a URL that holds it, for a page that needs no other file."""
    return _data_url(plots.png(figure))


def _data_url(png: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(png).decode()
