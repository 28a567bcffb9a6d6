"""Client work: what one client does between its download and its upload.

A trip is a number of optimizer steps on minibatches of the client's own examples. Each epoch shuffles them by a
key that depends on (seed, client, trip, epoch) alone, and cuts them into minibatches of ``batch_size``; the last one
of an epoch is short where the size does not divide the client's number of examples. A client with fewer examples than
a batch has one short batch per epoch. Short batches are masked: they count only the examples that are there.
"""

import dataclasses
import math
import numbers
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from jafl.base.described import described
from jafl.base.errors import choose, require, whole_number
from jafl.base.keyed_shuffle import shuffled
from jafl.base.random_keys import with_own_keys
from jafl.clients.compression import Compressor
from jafl.clients.corrections import CORRECTIONS, Correction
from jafl.clients.optimizer_checks import check_client_optimizer
from jafl.models import Model
from jafl.models.model import safe_mean
from jafl.records import Array, ArrayTree, Gradients, Params, Updates
from jafl.specifications import Specification, specification, specify

# Minibatches of up to so many examples are computed at once.
LARGEST_BATCH_AT_ONCE = 128
# Larger ones, and those without a fixed size, so many at a time: small clients do not pay for the rows of large ones.
ROWS_AT_ONCE = 32
# Local steps of a trip. Each takes a microsecond at least.
MOST_STEPS_OF_A_TRIP = 10**8
# In the place of a number of local steps: each trip makes those that the schedule says.
SCHEDULED = "scheduled"

# Distinguishes the keys of dropout from all other uses of a trip's random words.
_DROPOUT = 301


class ClientData(NamedTuple):
    """Every client's examples on the device: ``x`` [E, ...] and ``y`` [E, ...], each example once; client c holds the
    examples ``indices[offsets[c]:offsets[c + 1]]``; ``indices`` [A] and ``offsets`` [N + 1] are int32. ``own``: these
    two offsets for the client that trains, if they were looked up before; else None. ``version`` [] int32: the server
    step at which it downloaded the model, where the work reads it; else None. ``state``: what the client has kept
    since its last applied trip, see ``ClientStateRequest``; None if it keeps nothing. ``broadcast``: what the server
    sent along with the downloaded model, see ``jafl.Rule``; None if nothing. ``local_steps`` [] int32: how many
    optimizer steps the schedule gives to the trip, where the work reads that; else None."""

    x: Array
    y: Array
    indices: Array
    offsets: Array
    own: tuple[Array, Array] | None = None
    version: Array | None = None
    state: Any = None
    broadcast: Any = None
    local_steps: Array | None = None

    def own_offsets(self, client: jax.Array) -> tuple[jax.Array, jax.Array]:
        """([], []) int32: where the examples of ``client``, the one that trains, begin and end in ``indices``."""
        return self.own or (self.offsets[client], self.offsets[client + 1])


class ClientResult(NamedTuple):
    """``update`` [*P]: trained minus downloaded; ``loss`` []: mean over the first minibatch at the downloaded
    model, regularizers left out (of texts, the mean over the tokens of the first minibatch that has any);
    ``batch_examples`` [] int32: examples used, each as often as it was used; ``local_steps`` [] int32: optimizer
    steps taken; ``sent``: any pytree that the client hands over beside its update, which a rule reads as
    ``Arrival.sent``, or None; ``state``: what it keeps, like ``ClientData.state``, or None."""

    update: Updates
    loss: jax.Array
    batch_examples: jax.Array
    local_steps: jax.Array
    sent: Any = None
    state: Any = None


def zeros_like_model(params: Params) -> ArrayTree:
    """[*P] of zeros."""
    return jax.tree.map(jnp.zeros_like, params)


class ClientStateRequest(NamedTuple):
    """What client work keeps for every client between its trips: one value, any pytree, for each client.

    ``ClientWork.train`` reads its client's value in ``data.state``, and returns the new one in
    ``ClientResult.state``. The new value is written when the trip is applied. A trip that is thrown away leaves the
    value as it was; a trip in a server step that the rule skips counts as applied. In every plan a trip trains only
    after its client's previous applied trip has been folded. On the device each value is a row of the client memory,
    stored as its difference from the initial value.

    Attributes:
      initial: (params) -> [*S], any pytree of arrays: the value before a client's first applied trip, for the initial
        model. Default: zeros in the shapes of the model.
      precision: precision in which the memory holds the values: "full", "bfloat16" or "int8"; the last two hold
        floats only.

    Examples:
      >>> jafl.ClientStateRequest(precision="bfloat16").precision
      'bfloat16'
    """

    initial: Callable[[Params], ArrayTree] = zeros_like_model
    precision: str = "full"


class ClientWork(NamedTuple):
    """Local training as a pure function, with the model that it trains.

    train(data, start, client, key) -> ClientResult, for ``start`` [*P], ``client`` [] int32 and the trip's random
    words ``key`` [2] uint32.

    minibatches(num_examples) -> [N], on the host: how many minibatches, or parts of them, clients with so many
    examples [N] train on in a trip, one after the other; None if that is not known.

    reads_version: whether ``train`` reads ``data.version``.

    check(params, num_examples), on the host: raises SettingError for a model [*P], or its shapes, or for clients with
    so many examples [N], on which the work cannot be right. None: nothing to check.

    state: what every client keeps between its trips; None: nothing.

    correction: the name of the correction of local steps that reads what the server broadcasts, or None. The rule
    must require the same one (``Requirements.correction``).

    reads_local_steps: whether ``train`` reads ``data.local_steps``. If so, the schedule must have them, and
    ``minibatches`` and ``check`` get one argument more and numbers by trip: for each trip the number of its client's
    examples [J] and its local steps [J].

    compression: what compresses its updates, which are returned as the server decodes them; None: nothing.
    """

    train: Callable[[ClientData, Params, jax.Array, jax.Array], ClientResult]
    model: Model
    minibatches: Callable[..., np.ndarray] | None = None
    reads_version: bool = False
    check: Callable[..., None] | None = None
    state: ClientStateRequest | None = None
    correction: str | None = None
    reads_local_steps: bool = False
    compression: Compressor | None = None

    def state_shapes(self, params: Params) -> Any:
        """[*S] the shapes of what a client keeps, for a model [*P] or its shapes; None if that is nothing."""
        if self.state is None:
            return None
        shapes = jax.eval_shape(self.state.initial, params)
        return shapes if jax.tree.leaves(shapes) else None


@described
def client_work(
    model: Model,
    *,
    learning_rate: float | jax.Array | Callable[[jax.Array], Any] | Specification | None = None,
    optimizer: Specification | optax.GradientTransformation | None = None,
    local_steps: int | str | None = None,
    local_epochs: int | None = None,
    batch_size: int = 32,
    proximal: float | None = None,
    l2: float | None = None,
    learning_rate_normalization: bool = False,
    keep_optimizer_state: bool = False,
    correction: str | None = None,
    state_precision: str = "full",
    compression: Compressor | None = None,
    error_feedback: bool = False,
) -> Specification:
    """Describes local training: what one client does between its download and its upload.

    The floats among the arguments are data of the compiled program, so changing them does not recompile.

    Args:
      model: what is trained, with its loss.
      learning_rate: of plain SGD, the default optimizer: a number, a JAX scalar, or a schedule, such as optax has:
        a function from the number of server steps that had been made when the client downloaded the model (its
        version) to the rate of all local steps of that trip. Best as
        ``specify(optax.cosine_decay_schedule, 0.1, 500)``: then another rate is the same program. Exactly one of
        this and ``optimizer``.
      optimizer: an optax optimizer, best as ``specify(optax.adam, learning_rate=0.01)``. Its state is new at each
        trip, so that a schedule in it counts the local steps of a trip. Random keys in its state, as those of
        ``optax.noisy_sgd``, are folded with the trip's random words: so each trip draws numbers of its own, which
        depend on (key of the run, client, trip) alone.
      local_steps: minibatch steps per trip (Q), going on to a fresh shuffle when an epoch ends. At most one of this
        and ``local_epochs``; 1 step if neither is given. "scheduled": each trip makes as many as the schedule says,
        ``EventSchedule.local_steps``, as in FedCompass and DyLU. A trip of 0 steps has the update 0, and leaves what
        its client keeps as it was; its loss is, as for every trip, that of its first minibatch.
      local_epochs: passes over the client's examples per trip.
      batch_size: examples per minibatch; 0 means the client's whole data set as one batch.
      proximal: FedProx's mu: adds (mu / 2) ||w - w_downloaded||^2 to the loss (Li et al. 2020, equation 2).
      l2: adds (l2 / 2) ||w||^2 over all parameters, biases included, to the loss.
      learning_rate_normalization: LR-Norm: a step on b < batch_size examples uses learning rate * b / batch_size
        (FedBuff, section 5).
      keep_optimizer_state: each client keeps the state of its optimizer from one trip to the next, as in DiLoCo
        (Douillard et al. 2023), in place of a new one at each trip. A schedule in it then counts all local steps of
        the client's applied trips. Plain SGD keeps nothing.
      correction: how local gradients are corrected: "scaffold", "feddyn", "masfl" or "adamasfl". The correction reads
        what the client keeps and what the rule broadcasts; ``jafl.rules.scaffold``, ``feddyn`` and ``masfl`` have the
        equations. The client's optimizer gets the corrected gradient in place of the gradient. With "quafl" training
        begins with a mixture of the downloaded model and one that the client keeps, see ``jafl.rules.quafl``; a trip
        of 0 steps then has an update, too. None: no correction.
      state_precision: precision in which the clients' states are held: "full", "bfloat16" or "int8"; the last two
        hold floats only.
      compression: how the update is sent in fewer bytes, such as ``jafl.compression.qsgd(levels=4)``. The rule sees
        what the server decodes; ``compression.bytes(params)`` is the size.
      error_feedback: each client keeps what compression has left out, and adds it to its next update: of an update u
        and what is kept, e, it sends C(u + e) and keeps u + e - C(u + e) (Seide et al. 2014; Karimireddy et al. 2019,
        arXiv 1901.09847, algorithm 2, whose step is here the whole trip, as in Qsparse-local-SGD, Basu et al. 2019).

    Returns:
      A specification of the work, for ``jafl.simulate``.

    Raises:
      SettingError: for a number outside its range or two arguments that exclude each other.

    Warns:
      UserWarning: for a biased compression without error feedback.

    Examples:
      >>> work = jafl.client_work(jafl.models.softmax(10), learning_rate=0.1, local_epochs=2)
      >>> work.arguments["batch_size"]
      32
    """
    require(
        isinstance(model, Model),
        "model",
        model,
        "a jafl.Model",
        "Write jafl.Model(module) around a module of Flax or Equinox, or a pair of functions (init, apply).",
    )
    optimizer, schedule = _optimizer(learning_rate, optimizer)
    _check_steps(local_steps, local_epochs)
    _check_batches(batch_size, learning_rate_normalization)
    fits = isinstance(keep_optimizer_state, bool)
    require(fits, "keep_optimizer_state", keep_optimizer_state, "True or False")
    if correction is not None:
        choose("correction", correction, CORRECTIONS)
    choose("state_precision", state_precision, dict.fromkeys(("full", "bfloat16", "int8")))
    _check_compression(compression, error_feedback, correction)
    keeps = keep_optimizer_state or correction is not None or error_feedback
    require(
        state_precision == "full" or keeps,
        "state_precision",
        state_precision,
        "'full' where clients keep nothing: with neither correction, keep_optimizer_state nor error_feedback",
    )
    proximal, l2 = (
        None if number is None else _number(name, number)
        for name, number in (("proximal", proximal), ("l2", l2))
    )
    return _client_work(
        model,
        optimizer,
        1 if local_steps is None and local_epochs is None else local_steps,
        local_epochs,
        batch_size,
        proximal,
        l2,
        learning_rate_normalization,
        schedule,
        # None, and not what means the same: so that checkpoints of runs without them say nothing of them.
        keep_optimizer_state or None,
        correction,
        None if state_precision == "full" else state_precision,
        compression,
        error_feedback or None,
    )


def trip_words(key: jax.Array, client: jax.Array, trip: jax.Array) -> jax.Array:
    """[J, 2] uint32: random words per trip that depend on the seed, the client and its trip alone.

    key: a JAX random key; ``client``, ``trip``: [J] int32.
    """

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


def _number(name: str, value: Any) -> Any:
    """``value`` as data of a program; a number that JAX is tracing stays what it is."""
    if isinstance(value, jax.core.Tracer):
        require(value.ndim == 0, name, f"of the shape {value.shape}", "a number")
        return value
    if isinstance(value, (jax.Array, np.ndarray)) and value.ndim == 0 and value.dtype.kind in "iuf":
        value = value.item()
    check_number(name, value, minimum=0.0)
    return float(value)


def _optimizer(learning_rate: Any, optimizer: Any) -> tuple[Any, Any]:
    """(the optimizer, plain SGD if only its learning rate is given; the schedule of its rate or None), checked."""
    require(
        (learning_rate is None) != (optimizer is None),
        "learning_rate and optimizer",
        (learning_rate, optimizer),
        "one given and one None",
        "Give the learning rate of plain SGD, or an optimizer of your own.",
    )
    if optimizer is not None:
        check_optimizer("optimizer", optimizer)
        return optimizer, None
    if callable(learning_rate) or isinstance(learning_rate, Specification):
        _check_schedule(learning_rate)
        return specify(optax.sgd, learning_rate=1.0), learning_rate
    return specify(optax.sgd, learning_rate=_number("learning_rate", learning_rate)), None


def _check_schedule(schedule: Any) -> None:
    """Raises SettingError unless a learning-rate schedule returns a number for a number of server steps."""
    built = schedule.build() if isinstance(schedule, Specification) else schedule
    require(
        callable(built), "learning_rate", schedule, "a number, or a schedule: a function of the server step"
    )
    try:
        rate = jax.eval_shape(built, jnp.int32(0))
        fits = rate.shape == () and jnp.issubdtype(rate.dtype, jnp.number)
        kind = f"{rate.dtype} {rate.shape}"
    except Exception as error:
        fits, kind = False, f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"
    allowed = "a number for a server step that JAX traces"
    require(fits, "what the schedule learning_rate returns", kind, allowed)


def _check_steps(local_steps: int | str | None, local_epochs: int | None) -> None:
    """Raises SettingError for two lengths of a trip, or one below 1."""
    require(
        local_steps is None or local_epochs is None,
        "local_steps and local_epochs",
        (local_steps, local_epochs),
        "not both given",
    )
    if isinstance(local_steps, str):
        choose("local_steps", local_steps, {SCHEDULED: None})
        return
    for name, value in (("local_steps", local_steps), ("local_epochs", local_epochs)):
        if value is not None:
            whole_number(name, value, 1)
            remedy = "A trip cannot be interrupted, and tells nothing before its end."
            require(value <= MOST_STEPS_OF_A_TRIP, name, value, f"at most {MOST_STEPS_OF_A_TRIP:,}", remedy)


def _check_batches(batch_size: int, learning_rate_normalization: bool) -> None:
    """Raises SettingError for an impossible batch size, or one without which a batch is never short."""
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


def _check_compression(compression: Any, error_feedback: Any, correction: str | None) -> None:
    """Raises SettingError for what compresses nothing, or not all that is sent; warns of what does not converge."""
    require(isinstance(error_feedback, bool), "error_feedback", error_feedback, "True or False")
    if compression is None:
        allowed = "False where nothing is compressed: without compression no update leaves anything out"
        require(not error_feedback, "error_feedback", error_feedback, allowed)
        return
    require(
        isinstance(compression, Compressor),
        "compression",
        compression,
        "None or a compressor of jafl.compression",
        "Write jafl.compression.top_k(fraction=0.01), for example.",
    )
    require(
        correction in (None, "quafl"),
        "compression",
        compression,
        f"None with correction={correction!r}, whose clients and server count on the whole update",
    )
    if compression.is_biased and not error_feedback:
        warnings.warn(
            f"compression is {compression}, which is biased, and error_feedback is False: what an update leaves out "
            "is lost, and training need not converge. Set error_feedback=True, with which clients send it later, or "
            "take jafl.compression.qsgd, which is right in the mean.",
            stacklevel=4,  # above ``client_work`` and its decorator
        )


@specification
def _client_work(
    model,
    optimizer,
    local_steps,
    local_epochs,
    batch_size,
    proximal,
    l2,
    learning_rate_normalization,
    schedule=None,
    keep_optimizer_state=None,
    correction=None,
    state_precision=None,
    compression=None,
    error_feedback=None,
) -> ClientWork:
    """The work that ``client_work`` describes; the arguments are checked."""
    training = _LocalTraining(
        model,
        optimizer,
        local_steps,
        local_epochs,
        batch_size,
        proximal,
        l2,
        learning_rate_normalization,
        schedule,
        bool(keep_optimizer_state),
        CORRECTIONS[correction] if correction else None,
        compression,
        bool(error_feedback),
    )
    state = None
    if keep_optimizer_state:
        state = ClientStateRequest(training.first_kept)
    elif correction or error_feedback:
        initial = CORRECTIONS[correction].initial if correction else None
        state = ClientStateRequest(initial or zeros_like_model)
    return ClientWork(
        training.train,
        model,
        training.minibatches,
        reads_version=schedule is not None,
        check=training.check,
        state=state and state._replace(precision=state_precision or "full"),
        correction=correction,
        reads_local_steps=training.is_scheduled,
        compression=compression,
    )


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
class _LocalTraining:
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
    def begins_elsewhere(self) -> bool:
        """Whether training does not begin with the downloaded model."""
        return self.correction is not None and self.correction.first is not None

    @property
    def is_scheduled(self) -> bool:
        """Whether each trip makes the local steps that the schedule says."""
        return self.local_steps == SCHEDULED

    def train(self, data: ClientData, start: Params, client: jax.Array, key: jax.Array) -> ClientResult:
        """One trip; see ``ClientWork.train``."""
        trip = self._trip(data, start, client, key)
        if (
            self.local_steps == 1 and not self.begins_elsewhere
        ):  # the update as it is: exact, and two passes over the parameters fewer
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

        steps = self._steps(trip.batches_per_epoch, data.local_steps)
        # One at least: a trip without steps has a loss, too, that of the model which it has downloaded.
        rounds = jnp.maximum(steps, 1) if self.is_scheduled else steps
        total = zeros_like_model(start) if self.correction and self.correction.needs_mean else None
        begin = start
        if self.correction and self.correction.first and data.state is not None:
            begin = self.correction.first(self._own(data).correction, data.broadcast, start)
        first_loss, first_state = _loss_zeros(self.model, start, data), self._first_state(trip)
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
        own = None
        if self.correction or self.error_feedback:
            initial = self.correction.initial if self.correction else None
            own = (initial or zeros_like_model)(params)
        return _Kept(own, self.optimizer.init(params))

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
        if self.correction:
            before = self._own(trip.data).correction
            sent, own = self.correction.end(before, trip.data.broadcast, mean, update, trip.start)
            if any_steps is not None:
                sent, own = _or_else(any_steps, sent), _or_else(any_steps, own, before)
        return sent, _Kept(own, state) if self.keeps_optimizer else own

    def _compressed(
        self, trip: _Trip, update: Updates, any_steps: jax.Array | None = None
    ) -> tuple[Updates, Updates | None]:
        """(what the server decodes, what error feedback keeps or None); ``any_steps`` as of ``_kept``."""
        if self.compression is None:
            return update, None
        # As for an optimizer's state: who measures single trips has no state for them.
        if self.error_feedback and trip.data.state is not None:
            update = jax.tree.map(jnp.add, update, self._own(trip.data).correction)
        sent = self.compression.compress(update, trip.key)
        if any_steps is not None:
            sent = _or_else(any_steps, sent)
        return sent, jax.tree.map(jnp.subtract, update, sent) if self.error_feedback else None

    def check(self, params: Params, num_examples: np.ndarray, local_steps: np.ndarray | None = None) -> None:
        """Raises SettingError for an optimizer that cannot be right here; see ``ClientWork.check``."""
        if self.compression is not None and self.error_feedback:
            self.compression.check_error_feedback(sum(leaf.size for leaf in jax.tree.leaves(params)))
        per_epoch = -(-num_examples // self.batch_size) if self.batch_size else np.ones_like(num_examples)
        steps = np.unique(np.zeros_like(per_epoch) + self._steps(np.maximum(per_epoch, 1), local_steps))
        check_client_optimizer(self.optimizer, params, steps)

    def minibatches(self, num_examples: np.ndarray, local_steps: np.ndarray | None = None) -> np.ndarray:
        """[N] for clients with so many examples [N]; see ``ClientWork.minibatches``."""
        count = np.maximum(np.asarray(num_examples, np.int64), 1)
        size = count if self.batch_size == 0 else np.full_like(count, self.batch_size)
        per_epoch = -(-count // size)
        steps = np.zeros_like(count) + self._steps(per_epoch, local_steps)
        if self.is_scheduled:
            steps = np.maximum(steps, 1)  # as many as ``train`` computes
        if self.whole_batches:
            return steps
        epochs, begun = np.divmod(steps, per_epoch)
        parts_of_whole, parts_of_last = (
            -(-examples // ROWS_AT_ONCE) for examples in (size, count - (per_epoch - 1) * size)
        )
        return epochs * ((per_epoch - 1) * parts_of_whole + parts_of_last) + begun * parts_of_whole

    def _steps(self, batches_per_epoch: Any, scheduled: Any) -> Any:
        """Local steps of a trip, for one client or an array of them; ``scheduled``: what the schedule says."""
        if self.is_scheduled:
            return scheduled
        return self.local_steps if self.local_epochs is None else self.local_epochs * batches_per_epoch

    def _trip(self, data: ClientData, start: Params, client: jax.Array, key: jax.Array) -> _Trip:
        first, end = data.own_offsets(client)
        count = end - first
        size = count if self.batch_size == 0 else self.batch_size
        term = None
        if self.correction:
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
        gradient, loss, used, count = self._gradient(trip, number, params)
        direction = gradient
        if self.correction:
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

    def _gradient(
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

        empty = (_loss_zeros(self.model, params, trip.data), jax.tree.map(jnp.zeros_like, params))
        return *lax.fori_loop(0, -(-used // ROWS_AT_ONCE), add_part, empty), used

    def _rows(self, trip: _Trip, epoch: jax.Array, begin: jax.Array, rows: int) -> tuple:
        """Positions ``begin + [0, rows)`` of a shuffled epoch: (x [rows, ...], y [rows], present [rows])."""
        data = trip.data
        position = begin + jnp.arange(rows, dtype=jnp.int32)
        present = position < trip.examples
        if self.batch_size > 0:  # the order within one batch changes nothing
            position = shuffled(position, trip.examples, trip.key, epoch)
        # The barrier keeps the look-up of rows out of the gather of examples, where it would run per feature.
        row = lax.optimization_barrier(_take_rows(data.indices, trip.first + jnp.where(present, position, 0)))
        x = self.model.augment(
            _take_rows(data.x, row), trip.key, epoch, begin + jnp.arange(rows, dtype=jnp.int32)
        )
        return x, _take_rows(data.y, row), present

    def _dropout_key(self, trip: _Trip, step: jax.Array, part: jax.Array | int) -> jax.Array | None:
        draws = self.model.draws(trip.start, trip.data.x)
        return dropout_key(trip.key, step, part) if draws else None


def _take_rows(array: jax.Array, numbers: jax.Array) -> jax.Array:
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
        return jax.value_and_grad(total, has_aux=True)(params)


def _sum_present(counts: jax.Array | None, present: jax.Array) -> jax.Array | None:
    return None if counts is None else jnp.sum(jnp.where(present, counts, 0))


def _loss_zeros(model: Model, params: Params, data: ClientData) -> tuple[jax.Array, jax.Array | None]:
    """Zeros of the types of a summed loss and of its count, None where each example counts 1."""
    shapes = jax.eval_shape(lambda: model.loss_sums(params, data.x[:1], data.y[:1]))
    sums, counts = jax.tree.map(lambda of: jnp.zeros(of.shape[1:], of.dtype), shapes)
    return sums, _sum_present(counts, jnp.asarray(True))
