"""What every law of trip durations is: a function of (seed, client, trip), in units of simulated time."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from jafl.base.errors import SettingError, real_number, refusal, require
from jafl.base.given_arrays import as_array
from jafl.schedule.draws import DURATION, keyed_uniform

# Sums of so long durations stay finite, and so do their squares and ratios.
LONGEST = 1e100
IS_A_DURATION = f"a finite number above 0, at most {LONGEST:g}"


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
    durations = numeric_array(f"durations of the delay {name}", values, remedy)
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


def numeric_array(name: str, values: Any, remedy: str) -> np.ndarray:
    """``values`` as an array; SettingError with this remedy, too, for what is none of numbers."""
    try:
        return as_array(name, values)
    except SettingError as error:
        remedies = f"{error.remedy} {remedy}".lstrip()
        raise (
            refusal(error.setting, error.value, error.allowed, remedies) if error.allowed else error
        ) from None


def is_duration(value: float) -> bool:
    """Whether ``value`` can be waited for: it is above 0, and no clock overflows by it."""
    return 0 < value <= LONGEST


def require_number(name: str, value: Any, fits: Callable[[float], bool], allowed: str) -> None:
    real_number(
        f"the delay's {name}", value, lambda number: bool(np.isfinite(number)) and fits(number), allowed
    )


def require_same_clients(name: str, count: int, num_clients: int) -> None:
    require(
        count == num_clients,
        f"the number of clients in the delay's {name}",
        count,
        f"the number of clients of the experiment, {num_clients}",
    )
