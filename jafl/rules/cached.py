"""How long cached values stay in use, known from the schedule: what rules with client memory report as weights."""

import numpy as np

from jafl.records import EventSchedule


def replaced_at(schedule: EventSchedule) -> np.ndarray:
    """[J] int64: the server step that applies the client's next trip, T where there is none."""
    order = np.argsort(schedule.client, kind="stable")  # client by client, each in order of application
    client, step = schedule.client[order], schedule.step[order].astype(np.int64)
    same = client[1:] == client[:-1]
    following = np.append(np.where(same, step[1:], schedule.num_steps), schedule.num_steps)
    replaced = np.empty(schedule.num_trips, np.int64)
    replaced[order] = following
    return replaced


def steps_in_cache(schedule: EventSchedule) -> np.ndarray:
    """[J] float64: server steps from a trip's own to the one that applies the client's next trip."""
    return (replaced_at(schedule) - schedule.step).astype(np.float64)
