"""How much the engine costs beside the arithmetic: trips per second, side by side in one process.

    python -m experiments.benchmarks.speed
    python -m experiments.benchmarks.speed --rules=fedbuff,ace --models=softmax --clients=100,10000

For softmax regression 784 x 10 and an MLP 784-200-10, 32 examples a trip, one local step, on one core: the engine
with each rule and number of clients, next to two programs on the same rows of the same examples:

  (a)   *bare*: one jitted loop that takes the gradient of a fixed model for each trip and adds it to a running sum;
  (a')  *by hand*: the same loop with the rule's arithmetic (its fold and finish, its clients' memory, a plain step of
        the model), and nothing else: no schedule, snapshots, shuffles, reports or server optimizer.

Rules with memory have all clients in flight, the others 100. All clients' examples are rows of 3,200, so that the
data are no larger where there are more clients. Programs alternate; printed are the median of the runs and the
median over the rounds of the engine's time over that of each program in the same round, which a machine that is slow
for a while does not disturb. ``N / 100``: the engine's time over that with the first number of clients. Takes about
twenty minutes. Compare ratios, not seconds.
"""

import os
import time
from collections.abc import Callable
from typing import Any, NamedTuple

# One thread, set before JAX starts, so that the ratio compares arithmetic and not the thread pool.
os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags
from jax import lax

import jafl
from jafl import client_memory, engine, preparation
from jafl.records import Arrival

BATCH, EXAMPLES, RATE, IN_FLIGHT = 32, 3200, 0.01, 100
# {name: (rule, K)}
RULES: dict[str, tuple[Callable[[], jafl.Specification], int]] = {
    "asgd": (jafl.rules.asgd, 1),
    "fedasync": (jafl.rules.fedasync, 1),
    "fedbuff": (jafl.rules.fedbuff, 10),
    "ace": (jafl.rules.ace, 1),
    "aced": (lambda: jafl.rules.aced(active_steps=300), 1),
    "ca2fl": (jafl.rules.ca2fl, 10),
    "wkafl": (lambda: jafl.rules.wkafl(10), 10),
}
MODELS = {"softmax": jafl.models.softmax(10), "mlp": jafl.models.mlp(10, (200,))}

NAMES = flags.DEFINE_list("rules", list(RULES), "Which rules to time.")
MODEL_NAMES = flags.DEFINE_list("models", list(MODELS), "Which models to time.")
CLIENTS = flags.DEFINE_list("clients", ["100", "1000", "10000"], "Numbers of clients.")
TRIPS = flags.DEFINE_integer("trips", 4000, "Client trips per timed run.", lower_bound=10)
REPEATS = flags.DEFINE_integer("repeats", 5, "Timed runs of each program.", lower_bound=1)


class Placed(NamedTuple):
    """A program of the engine, its carry, and the first and last step to time."""

    program: engine.Program
    carry: engine.Carry
    first: int
    last: int


def noise_federation(clients: int) -> jafl.Federation:
    """Gaussian noise with random labels: speed does not depend on what is learnt. Clients overlap."""
    random = np.random.default_rng(0)
    x = random.normal(size=(EXAMPLES, 784)).astype(np.float32)
    y = random.integers(0, 10, EXAMPLES)
    held = random.permuted(np.tile(np.arange(EXAMPLES), (-(-clients * BATCH // EXAMPLES), 1)), axis=1)
    held = held.reshape(-1)[: clients * BATCH]
    partition = jafl.Partition(np.arange(clients + 1) * BATCH, held)
    return jafl.Federation.from_arrays(x, y, partition, test_x=x[:32], test_y=y[:32], num_classes=10)


def place(model: jafl.Model, clients: int, rule: str, trips: int) -> Placed:
    """The engine's program for ``trips`` client trips after the initial round, if the rule has one."""
    make, size = RULES[rule]
    begins = make().build().initial_round
    federation = noise_federation(clients)
    schedule = jafl.asynchronous(
        num_clients=clients,
        concurrency=clients if begins or rule == "ca2fl" else min(clients, IN_FLIGHT),
        buffer_size=size,
        delay=jafl.delays.exponential(1.0),
        client_trips=trips + clients * begins,
        initial_round=begins,
    )
    work = jafl.client_work(model, learning_rate=RATE, batch_size=BATCH)
    params = model.init(jax.random.key(0), federation.x)
    program, carry = preparation.prepare(
        schedule, federation, work, make(), params, jax.random.key(1), devices=1
    )
    return Placed(program, engine.run(program, carry, 0, int(begins)), int(begins), schedule.num_steps)


def _gradient(program: engine.Program, params: Any, trip: jax.Array) -> Any:
    data, model = program.data, program.client_work.build().model
    rows = lax.dynamic_slice_in_dim(data.indices, data.offsets[program.trips.client[trip]], BATCH)
    return jax.grad(lambda p: model.losses(p, data.x[rows], data.y[rows]).mean())(params)


@jax.jit
def _bare_loop(program: engine.Program, params: Any, first: int, last: int) -> Any:
    """(a): the sum of the gradients of a fixed model over the trips ``first`` to ``last - 1``."""

    def one_trip(trip, total):
        return jax.tree.map(lax.add, total, _gradient(program, params, trip))

    return lax.fori_loop(first, last, one_trip, jax.tree.map(lambda p: p * 0, params))


@jax.jit
def _by_hand(program: engine.Program, state: tuple, first: int, last: int) -> tuple:
    """(a'): the rule on always fresh gradients, from ``state`` (model, what lasts, clients' memory)."""
    rule = program.rule.build()

    def one_trip(trip, params, buffer, memory):
        memory = memory and client_memory.settle(memory)
        after = trip + (client_memory.nought_after(memory) if memory else 0)
        arrival = Arrival(
            update=jax.tree.map(lambda g: -RATE * g, _gradient(program, params, after)),
            start=params if rule.needs_start else None,
            client=program.trips.client[trip],
            staleness=program.trips.staleness[trip],
            num_examples=jnp.int32(BATCH),
            batch_examples=jnp.int32(BATCH),
            local_steps=jnp.int32(1),
            loss=jnp.float32(0),
            columns={name: column[trip] for name, column in program.trips.columns.items()},
        )
        buffer, memory, _ = engine._fold(program, trip, arrival, buffer, memory)
        return buffer, memory

    def one_step(step, state):
        params, lasting, memory = state
        buffer = rule.begin(lasting, params)
        if program.recall:
            buffer, memory = engine._recall(program, program.recall, memory, step, buffer, params)
        begin, end = program.steps.first_trip[step], program.steps.first_trip[step + 1]
        opened = (buffer, memory)
        if program.rule.build().buffer_size == 1:
            buffer, memory = one_trip(begin, params, *opened)
        else:
            buffer, memory = _loop(begin, end, lambda trip, opened: one_trip(trip, params, *opened), opened)
        direction, lasting, _, _ = rule.finish(buffer, params)
        return jax.tree.map(lambda p, d: p - d, params, direction), lasting, memory

    return _loop(first, last, one_step, state)


def _loop(first: Any, last: Any, body: Callable[[Any, Any], Any], state: tuple) -> tuple:
    """``fori_loop`` over a state whose last part is the clients' memory, carried flat as the engine does."""

    def flat(state: tuple) -> tuple:
        return *engine._flat(state[:-1]), engine._flat_memory(state[-1])

    def one(number, carried):
        return flat(body(number, engine._shaped(carried, state)))

    return engine._shaped(lax.fori_loop(first, last, one, flat(state)), state)


def programs(model: jafl.Model, clients: int, rule: str, trips: int) -> dict[str, Callable[[], Any]]:
    """The three programs, arrays placed beforehand; each call runs ``trips`` client trips to the end."""
    program, carry, first, last = place(model, clients, rule, trips)
    fixed = jax.tree.map(jnp.copy, carry.params)
    states = {
        "engine": carry,
        "by hand": jax.tree.map(jnp.copy, (carry.params, carry.rule_state, carry.memory)),
    }
    first_trip = clients * first  # that of the initial round

    def run_engine() -> Any:
        states["engine"] = engine.run(program, states["engine"], first, last)
        return states["engine"].params

    by_hand = jax.jit(_by_hand, donate_argnums=1)

    def run_by_hand() -> Any:
        states["by hand"] = by_hand(program, states["by hand"], first, last)
        return states["by hand"][0]

    bare = lambda: _bare_loop(program, fixed, first_trip, first_trip + trips)  # noqa: E731
    return {"engine": run_engine, "bare": bare, "by hand": run_by_hand}


def seconds_of(timed: dict[str, Callable[[], Any]], repeats: int) -> dict[str, np.ndarray]:
    """{name: [repeats] wall-clock seconds}, the programs alternating."""
    times: dict[str, list[float]] = {name: [] for name in timed}
    for repeat in range(-1, repeats):  # the first round compiles
        for name, run in timed.items():
            before = time.perf_counter()
            jax.block_until_ready(run())
            if repeat >= 0:
                times[name].append(time.perf_counter() - before)
    return {name: np.array(seconds) for name, seconds in times.items()}


def main(_: list[str]) -> None:
    """Times every rule, model and number of clients, and prints one line each."""
    trips = TRIPS.value - TRIPS.value % 10
    head = ("model", "rule", "clients", "trips/s", "/ (a)", "/ (a')", "N / 100", "spread of (a)")
    print("{:8} {:9} {:>8} {:>8} {:>6} {:>7} {:>8} {:>14}".format(*head))
    for label in MODEL_NAMES.value:
        for rule in NAMES.value:
            of_hundred = None
            for clients in map(int, CLIENTS.value):
                try:
                    timed = programs(MODELS[label], clients, rule, trips)
                except jafl.SettingError as error:  # does not fit into the memory
                    print(f"{label:8} {rule:9} {clients:8,} {str(error)[:80]}", flush=True)
                    continue
                seconds = seconds_of(timed, REPEATS.value)
                own, bare, by_hand = (seconds[name] for name in ("engine", "bare", "by hand"))
                of_hundred = np.median(own) if of_hundred is None else of_hundred
                print(
                    f"{label:8} {rule:9} {clients:8,} {trips / np.median(own):8,.0f} {np.median(own / bare):6.2f} "
                    f"{np.median(own / by_hand):7.2f} {np.median(own) / of_hundred:8.2f} "
                    f"{bare.min() / np.median(bare):7.2f}-{bare.max() / np.median(bare):.2f}",
                    flush=True,
                )
                del timed


if __name__ == "__main__":
    app.run(main)
