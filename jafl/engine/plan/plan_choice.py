"""Chooses devices and a plan for a run where the user does not."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from jafl.base import processes
from jafl.base.buckets import bucket
from jafl.engine.devices import Placement, place_on
from jafl.engine.plan.device_memory import count_bytes, device_memory
from jafl.engine.plan.operations import has_convolutions
from jafl.engine.plan.slots_and_waves import in_waves, rounds, trip_by_trip
from jafl.records import EventSchedule, ExecutionPlan, Params
from jafl.specifications import as_specification

# Trips in a wave for each device that trains them side by side, or one after the other.
WIDTH_SIDE_BY_SIDE, WIDTH_ONE_BY_ONE = 64, 8
# Convolutions gain nothing from lanes, by the compiler's estimate for a TPU v5e, and unfilled ones waste computation.
# On an H200 EMNIST's CNN takes 186 microseconds a trip with 8 lanes and 151 with 64, if all are filled; FedBuff with
# 1,000 clients in flight fills 41 of 64, and takes 242 and 263.
WIDTH_WITH_CONVOLUTIONS = 8
# A TPU holds so many bytes of a wave's models and updates beside its processor; where they are more, they go to
# memory and back. By the compiler's estimates for a v5e, with 1,000 clients in flight, an MLP of 784-1000-10 takes
# 46 kilocycles a trip with FedBuff in waves of 16 and 95 in waves of 64, 61 and 121 with ACE, 62 and 127 with
# FedAsync; one of 784-400-10 25 in waves of 32 and 36 in waves of 64 with FedBuff, 32 and 46 with ACE. With larger
# models all widths take about as long.
BYTES_OF_A_WAVE = 2**27
# The fixed cost of a round of minibatches, or of folding their updates, in units of one lane's cost. An H200 takes 39
# microseconds for an MLP's step alone, 134 for 64 side by side and 323 for 256: 25 to 70 lanes' worth. EMNIST's CNN
# takes 307, 1,485 for 8 and 9,640 for 64: 1 to 2.
LANES_WORTH_A_ROUND = 16
# The operations of a trip, for each parameter, from which several accelerators are quicker than one, by form. By the
# compiler's estimates for a v5e four chips take, of the time of one, with an MLP in the matrix form 1.12 at 190
# operations for each parameter and .44 at 770; in the loop form 1.47 at 1,900 and .70 at 7,700. A TPU computes
# convolutions, of more operations, in less time each: EMNIST's CNN takes 730 kilocycles a trip with FedBuff, and 219
# on one chip, at 1,400.
OPERATIONS_WORTH_SEVERAL = {"matrix": 400, "loop": 4000, "convolutions": 4000}
# The share of a device's memory that trained trips may take until they are folded.
WAITING_SHARE_OF_MEMORY = 0.125


def default_form(schedule: EventSchedule, rule: Any, placement: Placement, client_state: bool = False) -> str:
    """The form, of those that a run has, that is quickest on these devices; see ``ExecutionPlan.form``.

    Where several CPU devices are asked for, and cannot share the steps of an additive rule, the loop exchanges
    something at every fold, the matrix form twice in a wave: it was measured to be several times as quick
    (experiments/tools/benchmarks/README.md, "Loop or matrix form on a CPU").
    """
    divides = _divides_steps(schedule, rule, placement) and not client_state
    exchanges = placement.number > 1 and not placement.side_by_side and not divides
    side_by_side = placement.rows.linear_in_matrices and placement.side_by_side
    return "matrix" if side_by_side or exchanges else "loop"


def default_placement(
    schedule: EventSchedule,
    rule: Any,
    devices: int | None = None,
    together: bool | None = None,
    client_state: bool = False,
) -> Placement:
    """The devices to use: as many as requested; by default all, or one CPU device where several would mostly wait.

    On CPUs sharing the trips of a wave costs more than it saves; sharing the steps of an additive rule pays. Whether
    several accelerators pay depends on what a trip computes, see ``several_pay``.

    Raises:
      SettingError: as ``place_on`` does.
    """
    placement = place_on(devices, together)
    several = processes.count() > 1  # each of which has its part in the run
    divides = _divides_steps(schedule, rule, placement) and not client_state
    if devices is None and not (several or placement.side_by_side or divides):
        return place_on(1, together)
    return placement


def several_pay(platform: str, form: str, params: Params, operations: float | None) -> bool:
    """Whether several accelerators train a run quicker than one of them.

    They share the computing of a wave, and exchange its updates and new versions. So it pays where a trip computes
    much with each parameter that is exchanged.

    Args:
      platform: theirs, "gpu" or "tpu".
      form: of the plan, "loop" or "matrix".
      params: [*P] the model, or its shapes.
      operations: of a trip, for each parameter that is trained; None if nobody knows.
    """
    kind = "convolutions" if platform == "tpu" and has_convolutions(params) else form
    return operations is None or operations >= OPERATIONS_WORTH_SEVERAL[kind]


def default_plan(
    schedule: EventSchedule,
    rule: Any,
    params: Params,
    placement: Placement,
    *,
    cost: np.ndarray | None = None,
    fits: Callable[[ExecutionPlan], bool] | None = None,
    form: str = "loop",
    device_bytes: int | None = None,
    client_state: bool = False,
) -> ExecutionPlan:
    """The plan that suits a rule and the devices.

    One CPU device trains trip by trip, since it trains no quicker side by side. Several CPU devices share the trips
    of each step of an additive rule, and each folds its own. For other rules, and on accelerators, trips of this step
    and of later ones train in waves.

    Args:
      schedule: the events.
      rule: the algorithm.
      params: [*P] the model, or its shapes.
      placement: the devices.
      cost: [J] minibatches of each trip. Where they differ, trips of similar cost train side by side.
      fits: whether a plan fits into memory. Waves are halved until one does, or until they have one trip.
      form: "loop" or "matrix".
      device_bytes: of memory on each device. Default: as many as the default device offers.
      client_state: whether clients keep something between their trips, see ``in_waves``.
    """
    number = placement.number
    divides = _divides_steps(schedule, rule, placement) and not client_state
    if form == "loop" and not placement.side_by_side and (number == 1 or divides):
        return trip_by_trip(schedule)
    if form == "matrix":
        # Whatever the rule and the buffer size: the arms of a comparison then share one compiled program.
        width = matrix_width(params, placement, schedule.num_clients, client_state)
    else:
        width = WIDTH_SIDE_BY_SIDE if placement.side_by_side else WIDTH_ONE_BY_ONE
        memory = device_memory() if device_bytes is None else device_bytes
        # By default twice as many rows as a wave has trips wait to be folded.
        room = int(memory * WAITING_SHARE_OF_MEMORY / (2 * max(count_bytes(params), 1)))
        # No more trips can have their version at one moment than are under way, or belong to one step.
        most_in_flight = max(schedule.concurrency, int(np.max(np.diff(schedule.step_offsets))))
        width = max(1, min(width, most_in_flight, room))
    unequal = None if cost is None or np.all(cost == cost[:1]) else cost

    def waves(width: int) -> ExecutionPlan:
        if form == "loop" and placement.side_by_side:
            return _quickest_waves(schedule, number, width, unequal, client_state)
        return in_waves(schedule, number * width, form=form, client_state=client_state)

    plan = waves(width)
    while fits and width > 1 and not fits(plan):
        # By halves: each try makes a program and traces it.
        width //= 2
        plan = waves(width)
    return plan


def matrix_width(params: Params, placement: Placement, clients: int, client_state: bool = False) -> int:
    """Trips in a wave of the matrix form on each device, whatever the rule and the buffer size: they share a program.

    A wave costs the same however many of its lanes are filled. With so many clients in flight and exponential
    durations about sqrt(pi / 2 * clients) trips follow one another before one needs a newer version, however many
    devices there are: the width is the power of two that holds a device's share of them, as far as it pays at all.

    On a TPU a wave is no wider than what its processor holds: of each trip the downloaded model and the update, and
    what its client keeps, before and after it.
    """
    model_bytes = max(count_bytes(params), 1)
    room = max(1, int(device_memory() * WAITING_SHARE_OF_MEMORY / (3 * model_bytes)))
    width = WIDTH_WITH_CONVOLUTIONS if has_convolutions(params) else WIDTH_SIDE_BY_SIDE
    follow = math.ceil(math.sqrt(math.pi / 2 * clients))
    devices = placement.number if placement.platform != "cpu" else 1
    share = max(math.ceil(follow / devices), WIDTH_WITH_CONVOLUTIONS // devices)
    width = min(width, 1 << (share - 1).bit_length())
    if placement.platform == "tpu":
        held = BYTES_OF_A_WAVE // ((4 if client_state else 2) * model_bytes)
        width = min(width, max(WIDTH_WITH_CONVOLUTIONS, 1 << (max(held, 1).bit_length() - 1)))
    return min(width if placement.platform != "cpu" else WIDTH_ONE_BY_ONE, 1 << (room.bit_length() - 1))


def quickest_lanes(sizes: np.ndarray) -> int:
    """The number of lanes with which groups of these ``sizes`` [G] take least time, all items costing the same.

    A group takes as many rounds as it needs, and unfilled lanes waste computation. The result is the bucketed size of
    the largest group or a power of two below it: then it seldom depends on the seed, and seeds share a compiled
    program.
    """
    largest = bucket(int(sizes.max()))
    choices = [*(1 << power for power in range((largest - 1).bit_length())), largest]
    spent = [np.sum(-(-sizes // lanes)) * (LANES_WORTH_A_ROUND + lanes) for lanes in choices]
    return choices[int(np.argmin(spent))]


def _divides_steps(schedule: EventSchedule, rule: Any, placement: Placement) -> bool:
    """Whether each device can fold a share of every step: two trips or more each."""
    largest_step = int(np.max(np.diff(schedule.step_offsets)))
    built = as_specification(rule).build()
    return built.additive and not built.remembers and largest_step >= 2 * placement.number


def _quickest_waves(
    schedule: EventSchedule, devices: int, width: int, cost: np.ndarray | None, client_state: bool
) -> ExecutionPlan:
    """Waves of at most ``width`` trips on each device, with the number of lanes that takes least time.

    Lanes wait for the longest trip beside them, and unfilled lanes waste computation. Waves of similar trips wait
    less, and so do few lanes that take a wave's trips in turns, the longest first; but both take more rounds. The
    total cost of all rounds decides.

    cost: [J] minibatches of each trip, or None where all are equal.
    """
    minibatches = np.ones(schedule.num_trips) if cost is None else cost
    choices: list[tuple[float, int, ExecutionPlan]] = []
    for mixed in (False,) if cost is None else (False, True):
        plan = in_waves(schedule, devices * width, cost=cost, mixed=mixed, client_state=client_state)
        lanes = width
        while lanes >= 1:  # halves, so that runs whose lanes differ have waves of one shape
            seconds = rounds(plan, minibatches, devices * lanes) * (LANES_WORTH_A_ROUND + lanes)
            choices.append((seconds, len(choices), dataclasses.replace(plan, lanes=devices * lanes)))
            lanes //= 2
    return min(choices)[2]
