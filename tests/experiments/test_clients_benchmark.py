"""The batch benchmark: its rows, what is kept of them, and two machines side by side; with made-up measurements."""

import contextlib
import json
import pathlib
import re
from unittest import mock

import numpy as np
import pytest
from in_process import assert_says, command
from quick_compilation import quick_compilation  # noqa: F401

import jafl
from experiments.tools.benchmarks.clients import (
    comparing,
    files,
    measure,
    page,
    rows,
    running,
    subjects,
    tables,
)
from jafl.base.errors import SettingError

FACTS = {"platform": "cpu", "device_kind": "cpu", "device_count": 1, "versions": {"jafl": "1", "jax": "2"}}


def numbers(rate=100.0, **others):
    """What is found of a measured row."""
    return {
        "status": "measured",
        "trips_per_second": rate,
        "examples_per_second": 32 * rate,
        "repeats": [0.9 * rate, rate, 1.2 * rate],
        "seconds_to_first_step": 2.0,
        "parts_to_first_step": {
            "schedule": 0.5,
            "planning": 0.5,
            "compiling and placing": 0.7,
            "first step": 0.3,
        },
        "processor_seconds_per_trip": 0.01,
        "memory": {"peak_bytes": 2**30, "needed_bytes": 2**20, "available_bytes": 2**34},
        "energy": None,
        "centralised": {"examples_per_second": 6400.0, "repeats": [6400.0]},
        "batch": 32,
        "load": 0.5,
        **others,
    }


class Machine:
    """Answers as ``running.in_a_process`` does. found: {name of a row: what is found, or an error to raise}."""

    def __init__(self, found=None, facts=FACTS, estimate=None):
        self.found, self.facts, self.estimate = found or {}, facts, estimate
        self.asked: list[str] = []

    def __call__(self, what, row, settings):
        if what == "facts":
            return self.facts
        if what == "estimate":
            return self.estimate
        self.asked.append(row.name)
        found = self.found.get(row.name, numbers())
        if isinstance(found, BaseException):
            raise found
        return dict(found)


def run(folder, machine, typed=None, pictures=False, **options):
    """The benchmark of the MLP with 1,000 clients; (exit status, what was shown, the content of its file)."""
    shown: list[str] = []
    typed = {"model": "mlp", "num_clients": 1000} if typed is None else typed
    with contextlib.ExitStack() as stack:
        for name in () if pictures else ("over_clients", "first_steps"):  # they take a second each
            stack.enter_context(mock.patch.object(page.pictures, name, return_value=None))
        status = running.run_clients(typed, str(folder), show=shown.append, ask=machine, **options)
    return status, "\n".join(shown), json.loads((folder / "benchmark.json").read_text())


# Which rows


def test_the_rows_cross_models_rules_and_numbers_of_clients():
    names = [row.name for row in rows.selected({})]
    assert names == [
        *(
            f"{model} {rule} {clients}"
            for model in ("mlp", "emnist_cnn")
            for rule in ("fedbuff", "ace", "wkafl")
            for clients in (1000, 10000, 100000)
        ),
        "lenet5 fedavg 100",
        "resnet18 fedavg 100",
    ]
    assert [row.published for row in rows.selected({"algorithm": "fedavg"})] == [12_300, 5_400]


@pytest.mark.parametrize(
    "typed, names",
    [
        ({"model": "lenet5"}, ["lenet5 fedavg 100"]),
        ({"model": "mlp", "algorithm": "ace, asgd", "num_clients": 7}, ["mlp ace 7", "mlp asgd 7"]),
        ({"num_clients": 100, "algorithm": "fedavg"}, ["lenet5 fedavg 100", "resnet18 fedavg 100"]),
        ({"model": "resnet18,mlp", "algorithm": "fedbuff", "num_clients": 5}, ["mlp fedbuff 5"]),
    ],
)
def test_settings_choose_among_the_rows(typed, names):
    assert [row.name for row in rows.selected(typed)] == names


@pytest.mark.full
def test_blazefl_is_measured_on_the_models_that_it_published():
    import jax

    sizes = {}
    for name in rows.BLAZEFL:
        model, x = subjects.blazefl_model(name), np.zeros((1, 32, 32, 3), np.float32)
        params = jax.eval_shape(lambda model=model, x=x: model.init(jax.random.key(0), x))
        sizes[name] = sum(leaf.size for leaf in jax.tree.leaves(params))
    # PyTorch's tutorial network, and torchvision's ResNet-18 for ten classes.
    assert sizes == {"lenet5": 62_006, "resnet18": 11_181_642}


@pytest.mark.full
def test_blazefl_is_measured_with_the_clients_and_batches_that_it_published():
    (row,) = rows.selected({"model": "lenet5"})
    work = subjects.make_work(row, {"data_dir": "/nowhere"})
    assert (work.batch, work.local_steps, work.data) == (50, 40, "generated, 32 x 32 x 3")
    assert work.federation.x.dtype == np.uint8
    assert set(np.diff(work.federation.partition.offsets)) == {400}
    run = subjects.make_run(row, work, None, 10)
    assert set(np.diff(run.schedule.step_offsets)) == {10}


# What is kept of them


def test_each_row_is_in_the_file_before_the_next_one_is_measured(tmp_path):
    seen = []

    class Watching(Machine):
        def __call__(self, what, row, settings):
            if what == "row":
                file = tmp_path / "benchmark.json"
                seen.append(
                    [row["name"] for row in json.loads(file.read_text())["rows"]] if file.is_file() else []
                )
            return super().__call__(what, row, settings)

    status, shown, content = run(tmp_path, Watching())
    assert status == 0
    names = ["mlp fedbuff 1000", "mlp ace 1000", "mlp wkafl 1000"]
    assert seen == [names[:count] for count in range(3)]
    assert [row["name"] for row in content["rows"]] == names
    assert (tmp_path / "benchmark.html").is_file()
    assert content["machine"]["device_kind"] == "cpu"
    assert content["versions"]["jax"] == "2"


def test_a_row_whose_process_dies_does_not_end_the_others_and_is_measured_again(tmp_path):
    machine = Machine({"mlp ace 1000": running.failed("the system killed it")})
    status, shown, content = run(tmp_path, machine)
    assert status == 1
    assert [row["status"] for row in content["rows"]] == ["measured", "failed", "measured"]
    assert "failed: the system killed it" in shown
    machine = Machine({"mlp ace 1000": numbers(50.0)})
    status, shown, content = run(tmp_path, machine, resume=True)
    assert (status, machine.asked) == (0, ["mlp ace 1000"])
    assert [row["trips_per_second"] for row in content["rows"]] == [100.0, 50.0, 100.0]


def test_a_row_that_does_not_fit_is_told_and_is_no_failure(tmp_path):
    memory = {"needed_bytes": 102 * 2**30, "available_bytes": 16 * 2**30}
    found = {"status": "does not fit", "reason": "too large", "memory": memory, "load": 0.1}
    estimate = {"topology": "v5e:1x1", "fits": False, "fewest_chips": 8}
    status, shown, content = run(tmp_path, Machine({"mlp ace 1000": found}, estimate=estimate))
    assert status == 0
    assert "does not fit: needs 102 GiB of 16 GiB" in shown
    text = (tmp_path / "benchmark.md").read_text()
    assert "| ace | 1,000 | does not fit | - |" in text
    assert "mlp ace 1000 needs 102 GiB of 16 GiB" in text
    assert "does not fit (fits on 8 chips)" in text
    files.read(tmp_path, "compare")


def test_an_interrupted_benchmark_keeps_its_rows_and_goes_on(tmp_path):
    machine = Machine({"mlp wkafl 1000": KeyboardInterrupt()})
    status, shown, content = run(tmp_path, machine)
    assert status == 130
    assert [row["name"] for row in content["rows"]] == ["mlp fedbuff 1000", "mlp ace 1000"]
    assert f"--resume --output_dir={tmp_path}" in shown
    assert "ace" in (tmp_path / "benchmark.md").read_text()
    machine = Machine()
    status, _, content = run(tmp_path, machine, resume=True)
    assert (status, machine.asked, len(content["rows"])) == (0, ["mlp wkafl 1000"], 3)


def test_a_benchmark_goes_on_with_other_rows(tmp_path):
    run(tmp_path, Machine(), command=["python", "run.py", "--one"])
    machine = Machine()
    _, _, content = run(
        tmp_path, machine, {"model": "mlp", "algorithm": "fedbuff", "num_clients": 10}, resume=True
    )
    assert machine.asked == ["mlp fedbuff 10"]
    assert content["commands"] == [["python", "run.py", "--one"], []]
    assert "    python run.py --one\n" in (tmp_path / "benchmark.md").read_text()
    assert [row["name"] for row in content["rows"]][:2] == ["mlp fedbuff 10", "mlp fedbuff 1000"]


@pytest.mark.parametrize(
    "facts, typed, said",
    [
        (
            {**FACTS, "device_count": 8},
            {},
            "device_count of a benchmark that goes on is 8 ... there device_count is 1",
        ),
        (
            {**FACTS, "versions": {"jafl": "1", "jax": "3"}},
            {},
            "jax of a benchmark that goes on is '3' ... there jax is '2'",
        ),
        (FACTS, {"client_trips": 500}, "client_trips of a benchmark that goes on is 500 ... is None"),
    ],
)
def test_a_benchmark_does_not_go_on_in_another_world(facts, typed, said, tmp_path):
    _, _, before = run(tmp_path, Machine())
    machine = Machine(facts=facts)
    with pytest.raises(SettingError) as refused:
        run(tmp_path, machine, {"num_clients": 10, **typed}, resume=True)
    assert_says(str(refused.value), said)
    assert machine.asked == []
    assert json.loads((tmp_path / "benchmark.json").read_text()) == before


def test_nothing_is_replaced_unless_asked(tmp_path):
    run(tmp_path, Machine())
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    with pytest.raises(SettingError, match="without a benchmark.*--overwrite.*--resume"):
        run(tmp_path, Machine())
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before
    _, _, content = run(tmp_path, Machine({"mlp ace 1000": numbers(7.0)}), overwrite=True)
    assert content["rows"][1]["trips_per_second"] == 7.0
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text("{}")
    with pytest.raises(SettingError, match="without a run"):
        run(tmp_path / "run", Machine())


def test_devices_that_refuse_the_settings_end_the_benchmark_before_anything_is_written(tmp_path):
    facts = {"status": "failed", "reason": "devices is 9, but must be at most 1, the devices here."}
    with pytest.raises(SettingError, match="devices is 9"):
        running.run_clients({"devices": 9}, str(tmp_path / "out"), ask=Machine(facts=facts))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "script, reason",
    [
        ("kill -9 $$", "the system killed it, as it does when memory runs out"),
        ("kill -s ABRT $$", "it was ended by SIGABRT"),
        ("echo one; echo 'what it said last' >&2; exit 3", "it ended with status 3: what it said last"),
        ("exit 0", "it ended with status 0: it said nothing"),
    ],
)
def test_the_death_of_a_process_is_told(script, reason, tmp_path, monkeypatch):
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\nulimit -c 0\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr(running.sys, "executable", str(program))
    (row,) = rows.selected({"model": "mlp", "algorithm": "ace", "num_clients": 10})
    assert running.in_a_process("row", row, {}) == running.failed(reason)


def test_a_process_that_takes_too_long_is_ended(tmp_path, monkeypatch):
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\nexec sleep 100\n")
    program.chmod(0o755)
    monkeypatch.setattr(running.sys, "executable", str(program))
    monkeypatch.setitem(running.MOST_SECONDS, "facts", 0.2)
    assert "took longer than" in running.in_a_process("facts", None, {})["reason"]


@pytest.mark.parametrize(("platform", "asked"), [("cpu", 2), ("tpu", 4)])
def test_a_compiler_for_chips_elsewhere_is_asked_once_for_each_model_and_rule(platform, asked, tmp_path):
    names = []

    class Compiler(Machine):
        def __call__(self, what, row, settings):
            if what == "estimate":
                names.append(row.name)
                if row.rule == "ace":
                    return running.failed("it took longer than 5 minutes")
                return {"topology": "v5e:1x1", "fits": True, "trips_per_second": 9.0}
            return super().__call__(what, row, settings)

    for clients, options in ((10, {}), (20, {"resume": True})):
        typed = {"model": "mlp", "algorithm": "fedbuff,ace", "num_clients": clients}
        _, _, content = run(tmp_path, Compiler(facts={**FACTS, "platform": platform}), typed, **options)
    assert names[:2] == ["mlp fedbuff 10", "mlp ace 10"]
    assert len(names) == len(set(names)) == asked
    assert (
        "mlp ace 10: no estimate: it took longer than 5 minutes." in (tmp_path / "benchmark.md").read_text()
    )


# One row


@pytest.fixture
def hurried(monkeypatch):
    """A row takes a fraction of a second."""
    for name, value in (("SECONDS_WARMING_UP", 0.0), ("SECONDS_TIMED", 0.2), ("SECONDS_CENTRALISED", 0.05)):
        monkeypatch.setattr(measure, name, value)


def small(rule="fedbuff", clients=20):
    (row,) = rows.selected({"model": "mlp", "algorithm": rule, "num_clients": clients})
    return row


@pytest.mark.full
@pytest.mark.parametrize("rule", ["fedbuff", "ace"])
def test_a_row_is_measured(rule, hurried):
    found = measure.measured(small(rule), {"client_trips": 400})
    assert found["status"] == "measured"
    assert found["trips_of_first_step"] == {"fedbuff": 10, "ace": 20}[rule]
    assert found["trips_per_second"] == pytest.approx(np.median(found["repeats"]))
    assert 0 < found["timed_trips"] <= 400
    mean = found["timed_trips"] / found["timed_seconds"]
    assert min(found["repeats"]) <= mean * 1.001
    assert mean <= max(found["repeats"]) * 1.001
    assert found["examples_per_second"] == pytest.approx(32 * found["trips_per_second"])
    assert sum(found["parts_to_first_step"].values()) == pytest.approx(found["seconds_to_first_step"])
    assert set(found["parts_to_first_step"]) == {
        "schedule",
        "planning",
        "compiling and placing",
        "first step",
    }
    assert found["memory"]["peak_bytes"] >= found["memory"]["before_bytes"] > 2**26
    rows_of_memory = {"fedbuff": 0, "ace": 21}[rule]  # one for each client, and the one that is held
    assert found["memory"]["parts"]["client_memory"] == pytest.approx(rows_of_memory * 636_040, rel=1e-3)
    assert found["centralised"]["examples_per_second"] > 0
    row = {**small(rule)._asdict(), "name": small(rule).name, **found}
    assert tables.cells(row)["trips/s"] == tables.digits(found["trips_per_second"])


@pytest.mark.full
def test_a_row_that_does_not_fit_is_foretold(hurried, monkeypatch):
    from jafl.engine.plan import device_memory

    monkeypatch.setattr(device_memory, "device_memory", lambda: 4 * 2**20)
    found = measure.measured(small("ace"), {"client_trips": 40})
    assert found["status"] == "does not fit"
    assert found["memory"]["needed_bytes"] > found["memory"]["available_bytes"] == 4 * 2**20
    assert "trips_per_second" not in found
    assert found["centralised"]["examples_per_second"] > 0


@pytest.mark.full
def test_a_first_step_that_would_take_too_long_is_not_begun(hurried, monkeypatch):
    monkeypatch.setattr(measure, "MOST_SECONDS_OF_FIRST_STEP", 0.0)
    found = measure.measured(small("ace"), {"client_trips": 40})
    assert found["status"] == "too slow"
    assert "first step alone" in found["reason"]


@pytest.mark.full
def test_a_run_of_one_step_has_nothing_to_time(hurried):
    with pytest.raises(SettingError, match="client_trips is too small.*which has 10 trips"):
        measure.measured(small(), {"client_trips": 10})


@pytest.mark.full
def test_a_run_that_diverges_is_not_measured(hurried, monkeypatch):
    monkeypatch.setattr(subjects.workloads, "RATE", 1e30)
    with pytest.raises(jafl.DivergenceError):
        measure.measured(small(), {"client_trips": 400})


def test_pieces_are_timed_after_the_first_step_and_the_warm_up(monkeypatch):
    clock = iter(np.arange(0.0, 100.0, 0.5))
    monkeypatch.setattr(measure.time, "perf_counter", lambda: float(next(clock)))
    watch = measure._FirstStep()
    chunks = measure._Chunks(watch, None, None, 10_000)
    over = []
    for steps in range(1, 100):
        chunks.after(10 * steps)
        over.append(chunks.is_over())
        if over[-1]:
            break
    timed = chunks.timed()
    assert timed[0].wall - chunks.marks[0].wall >= measure.SECONDS_WARMING_UP
    assert timed[-1].wall - timed[0].wall > measure.SECONDS_TIMED
    assert timed[-2].wall - timed[0].wall <= measure.SECONDS_TIMED
    speed = chunks.speed(np.arange(10_001) * 3)
    np.testing.assert_allclose(speed["repeats"], 30 / 0.5)
    assert speed["trips_per_second"] == 60
    assert speed["timed_trips"] == 30 * (len(timed) - 1)


def test_rounds_are_as_large_as_a_machine_can_bear():
    assert [subjects.count_cohort(seconds) for seconds in (0.01, 0.1, 0.5, 2.0, 100.0)] == [
        100,
        100,
        10,
        1,
        1,
    ]


def test_the_compiler_asked_is_that_of_the_devices():
    named = measure.benchmark_topology
    assert named("cpu", "cpu", 4) == "v5e:1x1"
    assert named("tpu", "TPU v5 lite", 8) == "v5e:2x4"
    assert named("tpu", "TPU v5p", 4) == "v5p:2x2x1"
    assert named("tpu", "TPU v4", 1) == "v4:1x1x1"
    assert named("tpu", "TPU v6 lite", 1) == "v6e:1x1"
    assert named("gpu", "NVIDIA H100 80GB HBM3", 1) == "h100"
    assert named("gpu", "NVIDIA A100-SXM4-40GB", 1) is None
    assert named("tpu", "TPU v5 lite", 3) is None


@pytest.mark.parametrize("fits", [True, False])
def test_what_the_compiler_says_is_kept(fits, monkeypatch):
    from experiments.tools.benchmarks.compiled_estimates import times
    from jafl.ahead_of_time import forecast, topologies

    asked = []

    def said(run, name, measure, known):
        asked.append((name, run.schedule.num_clients, measure))
        fields = {
            "topology": name, "chips": 1, "fewest_chips": 1 if fits else None, "fits": fits, "reason": "",
            "plan": "waves", "trips": 40, "parts": {"model": 5, "code": 7}, "available": 100,
            "compile_seconds": 3.0, "measured": None, "platform": "cpu",
        }  # fmt: skip
        return forecast.RunForecast(**fields)

    monkeypatch.setattr(forecast, "forecast", said)
    monkeypatch.setattr(
        times, "times", lambda run, name, known: times.Times(name, fits, 40, seconds_a_trip=0.25)
    )
    monkeypatch.setattr(topologies, "is_installed", lambda _: True)
    found = measure.estimated(small(), {"client_trips": 40})
    assert asked == [("v5e:1x1", 20, False)]
    assert (found["trips_per_second"], found["needed_bytes"]) == (4.0 if fits else None, 12)
    monkeypatch.setattr(topologies, "is_installed", lambda _: False)
    assert measure.estimated(small(), {}) is None
    assert len(asked) == 1


@pytest.mark.gate
def test_the_compiler_of_a_tpu_is_asked():
    pytest.importorskip("libtpu")
    found = measure.estimated(small(), {"client_trips": 400})
    assert found["fits"]
    assert found["topology"] == "v5e:1x1"
    assert 1e3 < found["trips_per_second"] < 1e7


# Two machines


@pytest.fixture
def two(tmp_path):
    """Two benchmarks: b is twice as fast in three times the memory, has another JAX, and a row that does not fit."""
    a, b = tmp_path / "a", tmp_path / "b"
    power = {"joules_per_trip": 8.0, "counter": "RAPL", "sampled": False, "watts": 1.0}
    run(a, Machine({"mlp fedbuff 1000": numbers(energy=power, plan="trip by trip")}))
    memory = {"peak_bytes": 3 * 2**30, "needed_bytes": 1, "available_bytes": 2}
    power = {**power, "joules_per_trip": 2.0}
    found = numbers(
        200.0, memory=memory, seconds_to_first_step=1.0, energy=power, plan="waves of 64, loop form"
    )
    lacking = {"status": "does not fit", "memory": {"needed_bytes": 5, "available_bytes": 2}}
    facts = {**FACTS, "device_kind": "TPU v5 lite", "versions": {"jafl": "1", "jax": "3"}}
    machine = Machine({"mlp fedbuff 1000": found, "mlp ace 1000": lacking}, facts=facts)
    run(b, machine, {"model": "mlp", "algorithm": "fedbuff,ace", "num_clients": 1000})
    return a, b


def test_ratios_are_those_of_the_second_over_the_first(two, tmp_path):
    shown: list[str] = []
    out = tmp_path / "out"
    assert comparing.compare(f"{two[0]},{two[1] / 'benchmark.json'}", str(out), show=shown.append) == 0
    content = comparing.compared(*(files.read(path, "compare") for path in two), ["a", "b"])
    assert content["ratios"] == {
        "mlp fedbuff 1000": {
            "trips/s": 2.0,
            "processor s/trip": 1.0,
            "centralised, examples/s": 1.0,
            "/ centralised": 2.0,
            "s to first step": 0.5,
            "peak memory": 3.0,
            "J/trip": 0.25,
        }
    }
    text = (out / "benchmark_comparison.md").read_text()
    line = next(line for line in text.splitlines() if "fedbuff" in line and line.startswith("|"))
    assert line == "| MLP 784-200-10 fedbuff 1,000 | 100 | 200 | 2 | 1 | 1 | 2 | 0.5 | 3 | 0.25 |"
    assert "| MLP 784-200-10 ace 1,000 | measured | does not fit | - |" in text
    for words in (
        "device kind: cpu (a), TPU v5 lite (b)",
        "jax: 2 (a), 3 (b)",
        "The same settings",
        "Only in a",
        "mlp wkafl 1000",
        "Run in another way, with plan trip by trip (a), waves of 64, loop form (b): mlp fedbuff 1000.",
    ):
        assert words in text, words
        assert words in "\n".join(shown)
    html = (out / "benchmark_comparison.html").read_text()
    assert set(re.findall(r'src="([^,]{0,30})', html)) == {"data:image/png;base64"}


def test_a_comparison_is_not_replaced_unless_asked(two, tmp_path):
    paths, out = f"{two[0]},{two[1]}", str(tmp_path / "out")
    comparing.compare(paths, out, show=lambda _: None)
    with pytest.raises(SettingError, match="without a comparison.*--overwrite"):
        comparing.compare(paths, out, show=lambda _: None)
    assert comparing.compare(paths, out, overwrite=True, show=lambda _: None) == 0


def damaged(change):
    def write(folder):
        content = json.loads((folder / "benchmark.json").read_text())
        change(content)
        (folder / "benchmark.json").write_text(json.dumps(content))

    return write


DAMAGED = {
    "no JSON": (lambda folder: (folder / "benchmark.json").write_text('{"rows": ['), "is not JSON ... its end"),
    "NaN": (lambda folder: (folder / "benchmark.json").write_text('{"format": NaN}'), "is not JSON"),
    "bytes": (lambda folder: (folder / "benchmark.json").write_bytes(b"\xff\xfe\x00"), "is not JSON"),
    "missing": (lambda folder: (folder / "benchmark.json").unlink(), "cannot be read: No such file"),
    "a list": (lambda folder: (folder / "benchmark.json").write_text("[]"), "holds no benchmark of this kind"),
    "another kind": (damaged(lambda content: content.pop("benchmark")), "holds no benchmark of this kind"),
    "another format": (damaged(lambda content: content.update(format=99)), "has the format 99 ... reads 1"),
    "no rows": (damaged(lambda content: content.pop("rows")), "is damaged: rows is missing"),
    "a row of text": (damaged(lambda content: content["rows"].append("x")), "row 4: it is no object"),
    "no speed": (damaged(lambda c: c["rows"][0].pop("trips_per_second")), "row 1: trips_per_second is no number"),
    "speed 0": (damaged(lambda c: c["rows"][0].update(trips_per_second=0)), "row 1: trips_per_second is no number"),
    "speed true": (damaged(lambda c: c["rows"][0].update(trips_per_second=True)), "row 1: trips_per_second is no"),
    "no peak": (damaged(lambda c: c["rows"][1]["memory"].pop("peak_bytes")), "row 2: peak_bytes of memory"),
    "energy": (damaged(lambda c: c["rows"][0].update(energy={"joules_per_trip": "x"})), "joules_per_trip of energy"),
    "clients": (damaged(lambda c: c["rows"][0].update(clients="many")), "row 1: clients is no number of clients"),
    "status": (damaged(lambda c: c["rows"][0].update(status="fine")), "row 1: its status is 'fine'"),
    "repeats": (damaged(lambda c: c["rows"][0].update(repeats=[1, None])), "row 1: repeats is no list"),
    "twice": (damaged(lambda c: c["rows"].append(c["rows"][0])), "two rows have the same name"),
    "other rows": (
        damaged(lambda c: [row.update(name=f"other {row['name']}") for row in c["rows"]]),
        "have no row in common",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("damage", "said"), DAMAGED.values(), ids=list(DAMAGED))
def test_a_file_that_cannot_be_compared_is_refused(damage, said, two, tmp_path):
    damage(two[0])
    with pytest.raises(SettingError) as refused:
        comparing.compare(f"{two[0]},{two[1]}", str(tmp_path / "out"))
    assert str(refused.value).startswith("compare is ")
    assert_says(str(refused.value), said)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("typed", ["a.json", "a.json,", ",b.json", "a,b,c"])
def test_two_files_are_compared(typed):
    with pytest.raises(SettingError, match=r"compare is .*two files, as in compare a.json b.json"):
        comparing.compare(typed, None)


# The page


@pytest.mark.full
def test_the_page_holds_all_of_itself_and_shows_text_as_it_is(tmp_path):
    estimate = {"topology": "v5e:1x1", "fits": True, "trips_per_second": 12_345.6}
    machine = Machine({"mlp ace 1000": running.failed("<b>odd</b>")}, estimate=estimate)
    run(tmp_path, machine, {"model": "mlp,lenet5", "num_clients": None}, pictures=True)
    html = (tmp_path / "benchmark.html").read_text()
    assert "&lt;b&gt;odd&lt;/b&gt;" in html
    assert "<b>odd" not in html
    assert "12,300" in html  # twice: published, and by the compiler
    assert "v5e:1x1 by its compiler" in html
    assert html.count('<img alt="') == 2
    assert set(re.findall(r'(?:src|href)="([^,"]{0,30})', html)) == {"data:image/png;base64"}
    assert "No counter" in html or "no counter" in html


def test_without_its_libraries_the_text_and_the_numbers_are_left(tmp_path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "jinja2", None)
    status, shown, content = run(tmp_path, Machine())
    assert status == page.UNDRAWN
    assert "benchmark.html is not written. jinja2 is not installed: pip install" in shown
    assert (tmp_path / "benchmark.md").is_file()
    assert not (tmp_path / "benchmark.html").exists()
    assert len(content["rows"]) == 3


# The command


@pytest.mark.gate
def test_a_small_benchmark_from_the_command_line(tmp_path, monkeypatch):
    monkeypatch.setitem(running.MOST_SECONDS, "estimate", 1.5)  # the compiler would take a minute
    typed = ["benchmark", "clients", "--num_clients=100", "--client_trips=20", "--output_dir=o"]
    said = command([*typed, "--model=mlp,lenet5", "--algorithm=wkafl,fedavg"], tmp_path)
    assert said.status == 0, said.text
    content = files.read(tmp_path / "o", "compare")
    assert [row["name"] for row in content["rows"]] == ["mlp wkafl 100", "lenet5 fedavg 100"]
    for row in content["rows"]:
        assert row["status"] == "measured"
        assert row["trips_per_second"] == pytest.approx(np.median(row["repeats"]))
        assert not row.get("estimate")
    blazefl = content["rows"][1]
    assert blazefl["published_examples_per_second"] == 12_300
    assert blazefl["examples_per_second"] == pytest.approx(2000 * blazefl["trips_per_second"])
    again = command([*typed, "--model=mlp", "--algorithm=wkafl", "--resume"], tmp_path)
    assert again.status == 0, again.text
    assert files.read(tmp_path / "o", "compare") == content
    compared = command(["compare", "o", "o/benchmark.json", "--output_dir=c"], tmp_path)
    assert compared.status == 0, compared.text
    assert "The same machine." in compared.text
    assert (pathlib.Path(tmp_path) / "c" / "benchmark_comparison.html").is_file()
