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

from experiments import fedbuff_fig3 as fig3
from experiments import fedbuff_table1 as table1
from experiments.fedbuff_table1 import FEDAVGM, FEDBUFF, FEWER_TRIPS, to_target
from experiments.fedbuff_table6 import LESS_TIME, MORE, time_to_target
from experiments.machinery import (
    Claim,
    Override,
    PaperExperiment,
    Published,
    Runs,
    Scale,
    compare,
    final_accuracy,
)

CONCURRENCIES = [10, 100, 300]
ARMS = fig3.ARMS | {MORE: table1.ARMS[FEDAVGM] | {"over_selection": 0.3}}
LAW = {"delay": "proportional_to_examples"}


def saved(runs: Runs, label: str) -> list[float]:
    """Time at the lowest concurrency minus that at the highest, for each seed."""
    levels = [condition["concurrency"] for condition in runs.conditions]
    lowest, highest = ({"concurrency": level} for level in (min(levels), max(levels)))
    return runs.changes(label, time_to_target, before=highest, after=lowest)


def tuned(condition: str) -> dict[str, dict[str, float]]:
    """The rates of ``fedbuff_fig3`` under a condition, of all three arms."""
    rates = fig3.TUNED[condition]
    return {**rates, MORE: rates[FEDAVGM]}


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
            overrides=[
                override
                for override in fig3.EVALUATIONS
                if override.condition["concurrency"] in CONCURRENCIES
            ],
            seeds=tuple(range(10)),
            tuned={
                condition: tuned(condition)
                for condition in (f"concurrency={level}" for level in CONCURRENCIES)
            },
            minutes=2,
            hardware="one core of a busy machine",
        ),
        "paper": Scale(
            settings=table1.PAPER_WORLD | LAW | {"dataset": "sentiment140", **table1.TASKS["sentiment140"]},
            arms=table1.as_published(ARMS),
            conditions=fig3.PAPER_CONCURRENCIES,
            overrides=[
                Override({}, label, table1.published_rates("sentiment140", arm))
                for label, arm in ((FEDBUFF, FEDBUFF), (FEDAVGM, FEDAVGM), (MORE, FEDAVGM))
            ],
            seeds=(0, 1, 2),
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
        *compare("FedBuff needs less time than {worse}", FEDBUFF, (FEDAVGM, MORE), **LESS_TIME),
        *compare("FedBuff needs fewer trips than {worse}", FEDBUFF, (FEDAVGM, MORE), **FEWER_TRIPS),
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
