"""Whether the optimizers and the local steps of a run are right for it, and of a kind that the engine can call."""

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jafl.base.errors import SettingError, is_number, refusal, require, shown
from jafl.clients.argument_checks import optimizer_remedy
from jafl.clients.optimizer_checks import check_server_optimizer, shrink_to_one_entry
from jafl.clients.records import MOST_STEPS_OF_A_TRIP, ClientWork
from jafl.engine.plan.run import Run
from jafl.models.tasks import in_jax
from jafl.records import EventSchedule, Params
from jafl.specifications import Specification, as_specification

# What has passed ``check_states_of_optimizers``. It traces both optimizers several times, which takes as long as a
# short run; the runs of a sweep differ in numbers and draws, which decide nothing there.
_PASSED: dict[Any, None] = {}
_MOST_PASSED = 32
# Optimizers whose parameters are not the model that they are for, by the type of their state, and why.
_OTHER_MODELS = {
    "ScheduleFreeState": "the model to evaluate is schedule_free_eval_params of its state, not the parameters",
    "SAMState": "it moves the parameters to where it only looks, and there a trip or the run may end",
}
_NO_MORE_TO_GIVE = (
    "Clients and server have no more to give it: none that searches along a line or reads the loss (lbfgs, "
    "polyak_sgd, reduce_on_plateau). Take optax.adam, for example, or a schedule for the rate."
)


class _OtherModel(ValueError):
    """Raised for an optimizer of ``_OTHER_MODELS``, with the reason."""


def check_states_of_optimizers(run: Run) -> None:
    """Raises SettingError for an optimizer of clients or server with which the run cannot be right."""
    # Such a run is refused later, by name; here its clients would have no examples to count.
    if run.schedule.num_clients != run.federation.num_clients:
        return  # refused later, by name
    work = as_specification(run.client_work).build()
    if isinstance(work, ClientWork):
        given = as_specification(run.client_work).arguments.get("local_steps")
        _check_local_steps(run.schedule, work, given)
    # Only of clients that train: how many examples the others hold decides nothing.
    trains = run.federation.num_examples[run.schedule.client]
    steps = run.schedule.local_steps if isinstance(work, ClientWork) and work.reads_local_steps else None
    optimizer = run.server_optimizer_or_sgd()
    check_optimizers(run.client_work, optimizer, run.params)
    given = as_specification(run.client_work).arguments
    rates = {
        "learning_rate": given.get("schedule"),
        "the server optimizer's learning_rate": as_specification(optimizer).arguments.get("learning_rate"),
    }
    for name, rate in rates.items():
        _check_rates(name, rate, run.schedule.num_steps)
    own = as_specification(given.get("optimizer")).arguments.get("learning_rate")
    for name, number in {**rates, "the optimizer's learning_rate": own}.items():
        require(not is_number(number) or not number < 0, name, number, "at least 0", "Below 0 it climbs.")
    kind = _kind(run, optimizer, trains, steps)
    if kind in _PASSED:
        return
    if isinstance(work, ClientWork) and work.check:
        arguments = [np.unique(trains)] if steps is None else [trains, steps]
        work.check(run.params, *arguments)
    warned = check_server_optimizer(optimizer.build(), run.params, run.schedule.num_steps)
    if kind is not None and not warned:
        while len(_PASSED) >= _MOST_PASSED:
            del _PASSED[next(iter(_PASSED))]
        _PASSED[kind] = None


def _check_rates(name: str, schedule: Any, server_steps: int) -> None:
    """Refuses a schedule of learning rates, by server steps, of which one that the run takes is below 0.

    By more than rounding: a schedule that ends at 0 may come out a little below. Numbers are checked elsewhere; a
    schedule that cannot be asked for many steps at once is not asked.
    """
    try:
        built = schedule.build() if isinstance(schedule, Specification) else schedule
        rates = np.asarray(jax.vmap(built)(jnp.arange(server_steps))) if callable(built) else np.zeros(1)
    except Exception:
        return
    wrong = np.flatnonzero(rates < -1e-6 * np.abs(rates).max())
    if wrong.size:
        allowed = f"at least 0 in each of the {server_steps:,} server steps"
        remedy = "Below 0 it climbs: give the schedule a number of steps, and an end, that fit the run."
        require(False, f"{name} in server step {wrong[0]}", float(rates[wrong[0]]), allowed, remedy)


def _kind(run: Run, optimizer: Any, trains: np.ndarray, steps: Any) -> Any:
    """Equal for runs of which ``check_states_of_optimizers`` says the same; None if it has to look.

    Args:
      trains: [J] how many examples the client of each trip holds.
      steps: [J] the local steps of each trip; None where the client work says them.
    """
    calls = run.client_work, optimizer
    if not all(isinstance(call, Specification) for call in calls):
        return None  # an object of the user's own may be changed, or compared by its arrays
    leaves, structure = jax.tree.flatten((calls, run.params))
    kinds = tuple((getattr(leaf, "shape", ()), str(jnp.result_type(leaf))) for leaf in leaves)
    pairs = np.unique(trains) if steps is None else np.unique(np.stack([trains, steps]), axis=1)
    config: Any = jax.config
    kind = (
        structure,
        kinds,
        pairs.tobytes(),
        run.schedule.num_steps,
        config.jax_enable_x64,
        config.jax_default_prng_impl,
    )
    try:
        hash(kind)
    except TypeError:
        return None
    return kind


def _check_local_steps(schedule: EventSchedule, work: ClientWork, given: Any) -> None:
    """Raises SettingError unless schedule and client work agree on who says how many local steps trips have."""
    steps = schedule.local_steps
    if not work.reads_local_steps:
        remedy = "The schedule says how many each trip makes, and they have their part in its times."
        require(steps is None, "the client work's local_steps", given, "'scheduled' here", remedy)
        return
    remedy = (
        "Make one with local_steps=..., jafl.asynchronous(local_steps=10, ...) for example, "
        "or give client_work a number."
    )
    has_them = steps is not None
    allowed = "given where the client work's local_steps are 'scheduled'"
    require(has_them, "the schedule's local_steps", None, allowed, remedy)
    steps = np.asarray(steps)
    kind, trips = (steps.dtype.kind, steps.shape), schedule.num_trips
    fits = kind[0] in "iu" and kind[1] == (trips,)
    found = f"{steps.dtype} {steps.shape}"
    require(fits, "the schedule's local_steps", found, f"whole numbers, one for each of the {trips} trips")
    low, high = int(steps.min(initial=0)), int(steps.max(initial=0))
    allowed = f"from 0 to {MOST_STEPS_OF_A_TRIP:,}"
    require(low >= 0, "the schedule's local_steps", low, allowed)
    require(high <= MOST_STEPS_OF_A_TRIP, "the schedule's local_steps", high, allowed)
    remedy = "No trip would change the model."
    require(high > 0, "the schedule's local_steps", "0 in every trip", "above 0 in some trip", remedy)


def check_optimizers(client_work: Any, server_optimizer: Any, params: Params) -> None:
    """Raises SettingError for an optimizer that makes no step from a gradient, its state and the parameters alone."""
    own = client_work.arguments.get("optimizer") if isinstance(client_work, Specification) else None
    for setting, optimizer in (("optimizer", own), ("server_optimizer", server_optimizer)):
        if optimizer is not None:
            _check_optimizer(setting, as_specification(optimizer), params)


def _check_optimizer(setting: str, optimizer: Specification, params: Params) -> None:
    remedy = _NO_MORE_TO_GIVE
    try:
        with in_jax(setting, optimizer, _optimizer_name(optimizer)):
            stepped = _stepped.eval_shape(optimizer, params)
        stepped_form, params_form = (repr(jax.tree.structure(tree)) for tree in (stepped, params))
        reason = "" if stepped_form == params_form else "its step is of another form"
    except SettingError:
        raise
    except Exception as error:
        # Any error: each of optax's optimizers that lacks an argument fails in its own way.
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:400]}".rstrip(".")
        if isinstance(error, _OtherModel):
            reason = str(error)
        elif isinstance(error, ValueError):
            remedy = (
                "A mask or labels in it have the form of the parameters, or are a function that makes that form from "
                f"them, and each label names a part. The parameters: {shown(jax.tree.map(np.shape, params), 300)}."
            )
        elif isinstance(error, TypeError) and "argument" not in str(error):
            remedy = "Its rate and its other numbers are single numbers, or schedules of the number of steps."
    if reason:
        raise SettingError(
            f"{setting} is {_optimizer_name(optimizer)}, but must be an optimizer that makes a step from a gradient, "
            f"its state and the parameters alone ({reason}). {remedy}",
            setting=setting,
        )
    arguments = optimizer.arguments
    if not is_number(arguments.get("learning_rate")):  # the sign of which is checked as that of a setting
        _warn_of_climbing(setting, optimizer, params)


def _warn_of_climbing(setting: str, optimizer: Specification, params: Params) -> None:
    """Warns where steps of an optimizer go along the gradient and not against it, as optax's parts without rates do.

    Of the steps from a gradient and from its opposite, so that noise, decay and what else is added drops out.
    """
    small, built = shrink_to_one_entry(params), optimizer.build()
    try:
        state = built.init(small)
        ones = jax.tree.map(jnp.ones_like, small)
        along, against = (
            built.update(gradient, state, small)[0] for gradient in (ones, jax.tree.map(jnp.negative, ones))
        )
        rises = jax.tree.map(
            lambda ours, theirs: float(jnp.sum(jnp.float32(ours) - jnp.float32(theirs))), along, against
        )
    except Exception:  # it may hold numbers in the shapes of the model itself, and is then not asked
        return
    climbing = [
        jax.tree_util.keystr(path) for path, rise in jax.tree_util.tree_leaves_with_path(rises) if rise > 0
    ]
    if climbing:
        warnings.warn(
            f"The {setting} climbs: it moves {', '.join(climbing[:5])} along the gradient, not against it. optax "
            "adds what an optimizer returns, and optax.masked returns the gradient itself where its mask is False. "
            "Give it a rate above 0; what is to stay as it is belongs under optax.set_to_zero in "
            "optax.multi_transform, or is frozen by Model.freeze.",
            stacklevel=2,
        )


def _optimizer_name(optimizer: Specification) -> str:
    """What was specified; of an optimizer that was passed as it is, the function of optax that made it."""
    value = optimizer.arguments.get("value")
    if isinstance(value, optax.GradientTransformation):
        return f"one of {value.update.__qualname__.partition('.')[0]}"
    return shown(optimizer, 200)


@jax.jit
def _stepped(optimizer: Specification, params: Params) -> Params:
    built = optimizer.build()
    if not isinstance(built, optax.GradientTransformation):
        raise refusal(
            "what the optimizer's factory returns", built, "an optax optimizer", optimizer_remedy(built)
        )
    state = built.init(params)
    # Whole states, and not their arrays: only the class says what else the optimizer means.
    parts = jax.tree.leaves(state, is_leaf=lambda part: type(part).__name__ in _OTHER_MODELS)
    for part in parts:
        if reason := _OTHER_MODELS.get(type(part).__name__):
            raise _OtherModel(reason)
    return built.update(params, state, params)[0]
