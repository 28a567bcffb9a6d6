"""A slow, obvious private rule for the reference simulator: clipping, explicit trees, and noisy prefix sums.

It is written from the papers, without regard to cost, and shares no code with the library that it judges: every node
of a tree is kept with its true sum and its noise, every noisy prefix sum is put together anew from the nodes, and the
direction of a step is the difference of two of them.

Sources:

- Nguyen et al., "Federated Learning with Buffered Asynchronous Aggregation", algorithm 1 lines 7, 12 and 13.
- Kairouz et al., "Practical and Private (Deep) Learning without Sampling or Shuffling", 2021, algorithm 1 and
  appendix B.1 (the tree, restarts with completion).
- Honaker, "Efficient Use of Differentially Private Binary Trees", 2015: the estimate from below.
- Fichtenberger, Henzinger and Upadhyay, "Constant Matters", 2023: the coefficients of the square root of 1 - x.
"""

import math

from reference import Rule, add, norm, scale, subtract, zeros_like


class Node:
    """A node of a tree: the true sum of the steps below it, the noise of its release, and its two children."""

    def __init__(self, total, noise, children=()):
        self.total, self.noise, self.children = total, noise, children

    @property
    def released(self):
        return add(self.total, self.noise)

    def estimate(self):
        """(estimate of the sum, its variance in units of one release's), from this node and all below it.

        Two unbiased estimates of the same sum, the node's own release and the sum of its children's estimates, are
        averaged with the inverses of their variances as weights.
        """
        if not self.children:
            return self.released, 1.0
        (left, left_variance), (right, right_variance) = (child.estimate() for child in self.children)
        below, variance = add(left, right), left_variance + right_variance
        weight = 1.0 / (1.0 + 1.0 / variance)
        return add(scale(weight, self.released), scale(1.0 - weight, below)), weight


class Tree:
    """A binary tree that grows leaf by leaf.

    Args:
      noise_of: (level, index) -> the noise of a node.
    """

    def __init__(self, noise_of):
        self.noise_of, self.leaves, self.roots = noise_of, 0, []  # of complete subtrees, the largest first

    def append(self, value) -> None:
        roots = [*self.roots, (0, Node(value, self.noise_of(0, self.leaves)))]
        self.leaves += 1
        while len(roots) > 1 and roots[-1][0] == roots[-2][0]:
            level = roots[-1][0] + 1
            right, left = roots.pop()[1], roots.pop()[1]
            noise = self.noise_of(level, self.leaves // 2**level - 1)
            roots.append((level, Node(add(left.total, right.total), noise, (left, right))))
        self.roots = roots

    def complete(self, nothing) -> None:
        """Empty leaves up to the next power of two, so that a single root is left."""
        while len(self.roots) > 1:
            self.append(nothing)

    def prefix(self, from_below: bool):
        """The noisy sum of all leaves."""
        parts = [root.estimate()[0] if from_below else root.released for _, root in self.roots]
        total = parts[0]
        for part in parts[1:]:
            total = add(total, part)
        return total


class Private(Rule):
    """Another rule with every trip clipped, and the noisy prefix sums of a mechanism in place of the true ones.

    Args:
      rule: whose direction is a weighted sum of updates.
      clip_norm: of each trip's update, over all parameters.
      deviation: standard deviation of a node's noise in the direction.
      noise_of: (tree, level, index) -> standard Gaussian noise, like the model; drawn elsewhere.
      mechanism: "independent", "tree", "tree_honaker" or "banded_toeplitz".
      steps: server steps of the run.
      restarts: of a tree.
      bands: of "banded_toeplitz".
    """

    def __init__(self, rule, clip_norm, deviation, noise_of, mechanism, steps, restarts=0, bands=1):
        self.rule, self.clip_norm, self.deviation, self.draw = rule, clip_norm, deviation, noise_of
        self.mechanism, self.steps, self.restarts, self.bands = mechanism, steps, restarts, bands

    def begin(self, params, num_clients):
        self.rule.begin(params, num_clients)
        self.nothing = zeros_like(params)
        self.step, self.finished, self.before = 0, self.nothing, self.nothing
        self.total, self.tree, self.trees = self.nothing, None, 0

    def noise(self, tree, level, index):
        return scale(self.deviation, self.draw(tree, level, index))

    def pseudo_gradient(self, params, trips):
        for trip in trips:
            length = norm(trip.update)
            if length > self.clip_norm:
                trip.update = scale(self.clip_norm / length, trip.update)
        direction = self.rule.pseudo_gradient(params, trips)
        self.step_scale = self.rule.step_scale
        step, self.step = self.step, self.step + 1
        if self.mechanism == "independent":
            return add(direction, self.noise(0, 0, step))
        if self.mechanism == "banded_toeplitz":
            for lag in range(min(self.bands, step + 1)):
                coefficient = (-1) ** lag * _binomial(0.5, lag)
                direction = add(direction, scale(coefficient, self.noise(0, 0, step - lag)))
            return direction
        prefix = self.tree_prefix(direction, step)
        released, self.before = subtract(prefix, self.before), prefix
        return released

    def tree_prefix(self, direction, step):
        """The noisy sum of all directions so far; begins and completes trees."""
        if self.tree is None:
            number = self.trees
            self.tree = Tree(lambda level, index: self.noise(number, level, index))
            self.trees += 1
        self.tree.append(direction)
        size = math.ceil(self.steps / (self.restarts + 1))
        ends = self.tree.leaves == size and step + 1 < self.steps
        if ends:
            self.tree.complete(self.nothing)
        prefix = add(self.finished, self.tree.prefix(self.mechanism == "tree_honaker"))
        if ends:
            self.finished, self.tree = prefix, None
        return prefix


def _binomial(number: float, lag: int) -> float:
    """The binomial coefficient of any number."""
    made = 1.0
    for factor in range(lag):
        made *= (number - factor) / (factor + 1)
    return made
