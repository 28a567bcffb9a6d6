"""The arguments of the event loop: the world in which clients live, and the protocol by which they are started."""

import dataclasses
from collections.abc import Callable, Iterator

import numpy as np

from jafl.schedule.availability import Availability
from jafl.schedule.delay import Delay
from jafl.schedule.dropout import Dropout

RESTARTS = ("at_once", "not_twice_in_a_buffer", "after_step", "after_round")
TOO_STALE = ("drop", "cancel", "wait", "interrupt")
WAITS = ("wait", "interrupt")  # of these: the server waits for trips that a step would make too stale
REPLACE_LOST = ("at_once", "after_time_out", "after_step")


@dataclasses.dataclass(frozen=True)
class World:
    """What happens to clients, whatever the protocol: all of it keyed by seed, client and trip."""

    num_clients: int
    delay: Delay
    dropout: Dropout | None
    failure_rate: float
    availability: Availability | None
    seed: int


@dataclasses.dataclass(frozen=True)
class Protocol:
    """Who starts when, and when the server steps: the arguments of ``jafl.asynchronous`` of the same names."""

    concurrency: int
    buffer_size: int
    restart: str
    initial_round: bool = False
    cancel_at_step: bool = False
    staleness_limit: int | None = None
    too_stale: str = "drop"
    flush_after: float | None = None
    replace_lost: str = "at_once"
    trip_time_out: float | None = None
    most_trips: int | None = None
    smallest_gap: int = 0
    selection_shares: np.ndarray | None = None  # [N] float64, of replacements; None where all are alike
    step_when: str = "buffer_full"
    step_every: float | None = None
    dynamic_local_steps: int | None = None  # the fewest, where clients' speeds decide
    start_rate: float | None = None  # of open arrivals
    start_times: Callable[[], Iterator[float]] | None = None  # of open arrivals, which have no places
