"""Lets tensorflow-datasets prepare data sets where TensorFlow is not installed, and leave nothing behind.

Its builders use three functions of TensorFlow: opening a file, turning bytes into text, and encoding an image as PNG.
They are replaced where TensorFlow is not installed. The replaced names are private to tensorflow-datasets, so its
version is held below 4.10 (requirements), and the tests run every builder with the replacements.
"""

import contextlib
import importlib
import importlib.util
import io
import types
from collections.abc import Iterator
from typing import Any

from jafl.base.extras import importing

MODULES = (
    "tensorflow_datasets.core.download.extractor",
    "tensorflow_datasets.image_classification.cifar",
    "tensorflow_datasets.image_classification.mnist",
    "tensorflow_datasets.datasets.sentiment140.sentiment140_dataset_builder",
)
SECONDS_WITHOUT_ANSWER = 30


class _File:
    """A file as tf.io.gfile.GFile opens it.

    A file that is read stays open after ``with``, because members of a zip archive are read later.
    """

    def __init__(self, path: Any, mode: str = "r"):
        self._file = open(path, mode)  # noqa: SIM115
        self._written = "w" in mode

    def __enter__(self) -> Any:
        return self._file

    def __exit__(self, *_: object) -> None:
        if self._written:
            self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._file)


def _as_text(text: Any) -> str:
    return text.decode() if isinstance(text, bytes) else str(text)


def _encode_image(encoder: Any, pixels: Any) -> bytes:
    """``pixels`` [height, width, channels] uint8 as a file in the encoder's format."""
    with importing():
        from PIL import Image

    content = io.BytesIO()
    image = Image.fromarray(pixels.squeeze(-1) if pixels.shape[-1] == 1 else pixels)
    image.save(content, encoder.encoding_format)
    return content.getvalue()


@contextlib.contextmanager
def preparing() -> Iterator[None]:
    """A context in which builders need no TensorFlow, and a download that fails does so within seconds."""
    downloader = importlib.import_module("tensorflow_datasets.core.download.downloader")
    open_url = downloader._open_with_requests

    def open_in_time(url: str, **options: Any) -> Any:
        return open_url(url, **{"timeout": SECONDS_WITHOUT_ANSWER, **options})

    with contextlib.ExitStack() as stack:
        _replace(stack, downloader, "MAX_RETRIES", 1)
        _replace(stack, downloader, "_open_with_requests", open_in_time)
        if importlib.util.find_spec("tensorflow") is None:
            gfile = types.SimpleNamespace(GFile=_File)
            stand_in = types.SimpleNamespace(
                io=types.SimpleNamespace(gfile=gfile), compat=types.SimpleNamespace(as_text=_as_text)
            )
            for name in MODULES:
                _replace(stack, importlib.import_module(name), "tf", stand_in)
            features = importlib.import_module("tensorflow_datasets.core.features.image_feature")
            _replace(stack, features._ImageEncoder, "_encode_image", _encode_image)
        yield


@contextlib.contextmanager
def without_bucket() -> Iterator[None]:
    """A context in which a builder of a data set that is not prepared leaves no empty folder among temporary files.

    It would make one for a description of the data set from a bucket, which tensorflow-datasets asks no more.
    """
    info = importlib.import_module("tensorflow_datasets.core.dataset_info").DatasetInfo
    with contextlib.ExitStack() as stack:
        _replace(stack, info, "initialize_from_bucket", lambda _: None)
        yield


def _replace(stack: contextlib.ExitStack, owner: Any, name: str, value: Any) -> None:
    """Replaces an attribute until the stack unwinds."""
    before = getattr(owner, name)
    stack.callback(setattr, owner, name, before)
    setattr(owner, name, value)
