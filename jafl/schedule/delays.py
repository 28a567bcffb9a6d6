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
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from jafl.base.errors import (
    SettingError,
    is_number,
    is_whole_number,
    real_number,
    refusal,
    require,
    true_or_false,
    whole_number,
)
from jafl.base.given_arrays import as_array
from jafl.schedule.draws import DURATION, keyed_uniform

# Purposes of draws, beside those in draws.py; these begin at 20, so that no number stands for two purposes.
SLOW, DOWNLOAD, UPLOAD = 20, 21, 22


LARGEST_SIGMA = 30.0  # of a logarithm: the median is then exp(-450) of the mean
MEAN_OF_1 = math.sqrt(math.pi / 2)  # of |N(0, sigma)|: the sigma with which it is 1


class NoSuchTrip(SettingError):
    """A law has no duration for a trip, because its record ends before; fewer trips may be asked for."""


class Parts(NamedTuple):
    """What the durations of trips are made of, in units of simulated time: each [n] float64 or one number.

    Attributes:
      before: the time before the first local step, such as that of the download.
      each_step: the time of each local step.
      after: the time after the last one, such as that of the upload.
    """

    before: np.ndarray | float
    each_step: np.ndarray | float = 0.0
    after: np.ndarray | float = 0.0

    def of_steps(self, local_steps: np.ndarray | float) -> Any:
        """The durations of trips of so many local steps."""
        return self.before + local_steps * self.each_step + self.after


@dataclasses.dataclass(frozen=True)
class Delay:
    """A law of trip durations. A new law is a subclass with its own ``quantile``."""

    def quantile(self, uniform: np.ndarray, client: np.ndarray) -> np.ndarray:
        """[n] float64 durations of ``client`` [n] at the probabilities ``uniform`` [n] in (0, 1)."""
        raise NotImplementedError(
            f"{type(self).__name__} has no quantile: a delay is a subclass of jafl.Delay with a method "
            "quantile(uniform, client) of its own."
        )

    def durations(self, seed: int, client: np.ndarray, trip: np.ndarray) -> np.ndarray:
        """[n] float64 durations of the trips (client [n], trip [n]), in units of simulated time."""
        values = self.quantile(keyed_uniform(seed, DURATION, client, trip), client)
        return checked_durations(self, values, np.shape(client))

    def parts(self, seed: int, client: np.ndarray, trip: np.ndarray) -> Parts:
        """What the durations of the trips (client [n], trip [n]) are made of; here nothing depends on local steps."""
        return Parts(self.durations(seed, client, trip))

    def inside(self) -> tuple["Delay", ...]:
        """The laws that this one is made of; none for a simple law."""
        return ()

    def check_clients(self, num_clients: int) -> None:
        """Raises SettingError if the law, or one inside it, is for another number of clients."""
        for law in self.inside():
            law.check_clients(num_clients)


def checked_durations(law: Delay, values: Any, shape: tuple[int, ...]) -> np.ndarray:
    """What a law has drawn, as float64; SettingError unless it is one number for each trip."""
    name = type(law).__name__
    remedy = "Return an array, np.full(len(uniform), 1.0) for example."
    durations = _numbers(f"durations of the delay {name}", values, remedy)
    kind = durations.dtype
    allowed = "one of real numbers"
    require(kind.kind in "iuf", f"the type of the durations of the delay {name}", kind.name, allowed, remedy)
    allowed = f"{shape}, one duration for each trip"
    require(
        durations.shape == shape,
        f"the shape of the durations of the delay {name}",
        durations.shape,
        allowed,
        remedy,
    )
    return durations.astype(np.float64, copy=False)


def _numbers(name: str, values: Any, remedy: str) -> np.ndarray:
    """``values`` as an array; SettingError with this remedy, too, for what is none of numbers."""
    try:
        return as_array(name, values)
    except SettingError as error:
        remedies = f"{error.remedy} {remedy}".lstrip()
        raise (
            refusal(error.setting, error.value, error.allowed, remedies) if error.allowed else error
        ) from None


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
        _require_number("duration", self.duration, lambda value: value >= 0, "a finite number, at least 0")

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
        _require_number("low", self.low, lambda value: value >= 0, "a finite number, at least 0")
        allowed = f"a finite number, at least low ({self.low})"
        _require_number("high", self.high, lambda value: value >= self.low, allowed)

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
        _require_number("sigma", self.sigma, lambda value: value > 0, "a finite number above 0")

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
        _require_number("mean", self.mean, lambda value: value > 0, "a finite number above 0")

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
        _require_number("mean", self.mean, lambda value: value > 0, "a finite number above 0")
        allowed = f"at least 0 and at most {LARGEST_SIGMA:g}: with more, nearly all durations are 0"
        _require_number("sigma", self.sigma, lambda value: 0 <= value <= LARGEST_SIGMA, allowed)

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
        _require_number("mean", self.mean, lambda value: value > 0, "a finite number above 0")
        _require_number("shape", self.shape, lambda value: value > 0, "a finite number above 0")

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
        _require_number("mean", self.mean, lambda value: value > 0, "a finite number above 0")
        _require_number(
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
        held, mean = _numbers("num_examples", self.num_examples, remedy), self.mean
        fits = held.ndim == 1 and held.size > 0 and held.dtype.kind in "iuf" and np.min(held) > 0
        require(fits, "num_examples", self.num_examples, "above 0 for every client", remedy)
        if mean is not None:
            _require_number("mean", mean, lambda value: value > 0, "a finite number above 0")
            # The same where a law is copied with all its fields.
            fits = self.mean_per_example in (None, mean / np.mean(held))
            require(fits, "the delay's mean", mean, "left out where mean_per_example is given")
        per_example = mean / np.mean(held) if mean is not None else self.mean_per_example
        object.__setattr__(self, "mean_per_example", 1.0 if per_example is None else per_example)
        allowed = "a finite number above 0"
        _require_number("mean_per_example", self.mean_per_example, lambda value: value > 0, allowed)

    def quantile(self, uniform, client):
        return -self.mean_per_example * np.asarray(self.num_examples)[client] * np.log1p(-uniform)

    def check_clients(self, num_clients):
        _require_same_clients("num_examples", len(self.num_examples), num_clients)


@dataclasses.dataclass(frozen=True)
class groups(Delay):  # noqa: N801
    """Groups of clients with laws of their own, in the order of client numbers: the first group has clients 0, 1, ...

    Args:
      members: pairs (number of clients, law), for example ``((10, uniform(1, 2)), (5, uniform(8, 12)))``,
        FedStaleWeight's ten fast and five slow clients (section 6.2).

    Examples:
      >>> law = jafl.delays.groups([(1, jafl.delays.constant(1.0)), (2, jafl.delays.constant(9.0))])
      >>> law.durations(0, np.array([0, 1, 2]), np.array([0, 0, 0]))
      array([1., 9., 9.])
    """

    members: Sequence[tuple[int, Delay]]

    def __post_init__(self):
        allowed = "a list of at least one pair (number of clients, law)"
        remedy = "Two groups are [(10, uniform(1, 2)), (5, uniform(8, 12))]."
        are_listed = isinstance(self.members, (list, tuple)) and len(self.members) > 0
        require(are_listed, "members", self.members, allowed, remedy)
        for pair in self.members:
            require(isinstance(pair, (list, tuple)) and len(pair) == 2, "members", pair, allowed, remedy)
            count, law = pair
            fits = is_whole_number(count) and count >= 1 and isinstance(law, Delay)
            require(fits, "members", pair, "(clients >= 1, a delay)")

    def inside(self):
        return tuple(law for _, law in self.members)

    def durations(self, seed, client, trip):
        return _without_steps(self, seed, client, trip)

    def parts(self, seed, client, trip):
        client = np.asarray(client)
        last = np.cumsum([count for count, _ in self.members])
        group = np.searchsorted(last, client, side="right")
        members = [(law, group == number) for number, (_, law) in enumerate(self.members)]
        return _parts_of(members, seed, client, trip)

    def check_clients(self, num_clients):
        _require_same_clients("members", sum(count for count, _ in self.members), num_clients)
        super().check_clients(num_clients)  # laws of groups get the client's number in the whole experiment


@dataclasses.dataclass(frozen=True)
class slow_fraction(Delay):  # noqa: N801
    """Some clients are slow: each with probability ``fraction``, and then it follows ``slow_law``.

    ``slow_fraction(exponential(0.5), exponential(5.0), 0.2)`` is a reading of ACE's delays (figure 2). Whether a
    client is slow is drawn once per client and keyed by (seed, client): it does not change when clients are added,
    and a larger fraction only makes more clients slow. The number of slow clients is therefore binomial, not exactly
    fraction * N; for an exact number use ``groups``. Both laws draw as they would alone.

    Args:
      law: of the other clients.
      slow_law: of the slow clients.
      fraction: the probability to be slow, from 0 to 1.

    Examples:
      >>> law = jafl.delays.slow_fraction(jafl.delays.constant(1.0), jafl.delays.constant(9.0), 0.2)
      >>> law.slow_clients(seed=0, num_clients=10).shape
      (10,)
    """

    law: Delay
    slow_law: Delay
    fraction: float

    def __post_init__(self):
        _require_law("law", self.law)
        _require_law("slow_law", self.slow_law)
        _require_number("fraction", self.fraction, lambda value: 0 <= value <= 1, "at least 0 and at most 1")

    def inside(self):
        return self.law, self.slow_law

    def durations(self, seed, client, trip):
        return _without_steps(self, seed, client, trip)

    def parts(self, seed, client, trip):
        slow = self._is_slow(seed, np.asarray(client))
        return _parts_of([(self.law, ~slow), (self.slow_law, slow)], seed, client, trip)

    def slow_clients(self, seed: int, num_clients: int) -> np.ndarray:
        """[N] bool: the slow clients of this seed. A law inside a bandwidth has draws of its own."""
        return self._is_slow(seed, np.arange(num_clients))

    def _is_slow(self, seed: int, client: np.ndarray) -> np.ndarray:
        return keyed_uniform(own_seed(self, seed, SLOW), SLOW, client, np.zeros_like(client)) < self.fraction


@dataclasses.dataclass(frozen=True)
class once_per_client(Delay):  # noqa: N801
    """``law`` drawn once per client: every trip of a client takes the same time.

    Args:
      law: of the clients' durations.

    Examples:
      >>> law = jafl.delays.once_per_client(jafl.delays.exponential(1.0))
      >>> bool(np.ptp(law.durations(0, np.array([4, 4, 4]), np.array([0, 1, 2]))) == 0)
      True
    """

    law: Delay

    def __post_init__(self):
        _require_law("law", self.law)

    def inside(self):
        return (self.law,)

    def durations(self, seed, client, trip):
        return self.law.durations(seed, client, np.zeros_like(trip))

    def parts(self, seed, client, trip):
        return self.law.parts(seed, client, np.zeros_like(trip))


@dataclasses.dataclass(frozen=True)
class per_step(Delay):  # noqa: N801
    """A trip takes the number of its local steps times a draw of ``law``, one draw for all steps of the trip.

    For protocols that decide the number of local steps: ``jafl.asynchronous`` and ``jafl.synchronous`` with
    ``local_steps``, and ``jafl.compass``. ``with_network`` around it adds the time to send the model.

    Args:
      law: of the time of one local step.

    Examples:
      >>> law = jafl.delays.per_step(jafl.delays.constant(0.5))
      >>> law.parts(0, np.array([3, 7]), np.array([0, 0])).of_steps(np.array([4, 0]))
      array([2., 0.])
    """

    law: Delay

    def __post_init__(self):
        _require_law("law", self.law)

    def inside(self):
        return (self.law,)

    def durations(self, seed, client, trip):
        remedy = "Give the protocol local_steps, or take the law of whole trips."
        require(False, "delay", self, "a law of whole trips where the schedule has no local_steps", remedy)

    def parts(self, seed, client, trip):
        # What a trip of one step takes: so a law of single steps within another is that law.
        return Parts(0.0, self.law.parts(seed, client, trip).of_steps(1))


@dataclasses.dataclass(frozen=True)
class with_network(Delay):  # noqa: N801
    """Download, compute, upload: model_bytes / download bandwidth + compute + upload_bytes / upload bandwidth.

    Args:
      compute: the law of the computing time, in units of simulated time; ``per_step`` for one that grows with the
        local steps of a trip.
      model_bytes: size of what is sent, in bytes; four times the number of parameters in float32.
      download_bandwidth: in bytes per unit of simulated time. A number for all clients (infinite: sending takes no
        time), or a law, drawn once per client.
      upload_bandwidth: likewise. The draws of compute, download and upload are independent, also where the three are
        the same law.
      upload_bytes: size of what a client sends, where it is not that of the model: of a compressed update, or of
        adapters. Default: ``model_bytes``. Settings, such as those of ``run.py``, take the size from the clients'
        compression.
      draw_each_trip: bandwidths are drawn for each trip, and not once per client.

    Raises:
      SettingError: for a number outside its range, also for a drawn bandwidth that is not above 0.

    Examples:
      >>> law = jafl.delays.with_network(jafl.delays.constant(1.0), 100, 50.0, 25.0)
      >>> law.durations(0, np.array([0]), np.array([0]))
      array([7.])
    """

    compute: Delay
    model_bytes: float
    download_bandwidth: float | Delay = math.inf
    upload_bandwidth: float | Delay = math.inf
    upload_bytes: float | None = None
    draw_each_trip: bool = False

    def __post_init__(self):
        _require_law("compute", self.compute)
        for name in ("model_bytes", "upload_bytes"):
            size = getattr(self, name)
            if size is not None or name == "model_bytes":
                _require_number(name, size, lambda value: value >= 0, "a finite number, at least 0")
        true_or_false("the delay's draw_each_trip", self.draw_each_trip)
        for name in ("download_bandwidth", "upload_bandwidth"):
            bandwidth = getattr(self, name)
            fits = isinstance(bandwidth, Delay) or (is_number(bandwidth) and bandwidth > 0)
            require(fits, f"the delay's {name}", bandwidth, "above 0 (bytes per unit of time), or a delay")

    def inside(self):
        laws = (self.compute, self.download_bandwidth, self.upload_bandwidth)
        return tuple(law for law in laws if isinstance(law, Delay))

    def durations(self, seed, client, trip):
        return _without_steps(self, seed, client, trip)

    def parts(self, seed, client, trip):
        client = np.asarray(client)
        drawn = np.asarray(trip) if self.draw_each_trip else np.zeros_like(client)
        download = self._sending(seed, client, drawn, DOWNLOAD, "download_bandwidth")
        upload = self._sending(seed, client, drawn, UPLOAD, "upload_bandwidth")
        compute = self.compute.parts(seed, client, trip)
        return Parts(download + compute.before, compute.each_step, compute.after + upload)

    def _sending(self, seed: int, client: np.ndarray, trip: np.ndarray, purpose: int, name: str) -> Any:
        """Time to send the model or the update, in units of simulated time: one number or [n]."""
        bandwidth, size = getattr(self, name), self.model_bytes
        if purpose == UPLOAD and self.upload_bytes is not None:
            size = self.upload_bytes
        if not isinstance(bandwidth, Delay):
            return size / bandwidth
        rates = np.asarray(bandwidth.durations(own_seed(self, seed, purpose), client, trip), np.float64)
        wrong = np.flatnonzero(~(rates > 0))
        if wrong.size:
            j = wrong[0]
            require(False, f"the delay's {name} of client {client[j]}", float(rates[j]), "above 0")
        return size / rates


@dataclasses.dataclass(frozen=True)
class throttled(Delay):  # noqa: N801
    """Strategic clients that report at ``share`` of their true speed: each of their durations is divided by it.

    FedStaleWeight, section 4.2.1, asks whether a client gains by appearing slower than it is. The durations of other
    clients do not change.

    Args:
      law: of the true durations.
      share: of the true speed, above 0 and at most 1.
      clients: numbers of the clients that throttle.

    Examples:
      >>> law = jafl.delays.throttled(jafl.delays.constant(1.0), 0.5, [1])
      >>> law.durations(0, np.array([0, 1]), np.array([0, 0]))
      array([1., 2.])
    """

    law: Delay
    share: float
    clients: Sequence[int]

    def __post_init__(self):
        _require_law("law", self.law)
        _require_number("share", self.share, lambda value: 0 < value <= 1, "above 0 and at most 1")
        several, allowed = isinstance(self.clients, Iterable), "a list of client numbers, [3] for example"
        require(several, "the throttled delay's clients", self.clients, allowed)
        clients = tuple(whole_number("a client of the throttled delay", client, 0) for client in self.clients)
        object.__setattr__(self, "clients", clients)

    def inside(self):
        return (self.law,)

    def durations(self, seed, client, trip):
        durations = np.asarray(self.law.durations(seed, client, trip), np.float64)
        return np.where(np.isin(client, self.clients), durations / self.share, durations)

    def parts(self, seed, client, trip):
        if first_per_step(self) is None:  # as a whole: the parts of a quotient add up to other last bits
            return super().parts(seed, client, trip)
        throttles = np.isin(client, self.clients)
        parts = self.law.parts(seed, client, trip)
        return Parts(*(np.where(throttles, np.divide(part, self.share), part) for part in parts))

    def check_clients(self, num_clients):
        for client in self.clients:
            allowed = f"below the number of clients, {num_clients}"
            require(client < num_clients, "a client of the throttled delay", client, allowed)
        super().check_clients(num_clients)


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


def _without_steps(law: Delay, seed: int, client: np.ndarray, trip: np.ndarray) -> np.ndarray:
    """[n] float64 durations of trips of which nobody says the local steps."""
    if (by_steps := first_per_step(law)) is not None:
        by_steps.durations(seed, client, trip)  # which says why there are none
    return law.parts(seed, client, trip).of_steps(0)


def first_per_step(law: Delay) -> Delay | None:
    """The first law of single local steps among a law and those inside it; None if there is none."""
    if isinstance(law, per_step):
        return law
    return next((found for inner in law.inside() if (found := first_per_step(inner)) is not None), None)


def _parts_of(
    members: Iterable[tuple[Delay, np.ndarray]], seed: int, client: np.ndarray, trip: np.ndarray
) -> Parts:
    """The parts of trips (client [n], trip [n]) of which each follows one law: pairs (law, [n] bool who follows)."""
    client, trip = np.asarray(client), np.asarray(trip)
    columns = [
        np.full(len(client), np.nan) for _ in Parts._fields
    ]  # of a client without a law, which is refused
    for law, follows in members:
        if follows.any():
            for column, part in zip(columns, law.parts(seed, client[follows], trip[follows]), strict=True):
                column[follows] = part
    return Parts(*columns)


def own_seed(law: Delay, seed: int, purpose: int) -> int:
    """A seed for draws of ``law`` alone: laws of its own kind inside it get others."""

    def levels(inner: Delay) -> int:
        """How deep laws of the same kind are nested."""
        return isinstance(inner, type(law)) + max(map(levels, inner.inside()), default=0)

    key = (abs(seed), int(seed < 0), purpose, levels(law))
    return int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0])


def _require_law(name: str, law: Any) -> None:
    require(isinstance(law, Delay), f"the delay's {name}", law, "a delay")


def _require_number(name: str, value: Any, fits: Callable[[float], bool], allowed: str) -> None:
    real_number(
        f"the delay's {name}", value, lambda number: bool(np.isfinite(number)) and fits(number), allowed
    )


def _require_same_clients(name: str, count: int, num_clients: int) -> None:
    require(
        count == num_clients,
        f"the number of clients in the delay's {name}",
        count,
        f"the number of clients of the experiment, {num_clients}",
    )


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
