"""On a TPU a convolution, its bias, ReLU and max-pool are one operation, with the numbers of the four."""

import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from accelerator_forms import accelerator_forms
from flax import nnx
from jax import lax
from quick_compilation import quick_compilation  # noqa: F401
from test_quick_forms import LinenNet, NnxNet, equinox_net, quick
from tiers import in_tiers

import jafl
from jafl.models import max_pool
from jafl.models.forms import rewriting

CLIENTS = 2
SHAPE = (2, 11, 10, 3)  # an odd number of rows, of which pools leave some out


def whole_numbers(seed, *shape, dtype=np.float64):
    """Of which all sums are exact, and many are equal."""
    return jnp.asarray(np.random.default_rng(seed).integers(-2, 3, shape), dtype)


def layer(x, kernel, *bias, padding="SAME", activation=jax.nn.relu):
    """What is written with JAX's own operations."""
    y = lax.conv_general_dilated(x, kernel, (1, 1), padding, dimension_numbers=("NHWC", "HWIO", "NHWC"))
    for each in bias:
        y = y + each.reshape(1, 1, 1, -1)
    y = activation(y) if activation else y
    return lax.reduce_window(y, -np.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def value_and_slopes(function):
    def both(*arguments):
        value, back = jax.vjp(function, *arguments)
        return value, back(jnp.arange(1, value.size + 1, dtype=value.dtype).reshape(value.shape))

    return both


def on_a_tpu(function, *arguments):
    """What a function computes with a TPU's forms, and its program."""
    with accelerator_forms():
        lowered = jax.jit(lambda *arguments: function(*arguments)).lower(*arguments)
    return lowered.compile()(*arguments), lowered.as_text()


def assert_one_operation(function, *arguments, tolerance=0.0):
    """The values and gradients of a function, which searches no window on a TPU."""
    expected = jax.jit(value_and_slopes(function))(*arguments)
    got, text = on_a_tpu(value_and_slopes(quick(function)), *arguments)
    assert "select_and_scatter" not in text and "reduce_window" not in text
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        assert one.shape == other.shape and one.dtype == other.dtype
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


def numbers(x):
    return jnp.maximum(x, 0)


CASES = {
    f"{size} {padding}": dict(size=size, padding=padding)
    for size in (1, 2, 3, 5)
    for padding in ("SAME", "VALID")
} | {
    "without a bias": dict(size=3, bias=False),
    "without ReLU": dict(size=3, activation=None),
    "without both": dict(size=2, bias=False, activation=None),
    "padding by hand": dict(size=3, padding=((0, 2), (3, 1))),
    "the larger of zero": dict(size=3, activation=numbers),
    "float32": dict(size=5, dtype=np.float32),
}
IN_DEFAULT = ("5 SAME", "2 VALID", "without both", "the larger of zero", "float32")


@pytest.mark.parametrize("case", in_tiers(CASES, IN_DEFAULT))
def test_numbers_are_those_of_the_four_ties_included(case):
    """To the last bit: sums of whole numbers are exact, and most windows have their maximum more than once."""
    size, bias, dtype = case["size"], case.get("bias", True), case.get("dtype", np.float64)
    options = {name: case[name] for name in ("padding", "activation") if name in case}
    with jax.enable_x64(True):
        arguments = [whole_numbers(0, *SHAPE, dtype=dtype), whole_numbers(1, size, size, 3, 4, dtype=dtype)]
        arguments += [whole_numbers(2, 4, dtype=dtype)] * bias
        assert_one_operation(lambda *arguments: layer(*arguments, **options), *arguments)


def test_of_values_that_rounding_makes_equal_the_first_gets_the_gradient():
    """A bias of 4 makes 1 and 1 + 2^-23 equal, so that the pool takes the one that was smaller."""
    x = jnp.asarray([[1, 1 + 2**-23], [0, 0]], jnp.float32).reshape(1, 2, 2, 1)
    assert_one_operation(layer, x, jnp.ones((1, 1, 1, 1), jnp.float32), jnp.full(1, 4, jnp.float32))
    (_, (slopes, *_)), _ = on_a_tpu(
        value_and_slopes(quick(layer)), x, jnp.ones((1, 1, 1, 1)), jnp.full(1, 4.0)
    )
    assert slopes.ravel().tolist() == [1, 0, 0, 0]


def test_what_is_not_a_number_stays_none():
    x = whole_numbers(0, *SHAPE, dtype=np.float32).at[0, 4, 5, 0].set(jnp.nan)
    kernel = whole_numbers(1, 3, 3, 3, 4, dtype=np.float32)
    got, _ = on_a_tpu(quick(layer), x, kernel)
    np.testing.assert_array_equal(got, layer(x, kernel))
    assert np.isnan(got).any()


@pytest.mark.full
def test_clients_with_kernels_of_their_own_and_second_derivatives():
    with jax.enable_x64(True):
        x, kernels = whole_numbers(0, CLIENTS, *SHAPE), whole_numbers(1, CLIENTS, 3, 3, 3, 4)
        biases = whole_numbers(2, CLIENTS, 4)
        assert_one_operation(lambda *arguments: jax.vmap(quick(layer))(*arguments), x, kernels, biases)
        assert_one_operation(
            lambda x, *rest: jax.vmap(quick(layer), (0, None, None))(x, *rest), x, *each(kernels, biases)
        )

        def slope(x, kernel, bias):
            return jax.grad(lambda kernel: (layer(x, kernel, bias) ** 3).sum())(kernel)

        def quick_slope(x, kernel, bias):
            return jax.grad(lambda kernel: (quick(layer)(x, kernel, bias) ** 3).sum())(kernel)

        arguments = x[0], kernels[0], biases[0]
        expected = jax.jit(value_and_slopes(slope))(*arguments)
        got, _ = on_a_tpu(value_and_slopes(quick_slope), *arguments)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), got, expected)


def each(*arrays):
    """The first client's."""
    return [array[0] for array in arrays]


class OwnNet(nn.Module):
    """jafl's own layers, with images that are turned in between."""

    @nn.compact
    def __call__(self, x):
        x = nn.relu(jafl.models.Conv(4, (3, 3))(x)).transpose(0, 3, 1, 2)
        x = max_pool(x.transpose(0, 2, 3, 1))
        return nn.Dense(3)(x.reshape(len(x), -1))


NETS = {"linen": LinenNet, "nnx": lambda: NnxNet(nnx.Rngs(0)), "equinox": equinox_net, "own": OwnNet}


def slopes_of_clients(make):
    """The gradients of several clients with parameters of their own, and what they take."""
    model = jafl.Model(make())
    x = jnp.asarray(np.random.default_rng(0).normal(size=(CLIENTS, 4, 8, 8, 1)), jnp.float32)
    y = jnp.asarray([[0, 1, 2, 0]] * CLIENTS)
    keys = jax.random.split(jax.random.key(0), CLIENTS)
    params = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(model.init(key, x[0]) for key in keys))
    one = jax.value_and_grad(lambda params, x, y: model.losses(params, x, y).sum())
    return lambda *arguments: jax.vmap(one)(*arguments), (params, x, y)


@pytest.mark.full
@pytest.mark.parametrize("make", NETS.values(), ids=NETS)
def test_networks_of_any_library_are_found(make):
    slopes, arguments = slopes_of_clients(make)
    expected = jax.jit(slopes)(*arguments)
    jax.clear_caches()  # JAX keeps what a model was traced to, and in it the forms of jafl's own layers
    try:
        got, text = on_a_tpu(slopes, *arguments)
    finally:
        jax.clear_caches()
    assert "select_and_scatter" not in text and "reduce_window" not in text
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), got, expected)


@pytest.mark.parametrize("make", in_tiers(NETS, ("linen", "own")))
def test_programs_for_other_platforms_are_what_they_were(make, monkeypatch):
    """Operation by operation when they are lowered, and to the last instruction when a CPU has compiled them."""
    slopes, arguments = slopes_of_clients(make)
    texts, compiled = [], []
    for without in (False, True):
        if without:
            monkeypatch.setattr(rewriting, "chains", lambda *_: [])
        traced = jax.jit(lambda *arguments: slopes(*arguments)).trace(*arguments)
        lowered = {name: traced.lower(lowering_platforms=(name,)) for name in ("cpu", "cuda", "tpu")}
        texts.append({name: lowered[name].as_text() for name in lowered})
        compiled.append(without_names(lowered["cpu"].compile().as_text()))
    assert "reduce_window" in texts[1]["tpu"]
    assert "reduce_window" not in texts[0]["tpu"] and "select_and_scatter" not in texts[0]["tpu"]
    assert re.search(r"convolution.*stride = \[2, 2\]", texts[0]["tpu"])
    for name in ("cpu", "cuda"):
        assert operations(texts[0][name]) == operations(texts[1][name])
    assert compiled[0] == compiled[1]


def operations(text):
    """The operations of a program on floating numbers, whatever encloses them."""
    lines = (re.sub(r"[%@]\w+(#\d+)?", "", line).strip() for line in text.splitlines())
    return {
        line
        for line in lines
        if re.search(r"xf?\d*f32>|tensor<f32>", line)
        and not re.search(r"return|func|case|call|\^bb|\}\)", line)
    }


def without_names(text):
    """An optimised program without the names of its instructions and where they were written."""
    text = re.sub(r"(?ms)^(FileNames|FunctionNames|FileLocations|StackFrames)\n.*?\n\n", "", text)
    text = re.sub(r", (stack_frame_id=\d+|metadata=\{[^}]*\})", "", text)
    names = {}
    # Older versions of XLA write the names of a computation's parameters without a percent sign in its first line.
    name = r"%([\w.\-]+)|\b([a-z][\w.\-]*)(?=: )"
    return re.sub(name, lambda found: names.setdefault(found[1] or found[2], f"%{len(names)}"), text)


def sigmoid_like(x):
    """ReLU with another derivative at 0, which jax.nn.relu has not."""

    @jax.custom_jvp
    def relu(x):
        return jnp.maximum(x, 0)

    relu.defjvp(lambda primals, tangents: (relu(*primals), tangents[0]))
    return relu(x)


def used_twice(x, kernel):
    y = lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return lax.reduce_window(y, -np.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID") + y.sum()


def pooled(convolve=None, **options):
    """A layer with other options of its convolution, or with other windows."""
    windows = {"sizes": (1, 2, 2, 1), "steps": (1, 2, 2, 1), "pads": "VALID"} | options.pop("windows", {})

    def function(x, kernel):
        given = {"window_strides": (1, 1), "padding": "SAME"} | options
        y = lax.conv_general_dilated(x, kernel, dimension_numbers=("NHWC", "HWIO", "NHWC"), **given)
        y = convolve(y) if convolve else y
        return lax.reduce_window(y, -np.inf, lax.max, windows["sizes"], windows["steps"], windows["pads"])

    return function


LEFT_ALONE = {
    "a value that is used elsewhere": used_twice,
    "another activation": lambda *arguments: layer(*arguments, activation=jnp.tanh),
    "a ReLU with another derivative": lambda *arguments: layer(*arguments, activation=sigmoid_like),
    "a bias for each place": pooled(lambda y: y + jnp.arange(110.0).reshape(1, 11, 10, 1)),
    "ReLU before the bias": pooled(lambda y: jax.nn.relu(y) + jnp.arange(4.0).reshape(1, 1, 1, 4)),
    "strides": pooled(window_strides=(2, 2)),
    "holes": pooled(rhs_dilation=(2, 2)),
    "padding that crops": pooled(padding=((-1, 1), (1, 1))),
    "windows that overlap": pooled(windows={"sizes": (1, 3, 3, 1)}),
    "windows that are padded": pooled(windows={"pads": "SAME"}),
    "windows of examples": pooled(windows={"sizes": (2, 2, 2, 1), "steps": (2, 2, 2, 1)}),
    "windows of features": pooled(windows={"sizes": (1, 2, 2, 2), "steps": (1, 2, 2, 2)}),
    "windows of three": pooled(windows={"sizes": (1, 3, 3, 1), "steps": (1, 3, 3, 1)}),
    "windows of one column": pooled(windows={"sizes": (1, 2, 1, 1), "steps": (1, 2, 1, 1)}),
    "windows of four": pooled(windows={"sizes": (1, 4, 4, 1), "steps": (1, 4, 4, 1)}),
    "axes that change places": pooled(lambda y: y.reshape(2, 10, 11, 4)),
}


@pytest.mark.parametrize(
    "function",
    in_tiers(
        LEFT_ALONE,
        ("a value that is used elsewhere", "a ReLU with another derivative", "a bias for each place"),
    ),
)
def test_what_is_left_alone(function):
    x, kernel = whole_numbers(0, *SHAPE, dtype=np.float32), whole_numbers(1, 3, 3, 3, 4, dtype=np.float32)
    expected = jax.jit(value_and_slopes(function))(x, kernel)
    got, text = on_a_tpu(value_and_slopes(quick(function)), x, kernel)
    assert "select_and_scatter" in text
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-4), got, expected)


def test_where_features_fill_the_lanes_nothing_changes():
    kernels = [jax.ShapeDtypeStruct((5, 5, 3, features), np.float32) for features in (64, 128)]
    x = jax.ShapeDtypeStruct(SHAPE, np.float32)
    texts = [jax.jit(lambda *arguments: quick(layer)(*arguments)).trace(x, kernel) for kernel in kernels]
    texts = [traced.lower(lowering_platforms=("tpu",)).as_text() for traced in texts]
    assert ["reduce_window" in text for text in texts] == [False, True]
