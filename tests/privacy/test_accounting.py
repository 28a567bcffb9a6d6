"""The report of a run: its three epsilons, its conditions, and what is refused."""

import json

import dp_accounting
import numpy as np
import pytest
from quick_compilation import quick_compilation  # noqa: F401

import jafl
from jafl.base.errors import SettingError
from jafl.privacy import (
    MECHANISMS,
    Mechanism,
    account,
    encoder,
    epsilon_of,
    noise_for,
    sensitivities,
    trip_weights,
)

FEDBUFF = jafl.rules.fedbuff()
GIVEN = {"clip_norm": 0.5, "delta": 1e-5, "noise_multiplier": 4.0}


def schedule_of(**changes):
    given = {"num_clients": 30, "concurrency": 12, "buffer_size": 4, "client_trips": 200, "seed": 3}
    return jafl.asynchronous(delay=jafl.delays.half_normal(1.0), **(given | changes))


SCHEDULE = schedule_of()


@pytest.fixture(scope="module")
def report():
    return account(SCHEDULE, FEDBUFF, **GIVEN)


@pytest.mark.few_by_default(2)
@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize(
    "schedule", [SCHEDULE, schedule_of(seed=8, num_clients=13, buffer_size=1, client_trips=64)]
)
def test_the_realised_epsilon_is_that_of_the_mechanism_as_a_matrix(mechanism, schedule):
    """Brute force for each client: ||C u|| with the rule's weights, and dp-accounting's epsilon of it."""
    found = account(schedule, FEDBUFF, **GIVEN, mechanism=mechanism)
    weights = trip_weights(FEDBUFF, schedule)
    matrix = encoder(found.mechanism, schedule.num_steps)
    added = np.zeros((schedule.num_clients, schedule.num_steps))
    np.add.at(added, (schedule.client, schedule.step), weights * GIVEN["clip_norm"])
    moved = np.linalg.norm(added @ matrix.T, axis=1)
    deviation = GIVEN["noise_multiplier"] * GIVEN["clip_norm"] * weights.max()
    assert np.isclose(found.noise_deviation, deviation, rtol=1e-12)
    expected = [dp_accounting.get_epsilon_gaussian(deviation / each, GIVEN["delta"]) for each in moved]
    assert np.allclose(found.per_client_epsilon, expected, rtol=1e-9)
    assert np.isclose(found.epsilon_realised, max(expected), rtol=1e-9)
    assert found.epsilon_realised <= found.epsilon_worst_case
    assert found.epsilon_worst_found <= found.epsilon_worst_case


@pytest.mark.few_by_default(2)
@pytest.mark.parametrize("reading", ["once", "realised", "worst_case"])
def test_the_noise_for_an_epsilon_gives_that_epsilon_in_its_reading(reading):
    given = GIVEN | {"noise_multiplier": None, "epsilon": 2.5, "epsilon_reading": reading}
    found = account(SCHEDULE, FEDBUFF, **given, mechanism="tree", restarts=2)
    assert np.isclose(getattr(found, f"epsilon_{reading}"), 2.5, rtol=1e-9)
    assert (found.epsilon, found.epsilon_reading) == (2.5, reading)
    again = account(
        SCHEDULE, FEDBUFF, **GIVEN | {"noise_multiplier": found.noise_multiplier}, mechanism=found.mechanism
    )
    assert np.isclose(again.epsilon_realised, found.epsilon_realised) and again.epsilon is None


def test_once_agrees_with_dp_accounting_s_event_for_one_pass():
    """A tree over a power of two steps, each client once: its divergences are a Gaussian's of as many levels."""
    schedule = jafl.synchronous(
        num_clients=256, cohort_size=4, client_trips=256, delay=jafl.delays.half_normal(1.0)
    )
    found = sensitivities(schedule, jafl.rules.fedavg(), mechanism="tree")
    accountant = dp_accounting.rdp.RdpAccountant(
        neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_SPECIAL
    )
    accountant.compose(dp_accounting.SingleEpochTreeAggregationDpEvent(3.0, [schedule.num_steps]))
    alone = dp_accounting.rdp.RdpAccountant(
        neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_SPECIAL
    )
    alone.compose(dp_accounting.GaussianDpEvent(3.0 / np.sqrt(found.once)))
    assert np.isclose(accountant.get_epsilon(1e-6), alone.get_epsilon(1e-6), rtol=1e-12)
    assert epsilon_of(np.sqrt(found.once) / 3.0, 1e-6) < alone.get_epsilon(1e-6)


def test_one_pass_is_what_once_says():
    """Selection without replacement: nobody moves more than the published reading says."""
    one_pass = schedule_of(num_clients=400, client_trips=300, most_trips=1)
    found = sensitivities(one_pass, jafl.rules.fedavg(), mechanism="tree")
    assert found.pattern.most_trips == 1 and found.pattern.smallest_gap is None and not found.pattern.repeated
    assert found.realised <= found.once == found.worst.bound == found.worst.found


def test_more_noise_less_epsilon_more_clip_the_same(report):
    more = account(SCHEDULE, FEDBUFF, **GIVEN | {"noise_multiplier": 5.0})
    assert (more.per_client_epsilon <= report.per_client_epsilon).all()
    assert more.epsilon_once < report.epsilon_once and more.epsilon_worst_case < report.epsilon_worst_case
    wider = account(SCHEDULE, FEDBUFF, **GIVEN | {"clip_norm": 50.0})
    assert (
        wider.epsilon_realised == report.epsilon_realised and wider.noise_deviation > report.noise_deviation
    )


def test_what_the_models_alone_tell_is_less(report):
    models = account(SCHEDULE, FEDBUFF, **GIVEN, published="models")
    assert (models.per_client_epsilon <= report.per_client_epsilon * (1 + 1e-12)).all()
    assert models.epsilon_realised < report.epsilon_realised and models.epsilon_once < report.epsilon_once
    assert models.epsilon_worst_case == report.epsilon_worst_case
    assert models.to_dict()["published"] == "models" and report.to_dict()["published"] == "nodes"


def test_a_constant_weight_costs_more_than_one_that_falls_with_staleness(report):
    constant = account(SCHEDULE, jafl.rules.fedavg(), **GIVEN)
    assert constant.epsilon_realised > report.epsilon_realised
    assert constant.unit == report.unit == 0.25


def test_what_the_report_says(report):
    record = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert record["epsilon_realised"] == report.epsilon_realised and record["adjacency"] == "zero-out"
    assert record["unit_of_privacy"] == "one client" and record["mechanism"]["name"] == "tree_honaker"
    assert (
        record["epsilon_of_clients"]["median"]
        <= record["epsilon_of_clients"]["99 %"]
        <= record["epsilon_realised"]
    )
    counts = np.bincount(SCHEDULE.client, minlength=30)
    assert record["most_trips"] == counts.max() and record["clients_with_more_than_one_trip"] == np.sum(
        counts > 1
    )
    text = " ".join(report.conditions)
    for part in (
        "zero-out",
        "L2 norm of 0.5",
        "fedbuff follow from the schedule alone",
        "seed",
        "learning rates",
    ):
        assert part in text
    assert "realised" in repr(report) and "\n" not in repr(report)
    assert "<svg" in report._repr_html_()


@pytest.mark.full
def test_counts_that_weights_or_durations_follow_from_are_said_to_be_public():
    sizes = 1 + np.arange(30)
    found = account(
        SCHEDULE, jafl.rules.fedavg(True), **GIVEN, num_examples=sizes,
        data_in_schedule=["how many examples each client holds"],
    )  # fmt: skip
    text = " ".join(found.conditions)
    assert (
        "weights of fedavg also follow from how many examples each client holds: these numbers are public"
        in text
    )
    assert "schedule depends on how many examples each client holds: these numbers are public" in text


@pytest.mark.parametrize(("delta", "large"), [(0.5, True), (1 / 30, True), (0.033, False), (1e-5, False)])
def test_a_delta_that_lets_one_client_be_published_is_told(delta, large):
    found = account(SCHEDULE, FEDBUFF, **(GIVEN | {"delta": delta}))
    said = [sentence for sentence in found.conditions if "is not below 1 / 30" in sentence]
    assert len(said) == large and said == [
        each for each in found.to_dict()["conditions"] if "not below" in each
    ]
    for shown in (repr(found), found._repr_html_()):
        assert ("not below 1 / 30 clients" in shown) == large


def test_without_noise_nothing_is_claimed():
    found = account(SCHEDULE, FEDBUFF, clip_norm=np.inf, delta=1e-5, noise_multiplier=0)
    assert found.epsilon_once == found.epsilon_realised == found.epsilon_worst_case == np.inf
    idle = np.bincount(SCHEDULE.client, minlength=30) == 0
    assert np.isinf(found.per_client_epsilon[~idle]).all() and not found.per_client_epsilon[idle].any()
    assert found.conditions[0] == "There is no noise: nothing is claimed." and found.noise_deviation == 0
    assert json.loads(json.dumps(found.to_dict(), allow_nan=False))["epsilon_realised"] == "inf"
    assert "PrivacyReport" in found._repr_html_()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"clip_norm": 0}, "clip_norm is 0, but must be a number above 0"),
        ({"clip_norm": -1.0}, "clip_norm is -1.0"),
        ({"clip_norm": np.nan}, "clip_norm is nan"),
        ({"clip_norm": "small"}, "clip_norm is 'small'"),
        ({"clip_norm": np.inf}, "clip_norm is inf, but must be finite where there is noise"),
        ({"delta": 0.0}, "delta is 0.0"),
        ({"delta": 1}, "delta is 1"),
        ({"noise_multiplier": None}, r"noise_multiplier and epsilon is \(None, None\)"),
        ({"epsilon": 6.0}, r"noise_multiplier and epsilon is \(4.0, 6.0\)"),
        ({"noise_multiplier": -1.0}, "noise_multiplier is -1.0"),
        ({"noise_multiplier": np.inf}, "noise_multiplier is inf"),
        ({"noise_multiplier": 1e35}, "deviation of the noise is"),
        (
            {"noise_multiplier": 1e-200},
            "deviation of the noise is .*e-20.*, but must be 0, or from 1e-30 to below",
        ),
        (
            {"noise_multiplier": None, "epsilon": 1e100},
            "epsilon is 1e.100, .*can be met.* take a smaller epsilon",
        ),
        ({"noise_multiplier": None, "epsilon": 0.0}, "epsilon is 0.0"),
        ({"noise_multiplier": None, "epsilon": -6.0}, "epsilon is -6.0"),
        ({"noise_multiplier": None, "epsilon": 1e-40, "delta": 1e-40}, "epsilon is 1e-40, .*can be met"),
        ({"epsilon_reading": "true"}, "epsilon_reading is 'true'.*realised"),
        ({"mechanism": "binary"}, "mechanism is 'binary'"),
        ({"mechanism": "tree", "restarts": 50}, "restarts is 50.*server steps, 50"),
        ({"mechanism": Mechanism("tree", 50)}, "restarts is 50"),
        ({"mechanism": "independent", "restarts": 1}, "restarts is 1"),
        ({"mechanism": "banded_toeplitz", "bands": 0}, "bands is 0"),
    ],
)
def test_what_cannot_be_is_refused(changes, said):
    with pytest.raises(SettingError, match=said):
        account(SCHEDULE, FEDBUFF, **(GIVEN | changes))


def test_noise_that_is_nothing_beside_what_it_hides_protects_nobody():
    found = account(SCHEDULE, FEDBUFF, clip_norm=1e300, delta=1e-5, noise_multiplier=1e-320)
    assert found.epsilon_once == found.epsilon_realised == found.epsilon_worst_case == np.inf


def test_rules_and_schedules_that_do_not_fit_are_refused():
    with pytest.raises(SettingError, match="rule is ace.*Eligible are"):
        account(SCHEDULE, jafl.rules.ace(), **GIVEN)
    with pytest.raises(SettingError, match="schedule is 'schedule'"):
        account("schedule", FEDBUFF, **GIVEN)
    nothing_counts = jafl.rules.fedbuff(lambda staleness: 0.0 * staleness)
    with pytest.raises(SettingError, match="largest weight of a trip is 0.0"):
        account(SCHEDULE, nothing_counts, **GIVEN)
    with pytest.raises(SettingError, match="epsilon_reading is 'never'"):
        noise_for(sensitivities(SCHEDULE, FEDBUFF), 1.0, 1e-5, "never")


@pytest.mark.full
@pytest.mark.parametrize(
    ("clients", "size", "rule", "expected"),
    [
        (660_120, 10, jafl.rules.fedavg(), (8, 152_464, 16, 187, 720, 26.2, 17.3)),
        (660_120, 10, FEDBUFF, (8, 152_464, 16, 38.5, 720, 9.95, 6.05)),
    ],
)
def test_a_schedule_of_sentiment140_s_size(clients, size, rule, expected):
    """The numbers of docs/privacy.md, in at most 30 seconds of the processor."""
    import time

    schedule = jafl.asynchronous(
        num_clients=clients,
        concurrency=1000,
        buffer_size=size,
        client_trips=600_000,
        delay=jafl.delays.half_normal(1.0),
    )
    began = time.process_time()
    found = account(
        schedule, rule, clip_norm=1.0, delta=1e-7, epsilon=6, epsilon_reading="once", mechanism="tree"
    )
    seconds = time.process_time() - began
    squares = found.squared_sensitivities
    got = (
        found.pattern.most_trips,
        found.pattern.repeated,
        *(squares[name] for name in ("once", "realised", "worst_case")),
        found.epsilon_realised,
        np.quantile(found.per_client_epsilon, 0.999),
    )
    assert np.allclose(got, expected, rtol=3e-3)
    assert seconds < 30
