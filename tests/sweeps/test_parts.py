"""Parts of a sweep: which runs they have, how they are written, SLURM's arrays, and what they leave."""

import json

import killed
import pytest
from command_line import flags
from hypothesis import given
from hypothesis import strategies as st
from in_process import command
from run_again import assert_same, at_step, contents, ctrl_c

from jafl.base.errors import SettingError
from jafl.config import grid
from jafl.config.data_cache import DataCache
from jafl.config.settings import Settings
from jafl.runs import lock
from jafl.sweeps import parts, sweep
from jafl.sweeps.grid_runs import Request, SweepRuns, directories
from jafl.sweeps.sweep import run_sweep

SMALL = {
    "algorithm": "fedbuff,asgd",
    "seed": "0,1,2",
    "model": "softmax",
    "num_clients": 10,
    "concurrency": 5,
    "client_trips": 100,
    "evaluate_every": 10,
}
SWEEP = "partition.alpha=0.1,10"
ONE = {**SMALL, "algorithm": "fedbuff", "seed": "0"}


def quiet(folder, settings=SMALL, text=SWEEP, **options):
    how = {"show": lambda line: None, "pictures": False, "progress": False, **options}
    return run_sweep(Settings(**settings), text, folder, **how)


@pytest.fixture
def without_locks(monkeypatch):
    monkeypatch.setattr(lock, "has_locks", lambda _: False)


@given(st.lists(st.integers(1, 100), max_size=40), st.integers(1, 20))
def test_parts_are_disjoint_and_whole_and_about_as_heavy(weights, count):
    dealt = parts.deal(weights, count)
    assert len(dealt) == count
    assert sorted(place for part in dealt for place in part) == list(range(len(weights)))
    loads = [sum(weights[place] for place in part) for part in dealt]
    assert max(loads) - min(loads) <= max(weights, default=0)


@pytest.mark.full
@pytest.mark.few_in_full(2)
@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize(
    "count", [1, 3, *(pytest.param(count, marks=pytest.mark.full) for count in (2, 5, 30))]
)
def test_the_parts_of_a_sweep_are_disjoint_and_whole(count, together, tmp_path):
    settings = Settings(**SMALL)
    arms = {name: {"algorithm": name} for name in settings.algorithm.split(",")}
    request = Request(grid.parse("partition.alpha=0.1,10;buffer_size=5,10"), arms, settings.seed)
    requested = frozenset(directories(tmp_path, request.conditions(settings, ())))
    runs = SweepRuns(tmp_path, [request], settings, (), requested, together)
    owned = [runs.part(f"{number}/{count}").requested for number in range(1, count + 1)]
    assert sum(map(len, owned)) == len(frozenset().union(*owned)) == len(requested) == 24
    for batch in runs.groups(DataCache()):
        assert len(batch) == 1 or together
        assert sum(any(run.path in own for run in batch) for own in owned) == 1, "a batch is in one part"
    if not together:
        assert max(map(len, owned)) - min(map(len, owned)) <= 1


@pytest.mark.full
def test_a_part_does_not_depend_on_what_is_over_or_was_added(tmp_path):
    settings = Settings(**{**SMALL, "algorithm": "fedbuff"})
    arms = {"fedbuff": {"algorithm": "fedbuff"}}
    request, more = (Request(grid.parse(text), arms, settings.seed) for text in (SWEEP, f"{SWEEP},100"))
    requested = frozenset(directories(tmp_path, request.conditions(settings, ())))
    runs = SweepRuns(tmp_path, [request], settings, (), requested, False)
    before = runs.part("2/3").requested
    quiet(tmp_path, {**SMALL, "algorithm": "fedbuff"}, runs_together="never", part="1/3")
    assert not any((path / "summary.json").is_file() for path in before)
    assert runs.part("2/3").requested == before
    assert (
        SweepRuns(tmp_path, [request, more], settings, (), requested, False).part("2/3").requested == before
    )


@pytest.mark.parametrize(
    "text", ["0/4", "5/4", "3", "a/b", "1/0", "-1/4", "1/4/2", "1.0/4", " 1/4", "1/", ""]
)
def test_a_wrong_part_is_refused(text, tmp_path):
    with pytest.raises(SettingError, match=f"part is {text!r}, but must be NUMBER/COUNT"):
        quiet(tmp_path / "sweep", part=text)
    assert not (tmp_path / "sweep").exists()


def array(own, ids, step=1, **more):
    """What SLURM sets for one task of an array."""
    content = {"ID": own, "COUNT": len(ids), "MIN": min(ids), "MAX": max(ids), "STEP": step, **more}
    return {f"SLURM_ARRAY_TASK_{name}": str(value) for name, value in content.items()}


@pytest.mark.parametrize(
    "ids, step",
    [
        (range(16), 1),
        (range(1, 17), 1),
        (range(5, 8), 1),
        (range(0, 61, 4), 4),
        (range(3, 30, 7), 7),
        ([9], 1),
    ],
)
def test_the_tasks_of_a_slurm_array_are_its_parts(ids, step):
    found = [parts.slurm_part(array(own, ids, step)) for own in ids]
    assert found == [f"{number}/{len(ids)}" for number in range(1, len(ids) + 1)]
    last = {"SLURM_ARRAY_TASK_MAX": str(max(ids) + step - 1)}  # as --array=0-63:4 writes it
    assert [parts.slurm_part(array(own, ids, step) | last) for own in ids] == found
    assert parts.slurm_part({}) is None
    assert parts.slurm_part({"SLURM_JOB_ID": "7"}) is None


@pytest.mark.parametrize("ids", [(1, 5, 9), (1, 2, 9), (0, 1, 3)])
@pytest.mark.parametrize("own", [0, 1, 2])
def test_the_tasks_of_a_list_are_refused(ids, own):
    with pytest.raises(SettingError, match=f"SLURM_ARRAY_TASK_ID is '{ids[own]}'.*pass --part to each task"):
        parts.slurm_part(array(ids[own], ids))


@pytest.mark.parametrize("wrong", [{"COUNT": ""}, {"STEP": 0}, {"MIN": "x"}, {"ID": "7"}, {"ID": "x"}])
def test_variables_that_make_no_sense_are_refused(wrong):
    with pytest.raises(SettingError, match="SLURM_ARRAY_TASK_ID is"):
        parts.slurm_part(array(0, range(4)) | array(0, range(4), **wrong))


@pytest.mark.few_in_full(1)
@pytest.mark.full
@pytest.mark.parametrize("together", ["auto", "never"])
def test_parts_one_after_the_other_leave_what_one_process_leaves(together, without_locks, tmp_path):
    """The last one first; the pictures come with the part that ends last."""
    options = {"runs_together": together, "pictures": None}
    said = []
    first = quiet(tmp_path / "parts", part="2/2", show=said.append, **options)
    assert 0 < first.left < 12 and first.part_left == 0
    assert any(f"{first.left} runs of other parts are not over" in line for line in said)
    assert not list((tmp_path / "parts").rglob("*.png"))
    last = quiet(tmp_path / "parts", part="1/2", **options)
    assert last.left == 0 and last.statuses == {"finished": 12}
    assert sum(first.part_statuses.values()) + sum(last.part_statuses.values()) == 12
    quiet(tmp_path / "alone", **options)
    assert_same(tmp_path / "parts", tmp_path / "alone")
    pictures = [sorted(one.relative_to(tmp_path / name) for one in (tmp_path / name).rglob("*.png")) for name in
                ("parts", "alone")]  # fmt: skip
    assert pictures[0] == pictures[1]


@pytest.mark.few_in_full(1)
@pytest.mark.full
@pytest.mark.parametrize("count", [2, 3])
def test_parts_at_once_leave_what_one_process_leaves(count, tmp_path):
    """Without locks, and each run is trained by one of them."""
    folder, logs = tmp_path / "sweep", [tmp_path / f"{number}.txt" for number in range(count)]
    processes = [
        killed.start_sweep(SMALL, SWEEP, folder, str(log), "never", f"{number}/{count}")
        for number, log in enumerate(logs, 1)
    ]
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * count
    begun = [path for log in logs for path in log.read_text().split()]
    assert len(begun) == len(set(begun)) == 12
    quiet(tmp_path / "alone", runs_together="never")
    assert_same(folder, tmp_path / "alone")


@pytest.mark.few_in_full(1)
@pytest.mark.full
@pytest.mark.parametrize("together", ["auto", "never"])
def test_a_part_that_was_stopped_goes_on_with_its_own_runs(together, without_locks, tmp_path):
    settings = {**SMALL, "algorithm": "fedbuff", "client_trips": 300}
    folder, begun = tmp_path / "sweep", []

    def note(path, _, server_step):
        begun.append((path, server_step))
        return at_step(5, ctrl_c)(path, None, 0) if len(begun) == 1 else at_step(10**6, ctrl_c)(path, None, 0)

    options = {"runs_together": together, "trackers": [note], "part": "1/2"}
    stopped = quiet(folder, settings, **options)
    assert stopped.part_statuses.get("interrupted") and stopped.part_left
    quiet(folder, settings, **{**options, "part": "2/2", "trackers": []})
    last = len(begun)
    outcome = quiet(folder, settings, **options)
    assert outcome.statuses == {"finished": 6}
    assert begun[last][0] == begun[0][0] and begun[last][1] >= 5
    quiet(tmp_path / "alone", settings, runs_together=together)
    assert_same(folder, tmp_path / "alone")


@pytest.mark.full
def test_there_may_be_more_parts_than_runs(tmp_path):
    said = []
    outcomes = [quiet(tmp_path, ONE, part=f"{number}/5", show=said.append) for number in (5, 1, 2, 3, 4)]
    assert [sum(one.part_statuses.values()) for one in outcomes] == [0, 1, 1, 0, 0] or (
        [sum(one.part_statuses.values()) for one in outcomes] == [0, 2, 0, 0, 0]
    )
    assert outcomes[-1].statuses == {"finished": 2}
    assert sum("0 of 2 runs" in line for line in said) >= 3


@pytest.mark.full
def test_the_last_writer_has_seen_what_all_others_left(without_locks, monkeypatch, tmp_path):
    """Another part comes to its end while this one makes the table: without locks, between its look and its write."""
    survey, looks = sweep.survey, []

    def slow(root):
        found = survey(root)
        looks.append(len(found[0]))
        if len(looks) == 1:
            quiet(tmp_path, ONE, part="2/2", runs_together="never")
        return found

    monkeypatch.setattr(sweep, "survey", slow)
    outcome = quiet(tmp_path, ONE, part="1/2", runs_together="never")
    assert looks == [1, 2, 2]
    assert outcome.statuses == {"finished": 2} and outcome.left == 0
    assert json.loads((tmp_path / "summary.json").read_text())["runs"] == {"finished": 2}


@pytest.mark.full
def test_parts_that_begin_at_once_do_not_refuse_each_others_sweep(without_locks, monkeypatch, tmp_path):
    write, begun = sweep.RunDirectory, []

    def slow(path, **options):
        begun.append(path)
        if len(begun) == 1:
            quiet(tmp_path, ONE, part="2/2", runs_together="never")
        return write(path, **options)

    monkeypatch.setattr(sweep, "RunDirectory", slow)
    assert quiet(tmp_path, ONE, part="1/2", runs_together="never").left == 0


@pytest.mark.full
def test_without_locks_several_processes_are_sent_to_their_parts(without_locks, tmp_path):
    said = []
    for part in (None, "1/2"):
        with pytest.raises(
            SettingError, match="processes is 2, but must be 1 here.*without locks.*--part=1/2"
        ):
            quiet(tmp_path, ONE, processes=2, part=part)
    quiet(tmp_path, ONE, show=said.append)
    assert any("without locks" in line for line in said)
    said.clear()
    quiet(tmp_path, ONE, show=said.append, part="1/2")
    assert not any("without locks" in line for line in said), "nothing is left to do there"


# The command


def typed(*more, **settings):
    return [*flags({**ONE, **settings}), "--pictures=none", *more]


@pytest.mark.full
def test_a_task_of_an_array_trains_its_part_of_a_sweep(monkeypatch, tmp_path):
    for name, value in array(8, range(4, 12, 4), 4).items():
        monkeypatch.setenv(name, value)
    given = ["sweep", SWEEP, *typed("--output_dir=sweep", "--runs_together=never")]
    said = command(given, tmp_path)
    assert said.status == 0, said.text
    assert "--part=2/2" in said.text and "1 runs of other parts are not over" in said.text
    said = command([*given, "--part=1/1"], tmp_path)
    assert said.status == 0, said.text
    assert json.loads((tmp_path / "sweep" / "summary.json").read_text())["runs"] == {"finished": 2}
    before = contents(tmp_path / "sweep")
    assert command(given, tmp_path).status == 0, "its runs are finished"
    assert contents(tmp_path / "sweep") == before
    said = command(typed("--output_dir=run"), tmp_path)
    assert said.status == 0 and "--part" not in said.text, "a run for itself is no part"


@pytest.mark.full
def test_the_status_of_a_part_is_that_of_its_own_runs(tmp_path):
    """The other part has diverged."""
    given = [
        "--runs_together=never",
        "--output_dir=sweep",
        "--client_work.l2=1.0",
    ]
    swept = ["sweep", "learning_rate=0.1,1e38"]
    statuses = [command([*swept, *typed(*given, f"--part={part}/2")], tmp_path).status for part in (2, 1, 2)]
    assert statuses == [1, 0, 1]


def test_a_comparison_in_parts_is_a_sweep_in_which_nothing_is_swept(tmp_path):
    given = ["sweep", *typed("--output_dir=both", "--runs_together=never", seed="0,1")]
    for number in (1, 2):
        said = command([*given, f"--part={number}/2"], tmp_path)
        assert said.status == 0, said.text
    assert json.loads((tmp_path / "both" / "summary.json").read_text())["runs"] == {"finished": 2}
    assert (tmp_path / "both" / "fedbuff-seed1" / "summary.json").is_file()
    assert command(["resume", "both", "--part=1/2", "--pictures=none"], tmp_path).status == 0


@pytest.mark.full
def test_a_comparison_that_began_without_parts_goes_on_without(tmp_path):
    (tmp_path / "both").mkdir()
    assert command(typed("--output_dir=both", seed="0,1", client_trips=20), tmp_path).status == 0
    said = command(["resume", "both", "--part=1/2"], tmp_path)
    assert said.status == 2 and "part is '1/2', but must be left out, but for a sweep" in said.text
    said = command(["report", "both", "--part=1/2"], tmp_path)
    assert said.status == 2 and "report has no flag 'part'" in said.text
