"""The arguments of ``jafl.asynchronous`` that make a schedule for a rule that takes no other."""

from typing import Any

_OF_RULE: dict[str, dict[str, Any]] = {
    "malenia": {"step_when": "harmonic_mean"},
    "ringleader": {"step_when": "each_client_once_a_round", "buffer_size": None},
    "fedfix": {"step_every": 0.5, "restart": "after_step", "buffer_size": None},
}


def protocol_of(name: str, num_clients: int) -> dict[str, Any]:
    """{argument: value} for the rule of this name, all clients under way; {} for rules that take any schedule."""
    own = _OF_RULE.get(name)
    return {"concurrency": num_clients, **own} if own else {}
