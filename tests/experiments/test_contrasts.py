"""Differences of trips to a target that join arms and conditions: what runs that never arrive do to them."""

import math
import pathlib

import numpy as np
import pytest
from test_machinery import some_run

from experiments import harness
from experiments.harness import LOG_TRIPS_MARGIN, Analysis, Claim, trips_to
from experiments.harness.declare import contrasts
from experiments.harness.judge import verdicts
from experiments.harness.results import Runs
from jafl.runs.directory.reader import PastRun
from jafl.sweeps import seed_means

TRIPS = harness.trips_to(0.9)
FEW, MANY = {"num_clients": 10}, {"num_clients": 100}


def runs_of(trips, budget=40):
    """{(label, clients): [seeds] evaluations until .9, None: never} as ``Runs``; an evaluation every 10 trips."""
    made = []
    for (label, clients), several in trips.items():
        for seed, steps in enumerate(several):
            curve = [0.95 if steps is not None and n >= steps else 0.1 for n in range(budget + 1)]
            made.append(some_run(curve, seed, label=label, num_clients=clients))
    return Runs(
        [
            seed_means.ArmRuns(
                {"num_clients": clients},
                label,
                [run for run in made if (run.config["num_clients"], run.config["label"]) == (clients, label)],
            )
            for label, clients in trips
        ]
    )


GROWTH = harness.log_contrast(TRIPS, [("a", MANY), ("b", FEW)], [("a", FEW), ("b", MANY)])


def test_how_much_more_one_arm_grows_than_another():
    runs = runs_of({("a", 10): [5, 4], ("b", 10): [5, 4], ("a", 100): [20, 16], ("b", 100): [10, 8]})
    found = GROWTH(runs)
    assert found.values == pytest.approx([math.log(2)] * 2)
    assert found.censored == (0.0,) * 4


def test_places_under_one_condition_share_a_horizon_and_others_do_not():
    quick = runs_of({("a", 100): [20, 16], ("b", 100): [10, 8]}, budget=12)
    slow = runs_of({("a", 10): [30, 30], ("b", 10): [30, 30]}, budget=40)
    found = GROWTH(Runs([*quick.groups, *slow.groups]))
    # a never arrives within the 120 trips that it was watched for; both arms need 300 trips with few clients.
    assert found.values == pytest.approx(np.log([12 / 10, 12 / 8]))
    assert found.censored == (1.0, 0.0, 0.0, 0.0)


def test_a_constant_is_added_and_a_condition_that_was_not_run_leaves_nothing():
    runs = runs_of({("a", 10): [5, 4], ("a", 100): [10, 4]})
    falls = harness.log_contrast(TRIPS, [("a", MANY)], [("a", FEW)], constant=1.0)
    assert falls(runs).values == pytest.approx([1 + math.log(2), 1.0])
    assert GROWTH(runs_of({("a", 10): [5], ("b", 10): [5]})).values == []


@pytest.mark.parametrize("never, verdict", [(0, "equivalent"), (3, "undecided")])
def test_arms_that_never_arrive_are_not_equivalent_in_joined_claims_either(never, verdict):
    a = [None] * never + [20] * (6 - never)
    runs = runs_of({("a", 10): [20] * 6, ("b", 10): [20] * 6, ("a", 100): a, ("b", 100): [20] * 5 + [21]})
    claim = Claim(sentence="alike", differences=GROWTH, margin=LOG_TRIPS_MARGIN, expected="equivalent")
    analysis = Analysis(primary="alike", seeds=6, margin=LOG_TRIPS_MARGIN, spread=0.1, correction=0.0)
    (row,) = verdicts.judge([claim], "desk", runs, analysis)
    assert row["verdict"] == verdict
    assert max(row["censored"]) == never / 6
    assert row["primary"]


def test_runs_of_both_arms_that_diverged_never_arrive_and_leave_numbers():
    rows = [
        {"client_trips": trips, "server_step": trips, "test_accuracy": trips / 100} for trips in (0, 50, 100)
    ]
    settings = {"algorithm": "asgd", "label": "a", "client_trips": 100}
    runs = [
        PastRun(
            pathlib.Path(f"a-seed{seed}"),
            {**settings, "seed": str(seed)},
            rows[: 1 if status == "diverged" else 3],
            {"status": status},
        )
        for seed, status in enumerate(("finished", "diverged", "finished"))
    ]
    values, censored = contrasts.numbers(trips_to(0.5), [runs, runs])
    assert values[0] == [50.0, 100.0, 50.0] == values[1]
    assert censored == (1 / 3, 1 / 3)
