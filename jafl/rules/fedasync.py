"""FedAsync: every arrival is mixed into the model at once (Xie, Koyejo and Gupta 2019, algorithm 1)."""

from typing import Any

import jax
import jax.numpy as jnp

from jafl.records import Requirements, Rule
from jafl.rules import accumulate, staleness
from jafl.specifications import specification


@specification
def fedasync(
    staleness_weight: Any = staleness.polynomial(0.5),  # noqa: B008  (immutable)
) -> Rule:
    """FedAsync: each client's trained model is mixed into the server's as soon as it arrives.

    The model becomes (1 - alpha s) w + alpha s y, y the client's trained model, s its staleness weight (Xie, Koyejo
    and Gupta 2019, algorithm 1). The pseudo-gradient is s (w - y), so alpha is the learning rate of the server's
    plain SGD (FedBuff's tables call it so, too). Mixing pulls towards the client's whole model, stale as it is, not
    along its update. The paper's local proximal term is the client work's ``proximal``.

    Reports ``weight``, s, per trip.

    Args:
      staleness_weight: s, from ``jafl.rules.staleness`` (the paper: constant, polynomial, hinge), or any function of
        the staleness, [] float in server steps.

    Returns:
      The rule, as a specification, for ``jafl.simulate``.

    Raises:
      SettingError: if ``staleness_weight`` is not a function, when the rule is built.
    """
    staleness.check(staleness_weight)

    def init(params, num_clients):
        return ()

    def begin(state, params):
        return params, accumulate.number(0)  # both are replaced by the step's only trip

    def fold(buffer, arrival):
        weight = staleness.weigh(staleness_weight, arrival.staleness)
        trained = jax.tree.map(jnp.add, arrival.start, arrival.update)
        return (trained, weight), {"weight": weight}

    def finish(buffer, params):
        trained, weight = buffer
        mixed = jax.tree.map(lambda w, y: weight.astype(w.dtype) * (w - y), params, trained)
        return mixed, (), {}, True

    return Rule(init, begin, fold, finish, requirements=Requirements(needs_start=True, buffer_size=1))
