"""Masked language modelling: the loss is that of all scores, packed is alone, what is counted is counted by hand."""

import math

import pytest
import runs
import torch
from marks import slow
from tolerance import rounding
from torch.testing import assert_close

from attnorm.data.sampler import MicroBatch
from attnorm.tasks.mlm import SHOWN_TOKENS
from attnorm.tasks.task import task_of

pytestmark = pytest.mark.numerical

EXACT = {"rtol": 1e-10, "atol": 1e-10}


def made(*overrides):
    """A tiny recipe with what is behind it: (recipe, task in float64 and evaluation mode, validation split)."""
    recipe = task_of(runs.tiny("data.valid_size=4", *overrides, task="mlm"))
    split = recipe.splits()["validation"]
    task = recipe.module(recipe.model(split.tokenizer).double().eval(), split.tokenizer, split)
    return recipe, task, split


@pytest.fixture(scope="module", params=["softmax", "dnas"])
def parts(request):
    recipe, task, split = made(f"attention={request.param}")
    common = torch.bincount(torch.cat([torch.tensor(ids) for ids in split.rows["ids"]])).argsort(descending=True)
    with torch.no_grad():
        task.model.head.output.bias[common[2]] += 4  # the first two are special; so that some guesses are right
    return recipe, task, split


def batch_of(recipe, split, rows, epoch=0):
    return recipe.collator(split)[MicroBatch(rows, 1, epoch)]


def by_hand(task, batch):
    """(summed loss, hidden, right) from the scores of every place, place by place."""
    scores = task.model(batch["ids"], batch["segments"])
    labels = iter(batch["labels"].tolist())
    loss = right = hidden = 0
    for row, place in batch["masked_positions"].nonzero().tolist():
        label = next(labels)
        loss += (scores[row, place].exp().sum().log() - scores[row, place, label]).item()
        right += int(max(range(scores.shape[-1]), key=scores[row, place].tolist().__getitem__) == label)
        hidden += 1
    return loss, hidden, right


def test_the_loss_is_that_of_all_scores_at_the_hidden_places(parts):
    recipe, task, split = parts
    batch = batch_of(recipe, split, [0, 3, 7])
    summed, size, _ = task.loss(batch)
    loss, hidden, _ = by_hand(task, batch)
    close = rounding(torch.float32, size=split.tokenizer.vocab_size)  # the task computes it in float32
    assert_close(summed.item(), loss, rtol=close, atol=0)
    assert size == hidden == int(batch["masked_positions"].sum()) > 10
    assert task(batch).shape == (hidden, split.tokenizer.vocab_size)


def test_metrics_are_counted_by_hand_over_the_whole_split(parts):
    recipe, task, split = parts
    found = recipe.evaluate(task, split)
    rows = [by_hand(task, batch_of(recipe, split, [row])) for row in range(len(split))]
    loss, hidden, right = (sum(column) for column in zip(*rows, strict=True))
    assert 0 < right < hidden == split.weights.sum()
    close = rounding(torch.float32, size=split.tokenizer.vocab_size)
    assert_close(found["loss"], loss / hidden, rtol=close, atol=0)
    assert found["accuracy"] == pytest.approx(100 * right / hidden, abs=1e-9)
    assert found["perplexity"] == pytest.approx(math.exp(loss / hidden), rel=1e-4)
    assert set(found) == {"loss", "accuracy", "perplexity"}
    line = task.format_line({"loss": 1.0, "perplexity": 1234.56, "accuracy": 12.34})
    assert line == "perplexity 1,234.6  accuracy 12.3"


def test_a_loss_beyond_all_numbers_has_a_perplexity_all_the_same():
    _, task, _ = made()
    task.sums = {"loss": 5000.0, "masked": 5.0, "correct": 0.0}
    assert math.isfinite(task.metrics()["perplexity"])


def test_packed_documents_are_scored_as_each_alone():
    """Short documents, several to a block: the same scores when each is cut out and read by itself."""
    prior = "attention.prior={encoder: [learned]}"
    recipe, task, split = made("attention=dnas", prior, "model.max_source=1000", "data.batch_tokens=4000")
    assert max(map(len, split.rows["documents"])) > 1
    batch = batch_of(recipe, split, list(range(len(split))))
    together, alone = task(batch), []
    for row in range(len(batch["ids"])):
        start = 0
        for length in split.rows[row]["documents"]:
            cut = {name: batch[name][row : row + 1, start : start + length] for name in ("ids", "masked_positions")}
            alone.append(task.model(cut["ids"], None, cut["masked_positions"]))
            start += length
    assert_close(together, torch.cat(alone), **EXACT)


def test_another_seed_hides_other_tokens_in_training_and_the_same_ones_in_validation(parts):
    recipe, _, _ = parts
    other, _, _ = made("seed=2")
    for name, equal in (("train", False), ("validation", True)):
        split = recipe.splits()[name]
        first, same, second = (batch_of(r, split, [0, 1, 2]) for r in (recipe, recipe, other))
        assert torch.equal(first["masked_positions"], same["masked_positions"])
        assert torch.equal(first["ids"], same["ids"])
        assert torch.equal(first["masked_positions"], second["masked_positions"]) is equal


def test_tokens_are_counted_without_padding(parts):
    recipe, task, split = parts
    shortest, longest = split.lengths[:, 0].argmin(), split.lengths[:, 0].argmax()
    batch = batch_of(recipe, split, [int(shortest), int(longest)])
    assert (batch["ids"] == split.tokenizer.pad_id).any()
    assert int(task.tokens(batch)) == split.lengths[shortest, 0] + split.lengths[longest, 0]


def test_samples_are_the_first_rows_as_shown_as_they_were_and_as_filled(parts):
    recipe, task, split = parts
    task.begin_validation()
    with torch.no_grad():
        for rows in ([6, 3], [0, 8]):
            task.validation_step(batch_of(recipe, split, rows), 0)
    decode = split.tokenizer.decode
    assert [sample["text"] for sample in task.samples] == [
        decode(split.rows[row]["ids"][:SHOWN_TOKENS]) for row in (3, 0)
    ]
    batch = batch_of(recipe, split, [3])
    filled = batch["ids"].clone()
    filled[batch["masked_positions"]] = task(batch).argmax(-1)
    assert task.samples[0]["shown"] == decode(batch["ids"][0, :SHOWN_TOKENS].tolist())
    assert task.samples[0]["filled"] == decode(filled[0, :SHOWN_TOKENS].tolist())
    assert "[MASK]" in task.samples[0]["shown"] and "[MASK]" not in task.samples[0]["text"]
    task.begin_validation()
    assert task.samples == [] and task.sums == {"loss": 0.0, "masked": 0.0, "correct": 0.0}


def test_options_that_are_left_out_have_their_defaults():
    cfg = runs.plain("task=mlm")
    cfg["task"] = {key: cfg["task"][key] for key in ("_target_", "name")}
    assert runs.problems(cfg) == []
    cfg["task"]["keep_prob"] = 0.95
    (problem,) = runs.problems(cfg)
    assert problem == "task.keep_prob=0.95, random_prob=0.1: more than 1 together"


def moved(task, batch):
    """The largest change of the scores at the changed masked position and at the others of its row, if another token is
    shown at one masked position of each row in turn."""
    places, before = batch["masked_positions"], task.model(batch["ids"], batch["segments"], batch["masked_positions"])
    changed, others = [], []
    for row, place in places.nonzero().tolist():
        ids = batch["ids"].clone()
        ids[row, place] = 20 if ids[row, place] != 20 else 21
        change = (task.model(ids, batch["segments"], places) - before).abs().amax(-1)
        here = (places.nonzero() == torch.tensor([row, place])).all(-1)
        changed.append(change[here].max())
        others.append(change[~here].max())
    return max(changed), max(others)


@pytest.mark.long
@pytest.mark.parametrize("attention", ["softmax", slow("entmax"), slow("fenchel")])
def test_scores_do_not_depend_on_what_is_shown_at_another_masked_position(attention):
    layers = "model.encoder_layers=2"
    recipe, task, split = made(f"attention={attention}", layers, "attention.prior={encoder: [unmasked,t5]}")
    _, plain, _ = made(f"attention={attention}", layers, "attention.prior={encoder: [t5]}")
    batch = batch_of(recipe, split, [0, 3])
    with torch.no_grad():
        here, elsewhere = moved(task, batch)
        assert here > 1e-3 and elsewhere < 1e-12
        assert moved(plain, batch)[1] > 1e-3


def test_an_attention_that_couples_queries_sees_masked_words_as_queries():
    """As docs/priors.md says: the prior takes a word out of the keys, not out of the column step."""
    recipe, task, split = made("attention=dnas", "attention.prior={encoder: [unmasked]}")
    with torch.no_grad():
        assert moved(task, batch_of(recipe, split, [0]))[1] > 1e-6
