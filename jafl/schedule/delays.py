"""Delays: how long a client trip takes, from download to upload, in units of simulated time.

A delay is a law that turns (seed, client, trip) into a duration. The draw is keyed by the three and by
nothing else, so a client's durations stay the same when clients are added or the algorithm changes. The
default is a fresh draw per trip; ``once_per_client`` turns any law into one draw per client.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from jafl.records import require
from jafl.schedule.draws import DURATION, keyed_uniform


@dataclasses.dataclass(frozen=True)
class Delay:
    """A law of durations. A new law is a subclass with its own ``quantile``."""

    def quantile(self, uniform: np.ndarray, client: np.ndarray) -> np.ndarray:
        """[n] float64 durations of ``client`` [n] at the probabilities ``uniform`` [n] in (0, 1)."""
        raise NotImplementedError

    def durations(self, seed: int, client: np.ndarray, trip: np.ndarray) -> np.ndarray:
        """[n] float64 durations of the trips (client [n], trip [n]), in units of simulated time."""
        return self.quantile(keyed_uniform(seed, DURATION, client, trip), client)

    def check_clients(self, num_clients: int) -> None:
        """Raises SettingError if the law is for another number of clients."""


@dataclasses.dataclass(frozen=True)
class constant(Delay):  # noqa: N801  (laws read as functions: delays.constant(1.0))
    """Every trip takes ``duration``; 0 is for synchronous rounds only."""

    duration: float = 1.0

    def __post_init__(self):
        _require_number("duration", self.duration, self.duration >= 0, "a finite number, at least 0")

    def quantile(self, uniform, client):
        return np.full(len(uniform), float(self.duration))


@dataclasses.dataclass(frozen=True)
class uniform(Delay):  # noqa: N801
    """Uniform on [low, high]."""

    low: float
    high: float

    def __post_init__(self):
        _require_number("low", self.low, self.low >= 0, "a finite number, at least 0")
        _require_number(
            "high", self.high, self.high >= self.low, f"a finite number, at least low ({self.low})"
        )

    def quantile(self, uniform, client):
        return self.low + (self.high - self.low) * uniform


@dataclasses.dataclass(frozen=True)
class half_normal(Delay):  # noqa: N801
    """|N(0, sigma)|, FedBuff's law (section 5); its mean is sigma * sqrt(2 / pi)."""

    sigma: float = 1.0

    def __post_init__(self):
        _require_number("sigma", self.sigma, self.sigma > 0, "a finite number above 0")

    def quantile(self, uniform, client):
        from scipy.special import ndtri

        # From below 0.5, as 0.5 + 0.5 * uniform can round to 1, whose quantile is infinite.
        return -self.sigma * ndtri(0.5 - 0.5 * uniform)


@dataclasses.dataclass(frozen=True)
class exponential(Delay):  # noqa: N801
    """Exponential with the given mean."""

    mean: float = 1.0

    def __post_init__(self):
        _require_number("mean", self.mean, self.mean > 0, "a finite number above 0")

    def quantile(self, uniform, client):
        return -self.mean * np.log1p(-uniform)


@dataclasses.dataclass(frozen=True)
class log_normal(Delay):  # noqa: N801
    """exp(N(mu, sigma)) with mu such that the mean is ``mean``; its median is mean * exp(-sigma**2 / 2)."""

    mean: float = 1.0
    sigma: float = 1.0

    def __post_init__(self):
        _require_number("mean", self.mean, self.mean > 0, "a finite number above 0")
        _require_number("sigma", self.sigma, self.sigma >= 0, "a finite number, at least 0")

    def quantile(self, uniform, client):
        from scipy.special import ndtri

        return self.mean * np.exp(self.sigma * ndtri(uniform) - 0.5 * self.sigma**2)


@dataclasses.dataclass(frozen=True, eq=False)
class proportional_to_examples(Delay):  # noqa: N801
    """Exponential with mean ``mean_per_example`` times the client's number of examples (FedBuff, figure 7).

    num_examples: [N] integers, for example ``federation.num_examples``.
    """

    num_examples: np.ndarray
    mean_per_example: float = 1.0

    def __post_init__(self):
        mean = self.mean_per_example
        _require_number("mean_per_example", mean, mean > 0, "a finite number above 0")
        require(np.min(self.num_examples) > 0, "num_examples", self.num_examples, "above 0 for every client")

    def quantile(self, uniform, client):
        return -self.mean_per_example * np.asarray(self.num_examples)[client] * np.log1p(-uniform)

    def check_clients(self, num_clients):
        _require_same_clients("num_examples", len(self.num_examples), num_clients)


@dataclasses.dataclass(frozen=True)
class groups(Delay):  # noqa: N801
    """Groups of clients with laws of their own, numbered in order: clients 0.. follow the first law.

    members: pairs (number of clients, law), for example ``((10, uniform(1, 2)), (5, uniform(8, 12)))``,
    FedStaleWeight's ten fast and five slow clients (section 6.2).
    """

    members: Sequence[tuple[int, Delay]]

    def __post_init__(self):
        require(len(self.members) > 0, "members", self.members, "at least one pair (number of clients, law)")
        for count, law in self.members:
            require(count >= 1 and isinstance(law, Delay), "members", (count, law), "(clients >= 1, a delay)")

    def durations(self, seed, client, trip):
        client, trip = np.asarray(client), np.asarray(trip)
        last = np.cumsum([count for count, _ in self.members])
        group = np.searchsorted(last, client, side="right")
        durations = np.full(len(client), np.nan)  # what a client of no group would get is refused
        for number, (_, law) in enumerate(self.members):
            mine = group == number
            durations[mine] = law.durations(seed, client[mine], trip[mine])
        return durations

    def check_clients(self, num_clients):
        _require_same_clients("members", sum(count for count, _ in self.members), num_clients)
        for _, law in self.members:  # they see the client's number in the whole experiment
            law.check_clients(num_clients)


@dataclasses.dataclass(frozen=True)
class once_per_client(Delay):  # noqa: N801
    """``law`` drawn once per client: every trip of a client takes the same time."""

    law: Delay

    def __post_init__(self):
        require(isinstance(self.law, Delay), "the delay's law", self.law, "a delay")

    def durations(self, seed, client, trip):
        return self.law.durations(seed, client, np.zeros_like(trip))

    def check_clients(self, num_clients):
        self.law.check_clients(num_clients)


def _require_number(name: str, value: float, condition: bool, allowed: str) -> None:
    require(condition and np.isfinite(value), f"the delay's {name}", value, allowed)


def _require_same_clients(name: str, count: int, num_clients: int) -> None:
    require(
        count == num_clients,
        f"the number of clients in the delay's {name}",
        count,
        f"the number of clients of the experiment, {num_clients}",
    )


DELAYS = {
    law.__name__: law
    for law in (constant, uniform, half_normal, exponential, log_normal, proportional_to_examples, groups)
}
