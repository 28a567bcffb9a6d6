"""What evaluators measure stands in columns of its own: no column of the run is overwritten, and none is lost."""

import jax
import numpy as np
import pytest
from quick_compilation import quick_compilation  # noqa: F401

import jafl
from jafl.records.histories import EVALUATION_COLUMNS, STEP_COLUMNS, TRIP_COLUMNS

X = np.random.default_rng(0).normal(size=(12, 3)).astype(np.float32)
Y = np.arange(12) % 2
FEDERATION = jafl.Federation.from_arrays(X, Y, jafl.data.iid(Y, 2, seed=0), test_x=X, test_y=Y)
MODEL = jafl.models.softmax(2)
PARAMS = MODEL.init(jax.random.key(0), X)
WORK = jafl.client_work(MODEL, learning_rate=0.1)
SCHEDULE = jafl.asynchronous(
    num_clients=2, concurrency=1, buffer_size=1, delay=jafl.delays.constant(1.0), server_steps=3
)


def simulate(evaluators, rule=None):
    return jafl.simulate(
        SCHEDULE,
        FEDERATION,
        WORK,
        rule or jafl.rules.fedbuff(),
        PARAMS,
        jax.random.key(1),
        evaluators=evaluators,
    )


@pytest.mark.parametrize(
    "name", sorted({*EVALUATION_COLUMNS, *TRIP_COLUMNS, *STEP_COLUMNS, "loss", "weight"})
)
def test_an_evaluator_does_not_bear_the_name_of_a_column(name):
    with pytest.raises(
        jafl.SettingError, match=f"name of an evaluator is '{name}', but must be none .*client_trips"
    ):
        simulate({name: lambda params: pytest.fail("evaluated")})


@pytest.mark.parametrize("name", ["a/b", "", "two words", None, "line\nbreak", "a,b"])
def test_the_name_of_an_evaluator_is_a_plain_text(name):
    with pytest.raises(jafl.SettingError, match="name of an evaluator is .* a text of letters, digits"):
        simulate({name: lambda params: 0.5})


def test_an_evaluator_does_not_bear_the_name_of_a_rules_report():
    fold = jafl.rules.fedbuff().build().fold

    def telling(buffer, arrival):
        buffer, report = fold(buffer, arrival)
        return buffer, {**report, "mood": arrival.loss}

    rule = jafl.rules.fedbuff().build()._replace(fold=telling)
    assert "mood" in simulate({"own": lambda params: 0.5}, rule).evaluations[-1]
    with pytest.raises(
        jafl.SettingError, match="evaluator is 'mood', but must be none that the run itself records"
    ):
        simulate({"mood": lambda params: 0.5}, rule)


@pytest.mark.parametrize(
    ("evaluators", "message"),
    [
        ({"train": lambda params: {"loss": 7.0}}, "column of the evaluator 'train' is 'train_loss'"),
        ({"client": lambda params: {"trips": 7.0}}, "name of an evaluator is 'client'"),
        ({"server": lambda params: {"step": 7.0}}, "column of the evaluator 'server' is 'server_step'"),
        (
            {"a": lambda params: {"b_c": 1.0}, "a_b": lambda params: {"c": 2.0}},
            "column of the evaluator 'a_b' is 'a_b_c', but must be none that another evaluator has",
        ),
        (
            {"test": lambda params: {"x": 1.0}, "test_x": lambda params: 2.0},
            "column of the evaluator 'test_x' is 'test_x'",
        ),
        (
            {"own": lambda params: {"x/y": 1.0}},
            "column of the evaluator 'own' is 'own_x/y', but must be a text",
        ),
        ({"own": lambda params: np.ma.masked}, "result of the evaluator 'own' is 'masked in 1 places'"),
    ],
)
def test_columns_of_evaluators_do_not_collide(evaluators, message):
    with pytest.raises(jafl.SettingError, match=message):
        simulate(evaluators)


def test_what_is_measured_is_recorded_beside_the_runs_own():
    history = simulate({"train": lambda params: {"accuracy": 0.25}, "other": lambda params: 0.5})
    last = history.evaluations[-1]
    assert (last["train_accuracy"], last["other"], last["server_step"]) == (0.25, 0.5, 3)
    assert last["time"] == SCHEDULE.step_time[-1] and np.isfinite(last["train_loss"])
