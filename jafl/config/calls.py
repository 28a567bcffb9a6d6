"""The settings whose values are calls of public factories, each with its grammar."""

import ast
import contextlib
import dataclasses
import functools
import pathlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from jafl import data
from jafl.base.errors import SettingError, did_you_mean, refusal
from jafl.config.grammar import Grammar
from jafl.config.own_files import file_of, own_name
from jafl.config.parsing import items
from jafl.config.values import Call, written
from jafl.records import EventSchedule
from jafl.schedule import (
    AVAILABILITIES,
    DELAYS,
    asynchronous,
    compass,
    delays,
    drawn_staleness,
    dropout,
    duration_trace,
    open_arrivals,
    polled,
    queued,
    read_availability,
    synchronous,
    tiered,
)

PROTOCOLS: dict[str, Callable[..., EventSchedule]] = {
    "asynchronous": asynchronous,
    "synchronous": synchronous,
    "open_arrivals": open_arrivals,
    "drawn_staleness": drawn_staleness,
    "queued": queued,
    "compass": compass,
    "tiered": tiered,
    "polled": polled,
}
# The argument that holds the trips per server step, by protocol; of one without, they follow from the arrivals.
TRIPS_PER_STEP = {
    "asynchronous": "buffer_size",
    "synchronous": "cohort_size",
    "open_arrivals": "buffer_size",
    "drawn_staleness": "buffer_size",
    "queued": "buffer_size",
    "tiered": "cohort_size",
    "polled": "cohort_size",
}
# Protocols in which nobody fails, leaves or is away.
WITHOUT_LOSSES = ("drawn_staleness", "queued", "compass", "tiered", "polled")
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
        fixed=(
            *("data_dir", "cache_dir", "num_clients"),
            *("test_fraction", "validation_fraction", "data_seed"),
        ),
    ),
    Grammar(
        "delay",
        {**DELAYS, **{law.__name__: law for law in _LAWS}, "duration_trace": duration_trace},
        supplied=("model_bytes", "upload_bytes"),
        fixed=("num_examples",),
    ),
    Grammar("availability", {**AVAILABILITIES, "read_availability": read_availability}),
    Grammar(
        "dropout",
        {maker.__name__: maker for maker in (dropout.nobody, dropout.fraction, dropout.clients)},
    ),
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
    server = {
        "sgd": optax.sgd,
        "adam": optax.adam,
        "adagrad": optax.adagrad,
        "yogi": optax.yogi,
        "reddi_adam": server_optimizers.fedadam,
        "reddi_adagrad": server_optimizers.fedadagrad,
        "reddi_yogi": server_optimizers.fedyogi,
        "fedamsgrad": server_optimizers.fedamsgrad,
        "heloco": server_optimizers.heloco,
        "delayed_nesterov": server_optimizers.delayed_nesterov,
    }
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
# What a call is whose argument is given and that is left out itself, where it has no default of its own.
_LEFT_OUT = {"partition": "dirichlet", "privacy": "private", "secure_aggregation": "secure"}
LISTS = ("algorithm",)  # of which a setting may have several, with commas
# {setting.argument that names a folder: the files of it that are read}
_FOLDERS = {"model.model_dir": ("config.json", "model.safetensors", "vocab.txt")}
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


def bare_name(text: str) -> str:
    """The name of a call, without its arguments and without the file of a user's own function."""
    return text.partition("(")[0].rpartition(":")[2]


def argument_path(name: str) -> str:
    """The dotted name of an argument that has a short one, too; every other name as it is."""
    return SHORT_NAMES.get(name, name)


def setting_of(name: str) -> str:
    """The setting that a name is of, or of whose call it is an argument: protocol of buffer_size."""
    return argument_path(name).partition(".")[0]


def short_name(name: str) -> str:
    """The short name of an argument, if it has one; every other name as it is."""
    return _SHORT.get(name, name)


def with_arguments(
    values: Mapping[str, Any], *layers: Mapping[str, Any], defaults: Mapping[str, Any]
) -> dict[str, Any]:
    """``values`` by the names of settings: those of dotted and short names are put into the calls that have them.

    Args:
      values: {setting, or setting.argument, or an argument's short name: value}.
      layers: the same, each in the place of what comes before. An argument stays where a later layer gives another
        call that has it and does not say it.
      defaults: {setting: value} of calls that ``values`` does not have.

    Raises:
      SettingError: for a dotted name whose setting is no call, or whose call has no such argument.

    Examples:
      >>> with_arguments({"delay.shape": 2, "delay": "gamma", "seed": "1"}, defaults={})
      {'delay': 'gamma(shape=2.0)', 'seed': '1'}
    """
    whole: dict[str, Any] = {}
    set_to: dict[str, tuple[str, Any]] = {}  # {setting.argument: (its name as given, its value)}
    for layer in (values, *layers):
        _refuse_two_names(layer)
        for name, value in layer.items():
            if "." in name or name in SHORT_NAMES:
                continue
            before = whole.get(name, defaults.get(name))
            if name in CALLS and value is not None and isinstance(before, str) and grammar(name).has_default:
                value = grammar(name).on(value, before)
            whole[name] = value
            for path in [each for each in set_to if each.partition(".")[0] == name]:
                if value is None or says(name, value, path.partition(".")[2]) is not False:
                    del set_to[path]
        for name, value in layer.items():
            path = argument_path(name)
            if "." in path:
                setting = path.partition(".")[0]
                _check_call(name, value, setting)
                for other in [each for each in set_to if _exclude(path, each) and value is not None]:
                    del set_to[other]
                set_to.pop(path, None)
                set_to[path] = name, value
    return _with_set(whole, set_to, defaults)


def _with_set(
    whole: dict[str, Any], set_to: Mapping[str, tuple[str, Any]], defaults: Mapping[str, Any]
) -> dict[str, Any]:
    """``whole`` with the arguments put into its calls."""
    found: dict[str, Any] = {}
    # Calls first: their arguments may be among the others.
    for path, (name, value) in sorted(set_to.items(), key=lambda item: not is_call(item[0], item[1][1])):
        setting, _, argument = path.partition(".")
        text: Any = whole.get(setting, defaults.get(setting))
        text = _LEFT_OUT.get(setting) if text is None else text
        if value is None and isinstance(text, str) and says(setting, text, argument) is None:
            continue  # left out of a call that does not have it
        try:
            whole[setting] = ",".join(changed(setting, _listed(setting, text), argument, value))
        except SettingError as error:
            raise (error.of(name) if error.setting == path and error.allowed else error) from None
        if setting not in LISTS:
            found[path] = grammar(setting).value(whole[setting], argument)
    # One may have taken the place of another's call: then the order would decide.
    for path, value in found.items():
        setting, _, argument = path.partition(".")
        if _head(grammar(setting).value(whole[setting], argument)) != _head(value):
            raise SettingError(
                f"{path} is {written(value)}, but another argument of {setting} takes its place. "
                f"Write the whole value of {setting}.",
                setting=path,
                value=value,
            )
    return whole


def changed(setting: str, texts: Sequence[str], argument: str, value: Any) -> list[str]:
    """The calls, another value of an argument in those that have it; SettingError where none of them has."""
    changed_texts, refusals = [], []
    for text in texts:
        try:
            changed_texts.append(grammar(setting).changed(text, argument, value))
        except SettingError as error:
            if error.allowed:  # it has the argument
                raise
            changed_texts.append(text)
            refusals.append(error)
    if refusals and len(refusals) == len(texts):
        raise refusals[0]
    return changed_texts


def _listed(setting: str, text: str) -> list[str]:
    return items(setting, text) if setting in LISTS else [text]


def says(setting: str, text: str, argument: str) -> bool | None:
    """Whether a call, or one of a list, says the value of an argument itself; None where none has the argument."""
    said = None
    for one in _listed(setting, text):
        with contextlib.suppress(SettingError):
            said = grammar(setting).says(one, argument) or bool(said)
    return said


def _exclude(path: str, other: str) -> bool:
    """Whether two arguments exclude each other."""
    setting, _, argument = path.partition(".")
    partners = grammar(setting).partners(argument) if setting in CALLS else ()
    return other in {f"{setting}.{partner}" for partner in partners}


def _refuse_two_names(layer: Mapping[str, Any]) -> None:
    """Raises SettingError for an argument under both of its names, and for two that exclude each other."""
    given: dict[str, tuple[str, Any]] = {}
    for name, value in layer.items():
        path = argument_path(name)
        if "." not in path:
            continue
        said = literal(value) if isinstance(value, str) else value
        if path in given:
            raise refusal(name, said, f"left out where {given[path][0]}, the same setting, is given")
        for other, (other_name, other_value) in given.items():
            if said is not None and other_value is not None and _exclude(path, other):
                raise refusal(name, said, f"left out where {other_name} is given ({other_value!r})")
        given[path] = name, said


def _check_call(name: str, value: Any, setting: str) -> None:
    """Raises SettingError unless a setting has arguments."""
    if setting not in CALLS:
        hint = did_you_mean(setting, CALLS)
        raise SettingError(
            f"{name!r} is no setting's name; those with arguments are {', '.join(CALLS)}. {hint}".rstrip(),
            setting=name,
            value=value,
        )


def is_call(name: str, value: Any) -> bool:
    """Whether the value of a dotted name is a call."""
    setting = name.partition(".")[0]
    return setting in CALLS and grammar(setting).is_call(value)


def _head(value: Any) -> Any:
    """The value; of a call its name, as other dotted names may change its arguments."""
    return value.name if isinstance(value, Call) else value


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
    """{setting.argument: path} of the files that the calls among a run's settings read; in a folder argument/file."""
    found: dict[str, pathlib.Path] = {}
    for name in CALLS:
        for each in items(name, settings[name]) if settings.get(name) else ():
            if own := own_name(each):
                found[name] = file_of(own)
        text = None if name in LISTS else settings.get(name)
        for argument, path in grammar(name).paths(text).items() if text else ():
            what, place = f"{name}.{argument}", pathlib.Path(path).expanduser()
            if what in _FOLDERS:
                found |= {f"{what}/{file}": place / file for file in _FOLDERS[what]}
            else:
                found[what] = place
    return found


def argument(settings: Mapping[str, Any], name: str) -> Any:
    """The value of a setting, or of an argument under its dotted or short name; None of one that its call has not."""
    setting, dot, path = argument_path(name).partition(".")
    text = settings.get(setting)
    if not dot or not isinstance(text, str) or (setting in LISTS and len(items(setting, text)) != 1):
        return None if dot else text
    grammar(setting).read(text)
    with contextlib.suppress(SettingError):
        return grammar(setting).value(text, path)
    return None


def without_numbers(settings: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """The settings, a mark in the place of those of these names, of arguments of calls, too, that are numbers."""
    found = {}
    for name, value in settings.items():
        own = [path for path in map(argument_path, names) if path.partition(".")[0] == name]
        if own and name in CALLS and value is not None:
            value = grammar(name).without_numbers(value, [path.rpartition(".")[2] for path in own])
        elif own:
            value = None if value is None else "number"
        found[name] = value
    return found
