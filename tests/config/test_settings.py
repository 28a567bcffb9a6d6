"""Settings: what each declares, the lists that follow from it, config.json, and the setting that a refusal names."""

import json
import pickle
import re

import pytest

from jafl.base.errors import SettingError, choose, refusal, require, whole_number
from jafl.cli.command_help import GROUPS
from jafl.config import calls, grid, presets
from jafl.config.builders.data import run_split
from jafl.config.calls import PROTOCOLS, SHORT_NAMES, TRIPS_PER_STEP
from jafl.config.data_cache import OF_FEDERATION, source_settings
from jafl.config.experiment import make_experiments
from jafl.config.resolution import resolve_run
from jafl.config.settings import (
    FILLED_BY_PRESETS,
    FORMAT,
    GROUP,
    HELP,
    NOT_SETTINGS,
    SHORT_HELP,
    TYPES,
    VARYING,
    Settings,
    filled_by_preset,
)
from jafl.config.values import kinds_of

# What each setting declares


@pytest.mark.parametrize("name", TYPES)
def test_every_setting_has_a_group_and_help(name):
    assert GROUP[name] in GROUPS
    assert re.fullmatch(r"(?s)\S.*[.)]", HELP[name])


def test_every_group_has_settings():
    assert {*GROUP.values()} == {*GROUPS}


@pytest.mark.parametrize("name", SHORT_NAMES)
def test_every_short_name_is_that_of_an_argument_and_has_help(name):
    setting, _, argument = SHORT_NAMES[name].partition(".")
    assert any(argument in arguments for arguments in calls.grammar(setting).arguments().values())
    assert re.fullmatch(r"(?s)\S.*[.)]", SHORT_HELP[name])
    assert name not in TYPES


def test_what_varies_within_a_program_is_a_number_of_neither_data_nor_schedule():
    for name in VARYING:
        setting, dot, path = calls.argument_path(name).partition(".")
        argument = path.rpartition(".")[2]
        assert GROUP[setting] in ("training", "server", "privacy", "output", "run")
        if not dot:
            assert float in TYPES[name]
            continue
        grammar = calls.grammar(setting)
        factories = [*grammar.factories, *grammar.inner]
        assert any(float in kinds_of(grammar.hints(each).get(argument, str)) for each in factories)


def test_presets_fill_in_what_is_declared_for_them():
    for preset in (presets.COMMON, *presets.PRESETS.values()):
        filled = {name for name in preset if name != "rule" and not filled_by_preset(name)}
        assert filled <= {
            "protocol",
            "client_optimizer",
            "client_work",
        }  # calls of which it has some arguments
    assert not any(map(filled_by_preset, ("seed", "num_clients", "protocol.deadline", "client_optimizer.b1")))


# The lists that follow


OF_ANY_SOURCE = {
    *("dataset", "split", "float_type", "data_dir"),
}


def test_what_a_data_set_and_a_federation_depend_on():
    assert set(source_settings("digits")) == set(source_settings("celeb_a")) == OF_ANY_SOURCE
    assert set(source_settings("synthetic")) == OF_ANY_SOURCE | {"num_clients"}
    assert set(source_settings("python_source")) == OF_ANY_SOURCE | {"num_clients"}
    of_partition = {"num_clients", "partition", "richest_last"}
    assert set(OF_FEDERATION) == OF_ANY_SOURCE | of_partition


def test_the_trips_of_a_server_step_are_an_argument_of_each_protocol():
    assert set(TRIPS_PER_STEP) == set(PROTOCOLS) - {"compass"}  # whose groups decide it


def test_what_presets_fill_in_and_what_varies():
    arguments = {
        calls.short_name(f"{setting}.{argument}")
        for setting in calls.CALLS
        for names in calls.grammar(setting).arguments().values()
        for argument in names
        if filled_by_preset(f"{setting}.{argument}") and setting in FILLED_BY_PRESETS
    }
    assert arguments == {
        "concurrency",
        "buffer_size",
        "protocol.cohort_size",
        "protocol.restart",
        "protocol.staleness_limit",
        "protocol.too_stale",
        "protocol.cancel_at_step",
        "protocol.step_when",
        "protocol.step_every",
        "protocol.interval",
        "protocol.download",
        "protocol.tasks",
        "learning_rate",
        "local_steps",
        "client_work.local_epochs",
        "client_work.proximal",
        "client_work.compression",
    }
    assert filled_by_preset("server_optimizer.b1")
    assert filled_by_preset("server_learning_rate") and filled_by_preset("learning_rate")
    assert set(VARYING) == {
        "learning_rate",
        "client_optimizer.momentum",
        "client_work.proximal",
        "client_work.l2",
        "server_learning_rate",
        "server_optimizer.momentum",
        "algorithm.staleness_weight.exponent",
        "algorithm.staleness_weight.slope",
        "algorithm.staleness_weight.threshold",
        "algorithm.staleness_weight.rate",
        "privacy.clip_norm",
        "privacy.noise_multiplier",
        "privacy.epsilon",
        "privacy.delta",
        "secure_aggregation.clip_norm",
        "target_accuracy",
    }


# The setting that a refusal names


SMALL = {"algorithm": "fedbuff", "model": "softmax", "client_trips": 50}


@pytest.mark.parametrize(
    ("changes", "setting", "value"),
    [
        ({"concurrency": 101}, "concurrency", 101),
        ({"algorithm": "fedbuf"}, "algorithm", "fedbuf"),
        ({"server_steps": 10}, "server_steps", 10),
        ({"protocol.cohort_size": 3}, "protocol.cohort_size", 3),
        ({"dataset": "python_source(tokens=0)"}, "dataset.tokens", 0),
        ({"model.fine_tune": "head"}, "model.fine_tune", None),
        ({"seed": "one"}, "seed", "one"),
        ({"delay": "uniform(low=-1)"}, "delay.low", -1.0),
        ({"delay": "log_normal(sigma=-1)"}, "delay.sigma", -1.0),
        ({"delay": "throttled(constant, 7, [0])"}, "delay.share", 7.0),
        ({"delay": "groups([(100, uniform(-1, 2))])"}, "delay.low", -1.0),
        ({"delay": "groups('fast')"}, "delay.members", "fast"),
        ({"delay": "groups([(15, constant)])"}, "delay", 15),
        ({"delay": "gamma(sigma=2)"}, "delay", "gamma(sigma=2)"),
        ({"availability": "diurnal(share=2)"}, "availability.share", 2.0),
        ({"availability": "diurnal", "availability.share": 2.0}, "availability.share", 2.0),
        ({"availability": "diurnal(day_length=1e-300)"}, "availability.day_length", 1e-300),
        ({"availability": "on_and_off(mean_off=-1)"}, "availability.mean_off", -1.0),
        ({"availability": "on_and_off(mean_on=1e-9)"}, "availability.mean_on", 1e-9),
        ({"availability": "on_and_off(spread=1)"}, "availability", "on_and_off(spread=1)"),
        ({"dropout": "fraction(2, server_step=3)"}, "dropout.fraction", 2.0),
        ({"dropout": "fraction(0.5, server_step=0)"}, "dropout.server_step", 0),
        ({"dropout": "clients([3], time=-1)"}, "dropout.time", -1.0),
        ({"dropout": "clients([100], time=1)"}, "dropout", 100),
        ({"availability": "windows([0, 1], [1], [2])"}, "availability", 1),
        ({"partition.alpha": 0.0}, "partition.alpha", 0.0),
        ({"partition": "dirichlet(alpha=0)"}, "partition.alpha", 0.0),
        ({"partition": "natural"}, "partition", "natural"),
        ({"partition": "label_groups"}, "partition", "label_groups"),
        ({"partition": "label_groups([])"}, "partition.groups", []),
        ({"partition": "label_groups([5])"}, "partition", 5),
        ({"partition": "label_groups([(10, [0]), (5, [1])])"}, "num_clients", 100),
        ({"partition": "labels_per_client(smallest=50)"}, "partition.smallest", 50),
        ({"partition": "iid(seed=-1)"}, "partition.seed", -1),
        ({"dataset": "synthetic(alpha=-1)"}, "dataset.alpha", -1.0),
        ({"richest_last": "0,x"}, "richest_last", "0,x"),
        ({"algorithm": "wkafl", "protocol": "open_arrivals"}, "protocol", "open_arrivals(client_trips=50)"),
        ({"algorithm": "gsgm", "protocol": "open_arrivals"}, "protocol", "open_arrivals(client_trips=50)"),
        ({"protocol": "open_arrivals", "protocol.restart": "after_step"}, "protocol.restart", "after_step"),
        ({"protocol.replace_lost": "after_step"}, "protocol.replace_lost", "after_step"),
        ({"algorithm": "wkafl", "protocol.replace_lost": "after_time_out"}, "protocol.trip_time_out", None),
        ({"algorithm.staleness_weight.exponent": -1.0}, "algorithm.staleness_weight.exponent", -1.0),
        ({"server_optimizer.momentum": 1.0}, "server_optimizer.momentum", 1.0),
        ({"learning_rate": "nan"}, "learning_rate", "nan"),
        ({"client_optimizer": "sgd(-1)"}, "learning_rate", -1.0),
        ({"protocol": "asynchronous(concurrency=101)"}, "concurrency", 101),
        ({"client_work": "client_work(local_epochs=0)"}, "client_work.local_epochs", 0),
        ({"model": "mlp(hidden_sizes=[0])"}, "model.hidden_sizes", 0),
    ],
)
def test_a_refusal_carries_the_setting_and_its_value(changes, setting, value):
    with pytest.raises(SettingError) as refused:
        make_experiments(Settings.from_mapping({**SMALL, **changes}))
    assert (refused.value.setting, refused.value.value) == (setting, value)
    assert str(refused.value).startswith(setting)


def test_refusals_of_names_files_sweeps_and_arms_carry_the_setting(tmp_path):
    for refuse, setting in (
        (lambda: Settings.from_mapping({"bufer_size": 5}), "bufer_size"),
        (lambda: Settings.from_mapping({"buffer_size": "x"}), "buffer_size"),
        (lambda: Settings.from_file(str(tmp_path / "none.json")), "config"),
        (lambda: Settings.from_mapping({"delay.mean": "x"}), "delay.mean"),
        (lambda: Settings.from_mapping({"delay.law.mean": "x"}), "delay.mean"),
        (lambda: Settings.from_mapping({"delay.law.shape": 1}), "delay.law.shape"),
        (lambda: Settings.from_mapping({"seed.mean": 1}), "seed.mean"),
        (lambda: Settings.from_mapping({"partition.alpha": "x"}), "partition.alpha"),
        (lambda: Settings.from_mapping({"availability.share": 0.5}), "availability.share"),
        (lambda: Settings.from_mapping({"dropout.time": 5}), "dropout.time"),
        (lambda: Settings().changed({"delay": "gama"}, {"delay.shape": 1}), "delay"),
        (lambda: Settings().changed({"learning_rate": "x"}), "learning_rate"),
        (lambda: grid.parse("target_accuracy=1,x"), "target_accuracy in sweep"),
        (lambda: grid.parse("delay.mean=1,1"), "delay.mean in sweep"),
        (lambda: grid.parse("seed=1,2"), "seed in sweep"),
        (lambda: grid.parse("=1"), "sweep"),
        (lambda: grid.check_arms({"a": {"algorithm": "fedbuff", "seed": "1"}}), "seed"),
    ):
        with pytest.raises(SettingError) as refused:
            refuse()
        assert refused.value.setting == setting


def test_checks_fill_in_what_is_allowed_and_what_to_do():
    with pytest.raises(SettingError, match=r"^share is 2, but must be at most 1\. Lower it\.$") as refused:
        require(False, "share", 2, "at most 1", "Lower it.")
    assert vars(refused.value) == {
        "setting": "share",
        "value": 2,
        "allowed": "at most 1",
        "remedy": "Lower it.",
    }
    with pytest.raises(SettingError) as refused:
        choose("law", "unifrom", {"uniform": 1, "gamma": 2})
    assert (refused.value.setting, refused.value.allowed) == ("law", "one of gamma, uniform")
    assert refused.value.remedy == "Did you mean 'uniform'?"
    with pytest.raises(SettingError) as refused:
        whole_number("steps", 0.5, 1)
    assert (refused.value.setting, refused.value.value) == ("steps", 0.5)
    assert SettingError("Nothing works.").setting == ""


def test_a_refusal_survives_the_way_to_another_process():
    error = pickle.loads(pickle.dumps(refusal("share", 2, "at most 1", "Lower it.")))
    assert (str(error), vars(error)) == (
        "share is 2, but must be at most 1. Lower it.",
        {"setting": "share", "value": 2, "allowed": "at most 1", "remedy": "Lower it."},
    )


# config.json


GOOD = {
    "format": FORMAT,
    "algorithm": "fedbuff",
    "num_clients": 50,
    "command": ["x"],
    "versions": {},
    "device": "cpu",
}


def test_a_config_file_may_hold_some_settings_only(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({**GOOD, "evaluate_every": 20}))
    settings = Settings.from_file(str(tmp_path / "config.json"), concurrency=7)
    assert settings == Settings(algorithm="fedbuff", num_clients=50, evaluate_every=20, concurrency=7)


def test_an_argument_of_a_call_may_stand_in_a_config_file_and_beside_it(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**GOOD, "delay": "gamma(2)", "delay.shape": 3}))
    assert Settings.from_file(str(path)).delay == "gamma(mean=2.0, shape=3.0)"
    assert Settings.from_file(str(path), **{"delay.mean": "5"}).delay == "gamma(mean=5.0, shape=3.0)"
    assert Settings.from_file(str(path), delay="pareto(5)").delay == "pareto(mean=5.0, shape=3.0)"
    path.write_text(json.dumps(GOOD))
    assert Settings.from_file(str(path), **{"delay.sigma": 0}) == Settings(
        algorithm="fedbuff", num_clients=50, delay="once_per_client(law=log_normal(sigma=0.0))"
    )


def test_no_setting_hides_behind_a_field_of_the_config_file():
    assert not set(NOT_SETTINGS) & set(TYPES)


@pytest.mark.parametrize(
    ("given", "rule", "protocol"),
    [
        ({}, 5, "tiers=5"),
        ({"algorithm": "fedat(tiers=3)"}, 3, "tiers=3"),
        ({"protocol.tiers": 3}, 3, "tiers=3"),
        ({"protocol": "tiered(tiers=3)"}, 3, "tiers=3"),
        ({"algorithm": "fedat(tiers=3)", "protocol.tiers": 3}, 3, "tiers=3"),
        ({"protocol.tiers": "[0, 1, 1, 0]", "num_clients": 4}, 2, "tiers=[0, 1, 1, 0]"),
    ],
)
def test_the_tiers_of_fedat_are_said_once(given, rule, protocol):
    settings = Settings.from_mapping({"algorithm": "fedat", **given})
    run = resolve_run(settings, settings.algorithm, 0)
    assert run.value("algorithm.tiers") == rule and protocol in run.protocol


def test_a_seed_may_be_written_as_python_writes_whole_numbers():
    assert run_split(Settings(seed="0x10,2")) == run_split(Settings(seed="16,2"))
