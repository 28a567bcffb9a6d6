"""FedBuff (Nguyen et al. 2022), table 3: the best settings under differential privacy, for each epsilon.

Command: python run.py experiment fedbuff_table3
    --tune searches for the settings first; --scale=paper takes Sent140 with GloVe's vectors
    (--model.embeddings_file), once ``run.py prepare sentiment140`` has been run.

Published: the table below: clients' rate, server's rate, momentum and clip norm. "FedBuff's ability to tolerate
much lower clipping norm" is said to be the source of its speed (appendix C.5).

Open choices: those of fedbuff_fig4. The ranges of rates and momenta are published (section B.3.1: both rates from
1e-8 to 1e4, eleven momenta), that of the clip norm and the number of trials are not; here a random search, as many
points for each arm and epsilon, the same shares of the ranges for all. The clients' rate stays 1: with one or two
local steps and an update that is clipped it says little beside the clip norm.

Desk size: fedbuff_fig4's federation and runs, the three published arms, their two twins with a true epsilon, and
FedBuff without a staleness weight. Ten searches, each of 20 random points (clip norm .03 to 3, server's rate .1 to
100, six of the eleven momenta), the best of which is taken; results of 20 seeds. Protocol version 1 had one search;
all seeds are new.
"""

from typing import Any

from experiments.harness import (
    ACCURACY_MARGIN,
    Analysis,
    LogUniform,
    PaperExperiment,
    Published,
    Scale,
    Search,
    compare,
)
from experiments.harness.declare.declarations import Space
from experiments.papers.fedbuff import fedbuff_fig4 as fig4
from experiments.papers.fedbuff.fedbuff_fig4 import DP_SGD, FEDAVGM, FEDBUFF, PASS, TRUE
from experiments.papers.fedbuff.fedbuff_table1 import WITHOUT_GLOVE

ARMS = {label: arm for label, arm in fig4.ARMS.items() if not label.endswith(PASS)}
SPACE: Space = {
    "privacy.clip_norm": LogUniform(0.03, 3.0),
    "server_learning_rate": LogUniform(0.1, 100.0),
    "server_optimizer.momentum": [0.0, 0.1, 0.3, 0.5, 0.9, 0.99],
}
SEEDS = tuple(range(300, 320))
# Runs without --tune have these settings until a search has found others: those of earlier searches.
# {epsilon: {arm: clip norm, server's rate, momentum, in the order of SPACE}}
FOUND = {
    6: {
        FEDBUFF: (1.17, 0.492, 0.0),
        FEDBUFF + TRUE: (0.564, 0.645, 0.0),
        FEDAVGM: (0.0442, 31.5, 0.9),
        FEDAVGM + TRUE: (1.81, 0.48, 0.5),
        DP_SGD: (0.0442, 31.5, 0.9),
    },
    12: {
        FEDBUFF: (0.715, 1.47, 0.0),
        FEDBUFF + TRUE: (1.17, 0.492, 0.0),
        FEDAVGM: (0.49, 15.4, 0.5),
        FEDAVGM + TRUE: (0.0442, 31.5, 0.9),
        DP_SGD: (0.0442, 31.5, 0.9),
    },
    24: {
        FEDBUFF: (1.56, 0.126, 0.9),
        FEDBUFF + TRUE: (0.715, 1.47, 0.0),
        FEDAVGM: (0.49, 15.4, 0.5),
        FEDAVGM + TRUE: (0.0442, 31.5, 0.9),
        DP_SGD: (0.49, 15.4, 0.5),
    },
}
TUNED: dict[str, dict[str, dict[str, float]]] = {
    f"privacy.epsilon={epsilon}": {
        arm: dict(zip(SPACE, arms[arm.removesuffix(fig4.CONSTANT)], strict=True)) for arm in ARMS
    }
    for epsilon, arms in FOUND.items()
}


def setting(name: str) -> Any:
    """A measure: one of the run's settings."""
    return lambda run: float(run.value(name))


def written(values: tuple[float, ...]) -> str:
    """Published settings of an arm, as text."""
    return ", ".join(f"{value:g}" for value in values)


def beside(condition: Any, label: str) -> str:
    """Table 3's settings of an arm."""
    values = fig4.TABLE_3[condition["privacy.epsilon"]].get(label.removesuffix(TRUE))
    return written(values) if values else "-"


EXPERIMENT = PaperExperiment(
    paper="FedBuff",
    figure="table 3",
    title="the best clip norms, rates and momenta under differential privacy",
    published=Published(
        heading=["epsilon", FEDBUFF, DP_SGD, FEDAVGM],
        rows=[
            [f"{epsilon:g}", *(written(arms[label]) for label in (FEDBUFF, DP_SGD, FEDAVGM))]
            for epsilon, arms in fig4.TABLE_3.items()
        ],
        note="Clients' rate, server's rate, momentum, clip norm. " + WITHOUT_GLOVE,
    ),
    scales={
        "desk": Scale(
            settings=fig4.WORLD,
            arms=ARMS,
            conditions={"privacy.epsilon": fig4.EPSILONS},
            overrides=fig4.noises(fig4.DESK_NOISE),
            search=Search(space=SPACE, trials=20, searches=10, seeds=tuple(range(400, 410))),
            tuned=TUNED,
            seeds=SEEDS,
            analysis=Analysis(
                primary=f"with the settings that were found, {FEDBUFF} is above {FEDAVGM}",
                under={"privacy.epsilon": 24.0},
                seeds=20,
                margin=ACCURACY_MARGIN,
                spread=0.05,
                source="five seeds on one draw, before the protocol: .041",
                difference=0.04,
                why=fig4.ANOTHER_WORLD,
                correction=0.0,
            ),
        ),
        "paper": fig4.paper_scale(ARMS),
    },
    columns={
        "accuracy at the end": fig4.at_the_end,
        "true epsilon": fig4.true_epsilon,
        "clip norm": setting("privacy.clip_norm"),
        "server's rate": setting("server_learning_rate"),
        "momentum": setting("server_optimizer.momentum"),
        "trips clipped": fig4.clipped,
    },
    beside=beside,
    claims=[
        *compare(
            "with the settings that were found, {better} is above {worse}",
            FEDBUFF,
            (FEDAVGM, DP_SGD),
            measure=fig4.at_the_end,
            published="settings alone",
        ),
        *compare(
            "with a true epsilon, {better} is above {worse}",
            FEDBUFF + TRUE,
            (FEDAVGM + TRUE, DP_SGD),
            measure=fig4.at_the_end,
            own=True,
        ),
    ],
    words=fig4.WORDS,
)
