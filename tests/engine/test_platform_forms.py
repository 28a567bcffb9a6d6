"""The forms for accelerators compute what those for CPUs do: here they run on a CPU, in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from accelerator_forms import accelerator_forms
from against_reference import compare, make_federation, make_schedule
from engine_cases import CASES
from preparing import placed
from quick_compilation import quick_compilation  # noqa: F401
from rule_cases import CASES as RULE_CASES

import jafl
from jafl import rules
from jafl.base.keyed_shuffle import shuffled
from jafl.engine.forms import tiled_rows
from jafl.engine.forms.columns import packed, part
from jafl.engine.forms.rows import ROWS
from jafl.engine.forms.tiled_rows import row_at, with_row
from jafl.engine.loop import server_steps
from jafl.models import max_pool, softmax_cross_entropy

NAMED = {case.name: case for case in [*CASES, *RULE_CASES]}
EVENTS_AND_WORK = (
    "fedbuff",
    "fedbuff, one trip a step",
    "fedbuff, server adam",
    "fedasync",
    "local steps on minibatches",
    "local epochs, LR-Norm",
    "multilayer perceptron, fedasync",
)
RULES = (
    "asgd",
    "ace",
    "ace, direct",
    "aced, short",
    "aced, bfloat16",
    "aced in buffers",
    "ace of all due",
    "ca2fl",
    "wkafl",
    "gsgm, whole rounds",
    "zeno++",
    "delay-adaptive, drop",
    "fedstaleweight, equation 8",
)
PLANS = {
    "trip by trip": {"together": False},
    "in waves": {"width": 7, "together": True},
    "few lanes": {"width": 7, "lanes": 3, "together": True},
    "all lanes": {"width": 6, "lanes": 6, "together": True},
}
NAMES = (*EVENTS_AND_WORK, *(f"{rule}; slow clients" for rule in RULES))
TABLE = [f"{name}: {plan}" for name in NAMES for plan in PLANS]
DEFAULT = (
    "multilayer perceptron, fedasync: trip by trip",
    "ace; slow clients: trip by trip",
    "wkafl; slow clients: in waves",
)


def compare_with_reference(row: str):
    name, plan = row.split(": ")
    with accelerator_forms():
        compare(NAMED[name], "float64", **PLANS[plan])


# The default tier compiles quickly, the full tier as for users, and has all rows.
@pytest.mark.full
@pytest.mark.parametrize("row", DEFAULT)
def test_engine_equals_reference(row):
    compare_with_reference(row)


@pytest.mark.few_in_full(4)
@pytest.mark.full
@pytest.mark.compiled_as_for_users
@pytest.mark.parametrize("row", TABLE)
def test_engine_equals_reference_with_all_optimisations(row):
    compare_with_reference(row)


def carry_after(platform: str, rule: str, together: bool):
    """The carry of LeNet, which has rows of every shape, after 40 steps on small images."""
    random = np.random.default_rng(0)
    x, y = random.normal(size=(96, 16, 16, 3)).astype(np.float32), random.integers(0, 10, 96)
    parts = jafl.data.iid(y, 12, seed=0)
    federation = jafl.Federation.from_arrays(x, y, parts, test_x=x[:8], test_y=y[:8], num_classes=10)
    built = rules.RULES[rule]()
    schedule = jafl.asynchronous(
        num_clients=12,
        concurrency=12,
        buffer_size=1,
        delay=jafl.delays.exponential(1.0),
        server_steps=40,
        initial_round=built.build().initial_round,
    )
    model = jafl.models.images.lenet5(10)
    work = jafl.client_work(model, learning_rate=0.01, batch_size=8)
    params = model.init(jax.random.key(0), x[:8])
    with accelerator_forms(platform):
        program, carry = placed(schedule, federation, work, built, params, devices=1, together=together)
        assert program.placement.platform == platform
        # In two chunks: each packs what it reads, and hands over all that lasts.
        return server_steps.run(program, server_steps.run(program, carry, 0, 17), 17, 40)


@pytest.mark.gate
@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("rule", ["ace", "asgd"])
def test_chunks_and_stored_rows_are_the_same_on_a_gpu_and_a_tpu(rule, together):
    def all_of(platform):
        """What lasts, its rows read one by one: a TPU stores them in tiles."""
        carry = carry_after(platform, rule, together)
        memory, slots = carry.memory, program_slots(carry)
        read = {slot: row_at(carry.snapshots, slot, many=True) for slot in range(slots)}
        rows = memory and [row_at(memory.codes, client, many=True) for client in range(12)]
        return carry._replace(snapshots=read, memory=(rows, memory and memory.scales), waiting=None)

    def program_slots(carry):
        return len(jax.tree.leaves(carry.snapshots)[0])

    on_gpu, on_tpu = all_of("gpu"), all_of("tpu")
    assert any(np.any(leaf) for leaf in jax.tree.leaves(on_tpu.memory if rule == "ace" else on_tpu.params))

    def close(ours, theirs):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4 * np.max(np.abs(theirs), initial=0))

    jax.tree.map(close, on_gpu, on_tpu)


@pytest.mark.full
def test_rows_in_tiles_are_read_as_they_were_written():
    random = np.random.default_rng(0)
    shapes = {"kernel": (5, 5, 3, 6), "wide": (3, 200), "high": (200, 3), "bias": (7,)}
    value = {name: jnp.asarray(random.normal(size=shape), jnp.float32) for name, shape in shapes.items()}
    rows = {name: ROWS["tpu"].zeros(4, leaf) for name, leaf in value.items()}
    assert rows["high"].tiles.shape == rows["wide"].tiles.shape == (4, 8, 256)
    assert not tiled_rows.is_tiled(rows["bias"])
    rows = with_row(rows, jnp.int32(2), value)
    for many in (False, True):
        for number, factor in ((2, 1), (1, 0)):
            read = row_at(rows, jnp.int32(number), many=many)
            jax.tree.map(lambda r, v, f=factor: np.testing.assert_array_equal(r, f * v), read, value)
    several = rows["high"].with_rows(jnp.array([3, 4]), jnp.stack([value["high"] + 1, value["high"]]))
    np.testing.assert_array_equal(several.row(jnp.int32(3), True), value["high"] + 1)
    np.testing.assert_array_equal(several.row(jnp.int32(2), True), value["high"])


@pytest.mark.full
def test_the_shuffle_has_the_same_bits_in_line():
    places, words = np.arange(100, dtype=np.int32), np.array([7, 2**31 + 5], np.uint32)

    def orders(count):
        return jax.vmap(lambda epoch: shuffled(places, count, words, epoch))(np.arange(3, dtype=np.int32))

    counts = [np.int32(count) for count in (1, 2, 7, 100)]
    in_loop = list(map(jax.jit(orders), counts))
    with accelerator_forms():
        in_line = list(map(jax.jit(lambda count: orders(count)), counts))
    for count, expected, seen in zip(counts, in_loop, in_line, strict=True):
        np.testing.assert_array_equal(expected[:, :count], seen[:, :count])


@pytest.mark.parametrize("padding", ["VALID", "SAME"])
@pytest.mark.parametrize("window", [1, 2, 3])
def test_both_pools_agree_with_gradients_and_ties(window, padding):
    random = np.random.default_rng(window)
    with jax.enable_x64():
        x = np.round(random.normal(size=(3, 2, 7, 8, 4)))  # rounded: most windows have their maximum twice
        y = random.normal(size=jax.eval_shape(lambda x: max_pool(x[0], window, padding=padding), x).shape)

        def values_and_gradients(x):
            def one(x):
                value, back = jax.vjp(lambda x: max_pool(x, window, padding=padding), x)
                return value, back(y)[0]

            return jax.vmap(one)(x)

        by_slices = jax.jit(values_and_gradients)(x)
        with accelerator_forms():
            windowed = jax.jit(lambda x: values_and_gradients(x))(x)
    jax.tree.map(np.testing.assert_array_equal, by_slices, windowed)


@pytest.mark.full
def test_packed_columns_are_read_as_they_were():
    random = np.random.default_rng(0)
    with jax.enable_x64():
        columns = {
            "client": jnp.asarray(random.integers(-5, 5, 6), jnp.int32),
            "key": jnp.asarray(random.integers(0, 2**32, (6, 2)), jnp.uint32),
            "weight": jnp.asarray(random.normal(size=6), jnp.float32),
            "exact": jnp.asarray(random.normal(size=6)),
            "longer": jnp.arange(9, dtype=jnp.int32),
        }
        table = packed(columns)
        assert len(table["longer"]) == 9
        for number in (0, 5, np.array([3, 0, 5])):
            jax.tree.map(
                np.testing.assert_array_equal,
                {name: column[number] for name, column in columns.items()},
                {name: column[number] for name, column in table.items()},
            )
        for of in (columns, table):
            rows = {name: part(column, jnp.int32(2), 3) for name, column in of.items()}
            jax.tree.map(
                np.testing.assert_array_equal, {name: column[2:5] for name, column in columns.items()}, rows
            )


@pytest.mark.parametrize("shift", [0.0, 500.0])
def test_both_cross_entropies_agree_with_gradients(shift):
    random = np.random.default_rng(0)
    logits, labels = random.normal(size=(3, 8, 5)) + shift, random.integers(0, 5, (3, 8))
    with jax.enable_x64():
        weights = jnp.asarray(random.normal(size=(3, 8)))

        def losses_and_gradient(logits):
            losses, back = jax.vjp(lambda logits: softmax_cross_entropy(logits, jnp.asarray(labels)), logits)
            return losses, back(weights)[0]

        looked_up = losses_and_gradient(jnp.asarray(logits))
        with accelerator_forms():
            compared = losses_and_gradient(jnp.asarray(logits))
    np.testing.assert_allclose(compared[0], looked_up[0], rtol=1e-11)
    np.testing.assert_allclose(compared[1], looked_up[1], rtol=1e-9, atol=1e-12)


@pytest.mark.full
@pytest.mark.parametrize("rule", ["ace", "fedstaleweight"])
def test_what_is_reported_as_a_column_has_it_is_there_from_the_beginning(rule):
    case = next(case for name, case in NAMED.items() if name.startswith(rule))
    with accelerator_forms():
        carry = carry_of(case)
    zeros = carry_of(case)
    assert np.all(np.asarray(carry.trip_reports["weight"]) != 0)
    assert not np.any(zeros.trip_reports["weight"]) and not np.any(carry.trip_reports["loss"])


def carry_of(case):
    """The carry before the first step."""
    federation, schedule = make_federation(case.clients, np.float32), make_schedule(case)
    model = jafl.models.softmax(3)
    params = model.init(jax.random.key(1), federation.x)
    return placed(schedule, federation, jafl.client_work(model, learning_rate=0.1), case.rule, params)[1]
