"""Headlines: ROUGE as counted by hand, the order of what is written, and a loss that no padding or division changes."""

import csv
import itertools
import json
import re
from types import SimpleNamespace

import numpy as np
import pytest
import runs
import torch
import torch.nn.functional as F
from builders import BOS, EOS, PAD, SPECIAL, random_words, rough_model
from marks import slow
from torch.testing import assert_close

from attnorm.data.sampler import TokenBatches
from attnorm.models.generation import Decoding, generate
from attnorm.tasks.headlines import HeadlineModule
from attnorm.tasks.pairs import PairCollator, special_tokens, target_logits, write_texts
from attnorm.tasks.rouge import Rouge, lead, words_for
from attnorm.tasks.seq2seq import smoothed_cross_entropy
from attnorm.training.module import NonFiniteLoss, TrainingModule, spread_non_finite
from attnorm.training.train import train

pytestmark = pytest.mark.numerical

TIGHT = {"rtol": 1e-10, "atol": 1e-12}
TOKENIZER = SimpleNamespace(pad_id=PAD, bos_id=BOS, eos_id=EOS, decode=lambda ids: " ".join(map(str, ids)))
PLACEMENTS = pytest.mark.parametrize("placement", ["softmax", "dnas", "hnas_prefix"])

# --------------------------------------------------------------------------------------------------------------- ROUGE


def f1(matches, headline, title):
    """In percent, from counts: 2 P R / (P + R) with P = matches / headline and R = matches / title."""
    return 100 * 2 * matches / (headline + title)


@pytest.mark.parametrize(
    "headline, title, rouge1, rouge2, longest",
    [
        pytest.param("a b c", "a b c", f1(3, 3, 3), f1(2, 2, 2), f1(3, 3, 3), id="equal"),
        pytest.param("a b c d", "a c b", f1(3, 4, 3), 0, f1(2, 4, 3), id="order"),
        pytest.param("a a a", "a b", f1(1, 3, 2), 0, f1(1, 3, 2), id="a_word_counts_as_often_as_in_both"),
        pytest.param("x b c y", "b c z", f1(2, 4, 3), f1(1, 3, 2), f1(2, 4, 3), id="bigram"),
        pytest.param("a x b x c", "a b c", f1(3, 5, 3), 0, f1(3, 5, 3), id="with_gaps"),
        pytest.param("x y", "a b", 0, 0, 0, id="nothing"),
        pytest.param("", "a b", 0, 0, 0, id="empty"),
        pytest.param("Stocks RISE", "stocks rise", 100, 100, 100, id="case"),
        pytest.param("up # percent", "up percent", 100, 100, 100, id="hash_is_dropped"),
        pytest.param("UNK rises", "<unk> rises", 100, 100, 100, id="unknown_word"),
        pytest.param("u.s. stocks", "u s stocks", 100, 100, 100, id="punctuation"),
    ],
)
def test_rouge_is_the_f1_counted_by_hand(headline, title, rouge1, rouge2, longest):
    found = Rouge(stemmer=False)([headline], [title])
    assert found == pytest.approx({"rouge1": rouge1, "rouge2": rouge2, "rougeL": longest})


@pytest.mark.parametrize(
    "title, words",
    [
        ("सरकार ने नई योजना की घोषणा की", ["सरकार", "ने", "नई", "योजना", "की", "घोषणा", "की"]),
        ("今天Ａ股大涨3.5%，GDP！", [*"今天", "a", *"股大涨", "3", "5", "gdp"]),
        ("فاز الفريق بالمباراة ٣-١", ["فاز", "الفريق", "بالمباراة", "٣", "١"]),
        ("Москва: 5 новых_домов", ["москва", "5", "новых", "домов"]),
        ("ข่าวดี ๒๕", ["ข่", "า", "ว", "ดี", "๒๕"]),
        ("می\u200cخواهم naïve", ["می\u200cخواهم", "naïve"]),
        ("東京のデータ", [*"東京の", "デー", "タ"]),
    ],
)
def test_rouge_has_the_words_of_every_script(title, words):
    rouge = Rouge(stemmer=True, words="unicode", lsum=True)
    assert rouge.tokenizer.tokenize(title) == words
    assert rouge([title], [title]) == pytest.approx(dict.fromkeys(("rouge1", "rouge2", "rougeL", "rougeLsum"), 100))
    half = rouge([words[0]], [title])["rouge1"]
    assert half == pytest.approx(f1(1, 1, len(words)))
    assert words_for([title]) == "unicode" and rouge.undefined([[title], ["…"]])["rouge1"] == 0.5


@pytest.mark.parametrize("stemmer", [False, True])
def test_words_of_ascii_are_those_of_rouge_score_in_both_kinds(stemmer):
    texts = ["".join(chr(i) for i in range(128)), "The cats' running—no: U.S. $5 a_b foo-bar don't 1,000 x#y"]
    found = [Rouge(stemmer, words).tokenizer.tokenize(text) for words in ("ascii", "unicode") for text in texts]
    assert found[:2] == found[2:]


def test_the_share_of_letters_beyond_ascii_decides_about_the_words():
    assert words_for(["x" * 99 + "é", "12 – …"]) == "ascii" and words_for(["x" * 98 + "éé"]) == "unicode"
    assert words_for(["a"]) == words_for([]) == words_for(["12"]) == "ascii"


def test_rouge_lsum_takes_the_longest_subsequence_of_each_sentence():
    """Two sentences in another order have all their words in common, one by one."""
    for text, other in (("a b. c d.", "c d. a b."), ("你好。再见！", "再见！你好。"), ("क ख। ग घ।", "ग घ। क ख।")):
        found = Rouge(False, "unicode", lsum=True)([text], [other])
        assert (found["rougeL"], found["rougeLsum"]) == (pytest.approx(50), pytest.approx(100))


def test_rouge_of_many_is_their_mean():
    pairs = [("a b c", "a b c"), ("a b c d", "a c b"), ("x", "y")]
    rouge = Rouge(stemmer=False)
    each = [rouge([headline], [title])["rouge1"] for headline, title in pairs]
    headlines, titles = zip(*pairs, strict=True)
    assert rouge(list(headlines), list(titles))["rouge1"] == pytest.approx(sum(each) / 3)
    assert rouge.each(headlines, titles)["rouge1"] == pytest.approx(each)
    with pytest.raises(ValueError):
        rouge(["a", "b"], ["a"])


def test_the_stemmer_matches_forms_of_a_word_and_is_named():
    plain, stemmed = Rouge(stemmer=False), Rouge(stemmer=True)
    assert plain(["stock rising"], ["stocks rise"])["rouge1"] == 0
    assert stemmed(["stock rising"], ["stocks rise"])["rouge1"] == pytest.approx(100)
    assert "without stemmer" in plain.describe() and "with Porter stemmer" in stemmed.describe()


def test_rouge_l_equals_rouge_lsum_on_headlines_of_one_line():
    from rouge_score.rouge_scorer import RougeScorer

    summary_level = RougeScorer(["rougeLsum"])
    for seed in range(20):
        headline, title = (" ".join(map(str, words)) for words in random_words([7, 9], vocab_size=9, seed=seed))
        expected = 100 * summary_level.score(title, headline)["rougeLsum"].fmeasure
        assert Rouge(stemmer=False)([headline], [title])["rougeL"] == pytest.approx(expected)


def test_lead_is_the_first_words_eight_unless_told():
    assert (lead("a  b\tc d", 2), lead("a b", 8), lead("", 8)) == ("a b", "a b", "")
    assert lead("1 2 3 4 5 6 7 8 9 10") == "1 2 3 4 5 6 7 8"


# ------------------------------------------------------------------------------------------------------------- writing


@pytest.mark.long
@pytest.mark.parametrize(
    ("placement", "beam_size"), [("softmax", 1), ("dnas", 3), ("hnas_prefix", 3), slow("hnas_prefix", 1)]
)
def test_headlines_keep_the_articles_order_and_do_not_depend_on_the_batch_size(placement, beam_size):
    model = rough_model(placement, noise=0.6, seed=1, tie_embeddings=False)
    model.output.bias.data[EOS] += 1.0
    articles = random_words([5, 1, 8, 3, 8, 2, 1])
    decoding = Decoding(beam_size, max_length=6)
    alone = [generate(model, torch.tensor([[*words, EOS]]), SPECIAL, decoding)[0] for words in articles]
    expected = [TOKENIZER.decode(ids) for ids in alone]
    assert len(set(expected)) >= 3
    counts = []
    for batch_tokens in (1, 60, 10_000):
        batches = []
        found = write_texts(
            model, TOKENIZER, articles, decoding, batch_tokens, lambda every, kept=batches: kept.extend(every) or every
        )
        assert found == expected
        assert sorted(row for batch in batches for row in batch) == list(range(len(articles)))
        counts.append(len(batches))
    assert counts[0] == len(articles) > counts[1] > counts[2] == 1


def test_a_batch_of_headlines_holds_the_tokens_of_all_beams():
    assert special_tokens(TOKENIZER) == SPECIAL
    articles, sizes = random_words([3, 9, 5, 7, 2, 4]), {}
    for beam_size in (1, 2):
        batches = []
        keep = lambda every, kept=batches: kept.extend(every) or every  # noqa: E731
        write_texts(rough_model(), TOKENIZER, articles, Decoding(beam_size, max_length=4), 60, keep)
        tokens = [beam_size * len(rows) * (max(len(articles[row]) + 1 for row in rows) + 4) for rows in batches]
        assert max(tokens) <= 60
        sizes[beam_size] = len(batches)
    assert sizes[1] < sizes[2]


# ---------------------------------------------------------------------------------------------------------------- loss


class Table:
    """Articles and titles of so many words, as the data floor hands them out."""

    def __init__(self, source, target):
        self.columns = {"source": random_words(source), "target": random_words(target, seed=1)}
        self.lengths = np.array([source, target]).T + 1

    def __getitem__(self, rows):
        return {name: [column[row] for row in rows] for name, column in self.columns.items()}

    def batch(self, part):
        return PairCollator(self, PAD, BOS, EOS)[part]

    def updates(self, accumulation=1, ranks=1, batch_tokens=10_000):
        """The batches of one epoch on every rank."""
        samplers = [
            TokenBatches(self.lengths, batch_tokens, accumulation=accumulation, rank=rank, ranks=ranks)
            for rank in range(ranks)
        ]
        return [self.batch(part) for sampler in samplers for part in sampler]


TABLE = Table([6, 2, 9, 4, 1, 7, 3], [3, 1, 5, 2, 2, 6, 4])


def headline_module(model, label_smoothing=0.0):
    return HeadlineModule(model, TOKENIZER, None, None, label_smoothing=label_smoothing, scored_pairs=0, max_length=5)


def training_module(model, accumulation=1, ranks=1, label_smoothing=0.0):
    """Training with so many accumulation steps and devices."""
    module = TrainingModule(headline_module(model, label_smoothing), None, None)
    module.log = lambda *_, **__: None
    module._trainer = SimpleNamespace(
        accumulate_grad_batches=accumulation, world_size=ranks, global_step=0, current_epoch=0
    )
    return module


def validated(model, batch):
    """The task after a validation of this batch alone."""
    task = headline_module(model)
    task.begin_validation()
    with torch.no_grad():
        task.validation_step(batch, 0)
    return task


def gradients_of(loss, model):
    return torch.autograd.grad(loss, list(model.parameters()), allow_unused=True, materialize_grads=True)


@PLACEMENTS
def test_the_loss_on_real_tokens_equals_the_padded_computation(placement):
    model, (batch,) = rough_model(placement), TABLE.updates()
    source, target = batch["source"], batch["target"]
    scores, labels = model.logits(model(source, target[:, :-1])), target[:, 1:]
    padded = F.cross_entropy(scores.flatten(0, 1), labels.flatten(), ignore_index=PAD, reduction="sum")

    logits, real = target_logits(model, batch)
    assert len(logits) == len(real) == int(TABLE.lengths[:, 1].sum())
    assert_close(F.cross_entropy(logits, real, reduction="sum"), padded, **TIGHT)
    task = validated(model, batch)
    assert task.sums["tokens"] == len(real) and task.sums["loss"] == pytest.approx(padded.item(), rel=1e-5)


def test_each_token_is_predicted_from_those_before_it():
    """The loss of one pair, token by token."""
    model, batch = rough_model(), TABLE.batch(SimpleNamespace(rows=[2], divisor=6))
    expected, read = 0.0, [BOS]
    for token in [*TABLE.columns["target"][2], EOS]:
        log_p = model.logits(model(batch["source"], torch.tensor([read])))[0, -1].log_softmax(-1)
        expected -= log_p[token].item()
        read.append(token)
    assert validated(model, batch).sums["loss"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
@PLACEMENTS
def test_loss_and_gradients_of_an_update_do_not_depend_on_how_it_is_divided(placement, label_smoothing):
    """Lightning divides each loss by the accumulation and DDP averages the gradients of the ranks."""
    model = rough_model(placement)
    (batch,) = TABLE.updates()
    whole = training_module(model, label_smoothing=label_smoothing).training_step(batch, 0)
    logits, labels = target_logits(model, batch)
    assert_close(whole, F.cross_entropy(logits, labels, label_smoothing=label_smoothing), **TIGHT)  # mean over tokens
    wanted = gradients_of(whole, model)
    for accumulation, ranks in ((2, 1), (7, 1), (1, 3), (2, 2)):
        task = training_module(model, accumulation, ranks, label_smoothing)
        batches = TABLE.updates(accumulation, ranks)
        assert len(batches) == accumulation * ranks
        divided = sum(task.training_step(part, 0) for part in batches) / (accumulation * ranks)
        assert_close(divided, whole, **TIGHT)
        assert_close(gradients_of(divided, model), wanted, **TIGHT)


@pytest.mark.parametrize("size", [*range(291, 301), 8000])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_the_smoothed_loss_is_that_of_torch_bit_for_bit(dtype, smoothing, size):
    generator = torch.Generator().manual_seed(size)
    logits = (3 * torch.randn(37, size, generator=generator)).to(dtype).requires_grad_()
    labels = torch.randint(size, (37,), generator=generator)
    precise = logits.to(torch.promote_types(dtype, torch.float32))  # a sum in bfloat16 has only two or three digits
    expected = F.cross_entropy(precise, labels, reduction="sum", label_smoothing=smoothing)
    (wanted,) = torch.autograd.grad(expected, logits)
    plain, smoothed = smoothed_cross_entropy(logits, labels, smoothing)
    (found,) = torch.autograd.grad(smoothed, logits)
    assert torch.equal(smoothed, expected) and torch.equal(found, wanted)
    assert torch.equal(plain, F.cross_entropy(precise, labels, reduction="sum"))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_training_shows_the_loss_without_smoothing_and_logs_the_objective_if_it_differs(smoothing):
    model, (batch,) = rough_model(), TABLE.updates()
    task, logged = training_module(model, label_smoothing=smoothing), {}
    task.log = lambda name, value, prog_bar=False: logged.update({name: (float(value), prog_bar)})
    minimized = task.training_step(batch, 0).item()
    task.log_loss(task.sums())
    logits, labels = target_logits(model, batch)
    loss, shown = logged.pop("train/loss")
    assert shown and loss == pytest.approx(F.cross_entropy(logits, labels).item(), rel=1e-12)
    logged.pop("step")
    if not smoothing:
        assert logged == {} and minimized == pytest.approx(loss, rel=1e-12)
    else:
        assert logged == {"train/objective": (pytest.approx(minimized, rel=1e-12), False)} and minimized != loss


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
@pytest.mark.parametrize(("accumulation", "ranks"), [(2, 1), (7, 1), (1, 3), (2, 2)])
def test_the_logged_loss_of_an_update_does_not_depend_on_how_it_is_divided(accumulation, ranks, label_smoothing):
    model = rough_model()

    def logged(accumulation, ranks):
        """The metrics of an update. The sums of the ranks are added up, as `all_reduce` does it."""
        found, sums, batches = {}, [], TABLE.updates(accumulation, ranks)
        for rank in range(ranks):
            task = training_module(model, accumulation, ranks, label_smoothing)
            for number in range(accumulation):
                task.training_step(batches[rank * accumulation + number], number)
            task._trainer.strategy = SimpleNamespace(reduce=lambda here, reduce_op: sums.append(here) or sum(sums))
            task.log = lambda name, value, prog_bar=False: found.update({name: float(value)})
            task.log_loss(task.sums())
        return found

    whole = logged(1, 1)
    assert len(whole) == (2 if label_smoothing else 1)
    assert logged(accumulation, ranks) == pytest.approx(whole, rel=1e-5)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_loss_that_is_not_finite_makes_every_gradient_nan(value):
    """Those of the other ranks and microbatches, which are added to them, included."""
    weights = torch.ones(3, requires_grad=True)
    spread_non_finite(weights.sum() + value).backward()
    assert weights.grad.isnan().all()


def test_a_finite_loss_and_its_gradients_are_not_changed():
    model, (batch,) = rough_model(), TABLE.updates()
    found = []
    for change in (lambda loss: loss, spread_non_finite):
        model.zero_grad()
        loss = change(headline_module(model).loss(batch).objective)
        loss.backward()
        found.append([loss, *(parameter.grad.clone() for parameter in model.parameters())])
    assert all(torch.equal(first, second) for first, second in zip(*found, strict=True))


def test_a_finite_loss_with_an_infinite_gradient_stops_before_the_update(monkeypatch, tmp_path):
    def poison(self, loss, *_, **__):
        loss.backward()
        self.model.output.bias.grad[3] = float("inf")

    monkeypatch.setattr(TrainingModule, "backward", poison)
    with pytest.raises(NonFiniteLoss, match="a gradient is not finite at step 1"):
        runs.tiny_run(tmp_path)


# --------------------------------------------------------------------------------------------- scripts other than Latin

SUBJECTS_VERBS_OBJECTS_PLACES = {
    "hi": ("सरकार मंत्री किसान टीम", "चुनती देखती खोलती", "योजना बैठक सड़क बाज़ार", "दिल्ली मुंबई पटना"),
    "zh": ("政府 部长 农民 球队", "宣布 讨论 开放", "计划 会议 公路 市场", "北京 上海 成都"),
    "ar": ("الحكومة الوزير الفلاح الفريق", "تعلن تناقش تفتح", "الخطة الجلسة الطريق السوق", "القاهرة الرباط بغداد"),
}


def headlines_in(language, folder):
    """Files of sentences with their first words as titles, in which a character of validation is not in train."""
    words = [words.split() for words in SUBJECTS_VERBS_OBJECTS_PLACES[language]]
    space, unseen = ("", "龘") if language == "zh" else (" ", "ऋ" if language == "hi" else "ڭ")
    rows = [space.join(row) for row in itertools.product(*words)]
    pairs = [(row + space + words[0][0], row.removesuffix(row.split(" ")[-1]) or row[:4]) for row in rows]
    files = {"train": pairs[::2] * 3, "validation": [*pairs[1:40:2], (f"{pairs[1][0]}{unseen}", pairs[1][1])]}
    for split, its in files.items():
        lines = (json.dumps({"article": article, "title": title}) for article, title in its)
        (folder / f"{split}.jsonl").write_text("\n".join(lines))
    return [f"data.{split}={folder}/{split}.jsonl" for split in files]


@pytest.mark.training
@pytest.mark.slow
@pytest.mark.parametrize("tokenizer", ["sentencepiece", "wordpiece"])
@pytest.mark.parametrize("language", SUBJECTS_VERBS_OBJECTS_PLACES)
def test_headlines_in_any_script_are_learned_and_scored(monkeypatch, tmp_path, capsys, language, tokenizer):
    run, pieces = tmp_path / "run", 45 if (language, tokenizer) == ("zh", "sentencepiece") else 150  # not whole texts
    typed = ["data=pair_files", *headlines_in(language, tmp_path), "data.batch_tokens=1500", "task.validations=10"]
    typed += ["task.max_steps=200", f"tokenizer={tokenizer}", f"tokenizer.vocab_size={pieces}", "optimizer.lr=5.0e-3"]
    typed += ["trainer.accelerator=cpu", f"paths.cache_dir={tmp_path}/cache", "decoding.beam_size=2"]
    train(runs.checked(runs.composed("task=gigaword", *runs.SIZES, *typed, "model.dropout=0")), run)
    assert re.search(r"validation: 1 unknown character \(0\.\d+%\)", capsys.readouterr().out)
    rows = list(csv.DictReader((run / "metrics.csv").open()))
    moving = [float(row["val/rougeL"]) for row in rows if row["val/rougeL"]]
    found = runs.summary_of(run)["validation"]
    assert moving[-1] > moving[0] + 10, moving
    assert found["metrics"]["rougeL"] > 50
    assert json.loads((run / "rouge.json").read_text()) == {"words": "unicode"} and found["undefined"]["rougeL"] == 0
    assert runs.call(monkeypatch, "eval", f"run={run}") == 0
    assert json.loads((run / "eval_validation.json").read_text())["metrics"] == found["metrics"]
    capsys.readouterr()
    assert runs.call(monkeypatch, "eval", f"run={run}", "task.rouge_words=ascii") == 0
    assert "ROUGE-L F1 is undefined for 100.0% of the references" in " ".join(capsys.readouterr().out.split())
    assert json.loads((run / "eval_validation_2.json").read_text())["metrics"]["rougeL"] == 0
    assert runs.call(monkeypatch, "eval", f"run={run}", "task.rouge_words=unicode", "task.rouge_lsum=true") == 0
    again = json.loads((run / "eval_validation_3.json").read_text())["metrics"]
    assert again["rougeL"] == found["metrics"]["rougeL"] and again["rougeLsum"] == pytest.approx(again["rougeL"])
