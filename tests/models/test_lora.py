"""LoRA on models of every library: what is trained, where it starts, what it equals, and what is refused."""

import dataclasses
import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from hugging_face_files import PIECES, tensors_of, write
from quick_compilation import quick_compilation  # noqa: F401
from tiers import in_tiers

import jafl
from jafl.base.array_files import write_archive
from jafl.base.errors import SettingError
from jafl.config import calls
from jafl.config.builders.training import make_model
from jafl.config.settings import Settings
from jafl.models.freezing import merged, paths

RANDOM = np.random.default_rng(3)
X = RANDOM.normal(size=(40, 4)).astype(np.float32)
Y = RANDOM.integers(0, 3, 40).astype(np.int32)
KEY = jax.random.key(0)


class LinenNet(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(3, name="head")(jnp.tanh(nn.Dense(5, name="body")(x)))


class NnxNet(nnx.Module):
    def __init__(self, rngs):
        self.body = nnx.Linear(4, 5, rngs=rngs)
        self.head = nnx.Linear(5, 3, rngs=rngs)

    def __call__(self, x):
        return self.head(jnp.tanh(self.body(x)))


def equinox_net():
    equinox = pytest.importorskip("equinox")
    return equinox.nn.MLP(4, 3, 5, depth=1, activation=jnp.tanh, key=KEY)


def init(key):
    return [jax.random.normal(key, (4, 5)), {"w": jax.random.normal(key, (5, 3)), "b": jnp.zeros(3)}]


def apply(params, x):
    return jnp.tanh(x @ params[0]) @ params[1]["w"] + params[1]["b"]


# {kind: (module, pattern of the first weight, its path, whether it is [inputs, outputs], pattern of the last layer)}
KINDS = {
    "linen": (LinenNet, "body", "body/kernel", True, "head"),
    "nnx": (lambda: NnxNet(nnx.Rngs(0)), "body/*", "body/kernel", True, "head"),
    "equinox": (equinox_net, "layers/0", "layers/0/weight", False, "layers/1"),
    "functions": (lambda: (init, apply), "0", "0", True, "1"),
}
each_kind = pytest.mark.parametrize("kind", KINDS)


def base_of(kind):
    """(the model without adapters, its parameters)."""
    model = jafl.Model(KINDS[kind][0]())
    return model, model.init(jax.random.key(5), X)


def adapted(kind, rank=2, targets=None, **arguments):
    """(the model with adapters, its first parameters)."""
    base, params = base_of(kind)
    model = jafl.lora(base, rank, targets or KINDS[kind][1], params=params, **arguments)
    return model, model.init(jax.random.key(1), X)


def by_path(tree):
    return dict(zip(paths(tree), map(np.asarray, jax.tree.leaves(tree)), strict=True))


def federation():
    partition = jafl.Partition.from_lists(np.split(np.arange(30), [7, 12, 20]))
    return jafl.Federation.from_arrays(X[:30], Y[:30], partition, test_x=X[30:], test_y=Y[30:])


def trained(model, params, rule=None, optimizer=None, **options):
    schedule = jafl.asynchronous(
        num_clients=4, concurrency=3, buffer_size=2, delay=jafl.delays.constant(1.0), server_steps=4, seed=2
    )
    how = {"learning_rate": 0.3} if optimizer is None else {"optimizer": optimizer}
    work = jafl.client_work(model, local_steps=2, batch_size=4, **how)
    return jafl.simulate(schedule, federation(), work, rule or jafl.rules.fedbuff(), params, KEY, **options)


def with_random_b(params, seed=0):
    """The parameters with numbers in the place of B's zeros."""
    random = np.random.default_rng(seed)
    return jax.tree.map(
        lambda leaf: jnp.asarray(random.normal(size=leaf.shape), leaf.dtype) if not np.any(leaf) else leaf,
        params,
    )


@pytest.mark.few_by_default(2)
@each_kind
def test_adapters_alone_are_parameters_and_the_first_outputs_are_those_of_the_base(kind):
    base, before = base_of(kind)
    model, params = adapted(kind)
    path = KINDS[kind][2]
    found = by_path(params)
    assert {name: leaf.shape for name, leaf in found.items()} == {
        f"adapters/{path}/a": (2, 4),
        f"adapters/{path}/b": (5, 2),
    }
    assert not found[f"adapters/{path}/b"].any() and found[f"adapters/{path}/a"].all()
    np.testing.assert_array_equal(model.apply(params, X), base.apply(before, X))
    other = model.init(jax.random.key(2), X)
    assert np.any(by_path(other)[f"adapters/{path}/a"] != found[f"adapters/{path}/a"])


@each_kind
def test_outputs_are_those_of_the_changed_weight(kind):
    base, before = base_of(kind)
    model, params = adapted(kind, alpha=3.0)
    params = with_random_b(params)
    _, _, path, rows_are_inputs, _ = KINDS[kind]
    adapter = by_path(params)
    change = 3.0 / 2 * adapter[f"adapters/{path}/b"] @ adapter[f"adapters/{path}/a"]
    names = paths(before)
    leaves = jax.tree.leaves(before)
    leaves[names.index(path)] += change.T if rows_are_inputs else change
    changed = jax.tree.unflatten(jax.tree.structure(before), leaves)
    expected = base.apply(changed, X)
    np.testing.assert_allclose(model.apply(params, X), expected, rtol=1e-5, atol=1e-6)
    module = model.with_params(params)
    outputs = jax.vmap(module)(X) if kind == "equinox" else module(X)
    np.testing.assert_allclose(outputs, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.full
@pytest.mark.few_in_full(4)
@pytest.mark.parametrize("kind", in_tiers({kind: kind for kind in KINDS}, ["linen", "equinox"]))
@pytest.mark.parametrize("rule", [jafl.rules.fedbuff, jafl.rules.ca2fl])
def test_simulations_train_the_adapters_and_leave_the_base(kind, rule, tmp_path):
    model, params = adapted(kind)
    before = by_path(model.frozen)
    whole = trained(model, params, rule())
    assert set(by_path(whole.params)) == set(by_path(params))
    moved = [np.any(a != b) for a, b in zip(*map(jax.tree.leaves, (whole.params, params)), strict=True)]
    assert all(moved)
    for name, leaf in by_path(model.frozen).items():
        np.testing.assert_array_equal(leaf, before[name])
    for _ in range(2):  # the second goes on from what the first has written
        again = trained(model, params, rule(), checkpoints=jafl.Checkpoints(tmp_path / "run", every=2))
        jax.tree.map(np.testing.assert_array_equal, again.params, whole.params)


@pytest.mark.full
def test_groups_of_runs():
    model, params = adapted("linen")
    runs = [
        jafl.Run(
            jafl.asynchronous(
                num_clients=4, concurrency=3, buffer_size=2, delay=jafl.delays.constant(1.0), server_steps=4, seed=2
            ),
            federation(),
            jafl.client_work(model, local_steps=2, batch_size=4, learning_rate=rate),
            jafl.rules.fedbuff(),
            params,
            KEY,
        )
        for rate in (0.3, 0.1)
    ]  # fmt: skip
    together = jafl.simulate_many(runs)
    alone = trained(model, params)
    for ours, theirs in zip(*map(jax.tree.leaves, (together[0].params, alone.params)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-7)
    assert np.any(jax.tree.leaves(together[1].params)[0] != jax.tree.leaves(alone.params)[0])


@pytest.mark.full
def test_noise_reaches_the_adapters_alone():
    model, params = adapted("nnx")
    noisy = jafl.private(jafl.rules.fedbuff(), clip_norm=0.5, noise_multiplier=1.0, delta=1e-5)
    before, history = by_path(model.frozen), trained(model, params, noisy)
    assert set(by_path(history.params)) == set(by_path(params))
    module = nnx.to_pure_dict(nnx.state(model.with_params(history.params)))
    np.testing.assert_array_equal(module["head"]["kernel"], before["base/head/kernel"])
    assert np.any(module["body"]["kernel"] != before["base/body/kernel"])


@pytest.mark.full
def test_a_step_is_that_of_the_gradients_by_the_chain_rule():
    """dA = s B^T dW and dB = s dW A^T, with dW the slope of the base's loss at the changed weight."""
    base, before = base_of("linen")
    model, params = adapted("linen", alpha=3.0)
    params = with_random_b(params)
    a, b = (params["adapters"]["body"]["kernel"][name] for name in "ab")
    kernel = before["body"]["kernel"] + 1.5 * (b @ a).T
    changed = {**before, "body": {**before["body"], "kernel": kernel}}
    slope = jax.grad(lambda tree: base.losses(tree, X, Y).mean())(changed)["body"]["kernel"].T
    ours = jax.grad(lambda tree: model.losses(tree, X, Y).mean())(params)["adapters"]["body"]["kernel"]
    np.testing.assert_allclose(ours["a"], 1.5 * b.T @ slope, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(ours["b"], 1.5 * slope @ a.T, rtol=1e-4, atol=1e-6)


@pytest.mark.full
def test_of_full_rank_with_a_as_the_identity_it_is_full_fine_tuning_of_the_weight():
    base, before = base_of("linen")
    frozen, free = base.freeze(before, ["head", "body/bias"])
    model = jafl.lora(base, 4, "body", params=before, train_a=False)
    fixed = model.frozen["adapters"]["body"]["kernel"]
    assert fixed["a"].shape == (4, 4)
    identity = {"a": jnp.eye(4)}
    model = dataclasses.replace(model, frozen={**model.frozen, "adapters": {"body": {"kernel": identity}}})
    ours = trained(model, model.init(KEY, X)).params["adapters"]["body"]["kernel"]["b"]
    theirs = trained(frozen, free).params["body"]["kernel"]
    np.testing.assert_allclose(before["body"]["kernel"] + ours.T, theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.full
def test_ffa_is_the_subspace_of_the_weight():
    """With A fixed a run of B is one whose weight W + B A moves by a linear map of its slopes: averages are exact."""
    model, params = adapted("equinox", train_a=False, seed=4)
    assert [*by_path(params)] == ["adapters/layers/0/weight/b"]
    other, _ = adapted("equinox", train_a=False, seed=5)
    (ours,), (theirs,) = ([*by_path(each.frozen["adapters"]).values()] for each in (model, other))
    assert ours.shape == (2, 4) and np.all(ours != theirs)
    clients = [with_random_b(params, seed) for seed in range(5)]
    assert max(jafl.models.lora_averaging_error(model, clients).values()) < 1e-6
    history = trained(model, params)
    assert np.any(jax.tree.leaves(history.params)[0])

    # The weight of one step of one client by hand: B moves against dW A^T, so W against dW A^T A.
    base, before = base_of("equinox")
    slope = jax.grad(lambda tree: base.losses(tree, X, Y).mean())(before).layers[0].weight
    step = jax.grad(lambda tree: model.losses(tree, X, Y).mean())(params)
    moved = model.network._whole(jax.tree.map(lambda p, g: p - 0.3 * g, params, step), model.frozen)
    expected = before.layers[0].weight - 0.3 * slope @ ours.T @ ours
    np.testing.assert_allclose(moved.layers[0].weight, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.full
@pytest.mark.usefixtures("float64")
def test_ffa_with_fedbuff_is_fedbuff_of_the_weight_whose_slopes_are_projected():
    """dW = s^2 (slope A^T) A at every local step of every client, so averages of B are those of the weight."""
    model, params = adapted("functions", train_a=False, alpha=3.0)
    (a,) = by_path(model.frozen["adapters"]).values()
    (b,) = by_path(trained(model, params).params).values()
    base, before = base_of("functions")
    into = 1.5**2 * a.T @ a  # [inputs, inputs], on a weight of [inputs, outputs]

    def projected():
        project = optax.stateless(lambda slopes, params: jax.tree.map(lambda slope: into @ slope, slopes))
        return optax.chain(project, optax.sgd(0.3))

    frozen, free = base.freeze(before, ["1"])
    (theirs,) = by_path(trained(frozen, free, optimizer=jafl.specify(projected)).params).values()
    np.testing.assert_allclose(before[0] + 1.5 * (b @ a).T, theirs, rtol=1e-12)
    assert np.abs(theirs - before[0]).max() > 0.05


def test_parts_of_the_base_that_are_trained_beside():
    for kind, (*_, last) in KINDS.items():
        model, params = adapted(kind, trained=last)
        base, before = base_of(kind)
        outside = {
            name for name in by_path(before) if name.split("/")[: last.count("/") + 1] == last.split("/")
        }
        found = {name[5:]: leaf for name, leaf in by_path(params).items() if name.startswith("base/")}
        assert set(found) == outside
        for name, leaf in found.items():
            np.testing.assert_array_equal(leaf, by_path(before)[name])
        np.testing.assert_array_equal(model.apply(params, X), base.apply(before, X))


@pytest.mark.full
def test_a_part_that_is_trained_and_unknown_is_drawn_as_without_adapters():
    base, before = base_of("linen")
    model = jafl.lora(base, 2, "body", params={"body": before["body"]}, trained="head")
    params = model.init(jax.random.key(5), X)  # the key of ``base_of``
    np.testing.assert_array_equal(params["base"]["head"]["kernel"], before["head"]["kernel"])
    history = trained(model, params)
    assert np.any(history.params["base"]["head"]["kernel"] != before["head"]["kernel"])


@pytest.mark.full
def test_more_axes_are_the_matrix_with_the_fewest_rows_and_columns():
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.Conv(32, (3, 3), name="conv")(x.reshape(-1, 4, 4, 1).repeat(8, axis=3))
            x = nn.MultiHeadDotProductAttention(4, name="attention")(x.reshape(len(x), 16, 32))
            return nn.Dense(3, name="dense")(x.mean(1))

    x = RANDOM.normal(size=(2, 16)).astype(np.float32)
    base = jafl.Model(Net())
    before = base.init(KEY, x)
    model = jafl.lora(base, 1, ["conv", "attention"], params=before)
    params = model.init(KEY, x)
    shapes = {name.removeprefix("adapters/"): leaf.shape for name, leaf in by_path(params).items()}
    assert shapes["conv/kernel/a"] == (1, 72) and shapes["conv/kernel/b"] == (32, 1)
    assert shapes["attention/query/kernel/a"] == (1, 32) and shapes["attention/query/kernel/b"] == (32, 1)
    assert shapes["attention/out/kernel/a"] == (1, 32)
    params = with_random_b(params)
    bound = model.with_params(params).variables["params"]
    a, b = (params["adapters"]["attention"]["query"]["kernel"][name] for name in "ab")
    change = bound["attention"]["query"]["kernel"] - before["attention"]["query"]["kernel"]
    np.testing.assert_allclose(change.reshape(32, 32), (b @ a).T, rtol=1e-4, atol=1e-5)


@pytest.mark.full
def test_biases_and_other_axes_of_patterns():
    base = jafl.models.causal_transformer(11, layers=2, width=8, heads=2, context=6)
    x = np.ones((1, 6), np.int32)
    before = base.init(KEY, x)
    model = jafl.lora(base, 2, ["*query", "*_value/kernel"], params=before)
    names = [f"layer_{layer}_{part}" for layer in (0, 1) for part in ("query", "value")]
    params = model.init(KEY, x)
    assert sorted(params["adapters"]) == names
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == 4 * 2 * (8 + 8)
    assert model.task.name == "language_modelling"


def test_averaging_error():
    model, params = adapted("linen", alpha=3.0)
    clients = [with_random_b(adapted("linen")[0].init(jax.random.key(seed), X), seed) for seed in range(4)]
    kernels = [client["adapters"]["body"]["kernel"] for client in clients]
    for weights in (None, [1.0, 2.0, 0.0, 3.0]):
        shares = np.ones(4) / 4 if weights is None else np.array(weights) / 6
        products = sum(
            s * np.asarray(k["b"] @ k["a"], np.float64) for s, k in zip(shares, kernels, strict=True)
        )
        a, b = (
            sum(s * np.asarray(k[n], np.float64) for s, k in zip(shares, kernels, strict=True)) for n in "ab"
        )
        errors = jafl.models.lora_averaging_error(model, clients, weights)
        assert errors == {"body/kernel": pytest.approx(1.5 * np.linalg.norm(products - b @ a), rel=1e-5)}
    assert jafl.models.lora_averaging_error(model, clients[:1]) == {"body/kernel": 0.0}


@pytest.mark.full
def test_constants_of_the_base():
    class Scaled(nn.Module):
        @nn.compact
        def __call__(self, x):
            scale = self.variable("constants", "scale", lambda: jnp.float32(2.0))
            return nn.Dense(3, name="dense")(x) * scale.value

    base, params = jafl.Model(Scaled()).freeze(Scaled().init(KEY, X))
    model = jafl.lora(base, 2, "dense", params=params)
    first = model.init(KEY, X)
    assert list(first) == ["adapters"]
    np.testing.assert_array_equal(model.apply(first, X), base.apply(params, X))
    np.testing.assert_array_equal(model.with_params(first)(X), base.apply(params, X))
    trained(model, first)


@pytest.mark.full
def test_adamw_and_the_matrix_form():
    model, params = adapted("linen")
    adamw = jafl.specify(optax.adamw, learning_rate=0.01)
    histories = [trained(model, params, optimizer=adamw, form=form) for form in ("loop", "matrix")]
    for ours, theirs in zip(*(jax.tree.leaves(each.params) for each in histories), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)


def test_parameters_from_the_file_of_a_run(tmp_path):
    for kind in ("linen", "equinox"):
        base, before = base_of(kind)
        base, target = jafl.Model(KINDS[kind][0]()), KINDS[kind][1]
        other = jax.tree.map(lambda leaf: leaf + 1, before)
        write_archive(tmp_path / "params.npz", by_path(other))
        model = jafl.lora(base, 2, target, params=tmp_path / "params.npz")
        np.testing.assert_array_equal(model.apply(model.init(KEY, X), X), base.apply(other, X))
    with pytest.raises(SettingError, match=re.escape("cannot be read")):
        jafl.lora(jafl.Model(LinenNet()), 2, "body", params=str(tmp_path / "none.npz"))


@pytest.mark.full
def test_as_a_setting(tmp_path):
    """A call inside of another: the data set's number of tokens reaches the inner one."""
    x = RANDOM.integers(1, 9, (6, 5)).astype(np.int32)
    source = jafl.Source("texts", x[:4], x[:4], x[4:], x[4:], num_classes=9, vocabulary=tuple("abcdefghi"))
    base = jafl.models.causal_transformer(9, layers=1, width=8, heads=2)
    before = base.init(KEY, x)
    file = tmp_path / "params.npz"
    write_archive(file, by_path(before))
    inner = "causal_transformer(layers=1, width=8, heads=2)"
    settings = Settings(model=f"lora({inner}, rank=2, targets=['*query'], params={str(file)!r})")
    model = make_model(settings, source)
    params = model.init(KEY, x)
    assert [*params["adapters"]] == ["layer_0_query"]
    np.testing.assert_array_equal(model.apply(params, x), base.apply(before, x))
    assert calls.files(vars(settings))["model.params"] == file
    assert settings.changed({"model.rank": 3}).argument("model.rank") == 3
    with pytest.raises(SettingError, match="asks for the next token at each place"):
        make_model(Settings(model="lora(softmax, rank=2, targets='dense')"), source)
    with pytest.raises(SettingError, match=r"model\.params is None, but must be the parameters of the model"):
        make_model(Settings(model=f"lora({inner}, rank=2, targets='*query')"), source)
    with pytest.raises(
        SettingError, match=r"model\.targets is 'querie', but must be a pattern that fits one of dense"
    ):
        make_model(settings.changed({"model.targets": ["querie"]}), source)


@pytest.mark.full
def test_bert_as_a_setting_with_a_trained_head(tmp_path):
    pytest.importorskip("safetensors")
    folder = str(write(tmp_path, "bert", tensors_of("bert")))
    x = RANDOM.integers(1, len(PIECES), (6, 5)).astype(np.int32)
    source = jafl.Source("posts", x[:4], Y[:4], x[4:], Y[4:], num_classes=3, vocabulary=tuple(PIECES))
    text = f"lora(bert(model_dir={folder!r}), rank=2, targets=['*query', '*value'], trained='head')"
    model = make_model(Settings(model=text), source)
    params = model.init(KEY, x)
    assert set(params) == {"adapters", "base"} and set(params["base"]) == {"head"}
    assert all(name.endswith(("query", "value")) for name in params["adapters"]["encoder"])
    assert np.isfinite(model.losses(params, x, Y[:6])).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"targets": "bod"}, "targets is 'bod', but must be a pattern that fits one of body/kernel, head/kernel."),
        ({"targets": ["body", "*bias"]}, "targets is '*bias', but must be a pattern that fits one of body/kernel"),
        ({"targets": []}, "targets is [], but must be at least one pattern of body/kernel, head/kernel"),
        ({"targets": 3}, "targets is 3, but must be a pattern of paths"),
        ({"rank": 5}, "rank is 5, but must be at most 4, the smaller side of body/kernel"),
        ({"rank": 0}, "rank is 0, but must be a whole number of at least 1"),
        ({"alpha": 0.0}, "alpha is 0.0, but must be above 0"),
        ({"params": None}, "params is None, but must be the parameters of the model, which has none yet"),
        ({"trained": "body"}, "others than the weights with an adapter"),
        ({"train_a": "no"}, "train_a is 'no', but must be True or False"),
        ({"model": LinenNet()}, "but must be a jafl.Model"),
    ],
)  # fmt: skip
def test_refused(changes, message):
    model, params = base_of("linen")
    arguments = {"model": model, "rank": 2, "targets": "body", "params": params} | changes
    with pytest.raises(SettingError, match=re.escape(message)):
        jafl.lora(**arguments)


def test_refused_when_it_starts():
    base, before = base_of("linen")
    model = jafl.lora(base, 2, "body", params={"body": before["body"]})
    with pytest.raises(SettingError, match=r"unknown is \['head/bias', 'head/kernel'\], but must be none"):
        model.init(KEY, X)
    model = jafl.lora(base, 2, "body", params=before, trained="heads")
    with pytest.raises(SettingError, match="trained is 'heads', but must be a pattern that fits one of"):
        model.init(KEY, X)
    with pytest.raises(SettingError, match="one without adapters"):
        jafl.lora(adapted("linen")[0], 2, "body")
    with pytest.raises(SettingError, match="a model with adapters"):
        jafl.models.lora_averaging_error(base, [before])
    model, params = adapted("linen")
    with pytest.raises(SettingError, match="weights is"):
        jafl.models.lora_averaging_error(model, [params], [1.0, 2.0])


def test_the_base_is_data_of_the_program_and_no_constant():
    model, params = adapted("linen")
    leaves = jax.tree.leaves(model)
    assert sum(leaf.size for leaf in leaves) == 4 * 5 + 5 + 5 * 3 + 3
    other = jax.tree.map(lambda leaf: leaf + 1, model)
    apply = jax.jit(lambda model, params, x: model.apply(params, x))
    assert np.any(apply(model, params, X) != apply(other, params, X)) and apply._cache_size() == 1
    whole = merged(params, model.frozen)
    assert set(whole) == {"adapters", "base"}
