"""FedBuff (Nguyen et al. 2022), figure 4 in the federation of figures 9 to 11, where FedBuff leads without privacy.

Command: python run.py experiment fedbuff_fig4_fig9 --tune
    --tune searches for the rates, clip norms and momenta again; without it the ones that were found before are used.

Published: a figure without a table: at epsilon 24 FedBuff with DP-FTRL is above FedAvgM with DP-FTRL (section 6.3).
In the paper FedBuff leads without privacy, too: table 1.

Why beside ``fedbuff_fig4``: in that world, a linear model on FedProx's synthetic data, FedAvgM is ahead of FedBuff
without privacy already, so that it cannot tell what privacy does to FedBuff's lead. The rule for this world was
stated before anything was run under privacy: of the worlds that compare FedBuff with FedAvgM after equally many
trips, the one in which FedBuff's lead was largest in both sets of seeds. That is figures 9 to 11 with exponential
durations, MNIST-1D after 10,000 trips (``fedbuff_fig9``); with so many clients that 0.9 trips come to each, as in the
paper (600,000 to 660,120). Whether FedBuff leads without privacy is a claim of its own, with arms that were searched
for as the others were; where it is not "better", the primary claim says nothing of the paper's.

Open choices: those of ``fedbuff_fig4``. FedBuff has no staleness weight here: algorithm 1 has none behind the
clipping, where it would weaken the updates and not the noise. The noise is set for epsilon 24 of the schedule as it
is (``epsilon_reading=realised``), for both rules alike.

Desk size: MNIST-1D, drawn again for each seed, an MLP 40-64-10, 11,100 clients of ten examples, Dirichlet 0.1, 1,000
under way, exponential durations, K = 10, cohorts of 1,000, batch 5, two local steps; judged by the last model on
2,000 test examples. Four searches for each arm: momentum 0 or .9, the server's rate, and the clip norm or, without
privacy, the clients' rate, which is 1 under privacy. Results of 20 seeds. No two seeds share an example, which is why
the correction is 0. Paper size is ``fedbuff_fig4``'s.

What changed: an earlier world was table 1's as it was then, with half-normal durations and 13,000 trips. There
FedBuff's lead without privacy was not decided.
"""

from typing import Any

from experiments.harness import (
    ACCURACY_MARGIN,
    Analysis,
    Claim,
    PaperExperiment,
    Published,
    Rate,
    Scale,
    Search,
    Space,
)
from experiments.papers.fedbuff import fedbuff_table1 as table1
from experiments.papers.fedbuff.fedbuff_fig4 import KNOWN_NOISE, at_the_end

CLIENTS, TRIPS = 11_100, 10_000
FEDBUFF, FEDAVGM = "FedBuff", "FedAvgM"
PRIVATE = " + DP-FTRL"
HELD_OUT = table1.HELD_OUT / (10 * CLIENTS + 2 * table1.HELD_OUT)
PRIVACY: dict[str, Any] = {
    "privacy.clip_norm": 1.0,
    "privacy.epsilon": 24.0,
    "privacy.delta": 1e-5,
    "privacy.epsilon_reading": "realised",
    **KNOWN_NOISE,
}
RULES: dict[str, dict[str, Any]] = {
    FEDBUFF: {"algorithm": "fedbuff(staleness_weight=constant)", "buffer_size": 10},
    FEDAVGM: {"algorithm": "fedavgm"},
}
ARMS = {
    **RULES,
    **{label + PRIVATE: rule | PRIVACY | {"learning_rate": 1.0} for label, rule in RULES.items()},
}
WORLD = table1.WORLD | {
    "dataset.examples": 10 * CLIENTS + 2 * table1.HELD_OUT,
    "split.test_fraction": HELD_OUT,
    "split.validation_fraction": HELD_OUT,
    "num_clients": CLIENTS,
    "delay": "exponential",
    "client_trips": TRIPS,
}
SERVER, MOMENTA = Rate(0.064, 2.5), [0.0, 0.9]
UNDER_PRIVACY: Space = {
    "server_learning_rate": SERVER,
    "privacy.clip_norm": Rate(0.4, 6.25),
    "server_optimizer.momentum": MOMENTA,
}
WITHOUT: Space = {
    "server_learning_rate": SERVER,
    "learning_rate": Rate(0.16, 2.5),
    "server_optimizer.momentum": MOMENTA,
}
ABOVE = f"{FEDBUFF}{PRIVATE} is above {FEDAVGM}{PRIVATE} at epsilon 24"

EXPERIMENT = PaperExperiment(
    paper="FedBuff",
    figure="figure 4, figures 9-11's federation",
    title="accuracy with and without differential privacy, where FedBuff leads without it",
    published=Published(note="Curves: at high epsilon FedBuff is above FedAvgM, both with DP-FTRL."),
    scales={
        "desk": Scale(
            settings=WORLD,
            arms=ARMS,
            seeds=tuple(range(300, 320)),
            search=Search(
                space=UNDER_PRIVACY,
                spaces={label: WITHOUT for label in RULES},
                searches=4,
                seeds=tuple(range(400, 404)),
                settings={"split.validation_fraction": HELD_OUT},
            ),
            analysis=Analysis(
                primary=ABOVE,
                seeds=20,
                margin=ACCURACY_MARGIN,
                spread=0.05,
                source="that of fedbuff_fig4, .045",
                difference=0.06,
                correction=0.0,
            ),
        )
    },
    columns={"accuracy at the end": at_the_end},
    claims=[
        Claim(
            sentence=ABOVE,
            better=FEDBUFF + PRIVATE,
            worse=FEDAVGM + PRIVATE,
            measure=at_the_end,
            published="a figure",
        ),
        Claim(
            sentence="FedBuff is above FedAvgM without privacy, as this world was chosen to have it",
            better=FEDBUFF,
            worse=FEDAVGM,
            measure=at_the_end,
            own=True,
        ),
        *(
            Claim(
                sentence=f"privacy costs {label} accuracy",
                better=label,
                worse=label + PRIVATE,
                measure=at_the_end,
                own=True,
            )
            for label in RULES
        ),
    ],
)
