"""Do the tests notice a small change of the code? Changes it in one place at a time, and runs the tests.

    pip install cosmic-ray
    python tests/mutants.py rules schedule --sample=100 --seed=0 --out=mutants.jsonl

Each mutant is the package with one change: an operator, a comparison, a number, a condition (Cosmic Ray's operators),
or a function of NumPy or JAX in place of its opposite. The tests of the mutant's own room run first, beginning with
the files that bear the module's name, then, if they pass, all tests of the default tier. A mutant that both let pass
has *survived*: a test is missing, or the change changes nothing (the mutant is *equivalent*), or nobody needs the
code.

Tests run in clones of the checkout's last commit. The file ``--out`` gets a line of JSON for each mutant as soon as
it is known; the same command goes on where it ended. ``--show=FILE`` prints the survivors of such a file.
"""

import argparse
import collections
import difflib
import functools
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

ROOT = pathlib.Path(__file__).parent.parent
# {room: (its code, its tests)}; a room's tests run before all others.
ROOMS = {
    "clients": (
        ["jafl/clients"],
        [
            "tests/test_clients.py",
            "tests/models/test_token_losses.py",
            "tests/engine/test_optimizers_and_parameters.py",
            "tests/engine/test_engine_against_reference.py",
        ],
    ),
    "engine": (
        ["jafl/engine"],
        ["tests/engine", "tests/schedule/test_plan.py", "tests/schedule/test_waves.py"],
    ),
    "privacy": (["jafl/privacy"], ["tests/privacy"]),
    "rules": (
        ["jafl/rules"],
        [
            "tests/rules",
            "tests/test_conformance.py",
            "tests/simulation/test_error_decomposition.py",
            "tests/engine/test_engine_against_reference.py",
        ],
    ),
    "schedule": (["jafl/schedule"], ["tests/schedule"]),
}
# Functions that a slip of the pen puts in each other's place.
OPPOSITES = (
    ("minimum", "maximum"),
    ("min", "max"),
    ("argmin", "argmax"),
    ("any", "all"),
    ("floor", "ceil"),
    ("zeros", "ones"),
    ("zeros_like", "ones_like"),
    ("sum", "max"),
    ("cumsum", "cumprod"),
    ("sin", "cos"),
    ("exp", "expm1"),
    ("log", "log1p"),
    ("left", "right"),
)
SWAPPED = {name: other for pair in OPPOSITES for name, other in (pair, pair[::-1])}
LONGEST = 3.0  # times as long as without a change may tests take
SPARE = 60.0  # seconds beside that


class Mutant(NamedTuple):
    """One change.

    Attributes:
      room: of ``ROOMS``.
      file: which it changes, below the root.
      line: of the place that changes.
      operator: that makes the change.
      occurrence: which place of the file it changes, counted for the operator.
    """

    room: str
    file: str
    line: int
    operator: str
    occurrence: int

    def code(self, source: str) -> str | None:
        """The file's content with the change; None if nothing would change."""
        from cosmic_ray.mutating import mutate_code

        code = mutate_code(source, operators()[self.operator], self.occurrence)
        return None if code == source else code


@functools.cache
def operators() -> dict[str, Any]:
    """{name: operator} of Cosmic Ray that need no arguments, and the one of ``OPPOSITES``."""
    import parso  # noqa: F401  (first: Cosmic Ray's own import of it goes round in a circle)
    from cosmic_ray import plugins
    from cosmic_ray.operators.operator import Operator

    class Opposite(Operator):
        def mutation_positions(self, node):
            if node.type == "name" and node.value in SWAPPED:
                yield node.start_pos, node.end_pos

        def mutate(self, node, index):
            node.value = SWAPPED[node.value]
            return node

        @classmethod
        def examples(cls):
            return ()

    classes = {name: plugins.get_operator(name) for name in plugins.operator_names()}
    return {name: made() for name, made in classes.items() if not made.arguments()} | {"opposite": Opposite()}


def places_of(room: str, file: pathlib.Path) -> list[list[Mutant]]:
    """For each place of a file that can be changed: what can be put there."""
    made_by = operators()
    from cosmic_ray.ast import ast_nodes, get_ast

    tree = get_ast(file.read_text())
    path, places = str(file.relative_to(ROOT)), collections.defaultdict(list)
    for name, operator in made_by.items():
        found = [(node, at) for node in ast_nodes(tree) for at in operator.mutation_positions(node)]
        for occurrence, (node, at) in enumerate(found):
            if not _is_in_annotation(node):
                places[at].append(Mutant(room, path, node.start_pos[0], name, occurrence))
    return list(places.values())


def _is_in_annotation(node: Any) -> bool:
    """Whether a node belongs to an annotation, or is the ``*`` or ``/`` of a function's parameters."""
    while node is not None:
        parent = node.parent
        if parent is not None and parent.type in ("annassign", "tfpdef", "parameters", "param"):
            return parent.type != "param" or node is not getattr(parent, "default", None)
        if parent is not None and parent.type == "funcdef" and node is getattr(parent, "annotation", None):
            return True
        node = parent
    return False


def sampled(rooms: list[str], number: int, seed: int) -> list[Mutant]:
    """``number`` mutants of each room in random order: of places drawn without repetition, one change each."""
    chosen = []
    for room in rooms:
        draw = random.Random(f"{seed} {room}")
        files = [file for place in ROOMS[room][0] for file in _files(ROOT / place)]
        places = [place for file in files for place in places_of(room, file)]
        print(f"{room}: {len(places)} places, {sum(map(len, places))} mutants", flush=True)
        chosen += [draw.choice(place) for place in draw.sample(places, min(number, len(places)))]
    random.Random(seed).shuffle(chosen)
    return chosen


def _files(place: pathlib.Path, pattern: str = "*.py") -> list[pathlib.Path]:
    return [place] if place.is_file() else sorted(place.rglob(pattern))


def own_tests(mutant: Mutant) -> list[str]:
    """The files of the room's tests, first those that bear the module's name: they catch most mutants."""
    files = [file for place in ROOMS[mutant.room][1] for file in _files(ROOT / place, "test_*.py")]
    module = pathlib.Path(mutant.file).stem
    return [str(file.relative_to(ROOT)) for file in sorted(files, key=lambda file: module not in file.stem)]


class Clone:
    """A clone of the checkout in which one mutant at a time is tried."""

    def __init__(self, folder: pathlib.Path, number: int, caches: pathlib.Path):
        self.path = folder / f"clone{number}"
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(self.path)], check=True)
        self.environment = {
            **os.environ,
            "JAX_PLATFORMS": "cpu",
            "JAX_COMPILATION_CACHE_DIR": str(caches),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "TMPDIR": str(folder),
        }

    def tests_pass(self, tests: list[str], limit: float | None) -> bool:
        """Whether these tests pass within so many seconds."""
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        try:
            return not subprocess.run(
                command, cwd=self.path, env=self.environment, timeout=limit, check=False, **quiet
            ).returncode
        except subprocess.TimeoutExpired:
            return False

    def seconds(self, tests: list[str]) -> float:
        """How long the tests take without a change; the first time is for the caches."""
        for _ in range(2):
            began = time.monotonic()
            if not self.tests_pass(tests, None):
                raise SystemExit(f"{' '.join(tests)} fail without a change")
        return time.monotonic() - began

    def outcome(self, mutant: Mutant, limits: dict[str, float]) -> tuple[str, list[str]]:
        """(by what a mutant is caught: "own tests" or "other tests"; or "survived"; the lines that it changes)."""
        file = self.path / mutant.file
        before = file.read_text()
        after = mutant.code(before)
        if after is None:
            return "no change", []
        lines = difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=0)
        change = [line for line in lines if line[0] in "+-" and line[:3] not in ("+++", "---")]
        file.write_text(after)
        try:
            if not self.tests_pass(own_tests(mutant), limits[mutant.room]):
                return "own tests", change
            if "whole" in limits and not self.tests_pass([], limits["whole"]):
                return "other tests", change
            return "survived", change
        finally:
            file.write_text(before)


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("rooms", nargs="*", choices=[*ROOMS, []], help="default: all of " + ", ".join(ROOMS))
    parser.add_argument("--sample", type=int, default=50, help="mutants of each room (50)")
    parser.add_argument("--seed", type=int, default=0, help="of the sample (0)")
    parser.add_argument("--out", type=pathlib.Path, default="mutants.jsonl", help="file of the outcomes")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="mutants at a time")
    parser.add_argument("--own", action="store_true", help="run the tests of the room alone, not all others")
    parser.add_argument(
        "--show", type=pathlib.Path, help="print the survivors of such a file, and the shares"
    )
    asked = parser.parse_args()
    if asked.show:
        show(asked.show)
        return
    rooms = asked.rooms or list(ROOMS)
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    version = commit.stdout.strip()
    rows = [json.loads(line) for line in asked.out.open()] if asked.out.exists() else []
    done = {tuple(row["mutant"]) for row in rows if row["version"] == version}
    left = [mutant for mutant in sampled(rooms, asked.sample, asked.seed) if tuple(mutant) not in done]
    with tempfile.TemporaryDirectory() as folder:
        place = pathlib.Path(folder)
        clones = [Clone(place, number, place / "compiled") for number in range(asked.jobs)]
        limits = {room: LONGEST * clones[0].seconds(ROOMS[room][1]) + SPARE for room in rooms}
        if not asked.own:
            limits["whole"] = LONGEST * clones[0].seconds([]) + SPARE
        free = list(clones)

        def try_one(mutant: Mutant) -> None:
            clone, began = free.pop(), time.monotonic()
            outcome, change = clone.outcome(mutant, limits)
            free.append(clone)
            row = {"outcome": outcome, "mutant": mutant, "change": change}
            row |= {"version": version, "seconds": round(time.monotonic() - began, 1)}
            with asked.out.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(outcome, *mutant[1:], flush=True)

        with ThreadPoolExecutor(asked.jobs) as workers:
            list(workers.map(try_one, left))
    show(asked.out)


def show(file: pathlib.Path) -> None:
    """Prints the survivors, and how many mutants of each room were caught by what."""
    rows = [json.loads(line) for line in file.open()]
    for row in rows:
        if row["outcome"] == "survived":
            print(f"{row['mutant'][1]}:{row['mutant'][2]}", *row["change"], sep="\n    ")
    for room in dict.fromkeys(row["mutant"][0] for row in rows):
        outcomes = [row["outcome"] for row in rows if row["mutant"][0] == room and row["change"]]
        if not outcomes:
            continue
        counts = {outcome: outcomes.count(outcome) for outcome in sorted(set(outcomes))}
        caught = 1 - counts.get("survived", 0) / len(outcomes)
        print(f"{room}: {len(outcomes)} mutants, {caught:.1%} caught: {counts}")


if __name__ == "__main__":
    main()
