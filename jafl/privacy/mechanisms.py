"""Mechanisms: how Gaussian noise is spread over the server steps, each a factorization A = B C of the prefix sum.

A is the T x T lower triangle of ones, which turns what each step adds into the sum of all steps so far. What a
mechanism publishes is C x + z, with x the steps' sums of clipped updates and z independent Gaussian noise, one number
for each row of C (a *node*) and parameter. The server steps along differences of the noisy prefixes B (C x + z), so
that step t adds x[t] and the t-th row of ``noising`` times z.

    independent      C = 1: fresh noise in each step, as DP-SGD has it
    tree             a binary tree over the steps, each node the sum of the steps below it (Dwork et al. 2010, Chan et
                     al. 2011); the noise of the prefix of n steps is that of popcount(n) nodes
    tree_honaker     the same nodes; each complete subtree is estimated from all nodes in it, with the weights of
                     least variance (Honaker 2015, "estimation from below"; Kairouz et al. 2021, appendix B.1)
    banded_toeplitz  noise of a step minus shares of the noise of the ``bands - 1`` steps before it: the coefficients
                     are the series of (1 - x)^(1/2), cut (Fichtenberger et al. 2023; its inverse banded: Kalinin,
                     McKenna, Upadhyay and Lampert 2025)

*Restarts* divide the steps of a tree into ``restarts + 1`` trees of one size (the last may be smaller). At the end of
each tree that another one follows, the tree is completed honestly: with empty leaves up to the next power of two,
after which its root, the sum of all its steps, is the only one of its nodes that later prefixes contain. The nodes
that the completion adds are published too, and count.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from jafl.base.errors import require, unknown_name, whole_number

# {name: what its noise is}, in the order of the module's docstring.
MECHANISMS = {
    "independent": "fresh noise in each step",
    "tree": "a binary tree",
    "tree_honaker": "a binary tree, each subtree estimated from all its nodes",
    "banded_toeplitz": "noise that later steps partly take back",
}
TREES = ("tree", "tree_honaker")
DEFAULT_BANDS = 64
MOST_BANDS = 1024


class Mechanism(NamedTuple):
    """A way to spread noise over server steps; ``make_mechanism`` makes and checks it.

    Attributes:
      name: one of ``MECHANISMS``.
      restarts: of a tree: how often a new one begins; 0 otherwise.
      bands: of "banded_toeplitz": how many coefficients a step's noise has; 0 otherwise.
    """

    name: str
    restarts: int = 0
    bands: int = 0

    @property
    def is_tree(self) -> bool:
        """Whether it is one of ``TREES``."""
        return self.name in TREES

    def __str__(self) -> str:
        """Its name, and its number where it has one."""
        parts = [self.name]
        if self.restarts:
            parts.append(f"{self.restarts} restart{'s' if self.restarts > 1 else ''}")
        if self.bands:
            parts.append(f"{self.bands} band{'s' if self.bands > 1 else ''}")
        return ", ".join(parts)


def make_mechanism(
    name: str = "tree_honaker", restarts: int = 0, bands: int | None = None, num_steps: int | None = None
) -> Mechanism:
    """Makes a mechanism, and checks that its numbers are meant for it.

    Args:
      name: one of ``MECHANISMS``.
      restarts: how often a tree is started again, 0 for one tree; only for trees.
      bands: coefficients of "banded_toeplitz", at most 1,024; None for 64. Only for that mechanism.
      num_steps: T, server steps of the run, to which the other two are compared; None where it is not known yet.

    Returns:
      The mechanism.

    Raises:
      SettingError: for an unknown name, a number that the mechanism does not have, or one out of its range.

    Examples:
      >>> make_mechanism("tree", restarts=3)
      Mechanism(name='tree', restarts=3, bands=0)
    """
    if not isinstance(name, str) or name not in MECHANISMS:
        raise unknown_name("mechanism", name, MECHANISMS)
    restarts = whole_number("restarts", restarts, 0)
    remedy = f"Only a tree restarts: mechanism={' or '.join(TREES)}."
    require(not restarts or name in TREES, "restarts", restarts, f"0 for mechanism={name}", remedy)
    if name != "banded_toeplitz":
        remedy = "Only mechanism=banded_toeplitz has bands."
        require(bands is None, "bands", bands, f"left out for mechanism={name}", remedy)
        mechanism = Mechanism(name, restarts)
    else:
        bands = DEFAULT_BANDS if bands is None else whole_number("bands", bands, 1)
        remedy = "The server keeps the noise of as many steps, each as large as the model."
        require(bands <= MOST_BANDS, "bands", bands, f"at most {MOST_BANDS}", remedy)
        mechanism = Mechanism(name, 0, bands)
    if num_steps is not None:
        check_steps(mechanism, num_steps)
    return mechanism


def check_steps(mechanism: Mechanism, num_steps: int) -> None:
    """Raises SettingError for fewer server steps than the mechanism's trees, or none."""
    require(num_steps >= 1, "the number of server steps", num_steps, "at least 1 for a private run")
    allowed = f"below the number of server steps, {num_steps}: each tree has at least one"
    require(mechanism.restarts < num_steps, "restarts", mechanism.restarts, allowed)


class Trees(NamedTuple):
    """How the server steps are divided into trees."""

    size: int  # steps of each tree but the last, which may have fewer
    number: int  # of trees
    depth: int  # levels above the leaves of a tree that is completed: 2 ** depth >= size


def trees(mechanism: Mechanism, num_steps: int) -> Trees:
    """How a mechanism divides ``num_steps`` server steps into trees."""
    check_steps(mechanism, num_steps)
    size = -(-num_steps // (mechanism.restarts + 1))
    return Trees(size, -(-num_steps // size), (size - 1).bit_length())


def nodes(mechanism: Mechanism, num_steps: int) -> np.ndarray:
    """The nodes in the order of the rows of ``encoder`` and the columns of ``noising``.

    Args:
      mechanism: the mechanism.
      num_steps: T.

    Returns:
      [M, 3] int64: tree, level, index within the level. A node of level l and index i of a tree is the sum of the
      tree's steps i * 2**l up to, but not including, (i + 1) * 2**l. They are sorted by tree, then level, then index.
      Without trees there is a node a step: (0, 0, step).
    """
    if not mechanism.is_tree:
        check_steps(mechanism, num_steps)
        zeros = np.zeros(num_steps, np.int64)
        return np.stack([zeros, zeros, np.arange(num_steps)], 1)
    return np.array(
        [
            (tree, level, index)
            for tree, leaves in enumerate(_leaves(mechanism, num_steps))
            for level in range(leaves.bit_length())
            for index in range(leaves >> level)
        ],
        np.int64,
    )


def _leaves(mechanism: Mechanism, num_steps: int) -> Iterator[int]:
    """Leaves of each tree: those of a completed one are a power of two."""
    size, number, depth = trees(mechanism, num_steps)
    for tree in range(number):
        yield 1 << depth if tree < number - 1 else num_steps - tree * size


def encoder(mechanism: Mechanism, num_steps: int) -> np.ndarray:
    """The matrix C, dense; for tests and short runs: it has about 2 T**2 entries.

    Args:
      mechanism: the mechanism.
      num_steps: T.

    Returns:
      [M, T] float64, a row for each of ``nodes``, a column for each server step; no entry is negative.
    """
    if mechanism.name == "independent":
        return np.eye(num_steps)
    if not mechanism.is_tree:
        return _lower_toeplitz(toeplitz_coefficients(mechanism.bands, num_steps), num_steps)
    size = trees(mechanism, num_steps).size
    tree, level, index = nodes(mechanism, num_steps).T[:, :, None]
    step = np.arange(num_steps)
    return ((step // size == tree) & ((step % size) >> level == index)).astype(np.float64)


def noising(mechanism: Mechanism, num_steps: int) -> np.ndarray:
    """The noise that each step's direction gets, from the nodes' noise; dense, for tests and short runs.

    Args:
      mechanism: the mechanism.
      num_steps: T.

    Returns:
      [T, M] float64, a row for each server step, a column for each of ``nodes``. Sums of its first rows are the
      noise of prefixes, B. ``noising @ encoder`` is the identity.
    """
    if mechanism.name == "independent":
        return np.eye(num_steps)
    if not mechanism.is_tree:
        return _lower_toeplitz(noising_coefficients(mechanism.bands, num_steps), num_steps)
    return np.diff(_tree_prefixes(mechanism, num_steps), axis=0, prepend=0.0)


def _tree_prefixes(mechanism: Mechanism, num_steps: int) -> np.ndarray:
    """[T, M]: the matrix B of a tree mechanism."""
    size, number, depth = trees(mechanism, num_steps)
    place = {tuple(node): row for row, node in enumerate(nodes(mechanism, num_steps).tolist())}
    estimates = _Estimates(mechanism.name, place)
    prefixes = np.zeros((num_steps, len(place)))
    finished = np.zeros(len(place))
    for step in range(num_steps):
        tree, before = divmod(step, size)
        if before == size - 1 and tree < number - 1:  # completed
            finished = finished + estimates.of(tree, depth, 0)
            prefixes[step] = finished
            continue
        count, start, prefix = before + 1, 0, finished.copy()
        for level in reversed(range(count.bit_length())):
            if count >> level & 1:
                prefix += estimates.of(tree, level, start >> level)
                start += 1 << level
        prefixes[step] = prefix
    return prefixes


class _Estimates:
    """How a subtree's sum is estimated from the nodes in it: rows of factors of the nodes."""

    def __init__(self, name: str, place: dict):
        self._from_below, self._place = name == "tree_honaker", place
        self._known: dict[tuple[int, int, int], np.ndarray] = {}

    def of(self, tree: int, level: int, index: int) -> np.ndarray:
        """[M] factors of the nodes."""
        if (tree, level, index) not in self._known:
            self._known[tree, level, index] = self._made(tree, level, index)
        return self._known[tree, level, index]

    def _made(self, tree: int, level: int, index: int) -> np.ndarray:
        alone = np.zeros(len(self._place))
        alone[self._place[tree, level, index]] = 1.0
        if not level or not self._from_below:
            return alone
        children = self.of(tree, level - 1, 2 * index) + self.of(tree, level - 1, 2 * index + 1)
        own = honaker_variance(level)
        return own * alone + (1 - own) * children


def honaker_variance(level: int) -> float:
    """The variance of a complete subtree's estimate from below, in units of one node's.

    It is 1 / (1 + 1/2 + ... + 2**-level): the inverse of 1 + 1 / (2 * that of the level below) (Honaker 2015). It is
    also the factor of the node's own number in that estimate; the two children's estimates get the rest.

    Args:
      level: of the subtree's top, 0 for a leaf.

    Returns:
      A number in (1/2, 1].
    """
    return 1.0 / (2.0 - 2.0**-level)


def noising_coefficients(bands: int, length: int) -> np.ndarray:
    """[min(bands, length)] float64: the first coefficients of the series of (1 - x)^(1/2): 1, -1/2, -1/8, ...

    The noise of a step's direction is the sum of these times the noise of the step itself, the one before, and so on.
    """
    number = np.arange(1, min(bands, length))
    return np.concatenate([[1.0], np.cumprod((number - 1.5) / number)])


def toeplitz_coefficients(bands: int, length: int) -> np.ndarray:
    """[length] float64: the series of the inverse of ``noising_coefficients``; none is negative.

    What a trip adds to the nodes of its own step, the next one, and so on. They never increase: not up to ``bands``,
    and from there on their differences are sums of earlier differences, with weights above 0.
    """
    number = np.arange(1, min(bands, length))
    known = np.concatenate([[1.0], np.cumprod((number - 0.5) / number)])  # as of (1 - x)^(-1/2)
    series = np.zeros(length)
    series[: len(known)] = known
    taken = -noising_coefficients(bands, length)[:0:-1]
    for place in range(len(known), length):
        series[place] = series[place - len(taken) : place] @ taken
    return series


def _lower_toeplitz(coefficients: np.ndarray, length: int) -> np.ndarray:
    """[length, length]: the lower triangular matrix with these numbers along its diagonals."""
    matrix = np.zeros((length, length))
    for lag, value in enumerate(coefficients[:length]):
        matrix[np.arange(lag, length), np.arange(length - lag)] = value
    return matrix
