"""The scripts of experiments/: which sweeps they run, what they read of them, and the tables that they print."""

import importlib.util
import json
import sys
from types import SimpleNamespace

import pytest
import runs

FOLDER = runs.ROOT / "experiments"


def load(name):
    """A script of experiments/ as a module."""
    spec = importlib.util.spec_from_file_location(name.replace("/", "_"), FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
        if verb != "sweep":
            return 0
        assert front_problems(arguments) == []
        settings = dict(it.split("=", 1) for it in arguments if not it.startswith("dir="))
        folder = runs.Path(next(it for it in arguments if it.startswith("dir=")).removeprefix("dir="))
        jobs = []
        for values in combinations(settings):
            one = len(values["attention"]) + int(values["seed"]) / 10
            scores = {name: one + offset for name, offset in OFFSETS.items()}
            arm = [values[key] for key in SWEPT[2:] if key in values]
            job = folder / "_".join([values["attention"], values["seed"], "-".join(arm)])
            job.mkdir(parents=True, exist_ok=True)
            summary = {"validation": {"metrics": scores, "baselines": {"lead-8": scores}}}
            (job / "summary.json").write_text(json.dumps(summary))
            jobs.append({"folder": str(job), "overrides": [f"{key}={value}" for key, value in values.items()]})
        (folder / "sweep.json").write_text(json.dumps({"jobs": jobs}))
        return 0

    monkeypatch.setattr(imported, "run", run)
    return ran


OFFSETS = {"rouge1": 0, "rouge2": 10, "rougeL": 20, "loss": 30, "accuracy": 40, "f1": 50, "exact": 60}
EM, BANK = "attention.options.em_routing", "attention.bank.encoder"
SWEPT = ("attention", "seed", "model.fusion", f"{EM}.n_iters", f"{EM}.sigma", f"{EM}.beta", BANK)


def combinations(settings):
    """The settings of each run of a sweep over the keys in SWEPT."""
    found = [{"attention": "softmax", **settings}]
    for key in SWEPT:
        if key in found[0]:
            found = [{**it, key: value} for it in found for value in it[key].split(",")]
    return found


def front_problems(arguments):
    """What is wrong with the keys of the sweep itself."""
    from attnorm.cli.read_sweep import read_own
    from attnorm.schema import option_problems
    from attnorm.sweeps.settings import SweepSettings

    own = read_own([it for it in arguments if it.partition("=")[0] in ("dir", "jobs")])
    return option_problems("", SweepSettings, own)


def start(monkeypatch, name, *arguments):
    """Runs a script with these arguments."""
    monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
    load(f"{name}/run").main()


def cells(printed):
    """The rows of the last table that was printed: {first cell: other cells}."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in printed.splitlines() if line[:1] == "|"]
    return {first: rest for first, *rest in rows}


def test_a_sweep_that_fails_ends_the_experiment(tmp_path, monkeypatch):
    monkeypatch.setattr(sweeps, "run", lambda verb, arguments: 130)
    with pytest.raises(SystemExit) as ended:
        sweeps.sweep(tmp_path, "task=mlm")
    assert ended.value.code == 130


def test_means_and_spreads():
    assert [sweeps.spread(it) for it in ([], [2.0], [1.0, 2.0, 3.0])] == ["-", "2.00", "2.00 ± 1.00"]


def test_rows_of_the_paper_stand_beside_ours_and_after_them():
    ours = {"dnas": [[1.0], []]}
    text = sweeps.beside_paper(["F1", "EM"], ours, {"BERT": [2.0], "dnas": [None]}, ["F1"])
    assert text.splitlines() == [
        "|  | F1 | EM | paper: F1 |",
        "| --- | --- | --- | --- |",
        "| dnas | 1.00 | - | - |",
        "| BERT | - | - | 2.00 |",
    ]


def test_table_2_compares_starts_of_the_same_shape(tmp_path, monkeypatch, capsys, commands):
    bert = tmp_path / "bert"
    bert.mkdir()
    (bert / "config.json").write_text('{"model_type": "bert", "hidden_size": 48, "num_hidden_layers": 3}')
    start(
        monkeypatch, "gigaword_table2", "--data", tmp_path, "--bert", bert, "--folder", tmp_path / "t", "--seeds", 1, 2
    )
    (_, random), (_, trained), (verb, folders) = commands
    assert {"experiment=reuters", "attention=softmax,hnas", "seed=1,2", f"data.dir={tmp_path}"} <= {*random} & {
        *trained
    }
    assert f"model.init={bert}" in trained and not any(it.startswith("model.init") for it in random)
    assert {"++model.d_model=48", "model.decoder_layers=3", f"tokenizer.file={bert}"} <= {*random}
    assert verb == "report" and folders == [f"{tmp_path}/t/random", f"{tmp_path}/t/BERT"]
    rows = cells(capsys.readouterr().out)
    assert rows["hnas, BERT"] == [f"{it}.15 ± 0.07" for it in (4, 14, 24)] + ["39.06", "20.14", "36.51"]
    assert rows["SEASS"][:3] == ["-"] * 3 and rows["lead-8"][3:] == ["-"] * 3


def test_table_2_says_what_it_leaves_out(tmp_path, monkeypatch, capsys, commands):
    start(monkeypatch, "gigaword_table2", "--data", tmp_path, "--folder", tmp_path / "t", "--", "jobs=2")
    assert len(commands) == 2 and "jobs=2" in commands[0][1]
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
    files = [tmp_path / "train", tmp_path / "valid"]
    start(
        monkeypatch, "mlm_table3", "--init", tmp_path, "--mnli", *files, "--arms", "softmax", "--folder", tmp_path / "t"
    )
    [(_, tuning), (_, folders)] = commands
    assert f"model.init={tmp_path}" in tuning and "optimizer.lr=1e-3" not in tuning
    assert folders == [f"{tmp_path}/t/mnli_softmax"]


def test_em_routing_has_an_arm_for_each_claim(tmp_path, monkeypatch, capsys, commands):
    start(monkeypatch, "em_routing", "--folder", tmp_path, "--seeds", 1, 2, "--", "task.max_steps=9")
    *trained, (verb, folders) = commands
    assert all({"seed=1,2", "task.max_steps=9", "model.fusion=attention"} <= {*arguments} for _, arguments in trained)
    assert verb == "report" and folders == [str(tmp_path)]
    rows = cells(capsys.readouterr().out)
    estimated = ["2 updates, sigma estimated", "2 updates, sigma and beta estimated"]
    assert [*rows][2:] == ["softmax", "dnas", "2 updates", "3 updates", *estimated]
    assert rows["dnas"][OFFSETS_WITHOUT_LOSS.index("accuracy")] == "44.15 ± 0.07"
    assert all("±" in cell for row in estimated for cell in rows[row])


OFFSETS_WITHOUT_LOSS = [name for name in OFFSETS if name != "loss"]


def test_held_out_synonyms_are_compared_with_words_that_training_showed(tmp_path, monkeypatch, capsys, commands):
    monkeypatch.chdir(tmp_path)  # the script changes it
    start(monkeypatch, "ot_synonyms", "--folder", tmp_path, "--seeds", 1, 2)
    assert [verb for verb, _ in commands] == ["sweep"] * 4 + ["report"]
    assert [{f"data.twins={twins}" for twins in ("true", "false")} & {*it} for _, it in commands[:4]] == [
        *[{"data.twins=true"}] * 2,
        *[{"data.twins=false"}] * 2,
    ]
    assert commands[-1][1] == [f"{tmp_path}/twins"]
    rows = cells(capsys.readouterr().out)
    assert rows["accuracy"] == ["softmax", "ot", "ot, bank"]
    assert rows["held-out twins"] == ["47.15 ± 0.07", "42.15 ± 0.07", "42.15 ± 0.07"]


def test_twins_are_words_of_their_own_that_training_never_shows():
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


def test_twins_start_with_the_embedding_of_their_word():
    import torch

    twins = load("ot_synonyms/twins")
    labels = list(twins.newswire.EVENT_KINDS)
    source = twins.TwinNewswire(labels=labels, train_size=100)
    tokenizer = twins.TwinWords.from_settings(lambda _: (text for text, _, _ in source.rows("train")), vocab_size=50)
    tokens = torch.nn.Embedding(tokenizer.vocab_size, 4)
    before = tokens.weight.detach().clone()
    model = SimpleNamespace(encoder=SimpleNamespace(embeddings=SimpleNamespace(tokens=tokens)))
    module = SimpleNamespace(tokenizer=tokenizer, model=model)
    twins.StartAlike().on_fit_start(SimpleNamespace(global_step=5), module)
    assert torch.equal(tokens.weight, before)  # a resumed run keeps what it has learned
    twins.StartAlike().on_fit_start(SimpleNamespace(global_step=0), module)
    numbers = {tokenizer.token(i): i for i in range(tokenizer.vocab_size)}
    pairs = [(numbers[word], numbers[twins.twin(word)]) for word in numbers if twins.has_twin(word)]
    assert len(pairs) > 5
    for word, other in pairs:
        assert torch.equal(tokens.weight[other], before[word]) and torch.equal(tokens.weight[word], before[word])
