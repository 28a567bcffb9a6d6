"""Arrays of other kinds than plain ones: taken as they are meant, or refused with what to do."""

import types

import jax
import numpy as np
import pytest

import jafl
from jafl.base.given_arrays import as_array

X, Y = np.arange(24, dtype=np.float32).reshape(6, 4), np.array([0, 0, 1, 1, 2, 2])
CLIENTS = jafl.data.iid(Y, 2, seed=0)


def masked(values, *places):
    mask = np.zeros(np.shape(values), bool)
    mask.reshape(-1)[list(places)] = True
    return np.ma.array(values, mask=mask)


def made(**changed):
    return jafl.Federation.from_arrays(
        **{"x": X, "y": Y, "partition": CLIENTS, "test_x": X, "test_y": Y, **changed}
    )


MASKED = {
    "x": lambda: made(x=masked(X, 3, 5)),
    "y": lambda: made(y=masked(Y, 0)),
    "test_x": lambda: made(test_x=masked(X, 0)),
    "test_y": lambda: made(test_y=masked(Y, 1)),
    "validation_y": lambda: made(validation_x=X, validation_y=masked(Y, 1)),
    "server_x": lambda: made(server_x=masked(X, 1), server_y=Y),
    "x of clients": lambda: jafl.Federation.from_clients([(masked(X, 0), Y)], test=(X, Y)),
    "a list of rows": lambda: made(x=list(masked(X, 9))),
    "labels": lambda: jafl.data.dirichlet(masked(Y, 0), 2, alpha=1.0, seed=0),
    "indices of client 0": lambda: jafl.Partition.from_lists([masked([0, 1], 1), [2]]),
    "partition.offsets": lambda: jafl.Partition(masked([0, 1, 2], 1), [0, 1]),
    "num_examples": lambda: jafl.delays.proportional_to_examples(masked([3, 4], 0)),
    "start": lambda: jafl.availability.windows([0, 1], masked([0.0], 0), [1.0]).prepare(1, 0),
    "the function's delays": lambda: jafl.asynchronous(
        num_clients=2,
        concurrency=1,
        buffer_size=1,
        server_steps=2,
        delay=jafl.delays.from_function(lambda client, trip: masked(1.0 + client, 0), vectorised=True),
    ),
    "evaluator": lambda: jafl.Evaluator(jafl.models.softmax(3), masked(X, 0), Y),
}


@pytest.mark.parametrize("where", MASKED)
def test_masked_entries_are_refused_wherever_arrays_enter(where):
    with pytest.raises(
        jafl.SettingError, match="is 'masked in . places', but must be without masked.*filled"
    ):
        MASKED[where]()


def test_a_mask_that_masks_nothing_is_taken():
    assert np.array_equal(made(x=masked(X), y=masked(Y)).x, X)


def sparse_matrix():
    return types.SimpleNamespace(toarray=lambda: X)


RECORDS = np.zeros(6, [("width", np.float32), ("height", np.float32)])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.array(list("aabbcc")), "not texts. Number them, 0 for the first: np.unique"),
        (np.array(list("aabbcc"), object), "not texts. Number them, 0 for the first: np.unique"),
        (np.array(["a", None, "b"]), "not texts and other objects. Fill what is missing. Number them"),
        (Y.astype(str), r"not texts. They stand for numbers: .*y.astype\(np.float32\)"),
        (Y.astype("S1"), "not texts. They stand for numbers"),
        (Y.astype(object), "not Python objects. Fill what is missing"),
        (np.array([0, None, 1]), "not Python objects"),
        (Y.astype("M8[s]"), "not dates. Say in numbers"),
        (Y.astype("m8[h]"), "not durations with a unit. Say in which unit"),
        (RECORDS, "not records of several fields. Take a field"),
        ([[1.0], [1.0, 2.0]], "y cannot become an array .*inhomogeneous.*lists of equal lengths"),
        (sparse_matrix(), r"a sparse SimpleNamespace'.* dense array. Call y.toarray\(\)"),
    ],
)
def test_arrays_of_other_kinds_say_what_to_do(values, message):
    with pytest.raises(jafl.SettingError, match=message):
        as_array("y", values)
    with pytest.raises(jafl.SettingError, match=message):
        made(y=values, test_y=values)


def test_durations_with_a_unit_are_no_numbers():
    with pytest.raises(jafl.SettingError, match="duration is np.timedelta64"):
        jafl.delays.constant(np.timedelta64(5, "s"))
    with pytest.raises(jafl.SettingError, match="num_clients is np.timedelta64"):
        jafl.data.iid(Y, np.timedelta64(2, "s"), seed=0)


def test_columns_of_pandas_are_taken_by_their_values():
    pandas = pytest.importorskip("pandas")
    labels = pandas.Series(Y, index=range(6, 0, -1), dtype="Int64")
    federation = made(x=pandas.DataFrame(X), y=labels)
    assert np.array_equal(federation.y, Y) and np.array_equal(federation.x, X)
    with pytest.raises(jafl.SettingError, match="y "):
        made(y=pandas.Series([0, None, 1, 1, 2, 2], dtype="Int64"))
    with pytest.raises(jafl.SettingError, match="y.dtype is 'object'.*not texts. Number them"):
        made(y=pandas.Series(list("aabbcc"), dtype="category"))


@pytest.mark.parametrize("kind", ["i2", "i4", "i8", "u2", "f4", "f8"])
def test_the_other_order_of_bytes_is_taken_as_it_is_meant(kind):
    x, y = X.astype(f">{kind}"), Y.astype(">i4")
    assert as_array("x", x).dtype == np.dtype(kind)
    federation = made(x=x, y=y, test_x=x, test_y=y)
    native = made(x=X.astype(kind), test_x=X.astype(kind))
    assert federation.x.dtype == native.x.dtype and np.array_equal(federation.x, X)
    model = jafl.models.softmax(3)
    params = model.init(jax.random.key(0), x)
    source = jafl.Source("swapped", x, y, x, y, 3)
    assert source.x.dtype == np.dtype(kind) and source.test_y.dtype.isnative
    swapped, usual = (jafl.Evaluator(model, of.x, of.y)(params) for of in (federation, native))
    assert swapped == usual


def test_parameters_in_the_other_order_of_bytes_are_refused():
    federation, model = made(), jafl.models.softmax(3)
    params = jax.tree.map(lambda leaf: np.asarray(leaf, ">f4"), model.init(jax.random.key(0), X))
    schedule = jafl.asynchronous(
        num_clients=2, concurrency=1, delay=jafl.delays.constant(1.0), server_steps=1
    )
    work = jafl.client_work(model, learning_rate=0.1)
    with pytest.raises(jafl.SettingError, match="dtype of params is '>f4'.*newbyteorder"):
        jafl.simulate(schedule, federation, work, jafl.rules.fedbuff(), params, jax.random.key(0))
