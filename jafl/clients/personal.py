"""Personal models: what a client trains for itself, beside the update that it sends (Li et al., ICML 2021)."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jafl.base.described import described
from jafl.base.errors import require, whole_number
from jafl.clients.argument_checks import check_steps, number_as_data
from jafl.clients.local_training import LocalTraining
from jafl.clients.records import ClientData, ClientResult
from jafl.records import ArrayTree, Params
from jafl.specifications import Specification, specification


class Ditto(NamedTuple):
    """What ``ditto`` describes; its two numbers may be traced."""

    strength: Any
    learning_rate: Any
    local_steps: int | None


class PersonalState(NamedTuple):
    """What a client with a ``model`` [*P] of its own keeps: that, and what the other ``work`` of its trips keeps."""

    work: Any
    model: Params


@described
def ditto(strength: float, learning_rate: float, *, local_steps: int | None = None) -> Specification:
    """Describes Ditto (Li, Hu, Beirami and Smith, ICML 2021, arXiv 2012.04221, algorithm 1): personal models.

    Beside the update that it sends, client i keeps a model v_i of its own, at first the initial model. In each trip
    it makes s steps v_i <- v_i - learning_rate (g(v_i) + strength (v_i - x)), where x is the downloaded model and g
    the gradient of a minibatch. The server sees nothing of this: with the same plan, its model has the same bits as
    without it. With ``strength=0`` v_i is trained locally; the larger the strength, the nearer it stays to x.

    Readings. The paper's steps have the gradient of a client's whole loss; here they have those of minibatches, the
    first s of the trip itself, in its order and with its dropout, so that no other random numbers are drawn. Of the
    options of ``client_work`` the loss with its ``l2``, ``batch_size`` and the number of steps hold for v_i; the
    steps are plain SGD whatever the optimizer is, and ``proximal``, corrections, compression and a learning-rate
    schedule are of what is sent alone. x is the model that the trip starts from: of ``correction="qafel"`` the
    broadcast one. v_i is written when its trip is applied, so a trip that is thrown away leaves it as it was.

    Args:
      strength: lambda, of the pull to the downloaded model, from 0 on. Times the learning rate it must be below 2,
        from where on the steps move v_i away from x.
      learning_rate: of the personal steps, from 0 on.
      local_steps: s, the personal steps of a trip. Default: as many as the trip's own; a trip of 0 scheduled steps
        has none in either case.

    Returns:
      A specification, for ``jafl.client_work(..., personal=...)``.

    Raises:
      SettingError: for a number outside its range.

    Examples:
      >>> personal = jafl.ditto(0.5, 0.1, local_steps=2)
      >>> work = jafl.client_work(jafl.models.softmax(10), learning_rate=0.1, personal=personal)
      >>> personal
      ditto(strength=0.5, learning_rate=0.1, local_steps=2)
    """
    strength, rate = (
        number_as_data(name, value)
        for name, value in (("strength", strength), ("learning_rate", learning_rate))
    )
    if not any(isinstance(number, jax.core.Tracer) for number in (strength, rate)):
        remedy = (
            "Each step moves a personal model by their product of its distance from the downloaded model."
        )
        require(strength * rate < 2, "strength times learning_rate", strength * rate, "below 2", remedy)
    if local_steps is not None:
        check_steps(whole_number("local_steps", local_steps, 1), None)
    return _ditto(strength, rate, local_steps)


@specification
def _ditto(strength, learning_rate, local_steps) -> Ditto:
    return Ditto(strength, learning_rate, local_steps)


def check_personal(personal: Any) -> None:
    """Raises SettingError unless ``personal`` is None or describes how personal models are trained."""
    fits = isinstance(personal, Specification) and isinstance(personal.build(), Ditto)
    remedy = "Write jafl.ditto(strength=0.5, learning_rate=0.1), for example."
    require(personal is None or fits, "personal", personal, "None or a jafl.ditto", remedy)


@dataclasses.dataclass(frozen=True, eq=False)
class PersonalTraining:
    """The trips of clients that train a personal model beside what they send.

    Attributes:
      training: what they send.
      ditto: how the personal model is trained.
      initial: (params) -> what ``training`` keeps before a client's first trip; None if that is nothing.
    """

    training: LocalTraining
    ditto: Ditto
    initial: Callable[[Params], ArrayTree] | None

    def first_kept(self, params: Params) -> PersonalState:
        """What a client keeps before its first trip."""
        return PersonalState(self.initial(params) if self.initial else None, params)

    def train(self, data: ClientData, start: Params, client: jax.Array, key: jax.Array) -> ClientResult:
        """One trip; see ``ClientWork.train``."""
        kept = data.state
        # Whoever measures single trips, as a decomposition does, has no state for them, and reads the update alone.
        if kept is None:
            return self.training.train(data, start, client, key)
        result = self.training.train(data._replace(state=kept.work), start, client, key)
        model = self._stepped(data, start, client, key, kept.model)
        return result._replace(state=PersonalState(result.state, model))

    def minibatches(self, num_examples: np.ndarray, local_steps: np.ndarray | None = None) -> np.ndarray:
        """[N] those of what is sent and of the personal model together; see ``ClientWork.minibatches``."""
        own = [each.minibatches(num_examples, local_steps) for each in (self.training, self._own)]
        return np.add(*own)

    @property
    def _own(self) -> LocalTraining:
        """Training whose gradients are those of the personal steps: a proximal term pulls to the downloaded model."""
        changes: dict[str, Any] = {"proximal": self.ditto.strength, "correction": None}
        if self.ditto.local_steps is not None:
            changes |= {"local_steps": self.ditto.local_steps, "local_epochs": None}
        return dataclasses.replace(self.training, **changes)

    def _stepped(
        self, data: ClientData, start: Params, client: jax.Array, key: jax.Array, model: Params
    ) -> Params:
        """[*P]: ``model`` [*P] after the personal steps of a trip, by the arguments of ``train``."""
        correction, own = self.training.correction, self._own
        if correction and correction.start:
            start = correction.start(data.broadcast)
        trip = own.trip(data, start, client, key)

        def step(number: jax.Array, model: Params) -> Params:
            gradient = own.gradient(trip, number, model)[0]
            rate = self.ditto.learning_rate
            return jax.tree.map(lambda v, g: v - jnp.asarray(rate, v.dtype) * g, model, gradient)

        steps = own.steps(trip.batches_per_epoch, data.local_steps)
        if data.local_steps is not None:  # that of the schedule
            steps = jnp.where(data.local_steps > 0, steps, 0)
        stepped: Params = lax.fori_loop(0, steps, step, model)
        return stepped
