"""Masked language modelling as whole runs: what they learn, what is scored, and which tokens are hidden when."""

import json
import math

import pytest
import runs
import torch

from attnorm import load_run
from attnorm.data.sampler import MicroBatch
from attnorm.tasks.mlm import MaskedLMModule
from attnorm.tasks.task import task_of
from attnorm.training.module import TrainingModule
from attnorm.training.train import train

EPOCHS = ("attention=hnas", "data.train_size=12", "task.max_steps=10", "task.validations=2")  # validates after 5 and 10


def noting(monkeypatch, owner, method):
    """A list that fills with a copy of every batch that the method gets, and the epoch it was in if it is known."""
    seen = []

    def note(self, batch, *_):
        seen.append((getattr(self, "current_epoch", None), {name: tensor.clone() for name, tensor in batch.items()}))

    runs.before(monkeypatch, owner, method, note)
    return seen


def same(first, second):
    """Whether two batches are bit-equal."""
    return runs.unequal(first, second) == []


def masks(seen):
    """{row: (where tokens are hidden, what is shown)} of batches, without padding."""
    found = {}
    for batch in seen:
        for row, places, ids in zip(batch["rows"].tolist(), batch["masked_positions"], batch["ids"], strict=True):
            found[row] = (places.nonzero().flatten().tolist(), ids[ids != 0].tolist())
    return found


def test_a_summary_has_loss_perplexity_and_accuracy():
    scores = runs.summary_of(runs.finished_run("mlm"))["validation"]
    assert (scores["split"], scores["unit"], scores["size"], scores["baselines"]) == ("validation", "documents", 8, {})
    assert set(scores["metrics"]) == {"loss", "perplexity", "accuracy"}


@pytest.mark.slow
def test_training_lowers_the_loss_to_about_that_of_the_frequencies(tmp_path):
    """A small model first learns how frequent each token is."""
    recipe = task_of(runs.tiny(task="mlm"))
    splits = recipe.splits()
    seen = torch.cat([torch.tensor(ids) for ids in splits["train"].rows["ids"]])
    share = torch.bincount(seen, minlength=300).double() + 1  # none is 0
    masked = recipe.collator(splits["validation"])[MicroBatch(list(range(len(splits["validation"]))), 1)]["labels"]
    of_frequencies = -(share / share.sum()).log()[masked].mean().item()
    summary = runs.tiny_run(tmp_path, "task.max_steps=60", "callbacks.attention_stats.every_n_steps=0", task="mlm")
    losses = list(runs.logged(tmp_path, "val/loss").values())
    assert losses[-1] < losses[0] < math.log(300) + 0.2
    assert losses[-1] < of_frequencies + 0.1 < math.log(300) - 0.3
    assert summary["validation"]["metrics"]["accuracy"] > 1.5


@pytest.mark.slow
def test_eval_scores_other_documents_with_the_runs_tokenizer(monkeypatch, tmp_path):
    run = runs.copied_run(tmp_path, "mlm")
    assert runs.call(monkeypatch, "eval", f"run={run}", "split=test") == 0
    for name in ("mine", "theirs"):
        (tmp_path / f"{name}.txt").write_text(f"{name} said on monday that oil fell .\n" * 3)
    mine = ("data=text", f"data.files={tmp_path}/theirs.txt", f"data.validation={tmp_path}/mine.txt")
    assert runs.call(monkeypatch, "eval", f"run={run}", *mine) == 0
    found = [json.loads((run / f"eval_{name}.json").read_text()) for name in ("test", "validation")]
    assert [record["size"] for record in found] == [5, 3]
    data = found[1]["data"]
    assert (data["_target_"], data["batch_tokens"]) == ("attnorm.data.sources.text_files.TextFiles", 1000)
    losses = [record["metrics"]["loss"] for record in found]
    assert len({*losses, runs.summary_of(run)["validation"]["metrics"]["loss"]}) == 3


@pytest.mark.parametrize(
    "typed", ["task.mask_prob=0.3", "task.packed=false", "task.stemmer=true", "decoding.beam_size=2"]
)
def test_eval_refuses_what_would_change_the_task(monkeypatch, capsys, typed):
    assert runs.call(monkeypatch, "eval", f"run={runs.finished_run('mlm')}", typed) == 2
    assert capsys.readouterr().err.startswith(f"error: {typed.partition('=')[0]}: ")


@pytest.mark.slow
def test_another_seed_gives_another_run_that_hides_the_same_tokens_of_the_validation_split(tmp_path):
    runs.tiny_run(tmp_path / "other", "attention=hnas", "seed=2", task="mlm")
    assert runs.different_ends(runs.finished_run("mlm"), tmp_path / "other") != []
    one, two = (load_run(folder).predictions for folder in (runs.finished_run("mlm"), tmp_path / "other"))
    assert list(map(list, one["reference"])) == list(map(list, two["reference"]))  # so that seeds can be compared
    assert list(map(list, one["output"])) != list(map(list, two["output"]))


@pytest.mark.slow
def test_each_validation_hides_the_same_tokens_and_each_epoch_others(monkeypatch, tmp_path):
    with monkeypatch.context() as patch:
        validations = noting(patch, MaskedLMModule, "validation_step")
        training = noting(patch, TrainingModule, "training_step")
        runs.tiny_run(tmp_path, *EPOCHS, "task.validations=4", "task.selection=all", task="mlm")
    assert load_run(tmp_path).predictions["selecting"].all()
    batches = [batch for _, batch in validations]
    split = len(batches) // 5  # after 3, 6, 9 and 10 updates, and the final evaluation
    assert split > 0 and len(batches) == 5 * split
    for later in range(1, 5):
        again = batches[later * split : (later + 1) * split]
        assert [same(*pair) for pair in zip(batches[:split], again, strict=True)] == [True] * split
    assert all(batch["divisor"] == len(batch["labels"]) for _, batch in training)  # the loss is a mean
    epochs = [masks(batch for number, batch in training if number == epoch) for epoch in (0, 1)]
    rows = epochs[0].keys() & epochs[1].keys()
    assert len(rows) == len(epochs[0]) > 40
    assert sum(epochs[0][row][0] == epochs[1][row][0] for row in rows) < len(rows) / 10
    assert [len(epochs[0][row][0]) for row in sorted(rows)] == [len(epochs[1][row][0]) for row in sorted(rows)]


def own_text(folder, *overrides):
    """A checked configuration over short documents in a file."""
    lines = [" ".join(words) + " ." for words in runs.sentences(0, 150)]
    (folder / "mine.txt").write_text("\n".join(lines) + "\n")
    mine = ("data=text", f"data.files={folder}/mine.txt", "data.holdout=0.2", f"paths.cache_dir={folder}/cache")
    return runs.checked(runs.composed("task=mlm", *runs.ENCODER, *mine, *overrides))


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["softmax", "dnas"])
def test_packed_or_not_every_document_is_read_once(tmp_path, attention):
    found = {}
    for packed in ("true", "false"):
        cfg = own_text(tmp_path, f"attention={attention}", f"task.packed={packed}", "task.max_steps=3")
        train(cfg, tmp_path / packed)
        found[packed] = runs.summary_of(tmp_path / packed)
    data = {packed: summary["data"]["train"] for packed, summary in found.items()}
    assert data["false"]["blocks"] == data["false"]["documents"] == 120 > 4 * data["true"]["blocks"]
    assert data["true"]["tokens"] == data["false"]["tokens"]
    assert [summary["validation"]["size"] for summary in found.values()] == [30, 30]
    assert all(summary["state"] == "finished" for summary in found.values())


@pytest.mark.slow
def test_whole_words_can_be_hidden(monkeypatch, tmp_path):
    seen = noting(monkeypatch, TrainingModule, "training_step")
    runs.tiny_run(tmp_path, "task.whole_words=true", "task.max_steps=2", task="mlm")
    recipe = task_of(runs.tiny(task="mlm"))
    split = recipe.splits()["train"]
    for row, (hidden, _) in masks(batch for _, batch in seen).items():
        continues = ~split.tokenizer.starts_word(torch.tensor(split.rows[row]["ids"]).numpy())
        for place, inside in enumerate(continues):
            if inside and place > 1:  # a cut document may begin within a word
                assert (place in hidden) == (place - 1 in hidden), row
