"""The execution plan: which trips train together, from which snapshot slot, and where each new version goes."""

import dataclasses
import heapq

import numpy as np

from jafl.base.errors import SettingError, choose, require, whole_number
from jafl.records import EventSchedule, ExecutionPlan, check_schedule

FORMS = ("loop", "matrix")


def trip_by_trip(schedule: EventSchedule) -> ExecutionPlan:
    """A plan that trains one trip at a time, in the order of application, with the fewest snapshot slots.

    A version lives from the step that makes it to the last step that trains from it; a version that no applied trip
    reads gets no slot. Slots are assigned like registers, by last use: the number of slots is the largest number of
    versions that live at one moment, which no plan in this order can undercut.

    Args:
      schedule: the event schedule to plan.

    Returns:
      The plan, with one trip a wave.

    Examples:
      >>> delay = jafl.delays.constant(1.0)
      >>> schedule = jafl.asynchronous(num_clients=3, concurrency=3, delay=delay, server_steps=6)
      >>> jafl.trip_by_trip(schedule).width
      1
    """
    check_schedule(schedule)
    # Every trip is a wave of its own, due before its own fold, and all of them may use one row: none waits.
    trips = np.arange(schedule.num_trips, dtype=np.int32)
    return _plan(schedule, schedule.step, width=1, wave=trips, wave_before=trips, row=np.zeros_like(trips))


def rounds(plan: ExecutionPlan, cost: np.ndarray, lanes: int | None = None) -> float:
    """The minibatches that a plan trains one after the other, where trips side by side wait for the longest of them.

    Args:
      plan: the execution plan.
      cost: [J] minibatches of each trip, as given to ``in_waves``.
      lanes: trips side by side at most. Default: the plan's.

    Returns:
      The sum, over the groups of trips side by side, of the largest cost in each.
    """
    lanes = plan.lanes if lanes is None else lanes
    group = plan.wave.astype(np.int64) * (plan.width // lanes + 1) + plan.place // lanes
    # Trips side by side run one program, which ends when the last of them does: the longest counts for all.
    longest = np.zeros(int(group.max(initial=-1)) + 1)
    np.maximum.at(longest, group, cost)
    return float(longest.sum())


def in_waves(
    schedule: EventSchedule,
    width: int,
    *,
    rows: int | None = None,
    cost: np.ndarray | None = None,
    mixed: bool = False,
    lanes: int | None = None,
    form: str = "loop",
    client_state: bool = False,
) -> ExecutionPlan:
    """A plan that trains up to ``width`` trips together; its results are those of trip by trip, to rounding.

    A wave is trained when a trip that is to be folded has not trained yet. It is filled up with the trips that are
    folded soonest among those whose versions exist, of later steps too. Versions live no longer than trip by trip.
    In the matrix form a wave ends before the first trip whose version does not exist: so no trip waits while another
    wave trains.

    Args:
      schedule: the event schedule to plan.
      width: trips in a wave, at most.
      rows: trips that may wait to be folded, at most; in the loop form only. Default: twice the width.
      cost: [J] numbers above 0, such as minibatches of each trip. Trips of one wave then cost at most twice as much
        as each other, so that none waits long for the largest, and the longest come first. Default: all equal.
      mixed: trips of all costs may share a wave, as they always may in the matrix form. With few lanes, short trips
        still wait little for long ones.
      lanes: trips of a wave that train side by side, then the next ones. Default: all of the wave.
      form: "loop", one server step after the other, or "matrix", one product of matrices for each wave; the latter
        for linear rules and server optimizers.
      client_state: whether clients keep something between their trips (``jafl.ClientStateRequest``): no trip then
        trains before its client's last one has been folded, and so no wave holds a client twice, in either form.

    Returns:
      The plan; ``trip_by_trip`` makes the one of width 1.

    Raises:
      SettingError: for a width below 1, fewer rows or lanes than 1, more lanes than the width, costs of another
        length or not above 0, an unknown form, or rows in the matrix form.

    Examples:
      >>> delay = jafl.delays.constant(1.0)
      >>> schedule = jafl.asynchronous(num_clients=4, concurrency=4, delay=delay, server_steps=8)
      >>> jafl.in_waves(schedule, 4).wave  # every round of four arrivals is a wave
      array([0, 0, 0, 0, 1, 1, 1, 1], dtype=int32)
    """
    check_schedule(schedule)
    choose("form", form, dict.fromkeys(FORMS))
    whole_number("width", width, 1)
    lanes = whole_number("lanes", width if lanes is None else lanes, 1)
    require(lanes <= width, "lanes", lanes, f"at most the width, {width}")
    # Trips whose costs lie within a factor of two are of one kind: none of them waits long beside another.
    kind = _kinds(schedule, cost)
    after = previous_trips(schedule) if client_state else None
    if form == "matrix":
        require(rows is None, "rows", rows, "None in the matrix form, where no trip waits for another wave")
        wave, wave_before = _consecutive_waves(schedule, width, after)
        row = _places(wave, cost)
        # Versions live until their trips are folded: so a wave may be cut in parts that train when they are folded.
        trained_in = schedule.step
    else:
        rows = whole_number("rows", 2 * width if rows is None else rows, 1)
        # With few lanes long trips are taken first, and short ones fill the other lanes: kinds are not needed.
        kind = [0] * schedule.num_trips if mixed else kind
        wave, wave_before, row = _fill_waves(schedule, width, rows, kind, after)
        # A version may go once its last wave has trained: a rule that reads the start keeps it with the result.
        trained_in = schedule.step[wave_before][wave]
    plan = _plan(schedule, trained_in, width, wave, wave_before, row, cost, lanes)
    return dataclasses.replace(plan, form=form)


def _consecutive_waves(
    schedule: EventSchedule, width: int, after: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """``wave`` and ``wave_before`` of an ``ExecutionPlan``: each wave's trips are folded one after the other.

    A wave ends before the first trip whose version does not exist when the wave trains, or that comes ``after``
    another one of this wave; ``after`` as for ``_fill_waves``.
    """
    # The trip before whose fold each trip can train.
    needed = schedule.step_offsets[schedule.download_version]
    if after is not None:
        needed = np.maximum(needed, after + 1)
    # Greedy: as long as the width allows, up to the first trip that needs something of this very wave.
    wave_before = [0]
    while wave_before[-1] < schedule.num_trips:
        begin = wave_before[-1]
        late = needed[begin : begin + width] > begin
        wave_before.append(begin + (int(np.argmax(late)) if late.any() else len(late)))
    first = np.array(wave_before[:-1], np.int32)
    return np.repeat(np.arange(len(first), dtype=np.int32), np.diff(wave_before)), first


def previous_trips(schedule: EventSchedule) -> np.ndarray:
    """[J] int64: the client's last applied trip before each trip, -1 where there is none."""
    order = np.argsort(schedule.client, kind="stable")  # client by client, each in order of application
    same = schedule.client[order][1:] == schedule.client[order][:-1]
    previous = np.full(schedule.num_trips, -1, np.int64)
    previous[order[1:]] = np.where(same, order[:-1], -1)
    return previous


def _fill_waves(
    schedule: EventSchedule, width: int, rows: int, kind: list[int], after: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """``wave``, ``wave_before`` and ``row`` of an ``ExecutionPlan``; only trips of one kind share a wave.

    after: [J] for each trip the one that is folded before it trains, or -1; None: there are none.
    """
    # Trips by the version that they train from: those of a new version become ready together.
    by_version = np.argsort(schedule.download_version, kind="stable").tolist()
    first = np.searchsorted(schedule.download_version[by_version], np.arange(schedule.num_steps + 1)).tolist()
    ready: dict[int, list[int]] = {number: [] for number in set(kind)}
    # Low rows first, and freed rows before new ones: ``num_rows`` is then the most trips that wait at once.
    free_rows = list(range(rows - 1, -1, -1))
    wave, row = [-1] * schedule.num_trips, [0] * schedule.num_trips
    wave_before: list[int] = []
    known_versions = 0  # those whose trips are ready
    waits_for = [-1] * schedule.num_trips if after is None else after.tolist()
    held_back: dict[int, int] = {}  # trips whose version exists, by the trip that has to be folded first
    for folded, step in enumerate(schedule.step.tolist()):
        # Nobody has trained this trip yet: a wave is due now, and takes whoever else is ready.
        if wave[folded] < 0:
            for version in range(known_versions, step + 1):
                for trip in by_version[first[version] : first[version + 1]]:
                    if waits_for[trip] < folded:
                        heapq.heappush(ready[kind[trip]], trip)
                    else:
                        held_back[waits_for[trip]] = trip
            known_versions = step + 1
            # The heap gives the trips that are folded soonest, so rows are freed early and no trip waits for long.
            ready_trips = ready[kind[folded]]
            for _ in range(min(width, len(free_rows), len(ready_trips))):
                trip = heapq.heappop(ready_trips)
                wave[trip], row[trip] = len(wave_before), free_rows.pop()
            wave_before.append(folded)
        # Folded: its row can take another trip, and the next trip of its client can train.
        free_rows.append(row[folded])
        if (trip := held_back.pop(folded, None)) is not None:
            heapq.heappush(ready[kind[trip]], trip)
    return np.array(wave, np.int32), np.array(wave_before, np.int32), np.array(row, np.int32)


def _kinds(schedule: EventSchedule, cost: np.ndarray | None) -> list[int]:
    """[J]: the kind of each trip, by its cost; trips of one kind may share a wave."""
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
    slot_of, write_slot, num_slots = _assign_slots(schedule, trained_in)
    return ExecutionPlan(
        read_slot=slot_of[schedule.download_version],
        write_slot=write_slot,
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


def _assign_slots(schedule: EventSchedule, trained_in: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
    """The slot of each version [T + 1], ``write_slot`` and ``num_slots`` of an ``ExecutionPlan``."""
    steps = schedule.num_steps
    # A version is needed until the last step in which one of its trips trains; -1: nobody trains from it.
    last_use = np.full(steps + 1, -1)
    np.maximum.at(last_use, schedule.download_version, trained_in)
    ends: list[list[int]] = [[] for _ in range(steps)]
    for version in np.flatnonzero(last_use >= 0).tolist():
        ends[last_use[version]].append(version)

    needed = (last_use >= 0).tolist()
    slot_of, write_slot = [0] * (steps + 1), [-1] * steps
    free: list[int] = []
    num_slots = 1  # version 0, which the first trips read
    for step in range(steps):
        # Before this step's own version is written its trips have trained: their slots are free for it.
        free.extend(slot_of[version] for version in ends[step])
        if needed[step + 1]:
            if free:
                slot = free.pop()
            else:
                slot, num_slots = num_slots, num_slots + 1
            slot_of[step + 1] = write_slot[step] = slot
    written = np.array(write_slot, np.int32)
    # Versions that nobody reads go to one more slot, past all others: the loop then always writes.
    written[written < 0] = num_slots
    return np.array(slot_of, np.int32), written, num_slots


def _places(wave: np.ndarray, cost: np.ndarray | None) -> np.ndarray:
    """[J] int32: where each trip stands in its wave: by falling cost, then in the order of application."""
    # The longest trips come first: where lanes take turns, short ones fill the gaps at the end.
    order = np.lexsort((np.zeros(len(wave)) if cost is None else -np.asarray(cost, np.float64), wave))
    size = np.bincount(wave)
    place = np.empty(len(wave), np.int32)
    place[order] = np.arange(len(wave)) - np.repeat(np.cumsum(size) - size, size)
    return place


REMEDY = "Make it with jafl.trip_by_trip or jafl.in_waves, from this very schedule."


def check_plan(schedule: EventSchedule, plan: ExecutionPlan, *, client_state: bool = False) -> None:
    """Refuses a plan that does not compute this schedule.

    Each trip must find its version in the slot that it reads, train before it is folded, and wait undisturbed.
    With client_state, where clients keep something between their trips, each trip must train after its client's last
    applied one has been folded.

    Raises:
      SettingError: for a plan of another schedule, or one that was changed.
    """
    _check_lengths(schedule, plan)
    _check_waves(schedule.num_trips, plan)
    trained_before = plan.wave_before[plan.wave]
    late = np.flatnonzero(trained_before > np.arange(schedule.num_trips))
    require(not late.size, "a trip that is folded before it trains", late[:1], "none", REMEDY)
    if plan.form == "matrix":
        _check_consecutive(plan)
        # A wave may be cut, and a later part trains in the steps of its folds: versions must last until then.
        _check_slots(schedule, plan, np.arange(schedule.num_trips))
    _check_rows(plan, trained_before)
    _check_slots(schedule, plan, trained_before)
    if client_state:
        early = np.flatnonzero(previous_trips(schedule) >= trained_before)
        name = "a trip that trains before its client's last one is folded"
        form = ', form="matrix"' if plan.form == "matrix" else ""
        remedy = (
            f"Make the plan with jafl.in_waves(schedule, width{form}, client_state=True), or with "
            "jafl.trip_by_trip."
        )
        require(not early.size, name, early[:1].tolist(), "none where clients keep a state", remedy)


def computes(schedule: EventSchedule, plan: ExecutionPlan) -> bool:
    """Whether a plan computes this schedule; see ``check_plan``."""
    try:
        check_plan(schedule, plan)
    except SettingError:
        return False
    return True


def _check_lengths(schedule: EventSchedule, plan: ExecutionPlan) -> None:
    """Refuses columns of another length than the schedule demands."""
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
    require(
        np.array_equal(plan.first_trip, schedule.step_offsets),
        "the plan's first_trip",
        plan.first_trip,
        "the schedule's step_offsets",
        REMEDY,
    )


def _check_waves(trips: int, plan: ExecutionPlan) -> None:
    """Refuses waves that do not exist or are too large, and two trips in one place of a wave."""
    waves = len(plan.wave_before)
    exist = trips == 0 or (plan.wave.min() >= 0 and plan.wave.max() < waves)
    require(exist, "the plan's wave", plan.wave, f"from 0 to {waves - 1}", REMEDY)
    largest = int(np.bincount(plan.wave, minlength=1).max())
    fits = largest <= plan.width
    require(fits, "the largest of the plan's waves", largest, f"its width, {plan.width}", REMEDY)
    keys = np.sort(plan.wave.astype(np.int64) * plan.width + plan.place)
    inside = trips == 0 or (plan.place.min() >= 0 and plan.place.max() < plan.width)
    all_differ = inside and bool(np.all(np.diff(keys) > 0))
    allowed = "another one for each trip of a wave, below its width"
    require(all_differ, "the plan's place", plan.place, allowed, REMEDY)
    fits = 1 <= plan.lanes <= plan.width
    require(fits, "the plan's lanes", plan.lanes, f"from 1 to its width, {plan.width}", REMEDY)
    # At most one wave is due before a trip: the loop looks for one only.
    rising = bool(np.all(np.diff(plan.wave_before) > 0))
    require(rising, "the plan's wave_before", plan.wave_before, "increasing", REMEDY)


def _check_slots(schedule: EventSchedule, plan: ExecutionPlan, trained_before: np.ndarray) -> None:
    """Refuses a plan in which a trip finds another version in the slot that it reads than the one that it needs."""
    steps = schedule.num_steps
    # A trip trained in step t finds in a slot what the last step before t has written there.
    # Version 0 is in slot 0 at the start; step t writes version t + 1 to ``write_slot[t]``.
    slot = np.concatenate([[0], plan.write_slot]).astype(np.int64)
    written = slot * (steps + 1) + np.arange(steps + 1)  # version v is there from step v on
    order = np.argsort(written)
    wanted = plan.read_slot.astype(np.int64) * (steps + 1) + schedule.step[trained_before]
    version = order[np.maximum(np.searchsorted(written[order], wanted, side="right") - 1, 0)]
    version = np.where(slot[version] == plan.read_slot, version, -1)
    wrong = np.flatnonzero(version != schedule.download_version)
    if wrong.size:
        trip = wrong[0]
        name, needed = f"the version that the plan has for trip {trip}", int(schedule.download_version[trip])
        require(False, name, int(version[trip]), f"{needed}", REMEDY)


def _check_rows(plan: ExecutionPlan, trained_before: np.ndarray) -> None:
    """Refuses a plan in which a wave writes to a row whose trip has not been folded."""
    inside = plan.row.min(initial=0) >= 0 and plan.row.max(initial=0) < plan.num_rows
    require(inside, "the plan's rows", plan.row, f"from 0 to {plan.num_rows - 1}", REMEDY)
    order = np.lexsort((trained_before, plan.row))
    same_row = np.diff(plan.row[order]) == 0
    taken = np.flatnonzero(same_row & (trained_before[order][1:] <= order[:-1]))
    require(not taken.size, "a trip whose row is taken before it is folded", order[taken[:1]], "none", REMEDY)


def _check_consecutive(plan: ExecutionPlan) -> None:
    """Refuses waves in which a trip waits while another wave trains: the matrix form keeps one wave."""
    members = np.bincount(plan.wave, minlength=len(plan.wave_before))
    # As trips train before they are folded, waves that begin where those before them end have them in order.
    later = np.flatnonzero(plan.wave_before != np.cumsum(members) - members)
    if later.size:
        allowed = "none in the matrix form, where a wave holds trips that are folded one after the other"
        remedy = 'Make it with jafl.in_waves(schedule, width, form="matrix").'
        require(
            False, "the first wave that trains while an earlier one waits", int(later[0]), allowed, remedy
        )
