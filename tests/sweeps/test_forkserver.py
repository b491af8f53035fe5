"""The server that forks jobs: a forked job is like a fresh one, and what cannot be forked well starts fresh."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import runs
from marks import few
from sweeping import attempts, begin, end, report, steps, wait_for

from attnorm.run.folder import JOB_LOCK, FolderLock
from attnorm.sweeps import forkserver
from attnorm.sweeps.forkserver import Forked, ForkServer, takes_in_orphans
from attnorm.sweeps.jobs import Job
from attnorm.sweeps.launchers.local import LocalLauncher, Places
from attnorm.sweeps.process import TRAIN, start_process

pytestmark = pytest.mark.training  # it starts processes
SERVER = "import sys\nfrom attnorm.cli import fork_jobs\n{plant}\nsys.exit(fork_jobs.main())"
LIGHT = "fork_jobs.PRELOADED = ('numpy', 'torch', 'planted')\n"


@pytest.fixture
def serving(monkeypatch, tmp_path):
    """Starts servers with a module `planted` that can be edited, and with planted code. They are closed in the end."""
    servers = []
    monkeypatch.chdir(tmp_path)
    (tmp_path / "path").mkdir()
    (tmp_path / "path/planted.py").write_text("")
    paths = [str(tmp_path / "path"), str(runs.ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))

    def serve(plant, **variables):
        monkeypatch.setattr(forkserver, "SERVER", (sys.executable, "-P", "-c", SERVER.format(plant=plant)))
        servers.append(ForkServer({**os.environ, **variables}))
        return servers[-1]

    assert takes_in_orphans()
    yield serve
    for server in servers:
        server.close()


def started(folder, server=None, cores=(), program=TRAIN, arguments=()):
    """A process of a job in a folder."""
    folder.mkdir()
    lock = FolderLock(folder, JOB_LOCK)
    assert lock.acquire()
    job = Job("a", "0" * 64, "x=1", (), folder)
    return start_process(job, [*program, *arguments], lock, {}, cores, server)


# What a job may notice of its process, as JSON; the last line comes from atexit.
FACTS = """
import atexit, gc, json, multiprocessing, os, random, signal, sys, threading
from attnorm.cli import main as command

def facts():
    import numpy, torch
    atexit.register(print, "the end")
    names = [it for it in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{it}")]
    print(json.dumps({
        "argv": sys.argv, "path": sys.path, "cwd": os.getcwd(), "env": {**os.environ}, "flags": str(sys.flags),
        "handlers": {it: str(signal.getsignal(it)).partition(" at ")[0] for it in signal.valid_signals()},
        "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "leads": [os.getsid(0) == os.getpgid(0) == os.getpid(), os.getppid()],
        "descriptors": sorted((os.readlink(f"/proc/self/fd/{it}"), os.get_inheritable(int(it))) for it in names),
        "cores": sorted(os.sched_getaffinity(0)),
        "threads": [torch.get_num_threads(), torch.get_num_interop_threads(), threading.active_count()],
        "process": [multiprocessing.current_process().daemon, str(multiprocessing.parent_process())],
        "collects": gc.isenabled(), "cuda": torch.cuda.is_initialized(),
        "random": [torch.initial_seed(), float(numpy.random.rand()), random.random()],
    }))
    return 7

command.main = facts
"""
COUNT = """
import os
os.register_at_fork(before=lambda: print(len(os.listdir("/proc/self/task")), file=open("threads", "a")))
"""
FRESH = """
import importlib, runpy
from attnorm.cli.fork_jobs import PRELOADED
for name in PRELOADED:
    importlib.import_module(name)
runpy.run_module("attnorm", run_name="__main__", alter_sys=True)
"""


@pytest.mark.slow
def test_a_forked_job_is_like_a_fresh_one(serving, tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    server = serving(FACTS + COUNT, WANDB_RUN_GROUP=tmp_path.name)
    wait_for(server.is_ready, 300)
    fresh, seen = [sys.executable, "-P", "-c", FACTS + FRESH, "train"], []
    for name, program in {"one": TRAIN, "two": TRAIN, "three": fresh}.items():
        forks = program == TRAIN
        cores, arguments = [min(os.sched_getaffinity(0))], ["a=1", "b=\udcff"]
        process = started(tmp_path / name, server if forks else None, cores, program, arguments)
        assert isinstance(process, Forked) == forks
        wait_for(lambda process=process: process.poll() is not None, 60)
        *_, line, last = (tmp_path / name / "console.log").read_text().splitlines()
        assert process.returncode == 7 and last == "the end"
        seen.append(json.loads(line.replace(f"/{name}/", "/job/")))
    assert all(len(set(numbers)) == 3 for numbers in zip(*(facts.pop("random") for facts in seen), strict=True))
    assert seen[0] == seen[1] == seen[2]
    first, *others = (tmp_path / "threads").read_text().split()
    assert len(others) == 4 and set(others) == {"1"}, first  # the first fork ended those of OpenBLAS


KILL = "lambda: os.kill(os.getpid(), 9)"
DECLINES = {  # by planted code of the server
    "a file was edited": "",
    "a file was edited while it was imported": "",
    "the server was killed": "",
    "the server was killed by a message": f"import os\nfork_jobs.is_fit = {KILL}",
    "the job was killed before it led a session": f"import os\nos.setsid = {KILL}",
    "the server has another thread": "import threading\nthreading.Timer(60, print).start()",
    "the server uses a GPU": "import torch\ntorch.cuda.is_initialized = lambda: True",
}


@pytest.mark.parametrize("what", few(DECLINES, ("a file was edited",)))
def test_what_cannot_be_forked_starts_fresh(serving, tmp_path, what):
    file = tmp_path / "path/planted.py"
    file.write_text("open(__file__, 'a').write('# edited')" if "while" in what else "")
    server = serving(LIGHT + DECLINES[what])
    wait_for(server.is_ready, 120)
    if what == "a file was edited":
        file.write_text("edited = True")
    if what == "the server was killed":
        server.process.kill()
        server.process.wait()
    process = started(tmp_path / "job", server, program=[sys.executable, "-c", "print('fresh')"])
    assert isinstance(process, subprocess.Popen) and process.wait(60) == 0
    assert (tmp_path / "job/console.log").read_text() == "fresh\n"


def test_a_failed_import_is_loud_and_a_killed_server_is_not(serving):
    failing = serving("fork_jobs.PRELOADED = ('no_such_module',)")
    with pytest.raises(RuntimeError, match="No module named 'no_such_module'"):
        wait_for(failing.is_ready)
    killed = serving("import os\nos.kill(os.getpid(), 9)")
    assert wait_for(killed.is_ready) and killed.start([], (), 0, 0) is None


def test_only_jobs_that_share_everything_have_a_server(tmp_path, monkeypatch):
    served = []
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("attnorm.sweeps.launchers.local.ForkServer", lambda env: served.append(env) or len(served))

    def servers(*jobs, launcher=None):
        launcher = launcher or LocalLauncher(Places(2, range(3), ["0", "1"]))
        return [launcher.server_of(job, launcher.places.take(job.gpus)) for job in jobs]

    job = Job("a", "0" * 64, "x=1", (), tmp_path / "sweep/a")
    gpu, devices = Job(**{**vars(job), "uses_gpu": True}), Job(**{**vars(job), "devices": 2})
    assert servers(gpu, devices) == [None, None] and not served
    launcher = LocalLauncher(Places(4, range(6)))
    assert servers(job, job, job, job, launcher=launcher) == [1, 2, 1, 2]  # of one or two cores each
    assert [env["OMP_NUM_THREADS"] for env in served] == ["1", "2"] and served[0]["WANDB_RUN_GROUP"] == "sweep"
    for variable in ("SLURM_JOB_ID", "OMP_PROC_BIND"):
        with monkeypatch.context() as patch:
            patch.setenv(variable, "1")
            assert servers(job) == [None]
    assert servers(job, launcher=LocalLauncher(Places(1, [0]), ["train"])) == [None]


@pytest.mark.slow
def test_jobs_go_on_when_their_server_is_killed(tmp_path, monkeypatch):
    monkeypatch.setenv("FORKED", "1")
    running = begin(tmp_path, "out=s", "x=1,2,3", "steps=30", "pause=0.05", "diverges=1", "retries=0")
    wait_for(lambda: steps(tmp_path / "s") > 1)
    job = attempts(tmp_path / "s")[0][0]["pid"]
    children = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
    [server] = {it for it in map(int, children) if os.getsid(it) == it} - {job}
    os.kill(server, signal.SIGKILL)
    end(running, 1)
    assert [job[0]["forked"] for job in attempts(tmp_path / "s")] == [True, False, False]
    assert [(it["state"], it["code"]) for it in report(tmp_path / "s")["jobs"]] == [("failed", 1)] * 3
