"""How many local steps trips make, where a protocol says it: the same for all, by client, drawn, or by speed."""

import bisect
import dataclasses
import functools
import math
import numbers
from typing import Any

import numpy as np

from jafl.base.errors import require, whole_number
from jafl.base.given_arrays import as_array
from jafl.records import EventSchedule
from jafl.schedule.compound_delays import own_seed
from jafl.schedule.delay import Delay
from jafl.schedule.draws import LOCAL_STEPS
from jafl.schedule.durations import Durations, PartsTable, Table, fast_view


def check_local_steps(local_steps: Any, num_clients: int) -> None:
    """Raises SettingError unless ``local_steps`` is None, a number, one for each client, or a law."""
    if local_steps is None:
        return
    if isinstance(local_steps, Delay):
        local_steps.check_clients(num_clients)
        return
    if isinstance(local_steps, numbers.Integral):
        whole_number("local_steps", local_steps, 1)
        return
    steps = as_array("local_steps", local_steps)
    fits = steps.dtype.kind in "iu" and steps.shape == (num_clients,)
    allowed = f"a whole number, one for each of the {num_clients} clients, or a law of jafl.delays"
    require(fits, "local_steps", local_steps, allowed)
    wrong = np.flatnonzero((steps < 0) | (steps >= 2**31))
    if wrong.size:
        allowed = "at least 0, and below 2**31"
        require(False, f"local_steps of client {wrong[0]}", int(steps[wrong[0]]), allowed)
    require(steps.any(), "local_steps", local_steps, "above 0 for some client", "Nobody would train.")


@dataclasses.dataclass(frozen=True, eq=False)
class DelayOfSteps(Delay):
    """The durations of ``law`` for trips whose local steps depend on (seed, client, trip) alone.

    Args:
      law: the delay.
      local_steps: checked, see ``check_local_steps``; a law's draws are rounded down.
    """

    law: Delay
    local_steps: Any

    def inside(self) -> tuple[Delay, ...]:
        return (self.law,)

    def durations(self, seed: int, client: np.ndarray, trip: np.ndarray) -> np.ndarray:
        return self.law.parts(seed, client, trip).of_steps(self.steps(seed, client, trip))

    def steps(self, seed: int, client: np.ndarray, trip: np.ndarray) -> np.ndarray:
        """[n] int32: how many local steps the trips (client [n], trip [n]) make."""
        client = np.asarray(client)
        if not isinstance(self.local_steps, Delay):
            given = np.asarray(self.local_steps, np.int32)
            return np.broadcast_to(given, client.shape) if given.ndim == 0 else given[client]
        # With a seed of their own: else a trip of many steps would be a slow one wherever both follow one law.
        drawn = self.local_steps.durations(own_seed(self, seed, LOCAL_STEPS), client, trip)
        wrong = np.flatnonzero(~((drawn >= 0) & (drawn < 2**31)))
        if wrong.size:
            j = wrong[0]
            name = f"the local_steps of client {client[j]}, trip {trip[j]}"
            require(False, name, float(drawn[j]), "at least 0, and below 2**31")
        return np.floor(drawn).astype(np.int32)

    def __repr__(self) -> str:
        return repr(self.law)


def with_local_steps(schedule: EventSchedule, law: Delay, seed: int) -> EventSchedule:
    """The schedule with the local steps of its trips, where its durations are those of a ``DelayOfSteps``."""
    if not isinstance(law, DelayOfSteps):
        return schedule
    steps = schedule.local_steps
    if steps is None:
        steps = np.asarray(law.steps(seed, schedule.client, schedule.trip), np.int32)
    remedy = "No trip would change the model: give a law of larger numbers."
    require(steps.any() or not len(steps), "local_steps", law.local_steps, "1 or more in some trip", remedy)
    return dataclasses.replace(schedule, local_steps=np.array(steps))


class LocalStepsByTrip:
    """The local steps of trips that may be interrupted: how many each makes, and how long it takes by that.

    In the place of a table of durations in the event loop: it is called when a trip starts, and told when one ends.

    Args:
      law: of the durations.
      seed: of the draws.
      num_clients: N.
      trips: about how many there will be.
    """

    block, first = 0, ()  # of ``Table``, which looks up first trips there

    def __init__(self, law: DelayOfSteps, seed: int, num_clients: int, trips: int):
        Durations(law, seed, num_clients, 1)  # refuses one that is always 0 for some client
        self._parts = PartsTable(law.law, seed, num_clients, trips)
        self._given = Table(functools.partial(law.steps, seed), num_clients, trips)
        self._steps: list[list[int]] = [[] for _ in range(num_clients)]

    def __call__(self, client: int, trip: int) -> float:
        """The duration of a trip that starts now; decides how many local steps it makes."""
        self._steps[client].append(self._decide(client, trip))
        return self._duration(client, trip)

    def _decide(self, client: int, trip: int) -> int:
        return int(self._given(client, trip))

    def _duration(self, client: int, trip: int) -> float:
        return float(self._parts(client, trip).of_steps(self._steps[client][trip]))

    def interrupt(self, client: int, trip: int, start: float, now: float) -> float:
        """Ends a trip under way with its current local step; returns its duration.

        Before the first step that is the first one, and where a step ends now the next: so no trip comes to end now.
        """
        before, each_step, _ = map(float, self._parts(client, trip))
        steps = self._steps[client]
        if each_step:  # else it would end no sooner
            ended = bisect.bisect_right(
                range(1, steps[trip]), now, key=lambda step: start + (before + step * each_step)
            )
            steps[trip] = min(ended + 1, steps[trip])
        return self._duration(client, trip)

    def end(self, client: int) -> None:
        """This client's last trip has arrived, be its update taken or too stale."""

    def of(self, client: np.ndarray, trip: np.ndarray) -> np.ndarray:
        """[n] int32: how many local steps the trips (client [n], trip [n]) make, which have started."""
        return np.array([self._steps[c][t] for c, t in zip(client, trip, strict=True)], np.int32)


class DynamicLocalSteps(LocalStepsByTrip):
    """Dynamic local updates (DyLU): a client makes local steps in proportion to its speed, as the server has seen it.

    Args:
      law: of the durations, with the local steps of the fastest client and of those of which no trip has ended yet.
      seed: of the draws.
      num_clients: N.
      trips: about how many there will be.
      least: local steps of the slowest.
    """

    def __init__(self, law: DelayOfSteps, seed: int, num_clients: int, trips: int, *, least: int):
        super().__init__(law, seed, num_clients, trips)
        self._least = least
        self._speed = np.zeros(num_clients)  # local steps in a unit of time; 0: not seen yet
        self._view = fast_view(self._speed)
        self._fastest = 0.0

    def _decide(self, client: int, trip: int) -> int:
        most, speed = super()._decide(client, trip), self._view[client]
        # Rounded first: a quotient of speeds that is 1 / 2 but for rounding is 1 / 2.
        return max(self._least, math.floor(round(most * speed / self._fastest, 9))) if speed else most

    def end(self, client: int) -> None:
        """This client's last trip has arrived: the server has seen how long it took."""
        trip = len(self._steps[client]) - 1
        steps, duration = self._steps[client][trip], self._duration(client, trip)
        if duration > 0:
            before, self._view[client] = self._view[client], steps / duration
            # The fastest may have become slower.
            slower = before == self._fastest and self._view[client] < before
            self._fastest = float(self._speed.max()) if slower else max(self._fastest, self._view[client])
