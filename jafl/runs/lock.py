"""The lock on a run directory: of several processes that could work on it, one does.

The operating system holds the lock for a process and releases it when that process ends, however it ends. So no lock
outlives its process, and a run that was killed can go on at once.
"""

import contextlib
import os
import pathlib
from collections.abc import Iterator

NAME = ".claim"


@contextlib.contextmanager
def directory_lock(folder: str | os.PathLike[str], *, wait: float = 0.0) -> Iterator[bool]:
    """Locks ``folder``, which must exist, until the block ends; yields False if another process holds the lock.

    wait: how many seconds to wait for the lock.

    The lock's file is removed while the lock is still held: a process that waits for it sees that it is gone, and
    tries again with a new file.
    """
    import filelock

    path = pathlib.Path(folder) / NAME
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
