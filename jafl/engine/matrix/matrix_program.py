"""From prepared runs to the program of the matrix form, its arrays, and what the host makes for it chunk by chunk."""

import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jafl import engine
from jafl.base.buckets import bucket
from jafl.base.errors import require
from jafl.base.jaxpr_dependence import dependences
from jafl.clients.work import ClientData
from jafl.engine.devices import ONE_DEVICE, Placement, put
from jafl.engine.forms import tiled_rows
from jafl.engine.loop import client_memory
from jafl.engine.loop.client_memory import Row
from jafl.engine.matrix.linearity import LinearForm, NotLinear, find_linear_form, first_nonlinear_trip
from jafl.engine.matrix.matrices import ChunkMatrices, Layout, MatrixMaker, TripColumns, not_linear
from jafl.engine.matrix.segment_loop import (
    FIRST_VERSIONS,
    SHARED,
    VERSIONS_AT_ONCE,
    Groups,
    MatrixCarry,
    MatrixProgram,
    Segments,
)
from jafl.engine.matrix.segments import (
    NO_SLOT,
    SEGMENTS_PER_CHUNK,
    STATE_ARRAYS_PADDED_TO,
    Chunk,
    SegmentArrays,
    Segmentation,
    Sizes,
)
from jafl.engine.matrix.server_operations import initial
from jafl.engine.plan.device_memory import count_bytes
from jafl.engine.plan.run import Run
from jafl.records import ExecutionPlan, Params, Recall
from jafl.specifications import Specification

# Below this size there are rows for the clients' memory for rules that store nothing, too, to save compilations.
MEMORY_BYTES_FREELY = 2**28
# Below this size there are as many snapshots as any rule needs at this concurrency, likewise.
SNAPSHOT_BYTES_FREELY = 2**30


class MatrixRun(NamedTuple):
    """One run in the matrix form, on the host.

    Attributes:
      run: the run.
      plan: its waves.
      program: of the loop form, with the random key of every trip: what its trips read.
      form: what is known of its rule and its server optimizer.
    """

    run: Run
    plan: ExecutionPlan
    program: engine.Program
    linear_form: LinearForm

    @property
    def columns(self) -> dict[str, np.ndarray]:
        """The rule's columns, [J, ...] each."""
        return {
            name: column[: self.run.schedule.num_trips] for name, column in self.program.trips.columns.items()
        }

    @property
    def recall(self) -> Recall | None:
        """What the rule recalls; there may be rows of padding at the end."""
        return self.program.recall

    @property
    def stores(self) -> bool:
        """Whether the rule stores its clients' updates."""
        return self.program.rule.build().memory is not None

    @property
    def precision(self) -> str:
        """Of the clients' memory."""
        return str(self.program.rule.build().memory_precision)


def find_matrix_form(run: Run, program: engine.Program) -> LinearForm | NotLinear:
    """Finds out whether a run has a matrix form; ``program`` is that of its loop form.

    Raises:
      SettingError: if the rule is declared linear and is not: names the rule and the first trip that shows it.
    """
    if program.trips.version is not None:
        return NotLinear("the clients' learning rate follows a schedule over server steps")
    rule, optimizer = program.rule.build(), program.server_optimizer.build()
    columns = {name: column[: run.schedule.num_trips] for name, column in program.trips.columns.items()}
    form = find_linear_form(rule, optimizer, run.params, run.schedule.num_clients, columns, program.recall)
    if isinstance(form, NotLinear) and rule.linear:
        trip = first_nonlinear_trip(rule, run.schedule, columns, program.recall)
        if trip is not None:
            raise not_linear(program.rule, trip)
    if isinstance(form, LinearForm) and form.reads_work and _work_depends_on_training(program, run.params):
        return NotLinear("the rule reads how much work a trip was, which here depends on training")
    return form


def make_layout(runs: Sequence[MatrixRun], placement: Placement) -> Layout:
    """The coordinates of several runs that go together, in waves as wide as the widest of their plans."""
    most = max(run.linear_form.num_arrays for run in runs)
    # In few bits the stored value is not the update: it needs rows of its own beside the updates.
    stored = any(run.stores and run.precision != "full" for run in runs)
    # Memory in full precision stores the updates themselves, so they are kept though no factor reads them.
    keeps = any(run.linear_form.reads_update or (run.stores and run.precision == "full") for run in runs)
    starts = any(run.linear_form.reads_start for run in runs)
    # Padded, so that a rule with one more running sum, or an optimizer with momentum, is the same program.
    lasting = -(-most // STATE_ARRAYS_PADDED_TO) * STATE_ARRAYS_PADDED_TO
    width = max(run.plan.width for run in runs)
    sizes = Sizes.for_width(-(-width // placement.number) * placement.number)
    return Layout(lasting, Groups(keeps, starts, stored), sizes)


def make_matrix_program(
    run: MatrixRun, layout: Layout, placement: Placement, *, alone: bool = True
) -> MatrixProgram:
    """The program of one run, on the host; large examples are in parts where it is ``alone``."""
    placement = placement._replace(trips_folded_together=0, lanes=0, memory_is_sharded=False)
    placement = placement if alone else placement._replace(sharded_client_examples=0)
    data, work = run.program.data, run.program.client_work
    is_own = (False,) * len(jax.tree.leaves((data, work)))
    return MatrixProgram(data, work, is_own, 1, layout.groups, run.precision, placement)


def allocate(runs: Sequence[MatrixRun], layout: Layout, precision: str) -> MatrixCarry:
    """The carry before the first segment, of runs whose initial parameters are arrays, or all shapes."""
    lasting = [_initial_lasting(run, layout.state_arrays) for run in runs]
    slots = max(_slots(run) for run in runs)
    rows = max(_memory_rows(run) for run in runs)
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *lasting)
    placement = runs[0].program.placement
    sizes = {"slots": slots, "memory_rows": rows, "precision": precision}
    if placement.devices is None:
        return _allocate(stacked, **sizes, tiled=placement.rows.tiled)
    # Under eval_shape nothing can be put on a device, and nothing needs to be.
    if not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(stacked)):
        stacked = put(stacked, placement.everywhere())
    # Several devices hold a part of every row each; a tile may not lie across two of them.
    return _allocate(stacked, **sizes, tiled=False, placement=Placement(placement.devices))


def shapes(runs: Sequence[MatrixRun], layout: Layout) -> tuple[MatrixCarry, Segments]:
    """The shapes of the carry of runs that go together, and of a chunk of their segments."""

    def carry(params):
        alike = [run._replace(run=run.run._replace(params=params)) for run in runs]
        return allocate(alike, layout, shared_precision(runs))

    # They may be shapes already, of which JAX makes no array.
    params = jax.eval_shape(lambda params: params, runs[0].run.params)
    made: MatrixCarry = jax.eval_shape(carry, params)
    return made, shapes_of_segments(layout, len(runs), jax.tree.leaves(params)[0].dtype)


def shared_precision(runs: Sequence[MatrixRun]) -> str:
    """Of the clients' memory of runs that go together.

    Raises:
      SettingError: if they differ.
    """
    precisions = sorted({run.precision for run in runs if run.stores}) or ["full"]
    require(len(precisions) == 1, "memory_precision", precisions, "the same in all runs that go together")
    return precisions[0]


class PreparedChunk(NamedTuple):
    """A chunk as the device reads it.

    Attributes:
      chunk: what it is.
      segments: [P, ...] what the device reads.
      reports: of its trips and of its server steps.
    """

    chunk: Chunk
    segments: Segments
    reports: ChunkMatrices


class ChunkMaker:
    """Makes the chunks of one run in order: what the device reads of them, and what their trips and steps report.

    The next one is made beforehand, by ``make_next``, while the device computes.

    Args:
      run: the run.
      layout: the coordinates.
      stops: server steps after which somebody looks at the run.
    """

    def __init__(self, run: MatrixRun, layout: Layout, stops: Iterable[int]):
        self._run, self._layout = run, layout
        schedule = run.run.schedule
        self.segmentation = Segmentation(schedule, run.plan, run.recall, run.stores, layout.sizes, stops)
        self._keys = np.asarray(run.program.trips.key)
        self._maker = MatrixMaker(
            run.program.rule,
            run.program.server_optimizer,
            run.linear_form,
            layout,
            _trip_columns(run),
            None if run.recall is None else np.asarray(run.recall.weight),
            schedule.num_clients,
        )
        self.trip_reports, self.step_reports = self._maker.no_reports(
            self.segmentation.no_operations(), schedule.num_trips, schedule.num_steps
        )
        self._trips_done = self._steps_done = 0
        self._chunks = self._making(0)
        self._next: PreparedChunk | Exception | None = None

    def skip(self, last: int) -> None:
        """Goes on to a server step, without anything for the device; the reports are made."""
        for chunk in self.segmentation.chunks(0, last):
            # Numbers that the schedule decides pass from chunk to chunk: those before a checkpoint are made again.
            self._record(chunk, self._maker.make(chunk.operations))
        self._chunks = self._making(last)

    def make_next(self) -> None:
        """Makes the next chunk, if there is one; what goes wrong is raised where the chunk is taken."""
        if self._next is None:
            try:
                self._next = next(self._chunks, None)
            except Exception as error:
                self._next = error

    def take(self, last: int) -> PreparedChunk | None:
        """The next chunk that ends at the server step ``last`` or before; None if there is none."""
        self.make_next()
        made = self._next
        if isinstance(made, Exception):
            raise made
        if made is None or made.chunk.end > last:
            return None
        self._next = None
        self._record(made.chunk, made.reports)
        return made

    def _making(self, first: int) -> Iterator[PreparedChunk]:
        """Makes all chunks from a server step on."""
        for chunk in self.segmentation.chunks(first, self._run.run.schedule.num_steps):
            made = self._maker.make(chunk.operations)
            yield PreparedChunk(chunk, self._on_device(chunk.arrays, made.matrices), made)

    def nothing(self) -> Segments:
        """Segments [P, ...] that change nothing."""
        arrays = self.segmentation.no_arrays()
        sizes, lasting = self._layout.sizes, self._layout.state_arrays
        matrices = np.zeros((SEGMENTS_PER_CHUNK, lasting + sizes.versions, self._layout.length))
        # The identity on what lasts, and no version: a segment of a run that has ended changes nothing.
        matrices[:, range(lasting), range(lasting)] = 1
        return self._on_device(arrays, matrices)

    def _record(self, chunk: Chunk, made: ChunkMatrices) -> None:
        """Puts what a chunk's trips and steps report where it belongs."""
        for columns, rows, done, number in (
            (self.trip_reports, made.trip_reports, self._trips_done, chunk.num_trips),
            (self.step_reports, made.step_reports, self._steps_done, chunk.num_steps),
        ):
            for name, values in rows.items():
                columns[name][done : done + number] = values
        self._trips_done += chunk.num_trips
        self._steps_done += chunk.num_steps

    def _on_device(self, arrays: SegmentArrays, matrices: np.ndarray) -> Segments:
        trips, dtype = self._run.program.trips, jax.tree.leaves(self._run.run.params)[0].dtype
        kept = np.asarray(np.sum(arrays.write_slot < NO_SLOT, axis=1, dtype=np.int32))
        return Segments(
            uses_memory=np.array(self._run.stores),
            most=arrays.size,
            rounds=further_products(kept),
            size=arrays.size,
            client=np.asarray(trips.client)[arrays.trip],
            read_slot=np.asarray(trips.read_slot)[arrays.trip],
            key=self._keys[arrays.trip],
            matrix=matrices.astype(dtype),
            write_slot=arrays.write_slot,
            memory_client=arrays.memory_client,
            stored_client=arrays.stored_client,
        )


def further_products(kept: np.ndarray) -> np.ndarray:
    """How many products a segment takes after its first one, to make so many versions; ``Segments.rounds``."""
    return np.asarray(-(-np.maximum(kept - FIRST_VERSIONS, 0) // VERSIONS_AT_ONCE))


def stack_chunks(chunks: Sequence[Segments]) -> Segments:
    """The chunks of several runs as one: [P, B, ...] of each array, but for what all share."""
    arrays = {name: np.max([getattr(chunk, name) for chunk in chunks], axis=0) for name in SHARED}
    rest = [name for name in Segments._fields if name not in SHARED]
    return Segments(
        **arrays, **{name: np.stack([getattr(chunk, name) for chunk in chunks], axis=1) for name in rest}
    )


def shapes_of_segments(layout: Layout, runs: int, dtype: Any) -> Segments:
    """The shapes of a chunk's segments [P, B, ...]."""
    sizes, number = layout.sizes, SEGMENTS_PER_CHUNK

    def of(dtype, *shape):
        return jax.ShapeDtypeStruct((number, *shape), dtype)

    whole, flag = np.dtype(np.int32), np.dtype(bool)
    return Segments(
        uses_memory=jax.ShapeDtypeStruct((), flag),
        most=of(whole),
        rounds=of(whole),
        size=of(whole, runs),
        client=of(whole, runs, sizes.width),
        read_slot=of(whole, runs, sizes.width),
        key=of(np.dtype(np.uint32), runs, sizes.width, 2),
        matrix=of(dtype, runs, layout.state_arrays + sizes.versions, layout.length),
        write_slot=of(whole, runs, sizes.versions),
        memory_client=of(whole, runs, sizes.memory),
        stored_client=of(whole, runs, sizes.width),
    )


@functools.partial(jax.jit, static_argnames=("slots", "memory_rows", "precision", "tiled", "placement"))
def _allocate(
    lasting: Any,
    *,
    slots: int,
    memory_rows: int,
    precision: str,
    tiled: bool,
    placement: Placement = ONE_DEVICE,
) -> MatrixCarry:
    """lasting: [B, M, *P] of the initial model, and of all else that lasts."""
    params = jax.tree.map(lambda rows: rows[:, 0], lasting)

    def rows(number, dtype=None):
        return jax.tree.map(
            lambda p: jax.vmap(lambda row: tiled_rows.zeros(number, row, tiled, dtype))(p), params
        )

    def stored(number):
        dtype = client_memory.PRECISIONS[precision]
        scales = jax.tree.map(lambda p: jnp.zeros((len(p), number), p.dtype), params)
        return Row(rows(number, dtype), scales if dtype == jnp.int8 else ())

    carry = MatrixCarry(
        lasting=lasting,
        snapshots=jax.tree.map(jax.vmap(tiled_rows.starting_with), params, rows(slots)),
        memory=stored(memory_rows),
    )
    if placement.devices is None:
        return carry
    # No device ever holds more than its part.
    return jax.tree.map(
        lambda rows: lax.with_sharding_constraint(rows, placement.entries_sharding(rows)), carry
    )


def _initial_lasting(run: MatrixRun, lasting: int) -> Any:
    """[M, *P] of what lasts before the first step."""
    program = run.program
    return _lasting(
        program.rule,
        program.server_optimizer,
        run.run.params,
        num_clients=run.run.schedule.num_clients,
        is_array=run.linear_form.is_array,
        lasting=lasting,
    )


@functools.partial(jax.jit, static_argnames=("num_clients", "is_array", "lasting"))
def _lasting(
    rule: Specification,
    optimizer: Specification,
    params: Params,
    *,
    num_clients: int,
    is_array: tuple[bool, ...],
    lasting: int,
) -> Any:
    params = jax.tree.map(jnp.asarray, params)
    leaves = iter(jax.tree.leaves(initial(rule.build(), optimizer.build(), params, num_clients)))
    structure, number = jax.tree.structure(params), len(jax.tree.leaves(params))
    trees = []
    for vector in is_array:
        parts = [next(leaves) for _ in range(number if vector else 1)]
        trees += [jax.tree.unflatten(structure, parts)] if vector else []
    nothing = jax.tree.map(jnp.zeros_like, params)
    trees += [nothing] * (lasting - len(trees))
    return jax.tree.map(lambda *rows: jnp.stack(rows), *trees)


def _slots(run: MatrixRun) -> int:
    """Rows of the snapshot buffer: where that costs little, as many as any rule needs at this concurrency."""
    enough = max(run.run.schedule.concurrency, run.plan.num_slots) + 1
    if enough * count_bytes(run.run.params) <= SNAPSHOT_BYTES_FREELY:
        return bucket(enough)
    return bucket(run.plan.num_slots)


def _memory_rows(run: MatrixRun) -> int:
    """Rows of the clients' memory; one for rules without, unless a row for each client costs little."""
    clients = run.run.schedule.num_clients
    freely = clients * count_bytes(run.run.params) <= MEMORY_BYTES_FREELY
    return clients if run.stores or freely else 1


def _trip_columns(run: MatrixRun) -> TripColumns:
    """What the host knows of every trip."""
    schedule, data = run.run.schedule, run.program.data
    examples = np.diff(np.asarray(data.offsets))[schedule.client].astype(np.int32)
    used, steps = np.zeros((2, schedule.num_trips), np.int32)
    if run.linear_form.reads_work:
        used, steps = _work_of_trips(run)
    return TripColumns(schedule.client, schedule.staleness, examples, used, steps, run.columns)


def _work_of_trips(run: MatrixRun) -> tuple[np.ndarray, np.ndarray]:
    """[J] each: the examples and the local steps of every trip, from the client work's own code."""
    number = run.run.schedule.num_trips
    trips = run.program.trips
    used, steps = _amounts(
        run.program.client_work, run.program.data, run.run.params, trips.client[:number], trips.key[:number]
    )
    return np.asarray(used, np.int32), np.asarray(steps, np.int32)


@jax.jit
def _amounts(work: Specification, data: ClientData, params: Params, client: Any, key: Any) -> Any:
    """(examples, local steps) of trips, [J] each; nothing else is computed."""
    start = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), params)

    def of_trip(client, key):
        result = work.build().train(data, start, client, key)
        return result.batch_examples, result.local_steps

    return jax.vmap(of_trip)(client, key)


def _work_depends_on_training(program: engine.Program, params: Params) -> bool:
    """Whether how many examples or local steps a trip uses depends on the model that it starts from."""

    def amounts(start, client, key, data, work):
        result = work.build().train(data, start, client, key)
        return result.batch_examples, result.local_steps

    key = np.zeros(2, np.uint32)
    found = dependences(amounts, params, np.int32(0), key, program.data, program.client_work)
    own = set(range(len(jax.tree.leaves(params))))
    return any(own & leaf for leaf in found)
