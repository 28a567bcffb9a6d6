"""Runs functions as if at once: after lines of one module another one goes on, at random or where told to."""

import random
import sys
import threading


class Interleaving:
    """Actors take turns in random order.

    Args:
      module: after each line of it somebody else may go on.
      seed: of the order.
      slowest_line: fake seconds that a line takes at most.
    """

    def __init__(self, module, seed, slowest_line=0.01):
        self.now, self.random = 0.0, random.Random(seed)
        self._file, self._slowest_line = module.__file__, slowest_line
        self._actors, self._back = [], threading.Semaphore(0)

    def run(self, functions, most_seconds):
        """Calls each function with its ``Actor`` until all have returned or died."""
        self._actors = [Actor(self, function) for function in functions]
        while going := [actor for actor in self._actors if not actor.is_over]:
            ready = [actor for actor in going if actor.asleep_until <= self.now]
            if not ready:
                self.now = min(actor.asleep_until for actor in going)
                continue
            self.now += self._slowest_line * self.random.random()
            assert self.now < most_seconds, "somebody waits for ever"
            actor = self.random.choice(ready)
            actor.turn.release()
            self._back.acquire()
            if actor.error:
                raise actor.error

    def take_turns(self, actor):
        """Lets somebody go on, perhaps this actor."""
        self._back.release()
        actor.turn.acquire()
        if actor.is_over:
            raise Dead


class Dead(BaseException):
    """Ends the thread of an actor that was killed."""


class Actor:
    """One of those that take turns; ``clock`` has an origin of its own."""

    def __init__(self, all_of_them, function):
        self._all, self.is_over, self.error, self.asleep_until = all_of_them, False, None, 0.0
        self._origin = 1e6 * all_of_them.random.random()
        self.turn, self.may_freeze = threading.Semaphore(0), True
        self.freezes = None  # a function of the actor, called after each line: how long it stands still
        threading.Thread(target=self._run, args=(function,), daemon=True).start()

    def clock(self):
        """Fake seconds."""
        return self._origin + self._all.now

    def sleep(self, seconds):
        """Goes on after so many fake seconds at the earliest."""
        self.asleep_until = self._all.now + seconds
        self._all.take_turns(self)

    def die(self):
        """Ends here, as with kill -9."""
        self.is_over = True
        raise Dead

    def _run(self, function):
        self.turn.acquire()
        sys.settrace(self._trace)
        try:
            function(self)
        except Dead:
            pass
        except BaseException as error:
            self.error = error
        finally:
            sys.settrace(None)
            self.is_over = True
            self._all._back.release()

    def _trace(self, frame, event, argument):
        if frame.f_code.co_filename != self._all._file:
            return None
        if event == "line":
            if self.freezes and self.may_freeze:
                self.asleep_until = self._all.now + self.freezes(self)
            self._all.take_turns(self)
        return self._trace


class Steps:
    """A function in a thread of its own, which goes on by so many lines of one module at a time."""

    def __init__(self, module, function):
        self._file, self._function = module.__file__, function
        self._go, self._stopped = threading.Semaphore(0), threading.Semaphore(0)
        self._left, self.is_over, self.result, self.error = 0, False, None, None
        threading.Thread(target=self._run, daemon=True).start()

    def go(self, lines=10**9):
        """Lets it run so many lines, by default to its end; returns what the function returned, None before that."""
        if not self.is_over:
            self._left = lines
            self._go.release()
            self._stopped.acquire()
        if self.error:
            raise self.error
        return self.result

    def _run(self):
        self._go.acquire()
        sys.settrace(self._trace)
        try:
            self.result = self._function()
        except BaseException as error:
            self.error = error
        finally:
            sys.settrace(None)
            self.is_over = True
            self._stopped.release()

    def _trace(self, frame, event, argument):
        if frame.f_code.co_filename != self._file:
            return None
        if event == "line":
            if self._left == 0:
                self._stopped.release()
                self._go.acquire()
            self._left -= 1
        return self._trace
