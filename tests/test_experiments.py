"""The scripts of experiments/: which sweeps they run, what they read of them, and the tables that they print."""

import dataclasses
import itertools
import json
import os
import re
import sys
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import runs
import scripts
from made_up_runs import make_run, make_runs, write_state

from attnorm.analysis import compare
from attnorm.analysis.statistics.crossed import paired_difference
from attnorm.analysis.statistics.power import detectable
from attnorm.attention import check_attention
from attnorm.experiments.vqa_table1.shape_questions import EasyVqa
from attnorm.run.csv_files import read_csv

FOLDER = runs.ROOT / "experiments"


def load(name):
    """A script of experiments/ as a module."""
    return scripts.load(f"experiments/{name}")


sys.path.insert(0, str(FOLDER))
sweeps = load("sweeps")


@pytest.fixture
def commands(monkeypatch):
    """The verbs that were run, with their arguments. A sweep finishes one run per combination at once, with scores that
    follow from its settings."""
    import sweeps as imported  # as the scripts see it

    ran = []

    def run(verb, arguments):
        ran.append((verb, arguments))
        if verb == "eval":
            folder = runs.Path(arguments[0].removeprefix("run="))
            (folder / "eval_test.json").write_text('{"metrics": {}, "baselines": {}}')
        if verb != "sweep":
            return 0
        settings = dict(it.split("=", 1) for it in arguments if not it.startswith("out="))
        folder = runs.Path(next(it for it in arguments if it.startswith("out=")).removeprefix("out="))
        jobs = []
        for values in combinations(settings):
            one = len(values.get("attention.cross", values["attention"])) + int(values["seed"]) / 10
            scores = {name: one + offset for name, offset in OFFSETS.items()}
            arm = [values[key] for key in SWEPT[2:] if key in values and (key != "model" or "," in settings[key])]
            job = folder / "_".join([values["attention"], values["seed"], "-".join(arm)])
            job.mkdir(parents=True, exist_ok=True)
            baselines = {"lead-8": scores, "the most frequent caption": scores}
            summary = {"validation": {"metrics": scores, "baselines": baselines}}
            summary |= {"parameters": 1234, "wall_seconds": 90}
            (job / "summary.json").write_text(json.dumps(summary))
            jobs.append({"folder": str(job), "overrides": [f"{key}={value}" for key, value in values.items()]})
        write_state(folder, {"jobs": jobs})
        return 0

    monkeypatch.setattr(imported, "run", run)
    return ran


OFFSETS = {"rouge1": 0, "rouge2": 10, "rougeL": 20, "loss": 30, "accuracy": 40, "f1": 50, "exact": 60}
OFFSETS |= {"CIDEr-D": 70, "BLEU-4": 80}
EM, BANK = "attention.options.em_routing", "attention.bank.encoder"
SWEPT = (
    *("attention", "seed", "model", "model.fusion", "attention.cross", "attention.encoder"),
    *(f"{EM}.n_iters", f"{EM}.sigma", f"{EM}.beta", BANK),
)


def combinations(settings):
    """The settings of each run of a sweep over the keys in SWEPT."""
    given = {"attention": "softmax", **settings}
    swept = {key: given[key].split(",") for key in SWEPT if key in given}
    return [given | dict(zip(swept, values, strict=True)) for values in itertools.product(*swept.values())]


def start(monkeypatch, name, *arguments, script="run"):
    """Runs a script with these arguments."""
    monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
    load(f"{name}/{script}").main()


def cells(printed):
    """The rows of the last table that was printed: {first cell: other cells}."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in printed.splitlines() if line[:1] == "|"]
    return {first: rest for first, *rest in rows}


def test_table_2_compares_starts_of_the_same_shape_and_says_what_it_leaves_out(tmp_path, monkeypatch, capsys, commands):
    bert = tmp_path / "bert"
    bert.mkdir()
    (bert / "config.json").write_text('{"model_type": "bert", "hidden_size": 48, "num_hidden_layers": 3}')
    arguments = ["--data", tmp_path, "--bert", bert, "--folder", tmp_path / "t", "--seeds", 1, 2]
    start(monkeypatch, "gigaword_table2", *arguments)
    (_, random), (_, trained), (verb, folders) = commands
    of_both = {*random} & {*trained}
    assert {"experiment=reuters", "attention=softmax,hnas", "seed=1,2", f"data.dir={tmp_path}"} <= of_both
    assert f"model.init={bert}" in trained and not any(it.startswith("model.init") for it in random)
    assert {"++model.d_model=48", "model.decoder_layers=3", f"tokenizer.file={bert}"} <= {*random}
    assert verb == "report" and folders == [f"{tmp_path}/t/random", f"{tmp_path}/t/BERT"]
    rows = cells(capsys.readouterr().out)
    assert rows["hnas, BERT"] == [f"{it}.15 ± 0.07" for it in (4, 14, 24)] + ["39.06", "20.14", "36.51"]
    assert rows["SEASS"][:3] == ["-"] * 3 and rows["lead-8"][3:] == ["-"] * 3
    start(monkeypatch, "gigaword_table2", "--data", tmp_path, "--folder", tmp_path / "u", "--", "jobs=2")
    assert len(commands) == 5 and "jobs=2" in commands[3][1]
    printed = capsys.readouterr().out
    assert "no --bert" in printed and cells(printed)["softmax, BERT"][0] == "-"
    with pytest.raises(SystemExit):
        start(monkeypatch, "gigaword_table2", "--data", tmp_path, "--size", "full")


def test_table_1_has_an_arm_per_way_of_fusing(tmp_path, monkeypatch, capsys, commands):
    start(monkeypatch, "vqa_table1", "--folder", tmp_path, "--seeds", 1, 2)
    assert [verb for verb, _ in commands] == ["sweep", "sweep", "report"]
    assert "model.fusion=single,concat" in commands[0][1] and "attention=softmax,dnas,hnas" in commands[1][1]
    rows = cells(capsys.readouterr().out)
    assert rows["one view"][-2:] == ["68.33", "-"] and rows["fused, dnas"][-2:] == ["69.70", "70.01"]
    assert rows["fused, hnas"][:1] == ["4.15 ± 0.07"] and rows["fused, hnas"][-1] == "-"


@pytest.mark.parametrize("name", ["vqa_table1", "em_routing"])
def test_the_images_of_a_package_are_read_by_a_class_beside_the_experiment(tmp_path, monkeypatch, commands, name):
    start(monkeypatch, name, "--data", "easy_vqa", "--folder", tmp_path)
    data = [it for it in commands[0][1] if it.startswith("data")]
    assert isinstance(runs.checked(runs.composed("task=vqa", *data)).source.build(), EasyVqa)


def test_table_1_reads_the_files_of_vqa_v2(tmp_path, monkeypatch, capsys, commands):
    with pytest.raises(SystemExit, match=r"expected one .json file named \*train\* and \*questions\*; found none"):
        start(monkeypatch, "vqa_table1", "--data", tmp_path)
    for name in ("questions_train", "annotations_train", "questions_val", "annotations_val"):
        (tmp_path / f"v2_{name}.json.gz").touch()
    start(monkeypatch, "vqa_table1", "--data", tmp_path, "--folder", tmp_path / "t")
    assert "no --features" in capsys.readouterr().out
    [arguments] = [arguments for verb, arguments in commands if verb == "sweep"]
    assert {"model.fusion=none", f"data.validation_annotations={tmp_path}/v2_annotations_val.json.gz"} < {*arguments}
    views = [tmp_path / "a", tmp_path / "b"]
    arguments = ["--size", "full", "--data", tmp_path, "--folder", tmp_path / "full", "--features", *views]
    start(monkeypatch, "vqa_table1", *arguments)
    assert f"data.features=[{tmp_path}/a,{tmp_path}/b]" in commands[-2][1]


def test_a_regularizer_of_ones_own_stands_beside_the_closed_forms(tmp_path, monkeypatch, capsys, commands):
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    start(monkeypatch, "own_regularizer", "--folder", tmp_path, "--seeds", 1, 2)
    (_, arguments), (verb, folders) = commands
    arms = "softmax,sparsemax,fusedmax,softcap.SoftCap,uniform,none"
    assert {"attention=softmax", f"attention.cross={arms}", "seed=1,2"} < {*arguments}
    assert (verb, folders) == ("report", [str(tmp_path)])
    assert os.environ["PYTHONPATH"].split(os.pathsep) == [str(FOLDER / "own_regularizer"), "elsewhere"]
    assert cells(capsys.readouterr().out)["softcap.SoftCap"][0] == "15.15 ± 0.07"
    assert check_attention({"_default_": "softmax", "cross": "softcap.SoftCap"}, {"cross": True}) == []


def test_table_3_fine_tunes_each_pretrained_run(tmp_path, monkeypatch, capsys, commands):
    files = [tmp_path / "train", tmp_path / "valid"]
    arguments = ["--arms", "softmax", "hnas", "--seeds", 1, 2, "--squad20", *files, "--folder", tmp_path / "t"]
    start(monkeypatch, "mlm_table3", *arguments)
    pretraining, first, second, (verb, folders) = commands
    assert "attention=softmax,hnas" in pretraining[1] and verb == "report" and len(folders) == 3
    for (_, tuning), arm in ((first, "softmax"), (second, "hnas")):
        init = next(it for it in tuning if it.startswith("model.init=")).removeprefix("model.init=")
        for seed in ("1", "2"):
            linked = runs.Path(init.replace("${seed}", seed)).resolve()
            assert linked == (tmp_path / "t/mlm" / f"{arm}_{seed}_").resolve()
        assert {"task.no_answer=true", f"attention={arm}", f"data.train={files[0]}"} < {*tuning}
    printed = capsys.readouterr().out
    assert "no --squad11" in printed and "no --mnli" in printed
    rows = cells(printed)
    assert rows["hnas"][2:7] == ["-", "-", "54.15 ± 0.07", "64.15 ± 0.07", "-"]
    assert rows["hnas"][7:] == ["90.90", "84.00", "80.50", "77.40", "84.70"]


def test_table_3_can_start_from_bert(tmp_path, monkeypatch, commands):
    mnli = ["--mnli", tmp_path / "train", tmp_path / "valid", "--arms", "softmax"]
    start(monkeypatch, "mlm_table3", "--init", tmp_path, *mnli, "--folder", tmp_path / "t")
    [(_, tuning), (_, folders)] = commands
    assert f"model.init={tmp_path}" in tuning and "optimizer.lr=1e-3" not in tuning
    assert folders == [f"{tmp_path}/t/mnli_softmax"]


def test_the_deviation_of_models_and_of_runs_is_in_one_table(tmp_path, monkeypatch, capsys, commands):
    models = {"MiniLM": [(0, 0.25), (0, 0.75), (1, 0.125)]}
    for place, means in (("models", models), ("own", {"dnas_1_": [(0, 1.0)]})):
        (tmp_path / place).mkdir()
        rows = [f"{name},encoder,{layer},0,{value}" for name, values in means.items() for layer, value in values]
        (tmp_path / place / "fenchel_fig4.csv").write_text("\n".join(["model,stack,layer,position,deviation", *rows]))
    text, models = tmp_path / "text.txt", [tmp_path / "bert", tmp_path / "t5"]
    start(monkeypatch, "fenchel_figures", "--text", text, "--models", *models, "--arms", "dnas", "--folder", tmp_path)
    (_, pretraining), (_, of_models), (_, of_runs), (_, heads), (verb, folders) = commands
    assert {"attention=dnas", f"data.files=[{text}]"} < {*pretraining}
    assert {"fenchel_fig8", f"model=[{models[0]},{models[1]}]", f"out={tmp_path}/models"} < {*of_models}
    for name, arguments in (("fenchel_fig4", of_runs), ("fenchel_fig5", heads)):
        assert {name, f"runs=[{tmp_path}/runs/dnas_1_]", f"out={tmp_path}/own"} < {*arguments}
    assert verb == "report" and folders == [f"{tmp_path}/runs"]
    rows = cells(capsys.readouterr().out)
    assert rows["MiniLM: encoder"] == ["0.500", "0.125"] and rows["dnas, seed 1: encoder"] == ["1.000", "-"]


ARMS = ("softmax", "hnas")


def test_verdicts_of_a_sweep_are_written_with_their_command(tmp_path, monkeypatch, capsys):
    make_runs(tmp_path / "runs", dict(zip(ARMS, (0, 3), strict=True)), seeds=(1, 2, 3))
    make_run(tmp_path / "runs/fourth", "hnas", 4, gain=3, state="failed")
    typed = f"{tmp_path}/runs --out {tmp_path}/v.csv --metrics loss rougeL --command"
    monkeypatch.setattr(sys, "argv", ["verdicts", *typed.split(), "attnorm sweep a=1,2"])
    load("verdicts").main()
    rows = read_csv(tmp_path / "v.csv")
    expected = [(metric, arm, primary) for metric, primary in (("rougeL", "true"), ("loss", "false")) for arm in ARMS]
    assert [(row["metric"], row["arm"], row["primary"]) for row in rows] == expected
    found = compare("softmax", tmp_path / "runs")
    [verdict], interval = found.verdicts, found.verdicts[0].difference.new_seeds_and_examples
    baseline, arm = rows[:2]
    assert baseline["verdict"] == "baseline" and baseline["difference"] == baseline["adjusted_p"] == ""
    assert arm["verdict"] == ("shown" if verdict.is_shown else "not shown") and arm["seeds"] == "3"
    for name, value in (("difference", verdict.difference.estimate), ("low", interval.low), ("high", interval.high)):
        assert float(arm[name]) == pytest.approx(value, rel=1e-4)
    assert float(arm["mean"]) == pytest.approx(found.scores[1].mean, rel=1e-4)
    assert float(arm["hours"]) == pytest.approx(found.scores[1].costs["hours"], rel=1e-4)
    assert {row["command"] for row in rows} == {"attnorm sweep a=1,2"}
    printed = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines() if " hnas " in line]
    of_arm, estimate = printed[0], verdict.difference.estimate
    assert of_arm[:2] == ["rougeL", "hnas"] and of_arm[3] == f"{estimate:+.2f}"
    assert of_arm[4:7] == [f"{interval.low:+.2f} to {interval.high:+.2f}", "3", arm["verdict"]]


def test_translation_has_a_sweep_per_part_and_a_report_per_model(tmp_path, monkeypatch, capsys, commands):
    start(monkeypatch, "multi30k", "--data", tmp_path, "--folder", tmp_path / "t", "--seeds", 1, 2, "--", "jobs=2")
    assert [verb for verb, _ in commands] == ["sweep"] * 5 + ["report"] * 2
    transformer, in_encoder, lstm, positional, alone = ({*arguments} for verb, arguments in commands if verb == "sweep")
    assert {f"data.dir={tmp_path}", "attention=softmax,dnas,hnas", "seed=1,2", "jobs=2"} < transformer
    assert {"model=lstm_seq2seq", "attention=softmax,dnas_prefix,hnas_prefix"} < lstm
    assert {"model=lstm_seq2seq", "attention=softmax", "attention.prior.cross=[positional]"} < positional
    assert {"model=transformer_tiny", "attention=softmax", "attention.encoder=uniform,none"} < in_encoder
    assert {"model=lstm_seq2seq", "attention=uniform,none"} < alone
    assert commands[-2][1] == [f"{tmp_path}/t/transformer", f"{tmp_path}/t/transformer_null"]
    assert commands[-1][1] == [f"{tmp_path}/t/{part}" for part in ("lstm", "lstm_positional", "lstm_null")]
    rows = cells(capsys.readouterr().out)
    assert rows["lstm, hnas_prefix"][0] == "11.15 ± 0.07"
    assert len(rows) == 13  # 11 arms, and the two lines of the header


def test_captions_have_an_arm_per_preference_and_two_without_attention(tmp_path, monkeypatch, capsys, commands):
    drawn = []
    monkeypatch.setattr("attnorm.analysis.loaded_run.load_run", lambda folder: folder)
    monkeypatch.setattr("attnorm.analysis.captions.looks", lambda run, example: SimpleNamespace(caption=run.name))
    picture = SimpleNamespace(savefig=lambda target, dpi: drawn.append(target.name))
    monkeypatch.setattr("attnorm.analysis.captions.draw_words", lambda found, title: picture)
    start(monkeypatch, "captioning", "--folder", tmp_path, "--seeds", 1, 2, "--", "jobs=2")
    (verb, arguments), (last, folders) = commands
    assert (verb, last, folders) == ("sweep", "report", [str(tmp_path)])
    assert {"task=captioning", "attention=preference,softmax,uniform,none", "seed=1,2", "jobs=2"} < {*arguments}
    rows = cells(capsys.readouterr().out)
    assert rows["content preference"] == [f"{it}.15 ± 0.07" for it in (80, 90, 30, 40)]
    assert rows["no attention"][0] == "74.15 ± 0.07" and rows["one caption for all"][0] == "80.10"
    assert drawn == [f"words_validation-{number}.png" for number in range(3)] * 2  # of two arms, of the first seed


def test_em_routing_has_an_arm_for_each_claim(tmp_path, monkeypatch, capsys, commands):
    start(monkeypatch, "em_routing", "--folder", tmp_path, "--seeds", 1, 2, "--", "task.max_steps=9")
    *trained, (verb, folders) = commands
    assert all({"seed=1,2", "task.max_steps=9", "model.fusion=attention"} <= {*arguments} for _, arguments in trained)
    assert verb == "report" and folders == [str(tmp_path), "baseline=dnas"]
    rows = cells(capsys.readouterr().out)
    estimated = ["2 updates, sigma estimated", "2 updates, sigma and beta estimated"]
    assert [*rows][2:] == ["softmax", "dnas", "2 updates", "3 updates", *estimated, "mean of all boxes", "no attention"]
    assert rows["dnas"][OFFSETS_WITHOUT_LOSS.index("accuracy")] == "44.15 ± 0.07"
    assert all("±" in cell for row in estimated for cell in rows[row])


OFFSETS_WITHOUT_LOSS = [name for name in OFFSETS if name != "loss"]


def test_held_out_synonyms_are_compared_with_words_that_training_showed(tmp_path, monkeypatch, capsys, commands):
    monkeypatch.chdir(tmp_path)  # the script changes it
    start(monkeypatch, "ot_synonyms", "--folder", tmp_path, "--seeds", 1, 2)
    assert [verb for verb, _ in commands] == ["sweep"] * 4 + ["report"]
    assert all("data.twins=true" in it for _, it in commands[:2])
    assert all("data.twins=false" in it for _, it in commands[2:4])
    assert commands[-1][1] == [f"{tmp_path}/twins"]
    rows = cells(capsys.readouterr().out)
    assert rows["accuracy"] == ["uniform", "softmax", "ot", "ot, bank"]
    assert rows["held-out twins"] == ["47.15 ± 0.07", "47.15 ± 0.07", "42.15 ± 0.07", "42.15 ± 0.07"]


def test_twins_are_words_of_their_own_that_training_never_shows_and_start_with_the_embedding_of_their_word():
    import torch

    twins = load("ot_synonyms/twins")
    assert twins.with_twins("police said the storm hit u.s. oil") == " ".join(
        twins.twin(word) if word.isalpha() and len(word) > 3 and twins.has_twin(word) else word
        for word in ("police", "said", "the", "storm", "hit", "u.s.", "oil")
    )
    labels = list(twins.newswire.EVENT_KINDS)
    sizes = {"train_size": 300, "valid_size": 40}
    source = twins.TwinNewswire(labels=labels, **sizes)
    plain = twins.TwinNewswire(labels=labels, twins=False, **sizes)
    assert source.check() == [] and source.fingerprint("validation") != plain.fingerprint("validation")
    assert "data.labels: 'strike' is missing" in twins.TwinNewswire(labels=["storm", "coup"]).check()
    assert not any("2" in text for text, _, _ in source.rows("train"))
    changed = [text for text, _, _ in source.rows("validation")]
    shares = [sum(word.endswith("2") for word in text.split()) / len(text.split()) for text in changed]
    assert 0.1 < sum(shares) / len(shares) < 0.4
    assert [text.replace("2", "") for text in changed] == [text for text, _, _ in plain.rows("validation")]

    tokenizer = twins.TwinWords.from_settings(lambda _: (text for text, _, _ in source.rows("train")), vocab_size=200)
    words = [tokenizer.token(number) for number in range(tokenizer.vocab_size)]
    assert len(words) == 205 + sum(map(twins.has_twin, words)) == len({*words})
    ids = tokenizer.encode([" ".join(word for word in words if word.endswith("2"))])[0]
    assert [tokenizer.token(number) for number in ids] == [word for word in words if word.endswith("2")]

    tokens = torch.nn.Embedding(tokenizer.vocab_size, 4)
    before = tokens.weight.detach().clone()
    model = SimpleNamespace(encoder=SimpleNamespace(embeddings=SimpleNamespace(tokens=tokens)))
    module = SimpleNamespace(tokenizer=tokenizer, model=model)
    twins.StartAlike().on_fit_start(SimpleNamespace(global_step=5), module)
    assert torch.equal(tokens.weight, before)  # a resumed run keeps what it has learned
    twins.StartAlike().on_fit_start(SimpleNamespace(global_step=0), module)
    for word, other in [(words.index(it), words.index(twins.twin(it))) for it in words if twins.has_twin(it)]:
        assert torch.equal(tokens.weight[other], before[word]) and torch.equal(tokens.weight[word], before[word])


@pytest.mark.slow
def test_a_bank_is_taken_away_from_trained_models(tmp_path, monkeypatch, capsys):
    import torch

    from attnorm import load_run

    runs.tiny_run(tmp_path / "plain", "attention=ot", task="classify")
    summary = runs.tiny_run(tmp_path / "bank", "attention=ot", "attention.bank.encoder=vocabulary", task="classify")
    without_bank = load("ot_synonyms/without_bank")
    monkeypatch.setattr(sys, "argv", ["without_bank", str(tmp_path)])
    without_bank.main()
    accuracy, seed = summary["validation"]["metrics"]["accuracy"], str(runs.tiny(task="classify")["seed"])
    rows = {first: rest for first, rest in cells(capsys.readouterr().out).items() if first.isdigit()}
    assert list(rows) == [seed] and rows[seed][0] == f"{accuracy:.2f}"

    run = load_run(tmp_path / "bank")
    inputs, _ = run.attended("The red cat of Rome likes fish.")
    with torch.no_grad():
        full = run.model(*inputs)
        emptied = without_bank.without_bank(run).model(*inputs)
        bank = next(it for it in run.model.modules() if isinstance(it, without_bank.Vocabulary))
    assert bank().shape == (0, run.config["model"]["d_model"]) and not torch.equal(full, emptied)


def test_flat_and_hierarchical_attention_have_an_arm_per_normalizer(tmp_path, monkeypatch, capsys, commands):
    start(monkeypatch, "hierarchical", "--texts", tmp_path, "--folder", tmp_path / "t", "--seeds", 1, 2, "--", "jobs=2")
    (_, arguments), *reports = commands
    assert {"model=flat_tiny,hierarchical_tiny", "attention=softmax,dnas,hnas,uniform", "jobs=2"} < {*arguments}
    assert {f"data.folder={tmp_path}", "data.mask_names=true"} < {*arguments}
    assert [(verb, len(folders), folders[-1]) for verb, folders in reports] == [
        ("report", 9, f"out={tmp_path}/t/report_flat.html"),  # 4 normalizers with 2 seeds
        ("report", 9, f"out={tmp_path}/t/report_hierarchical.html"),
    ]
    rows = cells(capsys.readouterr().out)
    assert rows["hierarchical, hnas"] == ["44.15 ± 0.07", "34.150 ± 0.071", "1,234", "1.5 ± 0.0"]
    assert rows["lead-8"] == ["47.10", "-", "-", "-"] and len(rows) == 11  # with the header and its line
    start(monkeypatch, "hierarchical", "--texts", tmp_path, "--folder", tmp_path / "n", "--names", "--seeds", 1)
    assert "data.mask_names=false" in commands[3][1]


# ----------------------------------------------------------------------------------------------------------- alignments

VERSES = [f"43{chapter:03}{verse:03}" for chapter in range(1, 13) for verse in range(1, 5)]


def aligned(hits, seed):
    """Scores of made-up verses with 20 gold and 20 predicted links each, of which about `hits` agree."""
    chance = np.random.default_rng(round(100 * hits) + 1000 * seed)
    agree = (hits + chance.integers(-2, 3, len(VERSES))).clip(0, 20).astype(int)
    counts = np.stack([np.full(len(VERSES), 20)] * 2 + [agree] * 2, axis=1)
    return SimpleNamespace(counts=counts, error_rate=100 - 5 * agree.mean(), precision=1.0, recall=1.0, threshold=0.5)


@pytest.fixture
def alignments(monkeypatch, tmp_path):
    """The script, with sweeps that finish at once, and a function that runs it with options and returns its commands.

    best: the rate at which the loss of an arm is smallest. failed: (arm, rate) of jobs that fail.
    """
    monkeypatch.syspath_prepend(FOLDER / "alignments")
    script = load("alignments/run")

    def start(*options, best=None, failed=None):
        typed, at = [], dict.fromkeys(script.ARMS, 4e-3) | (best or {})

        def sweep(folder, *overrides, failures=False):
            settings = dict(it.split("=", 1) for it in overrides)
            typed.append(settings)
            rate, ran = float(settings["optimizer.lr"]), []
            for arm in settings["attention"].split(","):
                for seed in settings["seed"].split(","):
                    loss = abs(rate - at[arm]) + int(seed) / 1e6
                    if (arm, rate) == failed and seed.endswith("0"):
                        assert failures
                        continue
                    ran.append(sweeps.Run({"attention": arm, "seed": seed}, folder, {"loss": loss}, {}))
            return ran

        def scores(runs):
            results = {arm: [aligned(10, int(run.settings["seed"])) for run in of_arm] for arm, of_arm in runs.items()}
            results |= dict.fromkeys(sys.modules["registered"].AFTERWARDS, results["softmax"]) | references(5)
            return VERSES, {name: dict.fromkeys(script.VIEWS, it) for name, it in results.items()}

        monkeypatch.setattr(script, "sweep", sweep)
        monkeypatch.setattr(script, "scores_of_all", scores)
        arguments = ["--folder", str(tmp_path), "--out", str(tmp_path / "verdicts_lstm.csv"), *map(str, options)]
        monkeypatch.setattr(sys, "argv", ["run", *arguments])
        script.main()
        return typed

    return SimpleNamespace(script=script, start=start)


def test_alignments_tunes_every_arm_alike_and_trains_it_at_its_own_rate(alignments, tmp_path):
    script = alignments.script
    rates = ["--rates", 1e-3, 2e-3, 4e-3, 8e-3, 16e-3]
    typed = alignments.start(*rates, "--", "jobs=2", best={"ot": 8e-3}, failed=("hnas_prefix", 4e-3))
    tuning, final = typed[:5], typed[5:]
    assert [it["optimizer.lr"] for it in tuning] == ["0.001", "0.002", "0.004", "0.008", "0.016"]
    assert {(it["attention"], it["seed"]) for it in tuning} == {(",".join(script.ARMS), "100,101")}
    best = dict.fromkeys(script.ARMS, 4e-3) | {"ot": 8e-3, "hnas_prefix": 2e-3}  # a rate that fails is not chosen
    assert {it["attention"]: float(it["optimizer.lr"]) for it in final} == best
    assert {it["seed"] for it in final} == {"110,111,112,113,114"}
    shared = [{key: it[key] for key in it if key not in ("optimizer.lr", "attention", "seed")} for it in typed]
    assert shared == [shared[0]] * 11 and shared[0]["jobs"] == "2" and shared[0]["data"] == "bible_alignments"
    rows = read_csv(tmp_path / "verdicts_lstm.csv")
    arms = [*script.ARMS, *sys.modules["registered"].AFTERWARDS, *script.REFERENCES]
    assert [row["arm"] for row in rows] == arms * len(script.VIEWS)
    assert [row["primary"] for row in rows] == ["true"] * len(arms) + ["false"] * 2 * len(arms)
    row = {row["arm"]: row for row in reversed(rows)}
    assert row["ot"]["seeds"] == "5" and row["diagonal"]["verdict"] == "reference"
    assert float(row["ot"]["difference"]) == pytest.approx(0, abs=1)
    claims = read_csv(tmp_path / "verdicts_lstm_hypotheses.csv")
    assert {it["prediction"] for it in claims} == {f"H{number}" for number in range(1, 8)}


def test_alignments_compares_nothing_without_softmax_or_while_an_arm_fails_or_is_best_at_an_edge(alignments, capsys):
    for edge in (2e-3, 8e-3):
        with pytest.raises(SystemExit, match=r"^ot: best at an edge"):
            alignments.start(best={"ot": edge})
    alignments.start("--rates", 1e-3, 2e-3, 4e-3, 8e-3, best={"ot": 1e-3})  # each edge is extended once
    with pytest.raises(SystemExit):
        alignments.start("--arms", "ot")
    assert "--arms ot: must contain softmax" in capsys.readouterr().err
    with pytest.raises(SystemExit, match=r"^ot: failed at all rates"):
        alignments.start("--rates", 4e-3, failed=("ot", 4e-3))


def references(hits):
    return {name: [aligned(hits, 9)] for name in ("diagonal", "uniform", "IBM model 1")}


def test_alignments_has_no_verdict_if_softmax_does_not_beat_the_diagonal(alignments):
    script, chapters = alignments.script, [verse[:5] for verse in VERSES]
    arms = {name: [aligned(hits, seed) for seed in range(5)] for name, hits in (("softmax", 10), ("dnas_prefix", 14))}
    results = {**arms, **references(5)}
    values = script.pseudo_values_of({name: {"predicts": it, "reads": it} for name, it in results.items()})
    for view, primary in (("predicts", "true"), ("reads", "false")):
        rows = {row["arm"]: row for row in script.verdicts(results, values, chapters, view, beats=True)}
        assert rows["softmax"]["verdict"] == "baseline" and rows["dnas_prefix"]["verdict"] == "shown"
        assert float(rows["dnas_prefix"]["difference"]) == pytest.approx(-20, abs=2)
        assert rows["dnas_prefix"]["primary"] == primary and "adjusted_p" not in rows["diagonal"]
    alone = paired_difference(values["dnas_prefix", "reads"] - values["softmax", "reads"], chapters)
    assert float(rows["dnas_prefix"]["detectable"]) == pytest.approx(detectable(alone.variances), rel=1e-4)
    assert "detectable" not in rows["diagonal"]
    values |= {("diagonal", "reads"): values["dnas_prefix", "reads"] - 1}  # it is below softmax in one view only
    assert script.beats_gate(values, chapters, "predicts") and not script.beats_gate(values, chapters, "reads")
    rows = {row["arm"]: row for row in script.verdicts(results, values, chapters, "predicts", beats=False)}
    assert rows["dnas_prefix"]["verdict"] == "no verdict" and "adjusted_p" not in rows["dnas_prefix"]


def test_alignments_decides_its_hypotheses_by_intervals(alignments):
    """Differences that are nearly the same for all verses and seeds, so that the intervals are narrow."""
    bounds, registered = sys.modules["bounds"], sys.modules["registered"]
    aer = {"softmax": 60, "dnas_prefix": 55, "hnas_prefix": 54.5, "dnas_slack_prefix": 58, "ot": 61}
    aer |= {"fertility_softmax": 57, "softmax, then dnas": 59, "softmax, then sinkhorn": 59, "IBM model 1": 56}
    chance = np.random.default_rng(2)
    values = {
        (arm, step): value + chance.normal(0, 0.1, (5, len(VERSES)))
        for arm, number in aer.items()
        for step, value in (("predicts", number), ("reads", number + 1))
    }
    rows = bounds.decide(registered.CLAIMS, values, [verse[:5] for verse in VERSES])
    found = {(it["prediction"], it["score"], it["minus"], it["least"]): it["verdict"] for it in rows}
    for hypothesis, arm, other, least, verdict in (
        ("H1", "dnas_prefix", "softmax", "-inf", "shown"),
        ("H1", "dnas_prefix", "softmax", "-4", "refuted"),  # -5
        ("H2", "hnas_prefix", "dnas_prefix", "-1", "shown"),
        ("H2", "dnas_slack_prefix", "dnas_prefix", "-1", "refuted"),
        ("H3", "softmax, then sinkhorn", "softmax, then dnas", "-inf", "open"),
        ("H4", "fertility_softmax", "softmax", "-2", "refuted"),
        ("H5", "ot", "softmax", "-2", "shown"),
        ("H6", "IBM model 1", "dnas_prefix", "-inf", "refuted"),
        ("H6", "IBM model 1", "softmax", "-inf", "shown"),
    ):
        assert found[hypothesis, f"{arm}, predicts", f"{other}, predicts", least] == verdict
    assert {found[it] for it in found if it[0] == "H7"} == {"shown"} and sum(it[0] == "H7" for it in found) == 7


def test_scores_of_arms_are_paired_by_seed_and_example(tmp_path):
    """Seed 3 of hnas has not been trained, the runs of dnas are in another order, and sink has too few seeds."""
    bounds = load("bounds")
    seeds = {"softmax": (1, 2, 3, 4), "dnas": (2, 4, 3, 1), "hnas": (1, 2, 4), "sink": (1, 2)}
    made = {arm: make_runs(tmp_path, {arm: 20 * (arm == "dnas")}, its) for arm, its in seeds.items()}
    arms = {arm: [sweeps.Run({}, folder, {}, {}) for folder in folders] for arm, folders in made.items()}
    tables = bounds.tables_of(arms, ["rougeL", "loss"], "validation")
    assert {arm for arm, _ in tables} == {"softmax", "dnas", "hnas"}
    few = arms | {"softmax": arms["softmax"][:3]}  # all arms share seeds 1 and 2 only
    assert bounds.tables_of(few, ["rougeL"], "validation") == {}
    assert {table.shape for table in tables.values()} == {(3, 100)}  # the half that has not selected the checkpoint
    for row, seed in enumerate((1, 2, 4)):
        rows = pd.read_parquet(tmp_path / f"dnas_{seed}/predictions/validation.parquet").query("not selecting")
        assert tables["dnas", "rougeL"][row] == pytest.approx(rows["rougeL"].to_numpy())
    equal = dict.fromkeys(tables, tables["softmax", "rougeL"])
    claims = [bounds.claim("P", "dnas", "softmax", "rougeL", bounds.ABOVE)]
    assert bounds.decide(claims, equal)[0]["verdict"] == "no verdict"
    rows = bounds.decide(claims, tables)
    difference = (tables["dnas", "rougeL"] - tables["softmax", "rougeL"]).mean()
    assert float(rows[0]["difference"]) == pytest.approx(difference, rel=1e-4)


def test_alignments_computes_scores_once(alignments, monkeypatch, tmp_path):
    scoring, calls = sys.modules["scoring"], []
    weights = [np.array([[0.9, 0.1], [0.2, 0.8]])]
    links = {"validation": [{(0, 0), (1, 1)}], "test": [{(0, 0), (1, 1)}]}  # (source, target)

    def aligned_of(run, step):
        calls.append((run, step))
        return lambda split: (weights, links[split])

    monkeypatch.setattr(scoring, "load_run", lambda folder: "the run")
    for _ in range(2):
        found = scoring.stored(tmp_path, "softmax", "predicts", aligned_of)
        assert found.threshold == 0.8 and found.counts.tolist() == [[2, 2, 2, 2]] and calls == [("the run", "predicts")]
    found = scoring.stored(tmp_path, "softmax", "predicts later words", aligned_of)
    assert found.counts.tolist() == [[1, 1, 1, 1]] and calls == [("the run", "predicts")] * 2
    assert not [*tmp_path.glob("*.unfinished")]


# ---------------------------------------------------------------------------------------------- experiments with tuning


@pytest.fixture
def tuned(commands, monkeypatch):
    """`commands`, where the verdicts are not computed but noted: a dict of the arguments of `write_verdicts`.

    The scores of all arms are made up, and differ by chance alone.
    """
    import bounds
    import verdicts

    noted = {}
    monkeypatch.setattr(verdicts, "write_verdicts", lambda *args, **keys: noted.update(keys, args=args))
    monkeypatch.setattr(bounds, "tables_of", made_up_tables)
    return SimpleNamespace(commands=commands, verdicts=noted)


def test_captions_are_tuned_on_held_out_pairs_and_compared_on_others(tmp_path, monkeypatch, capsys, tuned):
    source, folder = tmp_path / "multi30k", tmp_path / "t"
    source.mkdir()
    for language in ("de", "en"):
        for split, size in (("train", 29000), ("val", 3)):
            text = "\n".join(f"{split} {n} {language}" for n in range(size))
            (source / f"{split}.{language}").write_text(text + "\n" * (language == "en"))  # or no end of the last line
    arguments = ["--data", source, "--folder", folder, "--out", tmp_path / "v.csv"]
    start(monkeypatch, "multi30k", *arguments, script="run_power")
    parts = {path.name: path.read_text().splitlines() for path in (folder / "data").iterdir()}
    sizes = {f"{part}.{language}": size for part, size in SIZES.items() for language in ("de", "en")}
    assert {name: len(lines) for name, lines in parts.items()} == sizes
    numbers = {part: [int(line.split()[1]) for line in parts[f"{part}.de"]] for part in ("train", "held_out")}
    assert sorted(numbers["train"] + numbers["held_out"]) == list(range(29000))
    assert {*np.diff(numbers["held_out"])} == {28, 29}  # evenly spaced
    for part, lines in parts.items():
        assert [line[:-2] for line in lines] == [line[:-2] for line in parts[part.split(".")[0] + ".en"]]
    (_, arguments), *scored, (last, _) = tuned.commands
    seeds = ",".join(map(str, range(110, 120)))
    assert {"tune=optimizer.lr=0.001,0.002,0.004", "tune_seeds=100,101", f"seed={seeds}"} < {*arguments}
    assert {"data.validation=held_out", "data.test=val", "task.selection=all", f"data.dir={folder}/data"} < {*arguments}
    assert len(scored) == 50 and {(verb, it[1]) for verb, it in scored} == {("eval", "split=test")} and last == "report"
    claims = {it["prediction"]: it["verdict"] for it in read_csv(tmp_path / "v_predictions.csv")}  # of the last parts
    assert claims == {"P1": "refuted", "P2": "refuted", "P3": "shown", "P4": "shown", "P5": "refuted"}
    assert tuned.verdicts["metrics"] == ["loss", "chrF"] and "estimated cost: 80 runs" in capsys.readouterr().out


SIZES = {"train": 27986, "held_out": 1014, "val": 3}


def test_masked_language_models_are_tuned_with_seeds_of_their_own(tmp_path, monkeypatch, capsys, tuned):
    out = tmp_path / "v.csv"
    start(monkeypatch, "mlm_small", "--texts", tmp_path, "--folder", tmp_path / "t", "--out", out, "--", "jobs=2")
    (_, arguments), (last, _) = tuned.commands
    assert {"tune_seeds=100,101", "seed=110,111,112,113,114,115", f"data.files=[{tmp_path}]", "jobs=2"} < {*arguments}
    claims = read_csv(tmp_path / "v_predictions.csv")
    assert [it["prediction"] for it in claims] == ["P1", "P2", "P1", "P2", "P3", "P3"]
    assert [it["verdict"] for it in claims[2:]] == ["refuted", "refuted", "shown", "shown"]
    assert last == "report" and "estimated cost: 36 runs" in capsys.readouterr().out


ORDER = ("sink", "forgetting", "gated", "softmax", "ssmax", "stick_breaking", "hnas_prefix", "sigmoid", "dnas_prefix")
ORDER += ("softpick", "uniform", "none")


def perplexities(arm, rate):
    """Made-up results of the screen: every arm is best at 2e-3, except sink at the upper edge."""
    return 20 + ORDER.index(arm) + 1000 * abs(rate - (4e-3 if arm == "sink" else 2e-3))


def test_novels_are_screened_and_five_arms_compared_at_their_best_rates(tmp_path, monkeypatch, capsys):
    script, ran, noted = load("causal_lm/run"), [], {}

    def sweep(folder, *overrides, failures=False):
        settings = dict(it.split("=", 1) for it in overrides)
        ran.append((folder.relative_to(tmp_path).parts, settings, failures))
        found = []
        for arm in settings["attention"].split(","):
            for rate in map(float, settings["optimizer.lr"].split(",")):
                name = "gated" if "attention.gate.decoder" in settings else arm
                if (name, rate) == ("softmax", 1e-3):
                    continue  # it has failed
                run = sweeps.Run({**settings, "attention": arm, "optimizer.lr": str(rate)}, folder, {}, {})
                run.metrics["perplexity"] = perplexities(name, rate)
                run.baselines["bigram"] = {"perplexity": 29}
                found.append(run)
        return found

    monkeypatch.setattr(script, "sweep", sweep)
    monkeypatch.setattr(script, "on_test", lambda runs: runs)
    monkeypatch.setattr(script, "report", lambda *folders: None)
    monkeypatch.setattr(script, "write_verdicts", lambda *args, **keys: noted.update(keys, args=args))
    monkeypatch.setattr(script, "tables_of", made_up_tables)

    def start(*options):
        ran.clear()
        arguments = ["--texts", tmp_path, "--folder", tmp_path, "--out", tmp_path / "v.csv", *options]
        monkeypatch.setattr(sys, "argv", ["run", *map(str, arguments)])
        script.main()

    start()
    screened, added, compared = ran[:2], ran[2:4], ran[4:]
    arms = ["softmax", "sink", "forgetting", "gated_softmax", "ssmax", "hnas_prefix"]
    rates = ["0.002", "0.004", "0.002", "0.002", "0.002", "0.002"]
    folders = [("arms", f"{arm}_{rate}") for arm, rate in zip(arms, rates, strict=True)]
    assert [folder for folder, *_ in compared] == folders  # not stick_breaking, for hnas_prefix
    assert [it["optimizer.lr"] for _, it, _ in compared] == rates and all(ok for *_, ok in ran)  # runs may fail
    assert {it["seed"] for _, it, _ in compared} == {"110,111,112,113,114"}
    assert {it["seed"] for _, it, _ in screened + added} == {"100"}
    names = ",".join(arm for arm in script.ARMS if arm != script.GATED)
    assert [it["attention"] for _, it, _ in screened] == [names, "softmax"]
    assert {it["optimizer.lr"] for _, it, _ in added} == {"0.008"}  # beyond the edge that is best for one arm
    assert added[0][1]["attention"].split(",") == [a for a in script.CANDIDATES if a != script.GATED]
    assert noted["gate"] == "bigram" and not noted["grouped"] and len(noted["args"][0]) == 6
    claims = {it["score"]: it["verdict"] for it in read_csv(tmp_path / "v_predictions.csv")}
    assert claims["forgetting, loss_8x - loss_1x"] == "shown" and claims["stick_breaking, perplexity"] == "not compared"
    rows = cells(capsys.readouterr().out)
    assert rows["softmax"][0] == "-" and rows["stick_breaking"][-1] == "no" and rows["hnas_prefix"][-1] == "yes"
    start("--screen", tmp_path / "screen.csv")
    assert ran == compared, "the comparison of an earlier screen is the same, without training it again"
    named = ("--arms", "forgetting", "dnas_prefix")
    start("--screen", tmp_path / "screen.csv", *named)
    arms = ["softmax_0.002", "forgetting_0.002", "dnas_prefix_0.002"]
    assert [folder for folder, *_ in ran] == [("arms", arm) for arm in arms], "arms that the rule leaves out"
    assert ran[0] == compared[0], "the runs of softmax are shared"
    screen = (tmp_path / "screen.csv").read_text().splitlines()
    (tmp_path / "lost.csv").write_text("\n".join(row for row in screen if not row.startswith("dnas_prefix")))
    with pytest.raises(SystemExit, match=r"dnas_prefix: failed at all rates"):
        start("--screen", tmp_path / "lost.csv", *named)


def made_up_tables(arms, metrics, split):
    """Scores of 5 seeds and 40 examples, in which only the loss of forgetting at late positions differs, by -1."""
    chance = np.random.default_rng(1)
    tables = {(arm, metric): chance.normal(5, 0.01, (5, 40)) for arm in arms for metric in metrics}
    return {key: table - (key == ("forgetting", "loss_8x")) for key, table in tables.items()}


def test_arms_that_do_not_beat_the_bigram_model_decide_no_prediction_and_are_not_compared():
    script = load("causal_lm/run")

    def runs_of(*values):
        return [sweeps.Run({}, None, {"perplexity": value}, {"bigram": {"perplexity": 29}}) for value in values]

    assert [*script.fit({"softmax": runs_of(28, 29), "sink": runs_of(28, 30), "ssmax": []})] == ["softmax"]
    curves = {arm: {1e-3: value} for arm, value in {"softmax": 30.0, "uniform": 1.0, "hnas_prefix": 29.0}.items()}
    curves["sink"] = {1e-3: 28.0, 2e-3: 31.0}
    assert script.chosen(curves, 29.0) == ["sink"] and script.chosen(curves, 29.5) == ["sink", "hnas_prefix"]


def test_runs_are_in_the_order_of_their_seeds_and_those_that_failed_are_left_out_of_a_screen(tmp_path, monkeypatch):
    """In the state of a sweep, the best run is first. A screen that was interrupted is not complete."""
    folder = str(tmp_path)
    jobs = [{"folder": folder, "overrides": [f"seed={seed}"], "state": "finished"} for seed in (9, 110, 10)]
    jobs.append({"folder": folder, "overrides": ["seed=1"], "state": "failed"})
    (tmp_path / "summary.json").write_text('{"validation": {"metrics": {"loss": 1}, "baselines": {}}}')
    killed, tuned = [jobs[0] | {"state": "killed"}], [jobs[0] | {"purpose": "tune"}]
    for code, failures, added, is_left_out in (
        *((1, True, [], True), (1, True, tuned, True)),
        *((130, True, [], False), (1, True, killed, False), (1, False, [], False)),
    ):
        monkeypatch.setattr(sweeps, "run", lambda verb, arguments, code=code: code)
        write_state(tmp_path, {"jobs": jobs + added})
        if is_left_out:
            assert [it.settings["seed"] for it in sweeps.sweep(tmp_path, failures=failures)] == ["9", "10", "110"]
        else:
            with pytest.raises(SystemExit) as ended:
                sweeps.sweep(tmp_path, failures=failures)
            assert ended.value.code == code


def test_an_arm_that_does_not_beat_a_simple_method_gets_no_verdict(tmp_path, monkeypatch, capsys):
    make_runs(tmp_path / "runs", {"softmax": 0, "hnas": 9, "dnas": -9}, seeds=(1, 2, 3))
    verdicts = load("verdicts")

    def words(simple):
        real = compare("softmax", tmp_path / "runs")
        found = dataclasses.replace(real, simple={"lead-8": simple})
        monkeypatch.setattr(verdicts, "compare", lambda baseline, folders, metric=None, grouped=True: found)
        verdicts.write_verdicts([tmp_path / "runs"], tmp_path / "v.csv", "command", gate="lead-8")
        return {row["arm"]: row["verdict"] for row in read_csv(tmp_path / "v.csv")}

    means = {it.label: it.mean for it in compare("softmax", tmp_path / "runs").scores}
    assert words(means["dnas"] - 1) == {"softmax": "baseline", "hnas": "shown", "dnas": "shown"}
    assert words(means["dnas"]) == {"softmax": "baseline", "hnas": "shown", "dnas": "no verdict"}
    assert words(means["softmax"]) == {"softmax": "baseline", "hnas": "no verdict", "dnas": "no verdict"}


def test_the_decision_log_has_every_experiment_and_every_verdict():
    shown = load("verdicts").shown
    log = scripts.load("docs/hooks").links_of_site((runs.ROOT / "docs/decisions.md").read_text(), "decisions.md")
    _, *parts = re.split(r"^## \[\w+\]\(experiments/(\w+)/README\.md\)\n", log, flags=re.M)
    sections = dict(zip(parts[::2], parts[1::2], strict=True))
    assert {*sections} == {path.parent.name for path in FOLDER.glob("*/README.md")}
    line = re.compile(r"^- \d{4}-\d\d-\d\d(?: \*| \([^)]*\))?, (\d+|no) seeds?: ((?:.+\n)+?)(?=- |\n|\Z)", re.M)
    lines = {folder: line.findall(text) for folder, text in sections.items()}
    for folder, text in sections.items():
        assert lines[folder] and len(lines[folder]) == len(re.findall("^- ", text, re.M)), folder
    for path in FOLDER.glob("*/verdicts*.csv"):
        for row in read_csv(path):
            if row.get("primary") == "true" and row["verdict"] != "reference":
                _, arm, mean, difference, interval, seeds, word = shown(row)
                verdict = re.compile(rf"\*\*{word}:\*\* [^*]*{re.escape(f'{arm} {difference} ({interval})')}")
                if word == "baseline":
                    verdict = re.compile(rf"\s{re.escape(f'{arm} {mean.split()[0]}')}; \*\*")
                assert any(verdict.search(text) for n, text in lines[path.parent.name] if n == seeds), (path, row)


# the ladder


def test_the_rule_for_the_rates_of_a_ladder_goes_through_minima_of_parabolas():
    ladder = load("ladder/run")
    rates = [2e-3, 4e-3, 8e-3, 1.6e-2]
    assert ladder.best_rate({rate: np.log(rate / 5e-3) ** 2 for rate in rates}) == pytest.approx(5e-3)
    assert ladder.best_rate({rate: -rate for rate in rates}) == 1.6e-2  # no neighbour above it


def test_the_texts_of_the_ladder_are_paragraphs_in_a_file_per_article(tmp_path, monkeypatch, capsys):
    train = [{"title": f"A {n:03}", "paragraphs": [{"context": "Zoë  ran."}, {"context": "So."}]} for n in range(80)]
    (tmp_path / "train.json").write_text(json.dumps({"data": train}))
    (tmp_path / "dev.json").write_text(json.dumps({"data": [{"title": "B/1", "paragraphs": [{"context": "Hm"}]}]}))
    typed = ["texts.py", *(str(tmp_path / name) for name in ("train.json", "dev.json", "texts"))]
    monkeypatch.setattr(sys, "argv", typed)
    load("ladder/texts").main()
    texts = {path.name: path.read_text() for path in (tmp_path / "texts").iterdir()}
    assert len(texts) == 81 and sum(name.startswith("test_") for name in texts) == 41
    assert texts["A_001.txt"] == "Zoe ran.\n\nSo.\n" and texts["test_B_1.txt"] == "Hm\n"
    assert "81 articles" in capsys.readouterr().out
