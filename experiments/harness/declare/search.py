"""The equal search: every arm gets as many trials, judged on validation examples, in several independent searches.

A number that matters by its ratio (``Rate``) is searched coarsely first, by a factor of 2.5. Where the best value
lies at an end of what was tried, the range grows. Then come finer steps, by 1.3, around the best value; what is found
is the optimum of a parabola through these, in the logarithm of the rate. The best trial by itself would be one that
was lucky.

Each search has seeds of its own, and its grid is shifted by a random part of a step: so what differs between searches
is all that chance does to a search, and an interval over searches covers it (docs/protocol.md).
"""

import dataclasses
import functools
import hashlib
import inspect
import itertools
import json
import math
from collections.abc import Generator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from experiments.harness.declare.declarations import (
    LogUniform,
    OneGrid,
    Rate,
    Scale,
    Search,
    Space,
    coarse_points,
)
from jafl.base.errors import SettingError
from jafl.config import grid

EXTENSIONS, BEYOND = 3, 2  # how often a range grows at most, and by how many steps at a time
REACH = 2  # finer steps on each side of the best coarse value
FAILED = -math.inf  # the score of a trial whose every run diverged, or never reached the target

Trial = dict[str, Any]
Asking = Generator[
    list[Trial], list[float], Any
]  # yields trials, is sent their scores, higher ones being better


class Found(NamedTuple):
    """What one search found for an arm.

    Attributes:
      settings: those that it chose.
      edges: the settings whose best value still lay at an end of all that was tried.
      failed: whether every trial failed, so that nothing was found.
    """

    settings: Trial
    edges: tuple[str, ...] = ()
    failed: bool = False


class Cell(NamedTuple):
    """What is searched for by itself: an arm, in one of the searches, under one condition.

    Attributes:
      label: the arm's.
      number: of the search, from 0.
      condition: written as its folder; "" where one winner holds under all conditions.
    """

    label: str
    number: int
    condition: str


def climb(search: Search, label: str, number: int) -> Generator[list[Trial], list[float], Found]:
    """One search for one arm: yields lists of trials, is sent their scores (higher is better), returns what it found.

    Args:
      search: as the experiment's file declares it.
      label: the arm's.
      number: of the search: it decides random points, and by which part of a step the coarse grid is shifted.

    Raises:
      SettingError: if random trials are requested without their number.
    """
    space = search.spaces.get(label, search.space)
    rng = np.random.default_rng((search.seed, number))
    listed = {name: values for name, values in space.items() if not isinstance(values, (Rate, LogUniform))}
    rates = {name: values for name, values in space.items() if isinstance(values, Rate)}
    offset = search.offsets.get(label, 0.0)
    if any(isinstance(values, LogUniform) for values in space.values()):
        return (yield from _random(search, space, rng, offset))
    bases = [dict(zip(listed, values, strict=True)) for values in itertools.product(*listed.values())]
    if not rates:
        scores = yield bases
        return Found(bases[int(np.argmax(scores))], failed=max(scores) == FAILED)
    shifts = {name: 0.5 if isinstance(search, OneGrid) else rng.random() for name in rates}
    points = {
        name: coarse_points(rate, search.factor, (shifts[name] + offset) % 1) for name, rate in rates.items()
    }
    here: Trial = {name: values[len(values) // 2] for name, values in points.items()}
    known: dict[str, float] = {}
    edges = []
    for place, (name, values) in enumerate(points.items()):
        starts = [{**here, **base} for base in bases] if not place else [here]
        here, at_edge = yield from _scan(space, starts, name, values, search.factor, known)
        edges += [name] if at_edge else []
    failed = max(known.values()) == FAILED
    fine = search.fine
    for name in rates if fine else ():
        assert fine
        values = [_rounded(here[name] * fine**step) for step in range(-REACH, REACH + 1)]
        yield from _score(space, [{**here, name: value} for value in values], known)
        scores = [known[_key(space, {**here, name: value})] for value in values]
        here = {**here, name: optimum(values, scores)}
    return Found({name: here[name] for name in space}, tuple(edges), failed)


def _random(search: Search, space: Space, rng: np.random.Generator, offset: float) -> Asking:
    """Random combinations: the same shares of the ranges for each arm, but for an ``offset``."""
    if not search.trials:
        raise SettingError("trials of a search is None, but random trials need their number.")
    trials = [
        {name: _draw(values, (rng.random() + offset) % 1) for name, values in space.items()}
        for _ in range(search.trials)
    ]
    scores = yield trials
    best = trials[int(np.argmax(scores))]
    ranges = {name: values for name, values in space.items() if isinstance(values, LogUniform)}
    edges = tuple(name for name, values in ranges.items() if _near_an_end(values, best[name]))
    return Found(best, edges, max(scores) == FAILED)


def _draw(values: Sequence[Any] | LogUniform | Rate, share: float) -> Any:
    if isinstance(values, (LogUniform, Rate)):
        return _rounded(math.exp(math.log(values.low) + share * math.log(values.high / values.low)))
    return values[int(share * len(values))]


def _near_an_end(values: LogUniform, value: float) -> bool:
    share = math.log(value / values.low) / math.log(values.high / values.low)
    return not 0.05 <= share <= 0.95


def _scan(
    space: Space,
    starts: Sequence[Trial],
    name: str,
    values: Sequence[float],
    factor: float,
    known: dict[str, float],
) -> Asking:
    """Tries values of one rate from each start; the range grows where its best value lies at an end.

    Returns:
      The best trial, and whether it still lies at an end.
    """
    tried = [list(values) for _ in starts]
    yield from _score(space, _trials(starts, name, tried), known)
    for _ in range(EXTENSIONS):
        more = [
            _beyond(space, start, name, own, factor, known) for start, own in zip(starts, tried, strict=True)
        ]
        if not any(more):
            break
        yield from _score(space, _trials(starts, name, more), known)
        tried = [sorted([*own, *new]) for own, new in zip(tried, more, strict=True)]
    best = max(_trials(starts, name, tried), key=lambda trial: known[_key(space, trial)])
    rest = {other: value for other, value in best.items() if other != name}
    (own,) = (
        own
        for start, own in zip(starts, tried, strict=True)
        if rest == {other: value for other, value in start.items() if other != name}
    )
    return best, bool(_beyond(space, best, name, own, factor, known))


def _trials(starts: Sequence[Trial], name: str, values: Sequence[Sequence[float]]) -> list[Trial]:
    return [{**start, name: value} for start, own in zip(starts, values, strict=True) for value in own]


def _beyond(
    space: Space,
    start: Trial,
    name: str,
    values: Sequence[float],
    factor: float,
    known: Mapping[str, float],
) -> list[float]:
    """The next values outwards, if the best one lies at an end; none where every trial failed."""
    scores = [known[_key(space, {**start, name: value})] for value in values]
    if max(scores) == FAILED:
        return []
    best = values[int(np.argmax(scores))]
    steps = [factor**step for step in range(1, BEYOND + 1)]
    if best == max(values):
        return [_rounded(best * step) for step in steps]
    return [_rounded(best / step) for step in steps] if best == min(values) else []


def _score(space: Space, trials: Sequence[Trial], known: dict[str, float]) -> Asking:
    """Asks for the scores of trials that are not known yet."""
    new = list({_key(space, trial): trial for trial in trials if _key(space, trial) not in known}.values())
    if new:
        scores = yield [{name: trial[name] for name in space} for trial in new]
        known.update(zip((_key(space, trial) for trial in new), scores, strict=True))


def _key(space: Space, trial: Mapping[str, Any]) -> str:
    return grid.folder({name: trial[name] for name in space})


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")


def optimum(values: Sequence[float], scores: Sequence[float]) -> float:
    """Where a parabola in the logarithm of a rate, fitted to scores of trials, is highest between its ends.

    Trials that failed are left out; of fewer than three others the best one is returned.

    Args:
      values: [n] rates, increasing.
      scores: [n], higher is better; ``FAILED`` of a trial that failed.

    Examples:
      >>> optimum([1.0, 2.0, 4.0], [0.0, 1.0, 0.0])
      2.0
    """
    kept = [(math.log(value), score) for value, score in zip(values, scores, strict=True) if score > FAILED]
    if len(kept) < 3:
        return values[int(np.argmax(scores))]
    places, heights = np.array(kept).T
    middle = places.mean()
    # Of equal scores rounding would choose one: without their level they are 0, and the middle, the first, is taken.
    curve = np.polynomial.Polynomial.fit(places - middle, heights - heights[0], 2, domain=[-1, 1])
    ends = [places[0] - middle, places[-1] - middle]
    candidates = [0.0, *ends, *(root for root in curve.deriv().roots().real if ends[0] < root < ends[1])]
    return _rounded(math.exp(max(candidates, key=curve) + middle))


def check_equal(search: Search, labels: Sequence[str]) -> dict[str, list[Trial]]:
    """{label: the trials of its first search}, if no range grows.

    Raises SettingError unless every arm that is searched for has as many, over ranges of equal ratio.
    """
    tried = {label: _unextended(search, label, 0) for label in labels}
    numbers = {label: len(settings) for label, settings in tried.items() if settings}
    if len(set(numbers.values())) > 1:
        raise SettingError(f"The search is not equal: trials of the arms are {numbers}.")
    ratios: dict[tuple[str, ...], dict[str, float]] = {}  # of arms that are searched for in the same settings
    for label in numbers:
        space = search.spaces.get(label, search.space)
        for name, values in space.items():
            if isinstance(values, Rate):
                ratios.setdefault((name, *space), {})[label] = _rounded(values.high / values.low)
    for (name, *_), own in ratios.items():
        if len(set(own.values())) > 1:
            raise SettingError(f"The search is not equal: ratios of the ranges of {name} are {own}.")
    return tried


def _unextended(search: Search, label: str, number: int) -> list[Trial]:
    """The trials of a search in which the middle of each range is the best: no range grows."""
    space = search.spaces.get(label, search.space)
    if not space:
        return []
    asking, trials = climb(search, label, number), list[Trial]()
    try:
        asked = next(asking)
        while True:
            trials += asked
            asked = asking.send([_height(search, space, trial) for trial in asked])
    except StopIteration:
        return trials


def _height(search: Search, space: Space, trial: Trial) -> float:
    """Highest in the middle of every range."""
    return -sum(
        math.log(trial[name] / math.sqrt(values.low * values.high)) ** 2
        for name, values in space.items()
        if isinstance(values, Rate)
    )


def cells(scale: Scale) -> list[Cell]:
    """What is searched for by itself, in order."""
    search = scale.search
    assert search
    conditions = (
        [grid.folder(each) for each in grid.product(scale.conditions)] if search.per_condition else [""]
    )
    searched = [label for label in scale.arms if search.spaces.get(label, search.space)]
    return [
        Cell(label, number, condition)
        for condition in conditions
        for label in searched
        for number in range(search.searches)
    ]


def rounds(
    scale: Scale,
) -> Generator[dict[Cell, list[Trial]], Mapping[Cell, Sequence[float]], dict[Cell, Found]]:
    """All searches side by side: yields the trials that are due, is sent their scores, returns what was found."""
    assert scale.search
    asking = {cell: climb(scale.search, cell.label, cell.number) for cell in cells(scale)}
    due = {cell: next(own) for cell, own in asking.items()}
    found: dict[Cell, Found] = {}
    while due:
        scores = yield due
        following: dict[Cell, list[Trial]] = {}
        for cell in due:
            try:
                following[cell] = asking[cell].send([*scores[cell]])
            except StopIteration as end:
                found[cell] = end.value
        due = following
    return {cell: found[cell] for cell in asking}


def planned(scale: Scale) -> dict[Cell, list[Trial]]:
    """The trials of each cell if no range grows: how many there are, and of which kind."""
    assert scale.search
    return {cell: _unextended(scale.search, cell.label, cell.number) for cell in cells(scale)}


def seeds_of_search(search: Search, number: int) -> list[int]:
    """The seeds that the trials of one search are run with."""
    return list(search.seeds[number :: search.searches])


def world(scale: Scale) -> str:
    """A digest of what a search is of: settings, arms, conditions, overrides, what is tried, and the score.

    Winners of another world fit that one.
    """
    search = scale.search and {
        field.name: described(getattr(scale.search, field.name)) for field in dataclasses.fields(scale.search)
    }
    content = [
        described(part) for part in (scale.settings, scale.arms, scale.conditions, list(scale.overrides))
    ]
    return hashlib.sha256(json.dumps([*content, search], sort_keys=True).encode()).hexdigest()[:16]


def described(value: Any) -> Any:
    """What a declaration holds, as JSON: a function by its name and by what it encloses."""
    if isinstance(value, Mapping):
        return {str(key): described(part) for key, part in value.items()}
    if isinstance(value, functools.partial):
        return [described(value.func), described(value.args), described(value.keywords)]
    if inspect.isfunction(value):
        return [value.__qualname__, described(inspect.getclosurevars(value).nonlocals)]
    return [*map(described, value)] if isinstance(value, (list, tuple)) else repr(value)
