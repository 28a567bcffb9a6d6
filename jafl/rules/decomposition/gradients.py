"""Full gradients: of a client's whole objective, at the model that it trained from and at the server's."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax

from jafl.base.errors import require
from jafl.clients.records import ClientData, ClientWork
from jafl.data import Federation
from jafl.records import Array, Arrival, Columns, EventSchedule, Gradients, Params, Updates
from jafl.rules import accumulate, cached, compensated
from jafl.rules.decomposition.checks import padded
from jafl.specifications import Specification

# The columns of a trip; a rule's own have other names.
MEASURED, FIRST, NEEDED = "decomposition_measured", "decomposition_first", "decomposition_needed"


class FullGradients(NamedTuple):
    """Full gradients in the units of updates, times -eta_l: what a client would send that used all its examples.

    work: one step of plain SGD on all of a client's examples. data: the clients' examples.
    """

    work: ClientWork
    data: ClientData

    def of(self, params: Params, client: Array) -> Updates:
        """[*P]: -eta_l grad F_client(params)."""
        return self.work.train(self.data, params, client, jnp.zeros(2, jnp.uint32)).update

    def trip_gradient(self, arrival: Arrival) -> Updates:
        """[*P]: -eta_l times the full gradient where a trip started; zeros if no measured step depends on it."""
        return lax.cond(
            arrival.columns[NEEDED],
            lambda: self.of(arrival.start, arrival.client),
            lambda: accumulate.zeros(arrival.start),
        )

    def total(self, params: Params) -> compensated.Sum:
        """-eta_l sum_i grad F_i(params), over all N clients."""

        def add(client, total):
            return compensated.add(total, self.of(params, client))

        return lax.fori_loop(0, self.num_clients, add, compensated.empty(params))

    def mean(self, total: compensated.Sum) -> Gradients:
        """[*P]: eta_l times the mean gradient, a direction to descend, from such a sum over all clients."""
        return accumulate.scaled(-1 / self.num_clients, compensated.value(total))

    @property
    def num_clients(self) -> int:
        """N."""
        return self.data.offsets.shape[0] - 1


class StaleGradients(NamedTuple):
    """``start`` [*P] is w^0, ``total`` the sum of -eta_l grad F_i(w_stale_i) over all clients i."""

    start: Params
    total: compensated.Sum

    def with_arrival(self, full: FullGradients, arrival: Arrival) -> "StaleGradients":
        """The sum with this arrival's gradient, ``stored``, in the place of its client's last one, ``previous``."""
        previous = lax.cond(
            arrival.columns[FIRST],
            lambda: full.of(self.start, arrival.client),  # nothing is stored yet
            lambda: arrival.previous["full"],
        )
        return self._replace(total=compensated.replace(self.total, arrival.stored["full"], previous))


def full_gradients(client_work: Specification, federation: Federation) -> Specification:
    """The specification of ``FullGradients``: the work with one batch of all examples; arrays are its leaves."""
    require(isinstance(federation, Federation), "federation", federation, "the run's jafl.Federation")
    # The objective is that of the model as it is evaluated: what dropout adds is noise.
    model = client_work.arguments["model"].as_evaluated()
    changes = {"model": model, "local_steps": 1, "local_epochs": None, "batch_size": 0}
    work = Specification(client_work.factory, {**client_work.arguments, **changes})
    partition = federation.partition
    data = Specification(
        ClientData,
        {
            "x": federation.x,
            "y": federation.y,
            "indices": padded(partition.indices.astype(np.int32)),
            "offsets": partition.offsets.astype(np.int32),
        },
    )
    return Specification(FullGradients, {"work": work, "data": data})


def columns(schedule: EventSchedule, at_steps: np.ndarray, every_trip: bool) -> Columns:
    """Which full gradients a run needs, [J] bool each.

    measured: of a trip whose step is. first: of the first applied trip of a client. needed: where the trip's step is
    measured, or one before that of the client's next trip; everywhere if ``every_trip``.
    """
    require(
        int(at_steps[-1]) < schedule.num_steps,
        "the last of at_steps",
        int(at_steps[-1]),
        f"below the schedule's number of server steps, {schedule.num_steps}",
    )
    measured = np.zeros(schedule.num_steps, bool)
    measured[at_steps] = True
    first = np.zeros(schedule.num_trips, bool)
    first[np.unique(schedule.client, return_index=True)[1]] = True
    until = np.maximum(cached.replaced_at(schedule), schedule.step + 1)
    before = np.concatenate([[0], np.cumsum(measured)])
    needed = (before[until] > before[schedule.step]) | every_trip
    return {MEASURED: measured[schedule.step], FIRST: first, NEEDED: needed}
