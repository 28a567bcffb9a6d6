"""The kernel of the server's part of a segment, interpreted, against the same in NumPy."""

import dataclasses
import types
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from quick_compilation import quick_compilation  # noqa: F401

from jafl.engine.forms import kernels, server_kernel, tiled_rows

STATE, VERSIONS, TRIPS, CLIENTS, SLOTS = 8, 24, 12, 15, 40


class Shape(NamedTuple):
    """Of a leaf; ``vector_memory``: bytes, such that a row has several blocks."""

    shape: tuple[int, ...]
    vector_memory: int = server_kernel.VECTOR_MEMORY


SHAPES = {
    "swapped": Shape((200, 20)),
    "as it is, several blocks down": Shape((30, 100), 400_000),
    "several blocks across": Shape((3, 1920)),
    "several parts": Shape((3, 2, 5, 6)),
}


def rows_like(random, count, shape, dtype):
    """Rows in whole tiles, and the same as they are."""
    values = random.normal(size=(count, *shape)).astype(dtype)
    rows = tiled_rows.zeros(count, values[0], tiled=True)
    return rows.with_rows(jnp.arange(count), jnp.asarray(values)), values


def every_row(rows):
    return np.asarray(jax.vmap(lambda number: rows.row(number, many=True))(jnp.arange(len(rows.tiles))))


def compare(shape, dtype, *, remembers=True, reads_starts=False, versions=19, size=11, read=9):
    """Runs the kernel on random numbers, and compares all that it leaves with NumPy's product."""
    random = np.random.default_rng(0)
    snapshots, models = rows_like(random, SLOTS, shape, dtype)
    memory, stored = rows_like(random, CLIENTS, shape, dtype)
    state, updates = (random.normal(size=(count, *shape)).astype(dtype) for count in (STATE, TRIPS))
    read_slot = random.integers(0, SLOTS, TRIPS).astype(np.int32)
    write_slot = random.permutation(SLOTS)[:VERSIONS].astype(np.int32)
    write_slot[versions:] += 2**30
    memory_client = random.permutation(CLIENTS)[:TRIPS].astype(np.int32)
    stored_client = random.permutation(CLIENTS)[:TRIPS].astype(np.int32)
    stored_client[[3, *range(size, TRIPS)]] = CLIENTS
    factors = [random.normal(size=(STATE + VERSIONS, STATE))]
    blocks = [state, updates]
    # Of the wave each version reads the trips before it.
    for there, values in ((True, updates), (reads_starts, models[read_slot])):
        part = np.tril(random.normal(size=(STATE + VERSIONS, TRIPS)))
        part[:, size:] = 0
        factors += [part] if there else []
        blocks += [values] if there and values is not updates else []
    if remembers:
        factors.append(random.normal(size=(STATE + VERSIONS, TRIPS)) * (np.arange(TRIPS) < read))
        blocks.append(stored[memory_client])
    matrix = np.concatenate(factors, axis=1).astype(dtype)
    matrix[2:STATE] = 0  # as of the arrays that pad a state
    numbers = server_kernel.Numbers(
        *map(jnp.asarray, (np.int32(size), read_slot, write_slot, memory_client, stored_client))
    )
    made = server_kernel.combine(
        *map(jnp.asarray, (matrix, state, updates)),
        snapshots,
        memory if remembers else None,
        numbers,
        reads_starts=reads_starts,
        interpret=True,
    )
    wanted = np.tensordot(matrix, np.concatenate(blocks), 1)
    models[write_slot[:versions]] = wanted[STATE : STATE + versions]
    for lane, client in enumerate(stored_client):
        if client < CLIENTS:
            stored[client] = updates[lane]
    close = {"rtol": 1e-5, "atol": 1e-4} if dtype == np.float32 else {"rtol": 1e-12, "atol": 1e-12}
    np.testing.assert_allclose(made[0], wanted[:STATE], **close)
    np.testing.assert_allclose(every_row(made[1]), models, **close)
    if remembers:
        np.testing.assert_array_equal(every_row(made[2]), stored)
    else:
        assert made[2] is None


@pytest.mark.full
@pytest.mark.parametrize("name", SHAPES)
def test_rows_of_every_shape(name, monkeypatch):
    monkeypatch.setattr(server_kernel, "VECTOR_MEMORY", SHAPES[name].vector_memory)
    compare(SHAPES[name].shape, np.float32)


@pytest.mark.full
def test_in_full_precision():
    with jax.enable_x64():
        compare((30, 100), np.float64)


@pytest.mark.full
@pytest.mark.parametrize("remembers", [False, True])
def test_rules_that_read_the_models_that_trips_started_from(remembers):
    compare((200, 20), np.float32, remembers=remembers, reads_starts=True)


@pytest.mark.full
@pytest.mark.parametrize("amounts", [(0, 0, 0), (24, 12, 12), (16, 1, 0)])
def test_any_number_of_versions_trips_and_clients(amounts):
    versions, size, read = amounts
    compare((20, 200), np.float32, versions=versions, size=size, read=read)


def test_which_rows_in_which_blocks_and_which_chips(monkeypatch):
    def rows(dtype, *shape):
        return tiled_rows.zeros(4, jax.ShapeDtypeStruct(shape, dtype), tiled=True)

    assert kernels.takes(rows(np.float32, 5, 6))
    assert not kernels.takes(rows(np.float32, 5))
    assert not kernels.takes(rows(jnp.bfloat16, 5, 6))
    # Blocks as high as fits: of 8 state arrays, before and after, 12 updates and 12 stored values two; 16 versions.
    held = 2 * (2 * 8 + 12 + 12) + 16
    for memory, down in ((16 * held * 128 * 4, 2), (16 * held * 128 * 4 - 1, 4)):
        monkeypatch.setattr(server_kernel, "VECTOR_MEMORY", memory)
        assert server_kernel._block(rows(np.float32, 30, 100), 12, 12, 8)[:3] == (1, down, 1)
    kinds = ("TPU v5 lite", "TPU v6 lite", "TPU v4", "cpu")
    chips = [types.SimpleNamespace(device_kind=kind) for kind in kinds]
    assert [kernels.on(chip) for chip in chips] == ["compiled", "compiled", "", ""]


@pytest.mark.full
def test_a_small_example_tells_whether_the_kernel_is_right(monkeypatch):
    assert server_kernel.is_right(interpret=True)
    combine = server_kernel.combine

    def wrong(*arguments, **options):
        state, snapshots, memory = combine(*arguments, **options)
        return state, dataclasses.replace(snapshots, tiles=snapshots.tiles.at[0, 0, 0].add(1)), memory

    monkeypatch.setattr(server_kernel, "combine", wrong)
    assert not server_kernel.is_right.__wrapped__(interpret=True)


@pytest.mark.full
@pytest.mark.parametrize("shape", [(24, 256), (8, 1792), (3, 2, 8, 128)])
def test_transfers_that_end_as_late_as_they_may_change_nothing(shape, monkeypatch):
    """Simulated as on a TPU: what a transfer brings is there when it is waited for, and not before."""
    call = server_kernel.pl.pallas_call

    def simulated(*arguments, interpret, **options):
        late = server_kernel.pltpu.InterpretParams(dma_execution_mode="on_wait")
        return call(*arguments, interpret=late, **options)

    monkeypatch.setattr(server_kernel.pl, "pallas_call", simulated)
    compare(shape, np.float32)
    compare(shape, np.float32, remembers=False, reads_starts=True)
