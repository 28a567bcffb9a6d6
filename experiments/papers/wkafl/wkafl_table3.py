"""WKAFL (Zhou, Li, Ren et al. 2022), table 3: accuracy and stability with 1, 5 and 10 labels per client.

Command: python run.py experiment wkafl_table3
    --tune searches for the learning rates first; --scale=paper takes EMNIST MNIST and CIFAR-10, once
    ``run.py prepare emnist/mnist`` and ``run.py prepare cifar10`` have been run.

Published: the table below. WKAFL's accuracy is the highest but for CIFAR-10 with 5 and 10 labels, where TWAFL's is;
GSGM is the most stable, and WKAFL more so than TWAFL and SASGD, but for CIFAR-10 with one label, where SASGD is more
stable. The text has all four rules less stable with fewer labels (section 6.3.2), where the table has GSGM on
CIFAR-10 more stable with one label than with ten. TWAFL's accuracy on CIFAR-10 at P / K = 3000/20 with one label is
.4141 here and .4241 in table 2.

Open choices: stability is "the standard deviation of the last ten accuracies under logarithmic coordinates": both the
plain standard deviation and that of the natural logarithms are printed; the claims are judged by the second. How
often the paper evaluates is not said: here a hundred times a run, so that the last ten span its last tenth. P / K is
the text's: 3000/10 on EMNIST, 3000/20 on CIFAR-10; the row of EMNIST with 5 labels holds TWAFL's and SASGD's numbers
of table 2's 3000/20. Data, durations and rates as in ``wkafl_table2``.

What changed: earlier versions had a rate for each number of labels, though how steady a rule is follows its rate, and
judged for WKAFL alone whether fewer labels make a rule less steady. Protocol version 1 searched on a coarser grid;
all seeds are new.

Desk size: CIFAR-10 and LeNet differ from EMNIST by a harder problem, which is not convex, and by the release's other
numbers: here MNIST-1D, new for each seed, with an MLP 40-64-10, batch 8 and WKAFL's numbers for CIFAR-10
(``wkafl_table2`` says which); P = 1,500, K = 10 (P / K = 150, as in the paper's table), 1,000 steps. The accuracy is
far from its ceiling there. The plain mean of the K gradients, without and with momentum 0.9, is no part of the
paper's table. Ten searches for each rule, one rate for all numbers of labels: the server's rate is at first from 0.01
to 0.98, from 0.2 to 19.5 for TWAFL and SASGD, whose weights shorten the step, and from 0.001 to 0.098 for the mean
with momentum, which makes steps up to ten times as long. Results of twenty seeds. The world is that of
``wkafl_fig10``, with other seeds and one arm more: WKAFL with stage two by the sum of the losses, as in algorithm 2.
Most steps are in stage two here, and none with the sum. The two arms still hardly differ: stage two clips a selected
gradient only where its norm is above B = 5 times the estimate's (equation 9), which hardly ever happens here.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.harness import (
    Analysis,
    Claim,
    Margin,
    Override,
    PaperExperiment,
    Published,
    Scale,
    Search,
    change,
    compare,
    final_accuracy,
    logarithmic_spread,
    spread,
)
from experiments.papers.wkafl.wkafl_table2 import (
    ARMS,
    BY_SUM,
    BY_SUM_ON_CIFAR,
    GSGM,
    LARGER,
    LEFT_OUT,
    PAPER_DATA,
    PAPER_SEARCH,
    RATES,
    SASGD,
    SUM_AS_MEAN,
    TWAFL,
    WITH_SUM,
    WKAFL,
    WKAFL_ON_CIFAR,
    WORDS,
    WORLD,
    above_left_out,
    in_flight,
    in_stage_two,
)

FOUR = {label: ARMS[label] for label in (WKAFL, TWAFL, GSGM, SASGD)}
LABELS = [1, 5, 10]
PUBLISHED: dict[tuple[Any, ...], list[str]] = {
    ("emnist/mnist", 1): [".9728", ".9572", ".9057", ".8553", ".0060", ".0107", ".0032", ".0834"],
    ("emnist/mnist", 5): [".9754", ".9649", ".908", ".8753", ".0068", ".0095", ".0027", ".0237"],
    ("emnist/mnist", 10): [".9658", ".9623", ".9075", ".8619", ".0036", ".0060", ".0018", ".0206"],
    ("cifar10", 1): [".4368", ".4141", ".3568", ".2560", ".0284", ".0464", ".0135", ".0226"],
    ("cifar10", 5): [".4443", ".4454", ".3568", ".2855", ".0133", ".0300", ".0083", ".0141"],
    ("cifar10", 10): [".4489", ".4525", ".3430", ".2874", ".0180", ".0260", ".0144", ".0189"],
}


def _beside(condition: Mapping[str, Any], label: str) -> str:
    row = PUBLISHED.get((condition.get("dataset"), condition["partition.labels_per_client"]))
    if row is None:
        return "-"
    place = list(FOUR).index(label)
    return f"{row[place]}, stability {row[4 + place]}"


def printed(
    first: str, second: str, dataset: str, labels: Sequence[int] = LABELS, *, stability: bool = False
) -> str:
    """The table's accuracies or stabilities of two rules, the first rule's before the second's.

    labels: the numbers of labels per client that count.
    """
    places = [list(FOUR).index(label) + (len(FOUR) if stability else 0) for label in (first, second)]
    pairs = (" : ".join(PUBLISHED[dataset, number][place] for place in places) for number in labels)
    note = f" ({' / '.join(map(str, labels))} labels)" if len(labels) > 1 else ""
    return " / ".join(pairs) + note


def printed_change(label: str, dataset: str) -> str:
    """The table's stabilities of a rule with one label and with ten."""
    place = len(FOUR) + list(FOUR).index(label)
    return f"{PUBLISHED[dataset, 1][place]} : {PUBLISHED[dataset, 10][place]}"


# Unsaturated, not convex, other examples for each seed; see ``wkafl_fig8``.
HARDER = WORLD | {
    "dataset": "mnist_1d",
    "split.resample": True,
    "model": "mlp",
    "model.hidden_sizes": [64],
    "batch_size": 8,
    "server_steps": 1000,
    "target_accuracy": 0.28,
}
SEARCH = Search(
    space={"server_learning_rate": RATES}, spaces=LARGER, searches=10, seeds=tuple(range(400, 410))
)
STEADIER = "{better} is steadier than {worse}"
# With the seeds of ``wkafl_fig10``; this table's are others.
DESK_SCALE = Scale(
    settings=HARDER | in_flight(1500),
    arms={**FOUR, BY_SUM: {**WITH_SUM[BY_SUM], **BY_SUM_ON_CIFAR}, **LEFT_OUT},
    conditions={"partition.labels_per_client": LABELS},
    overrides=[Override({}, WKAFL, WKAFL_ON_CIFAR)],
    search=dataclasses.replace(SEARCH, seeds=tuple(range(410, 420)), per_condition=False),
    seeds=tuple(range(300, 320)),
    analysis=Analysis(
        primary=STEADIER.format(better=WKAFL, worse=TWAFL),
        under={"partition.labels_per_client": 1},
        seeds=20,
        margin=Margin(0.01),
        spread=0.018,
        source="a pilot with seeds 1000 to 1002, P / K = 100 and 300, and rates that were not searched for",
        difference=0.0135,
        correction=0.0,
    ),
)
PAPER_SETTINGS = WORLD | in_flight(3000)


def _table_claims(world: dict[str, Any], scale: str, *, on_cifar: bool) -> list[Claim]:
    """What table 3 has of one data set; the desk world stands for CIFAR-10.

    There TWAFL's accuracy is level with five and ten labels, and SASGD is the steadier one with one label.
    """
    claims = []
    dataset = "cifar10" if on_cifar else "emnist/mnist"
    for rival in (TWAFL, GSGM, SASGD):
        for number in LABELS:
            level = on_cifar and rival == TWAFL and number > 1
            claims += compare(
                "WKAFL is as accurate as {worse}" if level else "WKAFL is more accurate than {worse}",
                WKAFL,
                rival,
                under={**world, "partition.labels_per_client": number},
                expected="equivalent" if level else "better",
                scales=(scale,),
                published=printed(WKAFL, rival, dataset, [number]),
            )
    steadier: dict[str, Any] = {
        "measure": logarithmic_spread,
        "lower_is_better": True,
        "scales": (scale,),
    }
    for pair in ((WKAFL, TWAFL), (GSGM, WKAFL)):
        numbers = printed(*pair, dataset, stability=True)
        claims += compare(STEADIER, *pair, under=world, published=numbers, **steadier)
    for number in LABELS:
        pair = (SASGD, WKAFL) if on_cifar and number == 1 else (WKAFL, SASGD)
        numbers = printed(*pair, dataset, [number], stability=True)
        under = {**world, "partition.labels_per_client": number}
        claims += compare(STEADIER, *pair, under=under, published=numbers, **steadier)
    return claims


EXPERIMENT = PaperExperiment(
    paper="WKAFL",
    figure="table 3",
    title="accuracy and stability with 1, 5 and 10 labels per client, against TWAFL, GSGM and SASGD",
    published=Published(
        heading=["data", "labels", *FOUR, *(f"{label} stability" for label in FOUR)],
        rows=[[name, str(number), *row] for (name, number), row in PUBLISHED.items()],
    ),
    scales={
        "paper": Scale(
            settings=PAPER_SETTINGS,
            arms=FOUR,
            conditions={"dataset": ["emnist/mnist", "cifar10"], "partition.labels_per_client": LABELS},
            overrides=[*PAPER_DATA, Override({"dataset": "cifar10"}, None, {"buffer_size": 20})],
            search=PAPER_SEARCH,
            seeds=(0, 1, 2),
        ),
        "desk": dataclasses.replace(
            DESK_SCALE,
            search=dataclasses.replace(SEARCH, seeds=tuple(range(430, 440)), per_condition=False),
            seeds=tuple(range(340, 360)),
        ),
    },
    columns={
        "final accuracy": final_accuracy,
        "spread": spread,
        "spread of logarithms": logarithmic_spread,
        "steps in stage two": in_stage_two,
    },
    beside=_beside,
    claims=[
        *_table_claims({}, "desk", on_cifar=True),
        *_table_claims({"dataset": "emnist/mnist"}, "paper", on_cifar=False),
        *_table_claims({"dataset": "cifar10"}, "paper", on_cifar=True),
        *compare(SUM_AS_MEAN, BY_SUM, WKAFL, expected="equivalent", scales=("desk",), own=True),
        *above_left_out(),
        *(
            Claim(
                sentence=f"{rule} is less steady with one label than with ten",
                differences=change(
                    rule,
                    logarithmic_spread,
                    {"partition.labels_per_client": 10},
                    {"partition.labels_per_client": 1},
                ),
                scales=("desk",),
                published=printed_change(rule, "cifar10"),
            )
            for rule in FOUR
        ),
    ],
    words=WORDS,
)
