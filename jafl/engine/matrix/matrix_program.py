"""A run in the matrix form: whether it has one, and the program that it shares with others."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jafl.base.errors import require
from jafl.base.jaxpr_dependence import dependences
from jafl.engine.devices import Placement
from jafl.engine.loop.program import Program
from jafl.engine.matrix.linearity import LinearForm, NotLinear, find_linear_form
from jafl.engine.matrix.nonlinear_trip import first_nonlinear_trip, not_linear_error
from jafl.engine.matrix.records import Groups, Layout, MatrixProgram
from jafl.engine.matrix.segments import STATE_ARRAYS_PADDED_TO, Sizes
from jafl.engine.plan.run import Run
from jafl.records import ExecutionPlan, Params, Recall


class MatrixRun(NamedTuple):
    """One run in the matrix form, on the host.

    Attributes:
      run: the run.
      plan: its waves.
      program: of the loop form, with the random key of every trip; the matrix form reads its data, not its loops.
      linear_form: of its rule and its server optimizer.
    """

    run: Run
    plan: ExecutionPlan
    program: Program
    linear_form: LinearForm

    @property
    def columns(self) -> dict[str, np.ndarray]:
        """The rule's columns, [J, ...] each."""
        return {
            name: column[: self.run.schedule.num_trips]
            for name, column in self.program.server.arrivals.columns.items()
        }

    @property
    def recall(self) -> Recall | None:
        """What the rule recalls, or None; there may be rows of padding at the end."""
        return self.program.server.recall

    @property
    def stores(self) -> bool:
        """Whether the rule stores its clients' updates."""
        return self.program.server.rule.build().memory is not None

    @property
    def recalls_often(self) -> bool:
        """Whether the rule recalls a value for every second trip at least."""
        schedule, recall = self.run.schedule, self.recall
        return recall is not None and 2 * int(recall.first_row[schedule.num_steps]) >= schedule.num_trips

    @property
    def precision(self) -> str:
        """In which the clients' memory holds its values: "full", "bfloat16" or "int8"."""
        return str(self.program.server.rule.build().memory_precision)


def find_matrix_form(run: Run, program: Program) -> LinearForm | NotLinear:
    """Finds out whether a run has a matrix form.

    Args:
      run: the run.
      program: of its loop form.

    Returns:
      The linear form of its rule and its server optimizer, or why the run has no matrix form.

    Raises:
      SettingError: if the rule is declared linear and is not: names the rule and the first trip that shows it.
    """
    # Such a rate depends on the server step from which a trip trains, which the segments do not carry.
    if program.training.trips.version is not None:
        return NotLinear("the clients' learning rate follows a schedule over server steps")
    rule, optimizer = program.server.rule.build(), program.server.optimizer.build()
    sent = jax.eval_shape(_train, *_first_trip(program, run)).sent
    names = _names_of_models(sent, run.params)
    columns = {
        name: column[: run.schedule.num_trips] for name, column in program.server.arrivals.columns.items()
    }
    form = find_linear_form(
        rule, optimizer, run.params, run.schedule.num_clients, columns, program.server.recall, names
    )
    if isinstance(form, NotLinear) and form.fails and sent is not None and names is None:
        return NotLinear("clients send something else than arrays of the model's shape beside their updates")
    if isinstance(form, NotLinear) and rule.linear:
        # The analysis refuses some rules that are linear, so its answer alone does not prove the declaration wrong; a
        # trip does.
        trip = first_nonlinear_trip(rule, run.schedule, columns, program.server.recall, names)
        if trip is not None:
            raise not_linear_error(program.server.rule, trip)
    if isinstance(form, LinearForm) and form.reads_work and _work_depends_on_training(program, run):
        return NotLinear("the rule reads how much work a trip was, which here depends on training")
    return form


def make_layout(runs: Sequence[MatrixRun], placement: Placement) -> Layout:
    """The columns of the matrices of several runs in one program, in waves as wide as the widest of their plans."""
    num_arrays = max(run.linear_form.num_arrays for run in runs)
    # In few bits the stored value is not the update: it needs rows of its own beside the updates.
    stored = any(run.stores and run.precision != "full" for run in runs)
    # Memory in full precision stores the updates themselves, so they are kept though no factor reads them.
    updates = any(run.linear_form.reads_update or (run.stores and run.precision == "full") for run in runs)
    starts = any(run.linear_form.reads_start for run in runs)
    # Padded, so that a rule with one more running sum, or an optimizer with momentum, is the same program.
    state_arrays = -(-num_arrays // STATE_ARRAYS_PADDED_TO) * STATE_ARRAYS_PADDED_TO
    width = max(run.plan.width for run in runs)
    # Each device trains an equal share of the lanes.
    width = -(-width // placement.number) * placement.number
    # The kernel fetches those values alone that a segment has. XLA's products take all of them: several chips would
    # exchange more, and compute 1.2 to 1.3 times as long (ACED on four of a v4 and a v5e).
    in_kernel = bool(placement.kernel) and len(runs) == 1 and runs[0].precision == "full"
    recalls = in_kernel and runs[0].recalls_often
    exchange = runs[0].linear_form.exchange
    sizes = Sizes.for_width(width, placement.rows.first_versions, recalls, exchange.version_arrays)
    return Layout(state_arrays, Groups(updates, starts, stored, exchange.num_sent), sizes)


def make_matrix_program(
    run: MatrixRun, layout: Layout, placement: Placement, *, alone: bool = True
) -> MatrixProgram:
    """The program of one run, on the host.

    Args:
      run: the run.
      layout: the columns of its matrices.
      placement: where trips train, in the loop form.
      alone: whether it is the only run of the program; then large examples may be divided among the devices.

    Returns:
      The program.
    """
    # What places the loop's folds and waiting rows means nothing here, and a program that differs in it would be
    # compiled once more.
    placement = placement._replace(trips_folded_together=0, lanes=0, memory_is_sharded=False)
    placement = placement if alone else placement._replace(sharded_client_examples=0)
    data, work = run.program.data, run.program.training.client_work
    is_own = (False,) * len(jax.tree.leaves((data, work)))
    exchange = run.linear_form.exchange
    return MatrixProgram(data, work, is_own, 1, layout.groups, run.precision, placement, exchange)


def shared_precision(runs: Sequence[MatrixRun]) -> str:
    """The precision of the clients' memory in a program of these runs.

    Raises:
      SettingError: if two runs that store values differ in it.
    """
    # A rule that stores nothing can go with any precision. It is the type of the carry, so runs cannot differ in it.
    # But in 8 bits the rounding of a state depends on what lies in its row beside it: for all runs the same.
    state = runs[0].program.training.client_work.build().state
    rounded = state is not None and state.precision == "int8"
    precisions = sorted({run.precision for run in runs if run.stores or rounded}) or ["full"]
    require(len(precisions) == 1, "memory_precision", precisions, "the same in all runs that go together")
    return precisions[0]


def check_exchange_is_shared(runs: Sequence[MatrixRun]) -> None:
    """Raises SettingError if the rules of two runs broadcast or read other things."""
    first = runs[0].linear_form.exchange
    for number, run in enumerate(runs):
        same = run.linear_form.exchange == first
        allowed = "one that exchanges with its clients what that of run 0 does, in runs that go together"
        require(same, f"the rule of run {number}", run.program.server.rule, allowed)


def _first_trip(program: Program, run: Run) -> tuple[Any, ...]:
    """What a trip reads that begins at the initial model, as shapes: ``_train`` takes it.

    Returns:
      (model and all else that training has made, client, random key, data, client work).
    """
    key, data, work = np.zeros(2, np.uint32), program.data, program.training.client_work
    if program.training.trips.local_steps is not None:
        data = data._replace(local_steps=np.int32(1))
    request, rule = work.build().state, program.server.rule.build()

    def trained(params):
        state = request and request.initial(params)
        broadcast = rule.broadcast and rule.broadcast(rule.init(params, run.schedule.num_clients))
        return params, state, broadcast

    return jax.eval_shape(trained, run.params), np.int32(0), key, data, work


def _train(trained: Any, client: Any, key: Any, data: Any, work: Any) -> Any:
    """The result of one trip; the arguments are ``_first_trip``'s."""
    start, state, broadcast = trained
    return work.build().train(data._replace(state=state, broadcast=broadcast), start, client, key)


def _names_of_models(sent: Any, params: Params) -> tuple[str, ...] | None:
    """The names of what clients send beside their updates, if all of it is like a model [*P]; else None."""
    if not isinstance(sent, dict):
        return None
    models = all(jax.tree.map(np.shape, tree) == jax.tree.map(np.shape, params) for tree in sent.values())
    return tuple(sent) if models else None


def _work_depends_on_training(program: Program, run: Run) -> bool:
    """Whether how many examples or local steps a trip uses depends on the model that it starts from, or on what its
    client has kept or the server has broadcast."""

    def amounts(*trip):
        result = _train(*trip)
        return result.batch_examples, result.local_steps

    trip = _first_trip(program, run)
    trained_leaves = set(range(len(jax.tree.leaves(trip[0]))))
    return any(trained_leaves & leaf for leaf in dependences(amounts, *trip))
