"""The layers of jafl, and who imports whom: read by ``tests/test_layers.py`` and drawn by ``docs/layers.py``.

A room is a package or a single module directly in ``jafl/``.
"""

import ast
import pathlib

PACKAGE = pathlib.Path(__file__).parents[2] / "jafl"

# From the ground up. A room imports from lower layers, and from its own layer as long as that makes no cycle.
LAYERS = {
    "ground": ("base", "records", "specifications"),
    "ingredients": (
        "schedule",
        "data",
        "models",
        "rules",
        "clients",
        "diagnostics",
        "plots",
        "privacy",
        "traces",
    ),
    "engine": ("engine",),
    "simulation": ("simulation", "ahead_of_time"),
    "config": ("config",),
    "runs": ("runs", "sweeps", "cli", "__main__"),
}
LAYER_OF = {room: number for number, rooms in enumerate(LAYERS.values()) for room in rooms}


def files() -> list[tuple[str, pathlib.Path]]:
    """(room, file) of every module of the package."""
    rooms_and_files = []
    for file in sorted(PACKAGE.rglob("*.py")):
        room = file.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if room != "__init__":
            rooms_and_files.append((room, file))
    return rooms_and_files


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


def room_imports() -> dict[str, set[str]]:
    """{room: the other rooms from which its files import}."""
    graph: dict[str, set[str]] = {room: set() for room in LAYER_OF}
    for room, file in files():
        graph[room] |= imported_rooms(file) - {room}
    return graph
