#!/usr/bin/env python3
"""Makes tests/fixtures/tokenizers with Hugging Face's tokenizers library (and gguf to read metadata).

    make_tokenizer_fixtures.py                                tiny tokenizers, cases.json
    make_tokenizer_fixtures.py --data DIR [--smollm2 GGUF]    also real.json: what real vocabularies
        give for WikiText test, LAMBADA and llama.cpp's cases: counts and hashes of the ids
    ... --write-json DIR    writes the real vocabularies as tokenizer.json, to compare by hand

DIR holds vocab/{gpt-2,gpt-neox,llama-spm}.gguf and .inp, wikitext/wiki.test.raw and
lambada/lambada_test.jsonl.
"""

import argparse
import hashlib
import json
import pathlib
import struct

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
from tokenizers import pre_tokenizers, processors, trainers

FIXTURES = pathlib.Path(__file__).resolve().parent.parent / "fixtures" / "tokenizers"

GPT2_PATTERN = (r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")
LLAMA3_PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
                  r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")

CORPUS = """\
The kettle had been on the stove since noon, and by three o'clock it didn't sing any more; it
grumbled. "You'll boil dry," said Ana, who wasn't one to waste words on kettles. She'd counted 17
cups, 4 saucers and 1,204 tea leaves - or so she'd have us believe. We're not sure that's true.
    def pour(cup, tea=None):
        if tea is None:
            return cup + 1
        return cup
Over the hill the road turns twice; then it's two miles to the mill. I've walked it in 1987, in
2003, and again on 12.05.2021. They say the miller's dog can't bark. It can, it does, it won't stop!
Café, naïve, coöperate, Ångström, señor: words that wear their marks. Straße und Übermut, déjà vu.
Привет, мир! Чайник кипит. 茶を飲みますか。我们喝茶吧。 ต้มน้ำ شاي يا صديقي
The kettle, the kettle, the kettle: the tea, the cup, the leaf. Thinking, drinking, sinking, linking.
"""

# Strings chosen to be unpleasant. All are valid UTF-8.
CASES = [
    "", " ", "  ", "   ", "\t", "\n", "\r\n", "\r\n\r\n", " \n ", "\n\n\n", "\t\n \t", "a", " a", "a ",
    "Hello world", " Hello  world ", "the kettle", "The tea isn't ready, you'll wait.",
    "IT'S HERE'S THEY'LL WE'VE I'M I'D DON'T YOU'RE", "it's'll've'", "''s 's", "\u2019s it\u2019s",
    "'\u017f 'S\u0307 '\u017f", "1", "12", "123", "1234567890", "3.14159, 1,000,000", "a1b22c333d4444",
    "\u00bd\u00b2 \u0661\u0662\u0663 \u0967\u0968 \u2160\u2161 \u56db\u4e94 \U0001d7d8",
    "def f(x):\n    if x:\n\t\treturn  1\n\n\n", "a\r\nb\rc\nd", "nul\0inside\0\0", "\x01\x7f\x1b[0m",
    "a\u00a0b", "\u00a0\u00a0", "a \u00a0 b", "\u3000\u3000x\u3000", "a\u2003b\u2009c\u200ad",
    "a\u200bb\u200dc\ufeffd", "a\u180eb \u180e c", "\u0085 a\u0085b", "line\u2028sep\u2029para",
    "caf\u00e9 cafe\u0301", "\u00c5\u212b A\u030a", "e\u0301\u0300\u0302x", "\u0301", " \u0301", "a \u0301b",
    "q\u0307\u0323 q\u0323\u0307", "\u1100\u1161\u11a8 \uac01 \uac00\u11a8", "\u0958 \u0915\u093c",
    "\ufb01 \ufb03 \u2126 \u00b5 \u017f", "\u4f60\u597d\uff0c\u4e16\u754c\uff01", "\u65e5\u672c\u8a9e\u30c6\u30ad\u30b9\u30c8 \u30cf\u309a",
    "\u0e20\u0e32\u0e29\u0e32\u0e44\u0e17\u0e22 \u0e19\u0e49\u0e33", "\u0627\u0644\u0639\u0631\u0628\u064a\u0629 \u0634\u064e\u0627\u064a",
    "\u0939\u093f\u0928\u094d\u0926\u0940 \u0915\u094d\u0937", "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440!",
    "\U0001f469\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 \U0001f3f3\ufe0f\u200d\U0001f308 \U0001f44d\U0001f3fd",
    "\U0001f1e9\U0001f1ea\U0001f1eb\U0001f1f7", "\U0001f600\U0001f601x\U0001f602", "\u2581", "\u2581a\u2581\u2581b", " \u2581 ", "a\u2581 b",
    "\ufffd\ufffe\uffff", "\U00010ffff\U0010ffff", "\ue000\U000f0000", "!!!???...", "#$%&'()*+,-./:;<=>?@[\\]^_`{|}~",
    "<0x41><0x0A><0xFF>", "<s></s><unk>", "<|end|>", "a<|end|>b", " <|end|> ", "<|end|><|end|>", "<|end|", "x <|end|>\n",
    "<l>", "a  <l>  b", "a \u00a0\n<l><l> b", "<r>", "a  <r>  b", "a<r> \u3000\n b<r>", "  <lr>  <lr>  ", "a <r> <l> b",
    "word", "a word b", "sword words _word word_ word", "\u00e9word word\u0301 word, (word)", "<norm>", "A <norm>B",
    "caf\u1ebd! cafe\u0303! x", "ABC", "ABCD", "ABCDE", "xABCDEABC", "<l><r><lr>", "    four", "        eight         nine",
    "a" * 100, "ab" * 60, " " * 70, "the " * 40, "\n" * 50 + "x", "0" * 75, "\u00e9" * 80, "\U0001f600" * 30,
    "kettlekettlekettlekettlekettlekettlekettlekettle" * 4, "ThE KeTtLe", "http://example.org/a_b?c=d&e=%20#f",
]

ADDED = [
    AddedToken("<|end|>", special=True, normalized=False),
    AddedToken("<l>", lstrip=True, normalized=False),
    AddedToken("<r>", rstrip=True, normalized=False),
    AddedToken("<lr>", lstrip=True, rstrip=True, special=True, normalized=False),
    AddedToken("word", single_word=True, normalized=False),
    AddedToken("<norm>", normalized=True),
    AddedToken("cafe\u0303!", normalized=True),
    AddedToken("ABC", normalized=False),
    AddedToken("ABCDE", normalized=False),
]


def byte_level(add_prefix_space=False, use_regex=True):
    return pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space, use_regex=use_regex)


def train_byte_level(pre_tokenizer, normalizer=None, vocab_size=500, ignore_merges=False):
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, show_progress=False,
                                  initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.train_from_iterator(CORPUS.splitlines(keepends=True), trainer)
    return tokenizer


def train_sentencepiece(normalizer, pre_tokenizer, decoder, byte_fallback=True, fuse_unk=True,
                        vocab_size=700):
    """Bytes <0x..> first, then what a BPE training finds in words that start with U+2581."""
    learner = Tokenizer(models.BPE(unk_token="<unk>"))
    learner.pre_tokenizer = pre_tokenizers.Metaspace()
    specials = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, show_progress=False, special_tokens=specials)
    learner.train_from_iterator(CORPUS.splitlines(), trainer)
    model = json.loads(learner.to_str())["model"]
    merges = [tuple(m) for m in model["merges"]]
    tokenizer = Tokenizer(models.BPE(model["vocab"], merges, unk_token="<unk>", fuse_unk=fuse_unk,
                                     byte_fallback=byte_fallback))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    if pre_tokenizer is not None:
        tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoder
    tokenizer.add_special_tokens([AddedToken(t, normalized=False, special=True)
                                  for t in ["<unk>", "<s>", "</s>"]])
    return tokenizer


def prepend_replace(prepend=True):
    steps = [normalizers.Prepend("\u2581")] if prepend else []
    return normalizers.Sequence(steps + [normalizers.Replace(" ", "\u2581")])


def llama_decoder(strip=True):
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    return decoders.Sequence(steps + ([decoders.Strip(" ", 1, 0)] if strip else []))


def tiny_tokenizers():
    sequence, split = pre_tokenizers.Sequence, pre_tokenizers.Split
    digits = pre_tokenizers.Digits
    yield "gpt2", train_byte_level(byte_level())
    yield "gpt2_prefix", train_byte_level(byte_level(add_prefix_space=True), vocab_size=350)
    neox = train_byte_level(byte_level(), normalizers.NFC())
    neox.add_tokens([AddedToken(" " * n, normalized=True) for n in range(8, 1, -1)])
    yield "neox", neox
    yield "nfkc", train_byte_level(byte_level(), normalizers.NFKC(), vocab_size=320)
    yield "nfd", train_byte_level(byte_level(), normalizers.NFD(), vocab_size=320)
    yield "smollm", train_byte_level(sequence([digits(True), byte_level()]))
    yield "digit_runs", train_byte_level(sequence([digits(False), byte_level()]), vocab_size=330)
    llama3 = train_byte_level(sequence([split(Regex(LLAMA3_PATTERN), "isolated"),
                                        byte_level(use_regex=False)]), ignore_merges=True)
    llama3.add_special_tokens(["<|begin|>"])
    llama3.post_processor = processors.TemplateProcessing(
        single="<|begin|> $A", pair="<|begin|> $A <|begin|> $B",
        special_tokens=[("<|begin|>", llama3.token_to_id("<|begin|>"))])
    yield "llama3", llama3
    for behavior in ["removed", "merged_with_previous", "merged_with_next", "contiguous"]:
        yield f"split_{behavior}", train_byte_level(
            sequence([split(Regex(r"\s|[,.;!]"), behavior), byte_level(use_regex=False)]), vocab_size=330)
    yield "split_string", train_byte_level(
        sequence([split("tt", "merged_with_previous"), byte_level()]), vocab_size=330)
    yield "split_invert", train_byte_level(
        sequence([split(Regex(r"\w+|\s"), "removed", invert=True), byte_level(use_regex=False)]),
        vocab_size=330)
    yield "split_boundary", train_byte_level(
        sequence([split(Regex(r"\b|\h{2}|^e|[\w']x?$|[[:punct:]]{2}|\p{Han}"), "isolated"),
                  byte_level(use_regex=False)]),
        vocab_size=330)
    yield "added", with_added(train_byte_level(byte_level(), normalizers.NFC()))
    yield "llama_legacy", train_sentencepiece(prepend_replace(), None, llama_decoder())
    yield "llama_no_prefix", train_sentencepiece(prepend_replace(False), None, llama_decoder(False))
    yield "unk", train_sentencepiece(prepend_replace(), None, llama_decoder(), byte_fallback=False)
    yield "unk_unfused", train_sentencepiece(prepend_replace(), None, llama_decoder(),
                                             byte_fallback=False, fuse_unk=False)
    for scheme in ["always", "first", "never"]:
        for cut in [True, False]:
            metaspace = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=cut)
            name = f"metaspace_{scheme}_{'split' if cut else 'whole'}"
            yield name, train_sentencepiece(None, metaspace, decoders.Metaspace(prepend_scheme=scheme)
                                            if cut else llama_decoder())
    yield "added_legacy", with_added(train_sentencepiece(prepend_replace(), None, llama_decoder()))
    first = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    yield "added_first", with_added(train_sentencepiece(None, first, llama_decoder()))


def with_added(tokenizer):
    tokenizer.add_tokens(ADDED)
    return tokenizer


def make_tiny():
    FIXTURES.mkdir(parents=True, exist_ok=True)
    expected = {}
    for name, tokenizer in tiny_tokenizers():
        text = json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False, separators=(",", ":"))
        (FIXTURES / f"{name}.json").write_text(text + "\n")
        ids = [tokenizer.encode(case, add_special_tokens=False).ids for case in CASES]
        decoded = [tokenizer.decode(i, skip_special_tokens=False) for i in ids]
        expected[name] = {"ids": ids, "decoded": decoded}
    lines = ",\n".join(f'"{n}": {json.dumps(v, separators=(",", ":"))}' for n, v in expected.items())
    (FIXTURES / "cases.json").write_text(
        f'{{"texts": {json.dumps(CASES)},\n"tokenizers": {{\n{lines}\n}}}}\n')


def spm_merges(tokens, scores):
    """The merges that transformers' SentencePieceExtractor makes."""
    vocab = {t: i for i, t in enumerate(tokens)}
    merges = []
    for token, score in zip(tokens, scores):
        cuts = [(token[:i], token[i:], score) for i in range(1, len(token))
                if token[:i] in vocab and token[i:] in vocab]
        merges += sorted(cuts, key=lambda c: (vocab[c[0]], vocab[c[1]]))
    merges.sort(key=lambda m: (m[2], len(m[0]), len(m[1])), reverse=True)
    return vocab, [(left, right) for left, right, _ in merges]


def from_gguf(path, kind):
    """The vocabulary of a GGUF file with the other parts of the family's own tokenizer.json."""
    import gguf
    fields = gguf.GGUFReader(path).fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    types = fields["tokenizer.ggml.token_type"].contents()
    if kind == "llama-spm":
        vocab, merges = spm_merges(tokens, fields["tokenizer.ggml.scores"].contents())
        tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True,
                                         byte_fallback=True))
        tokenizer.normalizer = prepend_replace()
        tokenizer.decoder = llama_decoder()
    else:
        fillers = {f"[PAD{i}]" for i in range(len(tokens))}
        vocab = {t: i for i, t in enumerate(tokens)
                 if t not in fillers and not (kind == "gpt-neox" and types[i] == 4)}
        merges = [tuple(m.split(" ")) for m in fields["tokenizer.ggml.merges"].contents()]
        tokenizer = Tokenizer(models.BPE(vocab, merges, ignore_merges=kind == "llama3"))
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.pre_tokenizer = {
            "smollm2": lambda: pre_tokenizers.Sequence([pre_tokenizers.Digits(True), byte_level()]),
            "llama3": lambda: pre_tokenizers.Sequence(
                [pre_tokenizers.Split(Regex(LLAMA3_PATTERN), "isolated"), byte_level(use_regex=False)]),
        }.get(kind, byte_level)()
        if kind == "gpt-neox":
            tokenizer.normalizer = normalizers.NFC()
    for token, type_ in zip(tokens, types):
        if type_ in (2, 3):
            tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True)])
        elif type_ == 4 and not token.startswith("[PAD"):
            tokenizer.add_tokens([AddedToken(token, normalized=True)])
    return tokenizer


def summary(tokenizer, texts):
    ids = [i for t in texts for i in tokenizer.encode(t, add_special_tokens=False).ids]
    return {"count": len(ids), "sha256": hashlib.sha256(struct.pack(f"<{len(ids)}i", *ids)).hexdigest()}


def make_real(data, smollm2, write_json):
    vocab = data / "vocab"
    sources = {"gpt-2": vocab / "gpt-2.gguf", "gpt-neox": vocab / "gpt-neox.gguf",
               "llama-spm": vocab / "llama-spm.gguf", "llama3": vocab / "gpt-2.gguf"}
    if smollm2:
        sources["smollm2"] = smollm2
    texts = {
        "wikitext": [(data / "wikitext/wiki.test.raw").read_bytes().decode()],
        "lambada": [json.loads(line)["text"]
                    for line in (data / "lambada/lambada_test.jsonl").read_text().splitlines()],
        "cases": (vocab / "gpt-2.inp").read_bytes().decode().split("\n__ggml_vocab_test__\n"),
    }
    real = {}
    for kind, path in sources.items():
        tokenizer = from_gguf(path, kind)
        if write_json:
            (write_json / kind).mkdir(parents=True, exist_ok=True)
            tokenizer.save(str(write_json / kind / "tokenizer.json"))
        real[kind] = {name: summary(tokenizer, t) for name, t in texts.items()}
        print(kind, real[kind])
    (FIXTURES / "real.json").write_text(json.dumps(real, indent=1) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=pathlib.Path)
    parser.add_argument("--smollm2", type=pathlib.Path)
    parser.add_argument("--write-json", type=pathlib.Path)
    options = parser.parse_args()
    make_tiny()
    if options.data:
        make_real(options.data, options.smollm2, options.write_json)
