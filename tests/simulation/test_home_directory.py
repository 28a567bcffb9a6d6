"""Paths from Python that begin with ``~``: the home directory, as in a shell."""

import pathlib

import pytest
from small_runs import small_parts, stopping_at

import jafl
from jafl.base.paths import given_path

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


def test_the_home_of_nobody_is_a_name_like_others():
    assert given_path("~no-such-user/x", "a file") == pathlib.Path("~no-such-user/x")
