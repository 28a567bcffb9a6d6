"""Runs that end without having learned, or with less than they had learned: what shows it, and what to change.

Such a run is finite, so nothing stops it, but its model is of no use. What is said follows from what is measured, by
the table of ``judge``. Where nothing is sure, the text has the measurements, and what to look at.
"""

import math
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from jafl.engine.plan.run import Run
from jafl.records import History
from jafl.simulation import learning_measures as measures
from jafl.simulation.example_scale import large_examples
from jafl.simulation.learning_measures import Fall, Measured
from jafl.simulation.rate_trial import try_rates
from jafl.simulation.side_findings import clients_whose_loss_rose, labels_that_clients_lack, not_finite
from jafl.specifications import Specification, as_specification

# Shorter runs are not judged. While a healthy run begins, its loss was seen above the first one for up to 44 server
# steps, by a factor of up to 1.66: the first updates come from few clients, or only from quick ones.
FEWEST_STEPS, FEWEST_TRIPS, MOST_CLIENTS_AWAITED = 40, 200, 2000
# ... unless the loss has blown up, after so many steps.
STEPS_TO_BLOW_UP = 10
# A loss that has never risen by more than this share has hardly moved.
HARDLY = 0.02
# One that is still so many times a constant prediction's has not even learned which labels are frequent.
FAR_FROM_CONSTANT = 1.1
# Noise that is so many times as long as the signal, in the median server step, is the cause whatever the rates.
NOISY = 1.0
# Where fewer trips are clipped, a smaller clip norm lowers the noise by more than the signal.
FEW_CLIPPED = 0.5
# Updates that are older than so many server steps bear a tenth of a rate that fresh ones bear, or less.
STALE, VERY_STALE = 15.0, 0.1
# Those that are younger bear the rate that a trial without staleness bears.
FRESH = 5.0
SAID = {
    "did not learn": "The run did not learn",
    "loss rose": "The run learned, but its predictions are surer than they are right",
}


class NotLearningWarning(UserWarning):
    """A run has ended that did not learn, that lost what it had learned, or of which its measurements say nothing."""


class RateNames(NamedTuple):
    """What the two learning rates are called where the user sets them."""

    clients: str = "the clients' learning rate"
    server: str = "the server's learning rate"


class Judgement(NamedTuple):
    """What is said of a run that has ended.

    Attributes:
      kind: "not finite": of what was measured; "did not learn"; "fell back": it had learned, and lost it; "loss
        rose": its accuracy rose, and its loss several times over; "lacks labels": no client has some that are tested;
        "clients apart": the model learned, single clients do not.
      text: some sentences.
    """

    kind: str
    text: str


def judge(run: Run, history: History, names: RateNames | None = None) -> list[Judgement]:
    """What is to be said of a run that has ended; nothing of one that learned, or is too short to say.

    Judged is the loss on the test examples, with their accuracy, or, where an evaluator of the user's own measures
    them or their labels are others than the clients', the clients' training loss. The end is the last evaluation, or
    the median one of the last tenth where that is worse. The first row that holds decides on the model:

    | what is measured | verdict |
    |---|---|
    | accuracy far below its best, or, without one, half of what the loss had gained is lost | fell back |
    | accuracy above its start and above chance | learned |
    | the start knew the task, and accuracy is not below it | learned |
    | ... but the loss is several times its start | surer than it is right |
    | loss above its start | did not learn |
    | accuracy at chance, and loss no better than a constant prediction's | did not learn |
    | anything else | learned |

    A loss that has blown up is no fall: its row is one of the others.

    Which change is advised follows from further measurements, asked in this order: the noise of a private run is
    louder than its signal (then no rate is named); a trial of several rates from the initial model (``try_rates``);
    how large the examples' numbers are; whether the server steps beyond what clients trained.

    Args:
      run: with the federation, client work and server optimizer.
      history: how it ended.
      names: what the rates are called in the advice. Default: the clients' and the server's learning rate.

    Returns:
      The judgements, the gravest first.
    """
    names = names or RateNames()
    judgements = [Judgement("not finite", text) for text in not_finite(run, history)]
    measured = measures.on_test(run, history) or measures.in_training(run, history)
    long_enough = measured is not None and _long_enough(run, history, measured)
    if measured is not None and long_enough:
        verdict = _verdict(measured)
        if verdict == "fell back" and measured.fall:
            judgements.append(Judgement(verdict, _about_fall(run, history, measured.fall, names)))
        elif verdict in SAID:
            advice = _advice(run, history, measured, names)
            judgements.append(Judgement(verdict, f"{SAID[verdict]}: {_shown(measured)}. {advice}"))
        elif not measured.has_lost and (text := clients_whose_loss_rose(run, history)):
            judgements.append(Judgement("clients apart", text))
    if text := labels_that_clients_lack(run, history if long_enough else None):
        judgements.append(Judgement("lacks labels", text))
    return judgements


def why_not_learned(run: Run, history: History, names: RateNames | None = None) -> str | None:
    """The texts of ``judge`` in one; None where nothing is to be said."""
    return " ".join(judgement.text for judgement in judge(run, history, names)) or None


def warn(message: str | None, stacklevel: int = 4) -> None:
    """Issues a ``NotLearningWarning``, unless it is None; by default above ``simulate`` and its decorator."""
    if message:
        warnings.warn(message, NotLearningWarning, stacklevel=stacklevel)


def _long_enough(run: Run, history: History, measured: Measured) -> bool:
    """Whether a run was long enough to be judged, or has lost so much that this does not matter."""
    steps, trips = history.server_steps, len(history.trip_reports["loss"])
    clients = min(run.schedule.num_clients, MOST_CLIENTS_AWAITED)
    # As many trips as clients: before, the mean loss is that of the quick ones alone.
    if steps >= FEWEST_STEPS and trips >= max(FEWEST_TRIPS, clients):
        return True
    return steps >= STEPS_TO_BLOW_UP and measured.has_blown_up


def _verdict(measured: Measured) -> str:
    """The table of ``judge``."""
    accuracy, blown_up = measured.accuracy, measured.has_blown_up
    # A loss that has blown up is no fall from what was learned: other rows say more of it.
    if measured.has_gained_and_lost and not blown_up:
        return "fell back"
    if accuracy and (accuracy.has_risen or (measured.trained_before and not accuracy.has_fallen)):
        return "loss rose" if blown_up else "learned"
    return "did not learn" if measured.has_lost or measured.is_constant else "learned"


def _shown(measured: Measured) -> str:
    """What shows that a run did not learn."""
    (start, end), accuracy = measured.losses, measured.accuracy
    if measured.has_lost:
        said = f"its {measured.name} is {end:.4g} {measured.when} and was {start:.4g} at the start"
        if accuracy:
            said += f" (test accuracy {accuracy.end:.4g}, at the start {accuracy.start:.4g})"
        return said
    if accuracy is None:
        return (
            f"its {measured.name} is {end:.4g} {measured.when}, that of always predicting the same is "
            f"{measured.constant:.4g}, and it was {start:.4g} at the start"
        )
    return (
        f"its test accuracy is {accuracy.end:.4g} {measured.when}, and always naming one label gives "
        f"{accuracy.chance:.4g}; its {measured.name} is {end:.4g}, and was {start:.4g} at the start"
    )


def _advice(run: Run, history: History, measured: Measured, names: RateNames) -> str:
    """What to change, and what was measured that speaks for it."""
    # First of all: where the noise is louder than the signal, no rate helps.
    if said := _about_noise(history):
        return said
    trial = try_rates(run, measured.constant)
    scale = large_examples(run)
    rates = _Rates.from_run(run, names)
    start, end = measured.losses
    moved_little = max(end, measured.peak) <= (1 + HARDLY) * start and end >= (1 - HARDLY) * start
    factor = trial.factor if trial else None
    if trial and factor is not None and factor < 1:
        beyond = f" {rates.lowered_server()}" if rates.server_is_beyond else ""
        return f"{trial.describe()}{scale} {rates.lowered_first(factor)}{beyond}"
    too_slow = moved_little or end > FAR_FROM_CONSTANT * (measured.constant or math.inf)
    if trial and factor is not None and factor > 1 and too_slow and not measured.has_lost:
        return f"{trial.describe()} Train longer, or raise {rates.changed(factor)}."
    # The clients' own rate learns, and the model has hardly moved: so the server's may be too low.
    if trial and factor == 1 and moved_little and not rates.server_is_beyond:
        own = try_rates(run, measured.constant, server=True)
        if own and own.factor is not None and own.factor > 1 and rates.server is not None:
            to = f"{float(f'{rates.server * own.factor:.1g}'):g}"
            return f"{own.describe()} Train longer, or raise {rates.server_text}, to {to} for example."
    if rates.server_is_beyond:
        # The mean of the updates is what SGD's rate 1 adds: beyond it no trial is needed.
        own = None if rates.server_is_sgd else try_rates(run, measured.constant, server=True)
        if own and own.factor is not None and own.factor < 1:
            return f"{rates.lowered_server(own.factor)} {own.describe()}"
        return f"{rates.lowered_server()} If that does not help, lower {rates.clients_text}."
    stale = _mean_staleness(history)
    if trial and trial.lower and measured.has_blown_up:
        return f"{rates.lowered_first(trial.lower)}{scale}{_look_at(history)}"
    if measured.has_lost and (trial is None or measured.has_blown_up or (factor == 1 and stale > FRESH)):
        lower = f"{rates.lowered_first(VERY_STALE if stale > STALE else 1 / 3)} If that does not help, lower"
        return f"{lower} {rates.other_text}.{scale}{_look_at(history)}"
    if trial is None and moved_little:
        return f"It has hardly moved: train longer, or raise {rates.server_text}, or {rates.clients_text}."
    reason = "Nothing that was measured says why."
    if trial:
        reason = trial.describe() + (
            " None of the rates that were tried, from a ten-thousandth to 100,000 times as much, learned."
            if factor is None
            else ""
        )
    lower = f" If all of that is as it should be, lower {rates.clients_text}." if measured.has_lost else ""
    return (
        f"{reason}{scale} Look at whether labels belong to their examples, whether the model's outputs depend on its "
        "inputs (dead units, a missing layer), whether the test examples are like the clients', and whether it "
        f"trains long enough.{lower}{_look_at(history)}"
    )


def _about_noise(history: History) -> str:
    """What is said of a private run whose noise is louder than its signal; "" of any other run."""
    reports = history.step_reports
    if "noise_norm" not in reports or not len(reports["noise_norm"]):
        return ""
    signal, noise = (float(np.median(np.asarray(reports[f"{name}_norm"]))) for name in ("signal", "noise"))
    if not noise > NOISY * signal:
        return ""
    clipped = np.asarray(history.trip_reports.get("clipped", ()), float)
    clip, of_clip = "", ""
    if len(clipped):
        share = f"{100 * clipped.mean():.0f} % of the trips were clipped"
        # The noise is in proportion to the norm, and the signal only where trips are clipped.
        if clipped.mean() < FEW_CLIPPED:
            clip = f"a smaller clip_norm ({share}, and the noise is in proportion to it), "
        else:
            of_clip = f" A smaller clip_norm would shorten the signal, too: {share}."
    return (
        "The noise that makes it private drowns what clients send: in the median server step its norm is "
        f"{noise:.3g}, and that of the signal {signal:.3g}. No learning rate changes that. What helps: {clip}a "
        "larger epsilon (a smaller noise_multiplier), more trips in each server step (buffer_size, cohort_size), "
        f"more clients, or fewer server steps.{of_clip}"
    )


def _mean_staleness(history: History) -> float:
    staleness = history.schedule.staleness[: len(history.trip_reports["loss"])]
    return float(np.mean(staleness)) if len(staleness) else 0.0


def _look_at(history: History) -> str:
    """A sentence on how stale the updates were; "" where they were fresh."""
    mean = _mean_staleness(history)
    if mean < 5:
        return ""
    return f" Updates were {mean:.3g} server steps old on average: fewer clients at once make them fresher."


def _about_fall(run: Run, history: History, fall: Fall, names: RateNames) -> str:
    """What is said of a run that had learned more than it ends with."""
    said = (
        f"The run has lost what it had learned: its {fall.name} was {fall.best:.4g} around server step {fall.step}, "
        f"and is {fall.end:.4g} at the end{fall.swings}."
    )
    if noise := _about_noise(history):
        return f"{said} {noise}"
    losses = measures.training_losses_between(history, (fall.step, history.server_steps))
    keep = "The parameters of an earlier evaluation are the better ones (on_evaluation gives them)."
    if losses and losses[1] < losses[0]:
        return (
            f"{said} The clients' training loss fell meanwhile, from {losses[0]:.3g} to {losses[1]:.3g}: they fit "
            "their own examples, and no longer the test's. Train for fewer steps, or regularize (l2, proximal). "
            f"{keep}"
        )
    losses_text = (
        f" The clients' training loss rose, too, from {losses[0]:.3g} to {losses[1]:.3g}." if losses else ""
    )
    rates = _Rates.from_run(run, names)
    lower = rates.lowered_server() if rates.server_is_beyond else rates.lowered_first(1 / 3)
    return (
        f"{said}{losses_text} {lower} Or let the rate fall with the server steps (a schedule)."
        f"{_look_at(history)} {keep}"
    )


class _Rates(NamedTuple):
    """The two learning rates of a run, as far as they are known, and which is the one to change first."""

    names: RateNames
    clients: float | None
    server: float | None
    server_first: bool
    server_is_sgd: bool
    momentum: float

    @classmethod
    def from_run(cls, run: Run, names: RateNames) -> "_Rates":
        optimizer, work = run.server_optimizer, as_specification(run.client_work).arguments
        sgd = optimizer is None or (
            isinstance(optimizer, Specification) and getattr(optimizer.factory, "__name__", "") == "sgd"
        )
        arguments = optimizer.arguments if isinstance(optimizer, Specification) else {}
        server = 1.0 if optimizer is None else _rate(optimizer)
        momentum = min(_number(arguments.get("momentum")) or 0.0, 0.999)
        # Momentum adds up updates: a rate of 0.1 with a momentum of 0.9 moves as far as a rate of 1 without.
        beyond = not sgd or (server is not None and server / (1 - momentum) > 1)
        clients = _rate(work.get("optimizer"))
        # Under a schedule no single number is the rate that was used.
        if work.get("schedule") is not None:
            clients = None
        return cls(names, clients, server, beyond or work.get("local_steps") == 1, sgd, momentum)

    @property
    def server_is_beyond(self) -> bool:
        """Whether the server steps beyond what clients trained, or with an optimizer that has a scale of its own."""
        return not self.server_is_sgd or (self.server is not None and self.server / (1 - self.momentum) > 1)

    @property
    def clients_text(self) -> str:
        return _rate_text(self.names.clients, self.clients)

    @property
    def server_text(self) -> str:
        return _rate_text(self.names.server, self.server)

    @property
    def other_text(self) -> str:
        """The rate that is not the first one."""
        return self.clients_text if self.server_first else self.server_text

    def changed(self, factor: float) -> str:
        """The rate to change first, and to what: it is the server's where clients take one step, which it scales."""
        one_step = self.server_first and not self.server_is_beyond
        text, rate = (self.server_text, self.server) if one_step else (self.clients_text, self.clients)
        to = f"{factor:g} times as much" if rate is None else f"{float(f'{rate * factor:.1g}'):g}"
        return f"{text}, to {to} for example"

    def lowered_first(self, factor: float) -> str:
        return f"Lower {self.changed(factor)}."

    def lowered_server(self, factor: float | None = None) -> str:
        """To ``factor`` times what it is; of SGD, to what adds the mean of the updates at most."""
        to = ""
        if self.server is not None:
            rate = self.server * factor if factor else self.server / 3
            if self.server_is_sgd:
                # At most what adds the mean of the updates: it is what the clients have trained.
                rate = min(rate, 1 - self.momentum)
            to = f", to {float(f'{rate:.1g}'):g} for example"
        return f"Lower {self.server_text}{to}."


def _rate_text(name: str, rate: float | None) -> str:
    return name if rate is None else f"{name}, which is {rate:g}"


def _rate(optimizer: Any) -> float | None:
    """The learning rate of an optimizer's specification; None if it is not known."""
    return _number(optimizer.arguments.get("learning_rate")) if isinstance(optimizer, Specification) else None


def _number(value: Any) -> float | None:
    return float(value) if np.ndim(value) == 0 and measures.is_finite(value) else None


def numbered(messages: Sequence[str | None]) -> str | None:
    """One message for several runs: how many did not learn, their numbers, and what is said of the first."""
    bad = [number for number, message in enumerate(messages) if message]
    if not bad:
        return None
    listed = ", ".join(map(str, bad[:10])) + (", ..." if len(bad) > 10 else "")
    none_learned = all(str(messages[number]).startswith("The run did not learn") for number in bad)
    what = "did not learn" if none_learned else "end with a warning"
    return (
        f"{len(bad)} of {len(messages)} runs {what} (numbers {listed}). Of run {bad[0]}: {messages[bad[0]]}"
    )
