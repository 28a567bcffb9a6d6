"""The rule, the staleness weight and the optimizers, from settings."""

import ast
import inspect
from collections.abc import Callable
from typing import Any

from jafl import rules
from jafl.base.errors import choose, require, unknown_name
from jafl.config import calls, presets
from jafl.config.builders.privacy import is_private, make_private
from jafl.config.builders.secure import make_secure
from jafl.config.settings import DEFAULTS, Settings, choice_arguments
from jafl.models import Model
from jafl.rules.staleness import STALENESS_WEIGHTS
from jafl.specifications import Specification


def rule_factory(algorithm: str) -> Callable[..., Specification]:
    """The factory of an algorithm's rule."""
    return rules.RULES[presets.PRESETS.get(algorithm, {}).get("rule", algorithm)]


def make_rule(settings: Settings, server_gradient: Specification | None = None) -> Specification:
    """The rule of a resolved run, its parameters taken from the settings of the same names.

    server_gradient: for a rule that takes one; it can be left out as long as nothing trains.
    """
    factory = rule_factory(settings.algorithm)
    parameters = inspect.signature(factory).parameters
    arguments = {
        name: getattr(settings, name) for name in parameters if name in {*DEFAULTS, *calls.SHORT_NAMES}
    }
    arguments = {name: value for name, value in arguments.items() if value is not None}
    if "divide_by" in parameters and settings.cohorts == "poisson" and settings.cohort_size is not None:
        arguments["divide_by"] = float(settings.cohort_size)
    if "staleness_weight" in parameters:
        arguments["staleness_weight"] = make_staleness_weight(settings)
    if "server_gradient" in parameters:
        remedy = f"{settings.algorithm} compares updates with a gradient on the server's own examples."
        count = settings.server_examples
        require(count >= 1, "server_examples", count, "at least 1", remedy)
        arguments["server_gradient"] = server_gradient
    for entry in own_rule_arguments(settings):
        qualified, _, text = (part.strip() for part in entry.partition("="))
        name = qualified.rpartition(".")[2]
        choose(f"an argument of {settings.algorithm} in rule_arguments", name, dict(parameters))
        arguments[name] = _typed_value(parameters[name].default, name, text)
    rule = factory(**arguments)
    if settings.secure_fraction_bits is not None and settings.clip_norm is not None:
        rule = make_secure(rule, settings)
    return make_private(rule, settings) if is_private(settings) else rule


def _typed_value(default: Any, name: str, text: str) -> Any:
    """The value of an entry of ``rule_arguments``; raises SettingError unless it is a number where the default is."""
    value = _literal(text)
    if not isinstance(default, float):
        return value
    require(isinstance(value, (int, float)), f"{name} in rule_arguments", text, "a number")
    return float(value)


def rule_arguments(settings: Settings) -> list[tuple[str, str]]:
    """(entry, the algorithm that it is for, "" for all) of each entry of ``rule_arguments``.

    Raises:
      SettingError: for an entry that is none, or is for an algorithm that does not exist.
    """
    entries = []
    for entry in filter(None, settings.rule_arguments.split(",")):
        name, equals, text = (part.strip() for part in entry.partition("="))
        require(name and equals and text, "rule_arguments", entry, "name=value or algorithm.name=value")
        algorithm, dot, _ = name.rpartition(".")
        if dot and algorithm not in presets.names():
            raise unknown_name("an algorithm in rule_arguments", algorithm, presets.names())
        entries.append((entry, algorithm))
    return entries


def own_rule_arguments(run: Settings) -> list[str]:
    """The entries of ``rule_arguments`` that are for this run's algorithm."""
    return [entry for entry, algorithm in rule_arguments(run) if algorithm in ("", run.algorithm)]


def _literal(text: str) -> Any:
    """A number, True, False or None as Python writes them; any other text as it is."""
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text


def make_staleness_weight(settings: Settings) -> Specification:
    """The staleness weight, its parameters taken from the settings that only it reads."""
    factory = choose("staleness_weight", settings.staleness_weight, STALENESS_WEIGHTS)
    names = choice_arguments("staleness_weight", settings.staleness_weight)
    numbers = {argument: getattr(settings, name) for argument, name in names.items()}
    for argument, value in numbers.items():
        require(0 <= value < float("inf"), names[argument], value, "a finite number, at least 0")
    return factory(**numbers)


def make_server_optimizer(settings: Settings) -> Specification:
    """The server's optax optimizer."""
    return _optimizer("server_optimizer", settings.server_optimizer)


def make_client_optimizer(settings: Settings) -> Specification:
    """The clients' optax optimizer."""
    return _optimizer("client_optimizer", settings.client_optimizer)


def _optimizer(setting: str, text: str) -> Specification:
    """The optimizer, its numbers data of the program; optax itself takes any number for a rate and a momentum."""
    grammar = calls.grammar(setting)
    rate, momentum = grammar.value(text, "learning_rate"), grammar.read(text).arguments.get("momentum")
    name = calls.short_name(f"{setting}.learning_rate")
    fits = isinstance(rate, float) and 0 <= rate < float("inf")
    require(fits, name, rate, "a finite number, at least 0")
    require(momentum is None or 0 <= momentum < 1, f"{setting}.momentum", momentum, "at least 0 and below 1")
    return grammar.specified(text)


def make_client_work(settings: Settings, model: Model) -> Specification:
    """What a client does on a trip."""
    optimizer = make_client_optimizer(settings)
    work: Specification = calls.grammar("client_work").make(
        settings.client_work, model=model, optimizer=optimizer
    )
    return work
