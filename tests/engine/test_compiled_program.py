"""What XLA makes of the engine on a CPU: nothing whole is copied at a step, nothing looked up for every pixel."""

import math
import re

import jax
import numpy as np
import optax
import pytest
from preparing import placed
from tiers import in_tiers

import jafl
from jafl import rules
from jafl.engine.loop import server_steps

pytestmark = pytest.mark.without_compilation_cache

CLIENTS, BATCH = 24, 8
SHAPE = re.compile(r"\w+\[([\d,]*)\]")
COMPUTATION = re.compile(r"^%?fused_computation.*?^}", re.MULTILINE | re.DOTALL)


def compiled(model, rule, shape=(32, 32, 3), batch_size=BATCH, own=None, dtype="float32", waves=0, **options):
    """The optimized program of ``model`` with ``rule``, and how many rows it keeps of snapshots, waiting trips
    and clients.

    A client has BATCH examples, and goes through them once. rule: a name or a specification. own: further settings of
    client work. dtype: of the parameters. waves: their width; 0 for a plan trip by trip. options: of ``placed``.
    """
    random = np.random.default_rng(0)
    x = random.normal(size=(CLIENTS * BATCH, *shape)).astype(np.float32)
    y = random.integers(0, 10, len(x))
    parts = jafl.data.iid(y, CLIENTS, seed=0)
    federation = jafl.Federation.from_arrays(x, y, parts, test_x=x[:8], test_y=y[:8], num_classes=10)
    rule = rules.RULES[rule]() if isinstance(rule, str) else rule
    schedule = jafl.asynchronous(
        num_clients=CLIENTS,
        concurrency=CLIENTS,
        buffer_size=rule.build().buffer_size or 1,
        delay=jafl.delays.exponential(1.0),
        server_steps=60,
        initial_round=rule.build().initial_round,
    )
    work = jafl.client_work(model, learning_rate=0.1, batch_size=batch_size, local_epochs=1, **own or {})
    params = jax.tree.map(lambda leaf: leaf.astype(dtype), model.init(jax.random.key(0), x[:BATCH]))
    if waves:
        options["plan"] = jafl.in_waves(schedule, waves)
    program, carry = placed(schedule, federation, work, rule, params, jax.random.key(1), devices=1, **options)
    arrays = jax.tree.leaves((carry.snapshots, carry.waiting))
    return server_steps.run.lower(program, carry, 1, 60).compile().as_text(), {CLIENTS, *map(len, arrays)}


def whole_copies(text, rows):
    """The shapes of the copies of arrays with so many rows and a thousand entries or more."""
    copied = re.findall(r"^\s*(?:ROOT )?%\S+ = (\w+\[[\d,]*\])\S* copy\(", text, re.MULTILINE)
    whole = [shape for shape in copied if any(shape.startswith(f"f32[{number},") for number in rows)]
    return [shape for shape in whole if entries(shape) >= 1000]


def entries(shape):
    return math.prod(int(size) for size in SHAPE.match(shape)[1].split(",") if size)


def fused(text, shape):
    """The fused computations that make an array of batches of this shape, a pattern."""
    made = re.compile(rf"ROOT %\S+ = f32\[{BATCH},{shape}\]")
    return [found[0] for found in COMPUTATION.finditer(text) if made.search(found[0])]


@pytest.mark.full
@pytest.mark.parametrize("rule", ["asgd", "fedasync", "ace"])
def test_nothing_whole_is_copied_and_nothing_looked_up_for_every_pixel(rule):
    text, rows = compiled(jafl.models.images.lenet5(10), rule)
    assert not whole_copies(text, rows)

    images = fused(text, r"\d+,\d+,\d+")
    assert images
    looked_up = [body for body in images if re.search(r" = s32\[\d*\]\S* dynamic-slice\(", body)]
    assert not looked_up, looked_up[0]


DENSE = {
    "softmax": jafl.models.softmax(10),
    "mlp": jafl.models.mlp(10, (64,)),
    "mlp, two layers": jafl.models.mlp(10, (100, 80)),
}
MOMENTUM = jafl.specify(optax.sgd, learning_rate=0.1, momentum=0.9)
ADAM = jafl.specify(optax.adam, learning_rate=0.1)


# A step that copied the snapshots would take ten times as long with 1,000 clients under way.
@pytest.mark.parametrize("model", in_tiers(DENSE, []))
def test_no_snapshots_are_copied_where_a_step_has_one_trip_of_several_local_steps(model):
    text, rows = compiled(model, "fedbuff", (50,), BATCH // 2, server_optimizer=MOMENTUM)
    assert not whole_copies(text, rows)


@pytest.mark.parametrize("rule", ["asgd", "fedasync", "delay_adaptive_asgd", "ace", "aced", "ca2fl", "wkafl"])
@pytest.mark.parametrize(
    "model",
    [pytest.param(name, marks=pytest.mark.full if name == "mlp" else pytest.mark.gate) for name in DENSE],
)
def test_no_snapshots_are_copied_by_any_rule(model, rule):
    text, rows = compiled(DENSE[model], rule, (50,), BATCH // 2)
    assert not whole_copies(text, rows)


@pytest.mark.full
@pytest.mark.parametrize("model", DENSE)
def test_no_snapshots_are_copied_for_the_state_of_adam(model):
    text, rows = compiled(DENSE[model], "fedbuff", (50,), BATCH // 2, server_optimizer=ADAM)
    assert not whole_copies(text, rows)


@pytest.mark.full
def test_that_a_row_is_written_is_not_asked_for_every_entry():
    text, _ = compiled(jafl.models.mlp(10, (200,)), "ace", (50,))
    hidden = fused(text, "200")
    assert hidden and "bitcast-convert" in text
    asked = [body for body in hidden if "bitcast-convert" in body]
    assert not asked, asked[0]


IN_BFLOAT16 = {
    "a rule's memory": {"rule": rules.ace(memory_precision="bfloat16")},
    "the clients' state": {
        "rule": rules.scaffold(),
        "own": {"correction": "scaffold", "state_precision": "bfloat16"},
    },
    "a model": {"rule": "fedbuff", "dtype": "bfloat16"},
    "a model in waves": {"rule": "ca2fl", "dtype": "bfloat16", "waves": 8},
    "a model in waves side by side": {"rule": "fedbuff", "dtype": "bfloat16", "waves": 8, "together": True},
}


# ACE with 100 clients took 14 times as long with its memory in bfloat16 as in float32, and more with more clients.
@pytest.mark.filterwarnings("ignore:The model has parameters in bfloat16")
@pytest.mark.parametrize(
    "what",
    [
        name if name.startswith("a rule") else pytest.param(name, marks=pytest.mark.full)
        for name in IN_BFLOAT16
    ],
)
def test_a_row_in_bfloat16_is_written_alone(what):
    text, rows = compiled(jafl.models.mlp(10, (64,)), shape=(50,), **IN_BFLOAT16[what])
    numbers = "|".join(str(number) for number in rows)
    written = re.findall(rf"ROOT %\S+ = (\w+\[(?:{numbers}),[\d,]+\])\S* (?:convert|copy)\(", text)
    whole = [shape for shape in written if entries(shape) >= 1000]
    assert not whole and not whole_copies(text, rows), whole
