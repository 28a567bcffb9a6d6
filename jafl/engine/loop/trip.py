"""One client trip on the device: it trains from a snapshot, arrives, and is folded into the rule's buffer."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

from jafl.base.errors import require
from jafl.clients.work import ClientData
from jafl.engine import devices
from jafl.engine.devices import Placement
from jafl.engine.forms import columns
from jafl.engine.forms.rows import row_at
from jafl.engine.loop import client_memory, waves
from jafl.engine.loop.client_memory import ClientMemory
from jafl.engine.loop.program import Program, Trained, Training
from jafl.records import ArrayTree, Arrival


def train_if_due(
    program: Program, snapshots: ArrayTree, trip: jax.Array, waiting: Trained | None
) -> Trained | None:
    """``waiting`` after the wave, if any, that is due before ``trip`` is folded."""
    if not program.waves:
        return None

    training = program.training

    def train(reads, trip):
        return train_trip(*reads, trip)

    def reads(trips):
        # Called only where the wave trains: otherwise every trip would fetch examples from other devices.
        in_parts = training.placement.sharded_client_examples
        return (_with_client_data(training, trips) if in_parts else training), snapshots

    after_wave: Trained = waves.train_if_due(program.waves, program.placement, train, reads, trip, waiting)
    return after_wave


def _with_client_data(training: Training, trips: jax.Array) -> Training:
    """The same with the examples of the clients of ``trips`` [W] alone."""
    # Before the wave trains: inside ``vmap`` each lane would fetch from the other devices by itself.
    own = data_of_clients(training.placement, training.data, training.trips.client[trips])
    return dataclasses.replace(training, data=own)


def data_of_clients(placement: Placement, data: ClientData, client: jax.Array) -> ClientData:
    """The examples of these clients [W] alone, on every device, fetched from the devices that hold parts of all.

    Clients' row numbers then point into these, up to ``placement.sharded_client_examples`` for each client.
    """
    begin, place = data.offsets[client][:, None], jnp.arange(placement.sharded_client_examples)
    # Clients have different numbers of examples; what is missing repeats the first one, and is never drawn.
    held = begin + place < data.offsets[client + 1][:, None]
    rows = data.indices[jnp.where(held, begin + place, begin)].reshape(-1)
    x, y = devices.on_all_devices(placement, (data.x[rows], data.y[rows]))
    fetched = jnp.arange(len(rows), dtype=data.indices.dtype).reshape(held.shape)
    # Places past a client's examples get an index past the end, which the update drops.
    entries = jnp.where(held, begin + place, len(data.indices))
    indices = data.indices.at[entries].set(fetched, mode="drop")
    return ClientData(x, y, indices, data.offsets)


def trained_trip(
    program: Program,
    snapshots: ArrayTree,
    trip: jax.Array,
    waiting: Trained | None,
) -> Trained:
    """The result of the trip's training, in its wave or now."""
    if not program.waves:
        return train_trip(program.training, snapshots, trip)
    trained: Trained = waves.fetch(program.waves, trip, waiting)
    return trained


def read_by_trip(training: Training, trip: jax.Array) -> ClientData:
    """The clients' examples, with the numbers of the trip that client work reads."""
    data, trips = training.data, training.trips
    if trips.version is not None:
        data = data._replace(version=trips.version[trip])
    if trips.local_steps is not None:
        data = data._replace(local_steps=trips.local_steps[trip])
    return data


def _client_data(training: Training, trip: jax.Array) -> ClientData:
    """The same, and where the client's examples lie, if that is read with the trip's other numbers."""
    data, trips = read_by_trip(training, trip), training.trips
    if trips.examples is None:
        return data
    # Read with the trip's other numbers, where each further look-up is an operation of its own.
    begin, end = trips.examples
    return data._replace(own=(begin[trip], end[trip]))


@functools.partial(jax.jit, inline=True)  # traced once, for the several places that ask for its shapes
def train_trip(training: Training, snapshots: ArrayTree, trip: jax.Array) -> Trained:
    """The work of client trip number ``trip``, from the snapshot that its client has downloaded."""
    trips, keeps_start = training.trips, training.keeps_start
    client = trips.client[trip]
    start = training.placement.rows.read_start(snapshots, trips.read_slot[trip], trip, keeps_start)
    # Built inside the trace: its numbers are then data, and another learning rate compiles nothing.
    work = training.client_work.build()
    result = work.train(_client_data(training, trip), start, client, trips.key[trip])
    # A start that no rule reads is left out: it would double what waits of each trip.
    return Trained(result, start if keeps_start else None)


def make_arrival(program: Program, trip: jax.Array, trained: Trained) -> Arrival:
    """What the rule sees of a trip, but for what the server has stored."""
    client = program.training.trips.client[trip]
    # Otherwise it is read where the rule uses it, by an operation of its own.
    staleness = program.placement.rows.pin(program.server.arrivals.staleness[trip])
    begin, end = _client_data(program.training, trip).own_offsets(client)
    return Arrival(
        update=trained.result.update,
        start=trained.start,
        client=client,
        staleness=staleness,
        num_examples=end - begin,
        batch_examples=trained.result.batch_examples,
        local_steps=trained.result.local_steps,
        loss=trained.result.loss,
        columns={name: column[trip] for name, column in program.server.arrivals.columns.items()},
    )


def make_arrivals(program: Program, first: jax.Array, count: int, waiting: Trained) -> Arrival:
    """What a rule sees of the trips ``first`` to ``first + count - 1``, all of which wait (``Rule.whole_step``)."""
    assert program.waves is not None
    data, arrivals = program.data, program.server.arrivals

    def part(column):
        return columns.part(column, first, count)

    rows = part(program.waves.read_row)
    numbers = waiting.result._replace(update=None)
    # A plan has only rows that exist; without the promise XLA checks each number.
    numbers = jax.tree.map(
        lambda column: column.at[rows].get(mode="promise_in_bounds", wrap_negative_indices=False), numbers
    )
    large = (waiting.result.update, waiting.start)
    # A tuple of rows, and not one array: to put them together would copy every update that waits.
    updates, starts = zip(*(row_at(large, rows[number], many=True) for number in range(count)), strict=True)
    client = part(program.training.trips.client)
    return Arrival(
        update=updates,
        start=None if waiting.start is None else starts,
        client=client,
        staleness=part(arrivals.staleness),
        num_examples=data.offsets[client + 1] - data.offsets[client],
        batch_examples=numbers.batch_examples,
        local_steps=numbers.local_steps,
        loss=numbers.loss,
        columns={name: part(column) for name, column in arrivals.columns.items()},
    )


def fold_trip(
    program: Program, trip: jax.Array, arrival: Arrival, buffer: Any, memory: ClientMemory | None
) -> tuple[Any, ClientMemory | None, dict]:
    """Folds an arrival into the rule's buffer and remembers what the rule wants to.

    The held row of the memory has been written.
    """
    rule = program.server.rule.build()
    if rule.remembers and memory:
        value = rule.remembers(arrival)
        rows, previous = program.placement.rows, client_memory.fetch(memory, arrival.client, value)
        previous, memory = rows.order_read_before_write(previous, memory)
        # With the trip's own words: so the random rounding to 8 bits is the same in every order of training.
        memory, stored = client_memory.hold(
            memory, arrival.client, value, program.training.trips.key[trip], rows
        )
        arrival = arrival._replace(previous=previous, stored=stored)
    buffer, report = rule.fold(buffer, arrival)
    # The loss is measured by client work, whatever the rule: its name must not be taken.
    require("loss" not in report, "the name of a rule's report", "loss", "another: the engine reports it")
    return buffer, memory, {"loss": arrival.loss, **report}


def remembered_shapes(program: Program, snapshots: ArrayTree) -> Any:
    """What the rule remembers of a trip, as shapes and dtypes."""
    trip = jnp.int32(0)

    # The first trip stands for all: they have the same shapes.
    def value():
        return program.server.rule.build().remembers(
            make_arrival(program, trip, train_trip(program.training, snapshots, trip))
        )

    return jax.eval_shape(value)
