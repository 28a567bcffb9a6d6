"""Experiments that can go together, in one program each group, where that is quicker than one after the other."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jafl.config.experiment import Experiment
from jafl.planning.device_memory import bytes_of, device_memory
from jafl.planning.program import slots_for
from jafl.planning.run import Run
from jafl.records import History
from jafl.schedule import trip_by_trip
from jafl.simulation import stacking
from jafl.simulation.batch import same_trips
from jafl.simulation.divergence import DivergenceError
from jafl.simulation.simulate_many import simulate_many
from jafl.specifications import as_specification

# Bytes of all models, up to which members are quicker together on a CPU (experiments/benchmarks/sweeps_speed). A
# rule with client memory goes through more arrays, and members with schedules of their own fetch their rows apart.
CPU_BYTES = 2**20
CPU_BYTES_OF_MEMORY, CPU_BYTES_OF_OWN_MEMORY = 2**18, 2**17
# Of an accelerator's memory, what the carries of all members may take.
SHARE_OF_MEMORY = 0.5
# A run that is this many times as long as the shortest waits for nobody: it goes with others of its length.
LONGEST_OVER_SHORTEST = 1.25


def simulate_together(experiments: Sequence[Experiment]) -> list[History | DivergenceError]:
    """Trains all experiments, groups of them in one program each (``groups_together``), where that is quicker.

    It changes no result of ``Experiment.simulate`` but by rounding.

    Returns:
      In order, for each the history, or the ``DivergenceError`` of one that reached NaN or infinity.

    Raises:
      SettingError: as ``jafl.simulate`` does.
    """
    outcomes: dict[int, History | DivergenceError] = {}
    for group in groups_together(experiments):
        if len(group) == 1:
            outcomes[group[0]] = _alone(experiments[group[0]])
        else:
            found = simulate_many(as_runs([experiments[number] for number in group]))
            outcomes |= {number: one for number, one in zip(group, found, strict=True) if one is not None}
    return [outcomes[number] for number in range(len(experiments))]


def groups_together(experiments: Sequence[Experiment]) -> list[list[int]]:
    """The numbers of the experiments, in groups that go together; each in its order, by their first members.

    Experiments fit each other if they differ in numbers with a fraction and in what arrays hold alone (so seeds,
    rates, exponents), run on one device, and are about equally long. Groups are then no larger than
    ``most_together``.
    """
    alike: list[tuple[Any, list[int]]] = []
    for number, experiment in enumerate(experiments):
        kind = _kind(experiment)
        for other, members in alike:
            if kind == other and _about_as_long(experiments[members[0]], experiment):
                members.append(number)
                break
        else:
            alike.append((kind, [number]))
    groups = []
    for _, members in alike:
        most = most_together([experiments[number].run for number in members])
        groups += evenly(members, most)
    return sorted(groups)


def evenly(members: Sequence[Any], most: int) -> list[list[Any]]:
    """``members`` in runs of at most ``most``, all of one size if that takes at most twice as many as need be.

    Groups of one size share a compiled program.
    """
    count = len(members)
    fewest = -(-count // most)
    parts = next((parts for parts in range(fewest, 2 * fewest + 1) if count % parts == 0), fewest)
    return [[members[number] for number in part] for part in np.array_split(np.arange(count), parts)]


def most_together(runs: Sequence[Run], platform: str | None = None) -> int:
    """How many of these runs, which fit each other, it pays to train in one program; 1 if none together.

    On an accelerator a trip of a small model leaves most of it idle: as many as memory holds. On a CPU members share
    what an operation costs whatever its size, which counts as long as all their models are small enough for its
    caches, and not at all where convolutions take the members one by one. Where the server steps of runs are of
    different sizes, each trip selects, for every member, between what everything that lasts would be and what it was:
    all client memory, for a rule that has some.

    platform: "cpu", or another of JAX's names; that of the default device if None.
    """
    first = runs[0]
    if len(runs) == 1:
        return 1
    rule = as_specification(first.rule).build()
    same_steps = all(_same_steps(run.schedule.step_offsets, first.schedule.step_offsets) for run in runs[1:])
    model = max(1, bytes_of((first.params, first.client_work)))  # with parameters that nobody trains
    if (platform or jax.default_backend()) == "cpu":
        if any(
            np.ndim(leaf) == 4 for leaf in jax.tree.leaves(first.params)
        ):  # kernels of images' convolutions
            return 1
        largest = CPU_BYTES
        if rule.remembers:
            shared = all(same_trips(run.schedule, first.schedule) for run in runs)
            largest = CPU_BYTES_OF_MEMORY if shared else CPU_BYTES_OF_OWN_MEMORY
        return max(1, largest // model) if same_steps else 1
    if not same_steps and rule.remembers:
        return 1
    slots = max(slots_for(run, trip_by_trip(run.schedule)) for run in runs)
    rows = slots + (first.schedule.num_clients if rule.remembers else 0)
    same_data = all(run.federation.x is first.federation.x for run in runs)
    data = 0 if same_data else first.federation.x.nbytes
    return max(1, int(SHARE_OF_MEMORY * device_memory() / (rows * model + data)))


def as_runs(experiments: Sequence[Experiment]) -> list[Run]:
    """The experiments as runs; those that are evaluated on the same training examples share the evaluators."""
    shared: dict[tuple[int, ...], Any] = {}
    made = []
    for experiment in experiments:
        evaluators = None
        if experiment.settings.train_accuracy:
            read = (experiment.federation.x, experiment.federation.test_x, *jax.tree.leaves(experiment.model))
            held = tuple(map(id, read))
            evaluators = shared.get(held) or shared.setdefault(held, experiment.evaluators())
        made.append(experiment.run._replace(evaluators=evaluators))
    return made


def _alone(experiment: Experiment) -> History | DivergenceError:
    try:
        return experiment.simulate()
    except DivergenceError as error:
        return error


def _kind(experiment: Experiment) -> tuple:
    """What must be equal for two experiments to go together."""
    federation, run = experiment.federation, experiment.run
    described = (run.client_work, run.rule, run.server_optimizer, run.params)
    devices = experiment.settings.devices or len(jax.local_devices())
    return (
        *(stacking.kind(one) for one in described),
        federation.num_clients,
        *((array.dtype, array.shape[1:]) for array in (federation.x, federation.y)),
        id(experiment) if devices > 1 else None,
    )


def _about_as_long(one: Experiment, other: Experiment) -> bool:
    lengths = [experiment.schedule.num_trips for experiment in (one, other)]
    return max(lengths) <= LONGEST_OVER_SHORTEST * min(lengths)


def _same_steps(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether steps are of the same sizes, as far as both go."""
    length = min(len(one), len(other))
    return np.array_equal(one[:length], other[:length])
