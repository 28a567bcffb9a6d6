"""Client work: what one client does between its download and its upload.

A trip is a number of optimizer steps on minibatches of the client's own examples; ``minibatch_gradients`` says which.
"""

import operator
from collections.abc import Callable
from typing import Any

import jax
import optax

from jafl.base.described import described
from jafl.base.errors import choose, require
from jafl.clients.argument_checks import check_batches, check_steps, number_as_data, optimizer_and_schedule
from jafl.clients.compression import Compressor, check_compression
from jafl.clients.corrections import CORRECTIONS, check_correction
from jafl.clients.local_training import LocalTraining
from jafl.clients.personal import PersonalTraining, check_personal
from jafl.clients.records import ClientStateRequest, ClientWork
from jafl.models import Model
from jafl.records import Params
from jafl.specifications import Specification, specification


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
    personal: Specification | None = None,
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
        trip, so that a schedule in it counts the local steps of a trip, and always begins at its first rate: a run
        warns of one that is longer than its trips. Random keys in its state, as those of
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
      correction: how local training is corrected: "scaffold", "feddyn", "masfl", "adamasfl", "ef21", "qafel" or
        "quafl". The correction reads what the client keeps and what the rule broadcasts; the rules of ``jafl.rules``
        with these names have the equations. With the first four the client's optimizer gets the corrected gradient in
        place of the gradient; "ef21" sends the compressed difference from what was sent before, "qafel" trains from
        the model that the server broadcasts, and with "quafl" training begins with a mixture of the downloaded model
        and one that the client keeps; a trip of 0 steps then has an update, too. None: no correction.
      state_precision: precision in which the clients' states are held: "full", "bfloat16" or "int8"; whole
        numbers, such as counts of steps, are held as they are.
      compression: how the update is sent in fewer bytes, such as ``jafl.compression.qsgd(levels=4)``. The rule sees
        what the server decodes; ``compression.bytes(params)`` is the size.
      error_feedback: each client keeps what compression has left out, and adds it to its next update: of an update u
        and what is kept, e, it sends C(u + e) and keeps u + e - C(u + e) (Seide et al. 2014; Karimireddy et al. 2019,
        arXiv 1901.09847, algorithm 2, whose step is here the whole trip, as in Qsparse-local-SGD, Basu et al. 2019).
      personal: how each client trains a model of its own beside the update that it sends, such as
        ``jafl.ditto(strength=0.5, learning_rate=0.1)``: ``History.personal_params``, which
        ``jafl.simulate(..., evaluate_clients=True)`` measures on the client's own examples. None: it trains none.

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
    optimizer, schedule = optimizer_and_schedule(learning_rate, optimizer)
    check_steps(local_steps, local_epochs)
    check_batches(batch_size, learning_rate_normalization)
    choose("state_precision", state_precision, dict.fromkeys(("full", "bfloat16", "int8")))
    check_correction(correction, compression, error_feedback)
    corrected = CORRECTIONS[correction] if correction else None
    check_compression(compression, error_feedback, correction if corrected and corrected.feedback else None)
    check_personal(personal)
    keeps = keep_optimizer_state or error_feedback or (corrected is not None and corrected.keeps)
    require(
        state_precision == "full" or keeps or personal is not None,
        "state_precision",
        state_precision,
        "'full' where clients keep nothing: without correction, keep_optimizer_state, error_feedback and personal",
    )
    proximal, l2 = (
        None if number is None else number_as_data(name, number)
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
        bool(keep_optimizer_state) or None,
        correction,
        None if state_precision == "full" else state_precision,
        compression,
        bool(error_feedback) or None,
        personal,
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
    personal=None,
) -> ClientWork:
    """The work that ``client_work`` describes; the arguments are checked."""
    training = LocalTraining(
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
    initial: Callable[[Params], Any] | None = None
    if keep_optimizer_state:
        initial = training.first_kept
    elif error_feedback or (training.correction and training.correction.keeps):
        initial = training.first_own
    trips: LocalTraining | PersonalTraining = training
    if personal is not None:
        trips = PersonalTraining(training, personal, initial)
        initial = trips.first_kept
    return ClientWork(
        trips.train,
        model,
        trips.minibatches,
        reads_version=schedule is not None,
        check=training.check,
        state=initial and ClientStateRequest(initial, state_precision or "full"),
        correction=correction,
        reads_local_steps=training.is_scheduled,
        compression=compression,
        personal=None if personal is None else operator.attrgetter("model"),
    )
