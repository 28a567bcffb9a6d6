"""One client trip on the device: it trains from a snapshot, arrives, and is folded into the rule's buffer."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jafl.base.errors import require
from jafl.base.platform_forms import FORMS, Forms
from jafl.clients.work import ClientData, ClientResult
from jafl.engine import devices
from jafl.engine.devices import Spread
from jafl.engine.forms import carry_layout, columns
from jafl.engine.loop import client_memory, waves
from jafl.engine.loop.client_memory import ClientMemory
from jafl.engine.loop.program import Program, Trained
from jafl.records import ArrayTree, Arrival


def train_if_due(
    program: Program, snapshots: ArrayTree, trip: jax.Array, waiting: Trained | None
) -> Trained | None:
    """``waiting`` after the wave, if any, that is due before ``trip`` is folded."""
    if not program.waves:
        return None

    def train(reads, trip):
        return train_trip(*reads, trip)

    def reads(trips):
        return (_with_data_of(program, trips) if program.spread.data_apart else program), snapshots

    made: Trained = waves.train_if_due(program.waves, program.spread, train, reads, trip, waiting)
    return made


def _with_data_of(program: Program, trips: jax.Array) -> Program:
    """The program with the examples of the clients of ``trips`` [W] alone."""
    own = data_of_clients(program.spread, program.data, program.trips.client[trips])
    return dataclasses.replace(program, data=own)


def data_of_clients(spread: Spread, data: ClientData, client: jax.Array) -> ClientData:
    """The examples of these clients [W] alone, on every device, fetched from the devices that hold parts of all.

    Clients' row numbers then point into these, up to ``spread.data_apart`` for each client.
    """
    begin, place = data.offsets[client][:, None], jnp.arange(spread.data_apart)
    held = begin + place < data.offsets[client + 1][:, None]
    rows = data.indices[jnp.where(held, begin + place, begin)].reshape(-1)
    x, y = devices.on_all_devices(spread, (data.x[rows], data.y[rows]))
    fetched = jnp.arange(len(rows), dtype=data.indices.dtype).reshape(held.shape)
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
        return train_trip(program, snapshots, trip)
    trained: Trained = waves.fetch(program.waves, trip, waiting)
    return trained


def train(program: Program, snapshots: ArrayTree, trip: jax.Array) -> tuple[ClientResult, Any]:
    """The work of client trip number ``trip``, and the snapshot [*P] that it trains from."""
    client = program.trips.client[trip]
    forms = program.spread.forms
    start = client_memory.row_of(snapshots, program.trips.read_slot[trip], forms.vectors)
    start = read_once(start, trip, program.rule.build().needs_start, forms)
    work = program.client_work.build()
    return work.train(_data_of(program, trip), start, client, program.trips.key[trip]), start


def _data_of(program: Program, trip: jax.Array) -> ClientData:
    """The clients' examples, as the trip reads them."""
    data, trips = program.data, program.trips
    if trips.version is not None:
        data = data._replace(version=trips.version[trip])
    if trips.examples is None:
        return data
    begin, end = trips.examples
    return data._replace(own=(begin[trip], end[trip]))


def read_once(start: Any, trip: jax.Array, for_rule: bool, forms: Forms = FORMS["cpu"]) -> Any:
    """``start``, its leaves behind something that the compiler does not move other operations across.

    On a TPU that is a rounding that changes nothing. Else it would convert all snapshots to bfloat16 at every step,
    where it multiplies in bfloat16. A barrier does not prevent that, and a condition copies the leaves.

    On a CPU it is, for some leaves, a condition that always holds. Else their reading is fused into what uses them.
    Of a rule that needs the start these are the flat leaves: the rule's arithmetic is fused into the writing of the
    step's snapshot, and reading and writing the same array would copy all snapshots at every step. Of models with
    kernels of more than two axes these are vectors: biases and scales would be looked up anew for every pixel or
    token, which cost an eighth of such a trip.
    """
    if forms.barriers:
        return jax.tree.map(_as_it_is, start)
    leaves, tree = jax.tree.flatten(start)
    deep = any(jnp.ndim(leaf) > 2 for leaf in leaves)

    def once(leaf):
        vector = jnp.ndim(leaf) < 2
        return (for_rule and (vector or not carry_layout.keeps_shape(leaf))) or (deep and vector)

    some = {number: leaf for number, leaf in enumerate(leaves) if once(leaf)}
    if some:
        some = lax.cond(trip >= 0, lambda: some, lambda: jax.tree.map(jnp.zeros_like, some))
    return jax.tree.unflatten(tree, [some.get(number, leaf) for number, leaf in enumerate(leaves)])


def _as_it_is(leaf: jax.Array) -> jax.Array:
    """The leaf, rounded to its own type."""
    if not jnp.issubdtype(leaf.dtype, jnp.floating):
        return leaf
    kind = jnp.finfo(leaf.dtype)
    return lax.reduce_precision(leaf, int(kind.nexp), int(kind.nmant))


@functools.partial(jax.jit, inline=True)  # traced once, for the several places that ask for its shapes
def train_trip(program: Program, snapshots: ArrayTree, trip: jax.Array) -> Trained:
    result, start = train(program, snapshots, trip)
    return Trained(result, start if program.rule.build().needs_start else None)


def arrival_of(program: Program, trip: jax.Array, trained: Trained) -> Arrival:
    """What the rule sees of a trip, but for what the server has stored."""
    client, staleness = program.trips.client[trip], program.trips.staleness[trip]
    if program.spread.forms.packed:  # read with the others, not where it is used
        staleness = lax.optimization_barrier(staleness)
    begin, end = _data_of(program, trip).own_offsets(client)
    return Arrival(
        update=trained.result.update,
        start=trained.start,
        client=client,
        staleness=staleness,
        num_examples=end - begin,
        batch_examples=trained.result.batch_examples,
        local_steps=trained.result.local_steps,
        loss=trained.result.loss,
        columns={name: column[trip] for name, column in program.trips.columns.items()},
    )


def arrivals_of(program: Program, first: jax.Array, count: int, waiting: Trained) -> Arrival:
    """What a rule sees of the trips ``first`` to ``first + count - 1``, all of which wait (``Rule.whole_step``)."""
    assert program.waves is not None
    trips, of_waves = program.trips, program.waves

    def part(column):
        return columns.part(column, first, count)

    rows = part(of_waves.read_row)
    numbers = waiting.result._replace(update=None)
    numbers = jax.tree.map(
        lambda column: column.at[rows].get(mode="promise_in_bounds", wrap_negative_indices=False), numbers
    )
    large = (waiting.result.update, waiting.start)
    updates, starts = zip(
        *(client_memory.row_of(large, rows[number], as_vectors=False) for number in range(count)), strict=True
    )
    client = part(trips.client)
    return Arrival(
        update=updates,
        start=None if waiting.start is None else starts,
        client=client,
        staleness=part(trips.staleness),
        num_examples=program.data.offsets[client + 1] - program.data.offsets[client],
        batch_examples=numbers.batch_examples,
        local_steps=numbers.local_steps,
        loss=numbers.loss,
        columns={name: part(column) for name, column in trips.columns.items()},
    )


def fold_trip(
    program: Program, trip: jax.Array, arrival: Arrival, buffer: Any, memory: ClientMemory | None
) -> tuple[Any, ClientMemory | None, dict]:
    """Folds an arrival into the rule's buffer and remembers what the rule wants to; ``memory`` is settled."""
    rule = program.rule.build()
    if rule.remembers and memory:
        value = rule.remembers(arrival)
        previous, forms = client_memory.fetch(memory, arrival.client, value), program.spread.forms
        if forms.writes_at_once:  # the row is read, then written: else the memory is copied
            previous, memory = lax.optimization_barrier((previous, memory))
        memory, stored = client_memory.hold(memory, arrival.client, value, program.trips.key[trip], forms)
        arrival = arrival._replace(previous=previous, stored=stored)
    buffer, report = rule.fold(buffer, arrival)
    require("loss" not in report, "the name of a rule's report", "loss", "another: the engine reports it")
    return buffer, memory, {"loss": arrival.loss, **report}


def remembered_shapes(program: Program, snapshots: ArrayTree) -> Any:
    """What the rule remembers of a trip, as shapes and dtypes."""
    trip = jnp.int32(0)

    def value():
        return program.rule.build().remembers(arrival_of(program, trip, train_trip(program, snapshots, trip)))

    return jax.eval_shape(value)
