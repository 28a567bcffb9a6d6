"""A rule's buffer in two parts: the weighted sum of updates that it holds, and all else that it counts.

A linear and additive rule adds weight x update to one place of its buffer, and to the others what does not depend on
updates. So the sum can be made in another arithmetic, and the rule's own ``finish`` gets it.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jafl.base.errors import refusal, require
from jafl.base.precision import on_host
from jafl.privacy.weights import COUNTS, check_eligible, rule_name
from jafl.records import ArrayTree, Arrival, Buffer, EventSchedule, Params, Report, Rule
from jafl.specifications import Specification, as_specification

_TOLERANCE = 1e-9  # relative, in float64
_LENGTH = 1009  # of the first leaf of a model that is made up; no rule has arrays of such lengths


def small(params: Params) -> Any:
    """The model's structure with one number in the place of each array: a rule counts the same on it."""
    return jax.tree.map(lambda leaf: jnp.zeros((), leaf.dtype), params)


def counted(rule: Rule, counts: Buffer, arrival: Arrival) -> tuple[Buffer, Report]:
    """Folds all of an arrival but its update into ``counts``, a linear rule's buffer for ``small(params)``."""
    return rule.fold(counts, arrival._replace(update=small(arrival.update), start=None))


def with_total(rule: Rule, counts: Buffer, total: ArrayTree, params: Params) -> Buffer:
    """The rule's buffer with what it has counted, and with ``total`` [*P], the sum of weight times update."""
    leaves, structure = jax.tree.flatten(jax.eval_shape(lambda: rule.begin((), params)))
    sums = jax.tree.leaves(total)
    filled = [
        count if place is None else sums[place].astype(leaf.dtype)
        for leaf, count, place in zip(leaves, jax.tree.leaves(counts), _places(rule, params), strict=True)
    ]
    return jax.tree.unflatten(structure, filled)


def _places(rule: Rule, params: Params) -> list[int | None]:
    """For each leaf of the buffer, the leaf of the model whose length, which nothing else has, it has; or None."""
    leaves, structure = jax.tree.flatten(params)
    lengths = [_LENGTH + number for number in range(len(leaves))]
    marked = jax.tree.unflatten(
        structure,
        [jax.ShapeDtypeStruct((length,), leaf.dtype) for length, leaf in zip(lengths, leaves, strict=True)],
    )
    shapes = [leaf.shape for leaf in jax.tree.leaves(jax.eval_shape(lambda p: rule.begin((), p), marked))]
    return [lengths.index(shape[0]) if shape and shape[0] in lengths else None for shape in shapes]


def fold_weights(
    rule: Specification | Rule, schedule: EventSchedule, num_examples: np.ndarray | None
) -> np.ndarray:
    """[J] float64: the weight with which each update enters the rule's buffer, before ``finish`` scales the sum.

    The rule's own ``fold`` is run on a model of a single number, in 64 bits, on the host. FedBuff's weight is that
    of the staleness; times the client's number of examples, where it weighs by these. SettingError for a rule that
    is not eligible or keeps several sums with different weights, for missing ``num_examples``, and weights that are
    not finite.
    """
    reads = check_eligible(rule)
    if num_examples is None:
        remedy = f"The weights of {rule_name(rule)} depend on {COUNTS['num_examples']}."
        require("num_examples" not in reads, "num_examples", None, "given", remedy)
        num_examples = np.ones(schedule.num_clients, np.int32)
    weights = weights_of_sums(as_specification(rule).build(), schedule, num_examples)
    if np.ptp(weights, axis=1).max(initial=0.0) > _TOLERANCE * np.abs(weights).max(initial=0.0):
        allowed = "a rule that keeps one weighted sum of updates"
        remedy = "It keeps several, in which a trip has different weights."
        raise refusal("rule", rule_name(rule), allowed, remedy)
    fit = np.isfinite(weights).all(axis=1)
    if not fit.all():
        trip = int(np.argmin(fit))
        remedy = f"Trip {trip} is the first with another one."
        raise refusal(f"a weight of {rule_name(rule)}", float(weights[trip, 0]), "a finite number", remedy)
    return weights[:, 0]


def weights_of_sums(rule: Rule, schedule: EventSchedule, num_examples: np.ndarray) -> np.ndarray:
    """[J, S]: the weight of each trip in each of the S sums of the buffer; see ``fold_weights``."""
    with on_host():
        return _by_folding(rule, schedule, np.asarray(num_examples))


def _by_folding(rule: Rule, schedule: EventSchedule, num_examples: np.ndarray) -> np.ndarray:
    params = jnp.zeros(())
    columns = {name: jnp.asarray(column) for name, column in rule.columns(schedule).items()}
    facts = {
        "client": jnp.asarray(schedule.client),
        "staleness": jnp.asarray(schedule.staleness),
        "num_examples": jnp.asarray(num_examples[schedule.client], jnp.int32),
    }
    one, none = jnp.int32(1), jnp.zeros(())
    unread = {"start": None, "batch_examples": one, "local_steps": one, "loss": none}

    def difference(facts: Any, columns: Any) -> Buffer:
        """What an update of 1 adds to each leaf of the buffer."""

        def folded(update: Any) -> Buffer:
            return rule.fold(
                rule.begin((), params), Arrival(update=update, columns=columns, **facts, **unread)
            )[0]

        return jax.tree.map(jnp.subtract, folded(jnp.ones(())), folded(jnp.zeros(())))

    differences = jax.tree.leaves(jax.vmap(difference)(facts, columns))
    places = _places(rule, params)
    sums = [
        np.asarray(leaf, np.float64)
        for leaf, place in zip(differences, places, strict=True)
        if place is not None
    ]
    return np.stack(sums, axis=1)
