"""Pairs from a dataset on the Hugging Face hub, or from a local folder of parquet files laid out like one."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from attnorm.data import checks, files
from attnorm.data.pairs import missing_columns, text_cell
from attnorm.data.sources import SHORT, Source


class Hub(Source):
    """`path` is a dataset name ("owner/name") or a folder; `config_name` picks one of its configurations.

    `article` and `title` name its columns; `train_split`, `valid_split` and `test_split` name its splits (None: it has
    none). A folder is streamed from its files; a dataset from the hub is downloaded once and memory-mapped.
    """

    def __init__(
        self,
        *,
        path: str,
        config_name: str | None = None,
        article: str = "article",
        title: str = "title",
        train_split: str | None = "train",
        valid_split: str | None = "validation",
        test_split: str | None = "test",
    ):
        self.path, self.config_name = path, config_name
        self.article, self.title = article, title
        self.names = {"train": train_split, "validation": valid_split, "test": test_split}

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that have a name."""
        return tuple(split for split, name in self.names.items() if name is not None)

    def check(self, splits: Sequence[str] = ("train", "validation")) -> list[str]:
        """Names that are not names; a folder that is not there or holds no parquet file."""
        problems = []
        for option in ("path", "article", "title"):
            problems += checks.non_empty_text(f"data.{option}", getattr(self, option))
        for split in splits:
            problems += checks.non_empty_text(f"data.{SHORT[split]}_split", self.names[split])
        if not isinstance(self.path, str) or not self.path:
            return problems
        folder = Path(self.path)
        if folder.is_dir():
            if not self._files():
                problems.append(f"data.path={self.path}: no parquet file in this folder")
        elif self.path.count("/") > 1 or self.path.startswith((".", "~", "/")):  # a hub name is "name" or "owner/name"
            problems.append(f"data.path={self.path}: no such folder, and not the name of a dataset on the hub")
        return problems

    def fingerprint(self, split: str) -> str:
        """A hash of the settings and of the folder's files, or of the revision that the hub gave."""
        settings = ["hub", 1, self.config_name, self.names[split], self.article, self.title]
        if Path(self.path).is_dir():
            # A file's name decides its split here, so names count.
            names = [str(file.relative_to(self.path)) for file in self._files()]
            return files.digest([*settings, names], *self._files())
        return files.digest([*settings, self.path, self._load(split)._fingerprint])

    def rows(self, split: str) -> Iterator[tuple[str, str]]:
        """Stream the pairs. Raises ValueError for a split or column that is not there, or a hub out of reach."""
        dataset = self._load(split)
        names = dataset.column_names or list(dataset.features or ())
        missing_columns(f"data.path={self.path}", (("article", self.article), ("title", self.title)), names)
        columns = dataset.select_columns(list(dict.fromkeys((self.article, self.title)))).with_format("arrow")
        number = 0
        for table in columns.iter(batch_size=1000):
            for cells in zip(*(table.column(name).to_pylist() for name in (self.article, self.title)), strict=True):
                number += 1
                where = f"data.path={self.path}: {self.names[split]} row {number}"
                yield text_cell(where, self.article, cells[0]), text_cell(where, self.title, cells[1])

    def _files(self) -> list[Path]:
        return sorted(Path(self.path).rglob("*.parquet"))

    def _load(self, split: str):
        import datasets

        try:
            return datasets.load_dataset(
                self.path, self.config_name, split=self.names[split], streaming=Path(self.path).is_dir()
            )
        except ConnectionError as error:
            raise ValueError(
                f"data.path={self.path}: the hub cannot be reached and this dataset is not in the local cache; "
                f"download it where there is a network, or use data=pairs or data=rush with files ({error})"
            ) from error
        except (datasets.exceptions.DatasetNotFoundError, FileNotFoundError) as error:
            raise ValueError(f"data.path={self.path}: {error}") from error
        except (ValueError, RuntimeError) as error:  # a wrong split or configuration; a dataset that needs a script
            raise ValueError(
                f"data.path={self.path}, data.config_name={self.config_name}, "
                f"data.{SHORT[split]}_split={self.names[split]}: {error}"
            ) from error
