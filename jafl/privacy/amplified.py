"""DP-SGD with amplification by sampling: each round takes every client with the same probability, in secret.

This is the baseline of FedBuff's figure 4, for synchronous rounds of *Poisson cohorts*: every client takes part in a
round independently with the sampling rate, so that the cohort's size varies, and its sum is divided by the expected
size. The claim stands on who took part being secret; a realised schedule is never looked at. Nothing of the kind
holds for asynchronous arrivals: who is slow cannot be drawn (FedBuff, section 3).
"""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from jafl.base.errors import SettingError, real_number, refusal, require, whole_number
from jafl.base.extras import importing
from jafl.privacy.gaussian import check_delta, check_epsilon, epsilon_of
from jafl.privacy.weights import rule_name, trip_weights
from jafl.records import EventSchedule, Rule
from jafl.specifications import Specification, as_specification

# Noise multipliers between which one is looked for.
_LEAST, _MOST = 0.05, 1e6
_LITTLE_NOISE = 0.5
_MOST_NOISE = 1e150  # whose square the accountant can take
# Of privacy losses; the accountant takes the exponential of it, and overflows at 709.
_LARGEST_INTERVAL = 100.0
_PRECISION = 1e-4  # relative
_LARGEST = 1e12  # stands for an infinite epsilon


def amplified_epsilon(noise_multiplier: float, *, sampling_rate: float, rounds: int, delta: float) -> float:
    """Epsilon of DP-SGD with Poisson cohorts, composed over rounds numerically (dp-accounting's ``PLDAccountant``).

    Args:
      noise_multiplier: standard deviation of the noise of a round's sum, in units of the clip norm.
      sampling_rate: with which probability a client takes part in a round, in (0, 1].
      rounds: T, how many.
      delta: in (0, 1).

    Returns:
      Epsilon, at zero-out adjacency of one client; infinite without noise. It is an upper bound, to the fourth digit.

    Raises:
      SettingError: for numbers outside their ranges.
      MissingLibraryError: without dp-accounting.

    Examples:
      >>> round(amplified_epsilon(0.8, sampling_rate=0.0015, rounds=600, delta=1e-7), 2)
      0.91
    """
    allowed = "a number of at least 0, not infinite"
    real_number("noise_multiplier", noise_multiplier, lambda value: 0 <= value < np.inf, allowed)
    _check(sampling_rate, rounds)
    delta = check_delta(delta)
    if not noise_multiplier:
        return float("inf")
    with importing():
        import dp_accounting
        from dp_accounting import pld

    # A client that may take part in a round is hidden at least as well as one that does in each.
    noise_multiplier = float(noise_multiplier)
    in_each_round = float(epsilon_of(math.sqrt(rounds) / noise_multiplier, delta))
    # Privacy losses grow with the inverse square of the noise, and so does what may be rounded up.
    share = max(1.0, _LITTLE_NOISE / noise_multiplier)
    interval = 1e-4 * share * share  # infinite where it is too large, and no error as by **
    if interval > _LARGEST_INTERVAL or noise_multiplier > _MOST_NOISE:
        return in_each_round
    accountant = pld.PLDAccountant(dp_accounting.NeighboringRelation.REPLACE_SPECIAL, interval)
    accountant.compose(_event(dp_accounting, noise_multiplier, float(sampling_rate), int(rounds)))
    return min(float(accountant.get_epsilon(delta)), in_each_round)


def amplified_noise_multiplier(epsilon: float, *, sampling_rate: float, rounds: int, delta: float) -> float:
    """The least noise with which DP-SGD with Poisson cohorts has an epsilon; see ``amplified_epsilon``.

    Args:
      epsilon: finite, above 0.
      sampling_rate: with which probability a client takes part in a round, in (0, 1].
      rounds: T, how many.
      delta: in (0, 1).

    Returns:
      The noise multiplier, to a relative 1e-4 on the safe side; at least 0.05.

    Raises:
      SettingError: for numbers outside their ranges, or an epsilon that no noise multiplier up to 1e6 has.
      MissingLibraryError: without dp-accounting.
    """
    from scipy.optimize import brentq

    check_epsilon(epsilon)
    fixed: Any = {"sampling_rate": sampling_rate, "rounds": rounds, "delta": delta}
    low, high = _LEAST, 1.0
    while amplified_epsilon(high, **fixed) > epsilon:
        low, high = high, 2 * high
        if high > _MOST:
            raise refusal("epsilon", epsilon, f"one that a noise multiplier of at most {_MOST:g} has")
    if amplified_epsilon(low, **fixed) <= epsilon:
        return low

    def excess(log_noise: float) -> float:
        return min(amplified_epsilon(float(np.exp(log_noise)), **fixed), _LARGEST) / epsilon - 1

    root = brentq(excess, np.log(low), np.log(high), xtol=_PRECISION / 4)
    return float(np.exp(root + _PRECISION / 2))


def reason_against_amplification(
    rule: Specification | Rule, schedule: EventSchedule, num_examples: np.ndarray | None = None
) -> str | None:
    """Why sampling does not amplify the privacy of a rule, a sentence; None if it does.

    The formula is for sums in which every client that is drawn has the same weight, whoever else is drawn. A mean
    over those who are there changes all weights with each client that joins; and noise in units of the largest
    weight that was drawn tells who was there, where weights differ. So the rule's weights are computed for several
    cohorts: those of the schedule, half of each, one client alone, and everybody.
    """
    rounded = as_specification(rule).build().rounding
    own = rounded.rule if rounded else rule
    weights: list[np.ndarray] = []
    try:
        for cohorts in _other_cohorts(schedule):
            weights.append(trip_weights(own, cohorts, num_examples))
    except SettingError as error:
        return f"The weights of {rule_name(rule)} cannot be computed for other cohorts: {error}"
    every = np.concatenate(weights)
    if not np.allclose(every, every[0], rtol=1e-9, atol=0):
        return (
            f"The weights of {rule_name(rule)} depend on who is drawn, from {every.min():.3g} to {every.max():.3g}. "
            "Amplification is for sums with one weight for all, such as jafl.rules.fedavg(divide_by=cohort_size)."
        )
    return None


def _other_cohorts(schedule: EventSchedule) -> Iterator[EventSchedule]:
    """The schedule, and the same with other clients in its rounds."""

    def with_trips(places: np.ndarray, **changes: np.ndarray) -> EventSchedule:
        names = ("client", "trip", "download_version", "step", "download_time", "arrival_time")
        rows = {name: getattr(schedule, name)[places] for name in names}
        if schedule.local_steps is not None:
            rows["local_steps"] = schedule.local_steps[places]
        return dataclasses.replace(schedule, **rows | changes)

    trips, clients = np.arange(schedule.num_trips), schedule.num_clients
    yield schedule
    yield with_trips(trips[::2])
    yield with_trips(np.unique(schedule.step, return_index=True)[1])
    nobody = np.zeros(clients, np.int32)
    everybody = np.arange(clients, dtype=np.int32)
    first = {"client": everybody, "trip": nobody, "download_version": nobody, "step": nobody}
    yield with_trips(np.zeros(clients, int), **first)


def _check(sampling_rate: float, rounds: int) -> None:
    real_number("sampling_rate", sampling_rate, lambda value: 0 < value <= 1, "above 0, at most 1")
    whole_number("rounds", rounds, 1)
    require(rounds <= 10**7, "rounds", rounds, "at most 10,000,000")


def _event(dp_accounting: Any, noise_multiplier: float, sampling_rate: float, rounds: int) -> Any:
    """What a run of rounds publishes, as dp-accounting calls it."""
    noisy = dp_accounting.GaussianDpEvent(noise_multiplier)
    sampled = dp_accounting.PoissonSampledDpEvent(sampling_rate, noisy)
    return dp_accounting.SelfComposedDpEvent(sampled, rounds)
