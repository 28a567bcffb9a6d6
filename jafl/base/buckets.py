"""Lengths that arrays are padded to."""


def bucket(size: int) -> int:
    """``size`` rounded up to a power of two times 4, 5, 6 or 7 (sizes below 8 stay), at most a quarter more.

    Arrays are padded to such lengths, so that schedules of nearly the same size share one compiled program.
    """
    unit = 1 << max(0, size.bit_length() - 3)
    return -(-size // unit) * unit
