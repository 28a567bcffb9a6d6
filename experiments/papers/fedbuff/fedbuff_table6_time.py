"""FedBuff (Nguyen et al. 2022), table 6: the time of its rounds, from schedules alone.

Command: python run.py experiment fedbuff_table6_time

Published: wall-clock time in mean trips and thousand client trips until 90 % (CelebA) and 69 % (Sent140) for
FedBuff with K = 1000, FedAvgM, and FedAvgM that selects 1,300 and keeps the first 1,000 (section C.4).

Open choices: how many server steps each needs is a matter of training (fedbuff_table6 trains at desk size) and is
taken from the table's trips: 124, 104, 135 / 1.3 steps, and 228, 216, 281 / 1.3. The paper counts a round as the
time of its 1,000th arrival, so a fresh duration is drawn for each trip, from a half-normal law with mean 1. CelebA:
9,343 training clients; Sent140: 79,214 (fedbuff_table1).

Desk size: the paper's own size, twenty seeds; the paper size is the same. Seeds 0 to 4 were looked at before the
protocol, and are not among them.
"""

import functools
import math
import pathlib
from typing import Any

import numpy as np

from experiments.harness import Analysis, Claim, Context, Margin, PaperExperiment, Published, Scale
from experiments.papers.fedbuff.fedbuff_table1 import CLIENTS_GIVEN, PAPER_CLIENTS

TASKS = {name: PAPER_CLIENTS[task] for task, name in CLIENTS_GIVEN.items()}
FEDBUFF, FEDAVGM, MORE = "FedBuff, K = 1000", "FedAvgM", "FedAvgM, 1,300 selected"
# (thousand trips, time in mean trips) of table 6.
PUBLISHED = {
    "CelebA": {FEDBUFF: (124, 124), FEDAVGM: (104, 446), MORE: (135, 155)},
    "Sent140": {FEDBUFF: (228, 228), FEDAVGM: (216, 927), MORE: (281, 322)},
}
STARTED = {FEDBUFF: 1000, FEDAVGM: 1000, MORE: 1300}  # per server step
# A published time rounded to three digits, of a number of rounds rounded to three, over few rounds.
NEARLY = Margin(0.015)


def order_statistic(number: int, of: int) -> float:
    """The mean of the ``number``-th smallest of ``of`` half-normal durations with mean 1, by quadrature."""
    from scipy import integrate, special

    def not_yet(time: float) -> float:
        """Probability that fewer than ``number`` have arrived."""
        # The law's distribution function: sigma is sqrt(pi / 2).
        arrived = special.erf(time / math.sqrt(math.pi))
        return 1 - special.betainc(number, of - number + 1, arrived)

    return float(integrate.quad(not_yet, 0, 12, limit=400)[0])


def schedule(name: str, clients: int, steps: int, seed: int) -> Any:
    """The event schedule of one algorithm's server steps."""
    from jafl.schedule import asynchronous, delays, synchronous

    law = delays.half_normal(math.sqrt(math.pi / 2))
    shared: dict[str, Any] = {"num_clients": clients, "delay": law, "server_steps": steps, "seed": seed}
    if name == FEDBUFF:
        return asynchronous(concurrency=1000, buffer_size=1000, **shared)
    return synchronous(cohort_size=1000, over_selection=0.3 if name == MORE else 0.0, **shared)


def measure(context: Context) -> list[dict[str, Any]]:
    """A row per task and algorithm: rounds, trips and time."""
    rows = []
    for task, clients in TASKS.items():
        for name, (thousand_trips, published) in PUBLISHED[task].items():
            steps = round(thousand_trips * 1000 / STARTED[name])
            run_steps = min(steps, context.settings.server_steps or steps)
            schedules = [schedule(name, clients, run_steps, seed) for seed in context.scale.seeds]
            times = [float(events.step_time[-1]) for events in schedules]
            mean = 1.0 if name == FEDBUFF else order_statistic(1000, STARTED[name])
            rows.append(
                {
                    "task": task,
                    "algorithm": name,
                    "server steps": run_steps,
                    "thousand trips": [events.trips_started_by(run_steps) / 1000 for events in schedules],
                    "time in mean trips": times,
                    "mean per step": [time / run_steps for time in times],
                    "by order statistics": mean,
                    "published time": str(published),
                    "published per step": f"{published / steps:.2f}",
                }
            )
    return rows


def value(rows: list[dict[str, Any]], task: str, name: str, column: str) -> np.ndarray:
    """A column of one row, over seeds."""
    (row,) = [row for row in rows if (row["task"], row["algorithm"]) == (task, name)]
    return np.array(row[column])


def from_published(rows: list[dict[str, Any]], name: str, task: str) -> list[float]:
    """[seeds]: the time per step over the published one, minus 1."""
    trips, time = PUBLISHED[task][name]
    published = time / round(trips * 1000 / STARTED[name])
    return list(value(rows, task, name, "mean per step") / published - 1)


def saved(rows: list[dict[str, Any]], name: str) -> list[float]:
    """[seeds]: time of 1,000 applied trips of synchronous rounds minus FedBuff's, the mean of both tasks."""
    per_step = [
        value(rows, task, name, "mean per step") - value(rows, task, FEDBUFF, "mean per step")
        for task in TASKS
    ]
    return list(np.mean(per_step, axis=0))


def draw(rows: list[dict[str, Any]], folder: pathlib.Path) -> None:
    """``time.png``: time in mean trips, measured and published."""
    from jafl.plots.canvas import new_figure, save

    figure, axes = new_figure(1, len(TASKS), 9.0, 3.2)
    for panel, task in zip(axes[0], TASKS, strict=True):
        bars = [row for row in rows if row["task"] == task]
        place = np.arange(len(bars))
        published = [PUBLISHED[task][row["algorithm"]][1] * row["server steps"] / _steps(row) for row in bars]
        panel.bar(place - 0.2, [np.mean(row["time in mean trips"]) for row in bars], 0.4, label="measured")
        panel.bar(place + 0.2, published, 0.4, color="0.7", label="published")
        panel.set_xticks(place, [row["algorithm"].replace(", ", ",\n") for row in bars])
        panel.set_title(
            f"{task}: {', '.join(str(row['server steps']) for row in bars)} server steps", fontsize="medium"
        )
        panel.set_ylabel("time in mean trips")
        panel.legend()
    save(figure, folder / "time.png")


def _steps(row: dict[str, Any]) -> int:
    """Server steps in the paper."""
    return round(PUBLISHED[row["task"]][row["algorithm"]][0] * 1000 / STARTED[row["algorithm"]])


SCALE = Scale(
    settings={},
    seeds=tuple(range(20, 40)),
    analysis=Analysis(
        primary=f"FedBuff applies 1,000 trips in less time than {MORE}",
        seeds=20,
        margin=NEARLY,
        spread=0.02,
        source="the 1,000th of 1,300 durations spreads by .04, by the law's density; a seed has 104 rounds or more",
        correction=0.0,
    ),
)
EXPERIMENT = PaperExperiment(
    paper="FedBuff",
    figure="table 6, its times",
    title="time of rounds of 1,000 in mean trips: FedBuff, FedAvgM, FedAvgM with over-selection; no training",
    published=Published(
        heading=["", "thousand trips CelebA", "time CelebA", "thousand trips Sent140", "time Sent140"],
        rows=[
            [name, *(str(number) for task in TASKS for number in PUBLISHED[task][name])] for name in STARTED
        ],
        note="Time in mean trips of a client. 446 / 104 = 927 / 216 = 4.29, 155 / 104 = 322 / 216 = 1.49.",
    ),
    scales={"desk": SCALE, "paper": SCALE},
    measure=measure,
    pictures=draw,
    claims=[
        *(
            Claim(
                sentence=f"FedBuff applies 1,000 trips in less time than {name}",
                differences=functools.partial(saved, name=name),
                margin=Margin(0.1),
                published=published,
            )
            for name, published in ((MORE, "1 : 1.49"), (FEDAVGM, "1 : 4.29"))
        ),
        *(
            Claim(
                sentence=f"{name}, {task}: the time of a server step is the published one",
                differences=functools.partial(from_published, name=name, task=task),
                expected="equivalent",
                published=f"{PUBLISHED[task][name][1]} in {PUBLISHED[task][name][0]} thousand trips",
            )
            for name in STARTED
            for task in TASKS
        ),
    ],
)
