"""Classification of texts or pairs of texts, beside always giving the most frequent label."""

import json
from collections import Counter

from attnorm.data.preprocess import Split
from attnorm.data.sources.base import LABELLED
from attnorm.models.heads import Classifier
from attnorm.tasks.bert import BertRecipe
from attnorm.tasks.classification.features import Labelled, LabelledBatches
from attnorm.tasks.classification.module import ClassifyTask
from attnorm.tasks.results import Scores


class Classification(BertRecipe):
    """task=classify, task=mnli."""

    schema, counts, head = LABELLED, "rows", Classifier

    def layout(self) -> Labelled:
        return Labelled(self.cfg["model"]["max_source"], self.cfg["data"]["labels"])

    def extra(self) -> dict:
        return {"labels": len(self.cfg["data"]["labels"])}

    def task(self, model: Classifier, tokenizer, validation: Split) -> ClassifyTask:
        return ClassifyTask(model, tokenizer, self.optimization(), validation.texts, self.cfg["data"]["labels"])

    def batches(self, split: Split) -> LabelledBatches:
        return LabelledBatches(split.rows, split.tokenizer.pad_id)

    def score(self, task: ClassifyTask, split: Split) -> Scores:
        """Loss and accuracy; the label given to each row."""
        scores = super().score(task, split)
        label, count = Counter(split.texts["label"]).most_common(1)[0]
        scores.baselines = {f"always {label}": {"accuracy": 100.0 * count / scores.size}}
        lines = [json.dumps({"row": row, "label": given}) for row, given in task.predictions().items()]
        scores.files = {".labels.jsonl": "\n".join(lines) + "\n"}
        return scores
