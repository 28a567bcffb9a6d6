"""Forecasts for chips that are not here: what they say, what is refused, and sums over runs."""

import dataclasses

import jax
import pytest

import jafl
from experiments.tools.benchmarks.compiled_estimates.times import Times, times
from jafl.ahead_of_time.forecast import Known, RunForecast, _in_words, duration
from jafl.ahead_of_time.timed import measured_here
from jafl.ahead_of_time.topologies import is_installed
from jafl.config.data_cache import DataCache
from jafl.config.experiment import make_experiment, make_experiments
from jafl.config.resolution import resolve
from jafl.config.settings import Settings
from jafl.sweeps.forecast import forecast_runs, total

needs_libtpu = pytest.mark.skipif(
    not is_installed("v5e:1x1"), reason='libtpu is not installed: pip install "jafl[tpu]"'
)
MADE = RunForecast(
    topology="v5e:1x1",
    chips=1,
    fewest_chips=1,
    fits=True,
    reason="",
    plan="trip by trip",
    trips=1000,
    parts={"snapshots": 3 * 2**20, "temporaries": 2**20},
    available=2**30,
    compile_seconds=8.0,
    measured=4e-4,
    platform="cpu, 1 device(s)",
)


def tiny_run(rule="fedbuff", trips=300, **work):
    source = jafl.data.digits()
    federation = jafl.federate(source, jafl.data.iid(source.y, 20, seed=0))
    schedule = jafl.asynchronous(
        num_clients=20,
        concurrency=20,
        buffer_size=10 if rule == "fedbuff" else 1,
        client_trips=trips,
        delay=jafl.delays.half_normal(1.0),
        initial_round=rule == "ace",
    )
    model = jafl.models.mlp(10, hidden_sizes=[16])
    made = jafl.client_work(model, learning_rate=0.1, **work)
    shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), federation.x[:1]))
    return jafl.Run(
        schedule, federation, made, jafl.rules.RULES[rule](), shapes, jax.random.key(1), evaluate_at=[5, 10]
    )


def test_the_lines_say_what_is_the_compilers_and_what_was_measured():
    text = str(MADE)
    assert "v5e:1x1: by its compiler; nothing has run there." in text
    assert "fits on 1 of them (fewest: 1): 4 MiB of 1 GiB a chip: snapshots 3 MiB, temporaries 1 MiB" in text
    assert "400 us a trip by the clock, 400 ms for 1,000 trips; compiling took 8 s" in text


def test_what_does_not_fit_or_was_not_measured_is_said():
    large = dataclasses.replace(MADE, fits=False, reason="Ran out of memory.", fewest_chips=None)
    assert "does not fit (Ran out of memory.) on 1 of them (fewest: not found)" in str(large)
    assert "not measured" in str(dataclasses.replace(MADE, topology="h100", measured=None))


def test_chips_without_a_trip_are_named_and_what_to_do_with_them():
    schedule = jafl.asynchronous(
        num_clients=4, concurrency=4, buffer_size=2, client_trips=100, delay=jafl.delays.exponential(1.0)
    )
    plan = jafl.in_waves(schedule, 16, form="matrix")
    mean = plan.wave.size / len(plan.wave_before)
    assert 1 <= mean < 4
    assert "chips" not in _in_words(plan, 1, 1)
    words = _in_words(plan, 16, 16)
    assert f"{16 - int(mean)} chips or more have no trip: use {int(mean)} (devices={int(mean)})" in words
    assert _in_words(plan, 1, 4).endswith("; the other chips can train other runs")


def test_the_lines_of_estimated_times_say_what_they_are():
    made = Times("v5e:1x1", True, 1000, 1e-4, 0.1, 0.02, 10, {"scatter f32[8]": 2**20})
    text = str(made)
    assert "v5e:1x1: a compiler's estimates; nothing has run there." in text
    assert "100 us a trip, 100 ms for 1,000 trips, 20 ms for 10 evaluations" in text
    assert "no price scatter f32[8] 1 MiB a trip" in text and "exchange" not in text
    assert "not said by this compiler" in str(Times("h100", True, 1000))
    assert "the run does not fit" in str(Times("v5e:1x1", False, 1000))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(1.8e-5, "18 us"), (3.2e-3, "3.2 ms"), (41, "41 s"), (600, "10 min"), (9000, "2.5 h")],
)
def test_durations_for_people(seconds, text):
    assert duration(seconds) == text


def test_the_sum_counts_seeds_and_what_does_not_fit():
    large = dataclasses.replace(MADE, fits=False, measured=None)
    line = total([(MADE, 3), (large, 2)], "v5e:1x1")
    assert line.startswith("5 runs, 5,000 trips, one after the other: 1.2 s")
    assert line.endswith("2 of them do not fit on v5e:1x1")


@pytest.mark.full
@pytest.mark.parametrize("rule", ["fedbuff", "ace"])
def test_this_machine_is_measured_on_shapes_alone(rule):
    seconds = measured_here(tiny_run(rule), seconds=0.2)
    assert seconds is not None and 1e-7 < seconds < 1


def test_a_topology_that_does_not_exist_is_refused_first():
    with pytest.raises(jafl.SettingError, match="topology is 'v5e:9x9'"):
        jafl.forecast(tiny_run(), "v5e:9x9")
    with pytest.raises(jafl.SettingError, match="Did you mean 'v5e:1x1'"):
        forecast_runs(Settings(), "v5e:1x")


@needs_libtpu
@pytest.mark.full
def test_a_run_on_one_chip():
    known = Known()
    found = jafl.forecast(tiny_run(), "v5e:1x1", measure=False, known=known)
    assert found.fits and found.chips == found.fewest_chips == 1 and found.measured is None
    assert {"snapshots", "temporaries", "code", "padding", "evaluation"} <= set(found.parts)
    compiled = dict(known._compiled)
    there = times(tiny_run(), known=known)
    assert known._compiled == compiled  # once for both
    assert there.fits and not there.unknown_rounds and there.evaluations == 4  # at 0, 5, 10 and the end
    assert 1e-7 < there.seconds_a_trip < 1e-3
    assert there.seconds > there.training_seconds >= there.trips * there.seconds_a_trip


@needs_libtpu
@pytest.mark.gate
def test_local_steps_count_in_the_time():
    once, more = (times(tiny_run(batch_size=8, local_steps=number)) for number in (2, 20))
    assert not more.unknown_rounds
    assert 3 < more.seconds_a_trip / once.seconds_a_trip < 10


@needs_libtpu
@pytest.mark.gate
def test_what_does_not_fit_says_so_and_on_how_many_chips_it_does():
    source = jafl.data.digits()
    federation = jafl.federate(source, jafl.data.iid(source.y, 1000, seed=0))
    schedule = jafl.asynchronous(
        num_clients=1000,
        concurrency=1000,
        buffer_size=1,
        client_trips=2000,
        delay=jafl.delays.half_normal(1.0),
        initial_round=True,
    )
    model = jafl.models.mlp(10, hidden_sizes=[60_000])  # 18 MB: the memory of 1,000 clients is 16.8 GiB
    work = jafl.client_work(model, learning_rate=0.1)
    shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), federation.x[:1]))
    run = jafl.Run(schedule, federation, work, jafl.rules.ace(), shapes, jax.random.key(1))
    found = jafl.forecast(run, "v5e:1x1", measure=False)
    assert not found.fits and (found.fewest_chips is None or found.fewest_chips > 1)
    assert "does not fit" in str(found)


@needs_libtpu
@pytest.mark.gate
def test_runs_of_settings_are_added_up(capsys):
    settings = Settings.from_mapping({"algorithm": "fedbuff", "seed": "0,1", "client_trips": 500})
    made = forecast_runs(settings, "v5e:1x1", sweep="learning_rate=0.1,0.3")
    assert [number for _, number in made] == [2, 2]
    assert made[0][0].measured == made[1][0].measured  # one program
    out = capsys.readouterr().out
    assert "learning_rate=0.1, fedbuff-seed0, and 1 more with other seeds" in out
    assert "4 runs, 2,000 trips" in out


@pytest.mark.parametrize(("tune", "parts"), [(False, ["Results:"]), (True, ["Search:", "Results:"])])
def test_an_experiment_asks_for_the_runs_of_its_results_and_of_its_search(monkeypatch, tune, parts):
    from experiments.harness.declare import discovery
    from experiments.harness.results import BETWEEN
    from experiments.harness.run.running import run_paper_experiment

    asked, shown = [], []
    monkeypatch.setattr(
        "jafl.sweeps.forecast.forecast_runs", lambda *a, **options: asked.append((a, options))
    )
    status = run_paper_experiment(
        "fedbuff_fig3", tune=tune, forecast="v5e:2x2", typed={"client_trips": 100}, show=shown.append
    )
    scale = discovery.load("fedbuff_fig3").scales["desk"]
    assert status == 0 and shown[1:] == parts and len(asked) == len(parts)
    (settings, name), options = asked[-1]
    assert name == "v5e:2x2" and settings.seed == ",".join(map(str, scale.seeds))
    # An arm that was searched for several times runs with what each search has found.
    arms = {label.partition(BETWEEN)[0]: arm for label, arm in options["arms"].items()}
    assert arms == scale.arms and options["sweep"] == scale.conditions
    assert options["overrides"][-1].settings == {"client_trips": 100}


def test_an_experiments_forecast_assumes_data_that_are_not_here_and_says_so(monkeypatch, tmp_path):
    from experiments.harness.run.running import run_paper_experiment

    def read(settings, topology, *, loaded, **options):
        assert len(loaded.source(settings).y) == 60_000

    shown = []
    monkeypatch.setattr("jafl.sweeps.forecast.forecast_runs", read)
    typed = {"dataset": "mnist", "data_dir": str(tmp_path)}
    run_paper_experiment("fedstaleweight_fig2", forecast="v5e:2x2", typed=typed, show=shown.append)
    assert shown[-1].startswith("Assumed: mnist is planned by its published shapes")


@pytest.mark.full
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["forecast", "v5e:1x"], "Did you mean 'v5e:1x1'"),
        (["forecast", "v5e:1x1", "--tune"], "tune is True, but must be left out without --experiment"),
        (["forecast", "v5e:1x1", "--output_dir=there"], "forecast has no flag 'output_dir'"),
    ],
)
def test_the_command_line_refuses_what_does_not_go_together(tmp_path, arguments, said):
    from command_line import run_py

    ended = run_py(*arguments, folder=tmp_path)
    assert ended.returncode == 2 and said in ended.stderr and not list(tmp_path.iterdir())


def test_there_may_be_more_chips_than_devices_here(monkeypatch):
    asked = []

    def recorded(experiment, name, **options):
        asked.append((experiment.preparation.program.placement.number, name, options["devices"]))
        return MADE

    monkeypatch.setattr("jafl.sweeps.forecast.forecast", recorded)
    monkeypatch.setattr("jafl.sweeps.forecast.topology", lambda name: name)
    settings = Settings.from_mapping({"algorithm": "fedbuff", "client_trips": 500, "devices": 64})
    forecast_runs(settings, "v5e:8x8", show=lambda text: None)
    assert asked == [(1, "v5e:8x8", 64)]


@pytest.mark.full
def test_what_this_machine_lacks_may_be_there_on_others():
    settings = Settings.from_mapping(
        {"algorithm": "fedbuff", "client_trips": 500, "precision.matmul_precision": "bfloat16"}
    )
    with pytest.raises(jafl.SettingError, match="matmul_precision is 'bfloat16', but must be float32"):
        make_experiments(settings)
    loaded = DataCache()
    ((label, resolved),) = resolve({"fedbuff": settings}, loaded)
    experiment = make_experiment(label, resolved, loaded, must_fit=False)
    assert measured_here(experiment) is None  # this machine has no such products
