"""The lock on a run directory: of several processes that could work on it, one does.

Where the file system has locks that hold back every host, the operating system holds the lock for a process and
releases it when that process ends, however it ends. So no lock outlives its process, and a run that was killed can go
on at once. Elsewhere, a process claims the directory by a file (``jafl.runs.claims``).
"""

import contextlib
import contextvars
import os
import pathlib
import time
from collections.abc import Callable, Iterator, Sequence

from jafl.errors import choose, refusal
from jafl.runs import claims, file_systems

NAME = ".claim"
WAYS = ("auto", "locks", "files")
# Between two attempts while a claim by a file is watched or waited for.
SECONDS_BETWEEN_LOOKS = 0.5

_way = contextvars.ContextVar("way", default="auto")
_claimant = claims.Claimant()
_held = claims.Held()
ClaimLost = claims.ClaimLost


@contextlib.contextmanager
def claiming_by(way: str) -> Iterator[None]:
    """Until the block ends, directories are claimed in this way.

    Args:
      way: "locks" or "files"; "auto": locks where the file system is known to have them for all hosts, else files.

    Raises:
      SettingError: for another word.
    """
    token = _way.set(choose("claims", way, {name: name for name in WAYS}))
    try:
        yield
    finally:
        _way.reset(token)


@contextlib.contextmanager
def directory_lock(
    folder: str | os.PathLike[str],
    *,
    wait: float = 0.0,
    watch: bool = True,
    tell: Callable[[str], None] | None = None,
) -> Iterator[bool]:
    """Locks ``folder``, which must exist, until the block ends; yields False if another process holds the lock.

    Args:
      folder: the directory.
      wait: how many seconds to wait for the lock.
      watch: whether a claim by a file, of which it is not known whether its process still works, is watched until
        that is known. If not, it counts as one that works.
      tell: called with a sentence where that takes time.

    Raises:
      SettingError: if locks are asked for, and the file system has none.
    """
    path = pathlib.Path(folder)
    if _by_files(path):
        if _is_locked_by_lock(path):
            yield False
            return
        with _claimed(path, wait, watch, tell) as acquired:
            yield acquired
        return
    with _locked(path, wait) as acquired:
        if acquired and (path / claims.NAME).exists():  # somebody claims by files here
            with _claimed(path, wait, watch, tell) as acquired:
                yield acquired
        else:
            yield acquired


def is_locked(folder: str | os.PathLike[str], *, watch: bool = True) -> bool:
    """Whether a process has locked ``folder``, which need not exist; ``watch`` as in ``directory_lock``.

    Tries the lock only where its file exists, so as not to disturb a process that is about to take it.
    """
    path = pathlib.Path(folder)
    if not watch and _by_files(path):
        return _claimant.is_claimed(path) or _is_locked_by_lock(path)
    if not any((path / name).is_file() for name in (NAME, claims.NAME)):
        return False
    with directory_lock(folder, watch=watch) as acquired:
        return not acquired


def any_is_free(
    groups: Sequence[Sequence[pathlib.Path]], stop: Callable[[], bool], tell: Callable[[str], None]
) -> bool:
    """Watches locked directories until one group of them is free, or it is known that processes work in all groups.

    Args:
      groups: directories that are locked together, and were locked a moment ago.
      stop: asked again and again; True ends the watch.
      tell: called with a sentence if that takes time.

    Returns:
      Whether all directories of one group are no longer locked.
    """
    told = False
    while not stop():
        locked = [[folder for folder in group if is_locked(folder, watch=False)] for group in groups]
        if not all(locked):
            return True
        unknown = [group for group in locked if not any(map(_is_seen_working, group))]
        if not unknown:
            return False
        if not told:
            told = True
            tell(
                f"Watching for up to {claims.SECONDS_UNTIL_STALE:g} seconds whether the processes still work that "
                f"have claimed {', '.join(str(group[0]) for group in unknown[:3])}{', ...' * (len(unknown) > 3)}."
            )
        time.sleep(SECONDS_BETWEEN_LOOKS)
    return False


def check(folder: str | os.PathLike[str], *, closely: bool = True) -> None:
    """Raises ClaimLost if this process had claimed ``folder`` by a file, and another has taken it over.

    closely: ask the file system, even if it was asked a few seconds ago; right before something is written.
    """
    _held.check(folder, closely=closely)


def who_holds(folder: str | os.PathLike[str]) -> str:
    """The process that has claimed ``folder`` by a file, in words; "" if none has."""
    try:
        holder = claims.Holder.decode((pathlib.Path(folder) / claims.NAME).read_bytes())
    except OSError:
        return ""
    return str(holder) if holder else ""


def _by_files(folder: pathlib.Path) -> bool:
    """Whether directories are claimed by files here; raises SettingError if locks are asked for and do not work."""
    way = _way.get()
    if way == "files" or not folder.is_dir():  # the latter is told by whoever makes the file
        return way == "files"
    if way == "auto":
        return not file_systems.verdict(folder).locks_work
    works, reason = file_systems.verdict(folder, by_trial_alone=True)
    if not works:
        remedy = f"In {str(folder)!r}, {reason}. Leave it out, or pass --claims=files to all processes."
        raise refusal("claims", way, "left out, or 'files', where locks do not work", remedy)
    return False


def _is_seen_working(folder: pathlib.Path) -> bool:
    """Whether the process that has just been found to hold a lock on ``folder`` is known to work."""
    return not _by_files(folder) or _claimant.is_seen_working(folder) or _is_locked_by_lock(folder)


def _is_locked_by_lock(folder: pathlib.Path) -> bool:
    """Whether a process that claims by locks holds one, as far as that can be seen from this host."""
    try:
        import fcntl

        file = os.open(folder / NAME, os.O_RDWR)
    except (ImportError, OSError):
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return False
    except OSError as error:
        return isinstance(error, (BlockingIOError, PermissionError))
    finally:
        os.close(file)


@contextlib.contextmanager
def _locked(folder: pathlib.Path, wait: float) -> Iterator[bool]:
    """Holds the operating system's lock.

    Its file is removed while the lock is still held: a process that waits for it sees that it is gone, and tries
    again with a new file.
    """
    import filelock

    path = folder / NAME
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


@contextlib.contextmanager
def _claimed(
    folder: pathlib.Path, wait: float, watch: bool, tell: Callable[[str], None] | None
) -> Iterator[bool]:
    """Holds a claim by a file."""
    claim = _wait_for_claim(folder, wait, watch, tell)
    if claim is None:
        yield False
        return
    _held.add(folder, claim)
    try:
        yield True
    finally:
        _held.remove(folder)
        claim.release()


def _wait_for_claim(
    folder: pathlib.Path, wait: float, watch: bool, tell: Callable[[str], None] | None
) -> claims.Claim | None:
    """The claim on a directory; None if another process still has it after ``wait`` seconds, and works."""
    deadline = time.monotonic() + wait
    while True:
        if claim := _claimant.claim(folder):
            return claim
        if time.monotonic() >= deadline and (not watch or _claimant.is_seen_working(folder)):
            return None
        if tell and (holder := who_holds(folder)):
            tell(
                f"{folder} is claimed by {holder}. Watching for up to {claims.SECONDS_UNTIL_STALE:g} seconds whether "
                "that process still works ..."
            )
            tell = None
        time.sleep(SECONDS_BETWEEN_LOOKS)
