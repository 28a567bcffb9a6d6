"""Several programs of the engine as one: what they have in common once, what is each one's own stacked.

Members are batched by ``vmap`` over the engine's own loop. What all of them read alike (data, and whatever follows
from a schedule that they share) has no axis of members: it is there once, and loops whose bounds it gives run no
longer than one member's. Where bounds differ, loops run until the longest is through, and the others keep what they
had.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jafl import engine
from jafl.clients import ClientData
from jafl.errors import SettingError, require
from jafl.jaxpr_memory import temporary_bytes
from jafl.planning.device_memory import Forecast, device_memory, forecast, readable
from jafl.specifications import Specification


class BatchTooLarge(SettingError):
    """So many runs do not fit into the device's memory together."""


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["shared", "own"], meta_fields=["structure", "is_own"]
)
@dataclasses.dataclass(frozen=True)
class Stack:
    """M programs of one structure.

    shared     leaves that all members read, in order
    own        [M, ...] the other leaves, in order
    structure  of an ``engine.Program``; is_own  of each of its leaves: whether it is in ``own``. Static.
    """

    shared: tuple
    own: tuple
    structure: Any
    is_own: tuple[bool, ...]

    def member(self, own: tuple) -> engine.Program:
        """The program whose own leaves are ``own``."""
        shared, mine = iter(self.shared), iter(own)
        leaves = [next(mine) if is_own else next(shared) for is_own in self.is_own]
        program: engine.Program = jax.tree.unflatten(self.structure, leaves)
        return program


@functools.partial(jax.jit, static_argnames=("slots", "num_clients"))
def allocate(stack: Stack, params: Any, *, slots: int, num_clients: int) -> engine.Carry:
    """[M, ...] of every leaf: what ``engine.allocate`` gives each member, for ``params`` [M, *P]."""

    def one(own, params):
        return engine.allocate(stack.member(own), params, slots=slots, num_clients=num_clients)

    carries: engine.Carry = jax.vmap(one)(stack.own, params)
    return carries


@functools.partial(jax.jit, donate_argnames="carries")
def run(stack: Stack, carries: engine.Carry, first_step: int, last_step: int) -> engine.Carry:
    """``engine.run`` of all members together; donates ``carries``. Steps after a member's last are of no use."""

    def one(own, carry):
        return engine.run(stack.member(own), carry, first_step, last_step)

    after: engine.Carry = jax.vmap(one)(stack.own, carries)
    return after


@jax.jit
def are_finite(params: Any) -> jax.Array:
    """[M] bool: whether all parameters of a member, of ``params`` [M, *P], are free of NaN and infinity."""

    def one(params):
        return jnp.all(jnp.array([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(params)]))

    return jax.vmap(one)(params)


@functools.partial(jax.jit, static_argnames="members")
def unstack(tree: Any, members: int) -> list[Any]:
    """One pytree for each member, of ``tree`` with leaves [M, ...]."""

    def one(member: int) -> Any:
        return jax.tree.map(lambda leaf: leaf[member], tree)

    return [one(member) for member in range(members)]


def stack(programs: Sequence[engine.Program]) -> Stack:
    """Stacks the programs of several runs, on the host or on the device.

    Arrays that are equal in all are kept once; numbers of specifications always get an axis of members, so that runs
    that differ in other numbers find their program compiled. Columns of unequal length are padded to the longest.

    Raises:
      SettingError: if programs differ in anything but numbers and the contents of arrays: says in what.
    """
    programs = _alike(programs)
    for number, program in enumerate(programs):
        _check_alike(programs[0], program, number)
    structure = jax.tree.structure(programs[0])
    flat = [jax.tree.leaves(program) for program in programs]
    stacked = [_stacked(leaves) for leaves in zip(*flat, strict=True)]
    return Stack(
        shared=tuple(leaf for leaf, is_own in stacked if not is_own),
        own=tuple(leaf for leaf, is_own in stacked if is_own),
        structure=structure,
        is_own=tuple(is_own for _, is_own in stacked),
    )


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
    stacked: Stack, carries: engine.Carry, members: int, *, evaluation: int, evaluating: int, width: int
) -> Forecast:
    """What the arrays of all members, or their shapes, and temporary values take; ``width``: that of their plans.

    evaluation, evaluating: bytes that evaluators hold, and temporary ones of an evaluation of all members.

    Raises:
      BatchTooLarge: if the device has less.
    """
    first, count = len(jax.tree.leaves(stacked)), len(jax.tree.leaves(carries))
    training = temporary_bytes(run.trace(stacked, carries, 0, 0), slice(first, first + count))
    sizes = {"evaluation": evaluation, "temporaries": max(training, evaluating)}
    found = forecast(
        stacked.member(stacked.own), carries, **sizes, width=members * width, available=device_memory()
    )
    if not found.fits:
        raise BatchTooLarge(
            f"the number of runs that go together is {members}, but must be fewer: they need "
            f"{readable(found.needed)} of device memory, which has {readable(found.available)}"
        )
    return found


def _alike(programs: Sequence[engine.Program]) -> list[engine.Program]:
    """The programs with the bounds of one and the same loop where their steps are of the same sizes.

    A run that ends before another has the other's steps after its last: what they leave is of no use anyway. And a
    run whose steps have one trip each can be looped over like one with more.
    """
    longest = max((np.asarray(program.steps.first_trip) for program in programs), key=_steps)
    spread = max((program.spread for program in programs), key=lambda spread: spread.at_once)
    due = [np.asarray(program.waves.due if program.waves else ()) for program in programs]
    if not all(np.array_equal(one, due[0]) for one in due[1:]):
        spread = spread._replace(steps_at_once=0)  # each would wait for the other's waves
    made = []
    for program in programs:
        own = np.asarray(program.steps.first_trip)
        steps = _steps(own)
        same = np.array_equal(own[: steps + 1], longest[: steps + 1])
        steps_of = program.steps._replace(first_trip=longest if same else own)
        one_each = all(other.one_trip_per_step for other in programs)
        made.append(dataclasses.replace(program, steps=steps_of, one_trip_per_step=one_each, spread=spread))
    return made


def _steps(first_trip: np.ndarray) -> int:
    """Server steps of a schedule whose ``first_trip`` is padded with its last row."""
    return int(np.searchsorted(first_trip, first_trip[-1]))


def _check_alike(first: engine.Program, other: engine.Program, number: int) -> None:
    """Raises SettingError unless ``other``, of the run ``number``, has the structure and types of ``first``."""
    for name in ("client_work", "rule", "server_optimizer"):
        mine, its = getattr(first, name), getattr(other, name)
        if kind(mine) != kind(its):
            mine, its = _what_differs(mine, its)
            allowed = f"like that of run 0, {mine}, but for numbers with a fraction"
            remedy = "Nothing else may differ, nor shapes of arrays, between runs that go together."
            require(False, f"{name} of run {number}", its, allowed, remedy)
    clients = [len(program.data.offsets) - 1 for program in (first, other)]
    allowed = f"{clients[0]}, that of run 0"
    require(clients[0] == clients[1], f"the number of clients of run {number}", clients[1], allowed)
    for name in ClientData._fields:
        mine, its = (getattr(program.data, name) for program in (first, other))
        kinds = [(array.dtype.name, array.shape[1:]) for array in (mine, its)]
        allowed = f"{kinds[0]}, that of run 0"
        setting = f"dtype and shape of an entry of the data's {name} of run {number}"
        require(kinds[0] == kinds[1], setting, kinds[1], allowed)
    for name in ("waves", "recall", "trips", "steps"):
        same = kind(getattr(first, name), of_rows=True) == kind(getattr(other, name), of_rows=True)
        require(same, f"{name} of run {number}", "of another kind", "of the kind of run 0's")


def _what_differs(mine: Specification, its: Specification) -> tuple[Specification, Specification]:
    """Both, of different kinds, with the arguments alone that make the difference."""

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
    """Structure, and of each leaf its type and shape, or that of a row: equal where leaves can be stacked."""
    leaves, structure = jax.tree.flatten(tree)
    shapes = tuple(np.shape(leaf)[of_rows:] for leaf in leaves)
    return structure, tuple(jnp.result_type(leaf) for leaf in leaves), shapes


def _stacked(leaves: Sequence[Any]) -> tuple[Any, bool]:
    """(one leaf, False) if all are the same array; (their stack [M, ...], True) else."""
    first = leaves[0]
    if np.ndim(first) == 0:  # under jit, so that a number that takes its type from others still does
        return _stack(*leaves), True
    if all(leaf is first or np.array_equal(leaf, first) for leaf in leaves[1:]):
        return first, False
    longest = max(len(leaf) for leaf in leaves)

    def padded(leaf: Any) -> np.ndarray:
        leaf = np.asarray(leaf)
        return np.concatenate([leaf, np.repeat(leaf[-1:], longest - len(leaf), axis=0)])

    return np.stack([padded(leaf) for leaf in leaves]), True


@jax.jit
def _stack(*leaves: Any) -> jax.Array:
    return jnp.stack(leaves)
