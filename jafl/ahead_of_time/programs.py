"""The programs of runs for chips that are not here: prepared, lowered from shapes, and compiled."""

import contextlib
import dataclasses
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax

from jafl.ahead_of_time.topologies import Topology, shape_on
from jafl.base.errors import SettingError
from jafl.engine.loop import server_steps
from jafl.engine.matrix import matrix_carry, matrix_program, segment_loop
from jafl.engine.matrix.matrix_program import MatrixRun
from jafl.engine.plan.compatibility import check_types
from jafl.engine.plan.device_memory import CompiledMemory, ran_out_of_memory, read_compiled_memory
from jafl.engine.plan.make_program import allocation
from jafl.engine.plan.model_checks import check_model_precision
from jafl.engine.plan.preparation import Preparation, carry_shardings, prepare
from jafl.engine.plan.run import Run
from jafl.records import ExecutionPlan
from jafl.specifications import as_specification


class DoesNotFitError(SettingError):
    """A program needs more memory than a chip has; ``said``: the compiler's own sentence."""

    said: str = ""


class Compiled(NamedTuple):
    """What a compiler says of a program: its ``memory`` on each chip, the ``seconds`` that compiling took here, and
    the ``text`` of the optimised program."""

    memory: CompiledMemory
    seconds: float
    text: str


def prepare_for(
    topology: Topology,
    run: Run,
    *,
    plan: ExecutionPlan | None = None,
    devices: int | None = None,
    together: bool | None = None,
    on_training: bool = False,
    must_fit: bool = True,
) -> Preparation:
    """``jafl.engine.plan.preparation.prepare`` for chips that need not be here.

    Args:
      topology: the chips.
      run: ``params`` may be shapes.
      plan: in which order and memory to compute the schedule. Default: the one that suits the rule and the chips.
      devices: how many of the chips. Default: all, or one if that is quicker.
      together: whether a chip trains trips side by side. Default: yes, but for large convolutions on a TPU.
      on_training: whether the run will be evaluated on the training examples, too.
      must_fit: whether to refuse what does not fit by jafl's own forecast.

    Returns:
      The preparation, whose program ``lowered_run`` lowers.

    Raises:
      SettingError: as ``prepare`` does.
    """
    side_by_side = together is not False
    placement = topology.placement(devices, side_by_side)
    check_types(run.federation, run.client_work, run.rule)
    check_model_precision(as_specification(run.client_work).build().model, topology.platform)
    return prepare(
        run,
        plan=plan,
        placement=placement,
        alone=topology.placement(1, side_by_side) if devices is None else None,
        together=together,
        available=topology.chip.usable,
        on_training=on_training,
        must_fit=must_fit,
    )


def lowered_run(topology: Topology, preparation: Preparation) -> Any:
    """The program of a preparation that ``prepare_for`` has made, as JAX lowers it for the topology."""
    make = _matrix_program if preparation.plan.form == "matrix" else _loop_program
    function, *arguments = make(topology, preparation)
    return lower(topology, function, *arguments)


def lower(topology: Topology, function: Any, *arguments: Any, **keywords: Any) -> Any:
    """A jitted function lowered for the chips.

    Args:
      topology: the chips.
      function: what ``jax.jit`` returns, any: with donated or static arguments, too.
      arguments: shapes on the chips (``topology.placed(tree)``), or Python numbers.
      keywords: more arguments of the function.

    Returns:
      What JAX lowered.
    """
    traced = function.trace(*arguments, **keywords)
    return traced.lower(lowering_platforms=(topology.lowering_platform,))


def compiled(topology: Topology, lowered: Any, options: Mapping[str, Any] | None = None) -> Compiled:
    """What the compiler says of a program that has been lowered for the topology; nothing is placed or run.

    Args:
      topology: the chips.
      lowered: what ``lower`` has made.
      options: of the compiler, as JAX's ``compile`` takes them: {"xla_dump_to": folder}, for example.

    Raises:
      DoesNotFitError: if the program needs more memory than a chip has.
    """
    begin = time.perf_counter()
    try:
        with _without_compilation_cache():
            executable = lowered.compile(dict(options) if options else None)
    except jax.errors.JaxRuntimeError as error:
        if not (said := ran_out_of_memory(error)):
            raise
        raise _too_large(topology, said) from error
    return Compiled(read_compiled_memory(executable), time.perf_counter() - begin, executable.as_text())


def matrix_run(preparation: Preparation) -> MatrixRun:
    """The run of a preparation whose plan has the matrix form."""
    assert preparation.linear_form is not None
    return MatrixRun(preparation.run, preparation.plan, preparation.program, preparation.linear_form)


def _loop_program(topology: Topology, preparation: Preparation) -> tuple[Any, ...]:
    """The engine's loop over server steps, and the shapes of its arguments where they would be placed."""
    program, run = preparation.program, preparation.run
    placement = program.placement
    carry = jax.eval_shape(allocation(run, preparation.plan), program, run.params)
    placed = _with_examples_apart(topology.placed(program, placement), program.data.x)
    if placement.number == 1:
        return server_steps.run, placed, topology.placed(carry), 0, 0
    where = carry_shardings(placement, carry)
    return server_steps.run, placed, jax.tree.map(lambda leaf, on: shape_on(on, leaf), carry, where), 0, 0


def _matrix_program(topology: Topology, preparation: Preparation) -> tuple[Any, ...]:
    """The matrix form's loop over segments, and the shapes of its arguments where they would be placed."""
    run, placement = matrix_run(preparation), preparation.program.placement
    layout = matrix_program.make_layout([run], placement)
    alone = placement._replace(trips_folded_together=0, lanes=0)
    program = matrix_program.make_matrix_program(run, layout, alone)
    carry, segments = matrix_carry.shapes([run], layout)
    if placement.devices is None:
        carry = topology.placed(carry)
    else:
        carry = jax.tree.map(
            lambda rows: shape_on(alone.entries_sharding(rows) or topology.everywhere(alone), rows), carry
        )
    examples = program.data.x
    program, segments = topology.placed((program, segments), placement)
    return segment_loop.run, _with_examples_apart(program, examples), carry, segments, 0


def _with_examples_apart(placed: Any, x: Any) -> Any:
    """The shapes of a program of either form with those of its examples [E, ...], in parts if they are large."""
    placement = placed.placement
    if not placement.sharded_client_examples:
        return placed
    rows = -(-len(x) // placement.number) * placement.number
    examples = shape_on(
        placement.examples_sharding(),
        jax.ShapeDtypeStruct((rows, *x.shape[1:]), jax.dtypes.canonicalize_dtype(x.dtype)),
    )
    return dataclasses.replace(placed, data=placed.data._replace(x=examples))


@contextlib.contextmanager
def _without_compilation_cache() -> Iterator[None]:
    """JAX writes such programs to its cache and cannot read them."""
    if not jax.config.jax_compilation_cache_dir:  # type: ignore[attr-defined]
        yield
        return
    from jax.experimental.compilation_cache import compilation_cache

    before = jax.config.jax_enable_compilation_cache  # type: ignore[attr-defined]
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()
    try:
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", before)
        compilation_cache.reset_cache()


def _too_large(topology: Topology, said: str) -> DoesNotFitError:
    error = DoesNotFitError(
        f"The program does not fit on {topology.name}: {said}.", setting="topology", value=topology.name
    )
    error.said = said
    return error
