"""In which precision products are traced: those of a model in its own, the server's in float32; mixed precision."""

import dataclasses
import json

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from preparing import placed
from products import OF_NAME, products
from quick_compilation import quick_compilation  # noqa: F401
from tiers import in_tiers

import jafl
from experiments.tools.benchmarks.rounded_products import rounded
from jafl.base.errors import SettingError
from jafl.base.precision import MATMUL_PRECISIONS, check_precision, products_in
from jafl.clients.records import ClientData
from jafl.config.experiment import make_experiments
from jafl.config.settings import Settings
from jafl.engine.loop import server_steps
from jafl.models.forms.convolution import _in_parts, _plain
from jafl.models.transformer import TransformerClassifier, TransformerConfig

BATCH, CLASSES = 4, 3
TRANSFORMER = TransformerConfig("bert", 40, 12, 2, 8, 2, 2, 16, "gelu", 1e-12, 0.0, 0.0, 0.0, 0, 0.4)
MODELS = {
    "mlp": lambda: jafl.models.mlp(CLASSES, [8]),
    "cnn": lambda: jafl.models.cnn(CLASSES, [4, 4]),
    "flax": lambda: jafl.Model(nn.Sequential([nn.Conv(4, (3, 3)), jax.nn.relu, Flat(), nn.Dense(CLASSES)])),
    "lstm": lambda: jafl.models.sent140_lstm(CLASSES, tokens=30, vector_size=8, dropout_rate=0.0),
    "transformer": lambda: jafl.Model(TransformerClassifier(TRANSFORMER, CLASSES)),
    "resnet18": lambda: jafl.models.resnet18(CLASSES),
}
PRECISION_OF_EVERY_MODEL = pytest.mark.parametrize(
    "case",
    in_tiers(
        {
            f"{name}-{precision}": (MODELS[name], precision)
            for name in MODELS
            for precision in MATMUL_PRECISIONS
        },
        ("mlp-tensorfloat32", "cnn-bfloat16"),
    ),
)


class Flat(nn.Module):
    """[B, values]."""

    def __call__(self, x):
        return x.reshape(len(x), -1)


MIXED = "float32(compute_dtype='bfloat16')"


def examples(model, count=BATCH):
    """Random examples of the shape that a model reads, with their labels."""
    random = np.random.default_rng(0)
    if "tokens" in vars(model.module) or isinstance(model.module, TransformerClassifier):
        x = random.integers(2, 30, (count, 6)).astype(np.int32)
    else:
        x = random.normal(size=(count, 8, 8, 1)).astype(np.float32)
    return x, (np.arange(count) % CLASSES).astype(np.int32)


def data_of(x, y):
    """The examples as those of a single client."""
    return ClientData(x, y, np.arange(len(x), dtype=np.int32), np.array([0, len(x)], np.int32))


def trip(model, x, y, params, **options):
    """(function, arguments) of one trip of client work."""
    options = {"learning_rate": 0.1, "batch_size": BATCH, "local_steps": 2, **options}
    work = jafl.client_work(model, **options)
    words = jnp.array([1, 2], jnp.uint32)
    return work.build().train, (data_of(x, y), params, jnp.int32(0), words)


# What is traced


@pytest.mark.full
@pytest.mark.few_in_full(5)
@PRECISION_OF_EVERY_MODEL
def test_client_work_and_evaluation_compute_in_the_precision_of_the_model(case):
    make, precision = case
    model = dataclasses.replace(make(), matmul_precision=precision)
    x, y = examples(model)
    params = jax.eval_shape(model.init, jax.random.key(0), x)
    train, arguments = trip(model, x, y, params)
    calls = [(train, arguments), (lambda *a: jafl.server_gradient(model, x, y).build()(*a), (params,))]
    calls += [(model.apply, (params, x)), (model.losses, (params, x, y))]
    for function, arguments in calls:
        outer = "float32" if precision != "float32" else "bfloat16"  # of the caller
        with products_in(outer):
            found = {product.precision for product in products(function, *arguments)}
        assert found == {OF_NAME[precision]}, function


@pytest.mark.full
@pytest.mark.parametrize("precision", MATMUL_PRECISIONS)
def test_gradients_of_convolutions_have_the_precision_of_the_convolution(precision):
    model = dataclasses.replace(MODELS["cnn"](), matmul_precision=precision)
    x, y = examples(model)
    params = jax.eval_shape(model.init, jax.random.key(0), x)
    gradient = jax.grad(jax.jit(lambda params: model.losses(params, x, y).sum()))
    assert {product.precision for product in products(gradient, params)} == {OF_NAME[precision]}


@pytest.mark.full
@pytest.mark.parametrize("precision", MATMUL_PRECISIONS)
def test_rule_and_server_optimizer_compute_in_float32(precision):
    """The rule's products are of a shape that the model has none of."""

    def finish(buffer, params):
        whole = jnp.concatenate([leaf.reshape(-1) for leaf in jax.tree.leaves(buffer)])
        scale = jnp.outer(whole[:7], whole[:7]) @ jnp.ones((7, 11))
        return jax.tree.map(lambda u: -u * (1 + 0 * scale.sum()), buffer), (), {}, True

    rule = jafl.Rule(
        lambda params, num_clients: (),
        lambda state, params: jax.tree.map(jnp.zeros_like, params),
        lambda buffer, arrival: (jax.tree.map(jnp.add, buffer, arrival.update), {}),
        finish,
    )

    def update(gradient, state, params=None):
        extra = jnp.ones((13, 7)) @ jnp.ones((7, 13))
        return jax.tree.map(lambda g: -g * extra[0, 0] / 7, gradient), state

    optimizer = optax.GradientTransformation(lambda params: (), update)
    model = dataclasses.replace(MODELS["mlp"](), matmul_precision=precision)
    program, carry = unplaced(model, rule, server_optimizer=optimizer)
    for outer in ("tensorfloat32", "bfloat16"):
        with products_in(outer):
            found = products(server_steps.run, program, carry, 0, 1)
        server = [product for product in found if product.shape in ((7, 11), (13, 13))]
        client = [product for product in found if product not in server]
        assert {product.shape for product in server} == {(7, 11), (13, 13)} and client
        assert {product.precision for product in server} == {OF_NAME["float32"]}
        assert {product.precision for product in client} == {OF_NAME[precision]}


def unplaced(model, rule, **options):
    """Program and carry of a small run; the platform is not asked whether it has the model's precision."""
    x, y = examples(model, 12)
    partition = jafl.Partition.from_lists([range(4), range(4, 8), range(8, 12)])
    federation = jafl.Federation.from_arrays(x, y, partition, test_x=x, test_y=y)
    schedule = jafl.asynchronous(
        num_clients=3, concurrency=2, buffer_size=2, delay=jafl.delays.exponential(1.0), client_trips=8
    )
    params = model.init(jax.random.key(0), x)
    work = jafl.client_work(dataclasses.replace(model, matmul_precision="float32"), learning_rate=0.1)
    program, carry = placed(schedule, federation, work, rule, params, **options)
    work = jafl.client_work(model, learning_rate=0.1)
    return program.with_training(client_work=work), carry


def test_a_context_of_float32_leaves_its_caller_as_it_was():
    def outer(a):
        with products_in("float32"):
            inner = a @ a
        return inner @ a

    with products_in("tensorfloat32"):
        found = [product.precision for product in products(outer, jnp.ones((2, 2)))]
    assert found == [OF_NAME["float32"], OF_NAME["tensorfloat32"]]


# Convolutions on a TPU: sums of products that it computes in bfloat16


def _kernel_gradient(x, gradient):
    kernel = jax.ShapeDtypeStruct((3, 3, x.shape[3], gradient.shape[3]), x.dtype)
    return jax.linear_transpose(lambda k: _plain(x, k, (1, 1), ((1, 1), (1, 1))), kernel)(gradient)[0]


@pytest.mark.parametrize(
    ("number", "error"), [(1, 1e-2), (2, 3e-5), (3, 3e-7)], ids=["bfloat16", "tensorfloat32", "float32"]
)
@pytest.mark.parametrize("gradient", [False, True])
def test_products_of_parts_are_as_exact_as_the_precision_says(number, error, gradient):
    random = np.random.default_rng(0)
    a = random.normal(size=(4, 8, 8, 3)).astype(np.float32)
    b = random.normal(size=(4, 8, 8, 5) if gradient else (3, 3, 3, 5)).astype(np.float32)
    function = _kernel_gradient if gradient else lambda x, k: _plain(x, k, (1, 1), ((1, 1), (1, 1)))
    with jax.enable_x64(True):
        exact = np.asarray(function(a.astype(np.float64), b.astype(np.float64)))
    size = np.abs(exact).max()

    def off(made):
        return np.abs(np.asarray(made, np.float64) - exact).max() / size

    on_tpu = off(jax.jit(rounded(_in_parts(function, number), 7))(a, b))
    assert on_tpu < error
    assert number == 1 or on_tpu < off(jax.jit(rounded(function, 7))(a, b)) / 100


@pytest.mark.parametrize(
    ("precision", "convolutions"), [("float32", 6), ("tensorfloat32", 3), ("bfloat16", 1)]
)
def test_on_a_tpu_a_convolution_is_as_many_as_its_parts_need(precision, convolutions):
    x, kernel = jnp.ones((2, 8, 8, 3)), jnp.ones((3, 3, 3, 4))
    with products_in(precision):
        on_tpu = products(jafl.models.convolution, x, kernel, platform="tpu")
        elsewhere = products(jafl.models.convolution, x, kernel, platform="cuda")
    assert [product.precision for product in on_tpu] == [OF_NAME["bfloat16"]] * convolutions
    assert [product.precision for product in elsewhere] == [OF_NAME[precision]]


# Mixed precision


@pytest.mark.few_in_full(3)
@pytest.mark.full
@pytest.mark.parametrize(
    "make", in_tiers(MODELS, ("mlp",), full=[name for name in MODELS if name != "resnet18"])
)
def test_mixed_precision_multiplies_in_bfloat16_and_trains_float32_parameters(make):
    exact = make()
    mixed = dataclasses.replace(exact, compute_dtype="bfloat16")
    x, y = examples(exact)
    params = exact.init(jax.random.key(0), x)
    assert jax.tree.all(jax.tree.map(lambda a, b: (a == b).all(), params, mixed.init(jax.random.key(0), x)))
    train, arguments = trip(mixed, x, y, params)
    assert {product.dtypes for product in products(train, *arguments)} == {("bfloat16", "bfloat16")}
    result = jax.jit(train)(*arguments)
    assert {leaf.dtype for leaf in jax.tree.leaves((result.update, result.loss))} == {jnp.dtype("float32")}
    train, arguments = trip(exact, x, y, params)
    expected = jax.jit(train)(*arguments)
    np.testing.assert_allclose(result.loss, expected.loss, rtol=0.02)
    assert result.loss != expected.loss

    def flat(tree):
        return np.concatenate([np.asarray(leaf).reshape(-1) for leaf in jax.tree.leaves(tree)])

    moved, expected = flat(result.update), flat(expected.update)
    # Rounding adds up over the layers: .17 over the eighteen of ResNet-18, below .1 for all others.
    bound = 0.3 if make is MODELS["resnet18"] else 0.1
    assert 0 < np.linalg.norm(moved - expected) < bound * np.linalg.norm(expected)


@pytest.mark.full
def test_mixed_precision_of_float64_parameters_returns_float64():
    model = dataclasses.replace(MODELS["mlp"](), compute_dtype="bfloat16")
    x, y = examples(model)
    with jax.enable_x64(True):
        params = model.init(jax.random.key(0), x.astype(np.float64))
        loss, gradient = jax.value_and_grad(lambda params: model.losses(params, x, y).sum())(params)
        assert {leaf.dtype for leaf in jax.tree.leaves((loss, gradient))} == {jnp.dtype("float64")}


@pytest.mark.full
def test_frozen_parameters_are_rounded_too(tmp_path):
    file = tmp_path / "glove.txt"
    file.write_text("good 1 0.1 0\nbad 0 1 0.3\n")
    words = ["[PAD]", "[UNK]", "good", "bad"]
    exact = jafl.models.sent140_lstm(2, vocabulary=words, embeddings_file=str(file))
    mixed = dataclasses.replace(exact, compute_dtype="bfloat16")
    x = np.array([[2, 3], [3, 0]], np.int32)
    params = mixed.init(jax.random.key(0), x)
    assert {product.dtypes for product in products(mixed.apply, params, x)} == {("bfloat16", "bfloat16")}
    made, expected = jax.jit(mixed.apply)(params, x), jax.jit(exact.apply)(params, x)
    assert made.dtype == jnp.float32
    np.testing.assert_allclose(made, expected, atol=0.01)
    assert np.any(made != expected)


@pytest.mark.full
def test_a_run_in_mixed_precision_learns():
    settings = Settings(algorithm="fedbuff", client_trips=600, num_clients=20, precision=MIXED)
    (experiment,) = make_experiments(settings)
    history = experiment.simulate()
    assert {leaf.dtype for leaf in jax.tree.leaves(history.params)} == {np.dtype("float32")}
    assert history.evaluations[-1]["test_accuracy"] > 0.8


# What cannot be


@pytest.mark.parametrize(
    ("precision", "platform", "capability", "parts"),
    [
        ("bfloat16", "cpu", None, ["float32, all that a cpu has", "compute_dtype=bfloat16"]),
        ("tensorfloat32", "cpu", None, ["float32, all that a cpu has"]),
        ("bfloat16", "gpu", "9.0", ["float32 or tensorfloat32, those that a gpu has", "compute_dtype"]),
        ("tensorfloat32", "gpu", "7.5", ["float32, all that a gpu of compute capability 7.5 has"]),
        ("tensorfloat32", "gpu", "gfx90a", ["float32, all that a gpu of compute capability gfx90a has"]),
    ],
)
def test_a_precision_that_the_platform_lacks_is_refused(precision, platform, capability, parts):
    with pytest.raises(SettingError) as error:
        check_precision(precision, platform, capability)
    for part in [f"matmul_precision is '{precision}'", *parts]:
        assert part in str(error.value)
    check_precision("float32", platform, capability)


def test_what_each_platform_has_is_accepted():
    for precision in MATMUL_PRECISIONS:
        check_precision(precision, "tpu")
    for precision in ("float32", "tensorfloat32"):
        check_precision(precision, "gpu", "8.0")
        check_precision(precision, "gpu")


@pytest.mark.full
def test_simulate_refuses_a_precision_that_this_platform_lacks():
    model = dataclasses.replace(MODELS["mlp"](), matmul_precision="bfloat16")
    x, y = examples(model, 12)
    partition = jafl.Partition.from_lists([range(6), range(6, 12)])
    federation = jafl.Federation.from_arrays(x, y, partition, test_x=x, test_y=y)
    schedule = jafl.synchronous(num_clients=2, cohort_size=2, delay=jafl.delays.constant(1.0), server_steps=1)
    params = model.init(jax.random.key(0), x)
    work = jafl.client_work(model, learning_rate=0.1)
    with pytest.raises(SettingError, match="matmul_precision is 'bfloat16'.*all that a cpu has"):
        jafl.simulate(schedule, federation, work, jafl.rules.fedavg(), params, jax.random.key(1))


@pytest.mark.parametrize("name", ["matmul_precision", "compute_dtype"])
def test_an_unknown_precision_is_refused_with_those_there_are(name):
    with pytest.raises(SettingError, match=f"{name} is 'bfloat61'.*Did you mean 'bfloat16'"):
        dataclasses.replace(MODELS["mlp"](), **{name: "bfloat61"})


@pytest.mark.parametrize("name", ["matmul_precision", "compute_dtype"])
def test_with_float64_nothing_is_rounded(name):
    with pytest.raises(SettingError, match=f"precision.{name}: float64 has no arguments"):
        Settings(algorithm="fedbuff", **{"precision": "float64", f"precision.{name}": "bfloat16"})


# What a run says


@pytest.mark.full
def test_config_summary_and_checkpoints_say_the_precision(tmp_path):
    from jafl.runs.runner import run

    settings = Settings(
        algorithm="fedbuff",
        model="softmax",
        client_trips=40,
        num_clients=10,
        precision=MIXED,
    )
    run(settings, tmp_path, pictures=False, progress=False)
    said = {"precision": "float32(matmul_precision='float32', compute_dtype='bfloat16')"}
    for name in ("config.json", "summary.json"):
        content = json.loads((tmp_path / name).read_text())
        assert {key: content[key] for key in said} == said
    from jafl.runs.directory.files import what_decides

    decides = what_decides(json.loads((tmp_path / "config.json").read_text()))
    assert said.items() <= decides.items()
