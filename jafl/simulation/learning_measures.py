"""What is measured of a run that has ended, by which one can tell whether it has learned."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jafl.engine.plan.run import Run
from jafl.models import softmax_cross_entropy, squared_error
from jafl.models.tasks import sigmoid_cross_entropy
from jafl.records import History
from jafl.specifications import as_specification

# A loss above this share of a constant prediction's is no better than it; likewise where no accuracy is measured.
CLOSE_TO_CONSTANT, CLOSE_WITHOUT_ACCURACY = 0.95, 0.98
# A start with a loss below this share of a constant prediction's knows the task already: it was trained before.
TRAINED_BEFORE = 0.9
BLOWN_UP = 2.5
# Where the labels of test and training examples differ by more (total variation), the test says little of training.
LARGEST_LABEL_SHIFT = 0.3
STANDARD_ERRORS = 2.0
# An accuracy has fallen where it lost more than this, and more than chance: of medians over w evaluations that is so
# many times its usual step from one evaluation to the next, divided by the root of w. A loss has, where it lost more
# than this share of what it had gained. An accuracy with usual steps of more than the last number swings.
FALLEN, USUAL_STEPS, FALLEN_SHARE, SWINGS = 0.05, 3.2, 0.5, 0.03
FEWEST_TO_FALL = 4
# So many trips from the initial model are enough to say what its training loss was.
FEWEST_AT_START = 5


class Accuracy(NamedTuple):
    """``start``, ``end``; ``chance``: of the best constant prediction; ``examples``: their number."""

    start: float
    end: float
    chance: float
    examples: int

    def error(self, *values: float) -> float:
        """The standard error of a difference of accuracies, or of one."""
        return math.sqrt(sum(value * (1 - value) for value in values) / self.examples)

    @property
    def has_risen(self) -> bool:
        """Whether it is above its start, and above chance, by more than chance would have it."""
        # Both: from a bad start a model may rise to chance, and a good start may lie above it.
        above_start = self.end - self.start > STANDARD_ERRORS * self.error(self.start, self.end)
        return above_start and self.end - self.chance > STANDARD_ERRORS * self.error(self.chance)

    @property
    def has_fallen(self) -> bool:
        """Whether it is below its start by more than chance would have it."""
        return self.start - self.end > STANDARD_ERRORS * self.error(self.start, self.end)


class Fall(NamedTuple):
    """What a run had reached and has lost: ``name`` was ``best`` at the server step ``step``, and is ``end``.

    ``usual`` is by how much it changes from one evaluation to the next, in the median.
    """

    name: str
    best: float
    step: int
    end: float
    usual: float

    @property
    def swings(self) -> str:
        """Words on an accuracy that swings; "" of any other."""
        if self.name != "test accuracy" or self.usual < SWINGS:
            return ""
        return f" (medians: it changes by {self.usual:.2g} from one evaluation to the next)"


class Measured(NamedTuple):
    """A loss at the start and at the end, and what is known beside it.

    Attributes:
      name: of the loss, as in "test loss".
      losses: (at the start, at the end).
      margin: by how much the loss must have risen for that to be more than chance.
      peak: the highest loss on the way.
      constant: the loss of the best constant prediction; None if not known.
      accuracy: None where none is measured.
      when: what "at the end" is.
      fall: from the best on the way, or None.
    """

    name: str
    losses: tuple[float, float]
    margin: float
    peak: float
    constant: float | None
    accuracy: Accuracy | None = None
    when: str = "at the end"
    fall: Fall | None = None

    @property
    def trained_before(self) -> bool:
        """Whether training began from a model that knew the task."""
        return self.constant is not None and self.losses[0] < TRAINED_BEFORE * self.constant

    @property
    def has_gained_and_lost(self) -> bool:
        """Whether something was gained on the way, and lost again."""
        if self.fall is None or self.accuracy is None:
            return self.fall is not None
        return self.fall.best - self.accuracy.start > FALLEN

    @property
    def has_blown_up(self) -> bool:
        """Whether the loss ends at several times its start, and at several times a constant prediction's."""
        start, end = self.losses
        return end > BLOWN_UP * max(start, self.constant or 0.0) + self.margin

    @property
    def is_constant(self) -> bool:
        """Whether the final model is no better than a constant prediction."""
        start, end = self.losses
        known = self.constant if self.constant is not None else start
        if known == 0:  # a single label: a constant prediction is all there is to learn
            return False
        if self.accuracy is None:
            fits = self.constant is not None and not self.trained_before and self.name.startswith("test")
            return fits and end >= CLOSE_WITHOUT_ACCURACY * known
        known_levels = (
            [self.accuracy.chance] if self.trained_before else [self.accuracy.chance, self.accuracy.start]
        )
        by_luck = max(level + STANDARD_ERRORS * self.accuracy.error(level) for level in known_levels)
        return end >= CLOSE_TO_CONSTANT * known and self.accuracy.end <= by_luck

    @property
    def has_lost(self) -> bool:
        """Whether the loss has risen; from a trained model also above a constant one's, or with less accuracy."""
        start, end = self.losses
        if not end > start + self.margin:
            return False
        # A trained model's loss may rise a little without harm; only beyond a constant one's it is lost.
        if self.constant is None or not self.trained_before or end > self.constant:
            return True
        return self.accuracy is not None and self.accuracy.has_fallen


def on_test(run: Run, history: History) -> Measured | None:
    """By the test examples; None where they are not measured by jafl, or their labels are not the clients'."""
    # The user's own metrics may mean anything, whatever their names are.
    if run.evaluators is not None:
        return None
    rows = [row for row in history.evaluations if is_finite(row.get("test_loss"))]
    # Without an evaluation at the start there is nothing to compare with.
    if len(rows) < 2 or rows[0]["server_step"] != 0:
        return None
    shares, client_shares = label_shares(run.federation.test_y), label_shares(clients_labels(run))
    last, when = _judged_end(rows)
    ends, peak = (rows[0]["test_loss"], last["test_loss"]), max(row["test_loss"] for row in rows)
    constant = constant_loss(run, run.federation.test_y)
    accuracies: list[Any] = [row.get("test_accuracy") for row in (rows[0], last)]
    if shares is None or client_shares is None or not all(map(is_finite, accuracies)):
        fall = _fall(rows, "test_loss", falls_where_higher=True)
        return Measured("test loss", ends, 0.0, peak, constant, when=when, fall=fall)
    # The test then asks for what clients hardly have: its loss says little of how they learned.
    if _distance(shares, client_shares) > LARGEST_LABEL_SHIFT:
        return None
    first, final = map(float, accuracies)
    accuracy = Accuracy(first, final, max(shares.values()), len(run.federation.test_y))
    fall = _fall(rows, "test_accuracy", error=accuracy.error)
    return Measured("test loss", ends, 0.0, peak, constant, accuracy, when, fall)


def in_training(run: Run, history: History) -> Measured | None:
    """By the clients' loss on their first minibatch: of the trips from the initial model, and of the last ones.

    A single client's loss decides nothing: where few train from the initial model, the first twentieth of all trips
    is the start. Where enough do, later trips are no part of it, since a first step may have blown the loss up.
    """
    losses = trip_losses(history)
    initial = int(np.sum(run.schedule.download_version[: len(losses)] == 0))
    count = max(initial, len(losses) // 20)
    if count < 2 or len(losses) < 2 * count:
        return None
    # Stable: among trips from one version those that are applied first come first.
    by_start = np.argsort(run.schedule.download_version[: len(losses)], kind="stable")
    first = losses[by_start[: initial if initial >= FEWEST_AT_START else count]]
    last = losses[-count:]
    margin = STANDARD_ERRORS * math.sqrt(sum(np.var(part, ddof=1) / len(part) for part in (first, last)))
    ends = float(np.mean(first)), float(np.mean(last))
    windows = [float(np.mean(part)) for part in np.array_split(losses, 20) if len(part)]
    return Measured("training loss", ends, margin, max(windows), constant_loss(run, clients_labels(run)))


def trip_losses(history: History) -> np.ndarray:
    """[J'] float64: the loss of each applied trip."""
    losses = np.asarray(history.trip_reports["loss"], np.float64)
    return losses if losses.ndim == 1 else losses.reshape(len(losses), -1).mean(axis=1)


def training_losses_between(history: History, steps: tuple[int, int]) -> tuple[float, float] | None:
    """The clients' mean loss around a server step and at the end, each over a tenth of the trips; None if too few."""
    losses = trip_losses(history)
    around, last = (int(history.schedule.step_offsets[step]) for step in steps)
    width = max(2, len(losses) // 10)
    begin = min(max(0, around - width // 2), max(0, last - width))
    if last < 2 * width:
        return None
    return float(np.mean(losses[begin : begin + width])), float(np.mean(losses[last - width : last]))


def _judged_end(rows: Sequence[Mapping[str, Any]]) -> tuple[Mapping[str, Any], str]:
    """The last evaluation, or the median one of the last tenth, whose loss is higher; and when that was.

    With rates that are too high, a run swings to and fro, and may end on a good moment.
    """
    tenth = sorted(rows[-max(1, len(rows) // 10) :], key=lambda row: row["test_loss"])
    median = tenth[len(tenth) // 2]
    if median["test_loss"] > rows[-1]["test_loss"]:
        return median, "in the median of its last evaluations"
    return rows[-1], "at the end"


def _fall(
    rows: Sequence[Mapping[str, Any]], key: str, *, falls_where_higher: bool = False, error: Any = None
) -> Fall | None:
    """How far a measure ends from its best, by medians over a tenth of the evaluations; None if that is usual."""
    values = np.array([row[key] if is_finite(row.get(key)) else np.nan for row in rows])
    # From so few, or with gaps, the usual step between two of them is not known.
    if len(values) < FEWEST_TO_FALL or np.isnan(values).any():
        return None
    width = max(1, len(values) // 10)
    medians = np.array([np.median(values[at : at + width]) for at in range(len(values) - width + 1)])
    sign = -1.0 if falls_where_higher else 1.0
    at = int(np.argmax(sign * medians))
    best, end = float(medians[at]), float(medians[-1])
    lost, usual = sign * (best - end), float(np.median(np.abs(np.diff(values))))
    least = max(FALLEN, 2 * STANDARD_ERRORS * error(best, end)) if error else 0.0
    if falls_where_higher:
        least = FALLEN_SHARE * (float(values[0]) - best)
    chance = usual if falls_where_higher else USUAL_STEPS * usual / math.sqrt(width)
    if lost <= max(least, chance):
        return None
    return Fall(key.replace("_", " "), best, int(rows[at + width // 2]["server_step"]), end, usual)


def clients_labels(run: Run) -> np.ndarray:
    """The labels of all examples that clients hold."""
    labels: np.ndarray = np.asarray(run.federation.y)[run.federation.partition.indices]
    return labels


def label_shares(labels: Any) -> dict[int, float] | None:
    """{label: its share}; None unless each example has one whole number as its label."""
    labels = np.asarray(labels)
    if labels.ndim != 1 or labels.dtype.kind not in "iu" or not len(labels):
        return None
    names, counts = np.unique(labels, return_counts=True)
    return dict(zip(names.tolist(), (counts / len(labels)).tolist(), strict=True))


def _distance(shares: Mapping[int, float], others: Mapping[int, float]) -> float:
    """The total variation between two shares of labels, from 0 to 1."""
    labels = {*shares, *others}
    return sum(abs(shares.get(label, 0.0) - others.get(label, 0.0)) for label in labels) / 2


def constant_loss(run: Run, labels: Any) -> float | None:
    """The loss of the best constant prediction of these labels; None where the loss is one of one's own."""
    loss = as_specification(run.client_work).build().model.loss_per_example
    labels = np.asarray(labels)
    if loss is squared_error and labels.dtype.kind == "f":
        return float(np.mean(np.var(labels.astype(np.float64), axis=0)))
    if loss is sigmoid_cross_entropy:
        # A label that all have, or none, costs nothing; its logarithm must only exist.
        share = np.clip(labels.astype(np.float64).mean(axis=0), 1e-12, 1 - 1e-12)
        return float(-np.mean(share * np.log(share) + (1 - share) * np.log(1 - share)))
    if hasattr(loss, "there"):  # of tokens, but for padding
        labels = labels[np.asarray(loss.there(labels))]
    elif loss is not softmax_cross_entropy:
        return None
    shares = label_shares(labels)
    return None if shares is None else -sum(share * math.log(share) for share in shares.values())


def is_finite(value: Any) -> bool:
    """Whether a value is a finite number."""
    try:
        return value is not None and math.isfinite(value)
    except TypeError:
        return False
