"""Which parameters of a model stay as they are: a tree is divided into trained and frozen ones, and back.

What goes to the other side leaves no key in a dict; in every other container None takes its place.
"""

import fnmatch
import itertools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from jafl.base.errors import require

Which = Any  # patterns, a function of a path, or a tree of bools: see ``Model.freeze``
_ALLOWED = 'patterns like "encoder/*", a function of a path, or a tree of bools like the parameters'


def paths(tree: Any) -> list[str]:
    """The path of each leaf, in the order of ``jax.tree.leaves``: "encoder/layers/0/kernel".

    SettingError where two leaves have one path.
    """
    found = [_path(keys) for keys, _ in jax.tree_util.tree_leaves_with_path(tree)]
    twice = next((path for path, after in itertools.pairwise(sorted(found)) if path == after), None)
    remedy = "Name one of them without a slash."
    require(twice is None, "the path of a parameter", twice, "one that no other parameter has", remedy)
    return found


def chosen(params: Any, which: Which) -> set[str]:
    """The paths of the parameters that ``which`` says are frozen; see ``Model.freeze``.

    SettingError for a pattern or a tree that does not fit the parameters, and for all of them or none.
    """
    known = paths(params)
    some = ", ".join(known[:6]) + (", ..." if len(known) > 6 else "")
    patterns = [which] if isinstance(which, str) else which
    if isinstance(patterns, (list, tuple)) and all(isinstance(pattern, str) for pattern in patterns):
        for pattern in patterns:
            fits = any(matches(path, pattern) for path in known)
            require(fits, "what to freeze", pattern, f"a pattern that fits a parameter's path: {some}")
        frozen = {path for path in known if any(matches(path, pattern) for pattern in patterns)}
    elif jax.tree.leaves(which) and all(
        isinstance(leaf, (bool, np.bool_)) for leaf in jax.tree.leaves(which)
    ):
        frozen = _by_tree(known, which, some)
    else:
        require(callable(which), "what to freeze", which, _ALLOWED)
        frozen = {path for path in known if which(path)}
    require(
        len(frozen) < len(known), "what to freeze", which, "not all parameters", "Nothing would be trained."
    )
    return frozen


def matches(path: str, pattern: str) -> bool:
    """Whether a pattern fits a path, or names a part of the model that the path begins with."""
    return fnmatch.fnmatchcase(path, pattern) or fnmatch.fnmatchcase(path, f"{pattern}/*")


def _by_tree(known: list[str], tree: Any, some: str) -> set[str]:
    """The paths for which a tree of bools, or of the first levels of the parameters, holds True."""
    said = dict(zip(paths(tree), jax.tree.leaves(tree), strict=True))
    allowed = f"a bool for each parameter or for what it is a part of: {some}"
    frozen, read = set(), set()
    for path in known:
        parts = path.split("/")
        above = ("/".join(parts[:depth]) for depth in range(len(parts), -1, -1))
        place = next((prefix for prefix in above if prefix in said), None)
        require(place is not None, "what to freeze", f"a tree without {path}", allowed)
        read.add(place)
        if said[place or ""]:
            frozen.add(path)
    # The filter specification of a module of Equinox has bools for its functions and numbers, too.
    for other in said.keys() - read if isinstance(tree, Mapping) else ():
        require(False, "what to freeze", f"a tree with {other}, which is no parameter", allowed)
    return frozen


def split(tree: Any, is_frozen: Callable[[str], bool], keys: tuple[Any, ...] = ()) -> tuple[Any, Any]:
    """(the tree without the leaves whose paths are frozen, the tree of those alone)."""
    if jax.tree_util.all_leaves([tree]):
        return (None, tree) if is_frozen(_path(keys)) else (tree, None)
    children, structure = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda node: node is not tree)
    parts = [split(child, is_frozen, (*keys, *key)) for key, child in children]
    trained, frozen = ([part[side] for part in parts] for side in (0, 1))
    if type(tree) is not dict:
        return jax.tree.unflatten(structure, trained), jax.tree.unflatten(structure, frozen)
    names = [key[0].key for key, _ in children]
    moved = [bool(jax.tree.leaves(part)) for part in frozen]
    empty = [not jax.tree.leaves(child) for _, child in children]
    left = [bool(jax.tree.leaves(part)) for part in trained]
    return (
        {
            name: part
            for name, part, there in zip(names, trained, np.logical_or(left, empty), strict=True)
            if there
        },
        {
            name: part
            for name, part, there in zip(names, frozen, np.logical_or(moved, empty), strict=True)
            if there
        },
    )


def merged(first: Any, *others: Any) -> Any:
    """One tree of several that each hold a part, the inverse of ``split``; of a leaf that two hold, the first's."""
    for other in others:
        first = _merged(first, other)
    return first


def _merged(a: Any, b: Any) -> Any:
    if a is None or b is None:
        return b if a is None else a
    if isinstance(a, Mapping) and isinstance(b, Mapping) and (type(a), set(a)) != (type(b), set(b)):
        return {
            name: _merged(a.get(name), b.get(name)) for name in (*a, *(name for name in b if name not in a))
        }
    if jax.tree_util.all_leaves([a]) or jax.tree_util.all_leaves([b]):
        return a
    ours, structure = _children(a)
    theirs, other = _children(b)
    allowed = f"of the form of the parameters, {structure}"
    require(len(ours) == len(theirs), "a part of the frozen parameters", str(other), allowed)
    return jax.tree.unflatten(structure, list(map(_merged, ours, theirs)))


def _children(tree: Any) -> tuple[list[Any], Any]:
    """(the parts of a tree's first level, None among them, its structure)."""
    return jax.tree_util.tree_flatten(tree, is_leaf=lambda node: node is not tree)


def _path(keys: tuple[Any, ...]) -> str:
    return jax.tree_util.keystr(keys, simple=True, separator="/")
