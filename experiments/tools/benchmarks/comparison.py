"""The engine beside its baselines with one model, rule and number of clients."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import jafl
from experiments.tools.benchmarks import baselines, workloads
from experiments.tools.benchmarks.workloads import BATCH, EXAMPLES, RULES
from jafl.engine.loop import server_steps
from jafl.models import images, resnet

IN_FLIGHT = 100
# Trips before those that are timed, which are scheduled but not run: by then clients are as stale as they get, and
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
        before = self._whole_steps(max(TRIPS_BEFORE, 3 * in_flight))
        self.trips = self._whole_steps(trips)
        schedule = workloads.exponential_schedule(
            clients,
            self.size,
            # Without trips that follow, the last waves would have none to fill up with.
            clients * begins + before + self.trips + (before if width else 0),
            concurrency=in_flight,
            initial_round=bool(begins),
        )
        random = np.random.default_rng(0)
        x, y = workloads.noise(random, subject.shape)
        partition = workloads.overlapping_clients(random, clients)
        federation = workloads.noise_federation(x, y, partition)
        self.program, carry = workloads.placed(
            workloads.noise_run(schedule, federation, subject.model, make()),
            plan=jafl.in_waves(schedule, width) if width else jafl.trip_by_trip(schedule),
            devices=1,
            together=bool(width),
        )
        self.carry = carry._replace(snapshots=_filled(carry.snapshots, carry.params))
        self._start = jax.tree.map(jnp.copy, (carry.params, carry.rule_state))
        self.first_step = begins + before // self.size
        self._model, self._batches = subject.model, trips
        examples = partition.indices.reshape(clients, BATCH)
        self._rows = examples[schedule.client[clients * begins + before :][:trips]].astype(np.int32)

    def _whole_steps(self, trips: int) -> int:
        """So many trips, or as many more as the last server step takes."""
        return -(-trips // self.size) * self.size

    def reset(self) -> None:
        """Sets the model and the rule's state back to the start, so that no number of runs diverges."""
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
        programs = {"engine": self.engine(), "(a')": self.by_hand(())}
        for number, name in enumerate(baselines.PARTS, 1):
            programs[f"+ {name}"] = self.by_hand(tuple(baselines.PARTS)[:number])
        return programs

    def engine(self) -> Timed:
        """The engine, from where the timed steps begin."""

        def run(trips: int) -> Any:
            last = self.first_step + trips // self.size
            self.carry = server_steps.run(self.program, self.carry, self.first_step, last)
            return self.carry

        return Timed(run, self.trips)

    def by_hand(self, parts: tuple[str, ...]) -> Timed:
        """(a') plus some of ``baselines.PARTS``."""

        def run(trips: int) -> Any:
            before = self.carry
            untouched = [] if {"read", "write"} & set(parts) else ["snapshots"]
            untouched += [] if "reports" in parts else ["trip_reports", "step_reports"]
            untouched += [] if "optimizer" in parts else ["optimizer_state"]
            nothing: dict[str, Any] = dict.fromkeys(untouched)
            last = self.first_step + trips // self.size
            after = baselines.by_hand(
                self.program, before._replace(**nothing), self.first_step, last, parts=parts
            )
            self.carry = after._replace(**{name: getattr(before, name) for name in untouched})
            return self.carry

        return Timed(run, self.trips)

    def bare_waves(self, width: int) -> Timed:
        """(a) with so many clients side by side."""
        models = jax.tree.map(lambda p: jnp.stack([p] * width), self._start[0])
        x, y = self.program.data[:2]
        # At least two waves: the sum of a single one the compiler would compute once.
        distinct = max(2, EXAMPLES // BATCH // width)
        rows = jnp.asarray(np.resize(self._rows, (distinct, width, BATCH)))
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
