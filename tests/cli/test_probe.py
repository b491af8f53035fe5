"""`attnorm probe`: what it refuses, and a run with a normalizer and a probe of one's own."""

import re
import sys
from dataclasses import replace

import pytest
import runs
import torch

from attnorm.cli import main, probe
from attnorm.cli.probe import difference, plan_of, read_probe
from attnorm.errors import ConfigError
from attnorm.probes import ensemble, experiment
from attnorm.probes.presets import PRESETS
from attnorm.run.csv_files import read_csv

PAGE = (runs.ROOT / "docs/probe.md").read_text()
MINE = "from attnorm.attention.normalizers.softmax import Softmax\n\n\nclass Mine(Softmax):\n    pass\n"


def problems(*typed):
    with pytest.raises(ConfigError) as caught:
        read_probe(typed)
    return caught.value.problems


@pytest.fixture
def run(monkeypatch, tmp_path, capsys):
    """Runs the command in an empty folder; returns its exit code and what it has printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(ensemble, "SELECTION", 8)

    def command(*typed):
        monkeypatch.setattr(sys, "argv", ["attnorm", "probe", *typed])
        code = main.main()
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return command


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("normalizers=softmax,hnsa", "normalizers.*'hnsa' is unknown; allowed: softmax, .*Did you mean 'hnas'"),
        ("normalizers=softmax,dnas+learned", "normalizers.*dnas.learned.*allowed: content"),
        ("normalizers=softmax+", r"normalizers: softmax\+: '' is no preference.*allowed: content"),
        ("normalizers=softmax,no_such.Mine", "normalizers.*'no_such.Mine': cannot import no_such"),
        ("normalizers=softmax,dnas,softmax", "normalizers=softmax: named twice"),
        ("normalizers=softmax,dnas_u,dnas+content", r"normalizers=dnas\+content, dnas_u: named twice"),
        ("normalizers=uniform,softmax", "normalizers=uniform: .*baseline.*null arm"),
        ("normalizers=[]", r"normalizers=\[\]: needs at least one"),
        ("normalizers=softmax,argmax", "normalizers=argmax: .*no gradient"),
        ("normalizers=softmax,selective", "normalizers=selective: .*causal"),
        ("probes=hubb", "probes.*'hubb' is unknown; allowed: match, hub.*Did you mean 'hub'"),
        ("probes=demand:5", "probes.*demand has no dose '5'; allowed: 16, 12, 8, 4"),
        ("probes=match:4", "probes.*match has no dose '4'; it has none"),
        ("probes=probe_parts.Listed", r"probes: probe_parts.Listed.doses=\(1, 2\): expected the options of each dose"),
        ("probes=probe_parts.Listed:2", r"probes: probe_parts.Listed.doses=\(1, 2\): expected the options of each"),
        ("probes=no_such.Mine:4", "probes.*'no_such.Mine': cannot import no_such"),
        ("probes=attnorm.probes.arm.Arm", "probes.*must be a subclass of attnorm.probes.base.Probe"),
        ("probes=hub,probe_parts.Elsewhere", "probes.*Elsewhere.site='self': allowed: cross, bidirectional"),
        ("probes=[]", r"probes=\[\]: needs at least one"),
        ("sedes=3", "sedes=3: .*no such option.*Did you mean 'seeds'"),
        ("preset=quik", "preset=quik: allowed: quick, atlas"),
        ("out=/proc/probe", "out=/proc/probe: cannot write in /proc: "),
        ("seeds=0", "seeds=0: allowed: whole numbers from 1"),
        ("formats=pdf,gif", "formats=gif: allowed: png, svg, pdf"),
        ("jobs=two", "jobs=two: allowed: whole numbers from 1"),
        ("rates=0.1,-1", "rates=-1: allowed: numbers above 0"),
        ("rates=[]", r"rates=\[\]: needs at least one"),
        ("rates=0.1,0.01,0.1", "rates=0.1,0.01,0.1: has a value twice"),
        ("options.hnas={strt:1}", ".*'hnas': strt=1: no such option; allowed: start, .*Did you mean 'start'"),
        ("options.hnas=3", "options.hnas=3: expected options"),
        ("options.sink={start:1}", r"options.sink=\{.*: has no effect; the normalizers are softmax, dnas, hnas"),
        ("options.sink.start=1", r"options.sink.start=1: has no effect; the normalizers are softmax, dnas, hnas"),
        ("options.hnas.strt=1", ".*'hnas': strt=1: no such option; allowed: start, .*Did you mean 'start'"),
        ("out=", "out: must be given"),
        ("hub", "hub: expected key=value; the keys are normalizers, preset, probes"),
    ],
)
def test_a_message_names_the_key_the_value_and_what_is_allowed(typed, expected):
    [problem] = problems(typed)
    assert re.match(expected, problem), problem


def test_an_own_normalizer_that_sees_the_future_is_refused_at_the_causal_site():
    typed = "normalizers=softmax,probe_parts.Leaky"
    [problem] = problems(typed, "probes=recall,hub")
    assert re.match("normalizers=probe_parts.Leaky: no_leak_in_causal_use does not hold", str(problem)), problem
    assert problem.endswith("type attnorm check probe_parts.Leaky")
    read_probe([typed, "probes=hub"])


def test_all_problems_are_reported_together_and_nothing_runs(run, tmp_path):
    typed = ["normalizers=uniform,hnsa,hnsa", "probes=hubb,demand:5", "sedes=3", "options.sink={}", "options.ot={}"]
    code, _, printed = run(*typed)
    assert (
        code == 2
        and printed.startswith("error: sedes=3: attnorm probe has no such option")
        and not [*tmp_path.iterdir()]
    )
    code, _, printed = run(*(argument for argument in typed if "sedes" not in argument))
    assert code == 2 and not [*tmp_path.iterdir()]
    for part in ("'hnsa' is unknown", "named twice", "null arm", "'hubb'", "no dose '5'", "options.sink", "options.ot"):
        assert part in printed


def test_classes_of_the_same_name_are_refused(monkeypatch, tmp_path):
    """Their results would be the same files and rows."""
    text = f"{MINE}\n\nfrom probe_parts import Tiny as Base\nclass Tiny(Base): pass\n"
    for module in ("first_parts", "second_parts"):
        (tmp_path / f"{module}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    [problem] = problems("normalizers=softmax,first_parts.Mine,second_parts.Mine")
    assert problem == "normalizers: several classes are called Mine; rename one of them"
    [problem] = problems("probes=hub,first_parts.Tiny,second_parts.Tiny")
    assert problem == "probes: several classes are called Tiny; rename one of them"
    assert len(plan("probes=first_parts.Tiny,first_parts:Tiny").cells) == 1, "the same class"


def plan(*typed):
    return plan_of(read_probe(typed))


def test_defaults_are_those_of_the_configuration_and_of_the_preset():
    quick = PRESETS["quick"]
    found = plan("preset=quick")
    assert list(found.arms) == ["softmax", "dnas", "hnas", "uniform"]
    assert list(found.cells) == list(quick.cells) and len(found.cells) == 7
    assert tuple(found.rates) == tuple(quick.rates) and found.share == 1 / 3 and found.extensions == 0
    assert found.seeds == (110, 111, 112, 113, 114) and found.tuning_seeds == (100, 101)
    atlas = plan("preset=atlas")
    assert (len(atlas.seeds), len(atlas.tuning_seeds), len(atlas.rates), atlas.extensions) == (10, 4, 4, 2)


def test_keys_change_the_plan():
    for label in ("dnas_slack+content", "dnas_slack_u"):
        with_prior = plan(f"normalizers=softmax,{label}", "options.dnas_slack={start:-1}")
        assert [with_prior.arm(arm).options for arm in with_prior.arms[:2]] == [{}, {"start": -1}]
    both = ("options.dnas_slack_u.start=1", "options.dnas_slack={start:2,per_query:true}")
    for typed in (both, both[::-1]):
        found = plan("normalizers=softmax,dnas_slack_u,dnas_slack", *typed)
        assert found.arm("dnas_slack_u").options == {"start": 1, "per_query": True}
        assert found.arm("dnas_slack").options == {"start": 2, "per_query": True}
    own = "normalizers=softmax,hnas,probe_parts.Scaled"
    for typed in ("options.probe_parts.Scaled={factor:2}", "options.Scaled={factor:2}", "options.Scaled.factor=2"):
        found = plan(own, typed, "options.hnas.start=0.2", "options.hnas.per=layer")
        assert found.arm("probe_parts.Scaled").options == {"factor": 2}
        assert found.arm("hnas").options == {"start": 0.2, "per": "layer"}
    found = plan("probes=demand:4,hub", "normalizers=sink,uniform", "seeds=3", "rates=0.1", "options.sink={start:2}")
    assert [cell.title for cell in found.cells] == ["demand 4", "hub 0.9", "hub 0.45", "hub 0"]
    assert list(found.arms) == ["sink", "uniform"] and tuple(found.rates) == (0.1,)
    assert found.seeds == (110, 111, 112) and found.arm("sink").options == {"start": 2}
    assert plan("probes=all").cells == PRESETS["atlas"].cells
    assert len({*plan("probes=all,hub,hub:0").cells}) == len(plan("probes=all,hub,hub:0").cells)
    for typed, title in (("trigger:no BOS", "trigger no BOS"), ("rank:depth 1", "rank depth 1")):
        assert [cell.title for cell in plan(f"probes={typed}").cells] == [title]


def test_every_probe_passes_the_trial_before_training():
    probe.try_probes(PRESETS["atlas"].cells)


def test_own_classes_have_a_path_with_a_dot_or_a_colon_and_a_dose_and_lists_have_commas():
    hub = "attnorm.probes.lookup"
    for typed in (f"{hub}.Hub:0.9", f"{hub}:Hub"):
        found = plan(f"probes={typed}").cells
        assert all(cell.short == "Hub" for cell in found) and len(found) == (1 if "0.9" in typed else 3)
    assert [cell.short for cell in plan("probes=probe_parts:Tiny").cells] == ["Tiny"]
    found = read_probe(["normalizers=softmax,dnas", "rates=[1,2]", "out=a,b", "probes=hub"])
    assert (found.normalizers, found.rates, found.out, found.probes) == (("softmax", "dnas"), (1, 2), "a,b", ("hub",))


@pytest.fixture
def own_parts(monkeypatch, tmp_path):
    """The probe of the documentation, shortened, and a normalizer of one's own, in the working directory."""
    [source] = [it for it in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "class FirstHalf(Probe)" in it]
    assert "updates = 16, (16, 32), 400" in source
    short = source.replace("updates = 16, (16, 32), 400", "updates = 4, (4, 6), 8")
    name = re.match(r"# (\w+)\.py\n", source)[1]
    (tmp_path / f"{name}.py").write_text(short)
    (tmp_path / "my_parts.py").write_text(MINE)
    yield f"{name}.FirstHalf", "my_parts.Mine"
    for module in (name, "my_parts"):
        sys.modules.pop(module, None)


def test_own_parts_of_the_working_directory_are_compared(monkeypatch, run, tmp_path, own_parts):
    own_probe, mine = own_parts
    assert f"probes={own_probe}" in PAGE, "the command of the page"
    ran = []
    real = experiment.run
    monkeypatch.setattr(experiment, "run", lambda job: ran.append(job) or real(job))
    typed = [f"normalizers=softmax,{mine},uniform", f"probes={own_probe}:0.3", "seeds=3", "rates=0.01"]
    code, printed, errors = run(*typed)
    assert code == 0, errors
    assert len(ran) == 3 + 3, "two arms and a null arm are tuned and scored"
    assert "preview: " in printed and "FirstHalf" in printed and "+0.000" in printed
    rows = read_csv(tmp_path / "logs/probe/probe.csv")
    assert {row["preset"] for row in rows} == {"quick"}
    arms = ("softmax", "Mine", "uniform")
    assert [(row["arm"], row["size"]) for row in rows] == [(arm, size) for size in ("4", "6") for arm in arms]
    same = {row["arm"]: row for row in rows if row["size"] == "4"}
    assert same["Mine"]["score"] == same["softmax"]["score"] and same["Mine"]["verdict"] == "all differences are zero"
    assert "FirstHalf" in (tmp_path / "logs/probe/probe.html").read_text()
    ran.clear()
    assert run(*typed)[0] == 0 and ran == [], "continues where it stopped"
    typed[0] = f"normalizers=softmax,{mine},dnas"
    assert run(*typed)[0] == 0 and {job.arm for job in ran} == {"dnas"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "reason", "jobs"),
    [("", "RuntimeError: broken on <purpose>", 1), *(("0", "SystemExit: 0", jobs) for jobs in (1, 2))],
)
def test_a_normalizer_that_fails_is_named_and_the_others_are_shown(monkeypatch, run, tmp_path, code, reason, jobs):
    monkeypatch.setenv("BROKEN_EXITS", code)
    typed = ["normalizers=softmax,probe_parts.Broken,dnas", "probes=probe_parts.Tiny", "seeds=3", "rates=0.01"]
    typed += [f"jobs={jobs}"]
    code, printed, errors = run(*typed, "out=here")
    assert code == 1 and "Tiny" in printed and "written to" in printed
    table = printed.partition("Difference to softmax")[2]
    assert re.search(r"(?s)Tiny.* failed .*[+-]0\.", table), "whatever its width"
    assert f"failed: probe_parts.Broken at Tiny: {reason}" in " ".join((printed + errors).split())
    assert {row["arm"] for row in read_csv(tmp_path / "here/probe.csv")} == {"softmax", "dnas", "uniform"}


@pytest.mark.parametrize(("diverged", "code"), [(3, 1), (1, 0)])
def test_models_that_diverge_are_said_and_an_arm_without_others_has_no_verdict(monkeypatch, run, diverged, code):
    real = experiment.run

    def diverging(job):
        return replace(real(job), diverged=diverged if job.arm == "dnas" and not job.tune else 0)

    monkeypatch.setattr(experiment, "run", diverging)
    typed = ["normalizers=softmax,dnas", "probes=probe_parts.Tiny", "seeds=3", "rates=0.01", "out=here"]
    for _ in range(2):  # trained, and read from the folder
        ended, printed, errors = run(*typed)
        said = " ".join((printed + errors).split())
        assert ended == code and bool(re.search(r"Tiny .* failed", printed)) == (diverged == 3)
        if diverged == 3:
            assert "failed: dnas at Tiny: the outputs of all 3 seeds are not finite" in said
        else:
            assert "Tiny: dnas: the outputs of 1 seed are not finite, and score as zeros" in said


@pytest.mark.parametrize("name", ["Unsolved", "UnsolvedInTraining"])
def test_an_error_of_an_own_probe_comes_before_training(run, tmp_path, name):
    with pytest.raises(torch.linalg.LinAlgError):
        run(f"probes=probe_parts.Tiny,probe_parts.{name}", "seeds=3", "rates=0.01", "out=here")
    assert not (tmp_path / "here").exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("NumberAsCeiling", r"NumberAsCeiling\.ceiling: .* of the shape \(2,\) for 2 examples, not 1\.0"),
        ("ScoreOfQueries", r"ScoreOfQueries\.score: .* \(1, 2\) for 2 examples, not torch\.bool \(1, 2, 4\)"),
        ("LossOfExamples", r"LossOfExamples\.loss: .* of the shape \(1,\) for 2 examples, not torch\.float32 \(1, 2\)"),
        ("NoDoses", r"NoDoses\.doses={}: expected the options of each dose by its name"),
    ],
)
def test_an_own_probe_of_another_form_is_refused_before_training(run, tmp_path, name, message):
    code, _, errors = run(f"probes=probe_parts.{name}", "seeds=3", "rates=0.01", "out=here")
    assert code == 2 and re.search(message, " ".join(errors.split())), errors
    assert not (tmp_path / "here").exists()


def test_a_cell_in_which_the_baseline_is_not_defined_is_in_the_table(run):
    typed = ["normalizers=dnas,softmax", "probes=probe_parts.Tiny,probe_parts.TinyCausal", "seeds=3", "rates=0.01"]
    code, printed, errors = run(*typed, "out=here")
    assert code == 0 and re.search(r"(TinyCausal|dnas \(score\)) .*not defined here", printed), printed + errors


@pytest.mark.slow
def test_a_single_seed_and_a_single_normalizer_give_scores_without_verdicts(run, tmp_path):
    for arm in ("softmax", "asentmax", "dnas_slack+content", "probe_parts.Temperature"):
        typed = (f"normalizers={arm}", "probes=probe_parts.Tiny", "seeds=1", "rates=0.01", f"out={arm}")
        code, _, errors = run(*typed)
        assert code == 0, errors


def test_long_names_do_not_collide_with_what_follows(capsys):
    long = "attnorm.attention.normalizers.softmax.Softmax"
    plan = plan_of(read_probe([f"normalizers=softmax,{long}", "probes=match", "seeds=3"]))
    for arm in ("softmax", long):
        probe.show_job(plan, plan.job(plan.cells[0], arm, [0.1], True), experiment.ProbeFailure("none"))
    columns = [line.split() for line in capsys.readouterr().out.splitlines() if "failed" in line]
    assert columns == [["match", arm, "tuning", "failed:", "none"] for arm in ("softmax", long)]


def test_a_difference_is_shown_with_both_ends_of_its_interval_and_its_verdict():
    found = probe.Row("hub", "0.9", "cross", "accuracy", 8, True, "dnas", 0.01, 5, 0.8, 0.1, 0.2, 0.9, 0.8)
    for verdict, mark in (("shown", " *"), ("not shown", ""), ("depends on the rate", " (flips)")):
        row = probe.Row(**{**vars(found), "difference": 0.2, "low": -0.01, "high": 0.25, "verdict": verdict})
        assert difference(row, "") == f"+0.200 (-0.010 to +0.250){mark}"
    row = probe.Row(**{**vars(found), "difference": 0.2, "verdict": "at least 3 seeds are needed (found 2)"})
    assert difference(row, "") == "+0.200 (at least 3 seeds are needed (found 2))"
    overflowed = probe.Row(**{**vars(found), "verdict": "scores that are not finite"})
    assert difference(overflowed, "") == "scores that are not finite"
    assert difference(None, "not defined here") == "not defined here" and difference(None, "") == ""
