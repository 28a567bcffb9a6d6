"""Whether a rule and a server optimizer are linear, so that the host can compute the factors of each version.

Two conditions must hold. First, after each operation every state array is a linear combination of the state arrays
before it, of the arriving update (or its start, or its stored value) and of what the clients' memory holds, with one
factor for all entries of an array. Second, the factors depend on nothing that training computes. The traced functions
themselves show both: the derivative of a linear function does not depend on where it is taken.
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
from jafl.engine.matrix.exchange import Exchange, find_exchange
from jafl.engine.matrix.server_operations import (
    Operation,
    ServerState,
    initial_state,
    join_state,
    operate,
    split_state,
)
from jafl.records import ArrayTree, Arrival, Params, Recall, Rule

# Entries per axis of the small model on which factors are compared: few, so that it takes no memory however large the
# user's model is, but enough to tell one leaf from another.
FEW = 3
# Entries of the vectors on which the rule must do the same; the matrices are made on vectors of yet another length.
# One is large, because a rule may do something else with large arrays.
LENGTHS = (5, 7, 100_003)
# Relative, in float64.
TOLERANCE = 1e-9
SEED = 20_220_331


class Vectors(NamedTuple):
    """What an operation reads beside the state that has the model's shape.

    Attributes:
      update, start, stored, previous: [*P] as in ``Arrival``.
      recalled: [*P] the recalled value.
      sent: [*P] each, what the client has sent beside its update.
    """

    update: ArrayTree
    start: ArrayTree
    stored: ArrayTree
    previous: ArrayTree
    recalled: ArrayTree
    sent: tuple[ArrayTree, ...]


# Fields of ``Vectors`` that are one vector each.
SINGLE = len(Vectors._fields) - 1


class LinearForm(NamedTuple):
    """What the matrix form needs to know of a rule and a server optimizer that are linear.

    Attributes:
      is_array: for each leaf of a ``ServerState``, whether it is a state array; else it is bookkeeping.
      reads_update: whether a version may depend on arriving updates directly, not only through the clients' memory.
      reads_start: whether a version may depend on the models that the trips have downloaded.
      reads_work: whether factors depend on how many examples or local steps a trip has used.
      exchange: what the rule and its clients exchange beside models and updates.
    """

    is_array: tuple[bool, ...]
    reads_update: bool
    reads_start: bool
    reads_work: bool
    exchange: Exchange = Exchange()

    @property
    def num_arrays(self) -> int:
        """How many state arrays there are."""
        return sum(self.is_array)


class NotLinear(NamedTuple):
    """Why there is no matrix form.

    Attributes:
      reason: a sentence without a full stop.
      fails: whether the rule or the optimizer fails on vectors.
    """

    reason: str
    fails: bool = False


def has_host() -> bool:
    """Whether JAX may use the host's CPU, which computes the matrices."""
    try:
        return bool(jax.local_devices(backend="cpu"))
    except RuntimeError:
        return False


def find_linear_form(
    rule: Rule,
    optimizer: Any,
    params: Params,
    num_clients: int,
    columns: Mapping[str, np.ndarray],
    recall: Recall | None,
    sent: tuple[str, ...] | None = None,
) -> LinearForm | NotLinear:
    """Finds out whether a rule and a server optimizer are linear.

    Args:
      rule: the algorithm.
      optimizer: the server optimizer, an optax transformation.
      params: [*P] the model, or its shapes.
      num_clients: N.
      columns: {name: [J, ...]} of the rule; one row of each is read.
      recall: what the rule recalls, or None.
      sent: the names of what clients send beside their updates, as in ``Exchange``.

    Returns:
      What the matrix form needs, or why there is none.
    """
    if not has_host():
        why = "the matrices are made on the host's CPU, which JAX_PLATFORMS leaves out: add cpu to it"
        return NotLinear(why)
    # One row: only which numbers a rule reads decides, not their values.
    row = {name: np.asarray(column)[0] for name, column in columns.items()}
    weight = np.ones(np.shape(recall.weight)[1:]) if recall else ()
    # First the rule with plain SGD, which is linear: so the reason names the one of the two that is not.
    for checked, name in ((optax.sgd(1.0), "the rule"), (optimizer, "the server optimizer")):
        try:
            with on_host():
                form = _LinearityCheck(name, rule, checked, num_clients, row, weight, sent).form(params)
        except SettingError:
            raise
        # A user's own code may raise anything where it gets a vector in place of a model.
        except Exception as error:
            return NotLinear(f"{name} cannot run on vectors ({type(error).__name__})", fails=True)
        if isinstance(form, NotLinear):
            return form
    return form


class _LinearityCheck:
    """Runs and traces the operations of a rule and an optimizer on vectors and on a small model.

    Args:
      name: the one that the reason names: "the rule" or "the server optimizer".
      rule: the algorithm.
      optimizer: the server optimizer, an optax transformation.
      num_clients: N.
      columns: {name: [...]} of the rule, of one trip.
      weight: [...] of one recalled value, or ().
      sent: the names of what clients send beside their updates, or None.
    """

    def __init__(
        self,
        name: str,
        rule: Rule,
        optimizer: Any,
        num_clients: int,
        columns: Any,
        weight: Any,
        sent: tuple[str, ...] | None,
    ):
        self._name, self._rule, self._optimizer, self._num_clients = name, rule, optimizer, num_clients
        self._columns, self._weight = columns, weight
        self._state = self._initial_state(5)
        larger = jax.eval_shape(lambda: self._initial_state(7))
        # Two lengths, because bookkeeping may have one of them by chance: an entry for each of 5 clients, say.
        self._is_array = tuple(
            np.shape(leaf) == (5,) and np.shape(grown) == (7,)
            for leaf, grown in zip(*map(jax.tree.leaves, (self._state, larger)), strict=True)
        )
        self._exchange = find_exchange(rule, self._state.rule_state, larger.rule_state, sent)
        self._num_arrays = sum(self._is_array)
        self._num_inputs = SINGLE + self._exchange.num_sent
        self._vectors = _as_vectors([jnp.zeros(5)] * self._num_inputs)

    def form(self, params: Params) -> LinearForm | NotLinear:
        """The linear form for a model like ``params`` [*P], or why there is none."""
        # The structure first, because the other checks divide the state by it.
        reason = (
            self._check_structure()
            or self._check_randomness()
            or self._check_memory()
            or self._check_dependence()
            or self._check_additivity()
        )
        if not reason and not self._is_uniform(params):
            reason = f"{self._name} treats the arrays of a model differently"
        if not reason and self._reads_sizes(params):
            reason = f"{self._name} reads the number of a model's parameters, or their shapes or types"
        if reason:
            return NotLinear(reason)
        return LinearForm(self._is_array, *self._reads(), self._exchange)

    def _initial_state(self, size: int) -> ServerState:
        """The state before the first operation, for a model that is one vector of ``size`` entries."""
        return initial_state(self._rule, self._optimizer, jnp.zeros(size), self._num_clients)

    def _after(self, arrays: list[Any], inputs: list[Any]) -> list[np.ndarray]:
        """``_results``' arrays after one operation, from the state arrays before it and from what it reads."""
        _, bookkeeping = split_state(self._state, self._is_array)
        before = join_state(jax.tree.structure(self._state), self._is_array, arrays, bookkeeping)
        state, _ = self._operate(before, _as_vectors(inputs), self._scalars())
        return [np.asarray(array) for array in self._results(state)[0]]

    def _results(self, state: ServerState) -> tuple[list[Any], list[Any]]:
        """What a ``state`` on vectors decides: its arrays and those that the rule broadcasts, and all numbers."""
        arrays, bookkeeping = split_state(state, self._is_array)
        broadcast_arrays, numbers = self._exchange.split(self._broadcast(state))
        return arrays + broadcast_arrays, bookkeeping + numbers

    def _broadcast(self, state: ServerState) -> Any:
        return self._rule.broadcast(state.rule_state) if self._rule.broadcast else None

    def _check_structure(self) -> str | None:
        """The reason if the state has another structure after an operation, which no loop of JAX can carry."""
        after = jax.eval_shape(self._operate, self._state, self._vectors, self._scalars())[0]
        structures: list[Any] = [jax.tree.structure(tree) for tree in (after, self._state)]
        return None if structures[0] == structures[1] else f"{self._name} changes the structure of its state"

    def _check_randomness(self) -> str | None:
        """The reason if an operation draws: in the 64 bits of the matrices it draws other numbers than the loop."""
        draws = operands(self._operate, DRAWS, self._state, self._vectors, self._scalars())
        return f"{self._name} draws random numbers, which are others in 64 bits" if draws else None

    def _check_additivity(self) -> str | None:
        """The reason if a sum of vectors does not give the sum of their results."""
        # The derivative alone would not do: that of ``sign`` is constant, too.
        random = np.random.default_rng(SEED)
        number = self._num_arrays
        shape = (2, number + self._num_inputs, 5)
        first, second = random.normal(size=shape) * np.array([1.0, 1e3])[:, None, None]
        first_result, second_result, sum_result, zeros_result = [
            np.array(self._after(list(vectors[:number]), list(vectors[number:])))
            for vectors in (first, second, first + second, 0 * first)
        ]
        scale = TOLERANCE * np.max(np.abs(sum_result))
        # Zeros as well: a constant that a rule adds to large sums could hide in their rounding.
        is_sum = np.all(np.abs(first_result + second_result - sum_result) <= scale)
        additive = is_sum and not np.any(zeros_result)
        return None if additive else f"{self._name} is not linear in the updates"

    def _scalars(self) -> Operation:
        """An operation with all four parts, without what has the model's shape."""
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
        """The state after one operation, and its reports."""
        # None for what the rule does not ask for, as in the loop: a rule that reads it nevertheless fails here.
        sent = self._exchange.named(vectors.sent)
        arrival = scalars.arrival._replace(update=vectors.update, sent=sent)
        if self._rule.needs_start:
            arrival = arrival._replace(start=vectors.start)
        if self._rule.remembers:
            arrival = arrival._replace(stored=vectors.stored, previous=vectors.previous)
        operation = scalars._replace(arrival=arrival, recalled=vectors.recalled)
        return operate(self._rule, self._optimizer, state, operation)

    def _check_memory(self) -> str | None:
        """The reason if the rule stores something else than updates, which is all that the device can store."""
        if not self._rule.remembers:
            return None
        update = np.arange(1.0, 6.0)
        arrival = self._scalars().arrival._replace(update=update, start=np.zeros(5))
        value = self._rule.remembers(arrival)
        same = isinstance(value, np.ndarray) and np.array_equal(value, update)
        return None if same else "the rule stores something else than its clients' updates"

    def _check_dependence(self) -> str | None:
        """The reason if factors, bookkeeping or reports depend on what training computes."""
        structure = jax.tree.structure(self._state)
        arrays, bookkeeping = split_state(self._state, self._is_array)
        vectors, scalars = self._vectors, self._scalars()

        def operate_on_leaves(arrays, vectors, bookkeeping, scalars):
            """(the state arrays after the operation, all else that it computes)."""
            state = join_state(structure, self._is_array, arrays, bookkeeping)
            state_after, reports = self._operate(state, vectors, scalars)
            arrays_after, numbers_after = self._results(state_after)
            return arrays_after, (numbers_after, reports)

        def derivative(arrays, vectors, bookkeeping, scalars, change):
            def arrays_after(arrays, vectors):
                return operate_on_leaves(arrays, vectors, bookkeeping, scalars)[0]

            return jax.jvp(arrays_after, (arrays, vectors), change)[1]

        # The host makes the matrices before the trips train, so it knows neither models and updates nor losses.
        loss = len(jax.tree.leaves((arrays, vectors, bookkeeping))) + _field_number(scalars, "loss")
        trained = {*range(len(jax.tree.leaves((arrays, vectors)))), loss}
        read_by_arrays, read_by_others = dependences(operate_on_leaves, arrays, vectors, bookkeeping, scalars)
        if trained & _union(read_by_others):
            return f"{self._name} keeps, broadcasts or reports numbers that depend on the updates"
        # The factors are the derivative. A linear function has the same one wherever it is taken; so it may depend on
        # the direction ``change``, but not on arrays and vectors.
        factors = dependences(derivative, arrays, vectors, bookkeeping, scalars, (arrays, vectors))
        if trained & _union(factors) or loss in _union(read_by_arrays):
            return f"{self._name} is not linear in the updates"
        return None

    def _is_uniform(self, params: Params) -> bool:
        """Whether an operation on a small model like ``params`` has the same factors as one on a vector."""
        # Two linear functions that agree on random numbers are the same with probability 1.
        random = np.random.default_rng(SEED)
        shapes = [[min(size, FEW) for size in np.shape(leaf)] for leaf in jax.tree.leaves(params)]
        models = [_random_leaves(random, shapes) for _ in range(self._num_arrays)]
        inputs = [_random_leaves(random, shapes) for _ in range(self._num_inputs)]
        expected = self._after(
            [_concatenate(leaves) for leaves in models], [_concatenate(leaves) for leaves in inputs]
        )

        structure = jax.tree.structure(params)
        small = jax.tree.unflatten(structure, _random_leaves(random, shapes))
        state_like = initial_state(self._rule, self._optimizer, small, self._num_clients)
        # Where the state on vectors has one leaf for a model, the state on the small model has one for each array.
        remaining_models = iter(models)
        leaves = [
            part
            for leaf, array in zip(jax.tree.leaves(self._initial_state(5)), self._is_array, strict=True)
            for part in (next(remaining_models) if array else [leaf])
        ]
        state = jax.tree.unflatten(jax.tree.structure(state_like), leaves)
        vectors = _as_vectors([jax.tree.unflatten(structure, leaves) for leaves in inputs])
        after, _ = self._operate(state, vectors, self._scalars())
        remaining_leaves, results = iter(jax.tree.leaves((after, self._broadcast(after)))), []
        for array in self._is_array + self._exchange.is_array:
            parts = [next(remaining_leaves) for _ in (shapes if array else [()])]
            results += [_concatenate(parts)] if array else []
        return np.allclose(results, expected, rtol=TOLERANCE, atol=TOLERANCE)

    def _reads_sizes(self, params: Params) -> bool:
        """Whether an operation does something else on vectors of other lengths, or on the model itself."""
        # A trace computes nothing, so the user's own model can be compared as well, however large it is.
        scalars = self._scalars()

        def trace(model: Any) -> Any:
            def work(model: Any, scalars: Operation) -> Any:
                state = initial_state(self._rule, self._optimizer, model, self._num_clients)
                after = self._operate(state, _as_vectors([model] * self._num_inputs), scalars)
                return state, after, self._broadcast(after[0])

            return jax.make_jaxpr(work)(model, scalars)

        def shaped(leaf: Any) -> Any:
            return jax.ShapeDtypeStruct([min(size, FEW) for size in np.shape(leaf)], np.float64)

        vectors = [trace(jax.ShapeDtypeStruct((size,), np.float64)) for size in LENGTHS]
        models = [trace(model) for model in (jax.tree.map(shaped, params), params)]
        pairs = [*zip(vectors[:-1], vectors[1:], strict=True), tuple(models)]
        return not all(same_but_for_sizes(*pair) for pair in pairs)

    def _reads(self) -> tuple[bool, bool, bool]:
        """``reads_update``, ``reads_start`` and ``reads_work`` of the form."""
        scalars = self._scalars()
        # What nobody reads takes no columns in the matrices, and no room on the device.
        read = _union(dependences(self._operate, self._state, self._vectors, scalars))
        first_vector = len(jax.tree.leaves(self._state))
        update, start = (first_vector + Vectors._fields.index(name) for name in ("update", "start"))
        first_scalar = first_vector + self._num_inputs
        work = {first_scalar + _field_number(scalars, field) for field in ("batch_examples", "local_steps")}
        return update in read, start in read, bool(work & read)


def _as_vectors(inputs: list[Any]) -> Vectors:
    """The fields of ``Vectors``, and behind them what clients have sent."""
    update, start, stored, previous, recalled, *sent = inputs
    return Vectors(update, start, stored, previous, recalled, tuple(sent))


def _union(arguments: Any) -> frozenset[int]:
    """The union of a pytree of sets, as ``dependences`` returns one."""
    return frozenset().union(*jax.tree.leaves(arguments, is_leaf=lambda value: isinstance(value, frozenset)))


def _field_number(scalars: Operation, field: str) -> int:
    """The number of a field of the arrival among the leaves of an operation."""
    # ``dependences`` counts leaves, and the fields before this one may have any number of them. So a text takes the
    # place of the field: no other leaf is one.
    changed: Any = {field: "here"}
    marked = scalars._replace(arrival=scalars.arrival._replace(**changed))
    return next(number for number, leaf in enumerate(jax.tree.leaves(marked)) if isinstance(leaf, str))


def _random_leaves(random: np.random.Generator, shapes: list[list[int]]) -> list[np.ndarray]:
    """A model's leaves of these shapes, of standard normal numbers."""
    return [random.normal(size=shape) for shape in shapes]


def _concatenate(leaves: list[Any]) -> np.ndarray:
    """[n] all entries of a model, one leaf after the other."""
    return np.concatenate([np.asarray(leaf).reshape(-1) for leaf in leaves])
