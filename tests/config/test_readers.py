"""Who reads a setting: what is declared is what the builders do, and what no run reads is refused."""

import functools
import json

import numpy as np
import pytest
from command_line import run_py
from tiers import in_tiers

from jafl import data
from jafl.base.errors import SettingError
from jafl.clients.work import client_work
from jafl.config import builders, presets, readers
from jafl.config.declaration import WITH_CLIENTS, WITH_NEXT_TOKENS
from jafl.config.experiment import _evaluation_steps, make_experiments
from jafl.config.resolution import refuse_unread, resolve_run, without_unread
from jafl.config.settings import DECLARED, DEFAULTS, TYPES, Settings
from jafl.sweeps.sweep import run_sweep

SMALL = {"algorithm": "fedbuff", "model": "softmax", "client_trips": 60, "num_clients": 15, "concurrency": 10}
ACE = {"algorithm": "ace", "concurrency": None}

# Settings that no run of theirs reads, and parts of the message.
UNREAD = {
    "dirichlet_alpha iid": (
        {"partition": "iid", "dirichlet_alpha": 0.1},
        ["partition is dirichlet; here partition is iid"],
    ),
    "dirichlet_alpha natural": (
        {"dataset": "synthetic", "dirichlet_alpha": 0.1},
        ["partition is dirichlet; here partition is natural"],
    ),
    "hidden_sizes softmax": ({"hidden_sizes": "32"}, ["model is mlp or character_lstm; here model is softmax"]),
    "channels mlp": ({"model": "mlp", "channels": "4"}, ["model is cnn; here model is mlp"]),
    "staleness_weight ace": (
        {**ACE, "staleness_weight": "hinge"},
        ["algorithm is fedasync or fedbuff; here algorithm is ace"],
    ),
    "staleness_exponent ace": (
        {**ACE, "staleness_exponent": 1.0},
        ["staleness_weight is polynomial; here staleness_weight is not read itself", "algorithm is ace"],
    ),
    "staleness_exponent hinge": (
        {"staleness_weight": "hinge", "staleness_exponent": 1.0},
        ["staleness_weight is polynomial; here staleness_weight is hinge"],
    ),
    "aggregate asgd": ({"algorithm": "asgd", "aggregate": "sum"}, ["algorithm is fedbuff; here algorithm is asgd"]),
    "memory_precision fedbuff": ({"memory_precision": "int8"}, ["ace, ace_8bit", "here algorithm is fedbuff"]),
    "delay_shape log_normal": ({"delay_shape": 3.0}, ["delay is gamma or pareto; here delay is log_normal"]),
    "delay_sigma constant": (
        {"delay": "constant", "delay_sigma": 2.0},
        ["delay is log_normal; here delay is constant"],
    ),
    "delay_draw constant": ({"delay": "constant", "delay_draw": "per_trip"}, ["here delay is constant"]),
    "delay_mean groups": ({"delay": "groups", "delay_mean": 2.0}, ["here delay is groups"]),
    "delay_mean uniform": (
        {"delay": "uniform", "delay_high": 3.0, "delay_mean": 2.0},
        ["delay_high is left out", "here delay is uniform and delay_high is 3.0"],
    ),
    "delay_slow_factor": (
        {"delay_slow_factor": 3.0},
        ["delay_slow_fraction is given; here delay_slow_fraction is left out"],
    ),
    "delay_bandwidth_sigma": ({"delay_bandwidth_sigma": 1.0}, ["delay_upload_bandwidth is given"]),
    "day_share": ({"day_share": 0.2}, ["availability is diurnal; here availability is always"]),
    "mean_on": (
        {"mean_on": 2.0, "availability": "diurnal"},
        ["availability is on_and_off; here availability is diurnal"],
    ),
    "availability_period": ({"availability_period": 9.0}, ["a .csv or .npz file; here availability is always"]),
    "lose_trips": ({"lose_trips": True}, ["here availability is always"]),
    "dropout_time": ({"dropout_time": 5.0}, ["dropout_fraction is given; here dropout_fraction is left out"]),
    "synthetic_alpha": ({"synthetic_alpha": 2.0}, ["dataset is synthetic; here dataset is digits"]),
    "labels_per_client": (
        {"labels_per_client": 3},
        ["partition is labels_per_client; here partition is dirichlet"],
    ),
    "label_groups": ({"label_groups": "15:0-9"}, ["partition is label_groups; here partition is dirichlet"]),
    "partition_seed": ({"dataset": "synthetic", "partition_seed": 3}, ["here partition is natural"]),
    "server_classes": ({"server_classes": "1"}, ["server_examples is given; here server_examples is left out"]),
    "too_stale": ({"too_stale": "wait"}, ["staleness_limit is given; here staleness_limit is left out"]),
    "cohort_size": ({"cohort_size": 3}, ["protocol is synchronous; here protocol is asynchronous"]),
    "concurrency cohort": (
        {"algorithm": "fedavg", "cohort_size": 3},
        ["cohort_size is left out or the same", "cohort_size is 3"],
    ),
    "concurrency start_rate": (
        {"protocol": "open_arrivals", "start_rate": 3.0},
        ["start_rate is left out", "start_rate is 3.0"],
    ),
    "server_momentum adam": (
        {"server_optimizer": "adam", "server_momentum": 0.5},
        ["server_optimizer is sgd; here server_optimizer is adam"],
    ),
    "epsilon": ({"epsilon": 3.0}, ["clip_norm is given; here clip_norm is left out"]),
    "dp_restarts": (
        {
            "clip_norm": 1.0,
            "noise_multiplier": 1.0,
            "delta": 0.1,
            "mechanism": "independent",
            "dp_restarts": 2,
        },
        ["mechanism is tree or tree_honaker; here mechanism is independent"],
    ),
    "dp_bands": (
        {"clip_norm": 1.0, "noise_multiplier": 1.0, "delta": 0.1, "dp_bands": 2},
        ["mechanism is banded_toeplitz; here mechanism is tree_honaker"],
    ),
    "epsilon_reading": (
        {"clip_norm": 1.0, "noise_multiplier": 1.0, "delta": 0.1, "epsilon_reading": "once"},
        ["epsilon is given; here epsilon is left out"],
    ),
    "tokens": ({"tokens": 3}, ["dataset is python_source, sentiment140 or newsgroups; here dataset is digits"]),
    "mnist_1d_examples": ({"mnist_1d_examples": 60}, ["dataset is mnist_1d; here dataset is digits"]),
    "data_dir": ({"data_dir": "x"}, ["here dataset is digits"]),
    "rule_arguments": ({"rule_arguments": "ace.form=direct"}, ["algorithm is ace; here algorithm is fedbuff"]),
}  # fmt: skip


@pytest.mark.parametrize("row", UNREAD)
def test_what_no_run_reads_is_refused_with_the_reason(row):
    changes, parts = UNREAD[row]
    with pytest.raises(SettingError) as refused:
        make_experiments(Settings(**{**SMALL, **changes}))
    assert refused.value.setting == row.split()[0]
    assert "must be left out: no run reads it. It is read only where " in str(refused.value)
    for part in parts:
        assert part in str(refused.value)


def test_what_one_of_several_runs_reads_is_taken_and_reset_for_the_others():
    both = Settings(**{**SMALL, "algorithm": "fedbuff,asgd", "aggregate": "sum", "staleness_exponent": 1.0})
    fedbuff, asgd = (experiment.settings for experiment in make_experiments(both))
    assert (fedbuff.aggregate, fedbuff.staleness_exponent) == ("sum", 1.0)
    assert (asgd.aggregate, asgd.staleness_exponent) == (
        DEFAULTS["aggregate"],
        DEFAULTS["staleness_exponent"],
    )


@pytest.mark.parametrize("algorithm", ["fedbuff", "fedavg", "ace", "wkafl", "fedadam"])
@pytest.mark.parametrize(
    "changes", [{}, {"dataset": "synthetic"}, {"protocol": "open_arrivals", "start_rate": 3.0}]
)
def test_the_settings_of_a_run_repeat_it_without_a_word(algorithm, changes):
    """What ``config.json`` holds is given once more, with every default filled in."""
    base = {**SMALL, **changes, "algorithm": algorithm}
    if algorithm == "ace" or "start_rate" in base:
        base["concurrency"] = None
    if "start_rate" in base and algorithm != "fedbuff":
        return
    (experiment,) = make_experiments(Settings(**base))
    assert without_unread(experiment.settings, ()) == (experiment.settings, [])
    (again,) = make_experiments(experiment.settings)
    assert again.settings == experiment.settings


@pytest.mark.parametrize("algorithm", ["fedavg", "fedavgm"])
def test_poisson_cohorts_are_divided_by_their_expected_size(algorithm):
    base = {**SMALL, "algorithm": algorithm, "cohort_size": 4, "concurrency": None}
    (fixed,) = make_experiments(Settings(**base))
    (varying,) = make_experiments(Settings(**base, cohorts="poisson"))
    (typed,) = make_experiments(Settings(**base, cohorts="poisson", rule_arguments="divide_by=7"))
    divisors = [run.rule.arguments.get("divide_by") for run in (fixed, varying, typed)]
    assert divisors == [None, 4.0, 7.0]


# Sweeps


@pytest.mark.parametrize(
    ("changes", "sweep", "name"),
    [
        ({"partition": "iid"}, "dirichlet_alpha=0.1,1", "dirichlet_alpha"),
        ({"partition": "iid"}, "dirichlet_alpha=0.3", "dirichlet_alpha"),  # its default
        ({"algorithm": "ace", "concurrency": 15}, "staleness_exponent=0.25,1", "staleness_exponent"),
        ({"hidden_sizes": "8"}, "learning_rate=0.1,0.2", "hidden_sizes"),
    ],
)
def test_a_sweep_over_what_no_run_reads_is_refused(changes, sweep, name, tmp_path):
    with pytest.raises(SettingError, match=f"^{name} is .* no run reads it"):
        run_sweep(Settings(**{**SMALL, **changes}), sweep, tmp_path / "sweep")
    assert not (tmp_path / "sweep").exists()


def test_a_setting_that_one_condition_reads_may_be_given_to_a_sweep():
    def arms(partition):
        return {"fedbuff": Settings(**SMALL, partition=partition, dirichlet_alpha=0.1)}

    refuse_unread([arms("iid"), arms("dirichlet")])
    with pytest.raises(SettingError, match="dirichlet_alpha"):
        refuse_unread([arms("iid")])


# Files


def test_what_stands_in_a_file_and_is_not_read_is_left_out_and_named():
    settings = Settings(
        **{**SMALL, "partition": "iid", "dirichlet_alpha": 0.1, "rule_arguments": "ace.form=direct"}
    )
    kept, left_out = without_unread(settings, typed=("partition",))
    assert [each.setting for each in left_out] == ["dirichlet_alpha", "rule_arguments"]
    assert (kept.dirichlet_alpha, kept.rule_arguments) == (DEFAULTS["dirichlet_alpha"], "")
    with pytest.raises(SettingError, match="dirichlet_alpha is 0.1, but must be left out"):
        without_unread(settings, typed=("dirichlet_alpha",))
    with pytest.raises(
        SettingError, match="dirichlet_alpha is 0.3, but must be left out"
    ):  # typed as its default is
        without_unread(Settings(**SMALL, partition="iid"), typed=("dirichlet_alpha",))


@pytest.mark.full
def test_a_process_warns_of_files_and_refuses_what_was_typed(tmp_path):
    flags = [f"--{name}={value}" for name, value in SMALL.items()]
    (tmp_path / "flags.txt").write_text(
        "\n".join([*flags, "--partition=iid", "--dirichlet_alpha=0.1", "--scale=paper"])
    )
    result = run_py("--flagfile=flags.txt", "--dry_run", "--output_dir=dry", folder=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "Warning: dirichlet_alpha is 0.1 in the flag file, but no run reads it" in result.stderr
    assert "Warning: scale is 'paper' in the flag file, but is not read" in result.stderr
    assert json.loads((tmp_path / "dry" / "config.json").read_text())["dirichlet_alpha"] == 0.3
    result = run_py("--flagfile=flags.txt", "--dirichlet_alpha=0.1", "--dry_run", folder=tmp_path)
    assert result.returncode == 2
    assert "Error: dirichlet_alpha is 0.1, but must be left out: no run reads it" in result.stderr


# What is declared is what the builders do: where a setting is read, another value makes another run.

# Two other values of each setting; those of ``NOT_BUILT`` are read by what makes no ingredient of a run.
OTHER = {
    "seed": ("3", "4"), "protocol": ("synchronous", "drawn_staleness"), "dataset": ("synthetic", "digits"),
    "num_clients": (14, 16), "partition": ("iid", "dirichlet"), "dirichlet_alpha": (0.05, 7.0),
    "dirichlet_equal_sizes": (True, False), "labels_per_client": (1, 3), "smallest_client": (3, 12),
    "largest_client": (20, 60), "label_groups": ("10:0-5;5:6-9", "7:0-2;8:3-9"), "richest_last": ("0-2", "3"),
    "partition_seed": (7, 8), "client_test_fraction": (0.3, 0.1), "validation_fraction": (0.1, 0.2),
    "test_fraction": (0.1, 0.3), "data_seed": (5, 6), "resample_data": (True, False),
    "evaluation_examples": (30, 20), "test_folds": (5, 4), "shuffle_labels": (True, False),
    "random_crop": (1, 2), "random_flip": (True, False),
    "synthetic_alpha": (9.0, 30.0), "synthetic_beta": (3.0, 0.5), "synthetic_mean_examples": (50.0, 30.0),
    "synthetic_shared_labels": (True, False), "model": ("mlp", "softmax"), "hidden_sizes": ("7", "9,9"),
    "channels": ("3", "5"), "server_examples": (40, 50), "server_classes": ("0-3", "1"), "concurrency": (12, 6),
    "restart": ("not_twice_in_a_buffer", "at_once"), "cancel_at_step": (True, False), "staleness_limit": (0, 1),
    "too_stale": ("wait", "drop"), "flush_after": (0.05, 0.2), "start_rate": (2.0, 9.0),
    "starts": ("constant", "poisson"), "exclude_busy": (False, True), "failure_rate": (0.2, 0.1),
    "availability": ("diurnal", "on_and_off"), "day_length": (1.5, 3.0), "day_share": (0.3, 0.7),
    "day_spread": (0.1, 0.5), "mean_on": (1.0, 3.0), "mean_off": (1.0, 3.0), "lose_trips": (True, False),
    "dropout_fraction": (0.4, 0.5), "dropout_step": (2, 3), "dropout_time": (1.0, 1.5), "dropout_trips": (1, 3),
    "buffer_size": (3, 5), "cohort_size": (3, 4),
    "replace_lost": ("after_step", "at_once"), "trip_time_out": (0.3, 2.0),
    "over_selection": (0.5, 1.0), "deadline": (0.6, 0.9), "participation": ("0.4", "0.6"),
    "min_reports": (98, 99),  # refused: above the cohort
    "most_trips": (4, 5), "smallest_gap": (2, 3), "cohorts": ("poisson", "fixed"),
    "client_trips": (50, 40),
    "server_steps": (3, 4), "delay": ("exponential", "gamma"), "delay_mean": (2.0, 3.0), "delay_low": (0.2, 0.5),
    "delay_high": (4.0, 5.0), "delay_sigma": (2.0, 0.3), "delay_groups": ("15:exponential(2)", "15:uniform(1,2)"),
    "delay_shape": (3.5, 1.5), "delay_slow_fraction": (0.5, 0.7), "delay_slow_factor": (3.0, 5.0),
    "delay_download_bandwidth": (900.0, 800.0), "delay_upload_bandwidth": (900.0, 800.0),
    "delay_bandwidth_sigma": (1.0, 0.5), "delay_model_bytes": (50.0, 70.0), "delay_throttled": ("0-9:0.5", "1:0.1"),
    "delay_draw": ("per_trip", "per_client"), "learning_rate": (0.7, 0.8), "client_optimizer": ("adam", "adamw"),
    "client_momentum": (0.5, 0.6), "local_steps": (3, 4), "local_epochs": (3, 4), "batch_size": (5, 6),
    "proximal": (0.3, 0.4), "l2": (0.3, 0.4), "learning_rate_normalization": (True, False),
    "server_learning_rate": (0.7, 0.6), "server_optimizer": ("adam", "yogi"), "server_momentum": (0.3, 0.4),
    "staleness_weight": ("hinge", "polynomial"), "staleness_exponent": (0.7, 0.8), "staleness_slope": (3.0, 4.0),
    "staleness_threshold": (1.0, 2.0), "staleness_rate": (0.7, 0.8), "aggregate": ("sum", "mean"),
    "weigh_by_examples": (True, False), "memory_precision": ("bfloat16", "int8"), "evaluate_every": (25, 35),
    "clip_norm": (0.5, 0.7), "mechanism": ("tree", "independent"), "noise_multiplier": (2.0, 3.0),
    "epsilon": (3.0, 4.0), "delta": (1e-3, 1e-4), "noise_seed": (1, 2), "dp_restarts": (1, 2), "dp_bands": (3, 5),
    "epsilon_reading": ("once", "worst_case"),
    "algorithm": ("fedbuff", "asgd"), "secure_fraction_bits": (12, 13), "secure_weight_bits": (5, 6),
    "mnist_1d_examples": (260, 270),
}  # fmt: skip
# Read by the evaluation, the report, the choice of a plan, other data sets or models, or of the whole program.
NOT_BUILT = {
    "precision", "matmul_precision", "compute_dtype", "devices", "plan_form", "data_dir", "cache_dir", "split_by",
    "data_fraction", "normalization", "tokens", "most_characters", "text_digest", "vocabulary_size",
    "wordpiece_vocabulary", "normalization_layer",
    "embeddings_file", "model_dir", "fine_tune", "availability_period", "delay_trace_cycled", "rule_arguments",
    "target_accuracy", "decompose_steps", "train_accuracy", "different_worlds", "stop_when", "keep",
    "evaluate_clients",
}  # fmt: skip
K_ASYNCHRONOUS = {"restart": "after_step", "failure_rate": 0.3, "concurrency": 12, "buffer_size": 4}
BASES = {
    **{name: {"algorithm": name} for name in presets.names() if name != "zeno_plus_plus"},
    **{name: {"algorithm": name, "concurrency": 14} for name in ("sasgd", "twafl", "wkafl")},
    "zeno_plus_plus": {"algorithm": "zeno_plus_plus", "server_examples": 60},
    **{
        f"protocol {name}": {"protocol": name} for name in ("synchronous", "open_arrivals", "drawn_staleness")
    },
    "start_rate": {"protocol": "open_arrivals", "start_rate": 4.0, "concurrency": None},
    "with replacement": {"protocol": "open_arrivals", "exclude_busy": False},
    "poisson": {"algorithm": "fedavg", "cohorts": "poisson"},
    "cohort_size": {"algorithm": "fedavg", "cohort_size": 6, "concurrency": None},
    "participation": {"algorithm": "fedavg", "participation": "0.3"},
    "rounds, diurnal": {
        "algorithm": "fedavg",
        "availability": "diurnal",
        "day_share": 0.9,
        "lose_trips": True,
    },
    "staleness_limit": {"staleness_limit": 1},
    "lost places": {**K_ASYNCHRONOUS, "replace_lost": "at_once"},
    "time out": {**K_ASYNCHRONOUS, "replace_lost": "after_time_out", "trip_time_out": 1.0},
    "bandwidth": {"delay_upload_bandwidth": 1000.0},
    "slow": {"delay_slow_fraction": 0.3},
    **{
        f"delay {name}": {"delay": name}
        for name in ("constant", "uniform", "half_normal", "exponential", "gamma", "pareto")
    },
    "delay by size": {"delay": "proportional_to_examples"},
    "delay groups": {"delay": "groups"},
    "delay_high": {"delay": "uniform", "delay_high": 3.0},
    "diurnal": {"availability": "diurnal", "day_length": 2.0, "lose_trips": False},
    "on_and_off": {"availability": "on_and_off", "mean_on": 2.0, "mean_off": 2.0, "lose_trips": True},
    **{f"partition {name}": {"partition": name} for name in ("iid", "labels_per_client", "label_groups")},
    "held out": {"client_test_fraction": 0.2},
    "folds": {"test_folds": 6},
    "synthetic": {"dataset": "synthetic"},
    "mnist_1d": {"dataset": "mnist_1d", "mnist_1d_examples": 250},
    "synthetic iid": {"dataset": "synthetic", "partition": "iid"},
    "server": {"server_examples": 60},
    **{f"model {name}": {"model": name} for name in ("mlp", "cnn")},
    **{f"weight {name}": {"staleness_weight": name} for name in ("constant", "hinge", "exponential")},
    "secure": {"clip_norm": 0.9, "secure_fraction_bits": 14},
    "secure and private": {"clip_norm": 0.9, "epsilon": 5.0, "delta": 0.01, "secure_fraction_bits": 14},
    "private": {"clip_norm": 0.9, "epsilon": 5.0, "delta": 0.01},
    "private, given noise": {"clip_norm": 0.9, "noise_multiplier": 5.0, "delta": 0.01, "mechanism": "tree"},
    "private, banded": {"clip_norm": 0.9, "epsilon": 5.0, "delta": 0.01, "mechanism": "banded_toeplitz"},
    "server adam": {"server_optimizer": "adam"},
    "client adam": {"client_optimizer": "adam"},
    **{
        f"dropout {name}": {"dropout_fraction": 0.2, f"dropout_{name}": value}
        for name, value in {"step": 3, "time": 1.1, "trips": 2}.items()
    },
}


# What happens to change nothing: alpha adds the same to every class (``jafl.data.synthetic``); a buffer of one trip
# is full at once; trips that all take as long end together, and are never stale.
NATURAL = {"synthetic_alpha", "test_folds"}  # folds of clients that come with their data are refused
ALWAYS_THE_SAME = {"synthetic": NATURAL, "synthetic iid": NATURAL}
ALWAYS_THE_SAME["delay constant"] = {"cancel_at_step", "staleness_limit", "restart", "flush_after"}
ALWAYS_THE_SAME["delay groups"] = {"num_clients"}  # refused: delay_groups says how many there are
# Refused without delta.
ALWAYS_THE_SAME["secure"] = {
    "mechanism", "noise_multiplier", "epsilon", "delta", "noise_seed", "dp_restarts", "dp_bands", "epsilon_reading",
}  # fmt: skip
# No trip is lost.
ALWAYS_THE_SAME |= dict.fromkeys(("sasgd", "twafl", "wkafl"), {"replace_lost"})
OF_A_BUFFER = {"restart", "flush_after"}


def base_of(row):
    settings = Settings(**{**SMALL, "seed": "2", **BASES[row]})
    needs_all = settings.algorithm.startswith("ace") and "concurrency" not in BASES[row]
    return settings.changed({"concurrency": None}) if needs_all else settings


def resolved(settings):
    return readers.as_read(resolve_run(settings, settings.algorithm, 0))


@functools.lru_cache(maxsize=200)
def source_of(written):
    return builders.make_source(Settings(**json.loads(written)))


def ingredients(settings):
    """All that a run is made of, as text: equal for settings that make the same run."""
    run = resolve_run(settings, settings.algorithm, int(settings.seed))
    asked = {name: getattr(run, name) for name in TYPES if DECLARED[name].group in ("data", "partition")}
    source = source_of(json.dumps(asked | {"seed": run.seed}))
    run = readers.as_read(builders.filled_in(run, source))
    federation = builders.make_federation(run, source, int(run.seed))
    model, inputs = builders.make_model(run, source), builders.make_inputs(run, source)
    rule = builders.make_rule(run)
    schedule = builders.make_schedule(
        run, federation.num_examples, initial_round=rule.build().initial_round, model_bytes=2600.0
    )
    work = client_work(
        model,
        optimizer=builders.make_client_optimizer(run),
        **{
            name: getattr(run, name)
            for name in (
                "local_steps", "local_epochs", "batch_size", "proximal", "l2", "learning_rate_normalization"
            )
        },
    )  # fmt: skip
    arrays = [*vars(schedule).values(), *vars(federation.partition).values(), source.x, source.test_x]
    arrays += [getattr(source, name) for name in ("y", "server_x", "validation_x")]
    arrays += vars(federation.held_out).values() if federation.held_out else []
    digest = [hash(np.asarray(array).tobytes()) for array in arrays if array is not None]
    of_work = {name: value for name, value in work.arguments.items() if name != "model"}
    optimizer = builders.make_server_optimizer(run)
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


def test_there_is_another_value_of_every_setting():
    assert set(OTHER) | NOT_BUILT == set(TYPES)
    assert not set(OTHER) & NOT_BUILT


DEFAULT_TIER = ("fedbuff", "fedavg", "start_rate", "delay_high", "staleness_limit", "partition iid")


@pytest.mark.parametrize("row", in_tiers(BASES, DEFAULT_TIER))
def test_a_setting_changes_a_run_that_reads_it_and_is_refused_elsewhere(row, request):
    row = request.node.callspec.id
    base = base_of(row)
    run = resolved(base)
    before, wrong = ingredients(base), []
    for name, values in OTHER.items():
        if name in ("algorithm", "protocol", "dataset", "partition", "model", "delay", "availability"):
            continue  # what else is read changes with it
        if name in ALWAYS_THE_SAME.get(row, ()) or (run.buffer_size == 1 and name in OF_A_BUFFER):
            continue
        value = next(each for each in values if each != getattr(run, name))
        changed = base.changed({name: value})
        if readers.is_read(name, run):
            wrong += _changes_nothing(name, changed, before)
        elif value != DEFAULTS[name] and not readers.is_read(name, resolved(changed)):
            with pytest.raises(SettingError, match="no run reads it"):
                refuse_unread([{base.algorithm: changed}])
    assert not wrong


def _changes_nothing(name, changed, before):
    """[a sentence] if the run with another value of a setting is the one before, and is not refused for it."""
    try:
        return (
            [f"{name} is {getattr(changed, name)!r} and changes nothing"]
            if ingredients(changed) == before
            else []
        )
    except SettingError as refused:
        return (
            []
            if name in str(refused) or "starves" in str(refused)
            else [f"{name} is {getattr(changed, name)!r}: {refused}"]
        )


@pytest.mark.full
def test_the_data_sets_with_clients_are_known():
    for name, call in data.SOURCES.items():
        arguments = {
            "synthetic": {"num_clients": 3, "alpha": 1, "beta": 1},
            "python_source": {"num_clients": 3},
        }
        if name in ("digits", "synthetic", "mnist_5000", "mnist_1d", "python_source"):
            source = call(**arguments.get(name, {}))
            assert (source.natural_partition is not None) == (name in WITH_CLIENTS)
            assert (source.y.ndim == 2) == (name in WITH_NEXT_TOKENS)
    assert set(WITH_NEXT_TOKENS) <= set(WITH_CLIENTS) <= set(data.SOURCES)
