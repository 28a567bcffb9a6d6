"""Asynchronous buffered training: a fixed number of clients train at any time, K arrivals make a server step."""

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from jafl.base.described import described
from jafl.base.errors import (
    choose,
    is_number,
    is_whole_number,
    real_number,
    require,
    whole_number,
)
from jafl.records import EventSchedule
from jafl.schedule.arguments import (
    as_availability,
    as_delay,
    check_dropout,
    check_failure_rate,
    client_shares,
)
from jafl.schedule.availability import Availability
from jafl.schedule.checks import check_clients, check_delay_and_seed, steps_within
from jafl.schedule.compound_delays import first_per_step
from jafl.schedule.delay import IS_A_DURATION, Delay, is_duration
from jafl.schedule.dropout import Dropout
from jafl.schedule.durations import on_a_clock_that_moves
from jafl.schedule.events import Events, events_within
from jafl.schedule.limits import check_limits
from jafl.schedule.local_steps import DelayOfSteps, check_local_steps, with_local_steps
from jafl.schedule.protocol import REPLACE_LOST, RESTARTS, TOO_STALE, WAITS, Protocol, World
from jafl.schedule.step_predicates import STEP_WHEN


@described
def asynchronous(
    *,
    num_clients: int,
    concurrency: int,
    buffer_size: int | None = None,
    delay: Delay | str | os.PathLike[str],
    server_steps: int | None = None,
    client_trips: int | None = None,
    step_when: str = "buffer_full",
    step_every: float | None = None,
    initial_round: bool = False,
    restart: str = "at_once",
    replace_lost: str = "at_once",
    trip_time_out: float | None = None,
    cancel_at_step: bool = False,
    staleness_limit: int | None = None,
    too_stale: str = "drop",
    flush_after: float | None = None,
    dropout: Dropout | None = None,
    failure_rate: float = 0.0,
    availability: Availability | str | os.PathLike[str] | None = None,
    selection_weights: Sequence[float] | np.ndarray | None = None,
    most_trips: int | None = None,
    smallest_gap: int = 0,
    local_steps: int | Sequence[int] | np.ndarray | Delay | None = None,
    dynamic_local_updates: bool = False,
    least_local_steps: int = 1,
    seed: int = 0,
) -> EventSchedule:
    """Computes the event schedule of buffered asynchronous training (FedBuff, algorithm 1).

    ``concurrency`` clients start at time 0 from version 0. A finished client is replaced at the instant of its
    arrival by one drawn uniformly among the idle clients (itself included; with concurrency = num_clients it is
    always the same client). If the arrival fills the buffer, the server steps first. At one instant all arrivals
    are handled first, in client order, stepping whenever the buffer fills; then all replacements start, from the
    newest version. The run ends with its last step; ``concurrency`` trips are then under way: replacements, and
    those that arrive at that very instant but after the last step. After it, which may itself stop trips
    (``cancel_at_step``, ``too_stale``), no trip is thrown away any more, but clients that leave at that instant do
    not start again.

    Args:
      num_clients: N, all clients.
      concurrency: M, the clients that train at any time, from 1 to N.
      buffer_size: K, the trips that each server step applies, at least 1. Default: 1.
      delay: the law of trip durations, see ``jafl.delays``; or a file of recorded ones, see ``jafl.duration_trace``.
      server_steps: stop after so many server steps, or
      client_trips: after as many whole steps as so many client trips allow, those thrown away included. Exactly one
        of the two.
      step_when: when the server steps. "buffer_full": when the buffer holds ``buffer_size`` trips. "harmonic_mean":
        when N times the harmonic mean of the clients' numbers of trips in the buffer is at least ``buffer_size`` (S);
        so each step has a trip of every client, and if S <= N that is enough (Malenia SGD, Tyurin and Richtárik,
        NeurIPS 2023). Needs M = N. Trips under way at a step go on, and count for a later step, unless
        ``cancel_at_step`` stops them or ``staleness_limit=0`` throws them away; the paper does one or the other.
        "each_client_once_a_round": rounds of N steps, one by each client (Ringleader ASGD, Maranjyan and Richtárik,
        ICLR 2026). A round waits for a trip of every client; the client that brings the last of these makes the first
        step, and the others make theirs when they arrive next. A step applies all that has arrived since the step
        before. Needs M = N; leave ``buffer_size`` out.
      step_every: the server steps each time that so much simulated time has passed, and applies what has arrived
        since its last step, arrivals at that very instant included; perhaps nothing. Replaces ``buffer_size``. With
        restart="after_step" clients wait for these steps (FedFix, Fraboni et al., JMLR 2023). The rule must
        accept empty steps (``jafl.Requirements``).
      initial_round: every client trains at version 0 first, in server step 0, which happens when the last of them
        arrives; then all start again together, from version 1 (ACE's start, algorithm 1). Needs M = N.
      restart: when a finished client's place is taken.
        "at_once": as above.
        "not_twice_in_a_buffer": at once, but not by a client whose update waits in the buffer (the assumption in
        FedBuff's and FedStaleWeight's proofs); a place for which no client is left stays free until the step.
        "after_step": not before the server has stepped; then as many start together as trips were applied
        (K-asynchronous training: WKAFL). See ``replace_lost`` for trips that are thrown away.
        "after_round": by a client that has not trained in this round. The next round begins when all clients have
        (the gated rounds of GSGM, WKAFL section 6.1.2). Steps do not end with rounds unless K divides N.
      replace_lost: when a trip that is thrown away (it fails, its client goes away or leaves, it is too stale) is
        replaced where ``restart`` is "after_step". With the other restarts it always is at once.
        "at_once": at that instant. So works a server that notices the end of a connection.
        "after_time_out": ``trip_time_out`` later. So works a server that waits for signs of life: until then it takes
        the client for busy, whatever steps it makes. A trip that arrives too stale is replaced at once.
        "after_step": together with the applied trips, after the next step, or with that of the same instant. The run
        then starves if more than concurrency - buffer_size trips are lost within one step. In an initial round, which
        waits for every client, at once.
      trip_time_out: the simulated time until the server notices that a trip is lost, above 0. Needed with
        "after_time_out", and refused without it.
      cancel_at_step: the trips under way when the server steps are thrown away, and all places are taken again, those
        of lost trips that the server has not noticed yet (``trip_time_out``) included. With
        "after_step" this is K-synchronous training, with "at_once" and M = N K-batch-synchronous training (one client
        may make several of the K trips).
      staleness_limit: the most server steps that an applied trip may be stale. Default: no limit.
      too_stale: "drop": a trip beyond the limit is thrown away when it arrives (Ringmaster ASGD, algorithm 4);
        "cancel": a trip under way is stopped as soon as a step puts it beyond the limit, and its place is taken again
        at once, from the newest version; with concurrency = num_clients by the same client (Ringmaster ASGD,
        algorithm 5; the paper's R is staleness_limit + 1); "wait": the server does not step while that would make a
        trip under way too stale, and then applies all that has arrived; "interrupt": it waits, too, but
        not for whole trips: where a step brings a trip under way to the limit, its client ends the local step that it
        makes at that moment, or the first one, and sends what it has (PORT, Su and Li, IWQoS 2022; in the paper it
        ends its current epoch). The schedule's ``local_steps`` are those that were made. No trip is staler than the
        limit, which must be at least 1. Needs ``local_steps`` and ``jafl.delays.per_step``.
      flush_after: a buffer whose first trip has waited for so much simulated time is applied as it is, even if it
        is not full. Default: never. An initial round waits for all clients nevertheless.
      dropout: clients that leave for ever, see ``jafl.Dropout``; their trips under way are thrown away.
      failure_rate: share of trips, drawn by (client, trip), that take their time and bring nothing.
      availability: when clients are there to start a trip, see ``jafl.availability``; or a file of windows, see
        ``jafl.read_availability``. A place for which no client is there stays free until one is. Default: always.
      selection_weights: [N] numbers above 0. The client that takes a free place is drawn among the idle clients with
        probabilities in proportion to these numbers, also at time 0. Needs M < N. Default: equal ones.
      most_trips: the server takes at most so many trips of each client; 1 is selection without replacement, one pass
        over the clients. A trip counts when it goes into the buffer. One that is thrown away does not count, since
        the model does not depend on it: its client may start again. Default: any number.
      smallest_gap: the numbers of the steps that apply two trips of one client differ by at least so much: after
        the step s a client starts again from version s + smallest_gap at the earliest, so however quick its trip is.
        1 forbids two trips of a client in one buffer. A place for which every idle client must wait stays free until
        a step. Default: 0, no limit.
      local_steps: how many local steps each trip makes, for ``client_work(local_steps="scheduled")``; with
        ``jafl.delays.per_step`` the durations follow from it. One number for all trips; one for each client, [N]; or
        a law of ``jafl.delays``, from which each trip gets a draw, rounded down. Default: the client work decides.
      dynamic_local_updates: DyLU (Liu et al. 2024, asynchronous DiLoCo): a client makes floor(local_steps * its speed
        / that of the fastest) steps, so that all trips take about equally long. A client's speed is local steps /
        duration of its last trip that has arrived, too stale or not; until its first trip has arrived it makes
        ``local_steps`` steps, which must be one number. The paper measures speeds beforehand; this is a reading.
      least_local_steps: with ``dynamic_local_updates``, the fewest local steps of a trip, from 1 to ``local_steps``;
        5 in the authors' notebook.
      seed: keys durations, replacements, failures, presence and who leaves.

    Returns:
      The schedule: who trained from which version, and at which server step it was applied.

    Raises:
      SettingError: for a number outside its range; for a delay with durations that are negative, not finite,
        or always 0 for some client (time would stand still); where nobody is left to train before the last step, or a
        step waits for a client that never comes; where no trip ends before the last step.

    Examples:
      >>> delay = jafl.delays.constant(1.0)
      >>> jafl.asynchronous(num_clients=5, concurrency=2, buffer_size=2, delay=delay, server_steps=3).step_time
      array([1., 2., 3.])
    """
    law, presence = as_delay(delay), as_availability(availability)
    check_clients(num_clients, "concurrency", concurrency)
    check_delay_and_seed(law, seed)
    check_dropout(dropout)
    check_failure_rate(failure_rate)
    check_limits(most_trips, smallest_gap)
    _check_steps(step_when, step_every, num_clients, concurrency, buffer_size)
    buffer_size = 1 if buffer_size is None else buffer_size
    whole_number("buffer_size", buffer_size, 1)
    law.check_clients(num_clients)
    check_local_steps(local_steps, num_clients)
    _check_dynamic(dynamic_local_updates, local_steps, least_local_steps)
    if too_stale == "interrupt":
        _check_interrupts(staleness_limit, local_steps, law)
    if local_steps is not None:
        law = DelayOfSteps(law, local_steps)
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
        replace_lost=replace_lost,
        trip_time_out=trip_time_out,
        initial_round=initial_round,
        cancel_at_step=cancel_at_step,
        staleness_limit=staleness_limit,
        too_stale=too_stale,
        flush_after=flush_after,
        most_trips=most_trips,
        smallest_gap=smallest_gap,
        selection_shares=_selection_shares(selection_weights, num_clients, concurrency),
        step_when=step_when,
        step_every=step_every,
        dynamic_local_steps=least_local_steps if dynamic_local_updates else None,
    )
    _check_beside_steps(protocol)
    _check_staleness(protocol)
    _check_replace_lost(protocol)
    world = World(num_clients, law, dropout, failure_rate, presence, seed)
    trips = first_step + (steps - 1) * buffer_size
    plain = not (dropout or failure_rate or presence or cancel_at_step or staleness_limit is not None)
    one_size = flush_after is None and step_every is None and step_when == "buffer_full"
    if client_trips is None or (plain and one_size):
        schedule = Events(world, protocol, trips).run(steps)
    else:
        schedule = events_within(world, protocol, client_trips)
    made = schedule.num_steps
    larger = f"larger: in {'all ' * (made > 1)}{made:,} server step{'s' * (made > 1)} no trip arrived"
    require(schedule.num_trips > 0, "step_every", step_every, larger)
    waits = {"flush_after": flush_after, "trip_time_out": trip_time_out}
    return with_local_steps(on_a_clock_that_moves(schedule, law, seed, **waits), law, seed)


def _check_dynamic(dynamic: bool, local_steps: Any, least: int) -> None:
    """Refuses local steps by speed without the number of the fastest client, and a least number of others."""
    if not dynamic:
        remedy = "Others make what local_steps says."
        require(least == 1, "least_local_steps", least, "left out without dynamic_local_updates", remedy)
        return
    allowed = "a whole number of at least 1 with dynamic_local_updates, the steps of the fastest client"
    require(is_whole_number(local_steps), "local_steps", local_steps, allowed)
    whole_number("least_local_steps", least, 1)
    require(least <= local_steps, "least_local_steps", least, f"at most local_steps, {local_steps}")


def _selection_shares(
    weights: Sequence[float] | np.ndarray | None, num_clients: int, concurrency: int
) -> np.ndarray | None:
    """[N] float64: in which proportions idle clients are drawn; None where all are alike."""
    if weights is None:
        return None
    allowed, remedy = "left out where all clients train", "There is nobody to choose from: lower concurrency."
    require(concurrency < num_clients, "selection_weights", weights, allowed, remedy)
    return client_shares("selection_weights", weights, num_clients)


def _check_steps(
    step_when: str, step_every: float | None, num_clients: int, concurrency: int, buffer_size: int | None
) -> None:
    """Refuses two answers to when the server steps, and times that are none."""
    choose("step_when", step_when, dict.fromkeys(STEP_WHEN))
    if step_when != "buffer_full":
        require(
            concurrency == num_clients,
            "concurrency",
            concurrency,
            f"the number of clients, {num_clients}, where step_when is {step_when!r}",
            "It waits for all of them.",
        )
    if step_when == "each_client_once_a_round":
        allowed = f"left out where step_when is {step_when!r}"
        require(buffer_size is None, "buffer_size", buffer_size, allowed)
    if step_every is not None:
        real_number("step_every", step_every, is_duration, IS_A_DURATION)
        allowed, remedy = (
            "left out where step_every is given",
            "The server steps when it is time, whatever has arrived.",
        )
        require(buffer_size is None, "buffer_size", buffer_size, allowed, remedy)
        require(step_when == "buffer_full", "step_when", step_when, allowed, remedy)


def _check_beside_steps(protocol: Protocol) -> None:
    """Refuses what says by itself when the server steps, beside ``step_when`` and ``step_every``."""
    beside: dict[str, object] = {
        "initial_round": protocol.initial_round or None,
        "flush_after": protocol.flush_after,
        "too_stale": protocol.too_stale if protocol.too_stale in WAITS else None,
    }
    if protocol.step_when != "buffer_full":
        beside["restart"] = protocol.restart if protocol.restart != "at_once" else None
    if protocol.step_when == "each_client_once_a_round":  # whose trips must come through
        beside |= {
            "cancel_at_step": protocol.cancel_at_step or None,
            "staleness_limit": protocol.staleness_limit,
        }
    given = "step_every" if protocol.step_every is not None else "step_when"
    if protocol.step_every is not None or protocol.step_when != "buffer_full":
        for name, value in beside.items():
            require(value is None, name, value, f"left out where {given} is given")


def _check_staleness(protocol: Protocol) -> None:
    """Refuses limits outside their range and combinations that contradict each other."""
    choose("too_stale", protocol.too_stale, dict.fromkeys(TOO_STALE))
    if protocol.staleness_limit is not None:
        whole_number("staleness_limit", protocol.staleness_limit, 0)
    flush = protocol.flush_after
    if flush is not None:
        real_number("flush_after", flush, is_duration, IS_A_DURATION)
    if protocol.too_stale != "drop":
        limit = protocol.staleness_limit
        allowed = f"given where too_stale is {protocol.too_stale!r}"
        require(limit is not None, "staleness_limit", limit, allowed)
    if protocol.too_stale == "cancel":
        value, allowed = protocol.cancel_at_step, "left out where too_stale is 'cancel'"
        require(not value, "cancel_at_step", value, allowed, "It stops every trip, however fresh.")
    if protocol.too_stale in WAITS:
        for name in ("flush_after", "cancel_at_step"):
            value, allowed = getattr(protocol, name), f"left out where too_stale is {protocol.too_stale!r}"
            require(not value, name, value, allowed, "Wait, or step: not both.")


def _check_interrupts(limit: int | None, local_steps: Any, law: Delay) -> None:
    """Refuses interrupts of all trips as they start, or of trips that would end no sooner by them."""
    where = "where too_stale is 'interrupt'"
    if limit is not None:
        remedy = "With 0 every trip would be interrupted as it starts."
        whole_number("staleness_limit", limit, 0)
        require(limit > 0, "staleness_limit", limit, f"at least 1 {where}", remedy)
    remedy = "An interrupted trip makes fewer of them."
    require(local_steps is not None, "local_steps", local_steps, f"given {where}", remedy)
    remedy = "With others a trip takes as long, however many local steps it makes."
    require(first_per_step(law) is not None, "delay", law, f"a law with jafl.delays.per_step {where}", remedy)


def _check_replace_lost(protocol: Protocol) -> None:
    """Refuses a time-out without its use, and a choice for lost places where there is none."""
    how, time_out = protocol.replace_lost, protocol.trip_time_out
    choose("replace_lost", how, dict.fromkeys(REPLACE_LOST))
    require(
        how == "at_once" or protocol.restart == "after_step",
        "replace_lost",
        how,
        f"'at_once' where restart is {protocol.restart!r}",
        "Only with restart='after_step' do places wait.",
    )
    if how == "after_time_out":
        fits = time_out is not None and is_number(time_out) and is_duration(time_out)
        require(fits, "trip_time_out", time_out, f"{IS_A_DURATION}, where replace_lost is 'after_time_out'")
    else:
        allowed = f"left out where replace_lost is {how!r}"
        require(time_out is None, "trip_time_out", time_out, allowed, "It is for 'after_time_out'.")


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
