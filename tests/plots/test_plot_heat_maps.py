"""Heat maps: every number in its field, one scale for all, the best framed, gaps white, bad input refused."""

import numpy as np
import pytest

from jafl import plots
from jafl.base.errors import SettingError

ROWS, COLUMNS = ("alpha", [0.1, 1, 10]), ("beta", ["1", "5"])
FIRST = np.array([[0.1, 0.2], [0.3, np.nan], [0.5, 0.6]])
SECOND = np.array([[0.2, 0.1], [0.3, 0.4], [0.7, np.nan]])


def maps(figure):
    """{title: axes} of the maps."""
    return {axes.get_title(): axes for axes in figure.axes if axes.get_title()}


def test_each_number_is_written_in_its_field():
    drawn = maps(plots.heat_maps({"a": FIRST, "b": SECOND}, ROWS, COLUMNS))
    for name, grid in (("a", FIRST), ("b", SECOND)):
        texts = {(text.get_position()[1], text.get_position()[0]): text for text in drawn[name].texts}
        assert set(texts) == {tuple(place) for place in np.argwhere(np.isfinite(grid)).tolist()}
        for place, text in texts.items():
            assert text.get_text() == f"{grid[place]:.3f}"
        assert [label.get_text() for label in drawn[name].get_xticklabels()] == ["1", "5"]
    assert [label.get_text() for label in drawn["a"].get_yticklabels()] == ["0.1", "1", "10"]


def test_all_maps_share_one_scale():
    drawn = maps(plots.heat_maps({"a": FIRST, "b": SECOND}, ROWS, COLUMNS))
    assert {axes.images[0].get_clim() for axes in drawn.values()} == {(0.1, 0.7)}
    alone = maps(plots.heat_maps({"a": FIRST}, ROWS, COLUMNS, errors={"a": 1e-6 + 0 * FIRST}))["a"]
    assert not alone.patches


def framed(figure):
    """{title: fields that are framed}."""
    return {
        name: sorted((round(p.get_y() + 0.44), round(p.get_x() + 0.47)) for p in axes.patches)
        for name, axes in maps(figure).items()
    }


def test_only_a_lead_beyond_the_interval_is_framed():
    figure = plots.heat_maps({"a": FIRST, "b": SECOND}, ROWS, COLUMNS)
    assert framed(figure) == {"a": [], "b": []}
    assert figure.get_suptitle() == "test accuracy; none is framed as the best: one seed shows no error"
    errors = {"a": np.full((3, 2), 0.03), "b": np.full((3, 2), 0.02)}
    figure = plots.heat_maps({"a": FIRST, "b": SECOND}, ROWS, COLUMNS, errors=errors)
    assert framed(figure) == {"a": [(0, 1)], "b": [(0, 0), (2, 0)]}  # 0.1 is more than 1.96 * 0.036
    assert "framed: better than each other label at 95 %" in figure.get_suptitle()
    few = {"a": np.full((3, 2), 2), "b": np.full((3, 2), 2)}  # Welch: t is 4.9 or so, and 0.1 too little
    figure = plots.heat_maps({"a": FIRST, "b": SECOND}, ROWS, COLUMNS, errors=errors, seeds=few)
    assert framed(figure) == {"a": [], "b": [(2, 0)]}
    texts = [text.get_text() for text in maps(figure)["a"].texts]
    assert texts[0] == "0.100\n± 0.030"


def test_three_labels_are_framed_only_against_all_others():
    row, errors = ("", [""]), {name: np.full((1, 2), 0.01) for name in "abc"}
    values = {"a": [[0.9, 0.9]], "b": [[0.5, 0.89]], "c": [[0.4, np.nan]]}
    assert framed(plots.heat_maps(values, row, COLUMNS, errors=errors)) == {"a": [(0, 0)], "b": [], "c": []}


def test_colors_do_not_stretch_noise():
    def clim(**options):
        values = {"a": np.array([[0.900, 0.901], [0.902, 0.9]])}
        axes = maps(plots.heat_maps(values, ("r", [1, 2]), COLUMNS, **options))["a"]
        return axes.images[0].get_clim()

    assert clim(errors={"a": np.full((2, 2), 0.01)}) == pytest.approx((0.851, 0.951))  # ten standard errors
    assert clim() == pytest.approx((0.901 - 0.0451, 0.901 + 0.0451))  # a tenth of the largest value
    assert clim(errors={"a": np.full((2, 2), 1e-5)}) == pytest.approx((0.9, 0.902))


@pytest.mark.full
def test_a_single_row_many_maps_and_nothing_to_show(tmp_path):
    many = {str(number): np.full((1, 2), number / 10) for number in range(7)}
    figure = plots.heat_maps(many, ("", [""]), COLUMNS)
    assert len(maps(figure)) == 7
    plots.save(figure, tmp_path / "many.png")
    empty = plots.heat_maps({"a": np.full((3, 2), np.nan)}, ROWS, COLUMNS)
    assert not maps(empty)["a"].texts
    plots.save(empty, tmp_path / "empty.png")
    assert plots.png(plots.heat_maps(many, ("", [""]), COLUMNS)) == (tmp_path / "many.png").read_bytes()


@pytest.mark.parametrize("values", [{}, {"a": FIRST.T}, {"a": FIRST, "b": [1.0, 2.0]}])
def test_bad_input_is_refused(values):
    with pytest.raises(SettingError, match="values"):
        plots.heat_maps(values, ROWS, COLUMNS)
