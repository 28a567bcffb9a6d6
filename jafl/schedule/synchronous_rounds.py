"""Synchronous rounds in a world: clients are away, leave, fail or take part by chance; rounds have a deadline.

Rounds in which every selected client reports need no loop; ``synchronous`` makes those by sorting.
"""

import dataclasses
import math

import numpy as np

from jafl.base.errors import SettingError, require
from jafl.records import EventSchedule
from jafl.schedule.columns import discarded_trips, inflight_trips
from jafl.schedule.draws import FAILURE, PARTICIPATION, SELECTION, generator, keyed_uniform
from jafl.schedule.durations import draw_durations
from jafl.schedule.protocol import World
from jafl.schedule.starvation import made_all_trips, still_rest

# About so many times clients are asked when they come back, before a round counts as one that never begins.
MOST_QUESTIONS = 300_000


@dataclasses.dataclass(frozen=True)
class RoundsProtocol:
    """How rounds are made: the arguments of ``jafl.synchronous`` of the same names."""

    cohort_size: int | None  # reports after which a round is over; None: of all that take part
    started: int  # clients that a round starts at most
    participation: np.ndarray | None  # [N] float64 chances; None where ``started`` clients are drawn
    deadline: float  # infinity for none
    min_reports: int
    most_trips: int | None
    smallest_gap: int


class Rounds:
    """Makes the rounds one after the other; ``run`` returns the schedule."""

    def __init__(self, world: World, protocol: RoundsProtocol):
        clients = world.num_clients
        self.world, self.protocol = world, protocol
        self.availability = world.availability and world.availability.prepare(clients, world.seed)
        self.random = generator(world.seed, SELECTION)
        leavers = world.dropout.leavers(clients, world.seed) if world.dropout else ()
        self.leavers = np.zeros(clients, bool)
        self.leavers[list(leavers)] = True
        self.now = 0.0
        self.trips_made = np.zeros(clients, np.int64)  # at a round's end all of them have ended
        self.applied = np.zeros(clients, np.int64)
        self.free_from = np.zeros(clients, np.int64)  # the first round that smallest_gap allows
        # For each round: (client, trip, arrival) of its reports; (client, trip, start, end) of what it threw away.
        self.reports: list[tuple[np.ndarray, ...]] = []
        self.thrown_away: list[tuple[np.ndarray, ...]] = []
        self.start_time: list[float] = []
        self.step_time: list[float] = []
        self.shortest = math.inf  # duration of a trip that would have brought a report
        self.most_started = 0

    def run(self, rounds: int | None, client_trips: float = math.inf) -> EventSchedule:
        """The schedule of so many rounds, or of as many whole ones as ``client_trips`` started trips allow."""
        started = 0
        while rounds is None or len(self.step_time) < rounds:
            number = len(self.step_time)
            if started + self.protocol.min_reports > client_trips:
                break  # no round is so small, so it does not matter whether anybody is left to begin one
            clients = self._select(number, rounds)
            started += len(clients)
            if started > client_trips:
                allowed = f"at least {len(clients)}, for the first round"
                require(number > 0, "client_trips", int(client_trips), allowed)
                break
            self._make_round(number, clients)
        self._refuse_without_reports()
        return self._schedule()

    # Who takes part.

    def _select(self, number: int, rounds: int | None) -> np.ndarray:
        """[S] clients of a round, in client order; moves the time on until enough of them are there."""
        participation, size = self.protocol.participation, self.protocol.started
        for _ in range(1000 + MOST_QUESTIONS // self.world.num_clients):
            may_start = self._may_start(number)
            if self.availability is None:
                there, away = may_start, np.inf
                enough = len(may_start) >= self.protocol.min_reports
                if enough and participation is None and len(may_start) > size:
                    there = self.random.choice(may_start, size, replace=False, shuffle=False)
            else:
                # In random order: the first that are there are drawn uniformly among all who are.
                order = may_start if participation is not None else self.random.permutation(may_start)
                there, away = self._who_is_there(order, len(order) if participation is not None else size)
                enough = len(there) >= self.protocol.min_reports
            if enough:
                if participation is not None:
                    draws = keyed_uniform(self.world.seed, PARTICIPATION, there, np.full_like(there, number))
                    there = there[draws < participation[there]]
                return np.sort(there)
            if away == np.inf:
                break
            self.now = float(away)
        raise self._starves(number, rounds)

    def _may_start(self, number: int) -> np.ndarray:
        """[n] the clients that have not left, and that the limits let take part in this round."""
        most = self.protocol.most_trips
        free = (self.free_from <= number) & ~self._has_left()
        return np.flatnonzero(free if most is None else free & (self.applied < most))

    def _has_left(self) -> np.ndarray:
        """[N] bool: who has left for ever by now."""
        dropout = self.world.dropout
        if dropout is None:
            return self.leavers  # nobody
        if dropout.trips is not None:
            return self.leavers & (self.trips_made >= dropout.trips)
        if dropout.time is not None:
            return self.leavers & (self.now >= dropout.time)
        assert dropout.server_step is not None
        return self.leavers & (len(self.step_time) >= dropout.server_step)

    def _who_is_there(self, clients: np.ndarray, most: int) -> tuple[np.ndarray, float]:
        """([n] the first ``most`` of ``clients`` who are there now, when the next one comes of those who are not)."""
        assert self.availability
        there, next_arrival = [], math.inf
        for client in clients.tolist():
            arrival = self.availability.next_available(client, self.now)
            if arrival <= self.now:
                there.append(client)
                if len(there) == most:
                    break
            else:
                next_arrival = min(next_arrival, arrival)
        return np.array(there, np.int64), next_arrival

    def _starves(self, number: int, rounds: int | None) -> SettingError:
        """The error for a round that too few clients will ever be able to begin."""
        most, reasons = self.protocol.most_trips, []
        if gone := int(self._has_left().sum()):
            reasons.append(f"{gone} have left (dropout)")
        if most is not None and (done := int(np.sum(self.applied >= most))):
            reasons.append(made_all_trips(done, most))
        if resting := int(np.sum(self.free_from > number)):
            reasons.append(still_rest(resting, self.protocol.smallest_gap))
        if self.availability is not None:
            reasons.append("the others are never there again, or never enough of them at once (availability)")
        limit_note = "" if rounds is None else f" of {rounds:,}"
        needed = self.protocol.min_reports
        stop = f", or stop after {number:,} server step{'s' * (number > 1)}" if number else ""
        return SettingError(
            f"The schedule starves in server step {number:,}{limit_note}, at time {self.now:g}: a round begins with "
            f"at least {needed} client{'s' * (needed > 1)} (min_reports), and of {self.world.num_clients} clients "
            f"{', '.join(reasons)}. Lower min_reports, or let more clients take part{stop}."
        )

    # One round.

    def _make_round(self, number: int, clients: np.ndarray) -> None:
        """Trains ``clients`` [S] from now on, and notes what comes of it; the time moves on to the round's end."""
        start, trip = self.now, self.trips_made[clients]
        self.trips_made[clients] += 1
        self.most_started = max(self.most_started, len(clients))
        arrival = start + draw_durations(self.world.delay, self.world.seed, clients, trip)
        end = self._ends(clients, start, arrival)  # with or without a report
        brings = end == arrival
        if self.world.failure_rate:
            failures = keyed_uniform(self.world.seed, FAILURE, clients, trip) < self.world.failure_rate
            brings &= ~failures
        self.shortest = min(self.shortest, float((arrival - start)[brings].min(initial=math.inf)))
        in_time = brings & (end <= start + self.protocol.deadline)
        order = np.lexsort((clients, arrival))  # ties in client order
        reports = order[in_time[order]][: self.protocol.cohort_size]
        self.now = self._end_of_round(start, end, reports)
        used = np.zeros(len(clients), bool)
        if len(reports) >= self.protocol.min_reports:
            used[reports] = True
            self.applied[clients[reports]] += 1
            self.free_from[clients[reports]] = number + self.protocol.smallest_gap
        else:
            reports = reports[:0]
        self.reports.append((clients[reports], trip[reports], arrival[reports]))
        ended = np.minimum(end, self.now)
        lost = np.lexsort((clients, arrival, ended))
        lost = lost[~used[lost]]
        self.thrown_away.append((clients[lost], trip[lost], np.full(len(lost), start), ended[lost]))
        self.start_time.append(start)
        self.step_time.append(self.now)

    def _ends(self, clients: np.ndarray, start: float, arrival: np.ndarray) -> np.ndarray:
        """[S] float64: when trips end, by their arrival, or because their clients go away or leave."""
        end = arrival
        if self.availability is not None and self.availability.loses_trips:
            present = [self.availability.present_until(client, start) for client in clients.tolist()]
            end = np.minimum(end, present)
        if self.world.dropout and self.world.dropout.time is not None:
            end = np.where(self.leavers[clients], np.minimum(end, self.world.dropout.time), end)
        return end

    def _end_of_round(self, start: float, end: np.ndarray, reports: np.ndarray) -> float:
        """When the round is over: with the last report that it waits for, at its deadline, or with its last trip."""
        if not len(end):
            return start
        if len(reports) in (len(end), self.protocol.cohort_size):
            return float(end[reports[-1]])
        # The server does not know that the others will not report, unless there is nothing else to wait for.
        return float(end.max()) if self.protocol.deadline == math.inf else start + self.protocol.deadline

    # The schedule.

    def _refuse_without_reports(self) -> None:
        """Raises SettingError where no round has enough reports: nothing would be trained."""
        if any(len(client) for client, _, _ in self.reports):
            return
        rounds, deadline = len(self.reports), self.protocol.deadline
        if self.shortest > deadline and self.shortest < math.inf:
            allowed = (
                f"at least {self.shortest:g}, the shortest trip of these {rounds:,} rounds: none has a report"
            )
            require(False, "deadline", deadline, allowed)
        if self.most_started == 0:
            allowed = f"larger: in {rounds:,} round{'s' * (rounds > 1)} no client took part"
            shares = self.protocol.participation
            require(
                False,
                "participation",
                None if shares is None else float(shares.max()),
                allowed,
                "Or choose another seed.",
            )
        remedy = (
            "Lower min_reports or failure_rate, raise the deadline, or let trips be shorter than presence."
        )
        allowed = f"lower: in all {rounds:,} rounds fewer clients reported"
        require(False, "min_reports", self.protocol.min_reports, allowed, remedy)

    def _schedule(self) -> EventSchedule:
        """What has been noted, as a schedule."""
        client, trip, arrival = (np.concatenate(column) for column in zip(*self.reports, strict=True))
        step = np.repeat(np.arange(len(self.reports)), [len(reports[0]) for reports in self.reports])
        lost_step = np.repeat(np.arange(len(self.reports)), [len(lost[0]) for lost in self.thrown_away])
        lost_client, lost_trip, lost_start, lost_end = (
            np.concatenate(column) for column in zip(*self.thrown_away, strict=True)
        )
        return EventSchedule(
            client=client.astype(np.int32),
            trip=trip.astype(np.int32),
            download_version=step.astype(np.int32),
            step=step.astype(np.int32),
            download_time=np.array(self.start_time)[step],
            arrival_time=arrival,
            step_time=np.array(self.step_time),
            **inflight_trips(),
            **discarded_trips(lost_client, lost_trip, lost_step, lost_start, lost_end),
            num_clients=self.world.num_clients,
            concurrency=self.most_started,
        )
