"""FedDyn: dynamic regularization of the clients' objectives (Acar et al., ICLR 2021)."""

import jax

from jafl.base.errors import number_unless_traced
from jafl.records import Requirements, Rule
from jafl.rules import accumulate
from jafl.specifications import specification


@specification
def feddyn(alpha: float = 0.01) -> Rule:
    """FedDyn: each client's objective is regularized dynamically, so that all clients agree on one minimum.

    Client i keeps h_i, 0 at first, and descends F_i(y) - <h_i, y> + (alpha / 2) |y - x|^2 from the downloaded x:
    y <- y - eta_l (g(y) - h_i + alpha (y - x)), Q times. Then h_i <- h_i - alpha (y - x). The server makes
    h <- h - alpha (1/N) sum (y - x), over the trips of the step but divided by the number N of all clients, and
    w <- (mean of y) - h / alpha (Acar et al., ICLR 2021, algorithm 1; from general knowledge of the paper). Keep the
    clients' learning rate eta_l below 1 / alpha: with a larger one the pull towards x overshoots.

    The mean of y is computed as w + (1/K) sum (y - x). In rounds that is the paper's mean; in asynchronous training
    it is a reading, in which a stale trip counts by its update. The pseudo-gradient is the whole step to the new
    model, so the server's optimizer is SGD with rate 1.

    Use it with ``jafl.client_work(..., correction="feddyn")``, which gets alpha from the server. Reports ``weight``
    per trip.

    Args:
      alpha: strength of the regularization, above 0; the paper's experiments use 0.01 to 0.1.

    Returns:
      The rule, as a specification, for ``jafl.simulate``.

    Raises:
      SettingError: for an alpha that is not above 0, when the rule is built.

    Examples:
      >>> jafl.rules.feddyn(0.1)
      feddyn(alpha=0.1)
    """
    number_unless_traced("alpha", alpha, lambda value: 0 < value < float("inf"), "a finite number above 0")

    def init(params, num_clients):
        return accumulate.zeros(params), accumulate.number(num_clients), accumulate.number(alpha)

    def begin(state, params):
        return state, accumulate.zeros(params), accumulate.number(0)

    def fold(buffer, arrival):
        state, total, count = buffer
        one = accumulate.number(1)
        return (state, accumulate.add(total, one, arrival.update), count + 1), {"weight": one}

    def finish(buffer, params):
        (history, clients, factor), total, count = buffer
        history = accumulate.add(history, -factor / clients, total)
        mean = accumulate.scaled(1 / count, total)
        # Descending it leads from the current model to the mean of the trained models minus h / alpha.
        direction = jax.tree.map(lambda h, m: h / factor.astype(h.dtype) - m, history, mean)
        return direction, (history, clients, factor), {"weight_scale": 1 / count}, True

    return Rule(
        init,
        begin,
        fold,
        finish,
        requirements=Requirements(correction="feddyn"),
        broadcast=lambda state: {"alpha": state[2]},
    )
