"""Private and secure runs over eight devices, beside those on one; a program of its own."""

import pathlib
import sys

here = pathlib.Path(__file__).parent
sys.path[:0] = [
    str(here),
    *(str(here.parent / room) for room in ("support", "reference", "rules")),
    str(here.parents[1]),
]

import jax  # noqa: E402  (the path comes first)
import numpy as np  # noqa: E402
import test_private_runs as private_runs  # noqa: E402
from test_secure import BITS, WORLD, directions, updates_of  # noqa: E402

import jafl  # noqa: E402
from jafl import rules  # noqa: E402

SCHEDULE = jafl.asynchronous(**{**WORLD, "num_clients": 40, "concurrency": 40, "buffer_size": 16})
HOW = {
    "a step shared by eight": {"devices": 8},
    "a step shared by three": {"devices": 3},
    "waves over eight": {"devices": 8, "plan": jafl.in_waves(SCHEDULE, 16)},
    "waves over eight, side by side": {"devices": 8, "plan": jafl.in_waves(SCHEDULE, 16), "together": True},
}


PRIVATE = {"clip_norm": BITS["clip_norm"], "noise_multiplier": 0.5, "delta": 1e-5, "mechanism": "independent"}
PRIVATE["noise_seed"] = 0


def check_same_bits(rule: jafl.Specification, updates: np.ndarray, ways: list[str]) -> None:
    """As on one device, trip by trip."""
    alone = directions(rule, SCHEDULE, updates, devices=1, plan=jafl.trip_by_trip(SCHEDULE))
    assert np.any(alone)
    for way in ways:
        shared = directions(rule, SCHEDULE, updates, **HOW[way])
        assert shared.tobytes() == alone.tobytes(), f"{rule}, {way}: {np.abs(shared - alone).max()}"


def check_private_runs() -> None:
    """Steps that the devices share (an additive rule), and trips that train in waves."""
    events = private_runs.schedule(16, 12)
    waves = {"plan": jafl.in_waves(events, 16), "together": True}
    for mechanism, how in (("tree", {}), ("tree_honaker", waves)):
        rule = private_runs.private(mechanism)
        one = private_runs.run(rule, events, devices=1)
        private_runs.assert_same(one, private_runs.run(rule, events, devices=8, **how), bits=False)


def main() -> None:
    assert jax.device_count() == 8
    check_private_runs()
    updates = 0.1 * updates_of(SCHEDULE)
    secure = jafl.secure(rules.fedbuff(), **BITS)
    check_same_bits(secure, updates, list(HOW))
    check_same_bits(jafl.private(secure, **PRIVATE), updates, ["a step shared by eight"])
    alone = directions(rules.fedbuff(), SCHEDULE, updates, devices=1)
    shared = directions(rules.fedbuff(), SCHEDULE, updates, devices=8)
    assert alone.tobytes() != shared.tobytes(), "floats have the same bits, too: the test shows nothing"


main()
