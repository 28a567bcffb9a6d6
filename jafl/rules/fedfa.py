"""FedFa: the server's model is the mean of the last K models that have arrived (Xu et al., IJCAI 2024)."""

import jax
import jax.numpy as jnp
import numpy as np

from jafl.base.errors import choose, whole_number
from jafl.records import Columns, EventSchedule, Requirements, Rule
from jafl.rules import accumulate
from jafl.specifications import specification


@specification
def fedfa(window: int = 5, form: str = "parameters") -> Rule:
    """FedFa: every arrival makes a step, and replaces the oldest of the last K arrivals in the mean.

    "parameters" (FedFa-Param): w <- the mean of the models that the last K arrivals have trained. The pseudo-gradient
    is w minus that mean, so use plain SGD with rate 1 at the server. "updates" (FedFa-Delta): w <- w + eta (1/K) sum
    of the last K updates, so that each update counts in K steps, with 1/K in each (Xu et al., IJCAI 2024). Readings:
    how FedFa-Delta adds up, and what the window holds before K arrivals: K times the initial model, or updates of 0.
    (Other implementations wait for K arrivals before the first step.)

    Reports ``weight`` per trip. For updates: 1 / K for each step for which the update stays in the window. For
    models: 1 / K, the model's share of w until it leaves the window.

    Args:
      window: K, at least 1; the server stores K models or updates.
      form: "parameters" or "updates".

    Returns:
      The rule, as a specification, for ``jafl.simulate``.

    Raises:
      SettingError: for a window below 1 or an unknown form, when the rule is built.
    """
    whole_number("window", window, 1)
    models = choose("form", form, {"parameters": True, "updates": False})

    def init(params, num_clients):
        return (params if models else accumulate.zeros(params),) * window

    def fold(state, arrival):
        update = arrival.update
        new = jax.tree.map(jnp.add, arrival.start, update) if models else update
        return (*state[1:], new), {"weight": arrival.columns["weight"]}

    def finish(state, params):
        mean = accumulate.scaled(1 / window, jax.tree.map(lambda *rows: sum(rows[1:], rows[0]), *state))
        direction = jax.tree.map(jnp.subtract, params, mean) if models else accumulate.scaled(-1, mean)
        return direction, state, {}, True

    def columns(schedule: EventSchedule) -> Columns:
        steps = (
            np.ones(schedule.num_trips) if models else np.minimum(schedule.num_steps - schedule.step, window)
        )
        return {"weight": steps / window}

    return Rule(
        init,
        lambda state, params: state,
        fold,
        finish,
        columns=columns,
        requirements=Requirements(needs_start=models, buffer_size=1, linear=not models),
    )
