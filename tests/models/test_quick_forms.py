"""Any model's convolutions and max-pools take the quick form by themselves, with the values and gradients of Flax."""

import re
import warnings

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from accelerator_forms import accelerator_forms
from flax import nnx
from jax import lax
from quick_compilation import quick_compilation  # noqa: F401
from tiers import in_tiers

import jafl
from jafl.base.jaxpr_dependence import inner_programs
from jafl.models import max_pool
from jafl.models.forms import rewriting
from jafl.models.forms.rewriting import as_written, in_quick_forms

SPACES = {1: (11,), 2: (9, 10), 3: (5, 6, 7)}
OPTIONS = {
    "plain": {},
    "stride": {"strides": 2},
    "holes": {"kernel_dilation": 2},
    "holes and stride": {"kernel_dilation": 2, "strides": 2},
    "valid": {"padding": "VALID"},
    "circular": {"padding": "CIRCULAR"},
    "uneven padding": {"padding": 3},
    "groups": {"feature_group_count": 2},
    "depthwise": {"feature_group_count": 4},
    "depthwise with holes and stride": {"feature_group_count": 4, "strides": 2, "kernel_dilation": 2},
    "spread": {"input_dilation": 2, "padding": 1},
    "spread, padding beyond the kernel": {"input_dilation": 2, "padding": 4},
    "spread with holes": {"input_dilation": 3, "kernel_dilation": 2, "padding": 1},
    "spread with stride": {"input_dilation": 2, "strides": 2, "padding": 2},
    "spread in groups": {"input_dilation": 2, "feature_group_count": 2, "padding": 0},
    "without bias": {"use_bias": False},
}
CASES = {f"{name}, {axes}-d": (axes, options) for name, options in OPTIONS.items() for axes in SPACES}
IN_DEFAULT = (
    "stride, 1-d",
    "holes, 2-d",
    "depthwise with holes and stride, 2-d",
    "spread, 2-d",
    "groups, 1-d",
)


def random(seed, *shape, dtype=np.float64):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), dtype)


def quick(function):
    return lambda *arguments: in_quick_forms(jax.jit(function).trace, function, *arguments)


def value_and_slopes(function, arguments):
    @jax.jit
    def both(*arguments):
        value, back = jax.vjp(function, *arguments)
        return value, back(jnp.cos(jnp.arange(value.size, dtype=value.dtype)).reshape(value.shape))

    return both(*arguments)


def assert_equal(function, *arguments, tolerance=1e-12, text=r"custom_vjp_call"):
    """The quick form of a function has its values and gradients, and is another form."""
    ours, theirs = (value_and_slopes(each, arguments) for each in (quick(function), function))
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert one.shape == other.shape and one.dtype == other.dtype
        assert np.abs(one - other).max() <= tolerance * max(np.abs(other).max(), 1e-300)
    assert re.search(text, str(jax.make_jaxpr(quick(function))(*arguments)))


@pytest.mark.full
@pytest.mark.few_in_full(4)
@pytest.mark.parametrize("case", in_tiers(CASES, IN_DEFAULT))
def test_convolutions_are_flaxs(case):
    axes, options = case
    with jax.enable_x64(True):
        module = nn.Conv(8, (3,) * axes, param_dtype=jnp.float64, **options)
        x = random(0, 2, *SPACES[axes], 4)
        assert_equal(module.apply, module.init(jax.random.key(0), x), x)


TRANSPOSED = {
    "plain": {},
    "stride": {"strides": (2, 2)},
    "uneven stride with holes": {"strides": (2, 3), "kernel_dilation": 2},
    "valid": {"padding": "VALID", "strides": (3, 3)},
    "circular": {"padding": "CIRCULAR", "strides": (2, 2)},
}


@pytest.mark.parametrize("options", in_tiers(TRANSPOSED, ["uneven stride with holes"]))
def test_transposed_convolutions_are_flaxs(options):
    with jax.enable_x64(True):
        module = nn.ConvTranspose(8, (3, 3), param_dtype=jnp.float64, **options)
        x = random(0, 2, 6, 7, 4)
        assert_equal(module.apply, module.init(jax.random.key(0), x), x)


POOLS = {
    "side by side": ((2, 2), (2, 2)),
    "overlapping": ((3, 3), (2, 2)),
    "every place": ((2, 2), None),
    "uneven, padded": ((3, 2), (1, 2), "SAME"),
    "padded by hand": ((3, 3), (2, 2), [(1, 1), (1, 0)]),
    "apart": ((2, 2), (3, 3)),
    "one axis": ((2,), (2,)),
    "one place": ((1, 1), (1, 1)),
    "side by side, padded": ((2, 2), (2, 2), "SAME"),
    "three": ((3, 3), (3, 3)),
    "three, padded": ((3, 3), (3, 3), "SAME"),
}


@pytest.mark.few_by_default(2)
@pytest.mark.parametrize(
    "arguments", in_tiers(POOLS, POOLS.keys() - {"side by side", "every place", "padded by hand", "apart"})
)
def test_pools_are_flaxs_ties_included(arguments):
    with jax.enable_x64(True):
        shape = (2, 9, 8, 3)[: len(arguments[0]) + 2]
        x = jnp.asarray(np.random.default_rng(0).integers(-2, 2, shape), jnp.float64)
        assert_equal(lambda x: nn.max_pool(x, *arguments), x, tolerance=1e-15)
        ours, theirs = (
            value_and_slopes(lambda x, p=p: p(x, *arguments), [x]) for p in (max_pool, nn.max_pool)
        )
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-14), ours, theirs)
    if arguments[0] == arguments[1]:  # no place is in two windows
        pools_have_the_bits_of_flaxs(jnp.float32(x), arguments)


def pools_have_the_bits_of_flaxs(x, arguments):
    """Alone, and client by client under ``vmap``."""
    ours, theirs = (
        lambda x, p=p: value_and_slopes(lambda x: p(x, *arguments), [x]) for p in (max_pool, nn.max_pool)
    )
    jax.tree.map(np.testing.assert_array_equal, ours(x), theirs(x))
    _, (slopes,) = jax.vmap(ours)(jnp.stack([x[:1], x[1:]]))
    np.testing.assert_array_equal(slopes[0], ours(x[:1])[1][0])


def test_max_pool_takes_the_names_of_flax():
    x = random(0, 2, 9, 8, 3, dtype=np.float32)
    for arguments in (
        {"window_shape": (3, 2), "strides": (2, 1), "padding": "SAME"},
        {"window_shape": (2, 2)},
    ):
        np.testing.assert_array_equal(max_pool(x, **arguments), nn.max_pool(x, **arguments))
    np.testing.assert_array_equal(max_pool(x[0], (2, 2)), nn.max_pool(x[0], (2, 2)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"window_shape": (2, 0)}, "window_shape is 0"),
        ({"window_shape": 0}, "window_shape is 0"),
        ({"window_shape": (2, 2), "padding": "same"}, "padding is 'same'"),
        ({"window_shape": (2, 2), "strides": (1, 2, 3)}, "strides is .1, 2, 3.*as many as the window"),
        ({"window_shape": (2, 2), "strides": 0}, "strides is 0"),
        ({"window_shape": (2, 2), "padding": [(1, 1)]}, "padding is .*2 pairs"),
        ({"window_shape": (2,) * 5}, "shape of what is pooled"),
        ({"window_shape": (9, 8)}, "at most 64 elements.*jnp.max"),
    ],
)
def test_pools_refuse_what_they_cannot_do(arguments, message):
    with pytest.raises(jafl.SettingError, match=message):
        max_pool(random(0, 2, 9, 8, 3, dtype=np.float32), **arguments)


@pytest.mark.full
def test_inside_other_programs_and_of_other_layouts():
    """What jit, checkpoint, scan, cond, vmap and loops hold, with channels first."""

    def convolve(x, kernel):
        return lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NCHW", "OIHW", "NCHW"))

    def everywhere(kernel, x):
        y = jax.checkpoint(convolve)(jax.jit(convolve)(x, kernel), kernel)
        y, _ = lax.scan(lambda y, _: (jnp.tanh(convolve(y, kernel)), None), y, None, length=2)
        y = lax.cond(y.sum() > 0, lambda y: convolve(y, kernel), lambda y: -convolve(y, kernel), y)
        y = jax.vmap(lambda one: convolve(one[None], kernel)[0])(y)
        return lax.fori_loop(0, 3, lambda i, y: jnp.sin(convolve(y, kernel)), y)

    with jax.enable_x64(True):
        arguments = 0.3 * random(0, 3, 3, 3, 3), random(1, 2, 3, 6, 6)
        assert_equal(everywhere, *arguments)
        left = [
            equation
            for equation in equations(jax.make_jaxpr(quick(everywhere))(*arguments).jaxpr)
            if equation.primitive.name == rewriting.CONVOLUTION
        ]
        assert not left


def equations(jaxpr):
    """All operations outside of programs with derivatives of their own."""
    for equation in jaxpr.eqns:
        yield equation
        if equation.primitive.name != "custom_vjp_call":
            for program in inner_programs(equation.params):
                yield from equations(getattr(program, "jaxpr", program))


class LinenNet(nn.Module):
    """Flax's own layers, as users write them."""

    @nn.compact
    def __call__(self, x):
        x = nn.max_pool(nn.relu(nn.Conv(4, (3, 3))(x)), (2, 2), strides=(2, 2))
        x = nn.relu(nn.Conv(4, (3, 3), strides=2, dtype=jnp.float32)(x))
        return nn.Dense(3)(x.reshape(len(x), -1))


class NnxNet(nnx.Module):
    def __init__(self, rngs):
        self.conv, self.last = nnx.Conv(1, 4, (3, 3), rngs=rngs), nnx.Linear(64, 3, rngs=rngs)

    def __call__(self, x):
        x = nnx.max_pool(nnx.relu(self.conv(x)), (2, 2), strides=(2, 2))
        return self.last(x.reshape(len(x), -1))


def equinox_net():
    equinox = pytest.importorskip("equinox")
    keys = jax.random.split(jax.random.key(0))
    return equinox.nn.Sequential(
        [
            equinox.nn.Lambda(lambda x: jnp.moveaxis(x, -1, 0)),
            equinox.nn.Conv2d(1, 4, 3, padding=1, key=keys[0]),
            equinox.nn.MaxPool2d(2, 2),
            equinox.nn.Lambda(jnp.ravel),
            equinox.nn.Linear(64, 3, key=keys[1]),
        ]
    )


@pytest.mark.full
@pytest.mark.parametrize(
    "make", [LinenNet, lambda: NnxNet(nnx.Rngs(0)), equinox_net], ids=["linen", "nnx", "equinox"]
)
def test_models_of_any_library_are_quick_on_a_cpu(make):
    model = jafl.Model(make())
    x, y = random(0, 4, 8, 8, 1, dtype=np.float32), np.arange(4) % 3
    params = model.init(jax.random.key(0), x)

    def loss(params):
        return model.losses(params, x, y).sum()

    def both():
        """What the loss and its gradients are, and the program that computes them."""
        lowered = jax.jit(jax.value_and_grad(lambda params: loss(params))).lower(params)
        return lowered.compile()(params), lowered.as_text()

    ours, text = both()
    assert "select_and_scatter" not in text and "reduce_window" not in text
    assert not re.search(r"stablehlo.convolution.*hs_dilate = \[[2-9]", text)
    with as_written():
        theirs, text = both()
    assert "select_and_scatter" in text, "without the quick form this test would fail"
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), ours, theirs)


@pytest.mark.full
def test_on_other_platforms_xlas_forms_are_used_and_clients_lie_side_by_side():
    model = jafl.Model(LinenNet())
    x, y = random(0, 3, 4, 8, 8, 1, dtype=np.float32), np.zeros((3, 4), np.int32)
    params = jax.vmap(lambda key: model.init(key, x[0]))(jax.random.split(jax.random.key(0), 3))
    slopes = jax.vmap(jax.grad(lambda p, x, y: model.losses(p, x, y).sum()))
    expected = jax.jit(slopes)(params, x, y)
    jax.clear_caches()
    try:
        with accelerator_forms("gpu"):  # a TPU has no pool of its own: test_pooled_convolution
            lowered = jax.jit(slopes).lower(params, x, y)
    finally:
        jax.clear_caches()
    text = lowered.as_text()
    assert "select_and_scatter" in text and re.search(r"(?:feature|batch)_group_count = 3", text)
    got = lowered.compile()(params, x, y)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), got, expected)


def test_models_without_such_layers_are_traced_as_they_are():
    model = jafl.models.mlp(3, [4])
    x = np.zeros((2, 5), np.float32)
    params = model.init(jax.random.key(0), x)
    ours = str(jax.make_jaxpr(model.apply)(params, x))
    with as_written():
        assert str(jax.make_jaxpr(model.apply)(params, x)) == ours
    image = np.zeros((2, 28, 28, 1), np.float32)
    model = jafl.models.fedstaleweight_fashion_cnn(3)  # of jafl's own layers, with a norm before each pool
    shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), image))
    ours = str(jax.make_jaxpr(model.apply)(shapes, image))
    with as_written():
        assert re.sub("0x[0-9a-f]+", "", str(jax.make_jaxpr(model.apply)(shapes, image))) == re.sub(
            "0x[0-9a-f]+", "", ours
        )


@pytest.mark.full
def test_precision_and_mixed_precision_are_kept():
    x = random(0, 2, 6, 6, 3, dtype=np.float32)
    for precision in (None, "high", "highest"):
        module = nn.Conv(4, (3, 3), precision=precision)
        params = module.init(jax.random.key(0), x)
        text = [
            re.findall(r"precision=\S+ \S+|precision=\S+", str(jax.make_jaxpr(jax.grad(function))(params)))
            for function in (
                lambda p, m=module: m.apply(p, x).sum(),
                lambda p, m=module: quick(m.apply)(p, x).sum(),
            )
        ]
        assert set(text[0]) <= set(text[1])
    mixed = jafl.Model(LinenNet(), compute_dtype="bfloat16")
    image = random(0, 4, 8, 8, 1, dtype=np.float32)
    params = mixed.init(jax.random.key(0), image)
    with as_written():
        theirs = mixed.apply(params, image)
    np.testing.assert_allclose(mixed.apply(params, image), theirs, rtol=0.05, atol=0.02)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 9, 8, 1), (1, 1, 1, 1), "VALID"),
            "more than 64 elem",
        ),
        (
            lambda x: lax.conv_general_dilated(
                x.astype(jnp.bfloat16),
                jnp.ones((3, 3, 3, 2), jnp.bfloat16),
                (1, 1),
                "SAME",
                dimension_numbers=("NHWC", "HWIO", "NHWC"),
                preferred_element_type=jnp.float32,
            ),
            "operands are bfloat16 and its result is float32",
        ),
    ],
)
def test_what_keeps_xlas_form_is_said(function, message):
    x = random(0, 2, 9, 8, 3, dtype=np.float32)
    with pytest.warns(UserWarning, match=f"{message}.*jafl.models.Conv"):
        value = quick(function)(x)
    np.testing.assert_array_equal(value, function(x))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        quick(lambda x: nn.max_pool(x, (2, 2)))(x)


@pytest.mark.full
def test_a_network_of_flaxs_layers_trains_as_one_of_jafls_own():
    """Through the engine, in waves and one by one: the same bits but for rounding."""

    class Own(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = max_pool(nn.relu(jafl.models.Conv(4, (3, 3), name="Conv_0")(x)))
            x = nn.relu(jafl.models.Conv(4, (3, 3), strides=2, name="Conv_1")(x))
            return nn.Dense(3, name="Dense_0")(x.reshape(len(x), -1))

    x = np.asarray(random(0, 40, 8, 8, 1, dtype=np.float32))
    y = np.arange(40) % 3
    parts = jafl.Partition.from_lists(np.split(np.arange(30), [7, 12, 20]))
    federation = jafl.Federation.from_arrays(x[:30], y[:30], parts, test_x=x[30:], test_y=y[30:])
    schedule = jafl.asynchronous(
        num_clients=4, concurrency=3, buffer_size=2, delay=jafl.delays.exponential(1.0), server_steps=10
    )
    ends = []
    for module in (LinenNet(), Own()):
        model = jafl.Model(module)
        work = jafl.client_work(model, learning_rate=0.2, local_steps=2, batch_size=4)
        params = jafl.Model(LinenNet()).init(jax.random.key(0), x)
        history = jafl.simulate(schedule, federation, work, jafl.rules.fedbuff(), params, jax.random.key(1))
        ends.append(history.params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), *ends)
