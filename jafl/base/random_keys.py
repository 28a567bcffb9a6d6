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
from jax.experimental.xla_metadata import set_xla_metadata
from jax.extend.core import Literal

from jafl.base.errors import require
from jafl.base.jaxpr_dependence import inner_programs, operands

# Distinguishes what the server draws from the trips' words, whose first number is a client.
_SERVER = 2**31 + 401
# The kind of keys that jafl draws from: under ``jax.vmap`` other kinds draw other numbers than one by one, so that
# trips side by side would not be the trips of an event-by-event simulation.
THREEFRY = "threefry2x32"
# JAX's options, beside a key's kind, on which it depends what is drawn from a key or for a seed; JAX's defaults.
OPTIONS_OF_RANDOM_NUMBERS = {"jax_threefry_partitionable": True, "jax_random_seed_offset": 0}
# JAX's primitives whose first operand is the key that random numbers are drawn from.
DRAWS = ("random_bits", "random_gamma", "threefry2x32", "rng_bit_generator")


def options_of_random_numbers() -> dict[str, Any]:
    """{name: value} of JAX's options on which random numbers depend, of those that are not JAX's defaults."""
    values = {name: getattr(jax.config, name) for name in OPTIONS_OF_RANDOM_NUMBERS}
    return {name: value for name, value in values.items() if value != OPTIONS_OF_RANDOM_NUMBERS[name]}


def is_key(leaf: Any) -> bool:
    """Whether an array holds random keys of the new kind."""
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def as_words(leaf: Any) -> Any:
    """The words of random keys of the new kind; anything else as it is."""
    return jax.random.key_data(leaf) if is_key(leaf) else leaf


def threefry_key(seed: int) -> jax.Array:
    """The random key of a seed, of the kind that jafl draws from, whatever JAX's default is."""
    return jax.random.key(seed, impl=THREEFRY)


def as_threefry(key: jax.Array) -> jax.Array:
    """The key itself if it is of the kind that jafl draws from, else one that is made of all of its words."""
    if jax.random.key_impl(key) == THREEFRY:
        return key
    words = jax.random.key_data(key)
    made = jax.random.wrap_key_data(words[:2], impl=THREEFRY)
    for number in range(2, len(words)):
        made = jax.random.fold_in(made, words[number])
    return made


def check_key(key: Any) -> None:
    """Raises SettingError unless ``key`` is one JAX random key, of the new kind or of the old one."""
    dtype = getattr(key, "dtype", None)
    # Both kinds of JAX's keys are still in use: those with a type of their own, and words of uint32.
    new = is_key(key) and key.shape == ()
    old = dtype == np.uint32 and len(key.shape) == 1
    require(new or old, "key", key, "one JAX random key", "Make one with jax.random.key(0).")
    if old:
        default = jax.random.key(0)
        size = len(jax.random.key_data(default))
        kind = f"those of a key of JAX's default kind, {jax.random.key_impl(default)}"
        remedy = "Make one with jax.random.key(0), which says of which kind it is."
        require(len(key) == size, "the number of words of key", len(key), f"{size}, {kind}", remedy)


def server_words(key: jax.Array) -> jax.Array:
    """[2] uint32: the random words of a run with this key, for the keys that its rule and server optimizer hold."""
    return jax.random.bits(jax.random.fold_in(as_threefry(key), jnp.uint32(_SERVER)), (2,), jnp.uint32)


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

    So it does for one that draws from a key of another kind than jafl's, or is given one.

    It is traced twice, and what the two programs compute with is compared. keeps_key: where a key for such draws is.
    """
    first, second = (_traced_anew(name, function, *arguments) for name in ("first", "second"))
    threefry = jax.eval_shape(lambda: threefry_key(0)).dtype
    for kind in _kinds_of_keys(first):
        require(
            kind == threefry,
            f"the kind of a random key of {setting}",
            str(kind),
            f"{str(threefry)!r}, {THREEFRY}",
            "Trips that are computed side by side draw other numbers from other kinds than one by one. Make it with "
            f'jax.random.key(seed, impl="{THREEFRY}"), or leave jax_default_prng_impl as it is.',
        )
    here, there = list(_constants(first)), list(_constants(second))
    same = len(here) == len(there) and all(map(_equal, here, there))
    require(
        same,
        f"what {setting} computes with",
        "other constants each time that JAX traces it",
        "the same ones",
        "It draws numbers of NumPy or Python, perhaps: JAX would draw them once, the same for all trips and steps. "
        f"Draw them by jax.random, from a key {keeps_key}.",
    )


def _traced_anew(name: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """The jaxpr of a function, of which nothing comes from JAX's cache, not even of functions with ``jax.jit``."""
    # Metadata belong to what JAX knows a trace by, and change nothing that is computed.
    with set_xla_metadata(jafl_trace=name):
        return jax.make_jaxpr(lambda *args: function(*args))(*arguments)


def _kinds_of_keys(traced: Any) -> Iterator[Any]:
    """The types of all random keys of a traced program."""
    jaxpr = getattr(traced, "jaxpr", traced)
    variables = [
        *jaxpr.invars,
        *jaxpr.constvars,
        *(made for equation in jaxpr.eqns for made in equation.outvars),
    ]
    for variable in variables:
        if is_key(variable.aval):
            yield variable.aval.dtype
    for equation in jaxpr.eqns:
        for inner in inner_programs(equation.params):
            yield from _kinds_of_keys(inner)


def _constants(traced: Any) -> Iterator[Any]:
    """The constants of a traced program and the settings of its operations, in their order."""
    for value in getattr(traced, "consts", ()):
        yield np.asarray(as_words(value))
    for equation in getattr(traced, "jaxpr", traced).eqns:
        yield equation.primitive.name
        yield from (np.asarray(read.val) for read in equation.invars if isinstance(read, Literal))
        # Where an array is cut or turned, for example; functions among them are others each time.
        for value in equation.params.values():
            parts = value if isinstance(value, tuple) else (value,)
            if all(isinstance(part, (int, float, str)) for part in parts):
                yield repr(value)
        for inner in inner_programs(equation.params):
            yield from _constants(inner)


def _equal(one: Any, other: Any) -> bool:
    """Whether two constants, or two settings in words, are the same."""
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        # The bytes, among which NaN is itself.
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    return isinstance(one, str) and isinstance(other, str) and one == other


def _may_be_words(leaf: Any) -> bool:
    """Whether an array has the type and the shape of keys of the old kind, as jafl takes them."""
    return bool(jnp.ndim(leaf) and jnp.shape(leaf)[-1] == 2 and jnp.result_type(leaf) == jnp.uint32)


def _folded(leaf: jax.Array, words: jax.Array) -> jax.Array:
    if not is_key(leaf):
        return jax.random.key_data(_folded(jax.random.wrap_key_data(leaf, impl=THREEFRY), words))
    fold = lambda key: jax.random.fold_in(jax.random.fold_in(key, words[0]), words[1])  # noqa: E731
    for _ in range(leaf.ndim):
        fold = jax.vmap(fold)
    return fold(leaf)
