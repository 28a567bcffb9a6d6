"""Staleness, sampling, drift and re-weighting: FedStaleWeight's split of the server's error."""

import dataclasses
from collections.abc import Iterable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jafl.base.errors import require
from jafl.clients.records import SCHEDULED, ClientData, ClientResult, ClientWork
from jafl.data import Federation
from jafl.records import Arrival, Params, Rule, Updates
from jafl.rules import accumulate
from jafl.rules.decomposition.checks import (
    client_learning_rate,
    factory_name,
    keeps_something,
    linear_rule,
    steps_to_measure,
)
from jafl.rules.decomposition.gradients import MEASURED, FullGradients, full_gradients
from jafl.rules.decomposition.watched import minus, seen_as, squared, taken, watched
from jafl.specifications import Specification, specification


def decomposed_four_ways(
    rule: Specification | Rule, client_work: Specification, federation: Federation, at_steps: Iterable[int]
) -> tuple[Specification, Specification]:
    """Client work and a rule that train as those given do and report FedStaleWeight's split of the error.

    For a rule whose pseudo-gradient is -sum_k alpha_k update_k over the trips k in the step's buffer B. N clients
    have the objectives F_i. w^t is the model before server step t; w_stale_i the one from which client i trained for
    the last update that the server has received from it, and w^0 before the first; y_k,q the model of trip k after q
    of its Q local steps. For each q < Q (FedStaleWeight, appendix A, the four parts of T_4),

        staleness     (1/N) sum_i grad F_i(w^t) - (1/N) sum_i grad F_i(w_stale_i)
        sampling      (1/N) sum_i grad F_i(w_stale_i) - (1/|B|) sum_k grad F_k(y_k,0)
        drift         (1/|B|) sum_k grad F_k(y_k,0) - (1/|B|) sum_k grad F_k(y_k,q)
        re-weighting  (1/|B|) sum_k grad F_k(y_k,q) - sum_k alpha_k grad F_k(y_k,q)

    which add up to grad F(w^t) - sum_k alpha_k grad F_k(y_k,q). The paper bounds expectations over clients and noise;
    here the terms are those of this run. It does not say how stale a client is that has nothing in B; here it is as
    stale as its last update. Its alpha_k sum to 1; where a rule's do not (FedBuff's staleness weights), that shows as
    re-weighting.

    It costs what ``decomposed`` does and, at each trip of a chosen step, Q - 1 more full gradients and its first q
    local steps once more for each q < Q; compiling takes longer with Q, too.

    Reports, besides what ``rule`` does, per server step: ``staleness_error``, ``sampling_error``: the squared norms
    of these terms; ``drift_error``, ``reweighting_error``, ``four_way_error``: the means over q of the squared norms
    of the other two, and of the sum of all four; ``noise``, which the paper averages out: the squared norm of
    pseudo-gradient / (Q eta_l) - (1/Q) sum_q sum_k alpha_k grad F_k(y_k,q), with eta_l the clients' learning rate;
    ``gradient`` and ``measured`` as ``decomposed``. At steps that were not chosen all are 0.

    Args:
      rule: one that is linear in the updates (``Requirements.linear``) and keeps nothing from step to step.
      client_work: the run's, from ``jafl.client_work``: plain SGD, with or without an L2 term, with Q ``local_steps``
        (in ``local_epochs`` clients make unequal numbers of them).
      federation: the run's.
      at_steps: server steps t at which to measure, as for ``decomposed``.

    Returns:
      (client work, rule), both specifications, for use in the places of those given.

    Raises:
      SettingError: for a rule or a work without such a split (says why), or for steps that the run does not have.
    """
    rate = client_learning_rate(client_work)
    steps = client_work.arguments["local_steps"]
    needed = "for the split in four: it needs the same number of local_steps of every client"
    require(steps is not None, "local_epochs", client_work.arguments["local_epochs"], f"None {needed}")
    require(steps != SCHEDULED, "local_steps", steps, f"a number {needed}")
    rule, full = linear_rule(rule), full_gradients(client_work, federation)
    require(
        not keeps_something(rule.build(), client_work, federation),
        "rule",
        factory_name(rule),
        "one that keeps nothing from step to step",
        "The split compares weights within one buffer; jafl.decomposed splits the error of rules with memory.",
    )
    shorter = {
        f"after_{count:06d}": Specification(
            client_work.factory, client_work.arguments | {"local_steps": count}
        )
        for count in range(1, steps)
    }
    watching = _decomposed_four_ways(
        rule, full, Specification(_in_order, shorter), rate, steps_to_measure(at_steps)
    )
    return _sending_key(client_work), watching


@specification
def _decomposed_four_ways(rule, full, shorter, learning_rate, at_steps) -> Rule:
    """See ``decomposed_four_ways``; shorter: works that stop after 1, ..., Q - 1 steps; else as for ``watched``."""
    return watched(rule, _FourWay(rule, full, shorter), full, learning_rate, at_steps, every_trip=False)


class _Sent(NamedTuple):
    """What clients send for the split in four: ``update`` [*P] and ``key`` [2] uint32, the trip's random words."""

    update: Updates
    key: jax.Array


@specification
def _sending_key(work) -> ClientWork:
    """``work``, a ClientWork, whose updates come with the trip's random words."""

    def train(data: ClientData, start: Params, client: jax.Array, key: jax.Array) -> ClientResult:
        result = work.train(data, start, client, key)
        return result._replace(update=_Sent(result.update, key))

    return work._replace(train=train)


def _in_order(**works: ClientWork) -> list[ClientWork]:
    return [works[name] for name in sorted(works)]


class _Shadow(NamedTuple):
    """The shadow's buffer. For each q < Q: ``weighted``, the rule's buffer, fed with the gradients at y_k,q, and
    ``plain`` [*P], the sum of these gradients. ``trips`` [] counts."""

    weighted: tuple
    plain: tuple
    trips: jax.Array


@dataclasses.dataclass(frozen=True)
class _FourWay:
    """The shadow is Q copies of a rule without memory, one for each of the models that a trip passes; see ``Split``.

    shorter: works that stop after 1, ..., Q - 1 steps.
    """

    rule: Rule
    full: FullGradients
    shorter: list[ClientWork]

    def sent_update(self, arrival):
        return arrival.update.update

    def init(self, params, num_clients):
        return self.rule.init(params, num_clients)  # without leaves: the rule keeps nothing

    def begin(self, state, params):
        per_step = range(1 + len(self.shorter))
        return _Shadow(
            weighted=tuple(self.rule.begin(state, params) for _ in per_step),
            plain=tuple(accumulate.zeros(params) for _ in per_step),
            trips=accumulate.number(0),
        )

    def fold(self, buffer, arrival):
        gradients = (arrival.stored["full"], *self._later_gradients(arrival))
        return _Shadow(
            tuple(
                self.rule.fold(weighted, seen_as("shadow", arrival, gradient))[0]
                for weighted, gradient in zip(buffer.weighted, gradients, strict=True)
            ),
            tuple(
                jax.tree.map(jnp.add, total, gradient)
                for total, gradient in zip(buffer.plain, gradients, strict=True)
            ),
            buffer.trips + 1,
        )

    def _later_gradients(self, arrival: Arrival) -> tuple[Updates, ...]:
        """-eta_l times the client's full gradients at y_1, ..., y_(Q - 1); zeros where the step is not measured."""
        start, client = arrival.start, arrival.client

        def computed():
            updates = [
                work.train(self.full.data, start, client, arrival.update.key).update for work in self.shorter
            ]
            return tuple(self.full.of(jax.tree.map(jnp.add, start, update), client) for update in updates)

        if not self.shorter:
            return ()
        zeros = tuple(accumulate.zeros(start) for _ in self.shorter)
        return lax.cond(arrival.columns[MEASURED], computed, lambda: zeros)

    def finish(self, buffer, params, direction, apply):
        finished = [self.rule.finish(weighted, params) for weighted in buffer.weighted]
        weighted, state = [result[0] for result in finished], finished[0][1]
        plain = [accumulate.scaled(-1 / buffer.trips, total) for total in buffer.plain]
        # Not in terms(): see watched._with_terms.
        noise = jax.tree.map(lambda u, *each: (u - sum(each)) / len(each), direction, *weighted)

        def terms(stale, now):
            means = [taken(apply, each) for each in weighted]
            return {
                "staleness_error": squared(minus(now, stale)),
                "sampling_error": squared(minus(stale, plain[0])),
                "drift_error": squared(*[minus(plain[0], each) for each in plain]),
                "reweighting_error": squared(*map(minus, plain, means)),
                "four_way_error": squared(*[minus(now, each) for each in means]),
                "noise": squared(taken(apply, noise)),
            }

        return state, terms
