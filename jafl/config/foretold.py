"""What settings would take of the machine, said in a moment: numbers so large that a run could never be made."""

from jafl.base.errors import require
from jafl.clients.records import MOST_STEPS_OF_A_TRIP
from jafl.config.calls import TRIPS_PER_STEP, grammar
from jafl.config.settings import Settings
from jafl.engine.plan.device_memory import host_memory, readable

# Trips, examples of a trip and local steps are counted in 32 bits.
MOST_COUNTED = 2**31 - 1
# Bytes that a trip takes on the host at least: its row of the schedule, its draws, its place in the plan.
BYTES_OF_A_TRIP = 100
# Bytes of a client of the synthetic data: its own labelling model of 61 by 10 numbers; of an example with its copy.
BYTES_OF_A_LABELLING_MODEL, BYTES_OF_AN_EXAMPLE = 61 * 10 * 8, 2 * 60 * 4
# Bytes of one label of a client: an array of positions of its own.
BYTES_OF_A_LABEL = 150


def check(run: Settings) -> None:
    """Raises SettingError for a run that cannot be made on this machine, before anything large is made.

    run: its settings as ``resolve_run`` returns them. What memory the device needs is forecast later, and exactly.
    """
    _check_trips(run)
    _check_work(run)
    if run.dataset_name == "synthetic":
        _check_synthetic(run)
    if run.partition and (call := grammar("partition").read(run.partition)).name == "labels_per_client":
        labels, smallest = (call.arguments[name] for name in ("labels_per_client", "smallest"))
        size = run.num_clients * (labels * BYTES_OF_A_LABEL + 8 * smallest)
        _fits("num_clients", run.num_clients, size, "the partition", "Lower num_clients.")


def _check_trips(run: Settings) -> None:
    """Refuses more client trips than 32 bits count, or than memory holds."""
    name = "client_trips" if run.server_steps is None else "server_steps"
    size = TRIPS_PER_STEP.get(grammar("protocol").read(run.protocol).name)
    each = 1 if run.server_steps is None or size is None else max(run.value(f"protocol.{size}") or 1, 1)
    count = getattr(run, name) or 0
    extent = f"{count:,} server steps of {each:,} trips" if each > 1 else f"{count:,} trips"
    remedy = f"Lower {name}{f' or {size}' if each > 1 else ''}."
    allowed = f"such that there are below 2**31 trips, not {extent}"
    require(count * each <= MOST_COUNTED, name, count, allowed, remedy)
    _fits(name, count, count * each * BYTES_OF_A_TRIP, f"a schedule of {extent}", remedy)


def _check_work(run: Settings) -> None:
    """Refuses more local steps of a trip than 32 bits count, or than end within minutes."""
    if not isinstance(run.local_steps, int) or run.local_steps < 1 or run.batch_size < 0:
        return  # refused for itself, or the schedule's own
    most = min(MOST_STEPS_OF_A_TRIP, MOST_COUNTED // max(run.batch_size, 1))
    remedy = "A trip cannot be interrupted, and its examples are counted in 32 bits."
    allowed = f"at most {most:,} where batch_size is {run.batch_size:,}"
    require(run.local_steps <= most, "local_steps", run.local_steps, allowed, remedy)


def check_epochs(run: Settings, largest_client: int) -> None:
    """Raises SettingError where the passes over the largest client's examples are more than a trip may have."""
    epochs = run.value("client_work.local_epochs")
    if epochs is None or epochs < 1 or run.batch_size < 0:
        return
    steps_of_epoch = -(-largest_client // run.batch_size) if run.batch_size else 1
    most = min(MOST_STEPS_OF_A_TRIP // steps_of_epoch, MOST_COUNTED // largest_client)
    allowed = f"at most {most:,}, for a client has {largest_client:,} examples"
    remedy = "A trip cannot be interrupted, and its examples are counted in 32 bits."
    require(epochs <= most, "client_work.local_epochs", epochs, allowed, remedy)


def _check_synthetic(run: Settings) -> None:
    """The synthetic data set, which grows with the clients and their examples."""
    mean = run.value("dataset.mean_examples")
    if not (run.num_clients >= 1 and mean >= 2):
        return  # refused for itself
    models = 0 if run.value("dataset.shared_labels") else BYTES_OF_A_LABELLING_MODEL
    size = run.num_clients * (models + mean * BYTES_OF_AN_EXAMPLE)
    name = "num_clients" if run.num_clients > mean else "dataset.mean_examples"
    remedy = "Lower num_clients or dataset.mean_examples."
    _fits(name, run.value(name), size, "the data set synthetic", remedy)


def _fits(name: str, value: float, size: float, what: str, remedy: str) -> None:
    """Raises SettingError unless the host has so many bytes."""
    available = host_memory()
    allowed = f"such that {what} fits into this machine's {readable(available)} of memory: it takes {readable(size)}"
    require(size <= available, name, value, allowed, remedy)
