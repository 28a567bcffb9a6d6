"""From settings to the objects of an experiment: data, schedule, model, client work, rule, optimizer."""

import dataclasses
from typing import Any

import jax
import numpy as np

from jafl import algorithms
from jafl.clients import client_work
from jafl.data import Federation, Source
from jafl.decomposition import decomposed
from jafl.deferred import Specification
from jafl.evaluate import Evaluator
from jafl.memory import bytes_of
from jafl.models import Model, server_gradient
from jafl.parts import (
    READ_BY,
    filled_in,
    make_federation,
    make_inputs,
    make_model,
    make_schedule,
    make_source,
)
from jafl.parts.data import PRECISIONS
from jafl.parts.text import items, whole_number_in
from jafl.preparation import check, default_plan, default_spread
from jafl.records import EventSchedule, ExecutionPlan, History, choose, require, whole_number
from jafl.settings import DEFAULTS, Settings
from jafl.simulation import DEFAULT_EVALUATIONS, default_evaluators, simulate

LARGEST_SEED = 2**32 - 1  # JAX's random keys take no more without float64


@dataclasses.dataclass(frozen=True)
class Experiment:
    """One run, ready to start; the fields are the arguments of ``jafl.simulate``, and where they came from."""

    settings: Settings
    source: Source
    federation: Federation
    schedule: EventSchedule
    plan: ExecutionPlan
    model: Model
    client_work: Specification
    rule: Specification
    server_optimizer: Specification
    params: Any
    key: jax.Array
    evaluate_at: list[int]

    @property
    def name(self) -> str:
        """``<algorithm>-seed<seed>``."""
        return f"{self.settings.algorithm}-seed{self.settings.seed}"

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


def make_experiments(settings: Settings) -> list[Experiment]:
    """One experiment for each algorithm and seed that the settings list, all checked before any trains.

    Raises:
      SettingError: for any setting that cannot work.
    """
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
    seeds = [whole_number_in("seed", seed) for seed in items("seed", settings.seed)]
    require(
        min(seeds) >= 0 and max(seeds) <= LARGEST_SEED, "seed", settings.seed, f"from 0 to {LARGEST_SEED}"
    )
    names = items("algorithm", settings.algorithm)
    for setting, values in (("algorithm", names), ("seed", seeds)):
        repeated = len(set(values)) < len(values)
        require(not repeated, setting, getattr(settings, setting), "a list without repetitions")
    alone = len(names) == 1

    def resolve(settings: Settings) -> list[Settings]:
        found = [algorithms.resolve(settings, name, seed, alone=alone) for name in names for seed in seeds]
        return _as_read(settings, found)

    resolve(settings)  # refuses what cannot work before the data set is read
    source = make_source(settings)
    settings = filled_in(settings, source)
    resolved = resolve(settings)
    federations = {seed: make_federation(settings, source, seed) for seed in seeds}
    return [_make_experiment(one, source, federations[int(one.seed)]) for one in resolved]


def _as_read(settings: Settings, resolved: list[Settings]) -> list[Settings]:
    """Each run without the settings that its protocol does not read; refuses one that no run reads."""
    for_some = set().union(*READ_BY.values())
    read = [READ_BY.get(one.protocol or "", for_some) for one in resolved]
    for name in sorted(for_some - set().union(*read)):
        readers = " or ".join(protocol for protocol, names in READ_BY.items() if name in names)
        protocols = " and ".join(sorted({one.protocol or "" for one in resolved}))
        allowed = f"left out: {protocols} training does not read it"
        given = getattr(settings, name)
        require(given == DEFAULTS[name], name, given, allowed, f"It is for --protocol={readers}.")
    return [
        dataclasses.replace(one, **{name: DEFAULTS[name] for name in for_some - names})
        for one, names in zip(resolved, read, strict=True)
    ]


def _make_experiment(settings: Settings, source: Source, federation: Federation) -> Experiment:
    model = dataclasses.replace(make_model(settings, source), inputs=make_inputs(settings, source))
    init_key, trips_key = jax.random.split(jax.random.key(int(settings.seed)))
    initial_round = algorithms.make_rule(settings).build().initial_round
    shapes = jax.eval_shape(
        model.init, init_key, source.x[:1]
    )  # the memory needed is known before it is taken
    schedule = make_schedule(
        settings, federation.num_examples, initial_round=initial_round, model_bytes=float(bytes_of(shapes))
    )
    work = client_work(
        model,
        optimizer=algorithms.make_client_optimizer(settings),
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
    rule, server_optimizer = algorithms.make_rule(settings, own), algorithms.make_server_optimizer(settings)
    if settings.decompose_steps:
        rule = decomposed(
            rule, work, federation, _measured_steps(settings.decompose_steps, schedule.num_steps)
        )
    spread = default_spread(schedule, rule, settings.devices)
    plan = default_plan(schedule, rule, shapes, spread)
    arguments = (schedule, federation, work, rule, shapes)
    check(*arguments, server_optimizer=server_optimizer, plan=plan, spread=spread)
    return Experiment(
        settings=settings,
        source=source,
        federation=federation,
        schedule=schedule,
        plan=plan,
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
