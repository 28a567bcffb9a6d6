"""FedBuff (Nguyen et al. 2022), figure 6: time and trips to a target where a trip takes as long as its examples.

Command: python run.py experiment fedbuff_fig6 --tune
    --tune searches for the rates again; without it the ones that were found before are used. --scale=paper takes
    Sent140, once ``run.py prepare sentiment140`` has been run.

Published: two figures without a table, of Sent140 with lambda = 1 (section C.2): time and client trips to the
target for FedBuff, FedAvgM and FedAvgM with 30 % over-selection. More clients under way shorten the time of all
three; FedBuff is faster than FedAvgM even with over-selection, and takes up to three times fewer trips.

Open choices: a trip's duration is exponential with mean lambda times the client's examples, fresh for each trip;
lambda cancels. Section C.2 takes FedBuff's time as the largest of as many durations as trips were needed, as if all
had started together; here it is the time at which the schedule gets there. Rates are not published for this law:
paper size has table 4's.

Desk size: fedbuff_table1's MNIST-1D and its target, but each class divided by Dirichlet 0.1, so that clients hold
unequal numbers of examples: ten on average, with a standard deviation of about ten. 10, 100 and 1,000 of 5,000
clients under way (13, 130, 1,300 with over-selection). Times of two arms are compared up to the moment until which
both were watched; FedBuff's trips last for about 60 mean durations with 1,000 under way, in which FedAvgM, whose
rounds wait for the largest clients, need not have arrived. Rates are searched for under this law, in five searches
for each arm and concurrency: the server's rate is at first from .16 to 6.25, the clients' from .16 to 2.5, momentum 0
or .9; results of 20 seeds.
"""

import functools
from typing import Any

from experiments.harness import (
    LOG_TRIPS_MARGIN,
    TRIPS_MARGIN,
    Analysis,
    Claim,
    Override,
    PaperExperiment,
    Published,
    Scale,
    compare,
    final_accuracy,
    log_contrast,
)
from experiments.papers.fedbuff import fedbuff_fig3 as fig3
from experiments.papers.fedbuff import fedbuff_table1 as table1
from experiments.papers.fedbuff.fedbuff_table1 import FEDAVGM, FEDBUFF, FEWER_TRIPS, to_target
from experiments.papers.fedbuff.fedbuff_table6 import LESS_TIME, MORE, time_to_target

ARMS = fig3.ARMS | {MORE: table1.ARMS[FEDAVGM] | {"protocol.over_selection": 0.3}}
LAW = {"delay": "proportional_to_examples(mean=1.0)"}


WORLD = table1.WORLD | LAW | {"partition.equal_sizes": False}


def saved(label: str, few: int, many: int) -> Any:
    """``Claim.differences``: the logarithm of the time with few clients under way over that with many."""
    return log_contrast(time_to_target, [(label, {"concurrency": few})], [(label, {"concurrency": many})])


EXPERIMENT = PaperExperiment(
    paper="FedBuff",
    figure="figure 6",
    title="time and trips to a target against concurrency, durations by examples",
    published=Published(
        note="Curves: time falls with concurrency; FedBuff is the fastest, with up to 3 times fewer trips. "
        + table1.WITHOUT_GLOVE
    ),
    scales={
        "desk": Scale(
            settings=WORLD,
            arms=ARMS,
            conditions={"concurrency": fig3.CONCURRENCIES},
            overrides=fig3.EVALUATIONS,
            search=table1.search_for_trips(table1.WITH_MOMENTUM),
            seeds=table1.SEEDS,
            analysis=Analysis(
                primary=f"FedBuff needs less time than {MORE}",
                under=fig3.MANY,
                seeds=20,
                margin=TRIPS_MARGIN,
                spread=0.15,
                source="a little more than that of trips in fedbuff_table1, .12: clients differ more",
                difference=0.14,
                correction=0.0,
            ),
        ),
        "paper": Scale(
            settings=table1.PAPER_WORLD | LAW | {"dataset": "sentiment140", **table1.TASKS["sentiment140"]},
            arms=table1.arriving(table1.as_published(ARMS)),
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
        *compare(
            "FedBuff needs less time than {worse}",
            FEDBUFF,
            (FEDAVGM, MORE),
            **LESS_TIME,
            published="a figure",
        ),
        *compare(
            "FedBuff needs fewer trips than {worse}",
            FEDBUFF,
            (FEDAVGM, MORE),
            **FEWER_TRIPS,
            published="up to 3 times",
        ),
        *(
            Claim(
                sentence=f"more clients under way ({few:,} to {many:,}) shorten the time of {label}",
                differences=saved(label, few, many),
                margin=LOG_TRIPS_MARGIN,
                published="a figure",
            )
            for label in ARMS
            for few, many in ((10, 100), (100, 1000))
        ),
    ],
    words=table1.UNDER_WAY,
)
