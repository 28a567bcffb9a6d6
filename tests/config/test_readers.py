"""Who reads a setting: what is declared is what the builders do, and what no run reads is refused."""

import functools
import json
import re

import numpy as np
import pytest
from command_line import run_py
from tiers import in_tiers

from jafl import data
from jafl.base.errors import SettingError
from jafl.config import world
from jafl.config.builders.data import filled_in, make_federation, make_inputs, make_source
from jafl.config.builders.schedule import make_schedule
from jafl.config.builders.training import make_client_work, make_model, make_optimizer, make_rule
from jafl.config.calls import CALLS, grammar
from jafl.config.experiment import _evaluation_steps, make_experiments
from jafl.config.presets import WITH_NEXT_TOKENS
from jafl.config.resolution import refuse_unread, resolve_run, without_unread
from jafl.config.settings import GROUP, TYPES, Settings, default_of
from jafl.sweeps.sweep import run_sweep

SMALL = {"algorithm": "fedbuff", "model": "softmax", "client_trips": 60, "num_clients": 15, "concurrency": 10}
ACE = {"algorithm": "ace", "concurrency": None}

# Settings that no run of theirs reads, and parts of the message.
OF_EVENTS = "protocol is drawn_staleness, which has no "
UNREAD = {
    "availability": (
        {"protocol": "drawn_staleness", "concurrency": None, "availability": "diurnal"},
        [OF_EVENTS],
    ),
    "dropout": (
        {"protocol": "drawn_staleness", "concurrency": None, "dropout": "fraction(0.5, time=5)"},
        [OF_EVENTS],
    ),
    "split.server_classes": (
        {"split.server_classes": [1]},
        ["split.server_examples is left out."],
    ),
    "data_dir": ({"data_dir": "x"}, ["dataset is digits, which has no data_dir."]),
    "split.test_fraction": (
        {"dataset": "femnist/leaf", "split.test_fraction": 0.1},
        ["dataset is femnist/leaf, which has no test_fraction."],
    ),
    "split.seed": (
        {"dataset": "femnist/leaf", "split.seed": 3},
        ["dataset is femnist/leaf, and none of split.test_fraction", "or split.folds is given."],
    ),
    "protocol.cohort_size": (
        {"protocol.cohort_size": 3},
        [
            "protocol is asynchronous, without cohort_size. It is an argument of synchronous, tiered or polled."
        ],
    ),
    "buffer_size": (
        {"algorithm": "fedavg", "buffer_size": 3},
        [
            "protocol is synchronous, without buffer_size. "
            "It is an argument of asynchronous, open_arrivals, drawn_staleness or queued."
        ],
    ),
    "concurrency": (
        {"algorithm": "fedavg", "protocol.cohort_size": 3},
        ["protocol is synchronous, without concurrency."],
    ),
    "model.channels": (
        {"model": "default", "model.channels": [4]},
        ["model is mlp, without channels. It is an argument of cnn."],
    ),
    "server_optimizer.b1": (
        {"server_optimizer.b1": 0.5},
        ["server_optimizer is sgd, without b1. It is an argument of adam, yogi, reddi_adam"],
    ),
}


@pytest.mark.parametrize("row", UNREAD)
def test_what_no_run_reads_is_refused_with_the_reason(row):
    changes, parts = UNREAD[row]
    with pytest.raises(SettingError) as refused:
        make_experiments(Settings.from_mapping({**SMALL, **changes}))
    assert refused.value.setting == row
    assert "must be left out: no run reads it. " in str(refused.value)
    for part in parts:
        assert part in str(refused.value)


DIRICHLET = "dirichlet"
# {an argument that a call does not have: (the call, what is said)}; tests/adversary/rows_settings.py has more.
NO_ARGUMENT = {
    "partition.alpha": (
        {"partition": "iid"},
        "iid has no argument 'alpha'; it has seed. It is an argument of dirichlet.",
    ),
    "availability.share": ({}, "always has no arguments. It is an argument of diurnal."),
    "dropout.time": ({}, "nobody has no arguments. It is an argument of fraction or clients."),
}


@pytest.mark.parametrize("name", NO_ARGUMENT)
def test_an_argument_that_a_call_does_not_have_is_refused(name):
    base, message = NO_ARGUMENT[name]
    for values in ({**SMALL, **base, name: 0.1}, {name: 0.1, **SMALL, **base}):
        with pytest.raises(SettingError) as refused:
            Settings.from_mapping(values)
        assert refused.value.setting == name
        assert str(refused.value).startswith(f"{name}: {message}")


@pytest.mark.full
def test_an_argument_of_a_partition_that_is_left_out_makes_it_dirichlet():
    """Also where the data set has clients of its own."""
    for dataset in ("digits", "synthetic"):
        settings = Settings.from_mapping({**SMALL, "dataset": dataset, "partition.alpha": 0.1})
        (experiment,) = make_experiments(settings)
        assert experiment.settings.partition == "dirichlet(alpha=0.1, equal_sizes=False)"


def test_a_run_holds_its_calls_with_every_default():
    def whole(**given):
        (experiment,) = make_experiments(Settings.from_mapping({**SMALL, **given}))
        return tuple(getattr(experiment.settings, name) for name in ("partition", "availability", "dropout"))

    assert whole() == ("dirichlet(alpha=0.3, equal_sizes=False)", "always", "nobody")
    assert whole(dataset="synthetic")[0] == "natural"
    assert whole(partition="iid(seed=3)", availability="on_and_off(5)", dropout="fraction(0.5, time=10)") == (
        "iid(seed=3)",
        "on_and_off(mean_on=5.0, mean_off=10.0, loses_trips=True)",
        "fraction(fraction=0.5, server_step=None, time=10.0, trips=None)",
    )
    assert whole(dropout="fraction(0, time=10)")[2] == "nobody"


def test_what_one_of_several_runs_has_is_given_to_it_alone():
    both = Settings.from_mapping(
        {**SMALL, "algorithm": "fedbuff,fedavg", "algorithm.aggregate": "sum", "buffer_size": 3}
    )
    fedbuff, fedavg = (experiment.settings for experiment in make_experiments(both))
    assert (fedbuff.value("algorithm.aggregate"), fedbuff.buffer_size) == ("sum", 3)
    assert (fedavg.argument("algorithm.aggregate"), fedavg.buffer_size) == (None, None)


@pytest.mark.few_by_default(2)
@pytest.mark.parametrize("algorithm", ["fedbuff", "fedavg", "ace", "wkafl", "fedadam"])
@pytest.mark.parametrize(
    "changes", [{}, {"dataset": "synthetic"}, {"protocol": "open_arrivals(start_rate=3)"}]
)
def test_the_settings_of_a_run_repeat_it_without_a_word(algorithm, changes):
    """What ``config.json`` holds is given once more, with every default filled in."""
    base = {**SMALL, **changes, "algorithm": algorithm}
    if algorithm == "ace" or "protocol" in base:
        base["concurrency"] = None
    if "protocol" in base and algorithm != "fedbuff":
        return
    (experiment,) = make_experiments(Settings(**base))
    assert without_unread(experiment.settings, ()) == (experiment.settings, [])
    (again,) = make_experiments(experiment.settings)
    assert again.settings == experiment.settings


@pytest.mark.parametrize("algorithm", ["fedavg", "fedavgm"])
def test_poisson_cohorts_are_divided_by_their_expected_size(algorithm):
    base = {**SMALL, "algorithm": algorithm, "concurrency": 4}
    (fixed,) = make_experiments(Settings.from_mapping(base))
    poisson = {**base, "protocol.cohorts": "poisson"}
    (varying,) = make_experiments(Settings.from_mapping(poisson))
    (typed,) = make_experiments(Settings.from_mapping({**poisson, "algorithm.divide_by": 7}))
    divisors = [run.rule.arguments.get("divide_by") for run in (fixed, varying, typed)]
    assert divisors == [None, 4.0, 7.0]


# Sweeps


@pytest.mark.parametrize("values", ["0.1,1", "0.3"])  # 0.3 is its default
def test_a_sweep_over_an_argument_that_the_call_does_not_have_is_refused(values, tmp_path):
    with pytest.raises(SettingError, match="^partition.alpha: iid has no argument 'alpha'") as refused:
        run_sweep(Settings(**SMALL, partition="iid"), f"partition.alpha={values}", tmp_path / "sweep")
    assert refused.value.setting == "partition.alpha"
    assert not (tmp_path / "sweep").exists()


def test_a_setting_that_one_condition_reads_may_be_given_to_a_sweep():
    def arms(count):
        return {"fedbuff": Settings(**SMALL, **{"split.server_examples": count, "split.server_classes": [1]})}

    refuse_unread([({}, arms(0)), ({}, arms(20))])
    with pytest.raises(SettingError, match="split.server_classes"):
        refuse_unread([({}, arms(0))])


# Files


def test_what_stands_in_a_file_and_is_not_read_is_left_out_and_named():
    given = {**SMALL, "split.server_classes": [1], "protocol.deadline": 3.0}
    settings = Settings.from_mapping(given)
    kept, left_out = without_unread(settings, typed=("learning_rate",))
    assert [each.setting for each in left_out] == ["split.server_classes", "protocol.deadline"]
    assert kept.value("split.server_classes") is None and "deadline" not in kept.protocol
    for name, value in (("split.server_classes", "[1]"), ("protocol.deadline", "3.0")):
        with pytest.raises(SettingError, match=re.escape(f"{name} is {value}, but must be left out")):
            without_unread(settings, typed=(name,))
    with pytest.raises(
        SettingError, match="split.server_classes is None, but must be left out"
    ):  # typed as its default is
        without_unread(Settings(**SMALL), typed=("split.server_classes",))


@pytest.mark.full
def test_a_process_warns_of_files_and_refuses_what_was_typed(tmp_path):
    flags = [f"--{name}={value}" for name, value in SMALL.items()]
    lines = [*flags, "--split.server_classes=[1]", "--protocol.deadline=3", "--scale=paper"]
    (tmp_path / "flags.txt").write_text("\n".join(lines))
    result = run_py("plan", "--flagfile=flags.txt", "--output_dir=dry", folder=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "Warning: split.server_classes is [1] in the flag file, but no run reads it" in result.stderr
    assert "Warning: protocol.deadline is 3.0 in the flag file, but no run reads it" in result.stderr
    assert "Warning: --scale=paper stands in the flag file, but" in result.stderr
    assert json.loads((tmp_path / "dry" / "config.json").read_text())["split"].endswith(
        "server_classes=None)"
    )
    result = run_py("plan", "--flagfile=flags.txt", "--protocol.deadline=3", folder=tmp_path)
    assert result.returncode == 2
    assert "Error: protocol.deadline is 3.0, but must be left out: no run reads it" in result.stderr


# What is declared is what the builders do: where a setting is read, another value makes another run.

# Two other values of each setting that is no call; those of ``NOT_BUILT`` make no ingredient of a run.
OTHER = {
    "seed": ("3", "4"), "num_clients": (14, 16),
    "richest_last": ("0-2", "3"), "split.client_test_fraction": (0.3, 0.1), "split.validation_fraction": (0.1, 0.2),
    "split.test_fraction": (0.1, 0.3), "split.seed": (5, 6), "split.resample": (True, False),
    "split.evaluation_examples": (30, 20), "split.folds": (5, 4), "split.shuffle_labels": (True, False),
    "augmentation.random_crop": (1, 2), "augmentation.random_flip": (True, False),
    "split.server_examples": (40, 50), "split.server_classes": ([0, 1, 2], [1]), "evaluate_every": (25, 35),
}  # fmt: skip
# Read by the evaluation, the report, the choice of a plan, or of the whole program.
NOT_BUILT = {
    "devices", "plan_form", "data_dir",
    "target_accuracy", "decompose_steps", "train_accuracy", "different_worlds", "stop_when", "keep",
    "evaluate_clients",
}  # fmt: skip
LABEL_GROUPS = "label_groups([(10, [4, 5, 6, 7, 8, 9]), (5, [0, 1, 2, 3])])"
BASES = {
    "fedbuff": {"algorithm": "fedbuff"},
    "fedavg": {"algorithm": "fedavg"},
    **{
        f"protocol {name}": {"protocol": name}
        for name in ("synchronous", "open_arrivals", "drawn_staleness", "queued")
    },
    "delay groups": {"delay": "once_per_client(groups([(10, uniform(1, 2)), (5, uniform(8, 12))]))"},
    "diurnal": {"availability": "diurnal(2)"},
    **{f"partition {name}": {"partition": name} for name in ("iid", "labels_per_client")},
    "partition label_groups": {"partition": LABEL_GROUPS},
    "held out": {"split.client_test_fraction": 0.2},
    "folds": {"split.folds": 6},
    "synthetic": {"dataset": "synthetic"},
    "mnist_1d": {"dataset": "mnist_1d(examples=250)"},
    "synthetic iid": {"dataset": "synthetic", "partition": "iid"},
    "server": {"split.server_examples": 60},
    **{f"model {name}": {"model": name} for name in ("mlp", "cnn")},
}


# What happens to change nothing: folds of clients that come with their data are refused.
ALWAYS_THE_SAME = {"synthetic": {"split.folds"}, "synthetic iid": {"split.folds"}}
ALWAYS_THE_SAME["delay groups"] = {"num_clients"}  # refused: the groups say how many there are


def base_of(row):
    left_out = {"concurrency"} if "drawn_staleness" in row else set()
    small = {name: value for name, value in SMALL.items() if name not in left_out}
    return Settings(**{**small, "seed": "2", **BASES[row]})


def resolved(settings):
    return world.as_read(resolve_run(settings, settings.algorithm, 0))


@functools.lru_cache(maxsize=200)
def source_of(written):
    return make_source(Settings(**json.loads(written)))


def ingredients(settings):
    """All that a run is made of, as text: equal for settings that make the same run."""
    run = resolve_run(settings, settings.algorithm, int(settings.seed))
    asked = {name: getattr(run, name) for name in TYPES if GROUP[name] in ("data", "partition")}
    source = source_of(json.dumps(asked | {"seed": run.seed}))
    run = world.as_read(filled_in(run, source))
    federation = make_federation(run, source, int(run.seed))
    model, inputs = make_model(run, source), make_inputs(run, source)
    rule = make_rule(run)
    schedule = make_schedule(
        run, federation.num_examples, initial_round=rule.build().initial_round, model_bytes=2600.0
    )
    work = make_client_work(run, model)
    arrays = [*vars(schedule).values(), *vars(federation.partition).values(), source.x, source.test_x]
    arrays += [getattr(source, name) for name in ("y", "server_x", "validation_x")]
    arrays += vars(federation.held_out).values() if federation.held_out else []
    digest = [hash(np.asarray(array).tobytes()) for array in arrays if array is not None]
    of_work = {name: value for name, value in work.arguments.items() if name != "model"}
    optimizer = make_optimizer(run, "server_optimizer")
    parts = (
        digest,
        model.module,
        inputs,
        rule,
        optimizer,
        sorted(of_work.items()),
        _evaluation_steps(run, schedule),
    )
    return repr((*parts, run.seed))


def _arguments(setting):
    return grammar(setting).arguments()[setting]


def test_there_is_another_value_of_every_setting():
    split = {f"{setting}.{name}" for setting in ("split", "augmentation") for name in _arguments(setting)}
    assert set(OTHER) | NOT_BUILT == (set(TYPES) - set(CALLS)) | split
    assert not set(OTHER) & NOT_BUILT


DEFAULT_TIER = ("fedbuff", "fedavg", "synthetic", "partition iid")


@pytest.mark.few_by_default(2)
@pytest.mark.parametrize("row", in_tiers(BASES, DEFAULT_TIER))
def test_a_setting_changes_a_run_that_reads_it_and_is_refused_elsewhere(row, request):
    row = request.node.callspec.id
    base = base_of(row)
    run = resolved(base)
    before, wrong = ingredients(base), []
    for name, values in OTHER.items():
        if name in ALWAYS_THE_SAME.get(row, ()):
            continue
        value = next(each for each in values if each != run.value(name))
        changed = base.changed({name: value})
        if not world.why_unread(name, run):
            wrong += _changes_nothing(name, changed, before)
        elif value != default_of(name) and world.why_unread(name, resolved(changed)):
            with pytest.raises(SettingError, match="no run reads it"):
                refuse_unread([({}, {base.algorithm: changed})])
    assert not wrong


def _changes_nothing(name, changed, before):
    """[a sentence] if the run with another value of a setting is the one before, and is not refused for it."""
    try:
        return (
            [f"{name} is {changed.value(name)!r} and changes nothing"]
            if ingredients(changed) == before
            else []
        )
    except SettingError as refused:
        return (
            []
            if name in str(refused) or "starves" in str(refused)
            else [f"{name} is {changed.value(name)!r}: {refused}"]
        )


# Windows of availability: the first two are one client's, then each client has one.
OFFSETS, STARTS, ENDS = [0, *range(2, 17)], 8 * [0, 0.5], 8 * [0.2, 0.7]
# {setting: {a call: another value of every argument that may be given, or of several at once where they exclude each
# other}}; two files of delays and two of availability lie there.
OTHER_ARGUMENTS = {
    "delay": {
        "constant": {"duration": 2},
        "uniform": {"low": 0.5, "high": 4},
        "half_normal": {"sigma": 2},
        "exponential": {"mean": 2},
        "log_normal": {"mean": 2, "sigma": 2},
        "gamma": {"mean": 2, "shape": 4},
        "pareto": {"mean": 2, "shape": 4},
        "proportional_to_examples": {"mean": 2, "mean_per_example": 3},
        "groups([(15, exponential)])": {"members": "[(15, pareto)]"},
        "slow_fraction(gamma, exponential(10), 0.3)": {
            **{"law": "pareto", "slow_law": "pareto(9)", "fraction": 0.7},
            **{"law.mean": 2, "law.shape": 4, "slow_law.mean": 20},
        },
        "once_per_client(log_normal)": {"law": "log_normal(2)", "mean": 2, "sigma": 2},
        "with_network(exponential, upload_bandwidth=1000)": {
            **{"compute": "pareto", "mean": 2, "model_bytes": 70},
            **{"upload_bandwidth": 800, "download_bandwidth": "log_normal(900, 1)", "upload_bytes": 9},
        },
        "with_network(exponential, upload_bandwidth=uniform(100, 900))": {"draw_each_trip": True},
        "per_step(exponential)": {"law": "pareto", "mean": 2},
        "throttled(exponential, 0.5, [0, 1])": {
            "law": "pareto",
            "mean": 2,
            "share": 0.1,
            "clients": [0, 1, 2],
        },
        "duration_trace('trace.csv')": {"path": "other.csv", "cycled": False},
    },
    "availability": {
        "always": {},
        "diurnal(2)": {"day_length": 3, "share": 0.3, "spread": 0.1, "loses_trips": True},
        "on_and_off(2, 2)": {"mean_on": 1, "mean_off": 3, "loses_trips": False},
        "read_availability('there.csv', cycle_after=2)": {
            **{"path": "away.csv", "cycle_after": 3, "loses_trips": True},
        },
        f"windows({OFFSETS}, {STARTS}, {ENDS}, period=1)": {
            **{"offsets": [*range(15), 16], "start": 8 * [0.1, 0.6], "end": 8 * [0.4, 0.9]},
            **{"period": 1.5, "loses_trips": True},
        },
    },
    "dropout": {
        "nobody": {},
        "fraction(0.2, server_step=3)": {
            **{"fraction": 0.4, "server_step": 2},
            **{"time": {"server_step": None, "time": 1.1}, "trips": {"trips": 2, "server_step": None}},
        },
        "clients([3, 7], time=1.1)": {
            **{"numbers": "[3, 8]", "time": 1.5},
            **{"server_step": {"server_step": 3, "time": None}, "trips": {"trips": 2, "time": None}},
        },
    },
    "partition": {
        "iid": {"seed": 7},
        "dirichlet": {"alpha": 0.05, "equal_sizes": True, "seed": 7},
        "labels_per_client": {"labels_per_client": 3, "smallest": 3, "largest": 60, "seed": 7},
        LABEL_GROUPS: {"groups": "[(7, [0, 1, 2]), (8, [3, 4, 5, 6, 7, 8, 9])]", "seed": 7},
        "natural": {"seed": 3},
    },
    "protocol": {
        "asynchronous(concurrency=10, buffer_size=10, client_trips=60)": {
            **{"concurrency": 12, "buffer_size": 3, "client_trips": 50, "server_steps": 3},
            **{"restart": "not_twice_in_a_buffer", "cancel_at_step": True, "staleness_limit": 0},
            **{"flush_after": 0.05, "failure_rate": 0.2, "most_trips": 4, "smallest_gap": 2},
            **{"local_steps": 5},
        },
        "asynchronous(concurrency=10, client_trips=60, local_steps=5)": {"dynamic_local_updates": True},
        "asynchronous(concurrency=10, client_trips=60, local_steps=5, dynamic_local_updates=true)": {
            "least_local_steps": 4
        },
        "asynchronous(12, 4, restart='after_step', failure_rate=0.3, client_trips=60)": {
            **{"replace_lost": "after_step", "restart": "at_once"},
        },
        "asynchronous(12, 4, restart='after_step', failure_rate=0.3, client_trips=60, "
        "replace_lost='after_time_out', trip_time_out=1)": {"trip_time_out": 0.3},
        "asynchronous(concurrency=10, buffer_size=4, client_trips=60)": {
            "selection_weights": str([*range(1, 16)])
        },
        "asynchronous(staleness_limit=1)": {"too_stale": "wait"},
        "asynchronous(concurrency=15, buffer_size=10, client_trips=600)": {"step_when": "harmonic_mean"},
        "asynchronous(concurrency=15, client_trips=600)": {"step_when": "each_client_once_a_round"},
        "asynchronous(concurrency=10, client_trips=60)": {"step_every": 0.3},
        "synchronous(cohort_size=6, client_trips=60)": {
            **{
                "cohort_size": 3,
                "over_selection": 0.5,
                "client_trips": 50,
                "server_steps": 3,
                "deadline": 0.3,
            },
            **{"participation": 0.4, "failure_rate": 0.2, "most_trips": 2, "smallest_gap": 3},
            **{"cohorts": "poisson", "local_steps": [*range(15)]},
        },
        "synchronous(cohort_size=6, client_trips=60, deadline=0.3)": {"min_reports": 6},
        "open_arrivals(concurrency=10, client_trips=60)": {
            **{"concurrency": 6, "start_rate": 4, "starts": "constant", "buffer_size": 3, "client_trips": 50},
            **{"server_steps": 3, "restart": "not_twice_in_a_buffer", "failure_rate": 0.2, "most_trips": 4},
            **{"smallest_gap": 2, "exclude_busy": False},
        },
        "queued(tasks=8, client_trips=60)": {
            **{"tasks": 6, "buffer_size": 3, "client_trips": 50, "server_steps": 3},
            **{"routing": str([*range(1, 16)])},
        },
        "compass(most_local_steps=9, least_local_steps=2)": {
            **{"most_local_steps": 8, "least_local_steps": 4, "speed_momentum": 0.3, "latest_factor": 3},
            **{"client_trips": 50, "server_steps": 3},
        },
        "polled(cohort_size=2, interval=0.5, client_trips=60)": {
            **{
                "cohort_size": 3,
                "interval": 0.3,
                "download": "before_step",
                "most_local_steps": 4,
                "client_trips": 50,
                "server_steps": 3,
            },
        },
        "tiered(cohort_size=2, client_trips=60)": {
            **{"cohort_size": 3, "tiers": 4, "client_trips": 50, "server_steps": 3},
        },
        "drawn_staleness(buffer_size=5)": {
            **{"buffer_size": 3, "client_trips": 50, "server_steps": 3, "most_trips": 4, "smallest_gap": 2},
            **{"reports": "due"},
        },
    },
    "algorithm": {
        "fedbuff": {
            "staleness_weight": "hinge",
            "aggregate": "sum",
            "weigh_by_examples": True,
            "exponent": 2,
        },
        "fedbuff(staleness_weight=hinge)": {"slope": 3, "threshold": 1},
        "fedbuff(staleness_weight=exponential)": {"rate": 3},
        "fedasync": {"staleness_weight": "constant"},
        **{
            name: {"weigh_by_examples": True, "divide_by": 7}
            for name in ("fedavg", "fedavgm", "diloco", "fedprox", "fedadam", "fedadagrad", "fedyogi")
        },
        "fednova": {"weigh_by_examples": True},
        **{f"ace{bits}": {"form": "direct", "memory_precision": "bfloat16"} for bits in ("", "_8bit")},
        **{
            f"aced{bits}": {"active_steps": 3, "age": "cached", "memory_precision": "bfloat16"}
            for bits in ("", "_8bit")
        },
        **{name: {} for name in ("asgd", "async_diloco", "sasgd", "twafl", "scaffold", "ef21")},
        "feddyn": {"alpha": 0.2},
        "qafel": {"compression": "top_k(fraction=0.5)", "staleness_weight": "constant"},
        "masfl": {"beta": 0.5, "normalize": True},
        "adamasfl": {"beta": 0.5, "normalize": False},
        "ca2fl": {"changes": "step", "memory_precision": "int8"},
        "delay_adaptive_asgd": {"delay_form": "drop", "threshold": 3, "smoothness": 2},
        "exponential_weighting": {"base": 0.7},
        "fedstaleweight": {"weight_form": "algorithm_1", "average": "all", "window": 3, "decay": 0.5},
        "fadas": {"delay_form": "release", "threshold": 3},
        "rescaled_asgd": {"durations": "frequency"},
        "generalized_async_sgd": {"routing": str([*range(1, 16)])},
        **{name: {} for name in ("area", "malenia", "fedfix", "ringmaster", "ringmaster_with_stops")},
        **{
            name: {"weigh_by_examples": True, "divide_by": 7} for name in ("rennala", "rennala_without_stops")
        },
        **{name: {"memory_precision": "bfloat16"} for name in ("mifa", "dude_asgd", "ringleader")},
        "favas": {"form": "made"},
        "quafl": {"cohort_size": 3},
        "fedat": {"weigh_by_examples": False, "tiers": 3},
        "fedfa": {"window": 3, "form": "updates"},
        "fedcompass": {"staleness_weight": "hinge", "exponent": 2},
        "fedcompass(staleness_weight=hinge)": {"slope": 3, "threshold": 1},
        "fedcompass(staleness_weight=exponential)": {"rate": 3},
        "asyncfeded": {"epsilon": 2},
        "cgad": {"decay": 0.3, "cutoff": 3},
        "port": {
            **{"staleness_bound": 3, "staleness_factor": 2, "similarity_factor": 3},
            **{"weigh_by_examples": False},
        },
        "gsgm": {"momentum": 0.3},
        "wkafl": {
            **{"momentum": 0.2, "cosine_weight": 5, "smallest_cosine": 0.2, "clip_norm": 50},
            **{"stage_two_clip": 5, "stage_two_loss": 0.2, "staleness_decay": 0.2, "stage_two_by": "sum"},
            **{"gradient_selection": False, "staleness_part": False, "non_iid_part": False},
        },
        "zeno_plus_plus": {"refresh_every": 2, "gamma": 0.2, "rho": 0.1, "epsilon": 0.2},
    },
    "client_optimizer": {
        "sgd": {"learning_rate": 0.7, "momentum": 0.5, "nesterov": True},
        "adam": {"learning_rate": 0.7, "b1": 0.5, "b2": 0.5, "eps": 0.1, "eps_root": 0.1, "nesterov": True},
        "adamw": {
            **{"learning_rate": 0.7, "b1": 0.5, "b2": 0.5, "eps": 0.1, "eps_root": 0.1, "nesterov": True},
            **{"weight_decay": 0.1},
        },
    },
    "client_work": {
        "client_work": {
            **{"local_steps": 3, "local_epochs": 2, "batch_size": 5, "proximal": 0.3, "l2": 0.3},
            **{"learning_rate_normalization": True, "keep_optimizer_state": True, "state_precision": "int8"},
            **{"compression": "qsgd(levels=3)", "error_feedback": True, "personal": "ditto(0.2, 0.3)"},
        },
        "client_work(personal=ditto(0.5, 0.1))": {
            "strength": 0.2,
            "personal.learning_rate": 0.3,
            "personal.local_steps": 2,
        },
        "client_work(compression=qsgd(levels=4))": {"levels": 3},
        "client_work(compression=top_k(fraction=0.5))": {
            **{"fraction": 0.2, "error_feedback": True, "compression": "qsgd"},
        },
    },
    "server_optimizer": {
        "sgd": {"learning_rate": 0.7, "momentum": 0.5, "nesterov": True},
        "adam": {"learning_rate": 0.7, "b1": 0.5, "b2": 0.5, "eps": 0.1, "eps_root": 0.1, "nesterov": True},
        "adagrad": {"learning_rate": 0.7, "initial_accumulator_value": 0.5, "eps": 0.1},
        "yogi": {"learning_rate": 0.7, "b1": 0.5, "b2": 0.5, "eps": 0.1},
        "reddi_adam": {"learning_rate": 0.7, "b1": 0.5, "b2": 0.5, "epsilon": 0.1},
        "reddi_adagrad": {"learning_rate": 0.7, "b1": 0.5, "epsilon": 0.1},
        "reddi_yogi": {"learning_rate": 0.7, "b1": 0.5, "b2": 0.5, "epsilon": 0.1},
        "heloco": {
            **{"learning_rate": 0.7, "momentum": 0.5, "keep_cosine": 0.9, "shrinkage": 0.3},
            **{"largest_shrinkage": 0.1, "turning": 0.3, "relative_momentum": 3, "epsilon": 0.1},
        },
        "delayed_nesterov": {"learning_rate": 0.7, "momentum": 0.5, "period": 2, "momentum_share": 0.1},
        "fedamsgrad": {"learning_rate": 0.7, "b1": 0.5, "b2": 0.5, "epsilon": 0.1, "form": "optax"},
    },
    "model": {
        "softmax": {},
        "mlp": {"hidden_sizes": [7]},
        "cnn": {"channels": [3]},
    },
    "dataset": {
        "digits": {},
        "synthetic": {
            **{"beta": 3, "mean_examples": 50, "size_spread": 1, "num_features": 30, "num_classes": 5},
            **{"shared_labels": True},
        },
        "mnist_1d(examples=250)": {"examples": 260},
    },
    "privacy": {
        "private(clip_norm=0.9, delta=0.01, epsilon=5)": {
            **{
                "clip_norm": 0.5,
                "delta": 1e-3,
                "epsilon": 3,
                "noise_multiplier": 2,
                "mechanism": "independent",
            },
            **{"restarts": 1, "noise_seed": 1, "epsilon_reading": "once"},
        },
        "private(clip_norm=0.9, delta=0.01, epsilon=5, mechanism='banded_toeplitz')": {"bands": 3},
    },
    "secure_aggregation": {
        "secure(clip_norm=0.9)": {"clip_norm": 0.5, "fraction_bits": 12, "weight_bits": 5},
    },
}
SETTING_OF = {
    f"{setting}: {call}": (setting, call) for setting, calls in OTHER_ARGUMENTS.items() for call in calls
}
DEFAULT_CALLS = (
    *("delay: once_per_client(log_normal)", "availability: diurnal(2)", "partition: dirichlet"),
    *(
        "dropout: fraction(0.2, server_step=3)",
        "client_work: client_work",
        "protocol: drawn_staleness(buffer_size=5)",
    ),
)
# Of data that are not here, and of models for data of another kind; an alpha that changes no label.
NOT_TRIED = {
    "dataset": {*data.SOURCES} - {"digits", "synthetic", "mnist_1d"},
    "model": {*grammar("model").factories} - {"softmax", "mlp", "cnn"},
}
CHANGE_NOTHING = {"synthetic": {"alpha"}}


# Those of the others are in ``OTHER``, or make no ingredient.
@pytest.mark.parametrize(
    "setting", [each for each in CALLS if each not in ("split", "augmentation", "precision")]
)
def test_there_is_another_value_of_every_argument_of_a_call(setting):
    for name, arguments in grammar(setting).arguments().items():
        if name in NOT_TRIED.get(setting, ()):
            continue
        tried = {
            path
            for call, changes in OTHER_ARGUMENTS[setting].items()
            if call.partition("(")[0] == name
            for path in changes
        }
        assert tried >= set(arguments) - {"num_examples"} - CHANGE_NOTHING.get(name, set()), name


@pytest.mark.parametrize("row", in_tiers(SETTING_OF.keys(), DEFAULT_CALLS))
def test_every_argument_of_a_call_changes_the_run(row, tmp_path, monkeypatch):
    setting, call = SETTING_OF[row]
    monkeypatch.chdir(tmp_path)
    clients = range(SMALL["num_clients"])
    for path, first in (("trace.csv", 1), ("other.csv", 2)):
        rows = "".join(f"{client},{first + client}\n" for client in clients)
        (tmp_path / path).write_text(f"client,duration\n{rows}")
    for path, begin in (("there.csv", 0), ("away.csv", 0.5)):
        rows = "".join(f"{client},{begin + client / 30},{1 + client / 30}\n" for client in clients)
        (tmp_path / path).write_text(f"client,start,end\n{rows}")
    # The seed of clients that are given decides what they hold out.
    others = {"dataset": "synthetic", "split.client_test_fraction": 0.3} if call == "natural" else {}
    if call.startswith("per_step"):
        others["protocol.local_steps"] = 3
    if call == "zeno_plus_plus":
        others["split.server_examples"] = 40
    if call in ("malenia", "ringleader"):
        others["client_trips"] = 600  # their first step takes more than a hundred
    left_out = {"protocol": ("concurrency", "client_trips"), "algorithm": ("concurrency",)}.get(setting, ())
    small = {name: value for name, value in SMALL.items() if name not in left_out}
    base = Settings.from_mapping({**small, "dataset": "digits", **others, setting: call})
    before = ingredients(base)
    for path, value in OTHER_ARGUMENTS[setting][call].items():
        several = value if isinstance(value, dict) else {path: value}
        changed = base.changed({f"{setting}.{name}": each for name, each in several.items()})
        try:
            assert ingredients(changed) != before, path
        except SettingError as refused:  # for this value: it is read
            assert re.search(rf"{path.rpartition('.')[2]}|starves|has 1 trips of client", str(refused)), path


@pytest.mark.full
def test_the_data_sets_of_next_tokens_are_known():
    found = set()
    for name, call in data.SOURCES.items():
        arguments = {
            "synthetic": {"num_clients": 3, "alpha": 1, "beta": 1},
            "python_source": {"num_clients": 3},
        }
        if name in ("digits", "synthetic", "mnist_5000", "mnist_1d", "python_source"):
            source = call(**arguments.get(name, {}))
            found |= {name} if source.y.ndim == 2 else set()
            assert (source.natural_partition is not None) == (name in ("synthetic", "python_source"))
    assert found | {"shakespeare"} == set(WITH_NEXT_TOKENS)


def test_clients_that_go_away_may_have_a_delay_of_single_steps():
    base = Settings.from_mapping({**SMALL, "dataset": "digits", "availability": "on_and_off(5, 1)"})
    by_steps = base.changed({"delay": "per_step(exponential)", "protocol.local_steps": 2})
    assert ingredients(by_steps) != ingredients(base)
