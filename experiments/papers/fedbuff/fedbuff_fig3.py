"""FedBuff (Nguyen et al. 2022), figure 3: client trips to a target accuracy against concurrency.

Command: python run.py experiment fedbuff_fig3 --tune
    --tune searches for the rates again; without it the ones that were found before are used. --scale=paper takes
    CelebA, Sent140 and CIFAR-10, once ``run.py prepare ...`` has been run for them.

Published: a figure without a table. At low concurrency FedBuff (K = 10, momentum) and FedAvgM need as many trips;
with more clients under way FedAvgM's trips grow faster (section 6.1). At concurrency 10 both make a server step
every ten trips.

Open choices: which concurrencies. Rates were searched for in all experiments (section B.3), but only table 1's
winners are printed. Section 2 says that the best server's rate grows with concurrency, so desk size searches for
each. Paper size takes table 4's rates, found at 1,000, for all.

Desk size: fedbuff_table1's federation with MNIST-1D, 10, 100 and 1,000 of 5,000 clients under way; 12,000 trips with
10 and 100, evaluated each 200; 60,000 with 1,000, evaluated each 1,000, in both arms. Five searches for each arm and
concurrency: the server's rate is at first from .16 to 6.25, the clients' from .16 to 2.5, momentum 0 or .9; results
of 20 seeds. Growth is that from 100 clients under way to 1,000, in logarithms: the lead of one arm at 1,000 over its
lead at 100.
"""

import functools
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from experiments.harness import (
    LOG_TRIPS_MARGIN,
    TRIPS_MARGIN,
    Analysis,
    Claim,
    Measure,
    Override,
    PaperExperiment,
    Published,
    Runs,
    Scale,
    compare,
    final_accuracy,
    log_contrast,
    steps_to,
)
from experiments.papers.fedbuff import fedbuff_table1 as table1
from experiments.papers.fedbuff.fedbuff_table1 import FEDAVGM, FEDBUFF, FEWER_TRIPS, to_target

CONCURRENCIES = [10, 100, 1000]
PAPER_CONCURRENCIES = {"concurrency": CONCURRENCIES}
FEW, MANY = {"concurrency": 100}, {"concurrency": 1000}
ARMS = {label: table1.ARMS[label] for label in (FEDBUFF, FEDAVGM)}
# Equal chances to reach the target in both arms, and short runs where few trips are enough.
EVALUATIONS = [
    Override({"concurrency": level}, None, {"evaluate_every": 200, "client_trips": 12_000})
    for level in CONCURRENCIES[:-1]
]
GROWS = "from 100 to 1,000 under way, FedAvgM's trips grow by a larger factor than FedBuff's"


def grows_less(condition: Mapping[str, Any]) -> Any:
    """``Claim.differences``: the logarithm of FedAvgM's growth over FedBuff's, for one task."""
    few, many = {**condition, **FEW}, {**condition, **MANY}
    return log_contrast(to_target, [(FEDAVGM, many), (FEDBUFF, few)], [(FEDAVGM, few), (FEDBUFF, many)])


def draw_against_concurrency(runs: Runs, folder: pathlib.Path, measures: Mapping[str, Measure]) -> None:
    """``concurrency.png``: each measure against concurrency, mean and standard error over seeds, solid per arm.

    Of several tasks, the first one is drawn.
    """
    from jafl.plots.canvas import legend_above, new_figure, save

    figure, axes = new_figure(1, len(measures), 4.2 * len(measures), 3.4)
    task = runs.conditions[0].get("dataset")
    conditions = [condition for condition in runs.conditions if condition.get("dataset") == task]
    levels = [condition["concurrency"] for condition in conditions]
    for panel, (name, measure) in zip(axes[0], measures.items(), strict=True):
        for label in runs.labels:
            values = np.array(
                [list(runs.values(label, measure, condition).values()) for condition in conditions]
            )
            error = np.std(values, axis=1, ddof=1) / values.shape[1] ** 0.5 if values.shape[1] > 1 else None
            panel.errorbar(levels, values.mean(axis=1), error, marker="o", capsize=3, label=label)
        panel.set_xscale("log")
        panel.set_yscale("log")
        panel.set_xticks(levels, [f"{level:,}" for level in levels])
        panel.minorticks_off()
        panel.set_xlabel("clients under way")
        panel.set_ylabel(name)
        low, high = panel.get_ylim()
        ticks = [
            place * 10**power
            for power in range(-1, 6)
            for place in (1, 2, 5)
            if low <= place * 10**power <= high
        ]
        panel.set_yticks(ticks, [f"{tick:,g}" for tick in ticks])
    legend_above(figure, axes[0, 0].get_legend_handles_labels()[0])
    save(figure, folder / "concurrency.png")


EXPERIMENT = PaperExperiment(
    paper="FedBuff",
    figure="figure 3",
    title="client trips to a target accuracy against concurrency: FedBuff, FedAvgM",
    published=Published(
        note="Curves: equal at low concurrency; FedAvgM's trips grow with concurrency much faster than FedBuff's. "
        + table1.WITHOUT_GLOVE
    ),
    scales={
        "desk": Scale(
            settings=table1.WORLD,
            arms=ARMS,
            conditions={"concurrency": CONCURRENCIES},
            overrides=EVALUATIONS,
            search=table1.search_for_trips(table1.WITH_MOMENTUM),
            seeds=table1.SEEDS,
            analysis=Analysis(
                primary=GROWS,
                seeds=20,
                margin=TRIPS_MARGIN,
                spread=0.3,
                source="four pilot seeds from 1010 on: log trips spread by .2 (FedBuff) at 100 and at 1,000",
                difference=0.26,
                correction=0.0,
            ),
        ),
        "paper": table1.paper_scale(
            table1.as_published(ARMS), {arm: arm for arm in ARMS}, conditions=PAPER_CONCURRENCIES
        ),
    },
    columns={
        "trips to the target": to_target,
        "server steps": steps_to(table1.TARGET),
        "final accuracy": final_accuracy,
    },
    pictures=functools.partial(draw_against_concurrency, measures={"trips to the target": to_target}),
    claims=[
        Claim(
            sentence=GROWS,
            differences=grows_less({}),
            margin=LOG_TRIPS_MARGIN,
            published="a figure",
            scales=("desk",),
        ),
        *(
            Claim(
                sentence=f"{GROWS}, {name}",
                differences=grows_less({"dataset": task}),
                margin=LOG_TRIPS_MARGIN,
                published="a figure",
                scales=("paper",),
            )
            for task, name in table1.NAMES.items()
        ),
        *compare(
            "FedBuff and FedAvgM need as many trips at concurrency 10",
            FEDBUFF,
            FEDAVGM,
            **FEWER_TRIPS,
            under={"concurrency": 10},
            expected="equivalent",
            published="a figure",
        ),
        *(
            claim
            for level, published in (
                (100, "a figure"),
                (1000, f"{table1.published_trips(FEDBUFF, FEDAVGM)} (table 1)"),
            )
            for claim in compare(
                f"FedBuff needs fewer trips at concurrency {level:,}",
                FEDBUFF,
                FEDAVGM,
                **FEWER_TRIPS,
                under={"concurrency": level},
                published=published,
            )
        ),
    ],
    words=table1.UNDER_WAY,
)
