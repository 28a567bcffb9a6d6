"""Counters of energy: registers that start again, cards, samples, and machines that have none."""

import ctypes
import time

import pytest
from waiting import until

from experiments.tools.benchmarks.clients import energy


def zone(root, name, kind, microjoules, span=1_000_000):
    folder = root / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "name").write_text(f"{kind}\n")
    (folder / "energy_uj").write_text(f"{microjoules}\n")
    (folder / "max_energy_range_uj").write_text(f"{span}\n")


def test_packages_are_added_and_what_lies_in_them_is_not_counted_twice(tmp_path):
    zone(tmp_path, "intel-rapl:0", "package-0", 100)
    zone(tmp_path, "intel-rapl:0:0", "core", 50)
    zone(tmp_path, "intel-rapl:1", "package-1", 200)
    zone(tmp_path, "intel-rapl:2", "psys", 5)
    counter = energy.Rapl(tmp_path)
    assert counter.joules() == 0
    zone(tmp_path, "intel-rapl:0", "package-0", 250_100)
    zone(tmp_path, "intel-rapl:0:0", "core", 200_000)
    zone(tmp_path, "intel-rapl:1", "package-1", 500_200)
    zone(tmp_path, "intel-rapl:2", "psys", 900_000)
    assert counter.joules() == pytest.approx(0.75)


def test_a_register_that_starts_again_is_noticed_each_time(tmp_path):
    zone(tmp_path, "intel-rapl:0", "package-0", 900_000)
    counter = energy.Rapl(tmp_path)
    for now, total in ((100_000, 0.2), (950_000, 1.05), (50_000, 1.15), (50_000, 1.15)):
        zone(tmp_path, "intel-rapl:0", "package-0", now)
        assert counter.joules() == pytest.approx(total)


@pytest.mark.parametrize("damage", ["no folder", "no package", "unreadable", "no number"])
def test_registers_that_cannot_be_read_are_no_counter(damage, tmp_path, monkeypatch):
    monkeypatch.setattr(energy.Rapl.__init__, "__defaults__", (str(tmp_path / "powercap"),))
    if damage != "no folder":
        zone(tmp_path / "powercap", "intel-rapl:0", "psys" if damage == "no package" else "package-0", 5)
    file = tmp_path / "powercap" / "intel-rapl:0" / "energy_uj"
    if damage == "unreadable":  # as without permission: it cannot be opened
        file.unlink()
        file.mkdir()
    elif damage == "no number":
        file.write_text("")
    with energy.counter("cpu", 1) as counter:
        assert counter is None


def test_a_cpu_is_counted_where_it_can_be(tmp_path, monkeypatch):
    monkeypatch.setattr(energy.Rapl.__init__, "__defaults__", (str(tmp_path),))
    zone(tmp_path, "intel-rapl:0", "package-0", 5)
    with energy.counter("cpu", 1) as counter:
        assert isinstance(counter, energy.Rapl)
    with energy.counter("tpu", 1) as counter:
        assert counter is None


class Driver:
    """NVIDIA's library, made up; ``fails`` is what a card without a counter returns."""

    def __init__(self, fails=0):
        self.millijoules, self.fails, self.asked = {0: 1000, 1: 5000}, fails, []

    def nvmlInit_v2(self):
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index, handle):
        self.asked.append(index.value)
        handle._obj.value = index.value + 1
        return 0

    def nvmlDeviceGetHandleByUUID(self, name, handle):
        self.asked.append(name)
        handle._obj.value = 2
        return 0

    def nvmlDeviceGetTotalEnergyConsumption(self, handle, value):
        value._obj.value = self.millijoules[handle.value - 1]
        return self.fails


def test_cards_are_added(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    driver = Driver()
    counter = energy.Nvml(2, driver)
    driver.millijoules = {0: 1500, 1: 7000}
    assert counter.joules() == pytest.approx(2.5)
    assert driver.asked == [0, 1]


def test_the_cards_are_those_that_this_process_may_use(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,GPU-5f")
    driver = Driver()
    energy.Nvml(1, driver)
    energy.Nvml(2, driver)
    assert driver.asked == [1, 1, b"GPU-5f"]
    assert energy.visible_cards(1) == ["1"]


def asked(counter):
    """The joules of a counter, between the times before and after it was asked."""
    before, joules = time.perf_counter(), counter.joules()
    return before, joules, time.perf_counter()


def test_without_a_counter_of_energy_power_is_sampled(monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda _: Driver(fails=3))
    monkeypatch.setattr(energy, "smi_watts", lambda cards: 40.0 * cards)
    with energy.counter("gpu", 2) as counter:
        assert counter.sampled
        assert "samples" in counter.name
        (earliest, before, begin), _ = asked(counter), time.sleep(0.05)
        end, after, latest = asked(counter)
        assert 79.999 * (end - begin) <= after - before <= 80.001 * (latest - earliest)


def test_samples_follow_the_power():
    """10 watts until the second sample, 30 from the third one on."""
    samples = []

    def watts():
        samples.append(time.perf_counter())
        return 10.0 if len(samples) <= 2 else 30.0

    begin = time.perf_counter()
    counter = energy.SampledPower(watts, seconds=0.01)
    until(lambda: len(samples) > 20)
    end, joules, latest = asked(counter)
    counter.close()
    assert 29.999 * (end - samples[3]) <= joules <= 30.001 * (latest - begin)


def test_a_gpu_without_driver_has_no_counter(monkeypatch):
    def missing(_):
        raise OSError("libnvidia-ml.so.1: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    monkeypatch.setattr(energy, "SMI", ("no-such-program-here",))
    with energy.counter("gpu", 1) as counter:
        assert counter is None


def test_what_nvidia_smi_says_is_read(tmp_path, monkeypatch):
    program = tmp_path / "nvidia-smi"
    monkeypatch.setattr(energy, "SMI", (str(program),))
    for text, watts in (("61.5\n40.25\n", 101.75), ("[N/A]\n", None)):
        program.write_text(f"#!/bin/sh\nprintf '%s' '{text}'\n")
        program.chmod(0o755)
        if watts is None:
            with pytest.raises(OSError, match="does not tell"):
                energy.smi_watts(2)
        else:
            assert energy.smi_watts(2) == watts
