"""Which file systems have locks that hold back all hosts: the mount table, and the trial on the spot."""

import errno
import fcntl
import os

import pytest

from jafl.errors import SettingError
from jafl.runs import claims, file_systems, lock
from jafl.runs.file_systems import Mount, judge, mount_of

TABLE = """\
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard
40 27 0:45 / /home rw,relatime shared:12 - nfs4 server:/home rw,vers=4.2,hard,local_lock=none
41 27 0:46 / /home/old\\040files rw - nfs server:/old rw,vers=3,nolock,local_lock=all
42 27 0:47 / /scratch rw - lustre 10.0.0.1@tcp:/scratch rw,localflock,lazystatfs
43 27 0:48 / /mnt/bucket rw,nosuid - fuse.gcsfuse bucket rw,user_id=0
44 27 0:49 / /mnt/bucket rw,nosuid - xfs /dev/vdb rw
45 27 0:50 / /nothing rw
"""


@pytest.fixture(autouse=True)
def _nothing_is_known():
    """Verdicts of other tests, and those made here, are forgotten."""
    file_systems._known.clear()
    yield
    file_systems._known.clear()


@pytest.mark.parametrize(
    "path, kind, option",
    [
        ("/", "ext4", "discard"),
        ("/var/run", "ext4", "relatime"),
        ("/homework", "ext4", "discard"),
        ("/home", "nfs4", "local_lock=none"),
        ("/home/user/runs", "nfs4", "vers=4.2"),
        ("/home/old files/runs", "nfs", "local_lock=all"),
        ("/scratch/user", "lustre", "localflock"),
        ("/mnt/bucket/runs", "xfs", "nosuid"),
        ("/nothing", "ext4", "discard"),
    ],
)
def test_the_longest_and_last_mount_counts(path, kind, option):
    mount = mount_of(path, TABLE)
    assert mount.type == kind
    assert option in mount.options


@pytest.mark.parametrize(
    "kind, options, release, reason",
    [
        ("ext4", "rw", "6.1", ""),
        ("tmpfs", "rw", "6.1", ""),
        ("nfs4", "rw,vers=4.2,local_lock=none", "6.1", ""),
        ("nfs4", "rw,local_lock=all", "6.1", "nfs4 with the option local_lock=all"),
        ("nfs", "rw,vers=3,local_lock=posix", "6.1", ""),  # those of fcntl alone are local
        ("nfs", "rw,vers=3,local_lock=flock", "6.1", "local_lock=flock"),
        ("nfs", "rw,vers=3,nolock", "6.1", "nolock"),
        ("lustre", "rw,flock,lazystatfs", "4.18", ""),
        ("lustre", "rw,localflock", "4.18", "localflock"),
        ("lustre", "rw", "4.18", "without the option flock"),
        ("cifs", "rw,vers=3.1.1", "6.1.0-18-amd64", ""),
        ("cifs", "rw,nobrl", "6.1.0-18-amd64", "nobrl"),
        ("cifs", "rw", "5.4.0-150-generic", "before Linux 5.5"),
        ("smb3", "rw", "5.10.0", ""),
        ("gpfs", "rw", "4.18", ""),
        ("beegfs", "rw,cfgFile=/etc/beegfs/beegfs-client.conf", "6.1", "beegfs is not known"),
        ("fuse.sshfs", "rw", "6.1", "fuse.sshfs is not known"),
        ("fuse.gcsfuse", "rw", "6.1", "fuse.gcsfuse is not known"),
        ("9p", "rw", "6.1", "9p is not known"),
    ],
)
def test_type_and_options_decide(kind, options, release, reason):
    verdict = judge(Mount(kind, frozenset(options.split(","))), release)
    assert verdict.locks_work == (not reason)
    assert reason in verdict.reason


def flock_that_fails(number):
    def flock(file, operation):
        raise OSError(number, os.strerror(number))

    return flock


@pytest.mark.parametrize("name", ["ENOLCK", "ENOTSUP", "EOPNOTSUPP", "ENOSYS", "EINVAL"])
def test_locks_that_fail_are_found_out(name, monkeypatch, tmp_path):
    assert file_systems.verdict(tmp_path).locks_work
    file_systems._known.clear()
    monkeypatch.setattr(fcntl, "flock", flock_that_fails(getattr(errno, name)))
    works, reason = file_systems.verdict(tmp_path)
    assert not works
    assert "has no locks" in reason
    with lock.directory_lock(tmp_path) as acquired:
        assert acquired
        assert (tmp_path / claims.NAME).is_file()
        with lock.directory_lock(tmp_path) as again:
            assert not again
        assert lock.is_locked(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_locks_that_hold_nobody_back_are_found_out(monkeypatch, tmp_path):
    monkeypatch.setattr(fcntl, "flock", lambda file, operation: None)
    works, reason = file_systems.verdict(tmp_path)
    assert not works
    assert "hold nobody back" in reason
    assert list(tmp_path.iterdir()) == []


def test_another_error_of_a_lock_is_no_lack_of_locks(monkeypatch, tmp_path):
    monkeypatch.setattr(fcntl, "flock", flock_that_fails(errno.EIO))
    with pytest.raises(OSError, match="Input/output"):
        file_systems.verdict(tmp_path)


def test_there_is_one_trial_for_a_file_system(monkeypatch, tmp_path):
    tries = []
    monkeypatch.setattr(file_systems, "tried", lambda *_: tries.append(1) or file_systems.Verdict(True))
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
        with lock.directory_lock(tmp_path / name) as acquired:
            assert acquired
    assert len(tries) == 1


def test_a_file_system_without_a_mount_table_is_judged_by_the_trial(monkeypatch, tmp_path):
    monkeypatch.setattr(file_systems, "MOUNTS", tmp_path / "mountinfo")
    assert file_systems.table() == ""
    assert file_systems.verdict(tmp_path).locks_work


def test_directories_on_an_unknown_file_system_are_claimed_by_files(monkeypatch, tmp_path):
    table = tmp_path / "mountinfo"
    table.write_text("27 1 254:0 / / rw - fuse.sshfs host:/home rw\n")
    monkeypatch.setattr(file_systems, "MOUNTS", table)
    folder = tmp_path / "run"
    folder.mkdir()
    with lock.directory_lock(folder) as acquired:
        assert acquired
        assert [path.name for path in folder.iterdir()] == [claims.NAME]


# The setting


def test_locks_that_are_asked_for_but_missing_are_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(fcntl, "flock", flock_that_fails(errno.ENOLCK))
    with lock.claiming_by("locks"), pytest.raises(SettingError) as refused, lock.directory_lock(tmp_path):
        pass
    assert "claims is 'locks', but must be left out, or 'files'" in str(refused.value)
    assert "has no locks (No locks available)" in str(refused.value)


def test_locks_can_be_asked_for_where_the_type_is_unknown(monkeypatch, tmp_path):
    table = tmp_path / "mountinfo"
    table.write_text("27 1 254:0 / / rw - beegfs beegfs_nodev rw\n")
    monkeypatch.setattr(file_systems, "MOUNTS", table)
    folder = tmp_path / "run"
    folder.mkdir()
    with lock.claiming_by("locks"), lock.directory_lock(folder) as acquired:
        assert acquired
        assert [path.name for path in folder.iterdir()] == [lock.NAME]


def test_another_way_is_refused():
    words = "claims is 'lock', but must be one of auto, files, locks"
    with pytest.raises(SettingError, match=words), lock.claiming_by("lock"):
        pass


def test_processes_that_claim_in_different_ways_see_each_other_on_one_host(tmp_path):
    with lock.directory_lock(tmp_path) as by_lock, lock.claiming_by("files"):
        assert by_lock
        assert lock.is_locked(tmp_path)
        assert lock.is_locked(tmp_path, watch=False)
        with lock.directory_lock(tmp_path) as acquired:
            assert not acquired
    with lock.claiming_by("files"), lock.directory_lock(tmp_path) as by_file:
        assert by_file
        with lock.claiming_by("auto"):
            assert lock.is_locked(tmp_path)
            with lock.directory_lock(tmp_path) as acquired:
                assert not acquired
    assert list(tmp_path.iterdir()) == []
