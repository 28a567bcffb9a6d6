"""Claims: of several processes that could work on a run directory, one does.

A claim is a lock that the operating system holds for a process and lets go when that process ends, however it ends.
So no claim outlives its process, and a run that was killed can be taken up at once.
"""

import contextlib
import os
import pathlib
from collections.abc import Iterator

NAME = ".claim"


@contextlib.contextmanager
def claim(folder: str | os.PathLike[str], *, wait: float = 0.0) -> Iterator[bool]:
    """Claims ``folder``, which must exist, for the length of the block; yields False if another process has it.

    wait: so many seconds before it gives up.

    The lock's file is removed while it is still held: whoever waits for it sees that it is no longer there, and tries
    again.
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


def is_claimed(folder: str | os.PathLike[str]) -> bool:
    """Whether a process has claimed ``folder``, which need not exist.

    Locks only a file that somebody has left there, so that nobody who claims is in another's way for nothing.
    """
    if not (pathlib.Path(folder) / NAME).is_file():
        return False
    with claim(folder) as mine:
        return not mine
