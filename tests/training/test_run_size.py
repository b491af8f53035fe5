"""How large a run is: its parameters of matrix products by hand, and its tokens against those of all batches."""

import pytest
import runs

from attnorm.data.loader import ResumableLoader
from attnorm.data.sampler import TokenBatches
from attnorm.tasks.task import task_of
from attnorm.training.size import size_of

WIDTH, HIDDEN, PIECES = 16, 32, 300  # of the tiny models


@pytest.mark.parametrize(
    ("task", "overrides", "blocks", "outputs"),
    [
        ("causal_lm", (), 4 * WIDTH**2 + 2 * WIDTH * HIDDEN, PIECES * WIDTH),  # tied to the embedding: once
        ("causal_lm", ("model.tie_embeddings=false",), 4 * WIDTH**2 + 2 * WIDTH * HIDDEN, PIECES * WIDTH),
        ("mlm", (), 4 * WIDTH**2 + 2 * WIDTH * HIDDEN, PIECES * WIDTH + WIDTH**2),  # and the head of the task
    ],
)
def test_parameters_are_those_of_matrix_products_and_tokens_are_real_ones(task, overrides, blocks, outputs):
    found = size_of(runs.tiny(*overrides, task=task))
    assert found.parameters == blocks + outputs
    assert found.flops_per_token > (6 if task == "causal_lm" else 1) * found.parameters  # and those of attention
    config = runs.tiny(*overrides, task=task)
    made = task_of(config)
    splits = made.splits()
    train, tokenizer = splits["train"], splits["train"].tokenizer
    module = made.module(made.model(tokenizer), tokenizer, splits["validation"])
    sampler = TokenBatches(train.lengths, config.data.batch_tokens, weights=train.weights, seed=7)
    counts = [int(module.tokens(batch)) for batch in ResumableLoader(made.collator(train), sampler)]
    assert found.updates_per_epoch == len(counts)
    assert found.tokens == pytest.approx(sum(counts) / len(counts), rel=1e-9)


def test_sizes_do_not_depend_on_the_seed_and_arms_may_have_more_parameters():
    size = size_of(runs.tiny(task="mlm"))
    assert size_of(runs.tiny("seed=5", task="mlm")) == size
    more = size_of(runs.tiny("attention=ot", "attention.options.ot.cost=learned", task="mlm"))
    assert more.tokens == size.tokens and more.parameters > size.parameters


@pytest.mark.parametrize(("typed", "updates"), [("null", 1), ("6", 3), ("0.5", 7)])
def test_the_first_validation_counts_updates(typed, updates):
    config = runs.tiny(f"trainer.val_check_interval={typed}", "trainer.accumulate_grad_batches=2", task="mlm")
    assert size_of(config).validation == updates
