"""A slow, obvious simulator of (a)synchronous federated learning: the judge of meaning in the tests.

It handles one event after the other, in NumPy and float64, and favours the plainest way to write down what
the papers say over any speed. It shares no code with the library it judges.

How to read it, from top to bottom: parameters are nested dicts of arrays; two models with their gradients
written out; what a client does in one trip; staleness weights; server rules; server optimizers; the two
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

Words. A *client trip* is one download, local training and upload by one client. A *version* is the number of
server steps so far. The *update* of a trip is its trained parameters minus its downloaded parameters
(FedBuff's algorithm 2 sends the negative of this). *Staleness* is the version just before the step that
applies the update, minus the version downloaded, so a fresh update has staleness 0.

A new algorithm is a new subclass of `Rule`; see there.
"""

import bisect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

# --------------------------------------------------------------------------------------------------
# Parameters: nested dicts of float64 arrays.
# --------------------------------------------------------------------------------------------------


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


# --------------------------------------------------------------------------------------------------
# Two models: mean cross-entropy over a batch, and its exact gradient.
# --------------------------------------------------------------------------------------------------


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


# --------------------------------------------------------------------------------------------------
# Client work: one trip.
# --------------------------------------------------------------------------------------------------


def local_update(
    params,
    x,
    y,
    batches: Sequence[np.ndarray],
    learning_rate: float,
    l2: float = 0.0,
    proximal: float = 0.0,
    learning_rate_normalisation: bool = False,
    batch_size: int | None = None,
    momentum: float = 0.0,
):
    """Plain SGD over `batches`, one step each (FedBuff algorithm 2).

    Args:
      params: the downloaded model.
      x, y: the client's examples [n, F] and integer labels [n].
      batches: for each step, the indices of its examples.
      learning_rate: the client's learning rate.
      l2, proximal: see `objective`; the proximal term pulls towards the downloaded model.
      learning_rate_normalisation: FedBuff §5, LR-Norm: a step on b < B examples uses `learning_rate * b / B`.
      batch_size: B, needed for LR-Norm only.
      momentum: heavy ball: m <- momentum * m + g; w <- w - (learning rate of this step) * m. m is 0 when the
        trip starts.

    Returns:
      The update (trained minus downloaded), the objective on the first minibatch at the downloaded model
      (with the L2 term; the proximal term is 0 there), and the number of examples used: the sum of the sizes
      of the batches.
    """
    if len(batches) == 0 or any(len(batch) == 0 for batch in batches):
        raise ValueError("a trip needs at least one batch, and no batch may be empty")
    downloaded = params
    velocity = zeros_like(params)
    first_loss = None
    for batch in batches:
        loss, gradient = objective(
            params, x[batch], y[batch], l2=l2, proximal=proximal, downloaded=downloaded
        )
        if first_loss is None:
            first_loss = loss
        rate = learning_rate
        if learning_rate_normalisation:
            if batch_size is None or len(batch) > batch_size:
                raise ValueError("LR-Norm needs a batch_size that no batch exceeds")
            rate = learning_rate * len(batch) / batch_size
        velocity = add(scale(momentum, velocity), gradient)
        params = subtract(params, scale(rate, velocity))
    return subtract(params, downloaded), first_loss, sum(len(batch) for batch in batches)


def client_work(data, batches: Callable[[int, int], Sequence[np.ndarray]], **settings):
    """A `client_update(client, trip, params)` for the simulators, made from `local_update`.

    Args:
      data: for each client its (x, y).
      batches: (client, trip) -> the list of index arrays of that trip.
      settings: handed on to `local_update`.
    """

    def client_update(client, trip, params):
        x, y = data[client]
        return local_update(params, x, y, batches(client, trip), **settings)

    return client_update


def no_work(client, trip, params):
    """A `client_update` that trains nothing: for tests of the events alone, with params = {}."""
    return zeros_like(params), 0.0, 0


# --------------------------------------------------------------------------------------------------
# Records.
# --------------------------------------------------------------------------------------------------


@dataclass
class Trip:
    """One client trip, filled in as it goes on. Rules see every field filled but those of a cancellation."""

    client: int
    trip: int  # how many trips this client had started before
    download_version: int
    download_time: float
    arrival_time: float  # download_time + duration, also where the trip never arrives
    start: Any = None  # the parameters downloaded
    update: Any = None  # trained minus downloaded
    trained: Any = None
    loss: float | None = None  # of the first minibatch at the downloaded model
    batch_examples: int | None = None  # how many examples this trip used
    num_examples: int | None = None  # how many examples the client has (None if the simulator was not told)
    step: int | None = None  # the server step (from 0) that applied it: the version just before that step
    staleness: int | None = None  # step - download_version
    cancel_time: float | None = None  # for trips thrown away
    cancel_step: int | None = None  # for these, too: the round, or the version when the client left for ever


@dataclass
class Replay:
    """Everything that happened. J trips applied, T server steps."""

    applied: list[Trip]  # [J], in the order in which the server applied them
    step_times: list[float]  # [T]
    params: list[Any]  # [T + 1], params[v] is version v: 0 the initial model, t + 1 that after step t
    in_flight: list[Trip]  # under way when the simulation stopped, in client order
    discarded: list[Trip] = field(default_factory=list)  # cancelled: over-selection, or the client left

    @property
    def final_params(self):
        return self.params[-1]


def column(trips: Sequence[Trip], name: str) -> np.ndarray:
    """One field of every trip as an array, for instance `column(replay.applied, "staleness")`."""
    return np.array([getattr(trip, name) for trip in trips])


# --------------------------------------------------------------------------------------------------
# Staleness weights s(tau), with s = 1 for a fresh update.
# --------------------------------------------------------------------------------------------------


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


# --------------------------------------------------------------------------------------------------
# Server rules.
# --------------------------------------------------------------------------------------------------


def examples_of(trip: Trip) -> int:
    """The size of the client's data set, for weights by examples."""
    if trip.num_examples is None:
        raise ValueError("weights by examples need the simulator's argument client_examples")
    return trip.num_examples


class Rule:
    """How the server makes a direction out of the trips of one step.

    A rule with memory keeps it on itself, sets it up in `begin` and changes it in `pseudo_gradient`, where it
    meets the trips in the order in which they arrived. Nothing reads a rule's memory between two steps, so
    this is the same as to change it at each arrival.
    """

    def begin(self, params, num_clients: int) -> None:
        """Forgets all that went before; called once, before the first trip, with the initial model."""

    def pseudo_gradient(self, params, trips: list[Trip]):
        """The direction to descend, from the current model and the trips of this step in order of arrival.

        None skips the step: the version counts, parameters and server optimizer stay as they are.
        """
        raise NotImplementedError


class FedAvg(Rule):
    """The mean of the updates D_i, or that weighted by the sizes of the data sets: sum n_i D_i / sum n_i."""

    def __init__(self, weight_by_examples: bool = False):
        self.weight_by_examples = weight_by_examples

    def pseudo_gradient(self, params, trips):
        numbers = [examples_of(trip) if self.weight_by_examples else 1 for trip in trips]
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
        if aggregation not in ("mean", "sum"):
            raise ValueError(f"aggregation must be 'mean' or 'sum', not {aggregation!r}")
        if aggregation == "sum" and weight_by_examples:
            raise ValueError("the sum with weights by examples has no meaning in the paper")
        self.staleness_weight = polynomial(0.5) if staleness_weight is None else staleness_weight
        self.aggregation = aggregation
        self.weight_by_examples = weight_by_examples

    def pseudo_gradient(self, params, trips):
        staleness_weights = [self.staleness_weight(trip.staleness) for trip in trips]
        numbers = [examples_of(trip) if self.weight_by_examples else 1 for trip in trips]
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
        if len(trips) != 1:
            raise ValueError("FedAsync mixes in one trip per server step")
        (trip,) = trips
        share = self.mixing * self.staleness_weight(trip.staleness)
        mixed = add(scale(1.0 - share, params), scale(share, trip.trained))
        return subtract(params, mixed)


# --------------------------------------------------------------------------------------------------
# Server optimizers: they descend the pseudo-gradient g.
# --------------------------------------------------------------------------------------------------


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


# --------------------------------------------------------------------------------------------------
# The simulators.
# --------------------------------------------------------------------------------------------------


class _Simulation:
    """What both simulators share: clients that start and train, a server that steps, and the records."""

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
        return Trip(client, trip, self.version, time, time + duration)

    def train(self, trip: Trip) -> None:
        """Fills in what the client brings back, from the version that it downloaded."""
        trip.start = self.snapshots[trip.download_version]
        update, loss, examples = self.client_update(trip.client, trip.trip, trip.start)
        trip.update = float64_copy(update)
        trip.trained = float64_copy(add(trip.start, trip.update))
        trip.loss = float(loss)
        trip.batch_examples = int(examples)
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
            params = float64_copy(self.optimizer.apply(params, gradient))
        self.version += 1
        self.snapshots[self.version] = params
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


def _check_vanish(vanish, num_clients) -> None:
    """Refuses a `vanish` of `simulate` that has no meaning."""
    if vanish is None:
        return
    kind, clients, moment = vanish
    if kind not in ("step", "time", "trips"):
        raise ValueError(f"clients vanish by 'step', 'time' or 'trips', not {kind!r}")
    if len(set(clients)) != len(clients) or not set(clients) <= set(range(num_clients)):
        raise ValueError(f"the clients that vanish must be different ones among {num_clients}, got {clients}")
    if kind == "time" and not 0.0 <= moment < math.inf:
        raise ValueError(f"clients vanish at a finite time from 0 on, not at {moment}")
    if kind != "time" and (moment < 1 or moment % 1):
        raise ValueError(f"the first step and the first trip have number 1, so none has number {moment}")


def simulate(
    *,
    params,
    num_clients: int,
    concurrency: int,
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
) -> Replay:
    """Asynchronous federated learning with a buffer, event by event (FedBuff algorithm 1).

    At time 0, `concurrency` clients start from version 0: there are that many places. Then, from one instant
    at which something happens to the next:

    1. all trips that arrive at this instant are handled, in client order: each goes into the buffer, and
       whenever the buffer is full the server steps at once and empties it;
    2. then clients may leave for ever, if `vanish` says so;
    3. then clients start in free places, in client order, all from the newest version. `restart` says how
       many places are free and which of the idle clients are eligible; as many start as both allow.

    A new trip of duration 0 arrives at the same instant: 1 to 3 are gone through once more. A place that
    nobody could take stays free until the end of an instant at which somebody can. If nobody is under way and
    nobody can start before the last step, the run is starved and refused.

    The end: the last step ends the handling of arrivals, even if more trips arrive at its very instant (those
    count as in flight, with an arrival time equal to the time of the last step). Nobody leaves at that
    instant any more. Replacements still start, from the final version.

    The ways to restart:

    - "at_once": a place is free as soon as its trip has arrived, and every idle client is eligible, those
      that have just arrived included. Without vanishing `concurrency` trips are under way at any moment.
    - "not_twice_in_a_buffer": the same places, but a client whose update lies in the buffer is not eligible
      before the step that applies it.
    - "after_step" (WKAFL's K-asynchronous learning): nobody starts but at the end of an instant with a step.
      A place is free once its trip has been applied: the eligible clients are the idle ones without an update
      in the buffer. With concurrency = N those whose trips were applied restart together, and only those.
    - "after_round" (GSGM): a round begins with the run, and the next whenever every client that has not left
      has contributed, that is, arrived, since the round began. A place is free as soon as its trip has
      arrived, and the idle clients that have not started in this round are eligible. Rounds do not cut the
      buffer: a step may hold the last trips of a round and the first of the next.

    Args:
      params: the initial model, a nested dict of arrays.
      num_clients, concurrency, buffer_size: N, M (at most N) and K.
      duration: (client, trip) -> how long that trip takes, where `trip` is how many trips the client started
        before.
      stop_after_steps: T.
      rule, optimizer: the server.
      client_update: (client, trip, params) -> (update, loss, number of examples used).
      select: (time, eligible clients in order, how many) -> that many of them. Asked once for the start and
        once for all replacements of an instant, and only if not all eligible clients start. So with
        concurrency = N nobody is asked: the same clients start again.
      client_examples: the size of each client's data set, for rules that weigh by it.
      first_buffer_size: how many trips step 0 takes; `buffer_size`, like every other step, unless given. With
        it nobody is replaced before step 0: those who have arrived wait for it, and start again together from
        version 1, at the instant at which it happens. ACE's start (algorithm 1 lines 3 to 6) is
        `first_buffer_size = concurrency = num_clients`: every client trains at version 0 first. Only with
        restart = "at_once".
      restart: "at_once", "not_twice_in_a_buffer", "after_step" or "after_round"; see above.
      vanish: (kind, clients, moment), these clients leave for ever. Kind "step": at the instant of the step
        that makes the version `moment`. Kind "time": at simulated time `moment`, an instant of its own if
        nothing arrives then. Kind "trips": each at the instant at which its trip number `moment`, counted
        from 1, arrives. A trip under way is thrown away: it is recorded as discarded, with this instant and
        the version of this moment, and its place becomes free. An update in the buffer stays there. Whoever
        has left is never eligible.
    """
    if not 1 <= concurrency <= num_clients or buffer_size < 1 or stop_after_steps < 1:
        raise ValueError("need 1 <= concurrency <= num_clients, buffer_size >= 1 and stop_after_steps >= 1")
    if first_buffer_size is not None and not 1 <= first_buffer_size <= concurrency:
        raise ValueError("need 1 <= first_buffer_size <= concurrency: nobody is replaced before step 0")
    if restart not in RESTARTS:
        raise ValueError(f"restart is one of {RESTARTS}, not {restart!r}")
    if first_buffer_size is not None and restart != "at_once":
        raise ValueError("first_buffer_size has a way to restart of its own: it needs restart='at_once'")
    _check_vanish(vanish, num_clients)
    simulation = _Simulation(params, num_clients, duration, client_update, client_examples, rule, optimizer)
    under_way: dict[int, Trip] = {}  # by client: nobody is in two trips at once
    arrivals: list[tuple[float, int]] = []  # (arrival time, client) of each trip under way, sorted
    buffer: list[Trip] = []
    discarded: list[Trip] = []
    gone: set[int] = set()  # who has left for ever
    arrived = [0] * num_clients  # how many trips of each client have arrived
    started_in_round: set[int] = set()
    contributed_in_round: set[int] = set()

    def is_eligible(client):
        if client in under_way or client in gone:
            return False
        if restart in ("not_twice_in_a_buffer", "after_step"):
            return all(trip.client != client for trip in buffer)
        if restart == "after_round":
            return client not in started_in_round
        return True

    def free_places():
        waiting = len(buffer) if restart == "after_step" else 0
        return concurrency - len(under_way) - waiting

    def start_clients(time):
        eligible = [client for client in range(num_clients) if is_eligible(client)]
        how_many = min(free_places(), len(eligible))
        if how_many == 0:
            return
        chosen = eligible if how_many == len(eligible) else select(time, list(eligible), how_many)
        for client in _checked(chosen, eligible, how_many):
            trip = simulation.start_trip(client, time)
            under_way[client] = trip
            started_in_round.add(client)
            bisect.insort(arrivals, (trip.arrival_time, client))

    def has_to_leave(client, now, version_before):
        """Asked after the arrivals of an instant; the version was `version_before` ahead of them."""
        if vanish is None or client in gone or client not in vanish[1]:
            return False
        kind, _, moment = vanish
        if kind == "step":
            return version_before < moment <= simulation.version
        if kind == "time":
            return now == moment
        return arrived[client] == moment

    def leave(client, now):
        gone.add(client)
        if client in under_way:
            trip = under_way.pop(client)
            arrivals.remove((trip.arrival_time, client))
            trip.cancel_time = now
            trip.cancel_step = simulation.version
            discarded.append(trip)

    start_clients(0.0)
    while simulation.version < stop_after_steps:
        now = arrivals[0][0]
        if vanish is not None and vanish[0] == "time" and not gone.issuperset(vanish[1]):
            now = min(now, float(vanish[2]))
        version_before = simulation.version

        while arrivals and arrivals[0][0] == now and simulation.version < stop_after_steps:
            _, client = arrivals.pop(0)
            trip = under_way.pop(client)
            simulation.train(trip)
            buffer.append(trip)
            arrived[client] += 1
            contributed_in_round.add(client)
            before_step_0 = first_buffer_size is not None and simulation.version == 0
            if len(buffer) == (first_buffer_size if before_step_0 else buffer_size):
                simulation.server_step(buffer, now)
                buffer = []

        if simulation.version < stop_after_steps:
            for client in range(num_clients):
                if has_to_leave(client, now, version_before):
                    leave(client, now)

        if all(client in contributed_in_round or client in gone for client in range(num_clients)):
            started_in_round.clear()
            contributed_in_round.clear()
        waits_for_step_0 = first_buffer_size is not None and simulation.version == 0
        waits_for_a_step = restart == "after_step" and simulation.version == version_before
        if not waits_for_step_0 and not waits_for_a_step:
            start_clients(now)
        if not under_way and simulation.version < stop_after_steps:
            where = f"time {now} and version {simulation.version}"
            raise ValueError(f"starved at {where}: nobody is under way, and nobody can start")

    in_flight = [under_way[client] for client in sorted(under_way)]
    return simulation.replay(in_flight=in_flight, discarded=discarded)


def simulate_synchronous(
    *,
    params,
    num_clients: int,
    cohort: int,
    duration: Callable[[int, int], float],
    select_round: Callable[[int, int], Sequence[int]],
    stop_after_steps: int,
    rule: Rule,
    optimizer,
    client_update: Callable[[int, int, Any], tuple[Any, float, int]],
    started: int | None = None,
    client_examples: Sequence[int] | None = None,
) -> Replay:
    """Synchronous rounds on the same clock, with over-selection (FedBuff C.2 to C.4).

    In each round `started` clients start together from the newest version. The server steps when the first
    `cohort` of them have arrived (ties in client order) and applies these in order of arrival. The rest are
    cancelled at that instant, even those that would arrive at it, and recorded as discarded, with the time
    that they would have arrived, the time of the cancellation and the round's number. The next round starts
    at that instant.
    After the last step no round starts, so nothing is in flight at the end.

    Args:
      cohort: how many trips the server uses per round.
      started: how many clients start per round; `cohort` unless given.
      select_round: (round, started) -> that many different clients.
      The other arguments are those of `simulate`. A cancelled trip counts among the trips a client has
      started.
    """
    started = cohort if started is None else started
    if not 1 <= cohort <= started <= num_clients or stop_after_steps < 1:
        raise ValueError("need 1 <= cohort <= started <= num_clients and stop_after_steps >= 1")
    simulation = _Simulation(params, num_clients, duration, client_update, client_examples, rule, optimizer)
    discarded = []
    now = 0.0
    for round_number in range(stop_after_steps):
        clients = _checked(select_round(round_number, started), range(num_clients), started)
        trips = [simulation.start_trip(client, now) for client in clients]
        trips.sort(key=lambda trip: (trip.arrival_time, trip.client))
        used, late = trips[:cohort], trips[cohort:]
        now = used[-1].arrival_time
        for trip in used:
            simulation.train(trip)
        simulation.server_step(used, now)
        for trip in late:
            trip.cancel_time = now
            trip.cancel_step = round_number
        discarded.extend(late)
    return simulation.replay(in_flight=[], discarded=discarded)
