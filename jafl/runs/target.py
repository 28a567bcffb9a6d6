"""Another target accuracy for runs that are over: it is read off their evaluations, and nothing is trained."""

import dataclasses
from typing import Any

from jafl import plots
from jafl.runs.directory.files import RunDirectory
from jafl.runs.directory.reader import PastRun
from jafl.runs.directory.tables import cost_of_target
from jafl.runs.recording.wall_clock import part


def with_target(past: PastRun, target_accuracy: float, *, pictures: bool) -> PastRun:
    """A run that is over, by another target: its directory says what reaching it took, and is read again.

    pictures: whether to draw the picture of the accuracy again, where there is one.
    """
    summary: dict[str, Any] = dict(past.summary or {})
    config = {**past.config, "target_accuracy": target_accuracy}
    if summary.get("target_accuracy") == target_accuracy == past.config.get("target_accuracy"):
        return past
    summary |= {"target_accuracy": target_accuracy, **cost_of_target(past.evaluations, target_accuracy)}
    directory = RunDirectory(past.path, resume=True)
    if pictures and (past.path / "accuracy.png").is_file():
        with part("pictures"):
            curves = {past.config["algorithm"]: [past.evaluations]}
            plots.save(plots.accuracy_panels(curves, target=target_accuracy), past.path / "accuracy.png")
    directory.write_summary(summary)  # before the settings: readers take its target
    directory.write_result("config.json", config)
    return dataclasses.replace(past, config=config, summary=summary)
