"""`attnorm.train`: the run of the command, in a process that lives on, as a notebook does."""

import hashlib
import os
import random
import signal
import subprocess
import sys
import threading

import hydra
import pytest
import runs
import torch
from hydra.core.global_hydra import GlobalHydra

import attnorm
from attnorm.errors import ConfigError, Interrupted
from attnorm.files import write_text
from attnorm.training.callbacks.throughput import Throughput

pytestmark = pytest.mark.training


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working directory, in a process whose command line says nothing about the run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["ipykernel_launcher.py", "-f", "kernel.json"])
    return tmp_path


def trained(**settings):
    return attnorm.train(runs.tiny_overrides(), **settings)


def test_a_run_is_that_of_the_command_and_leaves_nothing_behind(here):
    """Twice in one process: the same bits as by the command, in a folder of its own each time."""
    streams, variables = (random.getstate(), torch.get_rng_state()), dict(os.environ)
    handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
    with hydra.initialize_config_dir(str(runs.CONF), version_base="1.3"):  # the notebook uses Hydra, too
        first = trained(attention="hnas", run={"formats": ["png", "pdf"]})
        second = trained(attention="hnas", tags=["a", "b"])
        assert hydra.compose("train", ["seed=7"]).seed == 7
    assert not GlobalHydra.instance().is_initialized()
    assert {number: signal.getsignal(number) for number in handlers} == handlers
    assert random.getstate() == streams[0] and torch.equal(torch.get_rng_state(), streams[1])
    assert dict(os.environ) == variables
    assert first.folder != second.folder and first.folder.is_relative_to(here / "logs/gigaword/hnas")
    assert second.config["tags"] == ["a", "b"] and sys.argv[0] == "ipykernel_launcher.py"
    by_command = runs.finished_run()
    for run in (first, second):
        assert runs.unequal(runs.parameters(run.folder), runs.parameters(by_command)) == []
        assert run.scores == runs.summary_of(by_command)["validation"]["metrics"]
        assert run.best_value == runs.summary_of(by_command)["best_value"]
    assert {"hybrid_weights.png", "hybrid_weights.pdf"} <= {it.name for it in (first.folder / "figures").iterdir()}
    assert first.evaluate().metrics == first.scores


@pytest.mark.slow
def test_a_thread_can_train_with_settings_that_are_written_as_in_python(here):
    """Where Python allows no signal handlers."""
    typed = {"model.dropout": 0.25, "trainer": {"max_steps": 1}, "attention": {"encoder": ["dnas"]}, "tags": ("one",)}
    typed |= {"callbacks": {"attention_stats": {"every_n_steps": 0}}, "ckpt_path": None}
    found = []
    thread = threading.Thread(target=lambda: found.append(trained(**typed)))
    thread.start()
    thread.join()
    [run] = found
    assert run.config["model"]["dropout"] == 0.25 and run.config["trainer"]["max_steps"] == 1
    assert run.config["attention"]["encoder"] == ["dnas"] and run.config["tags"] == ["one"]
    assert run.summary["steps"] == 1 and run.summary["state"] == "finished"


def test_every_problem_is_in_the_exception_and_no_folder_is_made(here):
    with pytest.raises(ConfigError) as caught:
        attnorm.train(["optimizer.lrr=3"], task="gigaword", seed="x", model={"dropout": 3}, run={"formats": ["gif"]})
    keys = [problem.partition("=")[0] for problem in caught.value.problems]
    assert sorted(keys) == ["model.dropout", "optimizer.lrr", "run.formats", "seed"]
    assert str(caught.value) == "\n".join(caught.value.problems) and "Did you mean 'lr'?" in str(caught.value)
    with pytest.raises(ConfigError, match=r"task=gigawrd: allowed: .* Did you mean 'gigaword'\?"):
        attnorm.train(task="gigawrd")
    with pytest.raises(ConfigError, match=r"^task=gigawrd: allowed: "):
        attnorm.train("task=gigawrd")  # a text is one override, not a sequence of letters
    with pytest.raises(ConfigError, match="task=1: allowed: "):
        attnorm.train(task=1)
    assert list(here.iterdir()) == []


@pytest.mark.slow
def test_an_edit_of_an_own_module_in_one_kernel_is_said(here, caplog, monkeypatch):
    """Python keeps what it has imported; the file has something else."""
    file, text = here / "edited_part.py", "from attnorm.attention.normalizers.softmax import Softmax\n"
    write_text(file, f"{text}\nclass Mine(Softmax):\n    pass\n")
    monkeypatch.syspath_prepend(str(here))
    said = []
    for attention in ("edited_part.Mine", "edited_part.Mine", "softmax"):
        digest = runs.record_of(trained(attention=attention).folder)["modules"]["edited_part"]
        said.append([it.message for it in caplog.records if "edited_part changed on disk since" in it.message])
        assert digest == hashlib.sha256(f"{text}\nclass Mine(Softmax):\n    pass\n".encode()).hexdigest()[:16]
        caplog.clear()
        write_text(file, text)
    assert [len(lines) for lines in said] == [0, 1, 1]
    del sys.modules["edited_part"]


@pytest.mark.slow
def test_an_interrupted_run_is_saved_and_continues(here, monkeypatch):
    handler = signal.getsignal(signal.SIGINT)

    def interrupt(self, trainer, *_):
        if trainer.global_step == 2:
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(Throughput, "on_train_batch_end", interrupt)
        with pytest.raises(Interrupted) as caught:
            trained()
    assert signal.getsignal(signal.SIGINT) is handler
    folder = caught.value.checkpoint.parent.parent
    run = attnorm.train(resume=folder)
    assert run.folder == folder and run.summary["state"] == "finished" and run.summary["steps"] == 4


@pytest.mark.slow
def test_a_folder_of_own_settings_is_found(here):
    (here / "conf/model").mkdir(parents=True)
    write_text(here / "conf/model/narrow.yaml", "defaults: [tiny, _self_]\nactivation: relu\n")
    run = trained(model="narrow", trainer={"max_steps": 1}, task={"validations": 1})
    assert run.config["model"]["activation"] == "relu"
    (here / "conf").rename(here / "other")
    with pytest.raises(ConfigError, match="model=narrow: allowed: "):
        trained(model="narrow")
    with pytest.raises(ConfigError, match=r"^model\.dropout=3: [^\n]*$"):
        trained(model="narrow", config_dir="other", **{"model.dropout": 3})


@pytest.mark.parametrize(("backend", "kept"), [("module://ipympl.backend_nbagg", False), ("module://json", True)])
def test_the_drawing_of_another_environment_breaks_no_import(backend, kept):
    """A Jupyter kernel exports its backend to the processes that it starts, where its module need not be installed."""
    code = "import attnorm.cli.train, matplotlib.figure, os; print('MPLBACKEND' in os.environ)"
    found = subprocess.run([sys.executable, "-c", code], env=os.environ | {"MPLBACKEND": backend}, capture_output=True)
    assert (found.returncode, found.stdout.strip()) == (0, str(kept).encode()), found.stderr
