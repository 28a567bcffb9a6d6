"""All scalar diagnostics of a schedule in one dictionary."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from jafl.base.errors import require
from jafl.diagnostics.checks import Groups, check_has_trips, group_numbers, per_trip
from jafl.diagnostics.costs import Costs
from jafl.diagnostics.examples import participating_examples, wasted
from jafl.diagnostics.labels import label_distance, labels_seen
from jafl.diagnostics.over_time import in_flight, mean_in_flight
from jafl.diagnostics.shares import fairness_loss, gini, influence, jain, of_fair_share
from jafl.records import EventSchedule

TRIPS = "client trips"  # the influence of clients where all trips count the same
PERCENTILES = (5, 25, 50, 75, 95, 99)


def summary(
    schedule: EventSchedule,
    *,
    num_examples: Any = None,
    label_counts: Any = None,
    weights: Mapping[str, np.ndarray] | None = None,
    groups: Groups | None = None,
    costs: Costs | None = None,
) -> dict[str, Any]:
    """The results of the other diagnostics as plain numbers that JSON can hold.

    None stands for what is undefined: indices of shares that are negative, or where all weights are 0.

    Args:
      schedule: the event schedule.
      num_examples: [N], examples of each client; adds ``examples``.
      label_counts: [N, C], examples of each class that each client holds; adds ``label_distance`` to every entry of
        ``influence``.
      weights: {name: [J]}, for example before and after normalization within the buffer; each adds an entry of
        ``influence``, beside "client trips", where every trip counts the same.
      groups: {name: its clients}; adds ``groups``, and ``of_fair_share`` to every entry of ``influence``.
      costs: the result of ``jafl.diagnostics.costs``; adds ``costs``.

    Returns:
      A dictionary with these entries:

        client_trips    applied and thrown away; beside it ``applied_trips``, ``server_steps``, ``time``
        staleness       mean, percentiles, max
        in_flight       mean over time, max
        wasted          the fields of ``Wasted``
        clients         all, and those that took part
        influence       per kind of weight: ``fairness_loss``, ``gini``, ``jain``; ``smallest`` and ``largest`` in
                        units of the fair share, 1/N; ``label_distance`` of labels seen from equal clients
        groups          per group: clients, applied trips, mean staleness
        examples        means of started and of applied trips, and their ratio
        costs           the fields of ``Costs``

    Raises:
      SettingError: for arrays of a wrong shape, groups as in ``staleness_over_time``, a weight named "client trips",
        or a schedule without applied trips.

    Examples:
      >>> schedule = jafl.synchronous(
      ...     num_clients=5, cohort_size=2, delay=jafl.delays.constant(1.0), server_steps=3
      ... )
      >>> jafl.diagnostics.summary(schedule)["applied_trips"]
      6
    """
    check_has_trips(schedule)
    kinds: dict[str, np.ndarray | None] = {TRIPS: None, **(weights or {})}
    require(TRIPS not in (weights or {}), "a name of weights", TRIPS, "another name: this one is taken")
    training = in_flight(schedule).clients
    content: dict[str, Any] = {
        "client_trips": schedule.trips_started_by(schedule.num_steps),
        "applied_trips": schedule.num_trips,
        "server_steps": schedule.num_steps,
        "time": schedule.step_time[-1],
        "staleness": summarize_staleness(schedule.staleness),
        "in_flight": {"mean": mean_in_flight(schedule), "max": training.max()},
        "wasted": wasted(schedule)._asdict(),
        "clients": {"all": schedule.num_clients, "took_part": len(np.unique(schedule.client))},
        "influence": {
            name: _influence(schedule, own_weights, label_counts, groups)
            for name, own_weights in kinds.items()
        },
    }
    if groups is not None:
        content["groups"] = _groups(schedule, groups)
    if num_examples is not None:
        held = participating_examples(schedule, num_examples)
        means = {"started_mean": held.started.mean(), "applied_mean": held.applied.mean()}
        content["examples"] = {**means, "ratio": held.ratio}
    if costs is not None:
        content["costs"] = costs._asdict()
    return plain(content)


def summarize_staleness(staleness: np.ndarray) -> dict[str, Any]:
    """Mean, percentiles and maximum of the staleness of applied trips; None where there are none."""
    some = len(staleness) > 0
    percentiles = {f"p{p}": float(np.percentile(staleness, p)) if some else None for p in PERCENTILES}
    mean = float(np.mean(staleness)) if some else None
    return {"mean": mean, **percentiles, "max": int(np.max(staleness, initial=0))}


def _influence(
    schedule: EventSchedule, weights: np.ndarray | None, label_counts: Any, groups: Groups | None
) -> dict[str, Any]:
    """How unequal clients are under one kind of ``weights`` [J]."""
    shares = influence(schedule, weights)
    has_weight = bool(shares.any())
    proper = has_weight and shares.min() >= 0  # the indices have no meaning for negative weights
    entry: dict[str, Any] = {
        "fairness_loss": fairness_loss(shares) if has_weight else None,
        "gini": gini(shares) if proper else None,
        "jain": jain(shares) if proper else None,
        "smallest": len(shares) * shares.min(),
        "largest": len(shares) * shares.max(),
    }
    if groups is not None:
        entry["of_fair_share"] = of_fair_share(schedule, shares, groups)
    if label_counts is not None:
        distance = None
        if has_weight and per_trip(weights, schedule).min() >= 0:
            seen = labels_seen(schedule, label_counts, 1, weights)
            distance = label_distance(seen.overall, seen.if_alike)
        entry["label_distance"] = distance
    return entry


def _groups(schedule: EventSchedule, groups: Groups) -> dict[str, Any]:
    """Clients, applied trips and mean staleness of each group."""
    names, number = group_numbers(groups, schedule.num_clients)
    entries = {}
    for place, name in enumerate(names):
        values = schedule.staleness[number[schedule.client] == place]
        mean = values.mean() if len(values) else None
        entries[name] = {
            "clients": np.sum(number == place),
            "client_trips": len(values),
            "mean_staleness": mean,
        }
    return entries


def plain(value: Any) -> Any:
    """``value`` as JSON can hold it: plain numbers for NumPy's, and None for NaN and infinity."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
