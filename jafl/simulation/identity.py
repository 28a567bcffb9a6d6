"""What a run is, in names and texts: what a checkpoint says of its run beside the numbers that the run reads."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from jafl.base.contents import digest_of_held
from jafl.base.random_keys import options_of_random_numbers
from jafl.engine.evaluation import Evaluator
from jafl.engine.plan.preparation import Preparation
from jafl.engine.plan.run import Run
from jafl.specifications import Specification, as_specification

LONGEST = 2000  # characters of a value
NAMES_IF_SET = ("stop_when", "keep_best", "evaluate_clients")  # of a run, named where they are set


def identify(preparations: Sequence[Preparation]) -> dict[str, Any]:
    """{name: JSON value} on which the bits of the runs' results depend, without its arrays.

    Names are those of the arguments, as in ``client_work.batch_size``. Of several runs the first one is described,
    and of each other what is different.
    """
    # Only when it is called: ``jafl`` imports this package.
    from jafl import __version__

    device = jax.devices()[0]
    first, *others = (_describe_run(prepared) for prepared in preparations)
    differences = {
        f"run {number}, {name}": described.get(name)
        for number, described in enumerate(others, 1)
        for name in dict.fromkeys([*first, *described])
        if first.get(name) != described.get(name)
    }
    return {
        "version of jafl": __version__,
        "version of jax": jax.__version__,
        "device": f"{device.platform} ({device.device_kind})",
        "runs": len(preparations),
        **options_of_random_numbers(),
        **first,
        **differences,
    }


def _describe_run(prepared: Preparation) -> dict[str, Any]:
    """What one run is."""
    run: Run = prepared.run
    model = as_specification(run.client_work).build().model
    return {
        "matmul_precision": model.matmul_precision,
        "compute_dtype": model.compute_dtype,
        "form of the plan": prepared.plan.form,
        "model": _text(getattr(model, "module", model)),
        **_describe_held(run, model),
        **_describe_specification("client_work", run.client_work),
        **_describe_specification("rule", run.rule),
        **_describe_specification("server_optimizer", run.server_optimizer),
        **_describe_evaluators(run),
        # Only where they are set: runs without them are described as if there were none.
        **{name: value for name in NAMES_IF_SET if (value := getattr(run, name))},
    }


def _describe_held(run: Run, model: Any) -> dict[str, str]:
    """Digests of the numbers that functions of the user's own hold, which neither name nor text tells."""
    own = {
        "model": (getattr(model, "module", None), getattr(model, "loss_per_example", None)),
        "rule": run.rule,
        "server_optimizer": run.server_optimizer,
        "client_work": run.client_work,
    }
    described = {}
    for name, value in own.items():
        # A specification is described by its call, whose numbers are among those that the run reads.
        held = "" if isinstance(value, Specification) else digest_of_held(value)
        if held:
            described[f"digest of what functions of {name} hold"] = held
    return described


def _describe_evaluators(run: Run) -> dict[str, dict[str, Any]]:
    """What is measured: the columns of one history are of the same measurements before and after a checkpoint.

    Of functions their names alone: what they hold may change while they measure.
    """
    if run.evaluators is None:
        return {}
    texts = {
        name: each.digest
        if isinstance(each, Evaluator)
        else _text(each if hasattr(each, "__qualname__") else type(each))
        for name, each in run.evaluators.items()
    }
    return {"evaluators": texts}


def _describe_specification(name: str, value: Any) -> dict[str, Any]:
    """{name.argument: value}; ``name`` itself is the factory, or any other value."""
    if not isinstance(value, Specification):
        return {name: _text(value)}
    described = {name: _text(value.factory)}
    for argument, setting in value.arguments.items():
        # Described by its module already, under a name of its own.
        if name == "client_work" and argument == "model":
            continue
        described |= _describe_specification(f"{name}.{argument}", setting)
    return described


def _text(value: Any) -> Any:
    """Simple values as they are; functions by their names; others as text, without what is new in each process."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping | list | tuple) or not hasattr(value, "__qualname__"):
        if hasattr(value, "shape"):
            # Its numbers are among those that the run reads, and in their digest.
            return f"array {value.dtype} {value.shape}"  # its numbers are among those that the run reads
        # Addresses differ from process to process, and mean nothing.
        return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))[:LONGEST]
    return f"{value.__module__}.{value.__qualname__}"
