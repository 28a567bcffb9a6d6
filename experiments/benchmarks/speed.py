"""How much the engine costs beside the arithmetic: trips per second, side by side in one process.

    taskset -c 1 python -m experiments.benchmarks.speed --output=speed.md
    python -m experiments.benchmarks.speed --models=softmax,mlp --rules=fedbuff,ace --clients=100,10000
    python -m experiments.benchmarks.speed --profile --models=softmax,mlp --rules=asgd,fedbuff,ace --clients=100

Five models, seven rules, three numbers of clients, 32 examples a trip, one local step, on one core: the engine beside
the programs (a), (a'), (a'') and (b) of ``baselines``. Rules with memory have all clients in flight, the others 100.
All clients' examples are rows of 3,200, so that the data are no larger where there are more clients.

Programs alternate. A row says: the engine's trips per second (median); the medians over the rounds of its time per
trip over that of each program in the same round, which a machine that is slow for a while does not disturb, the
engine with the first number of clients among them; its quickest and slowest run over its median; and the seconds that
the engine's program took to compile. What does not fit into the memory says how much it would need. With
--output the rows are written to a file, too, behind those that are there, each when it is measured. Compare ratios,
not seconds.

With --profile: where the engine's time over (a') goes. The parts of ``baselines.PARTS`` are added to (a') one after
the other, and a row says the time of each program, and of the engine, over that of (a') in the same round.
"""

import os
import pathlib
import time
from collections.abc import Callable, Mapping

# One thread, set before JAX starts, so that the ratio compares arithmetic and not the thread pool.
os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"

import jax
import numpy as np
from absl import app, flags

import jafl
from experiments.benchmarks.baselines import PARTS
from experiments.benchmarks.comparison import MODELS, RULES, Comparison, Subject, Timed
from jafl.errors import choose, require
from jafl.planning.device_memory import readable

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

HEAD = ["model", "rule", "N", "trips/s"]
OF_SPEED = ["/ (a)", "/ (a')", "/ (a'')", "/ (b)", "/ first N", "spread", "compiling, s"]
OF_PROFILE = [*(f"+ {name}" for name in PARTS), "engine"]


def seconds_of(
    timed: Mapping[str, Timed], repeats: int, *, reset: Callable[[], None], warm_up: bool
) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """{name: [repeats] seconds per trip}, the programs alternating, and {name: seconds of its compilation}."""
    clock = time.perf_counter if CLOCK.value == "wall" else time.process_time

    def seconds(run: Timed, trips: int) -> float:
        reset()
        before = clock()
        jax.block_until_ready(run.run(trips))
        return clock() - before

    compiling = {name: seconds(run, 0) for name, run in timed.items()}
    rounds = [
        [seconds(run, run.trips) / run.trips for run in timed.values()] for _ in range(repeats + warm_up)
    ]
    return dict(zip(timed, np.array(rounds[warm_up:]).T, strict=True)), compiling


def measured(
    subject: Subject, clients: int, rule: str, first: Comparison | None
) -> tuple[list[str], Comparison]:
    """A row's columns after the first three, and what was compared.

    first: what was compared with the first number of clients.

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

    repeats = REPEATS.value or subject.repeats
    seconds, compiling = seconds_of(timed, repeats, reset=reset, warm_up=subject.warm_up)
    own = seconds.pop("engine")
    middle = float(np.median(own))
    rate = f"{1 / middle:,.0f}" if middle < 0.1 else f"{1 / middle:.2f}"
    if PROFILE.value:
        base = seconds.pop("(a')")
        return [rate, *(f"{np.median(other / base):.2f}" for other in (*seconds.values(), own))], comparison
    seconds.setdefault("first N", own)
    over = [f"{np.median(own / other):.2f}" for other in seconds.values()]
    spread = f"{own.min() / middle:.2f}-{own.max() / middle:.2f}"
    return [rate, *over, spread, f"{compiling['engine']:.1f}"], comparison


def table(head: list[str]) -> Callable[[list[str]], None]:
    """What writes a row of a table with this head, to the screen and to the file.

    Raises:
      SettingError: if the file holds something else.
    """
    output = pathlib.Path(OUTPUT.value) if OUTPUT.value else None

    def line(cells: list[str]) -> str:
        return f"| {' | '.join(cells)} |\n"

    def write(cells: list[str]) -> None:
        print(line(cells), end="", flush=True)
        if output:
            with output.open("a") as file:
                file.write(line(cells))

    if output and output.exists():
        there = output.read_text().startswith(line(head))
        require(there, "output", OUTPUT.value, "a new file, or one with this table", "Name another.")
    else:
        write(head)
        write(["---"] * len(head))
    return write


def main(_: list[str]) -> None:
    """Times every model, rule and number of clients: a row of a Markdown table each."""
    subjects = [choose("models", name, MODELS) for name in MODEL_NAMES.value]
    for name in NAMES.value:
        choose("rules", name, RULES)
    head = HEAD + (OF_PROFILE if PROFILE.value else OF_SPEED)
    write = table(head)
    for subject in subjects:
        for rule in NAMES.value:
            first: Comparison | None = None
            compared: Comparison | None = None  # lets the last rule's arrays go
            for clients in map(int, CLIENTS.value):
                try:
                    cells, compared = measured(subject, clients, rule, first)
                except jafl.SettingError as error:
                    if error.setting != "device memory":
                        raise
                    cells = [f"does not fit: needs {readable(error.value)}"] + [""] * (len(head) - 4)
                else:
                    first = first or compared
                write([subject.title, rule, f"{clients:,}", *cells])


if __name__ == "__main__":
    app.run(main)
