"""What is gained by several runs in one program: M of them together against the same M, one after the other.

    python -m experiments.benchmarks.sweeps_speed
    python -m experiments.benchmarks.sweeps_speed --models="softmax 64x10" --rules=ace --members=2,8,32

100 clients, all in flight, 32 examples a trip, one local step. *Shared*: one schedule and federation, M learning
rates and keys. *Own*: every member is a seed with its own schedule and partition. Both programs are placed and
compiled beforehand and alternate; printed are the trips per second of the separate runs and, of their time over that
together within one round, the median and the range over the rounds: above 1, together is quicker. Evaluations are
left out. Takes about ten minutes. Compare ratios, not seconds.
"""

import time
from collections.abc import Callable

import jax
import numpy as np
from absl import app, flags

import jafl
from jafl import engine
from jafl.planning.preparation import prepare
from jafl.simulation.batch import make_batch

CLIENTS, EXAMPLES, BATCH, RATE = 100, 3200, 32, 0.01
# {name: (shape of an example, model)}
MODELS = {
    "softmax 64x10": ((64,), jafl.models.softmax(10)),
    "MLP 64-32-10": ((64,), jafl.models.mlp(10, (32,))),
    "softmax 784x10": ((784,), jafl.models.softmax(10)),
    "MLP 784-32-10": ((784,), jafl.models.mlp(10, (32,))),
    "MLP 784-200-10": ((784,), jafl.models.mlp(10, (200,))),
    "LeNet 32x32x3": ((32, 32, 3), jafl.models.lenet5(10)),
}
# {name: (rule, K)}
RULES = {"fedbuff": (jafl.rules.fedbuff, 10), "ace": (jafl.rules.ace, 1), "wkafl": (jafl.rules.wkafl, 10)}

MODEL_NAMES = flags.DEFINE_list("models", list(MODELS), "Which models to time.")
RULE_NAMES = flags.DEFINE_list("rules", ["fedbuff", "ace"], "Which rules to time.")
MEMBERS = flags.DEFINE_list("members", ["8"], "Numbers of runs.")
N = flags.DEFINE_integer("clients", CLIENTS, "Clients, all in flight.", lower_bound=10)
TRIPS = flags.DEFINE_integer("trips", 2000, "Client trips of each run.", lower_bound=10)
REPEATS = flags.DEFINE_integer("repeats", 5, "Timed rounds.", lower_bound=1)


def runs(model: jafl.Model, shape: tuple[int, ...], rule: str, members: int, *, own: bool) -> list[jafl.Run]:
    """M runs of Gaussian noise with random labels: speed does not depend on what is learnt."""
    random = np.random.default_rng(0)
    x = random.normal(size=(EXAMPLES, *shape)).astype(np.float32)
    y = random.integers(0, 10, EXAMPLES)
    make, size = RULES[rule]
    begins = make().build().initial_round

    def setting(seed: int) -> tuple[jafl.EventSchedule, jafl.Federation]:
        order = np.random.default_rng(seed).permuted(
            np.tile(np.arange(EXAMPLES), (-(-N.value // 100), 1)), axis=1
        )
        partition = jafl.Partition(np.arange(N.value + 1) * BATCH, order.reshape(-1)[: N.value * BATCH])
        federation = jafl.Federation.from_arrays(
            x, y, partition, test_x=x[:32], test_y=y[:32], num_classes=10
        )
        schedule = jafl.asynchronous(
            num_clients=N.value,
            concurrency=N.value,
            buffer_size=size,
            delay=jafl.delays.exponential(1.0),
            client_trips=TRIPS.value + N.value * begins,
            initial_round=begins,
            seed=seed,
        )
        return schedule, federation

    common = setting(0)
    made = []
    for member in range(members):
        schedule, federation = setting(member) if own else common
        work = jafl.client_work(model, learning_rate=RATE * (1 + member / 10), batch_size=BATCH)
        params = model.init(jax.random.key(member), federation.x)
        made.append(jafl.Run(schedule, federation, work, make(), params, jax.random.key(member)))
    return made


def apart(given: list[jafl.Run]) -> Callable[[], object]:
    """The runs one after the other, from start to end, arrays placed beforehand."""
    placed = [prepare(run, devices=1).place() for run in given]
    programs, carries = [program for program, _ in placed], [carry for _, carry in placed]

    def run() -> object:
        for number, program in enumerate(programs):
            carries[number] = engine.run(program, carries[number], 0, given[number].schedule.num_steps)
        return carries

    return run


def together(given: list[jafl.Run]) -> Callable[[], object]:
    """The runs in one program, likewise."""
    batch = make_batch(given)

    def run() -> object:
        batch.advance(0, given[0].schedule.num_steps)
        return batch.carry

    return run


def seconds(run: Callable[[], object]) -> float:
    """Wall-clock of one call."""
    before = time.perf_counter()
    jax.block_until_ready(run())
    return time.perf_counter() - before


def main(_: list[str]) -> None:
    """Times every row and prints a table."""
    print(f"{jax.devices()[0].device_kind}, {N.value} clients, {TRIPS.value} trips a run")
    print("| model | rule | M | schedules | trips/s, apart | apart / together | range |")
    print("|---|---|---|---|---|---|---|")
    for name in MODEL_NAMES.value:
        shape, model = MODELS[name]
        for rule in RULE_NAMES.value:
            for members in map(int, MEMBERS.value):
                for own in (False, True):
                    given = runs(model, shape, rule, members, own=own)
                    both = apart(given), together(given)
                    times = np.array([[seconds(run) for run in both] for _ in range(REPEATS.value + 1)])[1:]
                    ratio = times[:, 0] / times[:, 1]
                    speed = members * given[0].schedule.num_trips / np.median(times[:, 0])
                    print(
                        f"| {name} | {rule} | {members} | {'own' if own else 'shared'} | {speed:,.0f} "
                        f"| {np.median(ratio):.2f} | {ratio.min():.2f} to {ratio.max():.2f} |",
                        flush=True,
                    )


if __name__ == "__main__":
    app.run(main)
