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


def adamw(w, slope_of, batches, kept):
    """(weights, moments and steps so far) after a step of AdamW on each minibatch (Loshchilov and Hutter 2019)."""
    first, second, before = kept
    for number, batch in enumerate(batches, start=before + 1):
        g = slope_of(w, batch)
        first, second = 0.9 * first + 0.1 * g, 0.999 * second + 0.001 * g**2
        step = first / (1 - 0.9**number) / (np.sqrt(second / (1 - 0.999**number)) + 1e-8)
        w = w - RATE * (step + DECAY * w)
    return w, (first, second, before + len(batches))


def trips_of(experiment, outer, keep=False):
    """The models [T + 1] when ``outer``(model, [updates of a server step]) -> next model; the trips by NumPy.

    keep: whether each client keeps AdamW's moments from trip to trip.
    """
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
    models, moments = [flat(run.params)], {}
    new = np.zeros_like(models[0]), np.zeros_like(models[0]), 0
    for step in range(schedule.num_steps):
        updates = []
        for place in np.flatnonzero(schedule.step == step):
            client, start = int(schedule.client[place]), models[schedule.download_version[place]]
            own = federation.partition.indices[slice(*federation.partition.offsets[client : client + 2])]
            steps = 50 if schedule.local_steps is None else int(schedule.local_steps[place])
            batches = minibatches(
                run.key, client, int(schedule.trip[place]), num_examples=len(own), batch_size=8, steps=steps
            )
            end, moments[client] = adamw(
                start,
                lambda w, batch, own=own: flat(
                    slope(tree(w), federation.x[own[batch]], federation.y[own[batch]])
                ),
                batches,
                moments.get(client, new) if keep else new,
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


def delayed_nesterov():
    """The outer step of asynchronous DiLoCo, momentum at every eighth arrival."""
    momentum, waiting = 0.0, []

    def outer(w, updates):
        nonlocal momentum, waiting
        (update,) = updates
        waiting.append(-update)
        if len(waiting) < 8:
            return w - OUTER * -update / 8
        momentum, waiting = MOMENTUM * momentum + np.mean(waiting, axis=0), []
        return w - OUTER * (MOMENTUM * momentum - update / 8)

    return outer


@pytest.mark.full
@pytest.mark.usefixtures("float64")
def test_asynchronous_diloco_moves_at_each_arrival_and_its_momentum_at_every_eighth():
    (experiment,) = make_experiments(Settings(algorithm="async_diloco", client_trips=19, **SMALL))
    assert max(experiment.run.schedule.staleness) >= 2
    models, flat = trips_of(experiment, delayed_nesterov())
    assert len(models) == experiment.run.schedule.num_steps + 1 >= 17
    np.testing.assert_allclose(flat(experiment.simulate().params), models[-1], rtol=1e-8, atol=1e-10)


@pytest.mark.full
@pytest.mark.usefixtures("float64")
def test_with_dynamic_local_updates_and_moments_that_are_kept():
    """The paper's asynchronous DiLoCo whole: delayed Nesterov, DyLU, and AdamW goes on from trip to trip."""
    how = {
        "delay": "per_step(law=once_per_client(law=uniform(low=0.5,high=2)))",
        "protocol": "asynchronous(local_steps=12,dynamic_local_updates=True)",
        "local_steps": "scheduled",
        "client_work": "client_work(batch_size=8,keep_optimizer_state=True)",
    }
    (experiment,) = make_experiments(Settings(algorithm="async_diloco", client_trips=19, **SMALL, **how))
    assert len(set(experiment.run.schedule.local_steps.tolist())) > 2
    models, flat = trips_of(experiment, delayed_nesterov(), keep=True)
    end = flat(experiment.simulate().params)
    np.testing.assert_allclose(end, models[-1], rtol=1e-8, atol=1e-10)
    forgetful, _ = trips_of(experiment, delayed_nesterov())
    assert np.abs(end - forgetful[-1]).max() > 1e-3
