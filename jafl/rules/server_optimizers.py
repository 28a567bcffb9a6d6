"""Server optimizers as papers define them, as optax transformations; optax's own can be used as well.

``fedadagrad``, ``fedadam`` and ``fedyogi`` are those of Reddi et al. (ICLR 2021, algorithm 2). They differ from
optax's: no bias correction, epsilon (the paper's tau, 1e-3) added to the root, and second moments that start at
epsilon squared. In each the step is w <- w - learning_rate m / (sqrt(v) + epsilon) with m <- b1 m + (1 - b1) g; they
differ in the second moment v. ``fedamsgrad`` is FADAS's, ``delayed_nesterov`` and ``heloco`` are for asynchronous
DiLoCo.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jafl.base.errors import choose, number_unless_traced, whole_number
from jafl.records import Gradients


class ReddiState(NamedTuple):
    """First and second moments, [*P] each."""

    first: Gradients
    second: Gradients


def fedadagrad(learning_rate: float, b1: float = 0.0, epsilon: float = 1e-3) -> optax.GradientTransformation:
    """FedAdagrad: the second moment is the sum of squares, v <- v + g^2.

    Args:
      learning_rate: of the server.
      b1: decay of the first moment.
      epsilon: the paper's tau, above 0.

    Returns:
      The optimizer; ``jafl.specify(fedadagrad, learning_rate=0.1)`` keeps its numbers changeable without compiling
      again.
    """
    return _reddi(learning_rate, b1, 0.0, epsilon, lambda v, square: v + square)


def fedadam(
    learning_rate: float, b1: float = 0.9, b2: float = 0.99, epsilon: float = 1e-3
) -> optax.GradientTransformation:
    """FedAdam: the second moment is an exponential average of squares, v <- b2 v + (1 - b2) g^2.

    Args:
      learning_rate: of the server.
      b1: decay of the first moment.
      b2: decay of the second moment.
      epsilon: the paper's tau, above 0.

    Returns:
      The optimizer; see ``fedadagrad``.
    """
    return _reddi(learning_rate, b1, b2, epsilon, lambda v, square: b2 * v + (1 - b2) * square)


def fedyogi(
    learning_rate: float, b1: float = 0.9, b2: float = 0.99, epsilon: float = 1e-3
) -> optax.GradientTransformation:
    """FedYogi: the second moment moves towards the square by a share of it, v <- v - (1 - b2) g^2 sign(v - g^2).

    Args:
      learning_rate: of the server.
      b1: decay of the first moment.
      b2: one minus the share of the square.
      epsilon: the paper's tau, above 0.

    Returns:
      The optimizer; see ``fedadagrad``.
    """
    return _reddi(
        learning_rate, b1, b2, epsilon, lambda v, square: v - (1 - b2) * square * jnp.sign(v - square)
    )


class AMSGradState(NamedTuple):
    """Steps so far, [] int32; first and second moments and the largest second moments, [*P] each."""

    steps: jax.Array
    first: Gradients
    second: Gradients
    largest: Gradients


def fedamsgrad(
    learning_rate: float, b1: float = 0.9, b2: float = 0.99, epsilon: float = 1e-8, form: str = "paper"
) -> optax.GradientTransformation:
    """FADAS's AMSGrad: the step is divided by the root of the largest second moment so far.

    w <- w - learning_rate m / (sqrt(v^) + epsilon) with m <- b1 m + (1 - b1) g, v <- b2 v + (1 - b2) g^2 and
    v^ <- max(v^, v), all 0 at first (Wang, Wang, Lu and Chen, ICML 2024, algorithm 1; with a synchronous cohort it is
    FedAMSGrad). ``optax.amsgrad`` is another algorithm: it corrects the bias of v before it takes the maximum, so
    that the values of the first steps, which are corrected most, often stay the maximum for long.

    Args:
      learning_rate: of the server.
      b1: decay of the first moment.
      b2: decay of the second moment.
      epsilon: added to the root, above 0.
      form: "paper": no bias correction; "release": that of the authors' code, m / (1 - b1^t) and
        sqrt(v^) / sqrt(1 - b2^t) at step t (from 1), after the maximum; "optax": m / (1 - b1^t) and the maximum of
        v / (1 - b2^t).

    Returns:
      The optimizer; see ``fedadagrad``.

    Raises:
      SettingError: for an unknown form, or a decay or epsilon outside its range.
    """
    _check_decays(epsilon, b1=b1, b2=b2)
    corrected, before = choose(
        "form", form, {"paper": (False, False), "release": (True, False), "optax": (True, True)}
    )

    def init(params):
        zeros = jax.tree.map(jnp.zeros_like, params)
        return AMSGradState(jnp.int32(0), zeros, zeros, zeros)

    def update(gradient, state, params=None):
        steps = state.steps + 1
        first = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state.first, gradient)
        second = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * g * g, state.second, gradient)
        of_first, of_second = ((1 - b**steps if corrected else 1) for b in (b1, b2))
        inside, outside = (of_second, 1) if before else (1, of_second)
        largest = jax.tree.map(lambda h, v: jnp.maximum(h, v / inside).astype(h.dtype), state.largest, second)

        def change(m, h):
            return (-learning_rate * (m / of_first) / (jnp.sqrt(h / outside) + epsilon)).astype(h.dtype)

        return jax.tree.map(change, first, largest), AMSGradState(steps, first, second, largest)

    return optax.GradientTransformation(init, update)


class DelayedNesterovState(NamedTuple):
    """Steps so far, [] int32; the momentum, and the sum of gradients since it changed, [*P] each."""

    steps: jax.Array
    momentum: Gradients
    waiting: Gradients


def delayed_nesterov(
    learning_rate: float, momentum: float = 0.9, period: int = 8, momentum_share: float = 0.0
) -> optax.GradientTransformation:
    """Delayed Nesterov: every gradient moves the model at once, the momentum m changes at every N-th step only.

    At each step D <- D + g and w <- w - learning_rate (s momentum m + g / N). At every N-th step s is 1 - c N + c,
    and before w moves, m <- momentum m + D / N and D <- 0; at the other steps s is c (Liu et al., "Asynchronous
    local-SGD training for language modeling", 2024, algorithm 3). With c = 0, the N steps up to a change of m move w
    as one Nesterov step on the mean of their gradients; with N = 1 this is Nesterov momentum. Meant for one arrival
    per step, as in asynchronous DiLoCo: ``--algorithm=async_diloco``. There clients start AdamW anew at each trip,
    while the paper's workers keep its moments.

    Args:
      learning_rate: of the server, for the mean of N gradients.
      momentum: decay of the momentum m, from 0 to 1.
      period: N, steps from one change of the momentum to the next, at least 1.
      momentum_share: c, from 0 to 1 / N: how much of the momentum goes into the steps in between.

    Returns:
      The optimizer; see ``fedadagrad``.

    Raises:
      SettingError: for a period below 1, or a momentum or ``momentum_share`` beyond its range.
    """
    whole_number("period", period, 1)
    _check("momentum", momentum, lambda value: 0 <= value <= 1, "from 0 to 1")
    allowed = f"from 0 to 1 / period, {1 / period:.3g}"
    number_unless_traced("momentum_share", momentum_share, lambda value: 0 <= value <= 1 / period, allowed)

    def init(params):
        zeros = jax.tree.map(jnp.zeros_like, params)
        return DelayedNesterovState(jnp.int32(0), zeros, zeros)

    def update(gradient, state, params=None):
        steps = state.steps + 1
        due = steps % period == 0
        waiting = jax.tree.map(jnp.add, state.waiting, gradient)
        moment = jax.tree.map(
            lambda m, d: jnp.where(due, (momentum * m + d / period).astype(m.dtype), m),
            state.momentum,
            waiting,
        )
        waiting = jax.tree.map(lambda d: jnp.where(due, jnp.zeros_like(d), d), waiting)
        share = momentum * jnp.where(due, 1 - momentum_share * period + momentum_share, momentum_share)
        change = jax.tree.map(
            lambda m, g: (-learning_rate * (share * m + g / period)).astype(m.dtype), moment, gradient
        )
        return change, DelayedNesterovState(steps, moment, waiting)

    return optax.GradientTransformation(init, update)


def heloco(
    learning_rate: float,
    momentum: float = 0.9,
    keep_cosine: float = 0.5,
    shrinkage: float = 1.0,
    largest_shrinkage: float = 1.0,
    turning: float = 1.0,
    relative_momentum: float = 1.0,
    epsilon: float = 1e-8,
) -> optax.GradientTransformation:
    """HeLoCo: each array of the gradient is turned towards the momentum, or loses what points against it.

    For each array of the model let c be the cosine of its gradient g with its momentum m, v = m / ||m||, and
    conf = ||g|| / (||g|| + kappa ||m|| + epsilon). Where c >= c_ok, g stays. Where c < 0, it becomes
    g - beta c ||g|| v with beta = min(-k_s c conf, beta_max). In between it keeps its length and gets the direction
    of (1 - lambda) g / ||g|| + lambda v with lambda = min(k_d (1 - c) conf, 1). With G the result,
    m <- momentum m + (1 - momentum) G and w <- w - learning_rate (G + momentum m) (Al Asif et al., "HeLoCo", 2026).
    If g or m is 0, g stays. Weights by staleness are left to the rule. The equations are those of a collection of
    optimizers that restates the paper; all defaults are jafl's.

    Args:
      learning_rate: of the server.
      momentum: mu, decay of the momentum, from 0 to 1.
      keep_cosine: c_ok, from -1 to 1; -1 keeps every gradient.
      shrinkage: k_s, at least 0.
      largest_shrinkage: beta_max, at least 0; 1 takes away all that points against the momentum, at most.
      turning: k_d, at least 0.
      relative_momentum: kappa, at least 0.
      epsilon: above 0.

    Returns:
      The optimizer; see ``fedadagrad``.

    Raises:
      SettingError: for numbers outside these ranges.
    """
    _check_decays(epsilon, momentum=momentum)
    _check("keep_cosine", keep_cosine, lambda value: -1 <= value <= 1, "from -1 to 1")
    factors = {
        "shrinkage": shrinkage,
        "largest_shrinkage": largest_shrinkage,
        "turning": turning,
        "relative_momentum": relative_momentum,
    }
    for name, factor in factors.items():
        _check(name, factor, lambda value: 0 <= value < float("inf"), "a finite number of at least 0")

    def corrected(g, m):
        length, other = jnp.linalg.norm(g.ravel()), jnp.linalg.norm(m.ravel())
        both = (length > 0) & (other > 0)
        u, v = g / jnp.where(length > 0, length, 1), m / jnp.where(other > 0, other, 1)
        cosine = jnp.sum(u * v)
        confidence = length / (length + relative_momentum * other + epsilon)
        beta = jnp.minimum(-shrinkage * cosine * confidence, largest_shrinkage)
        share = jnp.minimum(turning * (1 - cosine) * confidence, 1)
        mixed = (1 - share) * u + share * v
        turned = length * mixed / jnp.maximum(jnp.linalg.norm(mixed.ravel()), epsilon)
        changed = jnp.where(cosine < 0, g - beta * cosine * length * v, turned)
        return jnp.where(both & (cosine < keep_cosine), changed, g).astype(g.dtype)

    def init(params):
        return jax.tree.map(jnp.zeros_like, params)

    def update(gradient, state, params=None):
        kept = jax.tree.map(corrected, gradient, state)
        state = jax.tree.map(lambda m, g: (momentum * m + (1 - momentum) * g).astype(m.dtype), state, kept)
        return jax.tree.map(
            lambda g, m: (-learning_rate * (g + momentum * m)).astype(m.dtype), kept, state
        ), state

    return optax.GradientTransformation(init, update)


def _reddi(learning_rate, b1, b2, epsilon, second_moment) -> optax.GradientTransformation:
    """The optimizer whose second moment follows v <- second_moment(v, g^2)."""
    _check_decays(epsilon, b1=b1, b2=b2)

    def init(params):
        second = jax.tree.map(lambda p: jnp.full_like(p, epsilon**2), params)
        return ReddiState(jax.tree.map(jnp.zeros_like, params), second)

    def update(gradient, state, params=None):
        first = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state.first, gradient)
        second = jax.tree.map(lambda v, g: second_moment(v, g * g), state.second, gradient)
        step = jax.tree.map(lambda m, v: -learning_rate * m / (jnp.sqrt(v) + epsilon), first, second)
        return step, ReddiState(first, second)

    return optax.GradientTransformation(init, update)


def _check(setting: str, value: Any, fits: Callable[[float], bool], allowed: str) -> None:
    number_unless_traced(f"{setting} of the server optimizer", value, fits, allowed)


def _check_decays(epsilon: Any, **decays: Any) -> None:
    """Raises SettingError for what is no average or may divide by 0."""
    for setting, value in decays.items():
        _check(setting, value, lambda value: 0 <= value <= 1, "from 0 to 1")
    _check("epsilon", epsilon, lambda value: 0 < value < float("inf"), "a finite number above 0")


__all__ = [
    "delayed_nesterov",
    "fedadagrad",
    "fedadam",
    "fedamsgrad",
    "fedyogi",
    "heloco",
]
__dir__ = __all__.copy  # for ``dir`` and for completion at a prompt
