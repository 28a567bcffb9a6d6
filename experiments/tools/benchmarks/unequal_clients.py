"""The cost of clients of 5 and of 500 examples to each other, side by side: minibatches counted, and time.

    python -m experiments.tools.benchmarks.unequal_clients

One epoch in minibatches of 32: 1 minibatch or 16. Side by side (``together``), trips wait for the longest among them.
Counted from the plans alone: the minibatches that are needed; the rounds that lanes take in lock step; and rounds
times lanes, what the device computes. "alike" are waves of any trips with a lane for each, "chosen" the default plan.
Times are medians of runs that alternate, side by side on this machine's processor. Takes about five minutes.
"""

import numpy as np
from absl import app, flags

import jafl
from experiments.tools.benchmarks.timing import alternating
from experiments.tools.benchmarks.workloads import (
    exponential_schedule,
    noise,
    noise_federation,
    noise_run,
    whole_run,
)
from jafl.engine.plan import plan_choice, preparation
from jafl.engine.plan.slots_and_waves import rounds

REPEATS = flags.DEFINE_integer("repeats", 5, "Timed runs of each program.", lower_bound=1)
CLIENTS = flags.DEFINE_integer("clients", 1000, "Clients, all in flight.", lower_bound=20)
TRIPS = flags.DEFINE_integer("trips", 3000, "Client trips in a run.", lower_bound=100)

FEW, MANY = 5, 500
RULES = {"asgd": (jafl.rules.asgd, 1), "fedbuff, K = 10": (jafl.rules.fedbuff, 10)}


def federation(clients: int, share: float) -> jafl.Federation:
    """Noise [8, 8, 1]; a ``share`` of the clients, spread evenly, has many examples."""
    many = np.arange(clients) % round(1 / share) == 0
    sizes = np.where(many, MANY, FEW)
    x, y = noise(np.random.default_rng(0), (8, 8, 1), int(sizes.sum()))
    partition = jafl.Partition.from_lists(np.split(np.arange(len(x)), np.cumsum(sizes)[:-1]))
    return noise_federation(x, y, partition)


def compare(rule: str, share: float) -> str:
    """One line of the table."""
    data = federation(CLIENTS.value, share)
    make, size = RULES[rule]
    schedule = exponential_schedule(CLIENTS.value, size, TRIPS.value)
    run = noise_run(schedule, data, jafl.models.mlp(10, (200,)), make(), local_epochs=1)
    cost = run.client_work.build().minibatches(data.num_examples)[schedule.client]
    plans = [
        jafl.in_waves(schedule, plan_choice.WIDTH_SIDE_BY_SIDE),
        preparation.prepare(run, devices=1, together=True).plan,
    ]
    programs = [whole_run(run, plan=plan, devices=1, together=True) for plan in plans]
    times = alternating(programs, REPEATS.value)
    ratio = np.median(times[:, 0] / times[:, 1])
    cells = [f"{rule:16} {share:6.0%} {cost.sum():9,}"]
    for plan, seconds in zip(plans, np.median(times, axis=0), strict=True):
        steps = rounds(plan, cost)
        cells.append(f"{steps:7,.0f} {steps * plan.lanes:10,.0f} {plan.lanes:5} {seconds:8.2f}")
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
