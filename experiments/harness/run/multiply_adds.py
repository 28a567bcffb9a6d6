"""Counts the multiply-adds of traced programs and of runs; nothing is computed or compiled.

Counted are matrix products and convolutions, nearly all of the work of training a network, as they stand in the
program for this platform: rows that pad a minibatch count, products with zeros that a gradient of a strided
convolution puts between its entries do not. Elementwise operations and what a rule does with updates are left out.
"""

import functools
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jafl.base.errors import require
from jafl.base.jaxpr_dependence import inner_programs
from jafl.clients.minibatch_gradients import dropout_key, rows_at_once, sum_and_gradient
from jafl.engine.evaluation import batch_shapes, evaluated_splits, totals
from jafl.engine.plan.run import Run
from jafl.models import Model
from jafl.simulation.run_state import evaluation_steps
from jafl.specifications import Specification, as_specification


class Compute(NamedTuple):
    """The multiply-adds of a whole run.

    Attributes:
      training: of the clients' gradients, of all applied trips.
      server: of what the rule computes at its steps, such as a gradient on the server's own examples; one that is
        not computed at every step counts as if it were.
      evaluation: of all evaluations.
      minibatches: that clients train on in all; of one that is larger than what is computed at once, its parts.
      evaluations: how many.
    """

    training: int
    server: int
    evaluation: int
    minibatches: int
    evaluations: int


def multiply_adds(traced: Any, platform: str | None = None) -> int:
    """Counts the multiply-adds of a program's matrix products and convolutions.

    Args:
      traced: the return value of ``jax.jit(function).trace(...)``; its arguments may have been shapes.
      platform: "cpu", "gpu" or "tpu": of what is written differently for each platform, its form counts. Default:
        that of the devices here.

    Returns:
      The number. Of a loop whose number of rounds is not known before it runs, one round counts; of branches, the
      one with the most.

    Examples:
      >>> a, b = jax.ShapeDtypeStruct((2, 3), float), jax.ShapeDtypeStruct((3, 5), float)
      >>> multiply_adds(jax.jit(jnp.dot).trace(a, b))
      30
    """
    return _program_count(traced.jaxpr.jaxpr, platform or jax.local_devices()[0].platform)


def compute(run: Run, *, on_training: bool = False) -> Compute:
    """Counts the multiply-adds of a run.

    Args:
      run: the run; ``params`` may be shapes.
      on_training: whether it is evaluated on the training examples, too.

    Returns:
      The ``Compute``.

    Raises:
      SettingError: for client work that does not say how many minibatches its trips have.
    """
    work, federation = as_specification(run.client_work).build(), run.federation
    require(
        work.minibatches, "client_work", run.client_work, "one of jafl.client_work, whose trips are counted"
    )
    assert work.minibatches is not None
    client = run.schedule.client
    if work.reads_local_steps:
        of_trips = work.minibatches(federation.num_examples[client], run.schedule.local_steps)
    else:
        of_trips = work.minibatches(federation.num_examples)[client]
    count = int(np.sum(of_trips))
    evaluations = len(evaluation_steps(run))
    return Compute(
        training=count * multiply_adds(traced_gradient(run)),
        server=_server_count(run),
        evaluation=evaluations * sum(map(multiply_adds, traced_evaluations(run, on_training=on_training))),
        minibatches=count,
        evaluations=evaluations,
    )


def traced_gradient(run: Run) -> Any:
    """The summed loss of one minibatch, or of as much of it as is computed at once, and its gradient, traced.

    run: ``params`` may be shapes.
    """

    @jax.jit
    def gradient(model: Model, params: Any, rows: tuple) -> Any:
        key = dropout_key(jnp.zeros(2, jnp.uint32), 0) if model.draws(params, rows[0]) else None
        return sum_and_gradient(model, params, rows, key)

    work = as_specification(run.client_work)
    rows = rows_at_once(work.arguments["batch_size"])
    x, y = run.federation.x, run.federation.y
    columns = [(x.shape[1:], x.dtype), (y.shape[1:], y.dtype), ((), np.dtype(bool))]
    examples = tuple(
        jax.ShapeDtypeStruct((rows, *rest), jax.dtypes.canonicalize_dtype(dtype)) for rest, dtype in columns
    )
    return gradient.trace(work.build().model, run.params, examples)


def traced_evaluations(run: Run, *, on_training: bool = False) -> list[Any]:
    """One evaluation on each split of a run's federation that is there, traced; arguments as of ``compute``."""
    model = as_specification(run.client_work).build().model
    return [
        totals.trace(model, run.params, tuple(batch_shapes(x, y)))
        for x, y in evaluated_splits(run.federation, on_training=on_training)
    ]


def _server_count(run: Run) -> int:
    """Of the rule: at the start, and at all server steps."""

    # The rule is an argument, since it may have arrays that are indexed by clients.
    def begin(rule: Specification, params: Any) -> Any:
        return rule.build().init(params, run.schedule.num_clients)

    def step(rule: Specification, state: Any, params: Any) -> Any:
        built = rule.build()
        return built.finish(built.begin(state, params), params)[:3]

    rule = as_specification(run.rule)
    started = jax.jit(begin).trace(rule, run.params)
    state = jax.eval_shape(begin, rule, run.params)
    steps = run.schedule.num_steps * multiply_adds(jax.jit(step).trace(rule, state, run.params))
    return multiply_adds(started) + steps


@functools.lru_cache(maxsize=256)  # runs that differ in seeds and rates share one jaxpr
def _program_count(jaxpr: Any, platform: str) -> int:
    return sum(_operation_count(equation, platform) for equation in jaxpr.eqns)


def _operation_count(equation: Any, platform: str) -> int:
    name, params = equation.primitive.name, equation.params
    if name == "dot_general":
        (contracted, _), _ = params["dimension_numbers"]
        left = equation.invars[0].aval.shape
        return math.prod(equation.outvars[0].aval.shape) * math.prod(left[axis] for axis in contracted)
    if name == "conv_general_dilated":
        return _convolution_count(equation)
    if params.get("branches_platforms"):
        return _program_count(_program_of_platform(params, platform), platform)
    inside = [_program_count(jaxpr, platform) for jaxpr in inner_programs(params)]
    if name == "scan":
        return int(params["length"]) * sum(inside)
    return max(inside, default=0) if name == "cond" else sum(inside)


def _program_of_platform(params: Mapping[str, Any], platform: str) -> Any:
    """Of an operation with a branch for each platform, the jaxpr of this one."""
    names = {"gpu": ("cuda", "rocm", "gpu")}.get(platform, (platform,))
    chosen = next(
        branch
        for branch, own in zip(params["branches"], params["branches_platforms"], strict=True)
        if own is None or set(own) & set(names)
    )
    return chosen.jaxpr


def _convolution_count(equation: Any) -> int:
    """An output sums as many products as a kernel has entries; zeros between the entries of an input are skipped."""
    params, kernel = equation.params, equation.invars[1].aval.shape
    outputs = kernel[params["dimension_numbers"].rhs_spec[0]]
    entries = math.prod(equation.outvars[0].aval.shape) * math.prod(kernel) // outputs
    return entries // math.prod(params["lhs_dilation"])
