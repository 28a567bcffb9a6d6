"""The server's work as a sequence of operations, each of which reads at most one recalled value and one arrival.

The operations call the rule's and the server optimizer's own functions, in the order of the engine's loop
(``jafl.engine.loop.server_steps``): a step opens the rule's buffer, shows it the recalled values, folds the
arrivals, closes the buffer and moves the model.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jafl.base.step_scale import is_scale, part_made, scaled
from jafl.records import Array, ArrayTree, Arrival, Buffer, Params, RuleState


class ServerState(NamedTuple):
    """What the server keeps between two operations.

    The leaves of the state are of two kinds. The *state arrays* have the model's shape, such as the model itself,
    momentum, or the sum of a buffer. The *bookkeeping* has any other shape, such as counts and ages, and the schedule
    alone decides its values.

    Attributes:
      params: [*P].
      optimizer_state: of the server optimizer.
      rule_state: of the rule.
      buffer: of the rule, for the server step that is under way.
    """

    params: Params
    optimizer_state: ArrayTree
    rule_state: RuleState
    buffer: Buffer


class Operation(NamedTuple):
    """One operation of the server. It has up to four parts, in the order of the first four fields.

    Attributes:
      opens: [] bool, whether the operation opens the rule's buffer.
      recalls: [] bool, whether it shows a recalled value to the rule.
      folds: [] bool, whether it folds an arrival.
      closes: [] bool, whether it closes the buffer and moves the model.
      weight: [...] float, the weight of the recalled value, as in ``Recall``; () for a rule that recalls nothing.
      recalled: [*V] the recalled value; () for a rule that recalls nothing.
      arrival: the arrival.
    """

    opens: Array
    recalls: Array
    folds: Array
    closes: Array
    weight: Array
    recalled: ArrayTree
    arrival: Arrival


class Reports(NamedTuple):
    """What one operation reports, [] each.

    Attributes:
      trip: {name: value} of the trip that it folds.
      step: {name: value} of the server step that it closes; ``applied`` if the rule may skip or scale a step.
    """

    trip: dict[str, Array]
    step: dict[str, Array]


def initial_state(rule: Any, optimizer: Any, params: Params, num_clients: int) -> ServerState:
    """The state before the first operation.

    Args:
      rule: the algorithm.
      optimizer: the server optimizer, an optax transformation.
      params: [*P] the initial model.
      num_clients: N.

    Returns:
      The state; its buffer is open already, so that it has the structure that each operation leaves.
    """
    rule_state = rule.init(params, num_clients)
    return ServerState(params, optimizer.init(params), rule_state, rule.begin(rule_state, params))


def operate(
    rule: Any, optimizer: Any, state: ServerState, operation: Operation
) -> tuple[ServerState, Reports]:
    """Carries out one operation.

    Args:
      rule: the algorithm.
      optimizer: the server optimizer, an optax transformation.
      state: before the operation.
      operation: the operation.

    Returns:
      The state after it, and what it reports. Parts that the operation does not have change nothing; their reports
      are numbers without a meaning.
    """
    params, optimizer_state, rule_state, buffer = state
    # All four parts are computed, and those that the operation does not have are dropped. So what they read must
    # exist, but may have any value: the mean of a buffer that is still empty may be NaN here, and ``where`` drops it.
    buffer = _where(operation.opens, rule.begin(rule_state, params), buffer)
    if rule.fold_recalled:
        shown = rule.fold_recalled(buffer, operation.weight, operation.recalled)
        buffer = _where(operation.recalls, shown, buffer)
    folded, trip_report = rule.fold(buffer, operation.arrival)
    buffer = _where(operation.folds, folded, buffer)
    direction, new_rule_state, step_report, apply = rule.finish(buffer, params)
    updates, new_optimizer_state = optimizer.update(direction, optimizer_state, params)
    if is_scale(apply):
        updates = scaled(apply, updates)
    new_params = optax.apply_updates(params, updates)
    if apply is not True:
        step_report = {**step_report, "applied": part_made(apply)}
    if apply is not True and not is_scale(apply):
        # A step that the rule skips leaves momentum as it is, too: the optimizer has not seen its direction.
        unmoved = (params, optimizer_state)
        new_params, new_optimizer_state = _where(apply, (new_params, new_optimizer_state), unmoved)
    if rule.after_step:
        new_rule_state = rule.after_step(new_rule_state, new_params)
    after_step = (new_params, new_optimizer_state, new_rule_state)
    within_step = (params, optimizer_state, rule_state)
    params, optimizer_state, rule_state = _where(operation.closes, after_step, within_step)
    after = ServerState(params, optimizer_state, rule_state, buffer)
    return after, Reports(dict(trip_report), dict(step_report))


def split_state(state: ServerState, is_array: Sequence[bool]) -> tuple[list[Any], list[Any]]:
    """Divides the leaves of a state into its two kinds, in order.

    Args:
      state: the state.
      is_array: for each leaf, whether it is a state array.

    Returns:
      The state arrays, and the bookkeeping.
    """
    leaves = jax.tree.leaves(state)
    arrays = [leaf for leaf, array in zip(leaves, is_array, strict=True) if array]
    bookkeeping = [leaf for leaf, array in zip(leaves, is_array, strict=True) if not array]
    return arrays, bookkeeping


def join_state(
    structure: Any, is_array: Sequence[bool], arrays: Iterable[Any], bookkeeping: Iterable[Any]
) -> ServerState:
    """The state of this ``structure`` with these leaves; the inverse of ``split_state``."""
    kinds = (iter(bookkeeping), iter(arrays))
    return jax.tree.unflatten(structure, [next(kinds[array]) for array in is_array])


def _where(condition: Array, if_true: ArrayTree, if_false: ArrayTree) -> Any:
    """``if_true`` or ``if_false``, which have one structure, in the types of the latter."""

    def pick(new, old):
        chosen = jnp.where(condition, new, old)
        # A weight of Python or of another width may widen the type; the carry of a loop has to keep its own.
        return chosen if chosen.dtype == jnp.result_type(old) else chosen.astype(jnp.result_type(old))

    return jax.tree.map(pick, if_true, if_false)
