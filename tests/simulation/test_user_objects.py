"""What a notebook user hands over: own modules, losses, weights, optimizers and plans, right and wrong."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from quick_compilation import quick_compilation  # noqa: F401

import jafl
from jafl import engine, rules


@pytest.fixture(scope="module")
def parts():
    """A small experiment's parts, by name."""
    source = jafl.data.synthetic(num_clients=8, alpha=1.0, beta=1.0, mean_examples=20, num_features=5)
    schedule = jafl.asynchronous(
        num_clients=8, concurrency=6, buffer_size=3, delay=jafl.delays.exponential(1.0), server_steps=12
    )
    model = jafl.models.softmax(source.num_classes)
    return {
        "schedule": schedule,
        "federation": jafl.federate(source, source.natural_partition),
        "client_work": jafl.client_work(model, learning_rate=0.1),
        "rule": rules.fedbuff(),
        "params": model.init(jax.random.key(0), source.x),
        "key": jax.random.key(1),
    }


def run(parts, **changes):
    keywords = {k: v for k, v in changes.items() if k not in parts}
    return jafl.simulate(**{**parts, **{k: v for k, v in changes.items() if k in parts}}, **keywords)


def with_model(parts, model):
    return {
        **parts,
        "client_work": jafl.client_work(model, learning_rate=0.1),
        "params": model.init(jax.random.key(0), parts["federation"].x),
    }


@pytest.mark.full
def test_modules_with_lists_in_them_run_and_do_not_recompile(parts):
    def sequential():
        return jafl.Model(nn.Sequential([nn.Dense(4), nn.relu, nn.Dense(10)]))

    run(with_model(parts, sequential()))
    compiled = engine.run._cache_size()
    run(with_model(parts, sequential()))
    assert engine.run._cache_size() == compiled


def test_batch_statistics_are_refused(parts):
    module = nn.Sequential([nn.Dense(4), nn.BatchNorm(use_running_average=False), nn.Dense(10)])
    with pytest.raises(jafl.SettingError, match="batch_stats.*parameters only.*GroupNorm"):
        jafl.Model(module).init(jax.random.key(0), parts["federation"].x)


def test_a_loss_that_averages_is_refused(parts):
    module = parts["client_work"].build().model.module
    with pytest.raises(jafl.SettingError, match="one number per example"):
        run(with_model(parts, jafl.Model(module, lambda outputs, labels: jnp.mean(outputs[:, 0]))))


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"params": {"dense": {"kernel": np.zeros((9, 9))}}}, "cannot be applied"),
        ({"rule": rules.fedbuff}, "Call its factory"),
        ({"rule": "fedbuff"}, "rule is 'fedbuff'"),
        ({"server_optimizer": optax.sgd}, "server_optimizer is .* an optax optimizer"),
        ({"server_optimizer": 0.1}, "server_optimizer is 0.1"),
        ({"federation": "digits"}, "federation is 'digits'"),
        ({"client_work": None}, "client_work is None"),
        ({"rule": rules.fedbuff(0.5)}, "staleness_weight is 0.5"),
        ({"rule": rules.fedbuff(lambda late: jnp.ones(3))}, r"staleness_weight's result is \(3,\)"),
    ],
)
def test_wrong_objects_are_refused(parts, changes, message):
    with pytest.raises(jafl.SettingError, match=message):
        run(parts, **changes)


def test_params_that_are_not_finite_are_not_called_divergence(parts):
    broken = jax.tree.map(lambda p: p * np.nan, parts["params"])
    with pytest.raises(jafl.SettingError, match="initial parameters"):
        run(parts, params=broken)


def test_a_weight_may_be_a_plain_number(parts):
    one = run(parts, rule=rules.fedbuff(lambda staleness: 1.0))
    mean = run(parts, rule=rules.fedavg())
    jax.tree.map(np.testing.assert_array_equal, one.params, mean.params)


def test_whole_numbers_are_data_too(parts):
    def with_rate(rate, exponent):
        work = jafl.client_work(parts["client_work"].build().model, learning_rate=rate, proximal=rate)
        run(parts, client_work=work, rule=rules.fedbuff(rules.staleness.polynomial(exponent)))
        return engine.run._cache_size()

    assert with_rate(0.5, 0.5) == with_rate(1, 1) == with_rate(np.float32(0.25), 2)


def test_chains_can_be_specified(parts):
    def chain(bound):
        return jafl.specify(
            optax.chain,
            jafl.specify(optax.clip_by_global_norm, bound),
            jafl.specify(optax.sgd, learning_rate=1.0),
        )

    first = run(parts, server_optimizer=chain(0.001))
    compiled = engine.run._cache_size()
    second = run(parts, server_optimizer=chain(100.0))
    assert engine.run._cache_size() == compiled
    same = run(parts, server_optimizer=optax.chain(optax.clip_by_global_norm(0.001), optax.sgd(1.0)))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), first.params, same.params)
    assert not np.allclose(first.params["dense"]["kernel"], second.params["dense"]["kernel"])


def test_parameters_of_an_evaluation_may_be_kept(parts):
    kept = []
    history = run(parts, evaluate_at=[4, 8], on_evaluation=lambda evaluation, params: kept.append(params))
    assert len(kept) == 4
    jax.tree.map(np.testing.assert_array_equal, kept[-1], history.params)
    assert not np.array_equal(kept[1]["dense"]["kernel"], kept[2]["dense"]["kernel"])


def reporting(name: str, at_step: bool = False, columns: int | None = None):
    plain = rules.fedavg().build()
    fold = lambda buffer, arrival: (plain.fold(buffer, arrival)[0], {} if at_step else {name: arrival.loss})  # noqa: E731
    finish = lambda buffer, params: (*plain.finish(buffer, params)[:2], {name: 1.0} if at_step else {}, True)  # noqa: E731
    rule = plain._replace(fold=fold, finish=finish)
    return rule._replace(columns=lambda schedule: {"x": np.zeros(columns)}) if columns else rule


@pytest.mark.parametrize("name", ["time", "test_accuracy", "loss", "train_loss"])
def test_reports_may_not_take_the_names_of_others(parts, name):
    with pytest.raises(jafl.SettingError, match=f"report is '{name}'"):
        run(parts, rule=reporting(name))


def test_columns_need_a_row_per_trip(parts):
    with pytest.raises(
        jafl.SettingError, match="column 'x' is 3, but must be the schedule's number of trips, 36"
    ):
        run(parts, rule=reporting("mine", columns=3))


def test_a_plan_of_another_schedule_is_refused(parts):
    other = jafl.asynchronous(
        num_clients=8,
        concurrency=6,
        buffer_size=3,
        delay=jafl.delays.exponential(1.0),
        server_steps=12,
        seed=5,
    )
    for plan in (jafl.trip_by_trip(other), jafl.in_waves(other, 4)):
        with pytest.raises(jafl.SettingError, match="from this very schedule"):
            run(parts, plan=plan)


def test_the_example_in_the_documentation_of_rules_works(parts):
    block = rules.__doc__.split(":\n\n", 1)[1].split("\n\nA new rule")[0]
    names: dict = {}
    import textwrap

    exec(textwrap.dedent(block), names)
    half, whole = run(parts, rule=names["half_mean"](0.5)), run(parts, rule=rules.fedavg())
    assert np.abs(half.params["dense"]["kernel"]).sum() < np.abs(whole.params["dense"]["kernel"]).sum()
