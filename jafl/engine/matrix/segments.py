"""Cuts a run into segments, each of which the matrix form computes with one product of matrices.

A segment first trains the trips that it folds. It is a wave of the plan, or a part of one. A segment ends where
somebody looks at the run (an evaluation, a checkpoint), and where one of the limits in ``Sizes`` is reached; the rest
of the wave is then the next segment.
"""

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from jafl.engine.matrix.memory_accesses import list_accesses
from jafl.engine.matrix.operation_order import order_operations
from jafl.records import EventSchedule, ExecutionPlan, Recall

# Segments in a chunk at most. All chunks have the shapes of this many, so that one program serves all.
SEGMENTS_PER_CHUNK = 32
# The server's arrays are padded to a multiple of this number, so that rules and optimizers share a program.
STATE_ARRAYS_PADDED_TO = 8
# Stands for "no slot", because no snapshot buffer has so many: XLA drops what is written past the last row.
NO_SLOT = 2**30
# Versions that each product of a segment makes after the first one, which makes ``first_versions`` beside the state
# arrays. A rule with a large buffer makes few versions of a wave, and then pays for no more rows than the first
# product has.
VERSIONS_AT_ONCE = 16


class Sizes(NamedTuple):
    """The limits of a segment. All segments have the same ones, so that one program computes them.

    Attributes:
      width: trips that train in the segment, W.
      versions: arrays that the segment writes for later trips, S: versions of the model, and what is broadcast with
        them.
      memory: clients whose stored values the segment reads or writes, G.
      operations: operations of the server in the segment, E.
      first_versions: those of the arrays that the segment's first product makes.
      version_arrays: arrays of one version: the model, then what is broadcast with it.
    """

    width: int
    versions: int
    memory: int
    operations: int
    first_versions: int
    version_arrays: int = 1

    @classmethod
    def for_width(cls, width: int, first_versions: int, recalls: bool, version_arrays: int = 1) -> "Sizes":
        """The limits for waves; they depend on nothing but the arguments, so that rules share a program.

        Args:
          width: trips in a wave.
          first_versions: that the first product makes at most, on these devices.
          recalls: whether the rule recalls other clients' values about as often as trips arrive.
          version_arrays: arrays of one version.
        """
        # No wave has more versions than trips; but 8 rows of a product cost no more than fewer.
        most = width * version_arrays
        first_versions = min(first_versions, max(most, 8))
        # Whole products, because each one reads a slice of this many rows: near the end of a shorter matrix JAX would
        # move the slice to the front, and take rows for the wrong versions.
        further_products = -(-max(0, most - first_versions) // VERSIONS_AT_ONCE)
        # Two clients at least: one operation may recall a value of one client and fold an update of another. If a
        # segment had room for one client only, it could not hold that operation, and the cutting would never end.
        versions = first_versions + further_products * VERSIONS_AT_ONCE
        # Else the cuts would come from these values, and not from the waves: ACED (1,000 clients in flight, the last
        # 300 steps' active) has segments of 38.5 trips in place of 27.6.
        memory = (1 + recalls) * width
        return cls(width, versions, max(memory, 2), 4 * width, first_versions, version_arrays)


class SegmentOperations(NamedTuple):
    """The operations of the server in segments, for ``matrices``: [P, E] each, P segments of at most E operations.

    A coordinate says where a client's stored value is: 0 to W - 1 are the lanes of the segment, and W and more are
    the clients of ``SegmentArrays.memory_client``, in their order.

    Attributes:
      num_operations: [P] int32, operations of each segment.
      opens, recalls, folds, closes: bool, as in ``Operation``.
      trip: int32, the trip that is folded; 0 where none is.
      recall_row: int32, the row of ``Recall``; 0 where none is read.
      lane: int32, the lane of the trip.
      previous_coordinate: int32, where the value is that was stored before for the trip's client.
      recalled_coordinate: int32, where the recalled value is.
      version_row: int32, the first row of the new version among the arrays that the segment writes; S where no trip
        reads it.
      step: int32, the server step.
    """

    num_operations: np.ndarray
    opens: np.ndarray
    recalls: np.ndarray
    folds: np.ndarray
    closes: np.ndarray
    trip: np.ndarray
    recall_row: np.ndarray
    lane: np.ndarray
    previous_coordinate: np.ndarray
    recalled_coordinate: np.ndarray
    version_row: np.ndarray
    step: np.ndarray


class SegmentArrays(NamedTuple):
    """What the device reads of segments, int32: P segments, W lanes, S versions, G clients.

    Attributes:
      size: [P] trips that train in each segment.
      trip: [P, W] these trips; further lanes repeat the last one.
      write_slot: [P, S] the rows of the snapshots for the versions' arrays; ``NO_SLOT`` or more for further ones.
      memory_client: [P, G] the clients whose stored values are read; 0 for further ones.
      stored_client: [P, W] the client for which the value of each lane is stored; N or more for none.
    """

    size: np.ndarray
    trip: np.ndarray
    write_slot: np.ndarray
    memory_client: np.ndarray
    stored_client: np.ndarray


@dataclasses.dataclass(frozen=True)
class Chunk:
    """Segments that the device computes in one call.

    Where a server step takes more than P segments, several chunks in a row have the same ``end``.

    Attributes:
      end: the server step after which the run may stop.
      count: how many of the P segments are computed; the others are padding.
      operations: [P, E] what the server does in the segments.
      arrays: what the device reads of them.
    """

    end: int
    count: int
    operations: SegmentOperations
    arrays: SegmentArrays

    @property
    def num_trips(self) -> int:
        """Trips that are folded."""
        return int(self.operations.folds.sum())

    @property
    def num_steps(self) -> int:
        """Server steps that are closed."""
        return int(self.operations.closes.sum())


class Segmentation:
    """The segments of a run.

    Args:
      schedule: the events.
      plan: waves of at most ``sizes.width`` trips that are folded one after the other.
      recall: what the rule recalls, or None.
      remembers: whether the rule stores its clients' updates.
      sizes: the limits of a segment.
      stops: server steps after which somebody looks at the run.

    Example:
      Four clients train at once, and the buffer holds two trips. Step 0 folds the trips 0 and 1, step 1 the
      trips 2 and 3. One wave trains all four trips, so there is one segment of four operations.

      >>> schedule = jafl.asynchronous(
      ...     num_clients=4, concurrency=4, buffer_size=2, delay=jafl.delays.constant(1.0), server_steps=2
      ... )
      >>> plan = jafl.in_waves(schedule, 4, form="matrix")
      >>> sizes = Sizes(width=4, versions=2, memory=4, operations=16, first_versions=2)
      >>> segmentation = Segmentation(schedule, plan, None, False, sizes, stops=())
      >>> [chunk] = segmentation.chunks(0, 2)
      >>> chunk.count, chunk.operations.trip[0, :4], chunk.operations.step[0, :4]
      (1, array([0, 1, 2, 3], dtype=int32), array([0, 0, 1, 1], dtype=int32))

      An evaluation after the first step cuts the wave in two.

      >>> segmentation = Segmentation(schedule, plan, None, False, sizes, stops=[1])
      >>> [(chunk.end, int(chunk.arrays.size[0])) for chunk in segmentation.chunks(0, 2)]
      [(1, 2), (2, 2)]
    """

    def __init__(
        self,
        schedule: EventSchedule,
        plan: ExecutionPlan,
        recall: Recall | None,
        remembers: bool,
        sizes: Sizes,
        stops: Iterable[int],
    ):
        self._schedule, self._plan, self._sizes = schedule, plan, sizes
        # Three passes over the whole run, in NumPy, because a loop in Python over all operations is slow: their
        # order, their accesses to the clients' memory, and the cuts between segments.
        first_recall = np.zeros(schedule.num_steps + 1, np.int64)
        recall_client = np.zeros(0, np.int64)
        if recall is not None:
            # Rows of padding follow after those of the last step, so that recalls of similar length share a program.
            first_recall = np.asarray(recall.first_row[: schedule.num_steps + 1], np.int64)
            recall_client = np.asarray(recall.client)
        self._order = order_operations(schedule.step, schedule.step_offsets, first_recall)
        self._accesses = list_accesses(self._order, schedule.client, recall_client, remembers)
        self._closes = self._order.closes()
        # A version that no trip trains from has no slot: the server passes through it, but nobody stores it.
        self._is_written = self._closes & (plan.write_slot[self._order.step] < plan.num_slots)
        stop_steps = np.array(sorted({0, schedule.num_steps, *stops}), np.int64)
        self._begin = self._cut(stop_steps)
        self._chunk_segments = self._group(stop_steps)
        self._chunk_steps = np.searchsorted(self._order.first_operation, self._begin[self._chunk_segments])

    def ends(self) -> np.ndarray:
        """The server steps at which chunks end, in order; the last is the schedule's."""
        return self._chunk_steps[1:]

    def chunks(self, first: int, last: int) -> Iterator[Chunk]:
        """The chunks between two server steps at which chunks end, or 0."""
        begin, end = np.searchsorted(self._chunk_steps, [first, last])
        for number in range(begin, end):
            segments = range(self._chunk_segments[number], self._chunk_segments[number + 1])
            # A step of a large buffer may take more segments than a chunk has, and the run cannot stop within it.
            for part in range(segments.start, segments.stop, SEGMENTS_PER_CHUNK):
                some = range(part, min(part + SEGMENTS_PER_CHUNK, segments.stop))
                end = int(self._chunk_steps[number + 1])
                yield Chunk(end, len(some), self._operations(some), self._arrays(some))

    def _cut(self, stop_steps: np.ndarray) -> np.ndarray:
        """[number of segments + 1] int64: the first operation of each segment, then the number of operations."""
        order, sizes = self._order, self._sizes
        # A wave trains at the beginning of a segment, because its versions exist only then. And a segment may not go
        # beyond a stop, because the model of that server step is not among the segment's results otherwise.
        due = np.append(order.trip_operation[self._plan.wave_before], len(order.trip))
        bounds = np.union1d(due, order.first_operation[stop_steps])
        written_before = np.concatenate([[0], np.cumsum(self._is_written)])
        begins: list[int] = []
        for begin, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            while begin < end:
                begins.append(begin)
                # The last operation up to which the segment writes no more versions than its matrix has rows for.
                most = written_before[begin] + sizes.versions // sizes.version_arrays
                fitting = int(np.searchsorted(written_before, most, side="right")) - 1
                until = min(end, begin + sizes.operations, fitting)
                begin = self._accesses.end_within(begin, until, sizes.memory)
        return np.array([*begins, len(order.trip)])

    def _group(self, stop_steps: np.ndarray) -> np.ndarray:
        """[number of chunks + 1] int64: the first segment of each chunk, then the number of segments."""
        first_operation = self._order.first_operation
        # The host looks at a run between two chunks only, and only after a whole server step. So a chunk ends at
        # every stop, and else at the first step that ends after enough segments.
        is_stop = np.isin(self._begin, first_operation[stop_steps])
        begins_step = np.isin(self._begin, first_operation)
        ends = [0]
        for segment in range(1, len(self._begin)):
            is_full = segment - ends[-1] >= SEGMENTS_PER_CHUNK
            if is_stop[segment] or (begins_step[segment] and is_full):
                ends.append(segment)
        return np.array(ends)

    def no_operations(self) -> SegmentOperations:
        """Segments in which the server does nothing."""
        shape = (SEGMENTS_PER_CHUNK, self._sizes.operations)
        flags, numbers = [np.zeros((4, *shape), bool), np.zeros((7, *shape), np.int32)]
        return SegmentOperations(np.zeros(shape[0], np.int32), *flags, *numbers)

    def _operations(self, segments: range) -> SegmentOperations:
        """What the server does in these segments."""
        order, operations = self._order, self.no_operations()
        for row, segment in enumerate(segments):
            begin, end = self._begin[segment : segment + 2].tolist()
            operations.num_operations[row] = end - begin
            trip, recall_row, step = order.trip[begin:end], order.recall_row[begin:end], order.step[begin:end]
            is_written = self._is_written[begin:end]
            first_trip = order.first_trip(begin)
            previous, recalled = self._accesses.coordinates(begin, end, first_trip, self._sizes.width)
            columns = {
                "opens": np.arange(begin, end) == order.first_operation[step],
                "recalls": recall_row >= 0,
                "folds": trip >= 0,
                "closes": self._closes[begin:end],
                # ``operate`` computes all its parts and then drops those that are not marked. So an operation without
                # a trip or a recalled value looks one up nevertheless, and needs a number that exists.
                "trip": np.maximum(trip, 0),
                "recall_row": np.maximum(recall_row, 0),
                "lane": np.maximum(trip, 0) - first_trip,
                "previous_coordinate": previous,
                "recalled_coordinate": recalled,
                # Row S does not exist, so the version that it is meant for is dropped.
                "version_row": np.where(
                    is_written, (np.cumsum(is_written) - 1) * self._sizes.version_arrays, self._sizes.versions
                ),
                "step": step,
            }
            for name, values in columns.items():
                getattr(operations, name)[row, : end - begin] = values
        return operations

    def no_arrays(self) -> SegmentArrays:
        """Segments in which nothing happens."""
        sizes, count = self._sizes, SEGMENTS_PER_CHUNK
        return SegmentArrays(
            size=np.zeros(count, np.int32),
            trip=np.zeros((count, sizes.width), np.int32),
            write_slot=_rows_past_the_end(NO_SLOT, count, sizes.versions),
            memory_client=np.zeros((count, sizes.memory), np.int32),
            stored_client=_rows_past_the_end(self._schedule.num_clients, count, sizes.width),
        )

    def _arrays(self, segments: range) -> SegmentArrays:
        """What the device reads of these segments."""
        order, accesses, arrays = self._order, self._accesses, self.no_arrays()
        for row, segment in enumerate(segments):
            begin, end = self._begin[segment : segment + 2].tolist()
            trips = order.trip[begin:end]
            trips = trips[trips >= 0]
            arrays.size[row] = len(trips)
            # Lanes without a trip repeat the last one: they train, and no factor of the matrix reads them.
            if len(trips):
                arrays.trip[row, : len(trips)] = trips
                arrays.trip[row, len(trips) :] = trips[-1]
            written = np.flatnonzero(self._is_written[begin:end]) + begin
            slots = rows_of_slots(self._plan.write_slot[order.step[written]], self._sizes.version_arrays)
            arrays.write_slot[row, : slots.size] = slots.reshape(-1)
            clients = accesses.clients(begin, end)
            arrays.memory_client[row, : len(clients)] = clients
            newest = accesses.newest(begin, end)
            lanes = accesses.trip[newest] - order.first_trip(begin)
            arrays.stored_client[row, lanes] = accesses.client[newest]
        return arrays


def rows_of_slots(slots: Any, version_arrays: int) -> Any:
    """[..., A] the rows of the snapshots in which the A arrays of a version lie, for ``slots`` [...].

    Example:
      >>> rows_of_slots(np.array([0, 3]), 2)
      array([[0, 1],
             [6, 7]])
    """
    return slots[..., None] * version_arrays + np.arange(version_arrays, dtype=slots.dtype)


def _rows_past_the_end(first: int, count: int, number: int) -> np.ndarray:
    """[count, number] int32: ``first``, ``first + 1``, ... in each row: numbers of rows that an array does not have.

    Example:
      >>> _rows_past_the_end(100, 2, 3)
      array([[100, 101, 102],
             [100, 101, 102]], dtype=int32)
    """
    # They differ although all are dropped, because the write promises XLA that no row occurs twice.
    return np.tile(np.arange(first, first + number, dtype=np.int32), (count, 1))
