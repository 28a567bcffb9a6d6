"""FedNova: updates are normalised by the clients' numbers of local steps (Wang et al., NeurIPS 2020)."""

from jafl.records import Rule
from jafl.rules import accumulate
from jafl.specifications import specification


@specification
def fednova(weigh_by_examples: bool = False) -> Rule:
    """The server steps along (sum_i p_i s_i) * sum_i p_i update_i / s_i, s_i the trip's local steps, sum p_i = 1.

    For plain local SGD, equation 7 with a_i all ones: each client's mean gradient counts, not how often it
    stepped; the mean number of steps restores the length.

    Args:
      weigh_by_examples: p_i in proportion to the client's examples (the paper), instead of uniform.
    """

    def begin(state, params):
        nothing = accumulate.number(0)
        return accumulate.zeros(params), nothing, nothing

    def fold(buffer, arrival):
        total, shares, steps = buffer
        share = accumulate.number(arrival.num_examples if weigh_by_examples else 1)
        local_steps = accumulate.number(arrival.local_steps)
        weight = share / local_steps
        added = accumulate.add(total, weight, arrival.update)
        return (added, shares + share, steps + share * local_steps), {"weight": weight}

    def finish(buffer, params):
        total, shares, steps = buffer
        scale = steps / shares**2  # the mean number of steps, over the sum of shares
        return accumulate.scaled(-scale, total), (), {"weight_scale": scale}, True

    return Rule(lambda params, num_clients: (), begin, fold, finish, linear=True, additive=True)
