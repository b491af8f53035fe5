"""Classification of texts or pairs of texts. The baseline always predicts the most frequent label."""

import json
from collections import Counter

from attnorm.data.preprocess import Split
from attnorm.data.sources.base import LABELLED
from attnorm.data.tokenizers.base import Tokenizer
from attnorm.models.heads import Classifier
from attnorm.tasks.bert import EncoderTask
from attnorm.tasks.classification.features import ClassificationCollator, ClassificationFeaturizer
from attnorm.tasks.classification.module import ClassificationModule
from attnorm.tasks.results import Predictions, Results


class ClassificationTask(EncoderTask):
    """task=classify, task=mnli."""

    schema, unit, head = LABELLED, "rows", Classifier

    def featurizer(self) -> ClassificationFeaturizer:
        return ClassificationFeaturizer(self.cfg["model"]["max_source"], self.cfg["data"]["labels"])

    def extra(self) -> dict:
        return {"labels": len(self.cfg["data"]["labels"])}

    def module(self, model: Classifier, tokenizer: Tokenizer, validation: Split) -> ClassificationModule:
        return ClassificationModule(model, tokenizer, validation.texts, self.cfg["data"]["labels"])

    def collator(self, split: Split) -> ClassificationCollator:
        return ClassificationCollator(split.rows, split.tokenizer.pad_id)

    def score(self, module: ClassificationModule, split: Split) -> Results:
        """Loss and accuracy, and the predicted label of each row."""
        scores = super().score(module, split)
        label, count = Counter(split.texts["label"]).most_common(1)[0]
        scores.baselines = {f"always {label}": {"accuracy": 100.0 * count / scores.size}}
        given = module.predictions()
        texts, seconds, labels = (list(split.texts[column]) for column in ("text", "second", "label"))
        scores.predictions = Predictions(
            ids=list(given),
            inputs=["\n".join(filter(None, pair)) for pair in zip(texts, seconds, strict=True)],
            references=labels,
            outputs=list(given.values()),
            scores={"accuracy": [100.0 * (labels[row] == label) for row, label in given.items()]},
            loss_sum=module.examples["loss_sum"],
            n_tokens=[1] * len(given),
        )
        lines = [json.dumps({"row": row, "label": label}) for row, label in given.items()]
        scores.files = {".labels.jsonl": "\n".join(lines) + "\n"}
        return scores
