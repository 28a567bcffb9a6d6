"""The engine: runs an execution plan on the device, as one jitted program."""

from jafl.engine.loop import Carry, Program, Steps, Trained, Trips, allocate, run, train

__all__ = ["Carry", "Program", "Steps", "Trained", "Trips", "allocate", "run", "train"]
