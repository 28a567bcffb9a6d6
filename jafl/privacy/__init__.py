"""Differentially private federated learning: what a run's noise is worth, exactly, per client.

``account`` states the epsilon of a run from its schedule and its rule, before anything is trained; the other
functions are its parts. docs/privacy.md says what is claimed, and under which conditions.
"""

from jafl.privacy.accounting import (
    READINGS,
    Sensitivities,
    account,
    noise_for,
    sensitivities,
)
from jafl.privacy.amplified import amplified_epsilon, amplified_noise_multiplier
from jafl.privacy.gaussian import delta_of, deviations_of, epsilon_of
from jafl.privacy.mechanisms import MECHANISMS, Mechanism, encoder, make_mechanism, nodes, noising
from jafl.privacy.private import report_of
from jafl.privacy.report import PrivacyReport
from jafl.privacy.secure import secure_rules
from jafl.privacy.sensitivity import (
    PUBLISHED,
    Pattern,
    WorstCase,
    once,
    pattern,
    squared_sensitivity,
    worst_case,
)
from jafl.privacy.weights import check_eligible, eligible_rules, trip_weights

__all__ = [
    "MECHANISMS",
    "Mechanism",
    "PUBLISHED",
    "Pattern",
    "PrivacyReport",
    "READINGS",
    "Sensitivities",
    "WorstCase",
    "account",
    "amplified_epsilon",
    "amplified_noise_multiplier",
    "check_eligible",
    "delta_of",
    "deviations_of",
    "eligible_rules",
    "encoder",
    "epsilon_of",
    "make_mechanism",
    "nodes",
    "noise_for",
    "noising",
    "once",
    "pattern",
    "report_of",
    "secure_rules",
    "sensitivities",
    "squared_sensitivity",
    "trip_weights",
    "worst_case",
]
__dir__ = __all__.copy  # for ``dir`` and for completion at a prompt
