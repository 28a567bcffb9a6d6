"""What a model is trained for: its loss, what is measured in evaluation, and which labels fit it.

``jafl.Model(module, task="regression")`` names one of ``TASKS``. A loss, and a *metric*, is a function (outputs
[B, ...], labels [B, ...]) -> [B] values, whose mean over the examples counts; or -> ([B] sums, [B] counts), of which
sum / count over all examples does: with the numbers of tokens, the mean over tokens; with weights, a weighted mean.
"""

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jafl.base.errors import SettingError, choose, require
from jafl.base.platform_forms import by_platform

Loss = Callable[[jax.Array, jax.Array], Any]
MetricFunction = Callable[[Any, jax.Array], Any]


@dataclasses.dataclass(frozen=True)
class Metric:
    """A metric whose mean is changed at the end.

    Attributes:
      of_examples: (outputs [B, ...], labels [B, ...]) -> [B] values, or ([B] sums, [B] counts).
      finish: from the mean over all examples to what is recorded.

    Examples:
      >>> squared = jafl.models.tasks.squared_error
      >>> root_mean_squared_error = jafl.models.Metric(squared, math.sqrt)
    """

    of_examples: MetricFunction
    finish: Callable[[float], float] | None = None

    def __call__(self, outputs: Any, labels: jax.Array) -> Any:
        """``of_examples``."""
        return self.of_examples(outputs, labels)


@dataclasses.dataclass(frozen=True)
class Task:
    """What a model is trained for.

    Attributes:
      name: in messages.
      loss_per_example: (outputs, labels) -> [B], or ([B] sums, [B] counts): of any set of examples, a minibatch or
        a test set, the loss is then the sum of the first, divided by that of the second.
      metrics: {name: metric}, recorded in evaluation beside the loss.
      labels: which labels it reads: "classes" (whole numbers [B]), "tokens" (whole numbers [B, T]), "numbers"
        (floats), "flag" (0 or 1, [B] or [B, 1]), "flags" (0 or 1, [B, L]) or "any".
    """

    name: str
    loss_per_example: Loss
    metrics: Mapping[str, MetricFunction] = dataclasses.field(default_factory=dict)
    labels: str = "any"

    def __hash__(self) -> int:
        return hash((self.name, self.loss_per_example))


@dataclasses.dataclass(frozen=True)
class Reading:
    """A loss or a metric of one of several outputs; compared by value."""

    function: Callable[[Any, jax.Array], Any]  # of (that output, labels)
    output: str | int | None  # its key, place or name, see ``jafl.Model``

    def __call__(self, outputs: Any, labels: jax.Array) -> Any:
        """``function`` of the output."""
        return self.function(one_output(outputs, self.output), labels)


def reading(function: Any, output: str | int | None) -> Any:
    """A task's loss or metric for a model of which it reads this output; ``function`` itself for None."""
    if output is None:
        return function
    if isinstance(function, Metric):
        return dataclasses.replace(function, of_examples=Reading(function.of_examples, output))
    return Reading(function, output)


def one_output(outputs: Any, output: str | int | None) -> Any:
    """One of several outputs, a dict, tuple or named tuple; all for None. SettingError where there is no such one."""
    if output is None:
        return outputs
    names = output_names(outputs)
    require(
        output in names,
        "output",
        output,
        f"one of the model's outputs, {names or 'but it returns one array'}",
    )
    return (
        getattr(outputs, output)
        if isinstance(output, str) and hasattr(outputs, "_fields")
        else outputs[output]
    )


def output_names(outputs: Any) -> list[Any]:
    """The names by which ``output`` of a model may call its outputs; [] for one array."""
    if isinstance(outputs, Mapping):
        return list(outputs)
    if isinstance(outputs, (tuple, list)):
        return [*getattr(outputs, "_fields", ()), *range(len(outputs))]
    return []


def softmax_cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """The cross-entropy of labels under the softmax of logits.

    Args:
      logits: [B, classes].
      labels: [B] integers.

    Returns:
      [B] losses.

    Examples:
      >>> losses = jafl.models.softmax_cross_entropy(jnp.array([[0.0, 100.0]]), jnp.array([0]))
      >>> losses.tolist()
      [100.0]
    """

    def by_comparison(logits: jax.Array, labels: jax.Array) -> jax.Array:
        """Without a look-up of the labels' logits, which takes a TPU five operations."""
        classes = jnp.arange(logits.shape[-1]).reshape((1,) * labels.ndim + (-1,))
        is_label = labels[..., None] == classes
        label_logits = jnp.sum(jnp.where(is_label, logits, 0), axis=-1)
        return jax.nn.logsumexp(logits, axis=-1) - label_logits

    losses: jax.Array = by_platform(
        logits, labels, cpu=optax.softmax_cross_entropy_with_integer_labels, elsewhere=by_comparison
    )
    return losses


def accuracy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Whether the largest of ``logits`` [..., classes] is the label [...]: bool [...]."""
    return jnp.argmax(logits, axis=-1) == labels


def squared_error(outputs: jax.Array, targets: jax.Array) -> jax.Array:
    """The squared error of each example, averaged over its numbers.

    Args:
      outputs: [B] or [B, ...]; [B, 1] also fits targets [B].
      targets: [B] or [B, ...].

    Returns:
      [B] losses.

    Raises:
      SettingError: where the shapes differ.

    Examples:
      >>> jafl.models.squared_error(jnp.array([[1.0], [2.0]]), jnp.array([1.0, 4.0])).tolist()
      [0.0, 4.0]
    """
    return _mean_of_each(_errors(outputs, targets) ** 2)


def absolute_error(outputs: jax.Array, targets: jax.Array) -> jax.Array:
    """The absolute error of each example, averaged over its numbers: [B]; shapes as in ``squared_error``."""
    return _mean_of_each(jnp.abs(_errors(outputs, targets)))


def sigmoid_cross_entropy(logits: jax.Array, flags: jax.Array) -> jax.Array:
    """The cross-entropy of each example's labels, each of which may apply or not, averaged over the labels.

    Args:
      logits: [B, L]; a label is said to apply where its logit is above 0.
      flags: [B, L] of 0 and 1.

    Returns:
      [B] losses.

    Examples:
      >>> jafl.models.sigmoid_cross_entropy(jnp.array([[100.0, -100.0]]), jnp.array([[1, 0]])).tolist()
      [0.0]
    """
    _same_shape(logits, flags)
    return _mean_of_each(optax.sigmoid_binary_cross_entropy(logits, flags.astype(logits.dtype)))


def binary_cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """The cross-entropy of yes or no under the sigmoid of one logit.

    Args:
      logits: [B] or [B, 1]; yes is predicted where the logit is above 0.
      labels: [B] or [B, 1] of 0 and 1, or bool.

    Returns:
      [B] losses.

    Raises:
      SettingError: where there are several logits or labels for an example.

    Examples:
      >>> jafl.models.binary_cross_entropy(jnp.array([[1000.0], [-1000.0]]), jnp.array([1, 1])).tolist()
      [0.0, 1000.0]
    """
    logits, labels = _one_each(logits, labels)
    return optax.sigmoid_binary_cross_entropy(logits, labels.astype(logits.dtype))


def binary_accuracy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Bool [B]: whether the logit is above 0 where the label is 1, and there alone; shapes as of the loss."""
    logits, labels = _one_each(logits, labels)
    return (logits > 0) == (labels > 0)


def _sensitivity(logits: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(bool [B] right and 1, bool [B] 1): the accuracy on label 1, also called the true positive rate."""
    there = _one_each(logits, labels)[1] > 0
    return binary_accuracy(logits, labels) & there, there


def _specificity(logits: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(bool [B] right and 0, bool [B] 0): the accuracy on label 0, also called the true negative rate."""
    there = _one_each(logits, labels)[1] <= 0
    return binary_accuracy(logits, labels) & there, there


def _one_each(logits: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Both as [B]."""
    flat = [
        array[..., 0] if array.ndim == 2 and array.shape[-1] == 1 else array for array in (logits, labels)
    ]
    for name, array in zip(("the shape of the model's output", "the shape of y"), flat, strict=True):
        require(array.ndim == 1, name, array.shape[1:], "() or (1,), one number for each example")
    return flat[0], flat[1]


def share_of_labels(logits: jax.Array, flags: jax.Array) -> jax.Array:
    """[B]: which share of an example's labels is right."""
    return _mean_of_each(((logits > 0) == (flags > 0)).astype(logits.dtype))


def all_labels(logits: jax.Array, flags: jax.Array) -> jax.Array:
    """Bool [B]: whether all of an example's labels are right."""
    return jnp.all((logits > 0) == (flags > 0), axis=tuple(range(1, logits.ndim)))


def language_modelling(padding: int = -1) -> Task:
    """The task of predicting each token of a text: a class for each place in it.

    Labels are [B, T], the token that belongs to each of ``outputs`` [B, T, tokens]. Places where the label is
    ``padding``, or negative, count neither in the loss nor in what is measured. The loss of a minibatch, whose
    gradient clients follow, and that of a test set are means over all their tokens, as are "accuracy" and the
    logarithm of "perplexity". Examples without a token change nothing.

    Args:
      padding: the label of places that do not count; 0 in jafl's own texts.

    Returns:
      The task, for ``jafl.Model(module, task=...)``.

    Examples:
      >>> sorted(jafl.models.language_modelling(padding=0).metrics)
      ['accuracy', 'perplexity']
    """
    return Task(
        "language_modelling",
        TokenSums(padding),
        {"accuracy": _TokenAccuracy(padding), "perplexity": Metric(TokenSums(padding), _exponential)},
        "tokens",
    )


@dataclasses.dataclass(frozen=True)
class TokenSums:
    """(sum of the tokens' cross-entropies [B], number of tokens [B]); compared by value."""

    padding: int

    def __call__(self, logits: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array]:
        _tokens_fit(logits, labels)
        there = self.there(labels)
        losses = to_sum(softmax_cross_entropy(logits, jnp.where(there, labels, 0)))
        return jnp.sum(jnp.where(there, losses, 0), axis=-1), jnp.sum(there, axis=-1)

    def there(self, labels: Any) -> Any:
        """Which labels [B, T] count."""
        return (labels != self.padding) & (labels >= 0)


class _TokenAccuracy(TokenSums):
    """(how many tokens are right [B], number of tokens [B])."""

    def __call__(self, logits: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array]:
        there = self.there(labels)
        return jnp.sum(accuracy(logits, labels) & there, axis=-1), jnp.sum(there, axis=-1)


def to_sum(values: Any) -> Any:
    """Values of which sums are made: floats of 16 bits in float32, for their sums overflow or stand still."""
    values = jnp.asarray(values)
    is_short = jnp.issubdtype(values.dtype, jnp.floating) and jnp.finfo(values.dtype).bits < 32
    return values.astype(jnp.float32) if is_short else values


@contextlib.contextmanager
def in_jax(what: str, function: Any, name: str = "") -> Iterator[None]:
    """Raises a ``SettingError`` where a function asks for numbers while JAX traces it, as functions of NumPy do.

    what: the function is, for the message. name: of what the user made, if that is not the function itself.
    """
    try:
        yield
    except (jax.errors.JAXTypeError, jax.errors.JAXIndexError) as error:
        name = name or getattr(function, "__name__", type(function).__name__)
        raise SettingError(
            f"{what} is {name}, which asks for numbers while JAX traces it ({type(error).__name__}), but must be "
            "made of functions of JAX: write jax.numpy in place of numpy, jnp.where in place of if, and neither "
            "float() nor int().",
            setting=what,
        ) from error


def _exponential(mean: float) -> float:
    """e to the power of ``mean``; infinity where that is too large."""
    try:
        return math.exp(mean)
    except OverflowError:
        return math.inf


def _mean_of_each(values: jax.Array) -> jax.Array:
    """[B]: the mean of each example's values [B, ...]."""
    return values.reshape(len(values), -1).mean(axis=1)


def _errors(outputs: jax.Array, targets: jax.Array) -> jax.Array:
    if outputs.ndim == targets.ndim + 1 and outputs.shape[-1] == 1:
        outputs = outputs[..., 0]
    _same_shape(outputs, targets)
    return outputs - targets.astype(outputs.dtype)


def _same_shape(outputs: jax.Array, targets: jax.Array) -> None:
    allowed = f"{targets.shape[1:]}, that of an example's y"
    require(outputs.shape == targets.shape, "the shape of the model's output", outputs.shape[1:], allowed)


def _tokens_fit(logits: jax.Array, labels: jax.Array) -> None:
    fits = logits.ndim == labels.ndim + 1 and logits.shape[:-1] == labels.shape
    allowed = f"({', '.join(map(str, labels.shape[1:]))}, tokens): scores of all tokens for each label of y"
    require(fits, "the shape of the model's output", logits.shape[1:], allowed)


CLASSIFICATION = Task("classification", softmax_cross_entropy, {"accuracy": accuracy}, "classes")
TASKS: dict[str, Task] = {
    "classification": CLASSIFICATION,
    "regression": Task(
        "regression",
        squared_error,
        {
            "mean_absolute_error": absolute_error,
            "root_mean_squared_error": Metric(squared_error, math.sqrt),
        },
        "numbers",
    ),
    "language_modelling": language_modelling(),
    "binary": Task(
        "binary",
        binary_cross_entropy,
        {"accuracy": binary_accuracy, "sensitivity": _sensitivity, "specificity": _specificity},
        "flag",
    ),
    "multi_label": Task(
        "multi_label",
        sigmoid_cross_entropy,
        {"label_accuracy": share_of_labels, "exact_match": all_labels},
        "flags",
    ),
}


def as_task(task: Any) -> Task:
    """The task of this name, or ``task`` itself; SettingError for what is neither."""
    if isinstance(task, Task):
        return task
    require(isinstance(task, str), "task", task, f"{', '.join(TASKS)}, or a jafl.models.Task")
    chosen_task: Task = choose("task", task, TASKS)
    return chosen_task
