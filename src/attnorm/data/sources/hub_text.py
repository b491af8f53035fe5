"""Documents from one column of a dataset on the Hugging Face hub, or of a local folder of parquet files."""

from attnorm.data.sources.base import DOCUMENTS
from attnorm.data.sources.hub import HubSource


class TextHub(HubSource):
    """One document per row, in the column `column`. `train_split`, `valid_split` and `test_split` name the splits."""

    schema = DOCUMENTS

    def __init__(
        self,
        *,
        path: str,
        config_name: str | None = None,
        column: str = "text",
        train_split: str | None = "train",
        valid_split: str | None = "validation",
        test_split: str | None = "test",
        skip_bad: bool = False,
    ):
        names = {"train": train_split, "validation": valid_split, "test": test_split}
        super().__init__(path, config_name, names, (("data.column", column),), skip_bad)
