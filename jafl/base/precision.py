"""The precision of products of float32 numbers: which there are on each platform, and how to ask for one.

A product here is a matrix product or a convolution. By default TPUs compute those of float32 numbers in bfloat16, and
NVIDIA's GPUs in TensorFloat-32: so jafl says what it wants wherever there are any. docs/precision.md explains what
each precision means, what it costs, and how far it moves accuracy.
"""

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

import jax

from jafl.base.errors import require

# From the most to the least precise; JAX has the same names.
MATMUL_PRECISIONS = ("float32", "tensorfloat32", "bfloat16")
COMPUTE_DTYPES = ("float32", "bfloat16")
# What a platform has. A CPU multiplies in float32 whatever is asked. XLA has no way to ask a GPU for bfloat16
# convolutions of float32 numbers.
OF_PLATFORM = {
    "cpu": ("float32",),
    "gpu": ("float32", "tensorfloat32"),
    "tpu": ("float32", "tensorfloat32", "bfloat16"),
}
_FIRST_WITH_TENSORFLOAT32 = 8.0  # compute capability of NVIDIA's Ampere


def products_in(precision: str) -> contextlib.AbstractContextManager[Any]:
    """A context in which products of float32 numbers are traced in this precision, one of ``MATMUL_PRECISIONS``.

    Products that name a precision of their own keep it, and those of float64 numbers are never rounded.

    Examples:
      >>> with products_in("float32"):
      ...     jax.make_jaxpr(jnp.dot)(jnp.ones(2), jnp.ones(2)).eqns[0].params["precision"]
      (Precision.HIGHEST, Precision.HIGHEST)
    """
    return jax.default_matmul_precision(precision)


def in_64_bits() -> contextlib.AbstractContextManager[Any]:
    """A context in which arrays may have 64 bits, whatever the flag says; under its older name where JAX is older.

    Examples:
      >>> with in_64_bits():
      ...     jnp.ones(1).dtype
      dtype('float64')
    """
    if hasattr(jax, "enable_x64"):  # from JAX 0.8 on
        return jax.enable_x64(True)
    older: contextlib.AbstractContextManager[Any] = importlib.import_module("jax.experimental").enable_x64(
        True
    )
    return older


@contextlib.contextmanager
def on_host() -> Iterator[None]:
    """Computes in 64 bits, on the host's CPU, whatever the default device is: accelerators may lack 64 bits."""
    with in_64_bits(), jax.default_device(jax.local_devices(backend="cpu")[0]):
        yield


def check_precision(matmul_precision: str, platform: str, compute_capability: Any = None) -> None:
    """Refuses a precision that the platform lacks; one that is no cpu, gpu or tpu is taken to have what a CPU has.

    compute_capability: of a GPU, as its JAX device has it: "9.0" for example; None if it is not known.

    Examples:
      >>> check_precision("tensorfloat32", "cpu")
      Traceback (most recent call last):
      ...
      jafl.base.errors.SettingError: matmul_precision is 'tensorfloat32', but must be float32, all that a cpu has.
    """
    has = OF_PLATFORM.get(platform, OF_PLATFORM["cpu"])
    if platform == "gpu" and not _has_tensorfloat32(compute_capability):
        has = ("float32",)
        platform = f"gpu of compute capability {compute_capability}"
    allowed = f"{' or '.join(has)}, {'all' if len(has) == 1 else 'those'} that a {platform} has"
    remedy = ""
    if matmul_precision == "bfloat16":
        remedy = "For mixed precision there is compute_dtype=bfloat16, on every platform."
    require(matmul_precision in has, "matmul_precision", matmul_precision, allowed, remedy)


def _has_tensorfloat32(compute_capability: Any) -> bool:
    """Whether a GPU has it; True where its compute capability is not known."""
    if compute_capability is None:
        return True
    try:
        return float(compute_capability) >= _FIRST_WITH_TENSORFLOAT32
    except ValueError:  # "gfx90a": AMD's
        return False
