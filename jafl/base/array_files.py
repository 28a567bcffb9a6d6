"""Arrays in NumPy's files, read without pickles; what is wrong with a file is said in jafl's own words.

NumPy advises to allow pickles where a file holds Python objects or is no file of NumPy's at all. A pickle can run
any program, so jafl never reads one, and no message shall ask anybody to.
"""

import contextlib
import pathlib
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from typing import IO, Any

import numpy as np


class ArrayFileError(ValueError):
    """A file that holds no arrays, or damaged ones; its text says what is wrong, without the name of the file."""


def read_archive(file: pathlib.Path | IO[bytes]) -> dict[str, Any]:
    """The arrays of an .npz file, by name, checked by their checksums; ArrayFileError if it is none or damaged."""
    with _in_our_words("it is no file of named NumPy arrays (.npz)"):
        content = np.load(file, allow_pickle=False)
        if isinstance(content, np.ndarray):
            raise ArrayFileError("it holds one array (.npy), not an archive of named ones (.npz)")
        with content:
            return {name: _read_member(content, name) for name in content.files}


def write_archive(file: pathlib.Path, arrays: Mapping[str, Any]) -> None:
    """Writes arrays and numbers to an .npz file, which ``read_archive`` and ``numpy.load`` read.

    Under any names: ``numpy.savez`` takes its own arguments, ``file`` for example, for no array. Numbers of types
    that NumPy's files do not know, such as bfloat16, are float32 there, which changes none; NumPy would read bytes.
    """
    with zipfile.ZipFile(file, "w") as archive:
        for name, value in arrays.items():
            array = np.asarray(value)
            is_unknown = array.dtype.kind == "V" and array.dtype.names is None
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                known = array.astype(np.float32) if is_unknown else array
                np.lib.format.write_array(member, known, allow_pickle=False)


def read_array(file: pathlib.Path | IO[bytes], *, mapped: bool = False) -> np.ndarray:
    """The array of an .npy file; ``mapped``: its content stays on the disk until it is used. As ``read_archive``."""
    with _in_our_words("it is no file of a NumPy array (.npy)"):
        array = np.load(file, mmap_mode="r" if mapped else None, allow_pickle=False)
    if not isinstance(array, np.ndarray):
        array.close()
        raise ArrayFileError("it is an archive of named arrays (.npz), not one array (.npy)")
    return array


def _read_member(content: Any, name: str) -> np.ndarray:
    member = content[name]
    if not isinstance(member, np.ndarray):  # a file in the archive that is no array
        raise ArrayFileError(f"its part {name!r} is no NumPy array")
    return member


@contextlib.contextmanager
def _in_our_words(otherwise: str) -> Iterator[None]:
    """Turns what NumPy and zipfile raise into ``ArrayFileError``."""
    try:
        yield
    except ArrayFileError:
        raise
    except (EOFError, KeyError, MemoryError, NotImplementedError, RuntimeError, SyntaxError) as error:
        raise ArrayFileError("it is damaged") from error
    except (zipfile.BadZipFile, zlib.error) as error:
        raise ArrayFileError("it is damaged or was not written to its end") from error
    except (TypeError, ValueError) as error:
        said = str(error)
        if "Object arrays" in said:
            reason = "it holds Python objects, which jafl does not read: store arrays of numbers"
        elif "pickle" in said:
            reason = otherwise
        else:
            reason = f"it is damaged ({said.splitlines()[0] if said else type(error).__name__})"
        raise ArrayFileError(reason) from error
