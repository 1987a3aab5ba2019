"""Batch jobs from environments and job ads as the batch systems' documentation shows them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from roastcoffea.log import jobs
from roastcoffea.log.jobs import age_of, job
from roastcoffea.records.workers import OF_JOB

MIB = 1 << 20

# sbatch(1), "OUTPUT ENVIRONMENT VARIABLES"; a job of two nodes of different size, SLURM 23.02
SLURM = {
    "SLURM_JOB_ID": "8145",
    "SLURM_JOB_PARTITION": "hep",
    "SLURMD_NODENAME": "node017",
    "SLURM_JOB_NUM_NODES": "3",
    "SLURM_JOB_CPUS_PER_NODE": "72(x2),36",
    "SLURM_MEM_PER_NODE": "4096",
    "SLURM_JOB_START_TIME": "1700000000",
    "SLURM_JOB_END_TIME": "1700003600",
}
# bsub reference, "Environment variables set for job execution"
LSF = {
    "LSB_JOBID": "4711",
    "LSB_JOBINDEX": "3",
    "LSB_QUEUE": "medium",
    "LSB_DJOB_NUMPROC": "8",
    "LSB_MCPU_HOSTS": "hosta 4 hostb 4",
}
# PBS Professional user's guide, "Environment variables"; Torque adds PBS_NP and PBS_WALLTIME
PBS = {"PBS_JOBID": "1234.server", "PBS_QUEUE": "workq", "NCPUS": "4"}
TORQUE = {"PBS_JOBID": "99.server", "PBS_QUEUE": "batch", "PBS_NP": "16", "PBS_WALLTIME": "7200"}
# Kubernetes, "Expose pod information to containers through environment variables"
KUBERNETES = {
    "KUBERNETES_SERVICE_HOST": "10.96.0.1",
    "MY_NODE_NAME": "kind-worker",
    "MY_POD_NAME": "dask-worker-0",
    "MY_POD_NAMESPACE": "analysis",
    "MY_CPU_REQUEST": "2",
    "MY_MEM_REQUEST": "3221225472",
}
# HTCondor manual, "Job ClassAd attributes" and "Machine ClassAd attributes"
JOB_AD = """
ClusterId = 1234
ProcId = 7
QDate = 1699999000
JobStartDate = 1699999500
JobCurrentStartDate = 1700000000
RequestCpus = 2
RequestMemory = ifthenelse(MemoryUsage =!= undefined,MemoryUsage,( ImageSize + 1023 ) / 1024)
JobFlavour = "longlunch"
MaxRuntime = 7200
Owner = "someone"
"""
MACHINE_AD = 'Cpus = 2\nMemory = 4096\nMachine = "worker12.example.org"\nName = "slot1_3@worker12.example.org"\n'


def told(environment: dict[str, str]) -> dict[str, Any]:
    found = job(environment)
    found.pop("job_age", None)
    return found


def test_slurm() -> None:
    assert told(SLURM) == {
        "batch_system": "slurm",
        "job": "8145",
        "queue": "hep",
        "node": "node017",
        "job_cores": 180,
        "job_memory": 3 * 4096 * MIB,
        "job_start": 1_700_000_000,
        "job_limit": 3600,
    }
    per_core = {name: value for name, value in SLURM.items() if name not in {"SLURM_MEM_PER_NODE"}}
    assert told(per_core | {"SLURM_MEM_PER_CPU": "2000"})["job_memory"] == 180 * 2000 * MIB


def test_htcondor_says_what_its_ads_say(tmp_path: Path) -> None:
    (tmp_path / ".job.ad").write_text(JOB_AD)
    (tmp_path / ".machine.ad").write_text(MACHINE_AD)
    environment = {"_CONDOR_JOB_AD": f"{tmp_path}/.job.ad", "_CONDOR_MACHINE_AD": f"{tmp_path}/.machine.ad"}
    everything = {
        "batch_system": "htcondor",
        "job": "1234.7",
        "queue": "longlunch",
        "node": "worker12.example.org",
        "job_cores": 2,
        "job_memory": 4096 * MIB,
        "job_queued": 1_699_999_000,
        "job_start": 1_700_000_000,
        "job_limit": 7200,
    }
    assert told(environment) == everything
    # a job of HTCondor in a pod is the job
    assert told(environment | KUBERNETES) == everything
    # a container without the scratch directory has the names of the ads, and not the ads
    (tmp_path / ".job.ad").unlink()
    (tmp_path / ".machine.ad").unlink()
    assert told(environment) == {"batch_system": "htcondor", "node": jobs.socket.gethostname()}


def test_lsf() -> None:
    found = told(LSF)
    assert {name: found[name] for name in ("batch_system", "job", "queue", "job_cores")} == {
        "batch_system": "lsf",
        "job": "4711[3]",
        "queue": "medium",
        "job_cores": 8,
    }
    older = {name: value for name, value in LSF.items() if name != "LSB_DJOB_NUMPROC"} | {"LSB_JOBINDEX": "0"}
    assert (told(older)["job_cores"], told(older)["job"]) == (8, "4711")
    assert "job_memory" not in found  # LSF tells jobs no memory


def test_pbs_and_torque(tmp_path: Path) -> None:
    nodes = tmp_path / "nodes"
    nodes.write_text("hosta\nhosta\n")
    found = told(PBS | {"PBS_NODEFILE": str(nodes)})
    assert (found["batch_system"], found["job"], found["queue"], found["job_cores"]) == (
        "pbs",
        "1234.server",
        "workq",
        4,
    )
    nodes.write_text("hosta\nhostb\n")
    assert "job_cores" not in told(PBS | {"PBS_NODEFILE": str(nodes)})  # NCPUS is that of one host
    found = told(TORQUE)
    assert (found["job_cores"], found["job_limit"]) == (16, 7200)


def test_kubernetes_tells_what_the_manifest_passes_on() -> None:
    assert told(KUBERNETES) == {
        "batch_system": "kubernetes",
        "job": "dask-worker-0",
        "queue": "analysis",
        "node": "kind-worker",
        "job_cores": 2,
        "job_memory": 3 << 30,
    }
    found = told({"KUBERNETES_SERVICE_HOST": "10.96.0.1"})
    assert "job_cores" not in found
    assert found["job"] == jobs.socket.gethostname()  # the name of the pod


def test_without_a_batch_system_there_is_a_node() -> None:
    assert job({}) == {"node": jobs.socket.gethostname()}


@pytest.mark.parametrize("environment", [SLURM, LSF, PBS, TORQUE, KUBERNETES, {"_CONDOR_JOB_AD": "/nowhere"}])
def test_all_that_is_told_has_a_column(environment: dict[str, str]) -> None:
    assert {*job(environment)} <= {*OF_JOB, "job_start", "job_age"}


@pytest.mark.parametrize("nonsense", ["", "many", "-1", "nan", "inf"])
def test_nonsense_is_unknown(nonsense: str) -> None:
    environment = dict.fromkeys((*SLURM, *LSF, *PBS, *TORQUE), nonsense)
    for variable in ("SLURM_JOB_ID", "LSB_JOBID", "PBS_JOBID"):
        found = job(environment | {"SLURM_JOB_ID": "", "LSB_JOBID": ""} | {variable: "1"})
        assert not {"job_cores", "job_memory", "job_limit", "job_start"} & found.keys()


SHOWN = "import time; from roastcoffea.log.jobs import job; print(time.time() - job()['job_age'])"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs the processes of Linux")
def test_a_job_without_a_time_started_with_its_first_process() -> None:
    # the job is a shell that starts a process after a second, as a batch script does
    began = time.time()
    script = f'sleep 1; {sys.executable} -c "{SHOWN}"; true'
    environment = os.environ | {"PBS_JOBID": "17.server"}
    ran = subprocess.run(["/bin/sh", "-c", script], env=environment, check=True, capture_output=True, text=True)
    assert began - 0.1 <= float(ran.stdout) <= began + 0.9


def test_ages_are_those_of_processes() -> None:
    with subprocess.Popen(["sleep", "10"]) as process:
        age = age_of(str(process.pid))
        process.kill()
    assert age is not None
    assert age < 5
    assert age_of("0") is None
