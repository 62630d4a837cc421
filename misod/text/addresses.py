"""What stands for a place: URLs, e-mail addresses, handles, hashtags, paths, names with a stop in them."""

import re
from urllib.parse import unquote

from misod.text.rule import rule

# Endings of a host that nobody writes for anything else; of others only a URL with its scheme is known.
_ENDINGS = (
    "com|org|net|edu|gov|mil|int|info|biz|io|ai|app|dev|co|uk|us|eu|de|fr|nl|es|it|ch|at|be|pl|se|no|dk|fi|ie|pt|ru|jp|"
    "cn|in|br|ca|au|nz|za|mx|kr|tv|me|gg|fm|ly|xyz|tech|cloud|blog|shop|online|site|wiki|museum|example|test|local"
)
_HOST = r"(?:[A-Za-z0-9](?:[A-Za-z0-9\-]{0,62})\.){1,8}"
_TAIL = r"(?:[/?#][^\s<>\"]{0,2000})?"
_SIGNS = {".": "dot", "/": "slash", "-": "dash", "_": "underscore", "~": "home", "+": "plus", ":": "colon"}
_SIGNS |= {"@": "at", "\\": "backslash", "%": "percent", "&": "and", "=": "equals", "#": "number", "*": "star"}
_LONGEST_PATH = 60  # characters of a URL's path that somebody would read aloud
_UNSAID = re.compile(r"[0-9a-fA-F]{8,}|[A-Za-z0-9_\-]{24,}")  # a key, a digest: no words
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Za-z])(?=\d)|(?<=\d)(?=[A-Za-z])")
_TRAILING = ".,;:!?'\"*_)"


def _url(match: re.Match) -> str:
    """The host; of the path what is short and made of words; no port, user, query or fragment."""
    url = match["rest"]
    kept = url.rstrip(_TRAILING)
    marks = url[len(kept) :].replace("*", "").replace("_", "")
    place = re.split(r"[?#]", kept, maxsplit=1)[0]
    host, _, path = place.partition("/")
    host = re.sub(r":\d*$", "", host.rpartition("@")[2]).removeprefix("www.")
    parts = [part for part in re.sub(r"\.(?:html?|php|aspx?)$", "", path).split("/") if part]
    if len(path) <= _LONGEST_PATH and not any(_UNSAID.fullmatch(part) for part in parts):
        host = "/".join([host, *(unquote(part, errors="ignore") for part in parts)])
    return f" {_spelled(host, dash=' ')}{marks} "


def _spelled(text: str, dash: str = " dash ") -> str:
    """anna.b-c as anna dot b dash c."""
    said = (dash if c == "-" else f" {_SIGNS[c]} " if c in _SIGNS else c if c.isalnum() else " " for c in text)
    return " ".join("".join(said).split())


def _email(match: re.Match) -> str:
    return f"{_spelled(match[1])} at {_spelled(match[2])}"


def _path(match: re.Match) -> str:
    kept = match.group().rstrip(_TRAILING)
    return f"{_spelled(kept)}{match.group()[len(kept) :]}"


def _tag(match: re.Match) -> str:
    return _CAMEL.sub(" ", match[1]).replace("_", " ")


def _dotted(match: re.Match) -> str:
    """example.com, main.py, Node.js; but U.S., e.g. and two sentences with no space between them stay."""
    parts = match.group().split(".")
    if all(len(part) == 1 for part in parts) or match.group() == "Ph.D":
        return r"\0"
    if len(parts) == 2 and len(parts[0]) > 2 and re.fullmatch("[A-Z][a-z]+", parts[1]) and parts[0][-1].islower():
        return f"{parts[0]}. {parts[1]}"
    return " dot ".join(part.replace("_", " ") for part in parts)


RULES = (
    rule("e-mail", r"\b(?:mailto:)?([\w.+\-]{1,64})@((?:[\w\-]{1,63}\.){1,8}[A-Za-z]{2,24})\b(?:\?\S*)?", _email, "@"),
    rule("url", r"\b(?:[A-Za-z][A-Za-z0-9+.\-]{1,20}:)?//(?P<rest>[^\s<>\"/][^\s<>\"]{0,2000})", _url, "/"),
    rule("www", rf"\b(?P<rest>www\.{_HOST}[A-Za-z]{{2,24}}{_TAIL})", _url, "."),
    rule("domain", rf"(?<![\w@/.\-])(?P<rest>{_HOST}(?:{_ENDINGS})(?![\w\-]|\.\w){_TAIL})", _url, "."),
    rule("handle", r"(?<![\w@])@(?=\w)", "at ", "@"),
    rule("hashtag", r"(?<![\w&#])#([A-Za-z]\w*)", _tag, "#"),
    rule("path", r"(?<![\w/\\.~])(?:~|\.{1,2})?/(?:[\w.+\-@]{1,255}/?){1,30}+(?![\w/])", _path, "/"),
    rule("windows path", r"\b[A-Za-z]:\\(?:[\w.+\-]{1,255}\\?){0,30}+", _path, "\\"),
    rule("dotted name", r"(?<![\w.@])(?:[A-Za-z][\w\-]*\.)+[A-Za-z]\w*(?![\w@])(?!\.\w)", _dotted, "."),
    rule("dot file", r"(?<![\w.])\.(?=[A-Za-z]\w+)", " dot ", "."),
)
