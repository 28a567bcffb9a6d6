"""WKAFL (Zhou, Li, Ren et al. 2021), figure 7: curves on EMNIST MNIST at three levels of staleness P / K.

Command: python run.py --experiment=wkafl_fig7
    --tune searches for the learning rates first; --scale=paper takes EMNIST MNIST, once
    ``run.py --prepare=emnist/mnist`` has been run.

Minutes: desk: 2.7, on two cores of a busy machine (the search is table 2's). Paper: not measured; 5,000 server
    steps of 10 or 20 trips, three arms, three seeds; not run here.

Published: test accuracy over iterations, in three panels without a table (table 2 has the ends): WKAFL rises
fastest at 1000/10, 3000/20 and 3000/10, the more so the staler, and ends highest; TWAFL's and SASGD's curves change
more with the level than WKAFL's.

Open choices: those of ``wkafl_table2``, whose arms, data, searches and rates these are. "Fastest" is read as server
steps to a target accuracy that all arms reach at desk size: 0.85 (paper size: 0.8); never reached counts as the
whole budget.

Desk size: that of table 2: digits, softmax, K = 10, P = 100 and 1,000, 1,000 steps; evaluated every five steps.
"""

from collections.abc import Sequence

from experiments.machinery import (
    Claim,
    PaperExperiment,
    Published,
    Scale,
    Search,
    compare,
    final_accuracy,
    spread,
    steps_to,
)
from experiments.wkafl_table2 import (
    ARMS,
    DESK,
    ON_EMNIST,
    PAPER_SEARCH,
    RATES,
    SASGD,
    TUNED,
    TWAFL,
    WKAFL,
    WORLD,
    all_in_flight,
)

THREE = {label: ARMS[label] for label in (WKAFL, TWAFL, SASGD)}
TARGET = {"desk": 0.85, "paper": 0.8}
COLUMNS = {
    "steps to .7": steps_to(0.7),
    "steps to .85": steps_to(0.85),
    "final accuracy": final_accuracy,
    "spread": spread,
}


def faster_and_higher(rivals: Sequence[str]) -> list[Claim]:
    """WKAFL reaches the target in fewer steps than each rival, and ends above it."""
    faster = [
        claim
        for scale, target in TARGET.items()
        for claim in compare(
            f"WKAFL is faster than {{worse}}: steps to {target}",
            WKAFL,
            rivals,
            measure=steps_to(target),
            lower_is_better=True,
            scales=(scale,),
        )
    ]
    return [*faster, *compare("WKAFL ends above {worse}", WKAFL, rivals)]


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
            settings=DESK | {"target_accuracy": TARGET["desk"], "evaluate_every": 50},
            arms=THREE,
            conditions={"num_clients": [100, 1000]},
            overrides=all_in_flight([100, 1000]),
            search=Search(space={"server_learning_rate": RATES}),
            tuned={
                f"num_clients={number}": {label: TUNED[number][label] for label in THREE} for number in TUNED
            },
            minutes=2.7,
            hardware="two CPU cores of a busy machine",
        ),
    },
    columns=COLUMNS,
    claims=faster_and_higher((TWAFL, SASGD)),
)
