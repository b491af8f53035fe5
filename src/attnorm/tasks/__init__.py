"""The tasks by name: each has a folder with its data features, LightningModule, metric and task class."""

RECIPES = {
    "gigaword": "attnorm.tasks.headlines.task:Headlines",
    "mlm": "attnorm.tasks.mlm.task:MaskedLanguageModel",
    "squad": "attnorm.tasks.squad.task:Questions",
    "vqa": "attnorm.tasks.vqa.task:VisualQuestions",
    "classify": "attnorm.tasks.classification.task:Classification",
}
