"""What a notebook user hands over: own modules, losses, weights, optimizers and plans, right and wrong."""

import warnings

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from quick_compilation import quick_compilation  # noqa: F401
from small_runs import small_parts

import jafl
from jafl import rules
from jafl.engine.loop import server_steps
from jafl.engine.plan.model_checks import check_model


@pytest.fixture(scope="module")
def parts():
    return small_parts()


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
    compiled = server_steps.run._cache_size()
    run(with_model(parts, sequential()))
    assert server_steps.run._cache_size() == compiled


@pytest.mark.full
def test_batch_statistics_are_refused(parts):
    module = nn.Sequential([nn.Dense(4), nn.BatchNorm(use_running_average=False), nn.Dense(10)])
    with pytest.raises(jafl.SettingError, match="batch_stats.*parameters only.*GroupNorm"):
        jafl.Model(module).init(jax.random.key(0), parts["federation"].x)


PROBABILITIES = {
    "softmax": (nn.softmax, "softmax"),
    "softmax within": (jax.jit(lambda x: jax.checkpoint(nn.softmax)(x)), "softmax"),
    "softmax in another type": (lambda x: nn.softmax(x).astype(jnp.float16).astype(jnp.float32), "softmax"),
    "sigmoid": (lambda x: nn.sigmoid(x)[..., None].squeeze(-1), "sigmoid"),
    "logits": (lambda x: x, None),
    "their logarithms": (nn.log_softmax, None),
    "attention": (lambda x: nn.softmax(x) @ jnp.ones((10, 10)), None),
    "tempered": (lambda x: 10.0 * nn.softmax(x), None),
    "other sums": (lambda x: jnp.exp(x) / jnp.exp(-x).sum(-1, keepdims=True), None),
}


def told_of_probabilities(parts, ends, **options):
    model = jafl.Model(nn.Sequential([nn.Dense(10), ends]), **options)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        check_model(parts["federation"], model, model.init(jax.random.key(0), parts["federation"].x))
    return [
        word
        for one in told
        for word in ("softmax", "sigmoid")
        if f" ends in a {word}, but" in str(one.message)
    ]


@pytest.mark.parametrize("name", PROBABILITIES)
def test_a_model_that_returns_probabilities_to_a_loss_of_logits_is_told_of(parts, name):
    ends, function = PROBABILITIES[name]
    assert told_of_probabilities(parts, ends) == ([function] if function else [])
    two = {"probabilities": ends, "logits": lambda x: x}
    both = lambda x: {each: of(x) for each, of in two.items()}  # noqa: E731
    assert told_of_probabilities(parts, both, output="logits") == []
    assert told_of_probabilities(parts, both, output="probabilities") == ([function] if function else [])


def test_probabilities_are_what_a_loss_of_ones_own_may_take(parts):
    def of_probabilities(outputs, labels):
        return -jnp.log(jnp.take_along_axis(outputs, labels[:, None], axis=1)[:, 0])

    assert told_of_probabilities(parts, nn.softmax, loss_per_example=of_probabilities) == []


@pytest.mark.parametrize(("dtype", "most"), [("bfloat16", "256"), ("float16", "2,048")])
def test_types_in_which_sums_stand_still_are_told_of(parts, dtype, most):
    module = nn.Sequential([nn.Dense(10, param_dtype=dtype)])
    with pytest.warns(UserWarning, match=f"parameters in {dtype}, .* a sum of {most} does not change by 1"):
        run(with_model(parts, jafl.Model(module)))
    assert jnp.asarray(int(most.replace(",", "")), dtype) + jnp.asarray(1, dtype) == int(
        most.replace(",", "")
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        run(with_model(parts, jafl.Model(nn.Sequential([nn.Dense(10)]), compute_dtype="bfloat16")))


def test_a_loss_that_averages_is_refused(parts):
    module = parts["client_work"].build().model.module
    with pytest.raises(jafl.SettingError, match="one number per example"):
        run(with_model(parts, jafl.Model(module, lambda outputs, labels: jnp.mean(outputs[:, 0]))))


@pytest.mark.parametrize(
    ("loss", "kind"),
    [
        (lambda outputs, labels: jnp.argmax(outputs, -1), "int32"),
        (lambda outputs, labels: jnp.argmax(outputs, -1) == labels, "bool"),
        (lambda outputs, labels: outputs[:, 0] + 1j, "complex64"),
        (lambda outputs, labels: {"loss": outputs[:, 0]}, "dict"),
        (lambda outputs, labels: None, "NoneType"),
        (lambda outputs, labels: (outputs[:, 0],) * 3, "3 values"),
        (lambda outputs, labels: [outputs[:, 0]], "1 values"),
    ],
)
def test_a_loss_of_another_type_is_refused(parts, loss, kind):
    module = parts["client_work"].build().model.module
    with pytest.raises(jafl.SettingError, match=f"what the loss returns is '{kind}'.*one per example"):
        run(with_model(parts, jafl.Model(module, loss)))


def test_no_metric_of_a_task_is_called_loss(parts):
    module = parts["client_work"].build().model.module
    task = jafl.models.Task(
        "own", lambda outputs, labels: outputs[:, 0], {"loss": lambda outputs, labels: labels}
    )
    with pytest.raises(jafl.SettingError, match="the name of a metric is 'loss'"):
        jafl.Model(module, task=task)


def test_what_an_evaluator_puts_into_its_parameters_stays_out_of_the_training(parts):
    def emptied(params):
        for name in [*params]:
            params[name] = jax.tree.map(jnp.zeros_like, params[name])
        return 0.0

    (plain,), (evaluated,) = (
        jafl.simulate_many([jafl.Run(**parts, evaluate_at=[1], evaluators=evaluators)])
        for evaluators in ({"own": lambda params: 0.0}, {"own": emptied})
    )
    jax.tree.map(np.testing.assert_array_equal, plain.params, evaluated.params)


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
        ({"server_optimizer": jafl.specify(optax.sgd, -1.0)}, "the server optimizer's learning_rate is -1.0"),
        ({"rule": rules.fedavg(divide_by="cohort_size")}, "divide_by is 'cohort_size'"),
        ({"form": ["loop"]}, r"form is \['loop'\]"),
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


def test_params_without_their_numbers_are_refused_by_name(parts):
    shapes = jax.eval_shape(lambda: parts["params"])
    with pytest.raises(jafl.SettingError, match="^params is ShapeDtypeStruct"):
        run(parts, params=shapes)
    given_away = jax.tree.map(jnp.array, parts["params"])
    jax.tree.map(lambda array: array.delete(), given_away)
    with pytest.raises(jafl.SettingError, match="^params is 'deleted'.*donated"):
        run(parts, params=given_away)


def test_a_model_without_a_gradient_is_refused_by_name(parts):
    def doubled(params, x):
        return jax.lax.while_loop(lambda y: jnp.max(y) < 1, lambda y: 2 * y, jnp.abs(x @ params) + 0.1)

    model = jafl.Model((lambda key, x: jnp.zeros((x.shape[-1], 10)), doubled))
    with pytest.raises(jafl.SettingError, match="loss of the model doubled has no gradient .*Reverse-mode"):
        run(
            parts,
            client_work=jafl.client_work(model, learning_rate=0.1),
            params=model.init(jax.random.key(0), parts["federation"].x),
        )


@pytest.mark.full
def test_a_weight_may_be_a_plain_number(parts):
    one = run(parts, rule=rules.fedbuff(lambda staleness: 1.0))
    mean = run(parts, rule=rules.fedavg())
    jax.tree.map(np.testing.assert_array_equal, one.params, mean.params)


@pytest.mark.full
def test_whole_numbers_are_data_too(parts):
    def with_rate(rate, exponent):
        work = jafl.client_work(parts["client_work"].build().model, learning_rate=rate, proximal=rate)
        run(parts, client_work=work, rule=rules.fedbuff(rules.staleness.polynomial(exponent)))
        return server_steps.run._cache_size()

    assert with_rate(0.5, 0.5) == with_rate(1, 1) == with_rate(np.float32(0.25), 2)


@pytest.mark.full
def test_chains_can_be_specified(parts):
    def chain(bound):
        return jafl.specify(
            optax.chain,
            jafl.specify(optax.clip_by_global_norm, bound),
            jafl.specify(optax.sgd, learning_rate=1.0),
        )

    first = run(parts, server_optimizer=chain(0.001))
    compiled = server_steps.run._cache_size()
    second = run(parts, server_optimizer=chain(100.0))
    assert server_steps.run._cache_size() == compiled
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


@pytest.mark.full
def test_the_example_in_the_documentation_of_rules_works(parts):
    block = rules.__doc__.split(":\n\n", 1)[1].split("\n\nA new rule")[0]
    names: dict = {}
    import textwrap

    exec(textwrap.dedent(block), names)
    half, whole = run(parts, rule=names["half_mean"](0.5)), run(parts, rule=rules.fedavg())
    assert np.abs(half.params["dense"]["kernel"]).sum() < np.abs(whole.params["dense"]["kernel"]).sum()


@pytest.mark.parametrize(
    "kind", [float, np.float32, jnp.float32, np.int64, lambda number: np.array([number])]
)
def test_an_evaluator_may_return_a_number(parts, kind):
    evaluators = {"mine": lambda params: kind(3), 5: lambda params: {7: kind(4)}}
    history = run(parts, evaluators=evaluators, evaluate_at=[])
    assert all(row["mine"] == 3 and row["5_7"] == 4 for row in history.evaluations)
    assert all(isinstance(row["mine"], float) for row in history.evaluations)


@pytest.mark.parametrize(
    "result", [None, "0.5", np.ones(3), [0.5], {"accuracy": np.ones(2)}, {"accuracy": None}]
)
def test_an_evaluator_that_returns_no_numbers_is_refused(parts, result):
    with pytest.raises(jafl.SettingError, match="result of the evaluator 'mine' is .*a number, or {metric"):
        run(parts, evaluators={"mine": lambda params: result}, evaluate_at=[])


def finishing(change):
    """FedAvg with something done to what its ``finish`` returns."""
    plain = rules.fedavg().build()
    return plain._replace(finish=lambda buffer, params: change(plain.finish(buffer, params)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda made: (made[0]["dense"], *made[1:]), r"array \['dense'\]\['bias'\] is absent, but must be"),
        (
            lambda made: ({"dense": {**made[0]["dense"], "more": jnp.ones(2)}}, *made[1:]),
            r"array \['dense'\]\['more'\] is of the shape \(2,\), but must be absent",
        ),
        (
            lambda made: (jax.tree.map(jnp.sum, made[0]), *made[1:]),
            r"is of the shape \(\), but must be of the shape",
        ),
        (lambda made: ([*jax.tree.leaves(made[0])], *made[1:]), "structure of the parameters"),
        (lambda made: made[:3], "finish returns is 3, but must be a tuple of four"),
        (lambda made: made[0], "finish returns is 'dict', but must be a tuple of four"),
    ],
)
def test_a_direction_that_is_not_like_the_parameters_is_refused(parts, change, message):
    with pytest.raises(jafl.SettingError, match=message):
        run(parts, rule=finishing(change))


@pytest.mark.full
def test_float64_that_a_run_does_not_compute_in_is_told(parts):
    source = jafl.data.synthetic(num_clients=8, alpha=1.0, beta=1.0, mean_examples=20, num_features=5)
    with jax.enable_x64(True):
        with pytest.warns(UserWarning, match="jax_enable_x64 is set, but .* float32.*in_precision"):
            history = run(parts, evaluate_at=[])
        assert history.params["dense"]["kernel"].dtype == np.float32
        double = source.in_precision("float64")
        model = jafl.models.softmax(source.num_classes)
        changes = {
            "federation": jafl.federate(double, source.natural_partition),
            "params": model.init(jax.random.key(0), double.x),
            "client_work": jafl.client_work(model, learning_rate=0.1),
        }
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            history = run(parts, **changes, evaluate_at=[])
        assert history.params["dense"]["kernel"].dtype == np.float64
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(parts, evaluate_at=[])


def test_examples_of_float64_are_computed_in_float32_without_a_word_from_jax(parts):
    source = jafl.data.synthetic(num_clients=8, alpha=1.0, beta=1.0, mean_examples=20, num_features=5)
    double = jafl.federate(source.in_precision("float64"), source.natural_partition)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(parts, federation=double, evaluate_at=[])


def test_tokens_are_not_all_padding():
    tokens = np.random.default_rng(0).integers(1, 9, size=(60, 5))
    model = jafl.Model(nn.Sequential([nn.Embed(9, 4), nn.Dense(9)]), task=jafl.models.language_modelling(0))
    schedule = jafl.asynchronous(
        num_clients=5, concurrency=3, buffer_size=2, client_trips=6, delay=jafl.delays.constant(1.0)
    )
    partition = jafl.data.iid(np.zeros(50, int), 5, seed=0)
    work, params = jafl.client_work(model, learning_rate=0.1), model.init(jax.random.key(0), tokens)
    federation = jafl.Federation.from_arrays(
        tokens[:50], tokens[:50], partition, test_x=tokens[50:], test_y=0 * tokens[50:]
    )
    with pytest.raises(
        jafl.SettingError, match="test_y is 'padding only .0 or negative.', but must be tokens"
    ):
        jafl.simulate(schedule, federation, work, jafl.rules.fedbuff(), params, jax.random.key(1))
    with pytest.raises(jafl.SettingError, match="must be a jafl.Federation.*from_clients"):
        jafl.simulate(schedule, {0: (tokens, tokens)}, work, jafl.rules.fedbuff(), params, jax.random.key(1))


def test_labels_of_several_are_0_and_1():
    random = np.random.default_rng(0)
    x, y = random.normal(size=(60, 4)).astype(np.float32), random.choice([-1, 1], size=(60, 3))
    model = jafl.Model(nn.Dense(3), task="multi_label")
    partition = jafl.data.iid(np.zeros(50, int), 5, seed=0)
    schedule = jafl.asynchronous(
        num_clients=5, concurrency=3, buffer_size=2, client_trips=6, delay=jafl.delays.constant(1.0)
    )
    work, params = jafl.client_work(model, learning_rate=0.1), model.init(jax.random.key(0), x)

    def simulate(train_y, test_y):
        federation = jafl.Federation.from_arrays(x[:50], train_y, partition, test_x=x[50:], test_y=test_y)
        return jafl.simulate(schedule, federation, work, jafl.rules.fedbuff(), params, jax.random.key(1))

    right = (y > 0).astype(np.int32)
    assert simulate(right[:50], right[50:]).server_steps == 3
    with pytest.raises(jafl.SettingError, match="a label of y is -1, but must be 0 and 1"):
        simulate(y[:50], right[50:])
    with pytest.raises(jafl.SettingError, match="a label of test_y is -1"):
        simulate(right[:50], y[50:])


@pytest.mark.parametrize("axes", [(), ("devices",)], ids=["whole on every device", "in parts"])
def test_arrays_of_a_mesh_train_as_others_do(parts, axes):
    mesh = jax.make_mesh((1,), ("devices",), axis_types=(jax.sharding.AxisType.Explicit,))

    def on_mesh(leaf):
        return jax.device_put(
            leaf, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*axes[: leaf.ndim]))
        )

    def with_frozen_bias(params):
        model, trained = jafl.models.softmax(10).freeze(params, "*/bias")
        return {"client_work": jafl.client_work(model, learning_rate=0.1), "params": trained}

    def server(rate):
        return {"server_optimizer": jafl.specify(optax.sgd, rate)}

    params, rate = with_model(parts, jafl.models.softmax(10))["params"], jnp.float32(0.5)
    plain = {**parts, **with_frozen_bias(params), **server(rate)}
    given = {**parts, **with_frozen_bias(jax.tree.map(on_mesh, params)), **server(on_mesh(rate))}
    given["key"] = on_mesh(parts["key"])
    expected = run(plain).params
    jax.tree.map(np.testing.assert_array_equal, run(given).params, expected)
    (history,) = jafl.simulate_many([jafl.Run(**given)])
    jax.tree.map(np.testing.assert_allclose, history.params, expected)


@pytest.mark.parametrize("make", [jnp.asarray, np.asarray], ids=["JAX", "NumPy"])
def test_parameters_in_float64_train_in_float32_where_there_is_none(make, parts):
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda leaf: make(leaf, np.float64), parts["params"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        history = run(parts, params=wide)
    jax.tree.map(np.testing.assert_array_equal, history.params, run(parts).params)
