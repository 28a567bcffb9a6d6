"""The diagnostics of a run's schedule, and the run's pictures."""

import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jafl import diagnostics, plots
from jafl.config.experiment import Experiment
from jafl.planning.device_memory import bytes_of
from jafl.records import Arrival, EventSchedule, History, Rule


def expected_weights(experiment: Experiment) -> np.ndarray | None:
    """[J] float64: the weight that the rule gives each trip; None if the schedule alone does not decide it.

    Taken from the rule's column ``weight``, or from folding each trip into an empty buffer.
    """
    schedule, rule = experiment.schedule, experiment.rule.build()
    column = rule.columns(schedule).get("weight")
    if column is not None:
        return np.asarray(column, np.float64)
    if rule.columns(schedule) or rule.remembers:
        return None
    return _folded_weights(rule, schedule, experiment.federation.num_examples)


def _folded_weights(rule: Rule, schedule: EventSchedule, num_examples: np.ndarray) -> np.ndarray | None:
    """The weights that ``fold`` reports for trips whose update is zero; None if it reports none."""
    zeros = {"parameter": jnp.zeros(1)}

    def weight(client, staleness, examples):
        arrival = Arrival(
            zeros, zeros, client, staleness, examples, examples, jnp.int32(1), jnp.float32(0), {}
        )
        empty = rule.begin(rule.init(zeros, schedule.num_clients), zeros)
        return rule.fold(empty, arrival)[1].get("weight")

    columns = (schedule.client, schedule.staleness, num_examples[schedule.client])
    if jax.eval_shape(weight, *(jax.ShapeDtypeStruct((), np.int32),) * 3) is None:
        return None
    return np.asarray(jax.jit(jax.vmap(weight))(*columns), np.float64)


def diagnose(experiment: Experiment, weights: np.ndarray | None) -> dict[str, Any]:
    """The content of ``diagnostics.json``; ``weights`` [J]: those of the trips, for the clients' influence."""
    schedule, rule = experiment.schedule, experiment.rule.build()
    size = int(bytes_of(experiment.params))
    per_value = {"full": 1.0, "bfloat16": 0.5, "int8": 0.25}[rule.memory_precision]
    costs = diagnostics.costs(
        schedule,
        size,
        int(size * per_value) if rule.remembers else 0,
        snapshots=experiment.preparation.plan.num_slots,
    )
    return diagnostics.summary(
        schedule,
        num_examples=experiment.federation.num_examples,
        label_counts=experiment.federation.label_counts(),
        weights=kinds_of_weights(experiment, weights),
        groups=diagnostics.groups_by_speed(schedule),
        costs=costs,
    )


def kinds_of_weights(experiment: Experiment, weights: np.ndarray | None) -> dict[str, np.ndarray]:
    """{name: [J]}: the weights as given, and before or after normalization within the buffer."""
    if weights is None:
        return {}
    schedule = experiment.schedule
    if experiment.settings.algorithm == "fedstaleweight":
        return {"before normalization": diagnostics.equation_8_weights(schedule), "as given": weights}
    kinds = {"as given": weights}
    several = np.any(np.diff(schedule.step_offsets) > 1)
    if several and not experiment.rule.build().remembers and np.all(weights > 0):
        kinds["normalized in each step"] = diagnostics.normalized_within_steps(schedule, weights)
    return kinds


def draw_schedule(path: pathlib.Path, experiment: Experiment, weights: np.ndarray | None) -> None:
    """Draws a schedule that ran, or would run, to its end."""
    schedule, federation = experiment.schedule, experiment.federation
    name, sizes, labels = experiment.settings.algorithm, federation.num_examples, federation.label_counts()
    weighted = None
    if weights is not None and np.all(weights >= 0) and np.any(weights > 0):
        weighted = {"as weighted": weights}
    kinds = kinds_of_weights(experiment, weights)
    figures = {
        "label_split": plots.label_split(labels),
        "staleness": plots.staleness({name: schedule}),
        "staleness_over_time": plots.staleness_over_time(schedule, diagnostics.groups_by_speed(schedule)),
        "in_flight": plots.in_flight({name: schedule}),
        "timeline": plots.timeline(schedule),
        "participation": plots.participation(schedule, diagnostics.influence(schedule, weights), sizes),
        "participating_examples": plots.participating_examples(schedule, sizes),
        "labels_seen": plots.labels_seen(schedule, labels, weighted),
    }
    if kinds:
        figures["influence"] = plots.influence(schedule, kinds)
    _save(figures, path)


def draw_history(path: pathlib.Path, experiment: Experiment, history: History) -> None:
    """Draws what was measured, and the schedule if it ran to its end."""
    curves = {experiment.settings.algorithm: [history.evaluations]}
    figures = {"accuracy": plots.accuracy_panels(curves, target=experiment.settings.target_accuracy)}
    if plots.report_names(history.evaluations):
        figures["reports"] = plots.reports(history.evaluations)
    if len(history.weights):
        figures["weights"] = plots.weights(history.weights)
    _save(figures, path)
    if history.server_steps == experiment.schedule.num_steps:
        draw_schedule(path, experiment, history.weights)
    else:
        plots.save(plots.label_split(experiment.federation.label_counts()), path / "label_split.png")


def _save(figures: Mapping[str, Any], path: pathlib.Path) -> None:
    for name, figure in figures.items():
        plots.save(figure, path / f"{name}.png")
