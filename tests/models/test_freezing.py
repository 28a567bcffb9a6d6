"""Frozen parts and constants of models of every kind: never moved, in no norm, and back in the whole network."""

import operator

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from quick_compilation import quick_compilation  # noqa: F401
from tiers import in_tiers

import jafl
from jafl.models.freezing import merged, paths, split

RANDOM = np.random.default_rng(3)
X = RANDOM.normal(size=(40, 4)).astype(np.float32)
Y = RANDOM.integers(0, 3, 40)
KEY = jax.random.key(0)


class Block(nn.Module):
    @nn.compact
    def __call__(self, x):
        return jnp.tanh(nn.Dense(5, name="inner")(x))


class LinenNet(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(3, name="head")(Block(name="body")(x))


class NnxNet(nnx.Module):
    def __init__(self, rngs):
        self.body = nnx.List([nnx.Linear(4, 5, rngs=rngs)])
        self.head = nnx.Linear(5, 3, rngs=rngs)

    def __call__(self, x):
        return self.head(jnp.tanh(self.body[0](x)))


def equinox_net():
    equinox = pytest.importorskip("equinox")
    return equinox.nn.MLP(4, 3, 5, depth=1, activation=jnp.tanh, key=KEY)


def init(key):
    return [jax.random.normal(key, (4, 5)), {"w": jax.random.normal(key, (5, 3)), "b": jnp.zeros(3)}]


def apply(params, x):
    return jnp.tanh(x @ params[0]) @ params[1]["w"] + params[1]["b"]


# {kind: (module, pattern of what is frozen, how many arrays that is)}
KINDS = {
    "linen": (LinenNet, "body/*/kernel", 1),
    "nnx": (lambda: NnxNet(nnx.Rngs(0)), ["body/0"], 2),
    "equinox": (equinox_net, "layers/0", 2),
    "functions": (lambda: (init, apply), ["0"], 1),
}


def trained(model, params, rule=None, **options):
    partition = jafl.Partition.from_lists(np.split(np.arange(30), [7, 12, 20]))
    federation = jafl.Federation.from_arrays(X[:30], Y[:30], partition, test_x=X[30:], test_y=Y[30:])
    schedule = jafl.asynchronous(
        num_clients=4, concurrency=3, buffer_size=2, delay=jafl.delays.constant(1.0), server_steps=4, seed=2
    )
    how = {"learning_rate": 0.3} | {name: options.pop(name) for name in ("optimizer",) if name in options}
    if "optimizer" in how:
        del how["learning_rate"]
    work = jafl.client_work(model, local_steps=2, batch_size=4, **how)
    return jafl.simulate(schedule, federation, work, rule or jafl.rules.fedbuff(), params, KEY, **options)


@pytest.mark.few_in_full(2)
@pytest.mark.full
@pytest.mark.parametrize("kind", in_tiers({kind: kind for kind in KINDS}, ["linen"]))
def test_what_is_frozen_stays_and_comes_back_under_noise(kind):
    make, which, number = KINDS[kind]
    model = jafl.Model(make())
    every = model.init(KEY, X)
    frozen, params = model.freeze(every, which)
    assert jax.tree.structure(params) == jax.tree.structure(frozen.init(KEY, X))
    noisy = jafl.private(jafl.rules.fedbuff(), clip_norm=0.5, noise_multiplier=1.0, delta=1e-5)
    history = trained(frozen, params, noisy)
    before, after = (
        dict(zip(paths(tree), map(np.asarray, jax.tree.leaves(tree)), strict=True))
        for tree in (every, merged(history.params, frozen.frozen))
    )
    assert set(before) == set(after)
    same = [path for path in before if np.array_equal(before[path], after[path])]
    assert len(same) == number and set(same).isdisjoint(paths(history.params))
    assert set(paths(history.params)) == set(before) - set(same)
    module = frozen.with_params(history.params)
    outputs = jax.vmap(module)(X) if kind == "equinox" else module(X)
    np.testing.assert_allclose(outputs, frozen.apply(history.params, X), rtol=1e-6)
    np.testing.assert_allclose(frozen.apply(params, X), model.apply(every, X), rtol=1e-6)


@pytest.mark.full
@pytest.mark.parametrize("kind", ["functions", "equinox"])
def test_a_frozen_part_is_as_one_whose_gradient_is_left_out(kind):
    """Clipping, too: the norm is that of what is trained."""
    make, which, _ = KINDS[kind]
    frozen, params = jafl.Model(make()).freeze(jafl.Model(make()).init(KEY, X), which)
    own = jafl.Model((lambda key: params, frozen.apply))
    rule = jafl.private(jafl.rules.fedbuff(), clip_norm=0.05, noise_multiplier=0.0, delta=1e-5)
    ours, theirs = (trained(model, params, rule) for model in (frozen, own))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), ours.params, theirs.params)
    assert ours.evaluations[-1]["test_loss"] == pytest.approx(theirs.evaluations[-1]["test_loss"], rel=1e-5)


@pytest.mark.few_in_full(2)
@pytest.mark.full
@pytest.mark.parametrize("kind", in_tiers({kind: kind for kind in KINDS}, ["nnx"]))
def test_a_frozen_model_is_the_same_in_the_matrix_form(kind):
    make, which, _ = KINDS[kind]
    model = jafl.Model(make())
    frozen, params = model.freeze(model.init(KEY, X), which)
    loop, matrix = (trained(frozen, params, form=form) for form in ("loop", "matrix"))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), loop.params, matrix.params
    )


@pytest.mark.full
def test_checkpoints_and_memory_of_frozen_models(tmp_path):
    frozen, params = jafl.Model(NnxNet(nnx.Rngs(0))).freeze(
        nnx.to_pure_dict(nnx.state(NnxNet(nnx.Rngs(0)))), "body"
    )
    whole = trained(frozen, params, jafl.rules.ca2fl())
    folder = tmp_path / "run"
    for _ in range(2):
        again = trained(frozen, params, jafl.rules.ca2fl(), checkpoints=jafl.Checkpoints(folder, every=2))
        jax.tree.map(np.testing.assert_array_equal, again.params, whole.params)
    assert paths(again.params) == ["head/bias", "head/kernel"]


def test_all_ways_to_say_what_is_frozen_agree():
    equinox = pytest.importorskip("equinox")
    module = equinox_net()
    model = jafl.Model(module)
    params = model.init(KEY, X)
    trains = jax.tree.map(lambda _: False, module)  # a filter specification, as for equinox.partition
    trains = equinox.tree_at(lambda m: (m.layers[1].weight, m.layers[1].bias), trains, (True, True))
    ways = (
        "layers/0",
        ["layers/0/weight", "layers/0/b*"],
        lambda path: path.startswith("layers/0"),
        jax.tree.map(operator.not_, trains),
    )
    left = [model.freeze(params, which)[1] for which in ways]
    assert [paths(tree) for tree in left] == [["layers/1/weight", "layers/1/bias"]] * 4
    tree = {"a": {"b": 1.0, "c": ()}, "d": [2.0, None]}
    for names in ({"a/b"}, {"d/0"}):
        both = split(tree, names.__contains__)
        assert merged(*both) == tree and paths(both[1]) == sorted(names)


def test_two_parameters_of_one_path_are_refused():
    with pytest.raises(
        jafl.SettingError, match="the path of a parameter is 'a/b', but must be one that no other"
    ):
        paths({"a/b": X, "a": {"b": X}})
    assert paths({"a/b": X, "a": {"c": X}}) == ["a/c", "a/b"]


def test_more_is_frozen_step_by_step():
    model = jafl.Model(LinenNet())
    once, params = model.freeze(model.init(KEY, X), "body")
    twice, left = once.freeze(params, "*/bias")
    assert paths(left) == ["head/kernel"]
    assert jax.tree.structure(twice.init(KEY, X)) == jax.tree.structure(left)
    at_once = jafl.Model(LinenNet(), frozen={"body": {"inner": {"kernel": np.ones((4, 5), np.float32)}}})
    assert paths(at_once.init(KEY, X)) == ["body/inner/bias", "head/bias", "head/kernel"]


class Features(nn.Module):
    @nn.compact
    def __call__(self, x):
        draw = lambda: jax.random.normal(self.make_rng("params"), (4, 6))  # noqa: E731
        return nn.Dense(3)(jnp.cos(x @ self.variable("constants", "table", draw).value))


class NnxFeatures(nnx.Module):
    def __init__(self, rngs):
        self.table = nnx.Variable(jax.random.normal(rngs.params(), (4, 6)))
        self.last = nnx.Linear(6, 3, rngs=rngs)

    def __call__(self, x):
        return self.last(jnp.cos(x @ self.table[...]))


def linen_features():
    variables = Features().init(KEY, X)
    return jafl.Model(Features()).freeze(variables), variables["constants"]["table"]


def nnx_features():
    module = NnxFeatures(nnx.Rngs(0))
    model = jafl.Model(module)
    return (model, model.init(KEY, X)), module.table[...]


@pytest.mark.full
@pytest.mark.parametrize("make", [linen_features, nnx_features])
def test_variables_that_are_no_parameters_are_constants(make):
    (model, params), table = make()
    assert len(paths(params)) == 2
    history = trained(model, params)
    bias, kernel = jax.tree.leaves(history.params)
    np.testing.assert_allclose(
        model.with_params(history.params)(X),
        np.cos(X @ np.asarray(table)) @ kernel + bias,
        rtol=1e-4,
        atol=1e-5,
    )


class Subclass(nnx.Param):
    pass


class OfSubclass(nnx.Module):
    def __init__(self):
        self.weights = Subclass(jnp.zeros((4, 3)))

    def __call__(self, x):
        return x @ self.weights


def test_subclasses_of_param_are_trained():
    model = jafl.Model(OfSubclass())
    assert np.abs(trained(model, model.init(KEY, X)).params["weights"]).max() > 0.01
