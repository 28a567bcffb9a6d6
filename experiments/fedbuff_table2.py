"""FedBuff (Nguyen et al. 2022), table 2: client trips to a target accuracy for buffers of 1, 10 and 100.

Command: python run.py --experiment=fedbuff_table2
    --tune searches for the rates first; --scale=paper takes CelebA, Sent140 and CIFAR-10, once ``run.py
    --prepare=...`` has been run for them.

Minutes: desk 1.5, with --tune 3.5, on one core of a busy machine.
    Paper: not run here (no data); 27 runs of 600,000 trips.

Published: the table below; the best buffer is 10 for all three data sets, 1 nearly as good on CelebA.

Open choices: those of fedbuff_table1. Rates are published for K = 10 alone (table 4); on paper size all three buffers
have them. On desk size each buffer has a search of its own.

Desk size: fedbuff_table1's federation, runs and target; five server's rates and three momenta, 15 trials for each
buffer, three seeds; results of 20 others.
"""

from collections.abc import Mapping
from typing import Any

from experiments import fedbuff_table1 as table1
from experiments.fedbuff_table1 import FEDBUFF, FEWER_TRIPS, to_target
from experiments.machinery import PaperExperiment, Published, Scale, compare, final_accuracy, trips_to

LABELS = {1: "K = 1", 10: "K = 10", 100: "K = 100"}
ARMS = {label: {"algorithm": "fedbuff", "buffer_size": size} for size, label in LABELS.items()}
TRIPS = {
    "celeb_a": ("32.4 ± 2.0", "31.9 ± 8.9", "71.6 ± 6.8"),
    "sentiment140": ("190.0 ± 11.9", "124.7 ± 25.8", "178.2 ± 13.1"),
    "cifar10": ("76.7 ± 9.6", "67.5 ± 7.4", "102.5 ± 2.0"),
}


def beside(condition: Mapping[str, Any], label: str) -> str:
    """The published thousands of trips: of the condition's task, or of all three."""
    place = list(ARMS).index(label)
    return table1.of_tasks(condition, {task: trips[place] for task, trips in TRIPS.items()})


EXPERIMENT = PaperExperiment(
    paper="FedBuff",
    figure="table 2",
    title="client trips to a target accuracy: buffers of 1, 10 and 100",
    published=Published(
        heading=["thousand trips", *ARMS],
        rows=[
            ["CelebA, 90 %", *TRIPS["celeb_a"]],
            ["Sent140, 69 %", *TRIPS["sentiment140"]],
            ["CIFAR-10, 60 %", *TRIPS["cifar10"]],
        ],
        note="Mean ± standard deviation of three seeds.",
    ),
    scales={
        "desk": Scale(
            settings=table1.WORLD,
            arms=ARMS,
            search=table1.search_for_trips(
                {"server_learning_rate": [0.1, 0.3, 1.0, 3.0, 10.0], "server_momentum": [0.0, 0.5, 0.9]}
            ),
            tuned={
                "": {
                    LABELS[1]: {"server_learning_rate": 1.0, "server_momentum": 0.0},
                    LABELS[10]: {"server_learning_rate": 3.0, "server_momentum": 0.0},
                    LABELS[100]: {"server_learning_rate": 3.0, "server_momentum": 0.0},
                }
            },
            seeds=tuple(range(20)),
            minutes=1.5,
            hardware="one core of a busy machine",
        ),
        "paper": table1.paper_scale(
            {label: arm | table1.AS_PUBLISHED for label, arm in ARMS.items()}, {None: FEDBUFF}
        ),
    },
    columns={
        "trips to the target": to_target,
        "trips to .92": trips_to(0.92),
        "final accuracy": final_accuracy,
    },
    beside=beside,
    claims=[
        *compare("a buffer of 10 needs fewer trips than one of 100", LABELS[10], LABELS[100], **FEWER_TRIPS),
        *compare("a buffer of 10 needs fewer trips than none", LABELS[10], LABELS[1], **FEWER_TRIPS),
    ],
)
