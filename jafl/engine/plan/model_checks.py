"""Whether a model can be applied to the examples of a federation, and trained on their labels by this engine."""

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jafl.base.errors import SettingError, require
from jafl.base.jaxpr_ends import probabilities_by
from jafl.base.precision import check_precision
from jafl.base.random_keys import check_draws_by_keys, threefry_key
from jafl.data import Federation
from jafl.engine.plan.separate_examples import check_examples_are_separate
from jafl.models import Model
from jafl.models.forms.rewriting import as_written
from jafl.models.label_checks import check_labels, check_values
from jafl.models.low_rank import Adapted
from jafl.models.network import Network, explain
from jafl.models.networks import Linen
from jafl.models.tasks import Metric, Reading, absolute_error, as_task, in_jax, one_output, squared_error
from jafl.records import Params


def check_model_precision(model: Model, platform: str) -> None:
    """Raises SettingError where the devices of a platform lack the model's ``matmul_precision``."""
    # Only devices that are here can be asked: a plan may be meant for others, whose platform alone is known.
    here = jax.local_devices()[0]
    known = getattr(here, "compute_capability", None) if here.platform == platform else None
    check_precision(model.matmul_precision, platform, known)


def check_model(federation: Federation, model: Model, params: Params) -> None:
    """Raises SettingError if the model cannot be applied to the federation's examples, or trained on its labels."""
    _check_real(params)
    # Two examples: of one, a mean over the batch might pass for a loss per example.
    x, y = (
        jax.ShapeDtypeStruct((2, *array.shape[1:]), jax.dtypes.canonicalize_dtype(array.dtype))
        for array in (federation.x, federation.y)
    )
    name = model.network.name
    try:
        with in_jax("model", model, name):
            outputs = _outputs.eval_shape(model, params, x)
        check_labels(as_task(model.task), federation.y, outputs, federation.num_classes, model.output)
        check_values(as_task(model.task), federation)
        key = threefry_key(0) if model.draws(params, x) else None  # as in training
        losses = _losses.eval_shape(model, params, x, y, key)
        # jafl's own models draw by keys alone: for them the check, which traces the model again, is spared.
        if _has_parts_of_the_user(model):
            where = "of a random stream: make_rng of flax, nnx.Rngs, or the argument key"
            with as_written():  # or what has been traced for the quick forms is traced no more
                check_draws_by_keys("model", model.loss_sums, params, x, y, key, keeps_key=where)
    except SettingError:
        raise
    except Exception as error:
        # Shapes that do not fit are the usual cause, and say more than the error that they lead to.
        differences = "; ".join(model.shape_mismatches(params, federation.x)[:3])
        reason = f"{differences})." if differences else explain(error)
        raise SettingError(
            f"The model {name} cannot be applied to the parameters and examples of shape "
            f"{x.shape[1:]} ({reason} Make the parameters with its init, on examples like the federation's.",
            setting="model",
        ) from error
    _check_losses(losses)
    # Also where it ran: shapes that broadcast compute something, but not what was meant.
    if unlike := model.shape_mismatches(params, federation.x):
        raise SettingError(
            f"The parameters do not fit the model {name}: {'; '.join(unlike[:3])}. Make them with its init.",
            setting="params",
        )
    # After the shapes, which it takes for granted.
    if _has_parts_of_the_user(model):
        check_examples_are_separate(federation, model, params)
        _tell_of_probabilities(model, params, x)
    _tell_of_types(params)


def _has_parts_of_the_user(model: Model) -> bool:
    """Whether another package than jafl made the model's module, its loss or a metric."""
    functions: list[Any] = [model.loss_per_example, *model.measured.values()]
    while any(isinstance(function, (Reading, Metric)) for function in functions):
        functions = [
            getattr(function, "function", None) or getattr(function, "of_examples", function)
            for function in functions
        ]
    rooms = [getattr(function, "__module__", None) or type(function).__module__ for function in functions]
    return _is_network_of_the_user(model.network) or not all(room.startswith("jafl.") for room in rooms)


def _is_network_of_the_user(network: Network) -> bool:
    """Whether another package than jafl made what a network's class only holds."""
    if isinstance(network, Adapted):
        return _is_network_of_the_user(network.base)
    kind = type(network.module) if isinstance(network, Linen) else getattr(network, "kind", None)
    return kind is None or not kind.__module__.startswith("jafl.")


def _check_losses(losses: tuple[Any, Any]) -> None:
    """Raises SettingError unless a loss gave a number for each of 2 examples, or its sums and counts for each."""
    shapes = tuple(getattr(part, "shape", None) for part in losses if part is not None)
    require(
        all(shape == (2,) for shape in shapes),
        "the shape of the losses of 2 examples",
        shapes[0] if len(shapes) == 1 else shapes,
        "(2,), one number per example and not their mean, or two such arrays (sums, counts)",
    )


def _check_real(params: Params) -> None:
    """Raises SettingError for parameters along whose gradient nobody can step.

    Of complex ones JAX's gradient is the conjugate of the direction of ascent, and norms, clipping, noise and the
    clients' memory are meant for real numbers.
    """
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        kind = jax.dtypes.canonicalize_dtype(leaf.dtype) if hasattr(leaf, "dtype") else type(leaf).__name__
        require(
            hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.floating),
            f"the type of the parameter {jax.tree_util.keystr(path)}",
            str(kind),
            "a real floating type",
            "Keep the real and the imaginary part of a complex parameter as two real ones, and join them in the "
            "model; values within the model may be complex.",
        )


# Jitted, so that JAX traces a model once for all runs of a sweep that train it.
@jax.jit
def _outputs(model: Model, params: Params, x: jax.Array) -> Any:
    return model.apply(params, x)


@jax.jit
def _output_read(model: Model, params: Params, x: jax.Array) -> Any:
    return one_output(model.apply(params, x), model.output)


@jax.jit
def _losses(model: Model, params: Params, x: jax.Array, y: jax.Array, key: jax.Array | None) -> Any:
    return model.loss_sums(params, x, y, key)


def _tell_of_probabilities(model: Model, params: Params, x: jax.ShapeDtypeStruct) -> None:
    """Warns of a model whose output are probabilities, where its loss is a task's that makes such of it itself."""
    loss = getattr(model.loss_per_example, "function", model.loss_per_example)
    if getattr(loss, "__module__", "") != as_task.__module__ or loss in (squared_error, absolute_error):
        return
    if function := probabilities_by(_output_read.trace(model, params, x).jaxpr):
        warnings.warn(
            f"The model {model.network.name} ends in a {function}, but its loss makes probabilities of its output "
            "itself: it learns slowly, and at best its loss is far from 0. Return what goes into the "
            f"{function}, or give a loss of your own.",
            stacklevel=2,
        )


def _tell_of_types(params: Params) -> None:
    """Warns where JAX may compute in float64, and the model does not; and of types in which sums stand still."""
    kinds = {np.dtype(leaf.dtype) for leaf in jax.tree.leaves(params) if hasattr(leaf, "dtype")}
    # A warning and no error: nothing is wrong with a model in float32 while other programs compute in float64.
    config: Any = jax.config
    if config.jax_enable_x64 and kinds == {np.dtype(np.float32)}:
        warnings.warn(
            "jax_enable_x64 is set, but the model's parameters are float32, and stay so. To compute in float64, "
            "train one of jafl's models on examples in float64, such as those of source.in_precision('float64'); a "
            "module of your own needs param_dtype=float64, too.",
            stacklevel=2,
        )
    for kind in sorted((kind for kind in kinds if kind.itemsize < 4), key=str):
        most = round(2 / float(jnp.finfo(kind).eps))
        warnings.warn(
            f"The model has parameters in {kind}, in which updates are summed, too: there a sum of {most:,} does not "
            'change by 1. Keep parameters in float32, and write jafl.Model(module, compute_dtype="bfloat16") to '
            "compute in bfloat16.",
            stacklevel=2,
        )
