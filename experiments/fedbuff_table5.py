"""FedBuff (Nguyen et al. 2022), table 5: speed-up over FedAvgM and FedAsync under three laws of durations.

Command: python run.py --experiment=fedbuff_table5
    --scale=paper takes CelebA and Sent140, once ``run.py --prepare=...`` has been run for them.

Minutes: desk 2, on one core of a busy machine.
    Paper: not run here (no data); 54 runs of 600,000 trips.

Published: the table below; concurrency 1,000, K = 10.

Open choices: the laws' parameters do not matter, as the unit of time cancels; uniform is from 0 to 2, half-normal and
exponential have mean 1. Whether rates were searched for under each law is not said: on paper size all have table 4's,
on desk size fedbuff_table1's, found with half-normal durations; nothing is searched for here. Trips of synchronous
rounds do not depend on the law.

Desk size: fedbuff_table1's federation, runs and target, ten seeds.
"""

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from experiments import fedbuff_table1 as table1
from experiments.fedbuff_table1 import FEDASYNC, FEDAVGM, FEDBUFF, to_target
from experiments.machinery import Claim, Override, PaperExperiment, Published, Runs, Scale, final_accuracy

ARMS = {label: table1.ARMS[label] for label in (FEDBUFF, FEDASYNC, FEDAVGM)}
LAWS = ["uniform", "half_normal", "exponential"]
SPEED_UPS = {
    ("celeb_a", FEDAVGM): ("4.7", "3.3", "4.3"),
    ("celeb_a", FEDASYNC): ("1.6", "1.2", "1.1"),
    ("sentiment140", FEDAVGM): ("1.3", "1.7", "1.4"),
    ("sentiment140", FEDASYNC): ("1.2", "2.5", "2.0"),
}


def beside(condition: Mapping[str, Any], label: str) -> str:
    """FedBuff's published speed-up over the arm, CelebA's and Sent140's or that of the condition's task."""
    tasks = [condition["dataset"]] if "dataset" in condition else ["celeb_a", "sentiment140"]
    place = LAWS.index(condition["delay"])
    told = [SPEED_UPS[task, label][place] for task in tasks if (task, label) in SPEED_UPS]
    return " / ".join(told) or "1"


def both_ran(runs: Runs, law: str) -> bool:
    """Whether there are runs under a law and under half-normal durations; a shortened experiment may have but one."""
    return {law, "half_normal"} <= {one["delay"] for one in runs.conditions}


def changes(runs: Runs, law: str) -> list[float]:
    """FedAvgM's trips under a law minus those under half-normal durations."""
    if not both_ran(runs, law):
        return []
    one, other = (runs.values(FEDAVGM, to_target, {"delay": name}) for name in (law, "half_normal"))
    return [one[seed] - other[seed] for seed in one]


def speed_up(runs: Runs, other: str, law: str) -> Any:
    """[seeds]: trips of another arm, divided by FedBuff's."""
    own, there = (runs.values(label, to_target, {"delay": law}) for label in (FEDBUFF, other))
    return np.array([there[seed] / own[seed] for seed in own])


def speed_up_changes(runs: Runs, law: str) -> Any:
    """[seeds]: the speed-up over FedAvgM under a law minus that under half-normal durations."""
    if not both_ran(runs, law):
        return []
    return speed_up(runs, FEDAVGM, law) - speed_up(runs, FEDAVGM, "half_normal")


EXPERIMENT = PaperExperiment(
    paper="FedBuff",
    figure="table 5",
    title="speed-up over FedAvgM and FedAsync with uniform, half-normal and exponential durations",
    published=Published(
        heading=["speed-up of FedBuff over", *LAWS],
        rows=[
            [f"{name}, {other}", *SPEED_UPS[task, other]]
            for task, name in (("celeb_a", "CelebA"), ("sentiment140", "Sent140"))
            for other in (FEDAVGM, FEDASYNC)
        ],
        note="Beside the measured numbers: FedBuff's speed-up over the arm, CelebA / Sent140.",
    ),
    scales={
        "desk": Scale(
            settings=table1.WORLD,
            arms=ARMS,
            conditions={"delay": LAWS},
            seeds=tuple(range(10)),
            tuned={"": {label: table1.TUNED[label] for label in ARMS}},
            minutes=2,
            hardware="one core of a busy machine",
        ),
        "paper": Scale(
            settings={name: value for name, value in table1.PAPER_WORLD.items() if name != "delay"},
            arms=ARMS | {FEDBUFF: ARMS[FEDBUFF] | table1.AS_PUBLISHED},
            conditions={"dataset": ["celeb_a", "sentiment140"], "delay": LAWS},
            overrides=[one for one in table1.OF_TASK if one.condition["dataset"] != "cifar10"]
            + [
                Override({"dataset": task}, arm, table1.published_rates(task, arm))
                for task in ("celeb_a", "sentiment140")
                for arm in ARMS
            ],
            seeds=(0, 1, 2),
            minutes=float("nan"),
            hardware="not measured",
        ),
    },
    columns={"trips to the target": to_target, "final accuracy": final_accuracy},
    beside=beside,
    claims=[
        *(
            Claim(
                sentence=f"FedBuff needs fewer trips than {other}",
                better=FEDBUFF,
                worse=other,
                measure=to_target,
                lower_is_better=True,
            )
            for other in (FEDAVGM, FEDASYNC)
        ),
        *(
            Claim(
                sentence=f"the speed-up over FedAvgM is the same with {law} as with half-normal durations",
                differences=functools.partial(speed_up_changes, law=law),
                expected="a tie",
                scales=("desk",),
            )
            for law in ("uniform", "exponential")
        ),
        Claim(
            sentence="FedAvgM's trips are the same with uniform as with half-normal durations",
            differences=lambda runs: changes(runs, "uniform"),
            expected="a tie",
            scales=("desk",),
        ),
    ],
)
