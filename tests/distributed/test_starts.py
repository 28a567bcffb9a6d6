"""``run.py --distributed`` in real processes: how they find each other, and what they refuse together."""

import json

import pytest
from members import free_port, run

full, gate = pytest.mark.full, pytest.mark.gate

SETTINGS = {
    "algorithm": "fedbuff",
    "model": "softmax",
    "num_clients": 10,
    "concurrency": 4,
    "buffer_size": 2,
    "client_trips": 40,
    "pictures": "none",
    "output_dir": "run",
}


def slurm(count):
    """What SLURM sets for the tasks of a step; the coordinator's port follows from the job's number."""
    job = free_job()
    return {
        number: {
            "SLURM_JOB_ID": str(job),
            "SLURM_STEP_NODELIST": "127.0.0.1",
            "SLURM_NTASKS": str(count),
            "SLURM_PROCID": str(number),
            "SLURM_LOCALID": str(number),
        }
        for number in range(count)
    }


def open_mpi(count):
    """What mpirun sets for its processes."""
    job = free_job()
    return {
        number: {
            "OMPI_MCA_orte_hnp_uri": f"{job * 2**12}.0;tcp://127.0.0.1:{free_port()}",
            "OMPI_COMM_WORLD_SIZE": str(count),
            "OMPI_COMM_WORLD_RANK": str(number),
            "OMPI_COMM_WORLD_LOCAL_RANK": str(number),
        }
        for number in range(count)
    }


def free_job():
    """A number for a job, from which its port follows: one of the last 4096."""
    return free_port() % 2**12


@pytest.mark.parametrize("cluster", [pytest.param(slurm, marks=full), pytest.param(open_mpi, marks=gate)])
def test_a_scheduler_tells_the_processes_who_they_are(cluster, tmp_path):
    members, statuses = run(2, SETTINGS, tmp_path, address=["auto", "auto"], environments=cluster(2))
    assert statuses == [0, 0], members.erred(0) + members.erred(1)
    assert "Results are in run" in members.said(0)
    assert members.said(1) == "" and members.erred(1) == ""
    assert "Gloo" not in members.said(0)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["status"] == "finished"


@full
def test_without_a_scheduler_the_flags_are_asked_for(tmp_path):
    members, statuses = run(1, SETTINGS, tmp_path, address=["auto"])
    assert statuses == [2]
    assert "coordinator is None, but must be given" in members.erred(0)
    assert "num_processes=4, process_id=0" in members.erred(0)
    assert "Traceback" not in members.erred(0)


@pytest.mark.parametrize("number", [pytest.param(0, marks=full), pytest.param(1, marks=gate)])
def test_processes_that_do_not_meet_end_with_a_sentence(number, tmp_path):
    """The first one waits for the second, or the second finds no coordinator."""
    where = f"hosts('127.0.0.1:{free_port()}', num_processes=2, process_id={number})"
    members, statuses = run(1, SETTINGS, tmp_path, address=[where], connect=3)
    assert statuses == [2]
    assert members.erred(0).startswith("Error: coordinator is '127.0.0.1:")
    assert "within 3 seconds" in members.erred(0) and len(members.erred(0).splitlines()) == 1
    assert not (tmp_path / "run").exists()


@full
def test_processes_with_other_settings_end_together(tmp_path):
    members, statuses = run(2, SETTINGS, tmp_path, own={1: ["--buffer_size=5", "--seed=3"]})
    assert statuses == [2, 2]
    for number in range(2):
        assert "buffer_size: 2 in process 0; 5 in process 1" in members.erred(number)
        assert "seed: '0' in process 0; '3' in process 1" in members.erred(number)
    assert not (tmp_path / "run").exists()


@full
def test_what_the_first_process_refuses_ends_all(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text("{}")
    members, statuses = run(2, SETTINGS, tmp_path)
    assert statuses == [2, 2]
    assert "already holds a run" in members.erred(0)
