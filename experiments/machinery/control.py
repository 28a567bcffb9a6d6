"""The control: in a world of shuffled labels no arm is better than another, so that each such verdict is false.

    python -m experiments.machinery.control --families=200 NAME [NAME ...]

runs the arms of the named experiments' primary claims, all of one paper, at desk size with shuffled labels, each with
as many seeds as 200 repetitions of its analysis take. Each repetition is judged as a family of primary claims, by
Holm's procedure; at most 5 % of the families should have a false verdict. Nothing can be learnt in fewer steps:
--client_trips=N or --server_steps=N shortens all runs. Results lie in runs/control-NAME, or in the folder of
--output_dir. The same command goes on where it was stopped.
"""

import dataclasses
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.machinery import discovery, verdicts
from experiments.machinery.declarations import BETTER, WORSE, Analysis, Claim, PaperExperiment, Scale
from experiments.machinery.protocol import claims_at
from experiments.machinery.results import Runs
from experiments.machinery.running import default_processes
from experiments.machinery.statistics import ALPHA
from experiments.machinery.sweeps import BUDGET, adapted, of_results, typed_budget
from jafl.errors import SettingError, require, whole_number
from jafl.sweeps.seed_means import ArmRuns

FIRST_SEED = 100_000  # so that no seed is one of the results' or the search's


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
) -> list[bool]:
    """Runs experiments of one paper with shuffled labels; for each family whether it has a false verdict.

    Args:
      names: of experiments that declare an analysis at desk size.
      families: how many.
      output: where ``control-NAME`` is made.
      budget: ``client_trips`` and ``server_steps`` in the place of every arm's own.
      options: of ``jafl.sweeps.sweep.run_sweep``. Two processes share the runs on a CPU with two cores.

    Raises:
      SettingError: for an experiment that has no analysis or trains nothing, or experiments of several papers.
    """
    whole_number("families", families, 1)
    experiments = [discovery.load(name) for name in names]
    papers = sorted({experiment.paper for experiment in experiments})
    require(len(papers) == 1, "the experiments' papers", papers, "one: a family is one paper's")
    for experiment in experiments:
        fits = experiment.scales["desk"].analysis and experiment.measure is None
        allowed = "an experiment that trains and declares an analysis at desk size"
        require(fits, "experiment", experiment.name, allowed)
    gathered: list[list[dict[str, Any]]] = [[] for _ in range(families)]
    for experiment in experiments:
        for number, rows in enumerate(_of_experiment(experiment, families, output, budget or {}, options)):
            gathered[number] += rows
    return judge_families(gathered)


def _of_experiment(
    experiment: PaperExperiment,
    families: int,
    output: pathlib.Path,
    budget: Mapping[str, int],
    options: dict[str, Any],
) -> list[list[dict[str, Any]]]:
    """For each family the rows of the experiment's primary claim."""
    from jafl.sweeps.sweep import run_sweep

    scale = experiment.scales["desk"]
    assert scale.analysis is not None
    seeds, folds = scale.analysis.seeds or 0, scale.settings.get("test_folds")
    chunks = [seeds_of_family(number, seeds, folds) for number in range(families)]
    every = ",".join(str(seed) for chunk in chunks for seed in chunk)
    typed = {"shuffle_labels": True, "seed": every, **budget}
    size, settings = adapted(_needed(experiment, scale, scale.analysis), typed)
    folder = output / f"control-{experiment.name}"
    sweep = of_results(size, settings, typed_budget(budget))
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
    found = []
    for chunk in chunks:
        rows = verdicts.judge([primary], "desk", _with_seeds(runs, chunk), scale.analysis)
        found.append([row for row in rows if row["primary"]])
    return found


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
    kept = {*seeds}
    return Runs(
        [
            ArmRuns(
                group.condition, group.label, [run for run in group.runs if int(run.config["seed"]) in kept]
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
        false = run(names, families, pathlib.Path(output), budget)
    except SettingError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2
    share = sum(false) / families
    told = f"{sum(false)} of {families} families ({100 * share:.1f} %) have a false verdict"
    print(f"{told}; at most {100 * ALPHA:g} % should.")
    return int(share > ALPHA)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
