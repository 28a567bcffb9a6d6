"""Small runs that several tests of ``jafl.simulate`` train: alone, and stopped and gone on with."""

import pathlib
from collections.abc import Callable
from typing import Any
from unittest import mock

import jax
import numpy as np

import jafl

# What of a history a stop and a checkpoint leave as they are, to the last bit.
SAME_BITS = ("params", "trip_reports", "step_reports", "best_params", "client_metrics", "personal_params")
SAME = ("evaluations", "server_steps", "stopped_when", "best_step")


def small_parts(server_steps: int = 12) -> dict[str, Any]:
    """The arguments of ``jafl.simulate``, by name, of softmax regression on eight clients' synthetic data."""
    source = jafl.data.synthetic(num_clients=8, alpha=1.0, beta=1.0, mean_examples=20, num_features=5)
    model = jafl.models.softmax(source.num_classes)
    asked = {"num_clients": 8, "concurrency": 6, "buffer_size": 3, "server_steps": server_steps}
    return {
        "schedule": jafl.asynchronous(**asked, delay=jafl.delays.exponential(1.0)),
        "federation": jafl.federate(source, source.natural_partition),
        "client_work": jafl.client_work(model, learning_rate=0.1),
        "rule": jafl.rules.fedbuff(),
        "params": model.init(jax.random.key(0), source.x),
        "key": jax.random.key(1),
    }


def alone(run: jafl.Run, **options: Any) -> jafl.History:
    """The run by ``jafl.simulate``."""
    return jafl.simulate(*run[:6], **dict(zip(run._fields[6:], run[6:], strict=True)), **options)


def stopping_at(server_step: int) -> dict[str, Any]:
    """Options that end a run at the first chunk from this server step on."""
    done: list[int] = []
    return {"on_progress": done.append, "should_stop": lambda: bool(done) and done[-1] >= server_step}


def step_by_step() -> Any:
    """While it lasts, each chunk of a run is one server step."""
    return mock.patch("jafl.simulation.driver.SECONDS_PER_CHUNK", 0.0)


def assert_same_bits(ended: jafl.History, whole: jafl.History) -> None:
    """Two histories hold the same results, to the last bit."""
    for name in SAME:
        assert getattr(ended, name) == getattr(whole, name), name
    for name in SAME_BITS:
        jax.tree.map(np.testing.assert_array_equal, getattr(ended, name), getattr(whole, name))


def resumed(
    simulate: Callable[..., jafl.History], folder: pathlib.Path, *at: int, every: int | None = None
) -> tuple[jafl.History, jafl.History]:
    """(the run that was stopped and went on, what was there when it was stopped last), held against the whole run.

    simulate: trains, with the options of ``jafl.simulate`` that it is given.
    at: the server steps after which it is stopped, one part after the other.
    every: of the checkpoints, also of the whole run, which has none if it is None.
    """
    whole = simulate(
        **({} if every is None else {"checkpoints": jafl.Checkpoints(folder / "whole", every=every)})
    )
    with step_by_step():
        for step in at:
            checkpoints = jafl.Checkpoints(folder / "stopped", every=every)
            part = simulate(checkpoints=checkpoints, **stopping_at(step))
            assert part.server_steps == step == part.evaluations[-1]["server_step"]
        seen: list[Any] = []
        checkpoints = jafl.Checkpoints(folder / "stopped", every=every, on_restore=seen.append)
        ended = simulate(checkpoints=checkpoints)
    assert [saved.server_step for saved in seen] == [at[-1]]
    assert_same_bits(ended, whole)
    return ended, part
