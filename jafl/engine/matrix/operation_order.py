"""The order of the server's operations in a run, each of one arrival or one recalled value at most."""

from typing import NamedTuple

import numpy as np


class OperationOrder(NamedTuple):
    """All operations of a run in the order in which the server carries them out: O operations, J trips, T steps.

    Attributes:
      trip: [O] int64, the trip that the operation folds, or -1.
      recall_row: [O] int64, the row of ``Recall`` that the operation reads, or -1.
      step: [O] int64, the server step that the operation belongs to.
      first_operation: [T + 1] int64, the first operation of each step, then O.
      trip_operation: [J] int64, the operation that folds each trip.
    """

    trip: np.ndarray
    recall_row: np.ndarray
    step: np.ndarray
    first_operation: np.ndarray
    trip_operation: np.ndarray

    def first_trip(self, begin: int) -> int:
        """The first trip that is folded by the operation ``begin`` or by a later one."""
        return int(np.searchsorted(self.trip_operation, begin))

    def closes(self) -> np.ndarray:
        """[O] bool: whether the operation is the last one of its server step."""
        return np.append(self.step[1:] != self.step[:-1], True)


def order_operations(
    trip_step: np.ndarray, first_trip: np.ndarray, first_recall: np.ndarray
) -> OperationOrder:
    """Orders the operations of a run: within a step first its recalled values, then its arrivals.

    The last recalled value of a step shares an operation with the first arrival. A step without recalled values and
    without arrivals has one operation, which opens and closes it.

    Args:
      trip_step: [J] the server step that folds each trip, in increasing order.
      first_trip: [T + 1] the first trip of each step, then J.
      first_recall: [T + 1] the first row of ``Recall`` of each step, then the number of rows.

    Returns:
      The operations in order.

    Example:
      Step 0 folds the trips 0 and 1. Step 1 is void. Step 2 recalls two values and folds the trips 2 and 3. Operation
      4 reads the second of the recalled values, and then folds trip 2.

      >>> order = order_operations(np.array([0, 0, 2, 2]), np.array([0, 2, 2, 4]), np.array([0, 0, 0, 2]))
      >>> order.trip
      array([ 0,  1, -1, -1,  2,  3])
      >>> order.recall_row
      array([-1, -1, -1,  0,  1, -1])
      >>> order.step
      array([0, 0, 1, 2, 2, 2])
      >>> order.first_operation
      array([0, 2, 3, 6])
      >>> order.trip_operation
      array([0, 1, 4, 5])
    """
    trip_step = trip_step.astype(np.int64)
    arrivals, recalls = np.diff(first_trip), np.diff(first_recall)
    num_trips, num_steps = len(trip_step), len(arrivals)
    # A step that recalls r values and folds k trips takes max(r - 1, 0) + k operations, because its last recalled
    # value shares one with its first arrival. Without arrivals the step still has to open and close: one more.
    without_arrival = np.maximum(recalls - 1, 0) + (arrivals == 0)
    # In a step the operations without an arrival come first. So a trip comes after all of them up to its own step.
    trip_operation = np.arange(num_trips) + np.cumsum(without_arrival)[trip_step]
    operations = arrivals + without_arrival
    first_operation = np.concatenate([[0], np.cumsum(operations)])
    trip = np.full(int(first_operation[-1]), -1)
    trip[trip_operation] = np.arange(num_trips)
    step = np.repeat(np.arange(num_steps), operations)
    recall_row = np.full(len(trip), -1)
    recall_row[_recall_operations(recalls, first_operation)] = np.arange(int(recalls.sum()))
    return OperationOrder(trip, recall_row, step, first_operation, trip_operation)


def _recall_operations(recalls: np.ndarray, first_operation: np.ndarray) -> np.ndarray:
    """[R] int64: the operation that reads each row of ``Recall``; ``recalls``: [T] rows of each step.

    Example:
      >>> _recall_operations(np.array([0, 0, 2]), np.array([0, 2, 3, 6]))
      array([3, 4])
    """
    step = np.repeat(np.arange(len(recalls)), recalls)
    # The rows of all steps are numbered through, but operations count from the beginning of their own step.
    number_in_step = np.arange(len(step)) - (np.cumsum(recalls) - recalls)[step]
    return first_operation[step] + number_in_step
