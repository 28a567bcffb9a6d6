"""Whether a rule and a server optimizer are linear, so that each version of the model is a sum with known factors.

They are if every array of the model's shape that the server keeps is, after each operation, a linear combination of
such arrays before it, of the arriving update (or start, or stored value) and of what the clients' memory holds, with
one factor for all entries of an array, and if the factors depend on nothing that training computes. Both are found
out from the traced functions themselves: the derivative of a linear function does not depend on where it is taken.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jafl.base.errors import SettingError
from jafl.base.jaxpr_dependence import dependences, operands
from jafl.base.jaxpr_sizes import same_but_for_sizes
from jafl.base.precision import on_host
from jafl.base.random_keys import DRAWS
from jafl.engine.matrix.server_operations import Operation, ServerState, initial, operate
from jafl.records import ArrayTree, Arrival, EventSchedule, Params, Recall, Rule

# Entries per axis of the small model on which factors are compared; enough to tell one leaf from another.
FEW = 3
# Entries of the vectors on which the work is to be the same.
LENGTHS = (5, 7, 100_003)
TOLERANCE = 1e-9  # relative, in float64
# Random numbers of the comparisons.
_SEED = 20_220_331


class Vectors(NamedTuple):
    """What an operation reads that is of the model's shape, beside the state.

    Attributes:
      update, start, stored, previous, recalled: [*P] each, as in ``Arrival`` and ``Recall``.
    """

    update: ArrayTree
    start: ArrayTree
    stored: ArrayTree
    previous: ArrayTree
    recalled: ArrayTree


class LinearForm(NamedTuple):
    """What the matrix form needs to know of a rule and a server optimizer that are linear.

    Attributes:
      is_vector: for each leaf of a ``ServerState``, whether it is of the model's shape; else it is known from the
        schedule.
      reads_update: whether the factors of arriving updates may differ from 0, those that are stored apart.
      reads_start: likewise of the downloaded models.
      reads_work: whether factors depend on how many examples or local steps a trip has used.
    """

    is_vector: tuple[bool, ...]
    reads_update: bool
    reads_start: bool
    reads_work: bool

    @property
    def num_vectors(self) -> int:
        """Arrays of the model's shape in the state."""
        return sum(self.is_vector)


class NotLinear(NamedTuple):
    """Why there is no matrix form: a sentence without a full stop."""

    reason: str


def has_host() -> bool:
    """Whether JAX may use the host's CPU, on which the matrices are made."""
    try:
        return bool(jax.local_devices(backend="cpu"))
    except RuntimeError:
        return False


def linear_form(
    rule: Rule,
    optimizer: Any,
    params: Params,
    num_clients: int,
    columns: Mapping[str, np.ndarray],
    recall: Recall | None,
) -> LinearForm | NotLinear:
    """Finds out whether a rule and a server optimizer are linear.

    Args:
      rule: the algorithm.
      optimizer: the server optimizer, an optax transformation.
      params: [*P] the model, or its shapes.
      num_clients: N.
      columns: {name: [J, ...]} of the rule; one row of each is read.
      recall: what the rule recalls, or None.

    Returns:
      What the matrix form needs, or why there is none.
    """
    if not has_host():
        return NotLinear(
            "the matrices are made on the host's CPU, which JAX_PLATFORMS leaves out: add cpu to it"
        )
    row = {name: np.asarray(column)[0] for name, column in columns.items()}
    weight = np.ones(np.shape(recall.weight)[1:]) if recall else ()
    for checked, name in ((optax.sgd(1.0), "the rule"), (optimizer, "the server optimizer")):
        try:
            with on_host():
                found = _LinearityCheck(name, rule, checked, num_clients, row, weight).form(params)
        except SettingError:
            raise
        except Exception as error:  # a user's own code may raise anything where it gets a vector for a model
            return NotLinear(f"{name} cannot run on vectors ({type(error).__name__})")
        if isinstance(found, NotLinear):
            return found
    return found


def first_nonlinear_trip(
    rule: Rule, schedule: EventSchedule, columns: Mapping[str, np.ndarray], recall: Recall | None
) -> int | None:
    """The first trip whose fold, or whose server step, is not linear in the updates; None if all are.

    Random updates of two kinds and their sums are folded side by side, over the whole schedule.

    Args:
      rule: the algorithm.
      schedule: the events.
      columns: {name: [J, ...]} of the rule.
      recall: what the rule recalls, or None; recalled values are left out.
    """
    new = schedule.step[1:] != schedule.step[:-1]
    trips: Any = (schedule.client, schedule.staleness)
    marks: Any = (np.append(True, new), np.append(new, True))
    row: Any = {name: np.asarray(column) for name, column in columns.items()}
    weight = np.ones(np.shape(recall.weight)[1:]) if recall else ()

    def vectors(key: jax.Array) -> tuple:
        """(update, previous) of three kinds, the last the sums of the others."""
        first, second = jax.random.normal(key, (2, 2, 5)) * jnp.array([1.0, 1e3])[:, None, None]
        return first, second, first + second

    def fold(states, trip):
        place, key = trip
        opens, closes = (flags[place] for flags in marks)
        client, staleness = (column[place] for column in trips)
        after = []
        for state, (update, previous) in zip(states, vectors(key), strict=True):
            arrival = Arrival(
                update=update,
                start=previous if rule.needs_start else None,
                client=client,
                staleness=staleness,
                num_examples=jnp.int32(10),
                batch_examples=jnp.int32(5),
                local_steps=jnp.int32(2),
                loss=jnp.zeros(()),
                columns={name: column[place] for name, column in row.items()},
                previous=previous if rule.remembers else None,
                stored=update if rule.remembers else None,
            )
            never, always = jnp.asarray(False), jnp.asarray(True)
            operation = Operation(opens, never, always, closes, weight, previous, arrival)
            after.append(operate(rule, optax.sgd(1.0), state, operation)[0])
        leaves = zip(*map(jax.tree.leaves, after), strict=True)
        off = [
            jnp.any(jnp.abs(a + b - both) > 1e3 * TOLERANCE * (jnp.max(jnp.abs(a)) + jnp.max(jnp.abs(b))))
            for a, b, both in leaves
            if jnp.shape(both) == (5,)
        ]
        return tuple(after), jnp.any(jnp.array(off))

    with on_host():
        row, marks, trips = jax.tree.map(jnp.asarray, (row, marks, trips))
        state = initial(rule, optax.sgd(1.0), jnp.zeros(5), schedule.num_clients)
        number = schedule.num_trips
        keys = jax.random.split(jax.random.key(_SEED), number)
        scanned = jax.jit(lambda: jax.lax.scan(fold, (state,) * 3, (jnp.arange(number), keys)))
        wrong = np.flatnonzero(np.asarray(scanned()[1]))
    return int(wrong[0]) if len(wrong) else None


class _LinearityCheck:
    """Traces the operations of a rule and an optimizer on vectors and on a small model.

    name: who is to blame where something does not fit.
    """

    def __init__(self, name: str, rule: Rule, optimizer: Any, num_clients: int, columns: Any, weight: Any):
        self._name, self._rule, self._optimizer, self._num_clients = name, rule, optimizer, num_clients
        self._columns, self._weight = columns, weight
        self._state = self._initial(5)
        larger = jax.tree.leaves(jax.eval_shape(lambda: self._initial(7)))
        # The arrays of the model's shape are those that grow with the model.
        self._is_vector = tuple(
            np.shape(leaf) == (5,) and np.shape(grown) == (7,)
            for leaf, grown in zip(jax.tree.leaves(self._state), larger, strict=True)
        )

    def form(self, params: Params) -> LinearForm | NotLinear:
        """The form, or why there is none."""
        reason = (
            self._changes_structure()
            or self._draws()
            or self._stores_other_than_updates()
            or self._depends_on_training()
            or self._is_not_additive()
        )
        if not reason and not self._is_uniform(params):
            reason = f"{self._name} treats the arrays of a model differently"
        if not reason and self._reads_sizes(params):
            reason = f"{self._name} reads the number of a model's parameters, or their shapes or types"
        return NotLinear(reason) if reason else LinearForm(self._is_vector, *self._reads())

    def _initial(self, size: int) -> ServerState:
        return initial(self._rule, self._optimizer, jnp.zeros(size), self._num_clients)

    def _num_vectors(self) -> int:
        return sum(self._is_vector)

    def _vectors(self) -> Vectors:
        return Vectors(*[jnp.zeros(5)] * len(Vectors._fields))

    def _with_vectors(self, vectors: list[Any]) -> Any:
        """The state with its vectors replaced, in order."""
        rest = iter(vectors)
        leaves, structure = jax.tree.flatten(self._state)
        pairs = zip(leaves, self._is_vector, strict=True)
        return jax.tree.unflatten(structure, [next(rest) if vector else leaf for leaf, vector in pairs])

    def _after(self, kept: list[Any], read: list[Any]) -> list[np.ndarray]:
        """The vectors of the state after one operation."""
        after, _ = self._operate(self._with_vectors(kept), Vectors(*read), self._scalars())
        pairs = zip(jax.tree.leaves(after), self._is_vector, strict=True)
        return [np.asarray(leaf) for leaf, vector in pairs if vector]

    def _changes_structure(self) -> str | None:
        after = jax.eval_shape(self._operate, self._state, self._vectors(), self._scalars())[0]
        same: list[Any] = [jax.tree.structure(tree) for tree in (after, self._state)]
        return None if same[0] == same[1] else f"{self._name} changes the structure of its state"

    def _draws(self) -> str | None:
        """Why the matrices, which are made in 64 bits, would have other random numbers than the loop."""
        drawn = operands(self._operate, DRAWS, self._state, self._vectors(), self._scalars())
        return f"{self._name} draws random numbers, which are others in 64 bits" if drawn else None

    def _is_not_additive(self) -> str | None:
        """Why sums of vectors do not give sums of results: the derivative of ``sign`` is constant, too."""
        random = np.random.default_rng(_SEED)
        shape = (2, self._num_vectors() + len(Vectors._fields), 5)
        first, second = random.normal(size=shape) * np.array([1.0, 1e3])[:, None, None]
        made = [
            np.array(self._after(list(read[: self._num_vectors()]), list(read[self._num_vectors() :])))
            for read in (first, second, first + second, 0 * first)
        ]
        scale = TOLERANCE * np.max(np.abs(made[2]))
        additive = np.all(np.abs(made[0] + made[1] - made[2]) <= scale) and not np.any(made[3])
        return None if additive else f"{self._name} is not linear in the updates"

    def _scalars(self) -> Operation:
        """An operation with all four parts, without its vectors."""
        arrival = Arrival(
            update=None,
            start=None,
            client=np.int32(0),
            staleness=np.int32(1),
            num_examples=np.int32(10),
            batch_examples=np.int32(5),
            local_steps=np.int32(2),
            loss=np.float64(0.5),
            columns=self._columns,
        )
        yes = np.bool_(True)
        return Operation(yes, yes, yes, yes, self._weight, (), arrival)

    def _operate(self, state: ServerState, vectors: Vectors, scalars: Operation) -> Any:
        arrival = scalars.arrival._replace(update=vectors.update)
        if self._rule.needs_start:
            arrival = arrival._replace(start=vectors.start)
        if self._rule.remembers:
            arrival = arrival._replace(stored=vectors.stored, previous=vectors.previous)
        operation = scalars._replace(arrival=arrival, recalled=vectors.recalled)
        return operate(self._rule, self._optimizer, state, operation)

    def _stores_other_than_updates(self) -> str | None:
        """Why the clients' memory cannot be filled with updates, if it cannot."""
        if not self._rule.remembers:
            return None
        update = np.arange(1.0, 6.0)
        arrival = self._scalars().arrival._replace(update=update, start=np.zeros(5))
        value = self._rule.remembers(arrival)
        same = isinstance(value, np.ndarray) and np.array_equal(value, update)
        return None if same else "the rule stores something else than its clients' updates"

    def _depends_on_training(self) -> str | None:
        """Why factors or reports depend on what training computes, if they do."""
        leaves, structure = jax.tree.flatten(self._state)
        own = [leaf for leaf, vector in zip(leaves, self._is_vector, strict=True) if vector]
        rest = [leaf for leaf, vector in zip(leaves, self._is_vector, strict=True) if not vector]
        vectors, scalars = self._vectors(), self._scalars()

        def parted(own, vectors, rest, scalars):
            """(the state's vectors after the operation, all else that it makes)."""
            of_each = (iter(rest), iter(own))
            state = jax.tree.unflatten(structure, [next(of_each[vector]) for vector in self._is_vector])
            after, reports = self._operate(state, vectors, scalars)
            made: tuple[list, list] = ([], [])
            for leaf, vector in zip(jax.tree.leaves(after), self._is_vector, strict=True):
                made[not vector].append(leaf)
            return made[0], (made[1], reports)

        def derivative(own, vectors, rest, scalars, change):
            made = lambda own, vectors: parted(own, vectors, rest, scalars)[0]  # noqa: E731
            return jax.jvp(made, (own, vectors), change)[1]

        loss = len(jax.tree.leaves((own, vectors, rest))) + _field_number(scalars, "loss")
        trained = {*range(len(jax.tree.leaves((own, vectors)))), loss}
        made, others = dependences(parted, own, vectors, rest, scalars)
        if trained & _union(others):
            return f"{self._name} keeps or reports numbers that depend on the updates"
        factors = dependences(derivative, own, vectors, rest, scalars, (own, vectors))
        if trained & _union(factors) or loss in _union(made):
            return f"{self._name} is not linear in the updates"
        return None

    def _is_uniform(self, params: Params) -> bool:
        """Whether all entries of a small model like ``params`` have the factors that a vector has, and nothing else.

        Two linear functions that agree on random numbers are the same with probability 1.
        """
        random = np.random.default_rng(_SEED)
        shapes = [[min(size, FEW) for size in np.shape(leaf)] for leaf in jax.tree.leaves(params)]
        kept = [_random_leaves(random, shapes) for _ in range(self._num_vectors())]
        read = [_random_leaves(random, shapes) for _ in Vectors._fields]
        expected = self._after([_joined(leaves) for leaves in kept], [_joined(leaves) for leaves in read])

        structure = jax.tree.structure(params)
        small = jax.tree.unflatten(structure, _random_leaves(random, shapes))
        like = initial(self._rule, self._optimizer, small, self._num_clients)
        each = zip(jax.tree.leaves(self._initial(5)), self._is_vector, strict=True)
        trees = iter(kept)
        leaves = [part for leaf, vector in each for part in (next(trees) if vector else [leaf])]
        state = jax.tree.unflatten(jax.tree.structure(like), leaves)
        vectors = Vectors(*[jax.tree.unflatten(structure, leaves) for leaves in read])
        after, _ = self._operate(state, vectors, self._scalars())
        rest, found = iter(jax.tree.leaves(after)), []
        for vector in self._is_vector:
            parts = [next(rest) for _ in (shapes if vector else [()])]
            found += [_joined(parts)] if vector else []
        return np.allclose(found, expected, rtol=TOLERANCE, atol=TOLERANCE)

    def _reads_sizes(self, params: Params) -> bool:
        """Whether the work on vectors, or on the model itself, is another one than that on vectors of 5 entries.

        The matrices are made on vectors of yet another length.
        """
        scalars = self._scalars()

        def trace(model: Any) -> Any:
            def work(model: Any, scalars: Operation) -> Any:
                state = initial(self._rule, self._optimizer, model, self._num_clients)
                return state, self._operate(state, Vectors(*[model] * len(Vectors._fields)), scalars)

            return jax.make_jaxpr(work)(model, scalars)

        def shaped(leaf: Any) -> Any:
            return jax.ShapeDtypeStruct([min(size, FEW) for size in np.shape(leaf)], np.float64)

        vectors = [trace(jax.ShapeDtypeStruct((size,), np.float64)) for size in LENGTHS]
        models = [trace(model) for model in (jax.tree.map(shaped, params), params)]
        pairs = [*zip(vectors[:-1], vectors[1:], strict=True), tuple(models)]
        return not all(same_but_for_sizes(*pair) for pair in pairs)

    def _reads(self) -> tuple[bool, bool, bool]:
        """Whether what an operation makes depends on the update itself, the start, and the numbers of the work."""
        scalars = self._scalars()
        read = _union(dependences(self._operate, self._state, self._vectors(), scalars))
        kept = len(jax.tree.leaves(self._state))
        update, start = (kept + Vectors._fields.index(name) for name in ("update", "start"))
        first = kept + len(Vectors._fields)
        work = {first + _field_number(scalars, field) for field in ("batch_examples", "local_steps")}
        return update in read, start in read, bool(work & read)


def _union(found: Any) -> frozenset[int]:
    """All arguments on which one of the results depends."""
    return frozenset().union(*jax.tree.leaves(found, is_leaf=lambda value: isinstance(value, frozenset)))


def _field_number(scalars: Operation, field: str) -> int:
    """The number of a field of the arrival among the leaves of an operation."""
    changed: Any = {field: "here"}
    marked = scalars._replace(arrival=scalars.arrival._replace(**changed))
    return next(number for number, leaf in enumerate(jax.tree.leaves(marked)) if isinstance(leaf, str))


def _random_leaves(random: np.random.Generator, shapes: list[list[int]]) -> list[np.ndarray]:
    return [random.normal(size=shape) for shape in shapes]


def _joined(leaves: list[Any]) -> np.ndarray:
    """All entries of a model in a row."""
    return np.concatenate([np.asarray(leaf).reshape(-1) for leaf in leaves])
