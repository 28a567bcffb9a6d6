"""Clients whose losses are quadratic, F_i(w) = (1/2) sum a_i (w - b_i)^2, and what a rule makes of them.

The model is the kernel of softmax regression on one feature, a vector [P] with P = 3; the bias stays 0. Nothing is
drawn, so where a rule ends can be written down.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jafl
from jafl.clients.records import ClientResult, ClientWork

SIZE = 3


def clients(number: int) -> tuple[np.ndarray, np.ndarray]:
    """(a, b), [N, P] each: curvatures from 0.5 to 1.5, minima of unlike clients."""
    random = np.random.default_rng(8)
    return random.uniform(0.5, 1.5, (number, SIZE)), 3 * random.normal(size=(number, SIZE))


def run(
    rule: Any, schedule: jafl.EventSchedule, *, rate: float, steps: int = 1, server_rate: float = 1.0
) -> np.ndarray:
    """[T + 1, P]: the models, from zeros. rate, steps: of the clients' gradient descent."""
    curvature, minimum = (jnp.asarray(each) for each in clients(schedule.num_clients))
    x, y = np.zeros((schedule.num_clients, 1)), np.zeros(schedule.num_clients, int)
    partition = jafl.Partition.from_lists([[client] for client in range(schedule.num_clients)])
    federation = jafl.Federation.from_arrays(x, y, partition, test_x=x, test_y=y, num_classes=SIZE)
    model = jafl.models.softmax(SIZE)

    def train(data, start, client, key):
        kept = (1 - rate * curvature[client]) ** steps
        update = (kept - 1) * (start["dense"]["kernel"][0] - minimum[client])
        bias = jnp.zeros_like(start["dense"]["bias"])
        return ClientResult(
            {"dense": {"kernel": update[None], "bias": bias}}, jnp.ones(()), jnp.int32(1), jnp.int32(steps)
        )

    kept: list[np.ndarray] = []
    jafl.simulate(
        schedule,
        federation,
        ClientWork(train, model),
        rule,
        jax.tree.map(jnp.zeros_like, model.init(jax.random.key(0), federation.x)),
        jax.random.key(1),
        server_optimizer=jafl.specify(optax.sgd, learning_rate=server_rate),
        evaluators={},
        evaluate_at=range(schedule.num_steps + 1),
        on_evaluation=lambda record, params: kept.append(np.asarray(params["dense"]["kernel"][0])),
    )
    return np.array(kept)


def optimum(weights: np.ndarray) -> np.ndarray:
    """[P]: where the sum of the clients' losses with these weights [N] is least."""
    curvature, minimum = clients(len(weights))
    return (weights @ (curvature * minimum)) / (weights @ curvature)
