"""A comparison: which rates and seeds it uses, what it repeats, and what a failure costs."""

import importlib
import itertools
import subprocess
import sys
import textwrap
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from dataclasses import replace

import numpy as np
import probe_parts
import pytest
import torch

from attnorm import source_code
from attnorm.probes import PROBES, Probe, ensemble, experiment, jobs
from attnorm.probes.experiment import ProbePlan, Workers, compare
from attnorm.probes.jobs import Cell, ProbeJob, ProbeResult, load, save
from attnorm.probes.presets import PRESETS, comparison_seeds, tuning_seeds

SELECTION = ensemble.SELECTION  # which the tests make smaller
TINY = Cell("probe_parts.Tiny")
PLAN = ProbePlan([TINY], ["softmax", "dnas", "uniform", "none"], (1e-3, 1e-2), (100, 101), (110, 111, 112, 113))


@pytest.fixture(autouse=True)
def few_examples(monkeypatch):
    monkeypatch.setattr(ensemble, "SELECTION", 8)


def result_with(job, selection, scores=0.5):
    """A result of a job in which each member has the same score for all examples."""
    members = len(job.seeds) * len(job.rates)
    selection = np.broadcast_to(np.asarray(selection, dtype=float), members)
    tables = {size: np.full((members, 20), scores) for size in job.cell.probe().test_sizes}
    return ProbeResult(selection[:, None], {} if job.tune else tables, {}, {}, 0, 1.0, job.code())


@pytest.fixture
def ran(monkeypatch):
    """The jobs that were run, in order."""
    seen = []
    real = experiment.run
    monkeypatch.setattr(experiment, "run", lambda job: seen.append(job) or real(job))
    return seen


def made_up(monkeypatch, selection):
    """Replaces training: `selection(arm, rate, seed)` is the score on the selection data."""
    seen = []

    def run(job):
        seen.append(job)
        values = [selection(job.arm, rate, seed) for rate in job.rates for seed in job.seeds]
        return result_with(job, values, scores=1 - np.mean(values))

    monkeypatch.setattr(experiment, "run", run)
    return seen


# ------------------------------------------------------------------------------------------------------------- tuning


def test_what_the_atlas_has_fixed_and_seeds_of_tuning_never_overlap_with_those_of_the_comparison():
    atlas = PRESETS["atlas"]
    assert tuple(atlas.rates) == (1e-3, 3e-3, 1e-2, 3e-2) and (atlas.extensions, experiment.FACTOR) == (2, 3)
    assert tuning_seeds(atlas) == (100, 101, 102, 103) and comparison_seeds(atlas.seeds) == tuple(range(110, 120))
    assert (SELECTION, Probe.test_examples, atlas.share) == (512, 1000, 1)
    assert (ensemble.WARMUP, ensemble.FAST, experiment.NULL_SEEDS) == (0.05, 10, 3)
    assert {cell.name for cell in atlas.cells} == {*PROBES} and len({*atlas.cells}) == len(atlas.cells)
    for preset, count in itertools.product(PRESETS.values(), (1, 5, 10, 500)):
        assert not {*tuning_seeds(preset)} & {*comparison_seeds(count)}
        assert len({*comparison_seeds(count)}) == count


def test_mqar_has_the_published_sizes():
    probes = [cell.probe() for cell in PRESETS["mqar"].cells]
    found = {(it.size, it.pairs, it.width, it.examples, it.updates) for it in probes}
    lengths = ((64, 4, 512, 12_500), (128, 8, 512, 12_500), (256, 16, 256, 25_000), (512, 64, 128, 50_000))
    assert found == {(size, pairs, width, *of) for size, pairs, *of in lengths for width in (64, 128, 256, 512)}
    assert {(it.train_examples, it.test_examples) for it in probes} == {(100_000, 3000)}
    assert np.allclose(PRESETS["mqar"].rates, np.logspace(-4, -2, 4), rtol=1e-3)


def test_the_rate_has_the_best_mean_over_the_tuning_seeds_alone(monkeypatch, tmp_path):
    """Neither one seed that does well once, nor one without a score, nor the comparison, which prefers other rates."""
    scores = {1e-3: (0.6, 0.6), 1e-2: (0.95, 0.2), 3e-2: (0.9, float("nan"))}
    seen = made_up(monkeypatch, lambda arm, rate, seed: scores[rate][seed % 2] if seed < 110 else rate)
    [found] = compare(replace(PLAN, rates=tuple(scores)), tmp_path)
    assert found.rate == dict.fromkeys(PLAN.arms, 1e-3)
    assert found.tuning["dnas"][1e-2].tolist() == [0.95, 0.2]
    assert all(job.tune == (set(job.seeds) == {100, 101}) for job in seen)
    assert [job.rates for job in seen if not job.tune] == [(1e-3,)] * 4


def test_tuning_draws_no_test_example_and_the_comparison_no_seed_of_tuning(monkeypatch, tmp_path):
    drawn = []
    real = ensemble.generator
    monkeypatch.setattr(ensemble, "generator", lambda *names: drawn.append(names[1:]) or real(*names))
    streams = {}
    for job in (PLAN.job(TINY, "dnas", PLAN.rates, True), PLAN.job(TINY, "dnas", (1e-3,), False)):
        drawn.clear()
        found = jobs.run(job)
        streams[job.tune] = {*drawn}
        assert bool(found.scores) == (not job.tune)
    assert {kind for kind, _ in streams[True]} == {"train", "selection"}
    assert {seed for kind, seed in streams[True] if kind == "train"} == {100, 101}
    assert {seed for kind, seed in streams[False] if kind == "train"} == {110, 111, 112, 113}
    assert {size for kind, size in streams[True] | streams[False] if kind == "selection"} == {4}
    assert {size for kind, size in streams[False] if kind == "test"} == {4, 6}


def test_models_are_scored_and_measured_as_they_are_used_and_a_job_can_be_repeated():
    """A normalizer that adds noise in training: its noise depends on the job alone, and no score has any."""
    job, modes = ProbeJob(TINY, "probe_parts.Noisy", (110, 111), (1e-2,), False, {}, 4), probe_parts.Noisy.modes
    modes.clear()
    first = jobs.run(job)
    # two members, each alone: an update and the selection, four times; then two sizes of the tests, and the measures
    assert modes[-22:] == [True, True, False, False] * 4 + [False] * 6
    torch.manual_seed(5)
    state = torch.get_rng_state()
    second = jobs.run(job)
    assert torch.equal(state, torch.get_rng_state())
    assert all(np.array_equal(first.scores[size], second.scores[size]) for size in first.scores)
    assert all(np.array_equal(first.measures[name], second.measures[name]) for name in first.measures)


def test_arms_of_a_cell_have_the_same_tests_and_the_same_batches(monkeypatch, tmp_path):
    """A model that does not look at its queries and keys gets the same scores under another name."""
    plan = replace(PLAN, arms=["softmax", "uniform", "none", "sparsemax"])
    [found] = compare(plan, tmp_path)
    assert len(found.tests["uniform"].scores[4]) == 3, "the null arms have three seeds"
    assert found.tests["softmax"].scores[4].shape == (4, 1000)
    for seed in range(3):
        again = jobs.run(ProbeJob(TINY, "uniform", (110 + seed,), (found.rate["uniform"],), False, {}, 4))
        assert np.array_equal(again.scores[6][0], found.tests["uniform"].scores[6][seed])


def test_null_arms_are_tuned_on_the_grid_of_the_others_and_do_not_extend_it(monkeypatch, tmp_path):
    best = {"softmax": 3e-3, "dnas": 9e-2, "uniform": 1.0, "none": 1e-9}
    seen = made_up(monkeypatch, lambda arm, rate, seed: -abs(np.log(rate / best[arm])))
    [found] = compare(replace(PLAN, rates=RATES, extensions=2), tmp_path)
    assert [sorted(found.tuning[arm]) for arm in best] == [[*RATES, *UP]] * 4
    assert (found.rate["uniform"], found.rate["none"]) == (UP[-1], RATES[0])
    null = [(job.arm, job.rates, job.seeds) for job in seen if job.arm in ("uniform", "none") and not job.tune]
    assert null == [("uniform", UP[-1:], (110, 111, 112)), ("none", RATES[:1], (110, 111, 112))]


RATES = (1e-3, 3e-3, 1e-2, 3e-2)
UP, DOWN = (9e-2, 0.27), (0.000333, 0.000111)


@pytest.mark.parametrize(
    ("best", "extensions", "added"),
    [
        ({"softmax": 3e-3, "dnas": 1e-2}, 2, ()),
        ({"softmax": 3e-3, "dnas": 1.0}, 2, UP),
        ({"softmax": 3e-3, "dnas": 1e-9}, 2, DOWN),
        ({"softmax": 1e-9, "dnas": 1.0}, 2, (*UP, *DOWN)),
        ({"softmax": 3e-3, "dnas": 9e-2}, 2, UP),  # the best of the extended grid is at its edge, too
        ({"softmax": 3e-3, "dnas": 3.2e-2}, 2, UP[:1]),
        ({"softmax": 3e-3, "dnas": 1.0}, 1, UP[:1]),
        ({"softmax": 3e-3, "dnas": 1.0}, 0, ()),
    ],
)
def test_an_edge_extends_the_grid_for_all_arms_and_not_without_end(monkeypatch, tmp_path, best, extensions, added):
    seen = made_up(monkeypatch, lambda arm, rate, seed: -abs(np.log(rate / best.get(arm, 1e-2))))
    [found] = compare(replace(PLAN, rates=RATES, extensions=extensions), tmp_path)
    expected = sorted((*RATES, *added))
    assert all(sorted(found.tuning[arm]) == pytest.approx(expected) for arm in best)
    tuned = [(job.arm, rate) for job in seen if job.tune for rate in job.rates]
    assert len(tuned) == len(set(tuned)) == 4 * len(expected), "no rate is trained twice"
    for arm, value in best.items():
        assert found.rate[arm] == pytest.approx(min(expected, key=lambda rate: abs(np.log(rate / value))))


def test_an_edge_of_one_cell_does_not_extend_the_grid_of_another(monkeypatch, tmp_path):
    other = Cell("hub", "0")

    def run(job):
        best = 1.0 if job.cell == other else 3e-3
        return result_with(job, [-abs(np.log(rate / best)) for rate in job.rates for _ in job.seeds])

    monkeypatch.setattr(experiment, "run", run)
    first, second = compare(replace(PLAN, cells=[TINY, other], rates=RATES, extensions=2), tmp_path)
    assert len(first.tuning["dnas"]) == 4 and len(second.tuning["dnas"]) == 6


def test_further_rates_are_trained_with_the_seeds_of_the_comparison(monkeypatch, tmp_path):
    seen = made_up(monkeypatch, lambda arm, rate, seed: rate)
    [found] = compare(PLAN, tmp_path, further=lambda found: {"softmax": [1e-3]} if found.tests else {})
    assert (seen[-1].arm, seen[-1].rates, seen[-1].seeds, seen[-1].tune) == ("softmax", (1e-3,), PLAN.seeds, False)
    assert list(found.further) == ["softmax"] and list(found.further["softmax"]) == [1e-3]
    count = len(seen)
    [again] = compare(PLAN, tmp_path, workers=0, further=lambda found: {"softmax": [1e-3]})
    assert len(seen) == count and again.further["softmax"][1e-3].scores.keys() == found.tests["softmax"].scores.keys()


def test_a_probe_without_training_is_not_tuned_and_the_share_shortens_that_of_others(monkeypatch, tmp_path):
    seen = made_up(monkeypatch, lambda arm, rate, seed: 0.0)
    [found] = compare(replace(PLAN, cells=[Cell("rank", "depth 1")]), tmp_path)
    assert found.tests.keys() == {"softmax", "dnas", "uniform", "none"} and not found.rate
    assert {(job.tune, job.updates) for job in seen} == {(False, 0)}
    updates = {TINY: 2, Cell("hub", "0"): 300}
    plan = ProbePlan([*updates], ["softmax"], (1e-3,), (100,), (110,), share=0.5)
    assert {cell: plan.job(cell, "softmax", (1e-3,), tune=False).updates for cell in updates} == updates


# ----------------------------------------------------------------------------------------------------------- resuming


def test_what_is_there_is_not_run_again_unless_it_is_damaged(ran, tmp_path):
    first = compare(PLAN, tmp_path)
    assert len(ran) == 4 + 4
    ran.clear()
    second = compare(PLAN, tmp_path)
    assert ran == []
    for a, b in zip(first, second, strict=True):
        assert a.rate == b.rate and a.seconds == b.seconds and a.tests.keys() == b.tests.keys()
        for arm in a.tests:
            assert all(np.array_equal(a.tests[arm].scores[size], b.tests[arm].scores[size]) for size in (4, 6))
    for size in (0, 100):
        file = max(tmp_path.rglob("*.npz"))
        file.write_bytes(file.read_bytes()[:size])
        [found] = compare(PLAN, tmp_path)
        assert len(ran) == 1 and found.tests.keys() == first[0].tests.keys()
        ran.clear()
    compare(replace(PLAN, arms=[*PLAN.arms, "sink"]), tmp_path)
    assert [(job.arm, job.tune) for job in ran] == [("sink", True), ("sink", False)]


TUNED = {"softmax", "dnas", "sink"}


@pytest.mark.parametrize(
    ("change", "tune", "test"),
    [
        ({"seeds": (110, 111, 114)}, set(), {*TUNED, "uniform", "none"}),
        ({"seeds": (110, 111, 112, 113, 114)}, set(), TUNED),  # the null arms keep their three
        ({"tuning_seeds": (102, 103)}, {*TUNED, "uniform", "none"}, set()),
        ({"options": {"dnas": {}}}, set(), set()),
        ({"options": {"sink": {"start": 3.0}}}, {"sink"}, {"sink"}),
        ({"share": 0.5}, {*TUNED, "uniform", "none"}, {*TUNED, "uniform", "none"}),
    ],
    ids=["other seeds", "more seeds", "tuning seeds", "no option", "option", "share"],  # sets have no fixed order
)
def test_a_change_runs_what_depends_on_it(monkeypatch, tmp_path, change, tune, test):
    seen = made_up(monkeypatch, lambda arm, rate, seed: rate)
    plan = replace(PLAN, arms=[*PLAN.arms, "sink"])
    compare(plan, tmp_path)
    seen.clear()
    compare(replace(plan, **change), tmp_path)
    assert {job.arm for job in seen if job.tune} == tune and {job.arm for job in seen if not job.tune} == test


OWN = {  # the normalizer, its base class, and helpers: a constant, and a module that is imported by its name
    "edited_parts": """
        import importlib
        from edited_base import Base
        from edited_helper import SCALE
        named = importlib.import_module("edited_named")
        class Mine(Base):
            def weights(self, s, given):
                return super().weights(named.same(s * SCALE), given)
        """,
    "edited_base": "from attnorm.attention.normalizers.softmax import Softmax\nclass Base(Softmax):\n    pass",
    "edited_helper": "SCALE = 1.0",
    "edited_named": "def same(s):\n    return s",
    "edited_other": "from attnorm.attention.normalizers.relu import ReLU\nclass Other(ReLU):\n    pass",
}


@pytest.mark.parametrize("edited", [*OWN, "attnorm.attention", "attnorm.probes", ""])
def test_an_edit_runs_the_jobs_that_depend_on_it(monkeypatch, tmp_path, edited):
    versions = itertools.count()

    def write(name):
        (tmp_path / f"{name}.py").write_text(f"{textwrap.dedent(OWN[name])}\n# {next(versions)}\n")

    def start_again():
        for name in OWN:
            monkeypatch.delitem(sys.modules, name, raising=False)
        importlib.invalidate_caches()
        return compare(plan, tmp_path / "out")

    seen = made_up(monkeypatch, lambda arm, rate, seed: rate)
    monkeypatch.syspath_prepend(tmp_path)
    cells, arms = [Cell("demand", "4")], ["softmax", "edited_parts.Mine", "edited_other.Other"]
    plan = replace(PLAN, cells=cells, arms=arms)
    for name in OWN:
        write(name)
    start_again()
    seen.clear()
    [found] = start_again()
    assert seen == [] and not found.edited
    if edited in OWN:
        write(edited)
    elif edited:
        digest = source_code.digest_of_attnorm
        monkeypatch.setattr(jobs, "digest_of_attnorm", lambda name: "edited" if name in edited else digest(name))
    [found] = start_again()
    depending = {"": [], **dict.fromkeys(OWN, plan.arms[1:])}
    assert [job.arm for job in seen if job.tune] == depending.get(edited, plan.arms)
    assert len(seen) == 2 * len({job.arm for job in seen})
    assert found.edited <= {edited}, "a class that was edited has other files"


def test_a_result_comes_back_as_it_was(tmp_path):
    for job in (PLAN.job(TINY, "hnas", PLAN.rates, True), PLAN.job(TINY, "hnas", (1e-3,), False)):
        result = jobs.run(job)
        save(job, result, tmp_path)
        again = load(job, tmp_path)
        assert again.scalars.keys() == result.scalars.keys() == {"hybrid_weights"}
        assert again.measures.keys() == result.measures.keys() and bool(result.measures) == (not job.tune)
        assert (again.diverged, again.seconds) == (result.diverged, result.seconds)
        assert np.array_equal(again.curve, result.curve)
        for group in ("scores", "scalars", "measures"):
            for key, value in getattr(result, group).items():
                assert np.array_equal(getattr(again, group)[key], value)
        assert load(replace(job, seeds=(1, 2)), tmp_path) is None


def test_an_own_class_is_known_by_the_source_of_all_that_it_inherits(monkeypatch, tmp_path):
    softmax = "attnorm.attention.normalizers.softmax import Softmax"
    parents = {"own_base": "attnorm.probes.base import Probe", "own_probe": "own_base import Same", "own_map": softmax}
    for module, parent in parents.items():
        body = "test_sizes = (16,)" if module == "own_probe" else "pass"
        text = f"from {parent} as Parent\n\n\nclass Same(Parent):\n    {body}\n"
        (tmp_path / f"{module}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    sources = ProbeJob(Cell("own_probe.Same"), "own_map.Same", (1,), (0.1,), True, {}, 4).identity()["sources"]
    assert sources.keys() == {"own_base.Same", "own_probe.Same", "own_map.Same"} and len({*sources.values()}) == 3
    members = {"members": ["softmax", "own_map.Same"]}
    mixed = ProbeJob(Cell("match"), "mix", (1,), (0.1,), True, members, 4)
    assert mixed.identity()["sources"].keys() == {"own_map.Same"}


def test_comparisons_with_other_grids_seeds_or_lengths_keep_their_results_in_one_folder(monkeypatch, tmp_path):
    """Another normalizer that extends the grid, fewer seeds or a shorter training overwrite no result."""
    seen = made_up(monkeypatch, lambda arm, rate, seed: rate if arm == "sink" else -abs(rate - 0.03))
    small = replace(PLAN, extensions=1, arms=["softmax", "dnas"])
    others = [replace(small, arms=["softmax", "dnas", "sink"]), replace(small, seeds=(110,)), replace(small, share=0.5)]
    first = compare(small, tmp_path)
    for other in others:
        compare(other, tmp_path)
    seen.clear()
    [again] = compare(small, tmp_path, workers=0)
    assert again.rate == first[0].rate and again.tests.keys() == {"softmax", "dnas"} and seen == []


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("pass", r"Wrong\.test_sizes=\(\): must contain size=16"),
        ("size, test_sizes = 8, (16,)", r"Wrong\.test_sizes=\(16,\): must contain size=8"),
        ("test_sizes, site = (16,), 'self'", "Wrong.site='self': allowed: cross, bidirectional, causal"),
    ],
)
def test_a_probe_that_could_not_be_compared_is_refused(monkeypatch, tmp_path, body, message):
    (tmp_path / "wrong_probe.py").write_text(f"from attnorm.probes import Probe\n\n\nclass Wrong(Probe):\n    {body}\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "wrong_probe", raising=False)
    with pytest.raises(ValueError, match=message):
        Cell("wrong_probe.Wrong").probe()


def test_every_job_of_a_comparison_has_a_file_of_its_own():
    cells = PRESETS["atlas"].cells
    arms = ["softmax", "dnas_slack", "dnas_slack_u", "dnas_slack+content", "hnas"]
    plan = ProbePlan(cells, arms, RATES, (100,), (110,), 2)
    every = [plan.job(cell, arm, rates, True) for cell in cells for arm in arms for rates in (RATES, (9e-2,), (0.27,))]
    every += [plan.job(cell, arm, (1e-3,), False) for cell in cells for arm in arms]
    assert len({job.stem for job in every}) == len(every)


def test_a_write_that_is_killed_leaves_nothing_that_is_read(monkeypatch, ran, tmp_path):
    def killed(file, **arrays):
        file.write(b"PK\x03\x04 half of")
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(np, "savez", killed)
        with pytest.raises(KeyboardInterrupt):
            compare(PLAN, tmp_path)
    [left] = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert left.name.endswith(".unfinished") and left.stat().st_size
    ran.clear()
    [found] = compare(PLAN, tmp_path)
    assert len(ran) == 8 and not found.failed and found.tests.keys() == {*PLAN.arms}


# ----------------------------------------------------------------------------------------------------------- failures


def test_an_arm_that_fails_is_reported_and_the_others_are_not_lost(tmp_path):
    seen = []
    plan = replace(PLAN, arms=["softmax", "probe_parts.Broken", "dnas", "uniform"])
    [found] = compare(plan, tmp_path, report=lambda job, result: seen.append((job.arm, result)))
    assert found.failed == {"probe_parts.Broken": "RuntimeError: broken on <purpose>"}
    assert found.tests.keys() == found.rate.keys() == {"softmax", "dnas", "uniform"}
    outcomes = [result for arm, result in seen if arm == "probe_parts.Broken"]
    assert outcomes == [experiment.ProbeFailure("RuntimeError: broken on <purpose>")]
    [trace] = [file for file in tmp_path.rglob("*Broken*") if file.is_file()]
    assert trace.suffix == ".failed" and "in weights\n" in trace.read_text(), "where it was raised"


def test_an_arm_that_fails_in_the_tuning_or_in_the_comparison_is_not_trained_further(monkeypatch, tmp_path):
    """Neither with the rates by which others extend the grid nor in the comparison."""
    failing = []

    def run(job):
        if job.arm == "sink" or (job.arm == "dnas" and not job.tune):
            failing.append(job.arm)
            raise ValueError("late" if job.arm == "dnas" else "no")
        return result_with(job, [rate for rate in job.rates for _ in job.seeds])

    monkeypatch.setattr(experiment, "run", run)
    [found] = compare(replace(PLAN, arms=["softmax", "sink", "dnas", "uniform"], extensions=2), tmp_path)
    assert failing == ["sink", "dnas"] and found.failed == {"sink": "ValueError: no", "dnas": "ValueError: late"}
    assert len(found.tuning["softmax"]) == 4 and found.tests.keys() == {"softmax", "uniform"}


@pytest.mark.parametrize("cell", [TINY, Cell("trigger", "no BOS")], ids=lambda cell: cell.short)
def test_a_member_that_diverges_is_counted_and_leaves_a_finite_table(cell):
    found = jobs.run(ProbeJob(cell, "softmax", (110, 111), (1e30,), False, {}, 4))
    assert found.diverged == 2 and np.isfinite(found.curve[:, -1]).all()
    assert all(np.isfinite(scores).all() for scores in found.scores.values())


# ------------------------------------------------------------------------------------------------------------ measures


def test_measures_of_uniform_attention_and_of_a_converged_sinkhorn_are_known():
    """Entropy 1, column mass N/M, weight 1/M on the wanted key, and K/M on all wanted keys, which is the mass that a
    converged sinkhorn gives them whatever the scores."""
    known_of = {Cell("demand", "4"): (4 / 16, 4 / 16), Cell("share", "1"): (1 / 16, 1), Cell("hub", "0"): (1, 1)}
    for cell, (wanted, mass) in known_of.items():
        measures = jobs.run(ProbeJob(cell, "uniform", (110, 111), (1e-3,), False, {}, 1)).measures
        keys = cell.probe().size
        known = {"entropy": 1, "wanted": 1 / keys, "mass_on_wanted": wanted, "share_wanted": wanted}
        for name, expected in known.items():
            assert measures[name].tolist() == pytest.approx([expected] * 2, rel=1e-4), name
        assert measures["column_mass_min"] == pytest.approx(mass, rel=1e-4)
    job = ProbeJob(Cell("share", "4"), "sinkhorn", (110,), (1e-2,), False, {"n_iters": 30}, 1)
    assert jobs.run(job).measures["mass_on_wanted"] == pytest.approx(4 / 16, abs=1e-3)


# ---------------------------------------------------------------------------------------------------------------- slow


@pytest.mark.slow
def test_a_process_that_dies_or_an_error_that_cannot_be_sent_does_not_end_the_comparison(tmp_path):
    plan = replace(PLAN, arms=["softmax", "probe_parts.Unsendable", "uniform"])
    [found] = compare(plan, tmp_path, workers=2)
    assert found.failed == {"probe_parts.Unsendable": "TwoParts: one and two"}
    assert found.tests.keys() == {"softmax", "uniform"}
    [found] = compare(replace(plan, arms=["softmax", "probe_parts.Killed"]), tmp_path / "killed", workers=2)
    assert "a process was killed" in found.failed.pop("probe_parts.Killed")
    assert not found.failed and found.tests.keys() == {"softmax"}


@pytest.mark.slow
def test_after_an_interruption_no_job_is_started(tmp_path):
    jobs = [PLAN.job(TINY, "softmax", (rate / 1000,), False) for rate in range(1, 40)]
    with pytest.raises(KeyboardInterrupt), closing(Workers(2)) as workers:
        for _ in workers.results(jobs, tmp_path):
            raise KeyboardInterrupt
    assert len([*tmp_path.rglob("*.npz")]) < 39


@pytest.mark.slow
def test_processes_end_with_the_one_that_started_them():
    code = """
import os, pathlib, time
from attnorm.probes.experiment import Workers

if __name__ == "__main__":
    workers = Workers(2)
    workers.submit(None, pathlib.Path("/dev/null")).exception()
    print(workers.pool.submit(os.getpid).result(), flush=True)
    time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as parent:
        assert int(parent.stdout.readline()) != parent.pid
        parent.kill()
        parent.communicate(timeout=60)  # until all processes that have inherited the pipe have ended


@pytest.mark.slow
def test_two_processes_find_what_one_finds(monkeypatch, tmp_path):
    monkeypatch.setattr(ensemble, "SELECTION", SELECTION)  # the others do not see what a test changes
    pools = []
    pool = lambda *args, **options: pools.append(ProcessPoolExecutor(*args, **options)) or pools[-1]  # noqa: E731
    monkeypatch.setattr(experiment, "ProcessPoolExecutor", pool)
    plan = replace(PLAN, arms=["softmax", "dnas", "asentmax", "probe_parts.Broken", "uniform"])
    one, two = compare(plan, tmp_path / "one"), compare(plan, tmp_path / "two", workers=2)
    for a, b in zip(one, two, strict=True):
        assert a.rate == b.rate and a.failed == b.failed and a.tests.keys() == b.tests.keys()
        for arm, result in a.tests.items():
            assert np.array_equal(result.curve[:, -1], b.tests[arm].curve[:, -1])
            assert all(np.array_equal(result.scores[size], b.tests[arm].scores[size]) for size in (4, 6))
    assert len(pools) == 1  # in all phases


@pytest.mark.slow
@pytest.mark.parametrize("cell", [Cell("match"), Cell("skew", "0.8")], ids=lambda cell: cell.name)
def test_null_arms_stay_at_chance_or_at_what_the_mean_of_the_labels_tells(cell):
    """`none` can only guess. `uniform` sees how often each label occurs, and cannot tell the queries apart: no model is
    better than the label that most of the queries of an example want."""
    scores = {}
    for arm in ("none", "uniform", "softmax"):
        scores[arm] = jobs.run(ProbeJob(cell, arm, (110, 111), (1e-2,), False, {}, 300)).scores[16].mean()
    probe = cell.probe()
    batch = probe.batch(1000, 16, ensemble.generator(type(probe).__qualname__, "test", 16))
    frequent = batch.values.sum(1).argmax(-1, keepdim=True)  # of the keys: what uniform attention can see
    known = (batch.targets == frequent).float().mean(1)
    error = 5 * float(known.std() + 0.5) / 1000**0.5
    assert abs(scores["none"] - 1 / 16) < error
    assert 1 / 16 < scores["uniform"] < known.mean() + error
    assert scores["softmax"] > scores["uniform"] + 0.1
