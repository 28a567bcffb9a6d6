"""Connects the processes of one run on several hosts, by ``jax.distributed``, and lets them part."""

import contextlib
import faulthandler
import os
import pathlib
import re
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from jafl import processes
from jafl.errors import SettingError, refusal, require
from jafl.runs import watched
from jafl.runs.streams import keep_going_without_readers

if TYPE_CHECKING:
    from jafl.runs.several_hosts import Member

# How long the processes wait for each other at the start.
SECONDS_TO_CONNECT = 60
# A process that has not been heard of for so long counts as dead.
SECONDS_OF_SILENCE = 30
# How long a process waits at the end for the others to end, too.
SECONDS_TO_PART = 20
WHERE = (
    "Give --coordinator=HOST:PORT of the first process, --num_processes and --process_id; only SLURM, Cloud TPU, "
    "Open MPI and Kubernetes tell them by themselves."
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


def run(address: Address, act: Callable[["Member"], int], told: Callable[[Callable[[], int]], int]) -> int:
    """Connects this process with the others, acts as one of them, and parts from them.

    Args:
      address: where and who the processes are.
      act: what this process does; returns the exit status.
      told: calls what it is given, and turns an error into a sentence and an exit status.

    Returns:
      The exit status: the same in all processes, unless one was ended from without.

    Raises:
      SettingError: for what can be no address.
    """
    address.check()
    report = watched.divide(last_word)
    if isinstance(report, int):
        return report
    return _Child(report).run(address, act, told)


class _Child:
    """The process that works."""

    def __init__(self, report: watched.Report):
        self._report = report
        self._member: Member | None = None

    def run(
        self, address: Address, act: Callable[["Member"], int], told: Callable[[Callable[[], int]], int]
    ) -> int:
        """As the function ``run``."""
        status = 1
        try:
            status = told(lambda: self._connected(address, act))
        except BaseException as error:
            if self._member and not self._member.in_step:  # the others wait for this one: they see it end
                self._end_at_once(error)
            raise
        finally:
            if self._member:
                self._leave(status)
        return status

    def _connected(self, address: Address, act: Callable[["Member"], int]) -> int:
        connect(address, self._report)
        faulthandler.disable()  # absl's: of an end by JAX it would tell all that Python was at
        from jafl.runs.several_hosts import Follower, Leader

        self._member = (Leader if processes.is_first() else Follower)(self._report)
        return act(self._member)

    def _leave(self, status: int) -> None:
        """Parts from the others where they know that this process ends; otherwise ends it, which they see."""
        assert self._member
        if not self._member.in_step:
            self._end_at_once(status)
        try:
            self._member.end(status)
        except Exception as error:
            self._end_at_once(error)
        part()

    def _end_at_once(self, ended: int | BaseException) -> None:
        """Ends this process without waiting for others."""
        if isinstance(ended, BaseException):
            if has_lost(ended):
                print(lost(str(ended).splitlines()[0], self._report.facts.get("output")), file=sys.stderr)
            else:
                traceback.print_exception(ended)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(ended if isinstance(ended, int) else 1)


def connect(address: Address, report: watched.Report) -> None:
    """Connects this process with the others, before anything touches a device; then only the first one prints.

    Raises:
      SettingError: if it is not told, nor found in the environment, where and who the processes are.
    """
    import jax

    report.now(connecting=True, coordinator=address.coordinator)
    try:
        with _messages_kept_back(report):
            jax.distributed.initialize(
                address.coordinator,
                address.num_processes,
                address.process_id,
                initialization_timeout=SECONDS_TO_CONNECT,
                heartbeat_timeout_seconds=SECONDS_OF_SILENCE,
                shutdown_timeout_seconds=SECONDS_TO_PART,
            )
    except (ValueError, RuntimeError) as error:
        raise _refused(address, error) from error
    _let_python_alone_print()
    report.now(connecting=False, process=processes.index(), processes=processes.count())
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
        + how_to_go_on(output)
    )


def how_to_go_on(output: str | None) -> str:
    """How a run goes on one of whose processes has ended."""
    return (
        f"What was written before is whole: --resume --output_dir={output or 'DIR'} goes on from the last "
        "checkpoint, with as many processes or with fewer."
    )


def last_word(facts: Mapping[str, Any], number: int) -> tuple[str, int]:
    """What the parent says of a child that was ended by the signal ``number``, and the exit status."""
    name = signal.Signals(number).name
    if facts.get("connecting", True):
        return _not_met(facts, name), 2
    which = f"process {facts['process']} of {facts['processes']} (counted from 0)"
    output = facts.get("output")
    if number == signal.SIGABRT:  # as JAX does
        return lost(f"{name} of {which}: what JAX says of it stands above", output), 1
    memory = ", as a machine does whose memory is full" if number == signal.SIGKILL else ""
    return f"Error: {which} was ended by {name}{memory}. {how_to_go_on(output)}", 1


def _not_met(facts: Mapping[str, Any], name: str) -> str:
    """What is said of a process that JAX has ended because it could not connect."""
    said = ""
    if kept := facts.get("messages"):
        with contextlib.suppress(OSError):
            said = pathlib.Path(kept).read_text(errors="replace")
            os.unlink(kept)
    where = facts.get("coordinator")
    start = "Error: " + ("the coordinator" if where is None else f"coordinator is {where!r}, which")
    if port := re.search(r"Failed to add port.*'\S*:(\d+)'", said):
        return f"{start} cannot be opened: port {port[1]} is in use on this host. Take another port."
    found = re.search(r"absl::Status: (.*)", said)
    return (
        f"{start} was not reached, or not all processes came there within {SECONDS_TO_CONNECT} seconds "
        f"({found[1].strip() if found else name}). Start all of them within this time, with the same --coordinator "
        "and --num_processes and each with its own --process_id, on hosts that can reach that port."
    )


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


@contextlib.contextmanager
def _messages_kept_back(report: watched.Report) -> Iterator[None]:
    """Keeps what goes to standard error in a file until the block ends; the parent reads it if it never does."""
    sys.stderr.flush()
    kept = os.dup(2)
    file, name = tempfile.mkstemp(prefix="jafl-")
    report.now(messages=name)
    os.dup2(file, 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)
        os.lseek(file, 0, os.SEEK_SET)
        with open(file, errors="replace") as messages:
            sys.stderr.write(messages.read())
        os.unlink(name)


def _let_python_alone_print() -> None:
    """Keeps standard output for Python: C++ writes lines there that tell users nothing ("[Gloo] Rank 0 is ...")."""
    sys.stdout.flush()
    own = os.fdopen(os.dup(1), "w", encoding=sys.stdout.encoding, errors=sys.stdout.errors, buffering=1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
    sys.stdout = own
    keep_going_without_readers()
