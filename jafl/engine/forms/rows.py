"""What differs between platforms: how the engine's loops lay out, read, write and order rows.

A loop over server steps carries arrays of rows: snapshots [slots, *P], the clients' memory [N, *V], trained trips
that wait to be folded. Each round reads some rows and writes others. The meaning is the same on every platform; what
makes it quick is not. ``ROWS`` has one object for each platform, and the loops ask it (``Placement.rows``) in place
of the platform's name: ``PlatformRows`` for GPUs and TPUs, and for CPUs ``CpuRows``, which is made of it. Functions
that see no program use ``jafl.base.platform_forms.by_platform``.

XLA updates an array in place if it can see that all reads of the old one come before the write. If it cannot, it
copies the whole array: with 1,000 clients under way, a thousand models for the sake of one. A CPU's compiler drops
barriers before it fuses, so ``CpuRows`` says what comes first by arithmetic that the compiler cannot look through;
``PlatformRows`` says it by barriers. Each method names the copy that it prevents, with what that copy costs.
"""

from jafl.engine.forms.cpu_rows import CpuRows
from jafl.engine.forms.platform_rows import PlatformRows

ROWS = {
    "cpu": CpuRows(),
    "gpu": PlatformRows(first_versions=64, segments_per_wait=4),
    "tpu": PlatformRows(tiled=True),
}
