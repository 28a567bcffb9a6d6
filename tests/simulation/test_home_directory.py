"""Paths from Python that begin with ``~``: the home directory, as in a shell."""

import pathlib

import jax
import numpy as np
import pytest
from small_runs import small_parts, stopping_at

import jafl
from jafl.base.paths import given_path
from jafl.config.settings import Settings
from jafl.data.sources import prepared
from jafl.runs import runner
from jafl.runs.directory.reader import read_run
from jafl.sweeps.sweep import run_sweep

DURATIONS = "client,duration\n0,1.5\n"


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    yield tmp_path / "home"
    assert not (tmp_path / "~").exists()


def test_histories_and_checkpoints_lie_in_the_home_directory(home):
    history = jafl.simulate(**small_parts(), checkpoints="~/kept", **stopping_at(1))
    history.save("~/run.npz")
    assert any((home / "kept").iterdir())
    assert jafl.History.load("~/run.npz").evaluations == history.evaluations


def test_pictures_lie_in_the_home_directory(home):
    figure = jafl.plots.timeline(small_parts()["schedule"])
    jafl.plots.save(figure, "~/run.png")
    assert (home / "run.png").is_file()
    with pytest.raises(jafl.SettingError, match="path is .*none/run.png.* in a folder that is there"):
        jafl.plots.save(figure, "none/run.png")


def test_records_are_read_from_the_home_directory(home):
    (home / "durations.csv").write_text(DURATIONS)
    (home / "presence.csv").write_text("client,start,end\n0,0,5\n")
    assert jafl.duration_trace("~/durations.csv") == jafl.duration_trace(home / "durations.csv")
    assert jafl.read_availability(pathlib.Path("~/presence.csv")).end.tolist() == [5.0]


def test_runs_and_sweeps_lie_in_the_home_directory(home):
    settings = Settings(
        algorithm="fedbuff", model="softmax", num_clients=12, concurrency=6, buffer_size=4, server_steps=2
    )
    quiet = {"show": lambda line: None, "progress": False, "pictures": "none"}
    runner.run(settings, "~/run", **quiet)
    assert len(read_run("~/run").evaluations) == len(read_run(home / "run").evaluations) > 0
    assert jafl.config.load("~/run").settings == jafl.config.load(home / "run").settings
    runner.dry_run(settings, "~/planned", **{name: quiet[name] for name in ("show", "pictures")})
    run_sweep(settings, {"local_steps": [1]}, "~/sweep", **quiet)
    assert {path.name for path in home.iterdir()} == {"run", "planned", "sweep"}


def test_word_vectors_are_read_from_the_home_directory(home):
    (home / "glove.txt").write_text("good 1 2\n")
    model = jafl.models.sent140_lstm(2, vocabulary=("", "", "good"), embeddings_file="~/glove.txt")
    assert "embedding" not in str(model.init(jax.random.key(0), np.zeros((1, 3), np.int32)))


def test_the_home_of_nobody_is_a_name_like_others():
    nobodys = pathlib.Path("~no-such-user/x")
    assert given_path("~no-such-user/x", "a file") == nobodys
    assert prepared.folders("~no-such-user/x", None) == (nobodys, nobodys / "jafl_cache")


def test_an_empty_path_is_not_the_current_folder(home):
    history = jafl.simulate(**small_parts())
    for use in (
        history.save,
        jafl.History.load,
        jafl.duration_trace,
        jafl.read_availability,
        jafl.Checkpoints,
        lambda path: jafl.plots.save(jafl.plots.accuracy(history), path),
    ):
        with pytest.raises(jafl.SettingError, match="(path|folder) is '', but must be"):
            use("")
