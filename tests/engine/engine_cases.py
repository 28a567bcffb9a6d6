"""The table of cases in which the engine is compared with the slow reference simulator."""

from typing import Any

import jax.numpy as jnp
import optax
import reference as ref
import reference_rules as papers
from against_reference import Case

import jafl
from jafl import delays, rules
from jafl.rules import server_optimizers, staleness


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


def slower_when_late() -> jafl.Rule:
    """A user's rule: the mean of the updates, and a step that is scaled by 1 / (1 + largest staleness)."""
    mean = rules.fedavg().build()
    return mean._replace(
        begin=lambda state, params: (mean.begin(state, params), jnp.int32(0)),
        fold=lambda buffer, arrival: (
            (mean.fold(buffer[0], arrival)[0], jnp.maximum(buffer[1], arrival.staleness)),
            {},
        ),
        finish=lambda buffer, params: (*mean.finish(buffer[0], params)[:3], 1 / (1.0 + buffer[1])),
        additive=False,
    )


class SlowerWhenLate(ref.FedAvg):
    """The same for the reference simulator."""

    def pseudo_gradient(self, params, trips):
        self.step_scale = 1 / (1 + max(trip.staleness for trip in trips))
        return super().pseudo_gradient(params, trips)


MINIBATCHES = {"batch_size": 4, "local_steps": 3}
SCHEDULED = {"batch_size": 4, "local_steps": "scheduled"}
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
    Case(
        "step scale, server momentum",
        rule=jafl.specify(slower_when_late),
        expected_rule=SlowerWhenLate,
        server=(jafl.specify(optax.sgd, learning_rate=0.7, momentum=0.9), ref.SGD(0.7, 0.9)),
    ),
    *(
        Case(
            f"fedbuff, delayed Nesterov, c = {c}",
            buffer_size=1,
            server=(
                jafl.specify(
                    server_optimizers.delayed_nesterov,
                    learning_rate=0.7,
                    momentum=0.8,
                    period=5,
                    momentum_share=c,
                ),
                papers.DelayedNesterov(0.7, 0.8, 5, c),
            ),
        )
        for c in (0.0, 0.15)
    ),
    Case(
        "fedbuff, HeLoCo",
        buffer_size=1,
        # From one example's gradient to another's at w_0 biases are at right angles, where rounding decides the case.
        work={"batch_size": 0, "local_steps": 3},
        server=(
            jafl.specify(
                server_optimizers.heloco,
                learning_rate=0.4,
                momentum=0.8,
                keep_cosine=0.6,
                largest_shrinkage=0.3,
                turning=0.7,
                relative_momentum=0.5,
            ),
            papers.HeLoCo(0.4, 0.8, 0.6, 1.0, 0.3, 0.7, 0.5),
        ),
    ),
    Case("fedbuff, server adam", server=(jafl.specify(optax.adam, learning_rate=0.02), ref.Adam(0.02))),
    Case(
        "fedbuff, FedAdam of Reddi et al.",
        server=(jafl.specify(server_optimizers.fedadam, learning_rate=0.05), papers.FedAdam(0.05)),
    ),
    Case(
        "fedbuff, FedYogi of Reddi et al.",
        server=(jafl.specify(server_optimizers.fedyogi, learning_rate=0.05), papers.FedYogi(0.05)),
    ),
    Case(
        "fedbuff, FedAdagrad of Reddi et al.",
        server=(jafl.specify(server_optimizers.fedadagrad, learning_rate=0.05), papers.FedAdagrad(0.05)),
    ),
    Case("fedbuff, not twice in a buffer", concurrency=9, buffer_size=5, restart="not_twice_in_a_buffer"),
    Case("fedbuff, after the step", concurrency=9, buffer_size=5, restart="after_step"),
    Case(
        "fedbuff, after the round, some leave", concurrency=9, restart="after_round", leaves=((0, 2, 7), 90)
    ),
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
    Case(
        "fedavg, Poisson cohorts",
        rule=rules.fedavg(divide_by=3.0),
        expected_rule=lambda: ref.FedAvg(divide_by=3.0),
        over_selection=0.0,
        concurrency=3,
        cohorts="poisson",
    ),
    Case(
        "fedavgm, Poisson cohorts",
        rule=rules.fedavg(divide_by=1.0),
        expected_rule=lambda: ref.FedAvg(divide_by=1.0),
        over_selection=0.0,
        concurrency=1,
        cohorts="poisson",
        server=(jafl.specify(optax.sgd, learning_rate=0.3, momentum=0.9), ref.SGD(0.3, 0.9)),
    ),
    Case(
        "mifa, Poisson cohorts",
        rule=rules.mifa(),
        expected_rule=papers.MIFA,
        over_selection=0.0,
        concurrency=3,
        cohorts="poisson",
    ),
    Case("buffered averaging", rule=rules.fedavg(), expected_rule=ref.FedAvg),
    Case("local steps on minibatches", work=MINIBATCHES),
    Case("local steps beyond an epoch", work={"batch_size": 5, "local_steps": 9}),
    Case("scheduled steps", work=SCHEDULED, local_steps=lambda client, trip: int(client + 2 * trip) % 5),
    Case(
        "scheduled steps, many without",
        work=SCHEDULED | {"batch_size": 0},
        local_steps=lambda client, trip: max(int(client * 7 + trip) % 9 - 5, 0),
    ),
    Case(
        "scheduled steps, LR-Norm, momentum",
        work=SCHEDULED
        | {
            "optimizer": jafl.specify(optax.sgd, learning_rate=0.2, momentum=0.8),
            "learning_rate_normalization": True,
            "proximal": 0.5,
        },
        reference_work={
            "momentum": 0.8,
            "learning_rate_normalization": True,
            "batch_size": 4,
            "proximal": 0.5,
        },
        local_steps=lambda client, trip: int(client + 2 * trip) % 5,
    ),
    Case("local epochs", work={"batch_size": 4, "local_epochs": 2}),
    Case(
        "local epochs, LR-Norm",
        work={"batch_size": 4, "local_epochs": 2, "learning_rate_normalization": True},
        reference_work={"learning_rate_normalization": True, "batch_size": 4},
    ),
    Case(
        "one short minibatch, LR-Norm",
        work={"batch_size": 200, "learning_rate_normalization": True},
        reference_work={"learning_rate_normalization": True, "batch_size": 200},
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
