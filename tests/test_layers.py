"""Which package may import which: downwards only through eight layers; the host half never imports JAX."""

import ast
import graphlib
import pathlib
import subprocess
import sys

PACKAGE = pathlib.Path(__file__).parent.parent / "jafl"

# From the ground up. A package imports from lower layers, and from its own layer as long as that makes no cycle.
LAYERS = {
    "ground": ("errors", "records", "specifications", "keyed_shuffle", "jaxpr_memory"),
    "ingredients": ("schedule", "data", "models", "rules", "clients", "diagnostics", "plots"),
    "engine": ("engine",),
    "planning": ("planning",),
    "simulation": ("simulation",),
    "config": ("config",),
    "runs": ("runs", "sweeps"),
    "command": ("command_line", "command_help", "__main__"),
}
LAYER_OF = {room: number for number, rooms in enumerate(LAYERS.values()) for room in rooms}
# A room, or a file in one.
HOST_ONLY = (
    "errors",
    "records",
    "schedule",
    "data",
    "diagnostics",
    "plots",
    "config/settings",
    "command_help",
)
READS_FLAGS = "command_line"
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


def imported_rooms(file: pathlib.Path) -> set[str]:
    """The rooms from which a file imports, inside functions too."""
    names = (name.split(".") for name in imports(file))
    return {name[1] for name in names if name[0] == "jafl" and len(name) > 1 and name[1] in LAYER_OF}


def test_every_room_has_a_layer():
    assert {room for room, _ in files()} == set(LAYER_OF)


def test_imports_go_down_only():
    for room, file in files():
        for other in imported_rooms(file):
            assert LAYER_OF[other] <= LAYER_OF[room], (
                f"{file} imports from {other}, which is in a higher layer"
            )


def test_no_room_imports_itself_through_another():
    graph: dict[str, set[str]] = {room: set() for room in LAYER_OF}
    for room, file in files():
        graph[room] |= imported_rooms(file) - {room}
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError, which names the rooms


def test_host_half_never_imports_jax():
    for room, file in files():
        if room in HOST_ONLY or f"{room}/{file.stem}" in HOST_ONLY:
            assert not {name for name in imports(file) if name.split(".")[0] in ("jax", "flax", "optax")}, (
                file
            )
    rooms = "jafl.schedule, jafl.data, jafl.config.settings, jafl.plots"
    program = f"import sys, {rooms}; assert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True, cwd=PACKAGE.parent)


def test_only_the_command_line_reads_flags():
    for room, file in files():
        if room != READS_FLAGS:
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
