"""The weights that rules report are the factors with which updates enter the model, by linearity.

Each trip's update is a unit vector of its own. So the entries of every direction are the factors of the trips in it,
and after plain SGD with rate 1 from a model of zeros the parameters are the weights, trip by trip. What they should
be the reference's rule says, fed with the same unit vectors.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import fixed_updates as fixed
import numpy as np
import pytest
import reference as ref
import reference_rules as papers
from quick_compilation import quick_compilation  # noqa: F401
from tiers import in_tiers

import jafl
from jafl import delays, rules

CLIENTS = 7


pytestmark = pytest.mark.usefixtures("float64")


def make_schedule(buffer_size: int = 1, initial_round: bool = False, **changes) -> jafl.EventSchedule:
    settings = {
        "num_clients": CLIENTS,
        "concurrency": CLIENTS,
        "buffer_size": buffer_size,
        "delay": delays.once_per_client(delays.log_normal(1.0, 1.2)),
        "server_steps": 150 if buffer_size == 1 else 50,
        "initial_round": initial_round,
        "seed": 4,
    }
    return jafl.asynchronous(**{**settings, **changes})


def run(rule: Any, schedule: jafl.EventSchedule) -> tuple[jafl.History, np.ndarray]:
    """The history, and the factor of each trip in the final model [J]."""
    trips = schedule.num_trips
    return fixed.run(rule, schedule, fixed.by_trip(schedule, np.eye(trips)), trips)


def expected_factors(rule: ref.Rule, schedule: jafl.EventSchedule) -> np.ndarray:
    """[T, J]: the factor of each trip in minus each step's direction, by the reference's rule."""
    return -fixed.reference_directions(rule, schedule, np.eye(schedule.num_trips))


@dataclasses.dataclass(frozen=True)
class Weighing:
    """A rule of the package, the reference's, and its schedule."""

    rule: Any
    expected: Callable[[], ref.Rule]
    buffer_size: int = 4
    initial_round: bool = False
    options: dict[str, Any] = dataclasses.field(default_factory=dict)  # of the schedule


def cached(rule: Any, expected: Callable[[], ref.Rule], buffer_size: int = 1) -> Weighing:
    return Weighing(rule, expected, buffer_size, True)


def aced(threshold: int, age: str, buffer_size: int = 1) -> Weighing:
    return cached(rules.aced(threshold, age), lambda: papers.ACED(1.0, threshold, age), buffer_size)


WEIGHINGS = {
    "ace": cached(rules.ace(), lambda: papers.ACE(1.0)),
    "ace, direct": cached(rules.ace("direct"), lambda: papers.ACE(1.0)),
    **{
        f"aced by {age}, {threshold}": aced(threshold, age)
        for age, thresholds in (("start", (1, 8, 40)), ("cached", (1, 3, 8)))
        for threshold in thresholds
    },
    "ace in buffers": cached(rules.ace(), lambda: papers.ACE(1.0), 4),
    "ace in buffers, direct": cached(rules.ace("direct"), lambda: papers.ACE(1.0), 4),
    "aced in buffers": aced(2, "start", 4),
    "aced in buffers, by cached": aced(2, "cached", 4),
    "ca2fl": Weighing(rules.ca2fl(), papers.CA2FL),
    "ca2fl, changes with the step": Weighing(rules.ca2fl("step"), lambda: papers.CA2FL("step")),
    "ca2fl, one trip a step": Weighing(rules.ca2fl(), papers.CA2FL, 1),
    "fedfa, updates": Weighing(rules.fedfa(4, "updates"), lambda: papers.FedFa(4, False), 1),
    "mifa": Weighing(rules.mifa(), papers.MIFA),
    "dude-asgd": Weighing(rules.dude_asgd(), lambda: papers.DuDeASGD(1.0), 4, True),
    "ringleader": Weighing(
        rules.ringleader(),
        lambda: papers.Ringleader(1.0),
        options={"step_when": "each_client_once_a_round", "buffer_size": None},
    ),
    "generalized async sgd": Weighing(
        rules.generalized_async_sgd([1, 2, 3, 4, 5, 6, 7]),
        lambda: papers.GeneralizedAsyncSGD(1.0, np.arange(1, 8) / 28),
        1,
    ),
    "malenia": Weighing(
        rules.malenia(),
        lambda: papers.Malenia(1.0),
        options={"step_when": "harmonic_mean", "server_steps": 8},
    ),
    "fedfix": Weighing(
        rules.fedfix(),
        lambda: papers.FedFix(0.5),
        options={"step_every": 0.5, "restart": "after_step", "buffer_size": None},
    ),
    "fedbuff": Weighing(rules.fedbuff(), ref.FedBuff),
    "fedbuff, by examples": Weighing(
        rules.fedbuff(weigh_by_examples=True), lambda: ref.FedBuff(weight_by_examples=True)
    ),
    "fedstaleweight, equation 8": Weighing(rules.fedstaleweight(), papers.FedStaleWeight),
    "fedstaleweight, algorithm 1": Weighing(
        rules.fedstaleweight("algorithm_1"), lambda: papers.FedStaleWeight("algorithm_1")
    ),
    "fednova": Weighing(rules.fednova(), lambda: papers.FedNova(lambda trip: fixed.local_steps(trip.client))),
    "twafl": Weighing(rules.twafl(), lambda: papers.TWAFL(1.0)),
    "delay-adaptive, drop": Weighing(
        rules.delay_adaptive_asgd("drop", 8), lambda: papers.DelayAdaptiveASGD(1.0, 8, "drop"), 1
    ),
    "delay-adaptive, scale": Weighing(
        rules.delay_adaptive_asgd("scale", 8), lambda: papers.DelayAdaptiveASGD(1.0, 8), 1
    ),
    "rescaled asgd, trip": Weighing(rules.rescaled_asgd("trip"), lambda: papers.RescaledASGD(1.0, "trip"), 1),
    "rescaled asgd, frequency": Weighing(
        rules.rescaled_asgd("frequency"), lambda: papers.RescaledASGD(1.0, "frequency"), 1
    ),
    # Above a staleness of 3 the factor is 1 / (0.36 * staleness).
    "delay-adaptive, bound": Weighing(
        rules.delay_adaptive_asgd("bound", 3, smoothness=0.3, server_learning_rate=0.3),
        lambda: papers.DelayAdaptiveASGD(1.0, 3, "bound", 0.3, 0.3),
        1,
    ),
}
DEFAULT_TIER = (
    "fedbuff",
    "fednova",
    "twafl",
    "ace",
    "aced by cached, 3",
    "ace in buffers",
    "aced in buffers",
    "ca2fl",
    "ca2fl, changes with the step",
)
DEFAULT_TIER += tuple(name for name in WEIGHINGS if name.startswith("delay-adaptive"))


@pytest.mark.full
@pytest.mark.few_in_full(13)
@pytest.mark.parametrize("name", in_tiers(WEIGHINGS.keys(), DEFAULT_TIER))
def test_weights_are_the_factors_of_the_updates(name: str):
    case = WEIGHINGS[name]
    schedule = make_schedule(
        **{"buffer_size": case.buffer_size, "initial_round": case.initial_round} | case.options
    )
    factors = expected_factors(case.expected(), schedule)
    history, applied = run(case.rule, schedule)
    np.testing.assert_allclose(history.weights, factors.sum(axis=0), atol=1e-9)
    np.testing.assert_allclose(applied, factors.sum(axis=0), atol=1e-9)
    by_client = np.bincount(schedule.client, factors.sum(axis=0), CLIENTS)
    np.testing.assert_allclose(history.influence, by_client / factors.sum(), atol=1e-9)
    assert np.ptp(factors.sum(axis=0)) > 0.01, "all weights are the same, so little is compared"


def test_clients_arrive_twice_in_a_buffer():
    schedule = make_schedule(4)
    pairs = schedule.step.astype(np.int64) * CLIENTS + schedule.client
    assert np.unique(pairs, return_counts=True)[1].max() >= 3


@pytest.mark.full
@pytest.mark.parametrize(("form", "buffer_size"), [("incremental", 1), ("direct", 1), ("incremental", 4)])
def test_every_client_has_the_same_influence_in_ace(form, buffer_size):
    """1 / N per step and client, however unequal their numbers of trips are."""
    schedule = make_schedule(buffer_size, True)
    history, _ = run(rules.ace(form), schedule)
    total = np.bincount(schedule.client, history.weights, CLIENTS)
    np.testing.assert_allclose(total, schedule.num_steps / CLIENTS, rtol=1e-12)
    np.testing.assert_allclose(history.influence, 1 / CLIENTS, rtol=1e-12)
    trips = np.bincount(schedule.client, minlength=CLIENTS)
    assert trips.max() > 10 * trips.min()


@pytest.mark.full
def test_the_last_update_of_a_client_that_has_left_stays_in_mifas_mean_for_ever():
    """Its weight is 1 / N for its own step and each one after it."""
    schedule = make_schedule(4, dropout=jafl.Dropout(clients=[2, 5], trips=2))
    _, applied = run(rules.mifa(), schedule)
    for client in (2, 5):
        last = np.flatnonzero(schedule.client == client)[-1]
        assert schedule.step[last] < 35
        np.testing.assert_allclose(applied[last], (50 - schedule.step[last]) / CLIENTS, rtol=1e-12)


@pytest.mark.full
def test_the_weights_of_aced_are_one_per_step_that_is_taken():
    for threshold, age in ((1, "start"), (3, "cached")):
        history, _ = run(rules.aced(threshold, age), make_schedule(1, True))
        taken = history.step_reports.get("applied", np.ones(150)).sum()
        np.testing.assert_allclose(history.weights.sum(), taken, rtol=1e-12)
    assert 0 < taken < 150


@pytest.mark.full
@pytest.mark.parametrize("selection", [True, False])
def test_weights_of_wkafl(selection: bool):
    """Without momentum and clipping its direction is linear, given the weights: times equation 10's factor."""
    schedule = make_schedule(4)
    numbers = {"momentum": 0.0, "cosine_weight": 3.0, "clip_norm": 1e9, "stage_two_loss": 0.0}
    rule = rules.wkafl(4, **numbers, smallest_cosine=0.3, staleness_decay=0.2, gradient_selection=selection)
    expected = papers.WKAFL(
        1.0,
        momentum=0.0,
        minimum_similarity=0.3,
        cosine_weight=3.0,
        learning_rate_decay=0.2,
        without=None if selection else "gradient_selection",
    )
    factors = expected_factors(expected, schedule).sum(axis=0)
    history, applied = run(rule, schedule)
    weights = np.concatenate([report["weights"] for report in expected.reports])
    np.testing.assert_allclose(history.weights, weights, atol=1e-9)
    np.testing.assert_allclose(applied, factors, atol=1e-9)
    np.testing.assert_allclose(
        history.weights * history.step_reports["rate_scale"][schedule.step], factors, atol=1e-9
    )
    assert np.any(history.weights == 0) == selection


@pytest.mark.parametrize("name", in_tiers(["fedbuff", "ace", "aced by start, 8", "ca2fl"], ["ca2fl"]))
def test_the_weights_of_a_stopped_run_are_those_of_its_own_steps(name: str):
    """What a trip's update would have weighed in steps that were never taken does not count."""
    case = WEIGHINGS[name]
    schedule = make_schedule(case.buffer_size, case.initial_round)
    trips = schedule.num_trips
    asked = iter([False, True])
    history, applied = fixed.run(
        case.rule,
        schedule,
        fixed.by_trip(schedule, np.eye(trips)),
        trips,
        evaluate_at=[20],
        should_stop=lambda: next(asked),
    )
    done = history.server_steps
    assert 0 < done < schedule.num_steps
    factors = expected_factors(case.expected(), schedule)[:done].sum(axis=0)
    np.testing.assert_allclose(applied, factors, atol=1e-9)
    np.testing.assert_allclose(history.weights, factors[: len(history.weights)], atol=1e-9)


@pytest.mark.full
def test_a_refused_update_of_zeno_plus_plus_has_no_weight():
    """Its direction is the update times the ratio of two norms, or none: that is what it weighs."""
    schedule = make_schedule()
    features = -(-schedule.num_trips // fixed.CLASSES)

    def own_gradient(params):
        """Negative for one trip in two, positive for the others: unit vectors descend along the first."""
        signs = np.where(np.arange(features * fixed.CLASSES) % 2, -0.1, 0.1).reshape(features, fixed.CLASSES)
        return {"dense": {"kernel": signs, "bias": np.zeros(fixed.CLASSES)}}

    history, applied = run(rules.zeno_plus_plus(own_gradient, gamma=1.0, epsilon=0.0), schedule)
    accepted = history.step_reports["applied"] > 0
    assert 0 < accepted.sum() < schedule.num_steps
    np.testing.assert_array_equal(applied > 0, accepted)
    np.testing.assert_allclose(history.weights, applied, atol=1e-9)


def test_the_weights_of_gsgm():
    """Without momentum an update enters its own step alone, with 1 / K."""
    schedule = make_schedule(4, restart="after_round")
    factors = expected_factors(papers.GSGM(1.0, 0.0), schedule).sum(axis=0)
    np.testing.assert_allclose(factors, 1 / 4)
    history, applied = run(rules.gsgm(0.0), schedule)
    np.testing.assert_allclose(applied, factors, atol=1e-9)
    np.testing.assert_allclose(history.weights, factors, atol=1e-9)
