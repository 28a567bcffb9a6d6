"""TWAFL: weights that fall exponentially with staleness, times minibatch sizes (Chen et al. 2020; in WKAFL)."""

import math

import jax.numpy as jnp

from jafl.records import Rule
from jafl.rules import accumulate
from jafl.specifications import specification


@specification
def twafl() -> Rule:
    """w <- w - eta sum_i (m_i / m) (e/2)^-staleness_i g_i, m_i the trip's minibatch and m their sum over the buffer.

    WKAFL, section 6.1.2; the staleness weights are not normalised. A rule on gradients, see ``asgd``.
    """
    rate = 1 - math.log(2)  # (e/2)^-t = exp(-rate t)

    def begin(state, params):
        return accumulate.zeros(params), accumulate.number(0)

    def fold(buffer, arrival):
        total, examples = buffer
        size = accumulate.number(arrival.batch_examples)
        weight = size * jnp.exp(-rate * accumulate.number(arrival.staleness))
        return (accumulate.add(total, weight, arrival.update), examples + size), {"weight": weight}

    def finish(buffer, params):
        total, examples = buffer
        return accumulate.scaled(-1 / examples, total), (), {"weight_scale": 1 / examples}, True

    return Rule(lambda params, num_clients: (), begin, fold, finish, linear=True, additive=True)
