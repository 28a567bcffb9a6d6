"""Cases of clients that leave, fail, or come and go; `hand_cases.py` explains how they are written."""

from hand_cases import case, ways_to_leave

# fmt: off
CLIENTS = [
    # ---- Clients that leave for ever.
    # At step 1, time 2, client 0 has just arrived and client 1 is under way: 2 and 3 take their places.
    # Client 0 twice from 0, client 2 twice from 4; client 1's way to -8 is never used.
    case("clients leave at a step", [1, 5, 1, 2], M=2, K=2, targets=[8, -8, 6, 100],
         vanish=("step", (1, 0), 1),
         steps="@2 0#0 v0 0-1, 0#1 v0 1-2; @4 2#0 v1 2-3, 2#1 v1 3-4", under_way="2#2 v2 4-5, 3#0 v1 2-4",
         thrown_away="1#0 v0 0-5 x2 s1", choices="@0 0 1 of 0 1 2 3; @1 0 of 0 2 3", values=[0, 4, 5]),
    # K = 1. At time 1 clients 0 to 2 arrive: steps 1 to 3. Clients 2 and 3 leave at step 1 of these.
    case("who leaves at a step leaves after all arrivals of its instant", [1, 1, 1, 4],
         vanish=("step", (2, 3), 1),
         steps="@1 0#0 v0 0-1; @1 1#0 v0 0-1; @1 2#0 v0 0-1; @2 0#1 v3 1-2; @2 1#1 v3 1-2",
         under_way="0#2 v5 2-3, 1#2 v5 2-3", thrown_away="3#0 v0 0-4 x1 s3"),
    # K = 1 again: step 2 comes at time 1, with client 1, as does step 1.
    case("clients leave at a step that is not the first of its instant", [1, 1, 1.5],
         vanish=("step", (2,), 2),
         steps="@1 0#0 v0 0-1; @1 1#0 v0 0-1; @2 0#1 v2 1-2", under_way="0#2 v3 2-3, 1#1 v2 1-2",
         thrown_away="2#0 v0 0-1.5 x1 s2"),
    # Client 1 leaves at 2.5, and client 2 takes its place at that time.
    case("clients leave at a time at which nothing arrives", [2, 10, 1], M=2, vanish=("time", (1,), 2.5),
         steps="@2 0#0 v0 0-2; @3.5 2#0 v1 2.5-3.5; @4 0#1 v1 2-4", under_way="0#2 v3 4-6, 2#1 v2 3.5-4.5",
         thrown_away="1#0 v0 0-10 x2.5 s1", choices="@0 0 1 of 0 1 2; @2 0 of 0 2"),
    # Client 1 arrives at time 2 and leaves then: its trip counts, and it starts no other.
    case("who leaves at the time of an arrival has arrived", [3, 2], vanish=("time", (1,), 2),
         steps="@2 1#0 v0 0-2; @3 0#0 v0 0-3; @6 0#1 v2 3-6", under_way="0#2 v3 6-9"),
    # Nobody is asked at 0.5, when client 2 leaves; it is not among those eligible at time 1.
    case("an idle client that leaves frees no place", [1, 1, 1, 1], M=1, vanish=("time", (2,), 0.5),
         steps="@1 1#0 v0 0-1", under_way="3#0 v1 1-2", choices="@0 1 of 0 1 2 3; @1 3 of 0 1 3"),
    # The first trips of 0 and 1 take no time, so they arrive; client 2's is thrown away at once. Client 0's
    # second trip starts at time 0, too; client 1, who would be as quick, starts no other.
    case("clients leave at time 0 after the start", [[0, 1], 0, 2], vanish=("time", (1, 2), 0), jafl=False,
         steps="@0 0#0 v0 0-0; @0 1#0 v0 0-0; @1 0#1 v2 0-1", under_way="0#2 v3 1-2",
         thrown_away="2#0 v0 0-2 x0 s2"),
    # Clients 0 and 1 leave with their second trips, at times 2 and 3; what they brought is applied. Client
    # 0's trip lies in the buffer from 2 to 3, while it is gone. At the end client 2 is alone: one place stays
    # free.
    case("clients leave after a number of trips", [1, 1.5, 1], M=2, K=2, vanish=("trips", (0, 1), 2),
         steps="@1.5 0#0 v0 0-1, 1#0 v0 0-1.5; @3 0#1 v0 1-2, 1#1 v1 1.5-3; @4 2#0 v1 2-3, 2#1 v2 3-4",
         under_way="2#2 v3 4-5", choices="@0 0 1 of 0 1 2; @1 0 of 0 2; @1.5 1 of 1 2"),
    # 3 places, K = 2. At time 2 client 0 lies in the buffer and client 2 is under way; both leave. Nobody
    # starts then. The step at time 3 applies 2 trips, and 3 clients start: 2's place is free as well.
    case("places of those who left are taken after the next step", [1, 3, 8, 1, 1], M=3, K=2,
         restart="after_step", replace_lost="after_step", vanish=("time", (0, 2), 2),
         steps="@3 0#0 v0 0-1, 1#0 v0 0-3; @4 3#0 v1 3-4, 4#0 v1 3-4",
         under_way="1#1 v1 3-6, 3#1 v2 4-5, 4#1 v2 4-5", thrown_away="2#0 v0 0-8 x2 s0",
         choices="@0 0 1 2 of 0 1 2 3 4"),
    # At time 1 clients 0 to 2 arrive, K = 2: 2 leaves while its update waits, so 2 of 3 places are free.
    case("an update in the buffer keeps its place though its client left", [1, 1, 1, 1, 1], M=3, K=2,
         restart="after_step", vanish=("step", (2,), 1),
         steps="@1 0#0 v0 0-1, 1#0 v0 0-1; @2 2#0 v0 0-1, 3#0 v1 1-2",
         under_way="1#1 v2 2-3, 3#1 v2 2-3, 4#0 v1 1-2",
         choices="@0 0 1 2 of 0 1 2 3 4; @1 3 4 of 0 1 3 4; @2 1 3 of 0 1 3"),
    # At time 1.5 client 1 leaves. Client 0's update waits, client 2 is under way, so 3 takes the place.
    case("a free place is taken by one whose update is not in the buffer", [1, 9, 2, 1], M=2, K=2,
         restart="not_twice_in_a_buffer", vanish=("time", (1,), 1.5),
         steps="@2.5 0#0 v0 0-1, 3#0 v0 1.5-2.5", under_way="0#1 v1 2.5-3.5, 2#0 v0 1-3",
         thrown_away="1#0 v0 0-9 x1.5 s0", choices="@0 0 1 of 0 1 2 3; @1 2 of 2 3; @2.5 0 of 0 3"),
    # Clients 0 and 1 have contributed by time 2; at time 4 client 2 leaves, and they start again then.
    case("a round ends when the last one it waits for leaves", [1, 2, 9], K=2, restart="after_round",
         vanish=("time", (2,), 4),
         steps="@2 0#0 v0 0-1, 1#0 v0 0-2; @6 0#1 v1 4-5, 1#1 v1 4-6", under_way="0#2 v2 6-7, 1#2 v2 6-8",
         thrown_away="2#0 v0 0-9 x4 s1"),
    # Client 1 leaves under way and client 3 before its start: the rounds are those of 0 and 2 alone.
    case("within a round one that has not started takes the place of one that left", [1, 3, 2, 1], M=2, K=2,
         restart="after_round", vanish=("time", (1, 3), 0.5),
         steps="@2.5 0#0 v0 0-1, 2#0 v0 0.5-2.5; @4.5 0#1 v1 2.5-3.5, 2#1 v1 2.5-4.5",
         under_way="0#2 v2 4.5-5.5, 2#2 v2 4.5-6.5", thrown_away="1#0 v0 0-3 x0.5 s0",
         choices="@0 0 1 of 0 1 2 3"),
    # Client 0 leaves with its first trip: round 0 needs it no more, and the later rounds are client 1's.
    case("who left is not waited for in later rounds", [1, 2], restart="after_round",
         vanish=("trips", (0,), 1),
         steps="@1 0#0 v0 0-1; @2 1#0 v0 0-2; @4 1#1 v2 2-4; @6 1#2 v3 4-6", under_way="1#3 v4 6-8"),
    # Step 0 takes 2 trips and waits for them; client 1's place, free from 0.5, is taken after it.
    case("nobody takes the place of one that left before the first larger step", [1, 5, 2, 1], M=3,
         first_buffer_size=2, vanish=("time", (1,), 0.5),
         steps="@2 0#0 v0 0-1, 2#0 v0 0-2; @3 0#1 v1 2-3", under_way="0#2 v2 3-4, 2#1 v1 2-4, 3#0 v1 2-3",
         thrown_away="1#0 v0 0-5 x0.5 s0", choices="@0 0 1 2 of 0 1 2 3"),
    # Client 1 arrives at 1.5 with the first step, and leaves, be that the last step or not.
    case("who leaves at the instant of the last step does not start again", [1, 1.5], K=2,
         variants=ways_to_leave(("step", (1,), 1), ("time", (1,), 1.5), ("trips", (1,), 1)),
         steps="@1.5 0#0 v0 0-1, 1#0 v0 0-1.5", under_way="0#1 v0 1-2"),
    # If client 1 does not leave, it starts.
    case("who stays starts again at the instant of the last step", [1, 1.5], K=2,
         steps="@1.5 0#0 v0 0-1, 1#0 v0 0-1.5", under_way="0#1 v0 1-2, 1#1 v1 1.5-3"),
    case("who leaves at the instant of a step does not start again", [1, 1.5], K=2,
         variants=ways_to_leave(("step", (1,), 1), ("time", (1,), 1.5), ("trips", (1,), 1)),
         steps="@1.5 0#0 v0 0-1, 1#0 v0 0-1.5; @3 0#1 v0 1-2, 0#2 v1 2-3", under_way="0#3 v2 3-4"),
    case("who stays starts again at the instant of a step", [1, 1.5], K=2,
         steps="@1.5 0#0 v0 0-1, 1#0 v0 0-1.5; @3 0#1 v0 1-2, 0#2 v1 2-3",
         under_way="0#3 v2 3-4, 1#1 v1 1.5-3"),
    # Both arrive at 1, a step each; client 1 leaves then, so client 0 alone starts again.
    case("who leaves with the last step does not start again", [1, 1], vanish=("trips", (1,), 1),
         variants=[{"restart": restart} for restart in ("at_once", "not_twice_in_a_buffer", "after_step")],
         steps="@1 0#0 v0 0-1; @1 1#0 v0 0-1", under_way="0#1 v2 1-2"),
    # A single step: client 0, which makes it, has left.
    case("who has left by the last step is not under way after it", [1, 1.5, 2.5],
         variants=ways_to_leave(("step", (0,), 1), ("time", (0,), 1), ("trips", (0,), 1)),
         steps="@1 0#0 v0 0-1", under_way="1#0 v0 0-1.5, 2#0 v0 0-2.5"),
    # At 2 client 0 comes one step too late, and leaves; then client 1 makes the last step.
    case("who has left at the last step does not start though its trip is thrown away", [2, 1],
         staleness_limit=0, vanish=("trips", (0,), 1),
         steps="@1 1#0 v0 0-1; @2 1#1 v1 1-2", under_way="1#2 v2 2-3", thrown_away="0#0 v0 0-2 x2 s1"),
    # Client 1 leaves with the first step. If that is the last, its trip is under way at the end.
    case("no trip is thrown away after the last step", [1, 1.5],
         variants=ways_to_leave(("step", (1,), 1), ("time", (1,), 1)),
         steps="@1 0#0 v0 0-1", under_way="0#1 v1 1-2, 1#0 v0 0-1.5"),
    # The same where another step follows.
    case("a trip is thrown away after a step that is not the last", [1, 1.5],
         variants=ways_to_leave(("step", (1,), 1), ("time", (1,), 1)),
         steps="@1 0#0 v0 0-1; @2 0#1 v1 1-2", under_way="0#2 v2 2-3", thrown_away="1#0 v0 0-1.5 x1 s1"),
    case("who should leave after the end does not leave", [1, 1], K=2,
         variants=ways_to_leave(("step", (0, 1), 4), ("time", (0, 1), 3.25), ("trips", (0, 1), 4)),
         steps="@1 0#0 v0 0-1, 1#0 v0 0-1; @2 0#1 v1 1-2, 1#1 v1 1-2; @3 0#2 v2 2-3, 1#2 v2 2-3",
         under_way="0#3 v3 3-4, 1#3 v3 3-4"),
    # Worlds close to the starved ones (STARVED) do not starve.
    case("one that stays fills the buffer alone", [1, 2], K=3, vanish=("trips", (1,), 1),
         steps="@2 0#0 v0 0-1, 0#1 v0 1-2, 1#0 v0 0-2; @5 0#2 v1 2-3, 0#3 v1 3-4, 0#4 v1 4-5",
         under_way="0#5 v2 5-6"),
    case("two clients fill a buffer of three in two rounds", [1, 2], K=3, restart="after_round",
         steps="@3 0#0 v0 0-1, 1#0 v0 0-2, 0#1 v0 2-3; @6 1#1 v0 2-4, 0#2 v1 4-5, 1#2 v1 4-6",
         under_way="0#3 v2 6-7, 1#3 v2 6-8"),
    case("rounds go on with the one that stays", [1, 2], K=3, restart="after_round",
         vanish=("trips", (1,), 1),
         steps="@3 0#0 v0 0-1, 1#0 v0 0-2, 0#1 v0 2-3; @6 0#2 v1 3-4, 0#3 v1 4-5, 0#4 v1 5-6",
         under_way="0#5 v2 6-7"),
    case("two clients fill a buffer of two again and again", [1, 2], K=2, restart="after_step",
         steps="@2 0#0 v0 0-1, 1#0 v0 0-2; @4 0#1 v1 2-3, 1#1 v1 2-4", under_way="0#2 v2 4-5, 1#2 v2 4-6"),
    case("one that stays fills a buffer of one", [1, 2], restart="not_twice_in_a_buffer",
         vanish=("step", (1,), 1),
         steps="@1 0#0 v0 0-1; @2 0#1 v1 1-2", under_way="0#2 v2 2-3", thrown_away="1#0 v0 0-2 x1 s1"),
    # ---- Trips that fail.
    # Both train from 0, so 4 and then -4; then both from 0 again.
    case("failed trips are thrown away and their clients start again at once", [1, 2], targets=[8, -8],
         fails="0#0 0#2",
         steps="@2 0#1 v0 1-2; @2 1#0 v0 0-2; @4 0#3 v2 3-4; @4 1#1 v2 2-4",
         under_way="0#4 v4 4-5, 1#2 v4 4-6", thrown_away="0#0 v0 0-1 x1 s0, 0#2 v2 2-3 x3 s2",
         values=[0, 4, 0, 4, 0]),
    # At time 1 clients 0 to 2 arrive, K = 1: client 1 fails at version 1, client 2 meets version 1, too.
    case("a failed trip is handled in its place among those that arrive with it", [1, 1, 1], fails="1#0",
         steps="@1 0#0 v0 0-1; @1 2#0 v0 0-1", under_way="0#1 v2 1-2, 1#1 v2 1-2, 2#1 v2 1-2",
         thrown_away="1#0 v0 0-1 x1 s1"),
    # At time 1 client 0 fails, so it is eligible; at time 2 it arrives, so only client 2 is.
    case("who failed has nothing in the buffer", [1, 9, 3], M=2, K=2, restart="not_twice_in_a_buffer",
         fails="0#0",
         steps="@5 0#1 v0 1-2, 2#0 v0 2-5", under_way="0#2 v1 5-6, 1#0 v0 0-9",
         thrown_away="0#0 v0 0-1 x1 s0", choices="@0 0 1 of 0 1 2; @1 0 of 0 2; @5 0 of 0 2"),
    # Client 0 fails at time 1 and waits; the step at time 3 opens its place with those of 1 and 2.
    case("the place of a failed trip opens with the next step", [1, 2, 3], K=2, restart="after_step",
         replace_lost="after_step", fails="0#0",
         steps="@3 1#0 v0 0-2, 2#0 v0 0-3; @5 0#1 v1 3-4, 1#1 v1 3-5",
         under_way="0#2 v2 5-6, 1#2 v2 5-7, 2#1 v1 3-6", thrown_away="0#0 v0 0-1 x1 s0"),
    # Three arrive at time 1, K = 2. Whether handled ahead of the step or after it, the place opens.
    case("a failure ahead of a step at its instant starts again with the others", [1, 1, 1], K=2,
         restart="after_step", fails="0#0",
         steps="@1 1#0 v0 0-1, 2#0 v0 0-1; @2 0#1 v1 1-2, 1#1 v1 1-2",
         under_way="0#2 v2 2-3, 1#2 v2 2-3, 2#1 v1 1-2", thrown_away="0#0 v0 0-1 x1 s0"),
    case("a failure after a step at its instant starts again with the others", [1, 1, 1], K=2,
         restart="after_step", fails="2#0",
         steps="@1 0#0 v0 0-1, 1#0 v0 0-1; @2 0#1 v1 1-2, 1#1 v1 1-2",
         under_way="0#2 v2 2-3, 1#2 v2 2-3, 2#1 v1 1-2", thrown_away="2#0 v0 0-1 x1 s1"),
    # Who waits for whom where client 0's first trip fails. Client 0 tries again at 1, and its trip is in the
    # buffer when client 1 comes.
    case("the place of a lost trip is taken at once", [1, 4, 6], K=2, restart="after_step", fails="0#0",
         replace_lost="at_once",
         steps="@4 0#1 v0 1-2, 1#0 v0 0-4", under_way="0#2 v1 4-5, 1#1 v1 4-8, 2#0 v0 0-6",
         thrown_away="0#0 v0 0-1 x1 s0"),
    # It does so at 1 + 2.5, after which client 1 comes first.
    case("the place of a lost trip is taken after a time-out", [1, 4, 6], K=2, restart="after_step",
         fails="0#0", replace_lost="after_time_out", time_out=2.5,
         steps="@4.5 1#0 v0 0-4, 0#1 v0 3.5-4.5", under_way="0#2 v1 4.5-5.5, 1#1 v1 4.5-8.5, 2#0 v0 0-6",
         thrown_away="0#0 v0 0-1 x1 s0"),
    # It does not before the step of the other two.
    case("the place of a lost trip is taken after a step", [1, 4, 6], K=2, restart="after_step", fails="0#0",
         replace_lost="after_step",
         steps="@6 1#0 v0 0-4, 2#0 v0 0-6", under_way="0#1 v1 6-7, 1#1 v1 6-10, 2#1 v1 6-12",
         thrown_away="0#0 v0 0-1 x1 s0"),
    # Client 0 fails at 1, noticed at 6. The step at 4 replaces client 1 alone, unless it cancels all trips.
    case("a server that has not noticed a loss does not replace it at a step", [[1, 9], [4, 9], [6, 9]],
         restart="after_step", fails="0#0", replace_lost="after_time_out", time_out=5,
         steps="@4 1#0 v0 0-4; @6 2#0 v0 0-6", under_way="0#1 v2 6-15, 1#1 v1 4-13, 2#1 v2 6-15",
         thrown_away="0#0 v0 0-1 x1 s0"),
    case("a step that cancels all trips replaces a loss that was not noticed", [[1, 9], [4, 9], [6, 9]],
         restart="after_step", fails="0#0", cancel_at_step=True, replace_lost="after_time_out", time_out=5,
         steps="@4 1#0 v0 0-4; @13 0#1 v1 4-13", under_way="0#2 v2 13-22, 1#2 v2 13-22, 2#2 v2 13-22",
         thrown_away="0#0 v0 0-1 x1 s0, 2#0 v0 0-6 x4 s0, 1#1 v1 4-13 x13 s1, 2#1 v1 4-13 x13 s1"),
    # Client 0 makes a step at 1 and at 2; client 1's trip comes at 1.5, one step too late.
    case("the server knows of a trip that is too stale", [1, 1.5], restart="after_step", staleness_limit=0,
         variants=[{"replace_lost": "at_once"}, {"replace_lost": "after_time_out", "time_out": 9}],
         steps="@1 0#0 v0 0-1; @2 0#1 v1 1-2", under_way="0#2 v2 2-3, 1#1 v1 1.5-3",
         thrown_away="1#0 v0 0-1.5 x1.5 s1"),
    # With replace_lost='after_step' it waits for the step at 2.
    case("the place of a trip that is too stale opens with the next step", [1, 1.5], restart="after_step",
         staleness_limit=0, replace_lost="after_step",
         steps="@1 0#0 v0 0-1; @2 0#1 v1 1-2", under_way="0#2 v2 2-3, 1#1 v2 2-3.5",
         thrown_away="1#0 v0 0-1.5 x1.5 s1"),
    # Client 0 fails at time 1: it is eligible again, and round 0 waits for its trip 1 until time 3.
    case("who failed has not contributed to the round", [1, 3, 1], M=2, restart="after_round", fails="0#0",
         steps="@2 2#0 v0 1-2; @3 0#1 v1 2-3; @3 1#0 v0 0-3", under_way="1#1 v3 3-6, 2#1 v3 3-4",
         thrown_away="0#0 v0 0-1 x1 s0", choices="@0 0 1 of 0 1 2; @1 2 of 0 2; @3 1 2 of 0 1 2"),
    # Step 0 takes 2 trips: those of 1 and 2. Client 0, who failed at time 1, starts again with them.
    case("nobody starts again before the first larger step though it failed", [1, 2, 3], first_buffer_size=2,
         fails="0#0", jafl=False,
         steps="@3 1#0 v0 0-2, 2#0 v0 0-3; @4 0#1 v1 3-4", under_way="0#2 v2 4-5, 1#1 v1 3-5, 2#1 v1 3-6",
         thrown_away="0#0 v0 0-1 x1 s0"),
    case("failed trips count for those who leave after a number of trips", [1, 1.5],
         vanish=("trips", (0,), 2), fails="0#0",
         steps="@1.5 1#0 v0 0-1.5; @2 0#1 v0 1-2; @3 1#1 v1 1.5-3; @4.5 1#2 v3 3-4.5",
         under_way="1#3 v4 4.5-6", thrown_away="0#0 v0 0-1 x1 s0"),
    # ---- Clients that come and go.
    # Client 1 is there from 2.5 to 4, and client 2 never. Trips under way are not touched.
    case("an open place is taken when somebody becomes available", [2, 1, 1], M=2,
         present=["0-", "2.5-4", ""],
         steps="@2 0#0 v0 0-2; @3.5 1#0 v1 2.5-3.5; @4 0#1 v1 2-4; @4.5 1#1 v2 3.5-4.5",
         under_way="0#2 v3 4-6"),
    # The same, but client 1 goes away at 4: its trip is handled then, after client 0's and its step.
    case("a trip is lost when its client goes away", [2, 1, 1], M=2, present=["0-", "2.5-4", ""],
         lost_when_away=True,
         steps="@2 0#0 v0 0-2; @3.5 1#0 v1 2.5-3.5; @4 0#1 v1 2-4; @6 0#2 v3 4-6", under_way="0#3 v4 6-8",
         thrown_away="1#1 v2 3.5-4.5 x4 s3"),
    # Client 0 is there for 1 and then for 0.75: its second trip is lost at 2.75, and it comes back at 3.
    case("a trip that arrives at the very end of presence has arrived", [1], present=["0-1 2-2.75 3-4"],
         lost_when_away=True,
         steps="@1 0#0 v0 0-1; @4 0#2 v1 3-4", thrown_away="0#1 v1 2-3 x2.75 s1"),
    # Two windows that touch at time 1: the trip is lost there, and the next starts there.
    case("a client that is lost may be back at once", [2], present=["0-1 1-9"], lost_when_away=True,
         steps="@3 0#1 v0 1-3", under_way="0#2 v1 3-5", thrown_away="0#0 v0 0-2 x1 s0"),
    # Client 3 comes at 0.5, but the one place is taken then: no instant of its own, nobody is asked.
    case("who starts is chosen among those available", [1, 1, 1, 1], M=1,
         present=["0-", "0-1", "0-", "0.5-"],
         steps="@1 0#0 v0 0-1", under_way="0#1 v1 1-2", choices="@0 0 of 0 1 2; @1 0 of 0 2 3"),
    case("two that come at once may have to share one place", [9, 1, 1.5, 1], M=2,
         present=["0-", "2-", "2-", "3-"],
         steps="@3.5 2#0 v0 2-3.5", under_way="0#0 v0 0-9, 3#0 v1 3.5-4.5",
         choices="@2 2 of 1 2; @3.5 3 of 1 2 3"),
    # 3 places, K = 2. At time 0 client 2 is away, so a place stays open until it comes, at 1.5. Client 0's
    # place, free since time 1, is none of those: client 3, there from 1.75 on, must wait for the step at time
    # 2. It opens two places, which 0 and 2 take.
    case("places that a step opened stay open and others do not", [1, 3, 0.5, 1], M=3, K=2,
         restart="after_step", present=["0-", "0-", "1.5-", "1.75-"],
         steps="@2 0#0 v0 0-1, 2#0 v0 1.5-2; @3 2#1 v1 2-2.5, 0#1 v1 2-3",
         under_way="1#0 v0 0-3, 2#2 v2 3-3.5, 3#0 v2 3-4", choices="@2 0 2 of 0 2 3; @3 2 3 of 0 2 3"),
    # Client 2 is away, so a place is open: 0 fails at time 1 and takes it. No place is left at its next.
    case("an open place may be taken by one that failed", [1, 3, 1], K=2, restart="after_step",
         replace_lost="after_step", present=["0-", "0-", "10-"], fails="0#0",
         steps="@3 0#1 v0 1-2, 1#0 v0 0-3; @6 0#2 v1 3-4, 1#1 v1 3-6", under_way="0#3 v2 6-7, 1#2 v2 6-9",
         thrown_away="0#0 v0 0-1 x1 s0"),
    # Clients 0 and 1 have contributed by time 2; client 2 comes at 5, and round 1 begins at 6.
    case("a round waits for one that is away", [1, 2, 1], restart="after_round", present=["0-", "0-", "5-"],
         steps="@1 0#0 v0 0-1; @2 1#0 v0 0-2; @6 2#0 v2 5-6; @7 0#1 v3 6-7",
         under_way="1#1 v3 6-8, 2#1 v3 6-7"),
    # Client 2 leaves at 4, before it comes, or never comes at all.
    case("a round does not wait for one that is away and leaves", [1, 2, 1], vanish=("time", (2,), 4),
         restart="after_round", variants=[{"present": ["0-", "0-", "5-"]}, {"present": ["0-", "0-", ""]}],
         steps="@1 0#0 v0 0-1; @2 1#0 v0 0-2; @5 0#1 v2 4-5; @6 1#1 v2 4-6",
         under_way="0#2 v4 6-7, 1#2 v4 6-8"),
    # Client 0's update waits for step 0 from 0.25 on; client 2, who comes at 0.5, starts then.
    case("places open since the start are taken before the first larger step", [0.25, 1, 1],
         first_buffer_size=3, present=["0-", "0-", "0.5-"],
         steps="@1.5 0#0 v0 0-0.25, 1#0 v0 0-1, 2#0 v0 0.5-1.5; @1.75 0#1 v1 1.5-1.75",
         under_way="0#2 v2 1.75-2, 1#1 v1 1.5-2.5, 2#1 v1 1.5-2.5"),
    # Client 1 is away until 3. Client 0's update lies in the buffer from time 1, so the places stay open.
    case("who waits in the buffer does not take an open place", [1, 1], K=2, restart="not_twice_in_a_buffer",
         present=["0-", "3-"],
         steps="@4 0#0 v0 0-1, 1#0 v0 3-4", under_way="0#1 v1 4-5, 1#1 v1 4-5"),
]
