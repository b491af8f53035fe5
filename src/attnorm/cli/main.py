"""The command `attnorm <verb> ...`, which is also `python -m attnorm <verb> ...`."""

import sys
from pathlib import Path

from attnorm.config.trust import find_own_parts
from attnorm.imports import nearest

CONF = Path(__file__).resolve().parents[1] / "conf"
VERBS = {
    "train": "train one model on one task with one attention normalizer",
    "sweep": "train many models, each in a process of its own",
    "eval": "score a run folder, or a file of predictions",
    "report": "write one HTML page about any set of runs",
    "compare": "say whether runs with different normalizers differ, and by how much",
    "generate": "write a text for each input, such as headlines for articles, with the model of a run folder",
    "attention": "draw and measure what the model of a run folder attends to",
    "figures": "draw the figures of the papers",
}


def main() -> int:
    """Runs the verb that was typed and returns the exit code."""
    verb, *arguments = sys.argv[1:] or ["--help"]
    if verb in ("-h", "--help"):
        listed = "\n".join(f"  {name:<11}{purpose}" for name, purpose in VERBS.items())
        print(f"usage: attnorm <verb> [key=value ...]\n\n{listed}\n\nattnorm <verb> --help shows the keys of a verb.")
        return 0
    if verb not in VERBS:
        print(f"error: {verb}: no such verb; allowed: {', '.join(VERBS)}.{nearest(verb, VERBS)}", file=sys.stderr)
        return 2
    return run(verb, arguments)


def run(verb: str, arguments: list[str]) -> int:
    """Runs a verb with its arguments and returns the exit code."""
    find_own_parts(verb, arguments)
    if verb == "train":
        if {"--help", "-h"} & set(arguments):
            from attnorm.cli.help import train_help

            print(train_help(CONF, arguments))
            return 0
        from attnorm.cli.train import run_train

        return run_train(CONF, arguments)
    if verb == "sweep":
        from attnorm.cli.sweep import run_sweep

        return run_sweep(CONF, arguments)
    if verb == "report":
        from attnorm.cli.report import run_report

        return run_report(CONF, arguments)
    from attnorm.cli.commands import run_command

    return run_command(CONF, verb, arguments)
