"""MasFL and AdaMasFL: control variates with momentum in the clients' steps (Yan, Zhong, Wang, Zhang, ICML 2025)."""

import jax
import jax.numpy as jnp

from jafl.base.errors import number_unless_traced
from jafl.records import Requirements, Rule
from jafl.rules import accumulate
from jafl.rules.scaffold import moved
from jafl.specifications import specification


@specification
def masfl(beta: float = 0.9, normalize: bool = False) -> Rule:
    """MasFL: SCAFFOLD's corrected gradient, mixed with the server's momentum in each local step.

    The server keeps a control variate c and a momentum m, and sends both with the model; client i keeps its own
    control variate c_i; all are 0 at first. A local step is y <- y - eta_l u with u = beta
    (g(y) - c_i + c) + (1 - beta) m. The client's new control variate c_i+ is the mean of the trip's gradients g. At a
    server step of K trips the server makes m <- beta (c + a) + (1 - beta) m, with the old c and
    a = (1/K) sum (c_i+ - c_i), then c <- c + (1/N) sum (c_i+ - c_i), with N all clients, and w <- w - gamma m, with
    gamma the server's learning rate (Yan, Zhong, Wang and Zhang, ICML 2025; a reading of another group's code, which
    agrees with SCAFFOLD-M of Cheng et al. 2023). In rounds and with beta = 1 this is SCAFFOLD with the server
    learning rate gamma / (Q eta_l).

    AdaMasFL (``normalize``): a local step is y <- y - eta_l u / |u|, with one norm for the whole model, and the
    server adds gamma (1/K) sum (y - x) / Q to the model, with x the downloaded model and Q the local steps. The paper
    also divides by eta_l (for plain SGD at the clients), so gamma here is the paper's rate divided by eta_l.

    Use it with ``jafl.client_work(..., correction="masfl")``, or with ``correction="adamasfl"`` if ``normalize`` is
    True. Client work gets beta from the server.

    Args:
      beta: the weight of the corrected gradient against the momentum, above 0 and at most 1.
      normalize: False for MasFL, True for AdaMasFL.

    Returns:
      The rule, as a specification, for ``jafl.simulate``.

    Raises:
      SettingError: for a beta outside of its range, when the rule is built.

    Examples:
      >>> jafl.rules.masfl(0.5, normalize=True).build().correction
      'adamasfl'
    """
    number_unless_traced("beta", beta, lambda value: 0 < value <= 1, "above 0 and at most 1")

    def init(params, num_clients):
        zeros = accumulate.zeros(params)
        return (zeros, accumulate.number(num_clients)), zeros, accumulate.number(beta)

    def begin(state, params):
        return state, accumulate.zeros(params), accumulate.zeros(params), accumulate.number(0)

    def fold(buffer, arrival):
        state, total, changes, count = buffer
        one = accumulate.number(1)
        # MasFL itself does not read the updates: then the compiler leaves the sum out.
        steps = jnp.maximum(arrival.local_steps, 1)  # the update of a trip without steps is 0
        total = accumulate.add(total, 1 / accumulate.number(steps), arrival.update)
        changes = accumulate.add(changes, one, arrival.sent["control"])
        return (state, total, changes, count + 1), {}

    def finish(buffer, params):
        (control, momentum, share), total, changes, count = buffer

        def mix(m, c, a):
            own = share.astype(m.dtype)
            return own * (c + a / count.astype(m.dtype)) + (1 - own) * m

        # With the old c: that of the step comes afterwards.
        momentum = jax.tree.map(mix, momentum, control[0], changes)
        direction = accumulate.scaled(-1 / count, total) if normalize else momentum
        return direction, (moved(control, changes), momentum, share), {}, True

    return Rule(
        init,
        begin,
        fold,
        finish,
        requirements=Requirements(correction="adamasfl" if normalize else "masfl"),
        broadcast=lambda state: {"control": state[0][0], "momentum": state[1], "beta": state[2]},
    )
