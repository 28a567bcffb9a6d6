"""Says and writes what an experiment would run (``run.py plan``): runs, settings, seeds, trips, memory, arithmetic.

Nothing is trained or timed. Each arm's schedule under each condition is made for the first seed, and counts for the
others. Arms that differ in rates alone share it.
"""

import dataclasses
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from experiments.harness import times
from experiments.harness.declare import discovery
from experiments.harness.declare.assumptions import AssumingCache
from experiments.harness.results import BETWEEN
from experiments.harness.run.job import Job
from experiments.harness.run.multiply_adds import Compute, compute
from experiments.harness.run.sweeps import Sweep
from jafl.base.errors import SettingError
from jafl.config import calls, grid
from jafl.config.experiment import make_experiment
from jafl.config.resolution import listed_seeds, refuse_unread, resolve
from jafl.config.settings import Settings, without_varying
from jafl.engine.plan.device_memory import readable
from jafl.runs.directory.files import RunDirectory
from jafl.runs.directory.reader import read_json
from jafl.runs.directory.tables import aligned
from jafl.runs.recording.progress import Waiting
from jafl.sweeps.conditions import IN_PARTS

MOST_EVALUATION = 0.2  # evaluation that costs more than this share of training is named
MOST_VALUES = 4  # of a setting that trials vary, in the table
HEADING = ["condition", "arm", "runs", "trips", "steps", "memory", "training", "evaluation", "of training"]


class Needs(NamedTuple):
    """What one run takes.

    Attributes:
      trips, steps: client trips that are applied, and server steps.
      memory: bytes on each device, by the planner's forecast.
      available: bytes that a device here has.
      counted: multiply-adds, minibatches, evaluations.
    """

    trips: int
    steps: int
    memory: int
    available: int
    counted: Compute


@dataclasses.dataclass(frozen=True)
class Planned:
    """The runs of an arm, or of a trial of the search, under a condition.

    Attributes:
      condition: setting=value, with commas between; "" where nothing is swept.
      label: the arm's.
      settings: the arm's own, which the others need not share.
      runs: how many: one for each seed.
      needs: of each of them; None if it is refused.
      refused: why the run cannot be made, as the planner says it; else "".
    """

    condition: str
    label: str
    settings: Mapping[str, Any]
    runs: int
    needs: Needs | None = None
    refused: str = ""


class Planner:
    """Plans sweeps; what has been made for one counts for the others.

    Args:
      tell: gets a line on what is made next.
    """

    def __init__(self, tell: Callable[[str], None] = lambda text: None):
        self.loaded, self._tell = AssumingCache(), tell
        self._needs: dict[Any, Needs | str] = {}

    def planned(self, sweep: Sweep) -> list[Planned]:
        """Each arm under each condition.

        Raises:
          SettingError: for settings that no run reads; what a single arm is refused for stands in its row.
        """
        grid.check_arms(sweep.arms, sweep.overrides)
        conditions = [
            (each, grid.under(sweep.settings, sweep.arms, each, sweep.overrides))
            for each in grid.product(sweep.conditions)
        ]
        refuse_unread(conditions)
        rows = []
        for condition, arms in conditions:
            common, where = sweep.settings.changed(condition), grid.readable(grid.folder(condition))
            for label, settings, run in self._resolved(arms):
                outcome = run if isinstance(run, str) else self._run_needs(f"{where} {label}", label, run)
                arm, seeds = label.partition(BETWEEN)[0], len(listed_seeds(settings))
                needs, refused = (None, outcome) if isinstance(outcome, str) else (outcome, "")
                rows.append(Planned(where, arm, _changed(settings, common), seeds, needs, refused))
        return rows

    def _resolved(self, arms: Mapping[str, Settings]) -> Iterator[tuple[str, Settings, Settings | str]]:
        """(label, settings, those of the run with the first seed, or why it is refused)."""
        for label, settings in arms.items():
            first = settings.changed({"seed": str(listed_seeds(settings)[0])})
            # A second arm says that it is not alone: then it takes the buffer size that it is defined for.
            compared = {label: first} | ({label + " ": first} if len(arms) > 1 else {})
            try:
                yield label, settings, resolve(compared, self.loaded)[0][1]
            except SettingError as error:
                yield label, settings, str(error)

    def _run_needs(self, where: str, label: str, run: Settings) -> Needs | str:
        """What a run needs, or why it is refused."""
        key = tuple(value for name, value in without_varying(run).items() if name != "seed")
        if key not in self._needs:
            self._tell(f"{where.strip()}: its schedule, memory and compute")
            try:
                experiment = make_experiment(label, run, self.loaded, must_fit=False)
                schedule, memory = experiment.schedule, experiment.memory
                counted = compute(experiment.run, on_training=run.train_accuracy)
                self._needs[key] = Needs(
                    schedule.num_trips, schedule.num_steps, memory.needed, memory.available, counted
                )
            except SettingError as error:
                self._needs[key] = str(error)
        return self._needs[key]


def _changed(settings: Settings, common: Settings) -> dict[str, Any]:
    """The settings, except the seed, that differ from the common ones; arguments of calls by their own names."""
    parts = set(IN_PARTS) - {"algorithm"}  # which tells what an arm is
    own, defaults = (calls.flattened(vars(one), parts) for one in (settings, common))
    return {
        name: value
        for name, value in own.items()
        if name != "seed" and (name not in defaults or value != defaults[name])
    }


def total(rows: Sequence[Planned]) -> dict[str, Any]:
    """What the runs of all rows take together.

    Returns:
      "runs"; "refused", those that cannot be made; "unfit", those that do not fit into the memory of the devices;
      "memory", the bytes on each device of the largest run; and the sums of all other fields of ``Needs`` and
      ``Compute``. "evaluation_over_training" are multiply-adds; None if nothing is trained.
    """
    counted_needs = [(row.runs, row.needs) for row in rows if row.needs is not None]
    sums: dict[str, Any] = {
        "runs": sum(row.runs for row in rows),
        "refused": sum(row.runs for row in rows if row.needs is None),
        "unfit": sum(runs for runs, needs in counted_needs if needs.memory > needs.available),
        "memory": max((needs.memory for _, needs in counted_needs), default=0),
        **{
            name: sum(runs * getattr(needs, name) for runs, needs in counted_needs)
            for name in ("trips", "steps")
        },
        **{
            name: sum(runs * getattr(needs.counted, name) for runs, needs in counted_needs)
            for name in Compute._fields
        },
    }
    trained = sums["training"] + sums["server"]
    return {**sums, "evaluation_over_training": sums["evaluation"] / trained if trained else None}


def table(rows: Sequence[Planned]) -> list[list[str]]:
    """A row for each arm under each condition, of all its runs but for memory, the heading first.

    Trials of the search stand together. The last cell, the arm's own settings, has no heading.
    """
    groups: dict[tuple[str, str], list[Planned]] = {}
    for row in rows:
        groups.setdefault((row.condition, row.label), []).append(row)
    lines = [HEADING]
    for (condition, label), same in groups.items():
        sums = total(same)
        cells = ["-"] * 6
        if sums["refused"] < sums["runs"]:
            training, share = sums["training"] + sums["server"], sums["evaluation_over_training"]
            cells = [f"{sums['trips']:,}", f"{sums['steps']:,}", readable(sums["memory"])]
            cells += [
                _powers(training),
                _powers(sums["evaluation"]),
                "-" if share is None else f"{share:.2f}",
            ]
        lines.append([condition or "-", label, f"{sums['runs']:,}", *cells, "  " + _own_settings(same)])
    return lines


def _own_settings(rows: Sequence[Planned]) -> str:
    """The settings of an arm as text; of those that its trials vary, their values or how many there are."""
    texts = []
    for name in dict.fromkeys(name for row in rows for name in row.settings):
        values = list(dict.fromkeys(grid.shown(row.settings[name]) for row in rows if name in row.settings))
        texts.append(
            f"{name}={'|'.join(values) if len(values) <= MOST_VALUES else f'({len(values)} values)'}"
        )
    return ", ".join(texts)


def _powers(number: float) -> str:
    """A number of multiply-adds: 1.23e+15."""
    return f"{number:.2e}" if number else "0"


def totals(sweep: Sweep, rows: Sequence[Planned]) -> list[str]:
    """Lines on all runs of a part together."""
    sums = total(rows)
    common = ", ".join(
        f"{name}={grid.shown(value)}" for name, value in _changed(sweep.settings, Settings()).items()
    )
    lines = [
        f"{sweep.part.capitalize()}: {sums['runs']:,} runs, {sums['trips']:,} client trips, "
        f"{sums['steps']:,} server steps.",
        f"Seeds: {sweep.settings.seed}. Settings of all arms that are no defaults: {common or 'none'}.",
        *(["More, where a range of rates has to grow."] if sweep.part == "search" else []),
        *_refused(rows),
    ]
    if sums["refused"] == sums["runs"]:
        return lines
    available = max(row.needs.available for row in rows if row.needs)
    unfit = f"; {sums['unfit']:,} runs do not fit here" if sums["unfit"] else ""
    server = f", {_powers(sums['server'])} of the server's own" if sums["server"] else ""
    return [
        *lines,
        f"Memory: at most {readable(sums['memory'])} of {readable(available)} a device{unfit}.",
        f"Compute: {_powers(sums['training'])} multiply-adds for training{server}, "
        f"{_powers(sums['evaluation'])} for {sums['evaluations']:,} evaluations.",
        _on_evaluation(sums["evaluation_over_training"]),
    ]


def _refused(rows: Sequence[Planned]) -> list[str]:
    """Each reason once, with what is refused for it."""
    reasons: dict[str, list[Planned]] = {}
    for row in rows:
        if row.refused:
            reasons.setdefault(row.refused, []).append(row)
    lines = []
    for reason, same in reasons.items():
        where = f"{same[0].label!r}" + (f" under {same[0].condition}" if same[0].condition else "")
        lines.append(f"Refused, {sum(row.runs for row in same):,} runs, such as {where}: {reason}")
    return lines


def _on_evaluation(share: float | None) -> str:
    if share is None:
        return "No training is counted."
    text = f"Evaluation takes {share:.2f} of the compute of training"
    if share <= MOST_EVALUATION:
        return f"{text}."
    return (
        f"{text}, more than {MOST_EVALUATION:g}: evaluate {share / MOST_EVALUATION:.1f} times more rarely "
        "(--evaluate_every), or on as many times fewer examples (--split.evaluation_examples)."
    )


def assumed(reasons: Mapping[str, str]) -> list[str]:
    """A line for each data set or model that is not here."""
    return [
        f"Assumed: {name} is planned by its published shapes, for it is not here ({reason})"
        for name, reason in reasons.items()
    ]


def dry_run(job: Job, sweeps: Sequence[Sweep]) -> bool:
    """Shows and writes the plan of an experiment, ``plan.md`` and ``plan.json`` in its folder, over an earlier one.

    Args:
      job: the experiment at one scale, a ``Job``.
      sweeps: its runs; none for an experiment that trains nothing.

    Returns:
      Whether a run is refused.

    Raises:
      SettingError: for settings that cannot work, before anything is written.
    """
    with Waiting(job.options.progress) as waiting:
        planner = Planner(waiting.tell)
        planned = [(sweep, planner.planned(sweep)) for sweep in sweeps]
    lines = assumed(planner.loaded.assumed) if sweeps else [_without_training(job)]
    for sweep, rows in planned:
        lines += [*aligned(table(rows)), *totals(sweep, rows), ""]
    for line in lines:
        job.show(line)
    job.folder.mkdir(parents=True, exist_ok=True)
    directory, name = RunDirectory(job.folder), job.experiment.name
    content = {
        "experiment": name,
        "scale": job.scale_name,
        "assumed": planner.loaded.assumed,
        "parts": {
            sweep.part: {"rows": [_as_json(row) for row in rows], "total": total(rows)}
            for sweep, rows in planned
        },
    }
    directory.write_result("plan.json", content)
    text = [f"# {name}, {job.scale_name} size: what it would run", "", "```", *lines, "```"]
    directory.write_text("plan.md", "\n".join(text) + "\n")
    job.show(f"Nothing was trained. The plan is in {job.folder}: plan.md, plan.json")
    return any(row.refused for _, rows in planned for row in rows)


def _as_json(row: Planned) -> dict[str, Any]:
    needs = row.needs and {**row.needs._asdict(), "counted": row.needs.counted._asdict()}
    return {**dataclasses.asdict(row), "needs": needs}


def together(folders: Mapping[str, pathlib.Path]) -> list[str]:
    """Lines on the plans of several experiments.

    Args:
      folders: {experiment: where its plan lies}.

    Returns:
      What they take in all, and in which of them evaluation takes more than ``MOST_EVALUATION``.
    """
    sums = dict.fromkeys(("runs", "trips", "training", "evaluation"), 0)
    named = []
    for name, folder in folders.items():
        for part, planned in read_json(folder / "plan.json")["parts"].items():
            sums = {each: value + planned["total"][each] for each, value in sums.items()}
            share = planned["total"]["evaluation_over_training"] or 0.0
            if share > MOST_EVALUATION:
                named.append(f"{name}{' (search)' if part == 'search' else ''}: {share:.2f}")
    return [
        f"All {len(folders)} together: {sums['runs']:,} runs, {sums['trips']:,} client trips, "
        f"{_powers(sums['training'])} multiply-adds for training, {_powers(sums['evaluation'])} for evaluations.",
        f"Evaluation takes more than {MOST_EVALUATION:g} of the compute of training in "
        f"{len(named) or 'none'} of them{': ' if named else '.'}{', '.join(named)}",
    ]


def _without_training(job: Job) -> str:
    page = discovery.page_name(job.experiment.name, job.scale_name)
    minutes = times.minutes(times.read().get(page), "results")
    time = f"It took {minutes} minutes for docs/results." if minutes != "-" else "No time has been measured."
    return f"It trains nothing: no runs, trips or evaluations. {time}"
