"""What searches have found: the content of ``tuned.json``, and the winners that later commands read again."""

import dataclasses
import json
import pathlib
import pprint
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from experiments.harness.declare.declarations import PROTOCOL_VERSION, LogUniform, Rate, Scale
from experiments.harness.declare.search import Cell, Found, Trial, world
from jafl.config import grid

FOUND = pathlib.Path(__file__).parents[2] / "tuned"  # what the searches behind docs/results have found
KEPT = ("protocol", "world", "seeds", "undecided", "tuned")  # what of a search's ``tuned.json`` is kept
MOST_IN_TROUBLE = 0.2  # of an arm's searches; with more, claims on it are undecided


def summary(scale: Scale, found: Mapping[Cell, Found], rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The content of ``tuned.json``: every trial's score, the budget, what was found, and what decides nothing.

    Args:
      scale: of the experiment.
      found: by ``rounds``.
      rows: one for each trial: "condition", "label", "search", "settings", "score", "scores", "client_trips".
    """
    search = scale.search
    assert search
    tuned: dict[str, dict[str, list[Trial]]] = {}
    for cell, result in found.items():
        tuned.setdefault(cell.condition, {}).setdefault(cell.label, []).append(result.settings)
    budget: dict[str, dict[str, int]] = {}
    for row in rows:
        spent = budget.setdefault(row["label"], {"trials": 0, "runs": 0, "client_trips": 0})
        spent["trials"] += 1
        spent["runs"] += len(row["scores"])
        spent["client_trips"] += row["client_trips"]
    return {
        "protocol": PROTOCOL_VERSION if scale.analysis else None,
        "world": world(scale),
        "searches": search.searches,
        "seeds": list(search.seeds),
        "spaces": {
            label: {name: _as_json(values) for name, values in search.spaces.get(label, search.space).items()}
            for label in scale.arms
        },
        "not_searched_for": [label for label in scale.arms if label not in budget],
        "budget": budget,
        "tuned": tuned,
        "undecided": undecided(found),
        "trials": [*rows],
    }


def undecided(found: Mapping[Cell, Found]) -> dict[str, dict[str, str]]:
    """{condition: {label: why claims on the arm are undecided}}: searches that found nothing, or ended at an edge."""
    groups: dict[tuple[str, str], list[Found]] = {}
    for cell, result in found.items():
        groups.setdefault((cell.condition, cell.label), []).append(result)
    reasons: dict[str, dict[str, str]] = {}
    for (condition, label), own in groups.items():
        failed = sum(each.failed for each in own)
        at_edge = [each.edges for each in own if each.edges]
        if failed > MOST_IN_TROUBLE * len(own):
            reason = f"no winner: every trial failed in {failed} of {len(own)} searches"
        elif len(at_edge) > MOST_IN_TROUBLE * len(own):
            names = ", ".join(dict.fromkeys(name for edges in at_edge for name in edges))
            reason = f"edge: {len(at_edge)} of {len(own)} searches end at an edge of {names}"
        else:
            continue
        reasons.setdefault(condition, {})[label] = reason
    return reasons


def _as_json(values: Sequence[Any] | LogUniform | Rate) -> Any:
    if isinstance(values, (LogUniform, Rate)):
        return {"log_uniform" if isinstance(values, LogUniform) else "rate": [values.low, values.high]}
    return list(values)


def show(content: Mapping[str, Any], write: Callable[[str], None]) -> None:
    """Writes what the search took, and what it found, line by line."""
    for label, spent in content["budget"].items():
        write(
            f"Search for {label}: {spent['trials']} trials in {content['searches']} searches, "
            f"{spent['runs']:,} runs, {spent['client_trips']:,} client trips."
        )
    for condition, arms in content["undecided"].items():
        under = f" under {grid.readable(condition)}" if condition else ""
        for label, reason in arms.items():
            write(f"{label}{under}: {reason}.")
    write("Found, by each search:")
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
    return dataclasses.replace(
        scale, tuned=content["tuned"], undecided=content["undecided"], analysis=analysis
    )


def settings_in(own: Mapping[str, Any] | Sequence[Mapping[str, Any]], number: int) -> Mapping[str, Any]:
    """The settings of one search in ``Scale.tuned``: one mapping for all searches, or a list with one for each."""
    return own if isinstance(own, Mapping) else own[number % len(own)]
