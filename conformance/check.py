"""Compares a simulator of asynchronous federated learning with the vectors beside this file. Needs NumPy alone.

    python check.py my_simulator.py [NAME ...]   calls its function run(vector) for all vectors, or for those named
    python check.py results/ [NAME ...]          reads results/NAME.json, which any program may have written

A result is {"models": [T + 1 models]} for a vector of kind "aggregation", {"trips": {column: [J numbers]}} for a
"schedule". None, or no file, skips the vector. README.md explains the format.
"""

import json
import pathlib
import runpy
import sys

import numpy as np

VECTORS = pathlib.Path(__file__).resolve().parent / "vectors"
TOLERANCE = 1e-12
# Columns that a schedule must have; others are compared where they are there.
REQUIRED = ("client", "download_version", "step")


def same(found, expected):
    found, expected = np.asarray(found, float), np.asarray(expected, float)
    return found.shape == expected.shape and np.allclose(found, expected, rtol=TOLERANCE, atol=TOLERANCE)


def check(vector, result):
    """None for a right result; else a sentence that says where it is wrong, and which mistake would give it."""
    if vector["kind"] == "aggregation":
        models, expected = result["models"], vector["expected"]["models"]
        if len(models) != len(expected):
            return f"there are {len(models)} models, but must be {len(expected)}."
        pairs = {f"model {step}": pair for step, pair in enumerate(zip(models, expected, strict=True))}
        known = [
            mistake["why"]
            for mistake in vector["known_wrong"]
            for last in (mistake["last"], mistake.get("last_with_updates_given"))
            if last and same(models[-1], last)
        ]
    else:
        trips, expected = result["trips"], vector["expected"]["trips"]
        names = [name for name in expected if name in trips or name in REQUIRED]
        pairs = {name: (trips[name], expected[name]) for name in names}
        known = [
            mistake["why"]
            for mistake in vector["known_wrong"]
            if all(same(trips[name], mistake["trips"][name]) for name in names)
        ]
    for name, (found, right) in pairs.items():
        if not same(found, right):
            reasons = [f" This is what comes out with the mistake: {why}." for why in dict.fromkeys(known)]
            return f"{name} is {np.asarray(found).tolist()}, but must be {right}.{''.join(reasons)}"
    return None


def main(source, *names):
    run = runpy.run_path(source)["run"] if source.endswith(".py") else None
    failures = 0
    for path in [VECTORS / f"{name}.json" for name in names] or sorted(VECTORS.glob("*.json")):
        vector, file = json.loads(path.read_text()), pathlib.Path(source, path.name)
        result = run(vector) if run else json.loads(file.read_text()) if file.is_file() else None
        fault = check(vector, result) if result else None
        print(f"{path.stem}: {fault or ('right' if result else 'skipped')}")
        failures += fault is not None
    sys.exit(failures > 0)


if __name__ == "__main__":
    main(*sys.argv[1:]) if sys.argv[1:] else sys.exit(__doc__)
