"""The execution plan: from which snapshot slot each trip trains, and where each new version goes."""

import numpy as np

from jafl.records import EventSchedule, ExecutionPlan, require


def trip_by_trip(schedule: EventSchedule) -> ExecutionPlan:
    """A plan that trains one trip at a time, in the order of application, with the fewest snapshot slots.

    A version lives from the step that makes it to the last step that applies a trip trained from it; a version
    that no applied trip reads gets no slot. Slots are assigned like registers, by last use: the number of slots
    is the largest number of versions that live at one moment, which no plan in this order can undercut.
    """
    steps = schedule.num_steps
    last_use = np.full(steps + 1, -1)
    np.maximum.at(last_use, schedule.download_version, schedule.step)
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
    )


def check_plan(schedule: EventSchedule, plan: ExecutionPlan) -> None:
    """Raises SettingError unless a plan computes this schedule: each trip finds its version in the slot it reads."""
    require(plan.width == 1, "the plan's width", plan.width, "1: wider plans are not executed yet")
    lengths = (len(plan.read_slot), len(plan.write_slot), len(plan.first_trip))
    expected = (schedule.num_trips, schedule.num_steps, schedule.num_steps + 1)
    require(
        lengths == expected,
        "the plan's lengths (trips, steps, steps + 1)",
        lengths,
        f"{expected}, the schedule's",
    )
    remedy = "Make it with jafl.trip_by_trip(schedule), of this very schedule."
    require(
        np.array_equal(plan.first_trip, schedule.step_offsets),
        "the plan's first_trip",
        plan.first_trip,
        "the schedule's step_offsets",
        remedy,
    )
    # Of all that is written to a slot, a trip of step t finds what the last step before t has left there.
    steps = schedule.num_steps
    slot = np.concatenate([[0], plan.write_slot]).astype(np.int64)
    written = slot * (steps + 1) + np.arange(steps + 1)  # version v is there from step v on
    order = np.argsort(written)
    wanted = plan.read_slot.astype(np.int64) * (steps + 1) + schedule.step
    found = order[np.maximum(np.searchsorted(written[order], wanted, side="right") - 1, 0)]
    found = np.where(slot[found] == plan.read_slot, found, -1)
    wrong = np.flatnonzero(found != schedule.download_version)
    if wrong.size:
        trip = wrong[0]
        version = int(schedule.download_version[trip])
        require(
            False, f"the version that the plan has for trip {trip}", int(found[trip]), f"{version}", remedy
        )


def bucket(size: int) -> int:
    """``size`` rounded up to a power of two times 4, 5, 6 or 7 (below 8: to itself), at most a quarter more.

    Arrays get such lengths, so that schedules of nearly the same size share one compiled program.
    """
    unit = 1 << max(0, size.bit_length() - 3)
    return -(-size // unit) * unit
