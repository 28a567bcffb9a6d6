"""Random keys in what optimizers and rules keep: each trip, and each run, draws from keys of its own.

An optimizer makes its state again from its own arguments, a key among them: so without more it draws the same numbers
in every trip of every client. Keys of the new kind are known by their type. Words of the old kind (uint32) are a key
where the function that reads the state makes one of them (``jax.random`` does, of all that it is given).
"""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal

from jafl.base.errors import require
from jafl.base.jaxpr_dependence import inner_programs, operands

# Distinguishes what the server draws from the trips' words, whose first number is a client.
_SERVER = 2**31 + 401
# JAX's primitives whose first operand is the key that random numbers are drawn from.
DRAWS = ("random_bits", "random_gamma", "threefry2x32", "rng_bit_generator")


def is_key(leaf: Any) -> bool:
    """Whether an array holds random keys of the new kind."""
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def as_words(leaf: Any) -> Any:
    """The words of random keys of the new kind; anything else as it is."""
    return jax.random.key_data(leaf) if is_key(leaf) else leaf


def server_words(key: jax.Array) -> jax.Array:
    """[2] uint32: the random words of a run with this key, for the keys that its rule and server optimizer hold."""
    return jax.random.bits(jax.random.fold_in(key, jnp.uint32(_SERVER)), (2,), jnp.uint32)


def with_own_keys(reads: Callable[[Any], Any], state: Any, words: jax.Array) -> Any:
    """``state`` with each random key k in it replaced by ``fold_in(fold_in(k, words[0]), words[1])``.

    reads: what is done with the state: it tells which words are a key. words: [2] uint32, of a trip or of a run.

    Examples:
      >>> words = jnp.uint32([3, 4])
      >>> state = {"key": jax.random.key(0), "count": jnp.int32(0)}
      >>> with_own_keys(lambda state: jax.random.normal(state["key"]), state, words)["count"]
      Array(0, dtype=int32)
    """
    leaves, structure = jax.tree.flatten(state)
    keys = {number for number, leaf in enumerate(leaves) if is_key(leaf)}
    if any(_may_be_words(leaf) for leaf in leaves):
        wrapped = frozenset().union(*(read for _, read in operands(reads, ("random_wrap",), state)))
        keys |= {number for number in wrapped if _may_be_words(leaves[number])}
    folded = [_folded(leaf, words) if number in keys else leaf for number, leaf in enumerate(leaves)]
    return jax.tree.unflatten(structure, folded)


def draws_without_own_keys(reads: Callable[[Any], Any], state: Any) -> bool:
    """Whether a function of a state draws random numbers from another key than those that the state holds."""

    def with_words(words: jax.Array, state: Any) -> Any:
        return reads(with_own_keys(reads, state, words))

    draws = operands(with_words, DRAWS, jax.ShapeDtypeStruct((2,), jnp.uint32), state)
    return any(0 not in read for _, read in draws)


def check_draws_by_keys(setting: str, function: Callable[..., Any], *arguments: Any, keeps_key: str) -> None:
    """Refuses a function that draws numbers of NumPy or Python: JAX would draw them once, while it traces it.

    It is traced twice, and the constants of the two programs are compared. keeps_key: where a key for such draws is.
    """
    first, second = (jax.make_jaxpr(lambda *args: function(*args))(*arguments) for _ in range(2))
    here, there = list(_constants(first)), list(_constants(second))
    same = len(here) == len(there) and all(
        np.array_equal(one, other, equal_nan=True) for one, other in zip(here, there, strict=True)
    )
    require(
        same,
        f"what {setting} computes with",
        "other constants each time that JAX traces it",
        "the same ones",
        "It draws numbers of NumPy or Python, perhaps: JAX would draw them once, the same for all trips and steps. "
        f"Draw them by jax.random, from a key {keeps_key}.",
    )


def _constants(traced: Any) -> Iterator[np.ndarray]:
    """The constants of a traced program, in the order of its operations, but for keys."""
    for value in getattr(traced, "consts", ()):
        if not is_key(value):
            yield np.asarray(value)
    for equation in getattr(traced, "jaxpr", traced).eqns:
        yield from (np.asarray(read.val) for read in equation.invars if isinstance(read, Literal))
        for inner in inner_programs(equation.params):
            yield from _constants(inner)


def _may_be_words(leaf: Any) -> bool:
    """Whether an array has the type and the shape of keys of the old kind."""
    size = jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0))).shape[0]
    return bool(jnp.ndim(leaf) and jnp.shape(leaf)[-1] == size and jnp.result_type(leaf) == jnp.uint32)


def _folded(leaf: jax.Array, words: jax.Array) -> jax.Array:
    if not is_key(leaf):
        return jax.random.key_data(_folded(jax.random.wrap_key_data(leaf), words))
    fold = lambda key: jax.random.fold_in(jax.random.fold_in(key, words[0]), words[1])  # noqa: E731
    for _ in range(leaf.ndim):
        fold = jax.vmap(fold)
    return fold(leaf)
