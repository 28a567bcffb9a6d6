"""One client trip on the device: it trains from a snapshot, arrives, and is folded into the rule's buffer."""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jafl.base.errors import require
from jafl.clients.records import ClientData
from jafl.engine import devices
from jafl.engine.devices import Placement
from jafl.engine.forms import columns
from jafl.engine.forms.tiled_rows import row_at
from jafl.engine.loop import client_memory, waves
from jafl.engine.loop.client_memory import ClientMemory
from jafl.engine.loop.program import Program, Trained, Training, Version
from jafl.records import ArrayTree, Arrival, Params


class StatesOfWave(NamedTuple):
    """What the clients of a wave's trips have kept: ``values`` [W, *S] of ``trips`` [W]."""

    values: Any
    trips: jax.Array


def train_if_due(
    program: Program,
    snapshots: ArrayTree,
    trip: jax.Array,
    waiting: Trained | None,
    memory: ClientMemory | None = None,
) -> Trained | None:
    """``waiting`` after the wave, if any, that is due before ``trip`` is folded.

    memory: of the clients, its held row written, if client work reads it.
    """
    if not program.waves:
        return None

    training = program.training

    def train(reads, trip):
        training, snapshots, states = reads
        return train_trip(training, snapshots, trip, states)

    def reads(trips):
        # Called only where the wave trains: otherwise every trip would fetch examples from other devices.
        in_parts = training.placement.sharded_client_examples
        states = _states_of_wave(training, snapshots, memory, trips) if memory else None
        return (_with_client_data(training, trips) if in_parts else training), snapshots, states

    after_wave: Trained = waves.train_if_due(program.waves, program.placement, train, reads, trip, waiting)
    return after_wave


def _states_of_wave(
    training: Training, snapshots: ArrayTree, memory: ClientMemory, trips: jax.Array
) -> ClientMemory | StatesOfWave:
    """Where the trips [W] of a wave find what their clients have kept: in the memory, or in rows of the wave."""
    if training.placement.devices is None:
        return memory
    # Rows may lie in parts on the devices; each device gets those of the wave, and not the whole memory.
    like = _like_state(training, snapshots)

    def value(trip):
        return client_memory.fetch_state(memory, training.trips.client[trip], like)

    return StatesOfWave(devices.on_all_devices(training.placement, jax.vmap(value)(trips)), trips)


def _like_state(training: Training, snapshots: ArrayTree) -> Any:
    """[*S] the shapes of what client work keeps for a client."""

    def value():
        start, _ = _download(training, snapshots, jnp.int32(0))
        return training.client_work.build().state.initial(start)

    return jax.eval_shape(value)


def _own_state(
    training: Training, snapshots: ArrayTree, trip: jax.Array, states: ClientMemory | StatesOfWave
) -> Any:
    """[*S]: what the client of a trip has kept."""
    if isinstance(states, StatesOfWave):
        # Repeated trips, which fill up a wave, find the same row.
        return row_at(states.values, jnp.argmax(states.trips == trip), many=False)
    like = _like_state(training, snapshots)
    return client_memory.fetch_state(states, training.trips.client[trip], like)


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


def train_or_fetch(
    program: Program,
    snapshots: ArrayTree,
    trip: jax.Array,
    waiting: Trained | None,
    memory: ClientMemory | None = None,
) -> Trained:
    """What the trip's training leaves, fetched from its wave or trained now; ``memory`` as in ``train_if_due``."""
    if not program.waves:
        return train_trip(program.training, snapshots, trip, memory)
    trained: Trained = waves.fetch(program.waves, trip, waiting)
    return trained


def _client_data(training: Training, trip: jax.Array) -> ClientData:
    """The clients' examples, with the numbers of the trip that client work reads."""
    data, trips = training.data, training.trips
    if trips.version is not None:
        data = data._replace(version=trips.version[trip])
    if trips.local_steps is not None:
        data = data._replace(local_steps=trips.local_steps[trip])
    # Where the client's examples lie, if that is read with the trip's other numbers: see ``Trips.examples``.
    if trips.examples is not None:
        begin, end = trips.examples
        data = data._replace(own=(begin[trip], end[trip]))
    return data


@functools.partial(jax.jit, inline=True)  # traced once, for the several places that ask for its shapes
def train_trip(
    training: Training,
    snapshots: ArrayTree,
    trip: jax.Array,
    states: ClientMemory | StatesOfWave | None = None,
    start: Params | None = None,
) -> Trained:
    """The work of client trip number ``trip``, from the snapshot that its client has downloaded.

    states: where its client's own state lies, if client work keeps one; None: it has the state of a first trip.
    start: [*P] another model to train from than the one that was downloaded.
    """
    trips, keeps_start = training.trips, training.keeps_start
    client = trips.client[trip]
    downloaded, broadcast = _download(training, snapshots, trip)
    start = downloaded if start is None else start
    # Built inside the trace: its numbers are then data, and another learning rate compiles nothing.
    work = training.client_work.build()
    data = _client_data(training, trip)._replace(broadcast=broadcast)
    if work.state is not None:
        if states is None:
            data = data._replace(state=work.state.initial(start))
        else:
            data = data._replace(state=_own_state(training, snapshots, trip, states))
    result = work.train(data, start, client, trips.key[trip])
    _check_state(data.state, result.state)
    # A start that no rule reads is left out: it would double what waits of each trip.
    return Trained(result, start if keeps_start else None)


def _download(training: Training, snapshots: ArrayTree, trip: jax.Array) -> tuple[Any, Any]:
    """What the client of a trip has downloaded: (the model [*P], what was broadcast with it or None)."""
    rows, slot = training.placement.rows, training.trips.read_slot[trip]
    version = rows.read_start(snapshots, slot, trip, training.keeps_start)
    return (version.model, version.broadcast) if isinstance(version, Version) else (version, None)


def _check_state(before: Any, after: Any) -> None:
    """Raises SettingError unless what a client keeps after a trip has the arrays of what it kept before."""

    def described(state: Any) -> str:
        return str(jax.tree.map(lambda leaf: f"{jnp.result_type(leaf)} {jnp.shape(leaf)}", state))

    remedy = "ClientWork.train returns in ClientResult.state a pytree like data.state, of the same types."
    fits = described(before) == described(after)
    require(fits, "the state that client work returns", described(after), described(before), remedy)


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
        sent=trained.result.sent,
    )


def make_arrivals(program: Program, first: jax.Array, count: int, waiting: Trained) -> Arrival:
    """What a rule sees of the trips ``first`` to ``first + count - 1``, all of which wait (``Rule.whole_step``).

    Clients that send something beside their updates keep something, too, and then no step is taken whole.
    """
    assert program.waves is not None
    data, arrivals = program.data, program.server.arrivals

    def part(column):
        return columns.part(column, first, count)

    rows = part(program.waves.read_row)
    numbers = waiting.result._replace(update=None, sent=None, state=None)
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
    program: Program,
    trip: jax.Array,
    arrival: Arrival,
    buffer: Any,
    memory: ClientMemory | None,
    state: Any = None,
) -> tuple[Any, ClientMemory | None, dict]:
    """Folds an arrival into the rule's buffer and remembers what the rule wants to, and what the client keeps.

    The held row of the memory has been written. state: [*S] what the trip's client keeps, or None.
    """
    rule = program.server.rule.build()
    if memory:
        value, previous, rows = None, None, program.placement.rows
        if rule.remembers:
            value = rule.remembers(arrival)
            previous = client_memory.fetch(memory.rule_part(), arrival.client, value)
        again = rule.remembers if rule.remembers and rule.memory.reads_previous else None
        keeps = isinstance(memory.codes, client_memory.Stored)
        # A new state follows from what was read of the old one: the row is written after both.
        if keeps:
            value = again(arrival._replace(previous=previous)) if again else value
            row: Any = client_memory.Stored(value, client_memory.row_of_state(memory.first, state))
            (previous, row), memory = rows.order_read_before_write((previous, row), memory)
        else:
            previous, memory = rows.order_read_before_write(previous, memory)
            row = again(arrival._replace(previous=previous)) if again else value
        # With the trip's own words: so the random rounding to 8 bits is the same in every order of training.
        memory, stored = client_memory.hold(
            memory, arrival.client, row, program.training.trips.key[trip], rows
        )
        arrival = arrival._replace(previous=previous, stored=stored.rule if keeps else stored)
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
