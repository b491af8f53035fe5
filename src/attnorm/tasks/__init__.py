"""One LightningModule a task: its loss, its metrics, what it logs."""

TASKS = {"gigaword": "attnorm.tasks.gigaword:HeadlineTask"}
