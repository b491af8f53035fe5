"""Training with several processes: time per update, tokens per second, bytes sent, and efficiency.

    python benchmarks/scaling.py --processes 1 2
    python benchmarks/scaling.py --processes 1 2 4 8 --device cuda --model base --batch-tokens 65536
    python benchmarks/scaling.py --plan                     # the formula for 8 to 512 GPUs; nothing is measured

Every process computes its share of each update with the model of `train.py`, under DDP and under FSDP2 (as trainer=ddp
and trainer=fsdp do). All groups of processes exist at the same time and take turns, round by round, so that a change of
the machine's speed meets all of them. A table shows the median over the rounds, and the median (lowest-highest) of the
ratios within a round.

Two questions are asked. Strong scaling: the same update is divided among the processes. Weak scaling: the update grows
with the number of processes. The efficiency is the speed-up divided by the number of processes.

The last table compares the measured time of an update with the formula of docs/scaling.md,

    t(p) = t_compute(p) + 2 (p - 1) / p * bytes / bandwidth

where t_compute is measured without communication, on the same batches and with all processes at work, and the bandwidth
is measured with an all-reduce of all gradients in buckets as large as DDP's. DDP hides a part of the communication
behind the backward pass, which the formula ignores; so it gives an upper bound of the time.
"""

import argparse
import multiprocessing as mp
import os
import socket
import time
from statistics import median
from typing import Any

import timing
from scaling_formula import plan, sent

BUCKET = 25 * 1024 * 1024  # bytes of DDP's buckets
WARMUP = 2  # rounds


class Worker:
    """One process of a group: its model, its batches, and its timed work."""

    def __init__(self, rank: int, size: int, port: int, strategy: str, args: argparse.Namespace, weak: bool):
        import torch
        import torch.distributed as dist

        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        torch.set_num_threads(args.threads)
        if args.cores and size > 1:
            cores = sorted(os.sched_getaffinity(0))
            os.sched_setaffinity(0, {cores[rank % len(cores)]})
        elif args.cores:
            os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        self.rank, self.size, self.args = rank, size, args
        self.device = f"cuda:{rank}" if args.device == "cuda" else "cpu"
        backend = "nccl" if args.device == "cuda" else "gloo"
        dist.init_process_group(backend, rank=rank, world_size=size)
        torch.manual_seed(0)
        cfg = timing.configure(f"model={args.model}", f"attention={args.attention}")
        self.model = timing.build_ours(cfg, args.vocab_size).to(self.device).train()
        self.parameters = timing.parameters(self.model)
        self.clip = cfg.trainer.gradient_clip_val
        self.tokens, self.batches = self.load(args.batch_tokens * (size if weak else 1))
        self.net = self.distributed(strategy)
        self.optimizer = timing.build_optimizer(cfg, self.model) if strategy != "fsdp" else self.plain_optimizer(cfg)

    def load(self, batch_tokens: int) -> tuple[int, list[dict[str, Any]]]:
        """The real tokens of the updates of a round, over all processes, and the share of this process."""
        from attnorm.data.sampler import TokenBatches
        from attnorm.tasks.seq2seq.features import PairCollator

        table, lengths = timing.sequences(20_000, self.args.vocab_size)
        pairs = PairCollator(table, timing.PAD, timing.BOS, timing.EOS)
        sampler = TokenBatches(lengths, batch_tokens, rank=self.rank, ranks=self.size)
        parts = [part for part, _ in zip(sampler, range(self.args.updates), strict=False)]
        rows = [part.rows for part in TokenBatches(lengths, batch_tokens)][: self.args.updates]
        batches = []
        for part in parts:
            batch = {name: tensor.to(self.device) for name, tensor in pairs[part].items()}
            batches.append({**batch, "divisor": part.divisor})
        return int(sum(lengths[it].sum() for it in rows)), batches

    def distributed(self, strategy: str):
        """The model as the strategy runs it. "none" leaves out all communication."""
        if strategy == "ddp" and self.size > 1:
            from torch.nn.parallel import DistributedDataParallel

            return DistributedDataParallel(summed_loss(self.model))
        if strategy == "fsdp":
            from torch.distributed.device_mesh import init_device_mesh
            from torch.distributed.fsdp import fully_shard

            from attnorm.training.sharding import LAYERS

            mesh = init_device_mesh(self.args.device, (self.size,))
            for module in self.model.modules():
                if isinstance(module, LAYERS):
                    fully_shard(module, mesh=mesh)
            fully_shard(self.model, mesh=mesh)
        return summed_loss(self.model)

    def plain_optimizer(self, cfg: timing.ResolvedConfig):
        return cfg.optimization.build(self.model, total_steps=1000, fused=False)["optimizer"]

    def updates(self) -> float:
        """Seconds for the updates of a round."""
        import torch
        import torch.distributed as dist

        dist.barrier()
        self.synchronize()
        start = time.perf_counter()
        for batch in self.batches:
            loss = self.net(batch) / batch["divisor"] * self.size
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
            self.optimizer.step()
            self.optimizer.zero_grad()
        self.synchronize()
        return time.perf_counter() - start

    def reduce(self) -> float:
        """Seconds for an all-reduce of the gradients, in buckets as large as DDP's."""
        import torch
        import torch.distributed as dist

        size = 4 * self.parameters
        buckets = [torch.zeros(min(BUCKET, size - begin) // 4, device=self.device) for begin in range(0, size, BUCKET)]
        dist.barrier()
        self.synchronize()
        start = time.perf_counter()
        for bucket in buckets:
            dist.all_reduce(bucket)
        self.synchronize()
        return time.perf_counter() - start

    def synchronize(self) -> None:
        if self.args.device == "cuda":
            import torch

            torch.cuda.synchronize(self.device)


def summed_loss(model):
    """A module whose forward pass is the summed cross-entropy of a batch, as in training."""
    import torch
    import torch.nn.functional as F

    from attnorm.tasks.seq2seq.generate import target_logits

    class SummedLoss(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, batch):
            logits, labels = target_logits(self.model, batch)
            return F.cross_entropy(logits, labels, reduction="sum")

    return SummedLoss()


def serve(rank: int, size: int, port: int, strategy: str, args: argparse.Namespace, weak: bool, pipe) -> None:
    """Does what the parent asks for: the name of a method of Worker; None ends the process."""
    worker = Worker(rank, size, port, strategy, args, weak)
    pipe.send({"tokens": worker.tokens, "parameters": worker.parameters})
    while (name := pipe.recv()) is not None:
        pipe.send(getattr(worker, name)())


class Group:
    """Processes that train together, or, without communication, beside each other."""

    def __init__(self, size: int, strategy: str, args: argparse.Namespace, weak: bool):
        context = mp.get_context("spawn")
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            port = found.getsockname()[1]
        pipes = [context.Pipe() for _ in range(size)]
        self.pipes = [pipe for pipe, _ in pipes]
        self.processes = [
            context.Process(target=serve, args=(rank, size, port, strategy, args, weak, pipes[rank][1]), daemon=True)
            for rank in range(size)
        ]
        for process in self.processes:
            process.start()
        self.size, self.strategy = size, strategy
        facts = [pipe.recv() for pipe in self.pipes]
        self.tokens, self.parameters = facts[0]["tokens"], facts[0]["parameters"]

    def ask(self, name: str) -> float:
        """The longest time of a process."""
        for pipe in self.pipes:
            pipe.send(name)
        return max(pipe.recv() for pipe in self.pipes)

    def end(self) -> None:
        for pipe in self.pipes:
            pipe.send(None)
        for process in self.processes:
            process.join(30)


def measure(args: argparse.Namespace, weak: bool) -> None:
    """Prints the two tables of strong or of weak scaling."""
    groups = {(size, name): Group(size, name, args, weak) for size in args.processes for name in args.strategies}
    bare = {size: Group(size, "none", args, weak) for size in args.processes}
    seconds: dict[Any, list[float]] = {key: [] for key in groups}
    compute: dict[int, list[float]] = {size: [] for size in bare}
    reduced: dict[int, list[float]] = {size: [] for size in bare}
    for number in range(WARMUP + args.rounds):
        order = list(groups)[:: 1 if number % 2 else -1]
        for key in order:
            seconds[key].append(groups[key].ask("updates"))
        for size, group in bare.items():
            compute[size].append(group.ask("updates"))
            reduced[size].append(group.ask("reduce") if size > 1 else 0.0)
    for group in [*groups.values(), *bare.values()]:
        group.end()
    for found in (seconds, compute, reduced):
        for key in found:
            found[key] = found[key][WARMUP:]

    first = min(args.processes)
    rows = []
    for (size, name), times in seconds.items():
        group, base = groups[size, name], seconds[first, args.strategies[0]]
        rates = [group.tokens / time for time in times]
        base_rates = [groups[first, args.strategies[0]].tokens / time for time in base]
        ratios = sorted(rate / one * first / size for rate, one in zip(rates, base_rates, strict=True))
        efficiency = f"{median(ratios):.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f})"
        megabytes = sent(size, group.parameters, name) / 1e6
        step = median(times) / args.updates * 1e3
        rows.append([name, str(size), f"{step:.1f}", f"{median(rates):,.0f}", f"{megabytes:.2f}", efficiency])
    kind = "Weak scaling: an update grows with the processes" if weak else "Strong scaling: an update is divided"
    title = f"{kind}; {groups[first, args.strategies[0]].parameters:,} parameters, {args.batch_tokens} tokens"
    header = ["strategy", "processes", "ms/update", "tokens/s", "MB sent/process", "efficiency"]
    timing.print_table(title, header, rows)

    rows = []
    for size in args.processes:
        if size > 1 and "ddp" in args.strategies:
            group = bare[size]
            computed = median(compute[size]) / args.updates * 1e3
            communicated = median(reduced[size]) * 1e3
            bandwidth = sent(size, group.parameters, "ddp") / median(reduced[size]) / 1e9
            predicted, measured = computed + communicated, median(seconds[size, "ddp"]) / args.updates * 1e3
            cells = (computed, communicated, predicted, measured)
            ratio = f"{measured / predicted:.2f}x"
            rows.append(["ddp", str(size), f"{bandwidth:.2f}", *(f"{cell:.1f}" for cell in cells), ratio])
    header = ["strategy", "processes", "GB/s", "compute ms", "all-reduce ms", "formula ms", "measured ms", "ratio"]
    timing.print_table("The formula of docs/scaling.md against the measurement", header, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2], help="sizes of the groups")
    parser.add_argument("--strategies", nargs="+", default=["ddp", "fsdp"], choices=("ddp", "fsdp"))
    parser.add_argument("--scaling", nargs="+", default=["strong", "weak"], choices=("strong", "weak"))
    parser.add_argument("--model", default="small", choices=("tiny", "small", "base"))
    parser.add_argument("--attention", default="hnas")
    parser.add_argument("--vocab-size", type=int, default=8000)
    parser.add_argument("--batch-tokens", type=int, default=4096, help="tokens per update, padding included")
    parser.add_argument("--rounds", type=int, default=8, help="counted rounds, after two that are dropped")
    parser.add_argument("--updates", type=int, default=3, help="updates per round")
    parser.add_argument("--threads", type=int, default=1, help="torch threads per process")
    parser.add_argument("--cores", action="store_true", help="bind each process to a core of its own")
    parser.add_argument("--plan", action="store_true", help="print the formula for 8 to 512 GPUs instead of measuring")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    args = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    if args.plan:
        return plan(args.vocab_size)
    import torch

    where = torch.cuda.get_device_name() if args.device == "cuda" else f"CPU, {args.threads} thread per process"
    print(f"torch {torch.__version__}, {where}, {len(os.sched_getaffinity(0))} cores, {args.rounds} rounds")
    for kind in args.scaling:
        measure(args, kind == "weak")


if __name__ == "__main__":
    main()
