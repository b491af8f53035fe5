"""Comparisons of runs: which runs form an arm, on which examples they are compared, and what the verdict says."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import runs
from made_up_runs import make_run, make_runs
from scipy import stats

from attnorm.analysis import compare
from attnorm.analysis.arms import arms_of, find_runs, varying, waiting_jobs
from attnorm.analysis.comparison import all_verdicts
from attnorm.config.run_state import locked
from attnorm.errors import ConfigError, RunError
from attnorm.sweeps.state import Journal

THREE = {"softmax": 0.0, "dnas": 3.0, "hnas": 0.0}


def table_of(folder, stem="validation"):
    return pd.read_parquet(folder / f"predictions/{stem}.parquet")


def change_table(folder, change, stem="validation"):
    rows = table_of(folder)
    change(rows)
    rows.to_parquet(folder / f"predictions/{stem}.parquet", index=False)


# arms


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


def test_of_two_runs_with_one_seed_the_finished_one_counts(tmp_path):
    finished = make_run(tmp_path / "b", seed=1)
    make_run(tmp_path / "a", seed=1, state="failed", why="RuntimeError: x")
    make_run(tmp_path / "c", seed=1, state=None)
    [arm] = arms_of(find_runs([tmp_path]))
    assert [run.folder for run in arm.runs] == [finished]


def test_runs_are_found_in_folders_below_folders_and_by_patterns(tmp_path):
    folders = make_runs(tmp_path / "logs/gigaword", {"softmax": 0.0, "dnas": 0.0}, seeds=(1, 2))
    (tmp_path / "logs/empty").mkdir()
    assert {run.folder for run in find_runs([tmp_path])} == set(folders)
    assert [run.folder for run in find_runs([folders[0], str(tmp_path / "logs/*/dnas_?")])] == [
        folders[0],
        *folders[2:],
    ]
    with pytest.raises(RunError, match=r"empty: no run folder there"):
        find_runs([folders[0], tmp_path / "logs/empty"])


def test_settings_that_only_some_have_vary():
    assert varying([{"a": 1, "b": 2, "c": None}, {"a": 1, "b": 3}, {"a": 1, "b": 2}]) == ["b", "c"]
    assert varying([{"a": 1}]) == []


# scores


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


def test_the_examples_are_paired_by_id_whatever_their_order(tmp_path):
    folders = make_runs(tmp_path, THREE)
    before = compare("softmax", tmp_path)
    rows = table_of(folders[4])
    rows.iloc[::-1].to_parquet(folders[4] / "predictions/validation.parquet", index=False)
    after = compare("softmax", tmp_path)
    assert [it.difference for it in after.verdicts] == [it.difference for it in before.verdicts]


def test_the_test_split_is_used_once_all_runs_have_been_scored_on_it(tmp_path):
    folders = make_runs(tmp_path, THREE)
    for folder in folders:
        assert compare("softmax", tmp_path).source == "half"
        change_table(folder, lambda rows: rows.pop("selecting"), "eval_test")
        (folder / "eval_test.json").write_text('{"typed": {}}')
    found = compare("softmax", tmp_path)
    assert (found.source, found.examples) == ("test", 200)
    assert compare("softmax", tmp_path, split="validation").source == "half"
    (folders[0] / "eval_test.json").write_text('{"typed": {"decoding.beam_size": 1}}')
    assert compare("softmax", tmp_path).source == "half"


def test_scores_on_examples_that_selected_the_checkpoint_come_with_a_warning(tmp_path):
    for folder in make_runs(tmp_path, THREE):
        change_table(folder, lambda rows: rows.pop("selecting"))
    found = compare("softmax", tmp_path)
    assert found.source == "validation" and "too good" in found.notes[0]


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


def test_groups_enter_as_clusters(tmp_path):
    for folder in make_runs(tmp_path, THREE):
        change_table(folder, lambda rows: rows.__setitem__("group", [str(n // 8) for n in range(200)]))
    verdict = compare("softmax", tmp_path).verdicts[0]
    assert (verdict.difference.examples, verdict.difference.clusters) == (100, 25)
    assert "100 examples in 25 groups" in verdict.sentence()


def test_examples_without_a_score_are_left_out(tmp_path):
    folders = make_runs(tmp_path, THREE)
    change_table(folders[1], lambda rows: rows.loc.__setitem__((slice(0, 19), "rougeL"), np.nan))
    found = compare("softmax", tmp_path)
    assert found.examples == 90 and "10 examples" in found.notes[0]


def test_runs_on_other_data_are_not_compared(tmp_path):
    folders = make_runs(tmp_path, THREE)
    change_table(folders[1], lambda rows: rows.loc.__setitem__((1, "reference"), "another title"))
    with pytest.raises(RunError, match="scored on different data"):
        compare("softmax", tmp_path)
    make_run(tmp_path / "vqa", task="vqa")
    with pytest.raises(RunError, match="different tasks cannot be compared: gigaword, vqa"):
        compare("softmax", tmp_path)


# verdicts


def test_a_large_difference_is_shown_and_none_is_not(tmp_path):
    make_runs(tmp_path, {"softmax": 0.0, "dnas": 9.0}, seeds=range(5), examples=400)
    [dnas] = compare("softmax", tmp_path).verdicts
    assert dnas.is_shown and dnas.adjusted < 0.01 and ": shown" in dnas.sentence()
    low, high = dnas.difference.new_seeds_and_examples.low, dnas.difference.new_seeds_and_examples.high
    assert dnas.sentence().startswith(f"dnas minus softmax: {dnas.difference.estimate:+.2f} ROUGE-L F1, 95 % interval ")
    assert f"{low:.2f} to {high:.2f} for new seeds and new examples (5 seeds, 200 examples)" in dnas.sentence()
    assert f"Detectable with 80 % power: {dnas.difference.detectable:.2f}." in dnas.sentence()
    assert ": shown, adjusted p < 0.001. " in replace(dnas, adjusted=1e-9).sentence()
    assert ": shown, adjusted p = 0.012. " in replace(dnas, adjusted=0.012).sentence()
    assert "For new seeds on these examples only" in dnas.claim_for_this_test_set()


def test_p_values_are_adjusted_for_all_arms(tmp_path):
    make_runs(tmp_path, THREE, seeds=range(4))
    found = compare("softmax", tmp_path)
    single = sorted(it.difference.p_value for it in found.verdicts)
    assert sorted(it.adjusted for it in found.verdicts) == pytest.approx(
        [min(1, 2 * single[0]), max(single[1], 2 * single[0])]
    )
    both = list(all_verdicts([found, compare("softmax", tmp_path), compare("softmax", tmp_path, "rouge1")]))
    assert len(both) == 4 and min(it.adjusted for it in both) == pytest.approx(4 * single[0])


def test_two_seeds_give_no_verdict(tmp_path):
    make_runs(tmp_path, THREE, seeds=(1, 2))
    for verdict in compare("softmax", tmp_path).verdicts:
        assert not verdict.is_shown and "no verdict" in verdict.sentence() and math.isnan(verdict.adjusted)


def test_equal_runs_give_no_verdict(tmp_path):
    make_runs(tmp_path, {"softmax": 0.0})
    for seed in (1, 2, 3):
        make_run(tmp_path / f"dnas_{seed}", "dnas", seed)
        (tmp_path / f"dnas_{seed}/predictions/validation.parquet").write_bytes(
            (tmp_path / f"softmax_{seed}/predictions/validation.parquet").read_bytes()
        )
    [verdict] = compare("softmax", tmp_path).verdicts
    assert "no verdict" in verdict.sentence() and "zero" in verdict.no_verdict


def test_a_failed_run_drops_its_pair_and_is_reported(tmp_path):
    make_runs(tmp_path, {"softmax": 0.0, "dnas": 3.0}, seeds=range(4))
    make_run(tmp_path / "softmax_4", seed=4, state="failed", why="RuntimeError: out of memory")
    make_run(tmp_path / "dnas_4", "dnas", 4)
    make_run(tmp_path / "dnas_5", "dnas", 5, state=None)
    found = compare("softmax", tmp_path)
    assert found.verdicts[0].difference.seeds == 4 and found.verdicts[0].no_verdict is None
    assert found.scores[0].left_out == ("softmax, seed 4: failed (RuntimeError: out of memory)",)
    assert found.scores[1].left_out == ("dnas, seed 5: killed",)


def test_no_verdict_is_given_while_planned_runs_are_unfinished(tmp_path):
    make_runs(tmp_path, THREE, seeds=range(4))
    running = make_run(tmp_path / "dnas_7", "dnas", 7, state=None)
    with locked(running):
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
    journal.add("end", "dnas_8", code=2, failure=True)  # before it had a run folder
    assert waiting_jobs([tmp_path]) == []


def test_runs_with_other_callbacks_are_another_arm(tmp_path):
    make_run(tmp_path / "a")
    make_run(tmp_path / "b", settings={"callbacks.early.patience": 3})
    assert [arm.label for arm in arms_of(find_runs([tmp_path]))] == [
        "softmax (callbacks={})",
        "softmax (callbacks.early.patience=3)",
    ]


def test_settings_besides_the_attention_that_differ_are_named(tmp_path):
    make_runs(tmp_path, {"softmax": 0.0, "hnas+lr=0.01": 0.0})
    assert compare("softmax", tmp_path).differing == ["optimizer.lr"]
    make_runs(tmp_path / "equal", THREE)
    assert compare("softmax", tmp_path / "equal").differing == []


def test_a_class_tells_arms_apart_without_the_settings_that_only_one_of_them_has(tmp_path):
    for model, more in (("Flat", {}), ("Hierarchical", {"attention.sentence": "softmax"})):
        make_run(tmp_path / model, settings={"model._target_": f"attnorm.models.documents.{model}", **more})
    assert [arm.label for arm in arms_of(find_runs([tmp_path]))] == [
        "softmax (model._target_=Flat)",
        "softmax (model._target_=Hierarchical)",
    ]


def test_a_setting_that_only_one_arm_has_is_named_beside_another_difference(tmp_path):
    make_run(tmp_path / "a", settings={"optimizer.lr": 0.01})
    make_run(tmp_path / "b", settings={"optimizer.lr": 0.1, "callbacks.early.patience": 3})
    labels = [arm.label for arm in arms_of(find_runs([tmp_path]))]
    assert labels[1] == "softmax (callbacks.early.patience=3, optimizer.lr=0.1)"


def test_options_of_the_normalizer_are_named_without_their_group(tmp_path):
    make_run(tmp_path / "a", "ot", settings={"attention.options.ot.cost": "learned"})
    make_run(tmp_path / "b", "ot", settings={"attention.options.ot.cost": "fixed"})
    assert [arm.label for arm in arms_of(find_runs([tmp_path]))] == ["ot (cost=learned)", "ot (cost=fixed)"]


# arguments


def test_arms_that_differ_in_unlisted_settings_only_have_labels_of_their_own(tmp_path):
    shared = {f"model.a{number}": 1 for number in range(8)}
    for name, last in (("one", 1), ("two", 2), ("three", 3)):
        make_run(tmp_path / name, settings=shared | {"model.a7": last})
    make_run(tmp_path / "other", settings=dict.fromkeys(shared, 0))
    labels = [arm.label for arm in arms_of(find_runs([tmp_path]))]
    assert len(set(labels)) == 4 and sum("2 more" in label for label in labels) == 4
    assert {label.rpartition(")")[2] for label in labels} == {"", " [1]", " [2]", " [3]"}


def test_the_baseline_is_a_place_or_a_label_or_softmax(tmp_path):
    make_runs(tmp_path, THREE)
    typed = [
        compare("softmax", tmp_path),
        compare(tmp_path),
        compare(str(tmp_path / "softmax_*"), tmp_path),
        compare(
            [tmp_path / f"softmax_{seed}" for seed in (1, 2, 3)], [str(tmp_path / "dnas_*"), str(tmp_path / "hnas_*")]
        ),
    ]
    assert len({found.baseline for found in typed}) == 1
    assert len({tuple(it.difference.estimate for it in found.verdicts) for found in typed}) == 1


@pytest.mark.parametrize(
    ("baseline", "more", "message"),
    [
        ("softmx", {}, "baseline=softmx: there is neither such a folder nor such an arm.*Did you mean 'softmax'"),
        ("softmax", {"metric": "rougel"}, "metric=rougel: .*allowed: rouge1, rougeL, loss, perplexity.*'rougeL'"),
        ("here", {}, "baseline: must be one arm, but these runs form 3: dnas; hnas; softmax"),
    ],
)
def test_wrong_arguments_are_named(tmp_path, baseline, more, message):
    make_runs(tmp_path, THREE)
    with pytest.raises(ConfigError, match=message):
        compare(tmp_path if baseline == "here" else baseline, tmp_path, **more)


def test_there_must_be_something_to_compare(tmp_path):
    make_runs(tmp_path, {"softmax": 0.0})
    with pytest.raises(ConfigError, match="nothing to compare with the baseline, softmax"):
        compare(tmp_path)
    make_run(tmp_path / "dnas_9", "dnas", 9)
    with pytest.raises(RunError, match="no seed"):
        compare(tmp_path)


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


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (["baseline=softmax"], "against: must be given"),
        (["against={}", "level=95"], "level=95: allowed: numbers above 0 and below 1"),
        (["against={}", "split=dev"], "split=dev: allowed: auto, test, validation"),
        (["against={}", "plan=0"], "plan=0: allowed: numbers above 0"),
        (["against={}", "data.max_valid=3"], "data.max_valid: cannot be set here"),
        (["against={}/nothing"], "nothing: no run folder there"),
        (["nowhere"], "nowhere: expected key=value; the keys are baseline, against, metric, split, level, plan\n"),
    ],
)
def test_wrong_keys_of_the_command_are_named(monkeypatch, tmp_path, capsys, typed, message):
    make_runs(tmp_path, THREE, seeds=(1,))
    assert runs.call(monkeypatch, "compare", *(it.format(tmp_path) for it in typed)) in (1, 2)
    assert message in capsys.readouterr().err


def test_several_runs_of_the_command_are_typed_as_a_list(monkeypatch, capsys):
    assert runs.call(monkeypatch, "compare", "against=a,b") == 2
    assert capsys.readouterr().err == "error: against=a,b: type several values as a list, against=[a,b]\n"
