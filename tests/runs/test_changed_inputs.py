"""Files that decide results and have changed: other runs in every mean, and no run goes on over them."""

import dataclasses

import pytest
from quick_compilation import quick_compilation  # noqa: F401
from run_again import at_step, contents, ctrl_c, quiet
from runs_by_hand import write_run

from jafl.base.errors import SettingError
from jafl.config import calls, grid
from jafl.config.calls import input_digests
from jafl.config.data_cache import DataCache
from jafl.config.experiment import make_experiment
from jafl.config.resolution import resolve
from jafl.config.settings import Settings
from jafl.runs.directory.reader import find_runs
from jafl.sweeps import seed_means
from jafl.sweeps.report import write_report
from jafl.sweeps.sweep import run_sweep

SMALL = Settings(
    algorithm="fedbuff", model="softmax", num_clients=12, concurrency=6, buffer_size=4, client_trips=120
)


TRACE = "duration_trace('t.csv')"


def write_trace(path, first=1.0):
    path.write_text("client,duration\n" + "".join(f"{n},{first + n}\n" for n in range(12)))


def write_windows(path, first=1.0):
    path.write_text("client,start,end\n" + "".join(f"{n},0,{first + 1000 * n}\n" for n in range(12)))


# {name under ``inputs``: (what writes the file, the setting that names it)}
WRITERS = {
    "delay.path": (write_trace, "duration_trace({!r})"),
    "availability.path": (write_windows, "read_availability({!r})"),
}


def write(tmp_path, name, first=1.0):
    """Writes the file of ``name`` and returns it."""
    file = tmp_path / f"{name}.csv"
    WRITERS[name][0](file, first)
    return str(file)


def over(tmp_path, name):
    """Settings over the file of ``name``."""
    value = WRITERS[name][1].format(write(tmp_path, name))
    return dataclasses.replace(SMALL, **{name.partition(".")[0]: value})


def test_what_lies_in_a_folder_counts_file_by_file(tmp_path):
    for name in ("config.json", "model.safetensors", "vocab.txt", "notes.txt"):
        (tmp_path / name).write_text(name)
    files = calls.files({"model": "sent140_lstm(embeddings_file='~/glove.txt')", "delay": "gamma"})
    assert list(files) == ["model.embeddings_file"]
    assert "~" not in str(files["model.embeddings_file"])
    settings = dataclasses.replace(SMALL, model=f"bert(model_dir={str(tmp_path)!r})")
    assert list(calls.files(vars(settings))) == [
        "model.model_dir/config.json",
        "model.model_dir/model.safetensors",
        "model.model_dir/vocab.txt",
    ]
    source = DataCache().source(SMALL)
    before = input_digests(settings, source)
    (tmp_path / "vocab.txt").write_text("more words")
    assert {what for what, digest in input_digests(settings, source).items() if digest != before[what]} == {
        "model.model_dir/vocab.txt"
    }


def test_a_law_is_no_file_though_one_is_called_so(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gamma").write_text("x")
    (tmp_path / "once_per_client(gamma)").write_text("x")
    for law in ("gamma", "once_per_client(gamma)"):
        assert calls.files({**vars(SMALL), "delay": law}) == {}


@pytest.mark.parametrize("name", WRITERS)
def test_the_digest_follows_the_content(name, tmp_path):
    settings = over(tmp_path, name)

    def digests():
        loaded = DataCache()
        ((label, run),) = resolve({"fedbuff": settings}, loaded)
        return dict(make_experiment(label, run, loaded).inputs)

    first = digests()
    assert {*first} == {"dataset", name}
    write(tmp_path, name, 2.0)
    second = digests()
    assert (second["dataset"], second[name] == first[name]) == (first["dataset"], False)
    write(tmp_path, name)
    assert digests() == first


def test_data_are_the_same_in_every_split_and_others_in_every_source():
    loaded = DataCache()
    digests = {
        (dataset, seed): loaded.source(
            dataclasses.replace(SMALL, dataset=dataset, seed=seed, split="split(resample=True)")
        ).digest
        for dataset in ("digits", "mnist_5000", "synthetic")
        for seed in ("0", "1")
    }
    assert digests["digits", "0"] == digests["digits", "1"] != digests["mnist_5000", "0"]
    assert digests["mnist_5000", "0"] == digests["mnist_5000", "1"]
    assert digests["synthetic", "0"] is None, "no file holds it"


@pytest.fixture
def no_pictures(monkeypatch):
    monkeypatch.setattr("jafl.sweeps.report._curves", lambda *_: [])
    monkeypatch.setattr("jafl.sweeps.report._schedule_pictures", lambda *_: [])


def test_seeds_over_a_changed_file_are_in_no_mean_together(tmp_path, no_pictures):
    for seed, digest in (("0", "a" * 64), ("1", "a" * 64), ("2", "b" * 64)):
        write_run(tmp_path / f"s{seed}", seed=seed, delay=TRACE, config={"inputs": {"delay.path": digest}})
    arms = seed_means.by_arm(find_runs(tmp_path))
    assert [(arm.condition, len(arm.runs)) for arm in arms] == [
        ({"delay.path": "t.csv (aaaaaaaaaaaa)"}, 2),
        ({"delay.path": "t.csv (bbbbbbbbbbbb)"}, 1),
    ]
    text = write_report(tmp_path)[1].read_text()
    assert "bbbbbbbbbbbb" in text
    assert "under 2 conditions (delay.path)" in text


@pytest.mark.parametrize("whole", [True, False])
def test_a_swept_file_that_has_changed_is_two_conditions(whole, tmp_path):
    for seed in ("0", "1"):
        for file in ("a.csv", "b.csv"):
            digest = f"{file[0]}{seed if file == 'b.csv' else '0'}" * 32
            delay = f"duration_trace({file!r})"
            condition = {"delay": delay} if whole else {"delay.path": file}
            folder = tmp_path / grid.folder(condition) / f"fedbuff-seed{seed}"
            write_run(folder, seed=seed, delay=delay, config={"inputs": {"delay.path": digest}})
    arms = seed_means.by_arm(find_runs(tmp_path))
    assert [(arm.condition["delay.path"], len(arm.runs)) for arm in arms] == [
        ("a.csv", 2),
        ("b.csv (b0b0b0b0b0b0)", 1),
        ("b.csv (b1b1b1b1b1b1)", 1),
    ]


def test_runs_that_tell_no_digest_are_pooled_with_those_of_one(tmp_path):
    write_run(tmp_path / "s0", seed="0", delay=TRACE)
    write_run(tmp_path / "s1", seed="1", delay=TRACE, config={"inputs": {"delay.path": "a" * 64}})
    assert [len(arm.runs) for arm in seed_means.by_arm(find_runs(tmp_path))] == [2]


@pytest.mark.full
@pytest.mark.parametrize("name", WRITERS)
def test_a_run_does_not_go_on_over_a_changed_file(name, tmp_path):
    settings = over(tmp_path, name)
    quiet(settings, tmp_path / "run", trackers=[at_step(10, ctrl_c)])
    before = contents(tmp_path / "run")
    write(tmp_path, name, 2.0)
    with pytest.raises(SettingError) as refused:
        quiet(settings, tmp_path / "run", resume=True)
    for part in (f"{tmp_path / 'run'} holds", f"{name}: the file '{tmp_path}/{name}.csv' held", "Put back"):
        assert part in str(refused.value)
    assert contents(tmp_path / "run") == before
    write(tmp_path, name)
    assert quiet(settings, tmp_path / "run", resume=True)[0].status == "finished"


def test_a_sweep_does_not_go_on_over_a_changed_file(tmp_path):
    settings, quietly = over(tmp_path, "delay.path"), {"show": lambda _: None, "pictures": False}
    run_sweep(settings, "learning_rate=0.1", tmp_path / "sweep", **quietly)
    write(tmp_path, "delay.path", 2.0)
    # Nothing is left to train, and the table is made of what was measured.
    assert run_sweep(settings, "learning_rate=0.1", tmp_path / "sweep", **quietly).statuses == {"finished": 1}
    with pytest.raises(SettingError, match="learning_rate=0.1.fedbuff-seed0 holds a run of other inputs"):
        run_sweep(settings, "learning_rate=0.1,0.3", tmp_path / "sweep", **quietly)
