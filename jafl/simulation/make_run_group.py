"""Makes the program of one run, or of several that train together, in the loop form or in the matrix form."""

from collections.abc import Sequence

import numpy as np

from jafl.base.errors import choose
from jafl.engine.plan.compatibility import check_types
from jafl.engine.plan.plan_choice import default_form, default_placement, default_plan, matrix_width
from jafl.engine.plan.preparation import Preparation, prepare
from jafl.engine.plan.run import Run
from jafl.engine.plan.slots_and_waves import in_waves, trip_by_trip
from jafl.engine.plan.tried_plans import NoMatrixForm
from jafl.records import EventSchedule, ExecutionPlan
from jafl.simulation import stacking
from jafl.simulation.matrix_runs import MatrixRuns
from jafl.simulation.run_group import RunGroup, SingleRun, StackedRuns


def make_run_group(*preparations: Preparation) -> RunGroup:
    """Makes the program of these runs and places it on the device; the runs of several share a form.

    Raises:
      SettingError: if several runs differ in more than numbers and contents of arrays, or examples are not finite.
      stacking.GroupTooLarge: a SettingError, if they do not fit into the device's memory together.
    """
    if preparations[0].linear_form is not None:
        return MatrixRuns(preparations)
    return SingleRun(*preparations) if len(preparations) == 1 else StackedRuns(preparations)


def prepare_together(
    runs: Sequence[Run], *, together: bool | None = None, form: str | None = None
) -> list[Preparation]:
    """Checks every run, and chooses plans with which all of them train on one device.

    Args:
      runs: at least one.
      together: whether trips of one run train side by side. Default: vmap on accelerators, sequential on a CPU.
      form: "loop" or "matrix", see ``ExecutionPlan``. Default: the quicker one of those that all runs have.

    Raises:
      SettingError: as ``jafl.simulate_many``.
    """
    if len(runs) == 1:
        return [prepare(runs[0], devices=1, together=together, form=form)]
    for run in runs:
        check_types(run.federation, run.client_work, run.rule)
    # Before any plan is made: runs of different models can never be one program.
    stacking.check_params([run.params for run in runs])
    if prepared := _in_matrix_form(runs, together, form):
        return prepared
    plans = _shared_plans(runs, together)
    return [
        prepare(run, plan=plan, devices=1, together=together) for run, plan in zip(runs, plans, strict=True)
    ]


def _in_matrix_form(runs: Sequence[Run], together: bool | None, form: str | None) -> list[Preparation] | None:
    """The runs with plans in the matrix form; None where the loop is quicker, or one of them has no such form."""
    first = runs[0]
    placement = default_placement(first.schedule, first.rule, 1, together)
    if choose(
        "form", form or default_form(first.schedule, first.rule, placement), {"loop": True, "matrix": False}
    ):
        return None
    # One width for all, by the run with the most clients: waves of one shape are one program.
    keeps = any(run.keeps_client_state for run in runs)
    width = matrix_width(first.params, placement, max(run.schedule.num_clients for run in runs), keeps)
    # By identity: runs of a group mostly share their schedule, which is then planned once.
    plans: dict[int, ExecutionPlan] = {}
    prepared = []
    for run in runs:
        if id(run.schedule) not in plans:
            plans[id(run.schedule)] = in_waves(run.schedule, width, form="matrix", client_state=keeps)
        try:
            prepared.append(prepare(run, plan=plans[id(run.schedule)], devices=1, together=together))
        # One run without the form is enough: all train in one program.
        except NoMatrixForm:
            if form:
                raise
            return None
    return prepared


def _shared_plans(runs: Sequence[Run], together: bool | None) -> list[ExecutionPlan]:
    """Waves where all share a schedule and the device gains from them; else trip by trip."""
    first = runs[0]
    placement = default_placement(first.schedule, first.rule, 1, together)
    # Waves of other schedules are of other sizes, and every run would wait for the largest.
    if placement.side_by_side and all(same_trips(run.schedule, first.schedule) for run in runs):
        every_model = [run.params for run in runs]  # of each trip that waits, the updates of all runs wait
        keeps = any(run.keeps_client_state for run in runs)
        plan = default_plan(first.schedule, first.rule, every_model, placement, client_state=keeps)
        return [plan] * len(runs)
    plans: dict[int, ExecutionPlan] = {}
    for run in runs:
        if id(run.schedule) not in plans:
            plans[id(run.schedule)] = trip_by_trip(run.schedule)
    return [plans[id(run.schedule)] for run in runs]


def same_trips(schedule: EventSchedule, other: EventSchedule) -> bool:
    """Whether two schedules have the same clients train as much from the same versions for the same server steps."""
    names = ("client", "download_version", "step", "local_steps")
    return schedule is other or all(
        np.array_equal(getattr(schedule, name), getattr(other, name)) for name in names
    )
