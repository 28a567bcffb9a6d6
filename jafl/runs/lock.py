"""The lock on a run directory: of several processes that could work on it, one does.

The operating system holds the lock for a process and releases it when that process ends, however it ends. So no lock
outlives its process, and a run that was killed can go on at once. Where the file system has no locks, every process
gets what it asks for: there several share a sweep by its parts (``jafl.sweeps.parts``), which need no lock.
"""

import contextlib
import errno
import os
import pathlib
import tempfile
from collections.abc import Iterator

NAME = ".lock"
WITHOUT_LOCKS = frozenset({errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})

_known: dict[int, bool] = {}  # {number of a file system: whether it has locks}


@contextlib.contextmanager
def directory_lock(folder: str | os.PathLike[str], *, wait: float = 0.0) -> Iterator[bool]:
    """Locks ``folder``, which must exist, until the block ends; yields False if another process holds the lock.

    The lock's file is removed while the lock is still held: a process that waits for it, ``wait`` seconds at most,
    sees that it is gone, and tries again with a new file. Where the file system has no locks, True is yielded.
    """
    import filelock

    path = pathlib.Path(folder) / NAME
    if not has_locks(folder):
        yield True
        return
    lock = filelock.FileLock(path)
    try:
        lock.acquire(timeout=wait)
    except filelock.Timeout:
        yield False
        return
    try:
        yield True
    finally:
        with contextlib.suppress(OSError):  # Windows removes no open file: it stays, unlocked
            path.unlink()
        lock.release()


def is_locked(folder: str | os.PathLike[str]) -> bool:
    """Whether a process has locked ``folder``, which need not exist.

    Tries the lock only where its file exists, so as not to disturb a process that is about to take it.
    """
    if not (pathlib.Path(folder) / NAME).is_file():
        return False
    with directory_lock(folder) as acquired:
        return not acquired


def has_locks(folder: str | os.PathLike[str]) -> bool:
    """Whether locks hold back other processes of this machine in ``folder``; one trial for each file system.

    The trial takes the lock on a new file twice, which must fail, as it would for two processes. Any other error, as
    where no file can be made, is left to whoever takes the real lock.
    """
    device = os.stat(folder).st_dev
    if device not in _known:
        _known[device] = _second_lock_fails(folder)
    return _known[device]


def advice(folder: str | os.PathLike[str]) -> str:
    """What to do where ``folder`` is on a file system without locks, as a sentence; "" where it has locks."""
    if has_locks(folder):
        return ""
    return (
        f"{folder} is on a file system without locks, so nothing stops two processes from training one run there. "
        "Start one process alone, or give each process its own part of the runs: --part=1/2, --part=2/2."
    )


def _second_lock_fails(folder: str | os.PathLike[str]) -> bool:
    try:
        import fcntl
    except ImportError:  # Windows, whose locks are of another kind
        return True
    try:
        with (
            tempfile.NamedTemporaryFile(dir=folder, prefix=".locks_tried.") as file,
            open(file.name, "rb+") as again,
        ):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in WITHOUT_LOCKS
    return False
