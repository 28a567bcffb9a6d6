"""Local training: the optimizer steps of one trip, with corrections, compression and what a client keeps."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from jafl.base.keyed_shuffle import shuffled
from jafl.base.random_keys import with_own_keys
from jafl.clients.compression import Compressor, Feedback, with_error_feedback
from jafl.clients.corrections import Correction
from jafl.clients.minibatch_gradients import (
    LARGEST_BATCH_AT_ONCE,
    ROWS_AT_ONCE,
    dropout_key,
    loss_zeros,
    sum_and_gradient,
    take_rows,
)
from jafl.clients.optimizer_checks import check_client_optimizer, warn_of_schedule
from jafl.clients.records import SCHEDULED, ClientData, ClientResult, zeros_like_model
from jafl.models import Model
from jafl.models.model import safe_mean
from jafl.records import ArrayTree, Gradients, Params, Updates


class _Kept(NamedTuple):
    """What a client keeps that keeps its optimizer's state: that, and what its ``correction`` keeps [*P], or None.

    In the place of the latter is what error feedback keeps [*P]: no work has both.
    """

    correction: Any
    optimizer: Any


class _Trip(NamedTuple):
    """What the local steps of one trip share.

    Attributes:
      data, start, key: as in ``ClientWork.train``.
      first, examples: [] int32: where the client's examples begin in ``data.indices``, and how many there are.
      size: [] examples per minibatch.
      batches_per_epoch: [] int32.
      term: what the correction shares among the steps, or None.
    """

    data: ClientData
    start: Params
    key: jax.Array
    first: jax.Array
    examples: jax.Array
    size: Any
    batches_per_epoch: jax.Array
    term: Any = None


def _or_else(condition: jax.Array, tree: Any, other: Any = None) -> Any:
    """``tree`` where ``condition`` [] is true, else ``other``, of the same arrays, or zeros."""
    other = jax.tree.map(jnp.zeros_like, tree) if other is None else other
    return jax.tree.map(lambda new, old: jnp.where(condition, new, old), tree, other)


@dataclasses.dataclass(frozen=True, eq=False)
class LocalTraining:
    """Local training with the options of ``client_work``; its floats may be traced."""

    model: Model
    optimizer: optax.GradientTransformation
    local_steps: int | str | None
    local_epochs: int | None
    batch_size: int
    proximal: Any
    l2: Any
    learning_rate_normalization: bool
    schedule: Callable[[jax.Array], Any] | None = None
    keeps_optimizer: bool = False
    correction: Correction | None = None
    compression: Compressor | None = None
    error_feedback: bool = False

    @property
    def whole_batches(self) -> bool:
        """Whether a minibatch is computed at once, not ``ROWS_AT_ONCE`` examples at a time."""
        return 0 < self.batch_size <= LARGEST_BATCH_AT_ONCE

    @property
    def feedback(self) -> Feedback | None:
        """How updates are compressed if clients keep something for that, else None."""
        if self.error_feedback:
            return with_error_feedback
        return self.correction.feedback if self.correction else None

    @property
    def begins_elsewhere(self) -> bool:
        """Whether training does not begin with the downloaded model."""
        return self.correction is not None and self.correction.first is not None

    @property
    def is_scheduled(self) -> bool:
        """Whether each trip makes the local steps that the schedule says."""
        return self.local_steps == SCHEDULED

    def train(self, data: ClientData, start: Params, client: jax.Array, key: jax.Array) -> ClientResult:
        """One trip; see ``ClientWork.train``."""
        if self.correction and self.correction.start:
            start = self.correction.start(data.broadcast)
        trip = self.trip(data, start, client, key)
        # The update as it is: exact, and two passes over the parameters fewer.
        if self.local_steps == 1 and not self.begins_elsewhere:
            updates, state, loss, used, _, gradient = self._step(
                trip, jnp.int32(0), start, self._first_state(trip)
            )
            sent, left = self._compressed(trip, updates)
            kept = self._kept(trip, state, gradient, updates, left)
            return ClientResult(sent, loss, used, jnp.int32(1), *kept)

        def step(number, carry):
            params, state, first_loss, counted, seen, total = carry
            updates, state, loss, used, count, gradient = self._step(trip, number, params, state)
            total = None if total is None else jax.tree.map(jnp.add, total, gradient)
            first_loss = jnp.where(number == 0 if counted is None else counted == 0, loss, first_loss)
            counted = jax.tree.map(jnp.add, counted, count)
            return optax.apply_updates(params, updates), state, first_loss, counted, seen + used, total

        steps = self.steps(trip.batches_per_epoch, data.local_steps)
        # One at least: a trip without steps has a loss, too, that of the model which it has downloaded.
        rounds = jnp.maximum(steps, 1) if self.is_scheduled else steps
        total = zeros_like_model(start) if self.correction and self.correction.needs_mean else None
        begin = start
        if self.correction and self.correction.first and data.state is not None:
            begin = self.correction.first(self._own(data).correction, data.broadcast, start)
        first_loss, first_state = loss_zeros(self.model, start, data), self._first_state(trip)
        untrained = (begin, first_state, *first_loss, jnp.int32(0), total)
        trained, state, loss, _, seen, total = lax.fori_loop(0, rounds, step, untrained)
        any_steps = None
        if self.is_scheduled:
            any_steps = steps > 0
            trained, seen = _or_else(any_steps, trained, begin), _or_else(any_steps, seen)
            state = _or_else(any_steps, state, first_state)
        update = jax.tree.map(jnp.subtract, trained, start)
        mean = None
        if total is not None:
            mean = jax.tree.map(lambda leaf: leaf / jnp.asarray(rounds, leaf.dtype), total)
        if self.begins_elsewhere:
            any_steps = None  # what is sent and kept has changed without local steps, too
        sent, left = self._compressed(trip, update, any_steps)
        kept = self._kept(trip, state, mean, update, left, any_steps)
        return ClientResult(sent, loss, seen, jnp.asarray(steps, jnp.int32), *kept)

    def first_kept(self, params: Params) -> "_Kept":
        """What a client keeps before its first trip, if it keeps its optimizer's state."""
        has_both = self.feedback or (self.correction and self.correction.keeps)
        return _Kept(self.first_own(params) if has_both else None, self.optimizer.init(params))

    def first_own(self, params: Params) -> ArrayTree:
        """What a client keeps for its correction or its compression before its first trip."""
        initial = self.correction.initial if self.correction else None
        return (initial or zeros_like_model)(params)

    def _own(self, data: ClientData) -> "_Kept":
        """What the client has kept, by what it is for."""
        return data.state if self.keeps_optimizer else _Kept(data.state, None)

    def _kept(
        self,
        trip: _Trip,
        state: ArrayTree,
        mean: Gradients | None,
        update: Updates,
        left: Updates | None,
        any_steps: jax.Array | None = None,
    ) -> tuple[Any, Any]:
        """(sent, state) of ``ClientResult``.

        state: of the optimizer. mean: of the trip's gradients. left: what error feedback keeps. any_steps: [] bool,
        whether the trip has made local steps, without which it changes nothing; None: it has.
        """
        sent, own = None, left
        if self.correction and self.correction.end:
            before = self._own(trip.data).correction
            sent, own = self.correction.end(before, trip.data.broadcast, mean, update, trip.start)
            if any_steps is not None:
                sent, own = _or_else(any_steps, sent), _or_else(any_steps, own, before)
        return sent, _Kept(own, state) if self.keeps_optimizer else own

    def _compressed(
        self, trip: _Trip, update: Updates, any_steps: jax.Array | None = None
    ) -> tuple[Updates, Updates | None]:
        """(what the server decodes, what the client keeps for the next or None); ``any_steps`` as of ``_kept``."""
        if self.compression is None:
            return update, None
        before = left = None
        if self.feedback is None:
            sent = self.compression.compress(update, trip.key)
        else:
            # As for an optimizer's state: who measures single trips has no state for them.
            has_state = trip.data.state is not None
            before = self._own(trip.data).correction if has_state else zeros_like_model(update)
            sent, left = self.feedback(self.compression, update, before, trip.key)
        if any_steps is not None:
            sent = _or_else(any_steps, sent)
            left = None if left is None else _or_else(any_steps, left, before)  # a model may be a bare array
        return sent, left

    def check(self, params: Params, num_examples: np.ndarray, local_steps: np.ndarray | None = None) -> None:
        """Raises SettingError for an optimizer that cannot be right here; see ``ClientWork.check``."""
        if self.compression is not None and self.feedback:
            self.compression.check_error_feedback(sum(leaf.size for leaf in jax.tree.leaves(params)))
        per_epoch = -(-num_examples // self.batch_size) if self.batch_size else np.ones_like(num_examples)
        steps = np.unique(np.zeros_like(per_epoch) + self.steps(np.maximum(per_epoch, 1), local_steps))
        # What an optimizer has gathered at the end of a trip is not lost where its client keeps it.
        check_client_optimizer(self.optimizer, params, steps[:0] if self.keeps_optimizer else steps)
        if not self.keeps_optimizer:
            warn_of_schedule(self.optimizer, params, steps)

    def minibatches(self, num_examples: np.ndarray, local_steps: np.ndarray | None = None) -> np.ndarray:
        """[N] for clients with so many examples [N]; see ``ClientWork.minibatches``."""
        count = np.maximum(np.asarray(num_examples, np.int64), 1)
        size = count if self.batch_size == 0 else np.full_like(count, self.batch_size)
        per_epoch = -(-count // size)
        steps = np.zeros_like(count) + self.steps(per_epoch, local_steps)
        if self.is_scheduled:
            steps = np.maximum(steps, 1)  # as many as ``train`` computes
        if self.whole_batches:
            return steps
        epochs, begun = np.divmod(steps, per_epoch)
        parts_of_whole, parts_of_last = (
            -(-examples // ROWS_AT_ONCE) for examples in (size, count - (per_epoch - 1) * size)
        )
        return epochs * ((per_epoch - 1) * parts_of_whole + parts_of_last) + begun * parts_of_whole

    def steps(self, batches_per_epoch: Any, scheduled: Any) -> Any:
        """Local steps of a trip, for one client or an array of them; ``scheduled``: what the schedule says."""
        if self.is_scheduled:
            return scheduled
        return self.local_steps if self.local_epochs is None else self.local_epochs * batches_per_epoch

    def trip(self, data: ClientData, start: Params, client: jax.Array, key: jax.Array) -> _Trip:
        first, end = data.own_offsets(client)
        count = end - first
        size = count if self.batch_size == 0 else self.batch_size
        term = None
        if self.correction and self.correction.begin:
            term = self.correction.begin(self._own(data).correction, data.broadcast)
        return _Trip(data, start, key, first, count, size, -(-count // size), term)

    def _first_state(self, trip: _Trip) -> ArrayTree:
        """The optimizer's state before the first step, its random keys the trip's own."""

        def reads(state: ArrayTree) -> Any:
            return self.optimizer.update(trip.start, state, trip.start)

        # Whoever measures single trips, as a decomposition does, has no state for them: they begin with a new one.
        kept = self.keeps_optimizer and trip.data.state is not None
        own = self._own(trip.data).optimizer if kept else self.optimizer.init(trip.start)
        return with_own_keys(reads, own, trip.key)

    def _step(
        self, trip: _Trip, number: jax.Array, params: Params, state: ArrayTree
    ) -> tuple[Updates, ArrayTree, jax.Array, jax.Array, jax.Array | None, Gradients]:
        """One optimizer step.

        Returns:
          (updates, optimizer state, mean loss, examples used, what the loss counts of them, the gradient before its
          correction).
        """
        gradient, loss, used, count = self.gradient(trip, number, params)
        direction = gradient
        if self.correction and self.correction.direction:
            own = (trip.term, params, trip.start, trip.data.broadcast)
            direction = self.correction.direction(gradient, *own)
        updates, state = self.optimizer.update(direction, state, params)
        if self.schedule is not None:
            assert trip.data.version is not None, "the engine passes the version"
            rate = self.schedule(trip.data.version)
            updates = jax.tree.map(lambda u: u * jnp.asarray(rate, u.dtype), updates)
        if self.learning_rate_normalization:
            updates = jax.tree.map(lambda u: u * (used.astype(u.dtype) / self.batch_size), updates)
        return updates, state, loss, used, count, gradient

    def gradient(
        self, trip: _Trip, step: jax.Array, params: Params
    ) -> tuple[Gradients, jax.Array, jax.Array, jax.Array | None]:
        """A minibatch: its gradient with regularizers, its mean loss without them, its examples and its count."""
        (total, count), gradient, used = self._sums(trip, step, params)
        mean = lambda a: a / used.astype(a.dtype) if count is None else safe_mean(a, count)  # noqa: E731
        gradient = jax.tree.map(mean, gradient)
        if self.l2 is not None:
            gradient = jax.tree.map(lambda g, w: g + self.l2 * w, gradient, params)
        if self.proximal is not None:
            gradient = jax.tree.map(
                lambda g, w, w0: g + self.proximal * (w - w0), gradient, params, trip.start
            )
        return gradient, mean(total), used, count

    def _sums(self, trip: _Trip, step: jax.Array, params: Params) -> tuple[tuple, Gradients, jax.Array]:
        """Sums over a minibatch: its loss with what it counts, the loss's gradient, and how many examples it has."""
        epoch, batch = step // trip.batches_per_epoch, step % trip.batches_per_epoch
        begin = batch * trip.size
        used = jnp.minimum(trip.size, trip.examples - begin)
        if self.whole_batches:
            rows = self._rows(trip, epoch, begin, self.batch_size)
            return *sum_and_gradient(self.model, params, rows, self._dropout_key(trip, step, 0)), used

        def add_part(number, sums):
            x, y, present = self._rows(trip, epoch, begin + number * ROWS_AT_ONCE, ROWS_AT_ONCE)
            within = number * ROWS_AT_ONCE + jnp.arange(ROWS_AT_ONCE) < used
            rows = (x, y, present & within)
            part = sum_and_gradient(self.model, params, rows, self._dropout_key(trip, step, number))
            return jax.tree.map(jnp.add, sums, part)

        empty = (loss_zeros(self.model, params, trip.data), jax.tree.map(jnp.zeros_like, params))
        return *lax.fori_loop(0, -(-used // ROWS_AT_ONCE), add_part, empty), used

    def _rows(self, trip: _Trip, epoch: jax.Array, begin: jax.Array, rows: int) -> tuple:
        """Positions ``begin + [0, rows)`` of a shuffled epoch: (x [rows, ...], y [rows], present [rows])."""
        data = trip.data
        position = begin + jnp.arange(rows, dtype=jnp.int32)
        present = position < trip.examples
        if self.batch_size > 0:  # the order within one batch changes nothing
            position = shuffled(position, trip.examples, trip.key, epoch)
        # The barrier keeps the look-up of rows out of the gather of examples, where it would run per feature.
        row = lax.optimization_barrier(take_rows(data.indices, trip.first + jnp.where(present, position, 0)))
        x = self.model.augment(
            take_rows(data.x, row), trip.key, epoch, begin + jnp.arange(rows, dtype=jnp.int32)
        )
        return x, take_rows(data.y, row), present

    def _dropout_key(self, trip: _Trip, step: jax.Array, part: jax.Array | int) -> jax.Array | None:
        draws = self.model.draws(trip.start, trip.data.x)
        return dropout_key(trip.key, step, part) if draws else None
