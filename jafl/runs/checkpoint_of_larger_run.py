"""Makes the checkpoint of a run with a larger budget from that of the same run with a smaller one."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jafl.base.errors import SettingError
from jafl.config.experiment import Experiment
from jafl.engine.loop.program import Carry
from jafl.records import ExecutionPlan
from jafl.runs.directory.files import RunDirectory, run_config, what_decides
from jafl.runs.recording.recorder import Options
from jafl.simulation.batches import batch_of
from jafl.simulation.checkpoints import Checkpoints, Saved


class NotThere(Exception):
    """What a larger run needs is not in the checkpoint; the text says why, as the end of a sentence."""


def convert(
    before: Experiment,
    now: Experiment,
    directory: RunDirectory,
    decided_before: Mapping[str, Any],
    options: Options,
) -> tuple[int, bool]:
    """Writes the checkpoint of ``now`` to ``directory.new_checkpoints``, from the last one of ``before``.

    Args:
      before: the run whose checkpoints lie in ``directory``.
      now: the same with a larger budget; its schedule begins with that of ``before``.
      directory: the run directory.
      decided_before: what the directory says that decides the results of ``before``.
      options: how runs are run.

    Returns:
      The server step of the checkpoint, and whether the evaluations until then are those that ``now`` asks for.

    Raises:
      NotThere: if the checkpoint does not hold what the larger run needs, or cannot be read.
    """
    _check_form(before, now)
    checkpoints = Checkpoints(
        directory.checkpoints,
        configuration=decided_before,
        on_trouble=options.show,
        every=options.checkpoint_every,
    )
    old, new = batch_of(before.preparation), batch_of(now.preparation)
    try:
        saved = checkpoints.restore(old)
    except SettingError as error:
        raise NotThere(f"its checkpoint cannot be used ({error})") from error
    if saved is None:
        raise NotThere("its checkpoint cannot be read")
    step = saved.server_step
    carry = _carried_over(saved.carry, new.carry, before, now, step)
    evaluations, same = _evaluations(saved.runs[0]["evaluations"], before, now, step)
    if saved.best and len(evaluations) < len(saved.runs[0]["evaluations"]):
        raise NotThere("its best evaluation may be one that the larger budget does not make")
    written = Checkpoints(
        directory.new_checkpoints,
        configuration=what_decides(run_config(now)),
        on_trouble=options.show,
    )
    written.delete()
    written.restore(new)  # tells it what run it is of
    if not written.save(
        Saved(
            step,
            carry,
            [{"evaluations": evaluations, "ended": False}],
            saved.run_seconds,
            saved.compile_seconds,
            best=saved.best,
            client_metrics={
                run: {name: rows[: len(evaluations)] for name, rows in found.items()}
                for run, found in saved.client_metrics.items()
            },
        )
    ):
        raise NotThere("its new checkpoint could not be written")
    return step, same


def _check_form(before: Experiment, now: Experiment) -> None:
    """Raises NotThere unless both compute one trip after the other, on one device, and remember no client."""
    for experiment in (before, now):
        plan, program = experiment.preparation.plan, experiment.preparation.program
        if plan.form != "loop" or plan.width > 1:
            raise NotThere("its trips train side by side, and which do follows from the whole schedule")
        if program.placement.number > 1:
            raise NotThere("it trains on several devices")
        if experiment.rule.build().remembers:
            raise NotThere(
                "its rule remembers the clients' updates in an order that follows from the whole schedule"
            )
    if not _same_numbers(before.preparation.program.rule, now.preparation.program.rule):
        raise NotThere("the numbers of its rule follow from the whole schedule")
    if now.settings.decompose_steps:
        raise NotThere("the steps whose error is split are spread over the whole run")


def _same_numbers(rule: Any, other: Any) -> bool:
    """Whether two specifications of a rule are the same, all their numbers included."""
    leaves, others = jax.tree.leaves(rule), jax.tree.leaves(other)
    structures: list[Any] = [jax.tree.structure(rule), jax.tree.structure(other)]
    return structures[0] == structures[1] and all(
        np.array_equal(*pair) for pair in zip(leaves, others, strict=True)
    )


def _carried_over(old: Carry, new: Carry, before: Experiment, now: Experiment, step: int) -> Carry:
    """The carry of ``now`` after ``step`` server steps, from that of ``before``."""
    trips = int(now.schedule.step_offsets[step])
    columns = (before.preparation.program.trips.columns, now.preparation.program.trips.columns)
    for name in columns[1]:
        if not np.array_equal(columns[0][name][:trips], columns[1][name][:trips]):
            raise NotThere(f"what its rule reads of a trip ({name}) follows from the whole schedule")
    for part in ("params", "optimizer_state", "rule_state"):
        if _shapes(getattr(old, part)) != _shapes(getattr(new, part)):
            raise NotThere("the state of its rule or optimizer grows with the budget")
    slots = _slots(before, now, step)
    return new._replace(
        params=old.params,
        optimizer_state=old.optimizer_state,
        rule_state=old.rule_state,
        snapshots=jax.tree.map(lambda there, here: _rows(there, here, slots), old.snapshots, new.snapshots),
        trip_reports=_beginnings(old.trip_reports, new.trip_reports, trips),
        step_reports=_beginnings(old.step_reports, new.step_reports, step),
    )


def _slots(before: Experiment, now: Experiment, step: int) -> list[tuple[int, int]]:
    """(slot of ``before``, slot of ``now``) of each version that trips from server step ``step`` on train from."""
    there = {version: slot for slot, version in _versions(before.preparation.plan, step).items()}
    here = {version: slot for slot, version in _versions(now.preparation.plan, step).items()}
    schedule = now.schedule
    later = schedule.download_version[schedule.step >= step]
    needed = np.unique(later[later <= step]).tolist()
    missing = [version for version in needed if version not in there]
    if missing:
        raise NotThere(
            f"its checkpoint after server step {step} lacks version {missing[0]} of the model, from which a client "
            "trains whose trip ends beyond the smaller budget"
        )
    return [(there[version], here[version]) for version in needed]


def _versions(plan: ExecutionPlan, step: int) -> dict[int, int]:
    """{slot: the version that it holds} after ``step`` server steps."""
    held = {0: 0}
    for number, slot in enumerate(plan.write_slot[:step].tolist()):
        if slot < plan.num_slots:
            held[slot] = number + 1
    return held


def _rows(there: jax.Array, here: jax.Array, slots: list[tuple[int, int]]) -> jax.Array:
    rows = np.array(here)
    old = np.asarray(there)
    for source, target in slots:
        rows[target] = old[source]
    return jnp.asarray(rows)


def _beginnings(there: Mapping[str, jax.Array], here: Mapping[str, jax.Array], length: int) -> dict[str, Any]:
    """The columns of ``here``, which begin with the first ``length`` rows of those of ``there``."""
    columns = {}
    for name, column in here.items():
        rows = np.array(column)
        rows[:length] = np.asarray(there[name])[:length]
        columns[name] = jnp.asarray(rows)
    return columns


def _evaluations(
    evaluations: list[dict[str, Any]], before: Experiment, now: Experiment, step: int
) -> tuple[list[dict[str, Any]], bool]:
    """The evaluations to keep, and whether they are those of a run that had the larger budget from the start.

    An evaluation averages over the steps since the one before: so one may be left out at the end only.
    """
    wanted = {0, *(at for at in now.run.evaluate_at or () if at <= step)}
    common = [evaluation for evaluation in evaluations if evaluation["server_step"] in wanted]
    same = {evaluation["server_step"] for evaluation in common} == wanted and common == evaluations[
        : len(common)
    ]
    return (common, True) if same else (evaluations, False)


def _shapes(tree: Any) -> list[tuple[Any, ...]]:
    return [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(tree)]
