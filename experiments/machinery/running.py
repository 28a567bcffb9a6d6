"""Runs an experiment of a paper: the search if asked for, the runs, tables, pictures and verdicts."""

import dataclasses
import os
import pathlib
import shlex
import time
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.machinery import claims, discovery, outcome, search
from experiments.machinery.declared import Context, PaperExperiment, Scale
from experiments.machinery.found import Runs
from jafl.config import grid
from jafl.config.arms import Override
from jafl.config.settings import Settings
from jafl.errors import SettingError, require, unknown_name

BUDGET = ("client_trips", "server_steps")


def run_paper_experiment(
    name: str,
    scale: str = "desk",
    *,
    tune: bool = False,
    typed: Mapping[str, Any] | None = None,
    output_dir: str | os.PathLike[str] | None = None,
    processes: int | None = None,
    **options: Any,
) -> int:
    """Runs experiment ``name`` at a scale; returns 0, or 130 if it was interrupted.

    Args:
      scale: "desk" or "paper".
      tune: search for the arms' settings first, as the file says, and use what was found.
      typed: settings in the place of the common ones; ``seed`` of the results' seeds; of a setting of which the
        experiment tries several values, of these; ``client_trips`` and ``server_steps`` of every arm's budget.
      output_dir: default: ``runs/<name>-<scale>``. The same command goes on with what is there.
      processes: that share the runs; default: two on a CPU with two cores, else one.
      options: the fields of ``jafl.runs.recorder.Options``.

    Leaves ``runs`` (and ``search``), sweeps with their tables and pictures; ``table.md``; ``verdicts.json``;
    ``tuned.json`` if it searched.

    Raises:
      SettingError: for an experiment, scale or setting that cannot work, before anything is written.
    """
    experiment = discovery.load(name)
    if scale not in experiment.scales:
        raise unknown_name(f"scale of {name}", scale, list(experiment.scales))
    size, settings = adapted(experiment.scales[scale], typed or {})
    folder = pathlib.Path(output_dir or pathlib.Path("runs") / f"{name}-{scale}")
    from jafl.runs.recorder import Options

    how = Options(**options)
    how.show(f"{name}, {scale} size: {experiment.paper}, {experiment.figure}: {experiment.title}.")
    began = time.monotonic()
    if experiment.measure is not None:
        require(not tune, "tune", tune, "left out: this experiment searches for nothing")
        folder.mkdir(parents=True, exist_ok=True)
        rows = experiment.measure(Context(size, settings, folder, how.show))
        _write(experiment, scale, size, folder, outcome.measured_rows(rows), rows, None, how)
        how.show(f"{time.monotonic() - began:.0f} s. Results are in {folder}")
        return 0
    from jafl.sweeps.sweep import run_sweep

    own = {**options, "progress": False, "processes": processes or _processes()}
    searched = None
    if tune:
        searched = _search(size, settings, _last(typed or {}), folder, own, how)
        if searched is None:
            return 130
        size = dataclasses.replace(size, tuned=searched["tuned"])
    require(size.arms, f"arms of {name}", dict(size.arms), "{label: settings}")
    how.show(_announced("Results", size, len(size.arms), len(size.seeds)))
    overrides = [*size.overrides, *tuned_overrides(size.tuned), *_last(typed or {})]
    done = run_sweep(
        settings, size.conditions, folder / "runs", arms=size.arms, overrides=overrides, **_quiet(own)
    )
    if done.left:
        how.show(f"{done.left} runs are not over. The same command goes on with them.")
        return 130
    found = Runs.in_folder(folder / "runs")
    _write(experiment, scale, size, folder, outcome.measured(experiment, found), found, searched, how)
    how.show(f"{time.monotonic() - began:.0f} s. Results are in {folder}")
    return 0


def adapted(scale: Scale, typed: Mapping[str, Any]) -> tuple[Scale, Settings]:
    """The scale with the seeds and values of conditions that were typed, and its common settings with the others.

    Raises SettingError for ``algorithm``.
    """
    if "algorithm" in typed:
        raise SettingError(
            f"algorithm is {typed['algorithm']!r}, but must be left out: an experiment has arms of its own.",
            setting="algorithm",
        )
    tried = {name: [typed[name]] if name in typed else values for name, values in scale.conditions.items()}
    typed = {name: value for name, value in typed.items() if name not in tried}
    settings = Settings().changed(scale.settings, {"seed": ",".join(map(str, scale.seeds))}, typed)
    from jafl.config.resolution import seeds_of

    return dataclasses.replace(scale, seeds=seeds_of(settings), conditions=tried), settings


def tuned_overrides(tuned: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[Override]:
    """What ``Scale.tuned`` says, as overrides of a sweep; SettingError for a condition that is none."""
    found = []
    for where, arms in tuned.items():
        condition = grid.condition(where) if where else {}
        require(condition is not None, "a condition of tuned", where, "setting=value,setting=value, or ''")
        found += [Override(condition or {}, label, own) for label, own in arms.items()]
    return found


def _last(typed: Mapping[str, Any]) -> list[Override]:
    """A typed budget is every arm's."""
    budget = {name: typed[name] for name in BUDGET if typed.get(name) is not None}
    return [Override({}, None, budget)] if budget else []


def _search(
    scale: Scale,
    settings: Settings,
    last: Sequence[Override],
    folder: pathlib.Path,
    own: Mapping[str, Any],
    how: Any,
) -> dict[str, Any] | None:
    """Runs the search and writes ``tuned.json``; None if it was interrupted."""
    from jafl.runs.directory import RunDirectory
    from jafl.sweeps.sweep import run_sweep

    if scale.search is None:
        raise SettingError("tune is True, but the experiment's file states no search.", setting="tune")
    arms, overrides = search.as_arms(scale)
    seeds = ",".join(map(str, scale.search.seeds))
    how.show(_announced("Search", scale, len(arms), len(scale.search.seeds)))
    done = run_sweep(
        settings.changed(scale.search.settings, {"seed": seeds}),
        scale.conditions,
        folder / "search",
        arms=arms,
        overrides=[*overrides, *last],
        **{**_quiet(own), "pictures": False},
    )
    if done.left:
        how.show(f"{done.left} trials are not over. The same command goes on with them.")
        return None
    found = search.winners(scale, Runs.in_folder(folder / "search"))
    RunDirectory(folder, resume=True).write_result("tuned.json", found)
    search.show(found, how.show)
    return found


def _write(
    experiment: PaperExperiment,
    scale_name: str,
    scale: Scale,
    folder: pathlib.Path,
    table: Sequence[Sequence[str]],
    found: Any,
    searched: Mapping[str, Any] | None,
    how: Any,
) -> None:
    """Verdicts, tables and the experiment's own pictures; printed, too."""
    from jafl.runs.directory import RunDirectory

    verdicts = claims.judge(experiment.claims, scale_name, found)
    if experiment.pictures and how.pictures is not False:
        experiment.pictures(found, folder)
    directory = RunDirectory(folder, resume=True)
    directory.write_result("verdicts.json", {"experiment": experiment.name, "verdicts": verdicts})
    told = outcome.tuning(scale, searched) if experiment.measure is None else "No training."
    command = shlex.join(how.command) or "(started from Python)"
    directory.write_text("table.md", outcome.text(experiment, scale_name, table, verdicts, told, command))
    for line in outcome.printed(experiment, table, verdicts):
        how.show(line)


def _announced(what: str, scale: Scale, arms: int, seeds: int) -> str:
    """How many runs there will be."""
    under = len(grid.product(scale.conditions))
    return f"{what}: {arms} arms, {under} conditions, {seeds} seeds: {under * arms * seeds:,} runs."


def _quiet(own: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a sweep that says nothing of its own but that it was interrupted."""
    return {**own, "show": lambda line: None}


def _processes() -> int:
    """Two on a CPU with two cores."""
    import jax

    return 2 if jax.default_backend() == "cpu" and (os.cpu_count() or 1) >= 2 else 1
