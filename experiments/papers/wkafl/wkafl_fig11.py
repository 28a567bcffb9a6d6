"""WKAFL (Zhou, Li, Ren et al. 2022), figure 11: WKAFL against Zeno++, whose server has examples of its own.

Command: python run.py experiment wkafl_fig11
    --tune searches for the learning rates first; --scale=paper takes EMNIST MNIST, once
    ``run.py prepare emnist/mnist`` has been run.

Published: test accuracy over 1,500 iterations, without a table. Zeno++ with server examples of ten classes, refreshed
every second step, is faster than WKAFL in the first 300 iterations and ends lower; refreshed every fifth step it is
worse; with one class it stays low and fluctuates heavily. Table 4: WKAFL P = 3000, K = 20; Zeno++ P = 100, K = 1,
gamma = .1, rho = .02, epsilon = .1.

Open choices: the text asks for the same P / K, table 4 has 3000/20 = 150 against 100/1 = 100. How many labels a
client holds is not said (the appendix's L_num is of the server's examples): one per client, at both sizes, is jafl's
choice. How many examples the server has is not said either: 50. WKAFL lacks them as the clients of Zeno++ do, so that
all arms have the same clients' examples; with one class they are zeros, which leaves the other labels whole. Zeno++
gets one gradient per iteration where WKAFL gets K: the comparison by iterations is as published, that at equal trips
stands beside it, at the trips that Zeno++ has in all. A refused gradient counts as an iteration. Paper size: rate
0.005 for all, the release's for WKAFL.

Desk size: 5,000 of MNIST's digits, softmax, one label per client, batch 4, 1,500 steps; WKAFL P = 1,000, K = 10;
Zeno++ P = 100, K = 1, so that P / K = 100 for both. The plain mean of the K gradients, without and with momentum 0.9,
is no part of the paper's figure; its P and K are WKAFL's. Ten searches for each arm: the server's rate is at first
from 0.02 to 1.95, and a tenth of that for the mean with momentum, which makes steps up to ten times as long. Twenty
seeds on ten folds test every image twice.
"""

from experiments.harness import (
    ACCURACY_MARGIN,
    Analysis,
    Override,
    PaperExperiment,
    Published,
    Rate,
    Scale,
    Search,
    accuracy_at,
    compare,
    final_accuracy,
    spread,
)
from experiments.papers.wkafl.wkafl_table2 import (
    DESK,
    LEFT_OUT,
    MOMENTUM,
    ON_EMNIST,
    PAPER_SEARCH,
    WKAFL,
    WORLD,
    above_left_out,
    in_flight,
)

STEPS = 1500
CLASSES = {1: {"split.server_classes": [0]}, 10: {}}


def label(classes: int, refresh: int) -> str:
    """The name of an arm."""
    return f"Zeno++, {classes} class{'es' if classes > 1 else ''}, k = {refresh}"


ZENO = {
    label(classes, refresh): {
        "algorithm": f"zeno_plus_plus(refresh_every={refresh})",
        **in_flight(100),
        "buffer_size": 1,
        **settings,
    }
    for classes, settings in CLASSES.items()
    for refresh in (2, 5)
}
BEST = label(10, 2)
ABOVE = "WKAFL ends above {worse}"
OF_EACH = "The paper gives WKAFL more clients than Zeno++, and compares what classes Zeno++'s server holds."
SETTINGS = {"server_steps": STEPS, "split.server_examples": 50}


def arms(clients: int, buffer: int) -> dict:
    """WKAFL with so many clients and trips per step, and Zeno++'s four."""
    return {WKAFL: {"algorithm": "wkafl", **in_flight(clients), "buffer_size": buffer}} | ZENO


EXPERIMENT = PaperExperiment(
    paper="WKAFL",
    figure="figure 11",
    title="against Zeno++ with server examples of one or ten classes, refreshed every 2 or 5 steps",
    published=Published(
        note="Figure 11: Zeno++ with ten classes and k = 2 is ahead of WKAFL before iteration 300 and ends lower; "
        "with k = 5 it is worse; with one class it stays low and fluctuates heavily."
    ),
    scales={
        "paper": Scale(
            settings=WORLD | ON_EMNIST | SETTINGS | {"dataset": "emnist/mnist", "evaluate_every": 50},
            arms=arms(3000, 20),
            different_worlds=OF_EACH,
            overrides=[Override({}, WKAFL, {"evaluate_every": 1000})],  # every 50 steps, too
            search=PAPER_SEARCH,
            seeds=(0, 1, 2),
        ),
        "desk": Scale(
            settings=DESK | SETTINGS,
            arms=arms(1000, 10) | {label: {**own, **in_flight(1000)} for label, own in LEFT_OUT.items()},
            different_worlds=OF_EACH,
            search=Search(
                space={"server_learning_rate": Rate(0.02, 1.953)},
                spaces={MOMENTUM: {"server_learning_rate": Rate(0.002, 0.1953)}},
                searches=10,
                seeds=tuple(range(400, 410)),
            ),
            seeds=tuple(range(300, 320)),
            analysis=Analysis(
                primary=ABOVE.format(worse=BEST),
                seeds=20,
                margin=ACCURACY_MARGIN,
                spread=0.02,
                source="a pilot with seeds 1000 to 1002 and rates that were not searched for",
                difference=0.027,
                correction=1 / 9,
            ),
        ),
    },
    columns={
        "accuracy at 300 steps": accuracy_at(steps=300),
        "final accuracy": final_accuracy,
        "spread": spread,
        "accuracy at 1,500 trips": accuracy_at(trips=STEPS),
    },
    claims=[
        *compare(ABOVE, WKAFL, list(ZENO), published="a figure"),
        *above_left_out(),
        *compare(
            "ten classes, k = 2 is ahead of WKAFL at 150 steps",
            BEST,
            WKAFL,
            measure=accuracy_at(steps=150),
            published="a figure",
        ),
        *compare(
            "WKAFL is above ten classes, k = 2 at equal trips (1,500)",
            WKAFL,
            BEST,
            measure=accuracy_at(trips=STEPS),
            own=True,
        ),
        *compare("k = 5 is worse than k = 2, ten classes", BEST, label(10, 5), published="a figure"),
        *compare("one class is worse than ten, k = 2", BEST, label(1, 2), published="a figure"),
        *compare(
            "one class fluctuates more than ten, k = 2",
            label(1, 2),
            BEST,
            measure=spread,
            published="a figure",
        ),
    ],
)
