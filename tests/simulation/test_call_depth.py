"""How deep the first gradient of a run lies: a reader of ``jafl.simulate`` gets there in twelve calls."""

import pathlib
import traceback

import jax
import numpy as np
import optax
import pytest

import jafl

MOST = 12
PACKAGE = pathlib.Path(jafl.__file__).parent
ALGORITHMS = {
    "fedbuff": (jafl.rules.fedbuff, {}),
    "ace": (jafl.rules.ace, {"initial_round": True}),
    "fednova": (jafl.rules.fednova, {}),
    "ca2fl": (jafl.rules.ca2fl, {}),
}


class Reached(Exception):
    """Ends a run at its first gradient."""


def calls_to_the_first_gradient(train, monkeypatch):
    """(file, function) of each call within jafl that leads from ``train()`` to the first gradient."""
    calls = []

    def reach(*_):
        frames = traceback.extract_stack()
        calls.extend((f.filename, f.name) for f in frames if PACKAGE in pathlib.Path(f.filename).parents)
        raise Reached

    monkeypatch.setattr(jax, "value_and_grad", lambda *args, **kwargs: reach)
    jax.clear_caches()  # what another test has traced would not be traced again
    with pytest.raises(Reached):
        train()
    return calls


@pytest.mark.full
@pytest.mark.parametrize("plan", ["trip by trip", "waves"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_first_gradient_is_at_most_twelve_calls_deep(algorithm, plan, monkeypatch):
    x = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
    y = np.arange(60) % 3
    partition = jafl.data.iid(y, 6, seed=0)
    federation = jafl.Federation.from_arrays(x, y, partition, test_x=x[:6], test_y=y[:6], num_classes=3)
    rule, protocol = ALGORITHMS[algorithm]
    schedule = jafl.asynchronous(
        num_clients=6,
        concurrency=6,
        buffer_size=1 if protocol else 2,
        delay=jafl.delays.exponential(),
        server_steps=4,
        **protocol,
    )
    model = jafl.models.mlp(3, hidden_sizes=(5,))
    work = jafl.client_work(
        model, optimizer=jafl.specify(optax.sgd, learning_rate=0.1, momentum=0.5), batch_size=4, local_steps=3
    )
    params, key = model.init(jax.random.key(0), x), jax.random.key(1)
    arranged = jafl.in_waves(schedule, 2) if plan == "waves" else None
    calls = calls_to_the_first_gradient(
        lambda: jafl.simulate(schedule, federation, work, rule(), params, key, plan=arranged), monkeypatch
    )
    assert calls[0] == (str(PACKAGE / "simulation" / "simulate.py"), "simulate")
    assert calls[-1][1] == "sum_and_gradient"
    assert len(calls) <= MOST, "\n".join(f"{file} {function}" for file, function in calls)
