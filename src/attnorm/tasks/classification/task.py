"""Classification of texts or pairs of texts. The baseline always predicts the most frequent label."""

from attnorm.data.preprocess import Split
from attnorm.data.sources.base import LABELLED
from attnorm.data.tokenizers.base import Tokenizer
from attnorm.models.heads import Classifier
from attnorm.tasks.bert import EncoderTask
from attnorm.tasks.classification.features import ClassificationCollator, ClassificationFeaturizer
from attnorm.tasks.classification.module import ClassificationModule
from attnorm.tasks.labels import with_predictions
from attnorm.tasks.results import Results


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
        texts = zip(split.texts["text"], split.texts["second"], strict=True)
        inputs = ["\n".join(filter(None, pair)) for pair in texts]
        return with_predictions(super().score(module, split), module, split, self, inputs)
