"""Reading HLO text: loops and their rounds, cycles, bytes without a price, whole arrays made anew, collectives."""

import pytest

from experiments.tools.benchmarks.compiled_estimates import hlo, hlo_costs

# As libtpu writes it, cut down: a loop over bounds that are data, in it a loop of 30 rounds, a conditional, a scatter
# in place, a fetch into the chip's own memory, a copy of the whole buffer and a collective. A line that ends with a
# backslash goes on in the next one.
TEXT = """
HloModule jit_run, is_scheduled=true

FileNames
1 "loop.py"

FunctionNames
1 "run"
2 "_fold"
3 "shuffled"
4 "train_if_due.<locals>.train"

FileLocations
1 {file_name_id=1 function_name_id=1 line=1 end_line=1 column=1 end_column=2}
2 {file_name_id=1 function_name_id=2 line=2 end_line=2 column=1 end_column=2}
3 {file_name_id=1 function_name_id=3 line=3 end_line=3 column=1 end_column=2}
4 {file_name_id=1 function_name_id=4 line=4 end_line=4 column=1 end_column=2}

StackFrames
1 {file_location_id=1 parent_frame_id=1}
2 {file_location_id=2 parent_frame_id=2}
3 {file_location_id=3 parent_frame_id=3}
4 {file_location_id=4 parent_frame_id=2}


%scattered (p0: f32[112,200], p1: s32[3,1], p2: f32[3,200]) -> f32[112,200] {
  %p0 = f32[112,200]{1,0:T(8,128)} parameter(0)
  %p1 = s32[3,1]{1,0:T(8,128)} parameter(1)
  %p2 = f32[3,200]{1,0:T(8,128)} parameter(2)
  ROOT %scatter.1 = f32[112,200]{1,0:T(8,128)} scatter(%p0, %p1, %p2), to_apply=%second
}

%gathered (p0: f32[112,200], p1: s32[16,1]) -> f32[16,200] {
  %p0 = f32[112,200]{1,0:T(8,128)} parameter(0)
  %p1 = s32[16,1]{1,0:T(8,128)} parameter(1)
  ROOT %gather.1 = f32[16,200]{1,0:T(8,128)} gather(%p0, %p1)
}

%shuffle_cond (p: (s32[], u32[32])) -> pred[] {
  %limit = s32[]{:T(128)} constant(32)
  %p = (s32[]{:T(128)}, u32[32]{0:T(128)}) parameter(0)
  %count = s32[]{:T(128)} get-tuple-element(%p), index=0
  ROOT %less = pred[]{:T(512)} compare(%count, %limit), direction=LT
}

%shuffle_body (p: (s32[], u32[32])) -> (s32[], u32[32]) {
  %p = (s32[]{:T(128)}, u32[32]{0:T(128)}) parameter(0)
  %mix = u32[32]{0:T(128)S(1)} fusion(%p), kind=kLoop, calls=%mixed, backend_config={"estimated_cycles":"100"}
  ROOT %next = (s32[]{:T(128)}, u32[32]{0:T(128)}) tuple(%p, %mix)
}

%trained (p: f32[]) -> f32[] {
  %p = f32[]{:T(128)} parameter(0)
  ROOT %work = f32[]{:T(128)} add(%p, %p), backend_config={"estimated_cycles":"5000"}
}

%waited (p: f32[]) -> f32[] {
  ROOT %p = f32[]{:T(128)} parameter(0)
}

%trips_cond (p: (s32[], s32[])) -> pred[] {
  %p = (s32[]{:T(128)}, s32[]{:T(128)}) parameter(0)
  %a = s32[]{:T(128)} get-tuple-element(%p), index=0
  %b = s32[]{:T(128)} get-tuple-element(%p), index=1
  ROOT %less.2 = pred[]{:T(512)} compare(%a, %b), direction=LT
}

%trips_body (p: (s32[], s32[])) -> (s32[], s32[]) {
  %p = (s32[]{:T(128)}, s32[]{:T(128)}) parameter(0)
  %zero = s32[]{:T(128)} constant(2)
  %start = (s32[]{:T(128)}, u32[32]{0:T(128)}) tuple(%zero, %p)
  %while.1 = (s32[]{:T(128)}, u32[32]{0:T(128)}) while(%start), \
condition=%shuffle_cond, body=%shuffle_body, metadata={op_name="jit(run)/while/body/while" stack_frame_id=3}
  %due = pred[]{:T(512)} constant(true)
  %cond.1 = f32[]{:T(128)} conditional(%due, %p, %p), \
true_computation=%trained, false_computation=%waited, metadata={op_name="jit(run)/cond" stack_frame_id=4}
  %rows = f32[112,200]{1,0:T(8,128)} fusion(%p), kind=kCustom, calls=%scattered
  %fetch = (f32[16,200]{1,0:T(8,128)S(1)}, f32[16,200]{1,0:T(8,128)}, u32[]{:S(2)}) copy-start(%rows)
  %starts = f32[16,200]{1,0:T(8,128)S(1)} fusion(%rows, %p), kind=kCustom, calls=%gathered
  %from_chip = f32[8,200]{1,0:T(8,128)} fusion(%starts), kind=kCustom, calls=%gathered
  %kernel = f32[112,200]{1,0:T(8,128)} custom-call(%starts, %rows), custom_call_target="tpu_custom_call", \
backend_config={"custom_call_config":{"cost_estimate":{"flops":"0","bytes_accessed":"100000"}}}
  %again = f32[112,200]{0,1:T(8,128)} copy(%rows), backend_config={"estimated_cycles":"700"}
  %sum = f32[4,128]{1,0:T(8,128)} all-reduce(%rows), to_apply=%second
  ROOT %both = (s32[]{:T(128)}, s32[]{:T(128)}) tuple(%p, %p)
}

ENTRY %main (first: s32[], last: s32[]) -> s32[] {
  %first = s32[]{:T(128)} parameter(0)
  %last = s32[]{:T(128)} parameter(1)
  %bounds = (s32[]{:T(128)}, s32[]{:T(128)}) tuple(%first, %last)
  %laid = f32[112,200]{1,0:T(8,128)} copy(%first), backend_config={"estimated_cycles":"900"}
  %while.2 = (s32[]{:T(128)}, s32[]{:T(128)}) while(%bounds), \
condition=%trips_cond, body=%trips_body, metadata={op_name="jit(run)/while" stack_frame_id=2}
  ROOT %out = s32[]{:T(128)} get-tuple-element(%while.2), index=0
}
"""


@pytest.fixture(scope="module")
def module():
    return hlo.parse(TEXT)


@pytest.fixture(scope="module")
def program(module):
    return module.tree()


def test_loops_know_their_rounds_and_their_functions(program):
    (trips,) = program.loops
    shuffle, waited, trained = trips.loops
    assert trips.rounds is None and trips.instruction.functions == ("run", "_fold")
    assert shuffle.rounds == 30 and shuffle.instruction.functions == ("run", "_fold", "shuffled")
    assert (waited.branch, trained.branch) == (1, 2)
    assert trained.instruction.functions[-1] == "train_if_due.<locals>.train"
    assert hlo_costs.main_loop(program) is trips


def test_cycles_are_summed_over_rounds_and_branches(program):
    (trips,) = program.loops
    assert hlo_costs.cycles(trips) == 30 * 100 + 5000 + 700
    assert hlo_costs.cycles(program) == 900 + 30 * 100 + 5000 + 700

    def rounds(loop):
        return {0: 10.0, 1: 0.75, 2: 0.25}[loop.branch] if loop.rounds is None else None

    assert hlo_costs.cycles(program, rounds) == 900 + 10 * (30 * 100 + 0.25 * 5000 + 700)


def test_what_has_no_estimate_is_counted_in_bytes(module, program):
    (trips,) = program.loops
    found = {one.name: hlo_costs.unpriced_bytes(module, one) for one in trips.instructions}
    # Three rows of 200, padded to 256: read from a whole tile of 8 rows, and written as three.
    assert found["rows"] == (8 + 3) * 256 * 4
    assert found["fetch"] == 16 * 256 * 4  # written to memory on the chip
    assert found["starts"] == 16 * 256 * 4  # read from main memory, kept on the chip
    assert found["from_chip"] == 8 * 256 * 4
    assert found["kernel"] == 100_000 - 16 * 256 * 4  # all but what it reads on the chip
    assert found["again"] == found["sum"] == found["both"] == 0


def test_a_whole_array_made_anew_is_found_inside_loops_alone(module, program):
    assert [one.name for one in hlo_costs.made_anew(program, module, 200 * 128 * 4)] == ["again"]
    assert [one.name for one in hlo_costs.made_anew(program, module, 16 * 256 * 4)] == ["fetch", "again"]


def test_collectives_have_bytes(program):
    ((loop, one),) = hlo_costs.collectives(program)
    assert (one.collective, hlo_costs.collective_bytes(one)) == ("all-reduce", 8 * 128 * 4)
    assert loop is program.loops[0]


@pytest.mark.parametrize(
    ("operation", "received"),
    [
        ("all-gather", 75.0),  # the parts of three others
        ("all-gather-start", 75.0),
        ("all-to-all", 75.0),
        ("all-reduce", 150.0),  # three parts to add up, and three sums
        ("reduce-scatter", 300.0),  # it makes a quarter of what each chip has
        ("collective-permute", 100.0),
    ],
)
def test_what_each_of_four_chips_receives(program, operation, received):
    ((_, one),) = hlo_costs.collectives(program)
    assert hlo_costs.received_bytes(one._replace(operation=operation, shape="f32[25]"), 4) == received


@pytest.mark.parametrize(
    ("shape", "dimensions", "size", "memory"),
    [
        ("f32[3,200]{1,0:T(8,128)}", (3, 200), 8 * 256 * 4, 0),
        ("f32[200,3]{0,1:T(8,128)S(1)}", (200, 3), 8 * 256 * 4, 1),
        ("bf16[64,784,200]{2,1,0:T(8,128)(2,1)}", (64, 784, 200), 64 * 784 * 256 * 2, 0),
        ("s32[]{:T(128)}", (), 4, 0),
        ("f32[5,7]{1,0}", (5, 7), 140, 0),
    ],
)
def test_bytes_of_arrays_count_the_padding_of_tiles(shape, dimensions, size, memory):
    (array,) = hlo.arrays_in(shape)
    assert (array.dimensions, array.bytes, array.memory) == (dimensions, size, memory)
