"""A group of runs as one program: what the runs have in common is stored once, everything else is stacked.

The runs of a group go through ``vmap`` over the engine's own loop. What all of them read (data, and whatever follows
from a schedule that they share) has no axis of runs: it is stored once, and loops whose bounds it gives run no longer
than those of one run. Where bounds differ, loops run until the longest has ended, and the other runs keep what they
had.
"""

import dataclasses
import functools
import operator
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jafl.base.errors import SettingError, require
from jafl.engine.loop import first_carry, server_steps
from jafl.engine.loop.program import Carry, Program
from jafl.engine.plan.device_memory import Forecast, device_memory, forecast, readable
from jafl.records import Params
from jafl.simulation.divergence import all_finite
from jafl.specifications import Specification


class GroupTooLarge(SettingError):
    """So many runs do not fit into the device's memory together."""


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["shared", "own"], meta_fields=["structure", "is_own"]
)
@dataclasses.dataclass(frozen=True)
class Stack:
    """The programs of M runs, of one structure.

    Attributes:
      shared: leaves that all runs read, in order.
      own: [M, ...] the other leaves, in order.
      structure: of a ``Program``; static.
      is_own: for each of its leaves, whether it is in ``own``; static.
    """

    shared: tuple
    own: tuple
    structure: Any
    is_own: tuple[bool, ...]

    def program(self, own: tuple) -> Program:
        """The program whose own leaves are ``own``."""
        # Shared leaves stay outside of ``vmap``: loops whose bounds they are run as long as those of one run.
        of_all, of_this_run = iter(self.shared), iter(own)
        leaves = [next(of_this_run) if is_own else next(of_all) for is_own in self.is_own]
        program: Program = jax.tree.unflatten(self.structure, leaves)
        return program


@functools.partial(jax.jit, static_argnames=("slots", "num_clients"))
def allocate(stack: Stack, params: Params, *, slots: int, num_clients: int) -> Carry:
    """[M, ...] of every leaf: what ``first_carry.allocate`` gives each run, for ``params`` [M, *P]."""

    def allocate_run(own, params):
        return first_carry.allocate(stack.program(own), params, slots=slots, num_clients=num_clients)

    carries: Carry = jax.vmap(allocate_run)(stack.own, params)
    return carries


# Donated: otherwise all runs' carries would be on the device twice.
@functools.partial(jax.jit, donate_argnames="carries")
def run(stack: Stack, carries: Carry, first_step: int, last_step: int) -> Carry:
    """``server_steps.run`` of all runs; donates ``carries``. Shorter runs compute until the longest ends."""

    def train_run(own, carry):
        return server_steps.run(stack.program(own), carry, first_step, last_step)

    after: Carry = jax.vmap(train_run)(stack.own, carries)
    return after


@jax.jit
def are_finite(params: Params) -> jax.Array:
    """[M] bool: whether all parameters of a run, of ``params`` [M, *P], are free of NaN and infinity."""
    return jax.vmap(all_finite)(params)


# One program for all runs: to take them out one by one would be as many calls as there are leaves and runs.
@functools.partial(jax.jit, static_argnames="runs")
def unstack(tree: Any, runs: int) -> list[Any]:
    """One pytree for each run, of ``tree`` with leaves [M, ...]."""

    return [jax.tree.map(operator.itemgetter(number), tree) for number in range(runs)]


def stack(programs: Sequence[Program]) -> Stack:
    """Stacks the programs of several runs, on the host or on the device.

    Arrays that are equal in all runs are stored once. Numbers of specifications always get an axis of runs, so that
    groups that differ in other numbers find their program compiled. Shorter columns are padded to the longest.

    Raises:
      SettingError: if programs differ in anything but numbers and the contents of arrays: says in what.
    """
    programs = _with_shared_bounds(programs)
    for number, program in enumerate(programs):
        _check_same_structure(programs[0], program, number)
    is_own, stacked = stack_leaves(programs)
    leaves, structure = jax.tree.flatten(stacked)
    shared, own = (
        tuple(leaf for leaf, its_own in zip(leaves, is_own, strict=True) if its_own == kind)
        for kind in (False, True)
    )
    return Stack(shared, own, structure, is_own)


def stack_leaves(trees: Sequence[Any]) -> tuple[tuple[bool, ...], Any]:
    """Stacks pytrees of one structure: (for each leaf whether it is stacked [M, ...], the pytree of all).

    Leaves that are equal in all are there once.
    """
    structure = jax.tree.structure(trees[0])
    columns = zip(*[jax.tree.leaves(tree) for tree in trees], strict=True)
    leaves, is_own = zip(*map(_stacked, columns), strict=True)
    return is_own, jax.tree.unflatten(structure, leaves)


def check_params(params: Sequence[Any]) -> None:
    """Raises SettingError unless structures, shapes and types of all runs' initial parameters are the same."""
    described = [
        jax.tree.map(lambda leaf: f"{jnp.result_type(leaf).name} {np.shape(leaf)}", tree) for tree in params
    ]
    for number, description in enumerate(described):
        remedy = "Runs of different models cannot go together."
        allowed = f"like those of run 0, {described[0]}"
        require(description == described[0], f"params of run {number}", description, allowed, remedy)


def stack_params(params: Sequence[Any]) -> Any:
    """[M, *P] of the runs' initial parameters, which are of the same structure."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *params)


def check_memory(
    stacked: Stack, carries: Carry, runs: int, *, evaluation: int, temporaries: int, width: int
) -> Forecast:
    """The memory that M ``runs`` take, whose ``carries`` may be shapes; their arrays must fit.

    evaluation, temporaries: bytes that evaluators hold, and an estimate of others. width: of one run's plan.

    Raises:
      GroupTooLarge: if the device has less.
    """
    sizes = {"evaluation": evaluation, "temporaries": temporaries}
    memory = forecast(
        stacked.program(stacked.own), carries, **sizes, width=runs * width, available=device_memory()
    )
    if not memory.arrays_fit:
        raise too_large(runs, memory)
    return memory


def too_large(runs: int, memory: Forecast) -> GroupTooLarge:
    """The error of so many runs that do not fit into the device's memory together."""
    return GroupTooLarge(
        f"the number of runs that go together is {runs}, but must be fewer: they need {readable(memory.needed)} of "
        f"device memory, which has {readable(memory.available)}"
    )


def _with_shared_bounds(programs: Sequence[Program]) -> list[Program]:
    """The programs with equal loop bounds where their server steps are of the same sizes.

    Shorter runs are padded to the longest; nobody reads what they compute after their last server step. A run with
    one trip in each step can be looped over like a run with more.
    """
    # Equal bounds are stored once, and then no run's loop waits for another's.
    longest = max((np.asarray(program.server.steps.first_trip) for program in programs), key=_steps)
    placement = max(
        (program.placement for program in programs), key=lambda placement: placement.trips_folded_together
    )
    # One placement for all, since it is static: what one run cannot do, no run does.
    placement = placement._replace(whole_steps=all(program.placement.whole_steps for program in programs))
    aligned_programs = []
    for program in programs:
        own = np.asarray(program.server.steps.first_trip)
        steps = _steps(own)
        same = np.array_equal(own[: steps + 1], longest[: steps + 1])
        server_steps = program.server.steps._replace(first_trip=longest if same else own)
        # A run with one trip in each step can be looped over like a run with more, and not the other way round.
        one_each = all(other.one_trip_per_step for other in programs)
        one_later = all(other.one_trip_after_first_step for other in programs)
        aligned_programs.append(
            dataclasses.replace(
                program.with_training(placement=placement).with_server(steps=server_steps),
                one_trip_per_step=one_each,
                one_trip_after_first_step=one_later,
            )
        )
    return aligned_programs


def _steps(first_trip: np.ndarray) -> int:
    """Server steps of a schedule whose ``first_trip`` is padded with its last row."""
    return int(np.searchsorted(first_trip, first_trip[-1]))


def _check_same_structure(first: Program, other: Program, number: int) -> None:
    """Raises SettingError unless ``other``, of the run ``number``, has the structure and types of ``first``."""
    described = [
        {
            "client_work": program.training.client_work,
            "rule": program.server.rule,
            "server_optimizer": program.server.optimizer,
        }
        for program in (first, other)
    ]
    for name, mine in described[0].items():
        check_same_kind(name, mine, described[1][name], number)
    clients = [len(program.data.offsets) - 1 for program in (first, other)]
    allowed = f"{clients[0]}, that of run 0"
    require(clients[0] == clients[1], f"the number of clients of run {number}", clients[1], allowed)
    for name in ("x", "y", "indices", "offsets"):
        mine, its = (getattr(program.data, name) for program in (first, other))
        # Types and shapes of entries alone: the number of examples may differ, since shorter arrays are padded.
        kinds = [(array.dtype.name, array.shape[1:]) for array in (mine, its)]
        allowed = f"{kinds[0]}, that of run 0"
        setting = f"dtype and shape of an entry of the data's {name} of run {number}"
        require(kinds[0] == kinds[1], setting, kinds[1], allowed)
    columns = [
        {
            "waves": program.waves,
            "recall": program.server.recall,
            "trips": (program.training.trips, program.server.arrivals),
            "steps": program.server.steps,
        }
        for program in (first, other)
    ]
    for name, rows in columns[0].items():
        same = kind(rows, of_rows=True) == kind(columns[1][name], of_rows=True)
        require(same, f"{name} of run {number}", "of another kind", "of the kind of run 0's")


def check_same_kind(name: str, mine: Specification, its: Specification, number: int) -> None:
    """Raises SettingError unless what the run ``number`` has as ``name`` differs from run 0's in data alone."""
    # Kinds, and not values: numbers with a fraction are data, and may differ.
    if kind(mine) != kind(its):
        mine, its = _what_differs(mine, its)
        allowed = f"like that of run 0, {mine}, but for numbers with a fraction"
        remedy = "Nothing else may differ, nor shapes of arrays, between runs that go together."
        require(False, f"{name} of run {number}", its, allowed, remedy)


def _what_differs(mine: Specification, its: Specification) -> tuple[Specification, Specification]:
    """Both specifications, of different kinds, reduced to the arguments that differ in kind."""

    def argument(of: Specification, name: str) -> Specification:
        return Specification(of.factory, {name: of.arguments[name]})

    shared = [name for name in mine.arguments if name in its.arguments and mine.factory is its.factory]
    same = {name for name in shared if kind(argument(mine, name)) == kind(argument(its, name))}
    reduced = [
        Specification(of.factory, {name: value for name, value in of.arguments.items() if name not in same})
        for of in (mine, its)
    ]
    return reduced[0], reduced[1]


def kind(tree: Any, *, of_rows: bool = False) -> tuple:
    """The structure, and each leaf's type and shape, or that of its rows: equal for trees that can be stacked."""
    leaves, structure = jax.tree.flatten(tree)
    shapes = tuple(np.shape(leaf)[of_rows:] for leaf in leaves)
    return structure, tuple(jnp.result_type(leaf) for leaf in leaves), shapes


def _stacked(leaves: Sequence[Any]) -> tuple[Any, bool]:
    """(the leaf, False) if all are the same array, else (their stack [M, ...], True)."""
    first = leaves[0]
    # Numbers always get an axis of runs, equal or not: groups that differ in other numbers share the program.
    if np.ndim(first) == 0:
        # Under jit, which keeps the types of numbers weak.
        return _stack(*leaves), True
    # The same object is the common case, and needs no look at its contents.
    if all(leaf is first or np.array_equal(leaf, first) for leaf in leaves[1:]):
        return first, False
    # Padded with the last row, as columns of one run are; nobody reads what follows a run's end.
    longest = max(len(leaf) for leaf in leaves)

    def padded(leaf: Any) -> np.ndarray:
        leaf = np.asarray(leaf)
        return np.concatenate([leaf, np.repeat(leaf[-1:], longest - len(leaf), axis=0)])

    return np.stack([padded(leaf) for leaf in leaves]), True


@jax.jit
def _stack(*leaves: Any) -> jax.Array:
    return jnp.stack(leaves)
