"""Secure aggregation from settings: the rule that they make, and refusals by the settings' names."""

import pytest
from quick_compilation import quick_compilation  # noqa: F401
from tiers import in_tiers

import jafl
from jafl import rules
from jafl.config.builders.training import make_rule
from jafl.config.experiment import make_experiments
from jafl.config.resolution import resolve_run
from jafl.config.settings import Settings

SMALL = {
    "algorithm": "fedbuff",
    "model": "softmax",
    "client_trips": 60,
    "num_clients": 15,
    "concurrency": 10,
    "secure_aggregation": "secure(clip_norm=1, fraction_bits=14)",
}


def rule_of(**changes) -> jafl.Specification:
    settings = Settings(**{**SMALL, **changes})
    return make_rule(resolve_run(settings, settings.algorithm, 3))


def test_settings_make_the_rule():
    own = rules.fedbuff()
    expected = jafl.secure(own, clip_norm=1.0, fraction_bits=14, weight_bits=8, seed=3)
    assert repr(rule_of()) == repr(expected)
    fewer = jafl.secure(own, clip_norm=2.0, fraction_bits=12, weight_bits=5, seed=3)
    text = "secure(clip_norm=2, fraction_bits=12, weight_bits=5)"
    assert repr(rule_of(secure_aggregation=text)) == repr(fewer)
    private = rule_of(privacy="private(clip_norm=1, delta=1e-3, noise_multiplier=0.5)")
    assert repr(private.arguments["rule"]) == repr(expected)
    assert private.build().for_schedule is not None and private.arguments["noise_multiplier"] == 0.5


REFUSED = {
    "headroom": (
        {"secure_aggregation.fraction_bits": 24},
        "fraction_bits is 24.*fraction_bits=19 or weight_bits=3 would do",
    ),
    "bits": ({"secure_aggregation.weight_bits": 31}, "weight_bits is 31"),
    "algorithm": ({"algorithm": "ca2fl"}, "algorithm is ca2fl, with secure_aggregation"),
    "decomposed": ({"decompose_steps": 2}, "decompose_steps is 2"),
    "no clip": (
        {"secure_aggregation": "secure"},
        "clip_norm is None, but must be given where there is no privacy",
    ),
    "two clips": (
        {"privacy": "private(clip_norm=3, delta=1e-3, epsilon=1)"},
        "secure_aggregation.clip_norm is 1.0, but must be left out, or that of privacy, 3.0",
    ),
}


@pytest.mark.parametrize("case", in_tiers(REFUSED, ["headroom", "no clip"]))
def test_bad_settings_are_refused_by_their_names(case):
    changes, words = case
    with pytest.raises(jafl.SettingError, match=words):
        make_experiments(Settings.from_mapping({**SMALL}, changes))
