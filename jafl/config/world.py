"""The world of a run, what its data, partition, delays, presence, failures and dropout are, which all compared share.

What makes a world is said once: ``WORLD`` has the groups of its settings. And the settings that only some runs read,
and why the others do not. What is unread changes nothing: two runs that differ in it alone are the same run, and a
table of both would mislead. Most settings are read by every run, or are arguments of a call that no other call has.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from jafl.base.errors import SettingError, refusal
from jafl.config import calls, grid
from jafl.config.calls import NOT_ALWAYS_READ
from jafl.config.settings import GROUP, PLACES, Settings, default_of
from jafl.config.values import join_with_or

# Those of the world in which runs live: which examples there are, who holds them, how long a trip takes, who is
# there, fails or leaves. Runs that are compared share it.
WORLD = ("data", "partition", "delay", "presence")
OF_WORLD = (
    "protocol.failure_rate",
    *(name for name, group in GROUP.items() if group in WORLD and name not in PLACES),
)
ON_PURPOSE = (
    "To compare different worlds on purpose, pass --different_worlds (a setting): table, report and pictures then "
    "say which run lives where."
)
# Data sets of which a seed decides what is drawn, or which examples are held out.
DIVIDED_BY_SEED = (
    *("digits", "synthetic", "mnist_5000", "mnist_1d", "python_source", "shakespeare"),
    *("celeb_a", "sentiment140"),
)
# Settings with which a seed decides the same for any data set.
DIVIDING = tuple(
    f"split.{name}"
    for name in (
        *("test_fraction", "validation_fraction", "server_examples"),
        *("evaluation_examples", "shuffle_labels"),
    )
)
OF_SOME_RUNS = (
    *("data_dir", "split.test_fraction", "split.seed", "split.resample", "split.server_classes"),
    *NOT_ALWAYS_READ,
)
IN_STEPS = " server steps"


class World(NamedTuple):
    """One world of several: its letter, who lives there, and {setting: value} of what is not the same in all."""

    letter: str
    labels: list[str]
    settings: dict[str, Any]

    @property
    def line(self) -> str:
        """``world A (fedbuff, fedasync): availability=diurnal, failure_rate=0.3``."""
        values = ", ".join(f"{name}={grid.shown(value)}" for name, value in self.settings.items())
        return f"world {self.letter} ({', '.join(self.labels)}): {values}"


def in_world(name: str) -> bool:
    """Whether a setting, or an argument of a call, is one of the world."""
    return name in OF_WORLD or name.partition(".")[0] in OF_WORLD


def world_settings(run: Mapping[str, Any]) -> dict[str, Any]:
    """{setting: value} of a run's world.

    run: its settings, every default filled in, and what it does not read at its default.
    """
    values = {name: calls.argument(run, name) for name in OF_WORLD if name.partition(".")[0] in run}
    protocol = calls.bare_name(str(run.get("protocol")))
    if protocol == "drawn_staleness":  # whose delays are no times
        values["delay"] = f"{values['delay']}, in{IN_STEPS}"
    if protocol in calls.WITHOUT_LOSSES:
        values["protocol.failure_rate"] = 0.0  # nothing fails there
    return values


def worlds(runs: Iterable[tuple[str, Mapping[str, Any]]]) -> list[World]:
    """The worlds in which runs live, in their order; none where all share one.

    runs: (label, ``world_settings`` of the run) of each; of the runs of a label, which share one, the first counts.
    """
    by_label: dict[str, dict[str, Any]] = {}
    for label, run in runs:
        by_label.setdefault(label, world_settings(run))
    differing = [
        name for name in OF_WORLD if len({repr(values.get(name)) for values in by_label.values()}) > 1
    ]
    by_values: dict[str, World] = {}
    for label, values in by_label.items():
        settings = {name: values.get(name) for name in differing}
        letter = chr(ord("A") + len(by_values))
        by_values.setdefault(repr(settings), World(letter, [], settings)).labels.append(label)
    return list(by_values.values()) if differing else []


def refuse_different(runs: Sequence[tuple[str, Settings]]) -> None:
    """Raises SettingError, naming the setting, if runs that are compared live in different worlds.

    runs: (label, settings) as ``jafl.config.resolution.resolve`` returns them.
    """
    worlds_there = worlds((label, vars(run)) for label, run in runs)
    if not worlds_there:
        return
    first = dict(reversed(runs))  # the first run of each label
    name = next(iter(worlds_there[0].settings))
    able = [world for world in worlds_there if not why_unread(name, first[world.labels[0]])]
    unable = [label for world in worlds_there if world not in able for label in world.labels]
    if len(able) == 1 and unable:
        reasons = dict.fromkeys(why_unread(name, first[label]) for label in unable)
        allowed = f"left out, or read by all that are compared: {', '.join(unable)} cannot"
        raise refusal(name, able[0].settings[name], allowed, f"{' '.join(reasons)} {ON_PURPOSE}")
    said = [f"{grid.shown(each.settings[name])} for {', '.join(each.labels)}" for each in worlds_there]
    message = (
        f"{name} is {'; '.join(said)}. What is compared shares its world: give all the same. {ON_PURPOSE}"
    )
    raise SettingError(message, setting=name)


def why_unread(name: str, run: Settings) -> str:
    """Why a run does not read a setting, or has no such argument, in a sentence; empty where it does.

    run: its settings as ``resolve_run`` returns them.
    """
    from jafl.config.builders.data import (
        source_parameters,  # imports JAX, which the list of experiments does without
    )

    setting, _, argument = calls.argument_path(name).partition(".")
    protocol = calls.grammar("protocol").read(run.protocol).name
    if name in ("data_dir", "split.test_fraction"):
        own = argument or setting
        return "" if own in source_parameters(run) else f"dataset is {run.dataset_name}, which has no {own}."
    if name in ("split.seed", "split.resample"):
        deciding = [*DIVIDING, *["split.folds"] * (argument == "seed")]
        given = (run.value(each) != default_of(each) and not why_unread(each, run) for each in deciding)
        if run.dataset_name in DIVIDED_BY_SEED or any(given):
            return ""
        return f"dataset is {run.dataset_name}, and none of {join_with_or(deciding)} is given."
    if name == "split.server_classes":
        return "" if run.value("split.server_examples") else "split.server_examples is left out."
    if name in NOT_ALWAYS_READ and protocol in calls.WITHOUT_LOSSES:
        return f"protocol is {protocol}, which has no {name}."
    if argument and not calls.grammar(setting).has(getattr(run, setting), argument):
        return why_not_had(setting, argument, [run])
    return ""


def as_read(run: Settings) -> Settings:
    """The settings of a run, those that it does not read at their defaults."""
    return run.changed({name: default_of(name) for name in OF_SOME_RUNS if why_unread(name, run)})


def why_not_had(setting: str, argument: str, runs: Sequence[Settings]) -> str:
    """Which calls the runs have, and which would have the argument."""
    grammar = calls.grammar(setting)
    here = dict.fromkeys(grammar.read(getattr(run, setting)).name for run in runs)
    return f"{setting} is {' and '.join(here)}, without {argument}. {grammar.where(argument)}".rstrip()
