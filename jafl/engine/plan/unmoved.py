"""Parameters that an optimizer or a model leaves as they are: the noise of a private run would move them."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from jafl.base.errors import require
from jafl.base.jaxpr_dependence import dependences
from jafl.data import Federation
from jafl.models import Model
from jafl.models.freezing import paths
from jafl.privacy.private import report_of
from jafl.records import Params
from jafl.specifications import Specification, as_specification

# An optimizer that leaves a parameter as it is in its first steps, whatever the gradients, leaves it for ever.
STEPS = 8


def check_all_are_moved(
    rule: Any,
    client_work: Specification,
    server_optimizer: Specification,
    federation: Federation,
    params: Params,
) -> None:
    """Raises SettingError where a private rule would add noise to parameters that are never trained.

    It names such parameters, and what leaves them as they are. The rule is that of its schedule; ``params`` [*P] may
    be shapes.
    """
    report = report_of(rule)
    if report is None or not report.noise_deviation > 0:
        return
    work = client_work.arguments
    without = [False] * len(jax.tree.leaves(params))
    # With an L2 term each parameter has a gradient, whether the loss reads it or not.
    if work.get("l2") is None:
        without = without_gradient(client_work.build().model, federation, params)
    for name, optimizer in (("optimizer", work.get("optimizer")), ("server_optimizer", server_optimizer)):
        if optimizer is None:
            continue
        # Zeros for the clients' optimizer alone: what the server's receives has the noise in every entry.
        names = unmoved(as_specification(optimizer), params, without if name == "optimizer" else None)
        require(
            not names,
            f"what {name} leaves as it is",
            names[:6],
            "nothing in a private run: its noise would move what is not trained",
            f"Freeze it through the model: model, params = jafl.Model(module).freeze(params, {names[:6]}).",
        )


def without_gradient(model: Model, federation: Federation, params: Params) -> list[bool]:
    """For each parameter, whether its gradient is the same whatever the examples and parameters are."""
    x, y = (
        jax.ShapeDtypeStruct((2, *array.shape[1:]), jax.dtypes.canonicalize_dtype(array.dtype))
        for array in (federation.x, federation.y)
    )
    # The traced function answers for all numbers: a gradient that happens to be 0 somewhere is still one.
    gradient = jax.grad(lambda params, x, y: jnp.sum(model.losses(params, x, y)))
    return [not read for read in jax.tree.leaves(dependences(gradient, params, x, y), is_leaf=_is_set)]


def unmoved(optimizer: Specification, params: Params, without: list[bool] | None = None) -> list[str]:
    """The paths of the parameters that an optimizer leaves as they are, whatever their gradients are.

    [] where it leaves all of them, as with a learning rate of 0. params: [*P], or their shapes. without: for each,
    whether its gradient is always 0.
    """
    # SGD treats all parameters in one way: it need not be compiled to know that.
    if optimizer.factory is optax.sgd and not any(without or ()):
        return []
    shapes = tuple((leaf.shape, jnp.dtype(leaf.dtype)) for leaf in jax.tree.leaves(params))
    zeros = tuple(without or [False] * len(shapes))
    moved = jax.device_get(_moved(optimizer, jax.tree.structure(params), shapes, zeros))
    return [path for path, one in zip(paths(params), moved, strict=True) if not one] if any(moved) else []


def _any_moved(optimizer: Specification, structure: Any, shapes: tuple, zeros: tuple[bool, ...]) -> Any:
    """[P] bool: whether any of the first steps changes each parameter; gradients are random, or 0."""
    built = optimizer.build()

    def random_leaves(key: jax.Array) -> list[jax.Array]:
        keys = jax.random.split(key, len(shapes))
        return [
            jax.random.normal(one, shape).astype(dtype)
            for one, (shape, dtype) in zip(keys, shapes, strict=True)
        ]

    params = jax.tree.unflatten(structure, random_leaves(jax.random.key(0)))

    def step(state: Any, key: jax.Array) -> tuple[Any, Any]:
        # Random ones have no zeros, so what does not move is left by the optimizer itself.
        gradients = [
            jnp.zeros_like(leaf) if zero else leaf
            for leaf, zero in zip(random_leaves(key), zeros, strict=True)
        ]
        updates, state = built.update(jax.tree.unflatten(structure, gradients), state, params)
        return state, jnp.stack([jnp.any(leaf != 0) for leaf in jax.tree.leaves(updates)])

    _, changed = jax.lax.scan(step, built.init(params), jax.random.split(jax.random.key(1), STEPS))
    return jnp.any(changed, axis=0)


_moved = jax.jit(_any_moved, static_argnums=(1, 2, 3))


def _is_set(node: Any) -> bool:
    return isinstance(node, frozenset)
