"""The memory of runs is what their compiler says, before the first step.

A CPU stands in for an accelerator: the engine takes the form of that platform, and this machine's compiler is asked.
"""

import dataclasses

import jax
import numpy as np
import pytest

import jafl
from jafl.engine.devices import Placement
from jafl.engine.loop import server_steps
from jafl.engine.plan import device_memory
from jafl.engine.plan.preparation import prepare
from jafl.simulation import run_group
from jafl.simulation.run_group import SingleRun, StackedRuns
from jafl.simulation.simulate import simulate_prepared
from jafl.simulation.stacking import GroupTooLarge

ON_A_GPU = Placement(None, False, platform="gpu")
REFUSED = (
    "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm. Used 20.01G of "
    "15.75G hbm. Exceeded hbm capacity by 4.26G.\n\nTotal hbm usage >= 20.26G"
)


def prepared(available=2**34, placement=ON_A_GPU, seed=1):
    random = np.random.default_rng(0)
    x, y = random.normal(size=(120, 6)).astype(np.float32), random.integers(0, 3, 120)
    parts = jafl.data.iid(y, 6, seed=0)
    federation = jafl.Federation.from_arrays(x, y, parts, test_x=x[:9], test_y=y[:9], num_classes=3)
    delay = jafl.delays.exponential(1.0)
    schedule = jafl.asynchronous(num_clients=6, concurrency=6, buffer_size=2, server_steps=8, delay=delay)
    model = jafl.models.mlp(3, (20,))
    work = jafl.client_work(model, learning_rate=0.1, batch_size=4)
    params = model.init(jax.random.key(0), x[:1])
    run = jafl.Run(schedule, federation, work, jafl.rules.fedbuff(), params, jax.random.key(seed))
    return prepare(run, plan=jafl.trip_by_trip(schedule), placement=placement, available=available)


def compiled(preparation):
    program, carry = preparation.place()
    return device_memory.read_compiled_memory(server_steps.run.lower(program, carry, 0, 0).compile())


def trained(preparation):
    figures, evaluated = [], []
    on_evaluation = lambda evaluation, params: evaluated.append(evaluation)  # noqa: E731
    try:
        history = simulate_prepared(preparation, on_memory=figures.append, on_evaluation=on_evaluation)
    except jafl.SettingError as error:
        return error, figures, evaluated
    return history, figures, evaluated


@pytest.mark.full
@pytest.mark.parametrize("placement", [ON_A_GPU, Placement()], ids=["gpu", "cpu"])
def test_the_compiler_is_asked(placement):
    preparation = prepared(placement=placement)
    found = compiled(preparation)
    history, (figures,), _ = trained(preparation)
    assert history.temporary_bytes == figures.parts["temporaries"] == found.temporaries > 0
    assert figures.needed == found.needed + figures.parts["evaluation"] and figures.parts["evaluation"] > 0
    assert figures.summary()["figures_of"] == "the compiler"
    assert {**preparation.forecast.parts, **figures.parts} == {**figures.parts}  # each part is still named


@pytest.mark.full
@pytest.mark.parametrize("placement", [ON_A_GPU, Placement()], ids=["gpu", "cpu"])
def test_what_the_compiler_says_must_fit_before_the_first_step(placement):
    needed = trained(prepared(placement=placement))[1][0].needed
    history, _, _ = trained(prepared(available=needed, placement=placement))
    assert isinstance(history, jafl.History)
    error, figures, evaluated = trained(prepared(available=needed - 1, placement=placement))
    assert isinstance(error, jafl.SettingError) and error.setting == "device memory" and error.value == needed
    assert "Take a smaller" in str(error) and not figures and not evaluated


@pytest.mark.full
@pytest.mark.parametrize("placement", [ON_A_GPU, Placement()], ids=["gpu", "cpu"])
def test_arrays_are_refused_before_compiling_and_an_estimate_refuses_nothing(placement):
    foretold = prepared(placement=placement).forecast
    arrays = foretold.needed - foretold.parts["temporaries"]
    assert not prepared(available=arrays, placement=placement).forecast.fits
    with pytest.raises(jafl.SettingError, match="The run needs"):
        prepared(available=arrays - 1, placement=placement)


@pytest.mark.full
def test_a_compiler_that_refuses_is_quoted(monkeypatch):
    def refuse(executable):
        raise jax.errors.JaxRuntimeError(REFUSED)

    monkeypatch.setattr(run_group, "read_compiled_memory", refuse)
    error, _, evaluated = trained(prepared())
    assert "The compiler says: Ran out of memory in memory space hbm." in str(error) and not evaluated


@pytest.mark.full
def test_other_errors_of_a_compiler_leave_the_forecast(monkeypatch):
    def fail(executable):
        raise jax.errors.JaxRuntimeError("UNIMPLEMENTED: no such analysis")

    monkeypatch.setattr(run_group, "read_compiled_memory", fail)
    preparation = prepared()
    history, (figures,), _ = trained(preparation)
    assert figures == preparation.forecast and history.temporary_bytes is None


@pytest.mark.full
def test_a_group_that_is_too_large_when_compiled_says_so():
    group = StackedRuns([prepared(seed=1), prepared(seed=2)])
    alone = SingleRun(prepared())
    both, one = group.compiled_memory(), alone.compiled_memory()
    group.compile()
    assert group.memory.compiled and both.needed > one.needed
    assert group.memory.needed == both.needed + group.memory.parts["evaluation"]
    group = StackedRuns([prepared(seed=1), prepared(seed=2)])
    group.memory = dataclasses.replace(group.memory, available=both.needed)
    with pytest.raises(GroupTooLarge, match="number of runs that go together is 2"):
        group.compile()
