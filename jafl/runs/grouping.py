"""Groups of runs: which experiments train in one program, where that is quicker than one after the other."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jafl.config.experiment import Experiment
from jafl.engine.plan.device_memory import count_bytes, device_memory
from jafl.engine.plan.make_program import slots_for
from jafl.engine.plan.operations import has_convolutions, has_large_convolutions
from jafl.engine.plan.run import Run
from jafl.engine.plan.slots_and_waves import trip_by_trip
from jafl.simulation import stacking
from jafl.simulation.make_run_group import same_trips
from jafl.specifications import as_specification

# On a CPU a group is quicker as long as all its models have at most this many bytes (experiments/tools/benchmarks/
# sweeps_speed). A rule with client memory reads and writes more arrays, and runs with their own schedules fetch their
# rows of it one by one: both allow less.
CPU_BYTES = 2**20
CPU_BYTES_OF_MEMORY, CPU_BYTES_OF_OWN_MEMORY = 2**18, 2**17
# The share of an accelerator's memory that the carries of a group may take.
SHARE_OF_MEMORY = 0.5
# Runs of one group differ in their numbers of trips by this factor at most: a shorter run computes to the end of the
# longest one.
LONGEST_OVER_SHORTEST = 1.25


def group_experiments(experiments: Sequence[Experiment]) -> list[list[int]]:
    """The numbers of the experiments in groups, ordered by the first number of each.

    Experiments of one group differ only in numbers with a fraction and in the contents of arrays (so in seeds, rates,
    exponents), run on one device, and are about equally long. In the matrix form they may differ in rules, buffer
    sizes and server optimizers, too. A group has at most ``group_limit`` runs.
    """
    kinds: list[tuple[Any, list[int]]] = []
    for number, experiment in enumerate(experiments):
        kind = _kind(experiment)
        for other_kind, numbers in kinds:
            if kind == other_kind and _about_as_long(experiments[numbers[0]], experiment):
                numbers.append(number)
                break
        else:
            kinds.append((kind, [number]))
    groups = []
    for _, numbers in kinds:
        groups += evenly(numbers, _limit([experiments[number] for number in numbers]))
    return sorted(groups)


def evenly(items: Sequence[Any], most: int) -> list[list[Any]]:
    """``items`` in parts of at most ``most``; all of one size, unless that takes more than twice as many parts.

    Groups of one size share a compiled program.
    """
    count = len(items)
    fewest = -(-count // most)
    parts = next((parts for parts in range(fewest, 2 * fewest + 1) if count % parts == 0), fewest)
    return [[items[number] for number in part] for part in np.array_split(np.arange(count), parts)]


def _limit(experiments: Sequence[Experiment]) -> int:
    """The most of these experiments that pay to train in one program."""
    if experiments[0].preparation.linear_form is None:
        return group_limit([experiment.run for experiment in experiments])
    # In the matrix form a run costs what it costs alone, but for the data that all share.
    alone = max(
        experiment.memory.needed - experiment.memory.parts["data"] - experiment.memory.parts["evaluation"]
        for experiment in experiments
    )
    return max(1, int(SHARE_OF_MEMORY * device_memory() / alone))


def group_limit(runs: Sequence[Run], platform: str | None = None) -> int:
    """The most of these runs, which fit each other, that pay to train in one program; at least 1.

    On an accelerator a trip of a small model leaves most of it idle: as many runs as memory holds. On a CPU a group
    saves the fixed cost of each operation, which pays while all models fit into its caches, and never with
    convolutions, which it computes run by run. Where server steps of runs differ in size, each trip selects, for
    every run, between the old and the new carry: all client memory, for a rule that has some.
    """
    first = runs[0]
    if len(runs) == 1:
        return 1
    same_steps = all(_same_steps(run.schedule.step_offsets, first.schedule.step_offsets) for run in runs[1:])
    if (platform or jax.default_backend()) == "cpu":
        return _limit_on_a_cpu(runs) if same_steps else 1
    remembers = _has_memory(first)
    # A TPU computes large convolutions of several runs no quicker side by side than one after the other.
    if (not same_steps and remembers) or (
        (platform or jax.default_backend()) == "tpu" and has_large_convolutions(first)
    ):
        return 1
    slots = max(slots_for(run, trip_by_trip(run.schedule)) for run in runs)
    rows = slots + (first.schedule.num_clients if remembers else 0)
    same_data = all(run.federation.x is first.federation.x for run in runs)
    data = 0 if same_data else first.federation.x.nbytes
    return max(1, int(SHARE_OF_MEMORY * device_memory() / (rows * _model_bytes(first) + data)))


def _limit_on_a_cpu(runs: Sequence[Run]) -> int:
    """``group_limit`` on a CPU, of runs whose server steps are of the same sizes."""
    first = runs[0]
    if has_convolutions(first.params):
        return 1
    largest = CPU_BYTES
    if _has_memory(first):
        shared = all(same_trips(run.schedule, first.schedule) for run in runs)
        largest = CPU_BYTES_OF_MEMORY if shared else CPU_BYTES_OF_OWN_MEMORY
        if not shared:
            largest = min(largest, int(CPU_BYTES / max(_rows_selected(first), 1)))
    return max(1, largest // _model_bytes(first))


def _rows_selected(run: Run) -> float:
    """How many rows of client memory a server step selects in a group of runs with schedules of their own.

    Their loops over recalled rows end at different times, so each round selects, for every run, between the old and
    the new memory: all of its rows. With 400 clients ACED on softmax regression takes twice as long in a group.
    """
    recalls = as_specification(run.rule).build().recalls
    recalled = recalls(run.schedule).first_row[-1] if recalls else 0
    return recalled / run.schedule.num_steps * run.schedule.num_clients


def _has_memory(run: Run) -> bool:
    """Whether the run has a row for each client: of a rule with memory, or of clients that keep a state."""
    return as_specification(run.rule).build().remembers is not None or run.keeps_client_state


def _model_bytes(run: Run) -> int:
    """Bytes of one model, parameters that are not trained included."""
    return max(1, count_bytes((run.params, run.client_work)))


def as_runs(experiments: Sequence[Experiment]) -> list[Run]:
    """The runs of the experiments; those evaluated on the same training examples share their evaluators."""
    shared: dict[tuple[int, ...], Any] = {}
    runs = []
    for experiment in experiments:
        evaluators = None
        if experiment.settings.train_accuracy:
            federation = experiment.federation
            arrays = (federation.x, federation.test_x, *jax.tree.leaves(experiment.model))
            identity = tuple(map(id, arrays))
            evaluators = shared.get(identity) or shared.setdefault(identity, experiment.evaluators())
        runs.append(experiment.run._replace(evaluators=evaluators))
    return runs


def _kind(experiment: Experiment) -> tuple:
    """Equal for two experiments that may be in one group."""
    federation, run = experiment.federation, experiment.run
    described: tuple[Any, ...] = (run.client_work, run.rule, run.server_optimizer, run.params)
    form, rule_key = experiment.preparation.linear_form, None
    if form is not None:
        described = (run.client_work, run.params)
        rule_key = (experiment.rule.build().memory_precision, form.reads_start)
    return (
        rule_key,
        experiment.settings.plan_form,
        *map(stacking.kind, described),
        federation.num_clients,
        *((array.dtype, array.shape[1:]) for array in (federation.x, federation.y)),
        id(experiment) if experiment.preparation.program.placement.number > 1 else None,
    )


def _about_as_long(first: Experiment, second: Experiment) -> bool:
    lengths = [experiment.schedule.num_trips for experiment in (first, second)]
    return max(lengths) <= LONGEST_OVER_SHORTEST * min(lengths)


def _same_steps(first: np.ndarray, second: np.ndarray) -> bool:
    """Whether server steps, by their offsets, are of the same sizes up to the end of the shorter run."""
    length = min(len(first), len(second))
    return np.array_equal(first[:length], second[:length])
