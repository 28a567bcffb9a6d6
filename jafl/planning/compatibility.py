"""Whether the parts of an experiment fit each other, said on the host, before anything runs."""

from typing import Any

import jax
import numpy as np

from jafl.clients import ClientWork
from jafl.data import Federation
from jafl.engine.loop import Carry
from jafl.errors import SettingError, require
from jafl.models import Model
from jafl.precision import check_precision
from jafl.records import EventSchedule, Params, Rule
from jafl.specifications import Specification


def check_types(federation: Any, client_work: Any, rule: Any) -> None:
    """Raises SettingError where an argument is not of the kind that it must be."""
    remedy = "Make one with jafl.federate(source, partition) or jafl.Federation.from_arrays."
    require(isinstance(federation, Federation), "federation", federation, "a jafl.Federation", remedy)
    fits = isinstance(client_work, (Specification, ClientWork))
    require(fits, "client_work", client_work, "what jafl.client_work returns")
    fits = isinstance(rule, (Specification, Rule))
    require(fits, "rule", rule, "a rule", "Call its factory: jafl.rules.fedbuff().")


def check_fit(
    schedule: EventSchedule, federation: Federation, rule: Rule, model: Model, params: Params
) -> None:
    """Raises SettingError where schedule, federation, rule and model do not fit each other."""
    require(
        schedule.num_clients == federation.num_clients,
        "the schedule's num_clients",
        schedule.num_clients,
        f"the federation's number of clients, {federation.num_clients}",
    )
    _check_steps(schedule, rule)
    classes = _check_model(federation, model, params)
    require(
        federation.num_classes <= classes,
        "the model's number of classes",
        classes,
        f"at least the data's, {federation.num_classes} (labels 0 to {federation.num_classes - 1})",
    )


def check_model_precision(model: Model, platform: str) -> None:
    """Raises SettingError where the devices of a platform lack the model's ``matmul_precision``."""
    here = jax.local_devices()[0]
    known = getattr(here, "compute_capability", None) if here.platform == platform else None
    check_precision(model.matmul_precision, platform, known)


def _check_steps(schedule: EventSchedule, rule: Rule) -> None:
    """Raises SettingError unless every server step applies as many trips as the rule needs."""
    sizes = np.diff(schedule.step_offsets)
    if rule.initial_round:
        require(
            sizes[0] == schedule.num_clients,
            "initial_round",
            False,
            "True for this rule: every client trains at the initial model before the first server step",
        )
        first = np.unique(schedule.client[: sizes[0]]).size
        allowed = f"all {schedule.num_clients}, once each, for this rule"
        require(first == sizes[0], "the number of clients in the initial round", first, allowed)
        sizes = sizes[1:]
    require(
        rule.buffer_size is None or np.all(sizes == rule.buffer_size),
        "buffer_size",
        int(sizes[sizes != rule.buffer_size][0]) if np.any(sizes != rule.buffer_size) else None,
        f"{rule.buffer_size}, the only number of trips per server step that this rule is defined for",
    )
    require(
        np.all(sizes >= 1), "the smallest number of trips per server step", int(sizes.min()), "at least 1"
    )


def _check_model(federation: Federation, model: Model, params: Params) -> int:
    """The model's number of classes; raises SettingError if it cannot be applied to the federation's examples."""
    x = jax.ShapeDtypeStruct((2, *federation.x.shape[1:]), federation.x.dtype)
    y = jax.ShapeDtypeStruct((2,), federation.y.dtype)
    try:
        outputs, losses = jax.eval_shape(model.apply, params, x), jax.eval_shape(model.losses, params, x, y)
        shapes = (getattr(outputs, "shape", None), getattr(losses, "shape", None))
    except Exception as error:
        raise SettingError(
            f"The model {type(model.module).__name__} cannot be applied to the parameters and examples of shape "
            f"{x.shape[1:]} ({type(error).__name__}: {str(error).strip().splitlines()[0]}). Make the parameters with "
            "its init, on examples like the federation's.",
            setting="model",
        ) from error
    require(
        shapes[0] is not None and shapes[1] == (2,),
        "shapes of the model's outputs and losses for 2 examples",
        shapes,
        "(2, ...) and (2,)",
        "The loss must return one number per example, not their mean.",
    )
    return int(outputs.shape[-1])


def check_reports(carry: Carry) -> None:
    """Raises SettingError for a report of a rule whose name is taken, or of a trip that is not a number."""
    taken = {
        "server_step",
        "client_trips",
        "time",
        "train_loss",
        *set(carry.trip_reports) & set(carry.step_reports),
    }
    for name in (*carry.trip_reports, *carry.step_reports):
        free = name not in taken and not name.startswith(("test_", "validation_", "train_"))
        require(free, "the name of a rule's report", name, "one that nothing else bears")
    for name, rows in carry.trip_reports.items():
        require(rows.ndim == 1, f"the shape of the trips' report {name!r}", rows.shape[1:], "(), one number")
