"""What lasts from segment to segment in the matrix form: allocates it, and says its shapes."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jafl.base.buckets import bucket
from jafl.engine.devices import ONE_DEVICE, Placement, put
from jafl.engine.forms import tiled_rows
from jafl.engine.loop import client_memory
from jafl.engine.loop.client_memory import Row
from jafl.engine.matrix.exchange import Exchange
from jafl.engine.matrix.matrix_program import MatrixRun, shared_precision
from jafl.engine.matrix.records import MEMORY_BYTES_FREELY, ClientStates, Layout, MatrixCarry, Segments
from jafl.engine.matrix.segments import SEGMENTS_PER_CHUNK
from jafl.engine.matrix.server_operations import initial_state
from jafl.engine.plan.device_memory import count_bytes
from jafl.records import Params
from jafl.specifications import Specification

# If the snapshots take no more bytes than this, then there are as many as any rule needs at this concurrency, also to
# share a program.
SNAPSHOT_BYTES_FREELY = 2**30


def allocate(runs: Sequence[MatrixRun], layout: Layout, precision: str) -> MatrixCarry:
    """The carry before the first segment.

    Args:
      runs: those of the program; their initial parameters are arrays, or under ``eval_shape`` shapes.
      layout: the columns of their matrices.
      precision: of the values in the clients' memory.

    Returns:
      The carry.
    """

    exchange = runs[0].linear_form.exchange

    def initial(run: MatrixRun) -> Any:
        rule, clients = run.program.server.rule, run.run.schedule.num_clients
        version = _first_version(rule, run.run.params, num_clients=clients, exchange=exchange)
        state_arrays = _state_arrays(
            rule,
            run.program.server.optimizer,
            run.run.params,
            num_clients=clients,
            is_array=run.linear_form.is_array,
            state_arrays=layout.state_arrays,
        )
        if not run.run.keeps_client_state:
            return state_arrays, version, ()
        return state_arrays, version, _first_state(run.program.training.client_work, run.run.params)

    slots = max(_slots(run) for run in runs) * exchange.version_arrays
    rows = max(_memory_rows(run) for run in runs)
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *map(initial, runs))
    placement = runs[0].program.placement
    sizes: dict[str, Any] = {"slots": slots, "memory_rows": rows, "precision": precision}
    if runs[0].run.keeps_client_state:
        # All runs have client work of one kind.
        sizes["client_work"] = runs[0].program.training.client_work
        sizes["state_rows"] = max(run.run.schedule.num_clients for run in runs)
    if placement.devices is None:
        return _allocate(*stacked, **sizes, tiled=placement.rows.tiled)
    # Under eval_shape nothing can be put on a device, and nothing needs to be.
    if not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(stacked)):
        stacked = put(stacked, placement.everywhere())
    # Several devices hold a part of every row each; a tile may not lie across two of them.
    return _allocate(*stacked, **sizes, tiled=False, placement=Placement(placement.devices))


def shapes(runs: Sequence[MatrixRun], layout: Layout) -> tuple[MatrixCarry, Segments]:
    """The shapes of the carry of the runs of one program, and of a chunk of their segments."""

    def allocate_from(params):
        runs_from_params = [run._replace(run=run.run._replace(params=params)) for run in runs]
        return allocate(runs_from_params, layout, shared_precision(runs))

    # The parameters may be shapes already, of which JAX makes no array.
    params = jax.eval_shape(lambda params: params, runs[0].run.params)
    carry: MatrixCarry = jax.eval_shape(allocate_from, params)
    with_steps = runs[0].program.training.trips.local_steps is not None
    dtype = jax.tree.leaves(params)[0].dtype
    numbers = _broadcast_numbers(runs[0])
    return carry, _shapes_of_segments(layout, len(runs), dtype, with_steps, numbers)


def _shapes_of_segments(
    layout: Layout, runs: int, dtype: Any, local_steps: bool, numbers: Sequence[Any]
) -> Segments:
    """The shapes of a chunk's segments [P, B, ...]; with or without the ``local_steps`` of their trips.

    numbers: the shapes of those that the rule broadcasts.
    """
    sizes, number = layout.sizes, SEGMENTS_PER_CHUNK

    def shape(dtype, *axes):
        return jax.ShapeDtypeStruct((number, *axes), dtype)

    integer, flag = np.dtype(np.int32), np.dtype(bool)
    return Segments(
        uses_memory=jax.ShapeDtypeStruct((), flag),
        largest_wave=shape(integer),
        further_products=shape(integer),
        size=shape(integer, runs),
        client=shape(integer, runs, sizes.width),
        read_slot=shape(integer, runs, sizes.width),
        key=shape(np.dtype(np.uint32), runs, sizes.width, 2),
        matrix=shape(dtype, runs, layout.state_arrays + sizes.versions, layout.length),
        write_slot=shape(integer, runs, sizes.versions),
        memory_client=shape(integer, runs, sizes.memory),
        stored_client=shape(integer, runs, sizes.width),
        local_steps=shape(integer, runs, sizes.width) if local_steps else None,
        broadcast=tuple(shape(number.dtype, runs, sizes.width, *number.shape) for number in numbers),
    )


@functools.partial(
    jax.jit, static_argnames=("slots", "memory_rows", "precision", "tiled", "placement", "state_rows")
)
def _allocate(
    state_arrays: Any,
    version: Any,
    first_state: tuple[Any, ...],
    *,
    slots: int,
    memory_rows: int,
    precision: str,
    tiled: bool,
    placement: Placement = ONE_DEVICE,
    client_work: Specification | None = None,
    state_rows: int = 0,
) -> MatrixCarry:
    """The carry before the first segment.

    Args:
      state_arrays: [B, M, *P] the initial ones; the model is the first of them.
      version: [B, A, *P] the initial model, and behind it what is broadcast with it.
      first_state: ``ClientStates.first``.
      slots: rows of the snapshots.
      memory_rows: rows of the clients' memory.
      precision: of the values in the clients' memory.
      tiled: whether rows of matrices lie in whole tiles.
      placement: where trips train.
      client_work: that of the runs, or of one of them; None where clients keep nothing.
      state_rows: clients that keep something.

    Returns:
      The carry.
    """
    params = jax.tree.map(lambda rows: rows[:, 0], state_arrays)

    def rows(like, number, precision="full"):
        def zeros(row):
            return tiled_rows.zeros(number, row, tiled, client_memory.stored_type(precision, row.dtype))

        return jax.tree.map(jax.vmap(zeros), like)

    def stored(like, number, precision):
        scales = jax.tree.map(lambda p: jnp.zeros((len(p), number), client_memory.scale_type(p.dtype)), like)
        return Row(rows(like, number, precision), scales if precision == "int8" else ())

    states = None
    if client_work is not None and (request := client_work.build().state):
        kept = jax.vmap(request.initial)(params)
        states = ClientStates(stored(kept, state_rows, request.precision), first_state)
        if request.precision == "full":
            # As ``client_memory.begin_with`` has it.
            codes = jax.vmap(client_memory.rows_with)(first_state, states.rows.codes)
            states = ClientStates(states.rows._replace(codes=codes), (None,) * len(first_state))
    carry = MatrixCarry(
        lasting=state_arrays,
        snapshots=jax.tree.map(jax.vmap(tiled_rows.starting_with), version, rows(params, slots)),
        memory=stored(params, memory_rows, precision),
        states=states,
    )
    if placement.devices is None:
        return carry
    # No device ever holds more than its part.
    return jax.tree.map(
        lambda rows: lax.with_sharding_constraint(rows, placement.entries_sharding(rows)), carry
    )


@jax.jit
def _first_state(client_work: Specification, params: Params) -> tuple[Any, ...]:
    """[*S] of each leaf: ``ClientMemory.first``, for a model [*P]."""
    request = client_work.build().state
    assert request is not None
    return client_memory.first_values(request.initial, jax.tree.map(jnp.asarray, params))


@functools.partial(jax.jit, static_argnames=("num_clients", "exchange"))
def _first_version(rule: Specification, params: Params, *, num_clients: int, exchange: Exchange) -> Any:
    """[A, *P] the arrays that clients download with the initial model [*P], itself the first of them."""
    params, built = jax.tree.map(jnp.asarray, params), rule.build()
    broadcast = built.broadcast and built.broadcast(built.init(params, num_clients))
    trees = [params, *(tree for tree, array in _broadcast_trees(exchange, broadcast) if array)]
    return jax.tree.map(lambda *rows: jnp.stack(rows), *trees)


def _broadcast_numbers(run: MatrixRun) -> list[Any]:
    """The shapes of the numbers that the rule of a run broadcasts."""
    rule, exchange = run.program.server.rule.build(), run.linear_form.exchange
    if not rule.broadcast:
        return []
    clients = run.run.schedule.num_clients
    broadcast = jax.eval_shape(lambda params: rule.broadcast(rule.init(params, clients)), run.run.params)
    return [tree for tree, array in _broadcast_trees(exchange, broadcast) if not array]


def _broadcast_trees(exchange: Exchange, broadcast: Any) -> list[tuple[Any, bool]]:
    """Each part of what a rule broadcasts, and whether it is a model [*P] or a number."""
    if exchange.structure is None:
        return []
    return list(zip(exchange.structure.flatten_up_to(broadcast), exchange.is_array, strict=True))


@functools.partial(jax.jit, static_argnames=("num_clients", "is_array", "state_arrays"))
def _state_arrays(
    rule: Specification,
    optimizer: Specification,
    params: Params,
    *,
    num_clients: int,
    is_array: tuple[bool, ...],
    state_arrays: int,
) -> Any:
    """[M, *P] the state arrays before the first server step, padded to ``state_arrays``; from parameters [*P]."""
    params = jax.tree.map(jnp.asarray, params)
    leaves = iter(jax.tree.leaves(initial_state(rule.build(), optimizer.build(), params, num_clients)))
    structure, number = jax.tree.structure(params), len(jax.tree.leaves(params))
    trees = []
    for vector in is_array:
        parts = [next(leaves) for _ in range(number if vector else 1)]
        trees += [jax.tree.unflatten(structure, parts)] if vector else []
    zeros = jax.tree.map(jnp.zeros_like, params)
    trees += [zeros] * (state_arrays - len(trees))
    return jax.tree.map(lambda *rows: jnp.stack(rows), *trees)


def _slots(run: MatrixRun) -> int:
    """Rows of the snapshot buffer: if they take few bytes, as many as any rule needs at this concurrency."""
    # Trips under way hold one version each.
    enough = max(run.run.schedule.concurrency, run.plan.num_slots) + 1
    if enough * count_bytes(run.run.params) <= SNAPSHOT_BYTES_FREELY:
        return bucket(enough)
    return bucket(run.plan.num_slots)


def _memory_rows(run: MatrixRun) -> int:
    """Rows of the clients' memory: one for each client, or a single one where the rule stores nothing."""
    clients = run.run.schedule.num_clients
    freely = clients * count_bytes(run.run.params) <= MEMORY_BYTES_FREELY
    return clients if run.stores or freely else 1
