"""Numbers are data: what must not compile again, counted in XLA compilations and in traces of the loop."""

import jax
import numpy as np
import optax
import pytest
from jax import monitoring
from preparing import placed

import jafl
from jafl import rules
from jafl.engine.loop import server_steps
from jafl.rules import staleness

pytestmark = pytest.mark.without_compilation_cache

MODEL = jafl.models.mlp(10, (8,))


@pytest.fixture(scope="module")
def source():
    return jafl.data.digits()


class Compilations:
    """Counts XLA compilations of every program, small eager ones included."""

    def __init__(self):
        self.count = 0
        monitoring.register_event_duration_secs_listener(self._listen)

    def _listen(self, event: str, duration: float, **_) -> None:
        self.count += event == "/jax/core/compile/backend_compile_duration"


COMPILATIONS = Compilations()


def experiment(
    source, *, seed=0, delay=None, steps=60, learning_rate=0.1, momentum=0.9, exponent=0.5, proximal=0.01
):
    federation = jafl.federate(source, jafl.data.dirichlet(source.y, 40, alpha=0.3, seed=seed))
    schedule = jafl.asynchronous(
        num_clients=40,
        concurrency=15,
        buffer_size=5,
        delay=delay or jafl.delays.exponential(1.0),
        server_steps=steps,
        seed=seed,
    )
    work = jafl.client_work(
        MODEL,
        optimizer=jafl.specify(optax.sgd, learning_rate=learning_rate, momentum=momentum),
        local_epochs=1,
        proximal=proximal,
        l2=proximal,
    )
    rule = rules.fedbuff(staleness.polynomial(exponent))
    params = MODEL.init(jax.random.key(seed), source.x)
    server = jafl.specify(optax.sgd, learning_rate=learning_rate * 2, momentum=momentum)
    return (schedule, federation, work, rule, params, jax.random.key(seed)), {"server_optimizer": server}


CHANGES = {
    "learning rates": {"learning_rate": 0.05},
    "momentum": {"momentum": 0.5},
    "staleness exponent": {"exponent": 2.0},
    "proximal and L2 terms": {"proximal": 0.02},
    "seed": {"seed": 7},
    "server steps": {"steps": 61},
    "another law of delays": {"delay": jafl.delays.half_normal(30.0)},
    "nearly equal delays": {"delay": jafl.delays.uniform(0.9, 1.1)},
}


@pytest.mark.few_in_full(2)
@pytest.mark.full
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_changing_a_number_compiles_nothing(source, change):
    arguments, keywords = experiment(source)
    first = jafl.simulate(*arguments, **keywords)
    before, programs = COMPILATIONS.count, server_steps.run._cache_size()
    arguments, keywords = experiment(source, **change)
    second = jafl.simulate(*arguments, **keywords)
    assert COMPILATIONS.count == before
    assert server_steps.run._cache_size() == programs
    assert not np.array_equal(first.params["dense"]["kernel"], second.params["dense"]["kernel"])


@pytest.mark.full
def test_a_changed_shape_does_compile(source):
    """The counters can fail: another model is another program."""
    arguments, keywords = experiment(source)
    jafl.simulate(*arguments, **keywords)
    before, programs = COMPILATIONS.count, server_steps.run._cache_size()
    other = jafl.models.mlp(10, (9,))
    work = jafl.client_work(other, learning_rate=0.1)
    params = other.init(jax.random.key(0), source.x)
    jafl.simulate(*arguments[:2], work, arguments[3], params, arguments[5])
    assert COMPILATIONS.count > before
    assert server_steps.run._cache_size() > programs


def test_evaluation_progress_and_stepping_share_one_compilation(source):
    arguments, keywords = experiment(source)
    whole = jafl.simulate(*arguments, **keywords, evaluate_at=[])
    programs = server_steps.run._cache_size()
    often = jafl.simulate(*arguments, **keywords, evaluate_at=range(60))
    program, carry = placed(*arguments, **keywords)
    for step in range(60):
        carry = server_steps.run(program, carry, step, step + 1)
    assert server_steps.run._cache_size() == programs
    for params in (often.params, jax.device_get(carry.params)):
        jax.tree.map(np.testing.assert_array_equal, params, whole.params)
    assert len(often.evaluations) == 61
    np.testing.assert_array_equal(often.trip_reports["loss"], whole.trip_reports["loss"])
