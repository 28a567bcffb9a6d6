"""Digests of all that a run reads: whether a checkpoint is its own, and whether all processes run the same."""

import dataclasses
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jafl.base import processes
from jafl.base.errors import SettingError
from jafl.base.random_keys import as_words
from jafl.data import Federation
from jafl.engine.loop.program import Program
from jafl.records import ExecutionPlan, Params
from jafl.specifications import is_drawn

# Rows of examples that are hashed together. A process hashes a part of them, so that none needs to read all.
ROWS_AT_ONCE = 256


class Reads(NamedTuple):
    """What decides the result of one run, on the host.

    Attributes:
      program: with the random key of every trip.
      plan: in which order it is computed.
      params: [*P] the initial model.
      key: of the run.
    """

    program: Program
    plan: ExecutionPlan
    params: Params
    key: jax.Array


def run_digests(runs: Iterable[Reads]) -> dict[str, str]:
    """SHA-256 of what several runs read, by what it is; the same on any number of devices and processes.

    All processes call it together: each reads a part of the examples.
    """
    parts: dict[str, Any] = {name: hashlib.sha256() for name in ("examples", "schedule", "numbers")}
    # By identity: runs of a group mostly share their examples, and to hash these takes longest.
    examples: dict[int, str] = {}
    for run in runs:
        training, server = run.program.training, run.program.server
        data, trips, arrivals = training.data, training.trips, server.arrivals
        if id(data.x) not in examples:
            examples[id(data.x)] = _digest_rows(data.x)
        parts["examples"].update(examples[id(data.x)].encode())
        _add(parts["examples"], data._replace(x=None))
        columns = (trips.client, arrivals.staleness, trips.read_slot, arrivals.columns)
        # This order is that of checkpoints which are there already.
        own = (trips.examples, trips.version, trips.local_steps)
        _add(parts["schedule"], (*columns, *own, server.steps, server.recall))
        _add(parts["schedule"], list(dataclasses.asdict(run.plan).values()))
        numbers = (training.client_work, server.rule, server.optimizer)
        _add(parts["numbers"], (run.params, as_words(run.key), trips.key, numbers))
    return {name: part.hexdigest() for name, part in parts.items()}


def test_digest(federations: Iterable[Federation]) -> dict[str, str]:
    """{"test examples": SHA-256} of all on which the runs of these federations are evaluated; called as above.

    Of a run that goes on, the evaluations before and after a checkpoint are of the same examples.
    """
    digest = hashlib.sha256()
    examples: dict[int, str] = {}
    for federation in federations:
        for x, y in (
            (federation.test_x, federation.test_y),
            (federation.validation_x, federation.validation_y),
        ):
            if x is not None and id(x) not in examples:
                examples[id(x)] = _digest_rows(x)
            digest.update(examples.get(id(x), "").encode())
            _add(digest, y)
    return {"test examples": digest.hexdigest()}


def refuse_other_processes(own: Mapping[str, Any]) -> None:
    """Raises SettingError, in all processes, unless all have the same to do.

    own: {name: JSON value} on which results depend, of this process.
    """
    each = processes.gathered(dict(own))
    if lines := _differences(each):
        raise SettingError(
            "The processes of a run must all run the same:\n  "
            + "\n  ".join(lines)
            + "\nStart all of them with the same command, in the same environment, with the same data and as many "
            "devices each.",
            setting="processes",
        )


def _differences(each: Sequence[Mapping[str, Any]]) -> list[str]:
    """One line for each name that has not the same value in all processes: ``seed: '1' in processes 0, 2; ...``."""
    lines = []
    for name in dict.fromkeys(name for one in each for name in one):
        having: dict[str, list[int]] = {}
        for number, one in enumerate(each):
            having.setdefault(repr(one[name]) if name in one else "missing", []).append(number)
        if len(having) > 1:
            values = [
                f"{_short(value)} in process{'es' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"
                for value, numbers in having.items()
            ]
            lines.append(f"{name}: {'; '.join(values)}")
    return lines


def _short(text: str) -> str:
    return text if len(text) <= 100 else f"{text[:100]} ..."


def _digest_rows(rows: Any) -> str:
    """The digest of rows [E, ...]: a sum over blocks, of which each process adds its share."""
    blocks = -(-len(rows) // ROWS_AT_ONCE)
    share = -(-blocks // processes.count())
    total = 0
    for block in range(processes.index() * share, min(blocks, (processes.index() + 1) * share)):
        part = np.ascontiguousarray(rows[block * ROWS_AT_ONCE : (block + 1) * ROWS_AT_ONCE])
        # With its place: otherwise blocks that change places would leave the sum as it is.
        digest = hashlib.sha256(f"{block} ".encode())
        digest.update(part.reshape(-1).view(np.uint8).data)
        total += int.from_bytes(digest.digest(), "big")
    # A sum has no order: each process adds the blocks that it has read.
    total = sum(int(part) for part in processes.gathered(str(total)))
    return f"{rows.dtype} {rows.shape} {total % 2**256:x}"


def _add(digest: Any, tree: Any) -> None:
    """Adds all arrays and numbers of a pytree, but for what was ``Drawn``: a run that is resumed has that back."""
    for leaf in jax.tree.leaves(tree, is_leaf=is_drawn):
        if is_drawn(leaf):
            continue
        array = np.ascontiguousarray(as_words(leaf))
        if array.dtype.kind == "U":
            array = np.frombuffer(str(array).encode(), np.uint8)
        # Type and shape first: the same bytes may be other numbers.
        digest.update(f"{array.dtype} {array.shape} ".encode())
        digest.update(array.reshape(-1).view(np.uint8).data)
