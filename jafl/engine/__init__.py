"""The engine: plans a schedule, and runs the plan on the device, as one jitted program.

Its names load on first use: plans (``jafl.in_waves``) are made without JAX.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jafl.engine.loop.program import Arrivals, Carry, Program, Server, Steps, Trained, Training, Trips
    from jafl.engine.loop.server_steps import allocate, run, step_of_first_trip
    from jafl.engine.loop.trip import train_trip

__all__ = [
    "Arrivals",
    "Carry",
    "Program",
    "Server",
    "Steps",
    "Trained",
    "Training",
    "Trips",
    "allocate",
    "run",
    "step_of_first_trip",
    "train_trip",
]
_HOME = {
    **dict.fromkeys(
        ("Arrivals", "Carry", "Program", "Server", "Steps", "Trained", "Training", "Trips"), "program"
    ),
    **dict.fromkeys(("allocate", "run", "step_of_first_trip"), "server_steps"),
    "train_trip": "trip",
}


def __getattr__(name: str):
    if name in _HOME:
        return getattr(importlib.import_module(f"jafl.engine.loop.{_HOME[name]}"), name)
    raise AttributeError(f"module 'jafl.engine' has no attribute {name!r}")
