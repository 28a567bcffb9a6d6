"""Which file systems have locks that hold back the processes of all hosts.

Two things are asked: what the mount table says, and a trial on the spot. The trial finds locks that fail, and locks
that hold nobody back. But one host cannot see whether its locks hold back another host. So the type of the file
system and its mount options decide that, and a type that is not known here counts as one without such locks.
docs/clusters.md has the table, with its sources.
"""

import errno
import os
import pathlib
import platform
import re
import secrets
from typing import NamedTuple

MOUNTS = pathlib.Path("/proc/self/mountinfo")  # Linux alone has it
# On the disk or in the memory of one host: its kernel keeps the locks.
OF_ONE_HOST = (
    *(
        "ext2",
        "ext3",
        "ext4",
        "xfs",
        "btrfs",
        "zfs",
        "f2fs",
        "jfs",
        "nilfs2",
        "reiserfs",
        "bcachefs",
        "ubifs",
    ),
    *("tmpfs", "ramfs", "overlay", "aufs", "vfat", "exfat", "ntfs", "ntfs3", "fuseblk", "hfsplus"),
)
# Shared by several hosts, with locks that hold back all of them, unless one of these options is there.
OF_SEVERAL_HOSTS: dict[str, frozenset[str]] = {
    "nfs": frozenset({"nolock", "local_lock=all", "local_lock=flock"}),
    "nfs4": frozenset({"nolock", "local_lock=all", "local_lock=flock"}),
    "cifs": frozenset({"nobrl"}),
    "smb3": frozenset({"nobrl"}),
    "lustre": frozenset({"localflock", "noflock"}),
    "gpfs": frozenset(),
    "ceph": frozenset(),
    "fuse.glusterfs": frozenset(),
    "gfs2": frozenset({"localflocks", "localcaching"}),
    "ocfs2": frozenset({"localflocks"}),
}
# {type: an option that the locks need}
ONLY_WITH = {"lustre": "flock"}
# flock(2): until then locks on a Windows share were not told to the server.
FIRST_LINUX_WITH_LOCKS_OF_CIFS = (5, 5)
WITHOUT_LOCKS = frozenset({errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})


class Mount(NamedTuple):
    """The file system that a directory lies on: its type, such as ``nfs4``, its options, and where it is mounted."""

    type: str
    options: frozenset[str]
    point: str = ""


class Verdict(NamedTuple):
    """Whether locks can be trusted, and why not: a clause such as "the locks of nfs with nolock ..."; "" if so."""

    locks_work: bool
    reason: str = ""


_known: dict[tuple[int, Mount | None, bool], Verdict] = {}


def verdict(folder: str | os.PathLike[str], *, by_trial_alone: bool = False) -> Verdict:
    """Whether a lock below ``folder``, which must exist, holds back every other process that could work there.

    Args:
      folder: where the lock is to be taken. The trial makes a file in it, and removes it.
      by_trial_alone: trust the locks if the trial goes well, whatever the type of the file system.

    Returns:
      The answer for its file system, found once in a process.
    """
    path = os.path.realpath(folder)
    mounts = table()
    mount = mount_of(path, mounts) if mounts else None
    key = (os.stat(path).st_dev, mount, by_trial_alone)
    if key not in _known:
        of_mount = judge(mount, platform.release()) if mount and not by_trial_alone else Verdict(True)
        _known[key] = tried(path, mount) if of_mount.locks_work else of_mount
    return _known[key]


def table() -> str:
    """The mount table of this process; "" where there is none, as on macOS and Windows."""
    try:
        return MOUNTS.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""


def mount_of(path: str, mounts: str) -> Mount | None:
    """The file system of an absolute path without symbolic links; of several mounts on one point the last counts.

    mounts: as in ``/proc/self/mountinfo``, see proc_pid_mountinfo(5).
    """
    found, longest = None, -1
    for line in mounts.splitlines():
        before, separator, after = line.partition(" - ")
        fields, rest = before.split(" "), after.split(" ")
        if not separator or len(fields) < 6 or len(rest) < 2:
            continue
        point = _unescaped(fields[4])
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= longest:
            longest = len(point)
            options = {*fields[5].split(","), *(rest[2].split(",") if len(rest) > 2 else ())}
            found = Mount(rest[0], frozenset(options), point)
    return found


def judge(mount: Mount, release: str) -> Verdict:
    """What type and options tell of the locks; ``release`` is the kernel's, such as 6.1.0-18-amd64."""
    if mount.type in OF_ONE_HOST:
        return Verdict(True)
    if mount.type not in OF_SEVERAL_HOSTS:
        return Verdict(False, f"{mount.type} is not known to have locks between hosts")
    against = sorted(mount.options & OF_SEVERAL_HOSTS[mount.type])
    if against:
        return Verdict(False, f"{mount.type} with the option {against[0]} has no locks between hosts")
    needed = ONLY_WITH.get(mount.type)
    if needed and needed not in mount.options:
        return Verdict(False, f"{mount.type} without the option {needed} has no locks between hosts")
    if mount.type in ("cifs", "smb3") and _version(release) < FIRST_LINUX_WITH_LOCKS_OF_CIFS:
        return Verdict(False, f"{mount.type} has no locks between hosts before Linux 5.5")
    return Verdict(True)


def tried(folder: str, mount: Mount | None = None) -> Verdict:
    """Takes a lock on a new file in ``folder`` twice, which must fail, as it would for two processes.

    A folder in which no file can be made passes: whoever takes the real lock there gets the true error.
    """
    try:
        import fcntl
    except ImportError:  # Windows, whose locks are of another kind
        return Verdict(True)
    name = mount.type if mount else "this file system"
    file = os.path.join(folder, f".locks_tried.{secrets.token_hex(8)}")
    try:
        first = os.open(file, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    except OSError:
        return Verdict(True)
    try:
        second = os.open(file, os.O_RDWR)
        try:
            fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
            try:
                fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except (BlockingIOError, PermissionError):
                return Verdict(True)
            return Verdict(False, f"the locks of {name} hold nobody back")
        finally:
            os.close(second)
    except OSError as error:
        if error.errno not in WITHOUT_LOCKS:
            raise
        return Verdict(False, f"{name} has no locks ({error.strerror})")
    finally:
        os.close(first)
        os.unlink(file)


def _unescaped(text: str) -> str:
    """A path of the mount table: ``\\040`` stands for a space."""
    return re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), text)


def _version(release: str) -> tuple[int, ...]:
    """The first two numbers of a kernel's release."""
    return tuple(int(number) for number in re.findall(r"\d+", release)[:2])
