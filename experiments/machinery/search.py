"""The equal search: every arm gets as many trials, run with the same seeds, judged on validation examples."""

import itertools
import math
import pprint
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from experiments.machinery.declared import LogUniform, Scale, Search
from experiments.machinery.found import Runs
from jafl.config import grid
from jafl.config.arms import Override
from jafl.errors import SettingError

BETWEEN = " | "  # an arm's label and the trial's settings, in the label of the trial's runs
EDGE = 0.05  # of a range's logarithm: a winner so near an end is at the edge


def trials(search: Search, label: str) -> list[dict[str, Any]]:
    """The settings that are tried for an arm, in order.

    Raises SettingError if random trials are asked for without their number.
    """
    space = search.spaces.get(label, search.space)
    if not space:
        return []
    ranges = {name: values for name, values in space.items() if isinstance(values, LogUniform)}
    if not ranges:
        return [dict(zip(space, values, strict=True)) for values in itertools.product(*space.values())]  # type: ignore[arg-type]
    if not search.trials:
        raise SettingError("trials of a search is None, but random trials need their number.")
    rng = np.random.default_rng(search.seed)  # the same draws, as shares of the range, for each arm
    return [{name: _draw(values, rng) for name, values in space.items()} for _ in range(search.trials)]


def _draw(values: Sequence[Any] | LogUniform, rng: np.random.Generator) -> Any:
    share = rng.random()
    if isinstance(values, LogUniform):
        return float(f"{math.exp(math.log(values.low) + share * math.log(values.high / values.low)):.3g}")
    return values[int(share * len(values))]


def check_equal(search: Search, labels: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """{label: its trials}; raises SettingError unless every arm that is searched for has as many."""
    found = {label: trials(search, label) for label in labels}
    numbers = {label: len(some) for label, some in found.items() if some}
    if len(set(numbers.values())) > 1:
        raise SettingError(f"The search is not equal: trials of the arms are {numbers}.")
    return found


def as_arms(scale: Scale) -> tuple[dict[str, Mapping[str, Any]], list[Override]]:
    """The trials as arms of a sweep, and its overrides."""
    assert scale.search
    arms, overrides = {}, []
    for label, some in check_equal(scale.search, list(scale.arms)).items():
        for trial in some:
            name = label + BETWEEN + grid.folder(trial)
            arms[name] = scale.arms[label]
            overrides += [one._replace(label=name) for one in scale.overrides if one.label in (None, label)]
            overrides.append(Override({}, name, trial))
    return arms, overrides


def winners(scale: Scale, found: Runs) -> dict[str, Any]:
    """The content of ``tuned.json``: every trial's score, the budget, the winners, and which lie at an edge."""
    search = scale.search
    assert search
    rows: list[dict[str, Any]] = []
    for label, some in check_equal(search, list(scale.arms)).items():
        for trial in some:
            name = label + BETWEEN + grid.folder(trial)
            for condition in found.conditions:
                runs = found.of(name, condition)
                scores = {seed: search.score(run) for seed, run in runs.items()}
                rows.append(
                    {
                        "condition": grid.folder(condition),
                        "label": label,
                        "settings": trial,
                        "score": float(np.mean(list(scores.values()))),
                        "scores": scores,
                        "client_trips": sum(
                            run.summary["client_trips"] for run in runs.values() if run.summary
                        ),
                    }
                )
    tuned: dict[str, dict[str, dict[str, Any]]] = {}
    edges: list[str] = []
    for condition_name, label, best in _best(search, rows):
        tuned.setdefault(condition_name, {})[label] = best
        for setting, value in best.items():
            if _at_edge(search.spaces.get(label, search.space)[setting], value):
                under = f" under {condition_name}" if condition_name else ""
                edges.append(f"{setting} = {value:g} of {label}{under}")
    budget: dict[str, dict[str, int]] = {}
    for row in rows:
        own = budget.setdefault(row["label"], {"runs": 0, "client_trips": 0})
        own["runs"] += len(row["scores"])
        own["client_trips"] += row["client_trips"]
    return {
        "seeds": list(search.seeds),
        "trials_of_each_arm": len({str(row["settings"]) for row in rows if row["label"] == rows[0]["label"]}),
        "spaces": {
            label: {name: _told(values) for name, values in search.spaces.get(label, search.space).items()}
            for label in scale.arms
        },
        "not_searched_for": [label for label in scale.arms if label not in budget],
        "budget": budget,
        "tuned": tuned,
        "at_the_edge": edges,
        "trials": rows,
    }


def _best(search: Search, rows: Sequence[dict[str, Any]]) -> list[tuple[str, str, dict[str, Any]]]:
    """(condition or "", label, settings) of the winners; the first of equals."""
    scores: dict[tuple[str, str], dict[str, list[float]]] = {}
    settings: dict[str, dict[str, Any]] = {}
    for row in rows:
        key = (row["condition"] if search.per_condition else "", row["label"])
        name = grid.folder(row["settings"])
        settings[name] = row["settings"]
        scores.setdefault(key, {}).setdefault(name, []).append(row["score"])
    sign = -1.0 if search.lower_is_better else 1.0

    def value(several: Sequence[float]) -> float:
        mean = sign * float(np.mean(several))
        return mean if math.isfinite(mean) else -math.inf

    return [(*key, settings[max(own, key=lambda name: value(own[name]))]) for key, own in scores.items()]


def _at_edge(values: Sequence[Any] | LogUniform, value: Any) -> bool:
    if isinstance(values, LogUniform):
        share = math.log(value / values.low) / math.log(values.high / values.low)
        return not EDGE <= share <= 1 - EDGE
    numbers = all(isinstance(one, (int, float)) and not isinstance(one, bool) for one in values)
    return numbers and len(values) > 2 and value in (min(values), max(values))


def _told(values: Sequence[Any] | LogUniform) -> Any:
    return {"log_uniform": [values.low, values.high]} if isinstance(values, LogUniform) else list(values)


def show(content: Mapping[str, Any], said: Callable[[str], None]) -> None:
    """Prints the winners in the form in which they are pasted into the experiment's file."""
    label, budget = next(iter(content["budget"].items()))
    said(
        f"Search: {content['trials_of_each_arm']} trials for each arm with seeds "
        f"{', '.join(map(str, content['seeds']))}; {label}: {budget['runs']:,} runs, "
        f"{budget['client_trips']:,} client trips."
    )
    for row in content["at_the_edge"]:
        said(f"At the edge of what was tried: {row}.")
    said("The winners, for the experiment's file:")
    said("tuned=" + pprint.pformat(content["tuned"], width=100, sort_dicts=False) + ",")
