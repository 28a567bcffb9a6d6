"""A slow, obvious simulator of (a)synchronous federated learning: the judge of meaning in the tests.

It handles one event after the other, in NumPy and float64, and favours the plainest way to write down what
the papers say over any speed. It shares no code with the library it judges.

How to read it, from top to bottom: parameters are nested dicts of arrays; two models with their gradients
written out; what a client does in one trip; staleness weights; server rules; server optimizers; the four
simulators.

Sources:

- FedAvg: McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", 2016.
- FedProx: Li et al., "Federated Optimization in Heterogeneous Networks", 2018.
- FedAvgM: Hsu et al., "Measuring the Effects of Non-Identical Data Distribution", 2019.
- FedAsync: Xie et al., "Asynchronous Federated Optimization", 2019.
- FedBuff: Nguyen et al., "Federated Learning with Buffered Asynchronous Aggregation", 2022.
- Adam: Kingma and Ba, "Adam: A Method for Stochastic Optimization", 2014.
- K-asynchronous restarts, and those of GSGM: Zhou et al. (WKAFL), "Towards Efficient and Stable
  K-Asynchronous Federated Learning with Unbounded Stale Gradients on Non-IID Data".
- ACE: Chang et al., "Mitigating Participation Imbalance Bias in Asynchronous Federated Learning", for delays
  that count server iterations.
- K-sync and K-batch-sync: Dutta et al., "Slow and Stale Gradients Can Win the Race", 2018.

Words. A *client trip* is one download, local training and upload by one client. A *version* is the number of
server steps so far. The *update* of a trip is its trained parameters minus its downloaded parameters
(FedBuff's algorithm 2 sends the negative of this). *Staleness* is the version just before the step that
applies the update, minus the version downloaded, so a fresh update has staleness 0.

A new algorithm is a new subclass of `Rule`; see there.
"""

import bisect
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np

# Parameters: nested dicts of float64 arrays.


def tree_map(function, *trees):
    """`function` applied to each array of a nested dict, or to the matching arrays of several."""
    if isinstance(trees[0], dict):
        for other in trees[1:]:
            if not isinstance(other, dict) or sorted(other) != sorted(trees[0]):
                raise ValueError("the trees differ in structure")
        return {name: tree_map(function, *[tree[name] for tree in trees]) for name in trees[0]}
    return function(*trees)


def float64_copy(tree):
    """A copy in float64 whose arrays refuse to be written to: a snapshot must never change."""

    def copy(leaf):
        array = np.array(leaf, dtype=np.float64)
        array.setflags(write=False)
        return array

    return tree_map(copy, tree)


def zeros_like(tree):
    return tree_map(lambda leaf: np.zeros_like(leaf, dtype=np.float64), tree)


def add(first, second):
    return tree_map(lambda a, b: a + b, first, second)


def subtract(first, second):
    return tree_map(lambda a, b: a - b, first, second)


def scale(factor, tree):
    return tree_map(lambda leaf: factor * leaf, tree)


def inner_product(first, second):
    """The sum over all arrays of the products of matching entries."""
    if isinstance(first, dict):
        return sum(inner_product(first[name], second[name]) for name in first)
    return float(np.sum(np.asarray(first) * np.asarray(second)))


def norm(tree):
    """The global Euclidean norm over all arrays."""
    return math.sqrt(inner_product(tree, tree))


def weighted_sum(weights, trees):
    """The sum of `weights[i] * trees[i]`."""
    total = zeros_like(trees[0])
    for weight, tree in zip(weights, trees, strict=True):
        total = add(total, scale(weight, tree))
    return total


# Two models: mean cross-entropy over a batch, and its exact gradient.


def cross_entropy(logits, labels):
    """Mean cross-entropy of `logits` [B, C] against integer `labels` [B], and its gradient in `logits`."""
    number = len(labels)
    shifted = logits - logits.max(axis=1, keepdims=True)
    log_probabilities = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    one_hot = np.zeros_like(logits)
    one_hot[np.arange(number), labels] = 1.0
    loss = -np.sum(one_hot * log_probabilities) / number
    return float(loss), (np.exp(log_probabilities) - one_hot) / number


def softmax_regression(params, x, y):
    """Loss and gradient of `x @ kernel + bias`, with params {'dense': {'kernel': [F, C], 'bias': [C]}}."""
    loss, logits_gradient = cross_entropy(x @ params["dense"]["kernel"] + params["dense"]["bias"], y)
    return loss, {"dense": {"kernel": x.T @ logits_gradient, "bias": logits_gradient.sum(axis=0)}}


def multilayer_perceptron(params, x, y):
    """Loss and gradient with one hidden ReLU layer.

    params: {'hidden_0': {'kernel': [F, H], 'bias': [H]}, 'dense': {'kernel': [H, C], 'bias': [C]}}. The
    derivative of ReLU at 0 is 0.
    """
    before = x @ params["hidden_0"]["kernel"] + params["hidden_0"]["bias"]
    hidden = np.maximum(before, 0.0)
    loss, logits_gradient = cross_entropy(hidden @ params["dense"]["kernel"] + params["dense"]["bias"], y)
    before_gradient = (logits_gradient @ params["dense"]["kernel"].T) * (before > 0.0)
    gradient = {
        "hidden_0": {"kernel": x.T @ before_gradient, "bias": before_gradient.sum(axis=0)},
        "dense": {"kernel": hidden.T @ logits_gradient, "bias": logits_gradient.sum(axis=0)},
    }
    return loss, gradient


def objective(params, x, y, *, l2=0.0, proximal=0.0, downloaded=None):
    """What a client minimises on a batch, and its gradient.

    Mean cross-entropy + (l2 / 2) ||w||^2 + (proximal / 2) ||w - w_downloaded||^2 (the last is FedProx), both
    norms over all parameters, biases included. The model is recognised by the names in `params`.
    """
    model = multilayer_perceptron if "hidden_0" in params else softmax_regression
    loss, gradient = model(params, np.asarray(x, dtype=np.float64), np.asarray(y))
    if l2:
        loss = loss + 0.5 * l2 * inner_product(params, params)
        gradient = add(gradient, scale(l2, params))
    if proximal:
        away = subtract(params, downloaded)
        loss = loss + 0.5 * proximal * inner_product(away, away)
        gradient = add(gradient, scale(proximal, away))
    return loss, gradient


# Client work: one trip.


def local_update(
    params,
    x,
    y,
    batches: Sequence[np.ndarray],
    learning_rate: float,
    l2: float = 0.0,
    proximal: float = 0.0,
    learning_rate_normalization: bool = False,
    batch_size: int | None = None,
    momentum: float = 0.0,
    corrected: Callable | None = None,
    steps: int | None = None,
):
    """Plain SGD over `batches`, one step each (FedBuff algorithm 2).

    Args:
      params: the downloaded model.
      x, y: the client's examples [n, F] and integer labels [n].
      batches: for each step, the indices of its examples.
      learning_rate: the client's learning rate.
      l2, proximal: see `objective`; the proximal term pulls towards the downloaded model.
      learning_rate_normalization: FedBuff §5, LR-Norm: a step on b < B examples uses `learning_rate * b / B`.
      batch_size: B, needed for LR-Norm only.
      momentum: heavy ball: m <- momentum * m + g; w <- w - (learning rate of this step) * m. m is 0 when the
        trip starts.
      corrected: (gradient, current parameters, downloaded parameters) -> what is descended in the gradient's place.
      steps: how many steps are made; those of all batches if None. With 0 the first batch is there for its loss.

    Returns:
      The update (trained minus downloaded), the objective on the first minibatch at the downloaded model
      (with the L2 term; the proximal term is 0 there), and the number of examples used: the sum of the sizes
      of the batches of steps that were made.
    """
    downloaded = params
    velocity = zeros_like(params)
    first_loss = objective(params, x[batches[0]], y[batches[0]], l2=l2)[0] if steps == 0 else None
    batches = batches if steps is None else batches[:steps]
    for batch in batches:
        loss, gradient = objective(
            params, x[batch], y[batch], l2=l2, proximal=proximal, downloaded=downloaded
        )
        if first_loss is None:
            first_loss = loss
        rate = learning_rate
        if learning_rate_normalization:
            rate = learning_rate * len(batch) / batch_size
        if corrected is not None:
            gradient = corrected(gradient, params, downloaded)
        velocity = add(scale(momentum, velocity), gradient)
        params = subtract(params, scale(rate, velocity))
    return subtract(params, downloaded), first_loss, sum(len(batch) for batch in batches)


def client_work(data, batches: Callable[[int, int], Sequence[np.ndarray]], steps=None, **settings):
    """A `client_update(client, trip, params)` for the simulators, made from `local_update`.

    Args:
      data: for each client its (x, y).
      batches: (client, trip) -> the list of index arrays of that trip.
      steps: (client, trip) -> how many steps that trip makes; None: one for each of its batches.
      settings: handed on to `local_update`.
    """

    def client_update(client, trip, params, **more):
        x, y = data[client]
        number = None if steps is None else steps(client, trip)
        return local_update(params, x, y, batches(client, trip), steps=number, **settings, **more)

    return client_update


def no_work(client, trip, params):
    """A `client_update` that trains nothing: for tests of the events alone, with params = {}."""
    return zeros_like(params), 0.0, 0


# Records.


@dataclass
class Trip:
    """One client trip, filled in as it goes on. Rules see every field filled but those of a cancellation."""

    client: int
    trip: int  # how many trips this client had started before
    download_version: int
    download_time: float
    arrival_time: float  # download_time + duration, also where the trip never arrives
    end_time: float | None = None  # arrival_time, or the end of its client's presence if that comes first
    start: Any = None  # the parameters downloaded
    update: Any = None  # trained minus downloaded
    trained: Any = None
    loss: float | None = None  # of the first minibatch at the downloaded model
    batch_examples: int | None = None  # how many examples this trip used
    num_examples: int | None = None  # how many examples the client has (None if the simulator was not told)
    step: int | None = None  # the server step (from 0) that applied it: the version just before that step
    staleness: int | None = None  # step - download_version
    local_steps: int | None = None  # where the protocol decides it
    cancel_time: float | None = None  # for trips thrown away: when
    cancel_step: int | None = None  # for these, too: the version at that moment, which is the step to come


@dataclass
class Replay:
    """Everything that happened. J trips applied, T server steps."""

    applied: list[Trip]  # [J], in the order in which the server applied them
    step_times: list[float]  # [T]
    params: list[Any]  # [T + 1], params[v] is version v: 0 the initial model, t + 1 that after step t
    in_flight: list[Trip]  # under way when the simulation stopped, in client order
    discarded: list[Trip] = field(default_factory=list)  # ended without use, in the order in which they ended

    @property
    def final_params(self):
        return self.params[-1]


def column(trips: Sequence[Trip], name: str) -> np.ndarray:
    """One field of every trip as an array, for instance `column(replay.applied, "staleness")`."""
    return np.array([getattr(trip, name) for trip in trips])


# Staleness weights s(tau), with s = 1 for a fresh update.


def constant():
    """s = 1."""
    return lambda staleness: 1.0


def polynomial(exponent=0.5):
    """s = (1 + tau)^-exponent. FedBuff §5 uses 0.5; FedAsync calls the exponent a."""
    return lambda staleness: (1.0 + staleness) ** -exponent


def hinge(slope, threshold):
    """s = 1 if tau <= threshold, else 1 / (slope * (tau - threshold) + 1). FedAsync's a and b."""
    return lambda staleness: 1.0 if staleness <= threshold else 1.0 / (slope * (staleness - threshold) + 1.0)


def exponential(rate):
    """s = exp(-rate * tau)."""
    return lambda staleness: math.exp(-rate * staleness)


# Server rules.


class Rule:
    """How the server makes a direction out of the trips of one step.

    A rule with memory keeps it on itself, sets it up in `begin` and changes it in `pseudo_gradient`, where it
    meets the trips in the order in which they arrived. Nothing reads a rule's memory between two steps, so
    this is the same as to change it at each arrival.
    """

    step_scale = 1.0

    def begin(self, params, num_clients: int) -> None:
        """Forgets all that went before; called once, before the first trip, with the initial model."""

    def correction(self, trip: Trip):
        """For rules whose clients keep something: the function `corrected` of `local_update`, before a trip trains.

        Trips that are thrown away do not train here, and those of a client train in the order of its trips.
        """
        return None

    def first_model(self, trip: Trip):
        """The model with which the trip's local training begins."""
        return trip.start

    def downloaded(self, version: int, params):
        """For rules whose clients train from something else than the model `params` of the version."""
        return params

    def version_made(self, version: int, params) -> None:
        """The server has made a version of the model."""

    def trained(self, trip: Trip) -> None:
        """For rules whose clients keep something: the trip has trained, and the server has it."""

    def pseudo_gradient(self, params, trips: list[Trip]):
        """The direction to descend, from the current model and the trips of this step in order of arrival.

        None skips the step: the version counts, parameters and server optimizer stay as they are. A rule that sets
        `step_scale` here has the optimizer step as ever, and its change of the parameters multiplied by that.
        """
        raise NotImplementedError


class FedAvg(Rule):
    """The mean of the updates D_i, or that weighted by the sizes of the data sets: sum n_i D_i / sum n_i.

    With `divide_by` it is their sum over that number, whatever their number (McMahan et al. 2018, fixed denominator).
    """

    def __init__(self, weight_by_examples: bool = False, divide_by: float | None = None):
        self.weight_by_examples = weight_by_examples
        self.divide_by = divide_by

    def pseudo_gradient(self, params, trips):
        if self.divide_by is not None:
            total = zeros_like(params)
            for trip in trips:
                total = add(total, trip.update)
            return scale(-1.0 / self.divide_by, total)
        numbers = [trip.num_examples if self.weight_by_examples else 1 for trip in trips]
        mean = scale(1.0 / sum(numbers), weighted_sum(numbers, [trip.update for trip in trips]))
        return scale(-1.0, mean)


class FedBuff(Rule):
    """FedBuff algorithm 1 lines 6 to 14, with the staleness scaling of §5: (1/K) sum s(tau_i) D_i.

    K is the number of trips in the step; the mean is never divided by the sum of s.

    Args:
      staleness_weight: tau -> s(tau).
      aggregation: "mean" as in algorithm 1, or "sum": without 1/K (B.2).
      weight_by_examples: sum s_i n_i D_i / sum n_i ("example weight" in C.6), n_i the size of the client's
        data set.
    """

    def __init__(self, staleness_weight=None, aggregation: str = "mean", weight_by_examples: bool = False):
        self.staleness_weight = polynomial(0.5) if staleness_weight is None else staleness_weight
        self.aggregation = aggregation
        self.weight_by_examples = weight_by_examples

    def pseudo_gradient(self, params, trips):
        staleness_weights = [self.staleness_weight(trip.staleness) for trip in trips]
        numbers = [trip.num_examples if self.weight_by_examples else 1 for trip in trips]
        weights = [s * n for s, n in zip(staleness_weights, numbers, strict=True)]
        total = weighted_sum(weights, [trip.update for trip in trips])
        if self.aggregation == "mean":
            total = scale(1.0 / sum(numbers), total)
        return scale(-1.0, total)


class FedAsync(Rule):
    """Xie et al. 2019: w <- (1 - a s(tau)) w + a s(tau) y, with y the model that the client trained.

    `mixing` is a; the buffer size is 1. With plain SGD of learning rate 1 as the server optimizer this is the
    paper's step.
    """

    def __init__(self, mixing: float, staleness_weight=None):
        self.mixing = mixing
        self.staleness_weight = constant() if staleness_weight is None else staleness_weight

    def pseudo_gradient(self, params, trips):
        (trip,) = trips
        share = self.mixing * self.staleness_weight(trip.staleness)
        mixed = add(scale(1.0 - share, params), scale(share, trip.trained))
        return subtract(params, mixed)


# Server optimizers: they descend the pseudo-gradient g.


class SGD:
    """w <- w - learning_rate * g; with momentum: m <- momentum * m + g; w <- w - learning_rate * m.

    m is 0 at first. FedAvgM is FedAvg with this momentum. Nesterov descends `g + momentum * m`, m being the
    new one.
    """

    def __init__(self, learning_rate: float = 1.0, momentum: float = 0.0, nesterov: bool = False):
        self.learning_rate = learning_rate
        self.momentum = momentum
        self.nesterov = nesterov

    def begin(self, params):
        self.velocity = zeros_like(params)

    def apply(self, params, gradient):
        self.velocity = add(scale(self.momentum, self.velocity), gradient)
        direction = add(gradient, scale(self.momentum, self.velocity)) if self.nesterov else self.velocity
        return subtract(params, scale(self.learning_rate, direction))


class Adam:
    """Kingma and Ba, algorithm 1: bias correction, and epsilon outside the square root (as optax by default).

    m <- b1 m + (1 - b1) g; v <- b2 v + (1 - b2) g^2; w <- w - learning_rate * m' / (sqrt(v') + epsilon),
    where m' = m / (1 - b1^t), v' = v / (1 - b2^t) and t counts the steps from 1.
    """

    def __init__(self, learning_rate: float, b1: float = 0.9, b2: float = 0.999, epsilon: float = 1e-8):
        self.learning_rate = learning_rate
        self.b1 = b1
        self.b2 = b2
        self.epsilon = epsilon

    def begin(self, params):
        self.count = 0
        self.first = zeros_like(params)
        self.second = zeros_like(params)

    def apply(self, params, gradient):
        self.count += 1
        squares = tree_map(np.square, gradient)
        self.first = add(scale(self.b1, self.first), scale(1 - self.b1, gradient))
        self.second = add(scale(self.b2, self.second), scale(1 - self.b2, squares))
        first = scale(1 / (1 - self.b1**self.count), self.first)
        second = scale(1 / (1 - self.b2**self.count), self.second)
        direction = tree_map(lambda m, v: m / (np.sqrt(v) + self.epsilon), first, second)
        return subtract(params, scale(self.learning_rate, direction))


# The simulators.


class _Simulation:
    """What the simulators share: clients that start and train, a server that steps, and the records."""

    def __init__(self, params, num_clients, duration, client_update, client_examples, rule, optimizer):
        self.num_clients = num_clients
        self.duration = duration
        self.client_update = client_update
        self.client_examples = client_examples
        self.rule = rule
        self.optimizer = optimizer
        self.version = 0
        self.snapshots = {0: float64_copy(params)}
        self.trips_started = [0] * num_clients
        self.applied = []
        self.step_times = []
        rule.begin(self.snapshots[0], num_clients)
        optimizer.begin(self.snapshots[0])

    def start_trip(self, client, time) -> Trip:
        """The client downloads the newest version now."""
        trip = self.trips_started[client]
        self.trips_started[client] += 1
        duration = float(self.duration(client, trip))
        if not 0.0 <= duration < math.inf:
            raise ValueError(f"client {client}, trip {trip}: bad duration {duration}")
        return Trip(client, trip, self.version, time, time + duration, end_time=time + duration)

    def train(self, trip: Trip) -> None:
        """Fills in what the client brings back, from the version that it downloaded."""
        trip.start = self.rule.downloaded(trip.download_version, self.snapshots[trip.download_version])
        corrected = self.rule.correction(trip)
        more = {} if corrected is None else {"corrected": corrected}
        begin = self.rule.first_model(trip)
        update, loss, examples = self.client_update(trip.client, trip.trip, begin, **more)
        if begin is not trip.start:
            update = subtract(add(begin, update), trip.start)
        trip.update = float64_copy(update)
        trip.trained = float64_copy(add(trip.start, trip.update))
        trip.loss = float(loss)
        trip.batch_examples = int(examples)
        self.rule.trained(trip)
        if self.client_examples is not None:
            trip.num_examples = int(self.client_examples[trip.client])

    def server_step(self, trips: list[Trip], time: float) -> None:
        """One server step from these trips, in order of arrival. Staleness is counted before the step."""
        for trip in trips:
            trip.step = self.version
            trip.staleness = self.version - trip.download_version
        params = self.snapshots[self.version]
        gradient = self.rule.pseudo_gradient(params, list(trips))
        if gradient is not None:
            stepped = self.optimizer.apply(params, gradient)
            if self.rule.step_scale != 1.0:
                stepped = add(params, scale(self.rule.step_scale, subtract(stepped, params)))
            params = float64_copy(stepped)
        self.version += 1
        self.snapshots[self.version] = params
        self.rule.version_made(self.version, params)
        self.applied.extend(trips)
        self.step_times.append(time)

    def replay(self, in_flight, discarded) -> Replay:
        params = [self.snapshots[version] for version in range(self.version + 1)]
        return Replay(self.applied, self.step_times, params, in_flight, discarded)


def _checked(chosen, allowed, how_many) -> list[int]:
    """The chosen clients in client order, if they are `how_many` different ones among those allowed."""
    chosen = sorted(int(client) for client in chosen)
    if len(set(chosen)) != len(chosen) or len(chosen) != how_many or not set(chosen) <= set(allowed):
        raise ValueError(f"asked for {how_many} different clients among {list(allowed)}, got {chosen}")
    return chosen


RESTARTS = ("at_once", "not_twice_in_a_buffer", "after_step", "after_round")


def _may_take_part(client, applied, step, most_trips, smallest_gap) -> bool:
    """Whether `step` may apply a trip of this client, given the trips that earlier steps have applied."""
    steps = [trip.step for trip in applied if trip.client == client]
    often = most_trips is not None and len(steps) >= most_trips
    return not often and all(step - earlier >= smallest_gap for earlier in steps)


def simulate(
    *,
    params,
    num_clients: int,
    concurrency: int | None,
    buffer_size: int,
    duration: Callable[[int, int], float],
    stop_after_steps: int,
    rule: Rule,
    optimizer,
    client_update: Callable[[int, int, Any], tuple[Any, float, int]],
    select: Callable[[float, list[int], int], Sequence[int]] | None = None,
    client_examples: Sequence[int] | None = None,
    first_buffer_size: int | None = None,
    restart: str = "at_once",
    vanish: tuple[str, Sequence[int], float] | None = None,
    fails: Callable[[int, int], bool] | None = None,
    next_available: Callable[[int, float], float] | None = None,
    present_until: Callable[[int, float], float] | None = None,
    staleness_limit: int | None = None,
    too_stale: str = "drop",
    flush_after: float | None = None,
    cancel_at_step: bool = False,
    replace_lost: str = "at_once",
    time_out: float | None = None,
    start_times: Sequence[float] | None = None,
    exclude_busy: bool = True,
    most_trips: int | None = None,
    smallest_gap: int = 0,
    step_when: str = "buffer_full",
    step_every: float | None = None,
    local_steps: Callable[[int, int], int] | None = None,
    seconds: Callable[[int, int], tuple[float, float, float]] | None = None,
    steps_made: dict[tuple[int, int], int] | None = None,
) -> Replay:
    """Asynchronous federated learning with a buffer, event by event (FedBuff algorithm 1).

    At time 0, `concurrency` clients start from version 0: there are that many places. Then, from one instant
    at which something happens to the next:

    1. all trips that end at this instant are handled, in client order: each goes into the buffer, or is
       thrown away if it failed, is lost or comes too late. Whenever the buffer is full the server steps at
       once and empties it;
    2. then clients may leave for ever, if `vanish` says so;
    3. then the server may step once more: because nobody who is left is worth waiting for
       (`too_stale="wait"`), or because the buffer has waited long enough (`flush_after`). Who leaves at such
       a step leaves now;
    4. then clients start in free places, in client order, all from the newest version. `restart` says how
       many places are free and which of the idle clients are eligible; as many start as both allow, and as
       are available.

    A new trip of duration 0 arrives at the same instant: 1 to 4 are gone through once more. A place that
    nobody could take stays free until the end of an instant at which somebody can; that an eligible client
    becomes available is reason enough for an instant of its own. If before the last step nobody is under way,
    nobody will ever be able to start, and nothing else is to come (clients that leave at a given time, a
    flush, a start time), the run is starved and refused.

    The end: the last step ends the handling of arrivals, even if more trips arrive at its very instant (those
    count as in flight, with an arrival time equal to the time of the last step). After it no trip is thrown away
    any more: who leaves at its instant stays in flight if under way. Replacements still start at its instant,
    from the final version; whoever has left by then, at that very instant included, does not.

    The ways to restart:

    - "at_once": a place is free as soon as its trip has arrived, and every idle client is eligible, those
      that have just arrived included. If nobody leaves or is away, `concurrency` trips are always under way.
    - "not_twice_in_a_buffer": the same places, but a client whose update lies in the buffer is not eligible
      before the step that applies it.
    - "after_step" (WKAFL's K-asynchronous learning): places open at the end of an instant with a step, and at
      time 0, only. All are open then but those of trips under way and of updates in the buffer: a place is
      free once its trip has been applied. An open place that nobody could take stays open. `replace_lost` says
      when a place opens that becomes free without a step (a trip thrown away). The eligible clients are the idle
      ones without an update in the buffer. With concurrency = N and no trip thrown away, those whose trips were
      applied restart together, and only those.
    - "after_round" (GSGM): a round begins with the run, and the next whenever every client that has not left
      has contributed, that is, put an update into the buffer, since the round began. A place is free as soon
      as its trip has arrived, and the idle clients that have not contributed to this round are eligible.
      Rounds do not cut the buffer: a step may hold the last trips of a round and the first of the next.

    A trip that is thrown away is recorded as discarded, with the time and the version of that moment; nobody
    trains for it. Where it failed, is lost, is too stale or is cancelled by a step, its client is idle and
    eligible like one that was never under way, and its place is free.

    Args:
      params: the initial model, a nested dict of arrays.
      num_clients, concurrency, buffer_size: N, M (at most N) and K.
      duration: (client, trip) -> how long that trip takes, where `trip` is how many trips the client started
        before.
      stop_after_steps: T.
      rule, optimizer: the server.
      client_update: (client, trip, params) -> (update, loss, number of examples used).
      select: (time, eligible and available clients in order, how many) -> that many of them. Asked once for
        the start and once for all replacements of an instant, and only if not all of these clients start. So
        with concurrency = N nobody is asked: the same clients start again. With `start_times` it is asked for
        one client at a time.
      client_examples: the size of each client's data set, for rules that weigh by it.
      first_buffer_size: how many trips step 0 takes; `buffer_size`, like every other step, unless given. With
        it nobody is replaced before step 0, not even after a failure: those who have arrived wait for it, and
        start again together from version 1, at the instant at which it happens. (A place that nobody could
        take at time 0 is taken before, by one who does not wait.) ACE's start (algorithm 1 lines 3 to 6) is
        `first_buffer_size = concurrency = num_clients`: every client trains at version 0 first. Only with
        restart = "at_once".
      restart: "at_once", "not_twice_in_a_buffer", "after_step" or "after_round"; see above.
      vanish: (kind, clients, moment), these clients leave for ever. Kind "step": at the instant of the step
        that makes the version `moment`. Kind "time": at simulated time `moment`, an instant of its own if
        nothing arrives then. Kind "trips": each at the instant at which `moment` of its trips have ended,
        used or not. A trip under way is thrown away, and its place becomes free. An update in the buffer
        stays there. Whoever has left is never eligible.
      fails: (client, trip) -> whether that trip fails. It takes its whole duration; where it would be put
        into the buffer it is thrown away.
      next_available: (client, time) -> the earliest time from `time` on at which the client is available,
        math.inf if never again. A client starts only at an instant at which this is the instant itself. That
        it becomes unavailable does not touch its trip under way.
      present_until: (client, time) -> the end, later than `time`, of the window of presence in which the
        client starts a trip at `time`. If the trip would arrive later than that, it is lost at that end.
      staleness_limit: the largest staleness that the server takes.
      too_stale: what happens to others. "drop": a trip that arrives with a larger one is thrown away. "cancel"
        (Maranjyan et al. 2025, Ringmaster ASGD, algorithm 5, whose R is staleness_limit + 1): with each step all
        trips under way that it makes so stale that they would be thrown away are thrown away at once, those that
        end at its instant and were not handled yet included. "wait":
        there are none, because the server does not step while that would make some trip under way too
        stale, one that ends at this very instant and was not handled yet included. The buffer then grows
        beyond its size; after each trip that ends and after vanishing, the server steps with all of it if it
        is full and nothing stands against it. (With limit 0 and clients that are replaced at once this may
        never be so.) "interrupt" (PORT, Su and Li 2022): the server waits in the same way, but right after each
        step it urges all clients whose trip another step would make too stale. They finish the local step that
        they make at that moment, the first one if they make none yet, the next if one ends right then, and send what
        they have. A trip whose local steps are all made goes on, and one whose local steps take no time.
      flush_after: how long the buffer waits at most, counted from its first arrival; then it is applied as it
        is, a short step. With `first_buffer_size` step 0 waits for its trips however long that takes.
      cancel_at_step: with each step all trips under way are thrown away, those that end at its instant and
        were not handled yet included, and all places are free. With restart = "after_step" this is K-sync,
        with "at_once" (whoever finishes early trains once more from the same version) K-batch-sync.
      replace_lost: when the place of a trip that is thrown away opens; only with restart = "after_step" is there a
        choice. "at_once": at the end of that instant. "after_time_out": so, too, if the trip arrived and was too
        stale, for the server knows of that; but the server notices only `time_out` later that a trip failed or was
        lost, or that its client left. Until then it takes the client for busy (nobody else either gets its place),
        whatever steps are made, but for one that cancels all trips; then the place opens, at an instant of its own
        if nothing else happens. "after_step": with the next step.
      time_out: see `replace_lost`.
      start_times: there are no places (`concurrency` is None), and nobody is replaced. Instead at each of
        these times, which are sorted and may repeat, one client starts, in phase 4 of that instant (this
        holds for time 0, too); if nobody is eligible and available, nobody. `restart` is "at_once" or
        "not_twice_in_a_buffer".
      exclude_busy: False, only with start_times: clients that are under way are eligible, too. A client may
        be in several trips at once; those that end together are handled in the order of their numbers.
      most_trips: a client is not eligible any more once so many of its trips have been applied or lie in the
        buffer. With "after_round" a round does not wait for it then.
      smallest_gap: a client is not eligible while the number of the next server step (from 0) is less than
        `smallest_gap` above that of the step that applied its last trip. If that trip still lies in the buffer, it
        is the next step that applies it.
      step_when: "buffer_full", or "harmonic_mean" (Malenia SGD, Tyurin and Richtárik 2023): the buffer is full when
        (mean over all clients of 1 / B_i)^-1 >= buffer_size / num_clients, where B_i is the number of trips of
        client i in it. No step if a client that it waits for is gone. "each_client_once_a_round" (Ringleader ASGD,
        Maranjyan and Richtárik 2026): as `round_allows_a_step` says.
      step_every: the buffer is never full; in phase 3 of each instant at which it is time, at step_every and its
        multiples, the server steps with whatever is in it, with nothing too.
      local_steps: only with "interrupt": (client, trip) -> how many local steps the trip makes if not interrupted.
      seconds: likewise: (client, trip) -> (the time before the first local step, that of each, that after the last).
      steps_made: filled in, if given: {(client, trip): local steps}, which `client_update` may read.
    """
    simulation = _Simulation(params, num_clients, duration, client_update, client_examples, rule, optimizer)
    clients = range(num_clients)
    under_way: list[Trip] = []  # in the order in which they will be handled
    buffer: list[Trip] = []
    discarded: list[Trip] = []
    gone: set[int] = set()  # who has left for ever
    ended = [0] * num_clients  # how many trips of each client have ended, used or not
    contributed: set[int] = set()  # to this round
    open_places = concurrency  # where places do not open as soon as a trip has arrived
    unnoticed: list[
        tuple[float, int]
    ] = []  # (when the server will notice, client) of each loss to come to light
    starts = [] if start_times is None else list(start_times)  # those to come

    def before_step_0():
        return first_buffer_size is not None and simulation.version == 0

    def has_made_all_trips(client):
        if most_trips is None:
            return False
        return sum(trip.client == client for trip in [*simulation.applied, *buffer]) >= most_trips

    def rests(client):
        if smallest_gap == 0:
            return False
        steps = [trip.step for trip in simulation.applied if trip.client == client]
        steps += [simulation.version for trip in buffer if trip.client == client]
        return len(steps) > 0 and simulation.version - max(steps) < smallest_gap

    def is_eligible(client):
        if client in gone or any(client == lost for _, lost in unnoticed):
            return False
        if has_made_all_trips(client) or rests(client):
            return False
        if exclude_busy and any(trip.client == client for trip in under_way):
            return False
        if restart in ("not_twice_in_a_buffer", "after_step") or before_step_0():
            return all(trip.client != client for trip in buffer)
        if restart == "after_round":
            return client not in contributed
        return True

    def available_from(client, now):
        if next_available is None:
            return now
        time = float(next_available(client, now))
        if not time >= now:
            raise ValueError(f"client {client} cannot be available next at {time}: it is {now} already")
        return time

    def free_places():
        if restart == "after_step" or before_step_0():
            return open_places
        return concurrency - len(under_way)

    def start_some(how_many, now):
        nonlocal open_places
        eligible = [c for c in clients if is_eligible(c) and available_from(c, now) == now]
        how_many = min(how_many, len(eligible))
        if how_many == 0:
            return
        chosen = eligible if how_many == len(eligible) else select(now, list(eligible), how_many)
        for client in _checked(chosen, eligible, how_many):
            trip = simulation.start_trip(client, now)
            if local_steps is not None:
                note_steps(trip, local_steps(client, trip.trip))
            if present_until is not None:
                end = float(present_until(client, now))
                if not end > now:
                    raise ValueError(f"client {client} starts at {now} but is present until {end} only")
                trip.end_time = min(trip.arrival_time, end)
            bisect.insort(under_way, trip, key=lambda trip: (trip.end_time, trip.client, trip.trip))
        if start_times is None:
            open_places -= how_many

    def throw_away(trip, now, *, arrived=False):
        """For a trip that is no more under way; `arrived`: the server has it in its hands."""
        nonlocal open_places
        trip.cancel_time = now
        trip.cancel_step = simulation.version
        discarded.append(trip)
        ended[trip.client] += 1
        if restart == "after_step" and replace_lost != "after_step":
            if replace_lost == "at_once" or arrived:
                open_places += 1
            else:
                unnoticed.append((now + time_out, trip.client))

    def throw_away_under_way(whose, now):
        trips = sorted((t for t in under_way if t.client in whose), key=lambda t: (t.client, t.trip))
        for trip in trips:
            under_way.remove(trip)
            throw_away(trip, now)

    def note_steps(trip, number):
        trip.local_steps = number
        if steps_made is not None:
            steps_made[trip.client, trip.trip] = number

    def interrupt(trip, now):
        before, each, after = seconds(trip.client, trip.trip)
        for number in range(1, trip.local_steps + 1):
            if each > 0 and trip.download_time + (before + number * each) > now:
                note_steps(trip, number)
                break
        trip.arrival_time = trip.download_time + (before + trip.local_steps * each + after)
        trip.end_time = min(trip.end_time, trip.arrival_time)

    def handle(trip, now):
        """For a trip that ends now."""
        lost = trip.end_time < trip.arrival_time
        failed = fails is not None and fails(trip.client, trip.trip)
        limited = staleness_limit is not None and too_stale == "drop"
        late = limited and simulation.version - trip.download_version > staleness_limit
        if lost or failed or late:
            throw_away(trip, now, arrived=not (lost or failed))
            return
        simulation.train(trip)
        buffer.append(trip)
        ended[trip.client] += 1
        contributed.add(trip.client)

    def server_step(now):
        if cancel_at_step:
            throw_away_under_way(clients, now)
            unnoticed.clear()
        if too_stale == "cancel":
            stale = [t for t in under_way if simulation.version + 1 - t.download_version > staleness_limit]
            for trip in sorted(stale, key=lambda trip: trip.client):
                under_way.remove(trip)
                throw_away(trip, now, arrived=True)  # the server stops it, so it knows
        simulation.server_step(list(buffer), now)
        buffer.clear()
        if too_stale == "interrupt":
            for trip in under_way:
                if simulation.version - trip.download_version >= staleness_limit:
                    interrupt(trip, now)
            under_way.sort(key=lambda trip: (trip.end_time, trip.client, trip.trip))

    def step_if_full(now):
        waits = too_stale in ("wait", "interrupt") and any(
            simulation.version + 1 - trip.download_version > staleness_limit for trip in under_way
        )
        if is_full() and not waits:
            server_step(now)

    def round_allows_a_step():
        """Every client has a gradient in the round's table, and the last to arrive has made no step in this round."""
        table, following, stepped = set(), set(), set()
        arrived = [*simulation.applied, *buffer]
        for trip, after in itertools.pairwise([*arrived, None]):
            (following if trip.client in stepped else table).add(trip.client)
            if trip.step is not None and (
                after is None or after.step != trip.step
            ):  # the step is this client's
                stepped.add(trip.client)
                if len(stepped) == num_clients:
                    table, following, stepped = following, set(), set()
        return bool(buffer) and len(table) == num_clients and buffer[-1].client not in stepped

    def is_full():
        if step_when == "each_client_once_a_round":
            return round_allows_a_step()
        if step_every is not None:
            return False
        if step_when == "harmonic_mean":
            counts = [sum(trip.client == client for trip in buffer) for client in clients]
            return all(counts) and 1 / sum(Fraction(1, b) for b in counts) >= Fraction(
                buffer_size, num_clients**2
            )
        return len(buffer) >= (first_buffer_size if before_step_0() else buffer_size)

    def flush_time():
        if step_every is not None:
            return (simulation.version + 1) * step_every
        if flush_after is None or not buffer or before_step_0():
            return math.inf
        return buffer[0].arrival_time + flush_after

    def step_if_overdue(now):
        if now >= flush_time():
            server_step(now)

    def has_to_leave(client, now, version_before):
        """Asked after the arrivals of an instant; the version was `version_before` ahead of them."""
        if vanish is None or client in gone or client not in vanish[1]:
            return False
        kind, _, moment = vanish
        if kind == "step":
            return version_before < moment <= simulation.version
        if kind == "time":
            return now == moment
        return ended[client] >= moment

    def leave_for_ever(now, version_before):
        leaving = [client for client in clients if has_to_leave(client, now, version_before)]
        gone.update(leaving)
        if simulation.version < stop_after_steps:
            throw_away_under_way(leaving, now)

    def notice_losses(now):
        nonlocal open_places
        noticed = [(time, client) for time, client in unnoticed if time <= now]
        for loss in noticed:
            unnoticed.remove(loss)
        open_places += len(noticed)

    def next_instant(now):
        instants = [trip.end_time for trip in under_way] + starts
        if vanish is not None and vanish[0] == "time" and not gone.issuperset(vanish[1]):
            instants.append(float(vanish[2]))
        instants.append(flush_time())
        instants.extend(time for time, _ in unnoticed)
        if start_times is None and free_places() > 0:
            instants.extend(available_from(client, now) for client in clients if is_eligible(client))
        first = min(instants, default=math.inf)
        if first == math.inf:
            where = f"time {now} and version {simulation.version}"
            raise ValueError(f"starved at {where}: nobody is under way, and nobody can start")
        return first

    now = 0.0
    if start_times is None:
        start_some(concurrency, now)
    while simulation.version < stop_after_steps:
        now = next_instant(now)
        version_before = simulation.version

        while under_way and under_way[0].end_time == now and simulation.version < stop_after_steps:
            handle(under_way.pop(0), now)
            step_if_full(now)

        leave_for_ever(now, version_before)
        step_if_full(now)
        step_if_overdue(now)
        leave_for_ever(now, version_before)

        if all(client in contributed or client in gone or has_made_all_trips(client) for client in clients):
            contributed.clear()
        if restart == "after_step":
            notice_losses(now)
            if simulation.version > version_before:
                open_places = concurrency - len(under_way) - len(buffer) - len(unnoticed)
        if start_times is None:
            start_some(free_places(), now)
        while starts and starts[0] == now:
            starts.pop(0)
            start_some(1, now)

    in_flight = sorted(under_way, key=lambda trip: (trip.client, trip.trip))
    return simulation.replay(in_flight=in_flight, discarded=discarded)


def simulate_synchronous(
    *,
    params,
    num_clients: int,
    cohort: int | None,
    duration: Callable[[int, int], float],
    select_round: Callable[[int, int], Sequence[int]],
    stop_after_steps: int,
    rule: Rule,
    optimizer,
    client_update: Callable[[int, int, Any], tuple[Any, float, int]],
    started: int | None = None,
    client_examples: Sequence[int] | None = None,
    most_trips: int | None = None,
    smallest_gap: int = 0,
    deadline: float = math.inf,
    min_reports: int = 1,
    vanish: tuple[str, Sequence[int], float] | None = None,
    fails: Callable[[int, int], bool] | None = None,
    next_available: Callable[[int, float], float] | None = None,
    present_until: Callable[[int, float], float] | None = None,
) -> Replay:
    """Synchronous rounds on the same clock, with over-selection (FedBuff C.2 to C.4), failures and a deadline.

    A round begins as soon as `min_reports` clients are eligible and available, at the end of the round before if
    they are then. In it `started` of these clients, or all if there are fewer, start together from the newest
    version. Each of their trips ends with its arrival, which is a report, or brings nothing: it failed, its client
    went away before its arrival, or left for ever. The round is over when `cohort` clients have reported (ties in
    client order), or all that have started if these are fewer; if that does not happen, `deadline` after its start,
    for the server cannot know who will not report; what arrives at that very instant still counts. Without a deadline
    it is over when no trip is left that has not ended. Trips that have not ended by then are cancelled, even those
    that would end at the instant of the last report.

    The server then makes a step from the reports, in order of arrival. If there are fewer than `min_reports` the
    round is void: they are thrown away, and the step is one of no trips. What is thrown away is recorded as
    discarded, with the time at which its trip ended or was cancelled and the round's number, sorted by that time,
    then by (would-be) arrival and client. The next round begins at the earliest at the instant of the step. After
    the last step no round starts, so nothing is in flight at the end.

    Clients leave for ever between trips or during one. Kind "time": nobody among them starts at `moment` or later,
    and a trip that has not arrived by then is lost then. Kinds "step" and "trips" happen between rounds: with the
    step that makes that version; when that many of the client's trips have arrived, failed, been lost or cancelled.

    Args:
      cohort: how many reports the server waits for per round. None: all of those that `select_round` chooses, and it
        may choose anybody who may start, also nobody. A round of nobody ends when it starts, with a server step of no
        trips.
      started: how many clients start per round; `cohort` unless given.
      select_round: (round, started) -> that many different clients.
      most_trips, smallest_gap: a round may start a client only if fewer than `most_trips` of its trips have been
        applied, and none by a round less than `smallest_gap` before.
      The other arguments are those of `simulate`. A cancelled trip counts among the trips a client has
      started.
    """
    started = cohort if started is None else started
    simulation = _Simulation(params, num_clients, duration, client_update, client_examples, rule, optimizer)
    discarded = []
    ended = [0] * num_clients  # how many trips of each client have ended, used or not

    def has_left(client, time):
        if vanish is None or client not in vanish[1]:
            return False
        kind, _, moment = vanish
        return {"step": simulation.version, "time": time, "trips": ended[client]}[kind] >= moment

    def available_from(client, time):
        return time if next_available is None else float(next_available(client, time))

    def who_may_start(round_number, time):
        return [
            client
            for client in range(num_clients)
            if _may_take_part(client, simulation.applied, round_number, most_trips, smallest_gap)
            and not has_left(client, time)
        ]

    def start_of_round(round_number, time):
        """The first instant from `time` on at which enough clients may start and are there."""
        while True:
            arrivals = [available_from(client, time) for client in who_may_start(round_number, time)]
            if sum(arrival == time for arrival in arrivals) >= min_reports:
                return time
            later = [arrival for arrival in arrivals if time < arrival < math.inf]
            if not later:
                raise ValueError(f"starved at time {time} and version {round_number}: too few can start")
            time = min(later)

    def end_of(trip):
        """When a trip that has just started ends, with or without a report."""
        end = trip.arrival_time
        if present_until is not None:
            end = min(end, float(present_until(trip.client, trip.download_time)))
        if vanish is not None and vanish[0] == "time" and trip.client in vanish[1]:
            end = min(end, float(vanish[2]))
        return end

    now = 0.0
    for round_number in range(stop_after_steps):
        now = start_of_round(round_number, now)
        eligible = [c for c in who_may_start(round_number, now) if available_from(c, now) == now]
        chosen = select_round(round_number, started)
        how_many = len(chosen) if cohort is None else min(started, len(eligible))
        clients = _checked(chosen, eligible, how_many)
        under_way = [simulation.start_trip(client, now) for client in clients]
        for trip in under_way:
            trip.end_time = end_of(trip)
            ended[trip.client] += 1  # by the end of the round
        under_way.sort(key=lambda trip: (trip.end_time, trip.client))
        reports, thrown_away, last = [], [], now + deadline
        while under_way and len(reports) != cohort:
            if under_way[0].end_time > last:
                break
            trip = under_way.pop(0)
            now = trip.end_time
            lost = trip.end_time < trip.arrival_time
            failed = fails is not None and fails(trip.client, trip.trip)
            (thrown_away if lost or failed else reports).append(trip)
            trip.cancel_time = now
        everybody = len(reports) == len(clients)
        if len(reports) != cohort and not everybody and deadline < math.inf:
            now = last
        for trip in under_way:
            trip.cancel_time = now
            thrown_away.append(trip)
        if len(reports) < min_reports:
            thrown_away, reports = [*thrown_away, *reports], []
        for trip in reports:
            trip.cancel_time = None
            simulation.train(trip)
        simulation.server_step(reports, now)
        for trip in thrown_away:
            trip.cancel_step = round_number
        thrown_away.sort(key=lambda trip: (trip.cancel_time, trip.arrival_time, trip.client))
        discarded.extend(thrown_away)
    return simulation.replay(in_flight=[], discarded=discarded)


def tiers_by_duration(durations: Sequence[float], tiers: int) -> list[int]:
    """The tier of each client, 0 the fastest: clients in order of duration, then of number, in equal parts.

    Where the parts cannot be equal, the first ones have one client more.
    """
    order = sorted(range(len(durations)), key=lambda client: (durations[client], client))
    smallest, more = divmod(len(order), tiers)
    sizes = [smallest + (tier < more) for tier in range(tiers)]
    by_place = [tier for tier, size in enumerate(sizes) for _ in range(size)]
    return [by_place[order.index(client)] for client in range(len(order))]


def simulate_tiered(
    *,
    params,
    num_clients: int,
    tiers: Sequence[int],
    cohort: int,
    duration: Callable[[int, int], float],
    select_round: Callable[[int, int], Sequence[int]],
    stop_after_steps: int,
    rule: Rule,
    optimizer,
    client_update: Callable[[int, int, Any], tuple[Any, float, int]],
    client_examples: Sequence[int] | None = None,
) -> Replay:
    """FedAT: each tier makes rounds of its own, one after the other, and each round makes a server step.

    In a round `cohort` clients of the tier start together from the newest version; it is over with the last arrival.
    Rounds that are over at one instant make their steps in the order of the tiers; then these tiers begin their next
    rounds. Whatever has not made a step when the last step is made, and the rounds that begin then, is in flight.

    Args:
      tiers: the tier of each client, from 0 on.
      select_round: (tier, how many rounds it has begun before) -> that many different clients of it.
      The other arguments are those of `simulate`.
    """
    simulation = _Simulation(params, num_clients, duration, client_update, client_examples, rule, optimizer)
    begun = [0] * (max(tiers) + 1)
    rounds: dict[int, list[Trip]] = {}

    def begin(tier: int, time: float) -> None:
        members = [client for client in range(num_clients) if tiers[client] == tier]
        chosen = _checked(select_round(tier, begun[tier]), members, cohort)
        begun[tier] += 1
        trips = [simulation.start_trip(client, time) for client in chosen]
        rounds[tier] = sorted(trips, key=lambda trip: (trip.arrival_time, trip.client))

    for tier in range(len(begun)):
        begin(tier, 0.0)
    while simulation.version < stop_after_steps:
        now = min(trips[-1].arrival_time for trips in rounds.values())
        over = [tier for tier in sorted(rounds) if rounds[tier][-1].arrival_time == now]
        over = over[: stop_after_steps - simulation.version]
        for tier in over:
            for trip in rounds[tier]:
                simulation.train(trip)
            simulation.server_step(rounds.pop(tier), now)
        for tier in over:
            begin(tier, now)
    in_flight = sorted((trip for trips in rounds.values() for trip in trips), key=lambda trip: trip.client)
    return simulation.replay(in_flight, discarded=[])


def simulate_polled(
    *,
    params,
    num_clients: int,
    polled: int,
    interval: float,
    most_steps: int,
    seconds: Callable[[int, int], tuple[float, float]],
    select: Callable[[int], Sequence[int]],
    steps_made: dict[tuple[int, int], int],
    before_step: bool = False,
    stop_after_steps: int,
    rule: Rule,
    optimizer,
    client_update: Callable[[int, int, Any], tuple[Any, float, int]],
    client_examples: Sequence[int] | None = None,
) -> Replay:
    """FAVAS: every `interval` the server polls some clients, who hand over what they have made since their last poll.

    Everybody trains from time 0 on, one local step after the other, at most `most_steps` of them. Whoever is polled
    trains from then on from the version that the step makes. First all polls are gone through, and then the clients
    train, so that a rule with a method `foresee_steps` can be told [(client, local steps)] of all trips before.

    Args:
      polled: how many clients are polled at a time.
      seconds: (client, trip) -> (the time before the first local step, that of each local step).
      select: (poll) -> that many different clients.
      before_step: whether whoever is polled trains from then on from the version before the step.
      steps_made: filled in: {(client, trip): local steps}, which `client_update` may read.
      The other arguments are those of `simulate`.
    """
    simulation = _Simulation(params, num_clients, None, client_update, client_examples, rule, optimizer)

    def start(client: int, polls_before: int) -> Trip:
        number = simulation.trips_started[client]
        simulation.trips_started[client] += 1
        version = max(polls_before - before_step, 0)
        return Trip(client, number, version, interval * polls_before, math.inf)

    under_way = [start(client, 0) for client in range(num_clients)]
    polls = []
    for poll in range(stop_after_steps):
        now = interval * (poll + 1)
        chosen = _checked(select(poll), range(num_clients), polled)
        polls.append([under_way[client] for client in chosen])
        for trip in polls[-1]:
            before, each = seconds(trip.client, trip.trip)
            trip.arrival_time = trip.end_time = now
            trip.local_steps = 0
            while trip.local_steps < most_steps:
                done = trip.download_time + before + (trip.local_steps + 1) * each
                if done > now + 1e-9 * each:
                    break
                trip.local_steps += 1
            steps_made[trip.client, trip.trip] = trip.local_steps
            under_way[trip.client] = start(trip.client, poll + 1)
    if hasattr(rule, "foresee_steps"):
        rule.foresee_steps([(trip.client, trip.local_steps) for trips in polls for trip in trips])
    for poll, trips in enumerate(polls):
        for trip in trips:
            simulation.train(trip)
        simulation.server_step(trips, interval * (poll + 1))
    return simulation.replay(under_way, discarded=[])


def simulate_drawn_staleness(
    *,
    params,
    num_clients: int,
    buffer_size: int,
    staleness_of: Callable[[int, int], float],
    select: Callable[[int, list[int], int], Sequence[int]],
    stop_after_steps: int,
    rule: Rule,
    optimizer,
    client_update: Callable[[int, int, Any], tuple[Any, float, int]],
    client_examples: Sequence[int] | None = None,
    most_trips: int | None = None,
    smallest_gap: int = 0,
) -> Replay:
    """Delays that are drawn in server steps: no events, the staleness of each trip is given.

    Step t applies `buffer_size` trips of different clients, in client order. A trip with staleness s has
    downloaded version t - s. Nobody is in two trips at once: a client whose last trip step r applied can
    download version r + 1 first (version 0 if it has had none), and a staleness that would need an older
    version is cut to that one.

    Time: version v is there, and is downloaded, at time v, so step t happens at time t + 1. After the last
    step nothing is in flight.

    Args:
      staleness_of: (client, trip) -> the staleness of that trip, rounded down here and cut as said, where
        `trip` is how many trips the client started before.
      select: (step, eligible clients in order, buffer_size) -> that many of them. Asked at each step.
      most_trips, smallest_gap: as in `simulate_synchronous`; all others are eligible.
      The other arguments are those of `simulate`.
    """
    simulation = _Simulation(params, num_clients, None, client_update, client_examples, rule, optimizer)
    first_version = [0] * num_clients  # the first that each client can download for its next trip
    for step in range(stop_after_steps):
        eligible = [
            client
            for client in range(num_clients)
            if _may_take_part(client, simulation.applied, step, most_trips, smallest_gap)
        ]
        time = float(step + 1)
        trips = []
        for client in _checked(select(step, list(eligible), buffer_size), eligible, buffer_size):
            number = simulation.trips_started[client]
            simulation.trips_started[client] += 1
            drawn = float(staleness_of(client, number))
            if not 0.0 <= drawn < math.inf:
                raise ValueError(f"client {client}, trip {number}: bad staleness {drawn}")
            version = max(step - math.floor(drawn), first_version[client])
            trip = Trip(client, number, version, float(version), time, end_time=time)
            simulation.train(trip)
            trips.append(trip)
            first_version[client] = step + 1
        simulation.server_step(trips, time)
    return simulation.replay(in_flight=[], discarded=[])


def simulate_iterations(
    *,
    params,
    num_clients: int,
    delay_of: Callable[[int, int], float],
    stop_after_steps: int,
    rule: Rule,
    optimizer,
    client_update: Callable[[int, int, Any], tuple[Any, float, int]],
    client_examples: Sequence[int] | None = None,
    initial_round: bool = False,
) -> Replay:
    """Delays that count server iterations, one reading of ACE (Chang et al., algorithm 1 and section 5).

    Iteration t = 1, 2, ... takes all reports whose delay ends with it, in client order, and makes one server
    step from them. Then each of these clients starts again from the model just made: with delay d it reports
    to iteration t + d. A delay is whole, at least 1, and what is drawn is rounded up to that. At the beginning
    all start from the initial model, as if after an iteration 0. An iteration without a report makes no step
    (algorithm 1 waits for a gradient).

    Args:
      delay_of: (client, trip) -> the delay as drawn, where `trip` is how many trips the client started before.
      initial_round: the first trip of every client has delay 1, whatever is drawn: lines 3 to 5 of algorithm
        1, where the first step takes a gradient of every client at the initial model.
      The other arguments are those of `simulate`.
    """

    def whole_delay(client, trip):
        return 1 if initial_round and trip == 0 else max(1, math.ceil(delay_of(client, trip)))

    simulation = _Simulation(
        params, num_clients, whole_delay, client_update, client_examples, rule, optimizer
    )
    under_way = [simulation.start_trip(client, 0.0) for client in range(num_clients)]
    while simulation.version < stop_after_steps:
        iteration = min(trip.arrival_time for trip in under_way)
        reports = [trip for trip in under_way if trip.arrival_time == iteration]
        reports.sort(key=lambda trip: trip.client)
        for trip in reports:
            simulation.train(trip)
            under_way.remove(trip)
        simulation.server_step(reports, iteration)
        under_way += [simulation.start_trip(trip.client, iteration) for trip in reports]
    under_way.sort(key=lambda trip: trip.client)
    return simulation.replay(in_flight=under_way, discarded=[])
