"""Permanent dropout: clients that leave for ever (ACE, figure 3)."""

import dataclasses
import math
from collections.abc import Iterable, Sequence

import numpy as np

from jafl.base.described import described
from jafl.base.errors import real_number, require, whole_number
from jafl.schedule.draws import LEAVING, keyed_uniform


@described
def fraction(
    fraction: float, *, server_step: int | None = None, time: float | None = None, trips: int | None = None
) -> "Dropout":
    """A share of the clients leaves for ever, at one moment (ACE, figure 3).

    Args:
      fraction: of all clients, from 0 to 1.
      server_step, time, trips: when: after so many server steps, at this simulated time, or each after so many trips
        of its own. Exactly one of the three.

    Returns:
      The dropout.

    Examples:
      >>> len(jafl.dropout.fraction(0.5, time=10.0).leavers(num_clients=6, seed=0))
      3
    """
    return Dropout(fraction=fraction, server_step=server_step, time=time, trips=trips)


@described
def clients(
    numbers: Sequence[int],
    *,
    server_step: int | None = None,
    time: float | None = None,
    trips: int | None = None,
) -> "Dropout":
    """These clients leave for ever, at one moment.

    Args:
      numbers: of the clients, from 0 on.
      server_step, time, trips: when, as of ``fraction``. Exactly one of the three.

    Returns:
      The dropout.

    Examples:
      >>> sorted(jafl.dropout.clients([3, 1], trips=2).leavers(num_clients=6, seed=0))
      [1, 3]
    """
    return Dropout(clients=numbers, server_step=server_step, time=time, trips=trips)


def nobody() -> None:
    """No client leaves: None, as which this is meant everywhere.

    Examples:
      >>> print(jafl.dropout.nobody())
      None
    """


@dataclasses.dataclass(frozen=True)
class Dropout:
    """Some of the clients leave for ever at one moment; their trips under way are thrown away.

    Args:
      fraction: of all clients, rounded to whole clients, which the schedule's seed draws; or
      clients: numbers of the clients that leave. Exactly one of the two.
      server_step: they leave when the server has taken so many steps, or
      time: at this simulated time, after the arrivals of that moment and before anyone starts, or
      trips: each of them after so many trips of its own, those that were thrown away included. Exactly one of the
        three.

    Raises:
      SettingError: for a number outside its range, or unless exactly one of those that exclude each other is given.

    Examples:
      >>> sorted(jafl.Dropout(clients=[3, 1], time=5.0).leavers(num_clients=10, seed=0))
      [1, 3]
    """

    fraction: float | None = None
    clients: Sequence[int] | None = None
    server_step: int | None = None
    time: float | None = None
    trips: int | None = None

    def __post_init__(self) -> None:
        for names in (("fraction", "clients"), ("server_step", "time", "trips")):
            given = {name: value for name in names if (value := getattr(self, name)) is not None}
            allowed = "exactly one of them, as in fraction(0.5, time=10)"
            require(len(given) == 1, f"the dropout's {', '.join(names)}", given or "none of them", allowed)
        if self.fraction is not None:
            allowed = "at least 0 and at most 1"
            real_number("the dropout's fraction", self.fraction, lambda value: 0 <= value <= 1, allowed)
        if self.time is not None:
            allowed = "a finite number, at least 0"
            real_number("the dropout's time", self.time, lambda value: 0 <= value < math.inf, allowed)
        if self.clients is not None:
            several = isinstance(self.clients, Iterable) and not isinstance(self.clients, str)
            require(
                several, "the dropout's clients", self.clients, "a list of client numbers, [3] for example"
            )
        for name in ("server_step", "trips"):
            if getattr(self, name) is not None:
                whole_number(f"the dropout's {name}", getattr(self, name), 1)

    def leavers(self, num_clients: int, seed: int) -> frozenset[int]:
        """The clients that leave; SettingError for one that does not exist."""
        if self.clients is not None:
            for client in self.clients:
                fits = whole_number("a client of the dropout", client, 0) < num_clients
                require(
                    fits, "a client of the dropout", client, f"below the number of clients, {num_clients}"
                )
            return frozenset(int(client) for client in self.clients)
        count = round((self.fraction or 0.0) * num_clients)
        draws = keyed_uniform(seed, LEAVING, np.arange(num_clients), np.zeros(num_clients, np.int64))
        return frozenset(np.argsort(draws, kind="stable")[:count].tolist())


__all__ = ["clients", "fraction", "nobody"]
__dir__ = __all__.copy  # for ``dir`` and for completion at a prompt
