"""The server's work as a sequence of operations, each of one arrival or one recalled value at most.

The operations call the rule's and the server optimizer's own functions, in the order of the engine's loop
(``jafl.engine.loop.server_steps``): a step opens the rule's buffer, shows it the recalled values, folds the
arrivals, closes the buffer and moves the model.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jafl.records import Array, ArrayTree, Arrival, Buffer, Params, RuleState


class ServerState(NamedTuple):
    """What the server keeps between two operations.

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
    """One operation: of its four parts, those that are marked are carried out, in this order.

    Attributes:
      opens, recalls, folds, closes: [] bool: opens the rule's buffer; shows it a recalled value; folds an arrival;
        closes the buffer and moves the model.
      weight: [...] float, of the recalled value, as in ``Recall``; () for a rule that recalls nothing.
      recalled: [*V] the recalled value; () likewise.
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
    """What one operation reports: of its trip, and of its server step with ``applied``, [] each."""

    trip: dict[str, Array]
    step: dict[str, Array]


def initial(rule: Any, optimizer: Any, params: Params, num_clients: int) -> ServerState:
    """The state before the first operation, from the initial model ``params`` [*P]."""
    rule_state = rule.init(params, num_clients)
    return ServerState(params, optimizer.init(params), rule_state, rule.begin(rule_state, params))


def operate(
    rule: Any, optimizer: Any, state: ServerState, operation: Operation
) -> tuple[ServerState, Reports]:
    """The state after one operation, and what it reports; parts that are not marked change nothing."""
    params, optimizer_state, rule_state, buffer = state
    buffer = _where(operation.opens, rule.begin(rule_state, params), buffer)
    if rule.fold_recalled:
        shown = rule.fold_recalled(buffer, operation.weight, operation.recalled)
        buffer = _where(operation.recalls, shown, buffer)
    folded, trip_report = rule.fold(buffer, operation.arrival)
    buffer = _where(operation.folds, folded, buffer)
    direction, new_rule_state, step_report, apply = rule.finish(buffer, params)
    updates, new_optimizer_state = optimizer.update(direction, optimizer_state, params)
    new_params = optax.apply_updates(params, updates)
    if apply is not True:
        step_report = {**step_report, "applied": jnp.where(apply, 1.0, 0.0)}
        stay = (params, optimizer_state)
        new_params, new_optimizer_state = _where(apply, (new_params, new_optimizer_state), stay)
    closed = (new_params, new_optimizer_state, new_rule_state)
    kept = (params, optimizer_state, rule_state)
    params, optimizer_state, rule_state = _where(operation.closes, closed, kept)
    after = ServerState(params, optimizer_state, rule_state, buffer)
    return after, Reports(dict(trip_report), dict(step_report))


def _where(condition: Array, if_true: ArrayTree, if_false: ArrayTree) -> Any:
    """``if_true`` or ``if_false``, which have one structure, in the types of the latter."""

    def pick(new, old):
        chosen = jnp.where(condition, new, old)
        return chosen if chosen.dtype == jnp.result_type(old) else chosen.astype(jnp.result_type(old))

    return jax.tree.map(pick, if_true, if_false)
