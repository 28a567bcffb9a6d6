"""WKAFL (Zhou, Li, Ren et al. 2021), figure 9: curves on EMNIST MNIST with 1, 5 and 10 labels per client.

Command: python run.py --experiment=wkafl_fig9
    --tune searches for the learning rates first; --scale=paper takes EMNIST MNIST, once
    ``run.py --prepare=emnist/mnist`` has been run.

Minutes: desk: 1.4, on two cores of a busy machine (the search is table 3's). Paper: not measured; 5,000 server
    steps of ten trips, four arms, three seeds; not run here.

Published: test accuracy over iterations at P / K = 3000/10, in three panels without a table (table 3 has the ends):
WKAFL converges faster than TWAFL, GSGM and SASGD with every number of labels, above all with one.

Open choices: those of ``wkafl_table3``, whose arms, data, searches and rates these are. "Faster" is read as server
steps to 0.85 at desk size (paper size: 0.8); never reached counts as the whole budget.

Desk size: that of table 3: digits, softmax, P = 1,000, K = 10, 1,000 steps.
"""

import dataclasses

from experiments.machinery import PaperExperiment, Published, Scale
from experiments.wkafl_fig7 import COLUMNS, TARGET, faster_and_higher
from experiments.wkafl_table2 import GSGM, ON_EMNIST, PAPER_SEARCH, SASGD, TWAFL
from experiments.wkafl_table3 import DESK_SCALE, FOUR, LABELS, PAPER_SETTINGS

EXPERIMENT = PaperExperiment(
    paper="WKAFL",
    figure="figure 9",
    title="curves on EMNIST MNIST with 1, 5 and 10 labels per client, against TWAFL, GSGM and SASGD",
    published=Published(
        note="Figure 9: WKAFL converges fastest with 1, 5 and 10 labels, above all with one. Ends: table 3."
    ),
    scales={
        "paper": Scale(
            settings=PAPER_SETTINGS
            | ON_EMNIST
            | {"dataset": "emnist/mnist", "target_accuracy": TARGET["paper"]},
            arms=FOUR,
            conditions={"labels_per_client": LABELS},
            search=PAPER_SEARCH,
            seeds=(0, 1, 2),
        ),
        "desk": dataclasses.replace(
            DESK_SCALE,
            settings={**DESK_SCALE.settings, "target_accuracy": TARGET["desk"]},
            seeds=(0, 1, 2, 3, 4),
            minutes=1.4,
        ),
    },
    columns=COLUMNS,
    claims=faster_and_higher((TWAFL, GSGM, SASGD)),
)
