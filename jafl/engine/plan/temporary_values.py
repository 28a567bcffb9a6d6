"""Estimates what trips hold while they train, beside the arrays that last, without compiling anything."""

from typing import Any

import jax
import jax.numpy as jnp

from jafl.clients.minibatch_gradients import dropout_key, rows_at_once
from jafl.engine.plan.device_memory import count_bytes
from jafl.engine.plan.run import Run
from jafl.models import Model
from jafl.records import Params
from jafl.specifications import as_specification

# Models that a trip holds while it trains: its own and its gradient, and in the matrix form also its start and its
# update as rows of the matrices.
MODELS_OF_A_TRIP = {"loop": 2, "matrix": 4}
# On a TPU arrays fill whole tiles of 8 x 128 entries, of large networks about a third more.
TILES_OF_A_TPU = 1.3


def temporary_bytes(run: Run, platform: str, *, trips: int, form: str = "loop") -> int:
    """Estimates the bytes of activations, gradients and the like of trips that train side by side.

    A trip holds some models, and what the gradient of a minibatch keeps of its forward pass. Of client work that is
    not ``jafl.client_work`` only the models are known.

    trips: how many train side by side on a device; the result is in bytes on each. ``run.params`` may be shapes.
    """
    models = MODELS_OF_A_TRIP[form] * count_bytes(run.params)
    if form == "matrix":
        # What its client keeps as it was and as it becomes; in the loop form the latter is among what waits.
        models += 2 * count_bytes(as_specification(run.client_work).build().state_shapes(run.params))
    return int(trips * (models + _kept_by_a_gradient(run)) * (TILES_OF_A_TPU if platform == "tpu" else 1))


def _kept_by_a_gradient(run: Run) -> int:
    """Bytes that the gradient of a minibatch, or of as much of it as is computed at once, keeps."""
    work = as_specification(run.client_work)
    if "batch_size" not in work.arguments:
        return 0
    rows = rows_at_once(work.arguments["batch_size"])
    x, y = (
        jax.ShapeDtypeStruct((rows, *of.shape[1:]), jax.dtypes.canonicalize_dtype(of.dtype))
        for of in (run.federation.x, run.federation.y)
    )
    return count_bytes(jax.eval_shape(_pull_back, work.build().model, run.params, x, y))


@jax.jit  # traced once for all runs that differ in numbers
def _pull_back(model: Model, params: Params, x: jax.Array, y: jax.Array) -> Any:
    """The function that takes the loss's gradient, a pytree of what it keeps of the forward pass."""
    key = dropout_key(jnp.zeros(2, jnp.uint32), 0) if model.draws(params, x) else None
    with model.products():
        return jax.vjp(lambda params: jnp.sum(model.loss_sums(params, x, y, key)[0]), params)[1]
