"""FedBuff (Nguyen et al. 2022), figure 1: FedAvgM's rounds to a target accuracy against concurrency.

Command: python run.py experiment fedbuff_fig1 --tune
    --tune searches for the rates again; without it the ones that were found before are used. --scale=paper takes
    CelebA, Sent140 and CIFAR-10, once ``run.py prepare ...`` has been run for them.

Published: a figure without a table: beyond 100 clients per round the gain is small; from 100 to 1,000 the rounds
fall by less than 2 (caption of figure 1), so that trips grow more than 5 times.

Open choices: the task of the figure and its rates are not named; paper size takes all three tasks with table 4's
rates. On desk size each concurrency has a search of its own.

Desk size: fedbuff_fig3's federation and runs of FedAvgM, at the concurrencies of the caption: 10, 100 and 1,000. Five
searches for each concurrency: the server's rate is at first from .16 to 6.25, the clients' from .16 to 2.5, momentum
0 or .9; results of 30 seeds. Differences are logarithms: of 2 or 10 minus that of the factor by which the rounds
fall.
"""

import functools
import math
from collections.abc import Mapping
from typing import Any

from experiments.harness import (
    LOG_TRIPS_MARGIN,
    Analysis,
    Claim,
    PaperExperiment,
    Published,
    Scale,
    final_accuracy,
    log_contrast,
)
from experiments.papers.fedbuff import fedbuff_fig3 as fig3
from experiments.papers.fedbuff import fedbuff_table1 as table1
from experiments.papers.fedbuff.fedbuff_table1 import FEDAVGM, at_target, to_target

ARMS = {FEDAVGM: table1.ARMS[FEDAVGM]}
rounds = at_target("server_step")
BY_TWO = "ten times the concurrency (100 to 1,000) cuts rounds by less than two"


def falls_less_than(factor: float, condition: Mapping[str, Any]) -> Any:
    """``Claim.differences``: the logarithm of a factor over that by which rounds fall from 100 to 1,000 under way."""
    few, many = (FEDAVGM, {**condition, **fig3.FEW}), (FEDAVGM, {**condition, **fig3.MANY})
    return log_contrast(rounds, plus=[many], minus=[few], constant=math.log(factor))


FEWEST, FEW, MANY = ((FEDAVGM, {"concurrency": level}) for level in fig3.CONCURRENCIES)


EXPERIMENT = PaperExperiment(
    paper="FedBuff",
    figure="figure 1",
    title="FedAvgM's rounds to a target accuracy against concurrency",
    published=Published(
        note="From 100 to 1,000 clients per round, rounds fall by less than a factor of 2. "
        + table1.WITHOUT_GLOVE
    ),
    scales={
        "desk": Scale(
            settings=table1.WORLD,
            arms=ARMS,
            conditions={"concurrency": fig3.CONCURRENCIES},
            overrides=fig3.EVALUATIONS,
            search=table1.search_for_trips(table1.WITH_MOMENTUM),
            seeds=tuple(range(300, 330)),
            analysis=Analysis(
                primary=BY_TWO,
                seeds=30,
                margin=LOG_TRIPS_MARGIN,
                spread=0.15,
                source="four pilot seeds from 1010 on: log trips spread by .13 at 100 and by .03 at 1,000",
                difference=0.105,
                correction=0.0,
            ),
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
            sentence=BY_TWO,
            differences=falls_less_than(2.0, {}),
            published="less than 2",
            scales=("desk",),
        ),
        Claim(
            sentence="ten times the concurrency (100 to 1,000) cuts rounds by less than ten",
            differences=falls_less_than(10.0, {}),
            published="less than 2",
            scales=("desk",),
        ),
        Claim(
            sentence="rounds fall by a larger factor from 10 to 100 under way than from 100 to 1,000",
            differences=log_contrast(rounds, plus=[FEWEST, MANY], minus=[FEW, FEW]),
            published="diminishing returns beyond 100",
            scales=("desk",),
        ),
        *(
            Claim(
                sentence=f"{BY_TWO}, {name}",
                differences=falls_less_than(2.0, {"dataset": task}),
                margin=LOG_TRIPS_MARGIN,
                published="less than 2",
                scales=("paper",),
            )
            for task, name in table1.NAMES.items()
        ),
    ],
    words=table1.UNDER_WAY,
)
