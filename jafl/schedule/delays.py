"""Delays: how long a client trip takes, from download to upload, in units of simulated time.

A delay is a law that turns (seed, client, trip) into a duration. The draw depends on these three alone, so a client's
durations stay the same when clients are added or the algorithm changes. By default every trip has a draw of its own;
``once_per_client`` turns any law into one draw per client.

Simple laws: ``constant``, ``uniform``, ``half_normal``, ``exponential``, ``log_normal``, ``gamma``, ``pareto``,
``proportional_to_examples``, and ``from_function`` for a callable of your own. Laws made of laws, which may be
nested: ``groups``, ``slow_fraction``, ``once_per_client``, ``per_step``, ``with_network``, ``throttled``.
``jafl.duration_trace`` reads durations from a file.

If a protocol decides the number of local steps of each trip, a trip of q steps takes ``before + q * each_step +
after`` (``Delay.parts``). Only ``per_step`` has an ``each_step`` above 0. The draws never depend on q, so another
number of local steps leaves the speeds of all trips as they are.
"""

import dataclasses
import math
import numbers
from collections.abc import Callable
from typing import Any

import numpy as np

from jafl.base.errors import require
from jafl.base.given_arrays import as_array
from jafl.schedule.compound_delays import (
    groups,
    once_per_client,
    per_step,
    slow_fraction,
    throttled,
    with_network,
)
from jafl.schedule.delay import Delay, numeric_array, require_number, require_same_clients

LARGEST_SIGMA = 30.0  # of a logarithm: the median is then exp(-450) of the mean
MEAN_OF_1 = math.sqrt(math.pi / 2)  # of |N(0, sigma)|: the sigma with which it is 1


@dataclasses.dataclass(frozen=True)
class constant(Delay):  # noqa: N801  (laws read as functions: delays.constant(1.0))
    """Every trip takes the same time.

    Args:
      duration: in units of simulated time, at least 0; 0 is for synchronous rounds only.

    Examples:
      >>> jafl.delays.constant(2.0).durations(0, np.array([3, 7]), np.array([0, 0]))
      array([2., 2.])
    """

    duration: float = 1.0

    def __post_init__(self):
        require_number("duration", self.duration, lambda value: value >= 0, "a finite number, at least 0")

    @property
    def mean(self) -> float:
        """The mean duration, in units of simulated time."""
        return self.duration

    def quantile(self, uniform, client):
        return np.full(len(uniform), float(self.duration))


@dataclasses.dataclass(frozen=True)
class uniform(Delay):  # noqa: N801
    """Durations uniform on [low, high].

    Args:
      low: the shortest duration, in units of simulated time, at least 0.
      high: the longest duration, at least ``low``.

    Examples:
      >>> jafl.delays.uniform(1.0, 3.0).quantile(np.array([0.5]), np.array([0]))
      array([2.])
    """

    low: float = 0.0
    high: float = 2.0

    def __post_init__(self):
        require_number("low", self.low, lambda value: value >= 0, "a finite number, at least 0")
        allowed = f"a finite number, at least low ({self.low})"
        require_number("high", self.high, lambda value: value >= self.low, allowed)

    @property
    def mean(self) -> float:
        """The mean duration, in units of simulated time."""
        return (self.low + self.high) / 2

    def quantile(self, uniform, client):
        return self.low + (self.high - self.low) * uniform


@dataclasses.dataclass(frozen=True)
class half_normal(Delay):  # noqa: N801
    """Durations |N(0, sigma)|, FedBuff's law (section 5); their mean is sigma * sqrt(2 / pi).

    Args:
      sigma: standard deviation of the normal law, in units of simulated time, above 0. By default the mean is 1.

    Examples:
      >>> jafl.delays.half_normal(1.0).quantile(np.array([0.5]), np.array([0])).round(3)
      array([0.674])
    """

    sigma: float = MEAN_OF_1

    def __post_init__(self):
        require_number("sigma", self.sigma, lambda value: value > 0, "a finite number above 0")

    @property
    def mean(self) -> float:
        """The mean duration, in units of simulated time."""
        return self.sigma / MEAN_OF_1

    def quantile(self, uniform, client):
        from scipy.special import ndtri

        # From below 0.5, as 0.5 + 0.5 * uniform can round to 1, whose quantile is infinite.
        return -self.sigma * ndtri(0.5 - 0.5 * uniform)


@dataclasses.dataclass(frozen=True)
class exponential(Delay):  # noqa: N801
    """Exponential durations.

    Args:
      mean: in units of simulated time, above 0.

    Examples:
      >>> jafl.delays.exponential(1.0).quantile(np.array([0.5]), np.array([0])).round(3)
      array([0.693])
    """

    mean: float = 1.0

    def __post_init__(self):
        require_number("mean", self.mean, lambda value: value > 0, "a finite number above 0")

    def quantile(self, uniform, client):
        return -self.mean * np.log1p(-uniform)


@dataclasses.dataclass(frozen=True)
class log_normal(Delay):  # noqa: N801
    """Durations exp(N(mu, sigma)) with mu such that their mean is ``mean``; the median is mean * exp(-sigma**2 / 2).

    Args:
      mean: in units of simulated time, above 0.
      sigma: standard deviation of the duration's logarithm, from 0 to 30.

    Examples:
      >>> jafl.delays.log_normal(1.0, 1.0).quantile(np.array([0.5]), np.array([0])).round(3)
      array([0.607])
    """

    mean: float = 1.0
    sigma: float = 1.0

    def __post_init__(self):
        require_number("mean", self.mean, lambda value: value > 0, "a finite number above 0")
        allowed = f"at least 0 and at most {LARGEST_SIGMA:g}: with more, nearly all durations are 0"
        require_number("sigma", self.sigma, lambda value: 0 <= value <= LARGEST_SIGMA, allowed)

    def quantile(self, uniform, client):
        from scipy.special import ndtri

        return self.mean * np.exp(self.sigma * ndtri(uniform) - 0.5 * self.sigma**2)


@dataclasses.dataclass(frozen=True)
class gamma(Delay):  # noqa: N801
    """Gamma durations; their standard deviation is mean / sqrt(shape).

    With a whole number k as the shape, a duration is the time of k exponential tasks one after the other.

    Args:
      mean: in units of simulated time, above 0.
      shape: above 0; the larger, the less durations vary.

    Examples:
      >>> jafl.delays.gamma(1.0, 2.0).quantile(np.array([0.5]), np.array([0])).round(3)
      array([0.839])
    """

    mean: float = 1.0
    shape: float = 2.5

    def __post_init__(self):
        require_number("mean", self.mean, lambda value: value > 0, "a finite number above 0")
        require_number("shape", self.shape, lambda value: value > 0, "a finite number above 0")

    def quantile(self, uniform, client):
        from scipy.special import gammaincinv

        return self.mean / self.shape * gammaincinv(self.shape, uniform)


@dataclasses.dataclass(frozen=True)
class pareto(Delay):  # noqa: N801
    """Classical (type I) Pareto durations: P(longer than t) = (minimum / t)**shape from the minimum on.

    The minimum is mean * (shape - 1) / shape, so that the mean is ``mean``. The smaller the shape, the longer
    the tail: up to 2 the variance is infinite, and the mean of a run's durations comes near ``mean`` slowly.

    Args:
      mean: in units of simulated time, above 0.
      shape: above 1.

    Examples:
      >>> jafl.delays.pareto(1.0, 2.0).quantile(np.array([0.5]), np.array([0])).round(3)
      array([0.707])
    """

    mean: float = 1.0
    shape: float = 2.5

    def __post_init__(self):
        require_number("mean", self.mean, lambda value: value > 0, "a finite number above 0")
        require_number(
            "shape", self.shape, lambda value: value > 1, "a finite number above 1, or there is no mean"
        )

    def quantile(self, uniform, client):
        minimum = self.mean * (self.shape - 1) / self.shape
        return minimum * np.exp(-np.log1p(-uniform) / self.shape)


@dataclasses.dataclass(frozen=True, eq=False)
class proportional_to_examples(Delay):  # noqa: N801
    """Exponential durations whose mean grows with the client's number of examples (FedBuff, figure 7).

    Args:
      num_examples: [N] integers above 0, one per client, for example ``federation.num_examples``.
      mean_per_example: mean duration per example, in units of simulated time, above 0. Default: 1.
      mean: in its place, the mean duration of a trip, over all clients.

    Examples:
      >>> law = jafl.delays.proportional_to_examples(np.array([10, 20]))
      >>> law.quantile(np.array([0.5, 0.5]), np.array([0, 1])).round(3)
      array([ 6.931, 13.863])
    """

    num_examples: np.ndarray
    mean_per_example: float | None = None
    mean: float | None = None

    def __post_init__(self):
        remedy = "federation.num_examples is what a federation's clients hold."
        held, mean = numeric_array("num_examples", self.num_examples, remedy), self.mean
        fits = held.ndim == 1 and held.size > 0 and held.dtype.kind in "iuf" and np.min(held) > 0
        require(fits, "num_examples", self.num_examples, "above 0 for every client", remedy)
        if mean is not None:
            require_number("mean", mean, lambda value: value > 0, "a finite number above 0")
            # The same where a law is copied with all its fields.
            fits = self.mean_per_example in (None, mean / np.mean(held))
            require(fits, "the delay's mean", mean, "left out where mean_per_example is given")
        per_example = mean / np.mean(held) if mean is not None else self.mean_per_example
        object.__setattr__(self, "mean_per_example", 1.0 if per_example is None else per_example)
        allowed = "a finite number above 0"
        require_number("mean_per_example", self.mean_per_example, lambda value: value > 0, allowed)

    def quantile(self, uniform, client):
        return -self.mean_per_example * np.asarray(self.num_examples)[client] * np.log1p(-uniform)

    def check_clients(self, num_clients):
        require_same_clients("num_examples", len(self.num_examples), num_clients)


@dataclasses.dataclass(frozen=True)
class from_function(Delay):  # noqa: N801
    """Durations from a function of your own, in units of simulated time.

    The function must depend on its arguments alone: it is called in blocks, in any order, for the same trip more
    than once, and for trips that never happen.

    Args:
      function: ``function(client, trip) -> float`` with two ints; or, vectorised, with two [n] integer arrays,
        returning [n] durations, which is faster.
      vectorised: whether the function takes arrays.

    Raises:
      SettingError: when durations are drawn, for a value that is no number and for a result of another shape;
        like those of any law, durations must be finite and at least 0.

    Examples:
      >>> law = jafl.delays.from_function(lambda client, trip: 1.0 + client)
      >>> law.durations(0, np.array([0, 4]), np.array([0, 0]))
      array([1., 5.])
    """

    function: Callable[[Any, Any], Any]
    vectorised: bool = False

    def __post_init__(self):
        require(callable(self.function), "the delay's function", self.function, "callable: (client, trip)")

    def durations(self, seed, client, trip):
        client, trip = np.asarray(client), np.asarray(trip)
        if self.vectorised:
            return self._checked(self.function(client, trip), client.shape)
        values = list(map(self.function, client.tolist(), trip.tolist()))
        for kind in set(map(type, values)):
            if not issubclass(kind, numbers.Real):
                j = next(j for j, value in enumerate(values) if type(value) is kind)
                name = f"the delay that the function gives client {client[j]}, trip {trip[j]}"
                require(False, name, values[j], "a number", "For a function of arrays say vectorised=True.")
        return np.array(values, np.float64)

    def _checked(self, values: Any, shape: tuple[int, ...]) -> np.ndarray:
        durations = as_array("the function's delays", values)
        kind = durations.dtype
        require(kind.kind in "iuf", "the type of the function's delays", kind.name, "one of real numbers")
        remedy = "For a function of one client and one trip leave vectorised out."
        require(
            durations.shape == shape,
            "the shape of the function's delays",
            durations.shape,
            f"{shape}",
            remedy,
        )
        return durations.astype(np.float64)


DELAYS = {
    law.__name__: law
    for law in (
        constant,
        uniform,
        half_normal,
        exponential,
        log_normal,
        gamma,
        pareto,
        proportional_to_examples,
        groups,
    )
}

__all__ = [
    "constant",
    "exponential",
    "from_function",
    "gamma",
    "groups",
    "half_normal",
    "log_normal",
    "once_per_client",
    "pareto",
    "per_step",
    "proportional_to_examples",
    "slow_fraction",
    "throttled",
    "uniform",
    "with_network",
]
__dir__ = __all__.copy  # for ``dir`` and for completion at a prompt
