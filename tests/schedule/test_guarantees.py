"""What every schedule promises: each check fails for one tampered with; test_against_reference.py asks them all."""

import dataclasses

import guarantees
import numpy as np
import pytest
from hypothesis import given
from schedule_cases import WholeNumbers, asynchronous_cases, synchronous_cases

from jafl.schedule import asynchronous, delays, queued, synchronous

CASES = asynchronous_cases() | synchronous_cases()

# Random schedules.


@given(asynchronous_cases())
def test_as_many_trips_as_stated_are_under_way_at_the_end(case):
    schedule = case.schedule()
    assert len(schedule.inflight_client) == schedule.concurrency
    assert np.all(np.diff(schedule.inflight_client) > 0)


@given(CASES)
def test_the_same_seed_gives_the_same_schedule(case):
    first, again = case.schedule(), case.schedule()
    for field in dataclasses.fields(first):
        np.testing.assert_array_equal(getattr(first, field.name), getattr(again, field.name))


@given(synchronous_cases())
def test_cost_counts_trips_thrown_away(case):
    schedule = case.schedule()
    costs = [schedule.trips_started_by(step) for step in range(schedule.num_steps + 1)]
    assert costs == [schedule.concurrency * step for step in range(schedule.num_steps + 1)]


# Each check notices what it is about.

EXPONENTIAL, LAW_OF_ROUNDS = delays.exponential(1.0), delays.uniform(1.0, 2.0)
# Five of eight clients train; no two arrivals share an instant.
BUFFERED = asynchronous(
    num_clients=8,
    concurrency=5,
    buffer_size=3,
    delay=EXPONENTIAL,
    server_steps=30,
    local_steps=delays.uniform(0.0, 5.0),
    seed=1,
)
# All of four clients train, and every arrival is shared by all of them.
TIES = asynchronous(
    num_clients=4, concurrency=4, buffer_size=2, delay=delays.constant(1.0), server_steps=12, seed=1
)
# Rounds with two of six trips thrown away.
ROUNDS = synchronous(
    num_clients=9, cohort_size=4, over_selection=0.5, delay=LAW_OF_ROUNDS, server_steps=20, seed=1
)
TRIP_COLUMNS = ("client", "trip", "download_version", "download_time", "arrival_time")
COLUMNS = [
    field.name
    for field in dataclasses.fields(BUFFERED)
    if getattr(BUFFERED, field.name) is not None and field.name[:4] not in ("num_", "conc")
]


def tampered(schedule, **changes):
    """The schedule with ``{column: {place: value}}`` written over it, or ``{column: new column or number}``."""
    columns = {}
    for name, change in changes.items():
        if isinstance(change, dict):
            columns[name] = getattr(schedule, name).copy()
            for place, value in change.items():
                columns[name][place] = value
        else:
            columns[name] = change
    return dataclasses.replace(schedule, **columns)


def swapped(schedule, first, second):
    """The schedule with two trips in each other's place; steps stay where they are."""
    order = np.arange(schedule.num_trips)
    order[[first, second]] = second, first
    return dataclasses.replace(schedule, **{name: getattr(schedule, name)[order] for name in TRIP_COLUMNS})


def trips_of(schedule, client):
    """The places of a client's applied trips, in order."""
    return np.flatnonzero(schedule.client == client)


def test_check_order_allows_trips_that_take_no_time_to_follow():
    schedule = asynchronous(
        num_clients=4, concurrency=3, buffer_size=2, delay=WholeNumbers(0, 1), server_steps=200
    )
    same_time = np.diff(schedule.arrival_time) == 0
    assert np.any(same_time & (np.diff(schedule.client) <= 0))
    guarantees.check_order(schedule)


def test_the_schedules_to_tamper_with_are_sound():
    guarantees.check_all(BUFFERED, buffer_size=3, delay=EXPONENTIAL, seed=1)
    guarantees.check_all(TIES, buffer_size=2, delay=delays.constant(1.0), seed=1)
    guarantees.check_all(ROUNDS, buffer_size=4, delay=LAW_OF_ROUNDS, seed=1)
    assert len(np.unique(BUFFERED.arrival_time)) == BUFFERED.num_trips
    assert len(ROUNDS.discarded_client) == 40


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize("damage", ["one entry short", "another dtype", "two axes", "negative"])
def test_check_shapes_notices(name, damage):
    schedule = ROUNDS if name.startswith("discarded") else BUFFERED
    column = getattr(schedule, name)
    other = {np.dtype(np.int32): np.int64, np.dtype(np.float64): np.float32}[column.dtype]
    damaged = {
        "one entry short": column[:-1],
        "another dtype": column.astype(other),
        "two axes": column[:, None],
        "negative": np.concatenate([column[:-1], np.array([-1], column.dtype)]),
    }[damage]
    with pytest.raises(AssertionError):
        guarantees.check_shapes(dataclasses.replace(schedule, **{name: damaged}))


@pytest.mark.parametrize(
    ("schedule", "name", "value"),
    [
        (BUFFERED, "client", 8),
        (BUFFERED, "step", 30),
        (BUFFERED, "download_version", 31),
        (BUFFERED, "inflight_client", 8),
        (BUFFERED, "inflight_version", 31),
        (ROUNDS, "discarded_client", 9),
        (ROUNDS, "discarded_step", 20),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_check_shapes_notices_what_does_not_exist(schedule, name, value):
    guarantees.check_shapes(tampered(schedule, **{name: {-1: value - 1}}))
    with pytest.raises(AssertionError, match=f"{name} names an unknown"):
        guarantees.check_shapes(tampered(schedule, **{name: {-1: value}}))


OUT_OF_ORDER = {
    "two arrivals of a step exchanged": swapped(BUFFERED, 3, 4),
    "two arrivals of neighbouring steps exchanged": swapped(BUFFERED, 2, 3),
    "a tie inside a step not in client order": swapped(TIES, 0, 1),
    "a tie across steps not in client order": swapped(TIES, 1, 2),
    "the same trip twice": dataclasses.replace(
        TIES, **{name: np.repeat(getattr(TIES, name)[::2], 2) for name in TRIP_COLUMNS}
    ),
    "a step that goes down": tampered(BUFFERED, step={4: 0}),
    "applied before its arrival": tampered(
        BUFFERED, step_time={5: np.nextafter(BUFFERED.arrival_time[17], 0)}
    ),
    "arrived before its download": tampered(BUFFERED, download_time={17: BUFFERED.arrival_time[17] + 1e-9}),
    "server steps go back in time": tampered(BUFFERED, step_time={5: BUFFERED.step_time[6] + 1e-9}),
    "trips thrown away out of order": tampered(ROUNDS, discarded_step={3: 0}),
}


WRONG_BUFFERS = {
    "a trip a step late": tampered(BUFFERED, step={5: 2}),
    "a trip a step early": (tampered(ROUNDS, step={4: 0}), {"buffer_size": 4}),
    "one more stated": (BUFFERED, {"buffer_size": 4}),
    "one less stated": (BUFFERED, {"buffer_size": 2}),
    "an empty step": tampered(BUFFERED, step_time=np.append(BUFFERED.step_time, 1e9)),
    # A first step of all clients is none where fewer train at a time, nor is a first one of fewer clients.
    "the first two steps are one": tampered(BUFFERED, step=np.maximum(BUFFERED.step, 1) - 1),
}


@pytest.mark.parametrize("double", [1, 5, 8])
def test_check_buffer_forgets_no_step_after_an_initial_round(double):
    """Steps of one trip each follow a step of all three clients; one alone has two trips."""
    schedule = asynchronous(
        num_clients=3, concurrency=3, buffer_size=1, delay=EXPONENTIAL, server_steps=10, initial_round=True
    )
    guarantees.check_buffer(schedule, 1)
    step = np.where(schedule.step > double, schedule.step - 1, schedule.step)
    wrong = tampered(schedule, step=step, step_time=schedule.step_time[1:])
    assert np.flatnonzero(np.diff(wrong.step_offsets) != 1).tolist() == [0, double]
    with pytest.raises(AssertionError, match="server steps apply"):
        guarantees.check_buffer(wrong, 1)


first_replacement = int(np.flatnonzero(BUFFERED.download_time > 0)[0])
TOO_MANY = {
    "one less stated": tampered(BUFFERED, concurrency=4),
    "one less stated, rounds": tampered(ROUNDS, concurrency=5),
    "a trip starts a moment early": tampered(
        BUFFERED,
        download_time={first_replacement: np.nextafter(BUFFERED.download_time[first_replacement], 0)},
    ),
    "a trip ends a moment late": tampered(BUFFERED, arrival_time={7: BUFFERED.arrival_time[7] + 1e-9}),
    "one more under way at the end": tampered(
        BUFFERED, inflight_start_time=np.append(BUFFERED.inflight_start_time, BUFFERED.step_time[-1]),
        inflight_client=np.append(BUFFERED.inflight_client, 0),
        inflight_trip=np.append(BUFFERED.inflight_trip, 99),
        inflight_version=np.append(BUFFERED.inflight_version, 30),
    ),
    "a trip is thrown away a moment late": tampered(
        ROUNDS, discarded_end_time={5: ROUNDS.discarded_end_time[5] + 1e-9}
    ),
}  # fmt: skip


ALL_TRAIN = asynchronous(num_clients=3, concurrency=3, delay=EXPONENTIAL, server_steps=40, seed=2)
second, third = trips_of(ALL_TRAIN, 1)[1:3]
late_rounds = np.flatnonzero(np.isin(ROUNDS.discarded_client, ROUNDS.client[ROUNDS.step == 19]))
TWICE_AT_ONCE = {
    "a trip starts before the client's last one ends": tampered(
        ALL_TRAIN, download_time={third: np.nextafter(ALL_TRAIN.arrival_time[second], 0)}
    ),
    "a trip ends after the client's next one starts": tampered(
        ALL_TRAIN, arrival_time={second: np.nextafter(ALL_TRAIN.download_time[third], np.inf)}
    ),
    "a trip under way at the end overlaps": tampered(
        ALL_TRAIN, inflight_start_time={1: ALL_TRAIN.arrival_time[trips_of(ALL_TRAIN, 1)[-1]] - 1e-9}
    ),
    "a trip thrown away overlaps": tampered(
        ROUNDS, discarded_end_time={late_rounds[0]: ROUNDS.step_time[-1] + 1.0}
    ),
}


WRONG_NUMBERS = {
    "a number left out": tampered(BUFFERED, trip={-1: BUFFERED.trip[-1] + 1}),
    "a number twice": tampered(ALL_TRAIN, trip={third: 1}),
    "two numbers exchanged": tampered(ALL_TRAIN, trip={second: 2, third: 1}),
    "the first is 1": tampered(ALL_TRAIN, trip={trips_of(ALL_TRAIN, 1)[0]: 1}),
    "another client's number": tampered(ALL_TRAIN, client={third: 0}),
    "under way at the end": tampered(BUFFERED, inflight_trip={2: BUFFERED.inflight_trip[2] + 1}),
    "thrown away": tampered(ROUNDS, discarded_trip={4: ROUNDS.discarded_trip[4] + 1}),
}


thrown_away = int(np.argmax(ROUNDS.discarded_start_time))
WRONG_DURATIONS = {
    "arrives a moment late": tampered(
        BUFFERED, arrival_time={9: np.nextafter(BUFFERED.arrival_time[9], np.inf)}
    ),
    "downloads early": tampered(BUFFERED, download_time={30: BUFFERED.download_time[30] - 1e-9}),
    "another law": (BUFFERED, {"delay": delays.exponential(1.001)}),
    "another seed": (BUFFERED, {"seed": 2}),
    "another client's duration": tampered(BUFFERED, client={9: (BUFFERED.client[9] + 1) % 8}),
    "another trip's duration": tampered(BUFFERED, trip={9: BUFFERED.trip[9] + 1}),
    "thrown away after it arrived": (
        tampered(ROUNDS, discarded_end_time={thrown_away: ROUNDS.discarded_start_time[thrown_away] + 2.0}),
        {"delay": LAW_OF_ROUNDS},
    ),
    "under way after it arrived": tampered(BUFFERED, inflight_start_time={1: 0.0}),
}


middle = 40
WRONG_VERSIONS = {
    "a version of the future": tampered(
        BUFFERED, download_version={middle: BUFFERED.download_version[middle] + 1}
    ),
    "an old version": tampered(BUFFERED, download_version={middle: BUFFERED.download_version[middle] - 1}),
    "applied before its version exists": tampered(BUFFERED, step={-1: BUFFERED.download_version[-1] - 1}),
    "an old version, under way at the end": tampered(
        BUFFERED, inflight_version={2: BUFFERED.inflight_version[2] - 1}
    ),
    "a version of the future, under way at the end": tampered(
        BUFFERED, inflight_version={2: BUFFERED.inflight_version[2] + 1}
    ),
    "an old version in rounds": tampered(ROUNDS, download_version={30: ROUNDS.download_version[30] - 1}),
    "an old version, with ties": tampered(TIES, download_version={6: TIES.download_version[6] - 1}),
    "no trip downloads anew": tampered(ROUNDS, download_version=np.zeros_like(ROUNDS.download_version)),
}


NOT_CONSERVED = {
    "a trip too stale by one step": WRONG_VERSIONS["an old version"],
    "a trip too fresh by one step": WRONG_VERSIONS["a version of the future"],
    "a trip under way too fresh": WRONG_VERSIONS["a version of the future, under way at the end"],
    "one less stated": tampered(BUFFERED, concurrency=4),
    "one more stated": tampered(
        BUFFERED, concurrency=6,
        inflight_start_time=np.append(BUFFERED.inflight_start_time, BUFFERED.step_time[-1]),
        inflight_client=np.append(BUFFERED.inflight_client, 0),
        inflight_trip=np.append(BUFFERED.inflight_trip, 99),
        inflight_version=np.append(BUFFERED.inflight_version, 30),
    ),
    "rounds that never download anew": WRONG_VERSIONS["no trip downloads anew"],
    "ties that never download anew": tampered(TIES, download_version=np.zeros_like(TIES.download_version)),
}  # fmt: skip


# {check: (words of its message or None, {what is wrong: the schedule, or (the schedule, arguments of the check)})}
BREACHES = {
    "check_order": (None, OUT_OF_ORDER),
    "check_buffer": ("server steps apply", WRONG_BUFFERS),
    "check_concurrency": ("trips at once", TOO_MANY),
    "check_one_trip_at_a_time": ("two trips at once", TWICE_AT_ONCE),
    "check_trip_numbers": ("numbers a trip", WRONG_NUMBERS),
    "check_durations": ("arrive", WRONG_DURATIONS),
    "check_versions": ("version", WRONG_VERSIONS),
    "check_conservation": ("steps of staleness", NOT_CONSERVED),
}
ARGUMENTS = {"check_buffer": {"buffer_size": 3}, "check_durations": {"delay": EXPONENTIAL, "seed": 1}}


@pytest.mark.parametrize(
    ("check", "wrong"), [(check, wrong) for check, (_, breaches) in BREACHES.items() for wrong in breaches]
)
def test_a_check_notices(check, wrong):
    message, breaches = BREACHES[check]
    breach = breaches[wrong]
    schedule, arguments = breach if isinstance(breach, tuple) else (breach, {})
    with pytest.raises(AssertionError, match=message):
        getattr(guarantees, check)(schedule, **ARGUMENTS.get(check, {}) | arguments)


ONE_BREACH_OF_EACH = {
    "check_shapes": tampered(BUFFERED, client=BUFFERED.client.astype(np.int64)),
    "check_order": OUT_OF_ORDER["server steps go back in time"],
    "check_buffer": tampered(BUFFERED, step={5: 2}),
    "check_concurrency": TOO_MANY["one less stated"],
    "check_one_trip_at_a_time": TWICE_AT_ONCE["a trip starts before the client's last one ends"],
    "check_trip_numbers": WRONG_NUMBERS["under way at the end"],
    "check_durations": tampered(BUFFERED, download_time={30: BUFFERED.download_time[30] + 1e-9}),
    "check_versions": WRONG_VERSIONS["an old version"],
    "check_conservation": NOT_CONSERVED["one more stated"],
    "check_participation": BUFFERED,
}
LIMITS = {"most_trips": int(np.bincount(BUFFERED.client).max()) - 1, "smallest_gap": 0}


def test_there_is_a_breach_of_each_check():
    others = {"check_all", "check_rounds", "check_reports", "check_service"}  # of rounds and of queues
    assert set(ONE_BREACH_OF_EACH) | others == {name for name in dir(guarantees) if "check_" in name}


@pytest.mark.parametrize("change", [1e-9, -0.1])
def test_check_service_notices_a_client_that_serves_two_at_once_or_idles(change):
    """One arrival of a queue is moved, and with it the next one of that client has another beginning."""
    schedule = queued(num_clients=3, tasks=9, delay=EXPONENTIAL, server_steps=30, seed=1)
    guarantees.check_service(schedule, EXPONENTIAL, 1)
    moved = tampered(schedule, arrival_time={12: schedule.arrival_time[12] + change})
    with pytest.raises(AssertionError, match="does not arrive when its client has served it"):
        guarantees.check_service(moved, EXPONENTIAL, 1)


@pytest.mark.parametrize("name", ONE_BREACH_OF_EACH)
def test_check_all_notices_a_breach_of(name, monkeypatch):
    """With every other check switched off, so that this one must have been asked."""
    for other in ONE_BREACH_OF_EACH:
        if other != name:
            monkeypatch.setattr(guarantees, other, lambda *arguments: None)
    with pytest.raises(AssertionError):
        guarantees.check_all(ONE_BREACH_OF_EACH[name], buffer_size=3, delay=EXPONENTIAL, seed=1, **LIMITS)


WITH_A_DEADLINE = {"cohort_size": 4, "min_reports": 2, "deadline": 1.5}
LOSSY = synchronous(
    **WITH_A_DEADLINE,
    num_clients=8,
    over_selection=0.5,
    failure_rate=0.4,
    delay=EXPONENTIAL,
    server_steps=60,
    seed=1,
)


def test_rounds_keep_their_guarantees():
    assert LOSSY.void_steps.size and np.unique(np.diff(LOSSY.step_offsets)).tolist() == [0, 2, 3, 4]
    guarantees.check_rounds(LOSSY, **WITH_A_DEADLINE, delay=EXPONENTIAL, seed=1)


def begun_at(number, time):
    """The rounds with another start of one."""
    download_time = np.where(LOSSY.step == number, time, LOSSY.download_time)
    cancelled = np.where(LOSSY.discarded_step == number, time, LOSSY.discarded_start_time)
    return tampered(LOSSY, download_time=download_time, discarded_start_time=cancelled)


BROKEN_ROUNDS = {
    "a report too many": (LOSSY, {"cohort_size": 3}, "applies"),
    "reports too few": (LOSSY, {"min_reports": 3}, "applies"),
    "after the deadline": (LOSSY, {"deadline": 1.4}, "ends after its deadline"),
    "a trip that starts later": (
        tampered(LOSSY, download_time={3: LOSSY.download_time[3] + 1e-9}), {}, "do not start together"),
    "before time 0": (begun_at(0, -1e-9), {}, "begins before the end"),
    "before the last round ends": (begun_at(9, LOSSY.step_time[8] - 1e-9), {}, "begins before the end"),
    "a stale trip": (tampered(LOSSY, download_version={30: LOSSY.download_version[30] - 1}), {}, "old version"),
    "a longer trip": (
        tampered(LOSSY, discarded_end_time={3: LOSSY.discarded_end_time[3] + 9}), {}, "goes on after its round"),
    "a step that waits": (tampered(LOSSY, step_time={-1: LOSSY.step_time[-1] + 1e-3}), {}, "no trip does|deadline"),
    "a trip under way": (BUFFERED, {}, "under way after the last round"),
}  # fmt: skip


@pytest.mark.parametrize("breach", BROKEN_ROUNDS.values(), ids=BROKEN_ROUNDS)
def test_check_reports_notices(breach):
    schedule, changes, message = breach
    with pytest.raises(AssertionError, match=message):
        guarantees.check_reports(schedule, **{**WITH_A_DEADLINE, **changes})
