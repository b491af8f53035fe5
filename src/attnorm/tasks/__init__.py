"""One recipe a task: how a configuration becomes data, model, loss and scores."""

RECIPES = {
    "gigaword": "attnorm.tasks.headlines.task:Headlines",
    "mlm": "attnorm.tasks.mlm.task:MaskedLanguageModel",
    "squad": "attnorm.tasks.squad.task:Questions",
    "vqa": "attnorm.tasks.vqa.task:VisualQuestions",
    "classify": "attnorm.tasks.classification.task:Classification",
}
