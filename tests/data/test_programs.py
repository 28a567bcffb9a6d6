"""Python's source files as clients: which files count, their characters, splits, and another Python's texts."""

import os

import numpy as np
import pytest

from jafl.base.errors import SettingError
from jafl.config.builders.data import filled_in, make_partition, make_source
from jafl.config.data_cache import DataCache
from jafl.config.resolution import resolve
from jafl.config.settings import Settings
from jafl.data import characters, keep_for_server, python_source, python_source_digest
from jafl.data.sources import python_source as module

LINES = "\n".join(f"line_{number} = {number}" for number in range(40))
SMALL = {"dataset": "python_source", "algorithm": "fedbuff", "num_clients": 4, "concurrency": 2}


def text_of(numbers):
    """The characters of token numbers, without padding."""
    return "".join(characters.VOCABULARY[number] for number in np.ravel(numbers) if number > 0)


@pytest.fixture
def library(tmp_path, monkeypatch):
    """A function that makes a standard library of these files, {name: content}, the only one that there is."""

    def make(files):
        for name, content in files.items():
            file = tmp_path / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content if isinstance(content, bytes) else content.encode())
        module._files.cache_clear()
        monkeypatch.setattr(module, "_folder", lambda: tmp_path)
        return tmp_path

    yield make
    module._files.cache_clear()


# Which files count


def test_the_files_that_count(library):
    folder = library(
        {
            "b.py": LINES,
            "a/z.py": LINES,
            "a/b/c.py": LINES,
            "a.py": LINES,
            "short.py": "x" * 99,
            "just.py": "x" * 100,
            "text.txt": LINES,
            "latin.py": LINES.encode() + b"\xe9",
            "site-packages/numpy.py": LINES,
            "a/dist-packages/six.py": LINES,
            "a/__pycache__/b.py": LINES,
            "_sysconfigdata__linux.py": LINES,
            "config-3.11-linux/python-config.py": LINES,
        }
    )
    names, lengths, _ = module._files(folder)
    assert names == ["a.py", "a/b/c.py", "a/z.py", "b.py", "just.py"]
    assert lengths.tolist() == [len(LINES)] * 4 + [100]


def test_without_source_files_the_folder_is_named(library):
    folder = library({"short.py": "x"})
    with pytest.raises(SettingError, match=f"{folder}.*has no .py files"):
        python_source()


def test_the_digest_is_of_names_and_characters(library):
    library({"a.py": LINES, "b.py": LINES + LINES})
    first = python_source_digest()
    assert first.startswith(f"{os.sys.version.split()[0]}-") and len(first.rpartition("-")[2]) == 16
    library({"a.py": b"\xef\xbb\xbf" + LINES.replace("\n", "\r\n").encode(), "empty.py": ""})
    assert python_source_digest() == first, (
        "neither line breaks, nor a mark of the encoding, nor what is left out"
    )
    library({"a.py": LINES.replace("line_1 ", "line_2 ")})
    second = python_source_digest()
    library({"a.py": LINES, "c.py": LINES})
    assert len({first, second, python_source_digest()}) == 3


# Characters


@pytest.mark.parametrize("tokens", [7, 80, 10_000])
def test_x_holds_the_characters_and_y_those_that_follow(library, tokens):
    library({"a.py": LINES, "b.py": "é\t~" * 60 + "\f", "c.py": LINES * 3})
    source = python_source(split_by="examples", test_fraction=0.5, tokens=tokens) if tokens < 100 else None
    if source is None:
        source = python_source(test_fraction=0.34, tokens=tokens)
    assert (source.x.dtype, source.y.dtype, source.num_classes) == (np.uint8, np.int32, 99)
    x, y = np.concatenate([source.x, source.test_x]), np.concatenate([source.y, source.test_y])
    order = np.argsort(np.concatenate([source.train_indices, source.test_indices]))
    x, y = x[order], y[order]
    texts = [LINES, "[UNK]\t~" * 60 + "[UNK]", LINES * 3]
    assert len(x) == sum(-(-(len(text.replace("[UNK]", "?")) - 1) // tokens) for text in texts)
    np.testing.assert_array_equal(x == 0, y == -1)
    np.testing.assert_array_equal(x[:, 1:][y[:, 1:] > 0], y[:, :-1][y[:, 1:] > 0])
    starts = [text.replace("[UNK]", "\x00")[:-1].replace("\x00", "[UNK]") for text in texts]
    assert text_of(x) == "".join(starts)
    ends = [text.replace("[UNK]", "\x00")[1:].replace("\x00", "[UNK]") for text in texts]
    assert text_of(y) == "".join(ends)


def test_of_a_long_file_the_first_characters_are_used(library):
    library({"a.py": LINES, "b.py": "x" * 5000})
    whole = python_source(split_by="examples", tokens=10)
    cut = python_source(split_by="examples", tokens=10, most_characters=301)
    assert whole.natural_partition.num_clients == cut.natural_partition.num_clients == 2
    assert len(whole.x) + len(whole.test_x) == -(-(len(LINES) - 1) // 10) + 500
    assert len(cut.x) + len(cut.test_x) == 30 + 30


def test_two_halves_of_the_files_have_none_in_common(library):
    library({f"{name}.py": name * 200 for name in "abcd"})

    def there(**given):
        source = python_source(split_by="examples", tokens=20, **given)
        return {text_of(row)[0] for row in np.concatenate([source.x, source.test_x])}

    assert (there(files="even"), there(files="odd")) == ({"a", "c"}, {"b", "d"})
    assert there() == {"a", "b", "c", "d"}
    with pytest.raises(SettingError, match="files is 'uneven', but must be one of all, even, odd"):
        python_source(files="uneven")


# Clients and splits of the files that are here


@pytest.mark.parametrize(
    ("clients", "test", "validation"), [(1, 0.2, 0.0), (7, 0.2, 0.1), (10, 0.5, 0.25), (100, 0.2, 0.0)]
)
def test_as_many_clients_train_as_are_asked_for(clients, test, validation):
    source = python_source(num_clients=clients, test_fraction=test, validation_fraction=validation)
    assert source.natural_partition.num_clients == clients
    assert len(source.test_x) and (source.validation_x is not None) == bool(validation)
    by_example = python_source(num_clients=clients, test_fraction=test, split_by="examples")
    assert by_example.natural_partition.num_clients == clients
    assert len(by_example.test_x) >= clients


def test_splits_share_no_file_and_a_client_is_a_file():
    source = python_source(num_clients=30, validation_fraction=0.2)
    names, lengths, _ = module._files(module._folder())
    ends = np.cumsum(-(-(np.minimum(lengths, 20_000) - 1) // 80))
    files = {
        split: np.searchsorted(ends, getattr(source, f"{split}_indices"), side="right")
        for split in ("train", "test", "validation")
    }
    sets = [set(held.tolist()) for held in files.values()]
    assert not (sets[0] & sets[1] or sets[0] & sets[2] or sets[1] & sets[2])
    offsets = source.natural_partition.offsets
    for client in range(30):
        (file,) = set(files["train"][offsets[client] : offsets[client + 1]].tolist())
        text = module._text(module._folder(), names[file])[:20_000]
        first = source.x[offsets[client]]
        assert text_of(first) == text_of(characters._numbers(text[:80])[: min(80, len(text) - 1)])


@pytest.mark.full
def test_all_files_are_clients_of_very_unequal_size():
    source = python_source()
    sizes = source.natural_partition.sizes
    assert source.natural_partition.num_clients > 300
    assert sizes.min() < 0.05 * sizes.mean() < 0.1 * sizes.max()
    most = source.natural_partition.num_clients
    with pytest.raises(SettingError, match=f"num_clients is {most + 1}, but must be at most {most}.*files"):
        python_source(num_clients=most + 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_clients": 0}, "num_clients is 0"),
        ({"tokens": 0}, "tokens is 0"),
        ({"most_characters": 99}, "most_characters is 99, but must be a whole number of at least 100"),
        ({"split_by": "client"}, "Did you mean 'clients'"),
        ({"test_fraction": 1.0}, "test_fraction is 1.0"),
        ({"num_clients": 2, "validation_fraction": 0.01}, "such that each of them gets one of 3 clients"),
        (
            {"text_digest": "3.9.1-0123456789abcdef"},
            "text_digest is '3.9.1-0123456789abcdef'.*Use the Python",
        ),
    ],
)
def test_what_cannot_work_is_refused(arguments, message):
    with pytest.raises(SettingError, match=message):
        python_source(**arguments)


# Settings


def test_the_digest_stands_in_the_settings_of_a_run_and_refuses_other_texts():
    def resolved(settings):
        ((_, run),) = resolve({"fedbuff": settings}, DataCache())
        return run

    run = resolved(Settings(**SMALL))
    assert run.value("dataset.text_digest") == python_source_digest()
    assert (run.model, run.partition, run.num_clients) == (
        "character_lstm(hidden_sizes=[64], vector_size=8)",
        "natural",
        4,
    )
    assert resolved(run) == run
    with pytest.raises(SettingError, match="dataset.text_digest is '3.9.1-0', but must be") as refused:
        resolved(run.changed({"dataset.text_digest": "3.9.1-0"}))
    assert refused.value.setting == "dataset.text_digest"
    assert resolved(Settings(algorithm="fedbuff")).dataset == "digits"


@pytest.mark.full
def test_the_texts_are_read_once_for_the_runs_of_a_comparison(monkeypatch):
    made = []
    examples = characters._examples
    monkeypatch.setattr(characters, "_examples", lambda *given: made.append(1) or examples(*given))
    loaded = DataCache()
    settings = Settings(**SMALL)
    filled = filled_in(settings, loaded.source(settings))
    assert loaded.source(filled) is loaded.source(settings) and len(made) == 1
    loaded.source(settings.changed({"num_clients": 5}))
    assert len(made) == 2


def test_the_server_may_keep_examples_but_not_those_of_some_labels():
    source = python_source(num_clients=20, split_by="examples", most_characters=2000)
    kept = keep_for_server(source, 5)
    assert kept.server_x.shape == kept.server_y.shape == (5, 80)
    assert len(kept.x) == len(source.x) - 5 == kept.natural_partition.sizes.sum()
    with pytest.raises(SettingError, match="server_classes is .* but must be left out"):
        keep_for_server(source, 5, [1, 2])


def test_files_are_divided_anew_by_iid_and_by_nothing_that_needs_labels():
    settings = Settings(**SMALL, partition="iid")
    source = make_source(settings)
    partition = make_partition(settings, source, 0)
    assert np.ptp(partition.sizes) <= 1 and partition.num_clients == 4
    for call in ("dirichlet", "labels_per_client", "label_groups([(4, [0])])"):
        name = call.partition("(")[0]
        with pytest.raises(SettingError, match=f"partition is '{name}', but must be natural or iid, for"):
            make_partition(settings.changed({"partition": call}), source, 0)
