"""When matplotlib is imported, and what the files hold."""

import subprocess
import sys

import pytest
from pictures import TWO

import jafl
from jafl import plots


@pytest.mark.full
def test_matplotlib_is_imported_only_for_a_picture_and_pyplot_never():
    program = (
        "import sys, jafl.plots as p; assert 'matplotlib' not in sys.modules; "
        "p.label_split([[1, 2]]); assert 'matplotlib' in sys.modules; "
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_saved_bytes_depend_on_the_picture_alone(tmp_path):
    figure = plots.accuracy(TWO, target=0.8)
    for name, picture in (("a", figure), ("b", figure), ("c", plots.accuracy(TWO, target=0.8)),
                          ("d", plots.accuracy(TWO, target=0.7))):  # fmt: skip
        plots.save(picture, tmp_path / name)
    first, again, anew, other = [(tmp_path / name).read_bytes() for name in "abcd"]
    assert first.startswith(b"\x89PNG") and first == again == anew != other
    assert b"Software" not in first and b"tEXt" not in first
    assert figure._repr_png_() == first


@pytest.mark.parametrize("name", ["curves.pdf", "curves.SVG", "curves.jpg"])
def test_a_name_of_another_format_is_refused_with_what_writes_it(tmp_path, name):
    figure = plots.accuracy(TWO)
    with pytest.raises(jafl.SettingError, match=r"must be a name for a PNG\. figure\.savefig\(path\)"):
        plots.save(figure, tmp_path / name)
    assert not any(tmp_path.iterdir())
    figure.savefig(tmp_path / name)
    assert not (tmp_path / name).read_bytes().startswith(b"\x89PNG")


def test_a_folder_is_no_file(tmp_path):
    with pytest.raises(jafl.SettingError, match="must be that of a file"):
        plots.save(plots.accuracy(TWO), tmp_path)
