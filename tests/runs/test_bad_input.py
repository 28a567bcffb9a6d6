"""A setting that cannot work is refused before anything is computed or written, by name, value and remedy."""

import dataclasses
import math
import re

import pytest

from jafl.base.errors import SettingError
from jafl.config.experiment import make_experiments
from jafl.config.settings import Settings
from jafl.runs.runner import run

ASYNCHRONOUS = Settings(algorithm="fedbuff", model="softmax", client_trips=50)
SYNCHRONOUS = dataclasses.replace(ASYNCHRONOUS, algorithm="fedavg", server_steps=3, client_trips=None)
TEN_OF_EACH = {"label_groups": "10:0-4;10:5-9", "partition": "label_groups", "num_clients": 20}

# (settings that differ from ASYNCHRONOUS, parts of the message in order)
BAD_ASYNCHRONOUS = [
    # Clients and steps
    (
        {"concurrency": 101},
        ["concurrency is 101", "between 1 and the number of clients, 100", "Lower concurrency"],
    ),
    ({"concurrency": 0}, ["concurrency is 0", "between 1 and"]),
    ({"num_clients": 0}, ["num_clients is 0", "at least 1"]),
    ({"num_clients": 1439}, ["num_clients is 1439", "at most 1438, the number of examples"]),
    ({"buffer_size": 0}, ["buffer_size is 0", "at least 1"]),
    (
        {"buffer_size": 51},
        ["buffer_size is 51", "at most client_trips (50), or it never fills", "raise client_trips"],
    ),
    ({"client_trips": 0}, ["client_trips is 0", "at least 1"]),
    ({"client_trips": None, "server_steps": 0}, ["server_steps is 0", "at least 1"]),
    ({"server_steps": 10}, ["client_trips is 50", "left out where server_steps is given (10)"]),
    ({"evaluate_every": 0}, ["evaluate_every is 0", "at least 1"]),
    ({"target_accuracy": 0.0}, ["target_accuracy is 0.0", "above 0, at most 1"]),
    ({"target_accuracy": 90.0}, ["target_accuracy is 90.0", "above 0, at most 1"]),
    ({"target_accuracy": math.nan}, ["target_accuracy is nan", "above 0, at most 1"]),
    # Delays
    ({"delay_mean": -1.0}, ["delay_mean is -1.0", "at least 0"]),
    ({"delay_mean": math.nan}, ["delay_mean is nan", "a finite number"]),
    ({"delay_mean": math.inf}, ["delay_mean is inf", "a finite number"]),
    ({"delay_mean": 0.0}, ["delay_mean is 0.0", "above 0 where delay is log_normal"]),
    (
        {"delay_mean": 0.0, "delay": "constant"},
        ["delay is", "constant(duration=0.0)", "above 0 for every client", "use synchronous rounds"],
    ),
    (
        {"delay": "uniform", "delay_high": 0.0},
        ["delay is", "uniform(low=0.0, high=0.0)", "above 0 for every client"],
    ),
    ({"delay": "uniform", "delay_low": -1.0}, ["delay_low is -1.0", "at least 0"]),
    ({"delay": "uniform", "delay_low": 2.0}, ["delay_low is 2.0", "at most delay_mean (1)", "delay_high"]),
    (
        {"delay": "uniform", "delay_low": 2.0, "delay_high": 1.0},
        ["delay_high is 1.0", "at least delay_low (2.0)"],
    ),
    ({"delay_sigma": -1.0}, ["delay_sigma is -1.0", "at least 0"]),
    ({"delay": "groups"}, ["delay_groups", "is 15", "the number of clients of the experiment, 100"]),
    ({"delay": "groups", "delay_groups": "fast"}, ["delay_groups is 'fast'", "10:uniform(1,2)"]),
    (
        {"delay": "groups", "delay_groups": "100:uniform(1)"},
        ["delay_groups is '100:uniform(1)'", "10:uniform(1,2)"],
    ),
    (
        {"delay": "groups", "delay_groups": "100:unifrm(1,2)"},
        ["delay_groups", "'unifrm'", "Did you mean 'uniform'?"],
    ),
    ({"delay": "groups", "delay_groups": "100:uniform(-1,2)"}, ["delay_groups", "low is -1.0", "at least 0"]),
    # Names
    ({"algorithm": "fedbuf"}, ["algorithm is 'fedbuf'", "fedasync, fedavg", "Did you mean 'fedbuff'?"]),
    ({"algorithm": "fedbuff,fedasink"}, ["algorithm is 'fedasink'", "Did you mean 'fedasync'?"]),
    (
        {"delay": "lognormal"},
        ["delay is 'lognormal'", "exponential, gamma, groups", "Did you mean 'log_normal'?"],
    ),
    ({"delay_draw": "per_trips"}, ["delay_draw is 'per_trips'", "per_client", "Did you mean 'per_trip'?"]),
    ({"dataset": "digit"}, ["dataset is 'digit'", "synthetic", "Did you mean 'digits'?"]),
    ({"dataset": "imagenet"}, ["dataset is 'imagenet'", "digits, emnist/byclass"]),
    ({"model": "sofmax"}, ["model is 'sofmax'", "lenet5, mlp", "Did you mean 'softmax'?"]),
    ({"partition": "dirichlt"}, ["partition is 'dirichlt'", "iid", "Did you mean 'dirichlet'?"]),
    ({"protocol": "synchronus"}, ["protocol is 'synchronus'", "asynchronous", "Did you mean 'synchronous'?"]),
    ({"server_optimizer": "adm"}, ["server_optimizer is 'adm'", "adagrad", "Did you mean 'adam'?"]),
    ({"client_optimizer": "sdg"}, ["client_optimizer is 'sdg'", "adam", "Did you mean 'sgd'?"]),
    (
        {"staleness_weight": "polinomial"},
        ["staleness_weight is 'polinomial'", "hinge", "Did you mean 'polynomial'?"],
    ),
    ({"aggregate": "summ"}, ["aggregate is 'summ'", "mean", "Did you mean 'sum'?"]),
    ({"precision": "float46"}, ["precision is 'float46'", "float32", "Did you mean 'float64'?"]),
    (
        {"matmul_precision": "bfloat16"},
        ["matmul_precision is 'bfloat16'", "float32, all that a cpu has", "compute_dtype=bfloat16"],
    ),
    ({"matmul_precision": "float23"}, ["matmul_precision is 'float23'", "Did you mean 'float32'?"]),
    ({"compute_dtype": "float16"}, ["compute_dtype is 'float16'", "bfloat16, float32"]),
    (
        {"precision": "float64"},
        ["precision is 'float64'", "float32 while JAX computes in 32 bits", "jax_enable_x64"],
    ),
    # Data
    ({"dirichlet_alpha": 0.0}, ["dirichlet_alpha is 0.0", "above 0", "iid"]),
    ({"dirichlet_alpha": -0.3}, ["dirichlet_alpha is -0.3", "above 0"]),
    ({"dirichlet_alpha": math.nan}, ["dirichlet_alpha is nan", "above 0"]),
    ({"partition": "natural"}, ["partition is 'natural'", "digits has no clients of its own"]),
    ({"partition": "labels_per_client", "labels_per_client": 11}, ["labels_per_client is 11", "at most 10"]),
    ({"partition": "labels_per_client", "smallest_client": 50}, ["smallest_client is 50", "at most", "49"]),
    ({"partition": "labels_per_client", "largest_client": 5000}, ["largest_client is 5000", "at most"]),
    ({"partition": "label_groups"}, ["num_clients is 100", "the number of clients in label_groups, 15"]),
    (
        {**TEN_OF_EACH, "label_groups": "10:0-4;10"},
        ["label_groups is '10:0-4;10'", "clients:labels, as in 10:4-9"],
    ),
    ({**TEN_OF_EACH, "label_groups": "10:0-4;10:5-12"}, ["label_groups", "is 10", "0 to 9"]),
    ({**TEN_OF_EACH, "label_groups": "10:0-5;10:5-9"}, ["label_groups", "is 5", "owned only once"]),
    ({"validation_fraction": 0.9}, ["validation_fraction is 0.9", "at least 0 and below"]),
    ({"data_seed": -1}, ["data_seed is -1", "at least 0"]),
    ({"dataset": "synthetic", "synthetic_alpha": -1.0}, ["synthetic_alpha is -1.0", "at least 0"]),
    (
        {"dataset": "synthetic", "synthetic_mean_examples": 1.0},
        ["synthetic_mean_examples is 1.0", "at least 2"],
    ),
    # Model
    (
        {"dataset": "synthetic", "model": "cnn"},
        ["model is 'cnn'", "softmax or mlp", "synthetic has no images"],
    ),
    ({"model": "cnn", "channels": "4,4,4,4"}, ["channels is '4,4,4,4'", "at most 3 widths", "8 by 8 pixels"]),
    ({"model": "mlp", "hidden_sizes": "64,0"}, ["hidden_sizes is 0", "at least 1"]),
    # Lists
    ({"seed": "1,,2"}, ["seed is '1,,2'", "with commas between them"]),
    ({"seed": "one"}, ["seed is 'one'", "a whole number"]),
    ({"seed": "1,1"}, ["seed is '1,1'", "without repetitions"]),
    ({"seed": "-1"}, ["seed is -1", "at least 0, at most 4294967295"]),
    ({"seed": "4294967296"}, ["seed is 4294967296", "at least 0, at most 4294967295"]),
    ({"algorithm": ""}, ["algorithm is ''", "with commas between them"]),
    ({"algorithm": "fedbuff,"}, ["algorithm is 'fedbuff,'", "with commas between them"]),
    ({"algorithm": "fedbuff,fedbuff"}, ["algorithm is 'fedbuff,fedbuff'", "without repetitions"]),
    ({"model": "mlp", "hidden_sizes": "64;32"}, ["hidden_sizes is '64;32'", "a whole number"]),
    # Clients' work
    ({"learning_rate": -0.1}, ["learning_rate is -0.1", "at least 0"]),
    ({"learning_rate": math.nan}, ["learning_rate is nan", "a finite number"]),
    ({"local_steps": 0}, ["local_steps is 0", "at least 1"]),
    ({"local_epochs": 0}, ["local_epochs is 0", "at least 1"]),
    ({"local_steps": 5, "local_epochs": 1}, ["local_steps is 5", "left out where local_epochs is given (1)"]),
    ({"batch_size": -1}, ["batch_size is -1", "0 for a client's whole data set"]),
    (
        {"batch_size": 0, "learning_rate_normalization": True},
        ["learning_rate_normalization is True", "False where"],
    ),
    ({"client_momentum": 1.0}, ["client_momentum is 1.0", "below 1"]),
    (
        {"client_momentum": 0.9, "client_optimizer": "adam"},
        [
            "client_momentum is 0.9",
            "left out",
            "where client_optimizer is sgd; here client_optimizer is adam",
        ],
    ),
    ({"proximal": -1.0}, ["proximal is -1.0", "at least 0"]),
    ({"l2": -1.0}, ["l2 is -1.0", "at least 0"]),
    # Server
    ({"algorithm": "fedasync", "buffer_size": 5}, ["buffer_size is 5", "1 for fedasync"]),
    ({"algorithm": "fedasync", "protocol": "synchronous"}, ["cohort_size is 20", "1 for fedasync"]),
    ({"server_learning_rate": -1.0}, ["server_learning_rate is -1.0", "at least 0"]),
    ({"server_learning_rate": math.inf}, ["server_learning_rate is inf", "a finite number"]),
    ({"server_momentum": 1.0}, ["server_momentum is 1.0", "below 1"]),
    ({"server_momentum": -0.5}, ["server_momentum is -0.5", "at least 0"]),
    (
        {"server_momentum": 0.9, "server_optimizer": "adam"},
        [
            "server_momentum is 0.9",
            "left out",
            "where server_optimizer is sgd; here server_optimizer is adam",
        ],
    ),
    ({"staleness_exponent": math.nan}, ["staleness_exponent is nan", "a finite number"]),
    ({"staleness_weight": "hinge", "staleness_slope": -10.0}, ["staleness_slope is -10.0", "at least 0"]),
]

# (settings that differ from SYNCHRONOUS, parts of the message in order)
BAD_SYNCHRONOUS = [
    (
        {"cohort_size": 101},
        ["cohort_size is 101", "between 1 and the number of clients, 100", "Lower cohort_size"],
    ),
    ({"cohort_size": 0}, ["cohort_size is 0", "between 1 and"]),
    ({"cohort_size": 90, "over_selection": 0.3}, ["over_selection) is 117", "the number of clients, 100"]),
    ({"over_selection": -0.3}, ["over_selection is -0.3", "at least 0"]),
    ({"delay_mean": -1.0, "delay": "constant"}, ["delay_mean is -1.0", "at least 0"]),
    (
        {"cohort_size": 10, "server_steps": None, "client_trips": 9},
        ["cohort_size is 10", "at most client_trips (9)", "Lower cohort_size"],
    ),
]


def one_line(changes):
    """A row of the table as a test's name."""
    return " ".join(f"{name}={value}" for name, value in changes.items())


def assert_says(message, parts):
    """The parts stand in the message, in this order."""
    assert re.search(".*".join(map(re.escape, parts)), message), message


@pytest.mark.parametrize(
    ("base", "changes", "parts"),
    [pytest.param(ASYNCHRONOUS, *row, id=one_line(row[0])) for row in BAD_ASYNCHRONOUS]
    + [pytest.param(SYNCHRONOUS, *row, id=f"synchronous {one_line(row[0])}") for row in BAD_SYNCHRONOUS],
)
def test_bad_settings_are_refused(base, changes, parts):
    with pytest.raises(SettingError) as refusal:
        make_experiments(dataclasses.replace(base, **changes))
    assert_says(str(refusal.value), parts)
    assert not str(refusal.value).startswith("the ")  # it begins with the setting's name


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"delay": "constant", "delay_mean": 0.0}, id="constant"),
        pytest.param({"delay": "uniform", "delay_high": 0.0}, id="uniform"),
    ],
)
def test_delays_may_all_be_zero_in_synchronous_rounds(changes):
    (experiment,) = make_experiments(dataclasses.replace(SYNCHRONOUS, **changes))
    assert experiment.schedule.num_steps == 3
    assert experiment.schedule.step_time.tolist() == [0.0, 0.0, 0.0]


def test_the_tables_begin_from_settings_that_work():
    for base in (ASYNCHRONOUS, SYNCHRONOUS, dataclasses.replace(ASYNCHRONOUS, **TEN_OF_EACH)):
        (experiment,) = make_experiments(base)
        assert experiment.schedule.num_trips > 0


def test_too_little_memory_says_how_much_and_which_setting_lowers_it(monkeypatch):
    monkeypatch.setattr("jafl.engine.plan.device_memory.device_memory", lambda: 100 * 1024)
    with pytest.raises(SettingError) as refusal:
        make_experiments(ASYNCHRONOUS)
    needed = re.search(
        r"needs (\d+) KiB of device memory, but the device has 100 KiB.* snapshots of a model of 2.54 KiB",
        str(refusal.value),
    )
    assert needed, str(refusal.value)
    assert int(needed[1]) > 64 * 4 * 1438 / 1024  # the images alone
    assert_says(str(refusal.value), ["a lower concurrency or a larger buffer_size", "a smaller model"])


def test_a_model_that_cannot_fit_is_refused_before_it_is_made():
    settings = dataclasses.replace(ASYNCHRONOUS, model="mlp", hidden_sizes="10000000,10000000")
    with pytest.raises(SettingError, match=r"needs .* GiB of device memory.*a smaller model"):
        make_experiments(settings)


@pytest.mark.parametrize("last", [{"seed": "0,1,x"}, {"algorithm": "fedbuff,fedavg", "cohort_size": 200}])
def test_nothing_is_written_before_all_runs_are_checked(last, tmp_path):
    with pytest.raises(SettingError):
        run(dataclasses.replace(ASYNCHRONOUS, **last), tmp_path / "results")
    assert not (tmp_path / "results").exists()
