"""FedBuff (Nguyen et al. 2022), appendix A: what a buffer of K does to the staleness of each update.

Command: python run.py experiment fedbuff_appendix_a

Published: three statements. "At most tau_1 / K server updates occur" during a trip in which tau_1 updates arrive;
so the staleness with a buffer is at most the next whole number, ceil(tau_1 / K), and so is the largest staleness,
for any law of durations; and mean staleness is at most 1 / K times that without a buffer.

Open choices: the appendix counts a fresh update as 0; the proofs that use its bound (appendix D) count it as 1
("tau = 1 when there is no staleness"), and corollary 1 puts the bound into theirs. That arrivals do not depend on K
holds where a finished client's place is taken at once, as here; the remark of appendix D, by which a client waits
until its update has been used, makes them depend on K.

What is found: (1) the first statement is wrong for nearly half of the trips. A trip that begins just before a
server step sees that step, however short it is: floor((a + tau_1) / K) - floor(a / K), with a the arrivals before
the download, is the whole part of tau_1 / K, or one more where the trip begins late enough in a buffer, and then
above tau_1 / K. Rounded up the bound holds for every trip, as it must. (2) In the counting of appendix D the bound
fails for the very same trips: ceil((tau_1 + 1) / K) = floor(tau_1 / K) + 1, so that tau_K + 1 is above it just
where tau_K is above tau_1 / K. Where tau_1 is below K the bound is 1, "fresh", yet the trip may be one step stale.
For large tau_1 it is one step of many, so that corollary 1 keeps its order. (3) Mean staleness is not only at most,
but exactly 1 / K times as large in the long run: tau_1 adds up to M - 1 for each applied trip, and so does K times
the staleness with a buffer.

Desk size: the paper's concurrency 1,000 and CelebA's 9,343 clients, half-normal durations, 200,000 trips; one
sequence of arrivals for each seed, whose staleness is counted for K = 1, 10, 100 and 1,000. Twenty seeds. Paper:
the same.
"""

import functools
import math
import pathlib
from typing import Any

import numpy as np

from experiments.harness import Analysis, Claim, Context, Margin, PaperExperiment, Published, Scale
from experiments.papers.fedbuff.fedbuff_table1 import PAPER_CLIENTS

CLIENTS, CONCURRENCY, TRIPS = PAPER_CLIENTS["celeb_a"], 1000, 200_000
SIZES = (10, 100, 1000)
ROUNDED, PLAIN = "above ceil(tau_1 / K)", "above tau_1 / K"


def arrivals(trips: int, seed: int, buffer_size: int = 1) -> Any:
    """The event schedule, with a server step after each arrival."""
    from jafl.schedule import asynchronous, delays

    return asynchronous(
        num_clients=CLIENTS,
        concurrency=CONCURRENCY,
        buffer_size=buffer_size,
        delay=delays.half_normal(math.sqrt(math.pi / 2)),
        client_trips=trips,
        seed=seed,
    )


def buffered(before_download: np.ndarray, before_arrival: np.ndarray, buffer_size: int) -> np.ndarray:
    """[J] Staleness with a buffer, of trips with so many arrivals before their download and before their own."""
    return before_arrival // buffer_size - before_download // buffer_size


def measure(context: Context) -> list[dict[str, Any]]:
    """A row for each buffer size: staleness, and the shares of trips for which each bound fails."""
    steps = context.settings.server_steps  # a run cut short
    trips = TRIPS if steps is None else min(TRIPS, 1000 * steps)
    rows_by_size: dict[int, list[dict[str, float]]] = {size: [] for size in SIZES}
    first: dict[int, np.ndarray] = {}
    for seed in context.scale.seeds:
        events = arrivals(trips, seed)
        before_download, before_arrival = (
            each.astype(np.int64) for each in (events.download_version, events.step)
        )
        single = before_arrival - before_download
        first.setdefault(1, single)
        for size in SIZES:
            late = buffered(before_download, before_arrival, size)
            first.setdefault(size, late)
            rounded = -(-single // size)
            rows_by_size[size].append(
                {
                    "mean, K = 1": float(single.mean()),
                    "mean": float(late.mean()),
                    "K mean / mean with K = 1": float(size * late.mean() / single.mean()),
                    "largest, K = 1": float(single.max()),
                    "largest": float(late.max()),
                    "ceil(largest with K = 1 / K)": float(rounded.max()),
                    ROUNDED: float(np.mean(late > rounded)),
                    PLAIN: float(np.mean(late > single / size)),
                }
            )
    draw(first, context.folder)
    return [
        {"K": str(size), **{name: [row[name] for row in rows] for name in rows[0]}}
        for size, rows in rows_by_size.items()
    ]


def draw(first: dict[int, np.ndarray], folder: pathlib.Path) -> None:
    """``bound.png``: staleness with a buffer of 10 and 100 against that without, with both bounds; the first seed."""
    from jafl.plots.canvas import new_figure, save

    figure, axes = new_figure(1, 2, 9.0, 3.4)
    for panel, size in zip(axes[0], (100, 1000), strict=True):
        shown = np.flatnonzero(first[1] <= 5 * size)
        shown = shown[:: max(1, len(shown) // 3000)]
        panel.plot(first[1][shown], first[size][shown], ".", markersize=2, color="0.6", label="trips")
        line = np.arange(0, 5 * size + 1)
        panel.plot(line, line / size, label="tau_1 / K")
        panel.plot(line, -(-line // size), drawstyle="steps-post", label="rounded up")
        panel.set_xlabel("staleness with K = 1")
        panel.set_ylabel(f"staleness with K = {size:,}")
        panel.legend(fontsize="small")
    save(figure, folder / "bound.png")


def column(rows: list[dict[str, Any]], size: int, name: str) -> np.ndarray:
    """[seeds]: a column of one buffer size."""
    (row,) = [row for row in rows if row["K"] == str(size)]
    return np.array(row[name])


def fails(rows: list[dict[str, Any]], size: int, bound: str) -> list[float]:
    """[seeds]: minus the share of trips for which a bound fails; 0 where it always holds."""
    return (0.0 - column(rows, size, bound)).tolist()


def from_average(rows: list[dict[str, Any]], size: int) -> Any:
    """[seeds]: K times mean staleness over that without a buffer, minus 1."""
    return column(rows, size, "K mean / mean with K = 1") - 1


AVERAGE = "average staleness is 1 / K times as large with K = {size:,}"
SCALE = Scale(
    settings={},
    seeds=tuple(range(20, 40)),
    analysis=Analysis(
        primary=AVERAGE.format(size=100),
        seeds=20,
        margin=Margin(0.01),
        spread=0.005,
        source="only the first and last buffer of 2,000 can differ from the long run",
        correction=0.0,
    ),
)

EXPERIMENT = PaperExperiment(
    paper="FedBuff",
    figure="appendix A",
    title="staleness with a buffer of K against that without, for the same arrivals; no training",
    published=Published(
        note="tau_K <= ceil(tau_1 / K) for each update and for the largest; the mean is at most 1 / K times as large."
    ),
    scales={"desk": SCALE, "paper": SCALE},
    measure=measure,
    claims=[
        *(
            Claim(
                sentence=AVERAGE.format(size=size),
                differences=functools.partial(from_average, size=size),
                expected="equivalent",
                published="at most",
            )
            for size in SIZES
        ),
        *(
            Claim(
                sentence=f"no update is staler than ceil(tau_1 / K) with K = {size:,}",
                differences=functools.partial(fails, size=size, bound=ROUNDED),
                expected="equivalent",
                identity=True,
            )
            for size in SIZES
        ),
        *(
            Claim(
                sentence=f"at most tau_1 / K server updates occur during a trip with K = {size:,}",
                differences=functools.partial(fails, size=size, bound=PLAIN),
                expected="equivalent",
                published="each trip",
            )
            for size in SIZES
        ),
    ],
)
