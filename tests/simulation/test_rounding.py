"""What docs/words.md says of "to rounding": two forms of a plan differ as runs do whose starts differ that little."""

import dataclasses

import jax
import numpy as np
import optax
import pytest

import jafl


def ends(learning_rate):
    """The parameters after 400 steps in float64: in the loop form, from a start moved by 1e-15, in matrix form."""
    source = jafl.data.synthetic(num_clients=12, alpha=1.0, beta=1.0, mean_examples=20, num_features=8)
    federation = jafl.federate(source, source.natural_partition)
    splits = {name: np.asarray(getattr(federation, name), np.float64) for name in ("x", "test_x")}
    federation = dataclasses.replace(federation, **splits)
    model = jafl.models.mlp(source.num_classes, [16])
    work = jafl.client_work(model, learning_rate=learning_rate, local_steps=2, batch_size=8)
    delay = jafl.delays.exponential(1.0)
    schedule = jafl.asynchronous(num_clients=12, concurrency=12, buffer_size=2, delay=delay, server_steps=400)
    start = model.init(jax.random.key(0), federation.x)
    moved = jax.tree.map(lambda leaf: leaf + 1e-15, start)
    for params, form in ((start, "loop"), (moved, "loop"), (start, "matrix")):
        history = jafl.simulate(
            schedule,
            federation,
            work,
            jafl.rules.fedbuff(),
            params,
            jax.random.key(1),
            server_optimizer=jafl.specify(optax.sgd, learning_rate=1.0),
            form=form,
            evaluate_at=[],
            evaluators={},
        )
        yield np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(history.params)])


@pytest.mark.full
def test_a_chaotic_run_magnifies_rounding_as_it_magnifies_its_start():
    with jax.enable_x64(True):
        apart = {}
        for learning_rate in (0.05, 0.6):
            loop, moved, matrix = ends(learning_rate)
            apart[learning_rate] = [np.abs(other - loop).max() for other in (moved, matrix)]
    assert max(apart[0.05]) < 1e-12
    assert min(apart[0.6]) > 1e-8
    assert all(by_form < 10 * by_start for by_start, by_form in apart.values())
