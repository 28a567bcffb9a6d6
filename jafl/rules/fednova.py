"""FedNova: updates are normalized by the clients' numbers of local steps (Wang et al., NeurIPS 2020)."""

import jax.numpy as jnp

from jafl.records import Requirements, Rule
from jafl.rules import accumulate
from jafl.specifications import specification


@specification
def fednova(weigh_by_examples: bool = False) -> Rule:
    """FedNova: each update is divided by its number of local steps, and the mean is scaled back by their mean.

    The direction is (sum_i p_i s_i) * sum_i p_i update_i / s_i, with s_i the trip's local steps and p_i summing to 1
    (Wang et al., NeurIPS 2020, equation 7 with a_i all ones, which is plain local SGD). Each client's mean gradient
    counts, however many steps it has made; the mean number of steps restores the length. A trip of 0 steps, which the
    paper does not have, brings no gradient: it is left out of both means (a reading). If all trips of a server step
    have 0 steps, the model stays as it is.

    Reports ``weight`` per trip.

    Args:
      weigh_by_examples: p_i in proportion to the client's number of examples (the paper), instead of uniform.

    Returns:
      The rule, as a specification, for ``jafl.simulate``.
    """

    def begin(state, params):
        nothing = accumulate.number(0)
        return accumulate.zeros(params), nothing, nothing

    def fold(buffer, arrival):
        total, shares, steps = buffer
        local_steps = accumulate.number(arrival.local_steps)
        share = accumulate.number(arrival.num_examples if weigh_by_examples else 1)
        share = jnp.where(local_steps > 0, share, 0)
        weight = share / jnp.maximum(local_steps, 1)
        added = accumulate.add(total, weight, arrival.update)
        return (added, shares + share, steps + share * local_steps), {"weight": weight}

    def finish(buffer, params):
        total, shares, steps = buffer
        scale = (
            steps / jnp.where(shares > 0, shares, 1) ** 2
        )  # the mean number of steps, over the sum of shares
        return accumulate.scaled(-scale, total), (), {"weight_scale": scale}, True

    return Rule(
        lambda params, num_clients: (),
        begin,
        fold,
        finish,
        requirements=Requirements(linear=True, additive=True),
    )
