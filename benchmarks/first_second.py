"""python benchmarks/first_second.py --repeats 5

What commands take before they do anything: CPU time (user and system, with that of their own processes), elapsed time,
the number of imported modules, and which heavy libraries are among them. All commands run in turn, so that a busy
machine slows all of them; the ratios are to `import torch`, and everything is a median.

`--source <folder>/src` measures another version of attnorm.
"""

import argparse
import ctypes
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import NamedTuple

SOURCE = Path(__file__).resolve().parents[1] / "src"
HEAVY = (
    *("torch", "pytorch_lightning", "torch._dynamo", "transformers", "torchvision", "matplotlib", "pandas", "scipy"),
    *("datasets", "wandb", "tensorboard"),
)
# Writes the names of all modules when the program ends.
BEFORE = "import atexit, json, sys\natexit.register(lambda: open({file!r}, 'w').write(json.dumps([*sys.modules])))\n"
VERB = "from attnorm.cli.main import main\nsys.argv = ['attnorm', *{arguments!r}]\nsys.exit(main())"
CHECK = """from contextlib import closing
from attnorm.choices import CONF
from attnorm.sweeps.check import Checker
with closing(Checker([CONF])) as checker:
    checked = checker.check([["attention=hnas", "trainer.max_steps=150", f"seed={{seed}}"] for seed in range({seeds})])
assert not any(job.problems for job in checked)
"""
TINY = (
    *("model.d_model=16", "model.n_heads=2", "model.ffn_dim=32", "model.encoder_layers=1", "model.decoder_layers=1"),
    *("data.train_size=200", "data.valid_size=20", "data.test_size=12", "tokenizer.vocab_size=300"),
    *("trainer.max_steps=1", "task.rouge_pairs=6", "decoding.beam_size=1", "decoding.max_length=6"),
    "trainer.accelerator=cpu",
)
SEEDS = 9  # jobs of the larger sweeps
PROBE = (*("normalizers=softmax,dnas,hnas", "probes=hub:0.9", "seeds=2"), "out=probe")  # with preset=quick
TAKE_IN_ORPHANS = 36  # PR_SET_CHILD_SUBREAPER of prctl(2)


class Measurement(NamedTuple):
    """Seconds of CPU time and of elapsed time, and the imported modules."""

    cpu: float
    elapsed: float
    modules: list[str]


def programs(folder: Path) -> dict[str, str]:
    """The programs, by name, in Python. They work in a folder with the run `run` and two files of texts."""
    verbs = {
        "attnorm --help": ["--help"],
        "a mistyped key of trainer": ["train", "trainer.max_step=1"],
        "a mistyped key of model": ["train", "model.d_modle=1"],
        "eval metric=rouge": ["eval", "metric=rouge", "predictions=texts", "references=golds"],
        "compare of one folder": ["compare", "run"],
        "report of one folder": ["report", "run", "out=report.html"],
        "eval of a run": ["eval", "run=run"],
        "probe with a mistyped name": ["probe", "normalizers=softmx"],
        "one update and its end": ["train", *TINY, "hydra.run.dir=${now:%H%M%S%f}"],
        "check of a wrong sweep of 1 job": ["sweep", "seed=1", "attention.cross=dnas"],
        f"check of a wrong sweep of {SEEDS} jobs": ["sweep", f"seed=range(0,{SEEDS})", "attention.cross=dnas"],
    }
    again = "import shutil\nfor name in ('sweep', 'probe'):\n    shutil.rmtree(name, ignore_errors=True)"
    jobs = ["sweep", *TINY, f"seed=range(0,{SEEDS})", "jobs=2", "out=sweep"]
    probes = {f"probe of 1 cell, jobs={count}": ["probe", *PROBE, f"jobs={count}"] for count in (1, 2)}
    return {
        "import torch": "import torch",
        "import pytorch_lightning": "import pytorch_lightning",
        "import attnorm.nn": "import attnorm.nn",
        "load_run(...).scores": "import attnorm\nattnorm.load_run('run').scores",
        **{name: VERB.format(arguments=arguments) for name, arguments in verbs.items()},
        **{f"check of a sweep of {seeds} jobs": CHECK.format(seeds=seeds) for seeds in (1, SEEDS)},
        f"sweep of {SEEDS} jobs": f"{again}\n{VERB.format(arguments=jobs)}",
        **{name: f"{again}\n{VERB.format(arguments=arguments)}" for name, arguments in probes.items()},
    }


def measured(program: str, folder: Path, source: Path) -> Measurement:
    """Runs a program in Python."""
    file, path = folder / "modules.json", os.pathsep.join(filter(None, [str(source), os.environ.get("PYTHONPATH")]))
    started = time.perf_counter()
    with open(folder / "output", "w") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", BEFORE.format(file=str(file)) + program],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": path},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        _, status, usage = os.wait4(process.pid, 0)
        elapsed, usages = time.perf_counter() - started, [usage]
        with suppress(ChildProcessError):
            while True:  # processes that it has left behind, such as a server
                usages.append(os.wait4(-1, 0)[2])
    code = process.returncode = os.waitstatus_to_exitcode(status)
    text = (folder / "output").read_text()
    if code not in (0, 2) or "Traceback" in text:
        raise SystemExit(f"{program}: exit code {code}\n{text}")
    cpu = sum(usage.ru_utime + usage.ru_stime for usage in usages)
    return Measurement(cpu, elapsed, json.loads(file.read_text()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5, help="times that each command runs")
    parser.add_argument("--source", type=Path, default=SOURCE, help="folder with the package attnorm")
    parser.add_argument("--only", default="", help="only programs with this text in their names, and import torch")
    asked = parser.parse_args()
    ctypes.CDLL(None).prctl(TAKE_IN_ORPHANS, 1, 0, 0, 0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "texts").write_text("the cat sat\ntwo dogs run\n")
        (folder / "golds").write_text("the cat sat down\ntwo dogs were running\n")
        train = VERB.format(arguments=["train", *TINY, "hydra.run.dir=run"])
        measured(train, folder, asked.source.resolve())  # it also prepares the data
        chosen = {it: text for it, text in programs(folder).items() if asked.only in it or it == "import torch"}
        runs: dict[str, list[Measurement]] = {it: [] for it in chosen}
        for _ in range(asked.repeats):
            for it, text in chosen.items():
                runs[it].append(measured(text, folder, asked.source.resolve()))
    torch = median(run.cpu for run in runs["import torch"])
    threads = os.environ.get("OMP_NUM_THREADS", "not set")
    print(f"{len(os.sched_getaffinity(0))} cores, {asked.repeats} repeats, OMP_NUM_THREADS {threads}")
    print(f"{'':<32}{'CPU s':>8}{'/ torch':>9}{'wall s':>8}{'modules':>9}  loaded")
    for it, its in runs.items():
        cpu, elapsed = median(run.cpu for run in its), median(run.elapsed for run in its)
        loaded = [library for library in HEAVY if library in its[-1].modules]
        numbers = f"{cpu:>8.2f}{cpu / torch:>9.2f}{elapsed:>8.1f}{len(its[-1].modules):>9}"
        print(f"{it:<32}{numbers}  {', '.join(loaded)}")


if __name__ == "__main__":
    main()
