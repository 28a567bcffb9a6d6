"""The gain from several runs in one program: M of them together against the same M, one after the other.

    python -m experiments.tools.benchmarks.sweeps_speed
    python -m experiments.tools.benchmarks.sweeps_speed --models="softmax 64x10" --rules=ace --members=2,8,32

100 clients, all in flight, 32 examples a trip, one local step. *Shared*: one schedule and federation, M learning
rates and keys. *Own*: every member is a seed with its own schedule and partition. Both programs are placed and
compiled beforehand and alternate; printed are the trips per second of the separate runs and, of their time over that
together within one round, the median and the range over the rounds: above 1, together is quicker. Evaluations are
left out. Takes about ten minutes. Compare ratios, not seconds.
"""

from collections.abc import Callable

import jax
import numpy as np
from absl import app, flags

import jafl
from experiments.harness.report import report
from experiments.tools.benchmarks.timing import alternating
from experiments.tools.benchmarks.workloads import (
    RATE,
    RULES,
    exponential_schedule,
    noise,
    noise_federation,
    noise_run,
    overlapping_clients,
    whole_run,
)
from jafl.simulation.make_run_group import make_run_group, prepare_together

# {name: (shape of an example, model)}
MODELS = {
    "softmax 64x10": ((64,), jafl.models.softmax(10)),
    "MLP 64-32-10": ((64,), jafl.models.mlp(10, (32,))),
    "softmax 784x10": ((784,), jafl.models.softmax(10)),
    "MLP 784-32-10": ((784,), jafl.models.mlp(10, (32,))),
    "MLP 784-200-10": ((784,), jafl.models.mlp(10, (200,))),
    "LeNet 32x32x3": ((32, 32, 3), jafl.models.lenet5(10)),
}

MODEL_NAMES = flags.DEFINE_list("models", list(MODELS), "Which models to time.")
RULE_NAMES = flags.DEFINE_list("rules", ["fedbuff", "ace"], "Which rules to time.")
MEMBERS = flags.DEFINE_list("members", ["8"], "Numbers of runs.")
N = flags.DEFINE_integer("clients", 100, "Clients, all in flight.", lower_bound=10)
TRIPS = flags.DEFINE_integer("trips", 2000, "Client trips of each run.", lower_bound=10)
REPEATS = flags.DEFINE_integer("repeats", 5, "Timed rounds.", lower_bound=1)


def runs(model: jafl.Model, shape: tuple[int, ...], rule: str, members: int, *, own: bool) -> list[jafl.Run]:
    """M runs; ``own``: each with its own schedule and federation, else with the same."""
    make, size = RULES[rule]
    begins = make().build().initial_round

    x, y = noise(np.random.default_rng(0), shape)

    def world(seed: int) -> tuple[jafl.EventSchedule, jafl.Federation]:
        trips = TRIPS.value + N.value * begins
        schedule = exponential_schedule(N.value, size, trips, initial_round=begins, seed=seed)
        partition = overlapping_clients(np.random.default_rng(seed), N.value)
        return schedule, noise_federation(x, y, partition)

    shared = world(0)
    return [
        noise_run(
            *(world(member) if own else shared),
            model,
            make(),
            keys=(member, member),
            learning_rate=RATE * (1 + member / 10),
        )
        for member in range(members)
    ]


def one_after_the_other(members: list[jafl.Run]) -> Callable[[], object]:
    """The runs one after the other, from start to end, arrays placed beforehand."""
    programs = [whole_run(member, devices=1) for member in members]
    return lambda: [program() for program in programs]


def together(members: list[jafl.Run]) -> Callable[[], object]:
    """The runs in one program, from start to end, arrays placed beforehand."""
    group = make_run_group(*prepare_together(members))

    def train() -> object:
        group.advance(0, members[0].schedule.num_steps)
        return group.carry

    return train


def measured(members: list[jafl.Run]) -> list[str]:
    """The columns after the first four."""
    times = alternating([one_after_the_other(members), together(members)], REPEATS.value)
    ratio = times[:, 0] / times[:, 1]
    speed = len(members) * members[0].schedule.num_trips / np.median(times[:, 0])
    return [f"{speed:,.0f}", f"{np.median(ratio):.2f}", f"{ratio.min():.2f} to {ratio.max():.2f}"]


def main(_: list[str]) -> None:
    """Times every row and prints a table."""
    print(f"{jax.devices()[0].device_kind}, {N.value} clients, {TRIPS.value} trips a run")
    columns = ["model", "rule", "M", "schedules", "trips/s, apart", "apart / together", "range"]
    print(report.heading(columns))
    for name in MODEL_NAMES.value:
        shape, model = MODELS[name]
        for rule in RULE_NAMES.value:
            for members in map(int, MEMBERS.value):
                for own in (False, True):
                    cells = [name, rule, str(members), "own" if own else "shared"]
                    timed = runs(model, shape, rule, members, own=own)
                    print(report.row([*cells, *measured(timed)]), flush=True)


if __name__ == "__main__":
    app.run(main)
