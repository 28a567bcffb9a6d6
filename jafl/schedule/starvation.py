"""Why a schedule cannot reach its last step, from what has happened in it and not from what was asked for."""

import dataclasses
from collections.abc import Mapping, Sequence

from jafl.base.errors import SettingError
from jafl.schedule.limits import Limits
from jafl.schedule.protocol import Protocol

# Why trips are thrown away, in the words of a refusal.
FAILED = "failed (failure_rate)"
WENT_AWAY = "were lost, because their clients went away (availability)"
LEFT = "were those of clients that left (dropout)"
TOO_STALE = "were staler than staleness_limit allows"
OUTDATED = "were stopped, since a step made them staler than staleness_limit allows (too_stale='cancel')"
CANCELLED = "were cancelled by a step (cancel_at_step)"
# Of these the server hears nothing.
UNNOTICED = (FAILED, WENT_AWAY, LEFT)

REMEDIES = {
    FAILED: "lower failure_rate",
    WENT_AWAY: "let clients be there for longer than their trips take",
    LEFT: "let fewer clients leave",
    TOO_STALE: "raise staleness_limit",
    OUTDATED: "raise staleness_limit",
}


@dataclasses.dataclass(frozen=True)
class Standstill:
    """What there is at the moment from which no server step follows."""

    time: float
    steps: int
    wanted: float  # server steps asked for, or infinity
    protocol: Protocol
    num_clients: int
    gone: int  # clients that have left for ever
    never_there: int  # clients that are not available any more
    held: int  # clients whose update waits: in the buffer, or for the end of a round
    done: int  # clients that have made all the trips that most_trips allows
    resting: int  # clients that smallest_gap keeps from starting before further steps
    free_places: int  # places that nobody can take
    in_buffer: int  # trips
    needed: float  # trips that the next step takes
    ended: int  # trips since the last step
    thrown_away: Mapping[str, int]  # {reason: trips since the last step}
    unheard: Sequence[int] = ()  # clients that the next step waits for; unless ``busy``, they never come
    questions: int = 0  # to clients, one after the other, none of whom was there when it might have started

    def refusal(self, *, busy: bool) -> SettingError:
        """The error that says so; ``busy``: trips go on ending, but lead to no step."""
        if self.unheard and not busy:
            reason, remedies = self._unheard()
        elif self.questions:
            reason = (
                f"{self.questions:,} times in a row no client was there when it was to start (availability)"
            )
            remedies = ["let clients be there for longer"]
        elif busy:
            reason, remedies = self._without_effect()
        elif self.protocol.start_times is None and not self.free_places:
            reason, remedies = self._no_place()
        else:
            reason, remedies = self._nobody()
        if self.steps:
            remedies = [*remedies, f"stop after {self.steps:,} server step{'s' * (self.steps > 1)}"]
        remedy = ", or ".join(dict.fromkeys(remedies))
        wanted = f" of {self.wanted:,.0f}" if self.wanted < float("inf") else ""
        return SettingError(
            f"The schedule starves at time {self.time:g}, after {self.steps}{wanted} server steps: {reason}. "
            f"{remedy[:1].upper()}{remedy[1:]}."
        )

    def _unheard(self) -> tuple[str, list[str]]:
        """(reason, what can be done) where a step needs a trip of each client, and some bring none any more."""
        parts, remedies = self._who_is_missing()
        needs = f"step_when={self.protocol.step_when!r} needs a trip of every client, and waits for"
        reason = f"{needs} {self._of_whom()}: {_list(parts)}"
        return reason, [*remedies, "take step_when='buffer_full'"]

    def _of_whom(self) -> str:
        """Whose trips the next step waits for, as it stands in a sentence."""
        first, *others = self.unheard
        return f"{len(self.unheard)} clients, client {first} among them" if others else f"client {first}"

    def _who_is_missing(self) -> tuple[list[str], list[str]]:
        """(how many clients will never start again and why, what can be done)."""
        parts, remedies = [], []
        if self.gone:
            parts.append(f"{self.gone} have left (dropout)")
            remedies.append(REMEDIES[LEFT])
        if self.never_there:
            parts.append(f"{self.never_there} will never be there again (availability)")
            remedies.append("let clients be there for longer")
        if self.done:
            parts.append(made_all_trips(self.done, self.protocol.most_trips))
            remedies += ["raise most_trips", "raise num_clients"]
        return parts, remedies

    def _nobody(self) -> tuple[str, list[str]]:
        """(reason, what can be done) where places are free, or starts are due, and no client can start."""
        in_first = self.protocol.initial_round and not self.steps
        parts, remedies = self._who_is_missing()
        if self.resting:
            parts.append(still_rest(self.resting, self.protocol.smallest_gap))
            remedies += ["lower smallest_gap", "raise num_clients"]
            if self.in_buffer and not self.held:
                parts[-1] += f", while the buffer of {self.needed} trips holds {self.in_buffer}"
                remedies.append(f"lower buffer_size to {self.in_buffer}")
        if self.held and self.protocol.restart == "after_round" and not in_first:
            parts.append(f"{self.held} wait for the round to end, to which they have contributed")
        elif self.held and in_first:
            parts.append(f"{self.held} have made the trip of the initial_round, which waits for all")
            remedies.append("take an algorithm without an initial round")
        elif self.held:
            parts.append(
                f"{self.held} wait for a buffer of {self.needed} trips, which holds {self.in_buffer}"
            )
            remedies.append(f"lower buffer_size to {self.in_buffer}")
        return (
            f"nobody is training and nobody can start: of {self.num_clients} clients {_list(parts)}",
            remedies,
        )

    def _no_place(self) -> tuple[str, list[str]]:
        """(reason, what can be done) where places are taken again after a step, and none is left to make one."""
        places, buffer_size = self.protocol.concurrency, self.protocol.buffer_size
        parts = [f"{self.in_buffer} wait in a buffer of {self.needed} trips"] if self.in_buffer else []
        parts += [f"{count} {reason}" for reason, count in self.thrown_away.items()]
        if buffer_size > places:
            remedies = [f"lower buffer_size to {places}", "raise concurrency"]
        else:
            remedies = [f"lower buffer_size to {self.in_buffer}"] if self.in_buffer else []
            remedies.append("have lost places taken again before the step (replace_lost='at_once')")
        reason = f"nobody is training, and no place is taken before the next step: of {places} trips {_list(parts)}"
        return reason, remedies

    def _without_effect(self) -> tuple[str, list[str]]:
        """(reason, what can be done) where trips end on and on, and no step follows."""
        parts = [f"{count:,} {reason}" for reason, count in self.thrown_away.items()]
        remedies = [REMEDIES[reason] for reason in self.thrown_away if reason in REMEDIES]
        step_when = self.protocol.step_when
        if step_when != "buffer_full":
            whose = f"a trip of {self._of_whom()}" if self.unheard else "more of slower clients"
            parts.append(f"{self.in_buffer:,} wait in the buffer for {whose} (step_when={step_when!r})")
            remedies = ["take step_when='buffer_full'", *remedies]
        elif self.in_buffer >= self.needed:  # or the server would step
            parts.append(
                f"{self.in_buffer:,} wait in the buffer, since a step would make a trip under way too stale"
            )
            remedies = ["raise staleness_limit", "drop what is too stale (too_stale='drop')", *remedies]
        return f"no step follows from the last {self.ended:,} trips: {_list(parts)}", remedies


def too_few_for_a_round(
    number: int, rounds: int, *, setting: str, started: int, idle: int, limits: Limits
) -> SettingError:
    """The error for round ``number`` of ``rounds``, for which ``idle`` clients are left where it starts more."""
    done, resting, parts, remedies = limits.done(), limits.resting, [], [f"lower {setting}"]
    if done:
        parts.append(made_all_trips(done, int(limits.most_trips)))
        remedies.append("raise most_trips")
    if resting:
        parts.append(still_rest(resting, limits.smallest_gap))
        remedies.append("lower smallest_gap")
    remedies += [
        "raise num_clients",
        *([f"stop after {number:,} server step{'s' * (number > 1)}"] * (number > 0)),
    ]
    remedy = ", or ".join(remedies)
    return SettingError(
        f"The schedule starves in server step {number} of {rounds:,}: {started} clients are to take part, but only "
        f"{idle} of {len(limits.taken)} may: {_list(parts)}. {remedy[:1].upper()}{remedy[1:]}."
    )


def made_all_trips(clients: int, most_trips: int | None) -> str:
    """That so many clients may not start any more."""
    return f"{clients} have made all their trips (most_trips is {most_trips})"


def still_rest(clients: int, smallest_gap: int) -> str:
    """That so many clients may not start yet."""
    return f"{clients} must wait for further server steps (smallest_gap is {smallest_gap})"


def _list(parts: list[str]) -> str:
    """The parts as they stand in a sentence: a, b and c."""
    return " and ".join(filter(None, [", ".join(parts[:-1]), *parts[-1:]]))
