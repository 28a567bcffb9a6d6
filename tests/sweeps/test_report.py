"""Reports: one page that needs nothing else, with all that was run, the table, pictures, and how to repeat it."""

import base64
import json
import shutil
import subprocess
import sys

import pytest
from command_line import ROOT, environment
from page import Page
from quick_compilation import quick_compilation  # noqa: F401
from run_again import at_step, ctrl_c, quiet
from runs_by_hand import write_run, written_so

from jafl.base.errors import SettingError
from jafl.config.settings import Settings
from jafl.sweeps.report import write_report
from jafl.sweeps.sweep import run_sweep

SMALL = Settings(
    algorithm="fedbuff,fedasync",
    seed="0,1",
    model="softmax",
    num_clients=10,
    concurrency=5,
    client_trips=100,
    evaluate_every=10,
    target_accuracy=0.5,
)


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    """A sweep of two algorithms and seeds, one of its runs stopped."""
    folder = tmp_path_factory.mktemp("report") / "<b>sweep & all"
    stop = at_step(5, ctrl_c, run="fedasync-seed1")
    options = {"show": lambda line: None, "pictures": False}
    run_sweep(SMALL, "partition.alpha=0.1,1", folder, command=["python", "run.py", "--x=a b"], **options)
    (folder / "partition.alpha=1" / "fedasync-seed1" / "summary.json").unlink()
    run_sweep(SMALL, "partition.alpha=0.1,1", folder, trackers=[stop], **options)
    return folder


@pytest.fixture(scope="module")
def page(sweep):
    """The report on the sweep."""
    path, _ = write_report(sweep)
    return Page(path.read_text())


@pytest.mark.full
def test_the_page_needs_nothing_else(page):
    assert all(address.startswith(("#", "data:image/png;base64,")) for address in page.addresses)
    for picture in page.pictures:
        assert base64.b64decode(picture.partition(",")[2]).startswith(b"\x89PNG\r\n\x1a\n")


@pytest.mark.full
def test_it_says_what_was_run(page):
    assert page.headings == ["What was run", "Table", "Curves", "Schedules", "How to repeat it"]
    assert "Runs in <b>sweep & all" in page.text, "odd characters are text, not tags"
    assert "8 runs of fedbuff, fedasync with 2 seeds, under 2 conditions (partition.alpha)." in page.text
    common, differing, defaults, *_ = page.tables
    assert ["model", "softmax"] in common
    assert ["client_trips", "100"] in common
    assert ["batch_size", "8"] in defaults
    assert not {name for name, _ in common} & {name for name, _ in defaults}
    assert differing[0][0] == "algorithm"
    assert [line[differing[0].index("buffer_size")] for line in differing[1:]] == ["10", "1"]
    everything = [name for table in (common, defaults) for name, _ in table] + differing[0]
    assert set(Settings().__dict__) - set(everything) == {"seed"}
    assert {"partition", "partition.equal_sizes"} <= set(everything), (
        "the rest of a call of which a part is swept"
    )
    assert "partition.alpha" not in everything


@pytest.mark.full
def test_its_tables_hold_the_summarys_numbers(page, sweep):
    rows = json.loads((sweep / "summary.json").read_text())["table"]
    table = page.tables[3]
    assert len(table) == 1 + len(rows) == 5
    for line, row in zip(table[1:], rows, strict=True):
        assert line[0] == f"{row['condition']['partition.alpha']:g}"
        assert line[1] == row["algorithm"]
        error = f" ± {row['standard_error']:.4f}" if line[2] == "2" else ""
        assert line[3] == f"{row['final_test_accuracy']:.4f}{error}"
    markdown = (sweep / "report.md").read_text()
    lines = [line for line in markdown.splitlines() if line.startswith("|")]
    assert [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[:1] + lines[2:]] == table


@pytest.mark.full
def test_it_tells_of_what_did_not_finish_and_how_to_go_on(page):
    assert "1 run: stopped and can go on (run.py resume)." in page.text
    assert page.tables[3][-1][2] == "1 (1 not finished)", "what was stopped is in no mean"
    assert "python run.py '--x=a b'" in page.text
    runs = page.tables[-1]
    assert len(runs) == 1 + 8
    assert [line[1] for line in runs[1:]].count("interrupted") == 1


@pytest.mark.full
def test_it_shows_a_heat_map_curves_of_each_condition_and_schedules(page):
    assert len(page.pictures) == 1 + 2 + 12
    for caption in ("Staleness over time", "Participation of the clients", "Weights that trips were given"):
        assert caption in page.text
    assert "partition.alpha = 0.1" in page.text


@pytest.mark.full
def test_a_single_run_shows_its_own_pictures(sweep, tmp_path):
    quiet(
        Settings(**{**SMALL.__dict__, "algorithm": "fedbuff", "seed": "0"}), tmp_path / "run", pictures=True
    )
    first = write_report(tmp_path / "run")[0].read_text()
    drawn = (tmp_path / "run" / "labels_seen.png").read_bytes()
    assert base64.b64encode(drawn).decode() in first
    assert write_report(tmp_path / "run")[0].read_text() == first, "the same runs give the same page"
    assert "1 run of fedbuff with 1 seed." in Page(first).text


@pytest.mark.full
def test_any_directory_of_runs_and_runs_that_are_there_twice(sweep, tmp_path):
    source = sweep / "partition.alpha=1"
    for name, origin in (("a", "fedbuff-seed0"), ("b", "fedbuff-seed1"), ("c", "fedbuff-seed1")):
        shutil.copytree(source / origin, tmp_path / "some" / name)
    (tmp_path / "some" / "b" / "summary.json").unlink()
    config = json.loads((tmp_path / "some" / "a" / "config.json").read_text())
    config["client_optimizer"] = config["client_optimizer"].replace(
        "(learning_rate=0.3", "(learning_rate=0.9"
    )
    (tmp_path / "some" / "a" / "config.json").write_text(json.dumps(config))
    written_so(tmp_path / "some" / "a")
    page = Page(write_report(tmp_path / "some", baseline="fedbuff")[0].read_text())
    assert "under 2 conditions (learning_rate)" in page.text
    assert "1 run left out of means and curves" in page.text
    assert "1 run: under way, or killed" in page.text


@pytest.mark.full
def test_what_cannot_be_reported_is_refused(sweep, tmp_path):
    ended = subprocess.run(
        [sys.executable, ROOT / "run.py", "report", str(tmp_path)],
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 2
    assert "There is no run in" in ended.stderr
    assert not list(tmp_path.iterdir())
    with pytest.raises(SettingError, match="Did you mean 'fedbuff'"):
        write_report(sweep, baseline="fedbufff")


def test_a_report_names_the_options_of_jax_that_decide_random_numbers(tmp_path):
    write_run(tmp_path / "usual")
    write_run(tmp_path / "other", config={"jax_options": {"jax_threefry_partitionable": False}})
    usual, other = (write_report(tmp_path / name)[0].read_text() for name in ("usual", "other"))
    assert "jafl 1, JAX 2, Python 3, on cpu" in usual
    assert "jafl 1, JAX 2 with jax_threefry_partitionable=False, Python 3, on cpu" in other
