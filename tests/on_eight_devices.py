"""Cases of the tables against the slow reference, their trips spread over eight devices: a program of its own.

Trips of a step that each device folds for itself (additive rules), trips that train in waves (all others, and where
steps are small), one after the other and side by side.
"""

import pathlib
import sys

here = pathlib.Path(__file__).parent
sys.path[:0] = [str(here), str(here / "rules"), str(here.parent)]

import jax  # noqa: E402  (the path comes first)
import rule_cases  # noqa: E402
import test_engine_against_reference as engine_cases  # noqa: E402
from against_reference import compare  # noqa: E402

import jafl  # noqa: E402
from jafl.preparation import default_spread  # noqa: E402

CASES = (
    "fedbuff, buffer above the concurrency",
    "fedavg, over-selection",
    "local epochs, LR-Norm",
    "fedasync",
    "asgd; slow clients",
    "fednova; very unequal clients",
    "ace; very unequal clients",
    "aced, some leave; slow clients",
    "ca2fl; simultaneous arrivals",
    "wkafl; very unequal clients",
)


def check_what_is_chosen() -> None:
    """CPUs share the steps of an additive rule if these are large enough; other rules keep to one."""

    def devices(rule: jafl.Specification, buffer_size: int, **asked) -> int:
        schedule = jafl.asynchronous(
            num_clients=40,
            concurrency=40,
            buffer_size=buffer_size,
            delay=jafl.delays.exponential(),
            server_steps=3,
        )
        return default_spread(schedule, rule, **asked).number

    assert devices(jafl.rules.fedbuff(), 16) == 8
    assert devices(jafl.rules.fedbuff(), 15) == 1
    assert devices(jafl.rules.ca2fl(), 16) == 1
    assert devices(jafl.rules.ca2fl(), 16, devices=3) == 3
    assert devices(jafl.rules.asgd(), 1, together=True) == 8


def main() -> None:
    assert len(jax.devices()) == 8
    check_what_is_chosen()
    known = {case.name: case for case in (*engine_cases.CASES, *rule_cases.CASES)}
    for number, name in enumerate(CASES):
        compare(known[name], "float64", devices=8, together=number % 2 == 1)
    unequal = known["local epochs, LR-Norm"]
    compare(unequal, "float64", devices=2, together=True, width=8, lanes=4)  # two at a time on each
    compare(unequal, "float64", devices=3, together=True)


main()
