"""Where the server's error comes from, measured with full gradients while the run goes on.

``decomposed`` splits the difference between the server's direction and the gradient of the objective into noise, bias
and delay (ACE paper, equations 3 and 4); ``decomposed_four_ways`` splits it into staleness, sampling, drift and
re-weighting (FedStaleWeight, appendix A). Both stand in for the rule that they watch: the run trains exactly as
without them, and its history has the squared norms of the terms at the chosen steps.

Letters: N clients, Q local steps, eta_l the clients' learning rate; F_i is client i's objective over all its
examples, L2 term included, and F the mean of F_i over the N clients, whatever their numbers of examples. w^t is the
model before server step t; w_stale_i the one from which client i trained for the last update that the server has
received from it, those of step t included, and w^0 before the first.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from jafl.clients import ClientData, ClientResult, ClientWork, check_number
from jafl.data import Federation
from jafl.errors import SettingError, require, whole_number
from jafl.records import Arrival, EventSchedule, Rule
from jafl.rules import accumulate, cached, compensated
from jafl.schedule import bucket
from jafl.specifications import Specification, as_specification, specification

# Why rules of the package that are not linear in the updates cannot be split, by name.
_NOT_LINEAR = {
    "fedasync": "it pulls towards the client's whole model, stale as it is, not along its update",
    "wkafl": "it selects gradients by their angle, and clips them",
    "zeno_plus_plus": "it brings each gradient to the length of the server's own, and refuses some",
}
# The columns of a trip; a rule's own have other names.
_MEASURED, _FIRST, _NEEDED = "decomposition_measured", "decomposition_first", "decomposition_needed"


def decomposed(
    rule: Specification | Rule, client_work: Specification, federation: Federation, at_steps: Iterable[int]
) -> Specification:
    """A rule that trains as ``rule`` does and reports ACE's split of its error; for use in its place.

    With u = pseudo-gradient / eta_l, and u_bar what the same rule would make of the same trips had each of them sent
    its client's full gradient, at the model that it trained from, in place of a minibatch's:

        noise  A = u - u_bar
        bias   B = u_bar - (1/N) sum_i grad F_i(w_stale_i)
        delay  C = (1/N) sum_i grad F_i(w_stale_i) - grad F(w^t)

    so that A + B + C = u - grad F(w^t). A step that the rule skips has u = u_bar = 0. Factors that lengthen or
    shorten u (staleness weights, a sum in place of a mean) show as bias. The server optimizer, which is fed with u,
    does not enter.

    It costs N full gradients at each chosen step, and one at each trip; if the rule keeps nothing from step to step,
    only at the trips on which a chosen step depends. The device holds the examples twice, and one value [*P] of each
    client, or three if the rule has client memory.

    Args:
      rule: one that is linear in the updates (``Rule.linear``); client memory, if any, in full precision.
      client_work: the run's, from ``jafl.client_work``: one local step of plain SGD, with or without an L2 term.
      federation: the run's.
      at_steps: server steps t at which to measure: those from w^t to w^(t+1), the first is 0.

    Reports, besides what ``rule`` does, per server step: ``noise``, ``bias``, ``delay``: the squared norms of A, B
    and C; ``error``: that of A + B + C; ``gradient``: that of grad F(w^t); ``measured``: 1. At the other steps all
    six are 0: over any steps the mean of a term, divided by that of ``measured``, is its mean over those chosen.

    Raises:
      SettingError: for a rule or a work without such a split (says why), or for steps that the run does not have.
    """
    rate = _learning_rate(client_work)
    epochs, steps = client_work.arguments["local_epochs"], client_work.arguments["local_steps"]
    require(
        steps == 1,
        "local_epochs" if steps is None else "local_steps",
        epochs if steps is None else steps,
        "one local step for the split into noise, bias and delay",
        "After more, an update is no gradient at a model that the server knows; "
        "jafl.decomposed_four_ways measures how far the clients drift.",
    )
    rule, full = _linear(rule), _full_gradients(client_work, federation)
    every_trip = _keeps_something(rule.build(), client_work, federation)
    return _decomposed(rule, full, rate, _steps_to_measure(at_steps), every_trip)


def decomposed_four_ways(
    rule: Specification | Rule, client_work: Specification, federation: Federation, at_steps: Iterable[int]
) -> tuple[Specification, Specification]:
    """(client work, rule) that train as those given do and report FedStaleWeight's split of the error.

    For a rule whose pseudo-gradient is -sum_k alpha_k update_k over the trips k in the step's buffer B. y_k,q is the
    model of trip k after q of its Q local steps; for each q < Q (appendix A, the four parts of T_4),

        staleness     (1/N) sum_i grad F_i(w^t) - (1/N) sum_i grad F_i(w_stale_i)
        sampling      (1/N) sum_i grad F_i(w_stale_i) - (1/|B|) sum_k grad F_k(y_k,0)
        drift         (1/|B|) sum_k grad F_k(y_k,0) - (1/|B|) sum_k grad F_k(y_k,q)
        re-weighting  (1/|B|) sum_k grad F_k(y_k,q) - sum_k alpha_k grad F_k(y_k,q)

    which add up to grad F(w^t) - sum_k alpha_k grad F_k(y_k,q). The paper bounds expectations over clients and noise;
    here the terms are those of this run. It does not say how stale a client is that has nothing in B: see w_stale_i
    above. Its alpha_k sum to 1; where a rule's do not (FedBuff's staleness weights), that shows as re-weighting.

    It costs what ``decomposed`` does and, at each trip of a chosen step, Q - 1 more full gradients and its first q
    local steps once more for each q < Q; compiling takes longer with Q, too.

    Args:
      rule: one that is linear in the updates (``Rule.linear``) and keeps nothing from step to step.
      client_work: the run's, from ``jafl.client_work``: plain SGD, with or without an L2 term, with Q ``local_steps``
        (in ``local_epochs`` clients make unequal numbers of them).
      federation: the run's.
      at_steps: server steps t at which to measure, as for ``decomposed``.

    Reports, besides what ``rule`` does, per server step: ``staleness_error``, ``sampling_error``: the squared norms
    of these terms; ``drift_error``, ``reweighting_error``, ``four_way_error``: the means over q of the squared norms
    of the other two, and of the sum of all four; ``noise``, which the paper averages out: the squared norm of
    pseudo-gradient / (Q eta_l) - (1/Q) sum_q sum_k alpha_k grad F_k(y_k,q); ``gradient`` and ``measured`` as
    ``decomposed``. At steps that were not chosen all are 0.

    Raises:
      SettingError: for a rule or a work without such a split (says why), or for steps that the run does not have.
    """
    rate = _learning_rate(client_work)
    steps = client_work.arguments["local_steps"]
    require(
        steps is not None,
        "local_epochs",
        client_work.arguments["local_epochs"],
        "None for the split in four: it needs the same number of local_steps of every client",
    )
    rule, full = _linear(rule), _full_gradients(client_work, federation)
    require(
        not _keeps_something(rule.build(), client_work, federation),
        "rule",
        _name(rule),
        "one that keeps nothing from step to step",
        "The split compares weights within one buffer; jafl.decomposed splits the error of rules with memory.",
    )
    shorter = {
        f"after_{count:06d}": Specification(
            client_work.factory, client_work.arguments | {"local_steps": count}
        )
        for count in range(1, steps)
    }
    watched = _decomposed_four_ways(
        rule, full, Specification(_in_order, shorter), rate, _steps_to_measure(at_steps)
    )
    return _sending_key(client_work), watched


class FullGradients(NamedTuple):
    """Full gradients in the units of updates, times -eta_l: what a client would send that used all its examples.

    work: one step of plain SGD on all of a client's examples. data: the clients' examples.
    """

    work: ClientWork
    data: ClientData

    def of(self, params: Any, client: Any) -> Any:
        """[*P]: -eta_l grad F_client(params)."""
        return self.work.train(self.data, params, client, jnp.zeros(2, jnp.uint32)).update

    def total(self, params: Any) -> compensated.Sum:
        """-eta_l sum_i grad F_i(params), over all N clients."""

        def add(client, total):
            return compensated.add(total, self.of(params, client))

        return lax.fori_loop(0, self.num_clients, add, compensated.nothing(params))

    def mean(self, total: compensated.Sum) -> Any:
        """[*P]: eta_l times the mean gradient, a direction to descend, from such a sum over all clients."""
        return accumulate.scaled(-1 / self.num_clients, compensated.value(total))

    @property
    def num_clients(self) -> int:
        """N."""
        return self.data.offsets.shape[0] - 1


class Stale(NamedTuple):
    """``start`` [*P] is w^0, ``total`` the sum of -eta_l grad F_i(w_stale_i) over all clients i."""

    start: Any
    total: compensated.Sum


class State(NamedTuple):
    """What lasts: the rule's own state, that of its shadow (its copy on full gradients), and the stale gradients."""

    rule: Any
    shadow: Any
    stale: Stale


class Buffer(NamedTuple):
    """The rule's own buffer, that of its shadow, the stale gradients, and whether the step is measured ([] bool)."""

    rule: Any
    shadow: Any
    stale: Stale
    measured: Any


class Buffered(NamedTuple):
    """The shadow of a rule without memory, for each q < Q: ``weighted`` has the rule's buffers, fed with gradients at
    y_k,q, ``plain`` [*P] the sums of these gradients; ``trips`` [] counts."""

    weighted: tuple
    plain: tuple
    trips: jax.Array


class Sent(NamedTuple):
    """``update`` [*P] and ``key`` [2] uint32, the trip's random words: what clients send for the split in four."""

    update: Any
    key: jax.Array


@specification
def _decomposed(rule, full, learning_rate, at_steps, every_trip) -> Rule:
    """See ``decomposed``.

    rule: a Rule; full: FullGradients; at_steps: [S] int32, padded; every_trip: whether later steps may depend on any
    trip, so that each needs its full gradient.
    """

    def init(params, num_clients):
        own, shadow = rule.init(params, num_clients), rule.init(params, num_clients)
        return State(own, shadow, _stale_at_first(full, params))

    def begin(state, params):
        own, shadow = rule.begin(state.rule, params), rule.begin(state.shadow, params)
        return Buffer(own, shadow, state.stale, jnp.asarray(False))

    def remembers(arrival):
        stored = {"full": _full_gradient(full, arrival)}
        if rule.remembers:
            stored["rule"] = rule.remembers(arrival)
            stored["shadow"] = rule.remembers(arrival._replace(update=stored["full"]))
        return stored

    def fold_recalled(buffer, weight, row):
        own = rule.fold_recalled(buffer.rule, weight, row["rule"])
        shadow = rule.fold_recalled(buffer.shadow, weight, row["shadow"])
        return buffer._replace(rule=own, shadow=shadow)

    def fold(buffer, arrival):
        previous, stored = arrival.previous, arrival.stored
        own, report = rule.fold(
            buffer.rule, arrival._replace(previous=previous.get("rule"), stored=stored.get("rule"))
        )
        shadow, _ = rule.fold(
            buffer.shadow,
            arrival._replace(
                update=stored["full"], previous=previous.get("shadow"), stored=stored.get("shadow")
            ),
        )
        return Buffer(own, shadow, _received(full, buffer.stale, arrival), arrival.columns[_MEASURED]), report

    def finish(buffer, params):
        direction, own, report, apply = rule.finish(buffer.rule, params)
        shadow_direction, shadow, _, _ = rule.finish(buffer.shadow, params)
        noise = _minus(direction, shadow_direction)  # not in terms(): see _with_terms

        def terms():
            a, u_bar = _taken(apply, noise), _taken(apply, shadow_direction)
            stale, now = full.mean(buffer.stale.total), full.mean(full.total(params))
            return {
                "noise": _squared(a),
                "bias": _squared(_minus(u_bar, stale)),
                "delay": _squared(_minus(stale, now)),
                "error": _squared(_plus(a, _minus(u_bar, now))),
                "gradient": _squared(now),
            }

        report = _with_terms(report, buffer.measured, terms, learning_rate)
        return direction, State(own, shadow, buffer.stale), report, apply

    return rule._replace(
        init=init,
        begin=begin,
        fold=fold,
        finish=finish,
        columns=lambda schedule: _columns(rule, schedule, at_steps, every_trip),
        needs_start=True,
        remembers=remembers,
        fold_recalled=fold_recalled,
    )


@specification
def _decomposed_four_ways(rule, full, shorter, learning_rate, at_steps) -> Rule:
    """See ``decomposed_four_ways``; shorter: works that stop after 1, ..., Q - 1 steps; else as ``_decomposed``."""

    def init(params, num_clients):
        return State(rule.init(params, num_clients), (), _stale_at_first(full, params))

    def begin(state, params):
        per_step = range(1 + len(shorter))
        shadow = Buffered(
            weighted=tuple(rule.begin(state.rule, params) for _ in per_step),
            plain=tuple(accumulate.zeros(params) for _ in per_step),
            trips=accumulate.number(0),
        )
        return Buffer(rule.begin(state.rule, params), shadow, state.stale, jnp.asarray(False))

    def on_the_way(arrival):
        """-eta_l times the client's full gradients at y_1, ..., y_(Q - 1)."""
        start, client, key = arrival.start, arrival.client, arrival.update.key
        updates = [work.train(full.data, start, client, key).update for work in shorter]
        return tuple(full.of(jax.tree.map(jnp.add, start, update), client) for update in updates)

    def fold(buffer, arrival):
        measured = arrival.columns[_MEASURED]
        gradients = (arrival.stored["full"],)
        if shorter:
            nothing = tuple(accumulate.zeros(arrival.start) for _ in shorter)
            gradients += lax.cond(measured, lambda: on_the_way(arrival), lambda: nothing)
        own, report = rule.fold(buffer.rule, _for_the_rule(arrival, arrival.update.update))
        weighted, plain, trips = buffer.shadow
        shadow = Buffered(
            tuple(
                rule.fold(b, _for_the_rule(arrival, g))[0] for b, g in zip(weighted, gradients, strict=True)
            ),
            tuple(jax.tree.map(jnp.add, total, g) for total, g in zip(plain, gradients, strict=True)),
            trips + 1,
        )
        return Buffer(own, shadow, _received(full, buffer.stale, arrival), measured), report

    def finish(buffer, params):
        direction, own, report, apply = rule.finish(buffer.rule, params)
        weighted = [rule.finish(each, params)[0] for each in buffer.shadow.weighted]
        plain = [accumulate.scaled(-1 / buffer.shadow.trips, total) for total in buffer.shadow.plain]
        noise = jax.tree.map(lambda u, *each: (u - sum(each)) / len(each), direction, *weighted)

        def terms():
            stale, now = full.mean(buffer.stale.total), full.mean(full.total(params))
            given = [_taken(apply, each) for each in weighted]
            return {
                "staleness_error": _squared(_minus(now, stale)),
                "sampling_error": _squared(_minus(stale, plain[0])),
                "drift_error": _squared(*[_minus(plain[0], each) for each in plain]),
                "reweighting_error": _squared(*map(_minus, plain, given)),
                "four_way_error": _squared(*[_minus(now, each) for each in given]),
                "noise": _squared(_taken(apply, noise)),
                "gradient": _squared(now),
            }

        report = _with_terms(report, buffer.measured, terms, learning_rate)
        return direction, State(own, (), buffer.stale), report, apply

    return rule._replace(
        init=init,
        begin=begin,
        fold=fold,
        finish=finish,
        columns=lambda schedule: _columns(rule, schedule, at_steps, False),
        needs_start=True,
        remembers=lambda arrival: {"full": _full_gradient(full, arrival)},
    )


@specification
def _sending_key(work) -> ClientWork:
    """``work``, a ClientWork, whose updates come with the trip's random words."""

    def train(data: ClientData, start: Any, client: jax.Array, key: jax.Array) -> ClientResult:
        result = work.train(data, start, client, key)
        return result._replace(update=Sent(result.update, key))

    return work._replace(train=train)


def _in_order(**works: ClientWork) -> list[ClientWork]:
    return [works[name] for name in sorted(works)]


def _for_the_rule(arrival: Arrival, update: Any) -> Arrival:
    """``arrival`` as a rule without memory would have seen it, with another update."""
    return arrival._replace(update=update, previous=None, stored=None)


def _stale_at_first(full: FullGradients, params: Any) -> Stale:
    return Stale(params, full.total(params))


def _received(full: FullGradients, stale: Stale, arrival: Arrival) -> Stale:
    """The stale gradients with this arrival's, ``stored``, in the place of its client's last one, ``previous``."""
    previous = lax.cond(
        arrival.columns[_FIRST],
        lambda: full.of(stale.start, arrival.client),  # nothing is stored yet
        lambda: arrival.previous["full"],
    )
    return stale._replace(total=compensated.replace(stale.total, arrival.stored["full"], previous))


def _full_gradient(full: FullGradients, arrival: Arrival) -> Any:
    """[*P]: -eta_l times the full gradient where the trip started; zeros if no measured step depends on it."""
    return lax.cond(
        arrival.columns[_NEEDED],
        lambda: full.of(arrival.start, arrival.client),
        lambda: accumulate.zeros(arrival.start),
    )


def _with_terms(
    report: Mapping[str, Any], measured: jax.Array, terms: Callable[[], dict[str, jax.Array]], rate: Any
) -> dict[str, Any]:
    """The rule's report with ``terms``, squared norms in units of eta_l^2; zeros where the step is not measured.

    What ``terms`` reads is stored for it. Were that the rule's own direction, the compiler would no longer fuse it
    with the server optimizer, and the run would round differently from one that is not measured. So ``terms`` reads
    differences to it.
    """
    names = jax.eval_shape(terms)
    for name in (*names, "measured"):
        require(
            name not in report, "the name of a rule's report", name, "another: the decomposition reports it"
        )
    zeros = {name: accumulate.number(0) for name in names}
    values = lax.cond(
        measured,
        lambda: {name: accumulate.number(term) / rate**2 for name, term in terms().items()},
        lambda: zeros,
    )
    return {**report, **values, "measured": accumulate.number(measured)}


def _squared(*trees: Any) -> jax.Array:
    """The squared norm over all leaves [*P], the mean of those of several trees."""
    squares = [jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(trees)]
    return sum(squares[1:], squares[0]) / len(trees)


def _plus(first: Any, second: Any) -> Any:
    return jax.tree.map(jnp.add, first, second)


def _minus(first: Any, second: Any) -> Any:
    return jax.tree.map(jnp.subtract, first, second)


def _taken(apply: Any, direction: Any) -> Any:
    """[*P]: ``direction``, or zeros if the rule skips the step."""
    return direction if apply is True else accumulate.scaled(jnp.where(apply, 1, 0), direction)


def _columns(
    rule: Rule, schedule: EventSchedule, at_steps: np.ndarray, every_trip: bool
) -> dict[str, np.ndarray]:
    """The rule's columns and those of the decomposition, [J] bool each.

    measured: of a trip whose step is. first: of the first applied trip of a client. needed: where the trip's step is
    measured, or one before that of the client's next trip; everywhere if ``every_trip``.
    """
    require(
        int(at_steps[-1]) < schedule.num_steps,
        "the last of at_steps",
        int(at_steps[-1]),
        f"below the schedule's number of server steps, {schedule.num_steps}",
    )
    measured = np.zeros(schedule.num_steps, bool)
    measured[at_steps] = True
    first = np.zeros(schedule.num_trips, bool)
    first[np.unique(schedule.client, return_index=True)[1]] = True
    until = np.maximum(cached.replaced_at(schedule), schedule.step + 1)
    before = np.concatenate([[0], np.cumsum(measured)])
    needed = (before[until] > before[schedule.step]) | every_trip
    return {**rule.columns(schedule), _MEASURED: measured[schedule.step], _FIRST: first, _NEEDED: needed}


def _keeps_something(rule: Rule, client_work: Specification, federation: Federation) -> bool:
    """Whether anything lasts from one server step of the rule to the next."""
    model = client_work.build().model

    def state():
        params = model.init(jax.random.key(0), federation.x)
        return rule.init(params, federation.num_clients)

    return rule.remembers is not None or bool(jax.tree.leaves(jax.eval_shape(state)))


def _full_gradients(client_work: Specification, federation: Federation) -> Specification:
    """The specification of ``FullGradients``: the work with one batch of all examples; arrays are its leaves."""
    require(isinstance(federation, Federation), "federation", federation, "the run's jafl.Federation")
    # The objective is that of the model as it is evaluated: what dropout adds is noise.
    model = client_work.arguments["model"].as_evaluated()
    changes = {"model": model, "local_steps": 1, "local_epochs": None, "batch_size": 0}
    work = Specification(client_work.factory, {**client_work.arguments, **changes})
    partition = federation.partition
    data = Specification(
        ClientData,
        {
            "x": federation.x,
            "y": federation.y,
            "indices": _padded(partition.indices.astype(np.int32)),
            "offsets": partition.offsets.astype(np.int32),
        },
    )
    return Specification(FullGradients, {"work": work, "data": data})


def _learning_rate(client_work: Any) -> float:
    """eta_l; raises SettingError unless the work is plain SGD on the clients' own objectives."""
    made = isinstance(client_work, Specification) and "optimizer" in client_work.arguments
    require(made, "client_work", client_work, "what jafl.client_work returns")
    arguments = client_work.arguments
    optimizer = arguments["optimizer"]
    plain = isinstance(optimizer, Specification) and optimizer.factory is optax.sgd
    plain = plain and optimizer.arguments.get("momentum") is None
    rate: Any = optimizer.arguments["learning_rate"] if plain else None
    require(
        plain and not callable(rate),
        "the client's optimizer",
        optimizer,
        "plain SGD of one learning rate where the error is split",
        "Only then is an update a gradient times a known number: jafl.client_work(model, learning_rate=0.1).",
    )
    check_number("the client's learning rate", rate, minimum=0.0)
    require(rate > 0, "the client's learning rate", rate, "above 0 where the error is split")
    require(
        not arguments["proximal"],
        "proximal",
        arguments["proximal"],
        "None where the error is split: the proximal term is no part of the clients' objectives",
    )
    require(
        not arguments["learning_rate_normalization"],
        "learning_rate_normalization",
        True,
        "False where the error is split: with it no one learning rate turns updates back into gradients",
    )
    return float(rate)


def _linear(rule: Any) -> Specification:
    """The rule as a specification; raises SettingError unless it is linear in the updates."""
    rule = as_specification(rule)
    built = rule.build()
    require(isinstance(built, Rule), "rule", rule, "a jafl.Rule", "Call its factory: jafl.rules.fedbuff().")
    if not built.linear:
        why = _NOT_LINEAR.get(_name(rule), "a rule of your own that is says so, with linear=True")
        raise SettingError(
            f"rule is {_name(rule)!r}, but must be linear in the clients' updates where the error is split: {why}.",
            setting="rule",
        )
    require(
        built.memory_precision == "full",
        "memory_precision",
        built.memory_precision,
        "'full' where the error is split: rounding is not linear in the updates",
    )
    return rule


def _name(rule: Specification) -> str:
    return getattr(rule.factory, "__name__", "rule")


def _steps_to_measure(at_steps: Iterable[int]) -> np.ndarray:
    """[S] int32: the steps in order, padded, so that other steps, as many or a few more, do not recompile."""
    steps = sorted({whole_number("a step of at_steps", step, 0) for step in at_steps})
    require(steps, "at_steps", (), "at least one server step")
    return _padded(np.array(steps, np.int32))


def _padded(column: np.ndarray) -> np.ndarray:
    """``column`` with its length rounded up to a bucket, the rest repeating its last element."""
    return np.pad(column, (0, bucket(len(column)) - len(column)), mode="edge")
