"""The README.md of a Hugging Face folder."""

from collections.abc import Sequence

from bert_jax.model.config import BertConfig

_TASKS = {
    "BertForPreTraining": "fill-mask",
    "BertForMaskedLM": "fill-mask",
    "BertModel": "feature-extraction",
    "BertForSequenceClassification": "text-classification",
    "BertForTokenClassification": "token-classification",
    "BertForMultipleChoice": "multiple-choice",
    "BertForQuestionAnswering": "question-answering",
}
_CARD = """\
---
library_name: transformers
{task}tags:
- bert
- bert_jax
---

# {architecture}

A BERT ([Devlin et al., 2019](https://arxiv.org/abs/1810.04805)) written by bert_jax.

| | |
|---|---|
| architecture | `{architecture}` |
| parameters | {size:,} |
| layers | {config.num_layers} |
| width | {config.hidden_size} |
| attention heads | {config.num_heads} |
| feed-forward width | {config.intermediate_size} |
| activation | {config.activation} |
| vocabulary | {config.vocab_size:,} tokens |
| longest input | {config.max_positions} tokens |
{labels}
## Source

{source}

## License

None is stated here. Who publishes this folder adds `license:` to the head of this file;
the licenses of the source and of the training text bind.

## Use

```python
from transformers import AutoTokenizer, {architecture}

tokenizer = AutoTokenizer.from_pretrained("this/folder")
model = {architecture}.from_pretrained("this/folder")
```

```python
import bert_jax

checkpoint = bert_jax.load("this/folder")  # config, params, tokenizer
```
"""


def model_card(
    config: BertConfig,
    architecture: str,
    size: int,
    labels: Sequence[str],
    source: str | None,
) -> str:
    """Markdown with the metadata that the Hugging Face Hub reads.

    size: parameters. source: Markdown, where the weights come from.
    """
    task = _TASKS.get(architecture)
    names = ", ".join(labels).replace("|", "\\|")  # which would end the table's cell
    return _CARD.format(
        task=f"pipeline_tag: {task}\n" if task else "",
        architecture=architecture,
        size=size,
        config=config,
        labels=f"| labels | {names} |\n" if names else "",
        source=source or "Not stated.",
    )
