"""LoRA: a frozen model with a trained product of two thin matrices added to each of its chosen weights."""

import dataclasses
import math
import os
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jafl.base.array_files import ArrayFileError, read_archive
from jafl.base.described import described
from jafl.base.errors import SettingError, real_number, require, whole_number
from jafl.base.paths import in_home
from jafl.base.random_keys import threefry_key
from jafl.models.freezing import matches, merged, paths, split
from jafl.models.model import Model
from jafl.models.network import Network
from jafl.models.networks import Variables, frozen_params
from jafl.models.own_parameters import Equinox
from jafl.records import ArrayTree

_ADAPTERS = 401  # distinguishes their random key from that of the base's parameters
_MOST_NAMED = 24  # of the weights that a message lists


class Target(NamedTuple):
    """A weight with an adapter: its path in the base's parameters, its shape and type, and the matrix that it is.

    The first ``row_axes`` axes are the matrix's rows. Rows are the layer's inputs, or else its outputs.
    """

    path: str
    shape: tuple[int, ...]
    dtype: str
    row_axes: int
    rows_are_inputs: bool

    @property
    def inputs(self) -> int:
        """The length of the rows of A."""
        return self._sizes[0 if self.rows_are_inputs else 1]

    @property
    def outputs(self) -> int:
        """The length of the columns of B."""
        return self._sizes[1 if self.rows_are_inputs else 0]

    @property
    def _sizes(self) -> tuple[int, int]:
        return math.prod(self.shape[: self.row_axes]), math.prod(self.shape[self.row_axes :])

    def product(self, adapter: Mapping[str, Any]) -> jax.Array:
        """B A in the weight's shape."""
        a, b = adapter["a"], adapter["b"]
        return (a.T @ b.T if self.rows_are_inputs else b @ a).reshape(self.shape)


@dataclasses.dataclass(frozen=True)
class Adapted(Network):
    """A network whose weights at ``targets`` are W + ``scale`` B A.

    Its parameters are {"adapters": {...: {"a": [rank, inputs], "b": [outputs, rank]}}, "base": {...}}, of which the
    base is frozen but for what ``trained`` names.
    """

    base: Network
    targets: tuple[Target, ...]
    rank: int
    scale: float
    trained: tuple[str, ...]
    own_shapes: (
        tuple[Any, ...] | None
    )  # of a base that has parameters: (their structure, their shapes and types)

    @property
    def name(self) -> str:
        """The name of the base, with the addition "with LoRA"."""
        return f"{self.base.name} with LoRA"

    @property
    def random(self) -> bool:
        """Whether the base can use a random key in training."""
        return self.base.random

    def init(self, key: jax.Array, x: jax.Array, frozen: Any = None) -> Any:
        """The adapters, and the base's parameters as it draws them itself."""
        if self.own_shapes is not None:  # they are known; only their shapes count here
            structure, shapes = self.own_shapes
            base = jax.tree.unflatten(structure, [jnp.zeros(shape, dtype) for shape, dtype in shapes])
        else:
            base = self.base.init(key, x, self._constants(frozen))
            self._check(base, frozen)
        return {"adapters": drawn_adapters(self.targets, self.rank, key), "base": base}

    def _check(self, base: Any, frozen: Any) -> None:
        """Refuses a base of which some parameters are neither known nor trained, and names of none."""
        known, names = set(paths(_of(frozen_params(frozen), "base"))), paths(base)
        _check_patterns("trained", self.trained, names)
        lacking = [
            name for name in names if name not in known and not any(matches(name, p) for p in self.trained)
        ]
        remedy = "Give all of the base's parameters as params, or name these in trained."
        require(not lacking, "the parameters of the base that are unknown", lacking[:6], "none", remedy)

    def apply(self, params: Any, frozen: Any, x: jax.Array, key: jax.Array | None) -> Any:
        """The base's outputs with the changed weights."""
        return self.base.apply(self._whole(params, frozen), self._constants(frozen), x, key)

    def draws(self, params: Any, frozen: Any, x: jax.Array) -> bool:
        """As the base."""
        shapes = jax.eval_shape(self._whole, params, frozen)
        return self.base.draws(shapes, self._constants(frozen), x)

    def with_params(self, params: Any, frozen: Any) -> Any:
        """What the user gave as the base, with the changed weights."""
        return self.base.with_params(self._whole(params, frozen), self._constants(frozen))

    def _whole(self, params: Any, frozen: Any) -> Any:
        """The base's parameters, the changed weights among them."""
        tree = merged(params, frozen_params(frozen))
        targets = {target.path: target for target in self.targets}
        names = iter(paths(tree["base"]))

        def changed(weight: Any) -> Any:
            target = targets.get(next(names))
            if target is None:
                return weight
            adapter = _at(tree["adapters"], target.path)
            return jnp.asarray(weight) + (self.scale * target.product(adapter)).astype(weight.dtype)

        return jax.tree.map(changed, tree["base"])

    @staticmethod
    def _constants(frozen: Any) -> Any:
        """What the base itself is given as frozen: of a linen module the variables that are no parameters."""
        return Variables(None, frozen.constants) if isinstance(frozen, Variables) else None


def drawn_adapters(targets: Iterable[Target], rank: int, key: jax.Array) -> dict[str, Any]:
    """For each target A [rank, inputs] from a normal distribution of the variance 1 / inputs, and B of zeros."""
    key = jax.random.fold_in(key, _ADAPTERS)
    adapters = {}
    for number, target in enumerate(targets):
        normal = jax.random.normal(jax.random.fold_in(key, number), (rank, target.inputs), target.dtype)
        adapters[target.path] = {
            "a": normal * target.inputs**-0.5,
            "b": jnp.zeros((target.outputs, rank), target.dtype),
        }
    return _nested(adapters)


@described
def lora(
    model: Model,
    rank: int,
    targets: str | Sequence[str],
    *,
    alpha: float | None = None,
    params: ArrayTree | str | os.PathLike[str] | None = None,
    trained: str | Sequence[str] = (),
    train_a: bool = True,
    seed: int = 0,
) -> Model:
    """LoRA: the model is frozen, and each chosen weight W becomes W + (alpha / rank) B A, with A and B trained.

    A [rank, inputs] is drawn from a normal distribution of variance 1 / inputs (the paper does not say which), B
    [outputs, rank] starts at 0, so that the first outputs are those of the model. Adapters (A and B) alone are
    trained, sent, kept in client memory, stored in snapshots and checkpoints, and given noise; the model's own
    parameters are data that all clients share. ``model.with_params(history.params)`` returns the model with (alpha /
    rank) B A added to its weights.

    The server averages A and B as it averages any parameters (FedIT). But the mean of the products B A is not the
    product of the means: ``lora_averaging_error`` measures the difference. With ``train_a=False`` there is none
    (FFA-LoRA).

    Weights are arrays of two or more axes, of any layer. An array of more than two axes is taken as the matrix whose
    rows are its first axes and whose columns are its last ones, divided where the number of rows plus columns is
    smallest: the query of a Flax attention, [width, heads, size], is [width, heads * size]; the kernel of a
    convolution, [3, 3, in, out], is [9 * in, out] for an out of at least 9. The changed weight is computed at each
    local step, so a trip takes about as long as one that trains the weights themselves; only what is sent and stored
    becomes smaller.

    Source: Hu et al. 2022, "LoRA", section 4.1; Zhang et al. 2024, "Towards building the federated GPT" (FedIT); Sun
    et al. 2024, "Improving LoRA in privacy-preserving federated learning" (FFA-LoRA).

    Args:
      model: a model of a Flax (linen or nnx) or Equinox module, or of a pair of functions.
      rank: of the product B A, at least 1 and at most the smaller side of each weight.
      targets: one or several patterns for paths of weights, as in ``Model.freeze``: "*query*", "layers/0".
        Arrays with one axis, such as biases, are left out.
      alpha: B A is multiplied by alpha / rank. Default: the rank, so that the factor is 1.
      params: the model's parameters, for example ``history.params`` of its pre-training, or the file ``params.npz``
        of a run directory. Default: those that the model has: of nnx and Equinox modules, of a BERT from a file.
      trained: patterns for parameters of the model that are trained in full beside the adapters, such as "head".
        They start from ``params``, or are drawn if ``params`` does not have them.
      train_a: whether A is trained. False is FFA-LoRA: A stays as drawn from ``seed``, the same for all clients and
        runs.
      seed: of the draw of A if it is not trained. Otherwise A is drawn from the key of ``Model.init``.

    Returns:
      The model. Its parameters are {"adapters": {...: {"a": [rank, inputs], "b": [outputs, rank]}}}, and "base" with
      the parameters that ``trained`` names.

    Raises:
      SettingError: for a pattern that fits no weight (the message lists the weights); for a rank or alpha out of
        range; for a model whose parameters are not known; for a file that cannot be read.

    Examples:
      >>> base = jafl.models.causal_transformer(99, layers=1, width=32)
      >>> start = base.init(jax.random.key(0), jnp.zeros((1, 80), jnp.int32))
      >>> model = jafl.lora(base, 2, ["*query", "*value"], alpha=4.0, params=start)
      >>> params = model.init(jax.random.key(1), jnp.zeros((1, 80), jnp.int32))
      >>> params["adapters"]["layer_0_query"]["kernel"]["b"].shape
      (32, 2)
    """
    require(isinstance(model, Model), "model", model, "a jafl.Model")
    require(not isinstance(model.network, Adapted), "model", model.network.name, "one without adapters")
    whole_number("rank", rank, 1)
    real_number("alpha", rank if alpha is None else alpha, lambda number: 0 < number < math.inf, "above 0")
    also = _patterns("trained", trained)
    network = model.network
    known = _known(model, params)
    found = _targets(network, known, _patterns("targets", targets), rank)
    names = {target.path for target in found}
    both = [path for path in names if any(matches(path, pattern) for pattern in also)]
    require(not both, "trained", list(also), f"others than the weights with an adapter, such as {both[:1]}")

    shapes = None
    if network.has_parameters:
        _check_patterns("trained", also, paths(known))
        leaves, structure = jax.tree.flatten(known)
        shapes = structure, tuple((jnp.shape(leaf), str(leaf.dtype)) for leaf in leaves)
    free, fixed = split({"base": known}, lambda path: not any(matches(path[5:], p) for p in also))
    frozen = jax.tree.map(jnp.asarray, fixed)
    if not train_a:
        adapters = drawn_adapters(found, rank, threefry_key(seed))
        frozen |= {"adapters": split(adapters, lambda path: path.endswith("/a"))[1]}
    if isinstance(model.frozen, Variables):
        frozen = Variables(frozen, model.frozen.constants)
    scale = (rank if alpha is None else alpha) / rank
    module = Adapted(network, found, rank, float(scale), also, shapes)
    return dataclasses.replace(
        model, module=module, frozen=frozen, initial=free if jax.tree.leaves(free) else None
    )


def lora_averaging_error(
    model: Model, clients: Sequence[ArrayTree], weights: Sequence[float] | None = None
) -> dict[str, float]:
    """How far the product of the averaged B and A is from the average of the clients' products B A.

    For each weight this is the Frobenius norm of (alpha / rank) (mean of B_i A_i - (mean of B_i) (mean of A_i)), the
    covariance of B and A over the clients i. It is 0 if A is not trained (Sun et al. 2024, section 3).

    Args:
      model: what ``lora`` returned.
      clients: the trained parameters of each client, in the form of ``model.init``.
      weights: the clients' weights in the mean; they are divided by their sum. Default: equal ones.

    Returns:
      {path of a weight: norm}.

    Raises:
      SettingError: for a model without adapters, no clients, and weights that do not fit them.
    """
    network = model.network
    allowed = "a model with adapters, as jafl.lora makes them"
    require(isinstance(network, Adapted), "model", network.name, allowed)
    assert isinstance(network, Adapted)
    require(len(clients) > 0, "clients", clients, "at least one client's parameters")
    shares = np.ones(len(clients)) if weights is None else np.asarray(weights, np.float64)
    fits = shares.shape == (len(clients),) and np.all(shares >= 0) and shares.sum() > 0
    require(fits, "weights", weights, f"{len(clients)} numbers of at least 0, not all 0")
    shares = shares / shares.sum()
    trees = [merged(params, frozen_params(model.frozen))["adapters"] for params in clients]
    errors = {}
    for target in network.targets:
        a, b = (
            np.stack([np.asarray(_at(tree, target.path)[name], np.float64) for tree in trees])
            for name in ("a", "b")
        )
        a, b = (each - np.tensordot(shares, each, 1) for each in (a, b))
        error = np.einsum("i,ior,irk->ok", shares, b, a)
        errors[target.path] = float(network.scale * np.linalg.norm(error))
    return errors


def _known(model: Model, params: Any) -> Any:
    """The parameters of the base, as far as they are known: given ones first."""
    if isinstance(params, (str, os.PathLike)):
        params = _from_file(in_home(params), model)
    known = merged(params, model.initial, frozen_params(model.frozen))
    remedy = "Give params: history.params of its pre-training, or model.init(key, x), or a run's params.npz."
    require(
        jax.tree.leaves(known), "params", params, "the parameters of the model, which has none yet", remedy
    )
    return known


def _from_file(path: pathlib.Path, model: Model) -> Any:
    """The parameters in an .npz file whose arrays are named by their paths."""
    try:
        arrays = read_archive(path)
    except (OSError, ArrayFileError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise SettingError(
            f"params is {str(path)!r}, but cannot be read: {reason}. Give the params.npz of a run directory.",
            setting="params",
            value=str(path),
        ) from error
    if not model.network.has_parameters:
        return _nested(arrays)
    names = paths(model.initial)
    require(
        set(arrays) == set(names), f"the arrays in {path}", sorted(arrays), f"those of the model: {names}"
    )
    return jax.tree.unflatten(jax.tree.structure(model.initial), [arrays[name] for name in names])


def _targets(network: Network, known: Any, patterns: Sequence[str], rank: int) -> tuple[Target, ...]:
    """The weights that the patterns choose."""
    weights = {
        path: leaf
        for path, leaf in zip(paths(known), jax.tree.leaves(known), strict=True)
        if len(jnp.shape(leaf)) >= 2 and jnp.issubdtype(leaf.dtype, jnp.floating)
    }
    require(patterns, "targets", list(patterns), f"at least one pattern of {_listed(weights)}")
    _check_patterns("targets", patterns, list(weights))
    found = []
    for path, leaf in weights.items():
        if any(matches(path, pattern) for pattern in patterns):
            shape = tuple(map(int, leaf.shape))
            at = min(range(1, len(shape)), key=lambda at: math.prod(shape[:at]) + math.prod(shape[at:]))
            target = Target(path, shape, str(leaf.dtype), at, not isinstance(network, Equinox))
            side = min(target.inputs, target.outputs)
            require(rank <= side, "rank", rank, f"at most {side}, the smaller side of {path}")
            found.append(target)
    return tuple(found)


def _patterns(setting: str, given: str | Sequence[str]) -> tuple[str, ...]:
    patterns = (given,) if isinstance(given, str) else given
    fits = isinstance(patterns, (list, tuple)) and all(isinstance(each, str) for each in patterns)
    require(fits, setting, given, 'a pattern of paths such as "*query*", or a list of them')
    return tuple(patterns)


def _check_patterns(setting: str, patterns: Iterable[str], names: Sequence[str]) -> None:
    """Raises SettingError for a pattern that fits none of these paths."""
    for pattern in patterns:
        fits = any(matches(name, pattern) for name in names)
        require(fits, setting, pattern, f"a pattern that fits one of {_listed(names)}")


def _listed(names: Iterable[str]) -> str:
    names = list(names)
    more = f", ... ({len(names)} in all)" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more


def _of(tree: Any, name: str) -> Any:
    return tree.get(name) if isinstance(tree, Mapping) else None


def _at(tree: Any, path: str) -> Any:
    """What lies in nested dicts at a path."""
    for name in path.split("/"):
        tree = tree[name]
    return tree


def _nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Nested dicts of {path: value}."""
    tree: dict[str, Any] = {}
    for path, value in values.items():
        *above, last = path.split("/")
        place = tree
        for name in above:
            place = place.setdefault(name, {})
        place[last] = value
    return tree
