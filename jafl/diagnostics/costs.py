"""What a schedule costs in communication and memory."""

from typing import NamedTuple

import numpy as np

from jafl.base.errors import is_whole_number, require, whole_number
from jafl.diagnostics.checks import check_has_trips
from jafl.records import EventSchedule


class Costs(NamedTuple):
    """Communication of a whole run, and memory, in bytes except for the counts.

    Attributes:
      uploads: applied trips. A discarded trip counts as cancelled before its upload, which is true of over-selection
        and dropout; one that a staleness limit drops at its arrival had been uploaded too.
      downloads: started trips: applied, discarded, under way at the end.
      uploads_per_step: the last column of ACE's table a.1: 1 for the rules that step at every arrival, K with a
        buffer of K trips.
      upload_bytes: of all uploads.
      download_bytes: of all downloads.
      communicated_bytes: the two together.
      model_bytes: the server's model.
      buffer_bytes: updates that wait for the step, or their running sum.
      clients_memory_bytes: what the server stores of all clients.
      server_overhead_bytes: buffer and clients' memory together: the server's column of ACE's table a.3.
      client_overhead_bytes: what one client keeps between its trips: the clients' column of table a.3.
      total_overhead_bytes: of the server and all clients: the column "total cost" of table a.3.
      snapshot_bytes: old versions that the simulator holds for clients under way. A real server has sent them away,
        unless its rule needs a trip's ``start``.
    """

    uploads: int
    downloads: int
    uploads_per_step: float
    upload_bytes: int
    download_bytes: int
    communicated_bytes: int
    model_bytes: int
    buffer_bytes: int
    clients_memory_bytes: int
    server_overhead_bytes: int
    client_overhead_bytes: int
    total_overhead_bytes: int
    snapshot_bytes: int


def costs(
    schedule: EventSchedule,
    parameter_bytes: int,
    clients_memory_bytes_per_client: int = 0,
    *,
    buffered_updates: int | None = None,
    client_state_bytes: int = 0,
    update_bytes: int | None = None,
    download_bytes: int | None = None,
    snapshots: int = 0,
) -> Costs:
    """Communication and memory of one schedule and model as ACE compares them (tables a.1 and a.3), in bytes.

    Table a.1's communications per step and table a.3's three columns of overhead are here with their constants. The
    rates of convergence are left out, and so is the O(1) that table a.3 charges to a client or server without state
    (so "total cost" O(n) of vanilla ASGD is 0 here).

    Args:
      schedule: the event schedule.
      parameter_bytes: size of the model, d; an update or gradient has the same size where nothing compresses it, also
        where the server stores it with 8 bits (ACE-8bit sends full precision, appendix F.3.3).
      clients_memory_bytes_per_client: what the server stores of each of the N clients: d for CA2FL, ACE and ACED,
        d/4 for 8 bits of float32, 0 for rules without client memory.
      buffered_updates: updates of size d that the server holds until it steps. Default: 1, a running sum, or 0 where
        every step applies a single trip. Table a.3 charges FedBuff with the whole buffer: pass its size for a server
        that keeps all updates.
      client_state_bytes: what each client keeps between its trips: d for incremental ACE as the paper has it, with 0
        for the server (jafl's keeps the gradients on the server); what a client work keeps from trip to trip.
      update_bytes: what one client sends after a trip, where that is not the size of the model: a compressed update,
        ``compressor.bytes(params)``; twice the model for SCAFFOLD, which sends a control variate, too.
      download_bytes: what one client downloads for a trip, where that is not the size of the model: twice the model
        for SCAFFOLD.
      snapshots: versions that the simulator holds, ``ExecutionPlan.num_slots``.

    Returns:
      The ``Costs``.

    Raises:
      SettingError: for a number that is negative or not whole, or a schedule without applied trips.

    Examples:
      >>> schedule = jafl.synchronous(
      ...     num_clients=5, cohort_size=2, delay=jafl.delays.constant(1.0), server_steps=3
      ... )
      >>> jafl.diagnostics.costs(schedule, parameter_bytes=1000).upload_bytes
      6000
    """
    check_has_trips(schedule)
    model = _whole_bytes("parameter_bytes", parameter_bytes)
    row = _whole_bytes("clients_memory_bytes_per_client", clients_memory_bytes_per_client)
    state = _whole_bytes("client_state_bytes", client_state_bytes)
    sent = model if update_bytes is None else _whole_bytes("update_bytes", update_bytes)
    downloaded = model if download_bytes is None else _whole_bytes("download_bytes", download_bytes)
    if buffered_updates is None:
        buffered_updates = int(np.diff(schedule.step_offsets).max() > 1)
    whole_number("buffered_updates", buffered_updates, 0)
    whole_number("snapshots", snapshots, 0)

    uploads = schedule.num_trips
    downloads = uploads + len(schedule.discarded_client) + len(schedule.inflight_client)
    buffer = int(buffered_updates) * model
    memory = schedule.num_clients * row
    return Costs(
        uploads=uploads,
        downloads=downloads,
        uploads_per_step=uploads / schedule.num_steps,
        upload_bytes=uploads * sent,
        download_bytes=downloads * downloaded,
        communicated_bytes=uploads * sent + downloads * downloaded,
        model_bytes=model,
        buffer_bytes=buffer,
        clients_memory_bytes=memory,
        server_overhead_bytes=buffer + memory,
        client_overhead_bytes=state,
        total_overhead_bytes=buffer + memory + schedule.num_clients * state,
        snapshot_bytes=int(snapshots) * model,
    )


def _whole_bytes(name: str, value: int) -> int:
    """``value`` as an int, which may be above 2**31, unlike other whole numbers."""
    require(is_whole_number(value) and value >= 0, name, value, "a whole number of at least 0")
    return int(value)
