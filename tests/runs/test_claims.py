"""Claims by files: who gets them, heartbeats, takeovers, holders that stood still, and random interleavings."""

import dataclasses
import itertools
import os
import shutil
import signal
import subprocess
import sys

import pytest
from command_line import environment
from interleaving import Interleaving, Steps
from waiting import LIMIT, until

from jafl.runs import claims, lock
from jafl.runs.claims import Claimant, ClaimLost, Holder

STALE, BEAT = claims.SECONDS_UNTIL_STALE, claims.SECONDS_BETWEEN_BEATS
numbers = itertools.count()


def elsewhere():
    """The record of a process on another machine."""
    number = next(numbers)
    return Holder(f"{number:032d}", f"node{number}", "another machine", 4000 + number, "1", "2026-01-01")


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def claimant(clock=None):
    return Claimant(elsewhere, clock or Clock())


def watch(watcher, clock, folder, seconds, every=BEAT / 2):
    """Looks at a claim again and again."""
    for _ in range(round(seconds / every)):
        watcher.is_claimed(folder)
        clock.now += every
    return watcher.is_claimed(folder)


def test_one_gets_a_claim_and_the_next_one_after_its_release(tmp_path):
    first, second = claimant(), claimant()
    claim = first.claim(tmp_path)
    assert claim and second.claim(tmp_path) is None
    claim.check()
    claim.release()
    assert list(tmp_path.iterdir()) == []
    assert second.claim(tmp_path)


def test_the_file_tells_who_it_is(tmp_path):
    with lock.claiming_by("files"), lock.directory_lock(tmp_path):
        assert f"process {os.getpid()} on {os.uname().nodename} (since 20" in lock.who_holds(tmp_path)
    assert lock.who_holds(tmp_path) == ""


def test_a_claim_is_stale_once_it_has_stood_still_by_the_watchers_clock(tmp_path):
    clock = Clock()
    claimant().claim(tmp_path)
    watcher = claimant(clock)
    assert watch(watcher, clock, tmp_path, STALE - BEAT)
    assert not watcher.is_seen_working(tmp_path)
    assert watcher.claim(tmp_path) is None
    assert not watch(watcher, clock, tmp_path, 2 * BEAT)
    claim = watcher.claim(tmp_path)
    claim.check()
    assert [path.name for path in tmp_path.iterdir()] == [claims.NAME]


def test_a_claim_that_beats_is_never_stale(tmp_path):
    clock = Clock()
    claim, watcher = claimant(clock).claim(tmp_path), claimant(clock)
    for _ in range(5):
        assert watch(watcher, clock, tmp_path, STALE / 2)
        claim.beat()
    assert watcher.is_claimed(tmp_path) and watcher.is_seen_working(tmp_path)
    clock.now += 5 * BEAT
    assert not watcher.is_seen_working(tmp_path), "it may have ended since"
    claim.beat()
    assert watcher.is_claimed(tmp_path) and not watcher.is_seen_working(tmp_path), (
        "it may have moved long ago"
    )
    assert len({len(Holder.encode(elsewhere(), 10**n)) for n in (0, 5, 19)}) <= 2


def test_time_in_which_nobody_looked_counts_as_one_beat(tmp_path):
    """As a watcher that trained a run meanwhile, or a file system that answered nobody."""
    clock = Clock()
    claimant().claim(tmp_path)
    watcher = claimant(clock)
    watcher.is_claimed(tmp_path)
    clock.now += 10 * STALE
    assert watcher.claim(tmp_path) is None


def test_a_holder_that_lost_its_claim_notices_and_leaves_the_new_one(tmp_path):
    clock, folder = Clock(), tmp_path
    claim, taker = claimant(clock).claim(folder), claimant(clock)
    watch(taker, clock, folder, STALE + BEAT)
    new = taker.claim(folder)
    content = (folder / claims.NAME).read_bytes()
    for closely in (False, True):
        with pytest.raises(
            ClaimLost, match=r"process 4\d+ on node\d+ \(since 2026-01-01\) has taken it over"
        ):
            claim.check(closely=closely)
    claim.beat()
    claim.release()
    assert (folder / claims.NAME).read_bytes() == content
    new.check()


def test_a_holder_that_wakes_up_in_time_keeps_its_claim(tmp_path):
    clock = Clock()
    claim, taker = claimant(clock).claim(tmp_path), claimant(clock)
    watch(taker, clock, tmp_path, STALE + BEAT)  # stale, but not taken over
    claim.check()
    assert taker.claim(tmp_path) is None
    claim.check()


def test_a_claim_that_somebody_removed_is_lost(tmp_path):
    claim = claimant().claim(tmp_path)
    (tmp_path / claims.NAME).unlink()
    with pytest.raises(ClaimLost, match="its claim is gone"):
        claim.check()


def test_a_claim_with_a_recent_heartbeat_need_not_be_read(tmp_path, monkeypatch):
    clock = Clock()
    claim = claimant(clock).claim(tmp_path)
    (tmp_path / claims.NAME).unlink()
    clock.now += STALE / 4
    claim.check(closely=False)
    clock.now += STALE / 2
    with pytest.raises(ClaimLost):
        claim.check(closely=False)


@pytest.mark.parametrize("content", [b"", b'{"token": "half', b"of something else"])
def test_a_file_that_is_not_whole_is_taken_over_in_time(content, tmp_path):
    clock = Clock()
    (tmp_path / claims.NAME).write_bytes(content)
    taker = claimant(clock)
    assert taker.claim(tmp_path) is None
    watch(taker, clock, tmp_path, STALE + BEAT)
    assert taker.claim(tmp_path)


def test_a_taker_that_ended_half_way_is_taken_over_too(tmp_path):
    clock = Clock()
    claimant().claim(tmp_path)
    token = Holder.decode((tmp_path / claims.NAME).read_bytes()).token
    (tmp_path / f"{claims.NAME}.{token}").write_bytes(elsewhere().encode(0))
    taker = claimant(clock)
    watch(taker, clock, tmp_path, STALE + BEAT)
    assert taker.claim(tmp_path) is None
    for _ in range(round(2 * STALE / BEAT)):
        clock.now += BEAT
        if claim := taker.claim(tmp_path):
            break
    claim.check()
    assert [path.name for path in tmp_path.iterdir()] == [claims.NAME]


# On one machine

on_linux = pytest.mark.skipif(not claims.machine(), reason="only Linux tells one machine from another")


@on_linux
def test_a_process_of_this_machine_that_has_ended_has_no_claim(tmp_path):
    holder = claims.this_process()
    assert not holder.is_gone()
    assert dataclasses.replace(holder, process=2**22 + 1).is_gone()
    assert dataclasses.replace(holder, began="1").is_gone(), "its number is another process's by now"
    assert not dataclasses.replace(holder, process=2**22 + 1, machine="another").is_gone()
    assert not dataclasses.replace(holder, process=2**22 + 1, machine="").is_gone()
    other = dataclasses.replace(holder, process=2**22 + 1)
    (tmp_path / claims.NAME).write_bytes(other.encode(7))
    assert Claimant().claim(tmp_path)


PROGRAM = """
import signal, sys, time
from jafl.runs import lock
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in what a shell starts in the background
with lock.claiming_by("files"), lock.directory_lock(sys.argv[1]) as acquired:
    print(acquired, flush=True)
    time.sleep(3600)
"""


@on_linux
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_process_that_is_killed_gives_way_at_once_on_its_own_machine(how, tmp_path, monkeypatch):
    """Without a look at its heartbeat, by which its claim would be stale only after an hour."""
    monkeypatch.setattr(claims, "SECONDS_UNTIL_STALE", 3600.0)
    command = [sys.executable, "-c", PROGRAM, tmp_path]
    other = subprocess.Popen(
        command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert other.stdout.readline() == "True\n"
        with lock.claiming_by("files"):
            assert lock.is_locked(tmp_path), "it works, as the list of processes says"
            other.send_signal(how)
            if how == signal.SIGINT:
                other.wait()
                assert list(tmp_path.iterdir()) == [], "Ctrl-C releases"
            with lock.directory_lock(tmp_path, wait=LIMIT) as acquired:  # its parent has not waited for it
                assert acquired
    finally:
        other.kill()
        other.wait()
    assert list(tmp_path.iterdir()) == []


def test_an_exception_releases_the_claim(tmp_path):
    with lock.claiming_by("files"), pytest.raises(RuntimeError), lock.directory_lock(tmp_path):
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []
    lock.check(tmp_path)


def test_heartbeats_go_on_while_a_claim_is_held(tmp_path, monkeypatch):
    monkeypatch.setattr(claims, "SECONDS_BETWEEN_BEATS", 0.02)
    monkeypatch.setattr(lock, "_held", claims.Held())  # no thread that waits for a beat of another test
    with lock.claiming_by("files"), lock.directory_lock(tmp_path):
        seen = set()
        until(lambda: seen.add((tmp_path / claims.NAME).read_bytes()) or len(seen) >= 4)
        assert len({Holder.decode(content).token for content in seen}) == 1


def test_a_claim_from_elsewhere_is_watched_until_it_moves_or_is_stale(tmp_path, monkeypatch):
    monkeypatch.setattr(claims, "SECONDS_BETWEEN_BEATS", 0.1)
    monkeypatch.setattr(claims, "SECONDS_UNTIL_STALE", 0.4)
    monkeypatch.setattr(lock, "SECONDS_BETWEEN_LOOKS", 0.02)
    holder, said = elsewhere(), []
    (tmp_path / claims.NAME).write_bytes(holder.encode(0))
    with lock.claiming_by("files"):
        assert lock.is_locked(tmp_path, watch=False)
        with lock.directory_lock(tmp_path, watch=False) as acquired:
            assert not acquired
        with lock.directory_lock(tmp_path, tell=said.append) as acquired:
            assert acquired
    assert said == [
        f"{tmp_path} is claimed by {holder}. Watching for up to 0.4 seconds whether that process still works ..."
    ]


# Two at once, each stopped once after any line


def pairs(folder, first, second, stride, most=200):
    """The results of two functions, of which the first stops after i lines, and then the second after j.

    first, second: make the functions, for a claim that has just become stale.
    stride: of i and j, where both stop. With each i the second runs to its end, too.
    """
    for i in range(most):
        for j in (*(range(0, most, stride) if i % stride == 0 else ()), None):
            here = folder / f"{i} {j}"
            here.mkdir()
            clock = Clock()
            holder = claimant(clock).claim(here)
            watchers = [claimant(clock), claimant(clock)]
            for _ in range(round(STALE / BEAT) + 1):
                for watcher in watchers:
                    watcher.is_claimed(here)
                clock.now += BEAT
            one, other = (
                Steps(claims, make(holder, watcher, here))
                for make, watcher in zip((first, second), watchers, strict=True)
            )
            one.go(i)
            stopped = one.is_over
            other.go(10**9 if j is None else j)
            over = other.is_over
            results = [one.go(), other.go()]
            yield here, results
            shutil.rmtree(here)
            if over:
                break
        if stopped:
            return
    raise AssertionError("it never came to an end")


def wakes_up(holder, _, __):
    """A holder after a long silence; returns its claim if it may write."""

    def act():
        try:
            holder.check()
        except ClaimLost:
            return None
        return holder

    return act


def takes_over(_, watcher, folder):
    """A taker that has found the claim stale."""
    return lambda: watcher.claim(folder)


def releases(holder, _, __):
    """A holder that has done its work."""
    return lambda: holder.release()


# All pairs of lines (stride 1) take minutes.
strides = pytest.mark.parametrize("stride", [11, pytest.param(4, marks=pytest.mark.full)])


@strides
@pytest.mark.parametrize(
    "first, second",
    [
        (wakes_up, takes_over),
        pytest.param(takes_over, wakes_up, marks=pytest.mark.full),
        pytest.param(takes_over, takes_over, marks=pytest.mark.full),
    ],
)
def test_of_two_at_once_at_most_one_may_write(first, second, stride, tmp_path):
    found = set()
    for folder, results in pairs(tmp_path, first, second, stride):
        assert None in results, "both would write"
        found.add(tuple(result is not None for result in results))
        for result in filter(None, results):
            result.check()
        names = {path.name for path in folder.iterdir()}
        assert names <= {claims.NAME}, "rights are left behind"
    assert {(True, False), (False, True)} <= found


@strides
@pytest.mark.parametrize("first, second", [(releases, takes_over), (takes_over, releases)])
def test_a_release_never_removes_the_claim_of_a_taker(first, second, stride, tmp_path):
    for _, results in pairs(tmp_path, first, second, stride):
        for result in filter(None, results):
            result.check()


# Random interleavings


def works(folder, actor, log, plan):
    """Claims the folder again and again and works in it for a while, until ``plan.rounds`` have been worked."""
    me = Claimant(elsewhere, actor.clock)
    actor.freezes = plan.freezes
    while plan.rounds > 0:
        claim = me.claim(folder)
        if claim is None:
            actor.sleep(0.3)
            continue
        try:
            for _ in range(plan.steps):
                if plan.dies(actor):
                    actor.die()
                actor.sleep(plan.between_writes(actor))
                claim.beat()
                actor.may_freeze = False  # between a check and what it allows, nobody stands still so long
                claim.check()
                holder = Holder.decode((folder / claims.NAME).read_bytes())
                assert holder.token == claim._holder.token, "it writes to what is another's by now"
                actor.may_freeze = True
            plan.rounds -= 1
        except ClaimLost:
            actor.may_freeze = True
            log.append("loses")
            continue
        claim.release()


class Plan:
    """How long actors stand still, after which lines, and when they die."""

    steps, rounds = 5, 4

    def __init__(self, random, survivors):
        self._random, self._survivors = random, survivors
        self._freeze, self._sleepy = random.choice([0.01, 0.03, 0.06]), random.random()
        self._die = random.choice([0.0, 0.05, 0.2])

    def freezes(self, actor):
        often = self._freeze if actor is self._survivors[0] else self._freeze * self._sleepy**4
        if self._random.random() >= often:
            return 0.0
        return self._random.uniform(0.8, self._random.choice([1.2, 3.0])) * claims.SECONDS_UNTIL_STALE

    def between_writes(self, actor):
        return self._random.uniform(0, claims.SECONDS_BETWEEN_BEATS)

    def dies(self, actor):
        if self._random.random() >= self._die or len(self._survivors) == 1:
            return False
        self._survivors.remove(actor)
        return True


def interleaved(folder, seed):
    """How often one of two to four actors loses a folder, each of which writes only while it is its own."""
    everybody, log, survivors = Interleaving(claims, seed), [], []
    plan = Plan(everybody.random, survivors)

    def act(actor):
        survivors.append(actor)
        works(folder, actor, log, plan)

    everybody.run([act] * everybody.random.choice([2, 3, 4]), most_seconds=1e4)
    return log


def many_interleavings(tmp_path, monkeypatch, seeds):
    monkeypatch.setattr(claims, "SECONDS_BETWEEN_BEATS", 1.0)
    monkeypatch.setattr(claims, "SECONDS_UNTIL_STALE", 12.0)
    seen = []
    for seed in seeds:
        folder = tmp_path / str(seed)
        folder.mkdir()
        seen += interleaved(folder, seed)
    return seen


def test_in_random_interleavings_only_the_holder_writes(tmp_path, monkeypatch):
    many_interleavings(tmp_path, monkeypatch, range(6))


@pytest.mark.full
def test_in_many_random_interleavings_only_the_holder_writes(tmp_path, monkeypatch):
    seen = many_interleavings(tmp_path, monkeypatch, range(1000, 1040))
    assert "loses" in seen, "nobody was taken over: the plan is too calm"
