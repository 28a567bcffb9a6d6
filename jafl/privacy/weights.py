"""With which weight each trip enters the server's direction, from the rule's own functions, before training.

Privacy is accounted for rules whose direction is minus a sum of weighted updates, with weights that follow from the
schedule, and at most from numbers of examples and of local steps, which are then public. ``check_eligible`` finds out
from the traced rule whether that is so; ``trip_weights`` runs it on a model of a single number.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jafl.base.errors import SettingError, refusal, require
from jafl.base.jaxpr_dependence import dependences
from jafl.base.jaxpr_sizes import same_but_for_sizes
from jafl.base.precision import on_host
from jafl.base.step_scale import is_scale
from jafl.records import Arrival, EventSchedule, Rule
from jafl.schedule import asynchronous, delays
from jafl.specifications import Specification, as_specification, for_schedule

# Numbers of a trip that follow from the data, each with what is public where a rule's weights read it.
COUNTS = {
    "num_examples": "how many examples each client holds",
    "batch_examples": "how many examples each trip has used",
    "local_steps": "how many local steps each trip has made",
}
_TOLERANCE = 1e-9  # relative, in float64
_SEED = 20_240_607


class _Step(NamedTuple):
    """What one server step on a small model reads: K updates, K losses, the model, and the counts of its trips."""

    updates: Any
    losses: Any
    params: Any
    counts: dict[str, Any]


def check_eligible(rule: Rule | Specification) -> tuple[str, ...]:
    """Checks that privacy can be accounted for a rule.

    Args:
      rule: the rule, or a specification of one.

    Returns:
      Those of ``COUNTS`` that its weights read: they are public then.

    Raises:
      SettingError: if it cannot; names the rule, the reason, and the eligible rules of ``jafl.rules``.

    Examples:
      >>> check_eligible(jafl.rules.fedavg(weigh_by_examples=True))
      ('num_examples',)
    """
    reads = examined(rule)
    if isinstance(reads, str):
        allowed = "a rule whose weights follow from the schedule and from public counts alone"
        remedy = f"{reads[0].upper()}{reads[1:]}. Eligible are {', '.join(eligible_rules())}."
        raise refusal("rule", _Named(rule_name(rule)), allowed, remedy)
    return reads


def eligible_rules() -> list[str]:
    """The names of those of ``jafl.rules.RULES`` that are eligible with their default numbers."""
    from jafl.rules import RULES

    return [name for name, factory in RULES.items() if _is_eligible(factory)]


@functools.cache
def _is_eligible(factory: Any) -> bool:
    try:
        rule = factory()
    except TypeError:  # it needs arguments: one without them cannot be tried
        return False
    return not isinstance(examined(rule), str)


def rule_name(rule: Rule | Specification) -> str:
    """The name of the function that made a rule; with that of the rule in it, if there is one."""
    if isinstance(rule, Specification):
        name = str(getattr(rule.factory, "__name__", rule.factory)).lstrip("_").removesuffix("_on_schedule")
        inner = rule.arguments.get("rule")
        return f"{name}({rule_name(inner)})" if isinstance(inner, Specification) else name
    maker = getattr(rule, "fold", rule)
    return str(getattr(maker, "__qualname__", maker)).split(".<locals>.")[-2:][0]


class _Named(str):
    """A name that is shown without quotes."""

    def __repr__(self) -> str:
        return str(self)


def examined(rule: Rule | Specification) -> tuple[str, ...] | str:
    """Those of ``COUNTS`` that a rule's weights read, or why it is not eligible: a sentence without a full stop."""
    made = as_specification(rule).build()
    require(isinstance(made, Rule), "rule", rule, "a rule", "Call its factory: jafl.rules.fedbuff().")
    leaves, form = jax.tree.flatten(as_specification(rule))
    try:
        hash((form, *leaves))
    except TypeError:  # it holds an array, or something else that cannot be compared
        return _examined.__wrapped__(form, *leaves)
    return _examined(form, *leaves)


# A private run asks several times, and each answer takes as long as a short run.
@functools.lru_cache(maxsize=32)
def _examined(form: Any, *leaves: Any) -> tuple[str, ...] | str:
    """As ``examined``, of a specification's form and numbers."""
    built: Rule = jax.tree.unflatten(form, leaves).build()
    if built.rounding:
        built = built.rounding.rule
    wanted = built.requirements
    if built.memory:
        return "the server remembers what clients have sent, so that one trip enters many steps"
    if built.broadcast:
        return "what it broadcasts beside the model would be a release of its own, without noise"
    if wanted.correction:
        return (
            "its clients keep a state from trip to trip, so that one trip's examples enter later updates, too"
        )
    if wanted.needs_start:
        return "it mixes the downloaded models themselves into the server's, not only clipped updates"
    if not wanted.linear:
        return "it is not linear in the updates (Requirements.linear), so that its weights depend on them"
    if not wanted.additive:
        return "its buffer is not a sum (Requirements.additive)"
    with on_host():
        if jax.tree.leaves(jax.eval_shape(lambda: built.init(_small_model(), 4))):
            return "it keeps numbers of its own from step to step"
        reads = _traced(built)
        if not isinstance(reads, str) and _reads_sizes(built):
            return "its weights depend on the shapes or the number of a model's parameters"
        return reads


def _small_model(factor: int = 1) -> dict[str, jax.Array]:
    """Two arrays of different shapes, so that a rule that treats arrays differently is found out."""
    return {"first": jnp.ones(2 * factor), "second": jnp.ones((1, 3 * factor))}


def _reads_sizes(rule: Rule) -> bool:
    """Whether a rule does something else with larger models than with the number that ``trip_weights`` takes."""

    def trace(model: Any) -> Any:
        step, direction = _small_step(rule, model)
        return jax.make_jaxpr(direction)(step)

    def ones_direction(model: Any) -> Any:
        step, direction = _small_step(rule, model)
        return direction(step._replace(updates=jax.tree.map(jnp.ones_like, step.updates)))[0]

    models = (_small_model(), _small_model(1_000)), (jnp.ones(5), jnp.ones(5_000))
    if not all(same_but_for_sizes(trace(one), trace(other)) for one, other in models):
        return True
    actual, expected = (jax.tree.leaves(ones_direction(model)) for model in (_small_model(), jnp.ones(())))
    return not all(np.allclose(leaf, expected[0], rtol=_TOLERANCE, equal_nan=True) for leaf in actual)


def _traced(rule: Rule) -> tuple[str, ...] | str:
    """What the factors of a step of ``rule`` depend on, or why they may not."""
    step, direction = _small_step(rule, _small_model())

    def derivative(step: _Step, change: Any) -> Any:
        return jax.jvp(lambda updates: direction(step._replace(updates=updates))[0], (step.updates,), change)[
            1
        ]

    leaves = [len(jax.tree.leaves(part)) for part in step]
    place = np.repeat(np.arange(len(leaves)), leaves)
    direction_reads, apply = dependences(direction, step)
    factors = _union(dependences(derivative, step, (step.updates,)))
    reads = {int(place[leaf]) for leaf in (factors | _union(apply)) if leaf < len(place)}
    constant = {int(place[leaf]) for leaf in _union(direction_reads)}
    for number, what in enumerate(("updates", "losses", "parameters")):
        if number in reads or number and number in constant:
            return f"its weights depend on the {what}"
    if reason := _not_weighted_sums(step, direction):
        return reason
    first = sum(leaves[:3])
    return tuple(
        name for number, name in enumerate(sorted(COUNTS)) if first + number in factors | _union(apply)
    )


def _small_step(rule: Rule, model: Any) -> tuple[_Step, Any]:
    """A server step of ``rule`` on a model, and the function from what it reads to (direction, whether to step)."""
    size = rule.buffer_size or 2
    schedule = asynchronous(
        num_clients=size + 2,
        concurrency=size + 1,
        buffer_size=size,
        client_trips=2 * size,
        delay=delays.half_normal(1.0),
    )
    columns = {name: np.asarray(column) for name, column in rule.columns(schedule).items()}
    random = np.random.default_rng(_SEED)

    def like_model() -> Any:
        return jax.tree.map(lambda leaf: jnp.asarray(random.normal(size=leaf.shape)), model)

    def direction(step: _Step) -> tuple[Any, Any]:
        buffer = rule.begin((), step.params)
        for trip in range(size):
            arrival = Arrival(
                update=step.updates[trip],
                start=None,
                client=jnp.asarray(schedule.client[trip]),
                staleness=jnp.asarray(schedule.staleness[trip]),
                loss=step.losses[trip],
                columns={name: column[trip] for name, column in columns.items()},
                **step.counts,
            )
            buffer, _ = rule.fold(buffer, arrival)
        direction, _, _, apply = rule.finish(buffer, step.params)
        return direction, jnp.asarray(apply)

    counts = {name: jnp.int32(number) for name, number in zip(sorted(COUNTS), (5, 3, 10), strict=True)}
    updates = tuple(like_model() for _ in range(size))
    return _Step(updates, jnp.full(size, 0.5), model, counts), direction


def _not_weighted_sums(step: _Step, direction: Any) -> str | None:
    """Why a direction is not minus a sum of updates, each with one factor for all parameters; None if it is."""
    ones = jax.tree.map(jnp.ones_like, step.updates)
    zeros = jax.tree.map(jnp.zeros_like, step.updates)
    expected: Any = 0.0
    for trip, update in enumerate(step.updates):
        alone = (*zeros[:trip], ones[trip], *zeros[trip + 1 :])
        factors = _joined(direction(step._replace(updates=alone))[0])
        if np.ptp(factors) > _TOLERANCE * np.max(np.abs(factors), initial=0.0):
            return "it treats the arrays of a model differently"
        expected = expected + factors * _joined(update)
    vector = _joined(direction(step)[0])
    if not np.allclose(vector, expected, rtol=_TOLERANCE, atol=_TOLERANCE):
        return "its direction is not a weighted sum of the updates"
    return None


def _joined(tree: Any) -> np.ndarray:
    return np.concatenate([np.asarray(leaf).reshape(-1) for leaf in jax.tree.leaves(tree)])


def _union(dependence_sets: Any) -> frozenset[int]:
    """All arguments on which one of the results depends."""
    return frozenset().union(
        *jax.tree.leaves(dependence_sets, is_leaf=lambda value: isinstance(value, frozenset))
    )


def trip_weights(
    rule: Rule | Specification,
    schedule: EventSchedule,
    num_examples: np.ndarray | None = None,
    *,
    local_steps: np.ndarray | None = None,
    batch_examples: np.ndarray | None = None,
) -> np.ndarray:
    """With which weight each trip's update enters the direction of its server step.

    The direction is minus the sum of weight times update. The rule's own ``fold`` and ``finish`` are run on a model
    of a single number, in 64 bits, on the host: once without updates and once for each trip with it alone.

    Args:
      rule: the rule, or a specification of one; ``check_eligible`` says whether it is eligible.
      schedule: the events, J trips.
      num_examples: [N] integers, examples of each client; needed where the weights depend on them.
      local_steps: [J] integers, local steps of each trip; likewise.
      batch_examples: [J] integers, examples that each trip has used; likewise.

    Returns:
      [J] float64; 0 for the trips of a step that the rule skips.

    Raises:
      SettingError: for a rule that is not eligible, counts that it needs and that are not given or do not fit the
        schedule, or weights that are not finite.

    Examples:
      >>> schedule = jafl.synchronous(
      ...     num_clients=8, cohort_size=4, client_trips=8, delay=jafl.delays.half_normal(1.0)
      ... )
      >>> trip_weights(jafl.rules.fedavg(), schedule).tolist()
      [0.25, 0.25, 0.25, 0.25, 0.25, 0.25, 0.25, 0.25]
    """
    reads = check_eligible(rule)
    counts_by_name = _counts(rule, schedule, reads, num_examples, local_steps, batch_examples)
    if not schedule.num_trips:
        return np.zeros(0)
    with on_host():
        counts: Any = num_examples  # None where the weights do not read them
        resolved = as_specification(for_schedule(rule, schedule, counts))
        weights, residue = _by_running(resolved, schedule, counts_by_name)
    finite = np.isfinite(weights)
    if not finite.all():
        trip = int(np.argmin(finite))
        remedy = f"It is that of trip {trip}, the first without."
        raise refusal(f"a weight of {rule_name(rule)}", float(weights[trip]), "a finite number", remedy)
    if not residue <= _TOLERANCE * max(1.0, float(np.abs(weights).max())):
        reason = f"On this schedule the direction of {rule_name(rule)} is no weighted sum of the updates."
        raise SettingError(
            f"{reason} Is Requirements(linear=True, additive=True) true of it?", setting="rule"
        )
    return weights


def _counts(
    rule: Any, schedule: EventSchedule, reads: tuple[str, ...], num_examples: Any, local_steps: Any, used: Any
) -> dict[str, np.ndarray]:
    """{count: [J] int32}; 1 where the rule does not read it."""
    shape = (schedule.num_clients,)
    if num_examples is not None:
        num_examples = np.asarray(num_examples)
        allowed = f"{shape}, one number per client of the schedule"
        require(num_examples.shape == shape, "the shape of num_examples", num_examples.shape, allowed)
        num_examples = num_examples[schedule.client]
    counts_by_name = {"num_examples": num_examples, "local_steps": local_steps, "batch_examples": used}
    for name in reads:
        remedy = f"The weights of {rule_name(rule)} depend on {COUNTS[name]}."
        require(counts_by_name[name] is not None, name, None, "given", remedy)
    counts = {}
    for name, values in counts_by_name.items():
        counts[name] = (
            np.ones(schedule.num_trips, np.int32) if values is None else np.asarray(values, np.int32)
        )
        fits = counts[name].shape == (schedule.num_trips,)
        require(
            fits, f"the shape of {name}", counts[name].shape, f"({schedule.num_trips},), one number per trip"
        )
    return counts


def _by_running(
    rule: Specification, schedule: EventSchedule, counts: dict[str, np.ndarray]
) -> tuple[np.ndarray, float]:
    """(weights [J], how far random updates' directions are from their weighted sums)."""
    columns = {name: jnp.asarray(column) for name, column in rule.build().columns(schedule).items()}
    facts = {name: jnp.asarray(value) for name, value in counts.items()}
    facts |= {"client": jnp.asarray(schedule.client), "staleness": jnp.asarray(schedule.staleness)}
    random = jnp.asarray(np.random.default_rng(_SEED).normal(size=schedule.num_trips))
    step = jnp.asarray(schedule.step)
    weights, residue = _run(rule, step, facts, columns, random, num_steps=schedule.num_steps)
    return np.asarray(weights, np.float64), float(residue)


def executed(rule: Rule) -> Rule:
    """The rule as a private run executes it: it makes every step, and one that ``rule`` skips has the direction 0.

    Noise is added to every step, since a prefix sum has noise at every step. The account is of this rule, too.
    """

    def finish(buffer: Any, params: Any) -> Any:
        direction, state, report, apply = rule.finish(buffer, params)
        if apply is True or is_scale(apply):  # a scaled step has its whole direction
            return direction, state, report, apply
        return jax.tree.map(lambda leaf: jnp.where(apply, leaf, 0), direction), state, report, apply

    return rule._replace(finish=finish)


@functools.partial(jax.jit, static_argnames="num_steps")
def _run(
    rule: Specification, step: jax.Array, facts: dict, columns: dict, random: jax.Array, *, num_steps: int
) -> tuple[jax.Array, jax.Array]:
    """As ``_by_running``, for one rule with any numbers: compiled once for schedules of one size."""
    built, params = rule.build(), jnp.zeros(())
    built = executed(built.rounding.unrounded if built.rounding else built)

    def folded(update: jax.Array, facts: dict, columns: dict) -> Any:
        """One trip's part of the buffer, which starts with zeros."""
        arrival = Arrival(update=update, start=None, loss=jnp.zeros(()), columns=columns, **facts)
        return built.fold(built.begin((), params), arrival)[0]

    def finished(buffer: Any) -> jax.Array:
        direction: jax.Array = built.finish(buffer, params)[0]
        return direction

    def step_sums(parts: Any) -> Any:
        total = lambda part: jax.ops.segment_sum(part, step, num_steps)  # noqa: E731
        return jax.tree.map(total, parts)

    parts = jax.vmap(folded)
    without = parts(jnp.zeros(len(step)), facts, columns)
    alone = parts(jnp.ones(len(step)), facts, columns)
    opened = step_sums(without)
    with_it = jax.tree.map(lambda whole, new, old: whole[step] + (new - old), opened, alone, without)
    weights = jax.vmap(finished)(opened)[step] - jax.vmap(finished)(with_it)
    mixed = jax.vmap(finished)(step_sums(parts(random, facts, columns)))
    there = step_sums(jnp.ones(len(step))) > 0
    residue = jnp.where(there, mixed + step_sums(weights * random), 0.0)
    return weights, jnp.max(jnp.abs(residue))
