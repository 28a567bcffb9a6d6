"""The engine: plans a schedule, and runs the plan on the device, as one jitted program.

Its names load on first use: plans (``jafl.in_waves``) are made without JAX.
"""

import importlib
from typing import TYPE_CHECKING

# Type checkers and editors do not follow ``__getattr__``: for them the names are imported here.
if TYPE_CHECKING:
    from jafl.engine.loop.first_carry import allocate, step_of_first_trip
    from jafl.engine.loop.program import Arrivals, Carry, Program, Server, Steps, Trained, Training, Trips
    from jafl.engine.loop.server_steps import run
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
# Texts, and no imports: ``jafl.in_waves`` and ``jafl.trip_by_trip`` load without JAX.
_HOME = {
    **dict.fromkeys(
        ("Arrivals", "Carry", "Program", "Server", "Steps", "Trained", "Training", "Trips"), "program"
    ),
    **dict.fromkeys(("allocate", "step_of_first_trip"), "first_carry"),
    "run": "server_steps",
    "train_trip": "trip",
}


# Python asks a module's ``__getattr__`` only for names that it does not hold.
def __getattr__(name: str):
    if name in _HOME:
        return getattr(importlib.import_module(f"jafl.engine.loop.{_HOME[name]}"), name)
    raise AttributeError(f"module 'jafl.engine' has no attribute {name!r}")
