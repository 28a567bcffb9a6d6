"""ACE (2025), figure a.2: final accuracy over label skew and delay, heat maps of six algorithms.

Command: python run.py --experiment=ace_figa2
    --scale=paper takes CIFAR-100 once ``run.py --prepare=cifar100`` has been run.

Minutes: desk: 3.7 on two busy cores (2.4 of processor time). Paper: not measured; 500 server steps, six arms, 16
    conditions, five seeds.

Published: six heat maps without printed numbers. CIFAR-100, ResNet-18, N = 100, Dirichlet 0.1, 0.3, 1, 10 against
beta = 1, 5, 20, 30; T = 500 server steps, mean of five runs; tau_algo = 50. ACE and ACED lead, most of all at small
alpha and large beta; FedBuff, delay-adaptive and vanilla fall off there.

Open choices: beta is the mean of a slow fifth of the clients, the rest having mean 0.5 (see ace_fig2), so the slow
ones take 2, 10, 40 and 60 times as long: that ratio is the axis, because a common factor of all durations cancels. On
paper size every arm takes table a.5's rates, so buffered rules have ten times the trips and a twentieth of the step.
On desk size all six rules have as many client trips; ace_fig2 has the hardest field at equal server steps as well.

Desk size: digits, softmax with L2 0.01, N = 20 all in flight, batch 32, one local step; 4,000 client trips; Dirichlet
0.1, 0.3 and 10; the fifth of the clients that is richest in labels 0-2 takes 1, 5 or 20 times as long. ACED's
tau_algo is 10 N. Nothing is searched for here: each arm has the rate that ace_fig2's equal search found for it in the
hardest of these fields (Dirichlet 0.1, 20 times as long), and has it in all nine, as the paper has one for all.
"""

from typing import Any

from experiments.ace_fig2 import (
    ACE,
    ACED,
    ADAPTIVE,
    CA2FL,
    DESK_WORLD,
    FEDBUFF,
    PAPER_ARMS,
    PAPER_WORLD,
    TRIPS,
    TUNED_ARMS,
    VANILLA,
    published_rate,
)
from experiments.ace_fig2 import EXPERIMENT as FIGURE_2
from experiments.machinery import Claim, Override, PaperExperiment, Published, Scale, compare, loses_less

SIX = (ACE, ACED, CA2FL, FEDBUFF, ADAPTIVE, VANILLA)
_TUNED = FIGURE_2.scales["desk"].tuned
ARMS: dict[str, dict[str, Any]] = {
    label: {**TUNED_ARMS[label], **_TUNED[f"client_trips={TRIPS}"][label]} for label in SIX
}
HARD, EASY = (
    {"dirichlet_alpha": 0.1, "delay_slow_factor": 20.0},
    {"dirichlet_alpha": 10.0, "delay_slow_factor": 1.0},
)


def slow_group(fast: int, slow: int, mean: float, factors: list[float]) -> list[Override]:
    """Durations for each value of ``delay_slow_factor``: the last ``slow`` clients are so many times slower."""
    overrides = []
    for factor in factors:
        groups = f"{fast}:exponential({mean:g});{slow}:exponential({mean * factor:g})"
        settings: dict[str, Any] = {"delay": "groups", "delay_groups": groups}
        settings["delay_slow_factor"] = 10.0  # the default: it is not read
        overrides.append(Override({"delay_slow_factor": factor}, None, settings))
    return overrides


def _claims() -> list[Claim]:
    sentence = "{better} is above {worse} at small alpha, large beta"
    at_hard: dict[str, Any] = {"under": HARD, "scales": ("desk",)}
    hardest = {"dirichlet_alpha": 0.1, "delay_slow_factor": 60.0}
    return [
        *compare(sentence, (ACE, ACED, CA2FL), (FEDBUFF, ADAPTIVE, VANILLA), **at_hard),
        *(
            Claim(
                sentence=f"{worse} loses more than ACE from the mildest to the hardest field",
                differences=loses_less(ACE, worse, EASY, HARD),
                scales=("desk",),
            )
            for worse in (FEDBUFF, VANILLA)
        ),
        *compare(sentence, ACE, CA2FL, **at_hard),
        *compare(
            "{better} is above {worse}",
            (ACE, ACED),
            (CA2FL, FEDBUFF, ADAPTIVE, VANILLA),
            under=hardest,
            scales=("paper",),
        ),
    ]


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
            settings=PAPER_WORLD
            | {"dataset": "cifar100", "server_steps": 500, "server_learning_rate": published_rate(100, 500)},
            arms={label: PAPER_ARMS[label] for label in SIX},
            conditions={
                "dirichlet_alpha": [0.1, 0.3, 1.0, 10.0],
                "delay_slow_factor": [2.0, 10.0, 40.0, 60.0],
            },
            overrides=slow_group(80, 20, 0.5, [2.0, 10.0, 40.0, 60.0]),
        ),
        "desk": Scale(
            settings=DESK_WORLD | {"client_trips": TRIPS},
            arms=ARMS,
            conditions={"dirichlet_alpha": [0.1, 0.3, 10.0], "delay_slow_factor": [1.0, 5.0, 20.0]},
            overrides=slow_group(16, 4, 1.0, [1.0, 5.0, 20.0]),
            minutes=3.7,
            hardware="two busy CPU cores",
        ),
    },
    claims=_claims(),
)
