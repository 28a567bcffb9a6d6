"""Tiny data sets in their publishers' formats, and the true builders of tensorflow-datasets on them."""

import contextlib
import gzip
import io
import json
import pathlib
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import numpy as np
from PIL import Image

from jafl.data.sources.idx import IDX_FILES
from jafl.data.sources.prepared import default_data_dir, tfds_builder
from jafl.data.sources.preparing import kept_archive, prepare, registered_archives

TRAIN, TEST = 40, 20  # examples of the image data sets
# (identity, images) of CelebA: 11 has too few to be a client.
CELEBRITIES = {7: 5, 11: 4, 23: 6, 5: 5, 9: 7, 12: 5, 31: 5, 32: 5, 33: 6, 34: 5, 35: 5}
USERS = 30
Archives = dict[str, bytes]  # by registered file name


def images(count: int, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """[count, *shape] uint8."""
    return np.random.default_rng(seed).integers(0, 256, (count, *shape), np.uint8)


def labels(count: int, classes: int) -> np.ndarray:
    """[count] uint8, every class in turn."""
    return (np.arange(count) % classes).astype(np.uint8)


def tar_gz(files: dict[str, bytes]) -> bytes:
    """A .tar.gz of ``files``."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return content.getvalue()


def zipped(files: dict[str, bytes]) -> bytes:
    """A .zip of ``files``."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return content.getvalue()


def idx(array: np.ndarray) -> bytes:
    """MNIST's format: a magic number with the number of axes, the sizes, the bytes."""
    sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
    return gzip.compress(bytes([0, 0, 8, array.ndim]) + sizes + array.tobytes())


def cifar_images(split: str) -> np.ndarray:
    """[n, 3, 32, 32]: CIFAR stores channels first."""
    return images(TRAIN if split == "train" else TEST, (3, 32, 32), 1 if split == "train" else 2)


def cifar10() -> Archives:
    """Five training files and a test file of (label, pixels)."""
    pixels, names = cifar_images("train"), labels(TRAIN, 10)
    rows = [bytes([y]) + x.tobytes() for y, x in zip(names, pixels, strict=True)]
    folder = "cifar-10-batches-bin"
    files = {f"{folder}/data_batch_{part + 1}.bin": b"".join(rows[part::5]) for part in range(5)}
    test = zip(labels(TEST, 10), cifar_images("test"), strict=True)
    files[f"{folder}/test_batch.bin"] = b"".join(bytes([y]) + x.tobytes() for y, x in test)
    groups = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
    files[f"{folder}/batches.meta.txt"] = ("\n".join(groups) + "\n\n").encode()
    return {"cifar-10-binary.tar.gz": tar_gz(files)}


def cifar100() -> Archives:
    """(coarse label, fine label, pixels)."""
    folder, files = "cifar-100-binary", {}
    for split, count in (("train", TRAIN), ("test", TEST)):
        rows = zip(labels(count, 100), cifar_images(split), strict=True)
        files[f"{folder}/{split}.bin"] = b"".join(bytes([y % 20, y]) + x.tobytes() for y, x in rows)
    features = tfds_builder("cifar100", default_data_dir()).info.features
    for file, name in (("fine_label_names.txt", "label"), ("coarse_label_names.txt", "coarse_label")):
        files[f"{folder}/{file}"] = ("\n".join(features[name].names) + "\n").encode()
    return {"cifar-100-binary.tar.gz": tar_gz(files)}


def mnist() -> Archives:
    """Four IDX files."""
    return {
        f"{file}-{kind}-ubyte.gz": idx(array)
        for file, split, count in (("train", 1, TRAIN), ("t10k", 2, TEST))
        for kind, array in (
            ("images-idx3", images(count, (28, 28), split)),
            ("labels-idx1", labels(count, 10)),
        )
    }


def emnist() -> Archives:
    """One zip of the IDX files of all its forms."""
    files = {}
    for config, classes in (("byclass", 62), ("mnist", 10)):
        for split, seed, count in (("train", 1, TRAIN), ("test", 2, TEST)):
            files[f"gzip/emnist-{config}-{split}-images-idx3-ubyte.gz"] = idx(images(count, (28, 28), seed))
            files[f"gzip/emnist-{config}-{split}-labels-idx1-ubyte.gz"] = idx(labels(count, classes))
    return {"gzip.zip": zipped(files)}


def portrait(number: int) -> np.ndarray:
    """[218, 178, 3]: one color per image, which JPEG keeps."""
    return np.full((218, 178, 3), [number * 3 % 256, 255 - number * 3 % 256, 128], np.uint8)


def celeb_a() -> Archives:
    """A zip of JPEG files and four tables."""
    who = [identity for identity, count in CELEBRITIES.items() for _ in range(count)]
    names = [f"{number + 1:06d}.jpg" for number in range(len(who))]
    pictures = {}
    for number, name in enumerate(names):
        content = io.BytesIO()
        Image.fromarray(portrait(number)).save(content, "jpeg", quality=95)
        pictures[f"img_align_celeba/{name}"] = content.getvalue()
    from tensorflow_datasets.datasets.celeb_a import celeb_a_dataset_builder as builder

    attributes, landmarks = builder.ATTR_HEADINGS, builder.LANDMARK_HEADINGS
    smiling = attributes.index("Smiling")

    def table(headings: list[str], row: Callable[[int], list[int]]) -> bytes:
        lines = [str(len(names)), " ".join(headings)]
        lines += [f"{name} {' '.join(map(str, row(number)))}" for number, name in enumerate(names)]
        return ("\n".join(lines) + "\n").encode()

    return {
        "img_align_celeba.zip": zipped(pictures),
        "list_eval_partition.txt": "".join(f"{name} {n % 3}\n" for n, name in enumerate(names)).encode(),
        "list_attr_celeba.txt": table(
            attributes,
            lambda n: [1 if a == smiling and n % 2 else -1 for a in range(len(attributes))],
        ),
        "list_landmarks_align_celeba.txt": table(landmarks, lambda n: [n] * len(landmarks)),
        "identity_CelebA.txt": "".join(f"{n} {i}\n" for n, i in zip(names, who, strict=True)).encode(),
    }


def tweet(number: int) -> tuple[int, str, str]:
    """(polarity, user, text) of a training tweet: users hold one to five tweets, in Latin-1."""
    user = f"user{number * 7 % USERS:03d}"
    mood = "love" if number % 2 else "hate"
    return 4 * (number % 2), user, f"I {mood} caf\xe9 number{number % 5}, don't I? {'so ' * (number % 40)}"


def sentiment140(tweets: int = 90) -> Archives:
    """A zip of two CSV files without headings, every field quoted."""

    def row(number: int, polarity: int, user: str, text: str) -> str:
        return f'"{polarity}","{number}","Mon Apr 06 22:19:45 PDT 2009","NO_QUERY","{user}","{text}"\n'

    train = "".join(row(number, *tweet(number)) for number in range(tweets))
    test = "".join(row(number, 2 * number, f"tester{number}", "a neutral tweet") for number in range(3))
    files = {
        "training.1600000.processed.noemoticon.csv": train.encode("latin-1"),
        "testdata.manual.2009.06.14.csv": test.encode("latin-1"),
    }
    return {"trainingandtestdata.zip": zipped(files)}


ARCHIVES: dict[str, Callable[[], Archives]] = {
    "cifar10": cifar10,
    "cifar100": cifar100,
    "mnist": mnist,
    "fashion_mnist": mnist,
    "emnist/byclass": emnist,
    "emnist/mnist": emnist,
    "celeb_a": celeb_a,
    "sentiment140": sentiment140,
}


def keep_as_downloaded(name: str, data_dir: pathlib.Path, archives: Archives) -> list[pathlib.Path]:
    """Puts archives where tensorflow-datasets keeps what it has downloaded; returns the files."""
    builder = tfds_builder(name, data_dir)
    files = []
    for url, info in registered_archives(builder).items():
        content = archives[info.filename]
        file = kept_archive(builder, url, info, data_dir / "downloads")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
        about = {"size": len(content), "checksum": info.checksum, "filename": info.filename}
        metadata = {
            "dataset_names": [builder.name],
            "urls": [url],
            "original_fname": info.filename,
            "url_info": about,
        }
        pathlib.Path(f"{file}.INFO").write_text(json.dumps(metadata))
        files.append(file)
    return files


@contextlib.contextmanager
def few_examples() -> Iterator[None]:
    """While it lasts, the builders of MNIST's kind expect as many examples as the tiny archives hold.

    And they are used: IDX files that this machine may have are not looked for.
    """
    from tensorflow_datasets.image_classification import mnist as module

    def replace(owner: Any, name: str, value: Any) -> None:
        stack.callback(
            object.__setattr__ if owner is not module else setattr, owner, name, getattr(owner, name)
        )
        (object.__setattr__ if owner is not module else setattr)(owner, name, value)

    with contextlib.ExitStack() as stack:
        replace(module, "_TRAIN_EXAMPLES", TRAIN)
        replace(module, "_TEST_EXAMPLES", TEST)
        for config in module.EMNIST.BUILDER_CONFIGS:
            replace(config, "train_examples", TRAIN)
            replace(config, "test_examples", TEST)
        stack.enter_context(mock.patch.dict(IDX_FILES, clear=True))
        yield


def prepare_tiny(name: str, data_dir: pathlib.Path) -> pathlib.Path:
    """Prepares the tiny form of ``name`` under ``data_dir`` by jafl's own command; returns its folder."""
    keep_as_downloaded(name, data_dir, ARCHIVES[name]())
    with few_examples():
        return prepare(name, data_dir, show=lambda _: None)
