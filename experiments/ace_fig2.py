"""ACE (2025), figures 2 and a.1: accuracy over server steps, single-client, buffered and all-client rules.

Command: python run.py --experiment=ace_fig2
    --tune searches for the server's rates first; --scale=paper takes CIFAR-10 once ``run.py --prepare=cifar10`` has
    been run.

Minutes: desk: 3 of processor time (8 on two cores that a dozen other jobs shared), with --tune 1.5 (5) more. Paper:
    not measured; 1,000 server steps, nine arms, four conditions, five seeds.

Published: curves without a table. CIFAR-10, ResNet-18, N = 100, Dirichlet 0.1 and 0.3, exponential delays of mean
beta = 5 and 30, T = 500 server steps (1,000 in figure a.1, with bands of one standard deviation): ACE and CA2FL above
FedBuff, FedBuff above delay-adaptive, that above vanilla; the two single-client rules have the widest bands.

Open choices: i.i.d. exponential durations give the same schedule for every beta, so beta is read as the mean of a
slow fifth of the clients, the others having mean 0.5, as in the authors' earlier code. The paper's axis is server
steps: a buffered rule then uses M = 10 times the trips, and by table a.4 its step, eta times eta_l, is 20 times
smaller than ACE's. Hence arms "as published" (eta = 0.2 sqrt(n / T), eta_l = 0.05 for the buffered rules) beside arms
with a rate of their own, and verdicts both at equal server steps and at equal trips. Table a.4 has vanilla at
concurrency 1, which is sequential SGD with clients drawn uniformly, so without staleness and without any bias towards
the fast; the theory says N. Both are arms: "vanilla" has as many clients under way as the others, "vanilla, one at a
time" one. Delay-adaptive and ACED are not in table a.4 and take ACE's rate; ACED's tau_algo is 50 (that of figure
a.2), 10 N on desk size. Momentum 0.9 of a single local step changes nothing and is left out.

Desk size: digits, softmax with L2 0.01 (without it the model interpolates the digits and the bias vanishes), N = 20
all in flight, Dirichlet 0.1, batch 32, one local step; the fifth of the clients that is richest in labels 0-2 is 20
times slower. 400 and 4,000 client trips: single-client rules after 400 trips are compared with buffered ones after
4,000 (400 server steps each), and all with each other after 4,000. Seven server's rates from 0.003 to 3 for each arm.
"""

import math
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

from experiments.machinery import (
    Claim,
    Measure,
    Override,
    PaperExperiment,
    Published,
    Runs,
    Scale,
    Search,
    compare,
    final_accuracy,
    paired,
    server_rates,
    spread,
)

ACE, ACED, CA2FL, FEDBUFF = "ACE", "ACED", "CA2FL", "FedBuff"
ADAPTIVE, VANILLA, SEQUENTIAL = "delay-adaptive", "vanilla", "vanilla, one at a time"
PUBLISHED = " (as published)"
BUFFERED = {"buffer_size": 10, "local_steps": 1, "learning_rate": 1.0}
TUNED_ARMS: dict[str, dict[str, Any]] = {
    ACE: {"algorithm": "ace"},
    ACED: {"algorithm": "aced", "rule_arguments": "active_steps=200"},
    CA2FL: {"algorithm": "ca2fl", **BUFFERED},
    FEDBUFF: {"algorithm": "fedbuff", **BUFFERED},
    ADAPTIVE: {"algorithm": "delay_adaptive_asgd", "buffer_size": 1},
    VANILLA: {"algorithm": "asgd", "buffer_size": 1},
    SEQUENTIAL: {"algorithm": "asgd", "buffer_size": 1, "concurrency": 1},
}
AS_PUBLISHED = (ACE, CA2FL, FEDBUFF, ADAPTIVE, VANILLA)
ARMS = TUNED_ARMS | {
    label + PUBLISHED: TUNED_ARMS[label]
    | ({"learning_rate": 0.05} if "buffer_size" in TUNED_ARMS[label] and label in (CA2FL, FEDBUFF) else {})
    for label in AS_PUBLISHED
}
# A buffered rule makes as many steps of the latter as a single-client rule of the former.
STEPS, TRIPS = 400, 4000


def published_rate(clients: int, steps: int) -> float:
    """Table a.4's 0.2 sqrt(n / T)."""
    return float(f"{0.2 * math.sqrt(clients / steps):.3g}")


DESK_WORLD = {
    "dataset": "digits",
    "model": "softmax",
    "l2": 0.01,
    "num_clients": 20,
    "concurrency": 20,
    "partition": "dirichlet",
    "dirichlet_alpha": 0.1,
    "richest_last": "0-2",
    "delay": "groups",
    "delay_groups": "16:exponential(1);4:exponential(20)",
    "delay_draw": "per_trip",
    "batch_size": 32,
}
RATES = [0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0]
SEARCH = Search(
    space={"server_learning_rate": RATES},
    spaces={label + PUBLISHED: {} for label in AS_PUBLISHED},
    seeds=(100, 101),
)


def _desk_published() -> list[Override]:
    """The published rate, by each rule's own number of server steps."""
    overrides = []
    for trips in (STEPS, TRIPS):
        for label in AS_PUBLISHED:
            rate = published_rate(20, trips // ARMS[label].get("buffer_size", 1))
            rates = {"server_learning_rate": rate}
            overrides.append(Override({"client_trips": trips}, label + PUBLISHED, rates))
    return overrides


# The first step of ACE and ACED takes all clients' trips: at 400 trips they are given as many steps as the others.
WHOLE_STEPS = [
    Override({"client_trips": STEPS}, label, {"server_steps": STEPS})
    for label in (ACE, ACED, ACE + PUBLISHED)
]

PAPER_WORLD = {
    "dataset": "cifar10",
    "model": "resnet18",
    "num_clients": 100,
    "partition": "dirichlet",
    "delay": "groups",
    "delay_draw": "per_trip",
    "batch_size": 50,
    "server_steps": 1000,
    "server_learning_rate": published_rate(100, 500),
}
SLOW_FIFTH = {5: "80:exponential(0.5);20:exponential(5)", 30: "80:exponential(0.5);20:exponential(30)"}
PAPER_BUFFERED = {"buffer_size": 10, "local_steps": 1, "learning_rate": 0.05, "concurrency": 20}
PAPER_ARMS: dict[str, dict[str, Any]] = {
    ACE: {"algorithm": "ace"},
    ACED: {"algorithm": "aced", "rule_arguments": "active_steps=50"},
    CA2FL: {"algorithm": "ca2fl", **PAPER_BUFFERED},
    FEDBUFF: {"algorithm": "fedbuff", **PAPER_BUFFERED},
    ADAPTIVE: {"algorithm": "delay_adaptive_asgd", "buffer_size": 1, "concurrency": 100},
    VANILLA: {"algorithm": "asgd", "buffer_size": 1, "concurrency": 100},
    SEQUENTIAL: {"algorithm": "asgd", "buffer_size": 1, "concurrency": 1},
    CA2FL + ", step of ACE's size": {"algorithm": "ca2fl", **PAPER_BUFFERED, "learning_rate": 1.0},
    FEDBUFF + ", step of ACE's size": {"algorithm": "fedbuff", **PAPER_BUFFERED, "learning_rate": 1.0},
}


def is_buffered(label: str) -> bool:
    """Whether the arm takes ten trips per server step."""
    return ARMS[label].get("buffer_size", 1) == 10


def at_equal_steps(better: str, worse: str, measure: Measure) -> Callable[[Runs], list[float]]:
    """Differences after 400 server steps each: of 400 trips where a step takes one, of 4,000 where it takes ten."""

    def differences(runs: Runs) -> list[float]:
        def values(label: str) -> Mapping[int, float]:
            condition = {"client_trips": TRIPS if is_buffered(label) else STEPS}
            return runs.values(label, measure, condition) if runs.has_run(condition) else {}

        return paired(values(better), values(worse))

    return differences


def _on_both_axes(sentence: str, better: str, worse: str, measure: Measure = final_accuracy) -> list[Claim]:
    """A claim on desk size at equal steps and at equal trips; for two buffered rules both are the same runs."""
    fields: dict[str, Any] = {"measure": measure, "under": {"client_trips": TRIPS}, "scales": ("desk",)}
    if is_buffered(better) and is_buffered(worse):
        return compare(f"{sentence}, equal steps and trips", better, worse, **fields)
    equal_steps = Claim(
        sentence=f"{sentence}, equal steps",
        differences=at_equal_steps(better, worse, measure),
        scales=("desk",),
    )
    return [equal_steps, *compare(f"{sentence}, equal trips", better, worse, **fields)]


def _claims() -> list[Claim]:
    order = [
        (ACE, FEDBUFF),
        (CA2FL, FEDBUFF),
        (ACE, VANILLA),
        (ACED, VANILLA),
        (FEDBUFF, ADAPTIVE),
        (ADAPTIVE, VANILLA),
    ]
    claims = []
    for better, worse in order:
        sentence = f"{better} is above {worse}"
        claims += compare(sentence, better, worse, scales=("paper",))
        claims += _on_both_axes(f"{sentence}, equally tuned", better, worse)
        if better in AS_PUBLISHED and worse in AS_PUBLISHED:
            claims += _on_both_axes(f"{sentence}, as published", better + PUBLISHED, worse + PUBLISHED)
    for worse in (ACE, FEDBUFF):
        sentence = f"vanilla swings more than {worse}"
        claims += compare(sentence, VANILLA, worse, measure=spread, scales=("paper",))
        claims += _on_both_axes(sentence, VANILLA, worse, spread)
    return [*claims, *_on_both_axes(f"ACE is above {SEQUENTIAL}", ACE, SEQUENTIAL)]


def draw(runs: Runs, folder: pathlib.Path) -> None:
    """Curves of the tuned arms and of those as published, each in a picture, by condition."""
    from jafl import plots
    from jafl.config import grid

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
    figure="figures 2 and a.1",
    title="all-client, buffered and single-client rules over server steps, non-IID clients, a slow fifth",
    published=Published(
        note="Figure 2: ACE and CA2FL above FedBuff, above delay-adaptive, above vanilla, in all panels (Dirichlet "
        "0.1 and 0.3, beta 5 and 30). Figure a.1: the single-client rules have the widest bands."
    ),
    scales={
        "paper": Scale(
            settings=PAPER_WORLD,
            arms=PAPER_ARMS,
            conditions={"dirichlet_alpha": [0.1, 0.3], "delay_groups": list(SLOW_FIFTH.values())},
        ),
        "desk": Scale(
            settings=DESK_WORLD,
            arms=ARMS,
            conditions={"client_trips": [STEPS, TRIPS]},
            overrides=[*_desk_published(), *WHOLE_STEPS],
            search=SEARCH,
            tuned={
                "client_trips=400": server_rates(dict.fromkeys(TUNED_ARMS, 0.1) | {CA2FL: 1.0, FEDBUFF: 1.0}),
                "client_trips=4000": server_rates(
                    dict.fromkeys(TUNED_ARMS, 0.03) | {ACED: 0.1, CA2FL: 0.3, FEDBUFF: 0.3}
                ),
            },
            seeds=tuple(range(10)),
            minutes=3,
            hardware="processor time of one CPU core",
        ),
    },
    claims=_claims(),
    pictures=draw,
)
