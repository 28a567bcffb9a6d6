"""The four papers' rules against the slow reference simulator: same parameters, same decisions."""

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest
import reference as ref
import reference_rules as papers
from against_reference import Case, compare, make_schedule
from quick_compilation import quick_compilation  # noqa: F401
from rule_cases import CASES, CLIENTS, RULES, SCHEDULES, of_rule

from jafl import rules
from jafl.rules import cached

# A float32 decision may differ where what decides is this close to its threshold.
CLOSE = 1e-5


def in_every_precision() -> list:
    """float64 for every case; float32, in which most rules differ by rounding alone, for one schedule each.

    The default tier runs the first variant of each rule in float64 on one schedule, the next rule on the next one.
    The full one runs the first variants in both precisions, the others in float64 on one schedule, in waves side by
    side; what is left are gates.
    """
    pairs = {f"{case.name}; float64": (case, "float64") for case in CASES} | {
        f"{case.name}; float32": (case, "float32") for case in CASES if "slow" in case.name
    }
    schedules = itertools.cycle(SCHEDULES)
    first = {name.partition(",")[0]: name for name in reversed(RULES)}.values()
    default = {
        f"{name}; {schedule}; float64" for name, schedule in zip(reversed(first), schedules, strict=False)
    }

    def tier(name: str) -> Any:
        rare = name.partition(";")[0] not in first and not name.endswith("slow clients; float64")
        return () if name in default else pytest.mark.gate if rare else pytest.mark.full

    return [pytest.param(*pair, id=name, marks=tier(name)) for name, pair in pairs.items()]


# Every rule under every kind of plan: trip by trip, in waves one after the other, in waves side by side.
PLANS = {
    "very unequal clients": {},
    "simultaneous arrivals": {"width": 4, "together": False},
    "slow clients": {"width": 7, "together": True},
}


@pytest.mark.few_in_full(45)
@pytest.mark.few_by_default(8)
@pytest.mark.parametrize("case, precision", in_every_precision())
def test_rule_equals_the_papers(case: Case, precision: str, monkeypatch):
    monkeypatch.setattr(
        cached, "REFRESHED_AFTER", 3
    )  # so that sums are computed anew within these short runs
    plan = PLANS[case.name.split("; ")[1]] if precision == "float64" else {}
    history, expected = compare(case, precision, bound=1e-12 if precision == "float64" else None, **plan)
    reports, exact = history.step_reports, precision == "float64"

    def same_decisions(name, expected_decisions, distances):
        differs = reports[name] != np.array(expected_decisions)
        assert not np.any(differs & ((np.abs(distances) > CLOSE) | exact)), f"{name} differs"

    def theirs(name):
        return [report[name] for report in expected.reports]

    if case.name.startswith("wkafl"):
        same_decisions("stage", theirs("stage"), np.array(theirs("losses_mean")) - expected.stage_two_loss)
        if "no gradient selection" not in case.name:
            nearest = np.abs(np.array(theirs("cosines")) - expected.minimum_similarity).min(axis=1)
            same_decisions("kept", theirs("kept"), nearest)
        np.testing.assert_allclose(reports["weight"], theirs("weights"), atol=1e-7 if exact else 1e-3)
        np.testing.assert_allclose(reports["rate_scale"], theirs("factor"), rtol=1e-9 if exact else 1e-5)
    if case.name.startswith("aced"):
        sizes = np.array([len(active) for active in theirs("active")])
        np.testing.assert_array_equal(reports["active_clients"], sizes)
        assert ("applied" in reports) == ("cached" in case.name)
        np.testing.assert_array_equal(reports.get("applied", np.ones(120)), sizes > 0)
    if case.name.startswith("ca2fl"):
        np.testing.assert_array_equal(reports["distinct_clients"], theirs("clients"))
    if case.name.startswith("gsgm"):
        np.testing.assert_array_equal(reports["round"], theirs("round"))
    if case.name.startswith("zeno"):
        score = np.array(theirs("score"))
        np.testing.assert_allclose(
            reports["score"], score, rtol=1e-8 if exact else 1e-4, atol=1e-10 if exact else 1e-5
        )
        same_decisions("applied", theirs("accepted"), score + expected.gamma * expected.epsilon)
    if case.name.startswith("port"):
        weights = np.concatenate(theirs("weights"))
        np.testing.assert_allclose(history.weights, weights, rtol=1e-7 if exact else 1e-3)
        assert np.ptp(weights) > 0.05
    if "interrupts" in case.name and "simultaneous" not in case.name:
        steps = history.schedule.local_steps
        assert steps.max() == 6 and len(set(steps)) > 3 and history.schedule.staleness.max() == 2
    if case.name.startswith("asyncfeded"):
        np.testing.assert_allclose(reports["distance_ratio"], theirs("ratio"), rtol=1e-7 if exact else 1e-3)
        assert "simultaneous" in case.name or max(theirs("ratio")) > 2
    if case.name.startswith("fadas") and "no delay" not in case.name:
        np.testing.assert_allclose(reports["applied"], theirs("factor"), rtol=1e-12 if exact else 1e-6)
        assert "simultaneous" in case.name or min(theirs("factor")) < 1, "no step is scaled"
    if case.name.startswith("delay-adaptive, drop"):
        np.testing.assert_array_equal(reports["applied"], np.array(theirs("factor")) > 0)


@pytest.mark.parametrize("name", RULES)
def test_the_table_holds_hard_schedules(name: str):
    """For every rule: arrivals that share an instant, and where it can be a client twice in one buffer."""
    schedules = [make_schedule(case) for case in of_rule(name)]
    assert any(len(np.unique(s.arrival_time)) < s.num_trips for s in schedules)
    pairs = [s.step.astype(np.int64) * CLIENTS + s.client for s in schedules]
    twice = [len(np.unique(each)) < len(each) for each in pairs]
    case = RULES[name]
    waits = case.restart == "after_step" or (
        case.restart == "after_round" and CLIENTS % case.buffer_size == 0
    )
    assert any(twice) == (
        case.buffer_size > 1 and not waits and not case.due and not (case.tiers or case.polls)
    )


@pytest.mark.full
def test_the_table_holds_what_it_promises():
    """WKAFL selects and changes its stage, trips are dropped and refused, no client is active at some steps."""
    slow = next(case for case in CASES if case.name == "wkafl; slow clients")
    history, _ = compare(slow, "float64")
    assert set(np.unique(history.step_reports["stage"])) == {1.0, 2.0}
    assert history.step_reports["kept"].min() > 0 or history.step_reports["kept"].max() < 5
    assert len(np.unique(history.step_reports["kept"])) > 1
    by_sum, _ = compare(
        next(case for case in CASES if case.name == "wkafl, sum of losses; slow clients"), "float64"
    )
    stages = by_sum.step_reports["stage"]
    assert set(np.unique(stages)) == {1.0, 2.0}
    assert np.any(stages != history.step_reports["stage"]), "the mean's threshold is another one"
    for name in ("delay-adaptive, drop", "zeno++", "zeno++, lazy", "aced by cached age, 2"):
        for case in of_rule(name):
            if name == "delay-adaptive, drop" and "simultaneous" in case.name:
                continue  # all trips are as stale
            applied = compare(case, "float64")[0].step_reports["applied"]
            assert 10 < np.sum(applied) < 110, case.name


@pytest.mark.full
@pytest.mark.parametrize("name", ["gsgm, whole rounds", "gsgm, steps across rounds"])
def test_the_momentum_of_gsgm_matters(name: str):
    """Without it the case ends elsewhere by far more than the comparison with the reference allows."""
    case = of_rule(name)[-1]
    without = dataclasses.replace(case, rule=rules.gsgm(0.0), expected_rule=lambda: papers.GSGM(1.0, 0.0))
    histories = [compare(each, "float64")[0] for each in (case, without)]
    first, second = (ref.float64_copy(history.params) for history in histories)
    assert ref.norm(ref.subtract(first, second)) > 0.1 * ref.norm(second)
