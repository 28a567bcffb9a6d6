"""Reading XLA's sequence of thunks for a GPU: kernels, copies, graphs and waits of loops and conditionals."""

import pytest

from experiments.tools.benchmarks.compiled_estimates import hlo, thunks
from experiments.tools.benchmarks.compiled_estimates.estimate import Estimate
from experiments.tools.benchmarks.compiled_estimates.thunks import Launches
from jafl.ahead_of_time.chips import CHIPS
from jafl.ahead_of_time.topologies import Topology

# As XLA writes it, cut down: a loop over bounds that are data; in it a graph of a copy and two kernels, a loop of
# four rounds, and a conditional.
SEQUENCE = """
001: kCopy         [source | next=002 (1)] kCopy
002: kWhile        [prev=001 (1) | sink]
condition:
    003: kCustomKernel [source | sink] wrapped_compare grid: [1, 1, 1]
  body:
    000: kCommandBuffer [source | next=007 (1)]
        004: kCopy         [source | sink] kCopy
        005: kCustomKernel [source | sink] fusion_1 grid: [1, 1, 1]
        006: kGemm         [source | sink] cublas
    007: kWhile        [prev=000 (1) | next=010 (1)]
condition:
        008: kCustomKernel [source | sink] compare_2 grid: [1, 1, 1]
      body:
        009: kCustomKernel [source | sink] fusion_2 grid: [1, 1, 1]

    010: kConditional  [prev=007 (1) | sink]
        branch 0:
        011: kCustomKernel [source | sink] fusion_3 grid: [1, 1, 1]
        branch 1:
        012: kMemset32BitValue [source | sink] memset
        013: kCustomKernel [source | sink] fusion_4 grid: [1, 1, 1]
"""
PROGRAM = """
HloModule jit_run, is_scheduled=true

FunctionNames
1 "run"
2 "train_if_wave"

FileLocations
1 {file_name_id=1 function_name_id=1 line=1 end_line=1 column=1 end_column=2}
2 {file_name_id=1 function_name_id=2 line=2 end_line=2 column=1 end_column=2}

StackFrames
1 {file_location_id=1 parent_frame_id=1}
2 {file_location_id=2 parent_frame_id=1}

%condition (p: s32[]) -> pred[] {
  ROOT %p = s32[] parameter(0)
}

%four (p: s32[]) -> s32[] {
  ROOT %p = s32[] parameter(0)
}

%waited (p: s32[]) -> s32[] {
  ROOT %p = s32[] parameter(0)
}

%trained (p: s32[]) -> s32[] {
  ROOT %p = s32[] parameter(0)
}

%body (p: s32[]) -> s32[] {
  %p = s32[] parameter(0)
  %while.2 = s32[] while(%p), condition=%condition, body=%four, backend_config={"known_trip_count":{"n":"4"}}
  ROOT %cond.1 = s32[] conditional(%p, %p, %p), \\
true_computation=%trained, false_computation=%waited, metadata={op_name="jit(run)/cond" stack_frame_id=2}
}

ENTRY %main (first: s32[]) -> s32[] {
  %first = s32[] parameter(0)
  ROOT %while.1 = s32[] while(%first), condition=%condition, body=%body, metadata={op_name="w" stack_frame_id=1}
}
""".replace("\\\n", "")


@pytest.fixture
def estimate():
    module = hlo.parse(PROGRAM)
    chip = Topology("h100", CHIPS["h100"], ())
    return Estimate(chip, None, module, module.tree(), {}, {"train_if_wave": 0.25}, 0.0, PROGRAM)


def test_thunks_in_graphs_loops_and_branches_are_counted_as_often_as_they_run(estimate):
    found = thunks.per_trip(thunks.parse(SEQUENCE), estimate, trips=2)
    kernels = (
        2 + 4 + 0.75 + 0.25 + 1
    )  # in the graph, the four rounds, either branch, the main loop's condition
    copies = 1 + 0.25
    assert found == Launches(kernels / 2, copies / 2, graphs=1 / 2, waits=2 / 2)


def test_a_loop_whose_rounds_xla_does_not_know_is_waited_for_in_each(estimate):
    unknown = PROGRAM.replace('"known_trip_count":{"n":"4"}', "")
    module = hlo.parse(unknown)
    rounds = {"run": 4.0}
    again = Estimate(estimate.topology, None, module, module.tree(), rounds, estimate.shares, 0.0, unknown)
    (loop,) = (one for one in again.main.loops if not one.branch)
    assert again.known_rounds(loop) is None  # nobody knows: it counts once
    found = thunks.in_round(thunks.parse(SEQUENCE).loops[0][1], again.main, again)
    assert found.waits == 2 + 1 and found.kernels == 2 + (1 + 2) + 0.75 + 0.25


def test_a_sequence_that_is_not_understood_is_no_number():
    with pytest.raises(AssertionError, match="line 2"):
        thunks.parse("001: kCopy\n002: kCopy\nelsewhere:\n003: kCopy\n")
