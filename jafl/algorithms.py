"""Algorithms by name: a rule with the protocol, server optimizer and defaults that make it what it is called.

Every rule of ``jafl.rules`` is an algorithm by itself: its factory gets the settings that bear the names of its
parameters. ``PRESETS`` adds combinations (FedAvgM is FedAvg with server momentum) and each algorithm's defaults.
"""

import dataclasses
import inspect
from typing import Any

import optax

from jafl import rules
from jafl.deferred import Specification, specify
from jafl.records import choose, require, unknown_name
from jafl.rules.staleness import STALENESS_WEIGHTS
from jafl.settings import EXCLUSIVE, Settings

# Settings that hold wherever neither the user nor the preset says otherwise.
COMMON: dict[str, Any] = {
    "protocol": "asynchronous",
    "learning_rate": 0.1,
    "server_optimizer": "sgd",
    "server_learning_rate": 1.0,
}

# The learning rates come from one equal search; BUILD.md tells which.
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
    "fedadam": {
        "rule": "fedavg",
        "protocol": "synchronous",
        "server_optimizer": "adam",
        "learning_rate": 0.1,
        "server_learning_rate": 0.03,
    },
}

# The setting that holds the trips per server step, by protocol.
TRIPS_PER_STEP = {"asynchronous": "buffer_size", "synchronous": "cohort_size"}
SERVER_OPTIMIZERS = {"sgd": optax.sgd, "adam": optax.adam, "adagrad": optax.adagrad, "yogi": optax.yogi}
CLIENT_OPTIMIZERS = {"sgd": optax.sgd, "adam": optax.adam}


def names() -> list[str]:
    """All algorithms, in alphabetical order."""
    return sorted({*PRESETS, *rules.RULES})


def resolve(settings: Settings, algorithm: str, seed: int) -> Settings:
    """One run's settings: one algorithm, one seed, and every None that a preset or a rule fills in, filled in.

    Raises SettingError for an unknown algorithm, with the nearest name, and for settings that exclude each other.
    """
    if algorithm not in names():
        raise unknown_name("algorithm", algorithm, names())
    for one_name, other_name in EXCLUSIVE:
        value, other = getattr(settings, one_name), getattr(settings, other_name)
        allowed = f"left out where {other_name} is given ({other!r})"
        require(value is None or other is None, one_name, value, allowed)
    preset = {**COMMON, **PRESETS.get(algorithm, {})}
    fill = {
        name: value for name, value in preset.items() if name != "rule" and getattr(settings, name) is None
    }
    one = dataclasses.replace(settings, **fill, algorithm=algorithm, seed=str(seed))
    size = choose("protocol", one.protocol or "", TRIPS_PER_STEP)
    only_size = make_rule(one).build().buffer_size
    fill = {}
    if one.protocol == "asynchronous" and one.buffer_size is None:
        fill["buffer_size"] = only_size or 10
    if one.protocol == "synchronous" and one.cohort_size is None:
        fill["cohort_size"] = one.concurrency
    if one.local_steps is None and one.local_epochs is None:
        fill["local_epochs"] = 1
    if one.client_trips is None and one.server_steps is None:
        fill["client_trips"] = 10000
    one = dataclasses.replace(one, **fill)
    require(
        only_size in (None, getattr(one, size)),
        size,
        getattr(one, size),
        f"{only_size} for {algorithm}, which is not defined for another number of trips per server step",
    )
    return one


def make_rule(settings: Settings) -> Specification:
    """The rule of a resolved run, its parameters taken from the settings of the same names."""
    name = PRESETS.get(settings.algorithm, {}).get("rule", settings.algorithm)
    factory = rules.RULES[name]
    arguments = {}
    for parameter in inspect.signature(factory).parameters:
        if parameter == "staleness_weight":
            arguments[parameter] = make_staleness_weight(settings)
        elif hasattr(settings, parameter):
            arguments[parameter] = getattr(settings, parameter)
    return factory(**arguments)


def make_staleness_weight(settings: Settings) -> Specification:
    """The staleness weight, its parameters taken from the settings ``staleness_<parameter>``."""
    factory = choose("staleness_weight", settings.staleness_weight, STALENESS_WEIGHTS)
    numbers = {name: getattr(settings, f"staleness_{name}") for name in inspect.signature(factory).parameters}
    for name, value in numbers.items():
        require(0 <= value < float("inf"), f"staleness_{name}", value, "a finite number, at least 0")
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


def _optimizer(who: str, known: dict, name: str, learning_rate: Any, momentum: float | None) -> Specification:
    factory = choose(f"{who}_optimizer", name, known)
    rate = "server_learning_rate" if who == "server" else "learning_rate"
    require(0 <= learning_rate < float("inf"), rate, learning_rate, "a finite number, at least 0")
    if momentum is None:
        return specify(factory, learning_rate=float(learning_rate))
    require(name == "sgd", f"{who}_momentum", momentum, f"left out where {who}_optimizer is not sgd")
    require(0 <= momentum < 1, f"{who}_momentum", momentum, "at least 0 and below 1")
    return specify(factory, learning_rate=float(learning_rate), momentum=float(momentum))
