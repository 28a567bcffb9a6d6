"""The settings whose values are calls of public factories, each with its grammar."""

import ast
import contextlib
import dataclasses
import functools
import inspect
import pathlib
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from jafl import data, schedule
from jafl.base import checksums
from jafl.base.errors import SettingError
from jafl.base.paths import in_home
from jafl.config.grammar import Grammar
from jafl.config.reading import file_of, imports_of, own_name
from jafl.config.values import Call, all_calls, copied, is_file, items
from jafl.records import EventSchedule
from jafl.schedule import delays, dropout

if TYPE_CHECKING:
    from jafl.config.settings import Settings
    from jafl.data import Source

_NAMES = "asynchronous synchronous open_arrivals drawn_staleness queued compass tiered polled"
PROTOCOLS: dict[str, Callable[..., EventSchedule]] = {
    name: getattr(schedule, name) for name in _NAMES.split()
}
_PARAMETERS = {name: inspect.signature(protocol).parameters for name, protocol in PROTOCOLS.items()}
# The argument that holds the trips per server step, by protocol; of one without, they follow from the arrivals.
TRIPS_PER_STEP = {
    name: argument
    for name in PROTOCOLS
    for argument in ("buffer_size", "cohort_size")
    if argument in _PARAMETERS[name]
}
WITH_INITIAL_ROUND = tuple(name for name in PROTOCOLS if "initial_round" in _PARAMETERS[name])
# Protocols in which nobody fails, leaves or is away.
WITHOUT_LOSSES = tuple(name for name in PROTOCOLS if "dropout" not in _PARAMETERS[name])
NOT_ALWAYS_READ = ("availability", "dropout")  # by runs of these protocols, where they have their defaults
BUDGETS = ("client_trips", "server_steps")  # of which a run has one
_LAWS = (delays.slow_fraction, delays.once_per_client, delays.per_step, delays.with_network, delays.throttled)
# Those that need no JAX, which the list of experiments does without.
_WITHOUT_JAX = (
    Grammar(
        "protocol",
        PROTOCOLS,
        (*TRIPS_PER_STEP.values(), "concurrency", "tasks", "start_rate", "restart", *BUDGETS),
        ("num_clients", "delay", "dropout", "availability", "initial_round", "seed"),
        has_default=True,
        exclusive=(
            BUDGETS,
            ("start_rate", "concurrency"),
            ("participation", "cohort_size"),
            ("reports", "buffer_size"),
            ("step_every", "buffer_size"),
        ),
        other_names={("synchronous", "concurrency"): "cohort_size", ("queued", "concurrency"): "tasks"},
    ),
    # Any data set can be split: a setting of its own.
    Grammar(
        "dataset",
        data.SOURCES,
        fixed=("data_dir", "cache_dir", "num_clients", "test_fraction", "validation_fraction", "data_seed"),
    ),
    Grammar(
        "delay",
        {**schedule.DELAYS, **{each.__name__: each for each in (*_LAWS, schedule.duration_trace)}},
        supplied=("model_bytes", "upload_bytes"),
        fixed=("num_examples",),
    ),
    Grammar("availability", {**schedule.AVAILABILITIES, "read_availability": schedule.read_availability}),
    Grammar("dropout", {each.__name__: each for each in (dropout.nobody, dropout.fraction, dropout.clients)}),
    Grammar(
        "partition",
        {**data.PARTITIONS, "natural": data.natural},
        ("seed",),
        fixed=("labels", "num_clients", "source"),
    ),
)


@functools.cache
def _with_jax() -> tuple[Grammar, ...]:
    import optax

    from jafl.clients.compression import COMPRESSORS
    from jafl.clients.personal import ditto
    from jafl.clients.work import client_work
    from jafl.config.own_calls import Split, float32, float64
    from jafl.config.presets import ALGORITHMS
    from jafl.models import MODELS, lora
    from jafl.models.inputs import Inputs
    from jafl.privacy.private import private
    from jafl.privacy.secure import secure
    from jafl.rules import server_optimizers
    from jafl.rules.staleness import STALENESS_WEIGHTS

    few_bits = (
        "In 16 bits computes the model alone (--precision.compute_dtype=bfloat16), or its products "
        "(--precision.matmul_precision=bfloat16)."
    )
    # The preset of the algorithm tells the learning rate where a call does not.
    of_optimizers: dict[str, Any] = {
        "supplied": ("learning_rate",),
        "fixed": ("accumulator_dtype", "mu_dtype", "mask"),
        "has_default": True,
    }
    clients = {"sgd": optax.sgd, "adam": optax.adam, "adamw": optax.adamw}
    server = {"sgd": optax.sgd, "adam": optax.adam, "adagrad": optax.adagrad, "yogi": optax.yogi}
    for name in ("adam", "adagrad", "yogi"):
        server[f"reddi_{name}"] = getattr(server_optimizers, f"fed{name}")
    for name in ("fedamsgrad", "heloco", "delayed_nesterov"):
        server[name] = getattr(server_optimizers, name)
    return (
        Grammar(
            "algorithm",
            ALGORITHMS,
            ("divide_by",),
            ("server_gradient", "buffer_size", "server_learning_rate"),
            inner={**STALENESS_WEIGHTS, **COMPRESSORS},
        ),
        Grammar("split", {"split": Split}, exclusive=(("folds", "test_fraction"),)),
        Grammar("augmentation", {"augmentation": Inputs}, fixed=("normalization", "dtype")),
        Grammar(
            "precision",
            {"float32": float32, "float64": float64},
            instead=dict.fromkeys(("bfloat16", "float16", "half"), few_bits),
        ),
        Grammar(
            "model",
            {**MODELS, "lora": lora},
            fixed=("num_classes", "vocabulary", "tokens", "param_dtype"),
            has_default=True,
        ),
        Grammar("client_optimizer", clients, **of_optimizers),
        Grammar(
            "client_work",
            {"client_work": client_work},
            fixed=("model", "learning_rate", "optimizer", "correction"),
            has_default=True,
            exclusive=(("local_steps", "local_epochs"),),
            inner={**COMPRESSORS, "ditto": ditto},
        ),
        Grammar("server_optimizer", server, **of_optimizers),
        Grammar(
            "privacy",
            {"private": private},
            fixed=("rule", "schedule", "data_in_schedule"),
            exclusive=(("epsilon", "noise_multiplier"),),
        ),
        Grammar("secure_aggregation", {"secure": secure}, ("clip_norm",), ("rule", "seed")),
    )


CALLS = (
    *("algorithm", "protocol", "dataset", "split", "augmentation", "precision", "delay", "availability"),
    *("dropout", "partition", "model", "client_optimizer", "client_work", "server_optimizer", "privacy"),
    "secure_aggregation",
)
LISTS = ("algorithm",)  # of which a setting may have several, with commas
# {setting.argument that names a folder: the files of it that are read}
_FOLDERS = {"model.model_dir": ("config.json", "model.safetensors", "vocab.txt")}
# Under which the digest of the data set stands among the inputs of a run, and the digits of one that people read.
DATA, SHOWN = "dataset", 12
# {short name that an argument has, too: setting.argument}
SHORT_NAMES = {
    "concurrency": "protocol.concurrency",
    "buffer_size": "protocol.buffer_size",
    "client_trips": "protocol.client_trips",
    "server_steps": "protocol.server_steps",
    "learning_rate": "client_optimizer.learning_rate",
    "server_learning_rate": "server_optimizer.learning_rate",
    "local_steps": "client_work.local_steps",
    "batch_size": "client_work.batch_size",
}
_SHORT = {path: short for short, path in SHORT_NAMES.items()}


@functools.cache
def grammar(setting: str) -> Grammar:
    """What the setting may be."""
    found = [each for each in _WITHOUT_JAX if each.setting == setting] or [
        each for each in _with_jax() if each.setting == setting
    ]
    short_names = {
        path.partition(".")[2]: name for path, name in _SHORT.items() if setting_of(path) == setting
    }
    return dataclasses.replace(found[0], elsewhere=tuple(SHORT_NAMES), short_names=short_names)


@contextlib.contextmanager
def naming(setting: str, text: str = "", **others: str) -> Iterator[None]:
    """Gives a refusal of an argument of a setting's call the name that it has there.

    Args:
      setting: its name.
      text: its call. Default: one named like the setting.
      others: by the names of arguments that functions have for them.
    """
    try:
        yield
    except SettingError as error:
        argument = others.get(error.setting, error.setting)
        if grammar(setting).has(text or setting, argument):
            raise error.of(f"{setting}.{argument}") from error
        raise


def bare_name(text: str) -> str:
    """The name of a call, without its arguments and without the file of a user's own function."""
    return text.partition("(")[0].rpartition(":")[2]


def is_argument(name: str) -> bool:
    """Whether it is the dotted name of an argument of a call: ``delay.shape``."""
    return "." in name and name.partition(".")[0] in CALLS


def argument_path(name: str) -> str:
    """The dotted name of an argument that has a short one, too; every other name as it is."""
    return SHORT_NAMES.get(name, name)


def setting_of(name: str) -> str:
    """The setting that a name is of, or of whose call it is an argument: protocol of buffer_size."""
    return argument_path(name).partition(".")[0]


def short_name(name: str) -> str:
    """The short name of an argument, if it has one; every other name as it is."""
    return _SHORT.get(name, name)


def is_call(name: str, value: Any) -> bool:
    """Whether the value of a dotted name is the text of a call, perhaps of one that only stands inside another."""
    setting = name.partition(".")[0]
    try:
        return setting in CALLS and isinstance(grammar(setting).said(value), Call)
    except SettingError:
        return False


def likely_names() -> dict[str, list[str]]:
    """{what an argument may be called, shape, delay_shape or gamma_shape: the short or dotted names that it has}."""
    found = {"lr": ["learning_rate"], "server_lr": ["server_learning_rate"], "data_seed": ["split.seed"]}
    for setting in CALLS:
        for factory, having in grammar(setting).arguments().items():
            for argument in having:
                path = short_name(f"{setting}.{argument}")
                for likely in (argument, f"{setting}_{argument}", f"{factory}_{argument}"):
                    found[likely] = list(dict.fromkeys([*found.get(likely, ()), path]))
    return found


def literal(text: str) -> Any:
    """A number, truth value, None, text in quotes or list that a text says; else the text itself."""
    words = {"true": True, "false": False, "none": None, "null": None}
    if text.strip().lower() in words:
        return words[text.strip().lower()]
    try:
        value = ast.literal_eval(text.strip())
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return text
    return value if isinstance(value, (int, float, str, list)) else text


def flattened(settings: Mapping[str, Any], names: Collection[str] = CALLS) -> dict[str, Any]:
    """The settings with arguments of calls beside them, as far as a dotted name tells which: for tables.

    names: the settings of which this is so; the calls of others stay whole.

    Examples:
      >>> flattened({"delay": "once_per_client(exponential(mean=2.0))"})
      {'delay': 'once_per_client(law=exponential)', 'delay.mean': 2.0}
    """
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        flat[name] = value
        if name not in CALLS or name not in names or not isinstance(value, str):
            continue
        if name in LISTS and len(items(name, value)) > 1:
            continue
        flat[name], arguments = grammar(name).flattened(value)
        for argument, each in arguments.items():
            flat[short_name(f"{name}.{argument}")] = list(each) if isinstance(each, tuple) else each
    return flat


def files(settings: Mapping[str, Any]) -> dict[str, pathlib.Path]:
    """{setting.argument: path} of the files that the calls among a run's settings read; in a folder argument/file.

    What a file of the user's own has imported from its folder is setting/file.

    Of several arguments of one name, the second is ``delay.path[1]``, the third ``delay.path[2]``.
    """
    found: dict[str, pathlib.Path] = {}
    for name in CALLS:
        texts = items(name, settings[name]) if settings.get(name) else []
        for each in filter(own_name, texts):
            found[name] = place = file_of(own_name(each))
            with contextlib.suppress(SettingError):  # of a file that is not there; whoever needs it says so
                grammar(name).factory(own_name(each))
            found |= {f"{name}/{file}": place.resolve().parent / file for file in imports_of(place)}
        for call in [] if name in LISTS or not texts else all_calls(grammar(name).read(settings[name])):
            for argument, path in call.arguments.items():
                if path is None or not is_file(grammar(name).hints(call.name).get(argument, Any)):
                    continue
                what, place = f"{name}.{argument}", in_home(path)
                number = sum(other.partition("[")[0] == what for other in found)
                own_files = {f"{what}/{file}": place / file for file in _FOLDERS.get(what, ())}
                found |= own_files or {f"{what}[{number}]" if number else what: place}
    return found


def argument(settings: Mapping[str, Any], name: str) -> Any:
    """The value of a setting, or of an argument under its dotted or short name; None of one that its call has not."""
    setting, dot, path = argument_path(name).partition(".")
    text = settings.get(setting)
    if not dot or not isinstance(text, str) or (setting in LISTS and len(items(setting, text)) != 1):
        return None if dot else text
    grammar(setting).read(text)  # refuses what is no call
    # A user's own file may hold something else later.
    return copied((_argument.__wrapped__ if own_name(text) else _argument)(setting, text, path))


@functools.cache
def _argument(setting: str, text: str, path: str) -> Any:
    """``argument`` of a call: most are asked for many times, and a refusal takes long to word."""
    with contextlib.suppress(SettingError):
        return grammar(setting).value(text, path)
    return None


def input_digests(settings: "Settings", source: "Source") -> dict[str, str]:
    """{what: SHA-256} of everything that a run reads from files; as ``inputs`` of ``config.json``.

    A data set counts under ``dataset``, by the content that it has before any split, wherever its files lie.

    Args:
      settings: of the run, every default filled in, and what it does not read at its default.
      source: its data set.
    """
    data = {} if source.digest is None else {DATA: source.digest}
    paths = files(vars(settings))
    return data | {what: checksums.file_checksum(path) for what, path in paths.items() if path.is_file()}


def changed_inputs(
    settings: Mapping[str, Any], before: Mapping[str, str], now: Mapping[str, str]
) -> list[str]:
    """A line for each input whose content has changed: which one, where it lies, and both digests.

    Args:
      settings: of the run, as ``config.json`` has them.
      before: its ``inputs``.
      now: the same of today.
    """
    paths = files(settings)
    lines = []
    for what in dict.fromkeys([*before, *now]):
        old, new = before.get(what), now.get(what)
        if old == new:
            continue
        is_data = what == DATA and what not in paths
        where = "the data set" if is_data else "the file"
        name = settings.get(DATA) if is_data else str(paths.get(what, what.partition("/")[2]))
        held, holds = (f"{each[:SHOWN]}..." if each else "nothing" for each in (old, new))
        lines.append(f"{what}: {where} {name!r} held {held}, and holds {holds} (SHA-256)")
    return lines
