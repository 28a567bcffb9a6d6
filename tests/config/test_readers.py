"""Who reads a setting: what is declared is what the builders do, and what no run reads is refused."""

import functools
import inspect
import json

import numpy as np
import pytest
from command_line import run_py
from tiers import in_tiers

from jafl import data
from jafl.base.errors import SettingError
from jafl.clients.work import client_work
from jafl.config import builders, presets, readers
from jafl.config.calls import CALLS, grammar
from jafl.config.declaration import WITH_NEXT_TOKENS
from jafl.config.experiment import _evaluation_steps, make_experiments
from jafl.config.resolution import refuse_unread, resolve_run, without_unread
from jafl.config.settings import DECLARED, DEFAULTS, TYPES, Settings
from jafl.sweeps.sweep import run_sweep

SMALL = {"algorithm": "fedbuff", "model": "softmax", "client_trips": 60, "num_clients": 15, "concurrency": 10}
ACE = {"algorithm": "ace", "concurrency": None}

# Settings that no run of theirs reads, and parts of the message.
UNREAD = {
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
    "availability": (
        {"protocol": "drawn_staleness", "concurrency": None, "availability": "diurnal"},
        ["protocol is asynchronous, open_arrivals or synchronous; here protocol is drawn_staleness"],
    ),
    "dropout": (
        {"protocol": "drawn_staleness", "concurrency": None, "dropout": "fraction(0.5, time=5)"},
        ["protocol is asynchronous, open_arrivals or synchronous; here protocol is drawn_staleness"],
    ),
    "synthetic_alpha": ({"synthetic_alpha": 2.0}, ["dataset is synthetic; here dataset is digits"]),
    "server_classes": ({"server_classes": "1"}, ["server_examples is given; here server_examples is left out"]),
    "too_stale": ({"too_stale": "wait"}, ["staleness_limit is given; here staleness_limit is left out"]),
    "cohort_size": ({"cohort_size": 3}, ["protocol is synchronous; here protocol is asynchronous"]),
    "most_trips": (
        {"algorithm": "fedavg", "cohorts": "poisson", "concurrency": None, "most_trips": 4},
        ["or where cohorts is fixed; here protocol is synchronous and cohorts is poisson"],
    ),
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


DIRICHLET = "dirichlet(alpha=0.3, equal_sizes=False)"
# {an argument that a call does not have: (the call, what is said)}
NO_ARGUMENT = {
    "partition.alpha": ({"partition": "iid"}, "iid has no argument 'alpha'; it has seed. There is one in dirichlet."),
    "partition.labels_per_client": (
        {},
        f"{DIRICHLET} has no argument 'labels_per_client'; it has alpha, seed, equal_sizes. "
        "There is one in labels_per_client.",
    ),
    "partition.groups": (
        {"partition": "dirichlet"},
        f"{DIRICHLET} has no argument 'groups'; it has alpha, seed, equal_sizes. There is one in label_groups.",
    ),
    "partition.equal_sizes": (
        {"dataset": "synthetic", "partition": "natural"},
        "natural has no argument 'equal_sizes'; it has seed. There is one in dirichlet.",
    ),
    "availability.share": ({}, "always has no arguments. There is one in diurnal."),
    "availability.mean_on": (
        {"availability": "diurnal"},
        "diurnal(day_length=24.0, share=0.5, spread=1.0, loses_trips=False) has no argument 'mean_on'; "
        "it has day_length, share, spread, loses_trips. "
        "There is one in on_and_off.",
    ),
    "availability.cycle_after": ({}, "always has no arguments. There is one in read_availability."),
    "availability.loses_trips": ({"availability": "always"}, "always has no arguments. There is one in diurnal and "),
    "dropout.time": ({}, "nobody has no arguments. There is one in fraction and clients."),
    "dropout.numbers": (
        {"dropout": "fraction(0.5, time=5)"},
        "fraction(fraction=0.5, time=5.0, server_step=None, trips=None) has no argument 'numbers'; "
        "it has fraction, server_step, time, trips. "
        "There is one in clients.",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NO_ARGUMENT)
def test_an_argument_that_a_call_does_not_have_is_refused(name):
    base, message = NO_ARGUMENT[name]
    for values in ({**SMALL, **base, name: 0.1}, {name: 0.1, **SMALL, **base}):
        with pytest.raises(SettingError) as refused:
            Settings.from_mapping(values)
        assert refused.value.setting == name
        assert str(refused.value).startswith(f"{name}: {message}")


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
        ({"algorithm": "ace", "concurrency": 15}, "staleness_exponent=0.25,1", "staleness_exponent"),
        (
            {"algorithm": "ace", "concurrency": 15},
            "staleness_exponent=0.5",
            "staleness_exponent",
        ),  # its default
        ({"hidden_sizes": "8"}, "learning_rate=0.1,0.2", "hidden_sizes"),
    ],
)
def test_a_sweep_over_what_no_run_reads_is_refused(changes, sweep, name, tmp_path):
    with pytest.raises(SettingError, match=f"^{name} is .* no run reads it"):
        run_sweep(Settings(**{**SMALL, **changes}), sweep, tmp_path / "sweep")
    assert not (tmp_path / "sweep").exists()


@pytest.mark.parametrize("values", ["0.1,1", "0.3"])  # 0.3 is its default
def test_a_sweep_over_an_argument_that_the_call_does_not_have_is_refused(values, tmp_path):
    with pytest.raises(SettingError, match="^partition.alpha: iid has no argument 'alpha'") as refused:
        run_sweep(Settings(**SMALL, partition="iid"), f"partition.alpha={values}", tmp_path / "sweep")
    assert refused.value.setting == "partition.alpha"
    assert not (tmp_path / "sweep").exists()


def test_a_setting_that_one_condition_reads_may_be_given_to_a_sweep():
    def arms(weight):
        return {"fedbuff": Settings(**SMALL, staleness_weight=weight, staleness_exponent=1.0)}

    refuse_unread([arms("hinge"), arms("polynomial")])
    with pytest.raises(SettingError, match="staleness_exponent"):
        refuse_unread([arms("hinge")])


# Files


def test_what_stands_in_a_file_and_is_not_read_is_left_out_and_named():
    settings = Settings(
        **SMALL, staleness_weight="hinge", staleness_exponent=1.0, rule_arguments="ace.form=direct"
    )
    kept, left_out = without_unread(settings, typed=("staleness_weight",))
    assert [each.setting for each in left_out] == ["staleness_exponent", "rule_arguments"]
    assert (kept.staleness_exponent, kept.rule_arguments) == (DEFAULTS["staleness_exponent"], "")
    with pytest.raises(SettingError, match="staleness_exponent is 1.0, but must be left out"):
        without_unread(settings, typed=("staleness_exponent",))
    with pytest.raises(
        SettingError, match="staleness_exponent is 0.5, but must be left out"
    ):  # typed as its default is
        without_unread(Settings(**SMALL, staleness_weight="hinge"), typed=("staleness_exponent",))


@pytest.mark.full
def test_a_process_warns_of_files_and_refuses_what_was_typed(tmp_path):
    flags = [f"--{name}={value}" for name, value in SMALL.items()]
    (tmp_path / "flags.txt").write_text(
        "\n".join([*flags, "--staleness_weight=hinge", "--staleness_exponent=1", "--scale=paper"])
    )
    result = run_py("--flagfile=flags.txt", "--dry_run", "--output_dir=dry", folder=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "Warning: staleness_exponent is 1.0 in the flag file, but no run reads it" in result.stderr
    assert "Warning: scale is 'paper' in the flag file, but is not read" in result.stderr
    assert json.loads((tmp_path / "dry" / "config.json").read_text())["staleness_exponent"] == 0.5
    result = run_py("--flagfile=flags.txt", "--staleness_exponent=1", "--dry_run", folder=tmp_path)
    assert result.returncode == 2
    assert "Error: staleness_exponent is 1.0, but must be left out: no run reads it" in result.stderr


# What is declared is what the builders do: where a setting is read, another value makes another run.

# Two other values of each setting; those of ``NOT_BUILT`` are read by what makes no ingredient of a run.
OTHER = {
    "seed": ("3", "4"), "protocol": ("synchronous", "drawn_staleness"), "dataset": ("synthetic", "digits"),
    "num_clients": (14, 16), "partition": ("iid", "dirichlet(alpha=0.05, equal_sizes=False)"),
    "richest_last": ("0-2", "3"), "client_test_fraction": (0.3, 0.1), "validation_fraction": (0.1, 0.2),
    "test_fraction": (0.1, 0.3), "data_seed": (5, 6), "resample_data": (True, False),
    "evaluation_examples": (30, 20), "test_folds": (5, 4), "shuffle_labels": (True, False),
    "random_crop": (1, 2), "random_flip": (True, False),
    "synthetic_alpha": (9.0, 30.0), "synthetic_beta": (3.0, 0.5), "synthetic_mean_examples": (50.0, 30.0),
    "synthetic_shared_labels": (True, False), "model": ("mlp", "softmax"), "hidden_sizes": ("7", "9,9"),
    "channels": ("3", "5"), "server_examples": (40, 50), "server_classes": ("0-3", "1"), "concurrency": (12, 6),
    "restart": ("not_twice_in_a_buffer", "at_once"), "cancel_at_step": (True, False), "staleness_limit": (0, 1),
    "too_stale": ("wait", "drop"), "flush_after": (0.05, 0.2), "start_rate": (2.0, 9.0),
    "starts": ("constant", "poisson"), "exclude_busy": (False, True), "failure_rate": (0.2, 0.1),
    "availability": ("diurnal(day_length=2.0, share=0.3)", "on_and_off(mean_on=1.0, mean_off=3.0)"),
    "dropout": ("fraction(0.4, server_step=2)", "clients([3, 7], time=1.0)"),
    "buffer_size": (3, 5), "cohort_size": (3, 4),
    "replace_lost": ("after_step", "at_once"), "trip_time_out": (0.3, 2.0),
    "over_selection": (0.5, 1.0), "deadline": (0.6, 0.9), "participation": ("0.4", "0.6"),
    "min_reports": (98, 99),  # refused: above the cohort
    "most_trips": (4, 5), "smallest_gap": (2, 3), "cohorts": ("poisson", "fixed"),
    "client_trips": (50, 40),
    "server_steps": (3, 4), "delay": ("exponential(mean=1.0)", "gamma(mean=1.0, shape=2.5)"),
    "learning_rate": (0.7, 0.8), "client_optimizer": ("adam", "adamw"),
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
    "embeddings_file", "model_dir", "fine_tune", "rule_arguments",
    "target_accuracy", "decompose_steps", "train_accuracy", "different_worlds", "stop_when", "keep",
    "evaluate_clients",
}  # fmt: skip
LABEL_GROUPS = "label_groups([(10, [4, 5, 6, 7, 8, 9]), (5, [0, 1, 2, 3])])"
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
        "availability": "diurnal(share=0.9, loses_trips=True)",
    },
    "staleness_limit": {"staleness_limit": 1},
    "lost places": {**K_ASYNCHRONOUS, "replace_lost": "at_once"},
    "time out": {**K_ASYNCHRONOUS, "replace_lost": "after_time_out", "trip_time_out": 1.0},
    "bandwidth": {"delay": "with_network(once_per_client(log_normal), upload_bandwidth=1000)"},
    "slow": {"delay": "once_per_client(slow_fraction(log_normal, log_normal(mean=10), 0.3))"},
    "delay constant": {"delay": "constant"},
    **{
        f"delay {name}": {"delay": f"once_per_client({name})"}
        for name in ("uniform", "half_normal", "exponential", "gamma", "pareto")
    },
    "delay by size": {"delay": "once_per_client(proportional_to_examples(mean=1))"},
    "delay groups": {"delay": "once_per_client(groups([(10, uniform(1, 2)), (5, uniform(8, 12))]))"},
    "delay per trip": {"delay": "log_normal"},
    "diurnal": {"availability": "diurnal(2)"},
    "on_and_off": {"availability": "on_and_off(2, 2)"},
    **{f"partition {name}": {"partition": name} for name in ("iid", "labels_per_client")},
    "partition label_groups": {"partition": LABEL_GROUPS},
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
        f"dropout {name}": {"dropout": f"fraction(0.2, {name}={value})"}
        for name, value in {"server_step": 3, "time": 1.1, "trips": 2}.items()
    },
}


# What happens to change nothing: alpha adds the same to every class (``jafl.data.synthetic``); a buffer of one trip
# is full at once; trips that all take as long end together, and are never stale.
NATURAL = {"synthetic_alpha", "test_folds"}  # folds of clients that come with their data are refused
ALWAYS_THE_SAME = {"synthetic": NATURAL, "synthetic iid": NATURAL}
ALWAYS_THE_SAME["delay constant"] = {"cancel_at_step", "staleness_limit", "restart", "flush_after"}
ALWAYS_THE_SAME["delay groups"] = {"num_clients"}  # refused: the groups say how many there are
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


DEFAULT_TIER = ("fedbuff", "fedavg", "start_rate", "delay uniform", "staleness_limit", "partition iid")


@pytest.mark.parametrize("row", in_tiers(BASES, DEFAULT_TIER))
def test_a_setting_changes_a_run_that_reads_it_and_is_refused_elsewhere(row, request):
    row = request.node.callspec.id
    base = base_of(row)
    run = resolved(base)
    before, wrong = ingredients(base), []
    for name, values in OTHER.items():
        if name in ("algorithm", "protocol", "dataset", "model"):
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
            **{"upload_bandwidth": 800, "download_bandwidth": "log_normal(900, 1)"},
        },
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
}
SETTING_OF = {call: setting for setting, calls in OTHER_ARGUMENTS.items() for call in calls}
DEFAULT_CALLS = ("once_per_client(log_normal)", "diurnal(2)", "fraction(0.2, server_step=3)", "dirichlet")


@pytest.mark.parametrize("setting", CALLS)
def test_there_is_another_value_of_every_argument_of_a_call(setting):
    of_setting = grammar(setting)
    filled_in_by_the_run = {"num_examples", *of_setting.fixed}
    for name, factory in of_setting.factories.items():
        arguments = {*inspect.signature(factory).parameters} - filled_in_by_the_run
        (changes,) = (
            changes for call, changes in OTHER_ARGUMENTS[setting].items() if call.partition("(")[0] == name
        )
        assert {path for path in changes if "." not in path} >= arguments


@pytest.mark.parametrize("call", in_tiers(SETTING_OF.keys(), DEFAULT_CALLS))
def test_every_argument_of_a_call_changes_the_run(call, tmp_path, monkeypatch):
    setting = SETTING_OF[call]
    monkeypatch.chdir(tmp_path)
    clients = range(SMALL["num_clients"])
    for path, first in (("trace.csv", 1), ("other.csv", 2)):
        rows = "".join(f"{client},{first + client}\n" for client in clients)
        (tmp_path / path).write_text(f"client,duration\n{rows}")
    for path, begin in (("there.csv", 0), ("away.csv", 0.5)):
        rows = "".join(f"{client},{begin + client / 30},{1 + client / 30}\n" for client in clients)
        (tmp_path / path).write_text(f"client,start,end\n{rows}")
    # The seed of clients that are given decides what they hold out.
    of_dataset = {"dataset": "synthetic", "client_test_fraction": 0.3} if call == "natural" else {}
    base = Settings(**{**SMALL, "dataset": "digits", **of_dataset, setting: call})
    before = ingredients(base)
    for path, value in OTHER_ARGUMENTS[setting][call].items():
        several = value if isinstance(value, dict) else {path: value}
        changed = base.changed({f"{setting}.{name}": each for name, each in several.items()})
        if path == "cycled":
            with pytest.raises(SettingError, match="has 1 trips of client"):
                ingredients(changed)
        else:
            assert ingredients(changed) != before, path


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
    assert found == set(WITH_NEXT_TOKENS)
