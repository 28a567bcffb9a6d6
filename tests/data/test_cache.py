"""Decoded data sets on disk: whole or not there, never stale, never overwritten."""

import os
import threading

import numpy as np
import pytest
from refusals import refuses
from waiting import LIMIT

from jafl.base.errors import SettingError
from jafl.data.cache import DIGEST, FACTS, cached

ROWS = np.arange(24, dtype=np.uint8).reshape(6, 2, 2)


def decode(writer):
    for row in ROWS:
        writer.append("x", row[None])
    writer.append("names", np.array([b"a", b"bcd"]))
    return {"classes": 3}


def read(tmp_path, decode=decode, request=None, files=()):
    return cached("some/data", decode, cache_dir=tmp_path / "kept", request=request or {}, files=files)


def test_arrays_come_back_row_by_row_memory_mapped_and_read_only(tmp_path):
    decoded = read(tmp_path)
    np.testing.assert_array_equal(decoded.arrays["x"], ROWS)
    assert isinstance(decoded.arrays["x"], np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        decoded.arrays["x"][0] = 1
    assert decoded.arrays["names"].tolist() == [b"a", b"bcd"]
    assert decoded.facts == {"classes": 3}
    np.testing.assert_array_equal(np.load(decoded.path / "x.npy"), ROWS)  # anybody can read it


@pytest.mark.parametrize("rows", [1, 9, 10, 99_999, 100_000])
def test_headers_have_room_for_any_number_of_rows(tmp_path, rows):
    def many(writer):
        for start in range(0, rows, 30_000):
            writer.append("y", np.arange(start, min(start + 30_000, rows)))
        return {}

    np.testing.assert_array_equal(read(tmp_path, many).arrays["y"], np.arange(rows))


def test_is_decoded_once_and_anew_where_the_content_would_differ(tmp_path):
    calls = []

    def counted(writer):
        calls.append(1)
        return decode(writer)

    file = tmp_path / "source"
    file.write_bytes(b"one")
    for _ in range(2):
        first = read(tmp_path, counted, files=[file])
    assert len(calls) == 1
    assert read(tmp_path, counted, {"tokens": 3}, [file]).path != first.path
    os.utime(file, ns=(1, 1))
    assert read(tmp_path, counted, files=[file]).path != first.path
    file.write_bytes(b"three")
    read(tmp_path, counted, files=[file])
    assert len(calls) == 4
    np.testing.assert_array_equal(np.load(first.path / "x.npy"), ROWS)


@pytest.mark.parametrize("error", [RuntimeError("broken"), KeyboardInterrupt()])
def test_a_decoding_that_fails_leaves_nothing(tmp_path, error):
    def fails(writer):
        writer.append("x", ROWS)
        raise error

    with pytest.raises(type(error)):
        read(tmp_path, fails)
    assert list((tmp_path / "kept").iterdir()) == []
    assert len(read(tmp_path).arrays["x"]) == 6


def test_two_at_once_agree(tmp_path):
    both = threading.Barrier(2, timeout=LIMIT)

    def together(writer):
        both.wait()
        return decode(writer)

    found = []
    threads = [threading.Thread(target=lambda: found.append(read(tmp_path, together))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[0].path == found[1].path
    assert [folder.name for folder in (tmp_path / "kept").iterdir()] == [found[0].path.name]
    np.testing.assert_array_equal(found[0].arrays["x"], found[1].arrays["x"])


@pytest.mark.parametrize("harm", ["truncated", "missing", "no facts", "odd facts"])
def test_refuses_a_damaged_folder_and_names_it(tmp_path, harm):
    folder = read(tmp_path).path
    if harm == "truncated":
        os.truncate(folder / "x.npy", 130)
    elif harm == "missing":
        (folder / "x.npy").unlink()
    elif harm == "no facts":
        (folder / FACTS).unlink()
    else:
        (folder / FACTS).write_text('{"format"')
    with refuses(str(folder), "is damaged", "Delete this folder"):
        read(tmp_path)


def test_refuses_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "kept").write_text("a file")
    with refuses("cache_dir is", str(tmp_path / "kept"), "cannot be written", "JAFL_CACHE_DIR"):
        read(tmp_path)


def test_refuses_rows_of_another_shape_or_type(tmp_path):
    def odd(rows):
        def decode(writer):
            writer.append("x", ROWS)
            writer.append("x", rows)
            return {}

        return decode

    for rows in (ROWS[:, :1], ROWS.astype(np.int64)):
        with pytest.raises(SettingError, match="as before"):
            read(tmp_path, odd(rows))


def test_the_digest_is_that_of_the_content_wherever_it_lies(tmp_path):
    here = read(tmp_path / "a")
    assert here.digest == read(tmp_path / "b", request={"tokens": 3}).digest == read(tmp_path / "a").digest
    other = read(tmp_path / "c", lambda writer: {**decode(writer), "classes": 4})
    assert other.digest != here.digest
    file = here.path / "x.npy"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    os.utime(file, ns=(1, 1))
    assert read(tmp_path / "a").digest != here.digest, "hashed anew once it was written to"


def test_the_digest_is_computed_once_and_needs_no_place_to_keep_it(tmp_path, monkeypatch):
    first = read(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(
            "jafl.base.checksums.file_checksum", lambda path: pytest.fail(f"{path} is hashed again")
        )
        assert read(tmp_path).digest == first.digest
    (first.path / DIGEST).write_text("{")
    with monkeypatch.context() as patch:
        patch.setattr("pathlib.Path.replace", lambda *_: (_ for _ in ()).throw(PermissionError("read-only")))
        assert read(tmp_path).digest == first.digest
    assert sorted(file.name for file in first.path.iterdir()) == [DIGEST, FACTS, "names.npy", "x.npy"]
