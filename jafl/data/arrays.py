"""Checks of the arrays of which federations are made, and their final types."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jafl.base.errors import SettingError, require
from jafl.base.given_arrays import as_array
from jafl.data.checks import checked_labels, finite_number, generator, whole_number

# More classes than the first, and more than the second for each that occurs, are those of labels with large gaps.
FEW_CLASSES, LARGEST_GAP = 100, 10
# Apart from the random streams of partitions.
_TAKEN_OUT = 111


def array_pair(setting: str, pair: Any) -> tuple[Any, Any]:
    """(x, y); raises SettingError for anything else."""
    fits = isinstance(pair, (tuple, list)) and len(pair) == 2
    require(fits, setting, type(pair).__name__, "a pair (x, y)")
    return pair[0], pair[1]


def checked_clients(clients: Any) -> tuple[tuple[Any, ...], list[tuple[np.ndarray, np.ndarray]]]:
    """(the clients' names, their examples), in the order of their numbers."""
    fits = isinstance(clients, (Mapping, Sequence)) and not isinstance(clients, str)
    require(fits, "clients", type(clients).__name__, "{client: (x, y)}, or a list of (x, y)")
    listed = dict(clients) if isinstance(clients, Mapping) else dict(enumerate(clients))
    require(listed, "number of clients", 0, "at least 1")
    numbered = all(isinstance(name, (int, np.integer)) for name in listed)
    names = tuple(sorted(listed)) if numbered and set(listed) == set(range(len(listed))) else tuple(listed)
    pairs: list[tuple[np.ndarray, np.ndarray]] = []
    for name in names:
        pair = array_pair(f"clients[{name!r}]", listed[name])
        x, y = (
            as_array(f"{part} of clients[{name!r}]", values) for part, values in zip("xy", pair, strict=True)
        )
        lengths = tuple(len(part) if part.ndim else 0 for part in (x, y))
        require(
            min(lengths) > 0 and lengths[0] == lengths[1],
            f"numbers of x and y of clients[{name!r}]",
            lengths,
            "equal, and at least 1",
            "Leave clients without examples out.",
        )
        first = pairs[0] if pairs else (x, y)
        shapes = tuple(part.shape[1:] for part in (x, y))
        wanted = tuple(part.shape[1:] for part in first)
        require(
            shapes == wanted, f"shapes of an x and a y of clients[{name!r}]", shapes, f"{wanted}, as before"
        )
        for part, values, before in zip("xy", (x, y), first, strict=True):
            _check_stays(f"{part} of clients[{name!r}]", values.dtype, before.dtype, names[0])
        pairs.append((x, y))
    return names, pairs


def _check_stays(setting: str, dtype: np.dtype, before: np.dtype, first: Any) -> None:
    """Refuses numbers that would become ones of another kind beside those of the ``first`` client."""
    kinds = {"i" if kind == "u" else kind for kind in (dtype.kind, before.kind)}
    together = np.result_type(dtype, before) if len(kinds) == 1 else None
    fits = together is not None and (together.kind in kinds or together.kind == dtype.kind)
    remedy = "Convert them with astype, so that all clients have one kind of numbers."
    require(
        fits,
        f"the dtype of {setting}",
        str(dtype),
        f"of the kind of {before}, as of clients[{first!r}]",
        remedy,
    )


def taken_out(parts: list[np.ndarray], fraction: Any, seed: int) -> tuple[list[np.ndarray], np.ndarray]:
    """(what each client keeps, what is taken out), a ``fraction`` of each client's positions, at random."""
    require(
        finite_number(fraction) and 0 < fraction < 1, "test_fraction", fraction, "above 0 and below 1", ""
    )
    random = generator("seed", seed, _TAKEN_OUT)
    remainder, taken = [], []
    for part in parts:
        exact = fraction * len(part)
        number = min(int(exact) + int(random.random() < exact % 1), len(part) - 1)
        chosen = np.zeros(len(part), bool)
        chosen[random.permutation(len(part))[:number]] = True
        remainder.append(part[~chosen])
        taken.append(part[chosen])
    all_taken = np.concatenate(taken)
    remedy = "The clients have too few examples for it: raise it, or give test=(x, y)."
    require(len(all_taken) > 0, "test_fraction", fraction, "large enough for one test example", remedy)
    return remainder, all_taken


def checked_split(
    x: Any, y: Any, prefix: str, like: tuple[np.ndarray, np.ndarray] | None = None
) -> tuple[Any, Any]:
    """One split's arrays in their final types; ``like`` are the training x and y, which the others must match."""
    name_x, name_y = f"{prefix}x", f"{prefix}y"
    x = as_array(name_x, x)
    require(x.dtype.kind in "biuf", f"{name_x}.dtype", str(x.dtype), "a real number type")
    require(
        x.ndim >= 1 and len(x) > 0,
        f"{name_x}.shape",
        x.shape,
        "[examples, ...], at least one example",
        "Nothing can be evaluated without test examples." if prefix == "test_" else "",
    )
    require(0 not in x.shape, f"{name_x}.shape", x.shape, "of examples that hold numbers")
    y = _checked_targets(y, name_y)
    require(
        len(x) == len(y),
        f"len({name_y})",
        len(y),
        f"{len(x)}, which is len({name_x})",
        "Every example needs one label.",
    )
    x = _checked_numbers(x, name_x)
    if like is not None:
        kinds = {name_y: y.dtype, "y": like[1].dtype}
        floats = [name for name, dtype in kinds.items() if dtype.kind == "f"]
        if len(floats) == 1:
            (name,), (other,) = floats, set(kinds) - set(floats)
            require(
                False,
                f"{name}.dtype",
                str(kinds[name]),
                f"an integer type, as that of {other}",
                f"Convert with {name}.astype(np.int32) if every label is a whole number. For regression both are "
                "floats.",
            )
        x, y = (_alike(*both) for both in ((x, like[0], name_x, "x"), (y, like[1], name_y, "y")))
    return x, y


def _alike(array: np.ndarray, like: np.ndarray, name: str, name_like: str) -> np.ndarray:
    """``array`` in the type of ``like``; raises SettingError unless their examples are of one shape and kind."""
    shape, like_shape = array.shape[1:], like.shape[1:]
    require(shape == like_shape, f"{name}.shape[1:]", shape, f"{like_shape}, as in {name_like}")
    fits = array.dtype == like.dtype or (array.dtype.kind == "f" and like.dtype.kind == "f")
    require(fits, f"{name}.dtype", str(array.dtype), f"{like.dtype}, as in {name_like}")
    return array.astype(like.dtype, copy=False)


def _checked_targets(y: Any, name: str) -> np.ndarray:
    """Labels in their final type: whole numbers int32, several labels bool, floats float32 or float64."""
    y = as_array(name, y)
    if y.dtype.kind == "f" and y.ndim >= 1:
        return _checked_numbers(y, name)
    if y.ndim < 2:
        return checked_labels(y, name)
    require(y.dtype.kind in "iub", f"{name}.dtype", str(y.dtype), "whole numbers, bool or floats")
    return y if y.dtype == bool else _checked_numbers(y, name).astype(np.int32, copy=False)


def _checked_numbers(x: np.ndarray, name: str) -> np.ndarray:
    """``x`` in an integer type, float32 or float64; raises SettingError for numbers that a device cannot hold."""
    wide = x.dtype.kind == "i" and x.dtype.itemsize > 4 or x.dtype.kind == "u" and x.dtype.itemsize > 2
    if wide:  # Devices compute with 32 bits. Narrower types are not read, as they may be memory-mapped.
        smallest, largest = np.iinfo(np.int32).min, np.iinfo(np.int32).max
        require(
            smallest <= x.min() and x.max() <= largest,
            f"{name}'s range",
            (int(x.min()), int(x.max())),
            f"from {smallest} to {largest}",
            "Renumber tokens, or scale numbers into floats.",
        )
    if x.dtype.kind not in "iu" and x.dtype != np.float64:
        x = x.astype(np.float32, copy=False)
    if not is_memory_map(x):
        check_finite(x, name)
    return x


def is_memory_map(x: np.ndarray) -> bool:
    """Whether an array's content stays on the disk until it is used."""
    base: Any = x
    while isinstance(base, np.ndarray) and not isinstance(base, np.memmap):
        base = base.base
    return isinstance(base, np.memmap)


def check_finite(x: np.ndarray, name: str, first: int = 0, dtype: Any = None) -> None:
    """Refuses rows [n, ...] of floats that are not finite; memory maps are checked as they are placed on a device.

    Says how many there are, and the first one with its number, counted from ``first``. dtype: in which the device
    holds them, where that is another type: a number may be infinite there alone.
    """
    if x.dtype.kind != "f":
        return
    with np.errstate(over="ignore"):
        held = x if dtype is None else x.astype(dtype, copy=False)
    if np.isfinite(held).all():
        return
    rows = ~np.isfinite(held.reshape(len(x), -1)).all(axis=1)
    row = int(np.argmax(rows))
    place = tuple(int(axis) for axis in np.argwhere(~np.isfinite(held[row]))[0])
    value, becomes = x[row][place], ""
    if np.isfinite(value):
        becomes = f", which is {held[row][place]} in {held.dtype}, in which the device computes"
    within = f" at {list(place)}" if place else ""
    raise SettingError(
        f"{name} holds NaN or infinity in {int(rows.sum())} of {len(x)} examples (the first is number "
        f"{first + row}, {value:g}{within}{becomes}), but must be finite. Drop, fill or scale these.",
        setting=name,
        value=float(value),
    )


def _check_gaps(number: int, labels: dict[str, np.ndarray]) -> None:
    """Refuses labels of which most of ``number`` classes have no example; tokens of texts may be few of many."""
    if number <= FEW_CLASSES or any(y.ndim > 1 for y in labels.values()):
        return
    occurring = len(set().union(*(np.unique(y).tolist() for y in labels.values())))
    require(
        number <= LARGEST_GAP * occurring,
        "largest label in y",
        number - 1,
        f"below {LARGEST_GAP * occurring}, for only {occurring} different labels occur",
        "Number them from 0 without gaps: np.unique(y, return_inverse=True)[1]. If there are so many classes, "
        f"say num_classes={number}.",
    )


def checked_num_classes(num_classes: int | None, labels: dict[str, np.ndarray]) -> int:
    """The number of classes of ``labels`` {name: [n]}; raises SettingError for a label beyond one that is given."""
    if any(y.dtype.kind == "f" for y in labels.values()):
        allowed = "None or 0, for y holds floats (whole numbers are labels)"
        require(num_classes in (None, 0), "num_classes", num_classes, allowed)
        return 0
    flags = [y.shape[1:] for y in labels.values() if y.dtype == bool]
    if flags:
        number = int(np.prod(flags[0]))
        require(
            num_classes in (None, number), "num_classes", num_classes, f"{number}, the labels of an example"
        )
        return number
    if num_classes is None:
        number = max(1, 1 + max(int(y.max()) for y in labels.values()))
        _check_gaps(number, labels)
        return number
    num_classes = whole_number("num_classes", num_classes, 1)
    for name, y in labels.items():
        require(
            y.max() < num_classes,
            f"largest label in {name}",
            int(y.max()),
            f"less than num_classes = {num_classes}",
            "Raise num_classes, or number the classes from 0.",
        )
    return num_classes
