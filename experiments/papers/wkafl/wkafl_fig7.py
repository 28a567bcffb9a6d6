"""WKAFL (Zhou, Li, Ren et al. 2022), figure 7: curves on EMNIST MNIST at three levels of staleness P / K.

Command: python run.py experiment wkafl_fig7
    --tune searches for the learning rates first; --scale=paper takes EMNIST MNIST, once
    ``run.py prepare emnist/mnist`` has been run.

Published: test accuracy over iterations, in three panels without a table (table 2 has the ends): WKAFL rises fastest
at 1000/10, 3000/20 and 3000/10, the more so the staler, and ends highest; TWAFL's and SASGD's curves change more with
the level than WKAFL's. From 1000/10 to 3000/10 WKAFL loses .0006, TWAFL .0048, SASGD .0766 (table 2).

Open choices: those of ``wkafl_table2``. "Fastest" is read as server steps to a target accuracy: 0.25 at desk size
(paper size: 0.8). Runs that never reach it are compared up to the end of the run (restricted means).

What changed: an earlier version did not judge whether WKAFL loses less than the others as the level rises. Protocol
version 1 searched on a coarser grid; all seeds are new.

Desk size: MNIST-1D, drawn again for each seed, an MLP 40-64-10, WKAFL's numbers for MNIST and batch 4; K = 10, P =
1,000 and 3,000 (P / K = 100 and 300), one label per client, 1,000 steps, evaluated every five. On the 5,000 images of
table 2 the number of steps to a target depends on the split so much that no number of seeds would decide. The plain
mean of the K gradients, without and with momentum 0.9, is no part of the paper's figure. Ten searches for each arm
and P: the server's rate is at first from 0.01 to 0.98, from 0.2 to 19.5 for TWAFL and SASGD, whose weights shorten
the step, and from 0.001 to 0.098 for the mean with momentum, which makes steps up to ten times as long. Results of
thirty seeds.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from experiments.harness import (
    ACCURACY_MARGIN,
    TRIPS_MARGIN,
    Analysis,
    Claim,
    PaperExperiment,
    Published,
    Scale,
    compare,
    final_accuracy,
    spread,
    steps_to,
)
from experiments.papers.wkafl.wkafl_table2 import (
    ARMS,
    LEFT_OUT,
    ON_EMNIST,
    PAPER_SEARCH,
    SASGD,
    TWAFL,
    WKAFL,
    WORDS,
    WORLD,
    above_left_out,
    accuracies,
    all_in_flight,
    loses_less_on_desk,
)
from experiments.papers.wkafl.wkafl_table3 import HARDER, SEARCH

THREE = {label: ARMS[label] for label in (WKAFL, TWAFL, SASGD)}
TARGET = {"desk": 0.25, "paper": 0.8}
FASTER = "WKAFL is faster than {{worse}}: steps to {target}"
COLUMNS = {
    "steps to .25": steps_to(0.25),
    "steps to .8": steps_to(0.8),
    "final accuracy": final_accuracy,
    "spread": spread,
}


def faster_and_higher(
    rivals: Sequence[str], ends: Callable[[str], str], targets: Mapping[str, float] = TARGET
) -> list[Claim]:
    """WKAFL reaches the target in fewer steps than each rival, and ends above it.

    ends: the paper's numbers of WKAFL and a rival at the end.
    """
    faster = [
        claim
        for scale, target in targets.items()
        for claim in compare(
            FASTER.format(target=target),
            WKAFL,
            rivals,
            measure=steps_to(target),
            lower_is_better=True,
            margin=TRIPS_MARGIN,
            scales=(scale,),
            published="a figure",
        )
    ]
    higher = [
        claim
        for rival in rivals
        for claim in compare(
            "WKAFL ends above {worse}", WKAFL, rival, margin=ACCURACY_MARGIN, published=ends(rival)
        )
    ]
    return [*faster, *higher]


def _ends(rival: str) -> str:
    return accuracies(WKAFL, rival, "emnist/mnist", (100, 300))


EXPERIMENT = PaperExperiment(
    paper="WKAFL",
    figure="figure 7",
    title="curves on EMNIST MNIST at three levels of staleness, against TWAFL and SASGD",
    published=Published(note="Figure 7: WKAFL rises fastest and ends highest at every level of staleness."),
    scales={
        "paper": Scale(
            settings=WORLD | ON_EMNIST | {"dataset": "emnist/mnist", "target_accuracy": TARGET["paper"]},
            arms=THREE,
            conditions={"num_clients": [1000, 3000], "buffer_size": [10, 20]},
            overrides=all_in_flight([1000, 3000]),
            search=PAPER_SEARCH,
            seeds=(0, 1, 2),
        ),
        "desk": Scale(
            settings=HARDER | {"batch_size": 4, "target_accuracy": TARGET["desk"], "evaluate_every": 50},
            arms={**THREE, **LEFT_OUT},
            conditions={"num_clients": [1000, 3000]},
            overrides=all_in_flight([1000, 3000]),
            search=dataclasses.replace(SEARCH, seeds=tuple(range(440, 450))),
            seeds=tuple(range(360, 390)),
            analysis=Analysis(
                primary=FASTER.format(target=TARGET["desk"]).format(worse=TWAFL),
                under={"num_clients": 3000},
                seeds=30,
                margin=TRIPS_MARGIN,
                spread=0.35,
                source="a pilot with seeds 1000 to 1002, batch 8, and rates that were not searched for",
                difference=0.21,
                correction=0.0,
            ),
        ),
    },
    columns=COLUMNS,
    claims=[
        *faster_and_higher((TWAFL, SASGD), _ends),
        *loses_less_on_desk((TWAFL, SASGD), margin=ACCURACY_MARGIN),
        *above_left_out(),
    ],
    words=WORDS,
)
