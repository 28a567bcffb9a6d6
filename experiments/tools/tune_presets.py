"""The search behind the default learning rates of ``run.py``'s algorithms (``jafl/config/presets.py``).

    python -m experiments.tools.tune_presets

A default has to work in worlds that nobody has tuned it in. So every pair of rates (clients', server's) of an
algorithm is tried in all ``WORLDS``, with two seeds in each, and the pair with the smallest *worst regret* wins.

**Regret.** A run is evaluated ``EVALUATIONS`` times, at even distances, on examples that are held out of training.
Two numbers are taken of it: its mean accuracy over all evaluations, which is high for a run that is quick, and over
the last fifth of them, which is high for a run that ends well. The regret of a pair, in one world with one seed, is
how much it lacks to the best pair of the same algorithm there, in whichever of the two it lacks more. It is infinite
if the loss was not finite at an evaluation. So it is a loss of accuracy, between 0 and 1. The regret of a pair in a
world is that of its worse seed; its worst regret is that of its worst world. Ties go to the smaller mean.

Each run that has ended is a line of ``--output``; the same command goes on where it was stopped, and prints the table
of benchmarks/README.md when all are there. ``--table`` prints it of what is there. ``--algorithms`` names some.
"""

import dataclasses
import itertools
import json
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from absl import app, flags

from jafl.config.data_cache import DataCache
from jafl.config.experiment import Experiment, make_experiment
from jafl.config.presets import PRESETS
from jafl.config.resolution import resolve
from jafl.config.settings import Settings
from jafl.engine.evaluation import Evaluator
from jafl.runs.grouping import evenly, group_limit
from jafl.simulation.make_run_group import make_run_group, prepare_together

# What differs from the main job, which is the first. Budgets are such that the best pairs have settled.
MAIN_JOB = "main job"
WORLDS: dict[str, dict[str, Any]] = {
    MAIN_JOB: {"client_trips": 4000},
    "constant delays": {"client_trips": 4000, "delay": "constant"},
    "heavy tails": {"client_trips": 4000, "delay": "pareto(shape=1.2)"},
    "nearly IID": {"client_trips": 4000, "partition.alpha": 100.0},
    "one or two labels each": {"client_trips": 4000, "partition.alpha": 0.05},
    "another split": {"client_trips": 4000, "split.seed": 1, "delay": "once_per_client(exponential)"},
    "label groups, groups of delays": {
        "client_trips": 2000,
        "num_clients": 15,
        "concurrency": 15,
        "buffer_size": 5,
        "partition": "label_groups([(10, [4, 5, 6, 7, 8, 9]), (5, [0, 1, 2, 3])])",
        "delay": "groups([(10, uniform(1, 2)), (5, uniform(8, 12))])",
    },
    "90 of 100 in flight, K = 50": {"client_trips": 8000, "concurrency": 90, "buffer_size": 50},
    "4 of 100 in flight, K = 2": {"client_trips": 4000, "concurrency": 4, "buffer_size": 2},
    "synthetic, 150 of 500 in flight": {
        "client_trips": 3000,
        "dataset": "synthetic",
        "model": "softmax",
        "num_clients": 500,
        "concurrency": 150,
        "dataset.shared_labels": True,
        "dataset.mean_examples": 50.0,
    },
}
SEEDS = (101, 102)  # nobody else uses them
EVALUATIONS = 25
LAST = EVALUATIONS // 5
TARGET = 0.95  # of the column that tells what the main job takes

# For synchronous algorithms delays decide the time of a round, and nothing else.
DELAYS_ONLY = ("constant delays", "heavy tails")

# In which the budget ends before every client has arrived once, as their first step needs.
TOO_SHORT = dict.fromkeys(("malenia", "ringleader"), ("heavy tails", "synthetic, 150 of 500 in flight"))

# (clients' rates, server's rates); the table says which winners lie at an edge.
CLIENTS, MORE_CLIENTS = (0.1, 0.3), (0.03, 0.1, 0.3, 1.0)
OF_A_MEAN = (0.1, 0.3, 1.0, 3.0)
RATES = {
    "fedbuff": (MORE_CLIENTS, OF_A_MEAN),
    "fedasync": ((*MORE_CLIENTS[1:], 3.0), (0.1, 0.3, 0.6, 0.9)),
    "fedavgm": (MORE_CLIENTS[1:], (0.03, 0.1, 0.3, 1.0)),
    "fedavg": (MORE_CLIENTS, (*OF_A_MEAN, 10.0)),
    "fedprox": (CLIENTS, OF_A_MEAN[2:]),
    "fednova": (CLIENTS, OF_A_MEAN[2:]),
    "fedadam": (CLIENTS, (0.01, 0.03, 0.1)),
    "fedyogi": (CLIENTS, (0.01, 0.03, 0.1)),
    "fedadagrad": ((0.3, 1.0), (0.03, 0.1, 0.3)),
    "fedstaleweight": (MORE_CLIENTS[1:], OF_A_MEAN),
    "exponential_weighting": (MORE_CLIENTS[1:], OF_A_MEAN),
    "ca2fl": (MORE_CLIENTS, OF_A_MEAN),
    "fadas": (MORE_CLIENTS[1:], (0.003, 0.01, 0.03, 0.1)),
    "cgad": ((0.01, *MORE_CLIENTS[:3]), (0.01, 0.03, 0.1)),
    "asyncfeded": ((0.01, *MORE_CLIENTS), OF_A_MEAN),
    "port": (MORE_CLIENTS, OF_A_MEAN),
    "fedcompass": ((*CLIENTS, 1.0), (0.3, 0.9, 3.0, 10.0)),
    "mifa": (MORE_CLIENTS, (*OF_A_MEAN, 10.0)),
    "diloco": ((3e-5, 1e-4, 4e-4, 1e-3, 3e-3), (0.3, 0.7, 1.0, 2.0)),
    "async_diloco": ((3e-5, 1e-4, 4e-4, 1e-3, 3e-3), (0.03, 0.1, 0.3, 0.7)),
    "scaffold": (MORE_CLIENTS, (*OF_A_MEAN, 10.0)),
    "feddyn": (MORE_CLIENTS, (1.0,)),
    "masfl": (MORE_CLIENTS, (0.03, 0.1, 0.3, 1.0)),
    # Steps of length 1 at the clients, whose mean the server takes.
    "adamasfl": ((0.01, 0.03, 0.1, 0.3), OF_A_MEAN),
    "ef21": (MORE_CLIENTS, (*OF_A_MEAN, 10.0)),
    "qafel": (MORE_CLIENTS, OF_A_MEAN),
    "fedfix": (MORE_CLIENTS, OF_A_MEAN),
    # With another server's rate they would be no means of models any more.
    "area": (MORE_CLIENTS, (1.0,)),
    "fedfa": ((*MORE_CLIENTS, 3.0), (1.0,)),
    "fedat": (MORE_CLIENTS, (1.0,)),
    "favas": (MORE_CLIENTS, (1.0,)),
    "quafl": (MORE_CLIENTS, (1.0,)),
}
# Rules on gradients take one local step with the clients' rate fixed at 1: all of the search goes to the server's.
OF_EACH_GRADIENT, OF_MEAN_GRADIENTS = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0), (0.03, 0.1, 0.3, 1.0)
GRADIENT_RATES = {
    "asgd": OF_EACH_GRADIENT,
    "delay_adaptive_asgd": OF_EACH_GRADIENT,
    "rescaled_asgd": OF_EACH_GRADIENT,
    "ringmaster": OF_EACH_GRADIENT,
    "ringmaster_with_stops": OF_EACH_GRADIENT,
    "rennala": OF_MEAN_GRADIENTS,
    "rennala_without_stops": OF_MEAN_GRADIENTS,
    "malenia": (*OF_MEAN_GRADIENTS, 3.0),
    "ringleader": OF_EACH_GRADIENT,
    "generalized_async_sgd": OF_EACH_GRADIENT,
    "dude_asgd": OF_EACH_GRADIENT,
    "ace": OF_EACH_GRADIENT,
    "aced": (0.003, 0.01, 0.03),  # it takes the longest of all; ace's rates lead to its own
    "sasgd": OF_MEAN_GRADIENTS,
    "twafl": OF_MEAN_GRADIENTS,
    "wkafl": OF_MEAN_GRADIENTS,
    "gsgm": OF_MEAN_GRADIENTS,
    "zeno_plus_plus": OF_EACH_GRADIENT[1:-1],
}
# All clients train in them, and their presets say when the server steps.
ALL_IN_FLIGHT = ("ace", "aced", "dude_asgd", "malenia", "ringleader", "fedfix")
PAIRS: dict[str, list[tuple[float, float]]] = {
    **{name: list(itertools.product(*rates)) for name, rates in RATES.items()},
    **{name: [(1.0, rate) for rate in rates] for name, rates in GRADIENT_RATES.items()},
}
NAMES_OF_RATES = ("learning_rate", "server_learning_rate")

ALGORITHMS = flags.DEFINE_list("algorithms", list(PAIRS), "Which to search for.")
OUTPUT = flags.DEFINE_string("output", "runs/tune_presets.jsonl", "File of the runs that have ended.")
TABLE = flags.DEFINE_bool("table", False, "Only print the table of what has ended.")


class Place(NamedTuple):
    """Where a pair is tried."""

    world: str
    seed: int


class Trial(NamedTuple):
    """One run: where, with which rates, and its accuracy [EVALUATIONS]; None if its loss was not finite."""

    algorithm: str
    place: Place
    rates: tuple[float, float]
    accuracy: list[float] | None

    @property
    def measures(self) -> np.ndarray:
        """[2]: mean accuracy over the run and over its last fifth; minus infinity for a loss that was not finite."""
        if self.accuracy is None:
            return np.full(2, -np.inf)
        return np.array([np.mean(self.accuracy), np.mean(self.accuracy[-LAST:])])


def distinct_worlds(algorithm: str) -> list[str]:
    """The worlds that are different ones for an algorithm, and in which it makes a step."""
    synchronous = PRESETS[algorithm].get("protocol") == "synchronous"
    left_out = DELAYS_ONLY if synchronous else TOO_SHORT.get(algorithm, ())
    return [world for world in WORLDS if world not in left_out]


def tuning_settings(world: str, algorithm: str) -> Settings:
    """A world's settings for one algorithm, both seeds; its rates are still to be filled in."""
    own = dict(WORLDS[world])
    if algorithm in ALL_IN_FLIGHT:
        for name in ("concurrency", "buffer_size"):
            own.pop(name, None)
    if algorithm == "zeno_plus_plus":
        own["split.server_examples"] = 100
    seeds = ",".join(map(str, SEEDS))
    return Settings.from_mapping(
        {"algorithm": algorithm, "seed": seeds, "split.validation_fraction": 0.2, **own}
    )


def seed_experiments(world: str, algorithm: str, loaded: DataCache) -> dict[Place, Experiment]:
    """An experiment for each seed, with the rates of today's preset."""
    # A setting that one of the compared algorithms reads is refused for none of them. Nothing is compared here.
    names = dict.fromkeys((algorithm, "fedbuff"))
    runs = {name: tuning_settings(world, name).changed({"different_worlds": True}) for name in names}
    resolved = resolve(runs, loaded)
    return {
        Place(world, int(settings.seed)): make_experiment(label, settings, loaded)
        for label, settings in resolved
        if label == algorithm
    }


def search(algorithm: str, done: set[tuple], loaded: DataCache) -> Iterator[list[Trial]]:
    """Tries every pair of an algorithm in every world, but for what is ``done``; yields what has ended together."""
    places: dict[Place, Experiment] = {}
    for world in distinct_worlds(algorithm):
        if any(
            (algorithm, Place(world, seed), pair) not in done for seed in SEEDS for pair in PAIRS[algorithm]
        ):
            places |= seed_experiments(world, algorithm, loaded)
    for group in _groups_by_shape(places):
        pairs = [
            pair for pair in PAIRS[algorithm] if any((algorithm, place, pair) not in done for place in group)
        ]
        if not pairs:
            continue  # all of these places have ended; others of this algorithm have not
        limit = group_limit([experiment.run for experiment in group.values()] * len(pairs))
        for part in evenly(pairs, max(1, limit // len(group))):
            runs = [
                (place, pair, with_rates(experiment, pair, loaded))
                for pair in part
                for place, experiment in group.items()
            ]
            curves = train([experiment for _, _, experiment in runs])
            yield [
                Trial(algorithm, place, pair, curve)
                for (place, pair, _), curve in zip(runs, curves, strict=True)
            ]


def _groups_by_shape(places: Mapping[Place, Experiment]) -> list[dict[Place, Experiment]]:
    """The places in groups whose runs can share a program: as many clients, server steps of the same sizes."""
    groups: dict[tuple, dict[Place, Experiment]] = {}
    for place, experiment in places.items():
        shape = (
            experiment.federation.num_clients,
            experiment.federation.x.shape,
            experiment.schedule.step_offsets.tobytes(),
        )
        groups.setdefault(shape, {})[place] = experiment
    return list(groups.values())


def with_rates(experiment: Experiment, pair: tuple[float, float], loaded: DataCache) -> Experiment:
    """The same experiment with other learning rates."""
    rates: dict[str, Any] = dict(zip(NAMES_OF_RATES, pair, strict=True))
    return make_experiment(experiment.label, dataclasses.replace(experiment.settings, **rates), loaded)


def train(experiments: Sequence[Experiment]) -> list[list[float] | None]:
    """Trains all in one program; the validation accuracies of each, None where a loss was not finite."""
    steps = experiments[0].schedule.num_steps
    stops = np.unique(np.ceil(np.arange(1, EVALUATIONS + 1) * steps / EVALUATIONS).astype(int)).tolist()
    evaluators: dict[int, Evaluator] = {}
    for experiment in experiments:
        federation = experiment.federation
        if id(federation.validation_x) not in evaluators:
            evaluators[id(federation.validation_x)] = experiment.evaluators()["validation"]
    group = make_run_group(*prepare_together([experiment.run for experiment in experiments]))
    group.set_stops(stops)
    curves: list[list[dict[str, float]]] = [[] for _ in experiments]
    for first, last in itertools.pairwise([0, *stops]):
        group.advance(first, last)
        models = group.carry.params
        if len(experiments) == 1:
            models = jax.tree.map(lambda leaf: leaf[None], models)
        measured = {key: evaluator.of_many(models) for key, evaluator in evaluators.items()}
        for number, (curve, experiment) in enumerate(zip(curves, experiments, strict=True)):
            curve.append(measured[id(experiment.federation.validation_x)][number])
    return [
        [round(point["accuracy"], 4) for point in curve]
        if np.all(np.isfinite([point["loss"] for point in curve]))
        else None
        for curve in curves
    ]


def read(path: pathlib.Path) -> list[Trial]:
    """The trials that a file holds."""
    if not path.exists():
        return []
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [
        Trial(row["algorithm"], Place(row["world"], row["seed"]), tuple(row["rates"]), row["accuracy"])
        for row in rows
    ]


def write(path: pathlib.Path, trials: Sequence[Trial]) -> None:
    """Appends trials to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        for algorithm, (world, seed), rates, accuracy in trials:
            row = {"algorithm": algorithm, "world": world, "seed": seed, "rates": rates, "accuracy": accuracy}
            file.write(json.dumps(row) + "\n")


def regrets(trials: Sequence[Trial]) -> dict[tuple[float, float], dict[str, float]]:
    """{pair: {world: regret}} of the trials of one algorithm; the regret of a world is that of its worse seed."""
    best: dict[Place, np.ndarray] = {}
    for trial in trials:
        best[trial.place] = np.maximum(best.get(trial.place, -np.inf), trial.measures)
    regrets_by_pair: dict[tuple[float, float], dict[str, float]] = {}
    for trial in trials:
        pair_regrets, world = regrets_by_pair.setdefault(trial.rates, {}), trial.place.world
        lacking = float(np.max(best[trial.place] - trial.measures))
        pair_regrets[world] = max(pair_regrets.get(world, 0.0), lacking)
    return regrets_by_pair


def winner(regrets_by_pair: Mapping[tuple[float, float], Mapping[str, float]]) -> tuple[float, float]:
    """The pair with the smallest worst regret; of equals the one with the smallest mean."""
    return min(
        regrets_by_pair,
        key=lambda pair: (max(regrets_by_pair[pair].values()), np.mean(list(regrets_by_pair[pair].values()))),
    )


def trips_to_target(trials: Sequence[Trial], pair: tuple[float, float]) -> str:
    """What the main job takes to ``TARGET``, as text: the mean over seeds, to a twenty-fifth of the budget."""
    budget, taken = WORLDS[MAIN_JOB]["client_trips"], []
    for trial in trials:
        if trial.place.world == MAIN_JOB and trial.rates == pair:
            reached = [number for number, one in enumerate(trial.accuracy or [], 1) if one >= TARGET]
            taken.append(reached[0] * budget / EVALUATIONS if reached else np.inf)
    return f"{np.mean(taken):,.0f}" if np.isfinite(taken).all() else "never"


def edges(algorithm: str, pair: tuple[float, float]) -> list[str]:
    """Which of a winner's rates lie at the edge of what was tried."""
    columns = zip(*PAIRS[algorithm], strict=True)
    named = zip(("clients'", "server's"), pair, columns, strict=True)
    return [
        name for name, rate, column in named if len(set(column)) > 1 and rate in (min(column), max(column))
    ]


def table(trials: Sequence[Trial]) -> list[str]:
    """Lines of the table: for each algorithm the winner, its regrets, and who would win in the main job alone."""
    lines = [
        "| algorithm | clients' rate | server's rate | worst regret | in | mean regret | main job: trips to .95 | "
        "best pair of the main job | its worst regret | at an edge |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for algorithm in PAIRS:
        worlds = distinct_worlds(algorithm)
        own = [
            trial
            for trial in trials
            if trial.algorithm == algorithm
            and trial.rates in PAIRS[algorithm]
            and trial.place.world in worlds
        ]
        complete = {pair: by for pair, by in regrets(own).items() if len(by) == len(worlds)}
        if not complete:
            continue
        pair = winner(complete)
        by = complete[pair]
        world = max(by, key=by.__getitem__)
        alone = min(complete, key=lambda pair: complete[pair][MAIN_JOB])
        worst = max(complete[alone].values())
        cells = (
            algorithm,
            *(f"{rate:g}" for rate in pair),
            f"{by[world]:.3f}",
            world,
            f"{np.mean(list(by.values())):.3f}",
            trips_to_target(own, pair),
            f"{alone[0]:g}, {alone[1]:g}",
            "diverged" if np.isinf(worst) else f"{worst:.3f}",
            " and ".join(edges(algorithm, pair)) or "-",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def main(_: list[str]) -> None:
    """Runs what is missing, and prints the table."""
    path = pathlib.Path(OUTPUT.value)
    done = {(trial.algorithm, trial.place, trial.rates) for trial in read(path)}
    loaded = DataCache()
    for algorithm in [] if TABLE.value else ALGORITHMS.value:
        for trials in search(algorithm, done, loaded):
            write(path, trials)
            worlds = dict.fromkeys(trial.place.world for trial in trials)
            print(f"{algorithm}: {len(trials)} runs in {', '.join(worlds)}", flush=True)
    print("\n".join(table(read(path))))


if __name__ == "__main__":
    app.run(main)
