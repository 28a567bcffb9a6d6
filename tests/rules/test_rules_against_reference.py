"""The four papers' rules against the slow reference simulator: same parameters, same decisions."""

import dataclasses

import numpy as np
import optax
import pytest
import reference as ref
import reference_rules as papers
from against_reference import Case, compare

import jafl
from jafl import delays, rules


def server(rate: float) -> tuple:
    """Plain SGD at the server, in both programs."""
    return jafl.specify(optax.sgd, learning_rate=rate), ref.SGD(rate)


def on_gradients(rule, expected, rate=0.3, **changes) -> Case:
    """A rule on gradients: one full-batch step of plain SGD with rate 1, so that update = -gradient."""
    settings = {"learning_rate": 1.0, "server": server(rate), "buffer_size": 5, **changes}
    return Case("", rule, expected, **settings)


def cached(rule, expected, **changes) -> Case:
    return on_gradients(rule, expected, 0.2, **{"buffer_size": 1, "initial_round": True, **changes})


def wkafl(without: str | None = None, **changes) -> Case:
    numbers = {"momentum": 0.2, "cosine_weight": 5.0, "staleness_decay": 0.2}
    limits = {
        "smallest_cosine": 0.35,
        "clip_norm": 0.8,
        "stage_two_clip": 0.9,
        "stage_two_loss": 0.8,
        **changes,
    }
    parts = {
        "gradient_selection": "gradient_selection",
        "staleness": "staleness_part",
        "non_iid": "non_iid_part",
    }
    left_out = {parts[without]: False} if without else {}
    return on_gradients(
        rules.wkafl(5, **numbers, **limits, **left_out),
        lambda: papers.WKAFL(
            1.0,
            momentum=0.2,
            cosine_weight=5.0,
            learning_rate_decay=0.2,
            minimum_similarity=limits["smallest_cosine"],
            clip_bound=limits["clip_norm"],
            stage_two_bound=limits["stage_two_clip"],
            stage_two_loss=limits["stage_two_loss"],
            without=without,
        ),
    )


RULES = {
    "fedstaleweight, equation 8": Case(
        "", rules.fedstaleweight(), lambda: papers.FedStaleWeight("equation_8"), buffer_size=5
    ),
    "fedstaleweight, algorithm 1": Case(
        "", rules.fedstaleweight("algorithm_1"), lambda: papers.FedStaleWeight("algorithm_1"), buffer_size=5
    ),
    "fedstaleweight, window": Case(
        "",
        rules.fedstaleweight(average="window", window=3),
        lambda: papers.FedStaleWeight(window=3),
        buffer_size=5,
    ),
    "fedstaleweight, exponential average": Case(
        "",
        rules.fedstaleweight(average="exponential", decay=0.7),
        lambda: papers.FedStaleWeight(decay=0.7),
        buffer_size=5,
    ),
    "exponential weighting": Case(
        "", rules.exponential_weighting(0.5), lambda: papers.ExponentialWeighting(0.5), buffer_size=5
    ),
    "reverse exponential weighting": Case(
        "", rules.exponential_weighting(1.5), lambda: papers.ExponentialWeighting(1.5), buffer_size=5
    ),
    "asgd": on_gradients(rules.asgd(), lambda: papers.VanillaASGD(1.0), buffer_size=1),
    "delay-adaptive, scale": on_gradients(
        rules.delay_adaptive_asgd("scale", 6), lambda: papers.DelayAdaptiveASGD(1.0, 6), buffer_size=1
    ),
    "delay-adaptive, drop": on_gradients(
        rules.delay_adaptive_asgd("drop", 6), lambda: papers.DelayAdaptiveASGD(1.0, 6, "drop"), buffer_size=1
    ),
    "delay-adaptive, bound": on_gradients(
        rules.delay_adaptive_asgd("bound", 6, smoothness=0.3, server_learning_rate=0.3),
        lambda: papers.DelayAdaptiveASGD(1.0, 6, "bound", 0.3, 0.3),
        buffer_size=1,
    ),
    "sasgd": on_gradients(rules.sasgd(), lambda: papers.SASGD(1.0)),
    "twafl": on_gradients(rules.twafl(), lambda: papers.TWAFL(1.0)),
    "ace": cached(rules.ace(), lambda: papers.ACE(1.0)),
    "ace against the incremental form": cached(rules.ace(), lambda: papers.IncrementalACE(1.0)),
    "aced, short": cached(rules.aced(active_steps=4), lambda: papers.ACED(1.0, 4)),
    "aced, one step": cached(rules.aced(active_steps=1), lambda: papers.ACED(1.0, 1)),
    "aced, long": cached(rules.aced(active_steps=25), lambda: papers.ACED(1.0, 25)),
    "ca2fl": Case("", rules.ca2fl(), papers.CA2FL, buffer_size=5),
    "wkafl": wkafl(),
    "wkafl, none passes": wkafl(smallest_cosine=0.99),
    "wkafl, no gradient selection": wkafl("gradient_selection"),
    "wkafl, no staleness part": wkafl("staleness"),
    "wkafl, no non-IID part": wkafl("non_iid"),
    "fednova": Case(
        "",
        rules.fednova(),
        lambda: papers.FedNova(lambda trip: 2 * -(-trip.num_examples // 8)),
        buffer_size=5,
        work={"batch_size": 8, "local_epochs": 2},
    ),
    "fednova, by examples": Case(
        "",
        rules.fednova(True),
        lambda: papers.FedNova(lambda trip: -(-trip.num_examples // 8), True),
        buffer_size=5,
        work={"batch_size": 8, "local_epochs": 1},
    ),
}
# One with clients that arrive twice in one buffer, one with simultaneous arrivals, one with slow clients.
SCHEDULES = {
    "twice in a buffer": {
        "delay": delays.once_per_client(delays.log_normal(1.0, 1.5)),
        "clients": 8,
        "concurrency": 8,
    },
    "simultaneous arrivals": {"delay": delays.constant(1.0), "clients": 9, "concurrency": 9},
    "slow clients": {
        "delay": delays.groups(((9, delays.exponential(1.0)), (3, delays.exponential(10.0)))),
        "clients": 12,
        "concurrency": 12,
    },
}
CASES = [
    dataclasses.replace(case, name=f"{name}; {schedule}", steps=120, **changes)
    for name, case in RULES.items()
    for schedule, changes in SCHEDULES.items()
]


def in_every_precision() -> list:
    """float64 for every case; float32, in which most rules differ by rounding alone, for one schedule each."""
    pairs = [(case, "float64") for case in CASES] + [
        (case, "float32") for case in CASES if "slow" in case.name
    ]
    return [pytest.param(case, precision, id=f"{case.name}; {precision}") for case, precision in pairs]


@pytest.mark.parametrize("case, precision", in_every_precision())
def test_rule_equals_the_papers(case: Case, precision: str):
    history, expected = compare(case, precision)
    if case.name.startswith("wkafl"):
        kept, stages = history.step_reports["kept"], history.step_reports["stage"]
        if "no gradient selection" not in case.name:
            np.testing.assert_array_equal(kept, [report["kept"] for report in expected.reports])
        np.testing.assert_array_equal(stages, [report["stage"] for report in expected.reports])
        weights = np.array([report["weights"] for report in expected.reports])
        tolerance = 1e-7 if precision == "float64" else 1e-3
        np.testing.assert_allclose(history.step_reports["weight"], weights, atol=tolerance)
    if case.name.startswith("aced"):
        sizes = [len(report["active"]) for report in expected.reports]
        np.testing.assert_array_equal(history.step_reports["active_clients"], sizes)


def test_the_table_holds_what_it_promises():
    """Clients arrive twice in a buffer, arrivals share instants, WKAFL selects, stages change, trips are dropped."""
    from against_reference import make_schedule

    for case in CASES:
        schedule = make_schedule(case)
        if "twice" in case.name and case.buffer_size > 1:
            pairs = schedule.step.astype(np.int64) * 100 + schedule.client
            assert len(np.unique(pairs)) < len(pairs)
        if "simultaneous" in case.name:
            assert len(np.unique(schedule.arrival_time)) < schedule.num_trips
    slow = next(case for case in CASES if case.name == "wkafl; slow clients")
    history, _ = compare(slow, "float64")
    assert set(np.unique(history.step_reports["stage"])) == {1.0, 2.0}
    assert history.step_reports["kept"].min() > 0 or history.step_reports["kept"].max() < 5
    assert len(np.unique(history.step_reports["kept"])) > 1
    dropped = next(case for case in CASES if case.name == "delay-adaptive, drop; slow clients")
    weights = compare(dropped, "float64")[0].trip_reports["weight"]
    assert 0 < np.sum(weights == 0) < len(weights)
