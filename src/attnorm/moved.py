"""Modules under the names that they had before: what users wrote with an import of them keeps working."""

import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType

MOVED = {
    "attnorm.analysis.alignment_error": "attnorm.experiments.alignments.alignment_error",
    "attnorm.analysis.ibm_model_1": "attnorm.experiments.alignments.ibm_model_1",
    "attnorm.attention.observation": "attnorm.attention.hooks",
    "attnorm.attention.positional": "attnorm.attention.priors",
    "attnorm.config": "attnorm.spec",
    "attnorm.config.command": "attnorm.spec.command",
    "attnorm.config.resolve": "attnorm.spec.read",
    "attnorm.data.sources.aligned_files": "attnorm.data.sources.parallel",
    "attnorm.data.sources.images": "attnorm.data.images",
    "attnorm.data.sources.table_source": "attnorm.data.sources.pair_files",
    "attnorm.models.bert": "attnorm.models.heads",
    "attnorm.models.captioning.image_encoder": "attnorm.models.captioning.base",
    "attnorm.models.site_pooling": "attnorm.models.pooling",
    "attnorm.models.vqa.config": "attnorm.models.config",
    "attnorm.resolved": "attnorm.spec.settings",
    "attnorm.run.opened_folder": "attnorm.run.folder",
    "attnorm.run.scalars": "attnorm.run.tables",
    "attnorm.run.state": "attnorm.run.folder",
    "attnorm.training.csv_table": "attnorm.run.tables",
}
OUTSIDE = {  # modules whose names stay: runs record them, and old and new runs with them are equal
    "attnorm.data.sources.bible_alignments": "attnorm.experiments.alignments.bible_alignments",
}
ELSEWHERE = MOVED | OUTSIDE
OF_A_MODULE = ("__name__", "__spec__", "__loader__", "__package__")


class MovedModules:
    """Finds the modules above, and gives them the contents that they have now."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=name == "attnorm.config") if name in ELSEWHERE else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        now = vars(import_module(ELSEWHERE[module.__name__]))
        vars(module).update({name: value for name, value in now.items() if name not in OF_A_MODULE})


def find_moved_modules() -> None:
    """Makes `import` find them."""
    sys.meta_path.insert(0, MovedModules())
