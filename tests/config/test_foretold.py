"""What could never be made is said in a moment, by the setting; what could is not refused."""

import pytest

from jafl.base.errors import SettingError
from jafl.config import foretold
from jafl.config.experiment import make_experiments
from jafl.config.resolution import resolve_run
from jafl.config.settings import Settings

GIB = 2**30


def check(**changes):
    settings = Settings(**{"algorithm": "fedbuff", "model": "softmax", **changes})
    foretold.check(resolve_run(settings, settings.algorithm, 0))


@pytest.mark.parametrize(
    ("changes", "setting", "words"),
    [
        ({"dataset": "synthetic", "num_clients": 10**9}, "num_clients", "the data set synthetic fits into"),
        (
            {"dataset": "synthetic(mean_examples=1e12)"},
            "dataset.mean_examples",
            "Lower num_clients or dataset.mean_examples",
        ),
        ({"client_trips": 2 * 10**9}, "client_trips", "a schedule of 2,000,000,000 trips"),
        ({"client_trips": 2**31}, "client_trips", "below 2[*][*]31 trips"),
        ({"server_steps": 10**9}, "server_steps", "1,000,000,000 server steps of 10 trips"),
        ({"local_steps": 2 * 10**9}, "local_steps", "at most 100,000,000 where batch_size is 8"),
        ({"local_steps": 10**6, "batch_size": 10**4}, "local_steps", "at most 214,748 where"),
        ({"partition": "labels_per_client", "num_clients": 10**9}, "num_clients", "the partition fits into"),
    ],
)
def test_what_could_never_be_made_is_refused_by_its_setting(changes, setting, words, monkeypatch):
    monkeypatch.setattr(foretold, "host_memory", lambda: 16 * GIB)
    with pytest.raises(SettingError, match=words) as refused:
        check(**changes)
    assert refused.value.setting == setting


def test_what_fits_is_not_refused_and_what_just_does_not_is(monkeypatch):
    monkeypatch.setattr(foretold, "host_memory", lambda: 16 * GIB)
    check(client_trips=10**8)
    check(dataset="synthetic", num_clients=100_000)
    check(local_steps=10**6)
    most = 16 * GIB // foretold.BYTES_OF_A_TRIP
    check(client_trips=most)
    with pytest.raises(SettingError, match="client_trips"):
        check(client_trips=most + 1)


def test_epochs_are_counted_once_the_clients_are_known():
    settings = Settings(
        algorithm="fedbuff", model="softmax", client_trips=50, **{"client_work.local_epochs": 2 * 10**9}
    )
    with pytest.raises(
        SettingError,
        match=r"^client_work.local_epochs is 2000000000, but must be at most [\d,]+, for a client has",
    ):
        make_experiments(settings)


@pytest.mark.full
def test_the_synthetic_data_take_at_least_what_is_foretold(monkeypatch):
    """The estimate refuses nothing that would fit: what is made is larger."""
    settings = Settings(
        algorithm="fedbuff", model="softmax", dataset="synthetic", num_clients=300, client_trips=50
    )
    sizes = []
    monkeypatch.setattr(foretold, "_fits", lambda name, value, size, *rest: sizes.append(size))
    run = resolve_run(settings, "fedbuff", 0)
    foretold._check_synthetic(run)
    (experiment,) = make_experiments(settings)
    source = experiment.source
    models = 300 * foretold.BYTES_OF_A_LABELLING_MODEL
    made = 2 * (source.x.nbytes + source.test_x.nbytes) + models
    assert 0.3 * made < sizes[0] < 3 * made
