"""Translation: BLEU and chrF are those of sacrebleu, whole runs of both models, fertility, coverage and alignments."""

import json
import sys

import numpy as np
import pandas as pd
import pyarrow.parquet as parquet
import pytest
import runs
import sacrebleu
import torch

import attnorm
from attnorm.analysis.alignment import alignment, draw_alignments
from attnorm.analysis.scores import corpus_metrics_of, example_table
from attnorm.analysis.statistics.corpus import pseudo_values
from attnorm.errors import ConfigError, RunError, UserError
from attnorm.run.run import Run
from attnorm.tasks import bleu as scores
from attnorm.tasks.bleu import CORPUS_METRICS, Bleu, ChrF, Scorer, bleu_tokenizer, corpus_scores, sentence_chrf
from attnorm.tasks.results import CORPUS_METRICS as KEY
from attnorm.tasks.results import Predictions
from attnorm.tasks.task import task_of

REFERENCES = ["the cat sat on the mat .", "there is a dog in the garden today .", "hello", "two old men talk", "no"]
TRANSLATIONS = ["the cat sat on a mat .", "a dog is in the garden .", "hello", "", "two young men talk about no one"]


def totals(metric, table):
    return np.stack([table[column] for column in metric.columns], -1).astype(float)


# -------------------------------------------------------------------------------------------------------------- scores


@pytest.mark.parametrize("rows", [slice(None), slice(0, 3), slice(1, 2), slice(3, 4)])
def test_bleu_and_chrf_from_counts_are_those_of_sacrebleu(rows):
    found = corpus_scores(Scorer(None).statistics(TRANSLATIONS[rows], REFERENCES[rows]))
    assert found["BLEU"] == pytest.approx(sacrebleu.corpus_bleu(TRANSLATIONS[rows], [REFERENCES[rows]]).score)
    assert found["chrF"] == pytest.approx(sacrebleu.corpus_chrf(TRANSLATIONS[rows], [REFERENCES[rows]]).score)
    pairs = zip(TRANSLATIONS[rows], REFERENCES[rows], strict=True)
    of_sentences = sentence_chrf(Scorer(None).statistics(TRANSLATIONS[rows], REFERENCES[rows]))
    assert of_sentences == pytest.approx([sacrebleu.sentence_chrf(text, [gold]).score for text, gold in pairs])


def test_bleu_has_the_words_of_the_target_language(monkeypatch):
    """Chinese texts that differ by a word, which the default of sacrebleu takes for a word each."""
    texts, golds = ["我们今天去公园散步。"], ["我们昨天去公园散步。"]
    for words in ("13a", "zh", "char"):
        found = corpus_scores(Scorer(None, words).statistics(texts, golds))["BLEU"]
        assert found == pytest.approx(sacrebleu.corpus_bleu(texts, [golds], tokenize=words).score)
        assert (found > 50) == (words != "13a")
    assert "tok:zh" in Scorer(None, "zh").describe(golds)
    for language, words in {"en": "13a", "de": "13a", "zh": "zh", "zh-cn": "zh", "th": "char"}.items():
        assert bleu_tokenizer(language) == words
    for language in ("ja", "ko"):
        monkeypatch.setattr(scores, "find_spec", lambda name: None)
        assert bleu_tokenizer(language) == "char"
        with pytest.raises(UserError, match=rf"bleu_tokenizer={language}-mecab: .*'sacrebleu\[{language}\]'.*=char"):
            Scorer(None, f"{language}-mecab")
        monkeypatch.setattr(scores, "find_spec", lambda name: name)
        assert bleu_tokenizer(language) == f"{language}-mecab"


@pytest.mark.parametrize("metric", [Bleu, ChrF])
def test_pseudo_values_come_from_leaving_out_one_sentence(metric):
    table = Scorer(None).statistics(TRANSLATIONS, REFERENCES)
    score = {Bleu: sacrebleu.corpus_bleu, ChrF: sacrebleu.corpus_chrf}[metric]
    whole, n, expected = score(TRANSLATIONS, [REFERENCES]).score, len(REFERENCES), []
    for i in range(n):
        kept = [j for j in range(n) if j != i]
        without = score([TRANSLATIONS[j] for j in kept], [[REFERENCES[j] for j in kept]]).score
        expected.append(n * whole - (n - 1) * without)
    assert pseudo_values(totals(metric, table), metric.of) == pytest.approx(expected)


def test_texts_are_detokenized_before_they_are_scored():
    assert Scorer("en").plain(["a boy &apos;s hat , on fire ."]) == ["a boy's hat, on fire."]
    note = Scorer("en").describe(["lower case ."])
    assert "nrefs:1|case:mixed" in note and "sacremoses (en)" in note and "not comparable" in note
    assert "not comparable" not in Scorer(None).describe(["A sentence ."])


@pytest.mark.slow
def test_the_language_of_the_targets_decides_how_texts_are_detokenized(tmp_path):
    def recorded(*typed):
        return runs.checked(runs.composed("task=translation", *typed))

    for file in ("train.en", "train.fr", "val.en", "val.fr"):
        (tmp_path / file).write_text("a b\n")
    files = ("data=parallel_files", f"data.dir={tmp_path}", "data.source_language=en", "data.target_language=fr")
    assert recorded(*files)["task"]["detokenize"] == "fr" and recorded(*files)["task"]["bleu_tokenizer"] == "13a"
    assert task_of(recorded(*files)).scorer().language == "fr"
    assert recorded(*files, "task.detokenize=en")["task"]["detokenize"] == "en"
    assert recorded(*files, "task.detokenize=null")["task"]["detokenize"] is None
    assert recorded()["task"]["detokenize"] == "en"  # the built-in corpus
    for file in ("train", "val"):
        (tmp_path / f"{file}.fr").rename(tmp_path / f"{file}.fra")
    files = (*files[:-1], "data.target_language=fra")
    with pytest.raises(ConfigError, match=r"^data\.target_language=fra: task\.detokenize=auto needs a two-letter code"):
        recorded(*files)
    assert recorded(*files, "task.detokenize=fr")["task"]["detokenize"] == "fr"
    assert recorded(*files, "task.detokenize=null")["task"]["detokenize"] is None
    with pytest.raises(ConfigError, match=r"^data\.target_language=null: "):
        recorded(*files[:-1], "data.target_language=null")


@pytest.mark.parametrize("package", ["sacrebleu", "sacremoses"])
def test_a_missing_package_is_named_before_anything_is_trained(monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError, match=rf"{package}: pip install {package}"):
        Scorer("en")


# ---------------------------------------------------------------------------------------------------------- whole runs


MODELS = pytest.mark.parametrize("task", ["translation", "translation_lstm"])


@MODELS
@pytest.mark.training
def test_a_run_leaves_its_translations_and_what_metrics_are_computed_from(task):
    run = runs.finished_run(task)
    assert runs.files_of(run) >= {"samples/validation.txt", "predictions/validation.parquet"}
    scores, table = runs.summary_of(run)["validation"], pd.read_parquet(run / "predictions" / "validation.parquet")
    assert set(scores["metrics"]) == {"BLEU", "chrF", "loss"} and runs.summary_of(run)["primary"] == "BLEU"
    texts = (run / "samples" / "validation.txt").read_text().splitlines()
    assert texts == list(table["output"]) and len(texts) == 20
    plain = [Scorer("en").plain(list(table[name])) for name in ("output", "reference")]
    assert scores["metrics"]["chrF"] == pytest.approx(sacrebleu.corpus_chrf(plain[0], [plain[1]]).score)
    assert "nrefs:1" in scores["note"] and "coverage" in scores["note"]
    assert set(scores["baselines"]) == {"copy"}


@pytest.mark.training
def test_runs_are_compared_on_bleu_although_it_is_a_metric_of_the_corpus():
    run = runs.finished_run("translation")
    found = example_table(Run(run), "validation")
    assert found.source == "half" and found.metrics()[:2] == ["BLEU", "chrF"]
    ids = list(found.rows.index)
    plain = [Scorer("en").plain(list(found.rows[name])) for name in ("output", "reference")]
    assert found.overall("chrF", ids) == pytest.approx(sacrebleu.corpus_chrf(plain[0], [plain[1]]).score)
    assert np.isfinite(found.values("chrF", ids)).all() and len(ids) == 10


def test_metrics_that_a_table_names_are_imported_from_trusted_packages_only(tmp_path, caplog):
    run = Run(tmp_path)
    path = run.predictions_file()

    def write(place):
        table = Predictions(["a"], ["b"], ["c"], {}, [1.0], [1], corpus_metrics=CORPUS_METRICS).table()
        parquet.write_table(table.replace_schema_metadata({KEY: json.dumps({"BLEU": place})}), path)

    Predictions(["a"], ["b"], ["c"], {}, [1.0], [1], corpus_metrics=CORPUS_METRICS).write(path)
    assert corpus_metrics_of(run) == CORPUS_METRICS
    write("somebody.metrics:Bleu")
    assert corpus_metrics_of(run) == {} and "ATTNORM_TRUST" in caplog.text
    write("attnorm.tasks.bleu:Scorer")
    with pytest.raises(RunError, match="BLEU cannot be computed"):
        corpus_metrics_of(run)


@MODELS
@pytest.mark.training
def test_eval_and_generate_use_a_fertility_that_no_source_word_exceeds(monkeypatch, tmp_path, capsys, task):
    run = runs.copied_run(tmp_path, task)
    assert runs.call(monkeypatch, "eval", f"run={run}", "decoding.fertility=0.1", "decoding.max_length=12") == 0
    record = json.loads((run / "eval_validation.json").read_text())
    free = runs.summary_of(run)["validation"]
    assert record["coverage"]["largest"] <= 0.1 + 1e-5 < free["coverage"]["largest"]
    (tmp_path / "in.txt").write_text("mira maprona trustur .\n")
    assert runs.call(monkeypatch, "generate", f"run={run}", f"input={tmp_path}/in.txt", "decoding.fertility=0.1") == 0
    assert len(capsys.readouterr().out.splitlines()) >= 1
    assert isinstance(attnorm.load_run(run).generate(["mira maprona ."])[0], str)


@MODELS
@pytest.mark.training
def test_the_attention_that_is_shown_has_the_fertility_of_the_decoding(task):
    first, text = attnorm.load_run(runs.finished_run(task)), "mira maprona trustur ."

    def most(layers):
        return max(it.weights[..., :-1].sum(-2).mean(0).max().item() for name, it in layers if name.endswith("cross"))

    assert most(first.attention(text).items()) > 0.1
    run = attnorm.load_run(runs.finished_run(task))
    run.config["decoding"]["fertility"] = 0.1
    assert most(run.attention(text).items()) <= 0.1 + 1e-5
    [tokens] = run.tokenizer.encode([text])
    assert alignment(run, text).weights[..., :-1].sum() <= 0.1 * len(tokens) + 1e-5


@MODELS
@pytest.mark.training
def test_an_alignment_has_a_row_per_target_word_and_the_coverage_of_every_source_word(tmp_path, task):
    """Summed here token by token, from the attention of each layer and head; the figure shows the same numbers."""
    run, text = attnorm.load_run(runs.finished_run(task)), "mira maprona trustur ."
    found = alignment(run, text)
    assert found.keys == [*text.split(), "[eos]"] and found.queries[-1] == "[eos]"
    assert [*run.generate([text])[0].split(), "[eos]"] == found.queries
    torch.testing.assert_close(found.weights.sum(-1), torch.ones(1, len(found.queries)))
    sizes = [len(ids) for ids in run.tokenizer.encode(text.split())] + [1]  # tokens of each source word, and the end
    cross = [it for name, it in run.attention(text).items() if name.endswith("cross")]
    expected = []
    for place, size in enumerate(sizes):
        columns = range(sum(sizes[:place]), sum(sizes[:place]) + size)
        heads = [[sum(float(row[j]) for row in head for j in columns) for head in it.weights] for it in cross]
        expected.append(sum(map(sum, heads)) / sum(map(len, heads)))
    tokens = cross[0].weights.shape[1]
    assert tokens > len(found.queries)  # some target words have several tokens
    assert found.coverage.tolist() == pytest.approx(expected, abs=1e-4)
    assert sum(found.coverage.tolist()) == pytest.approx(tokens, abs=1e-4)

    drawn = draw_alignments(run, [text])
    labels = [label.get_text().split()[-1] for label in drawn["alignment_0"].axes[0].get_xticklabels()]
    assert labels == [f"{mass:.1f}" for mass in found.coverage.tolist()]
    [file] = drawn.save(tmp_path)
    assert file.stat().st_size > 5_000
