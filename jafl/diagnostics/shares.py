"""How often clients take part, how much they count, and how unequal that is."""

from typing import Any

import numpy as np

from jafl.base.errors import require, whole_number
from jafl.diagnostics.checks import Groups, check_has_trips, float_array, group_numbers, per_client, per_trip
from jafl.records import EventSchedule, check_schedule


def participation(schedule: EventSchedule) -> np.ndarray:
    """How many trips of each client were applied.

    Args:
      schedule: the event schedule.

    Returns:
      [N] int64.

    Examples:
      >>> schedule = jafl.synchronous(
      ...     num_clients=2, cohort_size=2, delay=jafl.delays.constant(1.0), server_steps=3
      ... )
      >>> jafl.diagnostics.participation(schedule)
      array([3, 3])
    """
    check_schedule(schedule)
    return np.bincount(schedule.client, minlength=schedule.num_clients)


def influence(schedule: EventSchedule, weights: np.ndarray | None = None) -> np.ndarray:
    """Each client's share of all weight that the applied trips were given.

    This is alpha_i p_i of FedStaleWeight (equations 2 and 3), scaled to sum to 1 as equation 3 demands.

    Args:
      schedule: the event schedule.
      weights: [J], one per applied trip. Default: all trips count the same.

    Returns:
      [N] float64, sums to 1; all 0 if the weights sum to 0.

    Raises:
      SettingError: for weights of another shape, or not finite.

    Examples:
      >>> schedule = jafl.synchronous(
      ...     num_clients=2, cohort_size=2, delay=jafl.delays.constant(1.0), server_steps=3
      ... )
      >>> jafl.diagnostics.influence(schedule)
      array([0.5, 0.5])
    """
    total = np.bincount(schedule.client, per_trip(weights, schedule), minlength=schedule.num_clients)
    everything = total.sum()
    return total / everything if everything else np.zeros(schedule.num_clients)


def client_staleness(schedule: EventSchedule) -> np.ndarray:
    """Mean staleness of each client's applied trips.

    Where finished clients are replaced at once by themselves, FedStaleWeight's equation 6 gives its limit:
    (sum_j r_j / r_i - 1) / K for clients that finish at the rates r.

    Args:
      schedule: the event schedule.

    Returns:
      [N] float64, in server steps; NaN for a client without applied trips.

    Examples:
      >>> schedule = jafl.synchronous(
      ...     num_clients=2, cohort_size=2, delay=jafl.delays.constant(1.0), server_steps=3
      ... )
      >>> jafl.diagnostics.client_staleness(schedule)
      array([0., 0.])
    """
    trips = participation(schedule)
    total = np.bincount(schedule.client, schedule.staleness, minlength=schedule.num_clients)
    return np.divide(total, trips, out=np.full(schedule.num_clients, np.nan), where=trips > 0)


def equation_8_weights(schedule: EventSchedule) -> np.ndarray:
    """FedStaleWeight's weights E[tau_i] * K + 1 (equation 8 without its 1/n), before normalization.

    E[tau_i] is the client's mean staleness over the whole schedule, the limit of the algorithm's running mean; K is
    the number of trips of the step. With these weights clients count the same where all are in flight, which equation
    6 assumes; with a concurrency below the number of clients only nearly so.

    Args:
      schedule: the event schedule.

    Returns:
      [J] float64, one per applied trip.

    Examples:
      >>> schedule = jafl.synchronous(
      ...     num_clients=2, cohort_size=2, delay=jafl.delays.constant(1.0), server_steps=2
      ... )
      >>> jafl.diagnostics.equation_8_weights(schedule)
      array([1., 1., 1., 1.])
    """
    size = np.diff(schedule.step_offsets)
    return client_staleness(schedule)[schedule.client] * size[schedule.step] + 1


def normalized_within_steps(schedule: EventSchedule, weights: np.ndarray) -> np.ndarray:
    """``weights`` divided by their sum over the trips of the same server step.

    FedStaleWeight's algorithm 1 does so, after which clients no longer count the same: the large weight of a slow
    client is divided by a sum that contains it.

    Args:
      schedule: the event schedule.
      weights: [J], one per applied trip.

    Returns:
      [J] float64; unchanged in a step whose weights sum to 0.

    Raises:
      SettingError: for another shape, or weights that are not finite.

    Examples:
      >>> schedule = jafl.synchronous(
      ...     num_clients=2, cohort_size=2, delay=jafl.delays.constant(1.0), server_steps=1
      ... )
      >>> jafl.diagnostics.normalized_within_steps(schedule, [1.0, 3.0])
      array([0.25, 0.75])
    """
    trip_weights = per_trip(weights, schedule)
    total = np.bincount(schedule.step, trip_weights, minlength=schedule.num_steps)
    return trip_weights / np.where(total == 0, 1, total)[schedule.step]


def fairness_loss(shares: Any) -> float:
    """FedStaleWeight's objective sum_i |shares_i - 1/n| (equation 3), 0 if all clients count the same.

    Args:
      shares: [n], each client's alpha_i p_i: p_i is its share of the applied trips (equation 2), alpha_i the weight
        of each of them. ``influence`` gives them for weights before and after normalization within the buffer.

    Returns:
      A number from 0 on.

    Raises:
      SettingError: unless the shares are a list of at least one number.

    Examples:
      >>> jafl.diagnostics.fairness_loss([0.25, 0.75])
      0.5
    """
    values = _numbers("shares", shares)
    return float(np.sum(np.abs(values - 1 / len(values))))


def gini(values: Any) -> float:
    """The Gini index: half the mean difference between two of the values, over their mean (Gini 1912).

    Args:
      values: [n] numbers, at least 0.

    Returns:
      0 if all values are equal, (n - 1)/n if all but one are 0.

    Raises:
      SettingError: for a negative value, or no value.

    Examples:
      >>> jafl.diagnostics.gini([0.0, 0.0, 0.0, 8.0])
      0.75
    """
    rising = np.sort(_numbers("values", values, not_negative=True))
    count, total = len(rising), rising.sum()
    if total == 0:
        return 0.0
    return float(np.sum((2 * np.arange(1, count + 1) - count - 1) * rising) / (count * total))


def jain(values: Any) -> float:
    """Jain's fairness index, (sum x)^2 / (n sum x^2) (Jain, Chiu and Hawe 1984).

    Args:
      values: [n] numbers x, at least 0.

    Returns:
      1 if all values are equal, 1/n if all but one are 0.

    Raises:
      SettingError: for a negative value, or no value.

    Examples:
      >>> jafl.diagnostics.jain([0.0, 0.0, 0.0, 8.0])
      0.25
    """
    array = _numbers("values", values, not_negative=True)
    if not array.any():
        return 1.0
    array = array / array.max()  # so that no square underflows or overflows
    return float(array.sum() ** 2 / (len(array) * np.sum(array**2)))


def of_fair_share(schedule: EventSchedule, shares: Any, groups: Groups | None = None) -> dict[str, float]:
    """The mean share of each group's clients, in units of the fair share, 1/N.

    Args:
      schedule: the event schedule.
      shares: [N], one per client, as from ``influence``.
      groups: {name: its clients}, as in ``staleness_over_time``. Default: one group of all clients.

    Returns:
      {name of the group: its mean}.

    Raises:
      SettingError: for shares of another shape, or groups as in ``staleness_over_time``.

    Examples:
      >>> schedule = jafl.synchronous(
      ...     num_clients=2, cohort_size=2, delay=jafl.delays.constant(1.0), server_steps=1
      ... )
      >>> jafl.diagnostics.of_fair_share(schedule, [0.25, 0.75], {"first": [0], "second": [1]})
      {'first': 0.5, 'second': 1.5}
    """
    client_shares = per_client("shares", shares, schedule)
    names, number = group_numbers(groups, schedule.num_clients)
    return {
        name: float(len(client_shares) * client_shares[number == place].mean())
        for place, name in enumerate(names)
    }


def _numbers(name: str, values: Any, not_negative: bool = False) -> np.ndarray:
    """``values`` [n] as an array; raises SettingError for another shape, or numbers not finite or negative."""
    array = float_array(name, values)
    require(array.ndim == 1 and array.size, f"the shape of {name}", array.shape, "(n,), n at least 1")
    require(np.isfinite(array).all(), name, array, "finite")
    least = array.min()
    require(not not_negative or least >= 0, f"the smallest of {name}", float(least), "at least 0")
    return array


def groups_by_speed(schedule: EventSchedule, parts: int = 3) -> dict[str, np.ndarray] | None:
    """The clients in groups of equal size, by the mean duration of their applied trips, the quickest first.

    Args:
      schedule: the event schedule.
      parts: the number of groups, at least 2.

    Returns:
      {name of the group: its clients}; clients without an applied trip are a group of their own. None where all
      clients that took part took the same time, or fewer than ``parts`` clients took part.

    Raises:
      SettingError: for parts below 2, or a schedule without applied trips.

    Examples:
      >>> delay = jafl.delays.from_function(lambda client, trip: 1.0 + client)
      >>> schedule = jafl.synchronous(num_clients=2, cohort_size=2, delay=delay, server_steps=1)
      >>> jafl.diagnostics.groups_by_speed(schedule, parts=2)
      {'quickest': array([0]), 'slowest': array([1])}
    """
    whole_number("parts", parts, 2)
    check_has_trips(schedule)
    trips = np.bincount(schedule.client, minlength=schedule.num_clients)
    duration = schedule.arrival_time - schedule.download_time
    total = np.bincount(schedule.client, duration, minlength=schedule.num_clients)
    took_part, absent = np.flatnonzero(trips), np.flatnonzero(trips == 0)
    mean = total[took_part] / trips[took_part]
    if len(took_part) < parts or mean.max() - mean.min() <= 1e-9 * mean.max():
        return None
    ranked = np.array_split(took_part[np.argsort(mean, kind="stable")], parts)
    middle = ["of middle speed"] if parts == 3 else [f"speed {n} of {parts}" for n in range(2, parts)]
    groups = dict(zip(["quickest", *middle, "slowest"], map(np.sort, ranked), strict=True))
    return groups | ({"without a trip": absent} if absent.size else {})
