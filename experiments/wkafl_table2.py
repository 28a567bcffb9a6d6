"""WKAFL (Zhou, Li, Ren et al. 2021), table 2: final accuracy at three levels of staleness P / K.

Command: python run.py --experiment=wkafl_table2
    --tune searches for the learning rates first; --scale=paper takes EMNIST MNIST and CIFAR-10, once
    ``run.py --prepare=emnist/mnist`` and ``--prepare=cifar10`` have been run.

Minutes: desk: 3, with --tune 11, on two cores of a busy machine. Paper: not measured; 5,000 (EMNIST) and 10,000
    (CIFAR-10) server steps of 10 or 20 trips, five arms, three seeds; not run here.

Published: the table below. WKAFL is above TWAFL, which is above SASGD, at every level; from P / K = 100 to 300 on
EMNIST WKAFL loses .0006, TWAFL .0048, SASGD .0766; from 50 to 300 on CIFAR-10 .0463, .0778 and .1279.

Open choices: the paper names no law of durations. Its release draws the K participants uniformly among the P
clients, which is what independent exponential durations of one mean amount to; all P clients are in flight, and the
K restart together after the server's step. The levels are pairs of P and K; here all combinations of P and K are
run, so 1000/20 stands on EMNIST and 1000/10 on CIFAR-10 without a published number. On paper size the rates,
batches, steps and WKAFL's numbers are the release's for MNIST and CIFAR-10 (the same rate for every rule;
``--tune`` searches instead). The release starts stage two at a step fixed beforehand, the paper once the loss is
below an epsilon it does not name: here 0.5. Clients hold one label, 10 to 49 examples (table 3 gives the same
numbers to L_num = 1 or 5). GSGM and the plain mean of the K gradients stand beside the table's three rules.

Desk size: digits, softmax, K = 10, P = 100 and 1,000 (P / K = 10 and 100), one label per client, batch 4, 1,000
steps of one gradient each. Nine server's rates from 0.003 to 30 are searched for each rule and P; WKAFL's other
numbers stay those of the release for MNIST. Every rule has the same trips per step: equal steps are equal trips.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.machinery import (
    Claim,
    Override,
    PaperExperiment,
    Published,
    Scale,
    Search,
    compare,
    loses_less,
    server_rates,
)
from jafl.config.arms import Arms

WKAFL, TWAFL, SASGD, GSGM, MEAN = "WKAFL", "TWAFL", "SASGD", "GSGM", "mean"
# All on gradients: one local step of plain SGD with rate 1, so that the server's rate is the only one.
ARMS: Arms = {
    WKAFL: {"algorithm": "wkafl"},
    TWAFL: {"algorithm": "twafl"},
    SASGD: {"algorithm": "sasgd"},
    GSGM: {"algorithm": "gsgm"},
    MEAN: {
        "algorithm": "fedbuff",
        "staleness_weight": "constant",
        "restart": "after_step",
        "learning_rate": 1.0,
        "local_steps": 1,
    },
}
RATES = [0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0]
# Algorithm 4's clients; independent exponential durations draw the K participants uniformly.
WORLD = {
    "partition": "labels_per_client",
    "labels_per_client": 1,
    "smallest_client": 10,
    "largest_client": 49,
    "delay": "exponential",
    "delay_draw": "per_trip",
    "buffer_size": 10,
    "batch_size": 4,
}
DESK = WORLD | {"dataset": "digits", "model": "softmax", "server_steps": 1000}
# The winners of the desk size's search, for each P.
TUNED = {
    100: server_rates({WKAFL: 0.3, TWAFL: 3.0, SASGD: 3.0, GSGM: 0.3, MEAN: 0.3}),
    1000: server_rates({WKAFL: 0.3, TWAFL: 3.0, SASGD: 3.0, GSGM: 0.01, MEAN: 0.3}),
}
# The release's numbers for MNIST and CIFAR-10.
ON_EMNIST = {"model": "emnist_cnn", "server_steps": 5000, "batch_size": 4, "server_learning_rate": 0.005}
ON_CIFAR = {"model": "lenet5", "server_steps": 10000, "batch_size": 8, "server_learning_rate": 0.0005}
WKAFL_ON_CIFAR = {"rule_arguments": "clip_norm=70,stage_two_clip=5,cosine_weight=50,staleness_decay=0.01"}
PAPER_DATA = [
    Override({"dataset": "emnist/mnist"}, None, ON_EMNIST),
    Override({"dataset": "cifar10"}, None, ON_CIFAR),
    Override({"dataset": "cifar10"}, WKAFL, WKAFL_ON_CIFAR),
]
PAPER_SEARCH = Search(space={"server_learning_rate": [0.0001, 0.0005, 0.002, 0.005, 0.02, 0.1, 0.5]})
PUBLISHED: dict[tuple[Any, ...], dict[str, str]] = {
    ("emnist/mnist", 1000, 10): {WKAFL: "0.9734", TWAFL: "0.962", SASGD: "0.9319"},
    ("emnist/mnist", 3000, 20): {WKAFL: "0.9756", TWAFL: "0.9649", SASGD: "0.8753"},
    ("emnist/mnist", 3000, 10): {WKAFL: "0.9728", TWAFL: "0.9572", SASGD: "0.8553"},
    ("cifar10", 1000, 20): {WKAFL: "0.4433", TWAFL: "0.4246", SASGD: "0.3308"},
    ("cifar10", 3000, 20): {WKAFL: "0.4368", TWAFL: "0.4241", SASGD: "0.2560"},
    ("cifar10", 3000, 10): {WKAFL: "0.3970", TWAFL: "0.3468", SASGD: "0.2029"},
}


def in_flight(clients: int) -> dict[str, int]:
    """So many clients, all of which train at any moment."""
    return {"num_clients": clients, "concurrency": clients}


def all_in_flight(numbers: Sequence[int]) -> list[Override]:
    """All P clients train at any moment, for each P that is tried."""
    return [Override({"num_clients": number}, None, {"concurrency": number}) for number in numbers]


def _beside(condition: Mapping[str, Any], label: str) -> str:
    key = tuple(condition.get(name) for name in ("dataset", "num_clients", "buffer_size"))
    return PUBLISHED.get(key, {}).get(label, "-")


FEW, MANY = {"num_clients": 100}, {"num_clients": 1000}


def loses_less_on_desk(rivals: Sequence[str]) -> list[Claim]:
    """WKAFL against each rival, from the lowest staleness of the desk size to the highest."""
    return [
        Claim(
            sentence=f"WKAFL loses less than {rival} from P / K = 10 to 100",
            differences=loses_less(WKAFL, rival, FEW, MANY),
            scales=("desk",),
        )
        for rival in rivals
    ]


def _loses_less_on_paper() -> list[Claim]:
    """WKAFL against each rival, from the lowest staleness of the paper size to the highest."""
    levels = {"emnist/mnist": ((1000, 10), (3000, 10)), "cifar10": ((1000, 20), (3000, 10))}
    claims = []
    for dataset, pair in levels.items():
        low, high = ({"dataset": dataset, "num_clients": p, "buffer_size": k} for p, k in pair)
        claims += [
            Claim(
                sentence=f"WKAFL loses less than {rival} from the lowest to the highest P / K on {dataset}",
                differences=loses_less(WKAFL, rival, low, high),
                scales=("paper",),
            )
            for rival in (TWAFL, SASGD)
        ]
    return claims


EXPERIMENT = PaperExperiment(
    paper="WKAFL",
    figure="table 2",
    title="final accuracy at three levels of staleness, against TWAFL and SASGD",
    published=Published(
        heading=["data", "P / K", WKAFL, TWAFL, SASGD],
        rows=[
            [name, f"{clients}/{buffer} = {clients // buffer}", *row.values()]
            for (name, clients, buffer), row in PUBLISHED.items()
        ],
    ),
    scales={
        "paper": Scale(
            settings=WORLD,
            arms=ARMS,
            conditions={
                "dataset": ["emnist/mnist", "cifar10"],
                "num_clients": [1000, 3000],
                "buffer_size": [10, 20],
            },
            overrides=[*PAPER_DATA, *all_in_flight([1000, 3000])],
            search=PAPER_SEARCH,
            seeds=(0, 1, 2),
        ),
        "desk": Scale(
            settings=DESK,
            arms=ARMS,
            conditions={"num_clients": [100, 1000]},
            overrides=all_in_flight([100, 1000]),
            search=Search(space={"server_learning_rate": RATES}),
            seeds=tuple(range(10)),
            tuned={f"num_clients={number}": rates for number, rates in TUNED.items()},
            minutes=3,
            hardware="two CPU cores of a busy machine",
        ),
    },
    beside=_beside,
    claims=[
        *compare("{better} is above {worse}", WKAFL, (TWAFL, SASGD)),
        *compare("{better} is above {worse}", TWAFL, SASGD),
        *loses_less_on_desk((TWAFL, SASGD, GSGM, MEAN)),
        *_loses_less_on_paper(),
    ],
)
