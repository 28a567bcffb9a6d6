"""FedBuff (Nguyen et al. 2022), figure 1: FedAvgM's rounds to a target accuracy against concurrency.

Command: python run.py --experiment=fedbuff_fig1
    --scale=paper takes CelebA, Sent140 and CIFAR-10, once ``run.py --prepare=...`` has been run for them.

Minutes: desk 1, on one core of a busy machine.
    Paper: not run here (no data); 27 runs of 600,000 trips.

Published: a figure without a table: beyond 100 clients per round the gain is small; from 100 to 1,000 the rounds fall
by less than 2, so that trips grow more than 5 times.

Open choices: the task of the figure and its rates are not named; paper size takes all three tasks with table 4's
rates. On desk size the rates are those that fedbuff_fig3 has found for each concurrency: nothing is searched for
here.

Desk size: fedbuff_fig3's federation and runs of FedAvgM, ten seeds; an evaluation each round, or each 30 trips.
"""

import functools
from typing import Any

from experiments import fedbuff_fig3 as fig3
from experiments import fedbuff_table1 as table1
from experiments.fedbuff_table1 import FEDAVGM, to_target
from experiments.machinery import Claim, PaperExperiment, Published, Runs, Scale, final_accuracy
from jafl.runs.reader import PastRun

ARMS = {FEDAVGM: table1.ARMS[FEDAVGM]}


def rounds(run: PastRun) -> float:
    """Rounds to the run's target: each starts as many trips as are under way."""
    return to_target(run) / run.config["concurrency"]


def falls_less_than(runs: Runs, factor: float) -> Any:
    """[seeds]: the factor minus that by which rounds fall from a tenth of the highest concurrency to the highest."""
    tenth, highest = fig3.at_a_tenth_and_highest(runs, FEDAVGM, rounds)
    return factor - tenth / highest


EXPERIMENT = PaperExperiment(
    paper="FedBuff",
    figure="figure 1",
    title="FedAvgM's rounds to a target accuracy against concurrency",
    published=Published(note="From 100 to 1,000 clients per round, rounds fall by less than a factor of 2."),
    scales={
        "desk": Scale(
            settings=table1.WORLD,
            arms=ARMS,
            conditions={"concurrency": fig3.CONCURRENCIES},
            overrides=fig3.EVALUATIONS,
            seeds=tuple(range(10)),
            tuned={condition: {FEDAVGM: rates[FEDAVGM]} for condition, rates in fig3.TUNED.items()},
            minutes=1,
            hardware="one core of a busy machine",
        ),
        "paper": table1.paper_scale(ARMS, {FEDAVGM: FEDAVGM}, conditions=fig3.PAPER_CONCURRENCIES),
    },
    columns={
        "rounds to the target": rounds,
        "trips to the target": to_target,
        "final accuracy": final_accuracy,
    },
    pictures=functools.partial(
        fig3.draw_against_concurrency,
        measures={"rounds to the target": rounds, "trips to the target": to_target},
    ),
    claims=[
        Claim(
            sentence=f"ten times the concurrency (30 to 300) cuts rounds by less than {factor}",
            differences=functools.partial(falls_less_than, factor=number),
            scales=("desk",),
        )
        for factor, number in (("ten", 10), ("two", 2))
    ],
)
