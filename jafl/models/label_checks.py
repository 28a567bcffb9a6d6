"""Whether the labels of a federation are those that a task reads, said on the host before anything runs."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from jafl.base.errors import SettingError, require
from jafl.base.given_arrays import OF_ROWS
from jafl.models.tasks import TASKS, Task, TokenSums, one_output, output_names


def check_values(task: Task, federation: Any) -> None:
    """Refuses labels whose values a task cannot train on or measure by.

    Where a task reads several labels of an example, each is 0 or 1; where it reads tokens, some of each client and
    of each split are no padding.
    """
    loss = task.loss_per_example
    names = ("y", "test_y", "validation_y", "server_y")
    for name, y in {name: getattr(federation, name) for name in names}.items():
        if y is None:
            continue
        if task.labels in ("flag", "flags"):
            values = np.asarray(y)
            others = values[(values != 0) & (values != 1)]
            allowed = f"0 and 1 for each label of an example, for the task {task.name}"
            remedy = "Give whether each label is there."
            if task.labels == "flag":
                allowed = f"0 or 1, for the task {task.name}"
                remedy = (
                    "Labels -1 and 1 become such with y > 0; several classes are for the task classification."
                )
            require(not others.size, f"a label of {name}", next(iter(others.tolist()), None), allowed, remedy)
        if isinstance(loss, TokenSums):
            there = np.any(loss.there(np.asarray(y)), axis=tuple(range(1, y.ndim)))
            allowed = f"tokens that are not all padding, for the task {task.name}"
            remedy = "Give the label of padded places: jafl.models.language_modelling(padding=...)."
            nothing = f"padding only ({loss.padding} or negative)"
            require(np.any(there), name, nothing, allowed, remedy)
            if name == "y":
                offsets, indices = federation.partition.offsets, federation.partition.indices
                held = np.add.reduceat(there[indices], offsets[:-1], dtype=np.int64)
                client = int(np.argmin(held))
                remedy = "Leave clients without a token out."
                require(held.min() > 0, f"y of client {client}", nothing, allowed, remedy)


def _read_output(task: Task, outputs: Any, output: str | int | None) -> Any:
    """The output that a task reads; SettingError where there are several, and it is not said which."""
    read = one_output(outputs, output)
    names = output_names(read)
    built_in = any(task.loss_per_example == each.loss_per_example for each in TASKS.values())
    if names and (built_in or isinstance(task.loss_per_example, TokenSums)):
        raise SettingError(
            f"The model returns {len(names)} outputs, {names}, but the task {task.name} reads one array. Say which "
            f"one: jafl.Model(module, output={names[0]!r}); or give a task that reads them all: "
            "task=jafl.models.Task(name, loss_per_example, metrics).",
            setting="output",
        )
    return read


def check_labels(task: Task, y: Any, outputs: Any, num_classes: int, output: str | int | None = None) -> None:
    """Refuses labels that a task does not read; says which task reads such labels.

    y: [E, ...], and the model's outputs for a batch, or their shapes and dtypes. num_classes: of the labels.
    """
    whole, axes = jnp.issubdtype(y.dtype, jnp.integer), len(y.shape)
    outputs = _read_output(task, outputs, output)
    wanted = {
        "classes": (whole and axes == 1, "whole numbers, one for each example"),
        "tokens": (
            whole and axes >= 2,
            "whole numbers, one for each token of an example: [examples, tokens]",
        ),
        "flag": (
            axes == 1 or (axes == 2 and y.shape[1] == 1),
            "0 or 1, or bool, one for each example: [examples] or [examples, 1]",
        ),
        "flags": (axes >= 2, "0 and 1 for each label of an example: [examples, labels]"),
    }
    fits, allowed = wanted.get(task.labels, (True, ""))
    remedy = f"Which task are they for? jafl.Model(module, task=...) takes {', '.join(TASKS)}."
    if task.labels == "classes" and axes == 1:
        remedy += " Labels that are whole numbers become such with y.astype(np.int32)."
    if task.labels == "classes" and axes == 2:
        remedy += f" {OF_ROWS.format(name='y')}"
    if not fits:
        raise SettingError(
            f"y is {y.dtype} of the shape {tuple(y.shape)}, but must be {allowed}, for the task {task.name}. "
            f"{remedy}",
            setting="task",
        )
    if task.labels in ("classes", "tokens") and hasattr(outputs, "ndim"):
        plain = task.loss_per_example == TASKS["classification"].loss_per_example
        if outputs.ndim < 2 or (plain and outputs.ndim > 2):
            raise SettingError(
                f"The model returns the shape {outputs.shape} for 2 examples, but must return scores for each class"
                f"{': [examples, classes]' if plain else ''}.",
                setting="model",
            )
        classes = int(outputs.shape[-1])
        require(
            num_classes <= classes,
            "the model's number of classes",
            classes,
            f"at least the data's, {num_classes} (labels 0 to {num_classes - 1})",
            'One logit for labels 0 and 1 is the task binary: jafl.Model(module, task="binary").'
            if classes == 1 and num_classes == 2
            else "",
        )
