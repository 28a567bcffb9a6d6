"""The engine against the slow reference simulator: the same parameters after 300 steps, for a table of cases."""

import dataclasses
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import optax
import pytest
import reference as ref

import jafl
from jafl import delays, rules
from jafl.clients import minibatches
from jafl.rules import staleness

STEPS = 300


@dataclasses.dataclass(frozen=True)
class Case:
    """One row of the table; what it does not say is one full-batch step of softmax regression, FedBuff."""

    name: str
    rule: Any = dataclasses.field(default_factory=rules.fedbuff)
    expected_rule: Callable[[], ref.Rule] = ref.FedBuff
    server: tuple[Any, Any] = (jafl.specify(optax.sgd, learning_rate=0.7), ref.SGD(0.7))
    clients: int = 12
    concurrency: int = 12
    buffer_size: int = 4
    delay: delays.Delay = delays.exponential(1.0)
    work: dict[str, Any] = dataclasses.field(default_factory=dict)
    reference_work: dict[str, Any] = dataclasses.field(default_factory=dict)
    model: str = "softmax"
    over_selection: float | None = None
    steps: int = STEPS


def fedasync_case(weight=None, expected=None, mixing=0.4) -> dict[str, Any]:
    return {
        "rule": rules.fedasync(weight) if weight else rules.fedasync(),
        "expected_rule": lambda: ref.FedAsync(1.0, expected or ref.polynomial(0.5)),
        "server": (jafl.specify(optax.sgd, learning_rate=mixing), ref.SGD(mixing)),
        "buffer_size": 1,
    }


def fedbuff_case(weight, expected, aggregate="mean", by_examples=False) -> dict[str, Any]:
    return {
        "rule": rules.fedbuff(weight, aggregate, by_examples),
        "expected_rule": lambda: ref.FedBuff(expected, aggregate, by_examples),
    }


MINIBATCHES = {"batch_size": 4, "local_steps": 3}
CASES = [
    Case("fedbuff"),
    Case("fedbuff, one trip a step", buffer_size=1),
    Case("fedbuff, buffer above the concurrency", concurrency=3, buffer_size=7),
    Case("fedbuff, half of the clients in flight", concurrency=6, delay=delays.half_normal(1.0)),
    Case("fedbuff, one client", clients=1, concurrency=1, buffer_size=1),
    Case("fedbuff, one client fills the buffer", clients=1, concurrency=1, buffer_size=3),
    Case("fedbuff, one in flight", concurrency=1, buffer_size=2, delay=delays.uniform(1.0, 2.0)),
    Case("fedbuff, all-equal delays", delay=delays.constant(1.0), buffer_size=5),
    Case("fedbuff, all-equal delays, one trip a step", delay=delays.constant(1.0), buffer_size=1),
    Case("fedbuff, all-equal delays, whole cohort", delay=delays.constant(2.0), buffer_size=12),
    Case("fedbuff, log-normal once per client", delay=delays.once_per_client(delays.log_normal(1.0, 1.0))),
    Case(
        "fedbuff, fast and slow groups",
        clients=15,
        concurrency=15,
        buffer_size=5,
        delay=delays.groups(((10, delays.uniform(1, 2)), (5, delays.uniform(8, 12)))),
    ),
    Case("fedbuff, constant weight", **fedbuff_case(staleness.constant(), ref.constant())),
    Case("fedbuff, steep polynomial", **fedbuff_case(staleness.polynomial(10.0), ref.polynomial(10.0))),
    Case("fedbuff, hinge", **fedbuff_case(staleness.hinge(10.0, 2.0), ref.hinge(10.0, 2.0))),
    Case("fedbuff, exponential", **fedbuff_case(staleness.exponential(0.3), ref.exponential(0.3))),
    Case("fedbuff, a user's weight", **fedbuff_case(lambda t: 1 / (2 + t), lambda t: 1 / (2 + t))),
    Case("fedbuff, sum", **fedbuff_case(staleness.polynomial(0.5), ref.polynomial(0.5), "sum")),
    Case(
        "fedbuff, by examples", **fedbuff_case(staleness.polynomial(0.5), ref.polynomial(0.5), "mean", True)
    ),
    Case(
        "fedbuff, server momentum",
        server=(jafl.specify(optax.sgd, learning_rate=0.3, momentum=0.9), ref.SGD(0.3, 0.9)),
    ),
    Case("fedbuff, server adam", server=(jafl.specify(optax.adam, learning_rate=0.02), ref.Adam(0.02))),
    Case("fedasync", **fedasync_case()),
    Case("fedasync, constant", **fedasync_case(staleness.constant(), ref.constant())),
    Case("fedasync, hinge", **fedasync_case(staleness.hinge(2.0, 3.0), ref.hinge(2.0, 3.0))),
    Case("fedasync, few in flight", **fedasync_case(), concurrency=5),
    Case("fedasync, one client", **fedasync_case(), clients=1, concurrency=1),
    Case("fedasync, all-equal delays", **fedasync_case(), delay=delays.constant(3.0)),
    Case("fedavg", rule=rules.fedavg(), expected_rule=ref.FedAvg, over_selection=0.0, concurrency=6),
    Case(
        "fedavg, by examples",
        rule=rules.fedavg(True),
        expected_rule=lambda: ref.FedAvg(True),
        over_selection=0.0,
        concurrency=6,
    ),
    Case(
        "fedavg, over-selection",
        rule=rules.fedavg(),
        expected_rule=ref.FedAvg,
        over_selection=0.3,
        concurrency=6,
    ),
    Case(
        "fedavg, no delay",
        rule=rules.fedavg(),
        expected_rule=ref.FedAvg,
        over_selection=0.5,
        concurrency=4,
        delay=delays.constant(0.0),
    ),
    Case(
        "fedavgm",
        rule=rules.fedavg(),
        expected_rule=ref.FedAvg,
        over_selection=0.0,
        concurrency=6,
        server=(jafl.specify(optax.sgd, learning_rate=0.3, momentum=0.9), ref.SGD(0.3, 0.9)),
    ),
    Case("buffered averaging", rule=rules.fedavg(), expected_rule=ref.FedAvg),
    Case("local steps on minibatches", work=MINIBATCHES),
    Case("local steps beyond an epoch", work={"batch_size": 5, "local_steps": 9}),
    Case("local epochs", work={"batch_size": 4, "local_epochs": 2}),
    Case(
        "local epochs, LR-Norm",
        work={"batch_size": 4, "local_epochs": 2, "learning_rate_normalization": True},
        reference_work={"learning_rate_normalisation": True, "batch_size": 4},
    ),
    Case(
        "one short minibatch, LR-Norm",
        work={"batch_size": 200, "learning_rate_normalization": True},
        reference_work={"learning_rate_normalisation": True, "batch_size": 200},
    ),
    Case("full batches, several steps", work={"batch_size": 0, "local_steps": 4}),
    Case(
        "proximal and L2",
        work={**MINIBATCHES, "proximal": 0.5, "l2": 0.1},
        reference_work={"proximal": 0.5, "l2": 0.1},
    ),
    Case(
        "client momentum",
        work={**MINIBATCHES, "optimizer": jafl.specify(optax.sgd, learning_rate=0.2, momentum=0.8)},
        reference_work={"momentum": 0.8},
    ),
    Case("multilayer perceptron", model="mlp", work=MINIBATCHES),
    Case("multilayer perceptron, fedasync", **fedasync_case(), model="mlp"),
]
LEARNING_RATE = 0.2


def make_federation(clients: int, dtype) -> jafl.Federation:
    """Clients of very unequal sizes, 1 to 70 examples, with 6 features and 3 classes."""
    random = np.random.default_rng(5)
    sizes = np.concatenate([[1, 3, 70, 33], random.integers(1, 40, 40)])[:clients]
    y = random.integers(0, 3, sizes.sum())
    x = random.normal(size=(len(y), 6)) + np.eye(3, 6)[y] * 1.5
    order = random.permutation(len(y))
    partition = jafl.Partition.from_lists(np.split(order, np.cumsum(sizes)[:-1]))
    return jafl.Federation.from_arrays(
        x.astype(dtype), y, partition, test_x=x[:20].astype(dtype), test_y=y[:20], num_classes=3
    )


def make_schedule(case: Case) -> jafl.EventSchedule:
    common = {"num_clients": case.clients, "delay": case.delay, "server_steps": case.steps, "seed": 3}
    if case.over_selection is None:
        return jafl.asynchronous(concurrency=case.concurrency, buffer_size=case.buffer_size, **common)
    return jafl.synchronous(cohort_size=case.concurrency, over_selection=case.over_selection, **common)


def work_of(case: Case, model: jafl.Model):
    given = {"batch_size": 0, **case.work}
    return jafl.client_work(
        model, **given, **({} if "optimizer" in given else {"learning_rate": LEARNING_RATE})
    )


def choices(schedule: jafl.EventSchedule) -> Callable[[float, list[int], int], Sequence[int]]:
    """The clients that the schedule starts at each instant: the only draws that the reference is handed."""
    times = np.concatenate([schedule.download_time, schedule.inflight_start_time])
    clients = np.concatenate([schedule.client, schedule.inflight_client])

    def select(time: float, idle: list[int], how_many: int) -> Sequence[int]:
        return sorted(clients[times == time].tolist())

    return select


def reference_run(case: Case, federation, schedule, params, key) -> ref.Replay:
    """The reference's own events, training and aggregation of the same case."""
    data = [federation.client(client) for client in range(case.clients)]
    batch_size = case.work.get("batch_size", 0)

    def batches(client: int, trip: int) -> list[np.ndarray]:
        count = len(data[client][1])
        per_epoch = -(-count // batch_size) if batch_size else 1
        steps = case.work.get("local_epochs", 0) * per_epoch or case.work.get("local_steps", 1)
        if batch_size == 0:
            return [np.arange(count)] * steps
        return minibatches(key, client, trip, num_examples=count, batch_size=batch_size, steps=steps)

    def duration(client: int, trip: int) -> float:
        return float(case.delay.durations(3, np.array([client]), np.array([trip]))[0])

    common = dict(
        params=ref.float64_copy(params),
        num_clients=case.clients,
        duration=duration,
        stop_after_steps=case.steps,
        rule=case.expected_rule(),
        optimizer=case.server[1],
        client_update=ref.client_work(data, batches, learning_rate=LEARNING_RATE, **case.reference_work),
        client_examples=federation.num_examples,
    )
    if case.over_selection is None:
        return ref.simulate(
            concurrency=case.concurrency, buffer_size=case.buffer_size, select=choices(schedule), **common
        )
    rounds: dict[int, list[int]] = {}
    for step, client in zip(schedule.step, schedule.client, strict=True):
        rounds.setdefault(int(step), []).append(int(client))
    for step, client in zip(schedule.discarded_step, schedule.discarded_client, strict=True):
        rounds[int(step)].append(int(client))
    return ref.simulate_synchronous(
        cohort=case.concurrency,
        started=schedule.concurrency,
        select_round=lambda number, started: sorted(rounds[number]),
        **common,
    )


def relative_difference(params: Any, expected: Any) -> float:
    """The 2-norm of the difference over all leaves, relative to the expected one's."""
    difference = jax.tree.map(lambda a, b: np.asarray(a, np.float64) - b, params, expected)
    return ref.norm(difference) / ref.norm(expected)


@pytest.mark.parametrize("precision", ["float64", "float32"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_engine_equals_reference(case: Case, precision: str):
    dtype, bound = {"float64": (np.float64, 1e-9), "float32": (np.float32, 1e-4)}[precision]
    with jax.enable_x64(precision == "float64"):
        federation, schedule = make_federation(case.clients, dtype), make_schedule(case)
        model = jafl.models.softmax(3) if case.model == "softmax" else jafl.models.mlp(3, (5,))
        key = jax.random.key(zlib.crc32(case.name.encode()))
        params = model.init(jax.random.key(1), federation.x)
        assert all(leaf.dtype == dtype for leaf in jax.tree.leaves(params))
        history = jafl.simulate(
            schedule,
            federation,
            work_of(case, model),
            case.rule,
            params,
            key,
            server_optimizer=case.server[0],
            evaluate_at=[],
        )
        replay = reference_run(case, federation, schedule, params, key)
    assert relative_difference(history.params, replay.final_params) <= bound
    moved = ref.subtract(replay.final_params, ref.float64_copy(params))
    assert ref.norm(moved) > 0.1, "the case trains nothing, so it compares nothing"
    assert np.array_equal(schedule.client, ref.column(replay.applied, "client"))
    assert np.array_equal(schedule.staleness, ref.column(replay.applied, "staleness"))
    assert np.array_equal(schedule.arrival_time, ref.column(replay.applied, "arrival_time"))
    if "l2" not in case.work:  # the recorded loss leaves the L2 term out, the reference's does not
        losses = ref.column(replay.applied, "loss")
        np.testing.assert_allclose(history.trip_reports["loss"], losses, rtol=bound * 100, atol=bound)
