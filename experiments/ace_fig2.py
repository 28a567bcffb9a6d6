"""ACE (2025), figure 2: accuracy over server steps in four panels, label skew against delay.

Command: python run.py --experiment=ace_fig2 --tune
    --tune searches for the server's rates first; --scale=paper takes CIFAR-10 once ``run.py --prepare=cifar10`` has
    been run.

Published: curves without a table (section 5). CIFAR-10, ResNet-18, N = 100, T = 500 server steps, Dirichlet 0.1 and
0.3, exponential delays of mean beta = 5 and 30: ACE and CA2FL end highest and converge fastest, most of all at
Dirichlet 0.1; both more delay and more skew lower the accuracy. Figure a.1 is ace_figa1. Section 5 compares the
panels' differences ("heterogeneity amplification"): judged here at equal server steps, with searched and with
published rates, and in ace_section5 at equal trips.

Open choices: "client delays follow an exponential distribution (varying mean beta)" (section 5): with all clients
under way and durations of one law the schedule is the same for every beta. So beta is read as the mean of a slow
fifth of the clients, the others having mean 0.5, as in the authors' earlier code. Two worlds, both run. In the
paper's, the slow clients are any fifth (``richest_last`` left out). In the other, which is not in the paper, they are
the fifth that is richest in labels 0-2, so that the fast ones do not hold their labels (``richest_last=0-2``).
FedBuff is algorithm a.2: the plain mean of the buffer, Delta / M, without FedBuff's own staleness weight; all files
on ACE have it so. The axis is server steps, of which a buffered rule makes one in M = 10 trips; the arms "as many
trips" have the single-client rules make as many trips. Table a.4's buffered rules have 20 of 100 clients under way,
here a fifth as well, and all in one more arm; it has vanilla at 1, which is sequential SGD with clients drawn
uniformly, without staleness or bias, while the theory (section 4) says N: both are arms. Rates: appendix F.4 searches
eta = c sqrt(n / T) with c in {10, 5, 2, 1, 0.5, 0.2, 0.1}; so do all arms here, at both sizes. Table a.4's own are c
= 0.2 and eta_l = 0.05 for buffered rules, whose step is then 20 times smaller: arms "as published". Table a.4's
momentum of 0.9 does nothing in a single local step and is left out. At paper size runs are evaluated every 100 server
steps, on all test examples: a hundred times would cost more than the training.

Desk size: 5,000 MNIST digits, softmax with L2 0.01 (a model that interpolates the examples has no bias left), N = 20,
batch 32, one local step, 500 server steps, the paper's skews and delays. Twenty folds and twenty seeds test every
image once. Seeds 20 to 39 were looked at before the panels' differences were judged, and are not among them.
"""

import math
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

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
    server_rates,
)
from jafl.config import grid

ACE, ACED, CA2FL, FEDBUFF = "ACE", "ACED", "CA2FL", "FedBuff"
ADAPTIVE, VANILLA, SEQUENTIAL = "delay-adaptive", "vanilla", "vanilla, one at a time"
FEDBUFF_ALL = "FedBuff, all under way"
MORE, PUBLISHED = ", as many trips", " (as published)"

# Each rule as the paper has it. Algorithm a.2 has no staleness weight.
RULES: dict[str, dict[str, Any]] = {
    ACE: {"algorithm": "ace"},
    ACED: {"algorithm": "aced"},
    CA2FL: {"algorithm": "ca2fl"},
    FEDBUFF: {"algorithm": "fedbuff", "staleness_weight": "constant"},
    ADAPTIVE: {"algorithm": "delay_adaptive_asgd"},
    VANILLA: {"algorithm": "asgd"},
}
BUFFER = 10
STEPS, TRIPS = 500, 5000
BUFFERED = {"buffer_size": BUFFER, "local_steps": 1, "learning_rate": 1.0}
PUBLISHED_LOCAL_RATE = 0.05  # of buffered rules, tables a.4 and a.5


def arm(rule: str, under_way: int, **own: Any) -> dict[str, Any]:
    """One arm: a rule with so many clients under way, buffered or not."""
    size = BUFFERED if rule in (CA2FL, FEDBUFF) else {"buffer_size": 1}
    if rule in (ACE, ACED):
        size = {}
    return {**RULES[rule], **size, "concurrency": under_way, **own}


def published_rate(clients: int, steps: int, factor: float = 0.2) -> float:
    """Appendix F.4's c sqrt(n / T); table a.4 has c = 0.2."""
    return float(f"{factor * math.sqrt(clients / steps):.3g}")


def published_grid(clients: int, steps: int) -> list[float]:
    """Appendix F.4's seven rates."""
    return [published_rate(clients, steps, factor) for factor in (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)]


def everywhere(
    conditions: Mapping[str, Sequence[Any]], rates: Mapping[str, float]
) -> dict[str, dict[str, dict[str, float]]]:
    """``Scale.tuned`` with the same rates under all conditions: where a search may begin."""
    return {grid.folder(condition): server_rates(rates) for condition in grid.product(conditions)}


# Worlds: who is slow. Only the first is the paper's.
ANYONE, RICHEST = "", "0-2"
WORLDS: dict[str, list[Any]] = {"richest_last": [ANYONE, RICHEST]}
SLOW_FIFTH = {5: "80:exponential(0.5);20:exponential(5)", 30: "80:exponential(0.5);20:exponential(30)"}
DESK_SLOW = {5: "16:exponential(0.5);4:exponential(5)", 30: "16:exponential(0.5);4:exponential(30)"}
CLIENTS, FIFTH, FOLDS = 20, 4, 20
DESK_WORLD = {
    "dataset": "mnist_5000",
    "test_folds": FOLDS,
    "model": "softmax",
    "l2": 0.01,
    "num_clients": CLIENTS,
    "partition": "dirichlet",
    "delay": "groups",
    "delay_draw": "per_trip",
    "batch_size": 32,
}
CORRECTION = 1 / (FOLDS - 1)
DESK_ARMS = {
    ACE: arm(ACE, CLIENTS),
    CA2FL: arm(CA2FL, FIFTH),
    FEDBUFF: arm(FEDBUFF, FIFTH),
    FEDBUFF_ALL: arm(FEDBUFF, CLIENTS),
    ADAPTIVE: arm(ADAPTIVE, CLIENTS),
    VANILLA: arm(VANILLA, CLIENTS),
    SEQUENTIAL: arm(VANILLA, 1),
    **{rule + MORE: arm(rule, CLIENTS, client_trips=TRIPS) for rule in (ACE, ADAPTIVE, VANILLA)},
}
AS_PUBLISHED = (ACE, CA2FL, FEDBUFF, ADAPTIVE, VANILLA)
PUBLISHED_ARMS = {
    label + PUBLISHED: DESK_ARMS[label]
    | {"server_learning_rate": published_rate(CLIENTS, STEPS)}
    | ({"learning_rate": PUBLISHED_LOCAL_RATE} if label in (CA2FL, FEDBUFF) else {})
    for label in AS_PUBLISHED
}
DESK_CONDITIONS: dict[str, list[Any]] = {
    **WORLDS,
    "dirichlet_alpha": [0.1, 0.3],
    "delay_groups": list(DESK_SLOW.values()),
}
HARDEST = {"richest_last": ANYONE, "dirichlet_alpha": 0.1, "delay_groups": DESK_SLOW[30]}
# Where the search begins: winners of a few trials with other seeds.
START = {
    ACE: 0.1,
    CA2FL: 0.2,
    FEDBUFF: 0.4,
    FEDBUFF_ALL: 0.4,
    ADAPTIVE: 0.1,
    VANILLA: 0.1,
    SEQUENTIAL: 0.1,
    ACE + MORE: 0.0316,
    ADAPTIVE + MORE: 0.0316,
    VANILLA + MORE: 0.0316,
}

PAPER_WORLD = {
    "dataset": "cifar10",
    "model": "resnet18",
    "num_clients": 100,
    "partition": "dirichlet",
    "delay": "groups",
    "delay_draw": "per_trip",
    "batch_size": 50,
    "server_steps": STEPS,
    "server_learning_rate": published_rate(100, STEPS),
    "evaluate_every": 100,  # seldom, so that evaluation on all test examples takes a fifth of the training at most
}
AS_SELDOM = {"evaluate_every": 100 * BUFFER}  # in server steps, for rules with a buffer
PAPER_BUFFERED = {"learning_rate": PUBLISHED_LOCAL_RATE}
LONG_STEP = ", step of ACE's size"
PAPER_ARMS = {
    ACE: arm(ACE, 100),
    CA2FL: arm(CA2FL, 20, **PAPER_BUFFERED, **AS_SELDOM),
    FEDBUFF: arm(FEDBUFF, 20, **PAPER_BUFFERED, **AS_SELDOM),
    ADAPTIVE: arm(ADAPTIVE, 100),
    VANILLA: arm(VANILLA, 100),
    SEQUENTIAL: arm(VANILLA, 1),
    CA2FL + LONG_STEP: arm(CA2FL, 20, **AS_SELDOM),
    FEDBUFF + LONG_STEP: arm(FEDBUFF, 20, **AS_SELDOM),
    FEDBUFF_ALL: arm(FEDBUFF, 100, **AS_SELDOM),
}
PAPER_SEARCH = Search(space={"server_learning_rate": published_grid(100, STEPS)})

AMPLIFIED = (FEDBUFF, VANILLA, ADAPTIVE)
Condition = dict[str, Any]

ORDER = (
    (ACE, FEDBUFF),
    (CA2FL, FEDBUFF),
    (ACE, VANILLA),
    (ACE, ADAPTIVE),
    (FEDBUFF, ADAPTIVE),
    (ADAPTIVE, VANILLA),
)


def panels(slow: dict[int, str], world: Condition) -> tuple[Condition, Condition, Condition, Condition]:
    """Figure 2's panels: (skewed and quick, skewed and slow, mild and quick, mild and slow)."""
    skewed_quick, skewed_slow, mild_quick, mild_slow = (
        {**world, "dirichlet_alpha": alpha, "delay_groups": slow[beta]}
        for alpha in (0.1, 0.3)
        for beta in (5, 30)
    )
    return skewed_quick, skewed_slow, mild_quick, mild_slow


def amplification(
    label: str, four: tuple[Condition, Condition, Condition, Condition]
) -> Callable[[Runs], list[float]]:
    """``Claim.differences``: what delay costs the arm at Dirichlet 0.1, less what it costs at 0.3."""
    skewed_quick, skewed_slow, mild_quick, mild_slow = four

    def differences(runs: Runs) -> list[float]:
        if not runs.has_run(*four):
            return []
        skewed = runs.changes(label, final_accuracy, skewed_slow, skewed_quick)
        mild = runs.changes(label, final_accuracy, mild_slow, mild_quick)
        return [high - low for high, low in zip(skewed, mild, strict=True)]

    return differences


def _amplified(slow: dict[int, str], scale: str, suffixes: Sequence[str]) -> list[Claim]:
    """Section 5's sentence on the four panels of each world: what delay costs the rules beside ACE hangs on skew."""
    return [
        Claim(
            sentence=f"delay costs {rule}{suffix} {size} where labels are skewed, equal steps{where}",
            differences=amplification(rule + suffix, panels(slow, {"richest_last": world})),
            expected=expected,
            scales=(scale,),
        )
        for world, where in ((ANYONE, ""), (RICHEST, ", slow clients with own labels"))
        for suffix in suffixes
        for rules, size, expected in ((AMPLIFIED, "more", "better"), ((ACE,), "as much", "equivalent"))
        for rule in rules
    ]


def _desk_claims() -> list[Claim]:
    desk: dict[str, Any] = {"scales": ("desk",)}
    claims = []
    for better, worse in ORDER:
        claims += compare("{better} is above {worse}, equal steps", better, worse, **desk)
    for better, worse in ((ACE + MORE, FEDBUFF_ALL), (ACE + MORE, VANILLA + MORE)):
        claims += compare("{better} is above {worse}", better, worse, **desk)
    for better, worse in ((FEDBUFF_ALL, ADAPTIVE + MORE), (ADAPTIVE + MORE, VANILLA + MORE)):
        claims += compare("{better} is above {worse}", better, worse, **desk)
    for better, worse in ((ACE, FEDBUFF), (CA2FL, FEDBUFF), (FEDBUFF, ADAPTIVE), (ADAPTIVE, VANILLA)):
        claims += compare("{better} is above {worse}", better + PUBLISHED, worse + PUBLISHED, **desk)
    return [*claims, *compare("{better} is above {worse}, equal steps", ACE, SEQUENTIAL, **desk)]


def _paper_claims() -> list[Claim]:
    return [
        claim
        for better, worse in ORDER
        for claim in compare("{better} is above {worse}", better, worse, scales=("paper",))
    ]


def draw(runs: Runs, folder: pathlib.Path) -> None:
    """Curves of the tuned arms and of those as published, each in a picture, by condition."""
    from jafl import plots

    for condition in runs.conditions:
        for name, published in (("tuned", False), ("as_published", True)):
            chosen = [label for label in runs.labels if label.endswith(PUBLISHED) == published]
            if chosen:
                curves = {
                    label: [run.evaluations for run in runs.of(label, condition).values()] for label in chosen
                }
                figure = plots.accuracy_panels(curves)
                plots.save(figure, folder / f"{name},{grid.folder(condition)}.png")


EXPERIMENT = PaperExperiment(
    paper="ACE",
    figure="figure 2",
    title="all-client, buffered and single-client rules over server steps, label skew against delay",
    published=Published(
        note="Figure 2: ACE and CA2FL above FedBuff, above delay-adaptive, above vanilla, in all panels (Dirichlet "
        "0.1 and 0.3, beta 5 and 30)."
    ),
    scales={
        "paper": Scale(
            settings=PAPER_WORLD,
            arms=PAPER_ARMS,
            conditions={
                **WORLDS,
                "dirichlet_alpha": [0.1, 0.3],
                "delay_groups": list(SLOW_FIFTH.values()),
            },
            search=PAPER_SEARCH,
        ),
        "desk": Scale(
            settings=DESK_WORLD | {"server_steps": STEPS},
            arms=DESK_ARMS | PUBLISHED_ARMS,
            conditions=DESK_CONDITIONS,
            search=Search(
                space={"server_learning_rate": published_grid(CLIENTS, STEPS)},
                spaces={
                    **{
                        label: {"server_learning_rate": published_grid(CLIENTS, TRIPS)}
                        for label in DESK_ARMS
                        if label.endswith(MORE)
                    },
                    **dict.fromkeys(PUBLISHED_ARMS, {}),
                },
                seeds=(100, 101),
            ),
            tuned=everywhere(DESK_CONDITIONS, START),
            seeds=tuple(range(40, 60)),
            analysis=Analysis(
                primary="ACE is above FedBuff, equal steps",
                under=HARDEST,
                seeds=20,
                margin=ACCURACY_MARGIN,
                spread=0.037,
                source="seeds 1000 to 1005 at the rates of the file: 0.037",
                difference=0.038,
                correction=CORRECTION,
                untuned=dict.fromkeys(PUBLISHED_ARMS, "takes the rates of table a.4"),
            ),
        ),
    },
    claims=[
        *_desk_claims(),
        *_paper_claims(),
        *_amplified(DESK_SLOW, "desk", ("", PUBLISHED)),
        *_amplified(SLOW_FIFTH, "paper", ("",)),
    ],
    pictures=draw,
)
