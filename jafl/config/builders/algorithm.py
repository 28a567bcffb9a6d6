"""The rule, the staleness weight and the optimizers, from settings."""

import inspect
from typing import Any

from jafl.base.errors import SettingError, require
from jafl.config import calls
from jafl.config.builders.privacy import protected
from jafl.config.settings import Settings
from jafl.config.values import Call
from jafl.models import Model
from jafl.records import Rule
from jafl.specifications import Specification


def make_rule(settings: Settings, server_gradient: Specification | None = None) -> Specification:
    """The rule of a resolved run.

    server_gradient: for a rule that takes one; it can be left out as long as nothing trains.
    """
    grammar, name = calls.grammar("algorithm"), settings.algorithm_name
    _check_staleness_weight(settings.argument("algorithm.staleness_weight"))
    parameters = inspect.signature(grammar.factory(grammar.read(settings.algorithm).name)).parameters
    supplied: dict[str, Any] = {"server_learning_rate": settings.server_learning_rate}
    if settings.buffer_size is not None:
        supplied["buffer_size"] = settings.buffer_size
    cohort_size = settings.argument("protocol.cohort_size")
    if settings.argument("protocol.cohorts") == "poisson" and cohort_size is not None:
        supplied["divide_by"] = float(cohort_size)
    if "server_gradient" in parameters:
        remedy = f"{name} compares updates with a gradient on the server's own examples."
        count = settings.argument("split.server_examples")
        require(count >= 1, "split.server_examples", count, "at least 1", remedy)
        supplied["server_gradient"] = server_gradient
    rule: Specification = grammar.make(settings.algorithm, **supplied)
    allowed = "a factory of a rule: a function with @jafl.specification that returns a jafl.Rule"
    require(isinstance(rule, Specification), "algorithm", settings.algorithm, allowed)
    return protected(rule, settings)


def build_rule(settings: Settings) -> Rule:
    """The rule itself; raises SettingError by the setting's name for an argument that it refuses."""
    grammar = calls.grammar("algorithm")
    try:
        rule: Rule = make_rule(settings).build()
    except SettingError as error:
        is_own = "." not in error.setting and grammar.has(settings.algorithm, error.setting)
        raise (error.of(f"algorithm.{error.setting}") if is_own else error) from None
    return rule


def _check_staleness_weight(weight: Any) -> None:
    """Raises SettingError for a number of a staleness weight that is below 0 or infinite."""
    require(
        weight is None or isinstance(weight, Call),
        "algorithm.staleness_weight",
        weight,
        "a call, such as constant",
    )
    for argument, value in weight.arguments.items() if weight else ():
        name = f"algorithm.staleness_weight.{argument}"
        require(0 <= value < float("inf"), name, value, "a finite number, at least 0")


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


def make_client_work(settings: Settings, model: Model, correction: str | None = None) -> Specification:
    """What a client does on a trip, with the correction that the rule asks for (``Requirements.correction``)."""
    optimizer = make_client_optimizer(settings)
    work: Specification = calls.grammar("client_work").make(
        settings.client_work, model=model, optimizer=optimizer, correction=correction
    )
    return work
