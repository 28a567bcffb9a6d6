"""Which learning rates learn: some steps from the initial model on some of the clients' examples, at several rates.

It is asked of a run that has not learned, and says what is measured where a rule of thumb would guess: whether its
rate is too high, too low, or not the cause.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jafl.clients.minibatch_gradients import sum_and_gradient
from jafl.engine.plan.run import Run
from jafl.models import Model
from jafl.records import Params
from jafl.simulation.learning_measures import constant_loss
from jafl.specifications import Specification, as_specification

# The rates that are tried, times the run's own. All trials see fewer examples than the shortest run that is judged.
FACTORS = (1e-4, 1e-3, 1e-2, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 100.0, 1e3, 1e4, 1e5)
EXAMPLES, STEPS = 32, 15
# A rate has learned with a loss below this share of the initial one, and of a constant prediction's.
LEARNED = 0.9


class RateTrial(NamedTuple):
    """What a trial has shown.

    Attributes:
      start: the loss before.
      own: the loss after the steps with the run's own rate; may be infinite.
      factor: the rate that learns, as a multiple of the run's own: 1.0 if that one does; None if none does.
      best: the loss after the steps with that one.
      lower: a multiple below 1 that learns, ten times the least of them; None if none does. So few examples may be
        learned with a rate that is too high for all.
    """

    start: float
    own: float
    factor: float | None
    best: float
    lower: float | None

    def describe(self) -> str:
        """What was measured, as a sentence."""
        own = f"{self.own:.3g}" if np.isfinite(self.own) else "infinity"
        said = f"In a trial of {STEPS} steps from the initial model, on {EXAMPLES} of the clients' examples, "
        said += f"the loss went from {self.start:.3g} to {own} with that rate"
        if self.factor not in (None, 1.0):
            said += f", and to {self.best:.3g} with {self.factor:g} times that rate"
        return f"{said}."


def try_rates(run: Run, constant: float | None, *, server: bool = False) -> RateTrial | None:
    """Tries rates around the run's own.

    Args:
      run: its initial parameters are those that training begins from.
      constant: the loss of the best constant prediction, if that is known.
      server: whether to try those of the server's optimizer, on the clients' steps; else the clients' own.

    Returns:
      What was seen; None where the clients' optimizer is not known, or the trial cannot be made.
    """
    work = as_specification(run.client_work)
    optimizer = work.arguments.get("optimizer")
    # Client work of the user's own, in which nobody knows where a rate is.
    if optimizer is None:
        return None
    held = run.federation.partition.indices
    # Spread over all clients: those of a single one may have one label.
    rows = held[np.linspace(0, len(held) - 1, EXAMPLES).astype(int)]
    # Without dropout, so that rates and nothing drawn make the difference.
    model = work.build().model.as_evaluated()
    rate = _rate_in_the_middle(work, run.schedule.num_steps)
    server_optimizer = as_specification(run.server_optimizer) if server else None
    examples = (np.asarray(run.federation.x[rows]), np.asarray(run.federation.y[rows]))
    factors = np.array(FACTORS, np.float32)
    try:
        before_and_after = _losses(
            model, as_specification(optimizer), server_optimizer, run.params, examples, factors, rate
        )
    except Exception:  # a warning is no reason for a run that has ended to fail, whatever its parts refuse
        return None
    start, losses = float(before_and_after[0]), np.asarray(before_and_after[1], np.float64)
    # NaN is the worst of all, and comparisons with it say nothing.
    losses = np.where(np.isfinite(losses), losses, np.inf)
    known = [loss for loss in (start, constant, constant_loss(run, examples[1])) if loss is not None]
    enough = LEARNED * min(known)
    own = FACTORS.index(1.0)
    learns = losses <= enough
    # Ten times the lowest that learns: that one learns just enough.
    lower = min(10 * FACTORS[int(np.argmax(learns))], FACTORS[own - 1]) if learns[:own].any() else None
    if learns[own]:
        chosen = own
    elif learns[:own].any():
        chosen = int(np.argmin(losses[:own]))
    elif learns.any():
        chosen = int(np.argmax(learns))
    else:
        return RateTrial(start, float(losses[own]), None, float(losses.min()), None)
    return RateTrial(start, float(losses[own]), FACTORS[chosen], float(losses[chosen]), lower)


def _rate_in_the_middle(work: Specification, num_steps: int) -> float:
    """What a schedule of the clients' rate gives in the middle of the run; 1 without one."""
    schedule = work.arguments.get("schedule")
    if schedule is None:
        return 1.0
    built = schedule.build() if isinstance(schedule, Specification) else schedule
    return float(built(jnp.int32(num_steps // 2)))


@jax.jit
def _losses(
    model: Model,
    optimizer: Specification,
    server: Specification | None,
    params: Params,
    examples: tuple[jax.Array, jax.Array],
    factors: jax.Array,
    rate: Any,
) -> tuple[jax.Array, jax.Array]:
    """([] the loss before, [F] the losses after the steps with each factor)."""
    clients = optimizer.build()
    servers = None if server is None else server.build()
    rows = (*examples, jnp.ones(EXAMPLES, bool))

    def loss(params):
        return jnp.mean(model.losses(params, *examples))

    def after(factor):
        def step(carry, _):
            params, state, server_state = carry
            _, gradient = sum_and_gradient(model, params, rows, None)
            gradient = jax.tree.map(lambda g: g / EXAMPLES, gradient)
            updates, state = clients.update(gradient, state, params)
            updates = jax.tree.map(lambda u: jnp.asarray(rate, u.dtype) * u, updates)
            if servers is not None:
                updates, server_state = servers.update(
                    jax.tree.map(jnp.negative, updates), server_state, params
                )
            updates = jax.tree.map(lambda u: factor.astype(u.dtype) * u, updates)
            return (optax.apply_updates(params, updates), state, server_state), None

        first = (params, clients.init(params), None if servers is None else servers.init(params))
        (trained, _, _), _ = jax.lax.scan(step, first, None, length=STEPS)
        return loss(trained)

    # One after the other, in one program: side by side a large model would be there thirteen times.
    return loss(params), jax.lax.map(after, factors)
