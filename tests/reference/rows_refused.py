"""Runs that starve, and answers that no schedule may give: where or why each is refused."""

import math

from hand_cases import world

# fmt: off
# (where, the world); nobody is under way then, and nobody will ever start.
STARVED = [
    ("time 2.0 and version 0", world([1, 2], K=3, vanish=("trips", (0, 1), 1))),
    ("time 0.5 and version 0", world([1, 2], vanish=("time", (0, 1), 0.5))),
    ("time 1.0 and version 1", world([1, 2], vanish=("step", (0, 1), 1))),
    # Two clients never fill a buffer of 3 if each may be in it only once.
    ("time 2.0 and version 0", world([1, 2], K=3, restart="not_twice_in_a_buffer")),
    ("time 2.0 and version 0", world([1, 2], K=3, restart="after_step")),
    # Client 1 leaves with step 1, at time 2; client 0 starts again and then waits for ever.
    ("time 3.0 and version 1", world([1, 2], K=2, restart="not_twice_in_a_buffer", vanish=("step", (1,), 1))),
    ("time 3.0 and version 1", world([1, 2], K=2, restart="after_step", vanish=("step", (1,), 1))),
    # Client 0 has arrived when the other one, under way, leaves.
    ("time 1.25 and version 0", world([1, 2], K=2, restart="after_step", vanish=("time", (1,), 1.25))),
    ("time 2.0 and version 0", world([1, 2], K=4, restart="after_round", vanish=("trips", (0, 1), 1))),
    # Nobody starts before step 0, which would take both clients, or all three.
    ("time 1.0 and version 0", world([1, 2], first_buffer_size=2, vanish=("time", (1,), 0.5))),
    ("time 3.0 and version 0", world([1, 2, 3], first_buffer_size=3, fails="0#0")),
    # A place is open, which client 0 takes after its first failure, at 1; none is open after its second. Client 1
    # alone does not make a step, and no place opens without one.
    ("time 3.0 and version 0", world([1, 3, 1], K=2, restart="after_step", replace_lost="after_step",
                                     present=["0-", "0-", "10-"], fails="0#0 0#1")),
    # A round waits for a client that never comes.
    ("time 2.0 and version 2", world([1, 2, 1], restart="after_round", present=["0-", "0-", ""])),
    ("time 0.0 and version 0", world([1, 2], present=["", ""])),
    ("time 4.0 and version 4", world([1, 2], present=["0-2", "0-3"])),  # arrivals at 1, 2, 2 and 4
    ("time 2.0 and version 1", world([1, 2], present=["1-2", ""])),
    # Who comes back waits in the buffer.
    ("time 2.0 and version 0", world([2], K=2, restart="not_twice_in_a_buffer", present=["0-2 3-9"])),
    # The start times are over; the second of two starts in one trip is skipped.
    ("time 0.0 and version 0", world([1], K=2, start_times=[])),
    ("time 1.0 and version 0", world([1], K=2, start_times=[0.0, 0.5])),
    ("time 2.0 and version 1", world([1], K=2, start_times=[0.0, 1.0])),
    ("time 3.0 and version 1", world([1], K=2, start_times=[0.0, 1.0, 2.0])),
    ("time 8.0 and version 2", world([1], K=2, start_times=[0.0, 1.0, 2.0], flush_after=5.0)),
]


def choice(*clients):
    return {"num_clients": 4, "concurrency": 2, "select": lambda time, idle, how_many: list(clients)}


# Words of the message: answers of a schedule other than two clients of durations 1 in two places, K = 1.
REFUSED = {
    "different clients": [choice(0, 0), choice(0), choice(0, 1, 2), choice(0, 5)],
    "bad duration": [{"duration": lambda client, trip, x=x: x} for x in (-1.0, math.nan, math.inf)],
    "available next": [{"next_available": lambda client, time, x=x: x if time else 0.0}
                       for x in (0.5, math.nan, -math.inf)],
    "is present until": [{"present_until": lambda client, time, x=x: x if time else 9.0}
                         for x in (0.0, 1.0, math.nan)],
}
