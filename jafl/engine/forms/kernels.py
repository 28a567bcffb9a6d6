"""Where the matrix form runs ``server_kernel``, and for which rows; imports no Pallas."""

from typing import Any

import jax.numpy as jnp

from jafl.engine.forms.tiled_rows import is_tiled

COMPILED, INTERPRETED = "compiled", "interpreted"
# JAX's ``device_kind`` of chips with 128 MiB of vector memory. The others keep XLA's products and scatters: on a
# v4 the kernel's buffers do not fit.
KINDS = ("TPU v5 lite", "TPU v5e", "TPU v6 lite", "TPU v6e")
# Trips of a segment at most: the factors lie in a chip's scalar memory of 1 MiB.
MOST_TRIPS = 128


def on(device: Any) -> str:
    """``Placement.kernel`` for a single device."""
    return COMPILED if device.device_kind in KINDS else ""


def takes(rows: Any) -> bool:
    """Whether the kernel takes these rows of snapshots: entries narrower than 32 bits lie in other tiles."""
    return is_tiled(rows) and rows.dtype.itemsize >= 4 and bool(jnp.issubdtype(rows.dtype, jnp.floating))
