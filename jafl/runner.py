"""Runs experiments and leaves their run directories: numbers, pictures, a table."""

import dataclasses
import pathlib
import signal
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jafl import plots
from jafl.divergence import DivergenceError
from jafl.experiment import Experiment, make_experiments
from jafl.pictures import diagnose, draw_history, draw_schedule, expected_weights
from jafl.records import EventSchedule, History
from jafl.results import RunDirectory, summarize
from jafl.settings import Settings


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How one run ended. ``status``: finished, interrupted or diverged; ``summary`` is its ``summary.json``."""

    experiment: Experiment
    history: History
    summary: dict[str, Any]
    error: DivergenceError | None = None

    @property
    def status(self) -> str:
        """finished, interrupted or diverged."""
        return self.summary["status"]


def run(
    settings: Settings,
    output_dir: str | pathlib.Path,
    *,
    overwrite: bool = False,
    command: Sequence[str] = (),
    show: Callable[[str], None] = print,
) -> list[Outcome]:
    """Runs every algorithm and seed of ``settings``, writes the run directory, and returns how each run ended.

    One run writes to ``output_dir`` itself; several get a subfolder each, ``<algorithm>-seed<seed>``, and
    ``output_dir`` their comparison. Ctrl-C ends the current run at its next chunk and keeps everything measured; a
    second one ends at once. A run that diverges is kept, and the others go on.

    Args:
      settings: checked whole before anything is written.
      output_dir: must not hold a run already, unless ``overwrite``.
      command: what was typed, for ``config.json``.
      show: gets each line of text that is meant for the user.

    Raises:
      SettingError: for any setting that cannot work, before any training.
    """
    experiments = make_experiments(settings)
    parent = RunDirectory(output_dir, overwrite=overwrite)
    outcomes = []
    with _Interrupt(show) as interrupt:
        for experiment in experiments:
            if interrupt.asked:
                break
            alone = len(experiments) == 1
            directory = parent if alone else RunDirectory(parent.path / experiment.name, overwrite=overwrite)
            outcomes.append(_run_one(experiment, directory, command, interrupt, show))
    if len(experiments) > 1 and outcomes:
        _write_comparison(parent, outcomes, settings)
    for line in table(outcomes):
        show(line)
    if interrupt.asked:
        left = len(experiments) - sum(outcome.status != "interrupted" for outcome in outcomes)
        show(f"Interrupted: {left} of {len(experiments)} runs did not finish.")
    show(f"Results are in {parent.path}")
    return outcomes


def dry_run(
    settings: Settings,
    output_dir: str | pathlib.Path,
    *,
    overwrite: bool = False,
    command: Sequence[str] = (),
    show: Callable[[str], None] = print,
) -> None:
    """Computes and draws every schedule of ``settings`` without training; the arguments are those of ``run``.

    Leaves ``config.json``, ``schedule.npz``, ``partition.npz``, ``diagnostics.json`` and the schedule's pictures.

    Raises:
      SettingError: for any setting that cannot work.
    """
    experiments = make_experiments(settings)
    parent = RunDirectory(output_dir, overwrite=overwrite)
    alone = len(experiments) == 1
    rows = [
        [
            "run",
            "trips",
            "thrown away",
            "steps",
            "time",
            "mean staleness",
            "in flight",
            "Jain",
            "fairness loss",
        ]
    ]
    for experiment in experiments:
        directory = parent if alone else RunDirectory(parent.path / experiment.name, overwrite=overwrite)
        _write_setup(experiment, directory, command)
        weights = expected_weights(experiment)
        found = diagnose(experiment, weights)
        directory.write_diagnostics(found)
        draw_schedule(directory.path, experiment, weights)
        influence = found["influence"].get("as given", found["influence"]["client trips"])
        rows.append(
            [
                experiment.name,
                f"{found['client_trips']:,}",
                f"{found['wasted']['trips']:,}",
                f"{found['server_steps']:,}",
                _count(found["time"]),
                f"{found['staleness']['mean']:.2f}",
                f"{found['in_flight']['mean']:.1f}",
                *(
                    "-" if influence[name] is None else f"{influence[name]:.3f}"
                    for name in ("jain", "fairness_loss")
                ),
            ]
        )
    if not alone:
        schedules = {experiment.name: experiment.schedule for experiment in experiments}
        plots.save(plots.staleness(schedules), parent.path / "staleness.png")
        plots.save(plots.in_flight(schedules), parent.path / "in_flight.png")
    for line in _aligned(rows):
        show(line)
    show(f"Nothing was trained. Schedules, diagnostics and pictures are in {parent.path}")


def _write_setup(experiment: Experiment, directory: RunDirectory, command: Sequence[str]) -> None:
    """What is known before training."""
    directory.write_config(dataclasses.asdict(experiment.settings), command)
    directory.write_schedule(experiment.schedule)
    directory.write_partition(experiment.federation, experiment.source)


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of cells as lines, the first column to the left, the others to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join([row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))])
        for row in rows
    ]


def _run_one(
    experiment: Experiment,
    directory: RunDirectory,
    command: Sequence[str],
    interrupt: "_Interrupt",
    show: Callable[[str], None],
) -> Outcome:
    """Trains one experiment and writes its directory, whatever happens on the way."""
    _write_setup(experiment, directory, command)
    error = None
    with _Progress(experiment) as progress:

        def on_evaluation(evaluation: dict[str, Any], params: Any) -> None:
            directory.append_evaluation(evaluation)
            progress.accuracy = evaluation["test_accuracy"]

        try:
            history = experiment.simulate(
                on_evaluation=on_evaluation,
                on_progress=progress.update,
                should_stop=lambda: interrupt.asked,
            )
            finished = history.server_steps == experiment.schedule.num_steps
            status = "finished" if finished else "interrupted"
        except DivergenceError as divergence:
            history, status, error = divergence.history, "diverged", divergence
    if error:
        show(f"{experiment.name}: {error}")
    directory.write_params(history.params)
    directory.write_reports(history)
    target = experiment.settings.target_accuracy
    summary = summarize(history, target_accuracy=target, status=status)
    if error:
        summary |= {"diverged_at_step": error.server_step, "diverged_by_client": error.client}
    directory.write_summary(summary)
    if history.server_steps == experiment.schedule.num_steps:
        directory.write_diagnostics(diagnose(experiment, history.weights))
    draw_history(directory.path, experiment, history)
    return Outcome(experiment, history, summary, error)


def _write_comparison(parent: RunDirectory, outcomes: Sequence[Outcome], settings: Settings) -> None:
    """The parent's ``summary.json`` and pictures."""
    runs = {outcome.experiment.name: outcome.summary for outcome in outcomes}
    per_client = ("participation",)
    short = {name: {k: v for k, v in one.items() if k not in per_client} for name, one in runs.items()}
    parent.write_summary(
        {"target_accuracy": settings.target_accuracy, "runs": short, "table": _rows(outcomes)}
    )
    curves: dict[str, list[list[dict[str, Any]]]] = {}
    schedules: dict[str, EventSchedule] = {}
    for outcome in outcomes:
        algorithm = outcome.experiment.settings.algorithm
        curves.setdefault(algorithm, []).append(outcome.history.evaluations)
        schedules.setdefault(algorithm, outcome.experiment.schedule)
    target = settings.target_accuracy
    plots.save(plots.accuracy_panels(curves, target=target), parent.path / "accuracy.png")
    plots.save(plots.staleness(schedules), parent.path / "staleness.png")
    plots.save(plots.in_flight(schedules), parent.path / "in_flight.png")
    split = plots.label_split(outcomes[0].experiment.federation.label_counts())
    plots.save(split, parent.path / "label_split.png")


def _rows(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """One row per algorithm: means over its seeds; what it took to reach the target only if all seeds did."""
    rows = []
    for algorithm in dict.fromkeys(outcome.experiment.settings.algorithm for outcome in outcomes):
        summaries = [o.summary for o in outcomes if o.experiment.settings.algorithm == algorithm]
        final = [s["final"]["test_accuracy"] for s in summaries if s["final"]]
        row: dict[str, Any] = {
            "algorithm": algorithm,
            "seeds": len(summaries),
            "finished": sum(s["status"] == "finished" for s in summaries),
            "final_test_accuracy": float(np.mean(final)) if final else None,
            "standard_error": float(np.std(final, ddof=1) / np.sqrt(len(final))) if len(final) > 1 else None,
        }
        for key in ("trips_to_target", "steps_to_target", "time_to_target"):
            values = [s[key] for s in summaries]
            row[key] = None if None in values else float(np.mean(values))
        row["trips_thrown_away"] = float(np.mean([s["trips_thrown_away"] for s in summaries]))
        row["mean_staleness"] = float(np.mean([s["staleness"]["mean"] or 0.0 for s in summaries]))
        row["seconds"] = sum(
            s["wall_clock"]["run_seconds"] + s["wall_clock"]["compile_seconds"] for s in summaries
        )
        rows.append(row)
    return rows


def table(outcomes: Sequence[Outcome]) -> list[str]:
    """The final table, as lines of text."""
    if not outcomes:
        return []
    rows = _rows(outcomes)
    several, thrown = rows[0]["seeds"] > 1, any(row["trips_thrown_away"] for row in rows)
    cells = [["algorithm", "test accuracy", "trips", "steps", "time", "mean staleness", "seconds"]]
    if thrown:
        cells[0].insert(6, "thrown away")
    for row in rows:
        accuracy, spread = row["final_test_accuracy"], row["standard_error"]
        line = [
            row["algorithm"],
            ("-" if accuracy is None else f"{accuracy:.4f}")
            + (f" ± {spread:.4f}" if spread is not None else ""),
            *(_count(row[f"{key}_to_target"]) for key in ("trips", "steps", "time")),
            f"{row['mean_staleness']:.1f}",
            f"{row['seconds']:.1f}",
        ]
        if thrown:
            line.insert(6, _count(row["trips_thrown_away"]))
        unfinished = row["seeds"] - row["finished"]
        cells.append([*line, *([f"{unfinished} of {row['seeds']} did not finish"] if unfinished else [])])
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
    lines = []
    for line in cells:
        first, *rest = (cell.rjust(width) for cell, width in zip(line, widths, strict=False))
        lines.append("  ".join([first.strip().ljust(widths[0]), *rest, *line[len(widths) :]]))
    until = sum(widths[:5]) + 8  # the right end of the three columns that the heading is for
    header = f"to accuracy {outcomes[0].experiment.settings.target_accuracy:g}:".rjust(until)
    notes = ["mean over seeds ± standard error; seconds summed"] if several else []
    return ["", header, lines[0], *lines[1:], *notes, ""]


def _count(value: float | None) -> str:
    if value is None:
        return "never"
    return f"{value:,.0f}" if value >= 1000 or value == int(value) else f"{value:.1f}"


class _Progress:
    """A progress bar in client trips, with rate, time left, simulated time and accuracy."""

    def __init__(self, experiment: Experiment):
        from tqdm import tqdm

        self.accuracy: float | None = None
        self._schedule = experiment.schedule
        self._reached = 0.0
        self._bar = tqdm(
            total=experiment.schedule.num_trips,
            desc=experiment.name,
            bar_format="{desc}: {percentage:3.0f}%|{bar:20}| {n:,.0f}/{total:,.0f} trips "
            "[{elapsed}<{remaining}{postfix}]",
            dynamic_ncols=True,
            file=sys.stderr,
            mininterval=0.2,
            smoothing=0,
        )
        self._bar.set_postfix_str("compiling")

    def __enter__(self) -> "_Progress":
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar.n:
            self._describe()
            self._bar.refresh()
        self._bar.close()

    def update(self, server_step: int) -> None:
        """Shows that ``server_step`` steps are done."""
        if not self._bar.n:
            self._bar.reset()  # compiling does not count for rate and time left
        trips = int(np.searchsorted(self._schedule.step, server_step))
        self._reached = float(self._schedule.step_time[server_step - 1])
        self._describe()
        self._bar.update(trips - self._bar.n)

    def _describe(self) -> None:
        rate = self._bar.format_dict["rate"] or self._bar.n / max(self._bar.format_dict["elapsed"], 1e-3)
        accuracy = "" if self.accuracy is None else f", accuracy {self.accuracy:.3f}"
        self._bar.set_postfix_str(
            f"{rate:,.0f} trips/s, simulated time {self._reached:,.1f}{accuracy}", refresh=False
        )


class _Interrupt:
    """Turns the first Ctrl-C into a request to stop at the next chunk; a second one ends at once."""

    def __init__(self, show: Callable[[str], None]):
        self.asked = False
        self._show = show
        self._before: Any = None

    def __enter__(self) -> "_Interrupt":
        try:
            self._before = signal.signal(signal.SIGINT, self._ask)
        except ValueError:  # not in the main thread: Python alone decides there
            self._before = None
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _ask(self, *_: object) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        self._show(f"\n{time.strftime('%H:%M:%S')} Ctrl-C: stopping and keeping what has been measured ...")
