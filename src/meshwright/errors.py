"""What a user can get wrong, and the words that we have for it."""

from collections.abc import Iterable

_LONGEST = 80  # letters of a word that are compared
_MOST = 20  # words that a message lists


class MeshwrightError(Exception):
    """Base of every error that a user can fix. Its text is one clear message; the command line exits with 2."""

    def __str__(self) -> str:
        return "\n".join(map(printable, super().__str__().split("\n")))


def printable(text: str) -> str:
    """One line of text, with what a terminal would obey, or could not show, written out."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\t" else c.encode("unicode_escape").decode() for c in text)


def first_line(error: BaseException) -> str:
    """What an error says, in a line; of one that says nothing its kind.

    >>> first_line(ValueError("no rows\\nat all")), first_line(KeyError())
    ('no rows', 'KeyError')
    """
    said = str(error).strip().splitlines()
    return said[0] if said else type(error).__name__


class DocumentError(MeshwrightError):
    """A file (plan, model, cluster, recipe) that cannot be read: where, what, and the nearest thing that works."""


class UnknownNameError(MeshwrightError):
    """A name that is in no catalogue and on no disk."""


class PlanError(MeshwrightError):
    """A plan, or a request for one, that has no meaning or cannot run here."""


def nearest(word: str, known: Iterable[str], count: int = 3) -> list[str]:
    """The known words that look most like `word`, best first; empty where none comes near."""
    import difflib  # here, since most commands never need it

    by_folded = {name.casefold(): name for name in known}
    close = difflib.get_close_matches(word.casefold()[:_LONGEST], by_folded, n=count, cutoff=0.5)
    return [by_folded[match] for match in close]


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A clause for the end of a message: the nearest known word, or what is known."""
    names = sorted(name if len(name) <= _LONGEST else f"{name[:_LONGEST]}..." for name in known)
    close = nearest(word, names, 1)
    if close:
        return f"did you mean '{close[0]}'?"
    more = f", and {len(names) - _MOST} more" if len(names) > _MOST else ""
    return f"known: {', '.join(names[:_MOST])}{more}" if names else "none are known"
