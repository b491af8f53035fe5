"""The task keeps the promises of every run: python -m pytest."""

from attnorm.testing import check_task


def test_a_run_of_the_task_keeps_its_promises():
    check_task("sums", "attention=lab.normalizer.Tempered")
