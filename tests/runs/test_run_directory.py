"""What a run leaves behind: every file and every documented field, read without jafl's help."""

import concurrent.futures
import dataclasses
import errno
import platform
from unittest import mock

import jax
import numpy as np
import pytest
from quick_compilation import quick_compilation  # noqa: F401
from run_files import (
    accuracy_and_loss,
    clients,
    params_as_model,
    read_arrays,
    read_json,
    read_lines,
    replay,
    scores,
    split,
)
from tiers import in_tiers

import jafl
from jafl.base.errors import SettingError
from jafl.base.paths import write_whole
from jafl.config import calls, presets
from jafl.config.settings import FORMAT, Settings
from jafl.runs.directory.files import RunDirectory, check_place, earlier_run, reserve_next_directory
from jafl.runs.directory.previous_run import EarlierRun
from jafl.runs.runner import dry_run, run
from jafl.sweeps.sweep import run_sweep

FILES = {
    "config.json",
    "schedule.npz",
    "partition.npz",
    "metrics.jsonl",
    "summary.json",
    "params.npz",
    "reports.npz",
}
PICTURES = {"accuracy.png", "participation.png", "label_split.png", "timeline.png"}
ALGORITHMS = ("fedbuff", "fedasync", "fedavg", "fedavgm")
SEEDS = (3, 4)


def quiet(settings, folder, *, pictures=False, **options):
    """Runs without a word, and to save time without the single runs' pictures; returns how the runs ended."""
    with pytest.MonkeyPatch.context() as patch:
        if not pictures:
            patch.setattr("jafl.runs.recording.recorder.draw_history", lambda *_: None)
        return run(settings, folder, **{"show": lambda line: None, **options})


@pytest.fixture(scope="module")
def minibatches(tmp_path_factory):
    """(folder, outcome) of FedBuff on minibatches, with everything recorded that can be."""
    folder = tmp_path_factory.mktemp("minibatches") / "run"
    settings = Settings(
        algorithm="fedbuff",
        num_clients=15,
        concurrency=6,
        buffer_size=4,
        client_trips=302,
        delay="exponential",
        model="mlp(hidden_sizes=[16])",
        learning_rate=0.2,
        split="split(validation_fraction=0.1)",
        train_accuracy=True,
        evaluate_every=20,
        target_accuracy=0.6,
    )
    (outcome,) = quiet(settings, folder, pictures=True, command=["python", "run.py", "--x=y"])
    return folder, outcome


@pytest.fixture(scope="module")
def over_selected(tmp_path_factory):
    """(folder, outcome) of synchronous rounds that throw two trips of seven away."""
    folder = tmp_path_factory.mktemp("over_selected") / "run"
    settings = Settings(
        algorithm="fedavg",
        model="softmax",
        num_clients=12,
        protocol="synchronous(cohort_size=5, over_selection=0.4)",
        server_steps=30,
        delay="log_normal",
        target_accuracy=1.0,
    )
    (outcome,) = quiet(settings, folder, pictures=True)
    return folder, outcome


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    """The folder of four algorithms with two seeds each, of the kind that can be checked by hand."""
    folder = tmp_path_factory.mktemp("comparison") / "runs"
    settings = Settings(
        algorithm=",".join(ALGORITHMS),
        seed=",".join(map(str, SEEDS)),
        model="softmax",
        batch_size=0,
        local_steps=1,
        precision="float64",
        learning_rate=0.7,
        num_clients=12,
        concurrency=5,
        client_trips=150,
        evaluate_every=15,
        target_accuracy=0.4,
    )
    with jax.enable_x64(True):
        quiet(settings, folder)
    return folder


@pytest.fixture(scope="module", params=["minibatches", "over_selected"])
def any_run(request):
    """(folder, outcome) of each of the single runs."""
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="module", params=ALGORITHMS)
def by_hand(request, comparison):
    """The folder of each algorithm's first run in the comparison."""
    return comparison / f"{request.param}-seed{SEEDS[0]}"


@pytest.mark.full
def test_all_files_are_there_and_nothing_else(any_run):
    folder, _ = any_run
    names = {path.name for path in folder.iterdir()}
    files = FILES | {"diagnostics.json"}
    assert names >= files | PICTURES
    assert all(name.endswith(".png") for name in names - files)
    for name in names - files:
        assert (folder / name).read_bytes().startswith(b"\x89PNG\r\n")


# config.json


# What these runs leave out.
UNUSED = {
    *("devices", "plan_form", "data_dir"),
    *("stop_when", "privacy", "secure_aggregation"),
}


def test_config_holds_every_setting_resolved(any_run):
    folder, _ = any_run
    config = read_json(folder / "config.json")
    assert config["format"] == FORMAT
    for field in dataclasses.fields(Settings):
        assert field.name in config
        if field.name not in UNUSED | {"evaluate_every"}:  # null: so many evaluations in all
            assert config[field.name] is not None, f"{field.name} is not resolved"
        assert "default" not in str(config[field.name]), f"{field.name} is not resolved"
    assert config["partition"] == "dirichlet(alpha=0.3, equal_sizes=False)"
    preset = calls.argument(presets.values("fedavg"), "learning_rate")
    expected = 0.2 if config["algorithm"].startswith("fedbuff(") else preset
    assert calls.argument(config, "learning_rate") == expected


def test_config_says_what_ran_where_and_how(minibatches):
    config = read_json(minibatches[0] / "config.json")
    assert config["versions"] == {
        "jafl": jafl.__version__,
        "jax": jax.__version__,
        "python": platform.python_version(),
    }
    assert config["device"].startswith(jax.devices()[0].platform)
    assert config["command"] == ["python", "run.py", "--x=y"]


@pytest.mark.parametrize(
    "which",
    in_tiers(["minibatches", "over_selected", "comparison/fedavgm-seed4"], ["minibatches", "over_selected"]),
)
def test_config_repeats_the_run_to_the_last_bit(which, request, tmp_path):
    name, _, child = which.partition("/")
    made = request.getfixturevalue(name)
    folder = made / child if child else made[0]
    settings = Settings.from_file(folder / "config.json")
    with jax.enable_x64(settings.float_type == "float64"):
        quiet(settings, tmp_path / "again")
    for file in ("params.npz", "metrics.jsonl", "schedule.npz", "partition.npz"):
        assert (tmp_path / "again" / file).read_bytes() == (folder / file).read_bytes(), file
    changed = {"command", "versions", "device"}
    before, after = (read_json(one / "config.json") for one in (folder, tmp_path / "again"))
    assert {k: v for k, v in after.items() if k not in changed} == {
        k: v for k, v in before.items() if k not in changed
    }


def test_a_setting_typed_beside_config_replaces_the_one_that_it_excludes(minibatches, over_selected):
    by_trips, by_steps = (folder / "config.json" for folder, _ in (minibatches, over_selected))
    assert Settings.from_file(by_trips).client_trips == 302
    settings = Settings.from_file(by_trips, server_steps=7, local_steps=2)
    assert (settings.server_steps, settings.client_trips) == (7, None)
    assert (settings.local_steps, settings.argument("client_work.local_epochs")) == (2, None)
    settings = Settings.from_file(by_steps, client_trips=70, dataset="synthetic")
    assert (settings.server_steps, settings.client_trips, settings.dataset) == (None, 70, "synthetic")
    assert settings.value("protocol.over_selection") == 0.4


# schedule.npz


def test_schedule_columns_have_their_lengths(any_run):
    folder, _ = any_run
    schedule = read_arrays(folder / "schedule.npz")
    trips, steps = len(schedule["client"]), len(schedule["step_time"])
    per_step = 4 if folder.match("*minibatches*/run") else 5
    assert trips == per_step * steps
    whole = ("client", "trip", "download_version", "step")
    times = ("download_time", "arrival_time")
    for names, kind in ((whole, "i"), (times, "f")):
        for name in names:
            assert schedule[name].shape == (trips,)
            assert schedule[name].dtype.kind == kind
    assert schedule["num_clients"].shape == ()
    np.testing.assert_array_equal(schedule["step"], np.repeat(np.arange(steps), per_step))


def test_schedule_holds_every_column_of_the_schedule(any_run):
    """Of which tests/schedule tells what they promise each other."""
    folder, outcome = any_run
    schedule, columns = read_arrays(folder / "schedule.npz"), vars(outcome.experiment.schedule)
    there = {name for name, column in columns.items() if isinstance(column, np.ndarray)}
    assert there - schedule.keys() == {"inflight_trip", "discarded_trip"}  # which follow from the others
    for name in there & schedule.keys():
        np.testing.assert_array_equal(schedule[name], columns[name])
    assert len(schedule["inflight_client"]) == (6 if "minibatches" in str(folder) else 0)
    assert len(schedule["discarded_client"]) == (0 if "minibatches" in str(folder) else 30 * 2)


# partition.npz


def test_partition_reproduces_every_clients_examples(any_run):
    folder, outcome = any_run
    federation = outcome.experiment.federation
    held = clients(folder)
    assert len(held) == federation.num_clients == read_json(folder / "config.json")["num_clients"]
    for client, (x, y) in enumerate(held):
        their_x, their_y = federation.client(client)
        np.testing.assert_array_equal(their_x.reshape(len(their_x), 64), x)  # sixteenths: exact in float32
        np.testing.assert_array_equal(their_y, y)
    test = split(folder, "test")
    np.testing.assert_array_equal(federation.test_x.reshape(len(test.x), 64), test.x)
    np.testing.assert_array_equal(federation.test_y, test.y)


def test_partition_splits_the_source_completely(minibatches, over_selected):
    three, two = (read_arrays(folder / "partition.npz") for folder, _ in (minibatches, over_selected))
    assert "validation_indices" not in two
    for partition in (three, two):
        parts = [partition[name] for name in partition if name.endswith("_indices")]
        np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(1797))
        assert np.max(partition["indices"]) < len(partition["train_indices"])
        assert len(partition["indices"]) == partition["offsets"][-1]
        assert len(np.unique(partition["indices"])) == len(partition["indices"])  # Dirichlet: no overlap


@pytest.mark.full
def test_partition_of_data_that_come_with_clients(tmp_path):
    settings = Settings(
        algorithm="fedavg", dataset="synthetic", model="softmax", num_clients=8, concurrency=3, server_steps=4
    )
    (outcome,) = quiet(settings, tmp_path / "run")
    names = {"offsets", "indices", "total_examples", "labels_digest"}
    assert set(read_arrays(tmp_path / "run" / "partition.npz")) == names
    assert read_json(tmp_path / "run" / "config.json")["partition"] == "natural"
    assert outcome.status == "finished"
    assert len(read_lines(tmp_path / "run" / "metrics.jsonl")) == 5


# metrics.jsonl


def test_metrics_run_from_step_0_to_the_final_step(any_run):
    folder, _ = any_run
    lines = read_lines(folder / "metrics.jsonl")
    schedule = read_arrays(folder / "schedule.npz")
    steps = [line["server_step"] for line in lines]
    assert steps[0] == 0
    assert steps[-1] == len(schedule["step_time"])
    assert np.all(np.diff(steps) > 0)
    assert lines[0]["client_trips"] == lines[0]["time"] == 0
    assert lines[0]["train_loss"] is None
    expected = {"server_step", "client_trips", "time", "test_accuracy", "test_loss", "train_loss"}
    assert all(set(line) >= expected for line in lines)


def test_metrics_agree_with_the_schedule(any_run):
    folder, _ = any_run
    schedule = read_arrays(folder / "schedule.npz")
    for line in read_lines(folder / "metrics.jsonl")[1:]:
        step = line["server_step"]
        assert line["time"] == schedule["step_time"][step - 1]
        applied = np.sum(schedule["step"] < step)
        thrown_away = np.sum(schedule["discarded_end_time"] <= line["time"])
        assert line["client_trips"] == applied + thrown_away


def test_metrics_come_as_often_as_asked(minibatches, over_selected):
    lines = read_lines(minibatches[0] / "metrics.jsonl")
    assert [line["client_trips"] for line in lines] == [*range(0, 301, 20)]  # 302 trips hold 75 steps of 4
    assert len(read_lines(over_selected[0] / "metrics.jsonl")) == 31


def test_optional_metrics(minibatches, over_selected):
    optional = {"validation_accuracy", "train_accuracy"}
    for line in read_lines(minibatches[0] / "metrics.jsonl"):
        assert set(line) >= optional
    for line in read_lines(over_selected[0] / "metrics.jsonl"):
        assert not set(line) & optional


def test_train_loss_is_the_mean_over_the_trips_since_the_last_evaluation(any_run):
    folder, outcome = any_run
    losses = outcome.history.trip_reports["loss"].astype(np.float64)
    schedule = read_arrays(folder / "schedule.npz")
    lines = read_lines(folder / "metrics.jsonl")
    for before, line in zip(lines[:-1], lines[1:], strict=True):
        since = (schedule["step"] >= before["server_step"]) & (schedule["step"] < line["server_step"])
        assert line["train_loss"] == pytest.approx(np.mean(losses[since]), rel=1e-12)


def test_what_the_rule_reports_is_averaged_too(minibatches):
    folder, _ = minibatches
    schedule = read_arrays(folder / "schedule.npz")
    weight = (1.0 + schedule["step"] - schedule["download_version"]) ** -0.5
    lines = read_lines(folder / "metrics.jsonl")
    for before, line in zip(lines[:-1], lines[1:], strict=True):
        since = (schedule["step"] >= before["server_step"]) & (schedule["step"] < line["server_step"])
        assert line["weight"] == pytest.approx(np.mean(weight[since]), rel=1e-6)
        assert line["weight_scale"] == 0.25


# params.npz


def test_params_of_softmax_give_the_last_line_of_the_metrics(over_selected):
    folder, _ = over_selected
    params = read_arrays(folder / "params.npz")
    assert {name: leaf.shape for name, leaf in params.items()} == {
        "dense/kernel": (64, 10),
        "dense/bias": (10,),
    }
    assert {leaf.dtype for leaf in params.values()} == {np.dtype(np.float32)}
    last = read_lines(folder / "metrics.jsonl")[-1]
    accuracy, loss = scores(params_as_model(folder).astype(np.float64), split(folder, "test"))
    assert last["test_accuracy"] == pytest.approx(accuracy, abs=1e-12)
    assert last["test_loss"] == pytest.approx(loss, rel=1e-5)


def test_params_of_the_mlp_give_the_last_line_of_the_metrics(minibatches):
    folder, _ = minibatches
    params = read_arrays(folder / "params.npz")
    last = read_lines(folder / "metrics.jsonl")[-1]
    for name in ("test", "validation", "train"):
        x, y = split(folder, name)
        hidden = np.maximum(x @ params["hidden_0/kernel"] + params["hidden_0/bias"], 0)
        accuracy, loss = accuracy_and_loss(hidden @ params["dense/kernel"] + params["dense/bias"], y)
        assert last[f"{name}_accuracy"] == pytest.approx(accuracy, abs=1e-12)
        if name != "train":
            assert last[f"{name}_loss"] == pytest.approx(loss, rel=1e-5)


# summary.json


def test_summary_of_metrics(any_run):
    folder, _ = any_run
    summary, lines = read_json(folder / "summary.json"), read_lines(folder / "metrics.jsonl")
    assert (summary["format"], summary["status"]) == (FORMAT, "finished")
    accuracy = np.array([line["test_accuracy"] for line in lines])
    assert summary["final"] == lines[-1]
    assert summary["best"] == lines[int(np.argmax(accuracy))]
    assert summary["training_stability"]["std_last_ten"] == pytest.approx(np.std(accuracy[-10:]), rel=1e-9)
    logarithms = np.log(accuracy[-10:])
    assert summary["training_stability"]["std_log_last_ten"] == pytest.approx(np.std(logarithms), rel=1e-9)


def test_summary_of_the_target(minibatches, over_selected):
    folder, _ = minibatches
    summary, lines = read_json(folder / "summary.json"), read_lines(folder / "metrics.jsonl")
    first = next(line for line in lines if line["test_accuracy"] >= 0.6)
    assert 0 < first["server_step"] < 75, "the target should be reached on the way"
    assert summary["target_accuracy"] == 0.6
    assert summary["trips_to_target"] == first["client_trips"]
    assert summary["steps_to_target"] == first["server_step"]
    assert summary["time_to_target"] == first["time"]
    never = read_json(over_selected[0] / "summary.json")
    assert [never[f"{cost}_to_target"] for cost in ("trips", "steps", "time")] == [None] * 3


def test_summary_of_the_schedule(any_run):
    folder, _ = any_run
    summary, schedule = read_json(folder / "summary.json"), read_arrays(folder / "schedule.npz")
    applied, thrown_away = len(schedule["client"]), len(schedule["discarded_client"])
    assert summary["server_steps"] == len(schedule["step_time"])
    assert summary["time"] == schedule["step_time"][-1]
    assert summary["trips_thrown_away"] == thrown_away
    assert summary["client_trips"] == applied + thrown_away
    staleness = schedule["step"] - schedule["download_version"]
    assert summary["staleness"] == {
        "mean": pytest.approx(np.mean(staleness)),
        **{f"p{p}": pytest.approx(np.percentile(staleness, p)) for p in (5, 25, 50, 75, 95, 99)},
        "max": np.max(staleness),
    }


def test_summary_of_participation(any_run):
    folder, _ = any_run
    summary, schedule = read_json(folder / "summary.json"), read_arrays(folder / "schedule.npz")
    made = np.bincount(schedule["client"], minlength=schedule["num_clients"])
    assert summary["participation"]["client_trips"] == made.tolist()
    late = schedule["step"] - schedule["download_version"]  # 0 in synchronous rounds: weight 1
    weight = np.bincount(schedule["client"], (1.0 + late) ** -0.5, minlength=schedule["num_clients"])
    np.testing.assert_allclose(summary["participation"]["influence"], weight / weight.sum(), rtol=1e-6)


def test_summary_of_cost(any_run):
    folder, _ = any_run
    summary, schedule = read_json(folder / "summary.json"), read_arrays(folder / "schedule.npz")
    clock = summary["wall_clock"]
    assert clock["run_seconds"] > 0
    assert clock["compile_seconds"] > 0
    assert clock["client_trips_per_second"] == pytest.approx(len(schedule["client"]) / clock["run_seconds"])
    assert summary["peak_memory_bytes"] > 2**20
    memory = summary["memory"]
    assert 0 < memory["needed_bytes"] == sum(memory["parts"].values()) < memory["available_bytes"]
    assert 0 < memory["compiled_temporary_bytes"] < memory["needed_bytes"] and memory["width"] == 1
    last_use = np.full(len(schedule["step_time"]) + 1, -1)
    np.maximum.at(last_use, schedule["download_version"], schedule["step"])
    alive = [np.sum(last_use[: step + 1] >= step) for step in range(len(schedule["step_time"]))]
    assert max(alive) <= summary["snapshot_slots"] <= len(last_use)


# Checkable by hand


@pytest.mark.full
def test_replay_from_the_files_alone_gives_the_same_model(by_hand):
    steps = list(replay(by_hand))
    expected, model = steps[-1].model, params_as_model(by_hand)
    assert model.dtype == np.float64
    assert np.max(np.abs(model - expected)) <= 1e-9 * np.max(np.abs(expected))
    assert np.max(np.abs(expected)) > 0.1, "nothing was learned"


def test_replay_from_the_files_alone_gives_the_same_metrics(by_hand):
    steps = list(replay(by_hand))
    test = split(by_hand, "test")
    lines = read_lines(by_hand / "metrics.jsonl")
    assert lines[0]["test_loss"] == pytest.approx(np.log(10), rel=1e-12)  # softmax starts from zeros
    for before, line in zip(lines[:-1], lines[1:], strict=True):
        since = steps[before["server_step"] : line["server_step"]]
        losses = np.concatenate([step.losses for step in since])
        accuracy, loss = scores(since[-1].model, test)
        assert line["test_accuracy"] == pytest.approx(accuracy, abs=1e-12)
        assert line["test_loss"] == pytest.approx(loss, rel=1e-9)
        assert line["train_loss"] == pytest.approx(np.mean(losses), rel=1e-9)


# Comparisons


def test_comparison_has_a_child_for_each_run(comparison):
    expected = {f"{algorithm}-seed{seed}" for algorithm in ALGORITHMS for seed in SEEDS}
    folders = {path.name for path in comparison.iterdir() if path.is_dir()}
    assert folders == expected
    for folder in expected:
        config = read_json(comparison / folder / "config.json")
        assert folder == f"{calls.bare_name(config['algorithm'])}-seed{config['seed']}"
        assert {path.name for path in (comparison / folder).iterdir()} >= FILES
    files = {path.name for path in comparison.iterdir() if path.is_file()}
    assert files >= {"summary.json", "accuracy.png"}
    assert not files & (FILES - {"summary.json"})


def test_comparison_shares_schedule_and_partition_where_it_can(comparison):
    one, other = (comparison / f"{name}-seed3" for name in ("fedavg", "fedavgm"))
    assert (one / "schedule.npz").read_bytes() == (other / "schedule.npz").read_bytes()
    partitions = {(comparison / f"{name}-seed3" / "partition.npz").read_bytes() for name in ALGORITHMS}
    assert len(partitions) == 1
    assert (comparison / "fedavg-seed4" / "partition.npz").read_bytes() not in partitions


def test_comparison_summary(comparison):
    summary = read_json(comparison / "summary.json")
    assert summary["format"] == 3
    assert summary["target_accuracy"] == 0.4
    children = {name: read_json(comparison / name / "summary.json") for name in summary["runs"]}
    assert set(children) == {path.name for path in comparison.iterdir() if path.is_dir()}
    for name, run_summary in summary["runs"].items():
        assert run_summary == {
            k: v for k, v in children[name].items() if k not in ("participation", "format", "digests")
        }
    assert [row["algorithm"] for row in summary["table"]] == list(ALGORITHMS)
    for row in summary["table"]:
        runs = [children[f"{row['algorithm']}-seed{seed}"] for seed in SEEDS]
        final = [one["final"]["test_accuracy"] for one in runs]
        assert (row["seeds"], row["finished"]) == (2, 2)
        assert row["final_test_accuracy"] == pytest.approx(np.mean(final))
        assert row["standard_error"] == pytest.approx(abs(final[0] - final[1]) / 2)
        for cost in ("trips", "steps", "time"):
            reached = [one[f"{cost}_to_target"] for one in runs]
            expected = None if None in reached else pytest.approx(np.mean(reached))
            assert row[f"{cost}_to_target"] == expected
        assert row["mean_staleness"] == pytest.approx(np.mean([one["staleness"]["mean"] for one in runs]))
        assert row["trips_thrown_away"] == 0


# Endings other than the planned one


@pytest.mark.full
def test_divergence_at_the_server_is_recorded(tmp_path):
    settings = Settings(
        algorithm="fedbuff",
        model="softmax",
        batch_size=0,
        num_clients=10,
        concurrency=5,
        buffer_size=2,
        learning_rate=1e3,
        server_learning_rate=1e38,
        client_trips=40,
    )
    lines = []
    (outcome,) = quiet(settings, tmp_path / "run", show=lines.append)
    assert outcome.status == "diverged"
    assert any("server step 0, by the server's step itself" in line for line in lines)
    summary = read_json(tmp_path / "run" / "summary.json")
    assert (summary["status"], summary["diverged_at_step"]) == ("diverged", 0)
    assert summary["diverged_by_client"] is None
    assert [line["server_step"] for line in read_lines(tmp_path / "run" / "metrics.jsonl")] == [0]
    assert {path.name for path in (tmp_path / "run").iterdir()} >= FILES


# The directory itself


def test_a_run_is_never_overwritten_unasked(tmp_path):
    (tmp_path / "fedbuff-seed0").mkdir()
    (tmp_path / "fedbuff-seed0" / "config.json").write_text("old")
    with pytest.raises(SettingError, match=r"output_dir is .*fedbuff-seed0/config.json.*--overwrite"):
        earlier_run(tmp_path)
    assert (tmp_path / "fedbuff-seed0" / "config.json").read_text() == "old"


def test_a_picture_of_ones_own_is_never_overwritten_unasked(tmp_path):
    (tmp_path / "weights.png").write_text("mine")
    with pytest.raises(SettingError, match=r"output_dir is .*weights.png.*--overwrite"):
        run(Settings(algorithm="fedbuff"), tmp_path, show=lambda line: None, progress=False)
    assert (tmp_path / "weights.png").read_text() == "mine"


def test_overwriting_deletes_runs_and_nothing_else(tmp_path):
    for name in ("summary.json", "fedbuff-seed0/config.json", "fedbuff-seed0/accuracy.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("old")
    mine = ("notes.txt", "thesis/config.json", "thesis/figure.png", "fedavg-seed0/notes.txt")
    for name in mine:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("mine")
    EarlierRun(tmp_path).remove()
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert left == set(mine)
    assert not (tmp_path / "fedbuff-seed0").exists()


def test_overwriting_leaves_other_runs_of_weights_and_biases(tmp_path):
    for name in (
        "config.json",
        "wandb/offline-run-20260101_000000-0a1b/files.txt",
        "wandb/run-20260102-ffff/mine",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("old")
    (tmp_path / "wandb_run_id.txt").write_text("0a1b")
    (tmp_path / "wandb" / "latest-run").symlink_to("offline-run-20260101_000000-0a1b")
    EarlierRun(tmp_path).remove()
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if not path.is_dir()}
    assert left == {"wandb/run-20260102-ffff/mine"}


def test_a_path_that_cannot_be_a_directory_is_refused(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(SettingError, match="output_dir is .*file', but cannot be made"):
        RunDirectory(tmp_path / "file")


def test_a_directory_that_cannot_be_is_told_of_before_anything_is_made(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("mine")
    (tmp_path / "held").mkdir()
    (tmp_path / "held" / "config.json").write_text("{}")
    no = mock.Mock(side_effect=AssertionError("planned"))
    for module in ("runs.runner", "sweeps.sweep"):
        monkeypatch.setattr(f"jafl.{module}.make_experiments", no, raising=False)
    monkeypatch.setattr("jafl.sweeps.sweep._check", no)
    settings = Settings(algorithm="fedbuff")
    refused = {
        "file/new": "cannot be made: Not a directory",
        "file": "cannot be made: Not a directory",
        "new/" + "x" * 300: "cannot be made: File name too long",
        "held": "already holds a run",
    }
    for place, words in refused.items():
        for act in (run, dry_run, lambda settings, place: run_sweep(settings, {"seed": ["1"]}, place)):
            with pytest.raises(SettingError, match=f"output_dir is .*{words}"):
                act(settings, place)
    with pytest.raises(AssertionError, match="planned"):
        run(settings, "held", overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "held"]


def test_a_directory_into_which_nothing_can_be_written_is_refused(tmp_path, monkeypatch):
    denied = mock.Mock(side_effect=PermissionError(errno.EACCES, "Permission denied"))
    monkeypatch.setattr("jafl.base.paths.tempfile.mkdtemp", denied)
    with pytest.raises(SettingError, match="nothing can be written there: Permission denied"):
        check_place(tmp_path)


def test_a_file_may_have_as_long_a_name_as_its_file_system_takes(tmp_path):
    write_whole(tmp_path / ("x" * 255), lambda temporary: temporary.write_text("whole"))
    (written,) = tmp_path.iterdir()
    assert written.read_text() == "whole"


def test_what_cannot_be_written_is_told_by_its_own_name(tmp_path):
    """As in /proc, which is a folder where nobody makes files."""
    file = tmp_path / "none" / "run.npz"
    with pytest.raises(OSError) as error:
        write_whole(file, lambda temporary: temporary.write_text("whole"))
    assert error.value.filename == str(file)


def test_each_command_reserves_a_number_of_its_own(tmp_path):
    (tmp_path / "runs" / "002").mkdir(parents=True)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        reserved = list(pool.map(lambda _: reserve_next_directory(tmp_path / "runs"), range(40)))
    names = sorted(path.name for path in reserved)
    assert names == [f"{number:03d}" for number in range(1, 42) if number != 2]


def test_a_place_where_no_number_can_be_made_is_refused(tmp_path):
    (tmp_path / "runs").write_text("mine")
    with pytest.raises(SettingError, match="output_dir is .*001', but cannot be made: Not a directory"):
        reserve_next_directory(tmp_path / "runs")
