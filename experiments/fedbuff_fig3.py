"""FedBuff (Nguyen et al. 2022), figure 3: client trips to a target accuracy against concurrency.

Command: python run.py --experiment=fedbuff_fig3
    --tune searches for the rates first; --scale=paper takes CelebA, Sent140 and CIFAR-10, once ``run.py
    --prepare=...`` has been run for them.

Minutes: desk 1.5, with --tune 4.5, on one core of a busy machine.
    Paper: not run here (no data); 54 runs of 600,000 trips.

Published: a figure without a table. At low concurrency FedBuff (K = 10, momentum) and FedAvgM need as many trips;
with more clients under way FedAvgM's trips grow faster. At concurrency 10 both make a server step every ten trips.

Open choices: which concurrencies, and whether rates were searched for at each of them; section 2 says that the best
server's rate grows with concurrency, so desk size searches for each. Paper size takes table 4's rates, found at
1,000, for all.

Desk size: fedbuff_table1's federation; 10 to 300 of 400 clients under way; evaluated as often as FedAvgM has a round,
each 30 trips at least, in both arms; five server's rates and momentum 0 or 0.9, two seeds; results of ten others.
"""

import functools
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from experiments import fedbuff_table1 as table1
from experiments.fedbuff_table1 import FEDAVGM, FEDBUFF, FEWER_TRIPS, to_target
from experiments.machinery import (
    Claim,
    Measure,
    Override,
    PaperExperiment,
    Published,
    Runs,
    Scale,
    compare,
    final_accuracy,
    steps_to,
)

CONCURRENCIES = [10, 30, 100, 300]
PAPER_CONCURRENCIES = {"concurrency": [10, 100, 1000]}
ARMS = {label: table1.ARMS[label] for label in (FEDBUFF, FEDAVGM)}
# Equal chances to reach the target in both arms, and short runs where few trips are enough.
EVALUATIONS = [
    Override({"concurrency": 10}, None, {"evaluate_every": 30, "client_trips": 3000}),
    Override({"concurrency": 30}, None, {"evaluate_every": 30, "client_trips": 3000}),
    Override({"concurrency": 100}, None, {"evaluate_every": 100}),
]
TUNED: dict[str, dict[str, dict[str, float]]] = {
    "concurrency=10": {
        FEDBUFF: {"server_learning_rate": 0.1, "server_momentum": 0.9},
        FEDAVGM: {"server_learning_rate": 0.3, "server_momentum": 0.9},
    },
    "concurrency=30": {
        FEDBUFF: {"server_learning_rate": 1.0, "server_momentum": 0.0},
        FEDAVGM: {"server_learning_rate": 1.0, "server_momentum": 0.9},
    },
    "concurrency=100": {
        FEDBUFF: {"server_learning_rate": 1.0, "server_momentum": 0.0},
        FEDAVGM: {"server_learning_rate": 1.0, "server_momentum": 0.9},
    },
    "concurrency=300": {
        FEDBUFF: {"server_learning_rate": 1.0, "server_momentum": 0.0},
        FEDAVGM: {"server_learning_rate": 3.0, "server_momentum": 0.9},
    },
}


def at_a_tenth_and_highest(runs: Runs, label: str, measure: Measure) -> list[Any]:
    """Two arrays [seeds]: an arm's measure at a tenth of the highest concurrency, and at the highest."""
    levels = [condition["concurrency"] for condition in runs.conditions]
    highest = max(levels)
    tenth = min(levels, key=lambda level: abs(level - highest / 10))
    return [
        np.array(list(runs.values(label, measure, {"concurrency": level}).values()))
        for level in (tenth, highest)
    ]


def growth(runs: Runs, label: str) -> Any:
    """[seeds]: how many times the trips at the highest concurrency are those at a tenth of it."""
    tenth, highest = at_a_tenth_and_highest(runs, label, to_target)
    return highest / tenth


def draw_against_concurrency(runs: Runs, folder: pathlib.Path, measures: Mapping[str, Measure]) -> None:
    """``concurrency.png``: each measure against concurrency, mean and standard error over seeds, solid per arm.

    Of several tasks, the first one is drawn.
    """
    from jafl.plots.canvas import legend_above, new_figure, save

    figure, axes = new_figure(1, len(measures), 4.2 * len(measures), 3.4)
    task = runs.conditions[0].get("dataset")
    conditions = [condition for condition in runs.conditions if condition.get("dataset") == task]
    levels = [condition["concurrency"] for condition in conditions]
    for panel, (name, measure) in zip(axes[0], measures.items(), strict=True):
        for label in runs.labels:
            values = np.array(
                [list(runs.values(label, measure, condition).values()) for condition in conditions]
            )
            error = np.std(values, axis=1, ddof=1) / values.shape[1] ** 0.5 if values.shape[1] > 1 else None
            panel.errorbar(levels, values.mean(axis=1), error, marker="o", capsize=3, label=label)
        panel.set_xscale("log")
        panel.set_yscale("log")
        panel.set_xticks(levels, [f"{level:,}" for level in levels])
        panel.minorticks_off()
        panel.set_xlabel("clients under way")
        panel.set_ylabel(name)
        low, high = panel.get_ylim()
        ticks = [
            place * 10**power
            for power in range(-1, 6)
            for place in (1, 2, 5)
            if low <= place * 10**power <= high
        ]
        panel.set_yticks(ticks, [f"{tick:,g}" for tick in ticks])
    legend_above(figure, axes[0, 0].get_legend_handles_labels()[0])
    save(figure, folder / "concurrency.png")


EXPERIMENT = PaperExperiment(
    paper="FedBuff",
    figure="figure 3",
    title="client trips to a target accuracy against concurrency: FedBuff, FedAvgM",
    published=Published(
        note="Curves: equal at low concurrency; FedAvgM's trips grow with concurrency much faster than FedBuff's."
    ),
    scales={
        "desk": Scale(
            settings=table1.WORLD,
            arms=ARMS,
            conditions={"concurrency": CONCURRENCIES},
            overrides=EVALUATIONS,
            seeds=tuple(range(10)),
            search=table1.search_for_trips(
                {"server_learning_rate": [0.1, 0.3, 1.0, 3.0, 10.0], "server_momentum": [0.0, 0.9]},
                seeds=(100, 101),
            ),
            tuned=TUNED,
            minutes=1.5,
            hardware="one core of a busy machine",
        ),
        "paper": table1.paper_scale(
            table1.as_published(ARMS), {arm: arm for arm in ARMS}, conditions=PAPER_CONCURRENCIES
        ),
    },
    columns={
        "trips to the target": to_target,
        "server steps": steps_to(table1.TARGET),
        "final accuracy": final_accuracy,
    },
    pictures=functools.partial(draw_against_concurrency, measures={"trips to the target": to_target}),
    claims=[
        *compare(
            "FedBuff and FedAvgM need as many trips at concurrency 10",
            FEDBUFF,
            FEDAVGM,
            **FEWER_TRIPS,
            under={"concurrency": 10},
            expected="a tie",
        ),
        *(
            claim
            for concurrency, scales in (
                (30, ("desk",)),
                (100, ("desk", "paper")),
                (300, ("desk",)),
                (1000, ("paper",)),
            )
            for claim in compare(
                f"FedBuff needs fewer trips at concurrency {concurrency}",
                FEDBUFF,
                FEDAVGM,
                **FEWER_TRIPS,
                under={"concurrency": concurrency},
                scales=scales,
            )
        ),
        Claim(
            sentence="from 30 to 300 under way, FedAvgM's trips grow by a larger factor than FedBuff's",
            differences=lambda runs: growth(runs, FEDAVGM) - growth(runs, FEDBUFF),
            scales=("desk",),
        ),
    ],
)
