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
from experiments.fedbuff_table1 import CLIENTS_GIVEN, FEDAVGM, FEDBUFF, FEWER_TRIPS, at_target, to_target
from experiments.machinery import PaperExperiment, Published, Scale, compare, final_accuracy, time_to

FULL, MORE = "FedBuff, K = concurrency", "FedAvgM, 30 % over-selection"


def arms(size: int) -> dict[str, dict[str, Any]]:
    """The arms with ``size`` trips per server step."""
    return {
        FULL: {"algorithm": "fedbuff", "buffer_size": size, "staleness_exponent": 10.0},
        FEDAVGM: {"algorithm": "fedavgm"},
        MORE: {"algorithm": "fedavgm", "over_selection": 0.3},
    }


time_to_target = at_target(time_to)  # in mean trips
LESS_TIME: dict[str, Any] = {"measure": time_to_target, "lower_is_better": True}
NUMBERS = {
    FULL: {"celeb_a": "124, 124", "sentiment140": "228, 228"},
    FEDAVGM: {"celeb_a": "446, 104", "sentiment140": "927, 216"},
    MORE: {"celeb_a": "155, 135", "sentiment140": "322, 281"},
}


def beside(condition: Mapping[str, Any], label: str) -> str:
    """Published time and thousands of trips, CelebA's and Sent140's or those of the condition's task."""
    return table1.of_tasks(condition, NUMBERS[label])


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
            search=table1.search_for_trips(
                {"server_learning_rate": [0.3, 1.0, 3.0, 10.0], "server_momentum": [0.0, 0.5, 0.9]}
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
        "paper": table1.paper_scale(
            table1.as_published(arms(1000), FULL),
            {FULL: FEDBUFF, FEDAVGM: FEDAVGM, MORE: FEDAVGM},
            tasks=list(CLIENTS_GIVEN),
        ),
    },
    columns={
        "time to the target": time_to_target,
        "trips to the target": to_target,
        "final accuracy": final_accuracy,
    },
    beside=beside,
    claims=[
        *compare("FedBuff needs less time than FedAvgM", FULL, FEDAVGM, **LESS_TIME),
        *compare("FedBuff needs less time than FedAvgM with over-selection", FULL, MORE, **LESS_TIME),
        *compare("over-selection saves time", MORE, FEDAVGM, **LESS_TIME),
        *compare(
            "FedAvgM needs fewer trips than FedBuff with so large a buffer", FEDAVGM, FULL, **FEWER_TRIPS
        ),
        *compare("over-selection costs trips", FEDAVGM, MORE, **FEWER_TRIPS),
    ],
)
