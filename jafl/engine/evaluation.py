"""Evaluation of a server model on held-out examples."""

import contextlib
import functools
import numbers
import operator
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jafl.base.contents import digest_of_held
from jafl.base.errors import SettingError, require
from jafl.base.given_arrays import as_array
from jafl.data import Federation
from jafl.engine.devices import put
from jafl.models import Metric, Model
from jafl.models.tasks import in_jax, to_sum
from jafl.records import Params

EXAMPLES_AT_ONCE = 512
EXAMPLES_OF_A_CLIENT = 32  # at most, that are measured at once with the client's own model


class Evaluator:
    """What a model's task measures, on fixed examples, placed on the device once and padded to whole batches.

    Args:
      model: the model, with its frozen parameters, if any.
      x: [E, ...] the examples.
      y: [E, ...] labels as the model's task reads them.

    Examples:
      >>> model = jafl.models.softmax(2)
      >>> x, y = np.eye(2, dtype=np.float32), np.array([0, 1])
      >>> jafl.Evaluator(model, x, y)(model.init(jax.random.key(0), x))["accuracy"]
      0.5
    """

    def __init__(self, model: Model, x: np.ndarray, y: np.ndarray):
        require(
            isinstance(model, Model),
            "model",
            model,
            "a jafl.Model",
            "Write jafl.Model(module) around a module.",
        )
        x, y = as_array("x", x), as_array("y", y)
        require(len(x) > 0, "the number of examples", len(x), "at least 1")
        require(len(y) == len(x), "the number of labels", len(y), f"that of the examples, {len(x)}")
        self._model = put(model)  # its frozen parameters, if any
        # Whole batches: a program that is compiled for one shape then serves all of them.
        size, padding = _batch_size(x), -len(x) % _batch_size(x)
        batches = [
            np.concatenate([a, np.repeat(a[:1], padding, axis=0)]).reshape(-1, size, *a.shape[1:])
            for a in (x, y, np.ones(len(x), bool))
        ]
        # The examples that fill up the last batch are in no sum.
        batches[2].reshape(-1)[len(x) :] = False
        self._batches = jax.device_put(tuple(batches))
        self._count = len(x)

    def __call__(self, params: Params) -> dict[str, float]:
        """{name: number} of the task's metrics, "accuracy" of a classifier for example, and "loss", the mean loss."""
        return self.means(jax.device_get(self.start(params)))

    @functools.cached_property
    def digest(self) -> str:
        """A digest of the examples and of the model's frozen parameters: equal where the same is measured."""
        return digest_of_held((self._model, self._batches))

    def start(self, params: Params) -> Mapping[str, tuple[Any, ...]]:
        """Starts what the call computes: the sums on the device, which ``means`` reads once they are on the host."""
        return totals(self._model, params, self._batches)

    def of_many(self, params: Params) -> list[dict[str, float]]:
        """What the call gives for each of M models, ``params`` [M, *P], in one program."""
        return self.means_of_many(jax.device_get(self.start_many(params)))

    def start_many(self, params: Params) -> Mapping[str, tuple[Any, ...]]:
        """As ``start`` for each of M models, ``params`` [M, *P], in one program; sums [M]."""
        return _totals_of_many(self._model, params, self._batches)

    def means_of_many(self, sums: Mapping[str, tuple[Any, ...]]) -> list[dict[str, float]]:
        """What ``of_many`` returns, from the sums [M] of ``start_many``."""
        number = len(sums["loss"][0])
        return [self.means(jax.tree.map(operator.itemgetter(one), sums)) for one in range(number)]

    def means(self, sums: Mapping[str, tuple[Any, ...]]) -> dict[str, float]:
        """What the call returns, from the sums of ``start``."""
        means = {}
        for name in (*self._model.measured, "loss"):
            # A metric without counts has one value for each example.
            total, count = (*sums[name], self._count)[:2]
            mean = float(total) / float(count) if count else float("nan")
            metric = self._model.measured.get(name)
            # After the mean: a root of the mean over all batches is not the mean of their roots.
            finish = metric.finish if isinstance(metric, Metric) else None
            means[name] = float(finish(mean)) if finish else mean
        return means


def recorded(name: str, result: Any) -> dict[str, float]:
    """What an evaluation records of an evaluator's result: ``name_metric`` for each metric, or ``name`` for a number.

    Args:
      name: the evaluator's.
      result: {metric: number}, or a number.

    Returns:
      {name: number}.

    Raises:
      SettingError: for any other result.

    Examples:
      >>> recorded("mine", {"accuracy": 0.5}), recorded("mine", 0.5)
      ({'mine_accuracy': 0.5}, {'mine': 0.5})
    """
    if not isinstance(result, Mapping):
        return {f"{name}": _number(name, result)}
    return {f"{name}_{metric}": _number(name, value) for metric, value in result.items()}


def _number(name: str, value: Any) -> float:
    if isinstance(value, np.ndarray):
        value = as_array(f"the result of the evaluator {name!r}", value)
    # What JAX and NumPy compute are arrays of one entry, and users return them as they are.
    is_array = hasattr(value, "dtype") and np.size(value) == 1
    if is_array and np.dtype(value.dtype).kind in "biuf" or isinstance(value, numbers.Real):
        with contextlib.suppress(OverflowError):  # a whole number of Python's beyond all floats
            return float(np.asarray(value).reshape(()))
    described = f"of the shape {np.shape(value)}" if hasattr(value, "shape") else repr(value)
    allowed = "a number, or {metric: number}"
    require(False, f"the result of the evaluator {name!r}", described, allowed)
    # Never reached: ``require`` has raised, which type checkers do not know.
    raise AssertionError


def per_client_accuracy(model: Model, params: Params, federation: Federation) -> np.ndarray:
    """[N] float64: accuracy on what each client holds out of its own examples; NaN for who holds out none.

    Raises:
      SettingError: if the federation holds nothing out, or the model's task has no accuracy.
    """
    measured = model.measured
    require("accuracy" in measured, "what the model measures", ", ".join(measured) or "loss", "accuracy, too")
    held = federation.held_out
    if held is None:
        raise SettingError(
            "federation.held_out is None, but must hold examples: set split.client_test_fraction, or see "
            "jafl.data.hold_out.",
            setting="federation.held_out",
        )
    return _per_client(model, params, federation, held)["accuracy"]


def per_client(model: Model, params: Params, federation: Federation) -> dict[str, np.ndarray]:
    """What the model's task measures on each client's own examples, held out if there are any, else trained on.

    Args:
      model: the model.
      params: [*P] its parameters.
      federation: the clients.

    Returns:
      {metric: [N] float64}, "loss" among them; NaN for a client without such examples.
    """
    return _per_client(model, params, federation, federation.held_out or federation.partition)


def fairness(values: np.ndarray, *, better: str | None) -> dict[str, float]:
    """How even something is over clients.

    Args:
      values: [N], one number for each client; NaN is left out.
      better: which values are better, "larger" or "smaller"; None where nobody knows.

    Returns:
      {"mean": over clients, "worst_tenth": the mean of the worst tenth of them, at least one, "std": the standard
      deviation over clients}; without "worst_tenth" where nobody knows which values are better.

    Examples:
      >>> fairness(np.array([0.0, 1.0, np.nan]), better="larger")
      {'mean': 0.5, 'worst_tenth': 0.0, 'std': 0.5}
    """
    known = np.sort(values[~np.isnan(values)])
    known = known[::-1] if better == "smaller" else known
    # Where no client has examples there is no worst tenth either.
    known = known if len(known) else np.array([np.nan])
    worst = known[: -(-len(known) // 10)]
    numbers = {
        "mean": float(np.mean(known)),
        "worst_tenth": float(np.mean(worst)),
        "std": float(np.std(known)),
    }
    return {kind: number for kind, number in numbers.items() if better or kind != "worst_tenth"}


def _per_client(model: Model, params: Params, federation: Federation, held: Any) -> dict[str, np.ndarray]:
    """``per_client`` on the examples ``held`` by each client: a partition, or what is held out."""
    # By example, and summed by client afterwards: client by client there would be a shape for each size of client.
    names = (*model.measured, "loss")
    columns = {name: np.zeros((2, len(held.indices))) for name in names}
    for start in range(0, len(held.indices), EXAMPLES_AT_ONCE):
        rows = held.indices[start : start + EXAMPLES_AT_ONCE]
        # Always as many rows, so that one program serves all.
        padded = np.concatenate([rows, np.repeat(rows[:1], EXAMPLES_AT_ONCE - len(rows))])
        sums_and_counts = jax.device_get(
            _measured_per_example(model, params, federation.x[padded], federation.y[padded])
        )
        for name in names:
            for column, values in zip(columns[name], sums_and_counts[name], strict=True):
                column[start : start + len(rows)] = values[: len(rows)]
    return _means(model, columns, held)


def personal_per_client(
    model: Model, models_of: Callable[[np.ndarray], Params], federation: Federation
) -> dict[str, np.ndarray]:
    """``per_client`` of each client's own model in the place of one for all, each metric named ``personal_metric``.

    models_of: (clients [W]) -> [W, *P].
    """
    held = federation.held_out or federation.partition
    columns = {name: np.zeros((2, len(held.indices))) for name in (*model.measured, "loss")}
    # Each client's examples in pieces of one size, some pieces at a time: one program serves all sizes of clients.
    size = int(min(max(held.sizes.max(), 1), EXAMPLES_OF_A_CLIENT))
    pieces = -(-held.sizes // size)
    client = np.repeat(np.arange(federation.num_clients), pieces)
    number = np.arange(len(client)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    places = (held.offsets[client] + size * number)[:, None] + np.arange(size)
    present = places < held.offsets[client + 1][:, None]
    at_once = min(EXAMPLES_AT_ONCE // size, max(len(client), 1))
    for start in range(0, len(client), at_once):
        own = np.arange(start, start + at_once)
        # The last block is filled up with its first piece, and pieces with their first example.
        block = np.where(own < len(client), own, start)
        rows = held.indices[np.where(present[block], places[block], places[block, :1])]
        values = jax.device_get(
            _measured_per_model(model, models_of(client[block]), federation.x[rows], federation.y[rows])
        )
        counted = present[block] & (own < len(client))[:, None]
        for name, column in columns.items():
            for each, measured in zip(column, values[name], strict=True):
                each[places[block][counted]] = measured[counted]
    return {f"personal_{name}": values for name, values in _means(model, columns, held).items()}


def _means(model: Model, columns: Mapping[str, np.ndarray], held: Any) -> dict[str, np.ndarray]:
    """{metric: [N]} of sums and counts [2, examples], by the clients who hold the examples."""
    holder = np.repeat(np.arange(len(held.sizes)), held.sizes)
    means = {}
    for name, (sums, counts) in columns.items():
        total, count = (np.bincount(holder, column, len(held.sizes)) for column in (sums, counts))
        # 0 / 0, of a client without examples, is the NaN that is promised.
        with np.errstate(invalid="ignore"):
            means[name] = total / count
        metric = model.measured.get(name)
        if isinstance(metric, Metric) and metric.finish:
            finish = metric.finish
            means[name] = np.array([float(finish(mean)) for mean in means[name]])
    return means


def evaluation_memory(model: Model, federation: Federation, *, on_training: bool = False) -> int:
    """Bytes that the evaluators on a federation's splits hold.

    on_training: whether the training examples are a split to evaluate on, too.
    """
    # For each split: every evaluator places the model's frozen parameters by itself.
    # Random keys, which modules may hold, are no arrays of NumPy; numbers of Python have no size of their own.
    leaves = [leaf if hasattr(leaf, "nbytes") else np.asarray(leaf) for leaf in jax.tree.leaves(model)]
    model_bytes = sum(leaf.nbytes for leaf in leaves)
    return sum(
        model_bytes + sum(batch.size * batch.dtype.itemsize for batch in batch_shapes(x, y))
        for x, y in evaluated_splits(federation, on_training=on_training)
    )


def evaluated_splits(
    federation: Federation, *, on_training: bool = False
) -> list[tuple[np.ndarray, np.ndarray]]:
    """(x, y) of the splits of a federation to evaluate on; ``on_training``: of the training examples, too."""
    splits = [(federation.test_x, federation.test_y), (federation.validation_x, federation.validation_y)]
    splits += [(federation.x, federation.y)] if on_training else []
    return [(x, y) for x, y in splits if x is not None and y is not None and len(x)]


def batch_shapes(x: np.ndarray, y: np.ndarray) -> list[jax.ShapeDtypeStruct]:
    """The shapes and dtypes of the batches in which examples ``x`` with labels ``y`` are evaluated."""
    size = _batch_size(x)
    # Canonical types: the device holds 64 bits as 32, unless JAX computes with 64.
    columns = [(x.shape[1:], x.dtype), (y.shape[1:], y.dtype), ((), np.dtype(bool))]
    return [
        jax.ShapeDtypeStruct((-(-len(x) // size), size, *rest), jax.dtypes.canonicalize_dtype(dtype))
        for rest, dtype in columns
    ]


def _batch_size(x: np.ndarray) -> int:
    return min(EXAMPLES_AT_ONCE, len(x))


@jax.jit
def _measured_per_example(
    model: Model, params: Params, x: jax.Array, y: jax.Array
) -> dict[str, tuple[jax.Array, jax.Array]]:
    """{metric: ([B] its sum over each example, [B] over how many things)}."""
    values = _measured(model, params, x, y)
    alone = {name: value for name, value in values.items() if not isinstance(value, (tuple, list))}
    return {**values, **{name: (value, jnp.ones(len(x), int)) for name, value in alone.items()}}


@jax.jit
def _measured_per_model(
    model: Model, params: Params, x: jax.Array, y: jax.Array
) -> dict[str, tuple[jax.Array, jax.Array]]:
    """``_measured_per_example`` [W, B] of each of W models, ``params`` [W, *P], on examples of its own."""
    return jax.vmap(functools.partial(_measured_per_example, model))(params, x, y)


def _measured(model: Model, params: Params, x: jax.Array, y: jax.Array) -> dict[str, Any]:
    """{metric: what it returns for these examples}; among them the losses."""
    outputs = model.apply(params, x)
    values = {}
    for name, metric in model.measured.items():
        with in_jax(f"the metric {name!r}", metric):
            values[name] = metric(outputs, y)
    with in_jax("the loss", model.loss_per_example):
        values["loss"] = model.loss_per_example(outputs, y)
    return values


@jax.jit
def totals(model: Model, params: Params, batches: tuple) -> dict[str, tuple[jax.Array, ...]]:
    """{metric: (sum,) or (sum, count)} on an evaluator's batches; among them the sum of losses."""

    def total(batch):
        x, y, present = batch
        return {name: _sums(name, value, present) for name, value in _measured(model, params, x, y).items()}

    # One batch after the other: all at once would hold the activations of all examples.
    return jax.tree.map(jnp.sum, jax.lax.map(total, batches))


def _sums(name: str, values: Any, present: jax.Array) -> tuple[jax.Array, ...]:
    """The sums of what a metric returns, over the examples that are present."""
    columns = tuple(values) if isinstance(values, (tuple, list)) else (values,)
    fits = len(columns) <= 2 and all(jnp.shape(column) == present.shape for column in columns)
    shapes = [jnp.shape(column) for column in columns]
    allowed = "[B], one number for each example, or two such arrays (sums, counts)"
    require(fits, f"the shape of the metric {name!r}", shapes, allowed)
    return tuple(
        # ``where``, and no product with the mask: 0 times a value that is not finite is not 0.
        jnp.sum(column & present if column.dtype == bool else jnp.where(present, column, 0))
        for column in map(to_sum, columns)
    )


@jax.jit
def _totals_of_many(model: Model, params: Params, batches: tuple) -> dict[str, tuple[jax.Array, ...]]:
    return jax.vmap(lambda params: totals(model, params, batches))(params)
