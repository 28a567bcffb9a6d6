"""What the control says, for the page of all results: how many of its verdicts are false, and how many would be."""

import pathlib
from collections.abc import Mapping
from typing import Any

from experiments.harness.declare.declarations import EQUIVALENT, UNDECIDED
from experiments.harness.report import report
from experiments.harness.run import control, expected_control
from experiments.harness.statistics import ALPHA
from jafl.base.errors import require

# {name of a control, as of its folder in runs and of its file in docs/results: whether its grids are coarse}.
CONTROLS = {"control": False, "control-coarse": True}


def read(paths: Mapping[str, pathlib.Path]) -> dict[str, dict[str, Any]]:
    """{name of a control: its content} of those that are there; SettingError for coarse grids where none should be.

    paths: {name, as in ``CONTROLS``: its file}.
    """
    contents = {}
    for name, path in paths.items():
        if path.is_file():
            content = control.read(path)
            allowed = f"{CONTROLS[name]}, as {name} is the control {'with' if CONTROLS[name] else 'without'} --coarse"
            require(content["coarse"] == CONTROLS[name], f"coarse of {path}", content["coarse"], allowed)
            contents[name] = content
    return contents


def sentences(content: Mapping[str, Any], coarse: Mapping[str, Any] | None) -> list[str]:
    """How many verdicts are false where a rule is compared with itself, by way of judging and by experiment.

    Args:
      content: of ``control.json``.
      coarse: of the control with coarse grids, judged as the protocol has it; None without one.
    """
    ways = control.counts(content)
    protocols = next(iter(control.WAYS))
    if coarse:
        grids = f"with one grid of a factor of {control.COARSE:g} for all searches, whose best trial wins"
        ways[grids] = control.counts(coarse)[protocols]
    false, number = control.share(ways[protocols])
    lengths = [f"{name.replace('_', ' ')} {value:,}" for name, value in content["budget"].items()]
    expected = {way: f"{100 * share:.1f} %" for way, share in expected_control.shares(content).items()}
    heading = ["verdicts", "better or worse", "equivalent", "undecided"]
    by_way = [[way, *_verdicts_counted(counted), expected.get(way, "-")] for way, counted in ways.items()]
    by_way.append([expected_control.ONE_SEARCH, *["-"] * len(heading), expected[expected_control.ONE_SEARCH]])
    by_experiment = []
    for name, own in ways[protocols].items():
        spread = expected_control.spread(content["rows"][name])
        counted = _verdicts_counted({name: own})
        by_experiment.append([name, *counted, f"{spread.searches:.2g}", f"{spread.seeds:.2g}"])
    return [
        "A rule was compared with itself, under another name and with grids shifted by half a step, random points by "
        "half of their ranges, through search, runs and verdict. There is no difference to find: each "
        '"better" and "worse" is false. As the protocol has '
        f"it, {false} of {number} verdicts are ({100 * false / max(number, 1):.1f} %; at most {100 * ALPHA:g} % may "
        f"be{'; ' + ', '.join(lengths) if lengths else ''}). The other rows are as the protocol must not be.",
        'So few verdicts cannot tell a control that holds from one that fails a little. The column "expected" can: '
        "differences are drawn from the variances that the control has measured, between searches and between the "
        f"seeds of one search, {expected_control.DRAWS:,} times for each experiment, and judged by the same code. "
        "Their true mean is 0.",
        report.markdown([["judged", *heading, "expected better or worse"], *by_way]),
        *_of_coarse_grids(coarse),
        "As the protocol has it, by experiment, with the standard deviations of what a search adds and of a seed, in "
        "the unit of what is compared:",
        report.markdown([["experiment", *heading, "searches", "seeds"], *by_experiment]),
    ]


def _verdicts_counted(counted: Mapping[str, Mapping[str, int]]) -> list[str]:
    """How many verdicts there are, false ones with their share, equivalent and undecided."""
    false, number = control.share(counted)
    equal, undecided = (sum(own.get(name, 0) for own in counted.values()) for name in (EQUIVALENT, UNDECIDED))
    return [str(number), f"{false} ({100 * false / max(number, 1):.1f} %)", str(equal), str(undecided)]


def _of_coarse_grids(coarse: Mapping[str, Any] | None) -> list[str]:
    """What coarse grids do, by experiment; nothing without a control that has them."""
    if not coarse:
        return []
    counted = control.counts(coarse)[next(iter(control.WAYS))]
    shares = {name: control.share({name: own}) for name, own in counted.items()}
    false = ", ".join(f"{name} {share} of {number}" for name, (share, number) in shares.items())
    return [
        f"With one grid of a factor of {control.COARSE:g} for all searches, what the grid misses is an advantage of "
        f"one arm that no interval covers. Better or worse, by experiment: {false}. The protocol's grids are finer, "
        "and each search shifts its own by a random part of a step, which turns what it misses into variance."
    ]
