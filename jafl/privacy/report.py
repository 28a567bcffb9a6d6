"""What a private run claims, as a record that prints itself, and writes itself as JSON."""

import dataclasses
from typing import Any

import numpy as np

from jafl.base import display
from jafl.privacy.mechanisms import Mechanism
from jafl.privacy.sensitivity import Pattern

ADJACENCY = "zero-out"
UNIT = "one client"
_QUANTILES = {"median": 0.5, "99 %": 0.99, "99.9 %": 0.999}


@dataclasses.dataclass(frozen=True, eq=False)
class PrivacyReport:
    """What a run claims: three readings of epsilon, and each condition that the claim stands on.

    Attributes:
      mechanism: how the noise is spread over the steps.
      rule: the rule's name.
      clip_norm: L2 norm to which each trip's update is clipped.
      noise_multiplier: standard deviation of a node's noise, in units of clip_norm * unit.
      unit: the largest weight with which an update enters the direction.
      delta: of all epsilons.
      epsilon_once: as if every client took part once; ``jafl.privacy.READINGS`` explains this and the next two.
      epsilon_realised: of this very schedule.
      epsilon_worst_case: of the worst pattern like the schedule's, as a bound: no pattern has a larger one.
      epsilon_worst_found: of the worst pattern that was found: the truth lies between this and the bound.
      squared_sensitivities: {reading: float}, with "worst_found", in units of (clip_norm * unit)**2.
      per_client_epsilon: [N] float64, of each client's own trips; 0 for a client without any.
      pattern: how the schedule uses its clients (``most_trips``, ``smallest_gap``).
      num_clients: N, the clients of the schedule.
      num_steps: T, its server steps.
      num_trips: J, its applied trips.
      epsilon: what the noise was set for; None where the noise was given.
      epsilon_reading: the reading in which it was; None likewise.
      adjacency: "zero-out": a client's updates become 0, the schedule stays.
      unit_of_privacy: "one client".
      published: of a tree: "nodes", or "models", the prefix sums alone.
      conditions: sentences; the claim stands on each of them.
    """

    mechanism: Mechanism
    rule: str
    clip_norm: float
    noise_multiplier: float
    unit: float
    delta: float
    epsilon_once: float
    epsilon_realised: float
    epsilon_worst_case: float
    epsilon_worst_found: float
    squared_sensitivities: dict[str, float]
    per_client_epsilon: np.ndarray
    pattern: Pattern
    num_clients: int
    num_steps: int
    num_trips: int
    epsilon: float | None
    epsilon_reading: str | None
    conditions: tuple[str, ...]
    adjacency: str = ADJACENCY
    unit_of_privacy: str = UNIT
    published: str = "nodes"

    @property
    def noise_deviation(self) -> float:
        """The standard deviation of a node's noise in the direction: clip_norm * unit * noise_multiplier."""
        return self.clip_norm * self.unit * self.noise_multiplier if self.noise_multiplier else 0.0

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON has it, ``per_client_epsilon`` as quantiles; numbers that are not finite as text."""
        clients = {
            name: float(np.quantile(self.per_client_epsilon, q, method="higher"))
            for name, q in _QUANTILES.items()
        }
        fields = {
            "epsilon_once": self.epsilon_once,
            "epsilon_realised": self.epsilon_realised,
            "epsilon_worst_case": self.epsilon_worst_case,
            "epsilon_worst_found": self.epsilon_worst_found,
            "delta": self.delta,
            "unit_of_privacy": self.unit_of_privacy,
            "adjacency": self.adjacency,
            "published": self.published,
            "rule": self.rule,
            "mechanism": self.mechanism._asdict(),
            "clip_norm": self.clip_norm,
            "noise_multiplier": self.noise_multiplier,
            "unit": self.unit,
            "noise_deviation": self.noise_deviation,
            "epsilon": self.epsilon,
            "epsilon_reading": self.epsilon_reading,
            "squared_sensitivities": dict(self.squared_sensitivities),
            "epsilon_of_clients": clients,
            "most_trips": self.pattern.most_trips,
            "smallest_gap": self.pattern.smallest_gap,
            "clients_with_more_than_one_trip": self.pattern.repeated,
            "clients_with_a_trip": self.pattern.took_part,
            "num_clients": self.num_clients,
            "conditions": list(self.conditions),
        }
        return _finite_or_text(fields)

    @property
    def _delta(self) -> str:
        """delta, with a word where it is so large that one client may be published in full."""
        large = f", not below 1 / {self.num_clients:,} clients" if self.delta >= 1 / self.num_clients else ""
        return f"{self.delta:g}{large}"

    def __repr__(self) -> str:
        return display.one_line(
            "PrivacyReport",
            f"epsilon {display.number(self.epsilon_once)} once",
            f"{display.number(self.epsilon_realised)} realised",
            f"{display.number(self.epsilon_worst_case)} in the worst case",
            f"delta {self._delta}",
            str(self.mechanism),
            f"clip norm {self.clip_norm:g}",
            f"noise multiplier {self.noise_multiplier:.4g}",
            f"{display.count(self.pattern.most_trips, 'trip')} of a client at most",
        )

    def _repr_html_(self) -> str:
        facts = {
            "epsilon, as if each client took part once": self.epsilon_once,
            "epsilon, realised": self.epsilon_realised,
            "epsilon, worst case": self.epsilon_worst_case,
            "delta": self._delta,
            "mechanism": str(self.mechanism),
            "clip norm": self.clip_norm,
            "noise multiplier": self.noise_multiplier,
            "trips of a client, at most": self.pattern.most_trips,
            "clients with more than one trip": self.pattern.repeated,
        }
        if not np.isfinite(self.per_client_epsilon).all():
            return display.card("PrivacyReport", facts)
        picture = display.histogram(np.ceil(self.per_client_epsilon), "epsilon, rounded up", "clients")
        return display.card("PrivacyReport", facts, picture)


def _finite_or_text(value: Any) -> Any:
    """A value for JSON, which has no infinite numbers."""
    if isinstance(value, dict):
        return {name: _finite_or_text(part) for name, part in value.items()}
    if isinstance(value, float) and not np.isfinite(value):
        return str(value)
    return value
