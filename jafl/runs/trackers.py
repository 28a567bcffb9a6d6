"""Trackers send the metrics of a run elsewhere: to TensorBoard, or wherever a tracker of your own writes.

A tracker is a function that opens a writer for one run. This one sends evaluations to Weights & Biases:

    class ToWandb:
        def __init__(self, path, settings, server_step):
            self.run = wandb.init(project="jafl", name=str(path), config=settings)

        def write(self, evaluation):
            self.run.log(evaluation, step=evaluation["server_step"])

        def close(self):
            self.run.finish()

    jafl.runs.runner.run(settings, "runs/mine", trackers=[ToWandb])
"""

import math
import pathlib
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from jafl.errors import SettingError


class Writer(Protocol):
    """Receives the evaluations of one run."""

    def write(self, evaluation: Mapping[str, Any]) -> None:
        """Receives an evaluation, a line of ``metrics.jsonl``, as soon as it is made."""

    def close(self) -> None:
        """Called once, when the run has ended in any way."""


# (run directory, settings, server step) -> writer. The step is 0 for a run that begins. For a run that goes on, it is
# the step of the last evaluation in the checkpoint; later evaluations come again, even if an earlier writer saw them.
Tracker = Callable[[pathlib.Path, Mapping[str, Any], int], Writer]


class TensorBoard:
    """Writes TensorBoard's event files to the subfolder ``tensorboard`` of a run directory, with tensorboardX.

    Each number of an evaluation, ``time`` and ``client_trips`` included, is a scalar over server steps.
    """

    def __init__(self, path: pathlib.Path, settings: Mapping[str, Any], server_step: int):
        from tensorboardX import SummaryWriter

        # Makes TensorBoard hide what was written after the checkpoint.
        options: dict[str, Any] = {"purge_step": server_step + 1} if server_step else {}
        # tensorboardX names files by the second: a run that goes on within a second would overwrite its earlier file.
        options["filename_suffix"] = f".{time.time_ns()}"
        self._writer = SummaryWriter(str(pathlib.Path(path) / "tensorboard"), **options)

    def write(self, evaluation: Mapping[str, Any]) -> None:
        """Writes every number of the evaluation."""
        for name, value in evaluation.items():
            if name != "server_step" and isinstance(value, (int, float)) and math.isfinite(value):
                self._writer.add_scalar(name, value, evaluation["server_step"])
        self._writer.flush()

    def close(self) -> None:
        """Closes the event file."""
        self._writer.close()


def tensorboard() -> Tracker:
    """The tracker ``TensorBoard``; raises SettingError if tensorboardX is not installed."""
    try:
        import tensorboardX  # noqa: F401
    except ImportError as error:
        raise SettingError(
            "tensorboard is True, but tensorboardX is not installed: pip install tensorboardX",
            setting="tensorboard",
        ) from error
    return TensorBoard
