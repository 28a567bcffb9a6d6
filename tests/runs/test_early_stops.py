"""Runs of the command line that stop by ``stop_when``: alone, resumed, compared, side by side."""

import dataclasses
import json

import pytest
from run_again import SMALL, assert_same, at_step, ctrl_c, quiet

from jafl.base.errors import SettingError
from jafl.config.experiment import make_experiments
from jafl.runs.directory.reader import read_run
from jafl.sweeps.sweep import run_sweep

STALLS = "test_accuracy stalls 2"


def changed(**changes):
    return dataclasses.replace(SMALL, **changes)


@pytest.fixture(scope="module")
def condition(tmp_path_factory):
    """A condition that SMALL meets before its end, at some evaluation after its first ones."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    (outcome,) = quiet(SMALL, folder)
    losses = [evaluation["test_loss"] for evaluation in outcome.evaluations]
    assert min(losses[:5]) > losses[5]
    assert outcome.summary["stopped_when"] is None
    return f"test_loss<={(min(losses[:5]) + losses[5]) / 2:.6f}"


@pytest.fixture(scope="module")
def stopped(tmp_path_factory, condition):
    folder = tmp_path_factory.mktemp("stopped") / "run"
    (outcome,) = quiet(changed(stop_when=condition), folder)
    assert (outcome.status, outcome.history.server_steps) == (
        "finished",
        outcome.evaluations[-1]["server_step"],
    )
    assert len(outcome.evaluations) == 6
    return folder


@pytest.mark.full
def test_the_summary_says_why_it_stopped_and_it_is_over(stopped, condition):
    summary = json.loads((stopped / "summary.json").read_text())
    assert (summary["status"], summary["stopped_when"]) == ("finished", condition)
    assert summary["server_steps"] == summary["final"]["server_step"] < 39
    assert read_run(stopped).config["stop_when"] == condition
    before = {path.name: path.read_bytes() for path in stopped.iterdir() if path.is_file()}
    (outcome,) = quiet(changed(stop_when=condition), stopped, resume=True)
    assert (outcome.status, outcome.history) == ("finished", None)
    assert {path.name: path.read_bytes() for path in stopped.iterdir() if path.is_file()} == before


@pytest.mark.full
def test_a_run_that_is_resumed_stops_where_it_would_have(stopped, condition, tmp_path):
    folder, settings = tmp_path / "run", changed(stop_when=condition)
    (outcome,) = quiet(settings, folder, trackers=[at_step(8, ctrl_c)])
    assert (outcome.status, outcome.summary["stopped_when"]) == ("interrupted", None)
    with pytest.raises(SettingError, match="stop_when: was"):
        quiet(changed(stop_when=STALLS), folder, resume=True)
    (outcome,) = quiet(settings, folder, resume=True)
    assert outcome.status == "finished"
    assert_same(folder, stopped)


def test_a_larger_budget_does_not_change_where_it_stopped(stopped, condition):
    with pytest.raises(SettingError, match="has stopped by itself, by stop_when='test_loss<="):
        quiet(changed(stop_when=condition, client_trips=200), stopped, resume=True)


@pytest.mark.full
def test_runs_of_a_sweep_stop_each_by_itself_alone_and_side_by_side(condition, tmp_path):
    ends = {}
    for together in ("auto", "never"):
        settings = changed(stop_when=condition, seed="0,1")
        options = {"show": lambda line: None, "pictures": False, "progress": False, "runs_together": together}
        run_sweep(settings, "learning_rate=0.02,2.0", tmp_path / together, **options)
        ends[together] = {
            str(path.parent.relative_to(tmp_path / together)): json.loads(path.read_text())
            for path in (tmp_path / together).rglob("*seed*/summary.json")
        }
    assert {end["trained_together"] for end in ends["auto"].values()} != {1}
    for name, end in ends["never"].items():
        other = ends["auto"][name]
        assert end["status"] == other["status"] == "finished"
        for key in ("stopped_when", "server_steps"):
            assert end[key] == other[key], (name, key)
    assert len({end["server_steps"] for end in ends["never"].values()}) > 1


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        (
            {"stop_when": "test_acuracy>=0.9"},
            "test_accuracy, test_loss, train_loss. Did you mean 'test_accuracy'",
        ),
        ({"stop_when": "validation_accuracy>=0.9"}, "test_accuracy, test_loss, train_loss"),
        ({"stop_when": "test_accuracy>=nan"}, "finite number"),
        (
            {"stop_when": "train_loss<=1", "privacy": "private(clip_norm=1, noise_multiplier=1, delta=1e-3)"},
            "In a private run",
        ),
    ],
)
def test_what_cannot_stop_a_run_is_refused_before_any_trains(changes, part):
    with pytest.raises(SettingError, match=part) as refused:
        make_experiments(changed(**changes))
    assert refused.value.setting == "stop_when"


def test_the_best_parameters_are_left_beside_the_last_ones_and_resumed(tmp_path):
    settings = changed(keep="best,last", learning_rate=30.0)
    (outcome,) = quiet(settings, tmp_path / "whole")
    best_params, accuracy = outcome.summary["best_params"], [e["test_accuracy"] for e in outcome.evaluations]
    best = outcome.evaluations[accuracy.index(max(accuracy))]
    assert best_params == {"server_step": best["server_step"], "by": "test_accuracy", "value": max(accuracy)}
    assert "best_params.npz" in json.loads((tmp_path / "whole" / "summary.json").read_text())["digests"]
    assert 0 < best["server_step"] < 38
    (cut,) = quiet(settings, tmp_path / "run", trackers=[at_step(best["server_step"], ctrl_c)])
    assert cut.status == "interrupted"
    quiet(settings, tmp_path / "run", resume=True)
    assert_same(tmp_path / "run", tmp_path / "whole")
    (tmp_path / "run" / "best_params.npz").write_bytes((tmp_path / "run" / "params.npz").read_bytes())
    with pytest.raises(SettingError, match="best_params.npz has changed"):
        read_run(tmp_path / "run")
    with pytest.raises(SettingError, match="keep is 'best', but must be"):
        make_experiments(changed(keep="best"))


def test_the_best_is_chosen_on_validation_examples_where_there_are_some():
    (experiment,) = make_experiments(changed(keep="best,last", split="split(validation_fraction=0.1)"))
    assert experiment.run.keep_best == "validation_accuracy"
