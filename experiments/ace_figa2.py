"""ACE (2025), figure a.2: final accuracy over label skew and delay, heat maps of six algorithms.

Command: python run.py --experiment=ace_figa2 --tune
    --tune searches for the server's rates first; --scale=paper takes CIFAR-100 once ``run.py --prepare=cifar100`` has
    been run.

Published: six heat maps without printed numbers (appendix F.3.1). CIFAR-100, ResNet-18, N = 100, Dirichlet 0.1, 0.3,
1, 10 against beta = 1, 5, 20, 30; T = 500 server steps, mean of five runs; tau_algo = 50. ACE and ACED lead, most of
all at small alpha and large beta; FedBuff, delay-adaptive and vanilla fall off there.

Open choices: beta is the mean of a slow fifth of the clients, the rest having mean 0.5 (see ace_fig2), so the slow
ones take 2, 10, 40 and 60 times as long: that ratio is the axis, because a common factor of all durations cancels.
Both of ace_fig2's worlds are run: slow clients are any fifth, as in the paper, or the fifth that is richest in labels
0-2. FedBuff is the plain mean of the buffer (algorithm a.2). On paper size every arm takes table a.5's rates, so
buffered rules have ten times the trips and a twentieth of the step; --tune searches appendix F.4's grid. On desk size
all six rules have as many client trips; ace_fig2 has the hardest field at equal server steps.

Desk size: ace_fig2's data and model: 5,000 MNIST digits, softmax with L2 0.01, batch 32, one local step. N = 20, all
under way; 4,000 client trips; Dirichlet 0.1, 1 and 10; the slow fifth takes 2, 10 or 60 times as long. ACED's
tau_algo is 10 N. One rate for each arm in all 18 fields, as in the paper: that of appendix F.4's seven with the best
mean over the fields. A buffer of 10 holds half as many trips as there are clients (table a.5: a tenth): FedBuff's and
CA2FL's buffers hear of 40 % of the clients, not of 10 %. As all are under way, their updates are 1.8 to 1.9 steps
old, as with the table's 20 of 100. ace_fig2 has 100 clients.
"""

import pathlib
from typing import Any

import numpy as np

from experiments.ace_fig2 import (
    ACE,
    ACED,
    ADAPTIVE,
    ANYONE,
    BUFFER,
    CA2FL,
    CLIENTS,
    CORRECTION,
    DESK_WORLD,
    FEDBUFF,
    PAPER_WORLD,
    PUBLISHED_LOCAL_RATE,
    RICHEST,
    VANILLA,
    WORLDS,
    arm,
    published_grid,
)
from experiments.machinery import (
    ACCURACY_MARGIN,
    Analysis,
    Claim,
    PaperExperiment,
    Published,
    Runs,
    Scale,
    Search,
    compare,
    final_accuracy,
    loses_less,
    server_rates,
)

SIX = (ACE, ACED, CA2FL, FEDBUFF, ADAPTIVE, VANILLA)
OTHERS = (FEDBUFF, ADAPTIVE, VANILLA)
BUFFERED = (CA2FL, FEDBUFF)
TRIPS = 4000
ARMS = {rule: arm(rule, CLIENTS) for rule in SIX}
ARMS[ACED] |= {"rule_arguments": "active_steps=200"}
PAPER_ARMS = {
    rule: arm(rule, 20, learning_rate=PUBLISHED_LOCAL_RATE) if rule in BUFFERED else arm(rule, 100)
    for rule in SIX
}
PAPER_ARMS[ACED] |= {"rule_arguments": "active_steps=50"}
ALPHAS, PAPER_ALPHAS = [0.1, 1.0, 10.0], [0.1, 0.3, 1.0, 10.0]
START = {
    ACE: 0.0354,
    ACED: 0.0354,
    CA2FL: 0.224,
    FEDBUFF: 0.447,
    ADAPTIVE: 0.0354,
    VANILLA: 0.0354,
}


def slow_fifth(clients: int, betas: list[float]) -> dict[float, str]:
    """{beta: ``delay_groups``}: the last fifth of the clients has mean beta, the others 0.5."""
    fifth = clients // 5
    return {beta: f"{clients - fifth}:exponential(0.5);{fifth}:exponential({beta:g})" for beta in betas}


DESK_SLOW, PAPER_SLOW = slow_fifth(CLIENTS, [1, 5, 30]), slow_fifth(100, [1, 5, 20, 30])
HARD: dict[str, Any] = {"richest_last": ANYONE, "dirichlet_alpha": 0.1, "delay_groups": DESK_SLOW[30]}
EASY: dict[str, Any] = {"richest_last": ANYONE, "dirichlet_alpha": 10.0, "delay_groups": DESK_SLOW[1]}


def _claims() -> list[Claim]:
    sentence = "{better} is above {worse} at small alpha, large beta"
    hardest = {"dirichlet_alpha": 0.1, "delay_groups": DESK_SLOW[30]}
    on_paper = {"dirichlet_alpha": 0.1, "delay_groups": PAPER_SLOW[30]}
    return [
        *compare(sentence, (ACE, ACED, CA2FL), OTHERS, under=hardest, scales=("desk",), published="colours"),
        *(
            Claim(
                sentence=f"{worse} loses more than ACE from the mildest to the hardest field",
                differences=loses_less(ACE, worse, EASY, HARD),
                scales=("desk",),
                published="colours",
            )
            for worse in OTHERS
        ),
        *compare(sentence, ACE, CA2FL, under=hardest, scales=("desk",), published="colours"),
        *compare(
            "{better} is above {worse}",
            (ACE, ACED),
            (CA2FL, *OTHERS),
            under=on_paper,
            scales=("paper",),
            published="colours",
        ),
    ]


def draw(runs: Runs, folder: pathlib.Path) -> None:
    """``as_in_the_paper.png`` and ``slow_clients_with_own_labels.png``: figure a.2's maps, alpha against beta."""
    from jafl import plots
    from jafl.runs import tables

    betas = {groups: beta for slow in (DESK_SLOW, PAPER_SLOW) for beta, groups in slow.items()}
    names = {ANYONE: "as_in_the_paper", RICHEST: "slow_clients_with_own_labels"}
    for world in dict.fromkeys(condition["richest_last"] for condition in runs.conditions):
        chosen = [condition for condition in runs.conditions if condition["richest_last"] == world]
        alphas = sorted({condition["dirichlet_alpha"] for condition in chosen})
        groups = sorted({condition["delay_groups"] for condition in chosen}, key=lambda name: betas[name])
        shape = (len(groups), len(alphas))
        means, errors = ({label: np.full(shape, np.nan) for label in runs.labels} for _ in range(2))
        for condition in chosen:
            place = groups.index(condition["delay_groups"]), alphas.index(condition["dirichlet_alpha"])
            for label in runs.labels:
                values = list(runs.values(label, final_accuracy, condition).values())
                means[label][place] = np.mean(values)
                errors[label][place] = tables.standard_error(values) or np.nan
        figure = plots.heat_maps(
            means,
            ("beta", [f"{betas[group]:g}" for group in groups]),
            ("alpha", [f"{alpha:g}" for alpha in alphas]),
            errors=errors,
            seeds={label: np.full(shape, len(values)) for label in runs.labels},
            quantity="final test accuracy",
        )
        plots.save(figure, folder / f"{names[world]}.png")


EXPERIMENT = PaperExperiment(
    paper="ACE",
    figure="figure a.2",
    title="heat maps of final accuracy over label skew and delay, six algorithms",
    published=Published(
        note="Figure a.2: colours without numbers. ACE and ACED stay high at small alpha and large beta, where "
        "FedBuff, delay-adaptive and vanilla fall off."
    ),
    scales={
        "paper": Scale(
            settings=PAPER_WORLD | {"dataset": "cifar100", "evaluate_every": 5000},  # at the end alone
            arms=PAPER_ARMS,
            conditions={
                "dirichlet_alpha": PAPER_ALPHAS,
                "delay_groups": list(PAPER_SLOW.values()),
                **WORLDS,
            },
            search=Search(space={"server_learning_rate": published_grid(100, 500)}, per_condition=False),
        ),
        "desk": Scale(
            settings=DESK_WORLD | {"client_trips": TRIPS},
            arms=ARMS,
            conditions={"dirichlet_alpha": ALPHAS, "delay_groups": list(DESK_SLOW.values()), **WORLDS},
            search=Search(
                space={"server_learning_rate": published_grid(CLIENTS, TRIPS)},
                spaces=dict.fromkeys(
                    BUFFERED, {"server_learning_rate": published_grid(CLIENTS, TRIPS // BUFFER)}
                ),
                seeds=(100,),
                per_condition=False,
            ),
            tuned={"": server_rates(START)},
            seeds=tuple(range(20, 40)),
            analysis=Analysis(
                primary="ACE is above FedBuff at small alpha, large beta",
                under=HARD,
                seeds=20,
                margin=ACCURACY_MARGIN,
                spread=0.0205,
                source="seeds 1000 to 1005 at the rates of the file: 0.020",
                difference=0.02,
                correction=CORRECTION,
            ),
        ),
    },
    claims=_claims(),
    pictures=draw,
    words={
        "dirichlet_alpha": {alpha: f"Dirichlet {alpha:g}" for alpha in PAPER_ALPHAS},
        "delay_groups": {
            law: f"beta = {beta}" for slow in (DESK_SLOW, PAPER_SLOW) for beta, law in slow.items()
        },
        "richest_last": {ANYONE: "", RICHEST: "slow clients with own labels"},
    },
)
