"""The runs of an experiment as sweeps, one of its search and one of its results, with what was typed."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from experiments.harness.declare import search, search_results
from experiments.harness.declare.declarations import Scale
from experiments.harness.results import BETWEEN
from jafl.base.errors import SettingError, require
from jafl.config import calls, grid
from jafl.config.grid import Arms, Override
from jafl.config.settings import DECIDE_NOTHING, Settings

BUDGET = ("client_trips", "server_steps")
MOST_VALUES = 8  # of arms that a message lists


@dataclasses.dataclass(frozen=True)
class Sweep:
    """The runs of a part of an experiment, "search" or "results". The other fields are those of ``run_sweep``."""

    part: str
    settings: Settings
    conditions: Mapping[str, Sequence[Any]]
    arms: Arms
    overrides: Sequence[Override]


def planned_search(scale: Scale, settings: Settings, budget: Sequence[Override] = ()) -> Sweep:
    """The trials of all searches if no range grows; arguments and errors: ``trials_sweep``'s."""
    require(scale.search is not None, "tune", True, "left out: the experiment's file states no search")
    return trials_sweep(scale, settings, budget, search.planned(scale))


def trials_sweep(
    scale: Scale,
    settings: Settings,
    budget: Sequence[Override],
    due: Mapping[search.Cell, Sequence[search.Trial]],
) -> Sweep:
    """Trials of the searches, each an arm of its own with its condition's settings.

    Args:
      scale, settings: from ``adapted``.
      budget: from ``typed_budget``.
      due: the trials of each cell.
    """
    assert scale.search is not None
    arms: dict[str, Mapping[str, Any]] = {}
    overrides: list[Override] = []
    for each in trial_runs(scale, due):
        label = each.cell.label
        seeds = ",".join(map(str, search.seeds_of_search(scale.search, each.cell.number)))
        arms[each.name] = {"algorithm": scale.arms[label]["algorithm"]}
        layers = [each.condition, scale.arms[label]]
        layers += [own.settings for own in scale.overrides if own.holds(each.condition, label)]
        layers += [scale.search.settings, each.trial, {"seed": seeds}]
        overrides += [Override({}, each.name, layer) for layer in layers if layer]
    # Trials of several conditions are side by side here: each has the world of its condition.
    shared = {"seed": ",".join(map(str, scale.search.seeds)), "different_worlds": True}
    settings = settings.changed(shared)
    return Sweep("search", settings, {}, arms, [*overrides, *budget])


class TrialRuns(NamedTuple):
    """The runs of a trial under one condition, one for each seed of its search.

    Attributes:
      name: the label of its runs.
      cell: that it is tried for.
      place: among the cell's trials of this round.
      trial: its settings.
      condition: the condition.
    """

    name: str
    cell: search.Cell
    place: int
    trial: search.Trial
    condition: dict[str, Any]


def trial_runs(scale: Scale, due: Mapping[search.Cell, Sequence[search.Trial]]) -> list[TrialRuns]:
    """Each trial under each condition that it is judged in."""
    return [
        TrialRuns(f"{cell.label}{BETWEEN}{number}.{cell.number}.{place}", cell, place, trial, condition)
        for cell, trials in due.items()
        for number, condition in enumerate(grid.product(scale.conditions))
        if cell.condition in ("", grid.folder(condition))
        for place, trial in enumerate(trials)
    ]


def results_sweep(scale: Scale, settings: Settings, budget: Sequence[Override] = ()) -> Sweep:
    """The runs that the claims are judged by, with the settings in ``scale.tuned``; arguments: ``trials_sweep``'s.

    The seeds are dealt to the searches in turn, by size. An arm that several searches found settings for is one arm
    a search here, with the search's seeds; ``Runs`` puts them together again.
    """
    from jafl.config.resolution import listed_seeds

    seeds = sorted(listed_seeds(settings))  # the order of ``Runs``, in which the intervals' units are taken
    searched = {label for arms in scale.tuned.values() for label, own in arms.items() if _is_listed(own)}
    number_of_searches = scale.search.searches if scale.search else 1
    arms: dict[str, Mapping[str, Any]] = {}
    overrides: list[Override] = []
    for label, own in scale.arms.items():
        for number in range(number_of_searches if label in searched else 1):
            name = f"{label}{BETWEEN}{number + 1}" if label in searched else label
            dealt = seeds[number::number_of_searches] if label in searched else seeds
            if not dealt:
                continue
            arms[name] = own
            overrides += [
                each._replace(label=name) for each in scale.overrides if each.label in (None, label)
            ]
            overrides += tuned_overrides(scale.tuned, label, name, number)
            if label in searched:
                overrides.append(Override({}, name, {"seed": ",".join(map(str, dealt))}))
    return Sweep("results", settings, scale.conditions, arms, [*overrides, *budget])


def _is_listed(own: Any) -> bool:
    """Whether each search has settings of its own, and they differ."""
    return not isinstance(own, Mapping) and len(own) > 1


def adapted(scale: Scale, typed: Mapping[str, Any]) -> tuple[Scale, Settings]:
    """The scale with the seeds and values of conditions that were typed, and its common settings with the others.

    Raises SettingError for ``algorithm``.
    """
    if "algorithm" in typed:
        raise SettingError(
            f"algorithm is {typed['algorithm']!r}, but must be left out: an experiment has arms of its own.",
            setting="algorithm",
        )
    tried = {name: [typed[name]] if name in typed else values for name, values in scale.conditions.items()}
    typed = {name: value for name, value in typed.items() if name not in tried}
    own = {"seed": ",".join(map(str, scale.seeds)), "different_worlds": bool(scale.different_worlds)}
    settings = Settings().changed(scale.settings, own, typed)
    from jafl.config.resolution import listed_seeds

    return dataclasses.replace(scale, seeds=listed_seeds(settings), conditions=tried), settings


def tuned_overrides(
    tuned: Mapping[str, Mapping[str, Any]], label: str, name: str, number: int
) -> list[Override]:
    """What a search found for an arm, as overrides of a sweep; SettingError for text that is no condition."""
    overrides = []
    for where, arms in tuned.items():
        condition = grid.condition(where) if where else {}
        require(condition is not None, "a condition of tuned", where, "setting=value,setting=value, or ''")
        if label in arms:
            overrides.append(Override(condition or {}, name, search_results.settings_in(arms[label], number)))
    return overrides


def typed_budget(typed: Mapping[str, Any]) -> list[Override]:
    """A typed budget as an override of every arm."""
    budget = {
        name: value for name, value in typed.items() if value is not None and calls.short_name(name) in BUDGET
    }
    return [Override({}, None, budget)] if budget else []


def not_searched_for(scale: Scale) -> list[str]:
    """The conditions, as text, under which no arm has settings in ``scale.tuned``, though under others some have."""
    overrides = [each for label in scale.arms for each in tuned_overrides(scale.tuned, label, label, 0)]
    return [
        grid.readable(grid.folder(condition))
        for condition in grid.product(scale.conditions)
        if overrides and not any(each.holds(condition, label) for each in overrides for label in scale.arms)
    ]


def refuse_replaced(sweep: Sweep, typed: Mapping[str, Any], tried: Iterable[str]) -> list[str]:
    """Refuses typed settings that no run of a sweep has, since each arm has its own.

    Args:
      sweep: the runs.
      typed: what was typed; ``sweep.settings`` has it. The budget stands in the place of every arm's, and is not
        looked at.
      tried: the settings that make the conditions: what was typed of these takes their values' place.

    Returns:
      a sentence on each typed setting that some of the arms replace, and others have.

    Raises:
      SettingError: for a typed setting that all arms replace under all conditions.
    """
    conditions = [
        grid.under(sweep.settings, sweep.arms, each, sweep.overrides)
        for each in grid.product(sweep.conditions)
    ]
    sentences = []
    budget = {name for name in typed if calls.short_name(name) in BUDGET}
    for name in sorted({*typed} - {"seed", *budget, *DECIDE_NOTHING, *tried}):
        own_value = sweep.settings.argument(name)
        own = {label: {f"{arms[label].argument(name)}" for arms in conditions} for label in sweep.arms}
        replacing = [label for label, values in own.items() if f"{own_value}" not in values]
        replacing = list(dict.fromkeys(label.partition(BETWEEN)[0] for label in replacing))
        if all(f"{own_value}" not in values for values in own.values()):
            values = sorted({value for values in own.values() for value in values})
            shown = ", ".join(values) if len(values) <= MOST_VALUES else f"{len(values)} values"
            raise SettingError(
                f"{name} is {own_value!r}, but must be left out: each arm has its own ({shown}), from "
                f"the experiment's file or from a search. To try others, copy the file under another name.",
                setting=name,
                value=own_value,
            )
        if replacing:
            sentences.append(
                f"{name}={own_value} does not hold for {', '.join(replacing)}: their own takes its place."
            )
    return sentences
