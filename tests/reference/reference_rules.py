"""Slow, obvious server rules for the reference simulator: the algorithms of four papers, and their neighbours.

Each rule is written down the way its paper says it, without regard to cost: sums over all clients are made
anew at every step, and whatever a rule must remember is kept whole. It shares no code with the library it
judges. How to read it, from top to bottom: vectors; weights by staleness (FedStaleWeight); rules that apply
one gradient per step; FADAS; rules with a gradient or an update stored per client (ACE, ACED, CA²FL); rules on the K
gradients of a step (TWAFL, SASGD, GSGM, WKAFL); Zeno++; FedNova; server optimizers.

Sources:

- FedStaleWeight: Ma et al., "FedStaleWeight: Buffered Asynchronous Federated Learning with Fair Aggregation
  via Staleness Reweighting".
- ACE and ACED: Chang et al., "Mitigating Participation Imbalance Bias in Asynchronous Federated Learning",
  whose appendix F also writes down CA²FL and delay-adaptive asynchronous SGD.
- WKAFL: Zhou et al., "Towards Efficient and Stable K-Asynchronous Federated Learning with Unbounded Stale
  Gradients on Non-IID Data", whose §6.1.2 also writes down TWAFL, SASGD and GSGM, and whose appendix A
  compares with Zeno++.
- CA²FL: Wang et al., "Tackling the Data Heterogeneity in Asynchronous Federated Learning with Cached Update
  Calibration", 2024.
- Delay-adaptive SGD: Koloskova et al., "Sharper Convergence Guarantees for Asynchronous SGD", 2022.
- Zeno++: Xie et al., "Zeno++: Robust Fully Asynchronous SGD", 2020.
- FedNova: Wang et al., "Tackling the Objective Inconsistency Problem in Heterogeneous Federated
  Optimization", 2020.
- MIFA: Gu et al., "Fast Federated Learning in the Presence of Arbitrary Device Unavailability", 2021.
- DuDe-ASGD: Wang et al., "Dual-Delayed Asynchronous SGD for Arbitrarily Heterogeneous Data", 2024.
- AREA: Iakovidou and Kim, "Asynchronous Federated Stochastic Optimization for Heterogeneous Objectives Under
  Arbitrary Delays", 2024.
- FedFa: Xu et al., "FedFa: A Fully Asynchronous Training Paradigm for Federated Learning", 2024.
- PORT: Su and Li, "How Asynchronous Can Federated Learning Be?", 2022.
- AsyncFedED: Wang et al., "AsyncFedED: Asynchronous Federated Learning with Euclidean Distance Based Adaptive
  Weight Aggregation", 2022.
- CGAD: Shah and Sun, "Cosine-Gated Adam-Decay: Drop-In Staleness-Aware Outer Optimization for Decoupled DiLoCo",
  2026.
- Rescaled ASGD: Mahran et al., "Rescaled Asynchronous SGD: Optimal Distributed Optimization under Data and
  System Heterogeneity", 2026.
- HeLoCo: Al Asif et al., "HeLoCo: Efficient Asynchronous Low-Communication Training under Data and Device
  Heterogeneity", 2026.
- Malenia SGD: Tyurin and Richtárik, "Optimal Time Complexities of Parallel Stochastic Optimization Methods Under a
  Fixed Computation Model", 2023.
- Ringleader ASGD: Maranjyan and Richtárik, "Ringleader ASGD: The First Asynchronous SGD with Optimal Time
  Complexity under Data Heterogeneity", 2026.
- Generalized AsyncSGD: Leconte et al., "Queuing Dynamics of Asynchronous Federated Learning", 2024.
- FedFix: Fraboni et al., "A General Theory for Federated Optimization with Asynchronous and Heterogeneous Clients
  Updates", 2023.
- Delayed Nesterov: Liu et al., "Asynchronous Local-SGD Training for Language Modeling", 2024.
- SCAFFOLD: Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", 2020.
- FedDyn: Acar et al., "Federated Learning Based on Dynamic Regularization", 2021.
- MasFL and AdaMasFL: Yan et al., ICML 2025 (PMLR 267), after the code of another group.
- Ditto: Li et al., "Ditto: Fair and Robust Federated Learning Through Personalization", 2021.
- QSGD: Alistarh et al., "QSGD: Communication-Efficient SGD via Gradient Quantization and Encoding", 2017.
- Top-k: Stich et al., "Sparsified SGD with Memory", 2018.
- Error feedback: Karimireddy et al., "Error Feedback Fixes SignSGD and other Gradient Compression Schemes", 2019.
- EF21: Richtárik, Sokolov, Fatkhullin, "EF21: A New, Simpler, Theoretically Better, and Practically Faster Error
  Feedback", 2021.
- QAFeL: Ortega, Jafarkhani, "Asynchronous Federated Learning with Bidirectional Quantized Communications and Buffered
  Aggregation", 2023.
- FADAS: Wang et al., "FADAS: Towards Federated Adaptive Asynchronous Optimization", 2024.
- FedCompass: Li et al., "FedCompass: Efficient Cross-Silo Federated Learning on Heterogeneous Client Devices
  Using a Computing Power-Aware Scheduler", 2024.
- FedAT: Chai et al., "FedAT: A High-Performance and Communication-Efficient Federated Learning System with
  Asynchronous Tiers", 2021.
- FAVAS: Leconte et al., "FAVAS: Federated AVeraging with ASynchronous clients", 2024.
- QuAFL: Zakerinia et al., "Communication-Efficient Federated Learning With Data and Client Heterogeneity", 2024.
- FedAdagrad, FedAdam, FedYogi: Reddi et al., "Adaptive Federated Optimization", 2020.

Symbols, in all that follows: w is the server's model, D_i the update of a trip (trained minus downloaded, so
it points downhill), g_i the gradient of a client, tau the staleness (a fresh trip has 0), N the number of
clients, K the number of trips in the step. A rule for gradients is told the client's learning rate, and takes
g_i = -D_i / (client learning rate): right for a trip of one plain SGD step. What a rule returns is multiplied
by the server's learning rate in the server optimizer, so a paper's eta is `reference.SGD(eta)`.

Every rule here keeps `reports`: one dict per server step with what it decided, in the words of its docstring.
"""

import math

import numpy as np
from reference import (
    FedBuff,
    Rule,
    add,
    inner_product,
    norm,
    objective,
    scale,
    subtract,
    tree_map,
    weighted_sum,
    zeros_like,
)

# Vectors.


def gradient_of(trip, client_learning_rate: float):
    """The gradient that the client took, from its update: g = -D / (client learning rate)."""
    return scale(-1.0 / client_learning_rate, trip.update)


def mean_of(trees):
    return scale(1.0 / len(trees), weighted_sum([1.0] * len(trees), trees))


def clip(tree, bound: float | None):
    """`tree` shortened to the global norm `bound` where it is longer; None does not shorten."""
    length = norm(tree)
    return tree if bound is None or length <= bound else scale(bound / length, tree)


def cosine(first, second) -> float:
    """The cosine of the angle between two vectors: 0 where one of them is zero, and never outside [-1, 1].

    The last matters for a test like cosine >= -1, which rounding must not fail.
    """
    lengths = norm(first) * norm(second)
    if lengths == 0.0:
        return 0.0
    return min(1.0, max(-1.0, inner_product(first, second) / lengths))


def normalized(weights) -> list[float]:
    """The weights divided by their sum."""
    total = sum(weights)
    return [weight / total for weight in weights]


def unbiased_8_bit(tree, generator: np.random.Generator):
    """The values that an 8-bit copy of `tree` stands for: whole multiples, -127 to 127, of one step per array.

    The step is the array's largest absolute value divided by 127. A value between two multiples goes to one
    of them at random, with the chances that make its mean right: floor(value / step + u), u uniform on [0, 1).
    The error of a value that lies a part p of the step above a multiple has mean 0 and variance
    p (1 - p) step². An array of zeros stays zero.
    """

    def quantise(leaf):
        step = np.max(np.abs(leaf), initial=0.0) / 127.0
        if step == 0.0:
            return np.zeros_like(leaf)
        whole = np.floor(leaf / step + generator.uniform(size=np.shape(leaf)))
        return step * np.clip(whole, -127, 127)

    return tree_map(quantise, tree)


class ReportingRule(Rule):
    """A rule that notes what it decided: `reports` has one dict per server step."""

    def begin(self, params, num_clients):
        self.num_clients = num_clients
        self.reports = []


# Weights by staleness, normalized over the buffer.


class FedStaleWeight(ReportingRule):
    """FedStaleWeight algorithm 1: w <- w + eta_g sum_j alpha_j D_j, the alpha_j of a step summing to 1.

    alpha_j is proportional to E[tau_j] b + 1 (`weight="equation_8"`) or to E[tau_j] + 1
    (`weight="algorithm_1"`, whose 1/n cancels). b is K, the number of trips in this step. E[tau_j] is an
    average over the trips of the client that sent D_j, those of this step included: a client with two trips
    in one step has both included, for both. The paper has a "moving average" (section 4.3), of unknown length;
    its test bench one of five trips.

    Args:
      weight: see above.
      window: average over the client's last `window` trips; five, as the test bench, if nothing else is asked for.
      decay: the exponential average instead: E <- decay * E + (1 - decay) * tau for each trip, in order of
        arrival, and E = tau at the client's first trip.
      all_trips: average over all of the client's trips so far instead.

    Reports: weights, the alpha_j in order of arrival.
    """

    def __init__(
        self,
        weight: str = "equation_8",
        window: int | None = None,
        decay: float | None = None,
        all_trips: bool = False,
    ):
        if (window, decay, all_trips) == (None, None, False):
            window = 5
        self.weight = weight
        self.window = window
        self.decay = decay

    def begin(self, params, num_clients):
        super().begin(params, num_clients)
        self.past = {client: [] for client in range(num_clients)}  # the staleness of each trip so far

    def expected_staleness(self, client) -> float:
        past = self.past[client]
        if self.decay is not None:
            average = past[0]
            for staleness in past[1:]:
                average = self.decay * average + (1.0 - self.decay) * staleness
            return average
        if self.window is not None:
            past = past[-self.window :]
        return sum(past) / len(past)

    def pseudo_gradient(self, params, trips):
        for trip in trips:
            self.past[trip.client].append(trip.staleness)
        factor = len(trips) if self.weight == "equation_8" else 1
        weights = normalized([self.expected_staleness(trip.client) * factor + 1.0 for trip in trips])
        self.reports.append({"weights": weights})
        return scale(-1.0, weighted_sum(weights, [trip.update for trip in trips]))


class ExponentialWeighting(ReportingRule):
    """FedStaleWeight's test bench: sum_j alpha_j D_j, alpha_j proportional to base^tau_j, summing to 1.

    The bench has base 0.5 ("exponential": fresh updates weigh more) and 1.5 ("reverse exponential": stale
    ones do). Only differences of tau matter, so the largest power is made 1: thousands do no harm.

    Reports: weights, the alpha_j in order of arrival.
    """

    def __init__(self, base: float):
        self.base = base

    def pseudo_gradient(self, params, trips):
        staleness = [trip.staleness for trip in trips]
        heaviest = min(staleness) if self.base < 1.0 else max(staleness)
        weights = normalized([self.base ** (tau - heaviest) for tau in staleness])
        self.reports.append({"weights": weights})
        return scale(-1.0, weighted_sum(weights, [trip.update for trip in trips]))


# One gradient per step.


class VanillaASGD(ReportingRule):
    """Asynchronous SGD, the baseline of ACE: w <- w - eta g, one arrival per step, whatever its staleness."""

    def __init__(self, client_learning_rate: float):
        self.client_learning_rate = client_learning_rate

    def pseudo_gradient(self, params, trips):
        (trip,) = trips
        self.reports.append({})
        return gradient_of(trip, self.client_learning_rate)


class DelayAdaptiveASGD(ReportingRule):
    """ACE algorithm a.4: w <- w - eta_t g, with eta_t = eta wherever tau <= tau_C. Otherwise

    - form "scale": eta_t = eta tau_C / tau;
    - form "drop": the step is skipped;
    - form "bound": eta_t = min(eta, 1 / (4 L tau)), which needs L and eta.

    What is returned is (eta_t / eta) g, as eta itself is in the server optimizer.

    Args:
      client_learning_rate: for g.
      threshold: tau_C, the concurrency.
      form: see above.
      smoothness: L, for "bound".
      server_learning_rate: eta, for "bound".

    Reports: factor, eta_t / eta (0 for a trip dropped).
    """

    def __init__(
        self,
        client_learning_rate: float,
        threshold: float,
        form: str = "scale",
        smoothness: float | None = None,
        server_learning_rate: float | None = None,
    ):
        self.client_learning_rate = client_learning_rate
        self.threshold = threshold
        self.form = form
        self.smoothness = smoothness
        self.server_learning_rate = server_learning_rate

    def factor(self, staleness) -> float:
        if staleness <= self.threshold:
            return 1.0
        if self.form == "scale":
            return self.threshold / staleness
        if self.form == "drop":
            return 0.0
        largest = 1.0 / (4.0 * self.smoothness * staleness)
        return min(self.server_learning_rate, largest) / self.server_learning_rate

    def pseudo_gradient(self, params, trips):
        (trip,) = trips
        factor = self.factor(trip.staleness)
        self.reports.append({"factor": factor})
        if self.form == "drop" and factor == 0.0:
            return None
        return scale(factor, gradient_of(trip, self.client_learning_rate))


class Malenia(ReportingRule):
    """Malenia SGD: the direction (1/N) sum_i (1/B_i) sum_j g_ij; client i has brought B_i gradients in this step.

    Reports: factors, 1 / (N B_i) of each trip.
    """

    def __init__(self, client_learning_rate: float):
        self.client_learning_rate = client_learning_rate

    def pseudo_gradient(self, params, trips):
        by_client: dict[int, list] = {}
        for trip in trips:
            by_client.setdefault(trip.client, []).append(gradient_of(trip, self.client_learning_rate))
        if len(by_client) != self.num_clients:
            raise ValueError("Malenia waits for every client")
        means = [weighted_sum([1.0 / len(each)] * len(each), each) for each in by_client.values()]
        self.reports.append(
            {"factors": [1 / self.num_clients / len(by_client[trip.client]) for trip in trips]}
        )
        return weighted_sum([1.0 / self.num_clients] * len(means), means)

    def begin(self, params, num_clients):
        super().begin(params, num_clients)
        self.num_clients = num_clients


class FedFix(ReportingRule):
    """FedFix: w <- w + sum_i d_i D_i with d_i = ceil(tau_i / dt) / N, tau_i the duration of the trip.

    every: dt.

    Reports: factors, d_i of each trip.
    """

    def __init__(self, every: float):
        self.every = every

    def begin(self, params, num_clients):
        super().begin(params, num_clients)
        self.num_clients = num_clients

    def pseudo_gradient(self, params, trips):
        taken = [trip.arrival_time - trip.download_time for trip in trips]
        weights = [math.ceil(each / self.every) / self.num_clients for each in taken]
        self.reports.append({"factors": weights})
        if not trips:
            return zeros_like(params)
        return scale(-1.0, weighted_sum(weights, [trip.update for trip in trips]))


class Ringleader(ReportingRule):
    """Ringleader ASGD: two tables of gradients; each step is made by the client whose gradient came last.

    Table: {client: its gradients}. With each step all that has arrived since the one before goes into the tables as
    it came: until a round's first step into the current one; later on, what the round's other clients bring for their
    own step into the current one, and before that step is made; all else into the next one.
    """

    def __init__(self, client_learning_rate: float):
        self.client_learning_rate = client_learning_rate

    def begin(self, params, num_clients):
        super().begin(params, num_clients)
        self.num_clients = num_clients
        self.current, self.next, self.stepped = {}, {}, set()

    def pseudo_gradient(self, params, trips):
        for trip in trips:
            table = self.next if trip.client in self.stepped else self.current
            table.setdefault(trip.client, []).append(gradient_of(trip, self.client_learning_rate))
        if len(self.current) != self.num_clients:
            raise ValueError("a step of Ringleader needs a gradient of every client")
        means = [weighted_sum([1.0 / len(each)] * len(each), each) for each in self.current.values()]
        direction = weighted_sum([1.0 / self.num_clients] * len(means), means)
        self.reports.append({"counts": {client: len(each) for client, each in self.current.items()}})
        self.stepped.add(trips[-1].client)
        if len(self.stepped) == self.num_clients:
            self.current, self.next, self.stepped = self.next, {}, set()
        return direction


class GeneralizedAsyncSGD(ReportingRule):
    """Generalized AsyncSGD: w <- w - eta / (N p_i) g, one arrival per step.

    Args:
      client_learning_rate: for g.
      probabilities: p_i of each client.

    Reports: factor, 1 / (N p_i).
    """

    def __init__(self, client_learning_rate: float, probabilities):
        self.client_learning_rate = client_learning_rate
        self.probabilities = probabilities

    def pseudo_gradient(self, params, trips):
        (trip,) = trips
        factor = 1 / (len(self.probabilities) * self.probabilities[trip.client])
        self.reports.append({"factor": factor})
        return scale(factor, gradient_of(trip, self.client_learning_rate))


class RescaledASGD(ReportingRule):
    """Rescaled ASGD: w <- w - eta_i g, one arrival per step, with eta_i = eta tau_i (1/N) sum_j 1 / tau_j.

    tau_i is known beforehand: `foresee` is told the client and the duration of all trips that will be applied.

    Args:
      client_learning_rate: for g.
      durations: "mean": tau_i is the mean duration of client i's trips; "trip": in the numerator the duration of
        the trip itself; "frequency": one over the number of its trips. N and j: the clients that arrive at all.

    Reports: factor, eta_i / eta.
    """

    def __init__(self, client_learning_rate: float, durations: str = "mean"):
        self.client_learning_rate = client_learning_rate
        self.durations = durations

    def foresee(self, trips):
        """trips: (client, duration) of each trip that will be applied."""
        taken = {}
        for client, duration in trips:
            taken.setdefault(client, []).append(duration)
        frequency = self.durations == "frequency"
        self.tau = {
            client: 1 / len(each) if frequency else sum(each) / len(each) for client, each in taken.items()
        }

    def pseudo_gradient(self, params, trips):
        (trip,) = trips
        rates = sum(1 / tau for tau in self.tau.values()) / len(self.tau)
        own = trip.arrival_time - trip.download_time if self.durations == "trip" else self.tau[trip.client]
        self.reports.append({"factor": own * rates})
        return scale(own * rates, gradient_of(trip, self.client_learning_rate))


# FADAS: a step of the server that is smaller where the buffer is late.


class FADAS(ReportingRule):
    """FADAS algorithm 1: (1/K) sum D_i goes into the server's AMSGrad, which steps with eta_t.

    With tau_max the largest tau of the step's trips, eta_t = eta if tau_max <= tau_c. Otherwise

    - form "paper": eta_t = min(eta, 1 / tau_max), which needs eta;
    - form "release": eta_t = eta / tau_max.

    Reports: factor, eta_t / eta.
    """

    def __init__(self, form: str, threshold: int, server_learning_rate: float | None = None):
        self.form = form
        self.threshold = threshold
        self.server_learning_rate = server_learning_rate

    def pseudo_gradient(self, params, trips):
        late = max(trip.staleness for trip in trips)
        self.step_scale = 1.0
        if late > self.threshold:
            rate = self.server_learning_rate
            self.step_scale = 1.0 / late if self.form == "release" else min(rate, 1.0 / late) / rate
        self.reports.append({"factor": self.step_scale})
        return scale(-1.0, mean_of([trip.update for trip in trips]))


class AMSGrad:
    """The server optimizer of FADAS, in three forms.

    m <- b1 m + (1 - b1) g; v <- b2 v + (1 - b2) g². With t counting from 1,

    - "paper" (algorithm 1): v^ <- max(v^, v); w <- w - eta m / (sqrt(v^) + epsilon);
    - "release" (the authors' code): the same v^; m' = m / (1 - b1^t); w <- w - eta m' / (sqrt(v^) / sqrt(1 - b2^t) +
      epsilon);
    - "optax": v^ <- max(v^, v / (1 - b2^t)); w <- w - eta m' / (sqrt(v^) + epsilon).
    """

    def __init__(self, learning_rate, form="paper", b1=0.9, b2=0.99, epsilon=1e-8):
        self.learning_rate, self.form = learning_rate, form
        self.b1, self.b2, self.epsilon = b1, b2, epsilon

    def begin(self, params):
        self.t = 0
        self.m = self.v = self.largest = zeros_like(params)

    def apply(self, params, gradient):
        self.t += 1
        self.m = add(scale(self.b1, self.m), scale(1 - self.b1, gradient))
        self.v = add(scale(self.b2, self.v), scale(1 - self.b2, tree_map(np.square, gradient)))
        missing = 1 - self.b2**self.t
        compared = scale(1 / missing, self.v) if self.form == "optax" else self.v
        self.largest = tree_map(np.maximum, self.largest, compared)
        root = tree_map(np.sqrt, self.largest)
        m = self.m
        if self.form != "paper":
            m = scale(1 / (1 - self.b1**self.t), m)
        if self.form == "release":
            root = scale(1 / math.sqrt(missing), root)
        direction = tree_map(lambda m, r: m / (r + self.epsilon), m, root)
        return subtract(params, scale(self.learning_rate, direction))


# A gradient or an update stored per client.


class GradientCacheRule(ReportingRule):
    """What ACE and ACED share: the newest gradient of every client, in `cache`, all there from step 0 on.

    Step 0 takes N trips, one of each client, trained from w0: `first_buffer_size = concurrency = num_clients`
    in the simulator. Every later step takes one trip in the paper. Here it may take several, as where delays
    count server iterations: their gradients are stored one after the other, so of a client with two trips in
    one step the last stays, and then the server makes one step.

    Args:
      client_learning_rate: for g.
      quantise: g -> what the cache holds of it (ACE F.3.3: `unbiased_8_bit`); g itself unless given. Nothing
        but the stored value is used, not even for the gradient that has just arrived.
    """

    def __init__(self, client_learning_rate: float, quantise=None):
        self.client_learning_rate = client_learning_rate
        self.quantise = (lambda gradient: gradient) if quantise is None else quantise

    def begin(self, params, num_clients):
        super().begin(params, num_clients)
        self.step = 0  # t
        self.cache = {}

    def receive(self, trips) -> None:
        """Stores the gradients that have arrived."""
        name = type(self).__name__
        if self.step == 0:
            if sorted(trip.client for trip in trips) != list(range(self.num_clients)):
                raise ValueError(f"step 0 of {name} takes one trip of each of the {self.num_clients} clients")
            if any(trip.staleness != 0 for trip in trips):
                raise ValueError(f"step 0 of {name} takes trips trained from the initial model")
        for trip in trips:
            self.cache[trip.client] = self.quantise(gradient_of(trip, self.client_learning_rate))


class ACE(GradientCacheRule):
    """ACE algorithm 1 (direct aggregation) and equation 5: w <- w - eta u, u = (1/N) sum_i cache_i.

    cache_i is the newest gradient of client i, those that have just arrived included.
    """

    def pseudo_gradient(self, params, trips):
        self.receive(trips)
        self.step += 1
        self.reports.append({})
        return mean_of([self.cache[client] for client in range(self.num_clients)])


class IncrementalACE(GradientCacheRule):
    """ACE algorithm a.5: u <- u + (g_new - g_previous) / N, where u at step 0 is the mean of all gradients.

    g_previous is the gradient that the cache held of this client. Of several trips each changes u so.
    """

    def pseudo_gradient(self, params, trips):
        if self.step == 0:
            self.receive(trips)
            self.direction = mean_of([self.cache[client] for client in range(self.num_clients)])
        else:
            for trip in trips:
                previous = self.cache[trip.client]
                self.receive([trip])
                change = subtract(self.cache[trip.client], previous)
                self.direction = add(self.direction, scale(1.0 / self.num_clients, change))
        self.step += 1
        self.reports.append({})
        return self.direction


class ACED(GradientCacheRule):
    """ACED (ACE algorithm a.1): like ACE, but over the clients heard of lately.

    At step t >= 1: store the gradient that has arrived from client j; the active set is
    A(t) = {i : t - t_i^start <= tau_algo}, with the t_j^start from before; w <- w - eta * (the mean of
    cache_i over A(t)), or no step at all if A(t) is empty; then t_j^start <- t + 1, the version that client j
    now gets. t_i^start = 1 for all at first, and step 0 uses everybody. So what counts for the arriving client
    is how long its trip took, and for the others how long they have been under way. (So A(t) is never empty:
    the client of step t - 1 has t^start = t. With age "cached" it can be.) Of several trips in a step all are
    stored first; A(t) is taken once, with the t_j^start from before for every client j that has arrived; then
    t_j^start <- t + 1 for each of them, also where a client in a buffer has begun its next trip before the step.
    Ages count server steps, however many trips these take.

    Args:
      client_learning_rate: for g.
      threshold: tau_algo, at least 1. From `threshold` = the number of steps on, this is ACE.
      age: "start" as above, or "cached": t_i^start is the version that client i's *cached* gradient was
        computed from, as ACE's notation (A.2) has it; for client j that is the gradient just stored.
      quantise: see `GradientCacheRule`.

    Reports: active, the clients of A(t), in client order.
    """

    def __init__(self, client_learning_rate: float, threshold: int, age: str = "start", quantise=None):
        super().__init__(client_learning_rate, quantise)
        self.threshold = threshold
        self.age = age

    def begin(self, params, num_clients):
        super().begin(params, num_clients)
        self.started = [1] * num_clients  # t_i^start for age "start"
        self.cached_from = [0] * num_clients  # t_i^start for age "cached"

    def pseudo_gradient(self, params, trips):
        self.receive(trips)
        everybody = range(self.num_clients)
        if self.step == 0:
            active = list(everybody)
        else:
            for trip in trips:
                self.cached_from[trip.client] = self.step - trip.staleness
            since = self.started if self.age == "start" else self.cached_from
            active = [client for client in everybody if self.step - since[client] <= self.threshold]
            for trip in trips:
                self.started[trip.client] = self.step + 1
        self.step += 1
        self.reports.append({"active": active})
        return mean_of([self.cache[client] for client in active]) if active else None


class CA2FL(ReportingRule):
    """CA²FL (ACE algorithm a.3): w <- w + eta v, v = h + (1/|S|) sum over trips of (D_i - h_i).

    h_i is the stored update of client i, 0 at first; h is the mean of h_i over all N clients, taken before
    this step; S is the set of different clients among the trips of this step.

    Args:
      changes: when h_i becomes D_i. "arrival": at once (lines 6 and 7 as a program), so that of a client with
        two trips in one step the first cancels, and its last D_i counts once. "step": with the step (the
        indices t and t + 1 of lines 6 and 7), so that both trips count, each against the same h_i, and h_i
        becomes the last D_i. |S| counts the client once either way.

    Reports: clients, |S|.
    """

    def __init__(self, changes: str = "arrival"):
        self.changes = changes

    def begin(self, params, num_clients):
        super().begin(params, num_clients)
        self.stored = [zeros_like(params) for _ in range(num_clients)]

    def pseudo_gradient(self, params, trips):
        mean_stored = mean_of(self.stored)
        before_the_step = list(self.stored)
        calibrated = zeros_like(params)
        for trip in trips:
            seen = self.stored if self.changes == "arrival" else before_the_step
            calibrated = add(calibrated, subtract(trip.update, seen[trip.client]))
            self.stored[trip.client] = trip.update
        clients = len({trip.client for trip in trips})
        self.reports.append({"clients": clients})
        return scale(-1.0, add(mean_stored, scale(1.0 / clients, calibrated)))


class MIFA(ReportingRule):
    """MIFA algorithm 1: w <- w + eta (1/N) sum over all clients of G_i; G_i <- D_i for the trips of this step.

    G_i is 0 until client i has been heard. quantise: D -> what is stored of it; D itself unless given.
    """

    def __init__(self, quantise=None):
        self.quantise = (lambda update: update) if quantise is None else quantise

    def begin(self, params, num_clients):
        super().begin(params, num_clients)
        self.memory = [zeros_like(params) for _ in range(num_clients)]

    def pseudo_gradient(self, params, trips):
        for trip in trips:
            self.memory[trip.client] = self.quantise(trip.update)
        self.reports.append({})
        return scale(-1.0, mean_of(self.memory))


class DuDeASGD(ReportingRule):
    """DuDe-ASGD: w <- w - eta (1/N) sum over all clients of their newest gradients; step 0 takes one of each."""

    def __init__(self, client_learning_rate: float):
        self.client_learning_rate = client_learning_rate

    def begin(self, params, num_clients):
        super().begin(params, num_clients)
        self.newest = {}

    def pseudo_gradient(self, params, trips):
        for trip in trips:
            self.newest[trip.client] = gradient_of(trip, self.client_learning_rate)
        self.reports.append({})
        return mean_of([self.newest[client] for client in range(self.num_clients)])


class AREA(ReportingRule):
    """AREA: w <- w + (1/N) sum over the trips of this step of (y_i - y_i'), then y_i' <- y_i; y_i' = w_0 at first."""

    def begin(self, params, num_clients):
        super().begin(params, num_clients)
        self.sent = [params] * num_clients

    def pseudo_gradient(self, params, trips):
        received = zeros_like(params)
        for trip in trips:
            received = add(received, subtract(trip.trained, self.sent[trip.client]))
            self.sent[trip.client] = trip.trained
        self.reports.append({})
        return scale(-1.0 / self.num_clients, received)


class FedFa(ReportingRule):
    """FedFa: one arrival a step. Of models: w <- the mean of the last K models that have arrived.

    Before K have, w_0 stands for those that lack. Of updates: w <- w + eta (the sum of the last K updates) / K.
    """

    def __init__(self, window: int, of_models: bool):
        self.window, self.of_models = window, of_models

    def begin(self, params, num_clients):
        super().begin(params, num_clients)
        self.last = [params if self.of_models else zeros_like(params)] * self.window

    def pseudo_gradient(self, params, trips):
        (trip,) = trips
        self.last = [*self.last, trip.trained if self.of_models else trip.update][-self.window :]
        self.reports.append({})
        mean = mean_of(self.last)
        return subtract(params, mean) if self.of_models else scale(-1.0, mean)


# The K gradients of a step.


def stale_exponential(staleness) -> float:
    """(e/2)^-tau, with e = 2.718...: the weight of TWAFL and of WKAFL's equation 5."""
    return (math.e / 2.0) ** -staleness


class TWAFL(ReportingRule):
    """TWAFL as WKAFL §6.1.2 states it: w <- w - eta sum_i (m_i / m) (e/2)^-tau_i g_i.

    m_i is how many examples the trip used (its minibatch), m the sum of m_i over this step. The weights do not
    sum to 1: a buffer of stale gradients takes a small step.

    Reports: weights, (m_i / m) (e/2)^-tau_i.
    """

    def __init__(self, client_learning_rate: float):
        self.client_learning_rate = client_learning_rate

    def pseudo_gradient(self, params, trips):
        shares = normalized([trip.batch_examples for trip in trips])
        weights = [
            share * stale_exponential(trip.staleness) for share, trip in zip(shares, trips, strict=True)
        ]
        self.reports.append({"weights": weights})
        return weighted_sum(weights, [gradient_of(trip, self.client_learning_rate) for trip in trips])


class SASGD(ReportingRule):
    """Staleness-aware SGD (WKAFL §6.1.2): w <- w - (1/K) sum_i eta_0 / (tau_i + 1) g_i.

    The paper divides by its tau, which starts at 1; here a fresh trip has tau = 0. eta_0 is the server's
    learning rate.

    Reports: weights, 1 / (K (tau_i + 1)).
    """

    def __init__(self, client_learning_rate: float):
        self.client_learning_rate = client_learning_rate

    def pseudo_gradient(self, params, trips):
        weights = [1.0 / (len(trips) * (trip.staleness + 1)) for trip in trips]
        self.reports.append({"weights": weights})
        return weighted_sum(weights, [gradient_of(trip, self.client_learning_rate) for trip in trips])


class GSGM(ReportingRule):
    """GSGM as WKAFL §6.1.2 has it in words: w <- w - eta u_j, u_j = (1/K) sum_i g_i + momentum * M_r.

    r is the round that step j belongs to; M_0 = 0, and M_(r+1) is the mean of the u_j over the steps of round
    r. The protocol of the rounds, in which a client that has contributed waits until all have, belongs to the
    simulator; this rule only tells rounds apart.

    Args:
      client_learning_rate: for g.
      momentum: the paper's alpha.
      round_of: trip -> the number of its round. Unless given, a round ends when every client has contributed
        since it began, with the trip that completes it.

    A step belongs to the round of its first trip. (Rounds and steps end together when K divides N. Otherwise
    a step may hold the last trips of one round and the first of the next.)

    Reports: round, r.
    """

    def __init__(self, client_learning_rate: float, momentum: float, round_of=None):
        self.client_learning_rate = client_learning_rate
        self.momentum = momentum
        self.round_of = round_of

    def begin(self, params, num_clients):
        super().begin(params, num_clients)
        self.round = 0  # of the newest step
        self.round_momentum = zeros_like(params)  # M_r
        self.directions = []  # the u_j of this round so far
        self.detected_round = 0  # of the next trip, and who has contributed to it
        self.contributed = set()

    def rounds(self, trips) -> list[int]:
        """The round of each trip of this step."""
        if self.round_of is not None:
            return [self.round_of(trip) for trip in trips]
        rounds = []
        for trip in trips:
            rounds.append(self.detected_round)
            self.contributed.add(trip.client)
            if len(self.contributed) == self.num_clients:
                self.detected_round += 1
                self.contributed = set()
        return rounds

    def pseudo_gradient(self, params, trips):
        this_round = self.rounds(trips)[0]
        if this_round != self.round:
            self.round = this_round
            self.round_momentum = mean_of(self.directions)
            self.directions = []
        mean = mean_of([gradient_of(trip, self.client_learning_rate) for trip in trips])
        direction = add(mean, scale(self.momentum, self.round_momentum))
        self.directions.append(direction)
        self.reports.append({"round": this_round})
        return direction


class WKAFL(ReportingRule):
    """WKAFL, algorithms 2 and 3, on the K trips of a step. In this order:

    1. equation 4: g~_i = g_i + momentum * estimate, with the estimate of the step before (0 at first);
    2. stage two begins if the mean of the K losses, each of the trip's first minibatch at the model
       downloaded, is below `stage_two_loss` (section 4.3.3), or with `stage_two_by="sum"` if their sum is at
       most that (algorithm 2, line 10); it is never left;
    3. clip each g~_i to the norm `clip_bound`;
    4. equation 5: estimate = sum a_i g~_i / sum a_i, a_i = (e/2)^-(tau_i - tau_min);
    5. equations 6 to 8: keep those with cos(g~_i, estimate) >= `minimum_similarity`, with weights p_i
       proportional to exp(cosine_weight * cos), summing to 1 over those kept;
    6. equation 9: in stage two, clip each g~_i to the norm `stage_two_bound` * ||estimate||;
    7. the aggregate is sum p_i g~_i; if nobody was kept, it is the estimate itself;
    8. equation 10: eta_j = eta_0 / (1 + learning_rate_decay * tau_min).

    What is returned is (eta_j / eta_0) * aggregate; eta_0 is the server's learning rate. The cosine with a
    vector of length 0 is 0. All norms are over all parameters together.

    Args (the paper's letters):
      client_learning_rate: for g.
      momentum: alpha.
      clip_bound: CB; no clipping unless given.
      minimum_similarity: sim_min.
      cosine_weight: beta.
      stage_two_loss: epsilon. A loss is never below 0, so that stage two never begins unless this is given.
      stage_two_bound: B; no clipping in stage two unless given.
      learning_rate_decay: gamma.
      without: the ablations of §6.2. "gradient_selection": the aggregate is the estimate, steps 5 to 7 are
        left out. "staleness": a_i = 1 and gamma = 0. "non_iid": alpha = 0.

    Reports: stage; losses_mean; cosines (None without gradient selection); kept, how many passed; weights,
    the p_i, or where the aggregate is the estimate a_i / sum a_i; factor, eta_j / eta_0.
    """

    def __init__(
        self,
        client_learning_rate: float,
        *,
        momentum: float,
        minimum_similarity: float,
        cosine_weight: float,
        learning_rate_decay: float,
        clip_bound: float | None = None,
        stage_two_loss: float = 0.0,
        stage_two_bound: float | None = None,
        without: str | None = None,
        stage_two_by: str = "mean",
    ):
        self.stage_two_by = stage_two_by
        self.client_learning_rate = client_learning_rate
        self.momentum = 0.0 if without == "non_iid" else momentum
        self.minimum_similarity = minimum_similarity
        self.cosine_weight = cosine_weight
        self.learning_rate_decay = 0.0 if without == "staleness" else learning_rate_decay
        self.clip_bound = clip_bound
        self.stage_two_loss = stage_two_loss
        self.stage_two_bound = stage_two_bound
        self.without = without

    def begin(self, params, num_clients):
        super().begin(params, num_clients)
        self.stage = 1
        self.estimate = zeros_like(params)

    def pseudo_gradient(self, params, trips):
        gradients = [
            add(gradient_of(trip, self.client_learning_rate), scale(self.momentum, self.estimate))
            for trip in trips
        ]

        losses_mean = sum(trip.loss for trip in trips) / len(trips)
        if self.stage_two_by == "mean":
            begins = losses_mean < self.stage_two_loss
        else:
            begins = sum(trip.loss for trip in trips) <= self.stage_two_loss
        if begins:
            self.stage = 2

        gradients = [clip(gradient, self.clip_bound) for gradient in gradients]

        freshest = min(trip.staleness for trip in trips)
        if self.without == "staleness":
            estimate_weights = normalized([1.0 for trip in trips])
        else:
            estimate_weights = normalized([stale_exponential(trip.staleness - freshest) for trip in trips])
        self.estimate = weighted_sum(estimate_weights, gradients)

        if self.without == "gradient_selection":
            cosines, kept = None, len(trips)
        else:
            cosines = [cosine(gradient, self.estimate) for gradient in gradients]
            kept = sum(similarity >= self.minimum_similarity for similarity in cosines)

        if self.without == "gradient_selection" or kept == 0:
            weights, aggregate = estimate_weights, self.estimate
        else:
            # Divided by exp(cosine_weight * the largest cosine), which cancels: no power is above 1.
            largest = max(cosines)
            weights = normalized(
                [
                    math.exp(self.cosine_weight * (similarity - largest))
                    if similarity >= self.minimum_similarity
                    else 0.0
                    for similarity in cosines
                ]
            )
            if self.stage == 2 and self.stage_two_bound is not None:
                bound = self.stage_two_bound * norm(self.estimate)
                gradients = [clip(gradient, bound) for gradient in gradients]
            aggregate = weighted_sum(weights, gradients)

        factor = 1.0 / (1.0 + self.learning_rate_decay * freshest)
        self.reports.append(
            {
                "stage": self.stage,
                "losses_mean": losses_mean,
                "cosines": cosines,
                "kept": kept,
                "weights": weights,
                "factor": factor,
            }
        )
        return scale(factor, aggregate)


class PORT(ReportingRule):
    """PORT: w <- w + sum_i p_i D_i, the p_i of a step summing to 1.

    p_i is proportional to n_i (a B / (tau_i + B) + b (1 + cos_i) / 2), cos_i the cosine of D_i with what the server's
    model has changed by since the client's download: 1 where it has not, and 0 for D_i = 0.

    Reports: weights, the p_i in order of arrival.
    """

    def __init__(self, bound: float, a: float, b: float, weight_by_examples: bool = True):
        self.bound, self.a, self.b = bound, a, b
        self.weight_by_examples = weight_by_examples

    def weight(self, params, trip) -> float:
        moved = subtract(params, trip.start)
        similarity = 1.0 if norm(moved) == 0.0 else cosine(moved, trip.update)
        examples = trip.num_examples if self.weight_by_examples else 1
        fresh = self.bound / (trip.staleness + self.bound)
        return examples * (self.a * fresh + self.b * (1 + similarity) / 2)

    def pseudo_gradient(self, params, trips):
        weights = normalized([self.weight(params, trip) for trip in trips])
        self.reports.append({"weights": weights})
        return scale(-1.0, weighted_sum(weights, [trip.update for trip in trips]))


class AsyncFedED(ReportingRule):
    """AsyncFedED: w <- w + lambda / (gamma + epsilon) D, gamma = ||w - w_downloaded|| / ||D||; D = 0 moves nothing.

    One arrival a step; lambda is the server's learning rate.

    Reports: ratio, gamma (0 for D = 0).
    """

    def __init__(self, epsilon: float):
        self.epsilon = epsilon

    def pseudo_gradient(self, params, trips):
        (trip,) = trips
        length = norm(trip.update)
        if length == 0.0:
            self.reports.append({"ratio": 0.0})
            return zeros_like(params)
        ratio = norm(subtract(params, trip.start)) / length
        self.reports.append({"ratio": ratio})
        return scale(-1 / (ratio + self.epsilon), trip.update)


def cosine_gated(decay: float, cutoff: float):
    """CGAD's weight by staleness: e^(-decay tau), times a gate: a cosine that falls from 1 at 0 to 0 at `cutoff`."""

    def weight(staleness) -> float:
        if staleness >= cutoff:
            return 0.0
        return 0.5 * (1 + math.cos(math.pi * staleness / cutoff)) * math.exp(-decay * staleness)

    return weight


# Zeno++.


class ZenoPlusPlus(ReportingRule):
    """Zeno++ (Xie 2020): a gradient is used only if it agrees with one that the server computes itself.

    v is the gradient on the server's own data, of the model just before steps 0, k, 2k, ... and kept in
    between. The candidate g is made as long as v, g <- g ||v|| / ||g|| (a zero gradient stays zero), and
    accepted if its score gamma <v, g> - rho ||g||² is at least -gamma epsilon. Then w <- w - eta g; otherwise
    the step is skipped, which counts as a version and so brings the next refresh nearer too. One trip per
    step.

    Args:
      client_learning_rate: for g.
      server_gradient: params -> the gradient v on the server's data at params.
      refresh_every: k.
      gamma, rho, epsilon: of the score, WKAFL table 4. (In the paper gamma is also the learning rate; here
        that is the server optimizer's.)

    Reports: score; accepted.
    """

    def __init__(
        self,
        client_learning_rate: float,
        server_gradient,
        refresh_every: int = 1,
        gamma: float = 0.1,
        rho: float = 0.02,
        epsilon: float = 0.1,
    ):
        self.client_learning_rate = client_learning_rate
        self.server_gradient = server_gradient
        self.refresh_every = refresh_every
        self.gamma = gamma
        self.rho = rho
        self.epsilon = epsilon

    def begin(self, params, num_clients):
        super().begin(params, num_clients)
        self.step = 0

    def pseudo_gradient(self, params, trips):
        (trip,) = trips
        if self.step % self.refresh_every == 0:
            self.own_gradient = self.server_gradient(params)
        self.step += 1
        candidate = gradient_of(trip, self.client_learning_rate)
        length = norm(candidate)
        if length > 0.0:
            candidate = scale(norm(self.own_gradient) / length, candidate)
        score = self.gamma * inner_product(self.own_gradient, candidate)
        score = score - self.rho * inner_product(candidate, candidate)
        accepted = score >= -self.gamma * self.epsilon
        self.reports.append({"score": score, "accepted": accepted})
        return candidate if accepted else None


# FedNova.


class FedNova(ReportingRule):
    """FedNova for plain local SGD: w <- w + eta (sum_i p_i q_i) sum_i p_i D_i / q_i.

    q_i is the number of local steps of the trip and p_i the weight of its client: 1/K, or with
    `weight_by_examples` n_i / sum n_i, n_i being the size of the client's data set. So the mean number of
    steps is weighted like the updates are. The paper has no trips without steps: they are no part of the means.

    Args:
      local_steps: trip -> q_i.
      weight_by_examples: see above.

    Reports: mean_steps, sum p_i q_i.
    """

    def __init__(self, local_steps, weight_by_examples: bool = False):
        self.local_steps = local_steps
        self.weight_by_examples = weight_by_examples

    def pseudo_gradient(self, params, trips):
        trips = [trip for trip in trips if self.local_steps(trip) > 0]
        if not trips:
            self.reports.append({"mean_steps": 0.0})
            return zeros_like(params)
        shares = normalized([trip.num_examples if self.weight_by_examples else 1 for trip in trips])
        steps = [self.local_steps(trip) for trip in trips]
        per_step = [scale(1.0 / number, trip.update) for number, trip in zip(steps, trips, strict=True)]
        mean_steps = sum(share * number for share, number in zip(shares, steps, strict=True))
        self.reports.append({"mean_steps": mean_steps})
        return scale(-mean_steps, weighted_sum(shares, per_step))


# FedCompass.


class FedCompass(Rule):
    """FedCompass: w <- w + alpha sum_i s(tau_i) D_i / N, over those who arrive together, s = (1 + tau)^-exponent."""

    def __init__(self, exponent: float = 0.5):
        self.exponent = exponent

    def begin(self, params, num_clients):
        self.num_clients = num_clients

    def pseudo_gradient(self, params, trips):
        weights = [(1.0 + trip.staleness) ** -self.exponent / self.num_clients for trip in trips]
        return scale(-1.0, weighted_sum(weights, [trip.update for trip in trips]))


# FedAT.


class FedAT(ReportingRule):
    """FedAT: a step is a round of one tier, whose model becomes the mean of the models that its clients trained.

    Then w <- sum over the M tiers of (T_of_the_opposite_tier / T) w_tier, where T_tier counts rounds. tiers: of each
    client, 0 the fastest. first_count: what each T_tier starts at; all tiers' models start at w_0. opposite: whether
    a tier has the count of the opposite tier, or its own.

    Reports: weights, of the tiers' models.
    """

    def __init__(self, tiers, by_examples: bool = True, first_count: int = 1, opposite: bool = True):
        self.tiers, self.by_examples, self.first_count = tiers, by_examples, first_count
        self.opposite = opposite

    def begin(self, params, num_clients):
        super().begin(params, num_clients)
        number = max(self.tiers) + 1
        self.models, self.rounds = [params] * number, [self.first_count] * number

    def pseudo_gradient(self, params, trips):
        (tier,) = {self.tiers[trip.client] for trip in trips}
        shares = normalized([float(trip.num_examples) if self.by_examples else 1.0 for trip in trips])
        self.models[tier] = weighted_sum(shares, [trip.trained for trip in trips])
        self.rounds[tier] += 1
        weights = normalized(self.rounds[::-1] if self.opposite else self.rounds)
        self.reports.append({"weights": weights})
        return subtract(params, weighted_sum(weights, self.models))


# FAVAS.


class FAVAS(ReportingRule):
    """FAVAS: w <- (w + sum_i u_i) / (s + 1) over the s polled clients, u_i = x_i + D_i / alpha_i.

    alpha_i: the mean number of local steps of the client's trips; or with ``made``, this trip's own number times the
    share of the client's trips that have one at least. A trip of none gives u_i = x_i.

    server: whether w is one of the models of the mean.

    Reports: weights, 1 / ((s + 1) alpha_i) of each trip.
    """

    def __init__(self, made: bool = False, server: bool = True):
        self.made, self.server = made, server

    def foresee_steps(self, trips):
        self.steps_of: dict[int, list[int]] = {}
        for client, steps in trips:
            self.steps_of.setdefault(client, []).append(steps)

    def alpha(self, trip) -> float:
        steps = self.steps_of[trip.client]
        if self.made:
            return trip.local_steps * sum(number > 0 for number in steps) / len(steps)
        return sum(steps) / len(steps)

    def pseudo_gradient(self, params, trips):
        mean, weights = params if self.server else zeros_like(params), []
        for trip in trips:
            weights.append(1.0 / self.alpha(trip) if trip.local_steps else 0.0)
            mean = add(mean, add(trip.start, scale(weights[-1], trip.update)))
        size = len(trips) + self.server
        self.reports.append({"weights": [weight / size for weight in weights]})
        return subtract(params, scale(1.0 / size, mean))


# Server optimizers of asynchronous DiLoCo.


class HeLoCo:
    """HeLoCo: each array g of the gradient is corrected by the momentum m of that array, by their cosine c.

    conf = |g| / (|g| + kappa |m| + epsilon), v = m / |m|:

    - c >= c_ok: g;
    - c < 0: g - beta c |g| v, beta = min(k_s (-c) conf, beta_max);
    - otherwise |g| times the unit vector along (1 - l) g / |g| + l v, l = min(k_d (1 - c) conf, 1).

    m <- mu m + (1 - mu) G; w <- w - eta (G + mu m). `kinds` counts what happened to arrays, by "keep" and so on.
    """

    def __init__(self, learning_rate, mu, c_ok, k_s, beta_max, k_d, kappa, epsilon=1e-8):
        self.learning_rate, self.mu, self.c_ok, self.k_s = learning_rate, mu, c_ok, k_s
        self.beta_max, self.k_d, self.kappa, self.epsilon = beta_max, k_d, kappa, epsilon

    def begin(self, params):
        self.m = zeros_like(params)
        self.kinds = {"keep": 0, "shrink": 0, "turn": 0}

    def corrected(self, g, m):
        length, other = norm(g), norm(m)
        if length == 0 or other == 0:
            return g
        v, c = m / other, inner_product(g, m) / (length * other)
        confidence = length / (length + self.kappa * other + self.epsilon)
        if c >= self.c_ok:
            self.kinds["keep"] += 1
            return g
        if c < 0:
            self.kinds["shrink"] += 1
            return g - min(-self.k_s * c * confidence, self.beta_max) * c * length * v
        self.kinds["turn"] += 1
        share = min(self.k_d * (1 - c) * confidence, 1)
        mixed = (1 - share) * g / length + share * v
        return length * mixed / norm(mixed)

    def apply(self, params, gradient):
        kept = tree_map(self.corrected, gradient, self.m)
        self.m = add(scale(self.mu, self.m), scale(1 - self.mu, kept))
        return subtract(params, scale(self.learning_rate, add(kept, scale(self.mu, self.m))))


class DelayedNesterov:
    """Liu et al. 2024, algorithm 3: the momentum m changes with every N-th gradient, by the mean of the last N.

    At a step: w <- w - eta (c b m + g / N). At every N-th: m <- b m + that mean, and then
    w <- w - eta ((1 - cN + c) b m + g / N).
    """

    def __init__(self, learning_rate: float, momentum: float, period: int, c: float = 0.0):
        self.learning_rate, self.momentum, self.period, self.c = learning_rate, momentum, period, c

    def begin(self, params):
        self.m = zeros_like(params)
        self.gradients = []

    def apply(self, params, gradient):
        self.gradients.append(gradient)
        share = self.c
        if len(self.gradients) == self.period:
            self.m = add(scale(self.momentum, self.m), mean_of(self.gradients))
            self.gradients = []
            share = 1 - self.c * self.period + self.c
        direction = add(scale(share * self.momentum, self.m), scale(1 / self.period, gradient))
        return subtract(params, scale(self.learning_rate, direction))


# Clients that keep something between their trips.


class SCAFFOLD(Rule):
    """Karimireddy et al. 2020, algorithm 1, option II; a client downloads the c of its version with the model.

    y <- y - rate (g - c_i + c); c_i+ = c_i - c + (x - y) / (steps * rate); w <- w + mean (y - x);
    c <- c + (sum over the step's trips of c_i+ - c_i) / (number of clients). A trip without steps, which the paper
    does not have, changes no c_i.
    """

    def __init__(self, rate: float):
        self.rate = rate

    def begin(self, params, num_clients):
        self.control = {0: zeros_like(params)}  # by version
        self.own = [zeros_like(params) for _ in range(num_clients)]
        self.changes, self.counts = {}, {}

    def key(self, trip):
        return trip.client, trip.trip

    def correction(self, trip):
        c, c_i, key = self.control[trip.download_version], self.own[trip.client], self.key(trip)
        self.counts[key] = 0

        def corrected(gradient, params, downloaded):
            self.counts[key] += 1
            return add(subtract(gradient, c_i), c)

        return corrected

    def trained(self, trip):
        c, c_i, steps = (
            self.control[trip.download_version],
            self.own[trip.client],
            self.counts[self.key(trip)],
        )
        if steps == 0:
            self.changes[self.key(trip)] = zeros_like(c)
            return
        new = add(subtract(c_i, c), scale(-1 / (steps * self.rate), trip.update))
        self.changes[self.key(trip)] = subtract(new, c_i)
        self.own[trip.client] = new

    def sum_of_changes(self, trips):
        return weighted_sum([1.0] * len(trips), [self.changes[self.key(trip)] for trip in trips])

    def pseudo_gradient(self, params, trips):
        step = trips[0].step
        self.control[step + 1] = add(self.control[step], scale(1 / len(self.own), self.sum_of_changes(trips)))
        return scale(-1.0, mean_of([trip.update for trip in trips]))


class MasFL(SCAFFOLD):
    """Yan et al. 2025, as read by another group: u = beta (g - c_i + c) + (1 - beta) m; y <- y - rate u.

    c_i+ is the mean of the gradients. m <- beta (c + a) + (1 - beta) m, a = mean (c_i+ - c_i), with the old c. The
    server descends m; AdaMasFL, whose u is divided by its norm, mean (x - y) / (steps * rate).
    """

    def __init__(self, rate: float, beta: float, adaptive: bool):
        super().__init__(rate)
        self.beta, self.adaptive = beta, adaptive

    def begin(self, params, num_clients):
        super().begin(params, num_clients)
        self.momentum = {0: zeros_like(params)}
        self.gradients = {}

    def correction(self, trip):
        c, c_i, key = self.control[trip.download_version], self.own[trip.client], self.key(trip)
        m = self.momentum[trip.download_version]
        self.gradients[key] = []

        def corrected(gradient, params, downloaded):
            self.gradients[key].append(gradient)
            u = add(scale(self.beta, add(subtract(gradient, c_i), c)), scale(1 - self.beta, m))
            return scale(1 / norm(u), u) if self.adaptive else u

        return corrected

    def trained(self, trip):
        gradients = self.gradients[self.key(trip)]
        new = mean_of(gradients) if gradients else self.own[trip.client]
        self.changes[self.key(trip)] = subtract(new, self.own[trip.client])
        self.own[trip.client] = new

    def pseudo_gradient(self, params, trips):
        step, c = trips[0].step, self.control[trips[0].step]
        a = scale(1 / len(trips), self.sum_of_changes(trips))
        m = add(scale(self.beta, add(c, a)), scale(1 - self.beta, self.momentum[step]))
        self.momentum[step + 1] = m
        super().pseudo_gradient(params, trips)
        if not self.adaptive:
            return m
        steps = [max(len(self.gradients[self.key(trip)]), 1) for trip in trips]
        taken = [
            scale(-1 / (count * self.rate), trip.update) for count, trip in zip(steps, trips, strict=True)
        ]
        return mean_of(taken)


class FedDyn(Rule):
    """Acar et al. 2021, algorithm 1: y <- y - rate (g - h_i + alpha (y - x)); h_i <- h_i - alpha (y - x);
    h <- h - alpha (sum (y - x)) / (number of clients); w <- mean y - h / alpha, of y = w + (y - x)."""

    def __init__(self, alpha: float):
        self.alpha = alpha

    def begin(self, params, num_clients):
        self.h = zeros_like(params)
        self.own = [zeros_like(params) for _ in range(num_clients)]

    def correction(self, trip):
        h_i = self.own[trip.client]

        def corrected(gradient, params, downloaded):
            return add(subtract(gradient, h_i), scale(self.alpha, subtract(params, downloaded)))

        return corrected

    def trained(self, trip):
        self.own[trip.client] = subtract(self.own[trip.client], scale(self.alpha, trip.update))

    def pseudo_gradient(self, params, trips):
        total = weighted_sum([1.0] * len(trips), [trip.update for trip in trips])
        self.h = subtract(self.h, scale(self.alpha / len(self.own), total))
        after = subtract(mean_of([add(params, trip.update) for trip in trips]), scale(1 / self.alpha, self.h))
        return subtract(params, after)


class KeptMomentum(FedBuff):
    """FedBuff whose clients never forget their momentum: v_i <- momentum v_i + g at each of their local steps."""

    def __init__(self, momentum: float):
        super().__init__()
        self.momentum = momentum

    def begin(self, params, num_clients):
        super().begin(params, num_clients)
        self.velocity = [zeros_like(params) for _ in range(num_clients)]

    def correction(self, trip):
        def corrected(gradient, params, downloaded):
            kept = scale(self.momentum, self.velocity[trip.client])
            self.velocity[trip.client] = add(kept, gradient)
            return self.velocity[trip.client]

        return corrected


class Ditto(FedBuff):
    """FedBuff whose clients keep v_i, at first w_0: s times a trip, v_i <- v_i - eta (g(v_i) + lambda (v_i - x)).

    Li et al. 2021, algorithm 1; x is the downloaded model. g is of the trip's first s minibatches, which
    `draw_minibatches` tells: (client, trip, s) -> [(x, y)]. With s None there are as many steps as the trip has
    made; a trip without steps has none.
    """

    def __init__(self, strength: float, rate: float, steps: int | None = None):
        super().__init__()
        self.strength, self.rate, self.steps = strength, rate, steps

    def draw_minibatches_from(self, draw):
        self.draw_minibatches = draw

    def begin(self, params, num_clients):
        super().begin(params, num_clients)
        self.personal = [params for _ in range(num_clients)]

    def pseudo_gradient(self, params, trips):
        for trip in trips:
            if trip.batch_examples == 0:
                continue
            own = self.personal[trip.client]
            for x, y in self.draw_minibatches(trip.client, trip.trip, self.steps):
                gradient = objective(own, x, y)[1]
                pull = scale(self.strength, subtract(own, trip.start))
                own = subtract(own, scale(self.rate, add(gradient, pull)))
            self.personal[trip.client] = own
        return super().pseudo_gradient(params, trips)


# Compression of updates, with error feedback.


def as_vector(tree) -> list:
    """All numbers of a nested dict, its arrays in the order of their sorted names."""
    if isinstance(tree, dict):
        return [number for name in sorted(tree) for number in as_vector(tree[name])]
    return np.asarray(tree).ravel().tolist()


def from_vector(numbers: list, like):
    """The nested dict like `like` whose numbers these are; takes them out of the list."""
    if isinstance(like, dict):
        return {name: from_vector(numbers, like[name]) for name in sorted(like)}
    own = [numbers.pop(0) for _ in range(np.size(like))]
    return np.array(own).reshape(np.shape(like))


class TopK:
    """Stich et al., definition 2.1: the `kept` numbers of largest magnitude stay, the first of equal ones."""

    def __init__(self, kept: int):
        self.kept = kept

    def __call__(self, vector: list, uniform) -> list:
        order = sorted(range(len(vector)), key=lambda place: (-abs(vector[place]), place))
        sent = set(order[: self.kept])
        return [number if place in sent else 0.0 for place, number in enumerate(vector)]


class QSGD:
    """Alistarh et al., §3.1: Q(v_i) = ||v|| sign(v_i) xi_i, and Q(0) = 0.

    With l such that |v_i| / ||v|| lies in [l/s, (l+1)/s], xi_i is (l+1)/s with probability s |v_i| / ||v|| - l, and
    l/s else. That probability is met where a uniform number is not below its complement.
    """

    def __init__(self, levels: int):
        self.levels = levels

    def __call__(self, vector: list, uniform) -> list:
        length = math.sqrt(sum(number**2 for number in vector))
        if length == 0:
            return vector
        sent = []
        for number, chance in zip(vector, uniform, strict=True):
            share = self.levels * abs(number) / length
            level = math.floor(share)
            probability = share - level
            xi = (level + 1 if chance >= 1 - probability else level) / self.levels
            sent.append(length * math.copysign(1.0, number) * xi)
        return sent


class QuAFL(Rule):
    """QuAFL: client i trains from X_i to Y_i; w <- (w + sum_i Q(Y_i)) / (s + 1); X_i <- (w_before + s Y_i) / (s + 1).

    w_before is the server's model before the step, which the client has downloaded at its poll. compressor: Q sends
    Y_i - x_i, x_i the downloaded model, through it; None: nothing is lost. resets: whether X_i
    is the downloaded model.
    `draw_from` tells how to draw: (client, trip, size) -> uniform numbers.
    """

    def __init__(self, polled: int, compressor=None, resets: bool = False):
        self.polled, self.compressor, self.resets = polled, compressor, resets

    def draw_from(self, draw):
        self.draw = draw

    def begin(self, params, num_clients):
        self.own = [params] * num_clients  # each client's Y_i

    def first_model(self, trip):
        if self.resets:
            return trip.start
        return scale(1 / (self.polled + 1), add(trip.start, scale(self.polled, self.own[trip.client])))

    def trained(self, trip):
        self.own[trip.client] = trip.trained

    def pseudo_gradient(self, params, trips):
        total = params
        for trip in trips:
            if self.compressor is not None:
                whole = as_vector(trip.update)
                sent = self.compressor(whole, self.draw(trip.client, trip.trip, len(whole)))
                trip.update = from_vector(sent, trip.update)
            total = add(total, add(trip.start, trip.update))
        return subtract(params, scale(1 / (len(trips) + 1), total))


class Compressed(FedBuff):
    """FedBuff that gets C(D_i), or with error feedback C(D_i + e_i), where e_i <- D_i + e_i - C(D_i + e_i).

    e_i is 0 at first. Seide et al. 2014; Karimireddy et al. 2019, algorithm 2. A trip that is thrown away leaves e_i
    as it was.
    `draw_from` tells how to draw: (client, trip, size) -> uniform numbers.
    """

    def __init__(self, compressor, error_feedback: bool):
        super().__init__()
        self.compressor = compressor
        self.error_feedback = error_feedback

    def draw_from(self, draw):
        self.draw = draw

    def draw(self, client, trip, size):
        """Nothing, for a compressor that rounds nothing at random."""

    def left_out(self, update, whole, sent):
        """[d] e_i after a trip; update: D_i, whole: D_i + e_i, sent: what the server decodes."""
        return [number - own for number, own in zip(whole, sent, strict=True)]

    def begin(self, params, num_clients):
        super().begin(params, num_clients)
        self.errors = [zeros_like(params) for _ in range(num_clients)]

    def pseudo_gradient(self, params, trips):
        for trip in trips:
            if trip.batch_examples == 0:  # no local step: nothing is sent, and e_i stays
                continue
            whole = as_vector(add(trip.update, self.errors[trip.client]))
            sent = self.compressor(whole, self.draw(trip.client, trip.trip, len(whole)))
            left = self.left_out(as_vector(trip.update), whole, sent)
            trip.update = from_vector(sent, trip.update)
            if self.error_feedback:
                self.errors[trip.client] = from_vector(left, trip.update)
        return super().pseudo_gradient(params, trips)


class EF21(Rule):
    """Richtárik et al., algorithm 2: h_i <- h_i + C(D_i - h_i), h_i = 0 at first; the server descends -mean_i h_i.

    The mean is over all clients, those included that have not sent anything yet. A trip's update is what it sends.
    """

    def __init__(self, compressor):
        self.compressor = compressor

    def begin(self, params, num_clients):
        self.estimates = [zeros_like(params) for _ in range(num_clients)]

    def pseudo_gradient(self, params, trips):
        for trip in trips:
            change = as_vector(subtract(trip.update, self.estimates[trip.client]))
            trip.update = from_vector(self.compressor(change, None), trip.update)
            if trip.batch_examples == 0:  # no local step: nothing is sent
                trip.update = zeros_like(trip.update)
            self.estimates[trip.client] = add(self.estimates[trip.client], trip.update)
        return scale(-1.0, mean_of(self.estimates))


class QAFeL(Compressed):
    """Ortega and Jafarkhani, algorithm 1: clients train from h; h <- h + C(w - h) after each step, h_0 = w_0."""

    def __init__(self, broadcast_compressor, compressor, error_feedback: bool = False):
        super().__init__(compressor, error_feedback)
        self.broadcast_compressor = broadcast_compressor

    def begin(self, params, num_clients):
        super().begin(params, num_clients)
        self.hidden = {0: params}

    def downloaded(self, version, params):
        return self.hidden[version]

    def version_made(self, version, params):
        before = self.hidden[version - 1]
        change = self.broadcast_compressor(as_vector(subtract(params, before)), None)
        self.hidden[version] = add(before, from_vector(change, params))


# Server optimizers of Reddi et al., algorithm 2.


class ReddiOptimizer:
    """What the three share: m <- b1 m + (1 - b1) g; v changes; w <- w - learning_rate m / (sqrt(v) + epsilon).

    g is the pseudo-gradient (Reddi's Delta_t is -g: the signs of m and of the step turn, v does not see it).
    m is 0 at first, v is epsilon² in every entry, and there is no bias correction. epsilon is Reddi's tau.
    """

    def __init__(self, learning_rate: float, b1: float, epsilon: float):
        self.learning_rate = learning_rate
        self.b1 = b1
        self.epsilon = epsilon

    def begin(self, params):
        self.first = zeros_like(params)
        self.second = tree_map(lambda leaf: np.full_like(leaf, self.epsilon**2), zeros_like(params))

    def changed_second_moment(self, v, squares):
        """The new v of one array, from the old one and g²."""
        raise NotImplementedError

    def apply(self, params, gradient):
        squares = tree_map(np.square, gradient)
        self.first = add(scale(self.b1, self.first), scale(1.0 - self.b1, gradient))
        self.second = tree_map(self.changed_second_moment, self.second, squares)
        direction = tree_map(lambda m, v: m / (np.sqrt(v) + self.epsilon), self.first, self.second)
        return subtract(params, scale(self.learning_rate, direction))


class FedAdagrad(ReddiOptimizer):
    """v <- v + g². AdaGrad has no momentum unless asked: b1 = 0."""

    def __init__(self, learning_rate: float, b1: float = 0.0, epsilon: float = 1e-3):
        super().__init__(learning_rate, b1, epsilon)

    def changed_second_moment(self, v, squares):
        return v + squares


class FedAdam(ReddiOptimizer):
    """v <- b2 v + (1 - b2) g²."""

    def __init__(self, learning_rate: float, b1: float = 0.9, b2: float = 0.99, epsilon: float = 1e-3):
        super().__init__(learning_rate, b1, epsilon)
        self.b2 = b2

    def changed_second_moment(self, v, squares):
        return self.b2 * v + (1.0 - self.b2) * squares


class FedYogi(ReddiOptimizer):
    """v <- v - (1 - b2) g² sign(v - g²)."""

    def __init__(self, learning_rate: float, b1: float = 0.9, b2: float = 0.99, epsilon: float = 1e-3):
        super().__init__(learning_rate, b1, epsilon)
        self.b2 = b2

    def changed_second_moment(self, v, squares):
        return v - (1.0 - self.b2) * squares * np.sign(v - squares)
