"""Times programs that alternate, so that a machine that is slow for a while slows all of them."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

Program = Callable[[], Any]


def seconds(program: Program, clock: Callable[[], float] = time.perf_counter) -> float:
    """The time of one call, until its result is there; by default wall-clock time."""
    begin = clock()
    jax.block_until_ready(program())
    return clock() - begin


def alternating(
    programs: Sequence[Program],
    repeats: int,
    *,
    warm_up: bool = True,
    before: Callable[[], Any] = lambda: None,
    clock: Callable[[], float] = time.perf_counter,
) -> np.ndarray:
    """[repeats, programs] seconds of each program in rounds.

    Args:
      warm_up: run a first round that is left out, in which programs compile.
      before: called before each program, untimed.
    """
    times = np.zeros((warm_up + repeats, len(programs)))
    for row in times:
        for number, program in enumerate(programs):
            before()
            row[number] = seconds(program, clock)
    return times[int(warm_up) :]
