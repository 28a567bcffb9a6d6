"""Connects the processes of one run on several hosts, by ``jax.distributed``, and lets them part."""

import contextlib
import errno
import faulthandler
import os
import re
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from jafl.base import processes
from jafl.base.errors import SettingError, refusal, require
from jafl.runs.hosts.streams import keep_going_without_readers

if TYPE_CHECKING:
    from jafl.runs.hosts.several_hosts import Member

# How long the processes wait for each other at the start.
SECONDS_TO_CONNECT = 60
# JAX ends the processes of a run one of which has not been heard of for so long. A thread of C++ sends the signs of
# life, also while Python compiles: no process was missed on a machine with nine times as many processes as cores.
SECONDS_OF_SILENCE = 30
WHERE = (
    "Write --distributed=\"hosts('HOST:PORT', num_processes=4, process_id=0)\", the address of the first process, "
    "how many there are, and which this one is; only SLURM, Cloud TPU, Open MPI and Kubernetes tell by themselves."
)
# What compiled code says when it cannot reach another process.
SIGNS_OF_LOSS = "gloo|nccl|peer|socket|connection|coordination|heartbeat|unhealthy"


class Address(NamedTuple):
    """Where the first process is met, how many processes there are and which this one is; None: found by JAX."""

    coordinator: str | None = None
    num_processes: int | None = None
    process_id: int | None = None

    def check(self) -> None:
        """Raises SettingError for what can be no address."""
        if self.coordinator is not None:
            port = re.fullmatch(r"\S+:(\d+)", self.coordinator)
            fits = port and 0 < int(port[1]) < 2**16
            require(
                fits, "coordinator", self.coordinator, "HOST:PORT of the first process, 10.0.0.1:8476 say"
            )
        if self.num_processes is not None:
            require(self.num_processes >= 1, "num_processes", self.num_processes, "at least 1")
        if self.process_id is not None:
            last = None if self.num_processes is None else self.num_processes - 1
            allowed = "at least 0" if last is None else f"between 0 and {last}, one less than num_processes"
            fits = self.process_id >= 0 and (last is None or self.process_id <= last)
            require(fits, "process_id", self.process_id, allowed)


def hosts(
    coordinator: str | None = None, num_processes: int | None = None, process_id: int | None = None
) -> Address:
    """The address of the first process, how many there are and which this one is, as ``--distributed`` takes it."""
    return Address(coordinator, num_processes, process_id)


def run(address: Address, act: Callable[["Member"], int], guard: Callable[[Callable[[], int]], int]) -> int:
    """Connects this process with the others, acts as one of them, and parts from them; returns the exit status.

    It is the same in all processes, unless one was ended from without. guard: calls what it is given, and turns an
    error into a sentence and an exit status.
    """
    address.check()
    member: Member | None = None

    def connected() -> int:
        nonlocal member
        connect(address)
        faulthandler.disable()  # absl's: where JAX ends the process, it would print all that Python was at
        from jafl.runs.hosts.several_hosts import Follower, Leader

        member = Leader() if processes.is_first() else Follower()
        return act(member)

    try:
        status = guard(connected)
    except BaseException as error:
        if member:
            _leave(member, error)
        raise
    if member:
        _leave(member, status)
    return status


def _leave(member: "Member", ended: int | BaseException) -> None:
    """Parts from the others where they know that this process ends; otherwise ends it, which they see."""
    if member.in_step:
        try:
            member.end(ended if isinstance(ended, int) else 1)
        except Exception as error:
            ended = error
        else:
            return part()
    if isinstance(ended, BaseException):
        if has_lost(ended):
            print(lost(str(ended).splitlines()[0], member.output), file=sys.stderr)
        else:
            traceback.print_exception(ended)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(ended if isinstance(ended, int) else 1)


def connect(address: Address) -> None:
    """Connects this process with the others, before anything touches a device; then only the first one prints.

    SettingError if nothing says where and who the processes are, or if the coordinator's port is in use.
    """
    import jax

    if address.process_id == 0 and address.coordinator is not None:
        _check_port(address.coordinator)
    try:
        with _ends_unless_they_meet(address):
            jax.distributed.initialize(
                address.coordinator,
                address.num_processes,
                address.process_id,
                # Later than the sentence below: JAX ends the process by a signal, with a trace of C++.
                initialization_timeout=2 * SECONDS_TO_CONNECT,
                heartbeat_timeout_seconds=SECONDS_OF_SILENCE,
            )
    except (ValueError, RuntimeError) as error:
        raise _refused(address, error) from error
    _let_python_alone_print()
    if not processes.is_first():
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 (until the process ends)


def part() -> None:
    """Leaves the others, who leave, too: the run is over."""
    import jax

    with contextlib.suppress(RuntimeError):  # one of them has died in the meantime
        jax.distributed.shutdown()


def has_lost(error: BaseException) -> bool:
    """Whether an error of compiled code says that another process cannot be reached."""
    import jax

    compiled = (jax.errors.JaxRuntimeError, ValueError)  # ValueError where an array is read
    return isinstance(error, compiled) and bool(re.search(SIGNS_OF_LOSS, str(error), re.I))


def lost(why: str, output: str | None) -> str:
    """What is said of a run that has lost one of its processes."""
    return (
        f"Error: another process of this run has ended or cannot be reached ({why}), so this one ends, too. "
        f"What was written before is whole: run.py resume {output or 'DIRECTORY'} goes on from the last "
        "checkpoint, with as many processes or with fewer."
    )


def _check_port(coordinator: str) -> None:
    """Raises SettingError if another program uses the port: in JAX that may end in a segmentation fault."""
    try:
        socket.create_server(("", int(coordinator.rpartition(":")[2]))).close()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            allowed = "at a port that is free on this host"
            raise refusal("coordinator", coordinator, allowed, "Take another port.") from error


@contextlib.contextmanager
def _ends_unless_they_meet(address: Address) -> Iterator[None]:
    """Ends this process with a sentence and status 2 if the block is not over in time."""

    def end() -> None:
        where = address.coordinator
        start = "the coordinator" if where is None else f"coordinator is {where!r}, which"
        print(
            f"Error: {start} was not reached, or not all processes came there within {SECONDS_TO_CONNECT} seconds. "
            "Start all of them within this time, with the same coordinator and num_processes and each with its "
            "own process_id, on hosts that can reach that port.",
            file=sys.stderr,
            flush=True,
        )
        os._exit(2)

    timer = threading.Timer(SECONDS_TO_CONNECT, end)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _refused(address: Address, error: Exception) -> SettingError:
    """The error for processes that JAX does not connect."""
    for name, words in (
        ("coordinator", "coordinator_address should"),
        ("num_processes", "Number of processes"),
        ("process_id", "process id"),
    ):
        if words in str(error) and getattr(address, name) is None:
            return refusal(name, None, "given: nothing in the environment tells it", WHERE)
    first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return SettingError(f"The processes cannot be connected ({first}). {WHERE}", setting="coordinator")


def _let_python_alone_print() -> None:
    """Keeps standard output for Python: C++ writes lines there that tell users nothing ("[Gloo] Rank 0 is ...")."""
    sys.stdout.flush()
    own = os.fdopen(os.dup(1), "w", encoding=sys.stdout.encoding, errors=sys.stdout.errors, buffering=1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
    sys.stdout = own
    keep_going_without_readers()
