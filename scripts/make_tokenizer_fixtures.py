#!/usr/bin/env python3
"""Writes djinn-models/tests/data/tokenizer: tiny vocabularies in GGUF and what other implementations make of them.
Tokenizers in the shapes of the families' Hugging Face directories are make_tokenizers.py's.

    pip install tokenizers==0.23.3 gguf==0.19.0 sentencepiece==0.2.3 jinja2 llama-cpp-python
    python scripts/make_tokenizer_fixtures.py

Files:
  byte_level.gguf   metadata only: byte-level BPE trained here, pre-tokenizer "smollm"
  sentencepiece.gguf  metadata only: SentencePiece BPE with byte fallback trained here
  llama2/, llama3/  Hugging Face directories (tokenizer.json, tokenizer_config.json) over the same vocabularies
  expected.json     texts, and their ids: by the `tokenizers` package for each pre-tokenizer and directory,
                    by `sentencepiece` for the SentencePiece vocabulary
llama.cpp reads the same GGUF files; where its ids differ from the ones written, the script stops.
"""
import json
import os
import pathlib
import random
import tempfile
import unicodedata

import gguf
import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import trainers

OUT = pathlib.Path(__file__).resolve().parent.parent / "djinn-models/tests/data/tokenizer"

CORPUS = """
The capital of France is Paris. The weights of the model are streamed through the ring, one chunk after the other.
It's what we've said: they're fine, I'm fine, he'll go, she'd stay, don't. IT'S NOT; WE'VE; I'LL.
In 2024 there were 1234567 tokens, 3.14159 of them irrational; 100% of 42 + 7 = 49, a <= b, x ~ y, $5 | $6.
def encode(text: str) -> list[int]:
    return [vocab[piece] for piece in split(text)]  # a comment
fn main() { println!("{:?}", vec![1, 2, 3]); }
Übergrößenträger fährt über die Straße. Les élèves ont mangé à Noël. El niño comió piñas.
Съешь же ещё этих мягких французских булок, да выпей чаю. 素早い茶色の狐。快速的棕色狐狸跳过懒狗。
안녕하세요 세계. مرحبا بالعالم. שלום עולם. नमस्ते दुनिया. สวัสดีชาวโลก.
"""

TEXTS = [
    "", " ", "  ", "   ", "\n", "\n\n\n", " \n \n", "\t\ttabs\t", "a", " a", "a ", "  a  b  ",
    "The capital of France is", "Hello, world!", "the the the", "    indented", "trailing   ", "line\r\nline\r\n",
    "It's we've THEY'RE i'm He'Ll she'D 's 't", "1234567890 12 123 1234 3.14159 ½ ² ٣٤٥ Ⅻ", "x=1+2<=3~4|5^6$7`8`",
    "fn main() { let x: Vec<u8> = vec![0; 16]; } // done", "def f(x):\n\treturn x  # ok\n\n\n",
    "Übergröße naïve café Noël", "cafe\u0301 nai\u0308ve n\u0303", "e\u0301\u0302\u0303\u0304 a\u20dd", "Съешь ещё булок",
    "快速的棕色狐狸", "素早い茶色の狐。", "안녕하세요", "مرحبا", "नमस्ते", "สวัสดี",
    "🙂", "a🙂b 🙂🙂", "👩‍👩‍👧‍👦 family", "🏳️‍🌈🇫🇷", "\u200bzero\u200dwidth\ufeff", "\u00a0nbsp\u3000wide",
    "\x00\x01\x02\x7f control \x1b[0m", "\u0085\u2028\u2029", "\U0010ffff\ue000",
    "pneumonoultramicroscopicsilicovolcanoconiosis" * 4, "a" * 300, "ab" * 150, " " * 65, "=" * 80, "_-_" * 20,
    "https://example.org/a?b=c&d=%20#e", "e=mc²; ∑∫√ → ≤ ≥ ≠", "CamelCaseAndSNAKE_CASE and kebab-case", "A.B.C. U.S.A.",
    "<|im_start|>user\nhi<|im_end|>\n", "<|im_start|><|im_start|> x <|im_end|> y", "<s>", "</s> a<s>b",
    "<added>", "x <added> y<added>", "<|im_start", "▁under▁score", "<0x41> <0xZZ>", "\ufffd",
]

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?"
    r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def split(pattern):
    return pre_tokenizers.Split(Regex(pattern), "isolated")


def byte_level(regex=False):
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=regex)


PRES = {
    "gpt-2": [byte_level(True)],
    "smollm": [pre_tokenizers.Digits(individual_digits=True), byte_level(True)],
    "llama-bpe": [split(LLAMA3), byte_level()],
    "dbrx": [split(LLAMA3), byte_level()],
    "qwen2": [split(QWEN2), byte_level()],
    "stablelm2": [split(QWEN2), byte_level()],
    "tekken": [split(TEKKEN), byte_level()],
    "falcon": [split(r"[\p{P}\$\+<=>\^~\|`]+"), split(GPT2), split("[0-9][0-9][0-9]"), byte_level()],
    "default": [
        split(r"[\p{P}\$\+<=>\^~\|]+"), split(GPT2), split(r"\p{N}+"), split("[0-9][0-9][0-9]"), byte_level(),
    ],
}
BYTE_LEVEL_SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def train_byte_level():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = byte_level(True)
    trainer = trainers.BpeTrainer(
        vocab_size=620, special_tokens=BYTE_LEVEL_SPECIAL, show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator([CORPUS] * 3, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    vocab = model["vocab"]
    vocab["<added>"] = len(vocab)
    return vocab, [tuple(merge) for merge in model["merges"]]


def byte_level_tokenizer(vocab, merges, pre):
    ignore = pre in ("llama-bpe", "tekken")
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=ignore))
    if pre == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(PRES[pre])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in BYTE_LEVEL_SPECIAL])
    tokenizer.add_tokens([AddedToken("<added>", special=False, normalized=False)])
    return tokenizer


def gguf_writer(path, model, pre):
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in [("context_length", 64), ("embedding_length", 32), ("block_count", 1), ("head_count", 1)]:
        getattr(writer, f"add_{key}")(value)
    writer.add_feed_forward_length(32)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(32)
    writer.add_tokenizer_model(model)
    if pre:
        writer.add_tokenizer_pre(pre)
    return writer


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def write_byte_level(path, vocab, merges, pre):
    tokens = sorted(vocab, key=vocab.get)
    writer = gguf_writer(path, "gpt2", pre)
    writer.add_token_list(tokens)
    writer.add_token_types([3 if t in BYTE_LEVEL_SPECIAL else 4 if t == "<added>" else 1 for t in tokens])
    writer.add_token_merges([" ".join(merge) for merge in merges])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)
    finish(writer)


def train_sentencepiece(directory):
    corpus = pathlib.Path(directory) / "corpus.txt"
    corpus.write_text(CORPUS * 3)
    sentencepiece.SentencePieceTrainer.train(
        input=str(corpus), model_prefix=f"{directory}/spm", vocab_size=700, model_type="bpe", byte_fallback=True,
        character_coverage=0.995, normalization_rule_name="identity", remove_extra_whitespaces=False,
        allow_whitespace_only_pieces=True, split_digits=True, minloglevel=2,
    )
    return sentencepiece.SentencePieceProcessor(model_file=f"{directory}/spm.model")


def piece_kind(spm, i):
    return 2 if spm.is_unknown(i) else 3 if spm.is_control(i) else 6 if spm.is_byte(i) else 1


def write_sentencepiece(path, spm):
    ids = range(spm.get_piece_size())
    writer = gguf_writer(path, "llama", None)
    writer.add_token_list([spm.id_to_piece(i) for i in ids])
    writer.add_token_scores([spm.get_score(i) for i in ids])
    writer.add_token_types([piece_kind(spm, i) for i in ids])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    finish(writer)


def sentencepiece_tokenizer(spm):
    """As Hugging Face converts Llama 2's."""
    ids = range(spm.get_piece_size())
    vocab = {spm.id_to_piece(i): i for i in ids}
    merges = []
    for piece, i in vocab.items():
        if piece_kind(spm, i) != 1:
            continue
        cuts = [(piece[:at], piece[at:]) for at in range(1, len(piece))]
        merges += [(spm.get_score(i), len(l), len(r), l, r) for l, r in cuts if l in vocab and r in vocab]
    merges.sort(key=lambda m: m[:3], reverse=True)
    tokenizer = Tokenizer(models.BPE(
        vocab=vocab, merges=[m[3:] for m in merges], unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in ("<unk>", "<s>", "</s>")])
    return tokenizer


def template(bos, number):
    return processors.TemplateProcessing(single=f"{bos} $A", special_tokens=[(bos, number)])


def write_directory(name, tokenizer, config):
    directory = OUT / name
    directory.mkdir(parents=True, exist_ok=True)
    text = json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False, separators=(",", ":"))
    (directory / "tokenizer.json").write_text(text + "\n")
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")


def random_texts():
    random.seed(7)
    alphabet = list("abc ABC019.,'\"\n\t-_<>|éßñ→") + ["the ", " of", "狐", "ж", "🙂", "\u0301", "  ", "'s", "<s>"]
    return ["".join(random.choices(alphabet, k=random.randint(1, 40))) for _ in range(60)]


def llama_cpp(path):
    import llama_cpp

    return llama_cpp.Llama(str(path), vocab_only=True, verbose=False)


def compare(name, model, texts, expected):
    differing = 0
    marks = lambda text: any(unicodedata.category(c).startswith("M") for c in text)
    if name == "qwen2":  # llama.cpp leaves out the model's own normalisation
        prepare = lambda text: unicodedata.normalize("NFC", text)
    elif name == "tekken":  # llama.cpp approximates the expression without combining marks
        prepare = lambda text: None if marks(text) else text
    else:
        prepare = lambda text: text
    for text, ids in zip(texts, expected):
        if not text or "\x00" in text or prepare(text) is None:
            continue  # llama-cpp-python passes C strings, and llama.cpp gives a lone prefix space for ""
        found = model.tokenize(prepare(text).encode(), add_bos=False, special=True)
        if found != ids:
            differing += 1
            print(f"{name}: {text[:40]!r}\n  written   {ids}\n  llama.cpp {found}")
    return differing


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    texts = TEXTS + random_texts()
    expected = {"texts": texts, "ids": {}, "decoded": {}}
    differing = 0
    with tempfile.TemporaryDirectory() as directory:
        vocab, merges = train_byte_level()
        for pre in PRES:
            tokenizer = byte_level_tokenizer(vocab, merges, pre)
            ids = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
            expected["ids"][pre] = ids
            path = f"{directory}/{pre}.gguf"
            write_byte_level(path, vocab, merges, pre)
            if not os.environ.get("NO_LLAMA_CPP"):
                differing += compare(pre, llama_cpp(path), texts, ids)
        smollm = byte_level_tokenizer(vocab, merges, "smollm")
        expected["decoded"]["smollm"] = [
            smollm.decode(ids, skip_special_tokens=True) for ids in expected["ids"]["smollm"]]
        write_byte_level(OUT / "byte_level.gguf", vocab, merges, "smollm")

        spm = train_sentencepiece(directory)
        write_sentencepiece(OUT / "sentencepiece.gguf", spm)
        tokenizer = sentencepiece_tokenizer(spm)
        ids = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
        for text, found in zip(texts, ids):
            special = any(mark in text for mark in ("<s>", "</s>", "<unk>", "▁"))
            if not special and "\x00" not in text and spm.encode(text) != found:
                differing += 1
                print(f"sentencepiece: {text[:40]!r}\n  written {found}\n  library {spm.encode(text)}")
        if not os.environ.get("NO_LLAMA_CPP"):
            differing += compare("spm", llama_cpp(OUT / "sentencepiece.gguf"), texts, ids)
        expected["ids"]["sentencepiece"] = ids
        expected["decoded"]["sentencepiece"] = [tokenizer.decode(i, skip_special_tokens=True) for i in ids]
        tokenizer.post_processor = template("<s>", 1)
        write_directory("llama2", tokenizer, {
            "bos_token": {"content": "<s>"}, "eos_token": "</s>", "chat_template": "{{ bos_token }}{{ messages[0].content }}"})

        tokenizer = byte_level_tokenizer(vocab, merges, "llama-bpe")
        tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=True), template("<|endoftext|>", 0)])
        write_directory("llama3", tokenizer, {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>"})
    (OUT / "expected.json").write_text(json.dumps(expected, ensure_ascii=True, separators=(",", ":")) + "\n")
    if differing:
        raise SystemExit(f"{differing} texts differ between implementations")


main()
