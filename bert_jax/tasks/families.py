"""The task families: the config and the Task of each."""

from typing import NamedTuple

from bert_jax.tasks.classification import Classification, ClassificationConfig
from bert_jax.tasks.multiple_choice import MultipleChoice, MultipleChoiceConfig
from bert_jax.tasks.squad import Squad, SquadConfig
from bert_jax.tasks.tagging import Tagging, TaggingConfig
from bert_jax.tasks.task import Task


class Family(NamedTuple):
    """A frozen dataclass of settings and the Task that is built from it."""

    config: type
    task: type[Task]


FAMILIES = {
    "classification": Family(ClassificationConfig, Classification),
    "tagging": Family(TaggingConfig, Tagging),
    "multiple_choice": Family(MultipleChoiceConfig, MultipleChoice),
    "question_answering": Family(SquadConfig, Squad),
}
