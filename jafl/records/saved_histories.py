"""A history in one file: an archive of arrays in NumPy's format, and what is no array in ``history.json``.

Nothing in the file is ever executed, and every part of it is compared with its checksum when it is read.
"""

import copy
import dataclasses
import io
import json
import os
import pathlib
import re
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np

from jafl.base.array_files import ArrayFileError, read_array
from jafl.base.errors import SettingError
from jafl.base.paths import given_path, write_whole
from jafl.records.schedules import EventSchedule

FORMAT = 1
CONTENT = "history.json"


def write(history: Any, path: str | os.PathLike[str], *, overwrite: bool) -> None:
    """Writes all fields of a history; see ``History.save``."""
    file = _file(path)
    if not file.parent.is_dir():
        raise SettingError(
            f"path is {str(path)!r}, but there is no folder {str(file.parent)!r}.", setting="path"
        )
    if file.is_dir() or (file.exists() and not overwrite):
        allowed = "" if file.is_dir() else ", or say overwrite=True"
        raise SettingError(f"path is {str(path)!r}, but that is there already. Name another{allowed}.")
    arrays: dict[str, np.ndarray] = {}
    fields = {
        field.name: _encoded(getattr(history, field.name), field.name, arrays)
        for field in dataclasses.fields(history)
    }
    content = json.dumps({"format": FORMAT, "arrays": sorted(arrays), "fields": fields})

    def write_archive(temporary: pathlib.Path) -> None:
        with zipfile.ZipFile(temporary, "w") as archive:
            archive.writestr(CONTENT, content)
            for name, array in arrays.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, array, allow_pickle=False)

    write_whole(file, write_archive)


def read(kind: type, path: str | os.PathLike[str], params: Any) -> Any:
    """The history, of the class ``kind``, that ``write`` has written; see ``History.load``."""
    file = _file(path)
    if not file.is_file():
        raise SettingError(f"path is {str(path)!r}, but there is no such file.", setting="path")
    try:
        content, arrays = _parts(file)
        fields: dict[str, Any] = {
            name: _decoded(
                node, arrays, params if name in ("params", "best_params", "personal_params") else None
            )
            for name, node in content["fields"].items()
        }
        return kind(**fields)
    except SettingError as error:
        raise error.within(f"The history in {str(path)!r} cannot be read") from None
    except Exception as error:  # a damaged archive raises anything
        reason = str(error) if isinstance(error, ArrayFileError) else "it is damaged"
        raise SettingError(
            f"The history in {str(path)!r} cannot be read: {reason}. Save it again, or take a copy of the file.",
            setting="path",
        ) from error


def _file(path: Any) -> pathlib.Path:
    return given_path(path, "that of a file, 'fedbuff.npz' for example")


def _parts(file: pathlib.Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """(what is in ``history.json``, {name: array}); each part is read whole, which compares its checksum."""
    if not zipfile.is_zipfile(file):
        raise ArrayFileError("it is no file of History.save, or was not written to its end")
    with zipfile.ZipFile(file) as archive:
        if CONTENT not in archive.namelist():
            raise ArrayFileError("it is no file of History.save")
        content = json.loads(archive.read(CONTENT))
        if content["format"] != FORMAT:
            raise SettingError(
                f"it has the format {content['format']!r}, but this version of jafl reads {FORMAT} only. Read it "
                "with the version of jafl that wrote it.",
                setting="path",
            )
        names = content["arrays"]
        return content, {name: read_array(io.BytesIO(archive.read(f"{name}.npy"))) for name in names}


def _encoded(value: Any, name: str, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    """A value as JSON; its arrays are added to ``arrays``, under names made of ``name``."""

    def part(key: Any, inner: Any) -> dict[str, Any]:
        return _encoded(inner, f"{name}/{key}", arrays)

    if value is None or type(value) in (bool, int, float, str):
        return {"value": value}
    if type(value) is dict:
        return {"dict": [[_key(key, name), part(key, inner)] for key, inner in value.items()]}
    if type(value) in (list, tuple):
        return {type(value).__name__: [part(place, inner) for place, inner in enumerate(value)]}
    if isinstance(value, EventSchedule):
        # Columns that it does not have are left out: such a file is read by versions that do not know them.
        columns = {key: inner for key, inner in vars(value).items() if inner is not None}
        return {"schedule": [[key, part(key, inner)] for key, inner in columns.items()]}
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return _encoded_array(np.asarray(value), isinstance(value, np.generic), name, arrays)
    if (parts := _named_parts(value)) is not None:
        # Functions are no data: the object that this one is made like has them, too.
        data = [
            (key, inner) for key, inner in parts if not callable(inner) or _named_parts(inner) is not None
        ]
        entries = [[key, part(key, inner)] for key, inner in data]
        return {"other": _class_name(value), "parts": entries}
    raise SettingError(
        f"{name} of the history is of the type {type(value).__name__}, but must be made of arrays, numbers, texts, "
        "dicts, lists, tuples and dataclasses to be saved. dataclasses.replace(history, params=...) gives it others.",
        setting="history",
    )


def _encoded_array(
    array: np.ndarray, is_scalar: bool, name: str, arrays: dict[str, np.ndarray]
) -> dict[str, Any]:
    """An array; of types that NumPy's files do not know, such as bfloat16, its bytes and the type's name."""
    if array.dtype.hasobject:
        raise SettingError(f"{name} of the history holds Python objects, but must hold numbers.")
    member = re.sub(r"[^\w/.-]", "_", name)
    while member in arrays or f"{member}.npy" == CONTENT:
        member += "_"
    node: dict[str, Any] = {"array": member} | ({"scalar": True} if is_scalar else {})
    if array.dtype.kind == "V" and array.dtype.names is None:
        node["type"] = array.dtype.name
        arrays[member] = np.frombuffer(array.tobytes(), np.uint8).reshape(*array.shape, array.dtype.itemsize)
    else:
        arrays[member] = array
    return node


def _decoded(node: Mapping[str, Any], arrays: Mapping[str, np.ndarray], like: Any) -> Any:
    """The value of ``_encoded``; ``like`` has its structure, or is None."""

    def parts(key: str) -> list[tuple[Any, Any]]:
        known = dict(_named_parts(like) or ()) if like is not None else {}
        return [(name, _decoded(inner, arrays, known.get(name))) for name, inner in node[key]]

    if "value" in node:
        return node["value"]
    if "array" in node:
        array = arrays[node["array"]]
        if "type" in node:
            array = (
                np.frombuffer(array.tobytes(), _number_type(node["type"])).reshape(array.shape[:-1]).copy()
            )
        return array[()] if "scalar" in node else array
    if "dict" in node:
        return dict(parts("dict"))
    for kind in (list, tuple):
        if kind.__name__ in node:
            inner = node[kind.__name__]
            likes = like if isinstance(like, kind) and len(like) == len(inner) else [None] * len(inner)
            return kind(_decoded(each, arrays, other) for each, other in zip(inner, likes, strict=True))
    if "schedule" in node:
        return EventSchedule(**dict(parts("schedule")))
    _check_class(like, node["other"])
    return _object_like(like, parts("parts"))


def _check_class(like: Any, name: str) -> None:
    """Raises SettingError unless ``like`` is an object of the class of this name."""
    if like is None or _class_name(like) != name:
        kind_there = "not given" if like is None else f"of the class {_class_name(like)}"
        raise SettingError(
            f"its parameters are objects of the class {name}. Give History.load such parameters, the initial ones "
            f"for example, as params=...; they are {kind_there}.",
            setting="params",
        )


def _object_like(like: Any, parts: list[tuple[Any, Any]]) -> Any:
    """A copy of ``like`` with other parts."""
    if isinstance(like, tuple):
        return type(like)(*(value for _, value in parts))
    if isinstance(like, Mapping):
        return type(like)(dict(parts))  # type: ignore[call-arg]
    result = copy.copy(like)
    for key, value in parts:
        object.__setattr__(result, key, value)  # also where the class is frozen
    return result


def _named_parts(value: Any) -> list[tuple[Any, Any]] | None:
    """The named parts of a mapping, a named tuple or a dataclass; None of anything else."""
    if isinstance(value, Mapping):
        return list(value.items())
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return list(zip(value._fields, value, strict=True))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]
    return None


def _key(key: Any, name: str) -> Any:
    """A key of a dict that JSON returns as it is."""
    if key is None or type(key) in (bool, int, float, str):
        return key
    raise SettingError(
        f"{name} of the history has the key {key!r}, but keys must be texts or numbers to be saved."
    )


def _class_name(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _number_type(name: str) -> np.dtype:
    """A type of numbers by its name; those that NumPy lacks are of ml_dtypes, which JAX brings."""
    import ml_dtypes

    return np.dtype(getattr(ml_dtypes, name))
