#!/usr/bin/env python3
"""Writes djinn-models/tests/tokenizers: small tokenizers in the shapes of the families, trained here on text
that this script holds, and what the Python packages make of a corpus with them.

    pip install tokenizers==0.23.3 sentencepiece==0.2.3 transformers
    python scripts/make_tokenizers.py

  texts.json       the corpus: strings, or {"repeat": [[string, times], ...]}
  NAME/            a directory as a checkpoint has it: tokenizer.json, or the older files
  NAME/expected.json
    affixes        ids that add_special_tokens puts before and after
    ids            for each text its ids without them; [count, FNV-1a of the ids] where they are many
    decoded        for each text its ids' decoding; null where that is the text; [bytes, FNV-1a of them] if long
    skipped        the same without special tokens; null where that is `decoded`
    runs           lists of ids that no text gives: [ids, decoding, decoding without special tokens]
"""
import io
import json
import pathlib
import random
import shutil
import unicodedata

import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import trainers
from transformers.convert_slow_tokenizer import generate_merges

OUT = pathlib.Path(__file__).resolve().parent.parent / "djinn-models/tests/tokenizers"
MANY = 400

SAMPLE = """
The weights of a model stream through a ring, one chunk after the other; the device never waits for the host.
We've measured it, they're sure, I'm not: he'll ask, she'd answer, don't. WE'VE SAID IT'S FINE; I'LL STAY.
In 2024 there were 1234567 tokens; 3.14159 of them were irrational, 100% of 42 + 7 = 49, a <= b, x ~ y, $5 | $6.
def encode(text: str) -> list[int]:
    return [vocab[piece] for piece in split(text)]  # a comment
fn main() { println!("{:?}", vec![1, 2, 3]); let x: Option<u8> = None; }
SELECT name, COUNT(*) FROM users WHERE age >= 21 GROUP BY name ORDER BY 2 DESC;
Die Größe der Übertragung hängt von der Straße ab. Les élèves ont mangé à Noël où ils étaient. El niño comió piñas.
Güneş doğudan doğar. Zażółć gęślą jaźń. Příliš žluťoučký kůň. Съешь же ещё этих мягких булок, да выпей чаю.
Η γλώσσα είναι ένα ποτάμι. שלום עולם, מה שלומך? مرحبا بالعالم، كيف حالك اليوم؟ नमस्ते दुनिया, आप कैसे हैं?
สวัสดีชาวโลก วันนี้อากาศดี 素早い茶色の狐は怠け者の犬を飛び越える。快速的棕色狐狸跳过懒狗，然后睡觉。안녕하세요 세계, 반갑습니다.
"""
WORDS = SAMPLE.split()


def corpus():
    rng = random.Random(1)
    lines = SAMPLE.strip().split("\n") * 3
    lines += [" ".join(rng.choices(WORDS, k=12)) for _ in range(200)]
    return lines


def texts():
    found = [
        "", " ", "  ", "   ", "\n", "\n\n\n", " \n \n", "\r", "\r\n", "\r\n\r\n", "\t", "\t\t", "a\tb", "\ttabs\t", "a", " a", "a ",
        "  a  b  ", "a\nb", "a \n b", "trailing   ", "    indented", " " * 17 + "x", "x" + " " * 33 + "y", "\n \t\n  x",
        "The capital of France is Paris.", "Hello, world!", "hello world hello world", "HELLO WORLD", "CamelCaseAndSNAKE_CASE",
        "kebab-case-and.dots.and/slashes", "It's we've THEY'RE i'm He'Ll she'D 's 't", "don’t ‘quote’ “double”", "a.b.c. U.S.A. e.g.",
        "1", "12", "123", "1234", "12345678901234567890", "3.14159e-10", "1,234,567.89", "0x1F 0b101 1_000", "½ ² ³ ¹ ¼ Ⅻ ٣٤٥ ४५ 一二三 ①",
        "x=1+2<=3~4|5^6$7`8`", "!!!???...", "#$%&'()*+,-./:;<=>?@[\\]^_`{|}~", "—–…•·¿¡«»", "（全角）【括号】「引号」、。！？",
        # Code.
        "fn main() {\n    let x: Vec<u8> = vec![0; 16]; // done\n}\n", "def f(x):\n\treturn x  # ok\n\n\n", "for (int i = 0; i < n; ++i) { a[i] *= 2; }",
        "SELECT * FROM t WHERE a <> 'b''c';", "<div class=\"a\">&nbsp;</div>", "{\"key\": [1, 2.5, null, true], \"s\": \"\\u00e9\\n\"}",
        "const f = async (x) => `${x?.y ?? 0}`;", "#include <stdio.h>\n#define X(a) #a\n", "\\begin{equation} \\frac{a}{b} \\end{equation}",
        "https://example.org/a?b=c&d=%20#e", "user@example.com", "C:\\Users\\x\\file.txt", "$ grep -rn 'a b' . | wc -l && echo \"$?\"",
        # Latin, Greek, Cyrillic; composed and decomposed.
        "Übergröße naïve café Noël", "cafe\u0301 nai\u0308ve n\u0303 u\u0308", "e\u0301\u0302\u0303\u0304 a\u20dd", "Å Å A\u030a", "ﬁ ﬂ ﬀ ǆ ŀ",
        "İstanbul ıǰ ß ẞ", "Zażółć gęślą jaźń", "Ελληνικά με τόνους", "Съешь ещё этих мягких французских булок", "й и\u0306 ё е\u0308",
        "Z\u0351\u036b\u0343a\u0321l\u0356g\u0338o\u0321", "\u0301 alone", "a\u0300\u0316\u0302b",
        # Other scripts.
        "快速的棕色狐狸跳过懒狗", "素早い茶色の狐。ひらがなとカタカナ", "が か\u3099 ぱ は\u309a", "안녕하세요", "\u1112\u1161\u11ab\u1100\u1173\u11af", "한글 ㅎㅏㄴ",
        "مرحبا بالعالم", "مُحَمَّد ﷽", "שלום עולם", "שָׁלוֹם", "नमस्ते दुनिया", "क्षत्रिय ज्ञान", "สวัสดีชาวโลก", "ภาษาไทยไม่มีวรรค", "বাংলা ভাষা",
        "தமிழ் மொழி", "తెలుగు", "മലയാളം", "ქართული", "Հայերեն", "አማርኛ", "ភាសាខ្មែរ", "မြန်မာ", "བོད་སྐད", "ᓄᓇᕗᑦ", "𐌰𐌱𐌲 𝔘𝔫𝔦 𝒞ℴ𝒹ℯ", "𠜎𠜱𡿺 𪚥",
        "mixed 中文 and English и русский", "LTR עברית LTR", "\u202eright to left\u202c", "a\u200eb\u200fc",
        # Emoji.
        "🙂", "a🙂b 🙂🙂", "👩‍👩‍👧‍👦 family", "🏳️‍🌈🇫🇷🇺🇸", "👍🏽👍🏿", "1️⃣#️⃣", "❤️ ❤", "🧑🏾‍🚀 in space", "🏴󠁧󠁢󠁳󠁣󠁴󠁿", "text🤖text", "🇦🇧🇨", "😀" * 12,
        # Invisible and control characters.
        "\u200bzero\u200dwidth\ufeff", "\ufeffBOM", "\u00a0nbsp\u3000wide\u2009thin", "\u2028line\u2029paragraph", "\u0085nel", "\x00", "a\x00b\x00",
        "\x00\x01\x02\x7f control \x1b[0m", "\x0b\x0c\x1c\x1d", "\u0080\u009f\u00ad", "\U0010ffff\ue000\uf8ff", "\ufffd", "\ufffe\uffff", "\ufffda\ufffd\ufffd",
        "e=mc²; ∑∫√ → ≤ ≥ ≠ ∞", "♠♥♦♣ ☃ ✓ ✗", "┌─┐│ │└─┘", "░▒▓█", "⠓⠑⠇⠇⠕", "𝄞 music", "Ⓐ ⒈ ㍿ ㎏",
        # Names of special and added tokens, whole, cut and spaced.
        "<|endoftext|>", "a<|endoftext|>b", " <|endoftext|> ", "<|im_start|>user\nhi<|im_end|>\n", "<|im_start|><|im_start|> x <|im_end|> y", "<|im_start",
        "<s>", "</s> a<s>b", "<s> the", "<s>the</s>", "<unk>", "a <unk> b", "the <s>  <s> the", "<|begin_of_text|>x<|eot_id|>",
        "<left>", "a  <left>  b", "\n<left>\n", "<right>", "a  <right>  b", "<right>\n\nc", "<both>", "a <both> b", "  <both>  ", "<norm>", "a <norm> b", "<NORM>",
        "<word>", "a<word>b", "a <word> b", "<word><word>", "café<norm>cafe\u0301", "x<left><right><both>y", "naïve<added>", "▁under▁score", "▁", "▁▁▁", "a▁b ▁c",
        "<0x41>", "<0x41> <0xZZ> <0xE2>", "[INST] hi [/INST]", "<<SYS>>\nx\n<</SYS>>", "Ġ", "ĠtheĊ", "Ġ Ċ ĉ",
    ]
    rng = random.Random(7)
    found += [bytes(rng.randrange(256) for _ in range(n)).decode("utf-8", "replace") for n in (3, 9, 30, 60, 120)]
    alphabet = list("abc ABC019.,'\"\n\t-_<>|éßñ→") + ["the ", " of", "狐", "ж", "🙂", "\u0301", "  ", "'s", "<s>", "<left>", "<both> ", "<|im_end|>", "ส"]
    found += ["".join(rng.choices(alphabet, k=rng.randint(1, 40))) for _ in range(30)]
    found += [" ".join(rng.choices(WORDS, k=30)), unicodedata.normalize("NFD", SAMPLE[:700]), SAMPLE[-400:]]
    repeats = [
        [["a", 10000]], [["pneumonoultramicroscopicsilicovolcanoconiosis", 220]], [["ab", 5000], [" ", 1], ["0", 1000]], [[" ", 2000]],
        [["=", 300]], [["x\n", 300]], [["狐", 700]], [["🙂", 500]], [["e\u0301", 600]], [["the ", 1000]], [["\u0e2a\u0e27\u0e31", 400]], [["<s>", 100]],
    ]
    return found + [{"repeat": parts} for parts in repeats]


def spelled(text):
    return text if isinstance(text, str) else "".join(part * times for part, times in text["repeat"])


LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")


def split(pattern):
    return pre_tokenizers.Split(Regex(pattern), "isolated")


def byte_level(regex, prefix=False):
    return pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=regex)


def special(*names, **flags):
    return [AddedToken(name, special=True, normalized=False, **flags) for name in names]


def variants():
    """One added token of each kind."""
    return [
        AddedToken("<left>", lstrip=True, normalized=False, special=True),
        AddedToken("<right>", rstrip=True, normalized=False, special=True),
        AddedToken("<both>", lstrip=True, rstrip=True, normalized=False),
        AddedToken("<norm>", normalized=True),
        AddedToken("<word>", single_word=True, normalized=False),
        AddedToken("naïve<added>", normalized=False),
    ]


def trained_byte_level(pre, normalizer, specials, ignore_merges=False):
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1000, special_tokens=special(*specials), show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.train_from_iterator(corpus(), trainer)
    tokenizer.add_tokens(variants())
    return tokenizer


def bos_template(token, tokenizer, eos=None):
    parts = f"{token} $A" + (f" {eos}" if eos else "")
    names = [token] + ([eos] if eos else [])
    return processors.TemplateProcessing(single=parts, special_tokens=[(n, tokenizer.token_to_id(n)) for n in names])


def gpt2():
    tokenizer = trained_byte_level(byte_level(True), None, ["<|endoftext|>"])
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer, {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>", "tokenizer_class": "GPT2Tokenizer"}


def gpt2_prefix():
    tokenizer = trained_byte_level(byte_level(True, prefix=True), None, ["<|endoftext|>"])
    tokenizer.post_processor = bos_template("<|endoftext|>", tokenizer, eos="<|endoftext|>")
    return tokenizer, {"bos_token": "<|endoftext|>", "eos_token": {"content": "<|endoftext|>"}}


def llama3():
    names = ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"]
    pre = pre_tokenizers.Sequence([split(LLAMA3), byte_level(False)])
    tokenizer = trained_byte_level(pre, None, names, ignore_merges=True)
    tokenizer.post_processor = processors.Sequence(
        [processors.ByteLevel(trim_offsets=False), bos_template("<|begin_of_text|>", tokenizer)])
    return tokenizer, {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"}


def qwen2():
    names = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    pre = pre_tokenizers.Sequence([split(QWEN2), byte_level(False)])
    tokenizer = trained_byte_level(pre, normalizers.NFC(), names)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer, {"eos_token": "<|im_end|>", "tokenizer_class": "Qwen2Tokenizer", "bos_token": None}


def falcon():
    pre = pre_tokenizers.Sequence([
        pre_tokenizers.Punctuation("contiguous"), byte_level(True), pre_tokenizers.Digits(individual_digits=False),
        split("[0-9][0-9][0-9]")])
    tokenizer = trained_byte_level(pre, None, ["<|endoftext|>"])
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer, {"eos_token": "<|endoftext|>"}


def smollm():
    pre = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level(True)])
    tokenizer = trained_byte_level(pre, None, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    return tokenizer, {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "unk_token": "<|endoftext|>"}


def trained_sentencepiece():
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(corpus()), model_writer=model, vocab_size=900, model_type="bpe", byte_fallback=True,
        character_coverage=0.99, normalization_rule_name="identity", remove_extra_whitespaces=False,
        allow_whitespace_only_pieces=True, split_digits=True, minloglevel=2, user_defined_symbols=["<mask>"])
    return model.getvalue()


PREPEND = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
LLAMA_DECODER = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]


def llama(spm, normalizer=None, pre=None, decoder=None, added=()):
    """As transformers converts Llama's tokenizer.model."""
    ids = range(spm.get_piece_size())
    vocab = {spm.id_to_piece(i): i for i in ids}
    skip = [p for p, i in vocab.items() if spm.is_control(i) or spm.is_byte(i) or spm.is_unknown(i) or p == "<mask>"]
    merges = generate_merges(vocab, {p: spm.get_score(i) for p, i in vocab.items()}, skip)
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    if normalizer:
        tokenizer.normalizer = normalizer
    if pre:
        tokenizer.pre_tokenizer = pre
    tokenizer.decoder = decoder or decoders.Sequence(LLAMA_DECODER)
    tokenizer.add_special_tokens(special("<unk>", "<s>", "</s>"))
    tokenizer.add_tokens([AddedToken("<mask>", normalized=False), *added])
    tokenizer.post_processor = bos_template("<s>", tokenizer)
    return tokenizer


def check_against_sentencepiece(tokenizer, spm):
    names = ("<s>", "</s>", "<unk>", "▁", "<left>", "<both>", "<mask>", "<right>", "<norm>", "<word>", "<added>", "\0")
    for text in map(spelled, texts()):
        if text and not any(name in text for name in names):
            found = tokenizer.encode(text, add_special_tokens=False).ids
            assert found == spm.encode(text), (text[:50], found, spm.encode(text))


def fnv(data):
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return f"{value:016x}"


def short_ids(ids):
    return ids if len(ids) <= MANY else [len(ids), fnv(b"".join(i.to_bytes(4, "little") for i in ids))]


def short_text(text):
    data = text.encode()
    return text if len(data) <= MANY else [len(data), fnv(data)]


def runs(tokenizer):
    """Ids in any order: byte tokens that are no characters, special tokens, first spaces."""
    rng = random.Random(11)
    vocab = dict(sorted(tokenizer.get_vocab().items(), key=lambda item: item[1]))
    size = max(vocab.values()) + 1
    singles = [i for t, i in vocab.items() if len(t) == 1 or t.startswith("<0x")]
    lists = [rng.choices(range(size), k=rng.randint(1, 12)) for _ in range(20)]
    lists += [rng.choices(singles, k=rng.randint(1, 9)) for _ in range(20)]
    lists += [rng.choices(singles, k=4) + [rng.randrange(size)] + rng.choices(singles, k=3) for _ in range(10)]
    spaces = [i for t, i in vocab.items() if t in ("▁", "▁▁", "▁the", "<0x20>", "Ġ", "Ġthe")]
    lists += [[a, b] for a in spaces for b in spaces][:16] + [[size, size + 7], [size, *spaces, size]]
    return [[ids, tokenizer.decode(ids, skip_special_tokens=False), tokenizer.decode(ids)] for ids in lists]


def expected(tokenizer):
    found = {"affixes": None, "ids": [], "decoded": [], "skipped": []}
    for text in map(spelled, texts()):
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        whole = tokenizer.encode(text).ids
        if found["affixes"] is None:  # the first text is empty
            assert text == "" and not ids
            at = 1 if whole else 0
            found["affixes"] = [whole[:at], whole[at:]]
        before, after = found["affixes"]
        assert whole == before + ids + after
        decoded = tokenizer.decode(ids, skip_special_tokens=False)
        skipped = tokenizer.decode(ids)
        found["ids"].append(short_ids(ids))
        found["decoded"].append(None if decoded == text else short_text(decoded))
        found["skipped"].append(None if skipped == decoded else short_text(skipped))
    return {**found, "runs": runs(tokenizer)}


def dump(path, value):
    path.write_text(json.dumps(value, ensure_ascii=True, separators=(",", ":")) + "\n")


def write(name, tokenizer, config, files=None):
    directory = OUT / name
    directory.mkdir(parents=True)
    if files is None:
        dump(directory / "tokenizer.json", json.loads(tokenizer.to_str()))
    for file, content in (files or {}).items():
        if isinstance(content, bytes):
            (directory / file).write_bytes(content)
        else:
            dump(directory / file, content)
    dump(directory / "tokenizer_config.json", config)
    dump(directory / "expected.json", expected(tokenizer))


def older_files(tokenizer):
    """vocab.json, merges.txt and added_tokens.json of a byte-level tokenizer."""
    model = json.loads(tokenizer.to_str())["model"]
    added = {t.content: i for i, t in tokenizer.get_added_tokens_decoder().items() if t.content not in model["vocab"]}
    lines = ["#version: 0.2"] + [" ".join(merge) for merge in model["merges"]]
    return {"vocab.json": model["vocab"], "merges.txt": ("\n".join(lines) + "\n").encode(), "added_tokens.json": added}


def plain(tokenizer, kept):
    """Replaces the variants of added tokens by plain ones, which added_tokens.json can tell."""
    data = json.loads(tokenizer.to_str())
    for token in data["added_tokens"]:
        token.update(lstrip=False, rstrip=False, single_word=False, special=token["content"] in kept)
        token["normalized"] = not token["special"]
    return Tokenizer.from_str(json.dumps(data))


def write_older():
    tokenizer, config = gpt2()
    files = older_files(tokenizer)
    with_map = {**files, "special_tokens_map.json": {"additional_special_tokens": ["<left>", {"content": "<right>"}]}}
    plain_tokenizer = plain(tokenizer, ["<|endoftext|>", "<left>", "<right>"])
    write("gpt2-files", plain_tokenizer, {"tokenizer_class": "GPT2Tokenizer"}, with_map)

    tokenizer, config = qwen2()
    files = older_files(tokenizer)
    del files["added_tokens.json"]
    decoder = {str(i): json.loads(token_json(t)) for i, t in tokenizer.get_added_tokens_decoder().items()}
    write("qwen2-files", tokenizer, {**config, "added_tokens_decoder": decoder}, files)


def token_json(token):
    keys = ("content", "lstrip", "rstrip", "single_word", "normalized", "special")
    return json.dumps({key: getattr(token, key) for key in keys})


def write_llama():
    model = trained_sentencepiece()
    spm = sentencepiece.SentencePieceProcessor(model_proto=model)
    config = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    metaspace = lambda scheme, split: pre_tokenizers.Metaspace("▁", prepend_scheme=scheme, split=split)
    legacy = llama(spm, normalizer=PREPEND)
    check_against_sentencepiece(legacy, spm)
    write("llama2-prepend", llama(spm, normalizer=PREPEND, added=variants()), config)
    write("llama2-first", llama(spm, pre=metaspace("first", False), added=variants()), config)
    write("mistral-always", llama(
        spm, pre=metaspace("always", True), decoder=decoders.Metaspace("▁", prepend_scheme="always"), added=variants()), config)
    write("llama-never", llama(
        spm, pre=metaspace("never", False), decoder=decoders.Sequence(LLAMA_DECODER[:3]), added=variants()), config)
    write("llama2-model", legacy, {**config, "legacy": True}, {"tokenizer.model": model})
    added = [AddedToken("<left>", lstrip=True, normalized=False, special=True), AddedToken("<norm>", normalized=True)]
    newer = llama(spm, pre=metaspace("first", False), added=added)
    decoder = {str(i): json.loads(token_json(t)) for i, t in newer.get_added_tokens_decoder().items()}
    write("llama2-model-newer", newer, {**config, "legacy": False, "added_tokens_decoder": decoder}, {"tokenizer.model": model})


def main():
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    dump(OUT / "texts.json", texts())
    for name, make in [
        ("gpt2", gpt2), ("gpt2-prefix", gpt2_prefix), ("llama3", llama3), ("qwen2", qwen2), ("falcon", falcon), ("smollm", smollm)
    ]:
        write(name, *make())
    write_older()
    write_llama()


main()
