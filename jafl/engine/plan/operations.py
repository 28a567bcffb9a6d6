"""Counts the operations of a client trip, from the traced loss, without compiling anything."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jafl.base.jaxpr_dependence import inner_programs
from jafl.clients.minibatch_gradients import dropout_key
from jafl.engine.plan.run import Run
from jafl.models import Model
from jafl.models.forms.rewriting import as_written
from jafl.records import Params
from jafl.specifications import as_specification

PASSES = 3  # a backward pass takes two products where the forward pass takes one
# Operations of a minibatch from which a TPU trains convolutions one trip after the other. By the compiler's estimates
# for a v5e EMNIST's CNN, of 2.4e9, takes 219 kilocycles a trip with FedBuff, 307 with ACE and 301 with WKAFL, and
# side by side 288, 321 and 793; LeNet, of 1.3e8, takes 124 with FedBuff, and 86 side by side.
LARGE_CONVOLUTIONS = 1e9


def has_large_convolutions(run: Run) -> bool:
    """Whether a TPU trains trips of this run quicker one after the other than side by side."""
    operations = operations_per_minibatch(run) if has_convolutions(run.params) else None
    return operations is not None and operations >= LARGE_CONVOLUTIONS


def has_convolutions(params: Params) -> bool:
    """Whether parameters, or their shapes, hold the kernel of a convolution of two axes."""
    return any(np.ndim(leaf) == 4 for leaf in jax.tree.leaves(params))


def operations_per_parameter(run: Run, minibatches: np.ndarray | None) -> float | None:
    """About how many operations a trip makes, for each parameter that is trained; see ``operations_per_minibatch``.

    Args:
      run: the run.
      minibatches: [J] of each trip.

    Returns:
      The mean over the trips; None where it is not known.
    """
    operations = operations_per_minibatch(run)
    if operations is None or minibatches is None:
        return None
    parameters = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(run.params))
    return operations * float(np.mean(minibatches)) / max(parameters, 1)


def operations_per_minibatch(run: Run) -> int | None:
    """About how many operations the gradient of a whole minibatch takes; ``run.params`` may be shapes.

    Counted are the multiplications and additions of products and convolutions, as the model is written; a backward
    pass counts as two forward passes.

    Returns:
      Their number; None for client work that is not ``jafl.client_work``, whose training nobody knows, and for a
      model that does not fit the examples.
    """
    work = as_specification(run.client_work)
    if "batch_size" not in work.arguments:
        return None
    x, y = (
        jax.ShapeDtypeStruct((1, *of.shape[1:]), jax.dtypes.canonicalize_dtype(of.dtype))
        for of in (run.federation.x, run.federation.y)
    )
    try:
        with as_written():  # the quick forms of convolutions have branches for each platform
            program = _loss.trace(work.build().model, run.params, x, y).jaxpr
    # A model that cannot be traced with these examples is refused later, with the reason.
    except Exception:
        return None
    largest = int(run.federation.num_examples.max())
    return PASSES * count_operations(program.jaxpr) * min(work.arguments["batch_size"] or largest, largest)


# Jitted, so that it is traced once for all runs that differ in numbers.
@jax.jit
def _loss(model: Model, params: Params, x: jax.Array, y: jax.Array) -> Any:
    key = dropout_key(jnp.zeros(2, jnp.uint32), 0) if model.draws(params, x) else None
    return model.loss_sums(params, x, y, key)[0]


def count_operations(program: Any) -> int:
    """How many multiplications and additions the products and convolutions of a jaxpr take.

    A loop whose number of rounds is data counts as one round, and a condition as its cheapest branch: those of jafl's
    models are one for each platform, of which some compute a product of float32 as six.

    Examples:
      >>> product = jax.make_jaxpr(lambda x, y: x @ y)(np.ones((2, 3)), np.ones((3, 4)))
      >>> count_operations(product.jaxpr)  # 2 x 4 results, each of 3 products and 3 sums
      48
    """
    return sum(_count(equation) for equation in program.eqns)


def _count(equation: Any) -> int:
    name, params = equation.primitive.name, equation.params
    if name == "dot_general":
        (contracted, _), _ = params["dimension_numbers"]
        shape = equation.invars[0].aval.shape
        return 2 * equation.outvars[0].aval.size * math.prod(shape[axis] for axis in contracted)
    if name == "conv_general_dilated":
        kernel = equation.invars[1].aval.shape
        features = kernel[params["dimension_numbers"].rhs_spec[0]]
        return 2 * equation.outvars[0].aval.size * math.prod(kernel) // max(features, 1)
    inner = [count_operations(getattr(one, "jaxpr", one)) for one in inner_programs(params)]
    if name == "cond":
        return min(inner)
    return int(params["length"]) * sum(inner) if name == "scan" else sum(inner)
