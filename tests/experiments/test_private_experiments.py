"""What the experiments with differential privacy declare, against what is accounted."""

import pytest

from experiments.harness import Rate
from experiments.harness.declare.assumed import assumed_source
from experiments.papers.fedbuff import fedbuff_fig4 as fig4
from experiments.papers.fedbuff import fedbuff_fig8 as fig8
from experiments.papers.fedbuff import fedbuff_table3 as table3
from experiments.papers.ours import privacy_of_schedules
from jafl.config.builders.data import make_source
from jafl.config.settings import Settings
from jafl.privacy.amplified import amplified_epsilon

SIZES = {
    "desk": (fig4.DESK_NOISE, {"sampling_rate": 100 / 4400, "rounds": 40, "delta": 1e-4}),
    "paper": (fig4.PAPER_NOISE, {"sampling_rate": 1000 / fig4.PAPER_CLIENTS, "rounds": 600, "delta": 1e-7}),
}


def test_the_sizes_are_those_of_the_experiment():
    world = fig4.WORLD
    _, desk = SIZES["desk"]
    assert desk["sampling_rate"] == world["concurrency"] / world["num_clients"]
    assert desk["rounds"] == world["client_trips"] / world["concurrency"]
    assert desk["delta"] == world["privacy.delta"]
    _, paper = SIZES["paper"]
    assert paper["rounds"] == fig4.PAPER_WORLD["client_trips"] / fig4.PAPER_WORLD["concurrency"]
    assert all(sorted(noise) == fig4.EPSILONS for noise, _ in SIZES.values())


@pytest.mark.parametrize("experiment", [fig4.EXPERIMENT, fig8.EXPERIMENT])
def test_figures_4_and_8_start_from_within_the_ranges_of_their_own_search(experiment):
    scale = experiment.scales["desk"]
    space = scale.search.space
    assert not scale.search.spaces
    for arms in scale.tuned.values():
        assert list(arms) == list(scale.arms)
        for settings in arms.values():
            assert {*settings} == {*space}
            for name, value in settings.items():
                own = space[name]
                assert own.low <= value <= own.high if isinstance(own, Rate) else value in own


def test_seeds_are_others_than_those_that_were_looked_at():
    """Those of version 1 of the protocol among them. Figures 4 and 8 share seeds of results, and none of searches."""
    scales = [each.EXPERIMENT.scales["desk"] for each in (fig4, fig8, table3)]
    for scale in scales:
        assert not {*scale.seeds, *scale.search.seeds} & {*range(300)}
    assert not {*scales[0].search.seeds} & {*scales[1].search.seeds}


def test_what_the_paper_does_not_ask_is_counted_apart():
    for experiment in (fig4.EXPERIMENT, fig8.EXPERIMENT, table3.EXPERIMENT):
        for claim in experiment.claims:
            true = "true" in claim.sentence or "in truth" in claim.sentence
            own = true or fig4.CONSTANT in claim.sentence  # which has no staleness weight behind the clipping
            assert claim.own == own, claim.sentence
            assert (claim.published == "-") == own
    assert all(claim.own for claim in privacy_of_schedules.EXPERIMENT.claims)


@pytest.mark.full
def test_at_paper_size_as_many_clients_train_as_the_noise_is_for():
    settings = Settings(
        **{
            "dataset": "sentiment140",
            "split.validation_fraction": fig4.PAPER_WORLD["split.validation_fraction"],
        }
    )
    source = make_source(settings, assumed_source)
    assert source.natural_partition.num_clients == fig4.PAPER_CLIENTS
    scale = fig4.EXPERIMENT.scales["paper"]
    assert "split_by" not in scale.settings and "data_fraction" not in scale.settings
    assert scale.arms[fig4.FEDBUFF + fig4.PASS]["client_trips"] <= fig4.PAPER_CLIENTS


@pytest.mark.full
@pytest.mark.parametrize("size, epsilon", [("desk", 6.0), ("desk", 24.0), ("paper", 12.0)])
def test_the_noise_of_amplified_rounds_is_what_the_epsilon_needs(size, epsilon):
    noise, rounds = SIZES[size]
    assert amplified_epsilon(noise[epsilon], **rounds) == pytest.approx(epsilon, rel=2e-3)
