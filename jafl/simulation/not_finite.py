"""Why numbers are not finite: what is so at the initial model already, found by example and by feature.

Nothing of this is asked before something was not finite. A loss or a gradient that is not finite at the initial
model, before any step, has nothing to do with a learning rate.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jafl.clients.minibatch_gradients import sum_and_gradient
from jafl.models import Model
from jafl.records import Params
from jafl.specifications import Specification

AT_ONCE = 32
# Examples with which a bad one is compared, until one is found that is finite.
COMPARED = 64


class BadExample(NamedTuple):
    """An example whose loss or gradient is not finite.

    Attributes:
      row: of ``x`` and ``y``.
      what: is not finite: "loss", or "gradient by [...]" of a parameter.
      alone: whether it is so where the example is computed alone; if not, among others.
      features: a sentence on which of its numbers is the cause; "" if that was not found.
    """

    row: int
    what: str
    alone: bool
    features: str

    def describe(self, name: str) -> str:
        """One or two sentences; ``name`` is what the example is called."""
        if not self.alone:
            return (
                f"The {self.what} of a batch with {name} is not finite, although that of the example alone is: the "
                "loss looks at several examples at once, and divides by how many of some kind there are, perhaps."
            )
        slope = ""
        if self.what != "loss":
            slope = " Its loss is finite: a root, a norm or a power has an infinite slope at 0."
        return f"The {self.what} of {name} is not finite.{slope}{self.features}"


def bad_example(
    model: Model,
    params: Params,
    x: Any,
    y: Any,
    rows: np.ndarray,
    others: np.ndarray | None = None,
    *,
    gradients: bool = True,
) -> BadExample | None:
    """Finds the first example whose loss or gradient is not finite.

    Args:
      model: the clients' model; it is applied as in evaluation.
      params: [*P], finite.
      x: [E, ...] examples.
      y: [E, ...] labels.
      rows: [n] of ``x`` and ``y``: those that are searched.
      others: [m] rows among which one that is finite may be, to compare with. Default: ``rows``.
      gradients: whether gradients count, too.

    Returns:
      The example; None if all are finite.
    """
    # Without dropout: an example is to be blamed for itself, and not for what was drawn.
    model = model.as_evaluated()

    def look(x: Any, y: Any) -> list[str]:
        return _trouble(model, params, x, y, gradients)

    def trouble(rows: np.ndarray) -> list[str]:
        return look(x[rows], y[rows])

    for begin in range(0, len(rows), AT_ONCE):
        part = rows[begin : begin + AT_ONCE]
        # Always as many rows, so that one program serves all parts.
        padded = np.concatenate([part, np.repeat(part[:1], AT_ONCE - len(part))])
        among = trouble(padded)
        if not among:
            continue
        # One by one only where something is wrong: in most parts nothing is.
        for row in part:
            alone = trouble(np.array([row]))
            if alone:
                features = _culprit(look, x, y, int(row), rows if others is None else others)
                return BadExample(int(row), alone[0], True, features)
        # None of them alone: so it is a loss that looks at several examples at once.
        return BadExample(int(part[0]), among[0], False, "")
    return None


def infinite_rate(optimizer: Any) -> str | None:
    """What an optimizer's specification holds that is not finite in float32, "learning_rate=inf"; None if nothing."""
    for name, value in _numbers(optimizer):
        # The overflow is what is looked for: 1e39 is infinite in float32.
        with np.errstate(over="ignore"):
            held = np.float32(value)
        # An infinite clip norm, for example, is a way to say that nothing is clipped.
        if np.isnan(held) or (np.isinf(held) and name == "learning_rate"):
            return f"{name}={value:g}" + (f" ({held} in float32)" if np.isfinite(value) else "")
    return None


def _numbers(optimizer: Any) -> Iterator[tuple[str, float]]:
    if isinstance(optimizer, Specification):
        for name, value in optimizer.arguments.items():
            if isinstance(value, Specification):
                yield from _numbers(value)
            elif isinstance(value, float):
                yield name, value


def _trouble(model: Model, params: Params, x: Any, y: Any, gradients: bool) -> list[str]:
    """What is not finite on a batch of examples: the loss, or the gradient by which parameters."""
    x, y = np.asarray(x), np.asarray(y)
    if not gradients:
        return [] if np.all(np.isfinite(_losses(model, params, x, y))) else ["loss"]
    # Flags alone leave the device, and no gradients.
    losses, gradient = _finite(model, params, x, y)
    # A loss comes first: where it is not finite, neither is its gradient.
    if not np.all(losses):
        return ["loss"]
    paths = jax.tree_util.tree_leaves_with_path(gradient)
    return [f"gradient by {jax.tree_util.keystr(path)}" for path, finite in paths if not finite]


@jax.jit
def _losses(model: Model, params: Params, x: jax.Array, y: jax.Array) -> jax.Array:
    return model.losses(params, x, y)


@jax.jit
def _finite(model: Model, params: Params, x: jax.Array, y: jax.Array) -> tuple[jax.Array, Any]:
    """(whether each example's loss is finite [B], whether the gradient by each leaf of the parameters is [])."""
    _, gradient = sum_and_gradient(model, params, (x, y, jnp.ones(len(x), bool)), None)
    return jnp.isfinite(model.losses(params, x, y)), jax.tree.map(
        lambda g: jnp.all(jnp.isfinite(g)), gradient
    )


def _culprit(look: Callable[[Any, Any], list[str]], x: Any, y: Any, row: int, others: np.ndarray) -> str:
    """A sentence on which number of an example, put into one that is finite, makes that not finite; or ""."""
    own, label = np.asarray(x[row]), np.asarray(y[row])

    def bad(features: np.ndarray, label: np.ndarray) -> bool:
        return bool(look(features.reshape(1, *own.shape), label[None]))

    finite_example = _finite_one(bad, x, y, own, label, others)
    if finite_example is None:
        return " So is that of every other example that was tried: see the model, its loss and what it divides by."
    good, good_label = finite_example
    # With another label it is finite: so it is not a feature.
    if not bad(own, good_label):
        outside = " Whole numbers count the model's outputs from 0." if label.dtype.kind in "iu" else ""
        return f" Its label is the cause: it is {_shown(label)}.{outside}"
    features, base = own.reshape(-1), good.reshape(-1)

    def with_first(count: int) -> np.ndarray:
        return np.concatenate([features[:count], base[count:]])

    if not bad(with_first(len(features)), good_label):
        return ""
    finite, not_finite = (
        0,
        len(features),
    )  # the cause lies between: numbers of features that are the bad one's
    # By halves: some ten looks for a picture, and not one for each of its pixels.
    while not_finite - finite > 1:
        middle = (finite + not_finite) // 2
        if bad(with_first(middle), good_label):
            not_finite = middle
        else:
            finite = middle
    # The last one that was put in need not do it alone: it may take another one.
    one = base.copy()
    one[finite] = features[finite]
    if not bad(one, good_label):
        equal = f" All of them are {_shown(features[0])}." if np.all(features == features[0]) else ""
        return f" No single feature of it is the cause, but several together.{equal}"
    place = [int(axis) for axis in np.unravel_index(finite, own.shape)] if own.ndim else []
    where = f"feature {place[0]}" if len(place) == 1 else f"feature {place}" if place else "only feature"
    return f" Its {where} is the cause: it is {_shown(features[finite])}.{_reason(features[finite])}"


def _finite_one(
    bad: Callable[[np.ndarray, np.ndarray], bool],
    x: Any,
    y: Any,
    own: np.ndarray,
    label: np.ndarray,
    others: np.ndarray,
) -> tuple[np.ndarray, np.ndarray] | None:
    """(an example whose loss and gradient are finite, its label), near to the bad one if there is none; or None."""
    # Spread over all of them, which may be sorted by label or by client.
    chosen = others[np.linspace(0, len(others) - 1, min(COMPARED, len(others))).astype(int)]
    for row in chosen:
        if not bad(np.asarray(x[row]), np.asarray(y[row])):
            return np.asarray(x[row]), np.asarray(y[row])
    for value in (0, 1):
        if not bad(np.full_like(own, value), label):
            return np.full_like(own, value), label
    return None


def _shown(value: Any) -> str:
    return str(np.asarray(value).tolist())


def _reason(value: Any) -> str:
    """A sentence on what makes such a feature a cause."""
    if np.asarray(value).dtype.kind in "iu":
        return (
            " As a token it may lie beyond the model's vocabulary, where a look-up gives NaN: give the embedding as "
            "many rows as there are tokens."
        )
    if not np.isfinite(value):
        return " Drop or fill it."
    if value == 0:
        return " A logarithm, a root or a division of it is not finite: add a small number before."
    if value < 0:
        return " A logarithm or a root of it is not finite."
    return " Scale the examples: what the model computes of it exceeds what its type holds."
