"""The cost of the engine beside the arithmetic: trips per second, side by side in one process.

    taskset -c 1 python -m experiments.tools.benchmarks.speed --output=speed.md
    python -m experiments.tools.benchmarks.speed --models=softmax,mlp --rules=fedbuff,ace --clients=100,10000
    python -m experiments.tools.benchmarks.speed --profile --models=softmax,mlp --rules=asgd,fedbuff,ace --clients=100

Five models, seven rules, three numbers of clients, 32 examples a trip, one local step, on one core: the engine beside
the programs (a), (a'), (a'') and (b) of ``baselines``. Rules with memory have all clients in flight, the others 100.
All clients' examples are rows of 3,200, so that the data are no larger where there are more clients.

Programs alternate. A row says: the engine's trips per second (median); the medians over the rounds of its time per
trip over that of each program in the same round, which a machine that is slow for a while does not disturb, the
engine with the first number of clients among them; its quickest and slowest run over its median; and the seconds that
the engine's program took to compile. A run that does not fit into the memory says how much it would need. With
--output each row is also appended to a file as soon as it is measured. Compare ratios, not seconds.

With --profile: where the engine's time over (a') goes. The parts of ``baselines.PARTS`` are added to (a') one after
the other, and a row says the time of each program, and of the engine, over that of (a') in the same round.
"""

import functools
import os
import pathlib
import time
from collections.abc import Callable

# One thread, set before JAX starts, so that the ratio compares arithmetic and not the thread pool.
os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"

import numpy as np
from absl import app, flags

import jafl
from experiments.harness.report import report
from experiments.tools.benchmarks.baselines import PARTS
from experiments.tools.benchmarks.comparison import MODELS, Comparison, Subject
from experiments.tools.benchmarks.timing import alternating, seconds
from experiments.tools.benchmarks.workloads import RULES
from jafl.base.errors import choose, require
from jafl.engine.plan.device_memory import readable

USUAL = ["asgd", "fedasync", "fedbuff", "ace", "aced", "ca2fl", "wkafl"]
NAMES = flags.DEFINE_list("rules", USUAL, f"Which rules to time, of {', '.join(RULES)}.")
MODEL_NAMES = flags.DEFINE_list("models", list(MODELS), "Which models to time.")
CLIENTS = flags.DEFINE_list("clients", ["100", "1000", "10000"], "Numbers of clients.")
TRIPS = flags.DEFINE_integer(
    "trips", None, "Client trips per timed run; if None, by the model.", lower_bound=1
)
REPEATS = flags.DEFINE_integer("repeats", None, "Timed rounds; if None, by the model.", lower_bound=1)
OUTPUT = flags.DEFINE_string("output", None, "A file to which the rows are appended.")
PROFILE = flags.DEFINE_bool("profile", False, "Time the parts that lie between (a') and the engine.")
CLOCK = flags.DEFINE_enum(
    "clock", "wall", ["wall", "processor"], "Processor seconds for machines that do other work, too."
)

COLUMNS = ["model", "rule", "N", "trips/s"]
SPEED_COLUMNS = ["/ (a)", "/ (a')", "/ (a'')", "/ (b)", "/ first N", "spread", "compiling, s"]
PROFILE_COLUMNS = [*(f"+ {name}" for name in PARTS), "engine"]


def measured(
    subject: Subject, clients: int, rule: str, first: Comparison | None
) -> tuple[list[str], Comparison]:
    """A row's columns after the first three, and the comparison.

    first: the comparison with the first number of clients.

    Raises:
      SettingError: if it does not fit into the device's memory.
    """
    comparison = Comparison(subject, clients, rule, TRIPS.value or subject.trips)
    timed = comparison.parts() if PROFILE.value else comparison.programs()
    if first and not PROFILE.value:
        timed["first N"] = first.engine()

    def reset() -> None:
        comparison.reset()
        if first:
            first.reset()

    clock = time.perf_counter if CLOCK.value == "wall" else time.process_time
    compiling = {}
    for name, program in timed.items():
        reset()
        compiling[name] = seconds(functools.partial(program.run, 0), clock)
    times = alternating(
        [functools.partial(program.run, program.trips) for program in timed.values()],
        REPEATS.value or subject.repeats,
        warm_up=subject.warm_up,
        before=reset,
        clock=clock,
    )
    per_trip = dict(zip(timed, times.T / [[program.trips] for program in timed.values()], strict=True))
    return _cells(per_trip, compiling["engine"]), comparison


def _cells(per_trip: dict[str, np.ndarray], compiling: float) -> list[str]:
    """A row's columns after the first three, from the seconds per trip of each program [repeats]."""
    engine = per_trip.pop("engine")
    middle = float(np.median(engine))
    rate = f"{1 / middle:,.0f}" if middle < 0.1 else f"{1 / middle:.2f}"
    if PROFILE.value:
        base = per_trip.pop("(a')")
        return [rate, *(f"{np.median(times / base):.2f}" for times in (*per_trip.values(), engine))]
    per_trip.setdefault("first N", engine)
    ratios = [f"{np.median(engine / times):.2f}" for times in per_trip.values()]
    spread = f"{engine.min() / middle:.2f}-{engine.max() / middle:.2f}"
    return [rate, *ratios, spread, f"{compiling:.1f}"]


def table(columns: list[str]) -> Callable[[list[str]], None]:
    """A function that writes a row of a table with these columns, to the screen and to the file.

    Raises:
      SettingError: if the file holds something else.
    """
    output = pathlib.Path(OUTPUT.value) if OUTPUT.value else None

    def write(line: str) -> None:
        print(line, flush=True)
        if output:
            with output.open("a") as file:
                file.write(line + "\n")

    if output and output.exists():
        continues = output.read_text().startswith(report.row(columns) + "\n")
        require(continues, "output", OUTPUT.value, "a new file, or one with this table", "Name another.")
    else:
        write(report.heading(columns))
    return lambda cells: write(report.row(cells))


def main(_: list[str]) -> None:
    """Times every model, rule and number of clients: a row of a Markdown table each."""
    subjects = [choose("models", name, MODELS) for name in MODEL_NAMES.value]
    for name in NAMES.value:
        choose("rules", name, RULES)
    columns = COLUMNS + (PROFILE_COLUMNS if PROFILE.value else SPEED_COLUMNS)
    write = table(columns)
    for subject in subjects:
        for rule in NAMES.value:
            first: Comparison | None = None
            comparison: Comparison | None = None  # frees the last rule's arrays
            for clients in map(int, CLIENTS.value):
                try:
                    cells, comparison = measured(subject, clients, rule, first)
                except jafl.SettingError as error:
                    if error.setting != "device memory":
                        raise
                    cells = [f"does not fit: needs {readable(error.value)}"] + [""] * (len(columns) - 4)
                else:
                    first = first or comparison
                write([subject.title, rule, f"{clients:,}", *cells])


if __name__ == "__main__":
    app.run(main)
