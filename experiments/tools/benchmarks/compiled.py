"""What the compiler for an accelerator that is not here says of the engine: estimated cycles, memory, copies.

    python -m experiments.tools.benchmarks.compiled            # seven rules, four models, v5e:1x1: 20 minutes
    python -m experiments.tools.benchmarks.compiled --models=mlp --rules=fedbuff,ace
    python -m experiments.tools.benchmarks.compiled --rules= --matmul_precision=bfloat16  # bare client steps alone
    python -m experiments.tools.benchmarks.compiled --models=resnet18 --widths=1 --rules=fedbuff  # minutes
    python -m experiments.tools.benchmarks.compiled --topology=h100      # memory and copies: no times of a GPU
    python -m experiments.tools.benchmarks.compiled --starting --default_plan --clients=1000  # before the first step

Nothing runs on an accelerator. Times are the compiler's estimates, in kilocycles a client trip (1,500 kilocycles are
a millisecond of a v5e); ``+ bytes`` adds what moves without an estimate, as bytes over the memory's bandwidth, and
what chips exchange, over that of their links, without any latency. A trip is one local step on 32 examples; 100
clients in flight, K = 10 where the rule buffers. Needs libtpu: pip install "jafl[tpu]".

``--starting`` shows what a run waits for before its first step: seconds of this machine, by the wall clock and, in
brackets, of its processors, of tracing and lowering and of compiling. One more row a model is its evaluation.
"""

import dataclasses
import functools
import gzip
import pathlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from absl import app, flags

import jafl
from experiments.harness.report import report
from experiments.tools.benchmarks.comparison import MODELS, Subject
from experiments.tools.benchmarks.compiled_estimates.estimate import Estimate
from experiments.tools.benchmarks.compiled_estimates.runs import lowered_bare_step, lowered_run
from experiments.tools.benchmarks.workloads import (
    BATCH,
    EXAMPLES,
    RATE,
    RULES,
    exponential_schedule,
    noise_federation,
    overlapping_clients,
)
from jafl.ahead_of_time import programs
from jafl.ahead_of_time.forecast import lowered_evaluations
from jafl.ahead_of_time.programs import prepare_for
from jafl.ahead_of_time.topologies import Topology, topology
from jafl.base.errors import choose
from jafl.base.precision import COMPUTE_DTYPES, MATMUL_PRECISIONS
from jafl.engine.plan.preparation import Preparation

NAMES = ("asgd", "fedasync", "fedbuff", "ace", "aced", "ca2fl", "wkafl")
MIB = 2**20

COLUMNS = ["model", "rule", "plan", "kilocycles a trip", "+ bytes", "/ bare", "a call", "arguments, MiB"]
COLUMNS += ["temporaries, MiB", "forecast, MiB", "made anew, MiB", "collectives a round", "compiling, s"]
STARTING = ["model", "rule", "plan", "tracing and lowering, s", "compiling, s"]


def prepared(
    chip: Topology,
    subject: Subject,
    rule: str,
    *,
    width: int = 1,
    clients: int = 100,
    in_flight: int = 100,
    trips: int | None = None,
    form: str = "loop",
    default_plan: bool = False,
    local_steps: int = 1,
) -> Preparation:
    """A run of ``rule`` on noise, for the chips of a topology; only shapes of its model.

    Args:
      chip: what it will be compiled for.
      subject: the model.
      rule: a name of ``RULES``, or "scaffold".
      width: trips in a wave on each chip; 1: trip by trip, on one chip.
      clients: how many there are.
      in_flight: of them at a time; all with rules that begin with all.
      trips: client trips. Default: 20 waves, and at least 600 and four times those in flight.
      form: of the waves, "loop" or "matrix".
      default_plan: take the plan that jafl chooses, in place of one of this width.
      local_steps: of a trip.
    """
    make, size = choose("rules", rule, {**RULES, "scaffold": (jafl.rules.scaffold, 10)})
    everyone, correction = bool(make().build().initial_round), make().build().correction
    number = len(chip.devices)
    trips = trips or max(20 * width * number, 600, 4 * in_flight)
    schedule = exponential_schedule(
        clients,
        size,
        -(-trips // size) * size + clients * everyone,
        concurrency=clients if everyone else min(clients, in_flight),
        initial_round=everyone,
    )
    random = np.random.default_rng(0)
    x, y = np.zeros((EXAMPLES, *subject.shape), np.float32), random.integers(0, 10, EXAMPLES)
    federation = noise_federation(x, y, overlapping_clients(random, clients))
    params = jax.eval_shape(lambda: subject.model.init(jax.random.key(0), x[:1]))
    work = jafl.client_work(
        subject.model, learning_rate=RATE, batch_size=BATCH, local_steps=local_steps, correction=correction
    )
    run = jafl.Run(schedule, federation, work, make(), params, jax.random.key(1))
    if default_plan:
        return prepare_for(chip, run, devices=number)
    plan = jafl.trip_by_trip(schedule)
    if width > 1:
        plan = jafl.in_waves(schedule, width * number, form=form, client_state=run.keeps_client_state)
    return prepare_for(chip, run, plan=plan, devices=number, together=width > 1)


def subject_of(name: str) -> Subject:
    """A model of ``MODELS``; "mlp_1000" is an MLP of 784-1000-10."""
    hidden = name.removeprefix("mlp_")
    if hidden != name and hidden.isdecimal():
        return Subject(f"MLP 784-{hidden}-10", jafl.models.mlp(10, (int(hidden),)), (784,), 1000)
    return choose("models", name, MODELS)


def per_trip(cycles: float | None, trips: float) -> str:
    """Kilocycles a trip as text."""
    return "-" if cycles is None else three_digits(cycles / trips / 1000)


def three_digits(number: float) -> str:
    """A number as text with three significant digits: 0.759, 27.2, 5,410."""
    return f"{float(f'{number:.3g}'):,.10g}"


def collectives(estimate: Estimate) -> str:
    """How many of each kind in a round, and their bytes."""
    sizes = estimate.collectives
    listed = (
        f"{count:.2g} {kind} {sizes[kind] / MIB:.3g} MiB" for kind, count in estimate.collective_count.items()
    )
    return ", ".join(listed) or "-"


def cells(estimate: Estimate, trips: float, bare: float | None, foretold: int | None = None) -> list[str]:
    """The columns after the plan. bare: kilocycles a trip of the bare step. foretold: bytes of temporaries."""
    total = estimate.all_cycles
    ratio = "-" if bare is None or total is None else three_digits(total / trips / 1000 / bare)
    anew = sum(max(array.bytes for array in one.arrays) for one in estimate.made_anew())
    return [
        per_trip(estimate.cycles, trips),
        per_trip(total, trips),
        ratio,
        "-" if estimate.cycles_per_call is None else f"{estimate.cycles_per_call / 1000:,.0f}",
        f"{estimate.memory.arguments / MIB:,.1f}",
        f"{estimate.memory.temporaries / MIB:,.2f}",
        "-" if foretold is None else f"{foretold / MIB:,.2f}",
        f"{anew / MIB:,.1f}",
        collectives(estimate),
        f"{estimate.seconds_to_compile:.0f}",
    ]


def in_words(width: int, form: str) -> str:
    """A plan as text."""
    plan = "trip by trip" if width == 1 else f"waves of {width}"
    return plan + (", matrix form" if form == "matrix" else "")


def timed(make: Callable[[], Any]) -> tuple[Any, str]:
    """What the function gives, and its seconds as text: by the wall clock, and in brackets of all processors."""
    wall, processor = time.perf_counter(), time.process_time()
    made = make()
    wall, processor = time.perf_counter() - wall, time.process_time() - processor
    return made, f"{wall:.1f} ({processor:.1f})"


def show_starting(chip: Topology, subject: Subject, run_of: Callable[[str], Preparation]) -> None:
    """Shows how long the runs of a model, and its evaluation, are traced, lowered and compiled."""

    def show(name: str, plan: str, lower: Callable[[], Any]) -> None:
        lowered, lowering = timed(lower)
        _, compiling = timed(lambda: programs.compiled(chip, lowered))
        print(report.row([subject.title, name, plan, lowering, compiling]), flush=True)

    for rule in flags.FLAGS.rules:
        run = run_of(rule)
        show(
            rule, in_words(run.plan.width, run.plan.form), functools.partial(programs.lowered_run, chip, run)
        )
    if flags.FLAGS.rules:
        show("evaluation", "-", lambda: next(lowered_evaluations(chip, run, False)))


def main(_: Sequence[str]) -> None:
    """Compiles every model, rule and width: a row of a Markdown table each."""
    options = flags.FLAGS
    chip = topology(options.topology)
    precision = options.matmul_precision
    widths = [int(width) for width in options.widths]
    said = f"{chip.name}, JAX {jax.__version__}, matmul_precision={precision}"
    said += f", compute_dtype={options.compute_dtype}"
    print(f"{said}. Compiler's estimates.", flush=True)
    print(report.heading(STARTING if options.starting else COLUMNS), flush=True)
    for model in options.models:
        subject = subject_of(model)
        in_precision = dataclasses.replace(
            subject.model, matmul_precision=precision, compute_dtype=options.compute_dtype
        )
        subject = subject._replace(model=in_precision)
        bare: dict[int, float | None] = {}

        def show(plan: str, rule: str, rest: list[str], estimate: Estimate, model: str, title: str) -> None:
            print(report.row([title, rule, plan, *rest]), flush=True)
            if options.tree:
                print(estimate.tree(), flush=True)
            if options.hlo:
                folder = pathlib.Path(options.hlo)
                folder.mkdir(parents=True, exist_ok=True)
                name = f"{model}-{rule}-{plan}-{chip.name}-{precision}".replace(" ", "_").replace(":", "_")
                (folder / f"{name}.hlo.gz").write_bytes(gzip.compress(estimate.text.encode()))

        for width in widths:
            form = options.form if width > 1 else "loop"
            run_of = functools.partial(
                prepared,
                chip,
                subject,
                width=width,
                clients=options.clients,
                in_flight=options.in_flight,
                form=form,
                default_plan=options.default_plan,
            )
            if options.starting:
                show_starting(chip, subject, run_of)
                continue
            plan = in_words(width, form)
            if chip.platform == "tpu" and options.bare:
                step = lowered_bare_step(chip, subject.model, subject.shape, width=width)
                estimate = step.estimate(chip)
                bare[width] = (estimate.all_cycles or 0) / width / 1000
                show(plan, "bare", cells(estimate, width, None), estimate, model, subject.title)
            for rule in options.rules:
                run = run_of(rule)
                lowered = lowered_run(chip, run)
                estimate = lowered.estimate(chip)
                rest = cells(estimate, lowered.trips, bare.get(width), run.forecast.parts["temporaries"])
                show(plan, rule, rest, estimate, model, subject.title)


def define_flags() -> None:
    """The flags of the command."""
    flags.DEFINE_string("topology", "v5e:1x1", "What to compile for: v5e:1x1, v5e:2x2, v6e:1x1, h100, ...")
    flags.DEFINE_list("rules", list(NAMES), "Rules.")
    flags.DEFINE_list(
        "models",
        ["softmax", "mlp", "lenet5", "emnist_cnn"],
        "Models; mlp_1000 is an MLP of 784-1000-10, resnet18 takes minutes.",
    )
    flags.DEFINE_list("widths", ["1", "64"], "Trips in a wave on each chip; 1: trip by trip.")
    flags.DEFINE_enum("form", "loop", ["loop", "matrix"], "Of waves; matrix for linear rules.")
    flags.DEFINE_enum("matmul_precision", "float32", MATMUL_PRECISIONS, "Of the models' products.")
    flags.DEFINE_enum("compute_dtype", "float32", COMPUTE_DTYPES, "In which type the models compute.")
    flags.DEFINE_integer("clients", 100, "Clients.", lower_bound=1)
    flags.DEFINE_integer(
        "in_flight", 100, "Clients in flight, for rules that do not need all.", lower_bound=1
    )
    flags.DEFINE_bool("bare", True, "Also the bare client step, for the ratio.")
    flags.DEFINE_bool(
        "default_plan", False, "Take the plan that jafl chooses, in place of one of each width."
    )
    flags.DEFINE_bool("starting", False, "Show what a run waits for before its first step, and no more.")
    flags.DEFINE_bool("tree", False, "Also print the loops of each program, with what costs most in them.")
    flags.DEFINE_string("hlo", None, "Folder for the optimised programs as text.")


if __name__ == "__main__":
    define_flags()
    app.run(main)
