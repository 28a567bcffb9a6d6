"""A causal transformer that was trained on one half of the files of Python's standard library.

Of files of Python's source the other half is left for clients: ``python_source(files='odd')``. A setting names one of
the functions: ``--model="experiments/tools/pretrained_text.py:pretrained(rank=4)"``.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jafl

WIDTH, CONTEXT, BATCH, RATE = 32, 64, 32, 3e-3
TARGETS = ("*query*", "*key*", "*value*", "*attention*", "*inner*", "*output*")


def untrained(num_classes: int) -> jafl.Model:
    """The transformer as it is drawn: 2 layers of the width 32, for examples of up to 64 characters."""
    return jafl.models.causal_transformer(num_classes, layers=2, width=WIDTH, context=CONTEXT)


def pretrained(num_classes: int, rank: int = 0, train_a: bool = True, steps: int = 400) -> jafl.Model:
    """The transformer after ``steps`` minibatches of the files with an even number.

    Args:
      num_classes: number of tokens.
      rank: of adapters for all layers of the blocks; 0: all parameters are trained.
      train_a: as of ``jafl.lora``.
      steps: of 32 examples each, with Adam.
    """
    model, params = untrained(num_classes), trained_params(num_classes, steps)
    if rank:
        return jafl.lora(model, rank, TARGETS, params=params, train_a=train_a)
    return dataclasses.replace(model, initial=params)


@functools.lru_cache(maxsize=2)
def trained_params(num_classes: int, steps: int) -> dict:
    """The parameters after the training beforehand, the same for all seeds of the experiment."""
    source = jafl.data.python_source(files="even", tokens=CONTEXT, most_characters=5000, test_fraction=0.05)
    model, optimizer = untrained(num_classes), optax.adam(RATE)
    x, y = np.asarray(source.x), np.asarray(source.y)

    def loss(params, x, y):
        sums, counts = model.loss_sums(params, x, y)
        return jnp.sum(sums) / jnp.sum(counts)

    @jax.jit
    def step(params, state, x, y):
        updates, state = optimizer.update(jax.grad(loss)(params, x, y), state, params)
        return optax.apply_updates(params, updates), state

    params = model.init(jax.random.key(0), x[:1])
    state, random = optimizer.init(params), np.random.default_rng(0)
    for _ in range(steps):
        rows = random.integers(len(x), size=BATCH)
        params, state = step(params, state, x[rows], y[rows])
    return params
