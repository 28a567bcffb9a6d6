"""The run that a directory holds already: found, and removed once a new one takes its place."""

import dataclasses
import glob
import pathlib
import shutil
from collections.abc import Callable, Sequence

from jafl.base.errors import SettingError
from jafl.runs.lock import is_locked
from jafl.runs.recording.trackers import CSV, MLFLOW_RUN_ID, WANDB_RUN_ID
from jafl.simulation import checkpoints

# What a run leaves for good: its ``summary.json`` holds a digest of each.
LEFT_FOR_GOOD = (
    "config.json",
    "schedule.npz",
    "partition.npz",
    "metrics.jsonl",
    "params.npz",
    "best_params.npz",
    "client_metrics.npz",
    "reports.npz",
    "diagnostics.json",
)
FILES = (
    *LEFT_FOR_GOOD,
    "comparison.json",
    "summary.json",
    "report.html",
    "report.md",
    CSV,
    WANDB_RUN_ID,
    MLFLOW_RUN_ID,
)
PICTURES = (
    "accuracy.png",
    "label_split.png",
    "reports.png",
    "weights.png",
    "staleness.png",
    "participation.png",
    "timeline.png",
    "staleness_over_time.png",
    "in_flight.png",
    "labels_seen.png",
    "influence.png",
    "participating_examples.png",
)
CHECKPOINTS = "checkpoints"
BATCH_CHECKPOINTS = "checkpoints_together"
# The checkpoints of a run that has not taken the place of the earlier one yet.
NEW_CHECKPOINTS = ".checkpoints_of_the_new_run"
TENSORBOARD, WANDB = "tensorboard", "wandb"


class EarlierRun:
    """The files, if any, of a run or a comparison in a directory and its subfolders; SettingError for a sweep."""

    def __init__(self, path: pathlib.Path):
        self.path = path
        self.files: list[pathlib.Path] = []
        if (path / "sweep.json").is_file():
            raise SettingError(
                f"output_dir is {str(path)!r}, but holds a sweep. Name another directory, or remove it yourself.",
                setting="output_dir",
            )
        self.files = _files_of_a_run(path)

    @property
    def folders(self) -> list[pathlib.Path]:
        """The directories in which the files lie, those of the runs before the one that holds all."""
        return sorted({file.parent for file in self.files}, reverse=True)

    def refuse_if_running(self) -> None:
        """Raises SettingError if another process is running one of the runs in the subfolders."""
        for folder in self.folders:
            if folder != self.path and is_locked(folder):
                raise another_process(folder)

    def remove(self) -> None:
        """Removes the files, and the folders that are empty then; the caller holds the locks."""
        for folder in self.folders:
            _remove_run(folder, [file for file in self.files if file.parent == folder])
            if folder != self.path and not any(folder.iterdir()):
                folder.rmdir()


@dataclasses.dataclass
class Replacement:
    """A new run that takes the place of an earlier one in its directory, once it has something to show."""

    earlier: EarlierRun  # what is removed then
    begin: Callable[[], None]  # called after that: writes what the new runs have in common
    from_step: int = 1  # from whose evaluation on the new run has something to show
    is_done: bool = False  # whether it has taken the place

    def make(self) -> None:
        """Removes the earlier run, unless that has been done."""
        if not self.is_done:
            self.earlier.remove()
            self.begin()
            self.is_done = True


def another_process(path: pathlib.Path) -> SettingError:
    """The error for a directory that another process has locked."""
    return SettingError(
        f"output_dir is {str(path)!r}, where another process is running.", setting="output_dir"
    )


def _files_of_a_run(path: pathlib.Path) -> list[pathlib.Path]:
    """The files of a run or a comparison in a directory and its direct subfolders."""
    children = (folder for folder in sorted(path.glob("*-seed*")) if (folder / "config.json").is_file())
    folders = [path, *children]
    # Pictures by themselves, too: a new run removes those of its names.
    names = (*FILES, *PICTURES)
    return [folder / name for name in names for folder in folders if (folder / name).is_file()]


def _remove_run(folder: pathlib.Path, files: Sequence[pathlib.Path]) -> None:
    _remove_wandb(folder)
    for file in files:
        file.unlink(missing_ok=True)
    for name in (CHECKPOINTS, BATCH_CHECKPOINTS):
        checkpoints.delete(folder / name)
    for file in (folder / TENSORBOARD).glob("events.out.tfevents.*"):
        file.unlink()
    if (folder / TENSORBOARD).is_dir() and not any((folder / TENSORBOARD).iterdir()):
        (folder / TENSORBOARD).rmdir()


def _remove_wandb(folder: pathlib.Path) -> None:
    """Removes the run's own files of Weights & Biases: its folder may hold those of other programs' runs, too."""
    place, number = folder / WANDB, folder / WANDB_RUN_ID
    if not (number.is_file() and place.is_dir()):
        return
    for own in place.glob(f"*run-*-{glob.escape(number.read_text().strip())}"):
        shutil.rmtree(own, ignore_errors=True)
    for link in place.iterdir():  # such as latest-run
        if link.is_symlink() and not link.exists():
            link.unlink()
    if not any(place.iterdir()):
        place.rmdir()
