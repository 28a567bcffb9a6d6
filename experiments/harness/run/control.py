"""The control: in a world of shuffled labels no arm is better than another, so that each such verdict is false.

    python -m experiments.harness.run.control --families=200 NAME [NAME ...]

runs the arms of the named experiments' primary claims, all of one paper, at desk size with shuffled labels, each with
as many seeds as 200 repetitions of its analysis take. Each repetition is judged as a family of primary claims, by
Holm's procedure; at most 5 % of the families should have a false verdict. Nothing can be learnt in fewer steps:
--client_trips=N or --server_steps=N shortens all runs. Runs lie in runs/control-NAME, and what came out in
runs/control.json, or in the folder of --output_dir; ``python -m experiments.harness.report.pages`` takes the
latter over. The same command goes on where it was stopped.
"""

import dataclasses
import json
import math
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.harness.declare import discovery
from experiments.harness.declare.declarations import BETTER, WORSE, Analysis, Claim, PaperExperiment, Scale
from experiments.harness.declare.protocol import VERSION, claims_at
from experiments.harness.judge import verdicts
from experiments.harness.results import Runs
from experiments.harness.run.running import default_processes
from experiments.harness.run.sweeps import BUDGET, adapted, results_sweep, typed_budget
from experiments.harness.statistics import ALPHA
from jafl.base.errors import SettingError, require, whole_number
from jafl.sweeps.seed_means import ArmRuns

FIRST_SEED = 100_000  # so that no seed is one of the results' or the search's
FILE, FORMAT = "control.json", 1
HOW = ("experiments", "families", "budget", "protocol")  # what a control of the same name must share
REMEDY = "Choose another --output_dir."


def seeds_of_family(family: int, seeds: int, folds: int | None) -> list[int]:
    """The seeds of a family: as many as the analysis states, none of another family's.

    With folds, a family begins with the first fold of a division of its own.
    """
    length = seeds if not folds else -(-seeds // folds) * folds
    first = FIRST_SEED + (-FIRST_SEED % (folds or 1)) + family * length
    return list(range(first, first + seeds))


def judge_families(
    claims: Sequence[Sequence[dict[str, Any]]],
) -> list[bool]:
    """Whether each family has a false verdict: one of its primary claims is called better or worse.

    Args:
      claims: for each family the rows of its primary claims, as ``verdicts.judge`` returns them.
    """
    return [bool({BETTER, WORSE} & {*verdicts.by_holm(rows)}) for rows in claims]


def run(
    names: Sequence[str],
    families: int,
    output: pathlib.Path = pathlib.Path("runs"),
    budget: Mapping[str, int] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Runs experiments of one paper with shuffled labels, and counts families with a false verdict.

    Args:
      names: of experiments that declare an analysis at desk size.
      families: how many.
      output: where ``control-NAME`` is made.
      budget: ``client_trips`` and ``server_steps`` in the place of every arm's own.
      options: of ``jafl.sweeps.sweep.run_sweep``. Two processes share the runs on a CPU with two cores.

    Returns:
      The content of ``control.json``, which is written to ``output``, too: "false" families, all "runs", and for each
      claim how many of its verdicts are false without Holm's procedure, and the standard deviation of its mean
      differences over families beside that over seeds, divided by the root of their number.

    Raises:
      SettingError: for an experiment that has no analysis or trains nothing, experiments of several papers, or a
        folder with another control.
    """
    whole_number("families", families, 1)
    experiments = [discovery.load(name) for name in names]
    papers = sorted({experiment.paper for experiment in experiments})
    require(len(papers) == 1, "the experiments' papers", papers, "one: a family is one paper's")
    for experiment in experiments:
        fits = experiment.scales["desk"].analysis and experiment.measure is None
        allowed = "an experiment that trains and declares an analysis at desk size"
        require(fits, "experiment", experiment.name, allowed)
    content: dict[str, Any] = {
        "format": FORMAT,
        "experiments": [*names],
        "families": families,
        "budget": dict(budget or {}),
        "protocol": VERSION,
    }
    _check_replaced(output / FILE, content)
    gathered: list[list[dict[str, Any]]] = [[] for _ in range(families)]
    trained = 0
    for experiment in experiments:
        runs, families_rows = _control_rows(experiment, families, output, budget or {}, options)
        trained += runs
        for number, rows in enumerate(families_rows):
            gathered[number] += rows
    content |= {
        "runs": trained,
        "false": sum(judge_families(gathered)),
        "claims": [
            {"experiment": experiment.name, **_summed(rows)}
            for experiment, rows in zip(experiments, zip(*gathered, strict=True), strict=True)
        ],
    }
    output.mkdir(parents=True, exist_ok=True)
    (output / FILE).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return content


def _check_replaced(path: pathlib.Path, content: Mapping[str, Any]) -> None:
    """Raises SettingError where another control lies already."""
    if not path.is_file():
        return
    there = read(path)
    for name in HOW:
        require(there[name] == content[name], f"{name} of {path}", there[name], f"{content[name]}", REMEDY)


def _summed(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the families say of one claim."""
    differences = [row["difference"] for row in rows]
    return {
        "claim": rows[0]["claim"],
        "condition": rows[0]["condition"],
        "false": sum(row["verdict"] in (BETTER, WORSE) for row in rows),
        "over_families": float(np.std(differences, ddof=1)) if len(rows) > 1 else 0.0,
        "over_seeds": math.sqrt(np.mean([row["spread"] ** 2 / row["seeds"] for row in rows])),
    }


def read(path: pathlib.Path) -> dict[str, Any]:
    """The content of a ``control.json``; raises SettingError for one that is not whole."""
    wanted = f"one that this command wrote, with {', '.join((*HOW, 'runs', 'false', 'claims'))}"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        whole = content["format"] == FORMAT and all(
            name in content for name in (*HOW, "runs", "false", "claims")
        )
    except (ValueError, KeyError, TypeError):
        whole = False
    require(whole, "file", str(path), wanted, "Move it away, and run the control again.")
    version = content["protocol"]
    allowed = f"{VERSION}, that of docs/protocol.md"
    require(version == VERSION, f"protocol of {path}", version, allowed, "Run the control again.")
    return content


def _control_rows(
    experiment: PaperExperiment,
    families: int,
    output: pathlib.Path,
    budget: Mapping[str, int],
    options: dict[str, Any],
) -> tuple[int, list[list[dict[str, Any]]]]:
    """How many runs there are, and for each family the rows of the experiment's primary claim."""
    from jafl.sweeps.sweep import run_sweep

    scale = experiment.scales["desk"]
    assert scale.analysis is not None
    seeds, folds = scale.analysis.seeds or 0, scale.settings.get("split.folds")
    chunks = [seeds_of_family(number, seeds, folds) for number in range(families)]
    every = ",".join(str(seed) for chunk in chunks for seed in chunk)
    typed = {"split.shuffle_labels": True, "seed": every, **budget}
    size, settings = adapted(_needed(experiment, scale, scale.analysis), typed)
    folder = output / f"control-{experiment.name}"
    sweep = results_sweep(size, settings, typed_budget(budget))
    outcome = run_sweep(
        sweep.settings,
        sweep.conditions,
        folder,
        arms=sweep.arms,
        overrides=sweep.overrides,
        **{
            "pictures": "none",
            "show": lambda line: None,
            "progress": False,
            "processes": default_processes(),
            **options,
        },
    )
    if outcome.left:
        raise SettingError(
            f"{outcome.left} runs of {folder} are not over. The same command goes on with them."
        )
    runs, primary = Runs.in_folder(folder), _primary(experiment, scale.analysis)
    families_rows = []
    for chunk in chunks:
        rows = verdicts.judge([primary], "desk", _with_seeds(runs, chunk), scale.analysis)
        families_rows.append([row for row in rows if row["primary"]])
    return sum(len(group.runs) for group in runs.groups), families_rows


def _primary(experiment: PaperExperiment, analysis: Analysis) -> Claim:
    """The claim that the experiment stands or falls by at desk size."""
    (claim,) = (claim for claim in claims_at(experiment, "desk") if claim.sentence == analysis.primary)
    return claim


def _needed(experiment: PaperExperiment, scale: Scale, analysis: Analysis) -> Scale:
    """The scale with what the primary claim is about: two arms and one condition, unless it joins several."""
    claim = _primary(experiment, analysis)
    if claim.differences is not None:
        return scale
    wanted = {**claim.under, **analysis.under}
    labels = (claim.better, claim.worse)
    return dataclasses.replace(
        scale,
        conditions={
            name: [wanted[name]] if name in wanted else values for name, values in scale.conditions.items()
        },
        arms={label: scale.arms[label] for label in labels},
        overrides=[override for override in scale.overrides if override.label in (None, *labels)],
        tuned={
            where: {label: own for label, own in arms.items() if label in labels}
            for where, arms in scale.tuned.items()
        },
    )


def _with_seeds(runs: Runs, seeds: Sequence[int]) -> Runs:
    """The runs with these seeds."""
    wanted = {*seeds}
    return Runs(
        [
            ArmRuns(
                group.condition, group.label, [run for run in group.runs if int(run.config["seed"]) in wanted]
            )
            for group in runs.groups
        ]
    )


def main(arguments: Sequence[str]) -> int:
    """Runs the control; returns the exit status: 1 where more than 5 % of the families have a false verdict."""
    families, names, output, budget = 200, [], "runs", dict[str, int]()
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
            else:
                require(name in ("families", *BUDGET), "flag", argument, "families, output_dir or a budget")
                number = whole_number(name, int(value) if value.isdigit() else value, 1)
                if name == "families":
                    families = number
                else:
                    budget[name] = number
        require(names, "experiments", names, f"names of experiments: {', '.join(discovery.names())}")
        require(len({*names}) == len(names), "experiments", ", ".join(names), "names that differ")
        print(f"Training {families} families with shuffled labels: {', '.join(names)}.", flush=True)
        content = run(names, families, pathlib.Path(output), budget)
    except SettingError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2
    print(summary(content))
    return int(content["false"] / families > ALPHA)


def summary(content: Mapping[str, Any]) -> str:
    """How many families have a false verdict, in a sentence."""
    families, false = content["families"], content["false"]
    share = f"{false} of {families} families ({100 * false / families:.1f} %) have a false verdict"
    return f"{share}; at most {100 * ALPHA:g} % should."


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
