"""The time and memory that the host takes to compute schedules.

    python -m experiments.tools.benchmarks.schedule_speed                 # one million trips each
    python -m experiments.tools.benchmarks.schedule_speed --trips=10000000 --clients=660120 --concurrency=1000

Printed are processor seconds for the schedule and for its plan, trips per second, and the process's peak memory.
"""

import resource
import time

from absl import app, flags

import jafl
from jafl import delays

TRIPS = flags.DEFINE_integer("trips", 1_000_000, "Client trips.", lower_bound=10)
CLIENTS = flags.DEFINE_list("clients", ["100", "1000", "660120"], "Numbers of clients.")
CONCURRENCY = flags.DEFINE_integer("concurrency", 100, "Clients under way.", lower_bound=1)
BUFFERS = flags.DEFINE_list("buffer_sizes", ["1", "10"], "Trips per server step.")


def main(_: list[str]) -> None:
    """Prints one line per number of clients and buffer size."""
    for clients in map(int, CLIENTS.value):
        for size in map(int, BUFFERS.value):
            begin = time.process_time()
            schedule = jafl.asynchronous(
                num_clients=clients,
                concurrency=min(clients, CONCURRENCY.value),
                buffer_size=size,
                delay=delays.half_normal(1.0),
                client_trips=TRIPS.value,
            )
            scheduled = time.process_time()
            jafl.trip_by_trip(schedule)
            planned = time.process_time()
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
            seconds = scheduled - begin
            print(
                f"{clients:>8,} clients, K = {size:>3}: {schedule.num_trips:,} trips in {seconds:5.1f} s "
                f"({schedule.num_trips / seconds:,.0f}/s), plan {planned - scheduled:4.1f} s, peak {peak:.2f} GiB",
                flush=True,
            )


if __name__ == "__main__":
    app.run(main)
