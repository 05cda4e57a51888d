"""Conversations as text, by a template in Jinja."""

from collections.abc import Mapping, Sequence
from typing import Any

from meshwright.errors import MeshwrightError

Message = Mapping[str, Any]
"""{role: user, content: …}"""
PLAIN_TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>\n{{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
"""For tokenizers that come without one."""


def render(template: str, messages: Sequence[Message], answer: bool, special: Mapping[str, str] | None = None) -> str:
    """A conversation as text; `answer`: up to where the assistant's next turn begins; `special`: the names of special
    tokens that templates ask for. The template runs in a sandbox and sees plain data alone.

    Raises MeshwrightError where the template fails, or refuses the conversation.
    """
    from jinja2 import TemplateError
    from transformers.utils.chat_template_utils import render_jinja_template

    try:
        texts, _ = render_jinja_template(
            conversations=[[dict(message) for message in messages]],
            chat_template=template,
            add_generation_prompt=answer,
            **(special or {}),
        )
    except (TemplateError, TypeError, ValueError, KeyError) as error:
        raise MeshwrightError(f"the chat template fails on a conversation of {len(messages)} turns: {error}") from None
    text: str = texts[0]
    return text
