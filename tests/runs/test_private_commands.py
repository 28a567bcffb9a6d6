"""Private runs from settings: what their files, tables and pictures say, and what is refused, by the names typed."""

import os
import re

import numpy as np
import pytest
from run_files import read_arrays, read_json

from jafl import specifications
from jafl.base.errors import SettingError
from jafl.config.experiment import make_experiments
from jafl.config.settings import Settings
from jafl.privacy.amplified import amplified_epsilon
from jafl.runs.recording.privacy import block, text
from jafl.runs.runner import dry_run, run
from jafl.sweeps.report import write_report

PRIVATE = Settings(
    algorithm="fedbuff",
    model="softmax",
    num_clients=20,
    concurrency=8,
    buffer_size=4,
    client_trips=120,
    privacy="private(clip_norm=1.5, epsilon=8.0, delta=0.001, mechanism='tree')",
)
CLAIM = ("epsilon_once", "epsilon_realised", "epsilon_worst_case")


def changed(**changes) -> Settings:
    return PRIVATE.changed(changes)


def quiet(settings, folder, **options) -> list[str]:
    said: list[str] = []
    run(settings, folder, **{"show": said.append, "progress": False, "checkpoint_every": 0, **options})
    return said


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """(the folder of a private run, what was said)."""
    folder = tmp_path_factory.mktemp("private") / "run"
    return folder, quiet(PRIVATE, folder)


@pytest.mark.full
def test_a_run_says_what_it_claims_and_on_what_that_stands(trained):
    folder, said = trained
    claim = read_json(folder / "summary.json")["privacy"]
    assert claim["epsilon_realised"] == pytest.approx(8.0)
    assert claim["epsilon_once"] < claim["epsilon_realised"] < claim["epsilon_worst_case"]
    assert (claim["delta"], claim["clip_norm"], claim["adjacency"]) == (0.001, 1.5, "zero-out")
    assert (claim["unit_of_privacy"], claim["mechanism"]["name"]) == ("one client", "tree")
    clipped = read_arrays(folder / "reports.npz")["trip_clipped"]
    assert (claim["trips_clipped"], claim["share_of_trips_clipped"]) == (clipped.sum(), clipped.mean())
    assert 0 < clipped.mean() < 1
    noise = read_arrays(folder / "reports.npz")["step_noise_norm"]
    assert claim["median_noise_norm"] == pytest.approx(np.median(noise)) and np.median(noise) > 0
    table = "\n".join(said)
    assert re.search(r"epsilon once +realised +worst case +delta +mechanism", table)
    assert re.search(rf"fedbuff-seed0 .* 8 .* tree .*{100 * clipped.mean():.1f} %", table)
    for sentence in claim["conditions"]:
        assert sentence in table
    assert {path.stem for path in folder.glob("*.png")} >= {"epsilon_per_client", "signal_and_noise"}


@pytest.mark.full
def test_a_dry_run_says_the_same_and_trains_nothing(trained, tmp_path):
    said: list[str] = []
    dry_run(PRIVATE, tmp_path / "dry", show=said.append)
    claim = read_json(tmp_path / "dry" / "diagnostics.json")["privacy"]
    of_run = read_json(trained[0] / "summary.json")["privacy"]
    assert {name: of_run[name] for name in claim} == claim and set(CLAIM) <= set(claim)
    assert read_json(trained[0] / "diagnostics.json")["privacy"] == claim
    assert any("realised" in line and "worst case" in line for line in said)
    assert {path.stem for path in (tmp_path / "dry").glob("*.png")} >= {"epsilon_per_client"}
    assert not (tmp_path / "dry" / "summary.json").exists()


@pytest.mark.full
def test_a_run_that_is_over_is_told_and_drawn_again_without_training(trained, tmp_path):
    folder, said = trained
    drawn = (folder / "signal_and_noise.png").read_bytes()
    (folder / "signal_and_noise.png").unlink()
    again = quiet(PRIVATE, folder, resume=True)
    assert (folder / "signal_and_noise.png").read_bytes() == drawn
    assert [line for line in said if "8 " in line and "tree" in line] == [
        line for line in again if "8 " in line and "tree" in line
    ]


@pytest.mark.full
@pytest.mark.parametrize("name", ["epsilon", "clip_norm", "mechanism", "restarts"])
def test_a_run_of_other_privacy_is_not_gone_on_with(trained, name):
    values = {"epsilon": 4.0, "clip_norm": 0.5, "mechanism": "tree_honaker", "restarts": 2}
    with pytest.raises(SettingError, match=f"other settings(.|\n)*{name}"):
        quiet(changed(**{f"privacy.{name}": values[name]}), trained[0], resume=True)


@pytest.mark.full
def test_a_larger_budget_trains_a_private_run_again_from_the_start(tmp_path):
    """Its noise follows from the whole schedule: what was trained has the noise of another claim."""
    quiet(changed(**{"privacy.noise_seed": 5}), tmp_path / "run", checkpoint_every=20)
    said = quiet(changed(client_trips=160, **{"privacy.noise_seed": 5}), tmp_path / "run", resume=True)
    assert any("trains again from the start" in line for line in said)
    whole = tmp_path / "whole"
    quiet(changed(client_trips=160, **{"privacy.noise_seed": 5}), whole)
    mine, its = (read_arrays(folder / "params.npz") for folder in (tmp_path / "run", whole))
    for name, leaf in its.items():
        np.testing.assert_array_equal(mine[name], leaf)


@pytest.mark.full
def test_a_comparison_tells_each_private_run_and_draws_no_wrong_one(tmp_path):
    both = changed(algorithm="fedbuff,fedavg", client_trips=80)
    said = quiet(both, tmp_path / "both")
    table = [line for line in said if line.startswith(("fedbuff-seed0 ", "fedavg-seed0 "))]
    assert sum("tree" in line for line in table) == 2
    runs = read_json(tmp_path / "both" / "summary.json")["runs"]
    assert all("privacy" in claim for claim in runs.values())


@pytest.mark.full
def test_what_the_schedule_and_the_weights_make_public_is_said():
    settings = changed(
        delay="once_per_client(proportional_to_examples(mean=1.0))",
        algorithm="fedbuff(weigh_by_examples=True)",
    )
    (experiment,) = make_experiments(settings)
    said = " ".join(experiment.rule.report.conditions)
    for what in ("The weights of fedbuff", "The schedule"):
        assert re.search(rf"{what} [^.]*how many examples each client holds: these numbers are public", said)


BAD = {
    "epsilon 0": ("epsilon", 0.0, "epsilon is 0.0"),
    "epsilon negative": ("epsilon", -1.0, "epsilon is -1.0"),
    "delta 1": ("delta", 1.0, "delta is 1.0"),
    "no noise": ("epsilon", None, "epsilon is None.*or noise_multiplier in its place"),
    "clip 0": ("clip_norm", 0.0, "clip_norm is 0.0"),
    "clip infinite": ("clip_norm", float("inf"), "clip_norm is inf"),
    "mechanism": ("mechanism", "three", "mechanism is 'three'.*tree"),
    "reading": ("epsilon_reading", "twice", "epsilon_reading is 'twice'.*realised"),
    "restarts": ("restarts", 30, "restarts is 30.*number of server steps, 30"),
    "negative restarts": ("restarts", -1, "restarts is -1"),
    "bands of a tree": ("bands", 5, "bands is 5.*left out for mechanism=tree"),
}
REFUSED = {
    "not eligible": (
        {"algorithm": "fedasync", "buffer_size": None},
        "algorithm",
        "algorithm is fedasync, with privacy: .*fedbuff",
    ),
    "decomposed": ({"decompose_steps": 2}, "decompose_steps", "decompose_steps is 2.*privacy"),
    "no delta": (
        {"privacy": "private(clip_norm=1, epsilon=2)"},
        "privacy",
        "private lacks its argument delta, which has no default",
    ),
    "no clip norm": (
        {"privacy": "private(epsilon=2, delta=0.1)"},
        "privacy",
        "private lacks its argument clip_norm, which has no default",
    ),
}


@pytest.mark.parametrize("row", BAD)
def test_a_bad_argument_is_refused_by_its_dotted_name(row):
    name, value, message = BAD[row]
    with pytest.raises(SettingError, match=f"^privacy.{message}") as refused:
        make_experiments(changed(**{f"privacy.{name}": value}))
    assert refused.value.setting == f"privacy.{name}"


@pytest.mark.parametrize("row", REFUSED)
def test_a_bad_setting_is_refused_by_the_name_that_was_typed(row):
    changes, name, message = REFUSED[row]
    with pytest.raises(SettingError, match=message) as refused:
        make_experiments(changed(**changes))
    assert refused.value.setting == name


def test_both_epsilon_and_noise_are_refused():
    both = "private(clip_norm=1, delta=0.001, epsilon=8, noise_multiplier=1)"
    with pytest.raises(
        SettingError, match="^privacy.epsilon is 8.0, but must be left out where noise_multiplier"
    ):
        make_experiments(changed(privacy=both))


@pytest.mark.full
def test_poisson_cohorts_have_an_epsilon_of_their_own_while_they_are_secret(tmp_path, monkeypatch):
    pytest.importorskip("dp_accounting")
    settings = changed(
        algorithm="fedavg",
        protocol="synchronous(cohorts='poisson', cohort_size=4)",
        **{"privacy.mechanism": "independent", "privacy.noise_multiplier": 1.0},
    )
    said: list[str] = []
    dry_run(settings, tmp_path / "run", show=said.append)
    claim = read_json(tmp_path / "run" / "diagnostics.json")["privacy"]
    expected = amplified_epsilon(1.0, sampling_rate=4 / 20, rounds=120 // 4, delta=0.001)
    assert claim["epsilon_amplified"] == pytest.approx(expected)
    assert claim["epsilon_amplified"] < claim["epsilon_realised"]
    assert any(f"epsilon {expected:.4g}, if nobody learns who was in" in line for line in said)
    dry_run(PRIVATE, tmp_path / "asynchronous", show=said.append)
    assert "epsilon_amplified" not in read_json(tmp_path / "asynchronous" / "diagnostics.json")["privacy"]


# The seed of the noise, the report, and rules that sampling does not amplify


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """(the folder of two runs of one command, all that was drawn from the system's entropy for them)."""
    folder, made = tmp_path_factory.mktemp("drawn"), []

    def token_bytes(count: int) -> bytes:
        made.append(os.urandom(count))
        return made[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(specifications.secrets, "token_bytes", token_bytes)
        for name in ("one", "two"):
            quiet(changed(client_trips=60), folder / name, pictures=False)
    return folder, made


@pytest.mark.full
def test_two_runs_of_one_command_have_other_noise_and_its_seed_is_in_no_file(drawn):
    folder, made = drawn
    norms = [read_arrays(folder / name / "reports.npz")["step_noise_norm"] for name in ("one", "two")]
    assert not np.array_equal(*norms) and len(set(made)) == len(made) >= 4
    for file in (path for path in folder.rglob("*") if path.is_file()):
        content = file.read_bytes()
        for words in made:
            assert words not in content and words.hex().encode() not in content
            assert not any(str(word).encode() in content for word in np.frombuffer(words, np.uint32))
    for name in ("one", "two"):
        assert "noise_seed=None" in read_json(folder / name / "config.json")["privacy"]
        claim = read_json(folder / name / "summary.json")["privacy"]
        assert "drawn from the system's entropy" in claim["conditions"][-1]


@pytest.mark.full
def test_a_seed_that_is_given_is_the_runs_own_and_the_run_says_what_that_costs():
    given = make_experiments(changed(**{"privacy.noise_seed": 3}))[0].rule
    assert "Of them nothing is claimed" in given.report.conditions[-1]
    other = make_experiments(changed(seed="1", **{"privacy.noise_seed": 3}))[0].rule
    again = make_experiments(changed(**{"privacy.noise_seed": 3}))[0].rule
    assert not np.array_equal(given.arguments["words"], other.arguments["words"])
    np.testing.assert_array_equal(given.arguments["words"], again.arguments["words"])


@pytest.mark.full
def test_a_report_has_a_table_of_what_private_runs_claim(drawn):
    folder, _ = drawn
    page, text = (path.read_text() for path in write_report(folder))
    claim = read_json(folder / "one" / "summary.json")["privacy"]
    lines = text.splitlines()
    (head,) = (line for line in lines if "epsilon once" in line)
    names, values = (
        [cell.strip() for cell in line.split("|")] for line in (head, lines[lines.index(head) + 2])
    )
    cells = dict(zip(names, values, strict=True))
    assert (cells["run"], cells["clip norm"], cells["delta"]) == ("one", "1.5", "0.001")
    assert (
        cells["realised"] == f"{claim['epsilon_realised']:.4g}" and cells["set for"] == "epsilon 8 realised"
    )
    assert cells["noise multiplier"] == f"{claim['noise_multiplier']:.4g}"
    assert cells["trips clipped"] == f"{100 * claim['share_of_trips_clipped']:.1f} %"
    assert cells["not finite"] == "0"
    assert "one client: with and without its updates" in text and "one client: with and without" in page
    assert page.count('<h2 id="privacy">') == 1
    assert "the same kind of device, but for private runs, which draw their noise." in text


@pytest.mark.full
def test_a_report_without_private_runs_says_nothing_of_epsilon(tmp_path):
    settings = Settings(
        algorithm="fedbuff", model="softmax", num_clients=20, concurrency=8, buffer_size=4, client_trips=60
    )
    quiet(settings, tmp_path / "open", pictures=False)
    page, text = (path.read_text() for path in write_report(tmp_path))
    assert "epsilon" not in text.split("To repeat it")[0] and 'id="privacy"' not in page


NOT_AMPLIFIED = {
    "mean": {"algorithm": "fedbuff"},
    "exponential": {"algorithm": "exponential_weighting"},
    "fedstaleweight": {"algorithm": "fedstaleweight"},
    "sum by examples": {"algorithm": "fedbuff(aggregate='sum', weigh_by_examples=True)"},
}


@pytest.mark.full
@pytest.mark.parametrize("row", NOT_AMPLIFIED)
def test_sampling_amplifies_only_where_all_have_one_weight(row):
    (experiment,) = make_experiments(
        Settings(
            model="softmax",
            protocol="synchronous(cohorts='poisson', cohort_size=8)",
            num_clients=20,
            client_trips=120,
            privacy="private(clip_norm=1.5, delta=0.001, noise_multiplier=1.0, mechanism='independent')",
            **NOT_AMPLIFIED[row],
        )
    )
    claim = block(experiment)["privacy"]
    assert "epsilon_amplified" not in claim and "depend on who is drawn" in claim["not_amplified"]
    assert any("sampling does not amplify" in line for line in text({"run": claim}))
