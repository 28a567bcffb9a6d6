"""Zeno++: gradients that disagree with one of the server's own are refused (Xie, Koyejo and Gupta, ICML 2020)."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jafl.base.errors import SettingError, require, whole_number
from jafl.records import Gradients, Params, Requirements, Rule
from jafl.rules import accumulate
from jafl.specifications import specification


@specification
def zeno_plus_plus(
    server_gradient: Callable[[Params], Gradients] | None = None,
    refresh_every: int = 1,
    gamma: float = 0.1,
    rho: float = 0.02,
    epsilon: float = 0.1,
) -> Rule:
    """Zeno++: arriving gradients are scored against the server's own gradient, and refused if the score is too low.

    v is the gradient on the server's examples at the model just before steps 0, k, 2k, ..., and kept in between. The
    arriving g becomes g' = g ||v|| / ||g|| (zero stays zero), which is accepted if its score
    gamma <v, g'> - rho ||g'||^2 is at least -gamma epsilon: w <- w - eta g'. Otherwise the step is skipped, which
    counts as a version (Xie, Koyejo and Gupta, ICML 2020). Norms are over all leaves. A rule on gradients, see
    ``asgd``.

    Reports, per step, ``score`` and ``weight``: ||v|| / ||g||, or 0 for a gradient that is refused.

    Args:
      server_gradient: (params) -> gradient [*P]; ``jafl.server_gradient(model, x, y)`` for example.
      refresh_every: k, in server steps (lazy updates), at least 1.
      gamma: factor of <v, g'> in the score, and of the threshold. (In the paper it is also the learning rate; here
        that is the server optimizer's.)
      rho: factor of ||g'||^2 in the score.
      epsilon: of the threshold. The defaults of these three are those of WKAFL, table 4.

    Returns:
      The rule, as a specification, for ``jafl.simulate``.

    Raises:
      SettingError: for a ``refresh_every`` below 1, when the rule is built; without a server gradient, or for one
        that is not shaped like the parameters, when the run starts.
    """
    whole_number("refresh_every", refresh_every, 1)

    def init(params, num_clients):
        require(
            callable(server_gradient),
            "server_gradient",
            server_gradient,
            "a function from parameters to the gradient on the server's own examples",
            "Make it with jafl.server_gradient(model, x, y), or give run.py --split.server_examples.",
        )
        _check_gradient(server_gradient, params)
        return accumulate.zeros(params), jnp.int32(0)

    def finish(buffer, params):
        (own, step), update = buffer
        refresh = step % refresh_every == 0
        own = jax.lax.cond(refresh, lambda: _like(server_gradient(params), params), lambda: own)
        length, own_length = accumulate.norm(update), accumulate.norm(own)
        scale = jnp.where(length > 0, own_length / jnp.where(length > 0, length, 1), 0)
        candidate = jax.tree.map(lambda u: u * -scale.astype(u.dtype), update)
        score = gamma * accumulate.product(own, candidate) - rho * accumulate.product(candidate, candidate)
        accepted = score >= -gamma * epsilon
        report = {"score": score, "weight": jnp.where(accepted, scale, 0)}
        return candidate, (own, step + 1), report, accepted

    return Rule(
        init=init,
        begin=lambda state, params: (state, accumulate.zeros(params)),
        fold=lambda buffer, arrival: ((buffer[0], arrival.update), {}),
        finish=finish,
        requirements=Requirements(buffer_size=1),
    )


def _check_gradient(server_gradient: Callable[[Params], Gradients], params: Params) -> None:
    """Raises SettingError for a function whose gradient is not shaped like the parameters."""
    remedy = "It maps parameters to a gradient of the same structure: see jafl.server_gradient."
    try:
        gradient = jax.eval_shape(server_gradient, params)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        cause = f"a function that fails on these parameters ({type(error).__name__}: {error})"
        raise SettingError(
            f"server_gradient is {cause}, but must not. {remedy}", setting="server_gradient"
        ) from error
    shapes = jax.tree.map(jnp.shape, gradient)
    expected = jax.tree.map(jnp.shape, params)
    require(shapes == expected, "the shapes of server_gradient's result", shapes, f"{expected}", remedy)


def _like(tree: Gradients, params: Params) -> Gradients:
    """``tree`` in the dtypes of ``params``."""
    return jax.tree.map(lambda leaf, p: jnp.asarray(leaf, p.dtype), tree, params)
