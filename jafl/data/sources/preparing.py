"""Prepares a data set once, so that it can be read: ``run.py prepare``."""

import functools
import hashlib
import os
import pathlib
import shutil
import urllib.parse
from collections.abc import Callable
from typing import Any

from jafl.base.errors import SettingError, unknown_name
from jafl.base.extras import importing, is_installed
from jafl.base.paths import in_home, write_whole
from jafl.data.sources.idx import IDX_FILES, idx_examples, idx_files, idx_folder, ways_to_get
from jafl.data.sources.prepared import (
    PREPARED,
    check_prepared,
    default_data_dir,
    tensorflow_datasets,
    tfds_builder,
)
from jafl.data.sources.without_tensorflow import preparing

SECONDS_TO_CONNECT = 5


def prepare(
    name: str,
    data_dir: str | os.PathLike | None = None,
    *,
    manual_dir: str | os.PathLike | None = None,
    show: Callable[[str], None] = print,
) -> pathlib.Path:
    """Prepares a data set, once: downloads it by tensorflow-datasets. Needs no TensorFlow.

    Archives that lie in ``manual_dir`` are used instead of downloading, and checked. Fashion-MNIST's, gzipped or not,
    and those of Debian's package dataset-fashion-mnist are read without tensorflow-datasets, too.

    Args:
      name: one of ``PREPARED``.
      data_dir: made if it is not there. Default: TFDS_DATA_DIR, or ~/tensorflow_datasets.
      manual_dir: folder of archives downloaded by hand. Default: ``downloads/manual/<name>`` in ``data_dir``, without
        what stands after a slash in the name.
      show: gets each line of text for the user.

    Returns:
      The folder that holds the prepared data set.

    Raises:
      SettingError: for an unknown name; a network that does not answer (within seconds; says which file goes where);
        an archive that is truncated or not the published one; a folder that holds the data set in another format, or
        nothing of it.
    """
    if name not in PREPARED:
        raise unknown_name("prepare", name, PREPARED)
    root = in_home(data_dir) if data_dir else default_data_dir()
    if name in IDX_FILES and (files := _prepare_idx_files(name, root, manual_dir, show)):
        return files
    builder = tfds_builder(name, root)
    by_hand = root / "downloads" / "manual" / builder.name
    if manual_dir:
        by_hand = in_home(manual_dir)
    folder = pathlib.Path(builder.data_path)
    if folder.exists():
        check_prepared(name, root)
        show(f"{name} is already prepared in {folder}")
        return folder
    _check_archives(name, builder, by_hand, root / "downloads")
    show(f"Preparing {name} in {folder} ...")
    _download_and_prepare(name, builder, by_hand, root / "downloads")
    check_prepared(name, root)
    show(f"{name} is prepared in {folder}")
    return folder


def _prepare_idx_files(
    name: str, root: pathlib.Path, manual_dir: str | os.PathLike | None, show: Callable[[str], None]
) -> pathlib.Path | None:
    """Checks the IDX files of a data set, and copies them under ``root``; returns their folder.

    None where there are none, and where tensorflow-datasets has prepared the data set.
    """
    own = idx_folder(name, root)
    others = in_home(manual_dir) if manual_dir else IDX_FILES[name].folder
    files = idx_files(name, own)
    if not files and any((root / name).glob("*/dataset_info.json")):
        return None
    files = files or idx_files(name, others)
    if not files:
        if not manual_dir and is_installed("tensorflow_datasets"):
            return None
        setting, value = ("manual_dir", str(others)) if manual_dir else ("prepare", name)
        raise SettingError(
            f"{setting} is {value!r}, but neither {str(others)!r} nor {str(own)!r} has the files "
            f"{', '.join(IDX_FILES[name].digests)}, gzipped or not. {ways_to_get(name, root)}",
            setting=setting,
            value=value,
        )
    for split in ("train", "test"):
        idx_examples(name, files[0].parent, split)
    if files[0].parent == own:
        show(f"{name} is already prepared in {own}")
        return own
    try:
        own.mkdir(parents=True, exist_ok=True)
        for file in files:
            write_whole(own / file.name, functools.partial(shutil.copyfile, file))
    except OSError as error:
        raise SettingError(
            f"data_dir is {str(root)!r}, but {str(own)!r} cannot be written ({error.strerror}). Give another folder: "
            f"python run.py prepare {name} --data_dir=FOLDER",
            setting="data_dir",
            value=str(root),
        ) from error
    show(f"{name} is prepared in {own}, with the files from {others}")
    return own


def _check_archives(name: str, builder: Any, by_hand: pathlib.Path, downloads: pathlib.Path) -> None:
    """Raises SettingError if an archive put there by hand is damaged, or one must be downloaded and cannot be."""
    archives = registered_archives(builder)
    missing = [
        url
        for url, info in archives.items()
        if not ((by_hand / info.filename).exists() or kept_archive(builder, url, info, downloads).exists())
    ]
    for info in archives.values():
        if (by_hand / info.filename).exists():
            _check_archive(by_hand / info.filename, info)
    _check_network(name, missing, archives, by_hand)


def _download_and_prepare(name: str, builder: Any, by_hand: pathlib.Path, downloads: pathlib.Path) -> None:
    """Has the builder do its work; raises SettingError if it fails."""
    tfds = tensorflow_datasets()
    tfds.disable_progress_bar()
    config = tfds.download.DownloadConfig(
        try_download_gcs=False, manual_dir=os.fspath(by_hand) if by_hand.exists() else None
    )
    try:
        with preparing():
            builder.download_and_prepare(
                download_dir=os.fspath(downloads), download_config=config, file_format="array_record"
            )
    except Exception as error:  # a broken archive or a lost network may raise any error
        names = ", ".join(sorted(info.filename for info in registered_archives(builder).values()))
        first_line = (str(error).strip().splitlines() or [""])[0]
        raise SettingError(
            f"prepare is {name!r}, but preparing failed ({type(error).__name__}: {first_line}). Nothing was "
            f"left half done. If an archive is truncated, delete it in {str(downloads)!r} and try again, or "
            f"put these files into {str(by_hand)!r}: {names}.",
            setting="prepare",
        ) from error


def registered_archives(builder: Any) -> dict[str, Any]:
    """{url: size, checksum and file name} of all archives that a builder reads."""
    with importing():
        from tensorflow_datasets.core.download import checksums

    archives = builder.url_infos
    if archives is None:  # an older builder: its checksums stand in a file of its name
        path = checksums._checksum_paths()[builder.name]
        archives = checksums.load_url_infos(path)
    return dict(archives)


def kept_archive(builder: Any, url: str, info: Any, downloads: pathlib.Path) -> pathlib.Path:
    """Where tensorflow-datasets keeps an archive that it has downloaded."""
    with importing():
        from tensorflow_datasets.core.download import resource

    folder = resource.Resource(url=url).relative_download_dir
    return downloads / builder.name / folder / resource.get_dl_fname(url, info.checksum)


def _check_archive(path: pathlib.Path, info: Any) -> None:
    """Raises SettingError unless a file put there by hand is the published archive."""
    size = path.stat().st_size
    if info.size and size < info.size:
        raise SettingError(
            f"The archive {str(path)!r} is truncated: it has {size:,} of {info.size:,} bytes. Download it again."
        )
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(2**20):
            digest.update(block)
    if digest.hexdigest() != info.checksum:
        raise SettingError(
            f"The archive {str(path)!r} is not the published one: its SHA-256 checksum is {digest.hexdigest()}, but "
            f"must be {info.checksum}. Download it again from its publisher."
        )


def _check_network(name: str, missing: list[str], archives: dict[str, Any], by_hand: pathlib.Path) -> None:
    """Raises SettingError if a host of a missing archive does not answer."""
    with importing():
        import requests

    asked: set[str] = set()
    for url in missing:
        host = urllib.parse.urlsplit(url).netloc
        if host in asked:
            continue
        asked.add(host)
        try:
            requests.head(url, timeout=SECONDS_TO_CONNECT)
        except requests.RequestException as error:
            listed = "".join(f"\n  {archives[url].filename}  from {url}" for url in missing)
            package = f"apt-get install {IDX_FILES[name].package}, or " if name in IDX_FILES else ""
            raise SettingError(
                f"prepare is {name!r}, but {host} does not answer ({type(error).__name__}). Without a network, "
                f"{package}put these files into {str(by_hand)!r} and try again:{listed}",
                setting="prepare",
            ) from error
