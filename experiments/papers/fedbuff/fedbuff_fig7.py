"""FedBuff (Nguyen et al. 2022), figure 7: how many examples the clients hold that take part.

Command: python run.py experiment fedbuff_fig7

Published: histograms of the examples held by each participating client of Sent140 for several straggler parameters
lambda, concurrency 1,000, K = 10: FedBuff keeps clients with many examples, FedAvgM with over-selection drops them
(section C.3).

Open choices: trip durations are exponential with mean lambda times the client's examples (section C.2), fresh for
each trip. The paper does not say how many trips the histograms are of: 50,000 started ones here. Kept is a trip that
is applied, or still under way when the run ends. The figure fixes the concurrency, and section B.2 has clients arrive
at a constant rate: FedBuff is run with 1,000 clients under way, and once more with starts at equal gaps, 1,000 per
mean duration (``open_arrivals``). lambda is the unit of time and cancels; two values show it.

Desk size: the paper's own size: 79,214 training accounts (fedbuff_table1), its concurrency and K. The tweets
themselves are no part of jafl; numbers of examples are drawn from a log-normal law, rounded up, with the mean 2.42
and the standard deviation 4.71 that LEAF states for Sent140 (Caldas et al. 2018, table 1). So three fifths of the
accounts hold one tweet, and five in a hundred eight or more. Twenty seeds; those before 40 were looked at before
FedBuff had arrivals at a constant rate. Paper: the same seeds and size; with the tweets, ``run.py
--dataset=sentiment140 --delay=proportional_to_examples`` draws this figure for each run
(``participating_examples.png``).
"""

import pathlib
from typing import Any

import numpy as np

from experiments.harness import Analysis, Claim, Context, Margin, PaperExperiment, Published, Scale
from experiments.papers.fedbuff.fedbuff_table1 import PAPER_CLIENTS

CLIENTS, CONCURRENCY, TRIPS = PAPER_CLIENTS["sentiment140"], 1000, 50_000
MEAN, SPREAD = 2.42, 4.71  # of examples, LEAF's table 1
MU, SIGMA = (
    -0.4225,
    1.4308,
)  # of the logarithm, before it is rounded up to whole examples: with that mean and spread
LARGE = 8  # examples, more than three times the mean
LAMBDAS = (1.0, 10.0)
FEDBUFF, FEDAVGM, MORE = "FedBuff, K = 10", "FedAvgM", "FedAvgM, 30 % over-selection"
ARRIVALS = "FedBuff, K = 10, starts at a constant rate"
NEARLY = Margin(0.03)
OF_MEAN, OF_LARGE = "examples, of all clients' mean", "clients with 8 examples or more, of their share"
DROPPED = "over-selection keeps clients with fewer examples than FedBuff"


def sizes(seed: int) -> np.ndarray:
    """[N] int64: examples of each client."""
    rng = np.random.default_rng(seed)
    return np.ceil(np.exp(MU + SIGMA * rng.standard_normal(CLIENTS))).astype(np.int64)


def schedule(name: str, examples: np.ndarray, straggling: float, trips: int, seed: int) -> Any:
    """The event schedule of about so many started trips."""
    from jafl.schedule import asynchronous, delays, open_arrivals, synchronous

    law = delays.proportional_to_examples(examples, straggling)
    shared: dict[str, Any] = {"num_clients": CLIENTS, "delay": law, "client_trips": trips, "seed": seed}
    if name == FEDBUFF:
        return asynchronous(concurrency=CONCURRENCY, buffer_size=10, **shared)
    if name == ARRIVALS:
        rate = CONCURRENCY / (straggling * float(examples.mean()))
        return open_arrivals(start_rate=rate, starts="constant", buffer_size=10, **shared)
    return synchronous(cohort_size=CONCURRENCY, over_selection=0.3 if name == MORE else 0.0, **shared)


def measure(context: Context) -> list[dict[str, Any]]:
    """A row per algorithm and lambda: the mean examples of trips that are kept as a share of all clients' mean."""
    steps = context.settings.server_steps  # a run cut short
    trips = TRIPS if steps is None else min(TRIPS, 1300 * steps)
    rows: list[dict[str, Any]] = []
    values_by_law: dict[str, np.ndarray] = {}
    for name in (FEDBUFF, ARRIVALS, FEDAVGM, MORE):
        for straggling in LAMBDAS:
            shares, large, times = [], [], []
            for seed in context.scale.seeds:
                examples = sizes(seed)
                events = schedule(name, examples, straggling, trips, seed)
                held = examples[np.concatenate([events.client, events.inflight_client])]  # kept, now or later
                values_by_law.setdefault(name, held)
                shares.append(float(held.mean() / examples.mean()))
                large.append(float(np.mean(held >= LARGE) / np.mean(examples >= LARGE)))
                times.append(float(events.step_time[-1] / straggling / examples.mean()))
            rows.append(
                {
                    "algorithm": name,
                    "lambda": f"{straggling:g}",
                    OF_MEAN: shares,
                    OF_LARGE: large,
                    "time in mean trips": times,
                }
            )
    draw(sizes(context.scale.seeds[0]), values_by_law, context.folder)
    return rows


def draw(everyone: np.ndarray, held: dict[str, np.ndarray], folder: pathlib.Path) -> None:
    """``examples.png``: the figure, of the first seed."""
    from jafl.plots.canvas import new_figure, save

    figure, axes = new_figure(1, 1, 7.0, 3.6)
    panel = axes[0, 0]
    edges = np.unique(np.round(np.geomspace(1, 100, 20))) - 0.5  # whole numbers have no gaps
    panel.hist(
        everyone, edges, weights=np.full(len(everyone), 1 / len(everyone)), color="0.8", label="all clients"
    )
    styles = ("-", "--", ":", "-")  # three of the lines are nearly the same
    for (name, values), style in zip(held.items(), styles, strict=True):
        share = np.histogram(values, edges)[0] / len(values)
        panel.stairs(share, edges, linewidth=2, linestyle=style, label=f"{name}: mean {values.mean():.1f}")
    panel.set_xscale("log")
    panel.set_xticks([1, 10, 100], ["1", "10", "100"])
    panel.set_xlabel("examples that the client holds")
    panel.set_ylabel("share of trips that are kept")
    panel.set_ylim(top=1.6 * panel.get_ylim()[1])  # room for the legend
    panel.legend()
    save(figure, folder / "examples.png")


def shares(
    rows: list[dict[str, Any]], name: str, straggling: float = LAMBDAS[0], column: str = OF_MEAN
) -> Any:
    """[seeds]: a column of one algorithm and lambda."""
    wanted = (name, f"{straggling:g}")
    (row,) = [row for row in rows if (row["algorithm"], row["lambda"]) == wanted]
    return np.array(row[column])


ANALYSIS = Analysis(
    primary=DROPPED,
    seeds=20,
    margin=NEARLY,
    spread=0.02,
    source="50,000 trips a seed, whose examples spread by twice their mean: .01, and as much for the clients",
    correction=0.0,
)
SCALE = Scale(
    settings={},
    seeds=tuple(range(40, 60)),
    analysis=ANALYSIS,
)
EXPERIMENT = PaperExperiment(
    paper="FedBuff",
    figure="figure 7",
    title="examples held by the clients that take part: FedBuff, FedAvgM with over-selection; no training",
    published=Published(
        note="Histograms: FedBuff takes in clients with many examples, over-selection drops them."
    ),
    scales={
        "desk": SCALE,
        "paper": SCALE,
    },
    measure=measure,
    claims=[
        Claim(
            sentence=DROPPED,
            differences=lambda rows: shares(rows, FEDBUFF) - shares(rows, MORE),
            published="histograms",
        ),
        Claim(
            sentence="over-selection drops clients with eight examples or more",
            differences=lambda rows: 1 - shares(rows, MORE, column=OF_LARGE),
            published="histograms",
        ),
        Claim(
            sentence="FedBuff's clients hold as many examples as all clients",
            differences=lambda rows: shares(rows, FEDBUFF) - 1,
            expected="equivalent",
            published="histograms",
        ),
        Claim(
            sentence="so do those of FedAvgM without over-selection",
            differences=lambda rows: shares(rows, FEDAVGM) - 1,
            expected="equivalent",
            own=True,
        ),
        Claim(
            sentence="with starts at a constant rate FedBuff's clients hold as many examples as with 1,000 under way",
            differences=lambda rows: shares(rows, ARRIVALS) - shares(rows, FEDBUFF),
            expected="equivalent",
            own=True,
        ),
        Claim(
            sentence="lambda makes no difference to over-selection's clients",
            differences=lambda rows: shares(rows, MORE, LAMBDAS[0]) - shares(rows, MORE, LAMBDAS[1]),
            expected="equivalent",
            identity=True,
        ),
    ],
)
