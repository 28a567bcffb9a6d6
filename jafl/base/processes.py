"""The processes of one run on several hosts: what they tell each other, and what the first one decides for all.

``jax.distributed`` connects them. All call the functions here in the same order, as they run the same programs in the
same order. With one process nothing is sent.
"""

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from jafl.base.errors import SettingError

# Messages are padded to multiples of so many bytes, so that few programs are compiled for them.
BLOCK = 1024


def count() -> int:
    """The number of processes of this run."""
    import jax

    return int(jax.process_count())


def index() -> int:
    """Which of the processes this one is, from 0 on."""
    import jax

    return int(jax.process_index())


def is_first() -> bool:
    """Whether this process locks, writes and prints: it is the first one, or the only one."""
    return index() == 0


def gathered(value: Any) -> list[Any]:
    """What each process gives, in their order: anything that JSON can hold, as JSON gives it back.

    Examples:
      >>> gathered({"seed": 3})
      [{'seed': 3}]
    """
    text = json.dumps(value).encode()
    if count() == 1:
        return [json.loads(text)]
    from jax.experimental import multihost_utils

    lengths = np.asarray(multihost_utils.process_allgather(np.int32(len(text)))).reshape(-1)
    size = -(-int(lengths.max()) // BLOCK) * BLOCK
    padded = np.frombuffer(text.ljust(size), np.uint8)
    every = np.asarray(multihost_utils.process_allgather(padded)).reshape(count(), size)
    return [json.loads(row[:length].tobytes()) for row, length in zip(every, lengths, strict=True)]


def decided(value: Any) -> Any:
    """What the first process gives, as JSON gives it back; what the others give is ignored.

    For what depends on the clock or on files: where the processes could differ, the first one decides.

    Examples:
      >>> decided(7)
      7
    """
    if count() == 1:
        return value
    from jax.experimental import multihost_utils

    text = json.dumps(value).encode() if is_first() else b""
    size = int(multihost_utils.broadcast_one_to_all(np.int32(len(text))))
    room = -(-size // BLOCK) * BLOCK
    sent = np.frombuffer(text.ljust(room), np.uint8) if is_first() else np.zeros(room, np.uint8)
    return json.loads(np.asarray(multihost_utils.broadcast_one_to_all(sent))[:size].tobytes())


def any_process(flag: bool) -> bool:
    """Whether a process gives True: one that was asked to stop, for example."""
    return any(gathered(bool(flag)))


def common_error(error: Exception | None) -> Exception | None:
    """What all processes raise where one of them has an error, so that none waits for another one for ever.

    ``error`` is that of this process. Where errors differ it is a ``SettingError`` with what each says.
    """
    said = None if error is None else str(error) or type(error).__name__
    each = gathered(said)
    if set(each) == {said}:
        return error
    lines = [f"process {number}: {text}" for number, text in enumerate(each) if text is not None]
    return SettingError("\n  ".join(["Not all processes can run this:", *lines]))


@contextlib.contextmanager
def one_error() -> Iterator[None]:
    """Raises a ``SettingError`` in all processes if one of them raises it in this context.

    One process alone may see what is wrong: it alone reads its part of the examples.
    """
    error = None
    try:
        yield
    except SettingError as caught:
        error = caught
    if failure := common_error(error):
        raise failure


def wait_for_all(name: str) -> None:
    """Returns when all processes have come to this place in the program; ``name`` is for messages."""
    if count() > 1:
        from jax.experimental import multihost_utils

        multihost_utils.sync_global_devices(name)
