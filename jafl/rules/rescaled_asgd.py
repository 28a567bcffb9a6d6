"""Rescaled asynchronous SGD: slow clients make larger steps, so that all count equally (Mahran et al. 2026)."""

import numpy as np

from jafl.base.errors import choose, require
from jafl.records import EventSchedule, Rule
from jafl.rules.accumulate import weighted_sum
from jafl.specifications import specification


@specification
def rescaled_asgd(durations: str = "mean") -> Rule:
    """Rescaled ASGD: w <- w - eta_i g at each arrival, eta_i in proportion to how long a trip of client i takes.

    Asynchronous SGD minimizes the clients' losses weighted by how often each client arrives. With eta_i = eta tau_i
    mean_j(1 / tau_j), tau_i the duration of client i's trips, all clients have the same total learning rate per unit
    of time, so the plain mean of the losses is minimized (Mahran, Maranjyan and Richtárik 2026). These are the
    unbiased weights of Fraboni et al. (JMLR 2023) for clients of equal importance. The factor mean_j(1 / tau_j) is a
    reading: it makes the weights 1 on average over the arrivals, so that eta compares with that of ``asgd``. (To
    divide tau_i by the mean of all tau_j instead gives smaller weights.) A rule on gradients, see ``asgd``.

    The paper takes durations as known and constant. Here they are measured over the whole schedule, so the weights
    know the future. Means are over the trips that the server applies, and over the clients with at least one such
    trip.

    Reports ``weight`` per trip: eta_i / eta.

    Args:
      durations: what tau_i is. "mean": the mean duration of client i's applied trips; "trip": the trip's own
        duration, with the same factor; "frequency": 1 over the number of client i's applied trips, however long they
        took, so that all clients with an applied trip have the same total weight.

    Returns:
      The rule, as a specification, for ``jafl.simulate``.

    Raises:
      SettingError: for unknown durations, when the rule is built; for clients whose trips take no time, when the run
        starts.
    """
    choose("durations", durations, {"mean": None, "trip": None, "frequency": None})

    def weights(schedule: EventSchedule) -> np.ndarray:
        trips = np.bincount(schedule.client, minlength=schedule.num_clients)
        heard = trips > 0
        if durations == "frequency":
            return np.sum(trips) / np.sum(heard) / trips[schedule.client]
        taken = np.asarray(schedule.arrival_time - schedule.download_time, np.float64)
        mean = np.bincount(schedule.client, taken, schedule.num_clients)[heard] / trips[heard]
        remedy = "Or take durations='frequency' for rescaled_asgd."
        require(bool(np.all(mean > 0)), "delay", "0 for all trips of a client", "above 0", remedy)
        of_client = np.zeros(schedule.num_clients)
        of_client[heard] = mean
        return (taken if durations == "trip" else of_client[schedule.client]) * np.mean(1 / mean)

    return weighted_sum(weights, buffer_size=1)
