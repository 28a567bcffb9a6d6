"""Generalized AsyncSGD: clients that get few tasks make large steps (Leconte et al., AISTATS 2024)."""

import warnings
from collections.abc import Sequence

import numpy as np

from jafl.records import EventSchedule, Rule
from jafl.rules.accumulate import weighted_sum
from jafl.schedule.arguments import client_shares
from jafl.specifications import specification

# A number of tasks that is further from its mean than so many standard deviations, and so many tasks more, is not by
# chance: by Bernstein's inequality that has a probability below 1e-8 for each client.
_DEVIATIONS, _TRIPS = 9.0, 30.0


@specification
def generalized_async_sgd(routing: Sequence[float] | np.ndarray | None = None) -> Rule:
    """Generalized AsyncSGD: w <- w - eta / (N p_i) g at each arrival, p_i the probability that client i gets a task.

    Dividing by p_i makes the steps unbiased for the mean of the clients' losses, whatever the routing probabilities
    p_i (Leconte et al., "Queuing dynamics of asynchronous federated learning", AISTATS 2024). Tasks wait in queues at
    the clients: make the schedule by ``jafl.queued(tasks=C, routing=routing)``, with the same routing. With equal p_i
    this is ``asgd``, the paper's AsyncSGD. (With each client's actual share of the trips in place of p_i it is
    ``rescaled_asgd("frequency")``.) A rule on gradients, see ``asgd``.

    Reports ``weight`` per trip: 1 / (N p_i).

    Args:
      routing: [N] numbers above 0 in proportion to p_i, as in ``jafl.queued``. Default: equal ones.

    Returns:
      The rule, as a specification, for ``jafl.simulate``. It warns of clients that got tasks in other proportions.

    Raises:
      SettingError: for numbers that are not above 0, or not one for each client, or of which one is so small that the
        weight of a trip exceeds the device's numbers, when the run starts.
    """

    def weights(schedule: EventSchedule) -> np.ndarray:
        clients = schedule.num_clients if routing is None else len(routing)
        shares = client_shares("routing", routing, clients)
        # In a schedule with more clients, which ``check`` refuses in a run, the last share stands for the rest.
        return 1 / (clients * shares[np.minimum(schedule.client, clients - 1)])

    def check(schedule: EventSchedule) -> None:
        _tell_of_other_routing(schedule, client_shares("routing", routing, schedule.num_clients))

    return weighted_sum(weights, buffer_size=1)._replace(check_schedule=check)


def _tell_of_other_routing(schedule: EventSchedule, shares: np.ndarray) -> None:
    """Warns where clients got tasks in other proportions than ``shares``: the steps are biased then."""
    given = np.bincount(
        np.concatenate([schedule.client, schedule.inflight_client, schedule.discarded_client]),
        minlength=schedule.num_clients,
    )
    expected = given.sum() * shares
    off = np.abs(given - expected) - _DEVIATIONS * np.sqrt(expected * (1 - shares)) - _TRIPS
    client = int(np.argmax(off))
    if off[client] > 0:
        warnings.warn(
            f"routing says that client {client} gets {expected[client]:,.0f} of the {given.sum():,} tasks, but it "
            f"got {given[client]:,}: the steps are not unbiased. Give jafl.queued and the rule the same routing.",
            stacklevel=2,
        )
