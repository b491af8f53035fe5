"""One recipe a task: how a configuration becomes data, model, loss and scores."""

RECIPES = {
    "gigaword": "attnorm.training.recipes.gigaword:Headlines",
    "mlm": "attnorm.training.recipes.mlm:MaskedLanguageModel",
    "squad": "attnorm.training.recipes.squad:Questions",
    "vqa": "attnorm.training.recipes.vqa:VisualQuestions",
    "classify": "attnorm.training.recipes.classify:Classification",
}
