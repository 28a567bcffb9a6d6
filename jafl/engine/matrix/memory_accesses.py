"""Which values of the clients' memory the operations of a run read and store, and where a segment finds them."""

from typing import NamedTuple

import numpy as np

from jafl.engine.matrix.operation_order import OperationOrder


class MemoryAccesses(NamedTuple):
    """All reads and writes of the clients' memory, in the order of the operations: A accesses, O operations.

    An access either reads a recalled value of its client, or reads what is stored for its client and then stores the
    value of an arriving trip in its place.

    Attributes:
      first: [O + 1] int64, the first access of each operation, then A.
      operation: [A] int64, the operation of the access.
      client: [A] int64, the client whose value it is.
      trip: [A] int64, the trip whose value is stored, or -1 for a recalled value.
      before: [A] int64, the last earlier access of the same client, or -1.
      stored_before: [A] int64, the last earlier access of the same client that stores, or -1.
      stored_after: [A] int64, the next later access of the same client that stores, or -1.
    """

    first: np.ndarray
    operation: np.ndarray
    client: np.ndarray
    trip: np.ndarray
    before: np.ndarray
    stored_before: np.ndarray
    stored_after: np.ndarray

    def clients(self, begin: int, end: int) -> np.ndarray:
        """[n] int64: the clients that the operations ``begin`` to ``end - 1`` access, by their first access."""
        first, last = self.first[[begin, end]]
        return self.client[first:last][self.before[first:last] < first]

    def end_within(self, begin: int, end: int, most_clients: int) -> int:
        """How far a segment from ``begin`` on goes, at most to ``end``, if it may access so many clients."""
        first, last = self.first[[begin, end]]
        # A client takes one row of a segment's memory however often it is accessed. So only its first access counts,
        # before which it has no other one inside the segment.
        num_clients = np.cumsum(self.before[first:last] < first)
        fitting = int(np.searchsorted(num_clients, most_clients, side="right"))
        return end if fitting == last - first else int(self.operation[first + fitting])

    def newest(self, begin: int, end: int) -> np.ndarray:
        """[n] int64: of the operations ``begin`` to ``end - 1`` the last access of each client that stores."""
        first, last = self.first[[begin, end]]
        after = self.stored_after[first:last]
        # Only the last of a client's trips is written: a scatter to one row twice has no order.
        return first + np.flatnonzero((self.trip[first:last] >= 0) & ((after < 0) | (after >= last)))

    def coordinates(self, begin: int, end: int, first_trip: int, width: int) -> tuple[np.ndarray, np.ndarray]:
        """Where the operations of a segment find the clients' stored values that they read.

        A value that a trip of this segment stores is in the trip's lane: the coordinates 0 to ``width - 1`` are the
        lanes. Any other value comes from the clients' memory, where the coordinates from ``width`` on are the
        ``clients`` of the segment, in their order.

        Args:
          begin, end: the segment has the operations ``begin`` to ``end - 1``.
          first_trip: the trip in lane 0.
          width: lanes of the segment, W.

        Returns:
          [end - begin] int64 each: the coordinate of what was stored before for the client of each arrival, and that
          of each recalled value. It is 0 for operations that read no such value.

        Example:
          As in ``list_accesses``: the clients 7, 5, 7 and 5 send the trips 0 to 3, and operation 2 recalls the value
          of client 5. If all four trips are in one segment, the trips 0 and 1 replace values from memory. The trips 2
          and 3 replace what is in the lanes 0 and 1, and the recalled value is in lane 1.

          >>> from jafl.engine.matrix.operation_order import order_operations
          >>> order = order_operations(np.array([0, 0, 1, 1]), np.array([0, 2, 4]), np.array([0, 0, 1]))
          >>> accesses = list_accesses(order, np.array([7, 5, 7, 5]), np.array([5]), True)
          >>> previous, recalled = accesses.coordinates(0, 4, first_trip=0, width=4)
          >>> previous
          array([4, 5, 0, 1])
          >>> recalled
          array([0, 0, 1, 0])

          If a segment begins with operation 2, all values come from memory. Client 5 is accessed first there.

          >>> accesses.clients(2, 4)
          array([5, 7])
          >>> previous, recalled = accesses.coordinates(2, 4, first_trip=2, width=4)
          >>> previous
          array([5, 4])
          >>> recalled
          array([4, 0])
        """
        previous, recalled = np.zeros((2, end - begin), np.int64)
        first, last = self.first[[begin, end]].tolist()
        # Most rules have no memory: their segments have nothing to look up.
        if first == last:
            return previous, recalled
        rows = {client: row for row, client in enumerate(self.clients(begin, end).tolist())}
        in_memory = width + np.array([rows[client] for client in self.client[first:last].tolist()])
        stored = self.stored_before[first:last]
        # An access of an earlier segment has reached memory by now; one of this segment is still in its lane only.
        in_lane = self.trip[np.maximum(stored, 0)] - first_trip
        coordinate = np.where(stored >= first, in_lane, in_memory)
        operation, stores = self.operation[first:last] - begin, self.trip[first:last] >= 0
        previous[operation[stores]] = coordinate[stores]
        recalled[operation[~stores]] = coordinate[~stores]
        return previous, recalled


def list_accesses(
    order: OperationOrder, trip_client: np.ndarray, recall_client: np.ndarray, remembers: bool
) -> MemoryAccesses:
    """Lists the accesses of a run to the clients' memory.

    Args:
      order: the operations, O.
      trip_client: [J] the client of each trip.
      recall_client: [R] the client of each row of ``Recall``.
      remembers: whether the rule stores its clients' updates.

    Returns:
      The accesses in order.

    Example:
      The clients 7, 5, 7 and 5 send the trips 0 to 3, and the second server step recalls the value of client 5. The
      recalled value is access 2; it was stored by access 1, and access 4 stores the next value.

      >>> from jafl.engine.matrix.operation_order import order_operations
      >>> order = order_operations(np.array([0, 0, 1, 1]), np.array([0, 2, 4]), np.array([0, 0, 1]))
      >>> accesses = list_accesses(order, np.array([7, 5, 7, 5]), np.array([5]), True)
      >>> accesses.operation
      array([0, 1, 2, 2, 3])
      >>> accesses.client
      array([7, 5, 5, 7, 5])
      >>> accesses.trip
      array([ 0,  1, -1,  2,  3])
      >>> accesses.before
      array([-1, -1,  1,  0,  2])
      >>> accesses.stored_before
      array([-1, -1,  1,  0,  1])
      >>> accesses.stored_after
      array([ 3,  4,  4, -1, -1])
    """
    stores, recalls = (order.trip >= 0) & remembers, order.recall_row >= 0
    accesses = stores.astype(np.int64) + recalls
    first = np.concatenate([[0], np.cumsum(accesses)])
    client, trip = np.empty(first[-1], np.int64), np.full(first[-1], -1)
    # The rule reads the recalled values of a step before it folds an arrival, also where both share an operation. So
    # the recalled value is the first access of its operation, and the arrival's is the last.
    client[first[:-1][recalls]] = recall_client[order.recall_row[recalls]]
    last = first[1:][stores] - 1
    client[last] = trip_client[order.trip[stores]]
    trip[last] = order.trip[stores]
    # Sorted by client and stable: then the accesses of one client lie side by side, in the order of time.
    by_client = np.argsort(client, kind="stable")
    backwards = by_client[::-1]
    return MemoryAccesses(
        first,
        np.repeat(np.arange(len(order.trip)), accesses),
        client,
        trip,
        before=nearest_earlier(by_client, client, np.ones(len(client), bool)),
        stored_before=nearest_earlier(by_client, client, trip >= 0),
        stored_after=nearest_earlier(backwards, client, trip >= 0),
    )


def nearest_earlier(sequence: np.ndarray, group: np.ndarray, is_candidate: np.ndarray) -> np.ndarray:
    """For each element the nearest candidate of its group that comes before it in a sequence.

    Args:
      sequence: [A] int64, the numbers of the elements; those of one group follow one another.
      group: [A] the group of each element.
      is_candidate: [A] bool, of each element.

    Returns:
      [A] int64: the number of the candidate for each element, or -1.

    Example:
      The elements 0 and 2 are of one group, 1 and 3 of another one. All but 1 are candidates.

      >>> candidates = np.array([True, False, True, True])
      >>> nearest_earlier(np.array([0, 2, 1, 3]), np.array([7, 5, 7, 5]), candidates)
      array([-1, -1,  0, -1])
    """
    places = np.arange(len(sequence))
    sorted_group = group[sequence]
    begins_group = np.append(True, sorted_group[1:] != sorted_group[:-1])[: len(sequence)]
    # A running maximum over places takes no loop in Python, of which a run has hundreds of thousands of rounds. It
    # finds the nearest candidate of any group.
    candidate = np.maximum.accumulate(np.where(is_candidate[sequence], places, -1))
    earlier = np.append(-1, candidate[:-1])[: len(sequence)]
    group_begin = np.maximum.accumulate(np.where(begins_group, places, 0))
    nearest = np.empty(len(sequence), np.int64)
    # A candidate before the first place of the element's own group belongs to another group.
    nearest[sequence] = np.where(earlier >= group_begin, sequence[earlier], -1)
    return nearest
