"""DiLoCo and asynchronous DiLoCo, as their settings make them, against their equations in NumPy."""

import jax
import numpy as np
import pytest

from jafl.clients.minibatch_gradients import minibatches
from jafl.config.experiment import make_experiments
from jafl.config.settings import Settings

SMALL = {
    "num_clients": 3,
    "concurrency": 3,
    "model": "softmax",
    "precision": "float64",
    "learning_rate": 0.02,
    "server_learning_rate": 0.7,
}
RATE, DECAY, MOMENTUM, OUTER = 0.02, 0.1, 0.9, 0.7


def adamw(w, slope_of, batches):
    """The weights after a step of AdamW on each minibatch, from moments of zero (Loshchilov and Hutter 2019)."""
    first, second = np.zeros_like(w), np.zeros_like(w)
    for number, batch in enumerate(batches, start=1):
        g = slope_of(w, batch)
        first, second = 0.9 * first + 0.1 * g, 0.999 * second + 0.001 * g**2
        step = first / (1 - 0.9**number) / (np.sqrt(second / (1 - 0.999**number)) + 1e-8)
        w = w - RATE * (step + DECAY * w)
    return w


def trips_of(experiment, outer):
    """The models [T + 1] when ``outer``(model, [updates of a server step]) -> next model; the trips by NumPy."""
    run = experiment.run
    leaves, structure = jax.tree.flatten(run.params)
    shapes = [leaf.shape for leaf in leaves]
    ends = np.cumsum([leaf.size for leaf in leaves])[:-1]

    def tree(w):
        parts = np.split(w, ends)
        return jax.tree.unflatten(structure, [p.reshape(s) for p, s in zip(parts, shapes, strict=True)])

    def flat(tree):
        return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])

    slope = jax.jit(jax.grad(lambda params, x, y: experiment.model.losses(params, x, y).mean()))
    federation, schedule = run.federation, run.schedule
    models = [flat(run.params)]
    for step in range(schedule.num_steps):
        updates = []
        for place in np.flatnonzero(schedule.step == step):
            client, start = int(schedule.client[place]), models[schedule.download_version[place]]
            own = federation.partition.indices[slice(*federation.partition.offsets[client : client + 2])]
            batches = minibatches(
                run.key, client, int(schedule.trip[place]), num_examples=len(own), batch_size=8, steps=50
            )
            end = adamw(
                start,
                lambda w, batch, own=own: flat(
                    slope(tree(w), federation.x[own[batch]], federation.y[own[batch]])
                ),
                batches,
            )
            updates.append(end - start)
        models.append(outer(models[-1], updates))
    return models, flat


@pytest.mark.full
@pytest.mark.usefixtures("float64")
def test_diloco_is_nesterov_on_the_mean_of_what_adamw_has_changed():
    (experiment,) = make_experiments(Settings(algorithm="diloco", client_trips=9, **SMALL))
    momentum = 0.0

    def outer(w, updates):
        nonlocal momentum
        assert len(updates) == 3
        gradient = -np.mean(updates, axis=0)
        momentum = MOMENTUM * momentum + gradient
        return w - OUTER * (gradient + MOMENTUM * momentum)

    models, flat = trips_of(experiment, outer)
    np.testing.assert_allclose(flat(experiment.simulate().params), models[-1], rtol=1e-8, atol=1e-10)


@pytest.mark.full
@pytest.mark.usefixtures("float64")
def test_asynchronous_diloco_moves_at_each_arrival_and_its_momentum_at_every_eighth():
    (experiment,) = make_experiments(Settings(algorithm="async_diloco", client_trips=19, **SMALL))
    assert max(experiment.run.schedule.staleness) >= 2
    momentum, waiting, count = 0.0, [], 0

    def outer(w, updates):
        nonlocal momentum, waiting, count
        (update,) = updates
        waiting.append(-update)
        count += 1
        if count % 8:
            return w - OUTER * -update / 8
        momentum = MOMENTUM * momentum + np.mean(waiting, axis=0)
        waiting = []
        return w - OUTER * (MOMENTUM * momentum - update / 8)

    models, flat = trips_of(experiment, outer)
    assert len(models) == experiment.run.schedule.num_steps + 1 >= 17
    np.testing.assert_allclose(flat(experiment.simulate().params), models[-1], rtol=1e-8, atol=1e-10)
