"""Cases of steps that throw away, wait, flush or cancel; `hand_cases.py` explains how they are written."""

import reference as ref
from hand_cases import case
from pytest import approx

# fmt: off
STEPS = [
    # ---- A limit on staleness.
    # Client 1 arrives at 3.5 with staleness 3: too much for a limit of 2, but not for one of 3.
    case("what is too stale is dropped", [1, 3.5], staleness_limit=2, targets=[8, -8],
         steps="@1 0#0 v0 0-1; @2 0#1 v1 1-2; @3 0#2 v2 2-3; @4 0#3 v3 3-4",
         under_way="0#4 v4 4-5, 1#1 v3 3.5-7", thrown_away="1#0 v0 0-3.5 x3.5 s3", values=[0, 4, 6, 7, 7.5]),
    # The same with a limit of 3.
    case("what is as stale as the limit is applied", [1, 3.5], staleness_limit=3, targets=[8, -8],
         steps="@1 0#0 v0 0-1; @2 0#1 v1 1-2; @3 0#2 v2 2-3; @3.5 1#0 v0 0-3.5",
         under_way="0#3 v3 3-4, 1#1 v4 3.5-7", values=[0, 4, 6, 7, 3]),
    # All three arrive at time 1, K = 1, limit 1: the third would be applied with staleness 2.
    case("steps of the same instant make a trip too stale", [1, 1, 1], staleness_limit=1,
         steps="@1 0#0 v0 0-1; @1 1#0 v0 0-1; @2 0#1 v2 1-2", under_way="0#2 v3 2-3, 1#1 v2 1-2, 2#1 v2 1-2",
         thrown_away="2#0 v0 0-1 x1 s2"),
    # Ringmaster's algorithm 5 with R = 2. The step at 2 makes client 1's trip two versions old, so it is stopped
    # there and begins anew; the step at 4 stops it again; so client 1 never brings anything.
    case("what becomes too stale is stopped", [1, 3.5], staleness_limit=1, too_stale="cancel", targets=[8, -8],
         steps="@1 0#0 v0 0-1; @2 0#1 v1 1-2; @3 0#2 v2 2-3; @4 0#3 v3 3-4",
         under_way="0#4 v4 4-5, 1#2 v4 4-7.5", thrown_away="1#0 v0 0-3.5 x2 s1, 1#1 v2 2-5.5 x4 s3",
         values=[0, 4, 6, 7, 7.5]),
    # R = 3: the steps at 1, 2 and 3 make the first trip three old; of the next it arrives with staleness 2, at 5.5.
    case("what is stopped starts again from the newest version", [1, [3.5, 2.5]], staleness_limit=2,
         too_stale="cancel", targets=[8, -8],
         steps="@1 0#0 v0 0-1; @2 0#1 v1 1-2; @3 0#2 v2 2-3; @4 0#3 v3 3-4; @5 0#4 v4 4-5; @5.5 1#1 v3 3-5.5",
         under_way="0#5 v5 5-6, 1#2 v6 5.5-8", thrown_away="1#0 v0 0-3.5 x3 s2",
         values=[0, 4, 6, 7, 7.5, 7.75, 0.25]),
    # All three arrive at time 1, limit 1: the second step makes client 2's trip too old, though it ends right then.
    case("a trip that ends with the step that makes it too stale is stopped", [1, 1, 1], staleness_limit=1,
         too_stale="cancel",
         steps="@1 0#0 v0 0-1; @1 1#0 v0 0-1; @2 0#1 v2 1-2", under_way="0#2 v3 2-3, 1#1 v2 1-2, 2#1 v2 1-2",
         thrown_away="2#0 v0 0-1 x1 s1"),
    # K = 2: the trip in the buffer is not under way any more, and the step applies it.
    case("what waits in the buffer is not stopped", [1, 1.5, 9], K=2, staleness_limit=0, too_stale="cancel",
         steps="@1.5 0#0 v0 0-1, 1#0 v0 0-1.5", under_way="0#2 v1 1.5-2.5, 1#1 v1 1.5-3, 2#1 v1 1.5-10.5",
         thrown_away="0#1 v0 1-2 x1.5 s0, 2#0 v0 0-9 x1.5 s0"),
    case("what is stopped counts for those who leave after a number of trips", [1, 9], staleness_limit=0,
         too_stale="cancel", vanish=("trips", (1,), 2),
         steps="@1 0#0 v0 0-1; @2 0#1 v1 1-2; @3 0#2 v2 2-3", under_way="0#3 v3 3-4",
         thrown_away="1#0 v0 0-9 x1 s0, 1#1 v1 1-10 x2 s1"),
    # K = 1, limit 0: of the first round, client 0 is in time at 1, and 1 at its second trial from 2 to 4.
    case("whose trip was too stale has not contributed to the round", [1, 2], restart="after_round",
         staleness_limit=0,
         steps="@1 0#0 v0 0-1; @4 1#1 v1 2-4; @5 0#1 v2 4-5", under_way="1#2 v2 4-6",
         thrown_away="1#0 v0 0-2 x2 s1"),
    # Limit 1. Step 0 at time 1 makes client 1's trip as old as it may be: step 1 waits for it, to 3.5. By
    # then client 0 has arrived twice more, and its next trip started at time 3 from version 1. From 4, client
    # 0 twice brings 2, client 1 from 0 brings -4: their mean is 0.
    case("the server waits for what would become too stale", [1, 3.5], staleness_limit=1, too_stale="wait",
         targets=[8, -8],
         steps="@1 0#0 v0 0-1; @3.5 0#1 v1 1-2, 0#2 v1 2-3, 1#0 v0 0-3.5",
         under_way="0#3 v1 3-4, 1#1 v2 3.5-7", values=[0, 4, 4]),
    case("a limit that nobody exceeds changes nothing", [1, 3.5], targets=[8, -8],
         variants=[{}, {"staleness_limit": 4, "too_stale": "drop"}, {"staleness_limit": 4, "too_stale": "wait"}],
         steps="@1 0#0 v0 0-1; @2 0#1 v1 1-2; @3 0#2 v2 2-3; @3.5 1#0 v0 0-3.5; @4 0#3 v3 3-4; "
               "@5 0#4 v5 4-5; @6 0#5 v6 5-6; @7 0#6 v7 6-7; @7 1#1 v4 3.5-7",
         under_way="0#7 v9 7-8, 1#2 v9 7-10.5", values=[0, 4, 6, 7, 3, 3.5, 5.75, 6.875, 7.4375, 1.9375]),
    # K = 1, all three arrive at time 1. Limit 0: one step of three. Limit 1: one of one, one of two.
    case("one step applies all that arrive at the same instant", [1, 1, 1], staleness_limit=0,
         too_stale="wait",
         steps="@1 0#0 v0 0-1, 1#0 v0 0-1, 2#0 v0 0-1; @2 0#1 v1 1-2, 1#1 v1 1-2, 2#1 v1 1-2; "
               "@3 0#2 v2 2-3, 1#2 v2 2-3, 2#2 v2 2-3; @4 0#3 v3 3-4, 1#3 v3 3-4, 2#3 v3 3-4",
         under_way="0#4 v4 4-5, 1#4 v4 4-5, 2#4 v4 4-5"),
    case("a second step applies the rest that arrives at the same instant", [1, 1, 1], staleness_limit=1,
         too_stale="wait",
         steps="@1 0#0 v0 0-1; @1 1#0 v0 0-1, 2#0 v0 0-1; @2 0#1 v2 1-2; @2 1#1 v2 1-2, 2#1 v2 1-2",
         under_way="0#2 v4 2-3, 1#2 v4 2-3, 2#2 v4 2-3"),
    # Limit 1, as above; but client 1's trip, for which the buffer waits since time 2, comes to nothing.
    case("the server steps when what it waits for fails", [1, 3.5], staleness_limit=1, too_stale="wait",
         fails="1#0",
         steps="@1 0#0 v0 0-1; @3.5 0#1 v1 1-2, 0#2 v1 2-3", under_way="0#3 v1 3-4, 1#1 v2 3.5-7",
         thrown_away="1#0 v0 0-3.5 x3.5 s1"),
    case("the server steps when what it waits for is lost", [1, 3.5], staleness_limit=1, too_stale="wait",
         lost_when_away=True, present=["0-99", "0-2.5 2.5-99"],
         steps="@1 0#0 v0 0-1; @2.5 0#1 v1 1-2", under_way="0#2 v1 2-3, 1#1 v2 2.5-6",
         thrown_away="1#0 v0 0-3.5 x2.5 s1"),
    case("the server steps when the client that it waits for leaves", [1, 3.5], staleness_limit=1,
         too_stale="wait", vanish=("time", (1,), 2.5),
         steps="@1 0#0 v0 0-1; @2.5 0#1 v1 1-2", under_way="0#2 v1 2-3", thrown_away="1#0 v0 0-3.5 x2.5 s1"),
    case("the server steps when that client leaves as another arrives", [1, 3.5], staleness_limit=1,
         too_stale="wait", vanish=("time", (1,), 3),
         steps="@1 0#0 v0 0-1; @3 0#1 v1 1-2, 0#2 v1 2-3", under_way="0#3 v2 3-4",
         thrown_away="1#0 v0 0-3.5 x3 s1"),
    # At 2.0 nobody arrives: client 1 leaves, the server steps, then client 2 starts from version 2.
    case("a full buffer of a waiting server steps before somebody starts", [0.75, 9, 1], M=2,
         staleness_limit=1, too_stale="wait", vanish=("time", (1,), 2),
         steps="@0.75 0#0 v0 0-0.75; @2 0#1 v1 0.75-1.5; @2.25 0#2 v1 1.5-2.25",
         under_way="0#3 v3 2.25-3, 2#0 v2 2-3", thrown_away="1#0 v0 0-9 x2 s1",
         choices="@0 0 1 of 0 1 2; @0.75 0 of 0 2; @1.5 0 of 0 2"),
    # ---- Steps that do not wait for a full buffer.
    # K = 3, and 2 is long enough. The first trip arrives at 1.5: a short step at 3.5, with two trips. The
    # next first trip arrives at 4; at 6 the third of that buffer arrives, so that it is full, not late. The
    # mean of 4 and 4; then that of -4, 4 and 2.
    case("a buffer that waits too long is applied as it is", [1.5, 4], K=3, targets=[8, -8], flush_after=2,
         steps="@3.5 0#0 v0 0-1.5, 0#1 v0 1.5-3; @6 1#0 v0 0-4, 0#2 v0 3-4.5, 0#3 v1 4.5-6",
         under_way="0#4 v2 6-7.5, 1#1 v1 4-8", values=[0, 4, approx(4 + 2 / 3)]),
    # K = 5: client 0 arrives at 1.5, 3.0, ...; each second arrival is 1.5 after the first of its buffer.
    case("arrivals of the instant are in the short step and who starts finds it done", [1.5, 3], K=5,
         flush_after=1.5,
         steps="@3 0#0 v0 0-1.5, 0#1 v0 1.5-3, 1#0 v0 0-3; @6 0#2 v1 3-4.5, 0#3 v1 4.5-6, 1#1 v1 3-6",
         under_way="0#4 v2 6-7.5, 1#2 v2 6-9"),
    # Three arrive at time 1, K = 2: the third waits from then on, for 1.75.
    case("who is left over by a step begins a new wait", [[1, 9], [1, 9], [1, 9]], K=2, flush_after=1.75,
         steps="@1 0#0 v0 0-1, 1#0 v0 0-1; @2.75 2#0 v0 0-1",
         under_way="0#1 v1 1-10, 1#1 v1 1-10, 2#1 v1 1-10"),
    # Client 0 fails at time 1, so the first trip of the buffer is client 1's, at time 2.
    case("the wait begins with a trip that is used", [[1, 9], [2, 9]], K=9, fails="0#0", flush_after=1.5,
         steps="@3.5 1#0 v0 0-2", under_way="0#1 v0 1-10, 1#1 v0 2-11", thrown_away="0#0 v0 0-1 x1 s0"),
    # The trip of no duration that starts after the step at time 1 makes another one.
    case("without any wait each instant with an arrival ends with a step", [[1, 0, 1], [1, 2]], K=9,
         flush_after=0, jafl=False,
         steps="@1 0#0 v0 0-1, 1#0 v0 0-1; @1 0#1 v1 1-1; @2 0#2 v2 1-2", under_way="0#3 v3 2-3, 1#1 v1 1-3"),
    # Two clients never fill a buffer of 3, but from 1 to 6 the first one has waited for 5.
    case("a buffer that will be applied saves from starving", [1, 2], K=3, flush_after=5,
         variants=[{"restart": "not_twice_in_a_buffer"}, {"restart": "after_step"}],
         steps="@6 0#0 v0 0-1, 1#0 v0 0-2; @12 0#1 v1 6-7, 1#1 v1 6-8",
         under_way="0#2 v2 12-13, 1#2 v2 12-14"),
    # Client 1 takes 9: nothing is flushed at 3.5. From step 1 on, nothing is there to be flushed either: K =
    # 1.
    case("the first larger step waits however long it takes", [1, 9], first_buffer_size=2, flush_after=2.5,
         steps="@9 0#0 v0 0-1, 1#0 v0 0-9; @10 0#1 v1 9-10", under_way="0#2 v2 10-11, 1#1 v1 9-18"),
    # Step 0 waits for client 1 until 9. Then client 0's trip waits from 10 to 10.5, and is applied alone.
    case("steps after the first larger one may be short", [1, [9, 2]], K=3, first_buffer_size=2,
         flush_after=0.5,
         steps="@9 0#0 v0 0-1, 1#0 v0 0-9; @10.5 0#1 v1 9-10", under_way="0#2 v1 10-11, 1#1 v1 9-11"),
    # ---- Steps by the clock, and by the harmonic mean of the clients' numbers of trips.
    # FedFix: client 0 is done at 1 and waits for the step at 2; of its second trip nothing has come by 4. At 6 it has
    # just arrived, and so has client 1, whose trip took three steps.
    case("the server steps by the clock and clients wait for it", [[1, 4], 6], step_every=2, restart="after_step",
         rule=ref.FedAvg(divide_by=1.0), targets=[8, -8],
         steps="@2 0#0 v0 0-1; @4 ; @6 0#1 v1 2-6, 1#0 v0 0-6", under_way="0#2 v3 6-10, 1#1 v3 6-12",
         values=[0, 4, 4, 2]),
    # Without waiting: three trips at once at 2.5, then none.
    case("the clock's steps take whatever has arrived", [[0.75, 0.75, 0.75, 9], 9], step_every=2.5,
         rule=ref.FedAvg(divide_by=1.0),
         steps="@2.5 0#0 v0 0-0.75, 0#1 v0 0.75-1.5, 0#2 v0 1.5-2.25; @5 ",
         under_way="0#3 v0 2.25-11.25, 1#0 v0 0-9"),
    # S = 3 of 2 clients: a step where 4 >= 3 (1 / B_0 + 1 / B_1). At 2.5 the counts are 2 and 1 (which gives 4.5), at
    # 3 they are 3 and 1 (4). Client 1's trip goes on to 5, when the counts are 2 and 1; at 6, 3 and 1 again.
    case("a step waits for the harmonic mean of the counts", [1, 2.5], K=3, step_when="harmonic_mean",
         steps="@3 0#0 v0 0-1, 0#1 v0 1-2, 1#0 v0 0-2.5, 0#2 v0 2-3; @6 0#3 v1 3-4, 0#4 v1 4-5, 1#1 v0 2.5-5, "
               "0#5 v1 5-6", under_way="0#6 v2 6-7, 1#2 v1 5-7.5"),
    # With stops the second round is like the first.
    case("a step by the harmonic mean stops what is under way", [1, 2.5], K=3, step_when="harmonic_mean",
         cancel_at_step=True,
         steps="@3 0#0 v0 0-1, 0#1 v0 1-2, 1#0 v0 0-2.5, 0#2 v0 2-3; @6 0#3 v1 3-4, 0#4 v1 4-5, 1#2 v1 3-5.5, "
               "0#5 v1 5-6", under_way="0#6 v2 6-7, 1#4 v2 6-8.5",
         thrown_away="1#1 v0 2.5-5 x3 s0, 1#3 v1 5.5-8 x6 s1"),
    # At time 3 the buffer of client 0's trip is applied. Who leaves with that step does not start again.
    # Client 2 starts in client 1's place, after the step.
    case("clients leave ahead of a short step", [[1, 4], 8, [1, 4]], M=2, K=9, flush_after=2,
         vanish=("time", (1,), 3),
         steps="@3 0#0 v0 0-1; @6 2#0 v1 3-4, 0#1 v0 1-5", under_way="0#2 v1 5-9, 2#1 v1 4-8",
         thrown_away="1#0 v0 0-8 x3 s0", choices="@0 0 1 of 0 1 2; @1 0 of 0 2"),
    case("clients leave with a short step", [[1, 4], 8, [1, 4]], M=2, K=9, flush_after=2,
         vanish=("step", (1,), 1),
         steps="@3 0#0 v0 0-1; @6 2#0 v1 3-4, 0#1 v0 1-5", under_way="0#2 v1 5-9, 2#1 v1 4-8",
         thrown_away="1#0 v0 0-8 x3 s1", choices="@0 0 1 of 0 1 2; @1 0 of 0 2"),
    # Three arrive at 1, and the flush at 1.5 is step 1, at which client 0 leaves: its second trip is thrown away.
    case("who leaves at a step leaves at a flush too", [1, 1, 1], K=4, flush_after=0.5,
         vanish=("step", (0,), 1),
         steps="@1.5 0#0 v0 0-1, 1#0 v0 0-1, 2#0 v0 0-1; @2.5 1#1 v0 1-2, 2#1 v0 1-2",
         under_way="1#2 v1 2-3, 2#2 v1 2-3", thrown_away="0#1 v0 1-2 x1.5 s1"),
    # At 2 client 1 arrives, and leaves; then the buffer that has waited since 1 is applied, the last step.
    case("clients leave before a flush of their instant", [1, 2], K=4, flush_after=1, vanish=("trips", (1,), 1),
         steps="@2 0#0 v0 0-1, 0#1 v0 1-2, 1#0 v0 0-2", under_way="0#2 v1 2-3"),
    case("one that is idle leaves with a short step and takes no place after it", [1, 1.5], K=9,
         restart="after_step", flush_after=2, vanish=("step", (0,), 1),
         steps="@3 0#0 v0 0-1, 1#0 v0 0-1.5; @6.5 1#1 v1 3-4.5", under_way="1#2 v2 6.5-8"),
    # ---- Steps that cancel what is under way.
    # K-sync. Client 2 is cancelled at time 2, client 0 at time 4.
    case("the first two of three make the step and all start again", [[1, 3], [2, 1], [5, 2]], K=2,
         restart="after_step", cancel_at_step=True,
         steps="@2 0#0 v0 0-1, 1#0 v0 0-2; @4 1#1 v1 2-3, 2#1 v1 2-4",
         under_way="0#2 v2 4-7, 1#2 v2 4-5, 2#2 v2 4-6", thrown_away="2#0 v0 0-5 x2 s0, 0#1 v1 2-5 x4 s1"),
    # K-batch-sync: client 0 brings three updates, all from version 0, until client 1 is cancelled at 3.
    case("who finishes early trains again from the same version", [[1, 1, 1, 0.5], 5], K=3, targets=[8, -8],
         cancel_at_step=True,
         steps="@3 0#0 v0 0-1, 0#1 v0 1-2, 0#2 v0 2-3", under_way="0#3 v1 3-3.5, 1#1 v1 3-8",
         thrown_away="1#0 v0 0-5 x3 s0", values=[0, 4]),
    # All arrive at time 1, K = 1: 0's step cancels 1 and 2. At time 1.5, 1's does so with 2, not with 0.
    case("those that arrive with the step and are not handled yet are cancelled",
         [[1, 2], [1, 0.5], [1, 0.5]], cancel_at_step=True,
         steps="@1 0#0 v0 0-1; @1.5 1#1 v1 1-1.5", under_way="0#2 v2 1.5-3.5, 1#2 v2 1.5-2, 2#2 v2 1.5-2",
         thrown_away="1#0 v0 0-1 x1 s0, 2#0 v0 0-1 x1 s0, 0#1 v1 1-3 x1.5 s1, 2#1 v1 1-1.5 x1.5 s1"),
    case("whose trip was cancelled has not contributed to the round", [1, 2, 4], restart="after_round",
         cancel_at_step=True,
         steps="@1 0#0 v0 0-1; @3 1#1 v1 1-3; @7 2#2 v2 3-7; @8 0#1 v3 7-8",
         under_way="1#3 v4 8-10, 2#4 v4 8-12",
         thrown_away="1#0 v0 0-2 x1 s0, 2#0 v0 0-4 x1 s0, 2#1 v1 1-5 x3 s1, 1#2 v3 7-9 x8 s3, "
                     "2#3 v3 7-11 x8 s3"),
    # Client 1 is cancelled at time 1 and, like client 0, one of three eligible for two places.
    case("after a cancellation the restart chooses among all", [1, 2, 1], M=2, restart="after_step",
         cancel_at_step=True,
         steps="@1 0#0 v0 0-1", under_way="0#1 v1 1-2, 1#1 v1 1-3", thrown_away="1#0 v0 0-2 x1 s0",
         choices="@0 0 1 of 0 1 2; @1 0 1 of 0 1 2"),
    case("a short step cancels too", [1, 4], K=9, restart="after_step", flush_after=0.5, cancel_at_step=True,
         steps="@1.5 0#0 v0 0-1", under_way="0#1 v1 1.5-2.5, 1#1 v1 1.5-5.5",
         thrown_away="1#0 v0 0-4 x1.5 s0"),
    # Client 1 is cancelled at times 1 and 2, and leaves at the second.
    case("cancelled trips count for those who leave after a number of trips", [1, 9], cancel_at_step=True,
         vanish=("trips", (1,), 2),
         steps="@1 0#0 v0 0-1; @2 0#1 v1 1-2; @3 0#2 v2 2-3", under_way="0#3 v3 3-4",
         thrown_away="1#0 v0 0-9 x1 s0, 1#1 v1 1-10 x2 s1"),
]
