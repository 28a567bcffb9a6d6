"""Whether the arguments of ``jafl.simulate`` are of the kinds that they must be, said before anything is made."""

import os
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import numpy as np

from jafl.base.errors import check_callback, require, true_or_false
from jafl.base.given_arrays import as_array
from jafl.base.paths import check_folder
from jafl.base.random_keys import check_key, is_key
from jafl.engine.plan.compatibility import check_types
from jafl.engine.plan.run import Run
from jafl.records import ExecutionPlan, check_schedule
from jafl.records.stopping import StopWhen, larger_is_better
from jafl.simulation.checkpoints import Checkpoints


def check_run(run: Any, setting: str = "run") -> None:
    """Raises SettingError where a part of a run is not of the kind that it must be."""
    require(isinstance(run, Run), setting, run, "a jafl.Run")
    # Before anything is planned: an error from deep inside would name no argument of the caller's.
    check_schedule(run.schedule)
    check_types(run.federation, run.client_work, run.rule)
    check_untraced(run)
    check_params(run.params)
    check_key(run.key)
    check_evaluators(run.evaluators)
    check_evaluate_at(run.evaluate_at)
    if run.stop_when is not None:
        StopWhen.parsed(run.stop_when)
    true_or_false("evaluate_clients", run.evaluate_clients)
    if run.keep_best is not None:
        require(
            isinstance(run.keep_best, str), "keep_best", run.keep_best, "the name of a column, as 'test_loss'"
        )
        larger_is_better("keep_best", run.keep_best, run.keep_best)


def check_untraced(run: Run) -> None:
    """Raises SettingError where a part of a run is a value that JAX traces: in ``jax.jit``, ``vmap`` or ``grad``."""
    remedy = (
        "jafl compiles runs itself: call it outside of these. jafl.simulate_many trains several together."
    )
    for name in ("client_work", "rule", "params", "key"):
        leaves = jax.tree.leaves(getattr(run, name))
        traced = any(isinstance(leaf, jax.core.Tracer) for leaf in leaves)
        require(not traced, name, "traced by JAX", "known outside of jax.jit, jax.vmap and jax.grad", remedy)


def with_arrays_on_host(run: Run) -> Run:
    """The run with arrays that the engine could not take as they are on the host, from where it places them itself.

    These are arrays on a mesh of devices, which JAX traces with the mesh's axes and refuses beside those that the
    engine makes, and arrays in float64 that were made while jax_enable_x64 was set, which it no longer is.
    """
    parts = ("client_work", "rule", "server_optimizer", "params", "key")
    return run._replace(**{name: jax.tree.map(_on_host, getattr(run, name)) for name in parts})


def _on_host(leaf: Any) -> Any:
    if not isinstance(leaf, jax.Array) or not leaf.is_fully_addressable:
        return leaf
    if is_key(leaf):
        return leaf.addressable_data(0)
    fits = jax.dtypes.canonicalize_dtype(leaf.dtype) == leaf.dtype
    return leaf if fits and isinstance(leaf.sharding, jax.sharding.SingleDeviceSharding) else np.asarray(leaf)


def check_params(params: Any) -> None:
    """Raises SettingError unless ``params`` are arrays of floats that hold their numbers."""
    remedy = "Make them with model.init(jax.random.key(0), federation.x)."
    leaves = jax.tree.leaves(params)
    require(leaves, "params", params, "the initial parameters, a pytree of arrays", remedy)
    for leaf in leaves:
        # Masked arrays, for example, are arrays, too, and would lose their meaning without a word.
        if isinstance(leaf, np.ndarray):
            as_array("params", leaf)
            order = "this machine's order of bytes, which JAX computes in"
            convert = "Convert them: array.astype(array.dtype.newbyteorder('='))."
            require(leaf.dtype.isnative, "the dtype of params", str(leaf.dtype), order, convert)
        if isinstance(leaf, jax.Array) and leaf.is_deleted():
            given_away = (
                "Copy them, jax.tree.map(jnp.copy, params), before a function to which they are donated."
            )
            require(False, "params", "deleted", "arrays that hold their numbers", given_away)
        is_array = isinstance(leaf, (np.ndarray, np.generic, jax.Array))
        fits = (
            is_array and not is_key(leaf) and np.dtype(leaf.dtype).kind in "fcV"
        )  # V: bfloat16 and its like
        require(fits, "params", leaf, "the initial parameters, a pytree of arrays of floats", remedy)


def check_evaluators(evaluators: Any) -> None:
    """Raises SettingError unless ``evaluators`` are None or functions by name."""
    if evaluators is None:
        return
    allowed = "{name: function of params that returns {metric: number}}"
    fits = isinstance(evaluators, Mapping) and all(map(callable, evaluators.values()))
    require(fits, "evaluators", evaluators, allowed)
    for name, evaluator in evaluators.items():
        check_callback(f"evaluators[{name!r}]", evaluator, "params")


def check_evaluate_at(steps: Any) -> None:
    """Raises SettingError unless ``steps`` are None or several."""
    remedy = "range(0, 1000, 50) is every fiftieth of 1,000."
    # A text is a series of characters, and never what was meant.
    fits = steps is None or (isinstance(steps, Iterable) and not isinstance(steps, (str, bytes)))
    require(fits, "evaluate_at", steps, "a list of server steps", remedy)


def check_options(plan: Any, together: Any) -> None:
    """Raises SettingError unless ``plan`` is None or a plan, and ``together`` None, True or False."""
    # Not only what is true: a number of devices in its place would pass as True.
    require(together is None or isinstance(together, bool), "together", together, "True, False or None")
    fits = plan is None or isinstance(plan, ExecutionPlan)
    require(fits, "plan", plan, "what jafl.trip_by_trip or jafl.in_waves returns")


def as_checkpoints(checkpoints: Any) -> Checkpoints | None:
    """The checkpoints themselves, or those in the folder of this name."""
    if checkpoints is None:
        return None
    # A folder is all that most runs need to say.
    own = Checkpoints(checkpoints) if isinstance(checkpoints, (str, os.PathLike)) else checkpoints
    fits = isinstance(own, Checkpoints)
    require(fits, "checkpoints", checkpoints, "a folder, or what jafl.Checkpoints(folder) returns")
    if own.every != 0:
        check_folder(own.folder, "checkpoints")
    return own
