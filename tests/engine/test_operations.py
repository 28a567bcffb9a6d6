"""How many operations a trip makes, against closed forms."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jafl
from jafl.engine.plan.operations import count_operations, operations_per_parameter


def run_of(model, shape, *, examples, **work):
    sizes = np.asarray(examples)
    random = np.random.default_rng(0)
    x = random.normal(size=(sizes.sum(), *shape)).astype(np.float32)
    y = random.integers(0, 3, len(x))
    partition = jafl.Partition(np.append(0, np.cumsum(sizes)), np.arange(len(x)))
    federation = jafl.Federation.from_arrays(x, y, partition, test_x=x[:2], test_y=y[:2], num_classes=3)
    schedule = jafl.synchronous(
        num_clients=len(sizes), cohort_size=len(sizes), delay=jafl.delays.exponential(), server_steps=2
    )
    params = jax.eval_shape(lambda: model.init(jax.random.key(0), x[:1]))
    work = jafl.client_work(model, learning_rate=0.1, **work)
    return jafl.Run(schedule, federation, work, jafl.rules.fedavg(), params, jax.random.key(0))


@pytest.mark.parametrize(
    ("batch_size", "examples", "minibatches", "a_trip"),
    [(4, [9, 9], [3, 3], 12), (4, [9, 9], [1, 2], 6), (0, [9, 5], [1, 1], 9), (32, [9, 5], [2, 2], 18)],
)
def test_a_dense_network_takes_six_for_each_weight_and_example(batch_size, examples, minibatches, a_trip):
    run = run_of(jafl.models.mlp(3, [7]), (5,), examples=examples, batch_size=batch_size)
    weights, biases = 5 * 7 + 7 * 3, 7 + 3
    found = operations_per_parameter(run, np.array(minibatches))
    assert found == pytest.approx(6 * weights * a_trip / (weights + biases))


def test_a_convolution_takes_its_kernel_for_each_place_and_in_its_cheapest_form():
    class Network(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.Conv(3, (3, 3), padding="VALID", use_bias=False)(x).mean((1, 2))

    run = run_of(jafl.Model(Network()), (6, 6, 2), examples=[4], batch_size=2)
    assert operations_per_parameter(run, np.array([1, 1])) == 3 * 2 * 4 * 4 * 2


def test_nobody_knows_what_other_client_work_computes():
    run = run_of(jafl.models.softmax(3), (5,), examples=[4, 4], batch_size=2)
    own = jafl.specify(lambda: run.client_work.build())
    assert operations_per_parameter(run._replace(client_work=own), np.array([1, 1])) is None
    assert operations_per_parameter(run, None) is None
    of_wider = jax.eval_shape(lambda: jafl.models.softmax(3).init(jax.random.key(0), jnp.ones((1, 9))))
    assert operations_per_parameter(run._replace(params=of_wider), np.array([1, 1])) is None, (
        "is refused later"
    )


def test_loops_count_their_rounds_and_conditions_their_cheapest_branch():
    square = jnp.ones((4, 4))

    def repeated(x):
        return jax.lax.scan(lambda x, _: (x @ square, None), x, None, length=5)[0]

    def chosen(x):
        return jax.lax.cond(x[0, 0] > 0, lambda x: x @ square @ square, lambda x: x @ square, x)

    once = 2 * 4 * 4 * 4
    for function, rounds in ((repeated, 5), (chosen, 1), (jax.jit(lambda x: x @ square), 1), (jnp.sin, 0)):
        assert count_operations(jax.make_jaxpr(function)(square).jaxpr) == rounds * once
