"""From settings to the objects of an experiment: data, schedule, model, client work, rule, optimizer."""

import dataclasses
import re
from typing import Any

import jax
import numpy as np

from jafl import algorithms, data, engine
from jafl.clients import client_work
from jafl.data import Federation, Partition, Source
from jafl.deferred import Specification
from jafl.evaluate import Evaluator
from jafl.models import MODELS, Model
from jafl.records import EventSchedule, SettingError, choose, require
from jafl.schedule import DELAYS, asynchronous, delays, synchronous
from jafl.settings import Settings
from jafl.simulation import DEFAULT_EVALUATIONS, default_evaluators

PROTOCOLS = {"asynchronous": asynchronous, "synchronous": synchronous}
PRECISIONS = {"float32": np.float32, "float64": np.float64}


@dataclasses.dataclass(frozen=True)
class Experiment:
    """One run, ready to start; the fields are the arguments of ``jafl.simulate``, and where they came from."""

    settings: Settings
    source: Source
    federation: Federation
    schedule: EventSchedule
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


def make_experiments(settings: Settings) -> list[Experiment]:
    """One experiment for each algorithm and seed that the settings list, all checked before any trains.

    Raises:
      SettingError: for any setting that cannot work.
    """
    choose("precision", settings.precision, PRECISIONS)
    seeds = [_whole_number("seed", seed) for seed in _items("seed", settings.seed)]
    names = _items("algorithm", settings.algorithm)
    for setting, values in (("algorithm", names), ("seed", seeds)):
        require(len(set(values)) == len(values), setting, values, "a list without repetitions")
    resolved = [algorithms.resolve(settings, name, seed) for name in names for seed in seeds]
    source = make_source(settings)
    federations = {seed: data.federate(source, make_partition(settings, source, seed)) for seed in seeds}
    return [_make_experiment(one, source, federations[int(one.seed)]) for one in resolved]


def _make_experiment(settings: Settings, source: Source, federation: Federation) -> Experiment:
    seed = int(settings.seed)
    model = make_model(settings, source)
    init_key, trips_key = jax.random.split(jax.random.key(seed))
    schedule = make_schedule(settings, federation)
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
    require(
        0 < settings.target_accuracy <= 1,
        "target_accuracy",
        settings.target_accuracy,
        "above 0 and at most 1",
    )
    experiment = Experiment(
        settings=settings,
        source=source,
        federation=federation,
        schedule=schedule,
        model=model,
        client_work=work,
        rule=algorithms.make_rule(settings),
        server_optimizer=algorithms.make_server_optimizer(settings),
        params=model.init(init_key, source.x),
        key=trips_key,
        evaluate_at=_evaluation_steps(settings, schedule),
    )
    engine.check(
        schedule,
        federation,
        work,
        experiment.rule,
        experiment.params,
        server_optimizer=experiment.server_optimizer,
    )
    return experiment


def make_source(settings: Settings) -> Source:
    """The data set, in the precision asked for."""
    splits = {"validation_fraction": settings.validation_fraction, "data_seed": settings.data_seed}
    choose("dataset", settings.dataset, data.SOURCES)
    if settings.dataset == "synthetic":
        source = data.synthetic(
            num_clients=settings.num_clients,
            alpha=settings.synthetic_alpha,
            beta=settings.synthetic_beta,
            mean_examples=settings.synthetic_mean_examples,
            shared_labels=settings.synthetic_shared_labels,
            **splits,
        )
    else:
        source = data.SOURCES[settings.dataset](**splits)
    dtype = PRECISIONS[settings.precision]
    names = [name for name in ("x", "test_x", "validation_x") if getattr(source, name) is not None]
    floating = np.issubdtype(source.x.dtype, np.floating)
    return dataclasses.replace(
        source, **{name: getattr(source, name).astype(dtype, copy=False) for name in names if floating}
    )


def make_partition(settings: Settings, source: Source, seed: int) -> Partition:
    """Who holds which examples."""
    natural = source.natural_partition is not None
    name = settings.partition or ("natural" if natural else "dirichlet")
    choose("partition", name, {**data.PARTITIONS, "natural": None})
    if name == "natural":
        require(natural, "partition", name, f"another, for {source.name} has no clients of its own")
        return source.natural_partition
    arguments: dict[str, Any] = {}
    if name == "dirichlet":
        arguments = {"alpha": settings.dirichlet_alpha, "equal_sizes": settings.dirichlet_equal_sizes}
    elif name == "labels_per_client":
        arguments = {
            "labels_per_client": settings.labels_per_client,
            "smallest": settings.smallest_client,
            "largest": settings.largest_client,
        }
    elif name == "label_groups":
        groups = _label_groups(settings.label_groups)
        total = sum(count for count, _ in groups)
        require(
            total == settings.num_clients,
            "num_clients",
            settings.num_clients,
            f"the number of clients in label_groups, {total}",
        )
        return data.label_groups(source.y, groups, seed=seed)
    return data.PARTITIONS[name](source.y, settings.num_clients, seed=seed, **arguments)


def make_model(settings: Settings, source: Source) -> Model:
    """The model, for the data set's classes."""
    factory = choose("model", settings.model, MODELS)
    if settings.model == "mlp":
        widths = [_whole_number("hidden_sizes", w) for w in _items("hidden_sizes", settings.hidden_sizes)]
        return factory(source.num_classes, widths)
    if settings.model == "cnn":
        require(
            source.x.ndim == 4, "model", settings.model, f"softmax or mlp, for {source.name} has no images"
        )
        widths = [_whole_number("channels", w) for w in _items("channels", settings.channels)]
        return factory(source.num_classes, widths)
    return factory(source.num_classes)


def make_schedule(settings: Settings, federation: Federation) -> EventSchedule:
    """The event schedule of a resolved run."""
    protocol = choose("protocol", settings.protocol or "", PROTOCOLS)
    size: dict[str, Any] = {"concurrency": settings.concurrency, "buffer_size": settings.buffer_size}
    if settings.protocol == "synchronous":
        size = {"cohort_size": settings.cohort_size, "over_selection": settings.over_selection}
    return protocol(
        num_clients=federation.num_clients,
        delay=make_delay(settings, federation.num_examples),
        server_steps=settings.server_steps,
        client_trips=settings.client_trips,
        seed=int(settings.seed),
        **size,
    )


def make_delay(settings: Settings, num_examples: np.ndarray) -> delays.Delay:
    """The law of trip durations; ``num_examples`` [N] of each client."""
    name, mean = settings.delay, settings.delay_mean
    choose("delay", name, DELAYS)
    require(np.isfinite(mean) and mean >= 0, "delay_mean", mean, "a finite number, at least 0")
    draws = {"per_trip": lambda law: law, "per_client": delays.once_per_client}
    drawn = choose("delay_draw", settings.delay_draw, draws)
    if name == "constant":
        law: delays.Delay = delays.constant(mean)
    elif name == "uniform":
        high = 2 * mean - settings.delay_low if settings.delay_high is None else settings.delay_high
        law = delays.uniform(settings.delay_low, high)
    elif name == "half_normal":
        law = delays.half_normal(mean * np.sqrt(np.pi / 2))
    elif name == "log_normal":
        law = delays.log_normal(mean, settings.delay_sigma)
    elif name == "proportional_to_examples":
        law = delays.proportional_to_examples(num_examples, mean / np.mean(num_examples))
    elif name == "groups":
        law = delays.groups(_delay_groups(settings.delay_groups))
    else:
        law = DELAYS[name](mean)
    return drawn(law)


def _evaluation_steps(settings: Settings, schedule: EventSchedule) -> list[int]:
    """The first server step at or after each multiple of ``evaluate_every`` client trips."""
    trips = np.array([schedule.trips_started_by(step) for step in range(schedule.num_steps + 1)])
    every = settings.evaluate_every
    if every is None:
        marks = trips[-1] * np.arange(1, DEFAULT_EVALUATIONS + 1) / DEFAULT_EVALUATIONS
    else:
        require(every >= 1, "evaluate_every", every, "at least 1 client trip")
        marks = np.arange(every, trips[-1] + 1, every)
    return np.unique(np.searchsorted(trips, marks)).tolist()


def _items(setting: str, text: str) -> list[str]:
    items = [item.strip() for item in text.split(",")]
    require(all(items), setting, text, "names or numbers with commas between them")
    return items


def _whole_number(setting: str, text: str) -> int:
    require(re.fullmatch(r"[+-]?\d+", text.strip()), setting, text, "a whole number")
    return int(text)


def _label_groups(text: str) -> list[tuple[int, list[int]]]:
    """``10:4-9;5:0,1,3`` as [(10, [4, ..., 9]), (5, [0, 1, 3])]."""
    groups = []
    for part in text.split(";"):
        match = re.fullmatch(r"\s*(\d+)\s*:\s*(\d+(-\d+)?(\s*,\s*\d+(-\d+)?)*)\s*", part)
        if not match:
            raise SettingError(f"label_groups is {text!r}, but {part!r} is not clients:labels, as in 10:4-9.")
        labels: list[int] = []
        for item in match[2].split(","):
            first, _, last = item.strip().partition("-")
            labels.extend(range(int(first), int(last or first) + 1))
        groups.append((int(match[1]), labels))
    return groups


def _delay_groups(text: str) -> list[tuple[int, delays.Delay]]:
    """``10:uniform(1,2);5:exponential(9)`` as [(10, uniform(1, 2)), (5, exponential(9))]."""
    simple = {
        name: DELAYS[name] for name in ("constant", "uniform", "half_normal", "exponential", "log_normal")
    }
    groups = []
    for part in text.split(";"):
        match = re.fullmatch(r"\s*(\d+)\s*:\s*(\w+)\(([^()]*)\)\s*", part)
        try:
            numbers = [float(number) for number in match[3].split(",")] if match else []
            groups.append((int(match[1]), choose("a law in delay_groups", match[2], simple)(*numbers)))
        except (TypeError, ValueError) as error:
            if isinstance(error, SettingError):
                raise
            raise SettingError(
                f"delay_groups is {text!r}, but {part!r} is not clients:law(numbers), as in 10:uniform(1,2)."
            ) from error
    return groups
