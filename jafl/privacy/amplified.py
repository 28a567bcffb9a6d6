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
_LEAST_NOISE, _MOST_NOISE = 1e-150, 1e150  # whose squares the accountant can take
# The largest privacy loss; the accountant takes the exponential of it, and overflows at 709.
_LARGEST_INTERVAL = 100.0
# An epsilon is so many intervals, and the largest loss of a round at most so many. The result is too large by the
# square of an interval; finer ones cost minutes and gigabytes.
_INTERVALS, _INTERVALS_OF_A_ROUND = 3e5, 2e4
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
      Epsilon, at zero-out adjacency of one client; infinite without noise. It is an upper bound, to the fourth digit
      unless sampling rate or delta are tiny.

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

    rate, noise, rounds = float(sampling_rate), float(noise_multiplier), int(rounds)
    relation = dp_accounting.NeighboringRelation.REPLACE_SPECIAL
    event = _event(dp_accounting, noise, rate, rounds)
    bound = _without_secrecy(noise, rate, rounds, delta)
    if not _LEAST_NOISE < noise < _MOST_NOISE:
        return bound
    while True:
        interval = max(_largest_loss(noise, rate) / _INTERVALS_OF_A_ROUND, bound / _INTERVALS)
        if not bound or interval > _LARGEST_INTERVAL:
            return bound
        found = min(float(pld.PLDAccountant(relation, interval).compose(event).get_epsilon(delta)), bound)
        if interval > bound / _INTERVALS or found > bound / 2:
            return found
        bound = found  # far below what the intervals were made for: once more, with finer ones


def _largest_loss(noise: float, rate: float) -> float:
    """The privacy loss of a round in which a client is drawn and the noise is eight deviations in its favour."""
    in_the_round = (8 + 0.5 / noise) / noise
    with np.errstate(divide="ignore"):
        return float(np.logaddexp(np.log1p(-rate), np.log(rate) + in_the_round))


def _without_secrecy(noise: float, rate: float, rounds: int, delta: float) -> float:
    """A bound: epsilon of one Gaussian mechanism for a client of whom all know in which rounds it is drawn.

    That is a mixture over the numbers of its rounds, whose delta is at most the mean of theirs. So it is enough that
    the client is in at most so many rounds, but for a part of delta; and in no more than in all of them.
    """
    from scipy.stats import binom

    bounds = [epsilon_of(math.sqrt(rounds) / noise, delta)]
    often = float(binom.isf(delta / 2, rounds, rate))
    left = delta - float(binom.sf(often, rounds, rate))
    if left > 0:
        bounds.append(epsilon_of(math.sqrt(often) / noise, left))
    return float(min(bounds))


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
