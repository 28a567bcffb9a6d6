"""FedBuff (Nguyen et al. 2022), figure 6: time and trips to a target where a trip takes as long as its examples.

Command: python run.py --experiment=fedbuff_fig6
    --scale=paper takes Sent140, once ``run.py --prepare=sentiment140`` has been run.

Minutes: desk 2, on one core of a busy machine.
    Paper: not run here (no data); 27 runs of 600,000 trips.

Published: two figures without a table, of Sent140 with lambda = 1: time and client trips to the target for FedBuff,
FedAvgM and FedAvgM with 30 % over-selection. More clients under way shorten the time of all three; FedBuff is faster
than FedAvgM even with over-selection, and takes up to three times fewer trips.

Open choices: a trip's duration is exponential with mean lambda times the client's examples, fresh for each trip;
lambda cancels. Section C.2 takes FedBuff's time as the largest of as many durations as trips were needed, as if all
had started together; here it is the time at which the schedule gets there. Rates are not published for this law:
paper size has table 4's.

Desk size: fedbuff_table1's federation with that law, the rates that fedbuff_fig3 has found for each concurrency with
half-normal durations (over-selection has FedAvgM's): nothing is searched for here. 10, 100 or 300 of 400 clients (13,
130, 390 with over-selection), ten seeds.
"""

import functools
from typing import Any

import numpy as np

from experiments import fedbuff_fig3 as fig3
from experiments import fedbuff_table1 as table1
from experiments.fedbuff_table1 import FEDAVGM, FEDBUFF, to_target
from experiments.fedbuff_table6 import MORE, time_to_target
from experiments.machinery import Claim, Override, PaperExperiment, Published, Runs, Scale, final_accuracy

CONCURRENCIES = [10, 100, 300]
ARMS = fig3.ARMS | {MORE: table1.ARMS[FEDAVGM] | {"over_selection": 0.3}}
LAW = {"delay": "proportional_to_examples"}


def saved(runs: Runs, label: str) -> Any:
    """[seeds]: time at the lowest concurrency minus that at the highest."""
    levels = [one["concurrency"] for one in runs.conditions]
    low, high = (runs.values(label, time_to_target, {"concurrency": pick(levels)}) for pick in (min, max))
    return np.array([low[seed] - high[seed] for seed in low])


def found(where: str) -> dict[str, dict[str, float]]:
    """The rates of ``fedbuff_fig3``, of all three arms."""
    own = fig3.TUNED[where]
    return {**own, MORE: own[FEDAVGM]}


EXPERIMENT = PaperExperiment(
    paper="FedBuff",
    figure="figure 6",
    title="time and trips to a target against concurrency, durations by examples",
    published=Published(
        note="Curves: time falls with concurrency; FedBuff is the fastest, with up to 3 times fewer trips."
    ),
    scales={
        "desk": Scale(
            settings=table1.WORLD | LAW,
            arms=ARMS,
            conditions={"concurrency": CONCURRENCIES},
            overrides=[one for one in fig3.EVALUATIONS if one.condition["concurrency"] in CONCURRENCIES],
            seeds=tuple(range(10)),
            tuned={where: found(where) for where in (f"concurrency={level}" for level in CONCURRENCIES)},
            minutes=2,
            hardware="one core of a busy machine",
        ),
        "paper": Scale(
            settings=table1.PAPER_WORLD | LAW | {"dataset": "sentiment140", **table1.OF_TASK[1].settings},
            arms=ARMS | {FEDBUFF: ARMS[FEDBUFF] | table1.AS_PUBLISHED},
            conditions={"concurrency": [10, 100, 1000]},
            overrides=[
                Override({}, label, table1.published_rates("sentiment140", arm))
                for label, arm in ((FEDBUFF, FEDBUFF), (FEDAVGM, FEDAVGM), (MORE, FEDAVGM))
            ],
            seeds=(0, 1, 2),
            minutes=float("nan"),
            hardware="not measured",
        ),
    },
    columns={
        "time to the target": time_to_target,
        "trips to the target": to_target,
        "final accuracy": final_accuracy,
    },
    pictures=functools.partial(
        fig3.draw_against_concurrency,
        measures={"time to the target, in mean trips": time_to_target, "trips to the target": to_target},
    ),
    claims=[
        *(
            Claim(
                sentence=f"FedBuff needs {what} than {other}",
                better=FEDBUFF,
                worse=other,
                measure=measure,
                lower_is_better=True,
            )
            for what, measure in (("less time", time_to_target), ("fewer trips", to_target))
            for other in (FEDAVGM, MORE)
        ),
        *(
            Claim(
                sentence=f"more clients under way (10 to 300) shorten the time of {label}",
                differences=functools.partial(saved, label=label),
                scales=("desk",),
            )
            for label in ARMS
        ),
    ],
)
