"""Runs that go on after Ctrl-C, a second Ctrl-C or a full disk, and directories that are refused."""

import json
import resource
import shutil
import subprocess
import sys

import jax
import pytest
from command_line import ROOT, environment
from in_process import assert_refused, command
from run_again import SMALL, assert_same, at_step, checkpoints_in, contents, ctrl_c, quiet
from runs_by_hand import written_so

from jafl.base.errors import SettingError
from jafl.config.settings import Settings
from jafl.data.sources import python_source
from jafl.runs.lock import directory_lock

SEVERAL = Settings(**{**SMALL.__dict__, "algorithm": "fedbuff,aced_8bit", "concurrency": None})


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The directory of SMALL, never stopped."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    quiet(SMALL, folder)
    return folder


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """The directory of SMALL, stopped by Ctrl-C after 15 steps."""
    folder = tmp_path_factory.mktemp("stopped") / "run"
    (outcome,) = quiet(SMALL, folder, trackers=[at_step(15, ctrl_c)])
    assert outcome.status == "interrupted"
    return folder


@pytest.mark.full
def test_after_ctrl_c_it_goes_on_to_the_same_bits(whole, stopped, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(stopped, folder)
    assert checkpoints_in(folder) == [15]
    assert json.loads((folder / "summary.json").read_text())["status"] == "interrupted"
    first_steps = []
    at_start = at_step(0, lambda path: first_steps.append(path))

    def count(path, settings, server_step):
        first_steps.append(server_step)
        return at_start(path, settings, server_step)

    (outcome,) = quiet(SMALL, folder, resume=True, trackers=[count])
    assert first_steps[0] == 15, "the run did not go on where it was"
    assert outcome.status == "finished"
    assert_same(folder, whole)


@pytest.mark.full
def test_the_command_line_goes_on_with_the_settings_that_are_there(whole, stopped, tmp_path):
    shutil.copytree(stopped, tmp_path / "run")
    command = [sys.executable, ROOT / "run.py", "resume", "run", "--pictures=none"]
    ended = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert_same(tmp_path / "run", whole)


def test_data_may_have_moved_meanwhile(whole, stopped, tmp_path):
    shutil.copytree(stopped, tmp_path / "run")
    path = tmp_path / "run" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "data_dir": "where they were"}))
    (outcome,) = quiet(SMALL, tmp_path / "run", resume=True)
    assert outcome.status == "finished"
    assert (tmp_path / "run" / "params.npz").read_bytes() == (whole / "params.npz").read_bytes()


def test_a_run_that_is_over_is_left_as_it_is(whole):
    before = {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in whole.rglob("*")}
    said = []
    (outcome,) = quiet(SMALL, whole, resume=True, show=said.append)
    assert (outcome.status, outcome.history) == ("finished", None)
    assert "Nothing was left to train: the run was over before." in said
    assert {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in whole.rglob("*")} == before


def test_checkpoints_by_trips_are_where_they_were_asked_for(whole, tmp_path):
    seen = {}

    def look(path):
        seen["there"] = checkpoints_in(path)

    quiet(SMALL, tmp_path / "run", checkpoint_every=22, trackers=[at_step(35, look)])
    assert seen["there"] == [28, 33], "the first steps with 110 and 132 trips; the two before are gone"
    assert_same(tmp_path / "run", whole)


@pytest.mark.full
def test_a_comparison_stopped_in_its_second_run_equals_one_that_was_not(tmp_path):
    quiet(SEVERAL, tmp_path / "whole")
    trackers = [at_step(25, ctrl_c, run="aced_8bit-seed0")]
    outcomes = quiet(SEVERAL, tmp_path / "run", trackers=trackers)
    assert [outcome.status for outcome in outcomes] == ["finished", "interrupted"]
    (step,) = checkpoints_in(tmp_path / "run" / "aced_8bit-seed0")
    assert step >= 25
    assert not (tmp_path / "run" / "fedbuff-seed0" / "checkpoints").exists()
    outcomes = quiet(SEVERAL, tmp_path / "run", resume=True)
    assert [outcome.history is None for outcome in outcomes] == [True, False]
    assert_same(tmp_path / "run", tmp_path / "whole")


def test_a_disk_too_full_for_a_line_of_metrics_leaves_whole_lines(whole, tmp_path):
    folder = tmp_path / "run"
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill(path):  # the next line finds room for ten bytes
        limit = (path / "metrics.jsonl").stat().st_size + 10
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, unlimited[1]))

    try:
        with pytest.raises(OSError, match=r"File too large.*metrics\.jsonl"):
            quiet(SMALL, folder, checkpoint_every=40, trackers=[at_step(25, fill)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
    written = (folder / "metrics.jsonl").read_bytes()
    assert written.endswith(b"\n")
    assert (whole / "metrics.jsonl").read_bytes().startswith(written)
    assert not list(folder.glob(".*"))
    assert checkpoints_in(folder) == [10, 20]
    quiet(SMALL, folder, resume=True)
    assert_same(folder, whole)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # orbax leaves a writer behind
def test_a_disk_too_full_for_a_checkpoint_keeps_the_ones_before(whole, tmp_path):
    folder, said = tmp_path / "run", []
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    settings = Settings(**{**SMALL.__dict__, "evaluate_every": 80})  # metrics stay small

    def fill(path):
        resource.setrlimit(resource.RLIMIT_FSIZE, (1500, unlimited[1]))

    try:
        with pytest.raises(OSError):  # at the latest when the parameters are to be written
            quiet(settings, folder, checkpoint_every=60, trackers=[at_step(20, fill)], show=said.append)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
    assert any("could not be written" in line and "earlier checkpoints are kept" in line for line in said)
    assert checkpoints_in(folder) == [15]
    assert not (folder / "params.npz").exists()
    quiet(settings, folder, resume=True)
    quiet(settings, tmp_path / "whole")
    assert_same(folder, tmp_path / "whole")


def test_a_checkpoint_that_cannot_be_read_gives_way_to_the_one_before(whole, stopped, tmp_path):
    folder, said = tmp_path / "run", []
    shutil.copytree(stopped, folder)
    shutil.copytree(folder / "checkpoints" / "15", folder / "checkpoints" / "16")
    (folder / "checkpoints" / "16" / "state" / "metadata").write_text("{")
    quiet(SMALL, folder, resume=True, show=said.append)
    expected = (
        "16 cannot be used: its file state/metadata is not as it was written; the one after server step 15 is"
    )
    assert any(expected in line for line in said)
    assert_same(folder, whole)


# What is refused


def test_other_settings_are_refused_with_the_differences(stopped, tmp_path):
    before = contents(stopped)
    others = Settings(**{**SMALL.__dict__, "learning_rate": 0.7, "partition": "dirichlet(alpha=0.1)"})
    with pytest.raises(SettingError) as refused:
        quiet(others, stopped, resume=True)
    lines = str(refused.value).splitlines()
    assert "  partition.alpha: was 0.3, is 0.1" in lines
    assert "  learning_rate: was 0.3, is 0.7" in lines
    assert len(lines) == 4
    assert contents(stopped) == before


def test_options_of_random_numbers_stand_in_the_files_of_a_run_and_no_other_goes_on_with_it(
    stopped, tmp_path
):
    assert "jax_options" not in json.loads((stopped / "config.json").read_text())  # JAX's defaults
    jax.config.update("jax_threefry_partitionable", False)
    try:
        quiet(SMALL, tmp_path / "run", trackers=[at_step(15, ctrl_c)])
        with pytest.raises(
            SettingError, match="jax_options: was None, is {'jax_threefry_partitionable': False}"
        ):
            quiet(SMALL, stopped, resume=True)
    finally:
        jax.config.update("jax_threefry_partitionable", True)
    with pytest.raises(SettingError, match="jax_options: was {'jax_threefry_partitionable': False}, is None"):
        quiet(SMALL, tmp_path / "run", resume=True)
    Settings.from_file(str(tmp_path / "run" / "config.json"))  # they are no setting of the run


@pytest.mark.full
def test_a_comparison_of_other_seeds_is_refused(tmp_path):
    quiet(SEVERAL, tmp_path / "run", trackers=[at_step(5, ctrl_c)])
    others = Settings(**{**SEVERAL.__dict__, "seed": "0,2"})
    with pytest.raises(SettingError, match="seed: was '0', is '0,2'"):
        quiet(others, tmp_path / "run", resume=True)
    assert not (tmp_path / "run" / "fedbuff-seed2").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"versions": {"jax": "0.0.1"}}, "version of jax: was '0.0.1'"),
        ({"format": 1}, "has format 1, but this version of jafl reads 3 only"),
    ],
    ids=["versions", "format"],
)
def test_other_versions_and_formats_are_refused(changes, message, stopped, tmp_path):
    shutil.copytree(stopped, tmp_path / "run")
    path = tmp_path / "run" / "config.json"
    config = json.loads(path.read_text())
    changes = {
        name: {**config[name], **value} if name == "versions" else value for name, value in changes.items()
    }
    path.write_text(json.dumps({**config, **changes}))
    if "versions" in changes:
        written_so(path.parent)  # another format is told before anything else
    with pytest.raises(SettingError, match=message):
        quiet(SMALL, tmp_path / "run", resume=True)


def test_nothing_to_go_on_with_is_refused(tmp_path):
    with pytest.raises(SettingError, match="holds nothing to go on with"):
        quiet(SMALL, tmp_path / "run", resume=True)
    assert not (tmp_path / "run").exists()


def test_a_run_of_another_process_is_refused(stopped):
    program = (
        "import sys, time; from jafl.runs.lock import directory_lock\n"
        "with directory_lock(sys.argv[1]) as acquired: print(acquired, flush=True); time.sleep(3600)"
    )
    command = [sys.executable, "-c", program, stopped]
    other = subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout.readline() == "True\n"
        for options in ({"resume": True}, {"overwrite": True}):
            with pytest.raises(SettingError, match="another process is running"):
                quiet(SMALL, stopped, **options)
    finally:
        other.kill()
        other.wait()
    with directory_lock(stopped) as acquired:
        assert acquired, "a killed process still holds its lock"
    assert not (stopped / ".lock").exists()


def test_overwriting_removes_checkpoints(stopped, whole, tmp_path):
    shutil.copytree(stopped, tmp_path / "run")
    quiet(SMALL, tmp_path / "run", overwrite=True)
    assert_same(tmp_path / "run", whole)


@pytest.mark.parametrize("typed", ["--processes=2", "--runs_together=never", "--baseline=fedavg"])
def test_what_only_a_sweep_reads_is_refused_where_a_run_goes_on(typed, stopped, tmp_path):
    shutil.copytree(stopped, tmp_path / "run")
    said = command(["resume", "run", typed], tmp_path)
    assert_refused(said, f"{typed[2:].partition('=')[0]} is ... left out where no sweep goes on")


@pytest.mark.full
def test_a_run_on_other_source_files_is_not_resumed(tmp_path, monkeypatch):
    """As with another version of Python, whose standard library has other texts."""
    text = "".join(f"line {number}\n" for number in range(60))

    def library(name, text):
        (tmp_path / name).mkdir()
        for file in range(12):
            (tmp_path / name / f"{file}.py").write_text(text * (file + 1))
        monkeypatch.setattr(python_source, "_folder", lambda: tmp_path / name)

    library("earlier", text)
    settings = Settings(
        algorithm="fedbuff", dataset="python_source", num_clients=4, concurrency=2, buffer_size=2, client_trips=20,
        model="character_lstm(hidden_sizes=[3])", evaluate_every=10, **{"dataset.most_characters": 200},
    )  # fmt: skip
    folder = tmp_path / "run"
    (outcome,) = quiet(settings, folder, trackers=[at_step(5, ctrl_c)])
    assert outcome.status == "interrupted"
    dataset = json.loads((folder / "config.json").read_text())["dataset"]
    assert "text_digest='" in dataset
    written = settings.changed({"dataset": dataset})
    before = contents(folder)
    library("later", text.replace("5", "6"))
    for given in (settings, written):
        with pytest.raises(SettingError, match="text_digest"):
            quiet(given, folder, resume=True)
    assert contents(folder) == before
    monkeypatch.setattr(python_source, "_folder", lambda: tmp_path / "earlier")
    (outcome,) = quiet(settings, folder, resume=True)
    assert outcome.status == "finished"
