"""From objects to text and back: ``jafl.config.describe`` and ``jafl.config.load``."""

import dataclasses
import json

import jax
import numpy as np
import optax
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tiers import in_tiers

import jafl
from jafl.base.array_files import write_archive
from jafl.cli.command_help import explained
from jafl.config import calls
from jafl.config.settings import FORMAT, Settings
from jafl.config.values import Call
from jafl.data.sources.prepared import PREPARED
from jafl.runs.runner import dry_run

LABELS = np.arange(300, dtype=np.int32) % 10
NATURAL = jafl.data.synthetic(num_clients=4, mean_examples=20)
# What an experiment fills in, by setting.
SUPPLIED = {
    "partition": {"labels": LABELS, "num_clients": 15, "source": NATURAL, "seed": 3},
    "delay": {"num_examples": np.full(10, 20)},
    "protocol": {"num_clients": 10, "delay": jafl.delays.exponential(), "seed": 1},
    "dataset": {"num_clients": 5},
    "model": {"num_classes": 10},
    "client_work": {"model": jafl.models.softmax(10), "learning_rate": 0.1},
    "privacy": {"rule": jafl.rules.fedbuff()},
    "secure_aggregation": {"rule": jafl.rules.fedbuff()},
}
# Factories whose defaults are not enough, with a call that is.
CALLED = {
    "asynchronous": "asynchronous(concurrency=4, buffer_size=3, client_trips=40)",
    "synchronous": "synchronous(cohort_size=4, server_steps=5)",
    "open_arrivals": "open_arrivals(start_rate=2.0, buffer_size=3, client_trips=40)",
    "queued": "queued(tasks=3, client_trips=40)",
    "drawn_staleness": "drawn_staleness(buffer_size=2, client_trips=40)",
    "compass": "compass(server_steps=5, least_local_steps=2)",
    "tiered": "tiered(cohort_size=2, server_steps=5)",
    "polled": "polled(cohort_size=2, interval=1.0, server_steps=5)",
    "private": "private(clip_norm=1.0, delta=0.001, noise_multiplier=1.0)",
    "secure": "secure(clip_norm=1.0)",
    "duration_trace": "duration_trace('durations.csv')",
    "read_availability": "read_availability('windows.csv')",
    "label_groups": "label_groups([(10, [4, 5, 6, 7, 8, 9]), (5, [0, 1, 2, 3])])",
    "proportional_to_examples": "proportional_to_examples(mean=2.0)",
    "throttled": "throttled(uniform(1.0, 2.0), 0.5, [0, 2])",
    "reddi_adam": "reddi_adam(learning_rate=0.1)",
    "reddi_adagrad": "reddi_adagrad(learning_rate=0.1)",
    "reddi_yogi": "reddi_yogi(learning_rate=0.1)",
    "heloco": "heloco(learning_rate=0.1, keep_cosine=0.3)",
    "delayed_nesterov": "delayed_nesterov(learning_rate=0.1, period=4, momentum_share=0.25)",
    "fedamsgrad": "fedamsgrad(learning_rate=0.1, form='release')",
    "lora": "lora(softmax, 2, ['dense'], alpha=4.0, params='params.npz')",
    "windows": "windows([0, 2, 3], [0.0, 5.0, 1.0], [1.0, 6.0, 2.0])",
    "clients": "clients([1, 3], trips=2)",
    "groups": "groups([(2, constant(1.0)), (3, gamma(shape=3.0))])",
}
# Data that lie in no file here, and models that read them.
NEEDS_FILES = {
    *PREPARED,
    *(
        "femnist/leaf",
        "femnist/fedjax",
        "femnist/tff",
        "newsgroups",
        "shakespeare",
        "bert",
        "distilbert",
        "sent140_lstm",
    ),
}
EVERY = [
    (setting, name)
    for setting in calls.CALLS
    if setting not in ("precision", "augmentation", "split")
    for name in calls.grammar(setting).factories
    if name not in NEEDS_FILES
]


def text_of(setting, name):
    """A call of a factory that can be made."""
    if name in CALLED and (name, setting) != ("constant", "algorithm"):
        return CALLED[name]
    examples = {each.call.partition("(")[0]: each.example for each in explained(calls.grammar(setting))}
    return examples.get(name) or name


@pytest.fixture(autouse=True)
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "durations.csv").write_text(
        "client,duration\n" + "".join(f"{c},{1 + c}\n" for c in range(10))
    )
    (tmp_path / "windows.csv").write_text("client,start,end\n0,0,5\n1,2,9\n")
    write_archive(tmp_path / "params.npz", {"dense/kernel": np.ones((6, 3)), "dense/bias": np.zeros(3)})


def made(setting, text):
    """What a call makes where the experiment fills in the rest."""
    grammar = calls.grammar(setting)
    if setting == "client_optimizer" or setting == "server_optimizer":
        return grammar.make(text, jafl.specify)
    value = grammar.make(text, **SUPPLIED.get(setting, {}))
    return value


@pytest.mark.few_by_default(30)
@pytest.mark.parametrize(("setting", "name"), EVERY)
def test_objects_to_text_to_objects_is_the_identity(setting, name):
    grammar, text = calls.grammar(setting), text_of(setting, name)
    first = made(setting, text)
    said = jafl.config.describe(first, setting)
    assert grammar.completed(said) == said
    second = made(setting, said)
    assert jafl.config.describe(second, setting) == said
    assert same(first, second)


def same(first, second):
    """Whether two objects mean the same, by their own comparison or by the arrays and fields that they hold."""
    if type(first) is not type(second):
        return False
    if isinstance(first, np.ndarray):
        return np.array_equal(first, second)
    if isinstance(first, (jafl.Specification, jafl.Model)):
        return repr(first) == repr(second) and jax.tree.all(
            jax.tree.map(np.array_equal, jax.tree.leaves(first), jax.tree.leaves(second))
        )
    if hasattr(first, "__dict__"):
        return all(same(value, vars(second)[name]) for name, value in vars(first).items())
    if isinstance(first, (list, tuple)):
        return len(first) == len(second) and all(map(same, first, second))
    return first is second or bool(first == second) or callable(first)


LAWS = [name for setting, name in EVERY if setting == "delay" and name not in CALLED]


@pytest.mark.full
@given(st.sampled_from(LAWS), st.lists(st.floats(1e-3, 1e3), min_size=2, max_size=2), st.booleans())
@settings(max_examples=60, deadline=None)
def test_any_law_with_any_numbers_also_inside_of_others(name, numbers, is_inside):
    grammar = calls.grammar("delay")
    arguments = [each for each in grammar.parameters(name) if isinstance(getattr(jafl.delays, name), type)]
    try:
        text = str(Call(name, dict(zip(arguments, numbers, strict=False))))
        law = grammar.make(f"once_per_client({text})" if is_inside else text)
    except jafl.SettingError:
        assume(False)
    said = jafl.config.describe(law)
    assert grammar.make(said) == law
    assert jafl.config.describe(grammar.make(said)) == said


@given(st.floats(0, 10), st.floats(0, 0.9), st.sampled_from(["sgd", "adam"]))
@settings(max_examples=30, deadline=None)
def test_optimizers_of_optax(rate, other, name):
    argument = "momentum" if name == "sgd" else "b1"
    optimizer = jafl.specify(getattr(optax, name), rate, **{argument: other})
    said = jafl.config.describe(optimizer, "client_optimizer")
    again = calls.grammar("client_optimizer").make(said)
    updates = [
        each.update(np.float32(1.0), each.init(np.float32(0.0)))[0] for each in (optimizer.build(), again)
    ]
    assert np.array_equal(*updates)


def test_a_split_is_said_by_the_data_set_that_has_it():
    source = jafl.data.digits(test_fraction=0.3, data_seed=4)
    assert jafl.config.describe(source) == "digits"
    said = jafl.config.describe(source, "split")
    assert said.startswith("split(test_fraction=0.3, ") and "seed=4" in said


@pytest.mark.parametrize(
    ("value", "setting", "message"),
    [
        (3, None, "the described object is 'int', but must be made by a public factory"),
        (None, None, "availability.always and dropout.nobody make it: name the setting"),
        (jafl.delays.exponential(), "delai", "setting is 'delai'"),
        (jafl.delays.exponential(), "partition", "must be made by a public factory"),
        (jafl.delays.from_function(lambda client, trip: 1.0), None, "must be made by a public factory"),
        (
            jafl.delays.once_per_client(jafl.delays.from_function(lambda c, t: 1.0)),
            None,
            "law is 'from_function'",
        ),
    ],
)
def test_what_no_text_says_is_refused(value, setting, message):
    with pytest.raises(jafl.SettingError, match=message):
        jafl.config.describe(value, setting)


def test_an_object_that_was_changed_is_not_described_as_it_was_made():
    model = dataclasses.replace(jafl.models.mlp(10), compute_dtype="bfloat16")
    with pytest.raises(jafl.SettingError, match="and not changed since"):
        jafl.config.describe(model, "model")


@pytest.mark.parametrize("algorithm", in_tiers(["fedbuff", "ace", "fedavg", "wkafl"], ("fedbuff", "ace")))
def test_a_config_file_is_loaded_and_described_as_it_stands(algorithm, tmp_path):
    chosen = Settings(algorithm=algorithm, model="softmax", client_trips=60, num_clients=12)
    dry_run(chosen, tmp_path / "run", pictures="none", show=lambda line: None)
    experiment = jafl.config.load(tmp_path / "run")
    content = json.loads((tmp_path / "run" / "config.json").read_text())
    described = jafl.config.describe(experiment)
    assert content["format"] == FORMAT
    assert {name: content[name] for name in described} == described
    again = jafl.config.load(tmp_path / "run" / "config.json")
    assert np.array_equal(again.schedule.client, experiment.schedule.client)
    assert jafl.config.describe(again) == described


def test_a_file_of_several_runs_is_refused(tmp_path):
    chosen = Settings(algorithm="fedbuff", seed="0,1", model="softmax", client_trips=60)
    dry_run(chosen, tmp_path / "both", pictures="none", show=lambda line: None)
    (tmp_path / "several.json").write_text(
        json.dumps({"format": FORMAT, "algorithm": "fedbuff", "seed": "0,1"})
    )
    with pytest.raises(jafl.SettingError, match="must be the config.json of one run"):
        jafl.config.load(tmp_path / "several.json")
