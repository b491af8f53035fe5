"""Several processes train what one process trains, share data and scoring, and resume each other's checkpoints."""

import functools
import os
import pickle
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pandas
import processes
import pyarrow.parquet as parquet
import pytest
import runs
import torch
from marks import slow
from tolerance import rounding

from attnorm.cli.new import write_skeleton
from attnorm.config.read import read_recorded
from attnorm.errors import UserError
from attnorm.run.checkpoint import read_resumable
from attnorm.run.opening import open_run
from attnorm.run.run import Run
from attnorm.settings import Settings
from attnorm.tasks.ranks import Ranks, is_sharded
from attnorm.tasks.task import task_of
from attnorm.training.callbacks.throughput import Throughput
from attnorm.training.datamodule import TaskDataModule
from attnorm.training.sharding import FullySharded
from attnorm.training.train import train

CLIP = 0.5  # below the norm of every gradient, so that clipping acts
SGD = ("optimizer=sgd", "optimizer.lr=0.1", "optimizer.momentum=0.9")  # Adam would enlarge the rounding of gradients
SAME = (*SGD, "scheduler=constant", "model.dropout=0.0", f"trainer.gradient_clip_val={CLIP}")
WAYS = {  # how a run is started, and its number of processes
    "one": (1, ()),
    "ddp": (2, ("trainer=ddp", "trainer.devices=2")),
    "fsdp": (2, ("trainer=fsdp", "trainer.devices=2")),
}


def trained(folder: Path, way: str, *overrides: str, task: str = "gigaword") -> Path:
    """A run in `folder`, started as WAYS says."""
    ranks, typed = WAYS[way]
    cfg = runs.tiny(*SAME, *typed, *overrides, task=task)
    if ranks == 1:
        train(cfg, folder)
    else:
        processes.train_together(cfg, folder, ranks)
    return folder


@functools.cache
def trained_once(way: str, *overrides: str) -> Path:
    """Such a run, which is to be read only."""
    return trained(runs.scratch("processes") / f"{trained_once.cache_info().currsize}", way, *overrides)


def weights(run: Path) -> dict[str, torch.Tensor]:
    return read_resumable(run / "checkpoints/last.ckpt")["state_dict"]


def assert_equal_up_to_rounding(first: Path, second: Path, steps: int = 4) -> None:
    """The parameters differ by what float32 rounding may cause in so many updates of at most lr * CLIP / 0.1 each."""
    ours, theirs = weights(first), weights(second)
    assert ours.keys() == theirs.keys()
    moved = 0.1 * CLIP / (1 - 0.9) * steps  # momentum adds up to ten gradients
    bound = rounding(torch.float32, depth=3 * 2 * steps, size=64) * moved  # forward and backward through two layers
    for name in ours:
        assert (ours[name] - theirs[name]).abs().max() < bound, name


# the same training


@pytest.mark.slow
@pytest.mark.parametrize("parts", [(), ("optimizer.freeze=[encoder]", "optimizer.lr_factors={cross: 0.5}")])
def test_two_processes_train_what_one_trains(tmp_path, parts):
    typed = ("attention=hnas", "trainer.accumulate_grad_batches=2", *parts)
    found = {way: trained(tmp_path / way, way, *typed) for way in ("one", "ddp", "fsdp")}
    tokenizer, *_ = open_run(found["one"], read_recorded(Run(found["one"]).config), "last")
    initial = task_of(runs.tiny(*SAME, *typed)).model(tokenizer).state_dict()
    moved = {name: (weights(found["one"])[f"model.{name}"] - initial[name]).abs().max() for name in initial}
    assert max(moved.values()) > 0.01
    assert all((moved[name] == 0) == bool(parts) for name in moved if name.startswith("encoder."))
    for way in ("ddp", "fsdp"):
        assert_equal_up_to_rounding(found["one"], found[way])
        losses = [runs.logged(found[it], "train/loss") for it in ("one", way)]
        assert losses[0] == pytest.approx(losses[1], rel=1e-4)
        norms = [runs.logged(found[it], "train/gradient_norm") for it in ("one", way)]
        assert norms[0] == pytest.approx(norms[1], rel=1e-4)
        assert min(norms[0].values()) > CLIP  # or nothing was clipped
        tables = [pandas.read_csv(found[it] / "attention.csv") for it in ("one", way)]  # one of two processes records
        pandas.testing.assert_frame_equal(*tables, rtol=1e-3)
    rows = [(found[way] / "hybrid_weights.csv").read_text().splitlines() for way in ("one", "ddp", "fsdp")]
    values = [[float(line.split(",")[3]) for line in lines[1:]] for lines in rows]
    assert values[0] == pytest.approx(values[1], rel=1e-5) and values[0] == pytest.approx(values[2], rel=1e-5)


@pytest.mark.slow
def test_fsdp_holds_shards_while_it_trains(monkeypatch, tmp_path):
    def look(trainer, task, *_):
        parameters = dict(task.model.named_parameters())
        assert is_sharded(task.model) and all(hasattr(it, "full_tensor") for it in parameters.values())
        local = sum(it.to_local().numel() for it in parameters.values())
        assert local < 0.6 * sum(it.numel() for it in parameters.values())
        (tmp_path / f"seen_{trainer.global_rank}").touch()

    monkeypatch.setattr(Throughput, "on_train_batch_start", lambda self, *arguments: look(*arguments))
    trained(tmp_path / "run", "fsdp", "attention=hnas", "trainer.max_steps=2")
    assert {path.name for path in tmp_path.glob("seen_*")} == {"seen_0", "seen_1"}


@pytest.mark.slow
def test_a_clamped_hybrid_weight_stays_in_its_range_in_shards(tmp_path):
    typed = ("attention=hnas", "attention.options.hnas={start: 0.99, form: clamp, per: head}")
    typed = (*typed, "optimizer.lr=5", "trainer.gradient_clip_val=null")
    run = trained(tmp_path, "fsdp", *typed)
    [hybrid] = [value for name, value in weights(run).items() if name.endswith("share")]
    assert hybrid.shape == (2,) and hybrid.min() >= 0 and hybrid.max() <= 1 and not hybrid.eq(0.99).any()


def test_a_parameter_without_dimensions_is_refused_by_name(tmp_path):
    model = torch.nn.Linear(2, 2)
    model.temperature = torch.nn.Parameter(torch.tensor(1.0))
    with pytest.raises(UserError, match=r"temperature has no dimensions; give it the shape \(1,\)"):
        FullySharded().shard(model)


def problems_of(**trainer):
    """The problems of the group `trainer` with these keys."""
    return runs.problems({**runs.tiny().settings, "trainer": {"devices": 1, "accelerator": "cpu", **trainer}})


@pytest.mark.parametrize(
    ("strategy", "nodes", "text"),
    [
        ({"_target_": "attnorm.training.sharding.FullySharded", "shards": 2}, 1, "trainer.strategy.shards=2: "),
        ({"_target_": "attnorm.training.sharding.Missing"}, 1, "trainer.strategy._target_=attnorm.training.sharding."),
        ({"_target_": "torch.nn.Linear"}, 1, "must be a subclass of pytorch_lightning.strategies"),
        ("ddp", 2, "trainer.num_nodes=2: start the processes of all machines with torchrun or srun"),
    ],
)
def test_a_wrong_strategy_and_several_machines_without_a_launcher_are_named(strategy, nodes, text):
    [problem] = problems_of(strategy=strategy, num_nodes=nodes)
    assert text in problem


def order(cfg: Settings, splits: dict, ranks: int, pieces: int, epochs: int = 2) -> bytes:
    """The order of the examples as a file: one line per update, with the rows of all ranks and pieces."""
    lines = []
    for epoch in range(epochs):
        of_ranks = []
        for rank in range(ranks):
            trainer = SimpleNamespace(accumulate_grad_batches=pieces, world_size=ranks, global_rank=rank)
            data = TaskDataModule(task_of(cfg), splits)
            data.trainer = trainer
            loader = data.train_dataloader()
            loader.sampler.set_epoch(epoch)
            of_ranks.append([batch["rows"].tolist() for batch in loader])
        for update in range(len(of_ranks[0]) // pieces):
            parts = [of_rank[update * pieces : (update + 1) * pieces] for of_rank in of_ranks]
            rows = [row for of_rank in parts for piece in of_rank for row in piece]
            lines.append(f"{epoch} {update}: {' '.join(map(str, sorted(rows)))}\n")
    return "".join(lines).encode()


@pytest.mark.slow
@pytest.mark.parametrize("task", ["gigaword", "mlm"])
def test_the_order_of_examples_does_not_depend_on_the_number_of_processes(tmp_path, task):
    cfg = runs.tiny(task=task)
    splits = task_of(cfg).splits()
    files = {}
    for ranks, pieces in ((1, 1), (2, 1), (4, 1), (1, 2), (2, 2)):
        files[ranks, pieces] = tmp_path / f"{ranks}_{pieces}.txt"
        files[ranks, pieces].write_bytes(order(cfg, splits, ranks, pieces))
    contents = {path.read_bytes() for path in files.values()}
    assert len(contents) == 1
    [content] = contents
    assert content.count(b"\n") > 4
    epochs = [[line.split(b": ")[1] for line in content.splitlines() if line.startswith(b"%d " % it)] for it in (0, 1)]
    assert epochs[0] != epochs[1]  # or the order would prove little


def scored(run: Path) -> tuple[dict, dict, list]:
    """Metrics, columns of the predictions and samples of a run's best checkpoint, as this process computes them."""
    cfg = read_recorded(Run(run).config)
    tokenizer, model, _ = open_run(run, cfg, "best")
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():  # otherwise the model would say the same to everything
            parameter += 0.5 * torch.randn(parameter.shape, generator=generator)
    task = task_of(cfg, run)
    split = task.splits(tokenizer, ("validation",))["validation"]
    results = task.score(task.module(model, tokenizer, split), split)
    return results.metrics, results.predictions.table().to_pydict(), [results.samples, results.files]


@pytest.mark.slow
@pytest.mark.parametrize("task", ["gigaword", *map(slow, ("mlm", "squad", "classify", "vqa"))])
def test_scores_of_several_processes_are_those_of_one(tmp_path, task):
    run = runs.finished_run(task)
    metrics, columns, texts = scored(run)
    assert len({str(output) for output in columns["output"]}) > 1 or task == "classify"

    def score(rank: int) -> None:
        torch.distributed.init_process_group("gloo")
        assert Ranks.present() == Ranks(rank, 3)
        (tmp_path / f"{rank}").write_bytes(pickle.dumps(scored(run)))

    processes.together(3, score)
    for rank in range(3):  # each of them has everything
        of_rank = pickle.loads((tmp_path / f"{rank}").read_bytes())
        assert of_rank[1:] == (columns, texts)
        assert of_rank[0] == pytest.approx(metrics, rel=1e-12)


def test_a_run_of_two_processes_leaves_the_files_of_one(tmp_path):
    runs_of = [trained(tmp_path / way, way, "attention=hnas") for way in ("one", "ddp")]
    assert runs.files_of(runs_of[0]) == runs.files_of(runs_of[1])
    tables = [parquet.read_table(run / "predictions/validation.parquet") for run in runs_of]
    assert tables[0]["id"] == tables[1]["id"] and len(tables[0]) == 20
    losses = [table["loss_sum"].to_pylist() for table in tables]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    metrics = [runs.summary_of(run)["validation"]["metrics"]["loss"] for run in runs_of]
    assert metrics[0] == pytest.approx(metrics[1], rel=1e-5)


# checkpoints


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "after"),
    [("one", "ddp"), ("one", "fsdp"), ("ddp", "fsdp"), ("fsdp", "one")],
)
def test_a_checkpoint_is_resumed_with_another_number_of_processes(tmp_path, before, after):
    typed = ("attention=hnas", "trainer.accumulate_grad_batches=2", "trainer.val_check_interval=4")
    last = trained_once(before, *typed, "trainer.max_steps=2") / "checkpoints/last.ckpt"
    resumed = trained(tmp_path / "resumed", after, *typed, "trainer.max_steps=5", f"ckpt_path={last}")
    whole = trained_once("one", *typed, "trainer.max_steps=5")
    assert_equal_up_to_rounding(whole, resumed, steps=5)
    moments = [read_resumable(run / "checkpoints/last.ckpt")["optimizer_states"][0] for run in (whole, resumed)]
    groups = [[{**group, "fused": None} for group in found["param_groups"]] for found in moments]
    assert groups[0] == groups[1]
    assert moments[0]["state"].keys() == moments[1]["state"].keys()
    for number, state in moments[0]["state"].items():
        torch.testing.assert_close(state, moments[1]["state"][number], rtol=1e-3, atol=1e-5)
    assert list(runs.logged(resumed, "train/loss")) == list(runs.logged(whole, "train/loss")) == [1, 2, 3, 4, 5]
    for name in ("val/loss", "train/gradient_norm"):
        assert runs.logged(resumed, name) == pytest.approx(runs.logged(whole, name), rel=1e-4)


@pytest.mark.slow
def test_fsdp_resumes_itself_bit_for_bit(tmp_path):
    """With dropout, so with the random streams of both processes."""
    typed = ("attention=hnas", "model.dropout=0.1")
    half = trained(tmp_path / "half", "fsdp", *typed, "trainer.max_steps=2")
    last = half / "checkpoints/last.ckpt"
    resumed = trained(tmp_path / "resumed", "fsdp", *typed, "trainer.max_steps=4", f"ckpt_path={last}")
    whole = trained(tmp_path / "whole", "fsdp", *typed, "trainer.max_steps=4")
    assert runs.unequal(weights(whole), weights(resumed)) == []


@pytest.mark.slow
def test_processes_of_two_machines_share_one_run_folder(tmp_path):
    from attnorm.cli.train import claim_folder

    def run(rank: int) -> None:
        cfg = runs.tiny(*SAME, "attention=hnas", "trainer=ddp", "trainer.devices=1", "trainer.num_nodes=2")
        folder = claim_folder(tmp_path / f"asked by {rank}")  # as if their clocks differed
        assert folder == tmp_path / "asked by 0"
        train(cfg, folder)

    processes.together(2, run, nodes=2)
    assert [path.name for path in tmp_path.iterdir()] == ["asked by 0"]
    assert_equal_up_to_rounding(trained(tmp_path / "one", "one", "attention=hnas"), tmp_path / "asked by 0")


SBATCH = """
import os, re, sys
place = next(number for number, word in enumerate(sys.argv[1:], 1) if not word.startswith("--"))
script = open(sys.argv[place]).read()
words = [*re.findall("^#SBATCH (.*)", script, re.M), *sys.argv[1:place]]
asked = dict(word.removeprefix("--").split("=", 1) for word in words if "=" in word)
names = {"nodes": "NNODES", "job-name": "JOB_NAME", "ntasks-per-node": "NTASKS_PER_NODE"}
os.environ |= {f"SLURM_{name}": asked[option] for option, name in names.items()}
os.environ |= {"SLURM_CPUS_PER_TASK": asked["cpus-per-task"]}
os.environ |= {"SLURM_NTASKS": str(int(asked["nodes"]) * int(asked["ntasks-per-node"]))}
os.environ |= {"SLURM_JOB_ID": str(os.getpid()), "SLURM_NODELIST": "localhost"}
os.execvp("bash", ["bash", *sys.argv[place:]])
"""
SRUN = """
import os, subprocess, sys
command = [word for number, word in enumerate(sys.argv) if number and not word.startswith("--")]
per_node = int(os.environ["SLURM_NTASKS_PER_NODE"])
def start(rank):
    ids = {"SLURM_PROCID": rank, "SLURM_LOCALID": rank % per_node, "SLURM_NODEID": rank // per_node}
    return subprocess.Popen(command, env=os.environ | {name: str(it) for name, it in ids.items()})
ranks = [start(rank) for rank in range(int(os.environ["SLURM_NTASKS"]))]
sys.exit(max(abs(rank.wait()) for rank in ranks))
"""


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [1, slow(2)])
def test_the_batch_script_of_a_new_folder_trains(tmp_path, nodes):
    write_skeleton(tmp_path / "my_lab")
    for name, code in (("sbatch", SBATCH), ("srun", SRUN)):
        (tmp_path / name).write_text(f"#!{sys.executable}{code}")
        (tmp_path / name).chmod(0o755)
    path = os.pathsep.join([str(tmp_path), str(Path(sys.executable).parent), os.environ["PATH"]])
    machines = (f"--nodes={nodes}", f"--ntasks-per-node={2 // nodes}")
    settings = ("task=sums", "attention=my_lab.normalizer.Tempered", f"hydra.run.dir={tmp_path}/run")
    command = ["sbatch", *machines, "train.sbatch", *settings]
    done = subprocess.run(
        command, cwd=tmp_path / "my_lab", env=os.environ | {"PATH": path}, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stdout + done.stderr
    trainer = Run(tmp_path / "run").config["trainer"]
    assert (trainer["devices"], trainer["num_nodes"]) == (2 // nodes, nodes)
    assert runs.summary_of(tmp_path / "run")["state"] == "finished"
