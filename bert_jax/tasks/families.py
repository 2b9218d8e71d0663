"""The families of tasks. A new family is a file with its Task, and a name here."""

from bert_jax.tasks.multiple_choice import MultipleChoice
from bert_jax.tasks.question_answering import Squad
from bert_jax.tasks.task import Task
from bert_jax.tasks.text_classification import Classification, MultiLabel
from bert_jax.tasks.text_vectors import SentenceVectors
from bert_jax.tasks.word_tagging import Tagging

# A checkpoint that was fine-tuned elsewhere gets the first family with its head.
_TASKS = (Classification, MultiLabel, Tagging, MultipleChoice, Squad, SentenceVectors)
FAMILIES: dict[str, type[Task]] = {task.family: task for task in _TASKS}
