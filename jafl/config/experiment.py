"""From settings to the objects of an experiment: data, schedule, model, client work, rule, optimizer."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from jafl.base import stopwatch
from jafl.base.errors import SettingError, require, whole_number
from jafl.base.random_keys import threefry_key
from jafl.clients.corrections import exchanged_bytes
from jafl.config import foretold, grid
from jafl.config.builders.data import make_inputs, precision_of
from jafl.config.builders.schedule import make_schedule
from jafl.config.builders.training import in_settings, make_client_work, make_optimizer, make_rule
from jafl.config.calls import input_digests
from jafl.config.data_cache import DataCache
from jafl.config.resolution import refuse_unread, resolve
from jafl.config.settings import Settings
from jafl.data import Federation, Source
from jafl.engine.evaluation import Evaluator
from jafl.engine.plan.device_memory import Forecast
from jafl.engine.plan.preparation import Preparation, prepare
from jafl.engine.plan.run import Run
from jafl.models import Model, server_gradient
from jafl.models.freezing import paths
from jafl.records import EventSchedule, History
from jafl.records.stopping import StopWhen, better_values, check_measured
from jafl.rules.decomposition import decomposed
from jafl.simulation.run_state import DEFAULT_EVALUATIONS, default_evaluators
from jafl.simulation.simulate import simulate_prepared
from jafl.specifications import Specification, as_specification


@dataclasses.dataclass(frozen=True)
class Experiment:
    """One run made from settings, ready to train.

    Attributes:
      label: the arm's that it is a run of; where algorithms are compared, the algorithm.
      settings: with every default filled in.
      source: the data set.
      model: the model, with what it does to stored examples before it reads them.
      preparation: the run, its plan, its program and the memory that it will take.
      inputs: {what: SHA-256} of what it reads from files (``jafl.config.calls.input_digests``).
    """

    label: str
    settings: Settings
    source: Source
    model: Model
    preparation: Preparation
    inputs: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of its folder: ``<algorithm>-seed<seed>``, or the arm's label in place of the algorithm."""
        return grid.run_folder(self.label, self.settings.seed)

    @property
    def run(self) -> Run:
        """The arguments of ``jafl.simulate``; ``evaluators`` is None unless the settings ask for more than usual."""
        return self.preparation.run

    @property
    def schedule(self) -> EventSchedule:
        """The run's events."""
        return self.run.schedule

    @property
    def federation(self) -> Federation:
        """The clients' examples."""
        return self.run.federation

    @property
    def rule(self) -> Specification:
        """The algorithm."""
        return as_specification(self.run.rule)

    @property
    def params(self) -> Any:
        """The initial model."""
        return self.run.params

    @property
    def memory(self) -> Forecast:
        """The memory that it will take on each device."""
        return self.preparation.forecast

    def evaluators(self) -> dict[str, Any]:
        """What is measured at each evaluation."""
        evaluators: dict[str, Any] = default_evaluators(self.model, self.federation)
        if self.settings.train_accuracy:
            on_training = Evaluator(self.model, self.federation.x, self.federation.y)
            evaluators["train"] = lambda params: {"accuracy": on_training(params)["accuracy"]}
        return evaluators

    def simulate(self, *, evaluators: dict[str, Any] | None = None, **options: Any) -> History:
        """Trains it.

        Args:
          evaluators: as for ``jafl.simulate``. Default: what the settings ask for.
          options: keyword arguments of ``jafl.simulate`` that say what to report, what to keep and when to stop.
        """
        evaluators = self.evaluators() if evaluators is None else evaluators
        prepared = self.preparation.with_run(evaluators=evaluators)
        return simulate_prepared(prepared, **options)


def make_experiments(
    settings: Settings, *, tell: Callable[[str], None] = lambda text: None
) -> list[Experiment]:
    """One experiment for each algorithm and seed that the settings list, all checked before any trains.

    tell: gets a line on what is made next: a schedule of a hundred million trips takes minutes.

    Raises:
      SettingError: for any setting that cannot work.
    """
    loaded = DataCache()
    one_each = {label: settings.changed(own) for label, own in grid.algorithm_arms(settings).items()}
    refuse_unread([({}, one_each)])
    first = grid.run_folder(next(iter(one_each)), settings.seed.partition(",")[0])
    tell(f"{first}: the data set {settings.dataset_name}")
    experiments = []
    for label, resolved in resolve(one_each, loaded):
        steps, trips = resolved.server_steps, resolved.client_trips
        length = f"{trips:,} trips" if steps is None else f"{steps:,} steps"
        tell(f"{grid.run_folder(label, resolved.seed)}: planning {length}")
        experiments.append(make_experiment(label, resolved, loaded))
    return experiments


def make_experiment(
    label: str, settings: Settings, loaded: DataCache, *, must_fit: bool = True
) -> Experiment:
    """The experiment of one run, from what ``resolve`` returns; raises SettingError for what cannot work.

    must_fit: whether to refuse what the devices here lack, memory or a precision; it may be meant for others.
    """
    source, federation = loaded.source(settings), loaded.federation(settings, int(settings.seed))
    precision = precision_of(settings)
    model = dataclasses.replace(
        loaded.model(settings, source),
        inputs=make_inputs(settings, source),
        matmul_precision=precision.matmul_precision,
        compute_dtype=precision.compute_dtype,
    )
    if settings.stop_when is not None:
        _check_stop_when(settings, model, federation)
    _check_accuracy(settings, model, federation)
    foretold.check_epochs(settings, int(np.max(federation.num_examples)))
    inputs = input_digests(settings, source)
    init_key, trips_key = jax.random.split(threefry_key(int(settings.seed)))
    planned = make_rule(settings).build()
    # The memory needed is known before it is taken.
    shapes = loaded.initial(
        "shapes", model, settings, source, lambda: jax.eval_shape(model.init, init_key, source.x[:1])
    )
    paths(shapes)  # the names under which they are written when all is trained
    work = make_client_work(settings, model, planned.correction)
    downloaded, uploaded = exchanged_bytes(planned, work.build(), shapes, len(federation.num_examples))
    with stopwatch.part("schedule"):
        schedule = make_schedule(
            settings,
            federation.num_examples,
            initial_round=planned.initial_round,
            model_bytes=float(downloaded),
            upload_bytes=None if uploaded == downloaded else float(uploaded),
        )
    has_own = bool(settings.argument("split.server_examples"))
    own = server_gradient(model, federation.server_x, federation.server_y) if has_own else None
    rule, server_optimizer = make_rule(settings, own), make_optimizer(settings, "server_optimizer")
    if settings.decompose_steps:
        rule = decomposed(
            rule, work, federation, _measured_steps(settings.decompose_steps, schedule.num_steps)
        )
    run = Run(
        schedule=schedule,
        federation=federation,
        client_work=work,
        rule=rule,
        params=shapes,
        key=trips_key,
        server_optimizer=server_optimizer,
        evaluate_at=_evaluation_steps(settings, schedule),
        stop_when=settings.stop_when,
        evaluate_clients=settings.evaluate_clients,
        keep_best=None if settings.keep == "last" else _best_by(model, federation),
    )
    try:
        with stopwatch.part("planning"):
            preparation = prepare(
                run,
                devices=settings.devices,
                form=settings.plan_form,
                on_training=settings.train_accuracy,
                must_fit=must_fit,
            )
    except SettingError as error:
        error = in_settings(error, settings, "privacy", "secure_aggregation")
        raise (error.of("plan_form") if error.setting == "form" else error) from None
    params = loaded.initial("parameters", model, settings, source, lambda: model.init(init_key, source.x))
    preparation = preparation.with_run(params=params)
    return Experiment(label, settings, source, model, preparation, inputs)


def _best_by(model: Model, federation: Federation) -> str:
    """The column of the evaluations that tells which parameters are the best."""
    split = "test" if federation.validation_x is None else "validation"
    return f"{split}_accuracy" if "accuracy" in model.measured else f"{split}_loss"


def _check_stop_when(settings: Settings, model: Model, federation: Federation) -> None:
    """Raises SettingError unless evaluations measure what the run is to stop by."""
    splits = ["test"] if federation.validation_x is None else ["test", "validation"]
    measured = [f"{split}_{name}" for split in splits for name in (*model.measured, "loss")]
    condition, own = StopWhen.parsed(settings.stop_when), ["train_loss"]
    own += ["train_accuracy"] if settings.train_accuracy else []
    if settings.evaluate_clients:
        names = [*model.measured, "loss"]
        if settings.argument("client_work.personal"):
            names += [f"personal_{name}" for name in names]
        for name in names:
            kinds = ("mean", "worst_tenth", "std") if better_values(name) else ("mean", "std")
            own += [f"client_{name}_{kind}" for kind in kinds]
    public = None if settings.privacy is None else measured
    check_measured("stop_when", condition.text, condition.column, [*measured, *own], public)


def _check_accuracy(settings: Settings, model: Model, federation: Federation) -> None:
    """Refuses settings that ask for accuracies of a model whose task measures none."""
    held_out = federation.held_out is not None and not settings.evaluate_clients
    asked = {"train_accuracy": settings.train_accuracy, "split.client_test_fraction": held_out}
    for name in (each for each in asked if asked[each] and "accuracy" not in model.measured):
        measured = ", ".join((*model.measured, "loss"))
        allowed = f"left out for a model whose task measures no accuracy, but {measured}"
        remedy = "evaluate_clients measures these on the clients' own examples."
        require(False, name, settings.value(name), allowed, remedy)


def _measured_steps(count: int, num_steps: int) -> list[int]:
    """``count`` server steps from the first to the last, evenly spread."""
    whole_number("decompose_steps", count, 0)
    require(count <= num_steps, "decompose_steps", count, f"at most the number of server steps, {num_steps}")
    return np.unique(np.linspace(0, num_steps - 1, count).round().astype(int)).tolist()


def _evaluation_steps(settings: Settings, schedule: EventSchedule) -> list[int]:
    """The first server step at or after each multiple of ``evaluate_every`` client trips."""
    steps = np.arange(schedule.num_steps + 1)
    trips = np.searchsorted(schedule.step, steps) + np.searchsorted(schedule.discarded_step, steps)  # started
    every = settings.evaluate_every
    if every is None:
        marks = trips[-1] * np.arange(1, DEFAULT_EVALUATIONS + 1) / DEFAULT_EVALUATIONS
    else:
        require(every >= 1, "evaluate_every", every, "at least 1 client trip")
        marks = np.arange(every, trips[-1] + 1, every)
    return np.unique(np.searchsorted(trips, marks)).tolist()
