"""Makes the files of conformance/vectors, by the reference simulator alone: the table of all vectors.

    python tests/reference/conformance_vectors.py      writes every vector, and removes files of vectors that are gone

conformance/README.md explains the format. A row of ``AGGREGATION`` is a rule of the reference with quadratic clients
and given trips; a row of ``SCHEDULES`` a protocol with given durations. What a usual mistake would give is computed
in the same way, with the row's fields changed as ``wrong`` says.
"""

import ast
import dataclasses
import json
import math
import pathlib
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import reference as ref
import reference_rules as papers

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER = ROOT / "conformance" / "vectors"
COMMAND = "python tests/reference/conformance_vectors.py"
FORMAT = 1

# {rule of jafl.rules: why it has no vector}
WITHOUT: dict[str, str] = {}
# {rule: why no trip of its vectors has a staleness above 1}
EVERY_CLIENT = "a step waits for a trip of every client, so that none misses two of them"
ROUND = "all start from the model of the last step"
# Rules, and schedules by the names of their files.
NEVER_STALE = {
    "malenia": EVERY_CLIENT,
    "schedule-malenia": EVERY_CLIENT,
    "schedule-k-synchronous": ROUND,
    "schedule-k-batch-synchronous": ROUND,
    "schedule-over-selection": ROUND,
    "schedule-deadline": ROUND,
    "schedule-polls": ROUND,
}

# Losses (1/2) sum a (x - b)^2 of three clients.
CURVATURE = [[1.0, 2.0], [0.5, 1.0], [2.0, 0.25]]
MINIMUM = [[1.0, 0.0], [-1.0, 2.0], [0.0, -1.0]]
EXAMPLES = [10, 30, 20]
BATCH_EXAMPLES = [4, 8, 2]

# Trips in the order in which the server applies them: who, from which version, in which step. Three clients train at
# any time, and each starts again from the newest model.
Trips = dict[str, list]
IN_PAIRS: Trips = {  # K = 2; steps 1 and 5 hold two trips of client 0
    "client": [0, 1, 0, 0, 1, 2, 1, 0, 1, 2, 0, 0],
    "download_version": [0, 0, 0, 1, 1, 0, 2, 2, 3, 3, 4, 5],
    "step": [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5],
}
ONE_BY_ONE: Trips = {
    "client": [0, 0, 1, 0, 2, 1, 0, 0, 2],
    "download_version": [0, 1, 0, 2, 0, 3, 4, 7, 5],
    "step": list(range(9)),
}
AFTER_A_ROUND: Trips = {  # all clients train from version 0 first
    "client": [0, 1, 2, 0, 0, 1, 0, 2, 1, 0, 0],
    "download_version": [0, 0, 0, 1, 2, 1, 3, 1, 4, 5, 8],
    "step": [0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8],
}
AFTER_A_ROUND_IN_PAIRS: Trips = {
    "client": [0, 1, 2, 0, 0, 1, 0, 2, 1, 0, 2],
    "download_version": [0, 0, 0, 1, 1, 1, 2, 1, 2, 3, 4],
    "step": [0, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4],
}
IN_ROUNDS: Trips = {  # a client that has trained waits until all have
    "client": [0, 1, 2, 1, 0, 2, 0, 2, 1],
    "download_version": [0, 0, 0, 3, 3, 3, 6, 6, 6],
    "step": list(range(9)),
}
OF_EVERY_CLIENT: Trips = {  # each step holds trips of all clients
    "client": [0, 1, 0, 2, 0, 1, 0, 2, 1, 1, 0, 2],
    "download_version": [0, 0, 0, 0, 0, 0, 1, 1, 1, 2, 1, 2],
    "step": [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2],
}
ROUNDS_OF_SINGLE_STEPS: Trips = {  # those of schedule-ringleader
    "client": [0, 0, 1, 0, 1, 2, 0, 0, 1, 0, 2, 1, 0, 0, 1, 2, 0, 1, 0, 0, 1, 2, 0, 1],
    "download_version": [0, 0, 0, 0, 0, 0, 0, 2, 1, 3, 1, 3, 3, 5, 4, 3, 5, 5, 6, 6, 6, 6, 7, 7],
    "step": [0, 0, 0, 0, 0, 0, 1, 2, 2, 3, 3, 3, 4, 5, 5, 5, 6, 6, 6, 6, 6, 6, 7, 8],
}
EVERY_1: Trips = {  # a step at the times 1, 2, ..., after which those that have arrived start again
    "client": [0, 1, 0, 2, 0, 1, 0, 0, 1, 2, 0],
    "download_version": [0, 0, 1, 0, 2, 2, 3, 4, 4, 3, 5],
    "step": [0, 1, 1, 2, 2, 3, 3, 4, 5, 5, 5],
    "download_time": [0.0, 0.0, 1.0, 0.0, 2.0, 2.0, 3.0, 4.0, 4.0, 3.0, 5.0],
    "arrival_time": [0.75, 1.5, 1.75, 2.5, 2.75, 3.5, 3.75, 4.75, 5.5, 5.5, 5.75],
}
IN_GROUPS: Trips = {  # first arrivals alone, then clients that arrive together, and late ones with them
    "client": [0, 0, 1, 0, 0, 2, 0, 1, 0, 1, 0, 2, 1, 0],
    "download_version": [0, 1, 0, 2, 4, 0, 5, 3, 7, 7, 8, 6, 9, 9],
    "step": [0, 1, 2, 3, 4, 5, 6, 6, 7, 8, 8, 8, 9, 9],
}
OF_TIERS: Trips = {  # rounds of clients 0 and 1, and of client 2 alone, each from the newest model
    "client": [0, 1, 0, 1, 2, 1, 0, 0, 1, 2],
    "download_version": [0, 0, 1, 1, 0, 2, 2, 4, 4, 3],
    "step": [0, 0, 1, 1, 2, 3, 3, 4, 4, 5],
}
TIERS = [0, 0, 1]
POLLS: Trips = {  # two clients hand over what they have made since their last poll, which may be nothing
    "client": [0, 1, 0, 1, 0, 2, 1, 2, 0, 1, 0, 2],
    "download_version": [0, 0, 1, 1, 2, 0, 2, 3, 3, 4, 5, 4],
    "step": [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5],
    "local_steps": [2, 1, 3, 0, 2, 2, 2, 1, 4, 1, 0, 1],
}
POLLS_BEFORE: Trips = {  # the same polls, but clients get the model from before the step
    **POLLS,
    "download_version": [0, 0, 0, 0, 1, 0, 1, 2, 2, 3, 4, 3],
}
WITH_TIMES: Trips = ONE_BY_ONE | {
    "download_time": [0.0, 1.0, 0.0, 2.0, 0.0, 2.5, 3.0, 4.75, 3.5],
    "arrival_time": [1.0, 2.0, 2.5, 3.0, 3.5, 4.5, 4.75, 5.25, 6.0],
}

TIMES = ("download_time", "arrival_time")

SGD, MOMENTUM = {"optimizer": "sgd", "learning_rate": 1.0}, {"optimizer": "sgd", "momentum": 0.5}
AMSGRAD = {"optimizer": "fedamsgrad", "b1": 0.9, "b2": 0.99, "epsilon": 1e-8, "learning_rate": 0.5}


@dataclasses.dataclass(frozen=True)
class Aggregation:
    """A rule, the world that it is tried in, and the mistakes that are usual.

    Args:
      name: of the file.
      call: of the rule in jafl.
      says: the equation in words, with K trips a step and N clients.
      rule: makes the reference's.
      wrong: {why: the fields that are then other ones}.
      trips: see above.
      server: the server's optimizer; ``optimizers`` has the reference's.
      steps: of each client's gradient descent, which has this ``rate``.
      start: the initial model.
      correction: how clients whose local steps are corrected train, by jafl's name; such updates are not given alone.
      compression: the entries of ``clients`` that say how updates are compressed; such are not given alone either.
      weighted: whether a step is w + learning_rate * sum weight_i update_i with weights that depend on no update.
      others: more numbers that stand in the file.
    """

    name: str
    call: str
    says: str
    rule: Callable[[], ref.Rule]
    wrong: dict[str, dict[str, Any]]
    trips: Trips = dataclasses.field(default_factory=lambda: IN_PAIRS)
    server: dict[str, Any] = dataclasses.field(default_factory=lambda: SGD)
    steps: tuple[int, ...] = (2, 2, 2)
    rate: float = 0.1
    start: tuple[float, ...] = (0.0, 0.0)
    correction: str | None = None
    compression: dict[str, Any] = dataclasses.field(default_factory=dict)
    weighted: bool = False
    others: dict[str, Any] = dataclasses.field(default_factory=dict)


def optimizer(server: dict[str, Any]) -> Any:
    """The reference's optimizer for the ``server`` of a vector."""
    numbers = {name: value for name, value in server.items() if name != "optimizer"}
    makers = {
        "sgd": ref.SGD,
        "adam": ref.Adam,
        "fedamsgrad": papers.AMSGrad,
        "reddi_adam": papers.FedAdam,
        "delayed_nesterov": lambda momentum_share=0.0, **others: papers.DelayedNesterov(
            c=momentum_share, **others
        ),
    }
    return makers[server["optimizer"]](**numbers)


def on_gradients(name: str, call: str, says: str, rule: Any, wrong: Any, **fields: Any) -> Aggregation:
    """A rule on gradients: one local step of rate 1, so that the update is minus the gradient."""
    fields = {"trips": ONE_BY_ONE, "server": SGD | {"learning_rate": 0.2}, **fields}
    return Aggregation(name, call, says, rule, wrong, steps=(1, 1, 1), rate=1.0, **fields)


def loss_and_gradient(client: int, x: np.ndarray) -> tuple[float, np.ndarray]:
    """Of a quadratic client at a model."""
    away = x - MINIMUM[client]
    return float(np.sum(CURVATURE[client] * away**2) / 2), CURVATURE[client] * away


def replay(vector: Aggregation, updates: dict[tuple[int, int], list[float]] | None = None) -> ref.Replay:
    """The reference's run of a vector; with ``updates``, {(client, trip): update}, the clients train nothing."""

    def client_update(client, trip, params, corrected=None):
        x, loss = params["w"], loss_and_gradient(client, params["w"])[0]
        for _ in range(made[client, trip] if made else vector.steps[client]):
            gradient = {"w": loss_and_gradient(client, x)[1]}
            if corrected is not None:
                gradient = corrected(gradient, {"w": x}, params)
            x = x - vector.rate * gradient["w"]
        update = x - params["w"] if updates is None else np.array(updates[client, trip])
        return {"w": update}, loss, BATCH_EXAMPLES[client]

    rule, columns = vector.rule(), vector.trips
    if hasattr(rule, "foresee"):
        taken = zip(columns["arrival_time"], columns["download_time"], strict=True)
        rule.foresee([*zip(columns["client"], (end - start for end, start in taken), strict=True)])
    made: dict[tuple[int, int], int] = {}  # local steps, where each trip has its own number
    for client, steps in zip(columns["client"], columns.get("local_steps", []), strict=False):
        made[client, sum(each == client for each, _ in made)] = steps
    if hasattr(rule, "foresee_steps"):
        rule.foresee_steps([(client, steps) for (client, _), steps in made.items()])
    params, clients = {"w": np.array(vector.start)}, len(EXAMPLES)
    simulation = ref._Simulation(
        params, clients, None, client_update, EXAMPLES, rule, optimizer(vector.server)
    )
    for step in range(max(columns["step"]) + 1):
        trips = []
        for place in np.flatnonzero(np.array(columns["step"]) == step):
            client, version = columns["client"][place], columns["download_version"][place]
            times = [columns[name][place] if name in columns else 0.0 for name in TIMES]
            trips.append(ref.Trip(client, simulation.trips_started[client], version, *times))
            trips[-1].local_steps = made.get((client, trips[-1].trip))
            simulation.trips_started[client] += 1
            simulation.train(trips[-1])
        simulation.server_step(trips, float(step))
    return simulation.replay([], [])


def weights(vector: Aggregation) -> list[float]:
    """[J]: with which factor each update enters the step that applies it, of a rule whose factors read no update."""
    found: list[float] = []
    whole = replay(vector)
    rule = vector.rule()
    if hasattr(rule, "foresee"):
        rule.foresee([(trip.client, trip.arrival_time - trip.download_time) for trip in whole.applied])
    rule.begin({"w": np.zeros(0)}, len(EXAMPLES))
    for step in range(len(whole.step_times)):
        trips = [trip for trip in whole.applied if trip.step == step]
        alone = np.eye(len(trips))
        changed = [
            dataclasses.replace(trip, update={"w": row}) for trip, row in zip(trips, alone, strict=True)
        ]
        direction = rule.pseudo_gradient({"w": alone[0]}, changed)
        found += [0.0] * len(trips) if direction is None else (0.0 - direction["w"]).tolist()
    return found


def paper(rule: str) -> str:
    """What stands in the last brackets of the first line of a rule's file, which is not imported."""
    text = (ROOT / "jafl" / "rules" / f"{rule}.py").read_text(encoding="utf-8")
    return re.findall(r"\(([^()]*)\)", (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0])[-1]


def aggregation_file(vector: Aggregation) -> dict[str, Any]:
    """What the file of a vector holds."""
    right = replay(vector)
    updates = {(trip.client, trip.trip): trip.update["w"].tolist() for trip in right.applied}
    known_wrong = []
    for why, changes in vector.wrong.items():
        changed = dataclasses.replace(vector, **changes)
        mistake = {"why": why, "last": replay(changed).params[-1]["w"].tolist()}
        if vector.correction is None and not vector.compression:
            mistake["last_with_updates_given"] = replay(changed, updates).params[-1]["w"].tolist()
        known_wrong.append(mistake)
    clients: dict[str, Any] = {"curvature": CURVATURE, "minimum": MINIMUM, "rate": vector.rate}
    clients |= {"steps": list(vector.steps), "examples": EXAMPLES, "batch_examples": BATCH_EXAMPLES}
    if vector.correction is not None:
        clients["correction"] = vector.correction
    clients |= vector.compression
    expected: dict[str, Any] = {"models": [params["w"].tolist() for params in right.params]}
    if vector.weighted:
        expected["weights"] = weights(vector)
    return {
        "format": FORMAT,
        "kind": "aggregation",
        "name": vector.name,
        "rule": vector.call.partition("(")[0],
        "paper": paper(vector.call.partition("(")[0]),
        "says": vector.says,
        "jafl": vector.call,
        "clients": clients,
        "server": vector.server,
        "start": list(vector.start),
        **vector.others,
        "trips": vector.trips | {"update": [trip.update["w"].tolist() for trip in right.applied]},
        "expected": expected,
        "known_wrong": known_wrong,
    }


class Mistaken(ref.Rule):
    """A rule with a mistake: what it sees of its trips is changed, or what it returns.

    Args:
      rule: without the mistake.
      trip: a trip -> what the rule sees of it.
      direction: (direction, model, trips) -> what is returned in its place.
    """

    def __init__(self, rule: ref.Rule, trip: Any = None, direction: Any = None):
        self.rule, self.trip, self.direction = rule, trip, direction

    def begin(self, params, num_clients):
        self.rule.begin(params, num_clients)

    def pseudo_gradient(self, params, trips):
        seen = [self.trip(trip) for trip in trips] if self.trip else trips
        direction = self.rule.pseudo_gradient(params, seen)
        self.step_scale = self.rule.step_scale
        return self.direction(direction, params, trips) if self.direction else direction


class WithWeights(ref.Rule):
    """-sum weight_i update_i, with ``weights``: the trips of a step -> their weights."""

    def __init__(self, weights: Callable[[list], list[float]]):
        self.weights = weights

    def pseudo_gradient(self, params, trips):
        return ref.scale(-1.0, ref.weighted_sum(self.weights(trips), [trip.update for trip in trips]))


def from_1(rule: Callable[[], ref.Rule]) -> dict[str, Any]:
    """The mistake that a fresh trip has staleness 1."""
    return {
        "rule": lambda: Mistaken(
            rule(), trip=lambda trip: dataclasses.replace(trip, staleness=trip.staleness + 1)
        )
    }


def times(rule: Callable[[], ref.Rule], factor: Callable[[list], float]) -> dict[str, Any]:
    """The mistake of a direction times a ``factor`` of the step's trips."""
    return {
        "rule": lambda: Mistaken(
            rule(), direction=lambda found, params, trips: ref.scale(factor(trips), found)
        )
    }


def summed(rule: Callable[[], ref.Rule]) -> dict[str, Any]:
    """The mistake of a sum in place of a mean."""
    return times(rule, len)


def weighted(weights_of_step: Callable[[list], list[float]]) -> dict[str, Any]:
    """The mistake of other weights."""
    return {"rule": lambda: WithWeights(weights_of_step)}


def root(trip) -> float:
    """FedBuff's weight."""
    return (1 + trip.staleness) ** -0.5


class OverwrittenFirst(papers.CA2FL):
    """The new update is written into the cache before the old one is taken from it: all differences are 0."""

    def pseudo_gradient(self, params, trips):
        mean_stored = papers.mean_of(self.stored)
        for trip in trips:
            self.stored[trip.client] = trip.update
        return ref.scale(-1.0, mean_stored)


class FAVASWith(papers.FAVAS):
    """FAVAS with another alpha, of the trip."""

    def __init__(self, alpha: Callable[[ref.Trip], float]):
        super().__init__()
        self.alpha = alpha


class StartsAtTheServer(Mistaken):
    """Updates count as if they had started at the server's newest model."""

    def foresee_steps(self, trips):
        self.rule.foresee_steps(trips)

    def pseudo_gradient(self, params, trips):
        return self.rule.pseudo_gradient(params, [dataclasses.replace(trip, start=params) for trip in trips])


class NewestRound(ref.Rule):
    """w <- the mean of the models of the round, by examples, as in FedAvg, whatever the other tiers have done."""

    def pseudo_gradient(self, params, trips):
        shares = papers.normalized([float(trip.num_examples) for trip in trips])
        return ref.subtract(params, ref.weighted_sum(shares, [trip.trained for trip in trips]))


class MeanAfterTheStep(papers.CA2FL):
    """h is the mean of what is stored after the step, not before."""

    def pseudo_gradient(self, params, trips):
        before = papers.mean_of(self.stored)
        direction = super().pseudo_gradient(params, trips)
        return ref.add(direction, ref.subtract(before, papers.mean_of(self.stored)))


class IncrementOverwrittenFirst(papers.IncrementalACE):
    """u <- u + (g_new - cache) / N with the cache written before: u never changes again."""

    def pseudo_gradient(self, params, trips):
        if self.step == 0:
            return super().pseudo_gradient(params, trips)
        return self.direction


class RestartedBefore(papers.ACED):
    """A(t) is taken after the arriving client has got its new start."""

    def pseudo_gradient(self, params, trips):
        for trip in trips:
            self.started[trip.client] = self.step + 1
        return super().pseudo_gradient(params, trips)


class FirstSentIsZero(papers.AREA):
    """What a client has sent before its first trip is 0, not the initial model."""

    def begin(self, params, num_clients):
        super().begin(params, num_clients)
        self.sent = [ref.zeros_like(params)] * num_clients


class ShortWindow(papers.FedFa):
    """The mean of those that have arrived, until the window is full."""

    def begin(self, params, num_clients):
        super().begin(params, num_clients)
        self.last = []


class ScaledBeforeTheMoments(ref.Rule):
    """FADAS whose small steps go into the optimizer's moments, too."""

    def __init__(self, form: str, rate: float):
        self.form, self.rate = form, rate

    def begin(self, params, num_clients):
        self.rule = papers.FADAS(self.form, 1, self.rate)
        self.rule.begin(params, num_clients)

    def pseudo_gradient(self, params, trips):
        direction = self.rule.pseudo_gradient(params, trips)
        return ref.scale(self.rule.step_scale, direction)


class CosineOfTheModel(papers.PORT):
    """The cosine is that of the client's model, not of its update."""

    def weight(self, params, trip):
        return super().weight(params, dataclasses.replace(trip, update=trip.trained))


class NewestLeftOut(papers.FedStaleWeight):
    """The average staleness of a client is that of its trips before this step."""

    def pseudo_gradient(self, params, trips):
        factor = len(trips) if self.weight == "equation_8" else 1
        expected = [self.expected_staleness(t.client) if self.past[t.client] else t.staleness for t in trips]
        for trip in trips:
            self.past[trip.client].append(trip.staleness)
        shares = papers.normalized([each * factor + 1.0 for each in expected])
        return ref.scale(-1.0, ref.weighted_sum(shares, [trip.update for trip in trips]))


class RefusedDoNotCount(papers.ZenoPlusPlus):
    """Steps that are refused do not bring the next gradient of the server's own nearer."""

    def pseudo_gradient(self, params, trips):
        found = super().pseudo_gradient(params, trips)
        if found is None:
            self.step -= 1
        return found


class Unscored(papers.ZenoPlusPlus):
    """Every gradient is accepted."""

    def pseudo_gradient(self, params, trips):
        found = super().pseudo_gradient(params, trips)
        return papers.gradient_of(trips[0], 1.0) if found is None else found


class MomentumOfEachStep(papers.GSGM):
    """The momentum is that of the last step, not the mean over the last round."""

    def rounds(self, trips):
        return [len(self.reports)]


class TwoRoundsAgo(papers.PORT):
    """The cosine is that with the change of the model over the last two steps, however stale the update is."""

    def begin(self, params, num_clients):
        super().begin(params, num_clients)
        self.seen = []

    def pseudo_gradient(self, params, trips):
        self.seen.append(params)
        before = self.seen[max(len(self.seen) - 3, 0)]
        return super().pseudo_gradient(params, [dataclasses.replace(trip, start=before) for trip in trips])


class SquaredDistances(papers.AsyncFedED):
    """gamma of squared norms."""

    def pseudo_gradient(self, params, trips):
        (trip,) = trips
        ratio = (ref.norm(ref.subtract(params, trip.start)) / ref.norm(trip.update)) ** 2
        return ref.scale(-1 / (ratio + self.epsilon), trip.update)


class OnlyChanges(papers.MIFA):
    """What has changed in the mean is added to the model, not the mean."""

    def pseudo_gradient(self, params, trips):
        before = papers.mean_of(self.memory)
        after = super().pseudo_gradient(params, trips)
        return ref.add(after, before)


class DividedByTheMean(papers.RescaledASGD):
    """p_i = d_i / (the mean of d_j)."""

    def pseudo_gradient(self, params, trips):
        taken = np.array(list(self.tau.values()))
        return ref.scale(1 / (np.mean(taken) * np.mean(1 / taken)), super().pseudo_gradient(params, trips))


class NotScaledBack(papers.FedNova):
    """sum p_i update_i / s_i."""

    def pseudo_gradient(self, params, trips):
        found = super().pseudo_gradient(params, trips)
        return ref.scale(1 / self.reports[-1]["mean_steps"], found)


class DividedByK(papers.SCAFFOLD):
    """c moves by the mean over the trips of the step, not by their sum over all clients."""

    def sum_of_changes(self, trips):
        return ref.scale(len(self.own) / len(trips), super().sum_of_changes(trips))


class NewestControl(papers.SCAFFOLD):
    """The client corrects by the newest c, not by that of the version that it has downloaded."""

    def correction(self, trip):
        newest = dataclasses.replace(trip, download_version=max(self.control))
        return super().correction(newest)


class CorrectedOnce(papers.SCAFFOLD):
    """The correction enters one local step of a trip, not each."""

    def correction(self, trip):
        corrected = super().correction(trip)

        def once(gradient, params, downloaded):
            changed = corrected(gradient, params, downloaded)
            return changed if self.counts[self.key(trip)] == 1 else gradient

        return once


class HistoryOverK(papers.FedDyn):
    """h is a mean over the trips of the step, not their sum over all clients."""

    def pseudo_gradient(self, params, trips):
        before, mean = self.h, papers.mean_of([trip.update for trip in trips])
        super().pseudo_gradient(params, trips)
        self.h = ref.subtract(before, ref.scale(self.alpha, mean))
        return ref.subtract(ref.scale(1 / self.alpha, self.h), mean)


class OwnAdded(papers.FedDyn):
    """h_i <- h_i + alpha (y - x)."""

    def trained(self, trip):
        self.own[trip.client] = ref.add(self.own[trip.client], ref.scale(self.alpha, trip.update))


class MomentumOfTheNewControl(papers.MasFL):
    """m is made from the c of this step, not from the old one."""

    def pseudo_gradient(self, params, trips):
        step = trips[0].step
        found = super().pseudo_gradient(params, trips)
        change = ref.subtract(self.control[step + 1], self.control[step])
        self.momentum[step + 1] = ref.add(self.momentum[step + 1], ref.scale(self.beta, change))
        return found if self.adaptive else self.momentum[step + 1]


class NewestOfAll(papers.DuDeASGD):
    """Without tables: the newest gradient of each client."""

    def __init__(self):
        super().__init__(1.0)


class StepTakenLater(papers.Ringleader):
    """The gradient with which a client makes its step counts from the next step on."""

    def pseudo_gradient(self, params, trips):
        if len(self.current) < self.num_clients:
            return super().pseudo_gradient(params, trips)
        means = [papers.mean_of(self.current[client]) for client in sorted(self.current)]
        super().pseudo_gradient(params, trips)
        return papers.mean_of(means)


class LastOfEachClient(ref.Rule):
    """The mean over the clients of the last gradient of each."""

    def pseudo_gradient(self, params, trips):
        last = {trip.client: trip.update for trip in trips}
        return ref.scale(-1.0, papers.mean_of(list(last.values())))


# The pseudo-gradient with which SGD of rate 1 / 5 puts the client's model, one step of that rate, in the server's place.
REPLACED = {
    "rule": lambda: Mistaken(
        papers.VanillaASGD(1.0),
        direction=lambda found, params, trips: ref.add(
            found, ref.scale(5.0, ref.subtract(params, trips[0].start))
        ),
    )
}


class OverTheStep(papers.EF21):
    """The sum of what a step's trips send is divided by their number, not by that of the clients."""

    def begin(self, params, num_clients):
        super().begin(params, num_clients)
        self.mean = ref.zeros_like(params)

    def pseudo_gradient(self, params, trips):
        super().pseudo_gradient(params, trips)
        self.mean = ref.add(self.mean, papers.mean_of([trip.update for trip in trips]))
        return ref.scale(-1.0, self.mean)


class WholeModelCompressed(papers.QAFeL):
    """h <- C(w)."""

    def version_made(self, version, params):
        self.hidden[version] = papers.from_vector(
            self.broadcast_compressor(papers.as_vector(params), None), params
        )


class TrainedFromTheModel(papers.QAFeL):
    """Clients train from w."""

    def downloaded(self, version, params):
        return params


def qafel(kind: type = papers.QAFeL, up: int = 1) -> Callable[[], ref.Rule]:
    return lambda: kind(papers.TopK(1), papers.TopK(up))


class ErrorOfTheLastTrip(papers.Compressed):
    """e_i <- D_i - C(D_i + e_i)."""

    def left_out(self, update, whole, sent):
        return super().left_out(update, update, sent)


def scaffold(kind: type = papers.SCAFFOLD) -> Callable[[], ref.Rule]:
    return lambda: kind(0.1)


def feddyn(kind: type = papers.FedDyn) -> Callable[[], ref.Rule]:
    return lambda: kind(0.3)


def masfl(adaptive: bool, kind: type = papers.MasFL, beta: float = 0.7) -> Callable[[], ref.Rule]:
    return lambda: kind(0.1, beta, adaptive)


def error_feedback(kind: type = papers.Compressed, kept: bool = True) -> Callable[[], ref.Rule]:
    return lambda: kind(papers.TopK(1), kept)


def stale_weight(**how: Any) -> Callable[[], ref.Rule]:
    return lambda: papers.FedStaleWeight(**how)


def wkafl(**changes: Any) -> Callable[[], ref.Rule]:
    numbers: dict[str, Any] = {
        "momentum": 0.2,
        "cosine_weight": 5.0,
        "learning_rate_decay": 0.2,
        "minimum_similarity": 0.5,
        "clip_bound": 2.0,
        "stage_two_bound": 0.9,
        "stage_two_loss": 0.8,
    }
    return lambda: papers.WKAFL(1.0, **numbers | changes)


TOP_1 = {"compression": "top_k", "kept": 1}
ZENO = {"gamma": 0.1, "rho": 0.02, "epsilon": 0.1}
SERVER_CLIENT: dict[str, Any] = {"curvature": [0.5, 1.5], "minimum": [0.25, 0.5]}


def server_gradient(params):
    """Of the server's own quadratic loss."""
    return {"w": np.array(SERVER_CLIENT["curvature"]) * (params["w"] - SERVER_CLIENT["minimum"])}


def zeno(kind: type = papers.ZenoPlusPlus, every: int = 2) -> Callable[[], ref.Rule]:
    return lambda: kind(1.0, server_gradient, every, **ZENO)


def fadas_rule(form: str) -> Callable[[], ref.Rule]:
    return lambda: papers.FADAS(form, 1, 0.8)


def cgad_weights(trips: list) -> list[float]:
    """With a gate that goes on beyond its cutoff."""
    gate = [(1 + math.cos(math.pi * trip.staleness / 1.5)) / 2 for trip in trips]
    return [g * math.exp(-0.2 * t.staleness) / len(trips) for g, t in zip(gate, trips, strict=True)]


def ace() -> ref.Rule:
    return papers.ACE(1.0)


def nova(by_examples: bool, kind: type = papers.FedNova) -> Callable[[], ref.Rule]:
    return lambda: kind(lambda trip: (1, 3, 2)[trip.client], by_examples)


def adaptive(form: str) -> Callable[[], ref.Rule]:
    return lambda: papers.DelayAdaptiveASGD(1.0, 2, form, 2.0, 0.2)


def rescaled(durations: str, kind: type = papers.RescaledASGD) -> Callable[[], ref.Rule]:
    return lambda: kind(1.0, durations)


def malenia() -> ref.Rule:
    return papers.Malenia(1.0)


def ringleader(kind: type = papers.Ringleader) -> Callable[[], ref.Rule]:
    return lambda: kind(1.0)


def sasgd() -> ref.Rule:
    return papers.SASGD(1.0)


def twafl() -> ref.Rule:
    return papers.TWAFL(1.0)


def fedasync(weight: Any = None) -> Callable[[], ref.Rule]:
    return lambda: ref.FedAsync(1.0, weight or ref.polynomial(0.5))


def hinge() -> ref.Rule:
    return ref.FedBuff(ref.hinge(2.0, 1))


def gate() -> ref.Rule:
    return ref.FedBuff(papers.cosine_gated(0.2, 1.5))


SLOW = {"learning_rate": 0.5}
MEAN, FROM_1 = "the sum of the updates, not their mean", "staleness counted from 1"
BY_SUM = "divided by the sum of the weights"
DELAYED_NESTEROV = {"optimizer": "delayed_nesterov", "learning_rate": 0.6, "momentum": 0.8, "period": 3}
ADAM = {"optimizer": "adam", "learning_rate": 0.1, "b1": 0.9, "b2": 0.999, "epsilon": 1e-8}

AGGREGATION = [
    Aggregation(
        "fedavg",
        "fedavg()",
        "w <- w + (1/K) sum update_i",
        ref.FedAvg,
        {
            MEAN: summed(ref.FedAvg),
            "weighted by the clients' examples": {"rule": lambda: ref.FedAvg(True)},
            "a client's second trip in a step takes the place of its first": {
                "rule": lambda: WithWeights(
                    lambda trips: papers.normalized(
                        [
                            float(all(t.client != u.client for u in trips[n + 1 :]))
                            for n, t in enumerate(trips)
                        ]
                    )
                )
            },
        },
        weighted=True,
    ),
    Aggregation(
        "fedavg-by-examples",
        "fedavg(weigh_by_examples=True)",
        "w <- w + sum n_i update_i / sum n_i, both sums over the trips of the step, n_i the client's examples",
        lambda: ref.FedAvg(True),
        {
            "every trip weighs the same": {"rule": ref.FedAvg},
            "divided by the examples of all clients": weighted(
                lambda trips: [trip.num_examples / sum(EXAMPLES) for trip in trips]
            ),
        },
        weighted=True,
    ),
    Aggregation(
        "fedavg-divide-by",
        "fedavg(divide_by=3.0)",
        "w <- w + (1/3) sum update_i, however many trips the step has",
        lambda: ref.FedAvg(divide_by=3.0),
        {"divided by the number of trips": {"rule": ref.FedAvg}},
        weighted=True,
    ),
    Aggregation(
        "fedavgm",
        "fedavg()",
        "FedAvgM: m <- 0.5 m + d, w <- w - 0.5 m, with d = -(1/K) sum update_i",
        ref.FedAvg,
        {
            "m <- 0.5 m + (1 - 0.5) d": {"server": MOMENTUM | {"learning_rate": 0.25}},
            "Nesterov's momentum": {"server": MOMENTUM | SLOW | {"nesterov": True}},
            "no momentum": {"server": SGD | SLOW},
        },
        server=MOMENTUM | SLOW,
    ),
    Aggregation(
        "fedadam-reddi",
        "fedavg()",
        "FedAdam of Reddi et al.: m <- 0.9 m + 0.1 d, v <- 0.99 v + 0.01 d^2, w <- w - 0.1 m / (sqrt(v) + 0.001), "
        "with d = -(1/K) sum update_i, m = 0 and v = 0.001^2 at first",
        ref.FedAvg,
        {
            "Kingma and Ba's Adam, which corrects the bias of both moments": {
                "server": ADAM | {"b2": 0.99, "epsilon": 0.001}
            },
            MEAN: summed(ref.FedAvg),
        },
        server={"optimizer": "reddi_adam", "learning_rate": 0.1, "b1": 0.9, "b2": 0.99, "epsilon": 0.001},
    ),
    Aggregation(
        "fedbuff-top-k",
        "fedbuff()",
        "a client sends s = C(update + e_i), C the 1 number of largest magnitude as it is, the other 0; then "
        "e_i <- update + e_i - s, which is 0 at first. w <- w + (1/K) sum s (1 + staleness)^-0.5",
        error_feedback(),
        {
            "what is left out is lost": {"rule": error_feedback(kept=False)},
            "e_i <- update - s: what the last trip had left out and this one has not sent is lost": {
                "rule": error_feedback(ErrorOfTheLastTrip)
            },
            "one e for all clients": {
                "rule": lambda: Mistaken(
                    error_feedback()(), trip=lambda trip: dataclasses.replace(trip, client=0)
                )
            },
            "no compression": {"rule": ref.FedBuff},
        },
        compression=TOP_1,
    ),
    Aggregation(
        "ef21",
        "ef21()",
        "a client sends s = C(update - h_i), C the 1 number of largest magnitude as it is, the other 0; then "
        "h_i <- h_i + s, which is 0 at first. h <- h + (1/N) sum s; w <- w + h",
        lambda: papers.EF21(papers.TopK(1)),
        {
            "the sum is divided by the K trips, not by the N clients": {
                "rule": lambda: OverTheStep(papers.TopK(1))
            },
            "error feedback in its place": {"rule": error_feedback()},
            "no compression": {"rule": lambda: papers.EF21(papers.TopK(2))},
        },
        correction="ef21",
        compression=TOP_1,
    ),
    Aggregation(
        "qafel",
        "qafel(top_k(0.25))",
        "clients train from h of the downloaded version and send C(update), C the 1 number of largest magnitude as it is, "
        "the other 0. w <- w + (1/K) sum C(update) (1 + staleness)^-0.5; then h <- h + C(w - h). Both start as "
        "given; the models are w",
        qafel(),
        {
            "the broadcast is the compressed model, h <- C(w)": {"rule": qafel(WholeModelCompressed)},
            "clients train from w": {"rule": qafel(TrainedFromTheModel)},
            "the clients' updates are not compressed": {"rule": qafel(up=2)},
        },
        start=(0.5, -0.5),
        correction="qafel",
        compression=TOP_1,
    ),
    Aggregation(
        "scaffold",
        "scaffold()",
        "a local step is x <- x - rate (g - c_i + c), c that of the downloaded version; then c_i becomes the mean g of "
        "the trip, c_i+ = c_i - c - update / (steps rate). w <- w + 0.5 (1/K) sum update_i; "
        "c <- c + (1/N) sum (c_i+ - c_i). c and all c_i are 0 at first",
        scaffold(),
        {
            "c moves by the mean over the K trips, not by the sum over the N clients": {
                "rule": scaffold(DividedByK)
            },
            "a client corrects by the newest c, not by that of its version": {
                "rule": scaffold(NewestControl)
            },
            "one local step of a trip is corrected, not each": {"rule": scaffold(CorrectedOnce)},
            "no correction": {"rule": ref.FedAvg},
        },
        server=SGD | SLOW,
        correction="scaffold",
    ),
    Aggregation(
        "feddyn",
        "feddyn(0.3)",
        "a local step is x <- x - rate (g - h_i + 0.3 (x - x_0)), x_0 the downloaded model; then h_i <- h_i - 0.3 update. "
        "h <- h - 0.3 (1/N) sum update_i; w <- w + 0.5 ((1/K) sum update_i - h / 0.3). h and all h_i are 0 at first",
        feddyn(),
        {
            "h moves by the mean over the K trips, not by the sum over the N clients": {
                "rule": feddyn(HistoryOverK)
            },
            "h_i <- h_i + 0.3 update": {"rule": feddyn(OwnAdded)},
            "no regularization": {"rule": ref.FedAvg},
        },
        server=SGD | SLOW,
        correction="feddyn",
    ),
    *(
        Aggregation(
            name,
            call,
            "a local step is x <- x - rate "
            + step
            + ", u = 0.7 (g - c_i + c) + 0.3 m, with c and m of the downloaded "
            "version; then c_i becomes the mean g of the trip, c_i+. With a = (1/K) sum (c_i+ - c_i): "
            "m <- 0.7 (c + a) + 0.3 m with the old c, c <- c + (1/N) sum (c_i+ - c_i), "
            + server
            + ". c, m and all c_i are "
            "0 at first",
            masfl(adaptive),
            {
                "m is made with the new c": {"rule": masfl(adaptive, MomentumOfTheNewControl)},
                "no momentum": {"rule": masfl(adaptive, beta=1.0)},
            },
            server=SGD | {"learning_rate": 0.2},
            correction=name,
        )
        for name, call, adaptive, step, server in (
            ("masfl", "masfl(0.7)", False, "u", "w <- w - 0.2 m"),
            (
                "adamasfl",
                "masfl(0.7, normalize=True)",
                True,
                "u / |u|",
                "w <- w + 0.2 (1/K) sum update_i / (steps rate)",
            ),
        )
    ),
    on_gradients(
        "delayed-nesterov",
        "asgd()",
        "the server of asynchronous DiLoCo: w <- w - 0.6 g / 3 at each step; at every third one, first "
        "m <- 0.8 m + the mean of the last three g, m = 0 at first, and then w <- w - 0.6 (0.8 m + g / 3)",
        lambda: papers.VanillaASGD(1.0),
        {
            "Nesterov's momentum at each step": {
                "server": {"optimizer": "sgd", "learning_rate": 0.2, "momentum": 0.8, "nesterov": True}
            },
            "the momentum is used at each step": {"server": DELAYED_NESTEROV | {"momentum_share": 1 / 3}},
            "all steps are three times as long: nothing is divided by 3": {
                "server": DELAYED_NESTEROV | {"learning_rate": 1.8}
            },
        },
        server=DELAYED_NESTEROV,
    ),
    Aggregation(
        "fedbuff",
        "fedbuff(staleness.polynomial(0.5))",
        "w <- w + (1/K) sum (1 + t_i)^-0.5 update_i, t_i the staleness",
        ref.FedBuff,
        {
            FROM_1: from_1(ref.FedBuff),
            BY_SUM: weighted(lambda trips: papers.normalized([root(trip) for trip in trips])),
            MEAN: summed(ref.FedBuff),
            "no weights": {"rule": ref.FedAvg},
        },
        weighted=True,
    ),
    Aggregation(
        "fedbuff-sum",
        "fedbuff(staleness.exponential(0.3), 'sum')",
        "w <- w + 0.5 sum exp(-0.3 t_i) update_i, t_i the staleness: no division by K",
        lambda: ref.FedBuff(ref.exponential(0.3), "sum"),
        {
            "divided by K": {"rule": lambda: ref.FedBuff(ref.exponential(0.3))},
            FROM_1: from_1(lambda: ref.FedBuff(ref.exponential(0.3), "sum")),
        },
        server=SGD | SLOW,
        weighted=True,
    ),
    Aggregation(
        "fedbuff-by-examples",
        "fedbuff(staleness.polynomial(0.5), weigh_by_examples=True)",
        "w <- w + sum n_i (1 + t_i)^-0.5 update_i / sum n_i, n_i the client's examples and t_i the staleness",
        lambda: ref.FedBuff(None, "mean", True),
        {
            BY_SUM: weighted(lambda ts: papers.normalized([t.num_examples * root(t) for t in ts])),
            "every trip weighs the same": {"rule": ref.FedBuff},
            FROM_1: from_1(lambda: ref.FedBuff(None, "mean", True)),
        },
        weighted=True,
    ),
    Aggregation(
        "fedbuff-hinge",
        "fedbuff(staleness.hinge(2.0, 1.0))",
        "w <- w + (1/K) sum s(t_i) update_i, s(t) = 1 up to t = 1, else 1 / (2 (t - 1) + 1), t the staleness",
        hinge,
        {
            FROM_1: from_1(hinge),
            "s(t) = 1 / (2 (t - 1)) above 1": weighted(
                lambda ts: [(1 if t.staleness <= 1 else 1 / (2 * (t.staleness - 1))) / len(ts) for t in ts]
            ),
            BY_SUM: weighted(
                lambda ts: papers.normalized([ref.hinge(2.0, 1)(trip.staleness) for trip in ts])
            ),
        },
        weighted=True,
    ),
    Aggregation(
        "fedasync",
        "fedasync(staleness.polynomial(0.5))",
        "w <- (1 - a) w + a y, a = 0.6 (1 + t)^-0.5, y the trained model (downloaded model + update), t the staleness",
        fedasync(),
        {
            "w + a update: the update is added, the model is not mixed": {
                "rule": lambda: WithWeights(lambda trips: [root(trip) for trip in trips])
            },
            FROM_1: from_1(fedasync()),
            "no weight by staleness": {"rule": fedasync(ref.constant())},
        },
        trips=ONE_BY_ONE,
        server=SGD | {"learning_rate": 0.6},
    ),
    on_gradients(
        "asgd",
        "asgd()",
        "w <- w - 0.2 g, with g = -update the gradient at the downloaded model",
        lambda: papers.VanillaASGD(1.0),
        {
            "the gradient is subtracted from the downloaded model, which takes the place of w": REPLACED,
            "divided by 1 + staleness": {"rule": sasgd},
        },
        weighted=True,
    ),
    *(
        on_gradients(
            f"delay-adaptive-asgd-{form}",
            f"delay_adaptive_asgd({form!r}, 2, smoothness=2.0, server_learning_rate=0.2)",
            f"w <- w - 0.2 g for a staleness t of at most 2; above it {above}",
            adaptive(form),
            {
                FROM_1: from_1(adaptive(form)),
                "the same rate for all": {"rule": lambda: papers.VanillaASGD(1.0)},
            },
            weighted=True,
        )
        for form, above in {
            "scale": "w <- w - 0.2 (2 / t) g",
            "drop": "w stays as it is, and the version counts",
            "bound": "w <- w - min(0.2, 1 / (4 * 2 t)) g",
        }.items()
    ),
    *(
        on_gradients(
            f"rescaled-asgd-{durations}",
            f"rescaled_asgd({durations!r})",
            f"w <- w - 0.1 p_i g, p_i = d_i (1/N) sum_j 1/d_j, {what}",
            rescaled(durations),
            {
                "p_i = d_i / (the mean of d_j)": {"rule": rescaled(durations, DividedByTheMean)},
                "the same rate for all": {"rule": lambda: papers.VanillaASGD(1.0)},
            },
            trips=WITH_TIMES,
            server=SGD | {"learning_rate": 0.1},
            weighted=True,
        )
        for durations, what in {
            "mean": "d_j the mean duration of client j's trips in this file",
            "trip": "d_i the trip's duration; d_j the mean duration of client j's trips in this file",
            "frequency": "d_j one over the number of client j's trips in this file",
        }.items()
    ),
    on_gradients(
        "generalized-async-sgd",
        "generalized_async_sgd((1, 2, 3))",
        "w <- w - 0.1 / (N p_i) g, p_i = 1/6, 2/6, 3/6 the probability that client i gets a task",
        lambda: papers.GeneralizedAsyncSGD(1.0, np.array([1, 2, 3]) / 6),
        {
            "times p_i N in the place of divided by it": {
                "rule": lambda: papers.GeneralizedAsyncSGD(1.0, np.array([2, 1, 2 / 3]) / 3)
            },
            "divided by p_i alone": {
                "rule": lambda: papers.GeneralizedAsyncSGD(1.0 / 3, np.array([1, 2, 3]) / 6)
            },
            "the same rate for all": {"rule": lambda: papers.VanillaASGD(1.0)},
        },
        server=SGD | {"learning_rate": 0.1},
        weighted=True,
    ),
    on_gradients(
        "malenia",
        "malenia()",
        "w <- w - 0.2 (1/N) sum_i (1/B_i) sum_j g_ij, g_i1 to g_iB_i the gradients of client i in the step, of which "
        "every client has one at least",
        malenia,
        {
            "the mean of all gradients, as in Rennala SGD": {"rule": ref.FedAvg},
            "one gradient of each client, the last": {"rule": LastOfEachClient},
        },
        trips=OF_EVERY_CLIENT,
        weighted=True,
    ),
    on_gradients(
        "ringleader",
        "ringleader()",
        "w <- w - 0.2 (1/N) sum_i (the mean of client i's gradients in the table). A trip of a client that has made no step "
        "in this round goes into the table, any other into that of the next round; the last trip of a step is its "
        "client's own step. The round is over when all clients have made theirs: the next table takes the place of the "
        "table, and begins anew",
        ringleader(),
        {
            "the last gradient of each client in this step's trips": {"rule": LastOfEachClient},
            "the gradient with which a client makes its step counts from the next step on": {
                "rule": ringleader(StepTakenLater)
            },
            "the newest gradient of each client, whatever the table": {"rule": NewestOfAll},
        },
        trips=ROUNDS_OF_SINGLE_STEPS,
    ),
    Aggregation(
        "fedfix",
        "fedfix()",
        "w <- w + (1/N) sum d_i update_i, over those that have arrived since the last step: d_i = ceil(duration / 1) of "
        "the trip, 1 the time from a step to the next",
        lambda: papers.FedFix(1.0),
        {
            "the mean of those that have arrived": {"rule": ref.FedAvg},
            "every update counts once": {"rule": lambda: ref.FedAvg(divide_by=3.0)},
            "the duration is not rounded up": weighted(
                lambda trips: [(trip.arrival_time - trip.download_time) / 3 for trip in trips]
            ),
        },
        trips=EVERY_1,
        weighted=True,
    ),
    Aggregation(
        "fedcompass",
        "fedcompass()",
        "w <- w + learning_rate (1/N) sum (1 + t_i)^-0.5 update_i, over those that arrive together; t_i the staleness",
        papers.FedCompass,
        {
            "divided by the number of those that arrive together": weighted(
                lambda trips: [(1 + trip.staleness) ** -0.5 / len(trips) for trip in trips]
            ),
            "the exponent has the other sign, so that stale updates count more": {
                "rule": lambda: papers.FedCompass(-0.5)
            },
            FROM_1: from_1(papers.FedCompass),
            "stale updates count like fresh ones": {"rule": lambda: papers.FedCompass(0.0)},
        },
        trips=IN_GROUPS,
        server={"optimizer": "sgd", "learning_rate": 0.9},
        steps=(3, 1, 2),
        weighted=True,
    ),
    Aggregation(
        "favas",
        "favas()",
        "w <- (w + sum u_i) / 3, over the two clients that are polled: u_i = start_i + update_i / alpha_i, start_i the model "
        "that the client had downloaded, alpha_i the mean of the local_steps of all its trips; a trip without local steps "
        "gives u_i = start_i",
        papers.FAVAS,
        {
            "divided by the local steps that the trip has made": {
                "rule": lambda: FAVASWith(lambda trip: trip.local_steps)
            },
            "updates are not divided": {"rule": lambda: FAVASWith(lambda trip: 1.0)},
            "the server's model in the place of start_i": {"rule": lambda: StartsAtTheServer(papers.FAVAS())},
            "the mean of the clients' models, without the server's": {
                "rule": lambda: papers.FAVAS(server=False)
            },
        },
        trips=POLLS,
    ),
    Aggregation(
        "favas-made",
        "favas('made')",
        "w <- (w + sum u_i) / 3, over the two clients that are polled: u_i = start_i + update_i / alpha_i, start_i the model "
        "that the client had downloaded, alpha_i the trip's local_steps times the share of the client's trips that have "
        "any; a trip without local steps gives u_i = start_i",
        lambda: papers.FAVAS(made=True),
        {
            "divided by the mean of the client's local steps": {"rule": papers.FAVAS},
            "the share is left out": {"rule": lambda: FAVASWith(lambda trip: trip.local_steps)},
        },
        trips=POLLS,
    ),
    Aggregation(
        "quafl",
        "quafl(2)",
        "Each client keeps a model X_i, at first the initial one, which local_steps steps of the trip turn into Y_i. "
        "w <- (w + sum Y_i) / 3, over the two clients that are polled; then X_i <- (v + 2 Y_i) / 3, v the model that the "
        "client downloads for its next trip, which is that from before the step. update is Y_i minus the downloaded model",
        lambda: papers.QuAFL(2),
        {
            "clients start anew from the downloaded model": {"rule": lambda: papers.QuAFL(2, resets=True)},
            "the client's own model and the server's count alike": {"rule": lambda: papers.QuAFL(1)},
        },
        trips=POLLS_BEFORE,
        correction="quafl",
    ),
    Aggregation(
        "fedat",
        "fedat(2)",
        "A step is a round of one tier of clients; tiers has that of each client, 0 the fastest. The tier's model v becomes "
        "the mean of start_i + update_i, start_i the model that the client had downloaded, weighted by the clients' "
        "examples, and its count T grows by 1. Then w <- (T_1 v_0 + T_0 v_1) / (T_0 + T_1). Counts start at 1, the tiers' "
        "models at the initial model",
        lambda: papers.FedAT(TIERS),
        {
            "counts start at 0": {"rule": lambda: papers.FedAT(TIERS, first_count=0)},
            "each tier has its own count as its weight": {
                "rule": lambda: papers.FedAT(TIERS, opposite=False)
            },
            "the models of a round count alike": {"rule": lambda: papers.FedAT(TIERS, by_examples=False)},
            "the model of the round alone": {"rule": NewestRound},
        },
        trips=OF_TIERS,
        others={"tiers": TIERS},
    ),
    on_gradients(
        "sasgd",
        "sasgd()",
        "w <- w - 0.2 (1/K) sum g_i / (t_i + 1), t_i the staleness",
        sasgd,
        {
            "divided by the staleness, where it is not 0": weighted(
                lambda trips: [1 / (max(trip.staleness, 1) * len(trips)) for trip in trips]
            ),
            FROM_1: from_1(sasgd),
            BY_SUM: weighted(lambda trips: papers.normalized([1 / (1 + trip.staleness) for trip in trips])),
        },
        trips=IN_PAIRS,
        weighted=True,
    ),
    on_gradients(
        "twafl",
        "twafl()",
        "w <- w - 0.2 sum (m_i / m) (e/2)^-t_i g_i, m_i the trip's batch_examples, m their sum over the step, t_i the "
        "staleness",
        twafl,
        {
            BY_SUM: weighted(
                lambda ts: papers.normalized(
                    [t.batch_examples * papers.stale_exponential(t.staleness) for t in ts]
                )
            ),
            "m_i the client's examples": {
                "rule": lambda: Mistaken(
                    twafl(), trip=lambda trip: dataclasses.replace(trip, batch_examples=trip.num_examples)
                )
            },
            FROM_1: from_1(twafl),
        },
        trips=IN_PAIRS,
        weighted=True,
    ),
    on_gradients(
        "gsgm",
        "gsgm(0.5)",
        "w <- w - 0.2 u, u = (1/K) sum g_i + 0.5 M, M the mean of the u of the last round (0 in the first), a round "
        "being a trip of each client",
        lambda: papers.GSGM(1.0, 0.5),
        {
            "M is the u of the last step": {"rule": lambda: MomentumOfEachStep(1.0, 0.5)},
            "no momentum": {"rule": lambda: papers.GSGM(1.0, 0.0)},
        },
        trips=IN_ROUNDS,
    ),
    on_gradients(
        "wkafl",
        "wkafl(2, momentum=0.2, cosine_weight=5.0, smallest_cosine=0.5, clip_norm=2.0, stage_two_clip=0.9, "
        "stage_two_loss=0.8, staleness_decay=0.2)",
        "G_i = g_i + 0.2 E, E the estimate of the step before, 0 at first; stage two begins, for good, where the mean "
        "loss of the K trips at their downloaded models is below 0.8; each G_i is clipped to norm 2; E <- the mean of "
        "the G_i weighted by (e/2)^-t_i, t_i the staleness; those with cos(G_i, E) >= 0.5 get weights in proportion "
        "to exp(5 cos), and in stage two are clipped to norm 0.9 |E|; d their weighted mean, or E if there are none; "
        "w <- w - 0.2 d / (1 + 0.2 min t_i)",
        wkafl(),
        {
            "no momentum": {"rule": wkafl(momentum=0.0)},
            "the direction is the estimate": {"rule": wkafl(without="gradient_selection")},
            "no stage two": {"rule": wkafl(stage_two_loss=0.0)},
            FROM_1: from_1(wkafl()),
        },
        trips=IN_PAIRS,
    ),
    on_gradients(
        "zeno-plus-plus",
        "zeno_plus_plus(server_gradient, 2, gamma=0.1, rho=0.02, epsilon=0.1)",
        "g' = g |v| / |g|; if 0.1 <v, g'> - 0.02 |g'|^2 >= -0.1 * 0.1 then w <- w - 0.2 g', else w stays and the version "
        "counts; v is the gradient of the file's server_loss at the model before steps 0, 2, 4, ..., kept in between",
        zeno(),
        {
            "a new v at every step": {"rule": zeno(every=1)},
            "every gradient is accepted, in its own length": {"rule": zeno(Unscored)},
            "refused steps do not count towards the next v": {"rule": zeno(RefusedDoNotCount)},
        },
        others={"server_loss": SERVER_CLIENT},
    ),
    *(
        on_gradients(
            name,
            call,
            "w <- w - 0.2 (1/N) sum over all clients of their newest gradients; step 0 takes one of each",
            ace,
            {
                "the client's old gradient is read after the new one is written, so that the mean never changes": {
                    "rule": lambda: IncrementOverwrittenFirst(1.0)
                },
                "the gradients of this step alone": {"rule": ref.FedAvg},
                "a sum over the clients": times(ace, lambda trips: 3.0),
            },
            trips=AFTER_A_ROUND,
        )
        for name, call in {"ace": "ace()", "ace-direct": "ace('direct')"}.items()
    ),
    *(
        on_gradients(
            f"aced-{age}",
            f"aced(2, {age!r})",
            "w <- w - 0.2 times the mean of the newest gradients of the clients i with step - start_i <= 2, the newly "
            f"arrived gradient included, no step if there are none; {what}",
            lambda age=age: papers.ACED(1.0, 2, age),
            {
                "all clients count": {"rule": ace},
                "step - start_i < 2": {"rule": lambda age=age: papers.ACED(1.0, 1, age)},
                mistake: {"rule": wrong},
            },
            trips=AFTER_A_ROUND,
        )
        for age, what, mistake, wrong in (
            (
                "start",
                "start_i = 1 after step 0, and step + 1 after a step that has applied a trip of i",
                "start_i of the arriving client changes before the mean is taken",
                lambda: RestartedBefore(1.0, 2),
            ),
            (
                "cached",
                "start_i the version from which the newest gradient of i was computed",
                "start_i is when the client last started",
                lambda: papers.ACED(1.0, 2),
            ),
        )
    ),
    *(
        Aggregation(
            f"ca2fl-{changes}",
            f"ca2fl({changes!r})",
            "w <- w + h + (1/|S|) sum (update_i - h_i), h_i the client's stored update, 0 at first, h the mean of all h_i "
            f"before the step, S the different clients of the step; h_i becomes update_i {when}",
            lambda changes=changes: papers.CA2FL(changes),
            {
                "the new update is stored before the old one is read": {
                    "rule": lambda changes=changes: OverwrittenFirst(changes)
                },
                "h is taken after the step": {"rule": lambda changes=changes: MeanAfterTheStep(changes)},
                "h_i changes with the step" if changes == "arrival" else "h_i changes at each arrival": {
                    "rule": lambda other=other: papers.CA2FL(other)
                },
                "no calibration: the mean of the updates": {"rule": ref.FedAvg},
            },
        )
        for changes, when, other in (
            ("arrival", "at once, so that of two trips of a client in a step the first cancels", "step"),
            ("step", "after the step, so that two trips of a client in a step both count", "arrival"),
        )
    ),
    on_gradients(
        "dude-asgd",
        "dude_asgd()",
        "w <- w - 0.2 (1/N) sum over all clients of their newest gradients, K trips a step; step 0 takes one of each",
        lambda: papers.DuDeASGD(1.0),
        {
            "the gradients of this step alone": {"rule": ref.FedAvg},
            "a sum over the clients": times(lambda: papers.DuDeASGD(1.0), lambda trips: 3.0),
        },
        trips=AFTER_A_ROUND_IN_PAIRS,
    ),
    Aggregation(
        "mifa",
        "mifa()",
        "w <- w + (1/N) sum over all clients of their newest updates, 0 for a client that has not been heard yet",
        papers.MIFA,
        {
            "the updates of this step alone": {"rule": ref.FedAvg},
            "divided by K, not by N": times(papers.MIFA, lambda trips: 3 / len(trips)),
            "what has changed in the mean is added to w, not the mean": {"rule": OnlyChanges},
        },
    ),
    Aggregation(
        "area",
        "area()",
        "w <- w + (1/N) sum (y_i - z_i), y_i the trained model, z_i what the client had sent before, the initial model "
        "at first; then z_i becomes y_i",
        papers.AREA,
        {
            "z_i = 0 at first": {"rule": FirstSentIsZero},
            "divided by K, not by N": times(papers.AREA, lambda trips: 3 / len(trips)),
            "weighted by (1 + staleness)^-0.5": {
                "rule": lambda: Mistaken(
                    papers.AREA(),
                    direction=lambda found, params, trips: ref.scale(min(root(t) for t in trips), found),
                )
            },
        },
        start=(0.5, -0.25),
    ),
    *(
        Aggregation(
            f"fedfa-{form}",
            f"fedfa(3, {form!r})",
            says,
            lambda of_models=of_models: papers.FedFa(3, of_models),
            {
                "the mean of those that have arrived, until there are 3": {
                    "rule": lambda of_models=of_models: ShortWindow(3, of_models)
                },
                "the last 2": {"rule": lambda of_models=of_models: papers.FedFa(2, of_models)},
            },
            trips=ONE_BY_ONE,
            start=(0.5, -0.25),
        )
        for form, of_models, says in (
            (
                "parameters",
                True,
                "w <- the mean of the last 3 trained models, the initial model for those that lack",
            ),
            ("updates", False, "w <- w + (1/3) the sum of the last 3 updates, 0 for those that lack"),
        )
    ),
    *(
        Aggregation(
            name,
            f"fadas({form!r}, 1, server_learning_rate=0.8)",
            "d = -(1/K) sum update_i; m <- 0.9 m + 0.1 d; v <- 0.99 v + 0.01 d^2; "
            + steps
            + "; tau the largest "
            "staleness of the step",
            fadas_rule(form),
            {
                "the rate scales d before the moments see it": {
                    "rule": lambda form=form: ScaledBeforeTheMoments(form, 0.8)
                },
                "no scaling": {"rule": ref.FedAvg},
                **{why: {"server": AMSGRAD | {"learning_rate": 0.8, "form": other}} for why, other in others},
            },
            server=AMSGRAD | {"learning_rate": 0.8, "form": amsgrad},
        )
        for name, form, amsgrad, steps, others in (
            (
                "fadas",
                "paper",
                "paper",
                "u <- max(u, v); w <- w - r m / (sqrt(u) + 1e-8), r = 0.8 if tau <= 1, else min(0.8, 1 / tau)",
                (
                    ("the bias is corrected before the maximum, as in optax", "optax"),
                    ("the bias is corrected after the maximum, as in the authors' code", "release"),
                ),
            ),
            (
                "fadas-release",
                "release",
                "release",
                "u <- max(u, v); w <- w - r (m / (1 - 0.9^n)) / (sqrt(u) / sqrt(1 - 0.99^n) + 1e-8), n the number of this "
                "step from 1, r = 0.8 if tau <= 1, else 0.8 / tau",
                (
                    ("the bias is corrected before the maximum, as in optax", "optax"),
                    ("no correction of the bias, as in the paper", "paper"),
                ),
            ),
            (
                "fadas-optax",
                "release",
                "optax",
                "u <- max(u, v / (1 - 0.99^n)); w <- w - r (m / (1 - 0.9^n)) / (sqrt(u) + 1e-8), n the number of this "
                "step from 1, r = 0.8 if tau <= 1, else 0.8 / tau",
                (
                    ("the bias is corrected after the maximum, as in the authors' code", "release"),
                    ("no correction of the bias, as in the paper", "paper"),
                ),
            ),
        )
    ),
    Aggregation(
        "asyncfeded",
        "asyncfeded(0.8)",
        "w <- w + 0.5 / (c + 0.8) update, c = |w - x| / |update|, x the downloaded model",
        lambda: papers.AsyncFedED(0.8),
        {
            "c of squared norms": {"rule": lambda: SquaredDistances(0.8)},
            "c is left out": {"rule": lambda: WithWeights(lambda trips: [1 / 0.8])},
        },
        trips=ONE_BY_ONE,
        server=SGD | SLOW,
    ),
    Aggregation(
        "port",
        "port(4.0, 1.0, 2.0)",
        "w <- w + sum p_i update_i, p_i in proportion to n_i (4 / (t_i + 4) + 2 (1 + cos(update_i, w - x_i)) / 2), "
        "summing to 1: n_i the client's examples, t_i the staleness, x_i the downloaded model; cos = 1 where w = x_i",
        lambda: papers.PORT(4.0, 1.0, 2.0),
        {
            "the cosine is that of the client's model": {"rule": lambda: CosineOfTheModel(4.0, 1.0, 2.0)},
            "the model of two steps ago, however stale the update is": {
                "rule": lambda: TwoRoundsAgo(4.0, 1.0, 2.0)
            },
            FROM_1: from_1(lambda: papers.PORT(4.0, 1.0, 2.0)),
        },
    ),
    Aggregation(
        "cgad",
        "cgad(0.2, 1.5)",
        "Adam (0.9, 0.999, 1e-8, rate 0.1, bias of both moments corrected) on -(1/K) sum q(t_i) exp(-0.2 t_i) update_i, "
        "q(t) = (1 + cos(pi min(t / 1.5, 1))) / 2, t_i the staleness",
        gate,
        {
            "the gate opens again beyond its cutoff": weighted(cgad_weights),
            FROM_1: from_1(gate),
            "no gate": {"rule": lambda: ref.FedBuff(ref.exponential(0.2))},
        },
        server=ADAM,
    ),
    *(
        Aggregation(
            name,
            call,
            f"w <- w + (sum p_i s_i) sum p_i update_i / s_i, s_i the client's steps, {what}",
            nova(by_examples),
            {
                "the plain mean": {"rule": lambda by=by_examples: ref.FedAvg(by)},
                "not scaled back by the mean number of steps": {"rule": nova(by_examples, NotScaledBack)},
            },
            steps=(1, 3, 2),
            weighted=True,
        )
        for name, call, by_examples, what in (
            ("fednova", "fednova()", False, "p_i = 1/K"),
            (
                "fednova-by-examples",
                "fednova(weigh_by_examples=True)",
                True,
                "p_i in proportion to the client's examples, summing to 1 over the step",
            ),
        )
    ),
    *(
        Aggregation(
            name,
            call,
            f"w <- w + sum p_i update_i, p_i in proportion to {what}, summing to 1 over the step; E_i {average} of the "
            "staleness of the client's trips, those of this step included",
            stale_weight(**how),
            {
                "the trips of this step are left out of the average": {
                    "rule": lambda how=how: NewestLeftOut(**how)
                },
                "the trip's own staleness, not the client's average": {
                    "rule": lambda how=how: papers.FedStaleWeight(**{**how, "window": 1, "decay": None})
                },
                FROM_1: from_1(stale_weight(**how)),
            },
            weighted=True,
        )
        for name, call, what, average, how in (
            (
                "fedstaleweight",
                "fedstaleweight('equation_8', 'window', 2)",
                "E_i K + 1",
                "the mean of the last 2",
                {"weight": "equation_8", "window": 2},
            ),
            (
                "fedstaleweight-algorithm-1",
                "fedstaleweight('algorithm_1', 'window', 2)",
                "E_i + 1",
                "the mean of the last 2",
                {"weight": "algorithm_1", "window": 2},
            ),
            (
                "fedstaleweight-exponential",
                "fedstaleweight('equation_8', 'exponential', decay=0.7)",
                "E_i K + 1",
                "(E <- 0.7 E + 0.3 t at each trip, t at the client's first) an average",
                {"weight": "equation_8", "decay": 0.7},
            ),
        )
    ),
    Aggregation(
        "exponential-weighting",
        "exponential_weighting(0.5)",
        "w <- w + sum p_i update_i, p_i in proportion to 0.5^t_i, summing to 1 over the step, t_i the staleness",
        lambda: papers.ExponentialWeighting(0.5),
        {
            "the weights are not normalised, but divided by K": weighted(
                lambda trips: [0.5**trip.staleness / len(trips) for trip in trips]
            ),
            "base 1 / 0.5": {"rule": lambda: papers.ExponentialWeighting(2.0)},
        },
        weighted=True,
    ),
]


@dataclasses.dataclass(frozen=True)
class Schedule:
    """A protocol with given durations, so that nothing is drawn, and the mistakes that are usual.

    Args:
      name: of the file.
      call: of the protocol in jafl, without clients, durations and server steps.
      says: the protocol in words.
      settings: of the reference's ``simulate``, or of ``simulate_synchronous`` where there is a ``cohort``; those of
        ``simulate_iterations`` are called ``iterations``.
      wrong: {why: the settings that are then other ones, or a function that changes the columns of the trips}.
      durations: [client][trip]; the last of each client repeats.
      steps: server steps.
    """

    name: str
    call: str
    says: str
    settings: dict[str, Any]
    wrong: dict[str, Any]
    durations: list[list[float]] = dataclasses.field(default_factory=lambda: UNEQUAL)
    steps: int = 6


UNEQUAL = [[1.0], [2.0, 1.5], [3.5, 2.5]]
TIED = [[1.0], [2.0], [2.0, 1.0], [4.0]]


def events(vector: Schedule, changes: dict[str, Any]) -> dict[str, Any]:
    """What happens: the trips that are applied, thrown away and under way at the end."""
    settings = vector.settings | {name: value for name, value in changes.items() if name != "reversed"}
    clients, reverse = len(vector.durations), changes.get("reversed", False)

    def number(client: int) -> int:
        return clients - 1 - client if reverse else client

    def duration(client, trip):
        row = vector.durations[number(client)]
        return row[min(trip, len(row) - 1)]

    most = settings.get("local_steps")
    if most:  # which take so long each
        settings["local_steps"] = lambda client, trip: most
        settings["seconds"] = lambda client, trip: (0.0, duration(client, trip), 0.0)
    common: dict[str, Any] = {
        "params": {},
        "num_clients": clients,
        "stop_after_steps": vector.steps,
        "rule": ref.FedAvg(divide_by=1.0),
        "optimizer": ref.SGD(),
        "client_update": ref.no_work,
    }
    if "iterations" in settings:
        initial_round = settings["iterations"] == "after a round"
        found = ref.simulate_iterations(delay_of=duration, initial_round=initial_round, **common)
    elif "polled" in settings:
        found = ref.simulate_polled(
            seconds=lambda client, trip: (0.0, duration(client, trip)),
            select=lambda poll: range(clients),
            steps_made={},
            **common,
            **settings,
        )
    elif "tiers" in settings:
        members = [
            np.flatnonzero(np.array(settings["tiers"]) == tier) for tier in range(max(settings["tiers"]) + 1)
        ]
        found = ref.simulate_tiered(
            duration=duration, select_round=lambda tier, n: members[tier], **common, **settings
        )
    elif "cohort" in settings:
        found = ref.simulate_synchronous(
            duration=duration, select_round=lambda n, started: range(clients), **common, **settings
        )
    else:
        found = ref.simulate(
            duration=lambda client, trip: (most or 1) * duration(client, trip),
            concurrency=clients,
            **common,
            **settings,
        )

    def columns(trips, *names):
        rows = {name: [getattr(trip, name) for trip in trips] for name in names}
        return rows | {"client": [number(client) for client in rows["client"]]}

    applied = ("client", "trip", "download_version", "step", "download_time", "arrival_time")
    applied += ("local_steps",) * ("polled" in settings or bool(most))
    return {
        "trips": columns(found.applied, *applied),
        "step_time": found.step_times,
        "thrown_away": columns(found.discarded, "client", "trip", "cancel_time"),
        "under_way": columns(found.in_flight, "client", "trip", "download_version", "download_time"),
    }


def restarted_before_the_step(trips: dict[str, list]) -> dict[str, list]:
    """Whoever starts at the instant of a step gets the model from before it."""
    versions = [
        version - (version > 0 and time > 0)
        for version, time in zip(trips["download_version"], trips["download_time"], strict=True)
    ]
    return trips | {"download_version": versions}


def one_step_late(trips: dict[str, list]) -> dict[str, list]:
    """The first step has the number 1."""
    return trips | {"step": [step + 1 for step in trips["step"]]}


def schedule_file(vector: Schedule) -> dict[str, Any]:
    """What the file of a vector holds."""
    right = events(vector, {})
    known_wrong = []
    for why, changes in vector.wrong.items():
        trips = changes(right["trips"]) if callable(changes) else events(vector, changes)["trips"]
        known_wrong.append({"why": why, "trips": trips})
    return {
        "format": FORMAT,
        "kind": "schedule",
        "name": vector.name,
        "says": vector.says,
        "jafl": vector.call,
        "clients": len(vector.durations),
        "server_steps": vector.steps,
        "durations": vector.durations,
        "expected": right,
        "known_wrong": known_wrong,
    }


NUMBERED = {
    "the first step has the number 1": one_step_late,
    "who starts at the instant of a step gets the model from before it": restarted_before_the_step,
}
ALL_TRAIN = "All clients start at time 0 from version 0, and again as soon as they have arrived, from the newest version. "
TIES = (
    "At one instant all arrivals are handled first, in the order of the clients, and the server steps whenever its "
    "buffer is full; then clients start. "
)
RINGLEADER = (
    f"Ringleader ASGD. {ALL_TRAIN}{TIES}Rounds of one server step of each client. A round waits until every client has a "
    "trip in its table; whoever brings the last of these makes the round's first step, and each of the others makes its "
    "own when it arrives next. A trip of a client that has made its step already is for the next round's table, and "
    "makes no step. A step applies all that has arrived since the last one."
)

SCHEDULES = [
    Schedule(
        "schedule-fedbuff",
        "asynchronous(buffer_size=2)",
        f"FedBuff. {ALL_TRAIN}{TIES}Every 2 arrivals make a server step.",
        {"buffer_size": 2},
        {
            **NUMBERED,
            "at one instant the last client comes first": {"reversed": True},
            "a step takes 3 arrivals": {"buffer_size": 3},
        },
        durations=TIED,
    ),
    Schedule(
        "schedule-asgd",
        "asynchronous()",
        f"Asynchronous SGD. {ALL_TRAIN}{TIES}Every arrival makes a server step.",
        {"buffer_size": 1},
        {**NUMBERED, "at one instant the last client comes first": {"reversed": True}},
        durations=TIED,
        steps=9,
    ),
    Schedule(
        "schedule-not-twice-in-a-buffer",
        "asynchronous(buffer_size=2, restart='not_twice_in_a_buffer')",
        f"All clients start at time 0. {TIES}Every 2 arrivals make a server step. A client starts again at once, but not "
        "while its update waits in the buffer: then with the step that applies it.",
        {"buffer_size": 2, "restart": "not_twice_in_a_buffer"},
        {"a client may be in a buffer twice": {"restart": "at_once"}, **NUMBERED},
    ),
    Schedule(
        "schedule-k-asynchronous",
        "asynchronous(buffer_size=2, restart='after_step')",
        f"K-asynchronous training. All clients start at time 0. {TIES}Every 2 arrivals make a server step. Then the "
        "clients whose trips it has applied start again, together.",
        {"buffer_size": 2, "restart": "after_step"},
        {
            "clients start again at once": {"restart": "at_once"},
            "the other trips are cancelled": {"cancel_at_step": True},
            **NUMBERED,
        },
        durations=[[1.0], [2.0, 1.5], [5.5, 2.5]],
    ),
    Schedule(
        "schedule-k-synchronous",
        "asynchronous(buffer_size=2, restart='after_step', cancel_at_step=True)",
        f"K-synchronous training. All clients start at time 0. {TIES}Every 2 arrivals make a server step. Then the trips "
        "under way are thrown away, and all clients start from the new version.",
        {"buffer_size": 2, "restart": "after_step", "cancel_at_step": True},
        {
            "the other trips go on": {"cancel_at_step": False},
            "the first step has the number 1": one_step_late,
        },
        durations=[[1.0, 3.0, 1.0], [2.0, 1.0], [2.5, 1.0, 4.0]],
    ),
    Schedule(
        "schedule-k-batch-synchronous",
        "asynchronous(buffer_size=3, cancel_at_step=True)",
        f"K-batch-synchronous training, also Rennala SGD. {ALL_TRAIN}{TIES}Every 3 arrivals make a server step. Then the "
        "trips under way are thrown away, and all clients start from the new version.",
        {"buffer_size": 3, "cancel_at_step": True},
        {
            "the other trips go on": {"cancel_at_step": False},
            "each client counts once in a step": {"restart": "after_step"},
        },
    ),
    Schedule(
        "schedule-rounds-of-single-steps",
        "asynchronous(restart='after_round')",
        f"GSGM. All clients start at time 0. {TIES}Every arrival makes a server step. A client that has contributed waits "
        "until all have; then all start together, from the newest version.",
        {"buffer_size": 1, "restart": "after_round"},
        {"clients start again at once": {"restart": "at_once"}, **NUMBERED},
        steps=9,
    ),
    Schedule(
        "schedule-initial-round",
        "asynchronous(initial_round=True)",
        f"ACE. All clients start at time 0, and step 0 is made when all have arrived. {TIES}Then all start from version "
        "1, every arrival makes a server step, and clients start again at once.",
        {"buffer_size": 1, "first_buffer_size": 3},
        {"no initial round": {"first_buffer_size": None}, **NUMBERED},
        steps=8,
    ),
    Schedule(
        "schedule-staleness-limit",
        "asynchronous(staleness_limit=2)",
        f"Ringmaster ASGD, algorithm 4, with R = 3. {ALL_TRAIN}{TIES}An arrival with a staleness of at most 2 makes a "
        "server step, any other is thrown away.",
        {"buffer_size": 1, "staleness_limit": 2},
        {
            "staleness counted from 1, or after the step": {"staleness_limit": 1},
            "a staleness of R is taken, too": {"staleness_limit": 3},
            **NUMBERED,
        },
        durations=[[1.0], [1.5], [2.25, 1.0, 4.0], [5.0]],
        steps=9,
    ),
    Schedule(
        "schedule-staleness-limit-with-stops",
        "asynchronous(staleness_limit=2, too_stale='cancel')",
        f"Ringmaster ASGD, algorithm 5, with R = 3. {ALL_TRAIN}{TIES}Every arrival makes a server step. A trip that could "
        "only arrive with a staleness above 2 after it is stopped at once, and its client starts again from the new "
        "version.",
        {"buffer_size": 1, "staleness_limit": 2, "too_stale": "cancel"},
        {
            "algorithm 4: the trip is thrown away when it arrives": {"too_stale": "drop"},
            "stopped one step later": {"staleness_limit": 3},
            "stopped one step earlier": {"staleness_limit": 1},
        },
        durations=[[1.0], [1.5], [2.25, 1.0, 4.0], [5.0, 1.25]],
        steps=12,
    ),
    Schedule(
        "schedule-malenia",
        "asynchronous(buffer_size=4, step_when='harmonic_mean')",
        f"Malenia SGD without stops, S = 4. {ALL_TRAIN}{TIES}The server steps with all that has arrived since its last "
        "step as soon as 1 / mean_i(1 / B_i) >= 4 / 3, B_i the arrivals of client i among it, 3 the number of clients.",
        {"buffer_size": 4, "step_when": "harmonic_mean"},
        {
            "a step with every 4 arrivals": {"step_when": "buffer_full"},
            "a step as soon as every client has arrived once": {"buffer_size": 3},
            "the other trips are cancelled": {"cancel_at_step": True},
        },
        durations=[[1.0], [1.5, 2.0], [2.25]],
        steps=5,
    ),
    Schedule(
        "schedule-fixed-times",
        "asynchronous(step_every=1.0, restart='after_step')",
        "FedFix. All clients start at time 0. The server steps at the times 1, 2, 3, ... with whatever has arrived since its "
        "last step, what arrives at that very instant included, even with nothing. Then those clients start again.",
        {"buffer_size": 1, "step_every": 1.0, "restart": "after_step"},
        {
            "clients start again at once": {"restart": "at_once"},
            "a step at each arrival": {"step_every": None},
            "the first step has the number 1": one_step_late,
        },
        durations=[[1.25, 0.5], [2.0, 1.5], [3.5, 2.5]],
        steps=8,
    ),
    Schedule(
        "schedule-ringleader",
        "asynchronous(step_when='each_client_once_a_round')",
        RINGLEADER,
        {"buffer_size": 1, "step_when": "each_client_once_a_round"},
        {
            "a step at each arrival": {"step_when": "buffer_full"},
            "rounds in which a client that has contributed waits": {
                "step_when": "buffer_full",
                "restart": "after_round",
            },
            "the first step has the number 1": one_step_late,
        },
        steps=9,
    ),
    Schedule(
        "schedule-waits-for-the-late",
        "asynchronous(buffer_size=2, staleness_limit=2, too_stale='wait')",
        f"A bound on staleness. {ALL_TRAIN}{TIES}A server step takes all arrivals that wait, where these are at least 2 "
        "and no trip under way would get a staleness above 2 by it.",
        {"buffer_size": 2, "staleness_limit": 2, "too_stale": "wait"},
        {
            "trips that are too late are thrown away": {"too_stale": "drop"},
            "a limit of 1": {"staleness_limit": 1},
            "a limit of 3": {"staleness_limit": 3},
        },
        durations=[[1.0], [1.5], [6.25, 2.0]],
        steps=5,
    ),
    Schedule(
        "schedule-interrupts",
        "asynchronous(buffer_size=2, local_steps=4, staleness_limit=2, too_stale='interrupt')",
        f"PORT. {ALL_TRAIN}{TIES}durations are those of a local step of the trip; a trip has 4. A server step takes all "
        "arrivals that wait, where these are at least 2 and no trip under way would get a staleness above 2 by it. Right "
        "after a step it urges the clients of all trips under way that another step would make so stale: they end the "
        "local step at hand, or the next one if one ends at that moment, and their trips arrive with it.",
        {"buffer_size": 2, "local_steps": 4, "staleness_limit": 2, "too_stale": "interrupt"},
        {
            "the server waits for whole trips": {"too_stale": "wait"},
            "trips that are too late are thrown away": {"too_stale": "drop"},
            "a limit of 1": {"staleness_limit": 1},
            "a limit of 3": {"staleness_limit": 3},
        },
        durations=[[1.0], [1.5, 1.25], [4.25, 3.0], [0.5, 8.0]],
    ),
    Schedule(
        "schedule-flushed",
        "asynchronous(buffer_size=3, flush_after=0.75)",
        f"{ALL_TRAIN}{TIES}Every 3 arrivals make a server step, and so do fewer once the first of them has waited for "
        "0.75.",
        {"buffer_size": 3, "flush_after": 0.75},
        {
            "never flushed": {"flush_after": None},
            "flushed after 0.75 since the last step": {"flush_after": 0.5},
        },
        durations=[[1.0], [1.5], [2.25, 4.0]],
    ),
    Schedule(
        "schedule-delays-in-steps",
        "drawn_staleness(reports='due')",
        "ACE's delays in server iterations. All clients start from version 0. Iteration t = 1, 2, ... takes all trips "
        "that end with it, whatever their number, in the order of the clients, and makes one server step of them; "
        "then their clients start again, from the model that it has made. With duration d a client that starts after "
        "iteration t reports to iteration t + d. An iteration without a report makes no step, and no version. Times "
        "are the numbers of iterations.",
        {"iterations": "at once"},
        {
            "all clients report to the first iteration": {"iterations": "after a round"},
            **NUMBERED,
        },
        durations=[[2.0], [3.0, 5.0, 2.0], [7.0, 2.0]],
        steps=9,
    ),
    Schedule(
        "schedule-polls",
        "polled(cohort_size=3, interval=2.0, most_local_steps=3)",
        "FAVAS. All clients train from time 0 on, one local step after the other. durations are those of a local step of the "
        "trip. At the times 2, 4, ... the server makes a step of what all of them have made, which may be nothing, and they "
        "begin their next trips with the new version. A trip has no more than 3 local steps; one that ends with the poll "
        "counts.",
        {"polled": 3, "interval": 2.0, "most_steps": 3},
        {"any number of local steps": {"most_steps": 99}, "the first step has the number 1": one_step_late},
        durations=[[0.5], [1.0, 2.0, 0.75], [1.5, 3.0]],
        steps=4,
    ),
    Schedule(
        "schedule-tiers",
        "tiered(tiers=[0, 0, 1, 1], cohort_size=2)",
        "FedAT. Clients 0 and 1 are one tier, 2 and 3 the other. At time 0 all start from version 0. When both clients of a "
        "tier have arrived, the server makes a step of their trips, and both start again, from the newest version. At one "
        "instant the first tier's step is made first; then clients start.",
        {"tiers": (0, 0, 1, 1), "cohort": 2},
        {
            "rounds of all clients": {"tiers": (0, 0, 0, 0), "cohort": 4},
            "the tiers by turns of the clients": {"tiers": (0, 1, 0, 1)},
            **NUMBERED,
        },
        durations=[[1.0, 1.5], [2.0, 1.0], [4.0, 2.5], [3.0]],
    ),
    Schedule(
        "schedule-over-selection",
        "synchronous(cohort_size=2, over_selection=0.5)",
        "Rounds with over-selection. At the beginning of a round all 3 clients start from the newest version; with the "
        "second arrival (at one instant in the order of the clients) the server steps, the last trip is thrown away, "
        "and the next round begins.",
        {"cohort": 2, "started": 3},
        {"the round waits for all": {"cohort": 3}, "the first step has the number 1": one_step_late},
        durations=[[1.0, 3.0, 1.0], [2.0, 1.0], [2.0, 1.0, 4.0]],
    ),
    Schedule(
        "schedule-deadline",
        "synchronous(cohort_size=3, deadline=2.0)",
        "Rounds with a time-out. At the beginning of a round all 3 clients start from the newest version; the server "
        "steps when all have arrived, or 2 later with those that have, and throws the other trips away. What arrives at "
        "that very instant counts.",
        {"cohort": 3, "deadline": 2.0},
        {"no time-out": {"deadline": math.inf}, "the first step has the number 1": one_step_late},
        durations=[[1.0], [2.0, 1.5], [3.5, 1.75, 2.5]],
    ),
]


def files() -> dict[str, dict[str, Any]]:
    """{file name: what it holds} of all vectors."""
    made = [aggregation_file(vector) for vector in AGGREGATION] + [
        schedule_file(vector) for vector in SCHEDULES
    ]
    assert len({content["name"] for content in made}) == len(made)
    return {f"{content['name']}.json": content for content in made}


def text(content: dict[str, Any]) -> str:
    """A file as JSON: a line for each entry, and for each column of trips and each known mistake."""

    def lines(entries: list[str], brackets: str, indent: str) -> str:
        return f"{brackets[0]}\n{indent} " + f",\n{indent} ".join(entries) + f"\n{indent}{brackets[1]}"

    def entry(name: str, value: Any) -> str:
        if name in ("clients", "trips", "expected") and isinstance(value, dict):
            inner = [f"{json.dumps(key)}: {json.dumps(column)}" for key, column in value.items()]
            return f"{json.dumps(name)}: {lines(inner, '{}', ' ')}"
        if name == "known_wrong":
            return f"{json.dumps(name)}: {lines([json.dumps(each) for each in value], '[]', ' ')}"
        return f"{json.dumps(name)}: {json.dumps(value)}"

    return lines([entry(name, value) for name, value in content.items()], "{}", "") + "\n"


def main() -> None:
    """Writes all files."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    made = files()
    for path in FOLDER.glob("*.json"):
        if path.name not in made:
            path.unlink()
    for name, content in made.items():
        (FOLDER / name).write_text(text(content), encoding="utf-8")


if __name__ == "__main__":
    main()
