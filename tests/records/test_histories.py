"""Histories as tables and as files: what is loaded is what was saved, and a damaged file says so."""

import collections
import dataclasses
import json
import math
import os
import pickle
import random
import sys
import zipfile

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jafl
from jafl.records import History

SCHEDULE = jafl.asynchronous(
    num_clients=5, concurrency=3, buffer_size=2, delay=jafl.delays.exponential(1.0), server_steps=6
)


def history(**changes) -> History:
    rng = np.random.default_rng(0)
    fields = {
        "evaluations": [
            {"server_step": 0, "client_trips": 0, "time": 0.0, "test_accuracy": 0.1, "train_loss": None},
            {
                "server_step": 6,
                "client_trips": 12,
                "time": 1 / 3,
                "test_accuracy": 0.7,
                "train_loss": math.nan,
            },
        ],
        "params": {
            "dense": {"kernel": rng.normal(size=(4, 3)), "bias": np.zeros(3, np.float32)},
            "empty": {},
        },
        "trip_reports": {"loss": rng.normal(size=12).astype(np.float32), "weight": np.ones(12)},
        "step_reports": {"applied": np.ones(6), "rows": rng.normal(size=(6, 2))},
        "schedule": SCHEDULE,
        "server_steps": 6,
        "num_slots": 3,
        "compile_seconds": 0.1 + 0.2,
        "run_seconds": 1e-300,
        "temporary_bytes": 2**60,
    }
    return History(**{**fields, **changes})


def assert_same(one, other):
    """Equal in types, names, order, bits."""
    assert type(one) is type(other)
    if dataclasses.is_dataclass(one):
        for field in dataclasses.fields(one):
            assert_same(getattr(one, field.name), getattr(other, field.name))
    elif isinstance(one, dict):
        assert list(one) == list(other)
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other)
        for mine, its in zip(one, other, strict=True):
            assert_same(mine, its)
    elif isinstance(one, (np.ndarray, np.generic)):
        assert one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    elif isinstance(one, float):
        assert np.float64(one).tobytes() == np.float64(other).tobytes()
    else:
        assert one == other


def test_equal_histories_schedules_and_plans_are_equal(tmp_path):
    one = history()
    one.save(tmp_path / "one.npz")
    plan = jafl.trip_by_trip(SCHEDULE)
    for value, same in (
        (one, History.load(tmp_path / "one.npz")),
        (SCHEDULE, pickle.loads(pickle.dumps(SCHEDULE))),
        (plan, jafl.trip_by_trip(pickle.loads(pickle.dumps(SCHEDULE)))),
    ):
        assert value == same
        assert {value: "known"}[same] == "known"
        assert value != "another"
    evaluations = [{**each, "time": 0.5} for each in one.evaluations]
    assert one != history(evaluations=evaluations)
    assert one != history(params={"dense": one.params["dense"], "more": np.zeros(3)})
    assert dataclasses.replace(SCHEDULE, step_time=SCHEDULE.step_time + 1e-12) != SCHEDULE
    assert dataclasses.replace(SCHEDULE, tier=np.zeros(5, np.int32)) != SCHEDULE


def round_trip(saved, tmp_path, **options):
    saved.save(tmp_path / "run.npz", overwrite=True)
    return History.load(tmp_path / "run.npz", **options)


def test_what_is_loaded_is_what_was_saved(tmp_path):
    assert_same(history(), round_trip(history(), tmp_path))


def test_its_properties_work_afterwards(tmp_path):
    again = round_trip(history(), tmp_path)
    np.testing.assert_array_equal(again.weights, history().weights)
    np.testing.assert_array_equal(again.influence, history().influence)
    assert repr(again) == repr(history())


@pytest.mark.parametrize(
    "params",
    [
        {"w": np.arange(6, dtype=jnp.bfloat16).reshape(2, 3)},
        {"w": np.array(0.5, np.float16), "v": np.zeros((0, 3))},
        [np.ones(2), (np.ones(1), {"a/b": np.ones(1), "a": {"b": np.zeros(1)}}), None],
        {0: np.ones(2), "0": np.zeros(2), True: np.full(2, 7.0)},
        np.arange(3, dtype=">f4"),
        {"w": np.float32(0.1)},
        {"w": np.asfortranarray(np.arange(6.0).reshape(2, 3))},
    ],
    ids=["bfloat16", "empty", "nested", "keys", "big-endian", "scalar", "fortran"],
)
def test_any_arrays_in_dicts_lists_and_tuples(tmp_path, params):
    again = round_trip(history(params=params), tmp_path)
    assert_same(again.params, params)


Layer = collections.namedtuple("Layer", ["kernel", "bias"])


@dataclasses.dataclass(frozen=True)
class Module:
    """As Equinox makes them: arrays, and functions that are no data."""

    layers: list
    activation: object
    size: int


def test_objects_of_other_classes_are_made_like_given_ones(tmp_path):
    params = Module([Layer(np.ones((2, 3)), np.zeros(3)), Layer(np.ones((3, 1)), None)], np.tanh, 3)
    like = Module([Layer(np.zeros((2, 3)), np.zeros(3)), Layer(np.zeros((3, 1)), None)], np.tanh, 3)
    saved = history(params=params)
    again = round_trip(saved, tmp_path, params=like).params
    assert_same(again, params)
    np.testing.assert_array_equal(like.layers[0].kernel, 0)  # it is not changed
    with pytest.raises(jafl.SettingError, match=r"Module.*as params=.*not given"):
        History.load(tmp_path / "run.npz")
    with pytest.raises(jafl.SettingError, match=r"Module.*they are of the class .*Layer"):
        History.load(tmp_path / "run.npz", params=Layer(1, 2))


@pytest.mark.full
def test_parameters_of_an_equinox_module(tmp_path):
    equinox = pytest.importorskip("equinox")
    module = equinox.nn.Sequential(
        [equinox.nn.MLP(5, 3, 4, 1, key=jax.random.key(0)), equinox.nn.Linear(3, 2, key=jax.random.key(1))]
    )
    params = equinox.filter(module, equinox.is_inexact_array)
    trained = jax.tree.map(lambda leaf: np.asarray(leaf) + 1, params)
    again = round_trip(history(params=trained), tmp_path, params=params).params
    assert jax.tree.structure(again) == jax.tree.structure(trained)
    jax.tree.map(assert_same, again, trained)


@pytest.mark.parametrize("params", [{"f": len}, {"o": np.array([object()])}, {(1, 2): np.ones(1)}])
def test_what_is_no_array_is_refused_and_leaves_no_file(tmp_path, params):
    with pytest.raises(jafl.SettingError, match="of the history"):
        history(params=params).save(tmp_path / "run.npz")
    assert list(tmp_path.iterdir()) == []


def test_numpy_reads_its_arrays(tmp_path):
    history().save(tmp_path / "run.npz")
    with np.load(tmp_path / "run.npz") as content:
        np.testing.assert_array_equal(content["trip_reports/loss"], history().trip_reports["loss"])
        np.testing.assert_array_equal(content["schedule/client"], SCHEDULE.client)
        np.testing.assert_array_equal(content["params/dense/kernel"], history().params["dense"]["kernel"])


def test_nothing_is_overwritten_unless_asked_for(tmp_path):
    file = tmp_path / "run.npz"
    history().save(file)
    with pytest.raises(jafl.SettingError, match="is there already.*overwrite=True"):
        history(num_slots=9).save(file)
    assert History.load(file).num_slots == 3
    history(num_slots=9).save(str(file), overwrite=True)
    assert History.load(str(file)).num_slots == 9
    assert list(tmp_path.iterdir()) == [file]
    with pytest.raises(jafl.SettingError, match="no folder"):
        history().save(tmp_path / "none" / "run.npz")
    with pytest.raises(jafl.SettingError, match="there already"):
        history().save(tmp_path, overwrite=True)


def test_a_disk_that_is_full_leaves_the_old_file(tmp_path, monkeypatch):
    file = tmp_path / "run.npz"
    history().save(file)

    def full(*arguments, **options):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(np.lib.format, "write_array", full)
        with pytest.raises(OSError, match="No space left"):
            history(num_slots=9).save(file, overwrite=True)
    assert History.load(file).num_slots == 3 and list(tmp_path.iterdir()) == [file]


def test_the_file_has_the_rights_of_any_other(tmp_path):
    history().save(tmp_path / "run.npz")
    (tmp_path / "other").write_text("")
    assert os.stat(tmp_path / "run.npz").st_mode == os.stat(tmp_path / "other").st_mode


def test_a_flipped_bit_is_noticed_or_changes_nothing(tmp_path):
    """At 300 random places: the same history, or a clear error; never another number."""
    file = tmp_path / "run.npz"
    history().save(file)
    whole, draws, noticed = file.read_bytes(), random.Random(0), 0
    for _ in range(300):
        damaged = bytearray(whole)
        damaged[draws.randrange(len(whole))] ^= 1 << draws.randrange(8)
        file.write_bytes(damaged)
        try:
            again = History.load(file)
        except jafl.SettingError as error:
            assert str(file) in str(error) and "cannot be read" in str(error) and "pickle" not in str(error)
            noticed += 1
        else:
            assert_same(again, history())
    assert noticed > 150


class Malicious:
    def __reduce__(self):
        return (pytest.fail, ("a pickle was read",))


@pytest.mark.parametrize("content", ["empty", "cut", "text", "pickle", "npz", "format", "objects", "fields"])
def test_other_files_are_refused(tmp_path, content):
    file = tmp_path / "run.npz"
    history().save(file)
    whole = file.read_bytes()
    if content == "npz":
        np.savez(file, a=np.ones(2))
    elif content in ("format", "objects", "fields"):
        with zipfile.ZipFile(file) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
        facts = json.loads(members["history.json"])
        if content == "format":
            facts["format"] = 99
        if content == "fields":
            del facts["fields"]["schedule"]
        members["history.json"] = json.dumps(facts).encode()
        if content == "objects":
            np.save(tmp_path / "o.npy", np.array([Malicious()], object))
            members["schedule/client.npy"] = (tmp_path / "o.npy").read_bytes()
        with zipfile.ZipFile(file, "w") as archive:
            for name, member in members.items():
                archive.writestr(name, member)
    else:
        others = {
            "empty": b"",
            "cut": whole[:-500],
            "text": b"a,b\n1,2\n",
            "pickle": pickle.dumps(Malicious()),
        }
        file.write_bytes(others[content])
    with pytest.raises(jafl.SettingError, match="(?s)run.npz' cannot be read: ") as raised:
        History.load(file)
    assert "pickle" not in str(raised.value)
    if content == "format":
        assert "format 99" in str(raised.value)


def test_a_file_that_is_not_there():
    with pytest.raises(jafl.SettingError, match="no such file"):
        History.load("nowhere.npz")


def test_to_dataframe_has_a_row_for_each(tmp_path):
    pandas = pytest.importorskip("pandas")
    table = history().to_dataframe()
    assert isinstance(table, pandas.DataFrame) and len(table) == 2
    assert table["test_accuracy"].tolist() == [0.1, 0.7] and table["train_loss"].isna().all()
    trips = history().to_dataframe("trips")
    assert len(trips) == 12 and {"client", "staleness", "arrival_time", "loss", "weight"} <= set(trips)
    np.testing.assert_array_equal(trips["staleness"], SCHEDULE.staleness)
    steps = history().to_dataframe("steps")
    assert list(steps) == ["step", "step_time", "applied"] and len(steps) == 6


def test_to_dataframe_of_a_run_that_was_stopped():
    pytest.importorskip("pandas")
    reports = {"loss": np.zeros(4, np.float32)}
    stopped = history(server_steps=2, trip_reports=reports, step_reports={"applied": np.ones(2)})
    assert len(stopped.to_dataframe("trips")) == 4 and len(stopped.to_dataframe("steps")) == 2


def test_a_missing_pandas_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"pandas is not installed: pip install 'jafl\[pandas\]'"):
        history().to_dataframe()
    with pytest.raises(jafl.SettingError, match="rows is 'trip'.*Did you mean 'trips'"):
        history().to_dataframe("trip")
