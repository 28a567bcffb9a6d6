"""Several runs in one program: each gives what a separate ``jafl.simulate`` gives, whatever they share."""

import dataclasses
from typing import Any

import jax
import numpy as np
import optax
import pytest
from against_reference import make_federation
from quick_compilation import quick_compilation  # noqa: F401
from small_runs import alone
from tiers import in_tiers

import jafl
from jafl import delays, rules
from jafl.rules import staleness
from jafl.simulation import stacking
from jafl.simulation.make_run_group import make_run_group, prepare_together
from jafl.simulation.run_group import StackedRuns

CLIENTS, STEPS = 12, 40
SOFTMAX, MLP = jafl.models.softmax(3), jafl.models.mlp(3, (5,))
RATES = (0.05, 0.2, 0.11)
EPOCHS = {"batch_size": 4, "local_epochs": 2}  # over clients with 1 to 70 examples


@dataclasses.dataclass(frozen=True)
class Case:
    """A row of the table: three runs that differ in numbers, keys and initial models, and in schedules if ``own``.

    rule: of the number of a run. schedule: arguments of ``make``.
    """

    name: str
    rule: Any
    own: bool
    work: dict[str, Any] = dataclasses.field(default_factory=lambda: {"batch_size": 8})
    schedule: dict[str, Any] = dataclasses.field(default_factory=dict)
    make: Any = jafl.asynchronous
    on_gradients: bool = False
    model: jafl.Model = SOFTMAX
    momentum: float = 0.0
    together: bool | None = None


def zeno(number: int) -> jafl.Specification:
    data = make_federation(CLIENTS, np.float64)
    own = jafl.server_gradient(SOFTMAX, data.x[:30], data.y[:30])
    return rules.zeno_plus_plus(own, 3, gamma=0.1, rho=0.02, epsilon=0.01 + 0.01 * number)


def fedbuff(number: int) -> jafl.Specification:
    return rules.fedbuff(staleness.polynomial(0.3 + number))


BUFFER = {"buffer_size": 4}
BEGINS = {"initial_round": True}
ON_SHARED = Case("fedbuff, local epochs, one schedule", fedbuff, False, EPOCHS, BUFFER, momentum=0.5)
ON_OWN = Case("fedbuff, local epochs, own schedules", fedbuff, True, EPOCHS, BUFFER, momentum=0.5)
UNEQUAL = Case(
    "ca2fl, steps of unequal sizes",
    lambda n: rules.ca2fl(),
    True,
    schedule={"buffer_size": 6, "flush_after": 0.3, "failure_rate": 0.2},
)
CASES = [
    ON_SHARED,
    Case("fedbuff, steps side by side, own schedules", fedbuff, True, EPOCHS, BUFFER, together=True),
    Case("fedbuff, in waves, one schedule", fedbuff, False, schedule=BUFFER, together=True),
    Case(
        "fedasync, proximal", lambda n: rules.fedasync(), True, {"local_steps": 2, "proximal": 0.3}, model=MLP
    ),
    Case("ace, one schedule", lambda n: rules.ace(), False, schedule=BEGINS, on_gradients=True),
    Case("ace, own schedules", lambda n: rules.ace(), True, schedule=BEGINS, on_gradients=True),
    Case("aced", lambda n: rules.aced(5), True, schedule=BEGINS, on_gradients=True),
    Case("aced in buffers", lambda n: rules.aced(2), True, schedule=BEGINS | BUFFER, on_gradients=True),
    Case(
        "ace, steps of all that are due",
        lambda n: rules.ace(),
        True,
        schedule={**BEGINS, "reports": "due", "delay": delays.exponential(3.0)},
        make=jafl.drawn_staleness,
        on_gradients=True,
    ),
    Case("ca2fl", lambda n: rules.ca2fl(), False, EPOCHS, BUFFER),
    UNEQUAL,
    Case(
        "wkafl",
        lambda n: rules.wkafl(4, momentum=0.1 + 0.1 * n, smallest_cosine=0.2),
        True,
        schedule={**BUFFER, "restart": "after_step"},
        on_gradients=True,
    ),
    Case(
        "fedstaleweight",
        lambda n: rules.fedstaleweight(average="exponential", decay=0.3 + 0.2 * n),
        False,
        schedule=BUFFER,
    ),
    Case("area", lambda n: rules.area(), True, EPOCHS, BUFFER),
    Case("fadas", lambda n: rules.fadas(server_learning_rate=0.5 + n), True, schedule=BUFFER, momentum=0.5),
    Case("zeno++", zeno, True, on_gradients=True),
    Case(
        "FedAvgM, over-selection",
        lambda n: rules.fedavg(),
        True,
        EPOCHS,
        {"cohort_size": 5, "over_selection": 0.4},
        jafl.synchronous,
        momentum=0.9,
    ),
]


def make_schedule(case: Case, seed: int) -> jafl.EventSchedule:
    common = {"num_clients": CLIENTS, "delay": delays.exponential(1.0), "server_steps": STEPS, "seed": seed}
    if case.make is jafl.asynchronous:
        common |= {"concurrency": CLIENTS, "buffer_size": 1}
    return case.make(**{**common, **case.schedule})


def make_runs(case: Case) -> list[jafl.Run]:
    federation, shared = make_federation(CLIENTS, np.float64), make_schedule(case, 0)
    runs = []
    for number, rate in enumerate(RATES):
        seconds = {"momentum": 0.1 + case.momentum * number / 2} if case.momentum else {}
        rates = (1.0, rate) if case.on_gradients else (rate, 1.0)
        runs.append(
            jafl.Run(
                schedule=make_schedule(case, number) if case.own else shared,
                federation=federation,
                client_work=jafl.client_work(case.model, learning_rate=rates[0], **case.work),
                rule=case.rule(number),
                params=case.model.init(jax.random.key(number), federation.x),
                key=jax.random.key(10 + number),
                server_optimizer=jafl.specify(optax.sgd, learning_rate=rates[1], **seconds),
                evaluate_at=[5, 17, 30 + number],
            )
        )
    return runs


def assert_equal(found: jafl.History, expected: jafl.History) -> None:
    """Within 1e-9 in whatever a history holds of the results."""
    close = {"rtol": 1e-9, "atol": 1e-9}
    assert jax.tree.structure(found.params) == jax.tree.structure(expected.params)
    for reports in ("params", "trip_reports", "step_reports"):
        mine, its = getattr(found, reports), getattr(expected, reports)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **close), mine, its)
        assert jax.tree.map(lambda leaf: leaf.dtype, mine) == jax.tree.map(lambda leaf: leaf.dtype, its)
    assert len(found.evaluations) == len(expected.evaluations)
    for one, other in zip(found.evaluations, expected.evaluations, strict=True):
        assert one.keys() == other.keys()
        for name, value in one.items():
            assert (
                value == other[name]
                if other[name] is None
                else value == pytest.approx(other[name], 1e-9, 1e-9)
            )
    assert (found.server_steps, found.num_slots) == (expected.server_steps, expected.num_slots)


@pytest.mark.full
@pytest.mark.few_in_full(2)
@pytest.mark.parametrize("case", in_tiers({case.name: case for case in CASES}, (ON_SHARED.name,)))
def test_together_equals_apart(case: Case):
    with jax.enable_x64(True):
        runs = make_runs(case)
        found = jafl.simulate_many(runs, together=case.together)
        for run, history in zip(runs, found, strict=True):
            expected = alone(run)
            assert_equal(history, dataclasses.replace(expected, num_slots=history.num_slots))
            if not case.together:
                assert history.num_slots == expected.num_slots
        ends = [np.concatenate([leaf.ravel() for leaf in jax.tree.leaves(one.params)]) for one in found]
        assert min(np.abs(ends[0] - other).max() for other in ends[1:]) > 1e-3, "the runs do not differ"


def test_steps_and_schedules_are_as_unequal_as_the_cases_say():
    runs = make_runs(UNEQUAL)
    assert len({tuple(run.schedule.step_offsets) for run in runs}) == len(runs)
    assert len({run.schedule.num_trips for run in runs}) > 1


@pytest.mark.full
def test_runs_of_unequal_length_and_data():
    """Each run ends with its own last step, on its own clients' data, and leaves its own reports."""
    with jax.enable_x64(True):
        runs = []
        for number, run in enumerate(make_runs(ON_OWN)):
            case = dataclasses.replace(ON_OWN, schedule={**BUFFER, "server_steps": 20 + 13 * number})
            federation = run.federation
            sizes = np.roll(federation.partition.sizes, number)
            order = np.random.default_rng(number).permutation(len(federation.x))
            partition = jafl.Partition(np.concatenate([[0], np.cumsum(sizes)]), order)
            federation = dataclasses.replace(federation, partition=partition)
            schedule = make_schedule(case, number)
            runs.append(run._replace(schedule=schedule, federation=federation, evaluate_at=[7, 20]))
        for run, history in zip(runs, jafl.simulate_many(runs), strict=True):
            assert history.server_steps == run.schedule.num_steps
            assert_equal(history, alone(run))


@pytest.mark.full
def test_one_that_diverges_leaves_the_others_alone():
    with jax.enable_x64(True):
        runs = make_runs(ON_SHARED)
        wild = jafl.specify(optax.sgd, learning_rate=1e308, momentum=0.5)
        runs[1] = runs[1]._replace(server_optimizer=wild)
        found = jafl.simulate_many(runs)
        with pytest.raises(jafl.DivergenceError) as raised:
            alone(runs[1])
        error = found[1]
        assert isinstance(error, jafl.DivergenceError)
        assert (error.server_step, error.client) == (raised.value.server_step, raised.value.client)
        assert error.server_step < STEPS
        assert [e["server_step"] for e in error.history.evaluations] == [
            e["server_step"] for e in raised.value.history.evaluations
        ]
        for number in (0, 2):
            assert_equal(found[number], alone(runs[number]))


@jax.enable_x64(True)
def test_other_numbers_compile_nothing_and_what_is_shared_is_there_once():
    runs = make_runs(ON_SHARED)
    jafl.simulate_many(runs)
    programs = stacking.run._cache_size()
    other = [
        run._replace(rule=rules.fedbuff(staleness.polynomial(2.0)), key=jax.random.key(77 + number))
        for number, run in enumerate(runs)
    ]
    jafl.simulate_many(other)
    assert stacking.run._cache_size() == programs

    group = make_run_group(*prepare_together(runs))
    assert isinstance(group, StackedRuns)
    stack = group.stack
    program = jax.tree.unflatten(stack.structure, stack.is_own)
    assert not any(jax.tree.leaves((program.data, program.server.steps)))
    assert (program.training.trips, program.server.arrivals) == (
        (False, True, False, None, None, None),
        (False, {}),
    )
    assert all(jax.tree.leaves((program.training.client_work, program.server.rule, program.server.optimizer)))


@jax.enable_x64(True)
def test_callbacks_and_stopping():
    runs = make_runs(ON_SHARED)
    seen: list[tuple[int, int]] = []
    progress: list[int] = []

    def on_evaluation(number: int, evaluation: dict[str, Any], params: Any) -> None:
        assert params["dense"]["kernel"].shape == (6, 3)
        seen.append((number, evaluation["server_step"]))

    found = jafl.simulate_many(
        runs,
        on_evaluation=on_evaluation,
        on_progress=progress.append,
        should_stop=lambda: bool(progress) and progress[-1] >= 17,
    )
    steps = found[0].server_steps
    assert 17 <= steps < STEPS
    assert progress == sorted(set(progress))
    for number, history in enumerate(found):
        assert history.server_steps == steps == history.evaluations[-1]["server_step"]
        assert [(number, e["server_step"]) for e in history.evaluations] == [
            s for s in seen if s[0] == number
        ]
        trips = int(history.schedule.step_offsets[steps])
        assert all(len(rows) == trips for rows in history.trip_reports.values())
        assert history.run_seconds > 0


def evaluated_by(run: jafl.Run, evaluator: Any) -> jafl.Run:
    return run._replace(evaluators={"mine": evaluator}, evaluate_at=[])


@pytest.mark.full
def test_what_a_users_evaluator_raises_takes_no_measurement_from_the_runs_before_it():
    def fails(params: Any) -> float:
        raise OSError("full")

    measured = lambda params: 0.5  # noqa: E731
    runs = [evaluated_by(run, measured) for run in make_runs(ON_SHARED)]
    runs[2] = evaluated_by(runs[2], fails)
    seen: list[int] = []
    with pytest.raises(OSError, match="full"):
        jafl.simulate_many(runs, on_evaluation=lambda number, evaluation, params: seen.append(number))
    assert seen == [0, 1]


def test_a_subclass_of_evaluator_measures_by_its_own_call():
    class Halved(jafl.Evaluator):
        def __call__(self, params: Any) -> dict[str, float]:
            return {"loss": super().__call__(params)["loss"] / 2}

    runs = make_runs(ON_SHARED)
    data = runs[0].federation
    halves, wholes = (
        [history.evaluations[-1]["mine_loss"] for history in jafl.simulate_many(own)]
        for own in (
            [evaluated_by(run, shared) for run in runs]
            for shared in (
                Halved(SOFTMAX, data.x[:8], data.y[:8]),
                jafl.Evaluator(SOFTMAX, data.x[:8], data.y[:8]),
            )
        )
    )
    assert halves == pytest.approx([loss / 2 for loss in wholes])


def changed(name: str, run: jafl.Run) -> jafl.Run:
    """The run with something that cannot be stacked."""
    federation = run.federation
    if name == "rule":
        return run._replace(rule=rules.fedbuff(aggregate="sum"))
    if name == "client_work":
        return run._replace(client_work=jafl.client_work(SOFTMAX, learning_rate=0.1, local_steps=7))
    if name == "server_optimizer":
        return run._replace(server_optimizer=jafl.specify(optax.adam, learning_rate=0.1))
    if name == "params":
        return run._replace(
            client_work=jafl.client_work(MLP, learning_rate=0.1, **EPOCHS),
            params=MLP.init(jax.random.key(0), federation.x),
        )
    fewer = make_federation(CLIENTS - 2, np.float64)
    schedule = make_schedule(
        dataclasses.replace(ON_OWN, schedule={**BUFFER, "num_clients": CLIENTS - 2, "concurrency": 5}), 0
    )
    return run._replace(federation=fewer, schedule=schedule)


@pytest.mark.parametrize(
    "name", ["rule", "client_work", "server_optimizer", "params", "the number of clients"]
)
def test_what_cannot_go_together_is_named(name: str):
    runs = make_runs(ON_OWN)
    runs[2] = changed(name, runs[2])
    with pytest.raises(jafl.SettingError, match=f"^{name} of run 2 is .* run 0"):
        jafl.simulate_many(runs)


def test_no_run_and_too_much_memory(monkeypatch):
    with pytest.raises(jafl.SettingError, match="number of runs is 0"):
        jafl.simulate_many([])
    runs = make_runs(ON_OWN)
    monkeypatch.setattr(stacking, "device_memory", lambda: 10_000)
    with pytest.raises(jafl.SettingError, match="number of runs that go together is 3, but must be fewer"):
        jafl.simulate_many(runs)
