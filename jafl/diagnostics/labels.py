"""The labels behind the updates that the server has applied."""

from typing import Any, NamedTuple

import numpy as np

from jafl.base.errors import require
from jafl.diagnostics.checks import per_trip
from jafl.diagnostics.over_time import step_bins
from jafl.records import EventSchedule


class LabelsSeen(NamedTuple):
    """The label distribution of the applied trips, per bin of server steps.

    Attributes:
      edges: [B + 1] int64; bin k holds the trips that the steps ``edges[k]:edges[k + 1]`` apply or, if cumulative,
        those of all steps before ``edges[k + 1]``.
      share: [B, C] float64; rows sum to 1; a row is NaN where all its trips have weight 0.
      overall: [C] float64, of all trips together.
      if_alike: [C] float64, if every client counted the same: the mean of the clients' own shares.
    """

    edges: np.ndarray
    share: np.ndarray
    overall: np.ndarray
    if_alike: np.ndarray


def label_shares(label_counts: Any) -> np.ndarray:
    """Each client's own label distribution.

    Args:
      label_counts: [N, C] numbers, the examples of each class that each client holds.

    Returns:
      [N, C] float64; rows sum to 1, and are 0 for a client without examples.

    Raises:
      SettingError: for another shape, a negative number, or nothing but zeros.

    Examples:
      >>> jafl.diagnostics.label_shares([[3, 1], [0, 2]])
      array([[0.75, 0.25],
             [0.  , 1.  ]])
    """
    counts = np.asarray(label_counts, np.float64)
    table = counts.ndim == 2 and counts.size > 0
    require(table, "the shape of label_counts", counts.shape, "(clients, classes)")
    require(counts.min() >= 0, "the smallest of label_counts", float(counts.min()), "zero or more")
    require(counts.any(), "label_counts", "all zero", "the labels of at least one example")
    return counts / np.maximum(counts.sum(axis=1, keepdims=True), np.finfo(np.float64).tiny)


def labels_seen(
    schedule: EventSchedule,
    label_counts: Any,
    bins: int = 100,
    weights: np.ndarray | None = None,
    cumulative: bool = False,
) -> LabelsSeen:
    """The labels behind the updates that the server has applied: each trip counts its client's label shares.

    Args:
      schedule: the event schedule.
      label_counts: [N, C] numbers, the examples of each class that each client holds.
      bins: ranges of server steps.
      weights: [J], how much each trip counts, at least 0. Default: all the same.
      cumulative: whether a bin holds all trips applied so far, not only its own.

    Returns:
      The label distributions: ``LabelsSeen``.

    Raises:
      SettingError: for arrays of another shape, a weight that is negative or not finite, bins below 1 or a schedule
        without applied trips.

    Examples:
      >>> schedule = jafl.synchronous(
      ...     num_clients=5, cohort_size=2, delay=jafl.delays.constant(1.0), server_steps=3
      ... )
      >>> jafl.diagnostics.labels_seen(schedule, [[1, 1]] * 5, bins=1).overall
      array([0.5, 0.5])
    """
    edges = step_bins(schedule, bins)
    shares, trip_weights = label_shares(label_counts), per_trip(weights, schedule)
    clients = schedule.num_clients
    require(
        len(shares) == clients, "the rows of label_counts", len(shares), f"{clients}, the number of clients"
    )
    require(trip_weights.min() >= 0, "the smallest of weights", float(trip_weights.min()), "at least 0")
    offsets = np.searchsorted(schedule.step, edges)
    seen = np.empty((len(edges) - 1, shares.shape[1]))
    for number, (first, end) in enumerate(zip(offsets[:-1], offsets[1:], strict=True)):
        client, weight = schedule.client[first:end], trip_weights[first:end]
        if len(client) < clients:
            seen[number] = weight @ shares[client]
        else:
            seen[number] = np.bincount(client, weight, clients) @ shares
    overall = _distribution(seen.sum(axis=0, keepdims=True))[0]
    if cumulative:
        seen = np.cumsum(seen, axis=0)
    if_alike = shares.sum(axis=0)
    return LabelsSeen(edges, _distribution(seen), overall, if_alike / if_alike.sum())


def label_distance(seen: Any, wanted: Any) -> float:
    """Total variation between two label distributions: 0 if they agree, 1 if they share no label.

    Args:
      seen: [C], sums to 1.
      wanted: [C], sums to 1.

    Returns:
      A number from 0 to 1.

    Examples:
      >>> jafl.diagnostics.label_distance([0.5, 0.5], [0.25, 0.75])
      0.25
    """
    return float(0.5 * np.sum(np.abs(np.asarray(seen) - np.asarray(wanted))))


def _distribution(amounts: np.ndarray) -> np.ndarray:
    """[B, C]: rows divided by their sums; NaN for a row of zeros."""
    total = amounts.sum(axis=1, keepdims=True)
    return np.divide(amounts, total, out=np.full(amounts.shape, np.nan), where=total > 0)
