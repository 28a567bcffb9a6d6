"""Client memory: what is stored, in three precisions, and that sums over it do not drift."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from preparing import placed

import jafl
from jafl import rules
from jafl.engine.forms.cpu_rows import zero_after_write
from jafl.engine.forms.rows import ROWS
from jafl.engine.loop import client_memory
from jafl.rules import cached

CPU = ROWS["cpu"]
PARAMS = {"kernel": jnp.zeros((30, 4)), "bias": jnp.zeros(4)}


def random_value(seed: int):
    random = np.random.default_rng(seed)
    return {
        "kernel": jnp.asarray(random.normal(size=(30, 4)), jnp.float32),
        "bias": jnp.asarray(random.normal(size=4) * 1e-3, jnp.float32),
    }


@pytest.mark.few_by_default(1)
@pytest.mark.parametrize("precision", client_memory.PRECISIONS)
def test_rows_are_kept_apart_and_hold_what_hold_says(precision):
    memory = client_memory.allocate(PARAMS, 5, precision)
    stored = {}
    for client in (3, 1, 3, 4):
        words = jnp.array([client, 7], jnp.uint32)
        memory = CPU.write_pending_row(memory)
        memory, stored[client] = client_memory.hold(memory, client, random_value(client), words)
    settled = CPU.write_pending_row(memory)
    for client in range(5):
        expected = stored.get(client, jax.tree.map(jnp.zeros_like, PARAMS))
        row = client_memory.fetch(settled, jnp.int32(client), PARAMS)
        jax.tree.map(np.testing.assert_array_equal, row, expected)
    waiting = client_memory.fetch(memory, jnp.int32(4), PARAMS)
    jax.tree.map(np.testing.assert_array_equal, waiting, jax.tree.map(jnp.zeros_like, PARAMS))


@pytest.mark.full
@pytest.mark.parametrize("precision", client_memory.PRECISIONS)
def test_what_orders_the_writes_adds_nothing(precision):
    """Also after values that overflow: the bit pattern that is looked for is none that arithmetic leaves."""
    for value in (0.0, -0.0, 1.5, np.inf, -np.inf, np.nan, -np.nan):
        memory = client_memory.allocate(PARAMS, 2, precision)
        row = jax.tree.map(lambda p, v=value: jnp.full_like(p, v), PARAMS)
        memory, _ = client_memory.hold(memory, 1, row, jnp.array([1, 2], jnp.uint32))
        assert int(zero_after_write(CPU.write_pending_row(memory))) == 0


def test_what_orders_the_writes_reads_nothing_into_whole_numbers_of_a_rule():
    """A rule may remember any numbers in every precision, the smallest of eight bits too."""
    value = {"count": jnp.full(3, -128, jnp.int8), "value": jnp.ones(2)}
    for precision in client_memory.PRECISIONS:
        memory = client_memory.allocate(value, 2, precision)
        memory, held = client_memory.hold(memory, 1, value, jnp.array([1, 2], jnp.uint32))
        memory = CPU.write_pending_row(memory)
        assert int(zero_after_write(memory)) == 0
        np.testing.assert_array_equal(held["count"], value["count"])
        np.testing.assert_array_equal(client_memory.fetch(memory, 1, value)["count"], value["count"])


def test_sizes_are_those_of_the_precision():
    sizes = {
        name: sum(leaf.nbytes for leaf in jax.tree.leaves(client_memory.allocate(PARAMS, 100, name)))
        for name in client_memory.PRECISIONS
    }
    # A hundred rows, one that is held, and whose it is.
    assert sizes == {
        "full": 101 * 124 * 4 + 4,
        "bfloat16": 101 * 124 * 2 + 4,
        "int8": 101 * (124 + 2 * 4) + 4,
    }


@pytest.mark.full
def test_eight_bits_are_unbiased_with_the_variance_of_random_rounding():
    """Rounding v / scale to a neighbour at random has mean v and variance f (1 - f) scale^2, f its fraction."""
    value = random_value(0)
    empty = client_memory.allocate(PARAMS, 1, "int8")
    words = jax.random.bits(jax.random.key(0), (4000, 2), jnp.uint32)
    held = jax.jit(jax.vmap(lambda w: client_memory.hold(empty, 0, value, w)[1]))(words)
    for name in PARAMS:
        exact, drawn = np.asarray(value[name], np.float64), np.asarray(held[name], np.float64)
        scale = np.abs(exact).max() / 127
        fraction = exact / scale - np.floor(exact / scale)
        deviation = np.sqrt(fraction * (1 - fraction)) * scale
        assert np.all(np.abs(drawn.mean(axis=0) - exact) <= 5 * deviation / np.sqrt(4000) + 1e-6 * scale)
        np.testing.assert_allclose(drawn.var(axis=0), deviation**2, atol=0.03 * scale**2)
        assert np.abs(drawn - exact).max() <= scale * 1.0001


@pytest.mark.full
def test_zero_is_stored_as_zero():
    memory = client_memory.allocate(PARAMS, 2, "int8")
    zeros = jax.tree.map(jnp.zeros_like, PARAMS)
    _, held = client_memory.hold(memory, 1, zeros, jnp.array([1, 2], jnp.uint32))
    jax.tree.map(np.testing.assert_array_equal, held, zeros)


def test_unknown_precision_is_refused():
    with pytest.raises(jafl.SettingError, match="memory_precision is 'int9'.*Did you mean 'int8'"):
        client_memory.allocate(PARAMS, 2, "int9")


@pytest.mark.few_in_full(1)
@pytest.mark.parametrize(
    "name, arguments",
    [
        ("ace", {}),
        ("aced", {"active_steps": 40}),
        ("ca2fl", {}),
    ],
)
@pytest.mark.full
def test_the_sum_equals_its_cache_after_100_000_arrivals(name, arguments, monkeypatch):
    """The rule's running sum against the sum over its memory, in float32, after 100,000 arrivals.

    Without refreshes it drifts away.
    """
    error = relative_drift(name, arguments)
    assert error < 1e-6
    monkeypatch.setattr(cached, "REFRESHED_AFTER", 10**9)
    assert relative_drift(name, arguments) > 5 * error


def relative_drift(name, arguments):
    """The largest error of an entry of the sum, relative to the largest sum of magnitudes."""
    from jafl.engine.loop import server_steps

    source = jafl.data.synthetic(num_clients=20, alpha=1.0, beta=1.0, mean_examples=5, num_features=4)
    federation = jafl.federate(source, source.natural_partition)
    rule = rules.RULES[name](**arguments)
    schedule = jafl.asynchronous(
        num_clients=20,
        concurrency=20,
        delay=jafl.delays.exponential(1.0),
        client_trips=100_000,
        initial_round=rule.build().initial_round,
    )
    model = jafl.models.softmax(source.num_classes)
    work = jafl.client_work(model, learning_rate=1.0, batch_size=4)
    params = model.init(jax.random.key(0), source.x)
    import optax

    optimizer = jafl.specify(optax.sgd, learning_rate=0.01)
    arguments = (schedule, federation, work, rule, params, jax.random.key(1))
    program, carry = placed(*arguments, server_optimizer=optimizer)
    carry = server_steps.run(program, carry, 0, schedule.num_steps)
    rows = jax.tree.leaves(CPU.write_pending_row(carry.memory).codes)
    inside = np.ones(20, bool)
    if name == "aced":  # members of A after the last step: those that started lately, its arrival apart
        steps, last = schedule.num_steps, {}
        for step, client in zip(schedule.step[20:-1], schedule.client[20:-1], strict=True):
            last[int(client)] = int(step) + 1
        inside = np.array([steps - 1 - last.get(c, 1) <= 40 for c in range(20)])
    running = jax.tree.leaves(carry.rule_state if name == "aced" else carry.rule_state[0])
    errors = []
    for total, values in zip(running, (np.asarray(leaf, np.float64) for leaf in rows), strict=True):
        size = np.abs(values).sum(axis=0).max()
        errors.append(np.abs(np.ravel(total).astype(np.float64) - values[inside].sum(axis=0)).max() / size)
    return max(errors)


@pytest.mark.full
def test_a_first_state_of_zeros_is_not_added():
    """Leaves that are zeros for every model are left out; those that follow the model or are no zeros stay."""
    params = {"w": jnp.zeros(3), "b": jnp.ones(2)}

    def initial(params):
        return {"model": params, "moments": optax.adam(0.1).init(params), "scale": jnp.float32(2)}

    first = client_memory.first_values(initial, params)
    leaves = jax.tree.leaves(initial(params))
    assert [leaf is not None for leaf in first] == [True] * 2 + [False] * (len(leaves) - 3) + [True]
    row = client_memory.row_of_state(first, initial(params))
    assert all(not np.any(leaf) for leaf in jax.tree.leaves(row))
    again = client_memory.state_of_row(first, row)
    assert jax.tree.all(jax.tree.map(lambda a, b: bool(jnp.all(a == b)), again, initial(params)))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_eight_bits_are_unbiased_whatever_the_type_of_the_values(dtype):
    """Half precision holds neither the random bits of the rounding nor scales of values such as 1e-5."""
    value = {"w": (jnp.linspace(-1, 1, 50) * 1e-5).astype(dtype), "none": jnp.zeros((0, 3), dtype)}
    empty = client_memory.allocate(value, 1, "int8")
    words = jax.random.bits(jax.random.key(0), (500, 2), jnp.uint32)
    rows = jax.vmap(lambda w: client_memory.as_row(value, "int8", w))(words)
    held = np.asarray(rows.codes["w"], np.float64) * np.asarray(rows.scales["w"], np.float64)[:, None]
    exact = np.asarray(value["w"], np.float64)
    scale = np.abs(exact).max() / 127
    assert np.abs(held - exact).max() <= scale * 1.0001
    assert np.abs(held.mean(axis=0) - exact).max() <= 5 * 0.5 * scale / np.sqrt(500)
    _, stored = client_memory.hold(empty, 0, value, words[0])
    assert stored["w"].dtype == value["w"].dtype and stored["none"].shape == (0, 3)


@pytest.mark.parametrize("platform", ROWS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_rows_in_full_precision_begin_with_the_first_state(platform, dtype):
    """The row that is held at first, too; and no other precision has them."""
    state = {"best": jnp.full(2, jnp.inf, dtype), "model": jnp.ones((9, 130), dtype), "zeros": jnp.zeros(3)}
    rows, first = ROWS[platform], client_memory.first_values(lambda params: state, PARAMS)
    for precision, begins in (("full", True), ("int8", False)):
        memory = client_memory.allocate(client_memory.Stored(None, state), 3, precision, rows)
        memory = rows.write_pending_row(client_memory.begin_with(first, memory, precision))
        assert memory.first == ((None,) * 3 if begins else first)
        for client in range(3 if begins else 0):
            own = client_memory.fetch_state(memory, jnp.int32(client), state)
            jax.tree.map(np.testing.assert_array_equal, own, state)
