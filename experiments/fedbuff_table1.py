"""FedBuff (Nguyen et al. 2022), table 1: client trips to a target accuracy.

Command: python run.py --experiment=fedbuff_table1
    --tune searches for the rates first; --scale=paper takes CelebA, Sent140 and CIFAR-10, once ``run.py
    --prepare=celeb_a``, ``--prepare=sentiment140`` and ``--prepare=cifar10`` have been run.

Minutes: desk 3, with --tune 11, on one core of a busy machine.
    Paper: not run here (no data); 45 runs of 600,000 trips.

Published: the table below. Concurrency 1,000, K = 10, half-normal durations, one local epoch, batch 32, targets on
validation examples, 600,000 client trips, three seeds. CelebA's speed-ups over FedAvg and FedProx, 8.5 and 8.4, are
not 231 / 31.9 and 228 / 31.9 (7.2, 7.1) but 231 / 27.1 and 228 / 27.1, with table 7's number for FedBuff.

Open choices: a fresh duration for each trip. Which of the arms had LR-Norm, and whether FedBuff's published server's
rates are those of a mean (algorithm 1) or a sum of updates (appendix B.2), is not said: the lengths of the paths in
fedbuff_table4 fit LR-Norm in FedBuff alone and sums, and so it is on paper size. On desk size no arm has LR-Norm,
every client counts alike and FedBuff takes means: the arms differ by their rule alone. Momentum is searched for in
FedBuff, too, as in the paper.

Desk size: digits, softmax, 400 clients (Dirichlet 0.1; 1 to 8 examples each), 300 of them under way, batch 4, so one
or two local steps; 6,000 trips, target 0.9, reached at one of the evaluations, each 300 trips, in all arms: a round
of the synchronous ones. 16 % of the examples are held out for the search's own seeds; results are of the test
examples, 20 seeds. As one local step makes only the product of both rates matter, FedBuff and FedAvgM search for the
server's rate and momentum with clients' rate 1, the others for two rates or for FedProx's mu: 28 trials each.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from experiments.machinery import (
    Measure,
    Override,
    PaperExperiment,
    Published,
    Scale,
    Search,
    compare,
    final_accuracy,
    trips_to,
)
from jafl.runs.reader import PastRun

FEDBUFF, FEDASYNC, FEDAVGM, FEDAVG, FEDPROX = "FedBuff", "FedAsync", "FedAvgM", "FedAvg", "FedProx"
TARGET = 0.9
WORLD: dict[str, Any] = {
    "dataset": "digits",
    "model": "softmax",
    "num_clients": 400,
    "partition": "dirichlet",
    "dirichlet_alpha": 0.1,
    "concurrency": 300,
    "delay": "half_normal",
    "delay_draw": "per_trip",
    "local_epochs": 1,
    "batch_size": 4,
    "learning_rate": 1.0,
    "validation_fraction": 0.16,
    "client_trips": 6000,
    "evaluate_every": 300,
    "target_accuracy": TARGET,
}
ARMS: dict[str, dict[str, Any]] = {
    FEDBUFF: {"algorithm": "fedbuff", "buffer_size": 10},
    FEDASYNC: {"algorithm": "fedasync", "buffer_size": 1},
    FEDAVGM: {"algorithm": "fedavgm"},
    FEDAVG: {"algorithm": "fedavg"},
    FEDPROX: {"algorithm": "fedprox"},
}
SERVER = [0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0]
CLIENTS = [10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0, 10000.0]  # of FedAsync


def search_for_trips(space: Mapping[str, Sequence[float]], **fields: Any) -> Search:
    """A search for the settings that need the fewest trips to the desk size's target on validation examples.

    fields: the other fields of ``Search``.
    """
    score = trips_to(TARGET, "validation_accuracy")
    return Search(space=space, score=score, lower_is_better=True, **fields)


SEARCH = search_for_trips(
    {"server_learning_rate": SERVER, "server_momentum": [0.0, 0.5, 0.9, 0.99]},
    spaces={
        FEDASYNC: {"learning_rate": CLIENTS, "server_learning_rate": [0.0001, 0.001, 0.01, 0.1]},
        FEDAVG: {"server_learning_rate": SERVER, "learning_rate": [0.3, 1.0, 3.0, 10.0]},
        FEDPROX: {"server_learning_rate": SERVER, "proximal": [0.001, 0.01, 0.1, 1.0]},
    },
)
TUNED: dict[str, dict[str, Any]] = {
    FEDBUFF: {"server_learning_rate": 3.0, "server_momentum": 0.0},
    FEDASYNC: {"learning_rate": 10000.0, "server_learning_rate": 0.01},
    FEDAVGM: {"server_learning_rate": 3.0, "server_momentum": 0.9},
    FEDAVG: {"server_learning_rate": 0.1, "learning_rate": 10.0},
    FEDPROX: {"server_learning_rate": 1.0, "proximal": 0.001},
}

# Paper size
PAPER_WORLD: dict[str, Any] = {
    "concurrency": 1000,
    "delay": "half_normal",
    "delay_draw": "per_trip",
    "local_epochs": 1,
    "batch_size": 32,
    "client_trips": 600_000,
    "evaluate_every": 1000,
    "validation_fraction": 0.1,
}
TASKS: dict[str, dict[str, Any]] = {
    "celeb_a": {"model": "fedbuff_cnn", "target_accuracy": 0.9},
    "sentiment140": {"model": "sent140_lstm", "data_fraction": 0.15, "target_accuracy": 0.69},
    "cifar10": {
        "model": "fedbuff_cnn",
        "num_clients": 5000,
        "partition": "dirichlet",
        "dirichlet_alpha": 0.1,
        "partition_seed": 0,
        "target_accuracy": 0.6,
    },
}
# The data sets that come divided into clients; some of the tables have no other.
CLIENTS_GIVEN = {"celeb_a": "CelebA", "sentiment140": "Sent140"}
NAMES = CLIENTS_GIVEN | {"cifar10": "CIFAR-10"}
AS_PUBLISHED = {"aggregate": "sum", "learning_rate_normalization": True}  # FedBuff's
# Table 4: clients' and server's rate, momentum or mu. FedProx's 1.0^3 on Sent140 is read as 10^3.
RATES: dict[str, dict[str, tuple[float, ...]]] = {
    "celeb_a": {
        FEDBUFF: (4.7e-6, 1e3, 0.3),
        FEDASYNC: (5.7, 2.8e-3),
        FEDAVGM: (0.11, 0.24, 0.83),
        FEDAVG: (1e2, 1.6e-3),
        FEDPROX: (4.9e-4, 1e2, 0.01),
    },
    "sentiment140": {
        FEDBUFF: (13.0, 0.049, 0.5),
        FEDASYNC: (17.0, 0.015),
        FEDAVGM: (1.5, 0.34, 0.9),
        FEDAVG: (2.6e-3, 1e3),
        FEDPROX: (2e-3, 1e3, 0.001),
    },
    "cifar10": {
        FEDBUFF: (1.95e-4, 40.9, 0.0),
        FEDASYNC: (1e2, 6.4e-5),
        FEDAVGM: (10.0, 1.02e-3, 0.9),
        FEDAVG: (10.0, 1.02e-3),
        FEDPROX: (10.0, 1.02e-3, 0.001),
    },
}


def published_rates(task: str, arm: str) -> dict[str, float]:
    """Table 4's values as settings."""
    names = ("learning_rate", "server_learning_rate", "proximal" if arm == FEDPROX else "server_momentum")
    return dict(zip(names, RATES[task][arm], strict=False))


def as_published(arms: Mapping[str, Mapping[str, Any]], label: str = FEDBUFF) -> dict[str, Mapping[str, Any]]:
    """The arms, that of FedBuff with sums of updates and LR-Norm."""
    return {**arms, label: {**arms[label], **AS_PUBLISHED}}


def paper_scale(
    arms: Mapping[str, Mapping[str, Any]],
    rates: Mapping[str | None, str],
    *,
    tasks: Sequence[str] = tuple(TASKS),
    conditions: Mapping[str, Sequence[Any]] | None = None,
    **fields: Any,
) -> Scale:
    """Paper size: the arms on several data sets with the rates of table 4.

    Args:
      rates: {label, or None for all arms: the arm of table 4 whose rates it takes}.
      conditions: beside the data sets.
      fields: the other fields of ``Scale``.
    """
    at_published_rates = [
        Override({"dataset": task}, label, published_rates(task, arm))
        for task in TASKS
        if task in tasks
        for label, arm in rates.items()
    ]
    task_settings = [Override({"dataset": task}, None, settings) for task, settings in TASKS.items()]
    return Scale(
        **{"settings": PAPER_WORLD, "seeds": (0, 1, 2), **fields},
        arms=arms,
        conditions={"dataset": list(tasks), **(conditions or {})},
        overrides=[*task_settings, *at_published_rates],
    )


def at_target(measure_to: Callable[[float, str], Measure]) -> Measure:
    """``trips_to`` or ``time_to`` of the run's own target.

    On paper size, where nothing is searched for, it is a target on validation examples.
    """

    def measure(run: PastRun) -> float:
        metric = "test_accuracy" if run.config["dataset"] == "digits" else "validation_accuracy"
        return measure_to(run.config["target_accuracy"], metric)(run)

    return measure


to_target = at_target(trips_to)
FEWER_TRIPS: dict[str, Any] = {"measure": to_target, "lower_is_better": True}


def of_tasks(condition: Mapping[str, Any], numbers: Mapping[str, str]) -> str:
    """Of {task: published number} that of the condition's task, or all if the condition names none."""
    return numbers.get(condition["dataset"], "-") if "dataset" in condition else " / ".join(numbers.values())


TRIPS = {
    "celeb_a": {FEDBUFF: "31.9", FEDASYNC: "37.1", FEDAVGM: "104", FEDAVG: "231", FEDPROX: "228"},
    "sentiment140": {FEDBUFF: "124.7", FEDASYNC: "308.9", FEDAVGM: "216", FEDAVG: "> 600", FEDPROX: "> 600"},
    "cifar10": {FEDBUFF: "67.5", FEDASYNC: "73.3", FEDAVGM: "122.7", FEDAVG: "386.7", FEDPROX: "292.7"},
}


def beside(condition: Mapping[str, Any], label: str) -> str:
    """The published thousands of trips: of the condition's task, or of all three."""
    return of_tasks(condition, {task: trips[label] for task, trips in TRIPS.items()})


EXPERIMENT = PaperExperiment(
    paper="FedBuff",
    figure="table 1",
    title="client trips to a target accuracy: FedBuff, FedAsync, FedAvgM, FedAvg, FedProx",
    published=Published(
        heading=["thousand trips", "accuracy", *ARMS],
        rows=[
            ["CelebA", "90 %", "31.9", "37.1 (1.2x)", "104 (3.3x)", "231 (8.5x)", "228 (8.4x)"],
            ["Sent140", "69 %", "124.7", "308.9 (2.5x)", "216 (1.7x)", "> 600", "> 600"],
            ["CIFAR-10", "60 %", "67.5", "73.3 (1.1x)", "122.7 (1.8x)", "386.7 (5.7x)", "292.7 (4.3x)"],
        ],
        note="Beside the measured numbers: thousands of trips, CelebA / Sent140 / CIFAR-10.",
    ),
    scales={
        "desk": Scale(
            settings=WORLD,
            arms=ARMS,
            search=SEARCH,
            seeds=tuple(range(20)),
            tuned={"": TUNED},
            minutes=3,
            hardware="one core of a busy machine",
        ),
        "paper": paper_scale(as_published(ARMS), {arm: arm for arm in ARMS}),
    },
    columns={
        "trips to the target": to_target,
        "trips to .85": trips_to(0.85),
        "final accuracy": final_accuracy,
    },
    beside=beside,
    claims=[
        *compare(
            "FedBuff needs fewer trips than {worse}",
            FEDBUFF,
            (FEDASYNC, FEDAVGM, FEDAVG, FEDPROX),
            **FEWER_TRIPS,
        ),
        *compare("{better} needs fewer trips than {worse}", FEDAVGM, FEDAVG, **FEWER_TRIPS),
        *compare("FedProx and FedAvg need as many trips", FEDPROX, FEDAVG, **FEWER_TRIPS, expected="a tie"),
        *compare("{better} needs fewer trips than {worse}", FEDASYNC, FEDAVGM, **FEWER_TRIPS),
    ],
)
