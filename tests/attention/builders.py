"""Small tokenizers with pieces of words, and examples without a tokenizer."""

from collections.abc import Sequence

import transformers as hf
from helpers import bert_like, examples_of
from tokenizers import Tokenizer, decoders
from tokenizers.models import BPE, WordPiece
from tokenizers.normalizers import Lowercase
from tokenizers.pre_tokenizers import BertPreTokenizer, ByteLevel
from tokenizers.processors import TemplateProcessing
from tokenizers.trainers import BpeTrainer
from torch import Tensor

from mechcore.data.encoding import EncodedExamples

PIECES = (
    *("[UNK]", "[PAD]", "[CLS]", "[SEP]", "[MASK]", "the", "a", "cat", "##s", "dog", "play"),
    *("##ing", "##ed", "saw", "jump", "not", "and", ".", ",", "!", "who", "bird"),
)


def wordpiece(double: bool = False) -> hf.PreTrainedTokenizerFast:
    """BERT's layout, or RoBERTa's with two separators, with words such as ``play ##ing``."""
    vocabulary = {piece: i for i, piece in enumerate(PIECES)}
    tokenizer = Tokenizer(WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = Lowercase()
    tokenizer.pre_tokenizer = BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    second = "" if double else ":1"
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair=f"[CLS] $A [SEP] {'[SEP] ' * double}$B:1 [SEP]{second}",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return bert_like(tokenizer, segments=not double)


def byte_level(
    *more: str, merges: int = 25, pad_token: str | None = "<pad>"
) -> hf.PreTrainedTokenizerFast:
    """A byte-level BPE as GPT-2's, trained on a few words, ``<s> text </s>``."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<s>", "<pad>", "</s>"]
    corpus = [*["the cat and the dog", "a cat saw the cats", "the dogs saw the cat"] * 5, *more]
    alphabet = sorted(ByteLevel.alphabet())
    trainer = BpeTrainer(
        vocab_size=len(special) + len(alphabet) + merges,
        special_tokens=special,
        initial_alphabet=alphabet,
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus, trainer)
    tokenizer.post_processor = TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> $B:1 </s>:1",
        special_tokens=[("<s>", 0), ("</s>", 2)],
    )
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        pad_token=pad_token,
        model_input_names=["input_ids", "attention_mask"],
    )


def encoded_ids(rows: Sequence[Tensor]) -> EncodedExamples:
    """Examples of these token ids, each a word of its own."""
    ids = [row.tolist() for row in rows]
    zeros = [[0] * len(row) for row in ids]
    return EncodedExamples(examples_of(["x"] * len(ids)), ids, None, zeros, ids, zeros, 1)
