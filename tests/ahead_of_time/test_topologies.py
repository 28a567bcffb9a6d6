"""Chips that are not here: their names, what is refused, and what a compiler says of a small program for them."""

import os

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import jafl
from experiments.tools.benchmarks.compiled_estimates.estimate import estimate, read
from jafl.ahead_of_time import topologies
from jafl.ahead_of_time.chips import CHIPS
from jafl.ahead_of_time.programs import DoesNotFitError, compiled
from jafl.ahead_of_time.topologies import topology

needs_libtpu = pytest.mark.skipif(
    not topologies.is_installed("v5e:1x1"), reason='libtpu is not installed: pip install "jafl[tpu]"'
)


def test_a_topology_that_does_not_exist_is_refused_with_those_that_do():
    with pytest.raises(jafl.SettingError, match="v5e:2x2.*Did you mean 'v5e:1x1'") as refused:
        topology("v5e:1x11")
    assert refused.value.setting == "topology" and "h100" in refused.value.allowed


@pytest.mark.parametrize(
    ("name", "command"), [("v6e:1x1", r'pip install "jafl\[tpu\]"'), ("h100", "pip install .*cuda12")]
)
def test_a_compiler_that_is_not_installed_is_named(monkeypatch, name, command):
    monkeypatch.setattr(topologies, "_has", lambda *modules: False)
    topology.cache_clear()
    with pytest.raises(jafl.SettingError, match=command):
        topology(name)
    topology.cache_clear()


def test_operations_a_second_are_what_multipliers_do_at_the_clock():
    multipliers = {"v5e": 4 * 128**2, "v4": 8 * 128**2, "v5p": 8 * 128**2, "v6e": 4 * 256**2}
    for name, number in multipliers.items():
        assert CHIPS[name].operations == pytest.approx(2 * number * CHIPS[name].clock, rel=0.01)


@needs_libtpu
@pytest.mark.parametrize(
    ("name", "number"), [("v5e:1x1", 1), ("v5e:2x4", 8), ("v4:2x2x1", 4), ("v6e:2x2", 4)]
)
def test_devices_of_a_topology(name, number):
    before = dict(os.environ)
    topology.cache_clear()
    found = topology(name)
    assert len(found.devices) == number and found.platform == "tpu"
    assert dict(os.environ) == before
    assert found.placement().number == number
    with pytest.raises(jafl.SettingError, match=f"{name} has {number}"):
        found.placement(number + 1)


@pytest.mark.parametrize(
    ("name", "gigabytes"),
    [
        ("h100", 0),
        ("v5e:1x1", 0),
        ("v5e:2x2", 100),
        ("v5e:2x4", 100),
        ("v5e:16x16", 200),
        ("v6e:1x1", 0),
        ("v4:2x2x1", 100),
        ("v5p:2x2x4", 300),
        ("v5p:4x4x4", 600),  # the data sheet's 4,800 Gbit/s: the whole torus alone uses all links
    ],
)
def test_bandwidth_between_chips(name, gigabytes):
    """Of a chip in a corner, which has a link for each axis; in a whole torus two."""
    found = topologies.Topology(name, CHIPS[name.partition(":")[0]], ())
    assert found.exchange_bandwidth == gigabytes * 1e9


@needs_libtpu
@pytest.mark.full
def test_a_small_program_has_an_estimate():
    chip = topology("v5e:1x1")
    square = chip.placed(jax.ShapeDtypeStruct((2048, 2048), jnp.bfloat16))

    def powers(a, number):
        return lax.fori_loop(0, number, lambda _, product: product @ a, a)

    found = estimate(chip, jax.jit(powers), square, 7)
    assert found.memory.arguments >= 2048 * 2048 * 2 and not found.unknown_rounds
    per_second = 2 * 2048**3 / found.seconds
    assert 0.5 * chip.chip.operations < per_second < 1.05 * chip.chip.operations


@needs_libtpu
@pytest.mark.full
def test_a_program_that_does_not_fit_is_refused_in_a_sentence():
    chip = topology("v5e:1x1")
    large = chip.placed(jax.ShapeDtypeStruct((2**35,), jnp.int8))
    with pytest.raises(DoesNotFitError, match=r"does not fit on v5e:1x1: Ran out of memory.*15\.75G"):
        estimate(chip, jax.jit(lambda a: (a + 1).reshape(2, -1) * 2), large)


@needs_libtpu
@pytest.mark.full
def test_rounds_come_from_the_table_by_the_function_that_makes_the_loop():
    chip = topology("v5e:1x1")
    vector = chip.placed(jax.ShapeDtypeStruct((64, 1024), jnp.float32))

    def inner(a, number):
        return lax.fori_loop(0, number, lambda _, x: jnp.sin(x), a)

    def outer(a, number):
        return lax.fori_loop(0, number, lambda count, x: inner(x, count) + 1, a)

    once = estimate(chip, jax.jit(outer), vector, 7)
    lowered = jax.jit(outer).trace(vector, 7).lower(lowering_platforms=("tpu",))
    tenfold = read(chip, compiled(chip, lowered), rounds={inner.__qualname__: 10})
    assert once.unknown_rounds and not tenfold.unknown_rounds
    (inside,) = (loop for loop in once.program.loops[0].loops)
    cost = sum(one.cycles or 0 for one in inside.instructions)
    assert tenfold.cycles - once.cycles == pytest.approx(9 * cost) and cost > 0


@needs_libtpu
@pytest.mark.full
def test_branches_are_taken_as_often_as_the_table_says_whatever_loops_are_in_them():
    chip = topology("v5e:1x1")
    vector = chip.placed(jax.ShapeDtypeStruct((512, 1024), jnp.float32))
    flags = chip.placed(jax.ShapeDtypeStruct((8,), jnp.bool_))

    def work(a, number):
        return lax.fori_loop(0, number, lambda _, x: jnp.sin(x), a)

    def step(a, due, number):
        return lax.cond(due, lambda a: work(a, number), lambda a: a, a)

    def steps(a, due, number):
        return lax.fori_loop(0, number, lambda n, a: step(a, due[n % 8], number) + 1, a)

    def cycles(**tables):
        return estimate(chip, jax.jit(steps), vector, flags, 7, **tables).cycles

    rounds = {work.__qualname__: 3}
    by_maker = [cycles(rounds=rounds, shares={step.__qualname__: share}) for share in (0, 0.25, 1)]
    assert by_maker[1] == pytest.approx(0.75 * by_maker[0] + 0.25 * by_maker[2]) and by_maker[2] > by_maker[0]
    assert cycles(rounds=rounds, shares={work.__qualname__: 0.25}) == pytest.approx(by_maker[1])
    assert cycles(rounds=rounds) == pytest.approx(by_maker[2])  # unknown: the costliest branch
