"""jafl: a simulator of asynchronous federated learning that runs a whole experiment as one JAX program.

A simulation has five ingredients, and a function that puts them together:

    federation   who holds which examples             ``jafl.data``, ``jafl.federate``, ``jafl.Federation``
    schedule     who trains when, and from what       ``jafl.asynchronous``, ``jafl.synchronous``, ``jafl.delays``
    model        a Flax module with a loss            ``jafl.models``, ``jafl.Model``
    client work  what a client does in one trip       ``jafl.client_work``
    rule         how the server uses what arrives     ``jafl.rules``, ``jafl.Rule``

    history = jafl.simulate(schedule, federation, work, rule, params, key)

``jafl.plots`` draws histories and schedules; ``jafl.diagnostics`` says what a schedule means before anything is
trained, ``jafl.privacy`` what a run tells about one client. ``jafl.specify`` defers a call so that another number in
it does not compile again. Bad arguments raise ``jafl.SettingError``, which says what to do. ``help(jafl.NAME)``
explains each public name.

For experiments that are described by settings: ``jafl.config`` makes them, ``jafl.runs`` runs them and leaves run
directories, ``jafl.sweeps`` crosses settings; ``run.py`` is their command line. In the repository, README.md has ten
lines that train a model, docs/ explains everything else, and docs/layers.md draws the packages.

The public names load on first use, so that ``import jafl`` stays quick.
"""

import importlib
import time

# ``time.perf_counter()`` where a command of this process begins. The system's own record will not do: a shell that
# ends with ``exec``, as ``bash -c "pip install ...; python run.py"`` does, began long before the command.
_BEGAN = time.perf_counter()

__version__ = "0.1.0"

_HOME = {
    "Arrival": "records",
    "Delay": "schedule",
    "Checkpoints": "simulation.checkpoints",
    "ClientMemoryRequest": "records",
    "ClientStateRequest": "clients",
    "DivergenceError": "simulation.divergence",
    "Dropout": "schedule",
    "Evaluator": "engine.evaluation",
    "EventSchedule": "records",
    "ExecutionPlan": "records",
    "Federation": "data",
    "History": "records",
    "Interrupted": "simulation.interruption",
    "Model": "models",
    "NotLearningWarning": "simulation.not_learning",
    "Partition": "data",
    "Requirements": "records",
    "Rule": "records",
    "Run": "engine.plan.run",
    "SettingError": "base.errors",
    "Source": "data",
    "Specification": "specifications",
    "Availability": "schedule",
    "asynchronous": "schedule",
    "client_work": "clients",
    "compass": "schedule",
    "compilation_cache": "base.compilation_cache",
    "decomposed": "rules.decomposition",
    "decomposed_four_ways": "rules.decomposition",
    "ditto": "clients",
    "drawn_staleness": "schedule",
    "duration_trace": "schedule",
    "federate": "data",
    "forecast": "ahead_of_time.forecast",
    "in_waves": "engine.plan.slots_and_waves",
    "lora": "models",
    "open_arrivals": "schedule",
    "polled": "schedule",
    "private": "privacy.private",
    "queued": "schedule",
    "read_availability": "schedule",
    "secure": "privacy.secure",
    "server_gradient": "models",
    "simulate": "simulation.simulate",
    "simulate_many": "simulation.simulate_many",
    "specification": "specifications",
    "specify": "specifications",
    "synchronous": "schedule",
    "tiered": "schedule",
    "trip_by_trip": "engine.plan.slots_and_waves",
}
_MODULES = {
    "availability": "schedule.availability",
    "compression": "clients.compression",
    "delays": "schedule.delays",
    "dropout": "schedule.dropout",
    **{name: name for name in ("data", "diagnostics", "models", "plots", "privacy", "rules", "traces")},
}
_ROOMS = ("clients", "config", "engine", "records", "runs", "schedule", "sweeps")

__all__ = sorted([*_HOME, *_MODULES])


def __getattr__(name: str):
    if name in _HOME:
        return getattr(importlib.import_module(f"jafl.{_HOME[name]}"), name)
    if name in _MODULES or name in _ROOMS:
        return importlib.import_module(f"jafl.{_MODULES.get(name, name)}")
    raise AttributeError(f"module 'jafl' has no attribute {name!r}. {_nearest(name)}".rstrip())


def _nearest(name: str) -> str:
    """A question with the public name that is most like ``name``, "" if none is."""
    from jafl.base.errors import did_you_mean

    return "" if name.startswith("_") else did_you_mean(name, __dir__())


def __dir__() -> list[str]:
    """The public names alone, so that a completion of ``jafl.`` lists nothing else."""
    return sorted(
        [*__all__, *_ROOMS, "__all__", "__doc__", "__file__", "__name__", "__path__", "__version__"]
    )
