"""Models of any kind: Flax linen and nnx, Equinox, and pairs of functions, train alike, with and without dropout."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from quick_compilation import quick_compilation  # noqa: F401
from small_runs import resumed

import jafl
from jafl.engine.loop import server_steps

RANDOM = np.random.default_rng(3)
X = RANDOM.normal(size=(40, 4)).astype(np.float32)
Y = RANDOM.integers(0, 3, 40)
PARTITION = jafl.Partition.from_lists(np.split(np.arange(30), [7, 12, 20]))
WEIGHTS = [RANDOM.normal(0, 0.5, shape).astype(np.float32) for shape in ((4, 5), (5,), (5, 3), (3,))]


class LinenNet(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(3, name="last")(jnp.tanh(nn.Dense(5, name="first")(x)))


class NnxNet(nnx.Module):
    def __init__(self, rngs, rate=0.0):
        self.layers = nnx.List([nnx.Linear(4, 5, rngs=rngs), nnx.Linear(5, 3, rngs=rngs)])
        self.dropout = nnx.Dropout(rate, rngs=rngs)

    def __call__(self, x):
        return self.layers[1](self.dropout(jnp.tanh(self.layers[0](x))))


def linen_model():
    names = [("first", "kernel"), ("first", "bias"), ("last", "kernel"), ("last", "bias")]
    params = {"first": {}, "last": {}}
    for (layer, kind), value in zip(names, WEIGHTS, strict=True):
        params[layer][kind] = value
    return jafl.Model(LinenNet()), params, lambda tree: [tree[layer][kind] for layer, kind in names]


def nnx_model(rate=0.0):
    module = NnxNet(nnx.Rngs(0), rate)
    for layer, (kernel, bias) in zip(module.layers, (WEIGHTS[:2], WEIGHTS[2:]), strict=True):
        layer.kernel[...], layer.bias[...] = kernel, bias
    model = jafl.Model(module)

    def listed(tree):
        return [tree["layers"][number][kind] for number in (0, 1) for kind in ("kernel", "bias")]

    return model, model.init(jax.random.key(9), X), listed


@functools.cache
def equinox_class():
    equinox = pytest.importorskip("equinox")

    class EquinoxNet(equinox.Module):
        first: equinox.nn.Linear
        last: equinox.nn.Linear
        dropout: equinox.nn.Dropout
        steps: jax.Array
        activation: object

        def __init__(self, rate):
            key = jax.random.key(0)
            self.first, self.last = (equinox.nn.Linear(*size, key=key) for size in ((4, 5), (5, 3)))
            self.dropout, self.steps, self.activation = equinox.nn.Dropout(rate), jnp.arange(2), jnp.tanh

        def __call__(self, x, *, key=None):
            return self.last(self.dropout(self.activation(self.first(x)), key=key))

    return EquinoxNet


def equinox_model(rate=0.0):
    equinox = pytest.importorskip("equinox")
    module = equinox_class()(rate)

    def where(m):
        return [m.first.weight, m.first.bias, m.last.weight, m.last.bias]

    values = [jnp.asarray(value.T) for value in WEIGHTS]
    model = jafl.Model(equinox.tree_at(where, module, values))
    return model, model.init(jax.random.key(9), X), lambda tree: [value.T for value in where(tree)]


def functions_model():
    def init(key, x):
        return [jnp.asarray(value) for value in WEIGHTS]

    def apply(params, x):
        return jnp.tanh(x @ params[0] + params[1]) @ params[2] + params[3]

    model = jafl.Model((init, apply))
    return model, model.init(jax.random.key(9), X), list


KINDS = {
    "linen": linen_model,
    "nnx": nnx_model,
    "equinox": equinox_model,
    "functions": functions_model,
}


def federation():
    return jafl.Federation.from_arrays(X[:30], Y[:30], PARTITION, test_x=X[30:], test_y=Y[30:], num_classes=3)


def trained(model, params, rule=None, steps=6, **options):
    delay = jafl.delays.exponential(1.0)
    schedule = jafl.asynchronous(
        num_clients=4, concurrency=3, buffer_size=2, delay=delay, server_steps=steps, seed=2
    )
    work = jafl.client_work(model, learning_rate=0.3, local_steps=3, batch_size=4)
    rule = rule or jafl.rules.fedbuff()
    return jafl.simulate(schedule, federation(), work, rule, params, jax.random.key(1), **options)


@pytest.fixture(scope="module")
def expected():
    """The same network written as a linen module, whose way through the engine other tests compare."""
    model, params, listed = linen_model()
    history = trained(model, params)
    return listed(history.params), history.evaluations


@pytest.mark.full
@pytest.mark.parametrize("kind", [pytest.param("nnx", marks=pytest.mark.full), "equinox", "functions"])
def test_every_kind_of_network_trains_alike(kind, expected):
    model, params, listed = KINDS[kind]()
    history = trained(model, params)
    for ours, theirs in zip(listed(history.params), expected[0], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)
    for ours, theirs in zip(history.evaluations, expected[1], strict=True):
        assert ours["test_loss"] == pytest.approx(theirs["test_loss"], rel=1e-5)
        assert ours["test_accuracy"] == theirs["test_accuracy"]
    assert any(np.abs(a - b).max() > 0.01 for a, b in zip(listed(history.params), WEIGHTS, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_a_trained_network_comes_back_as_what_it_was(kind):
    model, params, _ = KINDS[kind]()
    one_step = jax.tree.map(lambda leaf: np.asarray(leaf) + 0.25, params)
    module = model.with_params(one_step)
    outputs = jax.vmap(module)(X) if kind == "equinox" else module(X)
    np.testing.assert_allclose(outputs, model.apply(one_step, X), rtol=1e-6)
    assert np.abs(outputs - model.apply(params, X)).max() > 0.1


@pytest.mark.full
@pytest.mark.parametrize("kind", ["nnx", "equinox", "functions"])
def test_equal_networks_share_a_compiled_program(kind):
    models = [KINDS[kind]()[0] for _ in range(2)]
    if kind == "functions":
        models[1] = jafl.Model((models[0].module.make, models[0].module.use))
    trained(models[0], models[0].init(jax.random.key(0), X))
    compiled = server_steps.run._cache_size()
    trained(models[1], models[1].init(jax.random.key(0), X))
    assert server_steps.run._cache_size() == compiled


@pytest.mark.full
@pytest.mark.parametrize("make", [nnx_model, equinox_model])
def test_dropout_in_training_alone_and_keyed(make):
    model, params, listed = make(0.5)
    without, _, _ = make(0.0)
    assert model.random
    np.testing.assert_allclose(model.apply(params, X), without.apply(params, X), rtol=1e-6)
    one, same, other = (model.apply(params, X, jax.random.key(seed)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, same)
    assert np.abs(one - other).max() > 0.01 and np.abs(one - model.apply(params, X)).max() > 0.01
    first, again = (listed(trained(model, params).params) for _ in range(2))
    jax.tree.map(np.testing.assert_array_equal, first, again)
    assert any(
        np.abs(a - b).max() > 1e-3
        for a, b in zip(first, listed(trained(without, params).params), strict=True)
    )


class Deterministic(nn.Module):
    @nn.compact
    def __call__(self, x, deterministic):
        return nn.Dense(3)(nn.Dropout(0.5)(x, deterministic=deterministic))


class Training(nn.Module):
    @nn.compact
    def __call__(self, x, *, training=True):
        return nn.Dense(3)(nn.Dropout(0.5, deterministic=not training)(x))


class AsAttribute(nn.Module):
    deterministic: bool = False

    @nn.compact
    def __call__(self, x):
        return nn.Dense(3)(nn.Dropout(0.5)(x, deterministic=self.deterministic))


@pytest.mark.full
@pytest.mark.parametrize(
    "module", [Deterministic(), Training(), AsAttribute()], ids=lambda m: type(m).__name__
)
def test_modules_say_in_their_own_way_that_they_train(module):
    model = jafl.Model(module)
    params = model.init(jax.random.key(0), X)
    assert model.random
    plain = X @ np.asarray(params["Dense_0"]["kernel"])
    np.testing.assert_allclose(model.apply(params, X), plain, rtol=1e-5, atol=1e-6)
    assert np.abs(model.apply(params, X, jax.random.key(0)) - plain).max() > 0.1
    assert len(trained(model, params, steps=2).evaluations) == 3


def test_functions_may_take_a_key():
    def apply(params, x, key=None):
        return (x if key is None else x * jax.random.bernoulli(key, 0.5, x.shape)) @ params["w"]

    model = jafl.Model((lambda key: {"w": jax.random.normal(key, (4, 3))}, apply))
    params = model.init(jax.random.key(0), X)
    np.testing.assert_array_equal(model.apply(params, X), X @ params["w"])
    assert np.abs(model.apply(params, X, jax.random.key(1)) - X @ params["w"]).max() > 0.1


LAST = {"kernel": np.zeros((4, 3), np.float32), "bias": np.zeros(3, np.float32)}


class Untold(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dropout(0.5)(nn.Dense(3)(x))


class NeverTold(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(3)(nn.Dropout(0.5, deterministic=False)(x))


class WithStatistics(nnx.Module):
    def __init__(self, rngs):
        self.norm = nnx.BatchNorm(4, rngs=rngs)

    def __call__(self, x):
        return self.norm(x)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: trained(jafl.Model(NeverTold()), {"Dense_0": LAST}),
            "NeverTold.*give its __call__ .* train",
        ),
        (lambda: jafl.Model(Untold()).init(jax.random.key(0), X), "Untold.*give its __call__ .* train"),
        (lambda: jafl.Model(LinenNet), "module is 'LinenNet'.*jafl.Model\\(LinenNet"),
        (lambda: jafl.Model("mlp"), "module is 'str'.*flax.linen, flax.nnx or Equinox.*functions"),
        (lambda: jafl.Model((jnp.sin,)), "module is 'tuple'"),
        (lambda: jafl.Model(WithStatistics(nnx.Rngs(0))), "WithStatistics.*BatchStat.*GroupNorm"),
        (
            lambda: jafl.Model((lambda key: {"n": jnp.arange(3)}, jnp.dot)).init(jax.random.key(0), X),
            "init returns is \\['int32'\\].*floating",
        ),
        (
            lambda: jafl.Model((lambda key: {"activation": "relu"}, jnp.dot)).init(jax.random.key(0), X),
            "init returns is \\['str'\\].*floating",
        ),
        (
            lambda: jafl.Model(NnxNet(nnx.Rngs(0), nnx.Param(jnp.array(3)))),
            "nnx.Param of .*NnxNet is .*int32.*nnx.Variable, in place",
        ),
        (
            lambda: jafl.Model(LinenNet(), metrics=[1]),
            "metrics is \\[1\\].*function of \\(outputs, labels\\)",
        ),
        (lambda: jafl.Model(LinenNet(), metrics={"loss": jnp.dot}), "name of a metric is 'loss'"),
        (lambda: jafl.Model(LinenNet(), task="regresion"), "task.*Did you mean 'regression'"),
    ],
)
def test_what_is_no_network_is_refused(make, message):
    with pytest.raises(jafl.SettingError, match=message):
        make()


@pytest.mark.parametrize(
    "apply",
    [
        lambda params, rng, x: x @ params,  # hk.transform(f).apply
        lambda params, rng, *inputs: inputs[0] @ params,
        lambda params, state, rng, x: (x @ params, state),
        lambda params, key, x: x @ params,
    ],
)
def test_a_function_of_other_arguments_than_parameters_and_examples_is_refused(apply):
    with pytest.raises(jafl.SettingError, match="arguments of the model's function apply.*without_apply_rng"):
        jafl.Model((lambda key: jnp.zeros((4, 3)), apply))


def test_a_model_of_numpy_is_refused_with_what_to_write():
    model = jafl.Model((lambda key: jnp.zeros((4, 3)), lambda params, x: np.dot(x, params)))
    with pytest.raises(jafl.SettingError, match="asks for numbers while JAX traces it.*write jax.numpy"):
        trained(model, jnp.zeros((4, 3)))


def test_a_module_may_hold_a_random_key():
    equinox = pytest.importorskip("equinox")

    class WithKey(equinox.Module):
        linear: equinox.nn.Linear
        key: jax.Array

        def __call__(self, x):
            return self.linear(x) + jax.random.normal(self.key, (3,))

    class NnxWithKey(nnx.Module):
        def __init__(self):
            self.linear, self.key = nnx.Linear(4, 3, rngs=nnx.Rngs(0)), nnx.Variable(jax.random.key(0))

        def __call__(self, x):
            return self.linear(x) + jax.random.normal(self.key[...], (3,))

    for module in (WithKey(equinox.nn.Linear(4, 3, key=jax.random.key(0)), jax.random.key(1)), NnxWithKey()):
        model = jafl.Model(module)
        history = trained(model, model.init(jax.random.key(0), X))
        assert np.isfinite(history.evaluations[-1]["test_loss"])


def test_an_equinox_module_with_a_state_is_refused():
    equinox = pytest.importorskip("equinox")

    class Stateful(equinox.Module):
        def __call__(self, x, state):
            return x, state

    normalized = equinox.nn.Sequential([equinox.nn.BatchNorm(4, "batch", mode="ema")])
    for module, name in ((Stateful(), "Stateful"), (normalized, "Sequential")):
        with pytest.raises(jafl.SettingError, match=f"state of the model's module {name}.*GroupNorm"):
            jafl.Model(module)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda params: {**params, "extra": {"kernel": np.ones((2, 2), np.float32)}},
            r"\['extra'\]\['kernel'\] belongs to no layer",
        ),
        (lambda params: {"first": params["first"]}, r"\['last'\]\['bias'\] is missing"),
        (
            lambda params: {**params, "last": {**params["last"], "bias": np.ones((3, 1), np.float32)}},
            r"\['last'\]\['bias'\] has the shape \(3, 1\) in place of \(3,\)",
        ),
    ],
)
def test_parameters_of_another_network_are_refused(change, message):
    model, params, _ = linen_model()
    with pytest.raises(jafl.SettingError, match=f"LinenNet.*{message}.*its init"):
        trained(model, change(params))


@pytest.mark.full
@pytest.mark.parametrize("kind", ["nnx", "equinox"])
def test_side_by_side_and_with_a_memory_of_clients(kind):
    """Waves under vmap, and a rule that stores updates."""
    model, params, listed = KINDS[kind]()
    linen, linen_params, of_linen = linen_model()
    for options in ({"together": True}, {"rule": jafl.rules.ca2fl()}):
        ours = listed(trained(model, params, **options).params)
        theirs = of_linen(trained(linen, linen_params, **options).params)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), ours, theirs)


@pytest.mark.full
def test_equinox_modules_are_resumed_from_checkpoints(tmp_path):
    model, params, _ = equinox_model(0.5)
    resumed(
        lambda **options: trained(model, params, steps=8, evaluate_at=range(8), **options),
        tmp_path,
        4,
        every=2,
    )
