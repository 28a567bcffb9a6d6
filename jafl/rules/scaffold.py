"""SCAFFOLD: control variates correct the drift of local steps (Karimireddy et al., ICML 2020), in rounds or not."""

from typing import Any

import jax

from jafl.records import Requirements, Rule
from jafl.rules import accumulate
from jafl.specifications import specification


@specification
def scaffold() -> Rule:
    """SCAFFOLD: each local step is corrected for how the client's gradients differ from the mean over all clients.

    The server keeps a control variate c and sends it with the model x; client i keeps its own, c_i. A local step is
    y <- y - eta_l (g(y) - c_i + c), with g(y) a minibatch gradient and eta_l the client's learning rate. After Q of
    them the client sends y - x and c_i+ - c_i, and keeps c_i+; the server makes w <- w + eta (1/K) sum (y - x) and
    c <- c + (1/N) sum (c_i+ - c_i): the sum over the step's K trips, divided by the number N of all clients
    (Karimireddy et al., ICML 2020, algorithm 1). c and all c_i start at 0, so the first round is FedAvg's. c is the
    mean of all c_i after every server step.

    c_i+ is the mean of the trip's Q gradients. With plain SGD that equals the paper's option II,
    c_i - c + (x - y) / (Q eta_l), but needs no division by the rate; with another client optimizer it is a reading.
    Usual mistake: to correct once after training instead of in every local step; this ends where FedAvg does.

    The paper's rounds are ``jafl.synchronous``. Asynchronous training is a reading: c is then the one that was
    downloaded with the model, as stale as the model, and c_i is what the client itself kept last. Use a server
    learning rate of at most K/N there. With K = 1 and a rate of 1 training may diverge: one trip moves the model by
    its whole update, but c by only an N-th of that client's change.

    Use it with ``jafl.client_work(..., correction="scaffold")``. Reports ``weight`` per trip.

    Returns:
      The rule, as a specification, for ``jafl.simulate``.

    Examples:
      >>> model = jafl.models.softmax(10)
      >>> work = jafl.client_work(model, learning_rate=0.1, local_steps=5, correction="scaffold")
      >>> jafl.rules.scaffold().build().correction
      'scaffold'
    """

    def init(params, num_clients):
        return accumulate.zeros(params), accumulate.number(num_clients)

    def begin(state, params):
        return state, accumulate.zeros(params), accumulate.number(0)

    def fold(buffer, arrival):
        state, total, count = buffer
        one = accumulate.number(1)
        total = accumulate.add(total, one, arrival.update)
        return (moved(state, arrival.sent["control"]), total, count + 1), {"weight": one}

    def finish(buffer, params):
        state, total, count = buffer
        return accumulate.scaled(-1 / count, total), state, {"weight_scale": 1 / count}, True

    return Rule(
        init,
        begin,
        fold,
        finish,
        requirements=Requirements(correction="scaffold"),
        broadcast=lambda state: {"control": state[0]},
    )


def moved(state: Any, changes: Any) -> tuple[Any, jax.Array]:
    """(c, N) after ``changes`` [*P] of the clients' c_i, of one or the sum of several: c + changes / N."""
    control, clients = state
    return accumulate.add(control, 1 / clients, changes), clients
