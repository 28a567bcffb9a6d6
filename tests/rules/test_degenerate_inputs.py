"""Inputs at the edge of a rule's definition: the engine does what the reference's rule does."""

import dataclasses
from collections.abc import Callable
from typing import Any

import fixed_updates as fixed
import jax
import numpy as np
import pytest
import reference as ref
import reference_rules as papers
from against_reference import Case, compare
from quick_compilation import quick_compilation  # noqa: F401
from rule_cases import CLIENTS, RULES, SCHEDULES, of_rule, wkafl
from tiers import in_tiers

import jafl
from jafl import delays, rules
from jafl.rules import staleness
from jafl.rules.wkafl import _selection_weights as selection_weights


def on_schedule(case: Case, schedule: str, **changes) -> Case:
    settings = {"delay": SCHEDULES[schedule], "clients": CLIENTS, "concurrency": CLIENTS, "steps": 120}
    return dataclasses.replace(case, **{**settings, **changes})


# One row per rule that differs from the others in more than its weights; and two from elsewhere.
STILL = {
    name: RULES[name]
    for name in (
        *("fedstaleweight, equation 8", "reverse exponential weighting", "delay-adaptive, drop", "twafl"),
        *("gsgm, steps across rounds", "zeno++, lazy", "ace", "ace, direct", "aced, short"),
        *("aced by cached age, 7", "ca2fl", "ca2fl, changes with the step", "fednova"),
        *("wkafl", "wkafl, no gradient selection", "asyncfeded", "port", "area", "mifa"),
    )
} | {
    "fedbuff": Case(""),
    "fedasync": Case("", rules.fedasync(), lambda: ref.FedAsync(1.0, ref.polynomial(0.5)), buffer_size=1),
}


@pytest.mark.full
@pytest.mark.few_in_full(3)
@pytest.mark.parametrize("name", in_tiers(STILL.keys(), ("fedbuff", "fedasync", "aced by cached age, 7")))
def test_updates_of_zero_move_nothing(name: str):
    """Clients with learning rate 0: as in the reference the model stays, and whatever is reported is finite."""
    case = on_schedule(STILL[name], "slow clients", name=name, learning_rate=0.0)
    history, expected = compare(case, "float64", moves=False)
    for report, rows in (*history.trip_reports.items(), *history.step_reports.items()):
        assert np.all(np.isfinite(rows)), report
    if name.startswith("wkafl") and "gradient selection" not in name:
        kept = [report["kept"] for report in expected.reports]
        assert kept == [0] * 120, "a gradient of zero has cosine 0"
        np.testing.assert_array_equal(history.step_reports["kept"], kept)
    if name.startswith("zeno"):
        accepted = [report["accepted"] for report in expected.reports]
        assert all(accepted), "its score is 0"
        np.testing.assert_array_equal(history.step_reports["applied"], accepted)


@pytest.mark.full
@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_none_passes_the_selection_of_wkafl(precision: str):
    """The direction is then the estimate, the mean weighted by trust in the fresh."""
    case = on_schedule(wkafl(smallest_cosine=1.5), "slow clients", name="none passes")
    history, expected = compare(case, precision)
    np.testing.assert_array_equal(history.step_reports["kept"], 0)
    assert [report["kept"] for report in expected.reports] == [0] * 120
    weights = np.array([report["weights"] for report in expected.reports])
    np.testing.assert_allclose(history.step_reports["weight"], weights, atol=1e-6)
    assert np.ptp(weights, axis=1).min() == 0 < np.ptp(weights, axis=1).max()
    counted = (weights >= weights.max(axis=1, keepdims=True) / 10).sum(axis=1)
    np.testing.assert_array_equal(history.step_reports["aggregated"], counted)
    assert np.ptp(counted) > 0


def test_the_selection_of_wkafl_is_finite_however_much_cosines_count():
    """exp(300) is infinite in float32: the weights are those of the differences of cosines."""
    cosines, keep = np.float32([0.9, 0.5, -1.0, 0.899]), np.array([True, True, False, True])
    weights = np.asarray(selection_weights(cosines, keep, np.float32(300.0)))
    logits = np.where(keep, 300.0 * cosines.astype(np.float64), -np.inf)
    expected = np.exp(logits - logits.max())
    np.testing.assert_allclose(weights, expected / expected.sum(), rtol=1e-4, atol=1e-30)


@pytest.mark.few_by_default(1)
@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_most_active_sets_of_aced_are_empty(precision: str):
    """Everybody arrives together, from the same version: the first steps of an instant alone have fresh gradients."""
    rule, expected = rules.aced(1, "cached"), lambda: papers.ACED(1.0, 1, "cached")
    case = dataclasses.replace(of_rule("ace")[1], rule=rule, expected_rule=expected)
    history, _ = compare(case, precision)
    # Step 0 has all; each later instant starts at the version that its trips downloaded.
    place = (np.arange(120) - 1) % CLIENTS
    sizes = np.where(place < 2, place + 1, 0)
    sizes[:2] = CLIENTS
    np.testing.assert_array_equal(history.step_reports["active_clients"], sizes)
    np.testing.assert_array_equal(history.step_reports["applied"], sizes > 0)


# A rule, the reference's, and trips per step; every rule whose weights depend on staleness.
LATE: dict[str, tuple[Any, Callable[[], ref.Rule], int]] = {
    "fedbuff": (rules.fedbuff(), ref.FedBuff, 2),
    "fedbuff, steep": (rules.fedbuff(staleness.polynomial(10.0)), lambda: ref.FedBuff(ref.polynomial(10.0)), 2),
    "fedbuff, hinge": (rules.fedbuff(staleness.hinge()), lambda: ref.FedBuff(ref.hinge(10.0, 4.0)), 2),
    "fedbuff, exponential": (
        rules.fedbuff(staleness.exponential(1.0)),
        lambda: ref.FedBuff(ref.exponential(1.0)),
        2,
    ),
    "fedstaleweight, equation 8": (rules.fedstaleweight(), papers.FedStaleWeight, 2),
    "fedstaleweight, algorithm 1": (
        rules.fedstaleweight("algorithm_1"),
        lambda: papers.FedStaleWeight("algorithm_1"),
        2,
    ),
    "exponential weighting": (rules.exponential_weighting(0.5), lambda: papers.ExponentialWeighting(0.5), 2),
    "reverse exponential weighting": (
        rules.exponential_weighting(1.5),
        lambda: papers.ExponentialWeighting(1.5),
        2,
    ),
    "delay-adaptive, scale": (rules.delay_adaptive_asgd("scale", 6), lambda: papers.DelayAdaptiveASGD(1.0, 6), 1),
    "delay-adaptive, drop": (
        rules.delay_adaptive_asgd("drop", 6),
        lambda: papers.DelayAdaptiveASGD(1.0, 6, "drop"),
        1,
    ),
    "delay-adaptive, bound": (
        rules.delay_adaptive_asgd("bound", 6, smoothness=3.0),
        lambda: papers.DelayAdaptiveASGD(1.0, 6, "bound", 3.0, 1.0),
        1,
    ),
    "sasgd": (rules.sasgd(), lambda: papers.SASGD(1.0), 2),
    "twafl": (rules.twafl(), lambda: papers.TWAFL(1.0), 2),
    "wkafl": (
        rules.wkafl(2, 0.2, 5.0, 0.1),
        lambda: papers.WKAFL(
            1.0,
            momentum=0.2,
            cosine_weight=5.0,
            minimum_similarity=0.1,
            clip_bound=100.0,
            stage_two_bound=10.0,
            stage_two_loss=0.5,
            learning_rate_decay=0.1,
        ),
        2,
    ),
}  # fmt: skip


def late_schedule(buffer_size: int) -> jafl.EventSchedule:
    """Four clients arrive at every whole time; three at 800.5 or 1,600.5: 3,200 steps late, two of them together."""
    slow = delays.constant(800.5 if buffer_size == 1 else 1600.5)
    return jafl.asynchronous(
        num_clients=7,
        concurrency=7,
        buffer_size=buffer_size,
        delay=delays.groups(((4, delays.constant(1.0)), (3, slow))),
        server_steps=3_300,
    )


LATE_IN_THE_DEFAULT_TIER = {"fedbuff"}
IN_FLOAT32 = {name for name in LATE if name.startswith(("fedbuff", "sasgd", "twafl", "wkafl", "reverse"))}


@pytest.mark.few_in_full(3)
@pytest.mark.full
@pytest.mark.parametrize(
    "name, precision",
    [
        pytest.param(name, "float64", marks=() if name in LATE_IN_THE_DEFAULT_TIER else pytest.mark.full)
        for name in LATE
    ]
    + [pytest.param(name, "float32", marks=pytest.mark.full) for name in sorted(IN_FLOAT32)],
)
def test_trips_that_are_thousands_of_steps_late(name: str, precision: str):
    """Every direction equals the reference's; weights of steps whose trips are all as late do not underflow."""
    rule, expected, buffer_size = LATE[name]
    schedule = late_schedule(buffer_size)
    both_late = np.flatnonzero(np.bincount(schedule.step, schedule.staleness >= 3_200) == buffer_size)
    assert len(both_late) >= 1
    updates = np.random.default_rng(1).normal(size=(schedule.num_trips, 3)) + 1
    exact = precision == "float64"
    with jax.enable_x64(exact):
        update_of = fixed.by_trip(schedule, updates)
        history, final = fixed.run(fixed.showing_directions(rule), schedule, update_of, 3)
        directions = fixed.directions(history, 3)
    expected_directions = fixed.reference_directions(expected(), schedule, updates)
    kept = np.ones(len(expected_directions), bool)
    if "applied" in history.step_reports:
        kept = history.step_reports["applied"] > 0
        assert not np.any(kept[both_late])
    tolerance = 1e-9 if exact else 1e-5
    np.testing.assert_allclose(directions[kept], expected_directions[kept], rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(final, -expected_directions.sum(axis=0), rtol=1e-9 if exact else 1e-4)
    assert np.all(np.isfinite(history.weights))
    normalized = ("fedstaleweight", "exponential weighting", "reverse", "wkafl")
    if name.startswith(normalized):
        for step in both_late:
            of_step = history.weights[schedule.step == step]
            assert abs(of_step.sum() - 1) < 10 * tolerance
            assert name == "wkafl" or np.ptp(of_step) < tolerance


@pytest.mark.full
@pytest.mark.parametrize("precision", ["float64", pytest.param("float32", marks=pytest.mark.full)])
def test_fedasync_with_trips_that_are_thousands_of_steps_late(precision: str):
    """Its mixing pulls towards a model that is as old: the whole run against the reference."""
    delay = delays.groups(((4, delays.constant(1.0)), (3, delays.constant(550.5))))
    settings = {"buffer_size": 1, "clients": 7, "concurrency": 7, "delay": delay, "steps": 2_300}
    case = Case("late", rules.fedasync(), lambda: ref.FedAsync(1.0, ref.polynomial(0.5)), **settings)
    history, _ = compare(case, precision)
    assert history.schedule.staleness.max() >= 2_200
    assert 0 < history.weights.min() < 0.03
