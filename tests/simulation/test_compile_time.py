"""Seconds of compiling: each once, none of training, and nobody listens any longer than a run."""

import time

import jax
import jax.numpy as jnp
import pytest
from jax import monitoring
from jax._src.monitoring import get_event_time_span_listeners

import jafl
from jafl.simulation.compile_time import CompileTime

pytestmark = pytest.mark.without_compilation_cache

COMPILE = "/jax/core/compile/backend_compile_duration"


def experiment():
    source = jafl.data.digits()
    federation = jafl.federate(source, jafl.data.iid(source.y, 20, seed=0))
    schedule = jafl.asynchronous(
        num_clients=20,
        concurrency=10,
        buffer_size=5,
        delay=jafl.delays.exponential(1.0),
        server_steps=30,
    )
    model = jafl.models.mlp(10, (7,))  # of no other test, so that the first run compiles
    work = jafl.client_work(model, learning_rate=0.1)
    params = model.init(jax.random.key(0), source.x)
    return schedule, federation, work, jafl.rules.fedbuff(), params, jax.random.key(1)


@pytest.mark.full
def test_the_first_run_compiles_and_a_second_one_does_not():
    listeners = len(get_event_time_span_listeners())
    arguments = experiment()
    before = time.perf_counter()
    first = jafl.simulate(*arguments)
    took = time.perf_counter() - before
    second = jafl.simulate(*arguments)
    assert 0.1 < first.compile_seconds < took - first.run_seconds
    assert second.compile_seconds < 0.5 * first.compile_seconds
    assert second.run_seconds > 0
    if hasattr(monitoring, "unregister_event_time_span_listener"):  # not in older versions of JAX
        assert len(get_event_time_span_listeners()) == listeners


@pytest.mark.full
def test_evaluation_that_compiles_is_no_training():
    alone = []  # seconds of compiling, of each evaluation

    def slow_to_compile(params):
        program = jax.jit(lambda p: sum(jnp.sin(p * number) for number in range(300)).sum())
        with CompileTime() as compiling:
            found = float(program(params["hidden_0"]["kernel"]))
        alone.append(compiling.seconds)
        return {"of_sines": found}

    arguments = experiment()
    jafl.simulate(*arguments)  # compiles all but the evaluator
    history = jafl.simulate(*arguments, evaluators={"sum": slow_to_compile}, evaluate_at=[])
    assert len(alone) == 2 and min(alone) > 0.1  # at the start and at the end
    assert history.compile_seconds > 0.999 * sum(alone)
    assert history.run_seconds < sum(alone)


def test_spans_within_each_other_count_once():
    with CompileTime() as found:
        for start, end in ((2.0, 3.0), (4.0, 5.0), (1.0, 6.0), (8.0, 9.0), (8.5, 9.5), (0.0, 0.5)):
            monitoring.record_event_time_span(COMPILE, start, end)
        monitoring.record_event_time_span("/jax/another", 20.0, 30.0)
    monitoring.record_event_time_span(COMPILE, 40.0, 50.0)
    assert found.seconds == pytest.approx(5.0 + 1.5 + 0.5)


@pytest.mark.full
@pytest.mark.skipif(
    not hasattr(monitoring, "unregister_event_time_span_listener"),
    reason="older versions of JAX keep listeners",
)
def test_nobody_listens_after_an_error():
    listeners = len(get_event_time_span_listeners())

    def fails(params):
        raise KeyError("an evaluator of one's own")

    with pytest.raises(KeyError):
        jafl.simulate(*experiment(), evaluators={"own": fails})
    assert len(get_event_time_span_listeners()) == listeners
