"""Private training: any eligible rule with every trip clipped and the mechanism's noise in each step's direction."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jafl.base.described import described
from jafl.base.errors import SettingError, choose, is_whole_number, refusal, require
from jafl.base.step_scale import is_scale
from jafl.privacy.accounted_schedule import check_digests, digests, other_schedule, schedule_digest
from jafl.privacy.accounting import READINGS, PrivacyReport, account
from jafl.privacy.clipping import clip, plain_norm, wide
from jafl.privacy.gaussian import check_clip_and_noise, check_delta
from jafl.privacy.mechanisms import Mechanism, make_mechanism, trees
from jafl.privacy.noise import NoiseNumbers, keeps_arrays, key_words, make_noise, rows_kept
from jafl.privacy.weights import COUNTS, check_eligible, executed, rule_name
from jafl.records import Array, EventSchedule, Rounding, Rule
from jafl.rules import accumulate
from jafl.specifications import Drawn, Specification, as_rule, as_specification, for_schedule, is_drawn

# Steps of a tree that never restarts: more than any run has.
_ENDLESS = 2**31 - 1
SEED_DRAWN = (
    "The seed of the noise was drawn from the system's entropy for this run alone. It is kept in the run's "
    "checkpoints while it trains, and nowhere else."
)
SEED_GIVEN = (
    "The seed of the noise was given (noise_seed): whoever knows it can take the noise away, and two runs with one "
    "seed have the same noise. Of them nothing is claimed."
)


@described
def private(
    rule: Specification | Rule,
    *,
    clip_norm: float,
    delta: float,
    noise_multiplier: float | None = None,
    epsilon: float | None = None,
    mechanism: str = "tree_honaker",
    restarts: int = 0,
    bands: int | None = None,
    epsilon_reading: str = "realised",
    noise_seed: int | None = None,
    schedule: EventSchedule | None = None,
    data_in_schedule: Sequence[str] = (),
) -> Specification:
    """The rule with differential privacy for its clients; for use in the place of ``rule``.

    Each trip's update is clipped to the L2 norm ``clip_norm`` over all parameters, and each server step's direction
    gets the noise of the mechanism (DP-FTRL: Kairouz et al. 2021, arXiv:2103.00039, algorithm 1; FedBuff, algorithm 1
    lines 7, 12 and 13). The server takes the *difference* of two noisy prefix sums at each step, as DP-FTRL does;
    FedBuff's line 13 adds the whole prefix each time. The standard deviation of one node's noise is noise_multiplier
    * clip_norm * the largest weight with which a trip enters a direction (1/K for FedBuff's mean). The server
    optimizer gets the noisy direction, so any will do.

    How much noise an epsilon needs follows from the schedule: ``simulate`` finds it out before it compiles anything,
    and ``jafl.privacy.account`` says it without training. clip_norm, noise_multiplier, epsilon, delta and the seed of
    the noise are data: others do not compile again. Where the noise is 0, a step that ``rule`` would skip is skipped;
    otherwise it is made with noise alone, since a prefix sum has noise at every step.

    An update that is not finite cannot be clipped. It counts as 0, so that no client can destroy the model. Updates
    are clipped, added up and given their noise in 32 bits at least, and rounded to the model's precision after that.

    The noise is in floating point and of a generator that is not cryptographic (Threefry with 20 rounds): a
    simulation of what privacy costs, not a deployment.

    Reports, besides what ``rule`` does, per trip ``clipped``, 1 if its update was longer than ``clip_norm``, else 0,
    and ``not_finite``, 1 if it counted as 0 because it held NaN or infinity; per server step ``signal_norm`` and
    ``noise_norm``, the L2 norms of the direction without noise and of its noise. These, as the losses of trips, are
    the simulation's privilege: they are not private themselves.

    Args:
      rule: the algorithm; ``jafl.privacy.check_eligible`` says which are eligible.
      clip_norm: above 0. Infinity, which clips nothing, goes only with noise_multiplier=0: the run is then that of
        ``rule`` to the last bit, and nothing is claimed of it.
      delta: above 0 and below 1, of (epsilon, delta)-differential privacy.
      noise_multiplier: at least 0; or give epsilon.
      epsilon: above 0: the noise is what meets it; or give noise_multiplier.
      mechanism: "independent", "tree", "tree_honaker" or "banded_toeplitz", see ``jafl.privacy.mechanisms``.
      restarts: of a tree: how often a new one begins.
      bands: of "banded_toeplitz": coefficients of a step's noise; 64 by default.
      epsilon_reading: which epsilon is to be met: "realised" (of the schedule as it is), "once" (as if each client
        took part once, the published reading) or "worst_case".
      noise_seed: of the noise, a whole number below 2^64. Which node has which noise depends on it and on nothing
        else of the run. Default: each run draws 128 bits of its own from the system's entropy. A run that is resumed
        takes them from its checkpoint. Whoever knows the seed can take the noise away: give one in tests alone.
      schedule: the schedule that was accounted, if that was done before: a run on another one is refused.
      data_in_schedule: what the schedule was made from that clients hold, such as "how many examples each client
        holds" where durations grow with them; the report says that it is public.

    Returns:
      The rule, as a specification, for ``jafl.simulate``.

    Raises:
      SettingError: for numbers out of their ranges, both or neither of epsilon and noise_multiplier, a rule that is
        not eligible (names those that are), or one that is private already. When the run starts: for a schedule
        other than the accounted one, or more restarts than it has steps.

    Examples:
      >>> rule = jafl.private(jafl.rules.fedbuff(), clip_norm=0.5, noise_multiplier=1.0, delta=1e-5)
    """
    inner = as_rule(rule)
    _refuse_private(inner)
    _check_same_norm(inner, clip_norm)
    _refuse_unknown_counts(inner, check_eligible(inner))
    noise = make_mechanism(mechanism, restarts, bands)
    check_delta(delta)
    allowed = "left out where noise_multiplier is given: one follows from the other"
    require(noise_multiplier is None or epsilon is None, "epsilon", epsilon, allowed)
    check_clip_and_noise(clip_norm, noise_multiplier, epsilon)
    choose("epsilon_reading", epsilon_reading, READINGS)
    request = {
        "rule": inner,
        "clip_norm": float(clip_norm),
        "noise_multiplier": None if noise_multiplier is None else float(noise_multiplier),
        "epsilon": None if epsilon is None else float(epsilon),
        "delta": float(delta),
        "mechanism": noise,
        "epsilon_reading": epsilon_reading,
        "noise_seed": _seed(noise_seed),
        "accounted": None if schedule is None else schedule_digest(schedule),
        "data_in_schedule": tuple(data_in_schedule),
    }
    return PrivateRule(private, request)


def _seed(noise_seed: Any) -> int | None:
    fits = noise_seed is None or is_whole_number(noise_seed) and 0 <= int(noise_seed) < 2**64
    remedy = "Left out, it is drawn."
    require(fits, "noise_seed", noise_seed, "a whole number, at least 0 and below 2**64", remedy)
    return None if noise_seed is None else int(noise_seed)


def _check_same_norm(rule: Specification, clip_norm: float) -> None:
    """Raises SettingError where a rule that clips by itself (``jafl.secure``) has another clip norm."""
    rounding = rule.build().rounding
    if rounding is not None:
        remedy = "Updates are clipped once: give jafl.private and jafl.secure the same clip_norm."
        allowed = f"{rounding.clip_norm:g}, that of the rule"
        require(clip_norm == rounding.clip_norm, "clip_norm", clip_norm, allowed, remedy)


def _refuse_unknown_counts(rule: Specification, reads: tuple[str, ...]) -> None:
    """Raises SettingError for a rule whose weights follow from what trips do, which no schedule tells."""
    unknown = [COUNTS[name] for name in reads if name != "num_examples"]
    if unknown:
        allowed = "a rule whose weights follow from the schedule and from how many examples each client holds"
        remedy = (
            f"Its weights follow from {' and '.join(unknown)}, too. jafl.privacy.account, which is given these "
            "numbers, can say what such a run would claim."
        )
        raise refusal("rule", rule_name(rule), allowed, remedy)


def _refuse_private(rule: Specification) -> None:
    """Raises SettingError for a rule that is private already, or has a private one in it."""
    inside: Any = rule
    while isinstance(inside, Specification):
        if isinstance(inside, (PrivateRule, AccountedRule)):
            raise SettingError(
                "rule is private already: its updates would be clipped twice, and get two noises. Give private() "
                "the rule itself.",
                setting="rule",
            )
        inside = inside.arguments.get("rule")


@jax.tree_util.register_pytree_node_class
class AccountedRule(Specification):
    """A private rule on the schedule that it has been accounted for: it runs on no other.

    A copy that JAX has made has neither the report nor the rule that ``private`` was given.
    """

    report: PrivacyReport | None = None
    requested: Specification | None = None

    def build(self) -> Rule:
        """The rule; on the host it refuses other schedules, and other numbers of examples where they count."""
        rule: Rule = super().build()
        on_host = isinstance(self.arguments["accounted"], np.ndarray)
        return rule._replace(for_schedule=self._on_its_schedule) if on_host else rule

    def _on_its_schedule(self, schedule: EventSchedule, num_examples: np.ndarray) -> None:
        check_digests(self.arguments["accounted"], digests(self.arguments["rule"], schedule, num_examples))


def report_of(rule: Any) -> PrivacyReport | None:
    """What a private run claims.

    Args:
      rule: of a run that has been prepared (``Experiment.rule``).

    Returns:
      The report; None of a rule that is not private.
    """
    return rule.report if isinstance(rule, AccountedRule) else None


@jax.tree_util.register_pytree_node_class
class PrivateRule(Specification):
    """A private rule whose noise is not known before its schedule is; its arguments are those of ``private``."""

    def build(self) -> Rule:
        """The rule, which can say which schedules it needs, and cannot run before it has got one."""
        rule, mechanism = self.arguments["rule"].build(), self.arguments["mechanism"]

        def begin(state, params):
            raise SettingError(
                "rule is private, and its noise follows from a schedule: run it with jafl.simulate, or give it its "
                "schedule first (rule.build().for_schedule(schedule, num_examples)).",
                setting="rule",
            )

        additive = rule.additive and not keeps_arrays(mechanism)
        return rule._replace(
            begin=begin, for_schedule=self._on_schedule, linear=False, additive=additive, rounding=None
        )

    def _on_schedule(self, schedule: EventSchedule, num_examples: np.ndarray) -> "AccountedRule":
        request = dict(self.arguments)
        accounted, seed = request.pop("accounted"), request.pop("noise_seed")
        if accounted is not None and schedule_digest(schedule) != accounted:
            raise other_schedule()
        requested = request.pop("rule")
        rule = as_specification(for_schedule(requested, schedule, num_examples))
        report = account(schedule, rule, **request, num_examples=num_examples)
        accounted_for = {"accounted": digests(rule, schedule, num_examples)}
        if report.clip_norm == math.inf:  # then there is no noise either
            resolved = AccountedRule(_unprotected, {"rule": rule} | accounted_for)
        else:
            numbers = _numbers(rule, report, seed, schedule.num_steps)
            resolved = AccountedRule(_private_on_schedule, numbers | accounted_for)
        seed_condition = SEED_DRAWN if seed is None else SEED_GIVEN
        all_conditions = (
            (*report.conditions, seed_condition) if report.noise_multiplier else report.conditions
        )
        resolved.requested = requested
        resolved.report = dataclasses.replace(report, conditions=all_conditions)
        return resolved


def _numbers(rule: Specification, report: PrivacyReport, seed: int | None, num_steps: int) -> dict[str, Any]:
    """The arguments of ``_private_on_schedule``."""
    mechanism = report.mechanism
    size = trees(mechanism, num_steps).size if mechanism.restarts else _ENDLESS
    return {
        "rule": rule,
        "clip_norm": report.clip_norm,
        "deviation": report.noise_deviation,
        "words": Drawn() if seed is None else key_words(seed),
        "tree_steps": np.array(size, np.int32),
        "num_steps": np.array(num_steps if mechanism.restarts else _ENDLESS, np.int32),
        "mechanism": mechanism,
        "rows": rows_kept(mechanism, num_steps),
    }


def _unprotected(rule, accounted) -> Rule:
    """``rule`` as it is, for an infinite clip norm: what looks at its directions would change their last bits."""

    def fold(buffer, arrival):
        buffer, report = rule.fold(buffer, arrival)
        return buffer, {**report, "clipped": accumulate.number(0)}

    return rule._replace(fold=fold, rounding=None)


class _Own(NamedTuple):
    """What a private rule keeps beside the rule in it."""

    step: Array  # [] int32: of the server
    kept: Any  # what the noise keeps from step to step
    drawn: Any  # the key of the noise where it was drawn: here it is in the checkpoints; else ()


def _private_on_schedule(
    rule, clip_norm, deviation, words, tree_steps, num_steps, mechanism: Mechanism, rows, accounted
) -> Rule:
    """``rule`` with clipping, and noise of which a node has the standard ``deviation`` in the direction.

    Updates, their sum and the noise have 32 bits at least: a sum in bfloat16 may move by more than an update's norm.
    accounted: the digests of what was accounted for. The others are of ``noise.NoiseNumbers`` and
    ``noise.make_noise``.
    """
    within = executed(rule)

    def noise_source(params, own_key):
        leaves = jax.tree.leaves(params)
        dtype = jnp.result_type(jnp.float32, *leaves)
        size = sum(leaf.size for leaf in leaves)
        numbers = NoiseNumbers(own_key.words if is_drawn(words) else words, tree_steps, num_steps)
        return make_noise(mechanism, rows, numbers, size, dtype)

    def init(params, num_clients):
        own_key = Drawn(jnp.asarray(words.words)) if is_drawn(words) else ()
        own = _Own(jnp.int32(0), noise_source(params, own_key or words).init(), own_key)
        return rule.init(params, num_clients), own

    def begin(state, params):
        return rule.begin(state[0], wide(params)), state[1]

    def fold(buffer, arrival):
        limit = clip_norm
        if rule.rounding is not None:  # which may lengthen an update by a unit in each entry
            limit = clip_norm - rule.rounding.unit * math.sqrt(_size(arrival.update))
        short = clip(arrival.update, limit)
        folded, report = rule.fold(buffer[0], arrival._replace(update=short.update))
        counts = {"clipped": short.clipped, "not_finite": short.not_finite}
        return (folded, buffer[1]), {**report, **counts}

    def finish(buffer, params):
        folded, own = buffer
        direction, state, report, apply = within.finish(folded, wide(params))
        is_noisy = jnp.asarray(deviation) > 0
        noise, memory = noise_source(params, own.drawn).at_step(own.kept, own.step, jnp.where(is_noisy, 1, 0))
        noisy = jax.tree.map(
            lambda d, n, p: (d + (jnp.asarray(deviation, n.dtype) * n).astype(d.dtype)).astype(p.dtype),
            direction,
            _like(noise, params),
            params,
        )
        norms = {"signal_norm": plain_norm(direction), "noise_norm": deviation * plain_norm(noise)}
        # A step that is scaled is made, and all of its noise is in the optimizer's state.
        apply = apply if apply is True or is_scale(apply) else apply | is_noisy
        own = _Own(own.step + 1, memory, own.drawn)
        return noisy, (state, own), {**report, **norms}, apply

    # Where the parts of a step are added up, so is all that the buffer holds: for large arrays that last, that costs
    # more than it saves.
    return rule._replace(
        init=init,
        begin=begin,
        fold=fold,
        finish=finish,
        linear=False,
        additive=rule.additive and not keeps_arrays(mechanism),
        rounding=None,
        check_model=lambda params: _check_room(clip_norm, rule.rounding, params),
    )


def _size(params: Any) -> int:
    return sum(math.prod(jnp.shape(leaf)) for leaf in jax.tree.leaves(params))


def _check_room(clip_norm: Any, rounding: Rounding | None, params: Any) -> None:
    """Raises SettingError where rounding alone may exceed the clip norm."""
    if rounding is None:
        return
    size, bits = _size(params), round(-math.log2(rounding.unit))
    enough = math.floor(math.log2(math.sqrt(size) / clip_norm)) + 1
    allowed = f"enough for rounding {size:,} parameters to change a norm by less than clip_norm={clip_norm:g}"
    require(bits >= enough, "fraction_bits", bits, allowed, f"fraction_bits={enough} would do.")


def _like(vector: Array, params: Any) -> Any:
    """The entries of a vector [P] as the leaves [*P] of a model, in their order."""
    leaves, structure = jax.tree.flatten(params)
    ends = np.cumsum([leaf.size for leaf in leaves])
    parts = [
        vector[end - leaf.size : end].reshape(leaf.shape) for leaf, end in zip(leaves, ends, strict=True)
    ]
    return jax.tree.unflatten(structure, parts)
