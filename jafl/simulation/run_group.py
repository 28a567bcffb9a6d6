"""One or several runs as one program on the device, with the carry between their server steps."""

import abc
import functools
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import numpy as np

from jafl.base import processes
from jafl.base.errors import SettingError
from jafl.engine.devices import at_hand, put
from jafl.engine.evaluation import evaluation_memory
from jafl.engine.loop import server_steps
from jafl.engine.loop.client_memory import personal_models
from jafl.engine.loop.program import Carry, Program
from jafl.engine.plan.device_memory import CompiledMemory, Forecast, ran_out_of_memory, read_compiled_memory
from jafl.engine.plan.make_program import slots_for
from jafl.engine.plan.preparation import Preparation
from jafl.simulation import stacking
from jafl.simulation.digests import Reads, run_digests, test_digest
from jafl.simulation.divergence import all_finite
from jafl.specifications import Drawn, as_specification, is_drawn

# How many clients' own models leave the device together at the end of a run.
MODELS_AT_ONCE = 256


class OutOfMemory(Exception):
    """A compiler refuses a program that takes more memory than the device has; the text is its own sentence."""


class RunGroup(abc.ABC):
    """A group of M runs on the device.

    Attributes:
      preparations: of the runs, in order.
      memory: what all runs hold together on each device: jafl's forecast until ``compile``.
      temporary_bytes: of the memory, what only a step needs, as the compiler says; None before, or if it does not.
      carry: everything that lasts from one server step to the next, of all runs.
      stops: server steps after which somebody looks at the runs.
      reads: of each run what decides its result: another program, or other numbers, is another group.
      copies_models: whether ``models`` returns copies, which last.
    """

    copies_models = False

    def __init__(self, preparations: Sequence[Preparation], programs: Sequence[Program], carry: Any):
        self.preparations, self.carry = list(preparations), carry
        # Kept on the host as they were read: what lies on the device may be divided or donated.
        self.reads = [
            Reads(program, prepared.plan, prepared.run.params, prepared.run.key)
            for prepared, program in zip(preparations, programs, strict=True)
        ]
        self.memory: Forecast = self.preparations[0].forecast
        self.temporary_bytes: int | None = None
        self.stops: frozenset[int] = frozenset()

    @functools.cached_property
    def digests(self) -> dict[str, str]:
        """Digests of all that the runs read; all processes ask for them together."""
        return run_digests(self.reads) | test_digest(each.run.federation for each in self.preparations)

    def agree(self) -> None:
        """Lets all processes have the random words that the first one has drawn."""
        if processes.count() == 1:
            return

        def agreed(value: Any) -> Any:
            if not is_drawn(value):
                return value
            words = np.array(processes.decided(np.asarray(at_hand(value.words)).tolist()), np.uint32)
            return Drawn(put(words, value.words.sharding))

        carry = self.carry
        # The matrix form has no such state: a rule that draws is not linear.
        if hasattr(carry, "rule_state"):
            state = jax.tree.map(agreed, carry.rule_state, is_leaf=is_drawn)
            self.carry = carry._replace(rule_state=state)

    def preparation_under_way(self, number: int) -> Preparation:
        """The preparation of one run with the random words that its state has: a checkpoint's, or those drawn."""
        held = jax.tree.leaves(getattr(self.carry, "rule_state", ()), is_leaf=is_drawn)
        words = [np.asarray(at_hand(value.words)) for value in held if is_drawn(value)]
        # In a stacked group each word has an axis of runs.
        own = [each if each.ndim == 1 else each[number] for each in words]
        return self.preparations[number].with_drawn(own)

    @abc.abstractmethod
    def advance(self, first: int, last: int) -> None:
        """Runs the server steps ``first`` to ``last - 1`` of all runs."""

    def set_stops(self, steps: Iterable[int]) -> None:
        """Says after which server steps somebody will look at the runs, before the first step is made."""
        self.stops = frozenset(steps)

    def chunk_end(self, first: int, last: int) -> int:
        """The server step, ``last`` or near to it, up to which ``advance`` can go from ``first`` on."""
        return last

    def restore(self, step: int, carry: Any) -> None:
        """Goes on from the carry of a checkpoint after ``step`` server steps."""
        self.carry = carry

    @abc.abstractmethod
    def models(self) -> list[Any]:
        """The current parameters [*P] of each run; unless ``copies_models`` they lie in what ``advance`` uses up."""

    @abc.abstractmethod
    def reports(self, number: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """What the trips and the server steps of one run have reported so far: {name: [J]}, {name: [T, ...]}."""

    @abc.abstractmethod
    def losses(self, number: int) -> Any:
        """[J] the loss of each trip of one run so far."""

    @abc.abstractmethod
    def are_finite(self) -> np.ndarray:
        """[M] bool: whether the parameters of each run are free of NaN and infinity."""

    @abc.abstractmethod
    def compiled_memory(self) -> CompiledMemory | None:
        """What the compiled program takes on each device; None if the device's compiler does not tell.

        Raises:
          OutOfMemory: if it compiles nothing that takes more memory than the device has.
        """

    def client_memory(self, number: int) -> tuple[Any, Any]:
        """([*P] of one run's model or the like, where the memory lies; the clients' memory, all rows written)."""
        raise NotImplementedError(f"{type(self).__name__} holds no client memory.")

    def personal_models(self, number: int) -> Callable[[np.ndarray], Any] | None:
        """(clients [W]) -> [W, *P]: the clients' own models in one run; None where they have none."""
        work = as_specification(self.preparations[number].run.client_work)
        if work.build().personal is None:
            return None
        like, memory = self.client_memory(number)
        return lambda clients: at_hand(personal_models(work, like, memory, clients))

    def personal_params(self, number: int) -> Any:
        """``History.personal_params`` of one run, now: some clients at a time, for which the device has room."""
        models = self.personal_models(number)
        if models is None:
            return None
        count = self.preparations[number].run.schedule.num_clients
        size = min(MODELS_AT_ONCE, count)
        # The last block is filled up with the last client, so that all have one shape.
        blocks = [
            models(np.arange(start, start + size).clip(max=count - 1)) for start in range(0, count, size)
        ]
        return jax.tree.map(lambda *leaves: np.concatenate(leaves)[:count], *blocks)

    def compile(self) -> None:
        """Compiles the program. ``memory`` is then what the compiler says, if it does, and must fit.

        Raises:
          SettingError: if the program does not fit into the device's memory; ``stacking.GroupTooLarge`` of several.
        """
        try:
            compiled = self.compiled_memory()
        except OutOfMemory as error:
            raise self._too_large(f" The compiler says: {error}.") from error
        # The compiler's figures replace the forecast, which has estimates of temporary values.
        if compiled:
            self.memory, self.temporary_bytes = self.memory.as_compiled(compiled), compiled.temporaries
            if not self.memory.fits:
                raise self._too_large()

    def _too_large(self, said: str = "") -> SettingError:
        if len(self.preparations) > 1:
            return stacking.too_large(len(self.preparations), self.memory)
        return self.memory.too_large(said)


class SingleRun(RunGroup):
    """A group of one run: its program as it is, on one device or several."""

    def __init__(self, preparation: Preparation):
        # Drawn before anything is placed: program, state and digests then have the same words.
        preparation = preparation.with_drawn()
        on_host = preparation.program_with_keys()
        self._program, carry = preparation.place(on_host)
        super().__init__([preparation], [on_host], carry)

    def advance(self, first: int, last: int) -> None:
        """Runs the server steps ``first`` to ``last - 1``."""
        self.carry = server_steps.run(self._program, self.carry, first, last)

    def models(self) -> list[Any]:
        """A list of one: the current parameters [*P]."""
        return [at_hand(self.carry.params)]

    def reports(self, number: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """The reports of trips and of server steps."""
        trips, steps = at_hand((self.carry.trip_reports, self.carry.step_reports))
        return trips, steps

    def losses(self, number: int) -> Any:
        """[J] the loss of each trip."""
        return at_hand(self.carry.trip_reports["loss"])

    def client_memory(self, number: int) -> tuple[Any, Any]:
        """(the model [*P], the clients' memory, all rows written)."""
        return self.carry.params, self._program.placement.rows.write_pending_row(self.carry.memory)

    def are_finite(self) -> np.ndarray:
        """[1] bool: whether the parameters are free of NaN and infinity."""
        return np.asarray(at_hand(all_finite(self.carry.params)))[None]

    def compiled_memory(self) -> CompiledMemory | None:
        """What the program takes, in bytes; None if the compiler does not tell."""
        return memory_after_compiling(lambda: server_steps.run.lower(self._program, self.carry, 0, 0))


class StackedRuns(RunGroup):
    """A group of several runs, on one device: their programs stacked, and ``vmap`` over the engine's loop."""

    copies_models = True

    def __init__(self, preparations: Sequence[Preparation]):
        preparations = [preparation.with_drawn() for preparation in preparations]
        runs = [preparation.run for preparation in preparations]
        params = stacking.stack_params([run.params for run in runs])
        programs = [preparation.program_with_keys() for preparation in preparations]
        stack = stacking.stack(programs)
        sizes = {
            "slots": max(slots_for(prepared.run, prepared.plan) for prepared in preparations),
            "num_clients": runs[0].schedule.num_clients,
        }
        # Shapes first: whether all runs fit is known before any of them takes memory.
        shapes = jax.eval_shape(
            lambda stack, params: stacking.allocate(stack, params, **sizes), stack, params
        )
        memory = _memory(preparations, stack, shapes)
        self.stack = put(stack)
        carry = stacking.allocate(self.stack, params, **sizes)
        super().__init__(preparations, programs, carry)
        self.memory = memory

    def advance(self, first: int, last: int) -> None:
        """Runs the server steps ``first`` to ``last - 1``; those after a run's last change nothing that is kept."""
        self.carry = stacking.run(self.stack, self.carry, first, last)

    def models(self) -> list[Any]:
        """Copies of the current parameters of each run."""
        return stacking.unstack(self.carry.params, len(self.preparations))

    def reports(self, number: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """The reports of trips and of server steps of one run, in NumPy."""
        every = (self.carry.trip_reports, self.carry.step_reports)
        trips, steps = (
            {name: np.asarray(rows)[number] for name, rows in rows_of.items()} for rows_of in every
        )
        return trips, steps

    def losses(self, number: int) -> Any:
        """[J] the loss of each trip of one run, in NumPy."""
        return np.asarray(self.carry.trip_reports["loss"])[number]

    def client_memory(self, number: int) -> tuple[Any, Any]:
        """(the model [*P] of one run, the memory of its clients, all rows written)."""
        params, own = jax.tree.map(operator.itemgetter(number), (self.carry.params, self.carry.memory))
        return params, self.stack.program(self.stack.own).placement.rows.write_pending_row(own)

    def are_finite(self) -> np.ndarray:
        """[M] bool: whether the parameters of each run are free of NaN and infinity."""
        return np.asarray(stacking.are_finite(self.carry.params))

    def compiled_memory(self) -> CompiledMemory | None:
        """What the program of all runs takes, in bytes; None if the compiler does not tell."""
        return memory_after_compiling(lambda: stacking.run.lower(self.stack, self.carry, 0, 0))


def _memory(preparations: Sequence[Preparation], stack: stacking.Stack, carry: Carry) -> Forecast:
    """What all runs hold together; raises ``stacking.GroupTooLarge`` if their arrays alone are too large."""
    held, first, number = 0, preparations[0], len(preparations)
    counted: set[int] = set()
    for run in (preparation.run for preparation in preparations):
        # Runs on the same test examples share their evaluators (``run_states``).
        if id(run.federation.test_x) not in counted:
            counted.add(id(run.federation.test_x))
            model = as_specification(run.client_work).build().model
            on_training = "train" in (run.evaluators or {})
            held += evaluation_memory(model, run.federation, on_training=on_training)
    # Under ``vmap`` the trips of all runs train at the same time.
    temporaries = number * first.forecast.parts["temporaries"]
    sizes = {"evaluation": held, "temporaries": temporaries, "width": first.plan.width}
    return stacking.check_memory(stack, carry, number, **sizes)


def memory_after_compiling(lower: Callable[[], Any]) -> CompiledMemory | None:
    """What a program takes, from its lowering; None if its compiler does not tell.

    It compiles, and a call of the same program afterwards does not compile again.

    Raises:
      OutOfMemory: if the compiler refuses the program for want of memory.
    """
    try:
        # The same program that is run later: JAX keeps what it has compiled, so nothing is compiled twice.
        return read_compiled_memory(lower().compile())
    except jax.errors.JaxRuntimeError as error:
        if said := ran_out_of_memory(error):
            raise OutOfMemory(said) from error
        return None
    # Some compilers do not say what they have laid out; then the forecast stands.
    except (AttributeError, NotImplementedError, TypeError):
        return None
