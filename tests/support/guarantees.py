"""What every event schedule guarantees, one check each. A check raises AssertionError that names the first offender.

1. ``check_shapes``: every column has the documented length and dtype; clients, steps and versions exist.
2. ``check_order``: trips stand in the order of application and of arrival, ties in client order (a trip that
   takes no time arrives after the others of its instant); none is applied before its arrival; server steps never
   go back in time, nor do the steps of discarded trips.
3. ``check_buffer``: every server step applies exactly the stated number of trips.
4. ``check_concurrency``: at most ``concurrency`` clients train at any moment.
5. ``check_one_trip_at_a_time``: a client is never in two trips at once.
6. ``check_trip_numbers``: a client's trips are numbered 0, 1, 2, ... in the order in which they start.
7. ``check_durations``: arrival is download plus the duration drawn for (client, trip), to the last bit; no
   discarded trip would have arrived before it was discarded, and none under way before the last step.
8. ``check_versions``: a downloaded version exists by then, and is the newest; no trip is applied before it.
9. ``check_conservation``: each server step makes every other trip under way one version older, so the staleness
   of applied trips and of those in flight sums to steps * (concurrency - 1) where a finished client is replaced
   at once and no two arrivals share an instant; to less in synchronous rounds and with ties.
10. ``check_participation``: at most ``most_trips`` trips of a client are applied, and the numbers of the steps that
   apply two of them differ by ``smallest_gap`` at least.
11. ``check_reports``: the trips of a synchronous round start together, from the newest version, and end by its step,
   which comes at its deadline at the latest; it applies as many reports as it waits for at most, and none or
   ``min_reports`` of them at least; before the deadline it comes only when nothing is left to wait for.
12. ``check_service``: a client serves the tasks of its queue one after the other, each for the time drawn for it.

``check_all`` runs 1 to 10, ``check_rounds`` what holds for synchronous rounds, in which steps differ in size.
"""

import dataclasses

import numpy as np

from jafl.records import EventSchedule
from jafl.schedule.delay import Delay


def check_all(
    schedule: EventSchedule,
    *,
    buffer_size: int,
    delay: Delay,
    seed: int,
    most_trips: int | None = None,
    smallest_gap: int = 0,
) -> None:
    """Runs every check below."""
    check_shapes(schedule)
    check_order(schedule)
    check_buffer(schedule, buffer_size)
    check_concurrency(schedule)
    check_one_trip_at_a_time(schedule)
    check_trip_numbers(schedule)
    check_durations(schedule, delay, seed)
    check_versions(schedule)
    check_conservation(schedule)
    check_participation(schedule, most_trips, smallest_gap)


def check_rounds(
    schedule: EventSchedule,
    *,
    delay: Delay,
    seed: int,
    cohort_size: int | None,
    min_reports: int = 1,
    deadline: float = np.inf,
    most_trips: int | None = None,
    smallest_gap: int = 0,
) -> None:
    """Runs the checks of synchronous rounds; without ``cohort_size`` they wait for all who take part."""
    check_shapes(schedule)
    check_order(schedule)
    check_concurrency(schedule)
    check_one_trip_at_a_time(schedule)
    check_trip_numbers(schedule)
    check_durations(schedule, delay, seed)
    check_versions(schedule)
    check_participation(schedule, most_trips, smallest_gap)
    check_reports(schedule, cohort_size, min_reports, deadline)


def check_shapes(schedule: EventSchedule) -> None:
    """Guarantee 1."""
    lengths = {"inflight": len(schedule.inflight_client), "discarded": len(schedule.discarded_client)}
    most = {"client": schedule.num_clients, "step": schedule.num_steps, "version": schedule.num_steps + 1}
    for field in dataclasses.fields(schedule):
        column = getattr(schedule, field.name)
        if field.name in ("num_clients", "concurrency") or (
            field.name in ("local_steps", "tier") and column is None
        ):
            continue
        group = field.name.split("_")[0]
        if field.name == "tier":
            lengths["tier"] = schedule.num_clients
        length = lengths.get(group, schedule.num_steps if field.name == "step_time" else schedule.num_trips)
        expected = np.float64 if field.name.endswith("time") else np.int32
        assert column.shape == (length,), f"{field.name} has shape {column.shape}, not ({length},)"
        assert column.dtype == expected, f"{field.name} is {column.dtype}, not {np.dtype(expected)}"
        assert np.all(column >= 0), f"{field.name} has a negative entry"
        kind = field.name.split("_")[-1]
        assert np.all(column < most.get(kind, np.inf)), f"{field.name} names an unknown {kind}"


def check_order(schedule: EventSchedule) -> None:
    """Guarantee 2."""
    later = np.diff(schedule.arrival_time)
    no_time = (schedule.download_time == schedule.arrival_time)[1:]
    in_order = (later > 0) | ((later == 0) & ((np.diff(schedule.client) > 0) | no_time))
    wrong = np.flatnonzero(~in_order | (np.diff(schedule.step) < 0))
    assert wrong.size == 0, f"trips {wrong[:1]} and the next are out of order"
    assert np.all(schedule.arrival_time <= schedule.step_time[schedule.step]), "applied before arrival"
    assert np.all(schedule.download_time <= schedule.arrival_time), "arrived before its download"
    assert np.all(np.diff(schedule.step_time) >= 0), "server steps go back in time"
    assert np.all(np.diff(schedule.discarded_step) >= 0), "trips thrown away are out of order"


def check_buffer(schedule: EventSchedule, buffer_size: int) -> None:
    """Guarantee 3; an initial round takes every client's trip in step 0."""
    sizes = np.diff(schedule.step_offsets)
    if sizes[0] == schedule.num_clients == schedule.concurrency:
        sizes = sizes[1:]
    assert np.all(sizes == buffer_size), f"server steps apply {np.unique(sizes)} trips, not {buffer_size}"


def check_concurrency(schedule: EventSchedule) -> None:
    """Guarantee 4. At one instant arrivals come before starts, so trips that take no time never count."""
    _, _, start, end = all_trips(schedule)
    times = np.concatenate([end, start])
    change = np.concatenate([-np.ones(len(end)), np.ones(len(start))])
    lasting = np.tile(end > start, 2)
    order = np.lexsort((change[lasting], times[lasting]))
    most = np.max(np.cumsum(change[lasting][order]), initial=0)
    assert most <= schedule.concurrency, f"{most} trips at once, concurrency is {schedule.concurrency}"


def check_one_trip_at_a_time(schedule: EventSchedule) -> None:
    """Guarantee 5."""
    client, trip, start, end = all_trips(schedule)
    order = np.lexsort((trip, client))
    same = client[order][1:] == client[order][:-1]
    overlap = same & (start[order][1:] < end[order][:-1])
    assert not np.any(overlap), f"client {client[order][1:][overlap][:1]} is in two trips at once"


def check_trip_numbers(schedule: EventSchedule) -> None:
    """Guarantee 6."""
    client, trip, start, _ = all_trips(schedule)
    order = np.lexsort((trip, start, client))
    expected = 0
    previous_client = -1
    for client_number, trip_number in zip(client[order], trip[order], strict=True):
        expected = expected + 1 if client_number == previous_client else 0
        assert trip_number == expected, f"client {client_number} numbers a trip {trip_number}, not {expected}"
        previous_client = client_number


def check_durations(schedule: EventSchedule, delay: Delay, seed: int) -> None:
    """Guarantee 7."""
    durations = delay.durations(seed, schedule.client, schedule.trip)
    wrong = np.flatnonzero(schedule.arrival_time != schedule.download_time + durations)
    assert wrong.size == 0, f"trip {wrong[:1]} does not arrive at download plus duration"
    durations = delay.durations(seed, schedule.discarded_client, schedule.discarded_trip)
    early = schedule.discarded_start_time + durations < schedule.discarded_end_time
    assert not np.any(early), "a trip thrown away had arrived before"
    durations = delay.durations(seed, schedule.inflight_client, schedule.inflight_trip)
    early = schedule.inflight_start_time + durations < schedule.step_time[-1]
    assert not np.any(early), "a trip under way had arrived before the last step"


def check_service(schedule: EventSchedule, delay: Delay, seed: int) -> None:
    """Guarantee 12, which stands for 5 and 7 where tasks wait in queues."""
    order = np.lexsort((schedule.trip, schedule.client))
    client, trip = schedule.client[order], schedule.trip[order]
    before = np.concatenate([[0.0], schedule.arrival_time[order][:-1]])
    before[np.concatenate([[True], client[1:] != client[:-1]])] = 0.0
    begun = np.maximum(schedule.download_time[order], before)
    late = np.flatnonzero(schedule.arrival_time[order] != begun + delay.durations(seed, client, trip))
    assert late.size == 0, f"trip {order[late[:1]]} does not arrive when its client has served it"


def check_versions(schedule: EventSchedule) -> None:
    """Guarantee 8. Where a trip takes no time, its instant holds several newest versions, one after the other."""
    instants_with_several = schedule.arrival_time[schedule.download_time == schedule.arrival_time]
    assert np.all(schedule.download_version <= schedule.step), "a trip is applied before its version exists"
    for version, time in (
        (schedule.download_version, schedule.download_time),
        (schedule.inflight_version, schedule.inflight_start_time),
    ):
        newest = np.searchsorted(schedule.step_time, time, side="right")
        before = np.searchsorted(schedule.step_time, time, side="left")
        at_least = np.where(np.isin(time, instants_with_several), before, newest)
        assert np.all(version <= newest), "a version was downloaded before it existed"
        assert np.all(version >= at_least), "an old version was downloaded"


def check_conservation(schedule: EventSchedule) -> None:
    """Guarantee 9."""
    carried = int(schedule.staleness.sum()) + int((schedule.num_steps - schedule.inflight_version).sum())
    sizes = np.diff(schedule.step_offsets)
    steps = schedule.num_steps - int(sizes[0] > sizes[-1])  # nobody is under way when an initial round ends
    most = steps * (schedule.concurrency - 1)
    assert carried <= most, f"trips carry {carried} server steps of staleness, more than {most}"
    alone = len(np.unique(schedule.arrival_time)) == schedule.num_trips
    if alone and len(schedule.inflight_client) == schedule.concurrency:
        assert carried == most, f"trips carry {carried} server steps of staleness, not {most}"


def check_participation(schedule: EventSchedule, most_trips: int | None, smallest_gap: int) -> None:
    """Guarantee 10."""
    trips = np.bincount(schedule.client, minlength=schedule.num_clients)
    often = np.flatnonzero(trips > (np.inf if most_trips is None else most_trips))
    assert often.size == 0, (
        f"{trips[often[:1]]} trips of client {often[:1]} are applied, not at most {most_trips}"
    )
    order = np.lexsort((schedule.step, schedule.client))
    client, step = schedule.client[order], schedule.step[order]
    soon = np.flatnonzero((np.diff(client) == 0) & (np.diff(step) < smallest_gap))
    assert soon.size == 0, f"step {step[1:][soon[:1]]} is too soon for client {client[1:][soon[:1]]}"


def check_reports(
    schedule: EventSchedule, cohort_size: int | None, min_reports: int, deadline: float
) -> None:
    """Guarantee 11."""
    assert len(schedule.inflight_client) == 0, "a trip is under way after the last round"
    assert np.all(schedule.staleness == 0), "a round applies a trip from an old version"
    most = schedule.num_clients if cohort_size is None else cohort_size
    sizes = np.diff(schedule.step_offsets)
    wrong = np.flatnonzero((sizes > most) | ((sizes > 0) & (sizes < min_reports)))
    assert wrong.size == 0, f"round {wrong[:1]} applies {sizes[wrong[:1]]} reports"
    step = np.concatenate([schedule.step, schedule.discarded_step])
    start = np.concatenate([schedule.download_time, schedule.discarded_start_time])
    end = np.concatenate([schedule.arrival_time, schedule.discarded_end_time])
    begins = np.full(schedule.num_steps, np.inf)
    np.minimum.at(begins, step, start)
    assert np.all(start == begins[step]), "the trips of a round do not start together"
    before = np.concatenate([[0.0], schedule.step_time[:-1]])
    assert np.all(start >= before[step]), "a round begins before the end of the one before"
    assert np.all(end <= schedule.step_time[step]), "a trip goes on after its round"
    held = np.isfinite(begins)
    assert np.all(schedule.step_time[held] <= begins[held] + deadline), "a round ends after its deadline"
    # A step that comes before the deadline comes with the last end of a trip: the others are cancelled, or over.
    last_end = np.full(schedule.num_steps, -np.inf)
    np.maximum.at(last_end, step, end)
    at_an_end = (last_end == schedule.step_time) | (schedule.step_time == begins + deadline)
    assert np.all(at_an_end[held]), "a round ends where no trip does"


def all_trips(schedule: EventSchedule) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(client, trip, start time, end time), [J + D + F] each: applied, thrown away, under way (to infinity)."""
    forever = np.full(len(schedule.inflight_client), np.inf)
    columns = (
        (schedule.client, schedule.discarded_client, schedule.inflight_client),
        (schedule.trip, schedule.discarded_trip, schedule.inflight_trip),
        (schedule.download_time, schedule.discarded_start_time, schedule.inflight_start_time),
        (schedule.arrival_time, schedule.discarded_end_time, forever),
    )
    client, trip, start, end = (np.concatenate(column) for column in columns)
    return client, trip, start, end
