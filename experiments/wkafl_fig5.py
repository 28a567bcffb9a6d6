"""WKAFL (Zhou, Li, Ren et al. 2021), figure 5: WKAFL without one of its three parts.

Command: python run.py --experiment=wkafl_fig5
    --tune searches for the learning rates first; --scale=paper takes CelebA, once ``run.py --prepare=celeb_a`` has
    been run, and EMNIST ByClass by writers (femnist/fedjax, its file in --data_dir).

Minutes: desk: 1.3, the search 6 more, on two cores of a busy machine. Paper: not measured; 5,000 (CelebA) and
    10,000 (EMNIST ByClass) server steps of 15 and 20 trips, four arms, three seeds; not run here.

Published: test accuracy over iterations, without a table: on both data sets WKAFL converges fastest and highest;
WKAFL (No Staleness) is always the poorest.

Open choices: "No Grad-Sel" takes the estimate itself as the direction; "No Staleness" has equal staleness weights
and gamma = 0; "No Non-IIDness" has no momentum (alpha = 0). Numbers, P and K are the release's for CelebA and
EMNIST ByClass, the same rate for every arm; P is the number of clients in flight (the data sets' clients are a few
more: a quarter of CelebA's celebrities, all 3,400 writers). Images of CelebA are 32 x 32. Durations as in
``wkafl_table2``.

Desk size: two worlds, P = 1,000, K = 10, batch 4, softmax; seven server's rates from 0.001 to 1 are searched for
each arm and world. Digits with one label per client and 1,000 steps is table 2's world, whose rate WKAFL takes. In
the place of clients that come with the data set: synthetic(1, 1) with one labelling model for all, a mean of 30
examples, 500 steps.
"""

from collections.abc import Sequence

from experiments.machinery import (
    Claim,
    Override,
    PaperExperiment,
    Published,
    Scale,
    Search,
    accuracy_at,
    compare,
    final_accuracy,
    server_rates,
    spread,
)
from experiments.wkafl_table2 import DESK, PAPER_SEARCH, TUNED, WKAFL, WORLD, in_flight

NO_SELECTION, NO_STALENESS, NO_NON_IID = (
    "WKAFL (No Grad-Sel)",
    "WKAFL (No Staleness)",
    "WKAFL (No Non-IIDness)",
)
WITHOUT = {
    NO_SELECTION: "gradient_selection=False",
    NO_STALENESS: "staleness_part=False",
    NO_NON_IID: "non_iid_part=False",
}
ARMS = {WKAFL: {"algorithm": "wkafl"}} | {
    label: {"algorithm": "wkafl", "rule_arguments": part} for label, part in WITHOUT.items()
}
CELEBA, WRITERS = "celeb_a", "femnist/fedjax"
# The release's numbers for CelebA and EMNIST ByClass.
ON_CELEBA = {
    "model": "celeba_cnn",
    "data_fraction": 0.25,
    "concurrency": 2000,
    "buffer_size": 15,
    "server_steps": 5000,
    "batch_size": 4,
    "server_learning_rate": 1e-4,
}
WKAFL_ON_CELEBA = "clip_norm=500,stage_two_clip=5,cosine_weight=20,staleness_decay=0.05"
ON_WRITERS = {
    "model": "emnist_cnn",
    "concurrency": 3000,
    "buffer_size": 20,
    "server_steps": 10000,
    "batch_size": 16,
    "server_learning_rate": 0.005,
}
NATURAL = [
    Override({"dataset": CELEBA}, None, ON_CELEBA),
    Override({"dataset": CELEBA}, WKAFL, {"rule_arguments": WKAFL_ON_CELEBA}),
    Override({"dataset": WRITERS}, None, ON_WRITERS),
]
PAPER_SETTINGS = {"partition": "natural", "delay": WORLD["delay"], "delay_draw": WORLD["delay_draw"]}
DESK_SETTINGS = DESK | in_flight(1000)
SYNTHETIC = {
    "partition": "natural",
    "synthetic_shared_labels": True,
    "synthetic_mean_examples": 30.0,
    "server_steps": 500,
}
SYNTHETIC_WORLD = [Override({"dataset": "synthetic"}, None, SYNTHETIC)]
GRID = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0]
SEARCH = Search(space={"server_learning_rate": GRID})
DATA = {"dataset": ["digits", "synthetic"]}
# WKAFL's rates are figure 6's, too.
WKAFL_TUNED = {"digits": {WKAFL: TUNED[1000][WKAFL]}, "synthetic": server_rates({WKAFL: 0.03})}
EARLY = accuracy_at(steps=100)
COLUMNS = {"accuracy at 100 steps": EARLY, "final accuracy": final_accuracy, "spread": spread}


def higher_and_faster(rivals: Sequence[str]) -> list[Claim]:
    """WKAFL ends above each rival, and is ahead of it early in the run."""
    sentence = "WKAFL is faster than {worse}: accuracy at 100 steps"
    return [
        *compare("WKAFL ends above {worse}", WKAFL, rivals),
        *compare(sentence, WKAFL, rivals, measure=EARLY),
    ]


EXPERIMENT = PaperExperiment(
    paper="WKAFL",
    figure="figure 5",
    title="ablations: without gradient selection, the staleness part, the non-IID part",
    published=Published(
        note="Figure 5: on CelebA and EMNIST ByClass WKAFL converges fastest and highest; without the staleness "
        "part it is the poorest."
    ),
    scales={
        "paper": Scale(
            settings=PAPER_SETTINGS,
            arms=ARMS,
            conditions={"dataset": [CELEBA, WRITERS]},
            overrides=[
                *NATURAL,
                *(
                    Override({"dataset": CELEBA}, label, {"rule_arguments": f"{part},{WKAFL_ON_CELEBA}"})
                    for label, part in WITHOUT.items()
                ),
            ],
            search=PAPER_SEARCH,
            seeds=(0, 1, 2),
        ),
        "desk": Scale(
            settings=DESK_SETTINGS,
            arms=ARMS,
            conditions=DATA,
            overrides=SYNTHETIC_WORLD,
            search=SEARCH,
            tuned={
                "dataset=digits": WKAFL_TUNED["digits"]
                | server_rates({NO_SELECTION: 0.3, NO_STALENESS: 0.01, NO_NON_IID: 0.3}),
                "dataset=synthetic": WKAFL_TUNED["synthetic"]
                | server_rates({NO_SELECTION: 0.03, NO_STALENESS: 0.003, NO_NON_IID: 0.03}),
            },
            minutes=1.3,
            hardware="two CPU cores of a busy machine",
        ),
    },
    columns=COLUMNS,
    claims=[
        *higher_and_faster(list(WITHOUT)),
        *compare("No Staleness is poorer than {better}", (NO_SELECTION, NO_NON_IID), NO_STALENESS),
    ],
)
