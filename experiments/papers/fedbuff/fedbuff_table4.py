"""FedBuff (Nguyen et al. 2022), table 4: the best rates of a search over twelve decades.

Command: python run.py experiment fedbuff_table4 --tune
    --tune searches for the rates again; without it the ones that were found before are used. --scale=paper takes
    CelebA, Sent140 and CIFAR-10, once ``run.py prepare ...`` has been run for them.

Published: the table below. Bayesian optimization of both rates in [1e-8, 1e4], momentum in {0, .1, ..., .9, .99}
(FedBuff and FedAvgM) and mu in {.001, .01, .1, 1} (FedProx), by the number of rounds to the target on validation
examples (section B.3).

Open choices: how many trials each arm had is not said; the search here draws them at random from the same space, as
many for each arm. FedProx's server's rate on Sent140 is printed as 1.0^3 and read as 10^3. Whether FedBuff's
server's rate is one of a mean (algorithm 1) or of a sum of updates (section B.2), and who had LR-Norm, is not said
either; ``paths.png`` shows how long the path to the target is by each reading: server steps x eta_l x eta_g x mean
staleness weight / (1 - momentum), x K for sums. In one epoch on n examples the rates of LR-Norm's steps add up to
eta_l n / 32, those of plain steps to eta_l times the number of batches. Sent140's accounts hold 2.42 tweets on
average, CelebA's people 17.1 images of their 21.4 (the others are for validation and the test, fedbuff_table1),
CIFAR-10's clients 9.

Desk size: fedbuff_table1's federation, runs and target with MNIST-1D; four searches for each arm, each of 30 random
trials, the best of which is taken; results of 32 seeds.
"""

import math
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from experiments.harness import (
    TRIPS_MARGIN,
    Analysis,
    LogUniform,
    PaperExperiment,
    Published,
    Runs,
    Scale,
    Search,
    compare,
    final_accuracy,
    trips_to,
)
from experiments.papers.fedbuff import fedbuff_table1 as table1
from experiments.papers.fedbuff.fedbuff_table1 import (
    ARMS,
    FEDASYNC,
    FEDAVG,
    FEDAVGM,
    FEDBUFF,
    FEDPROX,
    FEWER_TRIPS,
    NAMES,
    RATES,
    to_target,
)

RATE = LogUniform(1e-8, 1e4)
BOTH = {"learning_rate": RATE, "server_learning_rate": RATE}
MOMENTA = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.99]
# Mean training examples of a client: 80 % of the 200,288 images of each of 9,343 people; 1,600,498 tweets of 660,120
# accounts, which are divided whole; 45,000 images for 5,000 clients.
EXAMPLES = {"celeb_a": 0.8 * 200288 / 9343, "sentiment140": 1600498 / 660120, "cifar10": 45000 / 5000}
BATCH, CONCURRENCY = 32, 1000


def search(trials: int, seeds: tuple[int, ...], searches: int, target: float | None = None) -> Search:
    """The published space, ``trials`` random points of it for each arm."""
    return Search(
        space=BOTH,
        spaces={
            FEDBUFF: {**BOTH, "server_optimizer.momentum": MOMENTA},
            FEDAVGM: {**BOTH, "server_optimizer.momentum": MOMENTA},
            FEDPROX: {**BOTH, "client_work.proximal": [0.001, 0.01, 0.1, 1.0]},
        },
        trials=trials,
        searches=searches,
        seeds=seeds,
        settings=table1.VALIDATION if target else {"split.validation_fraction": 0.1},
        score=to_target if target is None else trips_to(target, "validation_accuracy"),
        lower_is_better=True,
    )


def staleness_weight(per_step: int) -> float:
    """The mean of (1 + staleness)^-0.5, staleness being half-normal with mean concurrency / per_step - 1."""
    quantiles = (np.arange(10_000) + 0.5) / 10_000
    from scipy.special import erfinv

    durations = math.sqrt(math.pi) * erfinv(quantiles)  # half-normal, mean 1
    return float(np.mean((1 + (CONCURRENCY / per_step - 1) * durations) ** -0.5))


def path(task: str, arm: str, *, summed: bool = False, normalized: bool = False) -> float | None:
    """The length of the published path to the target, in units of a mean update with rate 1; None if not reached."""
    trips = table1.TRIPS[task][arm]
    if trips.startswith(">"):
        return None
    clients, server, *rest = RATES[task][arm]
    per_step = {FEDBUFF: 10, FEDASYNC: 1}.get(arm, CONCURRENCY)
    length = float(trips) * 1000 / per_step * clients * server
    if arm in (FEDBUFF, FEDASYNC):
        length *= staleness_weight(per_step)
    if arm in (FEDBUFF, FEDAVGM):
        length /= 1 - rest[0]
    return length * (per_step if summed else 1) * (EXAMPLES[task] / BATCH if normalized else 1)


READINGS = {
    FEDASYNC: {},
    FEDAVGM: {},
    FEDAVG: {},
    "FedBuff, mean": {},
    "FedBuff, sum": {"summed": True},
    "FedBuff, mean, LR-Norm": {"normalized": True},
    "FedBuff, sum, LR-Norm": {"summed": True, "normalized": True},
}


def draw(_: Runs, folder: pathlib.Path) -> None:
    """``paths.png``: the lengths of the published paths, by reading."""
    from jafl.plots.canvas import new_figure, save

    figure, axes = new_figure(1, 1, 7.5, 3.6)
    panel = axes[0, 0]
    for number, (task, name) in enumerate(NAMES.items()):
        lengths = [path(task, label.split(",")[0], **reading) for label, reading in READINGS.items()]
        points = [(place, length) for place, length in enumerate(lengths) if length is not None]
        panel.plot(*zip(*points, strict=True), "os^"[number], markersize=9, label=name)
    panel.set_yscale("log")
    panel.set_xticks(range(len(READINGS)), [label.replace(", ", ",\n") for label in READINGS])
    panel.set_ylabel("length of the path to the target")
    panel.legend()
    save(figure, folder / "paths.png")


def beside(condition: Mapping[str, Any], label: str) -> str:
    """The published eta_l and eta_g, of all three tasks or of the condition's."""
    numbers = {task: "{:g}, {:g}".format(*rates[label][:2]) for task, rates in RATES.items()}
    return table1.task_numbers(condition, numbers)


EXPERIMENT = PaperExperiment(
    paper="FedBuff",
    figure="table 4",
    title="a random search over the published space of rates: FedBuff, FedAsync, FedAvgM, FedAvg, FedProx",
    published=Published(
        heading=["", *ARMS],
        rows=[
            [NAMES[task], *(", ".join(f"{number:g}" for number in RATES[task][label]) for label in ARMS)]
            for task in RATES
        ],
        note="eta_l, eta_g, then momentum (FedBuff, FedAvgM) or mu (FedProx). " + table1.WITHOUT_GLOVE,
    ),
    scales={
        "desk": Scale(
            settings=table1.WORLD,
            arms=ARMS,
            search=search(30, tuple(range(400, 404)), 4, table1.TARGET),
            seeds=tuple(range(300, 332)),
            analysis=Analysis(
                primary="with the rates that were found, FedBuff needs fewer trips than FedAvgM",
                seeds=32,
                margin=TRIPS_MARGIN,
                spread=0.24,
                source="twice that of fedbuff_table1, .12: the rates are far coarser",
                difference=0.19,
                correction=0.0,
            ),
        ),
        "paper": table1.paper_scale(
            table1.as_published(ARMS),
            {},
            search=search(30, (100, 101, 102), 1),
            tuned={
                f"dataset={task}": {label: table1.published_rates(task, label) for label in ARMS}
                for task in table1.TASKS
            },
        ),
    },
    columns={
        "trips to the target": to_target,
        "trips to .4": trips_to(0.4),
        "final accuracy": final_accuracy,
    },
    beside=beside,
    pictures=draw,
    claims=[
        claim
        for rival in ARMS
        if rival != FEDBUFF
        for claim in compare(
            "with the rates that were found, FedBuff needs fewer trips than {worse}",
            FEDBUFF,
            rival,
            **FEWER_TRIPS,
            published=table1.published_trips(FEDBUFF, rival) + (table1.LEGEND if rival == FEDAVGM else ""),
        )
    ],
)
