"""Parts of a sweep: several processes, on any machines, train each its own part of the runs.

A part is written ``3/16``: the third of 16. Which runs it has follows from the sweep alone, so processes that have
never heard of each other train different runs, and a process that is started again goes on with its own. The tasks of
a SLURM array are parts by themselves.
"""

import os
import re
from collections.abc import Mapping, Sequence

from jafl.base.errors import refusal, require

ID = "SLURM_ARRAY_TASK_ID"
# {what is read of a task's array: the variable that SLURM sets}
ARRAY = {name: f"SLURM_ARRAY_TASK_{name}" for name in ("COUNT", "MIN", "STEP")}
MAX = "SLURM_ARRAY_TASK_MAX"


def parse(text: str) -> tuple[int, int]:
    """The number of a part, from 1 on, and how many parts there are; SettingError for what is no part."""
    written = re.fullmatch(r"([0-9]+)/([0-9]+)", text)
    number, count = map(int, written.groups()) if written else (0, 0)
    allowed = "NUMBER/COUNT with a number from 1 to the count, such as 1/16 to 16/16"
    require(1 <= number <= count, "part", text, allowed, "Start one process for each number.")
    return number, count


def slurm_part(environment: Mapping[str, str] = os.environ) -> str | None:
    """The part that a task of a SLURM array is; None outside of an array.

    Ids may begin anywhere and go in steps.

    Raises:
      SettingError: for an array whose ids are a list, such as 1,2,9: a task cannot tell its place in it.
    """
    if ID not in environment:
        return None
    own = environment[ID]
    allowed = "an id of a range such as --array=0-15, --array=1-16%4 or --array=0-60:4"
    remedy = (
        "The ids of a list do not say which part a task is. Submit a range of as many ids, or pass --part to "
        "each task: 1/3, 2/3 and 3/3 to those of a list of three, 1/1 where each task has a sweep for itself."
    )
    error = refusal(ID, own, allowed, remedy)
    try:
        place = int(own)
        count, first, step = (int(environment[name]) for name in ARRAY.values())
        last = int(environment.get(MAX, first + (count - 1) * step))
        index, rest = divmod(place - first, step)
        is_range = (last - first) // step + 1 == count
    except (KeyError, ValueError, ZeroDivisionError):
        raise error from None
    if rest or not is_range or not 0 <= index < count:
        raise error
    return f"{index + 1}/{count}"


def deal(weights: Sequence[int], count: int) -> list[list[int]]:
    """The places of ``weights`` in ``count`` parts: the heaviest first, each to the part that is lightest by then.

    Examples:
      >>> deal([1, 8, 2, 4], 2)
      [[1], [3, 2, 0]]
    """
    dealt: list[list[int]] = [[] for _ in range(count)]
    loads = [0] * count
    for place in sorted(range(len(weights)), key=lambda place: -weights[place]):
        lightest = loads.index(min(loads))
        dealt[lightest].append(place)
        loads[lightest] += weights[place]
    return dealt
