"""Damaged checkpoints: a run ends with the same bits or says why it does not go on, and never with another number."""

import dataclasses
import shutil

import jax
import numpy as np
import optax
import pytest
from quick_compilation import quick_compilation  # noqa: F401
from small_runs import step_by_step, stopping_at

import jafl
from jafl.base import checksums

SOURCE = jafl.data.synthetic(num_clients=6, alpha=1.0, beta=1.0, mean_examples=10, num_features=5)
MODEL = jafl.models.softmax(SOURCE.num_classes)
FEDERATION = jafl.federate(SOURCE, SOURCE.natural_partition)
SCHEDULE = jafl.asynchronous(
    num_clients=6, concurrency=6, buffer_size=2, delay=jafl.delays.exponential(1.0), server_steps=30
)
PARAMS = MODEL.init(jax.random.key(0), SOURCE.x)
SAVED_AT = (10, 20)


def run(
    folder,
    *,
    key=1,
    model=MODEL,
    batch_size=4,
    said=None,
    schedule=SCHEDULE,
    federation=FEDERATION,
    **options,
):
    """One run with momentum and an evaluation; ``said``: a list for what it says of its checkpoints."""
    checkpoints = jafl.Checkpoints(folder, **({} if said is None else {"on_trouble": said.append}))
    work = jafl.client_work(model, learning_rate=0.1, batch_size=batch_size)
    return jafl.simulate(
        schedule,
        federation,
        work,
        jafl.rules.ca2fl(),
        PARAMS,
        jax.random.key(key),
        server_optimizer=jafl.specify(optax.sgd, learning_rate=0.5, momentum=0.9),
        evaluate_at=[15],
        checkpoints=checkpoints,
        **options,
    )


def result(history):
    """Everything that a run has found, as bytes."""
    leaves = jax.tree.leaves((history.params, history.trip_reports, history.step_reports))
    return [np.asarray(leaf).tobytes() for leaf in leaves], history.evaluations


def run_until(step, folder, **options):
    """The run, stopped after the server step ``step``, where it leaves a checkpoint."""
    with step_by_step():
        assert run(folder, **stopping_at(step), **options).server_steps == step


def stopped(folder, **changes):
    """The folder of a run's checkpoints after the server steps 10 and 20."""
    for step in SAVED_AT:
        run_until(step, folder, **changes)
    assert steps_in(folder) == list(SAVED_AT)
    return folder


def steps_in(folder):
    """The server steps after which there are checkpoints."""
    return sorted(int(path.name) for path in folder.iterdir())


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """The checkpoints of a run that was stopped."""
    return stopped(tmp_path_factory.mktemp("good") / "checkpoints")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """What the run finds that is never stopped."""
    return result(run(tmp_path_factory.mktemp("whole") / "checkpoints"))


@pytest.fixture
def folder(good, tmp_path):
    """A copy of the checkpoints, to be damaged."""
    shutil.copytree(good, tmp_path / "checkpoints")
    return tmp_path / "checkpoints"


def files(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


@pytest.mark.full
def test_a_bit_that_is_flipped_anywhere_changes_no_result(good, whole, tmp_path):
    random = np.random.default_rng(0)
    paths = [path.relative_to(good) for path in files(good)]
    sizes = np.array([(good / path).stat().st_size for path in paths])
    by_size, taken = sizes / sizes.sum(), {"newest": 0, "before": 0}
    for number in range(200):
        folder, said, seen = tmp_path / str(number), [], []
        shutil.copytree(good, folder)
        # Each file is as likely as another one, or each byte.
        path = folder / paths[random.choice(len(paths), p=None if number % 2 else by_size)]
        content = bytearray(path.read_bytes())
        if not content:
            continue
        content[random.integers(len(content))] ^= 1 << int(random.integers(8))
        path.write_bytes(content)
        assert result(run(folder, said=said, on_progress=seen.append)) == whole, path
        newest = path.relative_to(folder).parts[0] == "20"
        taken["before" if newest else "newest"] += 1
        assert len(said) == newest, (path, said)  # what is not read says nothing
        if newest:
            assert said[0].startswith(f"The checkpoint {folder / '20'} cannot be used: its file ")
            assert said[0].endswith("; the one after server step 10 is taken.")
        shutil.rmtree(folder)
    assert min(taken.values()) > 60


DAMAGES = {
    "missing": lambda path: path.unlink(),
    "empty": lambda path: path.write_bytes(b""),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"0"),
}


@pytest.mark.full
@pytest.mark.parametrize("damage", DAMAGES)
def test_each_file_of_the_last_checkpoint_is_verified(damage, good, whole, tmp_path):
    for number, name in enumerate(path.relative_to(good) for path in files(good / "20")):
        folder, said = tmp_path / str(number), []
        shutil.copytree(good, folder)
        if damage == "cut" and not (folder / name).stat().st_size:
            continue
        DAMAGES[damage](folder / name)
        assert result(run(folder, said=said)) == whole, name
        assert len(said) == 1 and "the one after server step 10 is taken" in said[0]


@pytest.mark.full
def test_the_one_before_is_taken_and_said_so(folder, whole):
    said = []
    largest = max(files(folder / "20" / "carry"), key=lambda path: path.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[-1] ^= 1
    largest.write_bytes(content)
    assert result(run(folder, said=said)) == whole
    name = largest.relative_to(folder / "20")
    assert said == [
        f"The checkpoint {folder / '20'} cannot be used: its file {name} is not as it was written; "
        "the one after server step 10 is taken."
    ]


@pytest.mark.full
def test_without_a_good_one_the_run_begins_anew(folder, whole):
    said = []
    for step in SAVED_AT:
        (folder / str(step) / "state" / "metadata").write_text("{}")
    assert result(run(folder, said=said)) == whole
    assert [line.rsplit("; ", 1)[1] for line in said] == ["the run starts again."] * 2


@pytest.mark.full
def test_files_of_another_run_are_not_taken(folder, whole, tmp_path):
    """One file, a folder of arrays, all but the checksums: damaged. A whole checkpoint: refused."""
    other = stopped(tmp_path / "other", key=2)
    for replaced in ("carry", "state", "checksums.json"):
        mixed = tmp_path / f"mixed {replaced}"
        shutil.copytree(folder, mixed)
        said = []
        copy = shutil.copytree if (other / "20" / replaced).is_dir() else shutil.copy
        if copy is shutil.copytree:
            shutil.rmtree(mixed / "20" / replaced)
        copy(other / "20" / replaced, mixed / "20" / replaced)
        assert result(run(mixed, said=said)) == whole
        assert len(said) == 1 and "the one after server step 10 is taken" in said[0]
    shutil.rmtree(folder / "20")
    shutil.copytree(other / "20", folder / "20")
    with pytest.raises(jafl.SettingError, match="is of another run:\n  digest of numbers"):
        run(folder)


@pytest.mark.parametrize(
    "content", ["[]", "{}", '{"state/metadata": 1}', '{"state/metadata": [1, null]}', "\xff"]
)
def test_checksums_that_are_none_are_damage(content, tmp_path):
    (tmp_path / "a").write_text("a")
    checksums.write(tmp_path)
    checksums.check(tmp_path)
    (tmp_path / checksums.NAME).write_text(content, encoding="latin-1")
    with pytest.raises(checksums.Damaged):
        checksums.check(tmp_path)


def test_evaluations_before_a_checkpoint_have_the_times_of_the_schedule_that_goes_on(folder, tmp_path):
    """The same trips in the same order by another clock are the same training."""
    slow = dataclasses.replace(
        SCHEDULE,
        step_time=3 * SCHEDULE.step_time,
        download_time=3 * SCHEDULE.download_time,
        arrival_time=3 * SCHEDULE.arrival_time,
    )
    assert result(run(folder, schedule=slow)) == result(run(tmp_path / "whole", schedule=slow))


@pytest.mark.parametrize("part", ["test_x", "validation_y"])
def test_a_run_that_is_evaluated_on_other_examples_is_refused(folder, part):
    name = part[:-2]
    x, y = FEDERATION.test_x, FEDERATION.test_y
    federation = dataclasses.replace(FEDERATION, **{f"{name}_x": x + (name == "test"), f"{name}_y": y})
    with pytest.raises(jafl.SettingError, match="is of another run:\n  digest of test examples: was"):
        run(folder, federation=federation)


def ones(params):
    return 1.0


def twos(params):
    return 2.0


SHIFTED = jafl.Evaluator(MODEL, FEDERATION.test_x + 1, FEDERATION.test_y)
MEASURED = {"own": ones, "test": jafl.Evaluator(MODEL, FEDERATION.test_x, FEDERATION.test_y)}


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """The checkpoints of a run with evaluators of its own."""
    return stopped(tmp_path_factory.mktemp("measured") / "checkpoints", evaluators=MEASURED)


@pytest.mark.parametrize(
    "others",
    [None, {}, {"own": ones}, {**MEASURED, "own": twos}, {**MEASURED, "test": SHIFTED}],
    ids=["default", "none", "fewer", "another function", "other examples"],
)
def test_a_run_that_is_measured_otherwise_is_refused(others, measured):
    with pytest.raises(jafl.SettingError, match="is of another run:\n  evaluators: was {'own': .*, is "):
        run(measured, evaluators=others)


def test_a_run_with_equal_evaluators_goes_on(measured, tmp_path):
    shutil.copytree(measured, tmp_path / "checkpoints")
    again = {"own": ones, "test": jafl.Evaluator(MODEL, FEDERATION.test_x.copy(), FEDERATION.test_y)}
    assert run(tmp_path / "checkpoints", evaluators=again).evaluations[-1]["own"] == 1.0


def test_a_damaged_checkpoint_does_not_take_the_place_of_a_good_one(folder):
    """The run goes on from 10 and is stopped at 12: that is kept, however large the damaged one's number is."""
    (folder / "20" / checksums.NAME).unlink()
    said = []
    run_until(12, folder, said=said)
    assert steps_in(folder) == [10, 12, 20]
    run(folder, said=said, should_stop=lambda: True)
    assert [line.rsplit("; ", 1)[1] for line in said] == [
        "the one after server step 10 is taken.",
        "the one after server step 12 is taken.",
    ]


@pytest.mark.full
@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (
            {"model": MODEL.__class__(MODEL.module, compute_dtype="bfloat16")},
            "compute_dtype: was 'float32', is 'bfloat16'",
        ),
        ({"batch_size": 5}, "client_work.batch_size: was 4, is 5"),
    ],
)
def test_what_no_array_tells_is_refused_by_name(folder, changes, line):
    with pytest.raises(jafl.SettingError, match=f"is of another run:\n  {line}"):
        run(folder, **changes)


@pytest.mark.full
def test_another_matmul_precision_is_refused_by_name(folder, monkeypatch):
    """As a device would have it that has several."""
    monkeypatch.setitem(jafl.base.precision.OF_PLATFORM, "cpu", ("float32", "bfloat16"))
    other = MODEL.__class__(MODEL.module, matmul_precision="bfloat16")
    with pytest.raises(jafl.SettingError, match="matmul_precision: was 'float32', is 'bfloat16'"):
        run(folder, model=other)
