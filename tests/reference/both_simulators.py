"""Runs a case in the reference simulator, or in jafl's schedule and engine, and describes both in the same words."""

from unittest import mock

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import reference as ref

import jafl
from jafl import rules
from jafl.clients.records import ClientResult, ClientWork
from jafl.schedule import availability, delays, event_state

# What ``jafl.asynchronous`` calls as the reference does.
SAME = ("num_clients", "concurrency", "buffer_size", "restart", "cancel_at_step") + (
    "staleness_limit",
    "too_stale",
    "flush_after",
    "replace_lost",
    "step_when",
    "step_every",
)

PLAIN = {
    "params": {},
    "rule": ref.FedBuff(ref.constant()),
    "optimizer": ref.SGD(1.0),
    "client_update": ref.no_work,
}


def by_reference(**changes) -> ref.Replay:
    """`ref.simulate` with plain settings: the server adds the mean update, without staleness weights."""
    return ref.simulate(**(PLAIN | changes))


def by_jafl(**settings) -> ref.Replay:
    """The same by jafl: for cases in which nobody chooses among the clients, with work from ``halfway_to``."""
    schedule = make_schedule(settings)
    replay = events_of(schedule, settings["duration"])
    if settings.get("params"):
        replay.params = train(schedule, settings)
    return replay


both_simulators = pytest.mark.parametrize("run", [by_reference, by_jafl], ids=["reference", "jafl"])


def halfway_to(targets):
    """Client work by hand: client c moves the one parameter half the way to targets[c]."""

    def client_update(client, trip, params):
        return {"w": 0.5 * (targets[client] - params["w"])}, 0.0, 1

    client_update.targets = targets
    return client_update


def make_schedule(settings: dict) -> jafl.EventSchedule:
    duration, fails = settings["duration"], settings.get("fails")
    arguments = {name: settings[name] for name in SAME if name in settings}
    if settings.get("step_every"):
        del arguments["buffer_size"]
    if "first_buffer_size" in settings:
        assert settings["first_buffer_size"] == settings["num_clients"]
        arguments["initial_round"] = True
    if "time_out" in settings:
        arguments["trip_time_out"] = settings["time_out"]
    if "vanish" in settings and settings["vanish"] is not None:
        kind, clients, moment = settings["vanish"]
        name = {"step": "server_step", "time": "time", "trips": "trips"}[kind]
        arguments["dropout"] = jafl.Dropout(clients=clients, **{name: moment})
    if "next_available" in settings or "present_until" in settings:
        arguments["availability"] = availability.from_functions(
            settings.get("next_available", lambda client, time: time), settings.get("present_until")
        )
    if fails:
        arguments["failure_rate"] = 0.5

    def failure_draws(seed, purpose, clients, trips):
        """In the place of the draws of which those below the failure rate fail."""
        return np.array([0.0 if fails(*trip) else 1.0 for trip in zip(clients, trips, strict=True)])

    with mock.patch.object(
        event_state, "keyed_uniform", failure_draws if fails else event_state.keyed_uniform
    ):
        return jafl.asynchronous(
            **arguments, delay=Durations(duration), server_steps=settings["stop_after_steps"]
        )


class Durations(delays.Delay):
    """A duration(client, trip) as a law of delays."""

    def __init__(self, duration):
        self.duration = duration

    def durations(self, seed, client, trip):
        trips = zip(*(np.ravel(numbers).tolist() for numbers in (client, trip)), strict=True)
        return np.array([self.duration(*each) for each in trips]).reshape(np.shape(client))


def events_of(schedule: jafl.EventSchedule, duration) -> ref.Replay:
    """The schedule in the words of the reference; a trip that does not arrive would do so after its duration."""

    def trips(clients, numbers, versions, starts) -> list[ref.Trip]:
        return [
            ref.Trip(client, trip, version, start, start + duration(client, trip))
            for client, trip, version, start in zip(
                *(column.tolist() for column in (clients, numbers, versions, starts)), strict=True
            )
        ]

    applied = trips(schedule.client, schedule.trip, schedule.download_version, schedule.download_time)
    columns = (schedule.arrival_time, schedule.step, schedule.staleness)
    for trip, arrival, step, staleness in zip(applied, *map(np.ndarray.tolist, columns), strict=True):
        trip.arrival_time, trip.step, trip.staleness = arrival, step, staleness
    start = schedule.discarded_start_time
    version = np.where(start > 0, np.searchsorted(schedule.step_time, start, "right"), 0)
    discarded = trips(schedule.discarded_client, schedule.discarded_trip, version, start)
    columns = (schedule.discarded_end_time, schedule.discarded_step)
    for trip, time, step in zip(discarded, *map(np.ndarray.tolist, columns), strict=True):
        trip.cancel_time, trip.cancel_step = time, step
    in_flight = trips(
        schedule.inflight_client,
        schedule.inflight_trip,
        schedule.inflight_version,
        schedule.inflight_start_time,
    )
    return ref.Replay(applied, schedule.step_time.tolist(), [], in_flight, discarded)


class OneParameter(nn.Module):
    """Two outputs that the parameter w shifts alike."""

    @nn.compact
    def __call__(self, x):
        return jnp.zeros((len(x), 2), x.dtype) + self.param("w", nn.initializers.zeros, (), x.dtype)


def jafls_rule(rule: ref.Rule) -> jafl.Specification:
    """jafl's rule of the same meaning as the reference's FedAvg or FedBuff."""
    if isinstance(rule, ref.FedAvg):
        return rules.fedavg(rule.weight_by_examples, divide_by=rule.divide_by)
    assert type(rule) is ref.FedBuff
    weights = np.array([rule.staleness_weight(staleness) for staleness in range(100)])
    return rules.fedbuff(
        lambda staleness: jnp.asarray(weights)[staleness.astype(int)],
        rule.aggregation,
        rule.weight_by_examples,
    )


def train(schedule: jafl.EventSchedule, settings: dict) -> list:
    """The parameters of every version, by jafl's engine in float64."""
    sizes = settings.get("client_examples") or [1] * schedule.num_clients
    rule, optimizer = (
        settings.get("rule", ref.FedBuff(ref.constant())),
        settings.get("optimizer", ref.SGD(1.0)),
    )
    versions: list = []
    with jax.enable_x64(True):
        x, y = np.zeros((sum(sizes), 1)), np.zeros(sum(sizes), int)
        partition = jafl.Partition.from_lists(np.split(np.arange(len(y)), np.cumsum(sizes)[:-1]))
        federation = jafl.Federation.from_arrays(x, y, partition, test_x=x, test_y=y, num_classes=2)
        targets = jnp.asarray(settings["client_update"].targets)

        def client_work(data, start, client, key):
            update = {"w": 0.5 * (targets[client] - start["w"])}
            return ClientResult(update, jnp.zeros(()), jnp.int32(1), jnp.int32(1))

        jafl.simulate(
            schedule,
            federation,
            ClientWork(client_work, jafl.Model(OneParameter())),
            jafls_rule(rule),
            settings["params"],
            jax.random.key(0),
            server_optimizer=jafl.specify(
                optax.sgd, learning_rate=optimizer.learning_rate, momentum=optimizer.momentum
            ),
            evaluators={},
            evaluate_at=range(schedule.num_steps),
            on_evaluation=lambda evaluation, params: versions.append(ref.float64_copy(params)),
        )
    return versions
