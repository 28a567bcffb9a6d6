"""The order of the operations and their accesses to client memory, against loops in plain Python."""

import numpy as np
import pytest

from jafl.engine.matrix.memory_accesses import list_accesses
from jafl.engine.matrix.operation_order import order_operations


def events(seed):
    """Arrivals and recalled values of 12 steps, none of either in some, of 5 clients."""
    random = np.random.default_rng(seed)
    arrivals, recalls = random.integers(0, 4, (2, 12))
    first_trip, first_recall = (np.append(0, np.cumsum(numbers)) for numbers in (arrivals, recalls))
    trip_client, recall_client = (random.integers(0, 5, numbers.sum()) for numbers in (arrivals, recalls))
    return first_trip, first_recall, trip_client, recall_client


def operations(first_trip, first_recall):
    """[(trip or -1, row of recall or -1, step)]: a step's last recalled value shares one with its first arrival."""
    for step in range(len(first_trip) - 1):
        trips = list(range(*first_trip[step : step + 2]))
        rows = list(range(*first_recall[step : step + 2]))
        for row in rows[:-1]:
            yield -1, row, step
        yield trips[0] if trips else -1, rows[-1] if rows else -1, step
        for trip in trips[1:]:
            yield trip, -1, step


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("remembers", [True, False])
def test_operations_and_accesses_are_those_of_plain_loops(seed: int, remembers: bool):
    first_trip, first_recall, trip_client, recall_client = events(seed)
    order = order_operations(np.repeat(np.arange(12), np.diff(first_trip)), first_trip, first_recall)
    expected = list(operations(first_trip, first_recall))
    assert list(zip(order.trip, order.recall_row, order.step, strict=True)) == expected

    accesses = list_accesses(order, trip_client, recall_client, remembers)
    stored: dict[int, int] = {}
    before: dict[int, int] = {}
    number = 0
    for operation, (trip, row, _) in enumerate(expected):
        assert accesses.first[operation] == number
        pairs = [(recall_client[row], False)] if row >= 0 else []
        pairs += [(trip_client[trip], True)] if trip >= 0 and remembers else []
        for client, stores in pairs:
            assert accesses.operation[number] == operation and accesses.client[number] == client
            assert accesses.trip[number] == (trip if stores else -1)
            assert accesses.before[number] == before.get(client, -1)
            assert accesses.stored_before[number] == stored.get(client, -1)
            before[client] = number
            if stores:
                stored[client] = number
            number += 1
    assert accesses.first[-1] == len(accesses.client) == number
