"""Words of short texts, and a tokenizer with one token for each word."""

from bert_jax.data.wordpiece import WordPieceTokenizer

TEXT = "the a man dog cat eats sees paris rome big small good bad film who where"
WORDS = TEXT.split()
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
TOKENIZER = WordPieceTokenizer([*SPECIALS, *WORDS, *".,?"], True)
