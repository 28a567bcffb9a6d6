"""The chunks of a run in the matrix form, made one by one on the host, and the reports of their trips and steps."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jafl.clients.records import ClientData
from jafl.engine.matrix.matrices import ChunkMatrices, MatrixMaker
from jafl.engine.matrix.matrix_program import MatrixRun
from jafl.engine.matrix.one_hot_server import TripColumns
from jafl.engine.matrix.records import SHARED, Layout, Segments
from jafl.engine.matrix.segments import (
    NO_SLOT,
    SEGMENTS_PER_CHUNK,
    VERSIONS_AT_ONCE,
    Chunk,
    SegmentArrays,
    Segmentation,
)
from jafl.records import Params
from jafl.specifications import Specification


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
        self.trip_reports, self.step_reports, self._broadcast = self._maker.no_reports(
            self.segmentation.no_operations(), schedule.num_trips, schedule.num_steps
        )
        self._trips_done = self._steps_done = self._steps_made = 0
        self._chunks = self._prepare_chunks(0)
        self._next: PreparedChunk | Exception | None = None

    def skip(self, last: int) -> None:
        """Goes on to the server step ``last``, as after a checkpoint: records the reports, and drops the matrices."""
        for chunk in self.segmentation.chunks(0, last):
            # The bookkeeping of the state is no part of a checkpoint, and passes from chunk to chunk: so the chunks
            # before the checkpoint are made again.
            self._record(chunk, self._make(chunk))
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
            matrices = self._make(chunk)
            yield PreparedChunk(chunk, self._segments(chunk.arrays, matrices.matrices), matrices)

    def _make(self, chunk: Chunk) -> ChunkMatrices:
        """The matrices of the next chunk; writes the numbers that the rule broadcasts with its versions."""
        matrices = self._maker.make(chunk.operations)
        # At once, because trips of this same chunk download them. Row 0 is the initial version's.
        first = self._steps_made + 1
        self._steps_made += chunk.num_steps
        for rows, values in zip(self._broadcast, matrices.broadcast, strict=True):
            rows[first : first + chunk.num_steps] = values
        return matrices

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
        downloaded = self._run.run.schedule.download_version[arrays.trip]
        versions = np.asarray(np.sum(arrays.write_slot < NO_SLOT, axis=1, dtype=np.int32))
        return Segments(
            uses_memory=np.array(self._run.stores),
            largest_wave=arrays.size,
            further_products=further_products(versions, self._layout.sizes.first_versions),
            size=arrays.size,
            client=np.asarray(trips.client)[arrays.trip],
            read_slot=np.asarray(trips.read_slot)[arrays.trip] * self._layout.sizes.version_arrays,
            key=self._keys[arrays.trip],
            # The host computes the factors in 64 bits, but the products are in the type of the model.
            matrix=matrices.astype(dtype),
            write_slot=arrays.write_slot,
            memory_client=arrays.memory_client,
            stored_client=arrays.stored_client,
            local_steps=None if trips.local_steps is None else np.asarray(trips.local_steps)[arrays.trip],
            broadcast=tuple(rows[downloaded] for rows in self._broadcast),
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
        run.program.server.rule,
        run.program.data,
        run.run.params,
        run.run.schedule.num_clients,
        trips.client[:number],
        trips.key[:number],
        None if trips.local_steps is None else trips.local_steps[:number],
    )
    return np.asarray(used, np.int32), np.asarray(steps, np.int32)


@jax.jit
def _amounts(
    work: Specification,
    rule: Specification,
    data: ClientData,
    params: Params,
    num_clients: int,
    client: Any,
    key: Any,
    local_steps: Any,
) -> Any:
    """(examples, local steps) of trips, [J] each."""
    # The compiler drops the training, because these numbers do not depend on it: ``find_matrix_form`` has checked
    # that. So any model will do as a start.
    start = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), params)
    built = work.build()
    state, server = built.state and built.state.initial(start), rule.build()
    broadcast = server.broadcast and server.broadcast(server.init(start, num_clients))

    def count(client, key, local_steps):
        own = data._replace(local_steps=local_steps, state=state, broadcast=broadcast)
        result = built.train(own, start, client, key)
        return result.batch_examples, result.local_steps

    return jax.vmap(count)(client, key, local_steps)
