"""Run directories written by hand, as a run of jafl would leave them: for tests of what reads them."""

import dataclasses
import json

import numpy as np

from jafl.config.resolution import resolve_run
from jafl.config.settings import FORMAT, Settings
from jafl.runs.directory import digests
from jafl.runs.directory.previous_run import LEFT_FOR_GOOD
from jafl.runs.directory.tables import cost_of_target

VERSIONS = {"jafl": "1", "jax": "2", "python": "3"}


def write_run(folder, accuracies=(0.1, 0.5, 0.9), *, status="finished", config=(), **settings):
    """A run of 10 trips between evaluations; ``status``: unfinished leaves no summary, dry run measures nothing."""
    folder.mkdir(parents=True, exist_ok=True)
    given = Settings.from_mapping({"algorithm": "fedbuff", "partition": "dirichlet", **settings})
    values = dataclasses.asdict(resolve_run(given, given.algorithm, int(given.seed)))
    content = {"format": FORMAT, **values, "versions": VERSIONS, "device": "cpu", "command": ["run.py"]}
    write_json(folder / "config.json", {**content, **dict(config)})
    np.savez(folder / "schedule.npz", client=np.arange(3))
    if status == "dry run":
        write_json(folder / "diagnostics.json", {"format": FORMAT})
        return folder
    evaluations = [
        {"server_step": n, "client_trips": 10 * n, "time": 0.5 * n, "test_accuracy": value}
        for n, value in enumerate(accuracies)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in evaluations))
    np.savez(folder / "params.npz", kernel=np.arange(100.0))
    if status == "unfinished":
        return folder
    summary = {
        "format": FORMAT,
        "status": status,
        "final": evaluations[-1],
        "best": evaluations[-1],
        "target_accuracy": values["target_accuracy"],
        **cost_of_target(evaluations, values["target_accuracy"]),
        "client_trips": evaluations[-1]["client_trips"],
        "trips_thrown_away": 0,
        "staleness": {"mean": 1.0},
        "wall_clock": {"run_seconds": 1.0, "compile_seconds": 1.0},
    }
    write_json(folder / "summary.json", summary)
    return folder


def write_json(path, content):
    """Writes a JSON file."""
    path.write_text(json.dumps(content))


def written_so(folder):
    """Writes the digests of a run's files anew: as if it had left them as they are now."""
    summary = json.loads((folder / "summary.json").read_text())
    summary = {name: value for name, value in summary.items() if name != digests.KEY}
    write_json(folder / "summary.json", digests.with_digests(folder, summary, LEFT_FOR_GOOD))
