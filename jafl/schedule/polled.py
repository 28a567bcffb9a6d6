"""Polls: all clients train all the time, and from time to time the server asks some of them (FAVAS, QuAFL)."""

import os

import numpy as np

from jafl.base.described import described
from jafl.base.errors import choose, real_number, require, whole_number
from jafl.records import EventSchedule
from jafl.schedule.arguments import as_delay
from jafl.schedule.checks import check_clients, check_delay_and_seed, steps_within
from jafl.schedule.cohorts import fixed_cohorts
from jafl.schedule.columns import discarded_trips, inflight_trips
from jafl.schedule.counting import earlier_occurrences, version_after_earlier_trip
from jafl.schedule.delay import IS_A_DURATION, Delay, is_duration
from jafl.schedule.durations import draw_parts


@described
def polled(
    *,
    num_clients: int,
    cohort_size: int,
    interval: float,
    most_local_steps: int = 20,
    download: str = "after_step",
    delay: Delay | str | os.PathLike[str],
    server_steps: int | None = None,
    client_trips: int | None = None,
    seed: int = 0,
) -> EventSchedule:
    """Computes the event schedule of FAVAS: a trip lasts from poll to poll, with the local steps that fit between.

    At the times ``interval``, 2 ``interval``, ... the server polls ``cohort_size`` clients, drawn uniformly from all
    (Leconte et al., "FAVAS: Federated AVeraging with ASynchronous clients", ICASSP 2024). Every client trains all the
    time, but makes no more than ``most_local_steps`` local steps, after which it waits for its next poll. A client
    that is polled hands over what it has made, be it nothing; the server makes a step from all of them, and they
    begin their next trips with the model that it has made. A client that has never been polled trains from the
    initial model.

    In QuAFL a client gets the model from before the step to which it contributes: ``download="before_step"``.

    Use it with ``jafl.rules.favas`` or ``quafl``, and ``client_work(local_steps="scheduled")``. ``interval`` holds
    the time in which the server waits, and that of the poll itself.

    Args:
      num_clients: N, all clients; each of them always trains or waits.
      cohort_size: s, how many clients are polled at a time.
      interval: the time from one poll to the next, above 0.
      most_local_steps: the most local steps of a trip, at least 1; 20 in the paper.
      download: which version a polled client trains from next: "after_step", the one that its poll makes, or
        "before_step", the one before.
      delay: the law of how long local steps take, with ``jafl.delays.per_step``; ``with_network`` around it adds the
        download, before which no local step begins. A law of whole trips says how long ``most_local_steps`` of them
        take. An upload is part of the interval, so that its time is not read. All local steps of a trip take as long
        (a reading; the paper draws the time of each).
      server_steps: stop after so many polls, or
      client_trips: after as many polls as so many client trips allow. Exactly one of the two.
      seed: determines the durations, and who is polled.

    Returns:
      The schedule, with ``local_steps``, 0 for trips that are too short. At its end all clients are under way.

    Raises:
      SettingError: for a number outside its range; for a delay with times that are negative, 0 or not finite, or so
        long that nobody makes a local step.

    Examples:
      >>> delay = jafl.delays.per_step(jafl.delays.from_function(lambda client, trip: 1.0 + client))
      >>> schedule = jafl.polled(
      ...     num_clients=2, cohort_size=2, interval=3.5, most_local_steps=3, delay=delay, server_steps=2
      ... )
      >>> schedule.client.tolist(), schedule.local_steps.tolist()
      ([0, 1, 0, 1], [3, 1, 3, 1])
    """
    law = as_delay(delay)
    check_clients(num_clients, "cohort_size", cohort_size)
    check_delay_and_seed(law, seed)
    law.check_clients(num_clients)
    real_number("interval", interval, is_duration, IS_A_DURATION)
    whole_number("most_local_steps", most_local_steps, 1)
    earlier = choose("download", download, {"after_step": 0, "before_step": 1})
    steps = steps_within(server_steps, client_trips, trips_per_step=cohort_size, setting="cohort_size")
    client = fixed_cohorts(num_clients, cohort_size, steps, seed).reshape(-1)
    step = np.repeat(np.arange(steps, dtype=np.int32), cohort_size)
    trip, since = earlier_occurrences(client), version_after_earlier_trip(client, step)
    times = interval * np.arange(steps + 1, dtype=np.float64)
    trips_made = np.bincount(client, minlength=num_clients)
    last = np.zeros(num_clients, np.int32)
    last[client] = step + 1  # of several polls the last one is written last
    return EventSchedule(
        client=client,
        trip=trip,
        download_version=np.maximum(since - earlier, 0),
        step=step,
        download_time=times[since],
        arrival_time=times[step + 1],
        step_time=times[1:],
        **inflight_trips(np.arange(num_clients), trips_made, np.maximum(last - earlier, 0), times[last]),
        **discarded_trips(),
        num_clients=num_clients,
        concurrency=num_clients,
        local_steps=_local_steps(law, seed, client, trip, (step + 1 - since) * interval, most_local_steps),
    )


def _local_steps(
    law: Delay, seed: int, client: np.ndarray, trip: np.ndarray, seconds: np.ndarray, most: int
) -> np.ndarray:
    """[J] int32: how many local steps fit into so much time [J]."""
    before, each, _ = draw_parts(law, seed, client, trip)
    whole = each == 0  # a law of whole trips
    before, each = np.where(whole, 0.0, before), np.where(whole, before / most, each)
    wrong = np.flatnonzero(each == 0)
    if wrong.size:
        require(False, f"the delay of client {client[wrong[0]]}, trip {trip[wrong[0]]}", 0.0, "above 0")
    # Rounded first: a quotient that is 3 but for rounding is 3.
    with np.errstate(over="ignore"):  # infinitely many are cut to the most
        fits = np.floor(np.round((seconds - before) / each, 9))
    steps = np.clip(fits, 0, most).astype(np.int32)
    remedy = "Nobody makes a local step before its poll: raise interval, or shorten the delay."
    require(steps.any(), "interval", float(seconds.min()), "the time of a local step at least", remedy)
    return steps
