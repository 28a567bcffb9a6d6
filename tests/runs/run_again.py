"""For tests of runs that go on: run quietly, compare directories, stop at a given server step."""

import copy
import json
import pathlib
import shutil
import signal

from jafl.config.settings import Settings
from jafl.runs import runner

SMALL = Settings(
    algorithm="fedbuff",
    model="softmax",
    num_clients=12,
    concurrency=6,
    buffer_size=4,
    client_trips=160,
    evaluate_every=20,
)
WALL_CLOCK = ("digests", "wall_clock", "peak_memory_bytes", "seconds", "run_seconds", "compile_seconds")


def quiet(settings, folder, **options):
    """Runs without a word and without pictures of single runs; returns how the runs ended."""
    return runner.run(settings, folder, **{"show": lambda line: None, "pictures": False, **options})


def contents(folder):
    """{path: bytes, or content without wall-clock fields} of every file but pictures, empty folders included."""
    found = {}
    for path in sorted(pathlib.Path(folder).rglob("*")):
        name = str(path.relative_to(folder))
        if path.name in ("summary.json", "config.json", "comparison.json", "sweep.json"):
            found[name] = without_wall_clock(json.loads(path.read_text()))
        elif path.suffix != ".png":
            found[name] = path.read_bytes() if path.is_file() else None
    return found


def without_wall_clock(value):
    """JSON without the fields that tell how long it took and how much memory, and without the command."""
    value = copy.deepcopy(value)
    if isinstance(value, dict):
        return {k: without_wall_clock(v) for k, v in value.items() if k not in (*WALL_CLOCK, "command")}
    return [without_wall_clock(item) for item in value] if isinstance(value, list) else value


def assert_same(folder, expected):
    """Two directories hold the same files with the same bytes, wall-clock fields apart."""
    here, there = contents(folder), contents(expected)
    assert list(here) == list(there)
    for name in there:
        assert here[name] == there[name], name


def at_step(server_step, act, *, run=None):
    """A tracker that calls ``act(run directory)`` at the first evaluation from ``server_step`` on, of that run."""

    class Act:
        def __init__(self, path, settings, first_step):
            self.path, self.done = path, run is not None and path.name != run

        def write(self, evaluation):
            if evaluation["server_step"] >= server_step and not self.done:
                self.done = True
                act(self.path)

        def close(self):
            pass

    return Act


def ctrl_c(_):
    """What Ctrl-C does."""
    signal.raise_signal(signal.SIGINT)


def checkpoints_in(folder):
    """The server steps of the checkpoints of a run directory, in order."""
    return sorted(int(path.name) for path in (folder / "checkpoints").glob("*") if path.name.isdigit())


def remove(folder):
    shutil.rmtree(folder, ignore_errors=True)
