"""Laws of presence: what their three methods promise each other, and what each law says of itself."""

import math

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from schedule_cases import presences

from jafl.schedule import availability

CLIENTS = 9


@st.composite
def laws_and_times(draw):
    """A prepared law of any kind, a client, and sorted times, on whole and half numbers too."""
    law = draw(presences(CLIENTS)).prepare(CLIENTS, draw(st.integers(0, 99)))
    times = st.floats(0, 200) | st.integers(0, 100).map(lambda number: number / 2)
    return law, draw(st.integers(0, CLIENTS - 1)), sorted(draw(st.lists(times, min_size=1, max_size=8)))


@settings(max_examples=100)
@given(laws_and_times())
def test_the_next_moment_of_presence_never_lies_behind_and_never_goes_back(case):
    law, client, times = case
    moments = [law.next_available(client, time) for time in times]
    assert all(moment >= time for moment, time in zip(moments, times, strict=True))
    assert moments == sorted(moments)


@settings(max_examples=100)
@given(laws_and_times())
def test_presence_lasts_until_its_end_and_not_longer(case):
    law, client, times = case
    if isinstance(law, availability.from_functions) and law.until is None:
        reject()
    for time in times:
        if law.next_available(client, time) != time:
            continue
        end = law.window_end(client, time)
        assert end > time
        moments = (time + (min(end, 1e6) - time) * share for share in (0.1, 0.5, 0.9))
        for moment in (moment for moment in moments if moment < end):  # which rounding may have made of it
            assert law.next_available(client, moment) == moment
        if end < math.inf and not isinstance(
            law, availability.on_and_off
        ):  # draws may be away for a moment only
            assert law.next_available(client, end) > end
        assert law.present_until(client, time) == (end if law.loses_trips else math.inf)


UNEVEN = {
    "diurnal": availability.diurnal(0.7, 0.9, 0.5),
    "windows": availability.windows(np.arange(CLIENTS + 1), np.arange(CLIENTS) / 9, [2.3] * CLIENTS, 5.3),
    "on_and_off": availability.on_and_off(0.7, 0.3),
}


@pytest.mark.parametrize("law", UNEVEN.values(), ids=UNEVEN)
def test_a_client_is_there_at_the_moment_at_which_it_is_said_to_be(law):
    """To the last bit, also where a period is no round number: else it sleeps once more, for a rounding error."""
    law = law.prepare(CLIENTS, 0)
    for client in range(CLIENTS):
        for time in np.linspace(0.0, 500.0, 701).tolist():
            moment = law.next_available(client, time)
            assert law.next_available(client, moment) == moment, f"client {client} at {time}"


@pytest.mark.parametrize("spread", [0.0, 0.25, 1.0])
@pytest.mark.parametrize("share", [0.1, 0.5, 1.0])
def test_diurnal_clients_are_there_for_their_share_of_every_day(share, spread):
    clients, day = 400, 24.0
    law = availability.diurnal(day, share, spread).prepare(clients, 3)
    for time in (0.0, 100.0, 2400.0):
        begins = np.array([law.next_available(client, time) for client in range(clients)])
        assert np.all(begins - time <= (1 - share) * day + 1e-9)
    moments = np.random.default_rng(0).uniform(240.0, 480.0, 50)
    there = np.mean([[law.next_available(c, t) == t for c in range(clients)] for t in moments])
    expected = {0.0: np.mean(moments % day < share * day)}.get(spread)
    if spread == 1.0 or share == 1.0:
        expected = share
    if expected is not None:
        assert there == pytest.approx(expected, abs=0.02)


def test_on_and_off_last_as_long_as_said_and_begin_with_on():
    law = availability.on_and_off(3.0, 1.5).prepare(40, 5)
    on, off = [], []
    for client in range(40):
        assert law.next_available(client, 0.0) == 0.0
        time = 0.0
        for _ in range(100):
            end = law.window_end(client, time)
            following = law.next_available(client, end)
            on.append(end - time)
            off.append(following - end)
            time = following
    for lengths, mean in ((on, 3.0), (off, 1.5)):
        error = np.std(lengths) / math.sqrt(len(lengths))
        assert abs(np.mean(lengths) - mean) < 4 * error < 0.1 * mean * 4
        assert np.std(lengths) == pytest.approx(mean, rel=0.1)  # exponential
    # No length says anything of another: of the same window, of the next one, or of the next after that.
    for first, second in (
        (on, off),
        (on[1:], off[:-1]),
        (on[:-1], on[1:]),
        (off[:-1], off[1:]),
        (on[:-2], on[2:]),
    ):
        assert abs(np.corrcoef(first, second)[0, 1]) < 4 / math.sqrt(len(first))
    assert len(np.unique(on)) == len(on) and len(np.unique(off)) == len(off)


def test_windows_by_hand():
    """Client 0 has two windows that touch over the turn of the period, client 1 none."""
    law = availability.windows([0, 2, 2], [0.0, 8.0], [2.0, 10.0], period=10.0, loses_trips=True)
    law = law.prepare(2, 0)
    assert [law.next_available(0, time) for time in (0.0, 1.9, 2.0, 7.9, 8.0, 12.0)] == [0, 1.9, 8, 8, 8, 18]
    assert [law.window_end(0, time) for time in (0.0, 8.0, 9.0, 11.0, 18.5)] == [2, 12, 12, 12, 22]
    assert law.next_available(1, 5.0) == math.inf
    whole = availability.windows([0, 1], [0.0], [10.0], period=10.0, loses_trips=True).prepare(1, 0)
    assert (whole.window_end(0, 3.0), whole.next_available(0, 10.0)) == (math.inf, 10.0)
    once = availability.windows([0, 1], [1.0], [2.0]).prepare(1, 0)
    assert [once.next_available(0, time) for time in (0.0, 1.5, 2.0)] == [1, 1.5, math.inf]
    assert once.present_until(0, 1.5) == math.inf  # nothing is lost
