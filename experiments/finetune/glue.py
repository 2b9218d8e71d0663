r"""GLUE: nine tasks on a text or a pair of texts.

Data: the folder of a task's own TSV files, or --data.dir=tfds:glue/TASK.
On: one TPU chip for at most an hour, or one GPU for a few hours (paper, section 3.2).
Result: the metric on dev. The last column has the paper's BASE and LARGE on test.
  task  rows     question                                      metric       paper
  cola  8,551    Is a sentence grammatical?                    Matthews     52.1 / 60.5
  sst2  67,349   Is a film review positive?                    accuracy     93.5 / 94.9
  mrpc  3,668    Do two sentences mean the same?               F1           88.9 / 89.3
  stsb  5,749    How similar are two sentences, from 0 to 5?   Spearman     85.8 / 86.5
  qqp   363,846  Do two questions ask the same?                F1           71.2 / 72.1
  mnli  392,702  Entailment, neutral or contradiction?         accuracy     84.6 / 86.7
  qnli  104,743  Does a sentence answer a question?            accuracy     90.5 / 92.7
  rte   2,490    Does a text entail a sentence?                accuracy     66.4 / 70.1
  wnli  635      Is a pronoun replaced correctly?              accuracy     left out
  RTE is small: try several seeds (--sweep), and --optimizer.bias_correction=True if runs
  collapse. MNLI also predicts the diagnostic set AX. WNLI's dev split contradicts its
  training rows.
Run:
  bert_jax finetune --config mrpc --init_from=google-bert/bert-base-uncased \
    --data.dir=glue/MRPC
"""

# The folders of GLUE's own download.
FOLDERS = dict(cola="CoLA", sst2="SST-2", stsb="STS-B") | {
    task: task.upper() for task in ("mrpc", "qqp", "mnli", "qnli", "rte", "wnli")
}


def get_config(task: str = "") -> dict:
    """The paper's settings (A.3) for one of the nine; --sweep runs its whole grid."""
    if task not in FOLDERS:
        raise ValueError(f"task {task!r}, expected glue.py: with {', '.join(FOLDERS)}")
    return dict(
        family="classification", data=dict(task=task, dir=f"glue/{FOLDERS[task]}")
    )
