"""Asynchronous buffered training: a fixed number of clients train at any time, K arrivals make a server step."""

import math

from jafl.errors import choose, require, whole_number
from jafl.records import EventSchedule
from jafl.schedule.availability import Availability
from jafl.schedule.checks import check_clients, check_delay_and_seed, steps_within
from jafl.schedule.delays import Delay
from jafl.schedule.dropout import Dropout
from jafl.schedule.events import RESTARTS, Events, Protocol, World, events_within


def asynchronous(
    *,
    num_clients: int,
    concurrency: int,
    buffer_size: int = 1,
    delay: Delay,
    server_steps: int | None = None,
    client_trips: int | None = None,
    initial_round: bool = False,
    restart: str = "at_once",
    cancel_at_step: bool = False,
    staleness_limit: int | None = None,
    too_stale: str = "drop",
    flush_after: float | None = None,
    dropout: Dropout | None = None,
    failure_rate: float = 0.0,
    availability: Availability | None = None,
    seed: int = 0,
) -> EventSchedule:
    """Computes the event schedule of buffered asynchronous training (FedBuff, algorithm 1).

    ``concurrency`` clients start at time 0 from version 0. A finished client is replaced at the instant of its
    arrival by one drawn uniformly among the idle clients (itself included; with concurrency = num_clients it is
    always the same client). If the arrival fills the buffer, the server steps first. At one instant all arrivals
    are handled first, in client order, stepping whenever the buffer fills; then all replacements start, from the
    newest version. The run ends with its last step; ``concurrency`` trips are then under way: replacements, and
    those that arrive at that very instant but after the last step.

    Args:
      num_clients: N, all clients.
      concurrency: M, the clients that train at any time, from 1 to N.
      buffer_size: K, the trips that each server step applies, at least 1.
      delay: the law of trip durations, see ``jafl.delays``.
      server_steps: stop after so many server steps, or
      client_trips: after as many whole steps as so many client trips allow, those thrown away included. Exactly one
        of the two.
      initial_round: every client trains at version 0 first, in server step 0, which happens when the last of them
        arrives; then all start again together, from version 1 (ACE's start, algorithm 1). Needs M = N.
      restart: when a finished client's place is taken.
        "at_once": as above.
        "not_twice_in_a_buffer": at once, but not by a client whose update waits in the buffer (the assumption in
        FedBuff's and FedStaleWeight's proofs); a place for which no client is left stays free until the step.
        "after_step": not before the server has stepped; then as many start together as trips were applied
        (K-asynchronous training: WKAFL).
        "after_round": by a client that has not trained in this round. The next round begins when all clients have
        (the gated rounds of GSGM, WKAFL section 6.1.2). Steps do not end with rounds unless K divides N.
      cancel_at_step: the trips under way when the server steps are thrown away, and all places are taken anew. With
        "after_step" this is K-synchronous training, with "at_once" and M = N K-batch-synchronous training (one client
        may make several of the K trips).
      staleness_limit: the most server steps that an applied trip may be stale. Default: no limit.
      too_stale: "drop": a trip beyond the limit is thrown away when it arrives; "wait": the server does not step
        while that would make a trip under way too stale, and then applies all that has arrived.
      flush_after: a buffer whose first trip has waited for so much simulated time is applied as it is, even if it
        is not full. Default: never.
      dropout: clients that leave for ever, see ``jafl.Dropout``; their trips under way are thrown away.
      failure_rate: share of trips, drawn by (client, trip), that take their time and bring nothing.
      availability: when clients are there to start a trip, see ``jafl.availability``. A place for which no client
        is there stays free until one is. Default: always.
      seed: keys durations, replacements, failures, presence and who leaves.

    Returns:
      The schedule: who trained from which version, and at which server step it was applied.

    Raises:
      SettingError: for a number outside its range; for a delay with durations that are negative, not finite,
        or always 0 for some client (time would stand still); where nobody is left to train before the last step.

    Example:
      >>> delay = jafl.delays.constant(1.0)
      >>> jafl.asynchronous(num_clients=5, concurrency=2, buffer_size=2, delay=delay, server_steps=3).step_time
      array([1., 2., 3.])
    """
    check_clients(num_clients, "concurrency", concurrency)
    check_delay_and_seed(delay, seed)
    whole_number("buffer_size", buffer_size, 1)
    delay.check_clients(num_clients)
    choose("restart", restart, dict.fromkeys(RESTARTS))
    if initial_round:
        _check_initial_round(num_clients, concurrency, client_trips)
    first_step = num_clients if initial_round else buffer_size
    allowed = client_trips if client_trips is None else client_trips - first_step + buffer_size
    steps = steps_within(server_steps, allowed, trips_per_step=buffer_size, setting="buffer_size")

    protocol = Protocol(
        concurrency=concurrency,
        buffer_size=buffer_size,
        restart=restart,
        initial_round=initial_round,
        cancel_at_step=cancel_at_step,
        staleness_limit=staleness_limit,
        too_stale=too_stale,
        flush_after=flush_after,
    )
    _check_limits(protocol)
    require(0 <= failure_rate < 1, "failure_rate", failure_rate, "at least 0 and below 1")
    world = World(num_clients, delay, dropout, failure_rate, availability, seed)
    trips = first_step + (steps - 1) * buffer_size
    plain = not (dropout or failure_rate or availability or cancel_at_step or staleness_limit is not None)
    if client_trips is None or (plain and flush_after is None):
        return Events(world, protocol, trips).run(steps)
    return events_within(world, protocol, client_trips)


def _check_limits(protocol: Protocol) -> None:
    """Refuses limits outside their range and combinations that contradict each other."""
    choose("too_stale", protocol.too_stale, {"drop": None, "wait": None})
    if protocol.staleness_limit is not None:
        whole_number("staleness_limit", protocol.staleness_limit, 0)
    flush = protocol.flush_after
    require(flush is None or 0 < flush < math.inf, "flush_after", flush, "a finite number above 0")
    if protocol.too_stale == "wait":
        limit = protocol.staleness_limit
        require(limit is not None, "staleness_limit", limit, "given where too_stale is 'wait'")
        for name in ("flush_after", "cancel_at_step"):
            value = getattr(protocol, name)
            require(not value, name, value, "left out where too_stale is 'wait'", "Wait, or step: not both.")


def _check_initial_round(num_clients: int, concurrency: int, client_trips: int | None) -> None:
    """Refuses an initial round that not all clients train in, or that is longer than the run."""
    require(
        concurrency == num_clients,
        "concurrency",
        concurrency,
        f"the number of clients, {num_clients}, for an initial round",
        "All of them train in it.",
    )
    require(
        client_trips is None or client_trips >= num_clients,
        "client_trips",
        client_trips,
        f"at least the number of clients, {num_clients}, for an initial round",
    )
