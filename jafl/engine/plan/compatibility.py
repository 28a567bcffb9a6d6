"""Whether the parts of an experiment fit each other, said on the host, before anything runs."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jafl.base.errors import choose, require
from jafl.clients.records import ClientWork
from jafl.data import Federation
from jafl.engine.loop import client_memory
from jafl.engine.loop.server_steps import Carry
from jafl.engine.plan.model_checks import check_model
from jafl.models import Model
from jafl.privacy.private import report_of
from jafl.records import EventSchedule, Params, Rule
from jafl.records.histories import EVALUATION_COLUMNS, check_column
from jafl.specifications import Specification, as_rule


def check_types(federation: Any, client_work: Any, rule: Any) -> None:
    """Raises SettingError where an argument is not of the kind that it must be."""
    made_by = "jafl.federate(source, partition) or jafl.Federation.from_arrays"
    if isinstance(federation, Mapping):
        made_by = "jafl.Federation.from_clients({client: (x, y)})"
    remedy = f"Make one with {made_by}."
    require(isinstance(federation, Federation), "federation", federation, "a jafl.Federation", remedy)
    # Built before it is looked at: a specification is a call that says nothing of its result.
    built = client_work.build() if isinstance(client_work, Specification) else client_work
    require(isinstance(built, ClientWork), "client_work", client_work, "what jafl.client_work returns")
    as_rule(rule)


def check_fit(
    schedule: EventSchedule, federation: Federation, rule: Rule, model: Model, params: Params
) -> None:
    """Raises SettingError where schedule, federation, rule and model do not fit each other."""
    require(
        schedule.num_clients == federation.num_clients,
        "the schedule's num_clients",
        schedule.num_clients,
        f"the federation's number of clients, {federation.num_clients}",
    )
    if rule.check_schedule:
        rule.check_schedule(schedule)
    _check_steps(schedule, rule)
    check_model(federation, model, params)
    if rule.check_model:
        rule.check_model(params)


def check_compression(work: ClientWork, rule: Specification) -> None:
    """Raises SettingError where updates are compressed that a rule clips or masks, the rule of its schedule."""
    by = "jafl.private" if report_of(rule) else "jafl.secure" if rule.build().rounding else None
    if work.compression is not None and by:
        remedy = (
            "What a client keeps of its earlier updates is outside the account of its privacy."
            if by == "jafl.private"
            else "Masked updates are sent in whole numbers of their own, one for each parameter."
        )
        require(False, "compression", work.compression, f"None for a rule of {by}", remedy)


def check_exchange(work: ClientWork, rule: Rule, params: Params) -> None:
    """Raises SettingError where rule and client work do not suit each other, or a client's state cannot be held.

    params: [*P] the initial ones, or their shapes.
    """
    own, wanted = work.correction, rule.correction
    if own != wanted:
        remedy = (
            f'Make it with jafl.client_work(..., correction="{wanted}").'
            if wanted
            else f"Leave it out, or take the rule that is made for it, such as jafl.rules.{own}()."
        )
        require(False, "the client work's correction", own, f"{wanted!r}, that of the rule", remedy)
    shapes = work.state_shapes(params)
    if shapes is None or work.state is None:
        return
    precision = work.state.precision
    choose("the precision of the clients' state", precision, dict.fromkeys(client_memory.PRECISIONS))
    for path, leaf in jax.tree_util.tree_leaves_with_path(shapes):
        fits = jnp.issubdtype(leaf.dtype, jnp.floating) or jnp.issubdtype(leaf.dtype, jnp.integer)
        name = f"the type of what a client keeps at {jax.tree_util.keystr(path)}"
        require(fits, name, str(leaf.dtype), "a floating type, or an integer one")
    if precision != "full" and not any(isinstance(p, _NO_NUMBERS) for p in jax.tree.leaves(params)):
        _check_first_state(work.state.initial(params), precision)
    if rule.remembers:
        name, allowed = (
            "the precision of the clients' state",
            f"{rule.memory_precision!r}, as the rule's memory",
        )
        remedy = "What rule and client work store for a client lies in one row."
        require(precision == rule.memory_precision, name, precision, allowed, remedy)


# What stands for parameters where only their shapes are known.
_NO_NUMBERS = (jax.ShapeDtypeStruct, jax.core.Tracer)


def _check_first_state(state: Any, precision: str) -> None:
    """Raises SettingError for a first state of which no difference can be held."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        # A number of a traced run cannot be looked at.
        if isinstance(leaf, jax.core.Tracer) or not jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
            continue
        values = np.asarray(jax.device_get(leaf), np.float64)
        wrong = values[~np.isfinite(values)]
        name = f"what a client keeps at {jax.tree_util.keystr(path)} at first"
        allowed = f"finite where the precision of the clients' state is {precision!r}"
        remedy = "In few bits the memory holds differences from it: take a large number, or precision 'full'."
        require(not wrong.size, name, float(wrong[0]) if wrong.size else None, allowed, remedy)


def _check_steps(schedule: EventSchedule, rule: Rule) -> None:
    """Raises SettingError unless every server step applies as many trips as the rule needs."""
    sizes = np.diff(schedule.step_offsets)
    if rule.initial_round:
        require(
            sizes[0] == schedule.num_clients,
            "initial_round",
            False,
            "True for this rule: every client trains at the initial model before the first server step",
            "Make the schedule by asynchronous(initial_round=True, concurrency=num_clients, ...).",
        )
        first = np.unique(schedule.client[: sizes[0]]).size
        allowed = f"all {schedule.num_clients}, once each, for this rule"
        require(first == sizes[0], "the number of clients in the initial round", first, allowed)
        # A round of all clients is larger than a buffer, by design: the buffer's size is that of all later steps.
        sizes = sizes[1:]
    if rule.buffer_size is not None:
        _check_sizes(sizes, rule.buffer_size)
    # ``initial``: a schedule may have no step beside that round.
    smallest = int(sizes.min(initial=1))
    require(
        smallest >= 1 or rule.empty_steps,
        "the smallest number of trips per server step",
        smallest,
        "at least 1 for this rule",
        _about_empty_steps(schedule) if smallest < 1 else "",
    )


def _about_empty_steps(schedule: EventSchedule) -> str:
    """How many server steps apply no trip, why, and what to do."""
    # Rounds leave nobody under way at the end; with steps by the clock somebody is, but for those who wait.
    by_clock = len(schedule.inflight_client) > 0
    void, empty = 0 if by_clock else len(schedule.void_steps), len(schedule.empty_steps)
    parts, remedies = [], []
    if void:
        parts.append(f"{void:,} are void, since fewer than min_reports clients reported")
        remedies += ["raise the deadline", "lower min_reports"]
    # They are empty for another reason, and have another remedy.
    if empty > void:
        parts.append(f"in {empty - void:,} no {'trip arrived' if by_clock else 'client took part'}")
        remedies.append("raise step_every" if by_clock else "raise cohort_size or participation")
    rule = "take a rule that divides by the expected size of a cohort, fedavg(divide_by=cohort_size)"
    causes = " and ".join(parts)
    remedy = ", ".join([*remedies, f"or {rule}"])
    return f"Of {schedule.num_steps:,} server steps {causes}: {remedy}."


def _check_sizes(sizes: np.ndarray, only: int) -> None:
    """Raises SettingError unless all server steps, of ``sizes`` trips, have the ``only`` size of their rule."""
    allowed = f"{only}, the only number of trips per server step that this rule is defined for"
    others = sizes[sizes != only]
    if len(others) == 0:
        return
    size, name, remedy = int(others[0]), "buffer_size", ""
    # Only some steps differ, so it is not the buffer's size: an option of the schedule has changed them.
    if len(others) < len(sizes):
        name = "the number of trips in a server step"
        waits = "A server that waits for stale trips (too_stale='wait' or 'interrupt')"
        remedy = f"{waits} makes larger steps: drop them instead."
        if size < only:
            remedy = "A buffer that is flushed (flush_after) makes smaller steps: leave it to fill."
    require(False, name, size, allowed, remedy)


def check_reports(carry: Carry, evaluators: Mapping[str, Any] | None = None) -> None:
    """Raises SettingError for the name of a rule's report or of an evaluator that is taken.

    So it does for a report of a trip that is not a number.
    """
    for name in evaluators or ():
        check_column(name, (*carry.trip_reports, *carry.step_reports), "the name of an evaluator")
    # An evaluation has one column for each name, be it a report of trips or of steps.
    taken = {*EVALUATION_COLUMNS, *set(carry.trip_reports) & set(carry.step_reports)}
    for name in (*carry.trip_reports, *carry.step_reports):
        # Evaluators of the federation's splits record under these, and so does the training loss.
        free = name not in taken and not name.startswith(("test_", "validation_", "train_"))
        require(free, "the name of a rule's report", name, "one that nothing else bears")
    for name, rows in carry.trip_reports.items():
        require(rows.ndim == 1, f"the shape of the trips' report {name!r}", rows.shape[1:], "(), one number")
