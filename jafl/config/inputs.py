"""The files that decide a run: what they hold, so that a run over a file that has changed is another run."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from jafl.base import checksums
from jafl.config import calls
from jafl.config.settings import Settings

if TYPE_CHECKING:
    from jafl.data import Source

DATA = "dataset"  # under which the digest of the data set stands
SHOWN = 12  # digits of a digest, where people read it


def input_digests(settings: Settings, source: "Source") -> dict[str, str]:
    """{what: SHA-256} of everything that a run reads from files; as ``inputs`` of ``config.json``.

    A data set counts under ``dataset``, by the content that it has before any split, wherever its files lie.

    Args:
      settings: of the run, every default filled in, and what it does not read at its default.
      source: its data set.
    """
    data = {} if source.digest is None else {DATA: source.digest}
    files = calls.files(vars(settings))
    return data | {what: checksums.file_checksum(path) for what, path in files.items() if path.is_file()}


def changed(settings: Mapping[str, Any], before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """A line for each input whose content has changed: which one, where it lies, and both digests.

    Args:
      settings: of the run, as ``config.json`` has them.
      before: its ``inputs``.
      now: the same of today.
    """
    files = calls.files(settings)
    lines = []
    for what in dict.fromkeys([*before, *now]):
        old, new = before.get(what), now.get(what)
        if old == new:
            continue
        where = f"the file {str(files[what])!r}" if what in files else f"the data set {settings.get(DATA)!r}"
        held, holds = (f"{each[:SHOWN]}..." if each else "nothing" for each in (old, new))
        lines.append(f"{what}: {where} held {held}, and holds {holds} (SHA-256)")
    return lines
