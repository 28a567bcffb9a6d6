"""Runs that end without having learned anything: recognized from what they leave, with the rate to lower.

Such a run is finite, so nothing stops it, but its model is of no use. The usual cause is a learning rate that suits
another world: other delays, another partition, a larger buffer.
"""

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jafl.models import softmax_cross_entropy
from jafl.planning.run import Run
from jafl.records import History
from jafl.specifications import Specification, as_specification

# Shorter runs are not judged. While a healthy run begins, its loss was seen above the first one for up to 44 server
# steps, by a factor of up to 1.66: the first updates come from few clients, or only from quick ones.
FEWEST_STEPS, FEWEST_TRIPS, MOST_CLIENTS_AWAITED = 40, 200, 2000
# ... unless the loss has risen by so much, after so many steps.
BLOWN_UP, STEPS_TO_BLOW_UP = 2.5, 10
# A loss above this share of a constant prediction's is no better than it.
CLOSE_TO_CONSTANT = 0.95
# A start with a loss below this share of a constant prediction's knows the task already: it was trained before.
TRAINED_BEFORE = 0.9
# Where the labels of test and training examples differ by more (total variation), the test says little of training.
LARGEST_LABEL_SHIFT = 0.3
STANDARD_ERRORS = 2.0
# A loss that has never risen by more than this share has hardly moved: then rates are too low, not too high.
HARDLY = 0.02


class NotLearningWarning(UserWarning):
    """A run has ended that did not learn: its loss is above its first one, or its accuracy at chance."""


class RateNames(NamedTuple):
    """What the two learning rates are called where the user sets them."""

    clients: str = "the clients' learning rate"
    server: str = "the server's learning rate"


class _Measured(NamedTuple):
    """What is judged: a loss at the start and at the end, and what is known beside it.

    name       of the loss, as in "test loss"
    losses     (at the start, at the end)
    margin     by how much the loss must have risen for that to be more than chance
    peak       the highest loss on the way
    constant   the loss of the best constant prediction; None if not known
    accuracy   (at the start, at the end, of the best constant prediction, number of examples), or None
    when       what "at the end" is
    """

    name: str
    losses: tuple[float, float]
    margin: float
    peak: float
    constant: float | None
    accuracy: tuple[float, float, float, int] | None = None
    when: str = "at the end"

    @property
    def trained_before(self) -> bool:
        """Whether training began from a model that knew the task."""
        return self.constant is not None and self.losses[0] < TRAINED_BEFORE * self.constant

    @property
    def is_constant(self) -> bool:
        """Whether the final model is no better than a constant prediction."""
        start, end = self.losses
        known = self.constant if self.constant is not None else start
        no_better = end >= CLOSE_TO_CONSTANT * known
        if (
            self.accuracy is None or known == 0
        ):  # a single label: a constant prediction is all there is to learn
            return False
        _, final, chance, examples = self.accuracy
        return no_better and final <= chance + STANDARD_ERRORS * math.sqrt(chance * (1 - chance) / examples)

    @property
    def has_lost(self) -> bool:
        """Whether the loss has risen; from a trained model also above a constant one's, or with less accuracy."""
        start, end = self.losses
        if not end > start + self.margin:
            return False
        if self.constant is None or not self.trained_before or end > self.constant:
            return True
        if self.accuracy is None:
            return False
        first, final, _, examples = self.accuracy
        noise = math.sqrt((first * (1 - first) + final * (1 - final)) / examples)
        return first - final > STANDARD_ERRORS * noise


def why_not_learned(run: Run, history: History, names: RateNames | None = None) -> str | None:
    """What shows that a run did not learn, and which rate to lower; None if it learned or is too short to say.

    Judged is the loss on the test examples, or, where an evaluator of the user's own measures them or their labels
    are others than the clients', the clients' training loss: of the trips from the initial model against the last
    ones. A run did not learn if that loss ends above its start, or if accuracy and loss on the test examples are
    those of a constant prediction. On the test examples the end is the last evaluation, or the median one of the last
    tenth where that is worse. Where training began from a trained model, the loss may rise somewhat, as long as
    the accuracy has not fallen by more than chance.

    Args:
      run: with the federation, client work and server optimizer.
      history: how it ended.
      names: what the rates are called in the advice. Default: the clients' and the server's learning rate.

    Returns:
      One or two sentences, or None.
    """
    measured = _on_test(run, history) or _in_training(run, history)
    if measured is None or not _long_enough(run, history, measured):
        return None
    start, end = measured.losses
    if measured.has_lost:
        said = f"its {measured.name} is {end:.4g} {measured.when} and was {start:.4g} at the start"
        if measured.accuracy:
            said += f" (test accuracy {measured.accuracy[1]:.4g}, at the start {measured.accuracy[0]:.4g})"
    elif measured.is_constant and measured.accuracy:
        said = f"its test accuracy is {measured.accuracy[1]:.4g} {measured.when}, and always naming one label gives "
        said += (
            f"{measured.accuracy[2]:.4g}; its {measured.name} is {end:.4g}, and was {start:.4g} at the start"
        )
    else:
        return None
    raising = max(end, measured.peak) <= (1 + HARDLY) * start
    moved = "has hardly moved" if end >= (1 - HARDLY) * start else "got no further"
    return f"The run did not learn: {said}. {_advice(run, names or RateNames(), moved if raising else None)}"


def warn(message: str | None, stacklevel: int = 3) -> None:
    """Issues a ``NotLearningWarning``, unless ``message`` is None."""
    if message:
        warnings.warn(message, NotLearningWarning, stacklevel=stacklevel)


def _long_enough(run: Run, history: History, measured: _Measured) -> bool:
    """Whether a run was long enough to be judged, or has lost so much that this does not matter."""
    steps, trips = history.server_steps, len(history.trip_reports["loss"])
    clients = min(run.schedule.num_clients, MOST_CLIENTS_AWAITED)
    if steps >= FEWEST_STEPS and trips >= max(FEWEST_TRIPS, clients):
        return True
    start, end = measured.losses
    blown_up = end > BLOWN_UP * max(start, measured.constant or 0.0) + measured.margin
    return steps >= STEPS_TO_BLOW_UP and blown_up


def _on_test(run: Run, history: History) -> _Measured | None:
    """By the test examples; None where they are not measured by jafl, or their labels are not the clients'."""
    if run.evaluators is not None:
        return None
    rows = [row for row in history.evaluations if _is_number(row.get("test_loss"))]
    if len(rows) < 2 or rows[0]["server_step"] != 0:
        return None
    shares, of_clients = _label_shares(run.federation.test_y), _label_shares(_clients_labels(run))
    last, when = _judged_end(rows)
    ends, peak = (rows[0]["test_loss"], last["test_loss"]), max(row["test_loss"] for row in rows)
    accuracies: list[Any] = [row.get("test_accuracy") for row in (rows[0], last)]
    if shares is None or of_clients is None or not all(map(_is_number, accuracies)):
        return _Measured("test loss", ends, 0.0, peak, None, when=when)
    if _distance(shares, of_clients) > LARGEST_LABEL_SHIFT:
        return None
    first, final = map(float, accuracies)  # type: ignore[arg-type]  # numbers, as was just checked
    accuracy = (first, final, max(shares.values()), len(run.federation.test_y))
    return _Measured("test loss", ends, 0.0, peak, _constant_loss(run, shares), accuracy, when)


def _judged_end(rows: Sequence[Mapping[str, Any]]) -> tuple[Mapping[str, Any], str]:
    """The last evaluation, or the median one of the last tenth, whose loss is higher; and when that was.

    With rates that are too high, a run swings to and fro, and may end on a good moment.
    """
    tenth = sorted(rows[-max(1, len(rows) // 10) :], key=lambda row: row["test_loss"])
    median = tenth[len(tenth) // 2]
    if median["test_loss"] > rows[-1]["test_loss"]:
        return median, "in the median of its last evaluations"
    return rows[-1], "at the end"


def _in_training(run: Run, history: History) -> _Measured | None:
    """By the clients' loss on their first minibatch: of the trips from the initial model, and of the last ones."""
    losses = np.asarray(history.trip_reports["loss"], np.float64)
    losses = losses if losses.ndim == 1 else losses.reshape(len(losses), -1).mean(axis=1)
    initial = losses[run.schedule.download_version[: len(losses)] == 0]
    last = losses[-max(len(initial), len(losses) // 20) :]
    if len(initial) < 2 or len(losses) < 2 * len(initial):
        return None
    errors = [np.var(part, ddof=1) / len(part) for part in (initial, last)]
    margin = STANDARD_ERRORS * math.sqrt(sum(errors))
    shares = _label_shares(_clients_labels(run))
    ends = float(np.mean(initial)), float(np.mean(last))
    windows = [float(np.mean(part)) for part in np.array_split(losses, 20) if len(part)]
    return _Measured("training loss", ends, margin, max(windows), _constant_loss(run, shares))


def _clients_labels(run: Run) -> np.ndarray | None:
    """The labels that clients hold; None where an example has several."""
    labels = np.asarray(run.federation.y)
    return labels[run.federation.partition.indices] if labels.ndim == 1 else None


def _label_shares(labels: Any) -> dict[int, float] | None:
    """{label: its share}; None unless each example has one whole number as its label."""
    labels = np.asarray(labels)
    if labels.ndim != 1 or labels.dtype.kind not in "iu" or not len(labels):
        return None
    found, counts = np.unique(labels, return_counts=True)
    return dict(zip(found.tolist(), (counts / len(labels)).tolist(), strict=True))


def _distance(shares: Mapping[int, float], others: Mapping[int, float]) -> float:
    """The total variation between two shares of labels, from 0 to 1."""
    labels = {*shares, *others}
    return sum(abs(shares.get(label, 0.0) - others.get(label, 0.0)) for label in labels) / 2


def _constant_loss(run: Run, shares: Mapping[int, float] | None) -> float | None:
    """The cross-entropy of the shares themselves; None where the loss is another one."""
    model = as_specification(run.client_work).build().model
    if shares is None or model.loss_per_example is not softmax_cross_entropy:
        return None
    return -sum(share * math.log(share) for share in shares.values())


def _advice(run: Run, names: RateNames, moved: str | None) -> str:
    """Which rate to change first, with the rates that the run had, as far as they are known.

    moved: what is said of a run whose loss never rose, for which rates are too low; else None.
    """
    client, server = _rate(as_specification(run.client_work).arguments.get("optimizer")), _server_rate(run)
    if moved:
        return (
            f"It {moved}: train longer, or raise {_told(names.server, server)}, or "
            f"{_told(names.clients, client)}."
        )
    first, second = (names.server, server), (names.clients, client)
    if not _server_overshoots(run, server):
        first, second = second, first
    name, rate = first
    to = f", to {float(f'{rate / 3:.1g}'):g} for example" if rate else ""
    return f"Lower {_told(name, rate)}{to}; if that does not help, {_told(*second)}."


def _told(name: str, rate: float | None) -> str:
    return name if rate is None else f"{name}, which is {rate:g}"


def _server_overshoots(run: Run, rate: float | None) -> bool:
    """Whether the server's rate is the one to lower first: if it steps beyond what clients trained.

    So it does with a rate above 1, or that much by momentum, with an optimizer that has a scale of its own, and where
    clients take one step, whose size the server's rate decides.
    """
    optimizer, work = run.server_optimizer, as_specification(run.client_work).arguments
    if isinstance(optimizer, Specification):
        if getattr(optimizer.factory, "__name__", "") != "sgd":
            return True
        momentum = _number(optimizer.arguments.get("momentum")) or 0.0
        if rate is not None and momentum < 1 and rate / (1 - momentum) > 1:
            return True
    elif optimizer is not None:
        return True
    return work.get("local_steps") == 1


def _server_rate(run: Run) -> float | None:
    return 1.0 if run.server_optimizer is None else _rate(run.server_optimizer)


def _rate(optimizer: Any) -> float | None:
    """The learning rate of an optimizer's specification; None if it is not known."""
    return _number(optimizer.arguments.get("learning_rate")) if isinstance(optimizer, Specification) else None


def _number(value: Any) -> float | None:
    return float(value) if np.ndim(value) == 0 and _is_number(value) else None


def _is_number(value: Any) -> bool:
    try:
        return value is not None and math.isfinite(value)
    except TypeError:
        return False


def numbered(messages: Sequence[str | None]) -> str | None:
    """One message for several runs: how many did not learn, their numbers, and what is said of the first."""
    bad = [number for number, message in enumerate(messages) if message]
    if not bad:
        return None
    listed = ", ".join(map(str, bad[:10])) + (", ..." if len(bad) > 10 else "")
    return f"{len(bad)} of {len(messages)} runs did not learn (numbers {listed}). Of run {bad[0]}: {messages[bad[0]]}"
