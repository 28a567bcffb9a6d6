"""What an account was made for, as digests: a rule that was accounted for one schedule runs on no other."""

import dataclasses
import hashlib
from typing import Any

import numpy as np

from jafl.base.errors import SettingError
from jafl.privacy.weights import check_eligible
from jafl.records import EventSchedule
from jafl.specifications import Specification


def schedule_digest(schedule: EventSchedule) -> str:
    """SHA-256 of a schedule, on which an account depends: who takes part in which step, how stale, and when."""
    digest = hashlib.sha256()
    for field in dataclasses.fields(schedule):
        if getattr(schedule, field.name) is None:
            continue  # as in schedules that were made before there was such a column
        value = np.asarray(getattr(schedule, field.name))
        text = str(value.tolist()) if value.dtype == object else ""
        kind = np.float64 if value.dtype.kind == "f" else np.int64
        digest.update(f"{field.name} {value.shape} {text} ".encode())
        if not text:
            digest.update(np.ascontiguousarray(value, kind).tobytes())
    return digest.hexdigest()


def digests(rule: Specification, schedule: EventSchedule, num_examples: Any) -> np.ndarray:
    """[2, 8] uint32: the digests of the schedule, and of the numbers of examples where the weights read them."""
    counts = np.asarray(num_examples, np.int64) if "num_examples" in check_eligible(rule) else np.zeros(0)
    digest_pair = (schedule_digest(schedule), hashlib.sha256(counts.tobytes()).hexdigest())
    return np.stack([np.frombuffer(bytes.fromhex(digest), np.uint32) for digest in digest_pair])


def other_schedule() -> SettingError:
    """The error for a schedule that is not the one that was accounted for."""
    return SettingError(
        "schedule is another one than was accounted: other clients take part in other steps, so the epsilon is "
        "another one. Run the schedule for which the rule was accounted, made with the same seed, or give "
        "jafl.simulate what jafl.private(...) returns without a schedule: it is accounted for the one that runs.",
        setting="schedule",
    )


def check_digests(accounted: np.ndarray, digests: np.ndarray) -> None:
    """Raises SettingError unless ``digests`` are those that were accounted for."""
    same = np.all(digests == accounted, axis=1)
    if not same[0]:
        raise other_schedule()
    if not same[1]:
        raise SettingError(
            "federation holds other numbers of examples than were accounted, and the weights of the rule follow from "
            "them: so the epsilon is another one. Give jafl.simulate what jafl.private(...) returns: it is accounted "
            "for the federation that trains.",
            setting="federation",
        )
