"""Algorithms by name: a rule with the protocol, server optimizer and defaults that make it what it is called.

Every rule of ``jafl.rules`` is an algorithm by itself: its factory gets the settings that bear the names of its
parameters. ``PRESETS`` adds combinations (FedAvgM is FedAvg with server momentum) and each algorithm's defaults.
"""

import ast
import dataclasses
import inspect
from typing import Any

import optax

from jafl import rules
from jafl.config.settings import (
    DEFAULTS,
    EXCLUSIVE,
    TRIPS_PER_STEP,
    TYPES,
    Settings,
    arguments_of,
    excluded_by,
)
from jafl.errors import choose, require, unknown_name
from jafl.records import Rule
from jafl.rules import server_optimizers
from jafl.rules.staleness import STALENESS_WEIGHTS
from jafl.specifications import Specification, specify

# Settings that hold wherever neither the user nor the preset says otherwise.
COMMON: dict[str, Any] = {
    "protocol": "asynchronous",
    "learning_rate": 0.1,
    "server_optimizer": "sgd",
    "server_learning_rate": 1.0,
}

# A rule on gradients sees update = -gradient where the one local step is plain SGD with rate 1.
ON_GRADIENTS = {"learning_rate": 1.0, "local_steps": 1}

# The learning rates come from one equal search; experiments/benchmarks/README.md has it.
PRESETS: dict[str, dict[str, Any]] = {
    "fedbuff": {"learning_rate": 0.3, "server_learning_rate": 3.0},
    "fedasync": {"learning_rate": 1.0, "server_learning_rate": 0.9},
    "fedavg": {"protocol": "synchronous", "learning_rate": 0.3, "server_learning_rate": 3.0},
    "fedavgm": {
        "rule": "fedavg",
        "protocol": "synchronous",
        "learning_rate": 0.3,
        "server_learning_rate": 1.0,
        "server_momentum": 0.9,
    },
    "fedprox": {
        "rule": "fedavg",
        "protocol": "synchronous",
        "proximal": 0.01,
        "learning_rate": 0.3,
        "server_learning_rate": 3.0,
    },
}
for _name in ("fedstaleweight", "exponential_weighting", "ca2fl"):
    PRESETS[_name] = {"learning_rate": 0.1, "server_learning_rate": 3.0}
# In optax's forms; --server_optimizer=reddi_adam and so on for the paper's.
for _name, _rates in {"adagrad": (1.0, 0.1), "adam": (0.1, 0.03), "yogi": (0.3, 0.1)}.items():
    PRESETS[f"fed{_name}"] = {
        "rule": "fedavg",
        "protocol": "synchronous",
        "server_optimizer": _name,
        "learning_rate": _rates[0],
        "server_learning_rate": _rates[1],
    }

PRESETS["fednova"] = PRESETS["fedavg"] | {"rule": "fednova"}
for _name, _rate in {
    "ace": 0.01,
    "aced": 0.01,
    "asgd": 0.1,
    "delay_adaptive_asgd": 0.1,
    "gsgm": 0.3,
    "sasgd": 1.0,
    "twafl": 1.0,
    "wkafl": 0.3,
    "zeno_plus_plus": 0.3,
}.items():
    PRESETS[_name] = {**ON_GRADIENTS, "server_learning_rate": _rate}
for _name in ("sasgd", "twafl", "wkafl"):  # K-asynchronous in WKAFL
    PRESETS[_name]["restart"] = "after_step"
PRESETS["gsgm"]["restart"] = "after_round"
for _name in ("ace", "aced"):
    PRESETS[f"{_name}_8bit"] = PRESETS[_name] | {"rule": _name, "memory_precision": "int8"}

SERVER_OPTIMIZERS = {
    "sgd": optax.sgd,
    "adam": optax.adam,
    "adagrad": optax.adagrad,
    "yogi": optax.yogi,
    "reddi_adam": server_optimizers.fedadam,
    "reddi_adagrad": server_optimizers.fedadagrad,
    "reddi_yogi": server_optimizers.fedyogi,
}
CLIENT_OPTIMIZERS = {"sgd": optax.sgd, "adam": optax.adam, "adamw": optax.adamw}


def names() -> list[str]:
    """All algorithms, in alphabetical order."""
    return sorted({*PRESETS, *rules.RULES})


def resolve(settings: Settings, algorithm: str, seed: int, *, alone: bool = True) -> Settings:
    """One run's settings: one algorithm, one seed, and every None that a preset or a rule fills in, filled in.

    alone: False where several algorithms are compared: one that is defined for a single buffer size then takes it,
    whatever ``buffer_size`` says for the others.

    Raises SettingError for an unknown algorithm, with the nearest name, and for settings that exclude each other.
    """
    if algorithm not in names():
        raise unknown_name("algorithm", algorithm, names())
    _refuse_both(settings)
    settings = dataclasses.replace(
        settings, **_of_preset(settings, algorithm), algorithm=algorithm, seed=str(seed)
    )
    size = choose("protocol", settings.protocol or "", TRIPS_PER_STEP)
    rule = make_rule(settings).build()
    filled = dataclasses.replace(settings, **_of_rule(settings, rule, size, alone))
    require(
        rule.buffer_size in (None, getattr(filled, size)),
        size,
        getattr(filled, size),
        f"{rule.buffer_size} for {algorithm}, which is not defined for another number of trips per server step",
    )
    return filled


def _refuse_both(settings: Settings) -> None:
    """Raises SettingError where two settings are given that exclude each other."""
    for name, partner in EXCLUSIVE:
        value, partners = getattr(settings, name), getattr(settings, partner)
        allowed = f"left out where {partner} is given ({partners!r})"
        require(value is None or partners is None, name, value, allowed)


def _of_preset(settings: Settings, algorithm: str) -> dict[str, Any]:
    """What an algorithm's preset says of the settings that are not given."""
    given = {name for name in TYPES if getattr(settings, name) is not None}
    left_out = {"rule"} | given | excluded_by(given)
    if settings.server_optimizer not in (None, "sgd"):
        left_out.add("server_momentum")  # a preset's is for sgd
    preset = COMMON | PRESETS.get(algorithm, {})
    return {name: value for name, value in preset.items() if name not in left_out}


def _of_rule(settings: Settings, rule: Rule, size: str, alone: bool) -> dict[str, Any]:
    """What follows from the rule and the protocol; ``size``: the setting that holds the trips per server step."""
    filled: dict[str, Any] = {}
    if settings.restart is None and settings.protocol in ("asynchronous", "open_arrivals"):
        filled["restart"] = "at_once"
    if settings.concurrency is None and settings.protocol != "drawn_staleness":
        filled["concurrency"] = settings.num_clients if rule.initial_round else min(20, settings.num_clients)
    if size == "buffer_size" and (settings.buffer_size is None or (rule.buffer_size and not alone)):
        filled["buffer_size"] = rule.buffer_size or 10
    if size == "cohort_size" and settings.cohort_size is None:
        filled["cohort_size"] = filled.get("concurrency", settings.concurrency)
    if settings.local_steps is None and settings.local_epochs is None:
        filled["local_epochs"] = 1
    if settings.client_trips is None and settings.server_steps is None:
        filled["client_trips"] = 10000
    return filled


def make_rule(settings: Settings, server_gradient: Specification | None = None) -> Specification:
    """The rule of a resolved run, its parameters taken from the settings of the same names.

    server_gradient: for a rule that takes one; it can be left out as long as nothing trains.
    """
    factory = rules.RULES[PRESETS.get(settings.algorithm, {}).get("rule", settings.algorithm)]
    parameters = inspect.signature(factory).parameters
    arguments = {name: getattr(settings, name) for name in parameters if name in DEFAULTS}
    arguments = {name: value for name, value in arguments.items() if value is not None}
    if "staleness_weight" in parameters:
        arguments["staleness_weight"] = make_staleness_weight(settings)
    if "server_gradient" in parameters:
        remedy = f"{settings.algorithm} compares updates with a gradient on the server's own examples."
        count = settings.server_examples
        require(count >= 1, "server_examples", count, "at least 1", remedy)
        arguments["server_gradient"] = server_gradient
    for name, text in _rule_arguments(settings):
        choose(f"an argument of {settings.algorithm} in rule_arguments", name, dict(parameters))
        arguments[name] = _of_type(parameters[name].default, name, text)
    return factory(**arguments)


def _of_type(default: Any, name: str, text: str) -> Any:
    """The value of an entry of ``rule_arguments``; raises SettingError unless it is a number where the default is."""
    value = _literal(text)
    if not isinstance(default, float):
        return value
    require(isinstance(value, (int, float)), f"{name} in rule_arguments", text, "a number")
    return float(value)


def _rule_arguments(settings: Settings) -> list[tuple[str, str]]:
    """(parameter, text) of each entry of ``rule_arguments`` that is for this run's algorithm."""
    pairs = []
    for item in filter(None, settings.rule_arguments.split(",")):
        name, equals, text = (part.strip() for part in item.partition("="))
        require(name and equals and text, "rule_arguments", item, "name=value or algorithm.name=value")
        algorithm, dot, parameter = name.rpartition(".")
        if dot and algorithm not in names():
            raise unknown_name("an algorithm in rule_arguments", algorithm, names())
        if not dot or algorithm == settings.algorithm:
            pairs.append((parameter, text))
    return pairs


def _literal(text: str) -> Any:
    """A number, True, False or None as Python writes them; any other text as it is."""
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text


def make_staleness_weight(settings: Settings) -> Specification:
    """The staleness weight, its parameters taken from the settings that only it reads."""
    factory = choose("staleness_weight", settings.staleness_weight, STALENESS_WEIGHTS)
    names = arguments_of("staleness_weight", settings.staleness_weight)
    numbers = {argument: getattr(settings, name) for argument, name in names.items()}
    for argument, value in numbers.items():
        require(0 <= value < float("inf"), names[argument], value, "a finite number, at least 0")
    return factory(**numbers)


def make_server_optimizer(settings: Settings) -> Specification:
    """The server's optax optimizer."""
    return _optimizer(
        "server",
        SERVER_OPTIMIZERS,
        settings.server_optimizer or "",
        settings.server_learning_rate,
        settings.server_momentum,
    )


def make_client_optimizer(settings: Settings) -> Specification:
    """The clients' optax optimizer."""
    return _optimizer(
        "client",
        CLIENT_OPTIMIZERS,
        settings.client_optimizer,
        settings.learning_rate,
        settings.client_momentum,
    )


def _optimizer(
    side: str, optimizers: dict, name: str, learning_rate: Any, momentum: float | None
) -> Specification:
    """side: "server" or "client", whose settings are checked."""
    factory = choose(f"{side}_optimizer", name, optimizers)
    rate = "server_learning_rate" if side == "server" else "learning_rate"
    require(0 <= learning_rate < float("inf"), rate, learning_rate, "a finite number, at least 0")
    if momentum is None:
        return specify(factory, learning_rate=float(learning_rate))
    require(name == "sgd", f"{side}_momentum", momentum, f"left out where {side}_optimizer is not sgd")
    require(0 <= momentum < 1, f"{side}_momentum", momentum, "at least 0 and below 1")
    return specify(factory, learning_rate=float(learning_rate), momentum=float(momentum))
