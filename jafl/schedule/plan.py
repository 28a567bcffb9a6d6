"""The execution plan: which trips train together, from which snapshot slot, and where each new version goes."""

import heapq

import numpy as np

from jafl.errors import require, whole_number
from jafl.records import EventSchedule, ExecutionPlan


def trip_by_trip(schedule: EventSchedule) -> ExecutionPlan:
    """A plan that trains one trip at a time, in the order of application, with the fewest snapshot slots.

    A version lives from the step that makes it to the last step that trains from it; a version that no applied trip
    reads gets no slot. Slots are assigned like registers, by last use: the number of slots is the largest number of
    versions that live at one moment, which no plan in this order can undercut.
    """
    trips = np.arange(schedule.num_trips, dtype=np.int32)
    return _plan(schedule, schedule.step, width=1, wave=trips, wave_before=trips, row=np.zeros_like(trips))


def rounds(plan: ExecutionPlan, cost: np.ndarray, lanes: int | None = None) -> float:
    """How many minibatches one after the other a plan takes, where trips side by side wait for the longest of them.

    cost: [J] minibatches of each trip, such as ``in_waves`` takes. lanes: other than the plan's, if not None.
    """
    lanes = plan.lanes if lanes is None else lanes
    several = plan.wave.astype(np.int64) * (plan.width // lanes + 1) + plan.place // lanes
    longest = np.zeros(int(several.max(initial=-1)) + 1)
    np.maximum.at(longest, several, cost)
    return float(longest.sum())


def in_waves(
    schedule: EventSchedule,
    width: int,
    *,
    rows: int | None = None,
    cost: np.ndarray | None = None,
    mixed: bool = False,
    lanes: int | None = None,
) -> ExecutionPlan:
    """A plan that trains up to ``width`` trips together; the numbers are those of trip by trip, to rounding.

    A wave is trained when a trip that is to be folded has not trained yet. It is filled up with the trips that are
    folded soonest among those whose versions exist, of later steps too. Versions live no longer than trip by trip.

    Args:
      width: trips at most in a wave.
      rows: most trips that may wait to be folded; twice the width if None.
      cost: [J] numbers, such as minibatches of each trip. Trips of one wave then cost at most twice as much as
        another, so that none waits long for the largest, and the longest come first; all alike if None.
      mixed: trips of all costs may share a wave; with few lanes none waits for much longer ones all the same.
      lanes: trips of a wave that train side by side, then the next ones; all of them if None.

    Raises:
      SettingError: for a width below 1, fewer rows or lanes than 1, more lanes than the width, or costs of another
        length or not above 0.
    """
    whole_number("width", width, 1)
    lanes = whole_number("lanes", width if lanes is None else lanes, 1)
    require(lanes <= width, "lanes", lanes, f"at most the width, {width}")
    rows = whole_number("rows", 2 * width if rows is None else rows, 1)
    kind = _kinds(schedule, cost)
    kind = [0] * schedule.num_trips if mixed else kind
    by_version = np.argsort(schedule.download_version, kind="stable").tolist()
    first = np.searchsorted(schedule.download_version[by_version], np.arange(schedule.num_steps + 1)).tolist()
    ready: dict[int, list[int]] = {number: [] for number in set(kind)}
    free = list(range(rows - 1, -1, -1))
    wave, row = [-1] * schedule.num_trips, [0] * schedule.num_trips
    wave_before: list[int] = []
    known = 0  # versions whose trips are ready
    for trip, step in enumerate(schedule.step.tolist()):
        if wave[trip] < 0:
            for version in range(known, step + 1):
                for other in by_version[first[version] : first[version + 1]]:
                    heapq.heappush(ready[kind[other]], other)
            known = step + 1
            waiting = ready[kind[trip]]
            for _ in range(min(width, len(free), len(waiting))):
                other = heapq.heappop(waiting)
                wave[other], row[other] = len(wave_before), free.pop()
            wave_before.append(trip)
        free.append(row[trip])
    trained_in = schedule.step[wave_before][wave]
    wave_of, before, row_of = (np.array(column, np.int32) for column in (wave, wave_before, row))
    return _plan(schedule, trained_in, width, wave_of, before, row_of, cost, lanes)


def _kinds(schedule: EventSchedule, cost: np.ndarray | None) -> list[int]:
    """[J]: trips of one number may share a wave."""
    if cost is None:
        return [0] * schedule.num_trips
    cost = np.asarray(cost, np.float64)
    fits = cost.shape == (schedule.num_trips,) and bool(np.all(cost > 0) and np.all(np.isfinite(cost)))
    require(fits, "cost", cost, f"finite and above 0, one for each of the {schedule.num_trips} trips")
    kinds: list[int] = np.floor(np.log2(cost)).astype(int).tolist()
    return kinds


def _plan(
    schedule: EventSchedule,
    trained_in: np.ndarray,
    width: int,
    wave: np.ndarray,
    wave_before: np.ndarray,
    row: np.ndarray,
    cost: np.ndarray | None = None,
    lanes: int = 1,
) -> ExecutionPlan:
    """The plan with the fewest slots for trips that are trained in the steps ``trained_in`` [J]."""
    steps = schedule.num_steps
    last_use = np.full(steps + 1, -1)
    np.maximum.at(last_use, schedule.download_version, trained_in)
    ends: list[list[int]] = [[] for _ in range(steps)]
    for version in np.flatnonzero(last_use >= 0).tolist():
        ends[last_use[version]].append(version)

    needed = (last_use >= 0).tolist()
    slot_of = [0] * (steps + 1)
    write_slot = [-1] * steps
    free: list[int] = []
    num_slots = 1  # version 0, which the first trips read
    for step in range(steps):
        free.extend(slot_of[version] for version in ends[step])
        if needed[step + 1]:
            if free:
                slot = free.pop()
            else:
                slot, num_slots = num_slots, num_slots + 1
            slot_of[step + 1] = write_slot[step] = slot
    written = np.array(write_slot, np.int32)
    return ExecutionPlan(
        read_slot=np.array(slot_of, np.int32)[schedule.download_version],
        write_slot=np.where(written < 0, np.int32(num_slots), written),
        first_trip=schedule.step_offsets.astype(np.int32),
        num_slots=num_slots,
        width=width,
        wave=wave,
        wave_before=wave_before,
        place=_places(wave, cost),
        row=row,
        num_rows=int(row.max(initial=0)) + 1,
        lanes=lanes,
    )


def _places(wave: np.ndarray, cost: np.ndarray | None) -> np.ndarray:
    """[J] int32: where each trip stands in its wave: by falling cost, then in the order of application."""
    order = np.lexsort((np.zeros(len(wave)) if cost is None else -np.asarray(cost, np.float64), wave))
    size = np.bincount(wave)
    place = np.empty(len(wave), np.int32)
    place[order] = np.arange(len(wave)) - np.repeat(np.cumsum(size) - size, size)
    return place


def check_plan(schedule: EventSchedule, plan: ExecutionPlan) -> None:
    """Raises SettingError unless a plan computes this schedule.

    Each trip must find its version in the slot that it reads, train before it is folded, and wait undisturbed.
    """
    columns = (plan.read_slot, plan.write_slot, plan.first_trip, plan.wave, plan.row, plan.place)
    lengths = tuple(map(len, columns))
    trips, steps = schedule.num_trips, schedule.num_steps
    expected = (trips, steps, steps + 1, trips, trips, trips)
    require(
        lengths == expected,
        "the plan's lengths (trips, steps, steps + 1, trips, trips, trips)",
        lengths,
        f"{expected}, the schedule's",
    )
    remedy = "Make it with jafl.trip_by_trip or jafl.in_waves, from this very schedule."
    require(
        np.array_equal(plan.first_trip, schedule.step_offsets),
        "the plan's first_trip",
        plan.first_trip,
        "the schedule's step_offsets",
        remedy,
    )
    waves = len(plan.wave_before)
    known = trips == 0 or (plan.wave.min() >= 0 and plan.wave.max() < waves)
    require(known, "the plan's wave", plan.wave, f"from 0 to {waves - 1}", remedy)
    largest = int(np.bincount(plan.wave, minlength=1).max())
    require(
        largest <= plan.width, "the largest of the plan's waves", largest, f"its width, {plan.width}", remedy
    )
    keys = np.sort(plan.wave.astype(np.int64) * plan.width + plan.place)
    apart = trips == 0 or (
        plan.place.min() >= 0 and plan.place.max() < plan.width and bool(np.all(np.diff(keys) > 0))
    )
    require(
        apart, "the plan's place", plan.place, "another one for each trip of a wave, below its width", remedy
    )
    require(
        1 <= plan.lanes <= plan.width,
        "the plan's lanes",
        plan.lanes,
        f"from 1 to its width, {plan.width}",
        remedy,
    )
    rising = bool(np.all(np.diff(plan.wave_before) > 0))
    require(rising, "the plan's wave_before", plan.wave_before, "increasing", remedy)
    trained_before = plan.wave_before[plan.wave]
    late = np.flatnonzero(trained_before > np.arange(trips))
    require(not late.size, "a trip that is folded before it trains", late[:1], "none", remedy)
    _check_rows(plan, trained_before, remedy)
    # Of all that is written to a slot, a trip trained in step t finds what the last step before t has left there.
    slot = np.concatenate([[0], plan.write_slot]).astype(np.int64)
    written = slot * (steps + 1) + np.arange(steps + 1)  # version v is there from step v on
    order = np.argsort(written)
    wanted = plan.read_slot.astype(np.int64) * (steps + 1) + schedule.step[trained_before]
    found = order[np.maximum(np.searchsorted(written[order], wanted, side="right") - 1, 0)]
    found = np.where(slot[found] == plan.read_slot, found, -1)
    wrong = np.flatnonzero(found != schedule.download_version)
    if wrong.size:
        trip = wrong[0]
        version = int(schedule.download_version[trip])
        require(
            False, f"the version that the plan has for trip {trip}", int(found[trip]), f"{version}", remedy
        )


def _check_rows(plan: ExecutionPlan, trained_before: np.ndarray, remedy: str) -> None:
    """Raises SettingError unless whatever waits in a row is folded before the next wave writes there."""
    inside = plan.row.min(initial=0) >= 0 and plan.row.max(initial=0) < plan.num_rows
    require(inside, "the plan's rows", plan.row, f"from 0 to {plan.num_rows - 1}", remedy)
    order = np.lexsort((trained_before, plan.row))
    same_row = np.diff(plan.row[order]) == 0
    taken = np.flatnonzero(same_row & (trained_before[order][1:] <= order[:-1]))
    require(not taken.size, "a trip whose row is taken before it is folded", order[taken[:1]], "none", remedy)


def bucket(size: int) -> int:
    """``size`` rounded up to a power of two times 4, 5, 6 or 7 (below 8: to itself), at most a quarter more.

    Arrays get such lengths, so that schedules of nearly the same size share one compiled program.
    """
    unit = 1 << max(0, size.bit_length() - 3)
    return -(-size // unit) * unit
