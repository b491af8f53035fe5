"""Language modelling: rows hold every token once, packed is alone, losses and baselines are those counted by hand."""

import math
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
import runs
import torch
from torch.testing import assert_close

from attnorm.data.sampler import MicroBatch
from attnorm.tasks.causal_lm.features import WINDOW, DocumentWindows, PackedDocuments
from attnorm.tasks.causal_lm.module import BANDS
from attnorm.tasks.causal_lm.task import FILE, Bigrams, flat
from attnorm.tasks.results import hash_of
from attnorm.tasks.task import task_of

pytestmark = pytest.mark.numerical
EXACT = {"rtol": 1e-10, "atol": 1e-10}
LENGTH = 16  # model.max_target of the tiny settings


def made(*overrides):
    """(task, module in float64 and evaluation mode, both splits)."""
    task = task_of(runs.tiny(*overrides, task="causal_lm"))
    splits = task.splits()
    tokenizer = splits["train"].tokenizer
    module = task.module(task.model(tokenizer).double().eval(), tokenizer, splits["validation"])
    with torch.no_grad():  # sharp scores, so that an error in them shows
        for parameter in module.model.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, dtype=torch.float64, generator=torch.manual_seed(1))
    return task, module, splits


@pytest.fixture(scope="module", params=["softmax", "hnas_prefix"])
def parts(request):
    return made(f"attention={request.param}")


def sequences(split):
    """[begin] document [end] of each document of a split."""
    tokenizer = split.tokenizer
    return [[tokenizer.bos_id, *ids, tokenizer.eos_id] for ids in tokenizer.encode(list(split.texts["text"]))]


def log_p(module, ids, labels):
    """log p of each label after the ids, which are read alone, float64 (n,)."""
    with torch.no_grad():
        scores = module.model(torch.tensor([ids]))[0].log_softmax(-1)
    return scores[range(len(labels)), labels]


# ---------------------------------------------------------------------------------------------------------------- rows


def test_packed_rows_hold_every_token_once(parts):
    split, found = parts[2]["train"], Counter()
    for row in split.rows:
        assert len(row["ids"]) == len(row["labels"]) == sum(row["pieces"]) <= LENGTH
        bounds = np.cumsum([0, *row["pieces"]])
        found.update((tuple(row["ids"][start:end]), tuple(row["labels"][start:end])) for start, end in pairwise(bounds))
    expected = Counter()
    for tokens in sequences(split):
        for start in range(0, len(tokens) - 1, LENGTH):
            stretch = tokens[start : start + LENGTH + 1]
            expected[tuple(stretch[:-1]), tuple(stretch[1:])] += 1
    assert found == expected
    assert (split.weights == split.lengths[:, 0]).all() and split.counts["tokens"] == split.weights.sum()
    assert split.counts["rows"] == len(split) < expected.total()  # some rows hold several pieces


def test_windows_divide_the_tokens_and_bytes_of_a_document(parts):
    split = parts[2]["validation"]
    for number, (tokens, text) in enumerate(zip(sequences(split), split.texts["text"], strict=True)):
        windows = [row for row in split.rows if row["document"] == number]
        assert [token for row in windows for token in row["ids"]] == tokens[:-1]
        assert [token for row in windows for token in row["labels"]] == tokens[1:]
        assert [len(row["ids"]) for row in windows[:-1]] == [WINDOW * LENGTH] * (len(windows) - 1)
        assert sum(row["bytes"] for row in windows) == len(text.encode())
        assert all(abs(row["bytes"] / len(row["ids"]) - len(text.encode()) / (len(tokens) - 1)) < 1 for row in windows)


def test_the_settings_of_the_two_kinds_of_rows_differ():
    settings = [
        layout(length).settings() for layout in (PackedDocuments, DocumentWindows) for length in (LENGTH, 2 * LENGTH)
    ]
    assert len(set(map(str, settings))) == 4


# -------------------------------------------------------------------------------------------------------------- losses


def test_a_packed_row_has_the_losses_and_gradients_of_its_pieces_alone(parts):
    task, module, splits = parts
    rows = [max(range(len(splits["train"])), key=lambda row: len(splits["train"].rows[row]["pieces"])), 0, 1]
    batch = task.collator(splits["train"])[MicroBatch(rows, 1)]
    packed, size, _ = module.loss(batch)
    module.model.zero_grad()
    packed.backward()
    gradient = torch.nn.utils.parameters_to_vector([it.grad for it in module.model.parameters()])
    module.model.zero_grad()
    alone, count = torch.zeros((), dtype=torch.float64), 0
    for row in (splits["train"].rows[number] for number in rows):
        for start, end in pairwise(np.cumsum([0, *row["pieces"]])):
            scores = module.model(torch.tensor([row["ids"][start:end]]))[0].log_softmax(-1)
            alone = alone - scores[range(end - start), row["labels"][start:end]].sum()
            count += end - start
    alone.backward()
    assert len(splits["train"].rows[rows[0]]["pieces"]) > 1 and size == count
    assert_close(packed.double(), alone, rtol=1e-6, atol=0.0)  # the module computes it in float32
    single = torch.nn.utils.parameters_to_vector([it.grad for it in module.model.parameters()])
    assert_close(gradient, single, rtol=1e-5, atol=1e-6 * float(single.abs().max()))


@pytest.mark.long
def test_scores_are_those_of_each_token_read_in_its_piece_and_in_its_window(parts):
    task, module, splits = parts
    split = splits["validation"]
    scores = task.score(module, split)
    table = scores.predictions.table().to_pydict()
    total = tokens = 0
    bands = {end: [] for end in BANDS}
    for number, text in enumerate(split.texts["text"]):
        losses = []
        for row in (it for it in split.rows if it["document"] == number):
            ids, labels = row["ids"], row["labels"]
            for start in range(0, len(ids), LENGTH):
                losses += (-log_p(module, ids[start : start + LENGTH], labels[start : start + LENGTH])).tolist()
            if len(ids) == WINDOW * LENGTH:
                whole = -log_p(module, ids, labels)
                for end, of_band in bands.items():
                    of_band.append(whole[end // 2 * LENGTH : end * LENGTH].mean().item())
        assert table["loss_sum"][number] == pytest.approx(sum(losses), rel=1e-5)
        assert (table["n_tokens"][number], table["bytes"][number]) == (len(losses), len(text.encode()))
        total, tokens = total + sum(losses), tokens + len(losses)
    n_bytes = sum(len(text.encode()) for text in split.texts["text"])
    expected = {
        "loss": total / tokens,
        "perplexity": math.exp(total / tokens),
        "bits_per_byte": total / math.log(2) / n_bytes,
        **{f"loss_{end}x": sum(of_band) / len(of_band) for end, of_band in bands.items()},
    }
    assert scores.metrics == pytest.approx(expected, rel=1e-5)
    assert scores.size == len(split.texts) == len(table["id"])
    for end, metric in BANDS.items():
        sums = np.array([[it or 0 for it in table[column]] for column in metric.columns]).sum(1)
        assert metric.of(sums) == pytest.approx(expected[f"loss_{end}x"], rel=1e-5)


@pytest.mark.parametrize(
    ("overrides", "bands", "note"),
    [
        (["model.positions=learned"], {"loss_1x"}, "beyond L: not applicable with model.positions=learned"),
        (["model.max_target=256", "data.batch_tokens=600"], set(), "no loss by position: no document has 2,048 tokens"),
    ],
)
def test_positions_that_were_not_trained_or_that_no_document_has_are_not_scored(overrides, bands, note):
    task, module, splits = made(*overrides)
    scores = task.score(module, splits["validation"])
    assert set(scores.metrics) == {"loss", "perplexity", "bits_per_byte", *bands} and note in scores.note
    columns = scores.predictions.table().column_names
    assert not bands or ("loss_sum_1x" in columns and "loss_sum_2x" not in columns)


def test_the_first_half_of_the_documents_selects_whole_documents(parts):
    task, _, splits = parts
    split = splits["validation"]
    selecting = task.selecting(split)
    assert selecting < set(map(str, range(len(split.texts)))) and len(selecting) == len(split.texts) // 2
    assert task.example_ids(split, [0, len(split) - 1]) == ["0", str(len(split.texts) - 1)]
    assert task.example_ids(splits["train"], [0, 9]) == ["0", "9"]  # packed rows, which a warning may name


def test_paragraphs_of_a_file_are_one_group(tmp_path):
    """Of the rows, of the table of predictions, and of the half that selects; what the model reads is unaffected."""
    (tmp_path / "texts").mkdir()
    for name, chapters in (("a", 3), ("b", 1), ("c", 2), ("d", 1), ("e", 40)):
        texts = [f"Part {number}\n{f'the {name} went on ' * 40 * number}\n\n" for number in range(1, chapters + 1)]
        (tmp_path / "texts" / f"{name}.txt").write_text("".join(texts))
    first = (tmp_path / "texts" / "a.txt").read_text().partition("Part 2")[0]
    (tmp_path / "texts" / "d.txt").write_text(first)
    data = ("data=folders", f"data.folder={tmp_path / 'texts'}", "data.document=paragraph")
    task = task_of(runs.tiny_language(tmp_path, *data, "data.validation=[a*,b*,c*,d*]", "tokenizer.vocab_size=40"))
    splits = task.splits()
    split = splits["validation"]
    tokenizer = split.tokenizer
    module = task.module(task.model(tokenizer), tokenizer, split)
    predictions = task.score(module, split).predictions
    predictions.selecting, predictions.input_hashes = task.selecting(split), task.input_hashes(split)
    table = predictions.table().to_pydict()
    expected = [f"{name}.txt" for name in "aaabccd"]
    assert table["group"] == expected and table["id"] == [str(number) for number in range(7)]
    assert task.row_groups(split) == [expected[number] for number in split.rows["document"]]
    assert len(split) > len(expected)  # some paragraphs have several windows
    selecting = {group for group, chosen in zip(expected, table["selecting"], strict=True) if chosen}
    assert len(selecting) == 2 and table["selecting"] == [group in selecting for group in expected]
    hashes = table["input_hash"]
    assert hashes == [hash_of({"text": text}) for text in split.texts["text"]] and hashes[0] == hashes[6]


# --------------------------------------------------------------------------------------------- baselines and generation


def test_the_baselines_are_counted_on_the_training_tokens(parts):
    task, _, splits = parts
    size = splits["train"].tokenizer.vocab_size
    pairs = Counter(pair for tokens in sequences(splits["train"]) for pair in pairwise(tokens))
    after, before, followers = Counter(), Counter(), Counter()
    for (v, w), count in pairs.items():
        after[w] += count
        before[v] += count
        followers[v] += 1
    total = sum(after.values())

    def unigram(w):
        return (after[w] + 1) / (total + size)

    def bigram(v, w):
        weight = followers[v] / (before[v] + followers[v]) if before[v] else 1.0
        return weight * unigram(w) + ((1 - weight) * pairs[v, w] / before[v] if before[v] else 0.0)

    tested = [pair for tokens in sequences(splits["validation"]) for pair in pairwise(tokens)]
    n_bytes = sum(len(text.encode()) for text in splits["validation"].texts["text"])
    found = task.baselines(splits["validation"])
    for name, p in (("unigram", lambda v, w: unigram(w)), ("bigram", bigram)):
        loss = -sum(math.log(p(*pair)) for pair in tested) / len(tested)
        bits = loss * len(tested) / math.log(2) / n_bytes
        assert found[name] == pytest.approx({"perplexity": math.exp(loss), "loss": loss, "bits_per_byte": bits})
    assert next(iter(found)) == "bigram" and next(iter(found["bigram"])) == "perplexity"


def test_the_baselines_are_distributions_also_after_unseen_tokens(parts):
    rows = parts[2]["train"].rows
    counts, size = Bigrams.of(rows, 310), 310
    for v in (1, 7, 309):  # the begin token, a frequent one, and one outside the vocabulary
        unigram, bigram = counts.log_p(np.full(size, v), np.arange(size))
        assert np.exp(unigram).sum() == pytest.approx(1) and np.exp(bigram).sum() == pytest.approx(1)
    assert len(flat(rows, "ids")) == counts.counts.sum()


def test_the_counts_are_kept_in_the_run_folder(parts, tmp_path):
    from attnorm.errors import RunError

    task, _, splits = parts
    task.save(tmp_path)
    other = task_of(task.cfg, tmp_path)
    assert other.baselines(splits["validation"]) == task.baselines(splits["validation"]) and other.train is None
    (tmp_path / FILE).write_bytes(b"damaged")
    with pytest.raises(RunError, match=FILE):
        task_of(task.cfg, tmp_path)


# ---------------------------------------------------------------------------------------------------------- generation

PROMPTS = ["The chronicle of", "Day 1. It rained, and", "The chronicle of"]


def continued(parts, prompts, **options):
    task, module, splits = parts
    settings = {**vars(task.cfg.groups["decoding"]), "max_length": 6, **options}
    changed = task_of(runs.tiny(*(f"decoding.{key}={it}" for key, it in settings.items()), task="causal_lm"))
    return changed.generate(module.model, splits["train"].tokenizer, prompts)


def test_greedy_continuations_take_the_most_probable_tokens(parts):
    tokenizer = parts[2]["train"].tokenizer
    for prompt, written in zip(PROMPTS, continued(parts, PROMPTS, temperature=0.0), strict=True):
        [ids] = tokenizer.encode([prompt])
        ids = [tokenizer.bos_id, *ids]
        for _ in range(6):
            with torch.no_grad():
                scores = parts[1].model(torch.tensor([ids]))[0, -1]
            scores[[tokenizer.pad_id, tokenizer.bos_id]] = -math.inf
            ids.append(scores.argmax().item())
            if ids[-1] == tokenizer.eos_id:
                break
        assert tokenizer.decode(ids) == f"{prompt} {written}" or tokenizer.decode(ids) == prompt + written


def test_a_continuation_depends_on_the_seed_and_its_own_prompt_alone(parts):
    first = continued(parts, PROMPTS)
    assert first == continued(parts, PROMPTS) and first[0] != first[2]  # equal prompts have different continuations
    assert continued(parts, [PROMPTS[1]]) == [first[1]] and continued(parts, PROMPTS[::-1])[1] == first[1]
    assert continued(parts, PROMPTS, seed=1) != first
    assert continued(parts, []) == []
