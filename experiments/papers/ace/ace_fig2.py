"""ACE (2025), figure 2: accuracy over server steps in four panels, label skew against delay.

Command: python run.py experiment ace_fig2 --tune
    ``run.py prepare fashion_mnist`` comes first. --tune searches for the server's rates; --scale=paper takes CIFAR-10
    once ``run.py prepare cifar10`` has been run.

Published: curves without a table (section 5). CIFAR-10, ResNet-18, N = 100, T = 500 server steps, Dirichlet 0.1 and
0.3, exponential delays of mean beta = 5 and 30: ACE and CA2FL end highest and converge fastest, most of all at
Dirichlet 0.1; both more delay and more skew lower the accuracy. Figure a.1 is ace_figa1. Section 5 compares the
panels' differences ("heterogeneity amplification"): judged here at equal server steps, and in ace_section5 at equal
trips.

Open choices: "client delays follow an exponential distribution (varying mean beta)" (section 5). This file reads the
paper by the letter: one arriving gradient is one server iteration (algorithm 1), and delays are durations. With all
clients under way and durations of one law the schedule is then the same for every beta. So beta is read as the mean
of a slow fifth of the clients, the others having mean 0.5, as in the authors' earlier code. In 500 steps most of the
slow fifth then never report again, whether beta is 5 or 30, so that the gradients in ACE's cache are as old at beta =
5 as at 30, and more delay can cost next to nothing. The other reading is ace_fig2_server_iterations: delays counted
in server iterations, of which one takes all reports that are due. The slow clients are any fifth, as in the paper;
ace_fig2_richest_last repeats this figure with slow clients that are richest in three of the labels.
FedBuff is algorithm a.2: the plain mean of the buffer, Delta / M, without FedBuff's own staleness weight; all files
on ACE have it so. The axis is server steps, of which a buffered rule makes one in M = 10 trips; the arms "as many
trips" have the single-client rules make as many trips. Table a.4's buffered rules have 20 of 100 clients under way,
here a fifth as well, and all in one more arm; it has vanilla at 1, which is sequential SGD with clients drawn
uniformly, without staleness or bias, while the theory (section 4) says N: both are arms. Rates: appendix F.4 searches
eta = c sqrt(n / T) with c in {10, 5, 2, 1, 0.5, 0.2, 0.1}, and tables a.4 to a.6 have one rate a rule for all
panels; so do all arms here. Table a.4's own are c = 0.2 for all rules and eta_l = 0.05 for buffered ones, whose step
is then 20 times smaller than ACE's. They belong to a ResNet; what carries over to another model is this ratio, which
explains the primary verdict where it differs from the paper's (``Analysis.published_ratio``). Table a.4's momentum of
0.9 does nothing in a single local step and is left out.
Delay-adaptive divides its rate by tau / tau_C beyond tau_C = N, the form of the authors' earlier code; algorithm a.4
asks for at most 1 / (4 L tau). At paper size runs are evaluated every 100 server steps, on all test examples: a
hundred times would cost more than the training.

Desk size: the paper's federation and schedule (N = 100, M = 10, 20 under way with a buffer, T = 500, its skews and
delays) with Fashion-MNIST's 70,000 images, softmax with L2 0.01 (a model that interpolates the examples has no bias
left), batch 32, one local step. Softmax needs smaller rates than appendix F.4's: at first c is from 0.02 to 1.95,
from 0.005 to 0.49 for ACE, delay-adaptive and vanilla with all clients under way, which step at each trip, and from
0.002 to 0.195 for FedBuff with server momentum 0.9, a baseline that the paper leaves out; T is the arm's own number
of server steps. There are five searches for each arm. The results have twenty seeds on twenty folds; each tests on
500 images of its fold of 3,500.

What changed: an earlier version had 20 clients and the same buffer of 10, so that FedBuff's updates were 0.3 steps
old (here 1.8, as in the paper's schedule). Protocol version 1 searched on a coarser grid; all seeds are new. Arms
with table a.4's rates as they stand, ten times too large for ACE with softmax, gave way to the ratio of these rates.
The data were 5,000 MNIST digits, 45 for each client, until Fashion-MNIST came. FedBuff with momentum is new.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from experiments.harness import (
    ACCURACY_MARGIN,
    Analysis,
    Claim,
    PaperExperiment,
    Published,
    Rate,
    Runs,
    Scale,
    Search,
    accuracy_at,
    change,
    compare,
    final_accuracy,
    server_rates,
)

ACE, ACED, CA2FL, FEDBUFF = "ACE", "ACED", "CA2FL", "FedBuff"
ADAPTIVE, VANILLA, SEQUENTIAL = "delay-adaptive", "vanilla", "vanilla, one at a time"
FEDBUFF_ALL, FEDBUFF_MOMENTUM = "FedBuff, all under way", "FedBuff, momentum 0.9"  # the server's momentum
MORE = ", as many trips"

# Each rule as the paper has it. Algorithm a.2 has no staleness weight.
RULES: dict[str, dict[str, Any]] = {
    ACE: {"algorithm": "ace"},
    ACED: {"algorithm": "aced"},
    CA2FL: {"algorithm": "ca2fl"},
    FEDBUFF: {"algorithm": "fedbuff(staleness_weight=constant)"},
    ADAPTIVE: {"algorithm": "delay_adaptive_asgd"},
    VANILLA: {"algorithm": "asgd"},
}
BUFFER = 10
STEPS, TRIPS = 500, 5000
BUFFERED = {"buffer_size": BUFFER, "local_steps": 1, "learning_rate": 1.0}
PUBLISHED_LOCAL_RATE = 0.05  # of buffered rules, tables a.4 and a.5
# Of ACE's rate to a buffered rule's: table a.4 has one eta for all rules, and eta_l = 0.05 for buffered ones.
PUBLISHED_RATIO = 20.0


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


# Worlds, by ``richest_last``: who is slow. Only the first is the paper's.
ANYONE, RICHEST = "", "0-2"
CLIENTS, UNDER_WAY = 100, 20  # table a.4: all clients, and those of a buffered rule that are under way


def slow_fifth(clients: int, beta: float) -> str:
    """The delay in which the last fifth of the clients has mean beta, the others 0.5."""
    fifth = clients // 5
    return f"groups([({clients - fifth}, exponential(0.5)), ({fifth}, exponential({beta:g}))])"


SLOW_FIFTH = {beta: slow_fifth(CLIENTS, beta) for beta in (5, 30)}
FOLDS = 20
MNIST_WORLD = {  # of the figure and tables whose claims hang less on the data
    "dataset": "mnist_5000",
    "split.folds": FOLDS,
    "model": "softmax",
    "client_work.l2": 0.01,
    "num_clients": CLIENTS,
    "partition": "dirichlet",
    "batch_size": 32,
}
DESK_WORLD = MNIST_WORLD | {"dataset": "fashion_mnist", "split.evaluation_examples": 500}
CORRECTION = 1 / (FOLDS - 1)
MOMENTUM = {"server_optimizer.momentum": 0.9}
DESK_ARMS = {
    ACE: arm(ACE, CLIENTS),
    CA2FL: arm(CA2FL, UNDER_WAY),
    FEDBUFF: arm(FEDBUFF, UNDER_WAY),
    FEDBUFF_MOMENTUM: arm(FEDBUFF, UNDER_WAY) | MOMENTUM,
    FEDBUFF_ALL: arm(FEDBUFF, CLIENTS),
    ADAPTIVE: arm(ADAPTIVE, CLIENTS),
    VANILLA: arm(VANILLA, CLIENTS),
    SEQUENTIAL: arm(VANILLA, 1),
    **{rule + MORE: arm(rule, CLIENTS, client_trips=TRIPS) for rule in (ACE, ADAPTIVE, VANILLA)},
}
CONDITIONS: dict[str, list[Any]] = {
    "partition.alpha": [0.1, 0.3],
    "delay": list(SLOW_FIFTH.values()),
}
HARDEST = {"partition.alpha": 0.1, "delay": SLOW_FIFTH[30]}

# Factors c of eta = c sqrt(n / T) between which a search begins. Softmax needs smaller ones than appendix F.4's.
LOWEST_FACTOR, HIGHEST_FACTOR = 0.02, 1.95  # six coarse values
ONE_TRIP = 0.25  # of these factors, for rules that step at each trip, with all clients under way
# Those of other rules; with momentum steps are up to ten times as long.
SHARES = {CA2FL: 1.0, FEDBUFF: 1.0, FEDBUFF_MOMENTUM: 0.1}


def factor_range(steps: int, share: float = 1.0, clients: int = CLIENTS) -> Rate:
    """The rates whose factors c are a share of those from 0.02 to 2, in a run of so many server steps."""
    low = published_rate(clients, steps, share * LOWEST_FACTOR)
    return Rate(low, low * HIGHEST_FACTOR / LOWEST_FACTOR)


def desk_rates(rule: str, steps: int) -> Rate:
    """The rates that are tried for a rule with softmax, in a run of so many server steps."""
    return factor_range(steps, SHARES.get(rule, ONE_TRIP))


def _arm_rates(label: str) -> Rate:
    if label in (FEDBUFF_ALL, SEQUENTIAL):
        return desk_rates(FEDBUFF, STEPS)
    return desk_rates(label.removesuffix(MORE), TRIPS if label.endswith(MORE) else STEPS)


# Runs without --tune have these rates until a search has found others: table a.4's factor.
START = {label: published_rate(CLIENTS, TRIPS if label.endswith(MORE) else STEPS) for label in DESK_ARMS}

PAPER_WORLD = {
    "dataset": "cifar10",
    "model": "resnet18",
    "num_clients": 100,
    "partition": "dirichlet",
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
PAPER_SEARCH = Search(
    space={"server_learning_rate": published_grid(100, STEPS)}, searches=1, per_condition=False
)

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


def panels(
    world: Condition, delays: Mapping[int, str] = SLOW_FIFTH
) -> tuple[Condition, Condition, Condition, Condition]:
    """Figure 2's panels: (skewed and quick, skewed and slow, mild and quick, mild and slow).

    Args:
      world: settings that all four share.
      delays: {beta: the law of delays}.
    """
    skewed_quick, skewed_slow, mild_quick, mild_slow = (
        {**world, "partition.alpha": alpha, "delay": delays[beta]} for alpha in (0.1, 0.3) for beta in (5, 30)
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


def _marks(own: bool, published: str) -> dict[str, Any]:
    """A claim's fields: our own, or what the paper shows for it."""
    return {"own": True} if own else {"published": published}


def _amplified(scale: str, own: bool) -> list[Claim]:
    """Section 5's sentence on the four panels: what delay costs the rules beside ACE hangs on skew."""
    return [
        Claim(
            sentence=f"delay costs {rule} {size} where labels are skewed, equal steps",
            differences=amplification(rule, panels({})),
            expected=expected,
            scales=(scale,),
            **_marks(own, "a sentence"),
        )
        for rules, size, expected in ((AMPLIFIED, "more", "better"), ((ACE,), "as much", "equivalent"))
        for rule in rules
    ]


def lowered(rules: Sequence[str], delays: Mapping[int, str] = SLOW_FIFTH, **marks: Any) -> list[Claim]:
    """Section 5's sentences on the paper's world: more delay, and more skew, lower the accuracy of these rules."""
    quick, slow, mild, _ = panels({}, delays)
    changes = (
        ("more delay lowers the accuracy of", quick, slow),
        ("more skew lowers the accuracy of", mild, quick),
    )
    return [
        Claim(
            sentence=f"{what} {rule}, equal steps",
            differences=change(rule, final_accuracy, before, after),
            lower_is_better=True,
            scales=("desk",),
            **(marks or {"published": "a figure"}),
        )
        for what, before, after in changes
        for rule in rules
    ]


PRIMARY = f"{ACE} is above {FEDBUFF}, equal steps"


def above_left_out(
    rule: str, left_out: Sequence[str] = (FEDBUFF_MOMENTUM,), where: str = "equal steps", **fields: Any
) -> list[Claim]:
    """The rule is above baselines that the paper leaves out; ``where`` ends the sentence."""
    sentence = f"{{better}} is above {{worse}}, which the paper leaves out, {where}"
    return compare(sentence, rule, left_out, **{"own": True, "scales": ("desk",), **fields})


def _desk_claims(own_world: bool) -> list[Claim]:
    desk: dict[str, Any] = {"scales": ("desk",), **_marks(own_world, "a figure")}
    own: dict[str, Any] = {"scales": ("desk",), "own": True}
    claims = []
    for better, worse in (*ORDER, (CA2FL, VANILLA), (CA2FL, ADAPTIVE)):
        claims += compare("{better} is above {worse}, equal steps", better, worse, **desk)
    for better, worse in ((ACE, FEDBUFF), (ACE, VANILLA), (CA2FL, FEDBUFF)):
        sentence = "{better} converges faster than {worse}: accuracy after a fifth of the steps"
        claims += compare(sentence, better, worse, measure=accuracy_at(steps=STEPS // 5), **desk)
    for better, worse in ((ACE + MORE, FEDBUFF), (ACE + MORE, FEDBUFF_ALL), (ACE + MORE, VANILLA + MORE)):
        claims += compare("{better} is above {worse}", better, worse, **own)
    for better, worse in ((FEDBUFF_ALL, ADAPTIVE + MORE), (ADAPTIVE + MORE, VANILLA + MORE)):
        claims += compare("{better} is above {worse}", better, worse, **own)
    claims += compare("{better} is above {worse}, equal steps", ACE, SEQUENTIAL, **own)
    return [*claims, *above_left_out(ACE)]


def _paper_claims(own_world: bool) -> list[Claim]:
    marks: dict[str, Any] = {"scales": ("paper",), **_marks(own_world, "a figure")}
    return [
        claim
        for better, worse in ORDER
        for claim in compare("{better} is above {worse}", better, worse, **marks)
    ]


def claims(own_world: bool = False) -> list[Claim]:
    """The figure's claims at both sizes.

    Args:
      own_world: the slow clients are richest in some labels, which the paper does not have: all claims are our own.
    """
    return [
        *_desk_claims(own_world),
        *([] if own_world else lowered((ACE, CA2FL, FEDBUFF, ADAPTIVE, VANILLA))),
        *_paper_claims(own_world),
        *_amplified("desk", own_world),
        *_amplified("paper", own_world),
    ]


def scales(world: dict[str, Any], spread: float, source: str) -> dict[str, Scale]:
    """Both sizes of the figure in one of the worlds.

    Args:
      world: settings that say who is slow.
      spread: of the primary claim's differences over seeds, in accuracy.
      source: where the spread is from.
    """
    return {
        "paper": Scale(
            settings=PAPER_WORLD | world,
            arms=PAPER_ARMS,
            conditions=CONDITIONS,
            search=PAPER_SEARCH,
        ),
        "desk": Scale(
            settings=DESK_WORLD | {"server_steps": STEPS} | world,
            arms=DESK_ARMS,
            conditions=CONDITIONS,
            search=Search(
                space={"server_learning_rate": desk_rates(FEDBUFF, STEPS)},
                spaces={label: {"server_learning_rate": _arm_rates(label)} for label in DESK_ARMS},
                seeds=tuple(range(400, 405)),
                per_condition=False,
            ),
            tuned={"": server_rates(START)},
            seeds=tuple(range(300, 320)),
            analysis=Analysis(
                primary=PRIMARY,
                under=HARDEST,
                seeds=20,
                margin=ACCURACY_MARGIN,
                spread=spread,
                source=source,
                difference=0.055,
                correction=CORRECTION,
                published_ratio=PUBLISHED_RATIO,
            ),
        ),
    }


WORDS: dict[str, dict[Any, str]] = {
    "partition.alpha": {0.1: "Dirichlet 0.1", 0.3: "Dirichlet 0.3"},
    "delay": {law: f"beta = {beta}" for beta, law in SLOW_FIFTH.items()},
}

EXPERIMENT = PaperExperiment(
    paper="ACE",
    figure="figure 2",
    title="all-client, buffered and single-client rules over server steps, label skew against delay",
    published=Published(
        note="Figure 2: ACE and CA2FL above FedBuff, above delay-adaptive, above vanilla, in all panels (Dirichlet "
        "0.1 and 0.3, beta 5 and 30)."
    ),
    scales=scales({}, 0.036, "seeds 3010 to 3015 at three tenths of the middle rates: 0.035"),
    claims=claims(),
    words=WORDS,
)
