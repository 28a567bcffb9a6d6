"""Synthetic examples with clients of their own: FedProx's synthetic(alpha, beta)."""

import math

import numpy as np

from jafl.base.described import described
from jafl.base.errors import require
from jafl.data.checks import finite_number, generator, whole_number
from jafl.data.partition import Partition, client_offsets
from jafl.data.source import Source
from jafl.data.splits import check_fractions

_SYNTHETIC = 202  # its random stream, see ``digits``

_LARGEST_SPREAD = 1e30  # beyond it examples are infinite in float32

# FedProx draws sizes as 50 + lognormal(4, 2), whose mean is 50 + exp(6).
_FEDPROX_SMALLEST_OVER_MEAN = 50 / (50 + math.exp(6))


@described
def synthetic(
    *,
    num_clients: int,
    alpha: float = 1.0,
    beta: float = 1.0,
    mean_examples: float = 100.0,
    size_spread: float = 2.0,
    num_features: int = 60,
    num_classes: int = 10,
    shared_labels: bool = False,
    test_fraction: float = 0.2,
    validation_fraction: float = 0.0,
    data_seed: int = 0,
) -> Source:
    """FedProx's synthetic(alpha, beta): logistic data with a distribution per client.

    Source: Li et al. 2020, "Federated Optimization in Heterogeneous Networks", section 5.1 and appendix C.1;
    like its released code, ``alpha`` and ``beta`` are standard deviations. Client k has

      labels    y = argmax(W_k x + b_k), every entry of W_k and b_k ~ N(u_k, 1), u_k ~ N(0, alpha)
      examples  x ~ N(v_k, diag(j^-1.2)), every entry of v_k ~ N(B_k, 1), B_k ~ N(0, beta)

    u_k adds the same to every class's logit, so ``alpha`` changes no label but by rounding: clients disagree because
    each draws its own W_k. The more clients, the less well can one model serve them all.

    Sizes, test examples included, are 0.11 mean_examples + a log-normal number with ``size_spread`` as the
    standard deviation of its logarithm, rounded, at least 2 (3 with validation): FedProx's
    50 + lognormal(4, 2), scaled from its mean of 453.4 to ``mean_examples``. About ``test_fraction`` of every
    client's examples, at least one, go to the common test set, likewise for validation, and at least one stays for
    training.

    Args:
      num_clients: number of clients, N.
      alpha: standard deviation of u_k, at least 0.
      beta: standard deviation of B_k, at least 0.
      mean_examples: mean number of examples of a client, test examples included; at least 2 (3 with validation).
      size_spread: standard deviation of the logarithm of the sizes. With 2 the largest of thousands of clients
        holds hundreds of times the mean; 0 makes all sizes equal.
      num_features: length of an example.
      num_classes: number of classes, at least 2.
      shared_labels: gives all clients one W and b, so that global accuracy means something with many clients; the
        distributions of their examples still differ.
      test_fraction: share of each client's examples for the common test set, above 0.
      validation_fraction: share of each client's examples for validation.
      data_seed: seed of all draws.

    Returns:
      The source, x [E, num_features] float32 grouped by client, with the clients as ``natural_partition``.

    Raises:
      SettingError: for a value outside its range.

    Examples:
      >>> jafl.data.synthetic(num_clients=3, alpha=1, beta=1).natural_partition.num_clients
      3
    """
    num_clients = whole_number("num_clients", num_clients, 1)
    num_features = whole_number("num_features", num_features, 1)
    num_classes = whole_number("num_classes", num_classes, 2)
    for setting, value in (("alpha", alpha), ("beta", beta), ("size_spread", size_spread)):
        require(finite_number(value) and value >= 0, setting, value, "a finite number of at least 0")
        require(value <= _LARGEST_SPREAD, setting, value, f"at most {_LARGEST_SPREAD:g}")
    check_fractions(test_fraction, validation_fraction)
    min_examples = 3 if validation_fraction > 0 else 2
    require(
        finite_number(mean_examples) and mean_examples >= min_examples,
        "mean_examples",
        mean_examples,
        f"a finite number of at least {min_examples}",
        "Every client gives an example to every split.",
    )

    rng = generator("data_seed", data_seed, _SYNTHETIC)
    sizes = _sizes(num_clients, mean_examples, size_spread, min_examples, rng)
    x, y = _logistic_examples(sizes, alpha, beta, num_features, num_classes, shared_labels, rng)
    split, train_sizes = _split_of_examples(sizes, test_fraction, validation_fraction)
    train, test, validation = split == 0, split == 1, split == 2
    offsets = client_offsets(train_sizes)
    return Source(
        "synthetic",
        x[train],
        y[train],
        x[test],
        y[test],
        num_classes,
        validation_x=x[validation] if validation_fraction > 0 else None,
        validation_y=y[validation] if validation_fraction > 0 else None,
        natural_partition=Partition(offsets, np.arange(offsets[-1])),
    )


def _sizes(
    num_clients: int, mean: float, spread: float, min_examples: int, rng: np.random.Generator
) -> np.ndarray:
    """[N] int64: examples per client, training and test together."""
    smallest = mean * _FEDPROX_SMALLEST_OVER_MEAN
    log_mean = math.log(mean - smallest) - spread**2 / 2  # so that the log-normal's mean is mean - smallest
    sizes = smallest + rng.lognormal(log_mean, spread, num_clients)
    return np.maximum(np.rint(sizes), min_examples).astype(np.int64)


def _logistic_examples(
    sizes: np.ndarray,
    alpha: float,
    beta: float,
    num_features: int,
    num_classes: int,
    shared_labels: bool,
    rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    """``x`` [sum(sizes), num_features] float32 and y int32, grouped by client."""
    num_clients = len(sizes)
    num_models = 1 if shared_labels else num_clients
    model_mean = alpha * rng.standard_normal((num_models, 1, 1))
    # The last row is b_k, which has the same distribution as the rows of W_k.
    models = model_mean + rng.standard_normal((num_models, num_features + 1, num_classes))
    center = beta * rng.standard_normal((num_clients, 1)) + rng.standard_normal((num_clients, num_features))
    deviation = np.arange(1, num_features + 1, dtype=np.float32) ** np.float32(-0.6)  # variance j^-1.2

    x = rng.standard_normal((int(sizes.sum()), num_features), dtype=np.float32)
    x *= deviation
    y = np.empty(len(x), np.int32)
    ends = np.cumsum(sizes)
    for client, (start, end) in enumerate(zip(ends - sizes, ends, strict=True)):
        x[start:end] += center[client].astype(np.float32)
        model = models[0 if shared_labels else client]
        y[start:end] = np.argmax(x[start:end] @ model[:-1] + model[-1], axis=1)
    return x, y


def _split_of_examples(
    sizes: np.ndarray, test_fraction: float, validation_fraction: float
) -> tuple[np.ndarray, np.ndarray]:
    """Each example's split (0 training, 1 test, 2 validation), and the training examples per client [N]."""
    min_examples = 1 if validation_fraction > 0 else 0  # for validation
    test = np.clip(np.rint(test_fraction * sizes), 1, sizes - 1 - min_examples).astype(np.int64)
    validation = np.clip(np.rint(validation_fraction * sizes), min_examples, sizes - 1 - test)
    validation = validation.astype(np.int64)
    train = sizes - test - validation
    # A client's examples are drawn independently, so the first ones may be those that train.
    counts = np.stack([train, test, validation], axis=1)
    return np.repeat(np.tile(np.arange(3), len(sizes)), counts.ravel()), train
