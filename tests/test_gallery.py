"""The gallery shows every picture that it has, its commands are right, and they draw what they stand beneath."""

import pathlib
import re
import sys

import numpy as np
import pytest
from in_process import command

from experiments.harness.declare import discovery
from jafl.config import grid

ROOT = pathlib.Path(__file__).parent.parent
FOLDER = ROOT / "docs" / "pictures"
LARGEST = 2_000_000  # bytes of all pictures
sys.path.insert(0, str(ROOT / "docs"))

import gallery  # noqa: E402  (its folder is added above)

SHOWN = re.compile(r"!\[.*?\]\(pictures/(.*?)\.png\)")
EXPERIMENT = "fedstaleweight_fig2"
PICTURES = {picture.name: picture for picture in gallery.pictures()}
# Pictures of schedules, which are the same on every machine.
DRAWN = ("timeline", "influence_fedstaleweight", "labels_seen")


def test_every_picture_is_shown_with_its_command():
    shown = SHOWN.findall(gallery.PAGE.read_text(encoding="utf-8"))
    assert len(shown) == len(set(shown)) == len(PICTURES) and set(shown) == set(PICTURES)
    others = [page for page in gallery.PAGE.parent.glob("*.md") if page != gallery.PAGE]
    elsewhere = [name for page in others for name in SHOWN.findall(page.read_text(encoding="utf-8"))]
    files = list(FOLDER.iterdir())
    assert {file.name for file in files} == {f"{name}.png" for name in [*shown, *elsewhere]}
    assert sum(file.stat().st_size for file in files) < LARGEST
    for file in files:
        assert file.read_bytes().startswith(b"\x89PNG")


def tried(arguments: tuple[str, ...]) -> list[str]:
    """The arguments for a dry run, of a sweep for its last condition."""
    swept = grid.parse(arguments[1]) if arguments[:1] == ("sweep",) else {}
    last = [f"--{setting}={values[-1]}" for setting, values in swept.items()]
    others = [each for each in (arguments[2:] if swept else arguments) if not each.startswith("--pictures=")]
    return ["plan", *last, *others, "--pictures=none"]


@pytest.mark.full
@pytest.mark.parametrize("arguments", dict.fromkeys(picture.arguments for picture in PICTURES.values()))
def test_a_command_of_the_gallery_is_one_that_run_py_takes(arguments, tmp_path):
    """An experiment has no dry run; tests/experiments runs each."""
    if arguments[:1] == ("experiment",):
        assert list(arguments[1:]) == [EXPERIMENT]
        assert EXPERIMENT in discovery.names()
    else:
        said = command([*tried(arguments), f"--output_dir={tmp_path}/run"], tmp_path)
        assert said.status == 0, said.text


@pytest.mark.full
def test_the_commands_draw_the_pictures_that_they_stand_beneath(tmp_path):
    for arguments in {PICTURES[name].arguments for name in DRAWN}:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        gallery.run(arguments, folder)
        for name in DRAWN:
            if PICTURES[name].arguments == arguments:
                made, kept = tmp_path / "made.png", FOLDER / f"{name}.png"
                made.write_bytes(gallery.compressed(folder / PICTURES[name].source))
                assert_alike(made, kept)


def assert_alike(made: pathlib.Path, kept: pathlib.Path) -> None:
    """The two pictures have one size, and hardly a pixel differs."""
    from PIL import Image

    one, other = (np.asarray(Image.open(file).convert("RGB"), np.int32) for file in (made, kept))
    assert one.shape == other.shape
    differ = np.mean(np.abs(one - other).max(axis=-1) > 32)
    assert differ < 0.001, (
        f"{kept.name} is out of date: {differ:.1%} of its pixels differ; python docs/gallery.py"
    )


def test_a_picture_that_the_page_does_not_have_is_refused():
    with pytest.raises(SystemExit, match="no picture called nothing"):
        gallery.main(["nothing"])
