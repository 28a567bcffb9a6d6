"""Noise, bias and delay: ACE's split of the server's error."""

import dataclasses
from collections.abc import Iterable

from jafl.base.errors import require
from jafl.data import Federation
from jafl.records import Rule
from jafl.rules.decomposition.checks import (
    client_learning_rate,
    keeps_something,
    linear_rule,
    steps_to_measure,
)
from jafl.rules.decomposition.gradients import full_gradients
from jafl.rules.decomposition.watched import minus, plus, seen_as, squared, taken, watched
from jafl.specifications import Specification, specification


def decomposed(
    rule: Specification | Rule, client_work: Specification, federation: Federation, at_steps: Iterable[int]
) -> Specification:
    """A rule that trains as ``rule`` does and reports ACE's split of its error; for use in its place.

    N clients have the objectives F_i, over all their examples and with the L2 term, and F is the mean of the F_i. w^t
    is the model before server step t; w_stale_i the one from which client i trained for the last update that the
    server has received from it, those of step t included, and w^0 before the first. With u = pseudo-gradient / eta_l,
    eta_l the clients' learning rate, and u_bar what the same rule would make of the same trips had each of them sent
    its client's full gradient, at the model that it trained from, in place of a minibatch's (ACE paper, equations 3
    and 4):

        noise  A = u - u_bar
        bias   B = u_bar - (1/N) sum_i grad F_i(w_stale_i)
        delay  C = (1/N) sum_i grad F_i(w_stale_i) - grad F(w^t)

    so that A + B + C = u - grad F(w^t). A step that the rule skips has u = u_bar = 0. Factors that lengthen or
    shorten u (staleness weights, a sum in place of a mean) show as bias. The server optimizer, which gets u as its
    gradient, does not enter.

    It costs N full gradients at each chosen step, and one at each trip; if the rule keeps nothing from step to step,
    only at the trips on which a chosen step depends. The device holds the examples twice, and one value [*P] of each
    client, or three if the rule has client memory.

    Reports, besides what ``rule`` does, per server step: ``noise``, ``bias``, ``delay``: the squared norms of A, B
    and C; ``error``: that of A + B + C; ``gradient``: that of grad F(w^t); ``measured``: 1. At the other steps all
    six are 0: over any steps the mean of a term, divided by that of ``measured``, is its mean over those chosen.

    Args:
      rule: one that is linear in the updates (``Requirements.linear``); client memory, if any, in full precision.
      client_work: the run's, from ``jafl.client_work``: one local step of plain SGD, with or without an L2 term.
      federation: the run's.
      at_steps: server steps t at which to measure: those from w^t to w^(t+1), the first is 0.

    Returns:
      The rule, as a specification, for use in the place of ``rule``.

    Raises:
      SettingError: for a rule or a work without such a split (says why), or for steps that the run does not have.
    """
    rate = client_learning_rate(client_work)
    epochs, steps = client_work.arguments["local_epochs"], client_work.arguments["local_steps"]
    require(
        steps == 1,
        "local_epochs" if steps is None else "local_steps",
        epochs if steps is None else steps,
        "one local step for the split into noise, bias and delay",
        "After more, an update is no gradient at a model that the server knows; "
        "jafl.decomposed_four_ways measures how far the clients drift.",
    )
    rule, full = linear_rule(rule), full_gradients(client_work, federation)
    every_trip = keeps_something(rule.build(), client_work, federation)
    return _decomposed(rule, full, rate, steps_to_measure(at_steps), every_trip)


@specification
def _decomposed(rule, full, learning_rate, at_steps, every_trip) -> Rule:
    """See ``decomposed``; the arguments are those of ``watched``."""
    return watched(rule, _ThreeWay(rule), full, learning_rate, at_steps, every_trip)


@dataclasses.dataclass(frozen=True)
class _ThreeWay:
    """The shadow is the rule itself, on full gradients; see ``Split``."""

    rule: Rule

    def sent_update(self, arrival):
        return arrival.update

    def init(self, params, num_clients):
        return self.rule.init(params, num_clients)

    def begin(self, state, params):
        return self.rule.begin(state, params)

    def fold(self, buffer, arrival):
        return self.rule.fold(buffer, seen_as("shadow", arrival, arrival.stored["full"]))[0]

    def finish(self, buffer, params, direction, apply):
        shadow_direction, state, _, _ = self.rule.finish(buffer, params)
        noise = minus(direction, shadow_direction)  # not in terms(): see watched._with_terms

        def terms(stale, now):
            a, u_bar = taken(apply, noise), taken(apply, shadow_direction)
            return {
                "noise": squared(a),
                "bias": squared(minus(u_bar, stale)),
                "delay": squared(minus(stale, now)),
                "error": squared(plus(a, minus(u_bar, now))),
            }

        return state, terms
