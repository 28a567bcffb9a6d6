"""From prepared runs to the program of the matrix form: its carry, and the chunks that the host makes one by one."""

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
from jafl.clients.records import ClientData
from jafl.engine.devices import ONE_DEVICE, Placement, put
from jafl.engine.forms import tiled_rows
from jafl.engine.loop import client_memory
from jafl.engine.loop.client_memory import Row
from jafl.engine.matrix.linearity import LinearForm, NotLinear, find_linear_form, first_nonlinear_trip
from jafl.engine.matrix.matrices import ChunkMatrices, Layout, MatrixMaker, TripColumns, not_linear_error
from jafl.engine.matrix.segment_loop import (
    MEMORY_BYTES_FREELY,
    SHARED,
    VERSIONS_AT_ONCE,
    ClientStates,
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
from jafl.engine.matrix.server_operations import initial_state
from jafl.engine.plan.device_memory import count_bytes
from jafl.engine.plan.run import Run
from jafl.records import ExecutionPlan, Params, Recall
from jafl.specifications import Specification

# If the snapshots take no more bytes than this, then there are as many as any rule needs at this concurrency, also to
# share a program.
SNAPSHOT_BYTES_FREELY = 2**30


class MatrixRun(NamedTuple):
    """One run in the matrix form, on the host.

    Attributes:
      run: the run.
      plan: its waves.
      program: of the loop form, with the random key of every trip; the matrix form reads its data, not its loops.
      linear_form: of its rule and its server optimizer.
    """

    run: Run
    plan: ExecutionPlan
    program: engine.Program
    linear_form: LinearForm

    @property
    def columns(self) -> dict[str, np.ndarray]:
        """The rule's columns, [J, ...] each."""
        return {
            name: column[: self.run.schedule.num_trips]
            for name, column in self.program.server.arrivals.columns.items()
        }

    @property
    def recall(self) -> Recall | None:
        """What the rule recalls, or None; there may be rows of padding at the end."""
        return self.program.server.recall

    @property
    def stores(self) -> bool:
        """Whether the rule stores its clients' updates."""
        return self.program.server.rule.build().memory is not None

    @property
    def precision(self) -> str:
        """In which the clients' memory holds its values: "full", "bfloat16" or "int8"."""
        return str(self.program.server.rule.build().memory_precision)


def find_matrix_form(run: Run, program: engine.Program) -> LinearForm | NotLinear:
    """Finds out whether a run has a matrix form.

    Args:
      run: the run.
      program: of its loop form.

    Returns:
      The linear form of its rule and its server optimizer, or why the run has no matrix form.

    Raises:
      SettingError: if the rule is declared linear and is not: names the rule and the first trip that shows it.
    """
    # Such a rate depends on the server step from which a trip trains, which the segments do not carry.
    if program.training.trips.version is not None:
        return NotLinear("the clients' learning rate follows a schedule over server steps")
    rule, optimizer = program.server.rule.build(), program.server.optimizer.build()
    if rule.broadcast or rule.correction:
        return NotLinear("the rule and its clients exchange more than models and updates")
    columns = {
        name: column[: run.schedule.num_trips] for name, column in program.server.arrivals.columns.items()
    }
    form = find_linear_form(
        rule, optimizer, run.params, run.schedule.num_clients, columns, program.server.recall
    )
    if isinstance(form, NotLinear) and rule.linear:
        # The analysis refuses some rules that are linear, so its answer alone does not prove the declaration wrong; a
        # trip does.
        trip = first_nonlinear_trip(rule, run.schedule, columns, program.server.recall)
        if trip is not None:
            raise not_linear_error(program.server.rule, trip)
    if isinstance(form, LinearForm) and form.reads_work and _work_depends_on_training(program, run.params):
        return NotLinear("the rule reads how much work a trip was, which here depends on training")
    return form


def make_layout(runs: Sequence[MatrixRun], placement: Placement) -> Layout:
    """The columns of the matrices of several runs in one program, in waves as wide as the widest of their plans."""
    num_arrays = max(run.linear_form.num_arrays for run in runs)
    # In few bits the stored value is not the update: it needs rows of its own beside the updates.
    stored = any(run.stores and run.precision != "full" for run in runs)
    # Memory in full precision stores the updates themselves, so they are kept though no factor reads them.
    updates = any(run.linear_form.reads_update or (run.stores and run.precision == "full") for run in runs)
    starts = any(run.linear_form.reads_start for run in runs)
    # Padded, so that a rule with one more running sum, or an optimizer with momentum, is the same program.
    state_arrays = -(-num_arrays // STATE_ARRAYS_PADDED_TO) * STATE_ARRAYS_PADDED_TO
    width = max(run.plan.width for run in runs)
    # Each device trains an equal share of the lanes.
    sizes = Sizes.for_width(-(-width // placement.number) * placement.number, placement.rows.first_versions)
    return Layout(state_arrays, Groups(updates, starts, stored), sizes)


def make_matrix_program(
    run: MatrixRun, layout: Layout, placement: Placement, *, alone: bool = True
) -> MatrixProgram:
    """The program of one run, on the host.

    Args:
      run: the run.
      layout: the columns of its matrices.
      placement: where trips train, in the loop form.
      alone: whether it is the only run of the program; then large examples may be divided among the devices.

    Returns:
      The program.
    """
    # What places the loop's folds and waiting rows means nothing here, and a program that differs in it would be
    # compiled once more.
    placement = placement._replace(trips_folded_together=0, lanes=0, memory_is_sharded=False)
    placement = placement if alone else placement._replace(sharded_client_examples=0)
    data, work = run.program.data, run.program.training.client_work
    is_own = (False,) * len(jax.tree.leaves((data, work)))
    return MatrixProgram(data, work, is_own, 1, layout.groups, run.precision, placement)


def allocate(runs: Sequence[MatrixRun], layout: Layout, precision: str) -> MatrixCarry:
    """The carry before the first segment.

    Args:
      runs: those of the program; their initial parameters are arrays, or under ``eval_shape`` shapes.
      layout: the columns of their matrices.
      precision: of the values in the clients' memory.

    Returns:
      The carry.
    """
    initial = [(_initial_state_arrays(run, layout.state_arrays), _first_state(run)) for run in runs]
    slots = max(_slots(run) for run in runs)
    rows = max(_memory_rows(run) for run in runs)
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *initial)
    placement = runs[0].program.placement
    sizes: dict[str, Any] = {"slots": slots, "memory_rows": rows, "precision": precision}
    if runs[0].run.keeps_client_state:
        # All runs have client work of one kind.
        sizes["client_work"] = runs[0].program.training.client_work
        sizes["state_rows"] = max(run.run.schedule.num_clients for run in runs)
    if placement.devices is None:
        return _allocate(*stacked, **sizes, tiled=placement.rows.tiled)
    # Under eval_shape nothing can be put on a device, and nothing needs to be.
    if not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(stacked)):
        stacked = put(stacked, placement.everywhere())
    # Several devices hold a part of every row each; a tile may not lie across two of them.
    return _allocate(*stacked, **sizes, tiled=False, placement=Placement(placement.devices))


def shapes(runs: Sequence[MatrixRun], layout: Layout) -> tuple[MatrixCarry, Segments]:
    """The shapes of the carry of the runs of one program, and of a chunk of their segments."""

    def allocate_from(params):
        runs_from_params = [run._replace(run=run.run._replace(params=params)) for run in runs]
        return allocate(runs_from_params, layout, shared_precision(runs))

    # The parameters may be shapes already, of which JAX makes no array.
    params = jax.eval_shape(lambda params: params, runs[0].run.params)
    carry: MatrixCarry = jax.eval_shape(allocate_from, params)
    with_steps = runs[0].program.training.trips.local_steps is not None
    dtype = jax.tree.leaves(params)[0].dtype
    return carry, shapes_of_segments(layout, len(runs), dtype, local_steps=with_steps)


def shared_precision(runs: Sequence[MatrixRun]) -> str:
    """The precision of the clients' memory in a program of these runs.

    Raises:
      SettingError: if two runs that store values differ in it.
    """
    # A rule that stores nothing can go with any precision. It is the type of the carry, so runs cannot differ in it.
    # But in 8 bits the rounding of a state depends on what lies in its row beside it: for all runs the same.
    state = runs[0].program.training.client_work.build().state
    rounded = state is not None and state.precision == "int8"
    precisions = sorted({run.precision for run in runs if run.stores or rounded}) or ["full"]
    require(len(precisions) == 1, "memory_precision", precisions, "the same in all runs that go together")
    return precisions[0]


class PreparedChunk(NamedTuple):
    """A chunk as the device reads it.

    Attributes:
      chunk: its segments on the host.
      segments: [P, ...] what the device reads of them.
      reports: the chunk's matrices, with the reports of its trips and of its server steps.
    """

    chunk: Chunk
    segments: Segments
    reports: ChunkMatrices


class ChunkMaker:
    """Makes the chunks of one run in order: what the device reads of them, and what their trips and steps report.

    ``make_next`` makes the next chunk while the device computes the one before.

    Args:
      run: the run.
      layout: the columns of its matrices.
      stops: server steps after which somebody looks at the run.
    """

    def __init__(self, run: MatrixRun, layout: Layout, stops: Iterable[int]):
        self._run, self._layout = run, layout
        schedule = run.run.schedule
        self.segmentation = Segmentation(schedule, run.plan, run.recall, run.stores, layout.sizes, stops)
        self._keys = np.asarray(run.program.training.trips.key)
        # All chunks have one shape, so this call for the shapes of the reports compiles the program for all of them.
        self._maker = MatrixMaker(
            run.program.server.rule,
            run.program.server.optimizer,
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
        self._chunks = self._prepare_chunks(0)
        self._next: PreparedChunk | Exception | None = None

    def skip(self, last: int) -> None:
        """Goes on to the server step ``last``, as after a checkpoint: records the reports, and drops the matrices."""
        for chunk in self.segmentation.chunks(0, last):
            # The bookkeeping of the state is no part of a checkpoint, and passes from chunk to chunk: so the chunks
            # before the checkpoint are made again.
            self._record(chunk, self._maker.make(chunk.operations))
        self._chunks = self._prepare_chunks(last)

    def make_next(self) -> None:
        """Makes the next chunk, if there is one and it is not made yet; ``take`` raises its exceptions."""
        if self._next is None:
            try:
                self._next = next(self._chunks, None)
            except Exception as error:
                self._next = error

    def take(self, last: int) -> PreparedChunk | None:
        """The next chunk that ends at the server step ``last`` or before; None if there is none."""
        self.make_next()
        chunk = self._next
        if isinstance(chunk, Exception):
            raise chunk
        if chunk is None or chunk.chunk.end > last:
            return None
        self._next = None
        # Not before: a run that stops at ``last`` has no reports of later steps.
        self._record(chunk.chunk, chunk.reports)
        return chunk

    def _prepare_chunks(self, first: int) -> Iterator[PreparedChunk]:
        """Makes all chunks from the server step ``first`` on."""
        for chunk in self.segmentation.chunks(first, self._run.run.schedule.num_steps):
            matrices = self._maker.make(chunk.operations)
            yield PreparedChunk(chunk, self._segments(chunk.arrays, matrices.matrices), matrices)

    def nothing(self) -> Segments:
        """Segments [P, ...] that change nothing."""
        sizes, state_arrays = self._layout.sizes, self._layout.state_arrays
        matrices = np.zeros((SEGMENTS_PER_CHUNK, state_arrays + sizes.versions, self._layout.length))
        # The identity on the state arrays, and no version: a run that has ended keeps its model while others go on.
        matrices[:, range(state_arrays), range(state_arrays)] = 1
        return self._segments(self.segmentation.no_arrays(), matrices)

    def _record(self, chunk: Chunk, matrices: ChunkMatrices) -> None:
        """Writes the reports of a chunk's trips and steps behind those of the chunks before."""
        for columns, rows, done, number in (
            (self.trip_reports, matrices.trip_reports, self._trips_done, chunk.num_trips),
            (self.step_reports, matrices.step_reports, self._steps_done, chunk.num_steps),
        ):
            for name, values in rows.items():
                columns[name][done : done + number] = values
        self._trips_done += chunk.num_trips
        self._steps_done += chunk.num_steps

    def _segments(self, arrays: SegmentArrays, matrices: np.ndarray) -> Segments:
        """[P, ...] what the device reads of segments, from their arrays and their matrices [P, M + S, D]."""
        trips, dtype = self._run.program.training.trips, jax.tree.leaves(self._run.run.params)[0].dtype
        versions = np.asarray(np.sum(arrays.write_slot < NO_SLOT, axis=1, dtype=np.int32))
        return Segments(
            uses_memory=np.array(self._run.stores),
            largest_wave=arrays.size,
            further_products=further_products(versions, self._layout.sizes.first_versions),
            size=arrays.size,
            client=np.asarray(trips.client)[arrays.trip],
            read_slot=np.asarray(trips.read_slot)[arrays.trip],
            key=self._keys[arrays.trip],
            # The host computes the factors in 64 bits, but the products are in the type of the model.
            matrix=matrices.astype(dtype),
            write_slot=arrays.write_slot,
            memory_client=arrays.memory_client,
            stored_client=arrays.stored_client,
            local_steps=None if trips.local_steps is None else np.asarray(trips.local_steps)[arrays.trip],
        )


def further_products(versions: np.ndarray, first_versions: int) -> np.ndarray:
    """How many products a segment takes after its first one, to make so many versions; ``Segments.further_products``.

    Example:
      >>> further_products(np.array([0, 8, 9, 24, 25]), first_versions=8)
      array([0, 0, 1, 1, 2])
    """
    return np.asarray(-(-np.maximum(versions - first_versions, 0) // VERSIONS_AT_ONCE))


def stack_chunks(chunks: Sequence[Segments]) -> Segments:
    """The chunks of several runs as one: [P, B, ...] of each array, except for those that all runs share."""
    # The maximum serves every run: more rounds than a run needs change nothing, and a rule without client memory has
    # the factors 0 for what it reads there.
    arrays = {name: np.max([getattr(chunk, name) for chunk in chunks], axis=0) for name in SHARED}
    rest = [name for name in Segments._fields if name not in SHARED]
    own = [{name: getattr(chunk, name) for name in rest} for chunk in chunks]
    return Segments(**arrays, **jax.tree.map(lambda *rows: np.stack(rows, axis=1), *own))


def shapes_of_segments(layout: Layout, runs: int, dtype: Any, *, local_steps: bool = False) -> Segments:
    """The shapes of a chunk's segments [P, B, ...]; with or without the ``local_steps`` of their trips."""
    sizes, number = layout.sizes, SEGMENTS_PER_CHUNK

    def shape(dtype, *axes):
        return jax.ShapeDtypeStruct((number, *axes), dtype)

    integer, flag = np.dtype(np.int32), np.dtype(bool)
    return Segments(
        uses_memory=jax.ShapeDtypeStruct((), flag),
        largest_wave=shape(integer),
        further_products=shape(integer),
        size=shape(integer, runs),
        client=shape(integer, runs, sizes.width),
        read_slot=shape(integer, runs, sizes.width),
        key=shape(np.dtype(np.uint32), runs, sizes.width, 2),
        matrix=shape(dtype, runs, layout.state_arrays + sizes.versions, layout.length),
        write_slot=shape(integer, runs, sizes.versions),
        memory_client=shape(integer, runs, sizes.memory),
        stored_client=shape(integer, runs, sizes.width),
        local_steps=shape(integer, runs, sizes.width) if local_steps else None,
    )


@functools.partial(
    jax.jit, static_argnames=("slots", "memory_rows", "precision", "tiled", "placement", "state_rows")
)
def _allocate(
    state_arrays: Any,
    first_state: tuple[Any, ...],
    *,
    slots: int,
    memory_rows: int,
    precision: str,
    tiled: bool,
    placement: Placement = ONE_DEVICE,
    client_work: Specification | None = None,
    state_rows: int = 0,
) -> MatrixCarry:
    """The carry before the first segment.

    Args:
      state_arrays: [B, M, *P] the initial ones; the model is the first of them.
      first_state: ``ClientStates.first``.
      slots: rows of the snapshot buffer.
      memory_rows: rows of the clients' memory.
      precision: of the values in the clients' memory.
      tiled: whether rows of matrices lie in whole tiles.
      placement: where trips train.
      client_work: that of the runs, or of one of them; None where clients keep nothing.
      state_rows: clients that keep something.

    Returns:
      The carry.
    """
    params = jax.tree.map(lambda rows: rows[:, 0], state_arrays)

    def rows(like, number, dtype=None):
        return jax.tree.map(
            lambda p: jax.vmap(lambda row: tiled_rows.zeros(number, row, tiled, dtype))(p), like
        )

    def stored(like, number, precision):
        dtype = client_memory.PRECISIONS[precision]
        scales = jax.tree.map(lambda p: jnp.zeros((len(p), number), p.dtype), like)
        return Row(rows(like, number, dtype), scales if dtype == jnp.int8 else ())

    states = None
    if client_work is not None and (request := client_work.build().state):
        kept = jax.vmap(request.initial)(params)
        states = ClientStates(stored(kept, state_rows, request.precision), first_state)
    carry = MatrixCarry(
        lasting=state_arrays,
        snapshots=jax.tree.map(jax.vmap(tiled_rows.starting_with), params, rows(params, slots)),
        memory=stored(params, memory_rows, precision),
        states=states,
    )
    if placement.devices is None:
        return carry
    # No device ever holds more than its part.
    return jax.tree.map(
        lambda rows: lax.with_sharding_constraint(rows, placement.entries_sharding(rows)), carry
    )


def _first_state(run: MatrixRun) -> tuple[Any, ...]:
    """[*S] of each leaf: ``ClientMemory.first``; () for clients that keep nothing."""
    if not run.run.keeps_client_state:
        return ()
    return _first_values(run.program.training.client_work, run.run.params)


@jax.jit
def _first_values(client_work: Specification, params: Params) -> tuple[Any, ...]:
    """As ``_first_state``, for a model [*P]."""
    request = client_work.build().state
    assert request is not None
    return client_memory.first_values(request.initial, jax.tree.map(jnp.asarray, params))


def _initial_state_arrays(run: MatrixRun, state_arrays: int) -> Any:
    """[M, *P] the state arrays before the first server step, padded to ``state_arrays``."""
    program = run.program
    return _state_arrays(
        program.server.rule,
        program.server.optimizer,
        run.run.params,
        num_clients=run.run.schedule.num_clients,
        is_array=run.linear_form.is_array,
        state_arrays=state_arrays,
    )


@functools.partial(jax.jit, static_argnames=("num_clients", "is_array", "state_arrays"))
def _state_arrays(
    rule: Specification,
    optimizer: Specification,
    params: Params,
    *,
    num_clients: int,
    is_array: tuple[bool, ...],
    state_arrays: int,
) -> Any:
    """As ``_initial_state_arrays``, from parameters [*P]."""
    params = jax.tree.map(jnp.asarray, params)
    leaves = iter(jax.tree.leaves(initial_state(rule.build(), optimizer.build(), params, num_clients)))
    structure, number = jax.tree.structure(params), len(jax.tree.leaves(params))
    trees = []
    for vector in is_array:
        parts = [next(leaves) for _ in range(number if vector else 1)]
        trees += [jax.tree.unflatten(structure, parts)] if vector else []
    zeros = jax.tree.map(jnp.zeros_like, params)
    trees += [zeros] * (state_arrays - len(trees))
    return jax.tree.map(lambda *rows: jnp.stack(rows), *trees)


def _slots(run: MatrixRun) -> int:
    """Rows of the snapshot buffer: if they take few bytes, as many as any rule needs at this concurrency."""
    # Trips under way hold one version each.
    enough = max(run.run.schedule.concurrency, run.plan.num_slots) + 1
    if enough * count_bytes(run.run.params) <= SNAPSHOT_BYTES_FREELY:
        return bucket(enough)
    return bucket(run.plan.num_slots)


def _memory_rows(run: MatrixRun) -> int:
    """Rows of the clients' memory: one for each client, or a single one where the rule stores nothing."""
    clients = run.run.schedule.num_clients
    freely = clients * count_bytes(run.run.params) <= MEMORY_BYTES_FREELY
    return clients if run.stores or freely else 1


def _trip_columns(run: MatrixRun) -> TripColumns:
    """What the host knows of every trip before it trains."""
    schedule, data = run.run.schedule, run.program.data
    examples = np.diff(np.asarray(data.offsets))[schedule.client].astype(np.int32)
    used, steps = np.zeros((2, schedule.num_trips), np.int32)
    # To count the work of all trips takes a program of its own, so only where a rule reads it.
    if run.linear_form.reads_work:
        used, steps = _work_of_trips(run)
    return TripColumns(schedule.client, schedule.staleness, examples, used, steps, run.columns)


def _work_of_trips(run: MatrixRun) -> tuple[np.ndarray, np.ndarray]:
    """[J] int32 each: the examples and the local steps of every trip, from the client work's own code."""
    number = run.run.schedule.num_trips
    trips = run.program.training.trips
    used, steps = _amounts(
        run.program.training.client_work,
        run.program.data,
        run.run.params,
        trips.client[:number],
        trips.key[:number],
        None if trips.local_steps is None else trips.local_steps[:number],
    )
    return np.asarray(used, np.int32), np.asarray(steps, np.int32)


@jax.jit
def _amounts(
    work: Specification, data: ClientData, params: Params, client: Any, key: Any, local_steps: Any
) -> Any:
    """(examples, local steps) of trips, [J] each."""
    # The compiler drops the training, because these numbers do not depend on it: ``find_matrix_form`` has checked
    # that. So any model will do as a start.
    start = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), params)
    built = work.build()
    state = built.state and built.state.initial(start)

    def count(client, key, local_steps):
        result = built.train(data._replace(local_steps=local_steps, state=state), start, client, key)
        return result.batch_examples, result.local_steps

    return jax.vmap(count)(client, key, local_steps)


def _work_depends_on_training(program: engine.Program, params: Params) -> bool:
    """Whether how many examples or local steps a trip uses depends on the model that it starts from, or on what its
    client has kept."""

    def amounts(trained, client, key, data, work):
        start, state = trained
        result = work.build().train(data._replace(state=state), start, client, key)
        return result.batch_examples, result.local_steps

    key, data, work = np.zeros(2, np.uint32), program.data, program.training.client_work
    if program.training.trips.local_steps is not None:
        data = data._replace(local_steps=np.int32(1))
    request = work.build().state
    trained = (params, request and jax.eval_shape(request.initial, params))
    arguments = dependences(amounts, trained, np.int32(0), key, data, work)
    trained_leaves = set(range(len(jax.tree.leaves(trained))))
    return any(trained_leaves & leaf for leaf in arguments)
