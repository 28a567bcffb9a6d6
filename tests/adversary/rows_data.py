"""Rows for jafl's federations and partitions: a bad call, and words of the SettingError, in their order."""

import numpy as np
from rows_schedules import calls

import jafl
from jafl import Partition

X = np.arange(24, dtype=np.float32).reshape(6, 2, 2)
Y = np.array([0, 1, 2, 0, 1, 2])
NAN, INFINITE = X.copy(), X.copy()
NAN[4, 1, 0] = np.nan
INFINITE[2:4] = -np.inf
TOKENS = np.array([[1, 2, -1], [0, 0, 2], [3, 1, 1], [2, -1, -1], [0, 1, 0], [3, 3, 3]])
FLAGS = np.array([[1, 0], [1, 1], [0, 0], [0, 1], [1, 0], [1, 1]], bool)
THREE = {name: (X[2 * i : 2 * i + 2], Y[2 * i : 2 * i + 2]) for i, name in enumerate("bac")}

federation = calls(
    jafl.Federation.from_arrays,
    x=X,
    y=Y,
    partition=Partition.from_lists([[5, 0], [1, 2, 1], [5]]),
    test_x=X[:2],
    test_y=Y[:2],
)
labels_per_client = calls(
    jafl.data.labels_per_client,
    labels=np.repeat(np.arange(10), 200),
    num_clients=5,
    labels_per_client=2,
    smallest=10,
    largest=40,
    seed=0,
)


def partition(offsets, indices):
    return lambda: Partition(np.array(offsets), np.array(indices))


def clients(clients, **changes):
    return lambda: jafl.Federation.from_clients(clients, **{"test": (X[:1], Y[:1]), **changes})


def kinds(*kinds):
    """Two clients whose examples and labels are of these types."""
    two = {name: (np.ones((2, 3), x), np.ones(2, y)) for name, (x, y) in zip("ab", kinds, strict=True)}
    return clients(two, test=(np.ones((1, 3)), [1]))


ROWS = {
    # Arrays
    "federation(y=Y[:5])": (federation(y=Y[:5]), "len(y) is 5 ... 6, which is len(x) ... one label"),
    "federation(test_y=Y[:3])": (federation(test_y=Y[:3]), "len(test_y) is 3 ... 2, which is len(test_x)"),
    "federation(x=NAN)": (federation(x=NAN), "x holds NaN or infinity in 1 of 6 ... number 4 ... Drop, fill or scale"),
    "federation(x=INFINITE.astype(np.float64))": (federation(x=INFINITE.astype(np.float64)), "x holds NaN or infinity in 2 of 6 ... number 2"),
    "federation(test_x=NAN[3:5])": (federation(test_x=NAN[3:5]), "test_x holds NaN or infinity in 1 of 2 ... number 1"),
    "federation(x=X.astype(str))": (federation(x=X.astype(str)), "x.dtype is '<U ... a type of numbers, not texts"),
    "federation(x=X.astype(complex))": (federation(x=X.astype(complex)), "x.dtype is 'complex128' ... a real number type"),
    "federation(x=np.float32(3))": (federation(x=np.float32(3)), "x.shape is () ... [examples, ...]"),
    "federation(x=np.zeros((5, 0), np.float32))": (federation(x=np.zeros((5, 0), np.float32)), "x.shape is (5, 0) ... of examples that hold numbers"),
    "federation(y=Y.astype(float))": (federation(y=Y.astype(float)), "y.dtype is 'float64' ... integer ... y.astype(np.int32)"),
    "federation(y=Y - 1)": (federation(y=Y - 1), "smallest label in y is -1 ... at least 0 ... Number the classes from 0"),
    "federation(num_classes=2)": (federation(num_classes=2), "largest label in y is 2 ... less than num_classes = 2 ... Raise num_classes"),
    "federation(num_classes=3, test_y=Y[:2] + 3)": (federation(num_classes=3, test_y=Y[:2] + 3), "largest label in test_y is 4 ... less than num_classes = 3"),
    "federation(num_classes=2.5)": (federation(num_classes=2.5), "num_classes is 2.5 ... whole number"),
    "federation(test_x=X[:0], test_y=Y[:0])": (federation(test_x=X[:0], test_y=Y[:0]), "test_x.shape is (0, 2, 2) ... at least one ... Nothing can be"),
    "federation(test_x=X[:2].reshape(2, 4))": (federation(test_x=X[:2].reshape(2, 4)), "test_x.shape[1:] is (4,) ... (2, 2), as in x"),
    "federation(test_x=X[:2].astype(np.uint8))": (federation(test_x=X[:2].astype(np.uint8)), "test_x.dtype is 'uint8' ... float32, as in x"),
    "federation(validation_x=X)": (federation(validation_x=X), "validation_x given, validation_y given is (True, False) ... both or neither"),
    "federation(partition=[[0, 1]])": (federation(partition=[[0, 1]]), "partition is [[0, 1]] ... a Partition ... from_lists"),
    "federation(partition=Partition.from_lists([[0], [6]]))": (federation(partition=Partition.from_lists([[0], [6]])), "largest of partition.indices is 6 ... less than 6"),
    "federation(y=np.where(Y > 0, np.nan, 1.0), test_y=X[:2,...": (federation(y=np.where(Y > 0, np.nan, 1.0), test_y=X[:2, 0, 0]), "y holds NaN ... Drop, fill or scale"),
    "federation(y=X[:, 0, 0], test_y=X[:2, 0, 0], num_classe...": (federation(y=X[:, 0, 0], test_y=X[:2, 0, 0], num_classes=3), "num_classes is 3 ... floats"),
    "federation(y=TOKENS, test_y=TOKENS[:2, :2])": (federation(y=TOKENS, test_y=TOKENS[:2, :2]), "test_y.shape[1:] is (2,) ... (3,), as in y"),
    "federation(y=TOKENS, test_y=FLAGS[:2])": (federation(y=TOKENS, test_y=FLAGS[:2]), "test_y.shape[1:] is (2,) ... as in y"),
    "federation(y=FLAGS, test_y=FLAGS[:2], num_classes=5)": (federation(y=FLAGS, test_y=FLAGS[:2], num_classes=5), "num_classes is 5 ... 2, the labels of an"),
    "federation(y=TOKENS.astype(str), test_y=TOKENS[:2])": (federation(y=TOKENS.astype(str), test_y=TOKENS[:2]), "y.dtype is ... a type of numbers, not texts"),
    "federation(y=TOKENS, test_y=TOKENS[:2] + 9, num_classes=5)": (federation(y=TOKENS, test_y=TOKENS[:2] + 9, num_classes=5), "largest label in test_y is 11"),
    # Partitions
    "partition([0, 3, 2, 4], [0, 1, 2, 3])": (partition([0, 3, 2, 4], [0, 1, 2, 3]), "partition.offsets falls by 1 after client 1 ... never fall ... from_lists"),
    "partition([0, 2, 2, 2], [0, 1])": (partition([0, 2, 2, 2], [0, 1]), "number of examples of client 1 is 0 ... at least 1 ... 2 of 3 ... Leave"),
    "partition([1, 2], [0, 1])": (partition([1, 2], [0, 1]), "first and last of partition.offsets is (1, 2) ... 0 and 2"),
    "partition([0, 2], [0, 1, 2])": (partition([0, 2], [0, 1, 2]), "first and last of partition.offsets is (0, 2) ... 0 and 3"),
    "partition([0, 2], [0, -1])": (partition([0, 2], [0, -1]), "smallest of partition.indices is -1 ... at least 0"),
    "partition([0, 2], [0.0, 1.0])": (partition([0, 2], [0.0, 1.0]), "partition.indices.dtype is 'float64' ... integer"),
    "partition([0.0, 2.0], [0, 1])": (partition([0.0, 2.0], [0, 1]), "partition.offsets.dtype is 'float64' ... integer"),
    "partition([0], [])": (partition([0], []), "partition.offsets.shape is (1,) ... at least one client"),
    "partition([0, 1], [[0]])": (partition([0, 1], [[0]]), "partition.indices.shape is (1, 1) ... one-dimensional"),
    "Partition.from_lists([])": (lambda: Partition.from_lists([]), "number of clients in partition is 0 ... at least 1"),
    "Partition.from_lists([[1], []])": (lambda: Partition.from_lists([[1], []]), "number of examples of client 1 is 0 ... at least 1"),
    "Partition.from_lists([[1], 2])": (lambda: Partition.from_lists([[1], 2]), "shape of the indices of client 1 is () ... one-dimensional"),
    # Clients
    "clients({})": (clients({}), "number of clients is 0 ... at least 1"),
    "clients('abc')": (clients("abc"), "clients is 'str' ... {client: (x, y)}"),
    "clients({'a': X})": (clients({"a": X}), "clients['a'] is 'ndarray' ... a pair (x, y)"),
    "clients({'a': (X, Y[:3])})": (clients({"a": (X, Y[:3])}), "numbers of x and y of clients['a'] is (6, 3) ... equal"),
    "clients({'a': (X[:0], Y[:0])})": (clients({"a": (X[:0], Y[:0])}), "clients['a'] is (0, 0) ... Leave clients without examples out"),
    "clients({'a': (X, Y), 'b': (X[:, 0], Y)})": (clients({"a": (X, Y), "b": (X[:, 0], Y)}), "clients['b'] is ((2,), ()) ... ((2, 2), ()), as before"),
    "clients(THREE, test=None)": (clients(THREE, test=None), "test and test_fraction is (None, None) ... one given"),
    "clients(THREE, test_fraction=0.5)": (clients(THREE, test_fraction=0.5), "test and test_fraction is ('given', 0.5) ... one given"),
    "clients(THREE, test=None, test_fraction=1)": (clients(THREE, test=None, test_fraction=1), "test_fraction is 1 ... above 0 and below 1"),
    "clients(THREE, test=X)": (clients(THREE, test=X), "test is 'ndarray' ... a pair (x, y)"),
    "clients({'a': (X[:1], Y[:1])}, test=None, test_fraction...": (clients({"a": (X[:1], Y[:1])}, test=None, test_fraction=0.5), "test_fraction is 0.5 ... one test example ... test=(x, y)"),
    "kinds((np.float32, np.int32), (np.int64, np.int32))": (kinds((np.float32, np.int32), (np.int64, np.int32)), "dtype of x of clients['b'] is 'int64', but must be of the kind ... as of clients['a'] ... astype"),
    "kinds((np.uint8, np.int32), (np.float64, np.int32))": (kinds((np.uint8, np.int32), (np.float64, np.int32)), "dtype of x of clients['b'] is 'float64', but must be of the ... as of clients['a'] ... astype"),
    "kinds((np.float32, np.int32), (np.float32, np.float32))": (kinds((np.float32, np.int32), (np.float32, np.float32)), "dtype of y of clients['b'] is 'float32', but must be of ... as of clients['a'] ... astype"),
    "kinds((np.float32, np.int64), (np.float32, bool))": (kinds((np.float32, np.int64), (np.float32, bool)), "dtype of y of clients['b'] is 'bool', but must be of the kind ... as of clients['a'] ... astype"),
    "kinds((np.int64, np.int32), (np.uint64, np.int32))": (kinds((np.int64, np.int32), (np.uint64, np.int32)), "dtype of x of clients['b'] is 'uint64', but must be of the ... as of clients['a'] ... astype"),
    "labels_per_client(labels_per_client=11)": (labels_per_client(labels_per_client=11), "labels_per_client is 11 ... at most 10"),
    "labels_per_client(labels_per_client=0)": (labels_per_client(labels_per_client=0), "labels_per_client is 0 ... at least 1"),
    "labels_per_client(smallest=0)": (labels_per_client(smallest=0), "smallest is 0 ... at least 1"),
    "labels_per_client(smallest=50)": (labels_per_client(smallest=50), "smallest is 50 ... at most largest = 40"),
    "labels_per_client(largest=401)": (labels_per_client(largest=401), "largest is 401 ... at most 400 ... ask for fewer"),
    "labels_per_client(num_clients=0)": (labels_per_client(num_clients=0), "num_clients is 0 ... at least 1"),
}  # fmt: skip
