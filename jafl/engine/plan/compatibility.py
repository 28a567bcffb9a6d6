"""Whether the parts of an experiment fit each other, said on the host, before anything runs."""

import warnings
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jafl.base.errors import SettingError, choose, refusal, require, shown
from jafl.base.precision import check_precision
from jafl.base.random_keys import check_draws_by_keys
from jafl.clients.optimizer_checks import check_server_optimizer
from jafl.clients.records import MOST_STEPS_OF_A_TRIP, ClientWork
from jafl.data import Federation
from jafl.engine.loop import client_memory
from jafl.engine.loop.server_steps import Carry
from jafl.engine.plan.run import Run
from jafl.models import Model
from jafl.models.network import explain
from jafl.models.networks import Functions
from jafl.models.tasks import as_task, check_labels, check_values
from jafl.privacy.private import report_of
from jafl.records import EventSchedule, Params, Rule
from jafl.records.histories import EVALUATION_COLUMNS, check_column
from jafl.specifications import Specification, as_rule, as_specification


def check_types(federation: Any, client_work: Any, rule: Any) -> None:
    """Raises SettingError where an argument is not of the kind that it must be."""
    made_by = "jafl.federate(source, partition) or jafl.Federation.from_arrays"
    if isinstance(federation, Mapping):
        made_by = "jafl.Federation.from_clients({client: (x, y)})"
    remedy = f"Make one with {made_by}."
    require(isinstance(federation, Federation), "federation", federation, "a jafl.Federation", remedy)
    # Built before it is looked at: a specification is a call that says nothing of its result.
    built = client_work.build() if isinstance(client_work, Specification) else client_work
    require(isinstance(built, ClientWork), "client_work", client_work, "what jafl.client_work returns")
    as_rule(rule)


# What has passed ``check_states_of_optimizers``. It traces both optimizers several times, which takes as long as a
# short run; the runs of a sweep differ in numbers and draws, which decide nothing there.
_PASSED: dict[Any, None] = {}
_MOST_PASSED = 32


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
    kind = structure, kinds, pairs.tobytes(), run.schedule.num_steps, config.jax_enable_x64
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


def check_fit(
    schedule: EventSchedule, federation: Federation, rule: Rule, model: Model, params: Params
) -> None:
    """Raises SettingError where schedule, federation, rule and model do not fit each other."""
    require(
        schedule.num_clients == federation.num_clients,
        "the schedule's num_clients",
        schedule.num_clients,
        f"the federation's number of clients, {federation.num_clients}",
    )
    if rule.check_schedule:
        rule.check_schedule(schedule)
    _check_steps(schedule, rule)
    _check_model(federation, model, params)
    if rule.check_model:
        rule.check_model(params)


def check_compression(work: ClientWork, rule: Specification) -> None:
    """Raises SettingError where updates are compressed that a rule clips or masks, the rule of its schedule."""
    by = "jafl.private" if report_of(rule) else "jafl.secure" if rule.build().rounding else None
    if work.compression is not None and by:
        remedy = (
            "What a client keeps of its earlier updates is outside the account of its privacy."
            if by == "jafl.private"
            else "Masked updates are sent in whole numbers of their own, one for each parameter."
        )
        require(False, "compression", work.compression, f"None for a rule of {by}", remedy)


def check_exchange(work: ClientWork, rule: Rule, params: Params) -> None:
    """Raises SettingError where rule and client work do not suit each other, or a client's state cannot be held.

    params: [*P] the initial ones, or their shapes.
    """
    own, wanted = work.correction, rule.correction
    if own != wanted:
        remedy = (
            f'Make it with jafl.client_work(..., correction="{wanted}").'
            if wanted
            else f"Leave it out, or take the rule that is made for it, such as jafl.rules.{own}()."
        )
        require(False, "the client work's correction", own, f"{wanted!r}, that of the rule", remedy)
    shapes = work.state_shapes(params)
    if shapes is None or work.state is None:
        return
    precision = work.state.precision
    choose("the precision of the clients' state", precision, dict.fromkeys(client_memory.PRECISIONS))
    for path, leaf in jax.tree_util.tree_leaves_with_path(shapes):
        is_float = jnp.issubdtype(leaf.dtype, jnp.floating)
        fits = is_float or (precision == "full" and jnp.issubdtype(leaf.dtype, jnp.integer))
        name = f"the type of what a client keeps at {jax.tree_util.keystr(path)}"
        require(fits, name, str(leaf.dtype), "a floating type, or an integer one in full precision")
    if rule.remembers:
        name, allowed = (
            "the precision of the clients' state",
            f"{rule.memory_precision!r}, as the rule's memory",
        )
        remedy = "What rule and client work store for a client lies in one row."
        require(precision == rule.memory_precision, name, precision, allowed, remedy)


def check_optimizers(client_work: Any, server_optimizer: Any, params: Params) -> None:
    """Raises SettingError for an optimizer that makes no step from a gradient, its state and the parameters alone."""
    own = client_work.arguments.get("optimizer") if isinstance(client_work, Specification) else None
    for setting, optimizer in (("optimizer", own), ("server_optimizer", server_optimizer)):
        if optimizer is not None:
            _check_optimizer(setting, as_specification(optimizer), params)


def _check_optimizer(setting: str, optimizer: Specification, params: Params) -> None:
    try:
        stepped = _stepped.eval_shape(optimizer, params)
        stepped_form, params_form = (repr(jax.tree.structure(tree)) for tree in (stepped, params))
        reason = "" if stepped_form == params_form else "its step is of another form"
    except SettingError:
        raise
    except Exception as error:
        # Any error: each of optax's optimizers that lacks an argument fails in its own way.
        said = next(iter(str(error).strip().splitlines()), "")
        reason = f"{type(error).__name__}: {said}".rstrip(".")
    if reason:
        raise SettingError(
            f"{setting} is {_optimizer_name(optimizer)}, but must be an optimizer that makes a step from a gradient, "
            f"its state and the parameters alone ({reason}). Clients and server have no more to give it: none that "
            "searches along a line or reads the loss (lbfgs, polyak_sgd, reduce_on_plateau). Take optax.adam, for "
            "example, or a schedule for the rate.",
            setting=setting,
        )


def _optimizer_name(optimizer: Specification) -> str:
    """What was specified; of an optimizer that was passed as it is, the function of optax that made it."""
    value = optimizer.arguments.get("value")
    if isinstance(value, optax.GradientTransformation):
        return f"one of {value.update.__qualname__.partition('.')[0]}"
    return shown(optimizer, 200)


# Optimizers whose parameters are not the model that they are for, by the type of their state, and why.
_OTHER_MODELS = {
    "ScheduleFreeState": "the model to evaluate is schedule_free_eval_params of its state, not the parameters",
    "SAMState": "it moves the parameters to where it only looks, and there a trip or the run may end",
}


@jax.jit
def _stepped(optimizer: Specification, params: Params) -> Params:
    built = optimizer.build()
    if not isinstance(built, optax.GradientTransformation):
        raise refusal("what the optimizer's factory returns", built, "an optax optimizer")
    state = built.init(params)
    # Whole states, and not their arrays: only the class says what else the optimizer means.
    parts = jax.tree.leaves(state, is_leaf=lambda part: type(part).__name__ in _OTHER_MODELS)
    for part in parts:
        if reason := _OTHER_MODELS.get(type(part).__name__):
            raise ValueError(reason)
    return built.update(params, state, params)[0]


def check_model_precision(model: Model, platform: str) -> None:
    """Raises SettingError where the devices of a platform lack the model's ``matmul_precision``."""
    # Of devices that are here: a plan may be meant for others, of which only the platform is known.
    here = jax.local_devices()[0]
    known = getattr(here, "compute_capability", None) if here.platform == platform else None
    check_precision(model.matmul_precision, platform, known)


def _check_steps(schedule: EventSchedule, rule: Rule) -> None:
    """Raises SettingError unless every server step applies as many trips as the rule needs."""
    sizes = np.diff(schedule.step_offsets)
    if rule.initial_round:
        require(
            sizes[0] == schedule.num_clients,
            "initial_round",
            False,
            "True for this rule: every client trains at the initial model before the first server step",
        )
        first = np.unique(schedule.client[: sizes[0]]).size
        allowed = f"all {schedule.num_clients}, once each, for this rule"
        require(first == sizes[0], "the number of clients in the initial round", first, allowed)
        # A round of all clients is larger than a buffer, by design: the buffer's size is that of all later steps.
        sizes = sizes[1:]
    if rule.buffer_size is not None:
        _check_sizes(sizes, rule.buffer_size)
    # ``initial``: a schedule may have no step beside that round.
    smallest = int(sizes.min(initial=1))
    require(
        smallest >= 1 or rule.empty_steps,
        "the smallest number of trips per server step",
        smallest,
        "at least 1 for this rule",
        _about_empty_steps(schedule) if smallest < 1 else "",
    )


def _about_empty_steps(schedule: EventSchedule) -> str:
    """How many server steps apply no trip, why, and what to do."""
    # Rounds leave nobody under way at the end; with steps by the clock somebody is, but for those who wait.
    by_clock = len(schedule.inflight_client) > 0
    void, empty = 0 if by_clock else len(schedule.void_steps), len(schedule.empty_steps)
    parts, remedies = [], []
    if void:
        parts.append(f"{void:,} are void, since fewer than min_reports clients reported")
        remedies += ["raise the deadline", "lower min_reports"]
    # They are empty for another reason, and have another remedy.
    if empty > void:
        parts.append(f"in {empty - void:,} no {'trip arrived' if by_clock else 'client took part'}")
        remedies.append("raise step_every" if by_clock else "raise cohort_size or participation")
    rule = "take a rule that divides by the expected size of a cohort, fedavg(divide_by=cohort_size)"
    causes = " and ".join(parts)
    remedy = ", ".join([*remedies, f"or {rule}"])
    return f"Of {schedule.num_steps:,} server steps {causes}: {remedy}."


def _check_sizes(sizes: np.ndarray, only: int) -> None:
    """Raises SettingError unless all server steps, of ``sizes`` trips, have the ``only`` size of their rule."""
    allowed = f"{only}, the only number of trips per server step that this rule is defined for"
    others = sizes[sizes != only]
    if len(others) == 0:
        return
    size, name, remedy = int(others[0]), "buffer_size", ""
    # Only some steps differ, so it is not the buffer's size: an option of the schedule has changed them.
    if len(others) < len(sizes):
        name = "the number of trips in a server step"
        waits = "A server that waits for stale trips (too_stale='wait' or 'interrupt')"
        remedy = f"{waits} makes larger steps: drop them instead."
        if size < only:
            remedy = "A buffer that is flushed (flush_after) makes smaller steps: leave it to fill."
    require(False, name, size, allowed, remedy)


def _check_model(federation: Federation, model: Model, params: Params) -> None:
    """Raises SettingError if the model cannot be applied to the federation's examples, or trained on its labels."""
    _check_real(params)
    # Two examples: of one, a mean over the batch might pass for a loss per example.
    x, y = (
        jax.ShapeDtypeStruct((2, *array.shape[1:]), jax.dtypes.canonicalize_dtype(array.dtype))
        for array in (federation.x, federation.y)
    )
    name = model.network.name
    try:
        outputs = _outputs.eval_shape(model, params, x)
        check_labels(as_task(model.task), federation.y, outputs, federation.num_classes, model.output)
        check_values(as_task(model.task), federation)
        key = jax.random.key(0) if model.draws(params, x) else None  # as in training
        losses = _losses.eval_shape(model, params, x, y, key)
        # jafl's own models draw by keys alone: for them the check, which traces the model again, is spared.
        if _has_parts_of_the_user(model):
            where = "of a random stream: make_rng of flax, nnx.Rngs, or the argument key"
            check_draws_by_keys("model", model.loss_sums, params, x, y, key, keeps_key=where)
    except SettingError:
        raise
    except Exception as error:
        # Shapes that do not fit are the usual cause, and say more than the error that they lead to.
        differences = "; ".join(model.shape_mismatches(params, federation.x)[:3])
        reason = f"{differences})." if differences else explain(error)
        raise SettingError(
            f"The model {name} cannot be applied to the parameters and examples of shape "
            f"{x.shape[1:]} ({reason} Make the parameters with its init, on examples like the federation's.",
            setting="model",
        ) from error
    _check_losses(losses)
    # Also where it ran: shapes that broadcast compute something, but not what was meant.
    if unlike := model.shape_mismatches(params, federation.x):
        raise SettingError(
            f"The parameters do not fit the model {name}: {'; '.join(unlike[:3])}. Make them with its init.",
            setting="params",
        )
    _tell_of_float32(params)


def _has_parts_of_the_user(model: Model) -> bool:
    """Whether another package than jafl made the model's module or its loss."""
    loss = model.loss_per_example
    rooms = [type(model.module).__module__, getattr(loss, "__module__", None) or type(loss).__module__]
    # A pair of functions lies in a class of jafl's, and is the user's all the same.
    return isinstance(model.module, Functions) or not all(room.startswith("jafl.") for room in rooms)


def _check_losses(losses: tuple[Any, Any]) -> None:
    """Raises SettingError unless a loss gave a number for each of 2 examples, or its sums and counts for each."""
    shapes = tuple(getattr(part, "shape", None) for part in losses if part is not None)
    require(
        all(shape == (2,) for shape in shapes),
        "the shape of the losses of 2 examples",
        shapes[0] if len(shapes) == 1 else shapes,
        "(2,), one number per example and not their mean, or two such arrays (sums, counts)",
    )


def _check_real(params: Params) -> None:
    """Raises SettingError for parameters along whose gradient nobody can step.

    Of complex ones JAX's gradient is the conjugate of the direction of ascent, and norms, clipping, noise and the
    clients' memory are meant for real numbers.
    """
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        kind = jax.dtypes.canonicalize_dtype(leaf.dtype) if hasattr(leaf, "dtype") else type(leaf).__name__
        require(
            hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.floating),
            f"the type of the parameter {jax.tree_util.keystr(path)}",
            str(kind),
            "a real floating type",
            "Keep the real and the imaginary part of a complex parameter as two real ones, and join them in the "
            "model; values within the model may be complex.",
        )


# Jitted, so that JAX traces a model once for all runs of a sweep that train it.
@jax.jit
def _outputs(model: Model, params: Params, x: jax.Array) -> Any:
    return model.apply(params, x)


@jax.jit
def _losses(model: Model, params: Params, x: jax.Array, y: jax.Array, key: jax.Array | None) -> Any:
    return model.loss_sums(params, x, y, key)


def _tell_of_float32(params: Params) -> None:
    """Warns where JAX may compute in float64, and the model does not."""
    kinds = {np.dtype(leaf.dtype) for leaf in jax.tree.leaves(params) if hasattr(leaf, "dtype")}
    # A warning and no error: nothing is wrong with a model in float32 while other programs compute in float64.
    config: Any = jax.config
    if config.jax_enable_x64 and kinds == {np.dtype(np.float32)}:
        warnings.warn(
            "jax_enable_x64 is set, but the model's parameters are float32, and stay so. To compute in float64, "
            "train one of jafl's models on examples in float64, such as those of source.in_precision('float64'); a "
            "module of your own needs param_dtype=float64, too.",
            stacklevel=2,
        )


def check_reports(carry: Carry, evaluators: Mapping[str, Any] | None = None) -> None:
    """Raises SettingError for the name of a rule's report or of an evaluator that is taken.

    So it does for a report of a trip that is not a number.
    """
    for name in evaluators or ():
        check_column(name, (*carry.trip_reports, *carry.step_reports), "the name of an evaluator")
    # An evaluation has one column for each name, be it a report of trips or of steps.
    taken = {*EVALUATION_COLUMNS, *set(carry.trip_reports) & set(carry.step_reports)}
    for name in (*carry.trip_reports, *carry.step_reports):
        # Evaluators of the federation's splits record under these, and so does the training loss.
        free = name not in taken and not name.startswith(("test_", "validation_", "train_"))
        require(free, "the name of a rule's report", name, "one that nothing else bears")
    for name, rows in carry.trip_reports.items():
        require(rows.ndim == 1, f"the shape of the trips' report {name!r}", rows.shape[1:], "(), one number")
