"""Schedules replayed by the reference simulator, which is handed the choices that the schedule's maker has made."""

import dataclasses
import itertools
import re

import guarantees
import numpy as np
import pytest
import reference as ref
from hypothesis import reject

from jafl.base.errors import SettingError
from jafl.schedule import asynchronous, open_arrivals
from jafl.schedule.draws import FAILURE, keyed_uniform
from jafl.schedule.events import Events
from jafl.schedule.local_steps import DelayOfSteps
from jafl.schedule.open_arrivals import _gaps
from jafl.schedule.picker import Picker, WeightedPicker

NOTHING = {
    "params": {},
    "rule": ref.FedAvg(divide_by=1.0),
    "optimizer": ref.SGD(),
    "client_update": ref.no_work,
}
# Arguments that ``asynchronous``, ``open_arrivals`` and the reference call the same.
SHARED = (
    "restart",
    "replace_lost",
    "staleness_limit",
    "too_stale",
    "flush_after",
    "cancel_at_step",
    "exclude_busy",
    "most_trips",
    "smallest_gap",
    "step_when",
    "step_every",
)


class Endless(Exception):
    """A schedule is still not made when its clients have been asked to start far more often than it can need."""


def recorded(case, most=3_000):
    """(schedule, starts) of a case: ``starts`` lists the clients of each go, in the order in which they start.

    In the place of the schedule stands the SettingError, if it is refused. Raises Endless after ``most`` goes.
    """
    starts = []
    take_places = Events._take_places

    def note(clients):
        starts.append(list(clients))
        if len(starts) > most:
            raise Endless(f"still not made after {most:,} goes of starts: {case}")

    def recorded_places(events):
        before = list(events.trips_made)
        take_places(events)
        note(client for client, trips in enumerate(events.trips_made) if trips > before[client])

    def recorded_choice(choose):
        def noted(*arguments):
            client = choose(*arguments)
            note([client])
            return client

        return noted

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Events, "_take_places", recorded_places)
        for picker in (Picker, WeightedPicker):
            patch.setattr(picker, "swap", recorded_choice(picker.swap))
            patch.setattr(picker, "draw_one", recorded_choice(picker.draw_one))
        try:
            return case.schedule(), starts
        except SettingError as error:
            return error, starts


def duration_of(case):
    """(client, trip) -> duration, each asked for on its own."""
    law = case.delay
    if "local_steps" in case.arguments:
        law = DelayOfSteps(law, case.arguments["local_steps"])

    def duration(client, trip):
        return law.durations(case.seed, np.array([client]), np.array([trip]))[0]

    return duration


def work_of(case):
    """How many local steps trips make, and the seconds before, of each and after, as the reference is told."""

    def local_steps(client, trip):
        law = DelayOfSteps(case.delay, case.arguments["local_steps"])
        return int(law.steps(case.seed, np.array([client]), np.array([trip]))[0])

    def seconds(client, trip):
        parts = case.delay.parts(case.seed, np.array([client]), np.array([trip]))
        return tuple(float(np.broadcast_to(part, 1)[0]) for part in parts)

    return {"local_steps": local_steps, "seconds": seconds} if "local_steps" in case.arguments else {}


def same_choices(case, starts):
    """The reference's ``select`` and ``duration``, which insist that these clients start, in this order."""
    order, duration, place = list(itertools.chain.from_iterable(starts)), duration_of(case), 0

    def select(time, eligible, how_many):
        return order[place : place + how_many]

    def next_duration(client, trip):
        nonlocal place
        assert order[place : place + 1] == [client], f"start {place} is by {client}, not {order[place:][:1]}"
        place += 1
        return duration(client, trip)

    return {"select": select, "duration": next_duration}


def choices_in(schedule):
    """A ``select`` that lets start whoever starts next in the schedule; the reference checks that they are idle."""
    clients = np.concatenate([schedule.client, schedule.inflight_client])
    trips = np.concatenate([schedule.trip, schedule.inflight_trip])
    times = np.concatenate([schedule.download_time, schedule.inflight_start_time])
    start_of = {(c, k): time for c, k, time in zip(clients.tolist(), trips.tolist(), times, strict=True)}
    started = [0] * schedule.num_clients

    def select(time, idle, how_many):
        chosen = [client for client in idle if start_of.get((client, started[client])) == time]
        assert len(chosen) == how_many, f"{chosen} start at {time}, not {how_many} clients"
        for client in chosen:
            started[client] += 1
        return chosen

    return select


def world_of(case):
    """What happens to clients, as the reference is told: who leaves, which trips fail, when they are there."""
    arguments, options = case.arguments, {}
    if dropout := arguments.get("dropout"):
        moments = {"step": dropout.server_step, "time": dropout.time, "trips": dropout.trips}
        ((kind, moment),) = ((kind, moment) for kind, moment in moments.items() if moment is not None)
        options["vanish"] = (kind, sorted(dropout.leavers(arguments["num_clients"], case.seed)), moment)
    if rate := arguments.get("failure_rate"):

        def fails(client, trip):
            return keyed_uniform(case.seed, FAILURE, np.array([client]), np.array([trip]))[0] < rate

        options["fails"] = fails
    if availability := arguments.get("availability"):
        law = availability.prepare(arguments["num_clients"], case.seed)
        options |= {"next_available": law.next_available, "present_until": law.present_until}
    return options


def start_times(case, until):
    """[s]: the times of the starts of open arrivals, up to and including ``until``."""
    rate, kind = case.arguments["start_rate"], case.arguments["starts"]
    if kind == "constant":
        times = np.cumsum(np.full(2 + int(until * rate * 1.01), 1 / rate))
    else:
        gaps = itertools.chain.from_iterable(_gaps(rate, kind, case.seed)())
        times = np.array(list(itertools.takewhile(lambda time: time <= until, itertools.accumulate(gaps))))
    return times[times <= until].tolist()


def replayed(case, steps, starts, *, until=None, **changes):
    """The reference's replay of so many steps, with these clients starting; ``until``: of the last start."""
    arguments = case.arguments
    options = {name: arguments[name] for name in SHARED if name in arguments}
    if "trip_time_out" in arguments:
        options["time_out"] = arguments["trip_time_out"]
    if case.protocol is open_arrivals:
        options |= {"concurrency": None, "start_times": start_times(case, until)}
    else:
        assert case.protocol is asynchronous
        options["concurrency"] = arguments["concurrency"]
        if arguments.get("initial_round"):
            options["first_buffer_size"] = arguments["num_clients"]
    return ref.simulate(
        **NOTHING,
        num_clients=arguments["num_clients"],
        buffer_size=arguments.get("buffer_size", 1),
        stop_after_steps=steps,
        **world_of(case),
        **work_of(case),
        **{**options, **same_choices(case, starts), **changes},
    )


def most_at_once(replay):
    """The most trips under way at one moment; a trip ends before others start, so one without duration never is."""
    trips = [*replay.applied, *replay.discarded, *replay.in_flight]
    ends = [*(t.arrival_time for t in replay.applied), *(t.cancel_time for t in replay.discarded)]
    spans = list(itertools.zip_longest((t.download_time for t in trips), ends, fillvalue=np.inf))
    return max(sum(start <= moment < end for start, end in spans) for moment, _ in spans)


def assert_equal(schedule, replay):
    """Every column of the schedule is, to the last bit, what the reference has recorded."""
    applied = {
        "client": "client",
        "trip": "trip",
        "download_version": "download_version",
        "step": "step",
        "staleness": "staleness",
        "download_time": "download_time",
        "arrival_time": "arrival_time",
    }
    in_flight = {
        "inflight_client": "client",
        "inflight_trip": "trip",
        "inflight_version": "download_version",
        "inflight_start_time": "download_time",
    }
    discarded = {
        "discarded_client": "client",
        "discarded_trip": "trip",
        "discarded_step": "cancel_step",
        "discarded_start_time": "download_time",
        "discarded_end_time": "cancel_time",
    }
    tables = ((applied, replay.applied), (in_flight, replay.in_flight), (discarded, replay.discarded))
    compared = {"step_time", "num_clients", "concurrency", "staleness"}
    np.testing.assert_array_equal(schedule.step_time, replay.step_times)
    for names, trips in tables:
        for ours, theirs in names.items():
            np.testing.assert_array_equal(getattr(schedule, ours), ref.column(trips, theirs), err_msg=ours)
            compared.add(ours)
    steps = [None] * schedule.num_trips if schedule.local_steps is None else schedule.local_steps.tolist()
    assert steps == [trip.local_steps for trip in replay.applied]
    compared |= {"local_steps", "tier"}  # the reference is told the tiers
    assert compared == {field.name for field in dataclasses.fields(schedule)} | {"staleness"}


def compare(case):
    """Makes a schedule and replays it; whatever starves here starves there, after the same steps.

    Where the server steps by the clock, the reference's steps are all empty from then on.

    Returns the schedule, or None if there is none. Raises Endless for a schedule without end.
    """
    schedule, starts = recorded(case)
    if isinstance(schedule, SettingError):
        if "no step follows" in str(schedule):
            raise Endless(case)  # given up, where the reference would go on
        if "needs a trip of every client" in str(schedule):
            raise Endless(case)  # the reference has no such insight
        if "1 or more in some trip" in str(schedule):
            raise Endless(case)  # the reference does not mind trips that change nothing
        if case.arguments.get("step_every"):
            starved = re.search(r"after (\d+) of", str(schedule))
            steps = int(starved[1]) if starved else 0
            replay = replayed(case, steps + 40 if starved else case.arguments["server_steps"], starts)
            assert all(trip.step < steps for trip in replay.applied), "trips follow"
            return
        time, steps = re.match(r"The schedule starves at time (\S+), after (\d+) of", str(schedule)).groups()
        with pytest.raises(ValueError, match=f"starved at time .* and version {steps}:"):
            until = 1.001 * float(time)  # open arrivals go on, but find nobody
            replayed(case, case.arguments["server_steps"], starts, until=until)
        return
    replay = replayed(case, schedule.num_steps, starts, until=schedule.step_time[-1])
    assert_equal(schedule, replay)
    expected = case.arguments["concurrency"] if case.protocol is asynchronous else most_at_once(replay)
    assert schedule.concurrency == expected
    return schedule


def compare_or_reject(case):
    """``compare``, or another case where no trip ever comes through, or each step waits for a trip under way."""
    try:
        return compare(case)
    except Endless:
        reject()


def made(case):
    """The schedule; another case where there is none, or none comes to its end."""
    try:
        schedule, _ = recorded(case)
    except Endless:
        reject()
    if isinstance(schedule, SettingError):
        assert re.search("starves|no step follows|no client took part|no trip arrived", str(schedule)), (
            schedule
        )
        reject()
    return schedule


def compare_in_order(case):
    """``compare`` where no two trips of one instant can be told apart only by who started first."""
    schedule = case.schedule()
    choices = {"select": choices_in(schedule), "duration": duration_of(case)}
    assert_equal(schedule, replayed(case, schedule.num_steps, [], **choices))
    return schedule


def compare_with_replacement(case):
    """Nobody chooses among idle clients, so the starts stand in the schedule."""
    schedule = case.schedule()
    start = np.concatenate([schedule.download_time, schedule.inflight_start_time])
    client = np.concatenate([schedule.client, schedule.inflight_client])[np.argsort(start)]
    replay = replayed(case, schedule.num_steps, [client.tolist()], until=schedule.step_time[-1])
    assert_equal(schedule, replay)
    assert schedule.concurrency == most_at_once(replay)
    return schedule


def compare_drawn(case):
    """Staleness as it is drawn. An initial round, which the reference lacks, is of everybody."""
    schedule = made(case)
    limits = {name: case.arguments[name] for name in ("most_trips", "smallest_gap") if name in case.arguments}
    if case.arguments.get("initial_round"):
        assert np.array_equal(schedule.client[schedule.step == 0], np.arange(schedule.num_clients))
        return schedule
    replay = ref.simulate_drawn_staleness(
        **NOTHING,
        num_clients=schedule.num_clients,
        buffer_size=case.buffer_size,
        staleness_of=duration_of(case),
        select=lambda step, eligible, how_many: schedule.client[schedule.step == step],
        stop_after_steps=schedule.num_steps,
        **limits,
    )
    assert_equal(schedule, replay)
    return schedule


def compare_due(case):
    """Steps of all reports that are due."""
    schedule = made(case)
    guarantees.check_conservation(schedule)
    replay = ref.simulate_iterations(
        **NOTHING,
        num_clients=schedule.num_clients,
        delay_of=duration_of(case),
        stop_after_steps=case.arguments["server_steps"],
        initial_round=case.arguments["initial_round"],
    )
    assert_equal(schedule, replay)
    return schedule


def replayed_rounds(case, steps, rounds):
    """The reference's replay of these rounds, of which it checks that their clients may start, and are enough."""
    arguments = case.arguments
    names = ("most_trips", "smallest_gap", "min_reports", "deadline")
    options = {name: arguments[name] for name in names if name in arguments}
    cohort = None if arguments.get("cohorts") == "poisson" else arguments.get("cohort_size")
    if cohort is not None:
        options["started"] = int(np.ceil(round(cohort * (1 + arguments["over_selection"]), 9)))
    return ref.simulate_synchronous(
        **NOTHING,
        num_clients=arguments["num_clients"],
        cohort=cohort,
        duration=duration_of(case),
        select_round=lambda number, started: rounds[number],
        stop_after_steps=steps,
        **options,
        **world_of(case),
    )


def clients_of_rounds(schedule):
    """The clients that start in each round."""
    return [
        np.concatenate(
            [schedule.client[schedule.step == t], schedule.discarded_client[schedule.discarded_step == t]]
        ).tolist()
        for t in range(schedule.num_steps)
    ]


def compare_rounds(case):
    """``compare`` of synchronous rounds that do not starve."""
    schedule = made(case)
    assert schedule.num_steps == case.arguments["server_steps"]
    assert_equal(schedule, replayed_rounds(case, schedule.num_steps, clients_of_rounds(schedule)))
    return schedule
