"""What clients of 5 or 500 examples cost each other where trips train side by side: minibatches counted, and time.

    python -m experiments.benchmarks.unequal_clients

One epoch in minibatches of 32: 1 minibatch or 16. Side by side (``together``), trips wait for the longest among them.
Counted from the plans alone: the minibatches that are needed; the rounds that lanes take in lock step; and rounds
times lanes, what the device computes. "alike" are waves of any trips with a lane for each, "chosen" the default plan.
Times are medians of runs that alternate, side by side on this machine's processor. Takes about five minutes.
"""

import time
from collections.abc import Callable

import jax
import numpy as np
from absl import app, flags

import jafl
from jafl import engine
from jafl.planning import plan_choice
from jafl.planning.preparation import prepare
from jafl.schedule import rounds

REPEATS = flags.DEFINE_integer("repeats", 5, "Timed runs of each program.", lower_bound=1)
CLIENTS = flags.DEFINE_integer("clients", 1000, "Clients, all in flight.", lower_bound=20)
TRIPS = flags.DEFINE_integer("trips", 3000, "Client trips in a run.", lower_bound=100)

BATCH, FEW, MANY = 32, 5, 500
RULES = {"asgd": (jafl.rules.asgd, 1), "fedbuff, K = 10": (jafl.rules.fedbuff, 10)}


def federation(clients: int, share: float) -> jafl.Federation:
    """Gaussian noise [8, 8, 1] with random labels; a ``share`` of clients, spread evenly, has many examples."""
    random = np.random.default_rng(0)
    many = np.arange(clients) % round(1 / share) == 0
    sizes = np.where(many, MANY, FEW)
    x = random.normal(size=(sizes.sum(), 8, 8, 1)).astype(np.float32)
    y = random.integers(0, 10, len(x))
    partition = jafl.Partition.from_lists(np.split(np.arange(len(x)), np.cumsum(sizes)[:-1]))
    return jafl.Federation.from_arrays(x, y, partition, test_x=x[:32], test_y=y[:32], num_classes=10)


def program(arguments: tuple, plan: jafl.ExecutionPlan) -> Callable[[], object]:
    """A whole run, arrays placed beforehand."""
    schedule = arguments[0]
    arguments = (*arguments, jax.random.key(1))
    placed, carry = prepare(jafl.Run(*arguments), plan=plan, devices=1, together=True).place()
    state = {"carry": carry}

    def run() -> object:
        state["carry"] = engine.run(placed, state["carry"], 0, schedule.num_steps)
        return state["carry"].params

    return run


def compare(rule: str, share: float) -> str:
    """One line of the table."""
    data = federation(CLIENTS.value, share)
    model = jafl.models.mlp(10, (200,))
    work = jafl.client_work(model, learning_rate=0.01, batch_size=BATCH, local_epochs=1)
    make, size = RULES[rule]
    schedule = jafl.asynchronous(
        num_clients=CLIENTS.value,
        concurrency=CLIENTS.value,
        buffer_size=size,
        delay=jafl.delays.exponential(1.0),
        client_trips=TRIPS.value,
    )
    arguments = (schedule, data, work, make(), model.init(jax.random.key(0), data.x))
    cost = work.build().minibatches(data.num_examples)[schedule.client]
    plans = [
        jafl.in_waves(schedule, plan_choice.WIDTH_TOGETHER),
        prepare(jafl.Run(*arguments, jax.random.key(1)), devices=1, together=True).plan,
    ]
    runs = [program(arguments, plan) for plan in plans]
    seconds = np.zeros((REPEATS.value + 1, len(runs)))
    for repeat in range(REPEATS.value + 1):  # the first round compiles
        for number, run in enumerate(runs):
            before = time.perf_counter()
            jax.block_until_ready(run())
            seconds[repeat, number] = time.perf_counter() - before
    took = np.median(seconds[1:], axis=0)
    ratio = np.median(seconds[1:, 0] / seconds[1:, 1])
    cells = [f"{rule:16} {share:6.0%} {cost.sum():9,}"]
    for plan, time_of_plan in zip(plans, took, strict=True):
        made = rounds(plan, cost)
        cells.append(f"{made:7,.0f} {made * plan.lanes:10,.0f} {plan.lanes:5} {time_of_plan:8.2f}")
    return "  ".join([*cells, f"{ratio:6.2f}"])


def main(_: list[str]) -> None:
    """Prints one line for each rule and share of large clients."""
    columns = f"{'rounds':>7} {'computed':>10} {'lanes':>5} {'seconds':>8}"
    print(f"{'':16} {'':6} {'':9}  {'alike':>33}  {'chosen':>33}")
    print(f"{'rule':16} {'large':>6} {'needed':>9}  {columns}  {columns}  {'ratio':>6}")
    for rule in RULES:
        for share in (0.02, 0.1, 0.5):
            print(compare(rule, share), flush=True)


if __name__ == "__main__":
    app.run(main)
