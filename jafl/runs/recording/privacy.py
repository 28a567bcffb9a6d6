"""What private runs say: the block of ``summary.json`` and ``diagnostics.json``, the printed table, the pictures."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jafl import plots
from jafl.base.extras import MissingLibraryError
from jafl.config.experiment import Experiment
from jafl.privacy.accounting import PrivacyReport
from jafl.privacy.amplified import amplified_epsilon, reason_against_amplification
from jafl.privacy.private import AccountedRule, report_of
from jafl.runs.directory.tables import aligned

COLUMNS = (
    "run",
    "epsilon once",
    "realised",
    "worst case",
    "delta",
    "mechanism",
    "clip norm",
    "noise multiplier",
    "set for",
    "noise of a node",
    "trips clipped",
    "not finite",
)


def block(
    experiment: Experiment, trip_reports: Mapping[str, Any] | None = None, step_reports: Any = None
) -> dict[str, Any]:
    """{"privacy": what the run claims}; empty of a run that is not private.

    Reports, {name: [J']} and {name: [T']}, only of a run that has trained: for the share of trips that were clipped,
    and for the medians of the norms of signal and noise.
    """
    report = report_of(experiment.rule)
    if report is None:
        return {}
    fields = report.to_dict() | _amplified(experiment, report)
    if trip_reports is not None and len(trip_reports["clipped"]):
        clipped = np.asarray(trip_reports["clipped"])
        fields |= {"trips_clipped": int(clipped.sum()), "share_of_trips_clipped": float(clipped.mean())}
        fields |= {"updates_not_finite": int(np.sum(trip_reports.get("not_finite", 0)))}
    if norms := noise_norms(step_reports or {}):
        names = ("median_signal_norm", "median_noise_norm")
        fields |= {name: float(np.median(values)) for name, values in zip(names, norms, strict=True)}
    return {"privacy": fields}


def _amplified(experiment: Experiment, report: PrivacyReport) -> dict[str, float | str | None]:
    """{"epsilon_amplified": of DP-SGD with Poisson cohorts whose members are secret}; empty of any other run.

    It is None without dp-accounting. Of a rule that sampling does not amplify, {"not_amplified": why}.
    """
    settings = experiment.settings
    sampled = settings.argument("protocol.cohorts") == "poisson"
    if not (sampled and report.mechanism.name == "independent" and report.noise_multiplier):
        return {}
    run = experiment.run
    cohort_size = settings.value("protocol.cohort_size")
    assert isinstance(run.rule, AccountedRule)
    requested = run.rule.requested or run.rule.arguments["rule"]
    if reason := reason_against_amplification(requested, run.schedule, run.federation.num_examples):
        return {"not_amplified": reason}
    rate = cohort_size / report.num_clients
    try:
        epsilon = _amplified_epsilon(report.noise_multiplier, rate, report.num_steps, report.delta)
    except MissingLibraryError:
        return {"epsilon_amplified": None}
    return {"epsilon_amplified": epsilon}


@functools.lru_cache(maxsize=1024)  # runs of a sweep differ in seeds, mostly
def _amplified_epsilon(noise_multiplier: float, rate: float, rounds: int, delta: float) -> float:
    return amplified_epsilon(noise_multiplier, sampling_rate=rate, rounds=rounds, delta=delta)


def noise_norms(step_reports: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray] | None:
    """(norms of the directions before noise [T'], of their noises [T']); None where a run has reported none."""
    if "noise_norm" not in step_reports or not len(step_reports["noise_norm"]):
        return None
    return np.asarray(step_reports["signal_norm"]), np.asarray(step_reports["noise_norm"])


def figures(experiment: Experiment, step_reports: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """{name: a function that makes the figure} of a private run; of one that has not trained, epsilon alone."""
    report = report_of(experiment.rule)
    if report is None:
        return {}
    fields: dict[str, Any] = {}
    if np.isfinite(report.per_client_epsilon).any() and report.noise_multiplier > 0:
        readings = {
            "once": report.epsilon_once,
            "realised": report.epsilon_realised,
            "worst case": report.epsilon_worst_case,
        }
        fields["epsilon_per_client"] = functools.partial(
            plots.epsilon_per_client, report.per_client_epsilon, readings
        )
    if norms := noise_norms(step_reports or {}):
        fields["signal_and_noise"] = functools.partial(plots.signal_and_noise, *norms)
    return fields


def text(blocks: Mapping[str, Mapping[str, Any] | None]) -> list[str]:
    """Lines: the table of private runs, {name: ``privacy`` block or None}, and what the claim stands on; or none."""
    cells = table(blocks)
    if not cells:
        return []
    lines = [*aligned(cells), *remarks(blocks)]
    for whose, conditions in claims(blocks):
        lines += [whose, *(f"  - {sentence}" for sentence in conditions)]
    return ["", *lines, ""]


def table(blocks: Mapping[str, Mapping[str, Any] | None]) -> list[Sequence[str]]:
    """The table of private runs, its heading first; empty without private runs. ``blocks``: as of ``text``."""
    rows = [_row(name, fields) for name, fields in blocks.items() if fields]
    return [COLUMNS, *rows] if rows else []


def remarks(blocks: Mapping[str, Mapping[str, Any] | None]) -> list[str]:
    """Sentences on single private runs. ``blocks``: as of ``text``."""
    said = []
    for name, fields in blocks.items():
        if fields and "epsilon_amplified" in fields:
            epsilon = fields["epsilon_amplified"]
            known = "unknown here: pip install 'jafl[privacy]'" if epsilon is None else _number(epsilon)
            said.append(
                f"{name}: epsilon {known}, if nobody learns who was in its Poisson cohorts (amplified by sampling). "
                "The table is for cohorts that are known."
            )
        if fields and "not_amplified" in fields:
            said.append(f"{name}: sampling does not amplify its privacy. {fields['not_amplified']}")
        if fields and fields.get("updates_not_finite"):
            said.append(
                f"{name}: {fields['updates_not_finite']:,} updates held NaN or infinity, and counted as 0. Look at "
                "what these clients hold (reports.npz: not_finite), or lower learning_rate."
            )
    return said


def claims(blocks: Mapping[str, Mapping[str, Any] | None]) -> list[tuple[str, Sequence[str]]]:
    """(whose claim stands on these sentences, the sentences) of all private runs. ``blocks``: as of ``text``."""
    said: dict[tuple[str, ...], list[str]] = {}
    for name, fields in blocks.items():
        if fields:
            said.setdefault(tuple(fields["conditions"]), []).append(name)
    several = len(said) > 1
    return [
        (
            f"The claim of {', '.join(names)} stands on this:" if several else "The claim stands on this:",
            sentences,
        )
        for sentences, names in said.items()
    ]


def _row(name: str, fields: Mapping[str, Any]) -> Sequence[str]:
    mechanism = dict(fields["mechanism"])
    more = [f"{mechanism[key]} {key}" for key in ("restarts", "bands") if mechanism.get(key)]
    share = fields.get("share_of_trips_clipped")
    return [
        name,
        *(_number(fields[f"epsilon_{reading}"]) for reading in ("once", "realised", "worst_case")),
        _number(fields["delta"]),
        ", ".join([mechanism["name"], *more]),
        _number(fields["clip_norm"]),
        _number(fields["noise_multiplier"]),
        "the noise"
        if fields["epsilon"] is None
        else f"epsilon {_number(fields['epsilon'])} {fields['epsilon_reading']}",
        _number(fields["noise_deviation"]),
        "-" if share is None else f"{100 * share:.1f} %",
        "-" if share is None else f"{fields.get('updates_not_finite', 0):,}",
    ]


def _number(value: Any) -> str:
    """A number with four digits; text, which stands for what is not finite, as it is."""
    return value if isinstance(value, str) else f"{value:.4g}"
