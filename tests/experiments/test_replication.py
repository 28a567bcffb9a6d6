"""Replications: seeds that share nothing with the file's, and how far two sets of verdicts agree."""

import dataclasses

import pytest
from test_protocol import ANALYSIS, EXPERIMENT

from experiments.harness.declare import checks, discovery, protocol
from experiments.harness.declare.search import climb
from experiments.harness.judge import replication
from experiments.harness.report import kept_results, pages
from experiments.harness.run import running
from jafl.base.errors import SettingError
from jafl.runs.directory.reader import read_json


def test_a_replication_has_seeds_trials_and_divisions_of_its_own():
    first = EXPERIMENT.scales["desk"]
    moved = [replication.replicated(EXPERIMENT, "desk", number).scales["desk"] for number in (1, 2)]
    folds = first.settings["split.folds"]
    used = [{*scale.seeds, *scale.search.seeds} for scale in (first, *moved)]
    divisions = [{seed // folds for seed in seeds} for seeds in used]
    for sets in (used, divisions):
        assert len(set().union(*sets)) == sum(map(len, sets))
    for scale in moved:
        # The same number of seeds share a division, and the protocol allows the replication, too.
        assert [seed % folds for seed in scale.seeds] == [seed % folds for seed in first.seeds]
        checks.check(dataclasses.replace(EXPERIMENT, scales={"desk": scale}))
        assert dataclasses.replace(scale, seeds=first.seeds, search=first.search) == first
        same = dataclasses.replace(scale.search, seeds=first.search.seeds, seed=first.search.seed)
        assert same == first.search
    # Random points are others, and grids are shifted otherwise.
    assert len({scale.search.seed for scale in (first, *moved)}) == 3
    grids = [next(climb(scale.search, "a", 0)) for scale in (first, *moved)]
    assert len({trials[0]["server_learning_rate"] for trials in grids}) == 3
    assert replication.replicated(EXPERIMENT, "desk", 0) is EXPERIMENT


def test_what_cannot_be_replicated_is_refused():
    before = dataclasses.replace(EXPERIMENT.scales["desk"], analysis=None)
    undeclared = dataclasses.replace(EXPERIMENT, scales={"desk": before})
    with pytest.raises(SettingError, match="replication is 1, but must be left out: .* declares no analysis"):
        replication.replicated(undeclared, "desk", 1)
    with pytest.raises(SettingError, match="replication is 10, but must be at most 9"):
        replication.replicated(EXPERIMENT, "desk", 10)
    with pytest.raises(SettingError, match="replication is -1"):
        replication.replicated(EXPERIMENT, "desk", -1)
    far = dataclasses.replace(EXPERIMENT.scales["desk"], seeds=tuple(range(10_000, 10_005)))
    with pytest.raises(SettingError, match="seeds is 10004, but must be below 10,000"):
        replication.replicated(dataclasses.replace(EXPERIMENT, scales={"desk": far}), "desk", 1)


def content(verdicts, number=0, standing=protocol.UNDER, experiment="nothing"):
    rows = [
        {
            **{
                "claim": f"claim {place}",
                "condition": "",
                "verdict": verdict,
                "evidence": f"{place} of {number}",
            },
            **{"difference": 0.0, "error": 0.0, "seeds": 5, "searches": None, "correction": 0.0},
        }
        for place, verdict in enumerate(verdicts)
    ]
    return {
        "experiment": experiment,
        "scale": "desk",
        "replication": number,
        "standing": standing,
        "verdicts": rows,
    }


def test_agreement_counts_claims_that_both_sets_decide():
    first = content(["better", "better", "equivalent", "undecided", "worse", "identity", "better"])
    then = content(["better", "worse", "equivalent", "better", "undecided", "better", "equivalent"], 1)
    (sentence, _), groups, table, differing = replication.agreement([first, then])
    # Both decide claims 0, 1, 2 and 6, and agree on two of them; 3 and 4 are decided once; 5 is an identity.
    assert "6 claims were judged twice" in sentence
    assert "Both sets decide 4, and give 2 of these the same verdict (50.0 %" in sentence
    assert "2 are decided by one set alone" in sentence
    assert table[1] == ["better", "1", "1", "1", "0"]
    assert groups[1:] == [["nothing is trained", "6", "4", "2", "50.0 %", "-"]]
    assert [line[1:] for line in differing] == [
        ["claim 1", "", "better", "worse"],
        ["claim 6", "", "better", "equivalent"],
    ]


def test_it_is_said_which_searches_were_repeated():
    sets = [content(["better"], number, experiment=name) for name in ("a", "b", "c") for number in (0, 1)]
    for each in sets[:3]:  # a in both sets, b in the first alone; nothing is searched for in c
        each["verdicts"][0]["searches"] = 5
    said = (
        "Of the 2 experiments whose arms are searched for, 1 were repeated so far: a. Verdicts of the others"
    )
    assert any(said in sentence for sentence in replication.agreement(sets).sentences)
    assert not any("searched for" in sentence for sentence in replication.agreement(sets[4:]).sentences)


def test_agreement_is_of_results_under_the_protocol_alone():
    first, then = content(["better"]), content(["better"], 1)
    assert replication.agreement([first]) == replication.Agreement()
    assert (
        replication.agreement([first, {**then, "standing": protocol.EXPLORATORY}]) == replication.Agreement()
    )
    assert (
        replication.agreement([{**first, "standing": protocol.EXPLORATORY}, then]) == replication.Agreement()
    )
    sentence, *_ = replication.agreement([content(["undecided"]), content(["undecided"], 1)]).sentences
    assert "(none; the goal" in sentence


def test_claims_of_two_experiments_on_the_same_runs_count_once():
    sets = [content(["better"], number, experiment=name) for name in ("a", "b") for number in (0, 1)]
    sentence, *_ = replication.agreement(sets).sentences
    assert "1 claims were judged twice" in sentence and "Both sets decide 1," in sentence
    sets[-1]["verdicts"][0]["evidence"] = "another run"
    sentence, *_ = replication.agreement(sets).sentences
    assert "2 claims were judged twice" in sentence


@pytest.mark.full
def test_a_replication_runs_beside_the_first_results_and_is_set_beside_them(tmp_path, monkeypatch):
    monkeypatch.setattr(discovery, "load", lambda name: EXPERIMENT)
    monkeypatch.setattr(discovery, "names", lambda: ["nothing"])
    monkeypatch.setattr(discovery, "described", lambda name: {})
    monkeypatch.chdir(tmp_path)
    options = {"processes": 1, "show": lambda line: None, "pictures": "none", "checkpoint_every": 0}
    for number in (0, 1):
        assert running.run_paper_experiment("nothing", replication_number=number, **options) == 0
    there = tmp_path / "runs"
    assert {path.name for path in there.iterdir()} == {"nothing-desk", "nothing-desk-replication1"}
    found = read_json(there / "nothing-desk-replication1" / "verdicts.json")
    assert (found["replication"], found["standing"]) == (1, "under the protocol")
    assert found["seeds"] == [10_000 + seed for seed in range(ANALYSIS.seeds)]
    with pytest.raises(SettingError, match="seed is 3, but must be left out with --replication"):
        running.run_paper_experiment("nothing", replication_number=2, typed={"seed": 3}, **options)

    folder = tmp_path / "pages"
    lines = kept_results.take_over(there, folder)
    assert len(lines) == 2
    assert set(pages.write(folder)) == {"README.md", "nothing.md", "what_to_use.md"}
    summary = (folder / "README.md").read_text(encoding="utf-8")
    assert "## Two sets of seeds and splits" in summary and "claims were judged twice" in summary
    assert "1 primary" in summary, "a replication is no further claim"
    assert "## Time" in summary and "| nothing |" in summary
    assert "| nothing-replication1 |" not in summary, "what the first results took is told"
    assert "](pictures/profiles-None-desk-accuracy.png)" in summary
    # The page's picture is drawn from what is kept, and that of results that are gone is removed.
    drawn = {path.name: path.read_bytes() for path in (folder / "pictures").iterdir()}
    assert {*drawn} == {"nothing.png", "profiles-None-desk-accuracy.png"}
    assert "](pictures/nothing.png)" in (folder / "nothing.md").read_text(encoding="utf-8")
    assert not read_json(folder / "data" / "nothing-replication1.json")["curves"]
    (folder / "pictures" / "gone.png").write_bytes(b"")
    (folder / "pictures" / "nothing.png").unlink()
    pages.write(folder)
    assert {path.name: path.read_bytes() for path in (folder / "pictures").iterdir()} == drawn
    # A second command adds to the time, and leaves the results as they are.
    before = read_json(there / "nothing-desk" / "clock.json")["seconds"]["results"]
    assert running.run_paper_experiment("nothing", **options) == 0
    assert read_json(there / "nothing-desk" / "clock.json")["seconds"]["results"] > before
    assert "as before" in kept_results.take_over(there, folder)[0]


def test_of_several_experiments_those_that_cannot_run_do_not_end_the_others(tmp_path, monkeypatch):
    monkeypatch.setattr(discovery, "load", lambda name: EXPERIMENT)
    ran, said = [], []

    def run(name, scale, *, output_dir, tune, **options):
        if name == "bad":
            raise SettingError("data_dir is missing.")
        ran.append((name, scale, output_dir, tune))
        return running.INTERRUPTED if name == "stopped" else 0

    monkeypatch.setattr(running, "run_paper_experiment", run)
    call = {"output_dir": tmp_path, "show": said.append}
    assert running.run_paper_experiments(["a", "bad", "b"], tune=True, replication_number=1, **call) == 2
    assert ran == [(name, "desk", tmp_path / f"{name}-desk-replication1", True) for name in "ab"]
    assert "bad could not run: data_dir is missing." in said
    assert said[-1] == "1 of 3 experiments could not run: bad."
    assert running.run_paper_experiments(["a", "stopped", "b"], **call) == running.INTERRUPTED
    assert [name for name, *_ in ran[2:]] == ["a", "stopped"]
    with pytest.raises(SettingError, match="data_dir is missing"):
        running.run_paper_experiments(["bad"], **call)
    with pytest.raises(SettingError, match="experiment is 'a,a', but must be names that differ"):
        running.run_paper_experiments(["a", "a"], **call)
