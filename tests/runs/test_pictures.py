"""Which pictures a command draws, and that nothing is lost where drawing fails or is cut short."""

import dataclasses

import numpy as np
import pytest
from command_line import python
from run_files import read_json

from jafl import plots
from jafl.base.errors import SettingError
from jafl.config.settings import Settings
from jafl.runs.runner import dry_run, run
from jafl.sweeps.sweep import run_sweep

SMALL = Settings(
    algorithm="fedbuff", num_clients=12, concurrency=6, buffer_size=3, client_trips=60, model="softmax"
)
TWO = dataclasses.replace(SMALL, algorithm="fedbuff,fedavg")
OF_A_RUN = {"accuracy", "label_split", "timeline", "participation", "staleness"}


def drawn(folder):
    return {path.stem for path in folder.glob("*.png")}


def quiet(settings, folder, **options):
    return run(settings, folder, **{"show": lambda line: None, "progress": False, **options})


def fails(*_, **__):
    raise ZeroDivisionError("no picture today")


@pytest.fixture(scope="module")
def all_of_one(tmp_path_factory):
    """The folder of a run that drew everything."""
    folder = tmp_path_factory.mktemp("all") / "run"
    quiet(SMALL, folder, pictures="all")
    return folder


@pytest.mark.full
def test_a_run_draws_the_few_that_are_looked_at_unless_others_are_asked_for(all_of_one, tmp_path):
    quiet(SMALL, tmp_path / "few")
    assert drawn(tmp_path / "few") == OF_A_RUN
    quiet(SMALL, tmp_path / "none", pictures="none")
    assert not drawn(tmp_path / "none")
    assert drawn(all_of_one) > OF_A_RUN | {"influence", "labels_seen"}
    for name in OF_A_RUN:
        few, everything = ((folder / f"{name}.png").read_bytes() for folder in (tmp_path / "few", all_of_one))
        assert few == everything, name


@pytest.mark.full
def test_no_picture_shows_a_constant(all_of_one):
    assert not drawn(all_of_one) & {"in_flight", "participating_examples"}, (
        "six always train, nothing is lost"
    )


@pytest.mark.full
def test_a_comparison_draws_its_own_in_place_of_its_runs(tmp_path):
    outcomes = quiet(TWO, tmp_path / "few")
    assert drawn(tmp_path / "few") == {"accuracy", "label_split", "staleness", "in_flight"}
    assert not drawn(tmp_path / "few" / "fedbuff-seed0") and not drawn(tmp_path / "few" / "fedavg-seed0")
    assert not any(outcome.undrawn for outcome in outcomes)
    quiet(TWO, tmp_path / "few", resume=True, pictures="all")  # draws what is missing, and trains nothing
    assert drawn(tmp_path / "few" / "fedbuff-seed0") > OF_A_RUN
    assert "staleness" not in drawn(tmp_path / "few" / "fedavg-seed0"), "every update is fresh"
    quiet(TWO, tmp_path / "none", pictures="none")
    assert not list((tmp_path / "none").rglob("*.png"))


@pytest.mark.full
def test_what_is_drawn_later_from_the_files_is_the_same(all_of_one, tmp_path):
    quiet(SMALL, tmp_path / "run", pictures="none")
    before = (tmp_path / "run" / "summary.json").read_bytes()
    quiet(SMALL, tmp_path / "run", resume=True, pictures="all")
    assert (tmp_path / "run" / "summary.json").read_bytes() == before
    assert drawn(tmp_path / "run") == drawn(all_of_one)
    for name in drawn(all_of_one):
        assert (tmp_path / "run" / f"{name}.png").read_bytes() == (all_of_one / f"{name}.png").read_bytes(), (
            name
        )


@pytest.mark.few_in_full(1)
@pytest.mark.parametrize("algorithm", ["fedstaleweight", "ca2fl", "wkafl"])
@pytest.mark.full
def test_weights_of_other_rules_are_drawn_from_the_files_too(algorithm, tmp_path):
    settings = dataclasses.replace(SMALL, algorithm=algorithm)
    quiet(settings, tmp_path / "at_once", pictures="all")
    quiet(settings, tmp_path / "later", pictures="none")
    quiet(settings, tmp_path / "later", resume=True, pictures="all")
    for name in drawn(tmp_path / "at_once"):
        of_both = [(tmp_path / folder / f"{name}.png").read_bytes() for folder in ("at_once", "later")]
        assert of_both[0] == of_both[1], name


@pytest.mark.full
def test_a_picture_that_cannot_be_drawn_costs_neither_the_run_nor_the_others(tmp_path, monkeypatch):
    monkeypatch.setattr(plots, "participation", fails)
    said = []
    (outcome,) = quiet(SMALL, tmp_path / "run", show=said.append)
    assert outcome.status == "finished"
    assert read_json(tmp_path / "run" / "summary.json")["status"] == "finished"
    assert drawn(tmp_path / "run") == OF_A_RUN - {"participation"}
    sentence = f"{tmp_path / 'run' / 'participation'}.png was not drawn: ZeroDivisionError: no picture today"
    assert outcome.undrawn == (sentence,) and sentence in said
    monkeypatch.undo()
    (outcome,) = quiet(SMALL, tmp_path / "run", resume=True)
    assert not outcome.undrawn and drawn(tmp_path / "run") == OF_A_RUN


@pytest.mark.full
def test_a_comparison_tells_of_its_own_pictures_too(tmp_path, monkeypatch):
    monkeypatch.setattr(plots, "accuracy_panels", fails)
    outcomes = quiet(TWO, tmp_path / "runs")
    assert [len(outcome.undrawn) for outcome in outcomes] == [0, 1]
    assert read_json(tmp_path / "runs" / "summary.json")["table"]
    assert drawn(tmp_path / "runs") == {"label_split", "staleness", "in_flight"}


@pytest.mark.full
def test_who_is_killed_while_drawing_has_a_run_that_is_over(tmp_path, monkeypatch):
    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(plots, "png", killed)
    with pytest.raises(KeyboardInterrupt):
        quiet(SMALL, tmp_path / "run")
    assert read_json(tmp_path / "run" / "summary.json")["status"] == "finished"
    monkeypatch.undo()
    (outcome,) = quiet(SMALL, tmp_path / "run", resume=True)
    assert outcome.history is None, "nothing is trained again"
    assert drawn(tmp_path / "run") == OF_A_RUN


def test_a_full_disk_is_no_failed_picture(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("jafl.runs.recording.pictures._write", full)
    with pytest.raises(OSError, match="No space left"):
        quiet(SMALL, tmp_path / "run")


@pytest.mark.full
def test_a_dry_run_draws_few_and_returns_what_could_not_be_drawn(tmp_path, monkeypatch):
    assert dry_run(SMALL, tmp_path / "dry", show=lambda line: None) == []
    assert drawn(tmp_path / "dry") == OF_A_RUN - {"accuracy"}
    monkeypatch.setattr(plots, "timeline", fails)
    (sentence,) = dry_run(SMALL, tmp_path / "again", show=lambda line: None, pictures="all")
    assert "timeline.png was not drawn" in sentence and drawn(tmp_path / "again") > {
        "staleness",
        "labels_seen",
    }


@pytest.mark.full
def test_a_sweep_draws_its_own(tmp_path, monkeypatch):
    options = {"show": lambda line: None, "progress": False}
    outcome = run_sweep(SMALL, "partition.alpha=0.1,1", tmp_path / "sweep", **options)
    assert not outcome.undrawn and drawn(tmp_path / "sweep") == {"heat_map"}
    folder = tmp_path / "sweep" / "partition.alpha=1"
    assert drawn(folder) == {"accuracy"} and not drawn(folder / "fedbuff-seed0")
    monkeypatch.setattr(plots, "accuracy_panels", fails)
    outcome = run_sweep(SMALL, "partition.alpha=0.1,1", tmp_path / "sweep", **options)
    assert len(outcome.undrawn) == 2 and outcome.left == 0


@pytest.mark.parametrize("pictures", ["some", 3, ""])
def test_another_choice_is_refused(pictures, tmp_path):
    with pytest.raises(SettingError, match="pictures is .*, but must be one of all, few, none"):
        quiet(SMALL, tmp_path / "run", pictures=pictures)
    assert not (tmp_path / "run").exists()


def test_constant_is_but_for_rounding():
    assert plots.is_constant(np.array([0.1, 0.1 * (1 + 1e-9)])) and plots.is_constant(np.zeros(0))
    assert not plots.is_constant(np.array([0.1, 0.1001]))


FAILING = """
import sys
from jafl import plots
from jafl.cli import command_line

def fails(*_, **__):
    raise ZeroDivisionError("no picture today")

plots.timeline = fails
command_line.start()
"""


@pytest.mark.full
def test_a_picture_that_was_not_drawn_is_no_status_0(tmp_path):
    flags = [
        "--algorithm=fedbuff",
        "--num_clients=12",
        "--concurrency=6",
        "--client_trips=60",
        "--model=softmax",
    ]
    for more in ([], ["plan"]):
        ended = python(
            "-c", FAILING, *more, *flags, f"--output_dir={tmp_path / 'run'}{len(more)}", folder=tmp_path
        )
        assert ended.returncode == 3, ended.stderr
        assert "timeline.png was not drawn: ZeroDivisionError: no picture today" in ended.stdout
    assert read_json(tmp_path / "run0" / "summary.json")["status"] == "finished"
