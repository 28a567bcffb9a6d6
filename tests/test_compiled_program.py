"""What XLA makes of the engine on a CPU: nothing whole is copied at a step, nothing looked up for every pixel."""

import math
import re

import jax
import numpy as np
import pytest

import jafl
from jafl import engine, preparation, rules

CLIENTS, BATCH = 24, 8
SHAPE = re.compile(r"\w+\[([\d,]*)\]")
COMPUTATION = re.compile(r"^%?(fused_computation[\w.]*) .*?^}", re.MULTILINE | re.DOTALL)


def compiled(rule):
    """The optimized program of LeNet with ``rule``, and the smallest number of rows of what it keeps of models."""
    random = np.random.default_rng(0)
    x = random.normal(size=(CLIENTS * BATCH, 32, 32, 3)).astype(np.float32)
    y = random.integers(0, 10, len(x))
    parts = jafl.data.iid(y, CLIENTS, seed=0)
    federation = jafl.Federation.from_arrays(x, y, parts, test_x=x[:8], test_y=y[:8], num_classes=10)
    from_all = rules.RULES[rule]().build().initial_round
    schedule = jafl.asynchronous(
        num_clients=CLIENTS,
        concurrency=CLIENTS,
        buffer_size=1,
        delay=jafl.delays.exponential(1.0),
        server_steps=60,
        initial_round=from_all,
    )
    model = jafl.models.images.lenet5(10)
    work = jafl.client_work(model, learning_rate=0.1, batch_size=BATCH)
    params = model.init(jax.random.key(0), x[:BATCH])
    program, carry = preparation.prepare(
        schedule, federation, work, rules.RULES[rule](), params, jax.random.key(1), devices=1
    )
    slots = len(jax.tree.leaves(carry.snapshots)[0])
    return engine.run.lower(program, carry, 1, 60).compile().as_text(), min(slots, CLIENTS)


def entries(shape):
    return math.prod(int(size) for size in SHAPE.match(shape)[1].split(",") if size)


@pytest.mark.parametrize("rule", ["asgd", "fedasync", "ace"])
def test_the_compiled_step_copies_and_looks_up_nothing_over_again(rule):
    text, rows = compiled(rule)
    made = re.findall(r"^\s*(?:ROOT )?%\S+ = (\w+\[[\d,]*\])\S* copy\(", text, re.MULTILINE)
    whole = [shape for shape in made if SHAPE.match(shape)[1].startswith(f"{rows},")]
    assert not [shape for shape in whole if entries(shape) >= 1000], whole

    fused = [found[0] for found in COMPUTATION.finditer(text)]
    images = [body for body in fused if re.search(rf"ROOT %\S+ = f32\[{BATCH},\d+,\d+,\d+\]", body)]
    assert images
    looked_up = [body for body in images if re.search(r" = s32\[\d*\]\S* dynamic-slice\(", body)]
    assert not looked_up, looked_up[0]
