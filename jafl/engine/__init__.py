"""The engine: runs an execution plan on the device, as one jitted program."""

from jafl.engine.loop import allocate, run, train
from jafl.engine.program import Carry, Program, Steps, Trained, Trips

__all__ = ["Carry", "Program", "Steps", "Trained", "Trips", "allocate", "run", "train"]
