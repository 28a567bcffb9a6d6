"""Commands from before settings were calls, and today's: the same clients, events and examples."""

import hashlib
import shlex

import numpy as np
import pytest

from jafl.cli import given
from jafl.config.experiment import make_experiments
from jafl.config.settings import Settings

SHARED = ("--algorithm=fedbuff", "--client_trips=400", "--model=softmax")
# {today's command: the digest of what the former one, above it, made}
COMMANDS = {
    # --algorithm=fedbuff
    "--algorithm=fedbuff": "e6711b2c56b458c9",
    # --delay=exponential
    '--delay="once_per_client(exponential)"': "022f2ccc1abadcbf",
    # --delay=exponential --delay_draw=per_trip --delay_mean=5
    '--delay="exponential(mean=5)"': "446858af6b62cd6a",
    # --delay=gamma --delay_shape=2 --dirichlet_alpha=0.1
    '--delay="once_per_client(gamma(shape=2))" --partition.alpha=0.1': "99c81e843e23a856",
    # --delay=pareto --delay_shape=1.5 --delay_draw=per_trip
    '--delay="pareto(shape=1.5)"': "26bc87fe3a615c82",
    # --delay=half_normal --delay_draw=per_trip --dirichlet_equal_sizes
    "--delay=half_normal --partition.equal_sizes=true": "89d4a8b9487ad530",
    # --delay=uniform --delay_low=0.5 --delay_high=4
    '--delay="once_per_client(uniform(0.5, 4))"': "7d3a1aafeea78776",
    # --delay_sigma=2 --delay_mean=3
    "--delay.sigma=2 --delay.mean=3": "89131a02f11f86ff",
    # --delay=constant --delay_mean=2 --partition=iid
    '--delay="constant(2)" --partition=iid': "4ee2fab03c941884",
    # --delay=proportional_to_examples --delay_draw=per_trip
    '--delay="proportional_to_examples(mean=1)"': "232a5f84bc37222f",
    # --num_clients=15 --partition=label_groups --delay=groups --delay_draw=per_trip
    '--num_clients=15 --partition="label_groups([(10, [4, 5, 6, 7, 8, 9]), (5, [0, 1, 2, 3])])"'
    ' --delay="groups([(10, uniform(1, 2)), (5, uniform(8, 12))])"': "1feaf4089109daac",
    # --delay_slow_fraction=0.3 --delay_slow_factor=5
    '--delay="once_per_client(slow_fraction(log_normal, log_normal(mean=5), 0.3))"': "2aba4cf3fbd3ef90",
    # --delay_download_bandwidth=500 --delay_upload_bandwidth=100 --delay_bandwidth_sigma=1
    '--delay="with_network(once_per_client(log_normal), download_bandwidth=log_normal(500, 1),'
    ' upload_bandwidth=log_normal(100, 1))"': "82f83f6831b31e8d",
    # --delay_throttled=0-4:0.5
    '--delay="throttled(once_per_client(log_normal), 0.5, [0, 1, 2, 3, 4])"': "6a3c22d94ceeb415",
    # --availability=diurnal --day_length=6 --day_share=0.4
    '--availability="diurnal(day_length=6, share=0.4)"': "bdf854dcd174f4d6",
    # --availability=on_and_off --mean_on=3 --mean_off=2
    '--availability="on_and_off(mean_on=3, mean_off=2)"': "b6541eb6034cc8ef",
    # --availability=diurnal --lose_trips --day_spread=0.5
    '--availability="diurnal(spread=0.5, loses_trips=True)"': "6c0712ac4e9de95d",
    # --dropout_fraction=0.5 --dropout_time=5
    '--dropout="fraction(0.5, time=5)"': "968a8fb17357200f",
    # --dropout_fraction=0.3 --dropout_step=10 --partition_seed=7
    '--dropout="fraction(0.3, server_step=10)" --partition.seed=7': "76830e0f2af88355",
    # --partition=labels_per_client --labels_per_client=3 --smallest_client=5 --largest_client=20
    '--partition="labels_per_client(labels_per_client=3, smallest=5, largest=20)"': "6b43a0193532f8f2",
    # --protocol=open_arrivals --delay_mean=2 --failure_rate=0.1
    "--protocol=open_arrivals --delay.mean=2 --protocol.failure_rate=0.1": "68530da890f6520f",
}


def settings_of(text):
    """The settings of a command."""
    return Settings.from_mapping(
        given.read("run.py", [*dict.fromkeys([*SHARED, *shlex.split(text)])]).settings()
    )


@pytest.mark.few_by_default(5)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_makes_what_its_former_spelling_made(command):
    (experiment,) = make_experiments(settings_of(command))
    schedule, partition = experiment.schedule, experiment.federation.partition
    digest = hashlib.sha256()
    for column in (schedule.client, schedule.step, schedule.staleness, partition.indices, partition.offsets):
        digest.update(np.ascontiguousarray(column).astype(np.int64).tobytes())
    assert digest.hexdigest()[:16] == COMMANDS[command]


def test_every_command_makes_something_else():
    assert len(set(COMMANDS.values())) == len(COMMANDS) > 20
