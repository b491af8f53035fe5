"""What was measured on a split: for the screen, for a JSON file, and the texts that the model wrote."""

from dataclasses import dataclass, field
from pathlib import Path

NAMES = {"f1": "F1", "exact": "exact match"} | {
    f"rouge{kind}{ending}": f"ROUGE-{kind} {part}"
    for ending, part in (("", "F1"), ("_recall", "recall"), ("_precision", "precision"))
    for kind in "12L"
}
LOWER_IS_BETTER = {"loss", "perplexity"}


@dataclass
class Scores:
    """Metrics of a model on a split, and of what it has to beat.

    of:        what the split consists of ("pairs"), and `size`, how many.
    metrics:   by name. Losses are in nats; accuracies, ROUGE, F1 and exact match in percent.
    baselines: metrics of simple methods on the same split, by the method's name; the task's main metric first.
    note:      what a reader of the numbers has to know. settings: with which they were made.
    files:     what the model wrote, by file ending: {".txt": headlines}.
    samples:   a few texts by label, to be shown.
    """

    split: str
    of: str
    size: int
    metrics: dict[str, float]
    baselines: dict[str, dict[str, float]] = field(default_factory=dict)
    note: str = ""
    settings: dict = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    samples: list[dict[str, str]] = field(default_factory=list)
    more: dict = field(default_factory=dict)

    def record(self) -> dict:
        """Plain values for a JSON file, without what the model wrote."""
        kept = ("split", "of", "size", "metrics", "baselines", "note", "settings")
        return {name: getattr(self, name) for name in kept} | self.more

    def write(self, folder: Path, stem: str) -> list[str]:
        """Writes what the model wrote into `folder`; returns the names of the files."""
        folder.mkdir(parents=True, exist_ok=True)
        for ending, content in self.files.items():
            (folder / f"{stem}{ending}").write_text(content, encoding="utf-8")
        return [f"{stem}{ending}" for ending in self.files]
