"""Where rules end if the losses of clients are quadratic: at the plain optimum, or at another that is known."""

import numpy as np
import pytest
import quadratics
from quick_compilation import quick_compilation  # noqa: F401

import jafl
from jafl import delays, rules

pytestmark = pytest.mark.usefixtures("float64")

UNEQUAL = delays.groups(((3, delays.constant(1.0)), (2, delays.constant(4.0))))  # they arrive 4 times for 1


@pytest.mark.few_in_full(1)
@pytest.mark.full
@pytest.mark.parametrize("name", ["asgd", "rescaled_asgd"])
def test_rescaled_steps_end_at_the_plain_optimum_and_equal_ones_at_that_of_the_frequent(name: str):
    """In the limit of small steps: the error of the first order goes, if the end at twice the rate is subtracted."""
    whole, half = (
        quadratics.run(
            rules.RULES[name](),
            # 215 times, or twice as many, what repeats itself: 3 clients that arrive four times and 2 that do once.
            jafl.asynchronous(
                num_clients=5, concurrency=5, buffer_size=1, delay=UNEQUAL, server_steps=14 * 215 * more
            ),
            rate=1.0,
            server_rate=0.01 / more,
        )[-1]
        for more in (1, 2)
    )
    ends = {
        "rescaled_asgd": quadratics.optimum(np.ones(5)),
        "asgd": quadratics.optimum(np.array([1, 1, 1, 0.25, 0.25])),
    }
    assert np.linalg.norm(ends["asgd"] - ends["rescaled_asgd"]) > 0.2
    assert np.linalg.norm(2 * half - whole - ends[name]) < 2e-4


# (rule, options of the schedule, server's rate, how near it ends): Malenia's and Ringleader's ends are exact, FedFix
# goes round the optimum in a circle as small as its rate.
AT_THE_OPTIMUM = {
    "malenia": (rules.malenia(), {"step_when": "harmonic_mean", "buffer_size": 7}, 0.3, 1e-9),
    "ringleader": (rules.ringleader(), {"step_when": "each_client_once_a_round"}, 0.05, 1e-9),
    "fedfix": (rules.fedfix(), {"step_every": 1.5, "restart": "after_step"}, 0.002, 0.02),
}


@pytest.mark.few_in_full(2)
@pytest.mark.full
@pytest.mark.parametrize("name", [*AT_THE_OPTIMUM, "rennala"])
def test_whose_protocol_makes_all_clients_count_the_same_ends_at_the_plain_optimum(name: str):
    """At unequal speeds; Rennala SGD ends where the 5 gradients that come first want it."""
    rennala = rules.fedavg(), {"cancel_at_step": True, "buffer_size": 5}, 0.3, 1e-9
    rule, options, server_rate, near = AT_THE_OPTIMUM.get(name, rennala)
    schedule = jafl.asynchronous(num_clients=5, concurrency=5, delay=UNEQUAL, server_steps=3_000, **options)
    model = quadratics.run(rule, schedule, rate=1.0, server_rate=server_rate)[-1]
    plain, quick = (quadratics.optimum(np.array(weights, float)) for weights in ([1] * 5, [2, 2, 1, 0, 0]))
    assert np.linalg.norm(plain - quick) > 0.3
    assert np.linalg.norm(model - (quick if name == "rennala" else plain)) < near


@pytest.mark.full
@pytest.mark.parametrize("name, buffer_size", [("area", 1), ("area", 3), ("mifa", 3)])
def test_all_clients_count_the_same_where_area_and_mifa_end(name: str, buffer_size: int):
    """FedAvg's fixed point with everybody, (sum P_i)^-1 sum P_i b_i, P_i = 1 - (1 - rate a_i)^Q, at any speeds."""
    schedule = jafl.asynchronous(
        num_clients=5,
        concurrency=5,
        buffer_size=buffer_size,
        delay=UNEQUAL,
        server_steps=1_500 // buffer_size,
    )
    server_rate = {"area": 1.0, "mifa": 0.1}[name]
    models = quadratics.run(rules.RULES[name](), schedule, rate=0.2, steps=4, server_rate=server_rate)
    curvature, minimum = quadratics.clients(5)
    pull = 1 - (1 - 0.2 * curvature) ** 4
    end = (pull * minimum).sum(axis=0) / pull.sum(axis=0)
    np.testing.assert_allclose(models[-1], end, atol=1e-9)
    assert np.linalg.norm(end - quadratics.optimum(np.ones(5))) > 0.02
    assert np.linalg.norm(models[5] - end) > 0.1


@pytest.mark.full
def test_rounds_of_those_who_are_there_are_unbiased_with_mifa_and_not_with_fedavg():
    """Clients that take part with 0.2 to 1: MIFA stays at FedAvg's fixed point with everybody once it is there."""
    chances, server_rate = np.linspace(0.2, 1.0, 5), 0.1
    schedule = jafl.synchronous(
        num_clients=5, participation=chances, delay=delays.constant(1.0), server_steps=1_000
    )
    curvature, minimum = quadratics.clients(5)
    pull = 1 - (1 - 0.2 * curvature) ** 4
    end = (pull * minimum).sum(axis=0) / pull.sum(axis=0)
    models = quadratics.run(rules.mifa(), schedule, rate=0.2, steps=4, server_rate=server_rate)
    np.testing.assert_allclose(models[-1], end, atol=1e-9)
    plain = quadratics.run(rules.fedavg(), schedule, rate=0.2, steps=4, server_rate=server_rate)
    assert np.linalg.norm(plain[500:].mean(axis=0) - end) > 0.1


@pytest.mark.full
def test_the_model_of_area_is_the_mean_of_the_newest_models_after_every_step():
    schedule = jafl.asynchronous(
        num_clients=5, concurrency=4, buffer_size=3, delay=delays.exponential(1.0), server_steps=60
    )
    models = quadratics.run(rules.area(), schedule, rate=0.2, steps=4)
    curvature, minimum = quadratics.clients(5)
    newest = np.zeros((5, quadratics.SIZE))
    for step in range(schedule.num_steps):
        for place in np.flatnonzero(schedule.step == step):
            client, start = schedule.client[place], models[schedule.download_version[place]]
            newest[client] = minimum[client] + (1 - 0.2 * curvature[client]) ** 4 * (start - minimum[client])
        np.testing.assert_allclose(models[step + 1], newest.mean(axis=0), atol=1e-14)
