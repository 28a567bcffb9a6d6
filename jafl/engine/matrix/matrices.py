"""Makes the matrices of the matrix form: the rule's own code, run on one-hot vectors in place of a model.

Under a linear rule and a linear server optimizer every version of the model is a linear combination of the state
arrays (the model, momentum, a rule's running sum), of the wave's updates, and of what the clients' memory holds. If
the rule and the optimizer run on vectors of which each has a single 1, then they leave the factors of this
combination. This happens on the host, for one chunk of segments after the other.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jafl.base.precision import on_host
from jafl.engine.matrix.linearity import LinearForm
from jafl.engine.matrix.nonlinear_trip import not_linear_error
from jafl.engine.matrix.one_hot_server import TripColumns, broadcast_of, run_segments
from jafl.engine.matrix.records import Layout
from jafl.engine.matrix.segments import SegmentOperations
from jafl.engine.matrix.server_operations import initial_state, split_state
from jafl.specifications import Specification

# Further, random entries of each vector. Only a linear rule combines them by the factors of the one-hot entries.
PROBES = 2
# Relative error of the probes; the matrices are in 64 bits, so rounding stays far below it.
TOLERANCE = 1e-6
_SEED = 20_250_923


class ChunkMatrices(NamedTuple):
    """The matrices of a chunk, and what its trips and server steps report.

    Attributes:
      matrices: [P, M + S, D] float64: a row for each state array after the segment, then one for each version that
        the segment writes.
      trip_reports: {name: [n, ...]} of the n trips that the chunk folds, in order.
      step_reports: {name: [n, ...]} of the n server steps that the chunk closes, in order.
      broadcast: [n, ...] each, the numbers that the rule broadcasts with the versions of these steps.
    """

    matrices: np.ndarray
    trip_reports: dict[str, np.ndarray]
    step_reports: dict[str, np.ndarray]
    broadcast: list[np.ndarray]


class MatrixMaker:
    """Makes the matrices of one run, chunk after chunk in order.

    Args:
      rule: the algorithm.
      optimizer: the server optimizer.
      linear_form: of the rule and the optimizer.
      layout: the columns of the matrices.
      trips: of the run.
      recall_weight: [R, ...] of the rule's ``Recall``, or None.
      num_clients: N.
    """

    def __init__(
        self,
        rule: Specification,
        optimizer: Specification,
        linear_form: LinearForm,
        layout: Layout,
        trips: TripColumns,
        recall_weight: np.ndarray | None,
        num_clients: int,
    ):
        self._rule, self._optimizer, self._form = rule, optimizer, linear_form
        self._layout, self._trips, self._recall_weight = layout, trips, recall_weight
        self._num_clients = num_clients
        random = np.random.default_rng(_SEED)
        # Small and large ones, because a rule may treat updates of one size as a linear rule would, and others not. A
        # rule that says wrongly that it is linear shows in the first chunk, with the trip that shows it.
        self._probes = random.normal(size=(layout.length, PROBES)) * np.array([1.0, 1e3])
        with on_host():
            state = initial_state(rule.build(), optimizer.build(), jnp.zeros(5), num_clients)
            _, self._bookkeeping = split_state(state, linear_form.is_array)
            broadcast = broadcast_of(rule.build(), state)
            self._first_numbers = linear_form.exchange.split(broadcast)[1]

    def no_reports(
        self, nothing: SegmentOperations, trips: int, steps: int
    ) -> tuple[dict, dict, list[np.ndarray]]:
        """Zeros in the shapes of a run's reports; compiles the program.

        Args:
          nothing: operations of segments in which nothing happens.
          trips: client trips of the run.
          steps: server steps of the run.

        Returns:
          ({name: [trips, ...]}, {name: [steps, ...]}, [steps + 1, ...] of each number that the rule broadcasts), the
          first row of each as it is broadcast with the initial model.
        """
        with on_host():
            _, _, reports, _ = self._run(nothing)

        def zeros(reports: dict[str, Any], length: int) -> dict[str, np.ndarray]:
            # The matrices are in 64 bits, but reports have the types of the loop form, which are 32 bits by default.
            types = {name: jax.dtypes.canonicalize_dtype(rows.dtype) for name, rows in reports.items()}
            return {name: np.zeros((length, *rows.shape[2:]), types[name]) for name, rows in reports.items()}

        # All rows as the first one: those of later versions take their places.
        numbers = [
            np.repeat(np.asarray(number, jax.dtypes.canonicalize_dtype(number.dtype))[None], steps + 1, 0)
            for number in self._first_numbers
        ]
        return zeros(reports.trip, trips), zeros(reports.step, steps), numbers

    def make(self, operations: SegmentOperations) -> ChunkMatrices:
        """The matrices and reports of the next chunk.

        Raises:
          SettingError: if the rule turns out not to be linear: names the rule and the trip.
        """
        with on_host():
            bookkeeping, rows, reports, numbers = self._run(operations)
            # Before the bookkeeping is replaced: the check runs the same operations again, from the same beginning.
            self._check(operations, rows)
            self._bookkeeping = bookkeeping
        folds, closes = (np.asarray(flags) for flags in (operations.folds, operations.closes))
        matrices = np.asarray(rows)[..., : self._layout.length]
        trip = {name: np.asarray(values)[folds] for name, values in reports.trip.items()}
        step = {name: np.asarray(values)[closes] for name, values in reports.step.items()}
        return ChunkMatrices(matrices, trip, step, [np.asarray(values)[closes] for values in numbers])

    def _run(self, operations: SegmentOperations) -> Any:
        """What ``run_segments`` returns for these operations [P, E]."""
        trips = jax.tree.map(lambda column: column[operations.trip], self._trips)
        weight = () if self._recall_weight is None else self._recall_weight[operations.recall_row]
        return run_segments(
            self._rule,
            self._optimizer,
            self._bookkeeping,
            operations,
            trips,
            weight,
            self._probes,
            linear_form=self._form,
            layout=self._layout,
            num_clients=self._num_clients,
        )

    def _is_wrong(self, rows: Any) -> np.ndarray:
        """[P] bool: segments in which the rule has combined the probes by other factors than the one-hot entries."""
        rows = np.asarray(rows)
        factors, probes = rows[..., : self._layout.length], rows[..., self._layout.length :]
        # Relative to the sum of magnitudes, not to the result: terms may cancel.
        scale = np.abs(factors) @ np.abs(self._probes)
        is_off = np.abs(probes - factors @ self._probes) > TOLERANCE * scale + np.finfo(float).tiny
        # A comparison with NaN is false, so NaN would pass as right.
        return np.any(is_off | ~np.isfinite(probes), axis=(1, 2))

    def _check(self, operations: SegmentOperations, rows: Any) -> None:
        """Raises SettingError if the rule is not linear."""
        wrong = np.flatnonzero(self._is_wrong(rows))
        if not len(wrong):
            return
        segment = wrong[0]
        count = np.where(np.arange(len(operations.num_operations)) < segment, operations.num_operations, 0)
        # The vectors are right after ``first`` operations of the segment, and wrong after ``last``.
        first, last = 0, int(operations.num_operations[segment])
        # Bisection, so that few runs of the same program find the one operation that makes the difference.
        while last - first > 1:
            count[segment] = middle = (first + last) // 2
            is_wrong = self._is_wrong(self._run(operations._replace(num_operations=count))[1])[segment]
            first, last = (first, middle) if is_wrong else (middle, last)
        raise not_linear_error(self._rule, int(operations.trip[segment, last - 1]))
