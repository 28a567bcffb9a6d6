"""Makes the notebooks: writes every ``.ipynb`` from the ``.py`` beside it.

    python notebooks/make.py                     after a change of text
    python notebooks/make.py --execute           runs those whose code has changed since, and keeps their outputs
    python notebooks/make.py --execute --all     runs all of them

The ``.py`` files are the sources, in jupytext's py:percent format. Each notebook gets two things that they lack: as
its first code cell ``first_cell.py``, which installs jafl where it is missing, and above its title a badge that opens
it in Colab. Both need the address of the repository, which is ``Repository`` in ``[project.urls]`` of
``pyproject.toml``. As long as there is none, no badge is shown, and links are relative.

A notebook keeps the outputs of its last execution as long as its code is the same. Outputs of cells with the tag
``clock``, which depend on the machine's speed, are not kept, and neither is what is written on stderr, such as
progress bars. So the same source and outputs always give the same file.
"""

import argparse
import base64
import hashlib
import io
import os
import pathlib
import posixpath
import re
import resource
import tempfile
import tomllib

import jupytext
import nbformat
from nbclient import NotebookClient

FOLDER = pathlib.Path(__file__).resolve().parent
BRANCH = "main"
COLORS = 256  # in the pictures that are kept: a third of the size, and no difference to be seen
SECONDS_A_CELL = 1800


def sources() -> list[pathlib.Path]:
    """The notebooks' sources, in order."""
    return sorted(FOLDER.glob("[0-9]_*.py"))


def address(pyproject: pathlib.Path = FOLDER.parent / "pyproject.toml") -> str:
    """The repository's address; "" as long as it has none."""
    urls = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"].get("urls", {})
    return urls.get("Repository", "").removesuffix("/").removesuffix(".git")


def badge(name: str, repository: str) -> str:
    """Markdown that opens a notebook in Colab, which can read repositories on GitHub; "" for any other address."""
    github = "https://github.com/"
    if not repository.startswith(github):
        return ""
    colab = f"https://colab.research.google.com/github/{repository.removeprefix(github)}"
    picture = "https://colab.research.google.com/assets/colab-badge.svg"
    return f"[![Open in Colab]({picture})]({colab}/blob/{BRANCH}/notebooks/{name}.ipynb)\n\n"


def with_absolute_links(markdown: str, repository: str) -> str:
    """Markdown whose links into the repository lead to its pages; Colab and GitHub follow no relative ones."""
    pages = f"{repository}/blob/{BRANCH}"
    return re.sub(
        r"\]\((?!https?://)([^)\s]+)\)",
        lambda link: f"]({pages}/{posixpath.normpath(f'notebooks/{link[1]}')})",
        markdown,
    )


def first_cell(repository: str) -> str:
    """The code of the first cell, with the repository's address."""
    code = (FOLDER / "first_cell.py").read_text(encoding="utf-8").strip()
    nowhere = 'REPOSITORY = ""'
    assert code.count(nowhere) == 1
    return code.replace(nowhere, f'REPOSITORY = "{repository}"')


def notebook(source: pathlib.Path, repository: str) -> nbformat.NotebookNode:
    """The notebook of a source, without outputs."""
    read = jupytext.read(source, fmt="py:percent")
    title, *cells = read.cells
    assert title.cell_type == "markdown" and title.source.startswith("# "), (
        f"{source.name} begins with no title"
    )
    if repository:
        for cell in read.cells:
            cell.source = (
                with_absolute_links(cell.source, repository) if cell.cell_type == "markdown" else cell.source
            )
    title.source = badge(source.stem, repository) + title.source
    install = nbformat.v4.new_code_cell(first_cell(repository))
    install.metadata = {"cellView": "form", "jupyter": {"source_hidden": True}}  # Colab and Jupyter fold it
    metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    made = nbformat.v4.new_notebook(metadata=metadata, cells=[title, install, *cells])
    _name_cells(made)
    return made


def _name_cells(made: nbformat.NotebookNode) -> None:
    """Gives each cell an id that follows from its content, so that files do not differ without a reason."""
    taken: set[str] = set()
    for cell in made.cells:
        number = 0
        while (name := _digest(f"{cell.cell_type}{number}{cell.source}")[:8]) in taken:
            number += 1
        taken.add(name)
        cell.id = name


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def code_digest(made: nbformat.NotebookNode) -> str:
    """Of all code but the first cell's, on which no output depends."""
    _, *code = (cell.source for cell in made.cells if cell.cell_type == "code")
    return _digest("\n\n".join(code))


def take_outputs(made: nbformat.NotebookNode, file: pathlib.Path) -> bool:
    """Puts the outputs in ``file`` into the notebook, if they are outputs of the same code; says whether they are."""
    if not file.exists():
        return False
    old = nbformat.read(file, as_version=4)
    if old.metadata.get("outputs_of") != code_digest(made):
        return False
    for cell, before in zip(_code(made), _code(old), strict=True):
        cell.outputs, cell.execution_count = before.outputs, before.execution_count
    made.metadata["outputs_of"] = code_digest(made)
    return True


def _code(made: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [cell for cell in made.cells if cell.cell_type == "code"]


def execute(made: nbformat.NotebookNode) -> None:
    """Runs a notebook in an empty folder, with this checkout's jafl, and cleans what it leaves."""
    with tempfile.TemporaryDirectory() as folder:
        run_in(made, folder)
    for cell in _code(made):
        kept = [] if "clock" in cell.metadata.get("tags", []) else cell.outputs
        cell.outputs = [_cleaned(output) for output in kept if output.get("name") != "stderr"]
        cell.metadata.pop("execution", None)
    made.metadata["language_info"] = {"name": "python"}
    made.metadata["outputs_of"] = code_digest(made)


def run_in(made: nbformat.NotebookNode, folder: str | os.PathLike[str]) -> None:
    """Runs a notebook in a folder, with this checkout's jafl."""
    path = os.pathsep.join(filter(None, [str(FOLDER.parent), os.environ.get("PYTHONPATH")]))
    client = NotebookClient(
        made,
        timeout=SECONDS_A_CELL,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
        record_timing=False,
        coalesce_streams=True,  # as one text, however it was cut into messages
    )
    client.execute(env={**os.environ, "PYTHONPATH": path})


def _cleaned(output: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """An output whose pictures have fewer colors."""
    data = output.get("data", {})
    if "image/png" in data:
        data["image/png"] = base64.b64encode(_fewer_colors(base64.b64decode(data["image/png"]))).decode()
    return output


def _fewer_colors(png: bytes) -> bytes:
    from PIL import Image

    written = io.BytesIO()
    picture = Image.open(io.BytesIO(png)).convert("RGB")
    fewer = picture.quantize(COLORS, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    fewer.save(written, format="png", optimize=True)
    return written.getvalue()


def text(made: nbformat.NotebookNode) -> str:
    """The content of the file."""
    return nbformat.writes(made, version=4).rstrip("\n") + "\n"


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--execute", action="store_true", help="run notebooks whose outputs are of other code"
    )
    parser.add_argument("--all", action="store_true", help="with --execute: run all")
    parser.add_argument("names", nargs="*", help="beginnings of names; default: all notebooks")
    chosen = parser.parse_args()
    for source in sources():
        if chosen.names and not source.name.startswith(tuple(chosen.names)):
            continue
        made, file = notebook(source, address()), source.with_suffix(".ipynb")
        current = take_outputs(made, file)
        said = "" if current else ", WITHOUT OUTPUTS: its code has changed; run this with --execute"
        if chosen.execute and (chosen.all or not current):
            before = _processor_time()
            execute(made)
            said = f", executed in {_processor_time() - before:.0f} s of processor time"
        file.write_text(text(made), encoding="utf-8")
        print(f"{file.relative_to(FOLDER.parent)}{said}")


def _processor_time() -> float:
    """Seconds that the kernels of notebooks, which have ended, and what they started have used."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
