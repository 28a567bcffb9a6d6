"""The average staleness of each client's updates, as the server has seen it: known from the schedule alone."""

import numpy as np

from jafl.base.errors import choose, require, whole_number
from jafl.records import EventSchedule


def expected_staleness(
    schedule: EventSchedule, average: str = "all", window: int = 5, decay: float = 0.9
) -> np.ndarray:
    """For each trip its client's average staleness, the trips of the same server step included.

    Args:
      schedule: the event schedule.
      average: "all" past trips of the client, its last "window" ones, or "exponential": each trip's staleness
        enters with 1 - decay, the client's first with 1.
      window: trips, for "window".
      decay: weight of the past, for "exponential", at least 0 and below 1.

    Returns:
      [J] float64, in server steps.

    Raises:
      SettingError: for an unknown average, a window below 1 or a decay outside its range.
    """
    averages = {"all": _running_mean, "window": _running_mean, "exponential": _exponential_mean}
    mean = choose("average", average, averages)
    whole_number("window", window, 1)
    require(0 <= decay < 1, "decay", decay, "at least 0 and below 1")
    order = np.argsort(schedule.client, kind="stable")  # client by client, each in order of application
    client, step = schedule.client[order], schedule.step[order]
    staleness = schedule.staleness[order].astype(np.float64)
    means = mean(client, staleness, {"all": len(order), "window": window, "exponential": decay}[average])
    # All of a client's trips in one server step get the value of the last of them.
    last = np.concatenate([(client[1:] != client[:-1]) | (step[1:] != step[:-1]), [True]])
    place = np.flatnonzero(last)[np.searchsorted(np.flatnonzero(last), np.arange(len(order)))]
    values = np.empty(len(order))
    values[order] = means[place]
    return values


def normalized_per_step(schedule: EventSchedule, weights: np.ndarray) -> np.ndarray:
    """[J]: ``weights`` [J] divided by their sum over the trips of the same server step."""
    total = np.bincount(schedule.step, weights, minlength=schedule.num_steps)
    return weights / total[schedule.step]


def _running_mean(client: np.ndarray, values: np.ndarray, window: float) -> np.ndarray:
    """Mean of each client's last ``window`` values up to and with each; rows sorted by client."""
    total = np.concatenate([[0.0], np.cumsum(values)])
    starts = np.concatenate([[True], client[1:] != client[:-1]])
    first = np.flatnonzero(starts)[np.cumsum(starts) - 1]
    place = np.arange(len(values))
    begin = np.maximum(first, place + 1 - int(window))
    return (total[place + 1] - total[begin]) / (place + 1 - begin)


def _exponential_mean(client: np.ndarray, values: np.ndarray, decay: float) -> np.ndarray:
    means = np.empty(len(values))
    for place in range(len(values)):
        new = place == 0 or client[place] != client[place - 1]
        means[place] = values[place] if new else decay * means[place - 1] + (1 - decay) * values[place]
    return means
