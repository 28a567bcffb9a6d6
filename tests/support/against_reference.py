"""Runs a case in the engine and in the slow reference simulator, and compares: what the tables of cases share."""

import dataclasses
import functools
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import reference as ref

import jafl
from jafl import delays, rules
from jafl.base.keyed_shuffle import shuffled
from jafl.clients.compression import random_numbers
from jafl.clients.minibatch_gradients import trip_words

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
    cohorts: str = "fixed"
    initial_round: bool = False
    restart: str = "at_once"
    leaves: tuple[tuple[int, ...], int] | None = None  # these clients, with this server step
    learning_rate: float = 0.2
    steps: int = STEPS
    due: bool = False  # steps of all reports that are due
    tiers: int | tuple[int, ...] = (
        0  # so many tiers, or that of each client; their cohorts are of ``buffer_size``
    )
    # Polls of ``buffer_size`` clients: their interval and most local steps, where a local step takes the delay.
    polls: tuple[float, int] | None = None
    download: str = "after_step"  # which version polled clients get
    # More arguments of ``jafl.asynchronous``, which the reference calls the same. With ``local_steps`` a local step
    # takes the delay.
    protocol: dict[str, Any] = dataclasses.field(default_factory=dict)
    local_steps: Callable[[int, int], int] | None = None  # (client, trip) -> how many the schedule says


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
    schedule = make_events(case)
    if case.local_steps is None:
        return schedule
    steps = [case.local_steps(*trip) for trip in zip(schedule.client, schedule.trip, strict=True)]
    return dataclasses.replace(schedule, local_steps=np.array(steps, np.int32))


def make_events(case: Case) -> jafl.EventSchedule:
    common = {"num_clients": case.clients, "delay": case.delay, "server_steps": case.steps, "seed": 3}
    if case.due:
        return jafl.drawn_staleness(reports="due", initial_round=case.initial_round, **common)
    if case.polls:
        interval, most = case.polls
        common["delay"] = delays.per_step(case.delay)
        return jafl.polled(
            cohort_size=case.buffer_size,
            interval=interval,
            most_local_steps=most,
            download=case.download,
            **common,
        )
    if case.tiers:
        return jafl.tiered(tiers=case.tiers, cohort_size=case.buffer_size, **common)
    if case.over_selection is None:
        if "local_steps" in case.protocol:
            common["delay"] = delays.per_step(case.delay)
        return jafl.asynchronous(
            concurrency=case.concurrency,
            buffer_size=case.buffer_size if _fills_a_buffer(case) else None,
            initial_round=case.initial_round,
            restart=case.restart,
            **case.protocol,
            dropout=case.leaves and jafl.Dropout(clients=case.leaves[0], server_step=case.leaves[1]),
            **common,
        )
    return jafl.synchronous(
        cohort_size=case.concurrency, over_selection=case.over_selection, cohorts=case.cohorts, **common
    )


def _fills_a_buffer(case: Case) -> bool:
    """Whether a number of trips says when the server steps."""
    return not {"step_every"} & set(case.protocol) and "round" not in case.protocol.get("step_when", "")


def work_of(case: Case, model: jafl.Model):
    given = {"batch_size": 0, **case.work}
    return jafl.client_work(
        model, **given, **({} if "optimizer" in given else {"learning_rate": case.learning_rate})
    )


def choices(schedule: jafl.EventSchedule) -> Callable[[float, list[int], int], Sequence[int]]:
    """The clients that the schedule starts at each instant: the only draws that the reference is handed."""
    times = [schedule.download_time, schedule.inflight_start_time, schedule.discarded_start_time]
    times = np.concatenate(times)
    clients = np.concatenate([schedule.client, schedule.inflight_client, schedule.discarded_client])

    def select(time: float, idle: list[int], how_many: int) -> Sequence[int]:
        return sorted(clients[times == time].tolist())

    return select


def cohorts_of_tiers(schedule: jafl.EventSchedule) -> Callable[[int, int], Sequence[int]]:
    """The clients of each tier's rounds, as the schedule drew them: those who start at one instant."""
    client = np.concatenate([schedule.client, schedule.inflight_client])
    start = np.concatenate([schedule.download_time, schedule.inflight_start_time])

    def select_round(tier: int, number: int) -> Sequence[int]:
        times = np.unique(start[schedule.tier[client] == tier])
        return client[(schedule.tier[client] == tier) & (start == times[number])].tolist()

    return select_round


class MinibatchDraws:
    """What ``jafl.clients.minibatches`` returns, by one program for clients of all sizes, many trips at a time.

    Args:
      key: of the run.
      trips: of one client that are drawn together.
      epochs: the most that a trip begins.
      largest: examples of the largest client, to which the others are padded.
    """

    def __init__(self, key: jax.Array, *, trips: int, epochs: int, largest: int):
        self.key, self.trips, self.epochs, self.largest = key, trips, epochs, largest
        self.drawn: dict[tuple[int, int], np.ndarray] = {}

    def __call__(
        self, client: int, trip: int, *, num_examples: int, batch_size: int, steps: int
    ) -> list[np.ndarray]:
        block, place = divmod(trip, self.trips)
        if (client, block) not in self.drawn:
            trips = np.arange(block * self.trips, (block + 1) * self.trips, dtype=np.int32)
            orders = shuffled_epochs(
                self.key, np.int32(client), trips, np.int32(num_examples), self.largest, self.epochs
            )
            self.drawn[client, block] = np.asarray(orders)[..., :num_examples]
        orders = self.drawn[client, block][place]
        per_epoch = -(-num_examples // batch_size)
        starts = [(step // per_epoch, step % per_epoch * batch_size) for step in range(steps)]
        return [orders[epoch, start : start + batch_size] for epoch, start in starts]


@functools.partial(jax.jit, static_argnames=("largest", "epochs"))
def shuffled_epochs(key, client, trips, num_examples, largest: int, epochs: int) -> jax.Array:
    """[trips, epochs, largest] int32: a client's examples in the order of each epoch; beyond them, nothing of use."""
    words = trip_words(key, jnp.full_like(trips, client), trips)
    places = jnp.arange(largest, dtype=jnp.int32)

    def of_trip(words):
        of_epoch = functools.partial(shuffled, places, num_examples, words)
        return jax.vmap(of_epoch)(jnp.arange(epochs, dtype=jnp.int32))

    return jax.vmap(of_trip)(words)


def compression_draws(key: jax.Array, client: int, trip: int, size: int) -> np.ndarray:
    """[size] float64: the uniform numbers by which a trip's compressor rounds."""
    words = trip_words(key, np.array([client], np.int32), np.array([trip], np.int32))[0]
    dtype = jax.dtypes.canonicalize_dtype(np.float64)
    return np.asarray(random_numbers(words, jax.ShapeDtypeStruct((size,), dtype)))


def reference_run(case: Case, expected_rule, federation, schedule, params, key) -> ref.Replay:
    """The reference's own events, training and aggregation of the same case."""
    data = [federation.client(client) for client in range(case.clients)]
    batch_size = case.work.get("batch_size", 0)
    most = case.work.get("local_steps", 1)
    steps_made: dict[tuple[int, int], int] = {}
    steps_of = case.local_steps
    given = case.protocol.get("local_steps")
    if case.polls or given:

        def steps_of(client: int, trip: int) -> int:
            return steps_made[client, trip]

    if steps_of is not None:
        most = max(int(schedule.local_steps.max()), 1)

    own = case.work.get("personal")
    draw = MinibatchDraws(
        key,
        trips=case.steps,
        epochs=case.work.get("local_epochs") or max(most, own and own.arguments["local_steps"] or 1),
        largest=int(federation.num_examples.max()),
    )

    def batches(client: int, trip: int, asked: int | None = None) -> list[np.ndarray]:
        count = len(data[client][1])
        per_epoch = -(-count // batch_size) if batch_size else 1
        steps = case.work.get("local_epochs", 0) * per_epoch or most
        if steps_of is not None:
            steps = max(steps_of(client, trip), 1)
        steps = asked or steps
        if batch_size == 0:
            return [np.arange(count)] * steps
        return draw(client, trip, num_examples=count, batch_size=batch_size, steps=steps)

    def duration(client: int, trip: int) -> float:
        return float(case.delay.durations(3, np.array([client]), np.array([trip]))[0])

    if hasattr(expected_rule, "foresee"):
        durations = schedule.arrival_time - schedule.download_time
        expected_rule.foresee([*zip(schedule.client.tolist(), durations.tolist(), strict=True)])
    if hasattr(expected_rule, "draw_from"):
        expected_rule.draw_from(functools.partial(compression_draws, key))
    if own is not None:

        def minibatches(client: int, trip: int, asked: int | None) -> list[tuple[np.ndarray, np.ndarray]]:
            x, y = data[client]
            return [(x[rows], y[rows]) for rows in batches(client, trip, asked)]

        expected_rule.draw_minibatches_from(minibatches)
    common = dict(
        params=ref.float64_copy(params),
        num_clients=case.clients,
        stop_after_steps=case.steps,
        rule=expected_rule,
        optimizer=case.server[1],
        client_update=ref.client_work(
            data, batches, steps_of, learning_rate=case.learning_rate, **case.reference_work
        ),
        client_examples=federation.num_examples,
    )
    if case.due:
        return ref.simulate_iterations(delay_of=duration, initial_round=case.initial_round, **common)
    common["duration"] = duration
    if case.polls:
        del common["duration"]
        return ref.simulate_polled(
            polled=case.buffer_size,
            interval=case.polls[0],
            most_steps=case.polls[1],
            seconds=lambda client, trip: (0.0, duration(client, trip)),
            select=lambda poll: schedule.client[schedule.step == poll].tolist(),
            steps_made=steps_made,
            before_step=case.download == "before_step",
            **common,
        )
    if case.tiers:
        tiers = case.tiers
        if isinstance(tiers, int):
            tiers = ref.tiers_by_duration([duration(client, 0) for client in range(case.clients)], tiers)
        expected_rule.tiers = tiers
        select_round = cohorts_of_tiers(schedule)
        return ref.simulate_tiered(tiers=tiers, cohort=case.buffer_size, select_round=select_round, **common)
    if case.over_selection is None:
        protocol = case.protocol
        if given:
            common["duration"] = lambda client, trip: given * duration(client, trip)
            protocol = protocol | {
                "local_steps": lambda client, trip: given,
                "seconds": lambda client, trip: (0.0, duration(client, trip), 0.0),
                "steps_made": steps_made,
            }
        return ref.simulate(
            concurrency=case.concurrency,
            buffer_size=case.buffer_size,
            select=choices(schedule),
            first_buffer_size=case.clients if case.initial_round else None,
            restart=case.restart,
            **protocol,
            vanish=case.leaves and ("step", *case.leaves),
            **common,
        )
    rounds: dict[int, list[int]] = {step: [] for step in range(case.steps)}
    for step, client in zip(schedule.step, schedule.client, strict=True):
        rounds[int(step)].append(int(client))
    for step, client in zip(schedule.discarded_step, schedule.discarded_client, strict=True):
        rounds[int(step)].append(int(client))
    return ref.simulate_synchronous(
        cohort=case.concurrency if case.cohorts == "fixed" else None,
        started=schedule.concurrency,
        select_round=lambda number, started: sorted(rounds[number]),
        **common,
    )


_REPLAYS: dict[tuple[int, str, bytes], tuple[Case, ref.Replay, ref.Rule]] = {}


def replay_of(case: Case, precision: str, federation, schedule, params, key) -> tuple[ref.Replay, ref.Rule]:
    """The reference's run of a case, and its rule; one run serves all plans of the engine in a process.

    Initial parameters differ in their last bits by how their program was compiled, so they tell runs apart, too.
    """
    bits = b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(params))
    known = id(case), precision, bits
    if known not in _REPLAYS:
        rule = case.expected_rule()
        replay = reference_run(case, rule, federation, schedule, params, key)
        _REPLAYS[known] = case, replay, rule  # the case, so that no other one gets its id
    return _REPLAYS[known][1:]


def relative_difference(params: Any, expected: Any) -> float:
    """The 2-norm of the difference over all leaves, relative to the expected one's."""
    difference = jax.tree.map(lambda a, b: np.asarray(a, np.float64) - b, params, expected)
    return ref.norm(difference) / ref.norm(expected)


def compare(
    case: Case,
    precision: str,
    *,
    moves: bool = True,
    width: int = 0,
    lanes: int | None = None,
    mixed: bool = False,
    form: str = "loop",
    bound: float | None = None,
    **how: Any,
) -> tuple[jafl.History, ref.Rule]:
    """Runs the case in both, checks that they agree, and returns the history and the reference's rule.

    moves: whether the parameters must have changed by the end, or must not.
    width: of the plan's waves; 0 leaves the plan to ``simulate``. lanes: trips side by side, the longest first, in
    waves of trips that are alike, or mixed ones. form: of the plan, chosen or not. bound: of the relative
    difference; default: by the precision. how: the devices, and whether trips train together.
    """
    dtype, usual = {"float64": (np.float64, 1e-9), "float32": (np.float32, 1e-4)}[precision]
    bound = usual if bound is None else bound
    with jax.enable_x64(precision == "float64"):
        federation, schedule = make_federation(case.clients, dtype), make_schedule(case)
        model = jafl.models.softmax(3) if case.model == "softmax" else jafl.models.mlp(3, (5,))
        key = jax.random.key(zlib.crc32(case.name.encode()))
        params = model.init(jax.random.key(1), federation.x)
        cost = federation.num_examples[schedule.client] if lanes else None
        waves = {"cost": cost, "lanes": lanes, "mixed": mixed, "form": form}
        waves["client_state"] = any(
            map(case.work.get, ("correction", "keep_optimizer_state", "error_feedback", "personal"))
        )
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
            plan=jafl.in_waves(schedule, width, **waves) if width else None,
            form=form,
            **how,
        )
        replay, expected_rule = replay_of(case, precision, federation, schedule, params, key)
    initial = ref.float64_copy(params)
    moved = ref.norm(ref.subtract(replay.final_params, initial))
    if moves:
        assert moved > 0.1, "the case trains nothing, so it compares nothing"
        assert relative_difference(history.params, replay.final_params) <= bound
    else:
        assert moved == 0
        assert ref.norm(ref.subtract(ref.float64_copy(history.params), initial)) == 0
    if "personal" in case.work:
        personal = jax.tree.map(lambda *models: np.stack(models), *expected_rule.personal)
        assert relative_difference(history.personal_params, personal) <= bound
        own = ref.norm(ref.subtract(ref.float64_copy(history.personal_params), history.params))
        assert own > 0.1 * ref.norm(personal), "the personal models are the server's"
    assert np.array_equal(schedule.client, ref.column(replay.applied, "client"))
    assert np.array_equal(schedule.staleness, ref.column(replay.applied, "staleness"))
    assert np.array_equal(schedule.arrival_time, ref.column(replay.applied, "arrival_time"))
    if "l2" not in case.work:  # the recorded loss leaves the L2 term out, the reference's does not
        losses = ref.column(replay.applied, "loss")
        np.testing.assert_allclose(history.trip_reports["loss"], losses, rtol=usual * 100, atol=usual)
    return history, expected_rule
