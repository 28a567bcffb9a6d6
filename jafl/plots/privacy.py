"""Pictures of private runs: epsilon per client, and signal against noise over the server steps."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from jafl.base.errors import require
from jafl.plots.canvas import COLORS, is_constant, legend_above, new_figure, powers_of_ten, thousands, tidy

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BINS = 40
MOST_POINTS = 300  # ranges of server steps of a line


def epsilon_per_client(per_client: np.ndarray, readings: Mapping[str, float] | None = None) -> "Figure":
    """A histogram of the epsilons of the clients' own trips, with the run's readings marked.

    Args:
      per_client: [N] epsilons, at least 0; 0 is a client without a trip. Infinite ones are counted, not drawn.
      readings: {name: epsilon} of the run, each a line (``PrivacyReport``: once, realised, worst case).

    Returns:
      The figure.

    Raises:
      SettingError: if no epsilon is finite, or one is negative or no number.
    """
    per_client = np.asarray(per_client, np.float64)
    finite = per_client[np.isfinite(per_client)]
    require(finite.size, "per_client", per_client, "at least one finite epsilon")
    require(np.all(per_client >= 0), "the smallest of per_client", np.min(per_client), "at least 0")
    shown = {name: value for name, value in (readings or {}).items() if np.isfinite(value)}
    figure, axes = new_figure(1, 1, 7.0, 3.8)
    panel = axes[0, 0]
    tidy(panel, "epsilon of a client's own trips", "clients", thousands)
    high = max([finite.max(), *shown.values()]) or 1.0
    logarithmic = high > 30 * max(np.median(finite), 1e-9)
    low = max(finite[finite > 0].min(initial=high), high / 1e6) if logarithmic else 0.0
    edges = np.geomspace(low, high, BINS + 1) if logarithmic else np.linspace(0, high, BINS + 1)
    edges[-1] *= 1 + 1e-9
    count, _ = np.histogram(np.clip(finite, low, None), edges)
    handles = [panel.stairs(count, edges, fill=True, color=COLORS[0], alpha=0.75, label="clients")]
    for (name, value), color, style in zip(shown.items(), COLORS[1:], ("--", "-", ":"), strict=False):
        label = f"{name}: {value:,.0f}" if value >= 100 else f"{name}: {value:.3g}"
        handles.append(panel.axvline(value, color=color, linestyle=style, linewidth=2, label=label))
    if logarithmic:
        panel.set_xscale("log")
        powers_of_ten(panel.xaxis, low, high, lambda value, _: f"{value:g}")
        panel.set_xlabel("epsilon of a client's own trips (log scale)")
    else:
        panel.set_xlim(0, 1.04 * high)
        panel.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    panel.set_ylim(bottom=0)
    without = int(np.sum(finite == 0))
    notes = [
        f"median {np.median(finite):.3g}",
        f"99.9 % of the clients at most {np.quantile(finite, 0.999):.3g}",
    ]
    notes += [f"{without:,} without a trip"] if without else []
    panel.set_title(", ".join(notes), loc="left", fontsize="medium")
    legend_above(figure, handles)
    return figure


def signal_and_noise(signal: np.ndarray, noise: np.ndarray) -> "Figure":
    """The L2 norms of each server step's direction without noise, and of its noise, over the steps.

    Of many steps the line is the mean of a range of steps, with a band from the smallest to the largest.

    Args:
      signal: [T] norms of the directions before noise (``signal_norm`` of ``History.step_reports``).
      noise: [T] norms of the noises (``noise_norm``).

    Returns:
      The figure.

    Raises:
      SettingError: for arrays of other or different lengths, or none that is finite.
    """
    signal, noise = np.asarray(signal, np.float64), np.asarray(noise, np.float64)
    fits = signal.ndim == 1 and signal.shape == noise.shape and signal.size
    require(
        fits, "the shapes of signal and noise", (signal.shape, noise.shape), "([T], [T]) of a run with steps"
    )
    require(np.isfinite([*signal, *noise]).any(), "signal and noise", "not finite", "finite at some step")
    figure, axes = new_figure(1, 1, 7.0, 3.8)
    panel, handles = axes[0, 0], []
    tidy(panel, "server steps", "L2 norm over all parameters")
    ranges = np.array_split(np.arange(len(signal)), min(MOST_POINTS, len(signal)))
    steps = [part.mean() for part in ranges]
    for name, values, color in (("signal", signal, COLORS[0]), ("noise", noise, COLORS[3])):
        range_values = [values[part] for part in ranges]
        mean = np.array([part.mean() for part in range_values])
        if len(ranges) < len(values):
            low, high = ([pick(part) for part in range_values] for pick in (np.min, np.max))
            panel.fill_between(steps, low, high, color=color, alpha=0.2, linewidth=0)
        label = f"{name}: median {np.nanmedian(values):.3g}"
        handles += panel.plot(steps, mean, color=color, label=label, marker="o" if len(mean) < 25 else "")
    positive = np.concatenate([signal, noise])
    positive = positive[(positive > 0) & np.isfinite(positive)]
    if positive.size and not is_constant(positive) and positive.max() > 20 * positive.min():
        panel.set_yscale("log")
        powers_of_ten(panel.yaxis, positive.min(), positive.max(), lambda value, _: f"{value:g}")
        panel.set_ylabel("L2 norm over all parameters (log scale)")
    else:
        panel.set_ylim(bottom=0)
    typical = np.nanmedian(signal) / np.nanmedian(noise) if np.nanmedian(noise) > 0 else np.inf
    title = f"signal / noise of the medians: {typical:.3g}" if np.isfinite(typical) else "no noise"
    panel.set_title(title, loc="left", fontsize="medium")
    legend_above(figure, handles)
    return figure
