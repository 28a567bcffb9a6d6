"""The settings that only some runs read, and the refusal of what is given and no run reads.

What is unread changes nothing: two runs that differ in it alone are the same run, and a table of both would mislead.
Most settings are read by every run, or are arguments of a call that no other call has.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

from jafl.base.errors import refusal
from jafl.config import calls
from jafl.config.builders.data import source_parameters
from jafl.config.declaration import NOT_ALWAYS_READ, join_with_or
from jafl.config.grammar import DEFAULT
from jafl.config.settings import Settings, default_of

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


class Unread(NamedTuple):
    """A setting that is given and that no run reads: its name and value, and sentences on why."""

    setting: str
    value: Any
    reason: str


def why_unread(name: str, run: Settings) -> str:
    """Why a run does not read a setting, or has no such argument, in a sentence; empty where it does.

    run: its settings as ``resolve_run`` returns them.
    """
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
    if name in NOT_ALWAYS_READ and protocol in ("drawn_staleness", "queued", "compass"):
        return f"protocol is {protocol}, which has no {name}."
    if argument and not calls.grammar(setting).has(getattr(run, setting), argument):
        return _why_not_had(setting, argument, [run])
    return ""


def as_read(run: Settings) -> Settings:
    """The settings of a run, those that it does not read at their defaults."""
    return run.changed({name: default_of(name) for name in OF_SOME_RUNS if why_unread(name, run)})


def unread(arms: Sequence[Settings], runs: Sequence[Settings], given: Collection[str] = ()) -> list[Unread]:
    """The settings that are given and that none of the runs reads.

    Args:
      arms: the settings as given. What differs from its default counts as given.
      runs: the settings of the arms' runs, as ``resolve_run`` returns them.
      given: the names of others that are given, such as those typed with their defaults.

    Returns:
      One entry for each setting.
    """
    entries = []
    for name in OF_SOME_RUNS:
        values = [arm.value(name) for arm in arms]
        said = [value for value in values if name in given or value != default_of(name)]
        reasons = [why_unread(name, run) for run in runs]
        if said and all(reasons):
            entries.append(Unread(name, said[0], " ".join(dict.fromkeys(reasons))))
    return entries + [each for name in calls.CALLS for each in _unread_arguments(name, arms, runs)]


def refuse(unread_settings: Iterable[Unread]) -> None:
    """Raises SettingError for the first of them, if there is one."""
    for each in unread_settings:
        raise refusal(each.setting, each.value, "left out: no run reads it", each.reason)


def _unread_arguments(name: str, arms: Sequence[Settings], runs: Sequence[Settings]) -> list[Unread]:
    """An entry for each argument that is given for a default call and that the call of no run has."""
    grammar = calls.grammar(name)
    read = [grammar.read(getattr(arm, name)) for arm in arms if grammar.has_default]
    given = {
        argument: value for call in read if call.name == DEFAULT for argument, value in call.arguments.items()
    }
    return [
        Unread(calls.short_name(f"{name}.{argument}"), value, _why_not_had(name, argument, runs))
        for argument, value in given.items()
        if any(value != default for default in grammar.defaults(argument))
        and not any(grammar.heeds(getattr(run, name), argument, value) for run in runs)
    ]


def _why_not_had(setting: str, argument: str, runs: Sequence[Settings]) -> str:
    """Which calls the runs have, and which would have the argument."""
    grammar = calls.grammar(setting)
    here = dict.fromkeys(grammar.read(getattr(run, setting)).name for run in runs)
    return f"{setting} is {' and '.join(here)}, without {argument}. {grammar.where(argument)}".rstrip()
