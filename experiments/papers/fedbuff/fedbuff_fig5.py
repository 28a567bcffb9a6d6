"""FedBuff (Nguyen et al. 2022), figure 5: delays and the staleness that follows, concurrency 1,000, K = 100.

Command: python run.py experiment fedbuff_fig5

Published: two histograms without numbers (section C.1), observed in production over millions of clients, of delays
and of staleness. Half-normal is called a suitable law of delays; the staleness is shown.

Open choices: production is not to be had; what can be checked is the step from the left histogram to the right one.
Durations are drawn from a law; staleness is counted in server steps. If the server steps at an even pace, a trip of
d mean durations sees (M - 1) / K x d steps, rounded up or down by chance: this is the law that staleness is
compared with. The distance between two laws is the largest difference of their distribution functions (Kolmogorov,
Smirnov). The mean does not depend on the law: over all trips the staleness adds up to M - 1 for each applied trip,
so that it is (M - 1) / K = 9.99. "Clients arrive at a constant rate" (sections 6 and B.2): beside 1,000 clients
under way at any moment, clients start at a constant rate here, 1,000 per mean duration.

Desk size: the paper's own size, with 100,000 clients in the place of millions: 1,000 server steps, of which the
first 50 are left out, when nobody can be stale yet. Twenty seeds. Paper: the same.
"""

import functools
import math
import pathlib
from typing import Any

import numpy as np

from experiments.harness import Analysis, Claim, Context, Margin, PaperExperiment, Published, Scale

CLIENTS, CONCURRENCY, BUFFER, STEPS, LEFT_OUT = 100_000, 1000, 100, 1000, 50
LAWS = ("half_normal", "uniform", "exponential")
FIXED, CONSTANT_RATE = "1,000 under way", "constant rate of arrivals"
MEAN = (CONCURRENCY - 1) / BUFFER
MOST = 200  # steps; later trips are counted as so late


def law(name: str) -> Any:
    """A law of durations with mean 1."""
    from jafl.schedule import delays

    return {
        "half_normal": lambda: delays.half_normal(math.sqrt(math.pi / 2)),
        "uniform": lambda: delays.uniform(0.0, 2.0),
        "exponential": lambda: delays.exponential(1.0),
    }[name]()


def staleness(arrivals: str, name: str, steps: int, seed: int) -> np.ndarray:
    """[J] Server steps between download and use, of all trips but those of the first steps."""
    from jafl.schedule import asynchronous, open_arrivals

    shared: dict[str, Any] = {"num_clients": CLIENTS, "delay": law(name), "server_steps": steps, "seed": seed}
    if arrivals == FIXED:
        events = asynchronous(concurrency=CONCURRENCY, buffer_size=BUFFER, **shared)
    else:
        events = open_arrivals(start_rate=CONCURRENCY, starts="constant", buffer_size=BUFFER, **shared)
    return events.staleness[events.step >= min(LEFT_OUT, steps // 2)]


@functools.lru_cache
def expected(name: str) -> np.ndarray:
    """[MOST] The distribution function of staleness if the server steps at an even pace."""
    shares = (np.arange(4000) + 0.5) / 4000
    steps = MEAN * law(name).quantile(shares, np.zeros(len(shares), np.int64))
    phases = (np.arange(100) + 0.5) / 100
    return distribution(np.floor(steps[:, None] + phases).astype(np.int64).ravel())


def distribution(values: np.ndarray) -> np.ndarray:
    """[MOST] The share of values that are at most 0, 1, 2, ..."""
    return np.cumsum(np.bincount(np.minimum(values, MOST - 1), minlength=MOST)) / len(values)


def distance(first: np.ndarray, second: np.ndarray) -> float:
    """The largest difference of two distribution functions."""
    return float(np.max(np.abs(first - second)))


def measure(context: Context) -> list[dict[str, Any]]:
    """A row for each way of arriving and law: mean staleness, and its distance to each law."""
    steps = min(STEPS, context.settings.server_steps or STEPS)
    seeds = context.scale.seeds
    rows: list[dict[str, Any]] = []
    examples = {}
    for name in LAWS:
        values = {
            arrivals: [staleness(arrivals, name, steps, seed) for seed in seeds]
            for arrivals in (FIXED, CONSTANT_RATE)
        }
        distributions = {arrivals: [distribution(one) for one in each] for arrivals, each in values.items()}
        between = [distance(*pair) for pair in zip(*distributions.values(), strict=True)]
        for arrivals, each in values.items():
            examples[arrivals, name] = each[0]
            row: dict[str, Any] = {
                "clients": arrivals,
                "durations": words(name),
                "mean staleness": [float(one.mean()) for one in each],
                "standard deviation": [float(one.std()) for one in each],
                "largest": [float(one.max()) for one in each],
            }
            row |= {
                to(other): [distance(one, expected(other)) for one in distributions[arrivals]]
                for other in LAWS
            }
            rows.append(row | ({"distance to 1,000 under way": between} if arrivals == CONSTANT_RATE else {}))
    draw(examples, context.folder)
    return rows


def words(name: str) -> str:
    """A law's name in a sentence."""
    return name.replace("_", "-")


def to(name: str) -> str:
    """The column with the distance to a law."""
    return f"distance to {words(name)}"


def find_row(rows: list[dict[str, Any]], arrivals: str, name: str) -> dict[str, Any]:
    """The row of a way of arriving and a law."""
    (row,) = [row for row in rows if (row["clients"], row["durations"]) == (arrivals, words(name))]
    return row


def draw(examples: dict[tuple[str, str], np.ndarray], folder: pathlib.Path) -> None:
    """``staleness.png``: the figure's right side for each law, of the first seed."""
    from jafl.plots.canvas import new_figure, save

    figure, axes = new_figure(1, len(LAWS), 11.0, 3.2, sharey=True)
    for panel, name in zip(axes[0], LAWS, strict=True):
        highest = int(max(values.max() for (_, each), values in examples.items() if each == name))
        places = np.arange(min(highest, 45) + 1)
        for arrivals in (FIXED, CONSTANT_RATE):
            values = examples[arrivals, name]
            share = np.bincount(values, minlength=len(places))[: len(places)] / len(values)
            panel.stairs(share, np.append(places, places[-1] + 1) - 0.5, linewidth=2, label=arrivals)
        own = np.diff(expected(name), prepend=0.0)[: len(places)]
        panel.plot(places, own, "k.", markersize=4, label="at an even pace")
        panel.set_title(f"{words(name)} durations", fontsize="medium")
        panel.set_xlabel("staleness, in server steps")
    axes[0, 0].set_ylabel("share of applied trips")
    axes[0, 0].legend(fontsize="small")
    save(figure, folder / "staleness.png")


def nearer(rows: list[dict[str, Any]], name: str, other: str, arrivals: str = FIXED) -> Any:
    """[seeds]: the distance of staleness to another law minus that to the durations' own."""
    row = find_row(rows, arrivals, name)
    return np.array(row[to(other)]) - np.array(row[to(name)])


def from_mean(rows: list[dict[str, Any]], name: str) -> Any:
    """[seeds]: mean staleness over (M - 1) / K, minus 1."""
    return np.array(find_row(rows, FIXED, name)["mean staleness"]) / MEAN - 1


def minus_distance(rows: list[dict[str, Any]]) -> Any:
    """[seeds]: minus the distance between the two ways of arriving, with half-normal durations."""
    return -np.array(find_row(rows, CONSTANT_RATE, "half_normal")["distance to 1,000 under way"])


HALF_NORMAL = "with half-normal durations, staleness is half-normal rather than exponential"
# (durations, another law, whose question it is)
OTHER_LAWS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("half_normal", "uniform", {"published": "histograms"}),
    ("exponential", "half_normal", {"own": True}),
)
SCALE = Scale(
    settings={},
    seeds=tuple(range(20, 40)),
    analysis=Analysis(
        primary=HALF_NORMAL,
        seeds=20,
        margin=Margin(0.02),
        spread=0.01,
        source="a share of 95,000 trips has a standard error of .002 at most; trips of one seed see the same steps",
        correction=0.0,
    ),
)

EXPERIMENT = PaperExperiment(
    paper="FedBuff",
    figure="figure 5",
    title="the staleness that half-normal delays lead to, 1,000 under way, K = 100; no training",
    published=Published(
        note="Two histograms from production: delays, which are called half-normal, and staleness."
    ),
    scales={"desk": SCALE, "paper": SCALE},
    measure=measure,
    claims=[
        Claim(
            sentence=HALF_NORMAL,
            differences=lambda rows: nearer(rows, "half_normal", "exponential"),
            published="histograms",
        ),
        *(
            Claim(
                sentence=f"with {words(name)} durations, staleness is {words(name)} rather than {words(other)}",
                differences=functools.partial(nearer, name=name, other=other),
                **fields,
            )
            for name, other, fields in OTHER_LAWS
        ),
        Claim(
            sentence="with a constant rate of arrivals, too, it is half-normal rather than exponential",
            differences=lambda rows: nearer(rows, "half_normal", "exponential", CONSTANT_RATE),
            own=True,
        ),
        *(
            Claim(
                sentence=f"mean staleness is (M - 1) / K with {words(name)} durations",
                differences=functools.partial(from_mean, name=name),
                expected="equivalent",
                own=True,
            )
            for name in LAWS
        ),
        Claim(
            sentence="a constant rate of arrivals leads to the same staleness as 1,000 under way",
            differences=minus_distance,
            expected="equivalent",
            own=True,
        ),
    ],
)
