"""One or several runs in the matrix form: the host makes matrices while the device trains."""

import dataclasses
import warnings
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jafl.engine.devices import Placement, at_hand, put
from jafl.engine.matrix import matrix_carry, matrix_program, segment_loop
from jafl.engine.matrix.matrix_chunks import ChunkMaker, PreparedChunk, stack_chunks
from jafl.engine.matrix.matrix_forecast import matrix_forecast
from jafl.engine.matrix.matrix_program import MatrixRun
from jafl.engine.matrix.records import Layout, MatrixCarry, MatrixProgram
from jafl.engine.plan.device_memory import CompiledMemory, Forecast
from jafl.engine.plan.preparation import Preparation, place_program
from jafl.records import Params
from jafl.simulation import stacking
from jafl.simulation.run_group import RunGroup, memory_after_compiling
from jafl.specifications import as_specification

NO_KERNEL = (
    "The matrix form runs without its kernel, which does not work on this device ({error}). Results are the same, "
    "to rounding; a wave takes longer."
)


class MatrixState(NamedTuple):
    """What a checkpoint keeps of runs in the matrix form.

    Attributes:
      device: the device's carry.
      losses: [B, J] of every run's trips so far.
    """

    device: MatrixCarry
    losses: jax.Array

    @property
    def params(self) -> Params:
        """[B, *P]: the models."""
        return self.device.params


class MatrixRuns(RunGroup):
    """A group of runs in the matrix form; they may differ in rules, server optimizers and schedules."""

    copies_models = True

    def __init__(self, preparations: Sequence[Preparation]):
        self._runs = [
            MatrixRun(prepared.run, prepared.plan, prepared.program_with_keys(), prepared.linear_form)
            for prepared in preparations
            if prepared.linear_form is not None
        ]
        # Rules and optimizers may differ; the work of one run alone is in the program.
        works = [run.program.training.client_work for run in self._runs]
        for number, work in enumerate(works):
            stacking.check_same_kind("client_work", works[0], work, number)
        matrix_program.check_exchange_is_shared(self._runs)
        placement = preparations[0].program.placement
        # One run has been checked in its preparation.
        memory = _checked_memory(self._runs) if len(self._runs) > 1 else preparations[0].forecast
        self._layout = matrix_program.make_layout(self._runs, placement)
        self._program = _placed_program(self._runs, self._layout, placement)
        carry = matrix_carry.allocate(self._runs, self._layout, self._program.precision)
        trips = max(run.run.schedule.num_trips for run in self._runs)
        # In the type in which the device will give them: it depends on the precision of the runs.
        losses = jnp.zeros((len(self._runs), trips), jax.tree.leaves(carry.lasting)[0].dtype)
        # On the host: a segment gives the losses of its own trips, and no operation of the device puts them in order.
        self._device, self._losses = carry, np.array(losses)
        # Losses that nobody has asked for yet: to read them at once would have the host wait for the device.
        self._pending: list[tuple[jax.Array, int, np.ndarray, np.ndarray, np.ndarray]] = []
        self._chunk_makers: list[ChunkMaker] | None = None
        self._ends = np.zeros(0, np.int64)
        super().__init__(preparations, [run.program for run in self._runs], MatrixState(carry, losses))
        self.memory = memory

    def set_stops(self, steps: Iterable[int]) -> None:
        """Says after which server steps somebody will look at the runs, before the first is made."""
        super().set_stops(steps)
        # Chunks are cut at stops, so those that were made for others are of no use.
        self._chunk_makers = None

    @property
    def _makers(self) -> list[ChunkMaker]:
        """One for each run, made when first asked for; chunks of all runs end where those of the longest run do."""
        if self._chunk_makers is None:
            steps = [run.run.schedule.num_steps for run in self._runs]
            longest = int(np.argmax(steps))
            # The longest run decides: shorter ones end within its chunks, and all share one loop.
            leading = self._maker(longest, self.stops)
            self._ends = leading.segmentation.ends()
            self._chunk_makers = [
                leading if number == longest else self._maker(number, self._ends.tolist())
                for number in range(len(self._runs))
            ]
        return self._chunk_makers

    def _maker(self, number: int, stops: Iterable[int]) -> ChunkMaker:
        run = self._runs[number]
        # Without those beyond the run's own end, which the longer runs of its group have.
        return ChunkMaker(run, self._layout, [step for step in stops if step <= run.run.schedule.num_steps])

    def chunk_end(self, first: int, last: int) -> int:
        """The last server step up to ``last`` at which a chunk may end, or the first one after ``first``."""
        assert self._makers  # which know where chunks end
        at_last, after_first = np.searchsorted(self._ends, [last, first], side="right") - [1, 0]
        # A chunk has to advance: where none ends within the time that was asked for, it takes longer.
        if at_last >= 0 and self._ends[at_last] > first:
            return int(self._ends[at_last])
        return int(self._ends[after_first])

    @property
    def carry(self) -> Any:
        """What a checkpoint keeps."""
        self._collect()
        return MatrixState(self._device, jnp.asarray(self._losses))

    @carry.setter
    def carry(self, state: Any) -> None:
        self._device, self._losses = state.device, np.array(state.losses)

    def restore(self, step: int, carry: Any) -> None:
        """Goes on from a checkpoint after ``step`` server steps."""
        self.carry = carry
        for maker, run in zip(self._makers, self._runs, strict=True):
            # The host follows the rule's numbers through the schedule: without them later matrices would be others.
            maker.skip(min(step, run.run.schedule.num_steps))

    def advance(self, first: int, last: int) -> None:
        """Computes the server steps ``first`` to ``last - 1``, which are ends of chunks."""
        # The program is loaded, and compiled, by a chunk in which no run has anything to do.
        if first == last:
            self._compute([None] * len(self._makers))
            return
        while any(chunks := [maker.take(last) for maker in self._makers]):
            # While the device computes: matrices are made on the host, and would else keep the device waiting. In a
            # thread, as a GPU's program returns only at its end: the host reads the conditions of its loops. The
            # thread ends before anybody asks a maker for more, also where the device's program fails.
            with ThreadPoolExecutor(max_workers=1) as thread:
                for maker in self._makers:
                    thread.submit(maker.make_next)
                self._compute(chunks)

    def _compute(self, chunks: list[PreparedChunk | None]) -> None:
        """Starts the computation of one chunk of every run; the host goes on while the device computes."""
        segments = [
            chunk.segments if chunk else maker.nothing()
            for chunk, maker in zip(chunks, self._makers, strict=True)
        ]
        # Runs whose chunk is shorter have empty segments up to this one.
        count = max(chunk.chunk.count if chunk else 0 for chunk in chunks)
        self._device, losses = segment_loop.run(self._program, self._device, stack_chunks(segments), count)
        for number, chunk in enumerate(chunks):
            if chunk is not None:
                arrays = chunk.chunk.arrays
                lane = np.arange(arrays.trip.shape[1])
                segment, lane = np.nonzero(lane < arrays.size[:, None])
                self._pending.append((losses, number, segment, lane, arrays.trip[segment, lane]))

    def _collect(self) -> None:
        """Puts the losses that the device has computed where their trips are."""
        for losses, number, segment, lane, trips in self._pending:
            self._losses[number, trips] = np.asarray(at_hand(losses))[segment, number, lane]
        self._pending.clear()

    def models(self) -> list[Any]:
        """Copies of the current parameters [*P] of each run."""
        return stacking.unstack(at_hand(self._device.params), len(self._runs))

    def reports(self, number: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """The reports of trips and of server steps of one run, in NumPy."""
        maker = self._makers[number]
        return {"loss": self.losses(number), **maker.trip_reports}, maker.step_reports

    def losses(self, number: int) -> Any:
        """[J] the loss of each trip of one run, in NumPy."""
        self._collect()
        return self._losses[number, : self._runs[number].run.schedule.num_trips]

    def personal_models(self, number: int) -> Callable[[np.ndarray], Any] | None:
        """(clients [W]) -> [W, *P]: the clients' own models in one run; None where they have none."""
        work = as_specification(self._runs[number].run.client_work)
        if work.build().personal is None:
            return None
        return lambda clients: at_hand(segment_loop.personal_models(work, self._device, number, clients))

    def are_finite(self) -> np.ndarray:
        """[M] bool: whether the parameters of each run are free of NaN and infinity."""
        return np.asarray(at_hand(stacking.are_finite(self._device.params)))

    def compile(self) -> None:
        """Compiles the program, without its kernel where the device refuses it or computes something else."""
        placement = self._program.placement
        try:
            if placement.kernel and self._program.runs == 1:  # several runs do without it
                _check_kernel(placement.kernel)
                self._lowered().compile()
        # Any exception: what a compiler that lacks the kernel raises differs between versions.
        except Exception as error:
            warnings.warn(NO_KERNEL.format(error=str(error).partition("\n")[0]), stacklevel=2)
            self._program = dataclasses.replace(self._program, placement=placement._replace(kernel=""))
        super().compile()

    def compiled_memory(self) -> CompiledMemory | None:
        """What the program takes, in bytes; None if the compiler does not tell."""
        return memory_after_compiling(self._lowered)

    def _lowered(self) -> Any:
        nothing = stack_chunks([maker.nothing() for maker in self._makers])
        return segment_loop.run.lower(self._program, self._device, nothing, 0)


def _check_kernel(kernel: str) -> None:
    """Raises ArithmeticError unless the kernel of the server's part computes what NumPy does."""
    # Where it is needed: Pallas takes time to import.
    from jafl.engine.forms import kernels, server_kernel

    if not server_kernel.is_right(interpret=kernel == kernels.INTERPRETED):
        raise ArithmeticError("it computes other numbers than NumPy")


def _checked_memory(runs: Sequence[MatrixRun]) -> Forecast:
    """What all runs hold together; raises ``stacking.GroupTooLarge`` if the device has less."""
    memory = matrix_forecast(runs, None, on_training=False)
    if not memory.arrays_fit:
        raise stacking.too_large(len(runs), memory)
    return memory


def _placed_program(runs: Sequence[MatrixRun], layout: Layout, placement: Placement) -> MatrixProgram:
    """The program of several runs, on the device."""
    precision = matrix_program.shared_precision(runs)
    alone = len(runs) == 1
    first = matrix_program.make_matrix_program(runs[0], layout, placement, alone=alone)
    first = dataclasses.replace(first, precision=precision)
    # Without an axis of runs: a single run needs no ``vmap``.
    if alone:
        return place_program(first)
    read = [(run.program.data, run.program.training.client_work) for run in runs]
    # Data that all runs share is there once; learning rates of the clients always have an axis of runs.
    is_own, (data, work) = stacking.stack_leaves(read)
    return put(
        dataclasses.replace(first, data=data, client_work=work, is_own=is_own, runs=len(runs)),
        placement.everywhere(),
    )
