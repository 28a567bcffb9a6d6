"""WKAFL (Zhou, Li, Ren et al. 2022), theorem 5.1 and remark 5.2: do learning rates exist that they allow?

Command: python run.py experiment wkafl_theorem5_1

Published: theorem 5.1 (stage one) bounds the gradients by inequality (13) if eta <= 1 / (2 L (1 + M_c/m)) and, for
every l, L^2 sum_{t=l}^J (J - tau_t) alpha^-t sum_{k=1}^t eta^2 s_k alpha^k (1 + M_c/m) < 1/4, with s_k = sum
alpha^(k-l) and tau_t = max(1, t - tau_max). Remark 5.2: with eta = sqrt(K/J) the rate is O(1/sqrt(KJ) + 1/J + G^2)
"for any large enough J" that meets the second condition; hence a linear speed-up.

Open choices: a problem of which every constant is known: P = 100 clients with F_i(w) = |w - c_i|^2 / 2 in ten
dimensions, so that L = 1, gradients with noise of variance sigma_c^2 / m and M_c = 0; G^2 is the largest |c_i - mean
c|^2. K = 10, exponential durations, p = 1/K, and the update that the proof starts from: w <- w - eta sum_l
alpha^(j-l) sum_i p g. tau_max is that of the schedule. The expectations of (13) are the means over seeds.

What is found: as the theorem is printed, no J is large enough. The inner sum has alpha^(k-t), which for k = 1 grows
like alpha^-t: with the paper's alpha = 0.1 the second condition allows rates below about 10^-(J/2), so that nothing
is learnt in J steps. With alpha = 0 it still allows at most about 1 / (sqrt(2) J), which is below sqrt(K/J) for every
J. So remark 5.2 is about no learning rate at all, and theorem 5.1 says nothing of a run of WKAFL. The proof (appendix
B) states another condition: L^2 sum_{t=l}^j (j - tau_t) alpha^(j-t) sum_{k=l}^t eta^2 s_k alpha^(k-l) (1 + M_c/m) <
1/4. It allows rates up to about 1 / (2 sqrt(tau_max)), whatever J is, and thus sqrt(K/J) once J is several thousand.
But the proof then uses that the same sum is below alpha^(j-l) / 4, which does not follow from it; divided by
alpha^(j-l), that is the condition of the theorem for l = 1. Inequality (13) itself holds in the simulation by a wide
margin, at a rate that the theorem does not allow, though appendix B does: its right side keeps G^2, the largest
difference between a client's gradient and the true one.

What changed: whether the appendix's condition allows a rate is a question of yes or no, and its margin was 0.3, a
factor of two in the rate: at J = 10,000 a rate 1.26 times as large as sqrt(K/J) counted as equal to it. The margin is
.01 now. All seeds are new: 0 to 19 had been looked at without the appendix's condition, and 20 to 39 with it.

The paper's alpha is above 0 (equation 4): the claims at alpha = 0 are jafl's.

Desk size: J = 10, 30, 100, 300, 1,000 and 10,000; twenty seeds.
"""

import functools
import math
import pathlib
from typing import Any

import numpy as np

from experiments.harness import Analysis, Claim, Context, Margin, PaperExperiment, Published, Scale

CLIENTS, BUFFER, DIMENSIONS, BATCH = 100, 10, 10, 4
SPREAD, NOISE = 1.0, 1.0  # of the clients' optima; sigma_c
STEPS = (10, 30, 100, 300, 1000, 10_000)
MOMENTA = (0.0, 0.1)
ALLOWED, BY_THE_PROOF = "log10 of the largest rate allowed", "by appendix B"
YES_OR_NO = Margin(0.01)  # of an inequality that the paper asks for, in powers of ten
MODERATE = 0.02  # a rate at which the problem is learnt in spite of its staleness


def schedule(steps: int, seed: int) -> Any:
    """The events of so many server steps."""
    from jafl.schedule import asynchronous, delays

    return asynchronous(
        num_clients=CLIENTS,
        concurrency=CLIENTS,
        buffer_size=BUFFER,
        delay=delays.exponential(1.0),
        server_steps=steps,
        seed=seed,
        restart="after_step",
    )


def optima(seed: int) -> np.ndarray:
    """[P, d]: where each client's objective is least."""
    return SPREAD * np.random.default_rng([seed, 1]).standard_normal((CLIENTS, DIMENSIONS))


def partial_sums(steps: int, momentum: float) -> np.ndarray:
    """[J]: s_j = sum_{l=1}^j momentum^(j-l)."""
    return np.cumsum(momentum ** np.arange(steps))


def largest_rate(steps: int, oldest: int, momentum: float) -> float:
    """The decimal logarithm of the largest constant rate that theorem 5.1's second condition allows, with L = 1."""
    t = np.arange(1, steps + 1)
    weight = steps - np.maximum(1, t - oldest)  # J - tau_t
    if momentum == 0:
        inner = np.zeros(steps)  # of alpha^(k-t) only k = t is left
    else:
        terms = np.log(partial_sums(steps, momentum)) + t * math.log(momentum)
        inner = np.logaddexp.accumulate(terms) - t * math.log(momentum)
    counted = weight > 0
    total = np.logaddexp.reduce(np.log(weight[counted]) + inner[counted])  # l = 1 has the most terms
    return float(-(math.log(4) + total) / 2 / math.log(10))


def largest_rate_of_the_proof(steps: int, oldest: int, momentum: float) -> float:
    """The decimal logarithm of the largest constant rate that the condition in appendix B allows, with L = 1."""
    t = np.arange(1, steps + 1)
    weights = (steps - np.maximum(1, t - oldest)) * momentum ** (steps - t)
    later = np.cumsum(weights[::-1])[::-1]  # of t = k to J
    total = worst = 0.0
    for term in (partial_sums(steps, momentum) * later)[::-1]:  # from l = J to 1
        total = term + momentum * total
        worst = max(worst, total)
    return float(-math.log10(4 * worst) / 2)


def gradients(events: Any, momentum: float, rate: float, seed: int) -> tuple[np.ndarray, float]:
    """([J]: the squared norm of the true gradient before each step; F(w_1) - F*) of the update of the proof."""
    centers, rng = optima(seed), np.random.default_rng([seed, 2])
    best = centers.mean(axis=0)
    models = [best + 3.0 * np.ones(DIMENSIONS)]
    velocity = np.zeros(DIMENSIONS)
    versions = events.download_version.reshape(-1, BUFFER)
    noise = NOISE / math.sqrt(BATCH * DIMENSIONS)
    for client, version in zip(events.client.reshape(-1, BUFFER), versions, strict=True):
        stale = np.stack([models[number] for number in version]) - centers[client]
        stale += noise * rng.standard_normal(stale.shape)
        velocity = momentum * velocity + stale.mean(axis=0)
        models.append(models[-1] - rate * velocity)
    squared = np.sum((np.stack(models[:-1]) - best) ** 2, axis=1)
    return squared, float(squared[0] / 2)


def both_sides(steps: int, oldest: int, momentum: float, rate: float, seed: int) -> tuple[float, float]:
    """The left and the right side of inequality (13) in one run."""
    squared, gap = gradients(schedule(steps, seed), momentum, rate, seed)
    sums = partial_sums(steps, momentum)
    variance = NOISE**2 / BATCH / BUFFER  # sigma_c^2 / m times the sum of p^2
    centers = optima(seed)
    unlike = np.max(np.sum((centers - centers.mean(axis=0)) ** 2, axis=1))  # G^2
    j = np.arange(1, steps + 1)
    first = np.maximum(1, j - oldest)  # tau_l
    before = np.concatenate([[0.0], np.cumsum(rate**2 * variance * sums**2)])  # of eta_t^2 B_t, up to t
    stale = np.zeros(steps)
    for row in range(steps):
        own = first[: row + 1]
        terms = (row + 1 - own) * (before[row] - before[own - 1])
        stale[row] = np.sum(momentum ** np.arange(row, -1, -1.0) * np.maximum(terms, 0))
    right = variance / 2 * sums**2 * rate**2 + rate * sums * unlike + rate * stale
    return float(np.mean(rate * sums / 2 * squared)), float(np.mean(right) + gap / steps)


def measure(context: Context) -> list[dict[str, Any]]:
    """A row per alpha and J: the rates that the theorem allows, and both sides of (13) at a moderate rate."""
    rows = []
    most = context.settings.server_steps or STEPS[-1]
    for momentum in MOMENTA:
        for steps in [number for number in STEPS if number <= most]:
            oldest = [int(schedule(steps, seed).staleness.max()) for seed in context.scale.seeds]
            allowed = [largest_rate(steps, each, momentum) for each in oldest]
            sides = [
                both_sides(steps, each, momentum, MODERATE, seed)
                for each, seed in zip(oldest, context.scale.seeds, strict=True)
            ]
            rows.append(
                {
                    "alpha": momentum,
                    "J": steps,
                    "tau_max": [float(each) for each in oldest],
                    ALLOWED: allowed,
                    BY_THE_PROOF: [largest_rate_of_the_proof(steps, each, momentum) for each in oldest],
                    "log10 of sqrt(K / J)": math.log10(BUFFER / steps) / 2,
                    "left of (13)": [left for left, _ in sides],
                    "right of (13)": [right for _, right in sides],
                }
            )
    return rows


def find_row(rows: list[dict[str, Any]], momentum: float, steps: int) -> dict[str, Any]:
    """The row of alpha and J; of the longest that was run, if that is shorter."""
    own = [row for row in rows if row["alpha"] == momentum and row["J"] <= steps]
    return own[-1]


def allows(rows: list[dict[str, Any]], momentum: float, steps: int, condition: str = ALLOWED) -> list[float]:
    """By how many powers of ten the largest rate that is allowed exceeds sqrt(K / J)."""
    row = find_row(rows, momentum, steps)
    return [allowed - row["log10 of sqrt(K / J)"] for allowed in row[condition]]


def holds(rows: list[dict[str, Any]], momentum: float, steps: int) -> list[float]:
    """The decimal logarithm of the right side of (13) over the left."""
    row = find_row(rows, momentum, steps)
    return np.log10(np.array(row["right of (13)"]) / np.array(row["left of (13)"])).tolist()


def draw(rows: list[dict[str, Any]], folder: pathlib.Path) -> None:
    """``rates.png``: the largest rates that theorem 5.1 and its proof allow, and that of remark 5.2, over J."""
    from jafl.plots.canvas import COLORS, new_figure, save

    figure, axes = new_figure(1, 1, 6.0, 3.6)
    (panel,) = axes[0]
    for momentum, color in zip(MOMENTA, COLORS, strict=False):
        own = [row for row in rows if row["alpha"] == momentum]
        for condition, style, whose in ((ALLOWED, "o-", "theorem 5.1"), (BY_THE_PROOF, "x:", "appendix B")):
            means = [np.mean(row[condition]) for row in own]
            label = f"allowed by {whose}, alpha = {momentum:g}"
            panel.plot([row["J"] for row in own], means, style, color=color, label=label)
    remark = [row["log10 of sqrt(K / J)"] for row in own]
    panel.plot([row["J"] for row in own], remark, "--", color="0.5", label="sqrt(K / J), remark 5.2")
    panel.set(xscale="log", ylim=(-16, 1), xlabel="server steps J", ylabel="log10 of the learning rate")
    panel.legend(frameon=False)
    panel.spines[["top", "right"]].set_visible(False)
    save(figure, folder / "rates.png")


def _allowed(momentum: float) -> Claim:
    return Claim(
        sentence=f"theorem 5.1 allows the rate sqrt(K / J) of remark 5.2 at J = 1,000 (alpha = {momentum:g})",
        differences=functools.partial(allows, momentum=momentum, steps=1000),
        published="for any large enough J",
        own=momentum == 0,
    )


def _allowed_by_the_proof(steps: int) -> Claim:
    return Claim(
        sentence=f"appendix B's condition allows the rate sqrt(K / J) of remark 5.2 at J = {steps:,} (alpha = 0.1)",
        differences=functools.partial(allows, momentum=0.1, steps=steps, condition=BY_THE_PROOF),
        margin=YES_OR_NO,
        published="for any large enough J",
    )


PRIMARY = _allowed(0.1)

EXPERIMENT = PaperExperiment(
    paper="WKAFL",
    figure="theorem 5.1",
    title="learning rates that the theorem and remark 5.2 allow, and inequality (13); no training",
    published=Published(
        note="Inequality (13), under two conditions on the learning rate; remark 5.2 takes eta = sqrt(K / J)."
    ),
    scales={
        "desk": Scale(
            settings={},
            seeds=tuple(range(40, 60)),
            analysis=Analysis(
                primary=PRIMARY.sentence,
                seeds=20,
                margin=Margin(0.3),
                spread=0.1,
                source="schedules of seeds 1000 and 1001: the rate hangs on their tau_max alone",
                correction=0.0,
                why={
                    "alpha (0)": _allowed(0.0).sentence,
                    "the condition (appendix B's)": _allowed_by_the_proof(1000).sentence,
                    "the condition (appendix B's, after 10,000 steps)": _allowed_by_the_proof(
                        10_000
                    ).sentence,
                },
            ),
        ),
        "paper": Scale(settings={}, seeds=tuple(range(5))),
    },
    measure=measure,
    pictures=draw,
    claims=[
        PRIMARY,
        _allowed(0.0),
        _allowed_by_the_proof(1000),
        _allowed_by_the_proof(10_000),
        *(
            Claim(
                sentence=f"inequality (13) holds in J = 1,000 steps at a rate of {MODERATE:g} (alpha = {momentum:g})",
                differences=functools.partial(holds, momentum=momentum, steps=1000),
                published="an inequality",
                own=momentum == 0,
            )
            for momentum in MOMENTA
        ),
    ],
)
