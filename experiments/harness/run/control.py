"""The control: a rule against itself under another name, through the whole pipeline. There is no difference to find.

    python -m experiments.harness.run.control --repetitions=20 NAME [NAME ...]

Of each named experiment it takes an arm of the primary claim, under that claim's condition, and the same arm once
more under another name, whose grids are shifted by half a step, and its random points by half of their ranges. Both
are searched for, run and judged as at desk size, again and again with other seeds, random points and shifts. At most
5 % of the verdicts may be "better" or "worse": those would come from the pipeline. The same numbers are also judged
as they must not be, to show that the control can fail: with seeds as the units, so that the variance of the search
is left out, and with intervals cut to 0.7 of theirs. A third way needs runs of its own, ``--coarse``: a grid of
factor 3.3 that all searches of an arm share, and the best trial wins.

Runs lie in runs/control/NAME, and what came out in runs/control/control.json, or below the folder of --output_dir;
``python -m experiments.harness.report.pages`` takes it over from runs/control, and that of coarse grids from
runs/control-coarse. --client_trips=N or --server_steps=N shortens all runs. The same command goes on where it was
stopped, also with more repetitions.
"""

import dataclasses
import json
import pathlib
import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.harness.declare import discovery
from experiments.harness.declare.declarations import (
    BETTER,
    EQUIVALENT,
    UNDECIDED,
    WORSE,
    Claim,
    OneGrid,
    PaperExperiment,
)
from experiments.harness.declare.protocol import VERSION, claims_at
from experiments.harness.judge import verdicts
from experiments.harness.judge.replication import SEEDS_APART
from experiments.harness.run import job
from experiments.harness.run.sweeps import BUDGET
from experiments.harness.statistics import ALPHA
from jafl.base.errors import SettingError, require, whole_number
from jafl.config import grid

AGAIN = ", again"  # behind the label of the second arm
FIRST = 10  # so that no repetition has seeds of a result, a search or a replication
FILE, FORMAT = "control.json", 2
COARSE = 3.3  # the factor of the grids that must fail
CUT = 0.7  # of the intervals that must fail
HOW = ("budget", "coarse", "protocol")  # what a control of the same folder must share
# How the same numbers are judged: as the protocol does, and in two ways that must fail.
WAYS: Mapping[str, Mapping[str, Any]] = {
    "as the protocol has it": {},
    "without the variance of the search": {"searches": None},
    f"with intervals of {CUT:g}": {"shrunk": CUT},
}


def twin(experiment: PaperExperiment, repetition: int, *, coarse: bool = False) -> PaperExperiment:
    """The experiment at desk size with one arm of its primary claim, twice, and one claim: that they differ.

    Args:
      experiment: as its file declares it.
      repetition: from 0; each has seeds, random points and shifts of its own.
      coarse: whether grids have a factor of 3.3, at one place for all searches, and the best trial wins.

    Raises:
      SettingError: for an experiment that trains nothing, or searches for nothing.
    """
    scale = experiment.scales["desk"]
    fits = scale.search is not None and scale.analysis is not None and experiment.measure is None
    require(fits, "experiment", experiment.name, "one that searches for settings at desk size, and is judged")
    assert scale.search and scale.analysis
    claim = _claim(experiment)
    condition = next(
        each
        for each in grid.product(scale.conditions)
        if all(each.get(name) == value for name, value in {**scale.analysis.under, **claim.under}.items())
    )
    labels = claim.better, claim.better + AGAIN
    folds = scale.settings.get("split.folds") or 1
    offset = (FIRST + repetition) * -(-SEEDS_APART // folds) * folds
    search = scale.search
    own = search.spaces.get(claim.better, search.space)
    if coarse:
        fields = {field.name: getattr(search, field.name) for field in dataclasses.fields(search)}
        search = OneGrid(**{**fields, "factor": COARSE, "fine": None})
    search = dataclasses.replace(
        search,
        space=own,
        spaces={},
        offsets={labels[1]: 0.5},
        seeds=tuple(seed + offset for seed in search.seeds),
        seed=FIRST + repetition,
    )
    overrides = [
        each._replace(label=label)
        for label in labels
        for each in scale.overrides
        if each.label in (None, claim.better)
    ]
    size = dataclasses.replace(
        scale,
        arms=dict.fromkeys(labels, scale.arms[claim.better]),
        conditions={name: [value] for name, value in condition.items()},
        overrides=overrides,
        seeds=tuple(seed + offset for seed in scale.seeds),
        search=search,
        tuned={},
        undecided={},
        analysis=dataclasses.replace(scale.analysis, primary="differs", under={}, untuned={}),
    )
    differs = dataclasses.replace(
        claim,
        sentence="differs",
        better=labels[0],
        worse=labels[1],
        under={},
        expected=EQUIVALENT,
        identity=False,
    )
    return dataclasses.replace(
        experiment, scales={"desk": size}, claims=[differs], pictures=None, beside=None
    )


def _claim(experiment: PaperExperiment) -> Claim:
    """The primary claim, or else the first, that compares two arms which are searched for."""
    scale = experiment.scales["desk"]
    assert scale.search and scale.analysis
    claims = claims_at(experiment, "desk")
    claims.sort(key=lambda claim: claim.sentence != scale.analysis.primary)  # type: ignore[union-attr]
    for claim in claims:
        if claim.differences is None and scale.search.spaces.get(claim.better, scale.search.space):
            return claim
    raise SettingError(f"{experiment.name} has no claim that compares two arms which are searched for.")


def run(
    names: Sequence[str],
    repetitions: int,
    output: pathlib.Path = pathlib.Path("runs/control"),
    budget: Mapping[str, int] | None = None,
    *,
    coarse: bool = False,
    **options: Any,
) -> dict[str, Any]:
    """Runs the control; returns the content of ``control.json``, which is written after each repetition.

    Args:
      names: of experiments.
      repetitions: of each.
      output: where a folder for each experiment is made.
      budget: ``client_trips`` and ``server_steps`` in the place of every arm's own.
      coarse: whether grids are as they must not be.
      options: of ``experiments.harness.run.job.train``.

    Raises:
      SettingError: for an experiment that does not search, or a folder with another control.
    """
    whole_number("repetitions", repetitions, 1)
    path = output / FILE
    content: dict[str, Any] = {
        "format": FORMAT,
        "protocol": VERSION,
        "budget": dict(budget or {}),
        "coarse": coarse,
        "rows": {},
    }
    if path.is_file():
        there = read(path)
        for name in HOW:
            require(there[name] == content[name], f"{name} of {path}", there[name], f"{content[name]}")
        content["rows"] = there["rows"]
    for name in names:
        twin(discovery.load(name), 0)
    for repetition in range(repetitions):
        for name in names:
            rows = content["rows"].setdefault(name, [])
            if len(rows) > repetition:
                continue
            folder = output / name
            experiment = twin(discovery.load(name), repetition, coarse=coarse)
            row = job.train(experiment, "desk", folder, budget or {}, **options)
            rows.append({key: row[key] for key in KEPT if key in row})
            output.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
            shutil.rmtree(folder)
    return content


# What is kept of a verdict's row: enough to judge it in another way.
KEPT = (
    "condition",
    "difference",
    "low",
    "high",
    "margin",
    "spread",
    "correction",
    "censored",
    "searches",
    "differences",
    "sides",
    "undecided",
    "verdict",
)


def counts(content: Mapping[str, Any]) -> dict[str, dict[str, dict[str, int]]]:
    """{way of judging: {experiment: {verdict: how often}}}."""
    table: dict[str, dict[str, dict[str, int]]] = {}
    for way, changes in WAYS.items():
        for name, rows in content["rows"].items():
            own = table.setdefault(way, {}).setdefault(name, {})
            for row in rows:
                verdict = UNDECIDED if row.get("undecided") else verdicts.judged_again(row, **changes)
                own[verdict] = own.get(verdict, 0) + 1
    return table


def share(counted: Mapping[str, Mapping[str, int]]) -> tuple[int, int]:
    """How many verdicts are "better" or "worse", and how many there are."""
    false = sum(own.get(BETTER, 0) + own.get(WORSE, 0) for own in counted.values())
    return false, sum(sum(own.values()) for own in counted.values())


def read(path: pathlib.Path) -> dict[str, Any]:
    """The content of a ``control.json``; raises SettingError for one that is not whole, or of another version."""
    wanted = f"one that this command wrote, with {', '.join((*HOW, 'rows'))}"
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        whole = content["format"] == FORMAT and all(name in content for name in (*HOW, "rows"))
    except (ValueError, KeyError, TypeError):
        whole = False
    require(whole, "file", str(path), wanted, "Move it away, and run the control again.")
    version = content["protocol"]
    allowed = f"{VERSION}, that of docs/protocol.md"
    require(version == VERSION, f"protocol of {path}", version, allowed, "Run the control again.")
    return content


def summary(content: Mapping[str, Any]) -> list[str]:
    """How many verdicts are false, a line for each way of judging."""
    lines = []
    for way, counted in counts(content).items():
        false, number = share(counted)
        equivalent = sum(own.get(EQUIVALENT, 0) for own in counted.values())
        lines.append(
            f"{way}: {false} of {number} verdicts are better or worse ({100 * false / max(number, 1):.1f} %), "
            f"{equivalent} equivalent"
        )
    return lines


def main(arguments: Sequence[str]) -> int:
    """Runs the control; returns the exit status: 1 where more than 5 % of the protocol's verdicts are false."""
    repetitions, names, output, budget, coarse = 20, [], "runs/control", dict[str, int](), False
    if "--help" in arguments:
        print(__doc__)
        return 0
    try:
        for argument in arguments:
            name, _, value = argument.removeprefix("--").partition("=")
            if not argument.startswith("--"):
                names.append(argument)
            elif name == "output_dir":
                output = value
            elif argument == "--coarse":
                coarse = True
            else:
                allowed = "repetitions, coarse, output_dir or a budget"
                require(name in ("repetitions", *BUDGET), "flag", argument, allowed)
                number = whole_number(name, int(value) if value.isdigit() else value, 1)
                if name == "repetitions":
                    repetitions = number
                else:
                    budget[name] = number
        require(names, "experiments", names, f"names of experiments: {', '.join(discovery.names())}")
        require(len({*names}) == len(names), "experiments", ", ".join(names), "names that differ")
        print(f"The control, {repetitions} times: {', '.join(names)}.", flush=True)
        content = run(names, repetitions, pathlib.Path(output), budget, coarse=coarse)
    except SettingError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2
    print("\n".join(summary(content)))
    false, number = share(counts(content)[next(iter(WAYS))])
    return int(false > ALPHA * number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
