"""Runs that go on with a larger budget, or by another target: the bits of a run that had it from the start."""

import contextlib
import dataclasses
import json
import shutil
from unittest import mock

import numpy as np
import pytest
from quick_compilation import quick_compilation  # noqa: F401
from run_again import SMALL, assert_same, at_step, checkpoints_in, contents, ctrl_c, quiet
from run_files import read_json, read_lines
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


@contextlib.contextmanager
def interrupted_after(server_step):
    """Runs are interrupted when they have recorded the evaluation of this server step."""
    real = Recording.evaluated

    def evaluated(self, evaluation):
        real(self, evaluation)
        if evaluation["server_step"] == server_step:
            ctrl_c(None)

    with mock.patch.object(Recording, "evaluated", evaluated):
        yield


GOES_ON = "goes on from server step {} with the larger budget"
AGAIN = "trains again from the start, because "
REMEMBERS = AGAIN + "its rule remembers the clients' updates"
ROUNDS = {"buffer_size": None, "concurrency": None}
FAR = {"delay": "groups", "delay_groups": "11:uniform(1,2);1:uniform(60,61)", "delay_draw": "per_trip"}
# {name: (settings, the server step at which it is stopped, the larger budget, what is said)}. The first ones differ
# in what the server keeps from step to step. A client that is under way when the smaller budget ends trains from a
# version that nobody has kept.
GROWN = {
    "fedbuff": ({}, 10, 400, GOES_ON),
    "fedasync": ({"algorithm": "fedasync", "buffer_size": 1}, 10, 400, GOES_ON),
    "server adam": ({"server_optimizer": "adam"}, 10, 400, GOES_ON),
    "tied times": ({"delay": "constant"}, 10, 400, GOES_ON),
    "another law and seed": ({"delay": "pareto", "seed": "7", "delay_draw": "per_trip"}, 10, 400, GOES_ON),
    "synchronous": (
        {**ROUNDS, "algorithm": "fedavgm", "cohort_size": 4, "over_selection": 0.5}, 10, 400, GOES_ON
    ),
    "lost trips": ({"failure_rate": 0.2}, 10, 400, GOES_ON),
    "ace": ({**ROUNDS, "algorithm": "ace"}, 4, 400, REMEMBERS),
    "ca2fl": ({**ROUNDS, "algorithm": "ca2fl"}, 4, 400, REMEMBERS),
    "near the end": (FAR, 35, 1000, "from which a client trains whose trip ends beyond the smaller budget"),
    "finished": ({}, None, 400, AGAIN + "it had ended, and the checkpoints of a run"),
}  # fmt: skip


@pytest.mark.full
@pytest.mark.parametrize(("changes", "step", "client_trips", "words"), GROWN.values(), ids=GROWN)
def test_a_run_goes_on_from_its_checkpoint_or_says_why_it_does_not(
    changes, step, client_trips, words, tmp_path
):
    settings, folder = changed(**changes), tmp_path / "run"
    (outcome,) = quiet(settings, folder, trackers=[at_step(step, ctrl_c)] if step else [])
    assert outcome.status == ("interrupted" if step else "finished")
    checkpoints = checkpoints_in(folder)
    said = grown(settings, folder, tmp_path, client_trips=client_trips)
    assert words.format(*checkpoints) in said


def test_a_finished_run_is_kept_until_the_new_one_has_come_as_far(tmp_path):
    folder, after = tmp_path / "run", changed(client_trips=400)
    quiet(SMALL, folder)
    before = contents(folder)
    with interrupted_after(30):
        stopped = []
        (outcome,) = quiet(after, folder, resume=True, show=stopped.append)
    assert outcome.status == "interrupted"
    assert "The same command goes on." in stopped
    there = contents(folder)
    assert {name: there[name] for name in there if not name.startswith(".")} == before
    said = []
    quiet(after, folder, resume=True, show=said.append)
    assert "goes on with the larger budget, from where it was stopped" in " ".join(said)
    quiet(after, tmp_path / "whole")
    assert_same(folder, tmp_path / "whole")
    assert (folder / "metrics.jsonl").read_bytes().startswith(before["metrics.jsonl"])


@pytest.mark.full
def test_the_default_spacing_of_evaluations_stays(tmp_path):
    settings = changed(evaluate_every=None, client_trips=400)
    quiet(settings, tmp_path / "run", trackers=[at_step(50, ctrl_c)])
    quiet(changed(settings, client_trips=800), tmp_path / "run", resume=True)
    assert read_json(tmp_path / "run" / "config.json")["evaluate_every"] == 4
    quiet(changed(settings, client_trips=800, evaluate_every=4), tmp_path / "whole")
    assert_same(tmp_path / "run", tmp_path / "whole")


@pytest.mark.full
def test_evaluations_that_do_not_fit_stay_where_they_were_made(tmp_path):
    settings = changed(evaluate_every=None, client_trips=None, server_steps=30)
    quiet(settings, tmp_path / "run", trackers=[at_step(20, ctrl_c)])
    before = read_lines(tmp_path / "run" / "metrics.jsonl")
    said = []
    quiet(changed(settings, server_steps=310), tmp_path / "run", resume=True, show=said.append)
    assert "Evaluations that were made stay where the smaller budget put them." in said
    assert read_lines(tmp_path / "run" / "metrics.jsonl")[: len(before)] == before
    quiet(changed(settings, server_steps=310), tmp_path / "whole")
    for name in ("params.npz", "reports.npz", "schedule.npz"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


@pytest.mark.full
def test_a_comparison_goes_on_run_by_run(tmp_path):
    several = changed(algorithm="fedbuff,fedasync", buffer_size=None)
    quiet(several, tmp_path / "run", trackers=[at_step(50, ctrl_c, run="fedasync-seed0")])
    grown(several, tmp_path / "run", tmp_path, client_trips=400)
    assert read_json(tmp_path / "run" / "comparison.json")["client_trips"] == 400


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


def test_a_run_that_trains_again_has_the_spacing_of_its_new_budget(tmp_path):
    settings = changed(evaluate_every=None)
    quiet(settings, tmp_path / "run")
    grown(settings, tmp_path / "run", tmp_path, client_trips=400)
    assert read_json(tmp_path / "run" / "config.json")["evaluate_every"] is None


@pytest.mark.full
def test_runs_of_a_comparison_have_spacings_of_their_own(tmp_path):
    """One trains again, the other goes on; that is stopped before and after it takes the place of what was there."""
    several = changed(algorithm="fedbuff,fedasync", buffer_size=None, evaluate_every=None, client_trips=200)
    after, folder = changed(several, client_trips=800), tmp_path / "run"
    quiet(several, folder, trackers=[at_step(50, ctrl_c, run="fedasync-seed0")])
    said = []
    quiet(after, folder, resume=True, show=said.append, trackers=[at_step(300, ctrl_c, run="fedasync-seed0")])
    assert any("fedasync-seed0 goes on from server step 50" in line for line in said)
    assert any("stays evaluated every 2 client trips" in line for line in said)
    quiet(after, folder, resume=True)
    assert read_json(folder / "comparison.json")["evaluate_every"] is None
    quiet(after, tmp_path / "whole")
    assert_same(folder / "fedbuff-seed0", tmp_path / "whole" / "fedbuff-seed0")
    one = changed(after, algorithm="fedasync", buffer_size=1, evaluate_every=2)
    quiet(one, tmp_path / "alone")
    for name in ("params.npz", "metrics.jsonl", "schedule.npz"):
        assert (folder / "fedasync-seed0" / name).read_bytes() == (tmp_path / "alone" / name).read_bytes()
    quiet(changed(after, client_trips=1200), folder, resume=True)
    assert read_json(folder / "fedasync-seed0" / "config.json")["evaluate_every"] is None


@pytest.mark.full
def test_growth_that_is_stopped_keeps_the_spacing_that_it_began_with(tmp_path):
    settings, folder = changed(evaluate_every=None), tmp_path / "run"
    quiet(settings, folder)
    with interrupted_after(30):
        quiet(changed(settings, client_trips=400), folder, resume=True)
    said = grown(settings, folder, tmp_path, client_trips=400)
    assert "from where it was stopped" in said
    assert "begin anew" not in said


@pytest.mark.full
def test_growth_from_a_checkpoint_that_is_stopped_keeps_the_old_spacing(tmp_path):
    """The run was killed after its checkpoint, so that the new one waits until it has measured as much."""

    def killed(_):
        raise OSError("killed")

    settings, folder = changed(evaluate_every=None, client_trips=300), tmp_path / "run"
    with pytest.raises(OSError, match="killed"):
        quiet(settings, folder, trackers=[at_step(30, killed)], checkpoint_every=80)

    after, said = changed(settings, client_trips=400), []
    with interrupted_after(25):
        quiet(after, folder, resume=True, show=said.append)
    assert any("goes on from server step 20 with the larger budget" in line for line in said)
    assert read_json(folder / "config.json")["client_trips"] == 300, "the new run waits"
    said.clear()
    quiet(after, folder, resume=True, show=said.append)
    assert any("from where it was stopped" in line for line in said)
    assert not any("begin anew" in line for line in said)
    quiet(changed(after, evaluate_every=3), tmp_path / "whole")
    assert_same(folder, tmp_path / "whole")


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
    run_sweep(settings, "delay_sigma=0.5,1", tmp_path / "sweep", trackers=[stop], **how)
    again = changed(settings, target_accuracy=0.5)
    run_sweep(again, "delay_sigma=0.5,1", tmp_path / "sweep", **how)
    run_sweep(changed(settings, target_accuracy=0.4), "delay_sigma=0.5,1,2", tmp_path / "sweep", **how)
    run_sweep(changed(settings, target_accuracy=0.4), "delay_sigma=0.5,1", tmp_path / "whole", **how)
    run_sweep(changed(settings, target_accuracy=0.4), "delay_sigma=0.5,1,2", tmp_path / "whole", **how)
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


@pytest.mark.full
def test_a_schedule_that_is_another_one_from_the_start_is_told(finished, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    with np.load(folder / "schedule.npz") as content:
        arrays = dict(content)
    arrays["client"][3] += 1
    np.savez(folder / "schedule.npz", **arrays)
    written_so(folder)
    said = []
    quiet(changed(client_trips=400), folder, resume=True, show=said.append)
    assert any("its events are others from the start on" in line for line in said)
