"""ACE (2025), figure a.3: an 8-bit cache of gradients costs no accuracy.

Command: python run.py --experiment=ace_figa3
    --scale=paper takes CIFAR-10 once ``run.py --prepare=cifar10`` has been run.

Minutes: desk: 1 of processor time (2.5 on two cores that a dozen other jobs shared). Paper: not measured; 500 server
    steps, four arms, two conditions, five seeds.

Published: curves without a table. ACE, ACED and their forms with an 8-bit cache on CIFAR-10, ResNet-18: "comparable
final performance".

Open choices: the figure names neither alpha, beta nor tau_algo; table a.4's settings are taken, with Dirichlet 0.1
and 0.3, beta = 5 (see ace_fig2) and tau_algo = 50. "Standard unbiased quantization" is rounding at random, with one
scale for each client and parameter array. "Costs nothing" is read as a difference that cannot be told from 0, and the
interval says how large it could be at most.

Desk size: ace_fig2's: digits, softmax with L2 0.01, N = 20 all in flight, a slow fifth; Dirichlet 0.1 and 0.3; 4,000
client trips, ten seeds. Nothing is searched for here: an arm and its 8-bit form both have the rate that ace_fig2's
equal search found for ACE and for ACED at Dirichlet 0.1, so that they differ in the cache alone.
"""

from typing import Any

from experiments.ace_fig2 import ACE, ACED, DESK_WORLD, PAPER_WORLD, SLOW_FIFTH, TRIPS
from experiments.ace_fig2 import EXPERIMENT as FIGURE_2
from experiments.machinery import (
    Override,
    PaperExperiment,
    Published,
    Scale,
    compare,
    final_accuracy,
    steps_to,
)

BITS = ", 8 bits"
ACE_8, ACED_8 = ACE + BITS, ACED + BITS
TUNED = FIGURE_2.scales["desk"].tuned[f"client_trips={TRIPS}"]


def _arms(memory: int) -> dict[str, dict[str, Any]]:
    aced = f"active_steps={memory}"
    return {
        ACE: {"algorithm": "ace"},
        ACE_8: {"algorithm": "ace_8bit"},
        ACED: {"algorithm": "aced", "rule_arguments": aced},
        ACED_8: {"algorithm": "aced_8bit", "rule_arguments": aced},
    }


REACHED = 0.85
ALPHAS = {"dirichlet_alpha": [0.1, 0.3]}
PAIRS = ((ACE_8, ACE), (ACED_8, ACED))

EXPERIMENT = PaperExperiment(
    paper="ACE",
    figure="figure a.3",
    title="a cache of 8-bit gradients against one of full precision, ACE and ACED",
    published=Published(note="Figure a.3: the 8-bit forms end where those of full precision do."),
    scales={
        "paper": Scale(
            settings=PAPER_WORLD | {"delay_groups": SLOW_FIFTH[5], "server_steps": 500},
            arms=_arms(50),
            conditions=ALPHAS,
        ),
        "desk": Scale(
            settings=DESK_WORLD | {"client_trips": TRIPS},
            arms=_arms(200),
            conditions=ALPHAS,
            seeds=tuple(range(10)),
            overrides=[Override({}, label, TUNED[label.removesuffix(BITS)]) for label in _arms(0)],
            minutes=1,
            hardware="processor time of one CPU core",
        ),
    },
    columns={"final accuracy": final_accuracy, f"steps to {REACHED}": steps_to(REACHED)},
    claims=[
        *(
            claim
            for low, full in PAIRS
            for claim in compare("{better} ends where {worse} does", low, full, expected="a tie")
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
                expected="a tie",
                scales=("desk",),
            )
        ),
    ],
)
