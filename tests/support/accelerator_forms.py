"""Makes programs on a CPU as for an accelerator: ``PlatformRows``, and the other half of ``by_platform``."""

import contextlib
from collections.abc import Iterator
from unittest import mock

from jafl.base import platform_forms
from jafl.engine import devices
from jafl.engine.plan import plan_choice


@contextlib.contextmanager
def accelerator_forms(platform: str = "tpu", kernel: str = "") -> Iterator[None]:
    """While it lasts, runs are prepared and traced as for this platform, and run on the CPU.

    kernel: ``Placement.kernel``.

    The platform is a static part of a run's program, so programs traced before and after are others.
    """

    def place_on(*arguments, **options):
        return devices.place_on(*arguments, **options)._replace(platform=platform, kernel=kernel)

    with (
        mock.patch.object(plan_choice, "place_on", place_on),
        mock.patch.object(platform_forms, "lax", Elsewhere(platform)),
    ):
        yield


class Elsewhere:
    """In the place of ``jax.lax``: a platform that is no CPU."""

    def __init__(self, platform: str):
        self.platform = platform

    def platform_dependent(self, *arrays, default, **forms):
        """The form of this platform."""
        return forms.get(self.platform, default)(*arrays)
