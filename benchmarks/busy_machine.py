"""Training speed on a machine that is not idle: how the threads of OpenMP wait, and how many of them there are.

    python benchmarks/busy_machine.py
    python benchmarks/busy_machine.py --jobs mlm --busy 0 1 --rounds 9 --seconds 3

Jobs: the main job (`attention=hnas task=gigaword`), the same with `task=mlm`, and a probe. Contestants:
  attnorm       what the command `attnorm` chooses
  spinning      torch's default: one thread per core, which spins while it waits
  passive       OMP_WAIT_POLICY=PASSIVE: the threads sleep at once
  one thread    OMP_NUM_THREADS=1
  transformers  the main job with a BART of equal size and torch's default, on the same batches
Each is a process of its own, which is started beside 0, 1 or 3 processes that only count. They take turns; the tables
show the median over the rounds of the tokens per second (examples, for the probe), with padding left out, and in
brackets the median of the ratio to spinning. A probe always has one thread per process.
Goals: alone, attnorm has at least 0.95 of the speed of spinning; beside others, 0.9 of the best of passive and one
thread.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import cycle, islice
from statistics import median

import timing

SETTINGS: dict[str, dict[str, str]] = {
    "attnorm": {},
    "spinning": {},
    "passive": {"OMP_WAIT_POLICY": "PASSIVE"},
    "one thread": {"OMP_NUM_THREADS": "1"},
    "transformers": {},
}
VARIABLES = {"OMP_WAIT_POLICY", "OMP_NUM_THREADS", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "MKL_NUM_THREADS"}
JOBS = {"main job": "gigaword", "mlm": "mlm", "probe": "match"}
ALONE, BESIDE_OTHERS = 0.95, 0.9


def probe_step() -> int:
    """Twenty updates of four members of a probe with hnas, as `attnorm probe` trains them. Returns their examples."""
    import torch

    from attnorm.probes.arm import Arm
    from attnorm.probes.ensemble import train
    from attnorm.probes.jobs import cells_of

    torch.set_num_threads(1)
    probe = cells_of(JOBS["probe"])[0].probe()
    train(probe, Arm("hnas"), seeds=[100, 101, 102, 103], rates=[0.01] * 4, updates=20)
    return 20 * 4 * probe.examples


def training_step(job: str, is_peer: bool, folder: str) -> Callable[[], int]:
    """One update of a task's model per call: forward, backward, clipping and AdamW. Returns the tokens of the batch."""
    import torch

    from attnorm.data.sampler import TokenBatches
    from attnorm.tasks.task import task_of

    sizes = ["data.train_size=2000"] if job == "main job" else []
    paths = [f"paths.{name}={folder}" for name in ("cache_dir", "log_dir")]
    config = timing.configure(f"task={JOBS[job]}", "attention=hnas", "trainer=cpu", *sizes, *paths)
    task = task_of(config)
    splits = task.splits()
    train = splits["train"]
    torch.manual_seed(config.seed)
    model = task.model(train.tokenizer).train()
    module = task.module(model, train.tokenizer, splits["validation"])
    if is_peer:
        from training_speed import peer_logits

        model = timing.build_peer(config.model, train.tokenizer.vocab_size, "sdpa").train()
    optimizer = timing.build_optimizer(config, model)
    parts = TokenBatches(train.lengths, config.data.batch_tokens, weights=train.weights, seed=config.seed)
    collator = task.collator(train)
    batches = cycle([(collator[part], int(train.lengths[part.rows].sum())) for part in islice(parts, 8)])

    def step() -> int:
        batch, tokens = next(batches)
        if is_peer:
            torch.nn.functional.cross_entropy(*peer_logits(model, batch), ignore_index=timing.PAD).backward()
        else:
            (module.loss(batch).objective / batch["divisor"]).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.trainer.gradient_clip_val or 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return tokens

    return step


def work(name: str, job: str) -> None:
    """A contestant: trains for as many seconds as each line of standard input says, and prints its rate."""
    with tempfile.TemporaryDirectory() as folder:
        step = probe_step if job == "probe" else training_step(job, name == "transformers", folder)
        for _ in range(3):
            step()
        print("ready", flush=True)
        for line in sys.stdin:
            start, units = time.perf_counter(), 0
            while (seconds := time.perf_counter() - start) < float(line):
                units += step()
            print(units / seconds, flush=True)


@contextmanager
def contestant(name: str, job: str) -> Iterator[Callable[[float], float]]:
    """A process that trains for so many seconds when it is called, and returns its rate."""
    environment = {key: value for key, value in os.environ.items() if key not in VARIABLES} | SETTINGS[name]
    command = [sys.executable, __file__, "--contestant", name, "--jobs", job]
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin and process.stdout
        while (line := process.stdout.readline()) != "ready\n":
            if not line:
                raise SystemExit(f"{name}: the process ended")

        def rate(seconds: float) -> float:
            print(seconds, file=process.stdin, flush=True)
            return float(process.stdout.readline())

        try:
            yield rate
        finally:
            process.kill()


def measure(job: str, busy: int, rounds: int, seconds: float) -> dict[str, list[float]]:
    """The rates of each contestant in each round, beside so many busy processes."""
    names = [name for name in SETTINGS if name != "transformers" or job == "main job"]
    with ExitStack() as stack:
        for _ in range(busy):
            neighbour = subprocess.Popen([sys.executable, "-c", "while True: pass"])
            stack.callback(neighbour.wait)
            stack.callback(neighbour.kill)
        rates = {name: stack.enter_context(contestant(name, job)) for name in names}
        results: dict[str, list[float]] = {name: [] for name in names}
        for number in range(rounds):
            for name in names[:: 1 if number % 2 else -1]:
                results[name].append(rates[name](seconds))
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", nargs="+", default=[*JOBS], choices=JOBS)
    parser.add_argument("--busy", nargs="+", type=int, default=[0, 1, 3])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--contestant", choices=SETTINGS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.contestant == "attnorm":
        from attnorm.cli.main import keep_freed_memory, let_threads_sleep

        let_threads_sleep()
        keep_freed_memory()
    if args.contestant:
        return work(args.contestant, args.jobs[0])
    print(f"{os.cpu_count()} cores, load before: {os.getloadavg()[0]:.1f}")
    for job in args.jobs:
        rows, missed = [], []
        for busy in args.busy:
            rates = measure(job, busy, args.rounds, args.seconds)

            def against(name: str, base: str, rates: dict[str, list[float]] = rates) -> float:
                return median(a / b for a, b in zip(rates[name], rates[base], strict=True))

            rows.append([str(busy), *(f"{median(rates[n]):,.0f} ({against(n, 'spinning'):.2f})" for n in rates)])
            share = min(against("attnorm", it) for it in (("passive", "one thread") if busy else ("spinning",)))
            if share < (BESIDE_OTHERS if busy else ALONE):
                missed.append(f"{share:.2f} beside {busy}")
            rows[-1].append(f"{share:.2f}")
        timing.print_table(job, ["busy processes", *rates, "share of the best"], rows)
        print(f"goals: {'met' if not missed else 'NOT met: ' + '; '.join(missed)}", flush=True)


if __name__ == "__main__":
    main()
