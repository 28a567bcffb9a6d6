"""The progress bar of ``simulate``: where somebody looks on, and never in a log file."""

import contextlib
import io
import re
import sys
import types

import jax
import pytest
from quick_compilation import quick_compilation  # noqa: F401
from small_runs import small_parts

import jafl
from jafl.simulation import driver, progress


@pytest.fixture(scope="module")
def parts():
    return tuple(small_parts(30).values())


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def written(stream, train) -> str:
    with contextlib.redirect_stderr(stream):
        train()
    return stream.getvalue()


def test_a_terminal_shows_trips_time_left_and_accuracy(parts):
    text = written(Terminal(), lambda: jafl.simulate(*parts))
    assert "compiling" in text and "training: 100%" in text and "90/90 trips" in text
    assert re.search(r"accuracy 0\.\d{3}", text) and "trips/s" in text


def test_a_log_file_shows_nothing_by_default(parts):
    assert written(io.StringIO(), lambda: jafl.simulate(*parts)) == ""
    assert written(Terminal(), lambda: jafl.simulate(*parts, progress=False)) == ""
    assert "90/90 trips" in written(io.StringIO(), lambda: jafl.simulate(*parts, progress=True))


def test_a_notebook_shows_it_though_stderr_is_no_terminal(monkeypatch):
    assert not progress.is_watched()
    shell = types.SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    assert progress.is_watched()
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: object()))
    assert not progress.is_watched()  # IPython at a prompt, its output in a file


def test_there_may_be_no_stderr(monkeypatch, parts):
    monkeypatch.setattr(sys, "stderr", None)
    assert not progress.is_watched()
    jafl.simulate(*parts)


@pytest.mark.full
def test_several_runs_have_one_bar(parts):
    runs = [jafl.Run(*parts), jafl.Run(*parts[:-1], jax.random.key(2))]
    text = written(Terminal(), lambda: jafl.simulate_many(runs))
    assert "2 runs: 100%" in text and "90/90 trips" in text


def test_callbacks_and_numbers_are_the_same_with_a_bar(parts):
    seen = []
    plain = jafl.simulate(*parts)
    with contextlib.redirect_stderr(Terminal()):
        barred = jafl.simulate(*parts, on_evaluation=lambda e, p: seen.append(e), on_progress=seen.append)
    assert barred.evaluations == plain.evaluations
    assert [e for e in seen if isinstance(e, dict)] == plain.evaluations and seen[-2] == 30


def test_a_run_that_goes_on_counts_from_its_checkpoint(parts, monkeypatch, tmp_path):
    monkeypatch.setattr(driver, "SECONDS_PER_CHUNK", 0.0)
    done = [0]
    with pytest.raises(ZeroDivisionError):  # as of a process that is killed
        jafl.simulate(
            *parts,
            checkpoints=jafl.Checkpoints(tmp_path, every=30),
            on_progress=done.append,
            should_stop=lambda: 1 // (done[-1] < 15) == 0,
        )
    counted = []
    monkeypatch.setattr(progress.Progress, "start_from", lambda bar, step: counted.append(step))
    written(Terminal(), lambda: jafl.simulate(*parts, checkpoints=tmp_path))
    assert counted == [10]


def test_other_values_are_refused(parts):
    with pytest.raises(jafl.SettingError, match="progress is 'yes'"):
        jafl.simulate(*parts, progress="yes")
