"""Trains small tokenizers of the kinds that encoders have, on a file of this repository: WordPiece as BERT's, with
and without lowercase, and Unigram as XLM-RoBERTa's, with SentencePiece's own table of normal forms.
"""

import io
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
NAMES = ["wordpiece", "wordpiece-cased", "unigram"]
FURTHER = [
    "héllo wörld naïve café",
    "Привет мир, как дела",
    "こんにちは世界",
    "你好，世界",
    "안녕하세요",
    "مرحبا بالعالم",
    "ﬁne ﬂour ①②③ Ａｂｃ",
]


def texts():
    """The same ones at all times, so that what is made of them stays the same."""
    english = (ROOT / "tests/server/openai_schemas.json").read_text(encoding="utf-8")[:200000]
    return english.replace("\\n", "\n").replace('", "', '"\n"').split("\n") + FURTHER * 30


def wordpiece(cased):
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    t = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    t.normalizer = normalizers.BertNormalizer(lowercase=not cased)
    t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    t.train_from_iterator(texts(), trainers.WordPieceTrainer(vocab_size=2000, special_tokens=special))
    if cased:
        t.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    else:
        t.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
        )
    t.decoder = decoders.WordPiece()
    return t


def unigram():
    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts()),
        model_writer=model,
        vocab_size=3000,
        model_type="unigram",
        normalization_rule_name="nmt_nfkc",
        hard_vocab_limit=False,
        minloglevel=2,
    )
    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(model.getvalue())
    vocabulary = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    vocabulary += [(piece.piece, piece.score) for piece in proto.pieces[3:]] + [("<mask>", 0.0)]
    t = Tokenizer(models.Unigram(vocabulary, 3, False))
    table = proto.normalizer_spec.precompiled_charsmap
    t.normalizer = normalizers.Sequence([normalizers.Precompiled(table)])
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    t.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    t.decoder = decoders.Metaspace()
    t.add_special_tokens(["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    return t


def write(name, directory):
    """tokenizer.json and tokenizer_config.json of one of NAMES in a new directory."""
    directory.mkdir(parents=True)
    made = unigram() if name == "unigram" else wordpiece(name == "wordpiece-cased")
    made.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text("{}")
