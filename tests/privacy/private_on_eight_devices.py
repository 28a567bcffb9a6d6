"""Private runs whose trips are spread over eight devices: a program of its own."""

import pathlib
import sys

here = pathlib.Path(__file__).parent
sys.path[:0] = [str(here), str(here.parent / "support"), str(here.parents[1])]

import jax  # noqa: E402  (the path comes first)
import test_private_runs as runs  # noqa: E402
from quick_compilation import compile_quickly  # noqa: E402

import jafl  # noqa: E402


def main() -> None:
    """Steps that the devices share (an additive rule), and trips that train in waves, against one device."""
    assert jax.device_count() == 8
    compile_quickly(True)
    events = runs.schedule(16, 12)
    waves = {"plan": jafl.in_waves(events, 16), "together": True}
    for mechanism, how in (("tree", {}), ("tree_honaker", waves)):
        rule = runs.private(mechanism)
        one = runs.run(rule, events, devices=1)
        runs.assert_same(one, runs.run(rule, events, devices=8, **how), bits=False)


main()
