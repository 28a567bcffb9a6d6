"""Evaluation of a server model on held-out examples."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jafl.models import Model

EXAMPLES_AT_ONCE = 512


class Evaluator:
    """Accuracy and loss on a fixed set of examples, placed on the device once and padded to whole batches.

    x: [E, ...]; y: [E] integer labels.
    """

    def __init__(self, model: Model, x: np.ndarray, y: np.ndarray):
        self._model = model
        size = min(EXAMPLES_AT_ONCE, len(x))
        padding = -len(x) % size
        batches = [
            np.concatenate([a, np.repeat(a[:1], padding, axis=0)]).reshape(-1, size, *a.shape[1:])
            for a in (x, y, np.ones(len(x), bool))
        ]
        batches[2].reshape(-1)[len(x) :] = False
        self._batches = jax.device_put(tuple(batches))
        self._count = len(x)

    def __call__(self, params: Any) -> dict[str, float]:
        """{"accuracy": share of examples whose largest output is their label, "loss": mean loss}."""
        right, loss = jax.device_get(_totals(self._model, params, self._batches))
        return {"accuracy": float(right) / self._count, "loss": float(loss) / self._count}


@functools.partial(jax.jit, static_argnames="model")
def _totals(model: Model, params: Any, batches: tuple) -> tuple[jax.Array, jax.Array]:
    def one(batch):
        x, y, present = batch
        outputs = model.apply(params, x)
        right = (jnp.argmax(outputs, axis=-1) == y) & present
        return jnp.sum(right), jnp.sum(jnp.where(present, model.loss_per_example(outputs, y), 0))

    right, loss = jax.lax.map(one, batches)
    return jnp.sum(right), jnp.sum(loss)
