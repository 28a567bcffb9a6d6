"""WKAFL (Zhou, Li, Ren et al. 2021), figure 8: curves on CIFAR-10 at three levels of staleness P / K.

Command: python run.py --experiment=wkafl_fig8
    --tune searches for the learning rates first; --scale=paper takes CIFAR-10, once
    ``run.py --prepare=cifar10`` has been run.

Minutes: desk: 1.8 of processor time (5 on two cores that many other jobs shared); the search has 1.6 times as many
    runs. Paper: not measured; 10,000 server steps of 10 or 20 trips, three arms, three seeds; not run here.

Published: test accuracy over iterations, in three panels without a table (table 2 has the ends): WKAFL rises
fastest at 1000/20, 3000/20 and 3000/10 and ends highest; from the first to the last it loses .0463, TWAFL .0778,
SASGD .1279.

Open choices: those of ``wkafl_table2``. "Fastest" is read as accuracy at a fifth of the run, because no target
accuracy was known beforehand that every rule reaches.

Desk size: what sets CIFAR-10 and LeNet apart from EMNIST is a harder problem, which is not convex, and the release's
other numbers: here digits with an MLP 64-32-10 in the place of table 2's softmax, batch 8, and WKAFL's clipping,
cosine weight (50) and staleness decay (.01) for CIFAR-10; a fourth arm has those for MNIST, as in table 2. K = 10,
P = 100, 300 and 1,000 (P / K = 10, 30, 100), one label per client, 1,000 steps, ten seeds. Eight server's rates from
0.003 to 10 are searched for each arm and P. Every rule has the same trips per step: equal steps are equal trips.
"""

import math

from experiments.machinery import (
    PaperExperiment,
    Published,
    Scale,
    Search,
    accuracy_at,
    compare,
    final_accuracy,
    server_rates,
    spread,
    steps_to,
)
from experiments.wkafl_table2 import (
    ARMS,
    DESK,
    ON_CIFAR,
    PAPER_SEARCH,
    SASGD,
    TWAFL,
    WKAFL,
    WKAFL_ON_CIFAR,
    WORLD,
    all_in_flight,
    loses_less_on_desk,
)
from jafl.config.arms import Arms
from jafl.runs.reader import PastRun

WKAFL_AS_ON_MNIST = "WKAFL, MNIST's numbers"
THREE: Arms = {WKAFL: {**ARMS[WKAFL], **WKAFL_ON_CIFAR}, TWAFL: ARMS[TWAFL], SASGD: ARMS[SASGD]}
HARDER = DESK | {"model": "mlp", "hidden_sizes": "32", "batch_size": 8, "target_accuracy": 0.7}
SEARCH = Search(
    space={"server_learning_rate": [0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0]}, seeds=(100, 101)
)


def early_accuracy(run: PastRun) -> float:
    """Test accuracy at a fifth of the run's server steps; 0 if it diverged."""
    steps = max((evaluation["server_step"] for evaluation in run.evaluations), default=math.nan)
    return accuracy_at(steps=steps / 5)(run)


COLUMNS = {
    "accuracy at a fifth": early_accuracy,
    "steps to .7": steps_to(0.7),
    "final accuracy": final_accuracy,
    "spread": spread,
}
FASTER = "WKAFL is faster than {worse}: accuracy at a fifth of the steps"

EXPERIMENT = PaperExperiment(
    paper="WKAFL",
    figure="figure 8",
    title="curves on CIFAR-10 at three levels of staleness, against TWAFL and SASGD",
    published=Published(note="Figure 8: WKAFL rises fastest and ends highest at every level of staleness."),
    scales={
        "paper": Scale(
            settings=WORLD | ON_CIFAR | {"dataset": "cifar10"},
            arms=THREE,
            conditions={"num_clients": [1000, 3000], "buffer_size": [10, 20]},
            overrides=all_in_flight([1000, 3000]),
            search=PAPER_SEARCH,
            seeds=(0, 1, 2),
        ),
        "desk": Scale(
            settings=HARDER,
            arms={**THREE, WKAFL_AS_ON_MNIST: ARMS[WKAFL]},
            conditions={"num_clients": [100, 300, 1000]},
            overrides=all_in_flight([100, 300, 1000]),
            search=SEARCH,
            seeds=tuple(range(10)),
            tuned={
                f"num_clients={clients}": server_rates(
                    {WKAFL: rate, TWAFL: 1.0, SASGD: 1.0, WKAFL_AS_ON_MNIST: 0.1}
                )
                for clients, rate in ((100, 0.1), (300, 0.1), (1000, 0.03))
            },
            minutes=1.8,
            hardware="processor time of one CPU core",
        ),
    },
    columns=COLUMNS,
    claims=[
        *compare(FASTER, WKAFL, (TWAFL, SASGD), measure=early_accuracy),
        *compare("WKAFL ends above {worse}", WKAFL, (TWAFL, SASGD)),
        *loses_less_on_desk((TWAFL, SASGD)),
    ],
)
