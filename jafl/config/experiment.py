"""From settings to the objects of an experiment: data, schedule, model, client work, rule, optimizer."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jafl.clients import client_work
from jafl.config import arms, presets
from jafl.config.builders import (
    READ_BY,
    filled_in,
    make_federation,
    make_inputs,
    make_model,
    make_schedule,
    make_source,
)
from jafl.config.builders.data import OF_FEDERATION, PRECISIONS, data_seed, of_source
from jafl.config.parsing import items, whole_number_in
from jafl.config.settings import DEFAULTS, Settings
from jafl.data import Federation, Source
from jafl.engine.evaluation import Evaluator
from jafl.errors import choose, require, whole_number
from jafl.models import Model, server_gradient
from jafl.planning.device_memory import Forecast, bytes_of
from jafl.planning.plan_choice import default_spread
from jafl.planning.preparation import examine, fitting_plan
from jafl.records import EventSchedule, ExecutionPlan, History
from jafl.simulation.error_decomposition import decomposed
from jafl.simulation.simulate import DEFAULT_EVALUATIONS, default_evaluators, simulate
from jafl.specifications import Specification

LARGEST_SEED = 2**32 - 1  # JAX's random keys take no more without float64


@dataclasses.dataclass(frozen=True)
class Experiment:
    """One run, ready to start; the fields are the arguments of ``jafl.simulate``, and where they came from.

    memory: what it will hold. label: the arm's that it is a run of; where algorithms are compared, the algorithm.
    """

    label: str
    settings: Settings
    source: Source
    federation: Federation
    schedule: EventSchedule
    plan: ExecutionPlan
    memory: Forecast
    model: Model
    client_work: Specification
    rule: Specification
    server_optimizer: Specification
    params: Any
    key: jax.Array
    evaluate_at: list[int]

    @property
    def name(self) -> str:
        """The name of its folder: ``<algorithm>-seed<seed>``, or the arm's label in place of the algorithm."""
        return arms.folder(self.label, self.settings.seed)

    def evaluators(self) -> dict[str, Any]:
        """What is measured at each evaluation."""
        evaluators: dict[str, Any] = default_evaluators(self.model, self.federation)
        if self.settings.train_accuracy:
            on_training = Evaluator(self.model, self.federation.x, self.federation.y)
            evaluators["train"] = lambda params: {"accuracy": on_training(params)["accuracy"]}
        return evaluators

    def simulate(self, **options: Any) -> History:
        """Trains it: ``jafl.simulate`` with these fields, and with ``options`` as its keyword arguments."""
        return simulate(
            self.schedule,
            self.federation,
            self.client_work,
            self.rule,
            self.params,
            self.key,
            **{
                "server_optimizer": self.server_optimizer,
                "plan": self.plan,
                "devices": self.settings.devices,
                "evaluate_at": self.evaluate_at,
                "evaluators": self.evaluators(),
                **options,
            },
        )


class Loaded:
    """Data sets and federations that were made before, for runs of the same data.

    Keeps the federations of the last ``FEDERATIONS`` seeds and partitions, and of one data set at a time.
    """

    FEDERATIONS = 16

    def __init__(self) -> None:
        self._source: tuple[str, Source] | None = None
        self._federations: dict[tuple[str, int], Federation] = {}

    def source(self, settings: Settings) -> Source:
        """The data set of these settings."""
        what = _written(settings, of_source(settings))
        if self._source is None or self._source[0] != what:
            self._federations.clear()
            self._source = what, make_source(settings)
        return self._source[1]

    def federation(self, settings: Settings, seed: int) -> Federation:
        """The clients of these settings, filled in from the data set (``filled_in``)."""
        source = self.source(settings)
        key = _written(settings, OF_FEDERATION), seed
        if key not in self._federations:
            if len(self._federations) >= self.FEDERATIONS:
                del self._federations[next(iter(self._federations))]
            self._federations[key] = make_federation(settings, source, seed)
        return self._federations[key]


def _written(settings: Settings, names: Sequence[str]) -> str:
    decisive = dataclasses.replace(settings, data_seed=data_seed(settings))
    return json.dumps({name: getattr(decisive, name) for name in names})


def make_experiments(settings: Settings) -> list[Experiment]:
    """One experiment for each algorithm and seed that the settings list, all checked before any trains.

    Raises:
      SettingError: for any setting that cannot work.
    """
    loaded = Loaded()
    one_each = {label: settings.changed(own) for label, own in arms.of_algorithms(settings).items()}
    runs = resolve(one_each, loaded)
    return [make_experiment(label, one, loaded) for label, one in runs]


def resolve(one_each: Mapping[str, Settings], loaded: Loaded) -> list[tuple[str, Settings]]:
    """(label, settings of one run with every default filled in) for each arm and seed, the seeds of one together.

    one_each: {label: settings}, each of one algorithm; several arms are compared with each other.

    Raises:
      SettingError: for any setting that cannot work, as far as it shows before a schedule is made.
    """
    for settings in one_each.values():
        _check(settings)
    alone = len(one_each) == 1

    def resolved(one_each: Mapping[str, Settings]) -> list[tuple[str, Settings]]:
        found = [
            (label, presets.resolve(settings, settings.algorithm, seed, alone=alone))
            for label, settings in one_each.items()
            for seed in seeds_of(settings)
        ]
        return _as_read(one_each, found)

    resolved(one_each)  # refuses what cannot work before the data set is read
    return resolved({label: filled_in(one, loaded.source(one)) for label, one in one_each.items()})


def seeds_of(settings: Settings) -> list[int]:
    """The seeds that the settings list.

    Raises SettingError if one is no whole number, too large, or there twice.
    """
    seeds = [whole_number_in("seed", seed) for seed in items("seed", settings.seed)]
    require(
        min(seeds) >= 0 and max(seeds) <= LARGEST_SEED, "seed", settings.seed, f"from 0 to {LARGEST_SEED}"
    )
    require(len(set(seeds)) == len(seeds), "seed", settings.seed, "a list without repetitions")
    return seeds


def _check(settings: Settings) -> None:
    """Raises SettingError for what can be said of settings whatever the algorithm."""
    dtype = choose("precision", settings.precision, PRECISIONS)
    require(
        jax.dtypes.canonicalize_dtype(dtype) == dtype,
        "precision",
        settings.precision,
        "float32 while JAX computes in 32 bits",
        "Call jax.config.update('jax_enable_x64', True) first.",
    )
    require(
        0 < settings.target_accuracy <= 1, "target_accuracy", settings.target_accuracy, "above 0, at most 1"
    )


def _as_read(
    given: Mapping[str, Settings], resolved: list[tuple[str, Settings]]
) -> list[tuple[str, Settings]]:
    """Each run without the settings that its protocol does not read; refuses one that no run reads."""
    for_some = set().union(*READ_BY.values())
    read = [READ_BY.get(one.protocol or "", for_some) for _, one in resolved]
    for name in sorted(for_some - set().union(*read)):
        readers = " or ".join(protocol for protocol, names in READ_BY.items() if name in names)
        protocols = " and ".join(sorted({one.protocol or "" for _, one in resolved}))
        allowed = f"left out: {protocols} training does not read it"
        for settings in given.values():
            value = getattr(settings, name)
            require(value == DEFAULTS[name], name, value, allowed, f"It is for --protocol={readers}.")
    return [
        (label, dataclasses.replace(one, **{name: DEFAULTS[name] for name in for_some - names}))
        for (label, one), names in zip(resolved, read, strict=True)
    ]


def make_experiment(label: str, settings: Settings, loaded: Loaded) -> Experiment:
    """The experiment of one run, from what ``resolve`` returns; raises SettingError for what cannot work."""
    source, federation = loaded.source(settings), loaded.federation(settings, int(settings.seed))
    model = dataclasses.replace(make_model(settings, source), inputs=make_inputs(settings, source))
    init_key, trips_key = jax.random.split(jax.random.key(int(settings.seed)))
    initial_round = presets.make_rule(settings).build().initial_round
    shapes = jax.eval_shape(
        model.init, init_key, source.x[:1]
    )  # the memory needed is known before it is taken
    schedule = make_schedule(
        settings, federation.num_examples, initial_round=initial_round, model_bytes=float(bytes_of(shapes))
    )
    work = client_work(
        model,
        optimizer=presets.make_client_optimizer(settings),
        local_steps=settings.local_steps,
        local_epochs=settings.local_epochs,
        batch_size=settings.batch_size,
        proximal=settings.proximal,
        l2=settings.l2,
        learning_rate_normalization=settings.learning_rate_normalization,
    )
    own = (
        server_gradient(model, federation.server_x, federation.server_y) if settings.server_examples else None
    )
    rule, server_optimizer = presets.make_rule(settings, own), presets.make_server_optimizer(settings)
    if settings.decompose_steps:
        rule = decomposed(
            rule, work, federation, _measured_steps(settings.decompose_steps, schedule.num_steps)
        )
    spread = default_spread(schedule, rule, settings.devices)
    arguments = (schedule, federation, work, rule, shapes)
    how: dict[str, Any] = {"server_optimizer": server_optimizer, "spread": spread}
    plan = fitting_plan(*arguments, **how)
    _, memory = examine(*arguments, **how, plan=plan, on_training=settings.train_accuracy)
    return Experiment(
        label=label,
        settings=settings,
        source=source,
        federation=federation,
        schedule=schedule,
        plan=plan,
        memory=memory,
        model=model,
        client_work=work,
        rule=rule,
        server_optimizer=server_optimizer,
        params=model.init(init_key, source.x),
        key=trips_key,
        evaluate_at=_evaluation_steps(settings, schedule),
    )


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
