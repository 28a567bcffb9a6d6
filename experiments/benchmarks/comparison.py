"""The models, rules and data of the speed benchmark, and the engine beside its baselines on one of each."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import jafl
from experiments.benchmarks import baselines
from experiments.benchmarks.baselines import BATCH, RATE
from jafl import engine
from jafl.models import images, resnet
from jafl.planning.preparation import prepare

EXAMPLES, IN_FLIGHT = 3200, 100
# Trips before those that are timed, of which only the schedule is made: then clients are as stale as they get, and
# those that ACED counts as active come and go.
TRIPS_BEFORE = 600


class Subject(NamedTuple):
    """A model to time: the ``shape`` of an example, trips (batches) per timed run, and how often each is timed.

    Steps of several trips are timed whole. ``warm_up``: whether each program first runs once untimed.
    """

    title: str
    model: jafl.Model
    shape: tuple[int, ...]
    trips: int
    repeats: int = 5
    warm_up: bool = True


MODELS = {
    "softmax": Subject("softmax 784x10", jafl.models.softmax(10), (784,), 4000),
    "mlp": Subject("MLP 784-200-10", jafl.models.mlp(10, (200,)), (784,), 1000),
    "emnist_cnn": Subject("EMNIST CNN", images.emnist_cnn(62), (28, 28, 1), 10, warm_up=False),
    "lenet5": Subject("LeNet 32x32x3", images.lenet5(10), (32, 32, 3), 40),
    "resnet18": Subject("ResNet-18", resnet.resnet18(10), (32, 32, 3), 2, warm_up=False),
}
# {name: (rule, K)}
RULES: dict[str, tuple[Callable[[], jafl.Specification], int]] = {
    "asgd": (jafl.rules.asgd, 1),
    "fedasync": (jafl.rules.fedasync, 1),
    "fedbuff": (jafl.rules.fedbuff, 10),
    "ace": (jafl.rules.ace, 1),
    "aced": (lambda: jafl.rules.aced(active_steps=300), 1),
    "ca2fl": (jafl.rules.ca2fl, 10),
    "wkafl": (lambda: jafl.rules.wkafl(10), 10),
    "ace_8_bits": (lambda: jafl.rules.ace(memory_precision="int8"), 1),
}


def noise_federation(clients: int, shape: tuple[int, ...] = (784,)) -> jafl.Federation:
    """Gaussian noise with random labels: speed does not depend on what is learnt. Clients overlap."""
    random = np.random.default_rng(0)
    x = random.normal(size=(EXAMPLES, *shape)).astype(np.float32)
    y = random.integers(0, 10, EXAMPLES)
    held = random.permuted(np.tile(np.arange(EXAMPLES), (-(-clients * BATCH // EXAMPLES), 1)), axis=1)
    held = held.reshape(-1)[: clients * BATCH]
    partition = jafl.Partition(np.arange(clients + 1) * BATCH, held)
    return jafl.Federation.from_arrays(x, y, partition, test_x=x[:32], test_y=y[:32], num_classes=10)


class Timed(NamedTuple):
    """``run(trips)`` trains up to so many trips, at most ``trips``; 0 only compiles."""

    run: Callable[[int], Any]
    trips: int


class Comparison:
    """The engine and its baselines with one model, rule and number of clients, arrays placed beforehand.

    All programs by hand take the engine's arrays over and give them back, so that a memory is held once.

    in_flight: clients at work at a time; if None, IN_FLIGHT of them, and all with rules with memory. width: trips
    that train side by side; if None, one after the other.

    Raises:
      SettingError: if it does not fit into the device's memory.
    """

    def __init__(
        self,
        subject: Subject,
        clients: int,
        rule: str,
        trips: int,
        *,
        in_flight: int | None = None,
        width: int | None = None,
    ):
        make, self.size = RULES[rule]
        begins = int(make().build().initial_round)
        if in_flight is None:
            in_flight = clients if begins or rule == "ca2fl" else min(clients, IN_FLIGHT)
        federation = noise_federation(clients, subject.shape)
        self.trips = -(-trips // self.size) * self.size
        before = -(-max(TRIPS_BEFORE, 3 * in_flight) // self.size) * self.size
        # Without trips that follow, the last waves would have none to fill up with.
        after = before if width else 0
        schedule = jafl.asynchronous(
            num_clients=clients,
            concurrency=in_flight,
            buffer_size=self.size,
            delay=jafl.delays.exponential(1.0),
            client_trips=clients * begins + before + self.trips + after,
            initial_round=bool(begins),
        )
        work = jafl.client_work(subject.model, learning_rate=RATE, batch_size=BATCH)
        params = subject.model.init(jax.random.key(0), federation.x[:BATCH])
        plan = jafl.in_waves(schedule, width) if width else jafl.trip_by_trip(schedule)
        run = jafl.Run(schedule, federation, work, make(), params, jax.random.key(1))
        self.program, carry = prepare(run, plan=plan, devices=1, together=bool(width)).place()
        self.carry = carry._replace(snapshots=_filled(carry.snapshots, carry.params))
        self._start = jax.tree.map(jnp.copy, (carry.params, carry.rule_state))
        self.first_step = begins + before // self.size
        self._model, self._batches = subject.model, trips
        held = federation.partition.indices.reshape(clients, BATCH)
        self._rows = held[schedule.client[clients * begins + before :][:trips]].astype(np.int32)

    def reset(self) -> None:
        """Sets the model and what the rule keeps to the start, so that no number of runs diverges."""
        params, rule_state = jax.tree.map(jnp.copy, self._start)
        self.carry = self.carry._replace(params=params, rule_state=rule_state)
        jax.block_until_ready(self.carry)

    def programs(self) -> dict[str, Timed]:
        """{"engine", "(a)", "(a')", "(a'')", "(b)": program}."""
        return {
            "engine": self.engine(),
            "(a)": self._bare(),
            "(a')": self.by_hand(()),
            "(a'')": self.by_hand(baselines.ASYNCHRONOUS),
            "(b)": self._centralised(),
        }

    def parts(self) -> dict[str, Timed]:
        """{"engine", "(a')", then (a') with one part of ``baselines.PARTS`` after the other: program}."""
        made = {"engine": self.engine(), "(a')": self.by_hand(())}
        for number, name in enumerate(baselines.PARTS, 1):
            made[f"+ {name}"] = self.by_hand(tuple(baselines.PARTS)[:number])
        return made

    def engine(self) -> Timed:
        """The engine, from where the timed steps begin."""

        def run(trips: int) -> Any:
            last = self.first_step + trips // self.size
            self.carry = engine.run(self.program, self.carry, self.first_step, last)
            return self.carry

        return Timed(run, self.trips)

    def by_hand(self, parts: tuple[str, ...]) -> Timed:
        """(a') plus some of ``baselines.PARTS``."""

        def run(trips: int) -> Any:
            given = self.carry
            untouched = [] if {"read", "write"} & set(parts) else ["snapshots"]
            untouched += [] if "reports" in parts else ["trip_reports", "step_reports"]
            untouched += [] if "optimizer" in parts else ["optimizer_state"]
            nothing: dict[str, Any] = dict.fromkeys(untouched)
            last = self.first_step + trips // self.size
            made = baselines.by_hand(
                self.program, given._replace(**nothing), self.first_step, last, parts=parts
            )
            self.carry = made._replace(**{name: getattr(given, name) for name in untouched})
            return self.carry

        return Timed(run, self.trips)

    def bare_waves(self, width: int) -> Timed:
        """(a) with so many clients side by side."""
        models = jax.tree.map(lambda p: jnp.stack([p] * width), self._start[0])
        x, y = self.program.data[:2]
        some = max(2, EXAMPLES // BATCH // width)  # of one wave alone the compiler would compute the sum once
        rows = jnp.asarray(np.resize(self._rows, (some, width, BATCH)))
        waves = -(-self.trips // width)
        return Timed(
            lambda trips: baselines.bare_waves(self._model, models, x, y, rows, waves * (trips > 0)),
            waves * width,
        )

    def _bare(self) -> Timed:
        params, (x, y) = jax.tree.map(jnp.copy, self._start[0]), self.program.data[:2]
        rows = jnp.asarray(self._rows)
        return Timed(lambda trips: baselines.bare_loop(self._model, params, x, y, rows, trips), self._batches)

    def _centralised(self) -> Timed:
        x, y = self.program.data[:2]
        batches = [(x[rows], y[rows]) for rows in self._rows[: EXAMPLES // BATCH]]

        def run(trips: int) -> Any:
            params = jax.tree.map(jnp.copy, self._start[0])
            for number in range(trips):
                params = baselines.centralised_step(self._model, params, *batches[number % len(batches)])
            return params

        jax.block_until_ready(run(1))  # compiles
        return Timed(run, self._batches)


@functools.partial(jax.jit, donate_argnums=0)
def _filled(snapshots: Any, params: Any) -> Any:
    """Every snapshot is the model: steps whose versions are read have not been run."""
    return jax.tree.map(lambda rows, p: jnp.broadcast_to(p, rows.shape), snapshots, params)
