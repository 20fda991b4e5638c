import pytest
from tokenizers import Regex, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

SPECIAL = ["<pad>", "<bos>", "<eos>", "<unk>", "<user>", "<system>", "<assistant>"]
CHAT_TEMPLATE = (
    "<bos>{% for turn in messages %}<{{ turn.role }}>{{ turn.content | trim }}<eos>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def build_tokenizer(chat_template=None, processor=None):
    """One token a character; ``processor`` such as ``<bos> $A <eos>`` says what encoding adds."""
    vocabulary = {token: i for i, token in enumerate([*SPECIAL, *map(chr, range(32, 127)), "\n"])}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Split(Regex(r"[\s\S]"), behavior="isolated")
    if processor is not None:
        specials = [(token, vocabulary[token]) for token in ("<bos>", "<eos>")]
        tokenizer.post_processor = TemplateProcessing(single=processor, special_tokens=specials)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        unk_token="<unk>",
        additional_special_tokens=["<user>", "<system>", "<assistant>"],
    )
    fast.chat_template = chat_template
    return fast


@pytest.fixture(name="build_tokenizer", scope="session")
def build_tokenizer_fixture():
    return build_tokenizer


@pytest.fixture(scope="session")
def plain_tokenizer():
    return build_tokenizer()


@pytest.fixture(scope="session")
def chat_tokenizer():
    return build_tokenizer(CHAT_TEMPLATE, "<bos> $A")


@pytest.fixture(autouse=True)
def _private_cache(tmp_path, monkeypatch):
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
