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


def operations_per_parameter(run: Run, minibatches: np.ndarray | None) -> float | None:
    """About how many operations a trip makes, for each parameter that is trained.

    Counted are the multiplications and additions of products and convolutions, as the model is written; a backward
    pass counts as two forward passes. ``run.params`` may be shapes.

    Args:
      run: the run.
      minibatches: [J] of each trip.

    Returns:
      The mean over the trips; None for client work that is not ``jafl.client_work``, whose training nobody knows.
    """
    work = as_specification(run.client_work)
    if "batch_size" not in work.arguments or minibatches is None:
        return None
    x, y = (
        jax.ShapeDtypeStruct((1, *of.shape[1:]), jax.dtypes.canonicalize_dtype(of.dtype))
        for of in (run.federation.x, run.federation.y)
    )
    with as_written():  # the quick forms of convolutions have branches for each platform
        program = _loss.trace(work.build().model, run.params, x, y).jaxpr
    largest = int(run.federation.num_examples.max())
    examples = min(work.arguments["batch_size"] or largest, largest) * float(np.mean(minibatches))
    parameters = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(run.params))
    return PASSES * count_operations(program.jaxpr) * examples / max(parameters, 1)


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
