"""Every setting of a run, once: its name, its default, what it means. The flags of ``run.py`` are made from it.

A setting whose default is None is filled in by the algorithm's preset (``jafl.config.presets``) or by what the help
text says.
"""

import dataclasses
import difflib
import json
import pathlib
import types
import typing
from typing import Any

from jafl.errors import SettingError, require


def _setting(default: Any, help_text: str) -> Any:
    return dataclasses.field(default=default, metadata={"help": help_text})


@dataclasses.dataclass(frozen=True)
class Settings:
    """What one run is made of, or, with commas in ``algorithm`` or ``seed``, several that are compared."""

    algorithm: str = _setting(
        "fedbuff,fedasync,fedavgm,fedavg",
        "What to run; several, with commas, are compared. Asynchronous: fedbuff, fedasync, fedstaleweight, "
        "exponential_weighting, ca2fl, asgd, delay_adaptive_asgd, ace, aced, ace_8bit, aced_8bit, wkafl, twafl, "
        "sasgd, gsgm, zeno_plus_plus. Synchronous: fedavg, fedavgm, fedprox, fednova, fedadagrad, fedadam, fedyogi.",
    )
    seed: str = _setting(
        "0", "Seed of the partition, schedule, initial model and shuffles. Several, with commas: 0,1,2."
    )
    protocol: str | None = _setting(
        None,
        "asynchronous (clients train all the time, the server steps when its buffer is full), synchronous (rounds), "
        "open_arrivals (clients start at a rate), drawn_staleness (delays count server steps). Default: the "
        "algorithm's own.",
    )
    precision: str = _setting(
        "float32", "float32, or float64 to compare with other programs to the last digits."
    )
    devices: int | None = _setting(
        None, "On how many of this machine's devices to train. Default: all that pay."
    )

    dataset: str = _setting(
        "digits",
        "digits (1,797 real 8x8 images, bundled), synthetic (FedProx's logistic data, at any size); cifar10, "
        "cifar100, mnist, fashion_mnist, emnist/byclass, emnist/mnist, celeb_a, sentiment140 (once "
        "--prepare=NAME has been run); femnist/leaf, femnist/fedjax, femnist/tff, newsgroups (files in data_dir).",
    )
    data_dir: str | None = _setting(
        None,
        "Folder of the data set. Default: TFDS_DATA_DIR or ~/tensorflow_datasets; newsgroups: SCIKIT_LEARN_DATA or "
        "~/scikit_learn_data; none for femnist.",
    )
    cache_dir: str | None = _setting(
        None, "Folder for decoded data sets. Default: jafl_cache in the folder of the data set."
    )
    num_clients: int = _setting(100, "Number of clients.")
    partition: str | None = _setting(
        None,
        "Who holds which examples: iid, dirichlet (label skew), labels_per_client (WKAFL), label_groups "
        "(FedStaleWeight), natural (as the data set comes). Default: natural where there is one, else dirichlet.",
    )
    dirichlet_alpha: float = _setting(0.3, "Dirichlet concentration: small is very non-IID, 100 nearly IID.")
    dirichlet_equal_sizes: bool = _setting(
        False, "Dirichlet with the same number of examples for every client."
    )
    labels_per_client: int = _setting(2, "Labels that each client holds (partition=labels_per_client).")
    smallest_client: int = _setting(10, "Fewest examples of a client (partition=labels_per_client).")
    largest_client: int = _setting(49, "Most examples of a client (partition=labels_per_client).")
    label_groups: str = _setting(
        "10:4-9;5:0-3",
        "Groups of clients and the labels they own (partition=label_groups): clients:labels;... with labels "
        "like 0-3 or 1,5,7.",
    )
    richest_last: str = _setting(
        "",
        "Labels, like 0-2: number the clients by the share of their examples that have these, the richest last, "
        "where delay_groups can make them slow (ACE's question). Default: as drawn.",
    )
    partition_seed: int | None = _setting(None, "Seed of the partition. Default: the run's seed.")
    client_test_fraction: float = _setting(
        0.0, "Share of each client's own examples held out of training, to measure its own accuracy."
    )
    validation_fraction: float = _setting(0.0, "Share of the examples held out for validation.")
    test_fraction: float | None = _setting(
        None,
        "Share of all examples held out for the test. Default: the data set's own test examples; 0.2 of digits and "
        "synthetic, 0.1 of celeb_a and sentiment140.",
    )
    data_seed: int | None = _setting(
        None,
        "Seed of the train/validation/test split and of synthetic examples. Default: 0; LEAF's 1549775860 for "
        "sentiment140.",
    )
    split_by: str | None = _setting(
        None,
        "What is divided into training, validation and test (celeb_a, sentiment140): clients, or each client's "
        "examples. Default: clients.",
    )
    data_fraction: float | None = _setting(
        None,
        "Use only so large a share of the data, whole clients (celeb_a, sentiment140). FedBuff: 0.15 of tweets.",
    )
    normalization: str | None = _setting(
        None,
        "Of images, on the device: unit (to 0..1), half (to -1..1), data_set (by mean and standard deviation of the "
        "data set). Default: as in the papers.",
    )
    random_crop: int = _setting(
        0, "Pixels of zeros around a training image before a random crop; 4 for CIFAR."
    )
    random_flip: bool = _setting(False, "Mirror training images left to right, at random.")
    tokens: int | None = _setting(
        None, "Tokens of a text, cut or padded. Default: 25 (sentiment140), 128 (newsgroups)."
    )
    vocabulary_size: int | None = _setting(
        None, "Most frequent words that texts are read with. Default: 10000."
    )
    wordpiece_vocabulary: str | None = _setting(
        None, "BERT's vocab.txt: read texts as its word pieces instead of words (newsgroups)."
    )
    synthetic_alpha: float = _setting(1.0, "How much the clients' labelling models differ (synthetic).")
    synthetic_beta: float = _setting(1.0, "How much the clients' examples differ (synthetic).")
    synthetic_mean_examples: float = _setting(100.0, "Mean examples per client (synthetic).")
    synthetic_shared_labels: bool = _setting(
        False, "One labelling model for all clients, so that global accuracy means something (synthetic)."
    )

    model: str = _setting(
        "mlp",
        "For any data: softmax (from zeros), mlp. Images: cnn, emnist_cnn, lenet5, celeba_cnn, leaf_celeba_cnn, "
        "fedbuff_cnn, fedstaleweight_fashion_cnn, fedstaleweight_cifar_cnn, resnet18. Texts: sent140_lstm, "
        "distilbert, bert. help(jafl.models.NAME) in Python tells where each is from.",
    )
    hidden_sizes: str = _setting("64", "Widths of the mlp's hidden layers, with commas.")
    channels: str = _setting("16,32", "Widths of the cnn's convolutions, with commas.")
    normalization_layer: str = _setting("group", "Of resnet18: group (32 groups) or layer (one group).")
    embeddings_file: str = _setting(
        "",
        "GloVe file with the word vectors of sent140_lstm, which then stay fixed. Default: they are learned.",
    )
    model_dir: str = _setting(
        "",
        "Directory with config.json, model.safetensors and vocab.txt, as Hugging Face has them (distilbert, bert).",
    )
    fine_tune: str = _setting(
        "all", "What is trained: all, or head, what comes on top of the encoder (distilbert, bert)."
    )

    server_examples: int = _setting(
        0, "Training examples that the server keeps for itself and no client holds (zeno_plus_plus)."
    )
    server_classes: str = _setting(
        "", "Labels of the server's examples, like 0-3 or 1,5. Default: all of them."
    )

    concurrency: int | None = _setting(
        None,
        "Clients training at one moment. Default: 20, or as many as there are clients if fewer; all of them for ace "
        "and aced, where every client takes part.",
    )
    restart: str | None = _setting(
        None,
        "When a finished client's place is taken (asynchronous): at_once; not_twice_in_a_buffer (not by a client "
        "whose update waits in the buffer); after_step (K-asynchronous: together, after the server's step); "
        "after_round (who has contributed waits until all have). Default: the algorithm's, mostly at_once.",
    )
    cancel_at_step: bool = _setting(
        False,
        "Throw away the trips under way when the server steps (asynchronous): with restart=after_step this is "
        "K-sync, with at_once K-batch-sync.",
    )
    staleness_limit: int | None = _setting(None, "Most server steps that an applied update may be stale.")
    too_stale: str = _setting(
        "drop", "What happens beyond staleness_limit: drop the update, or wait with the step for stale trips."
    )
    flush_after: float | None = _setting(
        None, "Apply a buffer that is not full once its first update has waited for so much simulated time."
    )
    start_rate: float | None = _setting(
        None, "Starts per unit of simulated time (open_arrivals). Default: concurrency / delay_mean."
    )
    starts: str = _setting("poisson", "Gaps between starts: poisson or constant (open_arrivals).")
    exclude_busy: bool = _setting(
        True, "A client under way is not started again (open_arrivals); false: drawn with replacement."
    )
    failure_rate: float = _setting(0.0, "Share of trips that take their time and bring nothing.")
    availability: str = _setting(
        "always",
        "When clients are there to start: always, diurnal (a share of each day), on_and_off (temporary dropout), or "
        "a CSV or NPZ file with columns client, start, end.",
    )
    day_length: float = _setting(24.0, "Length of a day, in units of simulated time (diurnal).")
    day_share: float = _setting(0.5, "Share of the day for which each client is there (diurnal).")
    day_spread: float = _setting(1.0, "How far the clients' days are apart: 0 to 1 day (diurnal).")
    mean_on: float = _setting(10.0, "Mean time for which a client is there (on_and_off).")
    mean_off: float = _setting(10.0, "Mean time for which a client is away (on_and_off).")
    availability_period: float | None = _setting(
        None, "Repeat the windows of an availability file after so much time. Default: once, then never."
    )
    lose_trips: bool | None = _setting(
        None, "A trip is lost if its client goes away meanwhile. Default: true for on_and_off, else false."
    )
    dropout_fraction: float = _setting(
        0.0, "Share of the clients that leave for ever (asynchronous), at one of the next three."
    )
    dropout_step: int | None = _setting(None, "They leave after so many server steps,")
    dropout_time: float | None = _setting(None, "or at this simulated time,")
    dropout_trips: int | None = _setting(None, "or each after so many trips of its own.")
    buffer_size: int | None = _setting(
        None, "Trips per server step when asynchronous (K). Default: the algorithm's, 10 for FedBuff."
    )
    cohort_size: int | None = _setting(
        None, "Trips per server step when synchronous. Default: the concurrency."
    )
    over_selection: float = _setting(
        0.0, "Share of extra clients started in each synchronous round and cancelled when late, 0.3 say."
    )
    client_trips: int | None = _setting(
        None,
        "Stop after so many client trips (started ones: cancelled trips count). Default: 10000 unless "
        "server_steps is given.",
    )
    server_steps: int | None = _setting(None, "Stop after so many server steps instead.")
    delay: str = _setting(
        "log_normal",
        "Law of trip durations: constant, uniform, half_normal, exponential, log_normal, "
        "gamma, pareto, proportional_to_examples (exponential, mean by the client's examples), groups, or a CSV or "
        "NPZ file with columns client, duration.",
    )
    delay_mean: float = _setting(1.0, "Mean duration, in units of simulated time (every law but groups).")
    delay_low: float = _setting(0.0, "Shortest duration (uniform).")
    delay_high: float | None = _setting(
        None, "Longest duration (uniform). Default: such that the mean is delay_mean."
    )
    delay_sigma: float = _setting(1.0, "Spread of the logarithm (log_normal).")
    delay_groups: str = _setting(
        "10:uniform(1,2);5:uniform(8,12)",
        "Groups of clients and their laws (delay=groups): clients:law(numbers);...",
    )
    delay_shape: float = _setting(2.5, "Shape (gamma, pareto); pareto's must be above 1.")
    delay_trace_cycled: bool = _setting(
        True,
        "A client begins its recorded durations again after the last one; else a trip beyond it is refused.",
    )
    delay_slow_fraction: float = _setting(
        0.0, "Chance of each client to be slow, drawn once (every law but groups and files)."
    )
    delay_slow_factor: float = _setting(10.0, "How many times longer the trips of slow clients take.")
    delay_download_bandwidth: float | None = _setting(
        None, "Mean bandwidth, in bytes per unit of simulated time. Default: sending takes no time."
    )
    delay_upload_bandwidth: float | None = _setting(None, "The same for uploads.")
    delay_bandwidth_sigma: float = _setting(
        0.0, "Spread of the logarithm of the clients' bandwidths, drawn once for each; 0: all the same."
    )
    delay_model_bytes: float | None = _setting(
        None, "Bytes sent each way. Default: those of the model's parameters."
    )
    delay_throttled: str = _setting(
        "", "Clients that work at a share of their speed: clients:share, as in 0-4:0.5."
    )
    delay_draw: str = _setting(
        "per_client", "per_trip: a fresh duration for every trip; per_client: one for each client."
    )

    learning_rate: float | None = _setting(None, "Clients' learning rate. Default: the preset's.")
    client_optimizer: str = _setting("sgd", "Clients' optimizer, new at each trip: sgd, adam or adamw.")
    client_momentum: float | None = _setting(None, "Clients' momentum (sgd). Default: none.")
    local_steps: int | None = _setting(None, "Minibatch steps per trip. Default: whole epochs instead.")
    local_epochs: int | None = _setting(
        None, "Passes over the client's examples per trip. Default: 1 unless local_steps is given."
    )
    batch_size: int = _setting(8, "Examples per minibatch; 0: the client's whole data set as one batch.")
    proximal: float | None = _setting(None, "FedProx's mu. Default: none, 0.01 for fedprox.")
    l2: float | None = _setting(None, "L2 term on all parameters. Default: none.")
    learning_rate_normalization: bool = _setting(
        False, "LR-Norm: steps on short batches use a proportionally smaller learning rate."
    )

    server_learning_rate: float | None = _setting(
        None, "Server's learning rate (FedAsync's alpha). Default: the preset's."
    )
    server_optimizer: str | None = _setting(
        None,
        "Server's optimizer: sgd, adam, adagrad or yogi as optax has them, reddi_adam, reddi_adagrad or reddi_yogi "
        "as Reddi et al. do. Default: the preset's, mostly sgd.",
    )
    server_momentum: float | None = _setting(None, "Server's momentum (sgd). Default: none, 0.9 for fedavgm.")
    staleness_weight: str = _setting(
        "polynomial",
        "How much a late update counts: constant, polynomial, hinge, exponential (fedbuff, fedasync).",
    )
    staleness_exponent: float = _setting(0.5, "Exponent of the polynomial weight.")
    staleness_slope: float = _setting(10.0, "Slope of the hinge weight.")
    staleness_threshold: float = _setting(4.0, "Staleness from which the hinge weight falls.")
    staleness_rate: float = _setting(0.1, "Rate of the exponential weight.")
    aggregate: str = _setting("mean", "mean over the buffer, or sum (fedbuff).")
    weigh_by_examples: bool = _setting(
        False, "Weigh updates by the clients' numbers of examples (fedavg, fedbuff)."
    )

    memory_precision: str | None = _setting(
        None,
        "How the server keeps one update per client: full, bfloat16, int8 (ace, aced, ca2fl). Default: full; int8 "
        "for ace_8bit and aced_8bit.",
    )
    rule_arguments: str = _setting(
        "",
        "Arguments of the rule that have no flag of their own, with commas, for all algorithms or for one: "
        "active_steps=10,wkafl.momentum=0.2. help(jafl.rules.NAME) in Python tells them.",
    )

    target_accuracy: float = _setting(0.95, "Test accuracy whose first reaching is reported.")
    evaluate_every: int | None = _setting(
        None, "Client trips between evaluations. Default: a hundredth of the run."
    )
    decompose_steps: int = _setting(
        0,
        "At so many server steps, evenly spread, split the server's error into noise, bias and delay by full "
        "gradients (ACE, equations 3 and 4; one local step, rules that are linear in the updates).",
    )
    train_accuracy: bool = _setting(False, "Also measure the accuracy on all training examples.")

    @classmethod
    def from_file(cls, path: str, **explicit: Any) -> "Settings":
        """The settings in a run's ``config.json``, with ``explicit`` ones instead where given.

        Of two settings that exclude each other, an explicit one takes the other's place.

        Raises SettingError if the file is not there, is not such a file, or holds an unknown setting.
        """
        try:
            content = json.loads(pathlib.Path(path).read_text())
        except OSError as error:
            raise SettingError(f"config is {path!r}, but cannot be read: {error.strerror}.") from error
        except ValueError as error:
            raise SettingError(f"config is {path!r}, but is not JSON: {error}.") from error
        require(
            isinstance(content, dict) and content.get("format") == FORMAT,
            f"format in {path}",
            content.get("format") if isinstance(content, dict) else None,
            f"{FORMAT}, this version's",
        )
        given = {name: value for name, value in content.items() if name not in NOT_SETTINGS}
        for pair in EXCLUSIVE:
            for one, other in (pair, pair[::-1]):
                if explicit.get(one) is not None and other not in explicit:
                    given.pop(other, None)
        if explicit.get("algorithm", given.get("algorithm")) != given.get("algorithm"):
            # What the earlier algorithm filled in is not what the user asked of this one.
            given = {name: value for name, value in given.items() if name not in FILLED_BY_ALGORITHM}
        return cls.from_mapping({**given, **explicit})

    @classmethod
    def from_mapping(cls, values: typing.Mapping[str, Any]) -> "Settings":
        """Settings from names and values; raises SettingError for an unknown name or a value of a wrong type."""
        values = with_current_names(values)
        for name, value in values.items():
            if name not in TYPES:
                near = difflib.get_close_matches(name, TYPES, n=1, cutoff=0.5)
                hint = f"Did you mean {near[0]!r}?" if near else "See --help for all settings."
                raise SettingError(f"{name!r} (here {value!r}) is not the name of a setting. {hint}")
            kinds = TYPES[name] + ((int,) if float in TYPES[name] else ())
            fits = isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool))
            require(fits, name, value, " or ".join(KINDS[kind] for kind in TYPES[name]))
        return cls(**values)

    def changed(self, *changes: typing.Mapping[str, Any]) -> "Settings":
        """These settings with ``changes``, the later ones in the place of the earlier.

        Of two settings that exclude each other, one that is given takes the place of the other.

        Raises SettingError for an unknown name or a value of a wrong type.
        """
        values = dataclasses.asdict(self)
        for change in changes:
            for pair in EXCLUSIVE:
                for one, other in (pair, pair[::-1]):
                    if change.get(one) is not None and change.get(other) is None:
                        values[other] = None
            values |= change
        return self.from_mapping(values)


def with_current_names(values: typing.Mapping[str, Any]) -> dict[str, Any]:
    """``values`` by name, settings that had another name in earlier files under today's."""
    return {RENAMED.get(name, name): value for name, value in values.items()}


FORMAT = 1
RENAMED = {"normalisation": "normalization"}  # {name in earlier files and commands: today's}
NOT_SETTINGS = (
    "format",
    "versions",
    "device",
    "command",
    "runs",
    "sweep",
    "label",
    "arms",
    "refinements",
    "listed",
)
# Pairs of which at most one is given.
FILLED_BY_ALGORITHM = (
    "protocol",
    "concurrency",
    "buffer_size",
    "cohort_size",
    "learning_rate",
    "local_steps",
    "local_epochs",
    "proximal",
    "restart",
    "memory_precision",
    "server_learning_rate",
    "server_optimizer",
    "server_momentum",
)
EXCLUSIVE = (("client_trips", "server_steps"), ("local_steps", "local_epochs"))
KINDS = {int: "a whole number", float: "a number", str: "text", bool: "true or false", type(None): "null"}
DEFAULTS: dict[str, Any] = {field.name: field.default for field in dataclasses.fields(Settings)}
TYPES: dict[str, tuple[type, ...]] = {
    name: typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    for name, hint in typing.get_type_hints(Settings).items()
}
