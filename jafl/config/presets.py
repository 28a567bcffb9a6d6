"""Algorithms by name: a rule with the protocol, server optimizer and defaults that make it what it is called.

Every rule of ``jafl.rules`` is an algorithm by itself. ``PRESETS`` adds combinations (FedAvgM is FedAvg with server
momentum) and each algorithm's defaults, by the names of settings and of their arguments.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

from jafl import rules
from jafl.config.layers import with_arguments

# Settings that hold wherever neither the user nor the preset says otherwise.
COMMON: dict[str, Any] = {
    "protocol": "asynchronous",
    "client_optimizer": "sgd(learning_rate=0.1)",
    "client_work": "client_work(local_epochs=1, batch_size=8)",
    "server_optimizer": "sgd(learning_rate=1.0)",
}

# Data sets of texts whose next token is to be predicted at each place: y is [E, T].
WITH_NEXT_TOKENS = ("python_source", "shakespeare")

SYNCHRONOUS = {"protocol": "synchronous"}
AFTER_STEP = {"protocol.restart": "after_step"}
# DiLoCo: AdamW at the clients, Nesterov's momentum at the server (Douillard et al. 2023, who take 500 local steps).
# Asynchronous DiLoCo: a step at each arrival, delayed Nesterov (Liu et al. 2024, 50 local steps; its period is the
# number of workers). Both papers have rates of 4e-4 and 0.7. The weight decay is a reading. A trip starts AdamW
# anew, as the released notebook of the second does; in the papers each worker keeps its moments.
DILOCO = {"client_optimizer": "adamw(weight_decay=0.1)", "local_steps": 50}


def _rates(clients: float, server: float) -> dict[str, Any]:
    """The learning rates of clients and server."""
    return {"learning_rate": clients, "server_learning_rate": server}


def _on_gradients(server: float) -> dict[str, Any]:
    """A rule on gradients sees update = -gradient where the one local step is plain SGD with rate 1."""
    return {**_rates(1.0, server), "local_steps": 1}


# The learning rates come from one equal search over several worlds; experiments/tools/benchmarks/README.md has it.
PRESETS: dict[str, dict[str, Any]] = {
    "fedbuff": _rates(0.3, 1.0),
    "fedasync": _rates(1.0, 0.3),
    "fedavg": SYNCHRONOUS | _rates(0.1, 3.0),
    "fedavgm": {"rule": "fedavg"} | SYNCHRONOUS | _rates(0.1, 1.0) | {"server_optimizer.momentum": 0.9},
    "fedprox": {"rule": "fedavg"} | SYNCHRONOUS | {"client_work.proximal": 0.01} | _rates(0.3, 1.0),
    "fedstaleweight": _rates(0.3, 0.3),
    "exponential_weighting": _rates(0.3, 1.0),
    "ca2fl": _rates(0.3, 0.3),
    # In optax's forms; --server_optimizer=reddi_adam and so on for the paper's.
    "fedadagrad": {"rule": "fedavg"} | SYNCHRONOUS | {"server_optimizer": "adagrad"} | _rates(1.0, 0.3),
    "fedadam": {"rule": "fedavg"} | SYNCHRONOUS | {"server_optimizer": "adam"} | _rates(0.1, 0.03),
    "fedyogi": {"rule": "fedavg"} | SYNCHRONOUS | {"server_optimizer": "yogi"} | _rates(0.3, 0.1),
    "fadas": {"server_optimizer": "fedamsgrad"} | _rates(0.3, 0.01),
    "mifa": SYNCHRONOUS | _rates(0.3, 3.0),
    "area": _rates(0.3, 1.0),
    "fedfa": _rates(1.0, 1.0),
    "cgad": {"server_optimizer": "adam"} | _rates(0.01, 0.03),
    "asyncfeded": _rates(0.03, 1.0),
    "port": _rates(0.3, 1.0),
    "scaffold": SYNCHRONOUS | _rates(0.1, 3.0),
    "feddyn": SYNCHRONOUS | _rates(0.3, 1.0),
    "masfl": _rates(0.3, 0.3),
    "adamasfl": {"rule": "masfl"} | _rates(0.1, 1.0),
    # Compressed updates: the tenth of largest magnitude of each. QAFeL sends compressed changes of the model as well.
    "ef21": SYNCHRONOUS | {"client_work.compression": "top_k(fraction=0.1)"} | _rates(0.3, 3.0),
    "qafel": {"client_work.compression": "qsgd(levels=4)"} | _rates(0.3, 1.0),
    "fedcompass": {"protocol": "compass", "local_steps": "scheduled"} | _rates(0.3, 3.0),
    # FedProx at the clients (the paper takes 0.4).
    "fedat": {"protocol": "tiered", "client_work.proximal": 0.4} | _rates(0.3, 1.0),
    # The share of clients that are polled, and the most local steps, are the paper's; a client has time for them.
    "favas": {"protocol": "polled", "protocol.interval": 0.2, "local_steps": "scheduled"} | _rates(0.3, 1.0),
    "fednova": {"rule": "fednova"} | SYNCHRONOUS | _rates(0.1, 3.0),
    "diloco": DILOCO
    | {"rule": "fedavg", "server_optimizer": "sgd(momentum=0.9, nesterov=True)"}
    | SYNCHRONOUS
    | _rates(1e-4, 2.0),
    "async_diloco": DILOCO
    | {"rule": "asgd", "server_optimizer": "delayed_nesterov(momentum=0.9, period=8)"}
    | _rates(1e-3, 0.03),
    "ace": _on_gradients(0.01) | {"buffer_size": 1},  # their paper's; they take any
    "aced": _on_gradients(0.01) | {"buffer_size": 1},
    "dude_asgd": _on_gradients(0.1),
    "asgd": _on_gradients(0.03),
    "delay_adaptive_asgd": _on_gradients(0.03),
    "rescaled_asgd": _on_gradients(0.01),
    "gsgm": _on_gradients(0.3) | {"protocol.restart": "after_round"},
    "sasgd": _on_gradients(0.3) | AFTER_STEP,
    "twafl": _on_gradients(0.3) | AFTER_STEP,
    "wkafl": _on_gradients(0.1) | AFTER_STEP,  # K-asynchronous
    "zeno_plus_plus": _on_gradients(0.3),
    # Asynchronous SGD that takes no gradient staler than 24 steps: one that is is thrown away when it arrives
    # (algorithm 4 of Ringmaster ASGD), or its computation is stopped (algorithm 5).
    "ringmaster": {"rule": "asgd"} | _on_gradients(0.03) | {"protocol.staleness_limit": 24},
    # The mean of the first S gradients at the newest model; others are stopped by the step, or ignored when they
    # arrive.
    "rennala": {"rule": "fedavg"} | _on_gradients(0.3) | {"protocol.cancel_at_step": True},
    "rennala_without_stops": {"rule": "fedavg"} | _on_gradients(0.3) | {"protocol.staleness_limit": 0},
    "malenia": _on_gradients(1.0) | {"protocol.step_when": "harmonic_mean", "protocol.cancel_at_step": True},
    "ringleader": _on_gradients(0.01) | {"protocol.step_when": "each_client_once_a_round"},
    "generalized_async_sgd": {"protocol": "queued"} | _on_gradients(0.03),
    "fedfix": AFTER_STEP | {"protocol.step_every": 1.0} | _rates(0.3, 1.0),
}
PRESETS["quafl"] = PRESETS["favas"] | {"protocol.download": "before_step"}
PRESETS["ringmaster_with_stops"] = PRESETS["ringmaster"] | {"protocol.too_stale": "cancel"}
for _name in ("ace", "aced"):
    PRESETS[f"{_name}_8bit"] = PRESETS[_name] | {"rule": _name}

# {algorithm: the factory of its rule}
ALGORITHMS: dict[str, Callable[..., Any]] = {
    **{
        name: rules.RULES[PRESETS.get(name, {}).get("rule", name)]
        for name in sorted({*PRESETS, *rules.RULES})
    },
    "ace_8bit": functools.partial(rules.RULES["ace"], memory_precision="int8"),
    "aced_8bit": functools.partial(rules.RULES["aced"], memory_precision="int8"),
    "adamasfl": functools.partial(rules.RULES["masfl"], normalize=True),
}


@functools.cache
def values(algorithm: str) -> Mapping[str, Any]:
    """{setting: value} of what an algorithm's preset fills in, its calls whole."""
    own = {name: value for name, value in PRESETS.get(algorithm, {}).items() if name != "rule"}
    return with_arguments(COMMON, own, defaults={})


def default_model(dataset: str) -> str:
    """The model of a data set where none is asked for."""
    return "character_lstm" if dataset in WITH_NEXT_TOKENS else "mlp"
