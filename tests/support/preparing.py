"""Prepares a run from the arguments of ``jafl.simulate``: what tests of programs and of memory share."""

from typing import Any

import jax

import jafl
from jafl.engine.loop.program import Carry, Program
from jafl.engine.plan.preparation import Preparation, prepare

OF_THE_RUN = ("server_optimizer", "evaluate_at", "evaluators")


def prepared(*arguments: Any, **options: Any) -> Preparation:
    """The preparation of a run; without a key among the positional arguments, of one with any."""
    if len(arguments) == 5:
        arguments = (*arguments, jax.random.key(1))
    of_the_run = {name: value for name, value in options.items() if name in OF_THE_RUN}
    others = {name: value for name, value in options.items() if name not in OF_THE_RUN}
    return prepare(jafl.Run(*arguments, **of_the_run), **others)


def placed(*arguments: Any, **options: Any) -> tuple[Program, Carry]:
    """Its program and its first carry, on the device."""
    return prepared(*arguments, **options).place()
