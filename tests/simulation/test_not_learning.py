"""Runs that did not learn end with a warning that says what to change, which then helps; all other runs without."""

import dataclasses
import warnings

import flax.linen
import jax
import numpy as np
import optax
import pytest
from quick_compilation import quick_compilation  # noqa: F401

import jafl
from jafl.simulation.not_learning import RateNames, why_not_learned

CLASSES, CLIENTS = 4, 20


def examples(count, seed=0):
    """[count, 6] and [count]: classes that a linear model tells apart, but for some examples."""
    random = np.random.default_rng(seed)
    centers = np.random.default_rng(99).normal(size=(CLASSES, 6)) * 1.5
    y = random.integers(0, CLASSES, count).astype(np.int32)
    return (centers[y] + random.normal(size=(count, 6))).astype(np.float32), y


def world(*, trips=800, test_labels=None, delay=None, concurrency=10, buffer_size=4, seed=0):
    """(schedule, federation) of clients with one or two labels each."""
    x, y = examples(600, seed)
    test_x, test_y = examples(400, seed + 1)
    if test_labels is not None:
        chosen = np.isin(test_y, test_labels)
        test_x, test_y = test_x[chosen], test_y[chosen]
    partition = jafl.data.dirichlet(y, CLIENTS, alpha=0.2, seed=seed)
    federation = jafl.Federation.from_arrays(x, y, partition, test_x=test_x, test_y=test_y)
    schedule = jafl.asynchronous(
        num_clients=CLIENTS,
        concurrency=concurrency,
        buffer_size=buffer_size,
        client_trips=trips,
        delay=delay or jafl.delays.exponential(1.0),
    )
    return schedule, federation


def simulated(
    schedule, federation, *, client=0.1, server=None, rule=None, params=None, model=None, **options
):
    """(what was warned, the history) of a run of softmax regression."""
    model = model or jafl.models.softmax(CLASSES)
    work = jafl.client_work(model, learning_rate=client, local_epochs=1, batch_size=8)
    if params is None:
        params = model.init(jax.random.key(0), federation.x)
    optimizer = None if server is None else jafl.specify(optax.sgd, learning_rate=server)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        history = jafl.simulate(
            schedule,
            federation,
            work,
            rule or jafl.rules.fedbuff(),
            params,
            jax.random.key(1),
            server_optimizer=optimizer,
            **options,
        )
    said = [str(one.message) for one in caught if issubclass(one.category, jafl.NotLearningWarning)]
    return said, history


@pytest.mark.full
def test_a_loss_that_ends_above_its_start_is_told_with_the_servers_rate():
    said, history = simulated(*world(), server=300.0)
    assert history.evaluations[-1]["test_loss"] > history.evaluations[0]["test_loss"]
    (message,) = said
    assert "its predictions are surer than they are right: its test loss" in message
    assert "Lower the server's learning rate, which is 300, to 1 for example" in message
    assert "the clients' learning rate, which is 0.1" in message


@pytest.mark.full
def test_where_the_server_does_not_overshoot_the_clients_rate_is_named_first():
    (message,) = simulated(*world(), client=300.0)[0]
    assert "Lower the clients' learning rate, which is 300" in message and "server's" not in message


def test_the_warning_points_at_the_callers_line():
    schedule, federation = world(trips=200, buffer_size=1, concurrency=4)
    model = jafl.models.softmax(CLASSES)
    work = jafl.client_work(model, learning_rate=500.0)
    with pytest.warns(jafl.NotLearningWarning) as caught:
        jafl.simulate(
            schedule,
            federation,
            work,
            jafl.rules.asgd(),
            model.init(jax.random.key(0), federation.x),
            jax.random.key(1),
        )
    assert caught[0].filename == __file__
    # One local step: its size is the server's to decide.
    assert "Lower the server's learning rate, which is 1, to 0.001 for example" in str(caught[0].message)


@pytest.mark.few_by_default(2)
@pytest.mark.parametrize("buffer_size, delay", [(1, None), (4, jafl.delays.constant(1.0)), (10, None)])
def test_a_run_that_learns_ends_without_a_warning(buffer_size, delay):
    said, history = simulated(*world(buffer_size=buffer_size, delay=delay), client=0.03)
    assert not said and history.evaluations[-1]["test_accuracy"] > 0.7


@pytest.mark.full
@pytest.mark.parametrize("trips", [4, 20, 100])
@pytest.mark.parametrize("client", [0.01, 1.0])
def test_a_tiny_budget_is_no_reason_to_warn(trips, client):
    assert not simulated(*world(trips=trips), client=client)[0]


def test_a_short_run_whose_loss_has_blown_up_is_told():
    said, _ = simulated(*world(trips=60), server=1000.0)
    assert len(said) == 1


def trained():
    """Parameters that know the task."""
    return simulated(*world(trips=4000), client=0.2)[1].params


@pytest.mark.full
def test_a_run_from_a_trained_model_may_lose_what_is_chance():
    params = trained()
    said, history = simulated(*world(), client=3.0, params=params)
    first, last = history.evaluations[0], history.evaluations[-1]
    assert last["test_loss"] > first["test_loss"], "the case is not the one that is meant"
    assert last["test_accuracy"] > 0.6 and not said


def test_a_run_that_ruins_a_trained_model_is_told():
    said, history = simulated(*world(), server=300.0, params=trained())
    assert history.evaluations[0]["test_accuracy"] > 0.7 and len(said) == 1


@pytest.mark.parametrize("labels", [[0], [0, 1]])
def test_a_test_of_other_labels_than_the_clients_decides_nothing(labels):
    assert not simulated(*world(test_labels=labels), client=0.03)[0]
    (message,) = simulated(*world(test_labels=labels), server=300.0)[0]
    assert "training loss" in message


def with_evaluations(history, start, end, peak=None):
    """The history with another (loss, accuracy) on the test examples at the start and the end."""
    rows = [dict(row) for row in history.evaluations]
    rows[0] |= {"test_loss": start[0], "test_accuracy": start[1]}
    for row in rows[1:]:
        row |= {"test_loss": end[0], "test_accuracy": end[1]}
    if peak:
        rows[1]["test_loss"] = peak
    return dataclasses.replace(history, evaluations=rows)


@pytest.fixture(scope="module")
def ended():
    """(a run, how it ended)."""
    schedule, federation = world()
    model = jafl.models.softmax(CLASSES)
    work = jafl.client_work(model, learning_rate=0.03, local_epochs=1, batch_size=8)
    params = model.init(jax.random.key(0), federation.x)
    run = jafl.Run(schedule, federation, work, jafl.rules.fedbuff(), params, jax.random.key(1))
    return run, simulated(schedule, federation, client=0.03)[1]


# Four classes: a constant prediction has a loss of 1.386 and an accuracy of about 0.27.
@pytest.mark.parametrize(
    "start, end, peak, words",
    [
        (
            (1.5, 0.25),
            (1.39, 0.26),
            3.0,
            "always naming one label",
        ),  # collapsed: its loss is below the first one
        ((1.5, 0.25), (1.49, 0.26), 1.5, "always naming one label"),
        (
            (1.4, 0.45),
            (1.39, 0.26),
            2.0,
            "always naming one label",
        ),  # a start that is lucky, and knows nothing
        ((1.4, 0.25), (1.6, 0.30), 1.6, "test loss is 1.6 at the end and was 1.4 at the start"),
        ((1.4, 0.006), (1.6, 0.636), 1.6, None),  # sure of too much, but it has learned
        ((0.3, 0.90), (0.6, 0.50), 0.6, "test loss is 0.6"),  # a trained model that has lost accuracy
        ((0.3, 0.90), (0.5, 0.89), 0.6, None),
        ((1.4, 0.25), (1.2, 0.27), 1.4, None),  # little accuracy yet, but it learns
        ((1.4, 0.25), (0.4, 0.85), 9.0, None),
    ],
)
def test_what_is_judged(ended, start, end, peak, words):
    run, history = ended
    said = why_not_learned(run, with_evaluations(history, start, end, peak))
    assert (words in said) if words else said is None


def test_a_run_that_swings_and_ends_on_a_good_moment_is_told(ended):
    run, history = ended
    rows = [dict(row) for row in history.evaluations[:1]] + [dict(history.evaluations[-1]) for _ in range(40)]
    for number, row in enumerate(rows):
        row |= {"test_loss": 2.0 if number % 4 else 1.4, "test_accuracy": 0.25}
    said = why_not_learned(run, dataclasses.replace(history, evaluations=rows))
    assert "test loss is 2 in the median of its last evaluations and was 1.4 at the start" in said
    for row in rows[1:]:
        row |= {"test_loss": 0.4, "test_accuracy": 0.9}
    rows[-2] |= {"test_loss": 5.0}
    assert why_not_learned(run, dataclasses.replace(history, evaluations=rows)) is None


def test_where_all_examples_have_one_label_a_constant_prediction_is_all_there_is_to_learn(ended):
    run, history = ended
    one = dataclasses.replace(
        run.federation, y=np.zeros_like(run.federation.y), test_y=np.zeros_like(run.federation.test_y)
    )
    learned = with_evaluations(history, (1.4, 0.2), (0.003, 1.0))
    assert why_not_learned(run._replace(federation=one), learned) is None
    lost = with_evaluations(history, (1.4, 0.2), (2.0, 0.0))
    assert "test loss is 2 at the end" in why_not_learned(run._replace(federation=one), lost)


def test_what_the_rates_are_called_is_the_callers_to_say(ended):
    run, history = ended
    run = run._replace(server_optimizer=jafl.specify(optax.sgd, learning_rate=2.0))
    ruined = with_evaluations(history, (1.4, 0.25), (9.0, 0.25))
    said = why_not_learned(run, ruined, RateNames("--learning_rate", "--server_learning_rate"))
    assert "Lower --server_learning_rate, which is 2, to 0.7 for example" in said
    momentum = run._replace(server_optimizer=jafl.specify(optax.sgd, learning_rate=0.5, momentum=0.9))
    assert "Lower the server's learning rate, which is 0.5" in why_not_learned(momentum, ruined)
    unknown = run._replace(server_optimizer=optax.sgd(2.0))
    assert "Lower the server's learning rate." in why_not_learned(unknown, ruined)


def test_an_evaluator_of_ones_own_leaves_the_training_loss_to_judge_by():
    def slow_clients_labels(params):
        return {"accuracy": 0.0, "loss": 9.0}

    own = {"evaluators": {"test": slow_clients_labels}}
    assert not simulated(*world(), client=0.03, **own)[0]
    (message,) = simulated(*world(), server=300.0, **own)[0]
    assert "training loss" in message


def test_float_targets_are_judged_by_their_loss():
    x, _ = examples(600)
    y = x @ np.arange(6, dtype=np.float32)

    def squared(outputs, targets):
        return (outputs[:, 0] - targets) ** 2

    model = jafl.Model(flax.linen.Dense(1), loss_per_example=squared)
    schedule, federation = world()
    run = jafl.Run(
        schedule,
        dataclasses.replace(federation, y=y, test_y=y[: len(federation.test_x)]),
        jafl.client_work(model, learning_rate=0.1),
        jafl.rules.fedbuff(),
        None,
        None,
    )
    history = simulated(schedule, federation, client=0.03)[1]
    rows = [{**row, "test_accuracy": None} for row in history.evaluations]
    history = dataclasses.replace(history, evaluations=rows)
    assert why_not_learned(run, history) is None
    rows[-1]["test_loss"] = 10 * rows[0]["test_loss"]
    assert "test loss" in why_not_learned(run, history)


@pytest.mark.full
def test_several_runs_in_one_program_warn_once():
    schedule, federation = world()
    model = jafl.models.softmax(CLASSES)
    params = model.init(jax.random.key(0), federation.x)
    runs = [
        jafl.Run(
            schedule,
            federation,
            jafl.client_work(model, learning_rate=0.03, local_epochs=1, batch_size=8),
            jafl.rules.fedbuff(),
            params,
            jax.random.key(1),
            jafl.specify(optax.sgd, learning_rate=rate),
        )
        for rate in (1.0, 3e3, 1e4)
    ]
    with pytest.warns(
        jafl.NotLearningWarning, match=r"2 of 3 runs end with a warning \(numbers 1, 2\)"
    ) as caught:
        jafl.simulate_many(runs)
    assert len(caught) == 1 and caught[0].filename == __file__


def with_accuracies(history, accuracies, start_loss=1.4):
    """The history with these evaluations: (accuracy, a loss that falls with it)."""
    rows = [
        {
            **history.evaluations[0],
            "server_step": history.server_steps * place // (len(accuracies) - 1),
            "test_accuracy": accuracy,
            "test_loss": start_loss * (1 - accuracy) / (1 - accuracies[0]),
        }
        for place, accuracy in enumerate(accuracies)
    ]
    return dataclasses.replace(history, evaluations=rows)


RISING = np.linspace(0.25, 0.889, 40)
SWINGING = 0.8 + 0.08 * (-1.0) ** np.arange(60)
RANDOM = 0.8 + 0.05 * np.random.default_rng(0).normal(size=60)
# {what the accuracies do: (they, whether the run has lost what it had learned)}
PATHS = {
    "rise": (RISING, False),
    "fall from .889 to .724": ([*RISING, *np.linspace(0.889, 0.724, 30)], True),
    "fall at once": ([*RISING, *[0.724] * 20], True),
    "fall to chance": ([*RISING, *np.linspace(0.889, 0.27, 30)], True),
    "fall by little": ([*RISING, *np.linspace(0.889, 0.86, 30)], False),
    "dip and return": ([*RISING, 0.6, 0.5, 0.7, *[0.88] * 20], False),
    "end on one bad moment": ([*RISING, *[0.88] * 20, 0.7], False),
    "swing": ([*RISING[:20], *SWINGING], False),
    "vary": ([*RISING[:20], *RANDOM], False),
    "swing, and fall": ([*RISING, *(SWINGING - 0.25)], True),
    "are few": ([0.25, 0.5, 0.8, 0.79], False),
    "are few, and fall": ([0.25, 0.6, 0.7, 0.8, 0.85, 0.88, 0.3], True),
}


@pytest.mark.parametrize("path", list(PATHS))
def test_what_is_said_of_an_accuracy_that_rose(ended, path):
    run, history = ended
    accuracies, fallen = PATHS[path]
    said = why_not_learned(run, with_accuracies(history, list(accuracies)))
    assert (said is not None) == fallen, said
    if fallen:
        assert "What" not in said and ("has lost what it had learned" in said or "did not learn" in said)


def test_a_loss_falls_back_where_no_accuracy_is_measured(ended):
    run, history = ended
    for ends, fallen in (([1.0, 0.4, 0.2, 0.21, 0.22], False), ([1.0, 0.4, 0.2, 0.5, 0.75], True)):
        rows = [
            {**history.evaluations[0], "server_step": 50 * at, "test_loss": loss, "test_accuracy": None}
            for at, loss in enumerate(ends)
        ]
        said = why_not_learned(run, dataclasses.replace(history, evaluations=rows))
        assert ("test loss was 0.2 around server step 100, and is 0.75" in said) if fallen else said is None


def test_many_classes_are_told_from_chance(ended):
    """A thousand labels, of which chance gives one in a thousand."""
    run, history = ended
    data = run.federation
    many = np.arange(2000, dtype=np.int32) % 1000
    partition = jafl.Partition.from_lists(np.array_split(np.arange(2000), data.num_clients))
    run = run._replace(
        federation=dataclasses.replace(
            data, x=np.zeros((2000, 6)), y=many, test_y=many, partition=partition, num_classes=1000
        )
    )
    chance = float(np.log(1000))
    assert why_not_learned(run, with_evaluations(history, (7.0, 0.001), (6.5, 0.02))) is None
    said = why_not_learned(run, with_evaluations(history, (7.0, 0.001), (chance, 0.0015)))
    assert "always naming one label gives 0.001" in said


def test_noise_that_is_louder_than_the_signal_is_the_cause_and_no_rate_is_named(ended):
    run, history = ended
    lost = with_evaluations(history, (1.4, 0.25), (9.0, 0.25))
    steps = history.server_steps

    def advice(signal, noise, clipped):
        reports = {"signal_norm": np.full(steps, signal), "noise_norm": np.full(steps, noise)}
        trips = {**history.trip_reports, "clipped": np.full(len(history.trip_reports["loss"]), clipped)}
        return why_not_learned(run, dataclasses.replace(lost, step_reports=reports, trip_reports=trips))

    said = advice(0.35, 417.0, 1.0)
    assert "its norm is 417, and that of the signal 0.35" in said and "which is" not in said
    for what in ("epsilon", "noise_multiplier", "cohort_size", "buffer_size"):
        assert what in said
    assert "A smaller clip_norm would shorten the signal, too: 100 %" in said
    assert "a smaller clip_norm (0 % of the trips" in advice(0.35, 417.0, 0.0)
    assert "which is" in advice(417.0, 0.35, 1.0)


def test_a_loss_that_is_not_finite_any_more_is_told_with_its_step(ended):
    run, history = ended
    rows = [dict(row) for row in history.evaluations]
    for row in rows[60:]:
        row["test_loss"] = float("inf")
    said = why_not_learned(run, dataclasses.replace(history, evaluations=rows))
    assert f"test_loss was not finite since server step {rows[60]['server_step']}" in said
    rows[60]["test_loss"] = rows[-1]["test_loss"] = 0.3
    assert why_not_learned(run, dataclasses.replace(history, evaluations=rows)) is None
