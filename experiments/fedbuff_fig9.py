"""FedBuff (Nguyen et al. 2022), figures 9, 10 and 11: training accuracy of FedBuff, FedAsync and FedAvgM.

Command: python run.py --experiment=fedbuff_fig9
    --scale=paper takes Sent140 (figure 9), CelebA (10) and CIFAR-10 (11), once ``run.py --prepare=...`` has been run.

Minutes: desk 4.5 where others had nearly all of two cores (261 s for 45 runs).
    Paper: not run here (no data); 81 runs of 600,000 trips.

Published: three figures without tables, one per data set: training accuracy over client trips. FedBuff's curve lies
above the others and hardly depends on the law of durations; synchronous rounds do not feel the law at all.

Open choices: training accuracy is taken as that of the global model on all training examples. Rates: table 4's on
paper size, fedbuff_table1's on desk size; nothing is searched for here.

Desk size: fedbuff_table1's federation, 3,000 trips, under three laws of durations, five seeds. Claims are of training
accuracy at 1,500 trips, five rounds of FedAvgM.
"""

import functools
import pathlib

import numpy as np

from experiments import fedbuff_table1 as table1
from experiments.fedbuff_table1 import FEDASYNC, FEDAVGM, FEDBUFF
from experiments.fedbuff_table5 import ARMS, LAWS, both_ran
from experiments.machinery import Claim, Override, PaperExperiment, Published, Runs, Scale, final
from experiments.machinery.measures import Measure
from jafl.runs.reader import PastRun


def training_accuracy(trips: int) -> Measure:
    """A measure: training accuracy at so many client trips, or at the end of a shorter run."""

    def measure(run: PastRun) -> float:
        places = [one["client_trips"] for one in run.evaluations]
        return float(np.interp(trips, places, [one["train_accuracy"] for one in run.evaluations]))

    return measure


EARLY = training_accuracy(1500)


def shift(runs: Runs, label: str, law: str) -> list[float]:
    """Training accuracy under a law minus that under half-normal durations."""
    if not both_ran(runs, law):
        return []
    one, other = (runs.values(label, EARLY, {"delay": name}) for name in (law, "half_normal"))
    return [one[seed] - other[seed] for seed in one]


def draw(runs: Runs, folder: pathlib.Path) -> None:
    """``training.png``: training accuracy over client trips, mean over seeds, a panel per condition."""
    from jafl.plots.canvas import new_figure, save

    figure, axes = new_figure(1, len(runs.conditions), 3.6 * len(runs.conditions), 3.4, sharey=True)
    for panel, condition in zip(axes[0], runs.conditions, strict=True):
        for label in runs.labels:
            several = list(runs.of(label, condition).values())
            places = [one["client_trips"] for one in several[0].evaluations]
            curves = [
                np.interp(
                    places,
                    [one["client_trips"] for one in run.evaluations],
                    [one["train_accuracy"] for one in run.evaluations],
                )
                for run in several
            ]
            panel.plot(places, np.mean(curves, axis=0), label=label)
        panel.set_title(", ".join(map(str, condition.values())), fontsize="medium")
        panel.set_xlabel("client trips")
    axes[0, 0].set_ylabel("training accuracy")
    axes[0, 0].legend()
    save(figure, folder / "training.png")


EXPERIMENT = PaperExperiment(
    paper="FedBuff",
    figure="figures 9-11",
    title="training accuracy over trips under three laws of durations: FedBuff, FedAsync, FedAvgM",
    published=Published(
        note="Curves of Sent140, CelebA and CIFAR-10: FedBuff above FedAsync and FedAvgM, whatever the law."
    ),
    scales={
        "desk": Scale(
            settings=table1.WORLD | {"client_trips": 3000, "train_accuracy": True},
            arms=ARMS,
            conditions={"delay": LAWS},
            tuned={"": {label: table1.TUNED[label] for label in ARMS}},
            minutes=4.5,
            hardware="a share of one core of a very busy machine",
        ),
        "paper": Scale(
            settings={name: value for name, value in table1.PAPER_WORLD.items() if name != "delay"}
            | {"train_accuracy": True, "evaluate_every": 10_000},
            arms=ARMS | {FEDBUFF: ARMS[FEDBUFF] | table1.AS_PUBLISHED},
            conditions={"dataset": ["sentiment140", "celeb_a", "cifar10"], "delay": LAWS},
            overrides=table1.OF_TASK
            + [
                Override({"dataset": task}, arm, table1.published_rates(task, arm))
                for task in table1.TASKS
                for arm in ARMS
            ],
            seeds=(0, 1, 2),
            minutes=float("nan"),
            hardware="not measured",
        ),
    },
    columns={
        "training accuracy at 1,500 trips": EARLY,
        "at 3,000": training_accuracy(3000),
        "final training accuracy": final("train_accuracy", 1),
    },
    pictures=draw,
    claims=[
        *(
            Claim(
                sentence=f"FedBuff's training accuracy is above {other}'s at 1,500 trips",
                better=FEDBUFF,
                worse=other,
                measure=EARLY,
                scales=("desk",),
            )
            for other in (FEDAVGM, FEDASYNC)
        ),
        *(
            Claim(
                sentence=f"FedBuff's training accuracy is the same with {law} as with half-normal durations",
                differences=functools.partial(shift, label=FEDBUFF, law=law),
                expected="a tie",
                scales=("desk",),
            )
            for law in ("uniform", "exponential")
        ),
    ],
)
