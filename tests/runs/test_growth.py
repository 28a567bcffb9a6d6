"""Runs that go on with a larger budget, or by another target: the bits of a run that had it from the start."""

import dataclasses
import json
import shutil

import pytest
from quick_compilation import quick_compilation  # noqa: F401
from run_again import SMALL, assert_same, at_step, contents, ctrl_c, quiet
from run_files import read_json
from runs_by_hand import written_so

from jafl.base.errors import SettingError
from jafl.runs.recording.recorder import Recording
from jafl.sweeps.sweep import run_sweep


def changed(settings=SMALL, **changes):
    return dataclasses.replace(settings, **changes)


def grown(settings, folder, tmp_path, *, name="whole", **larger):
    """Resumes ``folder`` with a larger budget, and compares it with a run that had it from the start."""
    said = []
    after = changed(settings, **larger)
    quiet(after, folder, resume=True, show=said.append)
    quiet(after, tmp_path / name)
    assert_same(folder, tmp_path / name)
    return " ".join(said)


def stopped_at(server_step, settings, folder, monkeypatch):
    """Resumes ``folder`` until an evaluation, before what it holds is replaced; returns what was shown."""
    real, said = Recording.evaluated, []

    def evaluated(self, evaluation):
        real(self, evaluation)
        if evaluation["server_step"] == server_step:
            ctrl_c(None)

    with monkeypatch.context() as patch:
        patch.setattr(Recording, "evaluated", evaluated)
        (outcome,) = quiet(settings, folder, resume=True, show=said.append)
    assert outcome.status == "interrupted"
    return said


@pytest.mark.full
def test_a_stopped_run_trains_again(tmp_path):
    settings, folder = changed(keep="best,last", evaluate_clients=True), tmp_path / "run"
    quiet(settings, folder, trackers=[at_step(10, ctrl_c)])
    said = grown(settings, folder, tmp_path, client_trips=400)
    assert f"trains again from the start. What was measured stays in {folder} until" in said
    assert "to server step 10." in said


@pytest.mark.full
@pytest.mark.parametrize("before", ["finished", pytest.param("stopped", marks=pytest.mark.full)])
def test_a_run_is_kept_until_the_new_one_has_come_as_far(before, tmp_path, monkeypatch):
    """Its checkpoints, too: it can go on with the smaller budget."""
    folder, after = tmp_path / "run", changed(client_trips=400)
    quiet(SMALL, folder, trackers=[at_step(35, ctrl_c)] if before == "stopped" else [])
    old = contents(folder)
    stopped = stopped_at(30, after, folder, monkeypatch)
    assert "The same command goes on." in stopped
    there = contents(folder)
    assert {name: there[name] for name in there if not name.startswith(".")} == old
    if before == "stopped":
        shutil.copytree(folder, tmp_path / "smaller")
        quiet(SMALL, tmp_path / "smaller", resume=True)
        quiet(SMALL, tmp_path / "whole smaller")
        shutil.rmtree(tmp_path / "smaller" / ".checkpoints_of_the_new_run")
        assert_same(tmp_path / "smaller", tmp_path / "whole smaller")
    said = grown(SMALL, folder, tmp_path, client_trips=400)
    assert "goes on with its larger budget" in said and "start again" not in said
    assert (folder / "metrics.jsonl").read_bytes().startswith(old["metrics.jsonl"])


@pytest.mark.full
def test_checkpoints_of_another_larger_budget_are_not_used(tmp_path, monkeypatch):
    quiet(SMALL, tmp_path / "run")
    stopped_at(30, changed(client_trips=400), tmp_path / "run", monkeypatch)
    said = grown(SMALL, tmp_path / "run", tmp_path, client_trips=600)
    assert "client_trips: was 400, is 600\n" in said
    assert "They are removed, and these runs start again." in said


@pytest.mark.full
def test_a_comparison_goes_on_run_by_run(tmp_path):
    several = changed(algorithm="fedbuff,fedasync", buffer_size=None)
    quiet(several, tmp_path / "run", trackers=[at_step(50, ctrl_c, run="fedasync-seed0")])
    grown(several, tmp_path / "run", tmp_path, client_trips=400)
    assert read_json(tmp_path / "run" / "comparison.json")["protocol"].endswith("client_trips=400)")


@pytest.mark.full
def test_growth_that_is_stopped_goes_on_and_can_grow_again(tmp_path):
    folder = tmp_path / "run"
    quiet(SMALL, folder, trackers=[at_step(10, ctrl_c)])
    (outcome,) = quiet(changed(client_trips=400), folder, resume=True, trackers=[at_step(60, ctrl_c)])
    assert outcome.status == "interrupted"
    grown(SMALL, folder, tmp_path, client_trips=600)


@pytest.mark.full
def test_runs_of_a_comparison_are_all_checked_before_the_first_is_touched(tmp_path):
    """Of 160 trips FedBuff makes 40 server steps, and FedAsync 160: 50 steps are more for the first only."""
    several, folder = changed(algorithm="fedbuff,fedasync", buffer_size=None), tmp_path / "run"
    quiet(several, folder)
    before = contents(folder)
    with pytest.raises(SettingError, match="fedasync-seed0 has 160 server steps, but the new budget"):
        quiet(changed(several, client_trips=None, server_steps=50), folder, resume=True)
    assert contents(folder) == before
    quiet(several, folder, resume=True)
    assert contents(folder) == before


@pytest.mark.full
def test_a_run_that_trains_again_has_the_spacing_of_its_new_budget(tmp_path):
    settings = changed(evaluate_every=None)
    quiet(settings, tmp_path / "run")
    grown(settings, tmp_path / "run", tmp_path, client_trips=400)
    assert read_json(tmp_path / "run" / "config.json")["evaluate_every"] is None


# Another target


def test_another_target_of_a_finished_run_is_read_off_its_evaluations(tmp_path):
    folder = tmp_path / "run"
    quiet(changed(target_accuracy=0.99), folder)
    assert read_json(folder / "summary.json")["trips_to_target"] is None
    params = (folder / "params.npz").stat().st_mtime_ns
    quiet(changed(target_accuracy=0.5), folder, resume=True)
    assert (folder / "params.npz").stat().st_mtime_ns == params, "nothing is trained"
    quiet(changed(target_accuracy=0.5), tmp_path / "whole")
    assert_same(folder, tmp_path / "whole")


@pytest.mark.full
def test_a_stopped_run_goes_on_by_another_target(tmp_path):
    folder = tmp_path / "run"
    quiet(SMALL, folder, trackers=[at_step(15, ctrl_c)])
    quiet(changed(target_accuracy=0.5), folder, resume=True)
    quiet(changed(target_accuracy=0.5), tmp_path / "whole")
    assert_same(folder, tmp_path / "whole")


@pytest.mark.full
def test_another_target_of_a_comparison(tmp_path):
    several = changed(algorithm="fedbuff,fedasync", buffer_size=None, target_accuracy=0.99)
    quiet(several, tmp_path / "run")
    quiet(changed(several, target_accuracy=0.5), tmp_path / "run", resume=True)
    quiet(changed(several, target_accuracy=0.5), tmp_path / "whole")
    assert_same(tmp_path / "run", tmp_path / "whole")


@pytest.mark.full
def test_another_target_of_a_sweep(tmp_path):
    """Of runs that are over, and of one that was stopped; a new value comes with it."""
    settings = changed(target_accuracy=0.99, client_trips=80)
    how = {"show": lambda line: None, "pictures": False, "runs_together": "never"}
    stop = at_step(10, ctrl_c)
    run_sweep(settings, "delay.sigma=0.5,1", tmp_path / "sweep", trackers=[stop], **how)
    again = changed(settings, target_accuracy=0.5)
    run_sweep(again, "delay.sigma=0.5,1", tmp_path / "sweep", **how)
    run_sweep(changed(settings, target_accuracy=0.4), "delay.sigma=0.5,1,2", tmp_path / "sweep", **how)
    run_sweep(changed(settings, target_accuracy=0.4), "delay.sigma=0.5,1", tmp_path / "whole", **how)
    run_sweep(changed(settings, target_accuracy=0.4), "delay.sigma=0.5,1,2", tmp_path / "whole", **how)
    assert_same(tmp_path / "sweep", tmp_path / "whole")
    assert read_json(tmp_path / "sweep" / "sweep.json")["target_accuracy"] == 0.4


@pytest.mark.full
def test_targets_of_a_sweeps_own_stay(tmp_path):
    how = {"show": lambda line: None, "pictures": False}
    settings = changed(client_trips=80)
    run_sweep(settings, "target_accuracy=0.5,0.9", tmp_path / "sweep", **how)
    before = contents(tmp_path / "sweep")
    outcome = run_sweep(settings, "target_accuracy=0.5,0.9", tmp_path / "sweep", **how)
    assert contents(tmp_path / "sweep") == before
    assert [row["condition"]["target_accuracy"] for row in outcome.rows] == [0.5, 0.9]


# Refused


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished") / "run"
    quiet(SMALL, folder)
    return folder


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"client_trips": 80}, "client_trips is 80, but must be at least 160 to go on with this run"),
        (
            {"client_trips": None, "server_steps": 10},
            "has 40 server steps, but the new budget is enough for 10",
        ),
        ({"client_trips": 400, "learning_rate": 0.7}, "learning_rate: was 0.3, is 0.7"),
        ({"client_trips": 400, "evaluate_every": 10}, "evaluate_every: was 20, is 10"),
    ],
)
def test_what_is_no_growth_is_refused_and_nothing_is_lost(changes, message, finished):
    before = contents(finished)
    with pytest.raises(SettingError) as refused:
        quiet(changed(**changes), finished, resume=True)
    assert message in str(refused.value)
    assert contents(finished) == before


def test_a_run_that_has_diverged_does_not_go_on(finished, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    summary = read_json(folder / "summary.json")
    (folder / "summary.json").write_text(json.dumps({**summary, "status": "diverged"}))
    written_so(folder)
    with pytest.raises(SettingError, match="holds a run that has diverged"):
        quiet(changed(client_trips=400), folder, resume=True)
