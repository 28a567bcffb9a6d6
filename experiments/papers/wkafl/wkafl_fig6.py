"""WKAFL (Zhou, Li, Ren et al. 2022), figure 6: curves on CelebA and EMNIST ByClass, clients as the data come.

Command: python run.py experiment wkafl_fig6
    --tune searches for the learning rates first; --scale=paper takes CelebA, once ``run.py prepare celeb_a`` has
    been run, and EMNIST ByClass by writers (femnist/fedjax, its file in --data_dir).

Published: test accuracy over iterations, without a table: WKAFL trains faster in the beginning than the other three
on both data sets, and always reaches a higher accuracy.

Open choices: those of ``wkafl_fig5``. The other three are TWAFL, SASGD and GSGM, at the release's rate for WKAFL.

Desk size: figure 5's world of Python's source files, evaluated every 20 steps on all test texts; four searches for
each arm: the server's rate is at first from 0.16 to 15.6, from 2 to 195 for TWAFL and SASGD, whose weights shorten
the step, and from 0.016 to 1.56 for the mean with momentum, which makes steps up to ten times as long; results of
twenty seeds. The plain mean of the K gradients, without and with momentum 0.9, is no part of the paper's figure. No
run enters stage two at desk size. GSGM, whose rounds have P / K = 50 server steps, stays at the share of the most
frequent character, from 100 steps to the end of the run.

What changed: an earlier version did not have the two means.
"""

from experiments.harness import ACCURACY_MARGIN, Analysis, PaperExperiment, Published, Rate, Scale, Search
from experiments.papers.wkafl.wkafl_fig5 import (
    CELEBA,
    COLUMNS,
    CORRECTION,
    DESK_SETTINGS,
    ENDS,
    NATURAL,
    PAPER_SETTINGS,
    RATES,
    WRITERS,
    higher_and_faster,
)
from experiments.papers.wkafl.wkafl_table2 import (
    GSGM,
    LEFT_OUT,
    MOMENTUM,
    PAPER_SEARCH,
    SASGD,
    TWAFL,
    WKAFL,
    above_left_out,
)
from experiments.papers.wkafl.wkafl_table3 import FOUR

RIVALS = (TWAFL, SASGD, GSGM)
LARGER, SMALLER = Rate(2.0, 195.3125), Rate(0.016, 1.5625)

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
            arms={**FOUR, **LEFT_OUT},
            search=Search(
                space={"server_learning_rate": RATES},
                spaces={
                    **dict.fromkeys((TWAFL, SASGD), {"server_learning_rate": LARGER}),
                    MOMENTUM: {"server_learning_rate": SMALLER},
                },
                searches=4,
                seeds=tuple(range(400, 404)),
                settings={"split.validation_fraction": 0.1},
            ),
            seeds=tuple(range(300, 320)),
            analysis=Analysis(
                primary=ENDS.format(worse=TWAFL),
                seeds=20,
                margin=ACCURACY_MARGIN,
                spread=0.0094,
                source="figure 5's pilot, of WKAFL with and without gradient selection",
                difference=0.0165,
                correction=CORRECTION,
            ),
        ),
    },
    columns=COLUMNS,
    claims=[*higher_and_faster(RIVALS), *above_left_out(WKAFL)],
)
