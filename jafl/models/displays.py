"""How a model shows itself: one line of text, and in a notebook a table with a drawing of what it is made of."""

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import numpy as np

from jafl.base import display
from jafl.models.network import Network

# Fields that are shown in words of their own, or are too large to be shown.
_SHOWN_APART = ("module", "loss_per_example", "frozen", "initial", "task", "metrics")


def line(model: Any) -> str:
    """A model in one line: its module, its task, its loss, and every field that is not as it is by default."""
    facts = [f"{name}={value}" for name, value in _changed(model).items()]
    loss = f"loss {callable_name(model.loss_per_example)}"
    return display.one_line("Model", module_line(model.module), model.task.name, loss, *facts)


def html(model: Any) -> str:
    """A model as a table, with the way of an example through it."""
    name = module_name(model.module)
    facts = {
        "module": name,
        **{field: display.number(value) for field, value in _fields(model.module).items()},
        "task": model.task.name,
        "loss": callable_name(model.loss_per_example),
        "metrics": ", ".join({**model.task.metrics, **model.metrics}) or "the loss alone",
        **{field.replace("_", " "): str(value) for field, value in _changed(model).items()},
    }
    for said, content in (
        ("parameters that are not trained", model.frozen),
        ("given to start from", model.initial),
    ):
        if content is not None:
            facts[said] = sum(int(np.size(leaf)) for leaf in jax.tree.leaves(content))
    steps = ["examples", name, "outputs", "loss"]
    if model.inputs is not None:
        steps.insert(1, "inputs")
    return display.card("Model", facts, display.flow(steps))


def module_line(module: Any) -> str:
    """``MLP(num_classes=10, hidden_sizes=[64])``: a module and its own fields, without the layers inside it."""
    fields = ", ".join(f"{name}={display.shortened(repr(value))}" for name, value in _fields(module).items())
    return f"{module_name(module)}({fields})" if fields else module_name(module)


def module_name(module: Any) -> str:
    """The name of its class; of a network that jafl has made of something else the name of that."""
    return module.name if isinstance(module, Network) else type(module).__name__


def callable_name(function: Any) -> str:
    """The name of a function; of another callable its text."""
    return str(getattr(function, "__name__", None) or display.shortened(repr(function)))


def _fields(module: Any) -> dict[str, Any]:
    """{name: value} of the fields of a Flax module that its user gives it; {} of other modules."""
    if not (isinstance(module, nn.Module) and dataclasses.is_dataclass(module)):
        return {}
    names = [field.name for field in dataclasses.fields(module) if field.name not in ("parent", "name")]
    return {name: _brief(getattr(module, name, None)) for name in names}


def _brief(value: Any) -> Any:
    """A field's value; of a module or a function inside it the name alone."""
    if isinstance(value, nn.Module):
        return _Name(type(value).__name__)
    if isinstance(value, (list, tuple)):
        return _Name("[" + ", ".join(str(_brief(each)) for each in value) + "]")
    return _Name(callable_name(value)) if callable(value) else value


class _Name(str):
    """A text that stands for something else: its ``repr`` has no quotes."""

    def __repr__(self) -> str:
        return str(self)


def _changed(model: Any) -> dict[str, Any]:
    """{name: value} of the fields that are not as they are by default."""
    return {
        field.name: getattr(model, field.name)
        for field in dataclasses.fields(model)
        if field.name not in _SHOWN_APART
        and field.default is not dataclasses.MISSING
        and getattr(model, field.name) != field.default
    }
