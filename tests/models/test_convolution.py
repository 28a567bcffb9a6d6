"""Convolutions: Flax's own values and gradients, alone and under ``vmap``, in both precisions."""

import sys

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from tiers import in_tiers

from jafl.base.errors import SettingError
from jafl.models import Conv, convolution

module = sys.modules[convolution.__module__]

PLAIN = ("NHWC", "HWIO", "NHWC")
CLOSE = 1e-5


def plain(x, kernel, strides, padding):
    """The same by XLA alone."""
    return lax.conv_general_dilated(x, kernel, strides, padding, dimension_numbers=PLAIN)


def random(seed, *shape, dtype=np.float32):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), dtype)


def assert_close(ours, theirs, tolerance=CLOSE):
    """Within ``tolerance`` of the largest entry of each leaf."""
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert one.shape == other.shape and one.dtype == other.dtype
        assert np.abs(one - other).max() <= tolerance * np.abs(other).max()


def value_and_slopes(function, weights):
    """(x, kernel) -> the value, and gradients of a scalar that sees every output."""

    def both(x, kernel):
        slopes = jax.grad(lambda a, b: jnp.sum(jnp.sin(function(a, b)) * weights), (0, 1))(x, kernel)
        return function(x, kernel), *slopes

    return both


# (rows, columns, channels), (h, w), features, strides, padding
CASES = {
    "same": ((7, 7, 3), (3, 3), 4, (1, 1), "SAME"),
    "valid": ((9, 8, 2), (5, 5), 3, (1, 1), "VALID"),
    "two pixels": ((6, 6, 3), (3, 3), 2, (1, 1), ((2, 2), (2, 2))),
    "even kernel": ((8, 7, 1), (4, 4), 3, (1, 1), "SAME"),
    "stride 2": ((8, 8, 3), (3, 3), 4, (2, 2), ((1, 1), (1, 1))),
    "stride 2, odd": ((7, 9, 2), (3, 3), 4, (2, 2), "SAME"),
    "a shortcut": ((8, 8, 3), (1, 1), 4, (2, 2), "VALID"),
    "stride beyond the kernel": ((9, 10, 2), (2, 2), 3, (3, 4), "VALID"),
    "padding beyond the kernel": ((4, 4, 2), (2, 2), 3, (1, 1), ((2, 3), (0, 4))),
    "rows unseen": ((8, 8, 2), (3, 3), 2, (4, 3), "VALID"),
    "uneven": ((6, 11, 2), (2, 5), 3, (1, 3), ((0, 1), (3, 2))),
    "whole image": ((5, 5, 3), (5, 5), 6, (1, 1), "VALID"),
}


IN_FLOAT64 = ("same", "stride 2, odd", "stride beyond the kernel")
IN_FLOAT32 = ("a shortcut", "rows unseen", "uneven")  # in the default tier


@pytest.mark.few_in_full(7)
@pytest.mark.few_by_default(1)
@pytest.mark.parametrize(
    ("case", "dtype"),
    [
        *[(name, np.float64) for name in IN_FLOAT64],
        *[(name, np.float32) for name in IN_FLOAT32],
        *[pytest.param(name, np.float32, marks=pytest.mark.full) for name in CASES if name not in IN_FLOAT32],
    ],
    ids=lambda part: part if isinstance(part, str) else part.__name__,
)
def test_values_and_gradients_are_xlas(case, dtype):
    size, window, features, strides, padding = CASES[case]
    with jax.enable_x64(dtype is np.float64):
        x, kernel = random(0, 3, *size, dtype=dtype), random(1, *window, size[2], features, dtype=dtype)
        shape = jax.eval_shape(lambda a, b: plain(a, b, strides, padding), x, kernel).shape
        weights = random(2, *shape, dtype=dtype)
        (ours, *slopes), (theirs, *their_slopes) = (
            jax.jit(value_and_slopes(function, weights))(x, kernel)
            for function in (
                lambda a, b: convolution(a, b, strides=strides, padding=padding),
                lambda a, b: plain(a, b, strides, padding),
            )
        )
        np.testing.assert_array_equal(ours, theirs)
        assert_close(slopes, their_slopes, 1e-12 if dtype is np.float64 else CLOSE)


@settings(max_examples=6)
@given(
    size=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    window=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    strides=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    pads=st.tuples(*[st.tuples(st.integers(0, 4), st.integers(0, 4))] * 2),
)
@pytest.mark.full
def test_any_strides_and_paddings(size, window, strides, pads):
    x, kernel = random(0, 2, *size, 2), random(1, *window, 2, 3)
    if any(n + sum(pad) < k for n, pad, k in zip(size, pads, window, strict=True)):
        with pytest.raises(SettingError, match="size of the padded images"):
            convolution(x, kernel, strides=strides, padding=pads)
        return
    value = jax.eval_shape(lambda a, b: plain(a, b, strides, pads), x, kernel)
    weights = random(2, *value.shape)
    ours, theirs = (
        jax.jit(value_and_slopes(function, weights))(x, kernel)
        for function in (
            lambda a, b: convolution(a, b, strides=strides, padding=pads),
            lambda a, b: plain(a, b, strides, pads),
        )
    )
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=CLOSE * max(float(np.abs(other).max()), 1.0))


@pytest.mark.full
@pytest.mark.parametrize("name", in_tiers(["same", "stride 2", "uneven"], ["uneven"]))
@pytest.mark.parametrize("axes", [(0, 0), (0, None), (None, 0)], ids=["both", "images", "kernels"])
def test_under_vmap_it_is_client_by_client(name, axes):
    side_by_side_as_one_by_one(name, axes)


@pytest.mark.full
def test_what_accelerators_do_under_vmap(monkeypatch):
    """Lowered for a CPU, so that it runs anywhere."""
    monkeypatch.setattr(module, "by_platform", lambda *arrays, cpu, elsewhere: elsewhere(*arrays))
    for name in CASES:
        side_by_side_as_one_by_one(name, (0, 0))
    side_by_side_as_one_by_one("stride 2", (0, None))
    side_by_side_as_one_by_one("stride 2", (None, 0))


def side_by_side_as_one_by_one(name, axes):
    size, window, features, strides, padding = CASES[name]
    clients = 3
    shapes = [(2, *size), (*window, size[2], features)]
    x, kernel = (
        random(seed, *((clients,) if axis == 0 else ()), *shape)
        for seed, (axis, shape) in enumerate(zip(axes, shapes, strict=True))
    )

    ours = value_and_slopes(lambda a, b: convolution(a, b, strides=strides, padding=padding), 1.0)
    theirs = value_and_slopes(lambda a, b: plain(a, b, strides, padding), 1.0)
    together = jax.jit(jax.vmap(ours, axes))(x, kernel)
    assert_close(together, jax.jit(jax.vmap(theirs, axes))(x, kernel))
    one = jax.jit(ours)(x[1] if axes[0] == 0 else x, kernel[1] if axes[1] == 0 else kernel)
    assert_close([part[1] for part in together], list(one))


@pytest.mark.full
def test_vmap_of_vmap_and_vmap_inside_grad():
    x, kernel = random(0, 2, 3, 2, 6, 6, 2), random(1, 2, 3, 3, 3, 2, 3)

    def loss(function):
        both = jax.vmap(jax.vmap(function))
        return jax.jit(jax.grad(lambda a, b: jnp.sum(both(a, b) ** 2), (0, 1)))

    theirs = loss(lambda a, b: plain(a, b, (2, 2), "SAME"))(x, kernel)
    assert_close(loss(lambda a, b: convolution(a, b, strides=2))(x, kernel), theirs)


@pytest.mark.full
def test_second_derivatives():
    x, kernel = random(0, 2, 6, 6, 2), random(1, 3, 3, 2, 3)

    def curvature(function):
        def squared_slope(a, b):
            slopes = jax.grad(lambda a, b: jnp.sum(jnp.sin(function(a, b))), (0, 1))(a, b)
            return sum(jnp.sum(slope**2) for slope in slopes)

        return jax.jit(jax.grad(squared_slope, (0, 1)))(x, kernel)

    theirs = curvature(lambda a, b: plain(a, b, (2, 1), "SAME"))
    assert_close(curvature(lambda a, b: convolution(a, b, strides=(2, 1))), theirs)


def test_on_a_cpu_no_backward_convolution_is_transposed_or_dilated():
    x, kernel = random(0, 2, 8, 8, 3), random(1, 3, 3, 3, 4)
    slope = jax.grad(lambda b: jnp.sum(jnp.sin(convolution(x, b, strides=2))))
    text = jax.jit(slope).lower(kernel).as_text()
    assert text.count("stablehlo.convolution") == 1, "the kernel's gradient is a matrix product"
    whole = jax.grad(lambda a: jnp.sum(jnp.sin(convolution(a, kernel, strides=2))))
    text = jax.jit(whole).lower(x).as_text()
    assert "[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]" in text
    assert "lhs_dilate = [2" not in text and "rhs_dilate = [2" not in text


@pytest.mark.parametrize(
    ("padding", "strides"), [("SAME", 1), ("VALID", 2), (2, (2, 1)), ((1, (0, 2)), 1)], ids=str
)
def test_the_module_is_flaxs(padding, strides):
    x = random(0, 2, 9, 9, 3)
    modules = [kind(4, (3, 3), strides=strides, padding=padding) for kind in (Conv, nn.Conv)]
    shapes = [jax.eval_shape(module.init, jax.random.key(1), x) for module in modules]
    assert shapes[0] == shapes[1]
    params = jax.tree.map(lambda leaf: random(leaf.size, *leaf.shape), shapes[0])
    np.testing.assert_array_equal(*[module.apply(params, x) for module in modules])
    if padding == "SAME":
        started = [module.init(jax.random.key(1), x) for module in modules]
        jax.tree.map(np.testing.assert_array_equal, *started)
    without = jax.eval_shape(Conv(4, (3, 3), use_bias=False).init, jax.random.key(0), x)
    assert set(without["params"]) == {"kernel"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"padding": "CIRCULAR"}, "padding is 'CIRCULAR'"),
        ({"padding": -1}, "padding is -1"),
        ({"padding": ((1, 1),)}, "padding is"),
        ({"strides": 0}, "strides is 0"),
        ({"strides": (1, 2, 3)}, "strides is"),
        ({"x": np.zeros((2, 8, 3), np.float32)}, "shape of the images"),
        ({"x": np.zeros((2, 8, 8, 4), np.float32)}, "number of channels"),
        ({"kernel": np.zeros((3, 3, 3), np.float32)}, "shape of the kernel"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_bad_arguments(change, message):
    arguments = {
        "x": np.zeros((2, 8, 8, 3), np.float32),
        "kernel": np.zeros((3, 3, 3, 2), np.float32),
    } | change
    with pytest.raises(SettingError, match=message):
        convolution(arguments.pop("x"), arguments.pop("kernel"), **arguments)
