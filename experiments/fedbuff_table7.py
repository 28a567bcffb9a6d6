"""FedBuff (Nguyen et al. 2022), table 7: LR-Norm, example weights and uniform weights.

Command: python run.py --experiment=fedbuff_table7
    --tune searches for the rates first; --scale=paper takes CelebA and Sent140, once ``run.py --prepare=...`` has
    been run for them.

Minutes: desk 3, with --tune 8, on one core of a very busy machine.
    Paper: not run here (no data); 54 runs of 600,000 trips.

Published: the table below: alike on CelebA, LR-Norm ahead on Sent140. At K = 1 example and uniform weights are the
same rule if the weights are divided by their sum over the buffer, as here; so it is on Sent140 (201.9 both), not on
CelebA.

Open choices: example weight: sum of n_i s_i update_i over sum of n_i; LR-Norm: a local step on b < B examples has
rate eta_l b / B. Rates are published for LR-Norm at K = 10 only (table 4); on paper size every arm has them, sums of
updates for LR-Norm and uniform weights, means for example weights, for which no sum is defined.

Desk size: fedbuff_table1's federation, runs and target; clients of 1 to 8 examples, batch 4: one step of up to four
examples, and perhaps a second one. LR-Norm then nearly weighs by examples, without dividing by their number in the
buffer. Momentum 0, the winner of fedbuff_table1; five server's rates for each arm and K, two seeds; results of ten
others.
"""

from collections.abc import Mapping
from typing import Any

from experiments import fedbuff_table1 as table1
from experiments.fedbuff_table1 import CLIENTS_GIVEN, FEDBUFF, FEWER_TRIPS, to_target
from experiments.machinery import PaperExperiment, Published, Scale, compare, final_accuracy

NORMALIZED, BY_EXAMPLES, UNIFORM = "LR-Norm", "example weight", "uniform weight"
ARMS: dict[str, dict[str, Any]] = {
    NORMALIZED: {"algorithm": "fedbuff", "learning_rate_normalization": True},
    BY_EXAMPLES: {"algorithm": "fedbuff", "weigh_by_examples": True},
    UNIFORM: {"algorithm": "fedbuff"},
}
SIZES = [1, 10, 100]
TRIPS = {
    ("celeb_a", 1): ("20.8", "23.9", "20.7"),
    ("celeb_a", 10): ("27.1", "25.5", "28.7"),
    ("celeb_a", 100): ("57.6", "57.6", "54.4"),
    ("sentiment140", 1): ("190.0", "201.9", "201.9"),
    ("sentiment140", 10): ("124.7", "207.9", "136.6"),
    ("sentiment140", 100): ("178.2", "570.3", "231.7"),
}


def beside(condition: Mapping[str, Any], label: str) -> str:
    """The published thousands of trips: CelebA's and Sent140's, or those of the condition's task."""
    size, place = condition["buffer_size"], list(ARMS).index(label)
    return table1.of_tasks(condition, {task: TRIPS[task, size][place] for task in CLIENTS_GIVEN})


SUM = {"aggregate": "sum"}

EXPERIMENT = PaperExperiment(
    paper="FedBuff",
    figure="table 7",
    title="client trips to a target accuracy: LR-Norm, example and uniform weights, buffers of 1, 10, 100",
    published=Published(
        heading=["thousand trips", "K", *ARMS],
        rows=[
            [name, str(size), *TRIPS[task, size]] for task, name in CLIENTS_GIVEN.items() for size in SIZES
        ],
    ),
    scales={
        "desk": Scale(
            settings=table1.WORLD,
            arms=ARMS,
            conditions={"buffer_size": SIZES},
            search=table1.search_for_trips(
                {"server_learning_rate": [0.3, 1.0, 3.0, 10.0, 30.0]}, seeds=(100, 101)
            ),
            tuned={
                "buffer_size=1": {
                    NORMALIZED: {"server_learning_rate": 0.3},
                    BY_EXAMPLES: {"server_learning_rate": 1.0},
                    UNIFORM: {"server_learning_rate": 1.0},
                },
                "buffer_size=10": dict.fromkeys(ARMS, {"server_learning_rate": 1.0}),
                "buffer_size=100": dict.fromkeys(ARMS, {"server_learning_rate": 3.0}),
            },
            seeds=tuple(range(10)),
            minutes=3,
            hardware="one core of a busy machine",
        ),
        "paper": table1.paper_scale(
            {
                NORMALIZED: ARMS[NORMALIZED] | SUM,
                BY_EXAMPLES: ARMS[BY_EXAMPLES],
                UNIFORM: ARMS[UNIFORM] | SUM,
            },
            {None: FEDBUFF},
            tasks=list(CLIENTS_GIVEN),
            conditions={"buffer_size": SIZES},
        ),
    },
    columns={"trips to the target": to_target, "final accuracy": final_accuracy},
    beside=beside,
    claims=[
        *compare("LR-Norm needs fewer trips than {worse}", NORMALIZED, (BY_EXAMPLES, UNIFORM), **FEWER_TRIPS),
        *compare(
            "example and uniform weights are the same at K = 1",
            BY_EXAMPLES,
            UNIFORM,
            **FEWER_TRIPS,
            under={"buffer_size": 1},
            expected="a tie",
        ),
    ],
)
