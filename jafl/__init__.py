"""jafl: a simulator of asynchronous federated learning that runs a whole experiment as one program.

The public names load on first use, so that ``import jafl`` stays quick.
"""

import importlib

__version__ = "0.1.0"

_HOME = {
    "Arrival": "records",
    "Delay": "schedule",
    "Checkpoints": "simulation.checkpoints",
    "ClientMemoryRequest": "records",
    "DivergenceError": "simulation.divergence",
    "Dropout": "schedule",
    "Evaluator": "engine.evaluation",
    "EventSchedule": "records",
    "ExecutionPlan": "records",
    "Federation": "data",
    "History": "records",
    "Model": "models",
    "Partition": "data",
    "Requirements": "records",
    "Rule": "records",
    "Run": "planning.run",
    "SettingError": "errors",
    "Source": "data",
    "Specification": "specifications",
    "Availability": "schedule",
    "asynchronous": "schedule",
    "client_work": "clients",
    "decomposed": "simulation.error_decomposition",
    "decomposed_four_ways": "simulation.error_decomposition",
    "drawn_staleness": "schedule",
    "duration_trace": "schedule",
    "federate": "data",
    "in_waves": "schedule",
    "open_arrivals": "schedule",
    "read_availability": "schedule",
    "server_gradient": "models",
    "simulate": "simulation.simulate",
    "simulate_many": "simulation.simulate_many",
    "specification": "specifications",
    "specify": "specifications",
    "synchronous": "schedule",
    "trip_by_trip": "schedule",
}
_ROOMS = (
    "clients",
    "data",
    "diagnostics",
    "engine",
    "models",
    "plots",
    "records",
    "rules",
    "schedule",
)

__all__ = sorted([*_HOME, "availability", "data", "delays", "diagnostics", "models", "plots", "rules"])


def __getattr__(name: str):
    if name in _HOME:
        return getattr(importlib.import_module(f"jafl.{_HOME[name]}"), name)
    if name in ("availability", "delays"):
        return importlib.import_module(f"jafl.schedule.{name}")
    if name in _ROOMS:
        return importlib.import_module(f"jafl.{name}")
    raise AttributeError(f"module 'jafl' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
