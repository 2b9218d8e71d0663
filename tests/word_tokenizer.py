"""Words of short texts, and a tokenizer with one token for each word."""

from bert_jax.data.wordpiece import WordPieceTokenizer
from bert_jax.model.config import BertConfig

TEXT = "the a man dog cat eats sees paris rome big small good bad film who where"
WORDS = TEXT.split()
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
TOKENIZER = WordPieceTokenizer([*SPECIALS, *WORDS, *".,?"], True)

# Words of several tokens, and a small model that reads them.
PARTS = "the ship sail ##or ##s see un ##known ."
PARTS_TOKENIZER = WordPieceTokenizer([*SPECIALS, *PARTS.split()], True)
PARTS_CONFIG = BertConfig(
    vocab_size=PARTS_TOKENIZER.vocab_size,
    hidden_size=32,
    num_layers=2,
    num_heads=2,
    intermediate_size=64,
    max_positions=48,
    initializer_range=0.5,
)
