"""What an experiment's file declares: ``EXPERIMENT = PaperExperiment(...)``, in a file of ``experiments/papers``."""

import dataclasses
import math
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from experiments.harness.measures import Measure, final, final_accuracy, spread
from jafl.base.errors import is_number, require
from jafl.config.grid import Arms, Override
from jafl.config.settings import Settings

SCALES = ("desk", "paper")
PROTOCOL_VERSION = 2  # of docs/protocol.md
# Verdicts under the protocol (docs/protocol.md).
BETTER, WORSE, EQUIVALENT, UNDECIDED = "better", "worse", "equivalent", "undecided"


@dataclasses.dataclass(frozen=True)
class LogUniform:
    """Random values between ``low`` and ``high``, uniform in their logarithm."""

    low: float
    high: float


@dataclasses.dataclass(frozen=True)
class Rate:
    """A number that matters by its ratio, such as a learning rate: searched for from ``low`` to ``high``, and beyond.

    Where the best value lies at an end of the range, the range grows.
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        fits = is_number(self.low) and is_number(self.high) and 0 < self.low < self.high < math.inf
        require(fits, "a Rate", (self.low, self.high), "two numbers above 0, the lower one first")


def coarse_points(rate: Rate, factor: float, shift: float) -> list[float]:
    """The values of a rate that a search tries first.

    Args:
      rate: the range.
      factor: from one value to the next.
      shift: by which part of a step the values are moved, from 0 to 1; with 0.5 the first one is ``rate.low``.

    Examples:
      >>> coarse_points(Rate(1.0, 4.0), factor=2.0, shift=0.5)
      [1.0, 2.0, 4.0]
    """
    number = round(math.log(rate.high / rate.low) / math.log(factor)) + 1
    return [float(f"{rate.low * factor ** (place + shift - 0.5):.3g}") for place in range(number)]


Space = Mapping[str, Sequence[Any] | LogUniform | Rate]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Search:
    """The search for settings, the same for each arm: as many trials, seeds and client trips, several times over.

    Each of the ``searches`` is independent of the others: it has seeds of its own, its grid of rates is shifted by a
    random part of a step, and some seeds of the results are run with what it found. So the results' intervals cover
    what chance does to a search.

    Attributes:
      space: {setting: ``Rate``, or values to try, or ``LogUniform``}. All combinations of listed values are tried
        with the coarse values of the first rate; then the further rates, one after the other, and finer steps of
        each. With a ``LogUniform`` among them, ``trials`` random combinations are tried instead.
      spaces: {label: space} of arms with a space of their own (a rule on gradients has no clients' rate); of an equal
        number of trials, and ranges of equal ratio. An arm with the space {} is not searched for, and says so in the
        table.
      trials: how many random combinations there are.
      searches: how many independent searches there are.
      seeds: of all searches, dealt to them in turn; none of the results'.
      seed: decides random combinations and the shifts of grids. A replication moves it.
      factor: between coarse values of a rate.
      fine: between the finer ones; None: none, and the best trial wins (which the protocol does not allow).
      offsets: {label: a part of a step by which the arm's grids are shifted beside the others', and of the ranges its
        random points}, for the control.
      settings: of the trials alone; examples held out for validation at least.
      score: what a trial is judged by, the mean over seeds: on validation examples.
      lower_is_better: whether the lowest score wins, as of trips to a target.
      per_condition: whether each condition has its own winner; else one wins by its mean over the conditions.
    """

    space: Space
    spaces: Mapping[str, Space] = dataclasses.field(default_factory=dict)
    trials: int | None = None
    searches: int = 5
    seeds: Sequence[int] = (100, 101, 102, 103, 104)
    seed: int = 0
    factor: float = 2.5
    fine: float | None = 1.3
    offsets: Mapping[str, float] = dataclasses.field(default_factory=dict)
    settings: Mapping[str, Any] = dataclasses.field(
        default_factory=lambda: {"split.validation_fraction": 0.16}
    )
    score: Measure = final("validation_accuracy")
    lower_is_better: bool = False
    per_condition: bool = True


class OneGrid(Search):
    """A search as the protocol must not be, for the control: all of its searches try the same coarse values.

    What the grid misses is then no variance between searches, but an advantage of one arm over another.
    """


def server_rates(rates: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """{label: its server's learning rate} in the form of ``Scale.tuned``."""
    return {label: {"server_learning_rate": rate} for label, rate in rates.items()}


class Margin(NamedTuple):
    """The smallest difference that matters, in the unit of the measure, or as a share of the second arm's mean."""

    value: float
    relative: bool = False


ACCURACY_MARGIN, TRIPS_MARGIN = Margin(0.01), Margin(0.1, relative=True)


class ClaimElsewhere(NamedTuple):
    """The claim with this sentence of another experiment, which has run already: its verdict there counts."""

    experiment: str
    sentence: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Analysis:
    """How the claims of one size will be judged, stated before it is run. Checked by ``protocol.check``.

    Attributes:
      primary: the sentence of the one claim that the figure stands or falls by.
      under: the condition for which it does, where several are run.
      seeds: how many the results have; no more are added after a look at them.
      margin: of all claims that have none of their own.
      spread: expected standard deviation of the primary claim's differences over seeds; a share of the second arm's
        mean where the margin is relative.
      source: where ``spread`` is from.
      difference: the smallest difference that the primary claim should be decided at, if it expects one. Default: the
        margin.
      power: the least probability of that verdict, from which ``seeds`` follows.
      correction: test examples over training examples; 0 where no two seeds share examples.
      published_ratio: how many times the primary claim's first arm has the second one's server rate in the paper.
      why: {what it may depend on if the primary claim comes out otherwise, "the staleness weight (constant)": the
        sentence of the claim that tells, or a ``ClaimElsewhere``}.
      untuned: {label: why} of arms that take part in a claim and are not searched for while others are.
      tuned_under: the version of the protocol that ``Scale.tuned`` was found under; None: before it.
    """

    primary: str = ""
    under: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    seeds: int | None = None
    margin: Margin | None = None
    spread: float | None = None
    source: str = ""
    difference: float | None = None
    power: float = 0.8
    correction: float | None = None
    published_ratio: float | None = None
    why: Mapping[str, str | ClaimElsewhere] = dataclasses.field(default_factory=dict)
    untuned: Mapping[str, str] = dataclasses.field(default_factory=dict)
    tuned_under: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scale:
    """One size of an experiment.

    Attributes:
      settings: that all runs share (``jafl.config.settings``), the budget among them.
      arms: {label: settings} of what is compared; each names its ``algorithm``.
      conditions: {setting: values}, crossed with the arms and with each other.
      overrides: ``Override(condition, label or None, settings)``: what holds only there, over arms and conditions.
        What goes with a value of a condition stands here: a model with its data set.
      seeds: of the results.
      search: how settings are found by ``--tune``; None: nothing is searched for.
      tuned: what the searches have found: {condition: {label: [settings of each search]}}, the condition written as
        its folder, ``partition.alpha=0.1,delay.mean=5``, or "" for all conditions; one mapping in place of the list
        holds for all searches. Left out in a file: it is read from ``experiments/tuned``, which
        ``python -m experiments.harness.report.pages`` writes.
      undecided: {condition: {label: reason}} of arms whose searches found nothing, or ended at an edge: claims on
        them are undecided. Read from the same place.
      analysis: how its claims are judged, under the protocol; None: as before the protocol, which decides nothing.
      different_worlds: why arms live in different worlds (data, partition, delays, presence, failures, dropout) under
        one condition, a sentence; table.md has it. Left out: they do not, which is checked.
    """

    settings: Mapping[str, Any]
    arms: Arms = dataclasses.field(default_factory=dict)
    conditions: Mapping[str, Sequence[Any]] = dataclasses.field(default_factory=dict)
    overrides: Sequence[Override] = ()
    seeds: Sequence[int] = (0, 1, 2, 3, 4)
    search: Search | None = None
    tuned: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    undecided: Mapping[str, Mapping[str, str]] = dataclasses.field(default_factory=dict)
    analysis: Analysis | None = None
    different_worlds: str = ""

    def __post_init__(self) -> None:
        if self.search:
            both = sorted(set(self.seeds) & set(self.search.seeds))
            require(not both, "the search's seeds", both, "others than the results'")


class Differences(NamedTuple):
    """What ``Claim.differences`` may return.

    Attributes:
      values: [seeds], above 0 where they speak for the claim.
      censored: for each arm and condition that takes part, the share of its runs that never reached the target.
    """

    values: Sequence[float]
    censored: tuple[float, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Claim:
    """A sentence of the paper, and the difference that speaks for it when it is above 0.

    Attributes:
      sentence: as short as it can be, in words of one's own.
      better, worse: the labels of two arms: the difference is ``measure`` of the first minus that of the second, for
        each seed (the same world: partition, durations, initial model).
      measure: what is compared.
      lower_is_better: turns the difference round, as for trips to a target.
      under: the conditions for which it is judged, each by itself: those in which these settings have these values.
        Default: all.
      differences: in the place of the arms: a function of ``Runs`` (of the rows, for an experiment that measures
        without training) that returns the differences, one for each seed; of trips to a target as ``Differences``,
        which also tells how many runs never arrived.
      expected: "better", or "equivalent" where the paper claims that two things are equal, or "worse".
      scales: for which it is judged.
      margin: the smallest difference that matters. Default: that of the analysis.
      published: the paper's numbers for it, the first arm's before the second's: "31.9 : 104"; in words where it has
        none: "a figure".
      own: whether it is jafl's question, which the paper does not ask: counted separately.
      identity: whether it holds by definition, as where two arms are the same for these settings: it is checked, but
        is no evidence and counts as no claim.
    """

    sentence: str
    better: str = ""
    worse: str = ""
    measure: Measure = final_accuracy
    lower_is_better: bool = False
    under: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    differences: Callable[[Any], Sequence[float] | Differences] | None = None
    expected: str = BETTER
    scales: Sequence[str] = SCALES
    margin: Margin | None = None
    published: str = "-"
    own: bool = False
    identity: bool = False


@dataclasses.dataclass(frozen=True)
class Published:
    """The paper's numbers: a table as printed there, or a figure in words.

    Attributes:
      heading: of the columns.
      rows: of text.
      note: what a reader must know, the figure in words.
    """

    heading: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    note: str = ""


@dataclasses.dataclass(frozen=True)
class Context:
    """What an experiment that trains nothing is given.

    Attributes:
      scale: its size, with the seeds that were asked for.
      settings: the common settings, with what was typed beside its name.
      folder: where it may write pictures; it exists.
      show: gets each line of text that is meant for the user.
    """

    scale: Scale
    settings: Settings
    folder: pathlib.Path
    show: Callable[[str], None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class PaperExperiment:
    """A figure or table of a paper.

    Attributes:
      paper: FedBuff, ACE, ...
      figure: which of its figures or tables.
      title: what it shows, in a line.
      published: the paper's numbers.
      scales: {"desk": ..., "paper": ...}.
      claims: what the paper says of it.
      columns: {heading: measure} of the printed table: each is a mean over seeds with its standard error.
      beside: published text that stands in the table beside an arm's numbers: {label: text}, or a function of
        (condition, label).
      pictures: draws more than the default pictures: a function of the runs (the rows) and the folder to write to.
        The default: accuracy against server steps, trips and time in each condition's folder, and heat maps where
        something is swept.
      measure: for what needs no training: returns the table's rows, {heading: value}, in the place of arms.
      reads: the settings, beside seeds, that ``measure`` reads, and that may be typed.
      words: {setting: {value: text}}: what a condition is called on pages; an empty text leaves it out there.
      name: the file's; set when it is loaded.
    """

    paper: str
    figure: str
    title: str
    published: Published
    scales: Mapping[str, Scale]
    claims: Sequence[Claim] = ()
    columns: Mapping[str, Measure] = dataclasses.field(
        default_factory=lambda: {"final accuracy": final_accuracy, "spread": spread}
    )
    beside: Mapping[str, str] | Callable[[Mapping[str, Any], str], str] | None = None
    pictures: Callable[[Any, pathlib.Path], None] | None = None
    measure: Callable[[Context], list[dict[str, Any]]] | None = None
    reads: Sequence[str] = ("server_steps",)
    words: Mapping[str, Mapping[Any, str]] = dataclasses.field(default_factory=dict)
    name: str = ""
