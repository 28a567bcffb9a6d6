"""Draws jafl's layers as they are imported today, and writes the drawing to docs/layers.md.

python docs/layers.py            writes docs/layers.md
python docs/layers.py --check    fails if docs/layers.md is not what this script would write
"""

import ast
import pathlib
import sys

ROOT = pathlib.Path(__file__).parents[1]
PAGE = ROOT / "docs" / "layers.md"
sys.path.insert(0, str(ROOT / "tests" / "support"))

from package_layers import LAYERS, PACKAGE, room_imports  # noqa: E402  (its folder is added above)

INTRODUCTION = """# The layers of jafl

The packages of `jafl/` lie in layers. A module imports from its own layer or from a lower one, never from a higher
one, and no two rooms import each other, not even through a third. A *room* is a package or a single module directly
in `jafl/`. `tests/test_layers.py` checks the imports. `python docs/layers.py` writes this page from them; another
test fails while the page is out of date.

An arrow means "imports from". An arrow that follows from two or more others is left out of the drawing; the table
below has all imports.
"""


def reachable(graph: dict[str, set[str]], room: str) -> set[str]:
    """The rooms that ``room`` imports from, directly or through others."""
    rooms: set[str] = set()
    waiting = list(graph[room])
    while waiting:
        imported = waiting.pop()
        if imported not in rooms:
            rooms.add(imported)
            waiting += graph[imported]
    return rooms


def reduced(graph: dict[str, set[str]]) -> dict[str, set[str]]:
    """The graph (without cycles) with only those imports that do not follow from others."""
    return {
        room: {
            imported
            for imported in imports
            if not any(imported in reachable(graph, through) for through in imports - {imported})
        }
        for room, imports in graph.items()
    }


def label(room: str) -> str:
    """``schedule/`` for a package, ``records`` for a single module."""
    return f"{room}/" if (PACKAGE / room).is_dir() else room


def summary(room: str) -> str:
    """The first line of the docstring of a room."""
    file = PACKAGE / room / "__init__.py" if (PACKAGE / room).is_dir() else PACKAGE / f"{room}.py"
    return (ast.get_docstring(ast.parse(file.read_text())) or "").partition("\n")[0].replace("``", "`")


def drawing(graph: dict[str, set[str]]) -> str:
    """The layers as a Mermaid chart, the highest layer at the top."""
    lines = ["```mermaid", "flowchart TD"]
    for number, (layer, rooms) in reversed(list(enumerate(LAYERS.items(), 1))):
        lines.append(f'    subgraph layer{number}["{number} {layer}"]')
        lines += [f'        {room}["{label(room)}"]' for room in rooms]
        lines.append("    end")
    for room, imports in reduced(graph).items():
        lines += [f"    {room} --> {imported}" for imported in sorted(imports)]
    return "\n".join([*lines, "```"])


def table(graph: dict[str, set[str]]) -> str:
    """One row for each room: what it holds, and all rooms from which it imports."""
    lines = ["| layer | room | what it holds | imports from |", "|---|---|---|---|"]
    for number, (layer, rooms) in reversed(list(enumerate(LAYERS.items(), 1))):
        for room in rooms:
            imports = ", ".join(f"`{imported}`" for imported in sorted(graph[room]))
            lines.append(f"| {number} {layer} | `{label(room)}` | {summary(room)} | {imports} |")
    return "\n".join(lines)


def page() -> str:
    """The whole page."""
    graph = room_imports()
    return "\n".join([INTRODUCTION, drawing(graph), "", table(graph), ""])


def main() -> None:
    """Writes the page, or checks it."""
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(page())
    elif not PAGE.is_file() or PAGE.read_text() != page():
        sys.exit("docs/layers.md is out of date: run python docs/layers.py")


if __name__ == "__main__":
    main()
