"""The record of one run: everything that decides its result."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jax
import optax

from jafl.clients.argument_checks import check_optimizer
from jafl.data import Federation
from jafl.records import EventSchedule, Params, Rule
from jafl.specifications import Specification, as_specification, for_schedule, specify


class Run(NamedTuple):
    """One run, ready to be prepared: the arguments of ``jafl.simulate``, under their names there.

    Attributes:
      schedule: who trains from which version.
      federation: the clients' examples, and those for evaluation.
      client_work: local training, from ``jafl.client_work``.
      rule: the algorithm.
      params: [*P] the initial model, or its shapes where nothing is to be trained.
      key: JAX random key of every client's shuffles.
      server_optimizer: an optax optimizer; SGD with the learning rate 1 if None.
      evaluate_at: server steps at which to evaluate; about a hundred if None.
      evaluators: {name: params -> {metric: number}}; accuracy and loss on the held-out splits if None.
      stop_when: the condition on its evaluations on which it stops; it trains to its end if None.
      keep_best: the column of its evaluations by which the best parameters are kept, too; none are if None.
      evaluate_clients: whether each evaluation measures the model on each client's own examples, too.
    """

    # In the order of ``jafl.simulate``: it passes the first six on by their places.
    schedule: EventSchedule
    federation: Federation
    client_work: Specification
    rule: Specification | Rule
    params: Params
    key: jax.Array
    server_optimizer: Any = None
    evaluate_at: Iterable[int] | None = None
    evaluators: Mapping[str, Callable[[Params], Mapping[str, float]]] | None = None
    stop_when: str | None = None
    keep_best: str | None = None
    evaluate_clients: bool = False

    def server_optimizer_or_sgd(self) -> Specification:
        """The server optimizer; SGD with the learning rate 1 if None.

        Raises:
          SettingError: if it is none.
        """
        if self.server_optimizer is None:
            # With this rate the model moves by the rule's direction itself, as the algorithms are written.
            return specify(optax.sgd, learning_rate=1.0)
        check_optimizer("server_optimizer", self.server_optimizer)
        return as_specification(self.server_optimizer)

    @property
    def keeps_client_state(self) -> bool:
        """Whether its clients keep something between their trips."""
        return as_specification(self.client_work).build().state_shapes(self.params) is not None

    def for_its_schedule(self) -> "Run":
        """The run with the numbers of its rule that follow from the schedule (``Rule.for_schedule``).

        A schedule for other clients than the federation's is refused later, by name; nothing follows from it.
        """
        if self.schedule.num_clients != self.federation.num_clients:
            return self
        # Before the run is planned: what follows from the whole schedule is then data of the program.
        return self._replace(rule=for_schedule(self.rule, self.schedule, self.federation.num_examples))
