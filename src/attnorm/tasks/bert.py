"""What the tasks that train a BERT-shaped encoder share: rows of one sequence of at most `max_source` tokens."""

from collections.abc import Callable, Iterator

import torch

from attnorm.tasks.task import Recipe


class BertRecipe(Recipe):
    """head: the class of the model, whose encoder has the name `bert`."""

    models = ("bert",)
    head: type[torch.nn.Module]

    def model(self, tokenizer) -> torch.nn.Module:
        vocabulary = tokenizer.vocab_size, tokenizer.pad_id
        return self.head(self.shape(), self.cfg["attention"], *vocabulary, **self.extra(), seed=self.cfg["seed"])

    def extra(self) -> dict:
        """What this head takes besides."""
        return {}

    def problems(self, sound: Callable[..., bool]) -> Iterator[str]:
        longest, data = self.cfg["model"]["max_source"], self.cfg["data"]
        if sound("data.batch_tokens", "model.max_source") and data["batch_tokens"] < longest:
            yield f"data.batch_tokens={data['batch_tokens']}: a row can have {longest} tokens; type more"
