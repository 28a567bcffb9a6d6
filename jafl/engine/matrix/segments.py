"""Cuts a run into segments, each of which the matrix form computes with one product of matrices.

A segment trains the trips that are folded in it, at its beginning. It is a wave of the plan, or a part of one: where
somebody looks at the run (an evaluation, a checkpoint), and where one of the sizes of ``Sizes`` is used up, a segment
ends and the rest of the wave is the next one.
"""

import dataclasses
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from jafl.engine.matrix.segment_loop import FIRST_VERSIONS, VERSIONS_AT_ONCE
from jafl.records import EventSchedule, ExecutionPlan, Recall

# Segments from one place to the next where a chunk of server steps may end.
SEGMENTS_PER_CHUNK = 32
# Arrays that last are padded to a multiple of this, so that rules and optimizers share a program.
LASTING_PADDED_TO = 8
# No snapshot buffer has so many slots.
NO_SLOT = 2**30


class Sizes(NamedTuple):
    """What a segment may take at most; of all segments alike, so that one program computes them.

    Attributes:
      width: trips that train together, W.
      versions: versions of the model that later trips read, S.
      memory: clients whose stored values are read or written, G.
      operations: arrivals and recalled values, E.
    """

    width: int
    versions: int
    memory: int
    operations: int

    @classmethod
    def for_width(cls, width: int) -> "Sizes":
        """The sizes for waves of this width: they depend on nothing else, so that rules share a program."""
        rounds = -(-max(0, width - FIRST_VERSIONS) // VERSIONS_AT_ONCE)
        # Two clients at least: one operation may recall a value of one client and fold an update of another. With
        # fewer a segment would never end.
        return cls(width, FIRST_VERSIONS + rounds * VERSIONS_AT_ONCE, max(width, 2), 4 * width)


class SegmentOperations(NamedTuple):
    """What the server does in segments [P, E], for ``jafl.engine.matrix.matrices``; P segments, E operations.

    Coordinates count the lanes from 0 to W - 1, and from W on the clients of ``Segments.memory_client``.

    Attributes:
      number: [P] operations of each segment.
      opens, recalls, folds, closes: bool, as in ``Operation``.
      trip: the trip that is folded; any where none is.
      recalled: the row of ``Recall``; any where none is.
      lane: the trip's lane.
      previous: coordinate of what was stored for its client before.
      recalled_at: coordinate of the recalled value.
      version: place among the versions that are kept; S where nobody reads it.
      step: the server step.
    """

    number: np.ndarray
    opens: np.ndarray
    recalls: np.ndarray
    folds: np.ndarray
    closes: np.ndarray
    trip: np.ndarray
    recalled: np.ndarray
    lane: np.ndarray
    previous: np.ndarray
    recalled_at: np.ndarray
    version: np.ndarray
    step: np.ndarray


class SegmentArrays(NamedTuple):
    """What the device reads of segments, int32: P segments, W lanes, S versions, G clients.

    Attributes:
      size: [P] trips that train in each segment.
      trip: [P, W] these trips; further lanes repeat the last one.
      write_slot: [P, S] the snapshot slots of the versions; ``NO_SLOT`` or more for further ones.
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
    """Segments that are computed in one go, ``count`` of P; ``end``: the server step after which the run may stop.

    Of several chunks with one end all are computed up to it.
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
      sizes: what a segment may take.
      stops: server steps after which somebody looks at the run.
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
        # Three passes over the whole run, in NumPy: what happens in which order, which values of the clients' memory
        # each operation touches, and where segments begin. Chunks are then cut out of these arrays.
        self._order(recall)
        self._accesses(recall, remembers)
        self._cut(np.array(sorted({0, schedule.num_steps, *stops}), np.int64))

    def ends(self) -> np.ndarray:
        """The server steps at which chunks end, in order; the last is the schedule's."""
        return self._chunk_steps[1:]

    def chunks(self, first: int, last: int) -> Iterator[Chunk]:
        """The chunks between two server steps at which chunks end, or 0."""
        begin, end = np.searchsorted(self._chunk_steps, [first, last])
        for number in range(begin, end):
            segments = range(self._chunk_segments[number], self._chunk_segments[number + 1])
            for part in range(segments.start, segments.stop, SEGMENTS_PER_CHUNK):
                some = range(part, min(part + SEGMENTS_PER_CHUNK, segments.stop))
                end = int(self._chunk_steps[number + 1])
                yield Chunk(end, len(some), self._operations(some), self._arrays(some))

    def _order(self, recall: Recall | None) -> None:
        """All operations in order. The first arrival of a step shares one with the step's last recalled value.

        A step without arrivals has an operation of its own.
        """
        schedule = self._schedule
        step, trips = schedule.step.astype(np.int64), np.arange(schedule.num_trips)
        first_trip = schedule.step_offsets
        shown: np.ndarray = np.zeros(schedule.num_steps, np.int64)
        if recall is not None:
            shown = np.diff(np.asarray(recall.first_row[: schedule.num_steps + 1], np.int64))
        # A step that recalls r values and folds k trips takes max(r - 1, 0) + k operations: its last recalled value
        # shares one with its first arrival. A step without arrivals still opens and closes: one operation.
        without_arrival = np.maximum(shown - 1, 0) + (np.diff(first_trip) == 0)
        # So each step's trips stand behind all operations without an arrival up to this step.
        before = np.cumsum(without_arrival)  # operations up to each step
        self._operation_of_trip = trips + before[step]
        total = schedule.num_trips + int(before[-1])
        self._trip_of = np.full(total, -1)
        self._trip_of[self._operation_of_trip] = trips
        self._step_of = np.empty(total, np.int64)
        sizes = np.diff(first_trip) + without_arrival
        self._step_of[:] = np.repeat(np.arange(schedule.num_steps), sizes)
        self._first_of_step = np.concatenate([[0], np.cumsum(sizes)])
        self._recall_of = np.full(total, -1)
        if recall is not None and shown.any():
            rows = np.arange(int(shown.sum()))
            of_step = np.repeat(np.arange(schedule.num_steps), shown)
            # The number of each recalled value within its own step.
            place = rows - (np.cumsum(shown) - shown)[of_step]
            self._recall_of[self._first_of_step[of_step] + place] = rows

    def _accesses(self, recall: Recall | None, remembers: bool) -> None:
        """Reads and writes of the clients' memory in order: a recalled value before the arrival of its operation.

        Of each access: its operation, its client, whether it stores, the access before of its client or -1, the last
        of its client that stores or -1; of each operation: its first access.
        """
        total = len(self._trip_of)
        stores = (self._trip_of >= 0) & remembers
        shows = self._recall_of >= 0
        # An operation has no access, one, or two: first its recalled value, then its arrival's client.
        count = stores.astype(np.int64) + shows
        self._first_access = np.concatenate([[0], np.cumsum(count)])
        number = int(self._first_access[-1])
        client = np.empty(number, np.int64)
        is_store = np.zeros(number, bool)
        if recall is not None and shows.any():
            client[self._first_access[:-1][shows]] = recall.client[self._recall_of[shows]]
        at = self._first_access[1:][stores] - 1
        client[at] = self._schedule.client[self._trip_of[stores]]
        is_store[at] = True
        # Sorted by client, and in order within each: the neighbours of an access are those of its client.
        order = np.argsort(client, kind="stable")
        new_group = np.append(True, client[order][1:] != client[order][:-1])[:number]
        ends_group = np.append(client[order][1:] != client[order][:-1], True)[:number]
        self._access_client, self._is_store = client, is_store
        self._access_before = _nearest(order, new_group, np.ones(number, bool))
        self._stored_before = _nearest(order, new_group, is_store)
        self._stored_after = _nearest(order[::-1], ends_group[::-1], is_store)
        self._access_operation = np.repeat(np.arange(total), count)

    def _cut(self, stops: np.ndarray) -> None:
        """The first operation of each segment, and the chunks of segments."""
        total, sizes = len(self._trip_of), self._sizes
        # Whatever ends a segment is a place among the operations: a wave that is due, and a stop of the run.
        due = self._operation_of_trip[self._plan.wave_before]
        stop_at = self._first_of_step[stops]
        bounds = np.union1d(np.append(due, total), stop_at)
        self._closes = closes = np.append(self._step_of[1:] != self._step_of[:-1], True)
        # A version that nobody trains from has no slot: it is not made, only passed through.
        slot = self._plan.write_slot[self._step_of]
        self._kept = closes & (slot < self._plan.num_slots)
        kept_before = np.concatenate([[0], np.cumsum(self._kept)])
        begins: list[int] = []
        for begin, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            while begin < end:
                begins.append(begin)
                # The last operation up to which the segment keeps no more versions than its product has rows for.
                fits = np.searchsorted(kept_before, kept_before[begin] + sizes.versions, side="right") - 1
                begin = self._memory_until(begin, min(end, begin + sizes.operations, int(fits)))
        self._begin = np.array([*begins, total])
        # A chunk ends at every stop, and else after some segments, where a step does.
        begins_step = np.isin(self._begin, self._first_of_step)
        # The host looks at the run between chunks only, and only where a server step has ended.
        must = np.isin(self._begin, stop_at)
        ends = [0]
        for segment in range(1, len(self._begin)):
            enough = segment - ends[-1] >= SEGMENTS_PER_CHUNK
            if must[segment] or (begins_step[segment] and enough):
                ends.append(segment)
        self._chunk_segments = np.array(ends)
        self._chunk_steps = np.searchsorted(self._first_of_step, self._begin[ends])

    def _memory_until(self, begin: int, end: int) -> int:
        """The operation up to ``end`` by which a segment from ``begin`` on has used up ``sizes.memory``."""
        first, last = self._first_access[[begin, end]]
        # A client counts once in a segment: where its access before lies outside.
        new = np.cumsum(self._access_before[first:last] < first)
        over = int(np.searchsorted(new, self._sizes.memory, side="right"))
        return end if over == last - first else int(self._access_operation[first + over])

    def _first_trip(self, begin: int) -> int:
        """The first trip that is folded from the operation ``begin`` on."""
        return int(np.searchsorted(self._operation_of_trip, begin))

    def no_operations(self) -> SegmentOperations:
        """Segments in which the server does nothing."""
        shape = (SEGMENTS_PER_CHUNK, self._sizes.operations)
        flags, numbers = [np.zeros((4, *shape), bool), np.zeros((7, *shape), np.int32)]
        return SegmentOperations(np.zeros(shape[0], np.int32), *flags, *numbers)

    def _operations(self, segments: range) -> SegmentOperations:
        """What the server does in these segments."""
        sizes, made = self._sizes, self.no_operations()
        for place, segment in enumerate(segments):
            begin, end = self._begin[segment : segment + 2].tolist()
            number = end - begin
            made.number[place] = number
            here = slice(begin, end)
            trip, recalled, step = self._trip_of[here], self._recall_of[here], self._step_of[here]
            operations = np.arange(begin, end)
            previous_at, recalled_at = self._coordinates(begin, end)
            version = np.cumsum(self._kept[here]) - 1
            rows = {
                "opens": operations == self._first_of_step[step],
                "recalls": recalled >= 0,
                "folds": trip >= 0,
                "closes": self._closes[here],
                "trip": np.maximum(trip, 0),
                "recalled": np.maximum(recalled, 0),
                "lane": np.maximum(trip, 0) - self._first_trip(begin),
                "previous": previous_at,
                "recalled_at": recalled_at,
                "version": np.where(self._kept[here], version, sizes.versions),
                "step": step,
            }
            for name, values in rows.items():
                getattr(made, name)[place, :number] = values
        return made

    def _coordinates(self, begin: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        """Where each operation finds what was stored before for its arrival's client, and its recalled value."""
        # Coordinates count the lanes of this wave first, then the clients whose values come from memory. A value that
        # was stored by a trip of this very segment is its lane; any other is the place of its client in memory.
        previous, recalled = np.zeros((2, end - begin), np.int64)
        first, last = self._first_access[[begin, end]].tolist()
        if first == last:
            return previous, recalled
        new = self._access_before[first:last] < first
        client = self._access_client[first:last]
        # The order in which clients are first touched is their order in ``Segments.memory_client``.
        place = dict(zip(client[new].tolist(), range(int(new.sum())), strict=True))
        memory_coordinate = self._sizes.width + np.array([place[number] for number in client.tolist()])
        stored = self._stored_before[first:last]
        lane = self._trip_of[self._access_operation[np.maximum(stored, 0)]] - self._first_trip(begin)
        found = np.where(stored >= first, lane, memory_coordinate)
        operation, stores = self._access_operation[first:last] - begin, self._is_store[first:last]
        previous[operation[stores]] = found[stores]
        recalled[operation[~stores]] = found[~stores]
        return previous, recalled

    def no_arrays(self) -> SegmentArrays:
        """Segments in which nothing happens."""
        sizes, count = self._sizes, SEGMENTS_PER_CHUNK
        return SegmentArrays(
            size=np.zeros(count, np.int32),
            trip=np.zeros((count, sizes.width), np.int32),
            write_slot=_beyond(NO_SLOT, count, sizes.versions),
            memory_client=np.zeros((count, sizes.memory), np.int32),
            stored_client=_beyond(self._schedule.num_clients, count, sizes.width),
        )

    def _arrays(self, segments: range) -> SegmentArrays:
        """What the device reads of these segments."""
        plan, made = self._plan, self.no_arrays()
        for place, segment in enumerate(segments):
            begin, end = self._begin[segment : segment + 2].tolist()
            trips = self._trip_of[begin:end]
            trips = trips[trips >= 0]
            made.size[place] = len(trips)
            # Lanes without a trip repeat the last one: they train, and no factor of the matrix reads them.
            if len(trips):
                made.trip[place, : len(trips)] = trips
                made.trip[place, len(trips) :] = trips[-1]
            kept = np.flatnonzero(self._kept[begin:end]) + begin
            made.write_slot[place, : len(kept)] = plan.write_slot[self._step_of[kept]]
            first, last = self._first_access[[begin, end]].tolist()
            new = self._access_before[first:last] < first
            made.memory_client[place, : new.sum()] = self._access_client[first:last][new]
            after = self._stored_after[first:last]
            # Of several trips of one client only the last is written: a scatter to one row twice has no order.
            newest = self._is_store[first:last] & ((after < 0) | (after >= last))
            lanes = self._trip_of[self._access_operation[first:last][newest]] - self._first_trip(begin)
            made.stored_client[place, lanes] = self._access_client[first:last][newest]
        return made


def _beyond(first: int, count: int, number: int) -> np.ndarray:
    """[count, number] int32: ``first``, ``first + 1``, ...: places that do not exist, no two of a row alike."""
    # Distinct although they are dropped: the write tells XLA that no row occurs twice.
    return np.tile(np.arange(first, first + number, dtype=np.int32), (count, 1))


def _nearest(order: np.ndarray, new_group: np.ndarray, marked: np.ndarray) -> np.ndarray:
    """For each element the nearest marked one before it in ``order`` and in its group, or -1.

    order: [A] the elements, group by group. new_group: [A] bool, where in ``order`` a group begins. marked: [A] bool,
    of the elements.
    """
    places = np.arange(len(order))
    # A running maximum of the places of marked elements: the nearest one before, of any group.
    last = np.maximum.accumulate(np.where(marked[order], places, -1)) if len(order) else places
    before = np.append(-1, last[:-1])[: len(order)]
    group_begin = np.maximum.accumulate(np.where(new_group, places, 0)) if len(order) else places
    found = np.empty(len(order), np.int64)
    # One that lies before the own group's first place belongs to another group.
    found[order] = np.where(before >= group_begin, order[before], -1)
    return found
