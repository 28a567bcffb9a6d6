"""What client work gets, returns and declares: the records between the engine and the local training."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jafl.clients.compression import Compressor
from jafl.models import Model
from jafl.records import Array, ArrayTree, Params, Updates

# Local steps of a trip. Each takes a microsecond at least.
MOST_STEPS_OF_A_TRIP = 10**8
# In the place of a number of local steps: each trip makes those that the schedule says.
SCHEDULED = "scheduled"


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
    model, or at the one with which a correction begins training ("quafl", "qafel"), regularizers left out (of texts,
    the mean over the tokens of the first minibatch that has any);
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
    in few bits stored as its difference from the initial value.

    Attributes:
      initial: (params) -> [*S], any pytree of arrays: the value before a client's first applied trip, for the initial
        model. Default: zeros in the shapes of the model.
      precision: precision in which the memory holds the values: "full", "bfloat16" or "int8"; whole numbers,
        such as counts of steps, are held as they are. In few bits the initial value must be finite.

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

    personal: (state [*S]) -> [*P], the model of its own in what a client keeps; None: it has none.
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
    personal: Callable[[Any], Params] | None = None

    def state_shapes(self, params: Params) -> Any:
        """[*S] the shapes of what a client keeps, for a model [*P] or its shapes; None if that is nothing."""
        if self.state is None:
            return None
        shapes = jax.eval_shape(self.state.initial, params)
        return shapes if jax.tree.leaves(shapes) else None
