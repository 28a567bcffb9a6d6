"""AsyncFedED: an update counts less the further the model has moved since its download (Wang et al. 2022)."""

import math

import jax
import jax.numpy as jnp

from jafl.base.errors import number_unless_traced
from jafl.records import Requirements, Rule
from jafl.rules import accumulate
from jafl.specifications import specification


@specification
def asyncfeded(epsilon: float = 1.0) -> Rule:
    """AsyncFedED: the rate of an update falls with how far the model has moved since its download, per update length.

    w <- w + lambda / (gamma + epsilon) update at each arrival, with gamma = ||w - start|| / ||update||: the distance
    between the server's model w and the downloaded model ``start``, relative to the update's length (Wang, Yang, He,
    Shi and Chen 2022). lambda is the learning rate of plain SGD at the server. For a fresh update gamma is 0, so its
    rate is lambda / epsilon. An update of 0 leaves the model as it is. Norms are over the whole model. The paper's
    other half is missing: it gives each client more or fewer local epochs by its gamma, which would make the schedule
    depend on the trained parameters. Here the clients' work is fixed.

    Reports, per step, ``weight``, 1 / (gamma + epsilon), and ``distance_ratio``, gamma; both are 0 for an update of
    0.

    Args:
      epsilon: added to gamma, above 0.

    Returns:
      The rule, as a specification, for ``jafl.simulate``.

    Raises:
      SettingError: for an ``epsilon`` that is not above 0.
    """
    number_unless_traced("epsilon", epsilon, lambda value: 0 < value < math.inf, "a finite number above 0")

    def finish(buffer, params):
        update, start = buffer
        moved = accumulate.norm(jax.tree.map(jnp.subtract, params, start))
        length = accumulate.norm(update)
        ratio = jnp.where(length > 0, moved / jnp.where(length > 0, length, 1), 0)
        weight = jnp.where(length > 0, 1 / (ratio + epsilon), 0)
        return accumulate.scaled(-weight, update), (), {"weight": weight, "distance_ratio": ratio}, True

    return Rule(
        init=lambda params, num_clients: (),
        begin=lambda state, params: (accumulate.zeros(params), params),
        fold=lambda buffer, arrival: ((arrival.update, arrival.start), {}),
        finish=finish,
        requirements=Requirements(needs_start=True, buffer_size=1),
    )
