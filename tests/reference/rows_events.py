"""Cases of when trips start, end and are applied; `hand_cases.py` explains how they are written."""

import reference as ref
from hand_cases import case

# fmt: off
EVENTS = [
    # ---- The asynchronous simulator.
    # At time 3 both arrive; client 0 is handled first, so client 1's update meets version 3. 0 -> 4 -> 6 -> 7
    # by client 0; client 1 trained from 0, so adds -4; client 0 from 3 adds 2.5.
    case("two clients with durations one and three", [1, 3], targets=[8, -8],
         steps="@1 0#0 v0 0-1; @2 0#1 v1 1-2; @3 0#2 v2 2-3; @3 1#0 v0 0-3; @4 0#3 v4 3-4",
         under_way="0#4 v5 4-5, 1#1 v4 3-6", values=[0, 4, 6, 7, 3, 5.5]),
    # The same with s = (1 + 3)^-0.5 = 1/2 for client 1 and a server learning rate of 1/2. Client 0 from 0, 2,
    # 3.5: updates 4, 3, 2.25, halved. Client 1: -4 * 1/2 * 1/2.
    case("staleness weight is used on the stale trip", [1, 3], targets=[8, -8],
         rule=ref.FedBuff(ref.polynomial(0.5)), optimizer=ref.SGD(0.5),
         steps="@1 0#0 v0 0-1; @2 0#1 v1 1-2; @3 0#2 v2 2-3; @3 1#0 v0 0-3",
         under_way="0#3 v4 3-4, 1#1 v4 3-6", values=[0, 2, 3.5, 4.625, 3.625]),
    case("equal durations step in client order and restart together", [1, 1, 1, 1], K=2,
         steps="@1 0#0 v0 0-1, 1#0 v0 0-1; @1 2#0 v0 0-1, 3#0 v0 0-1; @2 0#1 v2 1-2, 1#1 v2 1-2; "
               "@2 2#1 v2 1-2, 3#1 v2 1-2", under_way="0#2 v4 2-3, 1#2 v4 2-3, 2#2 v4 2-3, 3#2 v4 2-3"),
    # K = 3 of 4 in flight. The last step comes at time 3 with client 0; clients 1 to 3 stay in flight. Client
    # 3's first trip lies in the buffer since time 1.
    case("a buffer that fills amid ties keeps the rest for the next step", [1, 1, 1, 1], K=3,
         steps="@1 0#0 v0 0-1, 1#0 v0 0-1, 2#0 v0 0-1; @2 3#0 v0 0-1, 0#1 v1 1-2, 1#1 v1 1-2; "
               "@3 2#1 v1 1-2, 3#1 v1 1-2, 0#2 v2 2-3",
         under_way="0#3 v3 3-4, 1#2 v2 2-3, 2#2 v2 2-3, 3#2 v2 2-3"),
    # 3 and 1 make step 0 at 2; of the idle 0, 1, 3 the two last start from version 1. Then each is replaced at once.
    case("a first buffer smaller than the concurrency leaves the others under way", [1, 2, 4.5, 1], M=3,
         first_buffer_size=2, choices="@0 1 2 3 of 0 1 2 3; @2 1 3 of 0 1 3; @3 3 of 0 3; @4 1 of 0 1",
         steps="@2 3#0 v0 0-1, 1#0 v0 0-2; @3 3#1 v1 2-3; @4 1#1 v1 2-4",
         under_way="1#2 v3 4-6, 2#0 v0 0-4.5, 3#2 v2 3-4"),
    case("a first buffer that fills amid ties lets the rest into the next step", [1, 1, 1],
         first_buffer_size=2, jafl=False,
         steps="@1 0#0 v0 0-1, 1#0 v0 0-1; @1 2#0 v0 0-1; @2 0#1 v2 1-2",
         under_way="0#2 v3 2-3, 1#1 v2 1-2, 2#1 v2 1-2"),
    # K = 2; client 0 arrives at 1 and 2 and fills the buffer alone; only then does it download version 1.
    # Twice an update of 4 from version 0; then -4 from version 0 and 2 from version 1 (which is 4).
    case("a client may be twice in one buffer and replacements take the newest version", [1, 2.5], K=2,
         targets=[8, -8],
         steps="@2 0#0 v0 0-1, 0#1 v0 1-2; @3 1#0 v0 0-2.5, 0#2 v1 2-3",
         under_way="0#3 v2 3-4, 1#1 v1 2.5-5", values=[0, 4, 3]),
    # Client 0: 0, 0, 1, 0 and then 1; client 1: 1. All that has arrived is handled before anybody starts.
    case("trips of no duration arrive at the same instant once more", [[0, 0, 1, 0, 1], 1],
         steps="@0 0#0 v0 0-0; @0 0#1 v1 0-0; @1 0#2 v2 0-1; @1 1#0 v0 0-1; @1 0#3 v4 1-1",
         under_way="0#4 v5 1-2, 1#1 v4 1-2"),
    # Whoever is chosen first, they start in client order. At 1 both have just arrived, at 3 client 3 is back
    # after its trip of 2.
    case("who starts is chosen among the idle", [1, 3, 1, [1, 2]], M=2, K=2,
         steps="@1 2#0 v0 0-1, 3#0 v0 0-1; @3 2#1 v1 1-2, 2#2 v1 2-3; @4 3#1 v1 1-3, 2#3 v2 3-4",
         under_way="2#4 v3 4-5, 3#2 v2 3-5",
         choices="@0 3 2 of 0 1 2 3; @1 3 2 of 0 1 2 3; @2 2 of 0 1 2; @3 3 2 of 0 1 2 3; @4 2 of 0 1 2"),
    # Sizes 1 and 3; the trips themselves use 1 example each. Updates 4 and -4: (4 - 3 * 4) / 4 = -2.
    case("weights by examples use the sizes of the data sets", [1, 1], K=2, targets=[8, -8],
         rule=ref.FedAvg(weight_by_examples=True), client_examples=[1, 3],
         steps="@1 0#0 v0 0-1, 1#0 v0 0-1", under_way="0#1 v1 1-2, 1#1 v1 1-2", values=[0, -2]),
    # ---- Ways to restart.
    # K = 2. At time 1 clients 0 to 2 arrive; client 2's update is left over, so only 3 others may start. At
    # time 1 all three eligible (0, 1 and 3) start, at time 2 both (0 and 2), so nobody is asked. Client 2
    # starts again when step 1 has applied its first trip.
    case("whose update waits in the buffer does not start", [1, 1, 1, 2], M=3, K=2,
         restart="not_twice_in_a_buffer",
         steps="@1 0#0 v0 0-1, 1#0 v0 0-1; @2 2#0 v0 0-1, 0#1 v1 1-2; @3 1#1 v1 1-2, 0#2 v2 2-3; "
               "@3 2#1 v2 2-3, 3#0 v1 1-3", under_way="0#3 v4 3-4, 1#2 v4 3-4, 2#2 v4 3-4",
         choices="@0 0 1 2 of 0 1 2 3; @3 0 1 2 of 0 1 2 3"),
    # K = 3 of 3 clients, 2 places: from time 2 to 3 client 1 is alone under way, the others in the buffer. At
    # time 1, client 2 takes the place of client 0 at once, before any step. From 4 on client 1 has one of two
    # free places; the other stays free.
    case("a place that nobody may take stays free until the step", [1, 3, 1], M=2, K=3,
         restart="not_twice_in_a_buffer",
         steps="@3 0#0 v0 0-1, 2#0 v0 1-2, 1#0 v0 0-3; @7 0#1 v1 3-4, 2#1 v1 3-4, 1#1 v1 4-7",
         under_way="1#2 v2 7-10, 2#2 v2 7-8", choices="@0 0 1 of 0 1 2; @3 2 0 of 0 1 2; @7 1 2 of 0 1 2"),
    # 3 places, K = 2. Client 0 arrives at time 1, client 1 at time 2 with a step: 2 of 0, 1, 3 start.
    case("after a step as many start as it applied", [1, 2, 4, 1], M=3, K=2, restart="after_step",
         steps="@2 0#0 v0 0-1, 1#0 v0 0-2; @3 0#1 v1 2-3, 3#0 v1 2-3; @4 2#0 v0 0-4, 3#1 v2 3-4; "
               "@5 0#2 v3 4-5, 1#1 v2 3-5", under_way="1#2 v4 5-7, 2#1 v3 4-8, 3#2 v4 5-6",
         choices="@0 0 1 2 of 0 1 2 3; @2 0 3 of 0 1 3; @3 3 1 of 0 1 3; @4 0 2 of 0 2 3; @5 1 3 of 0 1 3"),
    # 3 clients with ties, K = 2: each time one update is left over, and its client waits. The last step comes
    # at time 3 with client 0, so that client 2, due at that instant, stays in flight.
    case("after a step those whose trips it applied start together", [1, 1, 1], K=2, restart="after_step",
         steps="@1 0#0 v0 0-1, 1#0 v0 0-1; @2 2#0 v0 0-1, 0#1 v1 1-2; @3 1#1 v1 1-2, 0#2 v2 2-3",
         under_way="0#3 v3 3-4, 1#2 v3 3-4, 2#1 v2 2-3"),
    # K = 2; at time 1 clients 0 to 4 arrive: two steps, four restarts, and client 4 waits in the buffer.
    # Client 4 is first at time 0.5; the steps hold (4, 0), (1, 2), and at time 2 (3, 0).
    case("several steps of one instant restart all that they applied", [1, 1, 1, 1, [0.5, 1]], K=2,
         restart="after_step",
         steps="@1 4#0 v0 0-0.5, 0#0 v0 0-1; @1 1#0 v0 0-1, 2#0 v0 0-1; @2 3#0 v0 0-1, 0#1 v2 1-2",
         under_way="0#2 v3 2-3, 1#1 v2 1-2, 2#1 v2 1-2, 3#1 v3 2-3, 4#1 v2 1-2"),
    # 4 clients, 2 places, K = 3. Round 0 ends at time 4 with client 3, round 1 at time 8. From time 3 to 4 a
    # place stays free: all others have contributed. Step 1 holds client 3's trip of round 0 and two of round
    # 1.
    case("after a round by hand", [[1, 2], [3, 1], 1, 2], M=2, K=3, restart="after_round",
         steps="@3 0#0 v0 0-1, 2#0 v0 1-2, 1#0 v0 0-3; @6 3#0 v0 2-4, 1#1 v1 4-5, 0#1 v1 4-6; "
               "@9 2#1 v1 5-6, 3#1 v2 6-8, 1#2 v2 8-9", under_way="0#2 v2 8-10, 2#2 v3 9-10",
         choices="@0 0 1 of 0 1 2 3; @1 2 of 2 3; @4 0 1 of 0 1 2 3; @5 2 of 2 3; @8 0 1 of 0 1 2 3; "
                 "@9 2 of 2 3"),
    # At time 3 client 2 ends round 0; its update waits in the buffer, and yet it starts with the others. The
    # last step ends a round, too, so the next one begins.
    case("after a round all start together though an update waits", [1, 1, 3], K=2, restart="after_round",
         steps="@1 0#0 v0 0-1, 1#0 v0 0-1; @4 2#0 v0 0-3, 0#1 v1 3-4; @6 1#1 v1 3-4, 2#1 v1 3-6",
         under_way="0#2 v3 6-7, 1#2 v3 6-7, 2#2 v3 6-9"),
    # Client 2 would end the round at the very instant of the last step, but is not handled any more.
    case("the last step amid ties leaves the round open", [1, 1, 1], K=2, restart="after_round",
         steps="@1 0#0 v0 0-1, 1#0 v0 0-1", under_way="2#0 v0 0-1"),
    # Both clients take 0 and then 1 and 2; K = 2, so a step and a round are the same here.
    case("a round of trips without duration is an instant of its own", [[0, 1], [0, 2]], K=2,
         variants=[{"restart": "after_step"}, {"restart": "after_round"}],
         steps="@0 0#0 v0 0-0, 1#0 v0 0-0; @2 0#1 v1 0-1, 1#1 v1 0-2", under_way="0#2 v2 2-3, 1#2 v2 2-4"),
    # ---- Clients that start at given times.
    # At time 3 three can start, the fourth start is skipped: all are under way. At time 1 client 1 has just
    # arrived.
    case("one client starts at each start time", [2.5, 1, 1], start_times=[0, 0, 1, 3, 3, 3, 3],
         steps="@1 1#0 v0 0-1; @2 1#1 v1 1-2; @2.5 0#0 v0 0-2.5; @4 1#2 v3 3-4",
         under_way="0#1 v3 3-5.5, 2#0 v3 3-4",
         choices="@0 0 of 0 1 2; @0 1 of 1 2; @1 1 of 1 2; @3 0 of 0 1 2; @3 1 of 1 2"),
    case("a start at the instant of the last step is from the final version", [1, 1],
         start_times=[0.5, 1.5, 1.75],
         steps="@1.5 0#0 v0 0.5-1.5", under_way="0#1 v1 1.5-2.5", choices="@0.5 0 of 0 1; @1.5 0 of 0 1"),
    # K = 2: at time 2 client 0 is idle, but waits; at time 3 both are eligible after the step.
    case("whose update waits is not started at a start time", [1, 1], K=2, start_times=[0, 2, 2, 3, 3],
         restart="not_twice_in_a_buffer",
         steps="@3 0#0 v0 0-1, 1#0 v0 2-3; @4 0#1 v1 3-4, 1#1 v1 3-4", choices="@0 0 of 0 1; @3 0 of 0 1"),
    # Trip 0 takes 2, trips 1 and 2 take 1: trip 1 arrives first, then 0 and 2 at time 2, in this order.
    case("a client may be in several trips at once", [[2, 1]], start_times=[0, 0, 1, 1.5],
         exclude_busy=False,
         steps="@1 0#1 v0 0-1; @2 0#0 v0 0-2; @2 0#2 v1 1-2", under_way="0#3 v1 1.5-2.5"),
    # K = 2. At 0.5 client 0 is busy and may start; at 1.25 its update waits, and it may not.
    case("busy clients are eligible but not those whose update waits", [1, 1], K=2,
         start_times=[0, 0.5, 1.25], restart="not_twice_in_a_buffer", exclude_busy=False,
         steps="@1.5 0#0 v0 0-1, 0#1 v0 0.5-1.5", under_way="1#0 v0 1.25-2.25",
         choices="@0 0 of 0 1; @0.5 0 of 0 1"),
    # Client 0, three times under way, leaves at 1.5; the start of that instant comes after it.
    case("all trips of a client that leaves are thrown away", [[3, 2, 1], 3],
         start_times=[0, 0.25, 0.75, 1.5], exclude_busy=False, vanish=("time", (0,), 1.5),
         steps="@4.5 1#0 v0 1.5-4.5",
         thrown_away="0#0 v0 0-3 x1.5 s0, 0#1 v0 0.25-2.25 x1.5 s0, 0#2 v0 0.75-1.75 x1.5 s0",
         choices="@0 0 of 0 1; @0.25 0 of 0 1; @0.75 0 of 0 1"),
    case("who leaves at time 0 is not started at time 0", [1, 1], start_times=[0], vanish=("time", (0,), 0),
         steps="@1 1#0 v0 0-1"),
    # Client 0 is away from 1 to 2, so the start at 1.5 is skipped, and nobody makes up for it at time 2.
    case("a start is skipped if nobody is available", [0.5], start_times=[0.25, 1.5, 2.75],
         present=["0-1 2-9"],
         steps="@0.75 0#0 v0 0.25-0.75; @3.25 0#1 v1 2.75-3.25"),
    case("a trip of no duration is under way for the next start of its instant", [0],
         start_times=[0.5, 0.5, 1],
         steps="@0.5 0#0 v0 0.5-0.5; @1 0#1 v1 1-1"),
    case("a step cancels but does not start anybody at given times", [3, 1, 1], start_times=[0, 0, 2, 2],
         cancel_at_step=True,
         steps="@1 1#0 v0 0-1; @3 1#1 v1 2-3", thrown_away="0#0 v0 0-3 x1 s0, 0#1 v1 2-5 x3 s1",
         choices="@0 0 of 0 1 2; @0 1 of 1 2; @2 0 of 0 1 2; @2 1 of 1 2"),
]
