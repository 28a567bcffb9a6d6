"""Evaluation of a server model on held-out examples."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jafl.data import Federation
from jafl.errors import SettingError
from jafl.jaxpr_memory import temporary_bytes
from jafl.models import Model
from jafl.records import Params

EXAMPLES_AT_ONCE = 512


class Evaluator:
    """Accuracy and loss on a fixed set of examples, placed on the device once and padded to whole batches.

    Args:
      model: the model, with its frozen parameters, if any.
      x: [E, ...] the examples.
      y: [E] integer labels.

    Example:
      >>> model = jafl.models.softmax(2)
      >>> x, y = np.eye(2, dtype=np.float32), np.array([0, 1])
      >>> jafl.Evaluator(model, x, y)(model.init(jax.random.key(0), x))["accuracy"]
      0.5
    """

    def __init__(self, model: Model, x: np.ndarray, y: np.ndarray):
        self._model = jax.device_put(model)  # its frozen parameters, if any
        size, padding = _batch_size(x), -len(x) % _batch_size(x)
        batches = [
            np.concatenate([a, np.repeat(a[:1], padding, axis=0)]).reshape(-1, size, *a.shape[1:])
            for a in (x, y, np.ones(len(x), bool))
        ]
        batches[2].reshape(-1)[len(x) :] = False
        self._batches = jax.device_put(tuple(batches))
        self._count = len(x)

    def __call__(self, params: Params) -> dict[str, float]:
        """{"accuracy": share of examples whose largest output is their label, "loss": mean loss}."""
        return self._means(*jax.device_get(totals(self._model, params, self._batches)))

    def of_many(self, params: Params) -> list[dict[str, float]]:
        """What the call gives for each of M models, ``params`` [M, *P], in one program."""
        right, loss = jax.device_get(_totals_of_many(self._model, params, self._batches))
        return [self._means(*both) for both in zip(right, loss, strict=True)]

    def _means(self, right: Any, loss: Any) -> dict[str, float]:
        return {"accuracy": float(right) / self._count, "loss": float(loss) / self._count}


def per_client_accuracy(model: Model, params: Params, federation: Federation) -> np.ndarray:
    """[N] float64: accuracy on what each client holds out of its own examples; NaN for who holds out none.

    Raises:
      SettingError: if the federation holds nothing out.
    """
    held = federation.held_out
    if held is None:
        raise SettingError(
            "federation.held_out is None, but must hold examples: set client_test_fraction, or see "
            "jafl.data.hold_out.",
            setting="federation.held_out",
        )
    right = np.zeros(len(held.indices), bool)
    for start in range(0, len(right), EXAMPLES_AT_ONCE):
        rows = held.indices[start : start + EXAMPLES_AT_ONCE]
        # Always as many rows, so that one program serves all.
        padded = np.concatenate([rows, np.repeat(rows[:1], EXAMPLES_AT_ONCE - len(rows))])
        labels = _labels(model, params, federation.x[padded])
        right[start : start + len(rows)] = np.asarray(labels)[: len(rows)] == federation.y[rows]
    holder = np.repeat(np.arange(federation.num_clients), held.sizes)
    with np.errstate(invalid="ignore"):
        return np.bincount(holder[right], minlength=federation.num_clients) / held.sizes


def evaluation_memory(
    model: Model, params: Params, federation: Federation, *, on_training: bool = False
) -> tuple[int, int]:
    """(bytes that the evaluators on a federation's splits hold, temporary bytes of one evaluation).

    params: [*P], or its shapes. on_training: whether the training examples are a split to evaluate on, too.
    """
    splits = [(federation.test_x, federation.test_y), (federation.validation_x, federation.validation_y)]
    splits += [(federation.x, federation.y)] if on_training else []
    held = temporary = 0
    for x, y in splits:
        if x is not None and y is not None and len(x):
            batches = tuple(batch_shapes(x, y))
            held += sum(batch.size * batch.dtype.itemsize for batch in batches)
            held += sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves(model))
            temporary = max(temporary, temporary_bytes(totals.trace(model, params, batches)))
    return held, temporary


def batch_shapes(x: np.ndarray, y: np.ndarray) -> list[jax.ShapeDtypeStruct]:
    """Of an evaluator's batches."""
    size = _batch_size(x)
    columns = [(x.shape[1:], x.dtype), (y.shape[1:], y.dtype), ((), np.dtype(bool))]
    return [
        jax.ShapeDtypeStruct((-(-len(x) // size), size, *rest), jax.dtypes.canonicalize_dtype(dtype))
        for rest, dtype in columns
    ]


def _batch_size(x: np.ndarray) -> int:
    return min(EXAMPLES_AT_ONCE, len(x))


@jax.jit
def _labels(model: Model, params: Params, x: jax.Array) -> jax.Array:
    return jnp.argmax(model.apply(params, x), axis=-1)


@jax.jit
def totals(model: Model, params: Params, batches: tuple) -> tuple[jax.Array, jax.Array]:
    """(how many labels are right, the sum of losses) on an evaluator's batches."""

    def total(batch):
        x, y, present = batch
        outputs = model.apply(params, x)
        right = (jnp.argmax(outputs, axis=-1) == y) & present
        return jnp.sum(right), jnp.sum(jnp.where(present, model.loss_per_example(outputs, y), 0))

    right, loss = jax.lax.map(total, batches)
    return jnp.sum(right), jnp.sum(loss)


@jax.jit
def _totals_of_many(model: Model, params: Params, batches: tuple) -> tuple[jax.Array, jax.Array]:
    return jax.vmap(lambda params: totals(model, params, batches))(params)
