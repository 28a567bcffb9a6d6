"""How stale updates are, and how many clients train, in the course of a schedule."""

from typing import NamedTuple

import numpy as np

from jafl.base.errors import whole_number
from jafl.diagnostics.checks import Groups, check_has_trips, group_numbers
from jafl.records import EventSchedule
from jafl.schedule import counting


class StalenessOverTime(NamedTuple):
    """Staleness of the applied trips, in server steps, per group of clients and bin of server steps.

    Attributes:
      groups: [G] names.
      edges: [B + 1] int64; bin k holds the trips that the steps ``edges[k]:edges[k + 1]`` apply.
      trips: [G, B] int64.
      mean: [G, B] float64; NaN where a group has no trip, as in ``low`` and ``high``.
      low: [G, B] float64, the 5 % quantile, linear between trips as ``np.quantile``.
      high: [G, B] float64, the 95 % quantile.
    """

    groups: tuple[str, ...]
    edges: np.ndarray
    trips: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


class InFlight(NamedTuple):
    """How many clients train, as a step function: ``clients[e]`` from ``time[e]`` until ``time[e + 1]``.

    Attributes:
      time: [E] float64, in units of simulated time, strictly increasing from 0.
      clients: [E] int64; the last one holds until the end of the run, ``schedule.step_time[-1]``.
    """

    time: np.ndarray
    clients: np.ndarray


def step_bins(schedule: EventSchedule, bins: int) -> np.ndarray:
    """The edges of ``bins`` ranges of server steps that are as equal as possible.

    Args:
      schedule: the event schedule.
      bins: their number; there are no more than server steps.

    Returns:
      [B + 1] int64, in server steps.

    Raises:
      SettingError: for bins below 1, or a schedule without applied trips.

    Examples:
      >>> schedule = jafl.synchronous(
      ...     num_clients=5, cohort_size=2, delay=jafl.delays.constant(1.0), server_steps=3
      ... )
      >>> jafl.diagnostics.step_bins(schedule, 2)
      array([0, 1, 3])
    """
    whole_number("bins", bins, 1)
    check_has_trips(schedule)
    count = min(bins, schedule.num_steps)
    return np.arange(count + 1) * schedule.num_steps // count


def staleness_over_time(
    schedule: EventSchedule, bins: int = 100, groups: Groups | None = None
) -> StalenessOverTime:
    """Mean and quantiles of the staleness in each of ``bins`` ranges of server steps.

    Args:
      schedule: the event schedule.
      bins: ranges of server steps.
      groups: {name: its clients}; clients without a group are left out, and none may be in two. Default: one group of
        all clients.

    Returns:
      The ``StalenessOverTime``.

    Raises:
      SettingError: for bins below 1, a schedule without applied trips, or groups that name no client, an unknown one
        or one twice.

    Examples:
      >>> schedule = jafl.synchronous(
      ...     num_clients=5, cohort_size=2, delay=jafl.delays.constant(1.0), server_steps=3
      ... )
      >>> jafl.diagnostics.staleness_over_time(schedule, bins=3).mean
      array([[0., 0., 0.]])
    """
    edges = step_bins(schedule, bins)
    names, number = group_numbers(groups, schedule.num_clients)
    count = len(edges) - 1
    trips_per_bin = np.diff(np.searchsorted(schedule.step, edges))
    cell = number[schedule.client] * count + np.repeat(np.arange(count), trips_per_bin)
    staleness = schedule.staleness.astype(np.int64)
    if (number < 0).any():
        named = number[schedule.client] >= 0
        cell, staleness = cell[named], staleness[named]

    cells = len(names) * count
    trips = np.bincount(cell, minlength=cells)
    total = np.bincount(cell, staleness, minlength=cells)
    span = int(staleness.max(initial=0)) + 1
    in_order = np.sort(cell * span + staleness) % span  # cell by cell, each in order of staleness
    first = np.cumsum(trips) - trips
    mean = np.divide(total, trips, out=np.full(cells, np.nan), where=trips > 0)
    columns = (trips, mean, *(_quantile(in_order, first, trips, q) for q in (0.05, 0.95)))
    return StalenessOverTime(names, edges, *(column.reshape(len(names), count) for column in columns))


def _quantile(in_order: np.ndarray, first: np.ndarray, sizes: np.ndarray, probability: float) -> np.ndarray:
    """[cells]: a quantile of each sorted run ``in_order[first:first + size]``; NaN for an empty one."""
    filled = sizes > 0
    place = first[filled] + probability * (sizes[filled] - 1)
    before = np.floor(place).astype(np.int64)
    after = np.ceil(place).astype(np.int64)
    values = np.full(len(sizes), np.nan)
    values[filled] = in_order[before] + (place - before) * (in_order[after] - in_order[before])
    return values


def in_flight(schedule: EventSchedule) -> InFlight:
    """How many clients train at each moment, also in trips that are discarded or under way at the end.

    At one instant all that ends and starts is counted together, so a trip that takes no time never shows, and
    where every finished client is replaced at once the count is always the concurrency.

    Args:
      schedule: the event schedule.

    Returns:
      The count as a step function of simulated time: ``InFlight``.

    Examples:
      >>> schedule = jafl.synchronous(
      ...     num_clients=5, cohort_size=2, delay=jafl.delays.constant(1.0), server_steps=3
      ... )
      >>> jafl.diagnostics.in_flight(schedule).clients
      array([2, 0])
    """
    moments, clients = counting.in_flight(schedule)
    if not len(moments) or moments[0] > 0:  # nobody trains at first
        moments, clients = np.append(0.0, moments), np.append(0, clients)
    changes = np.concatenate([[True], clients[1:] != clients[:-1]])
    return InFlight(moments[changes], clients[changes])


def mean_in_flight(schedule: EventSchedule) -> float:
    """The mean of ``in_flight`` over simulated time, until the last server step.

    Args:
      schedule: the event schedule.

    Returns:
      Clients; 0 for a run that takes no time.

    Examples:
      >>> schedule = jafl.synchronous(
      ...     num_clients=5, cohort_size=2, delay=jafl.delays.constant(1.0), server_steps=3
      ... )
      >>> jafl.diagnostics.mean_in_flight(schedule)
      2.0
    """
    time, clients = in_flight(schedule)
    end = float(schedule.step_time[-1]) if schedule.num_steps else 0.0
    return float(np.sum(clients * np.diff(np.append(time, end).clip(max=end))) / end) if end > 0 else 0.0
