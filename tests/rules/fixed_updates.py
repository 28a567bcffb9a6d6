"""Runs of a rule whose updates are made up, whatever the model: the rule alone, in the engine and in the reference.

An update is a vector; in the engine it is the kernel of softmax regression, padded, whose bias stays 0. The server is
plain SGD with rate 1 that starts from zeros, so that minus the final kernel is the sum of all directions.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import reference as ref

import jafl
from jafl.clients.minibatch_gradients import trip_words
from jafl.clients.records import ClientResult, ClientWork

CLASSES = 3
KEY = jax.random.key(3)
UpdateOf = Callable[[Any, Any], Any]  # client [], the trip's random words [2] -> update [P]


def by_trip(schedule: jafl.EventSchedule, updates: np.ndarray) -> UpdateOf:
    """Each applied trip's update is its row of ``updates`` [J, P]; a trip is known by its random words."""
    words = trip_words(KEY, schedule.client, schedule.trip)
    return lambda client, key: jnp.asarray(updates)[jnp.argmax(jnp.all(words == key, axis=1))]


def by_client(updates: np.ndarray) -> UpdateOf:
    """All of a client's updates are its row of ``updates`` [N, P]."""
    return lambda client, key: jnp.asarray(updates)[client]


def local_steps(client: Any) -> Any:
    return 1 + client % 3


def sizes_of(clients: int) -> np.ndarray:
    """[N]: examples of each client, all of which it uses in a trip."""
    return 1 + np.arange(clients) * 5 % 7


def run(
    rule: Any, schedule: jafl.EventSchedule, update_of: UpdateOf, size: int, **changes
) -> tuple[jafl.History, np.ndarray]:
    """The history, and the final model as a vector [size]."""
    features = -(-size // CLASSES)
    sizes = sizes_of(schedule.num_clients)
    x, y = np.zeros((sizes.sum(), features)), np.zeros(sizes.sum(), int)
    partition = jafl.Partition.from_lists(np.split(np.arange(sizes.sum()), np.cumsum(sizes)[:-1]))
    federation = jafl.Federation.from_arrays(x, y, partition, test_x=x, test_y=y, num_classes=CLASSES)
    model = jafl.models.softmax(CLASSES)
    params = model.init(jax.random.key(0), federation.x)

    def train(data, start, client, key):
        kernel = start["dense"]["kernel"]
        update = jnp.zeros(kernel.size, kernel.dtype).at[:size].set(update_of(client, key))
        return ClientResult(
            {
                "dense": {
                    "kernel": update.reshape(kernel.shape),
                    "bias": jnp.zeros_like(start["dense"]["bias"]),
                }
            },
            jnp.ones((), kernel.dtype),
            data.offsets[client + 1] - data.offsets[client],
            jnp.int32(local_steps(client)),
        )

    history = jafl.simulate(
        schedule,
        federation,
        ClientWork(train, model),
        rule,
        params,
        KEY,
        **{"evaluate_at": [], "evaluators": {}, **changes},
    )
    return history, history.params["dense"]["kernel"].ravel()[:size]


def showing_directions(rule: Any) -> jafl.Rule:
    """The rule, with ``direction`` [P] in the report of each step: the leaves one after the other."""

    def finish(buffer, params):
        direction, state, report, apply = built.finish(buffer, params)
        leaves = [leaf.ravel() for leaf in jax.tree.leaves(direction)]
        return direction, state, {**report, "direction": jnp.concatenate(leaves)}, apply

    built = rule.build()
    return built._replace(finish=finish)


def directions(history: jafl.History, size: int) -> np.ndarray:
    """[T, size]: what ``showing_directions`` reports in a run of this module (the bias comes first)."""
    return np.asarray(history.step_reports["direction"], np.float64)[:, CLASSES : CLASSES + size]


def reference_directions(rule: ref.Rule, schedule: jafl.EventSchedule, updates: np.ndarray) -> np.ndarray:
    """[T, P]: the directions of the reference's rule, fed with ``updates`` [J, P]; 0 where it skips a step."""
    sizes = sizes_of(schedule.num_clients)
    nothing = {"w": np.zeros(updates.shape[1])}
    if hasattr(rule, "foresee"):
        durations = schedule.arrival_time - schedule.download_time
        rule.foresee([*zip(schedule.client.tolist(), durations.tolist(), strict=True)])
    rule.begin(nothing, schedule.num_clients)
    directions = np.zeros((schedule.num_steps, updates.shape[1]))
    for step, (first, end) in enumerate(zip(schedule.step_offsets, schedule.step_offsets[1:], strict=False)):
        trips = [
            ref.Trip(
                client=int(schedule.client[place]),
                trip=int(schedule.trip[place]),
                download_version=int(schedule.download_version[place]),
                download_time=float(schedule.download_time[place]),
                arrival_time=float(schedule.arrival_time[place]),
                update={"w": updates[place]},
                loss=1.0,
                batch_examples=int(sizes[schedule.client[place]]),
                num_examples=int(sizes[schedule.client[place]]),
                step=step,
                staleness=int(schedule.staleness[place]),
            )
            for place in range(first, end)
        ]
        direction = rule.pseudo_gradient(nothing, trips)
        if direction is not None:
            directions[step] = direction["w"]
    return directions
