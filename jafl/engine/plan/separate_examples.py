"""Whether what a model computes for one example depends on the other examples of its minibatch.

Minibatches are filled up with rows that are in no sum, and larger ones are computed in parts. Both is right only
where each example has its loss by itself: a model or a loss that compares examples (batch normalisation, a
contrastive loss, outputs that are standardised over the minibatch, a mean over it) would read the rows that fill up.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jafl.base.errors import require
from jafl.base.random_keys import threefry_key
from jafl.data import Federation
from jafl.models import Model
from jafl.models.tasks import in_jax
from jafl.records import Params

# Rows of a minibatch that is tried, and how many examples it takes to change all of them but one.
ROWS = 4
EXAMPLES = 2 * ROWS - 1
# How much a number of an example may change where the others do, in parts of it. One program with arrays of one shape
# rounds each row in one way, so that only what stops when all rows have converged, such as a solver, changes at all.
TOLERANCE = 1e-4
# How far parameters are moved before they are tried, or a last layer of zeros would hide what lies before it.
MOVED = 0.1
# What was found to be separate, to be tried once in all runs of a sweep.
_PASSED: dict[Any, None] = {}
_MOST_PASSED = 32


def check_examples_are_separate(federation: Federation, model: Model, params: Params) -> None:
    """Raises SettingError where an example's loss, or a metric of it, depends on the other examples.

    Tried with examples of the federation: the model is applied to minibatches that share one of them. ``params`` [*P]
    may be shapes.
    """
    places = np.linspace(0, len(federation.x) - 1, EXAMPLES).astype(int)
    x, y = (np.asarray(array[places]) for array in (federation.x, federation.y))
    kind = _kind(model, params, x, y)
    if kind in _PASSED:
        return
    moved = _moved(params)
    whole = _tried(model, moved, x[:ROWS], y[:ROWS])
    for place in (0, ROWS - 1):
        # One example in its place, and others around it.
        others = np.arange(ROWS) + ROWS - 1
        others[place] = place
        changed = _tried(model, moved, x[others], y[others])
        wrong = [name for name, values in whole.items() if _differ(values, changed[name], place)]
        outputs = "outputs" in wrong
        for name in wrong:
            require(
                name == "outputs",
                f"what {'the loss' if name == 'loss' else f'the metric {name!r}'} of an example depends on",
                "the other examples of its minibatch"
                + (f", on which the outputs of the model {model.network.name} depend" if outputs else ""),
                "the example, its label and the parameters alone",
                "Minibatches are filled up with rows that do not count, and large ones are computed in parts. Take "
                "GroupNorm or LayerNorm for a normalisation over the minibatch; a loss gives each example's own "
                "number, not one of the minibatch, and compares no examples with each other.",
            )
    if kind is not None:
        while len(_PASSED) >= _MOST_PASSED:
            del _PASSED[next(iter(_PASSED))]
        _PASSED[kind] = None


def _kind(model: Model, params: Params, x: np.ndarray, y: np.ndarray) -> Any:
    """Equal for models that are tried in the same way; None where a model has no hash."""
    static = model.tree_flatten()[1]
    shapes = [
        (np.shape(leaf), str(jnp.result_type(leaf))) for leaf in jax.tree.leaves((params, model.frozen))
    ]
    kind = static, jax.tree.structure(params), tuple(shapes), x.tobytes(), y.tobytes()
    try:
        hash(kind)
    except TypeError:
        return None
    return kind


def _moved(params: Params) -> Params:
    """[*P]: the parameters, each array moved by a tenth of its size at random, or drawn where only shapes are known.

    On the host, as a program that draws for every array takes longer to compile than the model.
    """
    random = np.random.default_rng(0)

    def move(leaf: Any) -> np.ndarray:
        noise = random.standard_normal(leaf.shape, np.float32)
        if not isinstance(leaf, jax.ShapeDtypeStruct):
            values = np.asarray(leaf)
            numbers = values.astype(np.float32)
            size = np.sqrt(np.mean(np.square(numbers))) if numbers.size else 0.0
            noise = numbers + np.float32(MOVED * max(size, MOVED)) * noise
        elif len(leaf.shape) > 1:
            noise = noise / np.float32(np.sqrt(max(1, math.prod(leaf.shape[:-1]))))
        else:  # a scale has to stay above 0
            noise = 1 + np.float32(MOVED) * noise
        moved: np.ndarray = noise.astype(leaf.dtype)
        return moved

    return jax.tree.map(move, params)


def _tried(model: Model, params: Params, x: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    """{name: what is computed of these examples, as a list of arrays}."""
    # Numbers that are not finite are none of this check's business.
    with jax.debug_nans(False), jax.debug_infs(False):
        values = _computed(model, params, jnp.asarray(x), jnp.asarray(y))
    return {name: [np.asarray(leaf) for leaf in leaves] for name, leaves in jax.device_get(values).items()}


@jax.jit
def _computed(model: Model, params: Params, x: jax.Array, y: jax.Array) -> dict[str, Any]:
    """The losses of a minibatch as in training, its metrics as in evaluation, and the outputs of both."""
    own = threefry_key(0) if model.draws(params, x) else None  # as in training
    sums, counts = model.loss_sums(params, x, y, own)
    evaluated = model.apply(params, x)
    outputs = jax.tree.leaves((evaluated, model.apply(params, x, own) if own is not None else None))
    values = {"loss": [sums] if counts is None else [sums, counts], "outputs": outputs}
    for name, metric in model.measured.items():
        with in_jax(f"the metric {name!r}", metric):
            values[name] = jax.tree.leaves(metric(evaluated, y))
    return values


def _differ(one: list[np.ndarray], other: list[np.ndarray], place: int) -> bool:
    """Whether the numbers of the example at ``place`` are others."""
    for before, after in zip(one, other, strict=True):
        if before.shape[:1] != (ROWS,):  # no number for each example: refused elsewhere, where it counts
            continue
        a, b = (np.asarray(array[place], np.float64) for array in (before, after))
        finite = np.isfinite(a)
        if np.any(finite != np.isfinite(b)):
            return True
        a, b = np.where(finite, a, 0), np.where(finite, b, 0)
        size = max(np.max(np.abs(a), initial=0), np.max(np.abs(b), initial=0))
        if np.any(np.abs(a - b) > TOLERANCE * size):
            return True
    return False
