"""The summary of a run: how it ended, what it reached, and what that cost."""

import platform
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jafl.diagnostics.summary import summarize_staleness
from jafl.records import History
from jafl.runs.directory.tables import cost_of_target, with_accuracy


def summarize(history: History, *, target_accuracy: float, status: str = "finished") -> dict[str, Any]:
    """The part of ``summary.json`` that the history tells; status: "finished", "interrupted" or "diverged"."""
    schedule, evaluations = history.schedule, history.evaluations
    applied = len(history.trip_reports["loss"])
    started = schedule.trips_started_by(history.server_steps)
    counts = np.bincount(schedule.client[:applied], minlength=schedule.num_clients)
    scored = with_accuracy(evaluations)
    return {
        "status": status,
        "final": evaluations[-1] if evaluations else None,
        "best": max(scored, key=lambda evaluation: evaluation["test_accuracy"], default=None),
        "target_accuracy": target_accuracy,
        **cost_of_target(evaluations, target_accuracy),
        "server_steps": history.server_steps,
        "client_trips": started,
        "time": float(schedule.step_time[history.server_steps - 1]) if history.server_steps else 0.0,
        "trips_thrown_away": started - applied,
        "void_steps": int(np.sum(schedule.void_steps < history.server_steps)),
        "staleness": summarize_staleness(schedule.staleness[:applied]),
        "participation": {"client_trips": counts.tolist(), "influence": history.influence.tolist()},
        "training_stability": _stability(scored),
        "snapshot_slots": history.num_slots,
        "wall_clock": {
            "run_seconds": history.run_seconds,
            "compile_seconds": history.compile_seconds,
            "client_trips_per_second": applied / history.run_seconds if history.run_seconds else None,
        },
        "peak_memory_bytes": _peak_memory(),
    }


def _stability(scored: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Standard deviations of the last ten test accuracies and of their logarithms."""
    last_ten = np.array([evaluation["test_accuracy"] for evaluation in scored[-10:]])
    return {
        "std_last_ten": _spread(last_ten),
        "std_log_last_ten": _spread(np.log(last_ten[last_ten > 0])),
    }


def _spread(values: np.ndarray) -> float | None:
    return float(np.std(values)) if len(values) else None


def _peak_memory() -> int | None:
    """Bytes: the peak of the device, or of the process where the device does not tell."""
    stats = jax.local_devices()[0].memory_stats()
    if stats and "peak_bytes_in_use" in stats:
        return int(stats["peak_bytes_in_use"])
    try:
        import resource
    except ImportError:  # not on Windows
        return None
    unit = 1 if platform.system() == "Darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
