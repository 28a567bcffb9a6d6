"""ACE (2025), figure 3: clients that leave for ever, and how long ACED may remember.

Command: python run.py --experiment=ace_fig3
    --tune searches for the server's rates first; --scale=paper takes CIFAR-10 once ``run.py --prepare=cifar10`` has
    been run.

Minutes: desk: 3.3 of processor time (6 on two cores that many other jobs shared); the search has 2.4 times as many
    runs. Paper: not measured; 500 server steps, ten arms, five shares, five seeds.

Published: two panels without a table. CIFAR-10, ResNet-18, N = 100, Dirichlet 0.3, beta = 5, T = 500 server steps; 0
to 70 % of the clients leave at T / 2. ACED (tau_algo = 10) ends above ACE, CA2FL and vanilla, the more the more
clients leave; over tau_algo from 1 to 100 it is flat between 10 and 50.

Open choices: who leaves is drawn at random, and what they are at is lost. beta is the mean of a slow fifth of the
clients, the rest having mean 0.5 (see ace_fig2). tau_algo is written in units of N, because with one trip per server
step a client takes part every N steps on average: the paper's 10 ... 50 are N / 10 ... N / 2. "At T / 2" is late,
with the model nearly converged; leaving after 3 N steps is early: both are conditions. CA2FL takes M = 10 trips a
step: it is run for as many steps as the others (the paper's axis) and for as many trips, its clients leaving at the
same step and at the same trip. On paper size every arm takes the published rate.

Desk size: ace_fig2's: digits, softmax with L2 0.01, N = 20 all in flight, Dirichlet 0.1, the fifth of the clients
that is richest in labels 0-2 is 20 times slower. 2,000 client trips; none, 30 or 50 % leave after 60 or 1,000 steps.
Six server's rates from 0.01 to 3 for each arm and condition.
"""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.ace_fig2 import BUFFERED, DESK_WORLD, PAPER_BUFFERED, PAPER_WORLD, SLOW_FIFTH
from experiments.machinery import (
    Claim,
    Override,
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

ACE, CA2FL, CA2FL_STEPS, VANILLA = "ACE", "CA2FL", "CA2FL, ten times the trips", "vanilla"
MEMORIES = {"1 step": 1, "N / 2": 10, "2.5 N": 50, "10 N": 200}
PAPER_MEMORIES = {"N / 100": 1, "N / 20": 5, "N / 10": 10, "N / 5": 20, "N / 2": 50, "N": 100, "5 N": 500}


def aced(memory: str) -> str:
    """The label of ACED with that memory."""
    return f"ACED, {memory}"


def _memories(steps: dict[str, int]) -> dict[str, dict[str, Any]]:
    return {
        aced(name): {"algorithm": "aced", "rule_arguments": f"active_steps={number}"}
        for name, number in steps.items()
    }


OTHERS = (ACE, CA2FL, CA2FL_STEPS, VANILLA)
TRIPS, EARLY, LATE = 2000, 60, 1000
FRACTIONS = [0.0, 0.3, 0.5]
ARMS: dict[str, dict[str, Any]] = {
    ACE: {"algorithm": "ace"},
    **_memories(MEMORIES),
    CA2FL: {"algorithm": "ca2fl", **BUFFERED},
    CA2FL_STEPS: {"algorithm": "ca2fl", **BUFFERED, "server_steps": TRIPS},
    VANILLA: {"algorithm": "asgd", "buffer_size": 1},
}


def _with(ace: float, ca2fl: float, ca2fl_steps: float) -> dict[str, dict[str, float]]:
    """The winners of the search: these rates, and 0.1 for all other arms."""
    rates = dict.fromkeys(ARMS, 0.1) | {ACE: ace, CA2FL: ca2fl, CA2FL_STEPS: ca2fl_steps}
    return server_rates(rates)


TUNED = {
    "dropout_step=60,dropout_fraction=0": _with(0.1, 1.0, 0.3),
    "dropout_step=60,dropout_fraction=0.3": _with(0.03, 1.0, 1.0),
    "dropout_step=60,dropout_fraction=0.5": _with(0.03, 1.0, 1.0),
    "dropout_step=1000,dropout_fraction=0": _with(0.1, 1.0, 0.3),
    "dropout_step=1000,dropout_fraction=0.3": _with(0.03, 1.0, 0.3),
    "dropout_step=1000,dropout_fraction=0.5": _with(0.03, 0.3, 0.1),
}
NOBODY = Override({"dropout_fraction": 0.0}, None, {"dropout_step": None})


def _desk_claims(step: int, moment: str, fraction: float) -> list[Claim]:
    """What is judged when that share of the clients leaves at that step."""
    where = f"{fraction:.0%} leave {moment}"
    left, nobody_left = ({"dropout_step": step, "dropout_fraction": share} for share in (fraction, 0.0))
    comparisons = [
        *(("ACED (2.5 N) is above {worse}", aced("2.5 N"), worse, "seen") for worse in OTHERS),
        ("ACED (10 N) is above ACE", aced("10 N"), ACE, "seen"),
        ("flat from N / 2 to 2.5 N", aced("2.5 N"), aced("N / 2"), "a tie"),
        ("flat from 2.5 N to 10 N", aced("10 N"), aced("2.5 N"), "a tie"),
        ("a memory of one step is too short", aced("2.5 N"), aced("1 step"), "seen"),
    ]
    claims = [
        claim
        for sentence, better, worse, expected in comparisons
        for claim in compare(
            f"{sentence}, {where}", better, worse, under=left, expected=expected, scales=("desk",)
        )
    ]
    falls_less = Claim(
        sentence=f"ACED (2.5 N) loses less than ACE, {where}",
        differences=loses_less(aced("2.5 N"), ACE, nobody_left, left),
        scales=("desk",),
    )
    return [*claims, falls_less]


def _paper_claims() -> list[Claim]:
    best = aced("N / 10")
    return [
        *compare("ACED (N / 10) is above {worse}", best, (ACE, CA2FL, VANILLA), scales=("paper",)),
        *compare("flat from N / 10 to N / 2", best, aced("N / 2"), expected="a tie", scales=("paper",)),
    ]


def _pictures(runs: Runs, folder: pathlib.Path) -> None:
    """``dropout.png``: final accuracy against the share that leaves, and against ACED's memory, for each moment."""
    from jafl import plots
    from jafl.plots.canvas import COLORS, new_figure, per_cent
    from jafl.runs import tables

    moments = list(dict.fromkeys(condition.get("dropout_step") for condition in runs.conditions))
    fractions = list(dict.fromkeys(condition["dropout_fraction"] for condition in runs.conditions))
    memories = [label for label in runs.labels if label.startswith("ACED")]
    shown = [label for label in runs.labels if label not in memories or label == memories[len(memories) // 2]]
    figure, axes = new_figure(2, len(moments), 5.5 * len(moments), 7, sharey=True)

    def final_accuracies(label: str, moment: int | None, share: float) -> list[float]:
        """Of each seed."""
        condition = {"dropout_fraction": share} | ({"dropout_step": moment} if moment else {})
        return list(runs.values(label, final_accuracy, condition).values())

    def draw(panel: Any, places: Sequence[float], curves: Mapping[str, Sequence[tuple[str, float]]]) -> None:
        for colour, (name, points) in zip(COLORS, curves.items(), strict=False):
            values = [final_accuracies(label, moment, share) for label, share in points]
            errors = [tables.standard_error(accuracies) or 0.0 for accuracies in values]
            means = [np.mean(accuracies) for accuracies in values]
            panel.errorbar(places, means, errors, marker="o", capsize=3, color=colour, label=name)
        panel.spines[["top", "right"]].set_visible(False)

    for (above, below), moment in zip(axes.T, moments, strict=True):
        draw(above, fractions, {label: [(label, share) for share in fractions] for label in shown})
        above.set_title(
            f"they leave after {moment:,} server steps" if moment else "they leave at half of the run"
        )
        above.set(xlabel="share of the clients that leave", xticks=fractions)
        above.xaxis.set_major_formatter(per_cent)
        of_share = {f"{per_cent(share)} leave": [(label, share) for label in memories] for share in fractions}
        draw(below, range(len(memories)), of_share)
        below.set_xlabel("how long ACED remembers")
        below.set_xticks(range(len(memories)), [label.removeprefix("ACED, ") for label in memories])
    for row in axes:
        row[0].set_ylabel("final test accuracy (± standard error)")
        row[0].legend(frameon=False, fontsize=8)
    plots.save(figure, folder / "dropout.png")


EXPERIMENT = PaperExperiment(
    paper="ACE",
    figure="figure 3",
    title="clients that leave early or late, and ACED's memory",
    published=Published(
        note="Figure 3: with 0 to 70 % of the clients leaving at T / 2, ACED (tau_algo = 10) is above ACE, CA2FL and "
        "vanilla; it is flat for tau_algo in 10 to 50, lower for 1 and for 100 and more."
    ),
    scales={
        "paper": Scale(
            settings=PAPER_WORLD
            | {
                "dirichlet_alpha": 0.3,
                "delay_groups": SLOW_FIFTH[5],
                "server_steps": 500,
                "dropout_step": 250,
            },
            arms={
                ACE: {"algorithm": "ace"},
                **_memories(PAPER_MEMORIES),
                CA2FL: {"algorithm": "ca2fl", **PAPER_BUFFERED},
                VANILLA: {"algorithm": "asgd", "buffer_size": 1, "concurrency": 100},
            },
            conditions={"dropout_fraction": [0.0, 0.1, 0.3, 0.5, 0.7]},
            overrides=[NOBODY],
        ),
        "desk": Scale(
            settings=DESK_WORLD | {"client_trips": TRIPS},
            arms=ARMS,
            conditions={"dropout_step": [EARLY, LATE], "dropout_fraction": FRACTIONS},
            overrides=[
                # As many trips later, of which CA2FL takes ten a step.
                *(
                    Override({"dropout_step": step}, CA2FL, {"dropout_step": step // 10})
                    for step in (EARLY, LATE)
                ),
                NOBODY,
            ],
            search=Search(
                space={"server_learning_rate": [0.01, 0.03, 0.1, 0.3, 1.0, 3.0]},
                seeds=(100, 101),
            ),
            tuned=TUNED,
            minutes=3.3,
            hardware="processor time of one CPU core",
        ),
    },
    claims=[
        *(
            claim
            for step, moment in ((EARLY, "early"), (LATE, "late"))
            for fraction in FRACTIONS[1:]
            for claim in _desk_claims(step, moment, fraction)
        ),
        *_paper_claims(),
    ],
    pictures=_pictures,
)
