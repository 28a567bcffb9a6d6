"""Generalized AsyncSGD: clients that get few tasks make large steps (Leconte et al., AISTATS 2024)."""

from collections.abc import Sequence

import numpy as np

from jafl.records import EventSchedule, Rule
from jafl.rules.accumulate import weighted_sum
from jafl.schedule.arguments import client_shares
from jafl.specifications import specification


@specification
def generalized_async_sgd(routing: Sequence[float] | np.ndarray | None = None) -> Rule:
    """Generalized AsyncSGD: w <- w - eta / (N p_i) g at each arrival, p_i the probability that client i gets a task.

    So the steps are unbiased for the plain mean of the clients' losses, however tasks are handed out (Leconte et al.,
    "Queuing dynamics of asynchronous federated learning", AISTATS 2024). Tasks wait in queues at the clients:
    ``jafl.queued(tasks=C, routing=routing)``, with the same routing. With all p_i alike this is ``asgd``, the papers'
    AsyncSGD. (With the realised shares of the trips in the place of p_i it is ``rescaled_asgd("frequency")``.) A rule
    on gradients, see ``asgd``.

    Reports ``weight`` per trip: 1 / (N p_i).

    Args:
      routing: [N] numbers above 0 in proportion to p_i, as in ``jafl.queued``. Default: all alike.

    Returns:
      The rule, as a specification, for ``jafl.simulate``.

    Raises:
      SettingError: for numbers that are not above 0, or not one for each client, when the run starts.
    """

    def weights(schedule: EventSchedule) -> np.ndarray:
        clients = schedule.num_clients if routing is None else len(routing)
        shares = client_shares("routing", routing, clients)
        # Of a schedule of other clients, which ``check`` refuses in a run, the last share stands for more of them.
        return 1 / (clients * shares[np.minimum(schedule.client, clients - 1)])

    def check(schedule: EventSchedule) -> None:
        client_shares("routing", routing, schedule.num_clients)

    return weighted_sum(weights, buffer_size=1)._replace(check_schedule=check)
