"""How long JAX traces, lowers and compiles, and nothing of what else happens meanwhile."""

from typing import Any

import jax.monitoring

# JAX's names of spans begin so: of tracing, lowering, and compiling or reading a program that was compiled before.
_COMPILING = "/jax/core/compile/"


class CompileTime:
    """Seconds that this process has spent on tracing, lowering and compiling while the context was open.

    Spans lie within one another, such as the tracing of a function that another one calls: each second counts once.
    """

    def __init__(self) -> None:
        self._spans: list[tuple[float, float]] = []  # none overlaps another; in order of time
        # Of all spans: there are thousands after many runs, and each part of a run asks for their sum.
        self._seconds = 0.0
        self._open = False

    def __enter__(self) -> "CompileTime":
        # JAX's own spans: a stopwatch around calls would count what they compute, too.
        jax.monitoring.register_event_time_span_listener(self._add)
        self._open = True
        return self

    def __exit__(self, *_: object) -> None:
        self._open = False
        unregister = getattr(jax.monitoring, "unregister_event_time_span_listener", None)
        if unregister:  # older versions of JAX call a listener for ever
            unregister(self._add)

    @property
    def seconds(self) -> float:
        """Wall-clock, so far."""
        return self._seconds

    def _add(self, event: str, start_time: float, end_time: float, **kwargs: Any) -> None:
        """A span, which JAX tells when it ends: later than all that lie within it."""
        if not self._open or not event.startswith(_COMPILING):
            return
        start, end = start_time, end_time
        later = []
        # Spans within this one have ended before it: they are replaced, so that no second counts twice.
        while self._spans and self._spans[-1][1] > start:
            before, after = self._spans.pop()
            self._seconds -= after - before
            if before > end:  # of another thread
                later.append((before, after))
            else:
                start, end = min(start, before), max(end, after)
        added = [(start, end), *reversed(later)]
        self._spans += added
        self._seconds += sum(after - before for before, after in added)
