"""FedStaleWeight (Ma et al. 2024), section 4.2.1: does a client gain influence by slowing down?

Command: python run.py experiment fedstaleweight_section4_2_1

Published: "agents want to truthfully report as high of an update speed as possible and our aggregation mechanism is
strictly strategy-proof". The argument is a derivative. With r the client's rate, A the sum of all others' rates and C
the sum of 1 / rate over the others in its buffer, its utility (equation 9) is r / ((A + r)(1 + C r)), which rises
with r where A - C r^2 > 0.

Open choices: section 4.2.1's statements are split into what can be measured. Influence is a client's share of all
weights after they are normalized in the buffer, 1 being a fair share. A client that slows down multiplies all its
durations; the others stay as they are. Durations are those of figure 2 (ten of U(1, 2), five of U(8, 12)), or
constant at their means, or those of a client ten times as fast as fourteen equal others, where A - C r^2 is negative.
Weights are equation 8's, over the last five trips of a client (section 4.3). The first fifth of the server steps is
left out.

What is found (docs/strategy_proofness.md): the conclusion holds in figure 2's world, and it does not follow from the
derivative, which holds for one slot in the buffer. Where the derivative says that slowing down pays, it does not pay:
a client that fast has several slots in a buffer, and each adds to the sum that it is divided by. It does pay where
the derivative says that it does not: among clients of constant speed, which stay in step, a client that falls out of
step shares its buffers with others than before. One of the paper's steps, "we can rescale reported update rates
linearly by any positive constant ... to make C r^2 as small as possible and A as large as possible", fails: both are
multiplied by that constant, and the sign of their difference stays. The last step stands: A grows with the number of
clients and C does not, so that with enough of them A - C r^2 is above 0.

Desk size: the paper's number of clients and b, 2,000 server steps, twenty seeds (the constant durations have no
randomness: all seeds are equal there). Paper: 16,000 steps, as CIFAR-10 has.
"""

import functools
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments.harness import Analysis, Claim, Context, Margin, PaperExperiment, Published, Scale

BUFFER, SLOWER = 5, (1.0, 1.02, 1.05, 1.1, 1.25, 1.5, 2.0, 3.0, 5.0)
FAST, SLOW = ("uniform", 1.0, 2.0), ("uniform", 8.0, 12.0)
MEAN_FAST, MEAN_SLOW = ("constant", 1.5), ("constant", 10.0)
EQUAL, TEN_TIMES = ("uniform", 0.8, 1.2), ("uniform", 0.08, 0.12)
# {world: (the client that slows down, the fourteen others)}
WORLDS: dict[str, tuple[tuple, Sequence[tuple]]] = {
    "figure 2, a fast client": (FAST, [FAST] * 9 + [SLOW] * 5),
    "figure 2, a slow client": (SLOW, [FAST] * 10 + [SLOW] * 4),
    "constant durations, a fast client": (MEAN_FAST, [MEAN_FAST] * 9 + [MEAN_SLOW] * 5),
    "constant durations, a slow client": (MEAN_SLOW, [MEAN_FAST] * 10 + [MEAN_SLOW] * 4),
    "ten times as fast as fourteen equals": (TEN_TIMES, [EQUAL] * 14),
}
FIGURE_2, FIGURE_2_SLOW, CONSTANT, CONSTANT_SLOW, FASTEST = WORLDS


def schedule(world: str, slower: float, steps: int, seed: int) -> Any:
    """The events if client 0's durations are multiplied by ``slower``."""
    from jafl.schedule import asynchronous, delays

    own, others = WORLDS[world]
    laws = [(own[0], *(slower * number for number in own[1:])), *others]
    delay = delays.groups(tuple((1, getattr(delays, law)(*numbers)) for law, *numbers in laws))
    return asynchronous(
        num_clients=15, concurrency=15, buffer_size=BUFFER, delay=delay, server_steps=steps, seed=seed
    )


def influence(events: Any) -> float:
    """Client 0's share of the weights that FedStaleWeight gives, 1 being fair; without the first fifth of the run."""
    from jafl.rules.expected_staleness import expected_staleness, normalized_per_step

    weights = normalized_per_step(events, expected_staleness(events, "window", 5) * BUFFER + 1)
    late = events.step >= events.num_steps // 5
    sums = np.bincount(events.client[late], weights[late], events.num_clients)
    # Without the last digits, in which equal runs may differ.
    return round(float(sums[0] / sums.sum() * events.num_clients), 9)


def by_equation_9(world: str, slower: float) -> float:
    """What equation 9 has for ``influence``: r / ((A + r)(1 + C r)) over the same at ``slower`` = 1.

    C is that of a buffer whose other places are filled as the others' rates have it.
    """
    own, others = WORLDS[world]
    rates = np.array([1 / np.mean(numbers) for _, *numbers in others])
    rate, rest = 1 / np.mean(own[1:]), rates.sum()
    inverse = (BUFFER - 1) * len(rates) / rest  # the mean of 1 / rate over the other places

    def utility(r: float) -> float:
        return r / ((rest + r) * (1 + inverse * r))

    return utility(rate / slower) / utility(rate)


def measure(context: Context) -> list[dict[str, Any]]:
    """A row per world and factor: influence over seeds, and what equation 9 has for its change."""
    # Shorter, a slow client may have no trip at all.
    steps = max(100, context.settings.server_steps or context.scale.settings["server_steps"])
    rows: list[dict[str, Any]] = []
    for world in WORLDS:
        truthful: np.ndarray | None = None
        for slower in SLOWER:
            own = np.array([influence(schedule(world, slower, steps, seed)) for seed in context.scale.seeds])
            truthful = own if truthful is None else truthful
            rows.append(
                {
                    "world": world,
                    "durations times": slower,
                    "influence": own.tolist(),
                    "change": float(np.mean(own / truthful - 1)),
                    "change by equation 9": by_equation_9(world, slower) - 1,
                }
            )
    return rows


def loses(rows: list[dict[str, Any]], world: str, slower: float) -> list[float]:
    """What the client loses by slowing down, in fair shares, for each seed."""
    own = {row["durations times"]: np.array(row["influence"]) for row in rows if row["world"] == world}
    return (own[1.0] - own[slower]).tolist()


def draw(rows: list[dict[str, Any]], folder: pathlib.Path) -> None:
    """``throttling.png``: influence over the factor by which the client slows down, simulated and by equation 9."""
    from jafl.plots.canvas import COLORS, new_figure, save

    figure, axes = new_figure(1, 3, 11.0, 3.4)
    panels = ((FIGURE_2, FIGURE_2_SLOW), (CONSTANT, CONSTANT_SLOW), (FASTEST,))
    titles = "durations of figure 2", "constant durations, the same means", FASTEST
    for panel, worlds, title in zip(axes[0], panels, titles, strict=True):
        for number, world in enumerate(worlds):
            own = [row for row in rows if row["world"] == world]
            factor = [row["durations times"] for row in own]
            mean = np.array([np.mean(row["influence"]) for row in own])
            prediction = [mean[0] * (1 + row["change by equation 9"]) for row in own]
            name = "a slow client" if number else "the client" if world == FASTEST else "a fast client"
            panel.plot(factor, mean, "o-", color=COLORS[number], label=f"{name}, simulated")
            panel.plot(factor, prediction, "--", color=COLORS[number], label=f"{name}, equation 9")
        panel.axhline(1, color="0.8", zorder=0)
        panel.set(xscale="log", xlabel="own durations, times", title=title, ylim=(0, None))
        panel.set_xticks([1, 1.5, 2, 3, 5], ["1", "1.5", "2", "3", "5"])
        panel.minorticks_off()
        panel.legend(frameon=False, fontsize="small")
        panel.spines[["top", "right"]].set_visible(False)
    axes[0][0].set_ylabel("influence, 1 is fair")
    save(figure, folder / "throttling.png")


def _loses(world: str, slower: float, times: str, sentence: str = "", **fields: Any) -> Claim:
    return Claim(
        sentence=sentence or f"{world}, whose durations become {times} as long, loses influence",
        differences=functools.partial(loses, world=world, slower=slower),
        **({"published": "A - C r^2 > 0"} | fields),
    )


PRIMARY = _loses(FIGURE_2, 1.25, "1.25 times")

EXPERIMENT = PaperExperiment(
    paper="FedStaleWeight",
    figure="section 4.2.1",
    title="strategy-proofness: the influence of a client that slows down; no training",
    published=Published(
        note='"Our aggregation mechanism is strictly strategy-proof": a client that reports a lower speed than '
        "its own loses influence, with enough clients."
    ),
    scales={
        "desk": Scale(
            settings={"server_steps": 2000},
            seeds=tuple(range(20)),
            analysis=Analysis(
                primary=PRIMARY.sentence,
                seeds=20,
                margin=Margin(0.01),
                spread=0.02,
                source="schedules of seeds 1000 and 1001",
                difference=0.015,
                correction=0.0,
            ),
        ),
        "paper": Scale(settings={"server_steps": 16000}, seeds=tuple(range(5))),
    },
    measure=measure,
    pictures=draw,
    claims=[
        PRIMARY,
        _loses(FIGURE_2, 2.0, "twice"),
        _loses(FIGURE_2_SLOW, 1.1, "1.1 times"),
        _loses(CONSTANT, 1.1, "1.1 times"),
        _loses(CONSTANT_SLOW, 1.05, "1.05 times"),
        _loses(
            FASTEST,
            2.0,
            "twice",
            f"a client {FASTEST}, whose durations become twice as long, loses influence, "
            "where equation 9 has it gain",
            expected="worse",
            published="A - C r^2 < 0",
        ),
    ],
)
