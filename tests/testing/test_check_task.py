"""`check_task` on every task of ours, and what it says when a promise is broken."""

import re

import pytest
import runs
import torch
import torch.nn.functional as F
from marks import slow

from attnorm.choices import choices
from attnorm.errors import ConfigError
from attnorm.tasks.classification import ClassificationModule, ClassificationTask
from attnorm.tasks.module import Loss
from attnorm.testing import PROPERTIES, check_task
from attnorm.testing.promises import ForeignModel
from attnorm.testing.task_runs import VALIDATIONS
from attnorm.training.module import TrainingModule

pytestmark = pytest.mark.training
TABLE, CURVES = "predictions/validation.parquet", {"hybrid_weights.csv", "attention.csv"}
SAMPLES = {f"samples/step_{update:06}.txt" for update in VALIDATIONS}
FILES = {  # the outputs that a run of each task leaves
    "gigaword": "samples/validation.txt",
    "translation": "samples/validation.txt",
    "translation_lstm": "samples/validation.txt",
    "captioning": "samples/validation.txt",
    "mlm": None,
    "causal_lm": None,
    "squad": "samples/validation.predictions.json",
    "classify": "samples/validation.labels.jsonl",
    "image_classification": "samples/validation.labels.jsonl",
    "document_classification": "samples/validation.labels.jsonl",
    "vqa": "samples/validation.results.json",
    "vqa_v2": "samples/validation.results.json",
}
WITHOUT = {"translation_lstm": {"hybrid_weights.csv"}, "vqa_v2": CURVES}  # softmax; no attention, as it has no images
SETTINGS = {"captioning": ("data.batch_tokens=2400",)}  # so that each batch has several images


def minus_log_share(scores, wanted):
    """The loss of one row of scores (K,) whose class is given, by the definition of softmax."""
    shares = (scores - scores.max()).exp()
    return -(shares[wanted] / shares.sum()).log().item()


def of_labels(module, batch):
    with torch.no_grad():
        [scores] = module(batch)
    return minus_log_share(scores, batch["labels"].item()), 1


def of_hidden_tokens(module, batch):
    with torch.no_grad():
        scores = module.model(batch["ids"], batch["segments"])[0][batch["masked_positions"][0]]
    return sum(map(minus_log_share, scores, batch["labels"].tolist())), len(scores)


def of_next_tokens(module, batch):
    """The pieces of a window, each read without the others and without padding."""
    labels, losses = batch["labels"].tolist(), []
    for ids, segments in zip(batch["ids"], batch["segments"], strict=True):
        with torch.no_grad():
            [scores] = module.model(ids[None, segments > 0])
        losses += map(minus_log_share, scores, labels[len(losses) :])
    return sum(losses), len(losses)


def of_answers(module, batch):
    with torch.no_grad():
        [shares], [targets] = module(batch).double().sigmoid(), batch["targets"].double()
    return F.binary_cross_entropy(shares, targets, reduction="sum").item(), 1


def of_spans(module, batch):
    with torch.no_grad():
        scores = module.model(batch["ids"], batch["types"])[0]
    ends = (batch["starts"].item(), batch["ends"].item())
    return sum(minus_log_share(scores[:, which], end) for which, end in enumerate(ends)) / 2, 1


ROW_LOSSES = {
    "mlm": of_hidden_tokens,
    "causal_lm": of_next_tokens,
    "squad": of_spans,
    "vqa": of_answers,
    "vqa_v2": of_answers,
    "classify": of_labels,
    "image_classification": of_labels,
    "document_classification": of_labels,
}


def checked(task, *more, **options):
    """`check_task` with the tiny settings of a task of ours, quietly."""
    name, *_ = [it.partition("=")[2] for it in runs.tiny_overrides(task) if it.startswith("task=")] or [task]
    overrides = [it for it in runs.tiny_overrides(task) if not it.startswith("task=")]
    arm = f"attention={runs.HYBRIDS.get(task, 'hnas')}"
    return check_task(name, *overrides, arm, *SETTINGS.get(task, ()), *more, print_report=False, **options)


def test_each_task_is_checked_here_and_has_a_page():
    """A file that builds on that of another task, such as mnli, needs the page alone."""
    tasks = choices("task")
    own = [name for name, settings in tasks.items() if "_target_" in settings.get("task", settings)]
    pages = "".join(page.read_text() for page in (runs.ROOT / "docs").glob("*.md"))
    without = [f"no page of docs/ has task={name}" for name in tasks if not re.search(rf"\btask={name}\b", pages)]
    without += [f"FILES has no entry {name}" for name in own if name not in FILES]
    without += [f"TINY_TASKS of runs.py has no entry {name}" for name in {*own, *FILES} - {*runs.TINY_TASKS}]
    assert len(own) > 8 and not without, without


@pytest.mark.numerical
@pytest.mark.parametrize(
    ("task", "processes"), [(task, False) if task == "gigaword" else slow(task, True) for task in FILES]
)
def test_a_task_of_ours_keeps_its_promises(task, processes):
    if task == "image_classification":
        pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    files = {TABLE, *SAMPLES, *CURVES, FILES[task]} - WITHOUT.get(task, set()) - {None}
    report = checked(task, files=files, row_loss=ROW_LOSSES.get(task), processes=processes)
    skipped = 0 if processes else 1
    assert report.summary == f"{len(PROPERTIES) - skipped} ok, 0 failed, {skipped} skipped", report


@pytest.mark.slow
@pytest.mark.numerical
def test_another_model_of_a_task_reads_each_example_as_alone():
    names = ["the_loss_is_that_of_the_rows_one_by_one", "the_company_of_an_example_does_not_change_its_loss"]
    checked("document_classification", "model=flat_tiny", properties=names, row_loss=of_labels)


@pytest.mark.slow
@pytest.mark.numerical
def test_two_processes_share_an_update_of_a_task_that_is_checked_without_them():
    report = checked("gigaword", properties=["two_processes_share_an_update"], processes=True)
    assert report.summary == "1 ok, 0 failed, 0 skipped", report


# faults, each of which one property finds


def accuracy_of_another_split(original):
    return lambda self: {**original(self), "accuracy": 1.0}


def without(name):
    return lambda original: lambda self: {key: value for key, value in original(self).items() if key != name}


def another_loss_in_validation(original):
    def step(self, batch, index):
        original(self, batch, index)
        self.add(loss=0.1 * len(batch["rows"]))

    return step


def a_mean_loss(original):
    return lambda self, batch: Loss(original(self, batch).objective / len(batch["labels"]), len(batch["labels"]))


def company_counts(original):
    return lambda self, batch: original(self, batch) * (1 + 0.01 * len(batch["ids"]))


def no_gradient(original):
    def model(self, tokenizer):
        made = original(self, tokenizer)
        made.forgotten = torch.nn.Parameter(torch.zeros(3))
        return made

    return model


def any_seed(original):
    def model(self, tokenizer):
        made = original(self, tokenizer)
        for parameter in made.parameters():
            parameter.data.zero_()
        return made

    return model


def random_loss(original):
    generator = torch.Generator()  # whose state no checkpoint holds

    def loss(self, batch):
        found = original(self, batch)
        return found._replace(objective=found.objective * (1 + torch.rand((), generator=generator)))

    return loss


def first_wins(original):
    """The best model is chosen by the loss."""
    return lambda self, name, value, *more, **options: original(
        self, name, -value if name == "val/accuracy" else value, *more, **options
    )


def one_more_file(original):
    def save(self, folder):
        original(self, folder)
        (folder / f"notes_{folder.name}.txt").touch()

    return save


def dropout_in_validation(original):
    def score(self, module, split):
        module.model.train()
        module.model.eval = lambda: module.model
        return original(self, module, split)

    return score


FAULTS = {  # property: what is replaced, and by what
    "a_run_finishes": (ClassificationModule, "metrics", without("accuracy")),
    "a_run_leaves_exactly_its_files": (ClassificationTask, "save", one_more_file),
    "the_loss_is_that_of_the_rows_one_by_one": (ClassificationModule, "validation_step", another_loss_in_validation),
    "the_table_of_examples_gives_the_metrics": (ClassificationModule, "metrics", accuracy_of_another_split),
    "the_best_checkpoint_is_that_of_the_monitored_metric": (TrainingModule, "log", first_wins),
    "evaluating_again_gives_the_same": (ClassificationTask, "score", dropout_in_validation),
    "a_stopped_run_goes_on_bit_for_bit": (ClassificationModule, "loss", random_loss),
    "accumulation_changes_nothing": (ClassificationModule, "loss", a_mean_loss),
    "two_processes_share_an_update": (ClassificationModule, "loss", a_mean_loss),
    "the_company_of_an_example_does_not_change_its_loss": (ClassificationModule, "forward", company_counts),
    "every_parameter_is_trained": (ClassificationTask, "model", no_gradient),
    "the_seed_decides_the_model": (ClassificationTask, "model", any_seed),
    "what_it_cannot_do_is_refused": (ForeignModel, "interface", lambda original: "encoder"),
}


LONG = {  # properties that need several runs
    "a_run_leaves_exactly_its_files",
    "the_best_checkpoint_is_that_of_the_monitored_metric",
    "evaluating_again_gives_the_same",
    "a_stopped_run_goes_on_bit_for_bit",
    "accumulation_changes_nothing",
    "two_processes_share_an_update",
}


@pytest.mark.parametrize("name", [slow(it) if it in LONG else it for it in PROPERTIES])
def test_a_planted_fault_is_found(monkeypatch, name):
    owner, attribute, fault = FAULTS[name]
    monkeypatch.setattr(owner, attribute, fault(getattr(owner, attribute)))
    with pytest.raises(AssertionError) as failed:
        checked(
            "classify",
            "model.dropout=0.3",
            properties=[name],
            files=[TABLE, *SAMPLES, *CURVES, FILES["classify"]],
            processes=True,
        )
    assert f"FAIL  {name}: " in str(failed.value)
    assert ("Traceback" in str(failed.value)) == (name == "a_run_finishes")


@pytest.mark.slow
def test_nothing_else_is_tested_if_no_run_finishes(monkeypatch):
    def crash(*_):
        raise OSError("no space left")

    monkeypatch.setattr(TrainingModule, "training_step", crash)
    with pytest.raises(AssertionError) as failed:
        checked("classify")
    assert "OSError: no space left" in str(failed.value)
    assert "not tested, because a_run_finishes failed: 12 other properties" in str(failed.value)


def test_arguments_are_read_as_those_of_the_command():
    """Keys that no file mentions, a group without a value and a class as `attention`."""
    arguments = ["optimizer.amsgrad=true", "logger=null", "attention=attnorm.attention.normalizers.dnas:DNAS"]
    report = checked("classify", *arguments, properties=["what_it_cannot_do_is_refused"])
    assert report.summary == "1 ok, 0 failed, 0 skipped", report


def test_unknown_properties_and_wrong_settings_are_refused():
    with pytest.raises(ValueError, match=r"properties='accumulation'.* Did you mean 'accumulation_changes_nothing'"):
        checked("classify", properties=["accumulation"])
    with pytest.raises(ConfigError, match=r"model\.dropout=2"):
        checked("classify", "model.dropout=2")
