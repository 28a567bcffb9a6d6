"""The settings whose values are calls of public factories, each with its grammar."""

import ast
import functools
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

from jafl import data
from jafl.base.errors import SettingError, did_you_mean
from jafl.config.grammar import Call, Grammar, written
from jafl.schedule import AVAILABILITIES, DELAYS, delays, dropout, duration_trace, read_availability


def _delays() -> Grammar:
    laws = (delays.slow_fraction, delays.once_per_client, delays.with_network, delays.throttled)
    factories: dict[str, Callable[..., Any]] = {
        **DELAYS,
        **{law.__name__: law for law in laws},
        "duration_trace": duration_trace,
    }
    return Grammar("delay", factories, supplied=("model_bytes",), fixed=("num_examples",))


def _availabilities() -> Grammar:
    return Grammar("availability", {**AVAILABILITIES, "read_availability": read_availability})


def _dropouts() -> Grammar:
    makers = (dropout.nobody, dropout.fraction, dropout.clients)
    return Grammar("dropout", {maker.__name__: maker for maker in makers})


def _partitions() -> Grammar:
    factories = {**data.PARTITIONS, "natural": data.natural}
    return Grammar("partition", factories, ("seed",), fixed=("labels", "num_clients", "source"))


# Functions, because some factories import JAX, which the list of experiments does without.
_GRAMMARS: Mapping[str, Callable[[], Grammar]] = {
    "delay": _delays,
    "availability": _availabilities,
    "dropout": _dropouts,
    "partition": _partitions,
}
# What a call is whose argument is given and that is left out itself, where it has no default of its own.
_LEFT_OUT = {"partition": "dirichlet"}
CALLS = tuple(_GRAMMARS)


@functools.cache
def grammar(setting: str) -> Grammar:
    """What the setting may be."""
    return _GRAMMARS[setting]()


def with_arguments(values: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """``values`` by the names of settings: those of dotted names are put into the calls that have them.

    Args:
      values: {setting, or setting.argument: value}.
      defaults: {setting: value} of calls that ``values`` does not have.

    Raises:
      SettingError: for a dotted name whose setting is no call, or whose call has no such argument.

    Examples:
      >>> with_arguments({"delay.shape": 2, "delay": "gamma", "seed": "1"}, {})
      {'delay': 'gamma(shape=2.0)', 'seed': '1'}
    """
    whole = {name: value for name, value in values.items() if "." not in name}
    set_to: dict[str, Any] = {}
    # Calls first: their arguments may be among the others.
    for name, value in sorted(values.items(), key=lambda item: not _is_call(*item)):
        setting, dot, path = name.partition(".")
        if not dot:
            continue
        if setting not in CALLS:
            hint = did_you_mean(setting, CALLS)
            raise SettingError(
                f"{name!r} is no setting's name; those with arguments are {', '.join(CALLS)}. {hint}".rstrip(),
                setting=name,
                value=value,
            )
        text: Any = whole.get(setting, defaults.get(setting))
        text = _LEFT_OUT.get(setting) if text is None else text
        whole[setting] = grammar(setting).changed(text, path, value)
        set_to[name] = grammar(setting).value(whole[setting], path)
    # One may have taken the place of another's call: then the order would decide.
    for name, value in set_to.items():
        setting, _, path = name.partition(".")
        if _head(grammar(setting).value(whole[setting], path)) != _head(value):
            raise SettingError(
                f"{name} is {written(value)}, but another argument of {setting} takes its place. "
                f"Write the whole value of {setting}.",
                setting=name,
                value=value,
            )
    return whole


def _is_call(name: str, value: Any) -> bool:
    """Whether the value of a dotted name is a call."""
    setting = name.partition(".")[0]
    if setting not in CALLS or not isinstance(value, str):
        return False
    try:
        grammar(setting).read(value)
    except SettingError:
        return False
    return True


def _head(value: Any) -> Any:
    """The value; of a call its name, as other dotted names may change its arguments."""
    return value.name if isinstance(value, Call) else value


def former_argument(name: str) -> str:
    """A question for a name such as ``delay_shape`` or ``dirichlet_alpha``; empty for others."""
    for setting in CALLS:
        for factory, arguments in grammar(setting).arguments().items():
            for argument in arguments:
                if name in (f"{setting}_{argument}", f"{factory}_{argument}"):
                    return f"Did you mean '{setting}.{argument}'?"
    return ""


def literal(text: str) -> Any:
    """A number, truth value, None or text in quotes that a text says; the text itself where it is none of these."""
    try:
        value = ast.literal_eval(text.strip())
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return text
    return value if isinstance(value, (int, float, str, type(None))) else text


def flattened(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with arguments of calls beside them, as far as a dotted name tells which: for tables.

    Examples:
      >>> flattened({"delay": "once_per_client(exponential(mean=2.0))"})
      {'delay': 'once_per_client(law=exponential)', 'delay.mean': 2.0}
    """
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        flat[name] = value
        if name in CALLS and isinstance(value, str):
            flat[name], arguments = grammar(name).flattened(value)
            flat |= {f"{name}.{argument}": each for argument, each in arguments.items()}
    return flat


def files(settings: Mapping[str, Any]) -> dict[str, pathlib.Path]:
    """{setting.argument: path} of the files that the calls among these settings read."""
    return {
        f"{name}.{argument}": pathlib.Path(path).expanduser()
        for name in CALLS
        if settings.get(name)
        for argument, path in grammar(name).paths(settings[name]).items()
    }
