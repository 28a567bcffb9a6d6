"""What users hand to ``simulate`` and ``simulate_many``: folders for checkpoints, and natural mistakes."""

import re

import jax
import numpy as np
import pytest
from quick_compilation import quick_compilation  # noqa: F401
from small_runs import small_parts

import jafl


@pytest.fixture(scope="module")
def parts():
    return small_parts()


@pytest.mark.full
def test_a_folder_keeps_checkpoints(parts, tmp_path):
    whole = jafl.simulate(**parts)
    for folder in (str(tmp_path / "text"), tmp_path / "path"):
        stops = iter([False] * 5 + [True])
        stopped = jafl.simulate(
            **parts, checkpoints=folder, should_stop=lambda stops=stops: next(stops, True)
        )
        assert 0 < stopped.server_steps < 12
        again = jafl.simulate(**parts, checkpoints=folder)
        jax.tree.map(np.testing.assert_array_equal, again.params, whole.params)
    runs, folder = [jafl.Run(**parts)], str(tmp_path / "many")
    stops = iter([False] * 5)
    jafl.simulate_many(runs, checkpoints=folder, should_stop=lambda: next(stops, True))
    assert any((tmp_path / "many").iterdir())
    (again,) = jafl.simulate_many(runs, checkpoints=folder)
    jax.tree.map(np.testing.assert_array_equal, again.params, whole.params)


def test_numbers_and_truth_values_of_numpy_are_such(parts):
    asked = {"num_clients": np.int32(8), "concurrency": np.int32(6), "buffer_size": np.int32(3)}
    schedule = jafl.asynchronous(
        **asked, server_steps=np.int32(12), delay=jafl.delays.exponential(np.float32(1.0)), seed=np.int64(0)
    )
    model = parts["client_work"].arguments["model"]
    work = jafl.client_work(model, learning_rate=np.float32(0.1), keep_optimizer_state=np.bool_(False))
    history = jafl.simulate(
        **{**parts, "schedule": schedule, "client_work": work}, evaluate_clients=np.bool_(True)
    )
    assert history.evaluations[-1]["test_loss"] == jafl.simulate(**parts).evaluations[-1]["test_loss"]


def test_what_a_callback_does_with_an_evaluation_stays_out_of_the_history(parts):
    def changes(evaluation, params):
        evaluation.clear()
        params.clear()

    history = jafl.simulate(**parts, on_evaluation=changes, keep_best="test_loss")
    untouched = jafl.simulate(**parts, keep_best="test_loss")
    assert history.evaluations == untouched.evaluations
    jax.tree.map(np.testing.assert_array_equal, history.best_params, untouched.best_params)


@pytest.mark.parametrize("transform", [jax.jit, jax.vmap, jax.grad])
def test_values_that_jax_traces_are_refused(parts, transform):
    def trained(rate):
        model = parts["client_work"].arguments["model"]
        work = jafl.client_work(model, learning_rate=rate)
        return jafl.simulate(**{**parts, "client_work": work}).params["dense"]["bias"].sum()

    rate = np.float32(0.1) if transform is not jax.vmap else np.array([0.1, 0.2], np.float32)
    with pytest.raises(jafl.SettingError, match="client_work is 'traced by JAX'.*jafl.simulate_many"):
        transform(trained)(rate)


def test_a_guard_against_transfers_that_are_not_meant_lets_these_pass(parts):
    run = jafl.Run(**parts)
    with jax.transfer_guard("disallow"):
        jafl.simulate(**parts)
        jafl.simulate_many([run, run])
        with pytest.raises(jax.errors.JaxRuntimeError, match="Disallowed"):
            jax.random.key(0)


def test_steps_of_numpy_are_steps(parts):
    history = jafl.simulate(**parts, evaluate_at=np.linspace(0, 12, 4))
    assert [e["server_step"] for e in history.evaluations] == [0, 4, 8, 12]


def test_keys_of_both_kinds_are_keys(parts):
    new = jafl.simulate(**{**parts, "key": jax.random.key(3)})
    old = jafl.simulate(**{**parts, "key": jax.random.PRNGKey(3)})
    jax.tree.map(np.testing.assert_array_equal, new.params, old.params)


KEY = jax.random.key(0)
MISTAKES = {
    "schedule": [
        (jafl.asynchronous, "schedule is <function asynchronous"),
        (None, "schedule is None, but must be a jafl.EventSchedule"),
    ],
    "federation": [(None, "federation is None, but must be a jafl.Federation")],
    "params": [
        (None, "params is None", "model.init(jax.random.key(0), federation.x)"),
        (KEY, "params is Array", "arrays of floats"),
        ({"kernel": [0.0, 1.0]}, "params is 0.0", "arrays of floats"),
        ({"kernel": np.zeros((5, 10), int)}, "params is array", "arrays of floats"),
        (len, "params is <built-in function len>"),
    ],
    "key": [
        (0, "key is 0, but must be one JAX random key. Make one with jax.random.key(0)"),
        (None, "key is None"),
        (jax.random.split(KEY), "key is Array"),
        (np.random.default_rng(0), "key is Generator"),
        (np.zeros(2), "key is array"),
    ],
    "evaluate_at": [
        (3, "evaluate_at is 3, but must be a list of server steps"),
        ("all", "evaluate_at is 'all'"),
        ([1.5], "evaluate_at is 1.5", "whole numbers"),
        ([float("nan")], "evaluate_at is nan"),
        ([True, "x"], "evaluate_at is"),
        ([[1, 2]], "evaluate_at is [1, 2]"),
        ([-1], "evaluate_at is [-1, 12]"),
    ],
    "evaluators": [
        (lambda params: {"x": 1.0}, "evaluators is <function", "{name: function of params"),
        ({"x": 1.0}, "evaluators is {'x': 1.0}"),
        ({"x": lambda: {"y": 1.0}}, "evaluators['x'] is <function", "called as evaluators['x'](params)"),
    ],
    "on_evaluation": [
        (3, "on_evaluation is 3, but must be a function"),
        (lambda evaluation: None, "a function, called as on_evaluation(evaluation, params). It cannot be"),
        (lambda evaluation, params, *, where: None, "missing a required argument: 'where'"),
    ],
    "on_progress": [("print", "on_progress is 'print'"), (lambda: None, "on_progress(server_step)")],
    "should_stop": [
        (True, "should_stop is True, but must be a function"),
        (lambda step: False, "a function, called as should_stop(). It cannot be: missing a required"),
    ],
    "checkpoints": [
        (True, "checkpoints is True, but must be a folder, or what jafl.Checkpoints(folder) returns"),
        (3, "checkpoints is 3"),
        (__file__, "checkpoints is '/", "but cannot be made: Not a directory."),
        (jafl.Checkpoints(f"{__file__}/below"), "checkpoints is '/", "cannot be made: Not a directory."),
        ("x" * 256, "folder is 'xxx", "of names of at most 255 bytes, as file systems take them"),
    ],
    "plan": [("waves", "plan is 'waves', but must be what jafl.trip_by_trip or jafl.in_waves returns")],
    "together": [("yes", "together is 'yes', but must be True, False or None")],
}


@pytest.mark.parametrize(
    "name, mistake", [(name, mistake) for name, mistakes in MISTAKES.items() for mistake in mistakes]
)
def test_a_mistake_is_told_by_the_name_of_the_argument(parts, name, mistake):
    value, *said = mistake
    with pytest.raises(jafl.SettingError, match="(?s)" + ".*".join(map(re.escape, said))) as raised:
        jafl.simulate(**{**parts, name: value})
    assert "\n" not in str(raised.value) and len(str(raised.value)) < 800


@pytest.mark.parametrize(
    "runs, said",
    [
        (None, "runs is None, but must be a list of jafl.Run"),
        ([], "the number of runs is 0"),
        (["a"], "run 0 is 'a', but must be a jafl.Run"),
    ],
)
def test_what_is_no_run_is_refused(runs, said):
    with pytest.raises(jafl.SettingError, match=re.escape(said)):
        jafl.simulate_many(runs)


@pytest.mark.parametrize(
    ("name", "callback", "said"),
    [
        ("on_evaluation", lambda evaluation, params: None, "on_evaluation(run, evaluation, params)"),
        ("on_end", lambda outcome: None, "on_end(run, outcome)"),
        ("on_memory", lambda: None, "on_memory(forecast)"),
    ],
)
def test_callbacks_of_several_runs_are_called_with_the_run(parts, name, callback, said):
    with pytest.raises(jafl.SettingError, match=f"^{name} is <function .*{re.escape(said)}"):
        jafl.simulate_many([jafl.Run(**parts)], **{name: callback})


def test_callbacks_that_do_not_say_what_they_take_are_callbacks(parts):
    steps = []
    jafl.simulate(**parts, on_progress=steps.append, should_stop=int)
    assert steps[-1] == 12


def test_one_run_alone_is_no_list_of_runs(parts):
    with pytest.raises(jafl.SettingError, match="a list of jafl.Run"):
        jafl.simulate_many(jafl.Run(**parts))
    with pytest.raises(jafl.SettingError, match="key is 0"):
        jafl.simulate_many([jafl.Run(**{**parts, "key": 0})])


X, Y = np.zeros((4, 2), np.float32), np.zeros(4, np.int32)


@pytest.mark.parametrize(
    "make, said",
    [
        (lambda: jafl.Rule(1, 2, 3, 4), "the rule's init is 1, but must be a function"),
        (lambda: jafl.federate(np.zeros((3, 2)), None), "source is array"),
        (lambda: jafl.Partition.from_lists(3), "lists is 3"),
        (lambda: jafl.Partition.from_lists({0: [1]}), "lists is {0: [1]}"),
        (lambda: jafl.data.image_source("cifar"), "Did you mean 'cifar10'"),
        (lambda: jafl.plots.png("a.png"), "figure is 'a.png'"),
        (lambda: jafl.plots.save(None, "x" * 252 + ".png"), "of names of at most 255 bytes"),
        (lambda: jafl.History.load("x" * 256), "of names of at most 255 bytes"),
        (lambda: jafl.compilation_cache("x" * 256), "of names of at most 255 bytes"),
        (
            lambda: jafl.rules.staleness.polynomial("half"),
            "exponent of polynomial is 'half', but must be a number",
        ),
        (lambda: jafl.Checkpoints("c", on_trouble=lambda: None), "called as on_trouble(sentence)"),
        (lambda: jafl.diagnostics.gini("many"), "values is 'many', but must be an array of numbers"),
        (lambda: jafl.diagnostics.participation(None), "schedule is None, but must be a jafl.EventSchedule"),
        (lambda: jafl.forecast("run", "v5e:1x1"), "subject is 'run', but must be a jafl.Run"),
        (lambda: jafl.Model(lambda: None), "the model's module is"),
        (lambda: jafl.Model(jafl.models.softmax(3).module, "mse"), "loss_per_example is 'mse'"),
        (lambda: jafl.Evaluator(jafl.models.softmax(3).module, X, Y), "model is Softmax"),
        (lambda: jafl.Evaluator(jafl.models.softmax(3), X, Y[:2]), "the number of labels is 2"),
        (lambda: jafl.Evaluator(jafl.models.softmax(3), X[:0], Y[:0]), "the number of examples is 0"),
    ],
)
def test_mistakes_elsewhere(make, said):
    with pytest.raises(jafl.SettingError, match=re.escape(said)):
        make()


def test_a_staleness_weight_that_was_not_called(parts):
    with pytest.raises(jafl.SettingError, match="polynomial.*must be a number. Is it a factory"):
        jafl.simulate(**{**parts, "rule": jafl.rules.fedbuff(jafl.rules.staleness.polynomial)})


def test_names_that_do_not_exist_are_answered_with_the_nearest():
    with pytest.raises(AttributeError, match="Did you mean 'simulate'"):
        jafl.simulatte  # noqa: B018
    with pytest.raises(TypeError, match="no field 'linearr'. Did you mean 'linear'"):
        jafl.Rule(len, len, len, len, linearr=True)


@pytest.mark.parametrize(
    ("call", "flag"),
    [
        (lambda: jafl.rules.fedbuff(weigh_by_examples="no"), "weigh_by_examples"),
        (lambda: jafl.data.dirichlet([0, 1, 0, 1], 2, alpha=1.0, seed=0, equal_sizes="no"), "equal_sizes"),
        (lambda: jafl.models.Inputs(random_flip="no"), "random_flip"),
        (
            lambda: jafl.asynchronous(
                num_clients=2,
                concurrency=1,
                client_trips=2,
                delay=jafl.delays.constant(1.0),
                availability=jafl.availability.diurnal(loses_trips="no"),
            ),
            "loses_trips of the availability",
        ),
    ],
)
def test_a_text_is_no_truth_value(call, flag):
    # As one it would count as True.
    with pytest.raises(jafl.SettingError, match=f"^{flag} is 'no', but must be True or False"):
        call()
