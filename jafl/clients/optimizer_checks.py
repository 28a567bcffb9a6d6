"""What an optimizer does that a run would make wrong without a word: said on the host, before anything runs."""

import warnings
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jafl.base.errors import require
from jafl.base.random_keys import check_draws_by_keys, draws_without_own_keys
from jafl.records import ArrayTree, Params

# Which field of optax's states counts the gradients that no step of the model has taken in yet.
_GATHERED = {
    optax.MultiStepsState: "mini_step",
    optax.ApplyEvery: "count",
}
# The types of optax's states that count the steps of a schedule.
_SCHEDULED = ("ScaleByScheduleState", "WrappedScheduleState")


def check_client_optimizer(optimizer: Any, params: Params, steps: np.ndarray) -> None:
    """Refuses an optimizer with which trips cannot be right.

    Args:
      optimizer: an optax transformation.
      params: [*P] the model, or its shapes.
      steps: [D] the numbers of local steps after which a trip ends, and with it the optimizer's state.

    Raises:
      SettingError: if its updates have other shapes than the model; if it draws random numbers from a key that its
        state does not hold, which would be the same in every trip; if what it has gathered would be lost at the end
        of a trip.
    """
    params = _shapes(params)
    state = _check(optimizer, params, "optimizer")
    if state is None:
        return
    require(
        not draws_without_own_keys(_update(optimizer, params), state),
        "the key of the optimizer's random numbers",
        "outside of its state",
        "in its state: else all trips of all clients draw the same numbers",
        "Return a key from init, and split it in update, as optax.add_noise does. What is to be the same in all "
        "trips is drawn once, outside of update.",
    )
    for number, kind, left in _gathered(optimizer, params, steps):
        require(
            False,
            "the number of local steps of a trip",
            number,
            f"one after which nothing is left of {kind}; here {left} of them would be lost at the end of the trip",
            "Take local_steps that are a multiple of its period (local_epochs gives clients of unequal sizes unequal "
            "numbers of steps), keep_optimizer_state=True, or a larger batch_size in its place.",
        )


def warn_of_schedule(optimizer: Any, params: Params, steps: np.ndarray) -> None:
    """Warns where an optimizer whose state is new at each trip holds a schedule that is longer than all trips.

    Args:
      optimizer: an optax transformation that can make a step.
      params: [*P] the model, or its shapes.
      steps: [D] the numbers of local steps that trips have.
    """
    longest = int(np.max(steps, initial=0))
    if longest and _goes_on_after(optimizer, params, longest):
        warnings.warn(
            "The schedule in the optimizer begins anew at each trip and counts its local steps, of which trips have "
            f"at most {longest}: it gets no further. For a rate that follows the server steps give the schedule as "
            "learning_rate, without an optimizer; keep_optimizer_state=True counts on from trip to trip.",
            stacklevel=2,
        )


def check_server_optimizer(optimizer: Any, params: Params, server_steps: int) -> bool:
    """Refuses a server optimizer whose updates do not fit, and warns where its last steps are lost.

    Args:
      optimizer: an optax transformation.
      params: [*P] the model, or its shapes.
      server_steps: of the whole run.

    Returns:
      Whether it warned.

    Raises:
      SettingError: if its updates have other shapes than the model.
    """
    params = _shapes(params)
    if _check(optimizer, params, "server_optimizer") is None:
        return False
    gathered = _gathered(optimizer, params, [server_steps])
    for number, kind, left in gathered:
        warnings.warn(
            f"After the last of {number} server steps, the server optimizer still holds {left} that no step has "
            f"applied ({kind}): the final model lacks them. Take a number of steps after which nothing is left.",
            stacklevel=2,
        )
    return bool(gathered)


def _shapes(params: Params) -> Params:
    """The shapes of a model, in the types that JAX computes in."""

    def shape(leaf: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(np.shape(leaf), jax.dtypes.canonicalize_dtype(jnp.result_type(leaf)))

    return jax.tree.map(shape, params)


def _update(optimizer: Any, params: Params) -> Callable[[ArrayTree], Any]:
    """What a step does with the optimizer's state, for a gradient like ``params``, which may be shapes."""

    def update(state: ArrayTree) -> Any:
        like = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), params)
        return optimizer.update(like, state, like)

    return update


def _check(optimizer: Any, params: Params, name: str) -> ArrayTree | None:
    """The shapes of the state of an optimizer; None if it cannot make a step here, which the run itself will say."""
    try:
        state = jax.eval_shape(optimizer.init, params)
        updates, _ = jax.eval_shape(_update(optimizer, params), state)
    except Exception:
        return None
    wrong = [
        (jax.tree_util.keystr(path), ours.shape, theirs.shape)
        for (path, ours), theirs in zip(
            jax.tree_util.tree_leaves_with_path(params), jax.tree.leaves(updates), strict=False
        )
        if ours.shape != theirs.shape
    ]
    for path, ours, theirs in wrong:
        require(False, f"the shape of the {name}'s update of {path}", theirs, f"{ours}, the parameter's")
    check_draws_by_keys(
        name, _update(optimizer, params), state, keeps_key="in its state, as optax.add_noise does"
    )
    return state


def _records(state: ArrayTree, kinds: tuple[type, ...]) -> list[Any]:
    """The records of these kinds in an optimizer's state, those of wrapped optimizers included."""
    leaves = jax.tree.leaves(state, is_leaf=lambda part: isinstance(part, kinds))
    return [leaf for leaf in leaves if isinstance(leaf, kinds)]


def _goes_on_after(optimizer: Any, params: Params, steps: int) -> bool:
    """Whether a schedule in the optimizer makes other updates after so many steps than in the last of them."""

    def is_schedule(part: Any) -> bool:
        return type(part).__name__ in _SCHEDULED

    small = shrink_to_one_entry(params)
    if not any(map(is_schedule, jax.tree.leaves(jax.eval_shape(optimizer.init, small), is_leaf=is_schedule))):
        return False
    state = optimizer.init(small)

    @jax.jit
    @jax.vmap
    def update(count: jax.Array) -> ArrayTree:
        def counted(part: Any) -> Any:
            return part._replace(count=count) if is_schedule(part) else part

        updates: ArrayTree = optimizer.update(
            small, jax.tree.map(counted, state, is_leaf=is_schedule), small
        )[0]
        return updates

    later = jax.tree.leaves(update(steps - 1 + np.append(0, 2 ** np.arange(20, dtype=np.int32))))
    return any(not np.allclose(rows, rows[:1], rtol=1e-6, atol=0) for rows in map(np.asarray, later))


def shrink_to_one_entry(params: Params) -> Params:
    """A model like ``params``, of one entry an array."""
    held = jax.dtypes.canonicalize_dtype  # JAX would warn of ones in float64 where it has none
    return jax.tree.map(lambda leaf: jnp.ones((1,) * len(leaf.shape), held(leaf.dtype)), params)


def _gathered(optimizer: Any, params: Params, steps: Iterable[int]) -> list[tuple[int, str, int]]:
    """(steps, what gathers, how many it holds) of each number of steps after which something is left.

    The optimizer makes the steps on a model of one entry an array: what it counts does not depend on gradients.
    """
    small = shrink_to_one_entry(params)
    kinds = tuple(_GATHERED)
    if not _records(jax.eval_shape(optimizer.init, small), kinds):
        return []

    @jax.jit
    def go_on(state: ArrayTree, number: int) -> ArrayTree:
        def step(_: Any, state: ArrayTree) -> ArrayTree:
            after: ArrayTree = optimizer.update(small, state, small)[1]
            return after

        return jax.lax.fori_loop(0, number, step, state)

    left, done = [], 0
    state = jax.tree.map(jnp.asarray, optimizer.init(small))
    for number in sorted(int(number) for number in steps):
        state, done = go_on(state, number - done), number
        for record in _records(state, kinds):
            count = int(getattr(record, _GATHERED[type(record)]))
            left += [(number, type(record).__name__.removesuffix("State"), count)] if count else []
    return left
