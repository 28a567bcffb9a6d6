"""Who may know whom: imports go down the list of rooms only, and the host half never imports JAX."""

import ast
import pathlib
import subprocess
import sys

PACKAGE = pathlib.Path(__file__).parent.parent / "jafl"

# From the ground up; a room imports from rooms above it in this list, and from itself.
ROOMS = (
    "records",
    "schedule",
    "data",
    "deferred",
    "shuffle",
    "models",
    "clients",
    "rules",
    "temporaries",
    "memory",
    "client_memory",
    "layout",
    "waves",
    "engine",
    "fit",
    "evaluate",
    "planning",
    "preparation",
    "stacking",
    "decomposition",
    "divergence",
    "claim",
    "checkpoint",
    "compile_time",
    "simulation",
    "members",
    "many",
    "settings",
    "past_runs",
    "tables",
    "conditions",
    "groups",
    "diagnostics",
    "plots",
    "server_optimizers",
    "algorithms",
    "parts",
    "arms",
    "results",
    "experiment",
    "together",
    "pictures",
    "console",
    "trackers",
    "recording",
    "training",
    "runner",
    "cells",
    "workers",
    "sweep_pictures",
    "sweep",
    "report",
)
HOST_ONLY = ("records", "schedule", "data", "settings", "diagnostics", "plots")
# Where a module may be used inside a function only, because importing it takes long.
HEAVY = (
    "safetensors",
    "matplotlib",
    "sklearn",
    "tqdm",
    "scipy",
    "tensorflow",
    "tensorflow_datasets",
    "orbax",
    "filelock",
    "tensorboardX",
    "jinja2",
    "array_record",
    "PIL",
    "requests",
    "msgpack",
    "tokenizers",
)


def files() -> list[tuple[str, pathlib.Path]]:
    """(room, file) of every module of the package."""
    found = []
    for file in sorted(PACKAGE.rglob("*.py")):
        room = file.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if room != "__init__":
            found.append((room, file))
    return found


def imports(file: pathlib.Path, *, top_level_only: bool = False) -> set[str]:
    """Full names of the modules that a file imports, ``from a import b`` as ``a.b``."""
    tree = ast.parse(file.read_text())
    nodes = tree.body if top_level_only else list(ast.walk(tree))
    names = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def test_every_room_is_in_the_list():
    assert {room for room, _ in files()} == set(ROOMS)


def test_imports_go_down_only():
    for room, file in files():
        for name in imports(file):
            parts = name.split(".")
            if parts[0] == "jafl" and len(parts) > 1 and parts[1] in ROOMS:
                assert ROOMS.index(parts[1]) <= ROOMS.index(room), f"{file.name} imports {name}"


def test_host_half_never_imports_jax():
    for room, file in files():
        if room in HOST_ONLY:
            assert not {name for name in imports(file) if name.split(".")[0] in ("jax", "flax", "optax")}, (
                file
            )
    program = (
        "import sys, jafl.schedule, jafl.data, jafl.settings, jafl.plots; assert 'jax' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=PACKAGE.parent)


def test_only_run_py_reads_flags():
    for _, file in files():
        assert not {name for name in imports(file) if name.startswith("absl")}, file


def test_heavy_libraries_are_imported_where_they_are_used():
    for _, file in files():
        heavy = {name for name in imports(file, top_level_only=True) if name.split(".")[0] in HEAVY}
        assert not heavy, f"{file} imports {heavy} at the top"


def test_public_names_exist():
    import jafl

    for name in jafl.__all__:
        assert getattr(jafl, name) is not None
    assert set(jafl.__all__) <= set(dir(jafl))
