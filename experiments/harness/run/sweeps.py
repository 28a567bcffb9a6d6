"""The runs of an experiment as sweeps, one of its search and one of its results, with what was typed."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.harness.declare import search
from experiments.harness.declare.declarations import Scale
from jafl.base.errors import SettingError, require
from jafl.config import arms as all_arms
from jafl.config import calls, grid
from jafl.config.arms import Arms, Override
from jafl.config.settings import DECIDE_NOTHING, Settings

BUDGET = ("client_trips", "server_steps")


@dataclasses.dataclass(frozen=True)
class Sweep:
    """The runs of a part of an experiment, "search" or "results". The other fields are those of ``run_sweep``."""

    part: str
    settings: Settings
    conditions: Mapping[str, Sequence[Any]]
    arms: Arms
    overrides: Sequence[Override]


def search_sweep(scale: Scale, settings: Settings, budget: Sequence[Override] = ()) -> Sweep:
    """The trials of the search.

    Args:
      scale, settings: from ``adapted``.
      budget: from ``typed_budget``.

    Raises:
      SettingError: where the experiment's file states no search.
    """
    require(scale.search is not None, "tune", True, "left out: the experiment's file states no search")
    assert scale.search is not None
    arms, overrides = search.as_arms(scale)
    seeds = ",".join(map(str, scale.search.seeds))
    settings = settings.changed(scale.search.settings, {"seed": seeds})
    return Sweep("search", settings, scale.conditions, arms, [*overrides, *budget])


def results_sweep(scale: Scale, settings: Settings, budget: Sequence[Override] = ()) -> Sweep:
    """The runs that the claims are judged by, with the settings in ``scale.tuned``; arguments: ``search_sweep``'s."""
    overrides = [*scale.overrides, *tuned_overrides(scale.tuned), *budget]
    return Sweep("results", settings, scale.conditions, scale.arms, overrides)


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


def tuned_overrides(tuned: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[Override]:
    """``Scale.tuned`` as overrides of a sweep; SettingError for text that is no condition."""
    overrides = []
    for where, arms in tuned.items():
        condition = grid.condition(where) if where else {}
        require(condition is not None, "a condition of tuned", where, "setting=value,setting=value, or ''")
        overrides += [Override(condition or {}, label, own) for label, own in arms.items()]
    return overrides


def typed_budget(typed: Mapping[str, Any]) -> list[Override]:
    """A typed budget as an override of every arm."""
    budget = {
        name: value for name, value in typed.items() if value is not None and calls.short_name(name) in BUDGET
    }
    return [Override({}, None, budget)] if budget else []


def not_searched_for(scale: Scale) -> list[str]:
    """The conditions, as text, under which no arm has settings in ``scale.tuned``, though under others some have."""
    overrides = tuned_overrides(scale.tuned)
    return [
        grid.readable(grid.folder(condition))
        for condition in grid.product(scale.conditions)
        if overrides and not any(each.holds(condition, label) for each in overrides for label in scale.arms)
    ]


def refuse_replaced(sweep: Sweep, typed: Mapping[str, Any]) -> list[str]:
    """Refuses typed settings that no run of a sweep has, since each arm has its own.

    Args:
      sweep: the runs.
      typed: what was typed; ``sweep.settings`` has it. The budget and the values of conditions stand in the place of
        every arm's, and are not looked at.

    Returns:
      a sentence on each typed setting that some of the arms replace, and others have.

    Raises:
      SettingError: for a typed setting that all arms replace under all conditions.
    """
    conditions = [
        all_arms.under(sweep.settings, sweep.arms, each, sweep.overrides)
        for each in grid.product(sweep.conditions)
    ]
    sentences = []
    budget = {name for name in typed if calls.short_name(name) in BUDGET}
    for name in sorted({*typed} - {"seed", *budget, *DECIDE_NOTHING, *sweep.conditions}):
        own_value = sweep.settings.argument(name)
        own = {label: {f"{arms[label].argument(name)}" for arms in conditions} for label in sweep.arms}
        replacing = [label for label, values in own.items() if f"{own_value}" not in values]
        replacing = list(dict.fromkeys(label.partition(search.BETWEEN)[0] for label in replacing))
        if all(f"{own_value}" not in values for values in own.values()):
            values = sorted({value for values in own.values() for value in values})
            raise SettingError(
                f"{name} is {own_value!r}, but must be left out: each arm has its own ({', '.join(values)}), from "
                f"the experiment's file or from a search. To try others, copy the file under another name.",
                setting=name,
                value=own_value,
            )
        if replacing:
            sentences.append(
                f"{name}={own_value} does not hold for {', '.join(replacing)}: their own takes its place."
            )
    return sentences
