"""A rule that trains as another one does, and reports terms of its error besides."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jafl.base.errors import require
from jafl.base.step_scale import part_made
from jafl.records import (
    Array,
    Arrival,
    Buffer,
    ClientMemoryRequest,
    Gradients,
    Params,
    Report,
    Rule,
    RuleState,
    Updates,
)
from jafl.rules import accumulate
from jafl.rules.decomposition import gradients
from jafl.rules.decomposition.gradients import FullGradients, StaleGradients


class Split(Protocol):
    """One way to split the error, by a shadow: a copy of the rule that gets full gradients in place of updates."""

    def sent_update(self, arrival: Arrival) -> Updates:
        """[*P]: the update in what the client has sent."""

    def init(self, params: Params, num_clients: int) -> RuleState:
        """The shadow's state before the first step."""

    def begin(self, state: RuleState, params: Params) -> Buffer:
        """The shadow's empty buffer."""

    def fold(self, buffer: Buffer, arrival: Arrival) -> Buffer:
        """The shadow's buffer with a trip; ``arrival.stored["full"]`` [*P] is the full gradient."""

    def finish(
        self, buffer: Buffer, params: Params, direction: Gradients, apply: bool | Array
    ) -> tuple[RuleState, Callable[[Gradients, Gradients], dict[str, Array]]]:
        """Closes the shadow's buffer beside that of the rule, whose direction and ``apply`` are given.

        Returns the shadow's state, and terms(stale, now) -> {name: squared norm}, for the mean gradients at the stale
        models and at the server's. Both are in the units of directions: eta_l times gradients.
        """


class _State(NamedTuple):
    """What lasts: the rule's own state, that of its shadow, and the stale gradients."""

    rule: RuleState
    shadow: RuleState
    stale: StaleGradients


class _Buffer(NamedTuple):
    """The rule's own buffer, that of its shadow, the stale gradients, and whether the step is measured ([] bool)."""

    rule: Buffer
    shadow: Buffer
    stale: StaleGradients
    measured: Array


def watched(
    rule: Rule,
    split: Split,
    full: FullGradients,
    learning_rate: Array,
    at_steps: np.ndarray,
    every_trip: bool,
) -> Rule:
    """The rule that trains as ``rule`` does and reports the terms of ``split`` at the measured steps.

    at_steps: [S] int32, padded. every_trip: whether later steps may depend on any trip, so that each needs its full
    gradient. Only a split whose shadow folds like the rule itself can watch a rule with client memory.
    """

    def init(params, num_clients):
        own, shadow = rule.init(params, num_clients), split.init(params, num_clients)
        return _State(own, shadow, StaleGradients(params, full.total(params)))

    def begin(state, params):
        own, shadow = rule.begin(state.rule, params), split.begin(state.shadow, params)
        return _Buffer(own, shadow, state.stale, jnp.asarray(False))

    def fold(buffer, arrival):
        own, report = rule.fold(buffer.rule, seen_as("rule", arrival, split.sent_update(arrival)))
        shadow = split.fold(buffer.shadow, arrival)
        stale = buffer.stale.with_arrival(full, arrival)
        return _Buffer(own, shadow, stale, arrival.columns[gradients.MEASURED]), report

    def finish(buffer, params):
        direction, own, report, apply = rule.finish(buffer.rule, params)
        shadow, compute_terms = split.finish(buffer.shadow, params, direction, apply)

        def terms():
            stale, now = full.mean(buffer.stale.total), full.mean(full.total(params))
            return {**compute_terms(stale, now), "gradient": squared(now)}

        report = _with_terms(report, buffer.measured, terms, learning_rate)
        return direction, _State(own, shadow, buffer.stale), report, apply

    return rule._replace(
        init=init,
        begin=begin,
        fold=fold,
        finish=finish,
        columns=lambda schedule: {
            **rule.columns(schedule),
            **gradients.columns(schedule, at_steps, every_trip),
        },
        memory=_memory(rule, full),
        needs_start=True,
        additive=False,  # the stale gradients depend on what is stored
    )


def seen_as(name: str, arrival: Arrival, update: Updates) -> Arrival:
    """``arrival`` as the "rule" or its "shadow" sees it: with this update, and its own part of what is stored."""
    return arrival._replace(
        update=update, previous=arrival.previous.get(name), stored=arrival.stored.get(name)
    )


def _memory(rule: Rule, full: FullGradients) -> ClientMemoryRequest:
    """What is stored for each client: its full gradient and, if the rule stores something, that and its shadow's."""

    def remembers(arrival):
        stored = {"full": full.trip_gradient(arrival)}
        if rule.memory:
            stored["rule"] = rule.memory.remembers(arrival)
            stored["shadow"] = rule.memory.remembers(arrival._replace(update=stored["full"]))
        return stored

    def fold_recalled(buffer, weight, row):
        own = rule.fold_recalled(buffer.rule, weight, row["rule"])
        shadow = rule.fold_recalled(buffer.shadow, weight, row["shadow"])
        return buffer._replace(rule=own, shadow=shadow)

    return ClientMemoryRequest(remembers, recalls=rule.recalls, fold_recalled=fold_recalled)


def _with_terms(
    report: Report, measured: Array, terms: Callable[[], dict[str, Array]], rate: Array
) -> Report:
    """The rule's report with ``terms``, squared norms in units of eta_l^2; zeros where the step is not measured.

    What ``terms`` reads is stored for it. Were that the rule's own direction, the compiler would no longer fuse it
    with the server optimizer, and the run would round differently from one that is not measured. So ``terms`` reads
    differences to it.
    """
    names = jax.eval_shape(terms)
    for name in (*names, "measured"):
        require(
            name not in report, "the name of a rule's report", name, "another: the decomposition reports it"
        )
    zeros = {name: accumulate.number(0) for name in names}
    values = lax.cond(
        measured,
        lambda: {name: accumulate.number(term) / rate**2 for name, term in terms().items()},
        lambda: zeros,
    )
    return {**report, **values, "measured": accumulate.number(measured)}


def squared(*trees: Any) -> jax.Array:
    """The squared norm over all leaves [*P], the mean of those of several trees."""
    squares = [jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(trees)]
    return sum(squares[1:], squares[0]) / len(trees)


def plus(first: Gradients, second: Gradients) -> Gradients:
    """[*P]: ``first + second``."""
    return jax.tree.map(jnp.add, first, second)


def minus(first: Gradients, second: Gradients) -> Gradients:
    """[*P]: ``first - second``."""
    return jax.tree.map(jnp.subtract, first, second)


def taken(apply: bool | Array, direction: Gradients) -> Gradients:
    """[*P]: ``direction`` times the part of the step that the rule makes: zeros if it skips the step."""
    return direction if apply is True else accumulate.scaled(part_made(apply), direction)
