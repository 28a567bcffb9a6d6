"""ACE (2025), figure a.3: an 8-bit cache of gradients costs no accuracy.

Command: python run.py experiment ace_figa3
    --scale=paper takes CIFAR-10 once ``run.py prepare cifar10`` has been run.

Published: curves without a table (appendix F.3.3). ACE, ACED and their forms with an 8-bit cache on CIFAR-10,
ResNet-18: "the 8-bit variations achieve comparable final performance to the full-precision implementation".

Open choices: the figure names neither alpha, beta nor tau_algo; table a.4's settings are taken, with Dirichlet 0.1
and 0.3, beta = 5 (see ace_fig2) and tau_algo = 50. "Standard unbiased quantization" is rounding at random, with one
scale for each client and parameter array. "Comparable" is read as a difference of less than a hundredth. An arm and
its 8-bit form always have the same rate, so that they differ in the cache alone; none is searched for: two of
appendix F.4's rates are conditions, on paper size table a.4's alone. Only the paper's world is run, in which the slow
clients are any fifth. At paper size runs are evaluated on 5,000 of the test examples, the same ones in all runs.

Desk size: 5,000 MNIST digits, ace_fig2's federation (N = 100, the slow fifth 10 times slower), all clients under
way; an MLP 784-32-10 (a cache of 25,450 numbers for each client; a softmax has no layers whose scales differ), 5,000
client trips, so that the rates c sqrt(N / T) are 0.00707 and 0.0141 for c = 0.05 and 0.1. (With table a.4's 0.2 ACE
swings, and ends far lower.)

What changed: this figure was run before with 20 clients, tau_algo = 200 and 4,000 trips. All seeds are new: those of
ACE's results before 180 had been looked at.
"""

from typing import Any

from experiments.harness import (
    ACCURACY_MARGIN,
    TRIPS_MARGIN,
    Analysis,
    PaperExperiment,
    Published,
    Scale,
    compare,
    final_accuracy,
    steps_to,
)
from experiments.papers.ace.ace_fig2 import (
    ACE,
    ACED,
    CLIENTS,
    CORRECTION,
    MNIST_WORLD,
    PAPER_WORLD,
    SLOW_FIFTH,
    published_rate,
)

BITS = ", 8 bits"
ACE_8, ACED_8 = ACE + BITS, ACED + BITS
MEMORY, TRIPS, REACHED = 50, 5000, 0.8  # MEMORY is table a.4's tau_algo


ACED_OWN = {"algorithm.active_steps": MEMORY, "concurrency": CLIENTS}
ARMS: dict[str, dict[str, Any]] = {
    ACE: {"algorithm": "ace", "concurrency": CLIENTS},
    ACE_8: {"algorithm": "ace_8bit", "concurrency": CLIENTS},
    ACED: {"algorithm": "aced", **ACED_OWN},
    ACED_8: {"algorithm": "aced_8bit", **ACED_OWN},
}
ALPHAS = {"partition.alpha": [0.1, 0.3]}
RATES = [published_rate(CLIENTS, TRIPS, factor) for factor in (0.05, 0.1)]
PAIRS = ((ACE_8, ACE), (ACED_8, ACED))
FASTEST = {"partition.alpha": 0.1, "server_learning_rate": RATES[-1]}

EXPERIMENT = PaperExperiment(
    paper="ACE",
    figure="figure a.3",
    title="a cache of 8-bit gradients against one of full precision, ACE and ACED",
    published=Published(note="Figure a.3: the 8-bit forms end where those of full precision do."),
    scales={
        "paper": Scale(
            settings=PAPER_WORLD
            | {"delay": SLOW_FIFTH[5], "evaluate_every": 500, "split.evaluation_examples": 5000},
            arms=ARMS,
            conditions=ALPHAS,
        ),
        "desk": Scale(
            settings=MNIST_WORLD
            | {"client_trips": TRIPS, "delay": SLOW_FIFTH[5]}
            | {"model": "mlp", "model.hidden_sizes": [32], "client_work.l2": 0.001},
            arms=ARMS,
            conditions={**ALPHAS, "server_learning_rate": RATES},
            seeds=tuple(range(180, 200)),
            analysis=Analysis(
                primary=f"{ACE_8} ends where {ACE} does",
                under=FASTEST,
                seeds=20,
                margin=ACCURACY_MARGIN,
                spread=0.0065,
                source="seeds 3010 to 3013: 0.0063",
                correction=CORRECTION,
            ),
        ),
    },
    columns={"final accuracy": final_accuracy, f"steps to {REACHED}": steps_to(REACHED)},
    claims=[
        *(
            claim
            for low, full in PAIRS
            for claim in compare(
                "{better} ends where {worse} does", low, full, expected="equivalent", published="a figure"
            )
        ),
        *(
            claim
            for low, full in PAIRS
            for claim in compare(
                f"{{better}} needs as many steps to {REACHED} as {{worse}}",
                low,
                full,
                measure=steps_to(REACHED),
                lower_is_better=True,
                expected="equivalent",
                margin=TRIPS_MARGIN,
                scales=("desk",),
                published="a figure",
            )
        ),
    ],
    words={
        "partition.alpha": {alpha: f"Dirichlet {alpha:g}" for alpha in ALPHAS["partition.alpha"]},
        "server_learning_rate": {rate: f"rate {rate:g}" for rate in RATES},
    },
)
