"""How large the numbers of the clients' examples are, where a run has not learned or has diverged."""

import jax.numpy as jnp
import numpy as np

from jafl.engine.plan.run import Run
from jafl.specifications import as_specification

# Networks are made for features of about 1. Their root mean square is large from here on; a single one, where it is
# so many times that.
LARGE, STICKS_OUT = 20.0, 1000.0
ROWS = 2000


def large_examples(run: Run) -> str:
    """A sentence, with a space before it, on features of the clients' examples that are large; "" if none are.

    Looked at are some thousand examples, as the model reads them, and of those in memory also the largest number.
    """
    federation, model = run.federation, as_specification(run.client_work).build().model
    if federation.x.dtype.kind in "iu" and model.inputs is None and federation.x.dtype != np.uint8:
        return ""  # tokens
    held = federation.partition.indices
    rows = np.unique(held[np.linspace(0, len(held) - 1, min(ROWS, len(held))).astype(int)])
    x = np.asarray(federation.x[rows])
    if model.inputs is not None:
        x = np.asarray(model.inputs.normalize(jnp.asarray(x)))
    sizes = np.abs(x.reshape(len(x), -1).astype(np.float64))
    typical = float(np.sqrt(np.median(np.mean(sizes**2, axis=1))))
    if typical > LARGE:
        return (
            f" The features of the clients' examples are large: their root mean square is {typical:.3g}, and "
            "networks are made for about 1. Scale them (images: divide by 255)."
        )
    if federation.x.dtype.kind != "f" or isinstance(federation.x, np.memmap):
        return ""
    # Only a sample of memory maps: to read them whole would take long after a run that has ended.
    every = np.asarray(federation.x)
    largest = max(abs(float(every.max())), abs(float(every.min())))
    if largest <= STICKS_OUT * max(typical, 1.0):
        return ""
    row = int(np.argmax(np.abs(every.reshape(len(every), -1)).max(axis=1)))
    holders = np.flatnonzero(held == row)
    client = (
        int(np.searchsorted(federation.partition.offsets, holders[0], side="right")) - 1
        if len(holders)
        else None
    )
    whose = "" if client is None else f", of client {client},"
    return f" Row {row} of x{whose} holds a number of size {largest:.3g}, where {typical:.3g} is usual: scale it."
