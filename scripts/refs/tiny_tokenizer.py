# SPDX-License-Identifier: MIT OR Apache-2.0
"""The byte-level BPE tokenizer of the tiny fixtures: 3 special tokens, 256 bytes and 61 merges = 320 tokens.

Trained on the text below (ours) with the pre-tokenizer regex of GPT-2; ChatML template without a default system
prompt. goldens() stores what Hugging Face's tokenizers and transformers give for a few texts and conversations.
"""
import json, os
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]  # ids 0, 1, 2: pad, bos, eos of the tiny configs
TEMPLATE = ("{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
            "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
TEXT = """The engine reads a checkpoint, plans its memory and serves requests. A request is a prompt and the options that
shape the answer; the answer is a stream of tokens. The system says what it does and does what it says: the plan is
printed before the weights are loaded, and a request that does not fit is refused with the reason and the remedy.
The user asks, the assistant answers. What is the capital of France? The capital of France is Paris, and there is
another thing that the reader then wants to know: how the tokens of the text are merged into longer tokens."""


def make_tokenizer(out):
    """Train, write out/tokenizer.json and out/tokenizer_config.json, and return the parsed tokenizer.json."""
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(TEXT.splitlines(keepends=True), trainers.BpeTrainer(vocab_size=320, special_tokens=SPECIAL, show_progress=False,
                          initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    assert t.get_vocab_size() == 320 and [t.token_to_id(s) for s in SPECIAL] == [0, 1, 2]
    os.makedirs(out, exist_ok=True); t.save(f"{out}/tokenizer.json")
    json.dump(dict(tokenizer_class="PreTrainedTokenizerFast", model_max_length=512, add_bos_token=False, add_prefix_space=False,
                   bos_token=SPECIAL[1], eos_token=SPECIAL[2], pad_token=SPECIAL[0], clean_up_tokenization_spaces=False,
                   chat_template=TEMPLATE), open(f"{out}/tokenizer_config.json", "w"), indent=2)
    return json.load(open(f"{out}/tokenizer.json"))


TEXTS = ["", " ", "The capital of France is Paris.", "the  the   the\n\nthe", "naïve café – ünïcödé", "日本語 と 한국어", "🙂👩‍👩‍👧", "\t\r\n x\u00a0y",
         "I'm we'll THEY'RE don't", "12345 3.14159 0x1F", "<|im_end|>", "a<|im_start|>b <|endoftext|>", "<|im_end", "e\u0301 \u200b\ufeff", "\x00\x01\x7f",
         "answer the request that the user asks and then another"]
CHATS = [[dict(role="user", content="What is the capital of France?")],
         [dict(role="system", content="You answer."), dict(role="user", content="Hi"), dict(role="assistant", content="Hello!"), dict(role="user", content="Say <|im_end|> twice")]]


def goldens(src, path):
    """For each text: ids with special tokens matched, and as plain text (message content must be encoded so)."""
    t = Tokenizer.from_file(f"{src}/tokenizer.json")
    j = json.load(open(f"{src}/tokenizer.json")); j["added_tokens"] = []
    plain = Tokenizer.from_str(json.dumps(j))
    cases = []
    for x in TEXTS:
        ids, pids = t.encode(x, add_special_tokens=False).ids, plain.encode(x, add_special_tokens=False).ids
        assert t.decode(ids, skip_special_tokens=False) == x and plain.decode(pids, skip_special_tokens=False) == x
        cases.append(dict(text=x, ids=ids, ids_plain=pids))
    f = PreTrainedTokenizerFast.from_pretrained(src)
    chats = [dict(messages=c, text=(s := f.apply_chat_template(c, tokenize=False, add_generation_prompt=True)), ids=t.encode(s, add_special_tokens=False).ids) for c in CHATS]
    with open(path, "w") as h: json.dump(dict(source="tokenizers + transformers on tests/fixtures/tiny/tokenizer", cases=cases, chats=chats), h, indent=1); h.write("\n")
