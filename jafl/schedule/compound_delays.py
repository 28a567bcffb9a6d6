"""Laws of trip durations that are made of other laws, and may be nested."""

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from jafl.base.errors import is_number, is_whole_number, require, true_or_false, whole_number
from jafl.schedule.delay import Delay, Parts, require_number, require_same_clients
from jafl.schedule.draws import keyed_uniform

# Purposes of draws, beside those in draws.py; these begin at 20, so that no number stands for two purposes.
SLOW, DOWNLOAD, UPLOAD = 20, 21, 22


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
        require_same_clients("members", sum(count for count, _ in self.members), num_clients)
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
        require_number("fraction", self.fraction, lambda value: 0 <= value <= 1, "at least 0 and at most 1")

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
                require_number(name, size, lambda value: value >= 0, "a finite number, at least 0")
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
        require_number("share", self.share, lambda value: 0 < value <= 1, "above 0 and at most 1")
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
