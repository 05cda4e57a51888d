"""A quick look at a language model: text that goes on from a prompt, on one process."""

from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from meshwright.errors import MeshwrightError
from meshwright.train.data import Tokenizer
from meshwright.train.weights import find_weights, load_module, quiet_transformers


class Choice(NamedTuple):
    """How each token is chosen."""

    tokens: int = 100
    """At most so many."""
    temperature: float = 0.0
    """0: the likeliest each time; else one is drawn, from logits that are divided by this."""
    top_k: int | None = None
    """Drawn from so many of the likeliest; none: from all."""
    seed: int = 0


LIKELIEST = Choice()


class Generated(NamedTuple):
    """What a model made of a prompt."""

    prompt: str
    text: str
    """What follows the prompt."""
    tokens: int
    """Of `text`."""


def generate(
    what: str | Path,
    prompt: str,
    choice: Choice = LIKELIEST,
    *,
    tokenizer: str | None = None,
    chat: bool = False,
    trust_remote_code: bool = False,
) -> Generated:
    """What the model of a Hugging Face folder, a checkpoint or a run's folder makes of a prompt. `chat` makes that a
    user's turn, by the chat template.

    Raises MeshwrightError: what cannot be read, no model that puts out text, a tokenizer that does not fit, a prompt
    that fills all of its positions.
    """
    weights = find_weights(what)
    words = weights.load_tokenizer(tokenizer)
    module = load_module(weights, trust_remote_code=trust_remote_code)
    if not (hasattr(module, "can_generate") and module.can_generate()):  # type: ignore[operator]
        raise MeshwrightError(f"{what} is of {type(module).__name__}, which puts out no text")
    text = words.chat([{"role": "user", "content": prompt}], answer=True) if chat else prompt
    begun = next(iter(words.encode_all([text], whole=not chat))).tolist()
    if not chat and begun[-1:] == [words.end] and not module.config.is_encoder_decoder:  # type: ignore[union-attr]
        begun.pop()  # the text is to go on
    found = _continued(module, words, begun or [words.end or 0], choice)
    return Generated(text, words.decode(found), len(found))


def _continued(module: nn.Module, words: Tokenizer, begun: list[int], choice: Choice) -> list[int]:
    config: Any = module.config
    if words.vocabulary > config.vocab_size:
        raise MeshwrightError(
            f"tokenizer '{words.name}' has {words.vocabulary:,} tokens, and the model's vocabulary "
            f"{config.vocab_size:,}: name the one that it was trained with (--tokenizer)"
        )
    repeated = 0 if config.is_encoder_decoder else len(begun)  # the output begins with so many of the prompt's
    reach = getattr(config, "max_position_embeddings", None) or len(begun) + choice.tokens
    if repeated >= reach:
        raise MeshwrightError(f"the prompt has {len(begun):,} tokens, and the model {reach:,} positions: shorten it")
    drawn = {"temperature": choice.temperature, "top_k": choice.top_k or 0} if choice.temperature > 0 else {}
    torch.manual_seed(choice.seed)
    with quiet_transformers(), torch.no_grad():
        out: Tensor = module.generate(  # type: ignore[operator]
            torch.tensor([begun]),
            attention_mask=torch.ones(1, len(begun), dtype=torch.long),
            max_new_tokens=min(choice.tokens, reach - repeated),
            do_sample=bool(drawn),
            eos_token_id=words.end,
            pad_token_id=words.pad,
            # Rows that fill a vocabulary up stand for no token.
            suppress_tokens=list(range(words.vocabulary, config.vocab_size)) or None,
            **drawn,
        )
    following: list[int] = out[0, repeated:].tolist()
    return following
