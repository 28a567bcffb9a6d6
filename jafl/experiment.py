"""From settings to the objects of an experiment: data, schedule, model, client work, rule, optimizer."""

import contextlib
import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

from jafl import algorithms, data
from jafl.clients import client_work
from jafl.data import Federation, Partition, Source
from jafl.deferred import Specification
from jafl.evaluate import Evaluator
from jafl.models import MODELS, Model, server_gradient
from jafl.preparation import check
from jafl.records import EventSchedule, ExecutionPlan, History, SettingError, choose, require
from jafl.schedule import DELAYS, Dropout, asynchronous, delays, synchronous, trip_by_trip
from jafl.settings import Settings
from jafl.simulation import DEFAULT_EVALUATIONS, default_evaluators, simulate

PROTOCOLS: dict[str, Callable[..., EventSchedule]] = {
    "asynchronous": asynchronous,
    "synchronous": synchronous,
}
PRECISIONS = {"float32": np.float32, "float64": np.float64}
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
    seeds = [_whole_number("seed", seed) for seed in _items("seed", settings.seed)]
    require(
        min(seeds) >= 0 and max(seeds) <= LARGEST_SEED, "seed", settings.seed, f"from 0 to {LARGEST_SEED}"
    )
    names = _items("algorithm", settings.algorithm)
    for setting, values in (("algorithm", names), ("seed", seeds)):
        repeated = len(set(values)) < len(values)
        require(not repeated, setting, getattr(settings, setting), "a list without repetitions")
    alone = len(names) == 1
    resolved = [algorithms.resolve(settings, name, seed, alone=alone) for name in names for seed in seeds]
    source = make_source(settings)
    if settings.server_examples:
        labels = _labels("server_classes", settings.server_classes) if settings.server_classes else None
        source = data.keep_for_server(source, settings.server_examples, labels, data_seed=settings.data_seed)
    federations = {seed: data.federate(source, make_partition(settings, source, seed)) for seed in seeds}
    return [_make_experiment(one, source, federations[int(one.seed)]) for one in resolved]


def _make_experiment(settings: Settings, source: Source, federation: Federation) -> Experiment:
    settings = dataclasses.replace(settings, partition=_partition_name(settings, source))
    model = make_model(settings, source)
    init_key, trips_key = jax.random.split(jax.random.key(int(settings.seed)))
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
    own = (
        server_gradient(model, federation.server_x, federation.server_y) if settings.server_examples else None
    )
    rule, server_optimizer = algorithms.make_rule(settings, own), algorithms.make_server_optimizer(settings)
    plan = trip_by_trip(schedule)
    shapes = jax.eval_shape(
        model.init, init_key, source.x[:1]
    )  # the memory needed is known before it is taken
    check(schedule, federation, work, rule, shapes, server_optimizer=server_optimizer, plan=plan)
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


def make_source(settings: Settings) -> Source:
    """The data set, in the precision asked for."""
    splits: dict[str, Any] = {
        "validation_fraction": settings.validation_fraction,
        "data_seed": settings.data_seed,
    }
    choose("dataset", settings.dataset, data.SOURCES)
    if settings.dataset == "synthetic":
        names = ("alpha", "beta", "mean_examples", "shared_labels")
        arguments = {name: getattr(settings, f"synthetic_{name}") for name in names}
        with _refused_as({name: f"synthetic_{name}" for name in names}):
            source = data.synthetic(num_clients=settings.num_clients, **arguments, **splits)
    else:
        source = data.SOURCES[settings.dataset](**splits)
    dtype = PRECISIONS[settings.precision]
    if not np.issubdtype(source.x.dtype, np.floating):
        return source
    splits = {name: getattr(source, name) for name in ("x", "test_x", "validation_x")}
    changed = {name: x.astype(dtype, copy=False) for name, x in splits.items() if x is not None}
    return dataclasses.replace(source, **changed)


def make_partition(settings: Settings, source: Source, seed: int) -> Partition:
    """Who holds which examples."""
    name = _partition_name(settings, source)
    if name == "natural":
        if source.natural_partition is None:
            raise SettingError(f"partition is 'natural', but {source.name} has no clients of its own.")
        return source.natural_partition
    factory = choose("partition", name, {**data.PARTITIONS, "natural": data.iid})
    settings_of: dict[str, str] = {}  # by argument
    if name == "dirichlet":
        settings_of = {"alpha": "dirichlet_alpha", "equal_sizes": "dirichlet_equal_sizes"}
    elif name == "labels_per_client":
        settings_of = {"smallest": "smallest_client", "largest": "largest_client", name: name}
    elif name == "label_groups":
        groups = _label_groups(settings.label_groups)
        total = sum(count for count, _ in groups)
        require(
            total == settings.num_clients,
            "num_clients",
            settings.num_clients,
            f"the number of clients in label_groups, {total}",
        )
        with _refused_as({}, otherwise="label_groups"):
            return data.label_groups(source.y, groups, seed=seed)
    arguments = {argument: getattr(settings, setting) for argument, setting in settings_of.items()}
    with _refused_as(settings_of):
        return factory(source.y, settings.num_clients, seed=seed, **arguments)


def _partition_name(settings: Settings, source: Source) -> str:
    return settings.partition or ("dirichlet" if source.natural_partition is None else "natural")


def make_model(settings: Settings, source: Source) -> Model:
    """The model, for the data set's classes."""
    factory: Callable[..., Model] = choose("model", settings.model, MODELS)
    if settings.model == "mlp":
        widths = [_whole_number("hidden_sizes", w) for w in _items("hidden_sizes", settings.hidden_sizes)]
        return factory(source.num_classes, widths)
    if settings.model == "cnn":
        require(
            source.x.ndim == 4, "model", settings.model, f"softmax or mlp, for {source.name} has no images"
        )
        widths = [_whole_number("channels", w) for w in _items("channels", settings.channels)]
        most = int(np.log2(min(source.x.shape[1:3])))
        require(
            len(widths) <= most,
            "channels",
            settings.channels,
            f"at most {most} widths, for each convolution halves the images, "
            f"{' by '.join(map(str, source.x.shape[1:3]))} pixels",
        )
        return factory(source.num_classes, widths)
    return factory(source.num_classes)


def make_schedule(settings: Settings, federation: Federation) -> EventSchedule:
    """The event schedule of a resolved run."""
    protocol = choose("protocol", settings.protocol or "", PROTOCOLS)
    size: dict[str, Any] = {
        "concurrency": settings.concurrency,
        "buffer_size": settings.buffer_size,
        "initial_round": algorithms.make_rule(settings).build().initial_round,
        "restart": settings.restart,
        "dropout": make_dropout(settings),
    }
    if settings.protocol == "synchronous":
        require(
            not settings.dropout_fraction,
            "dropout_fraction",
            settings.dropout_fraction,
            "0 in synchronous rounds",
            "Dropout is for asynchronous protocols.",
        )
        size = {"cohort_size": settings.cohort_size, "over_selection": settings.over_selection}
    trips = settings.client_trips
    require(trips is None or trips >= 1, "client_trips", trips, "at least 1")
    return protocol(
        num_clients=federation.num_clients,
        delay=make_delay(settings, federation.num_examples),
        server_steps=settings.server_steps,
        client_trips=settings.client_trips,
        seed=int(settings.seed),
        **size,
    )


def make_dropout(settings: Settings) -> Dropout | None:
    """Who leaves for ever, and when."""
    moments = {name: getattr(settings, f"dropout_{name}") for name in ("step", "time", "trips")}
    given = [f"dropout_{name}" for name, value in moments.items() if value is not None]
    fraction = settings.dropout_fraction
    if not fraction:
        require(not given, given[0] if given else "", moments, "left out unless dropout_fraction is above 0")
        return None
    require(
        len(given) == 1,
        "dropout_step, dropout_time, dropout_trips",
        tuple(moments.values()),
        "one of them given",
    )
    arguments = {
        "fraction": "dropout_fraction",
        "server_step": "dropout_step",
        "time": given[0],
        "trips": given[0],
    }
    with _refused_as({f"the dropout's {name}": setting for name, setting in arguments.items()}):
        return Dropout(fraction, server_step=moments["step"], time=moments["time"], trips=moments["trips"])


def make_delay(settings: Settings, num_examples: np.ndarray) -> delays.Delay:
    """The law of trip durations; ``num_examples`` [N] of each client."""
    choose("delay", settings.delay, DELAYS)
    draws: dict[str, Callable[[delays.Delay], delays.Delay]] = {
        "per_trip": lambda law: law,
        "per_client": delays.once_per_client,
    }
    drawn = choose("delay_draw", settings.delay_draw, draws)
    if settings.delay == "groups":
        with _refused_as({}, otherwise="delay_groups"):
            groups = delays.groups(_delay_groups(settings.delay_groups))
            groups.check_clients(len(num_examples))
        return drawn(groups)
    with _refused_as({f"the delay's {name}": f"delay_{name}" for name in ("low", "high", "sigma")}):
        return drawn(_law(settings, num_examples))


def _law(settings: Settings, num_examples: np.ndarray) -> delays.Delay:
    """The law of trip durations, but for groups, before it is drawn for each trip or once per client."""
    name, mean, low, high = settings.delay, settings.delay_mean, settings.delay_low, settings.delay_high
    require(np.isfinite(mean) and mean >= 0, "delay_mean", mean, "a finite number, at least 0")
    require(mean > 0 or name in ("constant", "uniform"), "delay_mean", mean, f"above 0 where delay is {name}")
    if name == "constant":
        return delays.constant(mean)
    if name == "uniform":
        if high is None:
            require(
                low <= mean, "delay_low", low, f"at most delay_mean ({mean:g}) unless delay_high is given"
            )
        return delays.uniform(low, 2 * mean - low if high is None else high)
    if name == "half_normal":
        return delays.half_normal(mean * np.sqrt(np.pi / 2))
    if name == "log_normal":
        return delays.log_normal(mean, settings.delay_sigma)
    if name == "proportional_to_examples":
        return delays.proportional_to_examples(num_examples, mean / np.mean(num_examples))
    return delays.exponential(mean)


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
        groups.append((int(match[1]), _labels("label_groups", match[2])))
    return groups


def _labels(setting: str, text: str) -> list[int]:
    """``0-3,7`` as [0, 1, 2, 3, 7]."""
    labels: list[int] = []
    for item in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", item)
        if not match:
            raise SettingError(f"{setting} is {text!r}, but must be labels and ranges of them, as in 0-3,7.")
        labels.extend(range(int(match[1]), int(match[2] or match[1]) + 1))
    return labels


def _delay_groups(text: str) -> list[tuple[int, delays.Delay]]:
    """``10:uniform(1,2);5:exponential(9)`` as [(10, uniform(1, 2)), (5, exponential(9))]."""
    laws = ("constant", "uniform", "half_normal", "exponential", "log_normal")
    simple: dict[str, Callable[..., delays.Delay]] = {name: DELAYS[name] for name in laws}
    groups = []
    for part in text.split(";"):
        wrong = SettingError(
            f"delay_groups is {text!r}, but {part!r} is not clients:law(numbers), as in 10:uniform(1,2)."
        )
        match = re.fullmatch(r"\s*(\d+)\s*:\s*(\w+)\(([^()]*)\)\s*", part)
        if not match:
            raise wrong
        law = choose("a law in delay_groups", match[2], simple)
        try:
            groups.append((int(match[1]), law(*(float(number) for number in match[3].split(",")))))
        except SettingError:
            raise
        except (TypeError, ValueError) as error:  # too many numbers, or not numbers
            raise wrong from error
    return groups


@contextlib.contextmanager
def _refused_as(names: Mapping[str, str], otherwise: str = "") -> Iterator[None]:
    """Makes a refusal name the setting instead of the argument that it filled.

    names: {argument: setting}. Where ``otherwise`` is given, a refusal of anything else begins with it.
    """
    try:
        yield
    except SettingError as error:
        subject, is_, rest = str(error).partition(" is ")
        if subject in names:
            raise SettingError(names[subject] + is_ + rest) from error
        if otherwise and otherwise not in subject:
            raise SettingError(f"{otherwise}: {error}") from error
        raise
