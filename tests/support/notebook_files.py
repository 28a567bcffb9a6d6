"""The notebooks of the repository, and the script that makes them."""

import importlib.util
import pathlib

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "notebooks"


def _imported(file: pathlib.Path):
    specification = importlib.util.spec_from_file_location(f"notebooks_{file.stem}", file)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


make = _imported(FOLDER / "make.py")
SOURCES = make.sources()
NAMES = [source.stem for source in SOURCES]


def made(name: str, repository: str = ""):
    """A notebook as its source gives it, without outputs."""
    return make.notebook(FOLDER / f"{name}.py", repository)


def tagged(notebook, tag: str) -> list:
    """The cells with a tag."""
    return [cell for cell in notebook.cells if tag in cell.metadata.get("tags", [])]


def pictures(notebook) -> list[list[str]]:
    """Of each cell that shows any, the pictures, in base64."""
    shown = [
        [
            output["data"]["image/png"]
            for output in cell.get("outputs", [])
            if "image/png" in output.get("data", {})
        ]
        for cell in notebook.cells
    ]
    return [of_cell for of_cell in shown if of_cell]
