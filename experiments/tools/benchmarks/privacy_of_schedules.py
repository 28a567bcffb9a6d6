"""What "epsilon = 6" means on schedules of Sentiment140's size, and what it costs to find out.

    python -m experiments.tools.benchmarks.privacy_of_schedules
    python -m experiments.tools.benchmarks.privacy_of_schedules --mechanisms=tree,banded_toeplitz --reading=worst_case
    python -m experiments.tools.benchmarks.privacy_of_schedules --mechanisms=tree,tree_honaker --published=models

FedBuff, 600,000 client trips, 1,000 clients in flight, half-normal durations, delta = 1e-7. The noise is set for the
epsilon in one reading (by default as if every client took part once, as papers do). Printed are, for each number of
clients, buffer size and staleness weight: how often clients take part, the squared sensitivities in units of the clip
norm and the largest weight, all readings of epsilon, quantiles of the clients' own, and the processor time and peak
memory of the accounting.
"""

import resource
import time

from absl import app, flags

import jafl
from jafl import privacy
from jafl.rules import staleness

TRIPS = flags.DEFINE_integer("private_trips", 600_000, "Client trips.", lower_bound=10)
CONCURRENCY = flags.DEFINE_integer("private_in_flight", 1000, "Clients in flight.", lower_bound=1)
EPSILON = flags.DEFINE_float("private_epsilon", 6.0, "For which the noise is set.")
DELTA = flags.DEFINE_float("private_delta", 1e-7, "Of every epsilon.")
READING = flags.DEFINE_enum("reading", "once", sorted(privacy.READINGS), "Reading of the epsilon.")
PUBLISHED = flags.DEFINE_enum("published", "nodes", sorted(privacy.PUBLISHED), "What of a tree is published.")
MECHANISMS = flags.DEFINE_list("mechanisms", ["tree_honaker"], "Mechanisms, each on every schedule.")

# (clients, trips per server step, whether late updates count less). 99,018 is 15 % of 660,120.
ROWS = ((660_120, 10, False), (660_120, 10, True), (99_018, 10, False), (660_120, 1000, False))


def account_schedule(
    clients: int, buffer_size: int, weighs_staleness: bool, mechanism: str
) -> tuple[privacy.PrivacyReport, float]:
    """The report of one schedule, and the processor seconds that the accounting took, without the schedule."""
    schedule = jafl.asynchronous(
        num_clients=clients,
        concurrency=min(CONCURRENCY.value, clients),
        buffer_size=buffer_size,
        client_trips=TRIPS.value,
        delay=jafl.delays.half_normal(1.0),
    )
    weight = staleness.polynomial(0.5) if weighs_staleness else staleness.constant()
    began = time.process_time()
    report = privacy.account(
        schedule,
        jafl.rules.fedbuff(weight),
        clip_norm=1.0,
        delta=DELTA.value,
        epsilon=EPSILON.value,
        epsilon_reading=READING.value,
        mechanism=mechanism,
        published=PUBLISHED.value,
    )
    return report, time.process_time() - began


def main(_: list[str]) -> None:
    """Prints a row of a Markdown table for each schedule and mechanism."""
    print(f"Noise set for epsilon {EPSILON.value:g} ({READING.value}), delta {DELTA.value:g}")
    print(
        "| N | K | weights | mechanism | most trips, smallest gap | with more than one | squared sensitivity: once / "
        "realised / worst, found and bound | epsilon: once / realised / worst | of clients: median / 99.9 % | "
        "seconds, GiB |\n|---|---|---|---|---|---|---|---|---|---|"
    )
    for mechanism in MECHANISMS.value:
        for clients, size, weighs in ROWS:
            report, seconds = account_schedule(clients, size, weighs, mechanism)
            squares, fields = report.squared_sensitivities, report.to_dict()
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
            cells = (
                f"{clients:,}",
                f"{size:,}",
                "(1 + staleness)^-1/2" if weighs else "1",
                str(report.mechanism),
                f"{report.pattern.most_trips}, {report.pattern.smallest_gap}",
                f"{report.pattern.repeated / clients:.0%}",
                " / ".join(
                    f"{squares[name]:.4g}" for name in ("once", "realised", "worst_found", "worst_case")
                ),
                f"{report.epsilon_once:.3g} / {report.epsilon_realised:.3g} / {report.epsilon_worst_case:.3g}",
                " / ".join(f"{fields['epsilon_of_clients'][name]:.3g}" for name in ("median", "99.9 %")),
                f"{seconds:.1f}, {peak:.2f}",
            )
            print("|", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    app.run(main)
