"""FedBuff (Nguyen et al. 2022), figure 7: how many examples the clients hold that take part.

Command: python run.py --experiment=fedbuff_fig7

Minutes: desk 1, on one core of a busy machine: nothing is trained.

Published: histograms of the examples held by each participating client of Sent140 for several straggler parameters
lambda, concurrency 1,000, K = 10: FedBuff keeps clients with many examples, FedAvgM with over-selection drops them.

Open choices: trip durations are exponential with mean lambda times the client's examples (appendix C.2), fresh for
each trip. The paper does not say how many trips the histograms are of: 100,000 started ones here. Kept is a trip that
is applied, or still under way when the run ends. lambda is the unit of time and cancels; two values show it.

Desk size: the paper's clients (99,018, 15 % of 660,120), concurrency and K, but numbers of examples drawn from a
log-normal law with mean 20 and sigma 1, rounded up, in the place of the tweets of each account, which are no part of
jafl. Paper: the same, twenty seeds; with the tweets, ``run.py --dataset=sentiment140
--delay=proportional_to_examples`` draws this figure for each run (``participating_examples.png``).
"""

import pathlib
from typing import Any

import numpy as np

from experiments.machinery import Claim, Context, PaperExperiment, Published, Scale

CLIENTS, CONCURRENCY, TRIPS = 99018, 1000, 100_000
MEAN, SIGMA = 20.0, 1.0
LAMBDAS = (1.0, 10.0)
FEDBUFF, FEDAVGM, MORE = "FedBuff, K = 10", "FedAvgM", "FedAvgM, 30 % over-selection"
NEARLY = 0.03


def sizes(seed: int) -> np.ndarray:
    """[N] int64: examples of each client."""
    rng = np.random.default_rng(seed)
    return np.ceil(MEAN * np.exp(SIGMA * rng.standard_normal(CLIENTS) - SIGMA**2 / 2)).astype(np.int64)


def schedule(name: str, examples: np.ndarray, straggling: float, trips: int, seed: int) -> Any:
    """The event schedule of about so many started trips."""
    from jafl.schedule import asynchronous, delays, synchronous

    law = delays.proportional_to_examples(examples, straggling)
    shared: dict[str, Any] = {"num_clients": CLIENTS, "delay": law, "client_trips": trips, "seed": seed}
    if name == FEDBUFF:
        return asynchronous(concurrency=CONCURRENCY, buffer_size=10, **shared)
    return synchronous(cohort_size=CONCURRENCY, over_selection=0.3 if name == MORE else 0.0, **shared)


def measure(context: Context) -> list[dict[str, Any]]:
    """A row per algorithm and lambda: the mean examples of trips that are kept as a share of all clients' mean."""
    steps = context.settings.server_steps  # a run cut short
    trips = TRIPS if steps is None else min(TRIPS, 1300 * steps)
    rows: list[dict[str, Any]] = []
    drawn: dict[str, np.ndarray] = {}
    for name in (FEDBUFF, FEDAVGM, MORE):
        for straggling in LAMBDAS:
            shares, large, times = [], [], []
            for seed in context.scale.seeds:
                examples = sizes(seed)
                events = schedule(name, examples, straggling, trips, seed)
                held = examples[np.concatenate([events.client, events.inflight_client])]  # kept, now or later
                drawn.setdefault(name, held)
                shares.append(float(held.mean() / examples.mean()))
                large.append(float(np.mean(held > 3 * MEAN) / np.mean(examples > 3 * MEAN)))
                times.append(float(events.step_time[-1] / straggling / examples.mean()))
            rows.append(
                {
                    "algorithm": name,
                    "lambda": f"{straggling:g}",
                    "examples, of all clients' mean": shares,
                    "clients above 60 examples, of their share": large,
                    "time in mean trips": times,
                }
            )
    draw(sizes(context.scale.seeds[0]), drawn, context.folder)
    return rows


def draw(everyone: np.ndarray, held: dict[str, np.ndarray], folder: pathlib.Path) -> None:
    """``examples.png``: the figure, of the first seed."""
    from jafl.plots.canvas import new_figure, save

    figure, axes = new_figure(1, 1, 7.0, 3.6)
    panel = axes[0, 0]
    edges = np.unique(np.round(np.geomspace(1, 500, 24))) - 0.5  # whole numbers have no gaps
    panel.hist(
        everyone, edges, weights=np.full(len(everyone), 1 / len(everyone)), color="0.8", label="all clients"
    )
    for name, values in held.items():
        share = np.histogram(values, edges)[0] / len(values)
        panel.stairs(share, edges, linewidth=2, label=f"{name}: mean {values.mean():.1f}")
    panel.set_xscale("log")
    panel.set_xlabel("examples that the client holds")
    panel.set_ylabel("share of trips that are kept")
    panel.set_ylim(top=1.6 * panel.get_ylim()[1])  # room for the legend
    panel.legend()
    save(figure, folder / "examples.png")


def shares(rows: list[dict[str, Any]], name: str, straggling: float = LAMBDAS[0]) -> Any:
    """[seeds]: mean examples of trips that are kept, of all clients' mean."""
    wanted = (name, f"{straggling:g}")
    (row,) = [row for row in rows if (row["algorithm"], row["lambda"]) == wanted]
    return np.array(row["examples, of all clients' mean"])


EXPERIMENT = PaperExperiment(
    paper="FedBuff",
    figure="figure 7",
    title="examples held by the clients that take part: FedBuff, FedAvgM with over-selection; no training",
    published=Published(
        note="Histograms: FedBuff takes in clients with many examples, over-selection drops them."
    ),
    scales={
        "desk": Scale(settings={}, minutes=1, hardware="one core of a busy machine"),
        "paper": Scale(settings={}, seeds=tuple(range(20)), minutes=4, hardware="from the desk size's"),
    },
    measure=measure,
    claims=[
        Claim(
            sentence="over-selection keeps clients with fewer examples than FedBuff",
            differences=lambda rows: shares(rows, FEDBUFF) - shares(rows, MORE),
        ),
        Claim(
            sentence="FedBuff's clients hold as many examples as all clients, within 3 %",
            differences=lambda rows: NEARLY - np.abs(shares(rows, FEDBUFF) - 1),
        ),
        Claim(
            sentence="lambda makes no difference to over-selection's clients",
            differences=lambda rows: shares(rows, MORE, LAMBDAS[0]) - shares(rows, MORE, LAMBDAS[1]),
            expected="a tie",
        ),
    ],
)
