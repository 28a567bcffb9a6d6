"""Why a schedule cannot reach its last step, from what has happened in it and not from what was asked for."""

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from jafl.base.errors import SettingError
from jafl.schedule.limits import Limits

if TYPE_CHECKING:
    from jafl.schedule.event_state import EventState

# Why trips are thrown away, in the words of a refusal.
FAILED = "failed (failure_rate)"
WENT_AWAY = "were lost, because their clients went away (availability)"
LEFT = "were those of clients that left (dropout)"
TOO_STALE = "were staler than staleness_limit allows"
OUTDATED = "were stopped, since a step made them staler than staleness_limit allows (too_stale='cancel')"
CANCELLED = "were cancelled by a step (cancel_at_step)"
# The server hears nothing of these.
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
    """The moment from which no server step follows."""

    state: "EventState"
    busy: bool = False  # trips go on ending, but lead to no step
    unheard: Sequence[int] = ()  # clients that the next step waits for; unless ``busy``, they never come
    questions: int = 0  # to clients, one after the other, none of whom was there when it might have started

    def refusal(self) -> SettingError:
        """The error that says so."""
        if self.unheard and not self.busy:
            reason, remedies = self._unheard()
        elif self.questions:
            reason = (
                f"{self.questions:,} times in a row no client was there when it was to start (availability)"
            )
            remedies = ["let clients be there for longer"]
        elif self.busy:
            reason, remedies = self._without_effect()
        elif self.state.protocol.start_times is None and not self.state.free_places:
            reason, remedies = self._no_place()
        else:
            reason, remedies = self._nobody()
        if self.state.version:
            remedies = [
                *remedies,
                f"stop after {self.state.version:,} server step{'s' * (self.state.version > 1)}",
            ]
        remedy = ", or ".join(dict.fromkeys(remedies))
        wanted = f" of {self.state.last_version:,.0f}" if self.state.last_version < float("inf") else ""
        return SettingError(
            f"The schedule starves at time {self.state.now:g}, after {self.state.version}{wanted} server steps: "
            f"{reason}. {remedy[:1].upper()}{remedy[1:]}."
        )

    def _unheard(self) -> tuple[str, list[str]]:
        """(reason, what can be done) where a step needs a trip of each client, and some bring none any more."""
        parts, remedies = self._who_is_missing()
        needs = f"step_when={self.state.protocol.step_when!r} needs a trip of every client, and waits for"
        reason = f"{needs} {self._of_whom()}: {_list(parts)}"
        return reason, [*remedies, "take step_when='buffer_full'"]

    def _of_whom(self) -> str:
        """Whose trips the next step waits for, as it stands in a sentence."""
        first, *others = self.unheard
        return f"{len(self.unheard)} clients, client {first} among them" if others else f"client {first}"

    def _who_is_missing(self) -> tuple[list[str], list[str]]:
        """(how many clients will never start again and why, what can be done)."""
        limits, parts, remedies = self.state.limits, [], []
        if gone := len(self.state.gone):
            parts.append(f"{gone} have left (dropout)")
            remedies.append(REMEDIES[LEFT])
        if never_there := sum(wakes == math.inf for wakes, _ in self.state.asleep):
            parts.append(f"{never_there} will never be there again (availability)")
            remedies.append("let clients be there for longer")
        if done := limits.done(self.state.gone) if limits else 0:
            parts.append(made_all_trips(done, self.state.protocol.most_trips))
            remedies += ["raise most_trips", "raise num_clients"]
        return parts, remedies

    def _nobody(self) -> tuple[str, list[str]]:
        """(reason, what can be done) where places are free, or starts are due, and no client can start."""
        in_first = self.state.protocol.initial_round and not self.state.version
        held = len(self.state.held)  # clients whose update waits: in the buffer, or for the end of a round
        parts, remedies = self._who_is_missing()
        if self.state.limits and (resting := self.state.limits.resting):
            parts.append(still_rest(resting, self.state.protocol.smallest_gap))
            remedies += ["lower smallest_gap", "raise num_clients"]
            if self.state.in_buffer and not held:
                parts[-1] += f", while the buffer of {self.state.needed} trips holds {self.state.in_buffer}"
                remedies.append(f"lower buffer_size to {self.state.in_buffer}")
        if held and self.state.protocol.restart == "after_round" and not in_first:
            parts.append(f"{held} wait for the round to end, to which they have contributed")
        elif held and in_first:
            parts.append(f"{held} have made the trip of the initial_round, which waits for all")
            remedies.append("take an algorithm without an initial round")
        elif held:
            parts.append(
                f"{held} wait for a buffer of {self.state.needed} trips, which holds {self.state.in_buffer}"
            )
            remedies.append(f"lower buffer_size to {self.state.in_buffer}")
        return (
            f"nobody is training and nobody can start: of {self.state.world.num_clients} clients {_list(parts)}",
            remedies,
        )

    def _no_place(self) -> tuple[str, list[str]]:
        """(reason, what can be done) where places are taken again after a step, and none is left to make one."""
        places, buffer_size = self.state.protocol.concurrency, self.state.protocol.buffer_size
        parts = (
            [f"{self.state.in_buffer} wait in a buffer of {self.state.needed} trips"]
            if self.state.in_buffer
            else []
        )
        parts += [f"{count} {reason}" for reason, count in self.state.thrown_away.items()]
        if buffer_size > places:
            remedies = [f"lower buffer_size to {places}", "raise concurrency"]
        else:
            remedies = [f"lower buffer_size to {self.state.in_buffer}"] if self.state.in_buffer else []
            remedies.append("have lost places taken again before the step (replace_lost='at_once')")
        reason = f"nobody is training, and no place is taken before the next step: of {places} trips {_list(parts)}"
        return reason, remedies

    def _without_effect(self) -> tuple[str, list[str]]:
        """(reason, what can be done) where trips end on and on, and no step follows."""
        parts = [f"{count:,} {reason}" for reason, count in self.state.thrown_away.items()]
        remedies = [REMEDIES[reason] for reason in self.state.thrown_away if reason in REMEDIES]
        step_when = self.state.protocol.step_when
        if step_when != "buffer_full":
            whose = f"a trip of {self._of_whom()}" if self.unheard else "more of slower clients"
            parts.append(f"{self.state.in_buffer:,} wait in the buffer for {whose} (step_when={step_when!r})")
            remedies = ["take step_when='buffer_full'", *remedies]
        elif self.state.in_buffer >= self.state.needed:  # or the server would step
            parts.append(
                f"{self.state.in_buffer:,} wait in the buffer, since a step would make a trip under way too stale"
            )
            remedies = ["raise staleness_limit", "drop what is too stale (too_stale='drop')", *remedies]
        return (
            f"no step follows from the last {self.state.ended_since_step:,} trips: {_list(parts)}",
            remedies,
        )


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
