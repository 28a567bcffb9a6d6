"""Ctrl-C while ``simulate`` trains: it stops at the next chunk, and what was measured comes with the exception."""

import itertools
import signal
import threading

import jax
import numpy as np
import pytest
from quick_compilation import quick_compilation  # noqa: F401
from small_runs import small_parts

import jafl
from jafl.simulation import driver


@pytest.fixture(scope="module")
def parts():
    return tuple(small_parts(30).values())


@pytest.fixture(autouse=True)
def short_chunks(monkeypatch):
    """Chunks of one server step, as of a run that takes long."""
    monkeypatch.setattr(driver, "SECONDS_PER_CHUNK", 0.0)


@pytest.fixture(autouse=True)
def answered_ctrl_c():
    """Python's own answer to Ctrl-C, also where the tests run in the background, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def ctrl_c_at(server_step: int):
    """A callback for progress that presses Ctrl-C, once."""
    presses = iter([True])

    def press(done: int) -> None:
        if done >= server_step and next(presses, False):
            signal.raise_signal(signal.SIGINT)

    return press


def check_is_start_of(history, whole, steps):
    assert history.server_steps == steps and history.evaluations[-1]["server_step"] == steps
    assert history.evaluations[:-1] == whole.evaluations[: len(history.evaluations) - 1]
    losses = whole.trip_reports["loss"][: 3 * steps]
    np.testing.assert_array_equal(history.trip_reports["loss"], losses)


@pytest.mark.full
def test_ctrl_c_stops_at_the_next_chunk_and_attaches_the_history(parts):
    whole = jafl.simulate(*parts, evaluate_at=[5, 20])
    with pytest.raises(KeyboardInterrupt) as raised:
        jafl.simulate(*parts, evaluate_at=[5, 20], on_progress=ctrl_c_at(11))
    assert isinstance(raised.value, jafl.Interrupted)
    check_is_start_of(raised.value.history, whole, 11)
    assert "11 server steps" in str(raised.value) and "sys.last_value.history" in str(raised.value)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.full
def test_the_model_is_that_of_the_step_at_which_it_stopped(parts):
    at = {}
    jafl.simulate(*parts, evaluate_at=[11], on_evaluation=lambda e, p: at.update({e["server_step"]: p}))
    with pytest.raises(jafl.Interrupted) as raised:
        jafl.simulate(*parts, on_progress=ctrl_c_at(11))
    jax.tree.map(np.testing.assert_array_equal, raised.value.history.params, at[11])


def test_an_interrupt_raised_by_a_function_of_the_users_keeps_the_history(parts):
    whole = jafl.simulate(*parts, evaluate_at=[5, 20])

    def interrupt(done):
        if done == 7:
            raise KeyboardInterrupt

    with pytest.raises(jafl.Interrupted) as raised:
        jafl.simulate(*parts, evaluate_at=[5, 20], on_progress=interrupt)
    history = raised.value.history
    assert history.server_steps == 7 and history.evaluations == whole.evaluations[:2]


def test_an_interrupt_within_a_chunk_is_passed_on(parts, monkeypatch):
    def interrupt(self, first, last):
        raise KeyboardInterrupt

    monkeypatch.setattr(driver.Driver, "_end_diverged", interrupt)
    with pytest.raises(KeyboardInterrupt) as raised:
        jafl.simulate(*parts)
    assert type(raised.value) is KeyboardInterrupt


def test_a_second_ctrl_c_ends_at_once(parts):
    presses = itertools.count()

    def press(done):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        next(presses)

    with pytest.raises(KeyboardInterrupt):
        jafl.simulate(*parts, on_progress=press)
    assert next(presses) == 0
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_handler_of_the_users_own_stays(parts):
    pressed = []

    def own(number, frame):
        pressed.append(number)

    before = signal.signal(signal.SIGINT, own)
    try:
        history = jafl.simulate(*parts, on_progress=ctrl_c_at(11))
        assert signal.getsignal(signal.SIGINT) is own
    finally:
        signal.signal(signal.SIGINT, before)
    assert pressed == [signal.SIGINT] and history.server_steps == 30


def test_other_threads_train_too(parts):
    ended = []
    thread = threading.Thread(target=lambda: ended.append(jafl.simulate(*parts)))
    thread.start()
    thread.join()
    assert ended[0].server_steps == 30


def test_several_runs_are_all_kept(parts):
    runs = [jafl.Run(*parts), jafl.Run(*parts[:-1], jax.random.key(2))]
    whole = jafl.simulate_many(runs)
    with pytest.raises(jafl.Interrupted) as raised:
        jafl.simulate_many(runs, on_progress=ctrl_c_at(11))
    assert len(raised.value.histories) == 2 and "histories" in str(raised.value)
    for kept, run in zip(raised.value.histories, whole, strict=True):
        check_is_start_of(kept, run, 11)
