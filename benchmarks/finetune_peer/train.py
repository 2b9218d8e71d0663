"""The peer of the fine-tuning benchmark: the same tasks in Hugging Face's Trainer.

Torch on a GPU or the CPU, float32 or its products in bfloat16, each batch padded to its
own longest sequence, and otherwise as BERT is fine-tuned: AdamW, 10% warmup and linear
decay, weight decay 0.01 but on biases and LayerNorm, gradients clipped at 1. The
development set is scored after each epoch; nothing is saved. Tasks: see tasks.py,
tagging.py and question_answering.py.

It needs an environment of its own and no network:
  pip install torch==2.13.0 transformers==5.23.0 accelerate scikit-learn scipy seqeval

usage:
  HF_HUB_OFFLINE=1 python benchmarks/finetune_peer/train.py --task sst2 --data DIR
    --model DIR --seed 1 --epochs 3 --batch_size 32 --learning_rate 5e-5
    --max_length 128 [--train_rows N] [--dev_rows N] [--group_by_length]
    [--dtype bfloat16] --output FILE.json

The file (and the last line printed) says: seconds_training (epochs without evaluation),
seconds_total (the whole process so far, imports, tokenising and evaluation included),
the metrics in percent of each epoch and of the best by main_metric, steps, tokens
computed in training with and without padding, examples cut to the maximal length.
"""

import argparse
import importlib
import json
import platform
import tempfile
import time
from pathlib import Path

import psutil
import torch
import transformers
from transformers.trainer_callback import PrinterCallback
from transformers.trainer_pt_utils import LengthGroupedSampler

# Module and function; a module is imported where its task is wanted.
LOADERS = {
    "sst2": ("tasks", "sst2"),
    "mrpc": ("tasks", "mrpc"),
    "sick": ("tasks", "sick"),
    "wnut17": ("tagging", "wnut17"),
    "squad": ("question_answering", "question_answering"),
    "codah": ("tasks", "codah"),
}


class TimedTrainer(transformers.Trainer):
    """A Trainer that times its evaluations and counts the tokens it trains on."""

    def __init__(self, job, group_by_length, **kwargs):
        super().__init__(
            model=job.model,
            train_dataset=job.train,
            eval_dataset=job.dev,
            data_collator=job.collator,
            **kwargs,
        )
        self.job = job
        self.group_by_length = group_by_length
        self.epoch_metrics = []
        self.seconds_evaluating = 0.0
        self.tokens_computed = 0
        self.tokens_real = 0

    def _get_train_sampler(self, train_dataset=None):
        if not self.group_by_length:
            return super()._get_train_sampler(train_dataset)
        # The Trainer's own option would measure an example of choices by their number.
        return LengthGroupedSampler(
            self.args.train_batch_size, lengths=[longest(x) for x in self.job.train]
        )

    def training_step(self, model, inputs, *args, **kwargs):
        self.tokens_computed += inputs["attention_mask"].numel()
        self.tokens_real += int(inputs["attention_mask"].sum())
        return super().training_step(model, inputs, *args, **kwargs)

    def evaluate(self, *args, **kwargs):
        """Scores the development set by the task's own metrics, in percent."""
        begin = time.perf_counter()
        outputs = self.predict(self.job.dev).predictions
        metrics = self.job.score(outputs)
        self.epoch_metrics.append(metrics)
        self.seconds_evaluating += time.perf_counter() - begin
        return {f"eval_{name}": value for name, value in metrics.items()}


def longest(example):
    """Tokens of an example, or of its longest choice."""
    ids = example["input_ids"]
    return max(map(len, ids)) if isinstance(ids[0], list) else len(ids)


def training_arguments(options, directory):
    """The Trainer's settings; those not named are its defaults."""
    return transformers.TrainingArguments(
        output_dir=directory,
        use_cpu=not torch.cuda.is_available(),
        bf16=options.dtype == "bfloat16",
        seed=options.seed,
        num_train_epochs=options.epochs,
        per_device_train_batch_size=options.batch_size,
        per_device_eval_batch_size=options.batch_size,
        learning_rate=options.learning_rate,
        lr_scheduler_type="linear",
        warmup_steps=0.1,  # below 1: a share of all updates
        weight_decay=0.01,
        max_grad_norm=1.0,
        eval_strategy="epoch",
        save_strategy="no",
        logging_steps=0.1,  # below 1: a share of all updates
        report_to="none",
        disable_tqdm=True,
        remove_unused_columns=False,
    )


def run(options):
    """Trains and scores; the results as a dictionary for JSON."""
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    transformers.set_seed(options.seed)  # the head is drawn when the model is loaded
    tokenizer = transformers.AutoTokenizer.from_pretrained(options.model)
    module, function = LOADERS[options.task]
    job = getattr(importlib.import_module(module), function)(options, tokenizer)
    with tempfile.TemporaryDirectory() as directory:
        trainer = TimedTrainer(
            job, options.group_by_length, args=training_arguments(options, directory)
        )
        trainer.remove_callback(PrinterCallback)
        state = trainer.train()
    best = max(trainer.epoch_metrics, key=lambda metrics: metrics[job.main_metric])
    return {
        "system": "transformers Trainer",
        **vars(options),
        "seconds_training": state.metrics["train_runtime"] - trainer.seconds_evaluating,
        "seconds_evaluating": trainer.seconds_evaluating,
        "seconds_total": time.time() - psutil.Process().create_time(),
        # Far below seconds_total times threads: the machine was busy with other things.
        "cpu_seconds_total": time.process_time(),
        "main_metric": job.main_metric,
        "best": best,
        "epochs_metrics": trainer.epoch_metrics,
        "steps": state.global_step,
        "losses": [x["loss"] for x in trainer.state.log_history if "loss" in x],
        "tokens_computed": trainer.tokens_computed,
        "tokens_real": trainer.tokens_real,
        "padding_share": 1 - trainer.tokens_real / trainer.tokens_computed,
        "train_examples": len(job.train),
        "dev_examples": len(job.dev),
        "truncated_examples": job.truncated,
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
    }


def parse_options():
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", required=True, choices=LOADERS)
    parser.add_argument(
        "--data", required=True, help="folder of glue/, ner/, squad/ .."
    )
    parser.add_argument("--model", required=True, help="a Hugging Face folder")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--learning_rate", type=float, default=5e-5)
    parser.add_argument("--max_length", type=int, default=128)
    parser.add_argument("--train_rows", type=int, help="the first N rows only")
    parser.add_argument("--dev_rows", type=int, help="the first N rows only")
    parser.add_argument(
        "--group_by_length",
        action="store_true",
        help="batches of like lengths, as the Trainer's group_by_length draws them",
    )
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--output", required=True, help="the JSON file to write")
    return parser.parse_args()


if __name__ == "__main__":
    options = parse_options()
    line = json.dumps(run(options))
    Path(options.output).write_text(line + "\n", encoding="utf-8")
    print(line)
