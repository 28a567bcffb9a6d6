"""Networks of Flax's own layers, with all options of a convolution, compile for a TPU that is not here."""

import contextlib

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest

import jafl
from experiments.tools.benchmarks.compiled_estimates.estimate import estimate
from jafl.ahead_of_time import topologies
from jafl.ahead_of_time.programs import lower
from jafl.ahead_of_time.topologies import topology
from jafl.models.forms.rewriting import as_written

pytestmark = [
    pytest.mark.gate,
    pytest.mark.skipif(
        not topologies.is_installed("v5e:1x1"), reason='libtpu is not installed: pip install "jafl[tpu]"'
    ),
]


class Options(nn.Module):
    """A convolution with holes, one in groups, a transposed one, and an overlapping pool."""

    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Conv(8, (3, 3), kernel_dilation=2)(x))
        x = nn.max_pool(nn.relu(nn.Conv(8, (3, 3), feature_group_count=4)(x)), (3, 3), strides=(2, 2))
        x = nn.relu(nn.ConvTranspose(4, (3, 3), strides=(2, 2))(x))
        return nn.Dense(3)(x.mean((1, 2)))


class Plain(nn.Module):
    """The layers that most networks have."""

    steps: int  # of the pool

    @nn.compact
    def __call__(self, x):
        x = nn.max_pool(nn.relu(nn.Conv(8, (3, 3))(x)), (2, 2), strides=(self.steps, self.steps))
        return nn.Dense(3)(x.mean((1, 2)))


def slopes_of_clients(model, clients=2):
    """The gradients of several clients side by side, jitted, and the shapes that they take."""
    x = jax.ShapeDtypeStruct((clients, 4, 16, 16, 3), jnp.float32)
    params = jax.eval_shape(lambda: model.init(jax.random.key(0), jnp.zeros((1, 16, 16, 3))))
    params = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((clients, *leaf.shape), leaf.dtype), params)
    y = jax.ShapeDtypeStruct((clients, 4), jnp.int32)

    def slope(params, x, y):
        with model.products():
            return jax.grad(lambda params: model.losses(params, x, y).sum())(params)

    return jax.jit(jax.vmap(slope)), (params, x, y)


def test_convolutions_with_any_options_compile():
    chip = topology("v5e:1x1")
    function, shapes = slopes_of_clients(jafl.Model(Options()))
    assert estimate(chip, function, *chip.placed(shapes)).memory.needed > 0


@pytest.mark.parametrize(("steps", "least", "most"), [(1, 0.95, 1.05), (2, 0.0, 0.95)])
def test_at_the_precision_of_the_hardware_plain_networks_compile_to_what_flax_wrote(steps, least, most):
    """Where nothing is split into parts, the quick form is XLA's own: the same estimate.

    A convolution and a pool whose windows lie side by side are one operation, which takes less.
    """
    chip = topology("v5e:1x1")
    model = jafl.Model(Plain(steps), matmul_precision="bfloat16")
    cycles = []
    for context in (as_written, contextlib.nullcontext):
        function, shapes = slopes_of_clients(model)
        with context():
            lower(chip, function, *chip.placed(shapes))  # traced, and kept by the jitted function
            cycles.append(estimate(chip, function, *chip.placed(shapes)).cycles)
    assert least * cycles[0] <= cycles[1] <= most * cycles[0]
