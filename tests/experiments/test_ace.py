"""ACE's experiments: what the paper says of arms and worlds, and the numbers that are theirs alone."""

import math
import pathlib

import numpy as np
import pytest
from tiers import in_tiers

from experiments.harness import Runs
from experiments.harness.declare import discovery
from experiments.harness.judge.verdicts import samples
from experiments.harness.report import report
from experiments.papers.ace import (
    ace_bounds,
    ace_fig2,
    ace_fig3,
    ace_figa1,
    ace_section5,
    ace_table1,
    ace_tablea1,
    ace_tablea2,
)
from jafl.config import grid
from jafl.config.settings import Settings
from jafl.runs.directory.reader import PastRun
from jafl.sweeps.seed_means import ArmRuns

NAMES = [name for name in discovery.names() if name.startswith("ace_")]


def some_run(seed, evaluations):
    content = {"algorithm": "asgd", "label": "a", "seed": str(seed)}
    return PastRun(pathlib.Path(f"a-seed{seed}"), content, evaluations, {"status": "finished"})


def flat(seed, accuracy, steps=(0, 500, 1000)):
    rows = [{"server_step": step, "client_trips": step, "test_accuracy": accuracy} for step in steps]
    return some_run(seed, rows)


@pytest.mark.full
def test_every_figure_and_table_of_the_paper_has_its_file_and_states_an_analysis():
    figures = {discovery.load(name).figure for name in NAMES}
    assert figures == {
        *(
            "figure 2",
            "figure 2, delays in server iterations",
            "figure 2, slow clients richest in labels 0-2",
            "figure 3",
            "figure a.1",
            "figure a.2",
            "figure a.3",
            "section 5",
            "bounds (2) to (4)",
        ),
        *("table 1", "tables a.1 and a.3", "tables a.2 and a.6"),
    }
    for name in NAMES:
        assert discovery.load(name).scales["desk"].analysis, name


@pytest.mark.few_in_full(9)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("scale", in_tiers(("desk", "paper"), ("desk",)))
def test_fedbuff_is_algorithm_a2_which_has_no_staleness_weight(name, scale):
    size = discovery.load(name).scales[scale]
    seen = 0
    for condition in grid.product(size.conditions):
        every = grid.under(Settings.from_mapping(size.settings), size.arms, condition, size.overrides)
        for label, settings in every.items():
            if settings.algorithm_name == "fedbuff":
                seen += 1
                assert str(settings.value("algorithm.staleness_weight")) == "constant", label
    assert seen or name in ("ace_fig3", "ace_figa3") or not size.arms


def test_both_worlds_are_run_and_the_primary_claims_are_about_the_papers_where_it_has_one():
    for scale in ("desk", "paper"):
        ours, papers = (discovery.load(name).scales[scale] for name in ("ace_fig2_richest_last", "ace_fig2"))
        assert ours.settings == papers.settings | {"richest_last": "0-2"}
        assert "richest_last" not in papers.settings and papers.conditions == ours.conditions
        assert (ours.arms, ours.seeds) == (papers.arms, papers.seeds), "worlds differ in who is slow alone"
        assert discovery.load("ace_section5").scales[scale].conditions["richest_last"] == ["", "0-2"]
    for name, own in (("ace_fig2", False), ("ace_fig2_richest_last", True), ("ace_section5", False)):
        experiment = discovery.load(name)
        analysis = experiment.scales["desk"].analysis
        (claim,) = [c for c in experiment.claims if c.sentence == analysis.primary and "desk" in c.scales]
        assert claim.own == own and "richest" not in claim.sentence
    assert all(claim.own for claim in discovery.load("ace_fig2_richest_last").claims)


def test_no_seed_of_a_search_is_one_of_the_results_whichever_experiment_they_are_of():
    sizes = [size for name in NAMES for size in discovery.load(name).scales.values()]
    searched = {seed for size in sizes if size.search for seed in size.search.seeds}
    assert searched.isdisjoint(seed for size in sizes for seed in size.seeds)


@pytest.mark.parametrize("name", NAMES)
def test_conditions_are_called_by_short_names_that_differ(name):
    experiment = discovery.load(name)
    for size in experiment.scales.values():
        conditions = grid.product(size.conditions) if size.conditions else []
        headings = [report.under(experiment, grid.folder(condition)) for condition in conditions]
        assert len(set(headings)) == len(headings)
        assert all(text and "=" not in text.replace("beta = ", "") and len(text) < 65 for text in headings), (
            headings
        )


def test_the_measured_table_has_the_words_of_conditions_and_other_values_as_they_are():
    slow = ace_fig2.SLOW_FIFTH[30]
    table = [["richest_last", "partition.alpha", "delay", "arm"], ["(empty)", "0.7", slow, slow]]
    headings = report.in_words(table, ace_section5.EXPERIMENT)
    assert headings == [table[0], ["-", "0.7", "beta = 30", slow]]


@pytest.mark.parametrize("name", NAMES)
def test_at_paper_size_a_search_has_one_winner_for_each_rule(name):
    search = discovery.load(name).scales["paper"].search
    assert search is None or not search.per_condition


@pytest.mark.parametrize("name", NAMES)
def test_a_claim_is_our_own_or_has_what_the_paper_shows_beside_it(name):
    for claim in discovery.load(name).claims:
        assert claim.own == (claim.published == "-"), claim.sentence


def test_claims_at_equal_trips_and_on_the_other_world_are_our_own():
    for name, ending in (("ace_tablea2", "equal trips"), ("ace_section5", "richest in labels 0-2")):
        for claim in discovery.load(name).claims:
            assert claim.own == claim.sentence.endswith(ending), claim.sentence
    claims = discovery.load("ace_fig3").claims
    own = [claim for claim in claims if claim.own]
    assert own == [
        claim
        for claim in claims
        if claim.worse in (ace_fig3.CA2FL_TRIPS, ace_fig2.FEDBUFF, ace_fig2.FEDBUFF_MOMENTUM)
        or claim.better.endswith(ace_fig3.LONGER)
    ]
    assert all(claim.scales == ("desk",) for claim in own)


def test_buffered_means_that_the_paper_leaves_out_are_searched_for_where_accuracies_are_compared():
    """FedBuff with server momentum, over rates that are a tenth of the plain mean's, and a claim of our own on it."""
    names = [name for name in NAMES if name.startswith(("ace_fig2", "ace_fig3", "ace_figa2", "ace_tablea2"))]
    assert len(names) == 6
    for name in names:
        experiment = discovery.load(name)
        size = experiment.scales["desk"]
        (momentum,) = (label for label in size.arms if "momentum" in label)
        plain = momentum.replace(", momentum 0.9", "")
        assert size.arms[momentum] == size.arms[plain] | {"server_optimizer.momentum": 0.9}
        own, others = (
            size.search.spaces.get(label, size.search.space)["server_learning_rate"]
            for label in (momentum, plain)
        )
        assert own.low == pytest.approx(others.low / 10, rel=0.01)
        assert [claim.own for claim in experiment.claims if claim.worse == momentum][:1] == [True]


def test_the_numbers_of_table_a2_stand_beside_its_own_size_alone():
    assert ace_tablea2.published_means("ACE", "FedBuff") == (
        "63.7 : 55.7 / 71.4 : 65.2 / 73.1 : 68.1 (DistilBERT), 68.7 : 60.4 / 76.6 : 70.3 / 78.2 : 73.1 (BERT)"
    )
    paper = {"model": "bert", "num_clients": 100, "partition.alpha": 1.0}
    assert ace_tablea2.published(paper, "CA2FL") == "74.1 ± 1.6 %"
    assert ace_tablea2.published({**paper, "model": "distilbert"}, "CA2FL") == "69.3 ± 1.5 %"
    assert ace_tablea2.published({"partition.alpha": 1.0}, "CA2FL") == "-"


def test_the_desk_sizes_have_the_papers_clients():
    """N = 100, of which M = 10 fill a buffer and 20 are under way with one; in table a.6, N = 20 and 10."""
    for name in NAMES:
        size = discovery.load(name).scales["desk"]
        if size.arms:
            clients, under_way = (20, 10) if name == "ace_tablea2" else (100, 20)
            assert size.settings["num_clients"] == clients, name
            buffered = [own for own in size.arms.values() if own["algorithm"] in ("ca2fl", "fedbuff")]
            if name == "ace_fig2_server_iterations":  # steps with all that is due, from all clients
                assert not any({"buffer_size", "concurrency"} & {*own} for own in size.arms.values())
                continue
            assert all(own["buffer_size"] == 10 for own in buffered), name
            assert {own["concurrency"] for own in buffered} <= {under_way, clients}, name
    (noise,) = {
        c.published for c in ace_table1.EXPERIMENT.claims if c.sentence == "ACE has less noise than FedBuff"
    }
    assert noise == "sigma^2 / 100 : sigma^2 / 10"


def test_clients_leave_at_half_of_each_arms_run():
    desk = ace_fig3.EXPERIMENT.scales["desk"]
    for label, own in desk.arms.items():
        settings = Settings.from_mapping(desk.settings).changed(own)
        assert settings.value("dropout.server_step") == settings.server_steps / 2, label


def test_the_rates_are_those_of_appendix_f4():
    assert ace_fig2.published_rate(100, 500) == 0.0894
    rates = ace_fig2.published_grid(100, 500)
    factors = [rate / math.sqrt(100 / 500) for rate in rates]
    assert np.allclose(factors, [0.1, 0.2, 0.5, 1, 2, 5, 10], rtol=0.01)


def test_the_readings_of_figure_2_differ_in_what_a_server_step_takes_and_in_what_delays_are():
    letter, counted = (
        discovery.load(f"ace_fig2{name}").scales["desk"] for name in ("", "_server_iterations")
    )
    assert counted.settings == letter.settings | {"protocol": "drawn_staleness(reports='due')"}
    assert counted.conditions == letter.conditions | {"delay": ["exponential(5)", "exponential(30)"]}
    plain = {ace_fig2.ACE, "ACED (10)", ace_fig2.CA2FL, ace_fig2.FEDBUFF}
    assert set(counted.arms) == plain | {ace_fig2.FEDBUFF_MOMENTUM}
    assert letter.search.space == counted.search.space and not plain & {*counted.search.spaces}
    for size in (letter, counted):
        assert size.analysis.primary == "ACE is above FedBuff, equal steps"
        # Table a.4: 0.2 sqrt(n / T) for both, and FedBuff's clients descend 0.05 of a gradient.
        assert size.analysis.published_ratio == 1 / ace_fig2.PUBLISHED_LOCAL_RATE == 20.0


def test_a_band_is_as_wide_as_the_seeds_are_apart():
    wide = ArmRuns({}, "wide", [flat(seed, 0.5 + 0.1 * seed) for seed in (-1, 0, 1)])
    narrow = ArmRuns({}, "narrow", [flat(seed, 0.8 + 0.01 * seed) for seed in (-1, 0, 1)])
    runs = Runs([wide, narrow])
    assert ace_figa1.widths(runs, "wide", {}) == pytest.approx({-1: 0.1, 0: 0.0, 1: 0.1})
    assert ace_figa1.wider("wide", "narrow", {})(runs) == pytest.approx([0.09, 0.0, 0.09])


def test_amplification_is_what_delay_costs_more_where_labels_are_skewed():
    four = ace_section5.panels({})
    accuracies = (0.80, 0.70, 0.90, 0.87)  # skewed: loses .10; mild: loses .03
    runs = Runs(
        [
            ArmRuns(condition, "a", [flat(0, accuracy), flat(1, accuracy)])
            for condition, accuracy in zip(four, accuracies, strict=True)
        ]
    )
    assert ace_section5.amplification("a", four)(runs) == pytest.approx([0.07, 0.07])
    assert ace_section5.amplification("a", four)(Runs(runs.groups[:3])) == []


def test_the_mean_of_a_term_is_over_the_measured_steps_alone():
    # Means over the steps since the last evaluation: 1 of 10 steps was measured, then 3 of 30, then none of 5.
    rows = [
        {"server_step": 0, "test_accuracy": 0.1},
        {"server_step": 10, "noise": 0.4, "measured": 0.1},
        {"server_step": 40, "noise": 0.2, "measured": 0.1},
        {"server_step": 45, "noise": 0.0, "measured": 0.0},
    ]
    # The first measured step had 4, the other three 2 each.
    assert ace_table1.mean_term(some_run(0, rows), "noise") == pytest.approx((4 + 3 * 2) / 4)
    assert math.isnan(ace_table1.mean_term(some_run(0, rows[:1]), "noise"))


def test_bound_2_as_printed_is_smaller_by_eta_in_its_second_term():
    steps = 4
    path = ace_bounds.Path(*(np.full(steps, value) for value in (0.5, 2.0, 0.0, 0.0, 0.0)), gain=0.1)
    eta = 0.01
    first = 4 * 0.1 / (steps * eta)
    assert ace_bounds.sides(path, eta, 3.0) == pytest.approx((0.5, first + 6.0))
    assert ace_bounds.sides(path, eta, 3 * eta) == pytest.approx((0.5, first + 0.06))
    uphill = ace_bounds.Path(*(np.full(steps, 1.0) for _ in range(5)), gain=-1.0)
    assert ace_bounds.room(uphill, eta, 3.0) == -1.0


@pytest.mark.full
@pytest.mark.parametrize("label", [ace_fig2.ACE, ace_fig2.FEDBUFF])
def test_on_quadratics_the_gradient_is_the_distance_from_the_mean_example(label):
    """The first measured gradient, and the first noise and bias, by hand."""
    path = ace_bounds.run(label, clients=20, steps=20, rate=0.01, seed=3, offset=1.0, start=2.0)
    federation = ace_bounds.quadratics(3, 20, 1.0)
    start = np.zeros(ace_bounds.DIMENSIONS)
    start[-1] = 2.0
    gradient = start - federation.y.mean(axis=0, dtype=np.float64)
    assert path.gradient[0] == pytest.approx(float(gradient @ gradient), rel=1e-5)
    assert path.delay[0] == pytest.approx(0.0, abs=1e-6), "all are at the first model"
    assert path.gain > 0
    assert path.bias.max() < 1e-9 if label == ace_fig2.ACE else path.bias.max() > 1e-3
    for factor in (3.0,):
        left, right = ace_bounds.sides(path, 0.01, factor)
        assert left <= right


@pytest.mark.full
def test_fedbuffs_server_keeps_one_sum_and_the_caching_rules_an_update_of_every_client():
    stored = {label: ace_tablea1.storage(label) for label in ace_tablea1.ALL}
    assert stored[ace_fig2.FEDBUFF] == (1.0, 0.0), "not the M updates of table a.3"
    assert [label for label, (_, cached) in stored.items() if cached] == list(ace_tablea1.CACHING)
    assert [ace_tablea1.trips_per_step(label, 0) for label in ace_tablea1.ALL] == [1, 10, 1, 10, 1, 1]


def test_a_claim_that_was_not_run_is_judged_by_nothing():
    runs = Runs([ArmRuns({"partition.alpha": 0.1}, "a", [flat(0, 0.5)])])
    for name in ("ace_figa1", "ace_section5", "ace_table1"):
        experiment = discovery.load(name)
        for claim in experiment.claims:
            if claim.differences is not None:
                assert [sample.differences for sample in samples(claim, runs)] == [[]], claim.sentence
