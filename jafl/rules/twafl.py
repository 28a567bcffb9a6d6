"""TWAFL: weights that fall exponentially with staleness, times minibatch sizes (Chen et al. 2020; in WKAFL)."""

import math

import jax.numpy as jnp

from jafl.records import Requirements, Rule
from jafl.rules import accumulate
from jafl.specifications import specification


@specification
def twafl() -> Rule:
    """TWAFL: weights that fall exponentially with staleness, times minibatch sizes.

    w <- w - eta sum_i (m_i / m) (e/2)^-staleness_i g_i, with m_i the size of the trip's minibatch and m the sum of
    the m_i over the buffer (Chen et al. 2020; WKAFL, section 6.1.2). The staleness weights are not normalized. A rule
    on gradients, see ``asgd``.

    Reports ``weight`` per trip.

    Returns:
      The rule, as a specification, for ``jafl.simulate``.
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
        scale = 1 / jnp.where(examples > 0, examples, 1)  # 0 where no trip has made a step
        return accumulate.scaled(-scale, total), (), {"weight_scale": scale}, True

    return Rule(
        lambda params, num_clients: (),
        begin,
        fold,
        finish,
        requirements=Requirements(linear=True, additive=True),
    )
