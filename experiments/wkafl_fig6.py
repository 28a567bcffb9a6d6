"""WKAFL (Zhou, Li, Ren et al. 2021), figure 6: curves on CelebA and EMNIST ByClass, clients as the data come.

Command: python run.py --experiment=wkafl_fig6
    --tune searches for the learning rates first; --scale=paper takes CelebA, once ``run.py --prepare=celeb_a`` has
    been run, and EMNIST ByClass by writers (femnist/fedjax, its file in --data_dir).

Minutes: desk: 1.3, the search 2 more (on digits it is table 2's), on two cores of a busy machine. Paper: not
    measured; 5,000 (CelebA) and 10,000 (EMNIST ByClass) server steps of 15 and 20 trips, four arms, three seeds;
    not run here.

Published: test accuracy over iterations, without a table: WKAFL trains faster in the beginning than the other three
on both data sets, and always reaches a higher accuracy.

Open choices: those of ``wkafl_fig5``. The other three are TWAFL, SASGD and GSGM, at the release's rate for WKAFL.

Desk size: figure 5's two worlds and search, seven rates from 0.001 to 1; for TWAFL and SASGD, whose weights shorten
the step 20 times and more, seven from 0.03 to 30. On digits the rates are those of ``wkafl_table2`` at P = 1,000,
whose world it is.
"""

from experiments.machinery import PaperExperiment, Published, Scale, Search, server_rates
from experiments.wkafl_fig5 import (
    CELEBA,
    COLUMNS,
    DATA,
    DESK_SETTINGS,
    GRID,
    NATURAL,
    PAPER_SETTINGS,
    SYNTHETIC_WORLD,
    WKAFL_TUNED,
    WRITERS,
    higher_and_faster,
)
from experiments.wkafl_table2 import GSGM, PAPER_SEARCH, SASGD, TUNED, TWAFL
from experiments.wkafl_table3 import FOUR

RIVALS = (TWAFL, SASGD, GSGM)
LARGER = [0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0]

EXPERIMENT = PaperExperiment(
    paper="WKAFL",
    figure="figure 6",
    title="curves on CelebA and EMNIST ByClass, against TWAFL, GSGM and SASGD",
    published=Published(
        note="Figure 6: on CelebA and EMNIST ByClass WKAFL is faster than the other three and ends higher."
    ),
    scales={
        "paper": Scale(
            settings=PAPER_SETTINGS,
            arms=FOUR,
            conditions={"dataset": [CELEBA, WRITERS]},
            overrides=NATURAL,
            search=PAPER_SEARCH,
            seeds=(0, 1, 2),
        ),
        "desk": Scale(
            settings=DESK_SETTINGS,
            arms=FOUR,
            conditions=DATA,
            overrides=SYNTHETIC_WORLD,
            # TWAFL's and SASGD's weights shorten the step by a factor of 20 and more: as many, but larger rates.
            search=Search(
                space={"server_learning_rate": GRID},
                spaces=dict.fromkeys((TWAFL, SASGD), {"server_learning_rate": LARGER}),
            ),
            tuned={
                "dataset=digits": WKAFL_TUNED["digits"] | {label: TUNED[1000][label] for label in RIVALS},
                "dataset=synthetic": WKAFL_TUNED["synthetic"]
                | server_rates({TWAFL: 0.3, GSGM: 0.003, SASGD: 1.0}),
            },
            minutes=1.3,
            hardware="two CPU cores of a busy machine",
        ),
    },
    columns=COLUMNS,
    claims=higher_and_faster(RIVALS),
)
