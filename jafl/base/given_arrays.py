"""Arrays as users give them, as NumPy's; what would lose its meaning on the way is refused."""

from typing import Any

import numpy as np

from jafl.base.errors import SettingError, require, shown


def as_array(name: str, values: Any) -> np.ndarray:
    """``values`` as an array of NumPy in the machine's order of bytes; type and shape are the caller's to check.

    Copied only where they are no array, or one in the other order of bytes.

    SettingError for masked entries, which NumPy's conversion would turn into numbers; for a sparse matrix, texts,
    dates, records and Python objects (of which nullable columns of pandas are made); and for what is no array.
    """
    masked = _masked(values)
    require(
        not masked,
        name,
        f"masked in {masked} places",
        "without masked entries",
        "Fill them with the array's filled(...), or leave out what is masked.",
    )
    # PyTorch's tensors all have ``to_dense``, and say whether they are sparse.
    methods = ("toarray", "todense", *(["to_dense"] if getattr(values, "is_sparse", False) else []))
    densify = next((method for method in methods if hasattr(values, method)), None)
    remedy = f"Call {name}.{densify}()."
    require(densify is None, name, f"a sparse {type(values).__name__}", "a dense array", remedy)
    try:
        array = np.asarray(values)
    except Exception as error:  # of any library's own conversion
        said = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise SettingError(
            f"{name} cannot become an array ({said.rstrip('.')}), but must be an array of numbers, or lists of equal "
            f"lengths. It is {shown(values, 100)}.",
            setting=name,
        ) from error
    kind = "records" if array.dtype.names else array.dtype.kind
    refused = _texts_or_objects(array) if kind in ("O", "U", "S", "T") else _NO_NUMBERS.get(kind)
    if refused is not None:
        what, remedy = refused
        require(
            False,
            f"{name}.dtype",
            str(array.dtype),
            f"a type of numbers, not {what}",
            remedy.format(name=name),
        )
    return native(array)


def _texts_or_objects(array: np.ndarray) -> tuple[str, str]:
    """(what stands in an array of texts or of Python objects, among which pandas has its texts, what to do)."""
    texts = [isinstance(value, (str, bytes)) for value in array.flat]
    if not any(texts):
        return "Python objects", (
            "Fill what is missing, then convert: a column of pandas with to_numpy(np.float32), a list of arrays with "
            "np.stack."
        )
    if not all(texts):
        return "texts and other objects", f"Fill what is missing. {_NUMBERED}"
    try:
        array.astype(float)
    except ValueError:
        return "texts", _NUMBERED
    return (
        "texts",
        "They stand for numbers: convert them with {name}.astype(np.float32), labels with astype(np.int32).",
    )


def native(array: np.ndarray) -> np.ndarray:
    """The array in the machine's order of bytes: files of some libraries have the other, which JAX does not take."""
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def _masked(values: Any) -> int:
    """How many entries are masked, in an array or in lists of them."""
    if isinstance(values, np.ma.MaskedArray):
        return int(np.ma.count_masked(values))
    if isinstance(values, (list, tuple)):
        return sum(_masked(part) for part in values if isinstance(part, (list, tuple, np.ma.MaskedArray)))
    return 0


# What to do with labels [E, C] where each example has one number.
OF_ROWS = "One-hot rows become numbers with {name}.argmax(axis=1), a column with {name}[:, 0]."
_NUMBERED = "Number them, 0 for the first: np.unique({name}, return_inverse=True)[1]."
_NO_NUMBERS = {
    "records": (
        "records of several fields",
        "Take a field, {name}['field'], or several with np.stack(..., axis=1).",
    ),
    "M": ("dates", "Say in numbers what they mean: ({name} - {name}.min()) / np.timedelta64(1, 's')."),
    "m": ("durations with a unit", "Say in which unit: {name} / np.timedelta64(1, 's')."),
}
