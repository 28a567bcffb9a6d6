"""Runs a rule and a server optimizer on vectors in place of a model: what they leave are the factors of each version.

Each vector has a single 1, in the column of the array that it stands for, and a few random entries besides.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jafl.engine.matrix.linearity import LinearForm
from jafl.engine.matrix.records import Layout
from jafl.engine.matrix.segments import SegmentOperations
from jafl.engine.matrix.server_operations import (
    Operation,
    Reports,
    ServerState,
    initial_state,
    join_state,
    operate,
    split_state,
)
from jafl.records import Arrival
from jafl.specifications import Specification


class TripColumns(NamedTuple):
    """What the host knows of each applied trip before it trains, [J] each.

    Attributes:
      client, staleness, num_examples, batch_examples, local_steps: int32, as in ``Arrival``.
      columns: {name: [J, ...]} of the rule.
    """

    client: np.ndarray
    staleness: np.ndarray
    num_examples: np.ndarray
    batch_examples: np.ndarray
    local_steps: np.ndarray
    columns: dict[str, np.ndarray]


class OneHotVectors(NamedTuple):
    """The vectors on which the rule runs in place of arrays of the model's shape: one for each column of the matrix.

    Attributes:
      rows: [D + 1, D + probes]: row ``d`` has a 1 in column ``d``; the last row is zero.
      layout: the columns.
    """

    rows: jax.Array
    layout: Layout

    @classmethod
    def make(cls, layout: Layout, probes: Any) -> "OneHotVectors":
        """The vectors with the further entries ``probes`` [D, probes].

        Example:
          >>> from jafl.engine.matrix.records import Groups
          >>> from jafl.engine.matrix.segments import Sizes
          >>> layout = Layout(1, Groups(updates=True, starts=False, stored=False), Sizes(1, 1, 1, 1, 1))
          >>> OneHotVectors.make(layout, jnp.array([[0.5], [2.0], [-1.0]])).rows
          Array([[ 1. ,  0. ,  0. ,  0.5],
                 [ 0. ,  1. ,  0. ,  2. ],
                 [ 0. ,  0. ,  1. , -1. ],
                 [ 0. ,  0. ,  0. ,  0. ]], dtype=float32)
        """
        # The row of zeros stands for an update that no factor reads, and that therefore has no column.
        return cls(
            jnp.pad(jnp.concatenate([jnp.eye(layout.length), probes], axis=1), ((0, 1), (0, 0))), layout
        )

    def update(self, lane: Any) -> jax.Array:
        """The update of the trip in a lane."""
        return self.rows[self.layout.first_update + lane] if self.layout.groups.updates else self.rows[-1]

    def start(self, lane: Any) -> jax.Array | None:
        """The model that the trip in a lane started from; None for rules that do not read it."""
        return self.rows[self.layout.first_start + lane] if self.layout.groups.starts else None

    def sent(self, lane: Any) -> list[jax.Array]:
        """What the client of the trip in a lane sends beside its update."""
        first, width = self.layout.first_sent, self.layout.sizes.width
        return [self.rows[first + number * width + lane] for number in range(self.layout.groups.sent)]

    def stored_update(self, lane: Any) -> jax.Array:
        """What the clients' memory stores of the update in a lane."""
        return self.rows[self.layout.first_stored_update + lane]

    def stored_value(self, coordinate: Any) -> jax.Array:
        """What is stored for a client, by a trip of this segment or before; ``coordinate`` as in ``coordinates``."""
        width = self.layout.sizes.width
        # The coordinates below W are lanes of this segment, and the others are clients of the memory. Both kinds are
        # rows of one array, so a choice between two numbers is enough, and one vector is read.
        first = jnp.where(
            coordinate < width, self.layout.first_stored_update, self.layout.first_client_value - width
        )
        return self.rows[first + coordinate]


@dataclasses.dataclass(frozen=True)
class _VectorServer:
    """A server whose model is a vector, and the segments that it works through.

    Attributes:
      rule: the algorithm.
      optimizer: the server optimizer, an optax transformation.
      vectors: in place of the arrays of the model's shape.
      form: the linear form of both.
      structure: of the state.
      operations: [P, E] what the server does in each segment.
      trips: [P, E] of the trips that are folded.
      weight: [P, E, ...] of the recalled values, or ().
    """

    rule: Any
    optimizer: Any
    vectors: OneHotVectors
    form: LinearForm
    structure: Any
    operations: SegmentOperations
    trips: TripColumns
    weight: Any

    def operation(self, segment: Any, number: Any) -> tuple[Operation, Any]:
        """One operation of a segment on vectors, and the row for the version that it leaves."""
        columns: Any = self.operations
        here = jax.tree.map(lambda column: column[segment, number], columns._replace(num_operations=None))
        trip = jax.tree.map(lambda column: column[segment, number], self.trips)
        vectors, remembers = self.vectors, self.rule.remembers
        arrival = Arrival(
            update=vectors.update(here.lane),
            start=vectors.start(here.lane),
            client=trip.client,
            staleness=trip.staleness,
            num_examples=trip.num_examples,
            batch_examples=trip.batch_examples,
            local_steps=trip.local_steps,
            # The loss is not known before the trip trains; ``linearity`` has refused rules that read it.
            loss=jnp.zeros(()),
            columns=trip.columns,
            previous=vectors.stored_value(here.previous_coordinate) if remembers else None,
            stored=vectors.stored_update(here.lane) if remembers else None,
            sent=self.form.exchange.named(vectors.sent(here.lane)[: self.form.exchange.num_sent]),
        )
        weight = jax.tree.map(lambda column: column[segment, number], self.weight)
        parts = (here.opens, here.recalls, here.folds, here.closes)
        recalled = vectors.stored_value(here.recalled_coordinate)
        return Operation(*parts, weight, recalled, arrival), here.version_row

    def operate(
        self, arrays: list[Any], bookkeeping: list[Any], segment: Any, number: Any
    ) -> tuple[ServerState, Reports, Any]:
        """The state after one operation of a segment, its reports, and the row for the version that it leaves."""
        operation, version_row = self.operation(segment, number)
        state = join_state(self.structure, self.form.is_array, arrays, bookkeeping)
        return *operate(self.rule, self.optimizer, state, operation), version_row

    def version(self, state: ServerState) -> tuple[Any, list[Any]]:
        """What a client downloads after the step that left ``state``: [A, D + probes] the arrays, and the numbers."""
        arrays, numbers = self.form.exchange.split(broadcast_of(self.rule, state))
        return jnp.stack([state.params, *arrays]), numbers

    def run_segment(self, bookkeeping: list[Any], segment: Any) -> tuple[list[Any], tuple[Any, Any, Any]]:
        """Carries out all operations of a segment.

        Args:
          bookkeeping: before the segment.
          segment: its number in the chunk.

        Returns:
          The bookkeeping after the segment; [M + S, D + probes] the state arrays after it and the versions that it
          writes; the reports [E] of its operations; [E, ...] the numbers that are broadcast after each.
        """
        layout, rows = self.vectors.layout, self.vectors.rows
        number_of_arrays = self.form.num_arrays

        def carry_out(number: Any, carry: Any) -> Any:
            arrays, bookkeeping, versions, recorded = carry
            state, reported, version_row = self.operate(arrays, bookkeeping, segment, number)
            version, numbers = self.version(state)
            # Only versions that a later trip trains from have rows; all others are dropped.
            versions = versions.at[version_row + jnp.arange(len(version))].set(version, mode="drop")
            recorded = jax.tree.map(
                lambda rows, value: rows.at[number].set(value), recorded, (reported, numbers)
            )
            return *split_state(state, self.form.is_array), versions, recorded

        # When a segment begins, its state arrays are one-hot vectors again. So a matrix says only what this segment
        # does to them; what earlier ones did is in the arrays that the device holds.
        arrays = [rows[number] for number in range(number_of_arrays)]
        state, reports, _ = jax.eval_shape(self.operate, arrays, bookkeeping, segment, 0)
        shapes = (reports, jax.eval_shape(self.version, state)[1])
        length = layout.sizes.operations
        recorded = jax.tree.map(lambda leaf: jnp.zeros((length, *leaf.shape), leaf.dtype), shapes)
        versions = jnp.zeros((layout.sizes.versions, rows.shape[1]))
        start = (arrays, bookkeeping, versions, recorded)
        # Not E rounds for all segments: W arrivals without recalled values take a quarter of them.
        rounds = self.operations.num_operations[segment]
        arrays, bookkeeping, versions, recorded = lax.fori_loop(0, rounds, carry_out, start)
        padded = jnp.zeros((layout.state_arrays, rows.shape[1])).at[:number_of_arrays].set(jnp.stack(arrays))
        return bookkeeping, (jnp.concatenate([padded, versions]), *recorded)


def broadcast_of(rule: Any, state: ServerState) -> Any:
    """What the rule broadcasts with the model of a state, or None."""
    return rule.broadcast(state.rule_state) if rule.broadcast else None


@functools.partial(jax.jit, static_argnames=("linear_form", "layout", "num_clients"))
def run_segments(
    rule: Specification,
    optimizer: Specification,
    bookkeeping: list[Any],
    operations: SegmentOperations,
    trips: TripColumns,
    weight: Any,
    probes: Any,
    *,
    linear_form: LinearForm,
    layout: Layout,
    num_clients: int,
) -> tuple[list[Any], Any, Reports, list[Any]]:
    """Runs the operations of a chunk on vectors [D + probes]; P segments of at most E operations.

    Args:
      rule: the algorithm.
      optimizer: the server optimizer.
      bookkeeping: the leaves of the state before the chunk that are no state arrays.
      operations: [P, E] what the server does.
      trips: [P, E] of the trips that are folded.
      weight: [P, E, ...] of the recalled values, or () for rules that recall nothing.
      probes: [D, probes] further entries of the vectors.
      linear_form: of the rule and the optimizer.
      layout: the columns of the matrices.
      num_clients: N.

    Returns:
      The bookkeeping after the chunk; [P, M + S, D + probes], for each segment the state arrays after it and the
      versions that it writes; the reports [P, E] of all operations; [P, E, ...] the numbers that are broadcast after
      each operation.

    Example:
      FedBuff with a buffer of two trips makes two versions of four trips in one wave. Its state arrays are the model
      and the sum in its buffer. Columns: the model, the sum, and the updates of the trips 0 to 3.

      >>> from jafl.engine.matrix.linearity import find_linear_form
      >>> from jafl.engine.matrix.matrices import MatrixMaker
      >>> from jafl.engine.matrix.records import Groups
      >>> from jafl.engine.matrix.segments import Segmentation, Sizes
      >>> schedule = jafl.asynchronous(
      ...     num_clients=4, concurrency=4, buffer_size=2, delay=jafl.delays.constant(1.0), server_steps=2
      ... )
      >>> rule, optimizer = jafl.rules.fedbuff(), jafl.specify(optax.sgd, learning_rate=1.0)
      >>> form = find_linear_form(rule.build(), optimizer.build(), jnp.zeros(3), 4, {}, None)
      >>> layout = Layout(2, Groups(updates=True, starts=False, stored=False), Sizes(4, 2, 2, 4, 2))
      >>> trips = TripColumns(schedule.client, schedule.staleness, *np.ones((3, 4), np.int32), columns={})
      >>> maker = MatrixMaker(rule, optimizer, form, layout, trips, None, 4)
      >>> plan = jafl.in_waves(schedule, 4, form="matrix")
      >>> [chunk] = Segmentation(schedule, plan, None, False, layout.sizes, stops=()).chunks(0, 2)
      >>> matrix = maker.make(chunk.operations).matrices[0]

      The trips 0 and 1 are fresh and have the weight 1 of 2. The trips 2 and 3 have the staleness 1, and with it the
      weight 1 / sqrt(2) of 2. The first row is the model after both steps:

      >>> matrix[0, :6].round(3)
      array([1.   , 0.   , 0.5  , 0.5  , 0.354, 0.354])
    """
    built = (rule.build(), optimizer.build())
    vectors = OneHotVectors.make(layout, probes)
    # Only the structure of the state is needed: its arrays come from ``vectors``, and its bookkeeping is given.
    state = jax.eval_shape(lambda: initial_state(*built, vectors.rows[0], num_clients))
    structure = jax.tree.structure(state)
    server = _VectorServer(*built, vectors, linear_form, structure, operations, trips, weight)
    # A scan over segments with a loop over operations inside: the host compiles one operation, not each of them.
    bookkeeping, (rows, reports, numbers) = lax.scan(
        server.run_segment, bookkeeping, jnp.arange(len(operations.num_operations))
    )
    return bookkeeping, rows, reports, numbers
