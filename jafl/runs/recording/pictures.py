"""The diagnostics of a run's schedule, and the run's pictures."""

import functools
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from jafl import diagnostics, plots
from jafl.base.array_files import read_archive
from jafl.base.errors import SettingError, choose
from jafl.base.extras import MissingLibraryError, is_installed, require_library
from jafl.base.paths import write_whole
from jafl.clients.corrections import CORRECTIONS, exchanged_bytes
from jafl.config.experiment import Experiment
from jafl.data import Federation
from jafl.engine.plan.device_memory import count_bytes
from jafl.records import Arrival, EventSchedule, History, Rule
from jafl.records.histories import weights_given
from jafl.runs.directory.reader import read_schedule
from jafl.runs.recording import privacy
from jafl.specifications import as_specification

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Figures = dict[str, Callable[[], "Figure"]]
Evaluations = Sequence[Mapping[str, Any]]

# Which pictures are drawn. Those of a comparison or a sweep come in place of its runs' own, unless all are asked for.
CHOICES = ("all", "few", "none")
FEW = (
    "accuracy",
    "label_split",
    "timeline",
    "participation",
    "staleness",
    "epsilon_per_client",
    "signal_and_noise",
)


def expected_weights(experiment: Experiment) -> np.ndarray | None:
    """[J] float64: the weight that the rule gives each trip; None if the schedule alone does not decide it.

    Taken from the rule's column ``weight``, or from folding each trip into an empty buffer.
    """
    schedule, rule = experiment.schedule, experiment.rule.build()
    column = rule.columns(schedule).get("weight")
    if column is not None:
        return np.asarray(column, np.float64)
    unknown = rule.correction is not None and rule.correction not in CORRECTIONS
    if rule.columns(schedule) or rule.remembers or unknown:
        return None
    return _folded_weights(rule, schedule, experiment.federation.num_examples)


def _folded_weights(rule: Rule, schedule: EventSchedule, num_examples: np.ndarray) -> np.ndarray | None:
    """The weights that ``fold`` reports for trips whose update is zero; None if it reports none."""
    zeros = {"parameter": jnp.zeros(1)}

    def weight(client, staleness, examples):
        arrival = Arrival(
            zeros, zeros, client, staleness, examples, examples, jnp.int32(1), jnp.float32(0), {}
        )
        # What clients send with one of the package's corrections.
        arrival = arrival._replace(sent={"control": zeros} if rule.correction else None)
        empty = rule.begin(rule.init(zeros, schedule.num_clients), zeros)
        return rule.fold(empty, arrival)[1].get("weight")

    columns = (schedule.client, schedule.staleness, num_examples[schedule.client])
    if jax.eval_shape(weight, *(jax.ShapeDtypeStruct((), np.int32),) * 3) is None:
        return None
    return np.asarray(jax.jit(jax.vmap(weight))(*columns), np.float64)


def diagnose(experiment: Experiment, weights: np.ndarray | None) -> dict[str, Any]:
    """The content of ``diagnostics.json``; ``weights`` [J]: those of the trips, for the clients' influence."""
    schedule, rule = experiment.schedule, experiment.rule.build()
    size = int(count_bytes(experiment.params))
    per_value = {"full": 1.0, "bfloat16": 0.5, "int8": 0.25}[rule.memory_precision]
    work = as_specification(experiment.preparation.run.client_work).build()
    kept = work.state_shapes(experiment.params)
    downloaded, uploaded = exchanged_bytes(rule, work, experiment.params, schedule.num_clients)
    costs = diagnostics.costs(
        schedule,
        size,
        int(size * per_value) if rule.remembers else 0,
        client_state_bytes=0 if kept is None else int(count_bytes(kept)),
        update_bytes=uploaded,
        download_bytes=downloaded,
        snapshots=experiment.preparation.plan.num_slots,
    )
    numbers = diagnostics.summary(
        schedule,
        num_examples=experiment.federation.num_examples,
        label_counts=label_counts(experiment.federation),
        weights=kinds_of_weights(experiment, weights),
        groups=diagnostics.groups_by_speed(schedule),
        costs=costs,
    )
    return numbers | privacy.block(experiment)


def kinds_of_weights(experiment: Experiment, weights: np.ndarray | None) -> dict[str, np.ndarray]:
    """{name: [J]}: the weights as given, and before or after normalization within the buffer."""
    if weights is None:
        return {}
    schedule = experiment.schedule
    if experiment.settings.algorithm_name == "fedstaleweight":
        return {"before normalization": diagnostics.equation_8_weights(schedule), "as given": weights}
    kinds = {"as given": weights}
    several = np.any(np.diff(schedule.step_offsets) > 1)
    if several and not experiment.rule.build().remembers and np.all(weights > 0):
        kinds["normalized in each step"] = diagnostics.normalized_within_steps(schedule, weights)
    return kinds


def draw_schedule(
    path: pathlib.Path, experiment: Experiment, weights: np.ndarray | None, pictures: str = "all"
) -> list[str]:
    """Draws a schedule that ran, or would run, to its end; ``pictures`` and what it returns as in ``draw``."""
    return draw(path, _schedule_figures(experiment, weights) | privacy.figures(experiment), pictures)


def draw_history(
    path: pathlib.Path, experiment: Experiment, history: History, pictures: str = "all"
) -> list[str]:
    """Draws what was measured, and the schedule if it ran to its end; ``pictures`` and the list as in ``draw``."""
    whole = history.server_steps == experiment.schedule.num_steps
    figures = _run_figures(experiment, history.evaluations, history.weights, whole)
    return draw(path, figures | privacy.figures(experiment, history.step_reports), pictures)


def draw_missing(
    path: pathlib.Path, experiment: Experiment, evaluations: Evaluations, pictures: str
) -> list[str]:
    """Draws those ``pictures`` of a run that is over which its directory lacks, from its files; as ``draw``."""
    if pictures == "none":
        return []
    weights = read_weights(path, experiment.schedule)
    whole = len(weights) == experiment.schedule.num_trips
    figures = _run_figures(experiment, evaluations, weights, whole)
    figures |= privacy.figures(experiment, _read_reports(path)[1])
    return draw(path, {n: f for n, f in figures.items() if not (path / f"{n}.png").is_file()}, pictures)


def read_weights(path: pathlib.Path, schedule: EventSchedule) -> np.ndarray:
    """``History.weights`` of a run that is over, from ``reports.npz``; SettingError if that cannot be read."""
    trips, steps = _read_reports(path)
    try:
        return weights_given(schedule, trips, steps)
    except (ValueError, KeyError) as error:
        raise SettingError(f"{path / 'reports.npz'} cannot be read: {error}.") from error


def _read_reports(path: pathlib.Path) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The reports of trips and of server steps of a run that is over; SettingError if they cannot be read."""
    try:
        arrays = read_archive(path / "reports.npz")
    except (OSError, ValueError, KeyError) as error:
        raise SettingError(f"{path / 'reports.npz'} cannot be read: {error}.") from error
    trips, steps = ({n[5:]: arrays[n] for n in arrays if n[:5] == kind} for kind in ("trip_", "step_"))
    return trips, steps


def _run_figures(
    experiment: Experiment, evaluations: Evaluations, weights: np.ndarray, whole: bool
) -> Figures:
    """{name: a function that makes the figure} of a run, of its schedule only if that ran to its end (``whole``)."""
    curves = {experiment.settings.algorithm_name: [evaluations]}
    target = experiment.settings.target_accuracy
    figures: Figures = {"accuracy": lambda: learning_curves(curves, target)}
    if plots.reports_change(evaluations):
        figures["reports"] = lambda: plots.reports(evaluations)
    if not plots.is_constant(weights):
        figures["weights"] = lambda: plots.weights(weights)
    if whole:
        return figures | _schedule_figures(experiment, weights)
    return figures | label_split(experiment.federation)


def learning_curves(runs: Mapping[str, Sequence[Evaluations]], target: float | None) -> "Figure":
    """Test accuracies; losses of runs that measure none, to which the target, an accuracy, says nothing."""
    rows = [row for several in runs.values() for evaluations in several for row in evaluations]
    measured = any(row.get("test_accuracy") is not None for row in rows)
    return plots.accuracy_panels(runs, target=target if measured else None)


def label_counts(federation: Federation) -> np.ndarray | None:
    """``Federation.label_counts``; None of floats, as of regression, which are no labels."""
    return federation.label_counts() if federation.num_classes else None


def label_split(federation: Federation) -> Figures:
    """Who holds which labels, where there are labels."""
    labels = label_counts(federation)
    counted = "examples" if federation.y.ndim == 1 else "labels"
    return {} if labels is None else {"label_split": lambda: plots.label_split(labels, counted)}


def which_pictures(asked: str | bool | None, show: Callable[[str], None]) -> str:
    """Which pictures are drawn, one of ``CHOICES``; ``asked`` as in ``Options``."""
    if asked is None:
        if is_installed("matplotlib"):
            return "few"
        show(f"No pictures: {MissingLibraryError('matplotlib')}")
        return "none"
    named = {True: "all", False: "none"}.get(asked, asked) if isinstance(asked, bool) else asked
    which: str = choose("pictures", str(named), {name: name for name in CHOICES})
    if which != "none":
        require_library("matplotlib")
    return which


def draw(path: pathlib.Path, figures: Figures, pictures: str) -> list[str]:
    """Draws pictures ("all", "few": those of ``FEW``, "none"), {name: what makes the figure}, in ``path``.

    Returns a sentence for each that could not be drawn: a picture is not worth a run, and the others are drawn.
    OSError if a file cannot be written.
    """
    failures = []
    for name, figure in figures.items():
        if pictures == "all" or (pictures == "few" and name in FEW):
            try:
                content = plots.png(figure())
            except OSError:
                raise
            except Exception as error:  # whatever a library that draws may raise
                failures.append(f"{path / name}.png was not drawn: {type(error).__name__}: {error}")
            else:
                write_whole(path / f"{name}.png", functools.partial(_write, content))
    return failures


def _write(content: bytes, file: pathlib.Path) -> None:
    file.write_bytes(content)


def _schedule_figures(experiment: Experiment, weights: np.ndarray | None) -> Figures:
    """{name: a function that makes the figure} of a schedule, without figures of constants."""
    schedule, federation = experiment.schedule, experiment.federation
    name, sizes = experiment.settings.algorithm_name, federation.num_examples
    labels = label_counts(federation)
    weighted = None
    if weights is not None and np.all(weights >= 0) and np.any(weights > 0):
        weighted = {"as weighted": weights}
    # Where all trips count the same, influence is participation.
    kinds = {n: of for n, of in kinds_of_weights(experiment, weights).items() if not plots.is_constant(of)}
    figures: Figures = {
        **label_split(federation),
        "timeline": lambda: plots.timeline(schedule),
        "participation": lambda: plots.participation(
            schedule, diagnostics.influence(schedule, weights), sizes
        ),
    }
    if labels is not None:
        figures["labels_seen"] = lambda: plots.labels_seen(schedule, labels, weighted)
    figures |= _staleness_figures(name, schedule)
    if schedule.discarded_client.size and not plots.is_constant(sizes):  # else all that start are applied
        figures["participating_examples"] = lambda: plots.participating_examples(schedule, sizes)
    if kinds:
        figures["influence"] = lambda: plots.influence(schedule, kinds)
    return figures


def _staleness_figures(name: str, schedule: EventSchedule) -> Figures:
    """The figures that need nothing but a schedule, except its timeline; none of constants."""
    figures: Figures = {}
    if not plots.is_constant(schedule.staleness):
        groups = diagnostics.groups_by_speed(schedule)
        figures["staleness"] = lambda: plots.staleness({name: schedule})
        figures["staleness_over_time"] = lambda: plots.staleness_over_time(schedule, groups)
    if plots.in_flight_changes(schedule):
        figures["in_flight"] = lambda: plots.in_flight({name: schedule})
    return figures


def figures_from_files(path: pathlib.Path, name: str) -> Figures:
    """{name: a function that makes the figure} of the schedule of a run, from the files in its directory alone.

    The labels that clients hold are in none of them. Raises SettingError if ``schedule.npz`` cannot be read.
    """
    schedule = read_schedule(path)
    figures: Figures = {"timeline": lambda: plots.timeline(schedule), **_staleness_figures(name, schedule)}
    try:
        weights, sizes = read_weights(path, schedule), np.diff(_array(path / "partition.npz", "offsets"))
    except SettingError:  # a dry run, or one that was stopped
        return figures
    if len(weights) == schedule.num_trips and len(sizes) == schedule.num_clients:
        shares = diagnostics.influence(schedule, weights)
        figures["participation"] = lambda: plots.participation(schedule, shares, sizes)
        if not plots.is_constant(weights):
            figures["influence"] = lambda: plots.influence(schedule, {"as given": weights})
            figures["weights"] = lambda: plots.weights(weights)
    return figures


def _array(file: pathlib.Path, name: str) -> np.ndarray:
    """An array of a file of arrays; SettingError if it cannot be read."""
    try:
        array: np.ndarray = read_archive(file)[name]
        return array
    except (OSError, ValueError, KeyError) as error:
        raise SettingError(f"{file} cannot be read: {error}.") from error


def compared_schedules(schedules: Mapping[str, EventSchedule]) -> Figures:
    """The pictures that compare schedules, without pictures of constants."""
    figures: Figures = {}
    if not all(plots.is_constant(schedule.staleness) for schedule in schedules.values()):
        figures["staleness"] = lambda: plots.staleness(schedules)
    if any(map(plots.in_flight_changes, schedules.values())):
        figures["in_flight"] = lambda: plots.in_flight(schedules)
    return figures
