"""Multiply-adds: those of programs against counts by hand, those of runs against what the runs report."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jafl
from experiments.harness.run.multiply_adds import compute, multiply_adds, traced_gradient
from jafl.base.errors import SettingError
from jafl.engine.evaluation import evaluated_splits


def counted(function, *shapes):
    arrays = [jax.ShapeDtypeStruct(shape, np.float32) for shape in shapes]
    return multiply_adds(jax.jit(function).trace(*arrays))


def product(a, b):
    return a @ b


@pytest.mark.parametrize(
    "function, shapes, expected",
    [
        (product, [(2, 3), (3, 5)], 2 * 3 * 5),
        (lambda a, b: jnp.einsum("bij,bjk->bik", a, b), [(7, 2, 3), (7, 3, 5)], 7 * 2 * 3 * 5),
        (lambda a, b: jnp.tanh(a) + b * 2, [(8, 8), (8, 8)], 0),
        (lambda a, b: lax.scan(lambda c, _: (c @ b, None), a, length=6)[0], [(2, 3), (3, 3)], 6 * 2 * 3 * 3),
        (lambda a, b: lax.map(lambda row: row @ b, a), [(4, 3), (3, 5)], 4 * 3 * 5),
        (lambda a, b: lax.cond(a[0, 0] > 0, lambda: a @ b @ b, lambda: a @ b), [(2, 3), (3, 3)], 2 * 18),
        (lambda a, b: lax.while_loop(lambda c: c[0, 0] < 9, lambda c: c @ b, a), [(2, 3), (3, 3)], 18),
        (jax.jit(jax.checkpoint(product)), [(2, 3), (3, 5)], 30),
    ],
    ids=[
        "product",
        "batches",
        "elementwise",
        "scan",
        "map",
        "most of branches",
        "unknown rounds once",
        "calls",
    ],
)
def test_programs(function, shapes, expected):
    assert counted(function, *shapes) == expected


@pytest.mark.parametrize("stride", [1, 2])
def test_a_convolution_and_its_gradient(stride):
    def convolved(x, kernel):
        dimensions = ("NHWC", "HWIO", "NHWC")
        return lax.conv_general_dilated(x, kernel, (stride, stride), "SAME", dimension_numbers=dimensions)

    shapes = [(4, 16, 16, 3), (3, 3, 3, 8)]
    side = 16 // stride
    forward = 4 * side * side * 8 * 3 * 3 * 3
    assert counted(convolved, *shapes) == forward
    both = counted(jax.grad(lambda x, k: jnp.sum(convolved(x, k) ** 2), argnums=(0, 1)), *shapes)
    # The products with the zeros that the stride leaves are no work; the borders are.
    assert both == pytest.approx(3 * forward, rel=0.2)


def a_run(rule="fedbuff", model=None, concurrency=5, **work):
    source = jafl.data.digits(validation_fraction=0.1)
    federation = jafl.federate(source, jafl.data.dirichlet(source.y, 12, alpha=0.3, seed=1))
    schedule = jafl.asynchronous(
        num_clients=12,
        concurrency=12 if rule == "ace" else concurrency,
        buffer_size=4 if rule == "fedbuff" else 1,
        server_steps=15,
        delay=jafl.delays.exponential(1.0),
        initial_round=rule == "ace",
    )
    model = model or jafl.models.softmax(10)
    params = jax.eval_shape(model.init, jax.random.key(0), source.x[:1])
    made = jafl.client_work(model, learning_rate=0.1, **work)
    rule = jafl.rules.RULES[rule]()
    return jafl.Run(schedule, federation, made, rule, params, jax.random.key(1), evaluate_at=[3, 10])


@pytest.mark.full
@pytest.mark.parametrize(
    "rule, work",
    [
        ("fedbuff", {"local_epochs": 2, "batch_size": 8}),
        ("ace", {"local_steps": 1, "batch_size": 16}),
        ("fedbuff", {"local_steps": 3, "batch_size": 0}),
    ],
)
def test_a_run_is_counted_as_it_runs(rule, work):
    run = a_run(rule, **work)
    found = compute(run)
    built = run.rule.build()

    def fold(buffer, arrival):
        buffer, report = built.fold(buffer, arrival)
        return buffer, {**report, "local_steps": arrival.local_steps}

    params = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), run.params)
    changed_run = run._replace(rule=built._replace(fold=fold), params=params)
    history = jafl.simulate(*changed_run[:6], evaluate_at=run.evaluate_at)
    entries = 64 * 10  # of the model's matrix: a product forwards, another for its gradient
    steps = int(np.sum(history.trip_reports["local_steps"]))
    if work["batch_size"]:
        assert found.minibatches == steps
        assert found.training == steps * work["batch_size"] * 2 * entries
    else:  # a client's whole data set, 32 examples at a time
        parts = -(-run.federation.num_examples // 32)
        assert found.minibatches == 3 * int(np.sum(parts[run.schedule.client]))
        assert found.training == found.minibatches * 32 * 2 * entries
    assert found.evaluations == len(history.evaluations) == 4
    data = run.federation
    assert found.evaluation == 4 * (len(data.test_y) + len(data.validation_y)) * entries
    assert found.server == 0


def test_local_steps_of_the_schedule_are_counted_trip_by_trip():
    """A trip of 0 steps computes one minibatch, for its loss."""
    run = a_run(local_steps="scheduled", batch_size=16)
    steps = (np.arange(run.schedule.num_trips, dtype=np.int32) * 5) % 7
    found = compute(run._replace(schedule=dataclasses.replace(run.schedule, local_steps=steps)))
    assert found.minibatches == int(np.maximum(steps, 1).sum()) > int(steps.sum())


def test_evaluation_on_training_examples_counts_in_whole_batches():
    run = a_run()
    with_them, without = compute(run, on_training=True), compute(run)
    padded = -(-len(run.federation.y) // 512) * 512
    assert with_them.evaluation - without.evaluation == 4 * padded * 640
    assert len(evaluated_splits(run.federation, on_training=True)) == 3


def test_a_deeper_model():
    run = a_run(model=jafl.models.mlp(10, hidden_sizes=[32, 16]), batch_size=8)
    first, others = 64 * 32, 32 * 16 + 16 * 10
    assert multiply_adds(traced_gradient(run)) == 8 * (2 * first + 3 * others), "no gradient of the examples"


def test_the_servers_own_gradient_counts_at_each_step():
    run = a_run("asgd")
    model = jafl.models.softmax(10)
    own = jafl.server_gradient(model, run.federation.x[:50], run.federation.y[:50])
    found = compute(run._replace(rule=jafl.rules.zeno_plus_plus(own)))
    assert found.server == 15 * 50 * 2 * 640


@pytest.mark.parametrize("rule", ["fedbuff", "ace"])
def test_a_decomposed_run_counts_full_gradients_as_the_servers_own(rule):
    run = a_run(rule)
    plain = compute(run)
    found = compute(
        run._replace(rule=jafl.decomposed(run.rule, run.client_work, run.federation, at_steps=[0, 14]))
    )
    assert found.server > plain.server == 0
    assert found.training == plain.training


def test_work_of_ones_own_cannot_be_counted():
    made = a_run()
    own = jafl.specify(lambda: jafl.clients.ClientWork(lambda *_: None, jafl.models.softmax(10)))
    with pytest.raises(SettingError, match="client_work"):
        compute(made._replace(client_work=own))
