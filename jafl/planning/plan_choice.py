"""Which devices and which plan suit a rule: what to do when the user does not say."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from jafl.engine.devices import Spread, spread_over
from jafl.planning.device_memory import bytes_of, device_memory
from jafl.records import EventSchedule, ExecutionPlan
from jafl.schedule import bucket, in_waves, rounds, trip_by_trip
from jafl.specifications import as_specification

# Trips in a wave for each device that trains them side by side, or one after the other.
WIDTH_TOGETHER, WIDTH_APART = 64, 8
# What a round of minibatches, or of folding what they made, costs whatever its width, in lanes: not measured on an
# accelerator.
LANES_WORTH_A_ROUND = 16
# Of the device's memory, what trained trips that wait may take.
WAITING_SHARE_OF_MEMORY = 0.125


def default_spread(
    schedule: EventSchedule, rule: Any, devices: int | None = None, together: bool | None = None
) -> Spread:
    """The devices to use: as many as asked for; else all, but one CPU device where several would only wait.

    On CPUs sharing the trips of a wave costs more than it saves; sharing the steps of an additive rule pays.

    Raises:
      SettingError: as ``spread_over`` does.
    """
    spread = spread_over(devices, together)
    if devices is None and not spread.together and not _shares_steps(schedule, rule, spread):
        return spread_over(1, together)
    return spread


def default_plan(
    schedule: EventSchedule,
    rule: Any,
    params: Any,
    spread: Spread,
    *,
    cost: np.ndarray | None = None,
    fits: Callable[[ExecutionPlan], bool] | None = None,
) -> ExecutionPlan:
    """The plan that suits a rule and the devices: trip by trip where a device gains nothing from width.

    One CPU device trains no quicker side by side. Several devices share the trips of a step of an additive rule, each
    folding its own; for other rules, and on accelerators, trips of this step and of later ones train in waves.

    cost: [J] minibatches of each trip; where they differ, trips side by side are of similar length. fits: whether a
    plan fits into memory; waves are halved until one does, or a device trains one trip at a time.
    """
    number = spread.number
    if not spread.together and (number == 1 or _shares_steps(schedule, rule, spread)):
        return trip_by_trip(schedule)
    width = WIDTH_TOGETHER if spread.together else WIDTH_APART
    room = int(device_memory() * WAITING_SHARE_OF_MEMORY / (2 * max(bytes_of(params), 1)))
    most = max(schedule.concurrency, int(np.max(np.diff(schedule.step_offsets))))
    width = max(1, min(width, most, room))
    unequal = None if cost is None or np.all(cost == cost[:1]) else cost

    def waves(width: int) -> ExecutionPlan:
        if not spread.together:
            return in_waves(schedule, number * width)
        return _quickest_waves(schedule, number, width, unequal)

    plan = waves(width)
    while fits and width > 1 and not fits(plan):
        width //= 2
        plan = waves(width)
    return plan


def quickest_lanes(sizes: np.ndarray) -> int:
    """How many to take side by side of groups of these ``sizes`` [G], whose members all cost the same.

    A group takes as many rounds as it needs, and empty lanes are paid for. The largest group's size (as arrays get
    it) or a power of two below: seeds then seldom differ in it, and share a compiled program.
    """
    largest = bucket(int(sizes.max()))
    choices = [*(1 << power for power in range((largest - 1).bit_length())), largest]
    spent = [np.sum(-(-sizes // lanes)) * (LANES_WORTH_A_ROUND + lanes) for lanes in choices]
    return choices[int(np.argmin(spent))]


def _shares_steps(schedule: EventSchedule, rule: Any, spread: Spread) -> bool:
    """Whether each device can fold a share of every step: two trips or more each."""
    largest_step = int(np.max(np.diff(schedule.step_offsets)))
    return bool(as_specification(rule).build().additive) and largest_step >= 2 * spread.number


def _quickest_waves(
    schedule: EventSchedule, devices: int, width: int, cost: np.ndarray | None
) -> ExecutionPlan:
    """Waves of at most ``width`` trips on each device, with the lanes that are quickest; ``cost`` [J] if it differs.

    Lanes wait for the longest of them, and those that a wave does not fill compute in vain. Waves of trips that are
    alike, or few lanes that take a wave's trips in turns, from the longest on, wait less but take more rounds: the
    sum over rounds of what a round costs decides.
    """
    minibatches = np.ones(schedule.num_trips) if cost is None else cost
    choices: list[tuple[float, int, ExecutionPlan]] = []
    for mixed in (False,) if cost is None else (False, True):
        plan = in_waves(schedule, devices * width, cost=cost, mixed=mixed)
        lanes = width
        while lanes >= 1:  # halves, so that runs whose lanes differ have waves of one shape
            seconds = rounds(plan, minibatches, devices * lanes) * (LANES_WORTH_A_ROUND + lanes)
            choices.append((seconds, len(choices), dataclasses.replace(plan, lanes=devices * lanes)))
            lanes //= 2
    return min(choices)[2]
