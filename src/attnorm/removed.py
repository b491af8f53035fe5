"""What attnorm had once, by the name under which it is typed. There is no other trace of it in the code."""

REMOVED: dict[str, str] = {  # a verb: "doctor"; a key of a verb: "sweep search"; a key: "run.x"; a file: "data=books"
    "callbacks.loss_spike": "notices of loss spikes were removed; loggers have alerts",
    "callbacks.stalled_loader": "notices of stalls were removed; see train/data_wait_share in docs/runs.md#speed",
    "run.skip_updates": "skipping updates was removed; see docs/runs.md#nan-or-infinite-values",
    "logger.wandb.group": "the option group was removed; wandb reads the environment variable WANDB_RUN_GROUP",
    "trainer.strategy.sharded_checkpoints": "sharded checkpoints were removed; see docs/gpu.md#several-gpus",
    "sweep search": "searches were removed; see docs/sweeps.md#search",
    "sweep trials": "searches were removed; see docs/sweeps.md#search",
    "sweep search_seed": "searches were removed; see docs/sweeps.md#search",
    "sweep pruner": "searches were removed; see docs/sweeps.md#search",
    "data=easy_vqa": "easy_vqa was moved; see experiments/vqa_table1/README.md#easy-vqa",
    "data=easy_vqa_images": "easy_vqa_images was moved; see experiments/vqa_table1/README.md#easy-vqa",
    "sweep cost": "equal cost was removed; for the speed of each arm, see docs/compare.md#arms-and-pairs",
    "data=books": "books was replaced by data=folders; see docs/causal_lm.md#data",
    "data=passages": "passages was replaced by data=folders; see docs/hierarchical.md#data",
    "attention folder": "folder is now out, as in the other verbs",
    "sweep dir": "dir is now out, as in the other verbs",
    "doctor": "doctor is now a script, python benchmarks/doctor.py; see docs/gpu.md#check-of-a-machine",
    "report watch": "pages of running sweeps were removed; the terminal and wandb show what runs",
    "report every": "pages of running sweeps were removed; the terminal and wandb show what runs",
}
