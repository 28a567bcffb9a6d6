"""Client work: what one client does between its download and its upload.

A trip is a number of optimizer steps on minibatches of the client's own examples. Each epoch shuffles them
afresh, by a key that depends on (seed, client, trip, epoch) alone, and cuts them into minibatches of
``batch_size``; the last one of an epoch is short where the size does not divide the client's examples. A client
with fewer examples than a batch has one short batch an epoch. Short batches are masked: they count only the
examples that are there.
"""

import math
import numbers
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from jafl.errors import require, whole_number
from jafl.keyed_shuffle import shuffled
from jafl.models import Model
from jafl.specifications import Specification, specification, specify

# Rows that a minibatch without a fixed size is worked through at a time: small clients pay for no more.
ROWS_AT_ONCE = 32
LARGEST_BATCH_AT_ONCE = 128

# Keeps the keys of dropout apart from everything else that a trip's words are for.
_DROPOUT = 301


class ClientData(NamedTuple):
    """Every client's examples on the device: ``x`` [E, ...] and ``y`` [E], each example once; client c holds the
    examples ``indices[offsets[c]:offsets[c + 1]]``; ``indices`` [A] and ``offsets`` [N + 1] are int32."""

    x: Any
    y: Any
    indices: Any
    offsets: Any


class ClientResult(NamedTuple):
    """``update`` [*P]: trained minus downloaded; ``loss`` []: mean over the first minibatch at the downloaded
    model, regularisers left out; ``batch_examples`` [] int32: examples used, each as often as it was used;
    ``local_steps`` [] int32: optimizer steps taken."""

    update: Any
    loss: jax.Array
    batch_examples: jax.Array
    local_steps: jax.Array


class ClientWork(NamedTuple):
    """Local training as a pure function, with the model that it trains.

    train(data, start, client, key) -> ClientResult, for ``start`` [*P], ``client`` [] int32 and the trip's random
    words ``key`` [2] uint32.

    minibatches(num_examples) -> [N], on the host: how many minibatches, or parts of them, clients with so many
    examples [N] train on in a trip, one after the other; None if it is not known.
    """

    train: Callable[[ClientData, Any, jax.Array, jax.Array], ClientResult]
    model: Model
    minibatches: Callable[[np.ndarray], np.ndarray] | None = None


def client_work(
    model: Model,
    *,
    learning_rate: float | None = None,
    optimizer: Specification | optax.GradientTransformation | None = None,
    local_steps: int | None = None,
    local_epochs: int | None = None,
    batch_size: int = 32,
    proximal: float | None = None,
    l2: float | None = None,
    learning_rate_normalization: bool = False,
) -> Specification:
    """Describes local training; the numbers among the arguments are data, so changing them does not recompile.

    Args:
      model: what is trained, with its loss.
      learning_rate: of plain SGD, the default optimizer; or
      optimizer: any optax optimizer, best as ``specify(optax.adam, learning_rate=0.01)``. Its state is new at
        each trip. Exactly one of the two.
      local_steps: minibatch steps per trip (Q), going on to a fresh shuffle when an epoch ends; or
      local_epochs: passes over the client's examples per trip. At most one of the two; 1 step if neither.
      batch_size: examples per minibatch; 0 means the client's whole data set as one batch.
      proximal: FedProx's mu: adds (mu / 2) ||w - w_downloaded||^2 to the loss (Li et al. 2020, equation 2).
      l2: adds (l2 / 2) ||w||^2 over all parameters, biases included.
      learning_rate_normalization: LR-Norm: a step on b < batch_size examples uses learning rate * b / batch_size
        (FedBuff, section 5).

    Raises:
      SettingError: for a number outside its range or two arguments that exclude each other.
    """
    require(
        isinstance(model, Model),
        "model",
        model,
        "a jafl.Model",
        "Write jafl.Model(module) around a Flax one.",
    )
    require(
        (learning_rate is None) != (optimizer is None),
        "learning_rate and optimizer",
        (learning_rate, optimizer),
        "one given and one None",
        "Give the learning rate of plain SGD, or an optimizer of your own.",
    )
    if optimizer is None:
        check_number("learning_rate", learning_rate, minimum=0.0)
        optimizer = specify(optax.sgd, learning_rate=float(learning_rate or 0.0))
    check_optimizer("optimizer", optimizer)
    require(
        local_steps is None or local_epochs is None,
        "local_steps and local_epochs",
        (local_steps, local_epochs),
        "not both given",
    )
    for name, value in (("local_steps", local_steps), ("local_epochs", local_epochs)):
        if value is not None:
            whole_number(name, value, 1)
    fits = isinstance(batch_size, numbers.Integral) and 0 <= batch_size < 2**31
    require(
        fits, "batch_size", batch_size, "a whole number of at least 1, or 0 for a client's whole data set"
    )
    require(
        batch_size > 0 or not learning_rate_normalization,
        "learning_rate_normalization",
        learning_rate_normalization,
        "False where batch_size is 0: a whole data set is never a short batch",
    )
    for name, number in (("proximal", proximal), ("l2", l2)):
        if number is not None:
            check_number(name, number, minimum=0.0)
    return _client_work(
        model,
        optimizer,
        1 if local_steps is None and local_epochs is None else local_steps,
        local_epochs,
        batch_size,
        None if proximal is None else float(proximal),
        None if l2 is None else float(l2),
        learning_rate_normalization,
    )


def trip_words(key: jax.Array, client: jax.Array, trip: jax.Array) -> jax.Array:
    """[J, 2] uint32: random words per trip that depend on the seed, the client and its trip alone.

    key: a JAX random key; ``client``, ``trip``: [J] int32.
    """

    def one(client, trip):
        return jax.random.bits(jax.random.fold_in(jax.random.fold_in(key, client), trip), (2,), jnp.uint32)

    return jax.vmap(one)(client, trip)


def minibatches(
    key: jax.Array, client: int, trip: int, *, num_examples: int, batch_size: int, steps: int
) -> list[np.ndarray]:
    """Which of its own examples a client uses in each step of a trip, to check a run by hand.

    Returns ``steps`` arrays of positions below ``num_examples``; the arguments are those of the run.
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
    """The random key of a model's dropout in one local step of a trip.

    words: [2] uint32, from ``trip_words``. step: [] counts the trip's local steps from 0. part: [] counts from 0,
    in a batch larger than ``LARGEST_BATCH_AT_ONCE`` or without a size, the ``ROWS_AT_ONCE`` examples taken at a time.
    """
    key = jax.random.wrap_key_data(words, impl="threefry2x32")
    return jax.random.fold_in(jax.random.fold_in(jax.random.fold_in(key, _DROPOUT), step), part)


_jitted_trip_words, _jitted_shuffled = jax.jit(trip_words), jax.jit(shuffled)


def check_number(name: str, value: Any, *, minimum: float) -> None:
    """Raises SettingError unless ``value`` is a finite number of at least ``minimum``."""
    fits = isinstance(value, numbers.Real) and math.isfinite(value) and float(value) >= minimum
    require(fits, name, value, f"a finite number, at least {minimum:g}")


def check_optimizer(name: str, optimizer: Any) -> None:
    """Raises SettingError unless ``optimizer`` is an optax optimizer or a specification of one."""
    fits = isinstance(optimizer, (Specification, optax.GradientTransformation))
    require(
        fits, name, optimizer, "an optax optimizer", "Best as jafl.specify(optax.sgd, learning_rate=0.1)."
    )


@specification
def _client_work(
    model, optimizer, local_steps, local_epochs, batch_size, proximal, l2, learning_rate_normalization
) -> ClientWork:
    def train(data: ClientData, start: Any, client: jax.Array, key: jax.Array) -> ClientResult:
        first = data.offsets[client]
        count = data.offsets[client + 1] - first
        size = count if batch_size == 0 else batch_size
        batches_per_epoch = -(-count // size)

        def batch_rows(epoch, begin, rows):
            """Positions ``begin + [0, rows)`` of a shuffled epoch: (x [rows, ...], y [rows], present [rows])."""
            position = begin + jnp.arange(rows, dtype=jnp.int32)
            present = position < count
            if batch_size > 0:  # the order within one batch changes nothing
                position = shuffled(position, count, key, epoch)
            # The barrier keeps the look-up of rows out of the gather of examples, where it would run per feature.
            row = lax.optimization_barrier(data.indices[first + jnp.where(present, position, 0)])
            x = model.augment(data.x[row], key, epoch, begin + jnp.arange(rows, dtype=jnp.int32))
            return x, data.y[row], present

        def keys(step, part):
            return dropout_key(key, step, part) if model.random else None

        def gradient(params, step):
            epoch, batch = step // batches_per_epoch, step % batches_per_epoch
            begin = batch * size
            used = jnp.minimum(size, count - begin)
            if 0 < batch_size <= LARGEST_BATCH_AT_ONCE:
                rows = batch_rows(epoch, begin, batch_size)
                total, slope = _sum_and_gradient(model, params, rows, keys(step, 0))
            else:

                def add_rows(number, sums):
                    rows = batch_rows(epoch, begin + number * ROWS_AT_ONCE, ROWS_AT_ONCE)
                    within = number * ROWS_AT_ONCE + jnp.arange(ROWS_AT_ONCE) < used
                    some = _sum_and_gradient(model, params, (*rows[:2], rows[2] & within), keys(step, number))
                    return jax.tree.map(jnp.add, sums, some)

                empty = jax.tree.map(jnp.zeros_like, (_loss_zero(model, params, data), params))
                total, slope = lax.fori_loop(0, -(-used // ROWS_AT_ONCE), add_rows, empty)
            mean = lambda a: a / used.astype(a.dtype)  # noqa: E731
            slope = jax.tree.map(mean, slope)
            if l2 is not None:
                slope = jax.tree.map(lambda g, w: g + l2 * w, slope, params)
            if proximal is not None:
                slope = jax.tree.map(lambda g, w, w0: g + proximal * (w - w0), slope, params, start)
            return mean(total), slope, used

        def step(number, params, state):
            loss, slope, used = gradient(params, number)
            updates, state = optimizer.update(slope, state, params)
            if learning_rate_normalization:
                updates = jax.tree.map(lambda u: u * (used.astype(u.dtype) / batch_size), updates)
            return updates, state, loss, used

        if local_steps == 1:  # the update as it is: exact, and two passes over the parameters fewer
            updates, _, loss, used = step(jnp.int32(0), start, optimizer.init(start))
            return ClientResult(updates, loss, used, jnp.int32(1))

        def another(number, carry):
            params, state, first_loss, seen = carry
            updates, state, loss, used = step(number, params, state)
            first_loss = jnp.where(number == 0, loss, first_loss)
            return optax.apply_updates(params, updates), state, first_loss, seen + used

        steps = local_steps if local_epochs is None else local_epochs * batches_per_epoch
        untrained = (start, optimizer.init(start), _loss_zero(model, start, data), jnp.int32(0))
        trained, _, loss, seen = lax.fori_loop(0, steps, another, untrained)
        update = jax.tree.map(jnp.subtract, trained, start)
        return ClientResult(update, loss, seen, jnp.asarray(steps, jnp.int32))

    def minibatches(num_examples: np.ndarray) -> np.ndarray:
        count = np.maximum(np.asarray(num_examples, np.int64), 1)
        size = count if batch_size == 0 else np.full_like(count, batch_size)
        per_epoch = -(-count // size)
        steps = np.full_like(count, local_steps) if local_epochs is None else local_epochs * per_epoch
        if 0 < batch_size <= LARGEST_BATCH_AT_ONCE:
            return steps
        epochs, begun = np.divmod(steps, per_epoch)
        whole, last = -(-size // ROWS_AT_ONCE), -(-(count - (per_epoch - 1) * size) // ROWS_AT_ONCE)
        return epochs * ((per_epoch - 1) * whole + last) + begun * whole

    return ClientWork(train, model, minibatches)


def _sum_and_gradient(model: Model, params: Any, rows: tuple, key: jax.Array | None) -> tuple[jax.Array, Any]:
    """The summed loss over the rows that are present, and its gradient [*P]."""
    x, y, present = rows

    def total(params):
        return jnp.sum(jnp.where(present, model.losses(params, x, y, key), 0))

    return jax.value_and_grad(total)(params)


def _loss_zero(model: Model, params: Any, data: ClientData) -> jax.Array:
    """A zero of the loss's dtype."""
    loss = jax.eval_shape(lambda: model.losses(params, data.x[:1], data.y[:1]))
    return jnp.zeros((), loss.dtype)
