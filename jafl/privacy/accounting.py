"""The epsilon of a run, from its schedule and its rule, before anything is trained."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from jafl.base.errors import choose, refusal, require
from jafl.privacy.gaussian import check_clip_and_noise, check_delta, deviations_of, epsilon_of
from jafl.privacy.mechanisms import Mechanism, check_steps, make_mechanism
from jafl.privacy.report import PrivacyReport
from jafl.privacy.sensitivity import Pattern, WorstCase, once, pattern, squared_sensitivity, worst_case
from jafl.privacy.weights import COUNTS, check_eligible, rule_name, trip_weights
from jafl.records import EventSchedule, Rule
from jafl.records.schedules import check_schedule
from jafl.specifications import Specification, as_specification

# {name: what it means}, from the smallest claim to the largest.
READINGS = {
    "once": "as if every client took part once, with the largest weight: the published reading",
    "realised": "of the schedule as it is: exact",
    "worst_case": "of every schedule with as many trips of a client, as far apart: a bound",
}
ROUNDED = (
    "Updates are rounded under secure aggregation. Each is clipped to less before, so that no rounded one is longer "
    "than the clip norm; weights count as they are rounded. Masks and their secrecy are simulated: their seed is the "
    "run's, which is public. The noise does not depend on it."
)
_LEAST_NOISE, _LARGEST_NOISE = 1e-30, 1e30  # what 32 bits hold, with room


class Sensitivities(NamedTuple):
    """Squared sensitivities in units of (clip norm * unit)**2, and what they follow from.

    Attributes:
      mechanism: how the noise is spread.
      once: of a client that takes part once.
      clients: [N] of each client.
      worst: the largest over all patterns like the schedule's, as a bound and as found.
      unit: the largest weight of a trip.
      pattern: how the schedule uses its clients.
      reads: those numbers of clients or trips that the weights follow from.
      rule: the rule's name.
    """

    mechanism: Mechanism
    once: float
    clients: np.ndarray
    worst: WorstCase
    unit: float
    pattern: Pattern
    reads: tuple[str, ...]
    rule: str

    @property
    def realised(self) -> float:
        """The largest of a client."""
        return float(self.clients.max(initial=0.0))

    def of(self, reading: str) -> float:
        """The squared sensitivity of one of ``READINGS``."""
        by_reading = {"once": self.once, "realised": self.realised, "worst_case": self.worst.bound}
        return choose("epsilon_reading", reading, by_reading)


def sensitivities(
    schedule: EventSchedule,
    rule: Rule | Specification,
    *,
    mechanism: str | Mechanism = "tree_honaker",
    restarts: int = 0,
    bands: int | None = None,
    published: str = "nodes",
    num_examples: np.ndarray | None = None,
    local_steps: np.ndarray | None = None,
    batch_examples: np.ndarray | None = None,
) -> Sensitivities:
    """How far one client can move what a run publishes; the part of ``account`` that no noise changes.

    Args:
      schedule: the events of the run.
      rule: the rule, see ``check_eligible``.
      mechanism: one of ``MECHANISMS``, or a ``Mechanism``; the next two are then its own.
      restarts: of a tree.
      bands: of "banded_toeplitz".
      published: of a tree, "nodes" or "models", see ``account``.
      num_examples: [N] integers, where the rule's weights read them.
      local_steps: [J] integers, likewise.
      batch_examples: [J] integers, likewise.

    Returns:
      The squared sensitivities.

    Raises:
      SettingError: for a rule that is not eligible, a mechanism that does not fit the schedule, or a schedule in
        which no update counts.
    """
    check_schedule(schedule)
    chosen = _mechanism(mechanism, restarts, bands, schedule.num_steps)
    reads = check_eligible(rule)
    weights = trip_weights(
        rule, schedule, num_examples, local_steps=local_steps, batch_examples=batch_examples
    )
    unit = float(np.abs(weights).max(initial=0.0))
    remedy = "Private training needs at least one trip that counts."
    require(unit > 0, "the largest weight of a trip", unit, "above 0", remedy)
    schedule_pattern = pattern(schedule.client, schedule.step)
    gap = schedule.num_steps if schedule_pattern.smallest_gap is None else schedule_pattern.smallest_gap
    steps, clients = schedule.num_steps, schedule.num_clients
    return Sensitivities(
        chosen,
        once(chosen, steps, published),
        squared_sensitivity(
            chosen, schedule.client, schedule.step, weights / unit, steps, clients, published
        ),
        worst_case(chosen, steps, schedule_pattern.most_trips, gap, published),
        unit,
        schedule_pattern,
        reads,
        rule_name(rule),
    )


def _mechanism(mechanism: Any, restarts: int, bands: int | None, num_steps: int) -> Mechanism:
    if isinstance(mechanism, Mechanism):
        check_steps(mechanism, num_steps)
        return mechanism
    return make_mechanism(mechanism, restarts, bands, num_steps)


def account(
    schedule: EventSchedule,
    rule: Rule | Specification,
    *,
    clip_norm: float,
    delta: float,
    noise_multiplier: float | None = None,
    epsilon: float | None = None,
    epsilon_reading: str = "realised",
    mechanism: str | Mechanism = "tree_honaker",
    restarts: int = 0,
    bands: int | None = None,
    published: str = "nodes",
    num_examples: np.ndarray | None = None,
    local_steps: np.ndarray | None = None,
    batch_examples: np.ndarray | None = None,
    data_in_schedule: Sequence[str] = (),
) -> PrivacyReport:
    """States what a private run claims, or sets its noise for an epsilon; nothing is trained.

    Who takes part in which step, with which weight, is known before training. So all that is published is one
    Gaussian mechanism, whose epsilon is exact, for the run and for each client.

    Args:
      schedule: the events of the run.
      rule: the rule, see ``check_eligible``.
      clip_norm: L2 norm to which each trip's update is clipped, over all parameters; infinite only without noise.
      delta: in (0, 1); usually below 1 / N.
      noise_multiplier: standard deviation of a node's noise, in units of clip_norm times the largest weight of a
        trip. Exactly one of this and ``epsilon``.
      epsilon: what the noise is set for.
      epsilon_reading: for which of ``READINGS`` ``epsilon`` is meant.
      mechanism: one of ``MECHANISMS``, or a ``Mechanism``; the next two are then its own.
      restarts: of a tree: how often it is started again.
      bands: of "banded_toeplitz".
      published: of a tree, "nodes": all complete nodes, as DP-FTRL accounts; or "models": the noisy prefix sums
        alone, all that the server's models show. That is less, and exact; the bound of the worst case stays.
      num_examples: [N] integers, where the rule's weights read them; they are public then.
      local_steps: [J] integers, likewise.
      batch_examples: [J] integers, likewise.
      data_in_schedule: what the schedule was made from that clients hold: "how many examples each client holds",
        where durations grow with them. The report says that it is public.

    Returns:
      The report.

    Raises:
      SettingError: for a rule that is not eligible, numbers outside their ranges, both or neither of
        ``noise_multiplier`` and ``epsilon``, or an epsilon that cannot be met.

    Examples:
      >>> schedule = jafl.asynchronous(
      ...     num_clients=100, concurrency=20, buffer_size=10, client_trips=500, delay=jafl.delays.half_normal(1.0)
      ... )
      >>> report = account(schedule, jafl.rules.fedbuff(), clip_norm=0.1, delta=1e-3, noise_multiplier=5.0)
      >>> round(report.epsilon_once, 2), round(report.epsilon_realised, 2), round(report.epsilon_worst_case, 1)
      (1.32, 5.97, 26.4)
    """
    reading = _check_numbers(clip_norm, noise_multiplier, epsilon, epsilon_reading)
    delta = check_delta(delta)
    sensitivity = sensitivities(
        schedule,
        rule,
        mechanism=mechanism,
        restarts=restarts,
        bands=bands,
        published=published,
        num_examples=num_examples,
        local_steps=local_steps,
        batch_examples=batch_examples,
    )
    if epsilon is None:
        assert noise_multiplier is not None
        noise = float(noise_multiplier)
    else:
        noise = noise_for(sensitivity, epsilon, delta, epsilon_reading)
    if noise:
        _check_noise(noise * clip_norm * sensitivity.unit, epsilon)

    def epsilons(squared: Any) -> np.ndarray:
        return epsilon_of(_over(np.sqrt(squared), noise), delta)

    conditions = _conditions(sensitivity, clip_norm, noise, data_in_schedule)
    if delta >= 1 / schedule.num_clients:
        conditions = (
            f"delta, {delta:g}, is not below 1 / {schedule.num_clients:,}, one over the number of clients: the claim "
            "would let one client be published in full. Take a smaller delta.",
            *conditions,
        )
    if as_specification(rule).build().rounding:
        conditions += (ROUNDED,)
    return PrivacyReport(
        mechanism=sensitivity.mechanism,
        rule=sensitivity.rule,
        clip_norm=float(clip_norm),
        noise_multiplier=noise,
        unit=sensitivity.unit,
        delta=delta,
        epsilon_once=float(epsilons(sensitivity.once)),
        epsilon_realised=float(epsilons(sensitivity.realised)),
        epsilon_worst_case=float(epsilons(sensitivity.worst.bound)),
        epsilon_worst_found=float(epsilons(sensitivity.worst.found)),
        squared_sensitivities={
            **{name: sensitivity.of(name) for name in READINGS},
            "worst_found": sensitivity.worst.found,
        },
        per_client_epsilon=epsilons(sensitivity.clients),
        pattern=sensitivity.pattern,
        num_clients=schedule.num_clients,
        num_steps=schedule.num_steps,
        num_trips=schedule.num_trips,
        epsilon=None if epsilon is None else float(epsilon),
        epsilon_reading=reading,
        conditions=conditions,
        published=published,
    )


def noise_for(found: Sensitivities, epsilon: float, delta: float, epsilon_reading: str = "realised") -> float:
    """The noise multiplier with which a run has an epsilon.

    Args:
      found: the run's sensitivities.
      epsilon: finite, above 0.
      delta: in (0, 1).
      epsilon_reading: for which of ``READINGS`` it is meant.

    Returns:
      The noise multiplier.

    Raises:
      SettingError: for numbers outside their ranges, or an unknown reading.
    """
    return float(np.sqrt(found.of(epsilon_reading)) / deviations_of(epsilon, delta))


def _over(sensitivity: np.ndarray, noise: float) -> np.ndarray:
    """How many standard deviations of the noise; infinite without noise, but 0 for who has no trip."""
    sensitivity = np.asarray(sensitivity, np.float64)
    with np.errstate(over="ignore"):  # so little noise is as none
        return sensitivity / noise if noise else np.where(sensitivity > 0, np.inf, 0.0)


def _check_numbers(clip_norm: Any, noise_multiplier: Any, epsilon: Any, epsilon_reading: str) -> str | None:
    """The reading that counts, None where the noise is given; raises SettingError for what does not fit."""
    choose("epsilon_reading", epsilon_reading, READINGS)
    require(
        (noise_multiplier is None) != (epsilon is None),
        "noise_multiplier and epsilon",
        (noise_multiplier, epsilon),
        "one given and one None",
        "Give the noise, or the epsilon that it is set for.",
    )
    check_clip_and_noise(clip_norm, noise_multiplier, epsilon)
    return epsilon_reading if epsilon is not None else None


def _check_noise(deviation: float, epsilon: float | None) -> None:
    """Raises SettingError for noise that numbers of 32 bits do not hold."""
    if _LEAST_NOISE <= deviation < _LARGEST_NOISE:
        return
    if epsilon is None:
        allowed = f"0, or from {_LEAST_NOISE:g} to below {_LARGEST_NOISE:g}"
        raise refusal("the standard deviation of the noise", deviation, allowed)
    other = "smaller epsilon" if deviation < _LEAST_NOISE else "larger epsilon or delta"
    remedy = f"Its noise would have a standard deviation of {deviation:.3g}: take a {other}."
    raise refusal("epsilon", epsilon, "one that can be met with numbers of 32 bits", remedy)


def _conditions(
    sensitivity: Sensitivities, clip_norm: float, noise: float, data_in_schedule: Sequence[str]
) -> tuple[str, ...]:
    """The sentences that the claim stands on."""
    public = [COUNTS[name] for name in sensitivity.reads]
    weights = f"The weights of {sensitivity.rule} follow from the schedule alone."
    if public:
        counts = " and ".join(public)
        weights = f"The weights of {sensitivity.rule} also follow from {counts}: these numbers are public."
    schedule = "The schedule does not depend on what clients hold. It is public, and so is its seed."
    if data_in_schedule:
        what = " and ".join(data_in_schedule)
        schedule = (
            f"The schedule depends on {what}: these numbers are public, and so are the schedule and its seed."
        )
    nothing = () if noise else ("There is no noise: nothing is claimed.",)
    return (
        *nothing,
        "What is protected is one client: with and without its updates, which then are zeros, the schedule stays as "
        "it is (zero-out adjacency). That it took part is not hidden.",
        f"Each trip's update is clipped to an L2 norm of {clip_norm:g} over all parameters. Two trips of a client in "
        "one server step count twice.",
        weights,
        schedule,
        "What is published is the server's models. Losses of clients, norms and other reports are not protected.",
        "Settings that were chosen on the same data, such as learning rates, are outside the claim.",
        "Epsilons and deltas of several runs on the same data add up.",
        "The noise is that of a pseudo-random generator in floating-point numbers, whose rounding is outside the "
        "claim. Its seed must be secret.",
    )
