"""Who takes part, who counts, and how unequal that is."""

from typing import Any

import numpy as np

from jafl.diagnostics.checks import Groups, check_has_trips, group_numbers, per_client, per_trip
from jafl.errors import require, whole_number
from jafl.records import EventSchedule


def participation(schedule: EventSchedule) -> np.ndarray:
    """[N] int64: applied trips of each client."""
    return np.bincount(schedule.client, minlength=schedule.num_clients)


def influence(schedule: EventSchedule, weights: np.ndarray | None = None) -> np.ndarray:
    """[N] float64: each client's share of all weight that its applied trips were given; sums to 1.

    This is alpha_i p_i of FedStaleWeight (equations 2 and 3), scaled to sum to 1 as equation 3 demands.

    weights: [J], one per applied trip; None counts every trip alike. All shares are 0 if the weights sum to 0.

    Raises SettingError for another shape, or weights that are not finite.
    """
    total = np.bincount(schedule.client, per_trip(weights, schedule), minlength=schedule.num_clients)
    everything = total.sum()
    return total / everything if everything else np.zeros(schedule.num_clients)


def client_staleness(schedule: EventSchedule) -> np.ndarray:
    """[N] float64: mean staleness (server steps) of each client's applied trips; NaN for a client without any.

    Where finished clients are replaced at once by themselves, FedStaleWeight's equation 6 says what it tends to:
    (sum_j r_j / r_i - 1) / K for clients that finish at the rates r.
    """
    trips = participation(schedule)
    total = np.bincount(schedule.client, schedule.staleness, minlength=schedule.num_clients)
    return np.divide(total, trips, out=np.full(schedule.num_clients, np.nan), where=trips > 0)


def equation_8_weights(schedule: EventSchedule) -> np.ndarray:
    """[J] float64: E[tau_i] * K + 1, FedStaleWeight's weights (equation 8 without its 1/n) before normalisation.

    E[tau_i] is the client's mean over the whole schedule, what the running mean of the algorithm tends to; K the
    trips of the step. With them clients count alike where all are in flight, which equation 6 assumes; with fewer
    places than clients only nearly so.
    """
    size = np.diff(schedule.step_offsets)
    return client_staleness(schedule)[schedule.client] * size[schedule.step] + 1


def normalized_within_steps(schedule: EventSchedule, weights: np.ndarray) -> np.ndarray:
    """[J] float64: ``weights`` [J] divided by their sum over the trips of the same server step.

    This is what FedStaleWeight's algorithm 1 does to them, after which clients no longer count alike: a slow
    client's large weight is divided by a sum that holds it. Where a step's weights sum to 0 they stay.

    Raises SettingError for another shape, or weights that are not finite.
    """
    given = per_trip(weights, schedule)
    total = np.bincount(schedule.step, given, minlength=schedule.num_steps)
    return given / np.where(total == 0, 1, total)[schedule.step]


def fairness_loss(shares: Any) -> float:
    """sum_i |shares_i - 1/n|, 0 if all clients count alike: FedStaleWeight's objective (equation 3).

    shares: [n], each client's alpha_i p_i: p_i its share of the applied trips (equation 2), alpha_i the weight of
    each of them. ``influence`` gives them for weights before and after normalisation within the buffer.

    Raises SettingError unless the shares are a list of at least one number.
    """
    values = _numbers("shares", shares)
    return float(np.sum(np.abs(values - 1 / len(values))))


def gini(values: Any) -> float:
    """The Gini index: half the mean difference of two of the ``values`` [n], over their mean (Gini 1912).

    0 if all are alike, (n - 1)/n if one has everything. Raises SettingError unless all are 0 or more.
    """
    rising = np.sort(_numbers("values", values, not_negative=True))
    count, total = len(rising), rising.sum()
    if total == 0:
        return 0.0
    return float(np.sum((2 * np.arange(1, count + 1) - count - 1) * rising) / (count * total))


def jain(values: Any) -> float:
    """Jain's fairness index, (sum x)^2 / (n sum x^2) of ``values`` [n] (Jain, Chiu and Hawe 1984).

    1 if all are alike, 1/n if one has everything. Raises SettingError unless all are 0 or more.
    """
    given = _numbers("values", values, not_negative=True)
    if not given.any():
        return 1.0
    given = given / given.max()  # so that no square underflows or overflows
    return float(given.sum() ** 2 / (len(given) * np.sum(given**2)))


def of_fair_share(schedule: EventSchedule, shares: Any, groups: Groups | None = None) -> dict[str, float]:
    """{group: the mean of its clients' ``shares`` [N], in units of the fair share, 1/N}.

    Raises SettingError for shares of another shape, or groups as in ``staleness_over_time``.
    """
    given = per_client("shares", shares, schedule)
    names, number = group_numbers(groups, schedule.num_clients)
    return {name: float(len(given) * given[number == place].mean()) for place, name in enumerate(names)}


def _numbers(name: str, values: Any, not_negative: bool = False) -> np.ndarray:
    array = np.asarray(values, np.float64)
    require(array.ndim == 1 and array.size, f"the shape of {name}", array.shape, "(n,), n at least 1")
    require(np.isfinite(array).all(), name, array, "finite")
    least = array.min()
    require(not not_negative or least >= 0, f"the smallest of {name}", float(least), "at least 0")
    return array


def groups_by_speed(schedule: EventSchedule, parts: int = 3) -> dict[str, np.ndarray] | None:
    """The clients in ``parts`` groups of equal size, by the mean duration of their applied trips, quickest first.

    Clients without an applied trip are a group of their own. None where all clients that took part took the same
    time, or fewer than ``parts`` of them took part.

    Raises SettingError for parts below 2, or a schedule without applied trips.
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
