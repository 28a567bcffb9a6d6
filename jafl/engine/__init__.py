"""The engine: runs an execution plan on the device, as one jitted program."""

from jafl.engine.loop.program import Carry, Program, Steps, Trained, Trips
from jafl.engine.loop.server_steps import allocate, run, step_of_first_trip
from jafl.engine.loop.trip import train

__all__ = ["Carry", "Program", "Steps", "Trained", "Trips", "allocate", "run", "step_of_first_trip", "train"]
