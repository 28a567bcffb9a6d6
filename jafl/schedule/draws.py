"""Random draws on the host that are keyed, not sequential: a draw depends on its key and on nothing else."""

import numpy as np

# Purposes of draws: one number each, so that two purposes never share a stream.
DURATION, SELECTION, LEAVING, FAILURE, PRESENCE, STARTS, PARTICIPATION, LOCAL_STEPS = 1, 2, 3, 4, 5, 6, 7, 8

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _mix(word: np.ndarray) -> np.ndarray:
    """A bijection of 64-bit words that scatters nearby ones (Stafford's variant 13, as in splitmix64)."""
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))


def keyed_uniform(seed: int, purpose: int, client: np.ndarray, trip: np.ndarray) -> np.ndarray:
    """[n] float64 in (0, 1), one per (client, trip); the same key always gives the same number.

    Each is a multiple of 2**-52 plus 2**-53, so that neither 0 nor 1 occurs. purpose: a number that distinguishes
    streams, DURATION for example.
    """
    stream = np.random.SeedSequence((abs(seed), int(seed < 0), purpose)).generate_state(2, np.uint64)
    with np.errstate(over="ignore"):
        word = _mix(stream[0] + np.asarray(client).astype(np.uint64) * _GOLDEN)
        word = _mix(word + stream[1] + np.asarray(trip).astype(np.uint64) * _GOLDEN)
    return ((word >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52  # 53 bits, so adding 0.5 is exact


def generator(seed: int, purpose: int) -> np.random.Generator:
    """A sequential NumPy generator for draws without a client and trip, such as which client starts next."""
    return np.random.default_rng(np.random.SeedSequence((abs(seed), int(seed < 0), purpose)))
