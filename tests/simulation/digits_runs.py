"""FedBuff with softmax regression on the digits of twelve clients, as several modules here train it."""

from typing import Any

import jax
import numpy as np

import jafl

SOURCE = jafl.data.digits()
MODEL = jafl.models.softmax(10)
PARTITION = jafl.data.dirichlet(SOURCE.y, 12, alpha=0.5, seed=0)
FEDERATION = jafl.federate(SOURCE, PARTITION)


def schedule(server_steps: int) -> jafl.EventSchedule:
    asked = {"num_clients": 12, "concurrency": 6, "buffer_size": 3, "server_steps": server_steps}
    return jafl.asynchronous(**asked, delay=jafl.delays.exponential(1.0))


def run(
    rate: float = 0.3,
    *,
    server_steps: int = 30,
    federation: Any = FEDERATION,
    dtype: Any = np.float32,
    **options: Any,
) -> jafl.Run:
    """Evaluated after every third server step, unless ``options``, which are fields of the run, say otherwise."""
    work = jafl.client_work(MODEL, learning_rate=rate, local_steps=1, batch_size=8)
    params = jax.tree.map(lambda leaf: leaf.astype(dtype), MODEL.init(jax.random.key(0), SOURCE.x))
    parts = (schedule(server_steps), federation, work, jafl.rules.fedbuff(), params, jax.random.key(1))
    return jafl.Run(*parts, **{"evaluate_at": range(0, server_steps + 1, 3), **options})
