"""The notebooks in the repository are what their sources give, and their outputs are those of the same code."""

import base64
import re
import shutil

import nbformat
import pytest
from notebook_files import FOLDER, NAMES, SOURCES, made, make, pictures, tagged

# What a file must not hold, since it would differ from one execution to the next.
OF_THE_MOMENT = {
    "a time of day": r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d",
    "an address in memory": r"\bat 0x[0-9a-f]{6,}",
    "a folder of the machine that made it": r"/(tmp|home|root|Users|work)/",
    "seconds by the clock": r"seconds of (compiling|training)|\b\d+(\.\d+)? s by the clock",
}
ADDRESS = "https://github.com/someone/jafl"


def stored(name):
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


def test_there_are_six_in_order():
    assert [name[0] for name in NAMES] == list("123456")
    assert {file.stem for file in FOLDER.glob("*.ipynb")} == set(NAMES)


@pytest.mark.parametrize("source", SOURCES, ids=NAMES)
def test_the_notebook_is_current(source):
    """Byte by byte what ``python notebooks/make.py`` would write now, with outputs of the same code."""
    notebook, file = make.notebook(source, make.address()), source.with_suffix(".ipynb")
    assert make.take_outputs(notebook, file), f"{file.name} has outputs of other code: make.py --execute"
    assert file.read_text(encoding="utf-8") == make.text(notebook), (
        f"run notebooks/make.py: {file.name} is old"
    )
    nbformat.validate(notebook)


@pytest.mark.parametrize("name", NAMES)
def test_its_outputs_are_those_of_one_execution_from_start_to_end(name):
    code = [cell for cell in stored(name).cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert pictures(stored(name)), "a notebook without a picture"
    assert not [output for cell in code for output in cell.outputs if output.output_type == "error"]


@pytest.mark.parametrize("name", NAMES)
def test_nothing_in_the_file_is_of_the_moment(name):
    notebook = stored(name)
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            shown = "\n".join([output.get("text", ""), *map(str, output.get("data", {}).values())])
            for what, pattern in OF_THE_MOMENT.items():
                assert not re.search(pattern, shown), f"{name} holds {what}: {cell.source[:60]}"
            assert output.get("name") != "stderr"
    for cell in tagged(notebook, "clock"):
        assert not cell.outputs
    for picture in sum(pictures(notebook), []):
        assert base64.b64decode(picture).startswith(b"\x89PNG")


@pytest.mark.parametrize("name", NAMES)
def test_it_begins_with_what_it_teaches(name):
    title, install = stored(name).cells[:2]
    assert re.match(rf"# {name[0]}\. ", title.source) and "**What you learn here:**" in title.source
    assert install.cell_type == "code" and install.source == make.first_cell(make.address())


@pytest.mark.parametrize("name", NAMES)
def test_its_links_lead_somewhere(name):
    for link in links(made(name)):
        path, _, anchor = link.partition("#")
        assert (FOLDER / path).is_file(), f"{name} links to {link}"
        headings = re.findall(r"^#+ (.*)$", (FOLDER / path).read_text(encoding="utf-8"), re.MULTILINE)
        assert not anchor or anchor in {heading.lower().replace(" ", "-") for heading in headings}, link


def links(notebook):
    """Of the text of a notebook."""
    text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    return re.findall(r"\]\(([^)\s]+)\)", text)


def test_a_changed_text_makes_the_file_old_and_keeps_its_outputs(tmp_path):
    source, file = changed(tmp_path, "# **What you learn here:**", "# **What you learn here:** more, and")
    notebook = make.notebook(source, make.address())
    assert make.take_outputs(notebook, file) and pictures(notebook) == pictures(stored(NAMES[0]))
    assert file.read_text(encoding="utf-8") != make.text(notebook)


def test_changed_code_makes_the_outputs_those_of_other_code(tmp_path):
    source, file = changed(tmp_path, "10_000", "20_000")
    notebook = make.notebook(source, make.address())
    assert not make.take_outputs(notebook, file) and not pictures(notebook)


def changed(folder, old, new):
    """A copy of the first notebook whose source says ``new`` in the place of ``old``, and its file."""
    source = folder / SOURCES[0].name
    text = SOURCES[0].read_text(encoding="utf-8")
    assert old in text
    source.write_text(text.replace(old, new), encoding="utf-8")
    shutil.copy(SOURCES[0].with_suffix(".ipynb"), folder)
    return source, source.with_suffix(".ipynb")


@pytest.mark.parametrize("name", NAMES)
def test_making_it_twice_gives_the_same_file(name):
    first, second = (make.text(made(name)) for _ in range(2))
    assert first == second
    ids = [cell.id for cell in made(name).cells]
    assert len(set(ids)) == len(ids)


def test_equal_cells_have_different_names_and_a_new_cell_changes_no_other_name(tmp_path):
    source = tmp_path / "1_test.py"
    source.write_text("# %% [markdown]\n# # 1. Test\n\n# %%\n1\n\n# %%\n1\n")
    before = [cell.id for cell in make.notebook(source, "").cells]
    source.write_text("# %% [markdown]\n# # 1. Test\n\n# %%\n2\n\n# %%\n1\n\n# %%\n1\n")
    after = [cell.id for cell in make.notebook(source, "").cells]
    assert len(set(after)) == 5 and set(before) < set(after)


# The repository's address, in one place.


def test_the_address_is_that_of_pyproject_toml(tmp_path):
    file = tmp_path / "pyproject.toml"
    file.write_text('[project]\nname = "jafl"\n')
    assert make.address(file) == ""
    for given in (ADDRESS, f"{ADDRESS}/", f"{ADDRESS}.git"):
        file.write_text(f'[project]\nname = "jafl"\n[project.urls]\nRepository = "{given}"\n')
        assert make.address(file) == ADDRESS


@pytest.mark.parametrize("name", NAMES)
def test_with_an_address_each_notebook_has_a_badge_that_opens_it_and_fetches_jafl_from_there(name):
    title, install = made(name, ADDRESS).cells[:2]
    link = f"https://colab.research.google.com/github/someone/jafl/blob/main/notebooks/{name}.ipynb"
    assert title.source.startswith("[![Open in Colab](https://colab.") and f"]({link})" in title.source
    assert f'REPOSITORY = "{ADDRESS}"' in install.source
    code = [
        [cell for cell in made(name, each).cells[2:] if cell.cell_type == "code"] for each in ("", ADDRESS)
    ]
    assert code[0] == code[1]


@pytest.mark.parametrize("name", NAMES)
def test_with_an_address_links_lead_to_its_pages(name):
    """Neither Colab nor GitHub follows a relative link of a notebook."""
    pages = f"{ADDRESS}/blob/main/"
    _, _, *absolute = links(made(name, ADDRESS))  # after the badge and its picture
    relative = links(made(name))
    assert len(absolute) == len(relative)
    for link, before in zip(absolute, relative, strict=True):
        assert link.startswith(pages) and ".." not in link
        path = link.removeprefix(pages).partition("#")[0]
        assert (FOLDER.parent / path).samefile(FOLDER / before.partition("#")[0])


@pytest.mark.parametrize("name", NAMES)
def test_without_an_address_there_is_no_link_to_nowhere(name):
    assert "colab.research" not in make.text(made(name))
    assert make.badge(name, "https://elsewhere.example/jafl") == "", "Colab reads repositories on GitHub only"


def test_the_address_does_not_make_outputs_old():
    assert make.code_digest(made(NAMES[0], ADDRESS)) == make.code_digest(made(NAMES[0]))
