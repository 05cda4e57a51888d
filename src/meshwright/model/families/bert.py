"""BERT, RoBERTa, XLM-RoBERTa and DistilBERT with their heads for masked tokens (transformers.models.bert, roberta,
xlm_roberta, distilbert).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from meshwright.model.families.config import Config
from meshwright.model.families.decoder import block_stacks, dropout
from meshwright.model.families.encoders import Projections, added, attend, plain_mlp, single
from meshwright.model.families.heads import read_heads
from meshwright.model.families.images import labels
from meshwright.model.operators import Activation, Add, Dropout, Embedding, Linear, Loss, Norm, Operator, Parameter
from meshwright.model.spec import LayerStack, ModelSpec, Stream, Tie

_BERT = {
    "vocab_size": 30522,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "pad_token_id": 0,
    "tie_word_embeddings": True,
}
"""Of transformers' BertConfig."""
_ROBERTA = _BERT | {"vocab_size": 50265, "pad_token_id": 1}
"""Of transformers' RobertaConfig."""
_XLM_ROBERTA = _BERT | {"pad_token_id": 1}
"""Of transformers' XLMRobertaConfig."""
_DISTILBERT = _BERT | {"num_hidden_layers": 6}
"""Of transformers' DistilBertConfig."""
_DISTILBERT_NAMES = {
    "dim": "hidden_size",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "hidden_dim": "intermediate_size",
    "activation": "hidden_act",
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
}

_CLASSIFIER = "BertForSequenceClassification"
"""What a configuration names in `architectures` that is not for masked tokens."""
_PROJECTIONS = Projections(("self.query", "self.key", "self.value", "output.dense"))


@dataclass(frozen=True)
class _Kin:
    """Where the pieces of one of them stand, and what it does otherwise; the defaults are BERT's."""

    family: str
    root: str
    """The module of the encoder."""
    head: tuple[str, str, str, str | None]
    """The head's matrix, norm, matrix to the vocabulary, and its bias where it is a parameter of its own."""
    head_modules: tuple[str, ...]
    defaults: Mapping[str, object]
    aliases: Mapping[str, str] = field(default_factory=dict)
    layers: str = "encoder.layer.{i}"
    attention: str = "attention"
    projections: Projections = _PROJECTIONS
    core: str = "attention.self"
    attention_dropout: str = "attention.self.dropout"
    output_dropout: str = "attention.output.dropout"
    """Where dropout after attention stands; empty where there is none."""
    mlp: tuple[str, str] = ("intermediate.dense", "output.dense")
    mlp_dropout: str = "output.dropout"
    norms: tuple[str, str] = ("attention.output.LayerNorm", "output.LayerNorm")
    head_activation: str | None = None
    """The head's own, where it is not that of the layers."""
    types: bool = True
    """Tokens have types, with an embedding of their own."""
    shifted: bool = False
    """Positions are counted from the row after the padding token's."""


def bert(config: Config, name: str) -> ModelSpec:
    """Post-norm blocks that see all positions; three embeddings; a head with a matrix and a norm of its own."""
    at = "cls.predictions"
    head = (f"{at}.transform.dense", f"{at}.transform.LayerNorm", f"{at}.decoder", f"{at}.bias")
    return _masked(config, name, _Kin("bert", "bert", head, ("cls",), _BERT))


def roberta(config: Config, name: str) -> ModelSpec:
    """BERT with other names, and positions that are counted from the padding token's."""
    return _masked(config, name, _roberta("roberta", _ROBERTA))


def xlm_roberta(config: Config, name: str) -> ModelSpec:
    """RoBERTa with other defaults."""
    return _masked(config, name, _roberta("xlm-roberta", _XLM_ROBERTA))


def _roberta(family: str, defaults: Mapping[str, object]) -> _Kin:
    head = ("lm_head.dense", "lm_head.layer_norm", "lm_head.decoder", "lm_head.bias")
    return _Kin(family, "roberta", head, ("lm_head",), defaults, head_activation="gelu", shifted=True)


def distilbert(config: Config, name: str) -> ModelSpec:
    """BERT without token types."""
    modules = ("vocab_transform", "vocab_layer_norm", "vocab_projector")
    kin = _Kin(
        "distilbert",
        "distilbert",
        (*modules, None),
        modules,
        _DISTILBERT,
        _DISTILBERT_NAMES,
        layers="transformer.layer.{i}",
        projections=Projections(("q_lin", "k_lin", "v_lin", "out_lin")),
        core="attention",
        attention_dropout="attention.dropout",
        output_dropout="",
        mlp=("ffn.lin1", "ffn.lin2"),
        mlp_dropout="ffn.dropout",
        norms=("sa_layer_norm", "output_layer_norm"),
        types=False,
    )
    return _masked(config, name, kin)


def _masked(config: Config, name: str, kin: _Kin) -> ModelSpec:
    config = config.completed(kin.defaults, kin.aliases)
    for switch in ("is_decoder", "add_cross_attention"):
        config.only(switch, False, default=False)
    config.only("position_embedding_type", "absolute", default="absolute")
    hidden, layers = config.size("hidden_size"), config.layers()
    named = config.fields.get("architectures")
    classes = kin.family == "bert" and isinstance(named, list) and _CLASSIFIER in named
    tied = config.flag("tie_word_embeddings", True)
    rows = config.size("max_position_embeddings")
    limit = rows - config.count("pad_token_id") - 1 if kin.shifted else rows
    if limit < 1:
        raise config.error("max_position_embeddings", f"{rows} rows leave none after the padding token's")
    return ModelSpec(
        name=name,
        family=kin.family,
        source=config.source,
        streams={"tokens": Stream(limit=limit)},
        stacks=(
            single(
                "embed",
                "embedding",
                _embedding(config, kin, hidden),
                modules=(f"{kin.root}.embeddings",),
                output=hidden,
            ),
            *block_stacks(
                "encoder", f"{kin.root}.{kin.layers}", _block(config, kin), layers, reads=("embed",), hidden=hidden
            ),
            _classifier(config, layers) if classes else _masked_head(config, kin, layers),
        ),
        ties=_ties(kin) if tied and not classes else (),
    )


def _masked_head(config: Config, kin: _Kin, layers: int) -> LayerStack:
    return single(
        "head",
        "head",
        _head(config, kin, tied=config.flag("tie_word_embeddings", True)),
        modules=kin.head_modules,
        output=config.size("vocab_size"),
        reads=(f"encoder.{layers - 1}",),
    )


def _classifier(config: Config, layers: int) -> LayerStack:
    """Of BertForSequenceClassification: a matrix, tanh, dropout and the classes, of the first token alone."""
    hidden, classes = config.size("hidden_size"), labels(config)
    left_out = config.fields.get("classifier_dropout") is None
    chance = config.chance("hidden_dropout_prob" if left_out else "classifier_dropout", 0.1)
    dropped = [Dropout(path="dropout", width=hidden, probability=chance, positions=1)] if chance else []
    return single(
        "head",
        "head",
        [
            Activation(function="pick", width=hidden),
            Linear(path="bert.pooler.dense", inputs=hidden, outputs=hidden, bias=True, positions=1),
            Activation(function="tanh", width=hidden, positions=1),
            *dropped,
            Linear(path="classifier", inputs=hidden, outputs=classes, bias=True, positions=1),
            Loss(classes=classes, positions=1),
        ],
        modules=("bert.pooler", "dropout", "classifier"),
        output=classes,
        reads=(f"encoder.{layers - 1}",),
    )


def _embedding(config: Config, kin: _Kin, hidden: int) -> list[Operator]:
    at = f"{kin.root}.embeddings"
    tables = {"position_embeddings": config.size("max_position_embeddings")}
    if kin.types:
        tables |= {"token_type_embeddings": config.size("type_vocab_size")}
    return [
        Embedding(path=f"{at}.word_embeddings", rows=config.size("vocab_size"), width=hidden, split="vocabulary"),
        *(
            operator
            for table, rows in sorted(tables.items(), reverse=True)
            for operator in (Embedding(path=f"{at}.{table}", rows=rows, width=hidden), Add(width=hidden))
        ),
        Norm(path=f"{at}.LayerNorm", kind="layer", width=hidden, bias=True),
        *dropout(config.chance("hidden_dropout_prob", 0.1), hidden, "hidden", f"{at}.dropout"),
    ]


def _block(config: Config, kin: _Kin) -> dict[str, list[Operator]]:
    heads, at = read_heads(config), f"{kin.root}.{kin.layers}."
    chance = config.chance("hidden_dropout_prob", 0.1)
    norms = [Norm(path=at + path, kind="layer", width=heads.hidden, bias=True) for path in kin.norms]
    attention = attend(
        heads,
        at + kin.attention,
        kin.projections,
        chance=config.chance("attention_probs_dropout_prob", 0.1),
        core=at + kin.core,
        dropout_path=at + kin.attention_dropout,
    )
    up, down = (at + path for path in kin.mlp)
    mlp = plain_mlp(heads.hidden, config.size("intermediate_size"), up, down, config.word("hidden_act", "gelu"))
    after = chance if kin.output_dropout else 0.0
    return {
        "attention": added(norms[0], attention, after, at + kin.output_dropout, place="after"),
        "mlp": added(norms[1], mlp, chance, at + kin.mlp_dropout, place="after"),
    }


def _head(config: Config, kin: _Kin, *, tied: bool) -> list[Operator]:
    hidden, vocabulary = config.size("hidden_size"), config.size("vocab_size")
    matrix, norm, decoder, bias = kin.head
    activation = kin.head_activation or config.word("hidden_act", "gelu")
    return [
        Linear(path=matrix, inputs=hidden, outputs=hidden, bias=True),
        Activation(function=activation, width=hidden),
        Norm(path=norm, kind="layer", width=hidden, bias=True),
        Linear(path=decoder, inputs=hidden, outputs=vocabulary, bias=True, split="column", tied=tied),
        # transformers makes a second bias, which nothing uses where it is not tied to the first
        *((Parameter(path=bias, shape=(vocabulary,)),) if bias and not tied else ()),
        Loss(classes=vocabulary),
    ]


def _ties(kin: _Kin) -> tuple[Tie, ...]:
    _, _, decoder, bias = kin.head
    owner = f"{kin.root}.embeddings.word_embeddings.weight"
    embedding = Tie(name="embedding", owner=owner, copies=(f"{decoder}.weight",))
    return (Tie(name="bias", owner=bias, copies=(f"{decoder}.bias",)), embedding) if bias else (embedding,)
