"""Standard output and error that nobody reads: closed at the start (``2>&-``), or later, as in ``run.py | head``."""

import io
import os
import sys
from typing import Any, TextIO


class UnbrokenStream:
    """A text stream that goes on when its reader has gone: what is written then is lost, and nothing else.

    Characters that its encoding lacks, such as the ± of a table on a terminal of ASCII, are question marks.
    """

    def __init__(self, stream: TextIO):
        self._stream = stream
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Writes ``text``, unless the reader has gone."""
        try:
            return self._stream.write(text)
        except BrokenPipeError:
            self._let_go()
            return len(text)

    def flush(self) -> None:
        """Writes what is waiting, unless the reader has gone."""
        try:
            self._stream.flush()
        except BrokenPipeError:
            self._let_go()

    def _let_go(self) -> None:
        """Sends to nowhere what waits to be written, and all that follows, of C libraries too."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)


def keep_going_without_readers() -> None:
    """Makes standard output and error of this process such streams; those that are closed lead to nowhere."""
    for descriptor in range(3):
        # A closed one would be the number of the next file that is opened, and C libraries would write into that.
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the smallest free number, which is this one
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            stream = open(os.devnull, "w")  # noqa: SIM115 (until the process ends)
        if not isinstance(stream, UnbrokenStream):
            setattr(sys, name, UnbrokenStream(stream))
