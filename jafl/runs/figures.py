"""What a run leaves besides its numbers: diagnostics of its schedule, and pictures."""

import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jafl import diagnostics, plots
from jafl.config.experiment import Experiment
from jafl.planning.device_memory import bytes_of
from jafl.records import Arrival, EventSchedule, History, Rule


def expected_weights(experiment: Experiment) -> np.ndarray | None:
    """[J] float64: the weights that the rule gives each trip, as far as the schedule decides them; else None.

    From the rule's column of that name, or from folding a trip of each staleness into an empty buffer.
    """
    schedule, rule = experiment.schedule, experiment.rule.build()
    column = rule.columns(schedule).get("weight")
    if column is not None:
        return np.asarray(column, np.float64)
    if rule.columns(schedule) or rule.remembers:
        return None
    return _folded_weights(rule, schedule, experiment.federation.num_examples)


def _folded_weights(rule: Rule, schedule: EventSchedule, num_examples: np.ndarray) -> np.ndarray | None:
    """What ``fold`` reports as the weight of trips that bring no update."""
    nothing = {"parameter": jnp.zeros(1)}

    def weight(client, staleness, examples):
        arrival = Arrival(
            nothing, nothing, client, staleness, examples, examples, jnp.int32(1), jnp.float32(0), {}
        )
        empty = rule.begin(rule.init(nothing, schedule.num_clients), nothing)
        return rule.fold(empty, arrival)[1].get("weight")

    columns = (schedule.client, schedule.staleness, num_examples[schedule.client])
    if jax.eval_shape(weight, *(jax.ShapeDtypeStruct((), np.int32),) * 3) is None:
        return None
    return np.asarray(jax.jit(jax.vmap(weight))(*columns), np.float64)


def diagnose(experiment: Experiment, weights: np.ndarray | None) -> dict[str, Any]:
    """``diagnostics.json``: what the schedule tells, with the influence that ``weights`` [J] give."""
    schedule, rule = experiment.schedule, experiment.rule.build()
    size = int(bytes_of(experiment.params))
    per_value = {"full": 1.0, "bfloat16": 0.5, "int8": 0.25}[rule.memory_precision]
    costs = diagnostics.costs(
        schedule,
        size,
        int(size * per_value) if rule.remembers else 0,
        snapshots=experiment.plan.num_slots,
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
    """The pictures of a schedule that ran, or would run, to its end."""
    schedule, federation = experiment.schedule, experiment.federation
    name, sizes, labels = experiment.settings.algorithm, federation.num_examples, federation.label_counts()
    fits = weights is not None and bool(np.all(weights >= 0)) and bool(np.any(weights > 0))
    weighted = {"as weighted": weights} if weights is not None and fits else None
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
    for file, figure in figures.items():
        plots.save(figure, path / f"{file}.png")


def draw_history(path: pathlib.Path, experiment: Experiment, history: History) -> None:
    """The pictures of what was measured, and of the schedule if it ran to its end."""
    curves = {experiment.settings.algorithm: [history.evaluations]}
    figures = {"accuracy": plots.accuracy_panels(curves, target=experiment.settings.target_accuracy)}
    if plots.report_names(history.evaluations):
        figures["reports"] = plots.reports(history.evaluations)
    if len(history.weights):
        figures["weights"] = plots.weights(history.weights)
    for file, figure in figures.items():
        plots.save(figure, path / f"{file}.png")
    if history.server_steps == experiment.schedule.num_steps:
        draw_schedule(path, experiment, history.weights)
    else:
        plots.save(plots.label_split(experiment.federation.label_counts()), path / "label_split.png")
