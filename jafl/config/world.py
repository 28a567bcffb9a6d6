"""The world of a run, what its data, partition, delays, presence, failures and dropout are, which all compared share.

What makes a world is said once: ``WORLD`` has the groups of its settings.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from jafl.base.errors import SettingError, refusal
from jafl.config import calls, grid
from jafl.config.settings import GROUP, PLACES, Settings

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
    from jafl.config.readers import why_unread  # imports JAX, which the list of experiments does without

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
