"""The equal search: every arm gets as many trials, run with the same seeds, judged on validation examples."""

import dataclasses
import functools
import hashlib
import inspect
import itertools
import json
import math
import pathlib
import pprint
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from experiments.harness.declare.declarations import PROTOCOL_VERSION, LogUniform, Scale, Search
from experiments.harness.results import Runs
from jafl.base.errors import SettingError
from jafl.config import grid
from jafl.config.arms import Override

BETWEEN = " | "  # an arm's label and the trial's settings, in the label of the trial's runs
FOUND = pathlib.Path(__file__).parents[2] / "tuned"  # what the searches behind docs/results have found
KEPT = ("protocol", "world", "seeds", "at_the_edge", "tuned")  # what of a search's ``tuned.json`` is kept
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
    tried = {label: trials(search, label) for label in labels}
    numbers = {label: len(settings) for label, settings in tried.items() if settings}
    if len(set(numbers.values())) > 1:
        raise SettingError(f"The search is not equal: trials of the arms are {numbers}.")
    return tried


def as_arms(scale: Scale) -> tuple[dict[str, Mapping[str, Any]], list[Override]]:
    """The trials as arms of a sweep, and its overrides."""
    assert scale.search
    arms, overrides = {}, []
    for label, tried in check_equal(scale.search, list(scale.arms)).items():
        own = [override for override in scale.overrides if override.label in (None, label)]
        for trial in tried:
            name = _name(label, trial)
            arms[name] = scale.arms[label]
            overrides += [override._replace(label=name) for override in own]
            overrides.append(Override({}, name, trial))
    return arms, overrides


def world(scale: Scale) -> str:
    """A digest of what a search is of: settings, arms, conditions, overrides, what is tried, and the score.

    Winners of another world fit that one.
    """
    search = scale.search and {
        field.name: described(getattr(scale.search, field.name)) for field in dataclasses.fields(scale.search)
    }
    content = [
        described(part) for part in (scale.settings, scale.arms, scale.conditions, list(scale.overrides))
    ]
    return hashlib.sha256(json.dumps([*content, search], sort_keys=True).encode()).hexdigest()[:16]


def described(value: Any) -> Any:
    """What a declaration holds, as JSON: a function by its name and by what it encloses."""
    if isinstance(value, Mapping):
        return {str(key): described(part) for key, part in value.items()}
    if isinstance(value, functools.partial):
        return [described(value.func), described(value.args), described(value.keywords)]
    if inspect.isfunction(value):
        return [value.__qualname__, described(inspect.getclosurevars(value).nonlocals)]
    return [*map(described, value)] if isinstance(value, (list, tuple)) else repr(value)


def winners(scale: Scale, runs: Runs) -> dict[str, Any]:
    """The content of ``tuned.json``: every trial's score, the budget, the winners, and which lie at an edge."""
    search = scale.search
    assert search
    spaces = {label: search.spaces.get(label, search.space) for label in scale.arms}
    rows = _scores(search, scale, runs)
    for label in {row["label"] for row in rows}:
        problem = (
            f"no trial of {label} has a score: {[row['score'] for row in rows if row['label'] == label]}"
        )
        if not any(math.isfinite(row["score"]) for row in rows if row["label"] == label):
            raise SettingError(f"{problem}. Give the search a score that its runs have.", setting="score")
    tuned: dict[str, dict[str, dict[str, Any]]] = {}
    for condition, label, settings in _best(search, rows):
        tuned.setdefault(condition, {})[label] = settings
    budget: dict[str, dict[str, int]] = {}
    for row in rows:
        spent = budget.setdefault(row["label"], {"runs": 0, "client_trips": 0})
        spent["runs"] += len(row["scores"])
        spent["client_trips"] += row["client_trips"]
    return {
        "protocol": PROTOCOL_VERSION if scale.analysis else None,
        "world": world(scale),
        "seeds": list(search.seeds),
        "trials_of_each_arm": len({str(row["settings"]) for row in rows if row["label"] == rows[0]["label"]}),
        "spaces": {
            label: {name: _as_json(values) for name, values in space.items()}
            for label, space in spaces.items()
        },
        "not_searched_for": [label for label in scale.arms if label not in budget],
        "budget": budget,
        "tuned": tuned,
        "at_the_edge": at_the_edge(search, tuned),
        "trials": rows,
    }


def at_the_edge(search: Search, tuned: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[str]:
    """Which of the winners, as ``Scale.tuned`` has them, lie at the edge of what was tried."""
    edges = []
    for condition, arms in tuned.items():
        under = f" under {grid.readable(condition)}" if condition else ""
        for label, settings in arms.items():
            space = search.spaces.get(label, search.space)
            for setting, value in settings.items():
                if setting in space and _at_edge(space[setting], value):
                    edges.append(f"{setting} = {value:g} of {label}{under}")
    return edges


def _scores(search: Search, scale: Scale, runs: Runs) -> list[dict[str, Any]]:
    """A row for each trial and condition: its score for each seed, their mean, and the client trips it took."""
    rows = []
    for label, tried in check_equal(search, list(scale.arms)).items():
        for trial in tried:
            for condition in runs.conditions:
                by_seed = runs.of(_name(label, trial), condition)
                scores = {seed: search.score(run) for seed, run in by_seed.items()}
                trips = sum(run.summary["client_trips"] for run in by_seed.values() if run.summary)
                rows.append(
                    {
                        "condition": grid.folder(condition),
                        "label": label,
                        "settings": trial,
                        "score": float(np.mean(list(scores.values()))),
                        "scores": scores,
                        "client_trips": trips,
                    }
                )
    return rows


def _name(label: str, trial: Mapping[str, Any]) -> str:
    """The label of a trial's runs."""
    return label + BETWEEN + grid.folder(trial)


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

    def value(scores: Sequence[float]) -> float:
        mean = sign * float(np.mean(scores))
        return mean if math.isfinite(mean) else -math.inf

    return [(*key, settings[max(own, key=lambda name: value(own[name]))]) for key, own in scores.items()]


def _at_edge(values: Sequence[Any] | LogUniform, value: Any) -> bool:
    if isinstance(values, LogUniform):
        share = math.log(value / values.low) / math.log(values.high / values.low)
        return not EDGE <= share <= 1 - EDGE
    numbers = all(isinstance(option, (int, float)) and not isinstance(option, bool) for option in values)
    return numbers and len(values) > 2 and value in (min(values), max(values))


def _as_json(values: Sequence[Any] | LogUniform) -> Any:
    return {"log_uniform": [values.low, values.high]} if isinstance(values, LogUniform) else list(values)


def show(content: Mapping[str, Any], write: Callable[[str], None]) -> None:
    """Writes what the search took, and its winners, line by line."""
    label, budget = next(iter(content["budget"].items()))
    write(
        f"Search: {content['trials_of_each_arm']} trials for each arm with seeds "
        f"{', '.join(map(str, content['seeds']))}; {label}: {budget['runs']:,} runs, "
        f"{budget['client_trips']:,} client trips."
    )
    for edge in content["at_the_edge"]:
        write(f"At the edge of what was tried: {edge}.")
    write("The winners:")
    write(pprint.pformat(content["tuned"], width=100, sort_dicts=False))


def keep(content: Mapping[str, Any], name: str, folder: pathlib.Path = FOUND) -> None:
    """Writes the winners into ``experiments/tuned``, where later commands without ``--tune`` find them.

    Args:
      content: of ``tuned.json``.
      name: the experiment's page: its name, at paper size with ``-paper``.
      folder: to write to.
    """
    content_to_keep = {part: content[part] for part in KEPT}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(content_to_keep, indent=1) + "\n", encoding="utf-8")


def with_winners(scale: Scale, name: str, folder: pathlib.Path = FOUND) -> Scale:
    """The scale with the winners that were kept under this name, if there are any.

    Winners of another world, as from before the file was changed, are left out: they fit that one.
    """
    path = folder / f"{name}.json"
    if scale.search is None or not path.is_file():
        return scale
    content = json.loads(path.read_text(encoding="utf-8"))
    if content.get("world") != world(scale):
        return scale
    analysis = scale.analysis and dataclasses.replace(scale.analysis, tuned_under=content["protocol"])
    return dataclasses.replace(scale, tuned=content["tuned"], analysis=analysis)
