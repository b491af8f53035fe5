"""Modules and states in checkpoints under the names that they had before: what users wrote with them keeps working."""

from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

MOVED = {
    "attnorm.analysis.alignment_error": "attnorm.experiments.alignments.alignment_error",
    "attnorm.analysis.ibm_model_1": "attnorm.experiments.alignments.ibm_model_1",
    "attnorm.analysis.notebook": "attnorm.analysis.paper",
    "attnorm.attention.observation": "attnorm.attention.hooks",
    "attnorm.attention.positional": "attnorm.attention.priors",
    "attnorm.data.sources.aligned_files": "attnorm.data.sources.parallel",
    "attnorm.data.sources.images": "attnorm.data.images",
    "attnorm.data.sources.table_source": "attnorm.data.sources.pair_files",
    "attnorm.models.bert": "attnorm.models.heads",
    "attnorm.models.captioning.image_encoder": "attnorm.models.captioning.base",
    "attnorm.models.site_pooling": "attnorm.models.pooling",
    "attnorm.models.vqa.config": "attnorm.models.config",
    "attnorm.probes.hub": "attnorm.probes.lookup",
    "attnorm.probes.match": "attnorm.probes.lookup",
    "attnorm.probes.maximum": "attnorm.probes.lookup",
    "attnorm.probes.needle": "attnorm.probes.lookup",
    "attnorm.probes.solvers": "attnorm.probes.base",
    "attnorm.probes.sort": "attnorm.probes.lookup",
    "attnorm.resolved": "attnorm.settings",
    "attnorm.run.opened_folder": "attnorm.run.folder",
    "attnorm.run.scalars": "attnorm.run.tables",
    "attnorm.run.state": "attnorm.run.folder",
    "attnorm.tasks.causal_lm.scores": "attnorm.tasks.causal_lm.module",
    "attnorm.tasks.classification.task": "attnorm.tasks.classification",
    "attnorm.tasks.collator": "attnorm.tasks.module",
    "attnorm.tasks.documents.task": "attnorm.tasks.documents",
    "attnorm.tasks.headlines.rouge": "attnorm.tasks.rouge",
    "attnorm.tasks.headlines.task": "attnorm.tasks.headlines",
    "attnorm.tasks.images.task": "attnorm.tasks.images",
    "attnorm.tasks.mlm.task": "attnorm.tasks.mlm",
    "attnorm.tasks.seq2seq.base": "attnorm.tasks.seq2seq",
    "attnorm.tasks.translation.scores": "attnorm.tasks.bleu",
    "attnorm.tasks.translation.task": "attnorm.tasks.translation",
    "attnorm.training.callbacks.attention_measures": "attnorm.training.callbacks.attention_stats",
    "attnorm.training.callbacks.update_cost": "attnorm.training.callbacks.throughput",
    "attnorm.training.csv_table": "attnorm.run.tables",
}
OUTSIDE = {  # modules whose names stay: runs record them, and old and new runs with them are equal
    "attnorm.data.sources.bible_alignments": "attnorm.experiments.alignments.bible_alignments",
}
RECORDED = (  # classes in the modules above that runs have recorded; keys of runs still have these names
    "attnorm.tasks.classification.task.ClassificationTask",
    "attnorm.tasks.documents.task.DocumentTask",
    "attnorm.tasks.headlines.task.HeadlineTask",
    "attnorm.tasks.images.task.ImageTask",
    "attnorm.tasks.mlm.task.MaskedLMTask",
    "attnorm.tasks.translation.task.TranslationTask",
    "attnorm.training.callbacks.attention_measures.AttentionMeasures",
    "attnorm.training.callbacks.update_cost.UpdateCost",
)
CALLBACKS = {  # keys of the states of callbacks in checkpoints
    "PlateauSteps": "ResumeState",
    "ProgressFile": "RunFiles",
}
ELSEWHERE = MOVED | OUTSIDE
PARENTS = {name.rpartition(".")[0] for name in ELSEWHERE}
OF_A_MODULE = ("__name__", "__spec__", "__loader__", "__package__", "__path__")


def present_name(path: str) -> str:
    """The present path of a class that is named by the module of an earlier version."""
    module, dot, name = path.rpartition(".")
    return f"{MOVED.get(module, module)}{dot}{name}"


FIRST_NAMES = {present_name(path): path for path in RECORDED}  # of classes by their present paths


class MovedModules:
    """Finds the modules above, and gives them the contents that they have now."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name in ELSEWHERE:
            return ModuleSpec(name, self, is_package=name in PARENTS)  # type: ignore[arg-type]
        spec = PathFinder.find_spec(name, path) if name in PARENTS else None
        if spec is not None and spec.submodule_search_locations is None:
            spec.submodule_search_locations = []  # a module that was a package: it may be asked for its modules
        return spec

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        now = vars(import_module(ELSEWHERE[module.__name__]))
        vars(module).update({name: value for name, value in now.items() if name not in OF_A_MODULE})
