"""Attention against gold alignments: scores by hand, thresholds, subwords to words, null arms, and IBM model 1."""

from types import SimpleNamespace

import numpy as np
import pytest
import runs
import torch
from builders import FIRST_WORD, SPECIAL, rough_model

from attnorm import load_run
from attnorm.analysis.statistics.corpus import pseudo_values
from attnorm.attention import build_normalizer, observe
from attnorm.errors import ConfigError
from attnorm.experiments.alignments import alignment_error
from attnorm.experiments.alignments.alignment_error import (
    AlignmentErrorRate,
    alignment_scores,
    best_threshold,
    cross_attention,
    diagonal,
    link_counts,
    scored,
    to_words,
    token_counts,
    uniform,
    word_attention,
)
from attnorm.experiments.alignments.ibm_model_1 import IBMModel1

# 2 target words, 3 source words
WEIGHTS = np.array([[0.7, 0.2, 0.1], [0.3, 0.3, 0.4]])
SURE = {(0, 0), (1, 1)}  # (source, target)
POSSIBLE = {(2, 1)}


def error_rate(predicted, sure, possible):
    """AER, precision and recall as they are defined, from sets of links."""
    both = len(predicted & sure) + len(predicted & possible)
    aer = 1 - both / (len(predicted) + len(sure))
    return 100 * aer, 100 * len(predicted & possible) / len(predicted), 100 * len(predicted & sure) / len(sure)


def test_counts_of_a_case_by_hand():
    # links of at least .3: (0, 0), (0, 1), (1, 1), (2, 1); sure are the first and third, possible also the last
    assert link_counts([WEIGHTS], [SURE], 0.3, [POSSIBLE]).tolist() == [[4, 2, 2, 3]]
    assert link_counts([WEIGHTS], [SURE], 0.35, [POSSIBLE]).tolist() == [[2, 2, 1, 2]]
    assert link_counts([WEIGHTS], [SURE], 0.35).tolist() == [[2, 2, 1, 1]]
    assert link_counts([np.zeros((2, 2))], [{(0, 0)}], 0.0).tolist() == [[0, 1, 0, 0]]  # no attention is no link
    assert AlignmentErrorRate.of(np.array([4, 2, 2, 3])) == pytest.approx(100 * (1 - 5 / 6))
    assert AlignmentErrorRate.of(np.array([2, 2, 1, 1])) == pytest.approx(50)
    assert AlignmentErrorRate.of(np.zeros((3, 4))).tolist() == [0, 0, 0]
    found = alignment_error.AlignmentScores(1.0, np.array([[0, 0, 0, 0]]))
    assert found.error_rate == 0 and np.isnan(found.precision) and np.isnan(found.recall)


def test_scores_are_those_of_all_links_together():
    chance = np.random.default_rng(0)
    weights = [chance.random((t, s)) for t, s in ((3, 4), (2, 2), (6, 1))]
    every = [{(s, t) for t in range(it.shape[0]) for s in range(it.shape[1])} for it in weights]
    sure = [{link for link in sorted(pairs) if chance.random() < 0.4} for pairs in every]
    found = alignment_error.AlignmentScores(0.6, link_counts(weights, sure, 0.6))
    predicted = {(i, s, t) for i, it in enumerate(weights) for t, s in np.argwhere(it >= 0.6)}
    gold = {(i, *link) for i, links in enumerate(sure) for link in links}
    assert (found.error_rate, found.precision, found.recall) == pytest.approx(error_rate(predicted, gold, gold))
    assert pseudo_values(found.counts, AlignmentErrorRate.of).shape == (3,)  # so that it can be compared


@pytest.mark.parametrize(
    ("weights", "sure", "message"),
    [
        ([WEIGHTS], [{(3, 0)}], r"pair 0 has no words \(3, 0\)"),
        ([WEIGHTS], [{(0, -1)}], r"no words \(0, -1\)"),
        ([WEIGHTS], [SURE, SURE], "one entry for each of the 1 pairs, not 2"),
        ([WEIGHTS * np.nan], [SURE], "those of pair 0 are not"),
    ],
)
def test_tables_that_do_not_fit_are_refused(weights, sure, message):
    with pytest.raises(ValueError, match=message):
        link_counts(weights, sure, 0.1)


def test_the_best_threshold_is_that_of_a_search():
    chance = np.random.default_rng(1)
    for _ in range(20):
        weights = [chance.integers(0, 6, (4, 5)) / 5 for _ in range(3)]  # with equal weights and zeros
        sure = [{tuple(link) for link in chance.integers(0, 4, (5, 2)).tolist()} for _ in weights]
        others = [{tuple(link) for link in chance.integers(0, 4, (3, 2)).tolist()} for _ in weights]
        rates = {
            value: AlignmentErrorRate.of(link_counts(weights, sure, value, others).sum(0)).item()
            for value in sorted({*np.concatenate([it.ravel() for it in weights]).tolist()} - {0.0})
        }
        best = best_threshold(weights, sure, others)
        assert best == max(value for value, rate in rates.items() if rate == min(rates.values()))
    with pytest.raises(ValueError, match="at least one must be positive"):
        best_threshold([np.zeros((2, 2))], [{(0, 0)}])


def test_the_threshold_is_never_chosen_on_the_pairs_that_are_scored():
    """The test pairs are best at another threshold, which a choice that saw them would move to."""
    chance = np.random.default_rng(2)
    selection, test = ([chance.random((6, 6)) for _ in range(5)] for _ in range(2))
    sharp = [{(s, t) for t, s in np.argwhere(it > 0.8)} for it in selection]
    broad = [{(s, t) for t, s in np.argwhere(it > 0.3)} for it in test]
    found = scored((selection, sharp), (test, broad))
    assert found.threshold == best_threshold(selection, sharp) > 0.8
    assert best_threshold(test, broad) < 0.4 and best_threshold(selection + test, sharp + broad) < 0.8
    none = [set() for _ in test]
    assert scored((selection, sharp), (test, none)).threshold == found.threshold
    assert found.counts.tolist() == link_counts(test, broad, found.threshold).tolist()


def test_the_scores_of_a_run_take_the_threshold_from_the_other_split(monkeypatch):
    attention = {"validation": [np.array([[0.9, 0.1], [0.2, 0.8]])], "test": [np.array([[0.6, 0.4], [0.5, 0.5]])]}
    links = {"validation": [{(0, 0), (1, 1)}, {(5, 5)}], "test": [{(0, 0), (1, 0), (1, 1), (0, 1)}]}
    source = SimpleNamespace(links=links.__getitem__)
    limits = SimpleNamespace(max_valid=1, max_test=None)
    run = SimpleNamespace(task=SimpleNamespace(source=lambda: source, cfg=SimpleNamespace(data=limits)))
    monkeypatch.setattr(alignment_error, "word_attention", lambda run, split, **_: attention[split])
    found = alignment_scores(run)
    assert found.threshold == 0.8 and found.counts.tolist() == [[0, 4, 0, 0]] and found.error_rate == 100
    assert alignment_scores(run, selection="test", split="validation").threshold == 0.4
    with pytest.raises(ConfigError, match="split=test: must differ from selection"):
        alignment_scores(run, selection="test")
    run = SimpleNamespace(task=SimpleNamespace(source=SimpleNamespace))
    with pytest.raises(ConfigError, match="has no gold alignments; data=bible_alignments has"):
        alignment_error.gold_links(run, "test")


def test_subwords_become_words_by_hand():
    # target: words of 2 and 1 tokens, and the end; source: words of 1 and 2 tokens, and the end
    weights = np.array([[0.1, 0.2, 0.3, 0.4], [0.5, 0.1, 0.2, 0.2], [0.0, 0.9, 0.05, 0.05], [1.0, 0.0, 0.0, 0.0]])
    expected = [[(0.1 + 0.5) / 2, (0.5 + 0.3) / 2], [0.0, 0.95]]
    np.testing.assert_allclose(to_words(weights, [2, 1], [1, 2]), expected)
    weights = np.full((2, 2), 0.5)  # words that were truncated have no attention
    np.testing.assert_allclose(to_words(weights, [1, 2, 1], [3]), [[1.0], [1.0], [0.0]])  # word 1 keeps its first token
    np.testing.assert_allclose(to_words(weights, [1], [2, 1]), [[1.0, 0.0]])
    np.testing.assert_allclose(to_words(weights, [0, 2], [1]), [[0.0], [0.5]])  # a word without tokens


def test_tokens_are_counted_word_by_word():
    """They agree with `starts_word` for pieces that the tokenizer knows, and are right for those that it does not."""
    from attnorm.data.tokenizers.sentencepiece import SentencePiece

    texts = ["the lower the better", "a newer lower tower"] * 5
    tokenizer = SentencePiece.from_settings(lambda count: texts, vocab_size=22, model_type="bpe")
    source, target = "the newer tower", "lower a the"
    target_counts, source_counts = token_counts(tokenizer, source, target)
    for text, counts in ((source, source_counts), (target, target_counts)):
        [ids] = tokenizer.encode([text])
        starts = np.flatnonzero(np.append(tokenizer.starts_word(np.array(ids)), True))
        assert counts == np.diff(starts).tolist() and max(counts) > 1
    strange, _ = token_counts(tokenizer, "", "a ξψ the")
    assert sum(strange) == len(tokenizer.encode(["a ξψ the"])[0]) and len(strange) == 3


SOURCES = [[FIRST_WORD, 5, 6, 7], [4, 8], [9] * 6]
TARGETS = [[6, 4], [5, 7, 8, 3, 4], [3]]


@pytest.mark.parametrize("normalizer", [None, "dnas", "sinkhorn", "softmax"])
def test_attention_does_not_depend_on_the_other_pairs_of_a_batch(normalizer):
    model = rough_model()
    own = None if normalizer is None else build_normalizer(normalizer)
    together = cross_attention(model, SOURCES, TARGETS, SPECIAL, own)
    for source, target, found in zip(SOURCES, TARGETS, together, strict=True):
        assert found.shape == (len(target) + 1, len(source) + 1)
        np.testing.assert_allclose(found.sum(1), 1, atol=1e-6)
        [alone] = cross_attention(model, [source], [target], SPECIAL, own)
        np.testing.assert_allclose(found, alone, atol=1e-6)


def test_a_normalizer_is_applied_to_the_trained_scores():
    """Softmax gives the model's own attention; sinkhorn, run long enough, gives all keys the same mass."""
    model = rough_model()
    plain = cross_attention(model, SOURCES, TARGETS, SPECIAL)
    again = cross_attention(model, SOURCES, TARGETS, SPECIAL, build_normalizer("softmax"))
    balanced = cross_attention(model, SOURCES, TARGETS, SPECIAL, build_normalizer("sinkhorn", n_iters=200))
    for own, same, even in zip(plain, again, balanced, strict=True):
        np.testing.assert_allclose(own, same, atol=1e-6)
        np.testing.assert_allclose(even.sum(0), even.shape[0] / even.shape[1], atol=1e-4)
        assert np.abs(own - even).max() > 1e-3


def test_a_row_is_the_step_that_predicts_the_token():
    """A later target token changes only the rows after the step that reads it."""
    model = rough_model()
    [before], [after] = (cross_attention(model, [SOURCES[0]], [[6, 4, last, 5]], SPECIAL) for last in (7, 8))
    same = np.isclose(before, after, atol=1e-12).all(1).tolist()
    assert same == [True, True, True, False, False]  # rows 0 to 2 predict tokens 0 to 2; row 3 has read token 2


def test_null_arms():
    assert uniform(2, 4).tolist() == [[0.25] * 4] * 2
    np.testing.assert_allclose(diagonal(2, 2), [[1, 0.5], [0.5, 1]])
    np.testing.assert_allclose(diagonal(2, 4)[0], [1 - 0.125, 1 - 0.125, 1 - 0.375, 1 - 0.625])


def test_ibm_model_1_by_hand():
    """Source 0 with target 0, and source 0 1 with target 0 1; the empty word is 2. One iteration from 1/2 each.

    Pair 1: target 0 is shared by source 0 and the empty word: 1/2 each. Pair 2: each target token is shared by three.
    Counts: t(.|0) = (1/2 + 1/3, 1/3), t(.|1) = (1/3, 1/3), t(.|empty) = (1/2 + 1/3, 1/3).
    """
    pairs = ([[0], [0, 1]], [[0], [0, 1]])
    model = IBMModel1(*pairs, vocabulary=2, iterations=1)
    np.testing.assert_allclose(model.probabilities, [[5 / 7, 2 / 7], [1 / 2, 1 / 2], [5 / 7, 2 / 7]])
    total = 5 / 7 + 1 / 2 + 5 / 7
    np.testing.assert_allclose(model.posteriors([0, 1], [0])[0], [5 / 7 / total, 1 / 2 / total])


def test_ibm_model_1_learns_which_words_occur_together_and_counts_repeated_ones():
    chance = np.random.default_rng(3)
    sources = [chance.integers(0, 6, 4).tolist() for _ in range(200)]
    targets = [[(word + 1) % 6 for word in chance.permutation(source)] for source in sources]
    model = IBMModel1(sources, targets, vocabulary=6, iterations=20)
    assert (model.probabilities[:6].argmax(1) == (np.arange(6) + 1) % 6).all()
    np.testing.assert_allclose(model.probabilities.sum(1), 1)
    repeated = IBMModel1([[2, 2], [2]], [[0], [1]], vocabulary=3, iterations=1)
    np.testing.assert_allclose(repeated.probabilities[2], [4 / 7, 3 / 7, 0])  # 2/3 and 1/2
    model = IBMModel1([[0, 1]], [[0, 1]], vocabulary=3)  # a token that nothing generates has no link
    assert model.posteriors([0, 1], [2]).tolist() == [[0.0, 0.0]]
    assert np.isfinite(model.posteriors([2], [0])).all()


def test_ibm_model_1_increases_the_likelihood():
    chance = np.random.default_rng(4)
    pairs = [[chance.integers(0, 5, size).tolist() for _ in range(30)] for size in (4, 3)]

    def likelihood(iterations):
        model = IBMModel1(*pairs, vocabulary=5, iterations=iterations)
        return sum(
            np.log(model.probabilities[np.array([*source, 5])][:, target].sum(0)).sum()
            for source, target in zip(*pairs, strict=True)
        )

    values = [likelihood(iterations) for iterations in range(6)]
    assert (np.diff(values) > 0).all()


@pytest.mark.slow
@pytest.mark.training
def test_the_words_of_a_run_are_read_from_its_own_attention():
    """Both steps, against loops over the words and the tokens of single pairs."""
    run = load_run(runs.finished_run("translation"))
    data = run.task.splits(run.tokenizer, ("validation",))["validation"]
    predicts, reads = (word_attention(run, "validation", step=step) for step in ("predicts", "reads"))
    for row in (0, 1, len(data) - 1):
        seen = []

        def see(name, weights, allowed, seen=seen):
            if name.endswith("cross"):
                seen.append(weights[0].mean(0))

        source = torch.tensor([[*data.rows["source"][row], run.tokenizer.eos_id]])
        target = torch.tensor([[run.tokenizer.bos_id, *data.rows["target"][row]]])
        with torch.no_grad(), observe(run.model, see):
            run.model(source, target)
        tokens = torch.stack(seen).mean(0).numpy()
        of_target, of_source = (
            spans_of(run.tokenizer, data.texts[side][row].split(), len(data.rows[side][row]))
            for side in ("target", "source")
        )
        assert predicts[row].shape == reads[row].shape == (len(of_target), len(of_source))
        for t, s in np.ndindex(predicts[row].shape):
            for found, later in ((predicts, 0), (reads, 1)):
                expected = sum(tokens[i + later, j] for i in of_target[t] for j in of_source[s])
                assert found[row][t, s] == pytest.approx(expected / max(len(of_target[t]), 1), abs=1e-5)


def spans_of(tokenizer, words, count):
    """The numbers of the tokens of each word, of which the first `count` were kept."""
    spans, first = [], 0
    for word in words:
        [ids] = tokenizer.encode([word])
        spans.append(range(first, min(first + len(ids), count)))
        first += len(ids)
    return spans


@pytest.mark.slow
@pytest.mark.training
def test_only_runs_between_two_texts_have_word_attention():
    run = load_run(runs.finished_run("mlm"))
    with pytest.raises(ConfigError, match="its task does not map a text to a text"):
        word_attention(run, "validation")
