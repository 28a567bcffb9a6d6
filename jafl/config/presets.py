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

PRESETS["fadas"] = {"server_optimizer": "fedamsgrad", "learning_rate": 0.3, "server_learning_rate": 0.01}
PRESETS["mifa"] = {"protocol": "synchronous", "learning_rate": 0.3, "server_learning_rate": 3.0}
PRESETS["area"] = {"learning_rate": 0.3, "server_learning_rate": 1.0}
PRESETS["fedfa"] = {"learning_rate": 1.0, "server_learning_rate": 1.0}
PRESETS["cgad"] = {"server_optimizer": "adam", "learning_rate": 0.01, "server_learning_rate": 0.03}
PRESETS["asyncfeded"] = {"learning_rate": 0.03, "server_learning_rate": 1.0}
PRESETS["port"] = {"learning_rate": 0.3, "server_learning_rate": 1.0}
PRESETS["scaffold"] = {"protocol": "synchronous", "learning_rate": 0.1, "server_learning_rate": 3.0}
PRESETS["feddyn"] = {"protocol": "synchronous", "learning_rate": 0.3, "server_learning_rate": 1.0}
PRESETS["masfl"] = {"learning_rate": 0.3, "server_learning_rate": 0.3}
PRESETS["adamasfl"] = {"rule": "masfl", "learning_rate": 0.1, "server_learning_rate": 1.0}
# Compressed updates: the tenth of largest magnitude of each. QAFeL sends compressed changes of the model as well.
PRESETS["ef21"] = {
    "protocol": "synchronous",
    "client_work.compression": "top_k(fraction=0.1)",
    "learning_rate": 0.3,
    "server_learning_rate": 3.0,
}
PRESETS["qafel"] = {
    "client_work.compression": "qsgd(levels=4)",
    "learning_rate": 0.3,
    "server_learning_rate": 1.0,
}
PRESETS["fedcompass"] = {
    "protocol": "compass",
    "local_steps": "scheduled",
    "learning_rate": 0.3,
    "server_learning_rate": 3.0,
}
# FedProx at the clients (the paper takes 0.4).
PRESETS["fedat"] = {
    "protocol": "tiered",
    "client_work.proximal": 0.4,
    "learning_rate": 0.3,
    "server_learning_rate": 1.0,
}
# The share of clients that are polled, and the most local steps, are the paper's; a client has time for them.
PRESETS["favas"] = {
    "protocol": "polled",
    "protocol.interval": 0.2,
    "local_steps": "scheduled",
    "learning_rate": 0.3,
    "server_learning_rate": 1.0,
}
PRESETS["quafl"] = PRESETS["favas"] | {"protocol.download": "before_step"}
PRESETS["fednova"] = PRESETS["fedavg"] | {"rule": "fednova"}
# DiLoCo: AdamW at the clients, Nesterov's momentum at the server (Douillard et al. 2023, who take 500 local steps).
# Asynchronous DiLoCo: a step at each arrival, delayed Nesterov (Liu et al. 2024, 50 local steps; its period is the
# number of workers). Both papers have rates of 4e-4 and 0.7. The weight decay is a reading. A trip starts AdamW
# anew, as the released notebook of the second does; in the papers each worker keeps its moments.
_DILOCO = {
    "client_optimizer": "adamw(weight_decay=0.1)",
    "local_steps": 50,
}
PRESETS["diloco"] = _DILOCO | {
    "rule": "fedavg",
    "protocol": "synchronous",
    "server_optimizer": "sgd(momentum=0.9, nesterov=True)",
    "learning_rate": 1e-4,
    "server_learning_rate": 2.0,
}
PRESETS["async_diloco"] = _DILOCO | {
    "rule": "asgd",
    "server_optimizer": "delayed_nesterov(momentum=0.9, period=8)",
    "learning_rate": 1e-3,
    "server_learning_rate": 0.03,
}
for _name, _rate in {
    "ace": 0.01,
    "aced": 0.01,
    "dude_asgd": 0.1,
    "asgd": 0.03,
    "delay_adaptive_asgd": 0.03,
    "rescaled_asgd": 0.01,
    "gsgm": 0.3,
    "sasgd": 0.3,
    "twafl": 0.3,
    "wkafl": 0.1,
    "zeno_plus_plus": 0.3,
}.items():
    PRESETS[_name] = {**ON_GRADIENTS, "server_learning_rate": _rate}
# Asynchronous SGD that takes no gradient staler than 24 steps: one that is is thrown away when it arrives (algorithm
# 4 of Ringmaster ASGD), or its computation is stopped (algorithm 5).
PRESETS["ringmaster"] = PRESETS["asgd"] | {"rule": "asgd", "protocol.staleness_limit": 24}
PRESETS["ringmaster_with_stops"] = PRESETS["ringmaster"] | {"protocol.too_stale": "cancel"}
# The mean of the first S gradients at the newest model; others are stopped by the step, or ignored when they arrive.
PRESETS["rennala"] = {
    **ON_GRADIENTS,
    "rule": "fedavg",
    "server_learning_rate": 0.3,
    "protocol.cancel_at_step": True,
}
PRESETS["rennala_without_stops"] = {
    name: value for name, value in PRESETS["rennala"].items() if name != "protocol.cancel_at_step"
} | {"protocol.staleness_limit": 0}
PRESETS["malenia"] = {
    **ON_GRADIENTS,
    "server_learning_rate": 1.0,
    "protocol.step_when": "harmonic_mean",
    "protocol.cancel_at_step": True,
}
PRESETS["ringleader"] = {
    **ON_GRADIENTS,
    "server_learning_rate": 0.01,
    "protocol.step_when": "each_client_once_a_round",
}
PRESETS["generalized_async_sgd"] = {**ON_GRADIENTS, "protocol": "queued", "server_learning_rate": 0.03}
PRESETS["fedfix"] = {
    "learning_rate": 0.3,
    "server_learning_rate": 1.0,
    "protocol.step_every": 1.0,
    "protocol.restart": "after_step",
}
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
    "adamasfl": functools.partial(rules.RULES["masfl"], normalize=True),
}


@functools.cache
def values(algorithm: str) -> Mapping[str, Any]:
    """{setting: value} of what an algorithm's preset fills in, its calls whole."""
    own = {name: value for name, value in PRESETS.get(algorithm, {}).items() if name != "rule"}
    return calls.with_arguments(COMMON, own, defaults={})
