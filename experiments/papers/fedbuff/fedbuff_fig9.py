"""FedBuff (Nguyen et al. 2022), figures 9, 10 and 11: training accuracy of FedBuff, FedAsync and FedAvgM.

Command: python run.py experiment fedbuff_fig9 --tune
    --tune searches for the rates again; without it the ones that were found before are used. --scale=paper takes
    Sent140 (figure 9), CelebA (10) and CIFAR-10 (11), once ``run.py prepare ...`` has been run.

Published: three figures without tables, one per data set: training accuracy over client trips. Section C.7 claims
that the curves hardly depend on the law of durations, synchronous rounds not at all, and that K = 10 is quickest
(its curves for other K are left to fedbuff_table2). That FedBuff lies above the others is our reading of the
curves.

Open choices: training accuracy is taken as that of the global model on all training examples. Where the curves are
compared is not said: on paper size at 60,000 trips, a tenth of the budget, which is nearly what FedBuff needs to
CIFAR-10's target (table 1). Paper size has table 4's rates.

Desk size: fedbuff_table1's federation with MNIST-1D, 30,000 trips, under three laws of durations; claims are of
training accuracy at 10,000 trips, ten rounds of FedAvgM. FedBuff with a constant staleness weight, the plain mean of
ten trips, stands beside the figure's rules: the paper leaves it out. Five searches for each arm and law, by
validation accuracy at 10,000 trips: the server's rate is at first from .16 to 6.25, the clients' from .16 to 2.5,
momentum 0 or .9. FedAsync, which has no momentum, gets twice as many server's rates, at first from .0004 to 1.53; its
clients' rate is at first from .8 to 12.5, because earlier searches found larger ones for it. Results of 20 seeds.
FedAvgM's numbers differ between laws only where its searches end at different rates.

What changed: FedBuff with a constant weight is new.
"""

import pathlib

import numpy as np

from experiments.harness import (
    ACCURACY_MARGIN,
    Analysis,
    Claim,
    Measure,
    PaperExperiment,
    Published,
    Runs,
    Scale,
    Search,
    change,
    compare,
    final,
)
from experiments.papers.fedbuff import fedbuff_table1 as table1
from experiments.papers.fedbuff.fedbuff_table1 import FEDASYNC, FEDAVGM, FEDBUFF, NAMES
from experiments.papers.fedbuff.fedbuff_table5 import ARMS, HALF_NORMAL, LAWS, PAPER_WORLD
from jafl.runs.directory.reader import PastRun


def curve(run: PastRun) -> tuple[list[float], list[float]]:
    """The client trips and training accuracies of a run's evaluations."""
    trips = [evaluation["client_trips"] for evaluation in run.evaluations]
    return trips, [evaluation["train_accuracy"] for evaluation in run.evaluations]


def training_accuracy(trips: int) -> Measure:
    """A measure: training accuracy at so many client trips, or at the end of a shorter run."""
    return lambda run: float(np.interp(trips, *curve(run)))


CONSTANT = "FedBuff, constant weight"
DESK_ARMS = ARMS | {CONSTANT: {**ARMS[FEDBUFF], "algorithm": "fedbuff(staleness_weight=constant)"}}
# Trips at which the curves are compared, by size.
AT = {"desk": 10_000, "paper": 60_000}
EARLY = {scale: training_accuracy(trips) for scale, trips in AT.items()}
ABOVE = "FedBuff's training accuracy is above {worse}'s at {trips:,} trips"


def above(scale: str, rival: str, **fields: object) -> list[Claim]:
    """The claim that FedBuff's training accuracy is above an arm's, at one size."""
    sentence = ABOVE.format(worse=rival, trips=AT[scale])
    return compare(
        sentence, FEDBUFF, rival, measure=EARLY[scale], scales=(scale,), published="a figure", **fields
    )


def same(scale: str, law: str, condition: dict[str, str], name: str = "") -> Claim:
    """The claim that FedBuff's training accuracy does not depend on the law, at one size."""
    before, after = {**condition, **HALF_NORMAL}, {**condition, "delay": law}
    return Claim(
        sentence=f"FedBuff's training accuracy is the same with {law} as with half-normal durations{name}",
        differences=change(FEDBUFF, EARLY[scale], before, after),
        expected="equivalent",
        margin=ACCURACY_MARGIN,
        scales=(scale,),
        published="a figure",
    )


def validation_accuracy(run: PastRun) -> float:
    """The last validation accuracy, which the trials of the search are judged by; 0 if the run diverged."""
    return 0.0 if run.status == "diverged" else float(run.evaluations[-1]["validation_accuracy"])


def draw(runs: Runs, folder: pathlib.Path) -> None:
    """``training.png``: training accuracy over client trips, mean over seeds, a panel per condition."""
    from jafl.plots.canvas import new_figure, save, thousands

    figure, axes = new_figure(1, len(runs.conditions), 3.6 * len(runs.conditions), 3.4, sharey=True)
    for panel, condition in zip(axes[0], runs.conditions, strict=True):
        for label in runs.labels:
            curves = [curve(run) for run in runs.of(label, condition).values()]
            trips, _ = curves[0]
            accuracy = np.mean([np.interp(trips, *points) for points in curves], axis=0)
            panel.plot(trips, accuracy, label=label)
        panel.set_title(", ".join(map(str, condition.values())), fontsize="medium")
        panel.xaxis.set_major_formatter(thousands)
        panel.set_xlabel("client trips")
    axes[0, 0].set_ylabel("training accuracy")
    axes[0, 0].legend()
    save(figure, folder / "training.png")


EXPERIMENT = PaperExperiment(
    paper="FedBuff",
    figure="figures 9-11",
    title="training accuracy over trips under three laws of durations: FedBuff, FedAsync, FedAvgM",
    published=Published(
        note="Curves of Sent140, CelebA and CIFAR-10: as we read them, FedBuff is above FedAsync and FedAvgM "
        "under each law. " + table1.WITHOUT_GLOVE
    ),
    scales={
        "desk": Scale(
            settings=table1.WORLD | {"client_trips": 30_000, "evaluate_every": 2500, "train_accuracy": True},
            arms=DESK_ARMS,
            conditions={"delay": LAWS},
            search=Search(
                space=table1.WITH_MOMENTUM,
                spaces={FEDASYNC: table1.OF_FEDASYNC},
                seeds=tuple(range(400, 405)),
                settings=table1.VALIDATION | {"client_trips": AT["desk"], "train_accuracy": False},
                score=validation_accuracy,
            ),
            seeds=table1.SEEDS,
            analysis=Analysis(
                primary=ABOVE.format(worse=FEDAVGM, trips=AT["desk"]),
                under=HALF_NORMAL,
                seeds=20,
                margin=ACCURACY_MARGIN,
                spread=0.05,
                source="fedbuff_table1's pilot seeds: test accuracy of FedBuff at 10,000 trips spreads by .04",
                difference=0.05,
                correction=0.0,
            ),
        ),
        "paper": table1.paper_scale(
            table1.as_published(ARMS),
            {arm: arm for arm in ARMS},
            tasks=["sentiment140", "celeb_a", "cifar10"],
            conditions={"delay": LAWS},
            settings=PAPER_WORLD | {"train_accuracy": True, "evaluate_every": 12_000},
        ),
    },
    columns={
        "training accuracy at 10,000 trips": EARLY["desk"],
        "at 20,000": training_accuracy(20_000),
        "at the end": final("train_accuracy", 1),
    },
    pictures=draw,
    claims=[
        *(claim for scale in AT for rival in (FEDAVGM, FEDASYNC) for claim in above(scale, rival)),
        *compare(
            "{better}'s training accuracy is above that of {worse}, which the paper leaves out, at 10,000 trips",
            FEDBUFF,
            CONSTANT,
            measure=EARLY["desk"],
            scales=("desk",),
            own=True,
        ),
        *(same("desk", law, {}) for law in ("uniform", "exponential")),
        *(
            same("paper", law, {"dataset": task}, f", {NAMES[task]}")
            for task in ("sentiment140", "celeb_a", "cifar10")
            for law in ("uniform", "exponential")
        ),
    ],
    words=table1.LAWS,
)
