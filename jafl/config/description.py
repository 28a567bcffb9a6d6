"""From a ``config.json`` to objects, and from objects to the text that makes them."""

import dataclasses
import functools
import inspect
import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from jafl.base.described import origin
from jafl.base.errors import refusal, require
from jafl.base.paths import in_home
from jafl.config import calls
from jafl.config.experiment import Experiment, make_experiments
from jafl.config.grammar import Grammar
from jafl.config.own_calls import Split
from jafl.config.settings import Settings
from jafl.config.values import Call, items
from jafl.data import Source
from jafl.specifications import Specification


def load(path: str | os.PathLike[str]) -> Experiment:
    """The objects that a run's settings describe.

    Args:
      path: a run's ``config.json``, or its directory.

    Returns:
      The experiment: its ``run`` holds the arguments of ``jafl.simulate``, ``simulate()`` trains it.

    Raises:
      SettingError: for a file that is none of this version, or of several runs, or settings that cannot work.
    """
    place = in_home(path)
    settings = Settings.from_file(str(place / "config.json" if place.is_dir() else place))
    several = "," in settings.seed or len(items("algorithm", settings.algorithm)) > 1
    remedy = "Each run of a comparison has a config.json of its own, in its own directory."
    require(not several, "path", str(path), "the config.json of one run", remedy)
    (experiment,) = make_experiments(settings)
    return experiment


def describe(value: Any, setting: str | None = None) -> Any:
    """The text that makes an object: the call of a public factory, every default written out.

    Args:
      value: what a factory of jafl made: a law of delays, a rule, a schedule, ...; or an experiment.
      setting: of which it is the value, ``client_optimizer`` for example. Default: the first one that it can be of.

    Returns:
      A text that the setting takes, without what an experiment fills in, such as the labels of a partition; of an
      experiment {setting: value}, as its ``config.json`` has them.

    Raises:
      SettingError: for an object that no public factory has made, or one that was changed since, or that was given
        what no text says: an array, a function.

    Examples:
      >>> jafl.config.describe(jafl.delays.once_per_client(jafl.delays.gamma(shape=2)))
      'once_per_client(law=gamma(mean=1.0, shape=2.0))'
      >>> jafl.config.describe(jafl.rules.asgd(), "algorithm")
      'asgd'
    """
    if isinstance(value, Experiment):
        return dataclasses.asdict(value.settings)
    if setting is not None:
        require(setting in calls.CALLS, "setting", setting, f"one of {', '.join(calls.CALLS)}")
    made = _made_by(value, setting)
    if made is None:
        what = type(value).__name__ if value is not None else "None"
        allowed = "made by a public factory of jafl, and not changed since"
        is_none = value is None and setting is None
        remedy = "availability.always and dropout.nobody make it: name the setting." if is_none else ""
        raise refusal("the described object", what, allowed, remedy)
    grammar, call = made
    return grammar.completed(str(call))


def _made_by(value: Any, setting: str | None) -> tuple[Grammar, Call] | None:
    """The grammar of the setting that an object can be of, and its call; None where no factory has made it."""
    found = _call(value)
    for name in [setting] if setting else calls.CALLS:
        grammar = calls.grammar(name)
        if value is None and setting:
            for each, factory in grammar.factories.items():
                if inspect.signature(factory).return_annotation is None:
                    return grammar, Call(each, {})
            return None
        if found and name == "split" == setting and isinstance(value, Source):
            names = {"data_seed": "seed"} | {each: each for each in ("test_fraction", "validation_fraction")}
            found = Split, {names[each]: one for each, one in found[1].items() if each in names}
        if found and (named := _name_in(grammar, *found)):
            own = [each for each in named[1] if each in grammar.parameters(named[0])]
            return grammar, Call(named[0], {each: _said(named[1][each], each) for each in own})
    return None


def _call(value: Any) -> tuple[Callable[..., Any], Mapping[str, Any]] | None:
    """The factory of an object and the arguments that it was given."""
    if remembered := origin(value):
        return remembered.factory, remembered.arguments
    if isinstance(value, Specification):
        positional = [value.arguments[name] for name in sorted(value.arguments) if name.startswith("*")]
        named = {name: one for name, one in value.arguments.items() if not name.startswith("*")}
        return value.factory, inspect.signature(value.factory).bind_partial(*positional, **named).arguments
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return type(value), {
            field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init
        }
    return None


def _name_in(
    grammar: Grammar, factory: Callable[..., Any], arguments: Mapping[str, Any]
) -> tuple[str, dict[str, Any]] | None:
    """The name that a factory has in a grammar, and the arguments without those that the name says."""
    for name, known in {**grammar.factories, **grammar.inner}.items():
        partial = known if isinstance(known, functools.partial) else functools.partial(known)
        if inspect.unwrap(partial.func) is not inspect.unwrap(factory):
            continue
        fixed = inspect.signature(partial.func).bind_partial(*partial.args, **partial.keywords).arguments
        if all(arguments.get(each) == value for each, value in fixed.items()):
            return name, {each: value for each, value in arguments.items() if each not in fixed}
    return None


def _said(value: Any, argument: str) -> Any:
    """An argument as the grammar has it: calls of factories in the place of what they made."""
    if isinstance(value, (list, tuple)):
        return type(value)(_said(each, argument) for each in value)
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if made := _made_by(value, None):
        return made[1]
    allowed = "a number, text, list or object that a public factory made, to be described"
    raise refusal(argument, type(value).__name__, allowed)
