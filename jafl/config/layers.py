"""Settings laid over each other: the arguments under dotted and short names are put into the calls that have them."""

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from jafl.base.errors import SettingError, refusal
from jafl.config.calls import CALLS, LISTS, SHORT_NAMES, argument_path, bare_name, grammar, is_call, literal
from jafl.config.reading import DEFAULT
from jafl.config.values import Call, items, written

# What a call is whose argument is given and that is left out itself, where it has no default of its own.
_LEFT_OUT = {"partition": "dirichlet", "privacy": "private", "secure_aggregation": "secure"}


def with_arguments(*layers: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """{setting: value}: what is given under dotted and short names is put into the calls that have it.

    Args:
      layers: {setting, or setting.argument, or an argument's short name: value}, each in the place of what comes
        before. An argument stays where a later layer gives another call that has it and does not say it.
      defaults: {setting: value} of calls that no layer has.

    Raises:
      SettingError: for a dotted name whose call has no such argument.

    Examples:
      >>> with_arguments({"delay.shape": 2, "delay": "gamma", "seed": "1"}, defaults={})
      {'delay': 'gamma(shape=2.0)', 'seed': '1'}
    """
    whole: dict[str, Any] = {}
    set_to: dict[str, tuple[str, Any]] = {}  # {setting.argument: (its name as given, its value)}
    for layer in layers:
        _refuse_two_names(layer)
        for name, value in layer.items():
            if "." in name or name in SHORT_NAMES:
                continue
            before = whole.get(name, defaults.get(name))
            if name in CALLS and value is not None and bare_name(str(before)) == DEFAULT:
                value = grammar(name).over(value, str(before))
            whole[name] = value
            for path in [each for each in set_to if each.partition(".")[0] == name]:
                if value is None or says(name, value, path.partition(".")[2]) is not False:
                    del set_to[path]
        for name, value in layer.items():
            path = argument_path(name)
            if "." in path:
                for other in [each for each in set_to if _exclude(path, each) and value is not None]:
                    del set_to[other]
                set_to.pop(path, None)
                set_to[path] = name, value
    return _with_set(whole, set_to, defaults)


def _with_set(
    whole: dict[str, Any], set_to: Mapping[str, tuple[str, Any]], defaults: Mapping[str, Any]
) -> dict[str, Any]:
    """``whole`` with the arguments put into its calls."""
    found: dict[str, Any] = {}
    # Calls first: their arguments may be among the others.
    for path, (name, value) in sorted(set_to.items(), key=lambda item: not is_call(item[0], item[1][1])):
        setting, _, argument = path.partition(".")
        text: Any = whole.get(setting, defaults.get(setting))
        text = _LEFT_OUT.get(setting) if text is None else text
        if value is None and isinstance(text, str) and says(setting, text, argument) is None:
            continue  # left out of a call that does not have it
        try:
            whole[setting] = ",".join(changed(setting, _listed(setting, text), argument, value))
        except SettingError as error:
            raise (error.of(name) if error.setting == path and error.allowed else error) from None
        if setting not in LISTS:
            found[path] = grammar(setting).value(whole[setting], argument)
    # One may have taken the place of another's call: then the order would decide.
    for path, value in found.items():
        setting, _, argument = path.partition(".")
        there = _head(grammar(setting).value(whole[setting], argument))
        if there != _head(value):
            same = [
                set_to[each][0] for each in found if each.startswith(setting) and _head(found[each]) == there
            ]
            takes = f"{same[0] if same else 'another argument'} takes its place"
            name, remedy = set_to[path][0], f"Leave one out, or write the whole value of {setting}."
            message = f"{name} is {written(value)}, but {takes}. {remedy}"
            raise SettingError(message, setting=name, value=value)
    return whole


def changed(setting: str, texts: Sequence[str], argument: str, value: Any) -> list[str]:
    """The calls, another value of an argument in those that have it; SettingError where none of them has."""
    changed_texts, refusals = [], []
    for text in texts:
        try:
            changed_texts.append(grammar(setting).changed(text, argument, value))
        except SettingError as error:
            if error.allowed:  # it has the argument
                raise
            changed_texts.append(text)
            refusals.append(error)
    if refusals and len(refusals) == len(texts):
        raise refusals[0]
    return changed_texts


def _listed(setting: str, text: str) -> list[str]:
    return items(setting, text) if setting in LISTS else [text]


def says(setting: str, text: str, argument: str) -> bool | None:
    """Whether a call, or one of a list, says the value of an argument itself; None where none has the argument."""
    said = None
    for one in _listed(setting, text):
        with contextlib.suppress(SettingError):
            said = grammar(setting).says(one, argument) or bool(said)
    return said


def _exclude(path: str, other: str) -> bool:
    """Whether two arguments exclude each other."""
    setting, _, argument = path.partition(".")
    partners = grammar(setting).partners(argument) if setting in CALLS else ()
    return other in {f"{setting}.{partner}" for partner in partners}


def _refuse_two_names(layer: Mapping[str, Any]) -> None:
    """Raises SettingError for an argument under both of its names, and for two that exclude each other."""
    given: dict[str, tuple[str, Any]] = {}
    for name, value in layer.items():
        path = argument_path(name)
        if "." not in path:
            continue
        said = literal(value) if isinstance(value, str) else value
        if path in given:
            raise refusal(name, said, f"left out where {given[path][0]}, the same setting, is given")
        for other, (other_name, other_value) in given.items():
            if said is not None and other_value is not None and _exclude(path, other):
                raise refusal(name, said, f"left out where {other_name} is given ({other_value!r})")
        given[path] = name, said


def _head(value: Any) -> Any:
    """The value; of a call its name, as other dotted names may change its arguments."""
    return value.name if isinstance(value, Call) else value
