"""Arrays in files: what is read, and what is wrong with a file in jafl's own words."""

import io
import pickle
import zipfile

import ml_dtypes
import numpy as np
import pytest

from jafl.base.array_files import ArrayFileError, read_archive, read_array, write_archive


class Malicious:
    """Its pickle calls a function when it is read."""

    def __reduce__(self):
        return (pytest.fail, ("a pickle was read",))


def npz(**arrays) -> bytes:
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    return stream.getvalue()


def zipped(**members) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return stream.getvalue()


WHOLE = npz(client=np.arange(100), duration=np.linspace(0, 1, 100))
DAMAGED = {
    "nothing": b"",
    "text": b"client,duration\n0,1\n",
    "pickle": pickle.dumps(Malicious()),
    "an array of objects": npz(client=np.array([Malicious()], object)),
    "cut short": WHOLE[:-300],
    "no end": WHOLE[:200],
    "a flipped bit": WHOLE.replace(np.int64(77).tobytes(), np.int64(78).tobytes(), 1),
    "a member that is no array": zipped(note=b"hello"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_nobody_is_told_to_allow_pickles(tmp_path, name):
    file = tmp_path / "file.npz"
    file.write_bytes(DAMAGED[name])
    with pytest.raises(ArrayFileError) as raised:
        read_archive(file)
    said = str(raised.value)
    assert said and "allow_pickle" not in said and "pickle" not in said and "unsafely" not in said
    file.rename(tmp_path / "file.npy")
    with pytest.raises(ArrayFileError) as raised:
        read_array(tmp_path / "file.npy", mapped=name == "text")
    assert "pickle" not in str(raised.value)


def test_whole_files_are_read(tmp_path):
    (tmp_path / "a.npz").write_bytes(WHOLE)
    arrays = read_archive(tmp_path / "a.npz")
    np.testing.assert_array_equal(arrays["client"], np.arange(100))
    np.save(tmp_path / "b.npy", arrays["duration"])
    for mapped in (False, True):
        np.testing.assert_array_equal(read_array(tmp_path / "b.npy", mapped=mapped), arrays["duration"])
    with pytest.raises(ArrayFileError, match="one array"):
        read_archive(tmp_path / "b.npy")
    with pytest.raises(ArrayFileError, match="archive of named arrays"):
        read_array(tmp_path / "a.npz")
    with pytest.raises(OSError):
        read_archive(tmp_path / "none.npz")


def test_no_other_module_reads_arrays_by_itself():
    """So that no other one passes NumPy's advice on."""
    import pathlib

    import jafl

    folder = pathlib.Path(jafl.__file__).parent
    callers = [file.name for file in folder.rglob("*.py") if "np.load(" in file.read_text()]
    assert callers == ["array_files.py"]


def test_arrays_of_any_name_are_written(tmp_path):
    """A model may call its parameters so; ``numpy.savez`` has arguments of these names."""
    arrays = {"file": np.arange(2), "allow_pickle": np.ones(1), "dense/kernel": np.zeros((2, 3))}
    write_archive(tmp_path / "params.npz", arrays)
    for read in (read_archive(tmp_path / "params.npz"), dict(np.load(tmp_path / "params.npz"))):
        assert read.keys() == arrays.keys()
        for name, array in arrays.items():
            np.testing.assert_array_equal(read[name], array)


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn"])
def test_numbers_of_types_that_numpy_lacks_are_written_as_float32(tmp_path, dtype):
    exact = np.array([1.5, -0.25, 2.0], np.float32)
    write_archive(tmp_path / "params.npz", {"w": exact.astype(getattr(ml_dtypes, dtype))})
    read = np.load(tmp_path / "params.npz")["w"]
    assert read.dtype == np.float32
    np.testing.assert_array_equal(read, exact)
