"""Minibatches: which examples a local step uses, its random words, and the sums of its losses and gradients.

Each epoch shuffles a client's examples by a key that depends on (seed, client, trip, epoch) alone, and cuts them into
minibatches of ``batch_size``; the last one of an epoch is short where the size does not divide the client's number of
examples. A client with fewer examples than a batch has one short batch per epoch. Short batches are masked: they
count only the examples that are there.
"""

import jax
import jax.numpy as jnp
import numpy as np

from jafl.base.errors import SettingError
from jafl.base.keyed_shuffle import shuffled
from jafl.base.random_keys import THREEFRY, as_threefry
from jafl.clients.records import ClientData
from jafl.models import Model
from jafl.models.network import explain
from jafl.records import Gradients, Params

# Minibatches of up to so many examples are computed at once.
LARGEST_BATCH_AT_ONCE = 128
# Larger ones, and those without a fixed size, so many at a time: small clients do not pay for the rows of large ones.
ROWS_AT_ONCE = 32

# Distinguishes the keys of dropout from all other uses of a trip's random words.
_DROPOUT = 301


def trip_words(key: jax.Array, client: jax.Array, trip: jax.Array) -> jax.Array:
    """[J, 2] uint32: random words per trip that depend on the seed, the client and its trip alone.

    key: a JAX random key; ``client``, ``trip``: [J] int32.
    """

    key = as_threefry(key)

    def words(client, trip):
        return jax.random.bits(jax.random.fold_in(jax.random.fold_in(key, client), trip), (2,), jnp.uint32)

    return jax.vmap(words)(client, trip)


def minibatches(
    key: jax.Array, client: int, trip: int, *, num_examples: int, batch_size: int, steps: int
) -> list[np.ndarray]:
    """Which of its own examples a client uses in each step of a trip, to check a run by hand.

    Args:
      key: the run's.
      client: its number.
      trip: how many trips the client has started before this one.
      num_examples: examples that the client holds.
      batch_size: the client work's.
      steps: local steps of the trip to return.

    Returns:
      ``steps`` arrays of positions below ``num_examples``.
    """
    words = _jitted_trip_words(key, np.array([client], np.int32), np.array([trip], np.int32))[0]
    size = batch_size or num_examples
    per_epoch = -(-num_examples // size)
    places = np.arange(num_examples, dtype=np.int32)
    chosen = []
    for step in range(steps):
        epoch, batch = divmod(step, per_epoch)
        if batch_size == 0:
            order = places
        else:
            order = np.asarray(_jitted_shuffled(places, np.int32(num_examples), words, np.int32(epoch)))
        chosen.append(order[batch * size : (batch + 1) * size])
    return chosen


def dropout_key(words: jax.Array, step: jax.Array | int, part: jax.Array | int = 0) -> jax.Array:
    """The random key of a model's dropout, and of its other random streams, in one local step of a trip.

    words: [2] uint32, from ``trip_words``. step: [] the number of the local step in its trip, from 0 on. part: [] the
    number of the part in its minibatch, from 0 on, where one is computed ``ROWS_AT_ONCE`` examples at a time.
    """
    key = jax.random.wrap_key_data(words, impl=THREEFRY)
    return jax.random.fold_in(jax.random.fold_in(jax.random.fold_in(key, _DROPOUT), step), part)


_jitted_trip_words, _jitted_shuffled = jax.jit(trip_words), jax.jit(shuffled)


def take_rows(array: jax.Array, numbers: jax.Array) -> jax.Array:
    """[B, ...] rows of ``array``, which has them all: each check of a number would be another operation."""
    return array.at[numbers].get(mode="promise_in_bounds", wrap_negative_indices=False)


def rows_at_once(batch_size: int) -> int:
    """How many examples of a minibatch of this size are computed at once; ``batch_size`` 0: all of a client's."""
    return batch_size if 0 < batch_size <= LARGEST_BATCH_AT_ONCE else ROWS_AT_ONCE


def sum_and_gradient(
    model: Model, params: Params, rows: tuple, key: jax.Array | None
) -> tuple[tuple[jax.Array, jax.Array | None], Gradients]:
    """((summed loss over the rows that are present, what it counts), its gradient [*P]); see ``Model.loss_sums``.

    rows: (x [B, ...], y [B, ...], present [B] bool). key: of the model's dropout and other random streams, or None.
    """
    x, y, present = rows

    def total(params):
        sums, counts = model.loss_sums(params, x, y, key)
        return jnp.sum(jnp.where(present, sums, 0)), _sum_present(counts, present)

    with model.products():
        try:
            return jax.value_and_grad(total, has_aux=True)(params)
        except SettingError:
            raise
        except (NotImplementedError, TypeError, ValueError) as error:
            # The loss itself was traced before training: so it is the derivative that JAX does not have.
            reason = f"The loss of the model {model.network.name} has no gradient ({explain(error)}"
            raise SettingError(reason, setting="model") from error


def _sum_present(counts: jax.Array | None, present: jax.Array) -> jax.Array | None:
    return None if counts is None else jnp.sum(jnp.where(present, counts, 0))


def loss_zeros(model: Model, params: Params, data: ClientData) -> tuple[jax.Array, jax.Array | None]:
    """Zeros of the types of a summed loss and of its count, None where each example counts 1."""
    shapes = jax.eval_shape(lambda: model.loss_sums(params, data.x[:1], data.y[:1]))
    sums, counts = jax.tree.map(lambda of: jnp.zeros(of.shape[1:], of.dtype), shapes)
    return sums, _sum_present(counts, jnp.asarray(True))
