"""Every experiment of a paper: its desk size on a few steps, its paper size as far as it needs no data."""

import dataclasses
import inspect
import json
import math
import sys
from collections.abc import Mapping

import pytest
from quick_compilation import quick_compilation  # noqa: F401
from tiers import in_tiers

from experiments.harness import LogUniform, Rate, Runs
from experiments.harness.declare import discovery, search, search_results
from experiments.harness.declare.declarations import SCALES
from experiments.harness.judge import verdicts
from experiments.harness.report import pictures
from experiments.harness.run import running, sweeps
from jafl.base.errors import SettingError
from jafl.config import grid
from jafl.config.resolution import refuse_unread, resolve_run

RESULTS = (discovery.FOLDER.parents[1] / "docs" / "results" / "README.md").read_text(encoding="utf-8")
NAMES = discovery.names()
STEPS = 12


@pytest.mark.parametrize("name", NAMES)
def test_the_file_says_what_it_is(name):
    experiment = discovery.load(name)
    text = sys.modules[discovery.module_name(name)].__doc__
    lines = inspect.cleandoc(text).splitlines()
    for heading in discovery.HEADINGS:
        assert any(line.startswith(heading) for line in lines), f"no line begins with {heading}"
    assert f"run.py experiment {name}" in text
    assert "desk" in experiment.scales and set(experiment.scales) <= set(SCALES)
    assert experiment.published.rows or experiment.published.note
    assert all(len(row) == len(experiment.published.heading) for row in experiment.published.rows)
    assert experiment.claims
    is_listed = f"({name}.md)" in RESULTS or f"| {name} |" in RESULTS  # the latter without results
    assert is_listed, "run python -m experiments.harness.report.pages"


def with_one_search(size):
    """The scale with what the first of its searches found alone."""
    first = {
        where: {label: search_results.settings_in(own, 0) for label, own in found.items()}
        for where, found in size.tuned.items()
    }
    return dataclasses.replace(size, tuned=first)


# Of private runs it takes seconds to find the noise.
PRIVATE = {"fedbuff_fig4", "fedbuff_fig4_fig9", "fedbuff_fig8", "fedbuff_table3"}


@pytest.mark.few_by_default(2)
@pytest.mark.parametrize("name", in_tiers(NAMES, set(NAMES) - PRIVATE))
@pytest.mark.parametrize("scale", in_tiers(SCALES, ("desk",)))
def test_the_settings_of_every_arm_fit_together(name, scale):
    experiment = discovery.load(name)
    if experiment.measure is not None or scale not in experiment.scales:
        return
    size, settings = sweeps.adapted(with_one_search(experiment.scales[scale]), {})
    sweep = sweeps.results_sweep(size, settings)
    assert sweep.arms == size.arms
    grid.check_arms(sweep.arms, sweep.overrides)
    conditions = grid.product(size.conditions)
    under = {
        grid.folder(each): grid.under(settings, sweep.arms, each, sweep.overrides) for each in conditions
    }
    refuse_unread(list(zip(conditions, under.values(), strict=True)))
    for own_arms in under.values():
        for label, own in own_arms.items():
            resolved = resolve_run(own, own.algorithm, 0, alone=len(size.arms) == 1)
            assert resolved.client_trips or resolved.server_steps, label
    for claim in experiment.claims:
        if scale in claim.scales and claim.differences is None:
            assert {claim.better, claim.worse} <= set(size.arms), claim.sentence
    if size.search:
        search.check_equal(size.search, list(size.arms))
        assert size.search.settings.get("split.validation_fraction"), "trials are judged on the test set"


@pytest.mark.parametrize("name", NAMES)
def test_the_search_and_its_results_agree(name):
    experiment = discovery.load(name)
    size = experiment.scales["desk"]
    if size.search is None:
        return
    spaces = {label: size.search.spaces.get(label, size.search.space) for label in size.arms}
    searched = {label for label, space in spaces.items() if space}
    conditions = [grid.folder(condition) for condition in grid.product(size.conditions)]
    wanted = conditions if size.search.per_condition else [""]
    if size.tuned:  # without, results say that nothing was searched for
        assert sorted(size.tuned) == sorted(wanted)
    for found in size.tuned.values():
        assert set(found) == searched
        for label, own in found.items():
            if not isinstance(own, Mapping):  # else what to start from, for all searches
                assert len(own) == size.search.searches, label
            for settings in [own] if isinstance(own, Mapping) else own:
                for setting, values in spaces[label].items():
                    assert _can_be_found(settings[setting], values), (label, setting, settings)
    for where, reasons in size.undecided.items():
        assert where in wanted and {*reasons} <= searched
    # A claim of its own differences is undecided where an arm is whose searches found nothing.
    trouble = {"": dict.fromkeys(size.arms, "why")}
    for claim in experiment.claims:
        if "desk" in claim.scales and claim.differences is not None:
            assert verdicts._why_undecided(claim, verdicts.Sample("", []), trouble), claim.sentence


def _can_be_found(value, values):
    """Whether a search over these values can find this one; the range of a rate grows."""
    if isinstance(values, Rate):
        return 0 < value < math.inf
    return values.low <= value <= values.high if isinstance(values, LogUniform) else value in values


# One of each paper, of different kinds; the other experiments are run as gates.
RUN = ("ace_fig2", "fedbuff_corollary1", "fedstaleweight_fig2", "wkafl_fig2")


@pytest.mark.full
@pytest.mark.parametrize("name", in_tiers(NAMES, ("wkafl_appendixD",), full=RUN))
def test_its_desk_size_runs(name, tmp_path):
    experiment, lines = discovery.load(name), []
    size = experiment.scales["desk"]
    # One value of each condition; the budget is not one of those that say how long a run is.
    typed = {setting: values[0] for setting, values in size.conditions.items()} | {"seed": "0"}
    typed |= {"server_steps": STEPS}
    if size.settings.get("dataset") == "fashion_mnist":  # which need not be here
        typed |= {"dataset": "mnist_1d", "dataset.examples": "70_000", "dataset.normalization": None}
    typed.pop("client_trips", None)
    folder = tmp_path / "out"
    status = running.run_paper_experiment(
        name, typed=typed, output_dir=folder, processes=1, show=lines.append, checkpoint_every=0
    )
    assert status == 0, lines
    content = json.loads((folder / "verdicts.json").read_text())
    verdicts = content["verdicts"]
    judged = [claim for claim in experiment.claims if "desk" in claim.scales]
    assert {verdict["claim"] for verdict in verdicts} <= {claim.sentence for claim in judged}
    table = (folder / "table.md").read_text(encoding="utf-8")
    assert table.startswith(f"# {name}, desk size")
    drawn = list(folder.rglob("*.png"))
    assert drawn
    assert all(picture.read_bytes().startswith(b"\x89PNG") for picture in drawn)
    if experiment.measure is None:
        runs = Runs.in_folder(folder / "runs")
        assert runs.labels == list(size.arms)
        assert all(f"| {label} |" in table for label in size.arms)
        assert all(len(group.runs) == 1 for group in runs.groups)
        assert {run.status for group in runs.groups for run in group.runs} == {"finished"}
        # What its page begins with.
        assert [row["arm"] for row in content["curves"]] == list(size.arms)
        assert all(row["across"] for row in content["curves"])
        assert pictures.draw(experiment, content).axes and pictures.caption(experiment, content)


def test_there_are_experiments_and_only_asked_for_ones_are_imported():
    assert "fedstaleweight_fig2" in NAMES
    assert "tune_presets" not in NAMES, "it declares none"
    assert [row[0] for row in discovery.listed()[1:]] == NAMES


def test_an_unknown_experiment_is_refused_with_the_nearest_name():
    with pytest.raises(SettingError, match="Did you mean 'fedstaleweight_fig2'"):
        discovery.load("fedstaleweight_fig3")
