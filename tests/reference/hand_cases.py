"""Cases of asynchronous training that were worked out by hand: how the rows in `rows_*.py` are written, and run.

A row is `case(name, durations, the rest of the world, what happens in it)`. Its world:

- `durations`: how long the trips of each client take, a number or a list whose last entry repeats;
- `M` places, one per client unless given (and none with `start_times`), and a buffer of `K` trips, 1 unless given;
- `targets`: client c moves the one parameter, 0 at first, half the way to targets[c];
- `fails`: the trips that fail, "0#0 0#2" for the first and the third one of client 0;
- `present`: for each client when it is there, "0-1 2.5-" from 0 to 1 and from 2.5 on, "" never; with
  `lost_when_away` a trip is lost when its client goes away;
- `choices`: "@2 3 0 of 0 1 3" where two clients are asked for at time 2 among 0, 1 and 3, and 3 and 0 are the answer.
  In a row without it nobody is asked;
- all others are settings of `reference.simulate`. `variants` are changes of the world with which the same happens.
  `jafl=False` stands where jafl refuses such a world.

What happens:

- `steps`: "@2 0#0 v0 0-1, 1#3 v1 1-2; @4 ..." where the first step, at time 2, applies the first trip of client 0
  from version 0, begun at time 0 and arrived at time 1, then the fourth one of client 1, from version 1. The run
  ends with the last step;
- `under_way`: the trips under way at the end, with the times at which they would arrive;
- `thrown_away`: those that ended without use; "x2 s1" after one says that this was at time 2, ahead of step 1;
- `values`: the parameter of each version.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import reference as ref
from both_simulators import by_jafl, by_reference, halfway_to


@dataclass(frozen=True)
class Case:
    name: str
    durations: list
    world: dict
    variants: Sequence
    expected: dict
    by_jafl: bool


def case(
    name, durations, *, steps, under_way="", thrown_away="", choices="", values=None, variants=({},), **world
):
    """A row. jafl runs it, too, where nobody chooses and nobody starts at a given time."""
    by_jafl = world.pop("jafl", True) and not choices and "start_times" not in world
    expected = {"steps": steps, "under_way": under_way, "thrown_away": thrown_away}
    return Case(name, durations, world, variants, expected | {"choices": choices, "values": values}, by_jafl)


def ways_to_leave(*who_leaves):
    """Variants in which clients leave for ever, each in another way."""
    return [{"vanish": vanish} for vanish in who_leaves]


def each_run(cases):
    """(simulator, case, variant) for each way to run a case."""
    assert len({case.name for case in cases}) == len(cases)
    return [
        pytest.param(run, case, changes, id=f"{case.name}{number or ''}-{run.__name__}")
        for case in cases
        for number, changes in enumerate(case.variants)
        for run in ((by_reference, by_jafl) if case.by_jafl else (by_reference,))
    ]


def table(rows):
    """A duration(client, trip) from a number or a list per client; the last entry repeats."""
    rows = [np.atleast_1d(np.array(row, dtype=float)).tolist() for row in rows]
    return lambda client, trip: rows[client][min(trip, len(rows[client]) - 1)]


def windows(rows):
    """`next_available` and `present_until` from a list of windows [begin, end) per client."""

    def next_available(client, time):
        return next((max(begin, time) for begin, end in rows[client] if time < end), math.inf)

    def present_until(client, time):
        return next(end for begin, end in rows[client] if begin <= time < end)

    return next_available, present_until


def world(
    durations, *, K=1, M=None, targets=None, fails=None, present=None, lost_when_away=False, **settings
):
    """The settings of `reference.simulate` from their short form."""
    places = len(durations) if M is None and "start_times" not in settings else M
    settings |= {"num_clients": len(durations), "concurrency": places, "buffer_size": K}
    settings["duration"] = table(durations)
    if targets is not None:
        settings |= {"params": {"w": np.array(0.0)}, "client_update": halfway_to(targets)}
    if fails is not None:
        settings["fails"] = lambda client, trip: f"{client}#{trip}" in fails.split()
    if present is not None:
        rows = [[window.split("-") for window in row.split()] for row in present]
        rows = [[(float(begin), float(end or "inf")) for begin, end in row] for row in rows]
        settings["next_available"], present_until = windows(rows)
        if lost_when_away:
            settings["present_until"] = present_until
    return settings


def number_text(number) -> str:
    return f"{float(number):.17g}"


def trips_text(trips) -> str:
    return ", ".join(
        f"{t.client}#{t.trip} v{t.download_version} {number_text(t.download_time)}-{number_text(t.arrival_time)}"
        + ("" if t.cancel_time is None else f" x{number_text(t.cancel_time)} s{t.cancel_step}")
        for t in trips
    )


def replay_text(replay: ref.Replay) -> dict:
    """What happened, as the rows write it."""
    steps = [
        f"@{number_text(time)} {trips_text(trip for trip in replay.applied if trip.step == step)}"
        for step, time in enumerate(replay.step_times)
    ]
    return {
        "steps": "; ".join(steps),
        "under_way": trips_text(replay.in_flight),
        "thrown_away": trips_text(replay.discarded),
    }


class Choices:
    """A `select` that answers one after the other as a row says, or the first of those eligible, and notes that."""

    def __init__(self, row: str | None = None):
        self.row = row
        self.answers = None if row is None else [choice.split()[1:] for choice in row.split("; ")]
        self.notes: list[str] = []

    def __call__(self, time, eligible, how_many):
        answer = eligible[:how_many]
        if self.answers is not None:
            words = self.answers[len(self.notes)]
            answer = [int(client) for client in words[: words.index("of")]]
        assert len(answer) == how_many
        self.notes.append(
            f"@{number_text(time)} {' '.join(map(str, answer))} of {' '.join(map(str, eligible))}"
        )
        return answer
