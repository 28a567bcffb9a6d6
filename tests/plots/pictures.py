"""Small runs and schedules to draw, and what is read off a picture."""

import dataclasses

import numpy as np

from jafl.records import EventSchedule


def schedule_of(client, download_version, step, download_time, arrival_time, step_time, num_clients, **more):
    """A schedule of the given trips; what neither they nor ``more`` name is empty."""
    given = {
        "client": client, "download_version": download_version, "step": step, "step_time": step_time,
        "download_time": download_time, "arrival_time": arrival_time, **more,
    }  # fmt: skip
    names = [field.name for field in dataclasses.fields(EventSchedule)]
    nothing = {name: np.zeros(0, np.float64 if name.endswith("time") else np.int32) for name in names}
    arrays = {name: np.asarray(given.get(name, nothing[name])) for name in names}
    return EventSchedule(**arrays | {"num_clients": num_clients, "concurrency": num_clients})


def stale_by(values):
    """One trip per server step, with the given staleness."""
    step = np.arange(len(values)) + max(values)
    zero = np.zeros(len(values), int)
    return schedule_of(zero, step - values, step, zero, zero + 1, np.arange(step[-1] + 1), 1)


def trips_per_client(counts):
    """One server step that applies ``counts[c]`` trips of each client ``c``."""
    client = np.repeat(np.arange(len(counts)), counts)
    zero = np.zeros(len(client), int)
    return schedule_of(client, zero, zero, zero, zero + 1, [1.0], len(counts))


def run_of(trips, values, metric="test_accuracy"):
    return [{"server_step": t // 10, "client_trips": t, "time": t / 4, metric: v}
            for t, v in zip(trips, values, strict=True)]  # fmt: skip


TWO = {"FedBuff": [run_of([0, 10, 20], [0.1, 0.5, 0.9])], "FedAvg": [run_of([0, 10, 20], [0.1, 0.4, 0.8])]}


def legend(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def lines(axes):
    return {line.get_label(): line for line in axes.lines if not line.get_label().startswith("_")}
