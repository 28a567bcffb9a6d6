"""Sweeps as text, as conditions and as names of folders, and the arms that are compared under each condition.

A sweep such as ``partition.alpha=0.1,1;delay.mean=5,30`` lists values of settings; a condition is one value of each.
The runs of a condition lie in a folder that is named by it: ``partition.alpha=0.1,delay.mean=5``.

An arm is ``{label: settings}``, as in ``{"FedBuff, K = 10": {"algorithm": "fedbuff", "buffer_size": 10}}``. Where
several algorithms are compared, each is an arm that is called like it. The run of an arm and a seed lies in a folder
``<label>-seed<seed>``, odd characters of the label as in a web address.
"""

import contextlib
import itertools
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from jafl.base.errors import SettingError, refusal, require
from jafl.base.paths import LONGEST_NAME
from jafl.config import calls
from jafl.config.settings import KINDS, TYPES, Settings, is_setting, nearest
from jafl.config.values import items, split

ELSEWHERE = ("algorithm", "seed")
NONE = ("none", "null")


def parse(text: str) -> dict[str, list[Any]]:
    """{setting: values} of a sweep's text. A value that holds commas or semicolons stands in single quotes.

    Raises SettingError for a setting that does not exist (with the nearest name), a value of the wrong type, a
    repetition, or an empty list.
    """
    sweep: dict[str, list[Any]] = {}
    for part in filter(str.strip, split(text, ";")):
        name, equals, values = (piece.strip() for piece in part.partition("="))
        remedy = "Settings are parted by semicolons."
        require(equals and name, "sweep", part, "setting=value,value,...", remedy)
        _check_name(name, values)
        require(name not in sweep, "sweep", text, f"without repetitions, and names {name} twice")
        texts = [value.strip() for value in split(values, ",") if value]
        for each in texts:
            require(not is_setting(each.partition("=")[0]), "sweep", text, "setting=value,value,...", remedy)
        sweep[name] = [_typed(name, each) for each in texts]
        require(sweep[name], f"{name} in sweep", values, "at least one value")
        different = {
            calls.grammar(name).completed(value) if name in calls.CALLS and value else written(value)
            for value in sweep[name]
        }
        require(len(different) == len(sweep[name]), f"{name} in sweep", values, "without repetitions")
    require(sweep, "sweep", text, "setting=value,value,... and more of these after semicolons")
    return sweep


def checked(content: Mapping[str, Any], path: str) -> dict[str, Any]:
    """What a file crosses: ``sweep``, ``arms`` and ``overrides``, of which the first is {setting: values}.

    Raises SettingError, naming the file, unless the sweep lists values of settings.
    """
    sweep, where = content.get("sweep", {}), f"sweep in {path}"
    require(isinstance(sweep, Mapping), where, sweep, "{setting: [values]}, as sweep.json has it")
    for name, values in sweep.items():
        _check_name(name, str(values))
        fits = isinstance(values, list) and values
        require(fits, f"{name} in sweep of {path}", values, "a list of values, at least one")
    return dict(content)


def _check_name(name: str, values: str) -> None:
    """Raises SettingError unless ``name`` is a setting that a sweep may list."""
    if name in ELSEWHERE:
        crossed = f"every sweep is crossed with --{name}: write --{name}={values}."
        message = f"{name} in sweep is {values!r}, but {crossed}"
        raise SettingError(message, setting=f"{name} in sweep", value=values)
    if not is_setting(name):
        raise SettingError(f"{name!r} in sweep is not the name of a setting. {nearest(name)}", setting=name)


def product(sweep: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Every condition of a sweep, the last setting changing first.

    Raises SettingError if the name of a condition's folder would be too long.
    """
    conditions = [dict(zip(sweep, values, strict=True)) for values in itertools.product(*sweep.values())]
    for condition in conditions:
        _check_length("sweep", folder(condition))
    return conditions


def _check_length(setting: str, name: str) -> None:
    """Raises SettingError for the name of a folder that file systems do not take."""
    allowed = f"short enough for a folder of at most {LONGEST_NAME} bytes"
    require(len(name.encode()) <= LONGEST_NAME, setting, name, allowed)


def folder(condition: Mapping[str, Any]) -> str:
    """The name of a condition's folder: ``setting=value,setting=value``, odd characters as in a web address."""
    return ",".join(
        f"{name}={urllib.parse.quote(written(value), safe=' +:@')}" for name, value in condition.items()
    )


def condition(name: str) -> dict[str, Any] | None:
    """The condition that a folder is named by; None if it is none's."""
    values = {}
    for part in name.split(","):
        setting, equals, value = part.partition("=")
        if not equals or not is_setting(setting):
            return None
        try:
            values[setting] = _typed(setting, urllib.parse.unquote(value))
        except SettingError:
            return None
    return values


def written(value: Any) -> str:
    """A value as ``parse`` reads it, but without quotes: 0.1, true, none."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return repr(value).removesuffix(".0") if isinstance(value, float) else str(value)


def shown(value: Any) -> str:
    """A value for readers: as ``written``, an empty text as (empty)."""
    return written(value) or "(empty)"


def readable(name: str) -> str:
    """The name of a condition's folder for readers: ``delay=groups([(4, exponential(5))])``."""
    parts = [part.partition("=") for part in name.split(",")] if name else []
    return ", ".join(f"{setting}={shown(urllib.parse.unquote(value))}" for setting, _, value in parts)


def _typed(name: str, text: str) -> Any:
    """A value of the setting's type; raises SettingError if ``text`` is none."""
    if name not in TYPES:
        return calls.literal(text)
    kinds = TYPES[name]
    if text.lower() in NONE and type(None) in kinds:
        return None
    if bool in kinds and text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in {int, float} & set(kinds):  # no setting is of both
        with contextlib.suppress(ValueError):
            return kind(text)
    if str in kinds:
        return text[1:-1] if len(text) > 1 and text[0] == text[-1] == "'" else text
    raise refusal(f"{name} in sweep", text, " or ".join(KINDS[kind] for kind in kinds))


Arms = Mapping[str, Mapping[str, Any]]


class Override(NamedTuple):
    """Settings that hold only where ``condition`` does, and, unless ``label`` is None, only for that arm."""

    condition: Mapping[str, Any]
    label: str | None
    settings: Mapping[str, Any]

    def holds(self, condition: Mapping[str, Any], label: str) -> bool:
        """Whether it is for the arm ``label`` under ``condition``."""
        is_for = self.label in (None, label)
        return is_for and all(
            name in condition and condition[name] == value for name, value in self.condition.items()
        )


def algorithm_arms(settings: Settings) -> dict[str, dict[str, Any]]:
    """An arm for each algorithm that the settings list; raises SettingError if one is there twice.

    It is called like the algorithm; where several have one name, as its whole text.
    """
    texts = items("algorithm", settings.algorithm)
    require(len(set(texts)) == len(texts), "algorithm", settings.algorithm, "a list without repetitions")
    names = [calls.bare_name(calls.grammar("algorithm").read(text).name) for text in texts]
    labels = [name if names.count(name) == 1 else text for name, text in zip(names, texts, strict=True)]
    for label in labels:
        _check_length("the folder of an algorithm", run_folder(label, 2**32))
    return {label: {"algorithm": text} for label, text in zip(labels, texts, strict=True)}


def under(
    settings: Settings,
    arms: Arms,
    condition: Mapping[str, Any],
    overrides: Sequence[Override] = (),
    last: Mapping[str, Any] | None = None,
) -> dict[str, Settings]:
    """{label: the arm's settings} under a condition.

    Each takes the place of what comes before: ``settings``, the condition, the arm's own, the overrides in their
    order, ``last``.
    """
    return {
        label: settings.changed(
            condition,
            own,
            *(override.settings for override in overrides if override.holds(condition, label)),
            last or {},
        )
        for label, own in arms.items()
    }


def check_arms(arms: Arms, overrides: Sequence[Override] = ()) -> None:
    """Raises SettingError for no arms, an odd label, an arm without one algorithm, or an override of no arm."""
    require(arms, "arms", dict(arms), "{label: settings}, at least one")
    for label, own in arms.items():
        require(label and label == label.strip(), "a label of arms", label, "text without spaces around it")
        _check_length("the folder of a label of arms", run_folder(label, 2**32))
        if "seed" in own:
            message = f"The arm {label!r} sets seed, which is the same for all arms."
            raise SettingError(message, setting="seed")
        algorithm = own.get("algorithm", "")
        is_one = algorithm and len(items("algorithm", algorithm)) == 1
        require(is_one, f"algorithm of the arm {label!r}", algorithm, "one algorithm")
    for override in overrides:
        known = override.label is None or override.label in arms
        require(known, "an arm of overrides", override.label, f"one of {', '.join(arms)}")


def run_folder(label: str, seed: int | str) -> str:
    """The name of the folder of an arm's run."""
    return f"{urllib.parse.quote(label, safe=' ,+:@=')}-seed{seed}"
