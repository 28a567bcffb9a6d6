"""Makes the matrices of the matrix form: the rule's own code, run on one-hot vectors in place of a model.

Under a linear rule and a linear server optimizer every version of the model is a linear combination of what lasts
(the model, momentum, a rule's running sum), of the wave's updates, and of what the clients' memory holds. Run on
vectors of which each has a single 1, the rule and the optimizer leave the factors of the combination. This happens on
the host, for the segments of one chunk after the other.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jafl.base.errors import SettingError
from jafl.base.precision import on_host
from jafl.engine.matrix.linearity import LinearForm
from jafl.engine.matrix.segment_loop import Groups
from jafl.engine.matrix.segments import SegmentOperations, Sizes
from jafl.engine.matrix.server_operations import Operation, Reports, initial, operate
from jafl.records import Arrival
from jafl.specifications import Specification, as_specification

# Further entries of each vector, random ones: they are combined like all others only if the rule is linear.
PROBES = 2
TOLERANCE = 1e-6  # of the probes, relative
_SEED = 20_250_923


class Layout(NamedTuple):
    """The coordinates of a segment's vectors, D in all; static.

    In order: what lasts, M; the wave's updates, W, its starts, W, and its updates as they are stored, W; the clients'
    stored values, G. Groups that nobody reads have no coordinates.

    Attributes:
      lasting: arrays that last, M; padded.
      groups: arrays that each trip of the wave leaves.
      sizes: of the segments.
    """

    lasting: int
    groups: Groups
    sizes: Sizes

    @property
    def starts(self) -> int:
        """The first coordinate of the wave's starts."""
        return self.lasting + self.groups.updates * self.sizes.width

    @property
    def stored(self) -> int:
        """The first coordinate of the updates as they are stored: the updates, where they are stored whole."""
        if self.groups.stored:
            return self.starts + self.groups.starts * self.sizes.width
        return self.lasting

    @property
    def memory(self) -> int:
        """The first coordinate of the clients' stored values."""
        return self.lasting + sum(self.groups) * self.sizes.width

    @property
    def length(self) -> int:
        """D, the number of coordinates."""
        return self.memory + self.sizes.memory


class TripColumns(NamedTuple):
    """What the host knows of each applied trip, [J] each; ``columns`` are the rule's."""

    client: np.ndarray
    staleness: np.ndarray
    num_examples: np.ndarray
    batch_examples: np.ndarray
    local_steps: np.ndarray
    columns: dict[str, np.ndarray]


class ChunkMatrices(NamedTuple):
    """What the maker leaves of a chunk.

    Attributes:
      matrices: [P, M + S, D] float64: rows of what lasts after the segment, then of its versions.
      trip_reports: {name: [...]} of the trips that were folded, in order.
      step_reports: {name: [...]} of the steps that were closed, in order.
    """

    matrices: np.ndarray
    trip_reports: dict[str, np.ndarray]
    step_reports: dict[str, np.ndarray]


class MatrixMaker:
    """Makes the matrices of one run, chunk after chunk in order.

    Args:
      rule: the algorithm, and ``optimizer``, the server optimizer, as specifications.
      form: what ``linear_form`` has found.
      layout: the coordinates.
      trips: what is known of every trip.
      recall_weight: [R, ...] of the rule's ``Recall``, or None.
      num_clients: N.
    """

    def __init__(
        self,
        rule: Specification,
        optimizer: Specification,
        form: LinearForm,
        layout: Layout,
        trips: TripColumns,
        recall_weight: np.ndarray | None,
        num_clients: int,
    ):
        self._rule, self._optimizer, self._form = rule, optimizer, form
        self._layout, self._trips, self._recall_weight = layout, trips, recall_weight
        self._num_clients = num_clients
        random = np.random.default_rng(_SEED)
        # Two further entries in each vector, small and large: a linear rule combines them by the same factors as the
        # one-hot entries, so a wrong claim of linearity shows in the first chunk, with the trip that shows it.
        self._probes = random.normal(size=(layout.length, PROBES)) * np.array([1.0, 1e3])
        with on_host():
            self._known = _initial_known(rule, optimizer, form.is_vector, num_clients)

    def no_reports(self, nothing: SegmentOperations, trips: int, steps: int) -> tuple[dict, dict]:
        """({name: [trips, ...]}, {name: [steps, ...]}) of zeros: what trips and steps report; compiles the program.

        nothing: operations of segments in which nothing happens.
        """
        with on_host():
            _, _, reports = self._run(nothing)

        def columns(made: dict[str, Any], length: int) -> dict[str, np.ndarray]:
            types = {name: jax.dtypes.canonicalize_dtype(rows.dtype) for name, rows in made.items()}
            return {name: np.zeros((length, *rows.shape[2:]), types[name]) for name, rows in made.items()}

        return columns(reports.trip, trips), columns(reports.step, steps)

    def make(self, operations: SegmentOperations) -> ChunkMatrices:
        """The matrices and reports of the next chunk.

        Raises:
          SettingError: if the rule turns out not to be linear: names the rule and the trip.
        """
        with on_host():
            known, rows, reports = self._run(operations)
            self._check(operations, rows)
            self._known = known
        folds, closes = (np.asarray(flags) for flags in (operations.folds, operations.closes))
        matrices = np.asarray(rows)[..., : self._layout.length]
        trip = {name: np.asarray(values)[folds] for name, values in reports.trip.items()}
        step = {name: np.asarray(values)[closes] for name, values in reports.step.items()}
        return ChunkMatrices(matrices, trip, step)

    def _run(self, operations: SegmentOperations) -> Any:
        trips = jax.tree.map(lambda column: column[operations.trip], self._trips)
        weight = () if self._recall_weight is None else self._recall_weight[operations.recall_row]
        return _run_segments(
            self._rule,
            self._optimizer,
            self._known,
            operations,
            trips,
            weight,
            self._probes,
            is_vector=self._form.is_vector,
            layout=self._layout,
            num_clients=self._num_clients,
        )

    def _wrong(self, rows: Any) -> np.ndarray:
        """[P] bool: segments whose vectors are not the combinations that their one-hot entries say."""
        rows = np.asarray(rows)
        made, expected = rows[..., self._layout.length :], rows[..., : self._layout.length] @ self._probes
        # Relative to the sum of magnitudes, not to the result: terms may cancel.
        scale = np.abs(rows[..., : self._layout.length]) @ np.abs(self._probes)
        off = np.abs(made - expected) > TOLERANCE * scale + np.finfo(float).tiny
        return np.any(off | ~np.isfinite(made), axis=(1, 2))

    def _check(self, operations: SegmentOperations, rows: Any) -> None:
        """Raises SettingError if the rule is not linear."""
        wrong = np.flatnonzero(self._wrong(rows))
        if not len(wrong):
            return
        segment, until = wrong[0], int(operations.num_operations[wrong[0]])
        count = np.where(np.arange(len(operations.num_operations)) < segment, operations.num_operations, 0)
        first, last = 0, until  # the vectors are right after ``first`` operations, wrong after ``last``
        # Bisection: the same chunk with fewer operations, until one operation makes the difference.
        while last - first > 1:
            count[segment] = middle = (first + last) // 2
            is_wrong = self._wrong(self._run(operations._replace(num_operations=count))[1])[segment]
            first, last = (first, middle) if is_wrong else (middle, last)
        raise not_linear(self._rule, int(operations.trip[segment, last - 1]))


def not_linear(rule: Specification, trip: int) -> SettingError:
    """The error of a rule that says that it is linear and is not."""
    built = rule.build()
    name = (
        built.fold.__qualname__ if rule.factory is as_specification(built).factory else rule.factory.__name__
    )
    return SettingError(
        f"The rule {name} is declared linear, but what it makes of trip {trip} is not linear in the clients' "
        'updates. Take linear=True out of its requirements, or compute it step by step, with form="loop".',
        setting="linear",
        value=True,
    )


def _initial_known(
    rule: Specification, optimizer: Specification, is_vector: tuple[bool, ...], num_clients: int
) -> list[Any]:
    """The leaves of the state before the first operation that the schedule alone decides."""
    state = initial(rule.build(), optimizer.build(), jnp.zeros(5), num_clients)
    return [leaf for leaf, vector in zip(jax.tree.leaves(state), is_vector, strict=True) if not vector]


@functools.partial(jax.jit, static_argnames=("is_vector", "layout", "num_clients"))
def _run_segments(
    rule: Specification,
    optimizer: Specification,
    known: list[Any],
    operations: SegmentOperations,
    trips: TripColumns,
    weight: Any,
    probes: Any,
    *,
    is_vector: tuple[bool, ...],
    layout: Layout,
    num_clients: int,
) -> tuple[list[Any], Any, Reports]:
    """Runs the operations of a chunk on vectors [D + probes].

    Returns:
      What is known of the state afterwards; [P, M + S, D + probes], the rows of what lasts and of the versions; the
      reports [P, E] of all operations.
    """
    built, built_optimizer = rule.build(), optimizer.build()
    sizes, groups = layout.sizes, layout.groups
    # The last row is zero; it stands for an update that no factor reads.
    basis = jnp.pad(jnp.concatenate([jnp.eye(layout.length), probes], axis=1), ((0, 1), (0, 0)))
    # The state's leaves are of two kinds: vectors, which follow the model and are combined, and numbers that the
    # schedule decides (counts, ages), which are computed here and carried from chunk to chunk.
    state_of = functools.partial(initial, built, built_optimizer, num_clients=num_clients)
    structure = jax.tree.structure(jax.eval_shape(lambda: state_of(basis[0])))
    number = sum(is_vector)

    def at(coordinate):
        """A vector of what was stored, by a trip of the wave or before."""
        # Coordinates below W are lanes of this wave, others are clients of the memory; one index serves both.
        beyond = layout.memory - sizes.width
        return basis[jnp.where(coordinate < sizes.width, layout.stored, beyond) + coordinate]

    def state_from(vectors, known):
        parts = (iter(known), iter(vectors))
        return jax.tree.unflatten(structure, [next(parts[vector]) for vector in is_vector])

    def parted(state):
        made: tuple[list, list] = ([], [])
        for leaf, vector in zip(jax.tree.leaves(state), is_vector, strict=True):
            made[vector].append(leaf)
        return made

    def operation_of(segment, place):
        here = jax.tree.map(lambda column: column[segment, place], operations._replace(num_operations=None))
        trip = jax.tree.map(lambda column: column[segment, place], trips)
        arrival = Arrival(
            update=basis[layout.lasting + here.lane] if groups.updates else basis[-1],
            start=basis[layout.starts + here.lane] if groups.starts else None,
            client=trip.client,
            staleness=trip.staleness,
            num_examples=trip.num_examples,
            batch_examples=trip.batch_examples,
            local_steps=trip.local_steps,
            loss=jnp.zeros(()),
            columns=trip.columns,
            previous=at(here.previous_coordinate) if built.remembers else None,
            stored=basis[layout.stored + here.lane] if built.remembers else None,
        )
        shown = jax.tree.map(lambda column: column[segment, place], weight)
        marks = (here.opens, here.recalls, here.folds, here.closes)
        return Operation(*marks, shown, at(here.recalled_coordinate), arrival), here.version_row

    def one(vectors, known, segment, place):
        operation, version = operation_of(segment, place)
        state, reports = operate(built, built_optimizer, state_from(vectors, known), operation)
        return state, reports, version

    def segment_of(known, segment):
        def body(place, carry):
            vectors, known, versions, reports = carry
            state, reported, version = one(vectors, known, segment, place)
            # Only versions that somebody trains from have a row; all others are dropped.
            versions = versions.at[version].set(state.params, mode="drop")
            reports = jax.tree.map(lambda rows, value: rows.at[place].set(value), reports, reported)
            known, vectors = parted(state)
            return vectors, known, versions, reports

        # At a segment's beginning what lasts is itself: the first vectors of the basis.
        vectors = [basis[place] for place in range(number)]
        shapes = jax.eval_shape(one, vectors, known, segment, 0)[1]
        reports = jax.tree.map(lambda leaf: jnp.zeros((sizes.operations, *leaf.shape), leaf.dtype), shapes)
        versions = jnp.zeros((sizes.versions, basis.shape[1]))
        start = (vectors, known, versions, reports)
        vectors, known, versions, reports = lax.fori_loop(0, operations.num_operations[segment], body, start)
        lasting = jnp.zeros((layout.lasting, basis.shape[1])).at[:number].set(jnp.stack(vectors))
        return known, (jnp.concatenate([lasting, versions]), reports)

    # A scan over segments with a loop over operations inside: the host compiles one step of each.
    known, (rows, reports) = lax.scan(segment_of, known, jnp.arange(len(operations.num_operations)))
    return known, rows, reports
