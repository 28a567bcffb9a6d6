"""Every protocol and every algorithm from settings alone: repeated from config.json, dry, and trained."""

import json
import subprocess
import sys

import jax
import numpy as np
import pytest
from command_line import environment
from quick_compilation import quick_compilation  # noqa: F401
from run_files import read_arrays, read_json, read_lines
from tiers import in_tiers
from waiting import LIMIT

from jafl.config import calls, presets
from jafl.config.settings import Settings
from jafl.config.values import Call
from jafl.runs.directory.previous_run import PICTURES
from jafl.runs.runner import dry_run, run

SMALL = {"num_clients": 12, "model": "softmax", "delay": "log_normal", "seed": "5"}
RUNS = {
    "asynchronous": {
        "algorithm": "fedbuff",
        "buffer_size": 3,
        "concurrency": 7,
        "client_trips": 60,
        "delay": "throttled(with_network(slow_fraction(gamma(shape=0.7), gamma(mean=10, shape=0.7), 0.3), "
        "upload_bandwidth=5000), share=0.5, clients=[0, 1, 2])",
        "protocol.restart": "not_twice_in_a_buffer",
        "protocol.staleness_limit": 3,
        "protocol.flush_after": 0.8,
        "protocol.failure_rate": 0.1,
        "availability": "on_and_off(mean_on=6, mean_off=1)",
        "dropout": "fraction(0.2, time=2.5)",
    },
    "K-sync": {
        "algorithm": "wkafl",
        "buffer_size": 4,
        "concurrency": 8,
        "protocol.cancel_at_step": True,
        "server_steps": 6,
    },
    "waiting": {
        "algorithm": "fedavg",
        "protocol": "asynchronous",
        "buffer_size": 2,
        "protocol.staleness_limit": 1,
        "protocol.too_stale": "wait",
        "server_steps": 9,
    },
    "interrupts": {
        "algorithm": "port",
        "buffer_size": 3,
        "protocol.local_steps": 4,
        "protocol.staleness_limit": 2,
        "protocol.too_stale": "interrupt",
        "delay": "per_step(log_normal)",
        "local_steps": "scheduled",
        "client_trips": 50,
    },
    "open arrivals": {
        "algorithm": "fedbuff",
        "protocol": "open_arrivals",
        "buffer_size": 3,
        "protocol.start_rate": 4.0,
        "protocol.starts": "constant",
        "delay": "pareto",
        "availability": "diurnal(day_length=8, share=0.7, spread=0.5, loses_trips=True)",
        "client_trips": 50,
    },
    "open arrivals with replacement": {
        "algorithm": "fedstaleweight",
        "protocol": "open_arrivals",
        "buffer_size": 3,
        "protocol.exclude_busy": False,
        "client_trips": 50,
    },
    "drawn staleness": {
        "algorithm": "ace",
        "protocol": "drawn_staleness",
        "delay": "exponential(5)",
        "server_steps": 20,
    },
    "queues": {"algorithm": "generalized_async_sgd", "concurrency": 7, "client_trips": 40},
    "all that are due": {
        "algorithm": "aced",
        "protocol": "drawn_staleness",
        "protocol.reports": "due",
        "delay": "exponential(5)",
        "server_steps": 20,
    },
    "clients that keep something": {
        "algorithm": "scaffold",
        "protocol": "asynchronous",
        "buffer_size": 3,
        "client_work.state_precision": "int8",
        "client_trips": 50,
    },
    "clients that keep their optimizer": {
        "algorithm": "fedbuff",
        "client_optimizer": "adam",
        "client_work.keep_optimizer_state": True,
        "client_trips": 50,
    },
    "clients that compress": {
        "algorithm": "fedbuff",
        "client_work.compression": "top_k(fraction=0.05)",
        "client_work.error_feedback": True,
        "client_trips": 50,
    },
    "rounds": {"algorithm": "fednova", "protocol.cohort_size": 4, "protocol.over_selection": 0.5, "server_steps": 5},
}  # fmt: skip
TRAINED = ("asynchronous", "open arrivals", "drawn staleness", "rounds", "clients that keep something")
# Runs run.py with each list of flags in turn, in one process and without pictures.
MANY = """
import json, sys
from jafl.cli import command_line
from jafl.runs import runner
from jafl.runs.recording import recorder
recorder.draw_history = runner.draw_schedule = lambda *_: None
for arguments in json.load(sys.stdin):
    status = command_line.run(command_line.read("run.py", arguments))
    assert status == 0, (status, arguments)
"""


FIRST = [pytest.param("dry"), pytest.param("trained", marks=pytest.mark.full)]


@pytest.fixture(scope="module", params=FIRST)
def repeated(request, tmp_path_factory):
    """The folder of each run, and of the same run again from its config.json, dry, both by run.py.

    The first run is dry, too, unless it is one of ``TRAINED`` and trained first runs are asked for.
    """
    folder = tmp_path_factory.mktemp("repeated")
    calls = []
    for name, settings in RUNS.items():
        flags = [f"--{setting}={value}" for setting, value in {**SMALL, **settings}.items()]
        dry = [] if name in TRAINED and request.param == "trained" else ["plan"]
        calls.append([*dry, *flags, f"--output_dir={folder / name / 'first'}"])
        config = folder / name / "first" / "config.json"
        calls.append(["plan", f"--config={config}", f"--output_dir={folder / name / 'again'}"])
    result = subprocess.run(
        [sys.executable, "-c", MANY],
        input=json.dumps(calls),
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return folder


@pytest.mark.few_in_full(2)
@pytest.mark.full
@pytest.mark.parametrize("name", RUNS)
def test_config_repeats_a_run_of_every_protocol(name, repeated):
    first, again = repeated / name / "first", repeated / name / "again"
    for file in ("schedule.npz", "partition.npz"):
        assert (first / file).read_bytes() == (again / file).read_bytes(), file
    configs = [read_json(folder / "config.json") for folder in (first, again)]
    for config in configs:
        for changing in ("command", "versions", "device"):
            config.pop(changing)
    assert configs[0] == configs[1]
    for setting, value in {**SMALL, **RUNS[name]}.items():
        if setting in ("delay", "availability", "dropout"):
            assert configs[0][setting] == calls.grammar(setting).completed(value)
        elif setting in calls.CALLS:
            assert calls.bare_name(configs[0][setting]) == value
        elif name != "rounds" or setting != "concurrency":
            said = calls.argument(configs[0], setting)
            assert (str(said) if isinstance(said, Call) else said) == value, setting


@pytest.mark.parametrize("repeated", FIRST[1:], indirect=True)
@pytest.mark.parametrize("name", TRAINED)
def test_a_dry_run_trains_nothing_and_writes_the_same_schedule(name, repeated):
    first, again = repeated / name / "first", repeated / name / "again"
    assert {path.name for path in again.iterdir()} == {
        "config.json",
        "schedule.npz",
        "partition.npz",
        "diagnostics.json",
    }
    trained = {"metrics.jsonl", "params.npz", "reports.npz", "summary.json"}
    assert {path.name for path in first.iterdir()} >= trained
    schedule, summary = read_arrays(first / "schedule.npz"), read_json(first / "summary.json")
    dry, wet = read_json(again / "diagnostics.json"), read_json(first / "diagnostics.json")
    assert dry["client_trips"] == wet["client_trips"] == summary["client_trips"]
    assert dry["server_steps"] == wet["server_steps"] == len(schedule["step_time"])
    assert dry["wasted"]["trips"] == summary["trips_thrown_away"] == len(schedule["discarded_client"])
    assert dry["staleness"] == wet["staleness"]


@pytest.mark.full
@pytest.mark.parametrize("name", RUNS)
def test_every_option_of_the_runs_shows_in_their_schedule(name, repeated):
    """So that none of them repeats a run in which nothing happens."""
    schedule = read_arrays(repeated / name / "first" / "schedule.npz")
    sizes = np.diff(np.searchsorted(schedule["step"], np.arange(len(schedule["step_time"]) + 1)))
    thrown_away = len(schedule["discarded_client"])
    staleness = schedule["step"] - schedule["download_version"]
    if name == "asynchronous":
        assert thrown_away > 3 and sizes.min() < 3 and staleness.max() <= 3
    if name == "K-sync":
        assert thrown_away == 6 * 4 and not staleness.any()
    if name == "waiting":
        assert sizes.max() > 2 and staleness.max() == 1
    if name == "open arrivals":
        started = np.concatenate(
            [schedule[f"{kind}_time"] for kind in ("download", "discarded_start", "inflight_start")]
        )
        np.testing.assert_allclose(4.0 * started, np.round(4.0 * started), rtol=1e-9)
        assert thrown_away > 0
    if name == "open arrivals with replacement":
        starts = np.concatenate([schedule["download_time"], schedule["inflight_start_time"]])
        ends = np.concatenate([schedule["arrival_time"], np.full(len(schedule["inflight_client"]), np.inf)])
        clients = np.concatenate([schedule["client"], schedule["inflight_client"]])
        order = np.lexsort((starts, clients))
        same = np.diff(clients[order]) == 0
        assert np.any(same & (starts[order][1:] < ends[order][:-1]))
    if name == "drawn staleness":
        assert sizes.tolist() == [12] + [1] * 19
        assert staleness.max() > 2
    if name == "all that are due":
        assert sizes[0] == 12 and len(set(sizes[1:])) > 2
        assert np.all(schedule["arrival_time"] == schedule["step_time"][schedule["step"]])
    if name == "rounds":
        assert thrown_away == 5 * 2


NUMBERS = {"config.json", "schedule.npz", "partition.npz", "diagnostics.json"}


@pytest.mark.full
def test_a_dry_run_leaves_four_files_and_pictures_of_the_schedule(tmp_path):
    said = []
    settings = Settings(algorithm="fedbuff", num_clients=9, model="softmax", client_trips=90)
    dry_run(settings, tmp_path / "dry", show=said.append)
    files = {path.name for path in (tmp_path / "dry").iterdir()}
    assert files - NUMBERS <= set(PICTURES) - {"accuracy.png", "reports.png", "weights.png"}
    assert files >= NUMBERS | {"staleness.png", "participation.png", "timeline.png", "label_split.png"}
    assert any(line.startswith("fedbuff-seed0") for line in said)
    assert any("Nothing was trained" in line for line in said)


@pytest.mark.full
def test_a_dry_run_of_several_leaves_a_folder_for_each(tmp_path, monkeypatch):
    monkeypatch.setattr("jafl.runs.runner.draw_schedule", lambda *_: None)
    settings = Settings(
        algorithm="fedbuff,fedavg", num_clients=9, model="softmax", client_trips=90, seed="1,2"
    )
    said = []
    dry_run(settings, tmp_path / "dry", show=said.append)
    names = {f"{algorithm}-seed{seed}" for algorithm in ("fedbuff", "fedavg") for seed in (1, 2)}
    assert {path.name for path in (tmp_path / "dry").iterdir()} == names | {"staleness.png", "in_flight.png"}
    for name in names:
        assert {path.name for path in (tmp_path / "dry" / name).iterdir()} == NUMBERS
        assert any(line.startswith(name) for line in said)


# Algorithms.


@pytest.fixture(scope="module", params=in_tiers(list(presets.ALGORITHMS), ("fedbuff", "ace")))
def trained(request, tmp_path_factory):
    """The folder of each algorithm's run of 100 trips, its settings all but left to it."""
    folder = tmp_path_factory.mktemp("trained") / request.param
    settings = Settings(
        algorithm=request.param, num_clients=10, model="softmax", client_trips=100, evaluate_every=50
    )
    if request.param == "zeno_plus_plus":
        settings = settings.changed({"split.server_examples": 100})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("jafl.runs.recording.recorder.draw_history", lambda *_: None)
        (outcome,) = run(settings, folder, show=lambda line: None)
    assert outcome.status == "finished"
    return folder


@pytest.mark.full
@pytest.mark.few_in_full(8)
def test_every_algorithm_runs_and_reports(trained):
    """As many numbers as there are trips, or steps, or steps times trips in each; and none that is not a number."""
    schedule, reports = read_arrays(trained / "schedule.npz"), read_arrays(trained / "reports.npz")
    trips, steps = len(schedule["client"]), len(schedule["step_time"])
    # Where the server does not step after a number of trips, many are stopped, too stale, or wait at the end.
    waits = {"malenia", "ringleader", "rennala", "rennala_without_stops"}
    assert (
        (40 if read_json(trained / "config.json")["algorithm"].partition("(")[0] in waits else 90)
        <= trips
        <= 100
    )
    assert reports["trip_loss"].shape == (trips,)
    for name, rows in reports.items():
        assert np.all(np.isfinite(rows)), name
        kind, _, what = name.partition("_")
        if kind == "trip":
            assert rows.shape == (trips,), name
        else:
            assert kind == "step"
            allowed = {(steps,), (steps, trips // steps)} if what == "weight" else {(steps,)}
            assert rows.shape in allowed, name


@pytest.mark.full
def test_every_algorithm_shares_all_influence(trained):
    summary = read_json(trained / "summary.json")
    influence = np.array(summary["participation"]["influence"])
    assert influence.shape == (10,)
    assert influence.sum() == pytest.approx(1, abs=1e-9)
    assert (
        sum(summary["participation"]["client_trips"]) + summary["trips_thrown_away"]
        == summary["client_trips"]
    )
    assert np.all(np.isfinite(influence))


@pytest.mark.full
def test_every_algorithm_learns_something(trained):
    """Its test loss falls below that of the first model, which knows nothing: log 10."""
    lines = read_lines(trained / "metrics.jsonl")
    assert lines[0]["test_loss"] == pytest.approx(np.log(10), rel=1e-5)
    assert min(line["test_loss"] for line in lines[1:]) < lines[0]["test_loss"]
    assert lines[-1]["server_step"] == len(read_arrays(trained / "schedule.npz")["step_time"])


# Of optax, whose bias corrections promote whole numbers.
PROMOTES = {"async_diloco", "cgad", "diloco", "fedadam", "fedyogi"}


@pytest.mark.few_in_full(8)
@pytest.mark.parametrize("algorithm", in_tiers(list(presets.ALGORITHMS), ("wkafl",)))
def test_no_algorithm_promotes_ranks_or_types(algorithm, tmp_path, monkeypatch):
    """A project that forbids implicit promotions to itself may call jafl."""
    monkeypatch.setattr("jafl.runs.recording.recorder.draw_history", lambda *_: None)
    settings = Settings(
        algorithm=algorithm, num_clients=10, model="softmax", client_trips=60, evaluate_every=50
    )
    if algorithm == "zeno_plus_plus":
        settings = settings.changed({"split.server_examples": 100})
    types = "standard" if algorithm in PROMOTES else "strict"
    with jax.numpy_rank_promotion("raise"), jax.numpy_dtype_promotion(types):
        (outcome,) = run(settings, tmp_path, show=lambda line: None)
    assert outcome.status == "finished"
