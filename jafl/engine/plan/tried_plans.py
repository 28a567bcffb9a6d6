"""Tries plans of a run, without placing anything: which is the quickest that fits into memory."""

from typing import NamedTuple

import numpy as np

from jafl.base.errors import SettingError, choose, refusal
from jafl.engine.devices import Placement
from jafl.engine.evaluation import evaluation_memory
from jafl.engine.loop.program import Carry, Program
from jafl.engine.matrix.linearity import LinearForm, NotLinear
from jafl.engine.matrix.matrix_forecast import matrix_forecast
from jafl.engine.matrix.matrix_program import MatrixRun, find_matrix_form
from jafl.engine.plan.device_memory import Forecast, forecast
from jafl.engine.plan.make_program import make_program
from jafl.engine.plan.operations import operations_per_parameter
from jafl.engine.plan.plan_choice import default_form, default_plan, several_pay
from jafl.engine.plan.run import Run
from jafl.engine.plan.slots_and_waves import FORMS, trip_by_trip
from jafl.engine.plan.temporary_values import temporary_bytes
from jafl.records import ExecutionPlan
from jafl.specifications import as_specification


class NoMatrixForm(SettingError):
    """A run has no matrix form."""


class TriedPlan(NamedTuple):
    """What one plan of a run comes to: its program on the host, the shapes of its carry, and its memory."""

    plan: ExecutionPlan
    program: Program
    carry: Carry
    forecast: Forecast


class TriedPlans:
    """The plans of a run that were tried; the last one is kept, since it is the one that is mostly chosen."""

    def __init__(
        self,
        run: Run,
        placement: Placement,
        available: int | None,
        on_training: bool,
        device_bytes: int | None = None,
    ):
        self._run, self._placement = run, placement
        self._available, self._on_training = available, on_training
        self._device_bytes = device_bytes  # of a device that is not here
        self._last: TriedPlan | None = None
        self._linearity: LinearForm | NotLinear | None = None

    def try_plan(self, plan: ExecutionPlan) -> TriedPlan:
        """What this plan comes to."""
        # The plan that fits is the last one that was tried: its program is kept, and not made twice.
        if self._last is None or self._last.plan is not plan:
            program, carry = make_program(self._run, plan, self._placement, self._device_bytes)
            # It holds matrices and segments in place of what the loop carries: its forecast is another.
            if plan.form == "matrix":
                run = MatrixRun(self._run, plan, program, self.linear_form(program))
                memory = matrix_forecast([run], self._available, self._on_training)
            else:
                memory = _forecast(self._run, plan, program, carry, self._available, self._on_training)
            self._last = TriedPlan(plan, program, carry, memory)
        return self._last

    def fitting_plan(self, form: str | None) -> ExecutionPlan:
        """``default_plan``, with waves as wide as fits into memory and as suits clients of unequal sizes."""
        run, form = self._run, self._form(form)
        return default_plan(
            run.schedule,
            run.rule,
            run.params,
            self._placement,
            cost=self._minibatches(),
            fits=self._fits,
            form=form,
            device_bytes=self._device_bytes,
            client_state=run.keeps_client_state,
        )

    def suit(self, plan: ExecutionPlan | None, form: str | None) -> bool:
        """Whether the run fits on this one device, with that plan or its own, and several would not be quicker."""
        plan = plan or self.fitting_plan(form)
        operations = operations_per_parameter(self._run, self._minibatches())
        pays = several_pay(self._placement.platform, plan.form, self._run.params, operations)
        return not pays and self.try_plan(plan).forecast.fits

    def _minibatches(self) -> np.ndarray | None:
        """[J] of each trip; None where they are not known."""
        run = self._run
        work = as_specification(run.client_work).build()
        # Otherwise the run is refused later, with the reason; here nothing may fail before it.
        if not work.minibatches or run.schedule.num_clients != run.federation.num_clients:
            return None
        examples, client = run.federation.num_examples, run.schedule.client
        if work.reads_local_steps:
            return work.minibatches(examples[client], run.schedule.local_steps)
        return work.minibatches(examples)[client]

    def linear_form(self, program: Program | None = None) -> LinearForm:
        """What the matrix form needs to know.

        Raises:
          SettingError: if there is no such form.
        """
        if self._linearity is None:
            if program is None:
                # Whether a rule is linear does not depend on the plan, so any valid plan serves.
                program, _ = make_program(
                    self._run, trip_by_trip(self._run.schedule), self._placement, self._device_bytes
                )
            self._linearity = find_matrix_form(self._run, program)
        if isinstance(self._linearity, NotLinear):
            reason = f"{self._linearity.reason[0].upper()}{self._linearity.reason[1:]}."
            error = refusal("form", "matrix", "loop for this run", reason)
            raise NoMatrixForm(str(error), **vars(error))
        return self._linearity

    def _form(self, form: str | None) -> str:
        """The form that is wanted, or the quicker one of those that the run has."""
        run = self._run
        wanted = form or default_form(run.schedule, run.rule, self._placement, run.keeps_client_state)
        choose("form", wanted, dict.fromkeys(FORMS))
        if wanted == "matrix":
            try:
                self.linear_form()
            except NoMatrixForm:
                # A form that was asked for is refused with its reason; the default gives way.
                if form:
                    raise
                return "loop"
        return wanted

    def _fits(self, plan: ExecutionPlan) -> bool:
        """Whether a plan fits into memory, with room for twice the estimate of temporary values.

        Without it waves of large networks would be refused: a v5e trains 11 trips of ResNet-18 side by side, not 23.
        """
        memory = self.try_plan(plan).forecast
        return memory.needed + memory.parts["temporaries"] <= memory.available


def _forecast(
    run: Run,
    plan: ExecutionPlan,
    program: Program,
    carry: Carry,
    available: int | None,
    on_training: bool,
) -> Forecast:
    """What a program and its carry, or their shapes, and evaluation will hold on each device."""
    placement, model = program.placement, program.training.client_work.build().model
    trips = -(-plan.lanes // placement.number) if placement.side_by_side else 1
    return forecast(
        program,
        carry,
        evaluation=evaluation_memory(model, run.federation, on_training=on_training),
        temporaries=temporary_bytes(run, placement.platform, trips=trips),
        width=plan.width,
        available=available,
    )
