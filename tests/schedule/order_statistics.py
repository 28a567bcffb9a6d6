"""Expected order statistics, for the lengths of rounds that wait for some of their clients."""

import scipy.integrate
import scipy.stats


def mean_of_order_statistic(law, rank, number):
    """E of the ``rank``-th smallest of ``number`` draws, by integration over the probability."""
    weight = scipy.stats.beta(rank, number - rank + 1)
    middle, spread = weight.mean(), weight.std()
    low, high = max(0.0, middle - 12 * spread), min(1.0, middle + 12 * spread)
    return scipy.integrate.quad(lambda u: law.ppf(u) * weight.pdf(u), low, high, limit=500)[0]
