"""Scores of captions: CIDEr-D and BLEU-4 equal those of other implementations, and each follows from its examples."""

import random

import numpy as np
import pytest

from attnorm.data.synthetic.scenes.descriptions import captions
from attnorm.tasks.captioning.metric import CaptionMetric, CiderD, UnsmoothedBleu

WORDS = ["a", "the", "red", "blue", "cat", "dog", "sits", "on", "mat", "near", "tree", "house"]


def random_texts(seed, images=40):
    """References (1 to 5 per image, of 0 to 12 words) and one caption per image."""
    draw = random.Random(seed)

    def text():
        return " ".join(draw.choices(WORDS, k=draw.choice([0, 1, 2, 3, 5, 8, 12])))

    return [[text() for _ in range(draw.randint(1, 5))] for _ in range(images)], [text() for _ in range(images)]


def scenes(images=30):
    """Captions of scenes; each is scored with one of another scene, or one of its own that is left out."""
    written = [[it.text for it in captions("train", index)] for index in range(images)]
    given = [texts[4] if index % 2 else written[index - 1][0] for index, texts in enumerate(written)]
    return [texts[:4] for texts in written], given


@pytest.mark.parametrize("case", ["scenes", 0, 1, 2])
def test_cider_d_equals_that_of_the_coco_evaluation(case):
    cider = pytest.importorskip("pycocoevalcap.cider.cider", reason="pycocoevalcap is not installed")
    references, given = scenes() if case == "scenes" else random_texts(case)
    mean, each = cider.Cider().compute_score(dict(enumerate(references)), {i: [it] for i, it in enumerate(given)})
    ours = CiderD(references).each(given)
    # sums of at most a few hundred products in float64
    np.testing.assert_allclose(ours, 100 * np.asarray(each), rtol=1e-12, atol=1e-12)
    assert np.mean(ours) == pytest.approx(100 * mean, rel=1e-12)
    assert np.std(ours) > 1


def test_cider_d_by_hand():
    """Two images; 'red' occurs in both, so its weight is 0. The caption 'cat' shares one word of weight log 2."""
    found = CiderD([["red cat"], ["red dog"]]).each(["cat", "red dog"])
    # n = 1: cosine 1 with the penalty for lengths of 1 and 2 words; n = 2 to 4: nothing
    assert found[0] == pytest.approx(1000 / 4 * np.exp(-1 / 72))
    assert found[1] == pytest.approx(1000 / 2)  # n = 1 and n = 2
    assert CiderD([["red cat"]]).each(["red cat"]) == [0.0]
    repeated = CiderD([["a cat"], ["a dog"]])
    assert repeated.each(["cat cat", ""])[0] < repeated.each(["cat it", ""])[0]


def test_bleu_equals_that_of_all_captions():
    from sacrebleu.metrics.bleu import BLEU

    references, given = scenes()
    metric = CaptionMetric(references)
    whole = BLEU(tokenize="none", smooth_method="none").corpus_score(given, list(zip(*references, strict=True)))
    assert metric(given)["BLEU-4"] == pytest.approx(whole.score, rel=1e-12) and 5 < whole.score < 95
    sums = metric.sums(given)
    assert sum(sums["bleu_hypothesis"]) == whole.sys_len and sum(sums["bleu_reference"]) == whole.ref_len


def test_rouge_compares_the_same_words_as_the_other_scores_and_takes_the_best_reference():
    """rouge-score by itself drops letters with accents, and takes "m dchen" for "mädchen"."""
    metric = CaptionMetric([["Ein Mädchen läuft."], ["the dog's t-shirt"]])
    assert metric.each(["ein mädchen läuft", "the dog's t-shirt"])["rougeL"] == [100.0, 100.0]
    assert metric.each(["ein m dchen l uft", "the dog s shirt"])["rougeL"] == pytest.approx([25.0, 200 / 7])
    metric = CaptionMetric([["a red cat", "one two three four"], ["x y"]])
    assert metric.each(["one two five four", "x z"])["rougeL"] == pytest.approx([75.0, 50.0])


def test_bleu_of_each_part_of_the_captions():
    """As the jackknife uses it: several totals at once, short captions, and captions without a match."""
    references, given = random_texts(3)
    metric = CaptionMetric(references)
    columns = np.stack(list(metric.sums(given).values()), -1)
    parts = [slice(0, 3), slice(3, 20), slice(0, 40)]
    found = UnsmoothedBleu.of(np.stack([columns[part].sum(0) for part in parts]))
    for value, part in zip(found, parts, strict=True):
        texts = [[*it, *[None] * (5 - len(it))] for it in references[part]]
        expected = metric.bleu.corpus_score(given[part], list(zip(*texts, strict=True)))
        assert value == pytest.approx(expected.score, rel=1e-12)
    assert UnsmoothedBleu.of(np.zeros(len(UnsmoothedBleu.columns))) == 0


def test_bleu_equals_that_of_the_coco_evaluation():
    other = pytest.importorskip("pycocoevalcap.bleu.bleu", reason="pycocoevalcap is not installed")
    references, given = scenes()
    found, _ = other.Bleu(4).compute_score(dict(enumerate(references)), {i: [it] for i, it in enumerate(given)}, 0)
    # that one adds 1e-15 to each count of matches and 1e-9 to each total
    assert CaptionMetric(references)(given)["BLEU-4"] == pytest.approx(100 * found[3], rel=1e-8)


def test_case_and_punctuation_do_not_count():
    references, given = scenes(10)
    loud = [f"{text.upper()}!" for text in given]
    assert CaptionMetric(references)(loud) == CaptionMetric(references)(given)


def test_scores_need_a_caption_for_each_image():
    with pytest.raises(ValueError):
        CiderD([["a"], ["b"]]).each(["a"])
