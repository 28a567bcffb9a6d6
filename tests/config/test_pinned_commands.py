"""What some commands draw stays the same from version to version: clients, events and who holds which examples."""

import hashlib
import shlex

import numpy as np
import pytest

from jafl.cli import given
from jafl.config.experiment import make_experiments
from jafl.config.settings import Settings

SHARED = ("--algorithm=fedbuff", "--client_trips=400", "--model=softmax")
# {command: the digest of what it makes}
COMMANDS = {
    "--algorithm=fedbuff": "e6711b2c56b458c9",
    '--delay="once_per_client(exponential)"': "022f2ccc1abadcbf",
    '--delay="exponential(mean=5)"': "446858af6b62cd6a",
    '--delay="once_per_client(gamma(shape=2))" --partition.alpha=0.1': "99c81e843e23a856",
    '--delay="pareto(shape=1.5)"': "26bc87fe3a615c82",
    "--delay=half_normal --partition.equal_sizes=true": "89d4a8b9487ad530",
    '--delay="once_per_client(uniform(0.5, 4))"': "7d3a1aafeea78776",
    "--delay.sigma=2 --delay.mean=3": "89131a02f11f86ff",
    '--delay="constant(2)" --partition=iid': "4ee2fab03c941884",
    '--delay="proportional_to_examples(mean=1)"': "232a5f84bc37222f",
    '--num_clients=15 --partition="label_groups([(10, [4, 5, 6, 7, 8, 9]), (5, [0, 1, 2, 3])])"'
    ' --delay="groups([(10, uniform(1, 2)), (5, uniform(8, 12))])"': "1feaf4089109daac",
    '--delay="once_per_client(slow_fraction(log_normal, log_normal(mean=5), 0.3))"': "2aba4cf3fbd3ef90",
    '--delay="with_network(once_per_client(log_normal), download_bandwidth=log_normal(500, 1),'
    ' upload_bandwidth=log_normal(100, 1))"': "82f83f6831b31e8d",
    '--delay="throttled(once_per_client(log_normal), 0.5, [0, 1, 2, 3, 4])"': "6a3c22d94ceeb415",
    '--availability="diurnal(day_length=6, share=0.4)"': "bdf854dcd174f4d6",
    '--availability="on_and_off(mean_on=3, mean_off=2)"': "b6541eb6034cc8ef",
    '--availability="diurnal(spread=0.5, loses_trips=True)"': "6c0712ac4e9de95d",
    '--dropout="fraction(0.5, time=5)"': "968a8fb17357200f",
    '--dropout="fraction(0.3, server_step=10)" --partition.seed=7': "76830e0f2af88355",
    '--partition="labels_per_client(labels_per_client=3, smallest=5, largest=20)"': "6b43a0193532f8f2",
    "--protocol=open_arrivals --delay.mean=2 --protocol.failure_rate=0.1": "68530da890f6520f",
}


def settings_of(text):
    """The settings of a command."""
    return Settings.from_mapping(
        given.read("run.py", [*dict.fromkeys([*SHARED, *shlex.split(text)])]).settings()
    )


@pytest.mark.few_by_default(5)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_makes_what_it_has_always_made(command):
    (experiment,) = make_experiments(settings_of(command))
    schedule, partition = experiment.schedule, experiment.federation.partition
    digest = hashlib.sha256()
    for column in (schedule.client, schedule.step, schedule.staleness, partition.indices, partition.offsets):
        digest.update(np.ascontiguousarray(column).astype(np.int64).tobytes())
    assert digest.hexdigest()[:16] == COMMANDS[command]


def test_every_command_makes_something_else():
    assert len(set(COMMANDS.values())) == len(COMMANDS) > 20
