"""Algorithms by name: a rule with the protocol, server optimizer and defaults that make it what it is called.

Every rule of ``jafl.rules`` is an algorithm by itself. ``PRESETS`` adds combinations (FedAvgM is FedAvg with server
momentum) and each algorithm's defaults, by the names of settings and of their arguments.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

from jafl import rules
from jafl.config import calls

# Settings that hold wherever neither the user nor the preset says otherwise.
COMMON: dict[str, Any] = {
    "protocol": "asynchronous",
    "client_optimizer": "sgd(learning_rate=0.1)",
    "client_work": "client_work(local_epochs=1, batch_size=8)",
    "server_optimizer": "sgd(learning_rate=1.0)",
}

# A rule on gradients sees update = -gradient where the one local step is plain SGD with rate 1.
ON_GRADIENTS = {"learning_rate": 1.0, "local_steps": 1}

# The learning rates come from one equal search over several worlds; experiments/tools/benchmarks/README.md has it.
PRESETS: dict[str, dict[str, Any]] = {
    "fedbuff": {"learning_rate": 0.3, "server_learning_rate": 1.0},
    "fedasync": {"learning_rate": 1.0, "server_learning_rate": 0.3},
    "fedavg": {"protocol": "synchronous", "learning_rate": 0.1, "server_learning_rate": 3.0},
    "fedavgm": {
        "rule": "fedavg",
        "protocol": "synchronous",
        "learning_rate": 0.1,
        "server_learning_rate": 1.0,
        "server_optimizer.momentum": 0.9,
    },
    "fedprox": {
        "rule": "fedavg",
        "protocol": "synchronous",
        "client_work.proximal": 0.01,
        "learning_rate": 0.3,
        "server_learning_rate": 1.0,
    },
}
for _name, _rates in {
    "fedstaleweight": (0.3, 0.3),
    "exponential_weighting": (0.3, 1.0),
    "ca2fl": (0.3, 0.3),
}.items():
    PRESETS[_name] = {"learning_rate": _rates[0], "server_learning_rate": _rates[1]}
# In optax's forms; --server_optimizer=reddi_adam and so on for the paper's.
for _name, _rates in {"adagrad": (1.0, 0.3), "adam": (0.1, 0.03), "yogi": (0.3, 0.1)}.items():
    PRESETS[f"fed{_name}"] = {
        "rule": "fedavg",
        "protocol": "synchronous",
        "server_optimizer": _name,
        "learning_rate": _rates[0],
        "server_learning_rate": _rates[1],
    }

PRESETS["fadas"] = {"server_optimizer": "fedamsgrad", "learning_rate": 0.1, "server_learning_rate": 0.03}
PRESETS["mifa"] = {"protocol": "synchronous", "learning_rate": 0.1, "server_learning_rate": 1.0}
PRESETS["area"] = {"learning_rate": 0.1, "server_learning_rate": 1.0}
PRESETS["fedfa"] = {"learning_rate": 0.1, "server_learning_rate": 1.0}
PRESETS["cgad"] = {"server_optimizer": "adam", "learning_rate": 0.1, "server_learning_rate": 0.03}
PRESETS["asyncfeded"] = {"learning_rate": 0.3, "server_learning_rate": 0.3}
PRESETS["port"] = {"learning_rate": 0.3, "server_learning_rate": 1.0}
PRESETS["fedcompass"] = {
    "protocol": "compass",
    "local_steps": "scheduled",
    "learning_rate": 0.1,
    "server_learning_rate": 0.9,
}
PRESETS["fednova"] = PRESETS["fedavg"] | {"rule": "fednova"}
for _name, _rate in {
    "ace": 0.01,
    "aced": 0.01,
    "dude_asgd": 0.1,
    "asgd": 0.03,
    "delay_adaptive_asgd": 0.03,
    "rescaled_asgd": 0.03,
    "gsgm": 0.3,
    "sasgd": 0.3,
    "twafl": 0.3,
    "wkafl": 0.1,
    "zeno_plus_plus": 0.3,
}.items():
    PRESETS[_name] = {**ON_GRADIENTS, "server_learning_rate": _rate}
for _name in ("sasgd", "twafl", "wkafl"):  # K-asynchronous in WKAFL
    PRESETS[_name]["protocol.restart"] = "after_step"
PRESETS["gsgm"]["protocol.restart"] = "after_round"
for _name in ("ace", "aced"):
    PRESETS[_name]["buffer_size"] = 1  # their paper's; they take any
    PRESETS[f"{_name}_8bit"] = PRESETS[_name] | {"rule": _name}

# {algorithm: the factory of its rule}
ALGORITHMS: dict[str, Callable[..., Any]] = {
    **{
        name: rules.RULES[PRESETS.get(name, {}).get("rule", name)]
        for name in sorted({*PRESETS, *rules.RULES})
    },
    **{
        f"{name}_8bit": functools.partial(rules.RULES[name], memory_precision="int8")
        for name in ("ace", "aced")
    },
}


@functools.cache
def values(algorithm: str) -> Mapping[str, Any]:
    """{setting: value} of what an algorithm's preset fills in, its calls whole."""
    own = {name: value for name, value in PRESETS.get(algorithm, {}).items() if name != "rule"}
    return calls.with_arguments(COMMON, own, defaults={})
