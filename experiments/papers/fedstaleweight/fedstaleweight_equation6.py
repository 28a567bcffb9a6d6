"""FedStaleWeight (Ma et al. 2024), equations 3 and 6 to 8: staleness and influence by client, from schedules alone.

Command: python run.py experiment fedstaleweight_equation6

Published: equation 6: E[tau_i] = (sum of all rates / r_i - 1) / b. Equation 7: p_i = 1 / (E[tau_i] b + 1), the
client's share of the trips. Equation 8: the weight (E[tau_i] b + 1) / n, with which every client has the influence 1
/ n, so that equation 3's loss, sum |alpha_i p_i - 1/n|, is 0. Section 4.2.1 then divides the weights by their sum
over the buffer.

Open choices: the paper's clients (section 6.2): ten with durations U(1, 2), five with U(8, 12), all in flight, b = 5;
and b = 1 and 10, and exponential durations of the same means, beside it. Rates are 1 / the mean duration. Influence
is measured as a client's share of all weights. "After normalization" is what algorithm 1 applies, with E over the
last five trips (section 4.3).

What is found: equations 6 to 8 hold (mean staleness is near equation 6's; of equation 3's loss only noise is left).
But that is before the weights are normalized. After it, which is what trains the model, a slow client has about 0.6
of a fair share and a fast one 1.2, with b = 5: the large weight of a slow client is divided by a sum that contains
it. With b = 1 nothing is left of the weights, and FedStaleWeight is the plain mean.

What changed: the primary claim was that influence is equal after the weights are normalized. The paper says so of
equation 8's weights as they are; of the normalized ones equation 9 has less than 1/n for a slow client. So the
primary claim is about equation 8 now, and the other one is expected as equation 9 has it. All seeds are new: 0 to 19
had been looked at.

Desk size: 2,000 server steps, twenty seeds; the first fifth is left out. Paper: 16,000 steps, as CIFAR-10 has.
"""

import pathlib
from typing import Any

import numpy as np

from experiments.harness import Analysis, Claim, Context, Margin, PaperExperiment, Published, Scale

FAST, SLOW = 10, 5  # clients
LAWS = ("uniform", "exponential")
BUFFERS = (1, 5, 10)
LARGEST_ERROR = 0.1  # relative, of a group's mean staleness, that still counts as "holds"


def schedule(law: str, buffer: int, steps: int, seed: int) -> Any:
    """The events of the paper's fifteen clients."""
    from jafl.schedule import asynchronous, delays

    uniform = ((FAST, delays.uniform(1, 2)), (SLOW, delays.uniform(8, 12)))
    exponential = ((FAST, delays.exponential(1.5)), (SLOW, delays.exponential(10.0)))
    delay = delays.groups(uniform if law == "uniform" else exponential)
    return asynchronous(
        num_clients=15, concurrency=15, buffer_size=buffer, delay=delay, server_steps=steps, seed=seed
    )


def by_equation_6(buffer: int) -> np.ndarray:
    """[15]: E[tau_i]."""
    rates = np.repeat([1 / 1.5, 1 / 10], [FAST, SLOW])
    return (rates.sum() / rates - 1) / buffer


def measured(events: Any, buffer: int) -> dict[str, float]:
    """What one schedule says of equations 3 and 6 to 8; without its first fifth."""
    from jafl.diagnostics import equation_8_weights, fairness_loss
    from jafl.rules.expected_staleness import expected_staleness, normalized_per_step

    late = events.step >= events.num_steps // 5
    client = events.client[late]

    def shares(weights: np.ndarray) -> np.ndarray:
        sums = np.bincount(client, weights[late], 15)
        return sums / sums.sum()

    trips = np.maximum(np.bincount(client, minlength=15), 1)
    staleness = np.bincount(client, events.staleness[late], 15) / trips
    groups = [np.mean(part) for part in np.split(staleness / by_equation_6(buffer) - 1, [FAST])]
    plain = shares(np.ones(events.num_trips))
    before = shares(equation_8_weights(events))
    moving = expected_staleness(events, "window", 5) * buffer + 1
    after = shares(normalized_per_step(events, moving))
    # Equation 7, by rates: the clients' shares of the trips.
    prediction = 1 / (by_equation_6(buffer) * buffer + 1)
    return {
        "staleness / equation 6 - 1, fast": groups[0],
        "staleness / equation 6 - 1, slow": groups[1],
        "largest error of equation 7": float(np.max(np.abs(plain / prediction - 1))),
        "loss of equation 3, plain mean": fairness_loss(plain),
        "loss, equation 8 before normalization": fairness_loss(before),
        "loss, after normalization": fairness_loss(after),
        "influence of a slow client, plain": float(plain[FAST:].mean() * 15),
        "before": float(before[FAST:].mean() * 15),
        "after": float(after[FAST:].mean() * 15),
    }


def measure(context: Context) -> list[dict[str, Any]]:
    """A row per law and buffer size, each number over seeds."""
    steps = context.settings.server_steps or context.scale.settings["server_steps"]
    rows = []
    for law in LAWS:
        for buffer in BUFFERS:
            # As many trips whatever the buffer.
            length = max(100, steps * 5 // buffer)
            measurements = [
                measured(schedule(law, buffer, length, seed), buffer) for seed in context.scale.seeds
            ]
            rows.append(
                {"law": law, "b": buffer}
                | {name: [each[name] for each in measurements] for name in measurements[0]}
            )
    return rows


def of(rows: list[dict[str, Any]], column: str, law: str = "uniform", buffer: int = 5) -> np.ndarray:
    """A column of one row, over seeds."""
    (row,) = [row for row in rows if (row["law"], row["b"]) == (law, buffer)]
    return np.array(row[column])


def _staleness_holds(rows: list[dict[str, Any]]) -> list[float]:
    errors = [of(rows, f"staleness / equation 6 - 1, {group}") for group in ("fast", "slow")]
    return (LARGEST_ERROR - np.max(np.abs(errors), axis=0)).tolist()


def _more_fair(rows: list[dict[str, Any]]) -> list[float]:
    plain, before = "loss of equation 3, plain mean", "loss, equation 8 before normalization"
    return (of(rows, plain) - of(rows, before)).tolist()


def _fair_after(rows: list[dict[str, Any]]) -> list[float]:
    return (of(rows, "after") - 1).tolist()


def _fair_before(rows: list[dict[str, Any]]) -> list[float]:
    return (of(rows, "before") - 1).tolist()


def _fairer_after(rows: list[dict[str, Any]]) -> list[float]:
    return (of(rows, "loss of equation 3, plain mean") - of(rows, "loss, after normalization")).tolist()


def _same_with_one(rows: list[dict[str, Any]]) -> list[float]:
    plain, after = (of(rows, name, buffer=1) for name in ("influence of a slow client, plain", "after"))
    return np.round(after - plain, 12).tolist()


def draw(rows: list[dict[str, Any]], folder: pathlib.Path) -> None:
    """``influence.png``: a slow client's influence with the plain mean, and before and after normalization."""
    from jafl.plots.canvas import new_figure, save

    figure, axes = new_figure(1, len(LAWS), 9.0, 3.2)
    names = ("influence of a slow client, plain", "before", "after")
    labels = ("plain mean", "equation 8", "equation 8, normalized")
    for panel, law in zip(axes[0], LAWS, strict=True):
        place = np.arange(len(BUFFERS))
        for number, (name, label) in enumerate(zip(names, labels, strict=True)):
            means = [np.mean(of(rows, name, law, buffer)) for buffer in BUFFERS]
            panel.bar(place + 0.27 * (number - 1), means, 0.25, label=label)
        panel.axhline(1, color="0.6", linewidth=1, zorder=0)
        panel.set_xticks(place, [f"b = {buffer}" for buffer in BUFFERS])
        panel.set(title=f"{law} durations", ylim=(0, 1.35))
        panel.spines[["top", "right"]].set_visible(False)
    axes[0][0].set_ylabel("influence of a slow client, 1 is fair")
    axes[0][0].legend(frameon=False, fontsize="small", ncols=2, loc="upper left")
    save(figure, folder / "influence.png")


PRIMARY = "before normalization the influence of a slow client is 1 (equations 7 and 8)"

EXPERIMENT = PaperExperiment(
    paper="FedStaleWeight",
    figure="equations 3, 6 to 8",
    title="mean staleness, shares of trips and influence of fifteen clients; no training",
    published=Published(
        heading=["equation", ""],
        rows=[
            ["3", "minimize sum |alpha_i p_i - 1/n|"],
            ["6", "E[tau_i] = (sum_j r_j / r_i - 1) / b"],
            ["7", "p_i = 1 / (E[tau_i] b + 1)"],
            ["8", "alpha_i = (E[tau_i] b + 1) / n"],
        ],
        note="Then normalized within the buffer (section 4.2.1).",
    ),
    scales={
        "desk": Scale(
            settings={"server_steps": 2000},
            seeds=tuple(range(20, 40)),
            analysis=Analysis(
                primary=PRIMARY,
                seeds=20,
                margin=Margin(0.05),
                spread=0.0014,
                source="the results of seeds 0 to 19, where another claim was the primary one",
                correction=0.0,
            ),
        ),
        "paper": Scale(settings={"server_steps": 16000}, seeds=tuple(range(5))),
    },
    measure=measure,
    pictures=draw,
    claims=[
        Claim(sentence=PRIMARY, differences=_fair_before, expected="equivalent", published="1/n each"),
        Claim(
            sentence="after the weights are normalized, too, the influence of a slow client is 1 or more",
            differences=_fair_after,
            expected="worse",
            published="less than 1/n (equation 9)",
        ),
        Claim(
            sentence="mean staleness is equation 6's within a tenth, fast and slow clients",
            differences=_staleness_holds,
            margin=Margin(0.02),
            published=" and ".join(f"{by_equation_6(5)[client]:.2f}" for client in (0, FAST))
            + " (equation 6)",
        ),
        Claim(
            sentence="equation 8's weights lower equation 3's loss, before normalization",
            differences=_more_fair,
            published="to 0 (equation 3)",
        ),
        Claim(
            sentence="and after normalization",
            differences=_fairer_after,
            published="more equitable (abstract)",
        ),
        Claim(
            sentence="with b = 1 it is the plain mean", differences=_same_with_one, own=True, identity=True
        ),
    ],
)
