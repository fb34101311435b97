#!/usr/bin/env python3
"""Learns the embedded models' tokenizer: byte-level BPE with GPT-2's pre-tokenizer.

  python3 models/make-tokenizer.py train.txt models/gpt2-books   (pip install tokenizers==0.23.3)

The text's documents are separated by lines that hold <|endoftext|> alone; that is the one special
token, and the last id.
"""
import json
import pathlib
import sys

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY = 4096
SEPARATOR = "<|endoftext|>"


def main():
    text, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - 1,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    with open(text, encoding="utf-8") as file:
        documents = file.read().split(SEPARATOR)
    tokenizer.train_from_iterator(documents, trainer)
    tokenizer.add_special_tokens([AddedToken(SEPARATOR, special=True, normalized=False)])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SEPARATOR,
        "eos_token": SEPARATOR,
        "model_max_length": 512,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    print(tokenizer.get_vocab_size(), "tokens")


main()
