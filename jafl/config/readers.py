"""The settings that only some runs read, and the refusal of what is given and no run reads.

What is unread changes nothing: two runs that differ in it alone are the same run, and a table of both would mislead.
Most settings are read by every run, or are arguments of a call that no other call has.
"""

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from jafl import data
from jafl.base.errors import refusal
from jafl.config import calls
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


class Unread(NamedTuple):
    """A setting that is given and that no run reads: its name and value, which runs would, and what they are."""

    setting: str
    value: Any
    read_where: str
    here: str

    @property
    def reason(self) -> str:
        """A sentence."""
        return f"It is read only where {self.read_where}; here {self.here}."


class _Readers(NamedTuple):
    """Which runs read a setting: whether a run does, in words where one does, and what a run is that does not."""

    reads: Callable[[Settings], bool]
    where: str
    here: Callable[[Settings], str]


def _of_data_set(argument: str) -> _Readers:
    """The runs whose data set's function has an argument of this name."""
    having = [
        name for name, source in data.SOURCES.items() if argument in inspect.signature(source).parameters
    ]
    return _Readers(lambda run: run.dataset_name in having, f"dataset is {join_with_or(having)}", _dataset)


def _dataset(run: Settings) -> str:
    return f"dataset is {run.dataset_name}"


def _is_divided(run: Settings) -> bool:
    """Whether a seed decides which examples a run has, or what it does with them."""
    given = [name for name in DIVIDING if run.value(name) != default_of(name) and is_read(name, run)]
    return run.dataset_name in DIVIDED_BY_SEED or bool(given)


def _of_divided_data(*, folds: bool) -> _Readers:
    given = join_with_or([*DIVIDING, *["split.folds"] * folds])
    where = f"dataset is {join_with_or(DIVIDED_BY_SEED)}, or {given} is given"
    return _Readers(
        lambda run: _is_divided(run) or (folds and run.value("split.folds") is not None),
        where,
        lambda run: f"{_dataset(run)}, and none of these is given",
    )


def _of_events() -> _Readers:
    return _Readers(
        lambda run: _protocol(run) not in calls.WITHOUT_LOSSES,
        "protocol is asynchronous, open_arrivals or synchronous",
        lambda run: f"protocol is {_protocol(run)}",
    )


def _protocol(run: Settings) -> str:
    return calls.grammar("protocol").read(run.protocol).name


_READERS: Mapping[str, _Readers] = {
    "data_dir": _of_data_set("data_dir"),
    "split.test_fraction": _of_data_set("test_fraction"),
    "split.seed": _of_divided_data(folds=True),
    "split.resample": _of_divided_data(folds=False),
    "split.server_classes": _Readers(
        lambda run: run.value("split.server_examples") > 0,
        "split.server_examples is given",
        lambda run: "split.server_examples is left out",
    ),
    **{name: _of_events() for name in NOT_ALWAYS_READ},
}


def is_read(name: str, run: Settings) -> bool:
    """Whether a run reads a setting; ``run``: its settings as ``resolve_run`` returns them."""
    return name not in _READERS or _READERS[name].reads(run)


def as_read(run: Settings) -> Settings:
    """The settings of a run, those that it does not read at their defaults."""
    return run.changed({name: default_of(name) for name in _READERS if not is_read(name, run)})


def why_unread(name: str, runs: Sequence[Settings]) -> tuple[str, str]:
    """(which runs read a setting that none of ``runs`` reads, what these are instead), in words."""
    setting, _, argument = name.partition(".")
    if argument and name not in _READERS:
        return _why_not_had(setting, argument, [getattr(run, setting) for run in runs])
    readers = _READERS[name]
    return readers.where, " and ".join(dict.fromkeys(readers.here(run) for run in runs))


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
    for name in _READERS:
        values = [arm.value(name) for arm in arms]
        differing = [value for value in values if value != default_of(name)] or (
            values if name in given else []
        )
        if differing and not any(is_read(name, run) for run in runs):
            entries.append(Unread(name, differing[0], *why_unread(name, runs)))
    return entries + [each for name in calls.CALLS for each in _unread_arguments(name, arms, runs)]


def refuse(unread_settings: Iterable[Unread]) -> None:
    """Raises SettingError for the first of them, if there is one."""
    for each in unread_settings:
        raise refusal(each.setting, each.value, "left out: no run reads it", each.reason)


def _unread_arguments(name: str, arms: Sequence[Settings], runs: Sequence[Settings]) -> list[Unread]:
    """An entry for each argument that is given for a default call and that the call of no run has."""
    grammar = calls.grammar(name)
    if not grammar.has_default:
        return []
    read = [grammar.read(getattr(arm, name)) for arm in arms]
    given = {
        argument: value for call in read if call.name == DEFAULT for argument, value in call.arguments.items()
    }
    texts = [getattr(run, name) for run in runs]
    entries = []
    for argument, value in given.items():
        usual = all(value == default for default in grammar.defaults(argument))
        if not usual and not any(grammar.heeds(text, argument, value) for text in texts):
            short = calls.short_name(f"{name}.{argument}")
            entries.append(Unread(short, value, *_why_not_had(name, argument, texts)))
    return entries


def _why_not_had(setting: str, argument: str, texts: Sequence[str]) -> tuple[str, str]:
    """(which calls have an argument, what the calls are), in words."""
    grammar = calls.grammar(setting)
    having = [name for name, arguments in grammar.arguments().items() if argument in arguments]
    here = dict.fromkeys(grammar.read(text).name for text in texts)
    return f"{setting} is {join_with_or(having)}", f"{setting} is {' and '.join(here)}"
