"""Counting over the columns of a schedule."""

import dataclasses

import numpy as np

from jafl.records import EventSchedule


def earlier_occurrences(values: np.ndarray) -> np.ndarray:
    """[n] int32: how often each value has occurred before its place."""
    order = np.argsort(values, kind="stable")
    in_order = values[order]
    starts = np.flatnonzero(np.concatenate([[True], in_order[1:] != in_order[:-1]]))
    run_lengths = np.diff(np.concatenate([starts, [len(values)]]))
    earlier = np.empty(len(values), np.int32)
    earlier[order] = np.arange(len(values)) - np.repeat(starts, run_lengths)
    return earlier


def version_after_earlier_trip(client: np.ndarray, step: np.ndarray) -> np.ndarray:
    """[J] int32: the version made by the step that applied the client's trip before, 0 for its first trip."""
    order = np.argsort(client, kind="stable")
    same_client = client[order][1:] == client[order][:-1]
    version = np.zeros(len(client), np.int32)
    version[order[1:]] = np.where(same_client, step[order][:-1] + 1, 0)
    return version


def first_steps(schedule: EventSchedule, server_steps: int) -> EventSchedule:
    """The schedule with the applied trips of its first ``server_steps`` steps; all other trips stay as they are."""
    trips = int(schedule.step_offsets[server_steps])
    columns = ("client", "trip", "download_version", "step", "download_time", "arrival_time")
    applied = {name: getattr(schedule, name)[:trips] for name in columns}
    return dataclasses.replace(schedule, **applied, step_time=schedule.step_time[:server_steps])


def in_flight(schedule: EventSchedule) -> tuple[np.ndarray, np.ndarray]:
    """(time [E] float64, clients under way from then on [E] int64) at each moment at which trips start or end.

    Discarded trips and those under way at the end count; trips that take no time do not.
    """
    start = np.concatenate(
        [schedule.download_time, schedule.discarded_start_time, schedule.inflight_start_time]
    )
    forever = np.full(len(schedule.inflight_start_time), np.inf)
    end = np.concatenate([schedule.arrival_time, schedule.discarded_end_time, forever])
    time, place = np.unique(np.concatenate([start, end]), return_inverse=True)
    change = np.bincount(place[: len(start)], minlength=len(time)) - np.bincount(
        place[len(start) :], minlength=len(time)
    )
    finite = np.isfinite(time)
    return time[finite], np.cumsum(change)[finite]


def with_measured_concurrency(schedule: EventSchedule) -> EventSchedule:
    """The schedule with the most clients that are ever under way as its ``concurrency``."""
    return dataclasses.replace(schedule, concurrency=int(in_flight(schedule)[1].max()))
