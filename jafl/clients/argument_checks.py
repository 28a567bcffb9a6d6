"""Checks of what ``client_work`` is given: numbers, optimizers, learning-rate schedules, steps and minibatches."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jafl.base.errors import choose, is_number, is_whole_number, require, whole_number
from jafl.clients.records import MOST_STEPS_OF_A_TRIP, SCHEDULED
from jafl.specifications import Specification, specify


def check_number(name: str, value: Any, *, minimum: float) -> None:
    """Raises SettingError unless ``value`` is a finite number of at least ``minimum``."""
    fits = is_number(value) and math.isfinite(value) and float(value) >= minimum
    require(fits, name, value, f"a finite number, at least {minimum:g}")


def check_optimizer(name: str, optimizer: Any) -> None:
    """Raises SettingError unless ``optimizer`` is an optax optimizer or a specification of one."""
    fits = isinstance(optimizer, (Specification, optax.GradientTransformation))
    require(fits, name, optimizer, "an optax optimizer", optimizer_remedy(optimizer))


def optimizer_remedy(value: Any) -> str:
    """What to do where an optimizer is wanted and ``value`` is none."""
    if hasattr(
        value, "gradient_transformation"
    ):  # optax.MultiSteps, which optax itself takes for an optimizer
        return "Its method gradient_transformation() returns one."
    return "Best as jafl.specify(optax.sgd, learning_rate=0.1)."


def number_as_data(name: str, value: Any) -> Any:
    """``value`` as data of a program; a number that JAX is tracing stays what it is."""
    if isinstance(value, jax.core.Tracer):
        require(value.ndim == 0, name, f"of the shape {value.shape}", "a number")
        return value
    if isinstance(value, (jax.Array, np.ndarray)) and value.ndim == 0 and value.dtype.kind in "iuf":
        value = value.item()
    check_number(name, value, minimum=0.0)
    return float(value)


def optimizer_and_schedule(learning_rate: Any, optimizer: Any) -> tuple[Any, Any]:
    """(the optimizer, plain SGD if only its learning rate is given; the schedule of its rate or None), checked."""
    require(
        (learning_rate is None) != (optimizer is None),
        "learning_rate and optimizer",
        (learning_rate, optimizer),
        "one given and one None",
        "Give the learning rate of plain SGD, or an optimizer of your own.",
    )
    if optimizer is not None:
        check_optimizer("optimizer", optimizer)
        return optimizer, None
    if callable(learning_rate) or isinstance(learning_rate, Specification):
        _check_schedule(learning_rate)
        return specify(optax.sgd, learning_rate=1.0), learning_rate
    return specify(optax.sgd, learning_rate=number_as_data("learning_rate", learning_rate)), None


def _check_schedule(schedule: Any) -> None:
    """Raises SettingError unless a learning-rate schedule returns a number for a number of server steps."""
    built = schedule.build() if isinstance(schedule, Specification) else schedule
    require(
        callable(built), "learning_rate", schedule, "a number, or a schedule: a function of the server step"
    )
    try:
        rate = jax.eval_shape(built, jnp.int32(0))
        fits = rate.shape == () and jnp.issubdtype(rate.dtype, jnp.number)
        kind = f"{rate.dtype} {rate.shape}"
    except Exception as error:
        fits, kind = False, f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"
    allowed = "a number for a server step that JAX traces"
    require(fits, "what the schedule learning_rate returns", kind, allowed)


def check_steps(local_steps: int | str | None, local_epochs: int | None) -> None:
    """Raises SettingError for two lengths of a trip, or one below 1."""
    require(
        local_steps is None or local_epochs is None,
        "local_steps and local_epochs",
        (local_steps, local_epochs),
        "not both given",
    )
    if isinstance(local_steps, str):
        choose("local_steps", local_steps, {SCHEDULED: None})
        return
    for name, value in (("local_steps", local_steps), ("local_epochs", local_epochs)):
        if value is not None:
            whole_number(name, value, 1)
            remedy = "A trip cannot be interrupted, and tells nothing before its end."
            require(value <= MOST_STEPS_OF_A_TRIP, name, value, f"at most {MOST_STEPS_OF_A_TRIP:,}", remedy)


def check_batches(batch_size: int, learning_rate_normalization: bool) -> None:
    """Raises SettingError for an impossible batch size, or one without which a batch is never short."""
    fits = is_whole_number(batch_size) and 0 <= batch_size < 2**31
    require(
        fits, "batch_size", batch_size, "a whole number of at least 1, or 0 for a client's whole data set"
    )
    require(
        batch_size > 0 or not learning_rate_normalization,
        "learning_rate_normalization",
        learning_rate_normalization,
        "False where batch_size is 0: a whole data set is never a short batch",
    )
