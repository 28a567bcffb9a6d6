"""WKAFL (Zhou, Li, Ren et al. 2022), figure 5: WKAFL without one of its three parts.

Command: python run.py experiment wkafl_fig5
    --tune searches for the learning rates first; --scale=paper takes CelebA, once ``run.py prepare celeb_a`` has
    been run, and EMNIST ByClass by writers (femnist/fedjax, its file in --data_dir).

Published: test accuracy over iterations, without a table: on both data sets WKAFL converges fastest and highest;
WKAFL (No Staleness) is always the poorest. The text has WKAFL "more stable than WKAFL(No Grad-Sel)" (section 6.2).

Open choices: "No Grad-Sel" takes the estimate itself as the direction; "No Staleness" has equal staleness weights and
gamma = 0; "No Non-IIDness" has no momentum (alpha = 0). Numbers, P and K are those of the authors' released code for
CelebA and EMNIST ByClass, the same rate for every arm; P is the number of clients in flight (the data sets' clients
are a few more: a quarter of CelebA's celebrities, all 3,400 writers). Images of CelebA are 32 x 32. Durations and
epsilon (0.5 for the mean of the losses) as in ``wkafl_table2``. Stability is section 6.1.3's: the standard deviation
of the logarithms of the last ten accuracies, which are those of the last 100 steps at desk size. Its margin is a
tenth of the other arm's.

"EMNIST ByClass contains 81,425 character images ... partitioned over around 3,500 clients according to the writers"
(section 6.1.1). EMNIST's ByClass has 814,255 images, and no writers: the ones by writers are FEMNIST, which are the
same images of NIST. 81,425 is a tenth. So each of FEMNIST's writers trains on a tenth of its images here
(client_test_fraction = 0.9), and its test set is FEMNIST's.

Desk size: clients that come with the data: 500 files of Python's standard library (at most 2,000 characters each, in
texts of 40) and the next character, by an LSTM of 32 units; other files for each seed, a tenth of them for the test;
all 500 in flight, K = 10 (P / K = 50), batch 4, 400 steps, evaluated every ten on 600 of a seed's test texts, the
same ones each time. The plain means of the K gradients stand in wkafl_fig6, in this world. Five searches for each
arm's server's rate, at first from 0.16 to 15.6; results of twenty seeds. No run enters stage two at desk size.

What changed: an earlier version did not judge the text's sentence on stability. Protocol version 1 searched on a
coarser grid; all seeds are new.
"""

from collections.abc import Sequence

from experiments.harness import (
    ACCURACY_MARGIN,
    Analysis,
    Claim,
    Margin,
    Override,
    PaperExperiment,
    Published,
    Rate,
    Scale,
    Search,
    accuracy_at,
    compare,
    final_accuracy,
    logarithmic_spread,
    spread,
)
from experiments.papers.wkafl.wkafl_table2 import PAPER_SEARCH, WKAFL, WORLD, in_stage_two

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
    label: {"algorithm": f"wkafl({part})"} for label, part in WITHOUT.items()
}
CELEBA, WRITERS = "celeb_a", "femnist/fedjax"
# The release's numbers for CelebA and EMNIST ByClass.
ON_CELEBA = {
    "model": "celeba_cnn",
    "dataset.data_fraction": 0.25,
    "concurrency": 2000,
    "buffer_size": 15,
    "server_steps": 5000,
    "batch_size": 4,
    "split.evaluation_examples": 1536,
    "server_learning_rate": 1e-4,
}
WKAFL_ON_CELEBA = {
    "algorithm.clip_norm": 500.0,
    "algorithm.stage_two_clip": 5.0,
    "algorithm.cosine_weight": 20.0,
    "algorithm.staleness_decay": 0.05,
}
ON_WRITERS = {
    "model": "emnist_cnn",
    "split.client_test_fraction": 0.9,
    "concurrency": 3000,
    "buffer_size": 20,
    "server_steps": 10000,
    "batch_size": 16,
    "split.evaluation_examples": 18_000,
    "server_learning_rate": 0.005,
}
NATURAL = [
    Override({"dataset": CELEBA}, None, ON_CELEBA),
    Override({"dataset": CELEBA}, WKAFL, WKAFL_ON_CELEBA),
    Override({"dataset": WRITERS}, None, ON_WRITERS),
]
PAPER_SETTINGS = {"partition": "natural", "delay": WORLD["delay"]}
DESK_SETTINGS = PAPER_SETTINGS | {
    "dataset": "python_source",
    "num_clients": 500,
    "concurrency": 500,
    "dataset.tokens": 40,
    "dataset.most_characters": 2000,
    "split.test_fraction": 0.1,
    "split.resample": True,
    "model": "character_lstm",
    "model.hidden_sizes": [32],
    "buffer_size": 10,
    "batch_size": 4,
    "server_steps": 400,
    "evaluate_every": 200,
}
CORRECTION = 0.11  # test examples over training examples: files are of unequal size
RATES = Rate(0.16, 15.625)
ENDS = "WKAFL ends above {worse}"
EARLY = accuracy_at(steps=100)
COLUMNS = {
    "accuracy at 100 steps": EARLY,
    "final accuracy": final_accuracy,
    "spread": spread,
    "steps in stage two": in_stage_two,
}


def higher_and_faster(rivals: Sequence[str]) -> list[Claim]:
    """WKAFL ends above each rival, and is ahead of it early in the run."""
    sentence = "WKAFL is faster than {worse}: accuracy at 100 steps"
    return [
        *compare(ENDS, WKAFL, rivals, published="a figure"),
        *compare(sentence, WKAFL, rivals, measure=EARLY, published="a figure"),
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
                *(Override({"dataset": CELEBA}, label, WKAFL_ON_CELEBA) for label in WITHOUT),
            ],
            search=PAPER_SEARCH,
            seeds=(0, 1, 2),
        ),
        "desk": Scale(
            settings=DESK_SETTINGS | {"evaluate_every": 100, "split.evaluation_examples": 600},
            arms=ARMS,
            search=Search(
                space={"server_learning_rate": RATES},
                seeds=tuple(range(400, 405)),
                settings={"split.validation_fraction": 0.1},
            ),
            seeds=tuple(range(300, 320)),
            analysis=Analysis(
                primary=ENDS.format(worse=NO_SELECTION),
                seeds=20,
                margin=ACCURACY_MARGIN,
                spread=0.0094,
                source="a pilot with seeds 1000 to 1002 and a rate that was not searched for; seeds 0 to 19: 0.005",
                difference=0.0145,
                correction=CORRECTION,
            ),
        ),
    },
    columns=COLUMNS | {"spread of logarithms": logarithmic_spread},
    claims=[
        *higher_and_faster(list(WITHOUT)),
        *compare(
            "WKAFL is more stable than {worse}",
            WKAFL,
            NO_SELECTION,
            measure=logarithmic_spread,
            lower_is_better=True,
            margin=Margin(0.1, relative=True),
            published="a sentence",
        ),
        *compare(
            "No Staleness is poorer than {better}",
            (NO_SELECTION, NO_NON_IID),
            NO_STALENESS,
            published="a figure",
        ),
    ],
)
