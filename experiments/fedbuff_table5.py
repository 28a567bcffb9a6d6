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
from experiments.fedbuff_table1 import CLIENTS_GIVEN, FEDASYNC, FEDAVGM, FEDBUFF, FEWER_TRIPS, to_target
from experiments.machinery import (
    Claim,
    PaperExperiment,
    Published,
    Runs,
    Scale,
    change,
    compare,
    final_accuracy,
)

ARMS = {label: table1.ARMS[label] for label in (FEDBUFF, FEDASYNC, FEDAVGM)}
LAWS = ["uniform", "half_normal", "exponential"]
HALF_NORMAL = {"delay": "half_normal"}
# Paper size, but for the law.
PAPER_WORLD = {name: value for name, value in table1.PAPER_WORLD.items() if name != "delay"}
SPEED_UPS = {
    ("celeb_a", FEDAVGM): ("4.7", "3.3", "4.3"),
    ("celeb_a", FEDASYNC): ("1.6", "1.2", "1.1"),
    ("sentiment140", FEDAVGM): ("1.3", "1.7", "1.4"),
    ("sentiment140", FEDASYNC): ("1.2", "2.5", "2.0"),
}


def beside(condition: Mapping[str, Any], label: str) -> str:
    """FedBuff's published speed-up over the arm, CelebA's and Sent140's or that of the condition's task."""
    if label == FEDBUFF:
        return "1"
    place = LAWS.index(condition["delay"])
    return table1.of_tasks(condition, {task: SPEED_UPS[task, label][place] for task in CLIENTS_GIVEN})


def speed_up(runs: Runs, condition: Mapping[str, Any]) -> Any:
    """[seeds]: FedAvgM's trips divided by FedBuff's."""
    fedbuff, fedavgm = (runs.values(label, to_target, condition) for label in (FEDBUFF, FEDAVGM))
    return np.array([fedavgm[seed] / fedbuff[seed] for seed in fedbuff])


def speed_up_changes(runs: Runs, law: str) -> Any:
    """[seeds]: the speed-up over FedAvgM under a law minus that under half-normal durations."""
    condition = {"delay": law}
    if not runs.has_run(condition, HALF_NORMAL):
        return []
    return speed_up(runs, condition) - speed_up(runs, HALF_NORMAL)


EXPERIMENT = PaperExperiment(
    paper="FedBuff",
    figure="table 5",
    title="speed-up over FedAvgM and FedAsync with uniform, half-normal and exponential durations",
    published=Published(
        heading=["speed-up of FedBuff over", *LAWS],
        rows=[
            [f"{name}, {rival}", *SPEED_UPS[task, rival]]
            for task, name in CLIENTS_GIVEN.items()
            for rival in (FEDAVGM, FEDASYNC)
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
        "paper": table1.paper_scale(
            table1.as_published(ARMS),
            {arm: arm for arm in ARMS},
            tasks=list(CLIENTS_GIVEN),
            conditions={"delay": LAWS},
            settings=PAPER_WORLD,
        ),
    },
    columns={"trips to the target": to_target, "final accuracy": final_accuracy},
    beside=beside,
    claims=[
        *compare("FedBuff needs fewer trips than {worse}", FEDBUFF, (FEDAVGM, FEDASYNC), **FEWER_TRIPS),
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
            differences=change(FEDAVGM, to_target, HALF_NORMAL, {"delay": "uniform"}),
            expected="a tie",
            scales=("desk",),
        ),
    ],
)
