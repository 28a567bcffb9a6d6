"""Sweeps whose runs share programs: each run is as of a run alone, and a stopped sweep equals one that was not."""

import json
import math
import pathlib
import time

import jax
import killed
import numpy as np
import pytest
from run_again import assert_same, at_step, contents, ctrl_c
from waiting import until

from jafl.base import checksums
from jafl.base.errors import SettingError
from jafl.config import grid
from jafl.config.data_cache import DataCache
from jafl.config.settings import Settings
from jafl.runs import training
from jafl.runs.directory.damage import is_closed
from jafl.runs.lock import directory_lock
from jafl.simulation.stacking import GroupTooLarge
from jafl.sweeps.grid_runs import Request, SweepRuns, directories
from jafl.sweeps.sweep import run_sweep

SMALL = {
    "algorithm": "fedbuff",
    "seed": "0,1,2",
    "model": "softmax",
    "num_clients": 10,
    "concurrency": 5,
    "buffer_size": 5,
    "client_trips": 60,
    "evaluate_every": 10,
}
SWEEP = "partition.alpha=0.1,10"
WILD = {
    "tame": {"algorithm": "fedbuff"},
    "wild": {"algorithm": "fedbuff", "learning_rate": 1e3, "server_learning_rate": 1e38},
}


def quiet(changes, sweep, folder, **options):
    """A sweep without a word and without pictures."""
    settings = Settings(**{**SMALL, **changes})
    return run_sweep(
        settings,
        sweep,
        folder,
        **{"show": lambda line: None, "pictures": False, "progress": False, **options},
    )


def stop_at(server_step, name):
    """A tracker that presses Ctrl-C once, when a run of that name is evaluated from ``server_step`` on."""
    pressed = []

    def press(path):
        if not pressed:
            pressed.append(path)
            ctrl_c(path)

    return at_step(server_step, press, run=name)


def summaries(folder):
    """{path: summary} of all runs."""
    return {
        str(path.parent.relative_to(folder)): json.loads(path.read_text())
        for path in sorted(folder.rglob("summary.json"))
        if path.parent != folder
    }


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of a sweep of six runs in one program that nobody stopped."""
    folder = tmp_path_factory.mktemp("whole") / "sweep"
    assert quiet({}, SWEEP, folder).statuses == {"finished": 6}
    assert {one["trained_together"] for one in summaries(folder).values()} == {6}
    return folder


def assert_close(found, expected, tolerance):
    """Two sweeps left the same files with the same numbers, but for rounding."""
    here, there = contents(found), contents(expected)
    assert list(here) == list(there)
    for name in there:
        if name.endswith((".npz", "metrics.jsonl")):
            continue
        if name.endswith("config.json"):
            assert here[name] == there[name]
    for path in sorted(expected.rglob("*.npz")):
        with np.load(path) as wanted, np.load(found / path.relative_to(expected)) as arrays:
            assert arrays.files == wanted.files
            for name in wanted.files:
                if wanted[name].dtype.kind == "U":  # a digest
                    assert arrays[name] == wanted[name]
                    continue
                np.testing.assert_allclose(arrays[name], wanted[name], rtol=tolerance, atol=tolerance)
                assert arrays[name].dtype == wanted[name].dtype
    for path in sorted(expected.rglob("metrics.jsonl")):
        lines, wanted = (
            [json.loads(line) for line in file.read_text().splitlines()]
            for file in (found / path.relative_to(expected), path)
        )
        assert len(lines) == len(wanted)
        for line, other in zip(lines, wanted, strict=True):
            assert line.keys() == other.keys()
            for name, value in line.items():
                assert value == other[name] or math.isclose(value, other[name], rel_tol=1e-9, abs_tol=1e-9)
    for name, one in summaries(found).items():
        other = summaries(expected)[name]
        assert one.keys() == other.keys()
        for field in ("status", "server_steps", "client_trips", "trips_to_target", "snapshot_slots"):
            assert one[field] == other[field]


@pytest.mark.few_in_full(1)
@pytest.mark.parametrize("algorithm", ["fedbuff", "fedasync", "ace"])
@pytest.mark.full
def test_together_equals_apart(algorithm, tmp_path):
    own = {"ace": {"concurrency": None, "buffer_size": None}, "fedasync": {"buffer_size": None}}
    changes = {
        **own.get(algorithm, {}),
        "algorithm": algorithm,
        "precision": "float64",
        "split.client_test_fraction": 0.2,
    }
    with jax.enable_x64(True):
        for how in ("auto", "never"):
            done = quiet(changes, "learning_rate=0.1,0.3", tmp_path / how, runs_together=how)
            assert done.statuses == {"finished": 6}
    assert {one["trained_together"] for one in summaries(tmp_path / "auto").values()} == {6}
    assert {one["trained_together"] for one in summaries(tmp_path / "never").values()} == {1}
    assert_close(tmp_path / "auto", tmp_path / "never", 1e-9)
    shared = next(iter(summaries(tmp_path / "auto").values()))
    alone = next(iter(summaries(tmp_path / "never").values()))
    assert shared["memory"].keys() == alone["memory"].keys()
    assert shared["memory"]["parts"]["model"] >= 6 * 8 * 650 > alone["memory"]["parts"]["model"]
    assert 0 < shared["memory"]["needed_bytes"] < shared["memory"]["available_bytes"]


@pytest.mark.full
def test_ctrl_c_in_the_middle_and_on(whole, tmp_path):
    folder = tmp_path / "sweep"
    stop = stop_at(6, "fedbuff-seed1")
    done = quiet({}, SWEEP, folder, trackers=[stop])
    assert done.statuses == {"interrupted": 6}
    assert done.left == 6
    kept = folder / "partition.alpha=0.1" / "fedbuff-seed0" / "checkpoints_together"
    assert any(path.name.isdigit() for path in kept.glob("*"))
    begun = []

    def note(path, settings, server_step):
        begun.append((path.name, server_step))
        return at_step(1000, ctrl_c)(path, settings, server_step)

    assert quiet({}, SWEEP, folder, trackers=[note]).statuses == {"finished": 6}
    assert len(begun) == 6
    assert min(step for _, step in begun) >= 4, "they did not go on from the checkpoint"
    assert not kept.exists()
    assert_same(folder, whole)


@pytest.mark.full
def test_without_checkpoints_all_begin_anew(whole, tmp_path):
    folder = tmp_path / "sweep"
    stop = stop_at(6, "fedbuff-seed1")
    quiet({}, SWEEP, folder, trackers=[stop], checkpoint_every=0)
    assert not list(folder.rglob("checkpoints*"))
    quiet({}, SWEEP, folder, checkpoint_every=0)
    assert_same(folder, whole)


@pytest.mark.full
@pytest.mark.parametrize("over", [1, 4])
def test_stopped_between_two_last_files(over, whole, tmp_path, monkeypatch):
    """Those that are over stay as they are, byte by byte; the others train with them once more."""
    folder, ended = tmp_path / "sweep", []
    end = training.Recording.end

    def stop(self, *arguments):
        if len(ended) == over:
            raise KeyboardInterrupt
        ended.append(self.directory.path)
        return end(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(training.Recording, "end", stop)
        with pytest.raises(KeyboardInterrupt):
            quiet({}, SWEEP, folder, checkpoint_every=20)
    assert sum(map(is_closed, {path.parent for path in folder.rglob("config.json")})) == over
    before = {file: file.stat().st_mtime_ns for path in ended for file in path.glob("*.*") if file.is_file()}
    assert quiet({}, SWEEP, folder).statuses == {"finished": 6}
    assert all(file.stat().st_mtime_ns == when for file, when in before.items())
    assert_same(folder, whole)


@pytest.mark.full
def test_one_whose_files_were_removed_meanwhile_begins_anew_with_all(whole, tmp_path):
    """Of runs of unequal length: the shorter one had ended when the checkpoint was written."""
    arms = {
        "short": {"algorithm": "fedbuff", "client_trips": 55},
        "long": {"algorithm": "fedbuff", "client_trips": 65},
    }
    options = {"arms": arms, "runs_together": "auto", "checkpoint_every": 10}
    quiet({"seed": "0"}, {}, tmp_path / "expected", **options)
    stop = stop_at(12, "long-seed0")
    done = quiet({"seed": "0"}, {}, tmp_path / "sweep", trackers=[stop], **options)
    assert done.statuses.get("finished", 0) <= 1
    for file in (tmp_path / "sweep" / "short-seed0").glob("*.*"):
        if file.is_file():
            file.unlink()
    quiet({"seed": "0"}, {}, tmp_path / "sweep", **options)
    assert_same(tmp_path / "sweep", tmp_path / "expected")


@pytest.mark.full
def test_one_that_diverges_is_recorded_and_the_others_go_on(tmp_path):
    for how in ("auto", "never"):
        done = quiet({"seed": "0,1"}, {}, tmp_path / how, arms=WILD, runs_together=how)
        assert done.statuses == {"diverged": 2, "finished": 2}
    together, apart = summaries(tmp_path / "auto"), summaries(tmp_path / "never")
    assert {one["trained_together"] for one in together.values()} == {4}
    for name, one in together.items():
        for field in ("status", "diverged_at_step", "diverged_by_client", "server_steps", "client_trips"):
            assert one.get(field) == apart[name].get(field)
    stop = stop_at(6, "tame-seed1")
    done = quiet({"seed": "0,1"}, {}, tmp_path / "stopped", arms=WILD, trackers=[stop])
    assert done.statuses == {"diverged": 2, "interrupted": 2}
    quiet({"seed": "0,1"}, {}, tmp_path / "stopped", arms=WILD)
    assert_same(tmp_path / "stopped", tmp_path / "auto")


@pytest.mark.full
def test_seeds_and_values_that_are_added_go_with_those_added_at_the_same_time(whole, tmp_path):
    folder = tmp_path / "sweep"
    stop = stop_at(6, "fedbuff-seed1")
    quiet({}, SWEEP, folder)
    before = {file: file.stat().st_mtime_ns for file in folder.rglob("*-seed*/*.*") if file.is_file()}
    quiet({"seed": "2,3,4"}, SWEEP, folder, trackers=[stop_at(6, "fedbuff-seed4")])
    assert quiet({"seed": "3,4"}, SWEEP, folder).statuses == {"finished": 10}
    assert all(file.stat().st_mtime_ns == when for file, when in before.items()), "a finished run was touched"
    found = summaries(folder)
    assert [found[f"partition.alpha=10/fedbuff-seed{n}"]["trained_together"] for n in range(5)] == [6] * 3 + [
        4
    ] * 2
    # Of runs that were requested together, a part trains with all of them.
    other = tmp_path / "other"
    quiet({}, SWEEP, other, trackers=[stop])
    quiet({"seed": "0"}, "partition.alpha=10", other)
    assert_same(other, whole)


@pytest.mark.few_in_full(1)
@pytest.mark.full
@pytest.mark.parametrize("moment", [0.0, 0.3])
def test_killed_and_on(moment, tmp_path, killed_whole):
    """After a kill nothing that can be seen is wrong, and what goes on ends with the same bits."""
    settings, expected = killed_whole
    folder, log = tmp_path / "sweep", tmp_path / "log.txt"
    process = killed.start_sweep(settings, SWEEP, folder, str(log))
    until(log.exists, going=process.is_alive)
    time.sleep(moment)
    process.kill()
    process.join()
    for path in folder.rglob("metrics.jsonl"):
        text = path.read_text()
        assert (expected / path.relative_to(folder)).read_text().startswith(text)
    quiet(settings, SWEEP, folder)
    assert_same(folder, expected)


@pytest.fixture(scope="module")
def killed_whole(tmp_path_factory):
    """(settings, folder) of a longer sweep that nobody stopped."""
    folder = tmp_path_factory.mktemp("long") / "sweep"
    settings = {**SMALL, "client_trips": 3000, "seed": "0,1"}
    quiet(settings, SWEEP, folder)
    return settings, folder


@pytest.mark.gate
def test_two_processes_never_train_the_same_group(tmp_path):
    settings = {**SMALL, "algorithm": "fedbuff,fedasync", "buffer_size": None, "client_trips": 1000}
    folder, logs = tmp_path / "sweep", [tmp_path / "first.txt", tmp_path / "second.txt"]
    both = [killed.start_sweep(settings, SWEEP, folder, str(log)) for log in logs]
    for process in both:
        process.join()
        assert process.exitcode == 0
    begun = [log.read_text().split() if log.exists() else [] for log in logs]
    assert len(begun[0]) + len(begun[1]) == len(set(begun[0]) | set(begun[1])) == 12
    quiet(settings, SWEEP, tmp_path / "alone")
    assert_same(folder, tmp_path / "alone")
    assert {one["trained_together"] for one in summaries(folder).values()} == {6}


@pytest.mark.full
def test_a_batch_with_a_locked_run_is_left_to_its_process(tmp_path):
    cell = tmp_path / "sweep" / "partition.alpha=10" / "fedbuff-seed2"
    cell.mkdir(parents=True)
    quiet({"seed": "7"}, "partition.alpha=100", tmp_path / "sweep")
    with directory_lock(cell) as acquired:
        assert acquired
        outcome = quiet({}, SWEEP, tmp_path / "sweep")
    assert (outcome.statuses, outcome.left) == ({"finished": 1}, 6)
    assert not list((tmp_path / "sweep").rglob(".lock"))
    assert quiet({}, SWEEP, tmp_path / "sweep").statuses == {"finished": 7}


@pytest.mark.full
def test_a_run_that_was_begun_alone_goes_on_alone(tmp_path):
    stop = stop_at(6, "fedbuff-seed1")
    quiet({}, SWEEP, tmp_path / "sweep", runs_together="never", trackers=[stop])
    assert quiet({}, SWEEP, tmp_path / "sweep").statuses == {"finished": 6}
    found = summaries(tmp_path / "sweep")
    assert [found[f"partition.alpha=0.1/fedbuff-seed{n}"]["trained_together"] for n in range(3)] == [1, 1, 6]
    assert not list((tmp_path / "sweep").rglob("checkpoints*"))


@pytest.mark.full
def test_a_checkpoint_of_other_runs_is_told_and_removed(tmp_path, whole):
    stop, said = stop_at(6, "fedbuff-seed1"), []
    folder = tmp_path / "sweep"
    quiet({}, SWEEP, folder, trackers=[stop])
    kept = folder / "partition.alpha=0.1" / "fedbuff-seed0" / "checkpoints_together"
    (state,) = kept.glob("*/state/metadata")
    state.write_text(state.read_text().replace("fedbuff-seed2", "fedbuff-seed9"))
    checksums.write(state.parent.parent)  # it is whole, but of others
    assert quiet({}, SWEEP, folder, show=said.append).statuses == {"finished": 6}
    assert any("is of another run" in line and "start again" in line for line in said)
    assert_same(folder, whole)


@pytest.mark.full
def test_a_group_that_does_not_fit_is_halved(tmp_path, monkeypatch):
    train = training.simulate_group

    def narrow(runs, **options):
        if len(runs) > 3:
            raise GroupTooLarge("the number of runs that go together is 6, but must be fewer")
        return train(runs, **options)

    monkeypatch.setattr(training, "simulate_group", narrow)
    assert quiet({}, SWEEP, tmp_path / "sweep").statuses == {"finished": 6}
    assert {one["trained_together"] for one in summaries(tmp_path / "sweep").values()} == {3}


def batches(changes, sweep, **options):
    """The paths of a sweep's runs, batch by batch."""
    settings = Settings(**{**SMALL, **changes})
    requests = [Request(sweep, grid.algorithm_arms(settings), settings.seed)]
    root = pathlib.Path("nowhere")
    requested = frozenset(p for one in requests for p in directories(root, one.conditions(settings, ())))
    runs = SweepRuns(root, requests, settings, (), requested, **{"share_programs": True, **options})
    return [
        [f"{run.path.parent.name}/{run.path.name}" for run in batch] for batch in runs.groups(DataCache())
    ]


@pytest.mark.full
def test_what_goes_together():
    of = batches({"seed": "0,1,2,3"}, {"learning_rate": [0.1, 0.2, 0.3, 0.4, 0.5]})
    assert len(of) == 4, "those over one schedule go together"
    assert all(len({name.rpartition("-")[2] for name in batch}) == 1 and len(batch) == 5 for batch in of)
    assert [len(batch) for batch in batches({"seed": "0,1,2,3,4,5"}, {"partition.alpha": [0.1, 1.0]})] == [
        6,
        6,
    ]
    assert [len(batch) for batch in batches({}, {"delay.sigma": [0.5, 1.0]})] == [6]
    assert [len(batch) for batch in batches({}, {"delay": ["exponential", "gamma"]})] == [3, 3]
    assert [len(batch) for batch in batches({}, {"buffer_size": [4, 5]})] == [3, 3]
    synthetic = {"dataset": "synthetic", "client_trips": 60}
    assert [len(batch) for batch in batches(synthetic, {"dataset.alpha": [0.5, 1.0]})] == [3, 3], "other data"
    assert {len(batch) for batch in batches({"decompose_steps": 2}, {"partition.alpha": [0.1]})} == {1}
    assert {len(batch) for batch in batches({}, {"partition.alpha": [0.1]}, share_programs=False)} == {1}
    forwards = batches(
        {"algorithm": "fedbuff,fedasync", "buffer_size": None}, {"partition.alpha": [0.1, 1.0]}
    )
    again = batches(
        {"algorithm": "fedbuff,fedasync", "buffer_size": None},
        {"partition.alpha": [0.1, 1.0]},
        backwards=True,
    )
    assert again == forwards[::-1]


def test_an_unknown_policy_is_refused(tmp_path):
    with pytest.raises(SettingError, match="runs_together"):
        quiet({}, SWEEP, tmp_path / "sweep", runs_together="always")
