"""Marks inside a line, Markdown's and HTML's, to the words they mark."""

import html
import re

from misod.text.tracked import Tracked

_NAMES = (
    "a|abbr|address|b|bdi|bdo|big|button|center|cite|code|data|del|dfn|em|font|i|iframe|img|input|ins|kbd|label|mark|q|"
    "rp|rt|ruby|s|samp|small|source|span|strike|strong|sub|sup|time|tt|u|var|video|wbr|picture|audio|object|summary|"
    "details|option|select|textarea|link|meta|base|caption|col|colgroup|legend|output|progress|param|track|canvas|map|"
    "area|embed|hgroup|dialog|menu|slot|speak|break|prosody|say-as|phoneme"
)
_ATTRIBUTE = r"""\s+[\w:@.\-]+(?:\s*=\s*(?:"[^"<>]{0,500}"|'[^'<>]{0,500}'|[^\s"'<>=]+)|(?=[\s/>]))"""
_IMAGE_TAG = re.compile(r"""(?i)<img\b[^<>]{0,500}?\balt\s*=\s*(?:"([^"<>]{0,300})"|'([^'<>]{0,300})')[^<>]{0,500}>""")
_TAG = re.compile(rf"</?(?:{_NAMES})(?:{_ATTRIBUTE}){{0,20}}+\s*/?>", re.IGNORECASE)
_SWITCHES = re.compile(r"<[A-Za-z]+(?:\s+(?!(?:disabled|checked|hidden|controls|open|required|selected)\b)\w+)+\s*/?>")
_OPENED = re.compile("<!--")  # a comment that is not closed
_PLACE = r"\((?:[^()\s]|\([^()\s]{0,200}\)){0,1000}+(?:\s+(?:\"[^\"]{0,200}\"|'[^']{0,200}'))?\s*\)"
_IMAGE = re.compile(rf"!\[([^\]\[]{{0,500}})\](?:{_PLACE}|\[[^\]\[]{{0,100}}\])")
_LINK = re.compile(rf"\[([^\]\[]{{1,500}})\](?:{_PLACE}|\[[^\]\[]{{0,100}}\])")
_FOOTNOTE = re.compile(r"\[\^[^\]\s]{1,50}\]:?")
_AUTOLINK = re.compile(r"<((?:[A-Za-z][A-Za-z0-9+.\-]{1,20}:|[\w.+\-]{1,64}@)[^\s<>]{1,2000})>")
_CODE = re.compile(r"(?<!`)(`{1,3}+)([^`]{1,1000})\1(?!`)")
_ESCAPE = re.compile(r"\\([!-/:-@\[-`{-~])")
_ENTITY = re.compile(r"&(?:#\d{1,7}|#[xX][0-9A-Fa-f]{1,6}|[A-Za-z][A-Za-z0-9]{1,30});")
_TIMES = re.compile(r"(?<=[\d)])\s?\*\s?(?=[\d(])")
_STARS = re.compile(r"\*+(?=[^\s*])|(?<=[^\s*])\*++|~~(?=\S)|(?<=\S)~~")
_UNDERSCORES = re.compile(r"(?<![\w])_{1,3}(?=[^\s_])|(?<=[^\s_])_{1,3}(?!\w)")

# of code, read as it stands
_JOINED = re.compile(r"(?<=\w)_+(?=\w)|(?<=\w)(?:->|::)(?=\w)")
_CALL = re.compile(r"(?<=\w)\(\s*\)")
_STOP = re.compile(r"\.(?=[(\[{])")  # it would end a sentence once the bracket is silent
_BRACKETS = re.compile(r"[()\[\]{}]")


def without_marks(text: Tracked) -> Tracked:
    """Text of links, alt of images, content of code; no emphasis, no tags, no escapes."""
    if "`" in text.text:
        text = text.sub(_CODE, r" \2 ")
    if "[" in text.text:
        text = text.sub(_IMAGE, r" \1 ").sub(_LINK, r"\1").sub(_FOOTNOTE, "")
    if "<" in text.text:
        text = text.sub(_OPENED, " ").sub(_IMAGE_TAG, r" \1\2 ").sub(_AUTOLINK, r"\1")
        text = text.sub(_TAG, lambda m: r"\0" if _SWITCHES.fullmatch(m.group()) else "")
    if "&" in text.text:
        text = text.sub(_ENTITY, lambda m: html.unescape(m.group()).replace("\\", " "))
    return text.sub(_ESCAPE, r"\1").sub(_TIMES, " times ").sub(_STARS, "").sub(_UNDERSCORES, "")


def code(text: Tracked) -> Tracked:
    """A line of code as words: names apart, brackets silent."""
    return text.sub(_CALL, "").sub(_JOINED, " ").sub(_STOP, " ").sub(_BRACKETS, " ")
