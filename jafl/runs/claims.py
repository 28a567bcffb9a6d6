"""Claims by files, for file systems whose locks do not hold back the processes of other hosts.

A process claims a directory by the exclusive creation of a file in it, which says who it is. While it works there, a
thread changes that file every few seconds: its *heartbeat*. Whoever finds the file watches it. A claim is stale once
its heartbeat has stood still for ``SECONDS_UNTIL_STALE`` by the watcher's own clock; the clocks of two hosts are
never compared. On one machine the list of processes tells at once that the holder is gone.

Every claim has a random token, and one file is the right to change what has this token: ``.claimed_by.<token>``,
again created exclusively. Only who has that file may put it into the place of a stale claim or release its own.
So of several takers one wins, and none removes a claim that is not the one that it has watched.

A holder that stood still for long (stopped, or on a slow file system) may have lost its claim. It reads the token
again before it writes, and raises ``ClaimLost`` instead.
"""

import contextlib
import dataclasses
import hashlib
import json
import math
import os
import pathlib
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator

NAME = ".claimed_by"
SECONDS_BETWEEN_BEATS = 10.0
# Longer than clients of network file systems keep what they have read (nfs(5): acregmax is 60 by default).
SECONDS_UNTIL_STALE = 120.0
LONGEST = 4096  # bytes of a claim
CLOCK = getattr(time, "CLOCK_BOOTTIME", None)  # Linux; elsewhere a machine's sleep may not count


class ClaimLost(Exception):
    """Another process has taken over the directory in which this one works; nothing more is written there."""


@dataclasses.dataclass(frozen=True)
class Holder:
    """The process that has claimed a directory.

    Attributes:
      token: random, of this claim alone.
      host: the name of its host, for people.
      machine: what tells running systems apart, and the containers on them; "" if unknown.
      process: its number there.
      began: when it started, in the kernel's own unit: numbers of processes are used again.
      since: the time of the claim by its host's clock, for people.
    """

    token: str
    host: str
    machine: str
    process: int
    began: str
    since: str

    def encode(self, beat: int) -> bytes:
        """The content of the file; of equal length whatever the beat, so that a new one overwrites it in place."""
        return json.dumps({**dataclasses.asdict(self), "beat": f"{beat:020d}"}).encode() + b"\n"

    @classmethod
    def decode(cls, content: bytes) -> "Holder | None":
        """The holder in a file's content; None if that is not whole, as while it is written."""
        try:
            fields = json.loads(content)
            return cls(**{field.name: fields[field.name] for field in dataclasses.fields(cls)})
        except (ValueError, KeyError, TypeError):
            return None

    def is_here(self) -> bool:
        """Whether this process would see the holder in its own list of processes."""
        return bool(self.machine) and self.machine == machine()

    def is_gone(self) -> bool:
        """Whether the holder has ended for certain; False where that cannot be seen from here."""
        if not self.is_here():
            return False
        try:
            os.kill(self.process, 0)
        except ProcessLookupError:
            return True
        except PermissionError:  # of another user
            pass
        now = started(self.process)
        return now == "over" or bool(now and self.began and now != self.began)

    def __str__(self) -> str:
        return f"process {self.process} on {self.host} (since {self.since})"


def machine() -> str:
    """What tells this running system apart from others, and its containers; "" where the system does not say."""
    try:
        boot = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def started(process: int) -> str:
    """When a process of this machine started; "over" if it has ended and waits for its parent; "" if unknown."""
    try:
        # See proc_pid_stat(5): behind the name, which may have spaces, the state and, 19 fields on, the start.
        fields = pathlib.Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return "over" if fields[0] in "ZX" else fields[19]
    except (OSError, IndexError):
        return ""


def clock() -> float:
    """Seconds that never go back; they go on while this process, or its machine, sleeps."""
    return time.clock_gettime(CLOCK) if CLOCK is not None else time.monotonic()


def this_process() -> Holder:
    """This process as the holder of a new claim."""
    since = time.strftime("%Y-%m-%d %H:%M:%S %z")
    number = os.getpid()
    return Holder(secrets.token_hex(16), socket.gethostname(), machine(), number, started(number), since)


@dataclasses.dataclass
class _Seen:
    """What a watcher has seen of one claim, by its own clock.

    Attributes:
      content: of the file, when it was looked at last.
      looked_at: when that was.
      still: for how many seconds it has been seen to be the same.
      moved_at: when it was last seen to change, from one look to the next one soon after.
    """

    content: bytes
    looked_at: float
    still: float = 0.0
    moved_at: float = -math.inf


class Claimant:
    """Claims directories, and watches the claims of others.

    Args:
      new: makes the record of a new claim.
      clock: seconds that never go back; they go on while the process is stopped.
    """

    def __init__(self, new: Callable[[], Holder] = this_process, clock: Callable[[], float] = clock):
        self._new, self._clock = new, clock
        self._seen: dict[pathlib.Path, _Seen] = {}

    def claim(self, folder: pathlib.Path) -> "Claim | None":
        """Claims a directory that nobody has claimed, or whose claim is stale; None if it is another's."""
        path, began = folder / NAME, self._clock()
        holder = self._new()
        if not _create(path, holder):
            content = self._look(path)
            if content is None or not self._is_stale(path, content):
                return None
            if not self._take_over(path, content, holder):
                return None
        if not _has_token(path, holder.token):  # taken over by now: this process stood still meanwhile
            return None
        self._seen.pop(path, None)
        for file in folder.glob(
            f"{NAME}.*"
        ):  # rights over claims that are past; the listing asks the server anew
            if not file.name.startswith(f"{NAME}.{holder.token}"):
                file.unlink(missing_ok=True)
        return Claim(path, holder, self._clock, began)

    def is_claimed(self, folder: pathlib.Path) -> bool:
        """Whether there is a claim that is not stale; looks at it once more."""
        content = self._look(folder / NAME)
        return content is not None and not self._is_stale(folder / NAME, content)

    def is_seen_working(self, folder: pathlib.Path) -> bool:
        """Whether the claim is known to be of a process that works: it has just moved, or its process is here."""
        seen = self._seen.get(folder / NAME)
        if seen is None or self._is_stale(folder / NAME, seen.content):
            return False
        holder = Holder.decode(seen.content)
        has_moved = self._clock() - seen.moved_at <= 3 * SECONDS_BETWEEN_BEATS
        return has_moved or bool(holder and holder.is_here())

    def _look(self, path: pathlib.Path) -> bytes | None:
        """The content of a claim, None if there is none; counts for how long it has stood still."""
        content, now = _read(path), self._clock()
        seen = self._seen.get(path)
        if content is None:
            self._seen.pop(path, None)
        elif seen is None or _token(seen.content) != _token(content):
            self._seen[path] = _Seen(content, now)
        elif seen.content != content:
            soon = now - seen.looked_at <= 2 * SECONDS_BETWEEN_BEATS  # else it may have moved long ago
            self._seen[path] = _Seen(content, now, moved_at=now if soon else -math.inf)
        else:
            # No more than one beat for each look: while nobody looked, or the file system stood still, it may have
            # moved unseen.
            seen.still += min(now - seen.looked_at, SECONDS_BETWEEN_BEATS)
            seen.looked_at = now
        return content

    def _is_stale(self, path: pathlib.Path, content: bytes) -> bool:
        holder, seen = Holder.decode(content), self._seen.get(path)
        if holder and holder.is_gone():
            return True
        return seen is not None and seen.content == content and seen.still >= SECONDS_UNTIL_STALE

    def _take_over(self, path: pathlib.Path, content: bytes, holder: Holder) -> bool:
        """Puts ``holder`` into the place of the stale ``content`` of ``path``; False if somebody else was quicker."""
        right = _right(path, content)
        if not _create(right, holder):
            before = self._look(right)  # of a taker, which may have ended half-way
            if before is None or not self._is_stale(right, before):
                return False
            if not self._take_over(right, before, holder):
                return False
        if _read(path) != content:  # taken over and released meanwhile, or it moves again
            right.unlink(missing_ok=True)
            return False
        with contextlib.suppress(
            FileNotFoundError
        ):  # a taker that stood still has moved it in this one's place
            os.rename(right, path)
        return _has_token(path, holder.token)


class Claim:
    """A directory that this process has claimed."""

    def __init__(self, path: pathlib.Path, holder: Holder, clock: Callable[[], float], moved_at: float):
        self._path, self._holder, self._clock = path, holder, clock
        self._beat, self._moved_at, self._is_lost = 0, moved_at, False
        self._busy = threading.RLock()  # heartbeats come from another thread

    def beat(self) -> None:
        """Changes the file, if it is still this claim's; what goes wrong is found out by ``check``."""
        with self._busy, contextlib.suppress(OSError):
            self._is_lost = self._is_lost or not self._is_moved()

    def check(self, *, closely: bool = True) -> None:
        """Raises ClaimLost if another process has taken over the directory.

        closely: read the file, even if its heartbeat is recent enough that nobody can have taken over.
        """
        with self._busy:
            while not self._is_lost and self._clock() - self._moved_at >= SECONDS_UNTIL_STALE / 2:
                self._is_lost = not self._is_moved()
            if closely and not self._is_lost:
                self._is_lost = not _has_token(self._path, self._holder.token)
            if not self._is_lost:
                return
        other = Holder.decode(_read(self._path) or b"")
        is_other = other and other.token != self._holder.token
        raise ClaimLost(
            f"{self._path.parent} is no longer this process's: "
            f"{f'{other} has taken it over' if is_other else 'its claim is gone'}, as from a process that gives no "
            f"sign of life for {SECONDS_UNTIL_STALE:g} seconds (it was stopped, or the file system was slow). "
            "This process writes nothing more there, and has overwritten nothing."
        )

    def release(self) -> None:
        """Removes the claim, unless it has been lost."""
        with self._busy, contextlib.suppress(OSError), self._right() as acquired:
            if acquired and _has_token(self._path, self._holder.token):
                self._path.unlink()

    def _is_moved(self) -> bool:
        """Changes the file; False if it is no longer this claim's.

        Nobody takes over before the heartbeat has stood still for ``SECONDS_UNTIL_STALE``. Where that may have passed
        before the change, somebody may have decided to, and this must hold the right meanwhile.
        """
        began = self._clock()
        moved = self._is_changed()
        if moved and self._clock() - self._moved_at >= SECONDS_UNTIL_STALE / 2:
            with self._right() as acquired:
                began = self._clock()
                moved = acquired and self._is_changed()
        if moved:
            self._moved_at = began
        return moved

    def _is_changed(self) -> bool:
        """Changes the file in place, which harms nobody if another file is in its place by now; whether it is not."""
        try:
            file = os.open(self._path, os.O_RDWR)
        except FileNotFoundError:
            return False
        try:
            if _token(os.read(file, LONGEST)) != self._holder.token:
                return False
            self._beat += 1
            os.lseek(file, 0, os.SEEK_SET)
            os.write(file, self._holder.encode(self._beat))
        finally:
            os.close(file)
        return _has_token(self._path, self._holder.token)

    @contextlib.contextmanager
    def _right(self) -> Iterator[bool]:
        """Holds the right to change what has this claim's token; yields False if another process holds it."""
        right = _right(self._path, self._holder.encode(0))
        acquired = _create(right, self._holder)
        try:
            yield acquired
        finally:
            if acquired:
                right.unlink(missing_ok=True)


class Held:
    """The directories that this process has claimed, with the thread that keeps their claims alive."""

    def __init__(self) -> None:
        self._claims: dict[str, Claim] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def add(self, folder: pathlib.Path, claim: Claim) -> None:
        """Keeps a claim alive from now on."""
        with self._changed:
            self._claims[os.path.abspath(folder)] = claim
            if self._thread is None:
                self._thread = threading.Thread(target=self._keep_alive, name="claims", daemon=True)
                self._thread.start()

    def remove(self, folder: pathlib.Path) -> None:
        """Keeps it alive no longer; the thread ends with the last one."""
        with self._changed:
            del self._claims[os.path.abspath(folder)]
            self._changed.notify()

    def check(self, folder: str | os.PathLike[str], *, closely: bool = True) -> None:
        """Raises ClaimLost if this process had claimed ``folder`` by a file, and another has taken it over."""
        claim = self._claims.get(os.path.abspath(folder)) if self._claims else None
        if claim:
            claim.check(closely=closely)

    def _keep_alive(self) -> None:
        next_beat = time.monotonic() + SECONDS_BETWEEN_BEATS
        while True:
            with self._changed:
                self._changed.wait(max(0.0, next_beat - time.monotonic()))
                if not self._claims:
                    self._thread = None
                    return
                due = list(self._claims.values()) if time.monotonic() >= next_beat else []
            for claim in due:
                claim.beat()
            if due:
                next_beat = time.monotonic() + SECONDS_BETWEEN_BEATS


def _create(path: pathlib.Path, holder: Holder) -> bool:
    """Creates a file that tells the holder; False if there is one."""
    try:
        file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
    except FileExistsError:
        return False
    try:
        os.write(file, holder.encode(0))
    finally:
        os.close(file)  # which hands it to a server of files
    return True


def _read(path: pathlib.Path) -> bytes | None:
    """The content of a file, opened anew, so that clients of network file systems ask their server; None: no file."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _token(content: bytes) -> str:
    """The token of the holder in a file's content; "" if that is not whole."""
    holder = Holder.decode(content)
    return holder.token if holder else ""


def _has_token(path: pathlib.Path, token: str) -> bool:
    content = _read(path)
    return content is not None and _token(content) == token


def _right(path: pathlib.Path, content: bytes) -> pathlib.Path:
    """The file that is the right to change ``path`` while it has the token of ``content``."""
    token = _token(content) or hashlib.sha256(content).hexdigest()[:32]
    return path.with_name(f"{path.name}.{token}")
