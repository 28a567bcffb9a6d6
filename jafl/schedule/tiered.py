"""FedAT's tiers: clients of like speed make synchronous rounds, each tier at its own pace (Chai et al., SC 2021)."""

import heapq
import os
from collections.abc import Sequence

import numpy as np

from jafl.base.described import described
from jafl.base.errors import is_whole_number, require, whole_number
from jafl.base.given_arrays import as_array
from jafl.records import EventSchedule
from jafl.schedule.arguments import as_delay
from jafl.schedule.checks import check_delay_and_seed, steps_within
from jafl.schedule.columns import Trip, TripColumns, discarded_trips, inflight_trips
from jafl.schedule.delay import Delay
from jafl.schedule.draws import SELECTION, generator
from jafl.schedule.durations import Durations, draw_durations, on_a_clock_that_moves


@described
def tiered(
    *,
    num_clients: int,
    cohort_size: int,
    tiers: int | Sequence[int] | np.ndarray = 5,
    delay: Delay | str | os.PathLike[str],
    server_steps: int | None = None,
    client_trips: int | None = None,
    seed: int = 0,
) -> EventSchedule:
    """Computes the event schedule of FedAT: tiers of like speed make synchronous rounds, each at its own pace.

    In each tier ``cohort_size`` clients, drawn uniformly among those of the tier, download the newest global model
    and train. When all of them have arrived, the server makes a step from their updates, and the tier's next round
    begins with the model that it has made (Chai et al., "FedAT: A High-Performance and Communication-Efficient
    Federated Learning System with Asynchronous Tiers", SC 2021). Rounds that are over at one instant make their steps
    in the order of the tiers; then all of these tiers begin their next rounds, from the newest version.

    Use it with ``jafl.rules.fedat``, which keeps a model of each tier and gives slow tiers the larger weights.

    Args:
      num_clients: N, all clients.
      cohort_size: how many clients train in each round of a tier, from 1 to the size of the smallest tier.
      tiers: how many tiers there are, into which clients are sorted by how long their first trips take, as equal in
        size as possible (a reading: these durations stand for the profile that the server makes before training); or
        [N] the tier of each client, from 0, the fastest, on.
      delay: the law of trip durations, see ``jafl.delays``; or a file of recorded ones.
      server_steps: stop after so many server steps, or
      client_trips: after as many whole rounds as so many trips allow. Exactly one of the two.
      seed: determines the durations, and the cohorts.

    Returns:
      The schedule, with ``tier``. Trips are in order of arrival within a step, but not from step to step, since
      rounds overlap. Those of rounds that are not over count as under way at the end.

    Raises:
      SettingError: for a number outside its range, a tier without clients, or a delay with durations that are
        negative, not finite, or always 0 for some client.

    Examples:
      >>> delay = jafl.delays.from_function(lambda client, trip: 1.0 + 1.5 * client)
      >>> schedule = jafl.tiered(num_clients=4, cohort_size=2, tiers=2, delay=delay, server_steps=4)
      >>> schedule.client.tolist(), schedule.step_time.tolist()
      ([0, 1, 0, 1, 2, 3, 0, 1], [2.5, 5.0, 5.5, 7.5])
    """
    law = as_delay(delay)
    whole_number("num_clients", num_clients, 1)
    check_delay_and_seed(law, seed)
    law.check_clients(num_clients)
    tier = _tier_of_each_client(tiers, num_clients, law, seed)
    smallest = int(np.bincount(tier).min())
    fits = is_whole_number(cohort_size) and 1 <= cohort_size <= smallest
    remedy = "Lower cohort_size, or take fewer tiers."
    allowed = f"between 1 and {smallest}, the clients of the smallest tier"
    require(fits, "cohort_size", cohort_size, allowed, remedy)
    steps = steps_within(server_steps, client_trips, trips_per_step=cohort_size, setting="cohort_size")
    durations = Durations(law, seed, num_clients, (steps + int(tier.max()) + 1) * cohort_size)
    return on_a_clock_that_moves(_Tiers(tier, cohort_size, durations, seed).run(steps), law, seed)


def _tier_of_each_client(
    tiers: int | Sequence[int] | np.ndarray, clients: int, law: Delay, seed: int
) -> np.ndarray:
    """[N] int32: as given, or by the durations of first trips; SettingError for what gives none."""
    if is_whole_number(tiers):
        fits = 1 <= tiers <= clients
        require(
            fits, "tiers", tiers, f"between 1 and the number of clients, {clients}, or one for each client"
        )
        profile = draw_durations(law, seed, np.arange(clients), np.zeros(clients, np.int64))
        tier = np.empty(clients, np.int32)
        for number, members in enumerate(np.array_split(np.argsort(profile, kind="stable"), int(tiers))):
            tier[members] = number
        return tier
    given = as_array("tiers", tiers)
    fits = given.dtype.kind in "iu" and given.shape == (clients,) and given.min() >= 0
    require(fits, "tiers", tiers, f"a number of tiers, or one for each of the {clients} clients, from 0 on")
    # Among as many numbers as there are clients: a number far beyond them takes no memory.
    present = np.unique(given)
    missing = np.flatnonzero(present != np.arange(len(present)))
    if missing.size:
        remedy = "Number the tiers without gaps, the fastest 0."
        require(
            False, "tiers", tiers, f"such that each tier has clients (tier {missing[0]} has none)", remedy
        )
    return given.astype(np.int32)


class _Tiers:
    """The rounds under way; ``run`` makes the schedule."""

    def __init__(self, tier: np.ndarray, cohort_size: int, durations: Durations, seed: int):
        self._tier, self._cohort_size, self._durations = tier, cohort_size, durations
        self._members = [np.flatnonzero(tier == number) for number in range(int(tier.max()) + 1)]
        self._random = generator(seed, SELECTION)
        self._trips_made = [0] * len(tier)
        self._rounds: list[tuple[float, int, list[Trip]]] = []  # a heap of (when it is over, tier, trips)

    def run(self, steps: int) -> EventSchedule:
        """The schedule of so many server steps."""
        arrived, step_time = TripColumns(), list[float]()
        for number in range(len(self._members)):
            self._begin(number, 0.0, 0)
        while len(step_time) < steps:
            now, over = self._rounds[0][0], list[int]()
            while self._rounds and self._rounds[0][0] == now and len(step_time) < steps:
                _, number, trips = heapq.heappop(self._rounds)
                arrived.recent.extend(trips)
                step_time.append(now)
                over.append(number)
            arrived.store_block()
            for number in over:
                self._begin(number, now, len(step_time))
        rest = sorted((trip[1:] for _, _, trips in self._rounds for trip in trips))
        return EventSchedule(
            **arrived.first(len(arrived)),
            step=np.repeat(np.arange(steps, dtype=np.int32), self._cohort_size),
            step_time=np.array(step_time, np.float64),
            **inflight_trips(*zip(*rest, strict=True)),
            **discarded_trips(),
            num_clients=len(self._tier),
            concurrency=self._cohort_size * len(self._members),
            tier=self._tier,
        )

    def _begin(self, number: int, now: float, version: int) -> None:
        """A round of a tier begins, with clients that are drawn."""
        chosen = self._random.choice(self._members[number], self._cohort_size, replace=False, shuffle=False)
        trips = []
        for client in chosen.tolist():
            trip = self._trips_made[client]
            self._trips_made[client] += 1
            trips.append((now + self._durations(client, trip), client, trip, version, now))
        trips.sort()
        heapq.heappush(self._rounds, (trips[-1][0], number, trips))
