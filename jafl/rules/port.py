"""PORT: updates count more if fresh and in the direction that the model has moved in (Su and Li, IWQoS 2022)."""

import math

import jax
import jax.numpy as jnp

from jafl.base.errors import number_unless_traced
from jafl.records import Requirements, Rule
from jafl.rules import accumulate
from jafl.specifications import specification


@specification
def port(
    staleness_bound: float = 10.0,
    staleness_factor: float = 1.0,
    similarity_factor: float = 1.0,
    weigh_by_examples: bool = True,
) -> Rule:
    """PORT: the mean of K updates, weighted by their freshness and by their direction.

    weight_i is in proportion to n_i (a B / (staleness_i + B) + b (1 + cos_i) / 2), normalised over the buffer: n_i is
    the client's number of examples, cos_i the cosine between update_i and w - start_i, how the server's model has
    moved since the client's download (Su and Li, "How asynchronous can federated learning be?", IWQoS 2022). This is
    a reading of Plato, the framework of the same group. SEAFL's weights have the same form. If the model has not
    moved, cos_i is 1; if it has but the update is 0, cos_i is 0. Cosines are over the whole model. Usual mistakes:
    Plato takes the model of two rounds ago, however stale the update is, and sets cos_i to 1 up to a staleness of 1;
    AFL-Lib takes the cosine of the client's model in place of its update.

    The paper's interrupts are the schedule's, ``jafl.asynchronous(too_stale="interrupt")``: a client that has become
    too stale ends its current local step (in the paper, its current epoch) and reports early, and the server waits
    for it. Plato interrupts from a staleness of B + 1 on, which is ``staleness_limit=B + 1``. In other schedules its
    trip arrives late, or ``staleness_limit`` throws it away.

    Reports ``weight`` per trip, and their ``weight_scale``: the weights of each server step sum to 1.

    Args:
      staleness_bound: B in server steps, above 0.
      staleness_factor: a, the weight of freshness, above 0.
      similarity_factor: b, the weight of the cosine, at least 0.
      weigh_by_examples: whether n_i is the number of examples; if False, n_i is the same for all clients.

    Returns:
      The rule, as a specification, for ``jafl.simulate``.

    Raises:
      SettingError: for numbers outside these ranges.
    """
    # Inside a compiled program they are no numbers any more, but they were when the run was prepared.
    for name, value in (("staleness_bound", staleness_bound), ("staleness_factor", staleness_factor)):
        number_unless_traced(name, value, lambda value: 0 < value < math.inf, "a finite number above 0")
    allowed = "a finite number, at least 0"
    number_unless_traced("similarity_factor", similarity_factor, lambda value: 0 <= value < math.inf, allowed)

    def fold(buffer, arrival):
        params, total, weights = buffer
        moved = jax.tree.map(jnp.subtract, params, arrival.start)
        lengths = accumulate.norm(moved) * accumulate.norm(arrival.update)
        cosine = accumulate.product(moved, arrival.update) / jnp.where(lengths > 0, lengths, 1)
        still = accumulate.norm(moved) == 0
        cosine = jnp.where(lengths > 0, jnp.clip(cosine, -1, 1), jnp.where(still, 1.0, 0.0))
        fresh = staleness_bound / (accumulate.number(arrival.staleness) + staleness_bound)
        examples = accumulate.number(arrival.num_examples if weigh_by_examples else 1)
        weight = examples * (staleness_factor * fresh + similarity_factor * (1 + cosine) / 2)
        return (params, accumulate.add(total, weight, arrival.update), weights + weight), {"weight": weight}

    def finish(buffer, params):
        _, total, weights = buffer
        return accumulate.scaled(-1 / weights, total), (), {"weight_scale": 1 / weights}, True

    return Rule(
        init=lambda params, num_clients: (),
        begin=lambda state, params: (params, accumulate.zeros(params), accumulate.number(0)),
        fold=fold,
        finish=finish,
        requirements=Requirements(needs_start=True),
    )
