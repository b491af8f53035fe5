"""Comparisons: which runs form an arm, on which examples they or bare scores are compared, what the verdict says."""

import contextlib
import csv
import gzip
import json
import lzma
import math
import os
import re
import shutil
import unicodedata
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import runs
from browser import Page
from made_up_runs import make_run, make_runs, without_charts
from marks import slow
from scipy import stats

from attnorm.analysis import compare, compare_scores
from attnorm.analysis.arms import arms_of, baseline_of, find_runs, varying
from attnorm.analysis.cautions import cautions_of, unbeaten_methods
from attnorm.analysis.report.content import collect
from attnorm.analysis.report.page import html_of
from attnorm.analysis.score_files import ENDINGS, read_scores
from attnorm.analysis.score_tables import study_of_tables
from attnorm.analysis.statistics.crossed import paired_difference
from attnorm.analysis.statistics.power import plan
from attnorm.analysis.statistics.variances import Variances
from attnorm.analysis.table import Cell, Column, Table, interval
from attnorm.analysis.unfinished_jobs import waiting_jobs
from attnorm.analysis.verdict import Verdict, adjusted
from attnorm.errors import ConfigError, DataError, RunError
from attnorm.run.folder import folder_lock
from attnorm.sweeps.state import Journal
from attnorm.tasks.results import CHECKPOINT

THREE = {"softmax": 0.0, "dnas": 3.0, "hnas": 0.0}


def table_of(folder, stem="validation"):
    return pd.read_parquet(folder / f"predictions/{stem}.parquet")


def change_table(folder, change, stem="validation"):
    rows = table_of(folder)
    change(rows)
    rows.to_parquet(folder / f"predictions/{stem}.parquet", index=False)


def with_column(folder, name, values, stem="validation"):
    """Changes a column of a table without losing what the table says of its checkpoint."""
    path = folder / f"predictions/{stem}.parquet"
    table = pq.read_table(path)
    place = table.column_names.index(name)
    pq.write_table(table.set_column(place, name, pa.array(values(table[name].to_pylist()))), path)


def with_images(folders, texts):
    for folder, text in zip(folders, texts, strict=False):  # beside the hashes of texts
        with_column(folder, "input_hash", lambda old, text=text: [f"{it}-{text}" for it in old])


# arms


@pytest.mark.slow
def test_runs_that_differ_only_in_their_seed_form_an_arm(tmp_path):
    make_runs(tmp_path, {**THREE, "hnas+lr=0.01": 0.0})
    make_run(tmp_path / "dnas_4", "dnas", 4, settings={"paths.log_dir": "elsewhere", "run.keep_best": 2})
    arms = {arm.label: [run.seed for run in arm.runs] for arm in arms_of(find_runs([tmp_path]))}
    assert arms == {
        "softmax": [1, 2, 3],
        "dnas": [1, 2, 3, 4],
        "hnas (optimizer.lr=0.001)": [1, 2, 3],
        "hnas (optimizer.lr=0.01)": [1, 2, 3],
    }


def test_a_folder_with_brackets_in_its_name_is_no_pattern(tmp_path):
    one, other = (make_run(tmp_path / name / "run", "softmax", 1) for name in ("exp[1]", "exp1"))
    assert [run.folder for run in find_runs([tmp_path / "exp[1]"])] == [one]
    assert [run.folder for run in find_runs([f"{tmp_path}/exp[[]1]", f"{tmp_path}/exp?"])] == [one, other]


def test_of_two_runs_with_one_seed_the_finished_one_counts(tmp_path):
    finished = make_run(tmp_path / "b", seed=1)
    make_run(tmp_path / "a", seed=1, state="failed", why="RuntimeError: x")
    make_run(tmp_path / "c", seed=1, state=None)
    [arm] = arms_of(find_runs([tmp_path]))
    assert [run.folder for run in arm.runs] == [finished]


OWN = {"attention.encoder": "lab.norms.Mine"}
ONE, TWO = "0" * 16, "1" * 16


@pytest.mark.parametrize(
    ("modules", "refused"),
    [
        (({"lab.base": ONE}, {"lab.base": ONE}, {}), False),
        slow(({"lab.base": ONE}, {"lab.other": TWO}, {}), False),
        (({"lab.base": ONE}, {"lab.base": TWO}, {}), True),
        slow(({"lab.base": TWO}, {}, {}, [{"modules.lab.base": [ONE, TWO]}]), True),  # resumed after an edit
        slow(({"lab.base": ONE}, {}, {"lab.base": TWO}), True),  # of another arm
        slow(({"lab.base": ONE}, {}, {}, [{"modules.lab.base": [None, ONE], "seed": [1, 1]}]), False),
        (({"lab.base": [ONE]}, {"lab.base": TWO}, {"lab.base": 3}, ["x", {"modules.lab.base": 1}]), False),  # anyone's
    ],
)
def test_runs_with_different_versions_of_an_own_module_are_not_mixed(tmp_path, modules, refused):
    folders = [make_run(tmp_path / f"own{seed}", "Mine", seed, settings=OWN, gain=1.0) for seed in (1, 2)]
    folders += [make_run(tmp_path / f"{seed}", seed=seed) for seed in (1, 2)]
    for folder, its in zip(folders, modules[:3], strict=False):
        resumed = {"resumed": modules[3]} if folder is folders[0] and modules[3:] else {}
        (folder / "run.json").write_text(json.dumps({**runs.record_of(folder), "modules": its, **resumed}))
    edited = rf"lab.base was edited .*({ONE}.*{TWO}|{TWO}.*{ONE})"
    for verb in (lambda: compare("softmax", tmp_path), lambda: collect([tmp_path])):
        with pytest.raises(RunError, match=edited) if refused else contextlib.nullcontext():
            verb()


def test_settings_that_only_some_have_vary():
    assert varying([{"a": 1, "b": 2, "c": None}, {"a": 1, "b": 3}, {"a": 1, "b": 2}]) == ["b", "c"]
    assert varying([{"a": 1}]) == []


def test_runs_are_found_once_in_folders_below_folders_and_by_patterns(tmp_path, monkeypatch):
    folders = make_runs(tmp_path / "logs/gigaword", {"softmax": 0.0, "dnas": 0.0}, seeds=(1, 2))
    (tmp_path / "logs/empty").mkdir()
    assert {run.folder for run in find_runs([tmp_path])} == set(folders)
    found = find_runs([folders[0], str(tmp_path / "logs/*/dnas_?")])
    assert [run.folder for run in found] == [folders[0], *folders[2:]]
    with pytest.raises(RunError, match=r"empty: no run folder there"):
        find_runs([folders[0], tmp_path / "logs/empty"])
    monkeypatch.chdir(tmp_path / "logs")
    spelled = find_runs(["gigaword", folders[0].parent, "gigaword/../gigaword/dnas_*"])
    assert [str(run.folder) for run in spelled] == [
        f"gigaword/{name}" for name in ("dnas_1", "dnas_2", "softmax_1", "softmax_2")
    ]
    assert compare(f"{folders[0].parent}/softmax_*", "gigaword").baseline == "softmax"


# scores


@pytest.mark.slow
def test_the_difference_is_that_of_the_pairs_on_the_half_that_did_not_select(tmp_path):
    make_runs(tmp_path, THREE)
    found = compare("softmax", tmp_path)
    assert (found.metric, found.is_primary, found.source, found.examples) == ("rougeL", True, "half", 100)
    assert [scores.label for scores in found.scores] == ["softmax", "dnas", "hnas"]

    def mean(arm, seed):
        rows = table_of(tmp_path / f"{arm}_{seed}")
        return rows[~rows["selecting"]]["rougeL"].mean()

    for scores in found.scores:
        assert scores.values == pytest.approx({seed: mean(scores.label, seed) for seed in (1, 2, 3)})
        assert scores.spread == pytest.approx(np.std(list(scores.values.values()), ddof=1))
    for verdict in found.verdicts:
        by_seed = {seed: mean(verdict.label, seed) - mean("softmax", seed) for seed in (1, 2, 3)}
        assert verdict.by_seed == pytest.approx(by_seed)
        assert verdict.difference.estimate == pytest.approx(np.mean(list(by_seed.values())))
        interval = stats.t.interval(0.95, 2, np.mean(list(by_seed.values())), stats.sem(list(by_seed.values())))
        assert (verdict.difference.new_seeds.low, verdict.difference.new_seeds.high) == pytest.approx(interval)
    reversed_rows = table_of(tmp_path / "dnas_2").iloc[::-1]
    reversed_rows.to_parquet(tmp_path / "dnas_2/predictions/validation.parquet", index=False)
    assert [it.difference for it in compare("softmax", tmp_path).verdicts] == [it.difference for it in found.verdicts]


@pytest.mark.slow
def test_examples_without_a_score_and_those_that_selected_the_checkpoint_are_told(tmp_path):
    folders = make_runs(tmp_path, THREE)
    change_table(folders[1], lambda rows: rows.loc.__setitem__((slice(0, 19), "rougeL"), np.nan))
    found = compare("softmax", tmp_path)
    assert found.examples == 90 and "10 examples" in found.notes[0]
    for folder in folders:
        change_table(folder, lambda rows: rows.pop("selecting"))
    found = compare("softmax", tmp_path)
    assert found.source == "validation" and any("too good" in note for note in found.notes)


@pytest.mark.slow
@pytest.mark.parametrize(("metric", "transform"), [("loss", lambda x: x), ("perplexity", math.exp)])
def test_losses_are_ratios_over_the_whole_corpus(tmp_path, metric, transform):
    make_runs(tmp_path, THREE)
    found = compare("softmax", tmp_path, metric)
    rows = table_of(tmp_path / "dnas_2")
    half = rows[~rows["selecting"]]
    dnas = found.scores[1].values[2]
    assert dnas == pytest.approx(transform(half["loss_sum"].sum() / half["n_tokens"].sum()))
    assert found.verdicts[0].by_seed[2] == pytest.approx(dnas - found.scores[0].values[2], abs=0.01 * dnas)
    assert not found.is_primary and "(lower is better)" in found.verdicts[0].sentence()


@pytest.mark.slow
def test_groups_enter_as_clusters(tmp_path):
    for folder in make_runs(tmp_path, THREE):
        change_table(folder, lambda rows: rows.__setitem__("group", [str(n // 8) for n in range(200)]))
    verdict = compare("softmax", tmp_path).verdicts[0]
    assert (verdict.difference.examples, verdict.difference.clusters) == (100, 25)
    assert "100 examples in 25 groups" in verdict.sentence()
    found = compare("softmax", tmp_path, grouped=False)
    assert found.verdicts[0].difference.clusters == 100 and "of the same 25 groups" in found.notes[0]


@pytest.mark.parametrize(
    ("plant", "message"),
    [
        (
            lambda folders: change_table(folders[1], lambda rows: rows.loc.__setitem__((1, "reference"), "other")),
            "softmax, seed 1 and softmax, seed 2 were scored on different data: the same ids have different references",
        ),
        (
            lambda folders: with_column(folders[1], "input_hash", lambda old: [*old[:-4], "a", "b", "c", "d"]),
            r"softmax, seed 2 .*different data: \d of 100 examples .*different inputs",
        ),
        (lambda folders: with_images(folders, "aaa"), None),  # runs that saw no images, and runs that did
        (lambda folders: with_images(folders, "aaab"), "100 of 100 examples .* reference have different images"),
        (
            lambda folders: [change_table(it, lambda rows: rows.__setitem__("selecting", True)) for it in folders[:3]],
            r"softmax, seed 1 was selected on all .*task.selection=all.* that of dnas, seed 1 on half",
        ),
    ],
)
def test_runs_that_cannot_be_compared_are_named(tmp_path, plant, message):
    plant(make_runs(tmp_path, THREE))
    with contextlib.nullcontext() if message is None else pytest.raises(RunError, match=message):
        assert compare("softmax", tmp_path).doubts == []


@pytest.mark.slow
@pytest.mark.parametrize("metadata", ["5", "[]", "{", "[" * 100_000], ids=lambda text: text[:2])
def test_what_pandas_would_take_from_the_metadata_of_a_table_is_not_read(tmp_path, metadata):
    for folder in make_runs(tmp_path, THREE):
        path = folder / "predictions/validation.parquet"
        table = pq.read_table(path)
        pq.write_table(table.replace_schema_metadata({**table.schema.metadata, b"pandas": metadata}), path)
    assert compare("softmax", tmp_path).examples == 100


def with_checkpoint(folder, update, stem="validation"):
    """Scores of a checkpoint on the validation split, or on the test split."""
    table = pq.read_table(folder / "predictions/validation.parquet")
    table = table.replace_schema_metadata({CHECKPOINT: json.dumps({"update": update, "sha256": str(update)})})
    if stem != "validation":
        table = table.drop_columns("selecting")
        (folder / f"{stem}.json").write_text(json.dumps({"typed": {}, "checkpoint": "best", "step": update}))
    pq.write_table(table, folder / f"predictions/{stem}.parquet")


@pytest.mark.slow
def test_the_test_split_is_used_once_all_runs_have_scores_of_their_checkpoint_on_it(tmp_path):
    folders, changed = make_runs(tmp_path, THREE), '{"typed": {"decoding.beam_size": 1}}'
    for folder in folders:
        if folder is folders[-1]:
            assert compare("softmax", tmp_path).source == "half"
        with_checkpoint(folder, 6)
        with_checkpoint(folder, 6, "eval_test")
    found = compare("softmax", tmp_path)
    assert (found.source, found.examples) == ("test", 200)
    assert compare("softmax", tmp_path, split="validation").source == "half"
    with_checkpoint(folders[0], 18)
    with pytest.raises(RunError, match=r"softmax_1: its scores on the test split are of update 6.* is of update 18\."):
        compare("softmax", tmp_path)
    assert compare("softmax", tmp_path, split="validation").source == "half"
    with_checkpoint(folders[0], 18, "eval_test_2")
    assert compare("softmax", tmp_path).source == "test"
    (folders[0] / "eval_test_2.json").write_text(changed)
    with pytest.raises(RunError, match="training was continued"):
        compare("softmax", tmp_path)
    (folders[0] / "eval_test.json").write_text(changed)
    assert compare("softmax", tmp_path).source == "half"


@pytest.mark.slow
def test_other_code_other_versions_and_inputs_without_hashes_are_doubts(monkeypatch, tmp_path, capsys):
    folders = make_runs(tmp_path, THREE)
    path = folders[0] / "run.json"
    recorded = path.read_text()
    for changed, words in (
        ({"versions": {"torch": "2.1"}, "commit": {"commit": "f" * 40, "changed": False}}, "in the version of torch"),
        ({"commit": {"commit": "f" * 40, "changed": True}}, "ffffffffff with uncommitted changes"),
        ({"commit": None, "code": "0123456789abcdef"}, "an installed package, version 0123456789abcdef"),
    ):
        path.write_text(json.dumps({**json.loads(recorded), **changed}))
        doubts = compare("softmax", tmp_path).doubts
        assert "differ in the commit of the code" in " ".join(doubts) and words in " ".join(doubts)
        assert collect([tmp_path]).tasks[0].doubts == doubts
    path.write_text(recorded)
    assert compare("softmax", tmp_path).doubts == []
    change_table(folders[4], lambda rows: rows.pop("input_hash"))
    [doubt] = compare("softmax", tmp_path).doubts
    assert "cannot be checked" in doubt and "dnas, seed 2 have no hashes" in doubt
    assert runs.call(monkeypatch, "compare", f"against={tmp_path}") == 0
    assert " ".join(doubt.split()) in " ".join(capsys.readouterr().out.split())


@pytest.mark.slow
def test_of_two_finished_runs_the_newer_one_counts_and_the_other_is_named(tmp_path):
    older = make_runs(tmp_path, THREE)[0]
    newer = make_run(tmp_path / "again", gain=3.0)
    os.utime(older / "run.json", (1, 1))
    found = compare("softmax", tmp_path)
    [doubt] = found.doubts
    assert f"softmax, seed 1 ({older})" in doubt and str(newer) not in doubt
    rows = table_of(newer)
    assert found.scores[0].values[1] == pytest.approx(rows[~rows["selecting"]]["rougeL"].mean())


@pytest.mark.slow
def test_training_data_that_changed_under_the_same_settings_are_a_doubt(tmp_path):
    for place, sizes in (("same", (1, 1)), ("other", (1, 2))):
        for number, name in enumerate(("softmax", "dnas")):
            summary = {"data_fingerprints": {"train": f"tokens-{number}", "validation": "tokens-9"}}
            made = {"gain": number, "summary": summary, "settings": {"data.train_size": sizes[number]}}
            for seed in (1, 2, 3):
                make_run(tmp_path / place / f"{name}{seed}", name, seed, **made)
    [doubt] = compare("softmax", tmp_path / "same").doubts
    assert "softmax, seed 1 and dnas, seed 1 were trained on different data" in " ".join(doubt.split())
    assert compare(tmp_path / "other").doubts == []


# verdicts


@pytest.mark.slow
def test_what_was_found_in_the_data_stands_beside_the_verdict(monkeypatch, tmp_path, capsys):
    notes = ["train: 3 bad rows of its files skipped", "validation: 7 of 8 pairs occur in train, too"]
    make_runs(tmp_path, dict.fromkeys(("softmax", "hnas"), 0.0), summary={"data_notes": notes})
    assert compare("softmax", tmp_path).notes == [f"Data: {note}." for note in notes]
    assert runs.call(monkeypatch, "compare", f"against={tmp_path}") == 0
    printed = " ".join("".join(capsys.readouterr()).split())
    assert all(note in printed for note in notes)


def test_a_large_difference_is_shown_and_none_is_not(tmp_path):
    make_runs(tmp_path, {"softmax": 0.0, "dnas": 9.0}, seeds=range(5), examples=400)
    [dnas] = compare("softmax", tmp_path).verdicts
    assert dnas.is_shown and dnas.adjusted < 0.01 and ": shown" in dnas.sentence()
    low, high = dnas.difference.new_seeds_and_examples.low, dnas.difference.new_seeds_and_examples.high
    assert dnas.sentence().startswith(f"dnas minus softmax: {dnas.difference.estimate:+.2f} ROUGE-L F1, 95 % interval ")
    assert f"{low:.2f} to {high:.2f} for new seeds and new examples (5 seeds, 200 examples)" in dnas.sentence()
    assert f"Detectable with 80 % power: a difference of {dnas.detectable:.2f} ROUGE-L F1." in dnas.sentence()
    assert ": shown, adjusted p < 0.001. " in replace(dnas, adjusted=1e-9).sentence()
    assert ": shown, adjusted p = 0.012. " in replace(dnas, adjusted=0.012).sentence()
    assert "For new seeds on these examples only" in dnas.claim_for_this_test_set()


def test_an_arm_that_cannot_be_compared_is_still_of_the_family(tmp_path):
    make_runs(tmp_path, {"softmax": 0.0, "dnas": 1.0})
    [alone] = compare("softmax", tmp_path).verdicts
    make_runs(tmp_path, {"hnas": 0.0, "ot": 0.0}, seeds=(7,))
    [verdict] = compare("softmax", tmp_path).verdicts
    assert (alone.family, verdict.family) == (1, 3)
    assert verdict.adjusted == pytest.approx(min(1, 3 * alone.adjusted)) and verdict.detectable > alone.detectable


def test_the_level_of_the_intervals_does_not_decide_the_verdict(tmp_path):
    make_runs(tmp_path, THREE)
    usual, wide = (compare("softmax", tmp_path, level=level).verdicts for level in (0.95, 0.5))
    assert [it.word for it in usual] == [it.word for it in wide] and "50 % interval" in wide[0].sentence()
    assert [it.detectable for it in usual] == [it.detectable for it in wide]
    half = replace(wide[0], adjusted=0.3, no_verdict=None)
    assert not half.is_shown and replace(half, adjusted=0.04).is_shown


def test_what_is_detectable_allows_for_the_other_arms():
    """The difference of one of three arms that is detectable, in experiments in which only the seeds vary."""
    random, (seeds, examples), noise = np.random.default_rng(0), (5, 20), 0.1

    def verdict(difference):
        of_seeds = random.standard_normal((seeds, 1))
        table = difference + of_seeds + noise * random.standard_normal((seeds, examples))
        return Verdict("arm", "softmax", "rougeL", paired_difference(table), math.nan, {}, None)

    variances = Variances(examples + noise**2, noise**2, noise**2, seeds, examples, examples, float(examples))
    known = replace(verdict(0), difference=replace(verdict(0).difference, variances=variances), family=3)
    level = 1 - 0.05 / 3
    by_hand = stats.nct(seeds - 1, known.detectable * math.sqrt(seeds)).sf(stats.t(seeds - 1).isf((1 - level) / 2))
    assert by_hand == pytest.approx(0.8, abs=1e-3)
    found = [adjusted([verdict(known.detectable), verdict(0), verdict(0)])[0] for _ in range(500)]
    shown = [it.is_shown for it in found]
    assert {it.family for it in found} == {3}
    assert np.mean(shown) == pytest.approx(0.8, abs=5 * math.sqrt(0.8 * 0.2 / len(shown)))
    assert known.detectable > 1.3 * replace(known, family=1).detectable
    assert math.isnan(replace(known, no_verdict="why").detectable)


# verdicts that are withheld


@pytest.mark.slow
def test_arms_that_do_not_beat_a_simple_method_get_no_verdict(monkeypatch, tmp_path, capsys):
    make_runs(tmp_path, {"softmax": 0.0, "dnas": 9.0}, lead=60.0)
    for metric in (None, "loss"):
        found = compare("softmax", tmp_path, metric)
        [clause], [verdict] = found.withheld, found.verdicts
        assert "no arm beats the simple baseline lead-8; the best one, dnas" in clause and "against 60.00" in clause
        assert verdict.no_verdict == clause and math.isnan(verdict.adjusted) and not verdict.is_shown
        assert math.isnan(verdict.detectable) and math.isnan(verdict.difference.new_seeds.low)
        assert "Detectable" not in verdict.sentence() and verdict.claim_for_this_test_set() is None
        assert found.simple == ({"lead-8": 60.0} if metric is None else {})
    for planned in ([], ["plan=1"]):
        assert runs.call(monkeypatch, "compare", f"against={tmp_path}", *planned) == 0
        said = " ".join(capsys.readouterr().out.split())
        assert said.startswith("No verdict: no arm beats the simple baseline lead-8")
        assert "60.00" in said and "Detectable" not in said and "seeds per arm" not in said


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.01, 0.011])
def test_a_metric_that_is_undefined_for_many_references_gives_no_verdict(tmp_path, share):
    folder = make_runs(tmp_path, {"softmax": 0.0, "dnas": 9.0})[-1]
    summary = json.loads((folder / "summary.json").read_text())
    summary["validation"]["undefined"] = {"rougeL": share, "rouge1": 0.0}
    (folder / "summary.json").write_text(json.dumps(summary))
    [verdict] = compare("softmax", tmp_path).verdicts
    assert verdict.no_verdict == (None if share == 0.01 else "ROUGE-L F1 is undefined for 1.1% of the references")
    assert compare("softmax", tmp_path, "rouge1").verdicts[0].no_verdict is None


@pytest.mark.parametrize(("ours", "is_beaten"), [(2.0, True), (1.5, True), (1.0, False)])
def test_a_lower_loss_beats_a_simple_method_and_one_such_arm_is_enough(ours, is_beaten):
    runs_of_arms = {"softmax": [{"loss": 3.0}], "dnas": [{"loss": ours + 0.5}, {"loss": ours - 0.5}]}
    for simple, metric in (({"loss": 1.5}, "loss"), ({"loss": 1.5, "f1": 9.0}, "f1 of another task")):
        assert bool(unbeaten_methods(runs_of_arms, {"unigram": simple}, metric)) is is_beaten
    assert unbeaten_methods(runs_of_arms, {}, "loss") == []
    assert unbeaten_methods({"softmax": []}, {"unigram": {"loss": 1.5}}, "loss") == []


def test_the_task_says_in_which_direction_its_own_metric_is_better(tmp_path):
    """The planted fault: a metric of which lower values are better, and whose name says nothing about that."""
    summary = {"monitor": "val/loss", "mode": "min", "directions": {"loss": "min", "rougeL": "min"}}
    make_runs(tmp_path, {"softmax": 0.0, "dnas": 3.0}, lead=200.0, summary=summary)
    found = compare("softmax", tmp_path)
    assert found.withheld == [] and found.direction == -1 and "(lower is better)" in found.verdicts[0].sentence()
    other = compare("softmax", tmp_path, "rouge1")
    assert other.direction == 1 and "(lower is better)" not in other.verdicts[0].sentence()


@pytest.mark.slow
def test_an_arm_with_one_output_for_all_examples_gets_no_verdict(tmp_path):
    make_runs(tmp_path, {"softmax": 0.0, "hnas": 3.0})
    for seed in (1, 2):
        make_run(tmp_path / f"dnas_{seed}", "dnas", seed, gain=9.0, outputs=["the same"] * 200)
    make_run(tmp_path / "dnas_3", "dnas", 3, gain=9.0)
    found = compare("softmax", tmp_path)
    [clause] = found.withheld
    assert clause == "dnas gives one and the same output for all 100 examples with seeds 1 and 2 (of 3)"
    silent = {it.label: it.is_silent for it in found.verdicts}
    assert silent == {"dnas": True, "hnas": False}
    make_run(tmp_path / "more" / "dnas_4", "dnas", 4, gain=9.0)
    make_run(tmp_path / "more" / "softmax_4", seed=4)
    make_run(tmp_path / "more" / "hnas_4", "hnas", 4, gain=3.0)
    assert compare("softmax", tmp_path).withheld == []  # two of four seeds are not most of them


@pytest.mark.parametrize(("seeds", "words"), [((1, 3), "seeds 1 and 3 (of 3)"), ((1, 2, 3), "all 3 seeds")])
def test_arms_with_equal_scores_with_most_seeds_get_no_verdict(tmp_path, seeds, words):
    make_runs(tmp_path, {"softmax": 0.0, "dnas": 0.0})
    for seed in seeds:
        (tmp_path / f"dnas_{seed}/predictions/validation.parquet").write_bytes(
            (tmp_path / f"softmax_{seed}/predictions/validation.parquet").read_bytes()
        )
    found = compare("softmax", tmp_path)
    [clause], [verdict] = found.withheld, found.verdicts
    assert f"zero with {words}, where 0 of {100 * len(seeds)} outputs differ" in clause
    assert verdict.is_silent and "no verdict" in verdict.sentence() and "Detectable" not in verdict.sentence()


# cautions


@pytest.mark.slow
def test_a_seed_far_from_the_others_is_named_in_the_verdict(tmp_path):
    make_runs(tmp_path, {"softmax": 0.0, "dnas": 3.0}, seeds=range(1, 6))
    [verdict] = compare("softmax", tmp_path).verdicts
    assert verdict.cautions == () and "Caution" not in verdict.sentence()
    shutil.rmtree(tmp_path / "dnas_4")
    make_run(tmp_path / "dnas_4", "dnas", 4, gain=-25.0)
    [verdict] = compare("softmax", tmp_path).verdicts
    [caution] = verdict.cautions
    assert "seed 4 is unusual: its difference is -" in caution and verdict.sentence().endswith(caution)
    means = np.array([-9.0, -9.1, -9.05, -9.02, 0.0])
    [caution] = cautions_of(np.tile(means[:, None], 20), range(5), None, [])
    assert "seed 4 is unusual: its difference is 0, where the median of all seeds is -9.02 (" in caution
    [caution] = cautions_of(np.tile(np.array([[0.5, 5.0, 2.0, 2.0, 2.0]]).T, 20), range(5), None, [])
    assert "seed 1 is unusual: its difference is +5, where the median of all seeds is +2 (that of 3 of" in caution


def rewrite_losses(folder, losses):
    rows = [f"{100 * number},{loss}" for number, loss in enumerate(losses, start=1)]
    (folder / "metrics.csv").write_text("\n".join(["step,val/loss", "50,", *rows, "990,"]))


@pytest.mark.parametrize(
    ("losses", "said"),
    [
        (["6.0", "4.1"], None),
        (["4.0", "4.9"], None),  # overfitting
        (["9.0", "8.0"], None),  # slow
        (["5.0", "9.0"], "rose from 5 to 9, and the median of the other runs is 4"),
        (["5.0", "nan"], "is not finite"),
        (["5.0", "inf"], "is not finite"),
        (["nan", "5.0"], None),
    ],
)
def test_a_run_that_diverged_is_named_in_the_verdict(tmp_path, losses, said):
    folders = make_runs(tmp_path, {"softmax": 0.0, "dnas": 3.0})
    for folder in folders:
        rewrite_losses(folder, ["5.5", "4.0"])
    rewrite_losses(folders[5], losses)
    [verdict] = compare("softmax", tmp_path).verdicts
    assert (verdict.cautions == ()) is (said is None)
    assert said is None or (said in verdict.sentence() and "dnas, seed 3 has diverged" in verdict.sentence())


def test_skewed_differences_of_few_examples_are_named_in_the_verdict(tmp_path):
    make_runs(tmp_path, {"softmax": 0.0, "dnas": 0.0}, seeds=(1, 2, 3))
    skewed = np.exp(1.5 * np.random.default_rng(0).standard_normal(200)) * 10
    for seed in (1, 2, 3):
        with_column(tmp_path / f"dnas_{seed}", "rougeL", lambda old: (np.array(old) + skewed).tolist())
    [verdict] = compare("softmax", tmp_path).verdicts
    [of_shape] = verdict.cautions
    assert "the differences of the examples are skewed" in of_shape and of_shape in verdict.sentence()


# seeds that count


@pytest.mark.slow
def test_means_and_differences_are_over_the_same_seeds(tmp_path):
    make_runs(tmp_path, {"softmax": 0.0, "dnas": 3.0, "hnas": 1.0}, seeds=range(5))
    make_run(tmp_path / "softmax_5", seed=5, gain=30.0)
    make_run(tmp_path / "hnas_5", "hnas", 5)
    make_run(tmp_path / "dnas_5", "dnas", 5, state="failed", why="RuntimeError: x")
    make_run(tmp_path / "dnas_6", "dnas", 6, state=None)
    make_run(tmp_path / "hnas_6", "hnas", 6)
    found = compare("softmax", tmp_path)
    means = {it.label: it.mean for it in found.scores}
    for verdict in found.verdicts:
        assert verdict.difference.estimate == pytest.approx(means[verdict.label] - means["softmax"])
        assert verdict.difference.seeds == 5 and "seed 5, because dnas failed" in verdict.sentence()
    hnas = next(it for it in found.verdicts if it.label == "hnas")
    assert "seed 6, because softmax has no such run" in hnas.sentence()
    assert [list(it.values) for it in found.scores] == [[0, 1, 2, 3, 4]] * 3
    assert found.scores[0].left_out == ("softmax, seed 5: another arm has no scores for this seed",)
    assert found.scores[1].left_out == ("dnas, seed 5: failed (RuntimeError: x)", "dnas, seed 6: killed")


@pytest.mark.slow
def test_an_arm_with_few_seeds_does_not_reduce_those_of_the_others(tmp_path):
    make_runs(tmp_path, {"softmax": 0.0, "dnas": 3.0}, seeds=range(4))
    make_run(tmp_path / "hnas_2", "hnas", 2)
    found = compare("softmax", tmp_path)
    assert {it.label: it.difference.seeds for it in found.verdicts} == {"dnas": 4, "hnas": 1}
    few = found.verdicts[1]
    assert not few.is_shown and "no verdict" in few.sentence() and math.isnan(few.adjusted)
    make_runs(tmp_path, {"sinkhorn": 0.0}, seeds=(7, 8, 9))
    with_it = compare("softmax", tmp_path)
    assert [repr(it.difference) for it in with_it.verdicts] == [repr(it.difference) for it in found.verdicts]
    assert [it.label for it in with_it.scores] == ["softmax", "dnas", "hnas"]
    assert "sinkhorn is not compared: sinkhorn and softmax have no seed in common" in with_it.notes[-1]
    with pytest.raises(RunError, match="sinkhorn and softmax have no seed in common"):
        compare("softmax", [*tmp_path.glob("s*")])


@pytest.mark.slow
def test_no_verdict_is_given_while_planned_runs_are_unfinished(tmp_path):
    make_runs(tmp_path, THREE, seeds=range(4))
    running = make_run(tmp_path / "dnas_7", "dnas", 7, state=None)
    with folder_lock(running):
        found = compare("softmax", tmp_path)
    assert found.pending == ["dnas, seed 7"]
    assert all(
        math.isnan(it.adjusted) and "1 planned run is not finished yet" in it.sentence() for it in found.verdicts
    )
    journal = Journal(tmp_path)
    for seed in (7, 8):
        journal.add("job", f"dnas_{seed}", key=str(seed), label=f"attention=dnas seed={seed}", overrides=[])
    assert waiting_jobs([tmp_path]) == compare("softmax", tmp_path).pending == ["attention=dnas seed=8"]
    assert waiting_jobs([f"{tmp_path.parent}/{tmp_path.name[:-1]}?"]) == ["attention=dnas seed=8"]
    assert waiting_jobs([f"{tmp_path}/*"]) == compare("softmax", f"{tmp_path}/*").pending == ["attention=dnas seed=8"]
    journal.add("end", "dnas_8", code=2, failure=True)  # before it had a run folder
    assert waiting_jobs([tmp_path]) == []


def test_of_single_run_folders_only_the_jobs_of_their_arms_are_waited_for(tmp_path):
    make_runs(tmp_path, {"softmax": 0.0, "dnas": 3.0}, seeds=(1,))
    journal = Journal(tmp_path)
    for arm, seed in (("softmax", 1), ("dnas", 1), ("dnas", 2), ("hnas", 1)):
        typed = [f"attention={arm}", f"++seed={seed}"]
        journal.add("job", f"{arm}_{seed}", key=f"{arm}{seed}", label=f"{arm} {seed}", overrides=typed)
    assert waiting_jobs([tmp_path]) == ["dnas 2", "hnas 1"]
    assert waiting_jobs([tmp_path / "dnas_1", tmp_path / "softmax_1"]) == ["dnas 2"]
    assert waiting_jobs([tmp_path / "softmax_1"]) == []


def test_arms_are_named_by_the_runs_that_have_recorded_their_attention(tmp_path):
    mixed = {"settings": {"attention.encoder": ["hnas", "softmax"]}, "record": {"attention": "hnas+softmax"}}
    for seed, state in ((1, None), (2, "finished"), (3, "finished")):
        make_run(tmp_path / f"mixed_{seed}", "mixed", seed, state=state, **mixed)
        make_run(tmp_path / f"softmax_{seed}", "softmax", seed)
    assert [arm.label for arm in arms_of(find_runs([tmp_path]))] == ["hnas+softmax", "softmax"]


def test_a_label_with_signs_of_a_path_is_a_label(tmp_path):
    for folder, root in (("a", "/data/a[1]"), ("b", "/data/b")):
        make_run(tmp_path / folder, settings={"data.root": root})
    assert compare("softmax (data.root=/data/a[1])", tmp_path).baseline == "softmax (data.root=/data/a[1])"
    with pytest.raises(RunError, match=r"c\): no such folder"):
        compare("softmax (data.root=/data/c)", tmp_path)


EIGHT = [f"model.a{number}" for number in range(8)]
DOCUMENTS = "attnorm.models.documents."


@pytest.mark.parametrize(
    ("settings", "labels"),
    [
        ([{}, {"callbacks.early.patience": 3}], ["callbacks={}", "callbacks.early.patience=3"]),
        (  # a class, without the settings that only one of them has
            [
                {"model._target_": f"{DOCUMENTS}Flat"},
                {"model._target_": f"{DOCUMENTS}Two", "attention.sentence": "dnas"},
            ],
            ["model._target_=Flat", "model._target_=Two"],
        ),
        (  # beside another difference, a setting that only one arm has
            [{"optimizer.lr": 0.01}, {"optimizer.lr": 0.1, "callbacks.early.patience": 3}],
            ["callbacks={}, optimizer.lr=0.01", "callbacks.early.patience=3, optimizer.lr=0.1"],
        ),
        ([{"attention.options.softmax.cost": it} for it in ("learned", "fixed")], ["cost=learned", "cost=fixed"]),
        (  # what is enough to tell arms apart that differ in much
            [{**dict.fromkeys(EIGHT, 1), "model.a7": last} for last in (1, 2, 3)] + [dict.fromkeys(EIGHT, 0)],
            [f"model.a7={last}" for last in (1, 2, 3, 0)],
        ),
        (  # a class says more than its options
            [{"model._target_": f"attnorm.{it}", **dict.fromkeys(EIGHT, it)} for it in ("One", "Zero")],
            ["model._target_=One", "model._target_=Zero"],
        ),
        (  # all keys of a large grid
            [{key: number >> bit & 1 for bit, key in enumerate(EIGHT[:4])} for number in range(16)],
            [", ".join(f"{key}={n >> bit & 1}" for bit, key in enumerate(EIGHT[:4])) for n in range(16)],
        ),
        ([{"model._target_": "one.Mine"}, {"model._target_": "two.Mine"}], ["model._target_=Mine"] * 2),
    ],
)
def test_labels_name_what_tells_arms_apart(tmp_path, settings, labels):
    for number, changes in enumerate(settings):
        make_run(tmp_path / f"{number:02}", settings=changes)
    expected = [f"softmax ({label})" for label in labels]
    if len(set(expected)) < len(expected):  # classes of one name
        expected = [f"{label} [{number}]" for number, label in enumerate(expected, start=1)]
    assert [arm.label for arm in arms_of(find_runs([tmp_path]))] == expected


# arguments


@pytest.mark.parametrize("state", ["failed", "interrupted", None])
def test_an_arm_without_a_finished_run_is_not_the_baseline_by_default(tmp_path, state):
    make_runs(tmp_path, {"softmax": 0.0}, state=state)
    make_runs(tmp_path, {"dnas": 0.0, "hnas": 0.0})
    arms = arms_of(find_runs([tmp_path]))
    assert baseline_of(arms, None).label == "dnas" and baseline_of(arms, "softmax").label == "softmax"
    assert baseline_of([arm for arm in arms if arm.label == "softmax"], None).label == "softmax"
    make_run(tmp_path / "more", "softmax", 9)
    assert baseline_of(arms_of(find_runs([tmp_path])), None).label == "softmax"


@pytest.mark.slow
def test_the_baseline_is_a_place_or_a_label_or_softmax(tmp_path):
    make_runs(tmp_path, THREE)
    softmax, others = [tmp_path / f"softmax_{seed}" for seed in (1, 2, 3)], [f"{tmp_path}/dnas_*", f"{tmp_path}/hnas_*"]
    places = [("softmax", tmp_path), (tmp_path,), (f"{tmp_path}/softmax_*", tmp_path), (softmax, others)]
    typed = [compare(*its) for its in places]
    assert len({found.baseline for found in typed}) == 1
    assert len({tuple(it.difference.estimate for it in found.verdicts) for found in typed}) == 1


@pytest.mark.parametrize(
    ("baseline", "metric", "message"),
    [
        ("softmx", None, "baseline=softmx: there is neither such a folder nor such an arm.*Did you mean 'softmax'"),
        ("softmax", "rougel", "metric=rougel: .*allowed: rouge1, rougeL, loss, perplexity.*'rougeL'"),
        ("here", None, "baseline: must be one arm, but these runs form 3: dnas; hnas; softmax"),
    ],
)
def test_wrong_arguments_are_named(tmp_path, baseline, metric, message):
    make_runs(tmp_path, THREE)
    with pytest.raises(ConfigError, match=message):
        compare(tmp_path if baseline == "here" else baseline, tmp_path, metric)


@pytest.mark.slow
def test_the_verdicts_are_those_of_the_runs_with_these_scores(tmp_path):
    make_runs(tmp_path, THREE)
    expected = compare("softmax", tmp_path)
    tables = {}
    for file in sorted(tmp_path.rglob("validation.parquet")):  # sorted by arm and seed
        rows = pd.read_parquet(file)
        arm = next(name for name in THREE if name in str(file.relative_to(tmp_path)))
        tables.setdefault(arm, []).append(rows[~rows["selecting"]][expected.metric])
    found = compare_scores("softmax", tables, expected.metric)
    assert sorted(map(repr, found)) == sorted(repr(replace(it, speed=None)) for it in expected.verdicts)
    assert {verdict.word for verdict in found} == {"shown", "not shown"}
    sentences = [it.sentence() for it in found]
    parts = [
        pd.DataFrame({"arm": arm, "seed": seed, "example": range(len(row)), "score": list(row)})
        for arm, of_arm in tables.items()
        for seed, row in enumerate(of_arm, start=1)
    ]
    table = pd.concat([part[::-1] for part in parts])
    files = [tmp_path / f"table{ending}" for ending in ENDINGS]
    for file in files:
        if file.suffix == ".parquet":
            table.to_parquet(file)
        else:
            table.to_csv(file, index=False)  # compressed as the ending says
    halves = [tmp_path / "first.csv", tmp_path / "second.csv"]
    for file, half in zip(halves, (table[:1000], table[1000:]), strict=True):
        half.to_csv(file, index=False)
    for paths in (*([file] for file in files), halves):
        [main] = study_of_tables(read_scores(paths), None, expected.metric).comparisons
        assert [it.sentence() for it in main.verdicts] == sentences
    of_frame = compare_scores("softmax", table, expected.metric)
    assert [it.sentence() for it in of_frame] == sentences


FOUR = {
    (arm, seed, n): n + (seed + 1) * (n % step) for arm, step in {"softmax": 1, "dnas": 3, "hnas": 2}.items()
    for seed in range(4) for n in range(12)
}  # fmt: skip


@pytest.mark.parametrize(
    ("left_out", "said", "sizes"),
    [
        (lambda arm, seed, n: False, "", (4, 12)),
        (lambda arm, seed, n: arm == "hnas" and seed == 2, "Left out: seed 2, for want of scores of hnas.", (3, 12)),
        (lambda arm, seed, n: arm == "hnas" and seed > 1, "at least 3 seeds are needed (found 2)", (4, 12)),
        (
            lambda arm, seed, n: {"hnas": seed < 3, "softmax": seed == 3}.get(arm),
            "hnas is not compared: hnas and softmax have no seed in common",
            (3, 12),
        ),
        (lambda *score: score == ("dnas", 1, 7), "1 example, such as 7 (not scored: dnas, seed 1)", (4, 11)),
        (lambda arm, seed, n: seed > 0, "at least 3 seeds are needed (found 1)", (1, 12)),
    ],
)
def test_what_arms_have_no_scores_of_is_left_out_with_a_sentence(monkeypatch, tmp_path, capsys, left_out, said, sizes):
    rows = [f"{arm},{seed},{n},{value}" for (arm, seed, n), value in FOUR.items() if not left_out(arm, seed, n)]
    (tmp_path / "a.csv").write_text("\n".join(["arm,seed,example,score", *rows]))
    assert runs.call(monkeypatch, "compare", f"scores={tmp_path}/a.csv", f"out={tmp_path}/a.json", "better=lower") == 0
    printed, content = capsys.readouterr().out, json.loads((tmp_path / "a.json").read_text())
    dnas = next(arm for arm in content["arms"] if arm["label"] == "dnas")
    assert (len(dnas["verdict"]["by_seed"]), content["examples"]) == sizes and said in " ".join(printed.split())
    assert f"The scores are from {tmp_path}/a.csv." in content["setup"] and content["better"] == "lower"
    assert dnas["verdict"]["family"] == 2
    assert ("; seeds 0 and 1 (hnas)." in content["setup"]) == (len({len(arm["values"]) for arm in content["arms"]}) > 1)


def test_one_score_per_seed_gives_an_interval_for_new_seeds_and_no_verdict(monkeypatch, tmp_path, capsys):
    scores = {"softmax": [70.1, 70.4, 69.9, 70.2], "dnas": [71.0, 71.3, 70.6, 71.5], "hnas": [70.0, 70.3, 70.6]}
    rows = [f"{value},{seed},{arm}" for arm, of_arm in scores.items() for seed, value in enumerate(of_arm, start=1)]
    (tmp_path / "a.csv").write_text("\n".join(["acc,seed,model", *rows]))
    named = ("columns.arm=model", "columns.score=acc", "metric=accuracy")
    outs = f"out=[{tmp_path}/a.md,{tmp_path}/a.json]"
    assert runs.call(monkeypatch, "compare", f"scores={tmp_path}/a.csv", *named, outs) == 0
    said = " ".join(capsys.readouterr().out.split())
    differences = np.subtract(scores["dnas"], scores["softmax"])[:3]
    low, high = stats.t.interval(0.95, 2, differences.mean(), stats.sem(differences))
    assert "dnas minus softmax: +0.83 accuracy (3 seeds): no verdict, one score per seed says nothing about new" in said
    assert f"For new seeds on these examples only: 95 % interval {low:.2f} to {high:.2f}, p = " in said
    assert "Left out: seed 4, for want of scores of hnas." in said and "accuracy, one score per seed" in said
    assert "paired by seed. Nothing is said about new examples." in (tmp_path / "a.md").read_text()
    [dnas] = [arm for arm in json.loads((tmp_path / "a.json").read_text())["arms"] if arm["label"] == "dnas"]
    difference = dnas["verdict"]["difference"]
    assert difference["no_verdict"] == "one score per seed says nothing about new examples"
    assert difference["new_seeds"] == {"low": pytest.approx(low), "high": pytest.approx(high)}
    (tmp_path / "b.csv").write_text(f"{COLUMNS}\nsoftmax,1,x,1")
    (tmp_path / "c.csv").write_text("arm,seed,score\nsoftmax,1,1")
    assert runs.call(monkeypatch, "compare", f"scores=[{tmp_path}/b.csv,{tmp_path}/c.csv]") == 1
    assert "2 tables: some tables have a column example, and others one score per seed" in capsys.readouterr().err


def test_control_characters_of_a_file_reach_neither_the_terminal_nor_a_file(monkeypatch, tmp_path, capsys):
    """The name of an arm erases the verdict before it and shows another one, or turns what follows around."""
    name = "dnas\x1b[1A\x1b[2K\r\nsoftmax minus dnas: +9.00\u202e\x9b\u2028"
    with open(tmp_path / "a.csv", "w", newline="") as file:
        rows = [(name if arm == "dnas" else arm, seed, n, value) for (arm, seed, n), value in FOUR.items()]
        csv.writer(file).writerows([COLUMNS.split(","), *rows])
    outs = [tmp_path / f"out.{suffix}" for suffix in ("csv", "tex", "md", "json")]
    out = f"out=[{','.join(map(str, outs))}]"
    assert runs.call(monkeypatch, "compare", f"scores={tmp_path}/a.csv", "better=lower", out) == 0
    with open(tmp_path / "b.csv", "w", newline="") as file:
        csv.writer(file).writerows([COLUMNS.split(","), ("softmax", 0, 1, name)])
    assert runs.call(monkeypatch, "compare", f"scores={tmp_path}/b.csv") == 1
    printed = capsys.readouterr()
    for text in (printed.out, printed.err, *(it.read_text() for it in outs)):
        obeyed = [char for char in text if unicodedata.category(char) in ("Cc", "Zl", "Zp") or char == "\u202e"]
        assert {*obeyed} <= {"\n", "\t"} and "1b[2K" in re.sub(r"[{}\\]", "", text)
        assert not re.search(r"^\W*softmax minus dnas: \+9", text, re.M)


COLUMNS = "arm,seed,example,score"


@pytest.mark.parametrize(
    ("rows", "typed", "message"),
    [
        (["arm,seed,example"], [], "a.csv: no column score; the table has arm, seed, example"),
        (["arm,seed,score", "a,1,2", "a,1,3"], [], "a.csv:3: a second score of a, seed 1; the first is in "),
        (["arm,seed,score", "a,1,2", "a,1,3"], [], ", and there is no column example"),
        (["arm,seed,score,group", "a,1,2,g"], [], "a.csv: a column group, but no column example"),
        ([COLUMNS], ["columns.example=task"], "a.csv: no column task; the table has arm, seed, example, score"),
        ([COLUMNS], ["columns.arms=model"], "columns.arms: allowed: columns.arm, columns.seed, columns.example, "),
        ([COLUMNS], ["columns=model"], "columns=model: expected columns.<name>=<value>"),
        ([""], [], "a.csv: the file is empty"),
        ([COLUMNS, "a,1,x,1", "", "a,1,y,high"], [], "a.csv:4: score='high': expected a number"),
        *(([COLUMNS, f"a,1,x,{it}"], [], f"a.csv:2: score={it}: expected a finite number") for it in ("nan", "-1e200")),
        ([COLUMNS, "a,one,x,1"], [], "a.csv:2: seed='one': expected a whole number"),
        ([COLUMNS, "a,1,,2"], [], "a.csv:2: example is empty"),
        ([COLUMNS, "a,1,x,1", "a,1,x,0"], [], "a.csv:3: a second score of example x of a, seed 1; the first"),
        ([f"{COLUMNS},group", "a,1,x,1,g", "b,1,x,1,h"], [], "a.csv:3: example x has another group than in "),
        ([COLUMNS, "a,1,x,1"], [], "scores: there is nothing to compare with the only arm, a"),
        ([COLUMNS, "a,1,x,1", "b,2,x,1"], [], "b and a have no seed in common"),
        ([COLUMNS, "a,1,x,1", "b,1,y,1"], [], "no example has a score of every arm and seed: x (not scored"),
        ([COLUMNS, "a,1,x,1", "b,1,x,1"], ["baseline=c"], "baseline=c: the arms are a, b"),
        ([COLUMNS], [], "a.csv: no scores"),
        ([COLUMNS, "\udcff"], [], "a.csv:2: not UTF-8 text (character 1 of the line is the byte 0xff)"),
        ([COLUMNS, "a,1,x,1,5"], [], "a.csv:2: 5 fields, but the header has 4"),
        ([COLUMNS, "a,1"], [], "a.csv:2: 2 fields, but the header has 4"),
        ([f"{COLUMNS},score", "a,1,x,1,5"], [], "a.csv:1: column=score: 2 columns have this name"),
        *(([COLUMNS, f'a,1,x,"{it}"'], [], f"2: score='{it}': expected a number") for it in ("1,5", "1_5", "\u0661")),
        ([COLUMNS, "a,\u0661,x,1"], [], "a.csv:2: seed='\u0661': expected a whole number"),
        ([COLUMNS, 'a,1,"x"y,1'], [], "a.csv:2: ',' expected after"),
        ([COLUMNS], ["scores={0}/torn.csv.gz"], "torn.csv.gz:1: damaged compressed file"),
        ([COLUMNS], ["scores={0}/torn.csv.xz"], "torn.csv.xz:1: damaged compressed file"),
        ([COLUMNS], ["scores={0}/torn.parquet"], "torn.parquet: cannot be read"),
        ([COLUMNS], ["scores={0}/a.jsonl"], "a.jsonl: expected a table of scores (.csv, .csv.gz, "),
        ([COLUMNS], ["against=b"], "against=b: has no effect with scores"),
        (
            [COLUMNS, "a,1,x,1", "b,1,x,1"],
            ["metric=wer"],
            "better: must be given, better=higher or better=lower, as attnorm does not know the metric 'wer'",
        ),
        ([COLUMNS], ["scores={0}/*.csv", "out={0}/a.csv"], "out={0}/a.csv: is one of the files with scores"),
        ([COLUMNS], ["scores=no.csv"], "no.csv: no such file"),
        ([COLUMNS], ["scores={0}"], "{0}: expected a table of scores"),
    ],
)
def test_scores_that_cannot_be_read_are_named_with_their_line(monkeypatch, tmp_path, capsys, rows, typed, message):
    (tmp_path / "a.csv").write_text("\n".join(rows), errors="surrogateescape")
    for ending, compress in {"csv.gz": gzip.compress, "csv.xz": lzma.compress, "parquet": bytes}.items():
        (tmp_path / f"torn.{ending}").write_bytes(compress(COLUMNS.encode() * 99)[:-9])
    typed = [it.format(tmp_path) for it in typed]
    given = [] if any(it.startswith("scores") for it in typed) else [f"scores={tmp_path}/a.csv"]
    assert runs.call(monkeypatch, "compare", *given, *typed, f"out={tmp_path}/out.md") in (1, 2)
    assert message.replace("{0}", str(tmp_path)) in capsys.readouterr().err and not (tmp_path / "out.md").exists()


def test_tables_are_compared_with_their_seeds_groups_and_direction():
    table = np.random.default_rng(0).normal(size=(3, 40))
    groups = [f"image {n // 4}" for n in range(40)]
    [verdict] = compare_scores("softmax", {"softmax": 0 * table, "dnas": table}, seeds=[3, 5, 8], groups=groups)
    assert verdict.difference.clusters == 10 and list(verdict.by_seed) == [3, 5, 8]
    one, other = compare_scores("softmax", {"softmax": table, "copy": table, "better": table + 1})
    assert one.no_verdict == "all differences are zero" and np.isnan(one.adjusted)
    assert other.by_seed == pytest.approx({1: 1, 2: 1, 3: 1})
    for metric, better, said in (("loss", None, True), ("accuracy", None, False), ("fid", "lower", True)):
        [verdict] = compare_scores("softmax", {"softmax": table, "dnas": table**2}, metric, better=better)
        assert ("(lower is better)" in verdict.sentence()) is said


def test_tables_that_do_not_fit_are_refused_together():
    table = np.zeros((3, 5))
    rows = pd.DataFrame({"arm": ["a", "b"], "seed": 1, "example": "x", "score": [1.0, None]})
    with pytest.raises(DataError, match=r"scores, row 2: score='': expected a number"):
        compare_scores("a", rows)
    with pytest.raises(ConfigError, match="groups: has no effect on a DataFrame"):
        compare_scores("a", rows, groups=["x"])
    with pytest.raises(ConfigError, match=r"baseline=sofmax: must be one of softmax, dnas. Did you mean 'softmax'\?"):
        compare_scores("sofmax", {"softmax": table, "dnas": table})
    with pytest.raises(ConfigError) as refused:
        scores = {"softmax": table, "dnas": table[:2], "hnas": table + np.nan, "flat": table[0]}
        compare_scores("softmax", scores, seeds=[1, 2])
    assert refused.value.problems == [
        "seeds=[1,2]: softmax has 3 rows",
        "scores.dnas: the shape (2, 5); softmax has (3, 5), (seeds, examples)",
        "scores.hnas: some scores are not finite",
        "scores.flat: the shape (5,); softmax has (3, 5), (seeds, examples)",
    ]


# the command


def test_the_command_prints_scores_verdicts_and_plans(monkeypatch, tmp_path, capsys):
    make_runs(tmp_path, THREE, seeds=range(4))
    assert runs.call(monkeypatch, "compare", f"against={tmp_path}", "baseline=softmax") == 0
    said = " ".join(capsys.readouterr().out.split())
    for verdict in compare("softmax", tmp_path).verdicts:
        assert " ".join(verdict.sentence().split()) in said
    assert runs.call(monkeypatch, "compare", str(tmp_path), "plan=1") == 0
    said = capsys.readouterr().out
    assert "to detect 1 ROUGE-L F1 with 80 % power" in said and "seeds per arm" in said
    for verdict in compare("softmax", tmp_path).verdicts:  # two arms
        for row in plan(verdict.difference.variances, 1, level=0.975):
            assert re.search(rf"{row.examples:,} .*{row.seeds or 'no number is enough'} .*{row.detectable:.2f}", said)
    make_runs(tmp_path, {"ot": 3.0}, seeds=(1,))  # too few runs, which do not keep the others from a plan
    assert runs.call(monkeypatch, "compare", str(tmp_path), "plan=1") == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "ot minus softmax: no plan, pilot:" in said and "hnas minus softmax: to detect 1 ROUGE-L F1" in said


@pytest.mark.slow
def test_the_files_of_a_comparison_say_what_it_says_and_the_page_copies_them(monkeypatch, tmp_path):
    make_runs(tmp_path / "runs", THREE, seeds=range(4), lead=5.0)
    files = [tmp_path / f"out/result.{ending}" for ending in ("tex", "md", "csv", "json")]
    assert runs.call(monkeypatch, "compare", str(tmp_path / "runs"), *(f"out={file}" for file in files)) == 0
    tex, markdown, table, record = (file.read_text() for file in files)
    without_charts(monkeypatch)
    report = collect([tmp_path / "runs"])
    copies = [it["data-copy"] for it in Page(html_of(report)).of("button") if "data-copy" in it]
    assert copies[:3] == [tex, markdown, table]
    rows, content = pd.read_csv(files[2], index_col="arm"), json.loads(record)
    arms = {arm["label"]: arm for arm in content["arms"]}
    comparison = compare("softmax", tmp_path / "runs")
    for scores in comparison.scores:
        arm, row = arms[scores.label], rows.loc[scores.label]
        digits = [float(f"{value:.15g}") for value in (scores.mean, scores.spread, *scores.values.values())]
        assert [arm["mean"], arm["spread"], *arm["values"].values()] == digits and row["ROUGE-L F1"] == digits[0]
    for verdict in comparison.verdicts:
        said, row = arms[verdict.label]["verdict"], rows.loc[verdict.label]
        ends, difference = verdict.interval, verdict.difference.estimate
        numbers = [float(f"{value:.15g}") for value in (difference, ends.low, ends.high, verdict.adjusted)]
        written = [said["difference"]["estimate"], *said["interval"].values(), said["p_value"]]
        assert written == numbers and said["word"] == verdict.word
        names = ("difference", "95 % interval from", "95 % interval to", "adjusted p")
        assert [row[name] for name in names] == numbers and said["sentence"] == verdict.sentence()
        [shown] = [line for line in tex.splitlines() if line.startswith(f"{verdict.label} & ")]
        cells = next(cells for cells in report.tasks[0].main.texts if cells[0] == verdict.label)
        assert shown.replace("$-$", "\u2212").removesuffix(r" \\").split(" & ") == [*cells[:8], *cells[9:11]]
    for words in (
        "2 comparisons (Holm)",
        "a learning rate of 0.001",
        "seeds 0, 1, 2 and 3",
        "600 updates",
        "1,442,208",
    ):
        assert words in content["setup"] and words in tex and words in markdown


def test_a_verdict_that_is_withheld_is_written_without_numbers(monkeypatch, tmp_path):
    make_runs(tmp_path / "runs", {"softmax": 0.0, "dnas": 9.0}, lead=60.0)
    assert runs.call(monkeypatch, "compare", str(tmp_path / "runs"), f"out={tmp_path}/a.json") == 0
    content = json.loads((tmp_path / "a.json").read_text())
    assert set(content["arms"][1]["verdict"]) == {"word", "sentence"} and content["withheld"]


@pytest.mark.parametrize(
    ("label", "latex", "markdown", "in_csv"),
    [
        ("a_b & 50% | =1", r"a\_b \& 50\% \textbar{} =1", r"a\_b & 50% \| =1", "a_b & 50% | =1"),
        ("[1], *2", "{[}1], {*}2", r"\[1\], \*2", '"[1], *2"'),  # after a line break, LaTeX takes both as options
        ("=X--1<2", r"=X-{}-1$<$2", r"=X--1\<2", "'=X--1<2"),  # a formula of a spreadsheet
    ],
)
def test_labels_of_tables_are_escaped(label, latex, markdown, in_csv):
    rows = [[Cell(label), Cell(""), interval(-0.1234, 1 / 3, 2)]]
    table = Table("Cap", [Column("arm"), Column("no"), Column("ends \u2191", True)], rows, about="More.")
    lines = table.latex.splitlines()
    assert lines[3:5] == [r"\caption{Cap.}", r"\label{tab:cap}"] and lines[-3:] == [r"\end{table*}", "", "More."]
    assert lines[6:10] == [
        r"\begin{tabular}{lr}", r"\toprule", r"arm & ends $\uparrow$ \\", r"\midrule"
    ]  # fmt: skip
    assert lines[10] == rf"{latex} & $-$0.12 to 0.33 \\"
    assert table.markdown.splitlines()[2:] == [f"| {markdown} | \u22120.12 to 0.33 |", "", "Cap.", "", "More."]
    assert table.csv == f"arm,no,ends from,ends to\n{in_csv},,-0.1234,{1 / 3:.15g}\n"


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (["against=no", "out=a.xls"], "out=a.xls: must end with .csv, .json, .tex, .md\n"),
        (["against=no", "out=[{}/a.csv,{}]"], "must end with .csv"),
        (["against=no", "out={}/softmax_1/run.json/a.csv"], "expected a folder, found a file"),
        (["against={}", "level=95"], "level=95: allowed: numbers above 0 and below 1"),
        (["against={}", "better=lower"], "better=lower: has no effect on runs, whose task says it"),
        (["against={}", "split=dev"], "split=dev: allowed: auto, test, validation"),
        (["against=null"], "against: must be given, as in against=<folder>, or scores=<file>"),
        (["against=a,b"], "against=a,b: type several values as a list, against=[a,b]\n"),
        (["against={}", "data.max_valid=3"], "data.max_valid=3: attnorm compare has no such option; it has against"),
        (["nowhere"], "nowhere: no such folder"),
        (
            ["against=no", "nowhere"],
            "nowhere: expected key=value; the keys are baseline, against, scores, metric, columns, better,",
        ),
    ],
)
def test_wrong_keys_of_the_command_are_named(monkeypatch, tmp_path, capsys, typed, message):
    make_runs(tmp_path, THREE, seeds=(1,))
    assert runs.call(monkeypatch, "compare", *(it.replace("{}", str(tmp_path)) for it in typed)) in (1, 2)
    assert message in capsys.readouterr().err
