"""MasFL and AdaMasFL: control variates with momentum in the clients' steps (Yan, Zhong, Wang, Zhang, ICML 2025)."""

import jax
import jax.numpy as jnp

from jafl.base.errors import is_number, require
from jafl.records import Requirements, Rule
from jafl.rules import accumulate
from jafl.rules.scaffold import moved
from jafl.specifications import specification


@specification
def masfl(beta: float = 0.9, normalize: bool = False) -> Rule:
    """MasFL: SCAFFOLD's corrected gradient, mixed with the server's momentum in each local step.

    The server keeps c and m, and sends both with the model; client i keeps c_i; all are 0 at first. A local step is
    y <- y - eta_l u with u = beta (g(y) - c_i + c) + (1 - beta) m. c_i+ is the mean of the trip's gradients g. A step
    of K trips has a = (1/K) sum (c_i+ - c_i), and makes m <- beta (c + a) + (1 - beta) m with the old c, then
    c <- c + (1/N) sum (c_i+ - c_i), of N clients in all. MasFL's server descends m, with its own rate
    (Yan, Zhong, Wang and Zhang, ICML 2025; a reading after another group's code, which agrees with SCAFFOLD-M of
    Cheng et al. 2023). With beta = 1 and in rounds that is SCAFFOLD, whose server's rate is this one's / (Q eta_l).

    AdaMasFL (``normalize``): the clients step along u / |u|, one norm for the whole model, and the server descends
    -(1/K) sum (y - x) / Q. The paper divides by eta_l, too, with plain SGD at the clients: here the server's rate is
    the paper's divided by eta_l.

    It goes with ``jafl.client_work(..., correction="masfl")``, or ``correction="adamasfl"`` where ``normalize`` is
    True, which have beta from the server.

    Args:
      beta: how much a new gradient counts, above 0 and at most 1.
      normalize: whether it is AdaMasFL.

    Returns:
      The rule, as a specification, for ``jafl.simulate``.

    Raises:
      SettingError: for a beta outside of its range, when the rule is built.

    Examples:
      >>> jafl.rules.masfl(0.5, normalize=True).build().correction
      'adamasfl'
    """
    fits = not is_number(beta) or 0 < beta <= 1
    require(fits, "beta", beta, "above 0 and at most 1")

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
