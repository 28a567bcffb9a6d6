"""The lock on a run directory, and file systems without locks."""

import errno
import fcntl

import pytest
from run_again import quiet

from jafl.config.settings import Settings
from jafl.runs import lock

SMALL = Settings(
    algorithm="fedbuff", model="softmax", num_clients=10, concurrency=5, client_trips=20, evaluate_every=10
)


@pytest.fixture(autouse=True)
def _nothing_is_known():
    """What other tests found out, and what is found out here, is forgotten."""
    lock._known.clear()
    yield
    lock._known.clear()


def test_one_holds_the_lock_and_nothing_stays(tmp_path):
    assert lock.has_locks(tmp_path) and lock.advice(tmp_path) == ""
    assert not lock.is_locked(tmp_path)
    with lock.directory_lock(tmp_path) as acquired:
        assert acquired and lock.is_locked(tmp_path)
        with lock.directory_lock(tmp_path) as again:
            assert not again
    assert not lock.is_locked(tmp_path) and list(tmp_path.iterdir()) == []


def holds_nobody_back(file, operation):
    """A lock that every process gets."""


def fails(number):
    def flock(file, operation):
        raise OSError(number, "No locks available")

    return flock


@pytest.mark.full
@pytest.mark.parametrize("flock", [holds_nobody_back, fails(errno.ENOLCK), fails(errno.ENOSYS)])
def test_a_run_on_a_file_system_without_locks_says_what_to_do(flock, monkeypatch, tmp_path):
    monkeypatch.setattr(fcntl, "flock", flock)
    said = []
    (outcome,) = quiet(SMALL, tmp_path / "run", show=said.append)
    assert outcome.status == "finished"
    assert any("without locks" in line and "--part=1/2, --part=2/2" in line for line in said)
    assert not list((tmp_path / "run").glob(".*"))


def test_another_error_is_left_to_who_takes_the_lock(monkeypatch, tmp_path):
    monkeypatch.setattr(fcntl, "flock", fails(errno.EIO))
    assert lock.has_locks(tmp_path)
    assert list(tmp_path.iterdir()) == []
