"""FedBuff (Nguyen et al. 2022), table 6: time and trips where a server step takes as many trips as are under way.

Command: python run.py --experiment=fedbuff_table6
    --tune searches for the rates first; --scale=paper takes CelebA and Sent140, once ``run.py --prepare=celeb_a`` and
    ``--prepare=sentiment140`` have been run. fedbuff_table6_time has the times of the paper's own size, untrained.

Minutes: desk 1, with --tune 2.5, on one core of a busy machine.
    Paper: not run here (no data); 18 runs of 600,000 trips.

Published: the table below: FedBuff with K = 1,000 and staleness exponent 10, FedAvgM, and FedAvgM that selects 1,300
and throws the slowest 300 away. Time in mean trips of a client; thrown-away trips count.

Open choices: the rates of these runs are not published; paper size has table 4's. With exponent 10 an update that is
one step late counts 1/1024: two thirds of FedBuff's trips are all but lost. Half-normal durations, fresh for each
trip.

Desk size: fedbuff_table1's federation, 300 of 400 clients under way and K = 300, 390 selected; target 0.9, evaluated
at each server step; four server's rates and three momenta for each arm, three seeds; results of 20 others. There 390
of 400 clients are selected in each round, in the paper 1,300 of thousands.
"""

from collections.abc import Mapping
from typing import Any

from experiments import fedbuff_table1 as table1
from experiments.fedbuff_table1 import FEDAVGM, FEDBUFF, to_target
from experiments.machinery import (
    Claim,
    Override,
    PaperExperiment,
    Published,
    Scale,
    Search,
    final_accuracy,
    time_to,
    trips_to,
)
from jafl.runs.reader import PastRun

FULL, MORE = "FedBuff, K = concurrency", "FedAvgM, 30 % over-selection"


def arms(size: int) -> dict[str, dict[str, Any]]:
    """The arms with ``size`` trips per server step."""
    return {
        FULL: {"algorithm": "fedbuff", "buffer_size": size, "staleness_exponent": 10.0},
        FEDAVGM: {"algorithm": "fedavgm"},
        MORE: {"algorithm": "fedavgm", "over_selection": 0.3},
    }


def time_to_target(run: PastRun) -> float:
    """Simulated time, in mean trips, to the run's target."""
    metric = "test_accuracy" if run.config["dataset"] == "digits" else "validation_accuracy"
    return time_to(run.config["target_accuracy"], metric)(run)


NUMBERS = {
    FULL: ("124, 124", "228, 228"),
    FEDAVGM: ("446, 104", "927, 216"),
    MORE: ("155, 135", "322, 281"),
}


def beside(condition: Mapping[str, Any], label: str) -> str:
    """Published time and thousands of trips, CelebA's and Sent140's or those of the condition's task."""
    if "dataset" in condition:
        return NUMBERS[label][["celeb_a", "sentiment140"].index(condition["dataset"])]
    return " / ".join(NUMBERS[label])


EXPERIMENT = PaperExperiment(
    paper="FedBuff",
    figure="table 6",
    title="time and trips: FedBuff with K as the concurrency, FedAvgM with and without over-selection",
    published=Published(
        heading=["", "time CelebA", "thousand trips CelebA", "time Sent140", "thousand trips Sent140"],
        rows=[
            ["FedBuff (K = 1000)", "124", "124", "228", "228"],
            ["FedAvgM", "446 (3.6x)", "104", "927 (4.06x)", "216"],
            ["FedAvgM, over-selection", "155 (1.25x)", "135", "322 (1.41x)", "281"],
        ],
        note="Time in mean trips of a client. Beside the measured numbers: time, thousands of trips.",
    ),
    scales={
        "desk": Scale(
            settings=table1.WORLD,
            arms=arms(300),
            search=Search(
                space={
                    "server_learning_rate": [0.3, 1.0, 3.0, 10.0],
                    "server_momentum": [0.0, 0.5, 0.9],
                },
                score=trips_to(table1.TARGET, "validation_accuracy"),
                lower_is_better=True,
            ),
            tuned={
                "": {
                    FULL: {"server_learning_rate": 3.0, "server_momentum": 0.5},
                    FEDAVGM: {"server_learning_rate": 3.0, "server_momentum": 0.9},
                    MORE: {"server_learning_rate": 3.0, "server_momentum": 0.9},
                }
            },
            seeds=tuple(range(20)),
            minutes=1,
            hardware="one core of a busy machine",
        ),
        "paper": Scale(
            settings=table1.PAPER_WORLD,
            arms=arms(1000) | {FULL: arms(1000)[FULL] | table1.AS_PUBLISHED},
            conditions={"dataset": ["celeb_a", "sentiment140"]},
            overrides=table1.OF_TASK
            + [
                Override({"dataset": task}, label, table1.published_rates(task, arm))
                for task in ("celeb_a", "sentiment140")
                for label, arm in ((FULL, FEDBUFF), (FEDAVGM, FEDAVGM), (MORE, FEDAVGM))
            ],
            seeds=(0, 1, 2),
            minutes=float("nan"),
            hardware="not measured",
        ),
    },
    columns={
        "time to the target": time_to_target,
        "trips to the target": to_target,
        "final accuracy": final_accuracy,
    },
    beside=beside,
    claims=[
        Claim(
            sentence="FedBuff needs less time than FedAvgM",
            better=FULL,
            worse=FEDAVGM,
            measure=time_to_target,
            lower_is_better=True,
        ),
        Claim(
            sentence="FedBuff needs less time than FedAvgM with over-selection",
            better=FULL,
            worse=MORE,
            measure=time_to_target,
            lower_is_better=True,
        ),
        Claim(
            sentence="over-selection saves time",
            better=MORE,
            worse=FEDAVGM,
            measure=time_to_target,
            lower_is_better=True,
        ),
        Claim(
            sentence="FedAvgM needs fewer trips than FedBuff with so large a buffer",
            better=FEDAVGM,
            worse=FULL,
            measure=to_target,
            lower_is_better=True,
        ),
        Claim(
            sentence="over-selection costs trips",
            better=FEDAVGM,
            worse=MORE,
            measure=to_target,
            lower_is_better=True,
        ),
    ],
)
