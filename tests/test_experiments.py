"""The scripts of experiments/: which sweeps they run, what they read of them, and the tables that they print."""

import importlib.util
import json
import sys

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
            job = folder / "_".join([values["attention"], values["seed"], values.get("model.fusion", "")])
            if "," in settings.get("model", ""):
                job = job.with_name(job.name + values["model"])
            job.mkdir(parents=True, exist_ok=True)
            summary = {"validation": {"metrics": scores, "baselines": {"lead-8": scores}}}
            summary |= {"parameters": 1234, "wall_seconds": 90}
            (job / "summary.json").write_text(json.dumps(summary))
            jobs.append({"folder": str(job), "overrides": [f"{key}={value}" for key, value in values.items()]})
        (folder / "sweep.json").write_text(json.dumps({"jobs": jobs}))
        return 0

    monkeypatch.setattr(imported, "run", run)
    return ran


OFFSETS = {"rouge1": 0, "rouge2": 10, "rougeL": 20, "loss": 30, "accuracy": 40, "f1": 50, "exact": 60}
SWEPT = ("attention", "seed", "model.fusion", "model")


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


def test_flat_and_hierarchical_attention_have_an_arm_per_normalizer(tmp_path, monkeypatch, capsys, commands):
    start(monkeypatch, "hierarchical", "--texts", tmp_path, "--folder", tmp_path / "t", "--seeds", 1, 2, "--", "jobs=2")
    (_, arguments), (verb, folders) = commands
    assert {"model=flat_tiny,hierarchical_tiny", "attention=softmax,dnas,hnas", "data.mask_names=true"} < {*arguments}
    assert f"data.folder={tmp_path}" in arguments and "jobs=2" in arguments
    assert verb == "report" and folders == [f"{tmp_path}/t"]
    rows = cells(capsys.readouterr().out)
    assert rows["hierarchical, hnas"] == ["44.15 ± 0.07", "34.150 ± 0.071", "1,234", "1.5 ± 0.0"]
    assert rows["lead-8"] == ["47.10", "-", "-", "-"] and len(rows) == 9  # with the header and its line
    start(monkeypatch, "hierarchical", "--texts", tmp_path, "--folder", tmp_path / "n", "--names", "--seeds", 1)
    assert "data.mask_names=false" in commands[2][1]
