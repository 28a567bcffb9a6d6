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

import pathlib

import numpy as np

from experiments import fedbuff_table1 as table1
from experiments.fedbuff_table1 import FEDASYNC, FEDAVGM, FEDBUFF
from experiments.fedbuff_table5 import ARMS, HALF_NORMAL, LAWS, PAPER_WORLD
from experiments.machinery import (
    Claim,
    Measure,
    PaperExperiment,
    Published,
    Runs,
    Scale,
    change,
    compare,
    final,
)
from jafl.runs.reader import PastRun


def curve(run: PastRun) -> tuple[list[float], list[float]]:
    """The client trips and training accuracies of a run's evaluations."""
    trips = [evaluation["client_trips"] for evaluation in run.evaluations]
    return trips, [evaluation["train_accuracy"] for evaluation in run.evaluations]


def training_accuracy(trips: int) -> Measure:
    """A measure: training accuracy at so many client trips, or at the end of a shorter run."""
    return lambda run: float(np.interp(trips, *curve(run)))


EARLY = training_accuracy(1500)


def draw(runs: Runs, folder: pathlib.Path) -> None:
    """``training.png``: training accuracy over client trips, mean over seeds, a panel per condition."""
    from jafl.plots.canvas import new_figure, save

    figure, axes = new_figure(1, len(runs.conditions), 3.6 * len(runs.conditions), 3.4, sharey=True)
    for panel, condition in zip(axes[0], runs.conditions, strict=True):
        for label in runs.labels:
            curves = [curve(run) for run in runs.of(label, condition).values()]
            trips, _ = curves[0]
            accuracy = np.mean([np.interp(trips, *points) for points in curves], axis=0)
            panel.plot(trips, accuracy, label=label)
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
        "paper": table1.paper_scale(
            table1.as_published(ARMS),
            {arm: arm for arm in ARMS},
            tasks=["sentiment140", "celeb_a", "cifar10"],
            conditions={"delay": LAWS},
            settings=PAPER_WORLD | {"train_accuracy": True, "evaluate_every": 10_000},
        ),
    },
    columns={
        "training accuracy at 1,500 trips": EARLY,
        "at 3,000": training_accuracy(3000),
        "final training accuracy": final("train_accuracy", 1),
    },
    pictures=draw,
    claims=[
        *compare(
            "FedBuff's training accuracy is above {worse}'s at 1,500 trips",
            FEDBUFF,
            (FEDAVGM, FEDASYNC),
            measure=EARLY,
            scales=("desk",),
        ),
        *(
            Claim(
                sentence=f"FedBuff's training accuracy is the same with {law} as with half-normal durations",
                differences=change(FEDBUFF, EARLY, HALF_NORMAL, {"delay": law}),
                expected="a tie",
                scales=("desk",),
            )
            for law in ("uniform", "exponential")
        ),
    ],
)
