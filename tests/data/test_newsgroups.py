"""20 Newsgroups on generated posts: scikit-learn's loader, from its cache file and from the publisher's folders."""

import codecs
import os
import pickle

import numpy as np
import pytest
from post_files import WORDS, write_posts
from refusals import refuses
from sklearn.datasets import load_files

from jafl import data
from jafl.data.sources.newsgroups import CACHE_FILE, FOLDERS


def make_cache_file(folders):
    """What scikit-learn keeps after a download, without the folders."""
    bunches = {split: load_files(folders / name, encoding="latin1") for split, name in FOLDERS.items()}
    (folders / CACHE_FILE).write_bytes(codecs.encode(pickle.dumps(bunches), "zlib_codec"))


def read_back(source, x):
    return [[source.vocabulary[token] for token in row if token] for row in x]


@pytest.mark.parametrize("from_cache", [False, True])
def test_posts_come_through_without_header_quotation_and_signature(folders, from_cache):
    if from_cache:
        make_cache_file(folders)
        for name in FOLDERS.values():
            import shutil

            shutil.rmtree(folders / name)
    source = data.newsgroups(data_dir=folders, tokens=10)
    assert (source.x.shape, source.test_x.shape, source.num_classes) == ((12, 10), (6, 10), 3)
    assert source.x.dtype == np.int32
    assert np.bincount(source.y).tolist() == [4, 4, 4]
    assert np.bincount(source.test_y).tolist() == [2, 2, 2]
    for label, words in zip(source.y, read_back(source, source.x), strict=True):
        assert words[:3] == ["café", WORDS[label], WORDS[label]]
        assert words[4:6] == ["trainonly", "."]
    for label, words in zip(source.test_y, read_back(source, source.test_x), strict=True):
        assert words[:3] == ["café", WORDS[label], WORDS[label]]
        assert words[4] == "[UNK]"  # no training post has this word
    assert "quotation" not in source.vocabulary and "secret" not in source.vocabulary


def test_both_forms_hold_the_same(folders):
    plain = data.newsgroups(data_dir=folders)
    make_cache_file(folders)
    cached = data.newsgroups(data_dir=folders)
    assert plain.vocabulary == cached.vocabulary
    np.testing.assert_array_equal(np.sort(plain.x, axis=0), np.sort(cached.x, axis=0))


def test_a_second_start_reads_no_post(folders, monkeypatch):
    first = data.newsgroups(data_dir=folders)
    monkeypatch.setattr("jafl.data.sources.newsgroups._posts", None)
    again = data.newsgroups(data_dir=folders, validation_fraction=0.25)
    np.testing.assert_array_equal(first.test_x, again.test_x)
    assert np.bincount(again.validation_y).tolist() == [1, 1, 1]


def test_word_pieces_of_berts_vocabulary(folders, tmp_path):
    pytest.importorskip("tokenizers")
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "cafe", "or", "##bit", "heaven", "poly", "##gon", "."]
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("\n".join(pieces) + "\n")
    source = data.newsgroups(data_dir=folders, tokens=9, wordpiece_vocabulary=vocabulary)
    assert source.vocabulary == tuple(pieces)
    words = {0: [7, 7], 1: [8, 9, 8, 9], 2: [5, 6, 5, 6]}
    for label, row in zip(source.y, source.x, strict=True):
        inner = [4, *words[label], 1, 1, 10][:7]
        expected = [2, *inner, 3]
        assert row.tolist() == expected + [0] * (9 - len(expected))
    vocabulary.write_text("\n".join(pieces[1:]))
    with refuses("wordpiece_vocabulary is", "[PAD] first"):
        data.newsgroups(data_dir=folders, tokens=9, wordpiece_vocabulary=vocabulary)
    with refuses("wordpiece_vocabulary is", "no such file"):
        data.newsgroups(data_dir=folders, wordpiece_vocabulary=tmp_path / "none.txt")


def test_refuses_posts_that_are_not_there_or_damaged(folders, tmp_path):
    with refuses("dataset is 'newsgroups'", CACHE_FILE, "fetch_20newsgroups", "20news-bydate.tar.gz"):
        data.newsgroups(data_dir=tmp_path / "nowhere")
    make_cache_file(folders)
    file = folders / CACHE_FILE
    file.write_bytes(file.read_bytes()[:100])
    with refuses("dataset is 'newsgroups'", str(file), "cannot be read", "fetch it again"):
        data.newsgroups(data_dir=folders)
    assert list((folders / "jafl_cache").iterdir()) == []


def test_refuses_a_group_that_one_split_lacks(folders):
    """Each split numbers its labels by its own groups: those behind the group would be others."""
    (folders / FOLDERS["test"] / "comp.graphics").rename(folders / "apart")
    with refuses("dataset is 'newsgroups'", "'comp.graphics' is among the train posts only"):
        data.newsgroups(data_dir=folders)
    assert list((folders / "jafl_cache").iterdir()) == []


def test_a_post_that_moves_to_another_group_has_its_label(folders):
    """A move changes neither the name of a file, nor its size, nor its time."""
    assert np.bincount(data.newsgroups(data_dir=folders).test_y).tolist() == [2, 2, 2]
    posts = folders / FOLDERS["test"]
    (posts / "sci.space" / "20").rename(posts / "alt.atheism" / "20")
    assert np.bincount(data.newsgroups(data_dir=folders).test_y).tolist() == [3, 2, 1]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"tokens": 0}, ("tokens is 0", "at least 1")),
        ({"vocabulary_size": 0}, ("vocabulary_size is 0", "at least 1")),
        ({"test_fraction": 2.0}, ("test_fraction is 2.0",)),
    ],
)
def test_refuses_settings_before_anything_is_read(tmp_path, changed, message):
    with refuses(*message):
        data.newsgroups(data_dir=tmp_path, **changed)


class Malicious:
    """Its pickle calls a function when it is read."""

    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


def write_cache_file(folders, content, protocol=pickle.DEFAULT_PROTOCOL):
    (folders / CACHE_FILE).write_bytes(codecs.encode(pickle.dumps(content, protocol), "zlib_codec"))


def test_a_cache_file_runs_no_program(folders, tmp_path):
    trace = tmp_path / "was_here"
    evil = Malicious(os.mkdir, str(trace))
    for content in (
        evil,
        {"train": evil},
        {"train": {"data": [evil]}},
        Malicious(eval, f"open({str(trace)!r}, 'w')"),
    ):
        write_cache_file(folders, content)
        with refuses("dataset is 'newsgroups'", "cannot be read", "it names", "which no file of posts does"):
            data.newsgroups(data_dir=folders)
    assert not trace.exists()


def test_a_cache_file_cannot_smuggle_objects_into_texts(folders):
    bunches = {split: load_files(folders / name, encoding="latin1") for split, name in FOLDERS.items()}
    for name, value in {
        "data": [1] * len(bunches["train"].data),
        "target": bunches["train"].target[:-1],
        "target_names": [b"bytes"],
    }.items():
        write_cache_file(folders, {**bunches, "train": {**bunches["train"], name: value}})
        with refuses("dataset is 'newsgroups'", "one text and one label for each post"):
            data.newsgroups(data_dir=folders)


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_cache_files_of_every_protocol_are_read(folders, protocol):
    plain = data.newsgroups(data_dir=folders)
    bunches = {split: load_files(folders / name, encoding="latin1") for split, name in FOLDERS.items()}
    write_cache_file(folders, bunches, protocol)
    again = data.newsgroups(data_dir=folders)
    assert plain.vocabulary == again.vocabulary
    np.testing.assert_array_equal(np.sort(plain.x, axis=0), np.sort(again.x, axis=0))


def test_the_digest_follows_the_posts_and_not_their_place(folders, tmp_path):
    source = data.newsgroups(data_dir=folders, tokens=10)
    split = data.newsgroups(data_dir=folders, tokens=10, test_fraction=0.5, data_seed=3)
    write_posts(tmp_path / "elsewhere")
    assert source.digest == split.digest == data.newsgroups(data_dir=tmp_path / "elsewhere", tokens=10).digest
    post = next(
        path for path in sorted(folders.rglob("*")) if path.is_file() and path.parent.name == "sci.space"
    )
    post.write_bytes(post.read_bytes().replace(b"orbit", b"earth"))
    assert data.newsgroups(data_dir=folders, tokens=10).digest != source.digest
