"""The pictures of pages of results: what is kept of curves, what is drawn, and who takes part in a profile."""

import dataclasses
import pathlib

import numpy as np
import pytest
from PIL import Image
from test_protocol import EXPERIMENT, SIZE

from experiments.harness import Claim, final, final_accuracy, steps_to, trips_to
from experiments.harness.judge import profiles
from experiments.harness.report import curves, pictures
from experiments.harness.results import Runs
from jafl.plots.canvas import COLORS
from jafl.runs.directory.reader import PastRun
from jafl.sweeps.seed_means import ArmRuns

FIRST, SECOND = "partition.alpha=0.1", "partition.alpha=10.0"


def run(seed, accuracies, status="finished"):
    """A run that is evaluated each ten steps."""
    evaluations = [
        {"server_step": 10 * n, "client_trips": 20 * n, "time": 1.5 * n, "test_accuracy": value}
        for n, value in enumerate(accuracies)
    ]
    config = {"seed": str(seed), "algorithm": "fedbuff", "target_accuracy": 0.8}
    return PastRun(pathlib.Path(f"a-seed{seed}"), config, evaluations, {"status": status})


def recorded(columns, *groups, claims=EXPERIMENT.claims):
    """The rows of arms under one condition."""
    experiment = dataclasses.replace(EXPERIMENT, columns=columns, claims=claims)
    runs = Runs([ArmRuns({"partition.alpha": 0.1}, label, list(own)) for label, own in groups])
    return curves.record(experiment, "desk", runs)


def test_what_is_kept_of_curves():
    rising = np.linspace(0.1, 0.9, 201)
    (a, b) = recorded(
        {"final": final("test_accuracy", 1)},
        ("a", [run(0, rising), run(1, rising - 0.02)]),
        ("b", [run(0, [0.1, 0.14]), run(1, [0.08, 0.3], "diverged")]),
    )
    assert (a["condition"], a["arm"], a["axis"], a["metric"]) == (FIRST, "a", "client_trips", "test_accuracy")
    assert len(a["across"]) <= curves.MOST_POINTS and a["across"][0] == 0 and a["across"][-1] == 4000
    # Two runs .02 apart: a standard deviation of .0141, over the root of two.
    assert a["error"] == [0.01] * len(a["mean"]) and (a["mean"][0], a["mean"][-1]) == (0.09, 0.89)
    spacing = np.diff(a["across"])
    assert spacing[0] < spacing[-1], "closer where curves bend"
    assert (a["value"], a["value_error"], a["never"], a["target"]) == (0.89, 0.01, 0, None)
    # The curve of b is that of the run that did not diverge; untrained models have .09 here.
    assert (b["seeds"], b["diverged"], b["mean"]) == (2, 1, [0.1, 0.14])
    assert (a["learnt"], b["learnt"]) == (2, 0)
    assert curves.without_learning({"curves": [a, b]}) == {(FIRST, "b")}
    assert curves.without_learning({}) == set()


def test_axis_target_and_column_are_those_of_the_claims():
    groups = (("a", [run(0, [0.1, 0.5, 0.9])]), ("b", [run(0, [0.1, 0.2, 0.3])]))
    columns = {"final accuracy": final_accuracy, "steps": steps_to(0.5)}
    fewer = Claim(sentence="a above b", better="a", worse="b", measure=steps_to(0.5), lower_is_better=True)
    a, b = recorded(columns, *groups, claims=[fewer])
    assert (a["axis"], a["target"], a["across"]) == ("server_step", 0.5, [0, 10, 20])
    assert (a["column"], a["value"], a["never"], b["never"]) == ("steps", 10, 0, 1)
    assert a["value_error"] is None, "one seed"
    # Without an axis in the primary claim, that of a column; its first column where it compares no arms.
    joined = Claim(sentence="a above b", differences=lambda runs: [1.0])
    a, _ = recorded(columns, *groups, claims=[joined])
    assert (a["axis"], a["column"]) == ("server_step", "final accuracy")
    unjudged = dataclasses.replace(EXPERIMENT, scales={"desk": dataclasses.replace(SIZE, analysis=None)})
    assert curves.record(unjudged, "desk", Runs([])) == [] == curves.record(EXPERIMENT, "desk", [{}])


def content(labels, conditions=(FIRST,), **changes):
    """Results with a row for each arm and condition."""
    row = {"seeds": 5, "diverged": 0, "learnt": 5, "axis": "server_step", "metric": "test_accuracy"}
    row |= {"target": None, "across": [0, 10], "mean": [0.1, 0.5], "error": [0.0, 0.01], "column": "trips"}
    row |= {"value": 0.5, "value_error": 0.01, "never": 0, **changes}
    rows = [{**row, "condition": condition, "arm": label} for condition in conditions for label in labels]
    return {"scale": "desk", "curves": rows}


def experiment(labels, alphas=(0.1, 10.0), **changes):
    arms = {label: {"algorithm": "fedbuff"} for label in labels}
    size = dataclasses.replace(SIZE, arms=arms, conditions={"partition.alpha": alphas}, search=None, tuned={})
    scales = {"desk": size}
    return dataclasses.replace(EXPERIMENT, scales=scales, **changes)


def test_a_figure_has_a_panel_for_each_condition_and_its_primary_arms_stand_out(tmp_path):
    labels = ["a", "c", "b", "c (as published)"]
    words = {"partition.alpha": {0.1: "much skew"}}
    own, results = experiment(labels, words=words), content(labels, (FIRST, SECOND), target=0.4)
    figure = pictures.draw(own, results)
    assert [panel.get_title() for panel in figure.axes] == ["much skew", "partition.alpha=10"]
    for panel in figure.axes:
        lines = {line.get_label(): line for line in panel.get_lines()}
        assert {"a", "b", "c"} <= {*lines} and "c (as published)" not in lines
        assert lines["a"].get_linewidth() == lines["b"].get_linewidth() > lines["c"].get_linewidth()
        assert len({lines[label].get_color() for label in "abc"}) == 3
        (band, *_) = panel.collections
        # Student's t with four degrees of freedom, 2.776, times .01.
        assert band.get_paths()[0].vertices[:, 1].max() == pytest.approx(0.5278, abs=1e-4)
    said = pictures.caption(own, results)
    assert "Thick: a and b, of the primary claim. Dashed: the target. Not drawn: c (as published)." in said
    pictures.save(figure, path := tmp_path / "x.png")
    with Image.open(path) as image:
        seen = {color for _, color in image.convert("RGB").getcolors(1 << 24)}
    for color in COLORS[:3]:
        wanted = [int(color[n : n + 2], 16) for n in (1, 3, 5)]
        assert min(np.abs(np.subtract(wanted, each)).max() for each in seen) <= 12, (
            "a thin line keeps its colour"
        )
    assert path.stat().st_size < 60_000


def test_of_many_conditions_six_are_drawn_and_the_primary_one_is_among_them():
    alphas = (1.0, 0.1, 2.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0)  # evenly chosen ones would lack the second
    own = experiment(["a", "b"], alphas)
    results = content(["a", "b"], [f"partition.alpha={value}" for value in sorted(alphas)])
    panels = pictures.draw(own, results).axes
    drawn = [float(panel.get_title().partition("=")[2]) for panel in panels if panel.get_visible()]
    assert len(drawn) == 6 and 0.1 in drawn and drawn[-1] == 9.0
    assert drawn == [value for value in alphas if value in drawn], "in the order of the file"
    left_out = pictures.caption(own, results).partition("Not drawn: ")[2].rstrip(".").split("; ")
    assert {float(each.partition("=")[2]) for each in left_out} == {*alphas} - {*drawn}


def test_a_table_has_points_and_so_has_a_figure_of_other_things():
    table = experiment(["a", "c", "b"], figure="table 1")
    results = content(["a", "c", "b"], never=2)
    (panel,) = pictures.draw(table, results).axes
    assert [label.get_text() for label in panel.get_yticklabels()] == ["b", "c", "a"], "from below"
    assert all(
        line.get_markerfacecolor() == "white" for line in panel.get_lines() if line.get_marker() == "o"
    )
    assert "Hollow" in pictures.caption(table, results) and "Large: a and b" in pictures.caption(
        table, results
    )
    for columns, points in (({"trips": trips_to(0.5)}, False), ({"staleness": lambda run: 1.0}, True)):
        assert pictures.has_points(dataclasses.replace(EXPERIMENT, columns=columns)) is points


def test_the_arms_of_a_claim_with_differences_of_its_own_are_those_that_it_names():
    claim = Claim(sentence="a above b", differences=lambda runs: [1.0])
    own = experiment(["a", "b", "ab"], claims=[claim])
    assert pictures.primary_arms(own, "desk", ["a", "b", "ab", "above b (2)"]) == ["a", "b"]


def test_a_rule_has_one_colour_on_all_pages():
    first = pictures.colors(["FedBuff", "FedAvgM", "x"])
    assert pictures.colors(["y", "FedAvgM", "FedBuff + DP-FTRL"])["FedBuff + DP-FTRL"] == first["FedBuff"]
    many = pictures.colors(["FedBuff, twice", "FedBuff", *map(str, range(9))])
    assert many["FedBuff"] == first["FedBuff"] and many["8"] == "0.6"
    assert len({*many.values()}) == len(COLORS) + 1


# Profiles


def world(**costs):
    return {"condition": "", "costs": costs}


def test_a_profile_is_of_worlds_that_all_its_arms_share():
    worlds = [
        world(a=1.0, b=2.0, c=1.0, **{"b (as published)": 0.1}),
        world(a=3.0, b=None, c=9.0, **{"b (as published)": 0.1}),
        world(a=1.0, b=1.0, d=0.5, **{"b (as published)": 0.1}),
        world(a=1.0, d=0.5, **{"b (as published)": 0.1}),
        world(d=1.0, e=2.0),
    ]
    # With b three of the four worlds of a are left, with c two, and with d none.
    (profile,) = profiles.profiles({"accuracy": worlds, "": worlds})
    assert (profile.arms, profile.worlds) == (["a", "b", "c"], worlds[:2])
    assert profile.rule == (
        "Accuracy: 2 worlds, of the 4 that a has; the arms that share them: a; b; c. 2 other arms are left out."
    )
    heading, *rows = profiles.table(profile)
    assert heading[:2] == ["arm", "lowest"]
    assert rows[0] == ["a", *["1.00"] * 6] and rows[1][:2] == ["c", "0.50"] and rows[2][1] == "0.00"
    assert rows[2][-1] == "0.50", "b failed in a world"
    (panel,) = pictures.draw_profile(profile, "a title").axes
    lines = {line.get_label(): line for line in panel.get_lines()}
    assert [*lines] == ["a", "c", "b"] and lines["b"].get_ydata()[-1] == 0.5
    assert profiles.profiles({"accuracy": worlds[:1], "time to a target": [world(a=1.0)] * 3}) == []


def test_costs_of_different_kinds_have_profiles_of_their_own():
    def kind(**fields):
        claims = [Claim(sentence="a above b", better="a", worse="b", **fields)]
        return profiles.kind(dataclasses.replace(EXPERIMENT, claims=claims), "desk")

    assert kind() == "accuracy"
    assert kind(measure=trips_to(0.5), lower_is_better=True) == "trips to a target"
    assert kind(measure=final("test_loss"), lower_is_better=True) == "", "neither"
